//! An operation that is refused at posting causes no duplicate, no hole, and no endless wait. Each operation of a
//! scripted run of each object is refused once.
//!
//! The first such bug was in a ring: its sender ignored a refusal. With one put refused, `try_send` reported that the
//! message was sent. The head covered the hole, and readers took it for empty messages.

use std::collections::VecDeque;

use farfield::fabric::fault::{Faults, inject};
use farfield::fabric::weak::weaken;
use farfield::fabric::{EndpointOptions, GroupKey};
use farfield::objects::owned_var::TearCheck;
use farfield::{
    Barrier, Endpoint, ErrorKind, KvOptions, KvStore, LockArray, LockGuard, LockKind, LockOptions, LockTable, Node,
    NodeId, OwnedVar, Queue, QueueOptions, Result, RingBuffer, RingOptions, SharedVar, TransactionOptions,
    Transactions, local_session_with, on_each,
};

use crate::harness::{Over, SOON, Scene, beside, eventually, on_each_fabric, over, related};

/// An endpoint that refuses operations on command.
struct Faulty {
    endpoint: Endpoint,
    faults: Faults,
}

const NEVER: u64 = u64::MAX;

impl Faulty {
    fn new(scene: &Scene, node: usize) -> Faulty {
        let faults = Faults::default();
        let fabric = inject(scene.nodes[node].transport().clone(), faults.clone());
        Faulty { endpoint: Endpoint::open(fabric, EndpointOptions::default()).unwrap(), faults }
    }

    fn posted(&self) -> u64 {
        let counts = self.endpoint.counts();
        counts.puts + counts.gets + counts.atomics
    }

    /// Runs something repeatedly: each time, the next of its operations is refused, until it has no more.
    fn each_refused(&self, mut run: impl FnMut(u64)) {
        for nth in 0.. {
            let before = self.posted();
            self.faults.fail_after(nth);
            run(nth);
            self.faults.fail_after(NEVER);
            if self.posted() - before <= nth {
                assert!(nth > 1, "it posts something");
                return;
            }
        }
    }
}

/// Whether the cause of an error is a refused operation.
fn is_injected(error: &farfield::Error) -> bool {
    match error.kind() {
        ErrorKind::Missed { nodes } => nodes.iter().all(|(_, error)| error.is_refused()),
        _ => error.is_refused(),
    }
}

fn missed(sent: Result<()>) -> Vec<NodeId> {
    match sent {
        Ok(()) => vec![],
        Err(error) => match error.kind() {
            ErrorKind::Missed { nodes } => nodes.iter().map(|missed| missed.0).collect(),
            _ => panic!("{error}"),
        },
    }
}

/// Every reader gets every accepted message once and in order, and nothing else.
fn stream(scene: &Scene, path: &str, readers: &[(usize, usize)]) {
    const CAPACITY: usize = 192;
    let nodes: Vec<_> = readers.iter().map(|(node, count)| (scene.id(*node), *count)).collect();
    let last = readers.iter().map(|reader| reader.0).max().unwrap_or(0);
    let open = |node: &Node| RingBuffer::open(node, path, RingOptions::new(scene.id(0), nodes.clone(), CAPACITY));
    let rings = on_each(&scene.nodes[..=last], open).unwrap();
    let mut sender = rings[0].sender().unwrap();
    let sending = Faulty::new(scene, 0);
    let mut receivers = Vec::new();
    for (node, count) in readers {
        for _ in 0..*count {
            receivers.push((rings[*node].receiver().unwrap(), Faulty::new(scene, *node), VecDeque::new()));
        }
    }
    let (mut number, mut message) = (0u64, Vec::new());
    let mut script = |nth_received: u64| {
        for len in [8usize, 40, 13, 60] {
            number += 1;
            let sent: Vec<u8> = (0..len).map(|at| (number as usize + at) as u8 | 1).collect();
            for (receiver, at, expected) in &mut receivers {
                at.faults.fail_after(nth_received);
                // Messages that were sent before, and none that was refused.
                while receiver.try_recv(&at.endpoint, &mut message).unwrap_or(false) {
                    assert_eq!(expected.pop_front().as_ref(), Some(&message), "{path}: message before {number}");
                }
            }
            eventually("the message is accepted", || {
                let accepted = match sender.try_send(&sending.endpoint, &sent) {
                    Ok(accepted) => accepted,
                    Err(error) => {
                        assert!(is_injected(&error), "{error}");
                        false
                    }
                };
                if accepted {
                    receivers.iter_mut().for_each(|(_, _, expected)| expected.push_back(sent.clone()));
                } else {
                    for (receiver, at, expected) in &mut receivers {
                        while receiver.try_recv(&at.endpoint, &mut message).unwrap_or(false) {
                            assert_eq!(
                                expected.pop_front().as_ref(),
                                Some(&message),
                                "{path}: message before {number}"
                            );
                        }
                    }
                }
                accepted.then_some(())
            });
        }
        sending.faults.fail_after(NEVER);
        sender.try_flush(&sending.endpoint).unwrap();
        for (receiver, at, expected) in &mut receivers {
            at.faults.fail_after(NEVER);
            while let Some(expected) = expected.pop_front() {
                at.endpoint.block_on(receiver.recv(&at.endpoint, &mut message)).unwrap();
                assert_eq!(message, expected, "{path}");
            }
            assert!(!receiver.try_recv(&at.endpoint, &mut message).unwrap(), "{path}: a message that nobody sent");
        }
        let deadline = sending.endpoint.deadline();
        let all_read = sender.wait_acknowledged(&sending.endpoint, sender.position(), deadline);
        sending.endpoint.block_on(all_read).unwrap();
    };
    sending.each_refused(|_| script(NEVER));
    // Each acknowledgement is refused as well.
    (0..6).for_each(script);
}

