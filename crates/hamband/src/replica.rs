//! One replica as a sequential value: the state, and what it has applied of each process (figure 6). It touches no network memory.
//!
//! | figure 6 | here |
//! |---|---|
//! | σ, and S applied to it | `state`: a summary that grows is applied by its remainder, so queries find all of it there |
//! | A | `applied` |
//! | S | `summaries`, as far as they are in `state` |
//! | F, L | in network memory (`feed`, the log of each group) |

use serde::Serialize;

use crate::analysis::Category;
use crate::coordination::Coordination;
use crate::data_type::{DataType, Method, Update};

/// What follows from a type's [`Coordination`], by numbers of methods.
pub(crate) struct Tables {
    pub(crate) methods: usize,
    pub(crate) category: Vec<Category>,
    /// The methods that each one depends on.
    pub(crate) dependencies: Vec<Vec<usize>>,
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
        Tables {
            methods: M::ALL.len(),
            category: M::ALL.iter().map(|method| coordination.category(*method)).collect(),
            dependencies: M::ALL.iter().map(|method| numbers(coordination.dependencies(*method))).collect(),
            summary_of: M::ALL.iter().map(|method| coordination.summary_of(*method)).collect(),
            summaries: coordination.summaries(),
            group_of: M::ALL.iter().map(|method| coordination.group_of(*method)).collect(),
            groups: coordination.groups().into_iter().map(numbers).collect(),
        }
    }

    /// The longest that the dependencies of a call can be, encoded.
    pub(crate) fn dependencies_bytes_max(&self, processes: usize) -> usize {
        const VARINT_BYTES_MAX: usize = 10;
        self.dependencies.iter().map(|on| on.len() * processes * VARINT_BYTES_MAX).max().unwrap_or(0)
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
    pub(crate) calls: Vec<u64>,
    /// None before the first call of the epoch.
    pub(crate) call: Option<U>,
}

impl<U> Summary<U> {
    pub(crate) fn empty(methods: usize) -> Summary<U> {
        Summary { written: 0, epoch: 0, calls: vec![0; methods], call: None }
    }
}

/// A message of a feed.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Message<U> {
    /// An irreducible conflict-free call, with the calls that it depends on: for each process and each method of `Dep(u)` a number.
    Call { call: U, dependencies: Vec<u64> },
    /// A summary that has become too long for its place, or whose put was refused.
    Fold { group: usize, summary: Summary<U> },
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
}

impl<T: DataType> Replica<T> {
    pub(crate) fn new(tables: Tables, processes: usize, me: usize, initial: T) -> Replica<T> {
        let applied = vec![0; processes * tables.methods];
        let summaries = vec![Summary::empty(tables.methods); processes * tables.summaries];
        Replica { tables, processes, me, state: initial, applied, summaries }
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
        next.call = match &next.call {
            None => Some(call.clone()),
            Some(before) => Some(T::summarise(before, call).ok_or(Wrong::NotSummarised { method })?),
        };
        next.written += 1;
        next.calls[method] += 1;
        Ok(next)
    }

    /// The own summary of a group, after a call that is in the state.
    pub(crate) fn keep_summary(&mut self, group: usize, summary: Summary<T::Update>, method: usize) {
        let me = self.me;
        *self.summary_mut(me, group) = summary;
        self.has_applied(me, method);
    }

    /// Takes what a summary of a process adds to that which is known. Nothing, if it is an older one, or if it belongs to an
    /// epoch that the feed has not brought here yet.
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
        Ok(())
    }

    /// The own summary of a group goes into the feed, and a new one begins.
    pub(crate) fn begin_epoch(&mut self, process: usize, group: usize) -> Summary<T::Update> {
        let methods = self.tables.methods;
        let known = self.summary_mut(process, group);
        let next = Summary { written: known.written, epoch: known.epoch + 1, ..Summary::empty(methods) };
        core::mem::replace(known, next)
    }

    /// D of a call that this process makes now: A, of the methods that it depends on.
    pub(crate) fn dependencies(&self, method: usize) -> Vec<u64> {
        let of = |process| self.tables.dependencies[method].iter().map(move |on| self.applied(process, *on));
        (0..self.processes).flat_map(of).collect()
    }

    /// D ≤ A.
    pub(crate) fn satisfies(&self, method: usize, dependencies: &[u64]) -> bool {
        let on = &self.tables.dependencies[method];
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

    /// Rule FREE-APP, and the fold of a summary: applies the next message of a process's feed. False if it has to wait for calls of
    /// others.
    pub(crate) fn apply_message(
        &mut self,
        process: usize,
        message: &Message<T::Update>,
    ) -> Result<bool, Wrong<T::Refusal>> {
        match message {
            Message::Call { call, dependencies } => {
                if !self.satisfies(call.method().number(), dependencies) {
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

    // ---- encoding ---------------------------------------------------------------------------------------------------

    /// Encodes a message: a varint, 0 for a call; the rest in the format of `postcard`. The number of dependencies follows from the
    /// method (§4).
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
        let summary = self.decode_summary(group, written, epoch, rest)?;
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

    pub(crate) fn decode_summary(
        &self,
        group: usize,
        written: u64,
        epoch: u64,
        mut bytes: &[u8],
    ) -> Result<Summary<T::Update>, Wrong<T::Refusal>> {
        let mut summary = Summary { written, epoch, ..Summary::empty(self.tables.methods) };
        for method in self.summarised_in(group) {
            (summary.calls[method], bytes) = decode(bytes)?;
        }
        (summary.call, _) = decode(bytes)?;
        Ok(summary)
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
pub(crate) fn decode<'b, V: serde::Deserialize<'b>, R>(bytes: &'b [u8]) -> Result<(V, &'b [u8]), Wrong<R>> {
    postcard::take_from_bytes(bytes).map_err(|error| Wrong::Encoding(error.to_string()))
}
