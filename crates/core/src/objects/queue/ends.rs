//! Calls about a whole queue: its length, and its end.

use core::ops::Range;

use farfield_fabric::{BufOp, Endpoint};

use super::Queue;
use super::state::{Position, State};
use crate::error::{ErrorContext, Result};
use crate::objects::codec::Value;

/// The most slots that one get reads.
const CHUNK: u64 = 4096;

impl<V: Value> Queue<V> {
    /// Closes the queue, for all nodes. Returns whether this call has done it: the queue was open before.
    ///
    /// From then on every enqueue fails with [`ErrorKind::Closed`](crate::ErrorKind::Closed). Dequeues take the values
    /// that were enqueued before, and then fail with the same error. Calls that wait, for a value or for room, end at
    /// once. A closed queue stays closed; [`Node::reopen`](crate::Node::reopen) replaces it by a new one.
    ///
    /// It is linearizable with the enqueues: what one has accepted is taken, and one that is called after `close` has
    /// returned is refused. If this node dies during the call, or the call is dropped, the queue is closed, or open, or
    /// will be closed a little later. A repeated call makes it certain.
    ///
    /// (To drop the handle does not close the queue. It ends this node's part in it.)
    ///
    /// ```
    /// # let nodes = farfield::local_session(2)?; let home = nodes[0].id();
    /// # use farfield::{Queue, QueueOptions};
    /// # let queues = farfield::on_each(&nodes, |n| Queue::<u64>::open(n, "jobs", QueueOptions::new(home, 64)))?;
    /// # let (near, far) = (nodes[0].endpoint()?, nodes[1].endpoint()?);
    /// queues[0].enqueue_blocking(&near, &1)?;
    /// assert!(queues[0].close_blocking(&near)?); // no more jobs
    /// assert!(queues[0].enqueue_blocking(&near, &2).is_err_and(|error| error.is_closed()));
    /// // A worker takes what is left, and ends.
    /// let mut done = vec![];
    /// loop {
    ///     match queues[1].dequeue_blocking(&far) {
    ///         Ok(job) => done.push(job),
    ///         Err(error) if error.is_closed() => break,
    ///         Err(error) => return Err(error),
    ///     }
    /// }
    /// assert_eq!(done, [1]);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// The home node is dead or departed. After any other error the queue may be closed or open.
    pub async fn close(&self, endpoint: &Endpoint) -> Result<bool> {
        self.object.check_current()?;
        loop {
            let (position, state) = self.end(endpoint).await?;
            if state.of_lap(self.lap(position)) == Position::Closed {
                return Ok(false);
            }
            // In one step with the enqueue that it prevents: a compare-and-swap of the same word.
            let op = endpoint.cas(self.slot(position), state.0, state.marked().0);
            let found = State(op.await.of(self.object.path())?);
            if found == state {
                return Ok(true);
            }
        }
    }

    /// Whether the queue was closed: at one moment during the call. One round trip.
    ///
    /// ```
    /// # let node = farfield::Node::builder().start()?; let ep = node.endpoint()?;
    /// # let jobs = farfield::Queue::<u64>::open(&node, "jobs", farfield::QueueOptions::new(node.id(), 4))?;
    /// assert!(!ep.block_on(jobs.is_closed(&ep))?);
    /// ep.block_on(jobs.close(&ep))?;
    /// assert!(ep.block_on(jobs.is_closed(&ep))?);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// The home node is dead or departed.
    pub async fn is_closed(&self, endpoint: &Endpoint) -> Result<bool> {
        self.object.check_current()?;
        let (position, state) = self.end(endpoint).await?;
        Ok(state.of_lap(self.lap(position)) == Position::Closed)
    }

    /// Whether the queue is empty: at one moment during the call. One round trip.
    ///
    /// ```
    /// # let node = farfield::Node::builder().start()?; let ep = node.endpoint()?;
    /// # let jobs = farfield::Queue::<u64>::open(&node, "jobs", farfield::QueueOptions::new(node.id(), 4))?;
    /// assert!(ep.block_on(jobs.is_empty(&ep))?);
    /// ep.block_on(jobs.enqueue(&ep, &1))?;
    /// assert!(!ep.block_on(jobs.is_empty(&ep))?);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// The home node is dead or departed.
    pub async fn is_empty(&self, endpoint: &Endpoint) -> Result<bool> {
        self.object.check_current()?;
        let mut position = self.head.seen.load();
        loop {
            let (hint, state) = self.look(endpoint, &self.head, position).await.of(self.object.path())?;
            if hint > position {
                self.head.seen.store(hint);
                position = hint;
                continue;
            }
            let state = state.unmarked(self.lap(position));
            match state.of_lap(self.lap(position)) {
                Position::Taken => position = self.after_taken(position, state),
                Position::Filled => return Ok(false),
                Position::Vacant | Position::Early | Position::Closed => return Ok(true),
            }
        }
    }

