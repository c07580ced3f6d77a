//! The calls of objects, counted and timed if the node is told to ([`Builder::latencies`](super::Builder::latencies)).
//!
//! Each call of each object has a number, from the opening of the object on. Each endpoint has a histogram for each
//! number in memory of its own, which only its thread writes to ([`Endpoint::record_call`]). [`Node::metrics`] adds up
//! those of all endpoints.
//!
//! A node that measures nothing pays as little as possible. A call that checks first whether its object was reopened
//! finds out by the same comparison whether it is measured ([`Object::is_plain`]); any other has one of its own
//! ([`Meter::is_on`]). A measured call is made again, in a future that takes the time ([`measured`], [`current`]). So a
//! call that is not measured has no start to keep and no end to test.

use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, ready};
use std::collections::BTreeMap;

use farfield_fabric::{Boxed, CallCounts, CallEnd, CallsReader, Endpoint, Instant, LocalMutex};

use super::{Node, Object};
use crate::error::{Error, Result};

/// The calls that an endpoint has room for. Those beyond are counted together.
const CALLS_MAX: u32 = 1024;

/// Measures the calls of one object, if its node does so ([`Builder::latencies`](crate::Builder::latencies)). The calls
/// have numbers, in the order of the names that were given to [`Node::meter`] or
/// [`ObjectBuilder::calls`](crate::toolkit::ObjectBuilder::calls). A number beyond them is counted as a call of an
/// object without a path.
///
/// ```
/// # fn main() -> farfield::Result<()> {
/// use farfield::toolkit::Meter;
/// const PUBLISH: usize = 0;
/// let node = farfield::Node::builder().latencies(true).start()?;
/// let meter: Meter = node.meter("app/board", "Board", &["publish"]);
/// let (ep, hits) = (node.endpoint()?, farfield::AtomicVar::open(&node, "hits", node.id())?);
/// ep.block_on(meter.measure(&ep, PUBLISH, async { hits.fetch_add(&ep, 1).await }))?;
/// let metrics = node.metrics();
/// let publish = metrics.call("app/board", "publish").unwrap();
/// assert_eq!((publish.latencies.count(), publish.errors), (1, 0));
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Meter {
    /// The number of the first call; [`OFF`] if nothing is measured.
    first: u32,
    /// How many calls have numbers: 0 if there was no room for this object. Any other is counted with those that have
    /// none.
    calls: u32,
}

const OFF: u32 = u32::MAX;

impl Meter {
    pub(crate) const OFF: Meter = Meter { first: OFF, calls: 0 };

    /// Whether calls are measured. An object branches on it at the beginning of a call, so that the call costs nothing
    /// more where they are not.
    ///
    /// ```
    /// # let node = farfield::Node::builder().start()?;
    /// assert!(!node.meter("app/board", "Board", &["publish"]).is_on()); // as by default
    /// # Ok::<(), farfield::Error>(())
    /// ```
    #[inline]
    pub fn is_on(&self) -> bool {
        self.first != OFF
    }

