//! One replica as a sequential value: the state, and the calls of each process that it has applied (figure 6). It
//! touches no network memory.
//!
//! | figure 6 | here |
//! |---|---|
//! | σ, and S applied to it | `state`: a summary that grows is applied by its remainder, so queries find all of it there |
//! | A | `applied` |
//! | S | `summaries`, as far as they are in `state` |
//! | F, L | in network memory (`feed`, the log of each group) |

use farfield_mu::CommandNumbers;
use serde::Serialize;
use smallvec::{SmallVec, smallvec};

use crate::analysis::Category;
use crate::coordination::Coordination;
use crate::data_type::{DataType, Method, Update};

/// With more methods than these, the counts of a summary need an allocation.
const FEW_METHODS: usize = 4;

/// The longest number, encoded.
pub(crate) const VARINT_BYTES_MAX: usize = 10;

/// The consequences of a type's [`Coordination`], by numbers of methods.
pub(crate) struct Tables {
    pub(crate) methods: usize,
    pub(crate) category: Vec<Category>,
    /// The methods that each one depends on.
    pub(crate) dependencies: Vec<Vec<usize>>,
    /// Those of them that are not reducible.
    pub(crate) plain_dependencies: Vec<Vec<usize>>,
    /// The summarisation groups of those that are.
    pub(crate) summary_dependencies: Vec<Vec<usize>>,
    /// The summarisation group of each reducible method.
    pub(crate) summary_of: Vec<Option<usize>>,
    pub(crate) summaries: usize,
    /// The synchronisation group of each conflicting method.
    pub(crate) group_of: Vec<Option<usize>>,
    /// The methods of each group.
    pub(crate) groups: Vec<Vec<usize>>,
}

impl Tables {
    pub(crate) fn new<M: Method>(coordination: &Coordination<M>) -> Tables {
        let numbers = |methods: Vec<M>| methods.into_iter().map(Method::number).collect::<Vec<_>>();
        let summary_of: Vec<_> = M::ALL.iter().map(|method| coordination.summary_of(*method)).collect();
        let dependencies: Vec<_> = M::ALL.iter().map(|method| numbers(coordination.dependencies(*method))).collect();
        let plain = |on: &Vec<usize>| on.iter().copied().filter(|method| summary_of[*method].is_none()).collect();
        let summaries = |on: &Vec<usize>| {
            let mut groups: Vec<usize> = on.iter().filter_map(|method| summary_of[*method]).collect();
            groups.sort_unstable();
            groups.dedup();
            groups
        };
        Tables {
            methods: M::ALL.len(),
            category: M::ALL.iter().map(|method| coordination.category(*method)).collect(),
            plain_dependencies: dependencies.iter().map(plain).collect(),
            summary_dependencies: dependencies.iter().map(summaries).collect(),
            dependencies,
            summary_of,
            summaries: coordination.summaries(),
            group_of: M::ALL.iter().map(|method| coordination.group_of(*method)).collect(),
            groups: coordination.groups().into_iter().map(numbers).collect(),
        }
    }

    /// The longest that the dependencies of a call can be, encoded.
    pub(crate) fn dependencies_bytes_max(&self, processes: usize) -> usize {
        self.dependencies.iter().map(|on| on.len() * processes * VARINT_BYTES_MAX).max().unwrap_or(0)
    }

    /// The longest entry of a log beside its call, if a summary has `summary_bytes_max`.
    pub(crate) fn entry_bytes_beside(&self, processes: usize, summary_bytes_max: usize) -> usize {
        let of_method = |method: usize| {
            let summary = summary_bytes_max + (3 + self.methods) * VARINT_BYTES_MAX;
            let of_each = self.plain_dependencies[method].len() * VARINT_BYTES_MAX
                + self.summary_dependencies[method].len() * summary;
            of_each * processes
        };
        3 * VARINT_BYTES_MAX + (0..self.methods).map(of_method).max().unwrap_or(0)
    }
}

