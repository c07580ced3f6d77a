//! A transaction: what it reads and writes, and how it ends.

use core::future::Future;
use core::mem::ManuallyDrop;

use farfield_core::toolkit::{ErrorContext, RefusedPause, Rest, Timing};
use farfield_core::{Error, Result};
use farfield_fabric::{self as fabric, Attempt, Endpoint, GroupKey, Kept, NodeId, Op, RemotePtr, Together};
use farfield_locks::{LockGuard, TableGuard};

use crate::order::Lock;
use crate::{COMMIT, Few, NotInTransaction, Transactions};

/// A set of cells, with their locks held. Dropping the transaction discards its writes and releases the locks.
///
/// ```
/// # use farfield::{LockKind::ALock, LockOptions, TransactionOptions, Transactions};
/// # let node = farfield::Node::builder().session("doc-tx-dropped").start()?;
/// # let (ep, lock) = (node.endpoint()?, LockOptions::new(ALock));
/// # let cells = Transactions::open(&node, "cells", TransactionOptions { cells: 10, locks: 4, lock })?;
/// let mut transaction = ep.block_on(cells.begin(&ep, &[3]))?;
/// transaction.write(3, 30)?;
/// drop(transaction); // nothing was written
/// assert_eq!(ep.block_on(ep.block_on(cells.begin(&ep, &[3]))?.read(3))?, 0);
/// # Ok::<(), farfield::Error>(())
/// ```
#[must_use = "what is not committed is not written, and the locks are released when it is dropped"]
pub struct Transaction<'a>(pub(crate) Kept<'a, Parts<'a>>);

/// What a transaction holds.
pub(crate) struct Parts<'a> {
    pub(crate) all: &'a Transactions,
    pub(crate) endpoint: &'a Endpoint,
    /// The locks in the order of acquisition.
    pub(crate) locks: Few<Lock>,
    /// The first of them, as far as they are held.
    pub(crate) guards: Few<TableGuard<'a>>,
    /// The named cells in ascending order.
    pub(crate) cells: Few<Cell>,
}

/// A named cell.
#[derive(Clone, Copy)]
pub(crate) struct Cell {
    pub(crate) number: usize,
    pub(crate) at: RemotePtr<u64>,
    /// The pending write.
    pub(crate) written: Option<u64>,
}

/// Repeats a refused put until it is accepted, or until the endpoint's timeout: the transaction holds the cell's lock
/// meanwhile, and would be half done without this put.
async fn repeat_put(endpoint: &Endpoint, cell: RemotePtr<u64>, value: u64) -> fabric::Result<Op<'_, ()>> {
    let put = || endpoint.put_value(cell, value).accepted();
    RefusedPause::default().attempts(endpoint, endpoint.deadline(), put).await
}

/// The writes of a commit.
struct Writing<'a> {
    /// The next cell of the transaction.
    next: usize,
    /// A write that was refused, to be repeated before the next one.
    refused: Option<(RemotePtr<u64>, u64)>,
    puts: Few<Op<'a, ()>>,
    result: Result<()>,
    /// All are posted together, and the releases with them.
    together: Together<'a>,
}

impl<'a> Writing<'a> {
    /// None of the writes from one on is posted.
    fn from(next: usize, together: Together<'a>) -> Writing<'a> {
        Writing { next, refused: None, puts: Few::new(), result: Ok(()), together }
    }
}

/// The releases of a transaction's locks that have to wait, and the first error of the others.
struct Releases<R> {
    rests: Few<R>,
    result: Result<()>,
}

/// A commit that has to wait.
struct Committing<'a, R> {
    writing: Writing<'a>,
    /// None if they come behind a wait: for a refused write, or for a fence before all of them. None are left where all
    /// have ended at once.
    releases: Option<Kept<'a, Releases<R>>>,
}

impl<R: Rest<()>> Releases<R> {
    /// Adds a release that has to wait, or an error.
    #[cold]
    #[inline(never)]
    fn add<'a>(releases: &mut Option<Kept<'a, Self>>, endpoint: &'a Endpoint, released: Result<R>) {
        let none = || endpoint.kept(|| Releases { rests: Few::new(), result: Ok(()) });
        let releases = releases.get_or_insert_with(none);
        match released {
            Ok(rest) => releases.rests.push(rest),
            Err(error) => releases.note(Err(error)),
        }
    }

    fn note(&mut self, released: Result<()>) {
        if self.result.is_ok() {
            self.result = released;
        }
    }

    /// Waits for them at the same time.
    async fn end(mut self, endpoint: &Endpoint) -> Result<()> {
        let rests = core::mem::take(&mut self.rests);
        endpoint.each_in_window(rests.len(), rests, |released| self.note(released)).await;
        self.result
    }
}