    /// Measures a call from now until its future ends. One that is dropped before is not counted.
    ///
    /// ```
    /// # use farfield::{AtomicVar, Endpoint, Result, toolkit::Meter};
    /// async fn publish(meter: Meter, ep: &Endpoint, hits: &AtomicVar) -> Result<u64> {
    ///     if meter.is_on() {
    ///         meter.measure(ep, 0, hits.fetch_add(ep, 1)).await
    ///     } else {
    ///         hits.fetch_add(ep, 1).await
    ///     }
    /// }
    /// ```
    #[cold]
    pub fn measure<'e, T, F>(&self, endpoint: &'e Endpoint, call: usize, future: F) -> Timed<'e, F>
    where
        F: Future<Output = Result<T>>,
    {
        self.start(endpoint, call).rest(endpoint, future)
    }

    /// Measures a call that needs no future.
    ///
    /// ```
    /// # let node = farfield::Node::builder().latencies(true).start()?; let ep = node.endpoint()?;
    /// let meter = node.meter("app/board", "Board", &["look"]);
    /// let seen = meter.measure_now(&ep, 0, || Ok(7))?;
    /// assert_eq!(node.metrics().call("app/board", "look").unwrap().latencies.count(), 1);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of the call.
    #[cold]
    pub fn measure_now<T>(&self, endpoint: &Endpoint, call: usize, run: impl FnOnce() -> Result<T>) -> Result<T> {
        let timing = self.start(endpoint, call);
        let ended = run();
        timing.end(endpoint, &ended);
        ended
    }

    /// Starts to measure a call.
    ///
    /// ```
    /// # let node = farfield::Node::builder().latencies(true).start()?; let ep = node.endpoint()?;
    /// let timing = node.meter("app/board", "Board", &["look"]).start(&ep, 0);
    /// timing.end(&ep, &Ok(7));
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn start(&self, endpoint: &Endpoint, call: usize) -> Timing {
        if !self.is_on() {
            return Timing::OFF;
        }
        Timing { call: self.number(call) as u32, began: endpoint.now() }
    }

    fn number(&self, call: usize) -> usize {
        if call < self.calls as usize { self.first as usize + call } else { OTHERS_NUMBER }
    }

    /// Whether a call that has begun is to be measured: it is not, where nothing is, and where [`Meter::again`] makes
    /// it.
    ///
    /// ```
    /// # use farfield::{Endpoint, Result, fabric::RemotePtr, toolkit::Meter};
    /// const ADD: usize = 0;
    /// async fn add(meter: Meter, ep: &Endpoint, word: RemotePtr<u64>) -> Result<u64> {
    ///     if meter.is_on() && meter.measures(ep, ADD) {
    ///         return meter.again(ep, ADD, add(meter, ep, word)).await;
    ///     }
    ///     Ok(ep.faa(word, 1).await?) // the one instance of the call, however large it is
    /// }
    /// ```
    #[cold]
    pub fn measures(&self, endpoint: &Endpoint, call: usize) -> bool {
        self.is_on() && endpoint.measures_call(self.number(call))
    }

    /// Measures a call by making it again: the future is that of the call itself, which must ask [`Meter::measures`]
    /// before anything else.
    ///
    /// ```
    /// # use farfield::{Endpoint, Result, toolkit::Meter};
    /// async fn look(meter: Meter, ep: &Endpoint) -> Result<u64> {
    ///     if meter.is_on() && meter.measures(ep, 0) {
    ///         return meter.again(ep, 0, look(meter, ep)).await;
    ///     }
    ///     Ok(7)
    /// }
    /// # let node = farfield::Node::builder().latencies(true).start()?; let ep = node.endpoint()?;
    /// let meter = node.meter("app/board", "Board", &["look"]);
    /// assert_eq!(ep.block_on(look(meter, &ep))?, 7);
    /// assert_eq!(node.metrics().call("app/board", "look").unwrap().latencies.count(), 1);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    #[cold]
    pub fn again<'e, T, F>(&self, endpoint: &'e Endpoint, call: usize, again: F) -> Timed<'e, F>
    where
        F: Future<Output = Result<T>>,
    {
        Timed { is_again: true, ..self.measure(endpoint, call, again) }
    }

    /// The same for a call without a future.
    #[cold]
    pub(crate) fn again_now<T>(
        &self,
        endpoint: &Endpoint,
        call: usize,
        again: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let call_again = || {
            endpoint.calls_again(self.number(call));
            again()
        };
        self.measure_now(endpoint, call, call_again)
    }

    /// The next call is a part of another, and not counted.
    #[cold]
    pub(crate) fn skip(&self, endpoint: &Endpoint, call: usize) {
        if self.is_on() {
            endpoint.calls_again(self.number(call));
        }
    }
}

/// The beginning of a measured call: [`Meter::start`].
///
/// ```
/// # let node = farfield::Node::builder().latencies(true).start()?; let ep = node.endpoint()?;
/// let timing = node.meter("app/board", "Board", &["look"]).start(&ep, 0);
/// // … look …
/// timing.end(&ep, &Ok(7));
/// # Ok::<(), farfield::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use = "a call is counted at its end"]
pub struct Timing {
    call: u32,
    began: Instant,
}

impl Timing {
    /// That of a call that is not measured.
    ///
    /// ```
    /// # use farfield::{Endpoint, toolkit::{Meter, Timing}};
    /// fn starts(meter: Meter, ep: &Endpoint) -> Timing {
    ///     if meter.is_on() { meter.start(ep, 0) } else { Timing::OFF }
    /// }
    /// ```
    pub const OFF: Timing = Timing { call: OFF, began: Instant::NEVER };

