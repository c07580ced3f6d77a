//! Any operation of a node may be refused, whether the caller posts it, the service thread or a tracker.

use std::rc::Rc;
use std::time::Duration;

use farfield_core::fabric::fault::Faults;
use farfield_core::objects::mutex::BYPASS_MAX;
use farfield_core::{Endpoint, KvOptions, Mutex, NodeId, Placement, Result};

use crate::kv::client::{Client, all_slots_come_back, keys, linearizable, tiny};
use farfield_check::parts::{cut, word};
use farfield_check::{Cluster, Scenario, choose};

pub(super) fn scenarios() -> Vec<Scenario> {
    vec![
        store("kv/refused-anywhere", Placement::Inserter),
        store("kv/refused-anywhere-by-hash", Placement::Hash),
        lock(),
    ]
}

/// Starts the nodes. The first one's operations are refused on command.
pub(crate) fn start(cluster: &Cluster, nodes: usize) -> Result<Faults> {
    let refusals = Faults::default();
    cluster.start_refusing(0, refusals.clone())?;
    (1..nodes).try_for_each(|node| cluster.start(node).map(drop))?;
    cluster.nodes().iter().try_for_each(|node| node.wait_for_all(node.timeout()))?;
    Ok(refusals)
}

/// Refuses an operation, at some moment. Perhaps also those that follow it and make up for it: `most` in all.
pub(crate) fn refuse(ep: &Endpoint, refusals: &Faults, most: usize) -> Result<()> {
    (0..choose(12)).for_each(|_| ep.block_on(ep.pause()));
    refusals.fail_some(choose(16) as u64, 1 + choose(most) as u32);
    Ok(())
}

/// A fence that is refused is repeated when something changes, or when the endpoint's timeout is over.
pub(crate) const PATIENCE: Duration = Duration::from_secs(100);

/// No more from now on.
pub(crate) fn at_end(cluster: &Cluster, refusals: &Faults) {
    let refusals = refusals.clone();
    cluster.at_end(move || {
        refusals.fail_after(u64::MAX);
        Ok(())
    });
}

fn unless_refused<T>(done: Result<T>) -> Result<()> {
    match done {
        Err(error) if !error.is_refused() => Err(error),
        _ => Ok(()),
    }
}

/// A change without an answer has happened or not, on all nodes. No call waits for ever, and every slot is free again.
fn store(name: &str, placement: Placement) -> Scenario {
    let about = "a store of which an operation is refused loses no key, no lock and no slot";
    Scenario::new(name, about, 3, move |cluster| {
        let refusals = start(cluster, 3)?;
        let [key] = keys([|hash| hash % 3 == 1]);
        // By hash, each node has its share of each node's slots.
        let options = KvOptions { placement, slots_per_node: 3, ..tiny() };
        let clients = Client::open(cluster, options, &[(0, key, 1)])?;
        let refuses = refusals.clone();
        cluster.thread(0, "refuses", move |ep| refuse(ep, &refuses, 3));
        let client = clients[0].clone();
        cluster.thread(0, "changes", move |ep| {
            unless_refused(ep.block_on(client.delete(ep, key)))?;
            unless_refused(ep.block_on(client.insert(ep, key, 2)))?;
            unless_refused(ep.block_on(client.update(ep, key, 3)))
        });
        let client = clients[1].clone();
        cluster.thread(1, "updates", move |ep| {
            ep.set_timeout(PATIENCE);
            ep.block_on(client.update(ep, key, 4)).map(drop)
        });
        at_end(cluster, &refusals);
        linearizable(cluster, &clients, &[key]);
        if placement == Placement::Inserter {
            all_slots_come_back(cluster, &clients, &[key]);
        }
        Ok(())
    })
    .late_nodes()
}

/// Lock and release are dropped between two of their polls as well. In the end the lock is free, without a ticket left.
fn lock() -> Scenario {
    let about = "a lock of which an operation is refused, or dropped, is released";
    Scenario::new("mutex/refused-anywhere", about, 2, |cluster| {
        let refusals = start(cluster, 2)?;
        let mutexes = cluster.on_each(|node| Mutex::open(node, "lock", NodeId(1)).map(Rc::new))?;
        let x = word(cluster, 1, "x")?.remote::<u64>(0);
        let refuses = refusals.clone();
        cluster.thread(0, "refuses", move |ep| refuse(ep, &refuses, 3));
        for (node, mutex) in mutexes.iter().cloned().enumerate() {
            cluster.thread(node, "locks", move |ep| {
                if node == 1 {
                    ep.set_timeout(PATIENCE);
                }
                let section = async || {
                    let guard = mutex.lock(ep).await?;
                    ep.put_value(x, 1).detach()?;
                    guard.unlock().await
                };
                for _ in 0..2 {
                    match ep.block_on(cut(if node == 0 { choose(12) } else { usize::MAX }, section())) {
                        Some(done) if node == 0 => unless_refused(done)?,
                        done => done.transpose().map(drop)?,
                    }
                }
                Ok(())
            });
        }
        at_end(cluster, &refusals);
        let node = cluster.node(1);
        cluster.at_end(move || {
            let ep = node.endpoint()?;
            // A service thread repeats a refused operation a moment later.
            ep.block_on(ep.sleep_until(ep.now() + Duration::from_secs(1)));
            for round in 0..BYPASS_MAX + 2 {
                let guard = ep.block_on(mutexes[1].try_lock(&ep))?;
                let guard =
                    guard.unwrap_or_else(|| panic!("nobody wants the lock, but it is not free (round {round})"));
                ep.block_on(guard.unlock())?;
            }
            Ok(())
        });
        Ok(())
    })
    .late_nodes()
    .kills(&["service-retry-forgotten"])
}
