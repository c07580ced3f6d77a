//! Puts to one node in order, and an atomic after them, behind one doorbell.

use super::{Endpoint, Inner};
use crate::endpoint::Buf;
use crate::error::{ErrorKind, Result};
use crate::fabric::Span;
use crate::op::Op;
use crate::ptr::{NodeId, Plain, RemotePtr};

/// Puts to one node that land in the order in which they were added, behind one doorbell: a fabric may hold them back
/// until `post`.
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
    pub fn put_value<T: Plain>(self, dst: RemotePtr<T>, value: T) -> Self {
        self.add(dst.node(), |endpoint| endpoint.put_value(dst, value))
    }

    /// Adds a put of shared cells, see [`Endpoint::put_from_region`].
    pub fn put_from_region<T: Plain>(self, dst: RemotePtr<T>, src: Span<'_>) -> Self {
        self.add(dst.node(), |endpoint| endpoint.put_from_region(dst, src))
    }

    /// Adds a put of a buffer.
    pub fn put<T: Plain>(self, dst: RemotePtr<T>, src: &'e Buf<'_, T>) -> Self {
        self.add(dst.node(), |endpoint| endpoint.put(dst, src))
    }

    /// Adds a compare-and-swap after the puts, rings the doorbell and waits for all operations. Returns the word before it,
    /// which is `expected` if it was exchanged. The puts land before the word changes: so this publishes them
    /// in one round trip.
    ///
    /// ```
    /// # use farfield_fabric::{Endpoint, RemotePtr, Result};
    /// # async fn f(ep: &Endpoint, value: RemotePtr<[u64; 4]>, version: RemotePtr<u64>, seen: u64) -> Result<()> {
    /// let found = ep.batch(value.node()).put_value(value, [1, 2, 3, 4]).cas(version, seen, seen + 1).await?;
    /// let is_published = found == seen;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Batch::post`]. If a put was refused, or a pointer is to another node, the word is not exchanged.
    pub async fn cas(self, word: RemotePtr<u64>, expected: u64, new: u64) -> Result<u64> {
        self.end(word.node(), |endpoint| endpoint.cas(word, expected, new)).await
    }

    /// As [`Batch::cas`], with a fetch-and-add.
    ///
    /// # Errors
    /// As [`Batch::cas`].
    pub async fn faa(self, word: RemotePtr<u64>, addend: u64) -> Result<u64> {
        self.end(word.node(), |endpoint| endpoint.faa(word, addend)).await
    }

    async fn end(mut self, node: NodeId, op: impl FnOnce(&'e Endpoint) -> Op<'e, u64>) -> Result<u64> {
        if node != self.node {
            self.last = Some(Err(ErrorKind::OtherNode { node, batch: self.node }.into()));
        } else if let Some(Ok(last)) = &self.last
            && last.has_failed()
        {
            self.last = self.last.take().map(|last| last.and_then(|op| Err(op.wait().expect_err("it has failed"))));
        }
        let op = match &self.last {
            Some(Err(_)) => None,
            _ => Some(op(self.endpoint)),
        };
        let posted = self.post().await;
        match op {
            Some(op) => posted.and(op.await),
            None => posted.map(|()| unreachable!("the last operation has failed")),
        }
    }

    /// Rings the doorbell and waits for all operations.
    ///
    /// # Errors
    /// A pointer to another node than the batch's, or what an operation ran into.
    pub async fn post(self) -> Result<()> {
        drop(self.held);
        let mut first = Ok(());
        for op in self.earlier {
            first = first.and(op.await);
        }
        let last = match self.last {
            None => Ok(()),
            Some(Err(error)) => Err(error),
            Some(Ok(op)) => op.await,
        };
        first.and(last)
    }
}
