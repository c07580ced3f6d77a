//! Histories of a bounded first-in first-out queue.
//!
//! [`QueueModel`] models [`Queue`](crate::Queue): each call that enqueues, one value or a batch, takes one of its
//! places until the last of its values is dequeued. Use a unique number for each value. The check then detects values
//! that are lost or dequeued twice, and after a close those that are accepted, or lost.
//!
//! ```
//! use farfield::history::queue::{QueueInput, QueueModel, QueueOutput};
//! use farfield::history::{Event, check};
//!
//! let enqueued = |client, call, ret, value| {
//!     Event::returned(client, call, ret, QueueInput::Enqueue(vec![value]), QueueOutput::Enqueued(true))
//! };
//! let dequeued = |client, call, ret, value| {
//!     Event::returned(client, call, ret, QueueInput::Dequeue, QueueOutput::Dequeued(value))
//! };
//! let model = QueueModel { capacity: 8 };
//! let both = [enqueued(0, 0, 9, 1), enqueued(1, 5, 15, 2)];
//! let good = [&both[..], &[dequeued(2, 20, 25, Some(2)), dequeued(2, 30, 35, Some(1))]].concat();
//! assert!(check(&model, &good, Default::default()).is_linearizable());
//! // One was enqueued before the other: it comes out first.
//! let bad = [enqueued(0, 0, 9, 1), enqueued(1, 10, 15, 2), dequeued(2, 20, 25, Some(2))];
//! assert!(check(&model, &bad, Default::default()).is_violation());
//! // It is not empty.
//! let bad = [enqueued(0, 0, 9, 1), dequeued(2, 20, 25, None)];
//! assert!(check(&model, &bad, Default::default()).is_violation());
//! ```

use std::collections::VecDeque;

use super::{Effect, Model};

/// An operation on a queue.
///
/// ```
/// # use farfield::history::queue::{QueueInput, QueueModel, QueueOutput};
/// # use farfield::history::{Event, Model, check};
/// let batch = QueueInput::Enqueue(vec![1, 2, 3]);
/// let event = Event::returned(0, 0, 10, batch, QueueOutput::Enqueued(true));
/// assert!(check(&QueueModel { capacity: 1 }, &[event], Default::default()).is_linearizable());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum QueueInput {
    /// Enqueues values together. Answered by [`QueueOutput::Enqueued`].
    Enqueue(Vec<u64>),
    /// Dequeues a value. Answered by [`QueueOutput::Dequeued`].
    Dequeue,
    /// Closes the queue. Answered by [`QueueOutput::Closes`].
    Close,
    /// Asks whether the queue is empty. Answered by [`QueueOutput::IsEmpty`].
    IsEmpty,
    /// Asks for the number of values, where that has to be exact. Answered by [`QueueOutput::Len`].
    Len,
}

/// The answer of an operation.
///
/// ```
/// # use farfield::history::queue::{QueueInput, QueueModel, QueueOutput};
/// # use farfield::history::{Event, Model, check};
/// let empty = Event::returned(0, 0, 10, QueueInput::Dequeue, QueueOutput::Dequeued(None));
/// let full = Event::returned(1, 0, 10, QueueInput::Enqueue(vec![1]), QueueOutput::Enqueued(false));
/// assert!(check(&QueueModel { capacity: 1 }, &[empty, full], Default::default()).is_violation()); // not both
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QueueOutput {
    /// Whether there was room.
    Enqueued(bool),
    /// The value, if there was one.
    Dequeued(Option<u64>),
    /// An enqueue was refused since the queue is closed; or it is closed and empty, and a dequeue has ended so.
    Closed,
    /// Whether the queue was open.
    Closes(bool),
    /// Whether it is empty.
    IsEmpty(bool),
    /// The number of its values.
    Len(usize),
}

/// The state of a [`QueueModel`].
///
/// ```
/// # use farfield::history::queue::{QueueInput, QueueModel, QueueOutput};
/// # use farfield::history::Model;
/// let model = QueueModel { capacity: 8 };
/// let state = model.step(&model.initial(), &QueueInput::Close, Some(&QueueOutput::Closes(true))).unwrap();
/// assert!(state.is_closed && state.calls.is_empty());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct QueueState {
    /// The remaining values of each enqueuing call, the oldest last in each.
    pub calls: VecDeque<Vec<u64>>,
    /// Whether it was closed.
    pub is_closed: bool,
}

