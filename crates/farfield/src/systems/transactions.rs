//! Transactions: words spread over the nodes, of which several are read and written together, under their locks.
//!
//! Cell `c` lies on the node at `c mod nodes`, in the order of opening, as word `c / nodes` of its memory:
//!
//! ```text
//! region `cells`       node 0             node 1             node 2
//!   +0            ┌───────────┐      ┌───────────┐      ┌───────────┐
//!                 │ cell 0    │      │ cell 1    │      │ cell 2    │   8 bytes each, zero at first: read and written
//!   +8            ├───────────┤      ├───────────┤      ├───────────┤   by the CPU on their node, got and put by others
//!                 │ cell 3    │      │ cell 4    │      │ cell 5    │
//!   +16           └───────────┘      └───────────┘      └───────────┘
//! sub-object `…/locks`: lock `i` lies on the node at `i mod nodes`.
//! ```
//!
//! Each cell is protected by one lock, which follows from its number. Of the locks that lie on its node, those of that
//! node's cells take turns: with k locks there, word w has the one at `w mod k`. So where there are as many locks as nodes
//! every cell's lock lies beside it, and with an ALock the cells of a node cost its own threads nothing. Where there are
//! fewer, the cells of a node without a lock share the one at `node mod locks`.
//!
//! # Algorithm
//!
//! *Begin.* The locks of all cells that are named are taken one after the other, each once, in ascending order. All
//! transactions keep to that order, so nobody waits in a circle.
//!
//! *Read.* Cells of the own node by the CPU, all others by gets that are posted together. What the transaction has written
//! is read from the transaction.
//!
//! *Write.* Into the transaction, and nowhere else.
//!
//! *Commit.* Cells of the own node by the CPU, all others by puts, posted together; then all locks are released, at the same
//! time. It is all posted before anything is waited for: a commit that is dropped has written everything.
//!
//! This is two-phase locking: transactions are serializable, in an order in which each comes after those that have ended
//! before it began. A lock protects more cells than one, so two transactions may wait for each other that share none.
//!
//! # Ordering
//!
//! Each lock's release waits until all that was put is visible: by a get from each node that was put to (`NRW → NRR`), but
//! for the one that the release itself is an operation to, behind the puts (`NRW → NAR`, `NRW → NRW`). The CPU's writes
//! come before any operation that is issued later, and before any later CPU write. The next holder of a cell's lock reads
//! after it has the lock. So CPU and NIC never meet at a cell but through its lock, which orders them
//! ([`locks`](super::locks) says for each kind how).
//!
//! Where the releases would ask the same nodes again and again, one global fence goes before all of them.
//!
//! # Costs
//!
//! | call | round trips | operations |
//! |---|---|---|
//! | `begin`, all locks free | those of each [lock](super::locks), added up | likewise |
//! | `read_all`, r cells of other nodes | 1 (0 if r = 0) | r gets |
//! | `write` | 0 | none |
//! | `commit`, w cells on d other nodes | 1, or 2 if a release is behind a fence | w puts; at most d gets; the releases |
//! | `abort` | 1 | the releases |
//! | dropping it | 1 for each lock | the releases |
//!
//! A transfer between two cells, with both locks free, at most (on shared memory, where a get is complete at once, the second
//! release finds fenced what the first has fenced):
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
//! *That of a transaction.* **A commit is not atomic against the death of its node**: some of its cells may be written, others
//! not, and nobody else knows which. The locks that it held tell: each next holder learns by [`Transaction::is_after_death`]
//! that a holder has died, until one says [`Transaction::repaired`]. Who is told has to make the cells good, by what it
//! knows of them. If what holds of them spans many cells, as a sum does, that is a recount under the locks of all of them. A
//! transaction that had only read leaves the same mark.
//!
//! *A cell's.* The cell is gone, and with it its lock: `begin`, `read` and `commit` say so, naming the node, and the other
//! locks are released. What a commit has written on nodes that live stays written.
//!
//! Source: LOCO, appendix B.1 (transactional locking); the order of the locks, aborts and deaths are ours.

use farfield_fabric::{self as fabric, Endpoint, GroupKey, Instant, NodeId, Op, Region, RemotePtr, Word};

use super::locks::{LockArray, LockGuard, LockOptions, LockTable, TableGuard};
use crate::error::{Error, ErrorKind, Of, Result};
use crate::mutants::{self, Mutant};
use crate::node::{Node, Object, Regions, Spec};

/// The most locks that a transaction may hold: as many as in the evaluation that this comes from.
pub const LOCKS_PER_TRANSACTION_MAX: usize = 341;

