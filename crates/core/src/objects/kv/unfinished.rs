//! Inserts and deletes that were cut short: by a timeout, an error, or a future that was dropped.
//!
//! Announcements of different writers have no order. The lock of a key orders its changes: it is not released before
//! all live nodes have applied a change that was sent to some of them. An operation that cannot wait for that leaves
//! the lock taken. It passes the lock, and the change that must be undone, to the service thread, which
//!
//! 1. clears the slot's valid bit, visibly;
//! 2. orders all nodes to drop the key, and waits until they have;
//! 3. frees the slot, and only then releases the lock.
//!
//! A change of a key's time that is cut short has nothing to undo: its lock is released when all nodes have applied it.
//!
//! Until then other operations on the key's lock wait, and time out if a node does not apply the change. An insert
//! that is undone has not happened; a delete is completed. If the home of the key's lock dies meanwhile, the operation
//! counts as pending there ([`death`](super::death)) until then.

use std::sync::{Arc, Weak};

use farfield_fabric::Endpoint;

use super::index::{Entry, Index};
use super::locks::Locked;
use super::recovery::Staying;
use super::slots::{Meta, Slots};
use super::tracker::{Change, Tracker};
use crate::node::{Node, Poller, Progress};
use crate::objects::codec::Key;
use crate::objects::mutex::{HeldLock, MutexArray};

/// The state by which the service thread completes an insert or delete.
pub(super) struct Work<K> {
    pub(super) tracker: Arc<Tracker<K>>,
    pub(super) index: Arc<Index<K>>,
    pub(super) slots: Arc<Slots>,
}

/// The lock of a key in the middle of an insert or delete. If it is dropped before [`Changing::finish`], the service
/// thread gets it, with the change.
pub(super) struct Changing<'a, 'k, K: Key> {
    node: &'a Node,
    work: Option<Work<K>>,
    locked: Option<Locked<'a>>,
    pub(super) key: &'k K,
    pub(super) entry: Entry,
}

impl<'a, 'k, K: Key> Changing<'a, 'k, K> {
    pub(super) fn new(node: &'a Node, work: Work<K>, locked: Locked<'a>, key: &'k K, entry: Entry) -> Self {
        Changing { node, work: Some(work), locked: Some(locked), key, entry }
    }

    /// The change is complete: all nodes have applied it.
    pub(super) fn finish(mut self) -> Locked<'a> {
        self.work = None;
        self.locked.take().expect("it is there until it is finished or dropped")
    }
}

impl<K: Key> Drop for Changing<'_, '_, K> {
    fn drop(&mut self) {
        let (Some(work), Some(Locked { guard, entered, .. })) = (self.work.take(), self.locked.take()) else { return };
        // This endpoint's puts to the slot land before the service thread, which has another, clears it.
        let endpoint = guard.endpoint();
        // Where that fails it may land later, as long as the slot's node is not out for good.
        let fenced = endpoint.block_on(self.node.fence_live_nodes(endpoint, [self.entry.slot.node()].into_iter()));
        let may_land = fenced.map_or_else(|error| error.is_refused(), |lost| !lost.is_empty());
        let (key, entry, lock) = (self.key.clone(), self.entry, Some((guard.hand_over(), entered.hand_over())));
        let node = self.node.for_service();
        let (cleared, told, dropped, freed, unasked) = (false, None, false, false, None);
        let unfinished = Unfinished { node, work, key, entry, lock, may_land, cleared, told, dropped, freed, unasked };
        self.node.add_poller(Box::new(unfinished));
    }
}

/// The lock of a key while its new time is announced. If it is dropped before [`Renewing::finish`], the service thread
/// gets it, and releases it when the announcement is applied: one that is late would replace the time of a later call.
pub(super) struct Renewing<'a, 'k, K: Key> {
    node: &'a Node,
    work: Option<Work<K>>,
    locked: Option<Locked<'a>>,
    key: &'k K,
    entry: Entry,
    /// The position of the announcement.
    pub(super) told: Option<u64>,
}

impl<'a, 'k, K: Key> Renewing<'a, 'k, K> {
    pub(super) fn new(node: &'a Node, work: Work<K>, locked: Locked<'a>, key: &'k K, entry: Entry) -> Self {
        Renewing { node, work: Some(work), locked: Some(locked), key, entry, told: None }
    }

    /// All nodes have applied it.
    pub(super) fn finish(mut self) -> Locked<'a> {
        self.work = None;
        self.locked.take().expect("it is there until it is finished or dropped")
    }
}

impl<K: Key> Drop for Renewing<'_, '_, K> {
    fn drop(&mut self) {
        let (Some(work), Some(Locked { guard, entered, .. })) = (self.work.take(), self.locked.take()) else { return };
        // Nothing was put under the lock. After an error, some nodes may have got it nevertheless.
        let told = self.told.unwrap_or_else(|| work.tracker.position());
        let lock = (guard.hand_over(), entered.hand_over());
        let rest = Unfinished::of_lock(self.node.for_service(), work, self.key.clone(), self.entry, lock);
        self.node.add_poller(Box::new(Unfinished { told: Some(told), dropped: false, ..rest }));
    }
}

