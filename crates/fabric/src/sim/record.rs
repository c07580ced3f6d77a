//! A record of the events of an execution.

use mowgli::machine::Loc;

use super::fault_kinds::Fault;
use crate::lane::Verb;
use crate::ptr::NodeId;

/// A word that threads touch.
///
/// ```
/// use farfield_fabric::sim::{Cell, Loc};
/// fn node_of(cell: Cell) -> Option<u16> {
///     match cell {
///         Cell::Region(loc) => Some(loc.node),
///         Cell::Own(_) => None,
///     }
/// }
/// assert_eq!(node_of(Cell::Region(Loc { node: 1, word: 8 })), Some(1));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Cell {
    /// In registered memory.
    Region(Loc),
    /// Of a node's own: a [`Word`](crate::Word) outside regions, a lock, a concurrent structure; numbered as first
    /// seen.
    Own(u32),
}

/// One thing that happened.
///
/// ```
/// # use farfield_fabric::{*, sim::*};
/// let settings = Settings { record: true, ..Settings::new(1) };
/// let outcome = sim::run(settings, Box::new(First), |_| sim::note(|| "half way".into()));
/// let remark = outcome.events.iter().find(|event| matches!(event.what, What::Note { .. }));
/// let remark: &Event = remark.expect("events are recorded");
/// assert_eq!((remark.thread, &outcome.threads[remark.thread].1[..]), (0, "main"));
/// ```
#[derive(Clone, PartialEq, Debug)]
pub struct Event {
    /// Position in the schedule.
    pub step: u64,
    /// Virtual time in nanoseconds.
    pub time_ns: u64,
    /// The thread that did it, or for which the NIC does it.
    pub thread: usize,
    /// What.
    pub what: What,
}

/// What happened. `op` numbers operations throughout the execution, from 0.
///
/// ```
/// use farfield_fabric::sim::{Event, Fault, What};
/// fn faults(events: &[Event]) -> usize {
///     events.iter().filter(|event| matches!(event.what, What::Fault { .. })).count()
/// }
/// let crash = Event { step: 9, time_ns: 0, thread: 1, what: What::Fault { fault: Fault::Crash(1) } };
/// assert_eq!(faults(&[crash]), 1);
/// ```
#[derive(Clone, PartialEq, Debug)]
#[allow(missing_docs, reason = "the fields say what they are")]
pub enum What {
    /// A CPU read, perhaps from the thread's own store buffer.
    Read { cell: Cell, value: u64, buffered: bool },
    /// A CPU write entered the store buffer.
    Write { cell: Cell, value: u64 },
    /// A CPU write reached memory.
    Drained { cell: Cell, value: u64 },
    /// A CPU read-modify-write.
    Rmw { cell: Cell, old: u64, new: u64 },
    /// An operation was issued.
    Issue { op: u32, verb: Verb, peer: NodeId, remote: Option<Loc>, words: u32, value: Option<u64> },
    /// The NIC read a word for an operation.
    NicRead { op: u32, loc: Loc, value: u64 },
    /// The operation's write entered a NIC's buffer.
    Started { op: u32 },
    /// A word of the operation reached memory.
    Landed { op: u32, loc: Loc, value: u64 },
    /// The operation is complete.
    Completed { op: u32 },
    /// The thread saw that it is.
    Seen { op: u32 },
    /// The thread waits until a value that it has looked at changes.
    Waits,
    /// It continues.
    Woken,
    /// A local lock was taken.
    Lock { cell: Cell },
    /// A local lock was released.
    Unlock { cell: Cell },
    /// A control message was sent.
    Message { to: NodeId, bytes: usize },
    /// A control message, or news of a node, was received.
    Received { from: NodeId, text: String },
    /// Nothing could happen before this moment.
    Elapsed,
    /// A fault, or a consequence of one.
    Fault { fault: Fault },
    /// A peer was evicted.
    Evicted { peer: NodeId },
    /// Something to say.
    Note { text: String },
}
