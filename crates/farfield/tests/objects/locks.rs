//! Locks for asymmetric memory, and their rivals, with the same tests as the mutex: exclusion, visibility, and that an
//! operation dropped at any point keeps no lock.

use std::pin::pin;
use std::sync::Mutex as Log;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use farfield::fabric::{GroupKey, Region};
use farfield::{
    ALock, ALockArray, ALockOptions, Endpoint, ErrorKind, LockArray, LockGuard, LockKind, LockOptions, LockTable,
    McsLockArray, Node, NodeId, Result, SpinLockArray, local_session_with, on_each,
};

use crate::harness::{
    Over, SHORT, Scene, beside, between_hosts, eventually, everywhere, fabrics, on_each_fabric, over, poll_times,
    refused, session,
};

/// The mutex has tests of its own.
const KINDS: [LockKind; 3] = [LockKind::ALock, LockKind::Spin, LockKind::Mcs];

fn open(scene: &Scene, kind: LockKind, locks: usize) -> Vec<LockTable> {
    // Small budgets make both cohorts take turns.
    let alock = ALockOptions { remote_budget: 3, local_budget: 2, ..ALockOptions::default() };
    scene.open(|node| LockTable::open(node, kind.name(), locks, LockOptions { kind, alock }))
}

/// Allocates memory that the locks protect.
fn data(scene: &Scene, node: usize, bytes: usize) -> Region {
    scene.nodes[node].alloc(GroupKey::DATA, bytes).unwrap()
}

/// Reads a word that a lock protects: by the CPU on its own node, by the NIC elsewhere.
async fn read(endpoint: &Endpoint, region: &Region, home: usize, node: usize, offset: usize) -> u64 {
    if home == node { region.word(offset).load() } else { endpoint.get(region.remote(offset)).await.unwrap() }
}

/// Writes the word. The put is not awaited: the release has to make it visible.
fn write(endpoint: &Endpoint, region: &Region, home: usize, node: usize, offset: usize, value: u64) {
    if home == node {
        region.word(offset).store(value);
    } else {
        endpoint.put_value(region.remote(offset), value).detach().unwrap();
    }
}

/// Only the lock excludes other threads: read, add one, write. Each lock protects words on two nodes, one of them its
/// own home. Operations of one thread also compete with each other.
#[test]
fn increments_under_a_lock_are_never_lost() {
    everywhere("exclusion of locks", 3, |scene| {
        for kind in KINDS {
            const LOCKS: usize = 3;
            let locks = open(scene, kind, LOCKS);
            let regions = [data(scene, 0, 64), data(scene, 1, 64), data(scene, 2, 64)];
            let rounds = LOCKS * scene.rounds(200, 1500);
            let inside: [AtomicBool; LOCKS] = Default::default();
            let work = async |node: usize, endpoint: &Endpoint, lock: usize| {
                let guard = locks[node].lock(endpoint, lock).await.unwrap();
                assert!(!inside[lock].swap(true, Ordering::SeqCst), "{kind}: two inside");
                for home in [lock % 3, (lock + 2) % 3] {
                    let seen = read(endpoint, &regions[home], home, node, lock * 8).await;
                    write(endpoint, &regions[home], home, node, lock * 8, seen + 1);
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
            let total = (rounds / LOCKS * scene.all_threads()) as u64;
            for lock in 0..LOCKS {
                for home in [lock % 3, (lock + 2) % 3] {
                    assert_eq!(regions[home].word(lock * 8).load(), total, "{kind}: lock {lock}");
                }
            }
        }
    });
}

/// Works under locks that two nodes of three have opened, on words of the third.
fn work_among<L: LockArray + Send + Sync>(scene: &Scene, open: impl Fn(&Node, &[NodeId]) -> Result<L> + Sync) {
    const ROUNDS: usize = 40;
    // In any order; each counts once.
    let (pair, named) = ([0, 2], [scene.id(2), scene.id(0), scene.id(2)]);
    let nodes = pair.map(|node| scene.nodes[node].clone());
    let locks = on_each(&nodes, |node| open(node, &named)).unwrap();
    assert_eq!([0, 1, 2].map(|lock| locks[0].home(lock)), [scene.id(0), scene.id(2), scene.id(0)]);
    let region = data(scene, 1, 16);
    std::thread::scope(|scope| {
        for (locks, node) in locks.iter().zip(pair) {
            let (endpoint, region) = (scene.endpoint(node), &region);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    endpoint.block_on(async {
                        let guard = locks.lock(&endpoint, round % 2).await.unwrap();
                        let seen = read(&endpoint, region, 1, node, round % 2 * 8).await;
                        write(&endpoint, region, 1, node, round % 2 * 8, seen + 1);
                        guard.unlock().await.unwrap();
                    });
                }
            });
        }
    });
    assert_eq!([0, 8].map(|offset| region.word(offset).load()), [ROUNDS as u64; 2]);
    let error = refused(open(&scene.nodes[1], &named));
    assert!(matches!(error.kind(), ErrorKind::NotAParticipant { .. }) && error.object().is_some(), "{error:?}");
}

