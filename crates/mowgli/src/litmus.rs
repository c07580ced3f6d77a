//! Litmus tests: small programs over the methods of some libraries, and a question about their outcomes.
//!
//! ```text
//! rdmawait fig_3d
//! "A wait for a put says that its source has been read."
//!
//! { x@1; z@2; }
//!
//! P0@1 {
//!     Put(d, z, x);
//!     Wait(d);
//!     Write(x, 1);
//! }
//!
//! ~exists (z = 1)
//! ```
//!
//! The first line names the libraries, with commas between them, and the test. The braces declare objects: `[KIND]
//! NAME [@NODE] [(P0, ...)] [= VALUE];`; the default is the first kind of the first library. A thread is on a node,
//! from 1. Its statements:
//!
//! | statement | meaning |
//! |---|---|
//! | `Put(d, z, x);` `let a = Read(x);` | a call; `rdmawait.Wait(d)` where several libraries have one |
//! | `let a = b + 1;` | a register |
//! | `if a == 1 { ... } else { ... }` | also `!=`, `<`, `<=`, `>`, `>=` |
//! | `loop 3 { ... break; }` | at most three times: executions that have not left it by then do not count; without a `break`, three times |
//!
//! Values are numbers, `none`, and tuples: `(1, a)`, of which `t.0` is the first. The question is herd's: `exists`,
//! `~exists` or `forall`, and a condition of `0:a = 1` (a register of P0), `z = 1` (an object with a home), `x@2 = 1`
//! (a copy), joined by `/\`, `\/` and `~`. Before it, `locations [0:a; z;]` names more to be shown.

use std::fmt;
use std::rc::Rc;

use smallvec::SmallVec;

use crate::model::{Library, Models};
use crate::text::Result;

mod expand;
mod implementation;
mod parse;
mod question;
mod written;

pub use implementation::Implementation;

/// A value that calls take and return, and that memory holds.
///
/// ```
/// # use mowgli::litmus::Value;
/// assert_eq!((Value::None.to_string(), Value::number(7).to_string()), ("none".into(), "7".into()));
/// assert_eq!(Value::number(7).as_number(), Some(7));
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub enum Value {
    /// No value: the result of a receive that finds nothing.
    #[default]
    None,
    /// A number, or a tuple of several.
    Numbers(SmallVec<[i64; 2]>),
}

impl Value {
    /// A number.
    ///
    /// ```
    /// # use mowgli::litmus::Value;
    /// assert_eq!(Value::number(7).to_string(), "7");
    /// ```
    pub fn number(number: i64) -> Value {
        Value::Numbers(SmallVec::from_slice(&[number]))
    }

    /// The number, if it is one.
    ///
    /// ```
    /// # use mowgli::litmus::Value;
    /// let pair = Value::Numbers([1, 2].into());
    /// assert_eq!((Value::number(7).as_number(), pair.as_number()), (Some(7), None));
    /// ```
    pub fn as_number(&self) -> Option<i64> {
        match self {
            Value::Numbers(numbers) if numbers.len() == 1 => Some(numbers[0]),
            _ => None,
        }
    }

    /// One number of a tuple; there may be none.
    pub(crate) fn part(&self, at: usize) -> Value {
        match self {
            Value::Numbers(numbers) => numbers.get(at).map_or(Value::None, |number| Value::number(*number)),
            Value::None => Value::None,
        }
    }

    /// The sum of two numbers; of anything else there is none.
    pub(crate) fn plus(&self, other: &Value) -> Value {
        match (self.as_number(), other.as_number()) {
            (Some(left), Some(right)) => Value::number(left.wrapping_add(right)),
            _ => Value::None,
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::None => f.write_str("none"),
            Value::Numbers(numbers) if numbers.len() == 1 => write!(f, "{}", numbers[0]),
            Value::Numbers(numbers) => {
                let numbers: Vec<_> = numbers.iter().map(i64::to_string).collect();
                write!(f, "({})", numbers.join(","))
            }
        }
    }
}

/// A node, from 1.
///
/// ```
/// # use mowgli::{litmus::{NodeNumber, Test}, model::Models};
/// let text = "rdmawait t { x@1; z@2; } P0@1 { Put(d, z, x); } exists (z=0)";
/// let nodes: Vec<NodeNumber> = Test::parse("t", text, &Models::builtin())?.nodes;
/// assert_eq!(nodes, [1, 2]);
/// # Ok::<(), mowgli::text::Error>(())
/// ```
pub type NodeNumber = u16;

