//! Handles of operations: futures that need not be awaited.

use core::future::{Future, poll_fn};
use core::mem::{self, ManuallyDrop};
use core::pin::Pin;
use core::task::{Context, Poll};
use std::sync::Arc;

use zerocopy::IntoBytes;

use super::{Awaits, Buf, Endpoint};
use crate::error::{Code, Result};
use crate::hook;
use crate::lane::{Status, WordTicket};
use crate::local::Instant;
use crate::pool::Block;
use crate::ptr::{Plain, RemotePtr};

/// A posted operation with a `T` as its result.
///
/// The operation is already in flight: awaiting or waiting only returns how it ended. A completed put means that its
/// source may be reused, not that its bytes are visible at the target. Dropping or forgetting the handle does not stop
/// the operation. A forgotten get, cas or faa costs a block of its endpoint, or one of the places that a lane has for
/// words.
///
/// *Failures.* The operation may be refused while it is posted: [`Op::accepted`] and [`Op::detach`] report this at
/// once. A refused operation has no effect, and disturbs no other. An accepted operation is done, or fails together
/// with all later operations posted to that node (for a group of [`create_group`](crate::Fabric::create_group), to
/// that group).
///
/// ```
/// # use farfield_fabric::*;
/// # async fn f(ep: &Endpoint, word: RemotePtr<u64>) -> Result<()> {
/// let (first, second) = (ep.get(word), ep.get(word.at(1))); // both are in flight
/// println!("{}", first.await? + second.await?); // so this takes one round trip
/// # Ok(()) }
/// ```
#[must_use = "the result of the operation, or its failure, is only seen by waiting for it"]
pub struct Op<'e, T> {
    endpoint: &'e Endpoint,
    depth: u64,
    // Dropped by `Op::drop_pending` alone, so that a complete operation costs nothing to drop.
    state: ManuallyDrop<State<T>>,
}

/// An operation without its endpoint and its place in the chain of round trips.
pub(crate) enum State<T> {
    Done(T),
    Failed(Code, RemotePtr<u8>, u32),
    /// On a word, posted by the short path of RDMA.
    Word(WordTicket),
    Pending(Pending),
    Taken,
}

/// An operation that a lane has not completed yet.
pub(crate) struct Pending {
    pub(crate) remote: RemotePtr<u8>,
    pub(crate) len: u32,
    pub(crate) sequence: u64,
    /// The block in which the result lands. It returns to the pool with the handle, parked while it is still written
    /// to.
    pub(crate) landing: Option<Arc<Block>>,
}

// Nothing in an operation is pinned.
impl<T> Unpin for Op<'_, T> {}

impl<T> Drop for Op<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.is_pending() {
            self.drop_pending();
        }
    }
}

impl<'e, T> Op<'e, T> {
    #[inline(always)]
    pub(crate) fn ended(
        endpoint: &'e Endpoint,
        depth: u64,
        remote: RemotePtr<u8>,
        len: usize,
        result: Result<T, Code>,
    ) -> Self {
        let state = match result {
            Ok(value) => State::Done(value),
            Err(code) => State::Failed(code, remote, len as u32),
        };
        Op::of_state(endpoint, depth, state)
    }

    #[inline(always)]
    pub(crate) fn of_state(endpoint: &'e Endpoint, depth: u64, state: State<T>) -> Self {
        Op { endpoint, depth, state: ManuallyDrop::new(state) }
    }

    /// Its place in the chain of round trips and its state, for [`Op::of_state`].
    pub(crate) fn into_state(mut self) -> (u64, State<T>) {
        (self.depth, self.take_state())
    }

    #[inline(always)]
    fn take_state(&mut self) -> State<T> {
        mem::replace(&mut *self.state, State::Taken)
    }

    #[cold]
    #[inline(never)]
    fn drop_pending(&mut self) {
        match self.take_state() {
            State::Word(ticket) => self.endpoint.drop_word(ticket),
            State::Pending(Pending { landing: Some(block), .. }) => {
                self.endpoint.scratch(block.bytes()).put_back(block);
            }
            _ => {}
        }
    }

