//! Histories of a key-value store.
//!
//! [`KvModel`] models one key. [`KvHistory`] collects the operations on all keys and checks each key alone. A value is
//! represented by a 64-bit fingerprint (the value itself, or a hash of it). Give every write a unique value wherever
//! the workload allows. A read then identifies the write that it saw, which makes the check sharper and far cheaper.
//!
//! Processes that share a store each write a log, and one of them merges the logs:
//!
//! ```
//! use farfield::history::Event;
//! use farfield::history::kv::{KvHistory, KvInput, KvOutput};
//!
//! let mut mine = KvHistory::new();
//! mine.record(7, Event::returned(0, 100, 180, KvInput::Insert(0xA1), KvOutput::Succeeded(true)));
//! let mut yours = KvHistory::new();
//! yours.record(7, Event::returned(1, 150, 210, KvInput::Get, KvOutput::Found(None)));
//! yours.record(7, Event::returned(1, 220, 260, KvInput::Get, KvOutput::Found(Some(0xA1))));
//!
//! let mut all = KvHistory::from_bytes(&mine.to_bytes())?;
//! all.merge(KvHistory::from_bytes(&yours.to_bytes())?);
//! let report = all.check_each_key(Default::default())?;
//! assert_eq!((report.operations, report.keys, report.overlapping), (3, 1, 2));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The log
//!
//! A log is a sequence of [`KvRecord`]s, 48 bytes each and little-endian, with nothing before, between or after them.
//! Joining files joins logs.
//!
//! ```text
//!   0        8          16           24            32             40       44   45       46     48
//!   ┌────────┬──────────┬────────────┬─────────────┬──────────────┬────────┬────┬────────┬──────┐
//!   │ key    │ call_ns  │ return_ns  │ value given │ value found  │ client │ op │ answer │ zero │
//!   └────────┴──────────┴────────────┴─────────────┴──────────────┴────────┴────┴────────┴──────┘
//! ```
//!
//! An operation that took effect must be in the log even if its process is killed before it returns. Without it, a
//! later read seems to have found a value that was never written. So a process that may be killed writes every
//! operation twice, pending before it starts and complete when it has returned. [`KvHistory::check_each_key`] drops the
//! pending record if it finds both (same key, client, call time and input).

use std::collections::{BTreeMap, HashMap};

use foldhash::fast::FixedState;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Budget, Effect, Event, Evidence, Model, Verdict, check};

/// An operation on one key.
///
/// ```
/// # use farfield::history::{Event, Model, check, kv::{KvHistory, KvInput, KvModel, KvOutput, KvRecord}};
/// # let event = Event::returned(0, 100, 180, KvInput::Insert(7), KvOutput::Succeeded(true));
/// let both = [event, Event::returned(1, 190, 200, KvInput::Update(8), KvOutput::Succeeded(true))];
/// assert!(check(&KvModel, &both, Default::default()).is_linearizable());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvInput {
    /// Reads the value, if any. Answered by [`KvOutput::Found`].
    Get,
    /// Stores a value if there is none. Answered by [`KvOutput::Succeeded`].
    Insert(u64),
    /// Replaces the value if there is one. Answered by [`KvOutput::Succeeded`].
    Update(u64),
    /// Stores a value. Answered by [`KvOutput::Stored`].
    Upsert(u64),
    /// Removes the value if there is one. Answered by [`KvOutput::Succeeded`], or by [`KvOutput::Stored`] where the
    /// caller is not told whether there was one.
    Delete,
}

/// The answer of an operation.
///
/// ```
/// # use farfield::history::{Event, Model, check, kv::{KvHistory, KvInput, KvModel, KvOutput, KvRecord}};
/// # let event = Event::returned(0, 100, 180, KvInput::Insert(7), KvOutput::Succeeded(true));
/// let read = Event::returned(1, 190, 200, KvInput::Get, KvOutput::Found(Some(8)));
/// assert!(check(&KvModel, &[event, read], Default::default()).is_violation()); // 7 was inserted
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvOutput {
    /// The value that a get found.
    Found(Option<u64>),
    /// Whether an insert, update or delete had an effect.
    Succeeded(bool),
    /// An upsert is done, or a delete that does not tell.
    Stored,
}

