//! The owner's memory: slots, blocks, versions, and when a block is used again.
//!
//! *Versions.* A change of active words takes the next ticket, stores the words, and makes `stable` its version when all earlier
//! tickets have done so. So whatever has a version up to `stable` is in memory: a ticket's active words precede its `stable`
//! (`CW → CW`), and the next ticket has loaded that before it stores its own.
//!
//! *Reuse.* A block that a ticket v has replaced is free when `stable` is at least v, and every announcement that is read *after* that
//! is none, or of v or later. A reader announces before it reads `stable`. Then one that had not announced by that moment reads at v or
//! later, and the active words that it finds no longer name the block. A reader at a version below v had announced it.

mod versions;

use core::time::Duration;
use std::collections::VecDeque;
use std::sync::Arc;

use farfield_core::{Endpoint, Error, MemberStatus, Node, Result};
use farfield_fabric::{self as fabric, Instant, LocalMutex, NodeId, Region, RemotePtr, Word};

pub(crate) use self::versions::Stable;
use crate::errors::MemoryFull;
use crate::gate::Gate;
use crate::layout::{Active, DELETED, LAST_VERSION, LOCK, SIDE_WORDS, Shape};
use crate::seats::{Announced, SEAT_WORDS, Seats};

/// How long a thread without memory waits at first before it looks again.
const PAUSE_MIN: Duration = Duration::from_micros(50);
/// And at last, where the lease is shorter.
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// What a ticket has replaced.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Replaced {
    Block(u32),
    /// An object that is deleted: its slot is for another one.
    Slot(u32),
}

/// Blocks and slots that are free, or will be.
struct Pool {
    blocks: Vec<u32>,
    slots: Vec<u32>,
    /// By the version from which on it is not needed.
    replaced: VecDeque<(u64, Replaced)>,
    /// The first block and slot that were never used.
    blocks_begun: usize,
    slots_begun: usize,
}

/// What a collection remembers of the announcement of a seat: since when it is the same.
type Watched = (Announced, Instant);

/// Seats that are at this place.
#[derive(Clone, Default)]
struct WatchedNode {
    pointer: u64,
    seats: Vec<Option<Watched>>,
}

/// Free blocks and slots that a caller has before it takes a lock.
pub(crate) struct Stash {
    pub(crate) blocks: Vec<u32>,
    pub(crate) slots: Vec<u32>,
}

pub(crate) struct Arena {
    node: Node,
    region: Region,
    pub(crate) shape: Shape,
    /// The last ticket.
    tickets: Word,
    done: Vec<Word>,
    pool: LocalMutex<Pool>,
    own: Arc<Seats>,
    /// 1 while a thread collects, with what is remembered of the seats: the own ones, and those of each rank.
    collects: Word,
    watched: LocalMutex<Vec<WatchedNode>>,
    /// For nodes that a caller's endpoint does not reach.
    spare: LocalMutex<Option<Endpoint>>,
    /// Of a tree that is part of a store.
    gate: Option<Gate>,
    /// Until when `stable` stays as it is, while it is frozen: nanoseconds of this node's clock.
    frozen_until: Word,
}

impl Arena {
    pub(crate) fn new(node: &Node, region: Region, shape: Shape, own: &Arc<Seats>) -> Arena {
        let pool = Pool {
            blocks: Vec::new(),
            slots: Vec::new(),
            replaced: VecDeque::new(),
            // The first state of the first slot (`open`).
            blocks_begun: 1,
            slots_begun: 1,
        };
        let watched = vec![WatchedNode::default(); shape.ranks + 1];
        Arena {
            node: node.clone(),
            region,
            shape,
            tickets: Word::new(0),
            done: (0..own.count().next_power_of_two()).map(|_| Word::new(0)).collect(),
            pool: LocalMutex::new(pool),
            own: Arc::clone(own),
            collects: Word::new(0),
            watched: LocalMutex::new(watched),
            spare: LocalMutex::new(None),
            gate: None,
            frozen_until: Word::new(0),
        }
    }

    pub(crate) fn set_gate(&mut self, gate: Gate) {
        self.gate = Some(gate);
    }

    pub(crate) fn gate(&self) -> Option<Gate> {
        self.gate.clone()
    }

    // ---- words -----------------------------------------------------------------------------------------------------

    #[inline]
    fn active_word(&self, slot: u32) -> &Word {
        self.region.word(self.shape.slot_at(slot))
    }

    #[inline]
    fn side(&self, slot: u32) -> &[Word] {
        self.region.words(self.shape.side_at(slot), SIDE_WORDS)
    }