    /// An operation that was posted by the long path, or was refused.
    #[inline(always)]
    pub(crate) fn posted(
        endpoint: &'e Endpoint,
        depth: u64,
        remote: RemotePtr<u8>,
        len: usize,
        result: Result<Pending, Code>,
    ) -> Self {
        match result {
            Ok(pending) => Op::pending(endpoint, depth, pending),
            Err(code) => Op::ended(endpoint, depth, remote, len, Err(code)),
        }
    }

    #[inline(always)]
    pub(crate) fn pending(endpoint: &'e Endpoint, depth: u64, pending: Pending) -> Self {
        Op::of_state(endpoint, depth, State::Pending(pending))
    }

    #[inline(always)]
    pub(crate) fn of_word(endpoint: &'e Endpoint, depth: u64, ticket: WordTicket) -> Self {
        Op::of_state(endpoint, depth, State::Word(ticket))
    }

    /// Whether the operation is already known to have failed. A refusal at posting is known at once: what must not
    /// happen without this operation is posted only then.
    ///
    /// ```
    /// # use farfield_fabric::{Endpoint, RemotePtr, Result};
    /// # fn f(ep: &Endpoint, value: RemotePtr<u64>, count: RemotePtr<u64>) -> Result<()> {
    /// let added = ep.faa(count, 1);
    /// if !added.has_failed() {
    ///     ep.put_value(value, 42).detach()?;
    /// }
    /// # Ok(()) }
    /// ```
    #[inline(always)]
    pub fn has_failed(&self) -> bool {
        self.failure().is_some()
    }

    #[inline(always)]
    fn failure(&self) -> Option<(Code, RemotePtr<u8>, u32)> {
        match &*self.state {
            State::Failed(code, remote, len) => Some((*code, *remote, *len)),
            State::Pending(pending) => self.failure_of(pending),
            State::Done(_) | State::Word(_) | State::Taken => None,
        }
    }

    // Kept apart from the path of shared memory, which is inlined.
    #[cold]
    #[inline(never)]
    fn failure_of(&self, pending: &Pending) -> Option<(Code, RemotePtr<u8>, u32)> {
        match self.endpoint.status(pending.remote.node(), pending.sequence) {
            Status::Failed(code) => Some((code, pending.remote, pending.len)),
            Status::Done | Status::Pending => None,
        }
    }

    /// Returns the operation, unless it is already known to have failed. So a dependent operation is posted only if
    /// this one was accepted. An accepted operation is done, or fails together with all later operations posted to the
    /// node.
    ///
    /// ```
    /// # use farfield_fabric::{Endpoint, RemotePtr, Result};
    /// # async fn f(ep: &Endpoint, word: RemotePtr<u64>) -> Result<()> {
    /// let data = ep.put_value(word, 42).accepted()?; // refused: then the flag is not put either
    /// ep.put_value(word.at(1), 1).await?;
    /// data.await
    /// # }
    /// ```
    ///
    /// # Errors
    /// The failure, if one is known. A refused operation has had no effect, and disturbs no other.
    #[inline(always)]
    pub fn accepted(self) -> Result<Self> {
        // Not dropped here, so that a handle with a known state stays in registers: as in `into_value`.
        let op = ManuallyDrop::new(self);
        match &*op.state {
            State::Failed(code, remote, len) => Err(op.endpoint.explain(*code, *remote, *len)),
            State::Pending(_) => ManuallyDrop::into_inner(op).accepted_pending(),
            State::Done(_) | State::Word(_) | State::Taken => Ok(ManuallyDrop::into_inner(op)),
        }
    }

    #[cold]
    #[inline(never)]
    fn accepted_pending(self) -> Result<Self> {
        match self.failure() {
            None => Ok(self),
            Some((code, remote, len)) => Err(self.endpoint.explain(code, remote, len)),
        }
    }

