//! A node that joins a store that others have open.

use std::cell::RefCell;
use std::rc::Rc;

use farfield_check::parts::Excuse;
use farfield_check::{Cluster, Faults, Scenario, crashed};
use farfield_core::{Node, Result};
use farfield_fabric::{Instant, NodeId, Word};

use super::histories::MapCall::{self, Get, Insert, Put, Range};
use super::store::{HOLD, Store, before, call, calls_beside_faults, open, open_on};
use crate::{RangeUnavailable, RomeKv, RomeKvThread};

pub(super) fn scenarios() -> Vec<Scenario> {
    vec![returned(), returned_moved()]
}

/// The calls of a node that has come to the store.
type Work =
    fn(&mut RomeKvThread<u64, u64>, &mut dyn FnMut(&mut RomeKvThread<u64, u64>, &MapCall) -> Result<()>) -> Result<()>;

/// A node is started when node 1 has died, at its place, and does this. If node 1 does not die before the word is set,
/// nothing is to be seen.
fn comes(cluster: &Cluster, store: &Store, lives: &Rc<Word>, work: Work) {
    type Come = Option<(Node, RomeKv<u64, u64>)>;
    let latest = Rc::<RefCell<Come>>::default();
    let (starter, stays, kept) = (cluster.starter(), cluster.node(0), Rc::clone(&latest));
    cluster.at_end(move || {
        drop(kept.take());
        Ok(())
    });
    let (calls, lives) = (Rc::clone(&store.calls), Rc::clone(lives));
    cluster.thread_without_endpoint(3, "comes", move || {
        let ep = stays.endpoint()?;
        let is_known = || (stays.has_gone(NodeId(1)) || lives.load() != 0 && !crashed(1)).then_some(());
        ep.block_on(ep.wait_until(Instant::NEVER, is_known))?;
        if !stays.has_gone(NodeId(1)) {
            return Ok(());
        }
        let node = starter.start(3)?;
        let (ep, kv) = (node.endpoint()?, open_on(&node, 24, HOLD)?);
        *latest.borrow_mut() = Some((node.clone(), kv.clone()));
        let mut thread = kv.thread()?;
        work(&mut thread, &mut |thread, it| call(3, thread, &calls, &ep, it))
    });
}

/// Calls of node 1, which may die in the middle.
fn dies(cluster: &Cluster, store: &Store, list: Vec<MapCall>) -> Result<Rc<Word>> {
    let (mut thread, calls, lives) = (store.stores[1].thread()?, Rc::clone(&store.calls), Rc::new(Word::new(0)));
    let ended = Rc::clone(&lives);
    cluster.thread(1, "calls", move |ep| {
        for it in &list {
            if call(1, &mut thread, &calls, ep, it).is_err() {
                break;
            }
        }
        ended.store(1);
        Ok(())
    });
    Ok(lives)
}

/// The first partition lives, and the second one is lost.
fn returned() -> Scenario {
    let about = "a node at the place of one that has died comes back to a store, reads and changes what is there, and takes a partition";
    Scenario::new("rome/kv-returned", about, 4, |cluster| {
        let store = open(cluster, 24, HOLD)?;
        before(cluster, &store, &[Put(1, 1), Put(6, 6)])?;
        let lives = dies(cluster, &store, vec![Put(2, 1), Put(7, 1), Put(1, 2)])?;
        calls_beside_faults(cluster, &store, 0, 2, vec![Put(1, 3), Get(2), Put(3, 3), Get(1), Put(1, 4), Get(3)])?;
        comes(cluster, &store, &lives, |thread, call| {
            for it in [Get(1), Put(2, 5), Insert(3, 9), Range(0, 4, false)] {
                call(thread, &it)?;
            }
            let error = call(thread, &Get(6)).expect_err("it was lost with its owner");
            let lost = error.custom_ref::<RangeUnavailable>().expect("which keys");
            assert_eq!((lost.partition, lost.owner, lost.may_have_happened), (1, NodeId(1), false), "{error}");
            takes(thread)?;
            for it in [Get(1), Put(1, 9), Get(2), Range(0, 4, true)] {
                call(thread, &it)?;
            }
            Ok(())
        });
        Ok(())
    })
    .places(2)
    .faults(Faults::new().crashes(1).of([1]))
    .kills(&["rome-kv-returns-empty"])
}

/// The node that has died had given its partition away, which no options say; or it has not.
fn returned_moved() -> Scenario {
    let about = "a node that comes back to a store finds a partition where it was moved before";
    Scenario::new("rome/kv-returned-moved", about, 4, |cluster| {
        let store = open(cluster, 24, HOLD)?;
        before(cluster, &store, &[Put(6, 6)])?;
        let lives = dies(cluster, &store, vec![Put(7, 1), Get(6), Put(6, 2), Get(7), Put(7, 3)])?;
        let (mut thread, calls) = (store.stores[0].thread()?, Rc::clone(&store.calls));
        cluster.thread(0, "takes", move |ep| {
            let excuse = Excuse::now();
            if let Err(error) = ep.block_on(thread.take_partition(ep, 1)) {
                assert!(excuse.is_given() || crashed(1), "{error}");
                return Ok(());
            }
            [Get(6), Put(6, 7), Get(7)].iter().try_for_each(|it| call(2, &mut thread, &calls, ep, it))
        });
        comes(cluster, &store, &lives, |thread, call| {
            for it in [Get(6), Put(7, 5), Get(7)] {
                let is_there = thread.store().owner_of(1) == NodeId(0);
                if let Err(error) = call(thread, &it) {
                    let lost = error.custom_ref::<RangeUnavailable>().expect("which keys");
                    assert!(lost.partition == 1 && !is_there, "{error}");
                }
            }
            Ok(())
        });
        Ok(())
    })
    .places(2)
    .faults(Faults::new().crashes(1).of([1]))
}

/// Takes the first partition, which another node changes meanwhile.
fn takes(thread: &mut RomeKvThread<u64, u64>) -> Result<()> {
    let ep = thread.store().endpoint()?;
    let mut taken = ep.block_on(thread.take_partition(&ep, 0));
    for _ in 0..8 {
        match taken {
            Err(error) if error.is_timeout() => taken = ep.block_on(thread.take_partition(&ep, 0)),
            taken => return taken,
        }
    }
    taken
}
