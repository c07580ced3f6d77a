//! The store when a node dies, or is cut off.

use farfield_core::fabric::{DeathRule, Instant};
use farfield_core::history::Event;
use farfield_core::history::kv::KvInput;
use farfield_core::{ErrorKind, KvOptions, Node, Placement, Result};

use super::VICTIM;
use super::client::{Answer, Client, Entry, history_of_heard, is_full, keys, tiny};
use farfield_check::parts::{cut, goes_on, is_decided, unless_faults, word};
use farfield_check::{Cluster, Faults, Scenario, choose, crashed};

/// A node dies in the middle of any operation: of `NRW`s of its value, of its tracker's messages to each other node, or
/// of its locks' releases. Values on node 0 are never lost. Those on the dead node are, until they are inserted again.
/// The survivors agree.
pub(super) fn dies() -> Scenario {
    let about = "a node's death loses what lay there, and nothing else; what it did is done, or not";
    Scenario::new("kv/dies", about, 3, |cluster| node_failure(cluster, Placement::Inserter, false))
        .faults(Faults::new().crashes(1).of([VICTIM.index()]))
        .kills(&["kv-dead-not-settled", "kv-not-redone"])
}

/// The same where the dead node has put its values to the others, and they theirs to it.
pub(super) fn dies_by_hash() -> Scenario {
    let about = "the same, with values placed by hash";
    Scenario::new("kv/dies-by-hash", about, 3, |cluster| node_failure(cluster, Placement::Hash, false))
        .faults(Faults::new().crashes(1).of([VICTIM.index()]))
        .kills(&["kv-dead-not-repaired"])
}

/// A survivor's call is dropped while it repairs the keys of a dead holder. The lock is free then, with its mark, and
/// the next call of the same node takes it with its first attempt.
pub(super) fn repair_is_cut() -> Scenario {
    let about = "the next holder repeats a repair that was cut short, even if it takes the lock at once";
    Scenario::new("kv/repair-cut", about, 3, |cluster| {
        let [key] = keys([|hash| hash % 3 == 0 && (hash >> 32).is_multiple_of(3)]);
        let options = KvOptions { placement: Placement::Hash, locks: 3, slots_per_node: 6, ..tiny() };
        let clients = Client::open(cluster, options, &[(0, key, 1)])?;
        let (victim, survivor) = (clients[VICTIM.index()].clone(), clients[2].clone());
        cluster.thread(VICTIM.index(), "changes", move |ep| {
            ep.block_on(victim.delete(ep, key))?;
            ep.block_on(victim.insert(ep, key, 2))?;
            ep.block_on(victim.update(ep, key, 3)).map(drop)
        });
        cluster.thread(2, "repairs", move |ep| {
            for value in [4, 5] {
                ep.block_on(cut(choose(16), survivor.update(ep, key, value))).transpose()?;
            }
            ep.block_on(async {
                survivor.insert(ep, key, 6).await?;
                survivor.get(ep, key).await.map(drop)
            })
        });
        judge(cluster, &clients, &[key], Some(key));
        Ok(())
    })
    .faults(Faults::new().crashes(1).of([VICTIM.index()]))
}

/// A node is cut off in the middle of any operation, and may continue until it learns of its eviction. Either it
/// reconnects in time, or one side is evicted: the values stored there are lost, and none of its puts lands later. A
/// node that may have learned of its answers found nothing newer.
pub(super) fn is_cut_off() -> Scenario {
    let about = "who is cut off loses what lay there, and nothing else; what it did is done, or not";
    Scenario::new("kv/cut", about, 3, |cluster| node_failure(cluster, Placement::Inserter, true))
        .rule(DeathRule::Majority)
        .faults(Faults::new().cuts(1).side([VICTIM.index()]))
}

/// The same where the node that is cut off has put its values to the others, and they theirs to it.
pub(super) fn is_cut_off_by_hash() -> Scenario {
    let about = "the same, with values placed by hash";
    Scenario::new("kv/cut-by-hash", about, 3, |cluster| node_failure(cluster, Placement::Hash, true))
        .rule(DeathRule::Majority)
        .faults(Faults::new().cuts(1).side([VICTIM.index()]))
}

/// Any operations of three nodes, one of which may die, or be cut off.
fn node_failure(cluster: &Cluster, placement: Placement, is_cut: bool) -> Result<()> {
    // The first key is never on the victim: by its hash, or because the victim does not insert it.
    let keys = keys([|hash| hash % 3 == 0, |hash| hash % 3 == u64::from(VICTIM.0)]);
    let [kept, lost] = keys;
    let options = KvOptions { placement, locks: 3, slots_per_node: 6, ..tiny() };
    let mut clients = Client::open(cluster, options, &[(0, kept, 1), (VICTIM.index(), lost, 2)])?;
    if is_cut {
        may_be_cut_off(cluster, &mut clients)?;
    }
    for (node, client) in clients.iter().cloned().enumerate() {
        cluster.thread(node, "mixed", move |ep| {
            for round in 1..=2 {
                let (key, value) = (keys[choose(2)], 10 * round + node as u64);
                let may_insert = key != kept || placement == Placement::Hash || node != VICTIM.index();
                ep.block_on(async {
                    match choose(5) {
                        0 => client.get(ep, key).await.map(drop),
                        1 => client.delete(ep, key).await.map(drop),
                        2 if may_insert => client.insert(ep, key, value).await.map(drop),
                        3 if may_insert => client.upsert(ep, key, value).await.map(drop),
                        _ => client.update(ep, key, value).await.map(drop),
                    }
                })?;
            }
            Ok(())
        });
    }
    judge(cluster, &clients, &keys, (!is_cut).then_some(kept));
    Ok(())
}