#[test]
fn a_ring_has_no_hole_and_no_duplicate() {
    on_each_fabric("refused puts of a ring", 3, |scene| {
        stream(scene, "one", &[(1, 1)]);
        stream(scene, "two", &[(1, 2), (2, 1)]);
        stream(scene, "own", &[(0, 1), (1, 1)]);
    });
}

/// A wait for the readers also delivers messages with refused puts. The sender need not call anything else.
#[test]
fn a_wait_for_readers_delivers_their_refused_messages() {
    on_each_fabric("waiting for readers that were refused", 3, |scene| {
        let readers = [(scene.id(1), 1), (scene.id(2), 1)];
        let rings = scene.open(|node| RingBuffer::open(node, "ring", RingOptions::new(scene.id(0), readers, 64)));
        let (mut sender, sending) = (rings[0].sender().unwrap(), Faulty::new(scene, 0));
        sending.faults.cut(scene.id(2), true);
        assert!(sender.try_send(&sending.endpoint, b"first").unwrap());
        let error = sender.try_flush(&sending.endpoint).expect_err("one is cut off");
        assert_eq!((error.node(), is_injected(&error)), (Some(scene.id(2)), true), "{error}");
        assert!(error.to_string().contains("not delivered to node 2: "), "{error}");
        std::thread::scope(|scope| {
            for node in [1, 2] {
                let (mut receiver, endpoint) = (rings[node].receiver().unwrap(), scene.endpoint(node));
                scope.spawn(move || {
                    let mut message = Vec::new();
                    for expected in [&b"first"[..], &[7; 50]] {
                        endpoint.block_on(receiver.recv(&endpoint, &mut message)).unwrap();
                        assert_eq!(message, expected);
                    }
                });
            }
            sending.faults.cut(scene.id(2), false);
            // This call waits for space.
            sending.endpoint.block_on(sender.send(&sending.endpoint, &[7; 50])).unwrap();
            sending.endpoint.block_on(sender.flush(&sending.endpoint)).unwrap();
        });
    });
}

