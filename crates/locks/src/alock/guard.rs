//! The guard of an ALock, and its release.

use core::mem::ManuallyDrop;
use std::sync::Arc;

use farfield_core::Result;
use farfield_core::toolkit::release::{fence_at_once, fence_holder, release_later};
use farfield_core::toolkit::{ErrorContext, Holding, Rest};
use farfield_fabric::{self as fabric, Begun, Endpoint, Kept, RemotePtr};

use super::{ALockArray, CLAIMS, REPAIRED};
use crate::LockGuard;
use crate::descriptor::Id;
use crate::entry::{Moving, leave};
use crate::grant::Grant;
use crate::local::{Local, LocalEntry, LocalHead};
use crate::queue::{Head, Spared, deaths_told};

/// Holds an ALock until it is dropped or unlocked.
///
/// Unlock with [`LockGuard::unlock`]. Dropping the guard also unlocks, but blocks until the release fence completes,
/// and only logs an error.
///
/// ```
/// # use farfield::{ALock, ALockGuard, LockGuard};
/// # let node = farfield::Node::builder().start()?;
/// # let (lock, ep) = (ALock::open(&node, "lock", node.id())?, node.endpoint()?);
/// let held: ALockGuard<'_> = lock.lock_blocking(&ep)?;
/// assert!(ep.block_on(lock.try_lock(&ep))?.is_none());
/// ep.block_on(held.unlock())?;
/// assert!(ep.block_on(lock.try_lock(&ep))?.is_some()); // it is free again
/// # Ok::<(), farfield::Error>(())
/// ```
#[must_use = "the lock is released when the guard is dropped"]
pub struct ALockGuard<'a> {
    pub(super) locks: &'a ALockArray,
    pub(super) endpoint: &'a Endpoint,
    pub(super) held: Held,
    pub(super) budget: u32,
    /// Until the lock is released, or left to the service thread.
    pub(super) holding: Holding,
}

/// An operation at the head of a queue, of the remote one or of the local one. Its fields are here, and not in a
/// [`Head`]: then it takes three words, and a guard is cheap to move.
#[derive(Clone, Copy)]
pub(super) enum Held {
    Remote { lock: u32, record: RemotePtr<u64>, id: Id },
    Local { lock: u32, slot: u32, offset: usize },
}

/// The same, to be worked on.
enum AtHead {
    Remote(Head),
    Local(LocalHead),
}

impl Held {
    #[inline]
    pub(super) fn remote(head: Head) -> Held {
        let Head { record, lock, id } = head;
        Held::Remote { lock, record, id }
    }

    #[inline]
    pub(super) fn local(head: LocalHead) -> Held {
        let LocalHead { lock, slot, offset } = head;
        Held::Local { lock, slot, offset }
    }

    #[inline]
    fn head(self) -> AtHead {
        match self {
            Held::Remote { lock, record, id } => AtHead::Remote(Head { record, lock, id }),
            Held::Local { lock, slot, offset } => AtHead::Local(LocalHead { lock, slot, offset }),
        }
    }
}

/// An operation that leaves the head, and has to wait.
enum Leaving<'a> {
    Remote(Kept<'a, Moving<'a>>),
    Local(Kept<'a, LocalEntry<'a>>),
}

impl Leaving<'_> {
    async fn leave(self) -> Result<()> {
        match self {
            Leaving::Remote(moving) => leave(moving).await,
            Leaving::Local(entry) => {
                entry.into_inner().leave().await;
                Ok(())
            }
        }
    }
}

impl<'a> ALockGuard<'a> {
    /// How many operations of its cohort may have the lock after this one, before the other cohort gets it.
    ///
    /// ```
    /// # use farfield::ALock;
    /// # let node = farfield::Node::builder().start()?;
    /// # let lock = ALock::open(&node, "lock", node.id())?;
    /// # let ep = node.endpoint()?;
    /// let guard = lock.lock_blocking(&ep)?;
    /// println!("{} more of its cohort may pass", guard.budget());
    /// # drop(guard); Ok::<(), farfield::Error>(())
    /// ```
    pub fn budget(&self) -> u32 {
        self.budget
    }

    /// Records in the lock that everything left by dead holders is repaired. The release makes this visible.
    async fn tell_repaired(&self) -> fabric::Result<()> {
        match self.held.head() {
            AtHead::Remote(head) => {
                let [claims, burials] = self.endpoint.get_words(head.record.at(CLAIMS)).await?;
                self.endpoint.put_value(head.record.at(REPAIRED), deaths_told(claims) + burials).detach()
            }
            AtHead::Local(head) => {
                self.local().tell_repaired(head);
                Ok(())
            }
        }
    }

