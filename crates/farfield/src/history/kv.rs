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
    /// Removes the value if there is one. Answered by [`KvOutput::Succeeded`].
    Delete,
}

/// The answer of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvOutput {
    /// The value that a get found.
    Found(Option<u64>),
    /// Whether an insert, update or delete had an effect.
    Succeeded(bool),
    /// An upsert is done.
    Stored,
}

/// An operation on one key, as its caller saw it.
pub type KvEvent = Event<KvInput, KvOutput>;

/// One key of a store, absent at first.
#[derive(Clone, Copy, Debug, Default)]
pub struct KvModel;

/// Classes of writes: see [`Effect::Write`]. No answer but a get's depends on the value. So writes of one kind can
/// replace each other, except for the gets that name their values.
mod class {
    pub(super) const INSERT: u32 = 0;
    pub(super) const UPDATE: u32 = 1;
    pub(super) const UPSERT: u32 = 2;
    pub(super) const DELETE: u32 = 3;
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
                let KvInput::Upsert(value) = input else { return None };
                return Some(Some(*value));
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
            (_, KvInput::Delete) => Effect::Write { leaves: None, class: class::DELETE },
        }
    }
}

/// An operation in a log: see the [module](self) for its bytes.
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
    pub const LEN: usize = size_of::<Self>();

    /// The record of an operation.
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
            (ANSWER_STORED, KvInput::Upsert(_)) => Some(KvOutput::Stored),
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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KvHistory {
    keys: BTreeMap<u64, Vec<KvEvent>>,
}

impl KvHistory {
    /// An empty history.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an operation, in any order.
    pub fn record(&mut self, key: u64, event: KvEvent) {
        self.keys.entry(key).or_default().push(event);
    }

    /// Adds another history. Its times must be on the same clock.
    pub fn merge(&mut self, other: Self) {
        for (key, events) in other.keys {
            self.keys.entry(key).or_default().extend(events);
        }
    }

    /// How many operations it contains.
    pub fn len(&self) -> usize {
        self.keys.values().map(Vec::len).sum()
    }

    /// Whether it contains no operation.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Every operation with its key: by key, and within a key as recorded.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &KvEvent)> {
        self.keys.iter().flat_map(|(&key, events)| events.iter().map(move |event| (key, event)))
    }

    /// The history as a log: see the [module](self).
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
            "linearizable: {operations} operations on {keys} keys, {overlapping} overlapping, {pending} pending, {steps} steps"
        )
    }
}

/// Why a history did not pass.
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
        "key {key} is undecided after {steps} steps: raise the budget, or give every write its own value. At its best: {evidence}"
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
mod tests {
    use super::super::Reason;
    use super::super::checker::tests::{Rng, atomic};
    use super::KvInput::{Delete, Get, Insert, Update, Upsert};
    use super::*;

    const YES: KvOutput = KvOutput::Succeeded(true);
    const NO: KvOutput = KvOutput::Succeeded(false);
    const DONE: KvOutput = KvOutput::Stored;
    const NOTHING: KvOutput = KvOutput::Found(None);

    fn found(value: u64) -> KvOutput {
        KvOutput::Found(Some(value))
    }

    fn op(call_ns: u64, return_ns: u64, input: KvInput, output: KvOutput) -> KvEvent {
        Event::returned(0, call_ns, return_ns, input, output)
    }

    fn pending(call_ns: u64, input: KvInput) -> KvEvent {
        Event::pending(9, call_ns, input)
    }

    fn evidence(events: &[KvEvent]) -> Evidence {
        match check(&KvModel, events, Budget::default()) {
            Verdict::Violation { evidence, .. } => evidence,
            verdict => panic!("{verdict}\n{events:#?}"),
        }
    }

    fn assert_good(events: &[KvEvent]) {
        let verdict = check(&KvModel, events, Budget::default());
        assert!(verdict.is_linearizable(), "{verdict}");
    }

    #[test]
    fn a_lost_update_is_rejected() {
        let events =
            [op(0, 1, Insert(1), YES), op(2, 5, Update(2), YES), op(6, 7, Update(3), YES), op(8, 9, Get, found(2))];
        assert_eq!(evidence(&events).culprits, [1, 2, 3]);
        // Both of two concurrent updates.
        let events =
            [op(0, 1, Insert(1), YES), op(2, 9, Update(2), YES), op(2, 9, Update(3), YES), op(10, 11, Get, found(1))];
        evidence(&events);
    }

