//! The mutex: exclusion, visibility, order, and that a dropped operation passes its ticket on. `locks.rs` drops it at
//! any point, together with the other kinds of lock.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use farfield::fabric::{GroupKey, Region};
use farfield::objects::mutex::BYPASS_MAX;
use farfield::{ErrorKind, Mutex, MutexArray, on_each};

use crate::harness::{
    Over, SHORT, Scene, beside, between_hosts, eventually, everywhere, fabrics, on_each_fabric, poll_times, refused,
    rounds, session,
};

/// Allocates memory that the locks protect.
fn data(scene: &Scene, node: usize, bytes: usize) -> Region {
    scene.nodes[node].alloc(GroupKey::DATA, bytes).unwrap()
}

/// Two nodes of three open an array, and add to words of the third. That one need not open it, and cannot.
#[test]
fn mutexes_are_opened_among_some_nodes() {
    on_each_fabric("mutexes among some", 3, |scene| {
        const ROUNDS: usize = 40;
        let (pair, named) = ([0, 2], [scene.id(2), scene.id(0), scene.id(2)]);
        let nodes = pair.map(|node| scene.nodes[node].clone());
        let locks = on_each(&nodes, |node| MutexArray::open_among(node, "pair", &named, 3)).unwrap();
        assert_eq!([0, 1, 2].map(|lock| locks[0].home(lock)), [scene.id(0), scene.id(2), scene.id(0)]);
        let region = data(scene, 1, 16);
        std::thread::scope(|scope| {
            for (locks, node) in locks.iter().zip(pair) {
                let (endpoint, region) = (scene.endpoint(node), &region);
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        endpoint.block_on(async {
                            let guard = locks.lock(&endpoint, round % 2).await.unwrap();
                            let word = region.remote::<u64>(round % 2 * 8);
                            let seen = endpoint.get(word).await.unwrap();
                            endpoint.put_value(word, seen + 1).detach().unwrap();
                            guard.unlock().await.unwrap();
                        });
                    }
                });
            }
        });
        assert_eq!([0, 8].map(|offset| region.word(offset).load()), [ROUNDS as u64; 2]);
        let error = refused(MutexArray::open_among(&scene.nodes[1], "pair", &named, 3));
        assert!(matches!(error.kind(), ErrorKind::NotAParticipant { .. }), "{error:?}");
        assert!(error.to_string().starts_with("pair: node 1 is not one of its participants"), "{error}");
    });
}

/// Only the lock excludes other threads: read, add one, put. Each lock protects words on two nodes, one of them its own
/// home. Operations of one thread also compete with each other. The puts are not awaited: the release has to make them
/// visible.
#[test]
fn increments_under_a_lock_are_never_lost() {
    everywhere("exclusion", 3, |scene| {
        const LOCKS: usize = 3;
        let locks = scene.open(|node| MutexArray::open(node, "locks", LOCKS));
        let regions = [data(scene, 0, 64), data(scene, 1, 64), data(scene, 2, 64)];
        let rounds = LOCKS * scene.rounds(400, 3000);
        let inside: [AtomicBool; LOCKS] = Default::default();
        let work = async |node: usize, endpoint: &farfield::Endpoint, lock: usize| {
            let guard = locks[node].lock(endpoint, lock).await.unwrap();
            assert!(!inside[lock].swap(true, Ordering::SeqCst), "two inside");
            for home in [lock % 3, (lock + 2) % 3] {
                let word = regions[home].remote::<u64>(lock * 8);
                let seen = endpoint.get(word).await.unwrap();
                endpoint.put_value(word, seen + 1).detach().unwrap();
            }
            inside[lock].store(false, Ordering::SeqCst);
            guard.unlock().await.unwrap();
        };
        let work = &work;
        scene.run(|node, thread, endpoint| {
            if thread % 2 == 0 {
                let futures = (0..rounds).map(|round| work(node, endpoint, round % LOCKS));
                endpoint.run_window(4, futures, |()| ());
            } else {
                (0..rounds).for_each(|round| endpoint.block_on(work(node, endpoint, round % LOCKS)));
            }
        });
        // The values were put through the fabric, so they are visible once the last holder has released.
        let total = (rounds / LOCKS * scene.all_threads()) as u64;
        for lock in 0..LOCKS {
            for home in [lock % 3, (lock + 2) % 3] {
                let endpoint = scene.endpoint((home + 1) % 3);
                assert_eq!(endpoint.get(regions[home].remote::<u64>(lock * 8)).wait().unwrap(), total, "lock {lock}");
            }
        }
    });
}

