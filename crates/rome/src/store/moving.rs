//! Moving a partition to another node, while all nodes go on.
//!
//! The node that is to have a partition takes it ([`RomeKvThread::take_partition`]). Each place of a partition has an
//! epoch: 0 where the options put it, and one more with each move. Its tree at epoch e > 0 is an object of its own,
//! `{path}/{partition}/{e}-{owner}`, which other nodes open when they learn of it.
//!
//! 1. The taker opens the tree, in its own memory. No other node knows of it.
//! 2. *Freeze.* By a call of the owner's service thread, which sets a bit of the old tree's `stable`
//!    (`arena/versions.rs`). From then on no change becomes visible there, whichever thread makes it: changes wait, or
//!    come again. Reads go on.
//! 3. The taker reads all pairs as of the version F that is frozen, by gets, and loads them into the new tree. It asks
//!    for more time meanwhile.
//! 4. *Publish.* Another call of the service thread: if `stable` is still frozen at F, it becomes "moved" with one
//!    compare-and-swap, and stays so. The word `place` beside the old gate says where to. When the reply is there, the
//!    taker puts its own word `place`, and makes changes from then on.
//!
//! *Why no change is lost.* All changes that have returned at the old place have a version up to F, and the snapshot
//! has these. The others never become visible; their threads find "moved", and make them again at the new place.
//!
//! *Why no read is out of date.* A read of the old place gets `stable`, which is not "moved" at that moment, t, of the
//! call. Whatever it reads then is the state at a later moment before the freeze; or that of F, which was the current
//! one from the freeze until the move at least, and so at t or at the freeze, whichever is later. Reads at one instant
//! compare the word at two moments, and it is "moved" at neither, so the partition was there between them. A scan that
//! has begun continues at the old place, as of its version; its memory stays until the last node has closed that tree.
//!
//! *A read of the new place* begins when the reader has seen "moved", and so after the whole snapshot was there (it is
//! loaded before the call of step 4).
//!
//! *The new place is found* by a reader that sees "moved", after a refused update, or when the owner is dead: it gets
//! the words `place` of all members, of which the old owner's and the new one's say it, and those of nodes that have
//! found it. The highest epoch counts. No word says so before the move is done. A node that joins the store later is a
//! member like the others (`store/returned.rs`).
//!
//! *Deaths.* The taker's before step 4: the freeze ends when its time is over ([`freeze_time`]), and the partition is
//! where it was, with all changes. (A taker that lives and gives up says so, and they go on at once.) After it: the
//! partition is lost, as with any owner. The old owner's before step 4: the partition is lost, and the taker discards
//! its snapshot, since changes may have been made after a freeze that was over. After it: nothing is lost.
//!
//! *The old owner's in step 4, before its reply is there.* The taker cannot know whether the tree has become "moved",
//! or changes were made after the freeze. It keeps its snapshot, and changes nothing, until it learns of the move. That
//! is so if the word `place` of any node says it: the first one that says so is the old owner's, which is stored behind
//! the compare-and-swap that moves the tree. And each request carries the epoch at which its node knows the partition.
//! One that reaches the taker with the epoch of the snapshot is due to such a word.
//!
//! - A node that turns to the new place puts it into its own word `place` first (`CW → NRR`, before any read there). So
//!   as long as one of these nodes lives, all find it, the taker included, and what they have read there is the state
//!   from which the taker continues.
//! - If none has, no call has read the new place, and none will: the partition was lost with its old owner. Calls say
//!   so.
//! - The snapshot becomes the partition once: the service thread and the taker's threads take it out of the same lock,
//!   and a word `place` is only raised.
//!
//! *A request that is late.* Each taking has a number, which the owner compares with that of its last freeze. One that
//! its thread has given up, and that arrives after a freeze for another, changes nothing: the version may be the same.
//!
//! *A reply that is late* leaves the taker's snapshot as it is, too: the next `take_partition` asks again. The old
//! owner compares the epoch: it may have given the partition away since, and taken it again, and its new tree may be
//! frozen, at the same number of a version, for another taker.

