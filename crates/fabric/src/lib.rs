//! Farfield's fabric: the contract that objects are written against, and the fabrics that keep it.
//!
//! A [`Fabric`] is one node's membership in a session; an [`Endpoint`] is one thread's lane into it, with operations
//! ([`Endpoint::put_value`], [`Endpoint::get`], [`Endpoint::cas`], [`Endpoint::faa`], fences, batches) and the one way
//! to wait ([`Endpoint::wait_until`]). The guarantees are those of RDMA^WAIT and no more: a put's completion is not
//! visibility, puts to one node land in order, a get flushes earlier puts to its node, nothing is ordered across nodes.
//!
//! The fabrics are [`shm`] (processes of one host over shared memory), [`verbs`] (processes of any hosts over real
//! RDMA), [`ucx`] (processes of any hosts over UCX, which needs no more than TCP), [`sim`] (a simulated session), and
//! decorators of any fabric: [`weak`] (as late and as reordered as the model allows, for tests), [`fault`] and
//! [`record`].
//!
//! This crate, `farfield-verbs-sys` which it loads RDMA's libraries by, `farfield-ucx-sys`, and `farfield-c-decl` which
//! both of them use, are the only ones of Farfield with `unsafe` code.

mod alarm;
mod cell;
mod decorate;
mod endpoint;
mod error;
mod fabric;
mod hook;
#[cfg(any(feature = "ucx", feature = "verbs"))]
#[cfg_attr(
    not(all(feature = "ucx", feature = "verbs")),
    allow(dead_code, reason = "RDMA and UCX have parts of it to themselves")
)]
mod hosts;
#[cfg_attr(
    not(feature = "verbs"),
    allow(dead_code, reason = "only a NIC works after the call, and needs what a request keeps")
)]
mod lane;
mod local;
#[cfg(not(feature = "verbs"))]
mod no_verbs;
#[cfg_attr(not(feature = "verbs"), allow(dead_code, reason = "only a NIC needs registered memory"))]
mod pool;
mod ptr;
mod space;
mod sys;

pub mod fault;
pub mod record;
pub mod shm;
#[cfg(feature = "sim")]
pub mod sim;
#[cfg(feature = "ucx")]
pub mod ucx;
#[cfg(feature = "verbs")]
pub mod verbs;
pub mod weak;

pub use alarm::Alarm;
pub use cell::{Slot, Torn, Word, append_bytes, memory_fence, read_words, write_bytes, write_words};
pub use endpoint::{
    Attempt, Batch, Begun, Boxed, Buf, BufOp, CallCounts, CallEnd, CallsReader, Counts, CountsReader, Endpoint,
    EndpointOptions, Kept, Latencies, Near, Op, Posted, Posts, Quorum, Together, WordWait,
};
pub use error::{Code, Error, ErrorKind, Result};
pub use fabric::{
    Bell, CONTROL_BYTES_MAX, ControlEvent, DeathRule, Fabric, PeerState, Region, Span, Transport, Waiting, Words,
    check_nodes,
};
#[cfg(any(feature = "ucx", feature = "verbs"))]
pub use hosts::{HostFabric, HostOptions};
pub use lane::{Lane, Status, Verb, WorkRequest};
pub use local::{Concurrent, Instant, LocalGuard, LocalMutex, Thread};
pub use ptr::{GroupKey, NODES_MAX, NodeId, Plain, RemotePtr};
pub use rand::rngs::SmallRng as Rng;
pub use sys::pages::HugePages;
/// The crate of the derives for [`Plain`] data.
pub use zerocopy;
