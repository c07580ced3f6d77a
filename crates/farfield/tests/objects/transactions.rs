//! Transactions: the amounts that they move are neither lost nor made, however their cells overlap. A transaction that
//! is given up leaves nothing.

use std::pin::pin;

use farfield::fabric::Counts;
use farfield::{
    ALockOptions, Endpoint, ErrorKind, LOCKS_PER_TRANSACTION_MAX, LockArray, LockGuard, LockKind, LockOptions,
    Transaction, TransactionOptions, Transactions, on_each,
};

use crate::harness::{
    Over, Rng, SHORT, Scene, beside, eventually, everywhere, on_each_fabric, poll_times, refused, session,
};
use farfield::transactions::{NoSuchCell, NotInTransaction};

/// What every account begins with.
const AMOUNT: u64 = 1000;

fn options(kind: LockKind, cells: usize, locks: usize) -> TransactionOptions {
    // Small budgets: both cohorts have their turns.
    let alock = ALockOptions { remote_budget: 3, local_budget: 2, ..ALockOptions::default() };
    TransactionOptions { cells, locks, lock: LockOptions { kind, alock } }
}

/// Opens accounts that all hold the same.
fn open(scene: &Scene, kind: LockKind, cells: usize, locks: usize) -> Vec<Transactions> {
    let path = format!("{kind}-{cells}-{locks}");
    let all = scene.open(|node| Transactions::open(node, &path, options(kind, cells, locks)));
    for accounts in &all {
        accounts.own_cells().for_each(|(_, word)| word.store(AMOUNT));
    }
    all
}

/// Two nodes of three open cells, and transfer between them. The third need not open them, and cannot.
#[test]
fn transactions_are_opened_among_some_nodes() {
    on_each_fabric("transactions among some", 3, |scene| {
        let (pair, named) = ([0, 2], [scene.id(2), scene.id(0)]);
        let nodes = pair.map(|node| scene.nodes[node].clone());
        for kind in LockKind::ALL {
            let open = |node: &_| Transactions::open_among(node, kind.name(), &named, options(*kind, 5, 3));
            let all = on_each(&nodes, open).unwrap();
            assert_eq!([0, 1, 2].map(|cell| all[0].home(cell).unwrap()), [scene.id(0), scene.id(2), scene.id(0)]);
            assert!(all.iter().all(|accounts| accounts.len() == 5 && !accounts.is_empty()));
            for accounts in &all {
                accounts.own_cells().for_each(|(_, word)| word.store(AMOUNT));
            }
            std::thread::scope(|scope| {
                for (accounts, node) in all.iter().zip(pair) {
                    let endpoint = scene.endpoint(node);
                    scope.spawn(move || {
                        for round in 0..20 {
                            endpoint.block_on(transfer(accounts, &endpoint, round % 5, (round + node + 1) % 5, 30));
                        }
                    });
                }
            });
            assert_eq!(values(&all).iter().sum::<u64>(), 5 * AMOUNT, "{kind}");
            let error = refused(open(&scene.nodes[1]));
            assert!(matches!(error.kind(), ErrorKind::NotAParticipant { .. }), "{error:?}");
            assert_eq!(error.object(), Some(kind.name()));
        }
    });
}

/// All values, by the CPU of their nodes, when no thread works any more.
fn values(all: &[Transactions]) -> Vec<u64> {
    let mut cells: Vec<_> =
        all.iter().flat_map(Transactions::own_cells).map(|(cell, word)| (cell, word.load())).collect();
    cells.sort_unstable();
    assert!(cells.iter().map(|(cell, _)| *cell).eq(0..all[0].len()), "each cell lies on one node");
    cells.into_iter().map(|(_, value)| value).collect()
}

/// Moves as much as there is, at most `amount`.
async fn transfer(accounts: &Transactions, endpoint: &Endpoint, from: usize, to: usize, amount: u64) {
    let mut transaction = accounts.begin(endpoint, &[from, to]).await.unwrap();
    let values = transaction.read_all(&[from, to]).await.unwrap();
    let amount = amount.min(values[0]);
    transaction.write(from, values[0] - amount).unwrap();
    // Not from the first read: the two may be the same.
    let value = transaction.read(to).await.unwrap();
    transaction.write(to, value + amount).unwrap();
    transaction.commit().await.unwrap();
}

