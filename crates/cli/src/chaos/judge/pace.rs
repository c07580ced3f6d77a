//! Whether the survivors of a death do at least half of what they did before it, from a second after it on, and each
//! load its part of that.
//!
//! What is judged is the second that begins a second after the death, against the second before it: all that the
//! survivors' threads got done in the one and in the other. Where no system says who is dead, it begins a second after the
//! nodes have found out. Where a stop overlaps the death, before is before the stop, and the clock starts when
//! nobody is stopped any more. Who waits for somebody who is stopped does so by right; that is told in the report. The plan
//! does nothing else to a node in this time, but lets others come: that is no excuse.
//!
//! The load is paced, so that it leaves the machine time: a thread that does less than before waits for something. What
//! is compared are the same threads: those of the nodes that live on. Newcomers and what they do with others does not
//! count.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::{Death, Story};
use crate::chaos::load::GUESTS;
use crate::chaos::log::{Answer, Call, Op};

const MS: u64 = 1_000_000;
/// From the death to what is judged, how long that is, and the time before it with which it is compared.
const SECOND_NS: u64 = 1000 * MS;
/// The first two: so long nothing else is done to the survivors when they have found out about a death.
pub(in crate::chaos) const RECOVERY: Duration = Duration::from_nanos(2 * SECOND_NS);
/// All together do so much again, in percent.
const TOTAL_PERCENT: u64 = 50;
/// Each load does so much. Less than all together: of what a load did, the part that needed the dead is gone with them
/// (a reader of rings has no messages from the dead writer, and the objects of one place in four or five do not
/// answer), and a load is a few threads, which a busy machine of two cores may hold up for a part of a second. A load
/// that is stuck, or whose every operation waits for a timeout, does far less: some operations in a second.
const LOAD_PERCENT: u64 = 25;
/// Recovery is also measured, in shorter spans, though not judged: they are noise on a busy machine.
const SPAN_NS: u64 = 200 * MS;
const STEP_NS: u64 = 25 * MS;
/// Things that are done so close to each other are one to the survivors.
const TOGETHER_NS: u64 = 100 * MS;

/// What became of the pace after a death.
#[derive(Clone, Debug, Serialize)]
pub(in crate::chaos) struct Recovery {
    pub(in crate::chaos) node: u16,
    /// The clock started when another that was stopped when the node died went on: so long after the death.
    pub(in crate::chaos) stopped_ms: Option<u64>,
    /// So long after the death all survivors had said that the dead is shut out, where they find out themselves; else 0.
    pub(in crate::chaos) told_ms: u64,
    /// The survivors' operations in the second before it.
    pub(in crate::chaos) before_per_s: u64,
    /// How much of that they did in the second that is judged, in percent.
    pub(in crate::chaos) percent: u64,
    /// The same of each load.
    pub(in crate::chaos) percent_by_load: BTreeMap<String, u64>,
    /// After so long they did at least half as many in every fifth of a second, until the end of what is judged. None
    /// if they did not at its end.
    pub(in crate::chaos) took_ms: Option<u64>,
}

impl Recovery {
    /// What is wrong with it, if anything.
    pub(in crate::chaos) fn violation(&self) -> Option<String> {
        let node = self.node;
        if self.percent < TOTAL_PERCENT {
            return Some(format!("a second after the death of node {node} the survivors had not recovered: {self:?}"));
        }
        let (stuck, _) = self.percent_by_load.iter().find(|it| *it.1 < LOAD_PERCENT)?;
        Some(format!("a second after the death of node {node} the load `{stuck}` did not go on: {self:?}"))
    }
}

/// The recovery from each death.
pub(in crate::chaos) fn recoveries(story: &Story) -> Vec<Recovery> {
    story.deaths.iter().map(|death| recovery(story, death)).collect()
}

