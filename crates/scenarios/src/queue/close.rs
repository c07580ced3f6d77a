//! A queue that is closed accepts nothing more, loses nothing, and lets nobody wait. Questions about the whole queue.

use std::rc::Rc;

use farfield_core::{NodeId, Queue, QueueOptions};

use super::client::Do::{
    Close, CutClose, Dequeue, DequeueInTime, Enqueue, EnqueueInTime, IsEmpty, Len, TryBatch, TryDequeue, TryEnqueue,
};
use super::{PLAN, Plan, one_dies, queue};
use crate::keep;
use farfield_check::Scenario;

pub(super) fn scenarios() -> Vec<Scenario> {
    vec![
        enqueue(),
        dequeue(),
        last_room(),
        full(),
        full_counted(),
        full_batch(),
        behind(),
        two(),
        around(),
        waits_for_value(),
        waits_for_room(),
        all_wait(),
        cut(),
        closer_dies(),
        others_die(),
        closed_traffic(),
        empty(),
        fills(),
        drains(),
        all_questions(),
        changes(),
    ]
}

// ---- a close beside other calls -------------------------------------------------------------------------------------

/// Either the value is accepted, and taken, or it is refused. For `queue-close-by-put`.
fn enqueue() -> Scenario {
    let plan = Plan { threads: &[(1, 1, &[TryEnqueue(1)]), (0, 1, &[Close, TryDequeue])], ..PLAN };
    queue::<u64>("queue/close-enqueue", "a close is before an enqueue, which is refused, or after it", plan)
        .small()
        .kills(&["queue-close-by-put"])
}

/// A consumer takes the values, and ends only then.
fn dequeue() -> Scenario {
    let plan = Plan { before: &[Enqueue(1)], threads: &[(1, 1, &[TryDequeue, TryDequeue]), (0, 1, &[Close])], ..PLAN };
    queue::<u64>("queue/close-dequeue", "what a closed queue has is taken", plan).small()
}

/// The last room is filled, or closed.
fn last_room() -> Scenario {
    let plan = Plan { capacity: 1, threads: &[(1, 1, &[TryEnqueue(1)]), (0, 1, &[Close])], ..PLAN };
    queue::<u64>("queue/close-last-room", "a close and an enqueue compete for the last slot", plan).small()
}

/// A full queue is closed at the slot of its oldest value. For `queue-closed-too-soon` and `queue-mark-lost`.
fn full() -> Scenario {
    let plan = Plan {
        capacity: 1,
        before: &[Enqueue(1)],
        threads: &[(1, 1, &[Close]), (0, 1, &[TryDequeue, TryEnqueue(2)])],
        ..PLAN
    };
    queue::<u64>("queue/close-full", "a full queue that is closed keeps its values, and takes no other", plan)
        .medium()
        .kills(&["queue-closed-too-soon", "queue-mark-lost"])
}

/// The slot that is marked is that of the value before, too, which still counts.
fn full_counted() -> Scenario {
    let plan = Plan { capacity: 1, threads: &[(1, 1, &[TryEnqueue(1)]), (0, 1, &[Close, Len])], ..PLAN };
    queue::<u64>("queue/close-counted", "a full queue that is closed has as many values as before", plan).small()
}

/// The mark stays in the slot while the values of a batch are taken.
fn full_batch() -> Scenario {
    let plan = Plan {
        capacity: 1,
        before: &[TryBatch(&[1, 2])],
        threads: &[(1, 1, &[Close, TryDequeue]), (0, 1, &[TryDequeue, TryDequeue, TryEnqueue(3)])],
        ..PLAN
    };
    queue::<u64>("queue/close-full-batch", "a batch in a closed queue is taken to its last value", plan)
}

/// The closer's knowledge is old: it continues to the first position that is not filled. For `queue-close-unwalked`.
fn behind() -> Scenario {
    let plan = Plan { before: &[Enqueue(1)], threads: &[(1, 1, &[Close]), (0, 1, &[TryEnqueue(2)])], ..PLAN };
    queue::<u64>("queue/close-behind", "a node that knows little of a queue closes it at its end", plan)
        .small()
        .kills(&["queue-close-unwalked"])
}

