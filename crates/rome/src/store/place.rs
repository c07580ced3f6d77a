//! Where the partitions are, as a node and each of its threads know it.

use core::ops::{Deref, DerefMut};
use core::time::Duration;
use std::sync::Arc;

use farfield_core::toolkit::ErrorContext;
use farfield_core::{Endpoint, Error, ErrorKind, Result};
use farfield_fabric::{ErrorKind as FabricError, Instant, NodeId, PeerState, RemotePtr, Word};
use farfield_rpc::{Client, Effect, effect_of};

use super::{Calls, Parts, RomeKv, RomeKvThread, updates_of};
use crate::errors::Moved;
use crate::field::{Field, TreeKey};
use crate::gate::{GATE_BYTES, Gate, PLACE};
use crate::tree::{Access, RomeTree};

/// How long a node waits at first until it has opened a tree at its new place. An attempt that ends too early was in
/// vain, and has cost the owner time: three nodes that opened a tree over a busy network took more than 0.2 s.
const PATIENCE: Duration = Duration::from_millis(200);

/// The pauses before a thread looks again where a partition is that is being moved.
const PAUSE: [Duration; 2] = [Duration::from_micros(20), Duration::from_millis(100)];

const NODE_BITS: u32 = 16;

/// The word that says where a partition is. It is 0 before its node knows.
pub(super) fn word_of(epoch: u64, owner: NodeId) -> u64 {
    (epoch + 1) << NODE_BITS | u64::from(owner.0)
}

pub(super) fn place_of(word: u64) -> (u64, NodeId) {
    ((word >> NODE_BITS).saturating_sub(1), NodeId(word as u16))
}

/// Makes a node's word about a place say this, unless it says a later one.
pub(super) fn raise(place: &Word, word: u64) {
    let mut now = place.load();
    while now < word
        && let Err(later) = place.compare_exchange(now, word)
    {
        now = later;
    }
}

/// Where a partition is: its tree, and the number of its moves.
pub(super) struct Place<K, V> {
    pub(super) epoch: u64,
    pub(super) owner: NodeId,
    /// None if its owner had gone when this node came.
    pub(super) tree: Option<RomeTree<K, V>>,
}

impl<K, V> Place<K, V> {
    pub(super) fn new(epoch: u64, owner: NodeId, tree: RomeTree<K, V>) -> Place<K, V> {
        Place { epoch, owner, tree: Some(tree) }
    }
}

/// The gate of a partition.
pub(super) enum GateAt {
    Here(Gate),
    There(RemotePtr<u64>),
    /// Its owner is dead.
    Nowhere,
}

/// A thread's part in a partition, where it knows it to be.
pub(super) struct At<K: TreeKey, V: Field> {
    access: Access<K, V>,
    pub(super) epoch: u64,
    pub(super) owner: NodeId,
    pub(super) gate: GateAt,
    /// Where updates go, if it is another node's. None before the first one: the owner may be dead, and was never
    /// needed.
    client: Option<Arc<Calls<K, V>>>,
}

impl<K: TreeKey, V: Field> At<K, V> {
    pub(super) fn is_here(&self) -> bool {
        matches!(self.access, Access::Here(_))
    }

    /// Where updates go.
    ///
    /// # Errors
    /// It is another one than those that were needed before, and dead.
    pub(super) fn client(&mut self, store: &RomeKv<K, V>) -> Result<&Arc<Calls<K, V>>> {
        let client = match (self.client.take(), &self.access) {
            (Some(client), _) => client,
            (None, Access::Gone(error)) => return Err(error.clone()),
            (None, _) => store.client_of(self.owner)?,
        };
        Ok(self.client.insert(client))
    }

    /// Its tree.
    pub(super) fn access(&mut self) -> &mut Access<K, V> {
        &mut self.access
    }
}

impl<K: TreeKey, V: Field> Deref for At<K, V> {
    type Target = Access<K, V>;
    #[inline]
    fn deref(&self) -> &Access<K, V> {
        &self.access
    }
}

impl<K: TreeKey, V: Field> DerefMut for At<K, V> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Access<K, V> {
        &mut self.access
    }
}

/// The path of the tree of a partition. The first one is that of the options.
pub(super) fn tree_of(path: &str, partition: usize, (epoch, owner): (u64, NodeId)) -> String {
    if epoch == 0 { format!("{path}/{partition}") } else { format!("{path}/{partition}/{epoch}-{}", owner.0) }
}

