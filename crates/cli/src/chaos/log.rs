//! The calls of the nodes' threads, as they log them: a line of JSON before each call, and one after it. Each line is
//! a system call, so the log survives when the process is killed. A thread may have several pending calls; numbers
//! distinguish them.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use farfield::swarm::NoMajority;
use farfield::{Endpoint, ErrorKind, NodeId};
use farfield::{hamband, mu, rome, rpc};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// An operation on a key.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum KvOp {
    Get,
    Insert(u64),
    Update(u64),
    Upsert(u64),
    Delete,
    /// A conditional update. It finds the value that it replaces.
    UpdateIf(u64),
}

/// A call of the replicated ledger.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LedgerOp {
    Deposit(u64),
    Withdraw(u64),
    Book(u64),
    Strike(u64),
    /// A query: the balance, how many numbers are struck, and how many were booked by each member.
    Look,
    /// Waits until all replicas have the calls of this node.
    Stable,
    /// Waits until this replica has the calls of the dead that any has.
    Settled,
    /// The final state.
    Final,
}

impl LedgerOp {
    /// Whether the leader of a group orders it.
    pub(super) fn is_ordered(self) -> bool {
        matches!(self, LedgerOp::Withdraw(_) | LedgerOp::Strike(_))
    }
}

/// An object of which one thread of all nodes has the turn.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Turns {
    Mutex,
    Election,
}

/// A call. Objects that have a home are distinguished by it.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
pub(super) enum Op {
    Open {
        path: String,
    },
    /// The home of a key's value, by the key's hash.
    Home {
        key: u64,
    },
    Kv {
        key: u64,
        op: KvOp,
    },
    /// Of the replicated store.
    Swarm {
        key: u64,
        op: KvOp,
    },
    /// Of the ordered store.
    Rome {
        key: u64,
        op: KvOp,
    },
    /// Reads partitions of the ordered store, from the first one on to before the end.
    RomeScan {
        first: usize,
        end: usize,
    },
    /// Moves a partition of the ordered store to the calling node.
    RomeTake {
        partition: usize,
    },
    Enqueue {
        queue: u16,
        values: Vec<u64>,
    },
    Dequeue {
        queue: u16,
    },
    /// A thread may want a lock several times at once. All that it does in one turn has the turn's number.
    Lock {
        lock: u16,
        turn: u64,
    },
    Look {
        lock: u16,
        turn: u64,
    },
    Change {
        lock: u16,
        turn: u64,
        from: [u64; 2],
        to: [u64; 2],
    },
    Unlock {
        lock: u16,
        turn: u64,
    },
    Send {
        ring: u16,
        number: u64,
    },
    Receive {
        ring: u16,
    },
    /// Makes all puts visible to live nodes.
    Flush,
    Meet {
        path: String,
        round: u64,
        again: bool,
    },
    Announce {
        value: u64,
    },
    Add {
        counter: u16,
    },
    Total {
        counter: u16,
    },
    /// Adds to a server's count, by a call.
    Call {
        server: u16,
    },
    /// A server's count in the end.
    Count {
        server: u16,
    },
    Push {
        value: u64,
    },
    Pull {
        of: u16,
    },
    /// The final copy on this node.
    Copy {
        of: u16,
    },
    /// Of the replicated ledger.
    Ledger {
        op: LedgerOp,
    },
    /// Takes the replicated lock, or is elected. It finds the token.
    Grab {
        of: Turns,
    },
    /// Under the replicated lock: stores the token on a node where the last holder has stored its own, and finds that.
    Mark {
        home: u16,
        token: u64,
    },
    /// Whether the elected node leads, just before the end of the call.
    Leads {
        term: u64,
    },
    GiveBack {
        of: Turns,
        token: u64,
    },
    /// Proposes an entry of the replicated log. It finds the index.
    Propose {
        value: u64,
    },
    /// Reads the next entry of the replicated log: an index and a value.
    ReadEntry,
    /// A call of another crate's load.
    Custom {
        load: String,
        call: Value,
    },
}

