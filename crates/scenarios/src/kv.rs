//! The key-value store is linearizable under any concurrent operations, even if some of them are cut short.
//!
//! Clients record their calls in a history. Its clock is the log: adding an entry takes a position in the order of the
//! execution. At the end, the history must be linearizable together with the values that every node then finds.

pub(super) mod client;
mod elsewhere;
mod expiry;
pub(super) mod node_failure;

use std::rc::Rc;
use std::time::Duration;

use farfield_core::fabric::Instant;
use farfield_core::{Endpoint, KvOptions, NodeId, Placement, Result};

use self::client::{
    Answer, Client, Pair, all_slots_come_back, first_lock, keys, linearizable, on_node_1, second_lock, tiny, whole,
};
use farfield_check::parts::{cut, word};
use farfield_check::{Cluster, Scenario, choose};

pub(super) fn scenarios() -> Vec<Scenario> {
    [of_two(), elsewhere::scenarios(), expiry::scenarios()].concat()
}

fn of_two() -> Vec<Scenario> {
    vec![
        update(),
        torn(),
        insert(),
        inserted(),
        found(),
        delete(),
        upsert(),
        modify(),
        reused(),
        reused_elsewhere(),
        handed_on(),
        handed_on_elsewhere(),
        window(),
        by_hash(),
        traffic(),
        cut_insert(),
        cut_delete(),
        cut_delete_elsewhere(),
        cut_slot(),
        timeout(),
        changes(),
        node_failure::dies(),
        node_failure::dies_by_hash(),
        node_failure::repair_is_cut(),
        node_failure::is_cut_off(),
        node_failure::is_cut_off_by_hash(),
    ]
}

/// Runs a call, or drops it between two of its polls.
fn cut_short<T>(ep: &Endpoint, call: impl Future<Output = Result<T>>) -> Result<()> {
    ep.block_on(cut(choose(8), call)).map_or(Ok(()), |done| done.map(drop))
}

/// Time passes only when no thread can make progress.
async fn a_moment(ep: &Endpoint) {
    ep.sleep_until(ep.now() + Duration::from_millis(1)).await;
}

/// A node waits until a key is inserted, and updated, and then removes it, for which the other waits. It may miss the
/// first value, but not the last one.
fn changes() -> Scenario {
    Scenario::new("kv/wait-change", "a wait ends when the key is inserted, updated or removed", 2, |cluster| {
        let clients = Client::open(cluster, tiny(), &[])?;
        let (writer, waiter) = (Rc::clone(&clients[0].kv), Rc::clone(&clients[1].kv));
        cluster.thread(0, "writer", move |ep| {
            ep.block_on(async {
                writer.insert(ep, &1, &[1; 2]).await?;
                writer.update(ep, &1, &[2; 2]).await?;
                let gone = writer.wait_change(ep, &1, Some(&[2; 2]), ep.deadline()).await?;
                assert_eq!(gone, None);
                Ok(())
            })
        });
        cluster.thread(1, "waiter", move |ep| {
            ep.block_on(async {
                let (mut seen, mut last) = (None, 0);
                while seen != Some([2; 2]) {
                    seen = waiter.wait_change(ep, &1, seen.as_ref(), ep.deadline()).await?;
                    let value = seen.map_or(0, |value: Pair| value[0]);
                    assert!(value > last, "{value} after {last}");
                    last = value;
                }
                waiter.delete(ep, &1).await.map(drop)
            })
        });
        Ok(())
    })
}

/// `NRW` of the value against the `NAW` of the release, on two queue pairs: the lock is on node 0, the value on node 1.
/// A get after the update, and the update after it, must find the new value. For `kv-update-no-fence`,
/// `kv-torn-is-absent`.
fn update() -> Scenario {
    Scenario::new("kv/update", "an update is seen by the gets and updates after it", 2, |cluster| {
        let clients = Client::open(cluster, tiny(), &[(1, 1, 1)])?;
        let (near, far) = (clients[0].clone(), clients[1].clone());
        cluster.thread(0, "updates", move |ep| ep.block_on(near.update(ep, 1, 2)).map(drop));
        cluster.thread(1, "gets", move |ep| {
            ep.block_on(far.get(ep, 1))?;
            ep.block_on(far.update(ep, 1, 3)).map(drop)
        });
        linearizable(cluster, &clients, &[1]);
        Ok(())
    })
    .kills(&["kv-update-no-fence"])
}