    /// Whether the operation was incomplete at the last poll.
    #[inline(always)]
    pub(crate) fn is_pending(&self) -> bool {
        matches!(*self.state, State::Pending(_) | State::Word(_))
    }
}

impl<'e, T: Plain> Op<'e, T> {
    /// Waits until the operation is complete.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # fn f(ep: &Endpoint, word: RemotePtr<u64>) -> Result<()> {
    /// ep.put_value(word, 42).wait()?;
    /// assert_eq!(ep.get(word).wait()?, 42); // a get flushes the puts before it
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The failure of the operation; see [`ErrorKind`](crate::ErrorKind).
    #[inline(always)]
    pub fn wait(self) -> Result<T> {
        let op = ManuallyDrop::new(self);
        match *op.state {
            State::Done(value) => {
                op.endpoint.saw_completion(op.depth);
                Ok(value)
            }
            State::Word(ticket) => op.endpoint.wait_for_word(op.depth, ticket).map(of_bits),
            _ => ManuallyDrop::into_inner(op).wait_slow(),
        }
    }

    #[cold]
    #[inline(never)]
    fn wait_slow(self) -> Result<T> {
        let endpoint = self.endpoint;
        endpoint.block_on(self)
    }

    /// The result, if the operation is complete and its result is in this handle, as on shared memory. Otherwise the
    /// operation.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # async fn f(ep: &Endpoint, word: RemotePtr<u64>) -> Result<u64> {
    /// match ep.faa(word, 1).into_value() {
    ///     Ok(before) => Ok(before), // no future was made
    ///     Err(op) => op.await,
    /// }
    /// # }
    /// ```
    #[inline(always)]
    pub fn into_value(self) -> Result<T, Self> {
        let op = ManuallyDrop::new(self);
        if let State::Done(value) = *op.state {
            op.endpoint.saw_completion(op.depth);
            return Ok(value);
        }
        let op = ManuallyDrop::into_inner(op);
        if hook::is_active() { op.into_simulated_value() } else { Err(op) }
    }

    /// Under a simulation in which operations complete at once, waits until this one does.
    #[cold]
    #[inline(never)]
    fn into_simulated_value(mut self) -> Result<T, Self> {
        if !self.is_pending() || !hook::completes_at_once() {
            return Err(self);
        }
        let endpoint = self.endpoint;
        endpoint.block_on(poll_fn(|cx| {
            let is_complete =
                self.is_complete() || endpoint.pends(cx, Awaits::Completion, Instant::NEVER) && self.is_complete();
            if is_complete { Poll::Ready(()) } else { Poll::Pending }
        }));
        if self.has_failed() {
            return Err(self);
        }
        match self.look() {
            Poll::Ready(Ok(value)) => Ok(value),
            _ => unreachable!("it is complete, and has not failed"),
        }
    }

    /// The caller has seen what the operation has done otherwise: a get's bytes, say, where they have landed. So it
    /// counts as a round trip ([`Counts::round_trips`](crate::Counts)), and need not be polled for that.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # fn f(ep: &Endpoint, word: RemotePtr<u64>, into: &Region) -> Result<()> {
    /// let get = ep.get_span(word, into.span(0, 8));
    /// if into.word(0).load() != 0 {
    ///     get.was_seen(); // its value is here
    /// }
    /// # get.detach() }
    /// ```
    #[inline]
    pub fn was_seen(&self) {
        self.endpoint.saw_completion(self.depth);
    }

