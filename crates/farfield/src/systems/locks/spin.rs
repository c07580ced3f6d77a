//! A spinlock: one word, taken by a remote compare-and-swap that is tried again and again.
//!
//! ```text
//! 63                                                13   12       11            0
//! ┌───────────────────────────────────────────────────┬──────────┬───────────────┐  holder: 0, or the holder's node plus one
//! │ 0                                                 │ died (1) │ holder (12)   │  died: a holder died, and nobody has
//! └───────────────────────────────────────────────────┴──────────┴───────────────┘        repaired what it left
//! ```
//!
//! The rival of ALock's evaluation (section 6), with a back-off that doubles from [`BACKOFF_MIN`] to [`BACKOFF_MAX`]: who
//! has failed waits for so long, more or less, before it tries again. There is no order among those who wait: one may
//! starve. Threads on the home node go through the NIC's loopback as everybody does.
//!
//! *Acquire.* The compare-and-swap was waited for: what the holder reads afterwards comes after it.
//! *Release.* What the holder has put to other nodes is made visible first (a global fence); to the home, the fetch-and-add
//! that releases comes after it on the same queue pair.
//!
//! | call | round trips | operations |
//! |---|---|---|
//! | `lock`, free | 1 | 1 cas |
//! | `lock`, contended | 1 for each attempt | 1 cas for each attempt |
//! | `unlock`, d nodes put to, the home left out | 1 (d = 0) or 2 | at most d gets, 1 faa |
//!
//! *When the holder's node dies*, whoever finds it [`Standing::ShutOut`] takes the lock from it, with the mark. *A waiter*
//! has left nothing behind. *The home's*: the lock is gone with it.

use core::time::Duration;

use farfield_fabric::{self as fabric, Endpoint, GroupKey, Instant, NodeId, RemotePtr};

use super::{Layout, LockArray, LockGuard, Spread};
use crate::error::{ErrorKind, Of, Result};
use crate::mutants::{self, Mutant};
use crate::node::{Node, Regions, Standing};
use crate::objects::owed::{self, fence_holder, release_later};
use crate::objects::settle::Settle;

/// The first wait after an attempt that has failed.
pub const BACKOFF_MIN: Duration = Duration::from_micros(1);
/// The longest.
pub const BACKOFF_MAX: Duration = Duration::from_micros(256);

const DIED: u64 = 1 << 12;

/// A number of spinlocks, spread over the nodes that open them, in order.
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

/// A spinlock is held as long as this lives.
#[must_use = "the lock is released when the guard is dropped"]
pub struct SpinGuard<'a> {
    locks: &'a SpinLockArray,
    endpoint: &'a Endpoint,
    word: RemotePtr<u64>,
    is_held: bool,
    is_after_death: bool,
    is_repaired: bool,
}

fn holder(word: u64) -> Option<NodeId> {
    (word & (DIED - 1)).checked_sub(1).map(|node| NodeId(node as u16))
}

impl SpinLockArray {
    /// Opens `count` locks and waits for all nodes to do so.
    ///
    /// # Errors
    /// A node that is missing, gone, or opens them differently; no memory.
    pub fn open(node: &Node, path: &str, count: usize) -> Result<SpinLockArray> {
        let layout = Layout {
            path,
            kind: "SpinLockArray",
            count,
            words_each: 1,
            homes: node.members_for(path),
            group: GroupKey::DATA,
            options: String::new(),
            is_local: false,
            more: Regions::new(node),
            expected: Vec::new(),
            after_death: (0, DIED),
        };
        Spread::open(node, layout).map(|spread| SpinLockArray { spread })
    }

    fn me(&self) -> u64 {
        u64::from(self.spread.node().id().0) + 1
    }

    /// The word of a lock that is taken from this state of it; none if somebody holds it who may still release it.
    fn taken(&self, word: u64) -> Option<u64> {
        let Some(holder) = holder(word) else { return Some(word | self.me()) };
        // Only now can neither what it has put nor its release land any more.
        let is_lost = self.spread.node().standing_of(holder) == Standing::ShutOut;
        (is_lost && !mutants::is_on(Mutant::SpinHolderKept)).then_some(DIED | self.me())
    }

    /// One attempt to take the lock from this state: its guard, or the state that it is in.
    async fn attempt<'a>(
        &'a self,
        endpoint: &'a Endpoint,
        word: RemotePtr<u64>,
        from: u64,
        taken: u64,
    ) -> Result<Result<SpinGuard<'a>, u64>> {
        let me = self.me();
        // Taken for nobody, it is given back.
        let take = Settle::new(endpoint, endpoint.cas(word, from, taken), move |found| {
            if found == from {
                owed::add(&self.spread.object, endpoint, word, me.wrapping_neg());
            }
        });
        let found = take.await.of(self.spread.path())?;
        if found != from {
            return Ok(Err(found));
        }
        let is_after_death = taken & DIED != 0;
        Ok(Ok(SpinGuard { locks: self, endpoint, word, is_held: true, is_after_death, is_repaired: false }))
    }
}

