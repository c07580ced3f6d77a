//! Whether a library may be used beside others: LOCO paper, Definition 3.5.
//!
//! *Monotone*: an execution that is consistent with a happens-before order is consistent with a weaker one.
//! *Decomposable*: a consistent execution is so for the calls on some of the objects alone, so that programs that
//! share no object do not affect each other.
//!
//! In the paper, a part has the `so` of the whole, cut down to it. That is too much for RDMA^WAIT itself: a part of
//! its `so` is from `ib`, which is closed under composition, and leads through calls in the other part. A part counts
//! as consistent here if its own `so` is within that of the whole: the consequences for outcomes are the same, as
//! fewer orders forbid nothing.

use std::collections::BTreeSet;

use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

use crate::enumerate::{Decided, each, is_consistent};
use crate::execution::Execution;
use crate::litmus::{Argument, Test};
use crate::relation::Relation;
use crate::too_large::TooLarge;
use crate::trace::Trace;

/// The findings about the consistent executions of a test.
///
/// ```
/// # use mowgli::{compose::decomposable, litmus::Test, model::Models};
/// let text = "x86tso t { x@1; y@1; } P0@1 { Write(x, 1); Write(y, 1); } exists (true)";
/// let looked = decomposable(&Test::parse("t", text, &Models::builtin())?, 1)?;
/// assert_eq!((looked.executions, looked.broken), (1, None));
/// assert!(looked.cases > 1); // the calls on `x` alone, those on `y` alone, all, and none
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Looked {
    /// How many there are.
    pub executions: u64,
    /// How many parts of them, or weaker orders, were looked at.
    pub cases: u64,
    /// The calls of the first of these that is not consistent.
    pub broken: Option<Vec<String>>,
}

/// Parts of more objects than this are not all looked at, but so many by chance.
const UNITS_MAX: usize = 8;

/// Looks whether the parts of each consistent execution are consistent: any objects that no call connects with the
/// others, with any of the calls that have no object.
///
/// # Errors
/// There are too many executions.
///
/// ```
/// # use mowgli::{compose::decomposable, litmus::Test, model::Models};
/// // A poll takes the oldest operation, also one that has nothing to do with `x` and `z`.
/// let text = "rdmatso t { x@1; y@1; z@2; w@2; } P0@1 { Put(w, y); Put(z, x); Poll(2); Write(x, 1); } exists (true)";
/// let test = Test::parse("t", text, &Models::builtin())?;
/// assert_eq!(decomposable(&test, 1)?.broken.unwrap(), ["P0: Put(z, x)", "P0: Poll(2)", "P0: Write(x, 1)"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn decomposable(test: &Test, seed: u64) -> Result<Looked, TooLarge> {
    let mut looked = Looked::default();
    let mut rng = SmallRng::seed_from_u64(seed);
    each(test, |execution, decided| {
        looked.executions += 1;
        if looked.broken.is_some() {
            return Ok(());
        }
        let units = units(execution);
        // There are no more events than subevents, so there is a bit for each.
        let all = 0..=u128::MAX >> (128 - units.len().max(1));
        let mut picks: Vec<u128> = if units.len() <= UNITS_MAX {
            all.collect()
        } else {
            (0..1 << UNITS_MAX).map(|_| rng.random_range(all.clone())).collect()
        };
        // The largest first, since they are the most informative if they are not consistent.
        picks.sort_by_key(|pick| std::cmp::Reverse(pick.count_ones()));
        for pick in picks {
            let kept: BTreeSet<usize> = (0..units.len())
                .filter(|unit| pick >> unit & 1 == 1)
                .flat_map(|unit| units[unit].iter().copied())
                .collect();
            looked.cases += 1;
            let traces = cut(execution, &kept);
            let part = Execution::new(test, &traces.iter().collect::<Vec<_>>())?;
            // Where the subevents of the part are in the whole.
            let of_whole: Vec<usize> = (0..execution.count())
                .filter(|at| *at < execution.initial || kept.contains(&execution.homes[*at].event))
                .collect();
            let cut_down = |whole: &Relation| Relation::of(part.count(), |a, b| whole.has(of_whole[a], of_whole[b]));
            let so = cut_down(&decided.so);
            let chosen = decided.chosen.iter().map(|all| all.iter().map(cut_down).collect()).collect();
            let fits = |decided: &Decided| decided.so.minus(&so).is_empty();
            if !is_consistent(&part, chosen, &fits) {
                looked.broken = Some(calls(test, &traces));
                return Ok(());
            }
        }
        Ok(())
    })?;
    Ok(looked)
}

