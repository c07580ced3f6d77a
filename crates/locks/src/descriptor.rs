//! The entries of operations in the queues of locks, in the network memory of the nodes that run the operations.
//!
//! ```text
//!        63                     32 31                     3 2         0
//!  +0   ┌─────────────────────────┬────────────────────────┬───────────┐
//! about │ generation (32)         │ lock (29)              │ state (3) │   written by the operation itself
//!  +8   ├─────────────────────────┴────────────────────────┴───────────┤
//! pred  │ the entry before it                                          │   written by the operation itself
//!  +16  ├──────────────────────────────────────────────────────────────┤
//! next  │ the entry behind it; 0: nobody has said so                   │   put by the one behind
//!  +24  ├──────────────────────────────────────────────────────────────┤
//! grant │ 0: it waits; else what it was handed                         │   put by the one before
//!  +32  ├──────────────────────────────────────────────────────────────┤
//!       │ padding, so that two operations never share a line           │
//!  +64  └──────────────────────────────────────────────────────────────┘
//! ```

use farfield_fabric::{Endpoint, NodeId, Region, RemotePtr, Word};

use super::number_pool::NumberPool;
use farfield_core::Result;

/// The size of a descriptor in bytes.
pub(super) const BYTES: usize = 64;
const WORDS: usize = BYTES / 8;
/// The maximum number of descriptors on a node.
pub(super) const COUNT_MAX: usize = 1 << SLOT_BITS;
/// The maximum number of locks in an array.
pub(super) const LOCKS_MAX: usize = 1 << LOCK_BITS;

const SLOT_BITS: u32 = 20;
const LOCK_BITS: u32 = 29;
const STATE_BITS: u32 = 3;

/// Names an operation in a queue: a node, a descriptor there, and the descriptor's generation.
///
/// ```text
/// 63          52 51              32 31                              0
/// ┌─────────────┬──────────────────┬─────────────────────────────────┐
/// │ node+1 (12) │ descriptor (20)  │ generation (32)                 │
/// └─────────────┴──────────────────┴─────────────────────────────────┘
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Id(pub(super) u64);

impl Id {
    /// In place of a name: the queue is empty.
    pub(super) const NOBODY: Id = Id(0);
    /// In place of a name: the queue is empty, and a holder has died since the last repair.
    pub(super) const NOBODY_AFTER_DEATH: Id = Id(1);

    fn new(node: NodeId, slot: usize, generation: u32) -> Id {
        Id((u64::from(node.0) + 1) << 52 | (slot as u64) << 32 | u64::from(generation))
    }

    /// The node that the operation runs on; none for a value that stands in place of a name.
    pub(super) fn node(self) -> Option<NodeId> {
        (self.0 >> 52).checked_sub(1).map(|node| NodeId(node as u16))
    }

    fn slot(self) -> usize {
        (self.0 >> 32) as usize & (COUNT_MAX - 1)
    }

    fn generation(self) -> u32 {
        self.0 as u32
    }
}

/// The next step of an operation in its queue, for nodes that recover the queue after a death.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// It is in no queue.
    Free = 0,
    /// It may be in the queue: the result of its compare-and-swap is not known yet.
    Enqueueing = 1,
    /// It is in the queue.
    Queued = 2,
    /// It claims the lock after a holder's death: it may be at the head already.
    Claiming = 3,
    /// It no longer wants the lock, but an operation behind it has not linked itself yet.
    Leaving = 4,
}

/// An operation's lock and its state, in one word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct About(pub(super) u64);

impl About {
    fn new(generation: u32, lock: usize, state: State) -> About {
        About(u64::from(generation) << 32 | (lock as u64) << STATE_BITS | state as u64)
    }

    pub(super) fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }

    pub(super) fn lock(self) -> usize {
        (self.0 as u32 >> STATE_BITS) as usize
    }

    /// The state; none if the word holds no valid state.
    pub(super) fn state(self) -> Option<State> {
        use State::{Claiming, Enqueueing, Free, Leaving, Queued};
        [Free, Enqueueing, Queued, Claiming, Leaving].into_iter().find(|state| *state as u64 == self.0 & 7)
    }
}

/// The words of a descriptor of this node.
pub(super) struct Descriptor<'a>(&'a [Word]);

