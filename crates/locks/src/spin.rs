//! A spinlock: one word on a cache line of its own, taken by a remote compare-and-swap that is tried again and again.
//!
//! ```text
//! 63                                                13   12       11            0
//! ┌───────────────────────────────────────────────────┬──────────┬───────────────┐  holder: 0, or the holder's node plus one
//! │ 0                                                 │ died (1) │ holder (12)   │  died: a holder died, and nobody has
//! └───────────────────────────────────────────────────┴──────────┴───────────────┘        repaired what it left
//! ```
//!
//! A rival of ALock in its evaluation (section 6), with a back-off that doubles from [`BACKOFF_MIN`] to
//! [`BACKOFF_MAX`]. After a failed attempt, an operation waits for about that time before it tries again. Waiting
//! operations are not ordered, so one may starve. Threads on the home node use the NIC's loopback like all others.
//!
//! *Acquire.* The compare-and-swap has completed, so the holder's later reads follow it. *Release.* A global fence
//! first makes the holder's puts to other nodes visible. The releasing fetch-and-add follows its puts to the home on
//! the same queue pair.
//!
//! | call | round trips | operations |
//! |---|---|---|
//! | `lock`, free | 1 | 1 cas |
//! | `lock`, contended | 1 for each attempt | 1 cas for each attempt |
//! | `unlock`, d nodes put to, the home left out | 1 (d = 0) or 2 | at most d gets, 1 faa |
//!
//! *When the holder's node dies*, an operation that finds it [`MemberStatus::Evicted`] takes the lock from it, with the
//! mark. *A waiter* leaves nothing behind. *If the home dies*, the lock is lost with it.

use core::borrow::BorrowMut;
use core::future::Future;
use core::time::Duration;

use farfield_fabric::{self as fabric, Begun, Endpoint, GroupKey, Instant, NodeId, Op, RemotePtr};

use super::{Layout, LockArray, LockGuard, Spread, WORDS_OF_LINE, WaitLimit, in_order};
use farfield_core::toolkit::CancelGuard;
use farfield_core::toolkit::Regions;
use farfield_core::toolkit::release::{self, fence_at_once, fence_holder, release_later};
use farfield_core::toolkit::{Either, ErrorContext, Holding, Rest};
use farfield_core::{ErrorKind, Result};
use farfield_core::{MemberStatus, Node};

/// The first wait after a failed attempt.
///
/// ```
/// use farfield::locks::spin::{BACKOFF_MAX, BACKOFF_MIN};
/// let longer = |wait: &std::time::Duration| (*wait < BACKOFF_MAX).then(|| 2 * *wait);
/// let waits = std::iter::successors(Some(BACKOFF_MIN), longer);
/// assert_eq!(waits.count(), 9); // 1 µs, 2 µs, … 256 µs
/// ```
pub const BACKOFF_MIN: Duration = Duration::from_micros(1);
/// The longest wait.
///
/// ```
/// use farfield::locks::spin::{BACKOFF_MAX, BACKOFF_MIN};
/// assert_eq!(BACKOFF_MAX, BACKOFF_MIN * 2u32.pow(8)); // it doubles eight times
/// ```
pub const BACKOFF_MAX: Duration = Duration::from_micros(256);

const DIED: u64 = 1 << 12;

/// An array of spinlocks, spread over the nodes that open it, in order.
///
/// ```
/// use farfield::{LockArray, LockGuard};
/// # fn main() -> farfield::Result<()> {
/// let node = farfield::Node::builder().session("doc-spin").start()?;
/// let locks = farfield::SpinLockArray::open(&node, "stripes", 64)?;
/// let ep = node.endpoint()?;
/// let guard = ep.block_on(locks.lock(&ep, 7))?;
/// assert!(ep.block_on(locks.try_lock(&ep, 7))?.is_none());
/// ep.block_on(guard.unlock())?;
/// # Ok(()) }
/// ```
pub struct SpinLockArray {
    spread: Spread,
}

