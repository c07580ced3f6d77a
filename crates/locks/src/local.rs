//! The queue of the operations of an ALock's own node. Their threads use only CPU atomics and memory fences.
//!
//! The entries are like those of the remote queue (`queue.rs`), but have their own free list, and only this process
//! reads them. All of them belong to one process, so none outlives the others.
//!
//! ```text
//! +0   ┌───────┐
//!      │ next  │  the entry behind it; 0: nobody has said so
//! +8   ├───────┤
//!      │ grant │  0: it waits; else what it was handed
//! +16  ├───────┤
//!      │       │  padding, so that two operations never share a line
//! +64  └───────┘
//! ```

use std::sync::Arc;

use farfield_fabric::{self as fabric, Endpoint, Region, RemotePtr, Word, memory_fence};

use super::alock::layout::{BURIALS, BURIED, CLAIMS, LOCAL, REPAIRED, TAIL_LOCAL, TAIL_REMOTE, VICTIM, WORDS};
use super::descriptor::Id;
use super::grant::{CHECK_EVERY, Grant, LOCK, Wait};
use super::number_pool::NumberPool;
use super::queue::{Queue, deaths_told};
use farfield_core::Result;
use farfield_core::toolkit::{Poller, Progress};

const BYTES: usize = 64;
const NEXT: usize = 0;
const GRANT: usize = 1;

/// The local side of the locks of this node.
pub(super) struct Local {
    /// The locks' records.
    locks: Region,
    /// The first word of them.
    first: RemotePtr<u64>,
    descriptors: Region,
    /// The free list of the descriptors.
    slots: NumberPool,
    /// The queue of the remote cohort.
    queue: Arc<Queue>,
}

/// An operation of the lock's own node. If it is dropped in any stage, the service thread takes it over, as with a
/// remote one.
pub(super) struct LocalEntry<'a> {
    local: &'a Arc<Local>,
    endpoint: &'a Endpoint,
    operation: Option<LocalOperation>,
}

/// An operation at the head, as a guard holds it: see [`Local::at_head`].
#[derive(Clone, Copy)]
pub(super) struct LocalHead {
    pub(super) lock: u32,
    pub(super) slot: u32,
    pub(super) offset: usize,
}

#[derive(Clone, Copy)]
struct LocalOperation {
    lock: usize,
    /// The offset of the lock's record.
    offset: usize,
    slot: usize,
    stage: Stage,
    next_grant: Grant,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Outside,
    Behind,
    Head,
    /// It has left the head, but another operation is behind it.
    Leaving,
}

impl Local {
    /// The number of bytes that so many concurrent operations need.
    pub(super) fn bytes(operations_max: usize) -> usize {
        operations_max * BYTES
    }

    /// `locks` holds the records of the locks, from `first` on, and `descriptors` the entries of the operations.
    pub(super) fn new(locks: Region, first: RemotePtr<u64>, descriptors: Region, queue: Arc<Queue>) -> Arc<Local> {
        let slots = NumberPool::new("local descriptors", descriptors.bytes() / BYTES);
        Arc::new(Local { locks, first, descriptors, slots, queue })
    }

    /// The offset of a lock's record among those of this node, in bytes.
    #[inline]
    pub(super) fn offset(&self, record: RemotePtr<u64>) -> usize {
        (record.offset() - self.first.offset()) as usize
    }

    /// How many descriptors are in use.
    #[cfg(all(feature = "scenarios", not(test)))]
    pub(super) fn in_use(&self) -> usize {
        self.slots.in_use()
    }

