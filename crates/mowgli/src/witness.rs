//! One execution of a litmus test that answers its question, for a person to look at: a witness if there is one, or
//! else the cycle that forbids it.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use crate::enumerate::{CANDIDATES_MAX, Candidate, Decided, Decision, Detail, MEMORY_ORDER, Search, combine};
use crate::execution::Execution;
use crate::litmus::{Condition, NodeNumber, Observable, Quantifier, Test, Value};
use crate::model::{Broken, Lengths, Paths, named};
use crate::relation::Relation;
use crate::stamp::Stamp;
use crate::too_large::TooLarge;
use crate::trace::{self, Trace};

pub use crate::model::explain::Edge;

/// The answer for a test.
///
/// ```
/// # use mowgli::{litmus::Test, model::Models, witness::{Answer, find}};
/// let allowed = "rdmawait t { x@1; z@2; } P0@1 { Put(d, z, x); Write(x, 1); } exists (z=1)";
/// let test = Test::parse("t", allowed, &Models::builtin())?;
/// assert!(matches!(find(&test)?, Answer::Witness(_))); // the put has read the later write
/// let forbidden = allowed.replace("Write", "Wait(d); Write");
/// let test = Test::parse("t", &forbidden, &Models::builtin())?;
/// assert!(matches!(find(&test)?, Answer::Forbidden(..)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub enum Answer {
    /// A consistent execution in which the condition holds; for `forall`, one in which it does not.
    Witness(Graph),
    /// None is allowed. This one is the closest, and has a cycle.
    Forbidden(Graph, Cycle),
    /// There is none, as nothing that can be read makes it so, before any law is asked.
    Impossible,
}

impl Answer {
    /// Why the condition cannot hold (for `forall`: why it always does), in a sentence; empty if there is a witness. A
    /// blank within the name of a subevent is one at which no line breaks.
    ///
    /// ```
    /// # use mowgli::{litmus::Test, model::Models, witness::find};
    /// let text = "rdmawait t { x@1; z@2; } P0@1 { Put(d, z, x); Wait(d); Write(x, 1); } ~exists (z = 1)";
    /// let test = Test::parse("t", text, &Models::builtin())?;
    /// let reason = find(&test)?.reason(test.quantifier).replace('\u{a0}', " ");
    /// assert!(reason.starts_with("It breaks Λ-consistency by the cycle P0: NLR₂ x=1 → NRW₂ z=1 → WT"), "{reason}");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reason(&self, quantifier: Quantifier) -> String {
        match self {
            Answer::Witness(_) => String::new(),
            Answer::Impossible if quantifier == Quantifier::Forall => {
                "Nothing that can be read makes it otherwise.".into()
            }
            Answer::Impossible => "Nothing that can be read makes it so.".into(),
            Answer::Forbidden(graph, cycle) => {
                let mut before = None;
                let mut name = |at: usize| {
                    let whose = match graph.thread(at) {
                        _ if before == Some(graph.thread(at)) => String::new(),
                        Some(thread) => format!("P{thread}: "),
                        None => "initial ".into(),
                    };
                    before = Some(graph.thread(at));
                    // Names are not to be broken at the end of a line.
                    format!("{whose}{}", graph.subevents[at]).replace(' ', "\u{a0}")
                };
                if cycle.edges.is_empty() {
                    return format!("It breaks {}, at {}.", cycle.law, name(cycle.at));
                }
                let from = cycle.edges.iter().map(|edge| edge.from).chain([cycle.at]).map(name);
                let labels = cycle.edges.iter().map(|edge| edge.label.replace("^-1", "⁻¹"));
                let (from, labels): (Vec<_>, Vec<_>) = (from.collect(), labels.collect());
                format!("It breaks {} by the cycle {} ({}).", cycle.law, from.join(" → "), labels.join("\u{a0}; "))
            }
        }
    }
}