pub(super) struct Unfinished<K> {
    node: Node,
    work: Work<K>,
    key: K,
    entry: Entry,
    lock: Option<(HeldLock, Staying)>,
    /// The endpoint that began it has put to the slot, and could not see that it has landed.
    may_land: bool,
    /// The slot is visibly not valid.
    cleared: bool,
    /// The position of the message that announces the removal.
    told: Option<u64>,
    /// All nodes have dropped the key.
    dropped: bool,
    /// The slot is free, or its allocator was notified.
    freed: bool,
    /// Of a removal that no call has begun.
    unasked: Option<Unasked>,
}

/// The removal of an expired key.
pub(super) struct Unasked {
    /// With the store's handle it ends but for the lock: a node that closes the store at the same time acknowledges
    /// nothing, and no call waits for this one.
    pub(super) store: Weak<MutexArray>,
    /// As long as it lives, it counts here.
    pub(super) _counted: Arc<()>,
}

impl<K: Key> Unfinished<K> {
    /// The rest of a delete of a pair in this node's memory, after its valid bit was cleared.
    pub(super) fn of_cleared(
        node: Node,
        work: Work<K>,
        key: K,
        entry: Entry,
        lock: (HeldLock, Staying),
        unasked: Unasked,
    ) -> Unfinished<K> {
        let (dropped, freed, unasked) = (false, false, Some(unasked));
        Unfinished { dropped, freed, told: None, unasked, ..Unfinished::of_lock(node, work, key, entry, lock) }
    }

    /// A lock under which nothing is left to do: it is only released.
    pub(super) fn of_lock(node: Node, work: Work<K>, key: K, entry: Entry, lock: (HeldLock, Staying)) -> Unfinished<K> {
        let (lock, told, unasked) = (Some(lock), Some(0), None);
        let (may_land, cleared, dropped, freed) = (false, true, true, true);
        Unfinished { node, work, key, entry, lock, may_land, cleared, told, dropped, freed, unasked }
    }

    /// Whether the others need not wait for it any more.
    fn is_given_up(&self) -> bool {
        self.unasked.as_ref().is_some_and(|unasked| unasked.store.strong_count() == 0)
    }

    /// The next step; whether one was possible.
    fn step(&mut self, endpoint: &Endpoint) -> bool {
        let Unfinished { node, work, key, entry, .. } = self;
        let Work { tracker, index, slots } = work;
        // The call itself has cleared a slot of this node, by a store: before it could be cut short.
        if !self.cleared && entry.slot.node() != node.id() {
            // If the slot's node is evicted or has left, no node reads it any more.
            if self.may_land {
                self.cleared = node.fenced_error(endpoint, entry.slot.node()).is_some();
                return self.cleared;
            }
            let meta = Meta { counter: entry.counter, valid: false }.packed();
            let put = endpoint.put_value(entry.slot, meta).wait();
            // A round trip.
            let fenced = put.and_then(|()| endpoint.block_on(endpoint.global_fence([entry.slot.node()])));
            if fenced.as_ref().is_err_and(farfield_fabric::Error::is_refused) {
                return false; // once more, later
            }
            self.may_land = fenced.is_err();
            self.cleared = fenced.is_ok();
            return true;
        }
        if self.told.is_none() {
            index.remove(key, *entry);
            self.told = tracker.try_tell(key, Change::Remove { entry: *entry }).ok().flatten();
            return self.told.is_some();
        }
        if !self.dropped {
            self.dropped = self.told.is_some_and(|position| tracker.is_applied(endpoint, position));
            return self.dropped;
        }
        if !self.freed {
            if slots.is_ours(entry.slot) {
                slots.free(entry.slot);
            } else if !matches!(tracker.try_tell(key, Change::Free { entry: *entry }), Ok(Some(_))) {
                return false;
            }
            self.freed = true;
        }
        let is_released = self.lock.as_ref().is_none_or(|(lock, _)| lock.release(endpoint) == Progress::Done);
        if is_released {
            self.lock = None;
        }
        is_released
    }
}

impl<K: Key> Poller for Unfinished<K> {
    fn poll(&mut self, endpoint: &Endpoint) -> Progress {
        if self.node.fabric().is_fenced() {
            return Progress::Done; // the others take the lock from this node, and repair its changes
        }
        if self.is_given_up() {
            // No node applies it any more, and none waits for it; but for the lock.
            (self.told, self.dropped, self.freed) = (Some(0), true, true);
        }
        let has_advanced = self.step(endpoint);
        if self.lock.is_none() {
            Progress::Done
        } else if has_advanced {
            Progress::Busy
        } else {
            Progress::Retry
        }
    }

    fn must_finish_before_leave(&self) -> bool {
        true
    }
}