/// Arrays of each kind are opened among some nodes. The others need not open them, and cannot.
#[test]
fn locks_are_opened_among_some_nodes() {
    on_each_fabric("locks among some", 3, |scene| {
        work_among(scene, |node, named| ALockArray::open_among(node, "alocks", named, 3, ALockOptions::default()));
        work_among(scene, |node, named| SpinLockArray::open_among(node, "spins", named, 3));
        work_among(scene, |node, named| McsLockArray::open_among(node, "queues", named, 3, 16));
        for kind in LockKind::ALL {
            let options = LockOptions::new(*kind);
            work_among(scene, |node, named| LockTable::open_among(node, kind.name(), named, 3, options));
        }
    });
}

/// ALock's claim in numbers: each lane has a queue pair to each other node, and none to its own. This also holds if
/// threads of one node wait behind each other for a remote lock. (Each lane used to have one to its own node.)
#[test]
fn a_node_whose_threads_use_alock_alone_has_no_queue_pair_to_itself() {
    let _cores = beside("queue pairs of locks");
    let over = between_hosts().unwrap_or(Over::Shm);
    let scene = Scene { nodes: session(3, over), over, threads: 2 };
    let lone = scene.open(|node| ALock::open(node, "lone", scene.id(0)));
    let (table, spins) = (open(&scene, LockKind::ALock, 3), open(&scene, LockKind::Spin, 3));
    let regions = [data(&scene, 0, 64), data(&scene, 1, 64), data(&scene, 2, 64)];
    let together = std::sync::Barrier::new(scene.all_threads());
    // The lanes of two threads and the service thread, each to two other nodes. Shared memory has none.
    let to_others = if between_hosts().is_some() { 3 * 2 } else { 0 };
    let one_more = usize::from(between_hosts().is_some());
    scene.run(|node, thread, endpoint| {
        let pairs = || scene.nodes[node].metrics().queue_pairs;
        let measured = |expected: usize, what: &str| {
            together.wait();
            assert_eq!(pairs(), (expected, expected), "node {node}, {what}");
            together.wait();
        };
        together.wait();
        // The lanes of the openings are removed once the other nodes have been notified.
        eventually("all lanes are connected", || (pairs() == (to_others, to_others)).then_some(()));
        measured(to_others, "before");
        endpoint.block_on(async {
            for round in 0..scene.rounds(300, 300) {
                let lock = round % 3;
                let guard = table[node].lock(endpoint, lock).await.unwrap();
                let seen = read(endpoint, &regions[lock], lock, node, 0).await;
                write(endpoint, &regions[lock], lock, node, 0, seen + 1);
                guard.unlock().await.unwrap();
                lone[node].lock(endpoint).await.unwrap().unlock().await.unwrap();
            }
        });
        measured(to_others, "with ALock alone");
        let spin = || {
            assert_eq!(spins[node].home(node), scene.id(node));
            endpoint.block_on(async { spins[node].lock(endpoint, node).await.unwrap().unlock().await.unwrap() });
        };
        if thread < 3 {
            spin();
        }
        measured(to_others + one_more, "one thread has taken a spin lock of its own node");
        spin();
        measured(to_others + 2 * one_more, "both have");
    });
}

