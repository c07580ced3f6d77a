//! Scenarios of the store. Its calls on each key have to be linearizable.

use std::rc::Rc;

use farfield_check::{Cluster, Scenario};
use farfield_core::Result;
use farfield_core::history::kv::KvInput;
use farfield_fabric::Word;

use super::store_parts::{Agreed, Opened, client, open, open_small};
use crate::{SwarmOptions, SwarmStoreOptions};

pub(super) fn scenarios() -> Vec<Scenario> {
    vec![
        inserts(),
        insert_get(),
        delete_get(),
        deletes(),
        deletes_inserts(),
        update_delete(),
        moved(),
        ended(),
        neighbours(),
        reuse(),
        reuse_write(),
        free(),
        full_cell(),
        window(),
        mapped_once(),
        dropped(),
        dropped_update(),
        dropped_reuse(),
        dropped_leave(),
        random(),
        one_word(),
        settled(),
        refused(),
    ]
}

/// A store in which all keys have one cell, with as few buffers as there can be.
pub(super) fn options() -> SwarmStoreOptions {
    let replicas = SwarmOptions { spare_buffers: 2, ..SwarmOptions::default() };
    SwarmStoreOptions { keys: 1, cached_keys: 16, replicas, ..SwarmStoreOptions::default() }
}

/// Three clients insert one key.
fn inserts() -> Scenario {
    Scenario::new("swarm-kv/inserts", "one of several inserts succeeds", 3, |cluster| {
        let Opened { stores, history } = open(cluster, options())?;
        let slow = cluster.draw(4);
        for node in 0..3 {
            client(cluster, node, &stores, &history, move |client| {
                if slow == node {
                    client.set_slow(slow);
                }
                client.insert(0, node as u64 + 1)?;
                client.get(0)
            });
        }
        Ok(())
    })
    .kills(&["swarm-value-late", "swarm-adopts-nothing", "swarm-fast-majority"])
}

/// An insert beside gets and an update.
fn insert_get() -> Scenario {
    Scenario::new("swarm-kv/insert-get", "a key that is found has its value", 3, |cluster| {
        let Opened { stores, history } = open(cluster, options())?;
        let slow = cluster.draw(3);
        client(cluster, 0, &stores, &history, |client| client.insert(0, 1));
        client(cluster, 1, &stores, &history, |client| {
            client.get(0)?;
            client.get(0)
        });
        client(cluster, 2, &stores, &history, move |client| {
            client.set_slow(slow);
            client.update(0, 2)?;
            client.get(0)
        });
        Ok(())
    })
}

/// A delete beside calls of clients that know where the key is.
fn delete_get() -> Scenario {
    Scenario::new("swarm-kv/delete-get", "who knows where a key was does not find it there", 3, |cluster| {
        let Opened { stores, history } = open(cluster, options())?;
        let turn = Rc::new(Word::new(0));
        let now = Rc::clone(&turn);
        client(cluster, 0, &stores, &history, move |client| {
            client.insert(0, 1)?;
            now.store(1);
            client.delete(0)?;
            client.insert(0, 2)
        });
        for node in 1..3 {
            let turn = Rc::clone(&turn);
            client(cluster, node, &stores, &history, move |client| {
                client.wait_for(&turn, 1)?;
                client.get(0)?;
                if node == 1 { client.update(0, 3) } else { client.get(0) }?;
                client.get(0)
            });
        }
        Ok(())
    })
    .kills(&["swarm-cache-trusted"])
}

/// Two clients delete a key, and insert it again.
fn deletes() -> Scenario {
    Scenario::new("swarm-kv/deletes", "a delete does not hit a key that is inserted after it", 3, |cluster| {
        let Opened { stores, history } = open(cluster, options())?;
        for node in 0..2 {
            client(cluster, node, &stores, &history, move |client| {
                client.upsert(0, node as u64 + 1)?;
                client.delete(0)?;
                client.insert(0, node as u64 + 3)
            });
        }
        client(cluster, 2, &stores, &history, |client| {
            client.get(0)?;
            client.get(0)
        });
        Ok(())
    })
    .kills(&["swarm-deleted-before"])
}

