//! Barriers.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use farfield::fabric::{ErrorKind as FabricError, GroupKey};
use farfield::{Barrier, ErrorKind};

use crate::harness::{SHORT, SOON, Scene, beside, everywhere, fabrics, on_each_fabric, refused, rounds, session};

/// No thread passes before all have arrived, and then all earlier puts of all threads are visible everywhere. Each
/// thread puts to the *other* nodes and reads from a *third* one (Fig. 22). A barrier's signal from one node proves
/// nothing about the memory of another node, unless all nodes have fenced that node first.
#[test]
fn all_arrive_and_all_their_writes_are_visible() {
    everywhere("barrier", 3, |scene| {
        let barriers = scene.open(|node| Barrier::open(node, "all", scene.threads));
        let all = scene.all_threads();
        let regions: Vec<_> = scene.nodes.iter().map(|node| node.alloc(GroupKey::DATA, 64 * all).unwrap()).collect();
        let rounds = scene.rounds(400, 4500);
        let arrived = AtomicUsize::new(0);
        scene.run(|node, thread, endpoint| {
            let mut part = barriers[node].thread().unwrap();
            for round in 1..=rounds {
                for (home, region) in regions.iter().enumerate().filter(|(home, _)| *home != node) {
                    // More words to the third node, so that its last put is the latest of all.
                    let first = home == (node + 1) % 3;
                    let words = if first { 1 } else { 4 };
                    for word in 0..words {
                        endpoint.put_value(region.remote(64 * thread + 8 * word), round as u64).detach().unwrap();
                    }
                }
                regions[node].word(64 * thread).store(round as u64);
                arrived.fetch_add(1, Ordering::SeqCst);
                endpoint.block_on(part.wait(endpoint)).unwrap();
                let came = arrived.load(Ordering::SeqCst);
                assert!(came >= round * all, "round {round}: passed when {came} of {} had come", round * all);
                // Every word of every thread on every node. Words of other nodes are read by gets that are in flight
                // together.
                for (home, region) in regions.iter().enumerate() {
                    let gets: Vec<_> = (0..all)
                        .filter(|_| home != node)
                        .map(|writer| endpoint.get(region.remote::<u64>(64 * writer)))
                        .collect();
                    for (writer, get) in gets.into_iter().enumerate() {
                        let seen = get.wait().unwrap();
                        assert!(seen >= round as u64, "round {round}: thread {writer} on node {home}: {seen}");
                    }
                    for writer in (0..all).filter(|_| home == node) {
                        let seen = region.word(64 * writer).load();
                        assert!(seen >= round as u64, "round {round}: thread {writer} here: {seen}");
                    }
                }
            }
        });
    });
}

/// Without the fence the barrier still waits for all threads.
#[test]
fn without_the_fence_no_thread_passes_before_all_have_come() {
    on_each_fabric("unfenced", 3, |scene| {
        let barriers = scene.open(|node| Barrier::open(node, "all", 1));
        let (rounds, arrived) = (scene.rounds(400, 4500), AtomicUsize::new(0));
        scene.run(|node, _, endpoint| {
            let mut part = barriers[node].thread().unwrap();
            for round in 1..=rounds {
                arrived.fetch_add(1, Ordering::SeqCst);
                endpoint.block_on(part.wait_unfenced(endpoint)).unwrap();
                assert!(arrived.load(Ordering::SeqCst) >= round * 3);
            }
        });
    });
}

/// A timeout names the missing nodes, and the round is not lost.
#[test]
fn a_missing_node_is_named_and_waited_for_again() {
    on_each_fabric("missing", 3, |scene| {
        let barriers = scene.open(|node| Barrier::open(node, "all", 2));
        let endpoints = [scene.endpoint(0), scene.endpoint(1), scene.endpoint(2)];
        let mut parts: Vec<_> = (0..6).map(|part| barriers[part % 3].thread().unwrap()).collect();
        let mut late = parts.split_off(4);
        for round in 0..3 {
            let timed_out = async |part: &mut farfield::BarrierThread, endpoint: &farfield::Endpoint| {
                refused(part.wait_deadline(endpoint, endpoint.now() + SHORT).await)
            };
            // Parts 4 and 5 do not arrive: the second of node 1, and the second of node 2.
            for (part, thread) in parts.iter_mut().enumerate().skip(1) {
                endpoints[part % 3].block_on(timed_out(thread, &endpoints[part % 3]));
            }
            let error = endpoints[0].block_on(timed_out(&mut parts[0], &endpoints[0]));
            assert!(
                matches!(error.kind(), ErrorKind::Timeout { missing, .. } if *missing == [scene.id(1), scene.id(2)]),
                "round {round}: {error:?}"
            );
            assert_eq!(error.object(), Some("all"));
            assert!(error.to_string().contains("waiting for all threads to arrive"), "{error}");
            assert!(error.to_string().contains("blocked by node 1, node 2"), "{error}");
            std::thread::scope(|scope| {
                for (part, thread) in late.iter_mut().enumerate() {
                    let endpoint = scene.endpoint((part + 4) % 3);
                    scope.spawn(move || endpoint.block_on(thread.wait(&endpoint)).unwrap());
                }
                for (part, thread) in parts.iter_mut().enumerate() {
                    let endpoint = &endpoints[part % 3];
                    endpoint.block_on(thread.retry_wait(endpoint, endpoint.now() + SOON)).unwrap();
                }
            });
        }
    });
}

