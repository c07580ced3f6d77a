//! A lock between operations of all nodes: first come, first served, with bounded bypass.
//!
//! One word on the home node, worked on by remote atomics only:
//!
//! ```text
//! 63           42 41            20 19       18         12 11            0
//! ┌──────────────┬────────────────┬──────────┬────────────┬───────────────┐   holder: 0, or the holder's node plus one
//! │ next (22)    │ serving (22)   │ died (1) │ bypass (7) │ holder (12)   │   died: a holder died, and nobody has
//! └──────────────┴────────────────┴──────────┴────────────┴───────────────┘         repaired what it left
//! ```
//!
//! A free lock is taken by one compare-and-swap. An operation that finds it held draws a ticket (fetch-and-add on
//! `next`), watches the word, and takes the lock by a compare-and-swap when it is free and `serving` is its ticket. A
//! newcomer may take a free lock ahead of waiting operations, at most [`BYPASS_MAX`] times in a row. The head of the
//! queue may be a thread that does not run, and strict order would make all others wait for it. So a ticket with k
//! others before it is served after at most (k + 1)·([`BYPASS_MAX`] + 1) critical sections. Release is one
//! fetch-and-add of −holder.
//!
//! *Acquire.* The holder has waited for the compare-and-swap, so its later reads follow it. *Release.* The holder's
//! puts to any node must be visible before the lock is seen free. A put's completion does not guarantee that. So the
//! release first waits for a get from every node that received a put of the holder's endpoint since it last read from
//! it (a global fence). The home node is left out: the release is a remote atomic on the same queue pair, and executes
//! after earlier puts to that node. The home is fenced, too, after puts to memory of a further group there
//! ([`GroupKey::class`]). The release waits for pending gets, which it could overtake. CPU writes precede any later
//! operation.
//!
//! The ticket belongs to the operation: several operations of one thread may want the same lock. An operation that is
//! dropped while it waits gives its ticket to the service thread, which passes the turn on. An operation that is
//! *forgotten* (`mem::forget`) keeps it, as a forgotten guard keeps the lock: others then time out.
//!
//! | call | round trips | operations |
//! |---|---|---|
//! | `lock`, free, nobody has queued since this node last had it | 1 | 1 cas |
//! | `lock`, free | 2 | 2 cas |
//! | `lock`, contended | 3 and more | cas, faa, a get for each look, cas |
//! | `unlock`, d nodes put to, the home left out | 1 (d = 0) or 2 | at most d gets, 1 faa |
//!
//! On the home node there are as many operations, and no round trips but for the fence.
//!
//! # When a node dies
//!
//! *The holder's.* An operation that finds the lock held by a node that is
//! [evicted](crate::MemberStatus::Evicted) frees it, by a
//! compare-and-swap that also sets `died`. It does not do so earlier: until then, puts of the dead node may still
//! land, and so may its release. The mark stays until a holder calls [`Guard::clear_poison`]. Until then
//! [`Guard::is_poisoned`] warns each holder that the protected data may be half-written. A holder that left
//! gracefully still holds the lock: an error names its node.
//!
//! *A waiter's.* Its turn is never taken. If a free lock has not been taken for [`STUCK_LONG`] and some node is dead
//! or departed, the waiting operations skip the turn. Each further turn is skipped after half the time, down to
//! [`STUCK_SHORT`], until none waits, since many operations of one node may have waited. An operation that was only
//! slow finds `serving` beyond its ticket and draws another: it has lost the turn, but the lock is not lost.
//!
//! *The home's.* The lock is lost with it; every call reports this and names the node. The survivors reopen it
//! ([`Node::reopen`]): then it is free, and marked as after a death. The mark is written before the address of the
//! word is announced.
//!
//! *A restarted node* may open a [`Mutex`] while the others have it open, if its home is alive.
//!
//! Source: LOCO's mutex; the bound on bypass, and all of this section, are ours.

mod abandoned;
mod guard;
mod single;
mod state;
mod taking;

use std::collections::HashMap;

use farfield_fabric::{GroupKey, LocalMutex, NodeId, RemotePtr, Word};