/// The summary of the calls of one process on the methods of one summarisation group.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Summary<U> {
    /// How often it was written, over all epochs.
    pub(crate) written: u64,
    /// How often it was folded: its call went into the feed, and a new summary began.
    pub(crate) epoch: u64,
    /// By method: how many calls of this epoch it summarises.
    pub(crate) calls: SmallVec<[u64; FEW_METHODS]>,
    /// None before the first call of the epoch.
    pub(crate) call: Option<U>,
    /// What `written` was when `call` became what it is.
    pub(crate) changed: u64,
}

impl<U> Summary<U> {
    pub(crate) fn empty(methods: usize) -> Summary<U> {
        Summary { written: 0, epoch: 0, calls: smallvec![0; methods], call: None, changed: 0 }
    }
}

/// A message of a feed.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Message<U> {
    /// An irreducible conflict-free call, with the calls that it depends on: for each process and each method of
    /// `Dep(u)` a number.
    Call { call: U, dependencies: Vec<u64> },
    /// A summary that has become too long for its place, or was refused.
    Fold { group: usize, summary: Summary<U> },
}

/// An entry of a log: a conflicting call, with its dependencies.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Ordered<U> {
    /// The process that has made the call.
    pub(crate) origin: usize,
    /// Its number among the calls of that process on this group.
    pub(crate) number: u64,
    /// None if it was refused, and may be in the log of an earlier leader.
    pub(crate) call: Option<U>,
    /// Then the answer.
    refusal: Vec<u8>,
    /// For each process and each irreducible method of `Dep(u)` a number.
    dependencies: Vec<u64>,
    /// For each process and each summarisation group of `Dep(u)`: the epoch, and the summary itself if no earlier entry
    /// has it.
    summaries: Vec<(u64, Option<Carried>)>,
}

/// A summary in an entry, as it was encoded: most replicas have it already.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Carried {
    written: u64,
    bytes: SmallVec<[u8; 64]>,
}

/// The part of a log that a replica has applied.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Applied {
    /// Of the calls that are applied, or refused by an entry.
    pub(crate) numbers: CommandNumbers,
    /// The last call of this process that an entry has refused, and the answer.
    pub(crate) refused: Option<(u64, Vec<u8>)>,
    /// By process and summarisation group: how often the last summary was written that an entry has.
    carried: Vec<u64>,
}

impl Applied {
    pub(crate) fn new(processes: usize, summaries: usize) -> Applied {
        Applied { numbers: CommandNumbers::new(processes), refused: None, carried: vec![0; processes * summaries] }
    }
}

/// Why a message cannot be applied.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Wrong<R> {
    /// A call that its process has found permissible is refused here: the coordination that was declared is too weak.
    Refused { method: usize, refusal: R },
    /// Two calls of a summarisation group have no summary, or no remainder.
    NotSummarised { method: usize },
    /// The bytes are no message of this type.
    Encoding(String),
}

/// A value, and the bytes after it.
type Decoded<'b, V, R> = Result<(V, &'b [u8]), Wrong<R>>;

type Outcome<T> = Result<(), Wrong<<T as DataType>::Refusal>>;

pub(crate) struct Replica<T: DataType> {
    pub(crate) tables: Tables,
    pub(crate) processes: usize,
    pub(crate) me: usize,
    pub(crate) state: T,
    /// A: the calls of each process on each method that are in `state`.
    applied: Vec<u64>,
    /// By process and summarisation group.
    summaries: Vec<Summary<T::Update>>,
    /// The calls of these summaries as they were received. Empty where that is not known.
    received: Vec<Vec<u8>>,
}

impl<T: DataType> Replica<T> {
    pub(crate) fn new(tables: Tables, processes: usize, me: usize, initial: T) -> Replica<T> {
        let applied = vec![0; processes * tables.methods];
        let summaries = vec![Summary::empty(tables.methods); processes * tables.summaries];
        let received = vec![Vec::new(); summaries.len()];
        Replica { tables, processes, me, state: initial, applied, summaries, received }
    }

