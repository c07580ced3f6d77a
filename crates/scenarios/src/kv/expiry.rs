//! Keys that stay for a time, against all that changes them meanwhile. Time passes only when nothing else can happen;
//! so the threads here wait until the moment at which the key's time is up, and then run against its removal.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use farfield_core::fabric::Instant;
use farfield_core::history::kv::{KvInput, KvOutput};
use farfield_core::{Endpoint, KvOptions, KvStore, Placement, Result};

use super::client::{
    Answer, Client, Entry, Pair, all_slots_come_back, first_lock, is_full, keys, linearizable, on_node_1, second_lock,
    tiny,
};
use super::{VICTIM, a_moment, cut_short};
use farfield_check::parts::{Excuse, patiently, word};
use farfield_check::{Cluster, Faults, Scenario, choose};

/// As long as [`a_moment`].
const TIME: Duration = Duration::from_millis(1);

pub(super) fn scenarios() -> Vec<Scenario> {
    vec![
        expires(),
        by_hash(),
        cut_insert(),
        reused(),
        renewed(),
        renewed_elsewhere(),
        cut_renewal(),
        dies("kv/expiry-dies", 0),
        dies("kv/expiry-dies-with-lock", 1),
        leaves(),
        closed(),
    ]
}

impl Client {
    /// Inserts a key for [`TIME`].
    async fn insert_for(&self, ep: &Endpoint, key: u64, value: u64) -> Result<Answer<bool>> {
        // The removal is a delete that begins with the insert, and ends at some time, or never.
        self.log.push(Entry::Called { client: 9 + self.id, key, input: KvInput::Delete });
        let insert = async { self.kv.insert_for(ep, &key, &[value; 2], TIME).await };
        self.call(ep, key, KvInput::Insert(value), insert, |done| KvOutput::Succeeded(*done)).await
    }
}

/// The removal is a delete: the key is gone on all nodes, not before its time, and another one may insert it. An update
/// leaves the time as it is.
fn expires() -> Scenario {
    Scenario::new("kv/expires", "a key is removed when its time is up, and not before", 2, |cluster| {
        let clients = Client::open(cluster, tiny(), &[])?;
        let (near, far) = (clients[0].clone(), clients[1].clone());
        let begun = Rc::new(Cell::new(None));
        let begin = Rc::clone(&begun);
        cluster.thread(0, "inserts", move |ep| {
            ep.block_on(async {
                a_moment(ep).await;
                begin.set(Some(ep.now()));
                near.insert_for(ep, 1, 1).await?;
                near.get(ep, 1).await.map(drop)
            })
        });
        cluster.thread(1, "waits", move |ep| {
            ep.block_on(async {
                let found = far.kv.wait_change(ep, &1, None, ep.deadline()).await?;
                assert!(found.is_some());
                far.update(ep, 1, 2).await?;
                while far.kv.get(ep, &1).await?.is_some() {
                    a_moment(ep).await;
                }
                let begun: Instant = begun.get().expect("it was inserted");
                assert!(ep.now() - begun >= TIME, "removed after {:?}", ep.now() - begun);
                far.insert(ep, 1, 3).await.map(drop)
            })
        });
        linearizable(cluster, &clients, &[1]);
        all_slots_come_back(cluster, &clients, &[1]);
        Ok(())
    })
}

/// The value is on another node than its inserter, which learns of the time from the tracker. The slot returns to the
/// inserter, once.
fn by_hash() -> Scenario {
    Scenario::new(
        "kv/expires-by-hash",
        "the node that has the value removes it, and its slot comes back",
        2,
        |cluster| {
            let [key] = keys([on_node_1]);
            let clients = Client::open(cluster, KvOptions { placement: Placement::Hash, ..tiny() }, &[])?;
            let near = clients[0].clone();
            cluster.thread(0, "inserts", move |ep| {
                ep.block_on(async {
                    near.insert_for(ep, key, 1).await?;
                    while near.kv.get(ep, &key).await?.is_some() {
                        a_moment(ep).await;
                    }
                    near.insert_when_free(ep, key, 2).await
                })
            });
            linearizable(cluster, &clients, &[key]);
            share_comes_back(cluster, &clients, key);
            Ok(())
        },
    )
}

