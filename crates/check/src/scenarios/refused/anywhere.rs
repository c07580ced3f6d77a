//! Any operation of a node may be refused, whoever posts it: the caller, the service thread, a tracker.

use std::time::Duration;

use farfield_core::fabric::fault::Faults;
use farfield_core::{Endpoint, KvOptions, Placement, Result};

use crate::scenarios::kv::client::{Client, all_slots_come_back, keys, linearizable, tiny};
use crate::{Cluster, Scenario, choose};

pub(super) fn scenarios() -> Vec<Scenario> {
    vec![store()]
}

/// Starts the nodes. The first one's operations are refused on command.
fn start(cluster: &Cluster, nodes: usize) -> Result<Faults> {
    let refusals = Faults::default();
    cluster.start_refusing(0, refusals.clone())?;
    (1..nodes).try_for_each(|node| cluster.start(node).map(drop))?;
    cluster.nodes().iter().try_for_each(|node| node.wait_for_all(node.timeout()))?;
    Ok(refusals)
}

/// Refuses an operation, at some moment.
fn refuse(ep: &Endpoint, refusals: &Faults) -> Result<()> {
    (0..choose(12)).for_each(|_| ep.block_on(ep.pause()));
    refusals.fail_after(choose(16) as u64);
    Ok(())
}

/// A fence that is refused is repeated when something changes, or when the endpoint's timeout is over.
const PATIENCE: Duration = Duration::from_secs(100);

/// No more from now on.
fn at_end(cluster: &Cluster, refusals: &Faults) {
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

/// A change without an answer has happened or not, on all nodes. No call waits for ever, and every slot comes back.
fn store() -> Scenario {
    let about = "a store of which an operation is refused loses no key, no lock and no slot";
    Scenario::new("kv/refused-anywhere", about, 3, |cluster| {
        let refusals = start(cluster, 3)?;
        let [key] = keys([|hash| hash % 3 == 1]);
        let clients = Client::open(cluster, KvOptions { placement: Placement::Inserter, ..tiny() }, &[(0, key, 1)])?;
        let refuses = refusals.clone();
        cluster.thread(0, "refuses", move |ep| refuse(ep, &refuses));
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
        all_slots_come_back(cluster, &clients, &[key]);
        Ok(())
    })
    .late_nodes()
}