pub use self::guard::{Guard, HeldLock};
pub use self::single::Mutex;
pub use self::state::{BYPASS_MAX, STUCK_LONG, STUCK_SHORT};
use self::state::{DIED, Watch};
use crate::error::{ErrorContext, Result};
use crate::node::{Node, Object, ObjectBuilder, Regions};
use crate::objects::options::{at_least_one, region_bytes};
use crate::objects::participants::Participants;

/// A number of locks, spread over the nodes that open them, in order: the word of lock `i` is on node `i mod nodes`.
///
/// ```
/// # fn main() -> farfield::Result<()> {
/// let node = farfield::Node::builder().session("doc-locks").start()?;
/// let locks = farfield::MutexArray::open(&node, "stripes", 64)?;
/// let ep = node.endpoint()?;
/// let guard = ep.block_on(locks.lock(&ep, 7))?;
/// assert!(ep.block_on(locks.try_lock(&ep, 7))?.is_none());
/// ep.block_on(guard.unlock())?;
/// # Ok(()) }
/// ```
pub struct MutexArray {
    object: Object,
    /// This node adds this to a word while it holds the lock.
    me: u64,
    locks: Box<[Lock]>,
    /// Free locks that were not available without waiting.
    refused: LocalMutex<HashMap<usize, Watch>>,
    /// How many turns this node has skipped since the queue was last empty.
    passed_over: LocalMutex<HashMap<usize, u32>>,
}

/// What this node knows of a lock.
struct Lock {
    word: RemotePtr<u64>,
    /// The word's value when this node last saw it: the guess for the first compare-and-swap.
    seen: Word,
}

/// The calls, as they are measured.
const CALLS: [&str; 2] = ["lock", "try_lock"];
const LOCK: usize = 0;
const TRY_LOCK: usize = 1;

/// The words of a cache line.
const WORDS_OF_LINE: usize = 8;

impl MutexArray {
    /// Opens `count` locks, each on a cache line of its own, and waits for all nodes to do so.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let nodes = farfield::local_session(2)?;
    /// let locks = farfield::on_each(&nodes, |node| farfield::MutexArray::open(node, "stripes", 64))?;
    /// assert_eq!((locks[0].home(0), locks[0].home(1)), (nodes[0].id(), nodes[1].id()));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// A node that is missing, dead or departed, or that opens them differently; no memory.
    pub fn open(node: &Node, path: &str, count: usize) -> Result<MutexArray> {
        MutexArray::open_among(node, path, &node.members_for(path), count)
    }

    /// Opens the locks among these nodes, which must name the same, and waits for them to do so. The word of lock `i`
    /// is on the one at `i mod nodes` of them, in the order of their numbers.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let nodes = farfield::local_session(3)?;
    /// use farfield::{MutexArray, Node};
    /// let pair = [nodes[0].id(), nodes[2].id()];
    /// let open = |node: &Node| MutexArray::open_among(node, "stripes", &pair, 64);
    /// let locks = farfield::on_each(&[nodes[0].clone(), nodes[2].clone()], open)?; // the other does not open them
    /// assert_eq!((locks[0].home(0), locks[0].home(1)), (pair[0], pair[1]));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As `open`, or this node is not among them.
    pub fn open_among(node: &Node, path: &str, participants: &[NodeId], count: usize) -> Result<MutexArray> {
        let members: Vec<NodeId> = Participants::new(participants).iter().collect();
        let is_poisoned = node.is_reopening(path);
        MutexArray::open_on(node, path, count, WORDS_OF_LINE, members.clone(), members, is_poisoned)
    }

    /// [`MutexArray::open_among`] for an object that starts anew when it is reopened ([`Node::reopen`]): no lock is
    /// poisoned then, as there is nothing that a dead holder may have left half-written. The locks take a word each: an
    /// object may have many thousands of them.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let node = farfield::Node::builder().session("doc-unmarked").start()?;
    /// # let ep = node.endpoint()?;
    /// use farfield::MutexArray;
    /// let locks = node.reopen("cache", |again| {
    ///     let path = format!("{}/locks", again.path());
    ///     MutexArray::open_unmarked(&node, &path, again.members(), 64)
    /// })?;
    /// assert!(!ep.block_on(locks.lock(&ep, 7))?.is_poisoned());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As `open_among`.
    pub fn open_unmarked(node: &Node, path: &str, participants: &[NodeId], count: usize) -> Result<MutexArray> {
        let members: Vec<NodeId> = Participants::new(participants).iter().collect();
        MutexArray::open_on(node, path, count, 1, members.clone(), members, false)
    }