/// Node 0 hands out one slot of node 1. It has it again when the key is deleted, once.
fn share_comes_back(cluster: &Cluster, clients: &[Client], key: u64) {
    let (node, clients) = (cluster.node(0), clients.to_vec());
    cluster.at_end(move || {
        let (ep, kv) = (node.endpoint()?, &clients[0].kv);
        ep.block_on(async {
            kv.delete(&ep, &key).await?;
            let [_, first, second] = keys([on_node_1; 3]);
            let mut rounds = 0..100;
            while let Err(error) = kv.insert(&ep, &first, &[3; 2]).await {
                assert!(is_full(&error), "{error}");
                rounds.next().expect("the slot comes back some day");
                a_moment(&ep).await;
            }
            let refused = kv.insert(&ep, &second, &[4; 2]).await;
            assert!(refused.is_err_and(|error| is_full(&error)), "a slot was freed twice");
            assert_eq!(kv.get(&ep, &first).await?, Some([3; 2]));
            Ok(())
        })
    });
}

/// The home may know the time of an insert that is undone.
fn cut_insert() -> Scenario {
    Scenario::new("kv/cut-insert-for", "an insert for a time that is dropped at any moment is undone", 2, |cluster| {
        let [key] = keys([on_node_1]);
        let clients = Client::open(cluster, KvOptions { placement: Placement::Hash, ..tiny() }, &[])?;
        let (cuts, inserts) = (clients[0].clone(), clients[1].clone());
        cluster.thread(0, "cuts", move |ep| cut_short(ep, cuts.insert_for(ep, key, 1)));
        cluster.thread(1, "inserts", move |ep| {
            ep.block_on(async {
                a_moment(ep).await;
                inserts.insert(ep, key, 2).await?;
                inserts.get(ep, key).await.map(drop)
            })
        });
        linearizable(cluster, &clients, &[key]);
        share_comes_back(cluster, &clients, key);
        Ok(())
    })
}

/// The key is deleted when its time is up, and another key gets its slot: that one stays. For `kv-expires-removed`.
fn reused() -> Scenario {
    Scenario::new("kv/expiry-reused", "a time ends with the delete of its key", 2, |cluster| {
        let clients = Client::open(cluster, KvOptions { slots_per_node: 1, ..tiny() }, &[])?;
        let near = clients[0].clone();
        cluster.thread(0, "deletes", move |ep| {
            ep.block_on(async {
                near.insert_for(ep, 1, 1).await?;
                a_moment(ep).await;
                near.delete(ep, 1).await?;
                near.insert_when_free(ep, 2, 2).await
            })
        });
        linearizable(cluster, &clients, &[1, 2]);
        all_slots_come_back(cluster, &clients, &[1, 2]);
        Ok(())
    })
    .kills(&["kv-expires-removed"])
}

/// In the end the key is there on all nodes, if a call has found it and said that it stays. Otherwise it is gone.
fn stays_if(cluster: &Cluster, clients: &[Client], stays: &Rc<Cell<Option<bool>>>) {
    let (nodes, clients, stays) = (cluster.nodes(), clients.to_vec(), Rc::clone(stays));
    cluster.at_end(move || {
        let stays = stays.get().expect("the call has ended");
        for (node, client) in nodes.iter().zip(&clients) {
            let ep = node.endpoint()?;
            // What takes a while is complete once no thread can get on.
            ep.block_on(a_moment(&ep));
            let found = ep.block_on(client.kv.get(&ep, &1))?;
            assert_eq!(found.is_some(), stays, "on node {}", client.id);
        }
        Ok(())
    });
}

/// The home gives the key another time when the first is up: the service thread may have seen that already. For
/// `kv-expires-renewed`.
fn renewed() -> Scenario {
    renewed_by("kv/renewed", 0).kills(&["kv-expires-renewed"])
}

