//! A node that is started at the place of one that has gone, and joins a store that the others have open.
//!
//! It has memory for gates and the words `place`, which the others learn of when they take it in, as any member: so all
//! that is argued in `store/moving.rs` of the words of members holds with it. It learns from their words where the
//! partitions are, puts that into its own word, and then opens their trees. It has none itself, and may take some.
//!
//! *The partition of an owner that has gone* is lost for it as for the others, until one of them finds a later place.
//! No node fills it again on its own: for the callers an empty partition would say that their keys were never there.

use core::time::Duration;

use farfield_core::toolkit::{ErrorContext, Object};
use farfield_core::{Endpoint, Error, ErrorKind, Node, Result};
use farfield_fabric::{NodeId, Region, Word};

use super::place::{Place, place_of, raise};
use crate::field::{Field, TreeKey};
use crate::gate::{GATE_BYTES, PLACE};
use crate::tree::RomeTree;

/// The pauses before a node asks again where the partitions are.
const PAUSE: [Duration; 2] = [Duration::from_micros(20), Duration::from_millis(10)];

/// How long a node waits at first until it has opened a tree: its owner may just have given it away.
const PATIENCE: Duration = Duration::from_millis(100);

/// The answers of the others when they were connected.
#[derive(Default)]
pub(super) struct Heard {
    /// How many were.
    connected: Word,
    /// How many of them have opened the store without this node.
    before: Word,
}

impl Heard {
    pub(super) fn told(&self, with_me: bool) {
        if !with_me {
            self.before.fetch_add(1);
        }
        // Behind it (`CW → CW`): it counts when it is known.
        self.connected.fetch_add(1);
    }
}

/// Whether the others had the store open when this node came.
pub(super) fn has_returned(node: &Node, object: &Object, heard: &Heard) -> Result<bool> {
    // The first node of a place was there when it was opened.
    if node.id().index() < node.nodes() {
        return Ok(false);
    }
    let ep = node.endpoint()?;
    // They are connected; the service thread is about to say so.
    let others = object.others().count() as u64;
    let all = || (heard.connected.load() >= others).then_some(());
    ep.block_on(ep.wait_until(ep.now() + node.timeout(), all)).map_err(Error::from).of(object.path())?;
    Ok(heard.before.load() > 0)
}

/// The word of each partition of which any other node knows most.
async fn words(object: &Object, ep: &Endpoint, partitions: usize) -> Vec<u64> {
    let gates: Vec<_> = object.node().others().filter_map(|node| object.remote::<u64>(node, "gates").ok()).collect();
    let mut latest = vec![0; partitions];
    for gates in gates {
        let words = |partition: usize| gates.byte_add((partition * GATE_BYTES + PLACE) as u64);
        let gets: Vec<_> = (0..partitions).map(|partition| ep.get(words(partition))).collect();
        for (latest, get) in latest.iter_mut().zip(gets) {
            // The dead know nothing any more.
            *latest = (*latest).max(get.await.unwrap_or(0));
        }
    }
    latest
}

/// Where the partitions are, which others have.
pub(super) fn returned<K: TreeKey, V: Field>(
    object: &Object,
    gates: &Region,
    partitions: usize,
    open: impl Fn(usize, (u64, NodeId), Option<Duration>) -> Result<RomeTree<K, V>>,
) -> Result<Vec<Place<K, V>>> {
    let (node, ep) = (object.node(), object.node().endpoint()?);
    let (start, mut pause) = (ep.now(), PAUSE[0]);
    let mut places: Vec<Option<Place<K, V>>> = (0..partitions).map(|_| None).collect();
    let mut last: Vec<Option<NodeId>> = vec![None; partitions];
    loop {
        let words = ep.block_on(words(object, &ep, partitions));
        for (partition, (known, word)) in places.iter_mut().zip(words).enumerate() {
            // It is 0 for a moment after the others have opened the store.
            if known.is_some() || word == 0 {
                continue;
            }
            let (epoch, owner) = place_of(word);
            // Before this node reads there, as in `adopt`.
            raise(gates.word(partition * GATE_BYTES + PLACE), word);
            if node.has_gone(owner) {
                *known = Some(Place { epoch, owner, tree: None });
                continue;
            }
            // Longer each time, and no longer than is left.
            let now = ep.now();
            let patience = PATIENCE.max((now - start) / 2).min((start + node.timeout()).since(now));
            last[partition] = Some(owner);
            match open(partition, (epoch, owner), Some(patience)) {
                Ok(tree) => *known = Some(Place::new(epoch, owner, tree)),
                // It may be elsewhere by now, or its owner may have died.
                Err(error) if error.is_timeout() || error.is_gone() || node.has_gone(owner) => {}
                Err(error) => return Err(error),
            }
        }
        if places.iter().all(Option::is_some) {
            return Ok(places.into_iter().flatten().collect());
        }
        let waited = ep.now() - start;
        if waited >= node.timeout() {
            let partition = places.iter().position(Option::is_none).unwrap_or_default();
            let (what, missing) = match last[partition] {
                Some(owner) => (format!("the owner of partition {partition}"), vec![owner]),
                None => (format!("a member that knows where partition {partition} is"), object.others().collect()),
            };
            return Err(Error::from(ErrorKind::Timeout { what, waited, missing }).of(object.path()));
        }
        ep.block_on(ep.sleep_until(ep.now() + pause));
        pause = (2 * pause).min(PAUSE[1]);
    }
}