    #[test]
    fn a_stale_read_is_rejected() {
        let events = [op(0, 1, Upsert(1), DONE), op(2, 3, Upsert(2), DONE), op(4, 5, Get, found(1))];
        let evidence_of_one = evidence(&events);
        assert_eq!((evidence_of_one.reason, evidence_of_one.culprits), (Reason::Contradiction, vec![0, 1, 2]));
        // New, then old, while the write is in progress.
        evidence(&[
            op(0, 1, Upsert(1), DONE),
            op(2, 9, Upsert(2), DONE),
            op(3, 4, Get, found(2)),
            op(5, 6, Get, found(1)),
        ]);
        // Absent after it was present.
        evidence(&[op(0, 1, Insert(1), YES), op(2, 3, Get, NOTHING)]);
        // Two readers that disagree on the order of two writes.
        let writes = [op(0, 20, Upsert(1), DONE), op(0, 20, Upsert(2), DONE)];
        let one = [op(1, 2, Get, found(1)), op(3, 4, Get, found(2))];
        let other = [op(1, 2, Get, found(2)), op(3, 4, Get, found(1))];
        assert_good(&[writes, one].concat());
        assert_good(&[writes, other].concat());
        evidence(&[writes, one, other].concat());
    }

    #[test]
    fn a_resurrected_delete_is_rejected() {
        evidence(&[op(0, 1, Insert(1), YES), op(2, 3, Delete, YES), op(4, 5, Get, found(1))]);
        evidence(&[op(0, 1, Insert(1), YES), op(2, 3, Delete, YES), op(4, 5, Delete, YES)]);
        // Seen absent, then present again, within the delete.
        evidence(&[op(0, 1, Insert(1), YES), op(2, 9, Delete, YES), op(3, 4, Get, NOTHING), op(5, 6, Get, found(1))]);
    }

    #[test]
    fn a_torn_value_is_rejected() {
        let events = [op(0, 9, Upsert(0x1111), DONE), op(0, 9, Upsert(0x2222), DONE), op(1, 8, Get, found(0x1122))];
        let evidence = evidence(&events);
        assert_eq!((evidence.reason, evidence.culprits), (Reason::NeverWritten, vec![2]));
    }

    #[test]
    fn a_value_from_the_future_is_rejected() {
        let events = [op(0, 1, Get, found(5)), op(2, 3, Upsert(5), DONE)];
        assert_eq!(evidence(&events).reason, Reason::ReadBeforeWritten);
    }

    #[test]
    fn a_double_insert_is_rejected() {
        let evidence = evidence(&[op(0, 9, Insert(1), YES), op(0, 9, Insert(2), YES)]);
        assert_eq!((evidence.reason, evidence.placed.len(), evidence.culprits.len()), (Reason::Stuck, 1, 1));
        assert!(evidence.to_string().contains("impossible here"), "{evidence}");
    }

    #[test]
    fn a_success_on_an_absent_key_is_rejected() {
        evidence(&[op(0, 1, Update(1), YES)]);
        evidence(&[op(0, 1, Delete, YES)]);
        evidence(&[
            op(0, 9, Insert(1), YES),
            op(0, 1, Delete, YES),
            op(2, 3, Update(2), YES),
            op(10, 11, Get, found(2)),
        ]);
    }

    #[test]
    fn a_failure_on_the_wrong_state_is_rejected() {
        evidence(&[op(0, 1, Insert(1), NO)]);
        evidence(&[op(0, 1, Insert(1), YES), op(2, 3, Update(2), NO)]);
        evidence(&[op(0, 1, Insert(1), YES), op(2, 3, Delete, NO)]);
        // An answer to another question.
        evidence(&[op(0, 1, Get, YES)]);
        evidence(&[op(0, 1, Upsert(1), NO)]);
        evidence(&[op(0, 1, Delete, DONE)]);
    }

    #[test]
    fn a_return_before_the_call_is_rejected() {
        assert_eq!(evidence(&[op(5, 4, Get, NOTHING)]).reason, Reason::ReturnsBeforeCall);
    }

    #[test]
    fn overlapping_operations_may_be_reordered() {
        assert_good(&[]);
        assert_good(&[op(0, 9, Get, found(1)), op(5, 20, Upsert(1), DONE)]);
        // Touching is overlapping.
        assert_good(&[op(0, 5, Get, found(1)), op(5, 5, Upsert(1), DONE)]);
        assert_good(&[
            op(0, 9, Insert(1), YES),
            op(0, 9, Insert(2), YES),
            op(0, 9, Delete, YES),
            op(10, 11, Get, found(1)),
        ]);
        // The write that is called last must come first.
        assert_good(&[
            op(0, 9, Upsert(1), DONE),
            op(5, 8, Upsert(2), DONE),
            op(10, 11, Get, found(1)),
            op(6, 7, Get, found(2)),
        ]);
        // Values written more than once.
        assert_good(&[
            op(0, 9, Upsert(1), DONE),
            op(0, 9, Upsert(2), DONE),
            op(3, 30, Upsert(1), DONE),
            op(10, 11, Get, found(2)),
            op(12, 13, Get, found(1)),
        ]);
    }