/// One of two has closed it.
fn two() -> Scenario {
    let plan = Plan { threads: &[(1, 1, &[Close]), (0, 1, &[Close, TryEnqueue(1)])], ..PLAN };
    queue::<u64>("queue/close-twice", "of two that close a queue, one has done it", plan).small()
}

/// The last slot is closed in a later lap than the first ones.
fn around() -> Scenario {
    let plan = Plan {
        before: &[Enqueue(1), Enqueue(2), Dequeue, Enqueue(3)],
        threads: &[(1, 1, &[Close, TryDequeue, TryDequeue, TryDequeue]), (0, 1, &[TryDequeue, TryEnqueue(4)])],
        ..PLAN
    };
    queue::<u64>("queue/close-around", "a closed queue is taken across the end of its slots", plan)
}

// ---- waiting --------------------------------------------------------------------------------------------------------

/// A call that times out although nothing happens meanwhile hangs.
fn waits_for_value() -> Scenario {
    let plan = Plan { threads: &[(1, 1, &[Dequeue]), (0, 1, &[Close])], ..PLAN };
    queue::<u64>("queue/close-waits-for-value", "a dequeue that waits ends when the queue is closed", plan).small()
}

fn waits_for_room() -> Scenario {
    let plan = Plan { capacity: 1, before: &[Enqueue(1)], threads: &[(1, 1, &[Enqueue(2)]), (0, 1, &[Close])], ..PLAN };
    queue::<u64>("queue/close-waits-for-room", "an enqueue that waits ends when the queue is closed", plan).small()
}

/// Of two nodes each, and one on the closer's.
fn all_wait() -> Scenario {
    let plan = Plan {
        nodes: 3,
        capacity: 1,
        threads: &[
            (1, 2, &[Enqueue(1), Enqueue(2)]),
            (2, 1, &[Dequeue, Dequeue, Dequeue]),
            (0, 1, &[Dequeue]),
            (0, 1, &[Close]),
        ],
        ..PLAN
    };
    queue::<u64>("queue/close-all-wait", "all calls of all nodes end when the queue is closed", plan)
}

// ---- cut short ------------------------------------------------------------------------------------------------------

/// A close that is dropped at any moment may take effect later. The next one makes it certain.
fn cut() -> Scenario {
    let plan = Plan {
        threads: &[(1, 1, &[CutClose, TryEnqueue(1), Close]), (0, 1, &[TryEnqueue(2), TryDequeue, TryEnqueue(3)])],
        ..PLAN
    };
    queue::<u64>("queue/close-cut", "a close that is dropped has happened, or not, or happens later", plan)
}

/// The node that closes the queue dies, and its compare-and-swap may land later. Others enqueue, dequeue and close.
fn closer_dies() -> Scenario {
    let plan = Plan {
        nodes: 3,
        capacity: 1,
        threads: &[
            (1, 1, &[EnqueueInTime(1), Close]),
            (2, 1, &[EnqueueInTime(2), DequeueInTime, TryDequeue]),
            (0, 1, &[DequeueInTime, TryEnqueue(3), TryDequeue, Close, TryEnqueue(4)]),
        ],
        ..PLAN
    };
    one_dies::<u64>("queue/closer-dies", "a node that dies while it closes a queue has closed it, or not", plan)
}

/// A producer and consumer dies beside a close.
fn others_die() -> Scenario {
    let plan = Plan {
        nodes: 3,
        capacity: 1,
        threads: &[
            (1, 1, &[EnqueueInTime(1), DequeueInTime, EnqueueInTime(2)]),
            (2, 1, &[Close, TryEnqueue(3), TryDequeue]),
            (0, 1, &[DequeueInTime, TryEnqueue(4), TryDequeue]),
        ],
        ..PLAN
    };
    one_dies::<[u64; 2]>("queue/close-others-die", "a node that dies beside a close keeps nobody waiting", plan)
}

