//! Registers whose timestamps are used up: keys move to others, and those begin an instance of the next epoch.

use std::rc::Rc;

use farfield_check::{Faults, Scenario};
use farfield_fabric::Word;

use super::store::options;
use super::store_parts::{Opened, client, client_unfailing, open, open_small};
use crate::version::TIMESTAMP_MAX;
use crate::{SwarmOptions, SwarmStoreOptions};

pub(super) fn scenarios() -> Vec<Scenario> {
    vec![renews(), random(), locked(), halfway(), renewer_dies()]
}

/// So many microseconds before the end of a register's timestamps the clocks begin.
const LEFT: u64 = 1_000_000;

/// A clock that is set forward so far finds no timestamp any more.
const LATER: u64 = 2 * LEFT;

fn old_options() -> SwarmStoreOptions {
    let replicas = SwarmOptions { first_timestamp: TIMESTAMP_MAX - LEFT, ..options().replicas };
    SwarmStoreOptions { replicas, ..options() }
}

/// Some find the register used up, and others do not.
fn renews() -> Scenario {
    let about = "updates of a register whose timestamps end happen once";
    Scenario::new("swarm-kv/renews", about, 3, |cluster| {
        let Opened { stores, history } = open(cluster, old_options())?;
        let turn = Rc::new(Word::new(0));
        for node in 0..3 {
            let (turn, is_late, kind) = (Rc::clone(&turn), cluster.draw(2) == 1, cluster.draw(3));
            client(cluster, node, &stores, &history, move |client| {
                if node == 0 {
                    client.insert(0, 1)?;
                    turn.store(1);
                }
                client.wait_for(&turn, 1)?;
                client.get(0)?;
                if is_late {
                    client.set_ahead(LATER);
                }
                match kind {
                    0 => client.delete(0)?,
                    1 => client.replace(0, [1, 10 + node as u64])?,
                    _ => client.update(0, 20 + node as u64)?,
                }
                client.update(0, 30 + node as u64)?;
                client.get(0)
            });
        }
        Ok(())
    })
}

/// Clocks pass the end at some moment, and registers are used again.
fn random() -> Scenario {
    let about = "random calls while timestamps end are linearizable";
    Scenario::new("swarm-kv/renews-random", about, 3, |cluster| {
        let Opened { stores, history } = open_small(cluster, old_options(), 3)?;
        for node in 0..3 {
            let calls: Vec<usize> = (0..5).map(|_| cluster.draw(6)).collect();
            client(cluster, node, &stores, &history, move |client| {
                let mut value = 10 * node as u64 + 1;
                client.insert_if_room(0, value)?;
                calls.iter().try_for_each(|kind| {
                    let before = value;
                    value += 1;
                    match kind {
                        0 => client.get(0),
                        1 => client.insert_if_room(0, value),
                        2 => client.update_if_room(0, value),
                        3 => client.delete_if_room(0),
                        4 => client.replace_if_room(0, [before, value]),
                        _ => {
                            client.set_ahead(LATER);
                            Ok(())
                        }
                    }
                })
            });
        }
        Ok(())
    })
}

/// A register begins an instance of the next epoch, after its timestamp lock was taken in the one before.
fn locked() -> Scenario {
    let about = "a stale update of a later epoch takes the lock of an earlier one";
    Scenario::new("swarm-kv/renews-locked", about, 3, |cluster| {
        let Opened { stores, history } = open_small(cluster, old_options(), 1)?;
        let turn = Rc::new(Word::new(0));
        for node in 0..2 {
            let turn = Rc::clone(&turn);
            client(cluster, node, &stores, &history, move |client| {
                let stale = |ahead, values: [u64; 2], first: u64| {
                    client.wait_for(&turn, first + node as u64)?;
                    if node == 0 {
                        client.set_ahead(ahead);
                    } else {
                        client.get(0)?;
                    }
                    client.update(0, values[node])?;
                    client.get(0)?;
                    turn.store(first + node as u64 + 1);
                    Ok(())
                };
                if node == 0 {
                    client.insert(0, 1)?;
                }
                stale(50, [2, 3], 0)?;
                if node == 0 {
                    client.wait_for(&turn, 2)?;
                    client.delete(0)?;
                    client.set_ahead(LATER);
                    client.leave_rest()?;
                    client.insert(0, 4)?;
                    turn.store(3);
                }
                stale(LATER + 50, [5, 6], 3)
            });
        }
        Ok(())
    })
    .kills(&["swarm-lock-of-epoch"])
}

/// A client ends the work of an earlier one. That one's clock was in the next epoch already, and its work has
/// reached one memory node.
fn halfway() -> Scenario {
    let about = "all memory nodes have the same instance of a register";
    Scenario::new("swarm-kv/renews-halfway", about, 3, |cluster| {
        let Opened { stores, history } = open_small(cluster, options(), 1)?;
        let (turn, replica) = (Rc::new(Word::new(0)), cluster.draw(3));
        let turns = Rc::clone(&turn);
        client(cluster, 0, &stores, &history, move |client| {
            client.insert(0, 1)?;
            client.delete(0)?;
            client.leave_first()?;
            client.begin_next_epoch_on(replica)?;
            client.leave_rest()?;
            client.insert(0, 2)?;
            turns.store(1);
            client.get(0)
        });
        client(cluster, 1, &stores, &history, move |client| {
            client.wait_for(&turn, 1)?;
            client.set_slow(replica);
            client.get(0)?;
            client.update(0, 3)?;
            client.get(0)
        });
        Ok(())
    })
    .kills(&["swarm-epoch-halfway"])
}

/// A client dies while it moves a key, or begins the next instance of a register.
fn renewer_dies() -> Scenario {
    let about = "others go on when a client dies while timestamps end";
    Scenario::new("swarm-kv/renewer-dies", about, 4, |cluster| {
        let Opened { stores, history } = open(cluster, old_options())?;
        client(cluster, 3, &stores, &history, |client| {
            client.insert(0, 1)?;
            client.set_ahead(LATER);
            client.update(0, 2)?;
            client.delete(0)?;
            client.insert(0, 3)
        });
        for node in 0..2 {
            client_unfailing(cluster, node, &stores, &history, move |client| {
                client.get(0)?;
                client.upsert(0, 4 + node as u64)?;
                client.get(0)
            });
        }
        Ok(())
    })
    .faults(Faults::new().crashes(1).of([3]))
}
