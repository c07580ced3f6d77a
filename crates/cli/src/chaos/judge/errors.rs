//! The errors of calls: only deaths of killed nodes, and timeouts while some node was stopped or had just died. A
//! timeout occurs neither before its time nor long after it, and no other call takes longer either.
//!
//! A busy machine may be too slow for the limits. The judge measures this by the calls of all nodes that take one round
//! trip each, at the time of the timeout. The operation that timed out needs several round trips. If the median round
//! trip leaves no time for them, that is the reason. A lost grant is not excused by this, because it does not make
//! round trips longer. On a network, a change of the ordered store may also have waited for moves of its partition.

use super::rome::{self, LEASE_NS};
use super::{DECIDED_NS, Death, Findings, Story};
use crate::chaos::log::{Call, Failure, LedgerOp, Op, Turns};

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

/// Whether the leader of a replicated log does its part for the call.
fn is_of_log(op: &Op) -> bool {
    match op {
        Op::Ledger { op } => op.is_ordered(),
        Op::Grab { .. } | Op::GiveBack { .. } | Op::Propose { .. } => true,
        _ => false,
    }
}

/// Whether the call continues without a node, or says which of them are missing.
fn depends_on_no_node(op: &Op) -> bool {
    match op {
        // It waits for all that live.
        Op::Ledger { op: LedgerOp::Stable } => false,
        // The holder's puts are visible before the next one holds.
        Op::GiveBack { of: Turns::Mutex, .. } => false,
        Op::Swarm { .. } | Op::Ledger { .. } => true,
        op => is_of_log(op),
    }
}

