//! All consistent executions of a litmus test: Λ-consistency, LOCO paper, section 3.2.
//!
//! Given one trace of each thread, the search extends the relations that the models leave open pair by pair, in every
//! way, and prunes an extension as soon as it breaks an axiom.

use std::collections::BTreeMap;

use crate::execution::{Execution, View};
use crate::litmus::{Observable, Quantifier, Test, Value};
use crate::model::{Choice, Meaning, Worth};
use crate::relation::Relation;
use crate::too_large::TooLarge;
use crate::trace::{self, Trace};

mod combine;

pub(crate) use combine::combine;

/// The outcomes of a test.
///
/// ```
/// # use mowgli::{litmus::Test, model::Models};
/// # let text = "x86tso SB { x@1; y@1; }
/// #     P0@1 { Write(x, 1); let a = Read(y); }
/// #     P1@1 { Write(y, 1); let b = Read(x); }
/// #     exists (0:a=0 /\\ 1:b=0)";
/// # let test = Test::parse("SB.litmus", text, &Models::builtin())?;
/// # use mowgli::enumerate::{Detail, consistent};
/// let outcomes = consistent(&test, Detail::Executions)?;
/// assert!(outcomes.is_ok(test.quantifier)); // some execution has both reads early
/// assert_eq!(outcomes.positive + outcomes.negative, outcomes.states.values().sum());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcomes {
    /// The observed final values, in the order of [`Outcomes::observables`], each with the number of its executions.
    /// Executions that differ in orientations other than `mo` count as one.
    pub states: BTreeMap<Vec<Value>, u64>,
    /// The meaning of each observed value.
    pub observables: Vec<Observable>,
    /// The executions in which the condition holds.
    pub positive: u64,
    /// Those in which it does not.
    pub negative: u64,
}

impl Outcomes {
    /// Whether the test's question is answered by yes.
    ///
    /// ```
    /// # use mowgli::{enumerate::{Detail, consistent}, litmus::{Quantifier, Test}, model::Models};
    /// let text = "x86tso t { x@1; } P0@1 { Write(x, 1); let a = Read(x); } exists (0:a=0)";
    /// let outcomes = consistent(&Test::parse("t", text, &Models::builtin())?, Detail::Shown)?;
    /// assert!(!outcomes.is_ok(Quantifier::Exists)); // a thread sees its own write
    /// assert!(outcomes.is_ok(Quantifier::NotExists));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn is_ok(&self, quantifier: Quantifier) -> bool {
        quantifier.is_met(self.positive, self.negative)
    }
}

/// How much is to be found out.
///
/// ```
/// # use mowgli::{litmus::Test, model::Models};
/// # let text = "x86tso SB { x@1; y@1; }
/// #     P0@1 { Write(x, 1); let a = Read(y); }
/// #     P1@1 { Write(y, 1); let b = Read(x); }
/// #     exists (0:a=0 /\\ 1:b=0)";
/// # let test = Test::parse("SB.litmus", text, &Models::builtin())?;
/// # use mowgli::enumerate::{Detail, consistent};
/// assert_eq!(consistent(&test, Detail::Shown)?.observables.len(), 2); // the registers of the condition
/// assert_eq!(consistent(&test, Detail::States)?.observables.len(), 4); // the words, too
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Detail {
    /// Every execution, and the values that the test shows of it.
    Executions,
    /// Every outcome, of the values that the test shows, once.
    Shown,
    /// Every outcome, of all registers and all memory, once.
    States,
}

/// How many candidates are looked at: some minutes' worth.
pub(crate) const CANDIDATES_MAX: u64 = 10_000_000;
/// The name of the order of writes by which memory has its last value.
pub(crate) const MEMORY_ORDER: &str = "mo";

