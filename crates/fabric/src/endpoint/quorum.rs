//! Waiting for a quorum of several operations.

use core::future::{Future, poll_fn};
use core::pin::Pin;
use core::task::Poll;

use super::Endpoint;
use crate::error::Result;

/// Operations of which a quorum was awaited: see [`Endpoint::quorum`].
///
/// ```
/// # use farfield_fabric::*;
/// # async fn f(ep: &Endpoint, copies: &[RemotePtr<u64>]) -> () {
/// let writes = copies.iter().map(|copy| ep.put_value(*copy, 7));
/// let written: Quorum<(), _> = ep.quorum(writes, copies.len() / 2 + 1).await;
/// println!("{} have it, {} are left", written.succeeded(), written.into_pending().count());
/// # }
/// ```
pub struct Quorum<T, F> {
    succeeded: usize,
    ended: Vec<(usize, Result<T>)>,
    pending: Vec<(usize, F)>,
}

impl<T, F> Quorum<T, F> {
    /// How many operations have succeeded, of those that count: fewer than were needed if too many have failed.
    ///
    /// ```
    /// # use farfield_fabric::Quorum;
    /// # fn f<F>(written: &Quorum<(), F>, copies: usize) {
    /// let is_decided = written.succeeded() > copies / 2;
    /// # }
    /// ```
    pub fn succeeded(&self) -> usize {
        self.succeeded
    }

    /// The results so far, in the order in which the operations ended, each with the index of its operation.
    ///
    /// ```
    /// # use farfield_fabric::Quorum;
    /// # fn f<F>(read: &Quorum<u64, F>) {
    /// let newest = read.ended().iter().filter_map(|(_, version)| version.as_ref().ok()).max();
    /// # }
    /// ```
    pub fn ended(&self) -> &[(usize, Result<T>)] {
        &self.ended
    }

    /// The operations that have not ended, each with its index. To drop them does not cancel them.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # async fn f(written: Quorum<(), Op<'_, ()>>) -> Result<()> {
    /// for (copy, put) in written.into_pending() {
    ///     println!("copy {copy} is late");
    ///     put.await?;
    /// }
    /// # Ok(()) }
    /// ```
    pub fn into_pending(self) -> impl Iterator<Item = (usize, F)> {
        self.pending.into_iter()
    }
}

impl Endpoint {
    /// Waits until `needed` of the operations have succeeded, or so many have failed that this cannot happen any more.
    /// Those that have not ended continue. A replicated write waits for a majority in this way, and does not wait for
    /// the slowest node.
    ///
    /// ```
    /// # use farfield_fabric::{Endpoint, RemotePtr};
    /// # async fn f(ep: &Endpoint, copies: &[RemotePtr<u64>]) -> bool {
    /// let majority = copies.len() / 2 + 1;
    /// let written = ep.quorum(copies.iter().map(|copy| ep.put_value(*copy, 7)), majority).await;
    /// written.succeeded() >= majority
    /// # }
    /// ```
    ///
    /// The operations are already on their way: [`Op`](crate::Op)s, [`Posted`](crate::Posted) batches, or other
    /// futures.
    pub async fn quorum<T, F>(&self, ops: impl IntoIterator<Item = F>, needed: usize) -> Quorum<T, F>
    where
        F: Future<Output = Result<T>> + Unpin,
    {
        self.quorum_where(ops, needed, |_| true).await
    }

    /// [`Endpoint::quorum`] of the operations whose results count. A compare-and-swap that has found another value has
    /// ended well, and has not done what it was for.
    ///
    /// A replicated register puts a value and exchanges the version of each copy, in one round trip. (The put lands
    /// also
    /// where the version was another.)
    ///
    /// ```
    /// # use farfield_fabric::{Endpoint, RemotePtr};
    /// # async fn f(ep: &Endpoint, copies: &[RemotePtr<u64>], seen: u64, value: u64) -> bool {
    /// let write = |copy: &RemotePtr<u64>| {
    ///     ep.batch(copy.node()).put_value(copy.at(1), value).cas(*copy, seen, seen + 1)
    /// };
    /// let majority = copies.len() / 2 + 1;
    /// let written = ep.quorum_where(copies.iter().map(write), majority, |found| *found == seen).await;
    /// written.succeeded() >= majority
    /// # }
    /// ```
    pub async fn quorum_where<T, F>(
        &self,
        ops: impl IntoIterator<Item = F>,
        needed: usize,
        counts: impl Fn(&T) -> bool,
    ) -> Quorum<T, F>
    where
        F: Future<Output = Result<T>> + Unpin,
    {
        let pending: Vec<(usize, F)> = ops.into_iter().enumerate().collect();
        let mut quorum = Quorum { succeeded: 0, ended: Vec::with_capacity(pending.len()), pending };
        poll_fn(|cx| {
            let mut at = 0;
            while at < quorum.pending.len() {
                match Pin::new(&mut quorum.pending[at].1).poll(cx) {
                    Poll::Pending => at += 1,
                    Poll::Ready(result) => {
                        quorum.succeeded += usize::from(result.as_ref().is_ok_and(&counts));
                        let (index, _) = quorum.pending.swap_remove(at);
                        quorum.ended.push((index, result));
                    }
                }
            }
            let possible = quorum.succeeded + quorum.pending.len();
            if quorum.succeeded >= needed || possible < needed { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        quorum
    }
}
