//! Removes keys when their time is up.
//!
//! No clock is common to all nodes, so only one of them measures a key's time: the one that has the value, its home. It
//! knows of every such key of its own:
//!
//! - A call on the home notes the time there itself ([`Expiries::set`]).
//! - A call on another node announces it through its tracker (`Change::Expire`), under the key's lock, and waits for
//!   the acknowledgements. So the home notes the times of a key in the order of the calls.
//!
//! When the time is up, the home's service thread ([`Expirer`])
//!
//! 1. takes the key's lock if it is free, and otherwise tries again after [`PAUSE`]: it must not wait for a lock, since
//!    its holder may wait for this thread's acknowledgement;
//! 2. looks again, under the lock: the key may have been removed meanwhile, or have another time;
//! 3. clears the valid bit, which is in its own memory: the linearization point, as of a delete;
//! 4. leaves the rest, and the lock, to the poller that completes a delete that was cut short
//!    ([`unfinished`](super::unfinished)).
//!
//! The lock may be one that a dead node held. The removal needs no repair of the other keys, only that the dead are
//! settled: then the key's entry is the same in all indexes, and nothing of the dead can land. The mark stays for the
//! next holder.
//!
//! Where the store's handle is dropped, a removal ends with the release of the lock. Nodes close a store at about the
//! same time, and one that has closed it acknowledges nothing.
//!
//! A slot has one time, so that there is always room for it: the next use replaces it, or finds it useless. If the home
//! dies, the value is lost, and so is its time.

use core::time::Duration;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Weak};

use farfield_fabric::{Endpoint, Instant, LocalMutex, Region};

use super::index::{Entry, Index};
use super::locks::Stripes;
use super::recovery::{Deaths, Staying};
use super::slots::{Meta, Slots};
use super::tracker::Tracker;
use super::unfinished::{Unasked, Unfinished, Work};
use crate::node::{Node, Poller, Progress};
use crate::objects::codec::Key;
use crate::objects::mutex::{HeldLock, MutexArray};

/// A key is tried again after so long if its lock is held when its time is up, or it cannot be removed yet.
const PAUSE: Duration = Duration::from_millis(1);
/// Keys that one poll removes, each with an attempt at its lock.
const TURN: usize = 8;
/// Removals that are not yet complete on all nodes. Each is a poller, and keeps a lock.
const REMOVALS_MAX: usize = 64;

/// The keys of this node's values that have a time.
pub(super) struct Expiries<K> {
    /// The service thread holds this: it must not keep the node in its session.
    node: Node,
    table: LocalMutex<Table<K>>,
}

struct Table<K> {
    /// By the places of their slots.
    timed: HashMap<u64, Timed<K>>,
    /// The moments of the next attempts, with the places.
    queue: BTreeSet<(Instant, u64)>,
    /// The poller, as long as no key has had a time: then the service thread need not know of it.
    poller: Option<Box<dyn Poller>>,
}

/// A key that has a time.
#[derive(Clone)]
struct Timed<K> {
    key: K,
    entry: Entry,
    /// When its time is up.
    due: Instant,
    /// When it is tried next: then, or later.
    next: Instant,
}

impl<K: Key> Expiries<K> {
    pub(super) fn new(node: Node) -> Expiries<K> {
        let table = Table { timed: HashMap::new(), queue: BTreeSet::new(), poller: None };
        Expiries { node, table: LocalMutex::new(table) }
    }

    /// Gives it the poller, which it passes to the service thread with the first key. Others may have announced one
    /// while this node was still opening the store.
    pub(super) fn has_poller(&self, poller: Expirer<K>) {
        let mut table = self.table.lock();
        if table.timed.is_empty() {
            table.poller = Some(Box::new(poller));
            return;
        }
        drop(table);
        self.node.add_poller(Box::new(poller));
    }

