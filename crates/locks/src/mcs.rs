//! The queue lock of Mellor-Crummey and Scott, by remote atomics and puts only.
//!
//! ```text
//! +0   ┌──────────┐
//!      │ tail     │  the last entry of the queue; 0: nobody has the lock; 1: nobody has, and what it protects may be half-written
//! +8   ├──────────┤
//!      │ claims   │  how often the head was claimed from the dead
//! +16  ├──────────┤
//!      │          │  padding, so that two locks never share a line
//! +64  └──────────┘
//! ```
//!
//! A rival of ALock in its evaluation (section 6), with the same queue as ALock's remote cohort. Each operation waits
//! on its own node, and the order is first come, first served. Threads on the lock's node use the NIC's loopback like
//! all others, for their compare-and-swaps on the tail and for their puts to each other.
//!
//! *Acquire.* Either the compare-and-swap that found the tail empty has completed. Or the operation has read its grant,
//! which its giver put after all its earlier puts. *Release.* As ALock's remote one: a global fence, from which one
//! node is exempt: that of the operation behind (`NRW → NRW`), or else that of the lock (`NRW → NAR`).
//!
//! | call | round trips | operations |
//! |---|---|---|
//! | `lock`, free | 1 | 1 cas |
//! | `lock`, behind another | 1 for each attempt, then it waits on its own node | a cas for each attempt, 1 put |
//! | `unlock`, d nodes put to, without the exempt one | 1 (d = 0) or 2 | at most d gets, 1 cas |
//! | `unlock`, another behind | the same; 0 if that was known | at most d gets, at most 1 cas, 1 put |
//!
//! *When a node dies*, the rules of [`ALock`](super::alock) for its remote queue apply.

use farfield_fabric::{Begun, Endpoint, GroupKey, Kept, NodeId};

use core::borrow::BorrowMut;
use std::sync::Arc;

use super::descriptor::{self, Descriptors, Id};
use super::entry::{Moving, leave};
use super::grant::{Grant, Wait};
use super::queue::{Head, Queue, Spared, Words};
use super::{ALockOptions, Layout, LockArray, LockGuard, Spread, WORDS_OF_LINE, WaitLimit, in_order};
use farfield_core::Node;
use farfield_core::Result;
use farfield_core::toolkit::Regions;
use farfield_core::toolkit::release::{fence_at_once, fence_holder, release_later};
use farfield_core::toolkit::{Either, ErrorContext, Holding, Rest};

/// First, where `Queue` takes it to be.
const TAIL: usize = 0;
const CLAIMS: usize = 1;

/// An array of queue locks, spread over the nodes that open it, in order.
///
/// ```
/// use farfield::{LockArray, LockGuard, McsLockArray};
/// # fn main() -> farfield::Result<()> {
/// let node = farfield::Node::builder().session("doc-mcs").start()?;
/// let locks = McsLockArray::open(&node, "stripes", 64, 1024)?;
/// let ep = node.endpoint()?;
/// let guard = ep.block_on(locks.lock(&ep, 7))?;
/// assert!(ep.block_on(locks.try_lock(&ep, 7))?.is_none());
/// ep.block_on(guard.unlock())?;
/// # Ok(()) }
/// ```
pub struct McsLockArray {
    spread: Spread,
    queue: Arc<Queue>,
}

/// Holds a queue lock until it is dropped or unlocked.
///
/// ```
/// # use farfield::{LockArray, McsGuard, McsLockArray};
/// # let node = farfield::Node::builder().session("doc-mcs-guard").start()?;
/// # let (locks, ep) = (McsLockArray::open(&node, "stripes", 64, 16)?, node.endpoint()?);
/// {
///     let _held: McsGuard<'_> = ep.block_on(locks.lock(&ep, 7))?;
/// } // dropped: the lock is free
/// assert!(ep.block_on(locks.try_lock(&ep, 7))?.is_some());
/// # Ok::<(), farfield::Error>(())
/// ```
#[must_use = "the lock is released when the guard is dropped"]
pub struct McsGuard<'a> {
    locks: &'a McsLockArray,
    endpoint: &'a Endpoint,
    head: Head,
    /// Until the lock is released, or left to the service thread.
    holding: Holding,
}