/// Everything that a holder writes on all nodes, by CPU and puts, is visible to the next holder, which reads it by
/// other paths.
#[test]
fn the_next_holder_sees_the_writes_of_the_last_one() {
    everywhere("visibility under locks", 3, |scene| {
        for kind in KINDS {
            let locks = open(scene, kind, 2);
            let regions = [data(scene, 0, 64), data(scene, 1, 64), data(scene, 2, 64)];
            let rounds = scene.rounds(200, 750);
            scene.run(|node, _, endpoint| {
                endpoint.block_on(async {
                    for _ in 0..rounds {
                        let guard = locks[node].lock(endpoint, 1).await.unwrap();
                        let mut seen = Vec::new();
                        for (home, region) in regions.iter().enumerate() {
                            for word in 0..3 {
                                seen.push(read(endpoint, region, home, node, word * 8).await);
                            }
                        }
                        assert!(seen.iter().all(|word| *word == seen[0]), "{kind}: {seen:?}");
                        for (home, region) in regions.iter().enumerate() {
                            for word in 0..3 {
                                write(endpoint, region, home, node, word * 8, seen[0] + 1);
                            }
                        }
                        guard.unlock().await.unwrap();
                    }
                });
            });
            assert_eq!(regions[1].word(0).load(), (rounds * scene.all_threads()) as u64, "{kind}");
        }
    });
}

/// `try_lock` takes a free lock but not a held one, from its node and from others.
#[test]
fn trying_takes_a_free_lock_only() {
    on_each_fabric("try_lock of locks", 3, |scene| {
        for kind in KINDS {
            let locks = open(scene, kind, 1);
            let ends = [scene.endpoint(0), scene.endpoint(1), scene.endpoint(2)];
            for round in 0..scene.rounds(30, 300) {
                for (holder, others) in [(0, [1, 2]), (1, [0, 2]), (2, [1, 1])] {
                    let end = &ends[holder];
                    let guard = end.block_on(locks[holder].try_lock(end, 0)).unwrap();
                    let guard = guard.unwrap_or_else(|| panic!("{kind}: it is free, for {holder} in round {round}"));
                    for other in others.into_iter().chain([holder]) {
                        let other = &ends[other];
                        let taken = other.block_on(locks[other.me().index()].try_lock(other, 0)).unwrap();
                        assert!(taken.is_none(), "{kind}: it is held");
                    }
                    match round % 2 {
                        0 => end.block_on(guard.unlock()).unwrap(),
                        _ => drop(guard),
                    }
                    // A failed `try_lock` may have blocked the other cohort for a moment.
                    let free = || ends[0].block_on(locks[0].try_lock(&ends[0], 0)).unwrap();
                    drop(eventually("it is free again", free));
                }
            }
        }
    });
}

