//! A process's part of a replicated object: its replica, and the network memory of the summaries and feeds. The
//! writer's thread, threads with queries and the service thread share it under a lock of the process, which none of
//! them holds while it waits.

use farfield_core::{Error, ErrorKind, Result};
use farfield_fabric::{Endpoint, NodeId, Region};
use farfield_mu::LogReader;

use crate::data_type::{DataType, Method, Update};
use crate::errors::{NoSummary, WrongCoordination};
use crate::feed::{Incoming, Outgoing};
use crate::options::MESSAGE_OVERHEAD;
use crate::replica::{Applied, Message, Ordered, Replica, Summary, Wrong, encode};
use crate::summaries::Summaries;
use crate::watch::Watch;

/// The result of a look at the memory.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Drained {
    /// Something was applied.
    pub(crate) some: bool,
    /// A message waits for calls of others.
    pub(crate) waits: bool,
}

/// How a call has begun.
pub(crate) enum Begun<R> {
    /// It is done here, and on its way to the others.
    Done,
    Refused(R),
    /// The feed has no room.
    Full,
}

/// The content of an entry of a feed: a call of a method, or the fold of a summarisation group.
#[derive(Clone, Copy)]
enum On {
    Method(usize),
    Summary(usize),
}

/// A synchronisation group here.
pub(crate) struct Group<U> {
    reader: LogReader,
    entry: Vec<u8>,
    /// The entry that waits for calls of others, and its index.
    waiting: Option<Ordered<U>>,
    pub(crate) applied: Applied,
    /// The number of the last call of this process.
    pub(crate) last_call: u64,
    /// By process: how many entries of its feed have to be at a majority before a call of this group is ordered, as
    /// that may depend on the last of them.
    pub(crate) relies_on: Vec<u64>,
}

impl<U> Group<U> {
    pub(crate) fn new(reader: LogReader, processes: usize, summaries: usize) -> Group<U> {
        Group {
            reader,
            entry: Vec::new(),
            waiting: None,
            applied: Applied::new(processes, summaries),
            last_call: 0,
            relies_on: vec![0; processes],
        }
    }

    /// The number of entries that are applied.
    pub(crate) fn entries(&self) -> u64 {
        self.reader.position() - u64::from(self.waiting.is_some())
    }
}

pub(crate) struct Local<T: DataType> {
    pub(crate) replica: Replica<T>,
    pub(crate) processes: Vec<NodeId>,
    pub(crate) outgoing: Outgoing,
    /// By rank; none for this process.
    pub(crate) incoming: Vec<Option<Incoming>>,
    /// The message of each feed that waits for calls of others, and its end.
    waiting: Vec<Option<(Message<T::Update>, u64)>>,
    pub(crate) summaries: Summaries,
    /// By synchronisation group.
    pub(crate) groups: Vec<Group<T::Update>>,
    /// The summarisation groups of which some process refused the last put.
    unsent: Vec<bool>,
    /// The numbers of applied entries of each feed, and of each log, for the others to read.
    pub(crate) applied: Region,
    /// Why this replica cannot go on.
    broken: Option<Error>,
    call_bytes_max: usize,
    scratch: Vec<u8>,
}

pub(crate) struct Parts<T: DataType> {
    pub(crate) replica: Replica<T>,
    pub(crate) processes: Vec<NodeId>,
    pub(crate) outgoing: Outgoing,
    pub(crate) incoming: Vec<Option<Incoming>>,
    pub(crate) summaries: Summaries,
    pub(crate) groups: Vec<Group<T::Update>>,
    pub(crate) applied: Region,
    pub(crate) call_bytes_max: usize,
}

impl<T: DataType> Local<T> {
    pub(crate) fn new(parts: Parts<T>) -> Local<T> {
        let Parts { replica, processes, outgoing, incoming, summaries, groups, applied, call_bytes_max } = parts;
        let waiting = processes.iter().map(|_| None).collect();
        let unsent = vec![false; replica.tables.summaries];
        Local {
            replica,
            processes,
            outgoing,
            incoming,
            waiting,
            summaries,
            groups,
            unsent,
            applied,
            broken: None,
            call_bytes_max,
            scratch: Vec::new(),
        }
    }

    /// Fails if this replica has met a call that it had to refuse.
    pub(crate) fn check(&self) -> Result<()> {
        if let Some(error) = &self.broken { Err(error.clone()) } else { Ok(()) }
    }

