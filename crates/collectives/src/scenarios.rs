//! Scenarios for the model checker.

mod faults;
mod random;

use std::cell::RefCell;
use std::rc::Rc;

use farfield_check::{Cluster, Scenario, with_at_once, with_slow};
use farfield_core::{Endpoint, Result};
use farfield_fabric::NodeId;

use crate::{Collectives, CollectivesOptions};

/// All of them.
///
/// ```
/// let scenarios = farfield_collectives::scenarios::all();
/// assert!(scenarios.iter().any(|scenario| scenario.name() == "collectives/broadcast"));
/// ```
pub fn all() -> Vec<Scenario> {
    let own = [broadcast(), reuse(), two_calls(), all_reduce(), blocks(), exchange(), rooted()];
    let scenarios = own.into_iter().chain(faults::scenarios()).chain(random::scenarios());
    with_at_once(with_slow(scenarios), AT_ONCE)
}

/// Those that are also searched with operations that complete at once.
const AT_ONCE: &[&str] = &["collectives/reuse", "collectives/random", "collectives/dies-amid"];

/// As small as they can be: a word, and two slots.
const OPTIONS: CollectivesOptions = CollectivesOptions { chunk_bytes: 8, slots: 2 };

type Member = Rc<RefCell<Collectives>>;

/// Opens collectives on all nodes. They are closed when all threads have ended: closing takes locks, and would only add
/// to the search.
fn open(cluster: &Cluster) -> Result<Vec<Member>> {
    let open = |node: &_| Ok(Rc::new(RefCell::new(Collectives::open(node, "all", OPTIONS)?)));
    let members = cluster.on_each(open)?;
    let kept = members.clone();
    cluster.at_end(move || {
        drop(kept);
        Ok(())
    });
    Ok(members)
}

/// A scenario in which each node has a thread that makes some calls.
fn calls(
    name: &str,
    about: &str,
    nodes: usize,
    body: impl Fn(usize, &mut Collectives, &Endpoint) -> Result<()> + Clone + Send + Sync + 'static,
) -> Scenario {
    Scenario::new(name, about, nodes, move |cluster| {
        for (me, member) in open(cluster)?.into_iter().enumerate() {
            let body = body.clone();
            cluster.thread(me, "calls", move |ep| body(me, &mut member.borrow_mut(), ep));
        }
        Ok(())
    })
}

/// One word from one node to another.
fn broadcast() -> Scenario {
    calls("collectives/broadcast", "a member has what the root has sent", 2, |me, all, ep| {
        let mut data = [7 * (1 - me as u64)];
        all.broadcast_blocking(ep, NodeId(0), &mut data)?;
        assert_eq!(data, [7]);
        Ok(())
    })
    .small()
    .kills(&["collectives-word-first"])
}

/// More chunks than slots, in one call and in the next.
fn reuse() -> Scenario {
    calls("collectives/reuse", "a slot is used again when its chunk was taken", 2, |me, all, ep| {
        for call in 1..=2u64 {
            let sent = [10 * call, 10 * call + 1, 10 * call + 2];
            let mut data = if me == 0 { sent } else { [0; 3] };
            all.broadcast_blocking(ep, NodeId(0), &mut data)?;
            assert_eq!(data, sent, "in call {call}");
        }
        Ok(())
    })
    .kills(&["collectives-no-room", "collectives-room-early"])
}

/// The smallest case of two calls in which all send.
fn two_calls() -> Scenario {
    calls("collectives/two-calls", "each of two has what the other has sent in this call", 2, |me, all, ep| {
        for call in 0..2 {
            let mut data = [10 * call + me as u64];
            all.all_reduce_blocking(ep, &mut data, |a, b| a + b)?;
            assert_eq!(data, [20 * call + 1], "in call {call}");
        }
        Ok(())
    })
}

/// Two calls in a row: the word of the first is not that of the second.
fn all_reduce() -> Scenario {
    calls("collectives/all-reduce", "all members have the sum of all, call after call", 3, |me, all, ep| {
        for call in 0..2 {
            let mut data = [100 * call + me as u64];
            all.all_reduce_blocking(ep, &mut data, |a, b| a + b)?;
            assert_eq!(data, [300 * call + 3], "in call {call}");
        }
        Ok(())
    })
    .kills(&["collectives-old-word"])
}

/// Each member combines a block. The operation is not commutative: the last argument wins.
fn blocks() -> Scenario {
    calls("collectives/blocks", "each member combines a block, in the order of ranks", 3, |me, all, ep| {
        let me = me as u64;
        let mut data = [1 + me, 10 + me, 20 + me, 30 + me];
        all.all_reduce_blocking(ep, &mut data, |a, b| 100 * a + b)?;
        assert_eq!(data, [10_203, 101_112, 202_122, 303_132]);
        Ok(())
    })
}

/// All send to all more chunks than a link has slots.
fn exchange() -> Scenario {
    calls("collectives/exchange", "each member has its part from each", 2, |me, all, ep| {
        let me = me as u64;
        let (mut parts, mut gathered) = ([0; 6], [0; 4]);
        all.all_to_all_blocking(ep, &[10 * me, 1, 2, 10 * me + 3, 4, 5], &mut parts)?;
        assert_eq!(parts, if me == 0 { [0, 1, 2, 10, 1, 2] } else { [3, 4, 5, 13, 4, 5] });
        all.all_gather_blocking(ep, &[me, 7], &mut gathered)?;
        assert_eq!(gathered, [0, 7, 1, 7]);
        Ok(())
    })
}

/// Calls with different roots overlap.
fn rooted() -> Scenario {
    calls("collectives/rooted", "roots that follow each other get and give what they should", 3, |me, all, ep| {
        let mut data = [1 + me as u64, 5];
        all.reduce_blocking(ep, NodeId(1), &mut data, |a, b| 10 * a + b)?;
        assert!(me != 1 || data == [123, 555]);
        let mut gathered = vec![0; if me == 2 { 3 } else { 0 }];
        all.gather_blocking(ep, NodeId(2), &[40 + me as u64], &mut gathered)?;
        assert!(me != 2 || gathered == [40, 41, 42]);
        let mut last = [if me == 0 { 9u64 } else { 0 }];
        all.broadcast_blocking(ep, NodeId(0), &mut last)?;
        assert_eq!(last, [9]);
        Ok(())
    })
}