    /// Notes when the time of a key is up, in place of an earlier note. [`Instant::NEVER`]: it has no time.
    ///
    /// The caller holds the key's lock, or acts for a node that does.
    pub(super) fn set(&self, key: &K, entry: Entry, due: Instant) {
        let place = entry.slot.packed();
        let mut table = self.table.lock();
        if let Some(before) = table.timed.remove(&place) {
            table.queue.remove(&(before.next, place));
        }
        if due == Instant::NEVER {
            return;
        }
        table.timed.insert(place, Timed { key: key.clone(), entry, due, next: due });
        table.queue.insert((due, place));
        let is_next = table.queue.first() == Some(&(due, place));
        let poller = table.poller.take();
        drop(table);
        match poller {
            Some(poller) => self.node.add_poller(poller),
            // The service thread may sleep until a later moment.
            None if is_next => self.node.fabric().wake_service(),
            None => {}
        }
    }

    /// The time that is left to a use of a slot, if it has one.
    pub(super) fn left(&self, entry: Entry, now: Instant) -> Option<Duration> {
        let table = self.table.lock();
        let timed = table.timed.get(&entry.slot.packed()).filter(|timed| timed.entry == entry)?;
        Some(timed.due - now)
    }

    /// The next moment of an attempt, with its key.
    fn next(&self) -> Option<(Instant, Timed<K>)> {
        let table = self.table.lock();
        let (next, place) = table.queue.first()?;
        Some((*next, table.timed.get(place)?.clone()))
    }

    /// Whether a key still has this time.
    fn is_current(&self, timed: &Timed<K>) -> bool {
        let table = self.table.lock();
        let found = table.timed.get(&timed.entry.slot.packed());
        found.is_some_and(|found| (found.entry, found.due) == (timed.entry, timed.due))
    }

    /// Tries a key again at that moment, or never, unless it has another time by now.
    fn end_attempt(&self, timed: &Timed<K>, again: Option<Instant>) {
        let place = timed.entry.slot.packed();
        let mut table = self.table.lock();
        let Table { timed: all, queue, .. } = &mut *table;
        let Some(found) = all.get_mut(&place).filter(|found| (found.entry, found.due) == (timed.entry, timed.due))
        else {
            return;
        };
        queue.remove(&(found.next, place));
        match again {
            Some(again) => {
                found.next = again;
                queue.insert((again, place));
            }
            None => _ = all.remove(&place),
        }
    }
}

/// Removes the expired keys, on the service thread. It does not keep the store open.
pub(super) struct Expirer<K> {
    node: Node,
    expiries: Weak<Expiries<K>>,
    tracker: Weak<Tracker<K>>,
    index: Weak<Index<K>>,
    locks: Weak<MutexArray>,
    slots: Arc<Slots>,
    deaths: Arc<Deaths>,
    stripes: Stripes,
    /// This node's slots.
    region: Region,
    /// One more count for each removal that is not complete.
    removals: Arc<()>,
}

/// The handles of an open store.
pub(super) struct Open<K> {
    pub(super) expiries: Arc<Expiries<K>>,
    pub(super) tracker: Arc<Tracker<K>>,
    pub(super) index: Arc<Index<K>>,
    pub(super) locks: Arc<MutexArray>,
}

impl<K: Key> Expirer<K> {
    pub(super) fn new(
        node: Node,
        open: &Open<K>,
        slots: Arc<Slots>,
        deaths: Arc<Deaths>,
        stripes: Stripes,
        region: Region,
    ) -> Expirer<K> {
        let (expiries, tracker) = (Arc::downgrade(&open.expiries), Arc::downgrade(&open.tracker));
        let (index, locks, removals) = (Arc::downgrade(&open.index), Arc::downgrade(&open.locks), Arc::new(()));
        Expirer { node, expiries, tracker, index, locks, slots, deaths, stripes, region, removals }
    }

    fn open(&self) -> Option<Open<K>> {
        let (expiries, tracker) = (self.expiries.upgrade()?, self.tracker.upgrade()?);
        Some(Open { expiries, tracker, index: self.index.upgrade()?, locks: self.locks.upgrade()? })
    }