impl<'a> Descriptor<'a> {
    pub(super) fn about(&self) -> &'a Word {
        &self.0[0]
    }

    pub(super) fn pred(&self) -> &'a Word {
        &self.0[1]
    }

    pub(super) fn next(&self) -> &'a Word {
        &self.0[2]
    }

    pub(super) fn grant(&self) -> &'a Word {
        &self.0[3]
    }

    /// Publishes that its operation is in the queue, behind another.
    #[inline]
    pub(super) fn tell_queued(&self, id: Id, lock: usize, behind: Id) {
        // In this order, for nodes that survey the queue.
        self.pred().store(behind.0);
        self.about().store(About::new(id.generation(), lock, State::Queued).0);
    }
}

/// The descriptors of one array's operations: this node's own, and pointers to the other nodes' tables.
pub(super) struct Descriptors {
    me: NodeId,
    own: Region,
    /// This node's free list.
    slots: NumberPool,
    tables: Vec<(NodeId, RemotePtr<u64>)>,
}

impl Descriptors {
    pub(super) fn new(me: NodeId, own: Region, tables: Vec<(NodeId, RemotePtr<u64>)>) -> Descriptors {
        let slots = NumberPool::new("descriptors", own.bytes() / BYTES);
        Descriptors { me, own, slots, tables }
    }

    fn count(&self) -> usize {
        self.own.bytes() / BYTES
    }

    /// The tables of all participants.
    pub(super) fn tables(&self) -> impl Iterator<Item = (NodeId, RemotePtr<u64>)> + '_ {
        self.tables.iter().copied()
    }

    /// The number of words in a table.
    pub(super) fn table_words(&self) -> usize {
        self.own.bytes() / 8
    }

    /// The words of this node's table.
    pub(super) fn own_words(&self) -> &[Word] {
        self.own.words(0, self.table_words())
    }

    /// An unused descriptor.
    ///
    /// # Errors
    /// All are in use.
    #[inline]
    pub(super) fn take(&self, endpoint: &Endpoint) -> Result<usize> {
        self.slots.take(endpoint)
    }

    /// How many descriptors are in use.
    #[cfg(all(feature = "scenarios", not(test)))]
    pub(super) fn in_use(&self) -> usize {
        self.slots.in_use()
    }

    /// A descriptor of this node.
    #[inline]
    fn at(&self, slot: usize) -> Descriptor<'_> {
        Descriptor(self.own.words(slot * BYTES, 4))
    }

    /// Writes an operation into a descriptor, before other nodes can know of it. Returns the operation's name as well.
    #[inline]
    pub(super) fn begin(&self, slot: usize, lock: usize) -> (Id, Descriptor<'_>) {
        let descriptor = self.at(slot);
        let generation = About(descriptor.about().load()).generation().wrapping_add(1);
        descriptor.next().store(Id::NOBODY.0);
        descriptor.grant().store(0);
        descriptor.about().store(About::new(generation, lock, State::Enqueueing).0);
        (Id::new(self.me, slot, generation), descriptor)
    }

    /// Publishes the state of an operation of this node.
    #[inline]
    pub(super) fn tell(&self, id: Id, lock: usize, state: State) {
        self.at(id.slot()).about().store(About::new(id.generation(), lock, state).0);
    }

    /// Frees the descriptor of an operation. No other operation may write to it any more.
    #[inline]
    pub(super) fn ends(&self, id: Id, lock: usize) {
        self.tell(id, lock, State::Free);
        self.slots.give_back(id.slot());
    }

    /// The name of the operation that a descriptor belongs to.
    pub(super) fn name(node: NodeId, slot: usize, about: About) -> Id {
        Id::new(node, slot, about.generation())
    }

    /// The descriptor of an operation of this node.
    #[inline]
    pub(super) fn of(&self, id: Id) -> Descriptor<'_> {
        self.at(id.slot())
    }

    /// Points to a word of an operation's descriptor; none if its node is not a participant.
    fn remote(&self, id: Id, word: usize) -> Option<RemotePtr<u64>> {
        let node = id.node()?;
        let (_, table) = self.tables.iter().find(|(other, _)| *other == node)?;
        (id.slot() < self.count()).then(|| table.at(id.slot() * WORDS + word))
    }

    /// The word in which the operation behind links itself.
    pub(super) fn next_of(&self, id: Id) -> Option<RemotePtr<u64>> {
        self.remote(id, 2)
    }

    /// The word in which the operation is granted the lock.
    pub(super) fn grant_of(&self, id: Id) -> Option<RemotePtr<u64>> {
        self.remote(id, 3)
    }
}
