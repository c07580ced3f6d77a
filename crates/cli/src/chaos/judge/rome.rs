//! Each key's history in the ordered store is linearizable; its scans are reads of all keys of their partitions. That
//! the pairs of a scan are of one instant is seen by the load.

use std::collections::BTreeMap;
use std::ops::Range;

use farfield::history::Event;
use farfield::history::kv::{KvEvent, KvInput, KvOutput};

use super::swarm::{event_of, judge_keys};
use super::{Findings, Story};
use crate::chaos::load::rome::{KEYS, first_key};
use crate::chaos::log::{Answer, Call, KvOp, Op};

/// The owner of a partition keeps memory for a stopped reader for so long, and stops changes for a node that takes the
/// partition.
pub(super) const LEASE_NS: u64 = 1_000_000_000;

/// The partitions that a call of the ordered store needs.
fn partitions_of(op: &Op) -> Range<usize> {
    let one = |partition| partition..partition + 1;
    match op {
        Op::Rome { key, .. } => one((key >> 32) as usize),
        Op::RomeTake { partition } => one(*partition),
        Op::RomeScan { first, end } => *first..*end,
        _ => 0..0,
    }
}

/// Whether the owner of a partition may wait for others before it answers, or the call itself does. A read needs its
/// owners alone, unless a partition was moved and this node has not called it since.
pub(super) fn may_need_others(story: &Story, call: &Call, at_ns: u64) -> bool {
    match call.op {
        Op::Rome { op: KvOp::Get, .. } | Op::RomeScan { .. } => {}
        Op::Rome { .. } | Op::RomeTake { .. } => return true,
        _ => return false,
    }
    partitions_of(&call.op).any(|partition| {
        let is_of_it = |other: &&Call| partitions_of(&other.op).contains(&partition);
        // With the last call that has succeeded the node knew where it was.
        let knew = |other: &&Call| other.node == call.node && other.success().is_some_and(|end| end.0 <= call.begin_ns);
        let known_ns = story.calls.iter().filter(is_of_it).filter(knew).map(|other| other.begin_ns).max().unwrap_or(0);
        let is_take = |other: &&Call| matches!(other.op, Op::RomeTake { .. }) && other.begin_ns <= at_ns;
        let mut takes = story.calls.iter().filter(is_of_it).filter(is_take);
        // One that may have had an effect may have it later.
        let is_unknown = |take: &Call| take.failure().is_some_and(|(_, failure)| !failure.has_no_effect);
        takes.any(|take| is_unknown(take) || take.end.as_ref().is_none_or(|(end_ns, _)| *end_ns >= known_ns))
    })
}

/// After a move the others open the partition at its new place, and connections to an owner that they have not called
/// before. On emulated devices, all at once, that takes so long.
const ADOPTION_NS: u64 = 1_000_000_000;

/// Whether a change has waited for moves of its partition for at least half of its time. On a network that loses
/// packets, a copy waits for each that is lost; elsewhere a move takes some milliseconds.
pub(super) fn waits_for_moves(story: &Story, call: &Call, at_ns: u64) -> bool {
    let is_change = matches!(call.op, Op::Rome { op, .. } if op != KvOp::Get);
    if story.detection_ns == 0 || !is_change {
        return false;
    }
    let is_of_it =
        |other: &&Call| matches!(other.op, Op::RomeTake { partition } if partitions_of(&call.op).contains(&partition));
    // That of a node that died in the middle ends when the others know.
    let known_ns = |node: u16| {
        let death = story.deaths.iter().find(|death| death.node == node);
        death.map_or(u64::MAX, |death| story.found_out_ns(death))
    };
    let within = |take: &Call| {
        let end_ns = take.end.as_ref().map_or_else(|| known_ns(take.node), |(end_ns, _)| *end_ns + ADOPTION_NS);
        (take.begin_ns.max(call.begin_ns), end_ns.min(at_ns))
    };
    let mut moves: Vec<(u64, u64)> = story.calls.iter().filter(is_of_it).map(within).collect();
    moves.sort_unstable();
    let (mut waited_ns, mut until_ns) = (0, 0);
    for (from_ns, to_ns) in moves {
        waited_ns += to_ns.saturating_sub(from_ns.max(until_ns));
        until_ns = until_ns.max(to_ns);
    }
    waited_ns >= call.limit_ns / 2
}

