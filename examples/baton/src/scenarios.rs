//! Scenarios for the model checker. Holders add one to a word by a get and a put: two holders at once lose an
//! increment, and so does a holder that does not see the last one's put.

use std::cell::Cell;
use std::rc::Rc;

use farfield::fabric::{DeathRule, RemotePtr};
use farfield::{Endpoint, NodeId, Result};
use farfield_check::parts::{comes_of_faults, patiently, word};
use farfield_check::{Cluster, Faults, Scenario};

use crate::Baton;

/// All of them.
pub fn all() -> Vec<Scenario> {
    vec![pass(), holder_dies(), holder_is_cut_off()]
}

/// The baton is on node 0, the word on node 1.
fn pass() -> Scenario {
    Scenario::new("baton/pass", "a holder sees the puts of the last one", 2, |cluster| add_on(cluster, &[0, 1], &[]))
        .small()
        .kills(&["baton-no-fence"])
}

/// Node 2 may die at any time.
fn holder_dies() -> Scenario {
    Scenario::new("baton/holder-dies", "the baton is taken from the dead", 3, |cluster| {
        add_on(cluster, &[0, 1, 2], &[2])
    })
    .faults(Faults::new().crashes(1).of([2]))
    .kills(&["baton-kept"])
}

/// Node 2 may be cut off, so that the others evict it while it runs. If the cut is short, they may decide otherwise.
fn holder_is_cut_off() -> Scenario {
    let about = "nothing of an evicted holder lands later";
    Scenario::new("baton/holder-cut", about, 3, |cluster| add_on(cluster, &[0, 1, 2], &[0, 1, 2]))
        .rule(DeathRule::Majority)
        .faults(Faults::new().cuts(1).side([2]))
        .kills(&["baton-taken-early"])
}

/// These nodes each add one to a word of node 1 while they hold the baton. Those that `may_fail` end early if a fault
/// prevents it. To the others nothing happens but that they wait.
fn add_on(cluster: &Cluster, nodes: &[usize], may_fail: &'static [usize]) -> Result<()> {
    let batons = cluster.on_each(|node| Baton::open(node, "baton", NodeId(0)).map(Rc::new))?;
    let (sum, added) = (word(cluster, 1, "sum")?, Rc::new(Cell::new(0)));
    for node in nodes.iter().copied() {
        let (baton, sum, added) = (Rc::clone(&batons[node]), sum.remote::<u64>(0), Rc::clone(&added));
        cluster.thread(node, "adds", move |ep| {
            match patiently(|| ep.block_on(add(&baton, ep, sum))) {
                Ok(()) => added.set(added.get() + 1),
                Err(error) if may_fail.contains(&node) && comes_of_faults(&error) => {}
                Err(error) => return Err(error),
            }
            Ok(())
        });
    }
    let all = nodes.len() as u64;
    cluster.at_end(move || {
        let found = sum.word(0).load();
        // A failing node may have added without knowing it.
        assert!((added.get()..=all).contains(&found), "{found} of {} additions are there", added.get());
        Ok(())
    });
    Ok(())
}

async fn add(baton: &Baton, ep: &Endpoint, sum: RemotePtr<u64>) -> Result<()> {
    let held = baton.take(ep).await?;
    let seen = ep.get(sum).await?;
    // Not awaited: the pass has to make it visible.
    ep.put_value(sum, seen + 1).detach()?;
    held.pass().await
}
