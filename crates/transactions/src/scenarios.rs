//! Scenarios for the model checker.

mod random;

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use farfield_check::parts::cut;
use farfield_check::{Faults, Scenario, choose, crashed, was_paused, with_at_once, with_slow};
use farfield_core::Result;
use farfield_fabric::fault::{self, inject};
use farfield_fabric::{DeathRule, Endpoint, EndpointOptions, NodeId};
use farfield_locks::{ALockOptions, LockKind, LockOptions};

use crate::{TransactionOptions, Transactions};

const LOCKS: ALockOptions = ALockOptions { remote_budget: 2, local_budget: 2, operations_max: 32 };

/// All of them.
///
/// ```
/// let scenarios = farfield_transactions::scenarios::all();
/// assert!(scenarios.iter().any(|scenario| scenario.name() == "transactions/transfers"));
/// ```
pub fn all() -> Vec<Scenario> {
    let single = [
        transfers(),
        own_cells(),
        home_dies("transactions/cell-dies", [0, 2], 2),
        home_dies("transactions/lock-dies", [0, 1], 1),
        poison_cleared(),
        refused(),
        refused_long(),
        measured(),
        dropped_beside_dead(),
    ];
    with_at_once(with_slow(single.into_iter().chain(random::scenarios())), AT_ONCE)
}

/// Those that are also searched with operations that complete at once.
const AT_ONCE: &[&str] = &[
    "transactions/transfers",
    "transactions/own-cells",
    "transactions/random",
    "transactions/random-dies",
    "transactions/cell-dies",
    "transactions/refused-long",
    "transactions/measured",
];

/// A node writes its number to every cell, some of which it names twice.
fn own_cells() -> Scenario {
    Scenario::new("transactions/own-cells", "each cell has what was written to it, on its own node", 3, |cluster| {
        let options =
            TransactionOptions { cells: 7, locks: 2, lock: LockOptions { kind: LockKind::Mcs, alock: LOCKS } };
        let all = cluster.on_each(move |node| Transactions::open(node, "cells", options).map(Rc::new))?;
        let cells = Rc::clone(&all[1]);
        cluster.thread(1, "writes", move |ep| {
            ep.block_on(async {
                let named = [6, 0, 3, 1, 3, 2, 4, 5, 0];
                let mut transaction = cells.begin(ep, &named).await?;
                for cell in named {
                    transaction.write(cell, 1 + cell as u64)?;
                    assert_eq!(transaction.read(cell).await?, 1 + cell as u64);
                }
                transaction.commit().await
            })
        });
        let nodes = cluster.nodes();
        cluster.at_end(move || {
            let mut seen = 0;
            for (node, cells) in nodes.iter().zip(&all) {
                for (cell, word) in cells.own_cells() {
                    assert_eq!((cells.home(cell)?, word.load()), (node.id(), 1 + cell as u64), "cell {cell}");
                    seen += 1;
                }
            }
            assert_eq!(seen, 7);
            Ok(())
        });
        Ok(())
    })
}

/// Two nodes add one to both of two cells, or to the first, or abort. The home of the second cell dies, or that of its
/// lock too. A commit or an abort that misses them fails. No other call does, and none waits for the dead.
fn home_dies(name: &str, cells: [usize; 2], dies: usize) -> Scenario {
    let about = "what fails names the dead, and a commit that misses a cell or a lock fails";
    Scenario::new(name, about, 4, move |cluster| {
        let options =
            TransactionOptions { cells: 6, locks: 2, lock: LockOptions { kind: LockKind::ALock, alock: LOCKS } };
        let all = cluster.on_each(move |node| Transactions::open(node, "cells", options).map(Rc::new))?;
        let (nodes, first) = (cluster.node(0), Rc::clone(&all[0]));
        for node in [0, 3] {
            let all = Rc::clone(&all[node]);
            cluster.thread(node, "adds", move |ep| {
                for _ in 0..2 {
                    let writes = choose(3);
                    let (start, was_dead) = (ep.now(), Cell::new(false));
                    let done = ep.block_on(async {
                        let mut transaction = all.begin(ep, &cells).await?;
                        assert!(!transaction.is_poisoned(), "no user has died");
                        let seen = transaction.read_all(&cells).await?;
                        for (cell, seen) in cells.into_iter().zip(seen).take(writes) {
                            transaction.write(cell, seen + 1)?;
                        }
                        was_dead.set(crashed(dies));
                        if writes == 0 { transaction.abort().await } else { transaction.commit().await }
                    });
                    match done {
                        Ok(()) => assert!(!was_dead.get() || (writes < 2 && dies == 2), "it misses what has died"),
                        Err(error) if error.is_timeout() => assert!(crashed(dies), "{error}"),
                        Err(error) => {
                            let names = error.node() == Some(NodeId(dies as u16));
                            assert!(crashed(dies) && names, "{error}");
                            assert!(was_paused() || ep.now() - start < ep.timeout(), "it has waited for the dead");
                        }
                    }
                }
                if let Err(gone) = ep.check_alive(NodeId(dies as u16)) {
                    let begun = ep.block_on(all.begin(ep, &cells)).err();
                    assert_eq!(begun.and_then(|error| error.node()), gone.node(), "it has begun on a dead node");
                }
                Ok(())
            });
        }
        cluster.at_end(move || {
            let ep = nodes.endpoint()?;
            ep.block_on(async { first.begin(&ep, &cells[..1]).await?.abort().await }) // the other lock is free
        });
        Ok(())
    })
    .rule(DeathRule::Majority)
    .faults(Faults::new().crashes(1).of([dies]))
}