/// A deadline ends the wait, and the abandoned ticket passes on.
#[test]
fn a_deadline_ends_the_wait_and_the_turn_is_passed_on() {
    on_each_fabric("lock_deadline of locks", 3, |scene| {
        for kind in KINDS {
            let locks = open(scene, kind, 2);
            let (a, b, c) = (scene.endpoint(0), scene.endpoint(1), scene.endpoint(2));
            for _ in 0..2 {
                let guard = a.block_on(locks[0].lock(&a, 1)).unwrap();
                // One waiter stays, behind three that give up.
                let gives_up = async |endpoint, node: usize| {
                    let error = refused(locks[node].lock_deadline(endpoint, 1, endpoint.now() + SHORT).await);
                    let waited = |waited: &Duration| *waited >= SHORT / 4;
                    assert!(matches!(error.kind(), ErrorKind::Timeout { waited: it, .. } if waited(it)), "{error:?}");
                    assert!(error.to_string().contains("waiting for the lock"), "{error}");
                };
                b.run_window(3, [1, 1, 1].map(|node| gives_up(&b, node)), |()| ());
                let mut stays = pin!(locks[2].lock(&c, 1));
                assert!(poll_times(stays.as_mut(), 200).is_none());
                a.block_on(guard.unlock()).unwrap();
                c.block_on(c.block_on(stays).unwrap().unlock()).unwrap();
                b.block_on(b.block_on(locks[1].lock(&b, 1)).unwrap().unlock()).unwrap();
            }
        }
    });
}

/// If an operation is dropped, in any stage, the lock passes on to the others.
#[test]
fn dropping_at_any_point_never_loses_the_lock() {
    for (over, kind) in
        fabrics(&[6, 7, 8]).into_iter().flat_map(|over| LockKind::ALL.iter().map(move |kind| (over, *kind)))
    {
        let _cores = beside("dropping locks");
        let scene = Scene { nodes: session(3, over), over, threads: 2 };
        let locks = open(&scene, kind, 1);
        let word = data(&scene, 2, 8);
        let (done, taken) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let again = scene.rounds(6, 30);
        let entered = Log::new(());
        scene.run(|node, thread, endpoint| {
            let enter = || {
                let _inside = entered.try_lock().expect("two inside");
                let seen = endpoint.get(word.remote::<u64>(0)).wait().unwrap();
                endpoint.put_value(word.remote(0), seen + 1).detach().unwrap();
                taken.fetch_add(1, Ordering::SeqCst);
            };
            let lock_and_enter = || {
                let guard = endpoint.block_on(locks[node].lock(endpoint, 0)).unwrap();
                enter();
                guard
            };
            if thread % 2 == 1 {
                // Other threads, which contend for the lock.
                while done.load(Ordering::SeqCst) < scene.all_threads() / 2 {
                    endpoint.block_on(lock_and_enter().unlock()).unwrap();
                    std::thread::yield_now();
                }
                return;
            }
            for _ in 0..again {
                for polls in 0..60 {
                    let mut lock = Box::pin(locks[node].lock(endpoint, 0));
                    let Some(guard) = poll_times(lock.as_mut(), polls) else {
                        drop(lock);
                        continue;
                    };
                    let guard = guard.unwrap();
                    enter();
                    // The release is dropped partway, too.
                    let mut unlock = Box::pin(guard.unlock());
                    poll_times(unlock.as_mut(), polls % 7);
                    drop(unlock);
                }
                // The lock is neither lost nor held.
                drop(lock_and_enter());
            }
            done.fetch_add(1, Ordering::SeqCst);
        });
        let endpoint = scene.endpoint(1);
        let guard = endpoint.block_on(locks[1].lock(&endpoint, 0)).unwrap();
        assert_eq!(endpoint.get(word.remote::<u64>(0)).wait().unwrap(), taken.load(Ordering::SeqCst) as u64, "{kind}");
        endpoint.block_on(guard.unlock()).unwrap();
        // No abandoned ticket is left: the service threads have nothing to watch.
        for node in &scene.nodes {
            let mut before = u64::MAX;
            eventually("the service thread has passed all turns on", || {
                let now = node.metrics().counts.posted();
                std::thread::sleep(Duration::from_millis(20));
                (std::mem::replace(&mut before, now) == now).then_some(())
            });
        }
        println!("{kind} over {over:?}: {taken:?} taken");
    }
}

