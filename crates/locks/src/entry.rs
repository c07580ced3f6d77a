//! An operation of this node in a lock's queue ([`queue`](super::queue)): how it enters, waits for its turn, and
//! leaves.

use std::sync::Arc;

use farfield_core::Result;
use farfield_core::toolkit::{CancelGuard, ErrorContext, Poller, Progress};
use farfield_fabric::{self as fabric, Endpoint, Kept, NodeId, Op, RemotePtr};

use super::descriptor::Id;
use super::grant::{CHECK_EVERY, Grant, LOCK, Wait};
use super::left::Left;
use super::queue::{Head, Operation, Queue, Spared, Stage};

/// The attempts of `try_lock`. Other operations may take and release the lock in between; after a few it counts as
/// taken.
const TRIES_MAX: u32 = 4;

/// An operation in a queue, or about to enter one. If it is dropped in any stage, the service thread takes over the
/// steps that other operations wait for.
pub(super) struct Entry<'a> {
    queue: &'a Arc<Queue>,
    endpoint: &'a Endpoint,
    /// None once another party completes the operation, or no completion is needed.
    operation: Option<Operation>,
}

/// The result of an atomic that may not be complete yet.
pub(super) type Asked<'a> = core::result::Result<u64, Op<'a, u64>>;

/// An operation that a queue has not let in, or out, at once, with the compare-and-swap that has been posted for it. If
/// it is dropped, that is waited for: its outcome must not stay unknown.
pub(super) struct Moving<'a>(Option<(Entry<'a>, Asked<'a>)>);

impl<'a> Moving<'a> {
    fn new(entry: Entry<'a>, asked: Asked<'a>) -> Moving<'a> {
        Moving(Some((entry, asked)))
    }

    /// For [`Entry::enqueue`] or [`Entry::leave`].
    pub(super) fn into_parts(mut self) -> (Entry<'a>, Asked<'a>) {
        self.0.take().expect("it is taken apart once")
    }
}

/// Waits until an operation has left: [`Entry::leave`].
pub(super) async fn leave(moving: Kept<'_, Moving<'_>>) -> Result<()> {
    let (entry, asked) = moving.into_inner().into_parts();
    entry.leave(asked).await
}

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        let Some((mut entry, Err(asked))) = self.0.take() else { return };
        let ended = entry.endpoint.block_on(asked);
        match (entry.operation().stage, ended) {
            (Stage::Asking, Ok(found)) => entry.settle(found, Id::NOBODY),
            (Stage::Asking, Err(error)) if is_outside(&error) => entry.operation_mut().stage = Stage::Outside,
            (Stage::Asking, Err(_)) => {}
            (_, Ok(found)) => entry.settle_left(found),
            (_, Err(error)) if error.is_refused() => {
                let home = entry.record().node();
                let _ = entry.is_refused(home); // an error leaks the entry: the lock stays taken
            }
            (_, Err(_)) => entry.leak(),
        }
    }
}

