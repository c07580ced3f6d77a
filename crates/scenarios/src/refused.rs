//! Operations that are refused at posting: they leave no hole and no duplicate, and no thread waits for them in vain.
//!
//! A thread uses its own endpoint, and one of its operations is refused. It posts again in the same order as before,
//! and so it is searched in the same way.

use farfield_core::fabric::EndpointOptions;
use farfield_core::fabric::fault::{Faults, inject};
use farfield_core::objects::owned_var::TearCheck;
use farfield_core::{
    Barrier, Endpoint, ErrorKind, NodeId, OwnedVar, Queue, QueueOptions, Result, RingBuffer, RingOptions,
};

pub(super) mod anywhere;
mod release;

use super::keep;
use farfield_check::{Cluster, Scenario, choose};

pub(super) fn scenarios() -> Vec<Scenario> {
    let messages = [copy(), made_up(), message(), acknowledgement()];
    let one_each = messages.into_iter().chain([value(), arrival(), values(), published()]).collect();
    [one_each, release::scenarios(), anywhere::scenarios()].concat()
}

/// An endpoint like another, but with operations that are refused on command.
fn faulty(ep: &Endpoint) -> Result<(Endpoint, Faults)> {
    let faults = Faults::default();
    let fabric = inject(ep.transport().clone(), faults.clone());
    Ok((Endpoint::open(fabric, EndpointOptions::default())?, faults))
}

/// A ring of the least capacity from node 0.
fn ring(cluster: &Cluster, readers: &'static [u16]) -> Result<std::rc::Rc<Vec<RingBuffer>>> {
    let options = RingOptions::new(NodeId(0), readers.iter().map(|node| (NodeId(*node), 1)), 64);
    Ok(keep(cluster, cluster.on_each(move |node| RingBuffer::open(node, "r", options.clone()))?))
}

/// Each of the two nodes receives a message of so many sevens.
fn readers(cluster: &Cluster, rings: &[RingBuffer], bytes: usize) -> Result<()> {
    for (node, ring) in rings.iter().enumerate() {
        let mut receiver = ring.receiver()?;
        cluster.thread(node, "reader", move |ep| {
            let mut message = Vec::new();
            ep.block_on(receiver.recv(ep, &mut message))?;
            assert_eq!(message, vec![7; bytes], "a message that was not sent has been received");
            Ok(())
        });
    }
    Ok(())
}

/// For a wait: a message that was sent, or an error.
fn is_sent(sent: Result<bool>) -> Option<Result<()>> {
    sent.map(|sent| sent.then_some(())).transpose()
}

/// The put of a message to one node is refused, and its head is not put either. The thread that waits for the readers
/// puts both, in the same order: NRW → NRW against CR → CR, once more. For ring-head-over-hole, ring-repair-head-first,
/// ring-behind-forgotten.
fn copy() -> Scenario {
    Scenario::new("ring/refused-copy", "a node that was refused a message gets it, whole", 2, |cluster| {
        let rings = ring(cluster, &[0, 1])?;
        readers(cluster, &rings, 8)?;
        let mut sender = rings[0].sender()?;
        cluster.thread(0, "writer", move |ep| {
            let (ep, faults) = faulty(ep)?;
            faults.fail_after(0);
            assert!(sender.try_send(&ep, &[7; 8])?, "one of the readers has it");
            ep.block_on(sender.wait_acknowledged(&ep, sender.position(), ep.deadline()))
        });
        Ok(())
    })
    .small()
    .kills(&["ring-head-over-hole", "ring-repair-head-first", "ring-behind-forgotten"])
}

