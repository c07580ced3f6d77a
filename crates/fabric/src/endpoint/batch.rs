//! Puts to one node in order, and an atomic after them, behind one doorbell.

use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, ready};

use super::op::Op;
use super::{Endpoint, Inner};
use crate::endpoint::Buf;
use crate::error::{Error, ErrorKind, Result};
use crate::fabric::Span;
use crate::ptr::{NodeId, Plain, RemotePtr};

/// Puts to one node that land in the order in which they were added, behind one doorbell: a fabric may hold them back
/// until `post`. The order holds as it does without a batch: among the first three groups of a node, and within each
/// further one ([`GroupKey::class`](crate::GroupKey::class)).
///
/// ```
/// # async fn f(ep: &farfield_fabric::Endpoint, data: farfield_fabric::RemotePtr<u64>) -> farfield_fabric::Result<()> {
/// // The flag lands after the data.
/// ep.batch(data.node()).put_value(data, 42).put_value(data.at(1), 1).post().await
/// # }
/// ```
#[must_use = "a batch is sure to be on its way only after `post`"]
pub struct Batch<'e> {
    endpoint: &'e Endpoint,
    node: NodeId,
    held: Held<'e>,
    /// Those that were not complete when the next was added; each may still fail.
    earlier: Vec<Op<'e, ()>>,
    last: Option<Result<Op<'e, ()>>>,
}

/// While it lives, the lane may hold back requests to the node.
struct Held<'e>(&'e Endpoint, NodeId);

impl<'e> Held<'e> {
    fn new(endpoint: &'e Endpoint, node: NodeId) -> Held<'e> {
        if let Inner::Dyn(state) = &endpoint.inner {
            state.lane.borrow_mut().hold(node);
        }
        Held(endpoint, node)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if let Inner::Dyn(state) = &self.0.inner {
            state.lane.borrow_mut().doorbell(self.1);
        }
    }
}

impl<'e> Batch<'e> {
    pub(super) fn new(endpoint: &'e Endpoint, node: NodeId) -> Self {
        Batch { endpoint, node, held: Held::new(endpoint, node), earlier: Vec::new(), last: None }
    }

    fn add(mut self, node: NodeId, op: impl FnOnce(&'e Endpoint) -> Op<'e, ()>) -> Self {
        if node != self.node {
            self.last = Some(Err(ErrorKind::OtherNode { node, batch: self.node }.into()));
        } else if !matches!(self.last, Some(Err(_))) {
            // An earlier operation that has failed already fails the batch.
            let failed = match self.last.take() {
                Some(Ok(op)) if op.has_failed() => op.wait().err(),
                Some(Ok(op)) if op.is_pending() => {
                    self.earlier.push(op);
                    None
                }
                _ => None,
            };
            self.last = Some(match failed {
                Some(error) => Err(error),
                None => Ok(op(self.endpoint)),
            });
        }
        self
    }

    /// Adds a put of a value.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # async fn f(ep: &Endpoint, at: RemotePtr<u64>) -> Result<()> {
    /// ep.batch(at.node()).put_value(at, 42).put_value(at.at(1), 43).post().await?;
    /// # Ok(()) }
    /// ```
    pub fn put_value<T: Plain>(self, dst: RemotePtr<T>, value: T) -> Self {
        self.add(dst.node(), |endpoint| endpoint.put_value(dst, value))
    }

    /// Adds a put of shared cells, see [`Endpoint::put_from_region`].
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # async fn f(ep: &Endpoint, row: RemotePtr<u64>, ready: RemotePtr<u64>, cells: &Region) -> Result<()> {
    /// ep.batch(row.node()).put_from_region(row, cells.span(0, 64)).put_value(ready, 1).post().await?;
    /// # Ok(()) }
    /// ```
    pub fn put_from_region<T: Plain>(self, dst: RemotePtr<T>, src: Span<'_>) -> Self {
        self.add(dst.node(), |endpoint| endpoint.put_from_region(dst, src))
    }

    /// Adds a put of a buffer.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # async fn f(ep: &Endpoint, row: RemotePtr<u64>, ready: RemotePtr<u64>) -> Result<()> {
    /// let mut buf = ep.buf::<u64>(8)?;
    /// buf.fill(7);
    /// ep.batch(row.node()).put(row, &buf).put_value(ready, 1).post().await?;
    /// # Ok(()) }
    /// ```
    pub fn put<T: Plain>(self, dst: RemotePtr<T>, src: &'e Buf<'_, T>) -> Self {
        self.add(dst.node(), |endpoint| endpoint.put(dst, src))
    }

    /// Adds a compare-and-swap after the puts, and rings the doorbell. The result is the word before it, which is
    /// `expected` if it was exchanged. The puts land before the word changes: so this publishes them in one round trip.
    ///
    /// ```
    /// # use farfield_fabric::{Endpoint, RemotePtr, Result};
    /// # async fn f(ep: &Endpoint, value: RemotePtr<[u64; 4]>, version: RemotePtr<u64>, seen: u64) -> Result<()> {
    /// let found = ep.batch(value.node()).put_value(value, [1, 2, 3, 4]).cas(version, seen, seen + 1).await?;
    /// let is_published = found == seen;
    /// # Ok(()) }
    /// ```
    ///
    /// The result's errors are those of [`Batch::post`]. If a put was refused, or a pointer is to another node, the
    /// word is not exchanged.
    pub fn cas(self, word: RemotePtr<u64>, expected: u64, new: u64) -> Posted<'e, u64> {
        self.end(word.node(), |endpoint| endpoint.cas(word, expected, new))
    }