/// All nodes that the error does not name have the new value. A named node has the old one, whole. But if the end of a
/// push is refused, the value is torn until the next push.
#[test]
fn a_push_names_the_nodes_that_it_does_not_reach() {
    on_each_fabric("refused pushes", 3, |scene| {
        let owner = scene.id(0);
        for (at, wholeness) in [TearCheck::Guards, TearCheck::Checksum].into_iter().enumerate() {
            let path = format!("value-{at}");
            let vars = scene.open(|node| OwnedVar::<[u64; 20]>::open_with(node, &path, owner, wholeness));
            let (mut writer, pushing) = (vars[0].writer().unwrap(), Faulty::new(scene, 0));
            let (mut number, mut torn) = (0, 0);
            pushing.each_refused(|nth| {
                let before = related(number);
                number += 1;
                writer.store(related(number));
                let missed = missed(pushing.endpoint.block_on(writer.push(&pushing.endpoint)));
                assert!(missed.len() <= 1, "{missed:?}");
                pushing.faults.fail_after(NEVER);
                pushing.endpoint.block_on(pushing.endpoint.global_fence(scene.nodes[0].others())).unwrap();
                for node in [1, 2] {
                    match (missed.contains(&scene.id(node)), vars[node].try_load()) {
                        (false, found) => assert_eq!(found, Some(related(number)), "{nth}"),
                        (true, Some(found)) => assert_eq!(found, before, "{nth}"),
                        (true, None) => torn += 1,
                    }
                }
                pushing.endpoint.block_on(writer.push(&pushing.endpoint)).unwrap();
                pushing.endpoint.block_on(pushing.endpoint.global_fence(scene.nodes[0].others())).unwrap();
                assert!(vars.iter().all(|var| var.try_load() == Some(related(number))), "{nth}");
            });
            assert_eq!(torn, if wholeness == TearCheck::Guards { 2 } else { 0 }, "the trails of two copies");
        }
        let vars = scene.open(|node| SharedVar::<u64>::open(node, "shared"));
        let pushing = Faulty::new(scene, 0);
        pushing.each_refused(|nth| {
            let before = vars[0].load();
            vars[0].store(before + 1);
            let missed = missed(pushing.endpoint.block_on(vars[0].push_all(&pushing.endpoint)));
            pushing.faults.fail_after(NEVER);
            assert_eq!(missed, if nth < 2 { vec![scene.id(nth as usize + 1)] } else { vec![] });
            pushing.endpoint.block_on(vars[0].fence(&pushing.endpoint, scene.nodes[0].others())).unwrap();
            for node in [1, 2] {
                assert_eq!(vars[node].load(), before + u64::from(!missed.contains(&scene.id(node))));
            }
            pushing.endpoint.block_on(vars[0].push(&pushing.endpoint, missed)).unwrap();
            pushing.endpoint.block_on(vars[0].fence(&pushing.endpoint, scene.nodes[0].others())).unwrap();
            assert!(vars.iter().all(|var| var.load() == before + 1));
        });
    });
}

/// An exhausted pool refuses puts in real use.
#[test]
fn a_push_without_memory_leaves_the_old_value_whole() {
    let _cores = beside("pushes without memory");
    for fabric in [Over::Weak(6), Over::Weak(7)] {
        let build = over(fabric, 2);
        let nodes = local_session_with(2, |node| build(node).pool_bytes_max(4 << 10)).unwrap();
        let scene = Scene { nodes, over: fabric, threads: 1 };
        for (path, wholeness) in [("guards", TearCheck::Guards), ("sum", TearCheck::Checksum)] {
            let vars = scene.open(|node| OwnedVar::<[u64; 20]>::open_with(node, path, scene.id(0), wholeness));
            let (mut writer, endpoint) = (vars[0].writer().unwrap(), scene.endpoint(0));
            let fence = || endpoint.block_on(endpoint.global_fence(scene.nodes[0].others())).unwrap();
            writer.store(related(1));
            endpoint.block_on(writer.push(&endpoint)).unwrap();
            fence();
            let kept: Vec<_> = std::iter::from_fn(|| endpoint.buf::<u64>(20).ok()).collect();
            assert!(!kept.is_empty());
            writer.store(related(2));
            let error = endpoint.block_on(writer.push(&endpoint)).expect_err("there is no memory");
            assert!(matches!(error.kind(), ErrorKind::Missed { nodes } if nodes.len() == 1), "{error}");
            assert!(error.to_string().contains("buffer pool"), "{error}");
            fence();
            assert_eq!(vars[1].try_load(), Some(related(1)));
            drop(kept);
            endpoint.block_on(writer.push(&endpoint)).unwrap();
            fence();
            assert_eq!(vars[1].try_load(), Some(related(2)));
        }
    }
}