/// A get reads a slot word by word while another node's put lands word by word. For `kv-sum-ignored`,
/// `kv-torn-is-absent`.
fn torn() -> Scenario {
    Scenario::new("kv/torn", "a get finds the value from before an update or from after it, whole", 2, |cluster| {
        let clients = Client::open(cluster, tiny(), &[(0, 1, 1)])?;
        let (near, far) = (clients[0].clone(), clients[1].clone());
        cluster.thread(0, "updates", move |ep| ep.block_on(near.update(ep, 1, 2)).map(drop));
        cluster.thread(1, "gets", move |ep| ep.block_on(far.get(ep, 1)).map(drop));
        linearizable(cluster, &clients, &[1]);
        Ok(())
    })
    .kills(&["kv-torn-is-absent", "kv-sum-ignored"])
}

/// Every index against the `CW` of valid: once one get hits, none misses. For `kv-valid-early`.
fn insert() -> Scenario {
    Scenario::new("kv/insert", "once a get has found a new key, no get anywhere misses it", 2, |cluster| {
        let clients = Client::open(cluster, tiny(), &[])?;
        let (inserts, near, far) = (clients[0].clone(), clients[0].clone(), clients[1].clone());
        cluster.thread(0, "inserts", move |ep| ep.block_on(inserts.insert(ep, 1, 1)).map(drop));
        cluster.thread(0, "gets", move |ep| ep.block_on(near.get(ep, 1)).map(drop));
        cluster.thread(1, "gets", move |ep| {
            ep.block_on(far.get(ep, 1))?;
            ep.block_on(far.get(ep, 1)).map(drop)
        });
        linearizable(cluster, &clients, &[1]);
        Ok(())
    })
    .kills(&["kv-valid-early"])
}

/// The index of another node, `CW`s of its service thread, against the `NRW` of the acknowledgement. For
/// `kv-ack-before-apply`.
fn inserted() -> Scenario {
    Scenario::new("kv/inserted", "who is told of an insert finds the key", 2, |cluster| {
        let clients = Client::open(cluster, tiny(), &[])?;
        let (near, far, told) = (clients[0].clone(), clients[1].clone(), word(cluster, 1, "told")?);
        let tell = told.remote::<u64>(0);
        cluster.thread(0, "inserts", move |ep| {
            ep.block_on(near.insert(ep, 1, 1))?;
            ep.put_value(tell, 1).wait().map_err(Into::into)
        });
        cluster.thread(1, "gets", move |ep| {
            ep.block_on(ep.wait_until(Instant::NEVER, || (told.word(0).load() == 1).then_some(())))?;
            ep.block_on(far.get(ep, 1)).map(drop)
        });
        linearizable(cluster, &clients, &[1]);
        Ok(())
    })
    .kills(&["kv-ack-before-apply"])
}

/// The inserter's own index against the `CW` of valid, which another node's get may see at once. For
/// `kv-own-index-last`.
fn found() -> Scenario {
    Scenario::new("kv/found", "a key that another node has found is found on the inserter's", 2, |cluster| {
        let clients = Client::open(cluster, tiny(), &[])?;
        let (inserts, near, far) = (clients[0].clone(), clients[0].clone(), clients[1].clone());
        let told = word(cluster, 0, "told")?;
        let tell = told.remote::<u64>(0);
        cluster.thread(0, "inserts", move |ep| ep.block_on(inserts.insert(ep, 1, 1)).map(drop));
        cluster.thread(0, "gets", move |ep| {
            ep.block_on(ep.wait_until(Instant::NEVER, || (told.word(0).load() == 1).then_some(())))?;
            ep.block_on(near.get(ep, 1)).map(drop)
        });
        cluster.thread(1, "gets", move |ep| {
            for _ in 0..6 {
                if ep.block_on(far.get(ep, 1))? == Answer::Is(Some(1)) {
                    break;
                }
            }
            ep.put_value(tell, 1).wait().map_err(Into::into)
        });
        linearizable(cluster, &clients, &[1]);
        Ok(())
    })
    .kills(&["kv-own-index-last"])
}