/// Few accounts and fewer locks, several transfers of a thread at a time.
#[test]
fn transfers_keep_the_sum() {
    everywhere("transfers", 3, |scene| {
        for (kind, locks) in LockKind::ALL.iter().flat_map(|kind| [(*kind, 5), (*kind, 2)]) {
            const CELLS: usize = 10;
            let all = open(scene, kind, CELLS, locks);
            let rounds = scene.rounds(60, 600);
            scene.run(|node, thread, endpoint| {
                let mut rng = Rng::new(thread as u64);
                let mut draw = || (rng.below(CELLS), rng.below(CELLS), rng.below(100) as u64);
                let next = |(from, to, amount)| transfer(&all[node], endpoint, from, to, amount);
                match thread % 2 {
                    0 => endpoint.run_window(3, (0..rounds).map(|_| next(draw())), |()| ()),
                    _ => (0..rounds).for_each(|_| endpoint.block_on(next(draw()))),
                }
            });
            let values = values(&all);
            assert!(
                values.iter().all(|value| *value <= CELLS as u64 * AMOUNT),
                "{kind}: less than nothing: {values:?}"
            );
            assert_eq!(values.iter().sum::<u64>(), CELLS as u64 * AMOUNT, "{kind}, {locks} locks: {values:?}");
        }
    });
}

/// Many cells in opposite orders, some named twice: all are seen at one moment, and no transaction waits for ever.
#[test]
fn overlapping_sets_end_and_are_seen_whole() {
    everywhere("overlapping transactions", 3, |scene| {
        for kind in LockKind::ALL {
            const CELLS: usize = 12;
            let all = open(scene, *kind, CELLS, 7);
            for accounts in &all {
                accounts.own_cells().for_each(|(cell, word)| word.store(cell as u64));
            }
            let rounds = scene.rounds(25, 250);
            scene.run(|node, thread, endpoint| {
                for round in 0..rounds {
                    let first = (thread * 5 + round) % CELLS;
                    let mut cells: Vec<usize> = (0..8).map(|at| (first + at) % CELLS).collect();
                    if thread % 2 == 1 {
                        cells.reverse();
                    }
                    cells.push(cells[3]);
                    endpoint.block_on(async {
                        let mut transaction = all[node].begin(endpoint, &cells).await.unwrap();
                        let seen = transaction.read_all(&cells).await.unwrap();
                        assert_eq!(seen[3], seen[8], "{kind}");
                        // Each gives its value to the next.
                        for at in 0..8 {
                            transaction.write(cells[(at + 1) % 8], seen[at]).unwrap();
                        }
                        match round % 5 {
                            0 => transaction.abort().await.unwrap(),
                            _ => transaction.commit().await.unwrap(),
                        }
                    });
                }
            });
            let mut values = values(&all);
            values.sort_unstable();
            assert!(values.iter().copied().eq(0..CELLS as u64), "{kind}: {values:?}");
        }
    });
}

/// Cells on different nodes are always written together.
#[test]
fn no_transaction_sees_half_of_a_commit() {
    everywhere("commits seen whole", 3, |scene| {
        for kind in LockKind::ALL {
            let all = open(scene, *kind, 6, 6);
            let rounds = scene.rounds(60, 600);
            scene.run(|node, thread, endpoint| {
                endpoint.block_on(async {
                    for round in 0..rounds {
                        // Cells 0 to 2 on three nodes.
                        let mut transaction = all[node].begin(endpoint, &[2, 0, 1]).await.unwrap();
                        let seen = transaction.read_all(&[0, 1, 2]).await.unwrap();
                        assert!(seen.iter().all(|value| *value == seen[0]), "{kind}: {seen:?}");
                        if (round + thread) % 3 == 0 {
                            drop(transaction);
                            continue;
                        }
                        (0..3).for_each(|cell| transaction.write(cell, seen[0] + 1).unwrap());
                        transaction.commit().await.unwrap();
                    }
                });
            });
            let committed = |thread| (0..rounds).filter(|round| (round + thread) % 3 != 0).count() as u64;
            let commits: u64 = (0..scene.all_threads()).map(committed).sum();
            assert_eq!(values(&all)[..3], [AMOUNT + commits; 3], "{kind}");
        }
    });
}

