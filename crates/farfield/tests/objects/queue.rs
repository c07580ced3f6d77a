//! Queues.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex as Log;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use farfield::fabric::fault::{Faults, inject};
use farfield::fabric::{Counts, EndpointOptions};
use farfield::history::queue::{QueueInput, QueueModel, QueueOutput};
use farfield::history::{Budget, Event, check};
use farfield::{ByteString, Endpoint, ErrorKind, Node, Queue, QueueOptions};
use proptest::prelude::*;

use crate::harness::{
    Over, Rng, SHORT, Scene, beside, everywhere, fabrics, mix, on_each_fabric, poll_times, refused, related, session,
};

/// Three words that follow from a number.
type Value = [u64; 3];

fn number(value: Value) -> u64 {
    assert_eq!(value, related(value[0]), "a value is torn");
    value[0]
}

/// Asserts that all enqueued values were dequeued once, and that every consumer saw each producer's values in their
/// order.
fn all_came_once(taken: &[Vec<u64>], producers: usize, each: u64) {
    let mut all: Vec<u64> = taken.iter().flatten().copied().collect();
    all.sort_unstable();
    let expected: Vec<u64> =
        (0..producers as u64).flat_map(|producer| (1..=each).map(move |n| producer << 32 | n)).collect();
    assert!(all == expected, "{} values came, of {}", all.len(), expected.len());
    for taken in taken {
        let mut last = BTreeMap::new();
        for value in taken {
            let before = last.insert(value >> 32, *value);
            assert!(before.is_none_or(|before| before < *value), "{before:?} before {value}");
        }
    }
}

/// Every thread produces and consumes. Each value is dequeued once, whole, and in its producer's order. One queue has
/// two slots, the other more slots than there are values.
#[test]
fn values_come_out_once_and_in_order() {
    everywhere("traffic", 3, |scene| {
        for capacity in [2, 64] {
            let options = QueueOptions { enqueues_per_node: 4, ..QueueOptions::new(scene.id(1), capacity) };
            let queues = scene.open(|node| Queue::<Value>::open(node, &format!("q{capacity}"), options.clone()));
            let each = scene.rounds(60, 1500) as u64;
            let left = AtomicUsize::new(scene.all_threads() * each as usize);
            let taken = scene.run(|node, thread, endpoint| {
                let queue = &queues[node];
                let mut taken = Vec::new();
                let mut rng = Rng::new(thread as u64);
                let mut next = 1;
                while next <= each || left.load(Ordering::SeqCst) > 0 {
                    let value = |number: u64| related((thread as u64) << 32 | number);
                    // A thread that finds the queue full dequeues, since otherwise all threads could wait for space.
                    let done = match (next <= each, rng.below(3)) {
                        (false, _) => 0,
                        (true, 0) => {
                            let count = (each + 1 - next).min(1 + rng.below(4) as u64);
                            let values: Vec<Value> = (next..next + count).map(value).collect();
                            let done = endpoint.block_on(queue.try_enqueue_batch(endpoint, &values)).unwrap();
                            if done { count } else { 0 }
                        }
                        (true, _) => u64::from(endpoint.block_on(queue.try_enqueue(endpoint, &value(next))).unwrap()),
                    };
                    next += done;
                    if done == 0 || rng.below(2) == 0 {
                        match endpoint.block_on(queue.try_dequeue(endpoint)).unwrap() {
                            Some(value) => {
                                taken.push(number(value));
                                left.fetch_sub(1, Ordering::SeqCst);
                            }
                            None => std::thread::yield_now(),
                        }
                    }
                }
                taken
            });
            all_came_once(&taken, scene.all_threads(), each);
        }
    });
}

/// Producers wait for space, consumers for values, with several calls of one thread at once.
#[test]
fn waiting_calls_get_room_and_values() {
    everywhere("waiting", 2, |scene| {
        let options = QueueOptions { enqueues_per_node: 2, ..QueueOptions::new(scene.id(0), 3) };
        let queues = scene.open(|node| Queue::<Value>::open(node, "q", options.clone()));
        let each = scene.rounds(60, 1500) as u64;
        let taken = scene.run(|node, thread, endpoint| {
            let queue = &queues[node];
            // The threads of node 0 consume the values that those of node 1 produce.
            match node {
                0 => {
                    let mut taken = Vec::new();
                    let calls = (0..each).map(|_| queue.dequeue(endpoint));
                    endpoint.run_window(2, calls, |value| taken.push(number(value.unwrap())));
                    taken
                }
                _ => {
                    for n in 1..=each {
                        let value = related((thread as u64 / 2) << 32 | n);
                        endpoint.block_on(queue.enqueue(endpoint, &value)).unwrap();
                    }
                    Vec::new()
                }
            }
        });
        // Of two dequeues of one thread, either may complete first.
        let mut all = taken.concat();
        all.sort_unstable();
        all_came_once(&[all], scene.threads, each);
    });
}