/// An execution, and all that was chosen for it.
///
/// ```
/// # use mowgli::{litmus::Test, model::Models, witness::{Answer, find}};
/// # let text = "rdmawait t { x@1; z@2; } P0@1 { Put(d, z, x); Write(x, 1); } exists (z=1)";
/// # let test = Test::parse("t", text, &Models::builtin())?;
/// let Answer::Witness(graph) = find(&test)? else { panic!("it is allowed") };
/// let calls: Vec<&str> = graph.calls.iter().map(|call| call.text.as_str()).collect();
/// assert_eq!(calls, ["Put(d, z, x)", "Write(x, 1)"]);
/// assert_eq!((graph.seen[0].0.as_str(), graph.seen[0].1.as_number()), ("z", Some(1)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Graph {
    /// The calls of each thread, in program order.
    pub calls: Vec<Call>,
    /// All subevents: the initial writes, then those of the calls.
    pub subevents: Vec<Subevent>,
    /// Everything that the models have a name for; `so` is called `LIBRARY.so`.
    pub relations: BTreeMap<String, Relation>,
    /// The relations that define the execution, besides the behaviour of its threads.
    pub chosen: Vec<String>,
    /// The values that the test shows of its end.
    pub seen: Vec<(String, Value)>,
}

impl Graph {
    /// The thread of a subevent; initial writes have none.
    ///
    /// ```
    /// # use mowgli::{litmus::Test, model::Models, witness::{Answer, find}};
    /// let text = "rdmawait t { x@1; z@2; } P0@1 { Put(d, z, x); } exists (z=0)";
    /// # let test = Test::parse("t", text, &Models::builtin())?;
    /// let Answer::Witness(graph) = find(&test)? else { panic!("it is allowed") };
    /// let threads: Vec<_> = (0..graph.subevents.len()).map(|at| graph.thread(at)).collect();
    /// assert_eq!(threads, [None, None, Some(0), Some(0)]); // two initial writes, and both halves of the put
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn thread(&self, at: usize) -> Option<usize> {
        self.subevents[at].call.map(|call| self.calls[call].thread)
    }

    /// The calls of each thread in program order, a line for each. A value that a read has from another thread, or
    /// finds at the start, is marked with its origin.
    ///
    /// ```
    /// # use mowgli::{litmus::Test, model::Models, witness::{Answer, find}};
    /// let text = "rdmawait t { x@1; z@2; } P0@1 { Put(d, z, x); } P1@2 { let a = Read(z); } exists (1:a=0)";
    /// let test = Test::parse("t", text, &Models::builtin())?;
    /// let Answer::Witness(graph) = find(&test)? else { panic!("it is allowed") };
    /// assert_eq!(graph.told(), ["P0: Put(d, z, x)  NLR₂ x=0 (initial), NRW₂ z=0", "P1: let a = Read(z)  CR z=0 (initial)"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn told(&self) -> Vec<String> {
        let origin = |at: usize| {
            let from = self.relations.get("rf")?.pairs().find(|(_, to)| *to == at)?.0;
            match self.thread(from) {
                thread if thread == self.thread(at) => None,
                Some(thread) => Some(format!(" (P{thread})")),
                None => Some(" (initial)".to_owned()),
            }
        };
        let told = |call: &Call| {
            let of = |at: usize| format!("{}{}", self.subevents[at], origin(at).unwrap_or_default());
            let subevents: Vec<_> = call.subevents.clone().map(of).collect();
            format!("P{}: {}  {}", call.thread, call.text, subevents.join(", "))
        };
        self.calls.iter().map(told).collect()
    }
}

/// A call of a thread.
///
/// ```
/// # use mowgli::{litmus::Test, model::Models, witness::{Answer, find}};
/// let text = "rdmawait t { x@1; z@2; } P0@1 { Put(d, z, x); } exists (z=0)";
/// # let test = Test::parse("t", text, &Models::builtin())?;
/// let Answer::Witness(graph) = find(&test)? else { panic!("it is allowed") };
/// let put = &graph.calls[0];
/// assert_eq!((put.thread, put.text.as_str()), (0, "Put(d, z, x)"));
/// let subevents: Vec<_> = graph.subevents[put.subevents.clone()].iter().map(ToString::to_string).collect();
/// assert_eq!(subevents, ["NLR₂ x=0", "NRW₂ z=0"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Call {
    /// Its thread.
    pub thread: usize,
    /// As it was written, but for blanks.
    pub text: String,
    /// Its subevents.
    pub subevents: Range<usize>,
}