/// The answer of a call.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
pub(super) enum Answer {
    Done,
    Found(Option<u64>),
    Changed(bool),
    Value(u64),
    Held {
        is_poisoned: bool,
    },
    Words([u64; 2]),
    Numbers(Vec<u64>),
    /// It has been proposed, and is decided at this index or never.
    Unknown(u64),
    Custom(Value),
}

/// An error, as far as it is judged.
///
/// ```
/// # use farfield_cli::Failure;
/// # let text = "node 2 is dead".into();
/// # let (variant, nodes, object, partition) = ("PeerDead".into(), vec![2], None, None);
/// # let dead = Failure { variant, nodes, object, text, has_no_effect: false, partition };
/// // `dead` is the failure of a call that needed a node which was killed.
/// assert!(dead.is_death() && !dead.is_timeout());
/// assert_eq!(dead.nodes, [2]);
/// ```
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct Failure {
    /// The name of its kind, the fabric's if it is one of those.
    pub variant: String,
    /// The nodes that it names.
    pub nodes: Vec<u16>,
    /// The path of the object.
    pub object: Option<String>,
    /// Its message.
    pub text: String,
    /// The error of a call of a server says that the call has no effect, and will have none.
    #[serde(default)]
    pub has_no_effect: bool,
    /// The partition of the ordered store that the call needed.
    #[serde(default)]
    pub partition: Option<usize>,
}

impl Failure {
    fn of(error: &farfield::Error) -> Failure {
        // A call of a server ends with the error that has ended its wait.
        let because = |error: &farfield::Error| {
            let of = Failure::of(error);
            (of.variant, of.nodes.into_iter().map(NodeId).collect())
        };
        let (debug, nodes) = match error.kind() {
            _ if let Some(missing) = error.custom_ref::<NoMajority>() => {
                (format!("{missing:?}"), missing.failed.iter().map(|(node, _)| *node).collect())
            }
            _ if let Some(missing) = error.custom_ref::<mu::NoMajority>() => (format!("{missing:?}"), Vec::new()),
            _ if let Some(full) = error.custom_ref::<mu::LogFull>() => (format!("{full:?}"), vec![full.behind]),
            _ if let Some(wrong) = error.custom_ref::<hamband::WrongCoordination>() => {
                (format!("{wrong:?}"), vec![wrong.from])
            }
            _ if let Some(unknown) = error.custom_ref::<rpc::EffectUnknown>() => because(&unknown.because),
            _ if let Some(full) = error.custom_ref::<rpc::WindowFull>() => because(&full.because),
            _ if let Some(late) = error.custom_ref::<rpc::NotSent>() => because(&late.because),
            _ if let Some(lost) = error.custom_ref::<rome::RangeUnavailable>() => because(&lost.because),
            _ if let Some(full) = error.custom_ref::<rome::MemoryFull>() => (format!("{full:?}"), Vec::new()),
            _ if let Some(late) = error.custom_ref::<rome::SnapshotExpired>() => (format!("{late:?}"), Vec::new()),
            _ if let Some(busy) = error.custom_ref::<rome::NotOneInstant>() => (format!("{busy:?}"), Vec::new()),
            ErrorKind::Fabric(cause) => (format!("{:?}", cause.kind()), cause.node().into_iter().collect()),
            kind @ ErrorKind::Timeout { missing, .. } => (format!("{kind:?}"), missing.clone()),
            ErrorKind::Missed { nodes } => {
                // Live nodes matter more than dead and departed ones.
                let says_most = nodes.iter().find(|(_, cause)| !cause.is_gone()).or(nodes.first());
                let alike =
                    nodes.iter().filter(|(_, cause)| says_most.is_some_and(|most| cause.is_gone() == most.1.is_gone()));
                (
                    says_most.map(|(_, cause)| format!("{:?}", cause.kind())).unwrap_or_default(),
                    alike.map(|missed| missed.0).collect(),
                )
            }
            kind => (format!("{kind:?}"), error.node().into_iter().collect()),
        };
        Failure {
            variant: debug.chars().take_while(char::is_ascii_alphanumeric).collect(),
            nodes: nodes.iter().map(|node| node.0).collect(),
            object: error.object().map(Into::into),
            text: error.to_string(),
            has_no_effect: error.custom_ref::<rome::RangeUnavailable>().is_some_and(|lost| !lost.may_have_happened),
            partition: error.custom_ref::<rome::RangeUnavailable>().map(|lost| lost.partition),
        }
    }