impl McsLockArray {
    /// Opens `count` locks and waits for all nodes to do so. `operations_max` operations of a node may hold or await
    /// one of them at a time; each has 64 bytes of network memory.
    ///
    /// ```
    /// # use farfield::{LockArray, McsLockArray};
    /// # let nodes = farfield::local_session(2)?;
    /// let locks = farfield::on_each(&nodes, |node| McsLockArray::open(node, "stripes", 64, 16))?;
    /// assert_eq!((locks[0].len(), locks[1].home(1)), (64, nodes[1].id()));
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// A node is missing, unreachable, or opens them differently; memory is exhausted; or the numbers are invalid.
    pub fn open(node: &Node, path: &str, count: usize, operations_max: usize) -> Result<McsLockArray> {
        McsLockArray::open_among(node, path, &node.members_for(path), count, operations_max)
    }

    /// Opens the locks among these nodes, which must name the same, and waits for them to do so. Lock `i` is on the one
    /// at `i mod nodes` of them, in the order of their numbers.
    ///
    /// ```
    /// # use farfield::{LockArray, McsLockArray};
    /// # let nodes = farfield::local_session(3)?; let pair = [nodes[0].id(), nodes[1].id()];
    /// let open = |node: &farfield::Node| McsLockArray::open_among(node, "stripes", &pair, 64, 16);
    /// let locks = farfield::on_each(&nodes[..2], open)?; // the third node does not open them
    /// assert_eq!(locks[1].home(3), pair[1]);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As `open`, or this node is not among them.
    pub fn open_among(
        node: &Node,
        path: &str,
        participants: &[NodeId],
        count: usize,
        operations_max: usize,
    ) -> Result<McsLockArray> {
        ALockOptions { operations_max, ..ALockOptions::default() }.check(count).of(path)?;
        let mut more = Regions::new(node);
        let own = more.alloc("descriptors", GroupKey::SIGNAL, operations_max * descriptor::BYTES).of(path)?;
        let layout = Layout {
            path,
            kind: "McsLockArray",
            count,
            words_each: WORDS_OF_LINE,
            homes: in_order(participants),
            participants: in_order(participants),
            group: GroupKey::DATA,
            options: String::new(),
            is_local: false,
            more,
            expected: vec![("descriptors".into(), own.bytes() as u64)],
            after_death: (TAIL, Id::NOBODY_AFTER_DEATH.0),
        };
        let spread = Spread::open(node, layout)?;
        let descriptors = Descriptors::new(node.id(), own, spread.regions("descriptors")?);
        let words = Words { claims: CLAIMS, buried: None };
        let queue = Queue::new(&spread.object, descriptors, words, Id::NOBODY_AFTER_DEATH);
        Ok(McsLockArray { spread, queue })
    }

    /// How many operations of this node have an entry.
    #[cfg(all(feature = "scenarios", not(test)))]
    pub(crate) fn entries(&self) -> usize {
        self.queue.descriptors.in_use()
    }

    /// The entries that a survey of a lock finds in its queue, each with the one before it.
    #[cfg(all(feature = "scenarios", not(test)))]
    pub(crate) async fn seen_in_queue(&self, endpoint: &Endpoint, lock: usize) -> Result<Vec<(Id, Id)>> {
        let survey = self.queue.survey(endpoint, lock).await.of(&self.queue.path)?;
        let seen = survey.into_iter().flat_map(|survey| survey.seen);
        Ok(seen.filter(|seen| seen.state == descriptor::State::Queued).map(|seen| (seen.id, seen.pred)).collect())
    }
}

impl McsLockArray {
    /// [`LockArray::begin`] on locks that are current.
    #[inline(always)]
    fn takes<'a, L: BorrowMut<WaitLimit>>(
        &'a self,
        endpoint: &'a Endpoint,
        index: usize,
        limit: L,
    ) -> Result<Begun<McsGuard<'a>, impl Rest<Option<McsGuard<'a>>> + use<'a, L>>> {
        Ok(match self.queue.enters(endpoint, self.spread.record(index), index)? {
            Ok(head) => Ok(self.guard(endpoint, head, false)),
            Err(moving) => Err(endpoint.boxed(self.enter(endpoint, moving, limit))),
        })
    }
}

impl LockArray for McsLockArray {
    type Guard<'a> = McsGuard<'a>;

    fn len(&self) -> usize {
        self.spread.count()
    }

    fn home(&self, index: usize) -> NodeId {
        self.spread.record(index).node()
    }

    #[inline(always)]
    fn begin<'a, L: BorrowMut<WaitLimit>>(
        &'a self,
        endpoint: &'a Endpoint,
        index: usize,
        limit: L,
    ) -> Result<Begun<McsGuard<'a>, impl Rest<Option<McsGuard<'a>>>>> {
        if self.spread.object.is_plain() {
            return Ok(self.takes(endpoint, index, limit)?.map_err(Either::Plain));
        }
        let until = *limit.borrow();
        let takes = async move {
            match self.takes(endpoint, index, limit)? {
                Ok(guard) => Ok(Some(guard)),
                Err(rest) => rest.await,
            }
        };
        Ok(Err(Either::Measured(self.spread.measure(endpoint, until, takes)?)))
    }
}

