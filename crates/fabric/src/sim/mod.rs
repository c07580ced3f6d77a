//! A simulated session whose every choice is somebody else's: the fabric of the model checker.
//!
//! All threads of all nodes are coroutines on one OS thread, and their memory is that of the RDMA^TSO machine
//! ([`mowgli::machine`]): store buffers, queue pairs, the write buffers of NICs. Whatever a thread does that another
//! could notice is a *scheduling point*: an access to a [`Word`](crate::Word) or [`Slot`](crate::Slot), an operation's
//! completion, a [`LocalMutex`](crate::LocalMutex), a [`Concurrent`](crate::Concurrent) structure, a control message,
//! the clock where time may pass early. There a [`Chooser`] says what happens next: that access, another thread's, or a
//! step of the machine.
//!
//! - **Waiting.** A thread that waits goes on only when something that it has looked at since it last waited may have
//!   changed. So an execution ends, and a search of all executions ends too.
//! - **Time** is virtual. It stands still while anything can happen, and then jumps to the next deadline.
//! - **Local steps** that nobody can notice are not points: a store enters the thread's own store buffer, an operation too.
//! - **A word outside of regions** (`Word::new`) is not the machine's, since it may move or end: a store to it waits until
//!   the thread's store buffer is empty, so it is never seen too early; that it is seen late is not explored.
//! - **Completions** are seen one by one, not in the order of their posting: RDMA^WAIT promises no more.
//! - **Faults** ([`Faults`]): nodes that die, cuts, stalls. Each is something that may happen next, as a step of the machine is.
//! - **Failures.** A panic, a deadlock, or an execution that does not end is a [`Failure`], with the point at which it
//!   happened. What is left of the execution is unwound.
//!
//! [`run`] runs one execution. A search is many of them, each with another chooser; `farfield-check` has those.

mod arena;
mod choice;
mod fabric;
mod faults;
mod heap;
pub(crate) mod hook;
mod lane;
mod looks;
mod record;
mod threads;
mod world;

pub use choice::{Candidate, Choice, Chooser, Failure, FailureKind, Footprint, Touch, View};
pub use fabric::SimFabric;
pub use faults::{Fault, Faults};
pub use record::{Cell, Event, What};
pub use threads::{Handle, Outcome, Settings, calm, choose, crashed, fail, note, run, stood_still};
