//! The calls of a thread on a queue, and their history.

use std::rc::Rc;

use farfield_core::history::queue::{QueueInput, QueueModel, QueueOutput};
use farfield_core::history::{Budget, Event, check};
use farfield_core::{Endpoint, Queue, Result};

use farfield_check::parts::{Excuse, cut};
use farfield_check::{Log, choose};

/// The next step of a thread.
#[derive(Clone, Copy)]
pub(crate) enum Do<'a> {
    /// Waits for room.
    Enqueue(u64),
    TryEnqueue(u64),
    TryBatch(&'a [u64]),
    /// Waits for a value.
    Dequeue,
    TryDequeue,
    /// Drops the call between two of its polls.
    CutEnqueue(u64),
    CutDequeue,
    /// Gives up when the endpoint's timeout passes. If that cannot happen early, the queue is full then, or empty.
    EnqueueInTime(u64),
    DequeueInTime,
    Close,
    /// Drops the call between two of its polls.
    CutClose,
    IsEmpty,
    /// Where others only enqueue, or only dequeue.
    Len,
}
use Do::{
    Close, CutClose, CutDequeue, CutEnqueue, Dequeue, DequeueInTime, Enqueue, EnqueueInTime, IsEmpty, Len, TryBatch,
    TryDequeue, TryEnqueue,
};

/// A value in the queue, made from a number.
pub(crate) trait Holds: farfield_core::Value {
    fn of(number: u64) -> Self;
    fn number(&self) -> u64;
}

impl Holds for u64 {
    fn of(number: u64) -> u64 {
        number
    }

    fn number(&self) -> u64 {
        *self
    }
}

/// Two words, which may be torn.
impl Holds for [u64; 2] {
    fn of(number: u64) -> [u64; 2] {
        [number; 2]
    }

    fn number(&self) -> u64 {
        assert_eq!(self[0], self[1], "a value is torn");
        self[0]
    }
}

pub(crate) enum Entry {
    Called {
        client: u32,
        input: QueueInput,
    },
    Returned {
        call: usize,
        output: QueueOutput,
    },
    /// It has not taken effect, and never will.
    Refused {
        call: usize,
    },
}

pub(crate) struct Client<V: Holds> {
    pub(crate) id: u32,
    pub(crate) queue: Rc<Queue<V>>,
    pub(crate) log: Log<Entry>,
    /// The queue's home may die, or evict this node.
    pub(crate) may_lose_home: bool,
}

impl<V: Holds> Client<V> {
    /// Makes a call, and returns the value that was dequeued.
    pub(crate) async fn follow(&self, ep: &Endpoint, what: Do<'_>) -> Result<Option<u64>> {
        let (queue, log) = (&*self.queue, &self.log);
        let input = match what {
            Enqueue(number) | TryEnqueue(number) | CutEnqueue(number) | EnqueueInTime(number) => {
                QueueInput::Enqueue(vec![number])
            }
            TryBatch(numbers) => QueueInput::Enqueue(numbers.to_vec()),
            Dequeue | TryDequeue | CutDequeue | DequeueInTime => QueueInput::Dequeue,
            Close | CutClose => QueueInput::Close,
            IsEmpty => QueueInput::IsEmpty,
            Len => QueueInput::Len,
        };
        let call = log.push(Entry::Called { client: self.id, input });
        // A closed queue is an answer, too.
        let or_closed = |output: Result<QueueOutput>| match output {
            Err(error) if error.is_closed() => Ok(Some(QueueOutput::Closed)),
            output => output.map(Some),
        };
        let enqueued = |done: Result<bool>| or_closed(done.map(QueueOutput::Enqueued));
        let found = |value: Option<V>| QueueOutput::Dequeued(value.map(|value| value.number()));
        let dequeued = |value: Result<Option<V>>| or_closed(value.map(found));
        let since = Excuse::now();
        let late = |is: QueueOutput| (!since.is_given()).then_some(is);
        let output = match what {
            Enqueue(number) => enqueued(queue.enqueue(ep, &V::of(number)).await.map(|()| true))?,
            TryEnqueue(number) => enqueued(queue.try_enqueue(ep, &V::of(number)).await)?,
            TryBatch(numbers) => {
                let values: Vec<V> = numbers.iter().map(|number| V::of(*number)).collect();
                enqueued(queue.try_enqueue_batch(ep, &values).await)?
            }
            Dequeue => dequeued(queue.dequeue(ep).await.map(Some))?,
            TryDequeue => dequeued(queue.try_dequeue(ep).await)?,
            CutEnqueue(number) => match cut(choose(6), queue.enqueue(ep, &V::of(number))).await {
                Some(Err(error)) if error.is_timeout() => late(QueueOutput::Enqueued(false)),
                Some(done) => enqueued(done.map(|()| true))?,
                // It may have taken effect.
                None => return Ok(None),
            },
            CutDequeue => match cut(choose(6), queue.dequeue(ep)).await {
                Some(Err(error)) if error.is_timeout() => late(QueueOutput::Dequeued(None)),
                Some(value) => dequeued(value.map(Some))?,
                None => match queue.salvage().pop() {
                    Some(value) => Some(found(Some(value))),
                    // It may have taken a value that was lost with the home.
                    None if self.may_lose_home => return Ok(None),
                    None => None,
                },
            },
            EnqueueInTime(number) => match queue.enqueue(ep, &V::of(number)).await {
                Err(error) if error.is_timeout() => late(QueueOutput::Enqueued(false)),
                done => enqueued(done.map(|()| true))?,
            },
            DequeueInTime => match queue.dequeue(ep).await {
                Err(error) if error.is_timeout() => late(QueueOutput::Dequeued(None)),
                value => dequeued(value.map(Some))?,
            },
            Close => Some(QueueOutput::Closes(queue.close(ep).await?)),
            CutClose => match cut(choose(4), queue.close(ep)).await {
                Some(was_open) => Some(QueueOutput::Closes(was_open?)),
                // It may have taken effect, or does so later.
                None => return Ok(None),
            },
            IsEmpty => Some(QueueOutput::IsEmpty(queue.is_empty(ep).await?)),
            Len => Some(QueueOutput::Len(queue.len(ep).await?)),
        };
        match output {
            Some(output) => log.push(Entry::Returned { call, output }),
            None => log.push(Entry::Refused { call }),
        };
        Ok(match output {
            Some(QueueOutput::Dequeued(number)) => number,
            _ => None,
        })
    }
}

/// The history is one of a queue of this capacity.
pub(crate) fn assert_linearizable(capacity: usize, entries: Vec<Entry>) {
    let verdict = check(&QueueModel { capacity }, &history(entries), Budget::default());
    assert!(verdict.is_linearizable(), "{verdict}");
}

fn history(entries: Vec<Entry>) -> Vec<Event<QueueInput, QueueOutput>> {
    let mut events: Vec<Option<Event<_, _>>> = Vec::new();
    for (at, entry) in entries.into_iter().enumerate() {
        let mut event = None;
        match entry {
            Entry::Called { client, input } => event = Some(Event::pending(client, at as u64, input)),
            Entry::Returned { call, output } => {
                let called = events[call].as_mut().expect("a call returns once");
                (called.return_ns, called.output) = (Some(at as u64), Some(output));
            }
            Entry::Refused { call } => events[call] = None,
        }
        events.push(event);
    }
    events.into_iter().flatten().collect()
}