/// Histories of all threads of all nodes can be explained by operations that happened one at a time.
#[test]
fn histories_are_linearizable() {
    everywhere("histories", 3, |scene| {
        let rounds = if scene.threads > 2 { 3 } else { scene.rounds(6, 20) };
        for round in 0..rounds {
            let capacity = [1, 2, 5][round % 3];
            let options = QueueOptions { enqueues_per_node: 2, ..QueueOptions::new(scene.id(round % 3), capacity) };
            let queues = scene.open(|node| Queue::<u64>::open(node, "q", options.clone()));
            let events = Log::new(Vec::new());
            let values = AtomicUsize::new(1);
            let calls = 60 / scene.threads;
            let now = || scene.nodes[0].now().ns;
            scene.run(|node, thread, endpoint| {
                let mut rng = Rng::new(mix((round * 100 + thread) as u64));
                for _ in 0..calls {
                    let queue = &queues[node];
                    let fresh = || values.fetch_add(1, Ordering::SeqCst) as u64;
                    let enqueues = rng.below(2) == 0;
                    let batch: Vec<u64> = (0..=rng.below(3)).map(|_| fresh()).collect();
                    let call_ns = now();
                    let (input, output) = endpoint.block_on(async {
                        if enqueues {
                            let done = queue.try_enqueue_batch(endpoint, &batch).await.unwrap();
                            (QueueInput::Enqueue(batch), QueueOutput::Enqueued(done))
                        } else {
                            let value = queue.try_dequeue(endpoint).await.unwrap();
                            (QueueInput::Dequeue, QueueOutput::Dequeued(value))
                        }
                    });
                    events.lock().unwrap().push(Event::returned(thread as u32, call_ns, now(), input, output));
                }
            });
            let events = events.into_inner().unwrap();
            let verdict = check(&QueueModel { capacity }, &events, Budget::default());
            assert!(verdict.is_linearizable(), "{verdict}");
        }
    });
}

/// A full or empty queue is reported at once, or after the deadline by an error that names the missing event. The queue
/// is unchanged.
#[test]
fn deadlines_end_the_wait_and_nothing_was_done() {
    on_each_fabric("deadlines", 2, |scene| {
        let queues = scene.open(|node| Queue::<u64>::open(node, "jobs", QueueOptions::new(scene.id(0), 2)));
        for (node, queue) in queues.iter().enumerate() {
            let endpoint = scene.endpoint(node);
            let ep = &endpoint;
            ep.block_on(async {
                let error = refused(queue.dequeue_deadline(ep, ep.now() + SHORT).await);
                assert!(matches!(error.kind(), ErrorKind::Timeout { waited, .. } if *waited >= SHORT / 4), "{error:?}");
                assert!(error.to_string().contains("waiting for a value in the queue"), "{error}");
                queue.enqueue(ep, &1).await.unwrap();
                queue.enqueue_batch(ep, &[2, 3]).await.unwrap();
                assert!(!queue.try_enqueue(ep, &9).await.unwrap());
                assert!(!queue.try_enqueue_batch(ep, &[9, 9]).await.unwrap());
                let error = refused(queue.enqueue_deadline(ep, &9, ep.now() + SHORT).await);
                assert!(error.to_string().contains("waiting for room in the queue"), "{error}");
                refused(queue.enqueue_batch_deadline(ep, &[9], ep.now() + SHORT).await);
                for value in 1..=3 {
                    assert_eq!(queue.try_dequeue(ep).await.unwrap(), Some(value));
                }
                assert_eq!(queue.try_dequeue(ep).await.unwrap(), None);
            });
        }
    });
}