/// A transaction sees its own writes; others do not, until it commits.
#[test]
fn writes_take_effect_only_when_committed() {
    on_each_fabric("aborts", 3, |scene| {
        for kind in LockKind::ALL {
            let all = open(scene, *kind, 9, 9);
            let (a, b) = (scene.endpoint(0), scene.endpoint(1));
            let mut transaction = a.block_on(all[0].begin(&a, &[4, 3, 8])).unwrap();
            for cell in [3, 4] {
                transaction.write(cell, 7).unwrap();
                transaction.write(cell, 8).unwrap();
            }
            assert_eq!(a.block_on(transaction.read_all(&[4, 8, 3, 4])).unwrap(), [8, AMOUNT, 8, 8]);
            assert_eq!(a.block_on(transaction.read(3)).unwrap(), 8);
            assert_eq!(values(&all), [AMOUNT; 9]);
            assert!(!transaction.is_poisoned());
            drop(transaction);
            let mut transaction = b.block_on(all[1].begin(&b, &[3, 4])).unwrap();
            assert_eq!(b.block_on(transaction.read_all(&[3, 4])).unwrap(), [AMOUNT; 2]);
            transaction.write(3, 9).unwrap();
            transaction.clear_poison();
            b.block_on(transaction.abort()).unwrap();
            assert_eq!(values(&all), [AMOUNT; 9]);
            let mut transaction = a.block_on(all[0].begin(&a, &[3, 4])).unwrap();
            transaction.write(4, 10).unwrap();
            a.block_on(transaction.commit()).unwrap();
            assert_eq!(values(&all)[3..5], [AMOUNT, 10]);
        }
    });
}

/// A begin or a commit that is dropped on its way keeps no lock, and a commit has written all or nothing.
#[test]
fn dropping_at_any_point_keeps_no_lock() {
    on_each_fabric("dropped transactions", 3, |scene| {
        for kind in LockKind::ALL {
            let all = open(scene, *kind, 6, 6);
            let rounds = scene.rounds(1, 3);
            scene.run(|node, _, endpoint| {
                for polls in (0..rounds).flat_map(|_| 0..40) {
                    let mut begin = Box::pin(all[node].begin(endpoint, &[0, 1, 2]));
                    let Some(transaction) = poll_times(begin.as_mut(), polls) else {
                        drop(begin);
                        continue;
                    };
                    let mut transaction: Transaction<'_> = transaction.unwrap();
                    let seen = endpoint.block_on(transaction.read_all(&[0, 1, 2])).unwrap();
                    assert!(seen.iter().all(|value| *value == seen[0]), "{kind}: {seen:?}");
                    (0..3).for_each(|cell| transaction.write(cell, seen[0] + 1).unwrap());
                    let mut commit = Box::pin(transaction.commit());
                    let _ = poll_times(commit.as_mut(), polls % 7);
                }
                drop(endpoint.block_on(all[node].begin(endpoint, &[0, 1, 2])).unwrap());
            });
            let values = values(&all);
            assert!(values[..3].iter().all(|value| *value == values[0]), "{kind}: {values:?}");
        }
    });
}

/// The second of three locks is held: a deadline releases the first one, and never reaches the third.
#[test]
fn a_deadline_releases_the_locks_that_were_taken() {
    on_each_fabric("transactions that wait", 3, |scene| {
        for kind in LockKind::ALL {
            let all = open(scene, *kind, 3, 3);
            let (a, b, c) = (scene.endpoint(0), scene.endpoint(1), scene.endpoint(2));
            let held = a.block_on(all[0].begin(&a, &[1])).unwrap();
            let error = refused(b.block_on(all[1].begin_deadline(&b, &[2, 1, 0], b.now() + SHORT)));
            assert!(error.is_timeout() && error.object() == Some(&format!("{kind}-3-3/locks")), "{error}");
            for cell in [0, 2] {
                let try_lock = || c.block_on(all[2].locks().try_lock(&c, cell)).unwrap();
                c.block_on(eventually("it is free", try_lock).unlock()).unwrap();
            }
            let mut waits = pin!(all[1].begin(&b, &[0, 1, 2]));
            assert!(poll_times(waits.as_mut(), 100).is_none());
            a.block_on(held.commit()).unwrap();
            b.block_on(b.block_on(waits).unwrap().commit()).unwrap();
        }
    });
}

