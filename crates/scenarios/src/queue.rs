//! The queue is linearizable under any concurrent operations, even if some of them are cut short.
//!
//! Threads follow scripts and record their calls in a history. Its clock is the log. At the end the scenario empties
//! the queue, which is a part of the history. So each of these bugs shows as a history that no queue has: a value that
//! is lost, dequeued twice, torn, or out of order; a queue that is wrongly full or empty.

mod client;
mod close;

use std::rc::Rc;
use std::time::Duration;

use farfield_core::{NodeId, Queue, QueueOptions, Result};

use self::client::Do::{
    CutDequeue, CutEnqueue, Dequeue, DequeueInTime, Enqueue, EnqueueInTime, TryBatch, TryDequeue, TryEnqueue,
};
use self::client::Holds;
pub(super) use self::client::{Client, Do, assert_linearizable};
use super::keep;
use farfield_check::{Cluster, Faults, Scenario, crashed};

pub(super) fn scenarios() -> Vec<Scenario> {
    let mut all = vec![
        handed(),
        two_words(),
        producers(),
        no_gap(),
        last_room(),
        consumers(),
        around(),
        around_two(),
        freed(),
        full(),
        empty(),
        cells(),
        laps(),
        spares(),
        batch(),
        batch_full(),
        behind(),
        window(),
        crossed(),
        traffic(),
        dropped_enqueue(),
        dropped_dequeue(),
        timeout(),
        producer_dies(),
        batch_dies(),
        consumer_dies(),
        laps_at_home(),
        rewritten(),
        home_dies(),
    ];
    all.extend(close::scenarios());
    all
}

/// The calls on a queue that is stored on node 0.
#[derive(Clone, Copy)]
struct Plan {
    nodes: usize,
    capacity: usize,
    /// Enqueues of one node that may be in flight at once.
    enqueues: usize,
    /// The calls of node 0 before the start.
    before: &'static [Do<'static>],
    /// The threads: node, window and calls of each. With a window of 2, two operations are in flight at once.
    threads: &'static [(usize, usize, &'static [Do<'static>])],
}

const PLAN: Plan = Plan { nodes: 2, capacity: 2, enqueues: 1, before: &[], threads: &[] };

/// Runs a plan with values of a type.
fn queue<V: Holds>(name: &str, about: &str, plan: Plan) -> Scenario {
    Scenario::new(name, about, plan.nodes, move |cluster| run::<V>(cluster, plan))
}

fn run<V: Holds>(cluster: &Cluster, plan: Plan) -> Result<()> {
    let options =
        QueueOptions { batch_max: 2, enqueues_per_node: plan.enqueues, ..QueueOptions::new(NodeId(0), plan.capacity) };
    let queues = cluster.on_each(move |node| Queue::<V>::open(node, "q", options.clone()).map(Rc::new))?;
    let queues = keep(cluster, queues);
    let log = cluster.log();
    let client = |id: usize, node: usize| Client {
        id: id as u32,
        queue: Rc::clone(&queues[node]),
        log: log.clone(),
        may_lose_home: false,
    };
    let (first, ep) = (client(0, 0), cluster.node(0).endpoint()?);
    ep.block_on(async {
        for what in plan.before {
            first.follow(&ep, *what).await?;
        }
        Ok::<(), farfield_core::Error>(())
    })?;
    drop(ep);
    for (number, (node, window, script)) in plan.threads.iter().enumerate() {
        let client = client(number + 1, *node);
        cluster.thread(*node, "client", move |ep| {
            ep.set_timeout(Duration::from_millis(50));
            let mut ended = Ok(());
            let calls = script.iter().map(|what| client.follow(ep, *what));
            ep.run_window(*window, calls, |result| ended = ended.clone().and(result.map(drop)));
            ended
        });
    }
    let (last, node) = (client(plan.threads.len() + 1, 0), cluster.node(0));
    cluster.at_end(move || {
        let ep = node.endpoint()?;
        while ep.block_on(last.follow(&ep, TryDequeue))?.is_some() {}
        assert_linearizable(plan.capacity, last.log.take());
        Ok(())
    });
    Ok(())
}

// ---- one producer, one consumer -----------------------------------------------------------------------------------

/// The `NRW` of a value before the `NAW` that publishes it. For `queue-published-first`.
fn handed() -> Scenario {
    let plan = Plan { threads: &[(1, 1, &[Enqueue(1)]), (0, 1, &[TryDequeue, TryDequeue])], ..PLAN };
    queue::<u64>("queue/handed", "a value is seen whole or not at all", plan).small().kills(&["queue-published-first"])
}