    #[inline]
    fn local(&self) -> &'a Arc<Local> {
        self.locks.local.as_ref().expect("it was locked on its home")
    }

    #[inline]
    fn spared(&self) -> Spared {
        match self.held.head() {
            AtHead::Remote(head) => self.locks.queue.spared(&head),
            AtHead::Local(_) => Spared::Nothing,
        }
    }

    /// Takes the operation out of the guard, with its grant for the next one.
    #[inline]
    fn take(&mut self) -> (AtHead, Grant) {
        self.holding.end();
        (self.held.head(), Grant::new(self.budget.wrapping_sub(1), self.holding.is_poisoned()))
    }

    /// Begins to leave, after the fence. Returns the operation if it has to wait.
    #[inline(always)]
    fn begins_to_leave(&mut self, spared: Spared) -> Result<Option<Leaving<'a>>> {
        let (held, next_grant) = self.take();
        match held {
            AtHead::Remote(head) => match self.locks.queue.leaves(self.endpoint, head, next_grant, spared)? {
                None => Ok(None),
                Some(moving) => Ok(Some(Leaving::Remote(moving))),
            },
            AtHead::Local(head) if self.local().leaves_at_once(self.endpoint, head) => Ok(None),
            AtHead::Local(head) => Ok(self.leaves_local(head, next_grant)),
        }
    }

    #[cold]
    #[inline(never)]
    fn leaves_local(&self, head: LocalHead, next_grant: Grant) -> Option<Leaving<'a>> {
        let entry = self.local().at_head(self.endpoint, head, next_grant);
        entry.leave_at_once().err().map(|entry| Leaving::Local(self.endpoint.kept(|| entry)))
    }

    async fn release(&mut self) -> Result<()> {
        let (path, node, endpoint) = (self.locks.spread.path(), self.locks.spread.node(), self.endpoint);
        if self.holding.is_repaired() && self.tell_repaired().await.is_ok() {
            self.holding = Holding::new(false);
        }
        let spared = self.spared();
        let lost = fence_holder(node, endpoint, |node| spared.is(node)).await.of(path)?;
        if lost.is_empty() {
            return match self.begins_to_leave(spared)? {
                Some(leaving) => leaving.leave().await,
                None => Ok(()),
            };
        }
        let (held, next_grant) = self.take();
        match held {
            AtHead::Remote(head) => {
                let entry = self.locks.queue.at_head(endpoint, head, next_grant);
                release_later(node, endpoint, lost, entry.leave_later())
            }
            AtHead::Local(head) => {
                let entry = self.local().at_head(endpoint, head, next_grant);
                release_later(node, endpoint, lost, entry.leave_later())
            }
        }
        .of(path)
    }

    #[cold]
    fn release_in_drop(&mut self) {
        if let Err(error) = self.endpoint.block_on(self.release()) {
            tracing::error!("releasing a lock in a drop: {error}");
        }
    }

    /// Whether it was not released yet.
    #[inline]
    pub(crate) fn is_held(&self) -> bool {
        self.holding.is_held()
    }

    /// [`LockGuard::begin_unlock`], where the guard stays where it is. It holds nothing afterwards.
    #[inline(always)]
    pub(crate) fn begin_release(&mut self) -> Result<Begun<(), impl Rest<()> + use<'a>>> {
        let (node, spared) = (self.locks.spread.node(), self.spared());
        let is_fenced = !self.holding.is_repaired() && fence_at_once(node, self.endpoint, spared.node());
        if !is_fenced {
            return Ok(Err(self.begin_rest(None)));
        }
        match self.begins_to_leave(spared)? {
            None => Ok(Ok(())),
            leaving => Ok(Err(self.begin_rest(leaving))),
        }
    }

    #[cold]
    #[inline(never)]
    fn begin_rest(&mut self, leaving: Option<Leaving<'a>>) -> impl Rest<()> + use<'a> {
        let ALockGuard { locks, endpoint, held, budget, holding } = *self;
        self.holding.end(); // the lock is that guard's from now on
        let guard = ALockGuard { locks, endpoint, held, budget, holding };
        endpoint.boxed(guard.unlock_on(leaving))
    }

    /// [`LockGuard::unlock`] where it has to wait: to leave the queue, if that has begun, or for the fence first.
    async fn unlock_on(mut self, leaving: Option<Leaving<'a>>) -> Result<()> {
        if let Some(leaving) = leaving {
            return leaving.leave().await;
        }
        let released = self.release().await;
        self.holding.end(); // after an error the lock stays taken: not all writes are known to be visible
        released
    }
}

impl LockGuard for ALockGuard<'_> {
    #[inline(always)]
    fn begin_unlock(self) -> Result<Begun<(), impl Rest<()>>> {
        // Not dropped here, since nothing would be left to do.
        ManuallyDrop::new(self).begin_release()
    }

    fn is_poisoned(&self) -> bool {
        self.holding.is_poisoned()
    }

    fn clear_poison(&mut self) {
        self.holding.repair();
    }
}

impl Drop for ALockGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.holding.is_held() {
            self.release_in_drop();
        }
    }
}
