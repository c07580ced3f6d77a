//! Each key's history in the replicated store is linearizable, whichever memory nodes have died. That no call fails
//! while most of them live is judged with the [errors](super::errors).

use std::collections::BTreeMap;

use farfield::history::Event;
use farfield::history::check;
use farfield::history::kv::{KvEvent, KvInput, KvModel, KvOutput};

use super::{Findings, Story};
use crate::chaos::load::memory_of;
use crate::chaos::log::{Answer, Call, KvOp, Op};

impl Story {
    /// The memory nodes of the replicated store.
    fn memory(&self) -> Vec<u16> {
        memory_of(&self.members, self.homes[0])
    }

    /// Whether so many nodes are most of the memory nodes of the replicated store.
    pub(super) fn are_most_memory(&self, nodes: &[u16]) -> bool {
        let memory = self.memory();
        2 * memory.iter().filter(|node| nodes.contains(node)).count() > memory.len()
    }
}

/// A call on a key. One that failed may have happened, or may still.
pub(super) fn event_of(call: &Call, op: KvOp) -> KvEvent {
    let input = match op {
        KvOp::Get => KvInput::Get,
        KvOp::Insert(value) => KvInput::Insert(value),
        KvOp::Update(value) | KvOp::UpdateIf(value) => KvInput::Update(value),
        KvOp::Upsert(value) => KvInput::Upsert(value),
        KvOp::Delete => KvInput::Delete,
    };
    let success = call.success().map(|(at_ns, answer)| match answer {
        Answer::Found(value) => (at_ns, KvOutput::Found(*value)),
        Answer::Changed(done) => (at_ns, KvOutput::Succeeded(*done)),
        _ => (at_ns, KvOutput::Stored),
    });
    let (return_ns, output) = success.unzip();
    Event { client: u32::from(call.node), call_ns: call.begin_ns, return_ns, input, output }
}

/// Whether the history of each key of a store of this kind is linearizable.
pub(super) fn judge_keys(kind: &str, keys: &BTreeMap<u64, Vec<KvEvent>>, findings: &mut Findings) {
    for (key, events) in keys {
        findings.count(&format!("operations on {kind} keys"), events.len() as u64);
        let verdict = check(&KvModel, events, Default::default());
        findings.verify(&format!("histories of {kind} keys"), verdict.is_linearizable(), || {
            format!("the history of key {key:#x} of the {kind} store is wrong, or cannot be judged: {verdict}")
        });
    }
}

/// An update that found no majority is ended by the writer's next one.
fn events_of(call: &Call, op: KvOp) -> Vec<KvEvent> {
    let event = event_of(call, op);
    match (op, event.output) {
        // The old value was there, and the new one after that. (Whether another one was between them is not judged.)
        (KvOp::UpdateIf(_), Some(KvOutput::Found(Some(_)))) => {
            let update = Event { output: Some(KvOutput::Succeeded(true)), ..event };
            vec![Event { input: KvInput::Get, ..event }, update]
        }
        // The value did not pass the test, or there was none.
        (KvOp::UpdateIf(_), Some(_)) => Vec::new(),
        _ => vec![event],
    }
}

pub(super) fn judge(story: &Story, findings: &mut Findings) {
    let mut keys: BTreeMap<u64, Vec<KvEvent>> = BTreeMap::new();
    for call in &story.calls {
        if let Op::Swarm { key, op } = call.op {
            keys.entry(key).or_default().extend(events_of(call, op));
        }
    }
    judge_keys("replicated", &keys, findings);
}

#[cfg(test)]
mod tests {
    use super::super::tests::{call, counts, failure, found, judged, story};
    use super::*;
    use crate::chaos::log::Outcome;

    fn on_key(node: u16, begin_ns: u64, op: KvOp, outcome: Outcome) -> Call {
        call(node, begin_ns, Op::Swarm { key: 1, op }, Some((begin_ns + 5, outcome)))
    }

    fn got(begin_ns: u64, found: Option<u64>) -> Call {
        on_key(0, begin_ns, KvOp::Get, Ok(Answer::Found(found)))
    }

    #[test]
    fn a_death_takes_no_value_with_it() {
        let inserted = on_key(2, 10, KvOp::Insert(7), Ok(Answer::Changed(true)));
        let findings = judged(judge, &story(vec![inserted.clone(), got(1100, Some(7))]));
        assert_eq!((counts(&findings)[0], findings.violations.len()), (("histories of replicated keys", 1), 0));
        assert_eq!(found(judge, vec![inserted.clone(), got(1100, None)]).len(), 1);
        assert_eq!(found(judge, vec![inserted.clone(), got(1100, Some(8))]).len(), 1, "nobody has written it");
        let deleted = on_key(1, 20, KvOp::Delete, Ok(Answer::Done));
        assert_eq!(found(judge, vec![inserted.clone(), deleted.clone(), got(1100, None)]), [""; 0]);
        assert_eq!(found(judge, vec![inserted, deleted, got(1100, Some(7))]).len(), 1);
    }

    #[test]
    fn a_conditional_update_replaces_the_current_value() {
        let inserted = on_key(2, 10, KvOp::Insert(6), Ok(Answer::Changed(true)));
        let replaces = |found| on_key(1, 1100, KvOp::UpdateIf(7), Ok(Answer::Found(found)));
        assert_eq!(found(judge, vec![inserted.clone(), replaces(Some(6)), got(1200, Some(7))]), [""; 0]);
        assert_eq!(found(judge, vec![inserted.clone(), replaces(Some(6)), got(1200, Some(6))]).len(), 1);
        assert_eq!(found(judge, vec![inserted.clone(), replaces(Some(8)), got(1200, Some(7))]).len(), 1);
        assert_eq!(found(judge, vec![inserted.clone(), replaces(None), got(1200, Some(6))]), [""; 0]);
        assert_eq!(found(judge, vec![inserted, replaces(None), got(1200, Some(7))]).len(), 1);
    }

    #[test]
    fn a_failed_call_may_take_effect_later() {
        let inserted = on_key(0, 10, KvOp::Insert(7), Ok(Answer::Changed(true)));
        let failed = on_key(1, 1100, KvOp::Update(8), Err(failure("NoMajority", &[0, 2])));
        for seen in [7, 8] {
            assert_eq!(found(judge, vec![inserted.clone(), failed.clone(), got(1200, Some(seen))]), [""; 0]);
        }
        let stuck = call(2, 900, Op::Swarm { key: 1, op: KvOp::Upsert(9) }, None);
        assert_eq!(found(judge, vec![inserted, stuck, got(1200, Some(7)), got(1300, Some(9))]), [""; 0]);
    }

    #[test]
    fn most_of_the_memory_nodes_are_two_of_three() {
        let story = story(Vec::new());
        assert!(story.are_most_memory(&[0, 2]) && !story.are_most_memory(&[2]) && !story.are_most_memory(&[3, 4]));
        let five = Story { members: (0..6).collect(), homes: vec![2], ..story };
        assert!(five.are_most_memory(&[2, 3, 4]) && !five.are_most_memory(&[1, 2, 3]), "{:?}", five.memory());
    }
}