/// An object of a test.
///
/// ```
/// # use mowgli::{litmus::{Test, Value}, model::Models};
/// let text = "x86tso t { x@1 = 5; } P0@1 { let a = Read(x); } exists (0:a=5)";
/// let x = &Test::parse("t", text, &Models::builtin())?.objects[0];
/// assert_eq!((x.name.as_str(), x.home, &x.starts), ("x", Some(1), &Some(Value::number(5))));
/// # Ok::<(), mowgli::text::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Object {
    /// Its name.
    pub name: String,
    /// Which library's kind it is of: its place among the test's, and the kind's name.
    pub(crate) library: usize,
    pub(crate) kind: String,
    /// Where it is, if it has a home.
    pub home: Option<NodeNumber>,
    /// The threads of each attribute that has some.
    pub(crate) threads: Vec<(String, Vec<usize>)>,
    /// The initial value of its places, if they have one.
    pub starts: Option<Value>,
}

/// A place of memory: an object, and the node with the copy, or its home.
///
/// ```
/// # use mowgli::{litmus::{Observable, Place, Test}, model::Models};
/// let text = "sv t { shared x; } P0@2 { let a = Read(x); } exists (0:a=0)";
/// let test = Test::parse("t", text, &Models::builtin())?;
/// let copy: Place = (0, 2); // of the first object, on node 2
/// assert_eq!(test.name_of(Observable::Place(copy)), "x@2");
/// # Ok::<(), mowgli::text::Error>(())
/// ```
pub type Place = (usize, NodeNumber);

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Expression {
    Constant(Value),
    Register(usize),
    Sum(Box<Expression>, Box<Expression>),
    Tuple(Vec<Expression>),
    /// One number of a tuple.
    Part(Box<Expression>, usize),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
}

/// The argument of a parameter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Argument {
    Value(Expression),
    Object(usize),
    Id(usize),
    Node(NodeNumber),
    Nodes(Vec<NodeNumber>),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Call {
    /// Its place among the test's.
    pub(crate) library: usize,
    pub(crate) method: String,
    pub(crate) arguments: Vec<Argument>,
}

/// A step of a thread. Jumps lead forward only.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Instruction {
    Call(Option<usize>, Call),
    Set(usize, Expression),
    /// Jumps there unless the comparison holds.
    Unless(Expression, Comparison, Expression, usize),
    Jump(usize),
    /// The bound of a loop: this execution does not count. For a run that continues, the start of the loop's last
    /// round.
    Stop(Option<usize>),
}

/// A thread of a test.
///
/// ```
/// # use mowgli::{litmus::Test, model::Models};
/// let text = "x86tso t { x@3; } P0@3 { let a = Read(x); let b = a + 1; } exists (0:b=1)";
/// let test = Test::parse("t", text, &Models::builtin())?;
/// assert_eq!((test.threads[0].node, &test.threads[0].registers[..]), (3, &["a".to_owned(), "b".to_owned()][..]));
/// # Ok::<(), mowgli::text::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct TestThread {
    /// Where it runs.
    pub node: NodeNumber,
    /// The names of its registers.
    pub registers: Vec<String>,
    pub(crate) code: Vec<Instruction>,
}

/// A value that can be seen at the end of an execution.
///
/// ```
/// # use mowgli::{litmus::{Observable, Test}, model::Models};
/// let text = "x86tso t { x@1; } P0@1 { let a = Read(x); } exists (0:a=0 /\\ x=0)";
/// let test = Test::parse("t", text, &Models::builtin())?;
/// assert_eq!(test.shown, [Observable::Register(0, 0), Observable::Place((0, 1))]);
/// # Ok::<(), mowgli::text::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Observable {
    /// A register of a thread.
    Register(usize, usize),
    /// A place of memory.
    Place(Place),
}

/// A question about the end of an execution.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Condition {
    True,
    Is(Observable, Value),
    Not(Box<Condition>),
    And(Box<Condition>, Box<Condition>),
    Or(Box<Condition>, Box<Condition>),
}

impl Condition {
    /// Whether it holds of the observed values.
    pub(crate) fn holds(&self, seen: &dyn Fn(Observable) -> Value) -> bool {
        match self {
            Condition::True => true,
            Condition::Is(observable, value) => seen(*observable) == *value,
            Condition::Not(inner) => !inner.holds(seen),
            Condition::And(left, right) => left.holds(seen) && right.holds(seen),
            Condition::Or(left, right) => left.holds(seen) || right.holds(seen),
        }
    }
}