/// The same for a value that is put and got word by word, with the consumer on another node.
fn two_words() -> Scenario {
    let plan = Plan { threads: &[(0, 1, &[Enqueue(1)]), (1, 1, &[TryDequeue])], ..PLAN };
    queue::<[u64; 2]>("queue/two-words", "a value of two words is seen whole or not at all", plan).small()
}

/// Each value waits for the previous one. For `queue-lap-kept`.
fn around() -> Scenario {
    let plan = Plan { capacity: 1, threads: &[(1, 1, &[Enqueue(1), Enqueue(2)]), (0, 1, &[Dequeue, Dequeue])], ..PLAN };
    queue::<u64>("queue/around", "a queue of one slot hands value after value", plan).kills(&["queue-lap-kept"])
}

/// From the last slot to the first one.
fn around_two() -> Scenario {
    let plan = Plan {
        before: &[Enqueue(1), Dequeue],
        threads: &[(1, 1, &[TryEnqueue(2), TryEnqueue(3)]), (0, 1, &[TryDequeue])],
        ..PLAN
    };
    queue::<u64>("queue/around-two", "slots are used again in their order", plan).medium()
}

/// An enqueued value is available at once, even while the hint does not show it. For `queue-empty-by-hints`.
fn empty() -> Scenario {
    let plan = Plan { threads: &[(1, 1, &[Enqueue(1)]), (0, 1, &[TryDequeue])], ..PLAN };
    queue::<u64>("queue/empty", "empty is said of an empty queue only", plan).small().kills(&["queue-empty-by-hints"])
}

/// An enqueue reports no room only if the queue is full at some moment of the call. Taking a value makes room at once.
fn full() -> Scenario {
    let plan = Plan {
        capacity: 1,
        before: &[Enqueue(1)],
        threads: &[(1, 1, &[TryEnqueue(2)]), (0, 1, &[TryDequeue])],
        ..PLAN
    };
    queue::<u64>("queue/full", "full is said of a full queue only", plan).small()
}

/// The `NRR` of a value before the `NAW` that frees its cell, which node 0 gets in exchange for another and writes to
/// again. For `queue-freed-unread`.
fn freed() -> Scenario {
    let plan = Plan {
        capacity: 1,
        before: &[Enqueue(1)],
        threads: &[(1, 1, &[TryDequeue]), (0, 1, &[Enqueue(2), Dequeue, Enqueue(3)])],
        ..PLAN
    };
    queue::<u64>("queue/freed", "a cell is used again only when its value has been read", plan)
        .medium()
        .kills(&["queue-freed-unread"])
}

/// Every cell belongs to a slot or is spare, never both. For `queue-cell-kept`.
fn cells() -> Scenario {
    let plan = Plan { nodes: 1, threads: &[(0, 1, &[Enqueue(1), Enqueue(2), Dequeue, Enqueue(3), Dequeue])], ..PLAN };
    queue::<u64>("queue/cells", "the values of one producer do not overwrite each other", plan)
        .small()
        .kills(&["queue-cell-kept"])
}

/// Several laps of the slots: each cell returns to its producer by way of all slots.
fn laps() -> Scenario {
    let plan = Plan { threads: &[(1, 1, LAPS)], ..PLAN };
    queue::<[u64; 2]>("queue/laps", "a cell has one value at a time, lap after lap", plan).small()
}

/// The same on the home node: its spare cells follow those of the slots.
fn laps_at_home() -> Scenario {
    let plan = Plan { threads: &[(0, 1, LAPS)], ..PLAN };
    queue::<[u64; 2]>("queue/laps-at-home", "a cell of the home has one value at a time, lap after lap", plan)
}

/// A value that has been taken is put no more: its cell may be another producer's.
fn rewritten() -> Scenario {
    let plan = Plan {
        capacity: 1,
        threads: &[(1, 1, &[Enqueue(1)]), (0, 1, &[Dequeue, Enqueue(2), Dequeue, Enqueue(3), Dequeue])],
        ..PLAN
    };
    queue::<u64>("queue/rewritten", "a cell that goes from node to node keeps its new value", plan)
}

const LAPS: &[Do<'static>] = &[
    Enqueue(1),
    Enqueue(2),
    Dequeue,
    Enqueue(3),
    Dequeue,
    Enqueue(4),
    TryEnqueue(5),
    Dequeue,
    Enqueue(6),
    Dequeue,
    Dequeue,
];

/// Two threads of a node enqueue at once, each from a spare cell of its own.
fn spares() -> Scenario {
    let plan = Plan {
        enqueues: 2,
        threads: &[(1, 1, &[Enqueue(1)]), (1, 1, &[Enqueue(2)]), (0, 1, &[TryDequeue, TryDequeue])],
        ..PLAN
    };
    queue::<[u64; 2]>("queue/spares", "two threads of a node write to different cells", plan)
}

