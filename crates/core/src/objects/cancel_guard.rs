//! Atomics that complete, and are undone where necessary, even if the caller drops the future.

use core::future::Future;
use core::mem;
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
    state: State<'a>,
    endpoint: &'a Endpoint,
    undo: F,
}

enum State<'a> {
    /// Complete when it was posted.
    Found(u64),
    Pending(Op<'a, u64>),
    Ended,
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
    #[inline(always)]
    pub fn new(endpoint: &'a Endpoint, op: Op<'a, u64>, undo: F) -> Self {
        let state = op.into_value().map_or_else(State::Pending, State::Found);
        CancelGuard { state, endpoint, undo }
    }
}

impl<F: FnMut(u64)> Unpin for CancelGuard<'_, F> {}

impl<F: FnMut(u64)> Future for CancelGuard<'_, F> {
    type Output = fabric::Result<u64>;

    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.state {
            State::Found(found) => {
                self.state = State::Ended;
                Poll::Ready(Ok(found))
            }
            _ => self.poll_op(cx),
        }
    }
}

impl<F: FnMut(u64)> CancelGuard<'_, F> {
    #[inline(never)]
    fn poll_op(&mut self, cx: &mut Context<'_>) -> Poll<fabric::Result<u64>> {
        // Moved out while it is polled: if the thread unwinds there, the drop has nothing to wait for.
        let State::Pending(mut op) = mem::replace(&mut self.state, State::Ended) else {
            panic!("polled after its end")
        };
        let polled = Pin::new(&mut op).poll(cx);
        if polled.is_pending() {
            self.state = State::Pending(op);
        }
        polled
    }
}

impl<F: FnMut(u64)> Drop for CancelGuard<'_, F> {
    #[inline(always)]
    fn drop(&mut self) {
        let found = match mem::replace(&mut self.state, State::Ended) {
            State::Ended => return,
            State::Found(found) => Ok(found),
            State::Pending(op) => self.endpoint.block_on(op),
        };
        if let Ok(found) = found {
            (self.undo)(found);
        }
    }
}
