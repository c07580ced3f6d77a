//! Each key's history in the ordered store is linearizable; its scans are reads of all keys of their partitions. That the pairs of a scan are of one
//! instant is seen by the load.

use std::collections::BTreeMap;

use farfield::history::Event;
use farfield::history::kv::{KvEvent, KvInput, KvOutput};

use super::swarm::{event_of, judge_keys};
use super::{Findings, Story};
use crate::chaos::load::rome::{KEYS, first_key};
use crate::chaos::log::{Answer, Op};

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
    use crate::chaos::log::{Call, Failure, KvOp, Outcome};

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

    /// No change of the keys comes of it.
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
}