    pub(crate) fn error(&self, process: usize, wrong: Wrong<T::Refusal>) -> Error {
        self.error_of(self.processes[process], wrong)
    }

    pub(crate) fn error_of(&self, from: NodeId, wrong: Wrong<T::Refusal>) -> Error {
        let name =
            |method: usize| <T::Update as Update>::Method::NAMES.get(method).copied().unwrap_or("an unknown method");
        match wrong {
            Wrong::Refused { method, refusal } => {
                let refusal = refusal.to_string();
                Error::custom(WrongCoordination { method: name(method), from, refusal }).about(from)
            }
            Wrong::NotSummarised { method } => Error::custom(NoSummary { method: name(method) }),
            Wrong::Encoding(why) => {
                let why = format!("a call of {from}: {why}; give the type the same definition on all nodes");
                ErrorKind::Encoding { why }.into()
            }
        }
    }

    /// The replica cannot go on: all later calls report why.
    fn breaks<V>(&mut self, process: usize, done: Result<V, Wrong<T::Refusal>>) -> Result<V> {
        done.map_err(|wrong| {
            let error = self.error(process, wrong);
            self.broken.get_or_insert(error).clone()
        })
    }

    // ---- calls of others -------------------------------------------------------------------------------------------

    /// Takes all summaries and messages that have landed, if their dependencies are applied (rule FREE-APP).
    pub(crate) fn drain(&mut self) -> Result<Drained> {
        self.check()?;
        let mut all = Drained::default();
        loop {
            let mut drained = Drained::default();
            for process in 0..self.processes.len() {
                let of_feed = self.drain_feed(process)?;
                drained = Drained { some: drained.some | of_feed.some, waits: drained.waits | of_feed.waits };
            }
            for group in 0..self.groups.len() {
                let of_log = self.drain_log(group)?;
                drained = Drained { some: drained.some | of_log.some, waits: drained.waits | of_log.waits };
            }
            // After the feeds: a call that its writer knew to be stable is seen no later than one that followed it.
            drained.some |= self.drain_summaries()?;
            all = Drained { some: all.some | drained.some, waits: drained.waits };
            // A message may have waited for one that came after it here.
            if !(drained.some && drained.waits) {
                return Ok(all);
            }
        }
    }

    /// Takes all that has landed. The result: whether something was applied; and the words that change when there may
    /// be more.
    pub(crate) fn drain_and_watch(&mut self) -> Result<(bool, Watch)> {
        let mut some = false;
        loop {
            some |= self.drain()?.some;
            let watch = self.watch();
            // A put that has landed in between is in the values of the watch, and not in the state.
            if !self.drain()?.some {
                return Ok((some, watch));
            }
            some = true;
        }
    }

    fn watch(&self) -> Watch {
        let mut watch = Watch::default();
        for (process, incoming) in self.incoming.iter().enumerate() {
            let Some(incoming) = incoming else { continue };
            incoming.watch(&mut watch);
            (0..self.replica.tables.summaries).for_each(|group| self.summaries.watch(process, group, &mut watch));
        }
        watch
    }

    fn drain_summaries(&mut self) -> Result<bool> {
        let mut some = false;
        for process in 0..self.processes.len() {
            if process == self.replica.me {
                continue;
            }
            for group in 0..self.replica.tables.summaries {
                let known = self.replica.summary(process, group).written;
                let Some(seen) = self.summaries.look(process, group, known) else { continue };
                let taken = self.replica.see_received(process, group, seen.written, seen.epoch, seen.bytes);
                self.breaks(process, taken)?;
                some |= self.replica.summary(process, group).written > known;
            }
        }
        Ok(some)
    }