fn is_of_ordered_store(op: &Op) -> bool {
    matches!(op, Op::Rome { .. } | Op::RomeScan { .. } | Op::RomeTake { .. })
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
        // It continues without a node, or says which of them are missing.
        "PeerDead" | "Unreachable" if depends_on_no_node(&call.op) => Some("no call depends on one node".into()),
        "PeerDead" | "ValueLost" => match failure.nodes[..] {
            _ if failure.variant == "ValueLost" && !matches!(call.op, Op::Kv { .. }) => {
                Some("nothing can be lost".into())
            }
            // An operation that sends to all nodes may name several.
            ref nodes if !nodes.is_empty() && nodes.iter().all(was_killed) => None,
            _ => Some("that node has not been killed".into()),
        },
        // A replicated log continues without a minority of its nodes, and replicas of a data type in any case.
        "NoMajority" if is_of_log(&call.op) => {
            let is_missing = |it: &&u16| was_killed(it) || story.was_harmed(**it, call.begin_ns, at_ns);
            let missing: Vec<u16> = story.members.iter().filter(is_missing).copied().collect();
            (!story.are_too_many(&missing)).then(|| format!("only nodes {missing:?} were killed or stopped"))
        }
        "LogFull" if matches!(call.op, Op::Propose { .. }) => {
            let is_harmed = failure.nodes.iter().any(|it| story.was_harmed(*it, call.begin_ns, at_ns));
            (!is_harmed).then(|| "that node reads".into())
        }
        // This thread did not run for a quarter of the lease: it was stopped, or the machine is busy.
        "SnapshotExpired" if matches!(call.op, Op::RomeScan { .. } | Op::RomeTake { .. }) => {
            let is_early = at_ns - call.begin_ns < LEASE_NS / 4;
            is_early.then(|| format!("after {} ms", ms(at_ns - call.begin_ns)))
        }
        // A thread that holds memory or a version did not run for long. An emulated machine may do that at any time.
        "NotOneInstant" | "MemoryFull" if is_of_ordered_store(&call.op) => {
            let since_ns = call.begin_ns.saturating_sub(LEASE_NS);
            let is_harmed = story.members.iter().any(|it| story.was_harmed(*it, since_ns, at_ns));
            (!is_harmed && story.detection_ns == 0).then(|| "nobody was stopped or had died".into())
        }
        // The replicated store continues without a minority of its memory nodes.
        "NoMajority" => {
            let is_missing =
                |it: &u16| was_killed(it) || story.detection_ns > 0 && story.was_harmed(*it, call.begin_ns, at_ns);
            if !matches!(call.op, Op::Swarm { .. }) {
                return Some("nothing else is replicated".into());
            }
            let missing: Vec<u16> = failure.nodes.iter().copied().filter(is_missing).collect();
            (!story.are_most_memory(&missing)).then(|| format!("only nodes {missing:?} were killed or stopped"))
        }
        // Where no system reports deaths, the nodes detect them.
        "Unreachable" if story.detection_ns > 0 => match failure.nodes[..] {
            ref nodes if !nodes.is_empty() && nodes.iter().all(|it| story.was_harmed(*it, call.begin_ns, at_ns)) => {
                None
            }
            _ => Some("that node was neither killed nor stopped just before".into()),
        },
        "Timeout" => {
            let took_ns = at_ns - call.begin_ns;
            // A copy of a partition may have taken longer than changes waited for it.
            let may_be_early = rome::is_late_copy(story, call, took_ns);
            if took_ns < call.limit_ns && !may_be_early {
                return Some(format!("after {} ms, before its {} ms were over", ms(took_ns), ms(call.limit_ns)));
            }
            let was_harmed = |node: &u16| story.was_harmed(*node, call.begin_ns, at_ns);
            // The error names dead nodes beside the others.
            // While the survivors detect a death, they wait for each other, too.
            let find_out = story.detection_ns > 0 && story.members.iter().any(was_harmed);
            let is_slow = story.is_too_slow(call.begin_ns, at_ns, call.limit_ns);
            let may_be_missing = |node: &u16| find_out || is_slow || was_harmed(node) || was_killed(node);
            // An empty queue needs no reason. The holder of a lock, the leader of a log, or the owner of a partition
            // that a harmed node takes, may itself wait for that one.
            let is_dequeue = matches!(call.op, Op::Dequeue { .. });
            let is_of_lock = matches!(call.op, Op::Lock { .. })
                || is_of_log(&call.op)
                || rome::may_need_others(story, call, at_ns)
                || failure.object.as_ref().is_some_and(|it| it.ends_with("/locks"));
            if let Some(named) = failure.nodes.iter().find(|node| !is_of_lock && !may_be_missing(node)) {
                return Some(format!("node {named} was not stopped"));
            }
            let is_moved = rome::waits_for_moves(story, call, at_ns);
            // A change of the replicated store may wait for any member, also while most of the memory nodes answer: all
            // have clients, and reads of these may still use the buffers that it needs.
            let has_reason = is_dequeue || is_slow || is_moved || story.members.iter().any(was_harmed);
            (!has_reason).then(|| "nobody was stopped or had died".into())
        }
        _ => Some("no such error may come of what was done".into()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::tests::{call, counts, death_of, failure, found, judged, story};
    use super::*;
    use crate::chaos::log::{Answer, KvOp, Outcome};

    fn failed(begin_ns: u64, end_ns: u64, failure: Failure) -> Call {
        call(0, begin_ns, Op::Add { counter: 2 }, Some((end_ns, Err(failure))))
    }

    fn timeout(nodes: &[u16]) -> Failure {
        Failure { variant: "Timeout".into(), nodes: nodes.into(), ..death_of(2) }
    }

    #[test]
    fn an_error_names_the_killed_node() {
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
    fn a_replicated_call_fails_without_most_of_the_memory_nodes_only() {
        let get = Op::Swarm { key: 1, op: KvOp::Get };
        let without = |op: &Op, nodes: &[u16]| {
            let mut story = story(vec![call(1, 1100, op.clone(), Some((1200, Err(failure("NoMajority", nodes)))))]);
            story.deaths.push(Death { node: 0, at_ns: 1050, gone_ns: 1060, told_ns: 1050 });
            judged(judge, &story).violations.len()
        };
        assert_eq!((without(&get, &[0, 2]), without(&get, &[2]), without(&get, &[1, 2])), (0, 1, 1));
        assert_eq!(without(&Op::Flush, &[0, 2]), 1);
        assert_eq!(found(judge, vec![call(1, 1100, get, Some((1200, Err(death_of(2)))))]).len(), 1);
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
    fn a_dead_node_may_be_unreachable_until_all_know_of_its_death() {
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

    #[test]
    fn every_call_is_timed_and_errors_are_counted_by_variant() {
        let took = |ns: u64| call(0, 10, Op::Flush, Some((10 + ns, Ok(Answer::Done))));
        assert_eq!(found(judge, vec![took(1000)]), [""; 0], "ten times its limit");
        assert_eq!(found(judge, vec![took(1001)]).len(), 1);
        let calls = vec![took(1), failed(1001, 1002, death_of(2)), failed(1003, 1004, death_of(2))];
        let findings = judged(judge, &story([calls, vec![failed(1001, 1101, timeout(&[]))]].concat()));
        assert_eq!(findings.violations, [""; 0]);
        assert_eq!(counts(&findings), [("calls within their time", 4), ("errors by variant and node", 3)]);
        assert_eq!(findings.errors, BTreeMap::from([("PeerDead".to_string(), 2), ("Timeout".to_string(), 1)]));
    }

    #[test]
    fn a_node_is_harmed_by_its_death_or_stop_until_a_second_after_it() {
        let harmed = Story { stops: vec![(1, 300, 400)], ..story(Vec::new()) };
        let table = [
            (2, (0, 999), false),
            (2, (0, 1000), true),
            (2, (1000 + DECIDED_NS, u64::MAX), true),
            (2, (1001 + DECIDED_NS, u64::MAX), false),
            (1, (0, 299), false),
            (1, (0, 300), true),
            (1, (400 + DECIDED_NS, u64::MAX), true),
            (1, (401 + DECIDED_NS, u64::MAX), false),
            (0, (0, u64::MAX), false),
        ];
        for (node, (from_ns, to_ns), is_harmed) in table {
            assert_eq!(harmed.was_harmed(node, from_ns, to_ns), is_harmed, "node {node} from {from_ns} to {to_ns} ns");
        }
    }

    #[test]
    fn the_parts_of_a_span_in_which_a_node_was_stopped_are_added_up() {
        let stops = vec![(0, 100, 200), (1, 0, 1000), (0, 300, 400)];
        let stopped = Story { stops, ..story(Vec::new()) };
        for ((from_ns, to_ns), in_all) in [((0, 1000), 200), ((150, 350), 100), ((120, 130), 10), ((210, 290), 0)] {
            assert_eq!(stopped.stopped_ns(0, from_ns, to_ns), in_all, "from {from_ns} to {to_ns} ns");
        }
    }

    /// An addition, which takes one round trip.
    fn add(begin_ns: u64, end_ns: u64, outcome: Outcome) -> Call {
        call(1, begin_ns, Op::Add { counter: 2 }, Some((end_ns, outcome)))
    }

    #[test]
    fn a_round_trip_is_the_median_of_the_calls_that_overlap_a_span_and_have_waited() {
        let done = || Ok(Answer::Value(0));
        let others = [50, 10, 20, 40].map(|took_ns| add(100, 100 + took_ns, done()));
        let with = |fifth: Call| {
            let story = Story { detection_ns: 1, ..story([&others[..], &[fifth]].concat()) };
            story.round_trip_ns(100, 200)
        };
        let table = [
            (add(120, 150, done()), Some(30)),
            (add(120, 150, Err(timeout(&[]))), Some(30)),
            (add(200, 230, done()), Some(30)),
            (add(201, 231, done()), None),
            (add(70, 100, done()), Some(30)),
            (add(69, 99, done()), None),
            (add(120, 150, Err(death_of(2))), None),
            (call(1, 120, Op::Pull { of: 2 }, Some((150, done()))), Some(30)),
            (call(1, 120, Op::Flush, Some((150, done()))), None),
            (call(1, 120, Op::Add { counter: 2 }, None), None),
        ];
        for (fifth, expected) in table {
            assert_eq!(with(fifth.clone()), expected, "{fifth:?}");
        }
    }

    #[test]
    fn a_machine_is_too_slow_if_a_turn_of_each_node_takes_a_limit() {
        let four = (0..5).map(|_| add(100, 104, Ok(Answer::Value(0)))).collect();
        let slow = Story { detection_ns: 1, ..story(four) };
        let turns = TURN_ROUND_TRIPS * 3;
        assert!(slow.is_too_slow(100, 200, 4 * turns) && !slow.is_too_slow(100, 200, 4 * turns + 1));
        assert!(!slow.is_too_slow(300, 400, 1), "nothing is known about this span");
    }

    /// What is wrong with the failure of a call, with a limit of 100 ns. Nodes 0 to 2 are members, and node 3 is a
    /// newcomer. Node 2 dies at 1000.
    fn wrong(story: &Story, (op, begin_ns, end_ns): (&Op, u64, u64), failure: &Failure) -> Option<String> {
        let failed = call(0, begin_ns, op.clone(), Some((end_ns, Err(failure.clone()))));
        judge_failure(story, &failed, end_ns, failure)
    }

    const ADD: Op = Op::Add { counter: 2 };
    const GET: Op = Op::Kv { key: 1, op: KvOp::Get };
    const DEQUEUE: Op = Op::Dequeue { queue: 2 };
    const LOCK: Op = Op::Lock { lock: 2, turn: 0 };
    const UPDATE: Op = Op::Swarm { key: 1, op: KvOp::Update(7) };

    #[test]
    fn an_error_fits_the_object_the_nodes_and_their_deaths() {
        let nameless = |variant, nodes: &[u16]| Failure { object: None, ..failure(variant, nodes) };
        let elsewhere = Failure { object: Some("chaos/1/it".into()), ..death_of(2) };
        let (no_object, alive) = ("it does not name the object", "that node has not been killed");
        let (unharmed, other) =
            ("that node was neither killed nor stopped just before", "no such error may come of what was done");
        // The time that the session takes to detect deaths, the call, when it ends, its failure, and the verdict.
        let table = [
            (0, ADD, 1000, death_of(2), None),
            (0, ADD, 999, death_of(2), Some(alive)),
            (0, ADD, 1000, nameless("PeerDead", &[2]), Some(no_object)),
            (0, ADD, 1000, elsewhere, Some(no_object)),
            (0, Op::Flush, 1000, nameless("PeerDead", &[2]), None),
            (0, ADD, 1000, failure("PeerDead", &[2, 2]), None),
            (0, ADD, 1000, failure("PeerDead", &[2, 1]), Some(alive)),
            (0, ADD, 1000, failure("PeerDead", &[]), Some(alive)),
            (0, ADD, 1000, failure("PeerDead", &[3]), Some(alive)),
            (0, ADD, 1000, failure("PeerDead", &[4]), Some("node 4 does not take part")),
            (0, GET, 1000, failure("ValueLost", &[2]), None),
            (0, GET, 999, failure("ValueLost", &[2]), Some(alive)),
            (0, ADD, 1000, failure("ValueLost", &[2]), Some("nothing can be lost")),
            (0, ADD, 1000, failure("Unreachable", &[2]), Some(other)),
            (1, ADD, 1000, failure("Unreachable", &[2]), None),
            (1, ADD, 1000, failure("Unreachable", &[2, 1]), Some(unharmed)),
            (1, ADD, 1000, failure("Unreachable", &[]), Some(unharmed)),
            (1, ADD, 999, failure("Unreachable", &[2]), Some(unharmed)),
            (1, ADD, 1000, failure("Fenced", &[2]), Some(other)),
        ];
        for (detection_ns, op, end_ns, failure, expected) in table {
            let story = Story { detection_ns, newcomers: vec![3], ..story(Vec::new()) };
            let verdict = wrong(&story, (&op, 900, end_ns), &failure);
            assert_eq!(verdict.as_deref(), expected, "{op:?} at {end_ns} ns: {failure:?}, {detection_ns} ns");
        }
    }

    #[test]
    fn a_snapshot_expires_when_its_thread_has_not_run() {
        let scan = Op::RomeScan { first: 0, end: 1 };
        let is_wrong = |variant, took_ns| {
            wrong(&story(Vec::new()), (&scan, 5000, 5000 + took_ns), &failure(variant, &[])).is_some()
        };
        let quarter = LEASE_NS / 4;
        assert!(is_wrong("SnapshotExpired", quarter - 1) && !is_wrong("SnapshotExpired", quarter));
        // Node 2 has died just before.
        assert!(!is_wrong("NotOneInstant", 1) && !is_wrong("MemoryFull", 1));
        let calm = Story { deaths: Vec::new(), ..story(Vec::new()) };
        assert!(wrong(&calm, (&scan, 5000, 5001), &failure("NotOneInstant", &[])).is_some());
    }

    #[test]
    fn a_timeout_names_only_nodes_that_may_have_been_missing() {
        let at = |object: &str, nodes: &[u16]| Failure { object: Some(object.into()), ..timeout(nodes) };
        let plain = |nodes: &[u16]| timeout(nodes);
        let nobody = Some("nobody was stopped or had died");
        let not_stopped = Some("node 1 was not stopped");
        let late = 2001 + DECIDED_NS;
        // What is special, the call, when it begins and ends, its failure, and the verdict.
        let table = [
            ("nothing", ADD, 100, 199, plain(&[2]), Some("after 0 ms, before its 0 ms were over")),
            ("nothing", ADD, 100, 200, plain(&[]), nobody),
            ("nothing", LOCK, 100, 200, plain(&[1]), nobody),
            ("nothing", UPDATE, 100, 200, plain(&[]), nobody),
            ("nothing", DEQUEUE, 100, 200, plain(&[]), None),
            ("nothing", DEQUEUE, 100, 200, plain(&[1]), not_stopped),
            ("the death", ADD, 901, 1001, plain(&[]), None),
            ("the death", ADD, 901, 1001, plain(&[2]), None),
            ("the death", ADD, 901, 1001, plain(&[2, 1]), not_stopped),
            ("the death", UPDATE, 901, 1001, plain(&[2]), None),
            ("the death", UPDATE, 901, 1001, plain(&[2, 1]), not_stopped),
            ("the death", LOCK, 901, 1001, plain(&[1]), None),
            ("the death", ADD, 901, 1001, at("chaos/0/kv/locks", &[1]), None),
            ("an old death", ADD, late, late + 100, plain(&[2]), nobody),
            ("an old death", DEQUEUE, late, late + 100, plain(&[2]), None),
            ("a death that is detected", ADD, 901, 1001, plain(&[2, 1]), None),
            ("a death that is detected", DEQUEUE, 100, 200, plain(&[1]), not_stopped),
            ("a stop", ADD, 100, 200, plain(&[1]), None),
            ("a stop", UPDATE, 100, 200, plain(&[1]), None),
            ("slow round trips", ADD, 100, 200, plain(&[1]), None),
        ];
        for (what, op, begin_ns, end_ns, failure, expected) in table {
            let mut story = story(Vec::new());
            match what {
                "a death that is detected" => story.detection_ns = 1,
                "a stop" => story.stops.push((1, 150, 160)),
                "slow round trips" => {
                    story.detection_ns = 1;
                    story.calls = (0..5).map(|_| add(110, 120, Ok(Answer::Value(0)))).collect();
                }
                _ => {}
            }
            let verdict = wrong(&story, (&op, begin_ns, end_ns), &failure);
            assert_eq!(verdict.as_deref(), expected, "{what}: {op:?} from {begin_ns} ns: {failure:?}");
        }
        let story = Story { detection_ns: 1, ..story(Vec::new()) };
        let stranger = wrong(&story, (&ADD, 901, 1001), &plain(&[9]));
        assert_eq!(stranger.as_deref(), Some("node 9 does not take part"), "even while a death is detected");
    }
}
