//! Variables: atomic, shared, owned, and tables of owned ones.

use std::collections::HashSet;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use farfield::{AtomicVar, ErrorKind, OwnedVar, SharedVar, Sst, TearCheck};

use crate::harness::{Scene, SetsAtEnd, everywhere, on_each_fabric, refused, related};

// ---- AtomicVar -------------------------------------------------------------------------------------------------

/// Every addition counts once, and no two see the same value.
#[test]
fn concurrent_additions_each_count_once() {
    everywhere("fetch_add", 3, |scene| {
        let vars = scene.open(|node| AtomicVar::open(node, "sum", scene.id(1)));
        let rounds = scene.rounds(400, 6000);
        let seen = scene.run(|node, _, endpoint| {
            let add = |_| endpoint.block_on(vars[node].fetch_add(endpoint, 1)).unwrap();
            (0..rounds).map(add).collect::<Vec<_>>()
        });
        for seen in &seen {
            assert!(seen.is_sorted(), "one thread's values go backwards");
        }
        let distinct: HashSet<u64> = seen.iter().flatten().copied().collect();
        let total = rounds * scene.all_threads();
        assert_eq!(distinct.len(), total);
        for (node, var) in vars.iter().enumerate() {
            let endpoint = scene.endpoint(node);
            assert_eq!(endpoint.block_on(var.load(&endpoint)).unwrap(), total as u64);
        }
    });
}

/// Additions by compare-and-swap are atomic with fetch-and-add.
#[test]
fn concurrent_compare_exchanges_lose_nothing() {
    everywhere("compare_exchange", 3, |scene| {
        let vars = scene.open(|node| AtomicVar::open(node, "sum", scene.id(0)));
        let rounds = scene.rounds(120, 1500);
        scene.run(|node, thread, endpoint| {
            endpoint.block_on(async {
                for round in 0..rounds {
                    if (round + thread) % 3 == 0 {
                        vars[node].fetch_add(endpoint, 1).await.unwrap();
                        continue;
                    }
                    let mut seen = vars[node].load(endpoint).await.unwrap();
                    while let Err(found) = vars[node].compare_exchange(endpoint, seen, seen + 1).await.unwrap() {
                        assert_ne!(found, seen);
                        seen = found;
                    }
                }
            });
        });
        let endpoint = scene.endpoint(2);
        let total = (rounds * scene.all_threads()) as u64;
        assert_eq!(endpoint.block_on(vars[2].load(&endpoint)).unwrap(), total);
    });
}

/// Every value swapped in is swapped out once, or is there at the end; several swaps of one thread are pending at
/// once.
#[test]
fn swaps_neither_lose_nor_double_a_value() {
    everywhere("swap", 3, |scene| {
        let vars = scene.open(|node| AtomicVar::open(node, "cell", scene.id(2)));
        let rounds = scene.rounds(80, 750);
        let out = scene.run(|node, thread, endpoint| {
            let mut out = Vec::new();
            let values = (0..rounds).map(|round| (thread * rounds + round + 1) as u64);
            let swap = |value| vars[node].swap(endpoint, value);
            endpoint.run_window(4, values.map(swap), |old| out.push(old.unwrap()));
            out
        });
        let endpoint = scene.endpoint(0);
        let mut all: Vec<u64> = out.into_iter().flatten().collect();
        all.push(endpoint.block_on(vars[0].load(&endpoint)).unwrap());
        all.sort_unstable();
        assert_eq!(all, (0..=(rounds * scene.all_threads()) as u64).collect::<Vec<_>>());
    });
}

/// A waiter sees a change, and a store is one.
#[test]
fn a_change_is_waited_for() {
    on_each_fabric("wait_change", 2, |scene| {
        let vars = scene.open(|node| AtomicVar::open(node, "flag", scene.id(0)));
        let rounds = scene.rounds(200, 1500) as u64;
        scene.run(|node, _, endpoint| {
            endpoint.block_on(async {
                for round in 0..rounds {
                    if node as u64 == round % 2 {
                        vars[node].store(endpoint, round + 1).await.unwrap();
                    } else {
                        let seen = vars[node].wait_change(endpoint, round, endpoint.deadline()).await.unwrap();
                        assert_eq!(seen, round + 1);
                    }
                }
            });
        });
        let endpoint = scene.endpoint(0);
        let deadline = endpoint.now() + crate::harness::SHORT;
        let error = refused(endpoint.block_on(vars[0].wait_change(&endpoint, rounds, deadline)));
        assert!(error.is_timeout() && error.to_string().contains("waiting for the value to change"), "{error}");
    });
}

// ---- SharedVar -------------------------------------------------------------------------------------------------

