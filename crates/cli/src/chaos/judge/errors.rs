//! The errors of calls: only deaths of killed nodes, and timeouts while some node was stopped or had just died. A
//! timeout occurs neither before its time nor long after it, and no other call takes longer either.
//!
//! A busy machine may be too slow for the limits. The judge measures this by the calls of all nodes that take one round
//! trip each, at the time of the timeout. The operation that timed out needs several round trips. If the median round
//! trip leaves no time for them, that is the reason. A lost grant is not excused by this, because it does not make
//! round trips longer.

use super::{DECIDED_NS, Death, Findings, Story};
use crate::chaos::log::{Call, Failure, Op};

/// Round trips of one node's turn at a lock: it takes the lock, reads, changes two words, and releases the lock.
const TURN_ROUND_TRIPS: u64 = 8;
/// With fewer calls, the time of a round trip is unknown.
const SAMPLES_MIN: usize = 5;

/// A call takes at most this many times its limit.
pub(in crate::chaos) const LIMITS_MAX: u64 = 10;

impl Story {
    /// Whether a node was stopped, or had just died, at some time in a span.
    fn was_harmed(&self, node: u16, from_ns: u64, to_ns: u64) -> bool {
        // Other nodes may still have waited for this long after the detection of the death or the end of the stop.
        let overlaps = |begin_ns: u64, end_ns: u64| begin_ns <= to_ns && from_ns <= end_ns.saturating_add(DECIDED_NS);
        let died = |death: &Death| overlaps(death.at_ns, self.found_out_ns(death));
        let stopped = |stop: &(u16, u64, u64)| overlaps(stop.1, stop.2.saturating_add(self.detection_ns));
        self.deaths.iter().filter(|death| death.node == node).any(died)
            || self.stops.iter().filter(|stop| stop.0 == node).any(stopped)
    }

    /// The time of a round trip in a span, where nodes are on a network: the median of the calls that take one round
    /// trip.
    fn round_trip_ns(&self, from_ns: u64, to_ns: u64) -> Option<u64> {
        let is_one = |call: &&Call| matches!(call.op, Op::Add { .. } | Op::Pull { .. });
        let took_ns = |call: &Call| {
            let (end_ns, outcome) = call.end.as_ref()?;
            let has_waited = outcome.as_ref().err().is_none_or(Failure::is_timeout);
            (has_waited && call.begin_ns <= to_ns && *end_ns >= from_ns).then(|| end_ns - call.begin_ns)
        };
        let mut all: Vec<u64> = self.calls.iter().filter(is_one).filter_map(took_ns).collect();
        all.sort_unstable();
        (self.detection_ns > 0 && all.len() >= SAMPLES_MIN).then(|| all[all.len() / 2])
    }

    /// Whether round trips in a span were so slow that one turn of each node takes longer than a limit.
    fn is_too_slow(&self, from_ns: u64, to_ns: u64, limit_ns: u64) -> bool {
        let turns = TURN_ROUND_TRIPS * self.members.len() as u64;
        self.round_trip_ns(from_ns, to_ns).is_some_and(|one_ns| one_ns.saturating_mul(turns) >= limit_ns)
    }

    /// How long a node was stopped in a span.
    fn stopped_ns(&self, node: u16, from_ns: u64, to_ns: u64) -> u64 {
        let within = |stop: &&(u16, u64, u64)| stop.0 == node;
        let stops = self.stops.iter().filter(within);
        stops.map(|stop| stop.2.min(to_ns).saturating_sub(stop.1.max(from_ns))).sum()
    }
}

pub(super) fn judge(story: &Story, findings: &mut Findings) {
    for call in &story.calls {
        let Some((at_ns, outcome)) = &call.end else {
            if story.survives(call.node) {
                findings.violation(format!("node {}: {:?} has not returned", call.node, call.op));
            }
            continue;
        };
        let took_ns = at_ns.saturating_sub(call.begin_ns);
        let ran_ns = took_ns.saturating_sub(story.stopped_ns(call.node, call.begin_ns, *at_ns));
        // An operation to a dead node ends when the death is detected.
        let limit_ns = LIMITS_MAX * call.limit_ns + story.detection_max_ns();
        findings.verify("calls within their time", ran_ns <= limit_ns, || {
            format!(
                "node {}: {:?} took {} ms, with a limit of {} ms",
                call.node,
                call.op,
                ms(ran_ns),
                ms(call.limit_ns)
            )
        });
        if let Err(failure) = outcome {
            *findings.errors.entry(failure.variant.clone()).or_default() += 1;
            let wrong = judge_failure(story, call, *at_ns, failure);
            findings.verify("errors by variant and node", wrong.is_none(), || {
                let why = wrong.unwrap_or_default();
                let round_trip = story.round_trip_ns(call.begin_ns, *at_ns);
                let slowness = round_trip.map(|ns| format!(", and a round trip took {} ms", ms(ns)));
                let slowness = slowness.unwrap_or_default();
                format!("node {}: {:?} failed with `{}`: {why}{slowness}", call.node, call.op, failure.text)
            });
        }
    }
}

