//! The kinds of objects that a run has at work.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// Objects of a kind, and the threads that use them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
pub(super) enum Kind {
    /// A key-value store
    Kv,
    /// Queues
    Queue,
    /// Locks, each with data of its own
    Locks,
    /// Rings, one from each node
    Ring,
    /// Barriers
    Barrier,
    /// Variables of all kinds
    Vars,
    /// Transactions between cells of all nodes
    Transactions,
    /// Servers of calls
    Rpc,
    /// An ordered store
    Rome,
    /// A replicated store
    Swarm,
    /// A replicated data type
    Wrdt,
    /// A replicated log, lock or election
    Log,
}