/// A node may die in the middle of a transaction. The next one is warned, and declares the cells whole.
fn poison_cleared() -> Scenario {
    const CELLS: [usize; 2] = [0, 2];
    let about = "after a transaction that has declared the cells whole, no other is warned";
    Scenario::new("transactions/poison-cleared", about, 3, |cluster| {
        let lock = LockOptions { kind: LockKind::ALock, alock: LOCKS };
        let options = TransactionOptions { cells: 3, locks: 1, lock };
        let all = cluster.on_each(move |node| Transactions::open(node, "cells", options).map(Rc::new))?;
        let dies = Rc::clone(&all[1]);
        cluster.thread(1, "dies", move |ep| {
            ep.block_on(async {
                let mut transaction = dies.begin(ep, &CELLS).await?;
                CELLS.into_iter().try_for_each(|cell| transaction.write(cell, 1))?;
                transaction.commit().await
            })
        });
        let (node, cells) = (cluster.node(0), Rc::clone(&all[0]));
        cluster.at_end(move || {
            let ep = node.endpoint()?;
            ep.block_on(async {
                let mut transaction = cells.begin(&ep, &CELLS).await?;
                assert!(!transaction.is_poisoned() || crashed(1), "no holder has died");
                transaction.clear_poison();
                transaction.commit().await?;
                let transaction = cells.begin(&ep, &CELLS).await?;
                assert!(!transaction.is_poisoned(), "the cells were declared whole");
                transaction.abort().await
            })
        });
        Ok(())
    })
    .faults(Faults::new().crashes(1).of([1]))
}

/// The home of the first of two cells may die in the middle of a transaction. A commit that is dropped after its first
/// poll has written the other cell all the same: all puts are posted before the first wait.
fn dropped_beside_dead() -> Scenario {
    const CELLS: [usize; 2] = [1, 3];
    let about = "a commit that is dropped has written each cell of a live node";
    Scenario::new("transactions/dropped-beside-dead", about, 3, |cluster| {
        // All locks are on node 0, and so is the second of the cells.
        let options =
            TransactionOptions { cells: 4, locks: 1, lock: LockOptions { kind: LockKind::Spin, alock: LOCKS } };
        let all = cluster.on_each(move |node| Transactions::open(node, "cells", options).map(Rc::new))?;
        let (cells, is_dropped) = (Rc::clone(&all[2]), Rc::new(Cell::new(false)));
        let dropped = Rc::clone(&is_dropped);
        cluster.thread(2, "writes", move |ep| {
            let begun = ep.block_on(cells.begin(ep, &CELLS));
            let mut transaction = match begun {
                Err(error) if error.is_gone() => return Ok(()),
                begun => begun?,
            };
            // Perhaps the home of the first cell dies here. Then its put fails at once.
            ep.block_on(ep.pause());
            while crashed(1) && ep.check_alive(NodeId(1)).is_ok() {
                ep.block_on(ep.wait_for_change(ep.deadline()));
            }
            CELLS.into_iter().try_for_each(|cell| transaction.write(cell, 1))?;
            drop(ep.block_on(cut(0, transaction.commit())));
            dropped.set(true);
            Ok(())
        });
        cluster.at_end(move || {
            let (_, word) = all[0].own_cells().find(|(cell, _)| *cell == CELLS[1]).expect("it is there");
            assert_eq!(word.load(), u64::from(is_dropped.get()), "the commit was dropped before it had written it");
            Ok(())
        });
        Ok(())
    })
    .faults(Faults::new().crashes(1).of([1]))
}