/// Two clients delete a key that another one inserts again and again: each delete hits one entry, and no entry
/// disappears without a delete.
fn deletes_inserts() -> Scenario {
    Scenario::new("swarm-kv/deletes-inserts", "no entry is deleted by nobody", 3, |cluster| {
        let Opened { stores, history } = open(cluster, options())?;
        let turn = Rc::new(Word::new(0));
        let now = Rc::clone(&turn);
        client(cluster, 2, &stores, &history, move |client| {
            client.insert(0, 1)?;
            now.store(1);
            (2..6).try_for_each(|value| client.insert(0, value))
        });
        for node in 0..2 {
            let (turn, slow) = (Rc::clone(&turn), cluster.draw(4));
            client(cluster, node, &stores, &history, move |client| {
                client.wait_for(&turn, 1)?;
                client.get(0)?;
                if slow < 3 {
                    client.set_slow(slow);
                }
                client.delete(0)?;
                client.get(0)
            });
        }
        Ok(())
    })
}

/// An update. A reader may have taken its value before the key is deleted.
fn update_delete() -> Scenario {
    Scenario::new("swarm-kv/update-delete", "an update happens once, however its key is deleted", 3, |cluster| {
        let Opened { stores, history } = open(cluster, options())?;
        let (turn, slow) = (Rc::new(Word::new(0)), cluster.draw(3));
        let now = Rc::clone(&turn);
        client(cluster, 0, &stores, &history, move |client| {
            client.insert(0, 1)?;
            now.store(1);
            client.get(0)?;
            client.delete(0)?;
            client.insert(0, 2)?;
            client.get(0)?;
            client.get(0)
        });
        client(cluster, 1, &stores, &history, move |client| {
            client.wait_for(&turn, 1)?;
            client.get(0)?;
            client.set_slow(slow);
            client.update(0, 3)
        });
        Ok(())
    })
}

/// A client knows where a key was, and that register has another key now.
fn moved() -> Scenario {
    Scenario::new("swarm-kv/moved", "a place that has another key is not used for the first one", 3, |cluster| {
        let Opened { stores, history } = open_small(cluster, options(), 1)?;
        let (turns, call, is_reused) = (Rc::new(Word::new(0)), cluster.draw(3), cluster.draw(3) > 0);
        let turn = Rc::clone(&turns);
        client(cluster, 0, &stores, &history, move |client| {
            client.insert(0, 1)?;
            turn.store(1);
            client.wait_for(&turn, 2)?;
            client.delete(0)?;
            if is_reused {
                client.insert(1, 2)?;
            }
            turn.store(3);
            client.get(1)
        });
        client(cluster, 1, &stores, &history, move |client| {
            client.wait_for(&turns, 1)?;
            client.get(0)?;
            turns.store(2);
            client.wait_for(&turns, 3)?;
            match call {
                0 => client.get(0),
                1 => client.update(0, 3),
                _ => client.delete(0),
            }?;
            client.get(1)
        });
        Ok(())
    })
    .kills(&["swarm-seal-unseen", "swarm-instance-unwritten"])
}

/// A client knows where a key was, and looks there while the register is made free. The memory node that it asks first
/// has missed the seal.
fn ended() -> Scenario {
    Scenario::new("swarm-kv/ended", "a register that is made free shows no value of its last key", 3, |cluster| {
        let Opened { stores, history } = open_small(cluster, options(), 1)?;
        let turns = Rc::new(Word::new(0));
        let turn = Rc::clone(&turns);
        client(cluster, 0, &stores, &history, move |client| {
            client.insert(0, 1)?;
            turn.store(1);
            client.wait_for(&turn, 2)?;
            client.set_slow(0);
            client.delete(0)?;
            client.leave_first()?;
            turn.store(3);
            client.leave_rest()
        });
        client(cluster, 1, &stores, &history, move |client| {
            client.wait_for(&turns, 1)?;
            client.get(0)?;
            turns.store(2);
            client.wait_for(&turns, 3)?;
            client.set_slow(2);
            client.get(0)
        });
        Ok(())
    })
    .kills(&["swarm-ended-at-once"])
}