/// How many cells and locks there are. All nodes say the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TransactionOptions {
    /// Words, on all nodes together.
    pub cells: usize,
    /// Locks, on all nodes together.
    pub locks: usize,
    /// Of which kind.
    pub lock: LockOptions,
}

/// Words spread over the nodes that open them, which are read and written by transactions.
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
    cells: usize,
    /// Where the memory of each node begins, in the order of opening.
    bases: Vec<RemotePtr<u64>>,
    own: Region,
    locks: LockTable,
}

/// Some cells, whose locks are held as long as this lives. Dropping it leaves them as they were.
#[must_use = "what is not committed is not written, and the locks are released when it is dropped"]
pub struct Transaction<'a> {
    all: &'a Transactions,
    endpoint: &'a Endpoint,
    /// With the numbers of their locks.
    guards: Vec<(usize, TableGuard<'a>)>,
    /// Those that were named, in ascending order, with what is to be written.
    cells: Vec<(usize, Option<u64>)>,
}

/// What a cell is read from.
enum Read<'a> {
    Known(u64),
    Posted(Op<'a, u64>),
}

impl Transactions {
    /// Opens the cells, zero at first, with their locks, and waits for all nodes to do so.
    ///
    /// # Errors
    /// A node that is missing, gone, or opens them differently; no memory; no cells, or no locks.
    pub fn open(node: &Node, path: &str, options: TransactionOptions) -> Result<Transactions> {
        let TransactionOptions { cells, locks, lock } = options;
        if cells == 0 || locks == 0 {
            let why = format!("`cells` is {cells} and `locks` {locks}: both have to be at least 1");
            return Err(Error::from(ErrorKind::Config { why }).of(path));
        }
        let homes = node.members_for(path);
        let bytes = cells.div_ceil(homes.len()).saturating_mul(8);
        let mut regions = Regions::new(node);
        let own = regions.alloc("cells", GroupKey::DATA, bytes).of(path)?;
        let spec = Spec {
            path: path.into(),
            kind: "Transactions",
            layout: format!("cells={cells}, locks={locks} of kind {}, homes={homes:?}", lock.kind),
            participants: homes.clone(),
            takes_in: false,
            regions,
            expect: Box::new(move |_| vec![("cells".into(), bytes as u64)]),
        };
        let object = Object::open(node, spec)?;
        let bases = homes.into_iter().map(|home| object.remote(home, "cells")).collect::<Result<_>>()?;
        let locks = LockTable::open(node, &format!("{path}/locks"), locks, lock)?;
        Ok(Transactions { object, cells, bases, own, locks })
    }

    /// How many cells there are.
    pub fn len(&self) -> usize {
        self.cells
    }

    /// Whether there are none, which is never so.
    pub fn is_empty(&self) -> bool {
        self.cells == 0
    }

    /// Their locks.
    pub fn locks(&self) -> &LockTable {
        &self.locks
    }

    /// The node that a cell lies on.
    ///
    /// # Errors
    /// There is no such cell.
    pub fn home(&self, cell: usize) -> Result<NodeId> {
        self.check(cell).map(|()| self.home_of(cell))
    }

    /// The lock that protects a cell, among [`Transactions::locks`].
    ///
    /// # Errors
    /// There is no such cell.
    pub fn lock_of(&self, cell: usize) -> Result<usize> {
        self.check(cell).map(|()| lock_of(cell, self.bases.len(), self.locks.len()))
    }

    /// The cells of this node with their words, whoever holds their locks: to set them up before anybody begins, and to look
    /// at them when all have ended.
    pub fn own_cells(&self) -> impl Iterator<Item = (usize, &Word)> {
        let (nodes, me) = (self.bases.len(), self.object.node().id());
        let first = self.bases.iter().position(|base| base.node() == me).unwrap_or(self.cells);
        let words = self.own.words(0, self.cells.saturating_sub(first).div_ceil(nodes));
        words.iter().enumerate().map(move |(at, word)| (at * nodes + first, word))
    }

    /// Takes the locks of these cells, waiting as long as the endpoint's timeout. A cell may be named more than once.
    ///
    /// # Errors
    /// A timeout, or the home of a cell is gone; then no lock is held. There is no such cell, or there are more than
    /// [`LOCKS_PER_TRANSACTION_MAX`] locks to be taken.
    pub async fn begin<'a>(&'a self, endpoint: &'a Endpoint, cells: &[usize]) -> Result<Transaction<'a>> {
        self.begin_deadline(endpoint, cells, endpoint.deadline()).await
    }