    pub(crate) fn applied(&self, process: usize, method: usize) -> u64 {
        self.applied[process * self.tables.methods + method]
    }

    pub(crate) fn has_applied(&mut self, process: usize, method: usize) {
        self.applied[process * self.tables.methods + method] += 1;
    }

    pub(crate) fn summary(&self, process: usize, group: usize) -> &Summary<T::Update> {
        &self.summaries[process * self.tables.summaries + group]
    }

    fn summary_mut(&mut self, process: usize, group: usize) -> &mut Summary<T::Update> {
        &mut self.summaries[process * self.tables.summaries + group]
    }

    /// Rule REDUCE at the process that makes the call, but for the writes. The new summary is not kept yet
    /// ([`Replica::keep_summary`]), as its place may be too short.
    pub(crate) fn summarise(&self, call: &T::Update) -> Result<Summary<T::Update>, Wrong<T::Refusal>> {
        let method = call.method().number();
        let group = self.tables.summary_of[method].unwrap_or_default();
        let mut next = self.summary(self.me, group).clone();
        let summarised = match &next.call {
            None => call.clone(),
            Some(before) => T::summarise(before, call).ok_or(Wrong::NotSummarised { method })?,
        };
        next.written += 1;
        if next.call.as_ref() != Some(&summarised) {
            (next.call, next.changed) = (Some(summarised), next.written);
        }
        next.calls[method] += 1;
        Ok(next)
    }

    /// The own summary of a group, after a call that is in the state.
    pub(crate) fn keep_summary(&mut self, group: usize, summary: Summary<T::Update>, method: usize) {
        let me = self.me;
        *self.summary_mut(me, group) = summary;
        self.has_applied(me, method);
    }

    /// Takes the calls that a summary of a process adds to the known one. Nothing, if it is an older one, or if it
    /// belongs to an epoch that the feed has not brought here yet.
    pub(crate) fn see_summary(&mut self, process: usize, group: usize, seen: &Summary<T::Update>) -> Outcome<T> {
        let known = self.summary(process, group);
        if seen.written <= known.written || seen.epoch != known.epoch {
            return Ok(());
        }
        let Some(later) = &seen.call else { return Ok(()) };
        let method = later.method().number();
        let adds = match &known.call {
            None => later.clone(),
            Some(earlier) => T::remainder(earlier, later).ok_or(Wrong::NotSummarised { method })?,
        };
        self.state.apply(&adds).map_err(|refusal| Wrong::Refused { method, refusal })?;
        for method in 0..self.tables.methods {
            let before = self.summary(process, group).calls[method];
            self.applied[process * self.tables.methods + method] += seen.calls[method].saturating_sub(before);
        }
        *self.summary_mut(process, group) = seen.clone();
        self.received[process * self.tables.summaries + group].clear();
        Ok(())
    }

    /// As `see_summary`, from its bytes.
    pub(crate) fn see_received(
        &mut self,
        process: usize,
        group: usize,
        written: u64,
        epoch: u64,
        bytes: &[u8],
    ) -> Outcome<T> {
        let (at, known) = (process * self.tables.summaries + group, self.summary(process, group));
        if written <= known.written {
            return Ok(());
        }
        let (mut summary, call) = self.decode_counts(group, written, epoch, bytes)?;
        // Its last calls have added nothing: as those of a set that has their elements. There is nothing to decode and
        // to apply.
        let is_same = epoch == known.epoch && !call.is_empty() && call == self.received[at];
        if is_same {
            for method in 0..self.tables.methods {
                let more = summary.calls[method].saturating_sub(self.summaries[at].calls[method]);
                self.applied[process * self.tables.methods + method] += more;
            }
            let known = &mut self.summaries[at];
            (known.written, known.calls) = (written, summary.calls);
            return Ok(());
        }
        let rest;
        (summary.call, rest) = decode(call)?;
        self.see_summary(process, group, &summary)?;
        if self.summaries[at].written == written {
            self.received[at].extend_from_slice(&call[..call.len() - rest.len()]);
        }
        Ok(())
    }