impl McsLockArray {
    #[inline]
    fn guard<'a>(&'a self, endpoint: &'a Endpoint, head: Head, is_poisoned: bool) -> McsGuard<'a> {
        McsGuard { locks: self, endpoint, head, holding: Holding::new(is_poisoned) }
    }

    /// Enters the queue, and waits for the lock.
    async fn enter<'a>(
        &'a self,
        endpoint: &'a Endpoint,
        moving: Kept<'a, Moving<'a>>,
        mut limit: impl BorrowMut<WaitLimit>,
    ) -> Result<Option<McsGuard<'a>>> {
        let ((mut entry, asked), mut wait) = (moving.into_inner().into_parts(), Wait::new(limit.borrow_mut()));
        let Some(found) = entry.enqueue(&mut wait, asked).await? else { return Ok(None) };
        let is_poisoned = match found.node() {
            None => found == Id::NOBODY_AFTER_DEATH,
            Some(_) => match endpoint.boxed(entry.granted(&mut wait)).await {
                Ok(grant) => grant.is_poisoned(),
                Err(error) if wait.is_forbidden() && error.is_timeout() => return Ok(None),
                Err(error) => return Err(error),
            },
        };
        Ok(Some(self.guard(endpoint, entry.into_head(), is_poisoned)))
    }
}

impl<'a> McsGuard<'a> {
    fn spared(&self) -> Spared {
        self.locks.queue.spared(&self.head)
    }

    /// Takes the operation out of the guard, with its grant for the next one.
    #[inline]
    fn take(&mut self) -> (Head, Grant) {
        self.holding.end();
        (self.head, Grant::new(0, self.holding.is_poisoned() && !self.holding.is_repaired()))
    }

    /// Makes the holder's puts visible, and begins to leave. Returns what [`Entry::leave`](super::entry::Entry::leave)
    /// has to do, if anything.
    async fn fence(&mut self) -> Result<Option<Kept<'a, Moving<'a>>>> {
        let (path, node, endpoint) = (self.locks.spread.path(), self.locks.spread.node(), self.endpoint);
        let spared = self.spared();
        let lost = fence_holder(node, endpoint, |node| spared.is(node)).await.of(path)?;
        let ((head, next_grant), queue) = (self.take(), &self.locks.queue);
        if lost.is_empty() {
            return queue.leaves(endpoint, head, next_grant, spared);
        }
        let entry = queue.at_head(endpoint, head, next_grant);
        release_later(node, endpoint, lost, entry.leave_later()).of(path).map(|()| None)
    }

    async fn release(&mut self) -> Result<()> {
        match self.fence().await? {
            Some(moving) => leave(moving).await,
            None => Ok(()),
        }
    }

    #[cold]
    fn release_in_drop(&mut self) {
        if let Err(error) = self.endpoint.block_on(self.release()) {
            tracing::error!("releasing a lock in a drop: {error}");
        }
    }

    #[cold]
    #[inline(never)]
    fn begin_rest(self, leaving: Option<Kept<'a, Moving<'a>>>) -> impl Rest<()> + use<'a> {
        self.endpoint.boxed(self.unlock_on(leaving))
    }

    /// [`LockGuard::unlock`] where it has to wait: to leave the queue, if that has begun, or for the fence first.
    async fn unlock_on(mut self, leaving: Option<Kept<'a, Moving<'a>>>) -> Result<()> {
        if let Some(moving) = leaving {
            return leave(moving).await;
        }
        let released = self.release().await;
        self.holding.end(); // after an error the lock stays taken: not all writes are known to be visible
        released
    }
}

impl LockGuard for McsGuard<'_> {
    #[inline(always)]
    fn begin_unlock(mut self) -> Result<Begun<(), impl Rest<()>>> {
        let (endpoint, spared) = (self.endpoint, self.spared());
        if !fence_at_once(self.locks.spread.node(), endpoint, spared.node()) {
            return Ok(Err(self.begin_rest(None)));
        }
        let (head, next_grant) = self.take();
        match self.locks.queue.leaves(endpoint, head, next_grant, spared)? {
            None => Ok(Ok(())),
            leaving => Ok(Err(self.begin_rest(leaving))),
        }
    }

    fn is_poisoned(&self) -> bool {
        self.holding.is_poisoned()
    }

    fn clear_poison(&mut self) {
        self.holding.repair();
    }
}

impl Drop for McsGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.holding.is_held() {
            self.release_in_drop();
        }
    }
}
