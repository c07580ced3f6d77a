//! Atomics that complete, and are undone where necessary, even if the caller drops the future.

use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};

use farfield_fabric::{self as fabric, Endpoint, Op};

/// An atomic that is undone if its future is dropped. A drop before completion blocks until the atomic completes, which
/// takes at most one round trip.
///
/// ```
/// # fn main() -> farfield::Result<()> {
/// use farfield::fabric::GroupKey;
/// use farfield::toolkit::CancelGuard;
/// let node = farfield::Node::builder().session("doc-settle").start()?;
/// let (ep, words) = (node.endpoint()?, node.alloc_words(GroupKey::DATA, 1, &[])?);
/// let flag = words.remote(0);
/// // If the caller drops the future after the exchange, the flag is cleared again.
/// let take = CancelGuard::new(&ep, ep.cas(flag, 0, 1), |found| {
///     if found == 0 {
///         let _ = ep.faa(flag, u64::MAX).detach();
///     }
/// });
/// assert_eq!(ep.block_on(take)?, 0);
/// # Ok(()) }
/// ```
pub struct CancelGuard<'a, F: FnMut(u64)> {
    op: Option<Op<'a, u64>>,
    endpoint: &'a Endpoint,
    undo: F,
}

impl<'a, F: FnMut(u64)> CancelGuard<'a, F> {
    /// Awaits `op`; `undo` gets the word that the atomic has found, if the future is dropped.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let node = farfield::Node::builder().start()?;
    /// # let (ep, words) = (node.endpoint()?, node.alloc_words(farfield::fabric::GroupKey::DATA, 1, &[])?);
    /// # let flag = words.remote(0);
    /// use farfield::toolkit::CancelGuard;
    /// let take = CancelGuard::new(&ep, ep.cas(flag, 0, 1), |_| unreachable!("it was not dropped"));
    /// assert_eq!(ep.block_on(take)?, 0);
    /// # Ok(()) }
    /// ```
    pub fn new(endpoint: &'a Endpoint, op: Op<'a, u64>, undo: F) -> Self {
        CancelGuard { op: Some(op), endpoint, undo }
    }
}

impl<F: FnMut(u64)> Unpin for CancelGuard<'_, F> {}

impl<F: FnMut(u64)> Future for CancelGuard<'_, F> {
    type Output = fabric::Result<u64>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // Moved out while it is polled: if the thread unwinds there, the drop has nothing to wait for.
        let mut op = self.op.take().expect("polled after its end");
        let polled = Pin::new(&mut op).poll(cx);
        if polled.is_pending() {
            self.op = Some(op);
        }
        polled
    }
}

impl<F: FnMut(u64)> Drop for CancelGuard<'_, F> {
    fn drop(&mut self) {
        if let Some(op) = self.op.take()
            && let Ok(found) = self.endpoint.block_on(op)
        {
            (self.undo)(found);
        }
    }
}