    fn drain_feed(&mut self, process: usize) -> Result<Drained> {
        let mut drained = Drained::default();
        let Some(incoming) = &self.incoming[process] else { return Ok(drained) };
        if self.waiting[process].is_none() && !incoming.may_have() {
            return Ok(drained);
        }
        loop {
            if self.waiting[process].is_none() {
                let Some(incoming) = &self.incoming[process] else { return Ok(drained) };
                let replica = &self.replica;
                let Some((message, end)) = incoming.look(|bytes| replica.decode_message(bytes)) else {
                    return Ok(drained);
                };
                let message = self.breaks(process, message)?;
                self.waiting[process] = Some((message, end));
            }
            let Some((message, end)) = self.waiting[process].take() else { return Ok(drained) };
            let applied = self.replica.apply_message(process, &message);
            if !self.breaks(process, applied)? {
                self.waiting[process] = Some((message, end));
                return Ok(Drained { waits: true, ..drained });
            }
            drained.some = true;
            let Some(incoming) = &mut self.incoming[process] else { return Ok(drained) };
            incoming.take(end);
            let entries = incoming.entries();
            // After the entry was read and applied: another replica may take this for a reason to go on.
            self.applied.word(process * 8).store(entries);
            let on = match &message {
                Message::Call { call, .. } => On::Method(call.method().number()),
                Message::Fold { group, .. } => On::Summary(*group),
            };
            self.rely_on(process, on, entries);
        }
    }

    /// Rule CONF-APP.
    fn drain_log(&mut self, at: usize) -> Result<Drained> {
        let mut drained = Drained::default();
        loop {
            let group = &mut self.groups[at];
            if group.waiting.is_none() {
                if group.reader.try_next(&mut group.entry)?.is_none() {
                    group.reader.acknowledge();
                    return Ok(drained);
                }
                let entry = self.replica.decode_ordered(&group.entry);
                let entry = self.breaks(self.replica.me, entry)?;
                self.groups[at].waiting = Some(entry);
            }
            let group = &mut self.groups[at];
            let Some(entry) = group.waiting.take() else { return Ok(drained) };
            let applied = self.replica.apply_ordered(&mut group.applied, &entry);
            if !self.breaks(entry.origin, applied)? {
                self.groups[at].waiting = Some(entry);
                // It is a copy.
                self.groups[at].reader.acknowledge();
                return Ok(Drained { waits: true, ..drained });
            }
            drained.some = true;
            let entries = self.groups[at].entries();
            self.applied.word((self.processes.len() + at) * 8).store(entries);
        }
    }

    /// An entry of a feed is applied: which groups may depend on it?
    fn rely_on(&mut self, process: usize, on: On, entries: u64) {
        let tables = &self.replica.tables;
        for (group, methods) in self.groups.iter_mut().zip(&tables.groups) {
            let relies = methods.iter().any(|of_group| match on {
                On::Method(method) => tables.plain_dependencies[*of_group].contains(&method),
                On::Summary(summary) => tables.summary_dependencies[*of_group].contains(&summary),
            });
            if relies {
                group.relies_on[process] = entries;
            }
        }
    }

    // ---- calls of this process
    // -------------------------------------------------------------------------------------------

    /// Encodes a message into the scratch buffer, or refuses one that is too long.
    pub(crate) fn encode_call(&mut self, call: &T::Update) -> Result<&[u8]> {
        let mut scratch = core::mem::take(&mut self.scratch);
        scratch.clear();
        let encoded = encode::<_, T::Refusal>(call, scratch);
        let scratch = encoded.map_err(|wrong| self.error(self.replica.me, wrong))?;
        let (bytes, max_bytes) = (scratch.len(), self.call_bytes_max);
        self.scratch = scratch;
        if bytes > max_bytes {
            return Err(ErrorKind::TooLarge { bytes, max_bytes }.into());
        }
        Ok(&self.scratch)
    }

    /// Rule REDUCE: the own summary, here and at all others, by one put each.
    pub(crate) fn reduce(&mut self, endpoint: &Endpoint, call: &T::Update, group: usize) -> Result<Begun<T::Refusal>> {
        self.drain()?;
        let (me, method) = (self.replica.me, call.method().number());
        let mut next = self.replica.summarise(call).map_err(|wrong| self.error(me, wrong))?;
        self.encode_summary(group, &next)?;
        let is_folded = self.scratch.len() > self.summaries.bytes_max();
        if is_folded {
            // Before anything is changed.
            self.encode_call(call)?;
            if !self.outgoing.has_room(endpoint, self.fold_bytes_max()) {
                return Ok(Begun::Full);
            }
        }
        if let Err(refusal) = self.replica.state.apply(call) {
            return Ok(Begun::Refused(refusal));
        }
        if is_folded {
            self.fold(group)?;
            next = self.replica.summarise(call).map_err(|wrong| self.error(me, wrong))?;
            self.encode_summary(group, &next)?;
        }
        let (written, epoch) = (next.written, next.epoch);
        self.replica.keep_summary(group, next, method);
        // The put of an earlier summary need not be repeated: this one has its calls.
        self.unsent[group] = !self.summaries.put(endpoint, group, written, epoch, &self.scratch)?;
        if is_folded {
            self.outgoing.send(endpoint)?;
        }
        Ok(Begun::Done)
    }

