//! Scenarios for the model checker.

mod histories;
mod moving;
mod objects;
mod returned;
mod reuse;
mod store;
mod trees;

use core::time::Duration;
use std::rc::Rc;

use farfield_check::{Cluster, Scenario, was_paused, with_slow};
use farfield_core::history::Recorder;
use farfield_core::{Endpoint, Result};
use farfield_fabric::NodeId;

use self::histories::{MapAnswer, MapCall, MapModel};
use crate::{Partition, RomeTree, TreeOptions, TreeReader};

/// All of them.
///
/// ```
/// let scenarios = farfield_rome::scenarios::all();
/// assert!(scenarios.iter().any(|scenario| scenario.name() == "rome/split"));
/// ```
pub fn all() -> Vec<Scenario> {
    with_slow(
        [
            objects::scenarios(),
            trees::scenarios(),
            reuse::scenarios(),
            store::scenarios(),
            moving::scenarios(),
            returned::scenarios(),
        ]
        .concat(),
    )
}

const OWNER: NodeId = NodeId(0);

/// A tree of keys and values of a word.
type Tree = RomeTree<u64, u64>;

/// Small nodes, so that few calls split and merge them.
fn tiny(blocks: usize) -> TreeOptions {
    TreeOptions { pairs: 4, records: 1, blocks, seats: 3, lease: Duration::from_millis(1) }
}

/// A tree that all nodes have opened, with the history of its calls, which is judged at the end.
struct Opened {
    trees: Vec<Tree>,
    calls: Rc<Recorder<MapModel>>,
}

fn open(cluster: &Cluster, options: TreeOptions) -> Result<Opened> {
    let trees = cluster.on_each(move |node| Tree::open(node, "tree", OWNER, options))?;
    let calls = Rc::<Recorder<MapModel>>::default();
    let (seen, kept) = (Rc::clone(&calls), trees.clone());
    cluster.at_end(move || {
        seen.check(&MapModel);
        drop(kept);
        Ok(())
    });
    Ok(Opened { trees, calls })
}

/// Calls of one of the owner's threads.
fn change(
    client: usize,
    partition: &mut Partition<u64, u64>,
    calls: &Recorder<MapModel>,
    ep: &Endpoint,
    call: MapCall,
) -> Result<()> {
    let at = calls.begin(client, call.clone());
    let answer = match call {
        MapCall::Put(key, value) => MapAnswer::Value(partition.put(ep, key, value)?),
        MapCall::Insert(key, value) => MapAnswer::Was(partition.insert(ep, key, value)?),
        MapCall::Delete(key) => MapAnswer::Value(partition.delete(ep, &key)?),
        MapCall::Get(key) => MapAnswer::Value(partition.get(&key)),
        MapCall::MultiGet(keys) => MapAnswer::Values(partition.multi_get(&keys)),
        MapCall::First => MapAnswer::Pairs(Vec::from_iter(partition.first(ep)?)),
        MapCall::Last => MapAnswer::Pairs(Vec::from_iter(partition.last(ep)?)),
        MapCall::Range(from, to, false) => MapAnswer::Pairs(partition.range(ep, from..to, usize::MAX)?),
        MapCall::Range(from, to, true) => MapAnswer::Pairs(partition.range_back(ep, from..to, usize::MAX)?),
    };
    calls.end(at, answer);
    Ok(())
}

/// Calls of a reader; the gets that it took.
fn read(
    client: usize,
    reader: &mut TreeReader<u64, u64>,
    calls: &Recorder<MapModel>,
    ep: &Endpoint,
    call: MapCall,
) -> Result<u64> {
    let (at, before) = (calls.begin(client, call.clone()), ep.counts());
    let answer = match call {
        MapCall::Get(key) => MapAnswer::Value(ep.block_on(reader.get(ep, &key))?),
        MapCall::MultiGet(keys) => MapAnswer::Values(ep.block_on(reader.multi_get(ep, &keys))?),
        MapCall::First => MapAnswer::Pairs(Vec::from_iter(ep.block_on(reader.first(ep))?)),
        MapCall::Last => MapAnswer::Pairs(Vec::from_iter(ep.block_on(reader.last(ep))?)),
        MapCall::Range(from, to, false) => MapAnswer::Pairs(ep.block_on(reader.range(ep, from..to, usize::MAX))?),
        MapCall::Range(from, to, true) => MapAnswer::Pairs(ep.block_on(reader.range_back(ep, from..to, usize::MAX))?),
        other => panic!("{other:?} is for the owner"),
    };
    let gets = (ep.counts() - before).gets;
    calls.end(at, answer);
    Ok(gets)
}

/// A thread of the owner that makes these calls.
fn changes(cluster: &Cluster, opened: &Opened, client: usize, list: Vec<MapCall>) -> Result<()> {
    let (mut partition, calls) = (opened.trees[0].partition()?, Rc::clone(&opened.calls));
    cluster.thread(0, "changes", move |ep| {
        list.iter().try_for_each(|call| change(client, &mut partition, &calls, ep, call.clone()))
    });
    Ok(())
}

/// A thread of another node that makes these calls, with so many gets at most.
fn reads(cluster: &Cluster, opened: &Opened, node: usize, gets_max: u64, list: Vec<MapCall>) -> Result<()> {
    let (mut reader, calls) = (opened.trees[node].reader()?, Rc::clone(&opened.calls));
    cluster.thread(node, "reads", move |ep| {
        for call in &list {
            let gets = read(10 * node, &mut reader, &calls, ep, call.clone())?;
            assert!(gets <= gets_max || was_paused(), "{call:?} took {gets} gets");
        }
        Ok(())
    });
    Ok(())
}

/// These calls are made before the threads begin.
fn before(cluster: &Cluster, opened: &Opened, list: &[MapCall]) -> Result<()> {
    let mut partition = opened.trees[0].partition()?;
    let ep = cluster.node(0).endpoint()?;
    list.iter().try_for_each(|call| change(0, &mut partition, &opened.calls, &ep, call.clone()))
}
