//! The store, while memory nodes and clients die or are cut off.

use std::rc::Rc;

use farfield_check::{Cluster, Faults, Scenario};
use farfield_core::Result;
use farfield_fabric::{DeathRule, NodeId, Word};

use super::parts::{faulty, must_miss, unless_cut};
use super::store::options;
use super::store_parts::{Opened, Recorded, client, client_unfailing, open, run};
use crate::SwarmStoreOptions;

pub(super) fn scenarios() -> Vec<Scenario> {
    vec![
        inserter_dies(),
        deleter_dies(),
        memory_dies(),
        memory_apart(),
        memory_is_cut_off(),
        two_of_five(),
        majority_back(),
        others_stopped(),
    ]
}

/// The client dies in the middle of an insert.
fn inserter_dies() -> Scenario {
    Scenario::new("swarm-kv/inserter-dies", "others settle the insert of a dead client", 4, |cluster| {
        let Opened { stores, history } = open(cluster, options())?;
        client(cluster, 3, &stores, &history, |client| client.insert(0, 1));
        client_unfailing(cluster, 0, &stores, &history, |client| {
            client.get(0)?;
            client.get(0)
        });
        client_unfailing(cluster, 1, &stores, &history, |client| {
            client.insert(0, 2)?;
            client.get(0)
        });
        Ok(())
    })
    .faults(Faults::new().crashes(1).of([3]))
}

/// The client dies in the middle of a delete, or of what it does after it.
fn deleter_dies() -> Scenario {
    Scenario::new("swarm-kv/deleter-dies", "others settle the delete of a dead client", 4, |cluster| {
        let Opened { stores, history } = open(cluster, options())?;
        client(cluster, 3, &stores, &history, |client| {
            client.insert(0, 1)?;
            client.delete(0)?;
            client.insert(1, 2)
        });
        for node in 0..2 {
            client_unfailing(cluster, node, &stores, &history, move |client| {
                client.get(0)?;
                client.upsert(0, 3 + node as u64)?;
                client.get(0)
            });
        }
        Ok(())
    })
    .faults(Faults::new().crashes(1).of([3]))
}

/// A memory node dies, and no call fails.
fn memory_dies() -> Scenario {
    Scenario::new("swarm-kv/memory-dies", "no call fails when a memory node dies", 4, |cluster| {
        calls(cluster, options(), &[0, 3], &[])
    })
    .faults(Faults::new().crashes(1).of([2]))
}

/// The memory nodes have no clients, so they are not asked when registers are used again. One of them dies.
fn memory_apart() -> Scenario {
    let about = "memory nodes without clients only lend memory";
    Scenario::new("swarm-kv/memory-apart", about, 5, |cluster| {
        let mut options = options();
        options.replicas.clients = vec![NodeId(3), NodeId(4)];
        calls(cluster, options, &[3, 4], &[])
    })
    .faults(Faults::new().crashes(1).of([2]))
    .kills(&["swarm-gone-unlocked"])
}

/// A memory node is cut off, and may come back or be evicted.
fn memory_is_cut_off() -> Scenario {
    let about = "a memory node that is cut off is done without";
    Scenario::new("swarm-kv/memory-cut", about, 4, |cluster| calls(cluster, options(), &[], &[0, 3]))
        .rule(DeathRule::Majority)
        .faults(Faults::new().cuts(1).side([2]))
}

/// Two of five memory nodes die.
fn two_of_five() -> Scenario {
    Scenario::new("swarm-kv/two-of-five", "no call fails when two of five memory nodes die", 5, |cluster| {
        let mut options = options();
        options.replicas.memory = (0..5).map(NodeId).collect();
        calls(cluster, options, &[0, 1], &[])
    })
    .faults(Faults::new().crashes(2).of([3, 4]))
}

/// Two of three memory nodes are out of the reach of a client from some moment of an update on, and come back. Its
/// calls find no majority meanwhile, and all work again then. Those of another client never fail.
fn majority_back() -> Scenario {
    let about = "calls work again when most memory nodes are back, and no value is lost";
    Scenario::new("swarm-kv/majority-back", about, 3, |cluster| {
        let Opened { stores, history } = open(cluster, options())?;
        let (store, cut_off, stays) = (Rc::clone(&stores[0]), history.clone(), cluster.draw(3));
        cluster.thread(0, "client", move |ep| {
            let (ep, cut) = faulty(ep, stays)?;
            run(&store, &ep, 0, &cut_off, &|client| {
                client.upsert(0, 1)?;
                let updated = client.update_with_a_rest(0, 2, || {
                    cut(true);
                    Ok(())
                });
                unless_cut(updated)?;
                must_miss(client.get(0));
                must_miss(client.update(0, 3));
                cut(false);
                client.get(0)?;
                client.update(0, 4)?;
                client.get(0)
            })
        });
        client_unfailing(cluster, 1, &stores, &history, |client| {
            client.upsert(0, 11)?;
            client.get(0)
        });
        Ok(())
    })
}

/// The calls of the first nodes all end well.
fn calls(cluster: &Cluster, options: SwarmStoreOptions, unfailing: &[usize], others: &[usize]) -> Result<()> {
    let Opened { stores, history } = open(cluster, options)?;
    for node in unfailing.iter().chain(others).copied() {
        let body = move |client: &Recorded<'_, '_>| {
            let value = 10 * node as u64;
            client.upsert(0, value + 1)?;
            client.insert(1, value + 2)?;
            client.get(0)?;
            client.delete(0)?;
            client.upsert(1, value + 3)?;
            client.insert(0, value + 4)?;
            client.get(1)
        };
        if others.contains(&node) {
            client(cluster, node, &stores, &history, body);
        } else {
            client_unfailing(cluster, node, &stores, &history, body);
        }
    }
    Ok(())
}

/// Two clients stop in the middle of an update, and those of a third one end all the same, after few round trips.
fn others_stopped() -> Scenario {
    Scenario::new("swarm-kv/others-stopped", "a call waits for no other client", 3, |cluster| {
        let Opened { stores, history } = open(cluster, options())?;
        let slow = [0; 3].map(|_| cluster.draw(3));
        let (stopped, turn) = (Rc::new(Word::new(0)), Rc::new(Word::new(0)));
        let first_stopped = cluster.draw(3) as u64;
        for (node, slow) in slow.into_iter().enumerate().take(2) {
            let (stopped, turn) = (Rc::clone(&stopped), Rc::clone(&turn));
            client_unfailing(cluster, node, &stores, &history, move |client| {
                client.set_ahead(50 * node as u64);
                client.set_slow(slow);
                client.wait_until(|| turn.load() > 0)?;
                client.update_with_a_rest(0, node as u64 + 1, || {
                    stopped.fetch_add(1);
                    client.wait_for(&turn, 2)
                })
            });
        }
        client_unfailing(cluster, 2, &stores, &history, move |client| {
            client.insert(0, 3)?;
            client.set_slow(slow[2]);
            turn.store(1);
            client.wait_until(|| stopped.load() >= first_stopped)?;
            let get = client.trips_of(|| client.get(0))?;
            let update = client.trips_of(|| client.update(0, 4))?;
            let delete = client.trips_of(|| client.delete(0))?;
            let end = client.trips_of(|| client.get(0))?;
            assert!(
                get.max(update).max(delete).max(end) <= TRIPS_MAX,
                "{get}, {update}, {delete} and {end} round trips"
            );
            turn.store(2);
            Ok(())
        });
        Ok(())
    })
}

/// A register of a store may need ten looks (`Core::read_in`).
const TRIPS_MAX: u64 = 3 * 10;