    #[test]
    fn a_pending_operation_may_take_effect_late_or_never() {
        let insert = pending(0, Insert(1));
        assert_good(&[insert]);
        assert_good(&[insert, op(1, 2, Get, found(1))]);
        assert_good(&[insert, op(1, 2, Get, NOTHING), op(3, 4, Insert(2), YES), op(5, 6, Get, found(2))]);
        // Long after its call, when other operations have changed the state.
        assert_good(&[
            insert,
            op(1, 2, Insert(2), YES),
            op(3, 4, Delete, YES),
            op(5, 6, Get, NOTHING),
            op(7, 8, Get, found(1)),
        ]);
        // But only once, and not before its call.
        evidence(&[insert, op(1, 2, Get, found(1)), op(3, 4, Delete, YES), op(5, 6, Get, found(1))]);
        evidence(&[pending(5, Insert(1)), op(1, 2, Get, found(1))]);
        // It also does not fit everywhere: an update needs a value to replace.
        evidence(&[pending(0, Update(1)), op(1, 2, Get, found(1))]);
        assert_good(&[pending(0, Delete), op(1, 2, Insert(1), YES), op(3, 4, Insert(2), YES)]);
        evidence(&[pending(0, Delete), op(1, 2, Insert(1), YES), op(3, 4, Insert(2), YES), op(5, 6, Insert(3), YES)]);
        // A pending get gives no information, nor does an answer that was lost.
        assert_good(&[pending(0, Get), op(1, 2, Get, NOTHING)]);
        let lost = Event { return_ns: Some(1), ..insert };
        assert_good(&[lost, op(2, 3, Get, NOTHING), op(4, 5, Get, found(1))]);
    }

    #[test]
    fn a_small_budget_is_undecided_and_no_success() {
        let mut rng = Rng(3);
        let events = atomic(&mut rng, 200, 40, 100, workload);
        let verdict = check(&KvModel, &events, Budget { steps: 50 });
        assert!(matches!(verdict, Verdict::Undecided { .. }) && !verdict.is_linearizable() && !verdict.is_violation());
        let mut history = KvHistory::new();
        events.iter().for_each(|&event| history.record(4, event));
        let failure = history.check_each_key(Budget { steps: 50 }).expect_err("undecided is a failure");
        assert!(matches!(failure, Failure::Undecided { key: 4, .. }), "{failure}");
        assert!(history.check_each_key(Budget::default()).is_ok());
    }

    #[test]
    fn the_first_violation_is_reported_before_what_is_undecided() {
        let mut history = KvHistory::new();
        atomic(&mut Rng(3), 200, 40, 100, workload).into_iter().for_each(|event| history.record(1, event));
        history.record(2, op(0, 1, Get, found(1)));
        let failure = history.check_each_key(Budget { steps: 50 }).expect_err("key 2 is bad");
        assert!(matches!(failure, Failure::Violation { key: 2, .. }), "{failure}");
    }

    #[test]
    fn overlapping_operations_are_counted() {
        let mut rng = Rng(4);
        for _ in 0..2000 {
            let events = atomic(&mut rng, 8, 10, 40, workload);
            let meets_another = |&(at, event): &(usize, &KvEvent)| {
                events.iter().enumerate().any(|(other_at, other)| other_at != at && event.overlaps(other))
            };
            let expected = events.iter().enumerate().filter(meets_another).count() as u64;
            assert_eq!(overlapping(&events), expected, "{events:#?}");
        }
    }

    #[test]
    fn a_log_says_what_was_recorded() {
        assert_eq!(KvRecord::LEN, 48);
        let mut history = KvHistory::new();
        for (at, event) in (0..).zip([
            op(1, 2, Get, NOTHING),
            op(3, u64::MAX, Get, found(u64::MAX)),
            op(5, 6, Insert(7), YES),
            op(5, 6, Update(8), NO),
            op(7, 7, Upsert(9), DONE),
            op(8, 9, Delete, YES),
            pending(10, Upsert(11)),
        ]) {
            history.record(at % 3, event);
        }
        let bytes = history.to_bytes();
        assert_eq!(KvHistory::from_bytes(&bytes).as_ref(), Ok(&history));
        let mut twice = history.clone();
        twice.merge(history.clone());
        assert_eq!(twice.len(), 14);
        assert_eq!(KvHistory::from_bytes(&[&bytes[..], &bytes[..]].concat()).map(|joined| joined.len()), Ok(14));

        // Any byte may be wrong. The result is an error or another history, never a panic.
        for at in 0..bytes.len() {
            for wrong in [0, 1, 6, 7, 255] {
                let mut bytes = bytes.clone();
                bytes[at] = wrong;
                if let Err(error) = KvHistory::from_bytes(&bytes) {
                    assert!(matches!(error, LogError::BadRecord { .. }), "{error}");
                }
            }
        }
        assert_eq!(KvHistory::from_bytes(&bytes[1..]), Err(LogError::Torn { bytes: bytes.len() - 1 }));
        assert_eq!(
            KvHistory::from_bytes(&[0; 48]),
            Err(LogError::BadRecord { record: 0, problem: "unknown operation" })
        );
    }