    #[inline]
    pub(crate) fn active(&self, slot: u32) -> Option<Active> {
        Active::of(self.active_word(slot).load())
    }

    /// The words of a block that count.
    #[inline]
    pub(crate) fn block(&self, active: Active) -> &[Word] {
        self.region.words(self.shape.block_at(active.block), active.end as usize)
    }

    #[inline]
    pub(crate) fn block_words(&self, block: u32) -> &[Word] {
        self.region.words(self.shape.block_at(block), self.shape.block_words)
    }

    /// Gives a slot to a node that no other node names yet. What it had is replaced.
    pub(crate) fn use_slot(&self, slot: u32, version: u64, active: Active) -> Option<Replaced> {
        let (word, side) = (self.active_word(slot), self.side(slot));
        let before = Active::of(word.load());
        side[DELETED].store(0);
        side[LAST_VERSION].store(version);
        word.store(active.word());
        before.map(|before| Replaced::Block(before.block))
    }

    /// Takes a slot back that no other node names.
    pub(crate) fn unuse_slot(&self, slot: u32) {
        self.active_word(slot).store(0);
    }

    // ---- locks -----------------------------------------------------------------------------------------------------

    /// Takes the lock of a slot. Its holder never waits for readers, nor for memory.
    #[inline]
    pub(crate) fn lock(&self, ep: &Endpoint, slot: u32) -> SlotLock<'_> {
        let side = self.side(slot);
        if side[LOCK].compare_exchange(0, 1).is_err() {
            self.lock_slow(ep, &side[LOCK]);
        }
        SlotLock { word: self.active_word(slot), side }
    }

    #[cold]
    fn lock_slow(&self, ep: &Endpoint, lock: &Word) {
        loop {
            let is_free = || (lock.load() == 0).then_some(());
            if ep.spin_until(is_free).is_none() {
                // The holder is a thread of this process that runs: as long as for a mutex, no deadline.
                let _ = ep.block_on(ep.wait_until(Instant::NEVER, is_free));
            }
            if lock.compare_exchange(0, 1).is_ok() {
                return;
            }
        }
    }

    // ---- memory ----------------------------------------------------------------------------------------------------

    /// These are not needed any more by readers at this version or later.
    pub(crate) fn replaced(&self, version: u64, what: impl IntoIterator<Item = Replaced>) {
        let mut pool = self.pool.lock();
        pool.replaced.extend(what.into_iter().map(|what| (version, what)));
    }

    pub(crate) fn give_back(&self, stash: &mut Stash) {
        let mut pool = self.pool.lock();
        pool.blocks.append(&mut stash.blocks);
        pool.slots.append(&mut stash.slots);
    }

    /// Fills the stash up. The caller has no lock and no announcement, so that nothing waits for it meanwhile.
    ///
    /// # Errors
    /// [`MemoryFull`], after the endpoint's timeout. This node is evicted.
    #[inline]
    pub(crate) fn fill(&self, ep: &Endpoint, stash: &mut Stash, blocks: usize, slots: usize) -> Result<()> {
        if stash.blocks.len() >= blocks && stash.slots.len() >= slots {
            return Ok(());
        }
        self.fill_slow(ep, stash, blocks, slots)
    }

    #[cold]
    fn fill_slow(&self, ep: &Endpoint, stash: &mut Stash, blocks: usize, slots: usize) -> Result<()> {
        if self.take(stash, blocks, slots) {
            return Ok(());
        }
        let (start, deadline) = (ep.now(), ep.deadline());
        let mut pause = PAUSE_MIN;
        loop {
            self.collect(ep)?;
            if self.take(stash, blocks, slots) {
                return Ok(());
            }
            let now = ep.now();
            if now >= deadline {
                let waiting = self.pool.lock().replaced.len();
                return Err(Error::custom(MemoryFull { blocks: self.shape.blocks, waiting }));
            }
            // Until a reader has gone on; of another node that wakes no thread here.
            let until = (now + pause).min(deadline);
            // Up to a lease and a half it looks often, and then seldom: the members of the session are about to decide about a node.
            pause = if now.since(start) < self.own.lease() * 3 / 2 {
                (pause * 8).min(self.own.lease() / 2)
            } else {
                pause * 2
            };
            pause = pause.min(PAUSE_MAX.max(self.own.lease() / 2));
            let _ = ep.block_on(ep.wait_until(until, || None::<()>));
        }
    }

    /// Takes what is missing in a stash, if all of it is free.
    fn take(&self, stash: &mut Stash, blocks: usize, slots: usize) -> bool {
        let mut pool = self.pool.lock();
        let pool = &mut *pool;
        while stash.blocks.len() < blocks {
            match pool.blocks.pop() {
                Some(block) => stash.blocks.push(block),
                None if pool.blocks_begun < self.shape.blocks => {
                    stash.blocks.push(pool.blocks_begun as u32);
                    pool.blocks_begun += 1;
                }
                None => return false,
            }
        }
        while stash.slots.len() < slots {
            match pool.slots.pop() {
                Some(slot) => stash.slots.push(slot),
                None if pool.slots_begun < self.shape.slots => {
                    stash.slots.push(pool.slots_begun as u32);
                    pool.slots_begun += 1;
                }
                None => return false,
            }
        }
        true
    }

    /// Takes a slot, or a block, that was never used.
    pub(crate) fn take_unused(&self, stash: &mut Stash, blocks: usize, slots: usize) -> Result<()> {
        let mut pool = self.pool.lock();
        let (blocks_end, slots_end) = (pool.blocks_begun + blocks, pool.slots_begun + slots);
        if blocks_end > self.shape.blocks || slots_end > self.shape.slots {
            let waiting = pool.replaced.len();
            return Err(Error::custom(MemoryFull { blocks: self.shape.blocks, waiting }));
        }
        stash.blocks.extend(pool.blocks_begun as u32..blocks_end as u32);
        stash.slots.extend(pool.slots_begun as u32..slots_end as u32);
        (pool.blocks_begun, pool.slots_begun) = (blocks_end, slots_end);
        Ok(())
    }

    /// Blocks that are free, and those that were replaced and are not.
    pub(crate) fn free_and_waiting(&self) -> (usize, usize) {
        let pool = self.pool.lock();
        (pool.blocks.len() + self.shape.blocks - pool.blocks_begun, pool.replaced.len())
    }

    /// Frees what no reader can need any more.
    fn collect(&self, ep: &Endpoint) -> Result<()> {
        if self.collects.compare_exchange(0, 1).is_err() {
            let is_over = || (self.collects.load() == 0).then_some(());
            let _ = ep.block_on(ep.wait_until(ep.deadline(), is_over));
            return Ok(());
        }
        let _collecting = Collecting(self);
        let until = self.needed_from(ep)?;
        let mut pool = self.pool.lock();
        let pool = &mut *pool;
        // In the order of the tickets, but for neighbours.
        while let Some((version, what)) = pool.replaced.front().copied()
            && version <= until
        {
            pool.replaced.pop_front();
            match what {
                Replaced::Block(block) => pool.blocks.push(block),
                Replaced::Slot(slot) => pool.slots.push(slot),
            }
        }
        Ok(())
    }

    /// Whether no read of a node can be under way any more. One that has just come may not be known here yet.
    fn is_gone(&self, node: NodeId) -> bool {
        self.node.members().any(|member| member == node)
            && matches!(self.node.status_of(node), MemberStatus::Departed | MemberStatus::Evicted)
    }

    /// Reads the seats of a node by an endpoint of its own: that of the caller may have lost its connection for good.
    fn seats_again(&self, spare: &mut Option<Endpoint>, at: RemotePtr<u64>, words: usize) -> Option<Vec<u64>> {
        if spare.is_none() {
            *spare = self.node.background_endpoint().ok();
        }
        let ep = spare.as_ref()?;
        let read = ep.buf::<u64>(words).and_then(|into| ep.get_into(at, into).wait()).map(|words| words.to_vec());
        match read {
            Ok(words) => Some(words),
            Err(_) => {
                *spare = None;
                None
            }
        }
    }

    /// The version from which on readers need what was replaced.
    fn needed_from(&self, ep: &Endpoint) -> Result<u64> {
        let mut watching = Watching::begin(self);
        // It is in memory, since atomics change it. What is read next is read after it (`CR → CR`, `CR → NRR`): a reader that has not announced
        // itself by then finds it, or a later one.
        let stable = self.stable_now().current()?;
        let mut from = stable;
        let (seats, lease) = (self.own.count(), self.own.lease());
        let mut see = |of: &mut Option<Watched>, announced: Announced, asked: Instant, answered: Instant| {
            let Some(version) = announced.version() else {
                *of = None;
                return;
            };
            match *of {
                Some((same, since)) if same == announced && !announced.is_firm() => {
                    if asked.since(since) >= lease {
                        return; // it has stopped, and will notice that
                    }
                }
                _ => *of = Some((announced, answered)),
            }
            from = from.min(version);
        };
        let asked = ep.now();
        let mut gets = Vec::new();
        for (rank, of) in watching.nodes.iter_mut().enumerate() {
            let pointer = if rank == self.shape.ranks {
                self.own.pointer().packed()
            } else {
                self.region.word(self.shape.seats_at(rank)).load()
            };
            if of.pointer != pointer {
                *of = WatchedNode { pointer, seats: vec![None; seats] };
            }
            let at = RemotePtr::<u64>::from_packed(pointer);
            if rank == self.shape.ranks {
                self.own.each().zip(&mut of.seats).for_each(|(announced, of)| see(of, announced, asked, ep.now()));
            } else if pointer != 0 && !self.is_gone(at.node()) {
                let get = ep.buf::<u64>(seats * SEAT_WORDS).map(|into| ep.get_into(at, into));
                gets.push((of, at, get));
            }
        }
        let (mut is_known, mut spare) = (true, self.spare.lock().take());
        for (of, at, get) in gets {
            let words = match get.and_then(|get| get.wait()) {
                Ok(words) => Some(words.to_vec()),
                Err(error) if matches!(error.kind(), fabric::ErrorKind::Fenced) => return Err(error.into()),
                // It has closed the object, or has left.
                Err(error)
                    if matches!(error.kind(), fabric::ErrorKind::Freed { .. } | fabric::ErrorKind::PeerLeft { .. }) =>
                {
                    continue;
                }
                Err(_) if self.is_gone(at.node()) => continue,
                Err(_) => self.seats_again(&mut spare, at, seats * SEAT_WORDS),
            };
            match words {
                Some(words) => {
                    let each = words.chunks(SEAT_WORDS).map(Announced::of).zip(&mut of.seats);
                    each.for_each(|(announced, of)| see(of, announced, asked, ep.now()));
                }
                // It may have died, or only this node does not reach it. What it announces is not known, and no lease ends: the members
                // decide about it.
                None => is_known = false,
            }
        }
        *self.spare.lock() = spare;
        Ok(if is_known { from } else { 0 })
    }
}

