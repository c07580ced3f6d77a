//! SWARM: registers with copies on several memory nodes, of which any minority may die, and a key-value store made of
//! them. A read or a write takes one round trip, is linearizable, and ends in a bounded number of steps whatever the
//! other clients do. (A write that has no free buffer waits for answers, see below.)
//!
//! A memory node lends memory, and computes nothing for it. Each of them has, for every register:
//!
//! ```text
//! region `registers`
//!   +0    ┌──────────┬───────────────┬─────┬───────────────┬────────┬─────────────────┐
//!         │ instance │ metadata word │  …  │ metadata word │ hash   │ value, in place │
//!         └──────────┴───────────────┴─────┴───────────────┴────────┴─────────────────┘
//! region `buffers`, for each client                   region `locks`
//!   +0    ┌────────┬─────────────────────┐            +0 ┌────────────────┬───
//!         │ hash   │ value, out of place │ …             │ timestamp lock │ … one for each client
//!         └────────┴─────────────────────┘               └────────────────┴───
//! a metadata word
//! 63                          24 23        17  16 15           0
//! ┌─────────────────────────────┬────────────┬───┬──────────────┐
//! │ timestamp (40)              │ writer (7) │ V │ buffer (16)  │   0: nothing was written
//! └─────────────────────────────┴────────────┴───┴──────────────┘
//! ```
//!
//! These widths are those of a store. In an array the timestamp has 47 bits or more, and the writer and the buffer only
//! those that their numbers need (the module `version`).
//!
//! # Algorithm
//!
//! *Safe-Guess* (§3) orders writes by timestamps that the writers guess, from clocks that need no synchronisation: a
//! clock that turns out to be behind is set forward. A write puts its value on a majority and reads the register at the
//! same time. If it finds nothing later, its guess was fresh, and it has ended; the flag V, which says so, follows in
//! the background. Otherwise the guess may have been stale. The writer takes its *timestamp lock*, so that no reader
//! can use the guess any more, and writes the value at a later timestamp. If a reader had the lock, it has found that
//! the guess was fresh.
//!
//! A read looks at a majority and takes the highest version. With V it has ended. Without, it looks once more: a
//! version that is found twice was fresh, and the reader takes the lock so that the writer does not write it again. If
//! it finds two versions of one writer, the first has ended.
//!
//! *In-n-Out* (§4) stores a value of any size in one round trip: a put to a buffer of the writer, and behind it a
//! compare-and-swap of the metadata word, which points to the buffer. When it is verified, the value is also put to its
//! place beside the metadata words, on one memory node. A reader gets both at once, and knows by the hash whether they
//! belong together. If they do not, it follows the pointer.
//!
//! *Memory nodes.* A call asks a majority, and the others only if one of these fails or lets the call wait. When a
//! memory node dies, no call waits for a reconfiguration. With a majority gone, calls end with [`NoMajority`].
//!
//! *Buffers are used again* when no read can use them any more, and that costs reads two stores: the module `sections`
//! has the argument. A node that does not answer keeps buffers out of use until the members evict it, and writes that
//! have used up the spare ones wait for that, as long as the endpoint's timeout.
//!
//! *The store* ([`SwarmStore`]) has an index of cells, on which the memory nodes agree by compare-and-swaps (the module
//! `agreement`), and registers that are used again (`registers`): hence their instances. A key that is deleted has its
//! register sealed.
//!
//! # Costs
//!
//! With M metadata words (one for each client), R memory nodes and no other call on the register:
//!
//! | call | round trips | operations |
//! |---|---|---|
//! | [`SwarmClient::read`] | 1 | R/2 + 1 gets |
//! | [`SwarmClient::read`], of a value that is not in place | 2 | 1 get more |
//! | [`SwarmClient::write`] | 1 | for each of R/2 + 1 nodes a put, a compare-and-swap and a get; in the background a compare-and-swap each, and one put |
//! | [`SwarmClient::read`], of a value that is being written | 4 or more | a second look, the value, and a compare-and-swap each of the timestamp lock |
//! | [`SwarmClient::write`], after a stale guess | 2 to 4, more if a memory node fails | for each a put and two or more compare-and-swaps |
//!
//! A writer knows the content of its metadata word. With fewer words than clients it may not, and then takes a round
//! trip more.
//!
//! # When a node dies
//!
//! A client may die at any time: its last write has happened or not, and readers settle which. A minority of the memory
//! nodes may die: no call fails. A node that is started at the place of a dead client takes over its buffers and
//! unfinished writes (the module `succession`). Another memory node takes the place of a dead one, with a copy of its
//! memory, while calls go on ([`MemoryNode::replacing`]).
//!
//! A call that is dropped, or that found no majority, may have happened or not. A write is ended by the client's next
//! write of the register.
//!
//! Source: Murat, Burgelin, Xygkis, Zablotchi, Aguilera and Guerraoui, *SWARM: Replicating Shared Disaggregated-Memory
//! Data in No Time*, SOSP 2024, §§3–5, appendices A–C. Of recycling (§4.5, §5.4) the paper has the idea; the protocols
//! are ours.