/// Enumerates the consistent executions of a test.
///
/// # Errors
/// There are too many.
///
/// ```
/// # use mowgli::{enumerate::{Detail, consistent}, litmus::Test, model::Models};
/// let text = "x86tso SB { x@1; y@1; }
///     P0@1 { Write(x, 1); let a = Read(y); }
///     P1@1 { Write(y, 1); let b = Read(x); }
///     exists (0:a=0 /\\ 1:b=0)";
/// let test = Test::parse("SB.litmus", text, &Models::builtin())?;
/// let outcomes = consistent(&test, Detail::Executions)?;
/// assert_eq!((outcomes.states.len(), outcomes.positive, outcomes.negative), (4, 1, 3));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn consistent(test: &Test, detail: Detail) -> Result<Outcomes, TooLarge> {
    let traces = trace::all(test)?;
    let mut search = Search::new(test, detail);
    combine::consistent(test, &traces, &mut |chosen| search.execution(chosen))?;
    Ok(search.outcomes)
}

/// Looks at the consistent executions of a test, as far as they differ in more than orientations other than `mo`.
pub(crate) fn each(
    test: &Test,
    look: impl FnMut(&Execution<'_>, &Decided) -> Result<(), TooLarge>,
) -> Result<(), TooLarge> {
    let traces = trace::all(test)?;
    let mut search = Search { look: Some(Box::new(look)), ..Search::new(test, Detail::Executions) };
    combine::consistent(test, &traces, &mut |chosen| search.execution(chosen))
}

/// Whether calls of some threads are consistent by themselves, under the earlier decisions, and whether the
/// consequences are allowed.
pub(crate) fn is_consistent(
    execution: &Execution<'_>,
    chosen: Vec<Vec<Relation>>,
    fit: &dyn Fn(&Decided) -> bool,
) -> bool {
    let search = Search::new(execution.test, Detail::Executions);
    let Some((candidate, mut decided)) = search.begin(execution) else { return false };
    decided.chosen = chosen;
    search.evaluate(&candidate, &mut decided, 0..search.meanings.len(), true) && fit(&decided)
}

/// The use of a consistent execution.
type Look<'a> = Box<dyn FnMut(&Execution<'_>, &Decided) -> Result<(), TooLarge> + 'a>;

pub(crate) struct Search<'a> {
    pub(crate) test: &'a Test,
    pub(crate) meanings: Vec<Meaning>,
    detail: Detail,
    outcomes: Outcomes,
    /// How many were looked at.
    pub(crate) candidates: u64,
    look: Option<Look<'a>>,
}

/// A relation of a library that must be decided.
#[derive(Clone, Debug)]
pub(crate) enum Decision {
    /// One of these, into this.
    Pick(usize, usize, Vec<usize>, usize),
    /// One way or the other.
    Orient(usize, usize, usize, usize),
}

impl Decision {
    pub(crate) fn of(&self) -> (usize, usize) {
        match self {
            Decision::Pick(library, choice, ..) | Decision::Orient(library, choice, ..) => (*library, *choice),
        }
    }

    /// The pairs to choose from.
    pub(crate) fn options(&self) -> Vec<(usize, usize)> {
        match self {
            Decision::Pick(_, _, from, to) => from.iter().map(|from| (*from, *to)).collect(),
            Decision::Orient(_, _, a, b) => vec![(*a, *b), (*b, *a)],
        }
    }
}

/// An execution that is being decided.
pub(crate) struct Candidate<'a> {
    pub(crate) execution: &'a Execution<'a>,
    pub(crate) views: Vec<View<'a>>,
    pub(crate) decisions: Vec<Decision>,
    /// Those before it affect the observed values; of the others, one choice is enough.
    pub(crate) counted: usize,
}

/// The decisions so far, for each library.
#[derive(Clone)]
pub(crate) struct Decided {
    pub(crate) chosen: Vec<Vec<Relation>>,
    pub(crate) worths: Vec<Vec<Worth>>,
    /// The `so` of all libraries, once everything is decided.
    pub(crate) so: Relation,
}

