//! Histories of operations, and whether they are linearizable.
//!
//! A history records the operations on an object as their callers saw them: when each was called, when it returned, its
//! input and its output. It is *linearizable* if there is an order of the operations that explains it: each takes
//! effect alone, at some moment between its call and its return (Herlihy and Wing, 1990). [`check`] decides that for
//! any object with a sequential [`Model`]. [`queue`] has the model of a queue. [`kv`] has the model of a key-value
//! store, and collects, saves and merges its histories.
//!
//! Two operations are ordered only if one returned *strictly* before the other was called. Intervals that touch are
//! concurrent, so a coarse clock can hide a violation but never invent one. An operation is *pending* if it never
//! returned, or returned without an answer: its client died, the history ended first, or it timed out. It may have
//! taken effect at any moment after its call, or not at all.
//!
//! How far to trust an answer:
//!
//! - [`Verdict::Linearizable`] carries the order that the search found. [`check`] has replayed it with [`verify`],
//!   thirty lines that share nothing with the search. A mistake in the search cannot make a bad history pass.
//! - [`Verdict::Violation`] means that the search was exhaustive, up to the reductions argued in `checker.rs`.
//! - [`Verdict::Undecided`] means that the budget ran out. It is not a success.
//!
//! ```
//! use farfield::history::{Budget, Effect, Event, Model, check};
//!
//! /// A counter: an operation adds its input and returns what was there before.
//! struct Counter;
//! impl Model for Counter {
//!     type Input = u64;
//!     type Output = u64;
//!     type State = u64;
//!     fn initial(&self) -> u64 {
//!         0
//!     }
//!     fn step(&self, state: &u64, add: &u64, before: Option<&u64>) -> Option<u64> {
//!         before.is_none_or(|before| before == state).then(|| state + add)
//!     }
//! }
//!
//! let seen = |client, call, ret, add, before| Event::returned(client, call, ret, add, before);
//! // The two overlap, so either may have come first.
//! let good = [seen(0, 10, 20, 1, 5), seen(1, 15, 25, 5, 0)];
//! assert!(check(&Counter, &good, Budget::default()).is_linearizable());
//! // Here the second was called after the first had returned, and did not see it.
//! let bad = [seen(0, 10, 20, 1, 0), seen(1, 21, 25, 5, 0)];
//! println!("{}", check(&Counter, &bad, Budget::default()));
//! # assert!(check(&Counter, &bad, Budget::default()).is_violation());
//! ```

use std::fmt;
use std::hash::Hash;

mod checker;
pub mod kv;
pub mod queue;
mod recorder;

pub use checker::check;
pub use recorder::Recorder;

/// One operation as its caller saw it.
///
/// ```
/// use farfield::history::Event;
/// let event = Event { client: 3, call_ns: 100, return_ns: Some(250), input: "read", output: Some(7) };
/// assert_eq!(event, Event::returned(3, 100, 250, "read", 7));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Event<I, O> {
    /// The caller. Used only in the evidence: one client may have several operations in flight.
    pub client: u32,
    /// When it was called, in nanoseconds on a clock that all clients of the history share.
    pub call_ns: u64,
    /// When it returned; `None` if it never did.
    pub return_ns: Option<u64>,
    /// The caller's request.
    pub input: I,
    /// The answer; `None` if the operation never returned, or ended without an answer (an error, a timeout).
    pub output: Option<O>,
}

impl<I, O> Event<I, O> {
    /// An operation that returned.
    ///
    /// ```
    /// use farfield::history::Event;
    /// let event = Event::returned(3, 100, 250, "read", 7);
    /// assert_eq!((event.return_ns, event.output), (Some(250), Some(7)));
    /// ```
    pub fn returned(client: u32, call_ns: u64, return_ns: u64, input: I, output: O) -> Self {
        Self { client, call_ns, return_ns: Some(return_ns), input, output: Some(output) }
    }

    /// An operation that never returned.
    ///
    /// ```
    /// use farfield::history::Event;
    /// let event: Event<&str, u64> = Event::pending(3, 100, "write");
    /// assert_eq!((event.return_ns, event.output), (None, None));
    /// ```
    pub fn pending(client: u32, call_ns: u64, input: I) -> Self {
        Self { client, call_ns, return_ns: None, input, output: None }
    }

    /// When the operation returned with an answer. `None` if it is pending: it may have taken effect at any moment
    /// after its call, or not at all.
    ///
    /// ```
    /// use farfield::history::Event;
    /// let timed_out = Event { return_ns: Some(250), ..Event::<_, u64>::pending(3, 100, "write") };
    /// assert_eq!(timed_out.answered_ns(), None); // it returned, but without an answer
    /// ```
    pub fn answered_ns(&self) -> Option<u64> {
        self.return_ns.filter(|_| self.output.is_some())
    }