    /// The own summary of a group is moved into the feed, and a new one begins.
    pub(crate) fn begin_epoch(&mut self, process: usize, group: usize) -> Summary<T::Update> {
        let methods = self.tables.methods;
        self.received[process * self.tables.summaries + group].clear();
        let known = self.summary_mut(process, group);
        let next = Summary { written: known.written, epoch: known.epoch + 1, ..Summary::empty(methods) };
        core::mem::replace(known, next)
    }

    /// D ≤ A.
    pub(crate) fn satisfies(&self, on: &[usize], dependencies: &[u64]) -> bool {
        let needed = dependencies.chunks(on.len().max(1)).enumerate();
        needed.into_iter().all(|(process, counts)| {
            on.iter().zip(counts).all(|(method, count)| self.applied(process, *method) >= *count)
        })
    }

    /// Applies a call of a process.
    pub(crate) fn apply(&mut self, process: usize, call: &T::Update) -> Outcome<T> {
        let method = call.method().number();
        self.state.apply(call).map_err(|refusal| Wrong::Refused { method, refusal })?;
        self.has_applied(process, method);
        Ok(())
    }

    /// Rule FREE-APP, and the fold of a summary: applies the next message of a process's feed. False if it has to wait
    /// for calls of others.
    pub(crate) fn apply_message(
        &mut self,
        process: usize,
        message: &Message<T::Update>,
    ) -> Result<bool, Wrong<T::Refusal>> {
        match message {
            Message::Call { call, dependencies } => {
                let on = &self.tables.dependencies[call.method().number()];
                if !self.satisfies(on, dependencies) {
                    return Ok(false);
                }
                self.apply(process, call)?;
            }
            Message::Fold { group, summary } => {
                self.see_summary(process, *group, summary)?;
                self.begin_epoch(process, *group);
            }
        }
        Ok(true)
    }

    /// Rule CONF-APP: applies the next entry of a log. False if it has to wait for calls of others.
    pub(crate) fn apply_ordered(
        &mut self,
        log: &mut Applied,
        entry: &Ordered<T::Update>,
    ) -> Result<bool, Wrong<T::Refusal>> {
        let Some(call) = &entry.call else {
            log.numbers.applied(entry.origin, entry.number);
            if entry.origin == self.me {
                log.refused = Some((entry.number, entry.refusal.clone()));
            }
            return Ok(true);
        };
        let method = call.method().number();
        let groups = self.tables.summary_dependencies[method].clone();
        let of = |at: usize| (at / groups.len(), groups[at % groups.len()]);
        let has_epochs = entry.summaries.iter().enumerate().all(|(at, (epoch, _))| {
            let (process, group) = of(at);
            self.summary(process, group).epoch >= *epoch
        });
        if !has_epochs || !self.satisfies(&self.tables.plain_dependencies[method], &entry.dependencies) {
            return Ok(false);
        }
        for (at, (epoch, summary)) in entry.summaries.iter().enumerate() {
            let (process, group) = of(at);
            let Some(Carried { written, bytes }) = summary else { continue };
            self.see_received(process, group, *written, *epoch, bytes)?;
            let carried = &mut log.carried[process * self.tables.summaries + group];
            *carried = (*carried).max(*written);
        }
        // The log has no call twice: a leader looks at `numbers` when it has applied all entries before the one that it
        // proposes.
        log.numbers.applied(entry.origin, entry.number);
        self.apply(entry.origin, call)?;
        Ok(true)
    }

    // ---- encoding ---------------------------------------------------------------------------------------------------

