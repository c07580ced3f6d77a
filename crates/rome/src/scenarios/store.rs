//! The store over partitions.

use core::time::Duration;
use std::rc::Rc;

use farfield_check::parts::Excuse;
use farfield_check::{Cluster, Faults, Scenario, crashed, was_paused};
use farfield_core::history::Recorder;
use farfield_core::{Endpoint, Error, Node, Result};
use farfield_rpc::{Client, RpcOptions, Server};

use super::histories::MapCall::{self, Delete, Get, Insert, MultiGet, Put, Range};
use super::histories::{MapAnswer, MapModel};
use super::tiny;
use crate::{RangeUnavailable, RomeKv, RomeKvOptions, RomeKvThread, SnapshotExpired};

pub(super) fn scenarios() -> Vec<Scenario> {
    vec![
        both(),
        remote(),
        instant(),
        own_instant(),
        looks(),
        chores(),
        ends(),
        service(),
        full(),
        owner_dies(),
        holder_dies(),
        owner_stops(),
        late(),
        scanned(),
        scanner_stops(),
        opener_stops(),
    ]
}

/// A store with two partitions, of nodes 0 and 1, that all nodes have opened; and the history of its calls.
pub(super) struct Store {
    pub(super) stores: Vec<RomeKv<u64, u64>>,
    pub(super) calls: Rc<Recorder<MapModel>>,
}

/// The first key of the second partition.
const BOUNDARY: u64 = 5;
pub(super) const HOLD: Duration = Duration::from_micros(200);

pub(super) fn open(cluster: &Cluster, blocks: usize, hold: Duration) -> Result<Store> {
    let stores = cluster.on_each(move |node| open_on(node, blocks, hold))?;
    let calls = Rc::<Recorder<MapModel>>::default();
    let (seen, kept) = (Rc::clone(&calls), stores.clone());
    cluster.at_end(move || {
        seen.check(&MapModel);
        drop(kept);
        Ok(())
    });
    Ok(Store { stores, calls })
}

/// The store, as one node opens it.
pub(super) fn open_on(node: &Node, blocks: usize, hold: Duration) -> Result<RomeKv<u64, u64>> {
    let mut options = RomeKvOptions::new([BOUNDARY]);
    (options.tree, options.hold, options.window, options.batch_max) = (tiny(blocks), hold, 2, 2);
    RomeKv::open(node, "store", options)
}

type Thread = RomeKvThread<u64, u64>;

/// A call, and its answer.
fn answer(thread: &mut Thread, ep: &Endpoint, call: &MapCall) -> Result<MapAnswer> {
    ep.block_on(async {
        Ok(match *call {
            Put(key, value) => MapAnswer::Value(thread.put(ep, key, value).await?),
            Insert(key, value) => MapAnswer::Was(thread.insert(ep, key, value).await?),
            Delete(key) => MapAnswer::Value(thread.delete(ep, &key).await?),
            Get(key) => MapAnswer::Value(thread.get(ep, &key).await?),
            // Of one partition.
            MultiGet(ref keys) => MapAnswer::Values(thread.multi_get(ep, keys).await?),
            MapCall::First => MapAnswer::Pairs(Vec::from_iter(thread.first(ep).await?)),
            MapCall::Last => MapAnswer::Pairs(Vec::from_iter(thread.last(ep).await?)),
            Range(from, to, false) => {
                MapAnswer::Pairs(thread.scan_at_one_instant(ep, from..to).await?.collect(ep, usize::MAX).await?)
            }
            Range(from, to, true) => {
                MapAnswer::Pairs(thread.scan_back_at_one_instant(ep, from..to).await?.collect(ep, usize::MAX).await?)
            }
        })
    })
}

/// Makes a call. Whether it has an answer; else the error, which says truly whether it may have happened.
pub(super) fn call(
    client: usize,
    thread: &mut Thread,
    calls: &Recorder<MapModel>,
    ep: &Endpoint,
    call: &MapCall,
) -> Result<()> {
    let at = calls.begin(client, call.clone());
    match answer(thread, ep, call) {
        Ok(answer) => calls.end(at, answer),
        Err(error) => {
            if !may_have_happened(&error) {
                // In its place is a call that changes nothing.
                calls.amend(at, MultiGet(Vec::new()));
                calls.end(at, MapAnswer::Values(Vec::new()));
            }
            return Err(error);
        }
    }
    Ok(())
}

