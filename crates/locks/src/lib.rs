//! Locks for asymmetric memory: ALock, the rivals of its evaluation, and a table of any of them.
//!
//! All of them are arrays of locks spread over nodes, behind one trait: [`LockArray`].
//!
//! | kind | waiting | order | on the lock's node |
//! |---|---|---|---|
//! | [`ALockArray`] | on its own node, but for the heads of two queues | first come, first served in each of two cohorts, which take turns | CPU only |
//! | [`MutexArray`] | polls the lock's word | first come, first served, with bounded bypass | through the NIC |
//! | [`SpinLockArray`] | tries again and again, with a back-off | none: an operation may starve | through the NIC |
//! | [`McsLockArray`] | on its own node | first come, first served | through the NIC |
//!
//! [`LockTable`] holds any of them; the kind is chosen when it is opened. The page `docs/locks.md` explains which kind
//! suits which purpose, and how each has been checked.

#![forbid(unsafe_code)]

use core::borrow::BorrowMut;
use core::future::Future;

use farfield_fabric::{Attempt, Begun, Endpoint, GroupKey, Instant, NodeId, Region, RemotePtr, memory_fence};

use farfield_core::Node;
use farfield_core::Result;
pub use farfield_core::WaitLimit;
use farfield_core::toolkit::ErrorContext;
use farfield_core::toolkit::{
    Object, ObjectBuilder, Participants, Regions, Rest, Timed, Waits, at_least_one, region_bytes,
};
use farfield_core::{Guard, MutexArray};

#[cfg(any(not(seeded), clippy, doc, rust_analyzer))]
pub mod alock;
mod descriptor;
#[cfg(any(not(seeded), clippy, doc, rust_analyzer))]
mod entry;
mod grant;
mod left;
#[cfg(any(not(seeded), clippy, doc, rust_analyzer))]
mod local;
#[cfg(any(not(seeded), clippy, doc, rust_analyzer))]
pub mod mcs;
pub mod mutants;
mod number_pool;
#[cfg(any(not(seeded), clippy, doc, rust_analyzer))]
mod queue;
// The unit tests run none of them, and are built sooner without.
#[cfg(all(feature = "scenarios", not(test)))]
pub mod scenarios;
#[cfg(any(not(seeded), clippy, doc, rust_analyzer))]
pub mod spin;
#[cfg(any(not(seeded), clippy, doc, rust_analyzer))]
mod survey;
pub mod table;

// Where the seeded bugs are on, copies of the modules that have a `cfg(any(not(seeded), …))` (`mutants`).
#[cfg(all(seeded, not(any(clippy, doc, rust_analyzer))))]
include!(concat!(env!("OUT_DIR"), "/seeded.rs"));

pub use alock::{ALock, ALockArray, ALockGuard, ALockOptions};
pub use mcs::{McsGuard, McsLockArray};
pub use spin::{SpinGuard, SpinLockArray};
pub use table::{LockKind, LockOptions, LockTable, TableGuard};

/// An array of locks of one kind, spread over nodes.
///
/// ```
/// use farfield::{Endpoint, LockArray, LockGuard, Result};
///
/// async fn in_turn<L: LockArray>(locks: &L, ep: &Endpoint, index: usize) -> Result<()> {
///     let guard = locks.lock(ep, index).await?;
///     // … work on what it protects …
///     guard.unlock().await
/// }
/// ```
pub trait LockArray {
    /// The guard of a held lock.
    type Guard<'a>: LockGuard
    where
        Self: 'a;

    /// The number of locks.
    ///
    /// ```
    /// # use farfield::{LockArray, SpinLockArray};
    /// # let node = farfield::Node::builder().start()?;
    /// let locks = SpinLockArray::open(&node, "locks", 8)?;
    /// assert_eq!(locks.len(), 8);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    fn len(&self) -> usize;

    /// Whether there are no locks.
    ///
    /// ```
    /// # use farfield::{LockArray, SpinLockArray};
    /// # let node = farfield::Node::builder().start()?;
    /// let locks = SpinLockArray::open(&node, "locks", 8)?;
    /// assert!(!locks.is_empty());
    /// # Ok::<(), farfield::Error>(())
    /// ```
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The home node of lock `index`.
    ///
    /// ```
    /// # use farfield::{LockArray, LockGuard, SpinLockArray};
    /// # let nodes = farfield::local_session(2)?;
    /// # let locks = farfield::on_each(&nodes, |node| SpinLockArray::open(node, "homes", 8))?;
    /// # let (here, there) = (nodes[0].endpoint()?, nodes[1].endpoint()?);
    /// assert_eq!(locks[0].home(6), nodes[0].id()); // the locks are on the nodes in turn
    /// assert_eq!(locks[0].home(7), nodes[1].id());
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Panics
    /// If there is no such lock, as indexing a slice does.
    fn home(&self, index: usize) -> NodeId;

