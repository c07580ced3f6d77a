//! Memory that is used again, beside readers.

use core::time::Duration;
use std::rc::Rc;

use farfield_check::parts::{Excuse, unless_faults};
use farfield_check::{Faults, Scenario};
use farfield_core::history::Recorder;
use farfield_core::{Node, Result};
use farfield_fabric::{Instant, NodeId};

use super::histories::MapCall::{Delete, First, Get, Put, Range};
use super::histories::{MapAnswer, MapModel};
use super::{OWNER, Opened, Tree, before, changes, open, read, reads, tiny};
use crate::{MemoryFull, SnapshotExpired, TreeOptions};

pub(super) fn scenarios() -> Vec<Scenario> {
    vec![
        scanned(),
        slots("rome/slots", 12),
        slots("rome/slots-wide", 30).kills(&["rome-slot-early"]),
        scans(),
        comes(),
        reader_dies(),
        reader_stops(),
        full(),
        window(),
        buried(),
        impatient(),
    ]
}

const GETS_MAX: u64 = 40;

/// Hardly more blocks than are in use.
fn scanned() -> Scenario {
    Scenario::new("rome/scanned", "blocks that a scan needs are not used again before it ends", 2, |cluster| {
        let opened = open(cluster, tiny(10))?;
        before(cluster, &opened, &[1, 2, 3, 4, 5, 6].map(|key| Put(key, key)))?;
        let list = (0..8).map(|round| Put(1 + round % 6, 10 + round)).collect();
        changes(cluster, &opened, 1, list)?;
        reads(cluster, &opened, 1, GETS_MAX, vec![Range(0, 9, false), Get(5)])
    })
    .kills(&["rome-block-early"])
}

/// Slots of leaves that were merged become those of others.
fn slots(name: &str, blocks: usize) -> Scenario {
    Scenario::new(name, "a slot is used again when no reader at an earlier version is left", 2, move |cluster| {
        let opened = open(cluster, tiny(blocks))?;
        before(cluster, &opened, &[1, 2, 3, 4, 5, 6, 7, 8].map(|key| Put(key, key)))?;
        let shrinks = vec![Delete(1), Delete(2), Delete(5), Delete(6), Delete(7), Put(8, 1)];
        let grows = [9, 10, 11, 12, 13, 14].map(|key| Put(key, key));
        changes(cluster, &opened, 1, shrinks.into_iter().chain(grows).collect())?;
        reads(cluster, &opened, 1, GETS_MAX, vec![Get(8), Range(0, 10, false), Get(4)])
    })
}

/// A scan that ends before it has read all that it has looked for, and another one.
fn scans() -> Scenario {
    Scenario::new("rome/scans", "two scans, each of another moment", 2, |cluster| {
        let opened = open(cluster, tiny(16))?;
        before(cluster, &opened, &[1, 2, 3, 4, 5, 6, 7].map(|key| Put(key, key)))?;
        changes(cluster, &opened, 1, vec![Put(7, 1), Put(1, 1), Put(6, 1)])?;
        reads(cluster, &opened, 1, GETS_MAX, vec![First, Range(0, 10, false), First, Range(0, 10, false)])
    })
    .kills(&["rome-old-words"])
}