/// `NRW` of the cleared meta word, by the deleter's endpoint, against the trackers' `NRW`s, by another: once one get
/// misses, none hits. For `kv-delete-not-flushed`.
fn delete() -> Scenario {
    Scenario::new("kv/delete", "once a get has missed a deleted key, no get anywhere finds it", 2, |cluster| {
        let clients = Client::open(cluster, tiny(), &[(1, 1, 1)])?;
        let (deletes, near, far) = (clients[0].clone(), clients[0].clone(), clients[1].clone());
        cluster.thread(0, "deletes", move |ep| ep.block_on(deletes.delete(ep, 1)).map(drop));
        cluster.thread(0, "gets", move |ep| ep.block_on(near.get(ep, 1)).map(drop));
        cluster.thread(1, "gets", move |ep| {
            ep.block_on(far.get(ep, 1))?;
            ep.block_on(far.get(ep, 1)).map(drop)
        });
        linearizable(cluster, &clients, &[1]);
        Ok(())
    })
    .kills(&["kv-delete-not-flushed"])
}

/// An upsert of one node against an insert and a delete of another. The upsert updates the other's value, or inserts
/// the key anew, in another slot.
fn upsert() -> Scenario {
    Scenario::new("kv/upsert", "upserts on one node, an insert and a delete on another", 2, |cluster| {
        let clients = Client::open(cluster, tiny(), &[])?;
        let (near, far) = (clients[0].clone(), clients[1].clone());
        cluster.thread(0, "upserts", move |ep| {
            ep.block_on(near.upsert(ep, 1, 1))?;
            ep.block_on(near.upsert(ep, 1, 2)).map(drop)
        });
        cluster.thread(1, "inserts", move |ep| {
            ep.block_on(far.insert(ep, 1, 3))?;
            ep.block_on(far.delete(ep, 1)).map(drop)
        });
        linearizable(cluster, &clients, &[1]);
        Ok(())
    })
}

/// A read and a write as one operation: increments of two nodes, of a key that is not there at first.
fn modify() -> Scenario {
    Scenario::new("kv/modify", "no increment of two nodes is lost", 2, |cluster| {
        let clients = Client::open(cluster, tiny(), &[])?;
        for (node, client) in clients.iter().cloned().enumerate() {
            cluster.thread(node, "adds", move |ep| {
                let add = |before: Option<&Pair>| Some([before.copied().map_or(0, whole) + 1; 2]);
                ep.block_on(client.kv.modify(ep, &1, add)).map(drop)
            });
        }
        let (node, client) = (cluster.node(1), clients[1].clone());
        cluster.at_end(move || {
            let ep = node.endpoint()?;
            assert_eq!(ep.block_on(client.kv.get(&ep, &1))?, Some([2; 2]), "the sum of the increments");
            Ok(())
        });
        Ok(())
    })
}

/// A slot is used again while a get has looked up its earlier use: the words that the get reads one by one must not
/// yield another key's value. For `kv-uses-not-counted`, `kv-sum-unseeded`.
fn reused() -> Scenario {
    Scenario::new("kv/reused", "a get of a deleted key does not find the next key of its slot", 1, |cluster| {
        let clients = Client::open(cluster, KvOptions { slots_per_node: 1, ..tiny() }, &[(0, 1, 1)])?;
        let (deletes, gets) = (clients[0].clone(), clients[0].clone());
        cluster.thread(0, "deletes", move |ep| {
            ep.block_on(deletes.delete(ep, 1))?;
            ep.block_on(deletes.insert(ep, 2, 2)).map(drop)
        });
        cluster.thread(0, "gets", move |ep| ep.block_on(gets.get(ep, 1)).map(drop));
        linearizable(cluster, &clients, &[1, 2]);
        Ok(())
    })
    .small()
    .kills(&["kv-uses-not-counted", "kv-sum-unseeded"])
}

