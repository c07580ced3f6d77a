//! Each queue's history is linearizable: values are dequeued once, in order, and none is lost.

use farfield::history::queue::{QueueInput, QueueModel, QueueOutput};
use farfield::history::{Event, check};

use super::{Findings, Story};
use crate::chaos::load::QUEUE_CAPACITY;
use crate::chaos::log::{Answer, Call, Op};

fn event_of(call: &Call) -> Event<QueueInput, QueueOutput> {
    let input = match &call.op {
        Op::Enqueue { values, .. } => QueueInput::Enqueue(values.clone()),
        _ => QueueInput::Dequeue,
    };
    let output = match &call.end {
        Some((_, Ok(Answer::Changed(done)))) => Some(QueueOutput::Enqueued(*done)),
        Some((_, Ok(Answer::Found(value)))) => Some(QueueOutput::Dequeued(*value)),
        // No value arrived while it waited.
        Some((_, Err(failure))) if failure.is_timeout() && input == QueueInput::Dequeue => {
            Some(QueueOutput::Dequeued(None))
        }
        _ => None,
    };
    let return_ns = call.end.as_ref().map(|end| end.0);
    Event { client: u32::from(call.node), call_ns: call.begin_ns, return_ns, input, output }
}

pub(super) fn judge(story: &Story, findings: &mut Findings) {
    let queues = story.by(|call| match call.op {
        Op::Enqueue { queue, .. } | Op::Dequeue { queue } => Some(queue),
        _ => None,
    });
    for (queue, calls) in queues {
        findings.count("queues opened with newcomers", u64::from(story.newcomers.contains(&queue)));
        let events: Vec<_> = calls.iter().map(|call| event_of(call)).collect();
        findings.count("operations on queues", events.len() as u64);
        let dequeued = events.iter().filter(|event| matches!(event.output, Some(QueueOutput::Dequeued(Some(_)))));
        findings.count("values dequeued", dequeued.count() as u64);
        let verdict = check(&QueueModel { capacity: QUEUE_CAPACITY }, &events, Default::default());
        findings.verify("histories of queues", verdict.is_linearizable(), || {
            format!("the history of the queue on node {queue} is wrong, or cannot be judged: {verdict}")
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{call, counts, failure, found, judged, story};
    use super::*;
    use crate::chaos::log::Outcome;

    fn enqueue(value: u64, begin_ns: u64, outcome: Outcome) -> Call {
        call(1, begin_ns, Op::Enqueue { queue: 7, values: vec![value] }, Some((begin_ns + 5, outcome)))
    }

    fn dequeue(begin_ns: u64, outcome: Outcome) -> Call {
        call(0, begin_ns, Op::Dequeue { queue: 7 }, Some((begin_ns + 5, outcome)))
    }

    #[test]
    fn values_come_once_and_none_is_lost() {
        let put = call(1, 0, Op::Enqueue { queue: 0, values: vec![5] }, Some((10, Ok(Answer::Changed(true)))));
        let take = |at, value| call(0, at, Op::Dequeue { queue: 0 }, Some((at + 5, Ok(Answer::Found(value)))));
        assert_eq!(found(judge, vec![put.clone(), take(20, Some(5)), take(30, None)]), [""; 0]);
        assert_eq!(found(judge, vec![put.clone(), take(20, Some(5)), take(30, Some(5))]).len(), 1);
        assert_eq!(found(judge, vec![put.clone(), take(20, None)]).len(), 1);
        let cut = call(2, 15, Op::Dequeue { queue: 0 }, None);
        assert_eq!(found(judge, vec![put, cut, take(2000, None)]), [""; 0], "the dead may have taken it");
    }

    #[test]
    fn a_dequeue_that_timed_out_found_nothing() {
        let put = enqueue(5, 10, Ok(Answer::Changed(true)));
        let after = |variant| found(judge, vec![put.clone(), dequeue(20, Err(failure(variant, &[])))]).len();
        assert_eq!((after("Timeout"), after("PeerDead")), (1, 0), "another error may be one of a call that took it");
        assert_eq!(found(judge, vec![dequeue(0, Err(failure("Timeout", &[]))), put]), [""; 0], "it was empty");
    }

    #[test]
    fn an_enqueue_that_failed_has_happened_or_not() {
        for variant in ["Timeout", "PeerDead"] {
            let put = enqueue(5, 10, Err(failure(variant, &[])));
            for value in [None, Some(5)] {
                let calls = vec![put.clone(), dequeue(20, Ok(Answer::Found(value)))];
                assert_eq!(found(judge, calls), [""; 0], "{variant}, then {value:?}");
            }
            assert_eq!(found(judge, vec![put, dequeue(20, Ok(Answer::Found(Some(6))))]).len(), 1, "{variant}");
        }
    }

    #[test]
    fn operations_and_values_are_counted() {
        let calls = vec![
            enqueue(5, 10, Ok(Answer::Changed(true))),
            dequeue(20, Ok(Answer::Found(Some(5)))),
            dequeue(30, Ok(Answer::Found(None))),
        ];
        for (newcomers, opened) in [(vec![7], 1), (vec![8], 0)] {
            let findings = judged(judge, &Story { newcomers, ..story(calls.clone()) });
            let expected = [
                ("histories of queues", 1),
                ("operations on queues", 3),
                ("queues opened with newcomers", opened),
                ("values dequeued", 1),
            ];
            assert_eq!((counts(&findings), findings.violations.len()), (expected.to_vec(), 0));
        }
    }
}
