//! Conditional updates: keys that move from one register to another.

use std::rc::Rc;

use farfield_check::{Cluster, Faults, Scenario};
use farfield_core::Result;
use farfield_fabric::Word;

use super::store::options;
use super::store_parts::{Opened, Recorded, client, client_unfailing, open, open_small};
use crate::SwarmStoreOptions;

pub(super) fn scenarios() -> Vec<Scenario> {
    vec![
        replaces(),
        beside_update(),
        beside_two_updates(),
        beside_late_update(),
        beside_stale(),
        beside_looks(),
        beside_delete(),
        twice(),
        late_look(),
        kept(),
        neighbours(),
        reused(),
        dropped(),
        random(),
        one_word(),
        mover_dies(),
        memory_dies(),
    ]
}

/// Each client replaces the value of another one's, if it is there.
fn replaces() -> Scenario {
    Scenario::new("swarm-kv/replaces", "of several conditional updates of one value one succeeds", 3, |cluster| {
        let Opened { stores, history } = open(cluster, options())?;
        let slow = cluster.draw(4);
        for node in 0..3 {
            client(cluster, node, &stores, &history, move |client| {
                if slow == node {
                    client.set_slow(slow);
                }
                let value = node as u64 + 2;
                client.upsert(0, 1)?;
                client.replace(0, [1, value])?;
                client.replace(0, [2, value + 10])?;
                client.get(0)
            });
        }
        Ok(())
    })
}

/// A write that takes one round trip, beside the move. Guesses are stale or not.
fn beside_update() -> Scenario {
    let about = "an update beside a conditional one happens once";
    Scenario::new("swarm-kv/replace-update", about, 3, |cluster| {
        let Opened { stores, history } = open(cluster, options())?;
        let (turn, slow) = (Rc::new(Word::new(0)), [0; 3].map(|_| cluster.draw(4)));
        let ahead = 20 * cluster.draw(2) as u64;
        for (node, slow) in slow.into_iter().enumerate() {
            let turn = Rc::clone(&turn);
            client(cluster, node, &stores, &history, move |client| {
                if node == 0 {
                    client.insert(0, 1)?;
                    client.set_ahead(ahead);
                    turn.store(1);
                }
                client.wait_for(&turn, 1)?;
                if slow < 3 {
                    client.set_slow(slow);
                }
                match node {
                    0 => client.replace(0, [1, 2]),
                    1 => client.update(0, 3),
                    _ => client.get(0),
                }?;
                client.get(0)
            });
        }
        Ok(())
    })
    .kills(&["swarm-freeze-unseen"])
}

/// Two of them, of which one is stale.
fn beside_two_updates() -> Scenario {
    let about = "a stale update beside a conditional one happens once";
    Scenario::new("swarm-kv/replace-stale", about, 4, |cluster| {
        let Opened { stores, history } = open(cluster, options())?;
        let (turn, slow) = (Rc::new(Word::new(0)), [0; 4].map(|_| cluster.draw(4)));
        let ahead = 50 * cluster.draw(2) as u64;
        for (node, slow) in slow.into_iter().enumerate() {
            let turn = Rc::clone(&turn);
            client(cluster, node, &stores, &history, move |client| {
                if node == 0 {
                    client.insert(0, 1)?;
                    turn.store(1);
                }
                client.wait_for(&turn, 1)?;
                client.get(0)?;
                if slow < 3 {
                    client.set_slow(slow);
                }
                match node {
                    0 => client.replace(0, [1, 2]),
                    1 => {
                        client.set_ahead(ahead);
                        client.update(0, 3)
                    }
                    2 => client.update(0, 4),
                    _ => client.get(0),
                }?;
                client.get(0)
            });
        }
        Ok(())
    })
    .kills(&["swarm-limit-again"])
}