/// This error of opening what an owner has; or that the owner is dead or has left, if it is.
fn or_gone(ep: &Endpoint, owner: NodeId, error: Error) -> Error {
    ep.check_alive(owner).err().map_or(error, Error::from)
}

/// Whether the partition may be elsewhere.
fn leads_on(error: &Error) -> bool {
    error.custom_ref::<Moved>().is_some() || error.is_gone() && effect_of(error) == Effect::None
}

impl<K: TreeKey, V: Field> Parts<K, V> {
    /// This node's word about a partition: the last place of which it knows.
    pub(super) fn place_word(&self, partition: usize) -> &Word {
        self.gates.word(partition * GATE_BYTES + PLACE)
    }
}

/// A thread that changes where this node knows a partition to be. Others wait until it is dropped.
pub(super) struct Changing<'a> {
    word: &'a Word,
    ep: &'a Endpoint,
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.word.store(0);
        self.ep.wake_local();
    }
}

/// What all members have said of a partition: none knew a later place than this one, and its owner was dead.
#[derive(Clone, Copy)]
pub(super) struct Lost {
    epoch: u64,
    owner: NodeId,
    /// Until then they are not asked again.
    until: Instant,
}

impl<K: TreeKey, V: Field> RomeKv<K, V> {
    /// The error of an owner that has gone.
    fn gone(&self, owner: NodeId) -> Error {
        let kind = match self.parts.object.node().fabric().peer_state(owner) {
            PeerState::Dead { incarnation } | PeerState::Up { incarnation } => {
                FabricError::PeerDead { node: owner, incarnation }
            }
            // Also one that was dead before this node came.
            PeerState::Left | PeerState::NotJoined => FabricError::PeerLeft { node: owner },
        };
        Error::from(farfield_fabric::Error::from(kind)).of(self.path())
    }

    /// A thread's part in a partition.
    pub(super) fn at(&self, partition: usize) -> Result<At<K, V>> {
        let (epoch, owner, tree) = {
            let place = self.parts.places[partition].lock();
            (place.epoch, place.owner, place.tree.clone())
        };
        let me = self.parts.object.node().id();
        let Some(tree) = tree else {
            let access = Access::Gone(self.gone(owner));
            return Ok(At { access, epoch, owner, gate: GateAt::Nowhere, client: None });
        };
        if owner == me {
            let gate = tree.gate().expect("a store has set it");
            return Ok(At {
                access: Access::Here(tree.partition()?),
                epoch,
                owner,
                gate: GateAt::Here(gate),
                client: None,
            });
        }
        let gate = self.gate_of(owner, partition).map_or(GateAt::Nowhere, GateAt::There);
        Ok(At { access: Access::There(tree.reader()?), epoch, owner, gate, client: None })
    }

    /// What this node's word says: how often the partition was moved, and where to.
    #[cfg(all(feature = "scenarios", not(test)))]
    pub(crate) fn place_said(&self, partition: usize) -> (u64, NodeId) {
        place_of(self.parts.place_word(partition).load())
    }

    /// An endpoint of its node.
    #[cfg(all(feature = "scenarios", not(test)))]
    pub(crate) fn endpoint(&self) -> Result<Endpoint> {
        self.parts.object.node().endpoint()
    }

    /// How often a partition was moved, as this node knows.
    pub(super) fn epoch(&self, partition: usize) -> u64 {
        self.parts.places[partition].lock().epoch
    }

    fn gate_of(&self, owner: NodeId, partition: usize) -> Result<RemotePtr<u64>> {
        Ok(self.parts.object.remote::<u64>(owner, "gates")?.byte_add((partition * GATE_BYTES) as u64))
    }

    /// Where the updates of an owner's partitions go. It is opened when it is needed first.
    pub(super) fn client_of(&self, owner: NodeId) -> Result<Arc<Calls<K, V>>> {
        let known = self.parts.clients.lock().get(&owner).map(Arc::clone);
        if let Some(client) = known {
            return Ok(client);
        }
        let path = updates_of(self.path(), owner);
        // By one thread at a time. It is not locked meanwhile: other threads wait for the word.
        let ep = self.parts.object.node().endpoint()?;
        let opening = ep.block_on(self.alone(&ep, &self.parts.opening, ep.deadline()))?;
        let known = self.parts.clients.lock().get(&owner).map(Arc::clone);
        let client = match known {
            Some(client) => client,
            None => {
                let client = Client::open(self.parts.object.node(), &path, owner, self.parts.calls);
                Arc::new(client.map_err(|error| or_gone(&ep, owner, error))?)
            }
        };
        self.parts.clients.lock().insert(owner, Arc::clone(&client));
        drop(opening);
        Ok(client)
    }