/// Keys of one cell.
fn neighbours() -> Scenario {
    Scenario::new("swarm-kv/neighbours", "keys of one cell do not disturb each other", 3, |cluster| {
        let Opened { stores, history } = open(cluster, options())?;
        for node in 0..3 {
            client(cluster, node, &stores, &history, move |client| {
                let key = node as u64;
                client.insert(key, 10 + key)?;
                client.get((key + 1) % 3)?;
                client.delete(key)?;
                client.get(key)
            });
        }
        Ok(())
    })
}

/// A register is used again for another key, while a client still knows it as the first one's.
fn reuse() -> Scenario {
    Scenario::new("swarm-kv/reuse", "a client that knows an old place reads no other key's value", 3, |cluster| {
        let Opened { stores, history } = open_small(cluster, options(), 1)?;
        client(cluster, 0, &stores, &history, |client| {
            client.insert(0, 1)?;
            client.delete(0)?;
            client.insert_if_room(1, 2)?;
            client.get(1)
        });
        client(cluster, 1, &stores, &history, |client| {
            client.get(0)?;
            client.get(0)?;
            client.get(1)
        });
        Ok(())
    })
    .kills(&["swarm-words-kept"])
}

/// The same, with a client that writes.
fn reuse_write() -> Scenario {
    Scenario::new("swarm-kv/reuse-write", "a client that knows an old place does not write there", 3, |cluster| {
        let Opened { stores, history } = open_small(cluster, options(), 1)?;
        let slow = cluster.draw(3);
        client(cluster, 0, &stores, &history, |client| {
            client.insert(0, 1)?;
            client.delete(0)?;
            client.insert_if_room(1, 2)?;
            client.get(1)
        });
        client(cluster, 1, &stores, &history, move |client| {
            client.set_slow(slow);
            client.update(0, 3)?;
            client.update(0, 4)?;
            client.delete(0)?;
            client.get(1)
        });
        Ok(())
    })
}

/// A client takes the registers that others have left in the index.
fn free() -> Scenario {
    Scenario::new("swarm-kv/free", "a register that was left in the index has one new owner", 3, |cluster| {
        let Opened { stores, history } = open_small(cluster, options(), 2)?;
        let turn = Rc::new(Word::new(0));
        let now = Rc::clone(&turn);
        client(cluster, 0, &stores, &history, move |client| {
            client.insert(0, 1)?;
            client.insert(1, 2)?;
            client.leave(0)?;
            client.leave(1)?;
            now.store(1);
            client.get(2)
        });
        for node in 1..3 {
            let turn = Rc::clone(&turn);
            client(cluster, node, &stores, &history, move |client| {
                client.wait_for(&turn, 1)?;
                let key = 1 + node as u64;
                client.insert(key, 10 + key)?;
                client.get(5 - key)
            });
        }
        Ok(())
    })
}

/// More keys than a cell has room for.
fn full_cell() -> Scenario {
    Scenario::new("swarm-kv/full-cell", "a cell that is full has room again after deletes", 3, |cluster| {
        let Opened { stores, history } = open(cluster, options())?;
        client(cluster, 0, &stores, &history, |client| {
            for key in 0..9 {
                client.insert(key, 10 + key)?;
            }
            client.delete(3)?;
            client.insert(9, 19)?;
            client.delete(4)?;
            client.insert(10, 20)?;
            client.get(3)
        });
        client(cluster, 1, &stores, &history, |client| {
            client.get(9)?;
            client.get(3)
        });
        Ok(())
    })
}

