//! The steps of an operation that must complete though its future is dropped: filling a cell, and taking one.

use core::future::{Future, poll_fn};
use core::ops::Deref;
use core::pin::Pin;
use core::task::{Context, Poll, ready};

use farfield_fabric::{self as fabric, Buf, BufOp, Endpoint, Instant, NodeId, Op, Posts, RemotePtr, Word};

use super::Queue;
use super::state::State;
use crate::error::{ErrorContext, ErrorKind, Result};
use crate::node::Node;
use crate::objects::codec::Value;

/// The cells of this node that no slot has: each word is a cell plus one, or 0 while a call uses it.
pub(super) struct Spares(pub(super) Box<[Word]>);

/// A cell that a call uses. It is given back when the call ends: or the other one, for which it was exchanged.
pub(super) struct Spare<'a> {
    node: &'a Node,
    endpoint: &'a Endpoint,
    /// The node of the cell.
    home: NodeId,
    place: &'a Word,
    pub(super) cell: u64,
    pub(super) is_written: bool,
    /// The values may land in the cell later.
    pub(super) may_land: bool,
}

impl Spares {
    pub(super) async fn claim<'a>(
        &'a self,
        node: &'a Node,
        endpoint: &'a Endpoint,
        home: NodeId,
        deadline: Instant,
    ) -> Result<Spare<'a>> {
        let claim = || self.claim_at_once(node, endpoint, home);
        let what = "another enqueue of this node to end (`enqueues_per_node` are in flight)";
        endpoint.wait_until(deadline, claim).await.waiting_for(what)
    }

    /// Claims a spare cell, if there is one.
    #[inline]
    pub(super) fn claim_at_once<'a>(
        &'a self,
        node: &'a Node,
        endpoint: &'a Endpoint,
        home: NodeId,
    ) -> Option<Spare<'a>> {
        self.0.iter().find_map(|place| {
            let found = place.load();
            let is_mine = found != 0 && place.compare_exchange(found, 0).is_ok();
            let spare = |cell| Spare { node, endpoint, home, place, cell, is_written: false, may_land: false };
            is_mine.then(|| spare(found - 1))
        })
    }
}

impl Spare<'_> {
    /// The compare-and-swap that was to publish the cell, in place of `from`, has found a state.
    #[inline]
    pub(super) fn settle(&mut self, from: State, found: State) {
        self.may_land = false; // the compare-and-swap has flushed the put
        if found == from {
            self.cell = found.cell();
        }
    }

    /// Waits until nothing lands in the cell any more, and gives it back. The next call that uses it may have another
    /// endpoint, and its puts have no order with this one's. If the fence is refused until the endpoint's timeout, the
    /// cell is never used again.
    pub(super) async fn give_back(mut self) {
        let fenced = self.node.fence_live_nodes(self.endpoint, [self.home].into_iter()).await;
        self.may_land = false;
        if !fenced.is_ok_and(|lost| lost.is_empty()) {
            core::mem::forget(self);
        }
    }
}

impl Drop for Spare<'_> {
    fn drop(&mut self) {
        // The call was dropped while an operation was refused.
        if core::mem::take(&mut self.may_land) {
            let Spare { node, endpoint, home, place, cell, is_written, .. } = *self;
            endpoint.block_on(Spare { node, endpoint, home, place, cell, is_written, may_land: true }.give_back());
            return;
        }
        self.place.store(self.cell + 1);
        self.endpoint.wake_local();
    }
}

/// The compare-and-swap that fills a slot. Dropped before its end it waits for the end, a round trip away at most: only
/// then is it known which cell is spare.
pub(super) struct Filling<'a> {
    endpoint: &'a Endpoint,
    op: Option<Op<'a, u64>>,
    from: State,
    spare: Option<Spare<'a>>,
}

impl<'a> Filling<'a> {
    #[inline]
    pub(super) fn new(endpoint: &'a Endpoint, op: Op<'a, u64>, from: State, spare: Spare<'a>) -> Self {
        Filling { endpoint, op: Some(op), from, spare: Some(spare) }
    }
}

impl<'a> Future for Filling<'a> {
    /// The state that it found, and the cell that is spare then.
    type Output = (fabric::Result<State>, Spare<'a>);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // Out of its place while it is polled: if the thread is unwound there, nothing is left to be waited for.
        let mut op = self.op.take().expect("polled after its end");
        let Poll::Ready(found) = Pin::new(&mut op).poll(cx) else {
            self.op = Some(op);
            return Poll::Pending;
        };
        let (found, from) = (found.map(State), self.from);
        let mut spare = self.spare.take().expect("it is there until the end");
        if let Ok(found) = found {
            spare.settle(from, found);
        }
        Poll::Ready((found, spare))
    }
}

impl Drop for Filling<'_> {
    fn drop(&mut self) {
        if let Some(op) = self.op.take()
            && let Ok(found) = self.endpoint.block_on(op)
            && let Some(spare) = &mut self.spare
        {
            spare.settle(self.from, State(found));
        }
    }
}

