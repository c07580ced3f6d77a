//! Models: libraries of methods, and which of their executions are consistent, as data.
//!
//! A model is a text of some lines; those of the LOCO paper are in `models/`, and users can write more. It declares
//! the kinds of objects, the methods with the subevents of a call, the relations that an execution must be given
//! (`pick`, `orient`), and then, in a language near herd's `cat`, their consequences (`let`) and laws.
//!
//! ```
//! let models = mowgli::model::Models::builtin();
//! assert!(models.get("rdmawait").unwrap().methods().any(|method| method == "Put"));
//! ```
//!
//! # The language
//!
//! ```text
//! library NAME [extends NAME]         everything of the other one is here too; what has the same name is replaced
//! object KIND(ATTRIBUTE, ...) [starts NUMBER]
//!                                     attributes: home (a node), writer (a thread), and lists of threads by any other
//!                                     name. Without a home there is a copy on every node. `starts`: has an initial write
//! method NAME(PARAMETER, ...) CASE... PARAMETER: `v` (a value), `x: KIND` (an object; one with a home must be local),
//!                                     `x: remote KIND`, `d: id`, `n: node`, `N: nodes`
//!   CASE: [-> RESULT] [if CONDITION] { SUBEVENT; ... }      each is one way for the call to go
//!   SUBEVENT: STAMP[NODE]: read X V, write X VALUE, touch X     [then SUBEVENT]     (`then` gives `iso`)
//!             for n in NODES { SUBEVENT; ... }
//!   NODE: n, here, x.home; NODES: nodes (all), nodes(x.ATTRIBUTE), N, {n, ...}, NODES \ NODES
//!   X: x (here, or at its home), x@NODE
//! pick NAME in R                      for each subevent that reads, one pair of R into it
//! orient NAME in R                    each pair of R, one way or the other
//! let NAME = R                        where a name is defined again, its uses before mean that as well
//! acyclic R as NAME    irreflexive R as NAME    empty R as NAME
//! ```
//!
//! A library defines `so`; in every consistent execution `ppo` and the `so` of all libraries together have no cycle.
//!
//! Operators, from the loosest: `|` `;` `\` `&` `*` (product), then `~S` (the others), and behind an operand `^-1`,
//! `^+`, `^*`, `^?`. `[S]` is the identity on a set, `0` is empty. `domain(R)`, `range(R)`; `nth(A, B, R)`: the pairs
//! of R from A to B of which each follows, in program order, equally many events of its own side that are related to
//! the other; `unmet(A, LIST)`: those of A whose call is the nth of its method and object on its thread, while a
//! thread of the object's LIST has no nth.
//!
//! Given are the sets `R` and `W` (subevents that read, that write), each stamp, and each method; and the relations
//! `po` (program order of subevents of different events), `ppo` and `ippo` (those in the stamp order, for finishing and
//! for starting), `iso`, `ev` (of the same event), `loc` (the same place of the same object), `val` (the value written
//! by the first is read by the second), `obj` (calls with the same first object), `tag` (the same id), `int` (of the
//! same thread), `sn` (stamps of the same node), `id`.

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::relation::Relation;
use crate::stamp::Stamp;
use crate::text::{Error, Position, Result};

mod evaluate;
pub(crate) mod explain;
mod parse;

pub(crate) use evaluate::{Base, Given, Meaning, Worth};
pub(crate) use explain::{Broken, Lengths, Paths, named};
pub(crate) use parse::list;

/// A kind of objects.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Kind {
    /// Its name.
    pub(crate) name: String,
    /// The attributes of its declaration.
    pub(crate) attributes: Vec<String>,
    /// The initial value of its places.
    pub(crate) starts: Option<i64>,
}

impl Kind {
    pub(crate) fn has_home(&self) -> bool {
        self.attributes.iter().any(|attribute| attribute == HOME)
    }
}

/// The attribute that is a node.
pub(crate) const HOME: &str = "home";
/// The attribute that is one thread.
pub(crate) const WRITER: &str = "writer";

/// The kind of a method's parameter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Parameter {
    /// A value.
    Value,
    /// An object of a kind, which has to be local if it has a home.
    Local(String),
    /// An object of a kind, wherever it is.
    Remote(String),
    /// The name of an operation.
    Id,
    /// A node.
    Node,
    /// Some nodes.
    Nodes,
}