/// Looks whether each consistent execution stays so when its happens-before order is weakened, from one that orders
/// everything: as in Definition 3.6, that order has no cycle, is transitive, and contains `ppo` and `so`. No model can
/// name that order, so this holds of all that can be written; a finding is a mistake in the evaluation.
///
/// # Errors
/// There are too many executions.
///
/// ```
/// # use mowgli::{compose::monotone, litmus::Test, model::Models};
/// let text = "x86tso t { x@1; } P0@1 { Write(x, 1); let a = Read(x); } exists (true)";
/// let test = Test::parse("t", text, &Models::builtin())?;
/// assert!(monotone(&test, 1)?.broken.is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn monotone(test: &Test, seed: u64) -> Result<Looked, TooLarge> {
    let mut looked = Looked::default();
    let mut rng = SmallRng::seed_from_u64(seed);
    each(test, |execution, decided| {
        looked.executions += 1;
        let least = execution.ppo.or(&decided.so).closure();
        let is_order = |hb: &Relation| hb.is_irreflexive() && hb.closure() == *hb && least.minus(hb).is_empty();
        let mut hb = linear(&least, &mut rng);
        loop {
            looked.cases += 1;
            let consistent =
                is_order(&hb) && is_consistent(execution, decided.chosen.clone(), &|own| own.so.minus(&hb).is_empty());
            if !consistent && looked.broken.is_none() {
                let traces: Vec<Trace> = execution.traces.iter().map(|trace| (*trace).clone()).collect();
                looked.broken = Some(calls(test, &traces));
            }
            if hb == least {
                return Ok(());
            }
            // Half of the unneeded pairs stay.
            let rest = hb.minus(&least);
            let mut weaker = least.clone();
            rest.pairs().filter(|_| rng.random_range(0..2) == 0).for_each(|(from, to)| weaker.insert(from, to));
            let weaker = weaker.closure();
            hb = if weaker == hb { least.clone() } else { weaker };
        }
    })?;
    Ok(looked)
}

/// A total order that contains another, by chance.
fn linear(order: &Relation, rng: &mut SmallRng) -> Relation {
    let mut left: Vec<usize> = (0..order.count()).collect();
    left.shuffle(rng);
    let mut line = Vec::new();
    while !left.is_empty() {
        let first = left.iter().position(|at| left.iter().all(|other| !order.has(*other, *at)));
        line.push(left.remove(first.expect("an order has a first")));
    }
    let mut linear = Relation::empty(order.count());
    for (at, from) in line.iter().enumerate() {
        line[at + 1..].iter().for_each(|to| linear.insert(*from, *to));
    }
    linear
}

/// The events that belong together, since they work on the same objects; each that has no object is by itself.
fn units(execution: &Execution<'_>) -> Vec<Vec<usize>> {
    let mut units: Vec<(BTreeSet<usize>, Vec<usize>)> = Vec::new();
    let events = execution.traces.iter().flat_map(|trace| &trace.events);
    for (number, event) in (execution.initial..).zip(events) {
        let objects: BTreeSet<usize> = event.call.arguments.iter().filter_map(object).collect();
        let (same, others): (Vec<_>, Vec<_>) = units.into_iter().partition(|unit| !unit.0.is_disjoint(&objects));
        units = others;
        let mut unit = (objects, vec![number]);
        for (objects, events) in same {
            unit.0.extend(objects);
            unit.1.extend(events);
        }
        units.push(unit);
    }
    units.into_iter().map(|unit| unit.1).collect()
}

fn object(argument: &Argument) -> Option<usize> {
    match argument {
        Argument::Object(object) => Some(*object),
        _ => None,
    }
}

/// The traces, with these events only.
fn cut(execution: &Execution<'_>, kept: &BTreeSet<usize>) -> Vec<Trace> {
    let mut numbers = execution.initial..;
    let traces = execution.traces.iter().map(|trace| {
        let events = trace.events.iter().zip(&mut numbers).filter(|(_, number)| kept.contains(number));
        Trace { events: events.map(|(event, _)| event.clone()).collect(), registers: trace.registers.clone() }
    });
    traces.collect()
}

fn calls(test: &Test, traces: &[Trace]) -> Vec<String> {
    let threads = traces.iter().enumerate();
    threads
        .flat_map(|(thread, trace)| {
            trace.events.iter().map(move |event| format!("P{thread}: {}", test.written(thread, event)))
        })
        .collect()
}