/// Each lock is taken once, and there may be so many of them.
#[test]
fn a_transaction_has_341_locks_at_most() {
    on_each_fabric("transactions of many cells", 2, |scene| {
        const CELLS: usize = 2000;
        for kind in LockKind::ALL {
            let all = open(scene, *kind, CELLS, LOCKS_PER_TRANSACTION_MAX + 1);
            let endpoint = scene.endpoint(1);
            let mut cells = Vec::new();
            // All cells but those of one lock, each twice, from the last to the first.
            for cell in (0..CELLS).rev().flat_map(|cell| [cell, cell]) {
                if all[1].lock_of(cell).unwrap() != 77 {
                    cells.push(cell);
                }
            }
            endpoint.block_on(async {
                let mut transaction = all[1].begin(&endpoint, &cells).await.unwrap();
                for (cell, value) in cells.iter().zip(transaction.read_all(&cells).await.unwrap()) {
                    transaction.write(*cell, value + *cell as u64).unwrap();
                }
                transaction.commit().await.unwrap();
            });
            for (cell, value) in values(&all).into_iter().enumerate() {
                let added = if cells.contains(&cell) { cell as u64 } else { 0 };
                assert_eq!(value, AMOUNT + added, "{kind}: cell {cell}");
            }
            let every: Vec<usize> = (0..CELLS).collect();
            let error = refused(endpoint.block_on(all[1].begin(&endpoint, &every)));
            assert!(matches!(error.kind(), ErrorKind::TooMany { asked: 342, max: 341, .. }), "{error:?}");
            let says = format!("{kind}-2000-342: 342 locks for one transaction exceed the limit of 341");
            assert_eq!(error.to_string(), says);
        }
    });
}

#[test]
fn invalid_options_and_cells_are_refused() {
    let _cores = beside("refused transactions");
    let scene = Scene { nodes: session(2, Over::Shm), over: Over::Shm, threads: 1 };
    for (cells, locks) in [(0, 1), (1, 0)] {
        let error = refused(Transactions::open(&scene.nodes[0], "none", options(LockKind::Spin, cells, locks)));
        assert!(matches!(error.kind(), ErrorKind::Config { .. }), "{error}");
    }
    for cells in [1 << 40, usize::MAX] {
        let error = refused(Transactions::open(&scene.nodes[0], "many", options(LockKind::Spin, cells, 1)));
        assert!(matches!(error.kind(), ErrorKind::Config { .. }) && error.object() == Some("many"), "{error:?}");
    }
    let differing = [options(LockKind::Spin, 8, 4), options(LockKind::Spin, 8, 5), options(LockKind::Mcs, 8, 4)];
    for other in 1..3 {
        let open = |node: &farfield::Node| {
            Ok(refused(Transactions::open(node, "differs", differing[node.id().index() * other])))
        };
        for error in farfield::on_each(&scene.nodes, open).unwrap() {
            assert!(matches!(error.kind(), ErrorKind::Mismatch { .. }), "{error}");
        }
    }

    let all = open(&scene, LockKind::ALock, 8, 4);
    let endpoint = scene.endpoint(0);
    let error = refused(endpoint.block_on(all[0].begin(&endpoint, &[3, 8])));
    assert_eq!(error.custom_ref(), Some(&NoSuchCell { cell: 8, cells: 8 }), "{error:?}");
    assert!(all[0].home(8).is_err() && all[0].lock_of(8).is_err());
    endpoint.block_on(async {
        let mut transaction = all[0].begin(&endpoint, &[3, 5]).await.unwrap();
        let is_not_named = |error: farfield::Error, cell| {
            assert_eq!(error.custom_ref(), Some(&NotInTransaction { cell }), "{error}");
        };
        // 7 has the lock of 3, but was not named.
        assert_eq!(all[0].lock_of(7).unwrap(), all[0].lock_of(3).unwrap());
        is_not_named(refused(transaction.read(7).await), 7);
        is_not_named(refused(transaction.read_all(&[3, 100]).await), 100);
        is_not_named(refused(transaction.write(4, 1)), 4);
        transaction.commit().await.unwrap();
        // A transaction of nothing is one.
        let nothing = all[0].begin(&endpoint, &[]).await.unwrap();
        assert!(nothing.read_all(&[]).await.unwrap().is_empty());
        nothing.commit().await.unwrap();
    });
}

/// A node is dead, and its cells with it; the others' locks are free.
#[test]
fn cells_of_a_node_that_is_gone_are_refused() {
    for locks in [2, 3] {
        for kind in LockKind::ALL {
            let _cores = beside("cells that are gone");
            let mut scene = Scene { nodes: session(3, Over::Shm), over: Over::Shm, threads: 1 };
            let mut all = open(&scene, *kind, 6, locks);
            let (a, b, gone) = (scene.endpoint(0), scene.endpoint(1), scene.id(2));
            let last = (all.pop(), scene.nodes.pop());
            let mut under_way = a.block_on(all[0].begin(&a, &[0, 2])).unwrap();
            under_way.write(0, 5).unwrap();
            drop(last);
            eventually("it is gone", || a.check_alive(gone).err());
            let error = refused(a.block_on(under_way.read(2)));
            assert_eq!(error.node(), Some(gone), "{kind}, {locks} locks: {error}");
            under_way.write(2, 5).unwrap();
            // Writes on live nodes stay written.
            let error = refused(a.block_on(under_way.commit()));
            assert_eq!(error.node(), Some(gone), "{kind}, {locks} locks: {error}");
            let error = refused(b.block_on(all[1].begin(&b, &[0, 1, 2])));
            assert!(error.is_gone() && error.node() == Some(gone), "{kind}, {locks} locks: {error}");
            let transaction = b.block_on(all[1].begin(&b, &[0, 1])).unwrap();
            assert_eq!(b.block_on(transaction.read_all(&[0, 1])).unwrap(), [5, AMOUNT]);
            b.block_on(transaction.commit()).unwrap();
        }
    }
}