/// Several puts of a holder on two other nodes are visible to the next holder, which reads them by other paths.
#[test]
fn the_next_holder_sees_the_writes_of_the_last_one() {
    everywhere("visibility", 3, |scene| {
        let locks = scene.open(|node| Mutex::open(node, "lock", scene.id(1)));
        let regions = [data(scene, 0, 64), data(scene, 1, 64), data(scene, 2, 64)];
        let rounds = scene.rounds(400, 1500);
        scene.run(|node, _, endpoint| {
            endpoint.block_on(async {
                for _ in 0..rounds {
                    let guard = locks[node].lock(endpoint).await.unwrap();
                    // The CPU reads this node's words, and the NIC those of other nodes.
                    let mut seen = Vec::new();
                    for (home, region) in regions.iter().enumerate() {
                        for word in 0..3 {
                            seen.push(if home == node {
                                region.word(word * 8).load()
                            } else {
                                endpoint.get(region.remote(word * 8)).await.unwrap()
                            });
                        }
                    }
                    assert!(seen.iter().all(|word| *word == seen[0]), "{seen:?}");
                    for (home, region) in regions.iter().enumerate() {
                        for word in 0..3 {
                            if home == node {
                                region.word(word * 8).store(seen[0] + 1);
                            } else {
                                endpoint.put_value(region.remote(word * 8), seen[0] + 1).detach().unwrap();
                            }
                        }
                    }
                    guard.unlock().await.unwrap();
                }
            });
        });
        assert_eq!(regions[1].word(0).load(), (rounds * scene.all_threads()) as u64);
    });
}

/// Other operations overtake a queued one only as often as the documentation states.
#[test]
fn a_waiter_is_overtaken_a_bounded_number_of_times() {
    for threads in [2, 8] {
        let label = format!("bypass, {threads} threads on each of two nodes");
        let _cores = beside(&label);
        let scene = Scene { nodes: session(2, Over::Shm), over: Over::Shm, threads };
        let locks = scene.open(|node| Mutex::open(node, "lock", scene.id(0)));
        let sections = AtomicUsize::new(0);
        let all = scene.all_threads();
        // Until every thread has held the lock so many times: if one starved, this would not end.
        let each = if between_hosts().is_some() { 50 } else { 1000 };
        let turns: Vec<AtomicUsize> = (0..all).map(|_| AtomicUsize::new(0)).collect();
        let results = scene.run(|node, thread, endpoint| {
            let (mut most, mut waited) = (0, 0);
            let mine = &turns[thread];
            while turns.iter().any(|turns| turns.load(Ordering::SeqCst) < each) {
                let mut lock = pin!(locks[node].lock(endpoint));
                let guard = match poll_times(lock.as_mut(), 1) {
                    Some(guard) => guard,
                    None => {
                        // On shared memory one poll is enough to draw the ticket.
                        let before = sections.load(Ordering::SeqCst);
                        let guard = endpoint.block_on(lock);
                        most = most.max(sections.load(Ordering::SeqCst) - before);
                        waited += 1;
                        guard
                    }
                };
                sections.fetch_add(1, Ordering::SeqCst);
                if mine.fetch_add(1, Ordering::SeqCst).is_multiple_of(8) {
                    std::thread::yield_now();
                }
                endpoint.block_on(guard.unwrap().unlock()).unwrap();
            }
            (most, waited)
        });
        // All others may be ahead in the queue; one was inside already.
        let bound = all * (BYPASS_MAX as usize + 1) + 1;
        let most = results.iter().map(|result| result.0).max().unwrap();
        let waited: usize = results.iter().map(|result| result.1).sum();
        let sections = sections.load(Ordering::SeqCst);
        println!("{label}: {waited} of {sections} waited, at most for {most} of {bound} sections");
        assert!(most <= bound, "{label}: one waited for {most} critical sections, not {bound}");
    }
}

/// `try_lock` takes a free lock but not a held one.
#[test]
fn trying_takes_a_free_lock_only() {
    on_each_fabric("try_lock", 3, |scene| {
        let locks = scene.open(|node| Mutex::open(node, "lock", scene.id(1)));
        let (near, far) = (scene.endpoint(0), scene.endpoint(2));
        for round in 0..scene.rounds(80, 300) {
            let guard = near.block_on(locks[0].try_lock(&near)).unwrap().expect("it is free");
            assert!(far.block_on(locks[2].try_lock(&far)).unwrap().is_none());
            assert!(near.block_on(locks[0].try_lock(&near)).unwrap().is_none(), "not even the holder may again");
            match round % 2 {
                0 => near.block_on(guard.unlock()).unwrap(),
                _ => drop(guard),
            }
            let guard = far.block_on(locks[2].try_lock(&far)).unwrap().expect("it is free");
            far.block_on(guard.unlock()).unwrap();
        }
    });
}