#![forbid(unsafe_code)]

/// Counts and times a call where its node does that: makes it again, in a future that takes the time.
macro_rules! measured {
    ($core:expr, $call:expr, $again:expr) => {
        let (meter, endpoint) = ($core.shared.object.meter(), $core.endpoint);
        if meter.is_on() && meter.measures(endpoint, $call) {
            return meter.again(endpoint, $call, $again).await;
        }
    };
}

#[cfg(any(not(seeded), clippy, doc, rust_analyzer))]
mod agreement;
#[cfg(any(not(seeded), clippy, doc, rust_analyzer))]
mod buffers;
mod cell;
#[cfg(any(not(seeded), clippy, doc, rust_analyzer))]
mod census;
#[cfg(any(not(seeded), clippy, doc, rust_analyzer))]
mod chores;
#[cfg(any(not(seeded), clippy, doc, rust_analyzer))]
mod client;
mod errors;
mod layout;
mod lender;
#[cfg(any(not(seeded), clippy, doc, rust_analyzer))]
mod majority;
#[cfg(any(not(seeded), clippy, doc, rust_analyzer))]
mod mapping;
#[cfg(any(not(seeded), clippy, doc, rust_analyzer))]
mod max_register;
#[cfg(any(not(seeded), clippy, doc, rust_analyzer))]
mod moving;
pub mod mutants;
mod open;
mod options;
#[cfg(any(not(seeded), clippy, doc, rust_analyzer))]
mod owners;
mod patience;
mod plan;
#[cfg(any(not(seeded), clippy, doc, rust_analyzer))]
mod raise;
#[cfg(any(not(seeded), clippy, doc, rust_analyzer))]
mod records;
#[cfg(any(not(seeded), clippy, doc, rust_analyzer))]
mod registers;
#[cfg(any(not(seeded), clippy, doc, rust_analyzer))]
mod replacement;
mod replicas;
#[cfg(any(not(seeded), clippy, doc, rust_analyzer))]
mod safe_guess;
// The unit tests run none of them, and are built sooner without.
#[cfg(all(feature = "scenarios", not(test)))]
pub mod scenarios;
#[cfg(any(not(seeded), clippy, doc, rust_analyzer))]
mod sections;
mod shards;
#[cfg(any(not(seeded), clippy, doc, rust_analyzer))]
mod stale;
#[cfg(any(not(seeded), clippy, doc, rust_analyzer))]
mod store;
#[cfg(any(not(seeded), clippy, doc, rust_analyzer))]
mod succession;
#[cfg(any(not(seeded), clippy, doc, rust_analyzer))]
mod timestamp_lock;
mod together;
mod version;
#[cfg(any(not(seeded), clippy, doc, rust_analyzer))]
mod view;