/// Byte strings of all lengths. A string that is too long, too many strings, or invalid options are refused without
/// effect.
#[test]
fn byte_strings_and_limits() {
    on_each_fabric("byte strings", 2, |scene| {
        let options = QueueOptions { value_bytes_max: 20, batch_max: 3, ..QueueOptions::new(scene.id(0), 8) };
        let queues = scene.open(|node| Queue::<ByteString>::open(node, "bytes", options.clone()));
        assert_eq!(queues[1].capacity(), 8);
        let (near, far) = (scene.endpoint(0), scene.endpoint(1));
        let text = |len: usize| ByteString::from(vec![len as u8 + 1; len]);
        for len in 0..=18 {
            let batch = [text(len), text(len + 1), text(len + 2)];
            far.block_on(queues[1].enqueue_batch(&far, &batch)).unwrap();
            for value in batch {
                assert_eq!(near.block_on(queues[0].dequeue(&near)).unwrap(), value);
            }
        }
        let error = refused(far.block_on(queues[1].enqueue(&far, &text(21))));
        assert_eq!(error.to_string(), "bytes: 21 bytes exceed the limit of 20");
        let error = refused(far.block_on(queues[1].enqueue_batch(&far, &[text(1), text(1), text(1), text(1)])));
        assert_eq!(error.to_string(), "bytes: 4 values of a batch (`batch_max`) exceed the limit of 3");
        far.block_on(queues[1].enqueue_batch(&far, &[])).unwrap();
        assert_eq!(near.block_on(queues[0].try_dequeue(&near)).unwrap(), None);

        let home = scene.id(0);
        for (capacity, batch_max, enqueues_per_node) in [(0, 1, 1), (1, 0, 1), (1, 64, 1), (1, 1, 0), (1 << 20, 1, 1)] {
            let options = QueueOptions { batch_max, enqueues_per_node, ..QueueOptions::new(home, capacity) };
            let error = refused(Queue::<u64>::open(&scene.nodes[0], "odd", options));
            assert!(matches!(error.kind(), ErrorKind::Config { .. }) && error.object() == Some("odd"), "{error:?}");
        }
        let options = QueueOptions { value_bytes_max: usize::MAX, ..QueueOptions::new(home, 1) };
        let error = refused(Queue::<ByteString>::open(&scene.nodes[0], "odd", options));
        assert!(error.to_string().contains("2^40 bytes"), "{error}");
    });
}

/// Calls are dropped at any point. Each value that they enqueued is there once or not at all, and values that they had
/// taken are salvaged.
#[test]
fn dropping_at_any_point_loses_and_doubles_nothing() {
    for over in fabrics(&[6, 7, 8]) {
        let _cores = beside("dropping");
        let scene = Scene { nodes: session(3, over), over, threads: 2 };
        let options = QueueOptions { enqueues_per_node: 1, ..QueueOptions::new(scene.id(0), 3) };
        let queues = scene.open(|node| Queue::<Value>::open(node, "q", options.clone()));
        let done = AtomicUsize::new(0);
        let salvages = AtomicUsize::new(0);
        let again = scene.rounds(4, 20);
        let seen = scene.run(|node, thread, endpoint| {
            let queue = &queues[node];
            // Values that were enqueued for certain, values that may have been, and values that were taken.
            let (mut sure, mut perhaps, mut taken) = (Vec::new(), Vec::new(), Vec::new());
            let mut next = (thread as u64) << 32;
            let mut polls = 0;
            while done.load(Ordering::SeqCst) < scene.all_threads() {
                if polls == 60 * again {
                    done.fetch_add(1, Ordering::SeqCst);
                }
                polls += 1;
                next += 1;
                let value = related(next);
                let mut enqueue = Box::pin(queue.enqueue(endpoint, &value));
                match poll_times(enqueue.as_mut(), polls % 30) {
                    Some(result) => {
                        result.unwrap();
                        sure.push(next);
                    }
                    None => perhaps.push(next),
                }
                drop(enqueue);
                let mut dequeue = Box::pin(queue.dequeue(endpoint));
                let found = poll_times(dequeue.as_mut(), (polls / 30 + polls) % 30);
                drop(dequeue);
                taken.extend(found.map(|value| number(value.unwrap())));
                let salvaged = queue.salvage();
                salvages.fetch_add(salvaged.len(), Ordering::SeqCst);
                taken.extend(salvaged.into_iter().map(number));
                taken.extend(endpoint.block_on(queue.try_dequeue(endpoint)).unwrap().map(number));
            }
            (sure, perhaps, taken)
        });
        let endpoint = scene.endpoint(1);
        let mut taken: Vec<u64> = seen.iter().flat_map(|seen| seen.2.clone()).collect();
        while let Some(value) = endpoint.block_on(queues[1].try_dequeue(&endpoint)).unwrap() {
            taken.push(number(value));
        }
        taken.sort_unstable();
        assert!(taken.windows(2).all(|pair| pair[0] != pair[1]), "a value came twice");
        let sure: Vec<u64> = seen.iter().flat_map(|seen| seen.0.clone()).collect();
        let perhaps: Vec<u64> = seen.iter().flat_map(|seen| seen.1.clone()).collect();
        assert!(sure.iter().all(|value| taken.binary_search(value).is_ok()), "a value is lost");
        let came = perhaps.iter().filter(|value| taken.binary_search(value).is_ok()).count();
        assert_eq!(taken.len(), sure.len() + came, "a value came that nobody enqueued");
        println!(
            "{over:?}: {} enqueued, {} dropped of which {came} came, {salvages:?} salvaged",
            sure.len(),
            perhaps.len()
        );
    }
}