fn recovery(story: &Story, death: &Death) -> Recovery {
    let (node, died_ns) = (death.node, death.at_ns);
    let stops = story.stops.iter().map(|(_, from_ns, to_ns)| (*from_ns, *to_ns));
    let deaths = story.deaths.iter().map(|death| (death.at_ns, death.at_ns));
    let harm: Vec<(u64, u64)> = stops.chain(deaths).collect();
    // What goes before: until the first of the things that were done together with it.
    let mut until_ns = died_ns;
    let first = |until_ns: u64| {
        let together = harm.iter().filter(|(from, to)| *from < until_ns && to + TOGETHER_NS > until_ns);
        together.map(|it| it.0).min()
    };
    while let Some(earlier) = first(until_ns) {
        until_ns = earlier;
    }
    let from_ns = until_ns.saturating_sub(SECOND_NS).max(story.load_ns.0);
    // The clock starts when none of the others is stopped.
    let stopped_then = story.stops.iter().filter(|stop| stop.0 != node && (stop.1..stop.2).contains(&died_ns));
    let went_on_ns = stopped_then.map(|stop| stop.2).max();
    let calm_ns = went_on_ns.unwrap_or(died_ns);
    let found_out_ns = (calm_ns + story.detection_ns).max(story.found_out_ns(death));
    let end_ns = found_out_ns + RECOVERY.as_nanos() as u64;

    let survives = |node: u16| story.members.contains(&node) && story.death_of(node).is_none_or(|at_ns| at_ns > end_ns);
    let mut done: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for call in story.calls.iter().filter(|call| survives(call.node)) {
        let load = call.thread.split('-').next().unwrap_or_default();
        if ![GUESTS, "open"].contains(&load)
            && let Some(at_ns) = progress_ns(call).filter(|at_ns| *at_ns >= from_ns)
        {
            done.entry(load).or_default().push(at_ns);
        }
    }
    let percent = |done: &[u64]| {
        // The time before may be shorter, if the plan is.
        let before = count(done, from_ns, until_ns) * SECOND_NS / (until_ns - from_ns).max(1);
        count(done, end_ns - SECOND_NS, end_ns) * 100 / before.max(1)
    };
    let is_left = story.homes.iter().any(|home| survives(*home));
    let all: Vec<u64> = done.values().flatten().copied().collect();
    let before_per_s = count(&all, from_ns, until_ns) * SECOND_NS / (until_ns - from_ns).max(1);
    Recovery {
        node,
        stopped_ms: went_on_ns.map(|at_ns| (at_ns - died_ns) / MS),
        told_ms: (death.told_ns - died_ns) / MS,
        before_per_s,
        percent: percent(&all),
        // Where all objects have died there is nothing to go on with.
        percent_by_load: match is_left {
            true => done.iter().map(|(load, done)| (load.to_string(), percent(done))).collect(),
            false => BTreeMap::new(),
        },
        took_ms: took_ms(&all, before_per_s, calm_ns, end_ns),
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

/// From when on, after `calm_ns`, half as many are done in every span.
fn took_ms(done: &[u64], before_per_s: u64, calm_ns: u64, end_ns: u64) -> Option<u64> {
    let enough = (before_per_s * SPAN_NS * TOTAL_PERCENT).div_ceil(SECOND_NS * 100);
    let begins = || (calm_ns..=end_ns - SPAN_NS).step_by(STEP_NS as usize);
    let is_slow = |begin: &u64| count(done, *begin, begin + SPAN_NS) < enough;
    let recovered = begins().filter(is_slow).last().map_or(calm_ns, |slow| slow + STEP_NS);
    (recovered <= end_ns - SPAN_NS).then(|| (recovered - calm_ns) / MS)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{call, story};
    use super::*;

    /// Three nodes that add once a millisecond each, until node 2 dies at 3 s; then the others do nothing for a while,
    /// and again from some moment on.
    fn after(stops: Vec<(u16, u64, u64)>, is_idle: impl Fn(u64) -> bool) -> Recovery {
        after_told(3000, stops, is_idle)
    }

    /// The same where the survivors are told at some time.
    fn after_told(told_ms: u64, stops: Vec<(u16, u64, u64)>, is_idle: impl Fn(u64) -> bool) -> Recovery {
        let add = |node, at_ms: u64| {
            call(node, at_ms * MS, Op::Add { counter: 0 }, Some((at_ms * MS + 5, Ok(Answer::Value(0)))))
        };
        let is_done = |node: &u16, at_ms: u64| at_ms < 3000 || *node < 2 && !is_idle(at_ms);
        let calls = (0..6000)
            .flat_map(|at_ms| (0..3).filter(move |node| is_done(node, at_ms)).map(move |node| add(node, at_ms)));
        let deaths = vec![Death { node: 2, at_ns: 3000 * MS, gone_ns: 3001 * MS, told_ns: told_ms * MS }];
        let story = Story { load_ns: (0, 6000 * MS), deaths, stops, ..story(calls.collect()) };
        recoveries(&story).remove(0)
    }

    #[test]
    fn a_pause_is_measured() {
        let recovery = after(Vec::new(), |_| false);
        assert_eq!((recovery.before_per_s, recovery.percent, recovery.took_ms), (2000, 100, Some(0)));
        let recovery = after(Vec::new(), |at_ms| at_ms < 3700);
        assert!((600..=700).contains(&recovery.took_ms.expect("they go on")) && recovery.violation().is_none());
        assert_eq!(recovery.percent, 100);
        let recovery = after(Vec::new(), |at_ms| at_ms < 4400);
        assert_eq!((recovery.percent, recovery.violation()), (60, None));
        assert!(after(Vec::new(), |at_ms| at_ms < 4600).violation().is_some(), "too late");
        assert!(after(Vec::new(), |at_ms| at_ms > 4300).violation().is_some(), "it goes on at first only");
        assert_eq!(after(Vec::new(), |at_ms| at_ms > 4300).took_ms, None);
    }

    #[test]
    fn the_clock_starts_when_nobody_is_stopped() {
        let stop = |node| vec![(node, 2900 * MS, 3500 * MS)];
        let late = |at_ms| at_ms < 4700;
        let recovery = after(stop(1), late);
        assert_eq!((recovery.stopped_ms, recovery.percent, recovery.violation()), (Some(500), 80, None));
        assert!(after(stop(2), late).violation().is_some(), "only the dead was stopped");
    }

    #[test]
    fn the_clock_starts_when_the_survivors_know() {
        let late = |at_ms| at_ms < 4700;
        assert!(after(Vec::new(), late).violation().is_some(), "they knew at once");
        let recovery = after_told(3700, Vec::new(), late);
        assert_eq!((recovery.told_ms, recovery.percent, recovery.violation()), (700, 100, None));
        assert!(after_told(3700, Vec::new(), |at_ms| at_ms < 5300).violation().is_some(), "and did not go on");
    }
}