// Where the seeded bugs are on, copies of the modules that have a `cfg(any(not(seeded), …))` (`mutants`).
#[cfg(all(seeded, not(any(clippy, doc, rust_analyzer))))]
include!(concat!(env!("OUT_DIR"), "/seeded.rs"));

use core::marker::PhantomData;
use farfield_core::{Error, ErrorKind, Node, Result};
use farfield_fabric::{Endpoint, NodeId, Plain};
use smallvec::SmallVec;
use zerocopy::IntoBytes;

use self::client::{Core, Home};
pub use self::errors::{FirstMemoryGone, MemoryLost, NoMajority, StoreFull, TimestampsUsedUp};
pub use self::lender::{Lent, MemoryNode};
use self::open::{Opened, Shape};
pub use self::options::{SwarmOptions, SwarmStoreOptions};
use self::shards::Cores;
pub use self::store::{SwarmStore, SwarmStoreClient};
use self::version::{BUFFERS_MAX, Location};

/// The calls of an array, as they are counted.
const CALLS: [&str; 2] = ["read", "write"];
const READ: usize = 0;
const WRITE: usize = 1;

/// Registers with values of any plain type, each with a copy on every memory node. See the [crate] for the algorithm.
///
/// ```
/// use farfield::swarm::{SwarmArray, SwarmOptions};
/// let nodes = farfield::local_session(3)?;
/// let arrays = farfield::on_each(&nodes, |node| SwarmArray::<[u64; 4]>::open(node, "a", 8, SwarmOptions::default()))?;
/// let (ep, far) = (nodes[0].endpoint()?, nodes[1].endpoint()?);
/// let (mine, yours) = (arrays[0].client(&ep)?, arrays[1].client(&far)?);
/// ep.block_on(mine.write(5, [1, 2, 3, 4]))?;
/// assert_eq!(far.block_on(yours.read(5))?, [1, 2, 3, 4]);
/// assert_eq!(far.block_on(yours.read(6))?, [0; 4]); // not written yet
/// # drop((mine, yours));
/// # Ok::<(), farfield::Error>(())
/// ```
pub struct SwarmArray<T> {
    pub(crate) opened: Opened,
    registers: usize,
    _values: PhantomData<T>,
}

impl<T: Plain> SwarmArray<T> {
    /// Words of a value.
    const WORDS: usize = if size_of::<T>() == 0 { 1 } else { size_of::<T>().div_ceil(8) };

    /// Opens an array of `registers` registers at `path`, at most four million, and waits for the memory nodes. If they
    /// have just opened it, all registers are zero.
    ///
    /// ```
    /// # use farfield::swarm::{SwarmArray, SwarmOptions};
    /// # let nodes = farfield::local_session(3)?;
    /// let open = |node: &farfield::Node| SwarmArray::<u64>::open(node, "limits", 100, SwarmOptions::default());
    /// let limits = farfield::on_each(&nodes, open)?; // three copies of each register
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// A node is missing, unreachable, or opens it differently; the options are invalid; or no memory is left.
    pub fn open(node: &Node, path: &str, registers: usize, options: SwarmOptions) -> Result<SwarmArray<T>> {
        SwarmArray::open_among(node, path, &open::default_participants(node, path), registers, options)
    }

