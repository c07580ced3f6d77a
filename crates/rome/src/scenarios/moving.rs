//! A partition that is moved to another node.

use std::rc::Rc;

use farfield_check::parts::Excuse;
use farfield_check::{Cluster, Faults, Scenario, crashed};
use farfield_core::Result;
use farfield_fabric::Instant;

use super::histories::MapCall::{self, Delete, First, Get, Insert, MultiGet, Put, Range};
use super::store::{HOLD, Store, before, call, calls, calls_beside_faults, open};
use crate::{RangeUnavailable, SnapshotExpired};

pub(super) fn scenarios() -> Vec<Scenario> {
    vec![
        moved(),
        read(),
        unchanged(),
        scanned(),
        twice(),
        on(),
        back(),
        leaves(),
        leaves_late(),
        late(),
        taker_dies(),
        giver_dies(),
        publish_dies(),
    ]
}

/// How often a node takes a partition that is changed or taken by another one meanwhile.
const ATTEMPTS: usize = 8;

/// A thread that moves a partition to its node, and then makes these calls. With faults it may fail.
fn takes(
    cluster: &Cluster,
    store: &Store,
    node: usize,
    partition: usize,
    may_fail: bool,
    list: Vec<MapCall>,
) -> Result<()> {
    let (mut thread, calls) = (store.stores[node].thread()?, Rc::clone(&store.calls));
    cluster.thread(node, "takes", move |ep| {
        for attempt in 0.. {
            let excuse = Excuse::now();
            let Err(error) = ep.block_on(thread.take_partition(ep, partition)) else {
                // Another node may have taken it since.
                break;
            };
            if error.is_timeout() && attempt < ATTEMPTS {
                continue;
            }
            assert!(may_fail && (excuse.is_given() || crashed(0)), "{error}");
            let lost = error.custom_ref::<RangeUnavailable>().expect("which keys");
            assert_eq!(lost.partition, partition, "{error}");
            return Ok(());
        }
        for it in &list {
            if let Err(error) = call(10 + node, &mut thread, &calls, ep, it) {
                assert!(may_fail, "{error}");
                return Ok(());
            }
        }
        Ok(())
    });
    Ok(())
}

fn moved() -> Scenario {
    let about = "a partition is moved while its old owner and a third node change it and read it";
    Scenario::new("rome/kv-moved", about, 3, |cluster| {
        let store = open(cluster, 24, HOLD)?;
        before(cluster, &store, &[Put(1, 1), Put(2, 2)])?;
        calls(cluster, &store, 0, 1, vec![Put(1, 2), Delete(3), Get(1), Delete(3), Put(1, 4)])?;
        calls(cluster, &store, 1, 2, vec![Put(1, 3), Get(1), Delete(2), Get(3), MultiGet(vec![1, 2])])?;
        takes(cluster, &store, 2, 0, false, vec![Put(3, 5), Get(1)])
    })
    .kills(&["rome-kv-moved-unseen", "rome-kv-moved-is-done"])
}

/// It has all that was there, from the first moment on.
fn read() -> Scenario {
    let about = "a partition that is moved is whole for its readers at any moment";
    Scenario::new("rome/kv-moved-read", about, 3, |cluster| {
        let store = open(cluster, 24, HOLD)?;
        before(cluster, &store, &[Put(1, 1), Put(2, 2), Put(3, 3)])?;
        calls(cluster, &store, 1, 1, vec![Get(1), Get(2), Get(3), Get(1)])?;
        takes(cluster, &store, 2, 0, false, Vec::new())
    })
    .kills(&["rome-kv-moved-early"])
}

/// What the old owner has last seen of a key says nothing any more.
fn unchanged() -> Scenario {
    let about = "a change that changes nothing at the old place of a partition is made at the new one";
    Scenario::new("rome/kv-moved-unchanged", about, 2, |cluster| {
        let store = open(cluster, 24, HOLD)?;
        calls(cluster, &store, 0, 1, vec![Delete(3), Delete(3), Delete(3)])?;
        takes(cluster, &store, 1, 0, false, vec![Put(3, 5), Get(3)])
    })
    .kills(&["rome-kv-moved-unchanged"])
}

fn scanned() -> Scenario {
    let about = "scans at one instant beside the move of a partition see all of it once";
    Scenario::new("rome/kv-moved-scanned", about, 3, |cluster| {
        let store = open(cluster, 24, HOLD)?;
        before(cluster, &store, &[Put(1, 1), Put(2, 2), Put(6, 6)])?;
        calls(cluster, &store, 0, 1, vec![Put(1, 2), Put(6, 1), Put(3, 3)])?;
        calls(
            cluster,
            &store,
            1,
            2,
            vec![Range(0, 9, false), First, Range(0, 9, true), Put(1, 7), Range(0, 4, false)],
        )?;
        takes(cluster, &store, 2, 0, false, vec![Range(0, 9, false)])
    })
}