/// Three nodes, values of two words, a wrap or two.
fn closed_traffic() -> Scenario {
    let plan = Plan {
        nodes: 3,
        enqueues: 2,
        threads: &[
            (0, 2, &[EnqueueInTime(1), TryDequeue, TryBatch(&[2, 3]), Close, TryDequeue]),
            (1, 2, &[EnqueueInTime(4), DequeueInTime, TryEnqueue(5), IsEmpty, DequeueInTime]),
            (2, 1, &[TryDequeue, TryEnqueue(6), Close, TryDequeue, TryEnqueue(7)]),
        ],
        ..PLAN
    };
    queue::<[u64; 2]>("queue/close-traffic", "a close among the calls of many is one of them", plan)
}

// ---- questions ------------------------------------------------------------------------------------------------------

/// An answer is right at a moment of the call, also in a closed queue.
fn empty() -> Scenario {
    let plan = Plan {
        capacity: 1,
        before: &[Enqueue(1)],
        threads: &[(1, 1, &[TryDequeue, TryEnqueue(2), Close]), (0, 1, &[IsEmpty, IsEmpty])],
        ..PLAN
    };
    queue::<u64>("queue/is-empty", "whether a queue is empty is right at a moment of the call", plan)
}

/// The length of a queue that only grows, with a batch. For `queue-len-by-hints`.
fn fills() -> Scenario {
    let plan = Plan { before: &[TryBatch(&[1, 2])], threads: &[(1, 1, &[TryEnqueue(3)]), (0, 1, &[Len])], ..PLAN };
    queue::<u64>("queue/len-fills", "the length of a queue that fills is right at a moment of the call", plan)
        .small()
        .kills(&["queue-len-by-hints"])
}

/// The length of a queue that only shrinks, from the last slot to the first.
fn drains() -> Scenario {
    let plan = Plan {
        before: &[Enqueue(1), Dequeue, TryBatch(&[2, 3]), Enqueue(4)],
        threads: &[(1, 1, &[TryDequeue]), (0, 1, &[Len])],
        ..PLAN
    };
    queue::<u64>("queue/len-drains", "the length of a queue that drains is right at a moment of the call", plan).small()
}

/// The same, and the queue is closed. All of both calls' dequeues may lie between two looks of a length.
fn all_questions() -> Scenario {
    let plan = Plan {
        before: &[Enqueue(1), Dequeue, TryBatch(&[2, 3]), Enqueue(4)],
        threads: &[(1, 1, &[TryDequeue, Close, TryDequeue, TryDequeue]), (0, 1, &[Len, IsEmpty, Len, IsEmpty])],
        ..PLAN
    };
    queue::<u64>("queue/questions", "a queue is asked while it is closed and taken", plan)
}

/// Value 2 is there all the time, 1 at first and 3 at last: each of these two may be counted.
fn changes() -> Scenario {
    let about = "the length of a queue that changes counts what is there all the time, and no more than could be";
    Scenario::new("queue/len-changes", about, 2, |cluster| {
        let options = QueueOptions::new(NodeId(0), 2);
        let open = move |node: &farfield_core::Node| Queue::<u64>::open(node, "q", options.clone()).map(Rc::new);
        let queues = keep(cluster, cluster.on_each(open)?);
        let ep = cluster.node(0).endpoint()?;
        ep.block_on(async {
            queues[0].enqueue(&ep, &1).await?;
            queues[0].enqueue(&ep, &2).await
        })?;
        let (asks, changes) = (Rc::clone(&queues[0]), Rc::clone(&queues[1]));
        cluster.thread(1, "changes", move |ep| {
            ep.block_on(async {
                assert_eq!(changes.dequeue(ep).await?, 1);
                changes.enqueue(ep, &3).await
            })
        });
        cluster.thread(0, "asks", move |ep| {
            let values = ep.block_on(asks.len(ep))?;
            assert!((1..=3).contains(&values), "{values} values");
            Ok(())
        });
        Ok(())
    })
    .medium()
}