    /// Takes lock `index`, waiting as long as the endpoint's timeout.
    ///
    /// ```
    /// # use farfield::{LockArray, LockGuard, SpinLockArray};
    /// # let nodes = farfield::local_session(2)?;
    /// # let locks = farfield::on_each(&nodes, |node| SpinLockArray::open(node, "lock", 8))?;
    /// # let (here, there) = (nodes[0].endpoint()?, nodes[1].endpoint()?);
    /// let guard = here.block_on(locks[0].lock(&here, 3))?;
    /// assert!(there.block_on(locks[1].try_lock(&there, 3))?.is_none()); // held by the other node
    /// here.block_on(guard.unlock())?;
    /// let guard = there.block_on(locks[1].lock(&there, 3))?;
    /// # drop(guard);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// A timeout, or the home node is unreachable.
    ///
    /// # Panics
    /// If there is no such lock, as indexing a slice does.
    fn lock<'a>(&'a self, endpoint: &'a Endpoint, index: usize) -> impl Future<Output = Result<Self::Guard<'a>>> {
        Attempt::new(move || Ok(self.begin(endpoint, index, WaitLimit::Timeout)?.map_err(Waits)))
    }

    /// [`LockArray::lock`] with a deadline.
    ///
    /// ```
    /// # use farfield::{LockArray, LockGuard, SpinLockArray};
    /// # let nodes = farfield::local_session(2)?;
    /// # let locks = farfield::on_each(&nodes, |node| SpinLockArray::open(node, "deadline", 8))?;
    /// # let (here, there) = (nodes[0].endpoint()?, nodes[1].endpoint()?);
    /// let held = here.block_on(locks[0].lock(&here, 3))?;
    /// let soon = there.now() + std::time::Duration::from_millis(20);
    /// let late = there.block_on(locks[1].lock_deadline(&there, 3, soon)).err().unwrap();
    /// assert!(late.is_timeout());
    /// # drop(held);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As `lock`.
    fn lock_deadline<'a>(
        &'a self,
        endpoint: &'a Endpoint,
        index: usize,
        deadline: Instant,
    ) -> impl Future<Output = Result<Self::Guard<'a>>> {
        Attempt::new(move || Ok(self.begin(endpoint, index, WaitLimit::Deadline(deadline))?.map_err(Waits)))
    }

    /// Takes lock `index` if that is possible without waiting for another operation. If the holder has died, the lock
    /// may count as held until an operation that waits has taken it over.
    ///
    /// ```
    /// # use farfield::{LockArray, LockGuard, SpinLockArray};
    /// # let nodes = farfield::local_session(2)?;
    /// # let locks = farfield::on_each(&nodes, |node| SpinLockArray::open(node, "try", 8))?;
    /// # let (here, there) = (nodes[0].endpoint()?, nodes[1].endpoint()?);
    /// let held = here.block_on(locks[0].try_lock(&here, 3))?;
    /// assert!(held.is_some() && there.block_on(locks[1].try_lock(&there, 3))?.is_none());
    /// # drop(held);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// The home node is unreachable.
    fn try_lock<'a>(
        &'a self,
        endpoint: &'a Endpoint,
        index: usize,
    ) -> impl Future<Output = Result<Option<Self::Guard<'a>>>> {
        Attempt::new(move || Ok(self.begin(endpoint, index, WaitLimit::Now)?.map(Some)))
    }

    /// Takes lock `index`, waiting until the limit. The first wait sets the deadline of [`WaitLimit::Timeout`]:
    /// operations that are given the same limit, one after the other, share it.
    ///
    /// ```
    /// # use farfield::{LockArray, LockGuard, SpinLockArray, WaitLimit};
    /// # let nodes = farfield::local_session(2)?;
    /// # let locks = farfield::on_each(&nodes, |node| SpinLockArray::open(node, "acquire", 8))?;
    /// # let (here, there) = (nodes[0].endpoint()?, nodes[1].endpoint()?);
    /// let held = here.block_on(locks[0].acquire(&here, 3, &mut WaitLimit::Timeout))?;
    /// assert!(held.is_some() && there.block_on(locks[1].acquire(&there, 3, &mut WaitLimit::Now))?.is_none());
    /// # drop(held);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// Returns none only with [`WaitLimit::Now`].
    ///
    /// # Errors
    /// As `lock`.
    ///
    /// # Panics
    /// As `lock`.
    fn acquire<'a>(
        &'a self,
        endpoint: &'a Endpoint,
        index: usize,
        limit: &mut WaitLimit,
    ) -> impl Future<Output = Result<Option<Self::Guard<'a>>>> {
        Attempt::new(move || Ok(self.begin(endpoint, index, limit)?.map(Some)))
    }

    /// Begins to take lock `index`: takes it if it is free and the fabric completes operations at once. Otherwise it
    /// returns the rest of the call, which waits until the limit; with nothing only under [`WaitLimit::Now`]. If the
    /// rest is dropped, the lock is not taken. The other calls are made of this one, which a kind of lock implements.
    ///
    /// ```
    /// use farfield::{Endpoint, LockArray, Result, WaitLimit};
    ///
    /// /// Takes several locks, which must be in ascending order.
    /// async fn take<'a, L: LockArray>(locks: &'a L, ep: &'a Endpoint, indices: &[usize]) -> Result<Vec<L::Guard<'a>>> {
    ///     let (mut limit, mut held) = (WaitLimit::Timeout, Vec::new());
    ///     for index in indices {
    ///         held.extend(match locks.begin(ep, *index, &mut limit)? {
    ///             Ok(guard) => Some(guard), // without a future
    ///             Err(rest) => rest.await?,
    ///         });
    ///     }
    ///     Ok(held)
    /// }
    /// ```
    ///
    /// # Errors
    /// As `lock`.
    ///
    /// # Panics
    /// As `lock`.
    fn begin<'a, L: BorrowMut<WaitLimit>>(
        &'a self,
        endpoint: &'a Endpoint,
        index: usize,
        limit: L,
    ) -> Result<Begun<Self::Guard<'a>, impl Rest<Option<Self::Guard<'a>>>>>;
}