/// The same from another node, which waits until the home knows. For `kv-renewed-early`.
fn renewed_elsewhere() -> Scenario {
    renewed_by("kv/renewed-elsewhere", 1).kills(&["kv-renewed-early"])
}

fn renewed_by(name: &str, renews: usize) -> Scenario {
    Scenario::new(name, "a key whose time is set anew when it is up is gone, or stays", 2, move |cluster| {
        let clients = Client::open(cluster, tiny(), &[])?;
        let client = clients[0].clone();
        cluster.on_each(move |node| match node.id().0 {
            0 => node.endpoint()?.block_on(client.kv.insert_for(&node.endpoint()?, &1, &[1; 2], TIME)).map(drop),
            _ => Ok(()),
        })?;
        let (kv, stays) = (Rc::clone(&clients[renews].kv), Rc::new(Cell::new(None)));
        stays_if(cluster, &clients, &stays);
        cluster.thread(renews, "renews", move |ep| {
            ep.block_on(async {
                a_moment(ep).await;
                let found = kv.expire_after(ep, &1, Duration::MAX).await?;
                stays.set(Some(found));
                assert_eq!(kv.get(ep, &1).await?.is_some(), found);
                Ok(())
            })
        });
        Ok(())
    })
}

/// An announcement that was cut short does not come after that of a later call. For `kv-renewal-dropped`.
fn cut_renewal() -> Scenario {
    let about = "a time that is set by a dropped call does not replace that of a later one";
    Scenario::new("kv/cut-renewal", about, 2, |cluster| {
        let clients = Client::open(cluster, tiny(), &[])?;
        let (near, far) = (Rc::clone(&clients[0].kv), Rc::clone(&clients[1].kv));
        let (told, stays) = (word(cluster, 0, "told")?, Rc::new(Cell::new(None)));
        let tell = told.remote::<u64>(0);
        stays_if(cluster, &clients, &stays);
        cluster.thread(1, "cuts", move |ep| {
            ep.block_on(far.wait_change(ep, &1, None, ep.deadline()))?;
            cut_short(ep, far.expire_after(ep, &1, TIME))?;
            ep.put_value(tell, 1).wait().map_err(Into::into)
        });
        cluster.thread(0, "keeps", move |ep| {
            ep.block_on(async {
                near.insert(ep, &1, &[1; 2]).await?;
                ep.wait_until(Instant::NEVER, || (told.word(0).load() == 1).then_some(())).await?;
                stays.set(Some(near.expire_after(ep, &1, Duration::MAX).await?));
                Ok(())
            })
        });
        Ok(())
    })
    .kills(&["kv-renewal-dropped"])
}

/// A node dies while it changes the key, under a lock here or there: the key is removed nevertheless, and its slot is
/// free again.
fn dies(name: &str, lock: usize) -> Scenario {
    let about = "a key is removed when its time is up, whoever died under its lock";
    Scenario::new(name, about, 2, move |cluster| {
        let [key] = keys([if lock == 0 { first_lock } else { second_lock }]);
        let clients = Client::open(cluster, KvOptions { locks: 2, ..tiny() }, &[])?;
        let [near, far] = [0, 1].map(|node: usize| Rc::clone(&clients[node].kv));
        let (home, first) = (cluster.node(0), Rc::clone(&near));
        cluster.on_each(move |node| match node.id().0 {
            0 => node.endpoint()?.block_on(first.insert_for(&node.endpoint()?, &key, &[1; 2], TIME)).map(drop),
            _ => Ok(()),
        })?;
        cluster.thread(VICTIM.index(), "dies", move |ep| {
            let excuse = Excuse::now();
            let changed = ep.block_on(async {
                match choose(4) {
                    0 => far.update(ep, &key, &[2; 2]).await.map(drop),
                    1 => far.upsert_for(ep, &key, &[3; 2], TIME).await.map(drop),
                    2 => far.delete(ep, &key).await.map(drop),
                    _ => {
                        a_moment(ep).await;
                        far.expire_after(ep, &key, TIME).await.map(drop)
                    }
                }
            });
            match changed {
                Err(error) if error.is_timeout() && excuse.is_given() => Ok(()),
                changed => changed,
            }
        });
        cluster.at_end(move || {
            let (ep, _others) = (home.endpoint()?, clients);
            ep.block_on(async {
                // It may be inserted again on the other node, for a time. That one may have died.
                let mut rounds = 0..2000;
                while let Ok(Some(_)) = near.get(&ep, &key).await {
                    rounds.next().expect("its time is up some day");
                    a_moment(&ep).await;
                }
                // Its slot is free again.
                for key in [1001, 1002] {
                    while let Err(error) = near.insert(&ep, &key, &[key; 2]).await {
                        assert!(is_full(&error), "{error}");
                        rounds.next().expect("the slot comes back some day");
                        a_moment(&ep).await;
                    }
                }
                Ok(())
            })
        });
        Ok(())
    })
    .faults(Faults::new().crashes(1).of([VICTIM.index()]))
}