/// The get of a value. That of a word needs no buffer.
pub(super) enum Fetch<'a> {
    Word(Op<'a, u64>),
    Buf(BufOp<'a, u64>),
}

/// A value's words.
pub(super) enum Fetched<'a> {
    Word(u64),
    Buf(Buf<'a, u64>),
}

impl<'a> Fetch<'a> {
    /// Begins to get a value of so many words; fails if that is refused.
    #[inline(always)]
    pub(super) fn begin(posts: &impl Posts<'a>, from: RemotePtr<u64>, words: usize) -> fabric::Result<Self> {
        if words == 1 {
            return posts.get(from).accepted().map(Fetch::Word);
        }
        let endpoint = posts.endpoint();
        let into = endpoint.buf(words)?;
        endpoint.get_into(from, into).accepted().map(Fetch::Buf)
    }

    #[inline(always)]
    pub(super) fn into_value(self) -> fabric::Begun<Fetched<'a>, Self> {
        match self {
            Fetch::Word(op) => op.into_value().map(Fetched::Word).map_err(Fetch::Word),
            Fetch::Buf(op) => op.into_value().map(Fetched::Buf).map_err(Fetch::Buf),
        }
    }
}

impl<'a> Future for Fetch<'a> {
    type Output = fabric::Result<Fetched<'a>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut *self {
            Fetch::Word(op) => Pin::new(op).poll(cx).map_ok(Fetched::Word),
            Fetch::Buf(op) => Pin::new(op).poll(cx).map_ok(Fetched::Buf),
        }
    }
}

impl Deref for Fetched<'_> {
    type Target = [u64];

    #[inline(always)]
    fn deref(&self) -> &[u64] {
        match self {
            Fetched::Word(word) => core::slice::from_ref(word),
            Fetched::Buf(words) => words,
        }
    }
}

/// The get of a value and the compare-and-swap that takes it. Dropped before its end it waits for the end, and keeps
/// the value for [`Queue::salvage`] if it took it.
pub(super) struct Taking<'a, V: Value> {
    pub(super) queue: &'a Queue<V>,
    pub(super) endpoint: &'a Endpoint,
    pub(super) from: State,
    pub(super) op: Begun<Op<'a, u64>, u64>,
    pub(super) value: Begun<Fetch<'a>, Fetched<'a>>,
}

/// An operation, and how it ended.
pub(super) enum Begun<F, T> {
    Op(F),
    Ended(fabric::Result<T>),
    Over,
}

impl<T, F: Future<Output = fabric::Result<T>> + Unpin> Begun<F, T> {
    /// An operation that may be complete.
    pub(super) fn of(op: core::result::Result<T, F>) -> Self {
        op.map_or_else(Begun::Op, |value| Begun::Ended(Ok(value)))
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // Out of its place, as in `Filling`.
        *self = match core::mem::replace(self, Begun::Over) {
            Begun::Op(mut op) => match Pin::new(&mut op).poll(cx) {
                Poll::Ready(result) => Begun::Ended(result),
                Poll::Pending => Begun::Op(op),
            },
            ended => ended,
        };
        if matches!(self, Begun::Op(_)) { Poll::Pending } else { Poll::Ready(()) }
    }

    pub(super) fn end(&mut self) -> Option<fabric::Result<T>> {
        match core::mem::replace(self, Begun::Over) {
            Begun::Ended(result) => Some(result),
            _ => None,
        }
    }
}

impl<V: Value> Unpin for Taking<'_, V> {}

impl<V: Value> Taking<'_, V> {
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<Result<(State, Option<V>)>> {
        ready!(self.value.poll(cx));
        ready!(self.op.poll(cx));
        let (value, found) = (self.value.end(), self.op.end());
        let (value, found) = value.zip(found).expect("polled after its end");
        Poll::Ready(decide(self.from, State(found?), || value))
    }
}

/// The end of a call after its compare-and-swap, in place of `from`, has found a state: that state, and the value if it
/// is the expected one.
#[inline]
pub(super) fn decide<'a, V: Value>(
    from: State,
    found: State,
    value: impl FnOnce() -> fabric::Result<Fetched<'a>>,
) -> Result<(State, Option<V>)> {
    // (3) Another was faster, and the cell may have been rewritten since.
    if found != from {
        return Ok((found, None));
    }
    match V::decode(&value()?) {
        Some((value, _)) => Ok((found, Some(value))),
        None => Err(ErrorKind::Corrupt { what: "a value cannot be decoded".into() }.into()),
    }
}

impl<V: Value> Future for Taking<'_, V> {
    /// See [`decide`].
    type Output = Result<(State, Option<V>)>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.poll_end(cx)
    }
}

impl<V: Value> Drop for Taking<'_, V> {
    fn drop(&mut self) {
        if matches!(self.op, Begun::Over) || matches!(self.value, Begun::Over) {
            return;
        }
        let endpoint = self.endpoint;
        if let Ok((_, Some(value))) = endpoint.block_on(poll_fn(|cx| self.poll_end(cx))) {
            self.queue.salvaged.lock().push(value);
        }
    }
}