/// An update is on its way while a reader takes its guess, another update follows it, and the key moves.
fn beside_late_update() -> Scenario {
    let about = "an update that was read, and comes after a move, happens once";
    Scenario::new("swarm-kv/replace-late", about, 4, |cluster| {
        let Opened { stores, history } = open(cluster, options())?;
        let (turn, slow) = (Rc::new(Word::new(0)), [0; 4].map(|_| cluster.draw(3)));
        for (node, slow) in slow.into_iter().enumerate() {
            let turn = Rc::clone(&turn);
            client(cluster, node, &stores, &history, move |client| {
                if node == 0 {
                    client.insert(0, 1)?;
                    turn.store(1);
                }
                client.wait_for(&turn, if node == 0 { 1 } else { node as u64 })?;
                client.get(0)?;
                client.set_slow(slow);
                match node {
                    1 => client.update_with_a_rest(0, 3, || {
                        turn.store(2);
                        client.wait_for(&turn, 4)
                    }),
                    2 => {
                        client.get(0)?;
                        turn.store(3);
                        client.wait_for(&turn, 4)?;
                        (0..3).try_for_each(|_| client.get(0))
                    }
                    3 => {
                        client.update(0, 4)?;
                        client.replace(0, [4, 5])?;
                        turn.store(4);
                        client.get(0)
                    }
                    _ => Ok(()),
                }
            });
        }
        Ok(())
    })
    .faults(Faults::new().stalls(1).of([1]))
    .kills(&["swarm-below-unlocked"])
}

/// The guess of the update is always stale: its value is written twice, while the key moves and a reader looks.
fn beside_stale() -> Scenario {
    let about = "a read beside a move takes no write that does not count";
    Scenario::new("swarm-kv/replace-read", about, 3, |cluster| {
        let slow = slow_ones(cluster);
        after_insert(cluster, slow, 50, |node, client| {
            match node {
                0 => client.replace(0, [1, 2]),
                1 => client.update(0, 3),
                _ => client.get(0),
            }?;
            client.get(0)
        })
    })
    .kills(&["swarm-stale-verified"])
}

/// A reader asks another majority at each look, beside a conditional update that does so, too.
fn beside_looks() -> Scenario {
    let about = "a read beside a conditional update finds nothing that does not count";
    Scenario::new("swarm-kv/replace-looks", about, 3, |cluster| {
        let slow = slow_ones(cluster);
        after_insert(cluster, slow, 0, |node, client| {
            match node {
                0 => client.replace(0, [1, 2]),
                1 => client.update(0, 3),
                _ => client.get_among_others(0),
            }?;
            client.get(0)
        })
    })
    .kills(&["swarm-frozen-after"])
}

/// The first client inserts a key, with its clock so far ahead, and the others find it. Then each makes its calls.
fn after_insert(
    cluster: &Cluster,
    slow: [usize; 3],
    ahead: u64,
    calls: impl Fn(usize, &Recorded<'_, '_>) -> Result<()> + Clone + 'static,
) -> Result<()> {
    let Opened { stores, history } = open(cluster, options())?;
    let turn = Rc::new(Word::new(0));
    for (node, slow) in slow.into_iter().enumerate() {
        let (turn, calls) = (Rc::clone(&turn), calls.clone());
        client(cluster, node, &stores, &history, move |client| {
            if node == 0 {
                client.set_ahead(ahead);
                client.insert(0, 1)?;
                turn.store(1);
            } else {
                client.wait_for(&turn, 1)?;
                client.get(0)?;
            }
            client.set_slow(slow);
            calls(node, client)
        });
    }
    Ok(())
}

/// Each asks another majority, or any.
fn slow_ones(cluster: &Cluster) -> [usize; 3] {
    match cluster.draw(2) {
        0 => [1, 0, 2],
        _ => [0; 3].map(|_| cluster.draw(3)),
    }
}

/// A delete, and inserts after it.
fn beside_delete() -> Scenario {
    Scenario::new("swarm-kv/replace-delete", "a key is moved or deleted", 3, |cluster| {
        let (slow, kind) = (slow_ones(cluster), cluster.draw(2));
        after_insert(cluster, slow, 0, move |node, client| {
            match (node, kind) {
                (0, _) => client.replace(0, [1, 2]),
                (1, _) => client.delete(0),
                (_, 0) => client.get(0),
                _ => client.insert(0, 3),
            }?;
            if node == 0 && kind > 0 {
                client.insert(0, 4)?;
            }
            client.get(0)
        })
    })
    .kills(&["swarm-seal-once", "swarm-end-unowned", "swarm-sealed-frozen"])
}