/// The same for each call by which a writer may go on: another message, a wait for room in a full ring, a look at the
/// acknowledgements or a wait for them, a flush. Until then the node is named as one that lacks a message.
fn made_up() -> Scenario {
    Scenario::new("ring/made-up", "any later call of a writer puts what a node was refused", 2, |cluster| {
        let rings = ring(cluster, &[0, 1])?;
        readers(cluster, &rings, 40)?;
        let mut sender = rings[0].sender()?;
        cluster.thread(0, "writer", move |ep| {
            let (ep, faults) = faulty(ep)?;
            faults.cut(NodeId(1), true);
            assert!(sender.try_send(&ep, &[7; 40])?, "one of the readers has it");
            let missed = sender.try_flush(&ep).expect_err("the other node lacks it");
            assert!(matches!(missed.kind(), ErrorKind::Missed { nodes } if nodes.len() == 1), "{missed}");
            assert_eq!((missed.node(), sender.is_behind()), (Some(NodeId(1)), true));
            faults.cut(NodeId(1), false);
            let (sent, soon) = (sender.position(), ep.deadline());
            match choose(5) {
                0 => ep.block_on(sender.send(&ep, &[8; 8]))?,
                1 => ep.block_on(ep.wait_until(soon, || is_sent(sender.try_send(&ep, &[8; 24]))))??,
                2 => ep.block_on(ep.wait_until(soon, || sender.is_acknowledged(&ep, sent).then_some(())))?,
                // All have read up to there, so nothing is waited for.
                3 => ep.block_on(sender.wait_acknowledged(&ep, 0, soon))?,
                _ => ep.block_on(sender.flush(&ep))?,
            }
            assert!(!sender.is_behind(), "every node has been put all");
            Ok(())
        });
        Ok(())
    })
}

/// The put of a value to the other node is refused behind its lead, and may be refused again: the old value is whole
/// there. OwnedVar restores the lead from what it knows of the copy.
fn value() -> Scenario {
    Scenario::new(
        "owned/refused-value",
        "a value that a node was refused leaves the old one whole there",
        2,
        |cluster| {
            let open = |node: &_| OwnedVar::<[u64; 2]>::open_with(node, "v", NodeId(0), TearCheck::Guards);
            let vars = keep(cluster, cluster.on_each(open)?);
            let (mut writer, read) = (vars[0].writer()?, vars.clone());
            cluster.thread(0, "writer", move |ep| {
                let (ep, faults) = faulty(ep)?;
                for number in 1..=3 {
                    writer.store([number; 2]);
                    faults.fail_after(if number == 1 { u64::MAX } else { [0, 1, 3][choose(3)] });
                    let pushed = ep.block_on(writer.push(&ep));
                    assert!(number > 1 || pushed.is_ok(), "nothing was refused");
                }
                faults.fail_after(u64::MAX);
                Ok(())
            });
            cluster.at_end(move || {
                let found = read[1].try_load().expect("it is whole");
                assert!(found[0] == found[1] && found[0] >= 1, "a torn value, or none: {found:?}");
                Ok(())
            });
            Ok(())
        },
    )
}

/// The put of the head to the only reader is refused: the message was not sent, and the next message in its place is
/// whole. For ring-refused-sent.
fn message() -> Scenario {
    Scenario::new("ring/refused-message", "a message that nobody was sent was not sent", 2, |cluster| {
        let rings = ring(cluster, &[1])?;
        let mut receiver = rings[1].receiver()?;
        cluster.thread(1, "reader", move |ep| {
            let mut message = Vec::new();
            ep.block_on(receiver.recv(ep, &mut message))?;
            assert_eq!(message, [2; 8], "what was not sent has been received");
            assert!(!receiver.try_recv(ep, &mut message)?, "there is another message");
            Ok(())
        });
        let mut sender = rings[0].sender()?;
        cluster.thread(0, "writer", move |ep| {
            let (ep, faults) = faulty(ep)?;
            // The head behind the message.
            faults.fail_after(1);
            assert!(sender.try_send(&ep, &[1; 16]).is_err(), "no reader has it");
            assert!(sender.try_send(&ep, &[2; 8])?, "an empty ring has room");
            Ok(())
        });
        Ok(())
    })
    .kills(&["ring-refused-sent"])
}

