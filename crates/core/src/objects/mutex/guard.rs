//! The guard of a held lock, and its release.

use core::future::Future;

use farfield_fabric::{self as fabric, Attempt, Begun, Endpoint, NodeId, Op, RemotePtr};

use super::state::DIED;
use super::{Lock, MutexArray};
use crate::error::{Error, ErrorContext, Result};
use crate::node::{Hold, Progress};
use crate::objects::holding::Holding;
use crate::objects::release;
use crate::objects::release::{fence_at_once, fence_holder, release_later};
use crate::objects::wait_limit::Rest;

/// Holds the lock as long as it lives.
///
/// ```
/// # fn main() -> farfield::Result<()> {
/// # let node = farfield::Node::builder().session("doc-guard").start()?;
/// let (ep, lock) = (node.endpoint()?, farfield::Mutex::open(&node, "account", node.id())?);
/// ep.block_on(async {
///     let mut guard = lock.lock(&ep).await?;
///     if guard.is_poisoned() {
///         // … check and repair what the lock protects …
///         guard.clear_poison();
///     }
///     guard.unlock().await
/// })?;
/// # Ok(()) }
/// ```
///
/// Unlock with [`Guard::unlock`]. Dropping it does the same, but waits for the release fence in the drop, and an error
/// is only logged.
#[must_use = "the lock is released when the guard is dropped"]
pub struct Guard<'a> {
    pub(super) locks: &'a MutexArray,
    pub(super) endpoint: &'a Endpoint,
    pub(super) lock: &'a Lock,
    /// Whether it is held, and whether the release removes the mark.
    pub(super) holding: Holding,
}

impl<'a> Guard<'a> {
    /// Makes the holder's writes visible everywhere, then releases the lock.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let node = farfield::Node::builder().session("doc-objects-mutex-20").start()?;
    /// # let ep = node.endpoint()?;
    /// # let mutex = farfield::Mutex::open(&node, "account", node.id())?;
    /// let guard = ep.block_on(mutex.lock(&ep))?;
    /// ep.block_on(guard.unlock())?; // what was put under the lock is visible to the next holder
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The lock's home is dead or departed, and the lock lost with it. Or a node that received writes does not answer:
    /// the lock is released when that node is evicted, or freed from this node if this one is. Or the fence was
    /// refused for as long as the endpoint's timeout: the lock stays taken. Or the RDMA device has failed: the lock is
    /// released, and puts may be lost.
    pub fn unlock(self) -> impl Future<Output = Result<()>> {
        Attempt::new(move || self.begin_unlock())
    }

