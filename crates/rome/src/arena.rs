//! The owner's memory: slots, blocks, versions, and when a block is used again.
//!
//! *Versions.* A change of active words takes the next ticket, stores the words, and makes `stable` its version when
//! all earlier tickets have done so. So whatever has a version up to `stable` is in memory: a ticket's active words
//! precede its `stable` (`CW → CW`), and the next ticket has loaded that before it stores its own.
//!
//! *Reuse.* A block that a ticket v has replaced is free when `stable` is at least v, and every announcement that is
//! read *after* that is none, or of v or later. A reader announces before it reads `stable`. Then one that had not
//! announced by that moment reads at v or later, and the active words that it finds no longer name the block. A reader
//! at a version below v had announced it.

mod collect;
mod versions;

use core::time::Duration;
use std::collections::VecDeque;
use std::sync::Arc;

use farfield_core::{Endpoint, Error, Node, Result};
use farfield_fabric::{Instant, LocalMutex, Region, Word};

pub(crate) use self::versions::Stable;
use crate::errors::MemoryFull;
use crate::gate::Gate;
use crate::layout::{Active, LAST_VERSION, LOCK, SIDE_WORDS, Shape};
use crate::seats::{Announced, Seats};
use crate::tree::Memory;

/// How long a thread without memory waits at first before it looks again.
const PAUSE_MIN: Duration = Duration::from_micros(50);
/// And at last, where the lease is shorter.
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// What a ticket has replaced.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Replaced {
    Block(u32),
    /// An object that is deleted: its slot is for another one, and the block of its tombstone is replaced by nothing.
    Slot(u32),
}

/// Blocks and slots that are free, or will be.
struct Pool {
    blocks: Vec<u32>,
    slots: Vec<u32>,
    /// By the version from which on it is not needed.
    replaced: VecDeque<(u64, Replaced)>,
    /// The last version from which on tombstones are not needed. There may be no change yet that has it.
    buried: u64,
    /// The first block and slot that were never used.
    blocks_begun: usize,
    slots_begun: usize,
    /// How often a thread had to wait for a reader.
    waits: u64,
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
#[derive(Default)]
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
    /// Until then callers that cannot wait collect nothing, since a node has not answered (nanoseconds).
    no_answer_until: Word,
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
            buried: 0,
            // The first state of the first slot (`open`).
            blocks_begun: 1,
            slots_begun: 1,
            waits: 0,
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
            no_answer_until: Word::new(0),
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