// ---- several ------------------------------------------------------------------------------------------------------

/// Two producers fill one position: one of them takes the next instead.
fn producers() -> Scenario {
    let plan = Plan { threads: &[(1, 1, &[Enqueue(1)]), (0, 1, &[Enqueue(2)])], ..PLAN };
    queue::<u64>("queue/producers", "two producers fill one position after the other", plan).small()
}

/// No producer fills a position before the previous one is filled. For `queue-hint-early`.
fn no_gap() -> Scenario {
    let plan = Plan { threads: &[(1, 1, &[Enqueue(1)]), (0, 1, &[Enqueue(2), TryDequeue])], ..PLAN };
    queue::<u64>("queue/no-gap", "a value that was enqueued is never behind one that is not there yet", plan)
        .kills(&["queue-hint-early"])
}

/// Two producers compete for one slot.
fn last_room() -> Scenario {
    let plan = Plan { capacity: 1, threads: &[(1, 1, &[TryEnqueue(1)]), (0, 1, &[TryEnqueue(2)])], ..PLAN };
    queue::<u64>("queue/last-room", "of two producers one gets the last room", plan).small()
}

/// Two consumers take one value: one of them takes the next, or finds nothing. For `queue-take-unchecked`.
fn consumers() -> Scenario {
    let plan = Plan { before: &[Enqueue(1)], threads: &[(1, 1, &[TryDequeue]), (0, 1, &[TryDequeue])], ..PLAN };
    queue::<u64>("queue/consumers", "a value goes to one of two consumers", plan)
        .small()
        .kills(&["queue-take-unchecked"])
}

/// A batch is published by one compare-and-swap, and taken value by value.
fn batch() -> Scenario {
    let plan = Plan { threads: &[(1, 1, &[TryBatch(&[1, 2])]), (0, 1, &[TryDequeue, TryDequeue])], ..PLAN };
    queue::<u64>("queue/batch", "the values of a batch come together, in order", plan).small()
}

/// The slot of a batch is free when its last value is taken, by any consumer.
fn batch_full() -> Scenario {
    let plan = Plan {
        nodes: 3,
        capacity: 1,
        before: &[TryBatch(&[1, 2])],
        threads: &[(1, 1, &[Dequeue]), (0, 1, &[TryDequeue]), (2, 1, &[Enqueue(3)])],
        ..PLAN
    };
    queue::<u64>("queue/batch-full", "a batch keeps its slot until its last value is taken", plan)
}

/// A node's knowledge is several laps old: it catches up by the hint, or by the slot's lap.
fn behind() -> Scenario {
    let plan = Plan {
        capacity: 1,
        before: &[Enqueue(1), Dequeue, Enqueue(2), Dequeue, Enqueue(3)],
        threads: &[(1, 1, &[TryDequeue, TryEnqueue(4)]), (0, 1, &[TryDequeue])],
        ..PLAN
    };
    queue::<u64>("queue/behind", "a node that has been away for laps finds its place", plan)
}

/// Operations of one thread share their node's one spare cell: one waits for the other.
fn window() -> Scenario {
    let plan = Plan { threads: &[(1, 2, &[Enqueue(1), Enqueue(2)]), (0, 1, &[Dequeue])], ..PLAN };
    queue::<u64>("queue/window", "enqueues of one thread take turns with the node's spare cell", plan)
}

/// Each thread enqueues and dequeues.
fn crossed() -> Scenario {
    let plan = Plan { capacity: 1, threads: &[(1, 1, &[Enqueue(1), Dequeue]), (0, 1, &[Enqueue(2), Dequeue])], ..PLAN };
    queue::<u64>("queue/crossed", "two that enqueue and dequeue never wait for each other in vain", plan)
}

/// Three nodes, values of two words, a wrap or two.
fn traffic() -> Scenario {
    let plan = Plan {
        nodes: 3,
        enqueues: 2,
        threads: &[
            (0, 2, &[EnqueueInTime(1), TryDequeue, TryBatch(&[2, 3]), TryDequeue]),
            (1, 2, &[EnqueueInTime(4), DequeueInTime, TryEnqueue(5), DequeueInTime]),
            (2, 1, &[TryDequeue, TryEnqueue(6), TryDequeue, TryEnqueue(7)]),
        ],
        ..PLAN
    };
    queue::<[u64; 2]>("queue/traffic", "what many do can be explained by one after the other", plan)
}

// ---- cut short ----------------------------------------------------------------------------------------------------