    /// Whether the two operations could have been in progress at the same moment. Intervals that touch could.
    ///
    /// ```
    /// use farfield::history::Event;
    /// let first = Event::returned(0, 10, 20, (), ());
    /// assert!(first.overlaps(&Event::returned(1, 20, 30, (), ())));
    /// assert!(!first.overlaps(&Event::returned(1, 21, 30, (), ())));
    /// ```
    pub fn overlaps(&self, other: &Self) -> bool {
        self.call_ns <= other.answered_ns().unwrap_or(u64::MAX)
            && other.call_ns <= self.answered_ns().unwrap_or(u64::MAX)
    }
}

impl<I: fmt::Debug, O: fmt::Debug> fmt::Display for Event<I, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "client {:<3} [{}, ", self.client, self.call_ns)?;
        match self.answered_ns() {
            Some(return_ns) => write!(f, "{return_ns}]")?,
            None => write!(f, "never)")?,
        }
        write!(f, " {:?} -> ", self.input)?;
        match &self.output {
            Some(output) => write!(f, "{output:?}"),
            None => write!(f, "?"),
        }
    }
}

/// The behaviour of an object that executes its operations one at a time.
///
/// ```
/// use farfield::history::Model;
/// struct Register; // of one word, which is zero at first; `None` reads it
/// impl Model for Register {
///     type Input = Option<u64>;
///     type Output = u64;
///     type State = u64;
///     fn initial(&self) -> u64 {
///         0
///     }
///     fn step(&self, state: &u64, write: &Option<u64>, read: Option<&u64>) -> Option<u64> {
///         let fits = write.is_some() || read.is_none_or(|read| read == state);
///         fits.then_some(write.unwrap_or(*state))
///     }
/// }
/// assert_eq!(Register.step(&5, &None, Some(&4)), None); // a read of 4 is impossible when it is 5
/// ```
pub trait Model {
    /// The caller's request.
    type Input: fmt::Debug;
    /// The answer to a caller.
    type Output: fmt::Debug;
    /// Everything that later answers may depend on.
    type State: Clone + Eq + Hash + fmt::Debug;

    /// The state before the first operation.
    ///
    /// ```
    /// # use farfield::history::kv::{KvInput, KvModel, KvOutput};
    /// # use farfield::history::{Budget, Event, Model, check};
    /// assert_eq!(KvModel.initial(), None); // the key is absent
    /// ```
    fn initial(&self) -> Self::State;

    /// The state after an operation, or `None` if in this state it could not have had this output. Without an output
    /// the operation is pending: return the state after it took effect here, or `None` if it could not have taken
    /// effect. [`check`] itself tries the other case, that it never took effect.
    ///
    /// ```
    /// # use farfield::history::kv::{KvInput, KvModel, KvOutput};
    /// # use farfield::history::{Budget, Event, Model, check};
    /// let insert = KvInput::Insert(7);
    /// assert_eq!(KvModel.step(&None, &insert, Some(&KvOutput::Succeeded(true))), Some(Some(7)));
    /// assert_eq!(KvModel.step(&Some(3), &insert, Some(&KvOutput::Succeeded(true))), None); // impossible
    /// ```
    fn step(&self, state: &Self::State, input: &Self::Input, output: Option<&Self::Output>) -> Option<Self::State>;

    /// A promise about an operation that holds in every state. The default, [`Effect::Unknown`], is always right. A
    /// stronger promise makes long histories with much concurrency cheap to check.
    ///
    /// ```
    /// # use farfield::history::kv::{KvInput, KvModel, KvOutput};
    /// # use farfield::history::{Budget, Event, Model, check};
    /// # use farfield::history::Effect;
    /// let found = KvOutput::Found(Some(7));
    /// assert_eq!(KvModel.effect(&KvInput::Get, Some(&found)), Effect::Read { only_in: Some(Some(7)) });
    /// ```
    fn effect(&self, input: &Self::Input, output: Option<&Self::Output>) -> Effect<Self::State> {
        let _ = (input, output);
        Effect::Unknown
    }
}

/// A promise about an operation, with its output, in every state: see [`Model::effect`].
///
/// A wrong promise can turn a good history into a [`Verdict::Violation`], never a bad one into
/// [`Verdict::Linearizable`].
///
/// ```
/// use farfield::history::Effect;
/// let of_read = |seen: u64| Effect::Read { only_in: Some(seen) };
/// let of_write = |value: u64| Effect::Write { leaves: value, class: 0 }; // any two writes may change places
/// assert_ne!(of_read(7), of_write(7));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect<S> {
    /// No promise. One such operation in a history disables the reductions that the other promises allow, except that
    /// reads stay reads.
    Unknown,
    /// Wherever it is possible, it leaves the state unchanged.
    Read {
        /// The only state in which it is possible, if there is just one.
        only_in: Option<S>,
    },
    /// Wherever it is possible, it results in this one state.
    Write {
        /// The resulting state.
        leaves: S,
        /// Writes of one class can replace each other. If two change places, each is possible there if the other was.
        /// No later operation can distinguish them, except reads with one of the two resulting states as their
        /// `only_in`.
        class: u32,
    },
}