    /// Records that the call has ended with this result.
    ///
    /// ```
    /// # let node = farfield::Node::builder().latencies(true).start()?; let ep = node.endpoint()?;
    /// # let meter = node.meter("app/board", "Board", &["look"]);
    /// let timing = meter.start(&ep, 0);
    /// let error = farfield::ErrorKind::TooLarge { bytes: 9, max_bytes: 8 };
    /// timing.end::<u64>(&ep, &Err(error.into()));
    /// assert_eq!(node.metrics().call("app/board", "look").unwrap().errors, 1);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    #[inline]
    pub fn end<T>(self, endpoint: &Endpoint, result: &Result<T>) {
        if self.call != OFF {
            let end = match result {
                Ok(_) => CallEnd::Done,
                Err(error) if error.is_timeout() => CallEnd::TimedOut,
                Err(_) => CallEnd::Failed,
            };
            endpoint.record_call(self.call as usize, endpoint.now() - self.began, end);
        }
    }

    /// Records that the call has ended with this error.
    ///
    /// ```
    /// # let node = farfield::Node::builder().latencies(true).start()?; let ep = node.endpoint()?;
    /// # let object = farfield::toolkit::ObjectBuilder::new(&node, "app/mail", "Mail").calls(&["post"]).open()?;
    /// let timing = object.meter().start(&ep, 0);
    /// object.check_current().inspect_err(|error| timing.fail(&ep, error))?; // it was not reopened
    /// # timing.end(&ep, &Ok(()));
    /// # Ok::<(), farfield::Error>(())
    /// ```
    #[cold]
    pub fn fail(self, endpoint: &Endpoint, error: &Error) {
        self.end::<()>(endpoint, &Err(error.clone()));
    }

    /// The rest of the call, which records its end.
    ///
    /// ```
    /// # let node = farfield::Node::builder().latencies(true).start()?; let ep = node.endpoint()?;
    /// # let meter = node.meter("app/board", "Board", &["look"]);
    /// let timing = meter.start(&ep, 0);
    /// // … post what the call waits for …
    /// assert_eq!(ep.block_on(timing.rest(&ep, async { Ok(7) }))?, 7);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn rest<F>(self, endpoint: &Endpoint, future: F) -> Timed<'_, F>
    where
        F: Future,
    {
        Timed { timing: self, is_again: false, endpoint, future: endpoint.boxed(future) }
    }
}

/// A call that is measured until it ends: [`Meter::measure`]. It may move.
///
/// ```
/// # use farfield::{Endpoint, Result, toolkit::Timed};
/// async fn end<F: Future<Output = Result<u64>>>(call: Timed<'_, F>) -> Result<u64> {
///     call.await
/// }
/// ```
#[must_use = "futures do nothing unless they are polled"]
pub struct Timed<'e, F> {
    timing: Timing,
    /// The future begins with a call that is not to be measured again.
    is_again: bool,
    endpoint: &'e Endpoint,
    future: Boxed<'e, F>,
}

impl<T, F: Future<Output = Result<T>>> Future for Timed<'_, F> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<T>> {
        if core::mem::take(&mut self.is_again) {
            self.endpoint.calls_again(self.timing.call as usize);
        }
        let ended = ready!(Pin::new(&mut self.future).poll(cx));
        self.timing.end(self.endpoint, &ended);
        Poll::Ready(ended)
    }
}

/// The rest of a call that may be measured: a future of the one kind or of the other.
///
/// ```
/// # use farfield::{Endpoint, Result, fabric::{Attempt, RemotePtr}, toolkit::{Either, Meter}};
/// const ADD: usize = 0;
/// async fn add(meter: Meter, word: RemotePtr<u64>, ep: &Endpoint) -> Result<u64> {
///     Attempt::new(|| {
///         if meter.is_on() {
///             return Ok(Err(Either::Measured(meter.measure(ep, ADD, async { Ok(ep.faa(word, 1).await?) }))));
///         }
///         let added = ep.faa(word, 1).into_value();
///         Ok(added.map_err(|op| Either::Plain(ep.boxed(async { Ok(op.await?) }))))
///     })
///     .await
/// }
/// ```
#[must_use = "futures do nothing unless they are polled"]
pub enum Either<P, M> {
    /// Of a call that is not measured.
    Plain(P),
    /// Of one that is.
    Measured(M),
}

impl<P: Future + Unpin, M: Future<Output = P::Output> + Unpin> Future for Either<P, M> {
    type Output = P::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<P::Output> {
        match self.get_mut() {
            Either::Plain(future) => Pin::new(future).poll(cx),
            Either::Measured(future) => Pin::new(future).poll(cx),
        }
    }
}