    /// Begins [`Guard::unlock`]: does it where that needs no wait. Otherwise it returns the rest of the call. If that
    /// is dropped, the lock is released all the same, as when a guard is dropped.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let node = farfield::Node::builder().start()?;
    /// # let (ep, locks) = (node.endpoint()?, farfield::MutexArray::open(&node, "stripes", 64)?);
    /// let held = [3, 8].map(|index| ep.block_on(locks.lock(&ep, index)).unwrap());
    /// let rest = held.map(|guard| guard.begin_unlock()); // the releases of both are posted
    /// for rest in rest {
    ///     if let Err(rest) = rest? {
    ///         ep.block_on(rest)?;
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As `unlock`.
    #[inline(always)]
    pub fn begin_unlock(mut self) -> Result<Begun<(), impl Rest<()> + use<'a>>> {
        let home = self.lock.word.node();
        let mut posted = None;
        if fence_at_once(self.locks.object.node(), self.endpoint, Some(home)) {
            match self.posts_release().into_value() {
                Ok(before) => {
                    self.saw_release(before);
                    return Ok(Ok(()));
                }
                Err(release) => posted = Some(release.accepted()),
            }
        }
        if let Some(Err(error)) = &posted
            && error.is_refused()
        {
            self.holding.resume(); // until the rest has left it to the service thread
        }
        Ok(Err(self.endpoint.boxed(self.unlock_on(posted))))
    }

    /// [`Guard::unlock`] where it has to wait: for the fence, or only for the release.
    async fn unlock_on(mut self, release: Option<fabric::Result<Op<'a, u64>>>) -> Result<()> {
        let path = self.locks.object.path();
        let home = self.lock.word.node();
        let mut fenced = Ok(());
        let release = match release {
            Some(release) => release,
            None => {
                let is_exempt = |node| node == home;
                match fence_holder(self.locks.object.node(), self.endpoint, is_exempt).await {
                    Ok(lost) if !lost.is_empty() => return self.leave_to_service(lost),
                    Err(error) if error.is_refused() => {
                        self.holding.end(); // no other operation may have it: its puts may not be visible
                        return Err(error).of(path);
                    }
                    ended => fenced = ended.map(drop),
                }
                Ok(self.posts_release())
            }
        };
        let released = match release {
            Ok(release) => release.await,
            Err(error) => Err(error),
        };
        match &released {
            Ok(before) => self.saw_release(*before),
            Err(error) if error.is_refused() => {
                // The service thread releases by another endpoint: the puts that needed no fence are made visible
                // before.
                let node = self.locks.object.node();
                self.holding.resume();
                let fenced_home = node.fence_live_nodes(self.endpoint, [home].into_iter()).await;
                self.holding.end(); // after an error the lock stays taken: the drop would repeat the refused fence
                let lost = fenced_home.of(path)?;
                if !lost.is_empty() {
                    return self.leave_to_service(lost);
                }
                release::add_later(&self.locks.object, self.lock.word, self.held().wrapping_neg());
                return fenced.of(path);
            }
            Err(_) => {}
        }
        fenced.of(path)?;
        released.map(|_| ()).of(path)
    }

    /// Leaves the release to the service thread, which does it once these nodes are evicted or have left.
    fn leave_to_service(&mut self, lost: Vec<NodeId>) -> Result<()> {
        let object = &self.locks.object;
        let lock = HeldLock { word: self.lock.word, held: self.held(), _open: object.hold() };
        self.holding.end();
        let release = move |endpoint: &Endpoint| lock.release(endpoint);
        release_later(object.node(), self.endpoint, lost, release).of(object.path())
    }

    /// Posts the release. From here on the lock is released, or its home is gone.
    #[inline]
    fn posts_release(&mut self) -> Op<'a, u64> {
        self.holding.end();
        self.endpoint.faa(self.lock.word, self.held().wrapping_neg())
    }

    /// The release has found this in the word.
    #[inline]
    fn saw_release(&self, before: u64) {
        self.lock.seen.store(before.wrapping_sub(self.held()));
    }

    /// The value that the release subtracts from the word.
    #[inline]
    fn held(&self) -> u64 {
        // Only the holder changes the mark while it is alive.
        self.locks.me + if self.holding.is_repaired() { DIED } else { 0 }
    }

    #[cold]
    fn release_in_drop(&mut self) {
        self.holding.end();
        let released = self.endpoint.block_on(Guard { ..*self }.unlock());
        if let Err(error) = released {
            tracing::error!("releasing a lock in a drop: {}", Error::of(error, self.locks.object.path()));
        }
    }

    /// Leaves the lock taken, to be released by another endpoint of this node, such as the service thread's. The caller
    /// has fenced all puts that must be visible by then.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let node = farfield::Node::builder().start()?;
    /// # let (ep, mutex) = (node.endpoint()?, farfield::Mutex::open(&node, "account", node.id())?);
    /// use farfield::toolkit::Progress;
    /// let lock = ep.block_on(mutex.lock(&ep))?.hand_over(); // for a poller, which has another endpoint
    /// assert!(ep.block_on(mutex.try_lock(&ep))?.is_none());
    /// assert_eq!(lock.release(&ep), Progress::Done);
    /// # Ok(()) }
    /// ```
    pub fn hand_over(mut self) -> HeldLock {
        self.holding.end();
        HeldLock { word: self.lock.word, held: self.held(), _open: self.locks.object.hold() }
    }
}