    /// The tree of a partition at an epoch. Its owner opens it; other nodes wait so long until it has.
    pub(super) fn open_tree(
        &self,
        partition: usize,
        (epoch, owner): (u64, NodeId),
        patience: Option<Duration>,
    ) -> Result<RomeTree<K, V>> {
        let (node, path) = (self.parts.object.node(), tree_of(self.path(), partition, (epoch, owner)));
        RomeTree::open_within(&node.for_service(), &path, owner, self.parts.options.tree, patience)
    }

    /// Waits until no other thread of this node changes where the partition is.
    pub(super) async fn changing<'a>(
        &'a self,
        ep: &'a Endpoint,
        partition: usize,
        deadline: Instant,
    ) -> Result<Changing<'a>> {
        self.alone(ep, &self.parts.changing[partition], deadline).await
    }

    async fn alone<'a>(&self, ep: &'a Endpoint, word: &'a Word, deadline: Instant) -> Result<Changing<'a>> {
        while word.compare_exchange(0, 1).is_err() {
            ep.wait_until(deadline, || (word.load() == 0).then_some(())).await.map_err(Error::from).of(self.path())?;
        }
        Ok(Changing { word, ep })
    }

    /// The latest place of a partition that any member knows of. None if it is no later one than this thread's.
    async fn look_up(&self, ep: &Endpoint, partition: usize, epoch: u64) -> Option<(u64, NodeId)> {
        // Not only of the old owner: the one that it names may have closed the tree, since the partition is elsewhere
        // again. Nodes that have come since are known to the object, too.
        let words = self
            .parts
            .object
            .node()
            .others()
            .filter_map(|node| Some(self.gate_of(node, partition).ok()?.byte_add(PLACE as u64)));
        let gets: Vec<_> = words.map(|word| ep.get(word)).collect();
        let mut latest = self.parts.place_word(partition).load();
        for get in gets {
            // The dead know nothing any more.
            latest = latest.max(get.await.unwrap_or(0));
        }
        Some(place_of(latest)).filter(|place| place.0 > epoch)
    }

    /// The error of a partition of which all members have said a moment ago that its last owner is dead, and this node
    /// has heard of no later place since: nodes that call it again and again do not ask each time.
    fn still_lost(&self, ep: &Endpoint, partition: usize, epoch: u64) -> Option<Error> {
        let Lost { epoch: last, owner, until } = (*self.parts.lost[partition].lock())?;
        let said = place_of(self.parts.place_word(partition).load()).0;
        if ep.now() >= until || last < epoch || last < said {
            return None;
        }
        if !self.parts.object.node().has_gone(owner) {
            return None;
        }
        Some(self.lost(partition, owner, self.gone(owner)))
    }

    /// No member knows of a later place than this one, and its owner is dead.
    fn is_lost(&self, ep: &Endpoint, partition: usize, (epoch, owner): (u64, NodeId)) {
        let until = ep.now() + self.parts.options.tree.lease;
        *self.parts.lost[partition].lock() = Some(Lost { epoch, owner, until });
    }

    /// Opens a partition at its new place, unless another thread of this node has. The new owner may be dead. It may
    /// also have given the partition away by now, and closed the tree: if it is not there soon, this call ends without
    /// it, and the caller looks again.
    async fn adopt(
        &self,
        ep: &Endpoint,
        partition: usize,
        (epoch, owner): (u64, NodeId),
        start: Instant,
    ) -> Result<()> {
        let deadline = start + ep.timeout();
        let _changing = self.changing(ep, partition, deadline).await?;
        if self.epoch(partition) < epoch {
            // Before this node reads there: others find the place here if the old owner dies, and so does the new one
            // if that has not answered it (`store/moving.rs`).
            raise(self.parts.place_word(partition), word_of(epoch, owner));
            self.discard(partition, epoch);
            // Longer each time, and no longer than the call has left.
            let now = ep.now();
            let patience = PATIENCE.max(now - start).min(deadline.since(now));
            match self.open_tree(partition, (epoch, owner), Some(patience)) {
                Ok(tree) => self.know(partition, Place::new(epoch, owner, tree)),
                Err(error) if error.is_timeout() => {}
                Err(error) => return Err(or_gone(ep, owner, error)),
            }
        }
        Ok(())
    }
}