impl LockArray for SpinLockArray {
    type Guard<'a> = SpinGuard<'a>;

    fn len(&self) -> usize {
        self.spread.count
    }

    fn home(&self, index: usize) -> NodeId {
        self.spread.record(index).node()
    }

    async fn lock_deadline<'a>(
        &'a self,
        endpoint: &'a Endpoint,
        index: usize,
        deadline: Instant,
    ) -> Result<SpinGuard<'a>> {
        self.spread.check_current()?;
        let path = self.spread.path();
        let word = self.spread.record(index);
        let start = endpoint.now();
        let (mut state, mut backoff) = (0, BACKOFF_MIN);
        loop {
            if let Some(taken) = self.taken(state) {
                match self.attempt(endpoint, word, state, taken).await? {
                    Ok(guard) => return Ok(guard),
                    Err(found) => state = found,
                }
                if self.taken(state).is_some() {
                    continue; // the guess was wrong, nothing else
                }
            }
            let holder = holder(state).expect("a lock that cannot be taken has a holder");
            let now = endpoint.now();
            // Who is dead will be shut out; who has left never comes back to release it.
            let gone = endpoint.check_alive(holder).err();
            let has_left =
                gone.as_ref().is_some_and(|error| matches!(error.kind(), fabric::ErrorKind::PeerLeft { .. }));
            if now >= deadline || has_left {
                // Looked at once more: who released it and then left has released it.
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
            // Threads that have failed together do not try together again: their counts differ, or their nodes.
            let draw = (endpoint.counts().atomics << 12 | self.me()).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
            let wait = backoff / 2 + (backoff / 2).mul_f64(draw as f64 / f64::from(u32::MAX));
            let _ = endpoint.wait_until(deadline.min(now + wait), || None::<()>).await;
            backoff = BACKOFF_MAX.min(backoff * 2);
            state &= DIED; // as it is when it is free
        }
    }

    async fn try_lock<'a>(&'a self, endpoint: &'a Endpoint, index: usize) -> Result<Option<SpinGuard<'a>>> {
        self.spread.check_current()?;
        let word = self.spread.record(index);
        let mut state = 0;
        // Somebody else may take and release it between the attempts; a few are enough to call it taken.
        for _ in 0..4 {
            let Some(taken) = self.taken(state) else { break };
            match self.attempt(endpoint, word, state, taken).await? {
                Ok(guard) => return Ok(Some(guard)),
                Err(found) => state = found,
            }
        }
        Ok(None)
    }
}

impl SpinGuard<'_> {
    /// What the release takes from the word.
    fn held(&self) -> u64 {
        self.locks.me() + if self.is_repaired { DIED } else { 0 }
    }

    async fn release(&mut self) -> Result<()> {
        let (path, node, home) = (self.locks.spread.path(), self.locks.spread.node(), self.word.node());
        let is_spared = |node| node == home || mutants::is_on(Mutant::SpinNoFence);
        let lost = fence_holder(node, self.endpoint, is_spared).await.of(path)?;
        let (word, held) = (self.word, self.held());
        if !lost.is_empty() {
            self.is_held = false;
            let open = self.locks.spread.object.hold();
            let release = move |endpoint: &Endpoint| {
                let _open = &open;
                owed::add_once(endpoint, word, held.wrapping_neg())
            };
            return release_later(node, self.endpoint, lost, release).of(path);
        }
        self.is_held = false; // from here on it is released, or its home is gone
        match self.endpoint.faa(word, held.wrapping_neg()).await {
            Err(error) if error.is_refused() => {
                // The service thread's comes from another endpoint: what was spared is made visible before.
                self.is_held = true;
                node.fence_living(self.endpoint, [home].into_iter()).await.of(path)?;
                self.is_held = false;
                owed::add_later(&self.locks.spread.object, word, held.wrapping_neg());
                Ok(())
            }
            released => released.map(|_| ()).of(path),
        }
    }
}

impl LockGuard for SpinGuard<'_> {
    async fn unlock(mut self) -> Result<()> {
        let released = self.release().await;
        self.is_held = false;
        released
    }

    fn is_after_death(&self) -> bool {
        self.is_after_death
    }

    fn repaired(&mut self) {
        self.is_repaired = self.is_after_death;
    }
}

impl Drop for SpinGuard<'_> {
    fn drop(&mut self) {
        if std::mem::take(&mut self.is_held)
            && let Err(error) = self.endpoint.block_on(self.release())
        {
            tracing::error!("releasing a lock in a drop: {error}");
        }
    }
}