/// A subevent.
///
/// ```
/// # use mowgli::{stamp::Stamp, witness::Subevent};
/// let (stamp, place, one) = (Some(Stamp::Nrw), Some("z".into()), mowgli::litmus::Value::number(1));
/// let put = Subevent { call: None, stamp, node: Some(2), place, reads: None, writes: Some(one) };
/// assert_eq!(put.to_string(), "NRW₂ z=1");
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Subevent {
    /// Its call; initial writes have none.
    pub call: Option<usize>,
    /// Its kind; initial writes have none.
    pub stamp: Option<Stamp>,
    /// The node that its stamp names.
    pub node: Option<NodeNumber>,
    /// The place that it reads, writes or is at.
    pub place: Option<String>,
    /// The value that it reads.
    pub reads: Option<Value>,
    /// The value that it writes.
    pub writes: Option<Value>,
}

impl fmt::Display for Subevent {
    /// `NRW₂ z=1`, or `CAS x=0→1` of one that reads and writes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(stamp) = self.stamp {
            write!(f, "{stamp}")?;
        }
        for digit in self.node.into_iter().flat_map(|node| node.to_string().into_bytes()) {
            write!(f, "{}", char::from_u32(u32::from('₀') + u32::from(digit - b'0')).expect("there are ten of them"))?;
        }
        let gap = if self.stamp.is_some() { " " } else { "" };
        match (&self.place, &self.reads, &self.writes) {
            (Some(place), Some(read), Some(written)) => write!(f, "{gap}{place}={read}→{written}"),
            (Some(place), Some(value), None) | (Some(place), None, Some(value)) => write!(f, "{gap}{place}={value}"),
            (Some(place), None, None) => write!(f, "{gap}{place}"),
            (None, ..) => Ok(()),
        }
    }
}

/// Why an execution is not consistent.
///
/// ```
/// # use mowgli::{litmus::Test, model::Models, witness::{Answer, find}};
/// # let text = "rdmawait t { x@1; z@2; } P0@1 { Put(d, z, x); Wait(d); Write(x, 1); } ~exists (z = 1)";
/// # let test = Test::parse("t", text, &Models::builtin())?;
/// let Answer::Forbidden(_, cycle) = find(&test)? else { panic!("it is forbidden") };
/// assert_eq!((cycle.law.as_str(), cycle.edges.len()), ("Λ-consistency", 4));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cycle {
    /// The law that it breaks.
    pub law: String,
    /// Where it begins.
    pub at: usize,
    /// From each subevent to the next, and back to the first. None if the law is about single subevents, as that every
    /// message that is received was sent; that one is [`Cycle::at`].
    pub edges: Vec<Edge>,
}

/// How many candidates are looked at for a cycle, whole ones and parts, once there is one.
const CYCLES_MAX: u64 = 5_000;