/// A push reaches the given nodes, a pull reads the given node, and a store stays here.
#[test]
fn pushes_and_pulls_reach_exactly_the_copies_named() {
    on_each_fabric("push, pull", 3, |scene| {
        let vars = scene.open(|node| SharedVar::<u64>::open(node, "x"));
        let (near, far) = (scene.endpoint(0), scene.endpoint(2));
        let copies = || [vars[0].load(), vars[1].load(), vars[2].load()];
        assert_eq!(copies(), [0, 0, 0]);
        for round in (1..).step_by(10).take(scene.rounds(80, 300)) {
            vars[0].store(round);
            near.block_on(async {
                vars[0].push(&near, [scene.id(1)]).await.unwrap();
                vars[0].fence(&near, [scene.id(1)]).await.unwrap();
            });
            assert_eq!(copies()[..2], [round, round]);
            assert_ne!(copies()[2], round);
            assert_eq!(far.block_on(vars[2].pull(&far, scene.id(1))).unwrap(), round);
            assert_eq!(copies(), [round; 3]);
            vars[2].store(round + 1);
            far.block_on(async {
                vars[2].push_all(&far).await.unwrap();
                vars[2].fence(&far, scene.nodes[2].others()).await.unwrap();
            });
            assert_eq!(copies(), [round + 1; 3]);
            vars[1].store(round + 2);
            assert_eq!(near.block_on(vars[0].pull(&near, scene.id(1))).unwrap(), round + 2);
            assert_eq!(copies(), [round + 2, round + 2, round + 1]);
        }
    });
}

/// Fig. 5: after a push and a fence, at least one of two sees the other's.
#[test]
fn after_a_push_and_a_fence_one_of_two_sees_the_other() {
    on_each_fabric("Fig. 5", 2, |scene| {
        let vars = scene.open(|node| Ok([SharedVar::<u64>::open(node, "x")?, SharedVar::<u64>::open(node, "y")?]));
        let rounds = scene.rounds(1200, 30_000) as u64;
        let together = Barrier::new(2);
        let seen = scene.run(|node, _, endpoint| {
            let (mine, other) = (&vars[node][node], &vars[node][1 - node]);
            let round = |round: u64| {
                together.wait();
                mine.store(round);
                endpoint.block_on(async {
                    mine.push_all(endpoint).await.unwrap();
                    mine.fence(endpoint, scene.nodes[node].others()).await.unwrap();
                });
                other.load()
            };
            (1..=rounds).map(round).collect::<Vec<_>>()
        });
        for round in 1..=rounds {
            let [a, b] = [seen[0][round as usize - 1], seen[1][round as usize - 1]];
            assert!(a == round || b == round, "round {round}: both saw an older value, {a} and {b}");
        }
    });
}

// ---- OwnedVar --------------------------------------------------------------------------------------------------

/// The owner stores and pushes as fast as it can; on every node readers load and pull.
fn never_torn_never_backwards<const N: usize>(scene: &Scene, wholeness: TearCheck)
where
    [u64; N]: farfield::fabric::Plain + PartialEq + std::fmt::Debug + Sync,
{
    let path = format!("value-{N}-{wholeness:?}");
    let owner = scene.id(0);
    let vars = scene.open(|node| OwnedVar::<[u64; N]>::open_with(node, &path, owner, wholeness));
    // Memory that was never written is a whole zero, here and over there.
    let far = scene.endpoint(1);
    assert_eq!(vars[1].try_load(), Some([0; N]));
    assert_eq!(far.block_on(vars[1].pull(&far)).unwrap(), [0; N]);

    let versions = scene.rounds(1000, 30_000) as u64;
    let over = AtomicBool::new(false);
    let (loaded, torn) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let read = |node: usize, pulls: bool, endpoint: &farfield::Endpoint| {
        let mut last = 0;
        loop {
            let ending = over.load(Ordering::SeqCst);
            let value =
                if pulls { Some(endpoint.block_on(vars[node].pull(endpoint)).unwrap()) } else { vars[node].try_load() };
            match value {
                Some(value) => {
                    assert_eq!(value, related::<N>(value[0]), "a torn value passed for a whole one");
                    assert!(value[0] >= last, "{} after {last}", value[0]);
                    last = value[0];
                    loaded.fetch_add(1, Ordering::Relaxed);
                }
                None => _ = torn.fetch_add(1, Ordering::Relaxed),
            }
            if ending {
                break last;
            }
            std::thread::yield_now();
        }
    };
    std::thread::scope(|scope| {
        let mut readers = Vec::new();
        for node in 0..scene.nodes.len() {
            for thread in 0..scene.threads.min(3) {
                let (read, endpoint) = (&read, scene.endpoint(node));
                readers.push(scope.spawn(move || read(node, thread % 2 == 1 || N == 2 && node == 1, &endpoint)));
            }
        }
        let at_end = SetsAtEnd(&over);
        let endpoint = scene.endpoint(0);
        let mut writer = vars[0].writer().unwrap();
        for version in 1..=versions {
            writer.store(related(version));
            assert_eq!(writer.value(), related::<N>(version));
            endpoint.block_on(writer.push(&endpoint)).unwrap();
            if version % 8 == 0 {
                // The NIC's queue stays short; in between it is as late as it likes.
                endpoint.block_on(endpoint.global_fence(scene.nodes[0].others())).unwrap();
            }
        }
        endpoint.block_on(endpoint.global_fence(scene.nodes[0].others())).unwrap();
        drop(at_end);
        for reader in readers {
            assert_eq!(reader.join().expect("a reader"), versions, "the last version can be seen by everybody");
        }
    });
    println!("{path}: {loaded:?} whole, {torn:?} torn reads noticed");
    for (node, var) in vars.iter().enumerate() {
        let endpoint = scene.endpoint(node);
        assert_eq!(endpoint.block_on(var.load(&endpoint)).unwrap(), related::<N>(versions));
    }
}

