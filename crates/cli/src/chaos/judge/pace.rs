//! Checks that the survivors of a death do at least half of their earlier work, from a second after it on, and each
//! load its part of that.
//!
//! The second that begins a second after the death is compared with the second before the death: all operations that
//! the survivors' threads completed in each. Where no system reports deaths, the judged second begins a second after
//! the nodes have detected the death. Where a stop overlaps the death, "before" is before the stop, and the clock
//! starts when no other node is stopped. A thread may wait for a stopped node; the report mentions that. The plan
//! injects no other fault in this time. It may let nodes join, which is no excuse.
//!
//! The load is paced, so that it leaves the machine time: a thread that does less than before waits for something. Only
//! the threads of the surviving nodes are compared. Operations of joining nodes, and operations with them, do not
//! count.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::{Death, Story};
use crate::chaos::load::GUESTS;
use crate::chaos::log::{Answer, Call, Op};

const MS: u64 = 1_000_000;
/// The time from the death to the judged span, the length of that span, and the length of the earlier span for
/// comparison.
const SECOND_NS: u64 = 1000 * MS;
/// The first two of these seconds: after the detection of a death, the plan injects no other fault for this long.
pub(in crate::chaos) const RECOVERY: Duration = Duration::from_nanos(2 * SECOND_NS);
/// All loads together must reach this share of their earlier rate, in percent.
const TOTAL_PERCENT: u64 = 50;
/// Each load must reach this share. It is less than the share of all together: the part of a load that needed the dead
/// node ended with it (a reader of rings has no messages from the dead writer, and the objects of one node in four or
/// five do not answer). Also, a load is a few threads, which a busy machine of two cores may hold up for a part of a
/// second. A load does far less if it is stuck, or if each operation waits for a timeout: some operations in a second.
const LOAD_PERCENT: u64 = 25;
/// Recovery is also measured in shorter spans. They are not judged, because they are noise on a busy machine.
const SPAN_NS: u64 = 200 * MS;
const STEP_NS: u64 = 25 * MS;
/// Faults this close to each other count as one for the survivors.
const TOGETHER_NS: u64 = 100 * MS;

/// The survivors' pace after a death.
#[derive(Clone, Debug, Serialize)]
pub(in crate::chaos) struct Recovery {
    pub(in crate::chaos) node: u16,
    /// The clock started this long after the death, because another node was stopped when it died. None if no other
    /// node was.
    pub(in crate::chaos) stopped_ms: Option<u64>,
    /// All survivors had reported the eviction this long after the death, where they detect deaths themselves; else 0.
    pub(in crate::chaos) told_ms: u64,
    /// The survivors' operations in the second before the death.
    pub(in crate::chaos) before_per_s: u64,
    /// Their operations in the judged second, in percent of that.
    pub(in crate::chaos) percent: u64,
    /// The same for each load.
    pub(in crate::chaos) percent_by_load: BTreeMap<String, u64>,
    /// From this long after the death on, they did at least half as many in every fifth of a second, until the end of
    /// the judged span. None if they did not at its end.
    pub(in crate::chaos) took_ms: Option<u64>,
}

