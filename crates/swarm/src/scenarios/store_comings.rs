//! Clients of a store that come late, and clients that take over from earlier ones.

use core::cell::RefCell;
use std::rc::Rc;

use farfield_check::{Cluster, Faults, Scenario};
use farfield_core::{Node, Result};
use farfield_fabric::{DeathRule, Instant, NodeId, Word};

use super::parts::unless_no_majority;
use super::store::options;
use super::store_parts::{Opened, Recorded, Store, client, open_here, opened, run};
use crate::SwarmStoreOptions;

pub(super) fn scenarios() -> Vec<Scenario> {
    let opened = [opened_again(), opened_lent(), opened_moved(), opened_full(), opened_kept()];
    [late()].into_iter().chain(opened).chain([successor(), successor_dies()]).collect()
}

/// Opens a store on the first three nodes, which have the memory.
fn open_on_three(cluster: &Cluster, options: fn() -> SwarmStoreOptions) -> Result<Opened> {
    let open = move |node: &Node| if node.id().index() < 3 { open_here(node, options()).map(Some) } else { Ok(None) };
    let stores: Vec<Store> = cluster.on_each(open)?.into_iter().flatten().collect();
    Ok(opened(cluster, stores))
}

/// A node comes while others insert and delete.
fn late() -> Scenario {
    Scenario::new("swarm-kv/late", "a node comes while others insert and delete keys", 4, |cluster| {
        let Opened { stores, history } = open_on_three(cluster, options)?;
        client(cluster, 0, &stores, &history, |client| {
            client.insert(0, 1)?;
            client.delete(0)?;
            client.insert(1, 2)?;
            client.delete(1)
        });
        let (here, seen) = (cluster.node(3), history.clone());
        cluster.thread(3, "comes", move |ep| {
            run(&open_here(&here, options())?, ep, 3, &seen, &|client| {
                client.get(0)?;
                client.upsert(1, 3)?;
                client.get(1)
            })
        });
        Ok(())
    })
}

/// A node closes the store in the middle of a call, and opens it again.
fn opened_again() -> Scenario {
    let about = "a node closes a store in the middle of a call, and opens it again";
    Scenario::new("swarm-kv/opened-again", about, 4, |cluster| {
        let Opened { stores, history } = open_on_three(cluster, options)?;
        let (here, seen) = (cluster.node(3), history.clone());
        let what = cluster.draw(4);
        cluster.thread(3, "comes twice", move |ep| {
            run(&open_here(&here, options())?, ep, 3, &seen, &|client| {
                client.insert(0, 1)?;
                match what {
                    0 => client.insert_or_drop(1, 2),
                    1 => client.replace_or_drop(0, [1, 2]),
                    2 => client.update(0, 2),
                    _ => client.delete(0),
                }
            })?;
            run(&open_here(&here, options())?, ep, 3, &seen, &|client| {
                client.get(0)?;
                client.upsert(0, 3)?;
                client.insert(1, 4)?;
                client.update(0, 5)?;
                client.delete(1)
            })
        });
        client(cluster, 0, &stores, &history, |client| {
            client.get(0)?;
            client.update(0, 11)?;
            client.get(0)
        });
        Ok(())
    })
}

/// The key of a client was deleted by another one, which keeps the register. Both insert another key.
fn opened_lent() -> Scenario {
    let about = "a node opens a store again, and takes no register that another client has now";
    Scenario::new("swarm-kv/opened-lent", about, 4, |cluster| {
        let Opened { stores, history } = open_on_three(cluster, options)?;
        let (here, seen, turn) = (cluster.node(3), history.clone(), Rc::new(Word::new(0)));
        let now = Rc::clone(&turn);
        cluster.thread(3, "comes twice", move |ep| {
            run(&open_here(&here, options())?, ep, 3, &seen, &|client| client.insert(0, 1))?;
            now.store(1);
            ep.block_on(ep.wait_until(Instant::NEVER, || (now.load() == 2).then_some(())))?;
            run(&open_here(&here, options())?, ep, 3, &seen, &|client| {
                client.insert(1, 2)?;
                client.get(2)
            })
        });
        client(cluster, 0, &stores, &history, move |client| {
            client.wait_for(&turn, 1)?;
            client.delete(0)?;
            client.leave_rest()?;
            turn.store(2);
            client.insert(2, 3)?;
            client.get(1)?;
            client.get(2)
        });
        Ok(())
    })
    .kills(&["swarm-successor-takes-registers"])
}