/// Holds a lock until it is dropped or unlocked.
///
/// ```
/// use farfield::{LockGuard, Result};
///
/// async fn leave(mut guard: impl LockGuard) -> Result<()> {
///     if guard.is_poisoned() {
///         // … check and repair what the lock protects …
///         guard.clear_poison();
///     }
///     guard.unlock().await
/// }
/// ```
pub trait LockGuard {
    /// Releases the lock, so that the next holder sees all writes of this one, on whichever node.
    ///
    /// They are visible everywhere before the release, except for puts to the node to which the release itself is
    /// posted: the lock's, or the next holder's. Those land before it, perhaps after this call has returned. If this
    /// node dies just then, they may be lost along with the release.
    ///
    /// ```
    /// # use farfield::{LockArray, LockGuard, SpinLockArray};
    /// # let nodes = farfield::local_session(2)?;
    /// # let locks = farfield::on_each(&nodes, |node| SpinLockArray::open(node, "unlock", 8))?;
    /// # let word = nodes[1].alloc(farfield::fabric::GroupKey::DATA, 8)?;
    /// # let (here, there) = (nodes[0].endpoint()?, nodes[1].endpoint()?);
    /// let guard = here.block_on(locks[0].lock(&here, 3))?;
    /// here.put_value(word.remote(0), 7).detach()?; // under way
    /// here.block_on(guard.unlock())?;
    /// assert_eq!(word.word(0).load(), 7); // the unlock has made it visible
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// The lock's home is unreachable, and the lock is lost with it. Or a node that the holder wrote to does not
    /// answer: the lock is released once that node has failed or left, or is taken from this node if this one is
    /// evicted. Or the holder's writes cannot be made visible: the lock stays taken.
    fn unlock(self) -> impl Future<Output = Result<()>>
    where
        Self: Sized,
    {
        Attempt::new(move || self.begin_unlock())
    }

