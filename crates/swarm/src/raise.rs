//! A word that only rises, by compare-and-swaps (paper, Algorithm 7).

use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, ready};

use farfield_fabric::{self as fabric, Endpoint, Op, Posted, RemotePtr};

/// Raises a word to `new`, unless its value is enough already. The result is its value after that: `new`, or the one that is
/// enough.
///
/// Each attempt that fails has found a higher word than the one before, so there are as many as the word rises meanwhile.
pub(crate) struct Raise<'e> {
    endpoint: &'e Endpoint,
    word: RemotePtr<u64>,
    expected: u64,
    new: u64,
    /// Whether a word that was found is as good as the new one.
    is_enough: fn(u64, u64) -> bool,
    is_repeated: bool,
    attempt: Attempt<'e>,
    /// A second attempt from another value, which was posted beside the first one. It is rare, and all others are moved often.
    other: Option<Box<(u64, Op<'e, u64>)>>,
}

enum Attempt<'e> {
    /// With the puts before it.
    First(Posted<'e, u64>),
    Further(Op<'e, u64>),
}

impl<'e> Raise<'e> {
    /// `first` is a compare-and-swap from `expected` to `new`, behind puts.
    pub(crate) fn after(
        endpoint: &'e Endpoint,
        word: RemotePtr<u64>,
        [expected, new]: [u64; 2],
        is_enough: fn(u64, u64) -> bool,
        first: Posted<'e, u64>,
    ) -> Raise<'e> {
        Raise {
            endpoint,
            word,
            expected,
            new,
            is_enough,
            is_repeated: false,
            attempt: Attempt::First(first),
            other: None,
        }
    }

    /// Attempts it from this value as well, at the same time.
    pub(crate) fn or_from(mut self, expected: u64) -> Raise<'e> {
        self.other = Some(Box::new((expected, self.endpoint.cas(self.word, expected, self.new))));
        self
    }

    /// Whether there was an attempt after the first answer.
    pub(crate) fn is_repeated(&self) -> bool {
        self.is_repeated
    }

    /// Without puts before it.
    pub(crate) fn new(
        endpoint: &'e Endpoint,
        word: RemotePtr<u64>,
        [expected, new]: [u64; 2],
        is_enough: fn(u64, u64) -> bool,
    ) -> Raise<'e> {
        let attempt = Attempt::Further(endpoint.cas(word, expected, new));
        Raise { endpoint, word, expected, new, is_enough, is_repeated: false, attempt, other: None }
    }
}

impl Future for Raise<'_> {
    type Output = fabric::Result<u64>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<fabric::Result<u64>> {
        let raise = &mut *self;
        loop {
            let found = match &mut raise.attempt {
                Attempt::First(posted) => ready!(Pin::new(posted).poll(cx))?,
                Attempt::Further(op) => ready!(Pin::new(op).poll(cx))?,
            };
            if found == raise.expected {
                return Poll::Ready(Ok(raise.new));
            }
            if (raise.is_enough)(found, raise.new) {
                return Poll::Ready(Ok(found));
            }
            if let Some((expected, other)) = raise.other.take().map(|other| *other) {
                raise.expected = expected;
                raise.attempt = Attempt::Further(other);
                continue;
            }
            raise.is_repeated = true;
            raise.expected = found;
            raise.attempt = Attempt::Further(raise.endpoint.cas(raise.word, found, raise.new));
        }
    }
}