/// Looks for a consistent execution in which the test's condition holds, or for `forall` for one in which it does not.
///
/// If none is allowed, every candidate in which the condition holds breaks a law. Most do so at once, in ways
/// unrelated to the test, as with two writes of one thread in the wrong order. So the search computes the shortest
/// cycle of each candidate, and returns the candidate with the longest of them: the closest one. It examines some
/// thousands, those first that keep program order where they have a choice; a closer one may exist beyond them.
///
/// # Errors
/// There are too many executions.
///
/// ```
/// # use mowgli::{litmus::Test, model::Models, witness::{Answer, find}};
/// let text = "rdmawait fig_3d { x@1; z@2; } P0@1 { Put(d, z, x); Wait(d); Write(x, 1); } ~exists (z = 1)";
/// let test = Test::parse("fig_3d.litmus", text, &Models::builtin())?;
/// let Answer::Forbidden(graph, cycle) = find(&test)? else { panic!("it is forbidden") };
/// let path = cycle.edges.iter().map(|edge| format!("{} -{}->", graph.subevents[edge.from], edge.label));
/// assert_eq!(path.collect::<Vec<_>>(), ["NLR₂ x=1 -iso->", "NRW₂ z=1 -pfp->", "WT -ppo->", "CW x=1 -rfe->"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn find(test: &Test) -> Result<Answer, TooLarge> {
    let traces = trace::all(test)?;
    let mut finder = Finder { search: Search::new(test, Detail::Shown), witness: None, closest: None, looked_at: 0 };
    combine(test, &traces, &mut |chosen| {
        if finder.witness.is_some() || finder.is_known(chosen) == Some(false) {
            return Ok(());
        }
        let execution = Execution::new(test, chosen)?;
        if let Some((candidate, mut decided)) = finder.search.begin(&execution) {
            let is_final = candidate.decisions.is_empty();
            if finder.search.evaluate(&candidate, &mut decided, 0..test.libraries.len(), is_final) {
                finder.witness(&candidate, decided, 0);
            }
        }
        if finder.search.candidates > CANDIDATES_MAX { Err(TooLarge::Candidates) } else { Ok(()) }
    })?;
    if let Some(graph) = finder.witness {
        return Ok(Answer::Witness(graph));
    }
    combine(test, &traces, &mut |chosen| {
        if finder.has_looked() || finder.is_known(chosen) == Some(false) {
            return Ok(());
        }
        let execution = Execution::new(test, chosen)?;
        if let Some((mut candidate, decided)) = finder.search.begin(&execution) {
            // What memory holds at the end is known first.
            candidate.decisions.sort_by_key(|decision| !finder.is_memory_order(decision));
            finder.cycle(&candidate, decided, 0);
        }
        Ok(())
    })?;
    match finder.closest {
        Some((_, graph, cycle)) => Ok(Answer::Forbidden(graph, cycle)),
        None if finder.looked_at > CANDIDATES_MAX => Err(TooLarge::Candidates),
        None => Ok(Answer::Impossible),
    }
}

struct Finder<'a> {
    search: Search<'a>,
    witness: Option<Graph>,
    /// The one with the longest shortest cycle, and the length of that.
    closest: Option<(u16, Graph, Cycle)>,
    /// How many were looked at for that.
    looked_at: u64,
}

/// Where a law is broken in the fewest steps.
enum Shortest {
    /// `ppo` and `so` have a cycle through this.
    Consistency(usize),
    /// A library's own.
    Own(usize, Broken),
}

/// Whether a condition holds, where it is not known of everything that is seen.
fn known(condition: &Condition, is: &dyn Fn(Observable, &Value) -> Option<bool>) -> Option<bool> {
    match condition {
        Condition::True => Some(true),
        Condition::Is(observable, value) => is(*observable, value),
        Condition::Not(inner) => known(inner, is).map(|holds| !holds),
        Condition::And(left, right) => match (known(left, is), known(right, is)) {
            (Some(false), _) | (_, Some(false)) => Some(false),
            (left, right) => left.and(right),
        },
        Condition::Or(left, right) => match (known(left, is), known(right, is)) {
            (Some(true), _) | (_, Some(true)) => Some(true),
            (left, right) => left.and(right),
        },
    }
}

