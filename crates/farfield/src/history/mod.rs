//! Histories of operations, and whether they are linearizable.
//!
//! A history is what the callers of an object saw: for every operation when it was called, when it returned, what went in
//! and what came out. It is *linearizable* when all of it can be explained by the operations having taken effect one at a
//! time, each at some moment between its call and its return (Herlihy and Wing, 1990). [`check`] decides that for any
//! object that has a sequential [`Model`]; [`queue`] has that of a queue, [`kv`] that of a key-value store, and collects,
//! saves and merges its histories.
//!
//! What counts as time: two operations are ordered only if one returned *strictly* before the other was called. Intervals
//! that touch are concurrent, so a coarse clock can hide a violation but never invent one. An operation that is
//! *pending* (it never returned, or returned without an answer: its client died, the history ended first, it timed out)
//! may have taken effect at any moment after its call, or not at all.
//!
//! How far to trust an answer:
//!
//! - [`Verdict::Linearizable`] carries the order that was found, and [`check`] has replayed it with [`verify`], thirty
//!   lines that share nothing with the search. A mistake in the search cannot make a bad history pass.
//! - [`Verdict::Violation`] means the search was exhaustive, up to the reductions argued in `checker.rs`.
//! - [`Verdict::Undecided`] means the budget ran out. It is not a success.
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

pub use checker::check;

/// One operation as its caller saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Event<I, O> {
    /// Who called. Only for the reader of the evidence: one client may have several operations in flight.
    pub client: u32,
    /// When it was called, in nanoseconds on a clock that all clients of the history share.
    pub call_ns: u64,
    /// When it returned; `None` if it never did.
    pub return_ns: Option<u64>,
    /// What the caller asked for.
    pub input: I,
    /// What it was told; `None` if it never returned, or ended without an answer (an error, a time-out).
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

    /// When it returned with an answer; `None` if it is pending: it may have taken effect at any moment after its call, or
    /// not at all.
    pub fn answered_ns(&self) -> Option<u64> {
        self.return_ns.filter(|_| self.output.is_some())
    }

    /// Whether the two could have been in progress at the same moment. Intervals that touch could.
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

/// What an object does when its operations come one at a time.
pub trait Model {
    /// What a caller asks for.
    type Input: fmt::Debug;
    /// What a caller is told.
    type Output: fmt::Debug;
    /// Everything that later answers may depend on.
    type State: Clone + Eq + Hash + fmt::Debug;

    /// The state before the first operation.
    fn initial(&self) -> Self::State;

    /// The state after an operation, or `None` if in this state it could not have had this output. With no output
    /// the operation is pending: give the state after it took effect here, or `None` if it could have had none.
    /// [`check`] itself tries the other case, that it never took effect.
    fn step(&self, state: &Self::State, input: &Self::Input, output: Option<&Self::Output>) -> Option<Self::State>;

    /// What can be said of an operation without knowing the state. The default, [`Effect::Unknown`], is always right;
    /// saying more makes long histories with much concurrency cheap to check.
    fn effect(&self, input: &Self::Input, output: Option<&Self::Output>) -> Effect<Self::State> {
        let _ = (input, output);
        Effect::Unknown
    }
}

/// What can be said of an operation, with its output, in every state: see [`Model::effect`].
///
/// These are promises. A wrong one can turn a good history into a [`Verdict::Violation`], never a bad one into
/// [`Verdict::Linearizable`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect<S> {
    /// Nothing. One such operation in a history turns off what the other promises would have allowed, except that reads
    /// stay reads.
    Unknown,
    /// Wherever it is possible, it leaves the state as it was.
    Read {
        /// The one state in which it is possible, if there is just one.
        only_in: Option<S>,
    },
    /// Wherever it is possible, it leaves this one state behind.
    Write {
        /// The state it leaves.
        leaves: S,
        /// Writes of one class can stand in for each other: put in the other's place, it is possible there if the other
        /// was, and no later operation can tell, save reads whose `only_in` is one of the two states left.
        class: u32,
    },
}

/// How much work a check may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// The most steps: operations tried or looked at. A step takes some tens of nanoseconds, and a step that fails may
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
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Verdict {
    /// The history is linearizable.
    Linearizable {
        /// An order that explains it: positions in the events given. Pending operations that need not have taken
        /// effect are left out.
        order: Vec<usize>,
        /// What finding it cost.
        steps: u64,
    },
    /// No order explains the history.
    Violation {
        /// Where it breaks.
        evidence: Evidence,
        /// What finding out cost.
        steps: u64,
    },
    /// The budget ran out first. Not a success.
    Undecided {
        /// How far the best attempt came.
        evidence: Evidence,
        /// The steps taken.
        steps: u64,
    },
}

impl Verdict {
    /// Whether the history was shown to be linearizable. False for [`Verdict::Undecided`].
    pub fn is_linearizable(&self) -> bool {
        matches!(self, Verdict::Linearizable { .. })
    }

    /// Whether the history was shown not to be linearizable. False for [`Verdict::Undecided`].
    pub fn is_violation(&self) -> bool {
        matches!(self, Verdict::Violation { .. })
    }

    /// The steps it took.
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

/// Where a history breaks. Its `Display` is meant to be read: one line per operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evidence {
    /// What is wrong.
    pub reason: Reason,
    /// The longest prefix that could be explained, in the order in which it took effect: positions in the events given.
    /// Empty when `culprits` contradict each other whatever came before.
    pub placed: Vec<usize>,
    /// After [`Reason::Stuck`], the operations in progress after that prefix, none of which leads on. Otherwise the few
    /// operations that contradict each other.
    pub culprits: Vec<usize>,
    text: String,
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// What is wrong with a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// An operation's return is earlier than its call: the clock, not the object, is broken.
    ReturnsBeforeCall,
    /// An operation saw a state that no operation leaves: a torn value, or one from somewhere else.
    NeverWritten,
    /// An operation saw a state before the one operation that leaves it was called.
    ReadBeforeWritten,
    /// Two operations pin the state down for a while, and another, within that while, needs it to be different: a stale
    /// read, a lost update.
    Contradiction,
    /// Every order was tried, and none goes further than the prefix shown.
    Stuck,
    /// More than a billion events.
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

/// Whether `order` (positions in `events`) explains the history: every operation that was answered is there once and
/// pending ones at most once, no operation comes after one that was called after it had returned, and the model agrees with
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