    /// [`SwarmArray::open`] among these participants.
    ///
    /// ```
    /// # use farfield::{NodeId, swarm::{SwarmArray, SwarmOptions}};
    /// # let node = farfield::Node::builder().start()?;
    /// let alone = SwarmArray::<u64>::open_among(&node, "limits", &[node.id()], 100, SwarmOptions::default())?;
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`SwarmArray::open`].
    pub fn open_among(
        node: &Node,
        path: &str,
        participants: &[NodeId],
        registers: usize,
        options: SwarmOptions,
    ) -> Result<SwarmArray<T>> {
        SwarmArray::open_in_shards(node, path, participants, registers, options, BUFFERS_MAX)
    }

    /// [`SwarmArray::open_among`], with so many buffers of a client in each shard.
    pub(crate) fn open_in_shards(
        node: &Node,
        path: &str,
        participants: &[NodeId],
        registers: usize,
        options: SwarmOptions,
        buffers_max: usize,
    ) -> Result<SwarmArray<T>> {
        let shape = Shape {
            kind: open::ARRAY,
            described: format!("{registers} registers of {} bytes", size_of::<T>()),
            options: &options,
            size: registers,
            value_words: Self::WORDS,
            is_store: false,
            buffers_max,
            calls: &CALLS,
        };
        let opened = Opened::open(node, path, participants, &shape)?;
        Ok(SwarmArray { opened, registers, _values: PhantomData })
    }

    /// A client, which makes its calls with this endpoint. A thread takes one and keeps it.
    ///
    /// ```
    /// # use farfield::swarm::{SwarmArray, SwarmOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let array = SwarmArray::<u64>::open(&node, "a", 8, SwarmOptions::default())?;
    /// let ep = node.endpoint()?;
    /// let client = array.client(&ep)?;
    /// client.write_blocking(0, 7)?;
    /// # drop(client);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// The node has [`SwarmOptions::clients_per_node`] clients already.
    pub fn client<'e>(&self, endpoint: &'e Endpoint) -> Result<SwarmClient<'e, T>> {
        Ok(SwarmClient { cores: self.opened.client(endpoint)?, registers: self.registers, _values: PhantomData })
    }

    /// How many registers there are.
    ///
    /// ```
    /// # use farfield::swarm::{SwarmArray, SwarmOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let array = SwarmArray::<u64>::open(&node, "a", 8, SwarmOptions::default())?;
    /// assert_eq!(array.len(), 8);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    #[expect(clippy::len_without_is_empty, reason = "there is at least one")]
    pub fn len(&self) -> usize {
        self.registers
    }
}

/// One thread's access to a [`SwarmArray`].
///
/// ```
/// # use farfield::swarm::{SwarmArray, SwarmOptions};
/// # let node = farfield::Node::builder().start()?;
/// # let array = SwarmArray::<u64>::open(&node, "a", 8, SwarmOptions::default())?;
/// # let ep = node.endpoint()?;
/// let client = array.client(&ep)?;
/// // Several calls at a time, each in one round trip. A client has up to 64 reads under way.
/// let reads = (0..8).map(|register| client.read(register));
/// ep.run_window(4, reads, |value| assert_eq!(value.unwrap(), 0));
/// # drop(client);
/// # Ok::<(), farfield::Error>(())
/// ```
pub struct SwarmClient<'e, T> {
    cores: Cores<'e>,
    registers: usize,
    _values: PhantomData<T>,
}

/// The words of a value, on the stack for small ones.
type ValueWords = SmallVec<[u64; 16]>;

impl<'e, T: Plain> SwarmClient<'e, T> {
    /// Reads a register.
    ///
    /// ```
    /// # use farfield::swarm::{SwarmArray, SwarmOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let array = SwarmArray::<u64>::open(&node, "a", 8, SwarmOptions::default())?;
    /// # let ep = node.endpoint()?;
    /// # let client = array.client(&ep)?;
    /// assert_eq!(ep.block_on(client.read(3))?, 0);
    /// # drop(client);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`NoMajority`]; more than 64 reads at a time; or a timeout, if memory nodes with the latest value come and go.
    pub async fn read(&self, register: usize) -> Result<T> {
        measured!(self.cores.first(), READ, self.read(register));
        let (core, at) = self.place(register)?;
        let mut words: ValueWords = SmallVec::from_elem(0, SwarmArray::<T>::WORDS);
        core.read(at, &mut words).await?;
        let mut value = T::new_zeroed();
        value.as_mut_bytes().copy_from_slice(&words.as_bytes()[..size_of::<T>()]);
        Ok(value)
    }