/// A queue that is empty at first.
///
/// ```
/// # use farfield::history::queue::{QueueInput, QueueModel, QueueOutput};
/// # use farfield::history::{Event, Model, check};
/// let model = QueueModel { capacity: 8 };
/// let (dequeue, nothing) = (QueueInput::Dequeue, QueueOutput::Dequeued(None));
/// assert!(model.step(&model.initial(), &dequeue, Some(&nothing)).is_some()); // it is empty at first
/// ```
#[derive(Clone, Copy, Debug)]
pub struct QueueModel {
    /// It holds the values of so many enqueuing calls.
    pub capacity: usize,
}

impl Model for QueueModel {
    type Input = QueueInput;
    type Output = QueueOutput;
    type State = QueueState;

    fn initial(&self) -> QueueState {
        QueueState::default()
    }

    fn step(&self, state: &QueueState, input: &QueueInput, output: Option<&QueueOutput>) -> Option<QueueState> {
        let QueueState { calls, is_closed } = state;
        let has_room = calls.len() < self.capacity;
        let mut after = state.clone();
        match (input, output) {
            (QueueInput::Enqueue(_), Some(QueueOutput::Closed)) => is_closed.then_some(after),
            (QueueInput::Enqueue(_), Some(QueueOutput::Enqueued(false))) => (!has_room && !is_closed).then_some(after),
            (QueueInput::Enqueue(values), None | Some(QueueOutput::Enqueued(true))) => {
                after.calls.push_back(values.iter().rev().copied().collect());
                (has_room && !is_closed).then_some(after)
            }
            (QueueInput::Dequeue, Some(QueueOutput::Closed)) => (calls.is_empty() && *is_closed).then_some(after),
            (QueueInput::Dequeue, Some(QueueOutput::Dequeued(None))) => {
                (calls.is_empty() && !is_closed).then_some(after)
            }
            (QueueInput::Dequeue, None | Some(QueueOutput::Dequeued(Some(_)))) => {
                let oldest = after.calls.front_mut()?;
                let value = oldest.pop()?;
                if oldest.is_empty() {
                    after.calls.pop_front();
                }
                output.is_none_or(|output| *output == QueueOutput::Dequeued(Some(value))).then_some(after)
            }
            (QueueInput::Close, None | Some(QueueOutput::Closes(_))) => {
                after.is_closed = true;
                output.is_none_or(|output| *output == QueueOutput::Closes(!is_closed)).then_some(after)
            }
            (QueueInput::IsEmpty, Some(QueueOutput::IsEmpty(is))) => (*is == calls.is_empty()).then_some(after),
            (QueueInput::Len, Some(QueueOutput::Len(len))) => {
                (*len == calls.iter().map(Vec::len).sum::<usize>()).then_some(after)
            }
            (QueueInput::IsEmpty | QueueInput::Len, None) => Some(after),
            _ => None,
        }
    }