impl<'a> Search<'a> {
    pub(crate) fn new(test: &'a Test, detail: Detail) -> Search<'a> {
        let meaning = |library| Meaning::of(library).expect("it was checked when it was read");
        let observables = match detail {
            Detail::Executions | Detail::Shown => test.shown.clone(),
            Detail::States => test.observables(),
        };
        let outcomes = Outcomes { states: BTreeMap::new(), observables, positive: 0, negative: 0 };
        let meanings = test.libraries.iter().map(|library| meaning(library)).collect();
        Search { test, meanings, detail, outcomes, candidates: 0, look: None }
    }

    fn execution(&mut self, traces: &[&Trace]) -> Result<(), TooLarge> {
        let execution = Execution::new(self.test, traces)?;
        let Some((candidate, mut decided)) = self.begin(&execution) else { return Ok(()) };
        let every = 0..self.meanings.len();
        self.candidates += 1;
        if self.evaluate(&candidate, &mut decided, every, candidate.decisions.is_empty()) {
            self.decide(&candidate, decided, 0)?;
        }
        if self.candidates > CANDIDATES_MAX { Err(TooLarge::Candidates) } else { Ok(()) }
    }

    /// An execution in which only the forced decisions are made. None if some decision has no choice at all.
    pub(crate) fn begin<'e>(&self, execution: &'e Execution<'e>) -> Option<(Candidate<'e>, Decided)> {
        let views: Vec<View<'_>> = (0..self.meanings.len()).map(|library| View::new(execution, library)).collect();
        let count = execution.count();
        let mut decided = Decided {
            chosen: self.meanings.iter().map(|meaning| vec![Relation::empty(count); meaning.choices.len()]).collect(),
            worths: self.meanings.iter().zip(&views).map(|(meaning, view)| meaning.begin(view)).collect(),
            so: Relation::empty(count),
        };
        let decisions = self.decisions(execution, &mut decided)?;
        let counts = |decision: &Decision| {
            let (library, choice) = decision.of();
            matches!(decision, Decision::Pick(..)) || self.meanings[library].chosen[choice] == MEMORY_ORDER
        };
        let (first, rest): (Vec<Decision>, Vec<Decision>) = decisions.into_iter().partition(counts);
        let counted = first.len();
        Some((Candidate { execution, views, decisions: first.into_iter().chain(rest).collect(), counted }, decided))
    }

    /// The open decisions; forced ones are made. None if some decision has no choice at all.
    fn decisions(&self, execution: &Execution<'_>, decided: &mut Decided) -> Option<Vec<Decision>> {
        let mut all = Vec::new();
        for (library, meaning) in self.meanings.iter().enumerate() {
            for (choice, (how, step)) in meaning.choices.iter().enumerate() {
                let from = decided.worths[library][*step].relation().clone();
                let chosen = &mut decided.chosen[library][choice];
                match how {
                    Choice::Pick => {
                        let into = from.inverse();
                        let readers = execution.reads.iter().enumerate().filter(|(_, read)| read.is_some());
                        for (to, _) in readers.filter(|(to, _)| execution.homes[*to].library == library) {
                            let writers: Vec<usize> = into.row(to).iter().collect();
                            match writers[..] {
                                [] => return None,
                                [only] => chosen.insert(only, to),
                                _ => all.push(Decision::Pick(library, choice, writers, to)),
                            }
                        }
                    }
                    Choice::Orient => {
                        for (a, b) in from.or(&from.inverse()).pairs().filter(|(a, b)| a < b) {
                            // Nothing is before the initial writes, which have the lowest numbers.
                            if a < execution.initial {
                                chosen.insert(a, b);
                            } else {
                                all.push(Decision::Orient(library, choice, a, b));
                            }
                        }
                    }
                }
            }
        }
        all.sort_by_key(|decision| match decision {
            Decision::Pick(_, _, from, _) => (0, from.len()),
            Decision::Orient(..) => (1, 0),
        });
        Some(all)
    }

