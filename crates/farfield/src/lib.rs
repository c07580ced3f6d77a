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
//! Start with [`Node`] and [`Endpoint`]. Each object's documentation gives its algorithm, source and costs.
//!
//! | item | description |
//! |---|---|
//! | [`Node`] | One process of a session: it opens objects, allocates memory, and knows the members. |
//! | [`NodeId`] | The number of a node. A restarted process gets a new one. |
//! | [`NODES_MAX`] | The most nodes of a session at a time, on shared memory and over RDMA. |
//! | [`Builder`], [`Config`] | The settings of a node, from calls, a TOML file or the environment. |
//! | [`HugePages`] | The size of the pages that a node's memory consists of. |
//! | [`PORT`], [`loopback_hosts`] | The default port of nodes on RDMA, and addresses for several nodes on one host. |
//! | [`LEAVE_TIMEOUT`] | The longest time that a leaving node takes for its pending work. |
//! | [`Endpoint`] | One thread's access to network memory; it also runs futures. |
//! | [`AtomicVar`] | One word that all nodes update atomically. |
//! | [`SharedVar`] | A word with a copy on every node, pushed and pulled explicitly. |
//! | [`OwnedVar`] | A value of any size with one writer and a copy on every node, never seen torn. |
//! | [`OwnedWriter`], [`TearCheck`] | The writer's handle of an `OwnedVar`, and how readers detect a torn copy. |
//! | [`Sst`] | A table of `OwnedVar`s, one row for each owner. |
//! | [`Barrier`] | Threads of all nodes meet, and see everything written before. |
//! | [`BarrierThread`] | One thread's part in a `Barrier`. |
//! | [`RingBuffer`] | Messages from one writer to many readers, in order, with credit. |
//! | [`RingOptions`] | The writer, the readers and the size of a `RingBuffer`. |
//! | [`RingSender`], [`RingReceiver`] | The writer's end of a `RingBuffer`, and a reader's. |
//! | [`Acknowledgements`] | The positions up to which readers have read; a task can wait for them. |
//! | [`Channel`] | A `RingBuffer` of typed values. |
//! | [`ChannelOptions`] | The writer, the readers and the size of a `Channel`. |
//! | [`ChannelSender`], [`ChannelReceiver`] | The writer's end of a `Channel`, and a reader's. |
//! | [`Queue`] | A linearizable queue for many producers and consumers. |
//! | [`QueueOptions`] | The home of a `Queue`, its capacity, and the size of its values. |
//! | [`Mutex`], [`MutexArray`] | Locks in order of arrival, with bounded bypass. |
//! | [`Guard`], [`HeldLock`] | A held `Mutex`; and one that is held without a guard, to be released later or elsewhere. |
//! | [`KvStore`] | A linearizable map with lock-free look-ups. |
//! | [`KvOptions`], [`Placement`] | The size of a `KvStore`, and the node that stores a new key's value. |
//! | [`Key`], [`Value`] | The types that a `KvStore` or a `Queue` takes: plain data, or a `ByteString`. |
//! | [`ByteString`] | A key or a value of any length up to the store's limit. |
//! | `Encoded` | A value of any type that serde can encode (feature `serde`). |
//! | [`zerocopy`] | The derives for plain data of your own: `#[zerocopy(crate = "farfield::zerocopy")]`. |
//! | [`ALock`], [`ALockArray`] | A lock whose threads on its own node use no NIC. |
//! | [`ALockOptions`], [`ALockGuard`] | The budgets and limits of ALocks, and a held ALock. |
//! | [`SpinLockArray`], [`McsLockArray`] | A remote spinlock and a remote queue lock. |
//! | [`SpinGuard`], [`McsGuard`] | A held spinlock, and a held queue lock. |
//! | [`LockTable`], [`LockArray`], [`LockGuard`], [`WaitLimit`] | Locks of a kind chosen at run time, and the traits of all kinds. |
//! | [`LockKind`], [`LockOptions`], [`TableGuard`] | The kind of a `LockTable`, its options, and one of its held locks. |
//! | [`Transactions`] | Words on several nodes, read and written together under locks. |
//! | [`Transaction`] | The cells of one transaction, whose locks it holds. |
//! | [`TransactionOptions`] | The numbers of cells and locks, and the kind of the locks. |
//! | [`LOCKS_PER_TRANSACTION_MAX`] | The most locks that one transaction may hold. |
//! | [`Collectives`] | Broadcast, reduce, all-reduce, gather, all-gather and all-to-all among all members. |
//! | [`CollectivesOptions`] | The sizes of its buffers. |
//! | [`RpcServer`], [`RpcClient`] | Calls of a server on another node, each with its effect once. |
//! | [`RpcOptions`] | The sizes of a server's memory. |
//! | [`SwarmArray`], [`SwarmRegister`] | Values with copies on several memory nodes, of which a minority may die. |
//! | [`SwarmOptions`] | The memory nodes, the clients and their buffers. |
//! | [`SwarmStore`] | A linearizable map whose entries and index have such copies. |
//! | [`SwarmStoreOptions`] | The size of a `SwarmStore`, and its memory nodes and clients. |
//! | [`ReplicatedLog`] | Entries in one order on all replicas, decided by a leader that is replaced when it dies. |
//! | [`LogOptions`] | The size of a `ReplicatedLog` and of its entries. |
//! | [`ReplicatedMutex`] | A lock that survives any minority of its nodes, with a fencing token for each holder. |
//! | [`Election`] | A leader with a term and a lease; it survives a minority of its nodes, too. |
//! | [`Heartbeats`] | A failure detector that finds stopped leaders of a log, a replicated lock, an election or a replicated type, on one machine, too. |
//! | [`Replicated`] | Replicas of a sequential type, which coordinate only where that is needed. |
//! | [`ReplicatedOptions`] | The sizes of calls, summaries and feeds of a `Replicated`. |
//! | [`RomeObject`], [`RomeTree`] | A value of one node, and a sorted map of one, which all nodes read wait-free. |
//! | [`ObjectOptions`], [`TreeOptions`] | The sizes of a `RomeObject` and of a `RomeTree`, and the lease of readers. |
//! | [`RomeKv`] | An ordered store, whose partitions are on several nodes. |
//! | [`RomeKvOptions`] | The partitions of a `RomeKv`, and their trees. |
//! | [`RomeKvThread`], [`RomeKvUpdate`] | One thread's calls of a `RomeKv`, and what one of its updates does. |
//! | [`Reopening`], [`Node::reopen`] | Replaces an object whose home, writer or member has died. |
//! | [`MemberStatus`] | The membership status of a node. |
//! | [`Error`], [`ErrorKind`], [`Result`] | The error, the object and node, and what to do. |
//! | [`Metrics`], [`ObjectMetrics`] | Counted operations, memory in use, peers; the objects, their memory and measured calls. |
//! | [`CallCounts`], [`Latencies`] | What is measured of a call: how it ended, and a histogram of how long it took. |
//! | `MetricsServer` | Serves a node's metrics over HTTP until it is dropped (feature `prometheus`). |
//! | [`local_session`], [`on_each`] | Several nodes in one process, for tests and examples. |
//! | [`local_session_with`] | The same, with settings of your own for each node. |
//! | [`toolkit`] | Parts for objects of your own: opening, memory, releases, work for the service thread. |
//! | [`objects`] | The modules of the objects, with their memory images and costs. |
//! | [`locks`], [`transactions`], [`collectives`], [`swarm`], [`mu`], [`hamband`], [`rome`], [`rpc`] | The systems above the objects, each a crate of its own. |
//! | [`mod@mutants`], [`mutants!`] | Seeded bugs, for tests of the checker; and the macro that declares those of your objects. |
//! | [`history`] | Checks recorded histories for linearizability. |
//! | [`fabric`] | The layer below: operations, fences, regions, and the fabrics. |
//!
//! # Blocking calls, `block_on`, and other executors
//!
//! Calls that may wait are futures. [`Endpoint::block_on`] runs one on its thread, together with the futures that it
//! consists of; it is the fastest way. Programs without `async` use the blocking forms of the common calls:
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
//! # Watching a node
//!
//! [`Node::metrics`] returns what a node has counted. [`Builder::latencies`] makes it measure the calls of its objects,
//! too:
//!
//! ```
//! # fn main() -> farfield::Result<()> {
//! let node = farfield::Node::builder().latencies(true).start()?;
//! let (ep, jobs) = (node.endpoint()?, farfield::Mutex::open(&node, "jobs", node.id())?);
//! for _ in 0..100 {
//!     ep.block_on(async { jobs.lock(&ep).await?.unlock().await })?;
//! }
//! let metrics = node.metrics();
//! let lock = metrics.call("jobs", "lock").unwrap();
//! println!("{} locks, 99 % within {:?}", lock.latencies.count(), lock.latencies.quantile(0.99));
//! # assert_eq!(lock.latencies.count(), 100);
//! # drop((jobs, ep)); node.leave(); Ok(()) }
//! ```
//!
//! With the feature `prometheus`, `node.serve_metrics("127.0.0.1:9464")` serves all of it to Prometheus. Nodes and
//! objects that come and go, and waits of more than a second, are spans and events of `tracing`.
//!
//! # Features
//!
//! | feature | default | content |
//! |---|---|---|
//! | `verbs` | yes | RDMA between hosts; libibverbs is loaded when a node uses it, and not needed before |
//! | `ucx` | yes | TCP and other networks between hosts, by UCX; libucp is loaded when a node uses it, and not needed before |
//! | `toml` | yes | configuration files ([`Builder::file`], [`Builder::toml`]) |
//! | `locks` | yes | `ALock`, the other locks of asymmetric memory, and tables of any of them |
//! | `transactions` | yes | `Transactions` |
//! | `collectives` | yes | `Collectives` |
//! | `mu` | yes | `ReplicatedLog`, `ReplicatedMutex`, `Election`, `Heartbeats` |
//! | `rome` | yes | `RomeObject`, `RomeTree`, `RomeKv` |
//! | `hamband` | yes | `hamband`: `Replicated`, data types, and the analysis of specifications |
//! | `swarm` | yes | `SwarmArray`, `SwarmRegister`, `SwarmStore` |
//! | `rpc` | yes | `RpcServer`, `RpcClient` |
//! | `serde` | no | `Encoded`: values of any type that serde can encode |
//! | `prometheus` | no | `Metrics::to_prometheus`, and `Node::serve_metrics` over HTTP |
//! | `sim` | no | the simulated session of the fabric; `farfield-check` enables it |
//! | `mutants` | no | seeded bugs in debug builds, for tests of the checker |
//!
//! Without `verbs` a node whose configuration asks for RDMA does not start, nor does one that asks for UCX without
//! `ucx`: [`ErrorKind::NotBuilt`].
//!
//! This crate has no code of its own: `farfield-core` has the nodes and objects, and each system has a crate that uses
//! only public items of the crates below it. There is no `unsafe` code in any of them.