impl Finder<'_> {
    fn is_wanted(&self, holds: bool) -> bool {
        holds != (self.search.test.quantifier == Quantifier::Forall)
    }

    /// Whether the condition is as wanted, as far as is known before the decisions.
    fn is_known(&self, traces: &[&Trace]) -> Option<bool> {
        known(&self.search.test.condition, &|observable, value| match observable {
            Observable::Register(thread, at) => Some(traces[thread].registers[at] == *value),
            Observable::Place(place) => {
                // Every write may be the last, but for the initial one if there are others.
                let writes = traces.iter().flat_map(|trace| trace.writes()).filter(|write| write.0 == place);
                let (is, other): (Vec<_>, Vec<_>) = writes.partition(|write| write.1 == *value);
                match (is.is_empty(), other.is_empty()) {
                    (true, false) => Some(false),
                    (false, true) => Some(true),
                    (false, false) => None,
                    (true, true) => Some(self.search.test.objects[place.0].starts.as_ref() == Some(value)),
                }
            }
        })
        .map(|holds| self.is_wanted(holds))
    }

    /// Whether the condition is as wanted, when everything is decided.
    fn holds(&self, candidate: &Candidate<'_>, decided: &Decided) -> bool {
        let seen = |observable| self.search.seen(candidate, decided, observable);
        self.is_wanted(self.search.test.condition.holds(&seen))
    }

    /// Looks for a consistent execution, from a decision on.
    fn witness(&mut self, candidate: &Candidate<'_>, decided: Decided, at: usize) {
        // The observed values are known then; the remaining decisions lead to the same ones.
        if at == candidate.counted && !self.holds(candidate, &decided) {
            return;
        }
        let Some(decision) = candidate.decisions.get(at) else {
            self.witness = Some(self.graph(candidate, &decided));
            return;
        };
        let (library, choice) = decision.of();
        let is_last = at + 1 == candidate.decisions.len();
        for (from, to) in decision.options() {
            self.search.candidates += 1;
            if self.witness.is_some() || self.search.candidates > CANDIDATES_MAX {
                return;
            }
            let mut next = decided.clone();
            next.chosen[library][choice].insert(from, to);
            let changed = if is_last { 0..self.search.meanings.len() } else { library..library + 1 };
            if self.search.evaluate(candidate, &mut next, changed, is_last) {
                self.witness(candidate, next, at + 1);
            }
        }
    }

    /// Whether the search for the closest one has taken long enough.
    fn has_looked(&self) -> bool {
        self.looked_at > CANDIDATES_MAX || self.looked_at > CYCLES_MAX && self.closest.is_some()
    }

    /// Searches for the closest candidate, from a decision on.
    fn cycle(&mut self, candidate: &Candidate<'_>, mut decided: Decided, at: usize) {
        self.looked_at += 1;
        if self.has_looked() {
            return;
        }
        let is_decided = |decision: &Decision| !self.is_memory_order(decision);
        if candidate.decisions.get(at).is_none_or(is_decided) && !self.holds(candidate, &decided) {
            return;
        }
        let is_final = at == candidate.decisions.len();
        if is_final || self.closest.is_some() {
            for (library, meaning) in self.search.meanings.iter().enumerate() {
                meaning.go_on(&mut decided.worths[library], &decided.chosen[library], &candidate.views[library]);
            }
            let paths = self.paths(&decided);
            let found = self.shortest(candidate, &paths, is_final);
            // More decisions can add a shorter cycle, but take none away.
            if let (Some((length, _)), Some((closest, ..))) = (&found, &self.closest)
                && length <= closest
            {
                return;
            }
            if let (true, Some((length, shortest))) = (is_final, found) {
                let cycle = self.explain(candidate, &paths, &shortest);
                self.closest = Some((length, self.graph(candidate, &decided), cycle));
            }
        }
        let Some(decision) = candidate.decisions.get(at) else { return };
        let (library, choice) = decision.of();
        for (from, to) in decision.options() {
            let mut next = decided.clone();
            next.chosen[library][choice].insert(from, to);
            // A memory order that is none has no last write.
            if !self.is_memory_order(decision) || next.chosen[library][choice].is_acyclic() {
                self.cycle(candidate, next, at + 1);
            }
        }
    }

    /// Whether it is about the order of writes by which memory has its last value.
    fn is_memory_order(&self, decision: &Decision) -> bool {
        let (library, choice) = decision.of();
        self.search.meanings[library].chosen[choice] == MEMORY_ORDER
    }

    fn paths<'d>(&'d self, decided: &'d Decided) -> Vec<Paths<'d>> {
        let libraries = self.search.test.libraries.iter().zip(&self.search.meanings).zip(&decided.worths);
        libraries.map(|((library, meaning), worths)| Paths::new(library, meaning, worths)).collect()
    }

    /// How many steps lead from one subevent to another in `ppo` and the `so` of all libraries.
    fn order(&self, candidate: &Candidate<'_>, paths: &[Paths<'_>], is_final: bool) -> Lengths {
        let known = paths.iter().zip(&self.search.meanings).filter(|(_, meaning)| is_final || meaning.so_grows());
        known.fold(Lengths::of(&candidate.execution.ppo), |order, (paths, _)| order.or(paths.so()))
    }

    fn shortest(&self, candidate: &Candidate<'_>, paths: &[Paths<'_>], is_final: bool) -> Option<(u16, Shortest)> {
        let consistency = self.order(candidate, paths, is_final).closure().shortest_back();
        let consistency = consistency.map(|(length, at)| (length, Shortest::Consistency(at)));
        let own = paths.iter().enumerate();
        let own = own.filter_map(|(library, paths)| {
            let broken = paths.broken(is_final)?;
            Some((broken.length, Shortest::Own(library, broken)))
        });
        consistency.into_iter().chain(own).min_by_key(|found| found.0)
    }

    fn explain(&self, candidate: &Candidate<'_>, paths: &[Paths<'_>], shortest: &Shortest) -> Cycle {
        let start = match shortest {
            Shortest::Own(library, broken) => {
                let (law, at, edges) = paths[*library].explain(broken);
                return Cycle {
                    law: format!("the law `{law}` of {}", self.search.test.libraries[*library].name),
                    at,
                    edges,
                };
            }
            Shortest::Consistency(start) => *start,
        };
        let ppo = &candidate.execution.ppo;
        let order = self.order(candidate, paths, true);
        let hops = order.hops(&order.closure(), start, start).into_iter();
        let edges = hops.flat_map(|(from, to)| {
            if ppo.has(from, to) {
                return vec![Edge { from, to, label: "ppo".into() }];
            }
            let of = paths.iter().find(|paths| paths.so().get(from, to) == order.get(from, to));
            of.expect("it is of some library").so_path(from, to)
        });
        Cycle { law: "Λ-consistency".into(), at: start, edges: edges.collect() }
    }

    /// The picture of an execution.
    fn graph(&self, candidate: &Candidate<'_>, decided: &Decided) -> Graph {
        let Search { test, meanings, .. } = &self.search;
        let execution = candidate.execution;
        let mut calls: Vec<Call> = Vec::new();
        let mut subevents = Vec::new();
        let mut numbers: BTreeMap<usize, usize> = BTreeMap::new();
        for at in 0..execution.count() {
            let home = execution.homes[at];
            let call = home.thread.map(|thread| {
                let number = *numbers.entry(home.event).or_insert_with(|| {
                    let text =
                        execution.events[home.event].map(|event| test.written(thread, event)).unwrap_or_default();
                    calls.push(Call { thread, text, subevents: at..at });
                    calls.len() - 1
                });
                calls[number].subevents.end = at + 1;
                number
            });
            let place = execution.place(at).map(|place| test.name_of(Observable::Place(place)));
            let subevent = execution.subevents[at];
            subevents.push(Subevent {
                call,
                stamp: subevent.map(|subevent| subevent.stamp),
                node: subevent.and_then(|subevent| subevent.node),
                place,
                reads: execution.reads[at].map(|read| read.1.clone()),
                writes: execution.writes[at].map(|write| write.1.clone()),
            });
        }
        // Program order leads from one library to another, too.
        let mut relations = BTreeMap::from([("ppo".to_owned(), execution.ppo.clone())]);
        let mut chosen = Vec::new();
        for ((library, meaning), worths) in test.libraries.iter().zip(meanings).zip(&decided.worths) {
            for (name, step) in &meaning.names {
                if let Some(relation) = worths[*step].as_relation() {
                    let all = relations.entry(named(&library.name, name));
                    let all = all.or_insert_with(|| Relation::empty(execution.count()));
                    *all = all.or(relation);
                }
            }
            // Where nothing is chosen, the library's synchronization stands for the choices.
            match &meaning.chosen[..] {
                [] => chosen.extend(Paths::new(library, meaning, worths).parts()),
                names => chosen.extend(names.iter().cloned()),
            }
        }
        chosen.sort();
        chosen.dedup();
        let shown = test.shown.iter();
        let seen = shown.map(|seen| (test.name_of(*seen), self.search.seen(candidate, decided, *seen))).collect();
        Graph { calls, subevents, relations, chosen, seen }
    }
}