    /// Writes a register. When this returns, every read that begins finds this value or a later one.
    ///
    /// ```
    /// # use farfield::swarm::{SwarmArray, SwarmOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let array = SwarmArray::<u64>::open(&node, "a", 8, SwarmOptions::default())?;
    /// # let ep = node.endpoint()?;
    /// # let client = array.client(&ep)?;
    /// ep.block_on(client.write(3, 42))?;
    /// assert_eq!(ep.block_on(client.read(3))?, 42);
    /// # drop(client);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`NoMajority`] and a timeout: it has happened, or not, or will have before this client's next write of the
    /// register. [`TimestampsUsedUp`], and more than 64 calls at a time: it has not.
    pub async fn write(&self, register: usize, value: T) -> Result<()> {
        measured!(self.cores.first(), WRITE, self.write(register, value));
        let (core, at) = self.place(register)?;
        let mut words: ValueWords = SmallVec::from_elem(0, SwarmArray::<T>::WORDS);
        words.as_mut_bytes()[..size_of::<T>()].copy_from_slice(value.as_bytes());
        let (_, _writing, section) = core.write_in_section(Home::array(at), &words).await?;
        section.end();
        Ok(())
    }

    /// [`SwarmClient::read`], which it waits for on this thread.
    ///
    /// ```
    /// # use farfield::swarm::{SwarmArray, SwarmOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let array = SwarmArray::<u64>::open(&node, "a", 8, SwarmOptions::default())?;
    /// # let ep = node.endpoint()?;
    /// # let client = array.client(&ep)?;
    /// assert_eq!(client.read_blocking(3)?, 0);
    /// # drop(client);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As `read`.
    pub fn read_blocking(&self, register: usize) -> Result<T> {
        self.cores.first().endpoint.block_on(self.read(register))
    }

    /// [`SwarmClient::write`], which it waits for on this thread.
    ///
    /// ```
    /// # use farfield::swarm::{SwarmArray, SwarmOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let array = SwarmArray::<u64>::open(&node, "a", 8, SwarmOptions::default())?;
    /// # let ep = node.endpoint()?;
    /// # let client = array.client(&ep)?;
    /// client.write_blocking(3, 42)?;
    /// # drop(client);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As `write`.
    pub fn write_blocking(&self, register: usize, value: T) -> Result<()> {
        self.cores.first().endpoint.block_on(self.write(register, value))
    }

    fn place(&self, register: usize) -> Result<(&Core<'e>, Location)> {
        if register >= self.registers {
            let why = format!("there is no register {register}: there are {}, from 0", self.registers);
            return Err(Error::from(ErrorKind::Config { why }).of(self.cores.first().shared.object.path()));
        }
        let core = &self.cores[register % self.cores.len()];
        Ok((core, core.register(register / self.cores.len())?))
    }
}

/// One replicated register: a [`SwarmArray`] of one.
///
/// ```
/// use farfield::swarm::{SwarmOptions, SwarmRegister};
/// let nodes = farfield::local_session(3)?;
/// let open = |node: &farfield::Node| SwarmRegister::<u64>::open(node, "limit", SwarmOptions::default());
/// let limits = farfield::on_each(&nodes, open)?;
/// let ep = nodes[0].endpoint()?;
/// let limit = limits[0].client(&ep)?;
/// limit.write_blocking(100)?;
/// assert_eq!(limit.read_blocking()?, 100);
/// # drop(limit);
/// # Ok::<(), farfield::Error>(())
/// ```
pub struct SwarmRegister<T>(SwarmArray<T>);