/// Which node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum NodeTerm {
    Here,
    /// A parameter, or a variable of a `for`.
    Name(String),
    HomeOf(String),
}

/// Which nodes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum NodesTerm {
    All,
    /// The nodes of an object's threads.
    Of(String, String),
    Name(String),
    One(NodeTerm),
    Without(Box<NodesTerm>, Box<NodesTerm>),
}

/// A value of a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum ValueTerm {
    Number(i64),
    None,
    Name(String),
    Sum(Box<ValueTerm>, Box<ValueTerm>),
}

/// A place of an object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct PlaceTerm {
    pub(crate) object: String,
    pub(crate) at: Option<NodeTerm>,
}

/// An action of a subevent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    Read(PlaceTerm, String),
    Write(PlaceTerm, ValueTerm),
    Touch(PlaceTerm),
}

/// A subevent of a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Part {
    pub(crate) stamp: Stamp,
    pub(crate) node: Option<NodeTerm>,
    pub(crate) actions: Vec<Action>,
}

/// Some subevents of a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Group {
    /// One after the other.
    Chain(Vec<Part>),
    For(String, NodesTerm, Vec<Group>),
}

/// One possible course of a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Case {
    pub(crate) result: Option<ValueTerm>,
    /// Two values, and whether they are equal.
    pub(crate) condition: Option<(ValueTerm, ValueTerm, bool)>,
    pub(crate) groups: Vec<Group>,
}

/// A method.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Method {
    /// Its name.
    pub(crate) name: String,
    /// The names and kinds of its parameters.
    pub(crate) parameters: Vec<(String, Parameter)>,
    pub(crate) cases: Vec<Case>,
}

/// An expression of sets and relations.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Term {
    pub(crate) position: Position,
    pub(crate) form: Form,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Form {
    Name(String),
    Zero,
    Identity(Box<Term>),
    Or(Box<Term>, Box<Term>),
    Then(Box<Term>, Box<Term>),
    Minus(Box<Term>, Box<Term>),
    And(Box<Term>, Box<Term>),
    Product(Box<Term>, Box<Term>),
    Not(Box<Term>),
    Inverse(Box<Term>),
    Plus(Box<Term>),
    Star(Box<Term>),
    Maybe(Box<Term>),
    Domain(Box<Term>),
    Range(Box<Term>),
    Nth(Box<Term>, Box<Term>, Box<Term>),
    Unmet(Box<Term>, String),
}

/// A law that a relation must obey.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Law {
    Acyclic,
    Irreflexive,
    Empty,
}

impl Law {
    pub(crate) fn holds(self, relation: &Relation) -> bool {
        match self {
            Law::Acyclic => relation.is_acyclic(),
            Law::Irreflexive => relation.is_irreflexive(),
            Law::Empty => relation.is_empty(),
        }
    }
}

/// How an execution is given a relation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Choice {
    Pick,
    Orient,
}

/// A model. The one that it extends is in it.
///
/// ```
/// let rdmawait = mowgli::model::Models::builtin().get("rdmawait").unwrap();
/// assert_eq!(rdmawait.name, "rdmawait");
/// assert!(rdmawait.methods().any(|method| method == "Wait"));
/// ```
#[derive(Clone, Debug)]
pub struct Library {
    /// Its name.
    pub name: String,
    /// Where its text is.
    pub(crate) file: String,
    pub(crate) kinds: Vec<Kind>,
    pub(crate) methods: BTreeMap<String, Method>,
    pub(crate) choices: Vec<(String, Choice, Term)>,
    pub(crate) lets: BTreeMap<String, Term>,
    pub(crate) laws: Vec<(String, Law, Term)>,
}

impl Library {
    /// The names of its methods.
    ///
    /// ```
    /// # use mowgli::model::Models;
    /// let x86tso = Models::builtin().get("x86tso").unwrap();
    /// assert_eq!(x86tso.methods().collect::<Vec<_>>(), ["CAS", "Mfence", "Read", "Write"]);
    /// ```
    pub fn methods(&self) -> impl Iterator<Item = &str> {
        self.methods.keys().map(String::as_str)
    }

    pub(crate) fn kind(&self, name: &str) -> Option<&Kind> {
        self.kinds.iter().find(|kind| kind.name == name)
    }