/// An operation on one key, as its caller saw it.
///
/// ```
/// use farfield::history::{Event, kv::{KvEvent, KvInput, KvOutput}};
/// let read: KvEvent = Event::returned(3, 100, 180, KvInput::Get, KvOutput::Found(None));
/// assert_eq!((read.client, read.answered_ns()), (3, Some(180)));
/// ```
pub type KvEvent = Event<KvInput, KvOutput>;

/// One key of a store, absent at first.
///
/// ```
/// # use farfield::history::{Event, Model, check, kv::{KvHistory, KvInput, KvModel, KvOutput, KvRecord}};
/// # let event = Event::returned(0, 100, 180, KvInput::Insert(7), KvOutput::Succeeded(true));
/// assert!(check(&KvModel, &[event], Default::default()).is_linearizable());
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct KvModel;

/// Classes of writes: see [`Effect::Write`]. No answer but a get's depends on the value. So writes of one kind can
/// replace each other, except for the gets that name their values.
mod class {
    pub(super) const INSERT: u32 = 0;
    pub(super) const UPDATE: u32 = 1;
    pub(super) const UPSERT: u32 = 2;
    pub(super) const DELETE: u32 = 3;
    /// A delete that does not tell.
    pub(super) const CLEAR: u32 = 4;
}

impl Model for KvModel {
    type Input = KvInput;
    type Output = KvOutput;
    type State = Option<u64>;

    fn initial(&self) -> Option<u64> {
        None
    }

    fn step(&self, state: &Option<u64>, input: &KvInput, output: Option<&KvOutput>) -> Option<Option<u64>> {
        // A pending insert, update or delete that failed never took effect, so this assumes success.
        let succeeded = match output {
            None => true,
            Some(KvOutput::Succeeded(succeeded)) => *succeeded,
            Some(KvOutput::Found(found)) => return (*input == KvInput::Get && found == state).then_some(*state),
            Some(KvOutput::Stored) => {
                return match input {
                    KvInput::Upsert(value) => Some(Some(*value)),
                    KvInput::Delete => Some(None),
                    _ => None,
                };
            }
        };
        let (possible, after) = match *input {
            KvInput::Get => return output.is_none().then_some(*state),
            KvInput::Upsert(value) => return output.is_none().then_some(Some(value)),
            KvInput::Insert(value) => (state.is_none(), Some(value)),
            KvInput::Update(value) => (state.is_some(), Some(value)),
            KvInput::Delete => (state.is_some(), None),
        };
        (possible == succeeded).then_some(if succeeded { after } else { *state })
    }

    fn effect(&self, input: &KvInput, output: Option<&KvOutput>) -> Effect<Option<u64>> {
        match (output, *input) {
            (Some(KvOutput::Found(found)), KvInput::Get) => Effect::Read { only_in: Some(*found) },
            // A failed operation, or an answer that does not fit its operation and is possible in no state.
            (Some(KvOutput::Succeeded(false) | KvOutput::Found(_)), _) | (_, KvInput::Get) => {
                Effect::Read { only_in: None }
            }
            (_, KvInput::Insert(value)) => Effect::Write { leaves: Some(value), class: class::INSERT },
            (_, KvInput::Update(value)) => Effect::Write { leaves: Some(value), class: class::UPDATE },
            (_, KvInput::Upsert(value)) => Effect::Write { leaves: Some(value), class: class::UPSERT },
            (Some(KvOutput::Stored), KvInput::Delete) => Effect::Write { leaves: None, class: class::CLEAR },
            (_, KvInput::Delete) => Effect::Write { leaves: None, class: class::DELETE },
        }
    }
}

/// An operation in a log: see the [module](self) for its bytes.
///
/// ```
/// # use farfield::history::{Event, Model, check, kv::{KvHistory, KvInput, KvModel, KvOutput, KvRecord}};
/// # let event = Event::returned(0, 100, 180, KvInput::Insert(7), KvOutput::Succeeded(true));
/// use zerocopy::IntoBytes;
/// let mut log = Vec::new(); // or a file
/// log.extend_from_slice(KvRecord::new(17, &event).as_bytes());
/// assert_eq!(KvHistory::from_bytes(&log).unwrap().len(), 1);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct KvRecord {
    key: U64,
    call_ns: U64,
    return_ns: U64,
    given: U64,
    found: U64,
    client: U32,
    op: u8,
    answer: u8,
    zero: [u8; 2],
}