    /// As [`Batch::cas`], with a fetch-and-add.
    ///
    /// ```
    /// # use farfield_fabric::{Endpoint, RemotePtr, Result};
    /// # async fn f(ep: &Endpoint, slot: RemotePtr<u64>, filled: RemotePtr<u64>) -> Result<()> {
    /// let filled_before = ep.batch(slot.node()).put_value(slot, 42).faa(filled, 1).await?;
    /// # Ok(()) }
    /// ```
    pub fn faa(self, word: RemotePtr<u64>, addend: u64) -> Posted<'e, u64> {
        self.end(word.node(), |endpoint| endpoint.faa(word, addend))
    }

    fn end(mut self, node: NodeId, op: impl FnOnce(&'e Endpoint) -> Op<'e, u64>) -> Posted<'e, u64> {
        // The word may change only if all puts before it were accepted.
        let failed = match self.last.take() {
            _ if node != self.node => Some(ErrorKind::OtherNode { node, batch: self.node }.into()),
            Some(Err(error)) => Some(error),
            Some(Ok(put)) if put.has_failed() => put.wait().err(),
            Some(Ok(put)) if put.is_pending() => {
                self.earlier.push(put);
                None
            }
            _ => None,
        };
        let last = match failed {
            Some(error) => Last::Ended(Some(Err(error))),
            None => Last::Op(op(self.endpoint)),
        };
        drop(self.held); // the doorbell
        Posted { earlier: self.earlier, at: 0, failed: None, last }
    }

    /// Rings the doorbell. The result's errors are a pointer to another node than the batch's, or the first error of an
    /// operation.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # async fn f(ep: &Endpoint, copies: &[RemotePtr<u64>]) -> Result<()> {
    /// let write = |at: &RemotePtr<u64>| ep.batch(at.node()).put_value(*at, 42).put_value(at.at(1), 1).post();
    /// let batches: Vec<_> = copies.iter().map(write).collect(); // all are on their way
    /// for batch in batches {
    ///     batch.await?;
    /// }
    /// # Ok(()) }
    /// ```
    pub fn post(self) -> Posted<'e, ()> {
        drop(self.held);
        let last = match self.last {
            Some(Ok(op)) => Last::Op(op),
            Some(Err(error)) => Last::Ended(Some(Err(error))),
            None => Last::Ended(Some(Ok(()))),
        };
        Posted { earlier: self.earlier, at: 0, failed: None, last }
    }
}

/// The operations of a batch, which are on their way: a future that need not be awaited, as an [`Op`].
///
/// ```
/// # use farfield_fabric::*;
/// # async fn f(ep: &Endpoint, data: RemotePtr<u64>, version: RemotePtr<u64>) -> Result<()> {
/// let posted: Posted<'_, u64> = ep.batch(data.node()).put_value(data, 42).cas(version, 0, 1);
/// println!("posted");
/// let is_published = posted.await? == 0;
/// # Ok(()) }
/// ```
#[must_use = "the result of the operations, or their failure, is only seen by waiting for it"]
pub struct Posted<'e, T> {
    earlier: Vec<Op<'e, ()>>,
    /// How many of the earlier ones have ended.
    at: usize,
    failed: Option<Error>,
    last: Last<'e, T>,
}

enum Last<'e, T> {
    Op(Op<'e, T>),
    Ended(Option<Result<T>>),
}

// Nothing in it is pinned.
impl<T> Unpin for Posted<'_, T> {}

impl<T: Plain> Future for Posted<'_, T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<T>> {
        let Posted { earlier, at, failed, last } = &mut *self;
        while let Some(op) = earlier.get_mut(*at) {
            if let Err(error) = ready!(Pin::new(op).poll(cx)) {
                failed.get_or_insert(error);
            }
            *at += 1;
        }
        let last = match last {
            Last::Op(op) => ready!(Pin::new(op).poll(cx)),
            Last::Ended(result) => result.take().expect("not polled after its end"),
        };
        Poll::Ready(failed.take().map_or(last, Err))
    }
}