fn ms(ns: u64) -> u64 {
    ns / 1_000_000
}

/// The violation in an error, if there is one.
fn judge_failure(story: &Story, call: &Call, at_ns: u64, failure: &Failure) -> Option<String> {
    let is_of_object = failure.object.as_ref().is_some_and(|object| object.starts_with(&story.path));
    // A fence is the endpoint's, not an object's.
    if !is_of_object && call.op != Op::Flush {
        return Some("it does not name the object".into());
    }
    let takes_part = |node: &u16| story.members.contains(node) || story.newcomers.contains(node);
    if let Some(stranger) = failure.nodes.iter().find(|node| !takes_part(node)) {
        return Some(format!("node {stranger} does not take part"));
    }
    let was_killed = |node: &u16| story.death_of(*node).is_some_and(|killed_ns| killed_ns <= at_ns);
    match failure.variant.as_str() {
        "PeerDead" | "ValueLost" => match failure.nodes[..] {
            _ if failure.variant == "ValueLost" && !matches!(call.op, Op::Kv { .. }) => {
                Some("nothing can be lost".into())
            }
            // An operation that sends to all nodes may name several.
            ref nodes if !nodes.is_empty() && nodes.iter().all(was_killed) => None,
            _ => Some("that node has not been killed".into()),
        },
        // Where no system reports deaths, the nodes detect them.
        "Unreachable" if story.detection_ns > 0 => match failure.nodes[..] {
            ref nodes if !nodes.is_empty() && nodes.iter().all(|it| story.was_harmed(*it, call.begin_ns, at_ns)) => {
                None
            }
            _ => Some("that node was neither killed nor stopped just before".into()),
        },
        "Timeout" => {
            let took_ns = at_ns - call.begin_ns;
            if took_ns < call.limit_ns {
                return Some(format!("after {} ms, before its {} ms were over", ms(took_ns), ms(call.limit_ns)));
            }
            let was_harmed = |node: &u16| story.was_harmed(*node, call.begin_ns, at_ns);
            // The error names dead nodes beside the others.
            // While the survivors detect a death, they wait for each other, too.
            let find_out = story.detection_ns > 0 && story.members.iter().any(was_harmed);
            let is_slow = story.is_too_slow(call.begin_ns, at_ns, call.limit_ns);
            let may_be_missing = |node: &u16| find_out || is_slow || was_harmed(node) || was_killed(node);
            // An empty queue needs no reason. The holder of a lock may itself wait for a harmed node.
            let is_dequeue = matches!(call.op, Op::Dequeue { .. });
            let is_of_lock =
                matches!(call.op, Op::Lock { .. }) || failure.object.as_ref().is_some_and(|it| it.ends_with("/locks"));
            if let Some(named) = failure.nodes.iter().find(|node| !is_of_lock && !may_be_missing(node)) {
                return Some(format!("node {named} was not stopped"));
            }
            let has_reason = is_dequeue || is_slow || story.members.iter().any(was_harmed);
            (!has_reason).then(|| "nobody was stopped or had died".into())
        }
        _ => Some("no such error may come of what was done".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{call, death_of, found, story};
    use super::*;
    use crate::chaos::log::Answer;

    fn failed(begin_ns: u64, end_ns: u64, failure: Failure) -> Call {
        call(0, begin_ns, Op::Add { counter: 2 }, Some((end_ns, Err(failure))))
    }

    fn timeout(nodes: &[u16]) -> Failure {
        Failure { variant: "Timeout".into(), nodes: nodes.into(), ..death_of(2) }
    }

    #[test]
    fn an_error_names_who_was_killed() {
        assert_eq!(found(judge, vec![failed(1001, 1002, death_of(2))]), [""; 0]);
        assert_eq!(found(judge, vec![failed(900, 999, death_of(2))]).len(), 1, "before its death");
        assert_eq!(found(judge, vec![failed(1001, 1002, death_of(1))]).len(), 1, "it lives");
        let nameless = Failure { object: None, ..death_of(2) };
        assert_eq!(found(judge, vec![failed(1001, 1002, nameless)]).len(), 1, "of what object?");
        let other = Failure { variant: "PeerLeft".into(), ..death_of(2) };
        assert_eq!(found(judge, vec![failed(1001, 1002, other)]).len(), 1);
    }

    #[test]
    fn a_timeout_has_a_reason_and_comes_in_time() {
        assert_eq!(found(judge, vec![failed(1001, 1101, timeout(&[]))]), [""; 0]);
        assert_eq!(found(judge, vec![failed(1001, 1100, timeout(&[]))]).len(), 1, "too early");
        assert_eq!(found(judge, vec![failed(1001, 2101, timeout(&[]))]).len(), 1, "too late");
        assert_eq!(found(judge, vec![failed(100, 201, timeout(&[]))]).len(), 1, "of nothing");
        assert_eq!(found(judge, vec![failed(1001, 1101, timeout(&[1]))]).len(), 1, "it runs");
        let of_lock = |begin_ns| {
            let held_by_1 = Failure { object: Some("chaos/0/kv/locks".into()), ..timeout(&[1]) };
            found(judge, vec![failed(begin_ns, begin_ns + 100, held_by_1)])
        };
        assert_eq!(of_lock(1001), [""; 0], "it waits itself");
        assert_eq!(of_lock(100).len(), 1, "for nobody");
    }

    #[test]
    fn the_time_in_which_a_node_was_stopped_itself_does_not_count() {
        let mut stopped = story(vec![failed(1001, 5000, timeout(&[]))]);
        stopped.stops.push((0, 1050, 4900));
        let mut findings = Findings::default();
        judge(&stopped, &mut findings);
        assert_eq!(findings.violations, [""; 0]);
    }

    #[test]
    fn a_machine_that_is_too_slow_is_measured_by_round_trips() {
        let waits = |round_trip_ns: u64, detection_ns: u64| {
            let locked = Failure { object: Some("chaos/0/locks".into()), ..timeout(&[1]) };
            let add = |begin_ns| {
                let end = Some((begin_ns + round_trip_ns, Ok(Answer::Done)));
                call(1, begin_ns, Op::Add { counter: 2 }, end)
            };
            let mut calls = vec![call(0, 100, Op::Lock { lock: 1, turn: 0 }, Some((200, Err(locked))))];
            calls.extend((0..SAMPLES_MIN as u64).map(|at| add(101 + at)));
            let mut slow = story(calls);
            slow.detection_ns = detection_ns;
            let mut findings = Findings::default();
            judge(&slow, &mut findings);
            findings.violations.len()
        };
        let enough = 100_u64.div_ceil(3 * TURN_ROUND_TRIPS);
        assert_eq!((waits(enough, 1), waits(enough - 1, 1)), (0, 1));
        assert_eq!(waits(enough, 0), 1, "on one host there is no network");
    }

    #[test]
    fn who_does_not_answer_may_have_died_until_all_know() {
        let found = |begin_ns: u64, told_ns: u64| {
            let unreachable = Failure { variant: "Unreachable".into(), ..death_of(2) };
            let mut story = Story { detection_ns: 1, ..story(vec![failed(begin_ns, begin_ns + 1, unreachable)]) };
            story.deaths[0].told_ns = told_ns;
            let mut findings = Findings::default();
            judge(&story, &mut findings);
            findings.violations.len()
        };
        let after_ns = 2000 + DECIDED_NS;
        assert_eq!((found(after_ns, 2000), found(after_ns + 1, 2000)), (0, 1));
        assert_eq!((found(after_ns, 1000), found(900, 2000)), (1, 1));
    }

    #[test]
    fn a_survivors_call_returns() {
        assert_eq!(found(judge, vec![call(0, 1, Op::Flush, None)]).len(), 1);
        assert_eq!(found(judge, vec![call(2, 1, Op::Flush, None)]), [""; 0]);
    }
}
