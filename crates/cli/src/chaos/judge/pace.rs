//! How soon after a death the survivors do at least half of what they did before it, and whether each load goes on at
//! all.
//!
//! The load is paced, so that it leaves the machine time: a thread that does less than before waits for something. What
//! is compared are the same threads: those of the nodes that live on.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Story;
use crate::chaos::log::{Answer, Call, Op};

const MS: u64 = 1_000_000;
/// What is normal is a median of so long spans, over the time before.
const SPAN_NS: u64 = 100 * MS;
const BEFORE_NS: u64 = 2000 * MS;
/// So long after a load begins, or something is done to a node, nothing is normal.
const UNREST_NS: u64 = 800 * MS;
/// They have recovered when they do so much of it, in percent, over so long.
const SHARE_PERCENT: u64 = 50;
const AFTER_NS: u64 = 2 * SPAN_NS;
const STEP_NS: u64 = 25 * MS;
/// That each load goes on is seen over so long, before something else is done to a node. It may lose more than all
/// together: who reads rings loses what the dead have sent, and the turn of a dead waiter takes half a second to pass
/// over.
const LATER_NS: u64 = 1000 * MS;
const LATER_PERCENT: u64 = 10;
/// They have to have recovered so soon.
const RECOVERY_MAX_MS: u64 = 1000;

/// What became of the pace after a death.
#[derive(Clone, Debug, Serialize)]
pub(in crate::chaos) struct Recovery {
    pub(in crate::chaos) node: u16,
    /// The survivors' operations per second before it.
    pub(in crate::chaos) before_per_s: u64,
    /// How long they took until they did half as many again. None if they had not when the generation ended.
    pub(in crate::chaos) took_ms: Option<u64>,
    /// The same of each load, as a matter of interest.
    pub(in crate::chaos) took_ms_by_load: BTreeMap<String, Option<u64>>,
    /// How much of what it did before each load does later, in percent.
    pub(in crate::chaos) later_percent: BTreeMap<String, u64>,
}

impl Recovery {
    /// What is wrong with it, if anything.
    pub(in crate::chaos) fn violation(&self) -> Option<String> {
        let (node, is_soon) = (self.node, self.took_ms.is_some_and(|took_ms| took_ms <= RECOVERY_MAX_MS));
        if !is_soon {
            return Some(format!("after the death of node {node} the survivors did not recover in time: {self:?}"));
        }
        let (stuck, _) = self.later_percent.iter().find(|it| *it.1 < LATER_PERCENT)?;
        Some(format!("after the death of node {node} the load `{stuck}` did not go on: {self:?}"))
    }
}

/// The recovery from each death.
pub(in crate::chaos) fn recoveries(story: &Story) -> Vec<Recovery> {
    story.deaths.iter().map(|death| recovery(story, death.node, death.at_ns)).collect()
}

fn recovery(story: &Story, node: u16, died_ns: u64) -> Recovery {
    let deaths = story.deaths.iter().map(|death| (death.at_ns, death.at_ns));
    let harm: Vec<(u64, u64)> =
        story.stops.iter().map(|(_, from_ns, to_ns)| (*from_ns, *to_ns)).chain(deaths).collect();
    // What goes before: until the first of the things that were done about the same time.
    let first = |until_ns: u64| {
        let near = harm.iter().filter(|(from, to)| *from < until_ns && to + UNREST_NS > until_ns);
        near.map(|it| it.0).min()
    };
    let mut until_ns = died_ns;
    while let Some(earlier) = first(until_ns) {
        until_ns = earlier;
    }
    let rest = harm.iter().map(|it| it.1).filter(|to| *to < until_ns).max().unwrap_or(0).max(story.load_ns.0);
    let from_ns = (rest + UNREST_NS).max(until_ns.saturating_sub(BEFORE_NS)).min(until_ns);
    // They go on when nobody is stopped any more.
    let over_ns = harm.iter().filter(|(from, to)| *from <= died_ns && *to >= died_ns).map(|it| it.1).max();
    let calm_ns = over_ns.unwrap_or(died_ns);

    let survivors = |node: u16| story.death_of(node).is_none_or(|at_ns| at_ns > calm_ns + RECOVERY_MAX_MS * MS);
    let mut done: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    let during_load = |call: &&Call| call.begin_ns >= story.load_ns.0 && survivors(call.node);
    for call in story.calls.iter().filter(during_load) {
        if let Some(at_ns) = progress_ns(call) {
            let load = call.thread.split('-').next().unwrap_or_default();
            done.entry(load).or_default().push(at_ns);
        }
    }
    let before = |done: &[u64]| median_of_spans(done, from_ns, until_ns);
    let took = |done: &[u64]| took_ms(done, before(done), calm_ns, story.load_ns.1);
    let next_ns = harm.iter().map(|it| it.0).filter(|from| *from > calm_ns).chain([story.load_ns.1]).min();
    let later = |done: &[u64]| {
        let end_ns = next_ns.unwrap_or(story.load_ns.1);
        let expected = (before(done) * LATER_NS / SPAN_NS).max(1);
        count(done, end_ns - LATER_NS, end_ns) * 100 / expected
    };
    let is_left = story.homes.iter().any(|home| survivors(*home));
    let all: Vec<u64> = done.values().flatten().copied().collect();
    Recovery {
        node,
        before_per_s: before(&all) * (1_000 * MS / SPAN_NS),
        took_ms: took(&all),
        took_ms_by_load: done.iter().map(|(load, done)| (load.to_string(), took(done))).collect(),
        // Where all objects have died there is nothing to go on with.
        later_percent: match is_left {
            true => done.iter().map(|(load, done)| (load.to_string(), later(done))).collect(),
            false => BTreeMap::new(),
        },
    }
}