/// A reader that opens the tree while its owner works, and leaves; another one that is started at its place does the
/// same.
fn comes() -> Scenario {
    Scenario::new("rome/comes", "a reader opens the tree whenever it likes, and counts from then on", 3, |cluster| {
        let options = tiny(10);
        let tree = Tree::open(&cluster.node(0), "tree", OWNER, options)?;
        let calls = Rc::<Recorder<MapModel>>::default();
        let (seen, kept) = (Rc::clone(&calls), tree.clone());
        cluster.at_end(move || {
            seen.check(&MapModel);
            drop(kept);
            Ok(())
        });
        let opened = Opened { trees: vec![tree], calls: Rc::clone(&calls) };
        before(cluster, &opened, &[1, 2, 3, 4, 5, 6].map(|key| Put(key, key)))?;
        changes(cluster, &opened, 1, (0..8).map(|round| Put(1 + round % 6, 10 + round)).collect())?;
        let reads = move |node: &Node, calls: &Recorder<MapModel>| -> Result<()> {
            let ep = node.endpoint()?;
            let tree = Tree::open(node, "tree", OWNER, options)?;
            let mut reader = tree.reader()?;
            [Range(0, 9, false), Get(5)]
                .into_iter()
                .try_for_each(|call| read(node.id().index(), &mut reader, calls, &ep, call).map(drop))
        };
        let (first, of_first) = (cluster.node(1), Rc::clone(&calls));
        cluster.thread_without_endpoint(1, "reads and leaves", move || {
            reads(&first, &of_first)?;
            first.clone().leave();
            Ok(())
        });
        let (starter, stays) = (cluster.starter(), cluster.node(0));
        cluster.thread_without_endpoint(2, "comes", move || {
            let ep = stays.endpoint()?;
            ep.block_on(ep.wait_until(Instant::NEVER, || stays.has_gone(NodeId(1)).then_some(())))?;
            reads(&starter.start(2)?, &calls)
        });
        Ok(())
    })
    .places(2)
}

fn reader_dies() -> Scenario {
    Scenario::new("rome/scanner-dies", "a scanner that dies does not stop writers", 2, |cluster| {
        let opened = open(cluster, tiny(10))?;
        before(cluster, &opened, &[1, 2, 3, 4, 5, 6].map(|key| Put(key, key)))?;
        changes(cluster, &opened, 1, (0..8).map(|round| Put(1 + round % 6, 10 + round)).collect())?;
        let (mut reader, calls) = (opened.trees[1].reader()?, Rc::clone(&opened.calls));
        cluster.thread(1, "scans", move |ep| {
            unless_faults(read(10, &mut reader, &calls, ep, Range(0, 9, false))).map(drop)
        });
        Ok(())
    })
    .faults(Faults::new().crashes(1).of([1]))
}

/// A scan that stops says that its snapshot has expired, or is whole.
fn reader_stops() -> Scenario {
    let about = "a scanner that stops does not stop writers, and returns nothing that was overwritten";
    Scenario::new("rome/scanner-stops", about, 2, |cluster| {
        let opened = open(cluster, tiny(10))?;
        before(cluster, &opened, &[1, 2, 3, 4, 5, 6].map(|key| Put(key, key)))?;
        changes(cluster, &opened, 1, (0..8).map(|round| Put(1 + round % 6, 10 + round)).collect())?;
        let (mut reader, calls) = (opened.trees[1].reader()?, Rc::clone(&opened.calls));
        cluster.thread(1, "scans", move |ep| {
            let excuse = Excuse::now();
            let call = calls.begin(10, Range(0, 9, false));
            let mut pairs = Vec::new();
            let scanned = ep.block_on(async {
                let mut scan = reader.scan(ep, 0..9).await?;
                while scan.next(ep, &mut pairs).await? {}
                Ok::<(), farfield_core::Error>(())
            });
            match scanned {
                Ok(()) => calls.end(call, MapAnswer::Pairs(pairs)),
                Err(error) => {
                    let has_expired = error.custom_ref::<SnapshotExpired>().is_some();
                    assert!(has_expired && excuse.is_given(), "nothing has happened: {error}");
                }
            }
            Ok(())
        });
        Ok(())
    })
    .faults(Faults::new().pauses(1).of([1]))
}

