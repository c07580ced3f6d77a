//! Changes as other nodes see them, at their end and when they are cut short: in their indexes, in errors, in new
//! stores.

use core::future::poll_fn;
use core::pin::pin;
use core::task::Poll;
use std::rc::Rc;
use std::time::Duration;

use farfield_core::fabric::Instant;
use farfield_core::{ErrorKind, KvOptions, KvStore, NodeId, Placement, Result};

use super::super::keep;
use super::VICTIM;
use super::client::{Answer, Client, keys, linearizable, on_node_1, tiny, whole};
use farfield_check::parts::word;
use farfield_check::{Faults, Scenario, crashed};

pub(super) fn scenarios() -> Vec<Scenario> {
    vec![
        deleted(),
        insert_after_get(),
        not_locked(),
        held(),
        copied(),
        several_of_the_dead(),
        update_dies("kv/update-dies", 0),
        update_dies("kv/update-dies-with-lock", 1),
    ]
}

/// The index of another node, `CW`s of its service thread, against the `NRW` of the acknowledgement: a node that is
/// told of a delete can insert the key.
fn deleted() -> Scenario {
    Scenario::new("kv/deleted", "who is told of a delete can insert the key", 2, |cluster| {
        let clients = Client::open(cluster, tiny(), &[(0, 1, 1)])?;
        let (near, far, told) = (clients[0].clone(), clients[1].clone(), word(cluster, 1, "told")?);
        let tell = told.remote::<u64>(0);
        cluster.thread(0, "deletes", move |ep| {
            ep.block_on(near.delete(ep, 1))?;
            ep.put_value(tell, 1).wait().map_err(Into::into)
        });
        cluster.thread(1, "inserts", move |ep| {
            ep.block_on(ep.wait_until(Instant::NEVER, || (told.word(0).load() == 1).then_some(())))?;
            ep.block_on(far.insert(ep, 1, 2)).map(drop)
        });
        linearizable(cluster, &clients, &[1]);
        Ok(())
    })
}

/// The buffer of an insert has contained the valid slot of another key: the values are too long for reads without one.
fn insert_after_get() -> Scenario {
    let about = "once a get has found a new key, no get anywhere misses it, whatever its inserter has read before";
    Scenario::new("kv/insert-after-get", about, 2, |cluster| {
        let stores = cluster.on_each(|node| KvStore::<u64, [u64; 3]>::open(node, "kv", tiny()).map(Rc::new))?;
        let far = Rc::clone(&stores[1]);
        cluster.on_each(move |node| match node.id() {
            NodeId(1) => node.endpoint()?.block_on(far.insert(&node.endpoint()?, &2, &[7; 3])),
            _ => Ok(true),
        })?;
        let inserts = Rc::clone(&stores[0]);
        cluster.thread(0, "inserts", move |ep| {
            ep.block_on(inserts.get(ep, &2))?;
            ep.block_on(inserts.insert(ep, &1, &[1; 3])).map(drop)
        });
        // The begin of each get, and its end: where it began, and whether it has found the key.
        let gets = cluster.log();
        for (node, store) in stores.iter().cloned().enumerate() {
            let gets = gets.clone();
            cluster.thread(node, "gets", move |ep| {
                let begin = gets.push(None);
                let found = ep.block_on(store.get(ep, &1))?;
                gets.push(Some((begin, found.is_some())));
                Ok(())
            });
        }
        cluster.at_end(move || {
            let gets = gets.take();
            let first_found = gets.iter().position(|get| matches!(get, Some((_, true)))).unwrap_or(usize::MAX);
            let is_late = |(begin, found): &(usize, bool)| *begin > first_found && !found;
            assert!(!gets.iter().flatten().any(is_late), "a get misses a key that another has found: {gets:?}");
            Ok(())
        });
        keep(cluster, stores);
        Ok(())
    })
}