use core::time::Duration;
use std::sync::Arc;

use farfield_core::{Endpoint, Error, ErrorKind, Result};
use farfield_fabric::{Instant, LocalMutex, NodeId};
use farfield_rpc::{Effect, effect_of};

use super::ask::ask;
use super::instant::again;
use super::place::{Place, raise, word_of};
use super::updates::{Ask, Reply, Request, Served};
use super::{Calls, RomeKv, RomeKvThread};
use crate::errors::Moved;
use crate::field::{Field, TreeKey};
use crate::gate::Gate;
use crate::tree::{Cursor, RomeTree, WINDOW_MAX};

/// For how long a partition is frozen, from each request on.
pub(super) fn freeze_time(lease: Duration) -> Duration {
    lease
}

/// A snapshot that this node has, and that is the partition if the old owner has made it so.
pub(super) struct Pending<K, V> {
    place: Place<K, V>,
    /// For the service thread. None if it has taken it: then this is the partition.
    served: Option<Served<K, V>>,
    /// The number of its freeze.
    take: u64,
    /// The old tree's, as of which it is.
    version: u64,
}

/// By partition.
pub(super) type Pendings<K, V> = Arc<Vec<LocalMutex<Option<Pending<K, V>>>>>;

/// The part of the service thread in a snapshot of a partition, which has become the partition at this epoch.
pub(super) fn served_of<K, V>(pending: &LocalMutex<Option<Pending<K, V>>>, epoch: u64) -> Option<Served<K, V>> {
    pending.lock().as_mut().filter(|pending| pending.place.epoch == epoch)?.served.take()
}