/// A wait that fails because other nodes have left returns an error that names them. A wait for a queue with a departed
/// home soon returns an error that names the home.
#[test]
fn departed_nodes_are_named() {
    let _cores = beside("leaving nodes");
    let mut nodes = session(4, Over::Shm);
    let home = nodes[2].id();
    let queues = farfield::on_each(&nodes, |node| Queue::<u64>::open(node, "q", QueueOptions::new(home, 2))).unwrap();
    let (a, b) = (nodes[0].endpoint().unwrap(), nodes[1].endpoint().unwrap());
    a.block_on(queues[0].enqueue(&a, &1)).unwrap();
    assert_eq!(b.block_on(queues[1].dequeue(&b)).unwrap(), 1);
    let left = nodes[3].id();
    nodes.pop().unwrap().leave();
    let error = refused(b.block_on(queues[1].dequeue_deadline(&b, b.now() + SHORT)));
    assert!(error.is_timeout() && error.node() == Some(left) && error.object() == Some("q"), "{error:?}");
    std::thread::scope(|scope| {
        let queue = &queues[0];
        let waiter = scope.spawn(move || refused(a.block_on(queue.dequeue(&a))));
        std::thread::sleep(Duration::from_millis(20));
        nodes.pop().unwrap().leave();
        let error = waiter.join().unwrap();
        assert!(error.is_gone() && error.node() == Some(home) && error.object() == Some("q"), "{error:?}");
    });
    let error = refused(b.block_on(queues[1].try_enqueue(&b, &1)));
    assert!(error.is_gone() && error.node() == Some(home), "{error:?}");
}

/// An endpoint over a decorated fabric: its operations are posted through the dynamic interface, one by one, also on
/// shared memory.
fn decorated(node: &Node) -> Endpoint {
    Endpoint::open(inject(node.transport().clone(), Faults::default()), EndpointOptions::default()).unwrap()
}

/// The end of a call, and its cost.
fn end(endpoint: &Endpoint, call: impl Future<Output = farfield::Result<Option<u64>>>) -> (String, Counts) {
    let (result, counts) = endpoint.block_on(endpoint.counted(call));
    (format!("{:?}", result.map_err(|error| error.kind().clone())), counts)
}

/// On shared memory a call looks the queue's memory up once, and takes a word without a handle. Its results and costs
/// are those of a call that posts its operations one by one: by both nodes, with and without room, with and without
/// values, and before and after the queue is closed.
#[test]
fn calls_that_look_memory_up_once_end_and_cost_the_same() {
    on_each_fabric("two endpoints", 2, |scene| {
        for capacity in [1, 3] {
            let options = QueueOptions { batch_max: 3, ..QueueOptions::new(scene.id(0), capacity) };
            let [plain, other] = ["plain", "other"].map(|path| {
                let queues = scene.open(|node| Queue::<u64>::open(node, &format!("{path}{capacity}"), options.clone()));
                let endpoint =
                    |node: usize| if path == "plain" { scene.endpoint(node) } else { decorated(&scene.nodes[node]) };
                (queues, [endpoint(0), endpoint(1)])
            });
            let mut rng = Rng::new(capacity as u64);
            let calls = scene.rounds(100, 400) as u64;
            for call in 0..calls + 10 {
                let (node, count, closes) = (rng.below(2), rng.below(6), call == calls);
                let [(ended, counts), (expected, expected_counts)] = [&plain, &other].map(|(queues, endpoints)| {
                    let (queue, endpoint) = (&queues[node], &endpoints[node]);
                    let values: Vec<u64> = (0..count as u64).map(|value| call << 8 | value).collect();
                    end(endpoint, async {
                        match count {
                            _ if closes => queue.close(endpoint).await.map(|closed| closed.then_some(0)),
                            1 => queue.try_enqueue(endpoint, &values[0]).await.map(|done| done.then_some(1)),
                            2 | 3 => queue.try_enqueue_batch(endpoint, &values).await.map(|done| done.then_some(2)),
                            _ => queue.try_dequeue(endpoint).await,
                        }
                    })
                });
                assert_eq!(ended, expected, "call {call}");
                // Elsewhere a hint may be late, which costs a look more.
                if scene.over == Over::Shm {
                    assert_eq!(counts, expected_counts, "call {call}: {ended}");
                }
            }
        }
    });
    // Their errors, too, when the home is gone.
    let _cores = beside("two endpoints without a home");
    let mut nodes = session(3, Over::Shm);
    let options = QueueOptions::new(nodes[2].id(), 2);
    let queues = farfield::on_each(&nodes, |node| Queue::<u64>::open(node, "q", options.clone())).unwrap();
    let endpoints = [nodes[0].endpoint().unwrap(), decorated(&nodes[0])];
    nodes.pop().unwrap().leave();
    let ends = endpoints.each_ref().map(|ep| {
        let enqueued = end(ep, async { queues[0].try_enqueue(ep, &1).await.map(|done| done.then_some(1)) });
        [enqueued.0, end(ep, queues[0].try_dequeue(ep)).0, end(ep, async { queues[0].dequeue(ep).await.map(Some) }).0]
    });
    assert!(ends[0].iter().all(|end| end.contains("PeerLeft")), "{ends:?}");
    assert_eq!(ends[0], ends[1]);
}