/// A node leaves before the time of its keys is up, when it is, and in the middle of a removal. What it has begun it
/// ends: no lock stays taken, and the other can insert the keys.
fn leaves() -> Scenario {
    let about = "a node that leaves with times to come keeps no key from others";
    Scenario::new("kv/expiry-leaves", about, 2, |cluster| {
        let keys = keys([first_lock, second_lock]);
        let clients = Client::open(cluster, KvOptions { locks: 2, ..tiny() }, &[])?;
        let first = Rc::clone(&clients[0].kv);
        cluster.on_each(move |node| {
            let (ep, mut times) = (node.endpoint()?, keys.into_iter().zip([TIME, TIME * 2]));
            let insert = |(key, time)| ep.block_on(first.insert_for(&ep, &key, &[1; 2], time)).map(drop);
            if node.id().0 == 0 { times.try_for_each(insert) } else { Ok(()) }
        })?;
        let (leaving, mut clients) = (cluster.node(0), clients.into_iter());
        let (first, second) = (clients.next().expect("of node 0"), clients.next().expect("of node 1"));
        cluster.thread_that_drops(0, "leaves", move |ep| {
            (0..choose(3)).for_each(|_| ep.block_on(a_moment(ep)));
            // A program may drop its handles with their scope, or leave with the store still open.
            if choose(2) == 0 {
                drop(first);
            }
            leaving.leave();
            Ok(())
        });
        let stays = cluster.node(1);
        cluster.at_end(move || {
            let ep = stays.endpoint()?;
            for key in keys {
                assert!(ep.block_on(second.kv.insert(&ep, &key, &[2; 2]))?, "its value was lost, or it was removed");
                assert_eq!(ep.block_on(second.kv.get(&ep, &key))?, Some([2; 2]));
            }
            Ok(())
        });
        Ok(())
    })
    .early_timeouts()
}

/// A store is closed before the time of its keys is up, when it is, and in the middle of a removal: nothing stays of
/// it. For `kv-removal-kept`.
fn closed() -> Scenario {
    Scenario::new("kv/expiry-closed", "nothing of a store stays that is closed with times to come", 2, |cluster| {
        let stores = cluster.on_each(|node| KvStore::<u64, Pair>::open(node, "kv", tiny()).map(Rc::new))?;
        let (time, inserts) = ([TIME, Duration::from_secs(3600)][cluster.draw(2)], stores.clone());
        cluster.on_each(move |node| {
            let (ep, store) = (node.endpoint()?, &inserts[node.id().index()]);
            ep.block_on(store.insert_for(&ep, &u64::from(node.id().0), &[1; 2], time)).map(drop)
        })?;
        for (at, store) in stores.into_iter().enumerate() {
            let node = cluster.node(at);
            cluster.thread_that_drops(at, "closes", move |ep| {
                if choose(2) == 0 {
                    ep.block_on(a_moment(ep));
                }
                drop(store);
                let is_back = || (node.metrics().memory_bytes == 0).then_some(());
                patiently(|| Ok(ep.block_on(ep.wait_until(ep.deadline(), is_back))?))
            });
        }
        Ok(())
    })
    .kills(&["kv-removal-kept"])
}
