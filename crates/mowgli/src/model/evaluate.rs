//! The meaning of a model's expressions: checked once, evaluated for each candidate of an execution.

use std::collections::BTreeMap;

use super::*;
use crate::relation::{Relation, Set};

/// What an execution gives a model to begin with.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Base {
    Reads,
    Writes,
    Stamp(Stamp),
    Method(String),
    Po,
    Ppo,
    Ippo,
    Iso,
    SameEvent,
    SamePlace,
    SameValue,
    SameObject,
    SameTag,
    SameThread,
    SameNode,
    Id,
}

impl Base {
    fn of(name: &str, library: &Library) -> Option<Base> {
        Some(match name {
            "R" => Base::Reads,
            "W" => Base::Writes,
            "po" => Base::Po,
            "ppo" => Base::Ppo,
            "ippo" => Base::Ippo,
            "iso" => Base::Iso,
            "ev" => Base::SameEvent,
            "loc" => Base::SamePlace,
            "val" => Base::SameValue,
            "obj" => Base::SameObject,
            "tag" => Base::SameTag,
            "int" => Base::SameThread,
            "sn" => Base::SameNode,
            "id" => Base::Id,
            _ if library.methods.contains_key(name) => Base::Method(name.to_owned()),
            _ => Base::Stamp(Stamp::of(name)?),
        })
    }

    fn is_set(&self) -> bool {
        matches!(self, Base::Reads | Base::Writes | Base::Stamp(_) | Base::Method(_))
    }
}

/// A set or a relation.
#[derive(Clone, Debug)]
pub(crate) enum Worth {
    Set(Set),
    Relation(Relation),
}

impl Worth {
    fn set(&self) -> Set {
        match self {
            Worth::Set(set) => *set,
            Worth::Relation(_) => unreachable!("the kinds of operands were checked"),
        }
    }

    pub(crate) fn relation(&self) -> &Relation {
        self.as_relation().unwrap_or_else(|| unreachable!("the kinds of operands were checked"))
    }

    /// It, if it is a relation.
    pub(crate) fn as_relation(&self) -> Option<&Relation> {
        match self {
            Worth::Relation(relation) => Some(relation),
            Worth::Set(_) => None,
        }
    }
}

/// The events of a candidate that are a library's.
pub(crate) trait Given {
    /// How many subevents there are, and which of them are the library's.
    fn universe(&self) -> (usize, Set);
    fn base(&self, base: &Base) -> Worth;
    /// [`Form::Nth`].
    fn nth(&self, from: Set, to: Set, relation: &Relation) -> Relation;
    /// [`Form::Unmet`].
    fn unmet(&self, set: Set, attribute: &str) -> Set;
}

/// A step of the evaluation; operands are steps before it.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Step {
    Base(Base),
    Chosen(usize),
    Empty,
    Identity(usize),
    OrSet(usize, usize),
    Or(usize, usize),
    MinusSet(usize, usize),
    Minus(usize, usize),
    AndSet(usize, usize),
    And(usize, usize),
    Then(usize, usize),
    Product(usize, usize),
    NotSet(usize),
    Not(usize),
    Inverse(usize),
    Plus(usize),
    Star(usize),
    Maybe(usize),
    Domain(usize),
    Range(usize),
    Nth(usize, usize, usize),
    Unmet(usize, String),
}

/// How a step depends on the chosen relations.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Depends {
    Never,
    /// More chosen pairs give more pairs.
    Grows,
    Anyhow,
}

/// A model, ready to be evaluated.
#[derive(Clone, Debug)]
pub(crate) struct Meaning {
    pub(super) steps: Vec<(Step, Depends)>,
    /// How the pairs of earlier events depend on later events, and on the chosen relations.
    extends: Vec<Depends>,
    is_set: Vec<bool>,
    pub(crate) choices: Vec<(Choice, usize)>,
    /// The names of the choices.
    pub(crate) chosen: Vec<String>,
    pub(super) laws: Vec<(String, Law, usize)>,
    pub(crate) so: usize,
    /// The meaning of each name.
    pub(crate) names: BTreeMap<String, usize>,
}

struct Builder<'a> {
    library: &'a Library,
    meaning: Meaning,
    /// The meaning of names; None while it is being found out.
    names: BTreeMap<String, Option<usize>>,
}