/// The limit on the work of a check.
///
/// ```
/// # use farfield::history::kv::{KvInput, KvModel, KvOutput};
/// # use farfield::history::{Budget, Event, Model, check};
/// # let event = Event::returned;
/// # let events = [
/// #     event(0, 0, 10, KvInput::Upsert(7), KvOutput::Stored),
/// #     event(1, 11, 20, KvInput::Get, KvOutput::Found(None)),
/// # ];
/// let verdict = check(&KvModel, &events, Budget { steps: 1000 });
/// assert!(verdict.steps() <= 1000);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// The most steps: operations tried or inspected. A step takes some tens of nanoseconds, and a step that fails may
    /// leave about a hundred bytes in the cache.
    pub steps: u64,
}

impl Default for Budget {
    /// Twenty million steps: a second or two, and a gigabyte at the very worst.
    fn default() -> Self {
        Self { steps: 20_000_000 }
    }
}

/// The answer of [`check`].
///
/// ```
/// # use farfield::history::kv::{KvInput, KvModel, KvOutput};
/// # use farfield::history::{Budget, Event, Model, check};
/// # let event = Event::returned;
/// # let events = [
/// #     event(0, 0, 10, KvInput::Upsert(7), KvOutput::Stored),
/// #     event(1, 11, 20, KvInput::Get, KvOutput::Found(None)),
/// # ];
/// use farfield::history::Verdict;
/// match check(&KvModel, &events, Budget::default()) {
///     Verdict::Linearizable { order, .. } => println!("in this order: {order:?}"),
///     Verdict::Violation { evidence, .. } => println!("{evidence}"),
///     Verdict::Undecided { steps, .. } => panic!("undecided after {steps} steps"),
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Verdict {
    /// The history is linearizable.
    Linearizable {
        /// An order that explains it, as positions in the given events. Pending operations that need not have taken
        /// effect are left out.
        order: Vec<usize>,
        /// The steps that the search took.
        steps: u64,
    },
    /// No order explains the history.
    Violation {
        /// Where the history breaks.
        evidence: Evidence,
        /// The steps that the search took.
        steps: u64,
    },
    /// The budget ran out first. This is not a success.
    Undecided {
        /// The best attempt.
        evidence: Evidence,
        /// The steps taken.
        steps: u64,
    },
}

impl Verdict {
    /// Whether the history is known to be linearizable. False for [`Verdict::Undecided`].
    ///
    /// ```
    /// # use farfield::history::kv::{KvInput, KvModel, KvOutput};
    /// # use farfield::history::{Budget, Event, Model, check};
    /// # let event = Event::returned;
    /// # let events = [
    /// #     event(0, 0, 10, KvInput::Upsert(7), KvOutput::Stored),
    /// #     event(1, 11, 20, KvInput::Get, KvOutput::Found(None)),
    /// # ];
    /// assert!(check(&KvModel, &events[..1], Budget::default()).is_linearizable());
    /// ```
    pub fn is_linearizable(&self) -> bool {
        matches!(self, Verdict::Linearizable { .. })
    }

    /// Whether the history is known not to be linearizable. False for [`Verdict::Undecided`].
    ///
    /// ```
    /// # use farfield::history::kv::{KvInput, KvModel, KvOutput};
    /// # use farfield::history::{Budget, Event, Model, check};
    /// # let event = Event::returned;
    /// # let events = [
    /// #     event(0, 0, 10, KvInput::Upsert(7), KvOutput::Stored),
    /// #     event(1, 11, 20, KvInput::Get, KvOutput::Found(None)),
    /// # ];
    /// // A write returned, and a later read found nothing.
    /// assert!(check(&KvModel, &events, Budget::default()).is_violation());
    /// ```
    pub fn is_violation(&self) -> bool {
        matches!(self, Verdict::Violation { .. })
    }