    fn effect(&self, input: &QueueInput, output: Option<&QueueOutput>) -> Effect<QueueState> {
        let empty = |is_closed| Some(QueueState { calls: VecDeque::new(), is_closed });
        match (input, output) {
            (_, Some(QueueOutput::Enqueued(false))) => Effect::Read { only_in: None },
            (_, Some(QueueOutput::Dequeued(None))) => Effect::Read { only_in: empty(false) },
            (QueueInput::Dequeue, Some(QueueOutput::Closed)) => Effect::Read { only_in: empty(true) },
            (QueueInput::Enqueue(_), Some(QueueOutput::Closed)) => Effect::Read { only_in: None },
            (QueueInput::IsEmpty | QueueInput::Len, _) => Effect::Read { only_in: None },
            _ => Effect::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Event, check};

    type Step = (u64, u64, QueueInput, Option<QueueOutput>);

    fn verdict(capacity: usize, steps: &[Step]) -> bool {
        let events: Vec<_> = steps
            .iter()
            .map(|(call_ns, return_ns, input, output)| Event {
                client: 0,
                call_ns: *call_ns,
                return_ns: output.map(|_| *return_ns),
                input: input.clone(),
                output: *output,
            })
            .collect();
        let verdict = check(&QueueModel { capacity }, &events, Default::default());
        assert_ne!(verdict.is_linearizable(), verdict.is_violation(), "{verdict}");
        verdict.is_linearizable()
    }

    fn enqueue(at: u64, values: &[u64], done: bool) -> Step {
        (at, at + 5, QueueInput::Enqueue(values.to_vec()), Some(QueueOutput::Enqueued(done)))
    }

    fn dequeue(at: u64, value: Option<u64>) -> Step {
        (at, at + 5, QueueInput::Dequeue, Some(QueueOutput::Dequeued(value)))
    }

    #[test]
    fn a_batch_takes_one_place_until_its_last_value_is_taken() {
        let filled = [enqueue(0, &[1, 2], true), dequeue(10, Some(1))];
        let with = |step: Step| [filled.to_vec(), vec![step]].concat();
        assert!(verdict(1, &with(enqueue(20, &[3], false))));
        assert!(!verdict(1, &with(enqueue(20, &[3], true))));
        assert!(verdict(2, &with(enqueue(20, &[3], true))));
        assert!(!verdict(2, &with(enqueue(20, &[3], false))));
        let emptied = with(dequeue(20, Some(2)));
        assert!(verdict(1, &[emptied.clone(), vec![enqueue(30, &[3], true)]].concat()));
        assert!(!verdict(1, &[emptied, vec![enqueue(30, &[3], false)]].concat()));
    }

    #[test]
    fn values_come_once_in_order_and_none_is_lost() {
        let both = [enqueue(0, &[1], true), enqueue(10, &[2], true)];
        let with = |steps: &[Step]| [&both, steps].concat();
        assert!(verdict(2, &with(&[dequeue(20, Some(1)), dequeue(30, Some(2)), dequeue(40, None)])));
        assert!(!verdict(2, &with(&[dequeue(20, Some(2))])));
        assert!(!verdict(2, &with(&[dequeue(20, Some(1)), dequeue(30, Some(1))])));
        assert!(!verdict(2, &with(&[dequeue(20, Some(1)), dequeue(30, None)])));
        assert!(!verdict(2, &with(&[dequeue(20, Some(3))])));
    }

    fn step(at: u64, input: QueueInput, output: QueueOutput) -> Step {
        (at, at + 5, input, Some(output))
    }

    fn close(at: u64, was_open: bool) -> Step {
        step(at, QueueInput::Close, QueueOutput::Closes(was_open))
    }

    #[test]
    fn a_closed_queue_gives_its_values_and_takes_none() {
        let refused = |at| step(at, QueueInput::Enqueue(vec![9]), QueueOutput::Closed);
        let ended = |at| step(at, QueueInput::Dequeue, QueueOutput::Closed);
        let closed = [enqueue(0, &[1, 2], true), close(10, true)];
        let with = |steps: &[Step]| [&closed, steps].concat();
        let emptied = [dequeue(20, Some(1)), dequeue(30, Some(2))];
        let after = |steps: &[Step]| with(&[&emptied, steps].concat());
        assert!(verdict(1, &with(&[refused(20), close(30, false), dequeue(40, Some(1))])));
        assert!(verdict(1, &after(&[ended(40), refused(50), ended(60)])));
        assert!(!verdict(1, &with(&[ended(20)])), "values were left");
        assert!(!verdict(2, &with(&[enqueue(20, &[3], true)])));
        assert!(!verdict(1, &with(&[enqueue(20, &[3], false)])), "it was closed, not full");
        assert!(!verdict(1, &after(&[dequeue(40, None)])), "it was closed, not empty");
        assert!(!verdict(1, &with(&[close(20, true)])), "it was closed once only");
        assert!(!verdict(1, &[ended(0)]) && !verdict(1, &[refused(0)]), "nobody has closed it");
        // One that never ended has closed it, or not.
        let pending = (0, 0, QueueInput::Close, None);
        assert!(verdict(1, &[pending.clone(), enqueue(10, &[1], true), refused(20)]));
        assert!(!verdict(1, &[pending, refused(10), enqueue(20, &[1], true)]));
    }

    #[test]
    fn values_are_counted_each_for_itself() {
        let filled = [enqueue(0, &[1, 2], true), enqueue(10, &[3], true), dequeue(20, Some(1))];
        let with = |input, output| verdict(2, &[&filled[..], &[step(30, input, output)]].concat());
        assert!(with(QueueInput::Len, QueueOutput::Len(2)));
        assert!(!with(QueueInput::Len, QueueOutput::Len(3)));
        assert!(with(QueueInput::IsEmpty, QueueOutput::IsEmpty(false)));
        assert!(!with(QueueInput::IsEmpty, QueueOutput::IsEmpty(true)));
    }

    #[test]
    fn a_call_that_never_ended_has_taken_effect_or_not() {
        let pending = (0, 0, QueueInput::Enqueue(vec![1]), None);
        assert!(verdict(1, &[pending.clone(), dequeue(10, None), dequeue(20, Some(1))]));
        assert!(verdict(1, &[pending.clone(), enqueue(10, &[2], true), dequeue(20, Some(2))]));
        assert!(!verdict(1, &[pending, dequeue(20, Some(2))]));
        let taken = (10, 0, QueueInput::Dequeue, None);
        assert!(verdict(1, &[enqueue(0, &[1], true), taken.clone(), dequeue(20, None)]));
        assert!(verdict(1, &[enqueue(0, &[1], true), taken, dequeue(20, Some(1))]));
    }
}