/// The put of an acknowledgement is refused: the message is the reader's nevertheless, and the room is given back by
/// its next look. For ring-ack-once.
fn acknowledgement() -> Scenario {
    Scenario::new(
        "ring/refused-acknowledgement",
        "room that could not be given back is given back later",
        2,
        |cluster| {
            let rings = ring(cluster, &[1])?;
            let (mut sender, mut receiver) = (rings[0].sender()?, rings[1].receiver()?);
            assert!(sender.try_send(&cluster.node(0).endpoint()?, &[1; 48])?, "an empty ring has room");
            cluster.thread(1, "reader", move |ep| {
                let (ep, faults) = faulty(ep)?;
                let mut message = Vec::new();
                faults.fail_after(0);
                ep.block_on(receiver.recv(&ep, &mut message))?;
                assert_eq!(message, [1; 48]);
                ep.block_on(receiver.recv(&ep, &mut message))?;
                assert_eq!(message, [2; 16]);
                Ok(())
            });
            cluster.thread(0, "writer", move |ep| ep.block_on(sender.send(ep, &[2; 16])));
            Ok(())
        },
    )
    .kills(&["ring-ack-once"])
}

/// For barrier-told-once.
fn arrival() -> Scenario {
    Scenario::new(
        "barrier/refused-arrival",
        "a node that could not be told of an arrival is told again",
        2,
        |cluster| {
            let barriers = keep(cluster, cluster.on_each(|node| Barrier::open(node, "b", 1))?);
            for node in [0, 1] {
                let mut thread = barriers[node].thread()?;
                cluster.thread(node, "waits", move |ep| {
                    let (ep, faults) = faulty(ep)?;
                    if node == 0 {
                        faults.fail_some(0, 2);
                    }
                    ep.block_on(thread.wait(&ep))
                });
            }
            Ok(())
        },
    )
    .kills(&["barrier-told-once", "barrier-told-twice"])
}

/// The put of the values is refused, and the slot that would publish them is not filled. For queue-refused-published.
fn values() -> Scenario {
    Scenario::new("queue/refused-values", "values that were refused are not in the queue", 2, |cluster| {
        let options = QueueOptions { batch_max: 1, ..QueueOptions::new(NodeId(1), 2) };
        let queues = keep(cluster, cluster.on_each(move |node| Queue::<u64>::open(node, "q", options.clone()))?);
        let consumer = queues.clone();
        cluster.thread(1, "consumer", move |ep| {
            assert_eq!(ep.block_on(consumer[1].dequeue(ep))?, 2, "what was not enqueued has been dequeued");
            Ok(())
        });
        cluster.thread(0, "producer", move |ep| {
            let (ep, faults) = faulty(ep)?;
            // After the two gets of the look.
            faults.fail_after(2);
            let refused = ep.block_on(queues[0].enqueue(&ep, &1));
            assert!(refused.is_err_and(|error| error.is_refused()), "the put was refused");
            ep.block_on(queues[0].enqueue(&ep, &2))
        });
        Ok(())
    })
    .kills(&["queue-refused-published"])
}

/// The put of a value is accepted, and the compare-and-swap that would publish it is refused. Another thread gets the
/// cell only when the put has landed: it would overwrite the other's value. For queue-spare-in-flight.
fn published() -> Scenario {
    let about = "a cell whose enqueue was refused goes to another thread when nothing lands there any more";
    Scenario::new("queue/refused-publication", about, 2, |cluster| {
        let options = QueueOptions { batch_max: 1, enqueues_per_node: 1, ..QueueOptions::new(NodeId(1), 2) };
        let queues = keep(cluster, cluster.on_each(move |node| Queue::<u64>::open(node, "q", options.clone()))?);
        let (refused, other, consumer) = (queues.clone(), queues.clone(), queues);
        cluster.thread(0, "refused", move |ep| {
            let (ep, faults) = faulty(ep)?;
            // After the two gets of the look, and the put.
            faults.fail_after(3);
            let enqueued = ep.block_on(refused[0].enqueue(&ep, &1));
            assert!(enqueued.is_err_and(|error| error.is_refused()), "the compare-and-swap was refused");
            Ok(())
        });
        cluster.thread(0, "producer", move |ep| ep.block_on(other[0].enqueue(ep, &2)));
        cluster.thread(1, "consumer", move |ep| {
            assert_eq!(ep.block_on(consumer[1].dequeue(ep))?, 2, "a value of an enqueue that was refused");
            Ok(())
        });
        Ok(())
    })
    .kills(&["queue-spare-in-flight"])
}
