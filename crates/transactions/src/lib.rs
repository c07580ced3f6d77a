//! Transactions: several words, spread over the nodes, are read and written together under their locks.
//!
//! Cell `c` is on the node at position `c mod nodes`, in the order of opening, as word `c / nodes` of its memory:
//!
//! ```text
//! region `cells`       node 0             node 1             node 2
//!   +0            ┌───────────┐      ┌───────────┐      ┌───────────┐
//!                 │ cell 0    │      │ cell 1    │      │ cell 2    │   8 bytes each, zero at first: read and written
//!   +8            ├───────────┤      ├───────────┤      ├───────────┤   by the CPU on their node, got and put by others
//!                 │ cell 3    │      │ cell 4    │      │ cell 5    │
//!   +16           └───────────┘      └───────────┘      └───────────┘
//! sub-object `…/locks`: lock `i` is on the node at `i mod nodes`.
//! ```
//!
//! Each cell is protected by one lock, which follows from its number. The cells of a node use the locks on the same
//! node in turn: with k locks there, word w has the one at `w mod k`. So with at least as many locks as nodes, every
//! cell's lock is on the cell's node. With an ALock, a node's own threads then use its cells without the NIC. With
//! fewer locks than nodes, the cells of a node without a lock share the one at `node mod locks`.
//!
//! # Algorithm
//!
//! *Begin.* The locks of all named cells are taken one after the other, each once, in ascending order. All transactions
//! keep to that order, so no cycle of waiting transactions can form.
//!
//! *Read.* Cells of the own node are read by the CPU, all others by gets that are posted together. A cell that the
//! transaction has written is read from the transaction.
//!
//! *Write.* A write changes only the transaction's own record.
//!
//! *Commit.* Cells of the own node are written by the CPU, all others by puts that are posted together. Then all locks
//! are released at the same time. All operations are posted before the first wait, so a commit that is dropped has
//! written everything.
//!
//! This is two-phase locking: transactions are serializable, in an order in which each follows those that ended before
//! it began. A lock protects several cells, so two transactions without a common cell may wait for each other.
//!
//! # Ordering
//!
//! Each lock's release waits until all puts are visible, by a get from each node that was put to (`NRW → NRR`). One
//! node is exempt: the target of the release itself, which follows the puts to that node (`NRW → NAR`, `NRW → NRW`).
//! The CPU's writes precede any operation that is issued later, and any later CPU write. The next holder of a cell's
//! lock reads after it has acquired the lock. So accesses of CPU and NIC to one cell are always ordered by its lock
//! ([`locks`](farfield_locks) explains how, for each kind).
//!
//! If the releases would get from the same nodes repeatedly, one global fence precedes all of them.
//!
//! # Costs
//!
//! | call | round trips | operations |
//! |---|---|---|
//! | `begin`, all locks free | those of each [lock](farfield_locks), added up | likewise |
//! | `read_all`, r cells of other nodes | 1 (0 if r = 0) | r gets |
//! | `write` | 0 | none |
//! | `commit`, w cells on d other nodes | 1, or 2 if a release is behind a fence | w puts; at most d gets; the releases |
//! | `abort` | 1 | the releases |
//! | dropping it | 1 for each lock | the releases |
//!
//! The next table gives the cost of a transfer between two cells with both locks free, at most. (On shared memory a get
//! is complete at once, and the second release skips nodes that the first has fenced.)
//!
//! | cells | kind of lock | round trips: begin + read + commit | puts | gets | atomics |
//! |---|---|---|---|---|---|
//! | on two other nodes | spin, MCS, mutex | 2 + 1 + 2 | 2 | 4 | 4 |
//! | on two other nodes | ALock | 4 + 1 + 2 | 4 | 6 | 4 |
//! | both on one other node | spin, MCS, mutex | 2 + 1 + 1 | 2 | 2 | 4 |
//! | one on the own node | ALock | 2 + 1 + 1 | 2 | 3 | 2 |
//! | both on the own node | ALock | 0 | none | none | none |
//!
//! # When a node dies
//!
//! *If a transaction's node dies:* **a commit is not atomic against the death of its node**. Some of its cells may be
//! written and others not, and the other nodes do not know which. The locks that it held record the death. Each next
//! holder gets a warning by [`Transaction::is_poisoned`], until one of them calls [`Transaction::clear_poison`]. A
//! holder that gets the warning has to repair the cells, by its knowledge of their contents. If an invariant spans many
//! cells, as a sum does, the repair is a recount under the locks of all of them. A transaction that had only read
//! leaves the same mark.
//!
//! *If a cell's home dies*, the cell is lost, and so are the locks on that node. `begin`, `read` and `commit` return an
//! error that names the node, and the other locks are released. A commit's writes on living nodes stay written.
//!
//! Source: LOCO, appendix B.1 (transactional locking); the order of the locks, aborts and deaths are ours.