impl<K: TreeKey, V: Field> RomeKvThread<K, V> {
    /// Moves a partition into the memory of this node, with all its pairs, while all nodes go on. When it returns, this
    /// node is the owner.
    ///
    /// Reads of all nodes go on all the time. Changes of the partition wait while it is copied: some seconds for
    /// millions of pairs. For the time of the copy this node has the pairs twice. A call of another node that finds the
    /// partition moved opens it there first, which takes some round trips. The partition's old memory is free when all
    /// threads of all nodes have come to the new place.
    ///
    /// ```
    /// # use farfield_rome::{RomeKv, RomeKvOptions};
    /// # let nodes = farfield::local_session(2)?;
    /// # let stores = farfield::on_each(&nodes, |node| RomeKv::<u64, u64>::open(node, "store", RomeKvOptions::new([500])))?;
    /// let ep = nodes[1].endpoint()?;
    /// let mut thread = stores[1].thread()?;
    /// ep.block_on(async {
    ///     thread.put(&ep, 7, 70).await?; // on the first node
    ///     thread.take_partition(&ep, 0).await?;
    ///     assert_eq!(thread.get(&ep, &7).await?, Some(70)); // in this node's memory
    ///     Ok::<(), farfield::Error>(())
    /// })?;
    /// assert_eq!(stores[1].owner_of(0), nodes[1].id());
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`RangeUnavailable`](crate::RangeUnavailable): the owner is dead, or does not answer, or the copy took longer
    /// than the partition stays frozen without a word of this thread, which is the
    /// [`lease`](crate::TreeOptions::lease). If [`may_have_happened`](crate::RangeUnavailable::may_have_happened), and
    /// the owner lives, call it again, which finds out. [`MemoryFull`](crate::MemoryFull): the pairs do not fit.
    /// [`ErrorKind::Config`]: there is no such partition. In all other cases the partition is where it was, and so are
    /// its changes.
    pub async fn take_partition(&mut self, ep: &Endpoint, partition: usize) -> Result<()> {
        let (start, store) = (ep.now(), self.store.clone());
        let deadline = start + ep.timeout();
        if partition >= store.partitions() {
            let why = format!("there is no partition {partition}: there are {}", store.partitions());
            return Err(Error::from(ErrorKind::Config { why }).of(store.path()));
        }
        loop {
            let changing = store.changing(ep, partition, deadline).await?;
            if store.epoch(partition) > self.trees[partition].epoch {
                self.trees[partition] = store.at(partition)?;
            }
            let taken = match self.trees[partition].is_current() {
                Some(Ok(())) => return Ok(()),
                // It was here, and another node has taken it.
                Some(Err(error)) => Err(error),
                None => self.take(ep, partition, start).await,
            };
            drop(changing);
            match taken {
                Ok(()) => {
                    self.trees[partition] = store.at(partition)?;
                    return Ok(());
                }
                // Another node has taken it, or is about to.
                Err(error) => self.follow(ep, partition, start, error).await?,
            }
        }
    }

    /// Moves it, from where this thread knows it to be.
    async fn take(&mut self, ep: &Endpoint, partition: usize, start: Instant) -> Result<()> {
        let (store, known) = (self.store.clone(), self.trees[partition].epoch);
        let pending = &store.parts.pending[partition];
        let version_of =
            |pending: &Pending<K, V>| (pending.place.epoch == known + 1).then_some((pending.take, pending.version));
        let waiting = pending.lock().as_ref().and_then(version_of);
        let (take, version) = match waiting {
            Some(asked) => asked,
            None => {
                let copy = self.copy(ep, partition, start).await?;
                let asked = (copy.take, copy.version);
                // From here on it may be the partition: it stays until that is known, also if this call is cancelled.
                let before = pending.lock().replace(copy);
                drop(before);
                asked
            }
        };
        let request = Request { partition, epoch: known, ask: Ask::Publish(take, version) };
        let reply = match self.trees[partition].client(&store).cloned() {
            Ok(client) => ask(&store, ep, start, &client, request).await,
            Err(error) => Err(error),
        };
        let is_moved = match &reply {
            Ok(Reply::Done(_)) => true,
            Ok(_) => false,
            // Another node has taken it; or the old owner was never asked.
            Err(error) if error.custom_ref::<Moved>().is_some() => false,
            Err(error) if waiting.is_none() && effect_of(error) == Effect::None => false,
            // It is not known, unless another node's request has said so.
            Err(_) if pending.lock().as_ref().is_none_or(|pending| pending.served.is_some()) => {
                return reply.map(|_| ());
            }
            Err(_) => true,
        };
        if is_moved {
            store.own(partition);
            ep.wake_local();
            return Ok(());
        }
        let discarded = pending.lock().take();
        drop(discarded);
        let owner = self.trees[partition].owner;
        match reply {
            Ok(_) => Err(late(ep, partition, start, owner)),
            Err(error) => {
                self.thaw(ep, partition, (known, take), start, &error).await;
                Err(error)
            }
        }
    }

    /// Tells the owner that a taking is given up, so that changes go on at once. Otherwise they do when the time of its
    /// freeze is over.
    async fn thaw(
        &mut self,
        ep: &Endpoint,
        partition: usize,
        (epoch, take): (u64, u64),
        start: Instant,
        because: &Error,
    ) {
        let store = self.store.clone();
        if because.custom_ref::<Moved>().is_none()
            && let Ok(client) = self.trees[partition].client(&store).cloned()
        {
            let request = Request { partition, epoch, ask: Ask::Thaw(take) };
            let _ = ask(&store, ep, start, &client, request).await;
        }
    }

    /// A tree of this node with what the partition has, which is frozen.
    async fn copy(&mut self, ep: &Endpoint, partition: usize, start: Instant) -> Result<Pending<K, V>> {
        let store = self.store.clone();
        let epoch = self.trees[partition].epoch + 1;
        let client = Arc::clone(self.trees[partition].client(&store)?);
        let mut tree = store.open_tree(partition, (epoch, store.me()), None)?;
        let gate = Gate::new(&store.parts.gates, partition, store.parts.options.hold);
        tree.set_gate(gate.clone());
        let served = Some(Served { number: partition, epoch, partition: tree.partition()?, gate, taker: None });
        let take = store.parts.takes.fetch_add(1);
        let freeze = Request { partition, epoch: epoch - 1, ask: Ask::Freeze(take) };
        let copied = match ask(&store, ep, start, &client, freeze).await {
            Ok(_) => self.copy_frozen(ep, (partition, take), start, &client, &tree).await,
            // It may be frozen all the same: the reply may have been late.
            Err(error) => Err(error),
        };
        match copied {
            Ok(version) => Ok(Pending { place: Place::new(epoch, store.me(), tree), served, take, version }),
            Err(error) => {
                self.thaw(ep, partition, (epoch - 1, take), start, &error).await;
                Err(error)
            }
        }
    }

    /// Copies all pairs; as of which version.
    async fn copy_frozen(
        &mut self,
        ep: &Endpoint,
        (partition, take): (usize, u64),
        start: Instant,
        client: &Calls<K, V>,
        tree: &RomeTree<K, V>,
    ) -> Result<u64> {
        let store = self.store.clone();
        let (mut asked, time) = (ep.now(), freeze_time(store.parts.options.tree.lease));
        let epoch = self.trees[partition].epoch;
        let owner = self.trees[partition].owner;
        let stay = async |version| {
            let request = Request { partition, epoch, ask: Ask::Stay(take, version) };
            match ask(&store, ep, start, client, request).await? {
                Reply::Late => Err(late(ep, partition, start, owner)),
                _ => Ok(()),
            }
        };
        let (version, pairs) = loop {
            let version = self.begin_there(ep, partition, start).await?;
            let at = &mut self.trees[partition];
            let (mut cursor, mut pairs) = (Cursor::new(&.., false, WINDOW_MAX), Vec::new());
            let read = loop {
                match at.next(ep, &mut cursor, version, &mut pairs).await {
                    Ok(true) => {}
                    Ok(false) => break Ok(()),
                    Err(error) => break Err(error),
                }
                if ep.now().since(asked) > time / 4 {
                    asked = ep.now();
                    if let Err(error) = stay(version).await {
                        break Err(error);
                    }
                }
            };
            at.end();
            match read {
                Ok(()) => break (version, pairs),
                Err(error) => again(ep, start, error)?,
            }
        };
        stay(version).await?;
        tree.partition()?.load(ep, pairs)?;
        Ok(version)
    }
}