/// Several calls of one client at a time, on keys of one cell, beside another client's.
fn window() -> Scenario {
    Scenario::new("swarm-kv/window", "several calls of a client at a time are linearizable", 3, |cluster| {
        let Opened { stores, history } = open(cluster, options())?;
        client(cluster, 0, &stores, &history, |client| {
            client.window(&[(0, KvInput::Insert(1)), (1, KvInput::Insert(2)), (0, KvInput::Upsert(3))])?;
            client.window(&[
                (0, KvInput::Delete),
                (1, KvInput::Upsert(4)),
                (2, KvInput::Insert(5)),
                (0, KvInput::Get),
            ])?;
            client.window(&[(0, KvInput::Get), (1, KvInput::Get), (2, KvInput::Get)])
        });
        client(cluster, 1, &stores, &history, |client| {
            client.upsert(0, 6)?;
            client.delete(1)?;
            client.get(2)
        });
        Ok(())
    })
}

/// An insert that is in another one's way is ended by that one, which deletes its key and uses its register again,
/// before the insert tries once more.
fn mapped_once() -> Scenario {
    Scenario::new(
        "swarm-kv/mapped-once",
        "an insert that was ended by others does not map its key again",
        3,
        |cluster| {
            let Opened { stores, history } = open_small(cluster, options(), 1)?;
            client(cluster, 0, &stores, &history, |client| {
                client.insert(0, 1)?;
                client.get(0)
            });
            client(cluster, 1, &stores, &history, |client| {
                client.insert(1, 2)?;
                client.delete(0)?;
                client.leave_rest()?;
                client.get(0)
            });
            Ok(())
        },
    )
    .kills(&["swarm-mapped-again"])
}

/// An insert is dropped after its key was mapped, which the client learns later: it has updated the key since, and its
/// buffers are few.
fn dropped_update() -> Scenario {
    Scenario::new("swarm-kv/dropped-update", "an old insert gives back no buffer of a later update", 3, |cluster| {
        let Opened { stores, history } = open(cluster, options())?;
        client(cluster, 0, &stores, &history, |client| {
            client.insert_or_drop(0, 1)?;
            client.update(0, 2)?;
            client.settle()?;
            (3..7).try_for_each(|value| client.upsert(1, value))?;
            client.get(0)
        });
        client(cluster, 1, &stores, &history, |client| {
            client.get(0)?;
            client.get(0)?;
            client.get(1)
        });
        Ok(())
    })
}

/// A client is interrupted while it leaves a register to others, and continues later.
fn dropped_leave() -> Scenario {
    Scenario::new("swarm-kv/dropped-leave", "a register that was left is not touched again", 3, |cluster| {
        let Opened { stores, history } = open_small(cluster, options(), 1)?;
        client(cluster, 0, &stores, &history, |client| {
            client.insert(0, 1)?;
            client.leave_or_drop(0)?;
            client.get(1)?;
            client.leave_rest()?;
            client.get(1)
        });
        for node in 1..3 {
            client(cluster, node, &stores, &history, move |client| {
                client.insert_if_room(1, node as u64 + 1)?;
                client.insert_if_room(2, node as u64 + 3)?;
                client.get(1)
            });
        }
        Ok(())
    })
}

/// An insert is dropped at some moment.
fn dropped() -> Scenario {
    Scenario::new("swarm-kv/dropped", "a dropped insert happens once or not at all", 3, |cluster| {
        let Opened { stores, history } = open(cluster, options())?;
        client(cluster, 0, &stores, &history, |client| {
            client.insert_or_drop(0, 1)?;
            client.insert(0, 2)?;
            client.get(0)
        });
        client(cluster, 1, &stores, &history, |client| {
            client.upsert(0, 3)?;
            client.delete(0)?;
            client.get(0)
        });
        Ok(())
    })
}

