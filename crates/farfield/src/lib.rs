//! Farfield: composable objects over network memory.
//!
//! An object (a barrier, a ring buffer, a lock, a key-value store) stores its state in the memories of many nodes and
//! accesses it with one-sided operations: put, get, compare-and-swap, fetch-and-add. The default fabric is shared
//! memory between the processes of one host. It needs no NIC, no root and no configuration.
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
//! # Items
//!
//! Start with [`Node`] and [`Endpoint`]. The module of each object draws its memory image and lists the costs of its calls.
//!
//! | item | description |
//! |---|---|
//! | [`Node`] | One process of a session: it opens objects, allocates memory, and knows the members. |
//! | [`Builder`], [`Config`] | The settings of a node, from calls, a TOML file or the environment. |
//! | [`Endpoint`] | One thread's access to network memory; it also runs futures. |
//! | [`AtomicVar`] | One word that all nodes update atomically. |
//! | [`SharedVar`] | A word with a copy on every node, pushed and pulled explicitly. |
//! | [`OwnedVar`] | A value of any size with one writer and a copy on every node, never seen torn. |
//! | [`Sst`] | A table of `OwnedVar`s, one row for each owner. |
//! | [`Barrier`] | Threads of all nodes meet, and see everything written before. |
//! | [`RingBuffer`] | Messages from one writer to many readers, in order, with credit. |
//! | [`Queue`] | A linearizable queue for many producers and consumers. |
//! | [`Mutex`], [`MutexArray`] | Locks in order of arrival, with bounded bypass. |
//! | [`KvStore`] | A linearizable map with lock-free look-ups. |
//! | [`ALock`], [`ALockArray`] | A lock whose threads on its own node use no NIC. |
//! | [`SpinLockArray`], [`McsLockArray`] | A remote spinlock and a remote queue lock. |
//! | [`LockTable`], [`LockArray`], [`LockGuard`] | Locks of a kind chosen at run time, and the traits of all kinds. |
//! | [`Transactions`] | Words on several nodes, read and written together under locks. |
//! | [`Opening`], [`CustomObject`] | Parts for an object of your own: regions, participants, checks when it is opened. |
//! | [`Reopening`], [`Node::reopen`] | Replaces an object whose home, writer or member has died. |
//! | [`Poller`] | Work of an object that the service thread does. |
//! | [`Standing`] | The membership status of a node. |
//! | [`Error`], [`ErrorKind`] | The error, the object and node, and what to do. |
//! | [`Metrics`] | Counted operations, open objects, memory in use. |
//! | [`local_session`], [`on_each`] | Several nodes in one process, for tests and examples. |
//! | [`history`] | Checks recorded histories for linearizability. |
//! | [`fabric`] | The layer below: operations, fences, regions, and the fabrics. |
//!
//! # Blocking calls, `block_on`, and other executors
//!
//! Calls that may wait are futures. [`Endpoint::block_on`] runs one on its thread, together with the futures that it consists of;
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
//! The futures also work in any other executor: tokio's, smol's, `futures::executor`. A put by another node wakes a
//! waiting task at once, through one thread for each node, which starts with the first waiting task. Some changes wake
//! no task: those of words on other nodes ([`AtomicVar::wait_change`]), the ends of long operations, and over RDMA
//! those of all memory, since a NIC wakes no thread. The node's thread polls for them, every 50 µs at first and every 4
//! ms in a long wait. A death is noticed within 10 ms. Deadlines are exact. An idle wait costs less than 2 % of a core.
//!
//! An [`Endpoint`] belongs to one thread at a time, so a future that uses one is not `Send`. Run it in tokio's
//! current-thread runtime or a `LocalSet`, and give each worker thread its own endpoint ([`Node::endpoint`]). Tasks of
//! a thread may share one. Do not call `block_on` or a blocking form in a task: like any blocking call it blocks the
//! whole thread. In the example `tokio.rs`, tasks of two nodes wait for each other and for tokio's timers.
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
