//! The owner's memory: slots, blocks, versions, and when a block is used again.
//!
//! *Versions.* A change of active words takes the next ticket, stores the words, and makes `stable` its version when all earlier
//! tickets have done so. So whatever has a version up to `stable` is in memory: a ticket's active words precede its `stable`
//! (`CW → CW`), and the next ticket has loaded that before it stores its own.
//!
//! *Reuse.* A block that a ticket v has replaced is free when `stable` is at least v, and every announcement that is read *after* that
//! is none, or of v or later. A reader announces before it reads `stable`. Then one that had not announced by that moment reads at v or
//! later, and the active words that it finds no longer name the block. A reader at a version below v had announced it.

use core::time::Duration;
use std::collections::VecDeque;
use std::sync::Arc;

use farfield_core::{Endpoint, Error, MemberStatus, Node, Result};
use farfield_fabric::{Instant, LocalMutex, NodeId, Region, RemotePtr, Word};

use crate::errors::MemoryFull;
use crate::gate::Gate;
use crate::layout::{Active, DELETED, LAST_VERSION, LOCK, SIDE_WORDS, Shape};
use crate::seats::{Announced, SEAT_WORDS, Seats};

/// How long a thread without memory waits at first before it looks again.
const PAUSE_MIN: Duration = Duration::from_micros(50);

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
    pool: LocalMutex<Pool>,
    own: Arc<Seats>,
    /// The seats of other nodes.
    theirs: Vec<(NodeId, RemotePtr<u64>)>,
    /// 1 while a thread collects, with what is remembered of the seats.
    collects: Word,
    watched: LocalMutex<Vec<Option<Watched>>>,
    /// Of a tree that is part of a store.
    gate: Option<Gate>,
}

impl Arena {
    pub(crate) fn new(
        node: &Node,
        region: Region,
        shape: Shape,
        own: &Arc<Seats>,
        theirs: Vec<(NodeId, RemotePtr<u64>)>,
    ) -> Arena {
        let pool = Pool {
            blocks: Vec::new(),
            slots: Vec::new(),
            replaced: VecDeque::new(),
            // The first state of the first slot (`open`).
            blocks_begun: 1,
            slots_begun: 1,
        };
        let watched = vec![None; own.count() * (theirs.len() + 1)];
        Arena {
            node: node.clone(),
            region,
            shape,
            tickets: Word::new(0),
            pool: LocalMutex::new(pool),
            own: Arc::clone(own),
            theirs,
            collects: Word::new(0),
            watched: LocalMutex::new(watched),
            gate: None,
        }
    }

    pub(crate) fn set_gate(&mut self, gate: Gate) {
        self.gate = Some(gate);
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

    // ---- versions --------------------------------------------------------------------------------------------------

    #[inline]
    fn stable_word(&self) -> &Word {
        self.region.word(0)
    }

    /// All that has this version or an earlier one is in memory.
    #[inline]
    pub(crate) fn stable(&self) -> u64 {
        self.stable_word().load()
    }

    /// The version of a change, of which all is in memory but the versions and the active words. Whatever its caller does
    /// until [`Arena::publish`], others wait for.
    #[inline]
    pub(crate) fn ticket(&self) -> u64 {
        self.tickets.fetch_add(1) + 1
    }

    /// The active words of this version are stored. Returns when it is stable.
    #[inline]
    pub(crate) fn publish(&self, ep: &Endpoint, version: u64) {
        self.await_stable(ep, version - 1);
        if let Some(gate) = &self.gate {
            gate.pass(ep);
        }
        // It is `version` then. As an atomic (`CAS`) it is in memory when the caller returns, and with it all that he has stored before:
        // a read that begins afterwards, anywhere, finds it. It wakes no thread: one that waits for this is about to look again.
        self.stable_word().fetch_add(1);
    }

    /// Waits until all tickets up to this version are published. Their holders are threads of this process that run.
    #[inline]
    pub(crate) fn await_stable(&self, ep: &Endpoint, version: u64) {
        let is_stable = || (self.stable() >= version).then_some(());
        if is_stable().is_none() && ep.spin_until(is_stable).is_none() {
            let _ = ep.block_on(ep.wait_until(Instant::NEVER, is_stable));
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
    /// [`MemoryFull`], after the endpoint's timeout.
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
        let deadline = ep.deadline();
        let mut pause = PAUSE_MIN;
        loop {
            self.collect(ep);
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
            pause = (pause * 8).min(self.own.lease() / 2);
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
    fn collect(&self, ep: &Endpoint) {
        if self.collects.compare_exchange(0, 1).is_err() {
            let is_over = || (self.collects.load() == 0).then_some(());
            let _ = ep.block_on(ep.wait_until(ep.deadline(), is_over));
            return;
        }
        let _collecting = Collecting(self);
        let until = self.needed_from(ep);
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
    }

    /// The version from which on readers need what was replaced.
    fn needed_from(&self, ep: &Endpoint) -> u64 {
        let mut watched = core::mem::take(&mut *self.watched.lock());
        // It is in memory, since atomics change it. What is read next is read after it (`CR → CR`, `CR → NRR`): a reader that has not announced
        // itself by then finds it, or a later one.
        let stable = self.stable();
        let mut from = stable;
        let seats = self.own.count();
        let lease = self.own.lease();
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
        let (own, others) = watched.split_at_mut(seats);
        let now = ep.now();
        self.own.each().zip(own).for_each(|(announced, of)| see(of, announced, now, ep.now()));
        for ((node, region), watched) in self.theirs.iter().zip(others.chunks_mut(seats)) {
            if matches!(self.node.status_of(*node), MemberStatus::Departed | MemberStatus::Evicted) {
                continue;
            }
            let asked = ep.now();
            let read = ep.buf::<u64>(seats * SEAT_WORDS).and_then(|into| ep.get_into(*region, into).wait());
            let answered = ep.now();
            for (seat, of) in watched.iter_mut().enumerate() {
                let announced = match &read {
                    Ok(words) => Announced::of(&words[seat * SEAT_WORDS..]),
                    // It may have died. Until that is decided its readers count as stopped.
                    Err(_) => of.map_or(Announced::UNKNOWN, |(last, _)| last),
                };
                see(of, announced, asked, answered);
            }
        }
        *self.watched.lock() = watched;
        from
    }
}

/// The end of a collection.
struct Collecting<'a>(&'a Arena);

impl Drop for Collecting<'_> {
    fn drop(&mut self) {
        self.0.collects.store(0);
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