impl Object {
    /// Whether a call may begin at once: the object was not reopened, and its calls are not measured. It is one
    /// comparison, as [`Object::check_current`] is. Otherwise the call is measured, and that check is its beginning: so
    /// a refused one counts as failed.
    ///
    /// ```
    /// # use farfield::{Endpoint, Result, fabric::RemotePtr, toolkit::Object};
    /// const GET: usize = 0;
    /// async fn get(object: &Object, word: RemotePtr<u64>, ep: &Endpoint) -> Result<u64> {
    ///     let get = async || Ok(ep.get(word).await?);
    ///     if object.is_plain() {
    ///         return get().await;
    ///     }
    ///     let checked = async {
    ///         object.check_current()?;
    ///         get().await
    ///     };
    ///     object.meter().measure(ep, GET, checked).await
    /// }
    /// ```
    #[inline]
    pub fn is_plain(&self) -> bool {
        self.open.reopened.glance() == 0
    }

    /// Measures the calls of this object, by the names of
    /// [`ObjectBuilder::calls`](crate::toolkit::ObjectBuilder::calls).
    ///
    /// ```
    /// # let node = farfield::Node::builder().start()?;
    /// let object = farfield::toolkit::ObjectBuilder::new(&node, "app/mail", "Mail").calls(&["post"]).open()?;
    /// assert!(!object.meter().is_on()); // it is if the node measures
    /// # Ok::<(), farfield::Error>(())
    /// ```
    #[inline]
    pub fn meter(&self) -> Meter {
        self.meter
    }
}

/// Stands first in a call of an object, and makes it again, to measure it. Otherwise the call continues.
macro_rules! measured {
    ($meter:expr, $endpoint:expr, $call:expr, $again:expr) => {
        if $meter.is_on() && $meter.measures($endpoint, $call) {
            return $meter.again($endpoint, $call, $again).await;
        }
    };
}
pub(crate) use measured;

/// [`measured`] with [`Object::check_current`], for the price of the latter. The check is second: a call that is made
/// again has to ask whether it is measured, or the endpoint takes the next one for it. And a stale handle's calls are
/// counted as failed.
macro_rules! current {
    ($object:expr, $endpoint:expr, $call:expr, $again:expr) => {
        if !$object.is_plain() {
            if $object.meter().measures($endpoint, $call) {
                return $object.meter().again($endpoint, $call, $again).await;
            }
            $object.check_current()?;
        }
    };
}
pub(crate) use current;

impl Node {
    /// Numbers the calls of an object, to be measured if this node is told to
    /// ([`Builder::latencies`](crate::Builder::latencies)). An object that an
    /// [`ObjectBuilder`](crate::toolkit::ObjectBuilder) opens has a meter of its own; this one is for an object that is
    /// composed of others, or for a part of a program. The same path and kind have the same counts. There is room for
    /// 1,024 calls of all objects; those of further objects are counted together, under an empty path.
    ///
    /// ```
    /// # let node = farfield::Node::builder().latencies(true).start()?; let ep = node.endpoint()?;
    /// let meter = node.meter("app/board", "Board", &["publish", "look"]);
    /// ep.block_on(meter.measure(&ep, 1, async { Ok(()) }))?;
    /// let metrics = node.metrics();
    /// assert!(metrics.call("app/board", "publish").is_none()); // it was never called
    /// assert_eq!(metrics.call("app/board", "look").unwrap().latencies.count(), 1);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn meter(&self, path: &str, kind: &'static str, calls: &'static [&'static str]) -> Meter {
        if self.shared().config.latencies && !calls.is_empty() {
            self.shared().numbers.lock().meter(path, kind, calls)
        } else {
            Meter::OFF
        }
    }
}

/// The numbers of all calls of a node, by path and kind of their objects.
pub(super) struct Numbers {
    next: u32,
    of: BTreeMap<(String, &'static str), Named>,
    /// The sums over closed endpoints.
    closed: Vec<CallCounts>,
    open: Vec<CallsReader>,
}

#[derive(Clone, Copy)]
struct Named {
    first: u32,
    calls: &'static [&'static str],
}

/// The object under which the calls are that have no number of their own, and the number that they share.
const OTHERS: (&str, &str) = ("", "other");
const OTHERS_NUMBER: usize = 0;

