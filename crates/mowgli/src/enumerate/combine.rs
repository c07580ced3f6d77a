//! One trace of each thread, in every combination that may be consistent.
//!
//! Threads whose reads depend on each other's writes, such as several that add to one counter, have very many
//! combinations, of which few are consistent. So the traces of a thread form a tree: those that begin with the same
//! events share a branch. The search walks down the trees of all threads together, and evaluates the model on the
//! events so far. A law that they break for ever, whatever follows, prunes everything below.

use std::collections::BTreeMap;
use std::ops::Range;

use smallvec::SmallVec;

use super::{CANDIDATES_MAX, Detail, Search};
use crate::execution::{Execution, View};
use crate::litmus::{Place, Test, Value};
use crate::model::Choice;
use crate::relation::Relation;
use crate::too_large::TooLarge;
use crate::trace::{Subevent, Trace};

/// So few combinations are cheaper to look at than to prune.
const FEW: usize = 8;

/// The use of a combination.
type Each<'a, 'e> = &'e mut dyn FnMut(&[&'a Trace]) -> Result<(), TooLarge>;

/// Every choice of one trace for each thread in which each value that is read may have been written, in order.
pub(crate) fn combine<'a>(test: &Test, all: &'a [Vec<Trace>], each: Each<'a, '_>) -> Result<(), TooLarge> {
    let accesses = Numbers::of(test, all);
    let trees: Vec<Tree<'_>> = all.iter().map(|traces| Tree::flat(traces, &accesses)).collect();
    in_order(&trees.iter().collect::<Vec<_>>(), &accesses.initial, &mut Vec::new(), each)
}

/// [`combine`], without the combinations that break a law already by the traces' beginnings. If there are many, they
/// come in another order.
pub(super) fn consistent<'a>(test: &Test, all: &'a [Vec<Trace>], each: Each<'a, '_>) -> Result<(), TooLarge> {
    pruned(test, all, FEW, each)
}

fn pruned<'a>(test: &Test, all: &'a [Vec<Trace>], few: usize, each: Each<'a, '_>) -> Result<(), TooLarge> {
    let accesses = Numbers::of(test, all);
    let trees: Vec<Tree<'_>> = all.iter().map(|traces| Tree::of(traces, 0, &accesses)).collect();
    let search = Search::new(test, Detail::Shown);
    let none = Accesses::default();
    Join { search, accesses, few, looked_at: 0 }.walk(&mut trees.iter().collect::<Vec<_>>(), &none, &none, each)
}

/// Some pairs of a place and a value, by their numbers.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
struct Accesses(SmallVec<[u64; 2]>);

impl Accesses {
    fn insert(&mut self, number: usize) {
        if self.0.len() <= number / 64 {
            self.0.resize(number / 64 + 1, 0);
        }
        self.0[number / 64] |= 1 << (number % 64);
    }

    fn has(&self, number: usize) -> bool {
        self.0.get(number / 64).is_some_and(|bits| bits >> (number % 64) & 1 == 1)
    }

    fn add(&mut self, others: &Accesses) {
        if self.0.len() < others.0.len() {
            self.0.resize(others.0.len(), 0);
        }
        self.0.iter_mut().zip(&others.0).for_each(|(bits, others)| *bits |= others);
    }

    fn without(&self, others: &Accesses) -> Accesses {
        let bits = self.0.iter().enumerate().map(|(at, bits)| bits & !others.0.get(at).copied().unwrap_or(0));
        Accesses(bits.collect())
    }

    fn meets(&self, others: &Accesses) -> bool {
        self.0.iter().zip(&others.0).any(|(bits, others)| bits & others != 0)
    }

    fn is_within(&self, others: &Accesses) -> bool {
        self.0.iter().enumerate().all(|(at, bits)| bits & !others.0.get(at).copied().unwrap_or(0) == 0)
    }
}

/// The numbers of all pairs of a place and a value.
struct Numbers<'a> {
    numbers: BTreeMap<(Place, &'a Value), usize>,
    /// The initial values.
    initial: Accesses,
}