    /// Begins [`LockGuard::unlock`]: does it where that needs no wait. Otherwise it returns the rest of the call. If
    /// that is dropped, the lock is released all the same, as when a guard is dropped.
    ///
    /// ```
    /// # use farfield::{LockArray, LockGuard, SpinLockArray};
    /// # let node = farfield::Node::builder().start()?;
    /// # let (ep, locks) = (node.endpoint()?, SpinLockArray::open(&node, "locks", 8)?);
    /// let held = [3, 5].map(|index| ep.block_on(locks.lock(&ep, index)).unwrap());
    /// let rest = held.map(LockGuard::begin_unlock); // the releases of both are posted
    /// for rest in rest {
    ///     if let Err(rest) = rest? {
    ///         ep.block_on(rest)?;
    ///     }
    /// }
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As `unlock`.
    fn begin_unlock(self) -> Result<Begun<(), impl Rest<()>>>;

    /// Whether a holder may have died while it held the lock, and [`LockGuard::clear_poison`] was not called since. If
    /// so, the protected data may be half-written. Each put of the dead holder is visible, or never will be.
    ///
    /// ```
    /// # use farfield::{LockArray, LockGuard, SpinLockArray};
    /// # let node = farfield::Node::builder().session("doc-locks-poisoned").start()?;
    /// # let ep = node.endpoint()?;
    /// # let locks = SpinLockArray::open(&node, "locks", 8)?;
    /// assert!(!ep.block_on(locks.lock(&ep, 3))?.is_poisoned());
    /// # drop(locks);
    /// // Reopened locks are marked: a member that has died may have held them.
    /// let locks = node.reopen("locks", |again| SpinLockArray::open(&node, again.path(), 8))?;
    /// assert!(ep.block_on(locks.lock(&ep, 3))?.is_poisoned());
    /// # Ok::<(), farfield::Error>(())
    /// ```
    fn is_poisoned(&self) -> bool;

    /// Declares that the protected data is whole, so that the next holder is not warned of a death. Without this
    /// call, the next holder is warned, too.
    ///
    /// ```
    /// # use farfield::{LockArray, LockGuard, SpinLockArray};
    /// # let node = farfield::Node::builder().session("doc-locks-clear").start()?;
    /// # let ep = node.endpoint()?;
    /// # drop(SpinLockArray::open(&node, "locks", 8)?);
    /// let locks = node.reopen("locks", |again| SpinLockArray::open(&node, again.path(), 8))?;
    /// let mut guard = ep.block_on(locks.lock(&ep, 3))?;
    /// if guard.is_poisoned() {
    ///     guard.clear_poison(); // after the check and the repair of what the lock protects
    /// }
    /// ep.block_on(guard.unlock())?;
    /// assert!(!ep.block_on(locks.lock(&ep, 3))?.is_poisoned());
    /// # Ok::<(), farfield::Error>(())
    /// ```
    fn clear_poison(&mut self);
}

impl LockArray for MutexArray {
    type Guard<'a> = Guard<'a>;

    fn len(&self) -> usize {
        self.len()
    }

    fn home(&self, index: usize) -> NodeId {
        self.home(index)
    }

    #[inline(always)]
    fn begin<'a, L: BorrowMut<WaitLimit>>(
        &'a self,
        endpoint: &'a Endpoint,
        index: usize,
        limit: L,
    ) -> Result<Begun<Guard<'a>, impl Rest<Option<Guard<'a>>>>> {
        self.begin(endpoint, index, limit)
    }
}

impl LockGuard for Guard<'_> {
    #[inline(always)]
    fn begin_unlock(self) -> Result<Begun<(), impl Rest<()>>> {
        self.begin_unlock()
    }

    fn is_poisoned(&self) -> bool {
        self.is_poisoned()
    }

    fn clear_poison(&mut self) {
        self.clear_poison();
    }
}

/// These nodes, each once, in the order in which locks are spread over them.
fn in_order(participants: &[NodeId]) -> Vec<NodeId> {
    Participants::new(participants).iter().collect()
}

/// The common part of all arrays of locks: records of a few words each, on the homes in turn.
struct Spread {
    object: Object,
    me: NodeId,
    /// Record `i` is on home `i mod homes`, behind `i / homes` others.
    records: Box<[RemotePtr<u64>]>,
    /// The records of this node, if it is a home and works on them itself, and their first word.
    own: Option<(Region, RemotePtr<u64>)>,
}

