//! The core of [Farfield](https://docs.rs/farfield): nodes, first-party objects over network memory, and the
//! [`toolkit`] that objects and systems in other crates are built from.
//!
//! Programs use the crate `farfield`, which re-exports this one and the systems. A crate with an object of its own
//! depends on either.
//!
//! There is no `unsafe` code in this crate.

#![forbid(unsafe_code)]

mod blocking;
mod error;
#[cfg(any(not(seeded), clippy, doc, rust_analyzer))]
mod node;

pub mod history;
pub mod mutants;
#[cfg(any(not(seeded), clippy, doc, rust_analyzer))]
pub mod objects;
pub mod toolkit;

// Where the seeded bugs are on, copies of the modules that have a `cfg(any(not(seeded), …))` (`mutants`).
#[cfg(all(seeded, not(any(clippy, doc, rust_analyzer))))]
include!(concat!(env!("OUT_DIR"), "/seeded.rs"));

pub use error::{Error, ErrorKind, Result};
pub use farfield_fabric as fabric;
pub use farfield_fabric::{CallCounts, Endpoint, HugePages, Latencies, NODES_MAX, NodeId, zerocopy};
#[cfg(feature = "prometheus")]
pub use node::MetricsServer;
pub use node::{
    Builder, Config, LEAVE_TIMEOUT, MemberStatus, Metrics, Node, ObjectMetrics, PORT, Reopening, local_session,
    local_session_with, loopback_hosts, on_each,
};
pub use objects::atomic_var::AtomicVar;
pub use objects::barrier::{Barrier, BarrierThread};
pub use objects::channel::{Channel, ChannelOptions, ChannelReceiver, ChannelSender};
#[cfg(feature = "serde")]
pub use objects::encoded::Encoded;
pub use objects::kv::{ByteString, Key, KvOptions, KvStore, Placement, Value};
pub use objects::mutex::{Guard, HeldLock, Mutex, MutexArray};
pub use objects::owned_var::{OwnedVar, OwnedWriter, TearCheck};
pub use objects::queue::{Queue, QueueOptions};
pub use objects::ring_buffer::{Acknowledgements, RingBuffer, RingOptions, RingReceiver, RingSender};
pub use objects::shared_var::SharedVar;
pub use objects::sst::Sst;
pub use objects::wait_limit::WaitLimit;