#![forbid(unsafe_code)]

mod errors;
pub mod mutants;
mod options;
#[cfg(any(not(seeded), clippy, doc, rust_analyzer))]
mod order;
mod transaction;
// The unit tests run none of them, and are built sooner without.
#[cfg(all(feature = "scenarios", not(test)))]
pub mod scenarios;

// Where the seeded bugs are on, copies of the modules that have a `cfg(any(not(seeded), …))` (`mutants`).
#[cfg(all(seeded, not(any(clippy, doc, rust_analyzer))))]
include!(concat!(env!("OUT_DIR"), "/seeded.rs"));

use core::future::Future;

use farfield_fabric::{Attempt, Begun, Endpoint, GroupKey, Instant, NodeId, Region, RemotePtr, Word};

use farfield_core::toolkit::{
    Either, ErrorContext, Object, ObjectBuilder, Participants, Regions, Rest, Waits, at_least_one, region_bytes,
};
use farfield_core::{Error, ErrorKind, Node, Result};
use farfield_locks::{LockArray, LockTable, TableGuard, WaitLimit};
use smallvec::SmallVec;

pub use self::errors::{NoSuchCell, NotInTransaction};
pub use self::options::TransactionOptions;
use self::order::{Ascent, Lock, lock_of, locks_of, put_in_order};
pub use self::transaction::Transaction;
use self::transaction::{Cell, Parts};

/// The most locks that a transaction may hold. This limit is Farfield's own, and LOCO has none: in LOCO's evaluation
/// 341 is the number of locks for each thread, a budget beside Open MPI, which could not open more than 341 windows.
///
/// ```
/// # use farfield::{ErrorKind, LOCKS_PER_TRANSACTION_MAX};
/// # use farfield::{LockKind::ALock, LockOptions, TransactionOptions, Transactions};
/// # let (node, lock) = (farfield::Node::builder().start()?, LockOptions::new(ALock));
/// # let ep = node.endpoint()?;
/// let all = Transactions::open(&node, "cells", TransactionOptions { cells: 400, locks: 400, lock })?;
/// let cells: Vec<usize> = (0..=LOCKS_PER_TRANSACTION_MAX).collect(); // each has a lock of its own
/// let error = ep.block_on(all.begin(&ep, &cells)).err().unwrap();
/// assert!(matches!(error.kind(), ErrorKind::TooMany { max: LOCKS_PER_TRANSACTION_MAX, .. }));
/// # Ok::<(), farfield::Error>(())
/// ```
pub const LOCKS_PER_TRANSACTION_MAX: usize = 341;

/// The calls, as they are measured.
const CALLS: [&str; 2] = ["begin", "commit"];
const BEGIN: usize = 0;
const COMMIT: usize = 1;

/// A list: up to two elements, as in a transfer, need no allocation.
type Few<T> = SmallVec<[T; 2]>;

/// Words spread over the nodes that open them, to be read and written by transactions.
///
/// ```
/// use farfield::{LockKind, LockOptions, TransactionOptions, Transactions};
/// # fn main() -> farfield::Result<()> {
/// let node = farfield::Node::builder().session("doc-transactions").start()?;
/// let options = TransactionOptions { cells: 1000, locks: 16, lock: LockOptions::new(LockKind::ALock) };
/// let accounts = Transactions::open(&node, "accounts", options)?;
/// let ep = node.endpoint()?;
/// ep.block_on(async {
///     let mut transfer = accounts.begin(&ep, &[7, 900]).await?;
///     let (from, to) = (transfer.read(7).await?, transfer.read(900).await?);
///     transfer.write(7, from.wrapping_sub(30))?;
///     transfer.write(900, to.wrapping_add(30))?;
///     transfer.commit().await
/// })?;
/// # Ok(()) }
/// ```
pub struct Transactions {
    object: Object,
    me: NodeId,
    cells: usize,
    /// The start of each node's memory, in the order of opening, and how many locks are there.
    homes: Vec<Home>,
    own: Region,
    locks: LockTable,
}