const OP_GET: u8 = 1;
const OP_INSERT: u8 = 2;
const OP_UPDATE: u8 = 3;
const OP_UPSERT: u8 = 4;
const OP_DELETE: u8 = 5;
const ANSWER_PENDING: u8 = 1;
const ANSWER_FOUND_NONE: u8 = 2;
const ANSWER_FOUND: u8 = 3;
const ANSWER_FAILED: u8 = 4;
const ANSWER_SUCCEEDED: u8 = 5;
const ANSWER_STORED: u8 = 6;

impl KvRecord {
    /// Bytes of a record.
    ///
    /// ```
    /// # use farfield::history::{Event, Model, check, kv::{KvHistory, KvInput, KvModel, KvOutput, KvRecord}};
    /// # let event = Event::returned(0, 100, 180, KvInput::Insert(7), KvOutput::Succeeded(true));
    /// let mut history = KvHistory::new();
    /// history.record(17, event);
    /// history.record(17, Event::pending(1, 190, KvInput::Delete));
    /// assert_eq!(history.to_bytes().len(), 2 * KvRecord::LEN);
    /// ```
    pub const LEN: usize = size_of::<Self>();

    /// The record of an operation.
    ///
    /// ```
    /// # use farfield::history::{Event, Model, check, kv::{KvHistory, KvInput, KvModel, KvOutput, KvRecord}};
    /// # let event = Event::returned(0, 100, 180, KvInput::Insert(7), KvOutput::Succeeded(true));
    /// let record = KvRecord::new(17, &event);
    /// assert_eq!(record.decode(), Ok((17, event)));
    /// ```
    pub fn new(key: u64, event: &KvEvent) -> Self {
        let (op, given) = match event.input {
            KvInput::Get => (OP_GET, 0),
            KvInput::Insert(value) => (OP_INSERT, value),
            KvInput::Update(value) => (OP_UPDATE, value),
            KvInput::Upsert(value) => (OP_UPSERT, value),
            KvInput::Delete => (OP_DELETE, 0),
        };
        // A return without an answer, or an answer without a return, counts as pending.
        let (answer, found) = match (event.return_ns, event.output) {
            (None, _) | (_, None) => (ANSWER_PENDING, 0),
            (Some(_), Some(KvOutput::Found(None))) => (ANSWER_FOUND_NONE, 0),
            (Some(_), Some(KvOutput::Found(Some(value)))) => (ANSWER_FOUND, value),
            (Some(_), Some(KvOutput::Succeeded(false))) => (ANSWER_FAILED, 0),
            (Some(_), Some(KvOutput::Succeeded(true))) => (ANSWER_SUCCEEDED, 0),
            (Some(_), Some(KvOutput::Stored)) => (ANSWER_STORED, 0),
        };
        Self {
            key: key.into(),
            call_ns: event.call_ns.into(),
            return_ns: event.answered_ns().unwrap_or(0).into(),
            given: given.into(),
            found: found.into(),
            client: event.client.into(),
            op,
            answer,
            zero: [0; 2],
        }
    }

    /// Returns the operation and its key, or an error for an invalid record.
    ///
    /// ```
    /// # use farfield::history::kv::KvRecord;
    /// use zerocopy::FromBytes;
    /// let record = KvRecord::read_from_bytes(&[0; KvRecord::LEN]).unwrap();
    /// assert_eq!(record.decode(), Err("unknown operation"));
    /// ```
    pub fn decode(&self) -> Result<(u64, KvEvent), &'static str> {
        let input = match self.op {
            OP_GET => KvInput::Get,
            OP_INSERT => KvInput::Insert(self.given.get()),
            OP_UPDATE => KvInput::Update(self.given.get()),
            OP_UPSERT => KvInput::Upsert(self.given.get()),
            OP_DELETE => KvInput::Delete,
            _ => return Err("unknown operation"),
        };
        let output = match (self.answer, input) {
            (ANSWER_PENDING, _) => None,
            (ANSWER_FOUND_NONE, KvInput::Get) => Some(KvOutput::Found(None)),
            (ANSWER_FOUND, KvInput::Get) => Some(KvOutput::Found(Some(self.found.get()))),
            (ANSWER_FAILED, KvInput::Insert(_) | KvInput::Update(_) | KvInput::Delete) => {
                Some(KvOutput::Succeeded(false))
            }
            (ANSWER_SUCCEEDED, KvInput::Insert(_) | KvInput::Update(_) | KvInput::Delete) => {
                Some(KvOutput::Succeeded(true))
            }
            (ANSWER_STORED, KvInput::Upsert(_) | KvInput::Delete) => Some(KvOutput::Stored),
            (ANSWER_PENDING..=ANSWER_STORED, _) => return Err("the answer does not fit the operation"),
            _ => return Err("unknown answer"),
        };
        let return_ns = (self.answer != ANSWER_PENDING).then(|| self.return_ns.get());
        if return_ns.is_some_and(|return_ns| return_ns < self.call_ns.get()) {
            return Err("returns before it is called");
        }
        if self.zero != [0; 2] {
            return Err("the last two bytes are not zero");
        }
        Ok((self.key.get(), Event { client: self.client.get(), call_ns: self.call_ns.get(), return_ns, input, output }))
    }
}