    /// [`Transactions::begin`] with a deadline.
    ///
    /// # Errors
    /// As `begin`.
    pub async fn begin_deadline<'a>(
        &'a self,
        endpoint: &'a Endpoint,
        cells: &[usize],
        deadline: Instant,
    ) -> Result<Transaction<'a>> {
        let locks = self.locks_of(cells)?;
        for cell in cells {
            self.check_alive(endpoint, *cell)?;
        }
        let mut cells: Vec<_> = cells.iter().map(|cell| (*cell, None)).collect();
        cells.sort_unstable();
        cells.dedup();
        let mut transaction = Transaction { all: self, endpoint, guards: Vec::with_capacity(locks.len()), cells };
        for lock in locks {
            match self.locks.lock_deadline(endpoint, lock, deadline).await {
                Ok(guard) => transaction.guards.push((lock, guard)),
                Err(error) => {
                    // Why there is no transaction says more than what its end runs into.
                    let _ = transaction.abort().await;
                    return Err(error);
                }
            }
        }
        Ok(transaction)
    }

    /// The locks of some cells, each once, in the order in which they are taken.
    fn locks_of(&self, cells: &[usize]) -> Result<Vec<usize>> {
        let mut locks = cells.iter().map(|cell| self.lock_of(*cell)).collect::<Result<Vec<_>>>()?;
        if !mutants::is_on(Mutant::TransactionsUnordered) {
            locks.sort_unstable();
        }
        locks.dedup();
        if locks.len() > LOCKS_PER_TRANSACTION_MAX {
            let (what, max) = ("locks for one transaction", LOCKS_PER_TRANSACTION_MAX);
            return Err(ErrorKind::TooMany { what, asked: locks.len(), max }).of(self.object.path());
        }
        Ok(locks)
    }

    fn check(&self, cell: usize) -> Result<()> {
        match cell < self.cells {
            true => Ok(()),
            false => Err(ErrorKind::NoSuchCell { cell, cells: self.cells }).of(self.object.path()),
        }
    }

    fn check_alive(&self, endpoint: &Endpoint, cell: usize) -> Result<()> {
        match self.home_of(cell) {
            home if home == endpoint.me() => Ok(()),
            home => endpoint.check_alive(home).of(self.object.path()),
        }
    }

    fn home_of(&self, cell: usize) -> NodeId {
        self.bases[cell % self.bases.len()].node()
    }

    /// The word of a cell of this node.
    fn own_word(&self, cell: usize) -> Option<&Word> {
        let is_own = self.home_of(cell) == self.object.node().id();
        is_own.then(|| self.own.word(cell / self.bases.len() * 8))
    }

    fn remote(&self, cell: usize) -> RemotePtr<u64> {
        self.bases[cell % self.bases.len()].at(cell / self.bases.len())
    }
}

/// A put that is accepted. One that is refused is posted again, as long as the endpoint's timeout: the transaction holds the
/// cell's lock meanwhile, and without this put it would be done by half.
async fn put(endpoint: &Endpoint, cell: RemotePtr<u64>, value: u64) -> fabric::Result<Op<'_, ()>> {
    let deadline = endpoint.deadline();
    loop {
        match endpoint.put_value(cell, value).accepted() {
            Err(error) if error.is_refused() && endpoint.now() < deadline => endpoint.look_again(deadline).await,
            put => return put,
        }
    }
}

/// The lock of a cell: on the cell's node, unless that has none.
fn lock_of(cell: usize, nodes: usize, locks: usize) -> usize {
    let (node, word) = (cell % nodes, cell / nodes);
    match locks.saturating_sub(node).div_ceil(nodes) {
        0 => node % locks,
        there => node + word % there * nodes,
    }
}

