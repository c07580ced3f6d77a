//! Histories of a bounded first-in first-out queue.
//!
//! [`QueueModel`] models [`Queue`](crate::Queue): each call that enqueues, one value or a batch, takes one of its
//! places until the last of its values is dequeued. Use a unique number for each value. The check then detects values
//! that are lost or dequeued twice.
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
    /// The number of enqueuing calls whose values it holds.
    pub capacity: usize,
}

impl Model for QueueModel {
    type Input = QueueInput;
    type Output = QueueOutput;
    /// The remaining values of each enqueuing call, the oldest last in each.
    type State = VecDeque<Vec<u64>>;

    fn initial(&self) -> VecDeque<Vec<u64>> {
        VecDeque::new()
    }

    fn step(
        &self,
        state: &VecDeque<Vec<u64>>,
        input: &QueueInput,
        output: Option<&QueueOutput>,
    ) -> Option<VecDeque<Vec<u64>>> {
        let has_room = state.len() < self.capacity;
        let mut after = state.clone();
        match (input, output) {
            (QueueInput::Enqueue(_), Some(QueueOutput::Enqueued(false))) => (!has_room).then_some(after),
            (QueueInput::Enqueue(values), None | Some(QueueOutput::Enqueued(true))) => {
                after.push_back(values.iter().rev().copied().collect());
                has_room.then_some(after)
            }
            (QueueInput::Dequeue, Some(QueueOutput::Dequeued(None))) => state.is_empty().then_some(after),
            (QueueInput::Dequeue, None | Some(QueueOutput::Dequeued(Some(_)))) => {
                let oldest = after.front_mut()?;
                let value = oldest.pop()?;
                if oldest.is_empty() {
                    after.pop_front();
                }
                output.is_none_or(|output| *output == QueueOutput::Dequeued(Some(value))).then_some(after)
            }
            _ => None,
        }
    }

    fn effect(&self, _: &QueueInput, output: Option<&QueueOutput>) -> Effect<VecDeque<Vec<u64>>> {
        match output {
            Some(QueueOutput::Enqueued(false)) => Effect::Read { only_in: None },
            Some(QueueOutput::Dequeued(None)) => Effect::Read { only_in: Some(VecDeque::new()) },
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

    #[test]
    fn what_never_ended_may_have_taken_effect_or_not() {
        let pending = (0, 0, QueueInput::Enqueue(vec![1]), None);
        assert!(verdict(1, &[pending.clone(), dequeue(10, None), dequeue(20, Some(1))]));
        assert!(verdict(1, &[pending.clone(), enqueue(10, &[2], true), dequeue(20, Some(2))]));
        assert!(!verdict(1, &[pending, dequeue(20, Some(2))]));
        let taken = (10, 0, QueueInput::Dequeue, None);
        assert!(verdict(1, &[enqueue(0, &[1], true), taken.clone(), dequeue(20, None)]));
        assert!(verdict(1, &[enqueue(0, &[1], true), taken, dequeue(20, Some(1))]));
    }
}