impl Meaning {
    /// Checks a library.
    ///
    /// # Errors
    /// The mistake in it, and the position.
    pub(crate) fn of(library: &Library) -> Result<Meaning> {
        let meaning = Meaning {
            steps: Vec::new(),
            extends: Vec::new(),
            is_set: Vec::new(),
            choices: Vec::new(),
            chosen: library.choices.iter().map(|choice| choice.0.clone()).collect(),
            laws: Vec::new(),
            so: 0,
            names: BTreeMap::new(),
        };
        let mut builder = Builder { library, meaning, names: BTreeMap::new() };
        for (name, choice, term) in &library.choices {
            let step = builder.relation(term)?;
            if builder.depends(step) != Depends::Never {
                let what = format!("what `{name}` is chosen from depends on what is chosen itself");
                return Err(library.error(term.position, what));
            }
            builder.meaning.choices.push((*choice, step));
        }
        // Also those that nothing uses are to make sense.
        for (name, term) in &library.lets {
            builder.name(name, term.position)?;
        }
        for (name, law, term) in &library.laws {
            // A set can be empty, too.
            let step = builder.term(term)?;
            let is_set = builder.meaning.is_set[step];
            let step = if is_set { builder.add(Step::Identity(step)) } else { step };
            if is_set && *law != Law::Empty {
                return Err(library.error(term.position, "this is a set, where a relation is wanted"));
            }
            builder.meaning.laws.push((name.clone(), *law, step));
        }
        let so = &library.lets["so"];
        builder.meaning.so = builder.name("so", so.position)?;
        if builder.meaning.is_set[builder.meaning.so] {
            return Err(library.error(so.position, "`so` is a relation"));
        }
        let names = builder.names.into_iter();
        builder.meaning.names = names.filter_map(|(name, step)| Some((name, step?))).collect();
        Ok(builder.meaning)
    }

    /// Evaluates the steps that do not depend on the chosen relations.
    pub(crate) fn begin(&self, given: &dyn Given) -> Vec<Worth> {
        let mut worths: Vec<Worth> = Vec::with_capacity(self.steps.len());
        for (step, depends) in &self.steps {
            let worth = match depends {
                Depends::Never => self.step(step, &worths, &[], given),
                _ => Worth::Set(Set::default()),
            };
            worths.push(worth);
        }
        worths
    }

    /// Evaluates the rest.
    pub(crate) fn go_on(&self, worths: &mut [Worth], chosen: &[Relation], given: &dyn Given) {
        for at in 0..self.steps.len() {
            if self.steps[at].1 != Depends::Never {
                let (before, rest) = worths.split_at_mut(at);
                rest[0] = self.step(&self.steps[at].0, before, chosen, given);
            }
        }
    }

    /// The name of a law that does not hold; with `final_only` false, only of those that more chosen pairs cannot mend.
    pub(crate) fn broken(&self, worths: &[Worth], is_final: bool) -> Option<&str> {
        self.laws
            .iter()
            .find(|(_, law, step)| {
                if !is_final && self.steps[*step].1 == Depends::Anyhow {
                    return false;
                }
                !law.holds(worths[*step].relation())
            })
            .map(|law| law.0.as_str())
    }

    /// Whether a step has the same pairs of the events so far, whatever follows and is chosen.
    pub(crate) fn is_fixed(&self, step: usize) -> bool {
        self.extends[step] == Depends::Never
    }

    /// Whether a step keeps the pairs that it has, whatever follows and is chosen.
    pub(crate) fn keeps(&self, step: usize) -> bool {
        self.extends[step] != Depends::Anyhow
    }

    /// Whether a law does not hold of the events so far, and will not, whatever follows and is chosen.
    pub(crate) fn is_broken_for_ever(&self, worths: &[Worth]) -> bool {
        self.laws.iter().any(|(_, law, step)| self.keeps(*step) && !law.holds(worths[*step].relation()))
    }

    /// Whether all pairs of a step are of a write and a read of the same value at the same place.
    pub(crate) fn finds_its_value(&self, step: usize) -> bool {
        self.is_within(step, &Base::SameValue) && self.is_within(step, &Base::SamePlace)
    }

    /// Whether each pair of a step is one of a relation that is given, as far as the step's form shows it.
    fn is_within(&self, step: usize, relation: &Base) -> bool {
        match &self.steps[step].0 {
            Step::Base(base) => base == relation,
            Step::And(a, b) => self.is_within(*a, relation) || self.is_within(*b, relation),
            Step::Or(a, b) => self.is_within(*a, relation) && self.is_within(*b, relation),
            Step::Minus(a, _) => self.is_within(*a, relation),
            Step::Empty => true,
            _ => false,
        }
    }

    /// Whether `so` only grows with the chosen relations.
    pub(crate) fn so_grows(&self) -> bool {
        self.steps[self.so].1 != Depends::Anyhow
    }