impl Transaction<'_> {
    /// The value of a cell; what this transaction has written, if it has.
    ///
    /// # Errors
    /// The transaction has not named the cell; the cell's home is gone.
    pub async fn read(&self, cell: usize) -> Result<u64> {
        let path = self.all.object.path();
        match self.post(self.place(cell)?) {
            Read::Known(value) => Ok(value),
            Read::Posted(get) => get.await.of(path),
        }
    }

    /// The values of some cells, in this order: those of other nodes are got together.
    ///
    /// # Errors
    /// As `read`.
    pub async fn read_all(&self, cells: &[usize]) -> Result<Vec<u64>> {
        let places = cells.iter().map(|cell| self.place(*cell)).collect::<Result<Vec<_>>>()?;
        let reads: Vec<_> = places.into_iter().map(|place| self.post(place)).collect();
        let mut values = Vec::with_capacity(reads.len());
        for read in reads {
            values.push(match read {
                Read::Known(value) => value,
                Read::Posted(get) => get.await.of(self.all.object.path())?,
            });
        }
        Ok(values)
    }

    /// Writes a value, which nobody else sees before the commit.
    ///
    /// # Errors
    /// The transaction has not named the cell.
    pub fn write(&mut self, cell: usize, value: u64) -> Result<()> {
        let place = self.place(cell)?;
        self.cells[place].1 = Some(value);
        Ok(())
    }

    /// Writes what was written into the cells, and releases all locks when it is visible.
    ///
    /// # Errors
    /// The home of a cell or a lock is gone, or a node that was written to does not answer. The other cells are written
    /// nevertheless, and the other locks released.
    pub async fn commit(mut self) -> Result<()> {
        let (all, endpoint) = (self.all, self.endpoint);
        let (mut puts, mut written) = (Vec::new(), Ok(()));
        for (cell, value) in core::mem::take(&mut self.cells) {
            match (value, all.own_word(cell)) {
                (None, _) => {}
                (Some(value), Some(word)) => word.store(value),
                (Some(value), None) => match put(endpoint, all.remote(cell), value).await {
                    Ok(put) => puts.push(put),
                    Err(error) => written = written.and(Err(error).of(all.object.path())),
                },
            }
        }
        let released = self.release().await;
        for put in puts {
            // It was posted before the releases: nothing is left to be waited for.
            written = written.and(put.await.of(all.object.path()));
        }
        written.and(released)
    }

    /// Leaves all cells as they were, and releases all locks, at the same time. Dropping it releases them one by one.
    ///
    /// # Errors
    /// The home of a lock is gone. The other locks are released nevertheless.
    pub async fn abort(mut self) -> Result<()> {
        self.release().await
    }

    /// Whether a holder of one of the locks may have died in the middle of a commit, and nobody has said
    /// [`Transaction::repaired`] since: the cells under that lock may be half-written.
    pub fn is_after_death(&self) -> bool {
        self.guards.iter().any(|(_, guard)| guard.is_after_death())
    }

    /// The cells are whole: with this transaction's end the next one is told of no death. Without it, the next one is told,
    /// too.
    pub fn repaired(&mut self) {
        self.guards.iter_mut().for_each(|(_, guard)| guard.repaired());
    }

    /// Where a cell is among those that were named.
    fn place(&self, cell: usize) -> Result<usize> {
        let found = self.cells.binary_search_by_key(&cell, |(named, _)| *named);
        found.map_err(|_| ErrorKind::NotInTransaction { cell }).of(self.all.object.path())
    }

    fn post(&self, place: usize) -> Read<'_> {
        let (cell, written) = self.cells[place];
        match written.or_else(|| self.all.own_word(cell).map(Word::load)) {
            Some(value) => Read::Known(value),
            None => Read::Posted(self.endpoint.get(self.all.remote(cell))),
        }
    }

    /// Releases all locks at the same time, all that was put being visible.
    async fn release(&mut self) -> Result<()> {
        if self.fences_once() {
            // What it runs into, the releases run into again, and know what to do.
            let _ = self.endpoint.global_fence(self.all.object.node().members()).await;
        }
        let guards = core::mem::take(&mut self.guards);
        let mut result = Ok(());
        let note = |released: Result<()>| {
            if result.is_ok() {
                result = released;
            }
        };
        let window = guards.len();
        self.endpoint.each_in_window(window, guards.into_iter().map(|(_, guard)| guard.unlock()), note).await;
        result
    }

    /// Whether one fence before all releases takes fewer gets than those of the releases, each of which leaves out the node
    /// of its own lock.
    fn fences_once(&self) -> bool {
        let unflushed = || self.all.object.node().members().filter(|node| self.endpoint.has_unflushed(*node));
        let once = unflushed().count();
        let spared = |lock: usize| {
            let home = self.all.locks.home(lock);
            let orders = self.endpoint.is_ordered_before(RemotePtr::new(home, GroupKey::SIGNAL, 0));
            usize::from(orders && self.endpoint.has_unflushed(home))
        };
        self.guards.iter().map(|(lock, _)| once - spared(*lock)).sum::<usize>() > once
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_lies_on_its_cells_node_where_that_has_any() {
        for (nodes, locks) in [(1, 1), (3, 3), (3, 7), (4, 5), (2, 100)] {
            let mut used = vec![false; locks];
            for cell in 0..1000 {
                let lock = lock_of(cell, nodes, locks);
                assert_eq!(lock % nodes, cell % nodes, "cell {cell}: {nodes} nodes, {locks} locks");
                used[lock] = true;
            }
            assert!(used.into_iter().all(|used| used), "{nodes} nodes, {locks} locks");
        }
        assert_eq!([0, 1, 2, 3, 4, 5].map(|cell| lock_of(cell, 5, 2)), [0, 1, 0, 1, 0, 0]);
    }
}