impl Queue {
    /// Begins an operation. If the answer is there at once, as on shared memory, and the queue was empty, the operation
    /// is at its head, and needs no entry. If not, [`Entry::enqueue`] does the rest.
    ///
    /// # Errors
    /// All descriptors are in use, or the home is unreachable.
    #[inline(always)]
    pub(super) fn enters<'a>(
        self: &'a Arc<Self>,
        endpoint: &'a Endpoint,
        record: RemotePtr<u64>,
        lock: usize,
    ) -> Result<core::result::Result<Head, Kept<'a, Moving<'a>>>> {
        let slot = self.descriptors.take(endpoint).of(&self.path)?;
        let (id, descriptor) = self.descriptors.begin(slot, lock);
        // Made anew for each call that is out of the way, so that it is in registers here.
        let (head, tail) = (|| Head { record, lock: lock as u32, id }, record);
        // A refused operation is not done, and its descriptor can be reused. After any other error this is unknown, but
        // where operations end at once.
        if !endpoint.ends_at_once()
            && let Err(error) = endpoint.check_word(tail)
        {
            self.descriptors.ends(id, lock);
            return Err(error).of(&self.path);
        }
        match endpoint.cas(tail, Id::NOBODY.0, id.0).into_value() {
            Ok(found) if found == Id::NOBODY.0 => {
                descriptor.tell_queued(id, lock, Id::NOBODY);
                Ok(Ok(head()))
            }
            Ok(found) => self.entering(endpoint, head(), Ok(found)).map(Err),
            Err(cas) => self.entering(endpoint, head(), Err(cas)).map(Err),
        }
    }

    /// An operation that is not at the head yet.
    #[cold]
    #[inline(never)]
    fn entering<'a>(
        self: &'a Arc<Self>,
        endpoint: &'a Endpoint,
        head: Head,
        asked: Asked<'a>,
    ) -> Result<Kept<'a, Moving<'a>>> {
        let asked = match asked {
            Err(cas) if endpoint.ends_at_once() => match cas.accepted() {
                Err(error) => {
                    self.descriptors.ends(head.id, head.lock as usize);
                    return Err(error).of(&self.path);
                }
                Ok(cas) => Err(cas),
            },
            asked => asked,
        };
        let mut entry = self.at_head(endpoint, head, Grant::new(0, false));
        // One that has found another tail is in no queue.
        entry.operation_mut().stage = if asked.is_ok() { Stage::Outside } else { Stage::Asking };
        Ok(endpoint.kept(|| Moving::new(entry, asked)))
    }

    /// Leaves the head: grants the lock to the operation behind, or tries to empty the queue. The caller has made its
    /// writes visible, except the spared ones. Returns the entry for [`Entry::leave`]. Nothing if it has left at once,
    /// as on shared memory, or if its grant was refused: then the service thread repeats it.
    ///
    /// # Errors
    /// The last step was refused for lack of memory, and the spared writes cannot be made visible: the lock stays
    /// taken.
    #[inline(always)]
    pub(super) fn leaves<'a>(
        self: &'a Arc<Self>,
        endpoint: &'a Endpoint,
        head: Head,
        next_grant: Grant,
        spared: Spared,
    ) -> Result<Option<Kept<'a, Moving<'a>>>> {
        if let Spared::Behind(_) | Spared::Here = spared {
            return self.hands_over(endpoint, head, next_grant, spared).map(|()| None);
        }
        // Follows earlier puts to the lock's node (`NRW → NAR`). If it fails, it has flushed them.
        match endpoint.cas(head.record, head.id.0, self.free(next_grant).0).into_value() {
            Ok(found) if found == head.id.0 => {
                self.descriptors.ends(head.id, head.lock as usize);
                Ok(None)
            }
            Ok(found) => Ok(Some(self.leaving(endpoint, head, next_grant, Ok(found)))),
            Err(cas) => Ok(Some(self.leaving(endpoint, head, next_grant, Err(cas)))),
        }
    }

    #[cold]
    #[inline(never)]
    fn hands_over(self: &Arc<Self>, endpoint: &Endpoint, head: Head, next_grant: Grant, spared: Spared) -> Result<()> {
        self.at_head(endpoint, head, next_grant).hands_over(spared)
    }

    /// An operation that has not left at once.
    #[cold]
    #[inline(never)]
    fn leaving<'a>(
        self: &'a Arc<Self>,
        endpoint: &'a Endpoint,
        head: Head,
        next_grant: Grant,
        asked: Asked<'a>,
    ) -> Kept<'a, Moving<'a>> {
        let mut entry = self.at_head(endpoint, head, next_grant);
        if let Ok(found) = asked {
            entry.settle_left(found);
        }
        endpoint.kept(|| Moving::new(entry, asked))
    }

    /// The operation of a guard, which is about to leave the head.
    #[inline]
    pub(super) fn at_head<'a>(self: &'a Arc<Self>, endpoint: &'a Endpoint, head: Head, next_grant: Grant) -> Entry<'a> {
        let Head { record, lock, id } = head;
        let operation = Operation { record, lock: lock as usize, id, stage: Stage::Head, next_grant };
        Entry { queue: self, endpoint, operation: Some(operation) }
    }
}

/// Whether a compare-and-swap with this error leaves its operation outside the queue: it was not posted, or the other
/// nodes have evicted this one and no longer write into its descriptors.
fn is_outside(error: &fabric::Error) -> bool {
    error.is_refused() || matches!(error.kind(), fabric::ErrorKind::Fenced)
}

impl<'a> Entry<'a> {
    fn operation(&self) -> &Operation {
        self.operation.as_ref().expect("it has not left")
    }

    fn operation_mut(&mut self) -> &mut Operation {
        self.operation.as_mut().expect("it has not left")
    }