    /// An operation that is not queued yet.
    ///
    /// # Errors
    /// All descriptors are in use.
    #[inline]
    pub(super) fn entry<'a>(
        self: &'a Arc<Self>,
        endpoint: &'a Endpoint,
        lock: usize,
        offset: usize,
    ) -> Result<LocalEntry<'a>> {
        let slot = self.slots.take(endpoint)?;
        let (stage, next_grant) = (Stage::Outside, Grant::new(0, false));
        Ok(LocalEntry {
            local: self,
            endpoint,
            operation: Some(LocalOperation { lock, offset, slot, stage, next_grant }),
        })
    }

    /// An operation at the head, for its next step.
    #[inline]
    pub(super) fn at_head<'a>(
        self: &'a Arc<Self>,
        endpoint: &'a Endpoint,
        head: LocalHead,
        next_grant: Grant,
    ) -> LocalEntry<'a> {
        let LocalHead { lock, slot, offset } = head;
        let (lock, slot) = (lock as usize, slot as usize);
        LocalEntry {
            local: self,
            endpoint,
            operation: Some(LocalOperation { lock, offset, slot, stage: Stage::Head, next_grant }),
        }
    }

    /// Enters an empty queue. None if it is not empty, or no descriptor was found at the first look: then nothing has
    /// happened.
    #[inline(always)]
    pub(super) fn enters_at_once(&self, endpoint: &Endpoint, lock: usize, offset: usize) -> Option<LocalHead> {
        let slot = self.slots.take_at_once(endpoint)?;
        self.begins(slot);
        if tail(self.locks.words(offset, WORDS)).compare_exchange(0, Local::name(slot)).is_err() {
            self.slots.give_back(slot);
            return None;
        }
        Some(LocalHead { lock: lock as u32, slot: slot as u32, offset })
    }

    /// Leaves the head if no operation is behind. Returns whether it has.
    #[inline(always)]
    pub(super) fn leaves_at_once(&self, endpoint: &Endpoint, head: LocalHead) -> bool {
        let slot = head.slot as usize;
        let is_last = self.word(slot, NEXT).load() == 0
            && tail(self.locks.words(head.offset, WORDS)).compare_exchange(Local::name(slot), 0).is_ok();
        if is_last {
            endpoint.wake_local(); // the head of the remote queue may sleep until it sees the tail
            self.slots.give_back(slot);
        }
        is_last
    }

    /// The head of the local queue competes with that of the remote one. Returns whether it has won.
    #[inline]
    pub(super) fn competes(&self, endpoint: &Endpoint, head: LocalHead) -> bool {
        let has_won = competes(self.locks.words(head.offset, WORDS));
        endpoint.wake_local(); // the head of the remote queue may sleep until it sees the victim
        has_won
    }

    /// The number of deaths that may have left something half-written, and how many of them were repaired.
    #[inline]
    pub(super) fn deaths(&self, head: LocalHead) -> (u64, u64) {
        let record = self.locks.words(head.offset, WORDS);
        (deaths(record), record[REPAIRED].load())
    }

    /// Prepares a descriptor, before other threads can know of the entry (`CW → CAS`).
    #[inline]
    fn begins(&self, slot: usize) {
        self.word(slot, NEXT).store(0);
        self.word(slot, GRANT).store(0);
    }

    /// Records that everything left by dead holders is repaired.
    pub(super) fn tell_repaired(&self, head: LocalHead) {
        let record = self.locks.words(head.offset, WORDS);
        record[REPAIRED].store(deaths(record));
    }

    #[inline]
    fn record(&self, operation: &LocalOperation) -> &[Word] {
        self.locks.words(operation.offset, WORDS)
    }

    /// A word of a descriptor.
    #[inline]
    fn word(&self, slot: usize, word: usize) -> &Word {
        &self.descriptors.words(slot * BYTES, 2)[word]
    }

    /// The name of an operation in the local queue.
    fn name(slot: usize) -> u64 {
        slot as u64 + 1
    }

    /// Grants the lock to the operation behind, if it has linked itself. Returns whether it has.
    fn hand_over(&self, endpoint: &Endpoint, operation: &LocalOperation) -> bool {
        let Some(next) = self.word(operation.slot, NEXT).load().checked_sub(1) else { return false };
        // The holder's stores come before this one (`CW → CW`).
        self.word(next as usize, GRANT).store(operation.next_grant.word());
        endpoint.wake_local();
        self.slots.give_back(operation.slot);
        true
    }

    /// Empties the queue if no other operation is behind. Returns whether it did.
    fn empties(&self, endpoint: &Endpoint, operation: &mut LocalOperation) -> bool {
        if tail(self.record(operation)).compare_exchange(Local::name(operation.slot), 0).is_ok() {
            endpoint.wake_local(); // as in `leaves_at_once`
            self.slots.give_back(operation.slot);
            return true;
        }
        operation.stage = Stage::Leaving;
        false
    }
}