#[test]
fn a_word_is_never_seen_torn_or_backwards() {
    everywhere("a word", 3, |scene| never_torn_never_backwards::<1>(scene, TearCheck::Guards));
}

#[test]
fn values_with_guards_are_never_seen_torn_or_backwards() {
    everywhere("guards, 2 words", 3, |scene| never_torn_never_backwards::<2>(scene, TearCheck::Guards));
    everywhere("guards, 24 words", 3, |scene| never_torn_never_backwards::<24>(scene, TearCheck::Guards));
}

#[test]
fn values_with_a_checksum_are_never_seen_torn_or_backwards() {
    everywhere("checksum, 2 words", 3, |scene| never_torn_never_backwards::<2>(scene, TearCheck::Checksum));
    everywhere("checksum, 24 words", 3, |scene| never_torn_never_backwards::<24>(scene, TearCheck::Checksum));
}

/// There is one writer, on the owner.
#[test]
fn a_second_writer_and_a_stranger_are_refused() {
    on_each_fabric("writers", 2, |scene| {
        let vars = scene.open(|node| OwnedVar::<[u64; 3]>::open(node, "value", scene.id(1)));
        assert_eq!(vars[0].owner(), scene.id(1));
        let error = refused(vars[0].writer());
        assert!(matches!(error.kind(), ErrorKind::NotAParticipant { .. }) && error.object() == Some("value"));
        assert!(error.to_string().contains("only its owner, node 1"), "{error}");
        let _writer = vars[1].writer().unwrap();
        let error = refused(vars[1].writer());
        assert!(error.to_string().contains("its only writer is already taken"), "{error}");
    });
}

// ---- Sst -------------------------------------------------------------------------------------------------------

/// Each row has its owner's value, whatever the others do meanwhile.
#[test]
fn rows_are_independent() {
    everywhere("rows", 3, |scene| {
        let owners: Vec<_> = (0..scene.all_threads()).map(|thread| scene.id(thread % 3)).collect();
        let tables = scene.open(|node| Sst::<[u64; 3]>::open_with(node, "table", &owners));
        let versions = scene.rounds(240, 3000) as u64;
        let row_value = |row: usize, version: u64| [version, row as u64 * version, !version * u64::from(version > 0)];
        let done = AtomicUsize::new(0);
        scene.run(|node, thread, endpoint| {
            let table = &tables[node];
            assert_eq!(table.len(), owners.len());
            let mut mine = table.writer(thread).unwrap();
            let mut last = vec![0; table.len()];
            let mut look = || {
                for (row, var) in table.rows().enumerate() {
                    let Some(value) = var.try_load() else { continue };
                    assert_eq!(value, row_value(row, value[0]), "row {row}");
                    assert!(value[0] >= last[row]);
                    last[row] = value[0];
                }
            };
            for version in 1..=versions {
                mine.store(row_value(thread, version));
                endpoint.block_on(mine.push(endpoint)).unwrap();
                if version % 4 == 0 {
                    endpoint.block_on(endpoint.global_fence(scene.nodes[node].others())).unwrap();
                    look();
                }
            }
            endpoint.block_on(endpoint.global_fence(scene.nodes[node].others())).unwrap();
            done.fetch_add(1, Ordering::SeqCst);
            while done.load(Ordering::SeqCst) < scene.all_threads() {
                std::thread::yield_now();
            }
            for (row, var) in table.rows().enumerate() {
                let value = endpoint.block_on(var.load(endpoint)).unwrap();
                assert_eq!(value, row_value(row, versions), "row {row} in the end");
            }
        });
        let stranger = (0..owners.len()).find(|row| owners[*row] != scene.id(0)).unwrap();
        assert!(refused(tables[0].writer(stranger)).to_string().contains("only its owner"));
        assert!(refused(tables[0].writer(owners.len())).to_string().starts_with("table: row"));
    });
}
