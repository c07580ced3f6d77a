//! Moving a partition to another node, while all nodes go on.
//!
//! The node that is to have a partition takes it ([`RomeKvThread::take_partition`]). Each place of a partition has an epoch: 0 where the options put
//! it, and one more with each move. Its tree at epoch e > 0 is an object of its own, `{path}/{partition}/{e}-{owner}`, which other nodes open when they learn
//! of it.
//!
//! 1. The taker opens the tree, in its own memory. No other node knows of it.
//! 2. *Freeze.* By a call of the owner's service thread, which sets a bit of the old tree's `stable` (`arena/versions.rs`). From then on no change becomes
//!    visible there, whichever thread makes it: changes wait, or come again. Reads go on.
//! 3. The taker reads all pairs as of the version F that is frozen, by gets, and loads them into the new tree. It asks for more time meanwhile.
//! 4. *Publish.* Another call of the service thread: if `stable` is still frozen at F, it becomes "moved" with one compare-and-swap, and stays so. The
//!    word `place` beside the old gate says where to. When the reply is there, the taker puts its own word `place`, and makes changes from then on.
//!
//! *Why no change is lost.* All changes that have returned at the old place have a version up to F, and the snapshot has these. The others never become
//! visible; their threads find "moved", and make them again at the new place.
//!
//! *Why no read is out of date.* A read of the old place gets `stable`, which is not "moved" at that moment, t, of the call. Whatever it reads then is the
//! state at a later moment before the freeze; or that of F, which was the current one from the freeze until the move at least, and so at t or at the freeze,
//! whichever is later. Reads at one instant compare the word at two moments, and it is "moved" at neither, so the partition was there between them. A
//! scan that has begun goes on at the old place, as of its version; its memory stays until the last node has closed that tree.
//!
//! *A read of the new place* begins when the reader has seen "moved", and so after the whole snapshot was there (it is loaded before the call of step 4).
//!
//! *The new place is found* by a reader that sees "moved", or whose update is refused, or whose owner is dead: it gets the words `place` of all members, of
//! which the old owner's and the new one's say it. The highest epoch counts. No word says so before the move is done.
//!
//! *Deaths.* The taker's before step 4: the freeze ends when its time is over ([`freeze_time`]), and the partition is where it was, with all changes.
//! After it: the partition is lost, as with any owner. The old owner's before step 4: the partition is lost, and the taker discards its snapshot, since
//! changes may have been made after a freeze that was over. After it: nothing is lost. If the old owner dies in step 4, before its reply is there,
//! the taker cannot know whether more changes were made, and makes none itself: calls end with an error that names the partition, but for reads of
//! nodes that have found the new place before, which are right.
//! A reply that is late leaves the taker's snapshot as it is: the next `take_partition` asks again.

use core::time::Duration;
use std::sync::Arc;

use farfield_core::{Endpoint, Error, ErrorKind, Result};
use farfield_fabric::{Instant, NodeId};
use farfield_rpc::{Effect, effect_of};

use super::instant::again;
use super::place::{Place, word_of};
use super::thread::ask;
use super::updates::{Ask, Reply, Request, Served};
use super::{Calls, RomeKv, RomeKvThread};
use crate::field::{Field, TreeKey};
use crate::gate::Gate;
use crate::tree::{Cursor, RomeTree, WINDOW_MAX};

/// For how long a partition is frozen, from each request on.
pub(super) fn freeze_time(lease: Duration) -> Duration {
    lease
}

/// A snapshot that this node has, and that is the partition if the old owner says so.
pub(super) struct Pending<K, V> {
    /// The place before.
    from: NodeId,
    place: Place<K, V>,
    served: Served<K, V>,
    /// The old tree's, as of which it is.
    version: u64,
}