/// A node's part of the cells.
#[derive(Clone, Copy)]
struct Home {
    base: RemotePtr<u64>,
    locks: usize,
}

impl Transactions {
    /// Opens the cells, zero at first, with their locks, and waits for all nodes to do so.
    ///
    /// ```
    /// # use farfield::{LockKind::ALock, LockOptions, TransactionOptions, Transactions};
    /// # let node = farfield::Node::builder().start()?;
    /// let options = TransactionOptions { cells: 10, locks: 4, lock: LockOptions::new(ALock) };
    /// let cells = Transactions::open(&node, "cells", options)?;
    /// assert!(cells.own_cells().all(|(_, word)| word.load() == 0));
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// A node is missing, unreachable, or opens them differently; memory is exhausted; or there are no cells, or no
    /// locks.
    pub fn open(node: &Node, path: &str, options: TransactionOptions) -> Result<Transactions> {
        Transactions::open_among(node, path, &node.members_for(path), options)
    }

    /// Opens the cells and their locks among these nodes, which must name the same, and waits for them to do so. Cell
    /// `c` is on the one at `c mod nodes` of them, in the order of their numbers.
    ///
    /// ```
    /// # use farfield::{LockKind, LockOptions, Node, TransactionOptions, Transactions};
    /// # let nodes = farfield::local_session(3)?; let pair = [nodes[0].id(), nodes[1].id()];
    /// let options = TransactionOptions { cells: 10, locks: 4, lock: LockOptions::new(LockKind::ALock) };
    /// let open = |node: &Node| Transactions::open_among(node, "cells", &pair, options);
    /// let cells = farfield::on_each(&nodes[..2], open)?; // the third node does not open them
    /// assert_eq!(cells[1].home(3)?, pair[1]);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As `open`, or this node is not among them.
    pub fn open_among(
        node: &Node,
        path: &str,
        participants: &[NodeId],
        options: TransactionOptions,
    ) -> Result<Transactions> {
        let TransactionOptions { cells, locks, lock } = options;
        at_least_one(&[("cells", cells), ("locks", locks)]).of(path)?;
        let participants = Participants::new(participants);
        participants.require(node.id()).of(path)?;
        let homes: Vec<NodeId> = participants.iter().collect();
        let bytes = region_bytes(cells.div_ceil(homes.len()), 1, "`cells`").of(path)?;
        let mut regions = Regions::new(node);
        let own = regions.alloc("cells", GroupKey::DATA, bytes).of(path)?;
        let layout = format!("cells={cells}, locks={locks} of kind {}, homes={homes:?}", lock.kind);
        let opening = ObjectBuilder::new(node, path, "Transactions").layout(&layout).regions(regions);
        let object = opening
            .calls(&CALLS)
            .participants(participants.iter())
            .require_regions(move |_| vec![("cells".into(), bytes as u64)])
            .open()?;
        let home = |(rank, home): (usize, &NodeId)| -> Result<Home> {
            Ok(Home { base: object.remote(*home, "cells")?, locks: locks_of(rank, homes.len(), locks) })
        };
        let parts = homes.iter().enumerate().map(home).collect::<Result<_>>()?;
        let locks = LockTable::open_among(node, &format!("{path}/locks"), &homes, locks, lock)?;
        Ok(Transactions { object, me: node.id(), cells, homes: parts, own, locks })
    }