impl Recovery {
    /// The violation in this recovery, if there is one.
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
    let mut harm: Vec<(u64, u64)> = stops.chain(deaths).collect();
    harm.sort_unstable();
    // The span before ends at the first of the faults that were injected together with this death. The last fault is
    // the first here.
    let mut until_ns = died_ns;
    for (begin_ns, end_ns) in harm.into_iter().rev() {
        if end_ns + TOGETHER_NS > until_ns {
            until_ns = until_ns.min(begin_ns);
        }
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
    // Without most of its memory nodes, the replicated store stands still. Without most nodes, so do the calls that a
    // log orders. The other calls of the replicated ledger go on.
    let dead: Vec<u16> = story.members.iter().copied().filter(|node| !survives(*node)).collect();
    if story.are_most_memory(&dead) {
        done.remove("swarm");
    }
    if story.are_too_many(&dead) {
        for load in ["mutex", "election", "entries"] {
            done.remove(load);
        }
    }
    let all: Vec<u64> = done.values().flatten().copied().collect();
    let before_per_s = count(&all, from_ns, until_ns) * SECOND_NS / (until_ns - from_ns).max(1);
    Recovery {
        node,
        stopped_ms: went_on_ns.map(|at_ns| (at_ns - died_ns) / MS),
        told_ms: (death.told_ns - died_ns) / MS,
        before_per_s,
        percent: percent(&all),
        // Where all objects have died, no load can continue.
        percent_by_load: if is_left {
            done.iter().map(|(load, done)| (load.to_string(), percent(done))).collect()
        } else {
            BTreeMap::new()
        },
        took_ms: took_ms(&all, before_per_s, calm_ns, end_ns),
    }
}

/// The time at which a call has made progress, if it has.
fn progress_ns(call: &Call) -> Option<u64> {
    match (&call.op, call.success(), call.failure()) {
        // Finding a ring full is no progress.
        (Op::Send { .. }, Some((_, Answer::Changed(false))), _) => None,
        // Another node leads, or none.
        (Op::Propose { .. }, Some((_, Answer::Changed(false) | Answer::Unknown(_))), _) => None,
        (_, Some((at_ns, _)), _) => Some(at_ns),
        // It has reached the live nodes.
        (Op::Announce { .. } | Op::Push { .. }, _, Some((at_ns, failure))) => failure.is_death().then_some(at_ns),
        _ => None,
    }
}

fn count(done: &[u64], from_ns: u64, to_ns: u64) -> u64 {
    done.iter().filter(|at_ns| (from_ns..to_ns).contains(at_ns)).count() as u64
}

/// The time after `calm_ns` from which half as many operations complete in every span.
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
    use crate::chaos::log::KvOp;

    /// Three nodes that add once a millisecond each. Node 2 dies at 3 s; then the others are idle wherever `is_idle`
    /// holds.
    fn after(stops: Vec<(u16, u64, u64)>, is_idle: impl Fn(u64) -> bool) -> Recovery {
        after_told(3000, stops, is_idle)
    }

    /// The same where the survivors learn of the eviction at a given time.
    fn after_told(told_ms: u64, stops: Vec<(u16, u64, u64)>, is_idle: impl Fn(u64) -> bool) -> Recovery {
        let is_done = |node: &u16, at_ms: u64| at_ms < 3000 || *node < 2 && !is_idle(at_ms);
        let mut story = Story { stops, ..at_pace(is_done) };
        story.deaths[0].told_ns = told_ms * MS;
        recoveries(&story).remove(0)
    }

    fn add(node: u16, at_ns: u64) -> Call {
        call(node, at_ns, Op::Add { counter: 0 }, Some((at_ns, Ok(Answer::Value(0)))))
    }

    /// Three nodes, of which each adds in those milliseconds in which `is_done` holds. Node 2 dies at 3 s.
    fn at_pace(is_done: impl Fn(&u16, u64) -> bool) -> Story {
        let is_done = &is_done;
        let calls = (0..6000)
            .flat_map(|at_ms| (0..3).filter(move |node| is_done(node, at_ms)).map(move |node| add(node, at_ms * MS)));
        let deaths = vec![Death { node: 2, at_ns: 3000 * MS, gone_ns: 3001 * MS, told_ns: 3000 * MS }];
        Story { load_ns: (0, 6000 * MS), deaths, ..story(calls.collect()) }
    }

    /// The survivors' operations in the second before the death, and in the judged second in percent of that.
    fn rates(story: &Story) -> (u64, u64) {
        let recovery = recoveries(story).remove(0);
        (recovery.before_per_s, recovery.percent)
    }

    #[test]
    fn all_loads_reach_their_share() {
        let fine = after(Vec::new(), |_| false);
        for (percent, of_load, is_fine) in [(50, 25, true), (49, 25, false), (50, 24, false)] {
            let percent_by_load = BTreeMap::from([("kv".to_string(), 100), ("ring".to_string(), of_load)]);
            let violation = Recovery { percent, percent_by_load, ..fine.clone() }.violation();
            assert_eq!(violation.is_none(), is_fine, "{percent} and {of_load} percent: {violation:?}");
        }
    }