/// A get that meets a torn value looks again. It takes no lock before the value has been torn for long, and time does
/// not pass here.
fn not_locked() -> Scenario {
    Scenario::new("kv/not-locked", "a get of a value that is being updated takes no lock", 2, |cluster| {
        let clients = Client::open(cluster, tiny(), &[(0, 1, 1)])?;
        let (near, far) = (clients[0].clone(), clients[1].clone());
        cluster.thread(1, "updates", move |ep| ep.block_on(far.update(ep, 1, 2)).map(drop));
        cluster.thread(0, "gets", move |ep| {
            let before = (ep.now(), ep.counts().atomics);
            for _ in 0..2 {
                ep.block_on(near.get(ep, 1))?;
            }
            assert_eq!((ep.now(), ep.counts().atomics), before, "look-ups are free of locks");
            Ok(())
        });
        linearizable(cluster, &clients, &[1]);
        Ok(())
    })
}

/// An insert that is not polled keeps its key's lock, on its own node. An update elsewhere times out, and says why.
fn held() -> Scenario {
    Scenario::new("kv/held", "a call that waits for a key's lock in vain names the lock and its holder", 2, |cluster| {
        let clients = Client::open(cluster, tiny(), &[])?;
        let (inserts, updates) = (clients[0].clone(), clients[1].clone());
        let (held, done) = (word(cluster, 1, "held")?, word(cluster, 0, "done")?);
        let (tell_held, tell_done) = (held.remote::<u64>(0), done.remote::<u64>(0));
        cluster.thread(0, "inserts", move |ep| {
            ep.block_on(async {
                let mut insert = pin!(inserts.kv.insert(ep, &1, &[1; 2]));
                // Until the key is in its own index: under the lock, before all have acknowledged it.
                let polled = poll_fn(|cx| match insert.as_mut().poll(cx) {
                    Poll::Ready(inserted) => Poll::Ready(Some(inserted)),
                    Poll::Pending if inserts.kv.len() == 1 => Poll::Ready(None),
                    Poll::Pending => Poll::Pending,
                });
                if let Some(inserted) = polled.await {
                    ep.put_value(tell_held, 2).await?;
                    return inserted.map(drop);
                }
                ep.put_value(tell_held, 1).await?;
                ep.wait_until(Instant::NEVER, || (done.word(0).load() == 1).then_some(())).await?;
                insert.await.map(drop)
            })
        });
        cluster.thread(1, "updates", move |ep| {
            let was_held =
                ep.block_on(ep.wait_until(Instant::NEVER, || Some(held.word(0).load()).filter(|it| *it > 0)))?;
            if was_held == 1 {
                ep.set_timeout(Duration::from_millis(30));
                // It may have released the lock already.
                if let Err(late) = ep.block_on(updates.kv.update(ep, &1, &[2; 2])) {
                    let ErrorKind::Timeout { what, .. } = late.kind() else { return Err(late) };
                    assert_eq!((what.as_str(), late.node()), ("the lock", Some(NodeId(0))), "{late}");
                }
            }
            ep.put_value(tell_done, 1).wait().map_err(Into::into)
        });
        Ok(())
    })
}

/// Three pairs of the old store, two of them with slots on one node: there is room for one of the two in the new store,
/// which has a slot on each node for each inserter.
fn copied() -> Scenario {
    Scenario::new("kv/copied", "a store that cannot take all pairs of the old one is not opened", 2, |cluster| {
        let on_node_0 = |hash: u64| !on_node_1(hash);
        for wanted in [[on_node_0, on_node_0, on_node_1 as fn(u64) -> bool], [on_node_1, on_node_1, on_node_0]] {
            let all = keys(wanted);
            let path = format!("of {}", all[2]);
            let opened = cluster.on_each(move |node| {
                let old = KvStore::<u64, u64>::open(node, &path, KvOptions { slots_per_node: 8, ..tiny() })?;
                let ep = node.endpoint()?;
                if node.id() == NodeId(0) {
                    for key in all {
                        assert!(ep.block_on(old.insert(&ep, &key, &key))?);
                    }
                }
                let options = KvOptions { placement: Placement::Hash, ..tiny() };
                let new = KvStore::open_with_pairs_of(node, &format!("{path}, again"), options, Some(&old));
                Ok((old, new))
            })?;
            let full = opened[0].1.as_ref().err().expect("there is no room for all");
            assert!(matches!(full.kind(), ErrorKind::Full { .. }), "{full}");
            assert!(opened[1].1.is_ok(), "it has had nothing to copy");
            keep(cluster, opened);
        }
        Ok(())
    })
}