impl<'a> Guard<'a> {
    /// Whether a holder has died while it held the lock, and [`Guard::clear_poison`] has not been called since: the
    /// protected data may be half-written. The dead node's earlier puts are visible, or never will be.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let node = farfield::Node::builder().start()?;
    /// # let (ep, mutex) = (node.endpoint()?, farfield::Mutex::open(&node, "account", node.id())?);
    /// let guard = ep.block_on(mutex.lock(&ep))?;
    /// assert!(!guard.is_poisoned()); // no holder has died
    /// # Ok(()) }
    /// ```
    pub fn is_poisoned(&self) -> bool {
        self.holding.is_poisoned()
    }

    /// Declares that the protected data is whole: the next holder is not warned of a death. Without this call, the
    /// next one is warned, too.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let node = farfield::Node::builder().start()?;
    /// # let mutex = node.reopen("account", |again| farfield::Mutex::open(&node, again.path(), node.id()))?;
    /// # let ep = node.endpoint()?;
    /// let mut guard = ep.block_on(mutex.lock(&ep))?;
    /// assert!(guard.is_poisoned()); // the lock was reopened, as after a death
    /// guard.clear_poison();
    /// ep.block_on(guard.unlock())?;
    /// assert!(!ep.block_on(mutex.lock(&ep))?.is_poisoned());
    /// # Ok(()) }
    /// ```
    pub fn clear_poison(&mut self) {
        self.holding.repair();
    }

    /// The endpoint of the holder. Its puts before the release are visible to the next holder.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let node = farfield::Node::builder().start()?;
    /// # let (ep, mutex) = (node.endpoint()?, farfield::Mutex::open(&node, "account", node.id())?);
    /// # let balance = node.alloc(farfield::fabric::GroupKey::DATA, 8)?.remote::<u64>(0);
    /// let guard = ep.block_on(mutex.lock(&ep))?;
    /// guard.endpoint().put_value(balance, 100).detach()?;
    /// ep.block_on(guard.unlock())?; // the next holder sees it
    /// # Ok(()) }
    /// ```
    pub fn endpoint(&self) -> &'a Endpoint {
        self.endpoint
    }
}

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.holding.is_held() {
            self.release_in_drop();
        }
    }
}

/// A held lock without its guard ([`Guard::hand_over`]). It keeps the object open. Dropping it does not release the
/// lock.
///
/// ```
/// # fn main() -> farfield::Result<()> {
/// # let node = farfield::Node::builder().start()?;
/// # let (ep, mutex) = (node.endpoint()?, farfield::Mutex::open(&node, "account", node.id())?);
/// let lock = ep.block_on(mutex.lock(&ep))?.hand_over();
/// drop(lock); // without `HeldLock::release`
/// assert!(ep.block_on(mutex.try_lock(&ep))?.is_none()); // it stays taken
/// # Ok(()) }
/// ```
pub struct HeldLock {
    word: RemotePtr<u64>,
    held: u64,
    _open: Hold,
}

impl HeldLock {
    /// Releases it. Returns [`Progress::Done`] if it is released, or lost with its home node. Otherwise the release
    /// was refused.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let node = farfield::Node::builder().start()?;
    /// # let (ep, mutex) = (node.endpoint()?, farfield::Mutex::open(&node, "account", node.id())?);
    /// let lock = ep.block_on(mutex.lock(&ep))?.hand_over();
    /// while lock.release(&ep) != farfield::toolkit::Progress::Done {} // refused: once more
    /// assert!(ep.block_on(mutex.try_lock(&ep))?.is_some());
    /// # Ok(()) }
    /// ```
    pub fn release(&self, endpoint: &Endpoint) -> Progress {
        release::add_once(endpoint, self.word, self.held.wrapping_neg())
    }
}
