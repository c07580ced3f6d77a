//! Any network that UCX knows, TCP in the first place: nodes are processes of any hosts, and the memory of each is
//! worked on by a thread of its own, which does what other nodes ask for by active messages.
//!
//! - `fabric`: [`UcxFabric`], one node, most of which is that of any fabric between hosts
//!   ([`HostFabric`](crate::HostFabric)). `carrier`: what differs.
//! - `wire`: requests and replies, byte by byte. `lane`: a thread's operations; `peer`: its knowledge of each node;
//!   `port`: its worker and pairs, for other threads. `responder`: the thread that does the requests of others.
//!
//! # Order
//!
//! A lane numbers its messages to a node, and the node handles them in the order of their numbers, one request after
//! the other. So all that RDMA^WAIT promises between two operations to one node holds, and more: a get finds the puts
//! before it done, and a put or get behind another is done behind it. UCX need not keep any order. (Over TCP it does,
//! and no message ever waits for another.) The local side of a remote fence remains: a put behind it from live memory
//! reads its source only when the gets before it are complete, since they may write there.
//!
//! Whole words are written and read by the processor's atomics, so no word is torn, and atomics are atomic with those
//! of all other nodes and with the processor's own. A lane does its operations on its own node at once: the processor
//! is the same.
//!
//! # Completion
//!
//! A get or an atomic is complete with its reply. So is a put: the target replies once for all puts of a message. A
//! complete put is therefore done, which the model does not promise.
//!
//! # Rights, and failures
//!
//! The target checks everything: the lane's right, the place, the generation of the memory. A lane checks the same
//! before it posts, by what its node was told, so most mistakes are known at once. A request that a target refuses
//! ends its pair: no later one is done. Only a request for memory that was freed meanwhile fails alone. A lane that
//! exceeds its window, or sends what is no request, is refused for good.
//!
//! UCX reports the end of a process or of a connection. It does not report a host that falls silent: a lane gives up a
//! node that replies to nothing for several times [`UcxOptions::patience`], and membership may be sooner.
//!
//! # Strangers
//!
//! The control plane has its secret, without which nodes do not join a session of several: UCX reads the addresses that
//! they announce unchecked. UCX itself has none: a stranger that can connect to the ports of its workers can send
//! them bytes, against which it has no defence, and an observer of the network reads everything. Use a network that
//! only the session's hosts can reach.

mod carrier;
mod fabric;
mod lane;
mod options;
mod peer;
mod port;
mod responder;
mod wire;

pub use crate::hosts::control::{Limits, Secret, SecretTooShort};
pub use fabric::{JoinOptions, UcxFabric, check_library};
pub use options::UcxOptions;