    pub(crate) fn error(&self, position: Position, what: impl Into<String>) -> Error {
        Error { file: self.file.clone(), position, what: what.into() }
    }
}

/// The models that are known, by name.
///
/// ```
/// # use mowgli::model::Models;
/// let mut models = Models::builtin();
/// models.load("mine", "library mine extends x86tso")?; // a text of your own
/// assert!(models.names().any(|name| name == "mine"));
/// # Ok::<(), mowgli::text::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Models {
    libraries: BTreeMap<String, Rc<Library>>,
}

/// Those of the LOCO paper; each after the one that it extends.
const BUILTIN: &[(&str, &str)] = &[
    ("x86tso", include_str!("../models/x86tso")),
    ("rdma", include_str!("../models/rdma")),
    ("rdmawait", include_str!("../models/rdmawait")),
    ("rdmatso", include_str!("../models/rdmatso")),
    ("rdmarmw", include_str!("../models/rdmarmw")),
    ("sv", include_str!("../models/sv")),
    ("bal", include_str!("../models/bal")),
    ("balp", include_str!("../models/balp")),
    ("rbl", include_str!("../models/rbl")),
    ("msw", include_str!("../models/msw")),
];

impl Models {
    /// Those of the LOCO paper.
    ///
    /// ```
    /// let models = mowgli::model::Models::builtin();
    /// assert!(["x86tso", "rdmawait", "bal"].into_iter().all(|name| models.get(name).is_some()));
    /// ```
    pub fn builtin() -> Models {
        let mut models = Models::default();
        for (name, text) in BUILTIN {
            models.load(&format!("models/{name}"), text).unwrap_or_else(|error| panic!("{error}"));
        }
        models
    }

    /// Reads one more; its name is in its text. One of the same name is replaced.
    ///
    /// ```
    /// # use mowgli::model::Models;
    /// let mut models = Models::builtin();
    /// let stricter = models.load("stricter", "library stricter extends x86tso acyclic po | rf as sc_per_rf")?;
    /// assert_eq!(stricter.name, "stricter");
    /// let error = models.load("typo", "library typo extends x68tso").unwrap_err();
    /// assert!(error.to_string().starts_with("typo:1:"));
    /// # Ok::<(), mowgli::text::Error>(())
    /// ```
    ///
    /// # Errors
    /// The error in the text, with its place.
    pub fn load(&mut self, file: &str, text: &str) -> Result<Rc<Library>> {
        let library = Rc::new(parse::library(file, text, self)?);
        Meaning::of(&library)?;
        self.libraries.insert(library.name.clone(), Rc::clone(&library));
        Ok(library)
    }

    /// The model of a name.
    ///
    /// ```
    /// # use mowgli::model::Models;
    /// let models = Models::builtin();
    /// assert_eq!(models.get("rdmawait").unwrap().name, "rdmawait");
    /// assert!(models.get("wait").is_none());
    /// ```
    pub fn get(&self, name: &str) -> Option<Rc<Library>> {
        self.libraries.get(name).cloned()
    }

    /// The same models, but the name `name` stands for another of them: the verdicts of a test about the one are asked
    /// of the other.
    ///
    /// ```
    /// # use mowgli::{enumerate::{Detail, consistent}, litmus::Test, model::Models};
    /// let text = "rdma t { x@1; y@2; } P0@1 { Put(d, y, x); Write(x, 1); } exists (y=1)";
    /// let others = Models::builtin().with("rdma", "rdmawait").unwrap();
    /// assert_eq!(consistent(&Test::parse("t", text, &others)?, Detail::Shown)?.states.len(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn with(&self, name: &str, other: &str) -> Option<Models> {
        let mut models = self.clone();
        let library = Library { name: name.to_owned(), ..(*self.get(other)?).clone() };
        models.libraries.insert(name.to_owned(), Rc::new(library));
        Some(models)
    }

    /// The names of all.
    ///
    /// ```
    /// # use mowgli::model::Models;
    /// let models = Models::builtin();
    /// let names = models.names().filter(|name| name.starts_with("rdma"));
    /// assert_eq!(names.collect::<Vec<_>>(), ["rdma", "rdmarmw", "rdmatso", "rdmawait"]);
    /// ```
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.libraries.keys().map(String::as_str)
    }
}