/// A scan holds all memory. Splits that have happened are not linked, and nodes with few pairs are not merged, as there
/// is none for that.
fn full() -> Scenario {
    let about = "a change that has happened does not wait for memory";
    Scenario::new("rome/full", about, 2, |cluster| {
        let opened = open(cluster, TreeOptions { lease: Duration::from_secs(1), ..tiny(14) })?;
        before(cluster, &opened, &[1, 2, 3, 4, 5, 6].map(|key| Put(key, key)))?;
        let (timeout, mut partition) = (Duration::from_millis(5), opened.trees[0].partition()?);
        cluster.thread(0, "changes", move |ep| {
            ep.set_timeout(timeout);
            for round in 0..24 {
                let start = ep.now();
                let key = 7 + round / 2;
                let changed = if round % 2 == 0 {
                    partition.put(ep, key, key).map(drop)
                } else {
                    partition.delete(ep, &(key - 6)).map(drop)
                };
                match changed {
                    Ok(()) => assert!(ep.now().since(start) < timeout, "change {round} has waited"),
                    Err(error) => assert!(error.custom_ref::<MemoryFull>().is_some(), "{error}"),
                }
            }
            Ok(())
        });
        let mut reader = opened.trees[1].reader()?;
        cluster.thread(1, "scans", move |ep| {
            let scan = ep.block_on(reader.scan(ep, ..))?;
            ep.block_on(ep.sleep_until(ep.now() + 40 * timeout));
            drop(scan);
            Ok(())
        });
        Ok(())
    })
}

/// A queue: each key is greater than those before, and the least one is deleted. There are fewer blocks than leaves
/// that have been.
fn window() -> Scenario {
    Scenario::new("rome/window", "a leaf that gets no more keys is merged when it has none", 2, |cluster| {
        // A split leaves ten or eleven pairs. The sixth deletion rewrites the leaf, which has no few pairs then, and
        // the log has room for the rest.
        let opened = open(cluster, TreeOptions { pairs: 11, records: 5, ..tiny(13) })?;
        let first: Vec<_> = (1..=15).map(|key| Put(key, key)).collect();
        before(cluster, &opened, &first)?;
        let slides = (16..160).flat_map(|key| [Put(key, key), Delete(key - 15)]).collect();
        changes(cluster, &opened, 1, slides)?;
        reads(cluster, &opened, 1, GETS_MAX, vec![First, Range(0, 999, false), First])
    })
    .kills(&["rome-leaf-stays", "rome-tombstone-stays"])
}

/// A reader that remembers nodes reaches one that was merged. Its slot is free by then, and so is its tombstone's block
/// soon.
fn buried() -> Scenario {
    Scenario::new("rome/buried", "a tombstone stays until no reader can come to it", 2, |cluster| {
        let opened = open(cluster, tiny(10))?;
        before(cluster, &opened, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10].map(|key| Put(key, key)))?;
        let shrinks = vec![Delete(1), Delete(2), Delete(3), Delete(5), Delete(6), Delete(7)];
        let goes_on = (0..30).map(|round| Put(4 + 6 * (round % 2), 10 + round));
        changes(cluster, &opened, 1, shrinks.into_iter().chain(goes_on).collect())?;
        // What is remembered of the root leads to the last leaf, which stays, and to the second one, which does not.
        reads(cluster, &opened, 1, GETS_MAX, vec![Get(8), Get(9), Get(8), Get(9), Get(8)])
    })
    .kills(&["rome-tombstone-early"])
}

/// The service thread of an owner says that its node lives. It does not wait for the seats of a reader that may be
/// dead.
fn impatient() -> Scenario {
    let about = "a thread that cannot wait is back soon, also if a reader is dead";
    Scenario::new("rome/impatient", about, 2, |cluster| {
        let opened = open(cluster, tiny(10))?;
        before(cluster, &opened, &[1, 2, 3, 4, 5, 6].map(|key| Put(key, key)))?;
        let mut partition = opened.trees[0].partition()?;
        cluster.thread(0, "changes", move |ep| {
            ep.set_timeout(Duration::ZERO);
            for round in 0..12 {
                let start = ep.now();
                if let Err(error) = partition.put(ep, 1 + round % 6, round) {
                    assert!(error.custom_ref::<MemoryFull>().is_some(), "{error}");
                }
                // Faults are the reader's.
                let took = ep.now().since(start);
                assert!(took <= Duration::from_millis(1), "change {round} took {took:?}");
            }
            Ok(())
        });
        let mut reader = opened.trees[1].reader()?;
        cluster.thread(1, "scans", move |ep| unless_faults(ep.block_on(reader.range(ep, .., 9))).map(drop));
        Ok(())
    })
    .faults(Faults::new().crashes(1).stalls(1).of([1]))
}