/// How often a condition has to hold.
///
/// ```
/// # use mowgli::litmus::Quantifier;
/// // A condition that held in 3 executions, and did not in 4.
/// assert!(Quantifier::Exists.is_met(3, 4) && !Quantifier::NotExists.is_met(3, 4) && !Quantifier::Forall.is_met(3, 4));
/// assert_eq!(Quantifier::NotExists.kind(), "Forbidden"); // as herd calls it
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Quantifier {
    /// In some execution.
    Exists,
    /// In none.
    NotExists,
    /// In all.
    Forall,
}

impl Quantifier {
    /// What herd calls a test that asks so.
    ///
    /// ```
    /// # use mowgli::litmus::Quantifier;
    /// assert_eq!((Quantifier::Exists.kind(), Quantifier::Forall.kind()), ("Allowed", "Required"));
    /// ```
    pub fn kind(self) -> &'static str {
        match self {
            Quantifier::Exists => "Allowed",
            Quantifier::NotExists => "Forbidden",
            Quantifier::Forall => "Required",
        }
    }

    /// Whether the answer is yes, of a condition that holds in so many executions, and does not in so many.
    ///
    /// ```
    /// # use mowgli::litmus::Quantifier;
    /// assert!(Quantifier::Forall.is_met(3, 0));
    /// assert!(!Quantifier::Forall.is_met(3, 1)); // one execution is otherwise
    /// ```
    pub fn is_met(self, positive: u64, negative: u64) -> bool {
        match self {
            Quantifier::Exists => positive > 0,
            Quantifier::NotExists => positive == 0,
            Quantifier::Forall => negative == 0,
        }
    }
}

impl fmt::Display for Quantifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Quantifier::Exists => "exists",
            Quantifier::NotExists => "~exists",
            Quantifier::Forall => "forall",
        })
    }
}

/// A litmus test.
///
/// ```
/// # use mowgli::{litmus::{Quantifier, Test}, model::Models};
/// let text = r#"x86tso SB "Both reads may be early." { x@1; y@1; }
///     P0@1 { Write(x, 1); let a = Read(y); }
///     P1@1 { Write(y, 1); let b = Read(x); }
///     exists (0:a=0 /\ 1:b=0)"#;
/// let test = Test::parse("SB.litmus", text, &Models::builtin())?;
/// assert_eq!((test.name.as_str(), test.reason.as_str()), ("SB", "Both reads may be early."));
/// assert_eq!((test.threads.len(), test.nodes.len(), test.quantifier), (2, 1, Quantifier::Exists));
/// # Ok::<(), mowgli::text::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Test {
    /// Its name.
    pub name: String,
    /// The sentence in its header.
    pub reason: String,
    pub(crate) libraries: Vec<Rc<Library>>,
    /// All objects that its threads work on.
    pub objects: Vec<Object>,
    /// Its threads.
    pub threads: Vec<TestThread>,
    /// All nodes that it names.
    pub nodes: Vec<NodeNumber>,
    /// The observed values of each outcome.
    pub shown: Vec<Observable>,
    /// How often the condition has to hold.
    pub quantifier: Quantifier,
    pub(crate) condition: Condition,
    /// The condition as it was written, but for blanks.
    pub question: String,
    /// The names of operations.
    pub(crate) ids: Vec<String>,
}

impl Test {
    /// Reads a test.
    ///
    /// # Errors
    /// The error, with its place.
    ///
    /// ```
    /// # use mowgli::{litmus::Test, model::Models};
    /// let text = "rdmawait fig_1 { x@1; z@2; } P0@1 { Put(d, z, x); Write(x, 1); } exists (z = 1)";
    /// let test = Test::parse("fig_1.litmus", text, &Models::builtin())?;
    /// assert_eq!((test.name.as_str(), test.threads.len()), ("fig_1", 1));
    /// # Ok::<(), mowgli::text::Error>(())
    /// ```
    pub fn parse(file: &str, text: &str, models: &Models) -> Result<Test> {
        parse::test(file, text, models, &[])
    }