impl<K: TreeKey, V: Field> RomeKvThread<K, V> {
    /// Finds out where a partition is now, after this error of a call. Then the call is made again: it may be where it
    /// was, and about to be moved, or its new owner about to make changes.
    ///
    /// # Errors
    /// The same, of the partition, unless it leads on.
    pub(super) async fn follow(&mut self, ep: &Endpoint, partition: usize, start: Instant, error: Error) -> Result<()> {
        let store = self.store.clone();
        let At { owner, epoch, .. } = self.trees[partition];
        // The last one that any member knows of.
        let mut last = owner;
        if !leads_on(&error) {
            return Err(store.lost(partition, owner, error));
        }
        // Another thread of this node may have found it.
        if store.epoch(partition) <= epoch {
            if let Some(lost) = store.still_lost(ep, partition, epoch) {
                return Err(lost);
            }
            match store.look_up(ep, partition, epoch).await {
                Some((epoch, place)) if place == store.parts.object.node().id() => {
                    let settled = store.settle(ep, partition, epoch, start + ep.timeout()).await;
                    settled.map_err(|error| store.lost(partition, owner, error))?;
                }
                Some((epoch, owner)) => {
                    last = owner;
                    let adopted = store.adopt(ep, partition, (epoch, owner), start).await;
                    adopted.map_err(|error| {
                        if error.is_gone() {
                            store.is_lost(ep, partition, (epoch, owner));
                        }
                        store.lost(partition, owner, error)
                    })?;
                }
                None if error.is_gone() => {
                    store.is_lost(ep, partition, (epoch, owner));
                    return Err(store.lost(partition, owner, error));
                }
                None => {}
            }
        }
        if store.epoch(partition) > epoch {
            let at = store.at(partition);
            self.trees[partition] = at.map_err(|error| store.lost(partition, store.owner_of(partition), error))?;
            return Ok(());
        }
        let (now, waited) = (ep.now(), ep.now() - start);
        if waited >= ep.timeout() {
            let what = format!("partition {partition}, which is being moved");
            let late = ErrorKind::Timeout { what, waited, missing: vec![last] };
            return Err(store.lost(partition, last, late.into()));
        }
        let pause = (waited / 8).clamp(PAUSE[0], PAUSE[1]);
        ep.sleep_until((now + pause).min(start + ep.timeout())).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use farfield_core::{Node, local_session, on_each};

    use super::*;
    use crate::RomeKvOptions;

    /// Each wait was as long as if the call had begun with it.
    #[test]
    fn waits_for_a_moved_partition_end_with_the_call() {
        let nodes = local_session(3).expect("a session");
        let open = |node: &Node| RomeKv::<u64, u64>::open(node, "store", RomeKvOptions::new([500]));
        let stores = on_each(&nodes, open).expect("all open it");
        let eps: Vec<Endpoint> = nodes.iter().map(|node| node.endpoint().expect("one")).collect();
        let mut taker = stores[2].thread().expect("a seat");
        eps[2].block_on(taker.take_partition(&eps[2], 0)).expect("the owner lives");
        let (ep, mut thread) = (&eps[1], stores[1].thread().expect("a seat"));
        ep.set_timeout(Duration::from_secs(8));
        // The call has taken most of its time by now.
        let start = Instant { ns: ep.now().ns - 7_900_000_000.min(ep.now().ns) };
        let follow = |thread: &mut RomeKvThread<u64, u64>| {
            let begun = ep.now();
            (ep.block_on(thread.follow(ep, 0, start, Error::custom(Moved))), ep.now() - begun)
        };
        let other = stores[1].parts.changing[0].compare_exchange(0, 1);
        assert!(other.is_ok(), "another thread changes where it is");
        let (followed, took) = follow(&mut thread);
        assert!(followed.is_err_and(|error| error.is_timeout()) && took < Duration::from_secs(4), "{took:?}");
        stores[1].parts.changing[0].store(0);
        // A place at which no tree is opened.
        raise(stores[0].parts.place_word(0), word_of(9, NodeId(2)));
        let (followed, took) = follow(&mut thread);
        assert!(followed.is_err_and(|error| error.is_timeout()) && took < Duration::from_secs(3), "{took:?}");
    }
}