/// The same for a get from another node, alone and as one of many: that node's index drops the key only when the
/// message arrives. For `kv-uses-not-counted`.
fn reused_elsewhere() -> Scenario {
    Scenario::new("kv/reused-elsewhere", "gets from another node tell the uses of a slot apart", 2, |cluster| {
        let clients = Client::open(cluster, KvOptions { slots_per_node: 1, ..tiny() }, &[(0, 1, 1)])?;
        let (deletes, gets) = (clients[0].clone(), clients[1].clone());
        cluster.thread(0, "deletes", move |ep| {
            ep.block_on(deletes.delete(ep, 1))?;
            ep.block_on(deletes.insert(ep, 2, 2)).map(drop)
        });
        cluster.thread(1, "gets", move |ep| match choose(2) {
            0 => ep.block_on(gets.get(ep, 1)).map(drop),
            _ => ep.block_on(gets.get_many(ep, &[2, 1])),
        });
        linearizable(cluster, &clients, &[1, 2]);
        Ok(())
    })
}

/// Two keys with different locks share one slot: a delete frees it, and an insert of another thread uses it. No
/// operation of the first takes effect after the second. For `kv-freed-first`.
fn handed_on() -> Scenario {
    Scenario::new("kv/handed-on", "a slot goes from one thread's delete to another's insert", 1, |cluster| {
        let [old, new] = keys([first_lock, second_lock]);
        let clients = Client::open(cluster, KvOptions { slots_per_node: 1, locks: 2, ..tiny() }, &[(0, old, 1)])?;
        let (deletes, inserts) = (clients[0].clone(), clients[0].clone());
        cluster.thread(0, "deletes", move |ep| ep.block_on(deletes.delete(ep, old)).map(drop));
        cluster.thread(0, "inserts", move |ep| ep.block_on(inserts.insert_when_free(ep, new, 2)));
        linearizable(cluster, &clients, &[old, new]);
        Ok(())
    })
    .medium()
    .kills(&["kv-freed-first"])
}

/// The same with the delete on another node: its put of the cleared meta word lands before the slot's next use is
/// written. For `kv-delete-not-flushed`.
fn handed_on_elsewhere() -> Scenario {
    Scenario::new("kv/handed-on-elsewhere", "a slot goes from one node's delete to another's insert", 2, |cluster| {
        let [old, new] = keys([first_lock, second_lock]);
        let clients = Client::open(cluster, KvOptions { slots_per_node: 1, locks: 2, ..tiny() }, &[(0, old, 1)])?;
        let (inserts, deletes) = (clients[0].clone(), clients[1].clone());
        cluster.thread(0, "inserts", move |ep| ep.block_on(inserts.insert_when_free(ep, new, 2)));
        cluster.thread(1, "deletes", move |ep| ep.block_on(deletes.delete(ep, old)).map(drop));
        linearizable(cluster, &clients, &[old, new]);
        Ok(())
    })
}