    fn open_on(
        node: &Node,
        path: &str,
        count: usize,
        words_each: usize,
        homes: Vec<NodeId>,
        participants: Vec<NodeId>,
        is_poisoned: bool,
    ) -> Result<MutexArray> {
        at_least_one(&[("count", count)]).of(path)?;
        let bytes = region_bytes(count.div_ceil(homes.len().max(1)), words_each, "the number of locks").of(path)?;
        let mut regions = Regions::new(node);
        if homes.contains(&node.id()) {
            let mut record = vec![0; words_each];
            record[0] = if is_poisoned { DIED } else { 0 };
            regions.alloc_words("tickets", GroupKey::DATA, bytes / 8, &record).of(path)?;
        }
        let homes_too = homes.clone();
        let expect =
            move |peer| if homes_too.contains(&peer) { vec![("tickets".into(), bytes as u64)] } else { vec![] };
        let opening = ObjectBuilder::new(node, path, "MutexArray").layout(&format!("count={count}, homes={homes:?}"));
        let opening = opening.participants(participants).regions(regions);
        let object = opening.require_regions(expect).takes_in_returned().calls(&CALLS).open()?;
        // The word of lock `i` is record `i / nodes` on the node at `i mod nodes`. Each has a cache line of its own, or
        // they are packed.
        let bases: Vec<RemotePtr<u64>> =
            homes.into_iter().map(|home| object.remote(home, "tickets")).collect::<Result<_>>()?;
        let word = |index: usize| bases[index % bases.len()].at(index / bases.len() * words_each);
        let locks = (0..count).map(|index| Lock { word: word(index), seen: Word::default() }).collect();
        let (me, refused, passed_over) = (u64::from(node.id().0) + 1, LocalMutex::default(), LocalMutex::default());
        Ok(MutexArray { object, me, locks, refused, passed_over })
    }

    /// The number of locks.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let node = farfield::Node::builder().start()?;
    /// # let (ep, locks) = (node.endpoint()?, farfield::MutexArray::open(&node, "stripes", 64)?);
    /// let stripe = 0xfee1_dead % locks.len(); // the lock of some key
    /// let guard = ep.block_on(locks.lock(&ep, stripe))?;
    /// # Ok(()) }
    /// ```
    pub fn len(&self) -> usize {
        self.locks.len()
    }

    /// Whether there are no locks.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let node = farfield::Node::builder().start()?;
    /// # let (ep, locks) = (node.endpoint()?, farfield::MutexArray::open(&node, "stripes", 64)?);
    /// assert!(!locks.is_empty());
    /// # Ok(()) }
    /// ```
    pub fn is_empty(&self) -> bool {
        self.locks.is_empty()
    }

    /// The home node of lock `index`.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let node = farfield::Node::builder().start()?;
    /// # let (ep, locks) = (node.endpoint()?, farfield::MutexArray::open(&node, "stripes", 64)?);
    /// assert_eq!(locks.home(7), node.id()); // there is no other node
    /// # Ok(()) }
    /// ```
    ///
    /// # Panics
    /// If there is no such lock, as indexing a slice does.
    pub fn home(&self, index: usize) -> NodeId {
        self.word(index).node()
    }

    #[inline]
    fn lock_at(&self, index: usize) -> &Lock {
        self.locks.get(index).unwrap_or_else(|| self.no_lock(index))
    }

    #[cold]
    #[inline(never)]
    fn no_lock(&self, index: usize) -> ! {
        panic!("lock {index} of {}", self.len())
    }

    fn word(&self, index: usize) -> RemotePtr<u64> {
        self.lock_at(index).word
    }
}