/// Holds a spinlock until it is dropped or unlocked.
///
/// ```
/// # use farfield::{LockArray, SpinGuard, SpinLockArray};
/// # let node = farfield::Node::builder().session("doc-spin-guard").start()?;
/// # let (locks, ep) = (SpinLockArray::open(&node, "stripes", 64)?, node.endpoint()?);
/// {
///     let _held: SpinGuard<'_> = ep.block_on(locks.lock(&ep, 7))?;
/// } // dropped: the lock is free
/// assert!(ep.block_on(locks.try_lock(&ep, 7))?.is_some());
/// # Ok::<(), farfield::Error>(())
/// ```
#[must_use = "the lock is released when the guard is dropped"]
pub struct SpinGuard<'a> {
    locks: &'a SpinLockArray,
    endpoint: &'a Endpoint,
    word: RemotePtr<u64>,
    holding: Holding,
}

fn holder(word: u64) -> Option<NodeId> {
    (word & (DIED - 1)).checked_sub(1).map(|node| NodeId(node as u16))
}

impl SpinLockArray {
    /// Opens `count` locks and waits for all nodes to do so.
    ///
    /// ```
    /// # use farfield::{LockArray, SpinLockArray};
    /// # let nodes = farfield::local_session(2)?;
    /// let locks = farfield::on_each(&nodes, |node| SpinLockArray::open(node, "stripes", 64))?;
    /// assert_eq!((locks[0].len(), locks[1].home(1)), (64, nodes[1].id()));
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// A node is missing, unreachable, or opens them differently; or memory is exhausted.
    pub fn open(node: &Node, path: &str, count: usize) -> Result<SpinLockArray> {
        SpinLockArray::open_among(node, path, &node.members_for(path), count)
    }

    /// Opens the locks among these nodes, which must name the same, and waits for them to do so. Lock `i` is on the one
    /// at `i mod nodes` of them, in the order of their numbers.
    ///
    /// ```
    /// # use farfield::{LockArray, SpinLockArray};
    /// # let nodes = farfield::local_session(3)?; let pair = [nodes[0].id(), nodes[1].id()];
    /// let open = |node: &farfield::Node| SpinLockArray::open_among(node, "stripes", &pair, 64);
    /// let locks = farfield::on_each(&nodes[..2], open)?; // the third node does not open them
    /// assert_eq!(locks[1].home(3), pair[1]);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As `open`, or this node is not among them.
    pub fn open_among(node: &Node, path: &str, participants: &[NodeId], count: usize) -> Result<SpinLockArray> {
        let layout = Layout {
            path,
            kind: "SpinLockArray",
            count,
            words_each: WORDS_OF_LINE,
            homes: in_order(participants),
            participants: in_order(participants),
            group: GroupKey::DATA,
            options: String::new(),
            is_local: false,
            more: Regions::new(node),
            expected: Vec::new(),
            after_death: (0, DIED),
        };
        Spread::open(node, layout).map(|spread| SpinLockArray { spread })
    }

    #[inline]
    fn me(&self) -> u64 {
        u64::from(self.spread.me.0) + 1
    }

    /// The word by which this node takes a lock that is in this state; none if its holder may still release it.
    fn taken(&self, word: u64) -> Option<u64> {
        let Some(holder) = holder(word) else { return Some(word | self.me()) };
        // Only once the holder is fenced can neither its puts nor its release land any more.
        let is_lost = self.spread.node().status_of(holder) == Some(MemberStatus::Evicted);
        is_lost.then_some(DIED | self.me())
    }