/// The key of a client is moved by another one while the first one opens the store again. Both insert another key.
///
/// The order that matters: the first client's group is still evidence that the register is its own, in instance 0. The
/// record of the move is in the index until the next owner is at a majority (`NRW`, flushed before D is set or another
/// record is built on it), and the successor reads the owners after the index.
fn opened_moved() -> Scenario {
    let about = "a node opens a store again, and takes no register from which another client moves the key";
    Scenario::new("swarm-kv/opened-moved", about, 4, |cluster| {
        let Opened { stores, history } = open_on_three(cluster, options)?;
        let (here, seen, turn) = (cluster.node(3), history.clone(), Rc::new(Word::new(0)));
        let now = Rc::clone(&turn);
        cluster.thread(3, "comes twice", move |ep| {
            run(&open_here(&here, options())?, ep, 3, &seen, &|client| client.insert(0, 1))?;
            now.store(1);
            run(&open_here(&here, options())?, ep, 3, &seen, &|client| {
                client.insert(1, 2)?;
                client.get(0)?;
                client.get(2)
            })
        });
        client(cluster, 0, &stores, &history, move |client| {
            client.wait_for(&turn, 1)?;
            client.replace(0, [1, 4])?;
            client.leave_rest()?;
            client.insert(2, 3)?;
            client.get(0)?;
            client.get(1)?;
            client.get(2)
        });
        Ok(())
    })
}

/// A client keeps a register, inserts with one, or moves a key from one, when the store is closed at some moment. The
/// next one has all of them.
///
/// The orders that matter: the owner lands before the next instance (`NRW` before `NAR`), and that on all memory nodes
/// before the entry leaves the index; after a move, the last record of the cell stands for the owner until that is at a
/// majority.
fn opened_kept() -> Scenario {
    let about = "a node opens a store again, and finds the registers that the index does not name";
    Scenario::new("swarm-kv/opened-kept", about, 4, |cluster| {
        let Opened { history, .. } = open_on_three(cluster, options)?;
        let (here, seen, what) = (cluster.node(3), history.clone(), cluster.draw(4));
        cluster.thread(3, "comes often", move |ep| {
            for round in 0..2 {
                let [first, second] = [2 * round + 1, 2 * round + 2];
                run(&open_here(&here, options())?, ep, 3, &seen, &|client| {
                    client.has_all_registers()?;
                    client.upsert(0, first)?;
                    match what {
                        0 => client.insert_or_drop(1, second),
                        1 => client.replace_or_drop(0, [first, second]),
                        2 => {
                            client.delete(0)?;
                            client.leave_second()
                        }
                        _ => {
                            client.delete(0)?;
                            client.leave_rest()
                        }
                    }
                })?;
            }
            run(&open_here(&here, options())?, ep, 3, &seen, &|client| {
                client.has_all_registers()?;
                client.get(0)?;
                client.get(1)
            })
        });
        Ok(())
    })
    .kills(&["swarm-owner-unnamed", "swarm-owner-unkept"])
}

impl Recorded<'_, '_> {
    /// Fails if a register is lost that clients of this place have taken: when no work is left, each is at hand, or the
    /// index names it. (No other client has taken any.)
    fn has_all_registers(&self) -> Result<()> {
        self.leave_rest()?;
        let core = self.client.cores.first();
        let entries = self.ep.block_on(core.settled_entries(0))?;
        let named = entries.iter().filter(|entry| entry.is_mapped() || entry.is_free()).count();
        let (groups, at_hand) = core.with_store(|store| (store.groups.len(), store.registers.len()));
        assert_eq!(named + at_hand, groups * core.index().group, "{named} in the index, {at_hand} at hand");
        Ok(())
    }
}