impl<'a> Transaction<'a> {
    /// The value of a cell, or the value that this transaction has written to it.
    ///
    /// ```
    /// # use farfield::{LockKind::ALock, LockOptions, TransactionOptions, Transactions};
    /// # let (node, lock) = (farfield::Node::builder().start()?, LockOptions::new(ALock));
    /// # let cells = Transactions::open(&node, "cells", TransactionOptions { cells: 10, locks: 4, lock })?;
    /// # let ep = node.endpoint()?;
    /// let transaction = ep.block_on(cells.begin(&ep, &[3]))?;
    /// assert_eq!(ep.block_on(transaction.read(3))?, 0);
    /// assert!(ep.block_on(transaction.read(4)).is_err()); // it does not hold the lock of this one
    /// # drop(transaction); Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// The transaction has not named the cell; or the cell's home is unreachable.
    pub fn read(&self, cell: usize) -> impl Future<Output = Result<u64>> {
        Attempt::new(move || {
            let parts = &*self.0;
            Ok(match parts.post(parts.find(cell)?) {
                Ok(value) => Ok(value),
                Err(get) => get.into_value().map_err(|get| parts.endpoint.boxed(parts.got(get))),
            })
        })
    }

    /// The values of some cells, in the given order. Those of other nodes are read by gets that are posted together.
    ///
    /// ```
    /// # use farfield::{LockKind::ALock, LockOptions, TransactionOptions, Transactions};
    /// # let node = farfield::Node::builder().session("doc-lib-35").start()?;
    /// # let (ep, lock) = (node.endpoint()?, LockOptions::new(ALock));
    /// # let cells = Transactions::open(&node, "cells", TransactionOptions { cells: 10, locks: 4, lock })?;
    /// let transaction = ep.block_on(cells.begin(&ep, &[3, 7]))?;
    /// let sum: u64 = ep.block_on(transaction.read_all(&[3, 7]))?.iter().sum(); // in one round trip
    /// assert_eq!(sum, 0);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As `read`.
    pub async fn read_all(&self, cells: &[usize]) -> Result<Vec<u64>> {
        let parts = &*self.0;
        let named = cells.iter().map(|cell| parts.find(*cell)).collect::<Result<Vec<_>>>()?;
        let reads: Vec<_> = named.into_iter().map(|cell| parts.post(cell)).collect();
        let mut values = Vec::with_capacity(reads.len());
        for read in reads {
            values.push(match read {
                Ok(value) => value,
                Err(get) => parts.got(get).await?,
            });
        }
        Ok(values)
    }

    /// Writes a value. It is not visible outside the transaction before the commit.
    ///
    /// ```
    /// # use farfield::{LockKind::ALock, LockOptions, TransactionOptions, Transactions};
    /// # let (node, lock) = (farfield::Node::builder().start()?, LockOptions::new(ALock));
    /// # let cells = Transactions::open(&node, "cells", TransactionOptions { cells: 10, locks: 4, lock })?;
    /// # let ep = node.endpoint()?;
    /// let mut transaction = ep.block_on(cells.begin(&ep, &[3]))?;
    /// transaction.write(3, 7)?;
    /// assert_eq!(ep.block_on(transaction.read(3))?, 7); // its own write
    /// ep.block_on(transaction.commit())?; // now all see it
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// The transaction has not named the cell.
    pub fn write(&mut self, cell: usize, value: u64) -> Result<()> {
        let parts = &mut *self.0;
        let cells = &mut parts.cells[..];
        match place(cells, cell) {
            Some(place) => cells[place].written = Some(value),
            None => return Err(parts.not_named(cell)),
        }
        Ok(())
    }