    /// Removes an expired key, if that is possible now. Returns whether the attempt was the last.
    fn expire(&self, endpoint: &Endpoint, open: &Open<K>, timed: &Timed<K>) -> bool {
        let Timed { key, entry, .. } = timed;
        if open.index.get(key) != Some(*entry) {
            return true; // removed: the slot's next use has a time of its own, or none
        }
        let Some((held, staying, is_whole)) = self.try_lock(endpoint, open, key) else { return false };
        let is_settled = is_whole || self.deaths.are_settled(endpoint);
        // Another may have had the lock since this thread has looked.
        let is_there = open.index.get(key) == Some(*entry);
        let is_up = is_settled && is_there && open.expiries.is_current(timed);
        if is_up {
            let meta = |valid| Meta { counter: entry.counter, valid }.packed();
            let offset = entry.slot.offset() - self.region.remote::<u64>(0).offset();
            // The linearization point: in one step before any index loses the key. A delete that a dead node has begun
            // may have cleared it.
            let _ = self.region.word(offset as usize).compare_exchange(meta(true), meta(false));
        }
        let work =
            Work { tracker: Arc::clone(&open.tracker), index: Arc::clone(&open.index), slots: Arc::clone(&self.slots) };
        let (node, lock) = (self.node.for_service(), (held, staying));
        let rest = if is_up {
            Unfinished::of_cleared(node, work, key.clone(), *entry, lock, self.unasked())
        } else {
            Unfinished::of_lock(node, work, key.clone(), *entry, lock)
        };
        self.node.add_poller(Box::new(rest));
        is_settled
    }

    fn unasked(&self) -> Unasked {
        Unasked { store: Weak::clone(&self.locks), _counted: Arc::clone(&self.removals) }
    }

    /// Takes the lock of a key if it is free, at its present home. Also returns whether it needs no repair.
    fn try_lock(&self, endpoint: &Endpoint, open: &Open<K>, key: &K) -> Option<(HeldLock, Staying, bool)> {
        let stripe = self.stripes.of(key);
        let first = self.stripes.home(stripe);
        let home = self.deaths.place(first);
        if home != first && !self.deaths.are_settled(endpoint) {
            return None;
        }
        let entered = self.deaths.enter(home)?;
        let lock = self.stripes.lock_on(stripe, home);
        // A few round trips at most. An error names a dead home, and the lock is about to move; or the store is
        // reopened.
        let guard = endpoint.block_on(open.locks.try_lock(endpoint, lock)).ok()??;
        let is_whole = !guard.is_poisoned() && (home == first || self.deaths.is_repaired(stripe, lock));
        // Nothing was put under it.
        Some((guard.hand_over(), entered.hand_over(), is_whole))
    }
}

impl<K: Key> Poller for Expirer<K> {
    fn poll(&mut self, endpoint: &Endpoint) -> Progress {
        let Some(open) = self.open() else { return Progress::Done };
        // Its values are lost to the others. While the thread leaves, it would not take the rest of a removal.
        if self.node.fabric().is_fenced() || self.node.is_leaving() {
            return Progress::Done;
        }
        let (now, mut has_removed) = (endpoint.now(), false);
        for _ in 0..TURN {
            let progress = match open.expiries.next() {
                None => Progress::Idle,
                Some((next, _)) if next > now => Progress::Until(next),
                Some(_) if Arc::strong_count(&self.removals) > REMOVALS_MAX => Progress::Until(now + PAUSE),
                Some((_, timed)) => {
                    let is_last = self.expire(endpoint, &open, &timed);
                    open.expiries.end_attempt(&timed, (!is_last).then(|| now + PAUSE));
                    has_removed |= is_last;
                    continue;
                }
            };
            // The rest of a removal is for a poller that the thread has not taken yet.
            return if has_removed { Progress::Busy } else { progress };
        }
        // Held locks of keys, or a store that was reopened, do not keep the thread busy.
        if has_removed { Progress::Busy } else { Progress::Until(now + PAUSE) }
    }
}