/// The store has few registers, and the key of one is deleted before it is closed. They come back.
fn opened_full() -> Scenario {
    let about = "a node opens a store again, and finds the registers whose keys it has deleted";
    Scenario::new("swarm-kv/opened-full", about, 4, |cluster| {
        let Opened { stores, history } = open_on_three(cluster, options)?;
        let (here, seen) = (cluster.node(3), history.clone());
        cluster.thread(3, "comes often", move |ep| {
            for round in 0..3 {
                run(&open_here(&here, options())?, ep, 3, &seen, &|client| {
                    client.insert(0, round + 1)?;
                    client.delete(0)
                })?;
            }
            Ok(())
        });
        client(cluster, 0, &stores, &history, |client| client.get(0));
        Ok(())
    })
}

/// The node that takes the place of node 0.
const BACK: usize = 4;

/// Node 0 works, and leaves or dies in the middle of it. A node that is started at its place takes over.
fn succeeds(name: &str, about: &str) -> Scenario {
    fn away() -> SwarmStoreOptions {
        let mut options = options();
        options.replicas.memory = (1..4).map(NodeId).collect();
        options
    }
    Scenario::new(name, about, 5, |cluster| {
        let open = |node: &Node| if node.id() == NodeId(0) { Ok(None) } else { open_here(node, away()).map(Some) };
        let stores: Vec<Store> = cluster.on_each(open)?.into_iter().flatten().collect();
        let latest: Rc<RefCell<Option<Store>>> = Rc::default();
        let last = Rc::clone(&latest);
        cluster.at_end(move || {
            drop(last.take());
            Ok(())
        });
        let Opened { stores, history } = opened(cluster, stores);
        let (first, seen, what) = (cluster.node(0), history.clone(), cluster.draw(3));
        cluster.thread_without_endpoint(0, "leaves", move || {
            let ep = first.endpoint()?;
            if let Some(store) = unless_no_majority(open_here(&first, away()))? {
                let body = |client: &Recorded<'_, '_>| {
                    client.insert(0, 1)?;
                    match what {
                        0 => client.insert_or_drop(1, 2),
                        1 => client.replace_or_drop(0, [1, 2]),
                        _ => client.delete(0),
                    }
                };
                unless_no_majority(run(&store, &ep, 0, &seen, &body))?;
            }
            drop(ep);
            first.clone().leave();
            Ok(())
        });
        let (starter, stays, seen) = (cluster.starter(), cluster.node(1), history.clone());
        cluster.thread_without_endpoint(BACK, "comes", move || {
            let ep = stays.endpoint()?;
            ep.block_on(ep.wait_until(Instant::NEVER, || stays.has_gone(NodeId(0)).then_some(())))?;
            let node = starter.start(BACK)?;
            let ep = node.endpoint()?;
            let Some(store) = unless_no_majority(open_here(&node, away()))? else { return Ok(()) };
            *latest.borrow_mut() = Some(Rc::clone(&store));
            let body = |client: &Recorded<'_, '_>| {
                client.get(0)?;
                client.upsert(0, 3)?;
                client.upsert(1, 4)?;
                client.delete(1)
            };
            unless_no_majority(run(&store, &ep, 0, &seen, &body)).map(drop)
        });
        let reader = Rc::clone(&stores[0]);
        cluster.thread(1, "works", move |ep| {
            let body = |client: &Recorded<'_, '_>| {
                client.get(0)?;
                client.update(0, 11)?;
                client.get(0)
            };
            unless_no_majority(run(&reader, ep, 1, &history, &body)).map(drop)
        });
        Ok(())
    })
    .places(4)
    .rule(DeathRule::Majority)
}

fn successor() -> Scenario {
    succeeds("swarm-kv/successor", "a node takes over the registers and records of the one before it, which has left")
}

fn successor_dies() -> Scenario {
    succeeds(
        "swarm-kv/successor-dies",
        "a node takes over the registers and records of the one before it, which has died",
    )
    .faults(Faults::new().crashes(1).of([0]))
}