/// A barrier has the number of parts that it was opened for.
#[test]
fn more_threads_than_it_was_opened_for_are_refused() {
    on_each_fabric("too many", 2, |scene| {
        let barriers = scene.open(|node| Barrier::open(node, "all", 2));
        let _parts = [barriers[1].thread().unwrap(), barriers[1].thread().unwrap()];
        for _ in 0..2 {
            let error = refused(barriers[1].thread());
            assert!(matches!(error.kind(), ErrorKind::NotAParticipant { .. }), "{error:?}");
            assert_eq!(error.to_string(), "all: it has 2 threads on each node, and all of this node's are taken");
        }
        assert!(barriers[0].thread().is_ok());
        assert!(matches!(refused(Barrier::open(&scene.nodes[0], "none", 0)).kind(), ErrorKind::Config { .. }));
    });
}

/// A node that leaves before it arrives never arrives later.
#[test]
fn a_node_that_left_before_it_came_is_an_error_that_names_it() {
    for over in fabrics(&[9]) {
        let _cores = beside("left before");
        let mut scene = Scene { nodes: session(3, over), over, threads: 1 };
        let barriers = scene.open(|node| Barrier::open(node, "all", 1));
        let gone = scene.nodes.pop().unwrap();
        let id = gone.id();
        std::thread::scope(|scope| {
            for (node, barrier) in barriers[..2].iter().enumerate() {
                let endpoint = scene.endpoint(node);
                scope.spawn(move || {
                    let error = refused(endpoint.block_on(barrier.thread().unwrap().wait(&endpoint)));
                    let left = FabricError::PeerLeft { node: id };
                    assert!(matches!(error.kind(), ErrorKind::Fabric(kind) if *kind.kind() == left), "{error:?}");
                    assert_eq!((error.node(), error.object(), error.is_gone()), (Some(id), Some("all"), true));
                });
            }
            std::thread::sleep(SHORT);
            gone.leave();
        });
    }
}

/// A node that passes and leaves at once has arrived, from the other nodes' view.
#[test]
fn a_node_that_leaves_right_after_it_passed_is_no_error() {
    let _cores = beside("leaving after");
    for (round, over) in rounds(40, 4) {
        let nodes = session(3, over);
        let barriers = farfield::on_each(&nodes, |node| Barrier::open(node, "all", 1)).unwrap();
        std::thread::scope(|scope| {
            for (node, barrier) in nodes.into_iter().zip(&barriers) {
                scope.spawn(move || {
                    let mut part = barrier.thread().unwrap();
                    let endpoint = node.endpoint().unwrap();
                    endpoint.block_on(part.wait(&endpoint)).unwrap();
                    if node.id().0 as u64 != round % 3 {
                        std::thread::sleep(SHORT / 20);
                    }
                    drop(endpoint);
                    node.leave();
                });
            }
        });
    }
}

/// A thread that has waited for long sleeps. Another thread of its node stores its arrival, and wakes it.
#[test]
fn a_sleeper_is_woken_by_its_own_node() {
    on_each_fabric("a sleeper", 1, |scene| {
        let barrier = &scene.open(|node| Barrier::open(node, "b", 2))[0];
        let [mut early, mut late] = [(); 2].map(|()| barrier.thread().unwrap());
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(move || {
                let endpoint = scene.endpoint(0);
                endpoint.block_on(early.wait(&endpoint)).unwrap();
            });
            std::thread::sleep(Duration::from_millis(200)); // nothing shows that a thread sleeps
            let (endpoint, arrives) = (scene.endpoint(0), Instant::now());
            endpoint.block_on(late.wait(&endpoint)).unwrap();
            sleeper.join().expect("it has passed");
            assert!(arrives.elapsed() < SOON / 2, "it has slept for {:?}", arrives.elapsed());
        });
    });
}