#![forbid(unsafe_code)]

#[doc(inline)]
pub use farfield_core::*;

/// Calls that all members make together.
#[cfg(feature = "collectives")]
#[doc(inline)]
pub use farfield_collectives as collectives;
#[cfg(feature = "collectives")]
pub use farfield_collectives::{Collectives, CollectivesOptions};
#[cfg(feature = "hamband")]
#[doc(inline)]
pub use farfield_hamband as hamband;
#[cfg(feature = "hamband")]
pub use farfield_hamband::{Replicated, ReplicatedOptions};
/// Locks for asymmetric memory.
#[cfg(feature = "locks")]
#[doc(inline)]
pub use farfield_locks as locks;
#[cfg(feature = "locks")]
pub use farfield_locks::{
    ALock, ALockArray, ALockGuard, ALockOptions, LockArray, LockGuard, LockKind, LockOptions, LockTable, McsGuard,
    McsLockArray, SpinGuard, SpinLockArray, TableGuard,
};
#[cfg(feature = "mu")]
#[doc(inline)]
pub use farfield_mu as mu;
#[cfg(feature = "mu")]
pub use farfield_mu::{Election, Heartbeats, LogOptions, ReplicatedLog, ReplicatedMutex};
/// Objects that remote nodes read wait-free, and an ordered store of them.
#[cfg(feature = "rome")]
#[doc(inline)]
pub use farfield_rome as rome;
#[cfg(feature = "rome")]
pub use farfield_rome::{
    ObjectOptions, RomeKv, RomeKvOptions, RomeKvThread, RomeKvUpdate, RomeObject, RomeTree, TreeOptions,
};
/// Remote procedure calls.
#[cfg(feature = "rpc")]
#[doc(inline)]
pub use farfield_rpc as rpc;
#[cfg(feature = "rpc")]
pub use farfield_rpc::{Client as RpcClient, RpcOptions, Server as RpcServer};
/// Replicated memory.
#[cfg(feature = "swarm")]
#[doc(inline)]
pub use farfield_swarm as swarm;
#[cfg(feature = "swarm")]
pub use farfield_swarm::{SwarmArray, SwarmOptions, SwarmRegister, SwarmStore, SwarmStoreOptions};
/// Transactions under locks.
#[cfg(feature = "transactions")]
#[doc(inline)]
pub use farfield_transactions as transactions;
#[cfg(feature = "transactions")]
pub use farfield_transactions::{LOCKS_PER_TRANSACTION_MAX, Transaction, TransactionOptions, Transactions};

pub mod mutants;

#[cfg(test)]
mod front_page;