    fn step(&self, step: &Step, worths: &[Worth], chosen: &[Relation], given: &dyn Given) -> Worth {
        let (count, universe) = given.universe();
        let (set, relation) = (|at: &usize| worths[*at].set(), |at: &usize| worths[*at].relation());
        let id = || Relation::identity(count, universe);
        Worth::Relation(match step {
            Step::Base(base) => return given.base(base),
            Step::Chosen(at) => chosen[*at].clone(),
            Step::Empty => Relation::empty(count),
            Step::OrSet(a, b) => return Worth::Set(Set(set(a).0 | set(b).0)),
            Step::MinusSet(a, b) => return Worth::Set(Set(set(a).0 & !set(b).0)),
            Step::AndSet(a, b) => return Worth::Set(Set(set(a).0 & set(b).0)),
            Step::NotSet(a) => return Worth::Set(Set(universe.0 & !set(a).0)),
            Step::Domain(a) => return Worth::Set(relation(a).domain()),
            Step::Range(a) => return Worth::Set(relation(a).range()),
            Step::Unmet(a, attribute) => return Worth::Set(given.unmet(set(a), attribute)),
            Step::Identity(a) => Relation::identity(count, set(a)),
            Step::Or(a, b) => relation(a).or(relation(b)),
            Step::Minus(a, b) => relation(a).minus(relation(b)),
            Step::And(a, b) => relation(a).and(relation(b)),
            Step::Then(a, b) => relation(a).then(relation(b)),
            Step::Product(a, b) => Relation::product(count, set(a), set(b)),
            Step::Not(a) => Relation::product(count, universe, universe).minus(relation(a)),
            Step::Inverse(a) => relation(a).inverse(),
            Step::Plus(a) => relation(a).closure(),
            Step::Star(a) => relation(a).closure().or(&id()),
            Step::Maybe(a) => relation(a).or(&id()),
            Step::Nth(a, b, c) => given.nth(set(a), set(b), relation(c)),
        })
    }
}