/// One thread holds many locks and awaits others at the same time. The first operation beyond the limit fails at once.
/// Operations on locks of its own node are counted separately.
#[test]
fn one_thread_holds_as_many_locks_as_the_options_say() {
    let _cores = beside("many locks of one thread");
    let scene = Scene { nodes: session(2, Over::Shm), over: Over::Shm, threads: 1 };
    const MANY: usize = 341;
    let options = ALockOptions { operations_max: MANY + 1, ..ALockOptions::default() };
    let locks = scene.open(|node| ALockArray::open(node, "locks", 2 * (MANY + 2), options));
    let (endpoint, other) = (scene.endpoint(0), scene.endpoint(1));
    let lock = |index| endpoint.block_on(locks[0].lock(&endpoint, index));
    // Node 0 is the home of the locks with even numbers.
    let remote: Vec<_> = (0..MANY).map(|at| lock(2 * at + 1).unwrap()).collect();
    let mut waits = Box::pin(locks[1].lock(&other, 7));
    assert!(poll_times(waits.as_mut(), 10).is_none());
    let local: Vec<_> = (0..MANY).map(|at| lock(2 * at).unwrap()).collect();
    for (first, which) in [(1, "descriptors"), (0, "local descriptors")] {
        let last = lock(2 * MANY + first).unwrap();
        let error = refused(lock(2 * MANY + 2 + first));
        assert!(
            matches!(error.kind(), ErrorKind::InUse { what, max } if *what == which && *max == MANY + 1),
            "{error:?}"
        );
        assert!(error.to_string().starts_with(&format!("locks: all 342 {which} of this node are in use")), "{error}");
        drop(last);
        drop(lock(2 * MANY + 2 + first).unwrap());
    }
    drop((remote, local));
    other.block_on(other.block_on(waits).unwrap().unlock()).unwrap();
}

/// An endpoint without memory for operations takes no lock, and leaves nothing behind when it tries. Locks that it
/// holds without puts under them pass on to other operations, queued or not.
#[test]
fn an_endpoint_without_memory_loses_no_lock() {
    for kind in [LockKind::ALock, LockKind::Mcs] {
        let _cores = beside("locks without memory");
        let build = over(Over::Weak(3), 3);
        let nodes = local_session_with(3, |node| build(node).pool_bytes_max(4 << 10));
        let scene = Scene { nodes: nodes.unwrap(), over: Over::Weak(3), threads: 1 };
        let alock = ALockOptions { operations_max: 4, ..ALockOptions::default() };
        let locks = scene.open(|node| LockTable::open(node, "locks", 4, LockOptions { kind, alock }));
        let (endpoint, other) = (scene.endpoint(1), scene.endpoint(2));
        // Locks of node 0: the others take them as remote ones, and link themselves by puts.
        let free = endpoint.block_on(locks[1].lock(&endpoint, 0)).unwrap();
        let awaited = endpoint.block_on(locks[1].lock(&endpoint, 3)).unwrap();
        let puts = other.counts().puts;
        let mut waits = Box::pin(locks[2].lock(&other, 3));
        eventually("it has told the holder", || {
            assert!(poll_times(waits.as_mut(), 1).is_none());
            (other.counts().puts > puts).then_some(())
        });
        let region = data(&scene, 0, 8);
        let exhausted = |endpoint: &Endpoint| {
            let got = endpoint.get(region.remote::<u64>(0)).wait();
            got.is_err_and(|error| error.to_string().contains("buffer pool"))
        };
        while !exhausted(&endpoint) {
            (0..1000).for_each(|_| std::mem::forget(endpoint.get(region.remote::<u64>(0))));
        }
        for _ in 0..10 {
            let error = refused(endpoint.block_on(locks[1].lock(&endpoint, 0)));
            assert!(error.to_string().contains("buffer pool"), "{kind}: {error}");
        }
        endpoint.block_on(free.unlock()).unwrap();
        endpoint.block_on(awaited.unlock()).unwrap();
        other.block_on(other.block_on(waits).unwrap().unlock()).unwrap();
        other.block_on(other.block_on(locks[2].lock(&other, 0)).unwrap().unlock()).unwrap();
    }
}