fn may_have_happened(error: &Error) -> bool {
    error.custom_ref::<RangeUnavailable>().is_some_and(|lost| lost.may_have_happened)
}

/// A thread that makes these calls.
pub(super) fn calls(cluster: &Cluster, store: &Store, node: usize, client: usize, list: Vec<MapCall>) -> Result<()> {
    let (mut thread, calls) = (store.stores[node].thread()?, Rc::clone(&store.calls));
    cluster.thread(node, "calls", move |ep| list.iter().try_for_each(|it| call(client, &mut thread, &calls, ep, it)));
    Ok(())
}

/// The same beside faults: it ends with the first call that these prevent.
pub(super) fn calls_beside_faults(
    cluster: &Cluster,
    store: &Store,
    node: usize,
    client: usize,
    list: Vec<MapCall>,
) -> Result<()> {
    let (mut thread, calls) = (store.stores[node].thread()?, Rc::clone(&store.calls));
    cluster.thread(node, "calls", move |ep| {
        for it in &list {
            let excuse = Excuse::now();
            if let Err(error) = call(client, &mut thread, &calls, ep, it) {
                assert!(excuse.is_given(), "nothing has happened: {error}");
                let is_known = error.is_gone()
                    || error.is_unreachable()
                    || error.is_timeout()
                    || error.custom_ref::<SnapshotExpired>().is_some()
                    || farfield_check::parts::comes_of_faults(&error);
                assert!(is_known, "{error}");
                return Ok(());
            }
        }
        Ok(())
    });
    Ok(())
}

/// Calls before the threads begin.
pub(super) fn before(cluster: &Cluster, store: &Store, list: &[MapCall]) -> Result<()> {
    for (node, kv) in store.stores.iter().enumerate().take(2) {
        let (mut thread, ep) = (kv.thread()?, cluster.node(node).endpoint()?);
        for it in list.iter().filter(|it| matches!(it, Put(key, _) if kv.partition_of(key) == node)) {
            call(0, &mut thread, &store.calls, &ep, it)?;
        }
    }
    Ok(())
}

fn both() -> Scenario {
    Scenario::new("rome/kv", "two owners change both partitions and read them", 2, |cluster| {
        let store = open(cluster, 24, HOLD)?;
        calls(cluster, &store, 0, 1, vec![Put(1, 1), Put(7, 1), Get(7), MultiGet(vec![6, 7])])?;
        calls(cluster, &store, 1, 2, vec![Insert(7, 2), Insert(1, 2), Delete(1), Get(1)])
    })
}

/// The threads of a node without a partition.
fn remote() -> Scenario {
    Scenario::new("rome/kv-remote", "threads of a node without a partition change one", 3, |cluster| {
        let store = open(cluster, 24, HOLD)?;
        before(cluster, &store, &[Put(1, 1), Put(2, 2), Put(3, 3), Put(4, 4)])?;
        calls(cluster, &store, 2, 1, vec![Insert(0, 1), Delete(2), Delete(1)])?;
        calls(cluster, &store, 2, 2, vec![Delete(1), Get(2), Insert(1, 5)])?;
        calls(cluster, &store, 0, 3, vec![Put(3, 4), Range(0, 5, false)])
    })
}

/// What is written in one partition before the other is never seen without it.
fn instant() -> Scenario {
    let about = "a scan of two partitions is of one instant, beside writers of both";
    Scenario::new("rome/kv-instant", about, 3, |cluster| {
        let store = open(cluster, 24, HOLD)?;
        calls(cluster, &store, 0, 1, vec![Put(1, 1), Put(7, 1), Put(1, 2)])?;
        calls(cluster, &store, 1, 2, vec![Put(6, 1), Put(2, 1)])?;
        calls(cluster, &store, 2, 3, vec![Range(0, 9, false), Range(0, 9, true)])
    })
    .kills(&["rome-kv-looks-once", "rome-kv-compares-some", "rome-kv-versions-dropped"])
}

/// A scanner that owns one of the partitions.
fn own_instant() -> Scenario {
    let about = "a scan of an own partition and another one is of one instant";
    Scenario::new("rome/kv-own-instant", about, 2, |cluster| {
        let store = open(cluster, 24, HOLD)?;
        calls(cluster, &store, 0, 1, vec![Put(1, 1), Put(7, 1), Put(1, 2), Put(7, 2)])?;
        calls(cluster, &store, 1, 2, vec![Range(0, 9, false), Range(0, 9, false)])
    })
    .kills(&["rome-kv-held-is-done"])
}