    /// Tries once to take the lock from this state. Returns the guard, or the actual state.
    async fn attempt<'a>(
        &'a self,
        endpoint: &'a Endpoint,
        word: RemotePtr<u64>,
        from: u64,
        taken: u64,
    ) -> Result<Result<SpinGuard<'a>, u64>> {
        let found = match endpoint.cas(word, from, taken).into_value() {
            Ok(found) => found,
            Err(take) => self.settle(endpoint, word, from, take).await.of(self.spread.path())?,
        };
        Ok(if found == from { Ok(self.guard(endpoint, word, taken)) } else { Err(found) })
    }

    /// Waits for a compare-and-swap that takes the lock. If it succeeds after its future was dropped, the lock is
    /// released again.
    fn settle<'a>(
        &'a self,
        endpoint: &'a Endpoint,
        word: RemotePtr<u64>,
        from: u64,
        take: Op<'a, u64>,
    ) -> impl Future<Output = fabric::Result<u64>> {
        let me = self.me();
        CancelGuard::new(endpoint, take, move |found| {
            if found == from {
                release::add(&self.spread.object, endpoint, word, me.wrapping_neg());
            }
        })
    }

    fn guard<'a>(&'a self, endpoint: &'a Endpoint, word: RemotePtr<u64>, taken: u64) -> SpinGuard<'a> {
        SpinGuard { locks: self, endpoint, word, holding: Holding::new(taken & DIED != 0) }
    }

    async fn wait_for<'a>(
        &'a self,
        endpoint: &'a Endpoint,
        word: RemotePtr<u64>,
        mut state: u64,
        deadline: Instant,
    ) -> Result<SpinGuard<'a>> {
        let path = self.spread.path();
        let start = endpoint.now();
        let mut backoff = BACKOFF_MIN;
        loop {
            if let Some(taken) = self.taken(state) {
                match self.attempt(endpoint, word, state, taken).await? {
                    Ok(guard) => return Ok(guard),
                    Err(found) => state = found,
                }
                continue; // perhaps only the guess was wrong
            }
            let holder = holder(state).expect("a lock that cannot be taken has a holder");
            let now = endpoint.now();
            // A dead holder will be fenced; a departed one never returns to release the lock.
            let gone = endpoint.check_alive(holder).err();
            let has_left =
                gone.as_ref().is_some_and(|error| matches!(error.kind(), fabric::ErrorKind::PeerLeft { .. }));
            if now >= deadline || has_left {
                // Read once more: the holder may have released the lock before it left.
                let found = endpoint.get(word).await.of(path)?;
                if has_left && found != state {
                    state = found;
                    continue;
                }
                if let Some(error) = gone {
                    return Err(error).of(path);
                }
                let missing = vec![holder];
                return Err(ErrorKind::Timeout { what: "the lock".into(), waited: now - start, missing }).of(path);
            }
            // Threads that fail together do not retry together: their counts differ, or their nodes.
            let draw = (endpoint.counts().atomics << 12 | self.me()).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
            let wait = backoff / 2 + (backoff / 2).mul_f64(draw as f64 / f64::from(u32::MAX));
            endpoint.sleep_until(deadline.min(now + wait)).await;
            backoff = BACKOFF_MAX.min(backoff * 2);
            state &= DIED; // the lock's state when it is free
        }
    }

    /// Takes a lock after the first attempt.
    async fn go_on<'a>(
        &'a self,
        endpoint: &'a Endpoint,
        word: RemotePtr<u64>,
        asked: core::result::Result<u64, impl Future<Output = fabric::Result<u64>>>,
        mut limit: impl BorrowMut<WaitLimit>,
    ) -> Result<Option<SpinGuard<'a>>> {
        let found = match asked {
            Ok(found) => found,
            Err(take) => take.await.of(self.spread.path())?,
        };
        if found == 0 {
            return Ok(Some(self.guard(endpoint, word, self.me())));
        }
        match limit.borrow_mut().begin(endpoint) {
            None => self.attempt_now(endpoint, word, found).await,
            Some(deadline) => self.wait_for(endpoint, word, found, deadline).await.map(Some),
        }
    }

    async fn attempt_now<'a>(
        &'a self,
        endpoint: &'a Endpoint,
        word: RemotePtr<u64>,
        mut state: u64,
    ) -> Result<Option<SpinGuard<'a>>> {
        // Other operations may take and release it between the attempts; after a few it counts as taken.
        for _ in 0..3 {
            let Some(taken) = self.taken(state) else { break };
            match self.attempt(endpoint, word, state, taken).await? {
                Ok(guard) => return Ok(Some(guard)),
                Err(found) => state = found,
            }
        }
        Ok(None)
    }
}

impl SpinLockArray {
    /// [`LockArray::begin`] on locks that are current.
    #[inline(always)]
    fn takes<'a, L: BorrowMut<WaitLimit>>(
        &'a self,
        endpoint: &'a Endpoint,
        index: usize,
        limit: L,
    ) -> Result<Begun<SpinGuard<'a>, impl Rest<Option<SpinGuard<'a>>> + use<'a, L>>> {
        let word = self.spread.record(index);
        let asked = match endpoint.cas(word, 0, self.me()).into_value() {
            Ok(0) => return Ok(Ok(self.guard(endpoint, word, self.me()))),
            Ok(found) => Ok(found),
            Err(take) => Err(self.settle(endpoint, word, 0, take)),
        };
        Ok(Err(endpoint.boxed(self.go_on(endpoint, word, asked, limit))))
    }
}