/// An enqueue that is dropped between any two of its polls has happened or not. The slot determines which cell is
/// spare. For `queue-dropped-not-settled`.
fn dropped_enqueue() -> Scenario {
    let plan = Plan { threads: &[(1, 1, &[CutEnqueue(1), Enqueue(2)]), (0, 1, &[Dequeue])], ..PLAN };
    queue::<u64>("queue/dropped-enqueue", "an enqueue that is dropped at any moment spoils no other", plan)
        .kills(&["queue-dropped-not-settled"])
}

/// A dequeue that is dropped between any two of its polls has taken nothing, or its value is salvaged. For
/// `queue-taken-lost`.
fn dropped_dequeue() -> Scenario {
    let plan = Plan {
        before: &[Enqueue(1)],
        threads: &[(1, 1, &[CutDequeue, TryDequeue]), (0, 1, &[Enqueue(2), TryDequeue])],
        ..PLAN
    };
    queue::<u64>("queue/dropped-dequeue", "a dequeue that is dropped at any moment loses nothing", plan)
        .kills(&["queue-taken-lost"])
}

/// A call that times out at any moment, even early, has no effect.
fn timeout() -> Scenario {
    let plan = Plan {
        capacity: 1,
        threads: &[
            (1, 1, &[EnqueueInTime(1), EnqueueInTime(2), DequeueInTime]),
            (0, 1, &[DequeueInTime, EnqueueInTime(3), DequeueInTime]),
        ],
        ..PLAN
    };
    queue::<u64>("queue/timeout", "a call that times out has done nothing", plan).early_timeouts()
}

// ---- deaths -------------------------------------------------------------------------------------------------------

/// Node 1 may die at any moment. Its current call has happened or not; no other thread waits for it.
fn one_dies<V: Holds>(name: &str, about: &str, plan: Plan) -> Scenario {
    queue::<V>(name, about, plan).faults(Faults::new().crashes(1).of([1]))
}

/// Its put may land without the operation that publishes it, and both may land long after.
fn producer_dies() -> Scenario {
    let plan = Plan {
        nodes: 3,
        capacity: 1,
        threads: &[
            (1, 1, &[EnqueueInTime(1), EnqueueInTime(2)]),
            (2, 1, &[EnqueueInTime(3), TryDequeue]),
            (0, 1, &[DequeueInTime, EnqueueInTime(4), DequeueInTime]),
        ],
        ..PLAN
    };
    one_dies::<[u64; 2]>("queue/producer-dies", "a producer that dies has enqueued a whole value, or nothing", plan)
}

/// Either the whole batch is enqueued or nothing; others compete for the same position at that moment.
fn batch_dies() -> Scenario {
    let plan = Plan {
        nodes: 3,
        threads: &[
            (1, 1, &[TryBatch(&[1, 2]), TryBatch(&[3, 4])]),
            (2, 1, &[TryEnqueue(5), TryDequeue]),
            (0, 1, &[DequeueInTime, TryDequeue, TryDequeue]),
        ],
        ..PLAN
    };
    one_dies::<u64>("queue/batch-dies", "of a batch whose producer dies, all is there, or nothing", plan)
}

/// Its compare-and-swap takes a value or not, and may land long after its death.
fn consumer_dies() -> Scenario {
    let plan = Plan {
        nodes: 3,
        before: &[Enqueue(1), Enqueue(2)],
        threads: &[
            (1, 1, &[DequeueInTime, DequeueInTime]),
            (2, 1, &[EnqueueInTime(3), DequeueInTime]),
            (0, 1, &[DequeueInTime, EnqueueInTime(4)]),
        ],
        ..PLAN
    };
    one_dies::<[u64; 2]>("queue/consumer-dies", "a consumer that dies takes one value with it, or none", plan)
}

/// A call that waits while the home dies learns of that.
fn home_dies() -> Scenario {
    Scenario::new(
        "queue/home-dies",
        "a call that waits at a queue whose home dies is told which node it is",
        2,
        |cluster| {
            let options = QueueOptions::new(NodeId(1), 1);
            let queues = keep(cluster, cluster.on_each(move |node| Queue::<u64>::open(node, "q", options.clone()))?);
            for node in 0..2 {
                let queues = queues.clone();
                cluster.thread(node, "takes", move |ep| {
                    ep.set_timeout(Duration::from_millis(100));
                    let deadline = ep.deadline();
                    match ep.block_on(queues[node].dequeue_deadline(ep, deadline)) {
                        Ok(value) => panic!("{value} is in no queue"),
                        Err(error) if error.is_timeout() => assert!(ep.now() >= deadline, "{error}"),
                        Err(error) => {
                            assert_eq!((crashed(1), error.is_gone(), error.node()), (true, true, Some(NodeId(1))))
                        }
                    }
                    Ok(())
                });
            }
            Ok(())
        },
    )
    .faults(Faults::new().crashes(1).of([1]))
}
