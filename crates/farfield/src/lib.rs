//! Farfield: composable objects over network memory.
//!
//! An object (a barrier, a ring buffer, a lock, a key-value store) keeps its state spread over the memories of many
//! nodes and works on it with one-sided operations: put, get, compare-and-swap, fetch-and-add. The default fabric is
//! shared memory between the processes of one host; it needs no NIC, no root and no configuration.
//!
//! ```
//! use farfield::{Barrier, KvOptions, KvStore, Node};
//!
//! fn main() -> farfield::Result<()> {
//!     let node = Node::from_environment()?;
//!     let kv = KvStore::<u64, u64>::open(&node, "squares", KvOptions::default())?;
//!     let (ep, mut everyone) = (node.endpoint()?, Barrier::open(&node, "everyone", 1)?.thread()?);
//!     let me = u64::from(node.id().0);
//!     ep.block_on(async {
//!         kv.insert(&ep, &me, &(me * me)).await?; // into this node's memory
//!         everyone.wait(&ep).await?;
//!         let last = node.nodes() as u64 - 1;
//!         assert_eq!(kv.get(&ep, &last).await?, Some(last * last)); // one get from another's
//!         println!("{} found the square of {last}", node.id());
//!         everyone.wait(&ep).await // nobody leaves while others still read
//!     })
//! }
//! ```
//!
//! Start at [`Node`]; then the objects: [`AtomicVar`], [`SharedVar`], [`OwnedVar`], [`Sst`], [`Barrier`], [`RingBuffer`],
//! [`Queue`], [`Mutex`] and [`MutexArray`], [`KvStore`]. Each object's module ([`objects`]) draws its memory image and lists what its
//! calls cost. [`systems`] are built of them, or beside them: locks for asymmetric memory, [`Transactions`]. [`history`] checks
//! recorded histories for linearizability. [`fabric`] is the layer below.
//!
//! There is no `unsafe` code in this crate.

#![forbid(unsafe_code)]

mod error;
mod node;

pub mod history;
pub mod mutants;
pub mod objects;
pub mod systems;

pub use error::{Error, ErrorKind, Result};
pub use farfield_fabric as fabric;
pub use farfield_fabric::{Endpoint, NodeId};
pub use node::{
    Announcement, Builder, Config, CustomObject, Metrics, Node, Opening, PARTING_MAX, PORT, Poller, Progress,
    Reopening, Standing, local_session, local_session_with, loopback_hosts, on_each,
};
pub use objects::atomic_var::AtomicVar;
pub use objects::barrier::{Barrier, BarrierThread};
pub use objects::kv::{ByteString, Key, KvOptions, KvStore, Placement, Value};
pub use objects::mutex::{Guard, Mutex, MutexArray};
pub use objects::owned_var::{OwnedVar, OwnedWriter, Wholeness};
pub use objects::queue::{Queue, QueueOptions};
pub use objects::ring_buffer::{RingBuffer, RingOptions, RingReceiver, RingSender};
pub use objects::shared_var::SharedVar;
pub use objects::sst::Sst;
pub use systems::locks::{
    ALock, ALockArray, ALockGuard, ALockOptions, LockArray, LockGuard, LockKind, LockOptions, LockTable, McsGuard,
    McsLockArray, SpinGuard, SpinLockArray, TableGuard,
};
pub use systems::transactions::{LOCKS_PER_TRANSACTION_MAX, Transaction, TransactionOptions, Transactions};
