//! A word that only rises, by compare-and-swaps (paper, Algorithm 7).

use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, ready};

use farfield_fabric::{self as fabric, Endpoint, Op, Posted, RemotePtr};

use crate::version::{Format, Version};

/// Raises a word to `new`, unless its value is enough already. The result is its value after that: `new`, or the one
/// that is enough.
///
/// Each attempt that fails has found a higher word than the one before, so there are as many as the word rises
/// meanwhile.
pub(crate) struct Raise<'e> {
    endpoint: &'e Endpoint,
    word: RemotePtr<u64>,
    expected: u64,
    new: u64,
    is_enough: IsEnough,
    is_repeated: bool,
    attempt: Attempt<'e>,
    /// A second attempt from another value, which was posted beside the first one. It is rare, and all others are moved
    /// often.
    other: Option<Box<(u64, Op<'e, u64>)>>,
}

/// Whether a word that was found is as good as the new one.
enum IsEnough {
    By(fn(u64, u64) -> bool),
    /// Both are metadata words of this format.
    AsNew(Format),
}

enum Attempt<'e> {
    /// With the puts before it.
    First(Posted<'e, u64>),
    Further(Op<'e, u64>),
}

impl<'e> Raise<'e> {
    /// Raises a metadata word to a version, by a compare-and-swap from another one. `first` is that, if it is posted
    /// already, behind puts.
    pub(crate) fn to_version(
        endpoint: &'e Endpoint,
        word: RemotePtr<u64>,
        [expected, new]: [Version; 2],
        first: Option<Posted<'e, u64>>,
    ) -> Raise<'e> {
        let attempt = match first {
            Some(first) => Attempt::First(first),
            None => Attempt::Further(endpoint.cas(word, expected.0, new.0)),
        };
        Raise::begun(endpoint, word, [expected.0, new.0], IsEnough::AsNew(new.format()), attempt)
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

    /// Any word, without puts before it. `is_enough`: whether a word that was found is as good as the new one.
    pub(crate) fn new(
        endpoint: &'e Endpoint,
        word: RemotePtr<u64>,
        [expected, new]: [u64; 2],
        is_enough: fn(u64, u64) -> bool,
    ) -> Raise<'e> {
        let attempt = Attempt::Further(endpoint.cas(word, expected, new));
        Raise::begun(endpoint, word, [expected, new], IsEnough::By(is_enough), attempt)
    }

    fn begun(
        endpoint: &'e Endpoint,
        word: RemotePtr<u64>,
        [expected, new]: [u64; 2],
        is_enough: IsEnough,
        attempt: Attempt<'e>,
    ) -> Raise<'e> {
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
            let is_enough = match raise.is_enough {
                IsEnough::By(is_enough) => is_enough(found, raise.new),
                IsEnough::AsNew(format) => format.version(found).is_as_new(format.version(raise.new)),
            };
            if is_enough {
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