    /// Lets the operation run on by itself. It may not have started yet, since too many are in flight, or since it
    /// reads behind a put on a software RDMA device. Then it starts when the endpoint is next used: see
    /// [`Endpoint::progress`].
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # async fn f(ep: &Endpoint, words: &[RemotePtr<u64>]) -> Result<()> {
    /// for word in words {
    ///     ep.put_value(*word, 0).detach()?;
    /// }
    /// ep.global_fence(words.iter().map(|word| word.node())).await // all are visible, or this fails
    /// # }
    /// ```
    ///
    /// # Errors
    /// The failure, if one is already known: above all a refusal, after which the operation has had no effect and
    /// others continue. No caller sees a later failure. But no later operation on the node is done without this one,
    /// since its connection has ended.
    #[inline(always)]
    pub fn detach(self) -> Result<()> {
        // As in `accepted`.
        let op = ManuallyDrop::new(self);
        match &*op.state {
            State::Done(_) | State::Taken => Ok(()),
            State::Failed(code, remote, len) => Err(op.endpoint.explain(*code, *remote, *len)),
            State::Word(_) | State::Pending(_) => ManuallyDrop::into_inner(op).accepted_pending().map(drop),
        }
    }

    /// Whether the operation is complete, without waiting.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # fn f(ep: &Endpoint, word: RemotePtr<u64>) -> Result<u64> {
    /// let get = ep.get(word);
    /// while !get.is_complete() {
    ///     std::thread::yield_now(); // or something else to do
    /// }
    /// get.wait() // does not wait
    /// # }
    /// ```
    pub fn is_complete(&self) -> bool {
        match &*self.state {
            State::Pending(pending) => {
                self.endpoint.ring();
                self.endpoint.poll_lane();
                self.endpoint.status(pending.remote.node(), pending.sequence) != Status::Pending
            }
            State::Word(word) => self.endpoint.is_word_complete(*word),
            _ => true,
        }
    }

    #[cold]
    fn poll_slow(&mut self, cx: &Context<'_>) -> Poll<Result<T>> {
        let ended = self.look();
        if ended.is_pending() && self.endpoint.pends(cx, Awaits::Completion, Instant::NEVER) {
            return self.look();
        }
        ended
    }

    fn look(&mut self) -> Poll<Result<T>> {
        match self.take_state() {
            State::Done(value) => Poll::Ready(Ok(value)),
            State::Failed(code, remote, len) => Poll::Ready(Err(self.endpoint.explain(code, remote, len))),
            State::Pending(pending) => self.look_pending(pending),
            State::Word(ticket) => match self.endpoint.poll_word(self.depth, ticket) {
                None => {
                    *self.state = State::Word(ticket);
                    Poll::Pending
                }
                Some(result) => Poll::Ready(result.map(of_bits)),
            },
            State::Taken => panic!("an operation was polled after it had ended"),
        }
    }

    fn look_pending(&mut self, pending: Pending) -> Poll<Result<T>> {
        let endpoint = self.endpoint;
        endpoint.poll_lane_for_task();
        let (peer, sequence) = (pending.remote.node(), pending.sequence);
        let failure = match endpoint.status(peer, sequence) {
            Status::Pending => {
                *self.state = State::Pending(pending);
                return Poll::Pending;
            }
            Status::Failed(code) => Some(code),
            Status::Done => None,
        };
        endpoint.taken(peer, sequence);
        endpoint.saw_completion(self.depth);
        let Pending { remote, len, landing, .. } = pending;
        let result = match failure {
            // No landing place: there is no result, and T is ().
            None => Ok(landing.as_ref().map_or_else(T::new_zeroed, |block| block.read())),
            Some(code) => Err(endpoint.explain(code, remote, len)),
        };
        if let Some(block) = landing {
            endpoint.scratch(block.bytes()).put_back(block);
        }
        Poll::Ready(result)
    }
}

/// The value that an operation on a word returned; nothing for a put.
#[inline]
fn of_bits<T: Plain>(bits: u64) -> T {
    if size_of::<T>() == 0 {
        return T::new_zeroed();
    }
    T::read_from_bytes(bits.as_bytes()).expect("the result of an operation on a word is a word")
}

impl<T: Plain> Future for Op<'_, T> {
    type Output = Result<T>;

    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<T>> {
        if let State::Done(value) = *self.state {
            *self.state = State::Taken;
            self.endpoint.saw_completion(self.depth);
            return Poll::Ready(Ok(value));
        }
        self.poll_slow(cx)
    }
}