/// Whether a taking may end before its time: changes did not wait until the partition was copied. They wait for a
/// lease; an earlier taking may have left its copy.
pub(super) fn is_late_copy(story: &Story, call: &Call, took_ns: u64) -> bool {
    let Op::RomeTake { .. } = call.op else { return false };
    let is_unknown = |other: &Call| other.failure().is_some_and(|(_, failure)| !failure.has_no_effect);
    let leaves_one = |other: &Call| {
        other.node == call.node && other.op == call.op && other.begin_ns < call.begin_ns && is_unknown(other)
    };
    took_ns >= LEASE_NS || story.calls.iter().any(leaves_one)
}

pub(super) fn judge(story: &Story, findings: &mut Findings) {
    let mut keys: BTreeMap<u64, Vec<KvEvent>> = BTreeMap::new();
    for call in &story.calls {
        match (&call.op, call.success()) {
            // The error says that it has not happened, and will not.
            (Op::Rome { .. }, _) if call.failure().is_some_and(|(_, failure)| failure.has_no_effect) => {}
            (Op::Rome { key, op }, _) => keys.entry(*key).or_default().push(event_of(call, *op)),
            (Op::RomeScan { first, end }, Some((at_ns, Answer::Numbers(pairs)))) => {
                let found: BTreeMap<u64, u64> = pairs.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
                findings.count("scans of the ordered store", 1);
                for key in (*first..*end).flat_map(|partition| (0..KEYS).map(move |key| first_key(partition) + key)) {
                    let (client, output) = (u32::from(call.node), KvOutput::Found(found.get(&key).copied()));
                    let event = Event::returned(client, call.begin_ns, at_ns, KvInput::Get, output);
                    keys.entry(key).or_default().push(event);
                }
            }
            (Op::RomeTake { .. }, Some(_)) => findings.count("partitions of the ordered store taken", 1),
            _ => {}
        }
    }
    judge_keys("ordered", &keys, findings);
}

#[cfg(test)]
mod tests {
    use super::super::tests::{call, counts, death_of, found, judged, story};
    use super::*;
    use crate::chaos::log::{Failure, Outcome};

    fn on_key(node: u16, begin_ns: u64, op: KvOp, outcome: Outcome) -> Call {
        call(node, begin_ns, Op::Rome { key: 1, op }, Some((begin_ns + 5, outcome)))
    }

    fn scanned(begin_ns: u64, pairs: &[u64]) -> Call {
        let answer = Ok(Answer::Numbers(pairs.into()));
        call(0, begin_ns, Op::RomeScan { first: 0, end: 1 }, Some((begin_ns + 5, answer)))
    }

    #[test]
    fn a_scan_is_a_read_of_each_key() {
        let put = on_key(1, 10, KvOp::Upsert(7), Ok(Answer::Done));
        let findings = judged(judge, &story(vec![put.clone(), scanned(20, &[1, 7])]));
        assert_eq!(findings.violations, [""; 0]);
        let expected = [
            ("histories of ordered keys", KEYS),
            ("operations on ordered keys", KEYS + 1),
            ("scans of the ordered store", 1),
        ];
        assert_eq!(counts(&findings), expected);
        assert_eq!(found(judge, vec![put.clone(), scanned(20, &[])]).len(), 1, "it was there");
        assert_eq!(found(judge, vec![put.clone(), scanned(20, &[1, 8])]).len(), 1, "it was never there");
        assert_eq!(found(judge, vec![put, scanned(20, &[1, 7, 2, 9])]).len(), 1, "the second was never there");
    }

    /// It changes no key.
    #[test]
    fn a_partition_that_is_taken_is_counted() {
        let take = |outcome| call(0, 20, Op::RomeTake { partition: 0 }, Some((25, outcome)));
        let put = on_key(1, 10, KvOp::Upsert(7), Ok(Answer::Done));
        let calls = vec![put, take(Ok(Answer::Done)), take(Err(death_of(2))), scanned(30, &[1, 7])];
        let findings = judged(judge, &story(calls));
        assert_eq!(findings.violations, [""; 0]);
        assert!(counts(&findings).contains(&("partitions of the ordered store taken", 1)));
    }

