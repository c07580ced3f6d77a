//! Operations that their callers have left: the service thread brings them to an end.

use std::sync::Arc;

use farfield_core::MemberStatus;
use farfield_core::toolkit::{Poller, Progress};
use farfield_fabric::{Endpoint, Instant};

use super::descriptor::State;
use super::grant::{CHECK_EVERY, Grant};
use super::queue::{Operation, Queue, Stage};
use super::survey::Seen;

/// An abandoned operation, in the care of the service thread.
pub(super) struct Left {
    pub(super) queue: Arc<Queue>,
    pub(super) operation: Operation,
    /// When it next checks for entries of dead nodes.
    pub(super) looks_at: Option<Instant>,
}

impl Left {
    /// Whether it is time to check for entries of dead nodes.
    fn is_time(&mut self, endpoint: &Endpoint) -> bool {
        let now = endpoint.now();
        let is_time = self.looks_at.is_some_and(|at| now >= at);
        if is_time || self.looks_at.is_none() {
            self.looks_at = Some(now + CHECK_EVERY);
        }
        is_time
    }
}

impl Poller for Left {
    fn must_finish_before_leave(&self) -> bool {
        // A departed node hands over nothing.
        let has_left = |node| self.queue.node.status_of(node) == Some(MemberStatus::Departed);
        !matches!(self.operation.stage, Stage::Behind { pred, .. } if pred.node().is_some_and(has_left))
    }

    fn poll(&mut self, endpoint: &Endpoint) -> Progress {
        let (queue, operation) = (&self.queue, &mut self.operation);
        if queue.is_fenced() || endpoint.check_alive(operation.record.node()).is_err() {
            return Progress::Done; // the lock is lost, or this node is evicted
        }
        let id = operation.id;
        match operation.stage {
            Stage::Outside | Stage::Asking => unreachable!("it is in the queue"),
            Stage::Behind { pred, has_told: false } => {
                let has_told = queue.tell(endpoint, pred, id);
                operation.stage = Stage::Behind { pred, has_told };
                if has_told { Progress::Busy } else { Progress::Retry }
            }
            Stage::Behind { pred, has_told: true } => {
                if let Some(grant) = Grant::of(queue.descriptors.of(id).grant().load()) {
                    operation.stage = Stage::Head;
                    operation.next_grant = grant;
                    return Progress::Busy;
                }
                if !queue.is_evicted(pred) {
                    return Progress::Idle;
                }
                if self.is_time(endpoint) {
                    let claim = self.queue.claim(endpoint, &mut self.operation);
                    if endpoint.block_on(claim).is_err_and(|error| !error.is_refused()) {
                        return Progress::Done;
                    }
                }
                Progress::Retry
            }
            Stage::Head => {
                if queue.hand_over(endpoint, operation) {
                    return Progress::Done;
                }
                let free = queue.free(operation.next_grant);
                match endpoint.cas(operation.record, id.0, free.0).wait() {
                    Ok(found) if !queue.has_left(operation, found) => Progress::Busy,
                    Err(error) if error.is_refused() => Progress::Retry,
                    _ => Progress::Done,
                }
            }
            Stage::Leaving => {
                if queue.hand_over(endpoint, operation) {
                    return Progress::Done;
                }
                let lock = operation.lock;
                let is_evicted = |(node, _)| queue.node.status_of(node) == Some(MemberStatus::Evicted);
                if !queue.descriptors.tables().any(is_evicted) {
                    return Progress::Idle;
                }
                if self.is_time(endpoint) {
                    // If no living entry may be behind this one, the operation behind is dead.
                    let (queue, operation) = (&self.queue, &self.operation);
                    let is_behind = |seen: &Seen| seen.state == State::Enqueueing || seen.pred == id;
                    let survey = endpoint.block_on(queue.survey(endpoint, lock)).ok().flatten();
                    if survey.is_some_and(|survey| !survey.seen.iter().any(is_behind)) {
                        if !queue.hand_over(endpoint, operation) {
                            queue.over(operation);
                        }
                        return Progress::Done;
                    }
                }
                Progress::Retry
            }
        }
    }
}