/// The costs of a transfer, as on the module's page.
#[test]
fn transfers_cost_as_documented() {
    let _cores = beside("costs of transactions");
    let scene = Scene { nodes: session(3, Over::Shm), over: Over::Shm, threads: 1 };
    let endpoint = scene.endpoint(0);
    // Puts, gets, atomics, round trips.
    let card = |counts: Counts| [counts.puts, counts.gets, counts.atomics, counts.round_trips];
    for (kind, cells, costs) in [
        // On two other nodes. What one release has fenced by itself the other need not fence here.
        (LockKind::Spin, [1, 2], [[0, 0, 2, 2], [0, 2, 0, 1], [2, 1, 2, 2]]),
        (LockKind::Mcs, [1, 2], [[0, 0, 2, 2], [0, 2, 0, 1], [2, 1, 2, 2]]),
        (LockKind::Mutex, [1, 2], [[0, 0, 2, 2], [0, 2, 0, 1], [2, 1, 2, 2]]),
        (LockKind::ALock, [1, 2], [[2, 2, 2, 4], [0, 2, 0, 1], [2, 1, 2, 2]]),
        // Both on one other node.
        (LockKind::Spin, [1, 4], [[0, 0, 2, 2], [0, 2, 0, 1], [2, 0, 2, 1]]),
        (LockKind::ALock, [4, 1], [[2, 2, 2, 4], [0, 2, 0, 1], [2, 0, 2, 1]]),
        // One on the own node, and both.
        (LockKind::ALock, [2, 0], [[1, 1, 1, 2], [0, 1, 0, 1], [1, 0, 1, 1]]),
        (LockKind::ALock, [3, 0], [[0; 4]; 3]),
        (LockKind::Spin, [3, 0], [[0, 0, 2, 0], [0; 4], [0, 0, 2, 0]]),
    ] {
        let path = format!("{kind}-{cells:?}");
        let all = scene.open(|node| Transactions::open(node, &path, options(kind, 6, 6)));
        endpoint.block_on(async {
            let (transaction, begin) = endpoint.counted(all[0].begin(&endpoint, &cells)).await;
            let mut transaction = transaction.unwrap();
            let (values, read) = endpoint.counted(transaction.read_all(&cells)).await;
            assert_eq!(values.unwrap(), [0, 0]);
            cells.iter().for_each(|cell| transaction.write(*cell, 1).unwrap());
            let (committed, commit) = endpoint.counted(transaction.commit()).await;
            committed.unwrap();
            assert_eq!([card(begin), card(read), card(commit)], costs, "{kind}, cells {cells:?}");
        });
    }

    // Three nodes put to, by locks of which there are more: one fence for all of them.
    let all = scene.open(|node| Transactions::open(node, "many", options(LockKind::Spin, 12, 12)));
    endpoint.block_on(async {
        let cells: Vec<usize> = (0..12).collect();
        let mut transaction = all[0].begin(&endpoint, &cells).await.unwrap();
        cells.iter().for_each(|cell| transaction.write(*cell, 1).unwrap());
        let (committed, commit) = endpoint.counted(transaction.commit()).await;
        committed.unwrap();
        assert_eq!(card(commit), [8, 2, 12, 2]);
    });

    // The same with two locks of other nodes: each release would fence two of the three.
    let scene = Scene { nodes: session(4, Over::Shm), over: Over::Shm, threads: 1 };
    let endpoint = scene.endpoint(3);
    let all = scene.open(|node| Transactions::open(node, "few", options(LockKind::Spin, 4, 2)));
    endpoint.block_on(async {
        let mut transaction = all[3].begin(&endpoint, &[0, 1, 2]).await.unwrap();
        [0, 1, 2].iter().for_each(|cell| transaction.write(*cell, 1).unwrap());
        let (committed, commit) = endpoint.counted(transaction.commit()).await;
        committed.unwrap();
        assert_eq!(card(commit), [3, 3, 2, 2]);
    });
}