    #[test]
    fn a_pending_record_gives_way_to_the_complete_one() {
        let insert = op(0, 5, Insert(1), YES);
        let announced = Event { return_ns: None, output: None, ..insert };
        let mut history = KvHistory::new();
        history.record(1, announced);
        history.record(1, insert);
        history.record(1, op(6, 7, Delete, YES));
        let report = history.check_each_key(Budget::default()).expect("good");
        assert_eq!((report.operations, report.pending), (2, 0));
        // The insert cannot happen a second time.
        history.record(1, op(8, 9, Get, found(1)));
        assert!(history.check_each_key(Budget::default()).is_err());
        // Unless a second pending record announces it, too.
        history.record(1, announced);
        let report = history.check_each_key(Budget::default()).expect("good");
        assert_eq!((report.operations, report.pending), (4, 1));
    }

    /// Prints how fast histories of a hot key are checked. Run it with `--release -- --ignored --nocapture`.
    #[test]
    #[ignore = "it measures"]
    #[allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "nothing depends on the time it measures")]
    fn speed() {
        type Workload = fn(&mut Rng, u64) -> KvInput;
        let workloads: [(&str, Workload, u64); 9] = [
            ("mixed", workload, 64),
            (
                "mostly reads",
                |rng, value| if rng.below(20) == 0 { Update(value) } else { get_or_insert(rng, value) },
                64,
            ),
            ("mostly writes", |rng, value| if rng.below(10) == 0 { Get } else { Upsert(value) }, 64),
            ("inserts and deletes", |rng, value| if rng.below(2) == 0 { Insert(value) } else { Delete }, 64),
            ("no upserts", no_upserts, 16),
            ("no upserts", no_upserts, 64),
            ("few values", |rng, value| workload(rng, value % 5), 4),
            ("few values", |rng, value| workload(rng, value % 5), 16),
            ("mixed", workload, 128),
        ];
        for (name, workload, concurrent) in workloads {
            let mut history = KvHistory::new();
            let mut rng = Rng(5);
            for key in 0..64 {
                for event in atomic(&mut rng, 20_000, 2000, 20_000 * 1000 / concurrent, workload) {
                    history.record(key, event);
                }
            }
            let now = std::time::Instant::now();
            match history.check_each_key(Budget::default()) {
                Ok(report) => println!("{name:<20} {concurrent:>4} {:>9.1?} per key: {report}", now.elapsed() / 64),
                Err(failure) => println!("{name:<20} {concurrent:>4} {:>9.1?} in all: {failure}", now.elapsed()),
            }
            // The same history with one answer in the middle changed.
            let (mut violations, mut slowest, mut undecided) = (0, std::time::Duration::ZERO, 0);
            let now = std::time::Instant::now();
            for events in history.keys.values_mut() {
                let one = std::time::Instant::now();
                let event = &mut events[10_000 + rng.below(100) as usize];
                event.output = match event.input {
                    Get => Some(KvOutput::Found(Some(9_000 + rng.below(1000)))),
                    Upsert(_) => event.output,
                    _ => Some(if event.output == Some(YES) { NO } else { YES }),
                };
                match check(&KvModel, events, Budget::default()) {
                    Verdict::Violation { .. } => violations += 1,
                    Verdict::Undecided { .. } => undecided += 1,
                    Verdict::Linearizable { .. } => {}
                }
                slowest = slowest.max(one.elapsed());
            }
            println!(
                "{:<25} {:>9.1?} per key: {violations} bad, {undecided} undecided, slowest {slowest:.1?}",
                "  one answer wrong",
                now.elapsed() / 64
            );
        }
    }

    fn no_upserts(rng: &mut Rng, value: u64) -> KvInput {
        [Get, Insert(value), Update(value), Delete][rng.below(4) as usize]
    }

    fn get_or_insert(rng: &mut Rng, value: u64) -> KvInput {
        if rng.below(20) == 0 { Insert(value) } else { Get }
    }

    fn workload(rng: &mut Rng, value: u64) -> KvInput {
        match rng.below(10) {
            0..4 => Get,
            4 | 5 => Insert(value),
            6 | 7 => Update(value),
            8 => Upsert(value),
            _ => Delete,
        }
    }
}