/// The tail of the local queue.
#[inline]
fn tail(record: &[Word]) -> &Word {
    &record[TAIL_LOCAL]
}

/// The head of the local queue lets that of the remote one pass, unless it does the same. Returns whether it has won.
#[inline]
fn competes(record: &[Word]) -> bool {
    record[VICTIM].store(LOCAL);
    memory_fence(); // the store reaches memory before the reads (`CW → MF → CR`)
    wins(record).is_some()
}

/// The number of deaths that may have left something half-written.
#[inline]
fn deaths(record: &[Word]) -> u64 {
    deaths_told(record[CLAIMS].load()) + record[BURIALS].load()
}

/// Whether the head of the local queue has the lock.
#[inline]
fn wins(record: &[Word]) -> Option<()> {
    let tail = record[TAIL_REMOTE].load();
    let is_empty = tail == 0 || tail == record[BURIED].load();
    (is_empty || record[VICTIM].load() != LOCAL).then_some(())
}

impl LocalEntry<'_> {
    #[inline]
    fn operation(&self) -> &LocalOperation {
        self.operation.as_ref().expect("it has not left")
    }

    /// Leaves the operation to a guard, at the head.
    #[inline]
    pub(super) fn into_head(mut self) -> LocalHead {
        let LocalOperation { lock, offset, slot, .. } = self.operation.take().expect("it has not left");
        LocalHead { lock: lock as u32, slot: slot as u32, offset }
    }

    /// Enters the queue; with `only_if_empty`, only if it is empty. Returns whether the operation is at the head.
    #[inline]
    pub(super) fn enqueue(&mut self, only_if_empty: bool) -> bool {
        let local = self.local;
        let operation = self.operation.as_mut().expect("it has not left");
        local.begins(operation.slot);
        let tail = tail(local.record(operation));
        let mut found = 0;
        while let Err(other) = tail.compare_exchange(found, Local::name(operation.slot)) {
            if only_if_empty {
                return false;
            }
            found = other;
        }
        let Some(pred) = found.checked_sub(1) else {
            operation.stage = Stage::Head;
            return true;
        };
        operation.stage = Stage::Behind;
        local.word(pred as usize, NEXT).store(Local::name(operation.slot));
        self.endpoint.wake_local();
        false
    }

    /// Waits until the operation is at the head. Returns its grant.
    pub(super) async fn granted(&mut self, wait: &mut Wait<'_>) -> Result<Grant> {
        let (local, endpoint) = (self.local, self.endpoint);
        let grant = local.word(self.operation().slot, GRANT);
        loop {
            let granted = || Grant::of(grant.load());
            let granted = match endpoint.spin_until(granted) {
                Some(grant) => Ok(grant),
                None => endpoint.wait_until(wait.slice(endpoint), granted).await,
            };
            if let Ok(grant) = granted {
                let operation = self.operation.as_mut().expect("it has not left");
                (operation.stage, operation.next_grant) = (Stage::Head, grant);
                return Ok(grant);
            }
            if local.queue.is_fenced() {
                return Err(fabric::Error::from(fabric::ErrorKind::Fenced).into());
            }
            if let Some(late) = wait.is_late(endpoint, LOCK, None) {
                return Err(late);
            }
        }
    }

    /// Competes with the head of the remote queue. Returns whether it has won.
    pub(super) fn competes(&self) -> bool {
        let has_won = competes(self.local.record(self.operation()));
        self.endpoint.wake_local(); // as in `Local::competes`
        has_won
    }

    /// Waits until it has won, after [`LocalEntry::competes`], which names the victim. Returns false if it may not
    /// wait.
    pub(super) async fn wins(&mut self, wait: &mut Wait<'_>) -> Result<bool> {
        let (local, endpoint) = (self.local, self.endpoint);
        let record = local.record(self.operation());
        loop {
            if wait.is_forbidden() {
                return Ok(false);
            }
            if endpoint.spin_until(|| wins(record)).is_some()
                || endpoint.wait_until(wait.slice(endpoint), || wins(record)).await.is_ok()
            {
                return Ok(true);
            }
            if local.queue.is_fenced() {
                return Err(fabric::Error::from(fabric::ErrorKind::Fenced).into());
            }
            let tail = Id(record[TAIL_REMOTE].load());
            if local.queue.is_evicted(tail)
                && endpoint.boxed(local.queue.is_deserted(endpoint, self.operation().lock)).await
            {
                // All entries in front of that tail are dead as well. Later entries queue behind it, and compete.
                record[BURIALS].store(record[BURIALS].load() + 1);
                record[BURIED].store(tail.0);
                return Ok(true);
            }
            if let Some(late) = wait.is_late(endpoint, LOCK, tail.node()) {
                return Err(late);
            }
        }
    }

    /// Leaves the head: grants the lock to the operation behind, or empties the queue. Returns itself if neither is
    /// possible yet, since the operation behind is about to link itself.
    #[inline]
    pub(super) fn leave_at_once(mut self) -> Result<(), Self> {
        let operation = self.operation.as_mut().expect("it has not left");
        if self.local.hand_over(self.endpoint, operation) || self.local.empties(self.endpoint, operation) {
            self.operation = None;
            return Ok(());
        }
        Err(self)
    }

    /// Waits for the link of the operation behind, after [`LocalEntry::leave_at_once`], and grants it the lock. If the
    /// link takes long, the service thread waits for it.
    pub(super) async fn leave(mut self) {
        let (local, endpoint) = (self.local, self.endpoint);
        let operation = *self.operation();
        let next = local.word(operation.slot, NEXT);
        let told = || (next.load() != 0).then_some(());
        if endpoint.wait_until(endpoint.now() + CHECK_EVERY, told).await.is_ok() {
            local.hand_over(endpoint, &operation);
            self.operation = None;
        }
    }

    /// Leaves the head without having held the lock. It never waits.
    pub(super) fn back_out(mut self) {
        let (local, endpoint) = (self.local, self.endpoint);
        let operation = self.operation.as_mut().expect("it has not left");
        if local.hand_over(endpoint, operation) || local.empties(endpoint, operation) {
            self.operation = None;
        }
    }

    /// Returns a step function by which another thread leaves the head later.
    pub(super) fn leave_later(mut self) -> impl FnMut(&Endpoint) -> Progress + Send + 'static {
        let operation = self.operation.take().expect("it has not left");
        let mut left = LocalLeft { local: Arc::clone(self.local), operation };
        move |endpoint| left.poll(endpoint)
    }
}