impl<'a> Numbers<'a> {
    fn of(test: &'a Test, all: &'a [Vec<Trace>]) -> Numbers<'a> {
        let mut of = Numbers { numbers: BTreeMap::new(), initial: Accesses::default() };
        for place in test.places() {
            let starts = test.objects[place.0].starts.as_ref().expect("places have an initial value");
            let number = of.number(place, starts);
            of.initial.insert(number);
        }
        for trace in all.iter().flatten() {
            for (place, value) in trace.reads().chain(trace.writes()) {
                of.number(*place, value);
            }
        }
        of
    }

    fn number(&mut self, place: Place, value: &'a Value) -> usize {
        let next = self.numbers.len();
        *self.numbers.entry((place, value)).or_insert(next)
    }

    fn some<'t>(&self, accesses: impl Iterator<Item = &'t (Place, Value)>) -> Accesses {
        let mut some = Accesses::default();
        accesses.for_each(|(place, value)| some.insert(self.numbers[&(*place, value)]));
        some
    }
}

/// The traces of a thread that begin with the same events.
struct Tree<'a> {
    /// One of them.
    trace: &'a Trace,
    /// How many events they have in common; all, if there is one trace only.
    depth: usize,
    /// How many traces there are.
    count: usize,
    /// The reads of the common events, and those of them that are not common to the tree above.
    reads: Accesses,
    added: Accesses,
    /// The writes of all traces, and those behind the common events.
    writes: Accesses,
    later: Accesses,
    /// Those that differ in the next event; none if there is one trace only.
    branches: Vec<Tree<'a>>,
}