    fn encode_summary(&mut self, group: usize, summary: &Summary<T::Update>) -> Result<()> {
        let mut scratch = core::mem::take(&mut self.scratch);
        scratch.clear();
        let encoded = self.replica.encode_summary(group, summary, scratch);
        self.scratch = encoded.map_err(|wrong| self.error(self.replica.me, wrong))?;
        Ok(())
    }

    /// The most that the fold of a summary can have.
    fn fold_bytes_max(&self) -> usize {
        self.summaries.bytes_max() + MESSAGE_OVERHEAD
    }

    /// Puts the own summary of a group into the feed, which has to have room, and begins another one. The feed has
    /// still to be sent.
    fn fold(&mut self, group: usize) -> Result<()> {
        let me = self.replica.me;
        let before = self.replica.begin_epoch(me, group);
        let encoded = self.replica.encode_fold(group, &before, Vec::new());
        let message = encoded.map_err(|wrong| self.error(me, wrong))?;
        let entries = self.append(&message);
        self.rely_on(me, On::Summary(group), entries);
        self.unsent[group] = false;
        Ok(())
    }

    /// Rule FREE: applied here, and appended to the feed of this process at all others, by one put each.
    pub(crate) fn free(&mut self, endpoint: &Endpoint, call: &T::Update) -> Result<Begun<T::Refusal>> {
        self.drain()?;
        self.encode_call(call)?;
        let mut scratch = core::mem::take(&mut self.scratch);
        scratch.clear();
        // The dependencies are counted before the call.
        let encoded = self.replica.encode_call(call, scratch);
        self.scratch = encoded.map_err(|wrong| self.error(self.replica.me, wrong))?;
        if !self.outgoing.has_room(endpoint, self.scratch.len()) {
            return Ok(Begun::Full);
        }
        if let Err(refusal) = self.replica.state.apply(call) {
            return Ok(Begun::Refused(refusal));
        }
        let (me, method) = (self.replica.me, call.method().number());
        self.replica.has_applied(me, method);
        let message = core::mem::take(&mut self.scratch);
        let entries = self.append(&message);
        self.scratch = message;
        self.rely_on(me, On::Method(method), entries);
        self.outgoing.send(endpoint)?;
        Ok(Begun::Done)
    }

    /// The longest message of this process.
    pub(crate) fn message_bytes_max(&self) -> usize {
        let beside = self.replica.tables.dependencies_bytes_max(self.processes.len());
        self.fold_bytes_max().max(self.call_bytes_max + beside + MESSAGE_OVERHEAD)
    }

    /// Appends a message to the own feed, which has to have room. The number of entries.
    fn append(&mut self, message: &[u8]) -> u64 {
        self.outgoing.append(message);
        let entries = self.outgoing.entries();
        self.applied.word(self.replica.me * 8).store(entries);
        entries
    }

    /// The counts that the others reach when they have applied all calls of this process: words of their row, and
    /// numbers.
    pub(crate) fn entries_of_calls(&self) -> Vec<(usize, u64)> {
        let feed = (self.replica.me, self.outgoing.entries());
        let logs = self.groups.iter().enumerate().map(|(at, group)| (self.processes.len() + at, group.entries()));
        core::iter::once(feed).chain(logs).filter(|(_, entries)| *entries > 0).collect()
    }

    /// Whether some process lacks something, and no call is sure to send it.
    pub(crate) fn owes(&self) -> bool {
        self.outgoing.is_behind() || self.unsent.contains(&true)
    }

    /// Sends the calls that others lack. The service thread calls it, with an endpoint of its own: entries of a feed
    /// may land in any order, and a summary is moved into the feed. False if something is left.
    pub(crate) fn send_rest(&mut self, endpoint: &Endpoint) -> Result<bool> {
        if !self.outgoing.send(endpoint)? {
            return Ok(false);
        }
        for group in 0..self.unsent.len() {
            if self.unsent[group] && self.outgoing.has_room(endpoint, self.fold_bytes_max()) {
                self.fold(group)?;
            }
        }
        self.outgoing.send(endpoint)?;
        Ok(!self.owes())
    }
}
