//! Real RDMA: nodes are processes of any hosts, and their memories are worked on by network cards, through libibverbs.
//!
//! - `fabric`: [`VerbsFabric`], one node, most of which is that of any fabric between hosts
//!   ([`HostFabric`](crate::HostFabric)). `carrier`: what differs.
//! - `info`: the devices, ports and addresses of this host; `choose`: the ones to use; `device`: opening one.
//!   `registration`: registered memory; `store`: memory of buffers, which all lanes share; `device_memory`: memory of
//!   the device itself. `queue`: queue pairs, how they are connected and ended; `route`: the way to a peer's port.
//!   `post`: how work requests reach one. `lane`: a thread's operations, those on single words in a file of their own;
//!   `peer`: its knowledge of each peer. `bare`: operations without all that, to compare with. `status`: the meaning of
//!   failures.
//!
//! # Order
//!
//! An operation becomes one work request on the reliable connection (RC) from the thread's lane to the node. What
//! RDMA^WAIT promises between two operations to one node, and what keeps it:
//!
//! | first, second | kept by |
//! |---|---|
//! | put, put | the order of execution, which is specified, and that of placement, which the device promises or not |
//! | put, get; put, atomic | the specification: a later read or atomic finds earlier writes done |
//! | get, put | not promised; after a remote fence: the fence flag on the put |
//! | get, get into shared cells | that answers land in order, as for put, put |
//! | anything, completion | a completion queue reports a queue pair's work in order |
//!
//! The responder executes requests in the order of posting (InfiniBand specification, volume 1, 9.5). That the bytes of
//! two puts also *land* in this order is not specified: a device may promise it (`ibv_query_qp_data_in_order`).
//!
//! Memory is registered without relaxed ordering, so the buses keep the order in which a device writes. The device
//! itself may still place packets in the order of arrival (adaptive routing). Where it **promises not to**, or is
//! software, whose stores the processor keeps in order, puts follow each other without any wait. Where it **does not
//! promise**, the work requests themselves offer no order: a fence flag waits for earlier reads and atomics but not
//! for writes, a write with immediate data orders only actions of its receiver after the completion there, and there
//! is no receiver here. So the lane makes each put wait for the put before it, if nothing has flushed that yet: it
//! posts a read of 8 bytes (which finds the earlier put done, see above) and sets the fence flag on the put (which
//! waits for the read). That is one round trip for each put that follows a put to the same node, and nothing for a put
//! that follows a get. Gets into shared cells wait for earlier reads by the fence flag. Most devices without a promise
//! do place in order; if yours is known to, set [`VerbsOptions::in_order`].
//!
//! Hardware complies. Soft-RoCE in Debian's kernel 6.1 does not, in two cases. It loses, once in some hundred times,
//! the event that a request with the fence flag waits for, and the request never starts. And if the acknowledgement of
//! a put was lost, and the answer to a later read or atomic too, the put is sent again and acknowledged with the
//! number of the last executed request; the sender takes that for the answer, and completes the read or atomic with
//! the old contents of its local memory. So on software devices the lane itself holds back fenced requests until all
//! before them have ended, and reads and atomics until all puts before them have: [`VerbsOptions::holds_back`].
//!
//! The eight bytes of a word land whole on hardware, though no specification promises it. Soft-RoCE copies with the
//! kernel's `memcpy`, which moves bytes (`rep movsb`) on processors that are fast at it, and then a word need not be
//! whole: [`DeviceInfo::words_may_tear`].

#[cfg(any(test, feature = "bare"))]
mod bare;
mod carrier;
mod choose;
mod device;
mod device_memory;
mod error;
mod fabric;
mod info;
mod lane;
mod options;
mod peer;
mod post;
mod queue;
mod registration;
mod route;
mod status;
mod store;

#[cfg(any(test, feature = "counted"))]
#[doc(hidden)]
pub mod cost;
#[cfg(test)]
mod on_devices;
#[cfg(any(test, feature = "counted"))]
#[cfg_attr(not(test), expect(dead_code, reason = "the tests use more of it"))]
mod stub;
#[cfg(test)]
mod tests;

pub use crate::hosts::control::{Limits, Secret, SecretTooShort};
#[cfg(any(test, feature = "bare"))]
pub use bare::Bare;
pub use device::{Device, locked_memory_limit};
pub use error::VerbsError;
pub use fabric::{JoinOptions, VerbsFabric};
pub use info::{Address, AddressKind, Atomics, DeviceInfo, Link, PortInfo};
pub(crate) use lane::VerbsLane;
pub use options::VerbsOptions;
pub use queue::QueueInfo;