    /// Writes the pending values into the cells, and releases all locks when the values are visible.
    ///
    /// ```
    /// # use farfield::{LockKind::ALock, LockOptions, TransactionOptions, Transactions};
    /// # let node = farfield::Node::builder().session("doc-lib-36").start()?;
    /// # let (ep, lock) = (node.endpoint()?, LockOptions::new(ALock));
    /// # let cells = Transactions::open(&node, "cells", TransactionOptions { cells: 10, locks: 4, lock })?;
    /// let mut transaction = ep.block_on(cells.begin(&ep, &[3]))?;
    /// transaction.write(3, 30)?;
    /// ep.block_on(transaction.commit())?;
    /// let again = ep.block_on(cells.begin(&ep, &[3]))?;
    /// assert_eq!(ep.block_on(again.read(3))?, 30);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// The home of a cell or a lock is unreachable, or a node that was written to does not answer. The other cells are
    /// written nevertheless, and the other locks released.
    pub fn commit(mut self) -> impl Future<Output = Result<()>> {
        Attempt::new(move || {
            let parts = &mut *self.0;
            let (meter, endpoint) = (parts.all.object.meter(), parts.endpoint);
            let timing = if meter.is_on() { meter.start(endpoint, COMMIT) } else { Timing::OFF };
            match parts.commit_at_once() {
                None => Ok(Ok(())),
                Some(committing) => Ok(Err(endpoint.boxed(self.commit_on(committing, timing)))),
            }
        })
    }