/// An arrival that was refused is announced again, so no thread waits in vain.
#[test]
fn a_barrier_lets_all_pass() {
    on_each_fabric("refused arrivals", 3, |scene| {
        let barriers = scene.open(|node| Barrier::open(node, "all", 1));
        // On each node a word for each.
        let words = scene.nodes.iter().map(|node| node.alloc(GroupKey::DATA, 24).unwrap()).collect::<Vec<_>>();
        scene.run(|node, _, _| {
            let (mut thread, at) = (barriers[node].thread().unwrap(), Faulty::new(scene, node));
            let others = [(node + 1) % 3, (node + 2) % 3];
            for round in 0..24 {
                for other in others {
                    at.endpoint.put_value(words[other].remote::<u64>(8 * node), round).detach().unwrap();
                }
                // A different operation on each node: two gets of the fence and two puts.
                at.faults.fail_after((round / 3 + node as u64) % 5);
                at.endpoint.block_on(thread.wait(&at.endpoint)).unwrap();
                at.faults.fail_after(NEVER);
                let is_there = |other: usize| words[node].word(8 * other).load() >= round;
                assert!(others.into_iter().all(is_there), "what was put before a barrier is there behind it");
            }
        });
    });
}

/// First in, first out, each value once. If an error reports that an operation was not done, it was not done.
#[test]
fn a_queue_has_no_hole_and_no_duplicate() {
    on_each_fabric("refused operations of a queue", 2, |scene| {
        for home in [0, 1] {
            let path = format!("queue-{home}");
            let options = || QueueOptions { batch_max: 3, ..QueueOptions::new(scene.id(home), 4) };
            let queues = scene.open(|node| Queue::<[u64; 12]>::open(node, &path, options()));
            let (queue, at) = (&queues[0], Faulty::new(scene, 0));
            let (mut first, mut last) = (0, 0);
            at.each_refused(|nth| {
                for count in [1, 3, 1] {
                    let values: Vec<_> = (last + 1..=last + count).map(related).collect();
                    eventually("they are enqueued", || {
                        let enqueued = at.endpoint.block_on(queue.try_enqueue_batch(&at.endpoint, &values));
                        enqueued.inspect_err(|error| assert!(is_injected(error), "{nth}: {error}")).ok()
                    });
                    last += count;
                }
                while first < last {
                    match at.endpoint.block_on(queue.try_dequeue(&at.endpoint)) {
                        Ok(value) => {
                            first += 1;
                            assert_eq!(value, Some(related(first)), "operation {nth} is refused");
                        }
                        Err(error) => assert!(is_injected(&error), "{nth}: {error}"),
                    }
                }
                assert_eq!(at.endpoint.block_on(queue.try_dequeue(&at.endpoint)).unwrap_or(None), None, "{nth}");
            });
            assert!(queue.salvage().is_empty());
        }
    });
}

/// For each refused operation: no lock stays taken, and none has two holders.
#[test]
fn no_lock_stays_taken() {
    on_each_fabric("refused operations of locks", 2, |scene| {
        let word = scene.nodes[1].alloc(GroupKey::DATA, 8).unwrap();
        let word = word.remote::<u64>(0);
        let other = scene.endpoint(1);
        let mut added = 0;
        for kind in LockKind::ALL.iter().copied() {
            let path = format!("{kind}");
            let tables = scene.open(|node| LockTable::open(node, &path, 2, LockOptions::new(kind)));
            let at = Faulty::new(scene, 0);
            at.each_refused(|nth| {
                let mut section = async || -> Result<()> {
                    let guard = tables[0].lock(&at.endpoint, 1).await?;
                    if let Ok(seen) = at.endpoint.get(word).await {
                        added += u64::from(at.endpoint.put_value(word, seen + 1).detach().is_ok());
                    }
                    guard.unlock().await
                };
                let _ = at.endpoint.block_on(section()).inspect_err(|error| assert!(error.is_refused(), "{error}"));
                let guard = other.block_on(tables[1].lock(&other, 1));
                let guard = guard.unwrap_or_else(|error| panic!("{kind}, {nth}: {error}"));
                assert_eq!(other.get(word).wait().unwrap(), added, "{kind}, {nth}");
                other.block_on(guard.unlock()).unwrap();
            });
        }
    });
}