    /// Whether the laws hold of the decisions; of partial decisions, the laws that further ones cannot repair.
    pub(crate) fn evaluate(
        &self,
        candidate: &Candidate<'_>,
        decided: &mut Decided,
        changed: impl IntoIterator<Item = usize>,
        is_final: bool,
    ) -> bool {
        for library in changed {
            let Decided { chosen, worths, .. } = decided;
            self.meanings[library].go_on(&mut worths[library], &chosen[library], &candidate.views[library]);
            if self.meanings[library].broken(&worths[library], is_final).is_some() {
                return false;
            }
        }
        let mut so = Relation::empty(candidate.execution.count());
        for (meaning, worths) in self.meanings.iter().zip(&decided.worths) {
            if is_final || meaning.so_grows() {
                so = so.or(worths[meaning.so].relation());
            }
        }
        let is_acyclic = so.or(&candidate.execution.ppo).is_acyclic();
        decided.so = so;
        is_acyclic
    }

    /// Decides everything from a decision on; whether there was a way.
    fn decide(&mut self, candidate: &Candidate<'_>, decided: Decided, at: usize) -> Result<bool, TooLarge> {
        if at == candidate.counted && !self.is_wanted(candidate, &decided) {
            return Ok(false);
        }
        let Some(decision) = candidate.decisions.get(at) else {
            self.take(candidate, &decided)?;
            return Ok(true);
        };
        let (library, choice) = decision.of();
        let is_last = at + 1 == candidate.decisions.len();
        let mut has_way = false;
        for (from, to) in decision.options() {
            self.candidates += 1;
            if self.candidates > CANDIDATES_MAX {
                return Err(TooLarge::Candidates);
            }
            let mut next = decided.clone();
            next.chosen[library][choice].insert(from, to);
            let changed = if is_last { 0..self.meanings.len() } else { library..library + 1 };
            if self.evaluate(candidate, &mut next, changed, is_last) {
                has_way |= self.decide(candidate, next, at + 1)?;
                if has_way && at >= candidate.counted {
                    return Ok(true);
                }
            }
        }
        Ok(has_way)
    }

    pub(crate) fn seen(&self, candidate: &Candidate<'_>, decided: &Decided, observable: Observable) -> Value {
        let execution = candidate.execution;
        match observable {
            Observable::Register(thread, register) => execution.traces[thread].registers[register].clone(),
            Observable::Place(place) => {
                let library = self.test.objects[place.0].library;
                let choice = self.meanings[library].chosen.iter().position(|name| name == MEMORY_ORDER);
                let order = choice.map(|choice| &decided.chosen[library][choice]);
                let writes = (0..execution.count()).filter_map(|at| execution.writes[at].map(|write| (at, write)));
                let here = writes.filter(|(_, write)| write.0 == place);
                let last = here.max_by_key(|(at, _)| {
                    // The last one has the most others before it.
                    order.map_or(0, |order| (0..execution.count()).filter(|other| order.has(*other, *at)).count())
                });
                last.map_or(Value::None, |(_, write)| write.1.clone())
            }
        }
    }

    fn state(&self, candidate: &Candidate<'_>, decided: &Decided) -> Vec<Value> {
        self.outcomes.observables.iter().map(|observable| self.seen(candidate, decided, *observable)).collect()
    }

    /// Whether its observed values are still unknown.
    fn is_wanted(&self, candidate: &Candidate<'_>, decided: &Decided) -> bool {
        self.detail == Detail::Executions || !self.outcomes.states.contains_key(&self.state(candidate, decided))
    }

    fn take(&mut self, candidate: &Candidate<'_>, decided: &Decided) -> Result<(), TooLarge> {
        if let Some(look) = &mut self.look {
            return look(candidate.execution, decided);
        }
        let state = self.state(candidate, decided);
        if self.test.condition.holds(&|observable| self.seen(candidate, decided, observable)) {
            self.outcomes.positive += 1;
        } else {
            self.outcomes.negative += 1;
        }
        *self.outcomes.states.entry(state).or_default() += 1;
        Ok(())
    }
}
