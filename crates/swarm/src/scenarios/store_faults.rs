//! The store, while memory nodes and clients die or are cut off.

use farfield_check::{Cluster, Faults, Scenario};
use farfield_core::Result;
use farfield_fabric::{DeathRule, NodeId};

use super::store::options;
use super::store_parts::{Opened, Recorded, client, client_unfailing, open};
use crate::SwarmStoreOptions;

pub(super) fn scenarios() -> Vec<Scenario> {
    vec![inserter_dies(), deleter_dies(), memory_dies(), memory_apart(), memory_is_cut_off(), two_of_five()]
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