    /// Of a call of a server.
    fn of_call(error: &farfield::Error) -> Failure {
        Failure { has_no_effect: rpc::effect_of(error) == rpc::Effect::None, ..Failure::of(error) }
    }

    /// Whether a node that was needed is dead.
    pub fn is_death(&self) -> bool {
        ["PeerDead", "ValueLost"].contains(&self.variant.as_str())
    }

    /// Whether a deadline passed.
    pub fn is_timeout(&self) -> bool {
        self.variant == "Timeout"
    }
}

pub(super) type Outcome = Result<Answer, Failure>;

#[derive(Serialize, Deserialize)]
enum Record {
    Begin { number: u64, at_ns: u64, limit_ns: u64, op: Op },
    End { number: u64, at_ns: u64, outcome: Result<Answer, Failure> },
}

/// The log of one thread.
pub(super) struct Recorder {
    file: File,
    calls: Cell<u64>,
}

/// The number of a call that is under way.
#[must_use]
pub(super) struct Begun(u64);

/// Now, on the clock that all processes of the host share.
pub(super) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

impl Recorder {
    pub(super) fn create(place: &Path, name: &str) -> Result<Recorder> {
        let path = place.join(name);
        let file = File::create(&path).with_context(|| format!("creating the log {}", path.display()))?;
        Ok(Recorder { file, calls: Cell::new(0) })
    }

    fn write(&self, record: &Record) {
        let mut line = serde_json::to_string(record).expect("records are plain data");
        line.push('\n');
        // A log that cannot be written is a run that cannot be judged.
        (&self.file).write_all(line.as_bytes()).expect("writing the log: is the disk full?");
    }

    /// Logs the call that begins, and its time limit.
    pub(super) fn begin(&self, op: Op, limit: Duration) -> Begun {
        let number = self.calls.replace(self.calls.get() + 1);
        self.write(&Record::Begin { number, at_ns: now_ns(), limit_ns: limit.as_nanos() as u64, op });
        Begun(number)
    }

    /// Logs how the call ended.
    pub(super) fn end<T>(
        &self,
        begun: Begun,
        result: farfield::Result<T>,
        answer: impl FnOnce(&T) -> Answer,
    ) -> Result<T, Failure> {
        self.end_as(begun, result.map_err(|error| Failure::of(&error)), answer)
    }

    /// Logs how a call of a server ended.
    pub(super) fn end_call<T>(
        &self,
        begun: Begun,
        result: farfield::Result<T>,
        answer: impl FnOnce(&T) -> Answer,
    ) -> Result<T, Failure> {
        self.end_as(begun, result.map_err(|error| Failure::of_call(&error)), answer)
    }

    fn end_as<T>(
        &self,
        begun: Begun,
        result: Result<T, Failure>,
        answer: impl FnOnce(&T) -> Answer,
    ) -> Result<T, Failure> {
        let outcome = result.as_ref().map(answer).map_err(Failure::clone);
        self.write(&Record::End { number: begun.0, at_ns: now_ns(), outcome });
        result
    }

    /// A call with the endpoint's timeout.
    pub(super) fn call<T>(
        &self,
        op: Op,
        endpoint: &Endpoint,
        call: impl Future<Output = farfield::Result<T>>,
        answer: impl FnOnce(&T) -> Answer,
    ) -> Result<T, Failure> {
        endpoint.block_on(self.call_among(op, endpoint, call, answer))
    }

    /// [`Recorder::call`] beside others of the same thread.
    pub(super) async fn call_among<T>(
        &self,
        op: Op,
        endpoint: &Endpoint,
        call: impl Future<Output = farfield::Result<T>>,
        answer: impl FnOnce(&T) -> Answer,
    ) -> Result<T, Failure> {
        let begun = self.begin(op, endpoint.timeout());
        let result = call.await;
        self.end(begun, result, answer)
    }