/// A posted operation that owns its buffer and returns it.
///
/// If it fails, the buffer returns to the pool.
///
/// ```
/// # use farfield_fabric::*;
/// # async fn f(ep: &Endpoint, row: RemotePtr<u64>) -> Result<()> {
/// let get: BufOp<'_, u64> = ep.get_into(row, ep.buf(64)?);
/// let row = get.await?; // the buffer, with what was read
/// # Ok(()) }
/// ```
#[must_use = "the buffer comes back, and a failure is seen, only by waiting for it"]
pub struct BufOp<'e, T: Plain> {
    op: Op<'e, ()>,
    buf: Option<Buf<'e, T>>,
}

impl<'e, T: Plain> BufOp<'e, T> {
    #[inline]
    pub(crate) fn new(op: Op<'e, ()>, buf: Buf<'e, T>) -> Self {
        BufOp { op, buf: Some(buf) }
    }

    /// Returns the operation, unless it is already known to have failed: see [`Op::accepted`].
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # async fn f(ep: &Endpoint, row: RemotePtr<u64>, flag: RemotePtr<u64>, buf: Buf<'_, u64>) -> Result<()> {
    /// let data = ep.put_owned(row, buf).accepted()?; // refused: then the flag is not put either
    /// ep.put_value(flag, 1).await?;
    /// let buf = data.await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The failure, if one is known.
    #[inline]
    pub fn accepted(mut self) -> Result<Self> {
        self.op = self.op.accepted()?;
        Ok(self)
    }

    /// Lets the operation run on by itself: see [`Op::detach`]. The buffer returns to the pool.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # fn f(ep: &Endpoint, row: RemotePtr<u64>) -> Result<()> {
    /// let mut buf = ep.buf::<u64>(64)?;
    /// buf.fill(7);
    /// ep.put_owned(row, buf).detach()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The failure, if one is already known.
    #[inline]
    pub fn detach(self) -> Result<()> {
        self.accepted().map(drop)
    }

    /// The buffer, if the operation is complete and that is in this handle, as on shared memory. Otherwise the
    /// operation: see [`Op::into_value`].
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # async fn f(ep: &Endpoint, row: RemotePtr<u64>) -> Result<u64> {
    /// let row = match ep.get_into(row, ep.buf(64)?).into_value() {
    ///     Ok(row) => row, // no future was made
    ///     Err(get) => get.await?,
    /// };
    /// # Ok(row[0]) }
    /// ```
    ///
    /// # Errors
    /// The operation itself.
    #[inline(always)]
    pub fn into_value(self) -> Result<Buf<'e, T>, Self> {
        let BufOp { op, buf } = self;
        match (op.into_value(), buf) {
            (Ok(()), Some(buf)) => Ok(buf),
            (Ok(()), None) => unreachable!("the buffer is there until the operation ends"),
            (Err(op), buf) => Err(BufOp { op, buf }),
        }
    }

    /// Waits until the operation is complete, and returns the buffer.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # fn f(ep: &Endpoint, row: RemotePtr<u64>) -> Result<()> {
    /// let row = ep.get_into(row, ep.buf(64)?).wait()?;
    /// println!("{}", row.iter().sum::<u64>());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The failure of the operation; see [`ErrorKind`](crate::ErrorKind).
    #[inline]
    pub fn wait(mut self) -> Result<Buf<'e, T>> {
        self.op.wait()?;
        Ok(self.buf.take().expect("the buffer is there until the operation ends"))
    }
}

impl<'e, T: Plain> Future for BufOp<'e, T> {
    type Output = Result<Buf<'e, T>>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match Pin::new(&mut self.op).poll(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Ready(Ok(())) => {
                Poll::Ready(Ok(self.buf.take().expect("the buffer is there until the operation ends")))
            }
        }
    }
}

impl<T: Plain> Unpin for BufOp<'_, T> {}