    /// [`Transaction::commit`] where it has to wait.
    async fn commit_on<R>(mut self, committing: Committing<'a, R>, timing: Timing) -> Result<()>
    where
        R: Rest<()>,
    {
        let Committing { mut writing, releases } = committing;
        let parts = &mut *self.0;
        let released = match releases {
            Some(releases) => releases.into_inner().end(parts.endpoint).await,
            None => {
                while let Some((to, value)) = writing.refused.take() {
                    let accepted = repeat_put(parts.endpoint, to, value).await;
                    parts.note(&mut writing, accepted);
                    parts.writes(&mut writing);
                }
                writing.together.next();
                parts.release().await
            }
        };
        let mut written = writing.result;
        while let Some(put) = writing.puts.pop() {
            // It was posted before the releases, so no wait is left.
            written = written.and(put.await.of(parts.all.object.path()));
        }
        let committed = written.and(released);
        timing.end(parts.endpoint, &committed);
        committed
    }

    /// Discards all writes, and releases all locks at the same time. Dropping the transaction releases them one by one.
    ///
    /// ```
    /// # use farfield::{LockKind::ALock, LockOptions, TransactionOptions, Transactions};
    /// # let node = farfield::Node::builder().session("doc-lib-37").start()?;
    /// # let (ep, lock) = (node.endpoint()?, LockOptions::new(ALock));
    /// # let cells = Transactions::open(&node, "cells", TransactionOptions { cells: 10, locks: 4, lock })?;
    /// let mut transaction = ep.block_on(cells.begin(&ep, &[3]))?;
    /// transaction.write(3, 30)?;
    /// ep.block_on(transaction.abort())?; // nothing was written
    /// let again = ep.block_on(cells.begin(&ep, &[3]))?;
    /// assert_eq!(ep.block_on(again.read(3))?, 0);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// The home of a lock is unreachable. The other locks are released nevertheless.
    pub fn abort(mut self) -> impl Future<Output = Result<()>> {
        Attempt::new(move || {
            let parts = &mut *self.0;
            let endpoint = parts.endpoint;
            if parts.fences_once() {
                return Ok(Err(endpoint.boxed(self.abort_on(None))));
            }
            match parts.begin_releases(&endpoint.together()) {
                None => Ok(Ok(())),
                releases => Ok(Err(endpoint.boxed(self.abort_on(releases)))),
            }
        })
    }

    async fn abort_on<R>(mut self, releases: Option<Kept<'a, Releases<R>>>) -> Result<()>
    where
        R: Rest<()>,
    {
        match releases {
            Some(releases) => releases.into_inner().end(self.0.endpoint).await,
            None => self.0.release().await,
        }
    }

    /// Whether a holder of one of the locks may have died in the middle of a commit, and
    /// [`Transaction::clear_poison`] was not called since. If so, the cells under that lock may be half-written.
    ///
    /// ```
    /// # use farfield::{LockKind::ALock, LockOptions, TransactionOptions, Transactions};
    /// # let (node, lock) = (farfield::Node::builder().start()?, LockOptions::new(ALock));
    /// # let cells = Transactions::open(&node, "cells", TransactionOptions { cells: 10, locks: 4, lock })?;
    /// # let ep = node.endpoint()?;
    /// let transaction = ep.block_on(cells.begin(&ep, &[3]))?;
    /// assert!(!transaction.is_poisoned()); // no node died while it held the lock
    /// # drop(transaction); Ok::<(), farfield::Error>(())
    /// ```
    pub fn is_poisoned(&self) -> bool {
        self.0.guards.iter().any(LockGuard::is_poisoned)
    }

    /// Declares that the cells are whole: once this transaction ends, later ones are not warned of a death. Without
    /// this call, the next one is warned, too.
    ///
    /// ```
    /// # use farfield::{LockKind::ALock, LockOptions, TransactionOptions, Transactions};
    /// # let node = farfield::Node::builder().session("doc-tx-poisoned").start()?;
    /// # let (ep, lock) = (node.endpoint()?, LockOptions::new(ALock));
    /// # let cells = Transactions::open(&node, "cells", TransactionOptions { cells: 10, locks: 4, lock })?;
    /// let mut transaction = ep.block_on(cells.begin(&ep, &[3]))?;
    /// if transaction.is_poisoned() {
    ///     transaction.write(3, 0)?; // whatever makes the cells whole
    ///     transaction.clear_poison();
    /// }
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn clear_poison(&mut self) {
        self.0.guards.iter_mut().for_each(LockGuard::clear_poison);
    }
}

impl<'a> Parts<'a> {
    async fn got(&self, get: Op<'_, u64>) -> Result<u64> {
        get.await.of(self.all.object.path())
    }

    /// Commits where nothing has to wait. Otherwise returns the rest of the commit.
    #[inline(never)]
    fn commit_at_once(&mut self) -> Option<Committing<'a, impl Rest<()> + use<'a>>> {
        let together = self.endpoint.together();
        if self.all.object.meter().is_on() {
            // A measured commit takes the path of one that has to wait.
            return Some(self.commit_rest(Writing::from(0, together), None, Parts::begin_releases));
        }
        for (place, cell) in self.cells.iter().enumerate() {
            if let Err(put) = self.write(cell, &together) {
                let (writing, put) = (Writing::from(place + 1, together), Some((*cell, put)));
                return Some(self.commit_rest(writing, put, Parts::begin_releases));
            }
        }
        if self.fences_once() {
            let writing = Writing::from(self.cells.len(), together);
            return Some(Committing { writing, releases: None });
        }
        match self.begin_releases(&together) {
            None => None,
            releases => Some(Committing { writing: Writing::from(self.cells.len(), together), releases }),
        }
    }

    /// The rest of a commit from a write on. The put before that one has not ended at once.
    #[cold]
    #[inline(never)]
    fn commit_rest<R>(
        &mut self,
        mut writing: Writing<'a>,
        put: Option<(Cell, Op<'a, ()>)>,
        release: impl FnOnce(&mut Parts<'a>, &Together<'a>) -> Option<Kept<'a, Releases<R>>>,
    ) -> Committing<'a, R> {
        if let Some((cell, put)) = put {
            self.note_put(&mut writing, &cell, put);
        }
        self.writes(&mut writing);
        let waits = self.all.object.meter().is_on() || writing.refused.is_some() || self.fences_once();
        let releases = if waits { None } else { release(self, &writing.together) };
        Committing { writing, releases }
    }

    /// Posts the write to a cell, if there is one. Returns the put if it has not ended at once.
    #[inline(always)]
    fn write(&self, cell: &Cell, together: &Together<'_>) -> core::result::Result<(), Op<'a, ()>> {
        let Some(value) = cell.written else { return Ok(()) };
        together.next();
        match self.all.word(cell.at) {
            Ok(word) => word.store(value),
            Err(to) => return self.endpoint.put_value(to, value).into_value(),
        }
        Ok(())
    }

    /// Posts the writes that are still to be posted, until one is refused.
    fn writes(&self, writing: &mut Writing<'a>) {
        while writing.refused.is_none()
            && let Some(cell) = self.cells.get(writing.next)
        {
            writing.next += 1;
            if let Err(put) = self.write(cell, &writing.together) {
                self.note_put(writing, cell, put);
            }
        }
    }

    fn note_put(&self, writing: &mut Writing<'a>, cell: &Cell, put: Op<'a, ()>) {
        match (put.accepted(), cell.written) {
            (Err(error), Some(value)) if error.is_refused() => writing.refused = Some((cell.at, value)),
            (accepted, _) => self.note(writing, accepted),
        }
    }

    fn note(&self, writing: &mut Writing<'a>, accepted: fabric::Result<Op<'a, ()>>) {
        match accepted {
            Ok(put) => writing.puts.push(put),
            Err(error) if writing.result.is_ok() => writing.result = Err(error).of(self.all.object.path()),
            Err(_) => {}
        }
    }

    /// A named cell.
    #[inline(always)]
    fn find(&self, cell: usize) -> Result<&Cell> {
        let cells = &self.cells[..];
        place(cells, cell).map(|place| &cells[place]).ok_or_else(|| self.not_named(cell))
    }

    /// The value of a named cell, if it is here, or else the get that has been posted for it.
    #[inline(always)]
    fn post(&self, cell: &Cell) -> core::result::Result<u64, Op<'_, u64>> {
        match *cell {
            Cell { written: Some(written), .. } => Ok(written),
            Cell { at, .. } => match self.all.word(at) {
                Ok(word) => Ok(word.load()),
                Err(from) => Err(self.endpoint.get(from)),
            },
        }
    }

    #[cold]
    #[inline(never)]
    fn not_named(&self, cell: usize) -> Error {
        Error::custom(NotInTransaction { cell }).of(self.all.object.path())
    }

    /// Releases all locks at the same time, once all puts are visible.
    async fn release(&mut self) -> Result<()> {
        if self.fences_once() {
            // If this fails, the releases fail in the same way, and handle the error.
            let _ = self.endpoint.global_fence(self.all.object.node().members()).await;
        }
        // Not in the `match`: they are posted together, and awaited afterwards.
        let releases = self.begin_releases(&self.endpoint.together());
        match releases {
            Some(releases) => releases.into_inner().end(self.endpoint).await,
            None => Ok(()),
        }
    }

    /// Begins to release all locks, the last one first. Returns those that have to wait, and the first error of others.
    #[inline(never)]
    fn begin_releases(&mut self, together: &Together<'_>) -> Option<Kept<'a, Releases<impl Rest<()> + use<'a>>>> {
        let mut releases = None;
        while let Some(guard) = self.guards.last_mut() {
            together.next();
            match guard.begin_release() {
                Ok(Ok(())) => {}
                Ok(Err(rest)) => Releases::add(&mut releases, self.endpoint, Ok(rest)),
                Err(error) => Releases::add(&mut releases, self.endpoint, Err(error)),
            }
            let _released = ManuallyDrop::new(self.guards.pop()); // it holds nothing
        }
        together.next();
        releases
    }

    /// Whether one fence before all releases needs fewer gets than the fences of the releases, each of which exempts
    /// the node of its own lock.
    #[inline(always)]
    fn fences_once(&self) -> bool {
        let held = self.guards.len();
        if held < 2 || self.endpoint.owes_no_fence() {
            return false;
        }
        // As in a transfer within one other node.
        !self.locks.iter().take(held).all(|lock| self.endpoint.owes_no_fence_but(lock.home))
            && self.needs_fewer_gets_once()
    }

    #[cold]
    #[inline(never)]
    fn needs_fewer_gets_once(&self) -> bool {
        let once = self.all.object.node().members().filter(|node| self.endpoint.has_unflushed(*node)).count();
        let spared = |home: NodeId| {
            let orders = self.endpoint.is_ordered_before(RemotePtr::new(home, GroupKey::SIGNAL, 0));
            usize::from(orders && self.endpoint.has_unflushed(home))
        };
        self.locks.iter().take(self.guards.len()).map(|lock| once - spared(lock.home)).sum::<usize>() > once
    }
}

/// The place of a cell among the named ones.
#[inline(always)]
fn place(cells: &[Cell], cell: usize) -> Option<usize> {
    // A search is not worth its while among few.
    match cells.len() {
        0..=4 => cells.iter().position(|named| named.number == cell),
        _ => cells.binary_search_by_key(&cell, |named| named.number).ok(),
    }
}