/// Nodes that measure: a transaction is done as on others, and each of its two calls is counted once.
fn measured() -> Scenario {
    Scenario::new("transactions/measured", "a measured transaction is done, and counted, once", 2, |cluster| {
        let lock = LockOptions { kind: LockKind::Spin, alock: LOCKS };
        let options = TransactionOptions { cells: 2, locks: 2, lock };
        let all = cluster.on_each(move |node| Transactions::open(node, "cells", options).map(Rc::new))?;
        for node in [0, 1] {
            let cells = Rc::clone(&all[node]);
            cluster.thread(node, "adds", move |ep| {
                ep.block_on(async {
                    let mut transaction = cells.begin(ep, &[0, 1]).await?;
                    let seen = transaction.read_all(&[0, 1]).await?;
                    assert_eq!(seen[0], seen[1], "half of a transaction was seen");
                    (0..2).try_for_each(|cell| transaction.write(cell, seen[0] + 1))?;
                    transaction.commit().await
                })
            });
        }
        let nodes = cluster.nodes();
        cluster.at_end(move || {
            let cells = all.iter().flat_map(|of| of.own_cells());
            assert!(cells.into_iter().all(|(_, word)| word.load() == 2), "both have added one to each");
            for metrics in nodes.iter().map(|node| node.metrics()) {
                let count = |call| metrics.call("cells", call).map(|counts| counts.latencies.count());
                assert_eq!([count("begin"), count("commit")], [Some(1); 2], "on {}", metrics.node);
            }
            Ok(())
        });
        Ok(())
    })
    .measured()
}

/// One of the operations of node 1 is refused, whichever it is. Where a transaction has not begun, it is begun again. A
/// commit repeats the puts that were refused, and each lock is released.
fn refused() -> Scenario {
    const CELLS: [usize; 3] = [0, 2, 3];
    let about = "a commit of which an operation is refused is done whole, and leaves no lock taken";
    Scenario::new("transactions/refused", about, 3, |cluster| {
        let kind = LockKind::ALL[cluster.draw(LockKind::ALL.len())];
        let options = TransactionOptions { cells: 4, locks: 2, lock: LockOptions { kind, alock: LOCKS } };
        let all = cluster.on_each(move |node| Transactions::open(node, "cells", options).map(Rc::new))?;
        for node in [1, 2] {
            let cells = Rc::clone(&all[node]);
            cluster.thread(node, "adds", move |ep| {
                let faults = fault::Faults::default();
                let ep = Endpoint::open(inject(ep.transport().clone(), faults.clone()), EndpointOptions::default())?;
                if node == 1 {
                    faults.fail_after(choose(24) as u64);
                }
                let mut transaction = again(|| ep.block_on(cells.begin(&ep, &CELLS)))?;
                let seen = again(|| ep.block_on(transaction.read_all(&CELLS)))?;
                CELLS.into_iter().zip(seen).try_for_each(|(cell, seen)| transaction.write(cell, seen + 1))?;
                ep.block_on(transaction.commit())
            });
        }
        let nodes = cluster.nodes();
        cluster.at_end(move || {
            for (node, cells) in nodes.iter().zip(&all) {
                let ep = node.endpoint()?;
                ep.block_on(async {
                    let transaction = cells.begin(&ep, &CELLS).await?;
                    assert_eq!(transaction.read_all(&CELLS).await?, [2; 3], "both have added one to each");
                    transaction.abort().await
                })?;
            }
            Ok(())
        });
        Ok(())
    })
}