/// The same with few registers: the one of the dropped insert is used again.
fn dropped_reuse() -> Scenario {
    Scenario::new("swarm-kv/dropped-reuse", "the register of a dropped insert has one key", 3, |cluster| {
        let Opened { stores, history } = open_small(cluster, options(), 1)?;
        client(cluster, 0, &stores, &history, |client| {
            client.insert_or_drop(0, 1)?;
            client.insert_if_room(1, 2)?;
            client.get(0)?;
            client.get(1)
        });
        client(cluster, 1, &stores, &history, |client| {
            client.insert_if_room(0, 3)?;
            client.delete(0)?;
            client.get(0)?;
            client.get(1)
        });
        Ok(())
    })
    .kills(&["swarm-proposal-forgotten"])
}

fn random() -> Scenario {
    Scenario::new("swarm-kv/random", "random calls of three clients are linearizable", 3, |cluster| {
        random_calls(cluster, options())
    })
}

/// With one metadata word for all clients.
fn one_word() -> Scenario {
    Scenario::new("swarm-kv/one-word", "clients that share metadata words are linearizable", 3, |cluster| {
        let mut options = options();
        options.replicas.metadata_words = 1;
        random_calls(cluster, options)
    })
}

fn random_calls(cluster: &Cluster, options: SwarmStoreOptions) -> Result<()> {
    let Opened { stores, history } = open_small(cluster, options, 1)?;
    for node in 0..3 {
        let (ahead, slow) = (20 * cluster.draw(3) as u64, cluster.draw(4));
        let calls: Vec<(u64, usize)> = (0..4).map(|_| (cluster.draw(2) as u64, cluster.draw(5))).collect();
        client(cluster, node, &stores, &history, move |client| {
            client.set_ahead(ahead);
            if slow < 3 {
                client.set_slow(slow);
            }
            calls.iter().enumerate().try_for_each(|(call, (key, kind))| {
                let value = (10 * node + call + 1) as u64;
                match kind {
                    0 => client.get(*key),
                    1 => client.insert_if_room(*key, value),
                    2 => client.update(*key, value),
                    3 => client.delete(*key),
                    _ => client.get(*key),
                }
            })
        });
    }
    Ok(())
}

/// Two clients change one cell at once, and neither has all memory nodes: classic ballots decide.
fn settled() -> Scenario {
    Scenario::new("swarm-kv/settled", "clients in each other's way agree", 3, |cluster| {
        let Opened { stores, history } = open(cluster, options())?;
        let slow = [0; 3].map(|_| cluster.draw(3));
        for (node, slow) in slow.into_iter().enumerate() {
            client(cluster, node, &stores, &history, move |client| {
                client.set_slow(slow);
                client.insert(0, node as u64 + 1)?;
                client.insert(1 + node as u64, 10)?;
                client.get(0)
            });
        }
        Ok(())
    })
    .kills(&["swarm-no-promise", "swarm-look-unsettled"])
}

/// A promise is left at one memory node, a classic proposal is chosen at the others, and a fast one is made with what
/// was seen before: the first memory node accepts it, at a higher ballot. It was not chosen, and hides none that was.
fn refused() -> Scenario {
    let about = "a proposal that was refused somewhere hides none that was chosen";
    Scenario::new("swarm-kv/refused", about, 3, |cluster| {
        let Opened { stores, history } = open_small(cluster, options(), 0)?;
        let chosen = Agreed::default();
        for (node, slow) in [Some(1), Some(0), None].into_iter().enumerate() {
            let chosen = chosen.clone();
            client(cluster, node, &stores, &history, move |client| {
                if let Some(slow) = slow {
                    client.set_slow(slow);
                }
                client.agree(&chosen, node, node == 0)?;
                if node == 0 { Ok(()) } else { client.agree(&chosen, node + 3, false) }
            });
        }
        Ok(())
    })
    .kills(&["swarm-adopts-lost"])
}