/// A log that cannot be read.
///
/// ```
/// use farfield::history::kv::{KvHistory, LogError};
/// let error = KvHistory::from_bytes(&[0; 48]).unwrap_err();
/// assert!(matches!(error, LogError::BadRecord { record: 0, .. }));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogError {
    /// The log does not end with a whole record: its writer was cut short, or it is not a log.
    #[error("a log of {bytes} bytes is not whole: records take 48 bytes, and {} are left over", bytes % KvRecord::LEN)]
    Torn {
        /// Its length.
        bytes: usize,
    },
    /// A record is invalid.
    #[error("record {record} of the log (byte {}): {problem}", record * KvRecord::LEN)]
    BadRecord {
        /// Its index, from zero.
        record: usize,
        /// The reason.
        problem: &'static str,
    },
}

/// The operations on the keys of a store.
///
/// ```
/// # use farfield::history::{Event, Model, check, kv::{KvHistory, KvInput, KvModel, KvOutput, KvRecord}};
/// # let event = Event::returned(0, 100, 180, KvInput::Insert(7), KvOutput::Succeeded(true));
/// let mut history = KvHistory::new();
/// history.record(17, event);
/// assert_eq!(history.check_each_key(Default::default()).unwrap().operations, 1);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KvHistory {
    keys: BTreeMap<u64, Vec<KvEvent>>,
}

impl KvHistory {
    /// An empty history.
    ///
    /// ```
    /// # use farfield::history::kv::KvHistory;
    /// assert_eq!(KvHistory::new().len(), 0);
    /// ```
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an operation, in any order.
    ///
    /// ```
    /// # use farfield::history::{Event, Model, check, kv::{KvHistory, KvInput, KvModel, KvOutput, KvRecord}};
    /// # let event = Event::returned(0, 100, 180, KvInput::Insert(7), KvOutput::Succeeded(true));
    /// let mut history = KvHistory::new();
    /// history.record(17, event);
    /// history.record(3, Event::pending(1, 90, KvInput::Delete)); // it never returned
    /// assert_eq!(history.len(), 2);
    /// ```
    pub fn record(&mut self, key: u64, event: KvEvent) {
        self.keys.entry(key).or_default().push(event);
    }

    /// Adds another history. Its times must be on the same clock.
    ///
    /// ```
    /// # use farfield::history::{Event, Model, check, kv::{KvHistory, KvInput, KvModel, KvOutput, KvRecord}};
    /// # let event = Event::returned(0, 100, 180, KvInput::Insert(7), KvOutput::Succeeded(true));
    /// let (mut mine, mut yours) = (KvHistory::new(), KvHistory::new());
    /// mine.record(17, event);
    /// yours.record(17, Event::returned(1, 190, 200, KvInput::Get, KvOutput::Found(Some(7))));
    /// mine.merge(yours);
    /// assert_eq!(mine.len(), 2);
    /// ```
    pub fn merge(&mut self, other: Self) {
        for (key, events) in other.keys {
            self.keys.entry(key).or_default().extend(events);
        }
    }

    /// How many operations it contains.
    ///
    /// ```
    /// # use farfield::history::{Event, Model, check, kv::{KvHistory, KvInput, KvModel, KvOutput, KvRecord}};
    /// # let event = Event::returned(0, 100, 180, KvInput::Insert(7), KvOutput::Succeeded(true));
    /// let mut history = KvHistory::new();
    /// history.record(17, event);
    /// assert_eq!(history.len(), 1);
    /// ```
    pub fn len(&self) -> usize {
        self.keys.values().map(Vec::len).sum()
    }