/// Many changes, and few looks at the versions.
fn looks() -> Scenario {
    let about = "writers make a scan of two partitions look again a few times only";
    Scenario::new("rome/kv-looks", about, 3, |cluster| {
        let store = open(cluster, 40, Duration::from_millis(100))?;
        for node in 0..2 {
            let key = 1 + node as u64 * BOUNDARY;
            calls(cluster, &store, node, 1 + node, (0..10).map(|value| Put(key, value)).collect())?;
        }
        let (mut thread, seen) = (store.stores[2].thread()?, Rc::clone(&store.calls));
        cluster.thread(2, "scans", move |ep| {
            let (gets, at) = (ep.counts().gets, seen.begin(3, Range(0, 9, false)));
            let pairs = ep.block_on(async {
                let scan = thread.scan_at_one_instant(ep, 0..9).await?;
                // The first one, one with open gates, one that closes them; and each partition may change once more.
                let looks = (ep.counts().gets - gets) / 2;
                assert!(looks <= 6, "{looks} looks");
                scan.collect(ep, usize::MAX).await
            })?;
            seen.end(at, MapAnswer::Pairs(pairs));
            Ok(())
        });
        Ok(())
    })
    .kills(&["rome-kv-gate-ignored"])
}

/// Leaves are split and merged, which is more than one change for an update.
fn chores() -> Scenario {
    let about = "the service thread passes a gate that is closed once for an update, whatever that leaves to do";
    Scenario::new("rome/kv-chores", about, 3, |cluster| {
        let store = open(cluster, 60, Duration::from_millis(100))?;
        let first: Vec<_> = (6..14).map(|key| Put(key, key)).collect();
        before(cluster, &store, &first)?;
        let (grows, shrinks) = ((14..24).map(|key| Put(key, key)), (6..18).map(Delete));
        calls(cluster, &store, 0, 1, grows.chain(shrinks).collect())?;
        let (mut thread, seen) = (store.stores[2].thread()?, Rc::clone(&store.calls));
        cluster.thread(2, "scans", move |ep| {
            for _ in 0..3 {
                let (gets, at) = (ep.counts().gets, seen.begin(3, Range(0, 99, false)));
                let pairs = ep.block_on(async {
                    let scan = thread.scan_at_one_instant(ep, 0..99).await?;
                    // The first one, one with open gates, and one that closes them. Then one update may be on its way.
                    let looks = (ep.counts().gets - gets) / 2;
                    assert!(looks <= 5, "{looks} looks");
                    scan.collect(ep, usize::MAX).await
                })?;
                seen.end(at, MapAnswer::Pairs(pairs));
            }
            Ok(())
        });
        Ok(())
    })
    .kills(&["rome-kv-chores-pass"])
}

/// One key is deleted and another one inserted: at no moment is the one that is found without the other the first.
fn ends() -> Scenario {
    let about = "the first and the last pair of all partitions are of one moment";
    Scenario::new("rome/kv-ends", about, 3, |cluster| {
        let store = open(cluster, 24, HOLD)?;
        before(cluster, &store, &[Put(6, 6), Put(8, 8)])?;
        calls(cluster, &store, 0, 1, vec![Put(1, 1), Delete(6), Delete(1), Delete(8), Put(2, 2), Delete(2)])?;
        calls(cluster, &store, 2, 2, vec![MapCall::First, MapCall::First, MapCall::Last, MapCall::Last])
    })
    .kills(&["rome-kv-first-of-each"])
}