/// Two concurrent operations of one thread, on keys with different locks, through one tracker.
fn window() -> Scenario {
    Scenario::new("kv/window", "several operations of one thread, and gets elsewhere", 2, |cluster| {
        let [a, b] = keys([first_lock, second_lock]);
        let clients = Client::open(cluster, KvOptions { locks: 2, ..tiny() }, &[(1, a, 1)])?;
        let (changes, gets) = (clients[0].clone(), clients[1].clone());
        cluster.thread(0, "changes", move |ep| {
            let change = async |at: u64| -> Result<()> {
                match at {
                    0 => changes.delete(ep, a).await.map(drop),
                    1 => changes.insert(ep, b, 2).await.map(drop),
                    2 => changes.upsert(ep, a, 3).await.map(drop),
                    _ => changes.update(ep, b, 4).await.map(drop),
                }
            };
            let mut ended = Ok(());
            ep.run_window(2, (0..2).map(&change), |result| ended = ended.clone().and(result));
            ep.run_window(2, (2..4).map(&change), |result| ended = ended.clone().and(result));
            ended
        });
        cluster.thread(1, "gets", move |ep| {
            ep.block_on(gets.get_many(ep, &[b, a]))?;
            ep.block_on(gets.get_many(ep, &[a, b]))
        });
        linearizable(cluster, &clients, &[a, b]);
        Ok(())
    })
}

/// Values on another node than the inserter's: puts write the slot, make it valid and clear it. They run against the
/// puts of the trackers and the lock, to other nodes.
fn by_hash() -> Scenario {
    Scenario::new(
        "kv/by-hash",
        "keys whose values lie on another node than their inserter's and their lock",
        2,
        |cluster| {
            let [a] = keys([on_node_1]);
            let options = KvOptions { placement: Placement::Hash, ..tiny() };
            let clients = Client::open(cluster, options, &[])?;
            let (near, far) = (clients[0].clone(), clients[1].clone());
            cluster.thread(0, "changes", move |ep| {
                ep.block_on(near.insert(ep, a, 1))?;
                ep.block_on(near.update(ep, a, 2))?;
                ep.block_on(near.delete(ep, a)).map(drop)
            });
            cluster.thread(1, "gets", move |ep| {
                ep.block_on(far.get(ep, a))?;
                ep.block_on(far.update(ep, a, 3))?;
                ep.block_on(far.get(ep, a)).map(drop)
            });
            linearizable(cluster, &clients, &[a]);
            Ok(())
        },
    )
}

/// Any operations against each other: two nodes choose among all operations, and three keys, two of which share a lock.
fn traffic() -> Scenario {
    Scenario::new("kv/traffic", "any operations of two nodes on a few keys", 2, |cluster| {
        let keys = keys([first_lock, first_lock, second_lock]);
        let clients = Client::open(cluster, KvOptions { locks: 2, ..tiny() }, &[(0, keys[0], 1)])?;
        for (node, client) in clients.iter().cloned().enumerate() {
            cluster.thread(node, "client", move |ep| {
                for round in 1..=2 {
                    let (key, value) = (keys[choose(3)], 10 * round + node as u64);
                    ep.block_on(async {
                        match choose(6) {
                            0 => client.get(ep, key).await.map(drop),
                            1 => client.insert(ep, key, value).await.map(drop),
                            2 => client.update(ep, key, value).await.map(drop),
                            3 => client.upsert(ep, key, value).await.map(drop),
                            4 => client.get_many(ep, &keys).await,
                            _ => client.delete(ep, key).await.map(drop),
                        }
                    })?;
                }
                Ok(())
            });
        }
        linearizable(cluster, &clients, &keys);
        all_slots_come_back(cluster, &clients, &keys);
        Ok(())
    })
}

/// An insert that is dropped between any two of its polls, and another node's insert of the same key. Trackers of
/// different nodes are not ordered, so the key stays locked until the first insert is undone on all nodes. For
/// `kv-released-before-dropped`.
fn cut_insert() -> Scenario {
    Scenario::new(
        "kv/cut-insert",
        "a key whose insert was dropped at any moment can be inserted elsewhere",
        2,
        |cluster| {
            let clients = Client::open(cluster, tiny(), &[])?;
            let (cuts, inserts) = (clients[0].clone(), clients[1].clone());
            cluster.thread(0, "cuts", move |ep| cut_short(ep, cuts.insert(ep, 1, 1)));
            cluster.thread(1, "inserts", move |ep| {
                ep.block_on(inserts.insert(ep, 1, 2))?;
                ep.block_on(inserts.get(ep, 1)).map(drop)
            });
            linearizable(cluster, &clients, &[1]);
            all_slots_come_back(cluster, &clients, &[1]);
            Ok(())
        },
    )
    .kills(&["kv-released-before-dropped"])
}