    /// Whether it contains no operation.
    ///
    /// ```
    /// # use farfield::history::kv::KvHistory;
    /// assert!(KvHistory::new().is_empty());
    /// ```
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Every operation with its key: by key, and within a key as recorded.
    ///
    /// ```
    /// # use farfield::history::{Event, Model, check, kv::{KvHistory, KvInput, KvModel, KvOutput, KvRecord}};
    /// # let event = Event::returned(0, 100, 180, KvInput::Insert(7), KvOutput::Succeeded(true));
    /// let mut history = KvHistory::new();
    /// history.record(17, event);
    /// assert_eq!(history.iter().collect::<Vec<_>>(), [(17, &event)]);
    /// ```
    pub fn iter(&self) -> impl Iterator<Item = (u64, &KvEvent)> {
        self.keys.iter().flat_map(|(&key, events)| events.iter().map(move |event| (key, event)))
    }

    /// The history as a log: see the [module](self).
    ///
    /// ```
    /// # use farfield::history::{Event, Model, check, kv::{KvHistory, KvInput, KvModel, KvOutput, KvRecord}};
    /// # let event = Event::returned(0, 100, 180, KvInput::Insert(7), KvOutput::Succeeded(true));
    /// let mut history = KvHistory::new();
    /// history.record(17, event);
    /// assert_eq!(history.to_bytes().len(), KvRecord::LEN);
    /// ```
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.len() * KvRecord::LEN);
        for (key, event) in self.iter() {
            bytes.extend_from_slice(KvRecord::new(key, event).as_bytes());
        }
        bytes
    }

    /// Reads a log. A log that ends within a record is an error: if its writer is known to have been killed, cut it to
    /// a multiple of [`KvRecord::LEN`].
    ///
    /// ```
    /// use farfield::history::kv::{KvHistory, LogError};
    /// assert!(KvHistory::from_bytes(&[])?.is_empty());
    /// assert_eq!(KvHistory::from_bytes(&[0; 50]), Err(LogError::Torn { bytes: 50 }));
    /// # Ok::<(), LogError>(())
    /// ```
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, LogError> {
        let torn = LogError::Torn { bytes: bytes.len() };
        let records = <[KvRecord]>::ref_from_bytes(bytes).map_err(|_| torn)?;
        let mut history = Self::new();
        for (record, decoded) in records.iter().map(KvRecord::decode).enumerate() {
            let (key, event) = decoded.map_err(|problem| LogError::BadRecord { record, problem })?;
            history.record(key, event);
        }
        Ok(history)
    }

    /// Checks every key, each with its own budget. All must be linearizable; an exhausted budget is a failure. If
    /// several keys fail, the result is the first with a violation, or else the first undecided one.
    ///
    /// ```
    /// use farfield::history::kv::{Failure, KvHistory, KvInput, KvOutput};
    /// use farfield::history::{Budget, Event};
    /// let mut history = KvHistory::new();
    /// history.record(7, Event::returned(0, 0, 10, KvInput::Upsert(1), KvOutput::Stored));
    /// history.record(7, Event::returned(1, 20, 30, KvInput::Get, KvOutput::Found(None)));
    /// let failure = history.check_each_key(Budget::default()).unwrap_err();
    /// assert!(matches!(failure, Failure::Violation { key: 7, .. }));
    /// ```
    pub fn check_each_key(&self, budget_per_key: Budget) -> Result<Report, Failure> {
        let mut report = Report::default();
        let mut undecided = None;
        for (&key, events) in &self.keys {
            let events = settle(events);
            report.keys += 1;
            report.operations += events.len() as u64;
            report.pending += events.iter().filter(|event| event.answered_ns().is_none()).count() as u64;
            report.overlapping += overlapping(&events);
            let verdict = check(&KvModel, &events, budget_per_key);
            report.steps += verdict.steps();
            match verdict {
                Verdict::Linearizable { .. } => {}
                Verdict::Violation { evidence, .. } => return Err(Failure::Violation { key, evidence }),
                Verdict::Undecided { evidence, steps } => {
                    undecided.get_or_insert(Failure::Undecided { key, steps, evidence });
                }
            }
        }
        undecided.map_or(Ok(report), Err)
    }
}