impl<'a> Tree<'a> {
    /// One trace, of which the tree above has `above` events.
    fn leaf(trace: &'a Trace, above: usize, accesses: &Numbers<'_>) -> Tree<'a> {
        Tree {
            trace,
            depth: trace.events.len(),
            count: 1,
            reads: accesses.some(trace.reads()),
            added: accesses.some(part(trace, above..trace.events.len()).filter_map(|it| it.reads.as_ref())),
            writes: accesses.some(trace.writes()),
            later: Accesses::default(),
            branches: Vec::new(),
        }
    }

    /// The traces that have this many events in common.
    fn of(traces: &'a [Trace], depth: usize, accesses: &Numbers<'_>) -> Tree<'a> {
        match traces {
            [trace] => Tree::leaf(trace, depth.saturating_sub(1), accesses),
            [first, ..] if first.events.len() < depth => Tree::flat(traces, accesses),
            // They were found depth first, so those that begin alike are neighbours.
            _ => {
                let groups = traces.chunk_by(|one, next| one.events.get(depth) == next.events.get(depth));
                Tree::join(traces, depth, groups.map(|group| Tree::of(group, depth + 1, accesses)).collect(), accesses)
            }
        }
    }

    /// The same traces without a common beginning.
    fn flat(traces: &'a [Trace], accesses: &Numbers<'_>) -> Tree<'a> {
        Tree::join(traces, 0, traces.iter().map(|trace| Tree::leaf(trace, 0, accesses)).collect(), accesses)
    }

    fn join(traces: &'a [Trace], depth: usize, branches: Vec<Tree<'a>>, accesses: &Numbers<'_>) -> Tree<'a> {
        static NONE: Trace = Trace { events: Vec::new(), registers: Vec::new() };
        let trace = traces.first().unwrap_or(&NONE);
        let (mut writes, mut later) = (Accesses::default(), Accesses::default());
        for branch in &branches {
            writes.add(&branch.writes);
            later.add(&branch.later);
            let next = part(branch.trace, depth..branch.depth);
            later.add(&accesses.some(next.filter_map(|it| it.writes.as_ref())));
        }
        let read = |events| accesses.some(part(trace, events).filter_map(|it| it.reads.as_ref()));
        let (reads, added) = (read(0..depth), read(depth.saturating_sub(1)..depth));
        Tree { trace, depth, count: traces.len(), reads, added, writes, later, branches }
    }

    fn leaves(&self, each: &mut dyn FnMut(&Tree<'a>) -> Result<(), TooLarge>) -> Result<(), TooLarge> {
        if !self.branches.is_empty() {
            self.branches.iter().try_for_each(|branch| branch.leaves(each))
        } else if self.count > 0 {
            each(self)
        } else {
            Ok(())
        }
    }
}

/// The subevents of some events.
fn part(trace: &Trace, events: Range<usize>) -> impl Iterator<Item = &Subevent> {
    trace.events[events].iter().flat_map(|event| &event.subevents)
}

/// Whether all that the common events read may have been written.
fn is_possible(trees: &[&Tree<'_>], initial: &Accesses) -> bool {
    let mut writes = initial.clone();
    trees.iter().for_each(|tree| writes.add(&tree.writes));
    trees.iter().all(|tree| tree.reads.is_within(&writes))
}

/// Every choice of one trace in each tree, in order.
fn in_order<'a>(
    trees: &[&Tree<'a>],
    initial: &Accesses,
    chosen: &mut Vec<&'a Trace>,
    each: Each<'a, '_>,
) -> Result<(), TooLarge> {
    if !is_possible(trees, initial) {
        return Ok(());
    }
    let Some(next) = trees.get(chosen.len()) else { return each(chosen) };
    next.leaves(&mut |leaf| {
        let mut trees: SmallVec<[&Tree<'a>; 8]> = trees.into();
        trees[chosen.len()] = leaf;
        chosen.push(leaf.trace);
        let ended = in_order(&trees, initial, chosen, each);
        chosen.pop();
        ended
    })
}

struct Join<'a> {
    search: Search<'a>,
    accesses: Numbers<'a>,
    /// So few combinations are not pruned.
    few: usize,
    /// How many beginnings were evaluated.
    looked_at: u64,
}

impl Join<'_> {
    /// Continues from the common events of the trees. `added` are the reads of the last step. Before it, no later write
    /// could satisfy the `closed` reads.
    fn walk<'a>(
        &mut self,
        trees: &mut [&Tree<'a>],
        added: &Accesses,
        closed: &Accesses,
        each: Each<'a, '_>,
    ) -> Result<(), TooLarge> {
        let count = trees.iter().fold(1, |count: usize, tree| count.saturating_mul(tree.count));
        if count <= self.few {
            return in_order(trees, &self.accesses.initial, &mut Vec::new(), each);
        }
        if !is_possible(trees, &self.accesses.initial) {
            return Ok(());
        }
        let (mut reads, mut later) = (Accesses::default(), Accesses::default());
        trees.iter().for_each(|tree| reads.add(&tree.reads));
        trees.iter().for_each(|tree| later.add(&tree.later));
        let closes = reads.without(&later);
        let is_news = closes != *closed || added.meets(&closes);
        if is_news && !self.may_be_consistent(trees, &later)? {
            return Ok(());
        }
        // All threads go on at the same pace.
        let open = (0..trees.len()).filter(|thread| !trees[*thread].branches.is_empty());
        let thread = open.min_by_key(|thread| trees[*thread].depth).expect("there are several traces");
        let tree = trees[thread];
        for branch in &tree.branches {
            trees[thread] = branch;
            self.walk(trees, &branch.added, &closes, each)?;
        }
        trees[thread] = tree;
        Ok(())
    }

    /// Whether no law is broken for ever by the events that the traces of each tree have in common.
    fn may_be_consistent(&mut self, trees: &[&Tree<'_>], later: &Accesses) -> Result<bool, TooLarge> {
        self.looked_at += 1;
        if self.looked_at > CANDIDATES_MAX {
            return Err(TooLarge::Candidates);
        }
        let beginnings: Vec<(&Trace, usize)> = trees.iter().map(|tree| (tree.trace, tree.depth)).collect();
        let execution = Execution::of_beginnings(self.search.test, &beginnings)?;
        // Whether a write that is still to come may satisfy a read.
        let is_open = |at: usize| {
            let (place, value) = execution.reads[at].expect("it reads");
            later.has(self.accesses.numbers[&(place, value)])
        };
        let meanings = &self.search.meanings;
        let views: Vec<View<'_>> = (0..meanings.len()).map(|library| View::new(&execution, library)).collect();
        let mut so = execution.ppo.clone();
        for (library, (meaning, view)) in meanings.iter().zip(&views).enumerate() {
            let mut worths = meaning.begin(view);
            let mut chosen = vec![Relation::empty(execution.count()); meaning.choices.len()];
            for (choice, (how, step)) in meaning.choices.iter().enumerate() {
                if !meaning.is_fixed(*step) {
                    continue;
                }
                let from = worths[*step].relation();
                match how {
                    Choice::Pick => {
                        let into = from.inverse();
                        let readers = (0..execution.count()).filter(|at| execution.reads[*at].is_some());
                        for to in readers.filter(|at| execution.homes[*at].library == library) {
                            let writers: SmallVec<[usize; 2]> = into.row(to).iter().take(2).collect();
                            match writers[..] {
                                _ if !meaning.finds_its_value(*step) || is_open(to) => {}
                                [] => return Ok(false),
                                [only] => chosen[choice].insert(only, to),
                                _ => {}
                            }
                        }
                    }
                    Choice::Orient => {
                        let pairs = from.or(&from.inverse());
                        let first = pairs.pairs().filter(|(a, b)| a < b && *a < execution.initial);
                        first.for_each(|(a, b)| chosen[choice].insert(a, b));
                    }
                }
            }
            meaning.go_on(&mut worths, &chosen, view);
            if meaning.is_broken_for_ever(&worths) {
                return Ok(false);
            }
            if meaning.keeps(meaning.so) {
                so = so.or(worths[meaning.so].relation());
            }
        }
        Ok(so.is_acyclic())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::enumerate::Outcomes;
    use crate::model::Models;
    use crate::random::{CLIENTS, Size, client, program};
    use crate::trace;

    /// The outcomes, and how many combinations were looked at for them.
    fn outcomes(test: &Test, all: &[Vec<Trace>], prunes: bool) -> (Outcomes, u64) {
        let (mut search, mut count) = (Search::new(test, Detail::Executions), 0);
        let mut look = |chosen: &[&Trace]| {
            count += 1;
            search.execution(chosen)
        };
        let joined = if prunes { pruned(test, all, 1, &mut look) } else { combine(test, all, &mut look) };
        joined.expect("not too many");
        (search.outcomes, count)
    }

    #[test]
    fn only_inconsistent_combinations_are_pruned() {
        let models = Models::builtin();
        let size = Size { nodes: 2, threads: 3, calls: 6 };
        let (mut all, mut left) = (0, 0);
        let programs = ["x86tso", "rdmawait", "rdmatso", "rdmarmw"].map(|model| {
            let text = move |seed| program(model, seed, size);
            Box::new(text) as Box<dyn Fn(u64) -> String>
        });
        let clients =
            CLIENTS.iter().map(|(kind, _)| Box::new(move |seed| client(kind, seed)) as Box<dyn Fn(u64) -> String>);
        for text in programs.into_iter().chain(clients) {
            for seed in 0..60 {
                let text = text(seed);
                let test = Test::parse("random", &text, &models).unwrap_or_else(|error| panic!("{error}\n{text}"));
                let traces = trace::all(&test).expect("not too many");
                let (plain, combinations) = outcomes(&test, &traces, false);
                let (pruned, looked_at) = outcomes(&test, &traces, true);
                assert_eq!(plain, pruned, "{text}");
                (all, left) = (all + combinations, left + looked_at);
            }
        }
        assert!(left < all, "{left} of {all}: nothing was pruned");
        println!("{left} of {all} were looked at");
    }
}