/// What another server of the owner's service thread takes to answer, while a reader that has closed the gates is dead.
fn service() -> Scenario {
    let about = "the service thread does not wait at a gate that is closed while it makes an update";
    Scenario::new("rome/kv-service", about, 3, |cluster| {
        let store = open(cluster, 40, Duration::from_millis(100))?;
        let (options, owner) = (RpcOptions { window: 1, ..RpcOptions::default() }, cluster.node(0).id());
        let server = Server::<u64, u64>::open_on_service(&cluster.node(0), "echo", options, |_, request| request)?;
        let client = Client::<u64, u64>::open(&cluster.node(1), "echo", owner, options)?;
        cluster.at_end(move || {
            drop(server);
            Ok(())
        });
        // Thread 1 of the owner may be at the gate, too, with an earlier change.
        calls(cluster, &store, 0, 1, vec![Put(1, 0), Put(1, 1)])?;
        calls(cluster, &store, 1, 2, vec![Put(2, 0), Put(2, 1)])?;
        calls_beside_faults(cluster, &store, 2, 3, vec![Range(0, 9, false)])?;
        cluster.thread(1, "asks", move |ep| {
            for request in 0..3 {
                let start = ep.now();
                assert_eq!(ep.block_on(client.call(ep, &request))?, request);
                let waited = ep.now().since(start);
                assert!(waited < Duration::from_millis(50) || was_paused(), "{waited:?}");
            }
            Ok(())
        });
        Ok(())
    })
    .faults(Faults::new().crashes(1).of([2]))
    .kills(&["rome-kv-service-waits"])
}

/// The owner has hardly more blocks than are in use, and a reader.
fn full() -> Scenario {
    let about = "an update that finds no memory has not happened, and is asked for again";
    Scenario::new("rome/kv-full", about, 3, |cluster| {
        let store = open(cluster, 9, HOLD)?;
        before(cluster, &store, &[1, 2, 3, 4].map(|key| Put(key, key)))?;
        calls(cluster, &store, 2, 1, vec![Put(1, 5), Put(2, 6), Put(3, 7), Insert(0, 1), Put(1, 8), Delete(0)])?;
        calls(cluster, &store, 1, 2, vec![Range(0, 5, false), Range(0, 5, false)])
    })
    .kills(&["rome-kv-full-is-done"])
}

/// The other partition stays usable, and errors are true.
fn owner_dies() -> Scenario {
    let about = "an owner's death ends what concerns its keys, truly; the other keys are there";
    Scenario::new("rome/kv-owner-dies", about, 3, |cluster| {
        let store = open(cluster, 24, HOLD)?;
        before(cluster, &store, &[Put(1, 1), Put(6, 1)])?;
        calls_beside_faults(cluster, &store, 0, 1, vec![Put(2, 1), Put(3, 1)])?;
        calls(cluster, &store, 1, 2, vec![Put(6, 2), Put(7, 1)])?;
        let (mut thread, calls) = (store.stores[2].thread()?, Rc::clone(&store.calls));
        cluster.thread(2, "asks", move |ep| {
            let list = [Insert(1, 2), Delete(1), Range(0, 9, false), Insert(1, 3)];
            for it in &list {
                let Err(error) = call(3, &mut thread, &calls, ep, it) else { continue };
                let lost = error.custom_ref::<RangeUnavailable>().expect("which keys");
                assert!(lost.partition == 0 && crashed(0), "{error}");
                break;
            }
            // Those of the other owner.
            call(3, &mut thread, &calls, ep, &Put(8, 1))?;
            let mut pairs = Vec::new();
            ep.block_on(async {
                let mut scan = thread.scan_back(..);
                loop {
                    match scan.next(ep, &mut pairs).await {
                        Ok(true) => {}
                        Ok(false) => return,
                        Err(error) => {
                            let lost = error.custom_ref::<RangeUnavailable>().expect("which keys");
                            assert!(lost.partition == 0 && crashed(0), "{error}");
                            return;
                        }
                    }
                }
            });
            assert!(pairs[0] == (8, 1) && pairs.iter().any(|pair| pair.0 == 6), "{pairs:?}");
            Ok(())
        });
        Ok(())
    })
    .faults(Faults::new().crashes(1).of([0]))
}

/// It may have closed the gates.
fn holder_dies() -> Scenario {
    let about = "a reader that dies with the gates closed stops writers for a moment only";
    Scenario::new("rome/kv-holder-dies", about, 3, |cluster| {
        let store = open(cluster, 40, HOLD)?;
        for (node, key) in [(0, 1), (1, 6)] {
            calls(cluster, &store, node, 1 + node, (0..4).map(|value| Put(key, value)).collect())?;
        }
        // Of the other owner, by its service thread.
        calls(cluster, &store, 0, 4, vec![Put(7, 1)])?;
        calls_beside_faults(cluster, &store, 2, 3, vec![Range(0, 9, false), Range(0, 9, false)])
    })
    .faults(Faults::new().crashes(1).of([2]))
    .kills(&["rome-kv-gate-for-ever"])
}