/// When a call has got something done, if it has.
fn progress_ns(call: &Call) -> Option<u64> {
    match (&call.op, call.success(), call.failure()) {
        // Finding a ring full is none.
        (Op::Send { .. }, Some((_, Answer::Changed(false))), _) => None,
        (_, Some((at_ns, _)), _) => Some(at_ns),
        // It has gone to those that live.
        (Op::Announce { .. } | Op::Push { .. }, _, Some((at_ns, failure))) => failure.is_death().then_some(at_ns),
        _ => None,
    }
}

fn count(done: &[u64], from_ns: u64, to_ns: u64) -> u64 {
    done.iter().filter(|at_ns| (from_ns..to_ns).contains(at_ns)).count() as u64
}

fn median_of_spans(done: &[u64], from_ns: u64, until_ns: u64) -> u64 {
    let begins = (from_ns..).step_by(SPAN_NS as usize).take_while(|begin| begin + SPAN_NS <= until_ns);
    let mut counts: Vec<u64> = begins.map(|begin| count(done, begin, begin + SPAN_NS)).collect();
    counts.sort_unstable();
    counts.get(counts.len() / 2).copied().unwrap_or(0)
}

fn took_ms(done: &[u64], before: u64, calm_ns: u64, end_ns: u64) -> Option<u64> {
    let enough = (before * (AFTER_NS / SPAN_NS) * SHARE_PERCENT).div_ceil(100);
    let mut begins = (calm_ns..).step_by(STEP_NS as usize).take_while(|begin| begin + AFTER_NS <= end_ns);
    let recovered = begins.find(|begin| count(done, *begin, begin + AFTER_NS) >= enough);
    recovered.map(|begin| (begin - calm_ns) / MS)
}

#[cfg(test)]
mod tests {
    use super::super::Death;
    use super::super::tests::{call, story};
    use super::*;

    /// Three nodes that add once a millisecond each, until node 2 dies at 3 s; then the others do nothing for a while,
    /// and again from some moment on.
    fn pace_after(pause_ms: u64, until_ms: u64) -> Recovery {
        let add = |node, at_ms: u64| {
            call(node, at_ms * MS, Op::Add { counter: 0 }, Some((at_ms * MS + 5, Ok(Answer::Value(0)))))
        };
        let is_done =
            |node: &u16, at_ms: u64| at_ms < 3000 || *node < 2 && (3000 + pause_ms..until_ms).contains(&at_ms);
        let calls = (0..6000)
            .flat_map(|at_ms| (0..3).filter(move |node| is_done(node, at_ms)).map(move |node| add(node, at_ms)));
        let deaths = vec![Death { node: 2, at_ns: 3000 * MS, gone_ns: 3001 * MS }];
        let story = Story { load_ns: (0, 6000 * MS), deaths, ..story(calls.collect()) };
        recoveries(&story).remove(0)
    }

    #[test]
    fn a_pause_is_measured() {
        let recovery = pace_after(0, 6000);
        assert_eq!((recovery.before_per_s, recovery.took_ms), (2000, Some(0)));
        let recovery = pace_after(700, 6000);
        assert!((600..=700).contains(&recovery.took_ms.expect("they go on")) && recovery.violation().is_none());
        assert!(pace_after(1500, 6000).violation().is_some());
        assert_eq!(pace_after(2990, 6000).took_ms, None);
        let stuck = pace_after(0, 5000);
        assert_eq!(stuck.took_ms, Some(0));
        assert!(stuck.violation().is_some(), "it goes on at first only");
    }
}