/// It moves on to a third node, or back.
fn twice() -> Scenario {
    let about = "two nodes take the same partition, one after the other";
    Scenario::new("rome/kv-moved-twice", about, 3, |cluster| {
        let store = open(cluster, 24, HOLD)?;
        before(cluster, &store, &[Put(1, 1)])?;
        calls(cluster, &store, 0, 1, vec![Put(1, 2), Get(1), Put(2, 1)])?;
        takes(cluster, &store, 1, 0, false, vec![Put(1, 3), Get(2)])?;
        takes(cluster, &store, 2, 0, false, vec![Get(1), Put(2, 5), Get(1)])
    })
}

/// What nodes without any call say of it later.
fn on() -> Scenario {
    let about = "the last two owners of a partition say where it is, whatever they do at the same time";
    Scenario::new("rome/kv-moved-on", about, 3, |cluster| {
        let store = open(cluster, 24, HOLD)?;
        takes(cluster, &store, 1, 0, false, Vec::new())?;
        takes(cluster, &store, 2, 0, false, Vec::new())?;
        let stores = store.stores.clone();
        cluster.at_end(move || {
            let said = stores.iter().map(|store| store.place_said(0));
            let last = said.clone().max().expect("there are nodes");
            assert!(last.0 > 0 && stores[last.1.index()].place_said(0) == last, "{last:?}");
            assert!(said.filter(|said| *said == last).count() >= 2, "its last owner alone says {last:?}");
            Ok(())
        });
        Ok(())
    })
    .kills(&["rome-kv-place-falls"])
}

/// The third node may think that the first one has had it all the time. If that one stops, its copy may be out of date
/// when it continues.
fn back() -> Scenario {
    let about = "a node takes a partition back, while another one has not heard that it was away";
    Scenario::new("rome/kv-moved-back", about, 3, |cluster| {
        let store = open(cluster, 24, HOLD)?;
        calls_beside_faults(cluster, &store, 2, 1, vec![Put(1, 2), Get(1)])?;
        takes(cluster, &store, 1, 0, false, vec![Put(1, 5), Put(1, 6), Put(1, 7), Get(1)])?;
        let (mut thread, calls) = (store.stores[0].thread()?, Rc::clone(&store.calls));
        let kept = store.stores[0].clone();
        cluster.thread(0, "takes back", move |ep| {
            let is_away = || (kept.place_said(0).0 > 0).then_some(());
            ep.block_on(ep.wait_until(Instant::NEVER, is_away))?;
            let excuse = Excuse::now();
            for attempt in 0..=ATTEMPTS {
                match ep.block_on(thread.take_partition(ep, 0)) {
                    Ok(()) => break,
                    Err(error) => assert!(excuse.is_given() || error.is_timeout() && attempt < ATTEMPTS, "{error}"),
                }
            }
            if let Err(error) = call(10, &mut thread, &calls, ep, &Get(1)) {
                assert!(excuse.is_given(), "{error}");
            }
            Ok(())
        });
        Ok(())
    })
    .faults(Faults::new().pauses(1).of([0]))
    .kills(&["rome-kv-any-epoch"])
}

/// Keys of several leaves. Some of the changes below split leaves, and merge them.
fn many(cluster: &Cluster) -> Result<Store> {
    let store = open(cluster, 60, HOLD)?;
    let first: Vec<_> = (6..16).map(|key| Put(key, key)).collect();
    before(cluster, &store, &first)?;
    Ok(store)
}

fn many_of_owner() -> Vec<MapCall> {
    vec![Delete(6), Delete(7), Put(16, 1), Delete(8), Put(17, 2), Delete(9), Get(10), Delete(13)]
}

fn many_of_other() -> Vec<MapCall> {
    vec![Put(11, 5), Delete(12), Put(18, 3), Range(0, 30, false), Insert(19, 4), Delete(14), Get(6)]
}

fn leaves() -> Scenario {
    let about = "a partition of several leaves is moved, which are split and merged meanwhile";
    Scenario::new("rome/kv-moved-leaves", about, 3, |cluster| {
        let store = many(cluster)?;
        calls(cluster, &store, 1, 1, many_of_owner())?;
        calls(cluster, &store, 0, 2, many_of_other())?;
        takes(cluster, &store, 2, 1, false, vec![Range(0, 30, false), Delete(10), Put(20, 1), Range(5, 30, true)])
    })
    .kills(&["rome-kv-copies-a-leaf"])
}

/// Splits and merges are stored by then, and become visible.
fn leaves_late() -> Scenario {
    let about = "a freeze of a partition of several leaves ends, because the node that takes it stops";
    Scenario::new("rome/kv-moved-leaves-late", about, 3, |cluster| {
        let store = many(cluster)?;
        calls_beside_faults(cluster, &store, 1, 1, many_of_owner())?;
        calls_beside_faults(cluster, &store, 0, 2, many_of_other())?;
        takes(cluster, &store, 2, 1, true, vec![Range(0, 30, false), Delete(10)])
    })
    .faults(Faults::new().pauses(1).of([2]))
}