    /// The number of cells.
    ///
    /// ```
    /// # use farfield::{LockKind::ALock, LockOptions, TransactionOptions, Transactions};
    /// # let (node, lock) = (farfield::Node::builder().start()?, LockOptions::new(ALock));
    /// # let cells = Transactions::open(&node, "cells", TransactionOptions { cells: 10, locks: 4, lock })?;
    /// assert_eq!(cells.len(), 10);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn len(&self) -> usize {
        self.cells
    }

    /// Whether there are no cells. Always false.
    ///
    /// ```
    /// # use farfield::{LockKind::ALock, LockOptions, TransactionOptions, Transactions};
    /// # let (node, lock) = (farfield::Node::builder().start()?, LockOptions::new(ALock));
    /// # let cells = Transactions::open(&node, "cells", TransactionOptions { cells: 10, locks: 4, lock })?;
    /// assert!(!cells.is_empty());
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn is_empty(&self) -> bool {
        self.cells == 0
    }

    /// The locks of the cells.
    ///
    /// ```
    /// # use farfield::{LockArray, LockKind::ALock, LockOptions, TransactionOptions, Transactions};
    /// # let (node, lock) = (farfield::Node::builder().start()?, LockOptions::new(ALock));
    /// # let cells = Transactions::open(&node, "cells", TransactionOptions { cells: 10, locks: 4, lock })?;
    /// assert_eq!(cells.locks().len(), 4); // several cells have one lock
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn locks(&self) -> &LockTable {
        &self.locks
    }

    /// The home node of a cell.
    ///
    /// ```
    /// # use farfield::{LockKind::ALock, LockOptions, TransactionOptions, Transactions};
    /// # let (lock, node) = (LockOptions::new(ALock), farfield::Node::builder().session("doc-lib-32").start()?);
    /// # let cells = Transactions::open(&node, "cells", TransactionOptions { cells: 10, locks: 4, lock })?;
    /// assert_eq!(cells.home(3)?, node.id());
    /// let error = cells.home(10).unwrap_err(); // they are numbered from 0
    /// assert_eq!(error.custom_ref::<farfield::transactions::NoSuchCell>().unwrap().cells, 10);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// There is no such cell.
    pub fn home(&self, cell: usize) -> Result<NodeId> {
        self.check(cell).map(|()| self.homes[cell % self.homes.len()].base.node())
    }

    /// The lock that protects a cell, among [`Transactions::locks`].
    ///
    /// ```
    /// # use farfield::{LockArray, LockKind::ALock, LockOptions, TransactionOptions, Transactions};
    /// # let (node, lock) = (farfield::Node::builder().start()?, LockOptions::new(ALock));
    /// # let cells = Transactions::open(&node, "cells", TransactionOptions { cells: 10, locks: 4, lock })?;
    /// assert!(cells.lock_of(3)? < cells.locks().len());
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// There is no such cell.
    pub fn lock_of(&self, cell: usize) -> Result<usize> {
        self.check(cell).map(|()| self.place_of(cell).1.number)
    }

    /// The cells of this node with their words, regardless of their locks: for setup before the first transaction, and
    /// for inspection after the last.
    ///
    /// ```
    /// # use farfield::{LockKind::ALock, LockOptions, TransactionOptions, Transactions};
    /// # let (lock, node) = (LockOptions::new(ALock), farfield::Node::builder().session("doc-lib-33").start()?);
    /// # let cells = Transactions::open(&node, "cells", TransactionOptions { cells: 10, locks: 4, lock })?;
    /// assert_eq!(cells.own_cells().count(), cells.len()); // on a node that is alone
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn own_cells(&self) -> impl Iterator<Item = (usize, &Word)> {
        let nodes = self.homes.len();
        let first = self.homes.iter().position(|home| home.base.node() == self.me).unwrap_or(self.cells);
        let words = self.own.words(0, self.cells.saturating_sub(first).div_ceil(nodes));
        words.iter().enumerate().map(move |(at, word)| (at * nodes + first, word))
    }

    /// Takes the locks of these cells, waiting as long as the endpoint's timeout. A cell may be named more than once.
    ///
    /// ```
    /// # use farfield::{LockKind::ALock, LockOptions, TransactionOptions, Transactions};
    /// # let node = farfield::Node::builder().session("doc-lib-34").start()?;
    /// # let (ep, lock) = (node.endpoint()?, LockOptions::new(ALock));
    /// # let cells = Transactions::open(&node, "cells", TransactionOptions { cells: 10, locks: 4, lock })?;
    /// let transaction = ep.block_on(cells.begin(&ep, &[3, 7]))?; // it holds the locks of both
    /// assert_eq!(ep.block_on(transaction.read_all(&[3, 7]))?, [0, 0]);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// A timeout, or the home of a cell is unreachable; then no lock is held. There is no such cell, or more than
    /// [`LOCKS_PER_TRANSACTION_MAX`] locks would be needed.
    pub fn begin<'a>(
        &'a self,
        endpoint: &'a Endpoint,
        cells: &[usize],
    ) -> impl Future<Output = Result<Transaction<'a>>> {
        self.begin_until(endpoint, cells, WaitLimit::Timeout)
    }

    /// [`Transactions::begin`] with a deadline.
    ///
    /// ```
    /// # use farfield::{LockKind::ALock, LockOptions, TransactionOptions, Transactions};
    /// # let (node, lock) = (farfield::Node::builder().start()?, LockOptions::new(ALock));
    /// # let cells = Transactions::open(&node, "cells", TransactionOptions { cells: 10, locks: 4, lock })?;
    /// # let ep = node.endpoint()?;
    /// let soon = ep.now() + std::time::Duration::from_millis(5);
    /// let holds = ep.block_on(cells.begin(&ep, &[3]))?;
    /// let late = ep.block_on(cells.begin_deadline(&ep, &[3], soon)).err().unwrap();
    /// assert!(late.is_timeout());
    /// # drop(holds); Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As `begin`.
    pub fn begin_deadline<'a>(
        &'a self,
        endpoint: &'a Endpoint,
        cells: &[usize],
        deadline: Instant,
    ) -> impl Future<Output = Result<Transaction<'a>>> {
        self.begin_until(endpoint, cells, WaitLimit::Deadline(deadline))
    }

    /// The first wait for a lock sets the deadline of all.
    fn begin_until<'a>(
        &'a self,
        endpoint: &'a Endpoint,
        cells: &[usize],
        limit: WaitLimit,
    ) -> impl Future<Output = Result<Transaction<'a>>> {
        Attempt::new(move || self.begin_at_once(endpoint, cells, limit))
    }

    /// Takes all locks while they are free; or begins to wait for one. It is a call of its own, with all registers for
    /// itself.
    #[inline(never)]
    fn begin_at_once<'a, 'c>(
        &'a self,
        endpoint: &'a Endpoint,
        cells: &'c [usize],
        limit: WaitLimit,
    ) -> Result<Begun<Transaction<'a>, impl Rest<Transaction<'a>> + use<'a, 'c>>> {
        let meter = self.object.meter();
        if meter.is_on() && meter.measures(endpoint, BEGIN) {
            let begins = self.begin_measured(endpoint, cells, limit);
            return Ok(Err(Either::Measured(meter.measure(endpoint, BEGIN, begins))));
        }
        let mut transaction = self.named(endpoint, cells)?;
        let Parts { locks, guards, .. } = &mut *transaction.0;
        for lock in locks {
            let begun = match self.locks.begin(endpoint, lock.number, limit) {
                Ok(Ok(guard)) => {
                    guards.push(guard);
                    continue;
                }
                Ok(Err(rest)) => Ok(rest),
                Err(error) => Err(error),
            };
            return Ok(Err(Either::Plain(self.begin_rest(transaction, begun, limit))));
        }
        Ok(Ok(transaction))
    }

    #[cold]
    #[inline(never)]
    fn begin_rest<'a, R>(
        &'a self,
        transaction: Transaction<'a>,
        begun: Result<R>,
        mut limit: WaitLimit,
    ) -> impl Rest<Transaction<'a>>
    where
        R: Rest<Option<TableGuard<'a>>>,
    {
        let endpoint = transaction.0.endpoint;
        limit.begin(endpoint);
        endpoint.boxed(self.begin_on(transaction, begun, limit))
    }

    async fn begin_measured<'a>(
        &'a self,
        endpoint: &'a Endpoint,
        cells: &[usize],
        limit: WaitLimit,
    ) -> Result<Transaction<'a>> {
        self.take_rest(self.named(endpoint, cells)?, limit).await
    }

    /// The rest of a begin, when the lock behind those that are taken is not free, or an error.
    async fn begin_on<'a, R>(
        &'a self,
        mut transaction: Transaction<'a>,
        begun: Result<R>,
        limit: WaitLimit,
    ) -> Result<Transaction<'a>>
    where
        R: Rest<Option<TableGuard<'a>>>,
    {
        match got(begun.map(Err)).await {
            Ok(guard) => transaction.0.guards.push(guard),
            Err(error) => return give_up(transaction, error).await,
        }
        self.take_rest(transaction, limit).await
    }

    /// Takes the locks that are not held yet.
    async fn take_rest<'a>(
        &'a self,
        mut transaction: Transaction<'a>,
        mut limit: WaitLimit,
    ) -> Result<Transaction<'a>> {
        while let Some(lock) = transaction.0.locks.get(transaction.0.guards.len()).copied() {
            match got(self.locks.begin(transaction.0.endpoint, lock.number, &mut limit)).await {
                Ok(guard) => transaction.0.guards.push(guard),
                Err(error) => return give_up(transaction, error).await,
            }
        }
        Ok(transaction)
    }

    /// A transaction over some cells, which holds no lock yet.
    #[inline(always)]
    fn named<'a>(&'a self, endpoint: &'a Endpoint, cells: &[usize]) -> Result<Transaction<'a>> {
        let empty = || Parts { all: self, endpoint, locks: Few::new(), guards: Few::new(), cells: Few::new() };
        let mut transaction = Transaction(endpoint.kept(empty));
        let Parts { locks, cells: named, .. } = &mut *transaction.0;
        let (mut cells_seen, mut locks_seen) = (Ascent::NONE_SEEN, Ascent::NONE_SEEN);
        let mut alive = self.me;
        for cell in cells {
            self.check(*cell)?;
            let (at, lock) = self.place_of(*cell);
            if at.node() != alive && at.node() != self.me {
                endpoint.check_alive(at.node()).of(self.object.path())?;
                alive = at.node();
            }
            cells_seen.sees(*cell);
            locks_seen.sees(lock.number);
            locks.push(lock);
            named.push(Cell { number: *cell, at, written: None });
        }
        if !cells_seen.is_kept {
            named.sort_unstable_by_key(|cell| cell.number);
            named.dedup_by_key(|cell| cell.number);
        }
        put_in_order(locks, locks_seen);
        if locks.len() > LOCKS_PER_TRANSACTION_MAX {
            return Err(self.needs_too_many(locks.len()));
        }
        Ok(transaction)
    }

    #[cold]
    #[inline(never)]
    fn needs_too_many(&self, asked: usize) -> Error {
        let (what, max) = ("locks for one transaction", LOCKS_PER_TRANSACTION_MAX);
        Error::from(ErrorKind::TooMany { what, asked, max }).of(self.object.path())
    }

    #[inline]
    fn check(&self, cell: usize) -> Result<()> {
        if cell < self.cells { Ok(()) } else { Err(self.is_missing(cell)) }
    }

    #[cold]
    #[inline(never)]
    fn is_missing(&self, cell: usize) -> Error {
        Error::custom(NoSuchCell { cell, cells: self.cells }).of(self.object.path())
    }

    /// Where a cell is, and its lock.
    #[inline]
    fn place_of(&self, cell: usize) -> (RemotePtr<u64>, Lock) {
        let nodes = self.homes.len();
        let (rank, word) = (cell % nodes, cell / nodes);
        let Home { base, locks } = self.homes[rank];
        let number = lock_of(rank, word, nodes, locks, || self.locks.len());
        let home = if locks > 0 { base } else { self.homes[number].base };
        (base.at(word), Lock { number, home: home.node() })
    }

    /// The word of a cell of this node, or a pointer to it on another.
    #[inline(always)]
    fn word(&self, at: RemotePtr<u64>) -> core::result::Result<&Word, RemotePtr<u64>> {
        if at.node() != self.me {
            return Err(at);
        }
        Ok(self.own.word((at.offset() - self.own.remote::<u64>(0).offset()) as usize))
    }
}

async fn got<'a, R>(begun: Result<Begun<TableGuard<'a>, R>>) -> Result<TableGuard<'a>>
where
    R: Rest<Option<TableGuard<'a>>>,
{
    match begun? {
        Ok(guard) => Ok(guard),
        Err(rest) => Waits(rest).await,
    }
}

/// The original error is more useful than an error of the abort.
async fn give_up<'a>(transaction: Transaction<'a>, error: Error) -> Result<Transaction<'a>> {
    let endpoint = transaction.0.endpoint;
    let _ = endpoint.boxed(transaction.abort()).await;
    Err(error)
}

#[cfg(test)]
mod tests;