/// The error of a copy that is not of what the partition is now.
fn late(ep: &Endpoint, partition: usize, start: Instant, owner: NodeId) -> Error {
    let what = format!("a copy of partition {partition}, which took longer than it was frozen");
    ErrorKind::Timeout { what, waited: ep.now() - start, missing: vec![owner] }.into()
}

impl<K: TreeKey, V: Field> RomeKv<K, V> {
    /// From here on this node has the partition of which it has a snapshot. The caller has the word `changing`.
    fn own(&self, partition: usize) {
        let Some(pending) = self.parts.pending[partition].lock().take() else { return };
        let Pending { place, served, .. } = pending;
        // Behind the snapshot (`CW → CAS`), and before the service thread makes changes or gives the partition to
        // another node: a node that asks again whether it has it finds so.
        raise(self.parts.place_word(partition), word_of(place.epoch, self.me()));
        self.parts.incoming.lock().extend(served);
        self.know(partition, place);
    }

    /// This node knows now that the partition is there, unless it knows of a later place.
    pub(super) fn know(&self, partition: usize, place: Place<K, V>) {
        let before = {
            let mut now = self.parts.places[partition].lock();
            if now.epoch < place.epoch { core::mem::replace(&mut *now, place) } else { place }
        };
        // Not in the lock: it may be the last handle of that tree.
        drop(before);
        // If this owner dies, too, others are asked.
        *self.parts.lost[partition].lock() = None;
    }

    /// The partition was moved to this node, at this epoch: some node knows that. If no thread of this node does yet,
    /// one learns it here.
    ///
    /// # Errors
    /// Another thread changes meanwhile where the partition is, and is not done by the deadline.
    pub(super) async fn settle(&self, ep: &Endpoint, partition: usize, epoch: u64, deadline: Instant) -> Result<()> {
        let _changing = self.changing(ep, partition, deadline).await?;
        let is_it = self.parts.pending[partition].lock().as_ref().is_some_and(|pending| pending.place.epoch == epoch);
        if is_it {
            self.own(partition);
        }
        Ok(())
    }