/// A commit is done as a whole, for each of its operations that may be refused.
#[test]
fn a_transaction_is_done_as_a_whole_or_not_at_all() {
    on_each_fabric("refused operations of transactions", 3, |scene| {
        let options = || TransactionOptions { cells: 9, locks: 3, lock: LockOptions::new(LockKind::Mcs) };
        let all = scene.open(|node| Transactions::open(node, "cells", options()));
        let (at, other) = (Faulty::new(scene, 0), scene.endpoint(1));
        at.each_refused(|nth| {
            let transfer = async || -> Result<()> {
                let mut transaction = all[0].begin(&at.endpoint, &[1, 2, 4]).await?;
                for (cell, change) in [(1, 1), (2, 1), (4, u64::MAX - 1)] {
                    let value = transaction.read(cell).await?;
                    transaction.write(cell, value.wrapping_add(change))?;
                }
                transaction.commit().await
            };
            let _ = at.endpoint.block_on(transfer()).inspect_err(|error| assert!(error.is_refused(), "{nth}: {error}"));
            let sum = async || -> Result<u64> {
                let transaction = all[1].begin(&other, &[1, 2, 4]).await?;
                let cells = transaction.read_all(&[1, 2, 4]).await?;
                transaction.abort().await?;
                Ok(cells.into_iter().fold(0, u64::wrapping_add))
            };
            assert_eq!(other.block_on(sum()).unwrap(), 0, "{nth}");
        });
    });
}

/// All nodes agree on every key, and every lock can be acquired, for each refused operation of a node's callers,
/// tracker, or service thread.
#[test]
fn a_store_agrees_with_itself() {
    for fabric in [Over::Shm, Over::Weak(8)] {
        let _cores = beside("refused operations of a store");
        let faults = Faults::default();
        let nodes = local_session_with(3, |builder| {
            let faults = faults.clone();
            builder.timeout(SOON).decorate(move |inner| {
                let node = inner.me();
                let inner = match fabric {
                    Over::Weak(seed) => weaken(inner, seed << 8 | u64::from(node.0))?,
                    _ => inner,
                };
                Ok(if node == NodeId(0) { inject(inner, faults.clone()) } else { inner })
            })
        });
        let scene = Scene { nodes: nodes.unwrap(), over: fabric, threads: 1 };
        let options = || KvOptions { slots_per_node: 64, locks: 6, ..KvOptions::default() };
        let stores = scene.open(|node| KvStore::<u64, [u64; 12]>::open(node, "kv", options()));
        let endpoints: Vec<_> = (0..3).map(|node| scene.endpoint(node)).collect();
        let (near, far) = (&endpoints[0], &endpoints[1]);
        for nth in 0..40 {
            let key = nth % 5;
            // The value is elsewhere, or here.
            let inserter = (nth % 3) as usize;
            let value = |number| related::<12>(100 * nth + number);
            endpoints[inserter].block_on(stores[inserter].upsert(&endpoints[inserter], &key, &value(1))).unwrap();
            faults.fail_after(nth % 13);
            let updated = near.block_on(stores[0].update(near, &key, &value(2)));
            let found = far.block_on(stores[1].get(far, &key)).unwrap();
            assert!(found == Some(value(1)) || found == Some(value(2)), "{nth}: {updated:?}");
            assert!(updated.is_err() || found == Some(value(2)), "{nth}");
            let deleted = near.block_on(stores[0].delete(near, &key));
            let inserted = near.block_on(stores[0].insert(near, &key, &value(3)));
            faults.fail_after(NEVER);
            for ended in [&updated, &deleted, &inserted] {
                assert!(ended.as_ref().err().is_none_or(is_injected), "{nth}: {ended:?}");
            }
            // Under the key's lock, which is available once all interrupted operations have been completed.
            let before = far.block_on(stores[1].modify(far, &key, |before| before.copied())).unwrap();
            match (&deleted, &inserted) {
                (Ok(_), Ok(true)) => assert_eq!(before, Some(value(3)), "{nth}"),
                (Ok(_), Err(_)) => assert_eq!(before, None, "{nth}: {inserted:?}"),
                _ => {}
            }
            for node in [0, 2] {
                let found = endpoints[node].block_on(stores[node].get(&endpoints[node], &key)).unwrap();
                assert_eq!(found, before, "{nth}: node {node}");
            }
        }
    }
}