/// Two clients move a key, and an update comes between their looks at its register: the first move ends without it, and
/// the second one has found it.
fn twice() -> Scenario {
    let about = "of several moves of a key one counts, and so does its limit";
    Scenario::new("swarm-kv/replace-twice", about, 3, |cluster| {
        let Opened { stores, history } = open(cluster, options())?;
        let turn = Rc::new(Word::new(0));
        let turns = Rc::clone(&turn);
        client(cluster, 0, &stores, &history, move |client| {
            client.wait_for(&turns, 2)?;
            client.replace_with_rests(
                0,
                [1, 2],
                |test, _| {
                    if test == 1 { client.pass_turn(&turns, [3, 5]) } else { Ok(()) }
                },
            )?;
            turns.store(6);
            client.get(0)
        });
        let turns = Rc::clone(&turn);
        client(cluster, 2, &stores, &history, move |client| {
            client.wait_for(&turns, 1)?;
            client.replace_with_rests(0, [1, 4], |test, _| match test {
                0 => client.pass_turn(&turns, [2, 4]),
                1 => client.pass_turn(&turns, [5, 6]),
                _ => Ok(()),
            })?;
            turns.store(7);
            client.get(0)
        });
        client(cluster, 1, &stores, &history, move |client| {
            client.insert(0, 1)?;
            client.pass_turn(&turn, [1, 3])?;
            client.update_with_a_rest(0, 3, || client.pass_turn(&turn, [4, 7]))?;
            client.get(0)
        });
        Ok(())
    })
}

/// A client has found a key, which moves then. An update comes too late for the move, and its client has used its
/// buffers again by the time that the first client goes on.
fn late_look() -> Scenario {
    let about = "a conditional update tests values of its key only";
    Scenario::new("swarm-kv/replace-late-look", about, 3, |cluster| {
        let Opened { stores, history } = open(cluster, options())?;
        let turn = Rc::new(Word::new(0));
        let turns = Rc::clone(&turn);
        client(cluster, 0, &stores, &history, move |client| {
            client.wait_for(&turns, 2)?;
            client.replace(0, [1, 2])?;
            // It does not give the register back meanwhile.
            client.pass_turn(&turns, [3, 4])
        });
        let turns = Rc::clone(&turn);
        client(cluster, 2, &stores, &history, move |client| {
            client.wait_for(&turns, 1)?;
            client.replace_with_rests(0, [1, 4], |test, found| {
                assert!(found < 10, "{found} is a value of another key");
                if test == 0 { client.pass_turn(&turns, [2, 4]) } else { Ok(()) }
            })?;
            client.get(0)
        });
        client(cluster, 1, &stores, &history, move |client| {
            client.insert(0, 1)?;
            client.insert(1, 10)?;
            client.pass_turn(&turn, [1, 3])?;
            client.update(0, 3)?;
            // The buffer of that update is used again, whichever is taken next.
            client.update(0, 5)?;
            client.wait_for_used()?;
            (11..=14).try_for_each(|value| client.update(1, value))?;
            turn.store(4);
            client.get(0)
        });
        Ok(())
    })
}

/// The value changes between the look and the freeze: it moves as it is.
fn kept() -> Scenario {
    Scenario::new("swarm-kv/replace-kept", "a value that fails the test after all stays", 3, |cluster| {
        let Opened { stores, history } = open(cluster, options())?;
        client(cluster, 0, &stores, &history, |client| {
            client.insert(0, 1)?;
            client.replace(0, [1, 2])?;
            client.replace(0, [2, 3])?;
            client.get(0)
        });
        for node in 1..3 {
            client(cluster, node, &stores, &history, move |client| {
                let value = 10 * node as u64;
                client.update(0, value)?;
                client.update(0, value + 1)?;
                client.get(0)
            });
        }
        Ok(())
    })
}

/// The client that moves the key stops at some moment, and another key changes the index: the limit has to be found
/// after that.
fn neighbours() -> Scenario {
    let about = "whether an update counts is known after the index has changed again";
    Scenario::new("swarm-kv/replace-neighbours", about, 3, |cluster| {
        let (slow, has_stopped) = (slow_ones(cluster), Rc::new(Word::new(0)));
        after_insert(cluster, slow, 0, move |node, client| match node {
            0 => {
                client.replace_or_drop(0, [1, 2])?;
                has_stopped.store(1);
                Ok(())
            }
            1 => {
                client.update(0, 3)?;
                client.get(0)
            }
            _ => {
                client.wait_for(&has_stopped, 1)?;
                client.insert(1, 4)?;
                client.get(0)?;
                client.update(0, 5)?;
                client.get(0)?;
                client.get(0)
            }
        })
    })
}