    /// Reads a test, and replaces every call of a library that one of these implements: Definition 3.9 of the LOCO
    /// paper. Registers and objects of an implementation have a `:`, a `.` or a `[` in their names.
    ///
    /// # Errors
    /// The error in the test, or in an implementation, with its place.
    ///
    /// ```
    /// # use mowgli::{litmus::{Implementation, Test}, model::Models};
    /// let text = "sv t { shared x; } P0@1 { Write(x, 1); let a = Read(x); } exists (0:a=1)";
    /// let test = Test::expand("t", text, &Models::builtin(), &Implementation::builtin())?;
    /// assert!(test.objects.iter().any(|object| object.name == "x.copy[1]"));
    /// # Ok::<(), mowgli::text::Error>(())
    /// ```
    pub fn expand(file: &str, text: &str, models: &Models, implementations: &[Rc<Implementation>]) -> Result<Test> {
        parse::test(file, text, models, implementations)
    }

    /// The names of its libraries.
    ///
    /// ```
    /// # use mowgli::{litmus::Test, model::Models};
    /// # let text = "x86tso SB { x@1; y@1; }
    /// #     P0@1 { Write(x, 1); let a = Read(y); }
    /// #     P1@1 { Write(y, 1); let b = Read(x); }
    /// #     exists (0:a=0 /\\ 1:b=0)";
    /// # let test = Test::parse("SB.litmus", text, &Models::builtin())?;
    /// assert_eq!(test.libraries().collect::<Vec<_>>(), ["x86tso"]);
    /// # Ok::<(), mowgli::text::Error>(())
    /// ```
    pub fn libraries(&self) -> impl Iterator<Item = &str> {
        self.libraries.iter().map(|library| library.name.as_str())
    }

    /// All places of its objects that hold something to begin with.
    ///
    /// ```
    /// # use mowgli::{litmus::Test, model::Models};
    /// let text = "rdmawait t { x@1; z@2; } P0@1 { Put(d, z, x); } exists (z=0)";
    /// let test = Test::parse("t", text, &Models::builtin())?;
    /// assert_eq!(test.places(), [(0, 1), (1, 2)]); // object and node
    /// # Ok::<(), mowgli::text::Error>(())
    /// ```
    pub fn places(&self) -> Vec<Place> {
        let places = self.objects.iter().enumerate().filter(|(_, object)| object.starts.is_some());
        let places = places.flat_map(|(at, object)| match object.home {
            Some(home) => vec![(at, home)],
            None => self.nodes.iter().map(|node| (at, *node)).collect(),
        });
        places.collect()
    }

    /// Its calls, thread by thread.
    pub(crate) fn calls(&self) -> impl Iterator<Item = &Call> {
        self.threads.iter().flat_map(|thread| &thread.code).filter_map(|instruction| match instruction {
            Instruction::Call(_, call) => Some(call),
            _ => None,
        })
    }

    /// Everything that can be seen at the end.
    ///
    /// ```
    /// # use mowgli::{litmus::Test, model::Models};
    /// # let text = "x86tso SB { x@1; y@1; }
    /// #     P0@1 { Write(x, 1); let a = Read(y); }
    /// #     P1@1 { Write(y, 1); let b = Read(x); }
    /// #     exists (0:a=0 /\\ 1:b=0)";
    /// # let test = Test::parse("SB.litmus", text, &Models::builtin())?;
    /// let names: Vec<String> = test.observables().into_iter().map(|it| test.name_of(it)).collect();
    /// assert_eq!(names, ["0:a", "1:b", "x", "y"]);
    /// # Ok::<(), mowgli::text::Error>(())
    /// ```
    pub fn observables(&self) -> Vec<Observable> {
        let threads = self.threads.iter().enumerate();
        let registers =
            threads.flat_map(|(at, thread)| (0..thread.registers.len()).map(move |it| Observable::Register(at, it)));
        registers.chain(self.places().into_iter().map(Observable::Place)).collect()
    }

    /// The name of something that can be seen, as conditions name it.
    ///
    /// ```
    /// # use mowgli::{litmus::{Observable, Test}, model::Models};
    /// let text = "sv t { shared x; } P0@2 { let a = Read(x); } exists (0:a=0)";
    /// let test = Test::parse("t", text, &Models::builtin())?;
    /// assert_eq!(test.name_of(Observable::Register(0, 0)), "0:a");
    /// assert_eq!(test.name_of(Observable::Place((0, 2))), "x@2"); // the copy on node 2
    /// # Ok::<(), mowgli::text::Error>(())
    /// ```
    pub fn name_of(&self, observable: Observable) -> String {
        match observable {
            Observable::Register(thread, register) => format!("{thread}:{}", self.threads[thread].registers[register]),
            Observable::Place((object, node)) => match self.objects[object] {
                Object { ref name, home: Some(_), .. } => name.clone(),
                Object { ref name, .. } => format!("{name}@{node}"),
            },
        }
    }
}
