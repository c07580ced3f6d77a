//! Producing into and consuming from several queues, each on another node.

use std::time::Duration;

use farfield::{Endpoint, NodeId, Queue, QueueOptions};
use rand::RngExt;
use rand::rngs::SmallRng;

use super::{Load, Place};
use crate::chaos::log::{Answer, Failure, Op, Recorder};

/// How many calls' values a queue holds.
pub(crate) const CAPACITY: usize = 16;
const BATCH_MAX: u64 = 3;
/// How long a consumer waits, at times, for a value that may not come.
const WAIT: Duration = Duration::from_millis(30);

pub(super) struct QueueLoad {
    /// Those with living homes, as far as is known.
    queues: Vec<(NodeId, Queue<u64>)>,
    endpoint: Endpoint,
    rng: SmallRng,
    next: u64,
}

impl QueueLoad {
    pub(super) fn open(place: &mut Place<'_>) -> Result<QueueLoad, Failure> {
        let (mut queues, members) = (Vec::new(), place.members.clone());
        for home in place.homes.clone() {
            let open = |node: &_, path: &_| Queue::open_among(node, path, &members, QueueOptions::new(home, CAPACITY));
            queues.push((home, place.open(&format!("queue/{home}"), open)?));
        }
        let next = u64::from(place.node.id().0) << 40;
        Ok(QueueLoad { queues, endpoint: place.endpoint()?, rng: place.rng("queue"), next })
    }

    fn enqueue(&mut self, log: &mut Recorder, at: usize) -> Result<(), Failure> {
        let count = self.rng.random_range(1..=BATCH_MAX);
        let values: Vec<u64> = (self.next..self.next + count).collect();
        self.next += count;
        let (home, queue) = &self.queues[at];
        let op = Op::Enqueue { queue: home.0, values: values.clone() };
        let call = queue.try_enqueue_batch(&self.endpoint, &values);
        log.call(op, &self.endpoint, call, |done| Answer::Changed(*done)).map(drop)
    }

    /// Whether there was a value.
    fn dequeue(&self, log: &mut Recorder, at: usize) -> Result<bool, Failure> {
        let (home, queue) = &self.queues[at];
        let call = queue.try_dequeue(&self.endpoint);
        let op = Op::Dequeue { queue: home.0 };
        log.call(op, &self.endpoint, call, |value| Answer::Found(*value)).map(|value| value.is_some())
    }

    /// Waits for a value, for a while.
    fn await_value(&self, log: &mut Recorder, at: usize) -> Result<(), Failure> {
        let (home, queue) = &self.queues[at];
        let begun = log.begin(Op::Dequeue { queue: home.0 }, WAIT);
        let call = queue.dequeue_deadline(&self.endpoint, self.endpoint.now() + WAIT);
        let result = self.endpoint.block_on(call);
        match log.end(begun, result, |value| Answer::Found(Some(*value))) {
            Err(failure) if !failure.is_timeout() => Err(failure),
            _ => Ok(()),
        }
    }
}

impl Load for QueueLoad {
    fn step(&mut self, log: &mut Recorder) {
        if self.queues.is_empty() {
            return;
        }
        let at = self.rng.random_range(0..self.queues.len());
        let done = match self.rng.random_range(0..100) {
            0..30 => self.enqueue(log, at),
            30..96 => self.dequeue(log, at).map(drop),
            _ => self.await_value(log, at),
        };
        if done.is_err_and(|failure| failure.is_death()) {
            self.queues.swap_remove(at);
        }
    }

    fn look(&mut self, log: &mut Recorder) {
        for at in 0..self.queues.len() {
            while self.dequeue(log, at).unwrap_or(false) {}
        }
    }
}