/// With few registers: the one that the key has left is used again, and moves once more.
fn reused() -> Scenario {
    Scenario::new("swarm-kv/replace-reuse", "a register that a key has left is used again", 3, |cluster| {
        let Opened { stores, history } = open_small(cluster, options(), 2)?;
        client(cluster, 0, &stores, &history, |client| {
            client.insert(0, 1)?;
            client.replace(0, [1, 2])?;
            client.replace(0, [2, 3])?;
            client.replace(0, [3, 4])?;
            client.get(0)
        });
        for node in 1..3 {
            client(cluster, node, &stores, &history, move |client| {
                let value = 10 * node as u64;
                client.get(0)?;
                client.update(0, value)?;
                client.get(0)
            });
        }
        Ok(())
    })
}

/// A conditional update is dropped at some moment.
fn dropped() -> Scenario {
    Scenario::new("swarm-kv/replace-dropped", "a dropped conditional update happens once or not at all", 3, |cluster| {
        let Opened { stores, history } = open_small(cluster, options(), 2)?;
        client(cluster, 0, &stores, &history, |client| {
            client.insert(0, 1)?;
            client.replace_or_drop(0, [1, 2])?;
            client.get(0)?;
            client.leave_rest()?;
            client.replace(0, [1, 3])?;
            client.get(0)
        });
        for node in 1..3 {
            client(cluster, node, &stores, &history, move |client| {
                client.get(0)?;
                client.update(0, 10 * node as u64)?;
                client.get(0)
            });
        }
        Ok(())
    })
}

fn random() -> Scenario {
    Scenario::new("swarm-kv/replace-random", "random calls with conditional updates are linearizable", 3, |cluster| {
        random_calls(cluster, options())
    })
}

/// With one metadata word for all clients.
fn one_word() -> Scenario {
    let about = "conditional updates of clients that share metadata words are linearizable";
    Scenario::new("swarm-kv/replace-one-word", about, 3, |cluster| {
        let mut options = options();
        options.replicas.metadata_words = 1;
        random_calls(cluster, options)
    })
}

fn random_calls(cluster: &Cluster, options: SwarmStoreOptions) -> Result<()> {
    let Opened { stores, history } = open_small(cluster, options, 3)?;
    for node in 0..3 {
        let (ahead, slow) = (20 * cluster.draw(3) as u64, cluster.draw(4));
        let calls: Vec<usize> = (0..4).map(|_| cluster.draw(6)).collect();
        client(cluster, node, &stores, &history, move |client| {
            client.set_ahead(ahead);
            if slow < 3 {
                client.set_slow(slow);
            }
            let mut value = 10 * node as u64 + 1;
            client.insert_if_room(0, value)?;
            calls.iter().try_for_each(|kind| {
                let before = value;
                value += 1;
                match kind {
                    0 => client.get(0),
                    1 => client.insert_if_room(0, value),
                    2 => client.update(0, value),
                    3 => client.delete(0),
                    4 => client.replace_if_room(0, [before, value]),
                    _ => client.replace_if_room(0, [1, value]),
                }
            })
        });
    }
    Ok(())
}

/// The client that moves a key dies in the middle.
fn mover_dies() -> Scenario {
    Scenario::new("swarm-kv/mover-dies", "others end the move of a dead client", 4, |cluster| {
        let Opened { stores, history } = open(cluster, options())?;
        client(cluster, 3, &stores, &history, |client| {
            client.insert(0, 1)?;
            client.replace(0, [1, 2])?;
            client.replace(0, [2, 3])
        });
        for node in 0..2 {
            client_unfailing(cluster, node, &stores, &history, move |client| {
                client.get(0)?;
                client.update(0, 4 + node as u64)?;
                client.get(0)
            });
        }
        Ok(())
    })
    .faults(Faults::new().crashes(1).of([3]))
}

/// A memory node dies, and no call fails.
fn memory_dies() -> Scenario {
    Scenario::new("swarm-kv/replace-memory-dies", "no move fails when a memory node dies", 4, |cluster| {
        let Opened { stores, history } = open(cluster, options())?;
        client_unfailing(cluster, 0, &stores, &history, |client| {
            client.insert(0, 1)?;
            client.replace(0, [1, 2])?;
            client.get(0)
        });
        client_unfailing(cluster, 3, &stores, &history, |client| {
            client.get(0)?;
            client.update(0, 3)?;
            client.replace(0, [3, 4])?;
            client.get(0)
        });
        Ok(())
    })
    .faults(Faults::new().crashes(1).of([2]))
}
