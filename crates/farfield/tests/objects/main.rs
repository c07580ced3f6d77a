//! The objects, over shared memory and over a fabric that is as weak as the model allows.
//!
//! All nodes are parts of this process. Each scenario runs with one thread on each node, with two, and with far more
//! threads than cores; one at a time, under a watchdog.

mod harness;

mod barrier;
mod channel;
mod closing;
mod collectives;
mod costs;
#[cfg(feature = "serde")]
mod encoded;
mod kv;
mod kv_steps;
mod kv_times;
mod locks;
mod logs;
mod mutex;
mod node;
mod queue;
mod queue_close;
mod refused;
mod ring;
mod rome;
mod rome_kv;
mod rpc;
mod swarm;
mod transactions;
mod vars;
mod wrdt;
