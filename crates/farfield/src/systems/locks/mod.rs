//! Locks for asymmetric memory: ALock, the rivals that it is measured against, and what is built of them.
//!
//! All of them are arrays of locks spread over nodes, behind one trait: [`LockArray`].
//!
//! | kind | who waits | order | on the lock's node |
//! |---|---|---|---|
//! | [`ALockArray`] | on its own node, but for the heads of two queues | first come, first served in each of two cohorts, which take turns | CPU only |
//! | [`MutexArray`] | looks at the lock's word again and again | first come, first served, with bounded bypass | through the NIC |
//! | [`SpinLockArray`] | tries again and again, with a back-off | none: one may starve | through the NIC |
//! | [`McsLockArray`] | on its own node | first come, first served | through the NIC |
//!
//! [`LockTable`] is any of them, chosen when it is opened. The page `docs/locks.md` says which is good for what, and what has been
//! checked of them.

use core::future::Future;

use farfield_fabric::{Endpoint, GroupKey, Instant, NodeId, Region, RemotePtr, memory_fence};

use crate::error::{Of, Result};
use crate::node::{Node, Object, Regions, Spec};
use crate::objects::mutex::{Guard, MutexArray};

pub mod alock;
mod descriptor;
mod local;
pub mod mcs;
mod queue;
pub mod spin;
mod supply;
pub mod table;

pub use alock::{ALock, ALockArray, ALockGuard, ALockOptions};
pub use mcs::{McsGuard, McsLockArray};
pub use spin::{SpinGuard, SpinLockArray};
pub use table::{LockKind, LockOptions, LockTable, TableGuard};

/// A number of locks of one kind, spread over nodes.
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
    /// What holds one of the locks.
    type Guard<'a>: LockGuard
    where
        Self: 'a;

    /// How many there are.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The node that lock `index` lies on.
    ///
    /// # Panics
    /// If there is no such lock, as indexing a slice does.
    fn home(&self, index: usize) -> NodeId;

    /// Takes lock `index`, waiting as long as the endpoint's timeout.
    ///
    /// # Errors
    /// A timeout, or the home node is gone.
    ///
    /// # Panics
    /// If there is no such lock, as indexing a slice does.
    fn lock<'a>(&'a self, endpoint: &'a Endpoint, index: usize) -> impl Future<Output = Result<Self::Guard<'a>>> {
        self.lock_deadline(endpoint, index, endpoint.deadline())
    }

    /// [`LockArray::lock`] with a deadline.
    ///
    /// # Errors
    /// As `lock`.
    fn lock_deadline<'a>(
        &'a self,
        endpoint: &'a Endpoint,
        index: usize,
        deadline: Instant,
    ) -> impl Future<Output = Result<Self::Guard<'a>>>;

    /// Takes lock `index` if that can be done without waiting for anybody.
    ///
    /// # Errors
    /// The home node is gone.
    fn try_lock<'a>(
        &'a self,
        endpoint: &'a Endpoint,
        index: usize,
    ) -> impl Future<Output = Result<Option<Self::Guard<'a>>>>;
}

/// A lock is held as long as this lives.
pub trait LockGuard {
    /// Makes the holder's writes visible everywhere, then releases the lock.
    ///
    /// # Errors
    /// The lock's home is gone, and the lock with it. Or a node that was written to does not answer: the lock is released
    /// when that node is gone, or taken from this one when it is this one that goes. Or it cannot be made sure that what was
    /// written is visible: the lock stays taken.
    fn unlock(self) -> impl Future<Output = Result<()>>;

    /// Whether a holder may have died while it held the lock, and nobody has said [`LockGuard::repaired`] since: what the
    /// lock protects may be half-written. What the dead had put before is visible, or never will be.
    fn is_after_death(&self) -> bool;

    /// What the lock protects is whole: the next holder is told of no death. Without it, the next one is told, too.
    fn repaired(&mut self);
}

impl LockArray for MutexArray {
    type Guard<'a> = Guard<'a>;

    fn len(&self) -> usize {
        self.len()
    }

    fn home(&self, index: usize) -> NodeId {
        self.home(index)
    }