impl Default for Numbers {
    fn default() -> Numbers {
        let others = ((OTHERS.0.to_string(), OTHERS.1), Named { first: OTHERS_NUMBER as u32, calls: &["call"] });
        Numbers { next: 1, of: BTreeMap::from([others]), closed: Vec::new(), open: Vec::new() }
    }
}

impl Numbers {
    fn meter(&mut self, path: &str, kind: &'static str, calls: &'static [&'static str]) -> Meter {
        let has_room = self.next as usize + calls.len() <= CALLS_MAX as usize;
        let next = self.next;
        match self.of.get(&(path.to_string(), kind)) {
            Some(named) if named.calls == calls => Meter { first: named.first, calls: calls.len() as u32 },
            None if has_room => {
                self.of.insert((path.to_string(), kind), Named { first: next, calls });
                self.next += calls.len() as u32;
                Meter { first: next, calls: calls.len() as u32 }
            }
            _ => Meter { first: OTHERS_NUMBER as u32, calls: 0 },
        }
    }

    /// How many calls an endpoint needs room for.
    pub(super) fn room(is_on: bool) -> usize {
        if is_on { CALLS_MAX as usize } else { 0 }
    }

    /// Reads an endpoint from now on. The records of those that are closed are kept.
    pub(super) fn follow(&mut self, reader: CallsReader) {
        for closed in self.open.extract_if(.., |reader| reader.is_final()) {
            self.closed.resize(self.next as usize, CallCounts::default());
            for (call, sum) in self.closed.iter_mut().enumerate() {
                *sum += &closed.read(call);
            }
        }
        self.open.push(reader);
    }

    /// The path and the kind of each object of which some call was made, and these calls.
    pub(super) fn read(&self) -> impl Iterator<Item = (&str, &'static str, Vec<(&'static str, CallCounts)>)> {
        let read = |call: usize| {
            let mut sum = self.closed.get(call).cloned().unwrap_or_default();
            self.open.iter().for_each(|reader| sum += &reader.read(call));
            sum
        };
        let calls = move |named: &Named| {
            let numbered = named.calls.iter().zip(named.first as usize..);
            let read = numbered.map(|(name, call)| (*name, read(call)));
            read.filter(|(_, counts)| counts.latencies.count() > 0).collect::<Vec<_>>()
        };
        let all = self.of.iter().map(move |((path, kind), named)| (path.as_str(), *kind, calls(named)));
        all.filter(|(.., calls)| !calls.is_empty())
    }
}

/// The numbers of a node, under their lock.
pub(super) type SharedNumbers = LocalMutex<Numbers>;

#[cfg(test)]
mod tests {
    use super::*;

    /// A number beyond an object's calls was that of another object's call.
    #[test]
    fn a_number_that_an_object_does_not_have_is_no_other_objects() {
        let mut numbers = Numbers::default();
        let [meter, other] = ["a", "b"].map(|path| numbers.meter(path, "Kind", &["x", "y"]));
        assert_eq!([0, 1].map(|call| meter.number(call)), [1, 2]);
        assert_eq!([0, 1].map(|call| other.number(call)), [3, 4]);
        for call in [2, 3, CALLS_MAX as usize, u32::MAX as usize, usize::MAX] {
            assert_eq!((meter.number(call), other.number(call)), (OTHERS_NUMBER, OTHERS_NUMBER));
        }
        let late = numbers.meter("late", "Kind", &[""; CALLS_MAX as usize]);
        assert_eq!([0, 1].map(|call| late.number(call)), [OTHERS_NUMBER; 2]);
    }

    #[test]
    fn calls_beyond_the_room_are_counted_together() {
        let mut numbers = Numbers::default();
        let calls: &[&str] = &["a", "b", "c"];
        let own: Vec<Meter> = (0..340).map(|at| numbers.meter(&at.to_string(), "Kind", calls)).collect();
        assert!(own.iter().enumerate().all(|(at, meter)| (meter.first, meter.calls) == (1 + 3 * at as u32, 3)));
        let again = numbers.meter("7", "Kind", calls);
        assert_eq!((again.first, again.calls), (own[7].first, 3), "the same object has the same numbers");
        let other = numbers.meter("7", "Another", &["a"]);
        assert_eq!((other.first, other.calls), (1021, 1), "another kind has others");
        let late = numbers.meter("late", "Kind", calls);
        assert_eq!((late.first, late.calls), (0, 0), "three more have no room");
        assert_eq!(numbers.meter("7", "Kind", &["x"]).calls, 0, "other names under the same path and kind");
    }
}
