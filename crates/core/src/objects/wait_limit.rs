//! How long operations wait.

use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};

use farfield_fabric::{Endpoint, Instant};

use crate::error::Result;

/// How long an operation waits. Several operations, one after the other, may share one.
///
/// ```
/// # use farfield::{Endpoint, LockArray, Result, WaitLimit};
/// # use std::time::Duration;
/// async fn work(ep: &Endpoint, locks: &impl LockArray, is_urgent: bool) -> Result<()> {
///     let mut limit = if is_urgent { WaitLimit::Now } else { WaitLimit::Deadline(ep.now() + Duration::from_secs(1)) };
///     let Some(guard) = locks.acquire(ep, 0, &mut limit).await? else { return Ok(()) };
///     // …
///     # drop(guard);
///     # Ok(())
/// }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WaitLimit {
    /// As long as the endpoint's timeout. The clock is read only when an operation has to wait; that makes a `Deadline`
    /// of it.
    Timeout,
    /// Until then.
    Deadline(Instant),
    /// Not at all.
    Now,
}

impl WaitLimit {
    /// The deadline of an operation that begins to wait, or continues. None if it must not wait.
    ///
    /// ```
    /// # use farfield::WaitLimit;
    /// # let node = farfield::Node::builder().start()?;
    /// # let ep = node.endpoint()?;
    /// let mut limit = WaitLimit::Timeout;
    /// let first = limit.begin(&ep);
    /// assert_eq!((limit.begin(&ep), WaitLimit::Now.begin(&ep)), (first, None)); // a second wait has the same deadline
    /// # Ok::<(), farfield::Error>(())
    /// ```
    #[inline]
    pub fn begin(&mut self, endpoint: &Endpoint) -> Option<Instant> {
        match *self {
            WaitLimit::Now => None,
            WaitLimit::Deadline(deadline) => Some(deadline),
            WaitLimit::Timeout => Some(self.until(endpoint, endpoint.now())),
        }
    }

    /// [`WaitLimit::begin`] for a caller that knows the time; in the past if it must not wait.
    ///
    /// ```
    /// # use farfield::WaitLimit;
    /// # let node = farfield::Node::builder().start()?;
    /// # let ep = node.endpoint()?;
    /// let now = ep.now();
    /// assert!(WaitLimit::Now.until(&ep, now) < now && WaitLimit::Timeout.until(&ep, now) > now);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn until(&mut self, endpoint: &Endpoint, now: Instant) -> Instant {
        if *self == WaitLimit::Timeout {
            *self = WaitLimit::Deadline(now + endpoint.timeout());
        }
        match *self {
            WaitLimit::Deadline(deadline) => deadline,
            _ => Instant { ns: 0 },
        }
    }
}

/// The rest of a call that has not ended at once: a future that may move.
///
/// ```
/// # use farfield::{Result, toolkit::Rest};
/// async fn both(first: impl Rest<()>, second: impl Rest<()>) -> Result<()> {
///     first.await?;
///     second.await
/// }
/// ```
pub trait Rest<T>: Future<Output = Result<T>> + Unpin {}

impl<T, F: Future<Output = Result<T>> + Unpin> Rest<T> for F {}

/// The rest of an operation that may wait, and so ends with a value or an error: with nothing it ends only under
/// [`WaitLimit::Now`].
///
/// ```
/// # fn main() -> farfield::Result<()> {
/// # let node = farfield::Node::builder().start()?;
/// # let (ep, locks) = (node.endpoint()?, farfield::MutexArray::open(&node, "stripes", 64)?);
/// use farfield::WaitLimit;
/// use farfield::toolkit::Waits;
/// let guard = match locks.begin(&ep, 7, WaitLimit::Timeout)? {
///     Ok(guard) => guard,
///     Err(rest) => ep.block_on(Waits(rest))?, // a guard, not an option of one
/// };
/// # drop(guard);
/// # Ok(()) }
/// ```
#[must_use = "futures do nothing unless they are polled"]
pub struct Waits<F>(pub F);

impl<T, F: Future<Output = Result<Option<T>>> + Unpin> Future for Waits<F> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<T>> {
        let some = |value: Option<T>| value.expect("an operation that may wait ends with a value or an error");
        Pin::new(&mut self.0).poll(cx).map(|ended| ended.map(some))
    }
}