    #[test]
    fn the_second_before_is_that_before_all_faults_that_come_together() {
        // Before 2 s they work at half the pace.
        let mut story = at_pace(|_, at_ms| at_ms >= 2000 || at_ms % 2 == 0);
        assert_eq!(rates(&story), (2000, 100));
        // The begin and the end of a stop of node 1, and the rates.
        for (from_ms, to_ms, expected) in
            [(500, 600, (2000, 100)), (2000, 2900, (2000, 100)), (2000, 2901, (1000, 200))]
        {
            story.stops = vec![(1, from_ms * MS, to_ms * MS)];
            assert_eq!(rates(&story), expected, "from {from_ms} to {to_ms} ms");
            assert_eq!(recoveries(&story).remove(0).stopped_ms, None, "it was over when node 2 died");
        }
        // One fault follows the other, in whatever order they are known; and one follows the death.
        story.stops = [(2450, 2950), (1700, 2400), (3500, 3600)].map(|(from, to)| (1, from * MS, to * MS)).to_vec();
        for _ in 0..3 {
            assert_eq!(rates(&story), (1000, 200));
            story.stops.rotate_left(1);
        }
    }

    #[test]
    fn the_time_before_the_load_does_not_count() {
        let begins_at = |at_ms: u64| Story { load_ns: (at_ms * MS, 6000 * MS), ..at_pace(|_, it| it >= at_ms) };
        assert_eq!(rates(&begins_at(2500)), (2000, 100));
        assert_eq!(rates(&begins_at(3000)), (0, 200_000), "nothing to compare with");
    }

    #[test]
    fn an_operation_at_the_very_begin_of_a_span_counts_in_it() {
        let mut story = at_pace(|_, _| true);
        assert_eq!(rates(&story), (2000, 100));
        let other = Call { thread: "other-0".into(), ..add(0, 2000 * MS) };
        story.calls.push(other.clone());
        let recovery = recoveries(&story).remove(0);
        assert_eq!((recovery.before_per_s, recovery.percent_by_load.get("other")), (2001, Some(&0)));
        story.calls.pop();
        story.calls.push(Call { end: Some((2000 * MS - 1, Ok(Answer::Done))), ..other });
        let recovery = recoveries(&story).remove(0);
        assert_eq!((recovery.before_per_s, recovery.percent_by_load.get("other")), (2000, None));
    }

    #[test]
    fn only_members_that_survive_the_judged_second_are_compared() {
        let mut story = at_pace(|_, _| true);
        story.newcomers.push(3);
        story.calls.extend((4000..5000).map(|at_ms| add(3, at_ms * MS)));
        assert_eq!(rates(&story), (2000, 100), "a newcomer is none");
        for (at_ns, per_s) in [(5000 * MS, 1000), (5000 * MS + 1, 2000)] {
            story.deaths.truncate(1);
            story.deaths.push(Death { node: 1, at_ns, gone_ns: at_ns, told_ns: at_ns });
            assert_eq!(rates(&story), (per_s, 100), "another death at {at_ns} ns");
        }
    }

    #[test]
    fn where_all_objects_have_died_no_load_is_judged_alone() {
        for (homes, expected) in [(vec![2], vec![]), (vec![2, 0], vec![("t".to_string(), 100)])] {
            let recovery = recoveries(&Story { homes, ..at_pace(|_, _| true) }).remove(0);
            assert_eq!(recovery.percent_by_load.into_iter().collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn half_the_pace_is_recovered() {
        let recovery = recoveries(&at_pace(|node, at_ms| at_ms < 3000 || *node == 0)).remove(0);
        assert_eq!((recovery.percent, recovery.took_ms, recovery.violation()), (50, Some(0), None));
        // One operation in every span is enough. There is one, in the last span only.
        assert_eq!(took_ms(&[1000 * MS - 1], 5, 0, 1000 * MS), Some(800));
        assert_eq!(took_ms(&[1000 * MS], 5, 0, 1000 * MS), None);
    }

    #[test]
    fn a_replicated_store_needs_most_of_its_memory() {
        // All add to the end; the replicated store stands still from 3 s on.
        let mut story = at_pace(|node, at_ms| at_ms < 3000 || *node < 1);
        let get = |at_ms: u64| {
            let op = Op::Swarm { key: 1, op: KvOp::Get };
            let done = Some((at_ms * MS, Ok(Answer::Found(None))));
            Call { thread: "swarm".into(), ..call(0, at_ms * MS, op, done) }
        };
        story.calls.extend((0..3000).map(get));
        story.homes = vec![0];
        assert!(recoveries(&story)[0].percent_by_load.contains_key("swarm"), "one of three has died");
        story.deaths.push(Death { node: 1, ..story.deaths[0] });
        assert!(!recoveries(&story)[0].percent_by_load.contains_key("swarm"), "two of three have");
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
    fn the_clock_starts_when_no_survivor_is_stopped() {
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