impl Drop for LocalEntry<'_> {
    fn drop(&mut self) {
        let Some(operation) = self.operation.take() else { return };
        match operation.stage {
            Stage::Outside => self.local.slots.give_back(operation.slot),
            _ => self.local.queue.leave_to_service(LocalLeft { local: Arc::clone(self.local), operation }),
        }
    }
}

/// An abandoned operation, in the care of the service thread.
struct LocalLeft {
    local: Arc<Local>,
    operation: LocalOperation,
}

impl Poller for LocalLeft {
    fn must_finish_before_leave(&self) -> bool {
        true
    }

    fn poll(&mut self, endpoint: &Endpoint) -> Progress {
        let (local, operation) = (&self.local, &mut self.operation);
        if local.queue.is_fenced() {
            return Progress::Done; // this node is evicted: the lock is lost to all its threads
        }
        match operation.stage {
            Stage::Outside => Progress::Done,
            Stage::Behind => match Grant::of(local.word(operation.slot, GRANT).load()) {
                Some(grant) => {
                    (operation.stage, operation.next_grant) = (Stage::Head, grant);
                    Progress::Busy
                }
                None => Progress::Idle,
            },
            Stage::Head | Stage::Leaving if local.hand_over(endpoint, operation) => Progress::Done,
            Stage::Head => {
                if local.empties(endpoint, operation) {
                    Progress::Done
                } else {
                    Progress::Idle
                }
            }
            Stage::Leaving => Progress::Idle,
        }
    }
}