impl Builder<'_> {
    fn depends(&self, at: usize) -> Depends {
        self.meaning.steps[at].1
    }

    fn add(&mut self, step: Step) -> usize {
        if let Some(at) = self.meaning.steps.iter().position(|other| other.0 == step) {
            return at;
        }
        let of = |at: &usize| self.meaning.steps[*at].1;
        // Grows only if its operand does not change at all.
        let fixed = |at: &usize| if of(at) == Depends::Never { Depends::Never } else { Depends::Anyhow };
        let depends = match &step {
            Step::Base(_) | Step::Empty => Depends::Never,
            Step::Chosen(_) => Depends::Grows,
            Step::OrSet(a, b) | Step::Or(a, b) | Step::AndSet(a, b) | Step::And(a, b) => of(a).max(of(b)),
            Step::Then(a, b) | Step::Product(a, b) => of(a).max(of(b)),
            Step::MinusSet(a, b) | Step::Minus(a, b) => of(a).max(fixed(b)),
            Step::Identity(a) | Step::Inverse(a) | Step::Plus(a) | Step::Star(a) | Step::Maybe(a) => of(a),
            Step::Domain(a) | Step::Range(a) => of(a),
            Step::NotSet(a) | Step::Not(a) | Step::Unmet(a, _) => fixed(a),
            Step::Nth(a, b, c) => fixed(a).max(fixed(b)).max(fixed(c)),
        };
        let of = |at: &usize| self.meaning.extends[*at];
        let is_identity = |at: &usize| matches!(self.meaning.steps[*at].0, Step::Identity(_));
        let fixed = |at: &usize| if of(at) == Depends::Never { Depends::Never } else { Depends::Anyhow };
        let extends = match &step {
            Step::Base(_) | Step::Empty => Depends::Never,
            Step::Chosen(_) => Depends::Grows,
            Step::OrSet(a, b) | Step::Or(a, b) | Step::AndSet(a, b) | Step::And(a, b) => of(a).max(of(b)),
            Step::Product(a, b) => of(a).max(of(b)),
            Step::Identity(a) | Step::Inverse(a) | Step::Maybe(a) => of(a),
            Step::Then(a, b) if is_identity(a) || is_identity(b) => of(a).max(of(b)),
            // A later event may be the link between two earlier ones.
            Step::Then(a, b) => Depends::Grows.max(of(a)).max(of(b)),
            Step::Plus(a) | Step::Star(a) | Step::Domain(a) | Step::Range(a) => Depends::Grows.max(of(a)),
            Step::MinusSet(a, b) | Step::Minus(a, b) => of(a).max(fixed(b)),
            Step::NotSet(a) | Step::Not(a) => fixed(a),
            // It counts earlier events only.
            Step::Nth(a, b, c) => fixed(a).max(fixed(b)).max(fixed(c)),
            Step::Unmet(..) => Depends::Anyhow,
        };
        let is_set = match &step {
            Step::Base(base) => base.is_set(),
            Step::OrSet(..) | Step::MinusSet(..) | Step::AndSet(..) | Step::NotSet(_) => true,
            Step::Domain(_) | Step::Range(_) | Step::Unmet(..) => true,
            _ => false,
        };
        self.meaning.steps.push((step, depends));
        self.meaning.extends.push(extends);
        self.meaning.is_set.push(is_set);
        self.meaning.steps.len() - 1
    }

    fn name(&mut self, name: &str, position: Position) -> Result<usize> {
        match self.names.get(name) {
            Some(Some(at)) => return Ok(*at),
            Some(None) => return Err(self.library.error(position, format!("`{name}` is defined by itself"))),
            None => {}
        }
        self.names.insert(name.to_owned(), None);
        let library = self.library;
        let at = if let Some(term) = library.lets.get(name) {
            self.term(term)?
        } else if let Some(at) = library.choices.iter().position(|choice| choice.0 == name) {
            self.add(Step::Chosen(at))
        } else {
            let unknown = || library.error(position, format!("`{name}` is no set and no relation"));
            self.add(Step::Base(Base::of(name, library).ok_or_else(unknown)?))
        };
        self.names.insert(name.to_owned(), Some(at));
        Ok(at)
    }

    fn set(&mut self, term: &Term) -> Result<usize> {
        let at = self.term(term)?;
        let wrong = || self.library.error(term.position, "this is a relation, where a set is wanted");
        self.meaning.is_set[at].then_some(at).ok_or_else(wrong)
    }

    fn relation(&mut self, term: &Term) -> Result<usize> {
        let at = self.term(term)?;
        let wrong = || self.library.error(term.position, "this is a set, where a relation is wanted");
        (!self.meaning.is_set[at]).then_some(at).ok_or_else(wrong)
    }

    /// An operator on two sets, or on two relations.
    fn either(
        &mut self,
        position: Position,
        (left, right): (&Term, &Term),
        sets: fn(usize, usize) -> Step,
        relations: fn(usize, usize) -> Step,
    ) -> Result<usize> {
        let (left, right) = (self.term(left)?, self.term(right)?);
        match (self.meaning.is_set[left], self.meaning.is_set[right]) {
            (true, true) => Ok(self.add(sets(left, right))),
            (false, false) => Ok(self.add(relations(left, right))),
            _ => Err(self.library.error(position, "one side is a set, and the other a relation")),
        }
    }

    fn term(&mut self, term: &Term) -> Result<usize> {
        let position = term.position;
        let step = match &term.form {
            Form::Name(name) => return self.name(name, position),
            Form::Zero => Step::Empty,
            Form::Identity(a) => Step::Identity(self.set(a)?),
            Form::Or(a, b) => return self.either(position, (a, b), Step::OrSet, Step::Or),
            Form::Minus(a, b) => return self.either(position, (a, b), Step::MinusSet, Step::Minus),
            Form::And(a, b) => return self.either(position, (a, b), Step::AndSet, Step::And),
            Form::Then(a, b) => Step::Then(self.relation(a)?, self.relation(b)?),
            Form::Product(a, b) => Step::Product(self.set(a)?, self.set(b)?),
            Form::Not(a) => {
                let a = self.term(a)?;
                if self.meaning.is_set[a] { Step::NotSet(a) } else { Step::Not(a) }
            }
            Form::Inverse(a) => Step::Inverse(self.relation(a)?),
            Form::Plus(a) => Step::Plus(self.relation(a)?),
            Form::Star(a) => Step::Star(self.relation(a)?),
            Form::Maybe(a) => Step::Maybe(self.relation(a)?),
            Form::Domain(a) => Step::Domain(self.relation(a)?),
            Form::Range(a) => Step::Range(self.relation(a)?),
            Form::Nth(a, b, c) => Step::Nth(self.set(a)?, self.set(b)?, self.relation(c)?),
            Form::Unmet(a, attribute) => {
                if !self.library.kinds.iter().any(|kind| kind.attributes.contains(attribute)) {
                    return Err(self.library.error(position, format!("no kind of objects has `{attribute}`")));
                }
                Step::Unmet(self.set(a)?, attribute.clone())
            }
        };
        Ok(self.add(step))
    }
}
