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
//! # Waiting: blocking, here, or in an executor of your own
//!
//! Calls that may wait are futures. [`Endpoint::block_on`] runs one on its thread, and interleaves as many as it is made of;
//! it is the fastest way. Programs without `async` use the blocking forms of the common calls:
//!
//! ```
//! # fn main() -> farfield::Result<()> {
//! # let node = farfield::Node::builder().session("doc-blocking").nodes(1).start()?;
//! # let ep = node.endpoint()?;
//! let kv = farfield::KvStore::<u64, u64>::open(&node, "ages", farfield::KvOptions::default())?;
//! assert!(kv.insert_blocking(&ep, &7, &42)?);
//! assert_eq!(kv.get_blocking(&ep, &7)?, Some(42));
//! # drop((kv, ep)); node.leave(); Ok(()) }
//! ```
//!
//! And the futures work in any executor: tokio's, smol's, `futures::executor`. A put of another node wakes a task that waits
//! for it at once, by one thread for each node, which starts when the first task waits. What rings no bell is looked for by
//! that thread: every 50 µs at first, and every 4 ms in a long wait. These are words of other nodes
//! ([`AtomicVar::wait_change`]), the ends of long operations, and over RDMA all that cards write, since a card wakes nobody. A
//! death is noticed within 10 ms. Deadlines are exact. An idle wait costs less than 2 % of a core.
//!
//! An [`Endpoint`] belongs to one thread at a time, so a future that uses one is not `Send`: run it in tokio's current-thread
//! runtime or a `LocalSet`, and give each worker thread an endpoint of its own ([`Node::endpoint`]). Tasks of a thread may share
//! one. Do not call `block_on` or a blocking form in a task: like any call that blocks it holds up the whole thread. The example
//! `tokio.rs` shows two nodes whose tasks wait for each other beside tokio's timers.
//!
//! There is no `unsafe` code in this crate.

#![forbid(unsafe_code)]

mod blocking;
mod error;
mod node;

pub mod history;
pub mod mutants;
pub mod objects;
pub mod systems;

pub use error::{Error, ErrorKind, Result};
pub use farfield_fabric as fabric;
pub use farfield_fabric::{Endpoint, HugePages, NodeId};
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
