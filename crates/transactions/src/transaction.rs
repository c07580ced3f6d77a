//! A transaction: what it reads and writes, and how it ends.

use core::future::Future;

use farfield_core::toolkit::{ErrorContext, RefusedPause, Rest, Timing};
use farfield_core::{Error, Result};
use farfield_fabric::{self as fabric, Attempt, Endpoint, GroupKey, Kept, NodeId, Op, RemotePtr, Together};
use farfield_locks::{LockGuard, TableGuard};

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
    /// The held locks, with their homes.
    pub(crate) guards: Few<(NodeId, TableGuard<'a>)>,
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

/// The releases of a transaction's locks that have to wait, and the first error of the others.
struct Releases<R> {
    rests: Few<R>,
    result: Result<()>,
}

impl<R: Rest<()>> Releases<R> {
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
            Ok(match parts.post(parts.place(cell)?) {
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
        let places = cells.iter().map(|cell| parts.place(*cell)).collect::<Result<Vec<_>>>()?;
        let reads: Vec<_> = places.into_iter().map(|place| parts.post(place)).collect();
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
        let place = self.0.place(cell)?;
        self.0.cells[place].written = Some(value);
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
            // A measured commit takes the path of one that has to wait.
            let timing = if meter.is_on() { meter.start(endpoint, COMMIT) } else { Timing::OFF };
            let together = endpoint.together();
            let mut writing = Writing { next: 0, refused: None, puts: Few::new(), result: Ok(()), together };
            parts.writes(&mut writing);
            let waits = meter.is_on() || writing.refused.is_some() || parts.fences_once();
            let releases = if waits { None } else { Some(parts.begin_releases(&writing.together)) };
            match releases {
                Some(Releases { rests, result }) if rests.is_empty() && writing.puts.is_empty() => {
                    writing.result.and(result).map(Ok)
                }
                releases => Ok(Err(endpoint.boxed(self.commit_on(writing, releases, timing)))),
            }
        })
    }

    /// [`Transaction::commit`] where it has to wait.
    async fn commit_on<R>(
        mut self,
        mut writing: Writing<'a>,
        releases: Option<Releases<R>>,
        timing: Timing,
    ) -> Result<()>
    where
        R: Rest<()>,
    {
        let parts = &mut *self.0;
        let released = match releases {
            Some(releases) => releases.end(parts.endpoint).await,
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
            let releases = parts.begin_releases(&endpoint.together());
            match releases {
                Releases { rests, result } if rests.is_empty() => result.map(Ok),
                releases => Ok(Err(endpoint.boxed(self.abort_on(Some(releases))))),
            }
        })
    }

    async fn abort_on<R>(mut self, releases: Option<Releases<R>>) -> Result<()>
    where
        R: Rest<()>,
    {
        match releases {
            Some(releases) => releases.end(self.0.endpoint).await,
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
        self.0.guards.iter().any(|(_, guard)| guard.is_poisoned())
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
        self.0.guards.iter_mut().for_each(|(_, guard)| guard.clear_poison());
    }
}

impl<'a> Parts<'a> {
    async fn got(&self, get: Op<'_, u64>) -> Result<u64> {
        get.await.of(self.all.object.path())
    }

    /// Posts the writes that are still to be posted, until one is refused.
    #[inline(always)]
    fn writes(&self, writing: &mut Writing<'a>) {
        while let Some(Cell { at, written, .. }) = self.cells.get(writing.next) {
            writing.next += 1;
            let Some(value) = *written else { continue };
            writing.together.next();
            match self.all.word(*at) {
                Ok(word) => word.store(value),
                Err(to) => match self.endpoint.put_value(to, value).into_value() {
                    Ok(()) => {}
                    Err(put) => match put.accepted() {
                        Err(error) if error.is_refused() => {
                            writing.refused = Some((to, value));
                            return;
                        }
                        accepted => self.note(writing, accepted),
                    },
                },
            }
        }
    }

    fn note(&self, writing: &mut Writing<'a>, accepted: fabric::Result<Op<'a, ()>>) {
        match accepted {
            Ok(put) => writing.puts.push(put),
            Err(error) if writing.result.is_ok() => writing.result = Err(error).of(self.all.object.path()),
            Err(_) => {}
        }
    }

    /// The index of a cell among the named ones.
    #[inline(always)]
    fn place(&self, cell: usize) -> Result<usize> {
        // A search is not worth its while among few.
        let found = match self.cells.len() {
            0..=4 => self.cells.iter().position(|named| named.number == cell),
            _ => self.cells.binary_search_by_key(&cell, |named| named.number).ok(),
        };
        match found {
            Some(place) => Ok(place),
            None => Err(self.not_named(cell)),
        }
    }

    /// The value of a named cell, if it is here, or else the get that has been posted for it.
    #[inline(always)]
    fn post(&self, place: usize) -> core::result::Result<u64, Op<'_, u64>> {
        match self.cells[place] {
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
        let releases = self.begin_releases(&self.endpoint.together());
        releases.end(self.endpoint).await
    }

    /// Begins to release all locks, the last one first.
    #[inline(never)]
    fn begin_releases(&mut self, together: &Together<'_>) -> Releases<impl Rest<()> + use<'a>> {
        let mut releases = Releases { rests: Few::new(), result: Ok(()) };
        while let Some((_, guard)) = self.guards.pop() {
            together.next();
            match guard.begin_unlock() {
                Ok(Ok(())) => {}
                Ok(Err(rest)) => releases.rests.push(rest),
                Err(error) => releases.note(Err(error)),
            }
        }
        together.next();
        releases
    }

    /// Whether one fence before all releases needs fewer gets than the fences of the releases, each of which exempts
    /// the node of its own lock.
    fn fences_once(&self) -> bool {
        let unflushed = || self.all.object.node().members().filter(|node| self.endpoint.has_unflushed(*node));
        if self.guards.len() < 2 || self.endpoint.owes_no_fence() {
            return false;
        }
        // As in a transfer within one other node.
        if self.guards.iter().all(|(home, _)| self.endpoint.owes_no_fence_but(*home)) {
            return false;
        }
        let once = unflushed().count();
        let spared = |home: NodeId| {
            let orders = self.endpoint.is_ordered_before(RemotePtr::new(home, GroupKey::SIGNAL, 0));
            usize::from(orders && self.endpoint.has_unflushed(home))
        };
        self.guards.iter().map(|(home, _)| once - spared(*home)).sum::<usize>() > once
    }
}