/// A deadline ends the wait, and the abandoned ticket passes on.
#[test]
fn a_deadline_ends_the_wait_and_the_turn_is_passed_on() {
    on_each_fabric("lock_deadline", 3, |scene| {
        let locks = scene.open(|node| Mutex::open(node, "lock", scene.id(1)));
        let (a, b, c) = (scene.endpoint(0), scene.endpoint(1), scene.endpoint(2));
        for _ in 0..3 {
            let guard = a.block_on(locks[0].lock(&a)).unwrap();
            // One waiter stays, behind three that give up.
            let gives_up = async |endpoint, node: usize| {
                let error = refused(locks[node].lock_deadline(endpoint, endpoint.now() + SHORT).await);
                assert!(matches!(error.kind(), ErrorKind::Timeout { waited, .. } if *waited >= SHORT / 4), "{error:?}");
                assert!(error.to_string().contains("waiting for the lock"), "{error}");
            };
            b.run_window(3, [1, 1, 1].map(|node| gives_up(&b, node)), |()| ());
            let mut stays = pin!(locks[2].lock(&c));
            assert!(poll_times(stays.as_mut(), 200).is_none());
            a.block_on(guard.unlock()).unwrap();
            c.block_on(c.block_on(stays).unwrap().unlock()).unwrap();
            b.block_on(b.block_on(locks[1].lock(&b)).unwrap().unlock()).unwrap();
        }
    });
}

/// An operation is dropped while it acquires the lock with its ticket. The ticket is either used or passed on, not
/// both.
#[test]
fn one_that_is_dropped_when_its_turn_comes_passes_it_on_once() {
    for over in fabrics(&[10, 11, 12]) {
        let _cores = beside("dropping in turn");
        let scene = Scene { nodes: session(3, over), over, threads: 1 };
        let locks = scene.open(|node| Mutex::open(node, "lock", scene.id(0)));
        let (a, b, c) = (scene.endpoint(0), scene.endpoint(1), scene.endpoint(2));
        let quiet = || {
            for node in &scene.nodes {
                let mut before = u64::MAX;
                eventually("the service thread has passed all turns on", || {
                    let now = node.metrics().counts.posted();
                    std::thread::sleep(Duration::from_millis(2));
                    (std::mem::replace(&mut before, now) == now).then_some(())
                });
            }
        };
        for round in 0..scene.rounds(120, 120) {
            let guard = a.block_on(locks[0].lock(&a)).unwrap();
            let mut waits = Box::pin(locks[1].lock(&b));
            // On the weak fabric a poll is at most one step of an operation.
            assert!(poll_times(waits.as_mut(), 300).is_none());
            let mut next = Box::pin(locks[2].lock(&c));
            assert!(poll_times(next.as_mut(), 300).is_none());
            a.block_on(guard.unlock()).unwrap();
            let guard = poll_times(waits.as_mut(), round % 40);
            drop(guard);
            drop(waits);
            c.block_on(c.block_on(next).unwrap().unlock()).unwrap();
            if round % 10 == 9 {
                quiet();
            }
        }
        quiet();
    }
}

/// A node that releases and leaves has released. One that gives up and leaves delays the others only briefly.
#[test]
fn a_node_that_leaves_after_its_release_fails_no_waiter() {
    let _cores = beside("release and leave");
    for (round, over) in rounds(40, 4) {
        let mut nodes = session(2, over);
        let locks = farfield::on_each(&nodes, |node| Mutex::open(node, "lock", nodes[0].id())).unwrap();
        let (near, far) = (nodes[0].endpoint().unwrap(), nodes[1].endpoint().unwrap());
        let guard = far.block_on(locks[1].lock(&far)).unwrap();
        std::thread::scope(|scope| {
            let lock = &locks[0];
            let waiter = scope.spawn(move || {
                near.block_on(async { lock.lock(&near).await.unwrap().unlock().await.unwrap() });
            });
            std::thread::sleep(Duration::from_micros(200 * (round % 8)));
            far.block_on(guard.unlock()).unwrap();
            nodes.pop().unwrap().leave();
            waiter.join().expect("the waiter");
        });
    }
}

/// Indexes beyond the array panic, as those of a slice do. The error of a wrong count names the difference.
#[test]
fn an_array_has_the_locks_it_says() {
    let _cores = beside("an array of locks");
    let scene = Scene { nodes: session(2, Over::Shm), over: Over::Shm, threads: 1 };
    let locks = scene.open(|node| MutexArray::open(node, "locks", 5));
    assert_eq!((locks[0].len(), locks[0].is_empty()), (5, false));
    let endpoint = scene.endpoint(0);
    let guards: Vec<_> = (0..5).map(|lock| endpoint.block_on(locks[0].lock(&endpoint, lock)).unwrap()).collect();
    for lock in 0..5 {
        assert!(endpoint.block_on(locks[0].try_lock(&endpoint, lock)).unwrap().is_none());
    }
    drop(guards);
    let beyond = std::panic::AssertUnwindSafe(|| endpoint.block_on(locks[0].try_lock(&endpoint, 5)).map(|_| ()));
    assert!(std::panic::catch_unwind(beyond).is_err());
}