/// How an array of locks is opened.
struct Layout<'a> {
    path: &'a str,
    kind: &'static str,
    count: usize,
    words_each: usize,
    homes: Vec<NodeId>,
    participants: Vec<NodeId>,
    /// The group of the records' regions: one on which threads wait, or one on which they do not.
    group: GroupKey,
    /// Further options that must be the same on all nodes.
    options: String,
    /// Whether a home's CPU accesses its records directly, besides remote operations.
    is_local: bool,
    /// Further regions: those of every participant, with their sizes, or of this node alone.
    more: Regions,
    expected: Vec<(String, u64)>,
    /// A word of a record, and the value of it that records a holder's possible death.
    after_death: (usize, u64),
}

/// The words of a cache line: records of all kinds of lock have one of their own, so that none suffers from its
/// neighbours' contention.
const WORDS_OF_LINE: usize = 8;

/// The calls, as they are measured.
const CALLS: [&str; 2] = ["lock", "try_lock"];
const LOCK: usize = 0;
const TRY_LOCK: usize = 1;

impl Spread {
    fn open(node: &Node, layout: Layout<'_>) -> Result<Spread> {
        let Layout {
            path,
            kind,
            count,
            words_each,
            homes,
            participants,
            group,
            options,
            is_local,
            more: mut regions,
            expected,
            after_death,
        } = layout;
        at_least_one(&[("count", count)]).of(path)?;
        let bytes = region_bytes(count.div_ceil(homes.len().max(1)), words_each, "the number of locks").of(path)?;
        let mut record = vec![0; words_each];
        if node.is_reopening(path) {
            let (word, value) = after_death;
            record[word] = value;
        }
        let own = match (homes.contains(&node.id()), is_local) {
            (true, true) => {
                let own = regions.alloc("locks", group, bytes).of(path)?;
                if node.is_reopening(path) {
                    // The records are not announced yet, so no other node accesses them.
                    let (word, value) = after_death;
                    (word..bytes / 8).step_by(words_each).for_each(|word| own.word(word * 8).store(value));
                    memory_fence();
                }
                Some(own)
            }
            (true, false) => {
                regions.alloc_words("locks", group, bytes / 8, &record).of(path)?;
                None
            }
            _ => None,
        };
        let homes_too = homes.clone();
        let expect = move |peer| {
            let locks = homes_too.contains(&peer).then(|| ("locks".into(), bytes as u64));
            locks.into_iter().chain(expected.iter().cloned()).collect()
        };
        let opening = ObjectBuilder::new(node, path, kind).layout(&format!("count={count}, homes={homes:?}{options}"));
        let opening = opening.participants(participants).regions(regions).require_regions(expect).calls(&CALLS);
        let object = opening.open()?;
        let bases: Vec<RemotePtr<u64>> =
            homes.into_iter().map(|home| object.remote(home, "locks")).collect::<Result<_>>()?;
        let record = |index: usize| bases[index % bases.len()].at(index / bases.len() * words_each);
        let own = match own {
            Some(own) => Some((own, object.remote(node.id(), "locks")?)),
            None => None,
        };
        Ok(Spread { object, me: node.id(), records: (0..count).map(record).collect(), own })
    }

    fn path(&self) -> &str {
        self.object.path()
    }

    fn node(&self) -> &Node {
        self.object.node()
    }

    /// Takes a lock of an object that is not plain ([`Object::is_plain`]): measured, unless it was reopened.
    #[cold]
    fn measure<'e, G, F>(&self, endpoint: &'e Endpoint, limit: WaitLimit, takes: F) -> Result<Timed<'e, F>>
    where
        F: Future<Output = Result<Option<G>>>,
    {
        let call = if limit == WaitLimit::Now { TRY_LOCK } else { LOCK };
        let timing = self.object.meter().start(endpoint, call);
        self.object.check_current().inspect_err(|error| timing.fail(endpoint, error))?;
        Ok(timing.rest(endpoint, takes))
    }

    /// Pointers to another region of each participant.
    fn regions(&self, name: &str) -> Result<Vec<(NodeId, RemotePtr<u64>)>> {
        let nodes = self.object.others().chain([self.node().id()]);
        nodes.map(|node| Ok((node, self.object.remote(node, name)?))).collect()
    }

    /// The number of locks.
    fn count(&self) -> usize {
        self.records.len()
    }

    /// The first word of a record.
    #[inline]
    fn record(&self, index: usize) -> RemotePtr<u64> {
        *self.records.get(index).unwrap_or_else(|| self.no_lock(index))
    }

    #[cold]
    #[inline(never)]
    fn no_lock(&self, index: usize) -> ! {
        panic!("lock {index} of {}", self.count())
    }
}

#[cfg(test)]
mod tests;