/// Calls time out, and may have happened.
fn owner_stops() -> Scenario {
    let about = "an update of an owner that stops happens once, or is said to be unknown";
    Scenario::new("rome/kv-owner-stops", about, 2, |cluster| {
        let store = open(cluster, 24, HOLD)?;
        calls_beside_faults(cluster, &store, 1, 1, vec![Insert(1, 1), Delete(1), Insert(1, 2), Put(1, 3), Delete(1)])?;
        calls_beside_faults(cluster, &store, 0, 2, vec![Get(1), Insert(2, 1)])
    })
    .faults(Faults::new().pauses(1).of([0]))
}

/// Timeouts pass at any moment.
fn late() -> Scenario {
    let about = "an update that times out happens once or not, and its error says whether it was sent";
    Scenario::new("rome/kv-late", about, 2, |cluster| {
        let store = open(cluster, 24, HOLD)?;
        for (node, list) in [(1, vec![Insert(1, 1), Delete(1), Insert(2, 2)]), (0, vec![Get(1), Get(2), Get(1)])] {
            let (mut thread, calls) = (store.stores[node].thread()?, Rc::clone(&store.calls));
            cluster.thread(node, "calls", move |ep| {
                // Before a call asks again.
                ep.set_timeout(Duration::from_millis(1));
                for it in &list {
                    if let Err(error) = call(node, &mut thread, &calls, ep, it) {
                        assert!(error.is_timeout(), "{error}");
                        return Ok(());
                    }
                }
                Ok(())
            });
        }
        Ok(())
    })
    .early_timeouts()
    .kills(&["rome-kv-asks-anew", "rome-kv-says-never"])
}

/// Hardly more blocks than are in use.
fn scanned() -> Scenario {
    let about = "blocks that a scan of two partitions needs are not used again before it ends";
    Scenario::new("rome/kv-scanned", about, 3, |cluster| {
        let store = scanned_store(cluster)?;
        calls(cluster, &store, 2, 3, vec![Range(0, 10, false), Range(0, 10, true)])
    })
    .kills(&["rome-kv-unannounced"])
}

fn scanned_store(cluster: &Cluster) -> Result<Store> {
    let store = open(cluster, 8, HOLD)?;
    before(cluster, &store, &[1, 2, 3, 4, 6, 7, 8, 9].map(|key| Put(key, key)))?;
    for (node, key) in [(0, 1), (1, 6)] {
        calls(cluster, &store, node, 1 + node, (0..12).map(|round| Put(key + round % 4, 10 + round)).collect())?;
    }
    Ok(store)
}

/// Its snapshots may have been overwritten.
fn scanner_stops() -> Scenario {
    let about = "a scanner of two partitions that stops returns nothing that was overwritten";
    Scenario::new("rome/kv-scanner-stops", about, 3, |cluster| {
        let store = scanned_store(cluster)?;
        calls_beside_faults(cluster, &store, 2, 3, vec![Range(0, 10, false)])
    })
    .faults(Faults::new().pauses(1).of([2]))
}

/// Time passes between the writes.
fn opener_stops() -> Scenario {
    let about = "a read of two partitions at one instant that stops before it has begun begins again";
    Scenario::new("rome/kv-opener-stops", about, 3, |cluster| {
        let store = open(cluster, 24, HOLD)?;
        let (mut writer, seen) = (store.stores[0].thread()?, Rc::clone(&store.calls));
        cluster.thread(0, "calls", move |ep| {
            for value in 0..6 {
                call(1, &mut writer, &seen, ep, &Put(1, value))?;
                ep.block_on(ep.sleep_until(ep.now() + Duration::from_millis(1)));
            }
            Ok(())
        });
        let mut thread = store.stores[2].thread()?;
        cluster.thread(2, "begins", move |ep| {
            for _ in 0..6 {
                let excuse = Excuse::now();
                // No snapshot is given out before it has all versions. So there is none that could expire.
                if let Err(error) = ep.block_on(thread.scan_at_one_instant(ep, 0..9)).map(drop) {
                    assert!(error.is_timeout() && excuse.is_given(), "{error}");
                }
            }
            Ok(())
        });
        Ok(())
    })
    .faults(Faults::new().pauses(1).of([2]))
}