impl<T: Plain> SwarmRegister<T> {
    /// Opens a register at `path`, and waits for the memory nodes. If they have just opened it, its value is zero.
    ///
    /// ```
    /// # use farfield::swarm::{SwarmOptions, SwarmRegister};
    /// # let node = farfield::Node::builder().start()?;
    /// let limit = SwarmRegister::<u64>::open(&node, "limit", SwarmOptions::default())?;
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`SwarmArray::open`].
    pub fn open(node: &Node, path: &str, options: SwarmOptions) -> Result<SwarmRegister<T>> {
        SwarmArray::open(node, path, 1, options).map(SwarmRegister)
    }

    /// A client, as [`SwarmArray::client`].
    ///
    /// ```
    /// # use farfield::swarm::{SwarmOptions, SwarmRegister};
    /// # let node = farfield::Node::builder().start()?;
    /// # let limit = SwarmRegister::<u64>::open(&node, "limit", SwarmOptions::default())?;
    /// let ep = node.endpoint()?;
    /// let client = limit.client(&ep)?;
    /// # drop(client);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`SwarmArray::client`].
    pub fn client<'e>(&self, endpoint: &'e Endpoint) -> Result<SwarmRegisterClient<'e, T>> {
        self.0.client(endpoint).map(SwarmRegisterClient)
    }
}

/// One thread's access to a [`SwarmRegister`].
///
/// ```
/// # use farfield::swarm::{SwarmOptions, SwarmRegister};
/// # let node = farfield::Node::builder().start()?;
/// # let limit = SwarmRegister::<u64>::open(&node, "limit", SwarmOptions::default())?;
/// let ep = node.endpoint()?;
/// let client = limit.client(&ep)?;
/// ep.block_on(async {
///     client.write(7).await?;
///     client.read().await
/// })?;
/// # drop(client);
/// # Ok::<(), farfield::Error>(())
/// ```
pub struct SwarmRegisterClient<'e, T>(SwarmClient<'e, T>);

impl<T: Plain> SwarmRegisterClient<'_, T> {
    /// [`SwarmClient::read`] of the register.
    ///
    /// ```
    /// # use farfield::swarm::{SwarmOptions, SwarmRegister};
    /// # let node = farfield::Node::builder().start()?;
    /// # let limit = SwarmRegister::<u64>::open(&node, "limit", SwarmOptions::default())?;
    /// # let ep = node.endpoint()?;
    /// # let client = limit.client(&ep)?;
    /// assert_eq!(ep.block_on(client.read())?, 0);
    /// # drop(client);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`SwarmClient::read`].
    pub async fn read(&self) -> Result<T> {
        self.0.read(0).await
    }

    /// [`SwarmClient::write`] of the register.
    ///
    /// ```
    /// # use farfield::swarm::{SwarmOptions, SwarmRegister};
    /// # let node = farfield::Node::builder().start()?;
    /// # let limit = SwarmRegister::<u64>::open(&node, "limit", SwarmOptions::default())?;
    /// # let ep = node.endpoint()?;
    /// # let client = limit.client(&ep)?;
    /// ep.block_on(client.write(7))?;
    /// # drop(client);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`SwarmClient::write`].
    pub async fn write(&self, value: T) -> Result<()> {
        self.0.write(0, value).await
    }

    /// [`SwarmRegisterClient::read`], which it waits for on this thread.
    ///
    /// ```
    /// # use farfield::swarm::{SwarmOptions, SwarmRegister};
    /// # let node = farfield::Node::builder().start()?;
    /// # let limit = SwarmRegister::<u64>::open(&node, "limit", SwarmOptions::default())?;
    /// # let ep = node.endpoint()?;
    /// # let client = limit.client(&ep)?;
    /// assert_eq!(client.read_blocking()?, 0);
    /// # drop(client);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As `read`.
    pub fn read_blocking(&self) -> Result<T> {
        self.0.read_blocking(0)
    }

    /// [`SwarmRegisterClient::write`], which it waits for on this thread.
    ///
    /// ```
    /// # use farfield::swarm::{SwarmOptions, SwarmRegister};
    /// # let node = farfield::Node::builder().start()?;
    /// # let limit = SwarmRegister::<u64>::open(&node, "limit", SwarmOptions::default())?;
    /// # let ep = node.endpoint()?;
    /// # let client = limit.client(&ep)?;
    /// client.write_blocking(7)?;
    /// # drop(client);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As `write`.
    pub fn write_blocking(&self, value: T) -> Result<()> {
        self.0.write_blocking(0, value)
    }
}

#[cfg(test)]
mod tests;