/// The end of a collection.
struct Collecting<'a>(&'a Arena);

impl Drop for Collecting<'_> {
    fn drop(&mut self) {
        self.0.collects.store(0);
    }
}

/// What a collection remembers, which the next one finds again however this one ends, also by a panic.
struct Watching<'a> {
    arena: &'a Arena,
    nodes: Vec<WatchedNode>,
}

impl Watching<'_> {
    fn begin(arena: &Arena) -> Watching<'_> {
        Watching { arena, nodes: core::mem::take(&mut *arena.watched.lock()) }
    }
}

impl Drop for Watching<'_> {
    fn drop(&mut self) {
        *self.arena.watched.lock() = core::mem::take(&mut self.nodes);
    }
}

/// A slot of which this thread alone changes the words.
pub(crate) struct SlotLock<'a> {
    word: &'a Word,
    side: &'a [Word],
}

impl Drop for SlotLock<'_> {
    #[inline]
    fn drop(&mut self) {
        self.side[LOCK].store(0);
    }
}

impl SlotLock<'_> {
    /// The active word.
    #[inline]
    pub(crate) fn active(&self) -> Option<Active> {
        Active::of(self.word.load())
    }

    /// Makes another state current: its words are stored.
    #[inline]
    pub(crate) fn set(&self, version: u64, active: Active) {
        self.side[LAST_VERSION].store(version);
        self.word.store(active.word());
    }

    /// Whether the object is deleted.
    pub(crate) fn set_deleted(&self, is_deleted: bool) {
        self.side[DELETED].store(u64::from(is_deleted));
    }

    /// The version of the last change.
    #[inline]
    pub(crate) fn last_version(&self) -> u64 {
        self.side[LAST_VERSION].load()
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::{ObjectOptions, RomeObject};

    fn with_arena(test: impl FnOnce(&Arena)) {
        let node = Node::builder().start().expect("a node");
        let options = ObjectOptions::default();
        let object = RomeObject::open(&node, "object", node.id(), options).expect("it is the owner");
        test(object.opened.arena().expect("it is the owner"));
    }

    #[test]
    fn a_panic_in_a_collection_forgets_no_reader() {
        with_arena(|arena| {
            let before = arena.watched.lock().len();
            let collect = || {
                let watching = Watching::begin(arena);
                assert_eq!(watching.nodes.len(), 0, "seats are of a rank at least");
            };
            assert!(catch_unwind(AssertUnwindSafe(collect)).is_err());
            assert_eq!((arena.watched.lock().len(), before), (2, 2));
        });
    }
}