    /// Gives a slot to a node that no other node names yet.
    pub(crate) fn use_slot(&self, slot: u32, version: u64, active: Active) {
        self.side(slot)[LAST_VERSION].store(version);
        self.active_word(slot).store(active.word());
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

    /// Fills the stash up. The caller has no lock and no announcement, so that nothing waits for it meanwhile. If it
    /// fails, the stash is empty.
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

    /// Fills the stash up with free blocks and slots, if those are enough, without a wait; whether it is full.
    pub(crate) fn fill_now(&self, stash: &mut Stash, blocks: usize, slots: usize) -> bool {
        (stash.blocks.len() >= blocks && stash.slots.len() >= slots) || self.take(stash, blocks, slots)
    }

    #[cold]
    fn fill_slow(&self, ep: &Endpoint, stash: &mut Stash, blocks: usize, slots: usize) -> Result<()> {
        if self.take(stash, blocks, slots) {
            return Ok(());
        }
        // It has nothing while it waits, and takes all at once. So no two threads wait for what the other one has.
        self.give_back(stash);
        let (start, deadline) = (ep.now(), ep.deadline());
        let (mut pause, mut has_waited) = (PAUSE_MIN, false);
        loop {
            self.collect(ep)?;
            if self.take(stash, blocks, slots) {
                return Ok(());
            }
            if self.bury(ep) {
                continue;
            }
            let now = ep.now();
            if now >= deadline {
                let waiting = self.pool.lock().replaced.len();
                return Err(Error::custom(MemoryFull { blocks: self.shape.blocks, waiting }));
            }
            if !has_waited {
                self.pool.lock().waits += 1;
                has_waited = true;
            }
            // Until a reader has gone on; of another node that wakes no thread here.
            let until = (now + pause).min(deadline);
            // Up to a lease and a half it looks often, and then seldom: the members of the session are about to decide
            // about a node.
            pause = if now.since(start) < self.own.lease() * 3 / 2 {
                (pause * 8).min(self.own.lease() / 2)
            } else {
                pause * 2
            };
            pause = pause.min(PAUSE_MAX.max(self.own.lease() / 2));
            ep.block_on(ep.sleep_until(until));
        }
    }

    /// Makes a version without a change, if tombstones wait for one and no change has come; whether it has.
    fn bury(&self, ep: &Endpoint) -> bool {
        if self.pool.lock().buried <= self.tickets.load() {
            return false;
        }
        self.publish(ep, self.ticket()).is_ok()
    }

    /// Takes the missing blocks and slots of a stash, if all are free.
    fn take(&self, stash: &mut Stash, blocks: usize, slots: usize) -> bool {
        let mut pool = self.pool.lock();
        let pool = &mut *pool;
        let free = pool.blocks.len() + self.shape.blocks - pool.blocks_begun + stash.blocks.len();
        let free_slots = pool.slots.len() + self.shape.slots - pool.slots_begun + stash.slots.len();
        if free < blocks || free_slots < slots {
            return false;
        }
        while stash.blocks.len() < blocks {
            // The ones that were freed last are used first.
            stash.blocks.insert(0, pool.blocks.pop().unwrap_or_else(|| next_of(&mut pool.blocks_begun)));
        }
        while stash.slots.len() < slots {
            stash.slots.push(pool.slots.pop().unwrap_or_else(|| next_of(&mut pool.slots_begun)));
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

    /// How the memory is used.
    pub(crate) fn memory(&self) -> Memory {
        let (pool, blocks) = (self.pool.lock(), self.shape.blocks);
        let free = pool.blocks.len() + blocks - pool.blocks_begun;
        Memory { blocks, free, waiting: pool.replaced.len(), waits: pool.waits }
    }
}

/// The first that was never used.
fn next_of(begun: &mut usize) -> u32 {
    *begun += 1;
    (*begun - 1) as u32
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

    /// The version of the last change.
    #[inline]
    pub(crate) fn last_version(&self) -> u64 {
        self.side[LAST_VERSION].load()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{RomeTree, TreeOptions};

    /// The last change was made before its tombstone was buried, so no other one would give it a version.
    #[test]
    fn a_tombstone_is_free_though_no_change_comes_after_it() {
        let node = Node::builder().start().expect("a node");
        let options = TreeOptions { pairs: 4, records: 1, blocks: 8, ..TreeOptions::default() };
        let tree = RomeTree::<u64, u64>::open(&node, "tree", node.id(), options).expect("it is the owner");
        let (arena, ep) = (tree.opened.arena().expect("it is the owner"), node.endpoint().expect("an endpoint"));
        ep.set_timeout(Duration::from_millis(20));
        let mut stash = Stash::default();
        arena.fill(&ep, &mut stash, 7, 1).expect("all but the root's are free");
        let (block, slot) = (stash.blocks.pop().expect("seven"), stash.slots.pop().expect("one"));
        arena.use_slot(slot, 0, Active { block, end: 1 });
        let version = arena.ticket();
        arena.publish(&ep, version).expect("it is not moved");
        arena.replaced(version, [Replaced::Slot(slot)]);
        arena.fill(&ep, &mut stash, 7, 0).expect("no reader needs the tombstone");
        assert!(stash.blocks.contains(&block) && arena.active(slot).is_none());
        assert_eq!(arena.stable(), version + 1, "a version without a change");
    }
}