impl LockArray for SpinLockArray {
    type Guard<'a> = SpinGuard<'a>;

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
    ) -> Result<Begun<SpinGuard<'a>, impl Rest<Option<SpinGuard<'a>>>>> {
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

impl<'a> SpinGuard<'a> {
    /// The amount that the release subtracts from the word.
    fn held(&self) -> u64 {
        self.locks.me() + if self.holding.is_repaired() { DIED } else { 0 }
    }

    /// Posts the release. From here on the lock is released, or its home is unreachable.
    #[inline]
    fn posts_release(&mut self) -> Op<'a, u64> {
        self.holding.end();
        self.endpoint.faa(self.word, self.held().wrapping_neg())
    }

    /// If this future is dropped before the release is done or left to the service thread, `holding` says so. When it
    /// returns, the caller ends the guard. `posted` is the release if it is posted already.
    async fn release(&mut self, posted: Option<fabric::Result<Op<'a, u64>>>) -> Result<()> {
        let (path, node, home) = (self.locks.spread.path(), self.locks.spread.node(), self.word.node());
        let (word, held) = (self.word, self.held());
        let posted = match posted {
            Some(posted) => posted,
            None => {
                let lost = fence_holder(node, self.endpoint, |node| node == home).await.of(path)?;
                if !lost.is_empty() {
                    return self.leave_to_service(lost);
                }
                Ok(self.posts_release())
            }
        };
        let released = match posted {
            Ok(posted) => posted.await,
            Err(error) => Err(error),
        };
        match released {
            Err(error) if error.is_refused() => {
                // The service thread posts from another endpoint, so the exempt puts are made visible first.
                self.holding.resume();
                let lost = node.fence_live_nodes(self.endpoint, [home].into_iter()).await.of(path)?;
                if !lost.is_empty() {
                    return self.leave_to_service(lost);
                }
                release::add_later(&self.locks.spread.object, word, held.wrapping_neg());
                Ok(())
            }
            released => released.map(|_| ()).of(path),
        }
    }

    /// Leaves the release to the service thread, which does it once these nodes are evicted or have left.
    fn leave_to_service(&self, lost: Vec<NodeId>) -> Result<()> {
        let (spread, word, held) = (&self.locks.spread, self.word, self.held());
        let open = spread.object.hold();
        let release = move |endpoint: &Endpoint| {
            let _open = &open;
            release::add_once(endpoint, word, held.wrapping_neg())
        };
        release_later(spread.node(), self.endpoint, lost, release).of(spread.path())
    }

    #[cold]
    fn release_in_drop(&mut self) {
        self.holding.end();
        if let Err(error) = self.endpoint.block_on(self.release(None)) {
            tracing::error!("releasing a lock in a drop: {error}");
        }
    }

    /// [`LockGuard::unlock`] where it has to wait.
    async fn unlock_on(mut self, posted: Option<fabric::Result<Op<'a, u64>>>) -> Result<()> {
        let released = self.release(posted).await;
        self.holding.end();
        released
    }
}

impl LockGuard for SpinGuard<'_> {
    #[inline(always)]
    fn begin_unlock(mut self) -> Result<Begun<(), impl Rest<()>>> {
        let (endpoint, home) = (self.endpoint, self.word.node());
        let mut posted = None;
        if fence_at_once(self.locks.spread.node(), endpoint, Some(home)) {
            match self.posts_release().into_value() {
                Ok(_) => return Ok(Ok(())),
                Err(release) => posted = Some(release.accepted()),
            }
        }
        if let Some(Err(error)) = &posted
            && error.is_refused()
        {
            self.holding.resume(); // until the rest has left it to the service thread
        }
        Ok(Err(endpoint.boxed(self.unlock_on(posted))))
    }

    fn is_poisoned(&self) -> bool {
        self.holding.is_poisoned()
    }

    fn clear_poison(&mut self) {
        self.holding.repair();
    }
}

impl Drop for SpinGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.holding.is_held() {
            self.release_in_drop();
        }
    }
}