/// Its freeze may be over.
fn late() -> Scenario {
    let about = "a node that stops while it takes a partition takes it with all changes, or not";
    Scenario::new("rome/kv-moved-late", about, 2, |cluster| {
        let store = open(cluster, 24, HOLD)?;
        calls_beside_faults(cluster, &store, 0, 1, (1..8).map(|value| Put(1, value)).collect())?;
        takes(cluster, &store, 1, 0, true, vec![Get(1)])
    })
    .faults(Faults::new().pauses(1).of([1]))
    .kills(&["rome-kv-late-copy"])
}

/// Before the move, in the middle, or after it.
fn taker_dies() -> Scenario {
    let about = "the death of the node that takes a partition stops changes for a moment, or is that of its owner";
    Scenario::new("rome/kv-taker-dies", about, 3, |cluster| {
        let store = open(cluster, 24, HOLD)?;
        before(cluster, &store, &[Put(1, 1), Put(6, 6)])?;
        for (node, list) in
            [(0, vec![Put(1, 2), Get(1), Put(2, 1)]), (1, vec![Insert(3, 1), Get(1), Range(0, 9, false)])]
        {
            let (mut thread, calls) = (store.stores[node].thread()?, Rc::clone(&store.calls));
            cluster.thread(node, "calls", move |ep| {
                for it in &list {
                    let excuse = Excuse::now();
                    if let Err(error) = call(node, &mut thread, &calls, ep, it) {
                        let is_given = crashed(2) || excuse.is_given();
                        let is_known = match error.custom_ref::<RangeUnavailable>() {
                            // It was moved before.
                            Some(lost) => lost.partition == 0 && lost.owner.0 == 2 && is_given,
                            None => excuse.is_given() && error.custom_ref::<SnapshotExpired>().is_some(),
                        };
                        assert!(is_known, "{error}");
                        // The other one is there.
                        return call(node, &mut thread, &calls, ep, &Get(6));
                    }
                }
                Ok(())
            });
        }
        takes(cluster, &store, 2, 0, true, vec![Put(1, 7)])
    })
    .faults(Faults::new().crashes(1).of([2]))
    .kills(&["rome-kv-frozen-for-ever"])
}

/// Before the move, in the middle, or after it.
fn giver_dies() -> Scenario {
    let about = "the death of the old owner of a partition that is moved loses all of it, or nothing";
    Scenario::new("rome/kv-giver-dies", about, 3, |cluster| {
        let store = open(cluster, 24, HOLD)?;
        before(cluster, &store, &[Put(1, 1), Put(6, 6)])?;
        calls_beside_faults(cluster, &store, 0, 1, vec![Put(1, 2), Put(2, 1)])?;
        let (mut thread, calls) = (store.stores[1].thread()?, Rc::clone(&store.calls));
        cluster.thread(1, "calls", move |ep| {
            for it in [Insert(3, 1), Get(1), Range(0, 9, false), Get(1), Get(3), Put(3, 2), Get(1)] {
                let (excuse, is_moved) = (Excuse::now(), thread.store().owner_of(0).0 == 2);
                if let Err(error) = call(1, &mut thread, &calls, ep, &it) {
                    let is_known = match error.custom_ref::<RangeUnavailable>() {
                        // What was found at its new place stays there, and can be changed there.
                        Some(lost) => lost.partition == 0 && crashed(0) && !is_moved,
                        None => excuse.is_given() && error.custom_ref::<SnapshotExpired>().is_some(),
                    };
                    assert!(is_known, "{error}");
                }
            }
            call(1, &mut thread, &calls, ep, &Put(6, 7))
        });
        takes(cluster, &store, 2, 0, true, vec![Get(1), Put(1, 7), Get(1)])
    })
    .faults(Faults::new().crashes(1).of([0]))
}

/// It may have moved the partition, and the taker has no reply. A third node finds the new place, or nothing.
fn publish_dies() -> Scenario {
    let about = "a partition whose new place any node has found can be changed there, though its old owner died before it could say so";
    Scenario::new("rome/kv-publish-dies", about, 3, |cluster| {
        let store = open(cluster, 24, HOLD)?;
        before(cluster, &store, &[Put(1, 1)])?;
        let (mut thread, calls) = (store.stores[1].thread()?, Rc::clone(&store.calls));
        cluster.thread(1, "calls", move |ep| {
            // It reads until it has found the new place.
            for it in [Get(1), Get(1), Get(1), Get(1), Get(1), Get(1), Put(1, 2), Get(1)] {
                if matches!(it, Get(_)) && thread.store().owner_of(0).0 == 2 && !crashed(0) {
                    continue;
                }
                let is_moved = thread.store().owner_of(0).0 == 2;
                if let Err(error) = call(1, &mut thread, &calls, ep, &it) {
                    let lost = error.custom_ref::<RangeUnavailable>().expect("which keys");
                    assert!(lost.partition == 0 && crashed(0) && !is_moved, "{error}");
                }
            }
            Ok(())
        });
        takes(cluster, &store, 2, 0, true, vec![Get(1), Put(1, 7)])
    })
    .faults(Faults::new().crashes(1).of([0]))
    .kills(&["rome-kv-copy-discarded"])
}