/// The coverage of a successful check.
///
/// ```
/// # use farfield::history::{Event, Model, check, kv::{KvHistory, KvInput, KvModel, KvOutput, KvRecord}};
/// # let event = Event::returned(0, 100, 180, KvInput::Insert(7), KvOutput::Succeeded(true));
/// let mut history = KvHistory::new();
/// history.record(17, event);
/// let report = history.check_each_key(Default::default()).unwrap();
/// assert_eq!((report.keys, report.overlapping), (1, 0)); // so it proves little
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Operations, each counted once.
    pub operations: u64,
    /// The number of keys.
    pub keys: u64,
    /// Operations that overlapped in time with another on the same key. If there are few, the check proves little.
    pub overlapping: u64,
    /// Operations that never returned, or returned without an answer.
    pub pending: u64,
    /// The steps of all checks together.
    pub steps: u64,
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { operations, keys, overlapping, pending, steps } = self;
        write!(
            f,
            "linearizable: {operations} operations on {keys} keys, {overlapping} overlapping, {pending} pending, \
             {steps} steps"
        )
    }
}

/// Why a history did not pass.
///
/// ```
/// # use farfield::history::{Event, Model, check, kv::{KvHistory, KvInput, KvModel, KvOutput, KvRecord}};
/// # let event = Event::returned(0, 100, 180, KvInput::Insert(7), KvOutput::Succeeded(true));
/// use farfield::history::kv::Failure;
/// let mut history = KvHistory::new();
/// history.record(17, Event::returned(1, 0, 10, KvInput::Get, KvOutput::Found(Some(8))));
/// match history.check_each_key(Default::default()) {
///     Err(Failure::Violation { key, evidence }) => assert!(key == 17 && !evidence.to_string().is_empty()),
///     other => panic!("{other:?}"),
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// A key's history is not linearizable.
    #[error("key {key} is not linearizable: {evidence}")]
    Violation {
        /// The key.
        key: u64,
        /// Where it breaks. Positions are those in the key's operations as recorded, without pending ones that returned
        /// later.
        evidence: Evidence,
    },
    /// A key's history could not be decided within its budget.
    #[error(
        "key {key} is undecided after {steps} steps: raise the budget, or give every write its own value. At its best: \
         {evidence}"
    )]
    Undecided {
        /// The key.
        key: u64,
        /// The steps taken.
        steps: u64,
        /// The best attempt.
        evidence: Evidence,
    },
}

/// The operations of a key without pending ones that are also recorded as complete.
fn settle(events: &[KvEvent]) -> Vec<KvEvent> {
    let identity = |event: &KvEvent| (event.client, event.call_ns, event.input);
    let mut complete: HashMap<_, usize, FixedState> = HashMap::default();
    if events.iter().any(|event| event.answered_ns().is_none()) {
        for event in events.iter().filter(|event| event.answered_ns().is_some()) {
            *complete.entry(identity(event)).or_default() += 1;
        }
    }
    let mut is_superseded = |event: &KvEvent| match complete.get_mut(&identity(event)) {
        Some(count) if event.answered_ns().is_none() && *count > 0 => {
            *count -= 1;
            true
        }
        _ => false,
    };
    events.iter().filter(|event| !is_superseded(event)).copied().collect()
}

/// How many operations overlap with at least one other.
fn overlapping(events: &[KvEvent]) -> u64 {
    let mut spans: Vec<(u64, u64)> =
        events.iter().map(|event| (event.call_ns, event.answered_ns().unwrap_or(u64::MAX))).collect();
    spans.sort_unstable();
    let mut latest_return_ns = None;
    let mut count = 0;
    for (at, &(call_ns, return_ns)) in spans.iter().enumerate() {
        // Among the earlier calls the one that returns last decides, among the later ones the one called first.
        let with_earlier = latest_return_ns.is_some_and(|latest| latest >= call_ns);
        let with_later = spans.get(at + 1).is_some_and(|later| later.0 <= return_ns);
        count += u64::from(with_earlier || with_later);
        latest_return_ns = latest_return_ns.max(Some(return_ns));
    }
    count
}

#[cfg(test)]
mod tests;
