//! Calls that need no future where they do not wait.

use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};

/// The outcome of an attempt: the value of the call, or the future of its rest.
///
/// ```
/// use farfield_fabric::Begun;
/// type Rest = std::future::Ready<Result<u64, ()>>;
/// let begun: Begun<u64, Rest> = Ok(7); // nothing is left to wait for
/// assert_eq!(begun.ok(), Some(7));
/// ```
pub type Begun<T, F> = Result<T, F>;

/// A call that makes an attempt when it is first polled, and continues with a future of its own only if that has not
/// ended it. That future may move: it is in memory that the endpoint keeps
/// ([`Endpoint::boxed`](super::Endpoint::boxed)). So a caller has no room to provide for the wait, and an uncontended
/// call is as cheap as its operations.
///
/// ```
/// # use farfield_fabric::*;
/// fn add(ep: &Endpoint, word: RemotePtr<u64>, most: u64) -> impl Future<Output = Result<u64>> {
///     Attempt::new(move || match ep.faa(word, 1).into_value() {
///         Ok(before) if before < most => Ok(Ok(before)),
///         _ => Ok(Err(ep.boxed(ep.wait_remote(word, most, ep.deadline())))),
///     })
/// }
/// ```
#[must_use = "futures do nothing unless they are polled"]
pub struct Attempt<A, F> {
    /// Until it is made. Beside the rest, and not in its place: where a call ends at once, only this one exists.
    attempt: Option<A>,
    /// While the call goes on.
    rest: Option<F>,
}

impl<A, F> Attempt<A, F> {
    /// A call with this attempt. It returns the call's value, or the future of the rest, or an error of either.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// fn swap<'e>(ep: &'e Endpoint, word: RemotePtr<u64>) -> impl Future<Output = Result<u64>> + 'e {
    ///     Attempt::new(move || {
    ///         ep.check_word(word)?;
    ///         Ok(ep.cas(word, 0, 1).into_value().map_err(|op| ep.boxed(op)))
    ///     })
    /// }
    /// ```
    #[inline(always)]
    pub fn new<T, E>(attempt: A) -> Self
    where
        A: FnOnce() -> Result<Begun<T, F>, E>,
        F: Future<Output = Result<T, E>> + Unpin,
    {
        Attempt { attempt: Some(attempt), rest: None }
    }
}

// The attempt is not pinned.
impl<A, F: Unpin> Unpin for Attempt<A, F> {}

impl<T, E, A, F> Future for Attempt<A, F>
where
    A: FnOnce() -> Result<Begun<T, F>, E>,
    F: Future<Output = Result<T, E>> + Unpin,
{
    type Output = Result<T, E>;

    #[inline(always)]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<T, E>> {
        let Attempt { attempt, rest } = self.get_mut();
        if let Some(attempt) = attempt.take() {
            match attempt() {
                Ok(Ok(value)) => return Poll::Ready(Ok(value)),
                Ok(Err(begun)) => *rest = Some(begun),
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        poll_rest(rest, cx)
    }
}

// Out of the way of calls that end at once, which are inlined.
#[cold]
#[inline(never)]
fn poll_rest<F: Future + Unpin>(rest: &mut Option<F>, cx: &mut Context<'_>) -> Poll<F::Output> {
    let polled = Pin::new(rest.as_mut().expect("a call was polled after it had ended")).poll(cx);
    if polled.is_ready() {
        *rest = None; // the memory is free for the next one
    }
    polled
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;
    use core::future::{Ready, ready};
    use core::pin::pin;

    use super::*;

    #[test]
    fn an_attempt_is_made_once_and_the_rest_goes_on() {
        let mut cx = Context::from_waker(core::task::Waker::noop());
        let attempts = Cell::new(0);
        fn attempt<R>(attempts: &Cell<u32>, result: R) -> Result<R, ()> {
            attempts.set(attempts.get() + 1);
            Ok(result)
        }
        type Never = Ready<Result<u32, ()>>;
        let mut call = pin!(Attempt::<_, Never>::new(|| attempt(&attempts, Ok(1))));
        assert_eq!(attempts.get(), 0, "a call does nothing before it is polled");
        assert_eq!(call.as_mut().poll(&mut cx), Poll::Ready(Ok(1)));
        let mut polls = 0;
        let rest = core::future::poll_fn(move |_| {
            polls += 1;
            if polls < 2 { Poll::Pending } else { Poll::Ready(Ok(2)) }
        });
        let mut call = pin!(Attempt::new(|| attempt(&attempts, Err(rest))));
        assert_eq!(call.as_mut().poll(&mut cx), Poll::Pending);
        assert_eq!(call.as_mut().poll(&mut cx), Poll::Ready(Ok(2)));
        let mut call = pin!(Attempt::<_, Never>::new(|| Err(())));
        assert_eq!(call.as_mut().poll(&mut cx), Poll::Ready(Err(())));
        // One that is dropped before it is polled, or in the middle, does nothing more.
        drop(Attempt::<_, Never>::new(|| attempt(&attempts, Ok(1))));
        drop(Attempt::new(|| attempt(&attempts, Err(ready(Ok(1))))));
        assert_eq!(attempts.get(), 2);
    }
}