/// Gets of several keys at once, some of which lie on a node that dies: each has its own value, or the error.
fn several_of_the_dead() -> Scenario {
    let about = "of several keys that are got at once, those on a node that dies are lost, and no others";
    Scenario::new("kv/several-of-the-dead", about, 3, |cluster| {
        let clients = Client::open(cluster, tiny(), &[(0, 1, 1), (1, 2, 2), (2, 3, 3)])?;
        let gets = clients[0].clone();
        cluster.thread(0, "gets", move |ep| {
            for _ in 0..4 {
                let mut found = Vec::new();
                ep.block_on(gets.kv.get_many(ep, &[2, 1, 3], &mut found))?;
                let lost = found.remove(0);
                match &lost {
                    Ok(value) => assert_eq!(value.map(whole), Some(2), "a key has another's value"),
                    Err(error) => {
                        let is_lost = matches!(error.kind(), ErrorKind::ValueLost { node } if *node == VICTIM);
                        assert!(is_lost && crashed(VICTIM.index()), "{error}");
                    }
                }
                let found = found.into_iter().map(|value| Ok(value?.map(whole))).collect::<Result<Vec<_>>>()?;
                assert_eq!(found, [Some(1), Some(3)], "a key has another's value, or none");
            }
            Ok(())
        });
        let other = clients[1].clone();
        cluster.thread(1, "gets", move |ep| ep.block_on(other.get(ep, 3)).map(drop));
        keep(cluster, clients);
        Ok(())
    })
    .faults(Faults::new().crashes(1).of([VICTIM.index()]))
}

/// A node dies while it updates a value on another. Its two puts, the second of which may be cut short, leave the old
/// value or the new one. The lock is on node 0, or is lost with the node that held it.
fn update_dies(name: &'static str, lock_home: u64) -> Scenario {
    let about = "an update whose node dies leaves the old value or the new one, and the key can be used";
    Scenario::new(name, about, 3, move |cluster| {
        let [key] = keys([if lock_home == 0 { |hash| (hash >> 32) % 3 == 0 } else { |hash| (hash >> 32) % 3 == 1 }]);
        let clients = Client::open(cluster, KvOptions { locks: 3, ..tiny() }, &[(2, key, 1)])?;
        let victim = clients[VICTIM.index()].clone();
        cluster.thread(VICTIM.index(), "updates", move |ep| ep.block_on(victim.kv.update(ep, &key, &[2; 2])).map(drop));
        let nodes = cluster.nodes();
        cluster.at_end(move || {
            let found = [0, 2].map(|node| {
                let ep = nodes[node].endpoint()?;
                ep.block_on(clients[node].get(&ep, key))
            });
            let [first, second] = found.map(|found| found.expect("its value lies on a living node"));
            assert!(first == Answer::Is(Some(1)) || first == Answer::Is(Some(2)), "{first:?}");
            assert_eq!(first, second, "nodes differ about the value");
            let ep = nodes[0].endpoint()?;
            assert_eq!(ep.block_on(clients[0].update(&ep, key, 3))?, Answer::Is(true));
            let ep = nodes[2].endpoint()?;
            assert_eq!(ep.block_on(clients[2].get(&ep, key))?, Answer::Is(Some(3)));
            Ok(())
        });
        Ok(())
    })
    .faults(Faults::new().crashes(1).of([VICTIM.index()]))
}