/// From some moment of a commit or an abort on, each operation of its node is refused, or each on one other node, until
/// a later moment. It ends with that error, or it is done whole and has released each lock.
fn refused_long() -> Scenario {
    const CELLS: [usize; 3] = [0, 1, 2];
    let about = "a transaction is refused its operations for long, and ends with that error, or whole";
    Scenario::new("transactions/refused-long", about, 3, |cluster| {
        let refusals = fault::Faults::default();
        let first = cluster.start_refusing(0, refusals.clone())?;
        (1..3).try_for_each(|node| cluster.start(node).map(drop))?;
        first.wait_for_all(first.timeout())?;
        let kind = LockKind::ALL[cluster.draw(LockKind::ALL.len())];
        let options = TransactionOptions { cells: 4, locks: 2, lock: LockOptions { kind, alock: LOCKS } };
        let all = cluster.on_each(move |node| Transactions::open(node, "cells", options).map(Rc::new))?;
        let (cells, value) = (Rc::clone(&all[0]), Rc::new(Cell::new(None)));
        let (done, heals) = (Rc::clone(&value), refusals.clone());
        cluster.thread(0, "heals", move |ep| {
            // Before the commit gives up a put, or between that and the end of its fence, or later.
            let after = Duration::from_millis([25, 75, 400][choose(3)]);
            ep.block_on(ep.sleep_until(ep.now() + after));
            heals.cut(NodeId(2), false);
            heals.fail_after(u64::MAX);
            Ok(())
        });
        cluster.thread(0, "writes", move |ep| {
            ep.set_timeout(Duration::from_millis(50));
            let mut transaction = ep.block_on(cells.begin(ep, &CELLS))?;
            CELLS.into_iter().try_for_each(|cell| transaction.write(cell, 1))?;
            let (commits, misses_a_node) = (choose(2) == 0, choose(2) == 0);
            if misses_a_node {
                refusals.cut(NodeId(2), true); // the lock of its cell is on another node
            } else {
                refusals.fail_some(choose(8) as u64, u32::MAX);
            }
            let ends =
                ep.block_on(async { if commits { transaction.commit().await } else { transaction.abort().await } });
            refusals.cut(NodeId(2), false);
            refusals.fail_after(u64::MAX);
            match ends {
                Err(error) if error.is_refused() => Ok(()),
                ends => ends.map(|()| done.set(Some(u64::from(commits)))),
            }
        });
        let node = cluster.node(1);
        cluster.at_end(move || {
            let ep = node.endpoint()?;
            // The service thread repeats a refused release a moment later.
            ep.block_on(ep.sleep_until(ep.now() + Duration::from_secs(1)));
            let Some(value) = value.get() else { return Ok(()) };
            ep.block_on(async {
                let transaction = all[1].begin(&ep, &CELLS).await?;
                assert_eq!(transaction.read_all(&CELLS).await?, [value; 3], "it has said that it is done");
                transaction.abort().await
            })
        });
        Ok(())
    })
    .late_nodes()
}

/// Repeats a refused call.
fn again<T>(mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
    loop {
        match attempt() {
            Err(error) if error.is_refused() => {}
            done => return done,
        }
    }
}

/// Each node transfers an amount from its own account to the other's. It names its own account first, which is
/// second for the other node.
fn transfers() -> Scenario {
    const AMOUNT: u64 = 100;
    let about = "transfers under two locks keep the sum, and no cycle of waits forms";
    Scenario::new("transactions/transfers", about, 2, |cluster| {
        let lock = LockOptions { kind: LockKind::ALock, alock: LOCKS };
        let options = TransactionOptions { cells: 2, locks: 2, lock };
        let all = cluster.on_each(move |node| Transactions::open(node, "accounts", options).map(Rc::new))?;
        for accounts in &all {
            accounts.own_cells().for_each(|(_, word)| word.store(AMOUNT));
        }
        for (node, amount) in [(0, 30), (1, 7)] {
            let accounts = Rc::clone(&all[node]);
            cluster.thread(node, "transfer", move |ep| {
                ep.block_on(async {
                    let cells = [node, 1 - node];
                    let mut transaction = accounts.begin(ep, &cells).await?;
                    let held = transaction.read_all(&cells).await?;
                    assert_eq!(held[0] + held[1], 2 * AMOUNT, "half of a transfer was seen: {held:?}");
                    transaction.write(cells[0], held[0] - amount)?;
                    transaction.write(cells[1], held[1] + amount)?;
                    transaction.commit().await
                })
            });
        }
        cluster.at_end(move || {
            let held: Vec<u64> = all.iter().flat_map(|of| of.own_cells()).map(|(_, word)| word.load()).collect();
            assert_eq!(held, [AMOUNT - 23, AMOUNT + 23], "both transfers were done");
            Ok(())
        });
        Ok(())
    })
    .kills(&["transactions-unordered"])
}