    /// Encodes a message: a varint, 0 for a call; the rest in the format of `postcard`. The number of dependencies
    /// follows from the method (§4).
    pub(crate) fn encode_call(&self, call: &T::Update, into: Vec<u8>) -> Result<Vec<u8>, Wrong<T::Refusal>> {
        let mut into = encode(call, encode(&0u32, into)?)?;
        let method = call.method().number();
        for process in 0..self.processes {
            for on in &self.tables.dependencies[method] {
                into = encode(&self.applied(process, *on), into)?;
            }
        }
        Ok(into)
    }

    /// Encodes an entry of a log that says that a call was refused.
    pub(crate) fn encode_refused(
        &self,
        origin: usize,
        number: u64,
        answer: &[u8],
    ) -> Result<Vec<u8>, Wrong<T::Refusal>> {
        let mut entry = encode(&None::<T::Update>, encode(&number, encode(&(origin as u32), Vec::new())?)?)?;
        entry.extend_from_slice(answer);
        Ok(entry)
    }

    /// Encodes an entry of a log.
    pub(crate) fn encode_ordered(
        &self,
        log: &Applied,
        origin: usize,
        number: u64,
        call: &T::Update,
        into: Vec<u8>,
    ) -> Result<Vec<u8>, Wrong<T::Refusal>> {
        let mut into = encode(&Some(call), encode(&number, encode(&(origin as u32), into)?)?)?;
        let method = call.method().number();
        for process in 0..self.processes {
            for on in &self.tables.plain_dependencies[method] {
                into = encode(&self.applied(process, *on), into)?;
            }
        }
        for process in 0..self.processes {
            for group in self.tables.summary_dependencies[method].iter().copied() {
                let summary = self.summary(process, group);
                let is_carried = log.carried[process * self.tables.summaries + group] >= summary.changed;
                let written = if is_carried || summary.call.is_none() { 0 } else { summary.written };
                into = encode(&written, encode(&summary.epoch, into)?)?;
                if written > 0 {
                    let bytes = self.encode_summary(group, summary, Vec::new())?;
                    into = encode(&(bytes.len() as u32), into)?;
                    into.extend_from_slice(&bytes);
                }
            }
        }
        Ok(into)
    }

    pub(crate) fn decode_ordered(&self, bytes: &[u8]) -> Result<Ordered<T::Update>, Wrong<T::Refusal>> {
        let (origin, rest) = decode::<u32, _>(bytes)?;
        let (number, rest) = decode(rest)?;
        let (call, mut rest) = decode::<Option<T::Update>, _>(rest)?;
        let origin = origin as usize;
        if origin >= self.processes {
            return Err(Wrong::Encoding(format!("there is no process {origin}")));
        }
        let Some(call) = call else {
            let (dependencies, summaries) = (Vec::new(), Vec::new());
            return Ok(Ordered { origin, number, call: None, refusal: rest.to_vec(), dependencies, summaries });
        };
        let method = call.method().number();
        let mut dependencies = Vec::new();
        for _ in 0..self.processes * self.tables.plain_dependencies[method].len() {
            let (count, after) = decode(rest)?;
            dependencies.push(count);
            rest = after;
        }
        let mut summaries = Vec::new();
        for _ in 0..self.processes {
            for _ in &self.tables.summary_dependencies[method] {
                let (epoch, after) = decode(rest)?;
                let (written, after) = decode::<u64, _>(after)?;
                rest = after;
                let mut summary = None;
                if written > 0 {
                    let (bytes, after) = decode::<u32, _>(rest)?;
                    let carried = after.split_at_checked(bytes as usize);
                    let (bytes, after) = carried.ok_or_else(|| Wrong::Encoding("an entry is cut off".into()))?;
                    (summary, rest) = (Some(Carried { written, bytes: bytes.into() }), after);
                }
                summaries.push((epoch, summary));
            }
        }
        Ok(Ordered { origin, number, call: Some(call), refusal: Vec::new(), dependencies, summaries })
    }