    async fn lock_deadline<'a>(&'a self, endpoint: &'a Endpoint, index: usize, deadline: Instant) -> Result<Guard<'a>> {
        self.lock_deadline(endpoint, index, deadline).await
    }

    async fn try_lock<'a>(&'a self, endpoint: &'a Endpoint, index: usize) -> Result<Option<Guard<'a>>> {
        self.try_lock(endpoint, index).await
    }
}

impl LockGuard for Guard<'_> {
    async fn unlock(self) -> Result<()> {
        self.unlock().await
    }

    fn is_after_death(&self) -> bool {
        self.is_after_death()
    }

    fn repaired(&mut self) {
        self.repaired();
    }
}

/// What arrays of locks have in common: so many records of a few words each, on the homes in turn.
struct Spread {
    object: Object,
    count: usize,
    words_each: usize,
    /// Record `i` lies at `bases[i mod homes]` plus `i / homes` records.
    bases: Vec<RemotePtr<u64>>,
    /// The records of this node, if it is a home and works on them itself.
    own: Option<Region>,
}

/// How an array of locks is opened.
struct Layout<'a> {
    path: &'a str,
    kind: &'static str,
    count: usize,
    words_each: usize,
    homes: Vec<NodeId>,
    /// Where the records lie: where threads wait for them, or where nobody does.
    group: GroupKey,
    /// What more has to be the same on all nodes.
    options: String,
    /// Whether a home's processor works on its records, besides operations.
    is_local: bool,
    /// More regions: of every participant, with their sizes, or of this node alone.
    more: Regions,
    expected: Vec<(String, u64)>,
    /// What word of a record, and with which value, says that a holder may have died.
    after_death: (usize, u64),
}

impl Spread {
    fn open(node: &Node, layout: Layout<'_>) -> Result<Spread> {
        let Layout { path, kind, count, words_each, homes, group, options, is_local, more, expected, after_death } =
            layout;
        let mut regions = more;
        let bytes = count.div_ceil(homes.len().max(1)).max(1) * words_each * 8;
        let mut record = vec![0; words_each];
        if node.is_reopening(path) {
            let (word, value) = after_death;
            record[word] = value;
        }
        let own = match (homes.contains(&node.id()), is_local) {
            (true, true) => {
                let own = regions.alloc("locks", group, bytes).of(path)?;
                if node.is_reopening(path) {
                    // Nobody knows where the records are yet: they are announced below.
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
        let spec = Spec {
            path: path.into(),
            kind,
            layout: format!("count={count}, homes={homes:?}{options}"),
            participants: node.members_for(path),
            takes_in: false,
            regions,
            expect: {
                let homes = homes.clone();
                Box::new(move |peer| {
                    let locks = homes.contains(&peer).then(|| ("locks".into(), bytes as u64));
                    locks.into_iter().chain(expected.iter().cloned()).collect()
                })
            },
        };
        let object = Object::open(node, spec)?;
        let bases = homes.into_iter().map(|home| object.remote(home, "locks")).collect::<Result<_>>()?;
        Ok(Spread { object, count, words_each, bases, own })
    }

    fn path(&self) -> &str {
        self.object.path()
    }

    fn node(&self) -> &Node {
        self.object.node()
    }

    /// An error if the locks were reopened.
    fn check_current(&self) -> Result<()> {
        self.object.check_current()
    }

    /// Where another region of each participant lies.
    fn regions(&self, name: &str) -> Result<Vec<(NodeId, RemotePtr<u64>)>> {
        let nodes = self.object.others().chain([self.node().id()]);
        nodes.map(|node| Ok((node, self.object.remote(node, name)?))).collect()
    }

    /// Where the record of a lock of this node lies in its region, in bytes.
    fn offset(&self, index: usize) -> usize {
        index / self.bases.len() * self.words_each * 8
    }

    /// The first word of a record.
    fn record(&self, index: usize) -> RemotePtr<u64> {
        assert!(index < self.count, "lock {index} of {}", self.count);
        self.bases[index % self.bases.len()].at(index / self.bases.len() * self.words_each)
    }
}