/// A call to a queue by one of two nodes.
#[derive(Clone, Debug)]
enum Call {
    Enqueue(usize),
    Dequeue,
    Close,
}

fn calls() -> impl Strategy<Value = Vec<(usize, Call)>> {
    let call = prop_oneof![
        50 => (1..=4usize).prop_map(Call::Enqueue),
        100 => Just(Call::Dequeue),
        1 => Just(Call::Close),
    ];
    prop::collection::vec((0..2usize, call), 0..200)
}

/// Sequential calls have the same results as on a queue in ordinary memory, however often the queue wraps around.
#[test]
fn one_after_the_other_it_is_a_queue() {
    let _cores = beside("a model");
    let nodes = session(2, Over::Shm);
    let endpoints = [nodes[0].endpoint().unwrap(), nodes[1].endpoint().unwrap()];
    let run = |capacity: usize, calls: Vec<(usize, Call)>| {
        let options = QueueOptions { batch_max: 4, ..QueueOptions::new(nodes[1].id(), capacity) };
        let queues = farfield::on_each(&nodes, |node| Queue::<u64>::open(node, "q", options.clone())).unwrap();
        let mut model: VecDeque<VecDeque<u64>> = VecDeque::new();
        let (mut next, mut is_closed) = (0, false);
        for (node, call) in calls {
            let (queue, endpoint) = (&queues[node], &endpoints[node]);
            match call {
                Call::Enqueue(count) => {
                    let values: Vec<u64> = (next..next + count as u64).collect();
                    next += count as u64;
                    let has_room = model.len() < capacity;
                    let done = endpoint.block_on(queue.try_enqueue_batch(endpoint, &values));
                    if is_closed {
                        let error = refused(done);
                        prop_assert_eq!(error.kind(), &ErrorKind::Closed);
                        continue;
                    }
                    prop_assert_eq!(done.unwrap(), has_room);
                    if has_room {
                        model.push_back(values.into());
                    }
                }
                Call::Dequeue => {
                    let expected = model.front_mut().and_then(VecDeque::pop_front);
                    if model.front().is_some_and(VecDeque::is_empty) {
                        model.pop_front();
                    }
                    match endpoint.block_on(queue.try_dequeue(endpoint)) {
                        Err(error) if error.is_closed() => prop_assert!(is_closed && expected.is_none()),
                        found => {
                            let found = found.unwrap();
                            prop_assert_eq!(found, expected);
                            prop_assert!(found.is_some() || !is_closed);
                        }
                    }
                }
                Call::Close => {
                    prop_assert_eq!(endpoint.block_on(queue.close(endpoint)).unwrap(), !is_closed);
                    is_closed = true;
                }
            }
            let (queue, endpoint) = (&queues[1 - node], &endpoints[1 - node]);
            let asked = endpoint.block_on(async {
                Ok::<_, farfield::Error>((
                    queue.len(endpoint).await?,
                    queue.is_empty(endpoint).await?,
                    queue.is_closed(endpoint).await?,
                ))
            });
            let len = model.iter().map(VecDeque::len).sum::<usize>();
            prop_assert_eq!(asked.unwrap(), (len, len == 0, is_closed));
        }
        Ok(())
    };
    proptest!(ProptestConfig::with_cases(64), |(capacity in 1..6usize, calls in calls())| run(capacity, calls)?);
}