    /// Discards a snapshot that is of an earlier place of the partition than this one. The caller has the word
    /// `changing`.
    pub(super) fn discard(&self, partition: usize, epoch: u64) {
        let discarded = self.parts.pending[partition].lock().take_if(|pending| pending.place.epoch <= epoch);
        drop(discarded);
    }

    fn me(&self) -> NodeId {
        self.parts.object.node().id()
    }
}

#[cfg(test)]
impl<K: TreeKey, V: Field> RomeKv<K, V> {
    fn stable_of(&self, partition: usize) -> crate::arena::Stable {
        let place = self.parts.places[partition].lock();
        place.tree.as_ref().and_then(|tree| tree.opened.arena().ok()).expect("it is this node's").stable_now()
    }

    pub(super) fn version_of(&self, partition: usize) -> u64 {
        self.stable_of(partition).version()
    }

    pub(super) fn is_frozen(&self, partition: usize) -> bool {
        self.stable_of(partition).is_frozen()
    }
}

#[cfg(test)]
mod tests {
    use farfield_core::{Node, local_session, on_each};

    use super::*;
    use crate::RomeKvOptions;

    const LONG: Duration = Duration::from_secs(60);

    fn session(lease: Duration) -> (Vec<Node>, Vec<Endpoint>, Vec<RomeKv<u64, u64>>) {
        let nodes = local_session(2).expect("a session");
        let mut options = RomeKvOptions::new([1 << 32]);
        options.tree.lease = lease;
        let stores = on_each(&nodes, move |node| RomeKv::open(node, "store", options.clone())).expect("all open it");
        let eps = nodes.iter().map(|node| node.endpoint().expect("one")).collect();
        (nodes, eps, stores)
    }

    /// It went on to the end, and loaded what it had read.
    #[test]
    fn a_copy_ends_when_the_partition_is_not_frozen_for_it_and_leaves_no_announcement() {
        let (_nodes, eps, stores) = session(LONG);
        let (ep, mut thread) = (&eps[1], stores[1].thread().expect("a seat"));
        let mut tree = stores[1].open_tree(0, (1, NodeId(1)), None).expect("it is the owner");
        tree.set_gate(Gate::new(&stores[1].parts.gates, 0, Duration::from_millis(2)));
        let client = stores[1].client_of(NodeId(0)).expect("it lives");
        let copied = ep.block_on(thread.copy_frozen(ep, (0, 7), ep.now(), &client, &tree));
        let error = copied.expect_err("no taking has this number");
        assert!(error.is_timeout() && error.to_string().contains("longer than it was frozen"), "{error}");
        let old = stores[1].parts.places[0].lock().tree.clone().expect("it is open");
        assert!(old.opened.seats.each().all(|seat| seat.version().is_none()), "the old owner waits for no reader");
    }

    /// The old owner's changes waited for the rest of the lease.
    #[test]
    fn a_taking_that_fails_at_any_step_leaves_the_partition_as_it_was() {
        let (_nodes, eps, stores) = session(LONG);
        let (mut here, mut there) = (stores[0].thread().expect("a seat"), stores[1].thread().expect("a seat"));
        eps[0].block_on(here.load(&eps[0], (0..40_000).map(|key| (key, key)))).expect("it is empty");
        let start = eps[1].now();
        eps[1].block_on(there.take_partition(&eps[1], 0)).expect("the owner lives");
        let took = eps[1].now() - start;
        for twelfths in 1..=11 {
            // It is at another step when its time is over.
            eps[0].set_timeout(took * twelfths / 12);
            let Err(error) = eps[0].block_on(here.take_partition(&eps[0], 0)) else { break };
            assert!(error.is_timeout(), "{error}");
            let late = eps[1].now() + LONG / 2;
            eps[1].block_on(eps[1].wait_until(late, || (!stores[1].is_frozen(0)).then_some(()))).expect("it thaws");
        }
        eps[1].block_on(there.put(&eps[1], 1, 7)).expect("it is not frozen");
    }
}
