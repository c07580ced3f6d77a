//! The replicated log: the node that leads proposes entries, and all read them. The leader dies, or another node asks
//! to lead.

use farfield::mu::{LogReader, NotLeader, OutcomeUnknown, Proposer};
use farfield::{Endpoint, LogOptions, NodeId, ReplicatedLog};
use rand::RngExt;
use rand::rngs::SmallRng;

use super::{Load, Place};
use crate::chaos::log::{Answer, Failure, Op, Recorder};

/// Few slots: they are used again all the time, and a node that is stopped may fill the log.
const OPTIONS: LogOptions = LogOptions { entry_bytes_max: 40, entries: 64 };
/// How many steps of a node that does not lead try to propose.
const TRIES: f64 = 0.02;
/// How many of those that have read an entry ask to lead. Without entries nodes that ask would overtake each other: on
/// an emulated machine it takes a second until one leads.
const ASKS: f64 = 0.005;
/// When so much time has passed without an entry, there are no more.
const NO_MORE: std::time::Duration = std::time::Duration::from_millis(500);

pub(super) struct EntriesLoad {
    me: NodeId,
    entries: ReplicatedLog,
    proposer: Proposer,
    reader: LogReader,
    proposed: u64,
    entry: Vec<u8>,
    endpoint: Endpoint,
    rng: SmallRng,
}

/// An entry: a number that no other one has, and copies of it.
fn entry_of(value: u64) -> Vec<u8> {
    value.to_le_bytes().repeat(1 + value as usize % 5)
}

impl EntriesLoad {
    pub(super) fn open(place: &mut Place<'_>) -> Result<EntriesLoad, Failure> {
        let members = place.members.clone();
        let entries = place.open("entries", |node, path| ReplicatedLog::open_among(node, path, &members, OPTIONS))?;
        let proposer = place.open("the proposer of entries", |_, _| entries.proposer())?;
        let reader = place.open("the reader of entries", |_, _| entries.reader())?;
        let (endpoint, rng) = (place.endpoint()?, place.rng("entries"));
        let me = place.node.id();
        Ok(EntriesLoad { me, entries, proposer, reader, proposed: 0, entry: Vec::new(), endpoint, rng })
    }

    fn propose(&mut self, log: &mut Recorder) {
        self.proposed += 1;
        let value = u64::from(self.me.0 + 1) << 32 | self.proposed;
        let (proposer, endpoint) = (&mut self.proposer, &self.endpoint);
        let propose = async {
            match proposer.propose(endpoint, &entry_of(value)).await {
                Err(error) if error.custom_ref::<NotLeader>().is_some() => Ok(Answer::Changed(false)),
                Err(error) => match error.custom_ref::<OutcomeUnknown>() {
                    Some(unknown) => Ok(Answer::Unknown(unknown.index)),
                    None => Err(error),
                },
                Ok(index) => Ok(Answer::Value(index)),
            }
        };
        let _ = log.call(Op::Propose { value }, endpoint, propose, Answer::clone);
    }

    /// Reads all entries that are there. Whether there was one.
    fn read(&mut self, log: &mut Recorder) -> bool {
        let mut some = false;
        loop {
            let read = self.reader.try_next(&mut self.entry);
            if matches!(read, Ok(None)) {
                break;
            }
            some = true;
            let begun = log.begin(Op::ReadEntry, self.endpoint.timeout());
            let value = self.entry.first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
            if read.is_ok() && self.entry != entry_of(value) {
                super::violation(format!("an entry of the replicated log is not whole: {:x?}", self.entry));
            }
            let words = |index: &Option<u64>| Answer::Words([index.unwrap_or_default(), value]);
            if log.end(begun, read, words).is_err() {
                break;
            }
        }
        self.reader.acknowledge();
        some
    }
}

impl Load for EntriesLoad {
    fn step(&mut self, log: &mut Recorder) {
        let leads = self.entries.is_leader();
        // A leader knows all earlier entries: unless it reads them, it may wait for itself when the log is full.
        let has_read = self.read(log);
        if leads || self.rng.random_bool(TRIES) {
            self.propose(log);
        } else if has_read && self.rng.random_bool(ASKS) {
            self.entries.ask_to_lead();
        }
    }

    fn look(&mut self, log: &mut Recorder) {
        loop {
            let is_there = || self.reader.has_next().then_some(());
            let waited = self.endpoint.wait_until(self.endpoint.now() + NO_MORE, is_there);
            if self.endpoint.block_on(waited).is_err() || !self.read(log) {
                break;
            }
        }
    }
}
