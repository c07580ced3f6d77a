//! Queues that are closed, and questions about whole queues.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use farfield::{ErrorKind, Queue, QueueOptions};

use crate::harness::{Over, SOON, Scene, beside, everywhere, on_each_fabric, refused, session};

/// Producers and consumers on two nodes, and a third one that closes the queue: the accepted values are taken, once,
/// and all end. One of the threads that close it has done it.
#[test]
fn accepted_values_are_taken_and_no_others() {
    everywhere("closing", 3, |scene| {
        for capacity in [1, 4] {
            let options = QueueOptions { enqueues_per_node: 2, ..QueueOptions::new(scene.id(2), capacity) };
            let queues = scene.open(|node| Queue::<u64>::open(node, "q", options.clone()));
            let (taken, enough) = (AtomicUsize::new(0), scene.rounds(20, 500));
            let ended = scene.run(|node, thread, endpoint| {
                let (queue, mut values) = (&queues[node], Vec::new());
                let error = match node {
                    0 => loop {
                        let value = (thread as u64) << 32 | values.len() as u64;
                        match endpoint.block_on(queue.enqueue(endpoint, &value)) {
                            Ok(()) => values.push(value),
                            Err(error) => break error,
                        }
                    },
                    1 => loop {
                        match endpoint.block_on(queue.dequeue(endpoint)) {
                            Ok(value) => values.push(value),
                            Err(error) => break error,
                        }
                        taken.fetch_add(1, Ordering::SeqCst);
                    },
                    _ => {
                        while taken.load(Ordering::SeqCst) < enough {
                            std::thread::sleep(Duration::from_micros(50));
                        }
                        values.extend(endpoint.block_on(queue.close(endpoint)).unwrap().then_some(1));
                        refused(endpoint.block_on(queue.enqueue(endpoint, &0)))
                    }
                };
                assert_eq!((error.kind(), error.object()), (&ErrorKind::Closed, Some("q")), "on node {node}");
                values
            });
            let of = |node: usize| {
                let mut all: Vec<u64> = ended.iter().skip(node).step_by(3).flatten().copied().collect();
                all.sort_unstable();
                all
            };
            assert_eq!(of(0), of(1), "values are lost, or came twice");
            assert_eq!(of(2), [1], "one has closed it");
            let endpoint = scene.endpoint(0);
            let asked = endpoint.block_on(async {
                Ok::<_, farfield::Error>((queues[0].len(&endpoint).await?, queues[0].is_closed(&endpoint).await?))
            });
            assert_eq!(asked.unwrap(), (0, true));
        }
    });
}

/// Calls that wait for a value, or for room, end long before their timeout.
#[test]
fn waiting_calls_end_when_the_queue_closes() {
    on_each_fabric("closed while others wait", 3, |scene| {
        let options = QueueOptions::new(scene.id(0), 1);
        let empty = scene.open(|node| Queue::<u64>::open(node, "empty", options.clone()));
        let full = scene.open(|node| Queue::<u64>::open(node, "full", options.clone()));
        let home = scene.endpoint(0);
        full[0].enqueue_blocking(&home, &1).unwrap();
        let ended = scene.run(|node, _, endpoint| {
            let start = endpoint.now();
            let error = match node {
                0 => {
                    std::thread::sleep(Duration::from_millis(30));
                    empty[0].close_blocking(endpoint).unwrap();
                    full[0].close_blocking(endpoint).unwrap();
                    refused(endpoint.block_on(full[0].try_enqueue(endpoint, &2)))
                }
                1 => refused(empty[1].dequeue_blocking(endpoint)),
                _ => refused(full[2].enqueue_blocking(endpoint, &3)),
            };
            assert!(error.is_closed(), "{error}");
            endpoint.now() - start
        });
        assert!(ended.iter().all(|waited| *waited < SOON / 3), "{ended:?}");
        assert_eq!(full[0].dequeue_blocking(&home).unwrap(), 1);
        assert!(refused(full[0].dequeue_blocking(&home)).is_closed());
    });
}

/// A closed queue that is reopened is a new one.
#[test]
fn a_reopened_queue_is_open() {
    let _cores = beside("a closed queue is reopened");
    let scene = Scene { nodes: session(2, Over::Shm), over: Over::Shm, threads: 1 };
    let options = QueueOptions::new(scene.id(0), 2);
    let queues = scene.open(|node| Queue::<u64>::open(node, "q", options.clone()));
    let (a, b) = (scene.endpoint(0), scene.endpoint(1));
    queues[0].enqueue_blocking(&a, &1).unwrap();
    queues[0].close_blocking(&a).unwrap();
    let new = scene.open(|node| {
        node.reopen("q", |attempt| Queue::<u64>::open_among(node, attempt.path(), attempt.members(), options.clone()))
    });
    new[1].enqueue_blocking(&b, &2).unwrap();
    assert_eq!(new[0].dequeue_blocking(&a).unwrap(), 2);
    drop(queues);
}

/// A length is read in several pieces, across the end of the slots.
#[test]
fn long_queues_are_counted() {
    let _cores = beside("the length of a long queue");
    let scene = Scene { nodes: session(2, Over::Shm), over: Over::Shm, threads: 1 };
    let options = QueueOptions { batch_max: 2, ..QueueOptions::new(scene.id(0), 10_000) };
    let queues = scene.open(|node| Queue::<u64>::open(node, "q", options.clone()));
    let (a, b) = (scene.endpoint(0), scene.endpoint(1));
    let (mut values, mut number) = (0, 0);
    for (batches, dequeues) in [(3000, 100), (7000, 9000), (4000, 3000), (4000, 0)] {
        for _ in 0..batches {
            let batch = [number, number + 1];
            let batch = &batch[..1 + number as usize / 2 % 2];
            queues[1].enqueue_batch_blocking(&b, batch).unwrap();
            (values, number) = (values + batch.len(), number + 2);
        }
        for _ in 0..dequeues {
            queues[0].dequeue_blocking(&a).unwrap();
        }
        values -= dequeues;
        for (queue, endpoint) in [(&queues[0], &a), (&queues[1], &b)] {
            assert_eq!(endpoint.block_on(queue.len(endpoint)).unwrap(), values);
        }
    }
}