/// A delete that is dropped between any two of its polls: it is completed, or has not begun, and the slot is freed
/// once.
fn cut_delete() -> Scenario {
    let about = "a delete that is dropped at any moment is completed, or has not begun";
    Scenario::new("kv/cut-delete", about, 2, |cluster| cut_delete_of(cluster, 0))
}

/// The same on another node than the slot's, which returns the slot by a message.
fn cut_delete_elsewhere() -> Scenario {
    let about = "the slot of a delete that is dropped on another node comes back, once";
    Scenario::new("kv/cut-delete-elsewhere", about, 2, |cluster| cut_delete_of(cluster, 1))
}

fn cut_delete_of(cluster: &Cluster, deleter: usize) -> Result<()> {
    let clients = Client::open(cluster, tiny(), &[(0, 1, 1)])?;
    let (cuts, inserts) = (clients[deleter].clone(), clients[1 - deleter].clone());
    cluster.thread(deleter, "cuts", move |ep| cut_short(ep, cuts.delete(ep, 1)));
    cluster.thread(1 - deleter, "inserts", move |ep| {
        ep.block_on(inserts.get(ep, 1))?;
        ep.block_on(inserts.insert(ep, 1, 2)).map(drop)
    });
    linearizable(cluster, &clients, &[1]);
    all_slots_come_back(cluster, &clients, &[1]);
    Ok(())
}

/// `NRW`s of the user's endpoint against those of the service thread's, to one slot: the puts of an insert that was
/// dropped land before the slot is cleared and used again. For `kv-hand-over-unfenced`.
fn cut_slot() -> Scenario {
    Scenario::new(
        "kv/cut-slot",
        "the slot of an insert that was dropped is another key's, and only its",
        2,
        |cluster| {
            let [old, new] =
                keys([|hash| on_node_1(hash) && first_lock(hash), |hash| on_node_1(hash) && second_lock(hash)]);
            let options = KvOptions { placement: Placement::Hash, locks: 2, ..tiny() };
            let clients = Client::open(cluster, options, &[])?;
            let (cuts, inserts) = (clients[0].clone(), clients[0].clone());
            cluster.thread(0, "cuts", move |ep| {
                cut_short(ep, cuts.insert(ep, old, 1))?;
                ep.block_on(cuts.delete(ep, old)).map(drop)
            });
            cluster.thread(0, "inserts", move |ep| ep.block_on(inserts.insert_when_free(ep, new, 2)));
            linearizable(cluster, &clients, &[old, new]);
            Ok(())
        },
    )
    .kills(&["kv-hand-over-unfenced"])
}

/// Deadlines that pass at any moment: for the lock, for room in the tracker, for acknowledgements. A change without an
/// answer has happened or not, the same on all nodes, and the key can be used again.
fn timeout() -> Scenario {
    Scenario::new(
        "kv/timeout",
        "changes that time out at any moment have happened, or not, on all nodes",
        2,
        |cluster| {
            let clients = Client::open(cluster, tiny(), &[])?;
            for (node, client) in clients.iter().cloned().enumerate() {
                cluster.thread(node, "changes", move |ep| {
                    ep.set_timeout(Duration::from_millis(30));
                    ep.block_on(async {
                        client.insert(ep, 1, 1 + node as u64).await?;
                        if node == 0 {
                            client.delete(ep, 1).await?;
                        }
                        client.get(ep, 1).await.map(drop)
                    })
                });
            }
            linearizable(cluster, &clients, &[1]);
            all_slots_come_back(cluster, &clients, &[1]);
            Ok(())
        },
    )
    .early_timeouts()
}

/// The node that dies, in scenarios where one dies.
pub(super) const VICTIM: NodeId = NodeId(1);