/// Invalid options are refused before an object is opened. Options that differ between nodes are reported.
#[test]
fn options_that_cannot_be_are_refused() {
    let _cores = beside("options of locks");
    let scene = Scene { nodes: session(2, Over::Shm), over: Over::Shm, threads: 1 };
    let usual = ALockOptions::default();
    for (options, says) in [
        (ALockOptions { remote_budget: 0, ..usual }, "have to be at least 1"),
        (ALockOptions { local_budget: 0, ..usual }, "have to be at least 1"),
        (ALockOptions { operations_max: 0, ..usual }, "`operations_max` is 0"),
        (ALockOptions { operations_max: 1 << 21, ..usual }, "`operations_max` is 2097152"),
    ] {
        let error = refused(ALockArray::open(&scene.nodes[0], "locks", 4, options));
        assert!(matches!(error.kind(), ErrorKind::Config { .. }) && error.to_string().contains(says), "{error}");
    }
    let kinds = [LockKind::ALock, LockKind::Mcs];
    let open = |node: &farfield::Node| {
        let kind = kinds[node.id().index()];
        refused(LockTable::open(node, "locks", 4, LockOptions::new(kind)))
    };
    for error in farfield::on_each(&scene.nodes, |node| Ok(open(node))).unwrap() {
        assert!(matches!(error.kind(), ErrorKind::Mismatch { .. }), "{error}");
    }
    let budget = |node: &farfield::Node| {
        let options = ALockOptions { local_budget: 1 + u32::from(node.id().0), ..usual };
        refused(ALock::open_with(node, "lock", scene.nodes[0].id(), options))
    };
    for error in farfield::on_each(&scene.nodes, |node| Ok(budget(node))).unwrap() {
        assert!(matches!(error.kind(), ErrorKind::Mismatch { .. }) && error.to_string().contains("budgets"), "{error}");
    }
    assert!("lock".parse::<LockKind>().unwrap_err().to_string().contains("alock, spin, mcs, mutex"));
    assert!(LockKind::ALL.iter().all(|kind| kind.name().parse::<LockKind>().unwrap() == *kind));
}

/// Under load, a cohort has the lock as often in a row as its budget allows while the other one waits.
#[test]
fn each_cohort_has_its_turn() {
    let more = between_hosts().is_none().then_some((Over::Shm, 6));
    for (over, threads) in fabrics(&[3]).into_iter().map(|over| (over, 2)).chain(more) {
        let _cores = beside("turns of cohorts");
        let scene = Scene { nodes: session(2, over), over, threads };
        let options = ALockOptions { remote_budget: 4, local_budget: 2, ..ALockOptions::default() };
        let locks = scene.open(|node| ALock::open_with(node, "lock", scene.id(0), options));
        let order = Log::new(Vec::new());
        let rounds = scene.rounds(270, 2000);
        scene.run(|node, _, endpoint| {
            for _ in 0..rounds {
                let guard = endpoint.block_on(locks[node].lock(endpoint)).unwrap();
                order.try_lock().expect("two inside").push((node, guard.budget()));
                endpoint.block_on(guard.unlock()).unwrap();
            }
        });
        let order = order.into_inner().unwrap();
        assert_eq!(order.len(), rounds * scene.all_threads());
        for pair in order.windows(2) {
            let ((before, left), (after, budget)) = (pair[0], pair[1]);
            let whole = if after == 0 { options.local_budget } else { options.remote_budget };
            // The budget falls by one with each grant, and is reset by a competition.
            let follows = budget == whole || (before == after && budget + 1 == left);
            assert!(follows && budget > 0, "{pair:?}");
        }
    }
}