    /// The number of values in the queue, each value of a batch for itself. ([`Queue::capacity`] counts batches.)
    ///
    /// It is the number at one moment during the call if meanwhile others only enqueue, or only dequeue. If they do
    /// both, it is an estimate: it counts each value that is there during the whole call, no value that is not there at
    /// any moment of it, and of the others some.
    ///
    /// One round trip for an empty queue, else two, and one more for the values of each further 4,096 calls.
    ///
    /// ```
    /// # let node = farfield::Node::builder().start()?; let ep = node.endpoint()?;
    /// # let jobs = farfield::Queue::<u64>::open(&node, "jobs", farfield::QueueOptions::new(node.id(), 4))?;
    /// ep.block_on(jobs.enqueue(&ep, &1))?;
    /// ep.block_on(jobs.enqueue_batch(&ep, &[2, 3]))?;
    /// assert_eq!(ep.block_on(jobs.len(&ep))?, 3);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// The home node is dead or departed. No memory for the slots' words, 32 KiB at most.
    pub async fn len(&self, endpoint: &Endpoint) -> Result<usize> {
        self.object.check_current()?;
        let (path, capacity) = (self.object.path(), self.options.capacity as u64);
        let head = endpoint.get(self.head.word);
        let (end, _) = self.end(endpoint).await?;
        // All before the hint is taken, and so is all that is as far back as the slots go.
        let head = head.await.of(path)?.max(self.head.seen.load());
        let mut position = head.max(end.saturating_sub(capacity));
        let mut values = 0;
        while position < end {
            let until = end.min(position + CHUNK);
            // Up to the last slot, and the rest from the first one, in one round trip.
            let middle = until.min(position - position % capacity + capacity);
            let (words, wrapped) =
                (self.get_slots(endpoint, position..middle)?, self.get_slots(endpoint, middle..until)?);
            for (first, words) in [(position, words), (middle, wrapped)] {
                let Some(words) = words else { continue };
                let words = words.await.of(path)?;
                values +=
                    (first..).zip(words.iter()).map(|(position, word)| self.left(position, State(*word))).sum::<u64>();
            }
            position = until;
        }
        Ok(values as usize)
    }

    /// Begins to get the slots of some positions, which lie beside each other; `None` if there are none.
    fn get_slots<'a>(&self, endpoint: &'a Endpoint, positions: Range<u64>) -> Result<Option<BufOp<'a, u64>>> {
        if positions.is_empty() {
            return Ok(None);
        }
        let into = endpoint.buf::<u64>((positions.end - positions.start) as usize).of(self.object.path())?;
        Ok(Some(endpoint.get_into(self.slot(positions.start), into)))
    }

    /// The first position that is not filled, at a moment during the call, and the state of its slot then: vacant,
    /// early or closed.
    async fn end(&self, endpoint: &Endpoint) -> Result<(u64, State)> {
        let mut position = self.tail.seen.load();
        loop {
            let (hint, state) = self.look(endpoint, &self.tail, position).await.of(self.object.path())?;
            if hint > position {
                // The next call of this node begins there.
                self.tail.seen.store(hint);
                position = hint;
                continue;
            }
            // The mark is of one position, and its slot is that of earlier ones, too.
            let plain = state.unmarked(self.lap(position));
            match plain.of_lap(self.lap(position)) {
                Position::Filled | Position::Taken => position = self.after_filled(position, plain),
                Position::Vacant | Position::Early | Position::Closed => return Ok((position, state)),
            }
        }
    }

    /// How many values of a filled position are left when its slot is in a state.
    fn left(&self, position: u64, state: State) -> u64 {
        let lap = self.lap(position);
        match state.unmarked(lap).of_lap(lap) {
            Position::Filled => state.count() - state.next(),
            _ => 0,
        }
    }
}
