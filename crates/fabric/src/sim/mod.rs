//! A simulated session, in which a search makes all choices: the fabric of the model checker.
//!
//! All threads of all nodes are coroutines on one OS thread, and their memory is that of the RDMA^TSO machine
//! ([`mowgli::machine`]): store buffers, queue pairs, the write buffers of NICs. Every action of a thread that another
//! could observe is a *scheduling point*: an access to a [`Word`](crate::Word) or [`Slot`](crate::Slot), an
//! operation's completion, a [`LocalMutex`](crate::LocalMutex), a [`Concurrent`](crate::Concurrent) structure, a
//! control message, the clock where time may pass early. There a [`Chooser`] decides what happens next: that access,
//! another thread's, or a step of the machine.
//!
//! - **Waiting.** A waiting thread continues only when a value that it has read since its last wait may have changed.
//!   So an execution ends, and a search of all executions ends too.
//! - **Time** is virtual. It stands still while a step is possible, and then jumps to the next deadline.
//! - **Local steps** that no other thread can observe are not points: a store enters the thread's own store buffer, an
//!   operation too.
//! - **A word outside of regions** (`Word::new`) is not part of the machine, since it may move or end. A store to it
//!   waits until the thread's store buffer is empty, so it is never seen too early; late visibility is not explored.
//! - **Completions** are seen one by one, not in the order of their posting: RDMA^WAIT promises no more.
//! - **Faults** ([`Faults`]): nodes that die, cuts, stalls. Each is a possible next step, as those of the machine are.
//! - **Failures.** A panic, a deadlock, or an execution that does not end is a [`Failure`], with the point at which it
//!   happened. The rest of the execution is unwound.
//!
//! [`run`] runs one execution. A search is many of them, each with another chooser; `farfield-check` has those.

mod arena;
mod choice;
mod execution;
mod fabric;
mod fault_kinds;
mod faults;
mod heap;
pub(crate) mod hook;
mod lane;
mod record;
mod schedule;
mod settings;
mod state;
mod threads;
mod wait_set;
mod world;

/// The most nodes of a simulated session: sets of nodes are one word.
///
/// ```
/// use farfield_fabric::sim::NODES_MAX;
/// let all = (0..NODES_MAX).fold(0u64, |set, node| set | 1 << node);
/// assert_eq!(all, u64::MAX);
/// ```
pub const NODES_MAX: usize = u64::BITS as usize;

pub use choice::{Candidate, Choice, Chooser, Failure, FailureKind, First, Footprint, Outcome, Touch, View};
pub use execution::{Handle, calm, crashed, excuses, fail, note, run, was_paused};
pub use fabric::SimFabric;
pub use fault_kinds::{Fault, Faults};
pub use mowgli::machine::Loc;
pub use record::{Cell, Event, What};
pub use settings::Settings;
pub use threads::choose;