    /// Opens an object.
    pub(super) fn open<T>(
        &self,
        node: &farfield::Node,
        path: &str,
        open: impl FnOnce(&str) -> farfield::Result<T>,
    ) -> Result<T, Failure> {
        let begun = self.begin(Op::Open { path: path.into() }, node.timeout());
        self.end(begun, open(path), |_| Answer::Done)
    }
}

/// A call as it was logged.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) node: u16,
    /// The thread: the kind of its load, and a number if there are several.
    pub(super) thread: String,
    pub(super) op: Op,
    pub(super) limit_ns: u64,
    pub(super) begin_ns: u64,
    /// None if the node was killed before.
    pub(super) end: Option<(u64, Outcome)>,
}

impl Call {
    /// When it succeeded, and with what.
    pub(super) fn success(&self) -> Option<(u64, &Answer)> {
        self.end.as_ref().and_then(|(at_ns, outcome)| outcome.as_ref().ok().map(|answer| (*at_ns, answer)))
    }

    pub(super) fn failure(&self) -> Option<(u64, &Failure)> {
        self.end.as_ref().and_then(|(at_ns, outcome)| outcome.as_ref().err().map(|failure| (*at_ns, failure)))
    }
}

/// The name of a thread's log.
pub(super) fn log_name(generation: u64, node: u16, thread: &str) -> String {
    format!("{generation}-{node}-{thread}.log")
}

/// Reads the logs of a generation.
pub(super) fn read(place: &Path, generation: u64) -> Result<Vec<Call>> {
    let mut calls = Vec::new();
    let entries = std::fs::read_dir(place).with_context(|| format!("reading {}", place.display()))?;
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_suffix(".log"));
        let mut parts = name.unwrap_or_default().splitn(3, '-');
        let (Some(of), Some(node), Some(thread)) = (parts.next(), parts.next(), parts.next()) else { continue };
        if of.parse() != Ok(generation) {
            continue;
        }
        let node = node.parse().with_context(|| format!("the name of {}", path.display()))?;
        let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        read_one(&text, node, thread, &mut calls).with_context(|| format!("the log {}", path.display()))?;
    }
    calls.sort_by_key(|call| call.begin_ns);
    Ok(calls)
}

fn read_one(text: &str, node: u16, thread: &str, calls: &mut Vec<Call>) -> Result<()> {
    let mut open: BTreeMap<u64, Call> = BTreeMap::new();
    // A last line without an end was being written when the process was killed.
    for line in text.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
        match serde_json::from_str(line)? {
            Record::Begin { number, at_ns, limit_ns, op } => {
                let thread = thread.to_owned();
                open.insert(number, Call { node, thread, op, limit_ns, begin_ns: at_ns, end: None });
            }
            Record::End { number, at_ns, outcome } => {
                let Some(mut call) = open.remove(&number) else { bail!("what was not called has returned: {line}") };
                call.end = Some((at_ns, outcome));
                calls.push(call);
            }
        }
    }
    calls.extend(open.into_values());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logged_calls_are_read_back_without_a_line_cut_short() {
        let place = tempfile::tempdir().expect("a folder");
        let log = Recorder::create(place.path(), &log_name(3, 1, "kv-0")).expect("a log");
        let get = Op::Kv { key: 5, op: KvOp::Get };
        let first = log.begin(get.clone(), Duration::from_secs(1));
        let _second = log.begin(Op::Kv { key: 5, op: KvOp::Insert(9) }, Duration::from_secs(1));
        log.end(first, Ok(Some(7)), |value| Answer::Found(*value)).expect("what was given");
        (&log.file).write_all(b"{\"End\":").expect("half a line");
        let calls = read(place.path(), 3).expect("the log");
        assert!(read(place.path(), 2).expect("no log").is_empty());
        assert_eq!(calls.len(), 2);
        assert_eq!((calls[0].node, calls[0].thread.as_str(), &calls[0].op), (1, "kv-0", &get));
        assert_eq!(calls[0].success().expect("a success").1, &Answer::Found(Some(7)));
        assert!(calls[1].end.is_none());
    }
}