impl<K: TreeKey, V: Field> RomeKvThread<K, V> {
    /// Moves a partition into the memory of this node, with all its pairs, while all nodes go on. When it returns, this node is the owner.
    ///
    /// Reads of all nodes go on all the time. Changes of the partition wait while it is copied: some seconds for millions of pairs. For the time of the copy this
    /// node has the pairs twice. A call of another node that finds the partition moved opens it there first, which takes some round trips. The partition's
    /// old memory is free when all threads of all nodes have come to the new place.
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
    /// [`RangeUnavailable`](crate::RangeUnavailable): the owner is dead, or does not answer, or the copy took longer than the partition stays frozen
    /// without a word of this thread, which is the [`lease`](crate::TreeOptions::lease). If
    /// [`may_have_happened`](crate::RangeUnavailable::may_have_happened), and the owner lives, call it again, which finds out.
    /// [`MemoryFull`](crate::MemoryFull): the pairs do not fit. [`ErrorKind::Config`]: there is no such partition. In all other cases the
    /// partition is where it was, and so are its changes.
    pub async fn take_partition(&mut self, ep: &Endpoint, partition: usize) -> Result<()> {
        let (start, store) = (ep.now(), self.store.clone());
        if partition >= store.partitions() {
            let why = format!("there is no partition {partition}: there are {}", store.partitions());
            return Err(Error::from(ErrorKind::Config { why }).of(store.path()));
        }
        loop {
            let changing = store.changing(ep, partition).await?;
            if store.epoch(partition) > self.trees[partition].epoch {
                self.trees[partition] = store.at(partition)?;
            }
            if self.trees[partition].is_here() {
                return Ok(());
            }
            let taken = self.take(ep, partition, start).await;
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
        let store = self.store.clone();
        let waiting = store.parts.pending[partition].lock().take();
        let pending = match waiting.filter(|pending| pending.place.epoch == self.trees[partition].epoch + 1) {
            Some(pending) => pending,
            None => self.copy(ep, partition, start).await?,
        };
        let client = Arc::clone(self.trees[partition].client(&store)?);
        // From here on it may be the partition: it stays until that is known, also if this call is cancelled.
        let (from, version) = (pending.from, pending.version);
        *store.parts.pending[partition].lock() = Some(pending);
        let reply = ask(&store, ep, start, &client, Request { partition, ask: Ask::Publish(version) }).await;
        let is_known = match &reply {
            Ok(_) => true,
            Err(error) => effect_of(error) == Effect::None || error.is_gone(),
        };
        if !is_known {
            return reply.map(|_| ());
        }
        let pending = store.parts.pending[partition].lock().take();
        match (reply, pending) {
            (Ok(Reply::Done(_)), Some(pending)) => {
                store.own(partition, pending.place, pending.served);
                ep.wake_local();
                Ok(())
            }
            (Ok(_), _) => {
                let what = format!("a copy of partition {partition}, which took longer than it was frozen");
                Err(ErrorKind::Timeout { what, waited: ep.now() - start, missing: vec![from] }.into())
            }
            (Err(error), _) => Err(error),
        }
    }

    /// A tree of this node with what the partition has, which is frozen.
    async fn copy(&mut self, ep: &Endpoint, partition: usize, start: Instant) -> Result<Pending<K, V>> {
        let store = self.store.clone();
        let (from, epoch) = (self.trees[partition].owner, self.trees[partition].epoch + 1);
        let client = Arc::clone(self.trees[partition].client(&store)?);
        let mut tree = store.open_tree(partition, epoch, store.me())?;
        let gate = Gate::new(&store.parts.gates, partition, store.parts.options.hold);
        tree.set_gate(gate.clone());
        let served = Served { number: partition, epoch, partition: tree.partition()?, gate };
        let request = |ask| Request { partition, ask };
        let frozen = ask(&store, ep, start, &client, request(Ask::Freeze)).await?;
        let copied = match frozen {
            Reply::Done(_) => self.copy_frozen(ep, partition, start, &client, &tree).await,
            _ => unreachable!("a freeze is made, or asked for again"),
        };
        match copied {
            Ok(version) => Ok(Pending { from, place: Place { epoch, tree }, served, version }),
            Err(error) => {
                // So that changes go on at once. Otherwise they do when its time is over.
                let _ = ask(&store, ep, start, &client, request(Ask::Thaw)).await;
                Err(error)
            }
        }
    }

    /// Copies all pairs; as of which version.
    async fn copy_frozen(
        &mut self,
        ep: &Endpoint,
        partition: usize,
        start: Instant,
        client: &Calls<K, V>,
        tree: &RomeTree<K, V>,
    ) -> Result<u64> {
        let store = self.store.clone();
        let (mut asked, time) = (ep.now(), freeze_time(store.parts.options.tree.lease));
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
                    ask(&store, ep, start, client, Request { partition, ask: Ask::Stay(version) }).await?;
                }
            };
            at.end();
            match read {
                Ok(()) => break (version, pairs),
                Err(error) => again(ep, start, error)?,
            }
        };
        ask(&store, ep, start, client, Request { partition, ask: Ask::Stay(version) }).await?;
        tree.partition()?.load(ep, pairs)?;
        Ok(version)
    }
}

impl<K: TreeKey, V: Field> RomeKv<K, V> {
    /// From here on this node has the partition.
    fn own(&self, partition: usize, place: Place<K, V>, served: Served<K, V>) {
        self.parts.incoming.lock().push(served);
        // Behind the snapshot (`CW → CW`).
        self.parts.place_word(partition).store(word_of(place.epoch, self.me()));
        let before = core::mem::replace(&mut *self.parts.places[partition].lock(), place);
        drop(before);
    }

    fn me(&self) -> NodeId {
        self.parts.object.node().id()
    }
}