    /// Encodes the fold of a summary.
    pub(crate) fn encode_fold(
        &self,
        group: usize,
        summary: &Summary<T::Update>,
        into: Vec<u8>,
    ) -> Result<Vec<u8>, Wrong<T::Refusal>> {
        let into = encode(&summary.epoch, encode(&summary.written, encode(&(group as u32 + 1), into)?)?)?;
        self.encode_summary(group, summary, into)
    }

    pub(crate) fn decode_message(&self, bytes: &[u8]) -> Result<Message<T::Update>, Wrong<T::Refusal>> {
        let (kind, rest) = decode::<u32, _>(bytes)?;
        let Some(group) = (kind as usize).checked_sub(1) else {
            let (call, mut rest) = decode::<T::Update, _>(rest)?;
            let numbers = self.processes * self.tables.dependencies[call.method().number()].len();
            let mut dependencies = Vec::with_capacity(numbers);
            for _ in 0..numbers {
                let (number, after) = decode(rest)?;
                dependencies.push(number);
                rest = after;
            }
            return Ok(Message::Call { call, dependencies });
        };
        if group >= self.tables.summaries {
            return Err(Wrong::Encoding(format!("there is no summarisation group {group}")));
        }
        let (written, rest) = decode(rest)?;
        let (epoch, rest) = decode(rest)?;
        let (summary, _) = self.decode_summary(group, written, epoch, rest)?;
        Ok(Message::Fold { group, summary })
    }

    /// Encodes the calls of a summary: for each method of the group a number, and the call that summarises them.
    pub(crate) fn encode_summary(
        &self,
        group: usize,
        summary: &Summary<T::Update>,
        mut into: Vec<u8>,
    ) -> Result<Vec<u8>, Wrong<T::Refusal>> {
        for method in self.summarised_in(group) {
            into = encode(&summary.calls[method], into)?;
        }
        encode(&summary.call, into)
    }

    /// A summary, and the bytes after it.
    pub(crate) fn decode_summary<'b>(
        &self,
        group: usize,
        written: u64,
        epoch: u64,
        bytes: &'b [u8],
    ) -> Decoded<'b, Summary<T::Update>, T::Refusal> {
        let (mut summary, bytes) = self.decode_counts(group, written, epoch, bytes)?;
        let (call, bytes) = decode(bytes)?;
        summary.call = call;
        Ok((summary, bytes))
    }

    /// A summary but for its call, and the bytes of that.
    fn decode_counts<'b>(
        &self,
        group: usize,
        written: u64,
        epoch: u64,
        mut bytes: &'b [u8],
    ) -> Decoded<'b, Summary<T::Update>, T::Refusal> {
        let mut summary = Summary { written, epoch, changed: written, ..Summary::empty(self.tables.methods) };
        for method in self.summarised_in(group) {
            (summary.calls[method], bytes) = decode(bytes)?;
        }
        Ok((summary, bytes))
    }

    fn summarised_in(&self, group: usize) -> impl Iterator<Item = usize> + '_ {
        let groups = self.tables.summary_of.iter().enumerate();
        groups.filter(move |(_, of)| **of == Some(group)).map(|(method, _)| method)
    }
}

/// Appends a value to bytes.
pub(crate) fn encode<V: Serialize, R>(value: &V, into: Vec<u8>) -> Result<Vec<u8>, Wrong<R>> {
    postcard::to_extend(value, into).map_err(|error| Wrong::Encoding(error.to_string()))
}

/// Reads a value from the beginning of bytes, and returns the rest.
pub(crate) fn decode<'b, V: serde::Deserialize<'b>, R>(bytes: &'b [u8]) -> Decoded<'b, V, R> {
    postcard::take_from_bytes(bytes).map_err(|error| Wrong::Encoding(error.to_string()))
}