    #[test]
    fn errors_say_truly_whether_a_change_happens() {
        for (has_no_effect, seen, violations) in
            [(false, &[1, 7][..], 0), (false, &[], 0), (true, &[1, 7], 1), (true, &[], 0)]
        {
            let failed = on_key(1, 10, KvOp::Upsert(7), Err(Failure { has_no_effect, ..death_of(2) }));
            assert_eq!(found(judge, vec![failed, scanned(20, seen)]).len(), violations, "{has_no_effect} {seen:?}");
        }
    }

    #[test]
    fn a_read_needs_others_where_its_partition_was_moved_since_the_last_call() {
        let get = |node, begin_ns| on_key(node, begin_ns, KvOp::Get, Ok(Answer::Found(None)));
        let take = |partition, end| call(1, 20, Op::RomeTake { partition }, end);
        let done = Some((25, Ok(Answer::Done)));
        let needs = |calls: Vec<Call>, of: &Call| may_need_others(&story(calls), of, of.begin_ns + 5);
        assert!(!needs(vec![], &get(0, 30)) && !needs(vec![take(1, done.clone())], &get(0, 30)), "it was not moved");
        assert!(needs(vec![take(0, done.clone())], &get(0, 30)) && needs(vec![take(0, None)], &get(0, 30)));
        assert!(!needs(vec![take(0, done.clone())], &get(0, 10)), "it was moved later");
        assert!(!needs(vec![take(0, done.clone()), get(0, 26)], &get(0, 40)), "this node has called it since");
        assert!(needs(vec![take(0, done.clone()), get(2, 26)], &get(0, 40)), "another one has");
        let scan = |end| call(0, 30, Op::RomeScan { first: 0, end }, None);
        assert!(needs(vec![take(1, done.clone())], &scan(2)) && !needs(vec![take(1, done)], &scan(1)));
        assert!(needs(vec![], &on_key(0, 30, KvOp::Delete, Ok(Answer::Done))), "its owner may wait for a reader");
        assert!(!needs(vec![], &call(0, 30, Op::Flush, None)));
    }

    #[test]
    fn a_change_may_wait_for_a_long_move_on_a_network() {
        const MS: u64 = 1_000_000;
        // Until the others have it at its new place.
        let take = |partition, from_ms, to_ms| {
            let done = Some((to_ms * MS - ADOPTION_NS, Ok(Answer::Done)));
            call(1, from_ms * MS, Op::RomeTake { partition }, done)
        };
        let waits = |detection_ns, calls: Vec<Call>, op| {
            let put = Call { limit_ns: 100 * MS, ..on_key(0, 2000 * MS, op, Ok(Answer::Done)) };
            waits_for_moves(&Story { detection_ns, ..story(calls) }, &put, 2100 * MS)
        };
        let put = KvOp::Upsert(7);
        assert!(waits(1, vec![take(0, 900, 2050)], put) && !waits(1, vec![take(0, 900, 2049)], put));
        assert!(waits(1, vec![take(0, 1000, 2020), take(0, 2070, 2200)], put));
        assert!(!waits(1, vec![take(0, 1000, 2030), take(0, 1010, 2040)], put), "they are at the same time");
        let unended = Call { end: None, ..take(0, 2050, 2051) };
        assert!(waits(1, vec![unended.clone()], put) && !waits(1, vec![unended.clone()], KvOp::Get), "reads go on");
        assert!(!waits(1, vec![Call { node: 2, begin_ns: 990, ..unended }], put), "node 2 is known to be dead by then");
        assert!(!waits(0, vec![take(0, 900, 2100)], put) && !waits(1, vec![take(1, 900, 2100)], put));
    }

    #[test]
    fn a_taking_ends_early_if_its_copy_was_late() {
        let take = |node, begin_ns, end| call(node, begin_ns, Op::RomeTake { partition: 0 }, end);
        let late = |calls: Vec<Call>, took_ns| is_late_copy(&story(calls), &take(0, 50, None), took_ns);
        assert!(late(vec![], LEASE_NS) && !late(vec![], LEASE_NS - 1));
        let failed = |node, has_no_effect| take(node, 10, Some((20, Err(Failure { has_no_effect, ..death_of(2) }))));
        assert!(late(vec![failed(0, false)], 1), "it has a copy of before");
        assert!(!late(vec![failed(0, true)], 1) && !late(vec![failed(1, false)], 1));
        assert!(!is_late_copy(&story(vec![]), &call(0, 50, Op::Flush, None), LEASE_NS));
    }
}