    pub(super) fn endpoint(&self) -> &'a Endpoint {
        self.endpoint
    }

    /// The lock's record.
    pub(super) fn record(&self) -> RemotePtr<u64> {
        self.operation().record
    }

    /// Leaves the operation to a guard, at the head.
    #[inline]
    pub(super) fn into_head(mut self) -> Head {
        let Operation { record, lock, id, .. } = self.operation.take().expect("it has not left");
        Head { record, lock: lock as u32, id }
    }

    /// Posts the compare-and-swap that enqueues the operation behind `expected`.
    ///
    /// # Errors
    /// The home is unreachable.
    #[inline]
    fn ask(&mut self, expected: Id) -> Result<Asked<'a>> {
        let (queue, endpoint) = (self.queue, self.endpoint);
        let operation = self.operation_mut();
        let tail = operation.record;
        // A refused operation is not done, and its descriptor can be reused. After any other error this is unknown.
        endpoint.check_word(tail).of(&queue.path)?;
        operation.stage = Stage::Asking;
        Ok(endpoint.cas(tail, expected.0, operation.id.0).into_value())
    }

    /// Enters the queue after [`Queue::enters`], and links the operation to its predecessor. Returns the tail that it
    /// found. If it may not wait, it enters only a queue that is empty, or has a tail of the dead; none if it did not
    /// enter.
    ///
    /// # Errors
    /// The deadline has passed after an attempt that failed. The home is unreachable.
    pub(super) async fn enqueue(&mut self, wait: &mut Wait<'_>, mut asked: Asked<'a>) -> Result<Option<Id>> {
        let (queue, endpoint) = (self.queue, self.endpoint);
        let (mut expected, mut attempts) = (Id::NOBODY, 0);
        loop {
            let found = match asked {
                Ok(found) => Ok(found),
                Err(asked) => CancelGuard::new(endpoint, asked, |found| self.settle(found, expected)).await,
            };
            if found.as_ref().is_err_and(is_outside) {
                self.operation_mut().stage = Stage::Outside;
            }
            let found = found.of(&queue.path)?;
            self.settle(found, expected);
            if found == expected.0 {
                if let Stage::Behind { pred, .. } = self.operation().stage {
                    let has_told = queue.tell(endpoint, pred, self.operation().id);
                    self.operation_mut().stage = Stage::Behind { pred, has_told };
                }
                return Ok(Some(Id(found)));
            }
            let found = Id(found);
            if wait.is_forbidden() {
                attempts += 1;
                let is_held = found.node().is_some() && !queue.is_evicted(found);
                if is_held || attempts == TRIES_MAX {
                    return Ok(None);
                }
            } else if let Some(late) = wait.is_late(endpoint, "it was in the lock's queue", found.node()) {
                return Err(late).of(&queue.path);
            }
            expected = found;
            asked = self.ask(expected)?;
        }
    }

    /// Records the result of the compare-and-swap that enqueues.
    fn settle(&mut self, found: u64, expected: Id) {
        let descriptors = &self.queue.descriptors;
        let operation = self.operation_mut();
        if found != expected.0 {
            operation.stage = Stage::Outside;
            return;
        }
        operation.stage = match expected.node() {
            None => Stage::Head,
            Some(_) => Stage::Behind { pred: expected, has_told: false },
        };
        operation.next_grant = Grant::new(0, expected == Id::NOBODY_AFTER_DEATH);
        let Operation { lock, id, .. } = *operation;
        descriptors.of(id).tell_queued(id, lock, expected);
    }

    /// Waits until the operation is at the head. Returns its grant.
    ///
    /// # Errors
    /// The deadline has passed. The home is unreachable.
    pub(super) async fn granted(&mut self, wait: &mut Wait<'_>) -> Result<Grant> {
        let (queue, endpoint) = (self.queue, self.endpoint);
        let Operation { record, id, .. } = *self.operation();
        let descriptor = queue.descriptors.of(id);
        loop {
            let Stage::Behind { pred, has_told } = self.operation().stage else {
                unreachable!("it waits behind somebody")
            };
            if !has_told {
                let has_told = queue.tell(endpoint, pred, id);
                self.operation_mut().stage = Stage::Behind { pred, has_told };
            }
            let grant = || Grant::of(descriptor.grant().load());
            let granted = match endpoint.spin_until(grant) {
                Some(grant) => Ok(grant),
                None => endpoint.wait_until(wait.slice(endpoint), grant).await,
            };
            if let Ok(grant) = granted {
                let operation = self.operation_mut();
                operation.stage = Stage::Head;
                operation.next_grant = grant;
                return Ok(grant);
            }
            endpoint.check_alive(record.node()).inspect_err(|_| self.leak()).of(&queue.path)?;
            if queue.is_evicted(pred) {
                let claimed = endpoint.boxed(queue.claim(endpoint, self.operation_mut())).await;
                // A claim that this endpoint is refused may succeed from the service thread's endpoint.
                let claimed = claimed.inspect_err(|error| {
                    if !error.is_refused() {
                        self.leak()
                    }
                });
                if claimed.of(&queue.path)? {
                    continue;
                }
            }
            if let Some(late) = wait.is_late(endpoint, LOCK, pred.node()) {
                let left = pred.node().and_then(|before| endpoint.check_alive(before).err());
                let left = left.filter(|error| matches!(error.kind(), fabric::ErrorKind::PeerLeft { .. }));
                // It left while it held the lock, or was merely slow.
                return left.map_or(Err(late), |error| Err(error.into())).of(&queue.path);
            }
        }
    }

    #[cold]
    fn hands_over(mut self, spared: Spared) -> Result<()> {
        // The grant follows earlier puts to the same node (`NRW → NRW`).
        if self.queue.hand_over(self.endpoint, self.operation()) {
            self.operation = None;
            return Ok(());
        }
        match spared {
            Spared::Behind(behind) => self.is_refused(behind),
            _ => Ok(()),
        }
    }

    /// Posts the compare-and-swap that empties the queue if no operation is behind.
    fn asks_to_empty(&self) -> Asked<'a> {
        let (queue, operation) = (self.queue, self.operation());
        self.endpoint.cas(operation.record, operation.id.0, queue.free(operation.next_grant).0).into_value()
    }

    /// Leaves the head, after [`Queue::leaves`].
    ///
    /// # Errors
    /// The home is unreachable. Or as for `Queue::leaves`.
    pub(super) async fn leave(mut self, asked: Asked<'a>) -> Result<()> {
        let (queue, endpoint) = (self.queue, self.endpoint);
        self.emptied(asked).await?;
        let Some(operation) = self.operation.filter(|operation| operation.stage == Stage::Leaving) else {
            return Ok(());
        };
        // The new operation links itself soon, unless its node is dead or slow. Then the service thread waits for it.
        let next = queue.descriptors.of(operation.id);
        let told = || (next.next().load() != Id::NOBODY.0).then_some(());
        if endpoint.wait_until(endpoint.now() + CHECK_EVERY, told).await.is_ok()
            && queue.hand_over(endpoint, &operation)
        {
            self.operation = None;
        }
        Ok(())
    }

    /// Leaves the head without having held the lock. It never waits for another operation.
    pub(super) async fn back_out(mut self) -> Result<()> {
        if self.queue.hand_over(self.endpoint, self.operation()) {
            self.operation = None;
            return Ok(());
        }
        let asked = self.asks_to_empty();
        self.emptied(asked).await // if an operation is behind, the service thread hands over
    }

    /// Waits for the compare-and-swap that empties the queue, and records what it has found.
    async fn emptied(&mut self, asked: Asked<'a>) -> Result<()> {
        let (queue, endpoint) = (self.queue, self.endpoint);
        let found = match asked {
            Ok(found) => Ok(found),
            Err(asked) => CancelGuard::new(endpoint, asked, |found| self.settle_left(found)).await,
        };
        if found.as_ref().is_err_and(fabric::Error::is_refused) {
            return self.is_refused(self.record().node());
        }
        let found = found.inspect_err(|_| self.leak()).of(&queue.path)?;
        if self.operation().stage == Stage::Head {
            self.settle_left(found);
        }
        Ok(())
    }

    /// The service thread has to continue, and posts from another endpoint. So the puts to the spared node must be made
    /// visible before this entry can be dropped. This takes one round trip at most.
    fn is_refused(&mut self, spared: NodeId) -> Result<()> {
        match self.endpoint.block_on(self.endpoint.global_fence([spared])) {
            Err(error) if !error.is_gone() => {
                self.leak();
                Err(error).of(&self.queue.path)
            }
            _ => Ok(()),
        }
    }

    fn settle_left(&mut self, found: u64) {
        if self.queue.has_left(self.operation_mut(), found) {
            self.operation = None;
        }
    }

    /// Abandons the descriptor: it is never used again. The state of the queue is unknown, or another node may still
    /// write into the descriptor.
    pub(super) fn leak(&mut self) {
        self.operation = None;
    }

    /// Returns a step function that leaves the head later, from another endpoint. The caller has made its writes
    /// visible.
    pub(super) fn leave_later(mut self) -> impl FnMut(&Endpoint) -> Progress + Send + 'static {
        let operation = self.operation.take().expect("it has not left");
        let mut left = Left { queue: Arc::clone(self.queue), operation, looks_at: None };
        move |endpoint| left.poll(endpoint)
    }
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        let Some(operation) = self.operation.take() else { return };
        match operation.stage {
            Stage::Outside => self.queue.over(&operation),
            // Another node may still write to the descriptor: it is never used again.
            Stage::Asking => {}
            _ => {
                let left = Left { queue: Arc::clone(self.queue), operation, looks_at: None };
                self.queue.leave_to_service(left);
            }
        }
    }
}