/// Gives each client a word on each other node, see [`Entry::Unheard`].
pub(crate) fn may_be_cut_off(cluster: &Cluster, clients: &mut [Client]) -> Result<()> {
    let words = (0..clients.len()).map(|node| Ok((node, word(cluster, node, "heard")?.remote::<u64>(0))));
    let words = words.collect::<Result<Vec<_>>>()?;
    for (node, client) in clients.iter_mut().enumerate() {
        client.heard_at = words.iter().copied().filter(|(other, _)| *other != node).collect();
    }
    Ok(())
}

/// A key beside those of the history.
const BESIDE: u64 = 9999;

/// Waits until the nodes that are left agree on which of them are, and each of them can change a key: if a node's
/// service thread does not reach another one's, the node is evicted for that.
fn decide(nodes: &[Node], clients: &[Client]) -> Result<()> {
    let left = || (0..nodes.len()).filter(|node| goes_on(&nodes[*node]));
    loop {
        let before: Vec<usize> = left().collect();
        let mut all = true;
        for node in left() {
            let (ep, kv) = (nodes[node].endpoint()?, &clients[node].kv);
            ep.block_on(ep.wait_until(Instant::NEVER, || is_decided(&nodes[node]).then_some(())))?;
            for changed in [ep.block_on(kv.insert(&ep, &BESIDE, &[0; 2])), ep.block_on(kv.delete(&ep, &BESIDE))] {
                all &= match changed {
                    Err(error) if is_full(&error) => true,
                    changed => unless_faults(changed)?.is_some(),
                };
            }
        }
        if all && left().eq(before) {
            return Ok(());
        }
    }
}

/// In the end the nodes that are left agree, can use each key again, and the history is that of a store that may have
/// lost the values of the others. The value of the key that is `kept` never lay on a node that may die; if no key is,
/// nodes may be cut off.
pub(crate) fn judge(cluster: &Cluster, clients: &[Client], keys: &[u64], kept: Option<u64>) {
    let (nodes, clients, keys, is_cut) = (cluster.nodes().to_vec(), clients.to_vec(), keys.to_vec(), kept.is_none());
    cluster.at_end(move || {
        if is_cut {
            decide(&nodes, &clients)?;
        }
        let goes_on = |node: &usize| !crashed(*node) && !nodes[*node].fabric().is_fenced();
        let living: Vec<usize> = (0..nodes.len()).filter(goes_on).collect();
        let Some(first) = living.first().copied() else { return Ok(()) };
        let mut lost_is_gone = false;
        for key in keys.iter().copied() {
            let ep = nodes[first].endpoint()?;
            // The holder of the key's lock has repaired the operations that were cut short.
            match ep.block_on(clients[first].kv.modify(&ep, &key, |_| None)) {
                Err(error) if !matches!(error.kind(), ErrorKind::ValueLost { .. }) => return Err(error),
                _ => {}
            }
            let mut found = Vec::new();
            for node in &living {
                let ep = nodes[*node].endpoint()?;
                found.push(ep.block_on(clients[*node].get(&ep, key))?);
            }
            assert!(found.iter().all(|value| *value == found[0]), "key {key} has different values: {found:?}");
            assert!(kept != Some(key) || found[0] != Answer::Lost, "a value was lost that did not lie there");
            lost_is_gone |= found[0] == Answer::Lost;
            // All nodes can use the key again.
            for node in &living {
                let (ep, value) = (nodes[*node].endpoint()?, 100 + *node as u64);
                assert_eq!(ep.block_on(clients[*node].upsert_when_free(&ep, key, value))?, Answer::Is(()));
                for other in &living {
                    let ep = nodes[*other].endpoint()?;
                    assert_eq!(ep.block_on(clients[*other].get(&ep, key))?, Answer::Is(Some(value)));
                }
            }
        }
        assert!(!lost_is_gone || living.len() < nodes.len());
        let entries = clients[0].log.take();
        // An answer to a node that has left the session counts if that node could have reported it to a remaining one.
        let is_heard = |call: usize, client: u32| {
            let unheard =
                |entry: &Entry| matches!(entry, Entry::Unheard { call: at, by } if *at == call && living.contains(by));
            living.contains(&(client as usize)) || !entries[call..].iter().any(unheard)
        };
        let mut history = history_of_heard(&entries, is_heard);
        for gone in (0..nodes.len()).filter(|node| !living.contains(node)) {
            let of_it = |at: usize| matches!(entries[at], Entry::Called { client, .. } if client as usize == gone);
            let said = |at: &usize| match entries[*at] {
                Entry::Returned { call, .. } => of_it(call),
                _ => of_it(*at),
            };
            // The node lived, and had its values, until its last log entry. A node that is cut off stays alive.
            let lived = if is_cut { 0 } else { (0..entries.len()).rfind(said).map_or(0, |last| last as u64 + 1) };
            for key in keys.iter().copied().filter(|key| kept != Some(*key)) {
                // At some moment its values were lost.
                history.record(key, Event::pending(9 + gone as u32, lived, KvInput::Delete));
                // While it deletes a key, others find the key missing, and lost after its death. A delete that it has
                // given up continues, whatever it calls next.
                let deletes = |at: usize| {
                    let ended = |entry: &Entry| matches!(entry, Entry::Returned { call, .. } if *call == at);
                    let is_delete =
                        matches!(entries[at], Entry::Called { key: of, input: KvInput::Delete, .. } if of == key);
                    of_it(at) && is_delete && !entries.iter().any(ended)
                };
                if (0..entries.len()).any(deletes) {
                    history.record(key, Event::pending(19 + gone as u32, lived, KvInput::Insert(u64::MAX)));
                }
            }
        }
        if let Err(failure) = history.check_each_key(Default::default()) {
            panic!("{failure}");
        }
        Ok(())
    });
}