    /// The steps that the check took.
    ///
    /// ```
    /// # use farfield::history::kv::{KvInput, KvModel, KvOutput};
    /// # use farfield::history::{Budget, Event, Model, check};
    /// # let event = Event::returned;
    /// # let events = [
    /// #     event(0, 0, 10, KvInput::Upsert(7), KvOutput::Stored),
    /// #     event(1, 11, 20, KvInput::Get, KvOutput::Found(None)),
    /// # ];
    /// let verdict = check(&KvModel, &events, Budget::default());
    /// println!("checked in {} steps", verdict.steps());
    /// ```
    pub fn steps(&self) -> u64 {
        match self {
            Verdict::Linearizable { steps, .. }
            | Verdict::Violation { steps, .. }
            | Verdict::Undecided { steps, .. } => *steps,
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Linearizable { order, steps } => {
                write!(f, "linearizable: {} operations in order, {steps} steps", order.len())
            }
            Verdict::Violation { evidence, .. } => write!(f, "not linearizable: {evidence}"),
            Verdict::Undecided { evidence, steps } => {
                write!(f, "undecided: gave up after {steps} steps; raise the budget. At its best: {evidence}")
            }
        }
    }
}

/// Where a history breaks. Its `Display` is for readers: one line per operation.
///
/// ```
/// # use farfield::history::kv::{KvInput, KvModel, KvOutput};
/// # use farfield::history::{Budget, Event, Model, check};
/// # let event = Event::returned;
/// # let events = [
/// #     event(0, 0, 10, KvInput::Upsert(7), KvOutput::Stored),
/// #     event(1, 11, 20, KvInput::Get, KvOutput::Found(None)),
/// # ];
/// # use farfield::history::{Reason, Verdict};
/// let Verdict::Violation { evidence, .. } = check(&KvModel, &events, Budget::default()) else { panic!() };
/// println!("{evidence}"); // a line for each operation
/// assert!(!evidence.culprits.is_empty());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evidence {
    /// Why the history did not pass.
    pub reason: Reason,
    /// The longest prefix that has an explanation, in the order in which it took effect, as positions in the given
    /// events. Empty if `culprits` contradict each other whatever precedes them.
    pub placed: Vec<usize>,
    /// After [`Reason::Stuck`], the operations in progress after that prefix, none of which can be placed next.
    /// Otherwise the few operations that contradict each other.
    pub culprits: Vec<usize>,
    text: String,
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Why a history did not pass.
///
/// ```
/// use farfield::history::Reason;
/// assert_eq!(Reason::NeverWritten.to_string(), "an operation saw what nobody wrote");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// An operation's return is earlier than its call: the clock, not the object, is broken.
    ReturnsBeforeCall,
    /// An operation saw a state that no operation results in: a torn value, or one from elsewhere.
    NeverWritten,
    /// An operation saw a state before the call of the only operation that results in it.
    ReadBeforeWritten,
    /// Two operations require the same state for an interval, and another, within that interval, needs a different
    /// state: a stale read, a lost update.
    Contradiction,
    /// The search tried every order, and none gets further than the prefix shown.
    Stuck,
    /// More than half a billion events.
    TooLong,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::ReturnsBeforeCall => "an operation returns before it is called; check the clocks",
            Reason::NeverWritten => "an operation saw what nobody wrote",
            Reason::ReadBeforeWritten => "an operation saw what was only written after it had returned",
            Reason::Contradiction => "these operations contradict each other",
            Reason::Stuck => "no order of the operations goes further",
            Reason::TooLong => "the history is too long to check",
        })
    }
}

/// Whether `order` (positions in `events`) explains the history. Every answered operation is in it once, and pending
/// ones at most once. No operation is placed after one that was called after it had returned. The model agrees with
/// every output.
///
/// ```
/// use farfield::history::kv::{KvInput, KvModel, KvOutput};
/// use farfield::history::{Event, verify};
/// let events = [
///     Event::returned(0, 0, 9, KvInput::Get, KvOutput::Found(Some(7))),
///     Event::returned(1, 0, 9, KvInput::Insert(7), KvOutput::Succeeded(true)),
/// ];
/// assert!(verify(&KvModel, &events, &[1, 0]));
/// assert!(!verify(&KvModel, &events, &[0, 1]));
/// ```
pub fn verify<M: Model>(model: &M, events: &[Event<M::Input, M::Output>], order: &[usize]) -> bool {
    let mut placed = vec![false; events.len()];
    let mut state = model.initial();
    let mut latest_call_ns = 0;
    for &at in order {
        let Some(event) = events.get(at) else { return false };
        let return_ns = event.answered_ns().unwrap_or(u64::MAX);
        if std::mem::replace(&mut placed[at], true) || return_ns < event.call_ns || return_ns < latest_call_ns {
            return false;
        }
        latest_call_ns = latest_call_ns.max(event.call_ns);
        match model.step(&state, &event.input, event.output.as_ref()) {
            Some(after) => state = after,
            None => return false,
        }
    }
    events.iter().zip(&placed).all(|(event, &placed)| placed || event.answered_ns().is_none())
}
