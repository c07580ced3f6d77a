//! Puts, gets and atomics of an endpoint.

use std::collections::VecDeque;
use std::sync::Arc;

use zerocopy::IntoBytes;

use super::op::{BufOp, Op, Pending};
use super::{DynState, Endpoint, InFlight, Inner};
use crate::endpoint::Buf;
use crate::error::{Code, ErrorKind, Result};
use crate::fabric::Span;
use crate::lane::{Keep, Local, Verb, WorkRequest};
use crate::pool::Block;
use crate::ptr::{Plain, RemotePtr};

impl Endpoint {
    /// Puts a value. Its bytes are copied now and land at `dst` later, in the order of this endpoint's puts to the
    /// node. Eight bytes land whole; a reader may see a larger value torn.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # async fn f(ep: &Endpoint, at: RemotePtr<u64>) -> Result<()> {
    /// ep.put_value(at, 42).await?; // complete: it may not be visible yet
    /// ep.put_value(at, 43).detach()?; // or: a later operation or fence of this endpoint reports what it meets
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// (when waited for) A bad pointer, a revoked right, or a dead or departed node.
    #[inline(always)]
    pub fn put_value<T: Plain>(&self, dst: RemotePtr<T>, value: T) -> Op<'_, ()> {
        match &self.inner {
            Inner::Shm(lane, marks) => {
                marks.put(dst.node());
                // Counted first: between a result and its handle there is nothing then, and a caller that looks at the
                // one does without the other.
                let depth = self.count(Verb::Put, dst.node(), size_of::<T>());
                Op::ended(self, depth, dst.cast(), size_of::<T>(), lane.put_value(dst, value))
            }
            Inner::Dyn(state) => self.put_value_dyn(state, dst, value),
        }
    }

    #[inline(always)]
    fn put_value_dyn<'e, T: Plain>(&'e self, state: &DynState, dst: RemotePtr<T>, value: T) -> Op<'e, ()> {
        if size_of::<T>() == 8 {
            let mut bits = 0u64;
            value.write_to(bits.as_mut_bytes()).expect("a word is as long as a word");
            if let Some(ticket) = state.put_word(dst.cast(), bits) {
                return Op::of_word(self, self.count(Verb::Put, dst.node(), 8), ticket);
            }
        }
        let posted = self.put_value_block(state, dst, value);
        let depth = self.count(Verb::Put, dst.node(), size_of::<T>());
        Op::posted(self, depth, dst.cast(), size_of::<T>(), posted)
    }

    // Kept apart from the path of shared memory, which is inlined.
    #[cold]
    #[inline(never)]
    fn put_value_block<T: Plain>(&self, state: &DynState, dst: RemotePtr<T>, value: T) -> Result<Pending, Code> {
        let block = self.dyn_block(size_of::<T>())?;
        block.write(value);
        let local = Local::block(&block);
        let (remote, len) = (dst.cast(), size_of::<T>());
        let sequence = self.post_raw(state, Verb::Put, remote, len, [0; 2], local, Some(block));
        if let Some(posted) = state.in_flight.borrow_mut()[dst.node().index()].back_mut() {
            posted.scratch = true;
        }
        Ok(Pending { remote, len: len as u32, sequence, landing: None })
    }

    /// Puts a word that no fence of this endpoint waits for. Use it to notify a node that waits for the word, if no
    /// node reads the word as data after a fence. Otherwise it is like any put: it lands after the earlier puts to
    /// that node.
    ///
    /// ```
    /// # use farfield_fabric::{Endpoint, RemotePtr, Result};
    /// # async fn f(ep: &Endpoint, bell: RemotePtr<u64>) -> Result<()> {
    /// ep.put_untracked(bell, 1).await?;
    /// assert!(!ep.has_unflushed(bell.node()));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// (when waited for) As [`Endpoint::put_value`].
    #[inline(always)]
    pub fn put_untracked(&self, dst: RemotePtr<u64>, value: u64) -> Op<'_, ()> {
        match &self.inner {
            Inner::Shm(lane, marks) => {
                marks.put_untracked(dst.node());
                let depth = self.count(Verb::Put, dst.node(), 8);
                Op::ended(self, depth, dst.cast(), 8, lane.put_value(dst, value))
            }
            Inner::Dyn(state) => self.put_untracked_dyn(state, dst, value),
        }
    }

    /// [`Endpoint::put_untracked`], [detached](Op::detach): a notice that nothing waits for.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # fn f(ep: &Endpoint, bell: RemotePtr<u64>) -> Result<()> {
    /// ep.notify(bell, 1)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Op::detach`].
    #[inline(always)]
    pub fn notify(&self, dst: RemotePtr<u64>, value: u64) -> Result<()> {
        match &self.inner {
            Inner::Shm(lane, marks) => {
                marks.put_untracked(dst.node());
                self.count(Verb::Put, dst.node(), 8);
                lane.put_value(dst, value).map_err(|code| self.explain(code, dst.cast(), 8))
            }
            Inner::Dyn(state) => self.put_untracked_dyn(state, dst, value).detach(),
        }
    }

    #[cold]
    #[inline(never)]
    fn put_untracked_dyn(&self, state: &DynState, dst: RemotePtr<u64>, value: u64) -> Op<'_, ()> {
        let others = state.marks.has_unflushed_by(dst.cast());
        let put = self.put_value(dst, value);
        if !others {
            state.marks.put_untracked(dst.cast(), state.issued.get());
        }
        put
    }

    /// Puts the elements of a buffer, which cannot be changed while the handle lives.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # async fn f(ep: &Endpoint, at: RemotePtr<u64>) -> Result<()> {
    /// let mut buf = ep.buf::<u64>(2)?;
    /// buf[0] = 1;
    /// buf[1] = 2;
    /// ep.put(at, &buf).await?;
    /// buf[0] = 3; // complete, so the buffer may change
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// (when waited for) As [`Endpoint::put_value`].
    #[inline]
    pub fn put<'b, T: Plain>(&'b self, dst: RemotePtr<T>, src: &'b Buf<'_, T>) -> Op<'b, ()> {
        self.put_block(dst.cast(), src.block(), src.size_bytes())
    }

    /// Puts the elements of a buffer. The operation owns the buffer until it is complete.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # async fn f(ep: &Endpoint, at: RemotePtr<u64>) -> Result<()> {
    /// let buf = ep.buf::<u64>(2)?;
    /// let buf = ep.put_owned(at, buf).await?; // the buffer comes back
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// (when waited for) As [`Endpoint::put_value`].
    #[inline]
    pub fn put_owned<'e, T: Plain>(&'e self, dst: RemotePtr<T>, src: Buf<'e, T>) -> BufOp<'e, T> {
        let op = self.put_block(dst.cast(), src.block(), src.size_bytes());
        BufOp::new(op, src)
    }

    #[inline]
    fn put_block<'e>(&'e self, dst: RemotePtr<u8>, block: &Arc<Block>, len: usize) -> Op<'e, ()> {
        match &self.inner {
            Inner::Shm(lane, marks) => {
                marks.put(dst.node());
                let depth = self.count(Verb::Put, dst.node(), len);
                // SAFETY: the block has at least `len` bytes, and no thread writes to it while this call runs.
                let result = unsafe { lane.put_from(dst, block.as_ptr(), len) };
                Op::ended(self, depth, dst, len, result)
            }
            Inner::Dyn(state) => {
                let block = Some(Arc::clone(block));
                let local = Local::block(block.as_ref().expect("just made"));
                self.post(state, Verb::Put, dst, len, [0; 2], local, block)
            }
        }
    }

    /// Puts the contents of the shared cells of `src` at the time when the NIC reads them: at any moment until the
    /// operation is complete. The name is a warning: a later store may be sent in place of the earlier value (`put x;
    /// x := 1` may send 1).
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # async fn f(ep: &Endpoint, at: RemotePtr<u64>, cells: &Region) -> Result<()> {
    /// cells.word(0).store(42);
    /// ep.put_from_region(at, cells.span(0, 8)).await?; // the word may change again now
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// (when waited for) As [`Endpoint::put_value`].
    #[inline]
    pub fn put_from_region<T: Plain>(&self, dst: RemotePtr<T>, src: Span<'_>) -> Op<'_, ()> {
        let len = src.bytes();
        match &self.inner {
            Inner::Shm(lane, marks) => {
                marks.put(dst.node());
                let depth = self.count(Verb::Put, dst.node(), len);
                // SAFETY: the span covers `len` bytes of region memory, which is accessed by atomics only.
                let result = unsafe { lane.put_shared(dst.cast(), src.as_ptr(), len) };
                Op::ended(self, depth, dst.cast(), len, result)
            }
            Inner::Dyn(state) => {
                let local = Local { ptr: src.as_ptr(), keep: Keep::Memory(src.keep()) };
                self.post(state, Verb::Put, dst.cast(), len, [0; 2], local, None)
            }
        }
    }

    /// Gets a word. Eight bytes arrive whole. A larger value may mix several writes: use [`Endpoint::get_torn`], which
    /// returns it as [`Torn`](crate::Torn).
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # async fn f(ep: &Endpoint, at: RemotePtr<u64>) -> Result<()> {
    /// let value = ep.get(at).await?;
    /// assert_eq!(value, 42);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// (when waited for) As [`Endpoint::put_value`].
    #[inline(always)]
    pub fn get<T: Plain>(&self, src: RemotePtr<T>) -> Op<'_, T> {
        const { assert!(size_of::<T>() == 8, "a value larger than a word may come torn: use get_torn or get_into") };
        self.get_raw(src)
    }

    /// Gets a value of any size, which may mix several writes.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # async fn f(ep: &Endpoint, at: RemotePtr<[u64; 2]>) -> Result<()> {
    /// let pair = ep.get_torn(at).await?.validate(|pair| pair[0] == pair[1]);
    /// assert!(pair.is_none_or(|pair| pair[0] == pair[1]));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// (when waited for) As [`Endpoint::put_value`].
    #[inline]
    pub async fn get_torn<T: Plain>(&self, src: RemotePtr<T>) -> Result<crate::Torn<T>> {
        self.get_raw(src).await.map(crate::Torn)
    }

    /// Gets several words. Each of them is whole; together they may be a mix of before and after a write.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # async fn f(ep: &Endpoint, record: RemotePtr<u64>) -> Result<()> {
    /// let [state, owner] = ep.get_words(record).await?; // in one round trip
    /// # drop((state, owner)); Ok(()) }
    /// ```
    ///
    /// # Errors
    /// (when waited for) As [`Endpoint::put_value`].
    #[inline(always)]
    pub fn get_words<const N: usize>(&self, first: RemotePtr<u64>) -> Op<'_, [u64; N]>
    where
        [u64; N]: Plain,
    {
        self.get_raw(first.cast())
    }

    #[inline(always)]
    fn get_raw<T: Plain>(&self, src: RemotePtr<T>) -> Op<'_, T> {
        match &self.inner {
            Inner::Shm(lane, marks) => {
                let depth = self.count(Verb::Get, src.node(), size_of::<T>());
                match lane.get_value(src) {
                    Ok(value) => {
                        marks.read(src.node(), true);
                        Op::ended(self, depth, src.cast(), size_of::<T>(), Ok(value))
                    }
                    failed => Op::ended(self, depth, src.cast(), size_of::<T>(), failed),
                }
            }
            Inner::Dyn(state) => {
                if size_of::<T>() == 8
                    && let Some(ticket) = state.get_word(src.cast())
                {
                    return Op::of_word(self, self.count(Verb::Get, src.node(), 8), ticket);
                }
                let (src, len) = (src.cast(), size_of::<T>());
                let posted = self.fetch_block(state, Verb::Get, src, len, [0; 2]);
                Op::posted(self, self.count(Verb::Get, src.node(), len), src, len, posted)
            }
        }
    }

    /// Gets as many elements as the buffer has, into it. The elements may mix several writes.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # async fn f(ep: &Endpoint, at: RemotePtr<u64>) -> Result<()> {
    /// let buf = ep.buf::<u64>(64)?;
    /// let buf = ep.get_into(at, buf).await?;
    /// println!("{}", buf[0]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// (when waited for) As [`Endpoint::put_value`].
    #[inline]
    pub fn get_into<'e, T: Plain>(&'e self, src: RemotePtr<T>, into: Buf<'e, T>) -> BufOp<'e, T> {
        let (src, len) = (src.cast::<u8>(), into.size_bytes());
        if !into.block().is_idle() {
            // A dropped put may still read the memory, so the get must not change it yet.
            self.wait_for_block(into.block());
        }
        let op = match &self.inner {
            Inner::Shm(lane, marks) => {
                // SAFETY: the buffer has `len` bytes and is owned by this call.
                let result = unsafe { lane.get_to(src, into.block().as_ptr(), len) };
                marks.read(src.node(), result.is_ok());
                Op::ended(self, self.count(Verb::Get, src.node(), len), src, len, result)
            }
            Inner::Dyn(state) => {
                let block = Some(Arc::clone(into.block()));
                self.post(state, Verb::Get, src, len, [0; 2], Local::block(into.block()), block)
            }
        };
        BufOp::new(op, into)
    }

    /// Gets into shared cells of this node.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # async fn f(ep: &Endpoint, at: RemotePtr<u64>, cells: &Region) -> Result<()> {
    /// ep.get_span(at, cells.span(0, 64)).await?; // other threads of this node may read it there
    /// println!("{}", cells.word(56).load());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// (when waited for) As [`Endpoint::put_value`].
    #[inline]
    pub fn get_span<T: Plain>(&self, src: RemotePtr<T>, into: Span<'_>) -> Op<'_, ()> {
        let (src, len) = (src.cast::<u8>(), into.bytes());
        match &self.inner {
            Inner::Shm(lane, marks) => {
                // SAFETY: the span covers `len` bytes of region memory, which is accessed by atomics only.
                let result = unsafe { lane.get_visibly(src, into.as_ptr(), len) };
                marks.read(src.node(), result.is_ok());
                Op::ended(self, self.count(Verb::Get, src.node(), len), src, len, result)
            }
            Inner::Dyn(state) => {
                let local = Local { ptr: into.as_ptr(), keep: Keep::Memory(into.keep()) };
                self.post(state, Verb::Get, src, len, [0; 2], local, None)
            }
        }
    }

    /// Remote compare-and-swap of a word: writes `new` if the word is `expected`. Returns the value found. It is
    /// atomic with other remote atomics on the word, but not with CPU accesses and puts.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # async fn f(ep: &Endpoint, at: RemotePtr<u64>) -> Result<()> {
    /// let found = ep.cas(at, 0, 1).await?;
    /// let is_mine = found == 0;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// (when waited for) As [`Endpoint::put_value`].
    #[inline(always)]
    pub fn cas(&self, dst: RemotePtr<u64>, expected: u64, new: u64) -> Op<'_, u64> {
        match &self.inner {
            Inner::Shm(lane, marks) => {
                let depth = self.count(Verb::Cas, dst.node(), 8);
                match lane.cas(dst, expected, new) {
                    Ok(found) => {
                        marks.read(dst.node(), true);
                        Op::ended(self, depth, dst.cast(), 8, Ok(found))
                    }
                    failed => Op::ended(self, depth, dst.cast(), 8, failed),
                }
            }
            Inner::Dyn(state) => match state.cas_word(dst.cast(), expected, new) {
                Some(ticket) => Op::of_word(self, self.count(Verb::Cas, dst.node(), 8), ticket),
                None => {
                    let posted = self.fetch_block(state, Verb::Cas, dst.cast(), 8, [expected, new]);
                    Op::posted(self, self.count(Verb::Cas, dst.node(), 8), dst.cast(), 8, posted)
                }
            },
        }
    }

    /// Remote fetch-and-add of a word, wrapping. Returns the old value. It is atomic with other remote atomics on the
    /// word, but not with CPU accesses and puts.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # async fn f(ep: &Endpoint, at: RemotePtr<u64>) -> Result<()> {
    /// let ticket = ep.faa(at, 1).await?; // the value before
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// (when waited for) As [`Endpoint::put_value`].
    #[inline(always)]
    pub fn faa(&self, dst: RemotePtr<u64>, addend: u64) -> Op<'_, u64> {
        match &self.inner {
            Inner::Shm(lane, marks) => {
                let depth = self.count(Verb::Faa, dst.node(), 8);
                match lane.faa(dst, addend) {
                    Ok(found) => {
                        marks.read(dst.node(), true);
                        Op::ended(self, depth, dst.cast(), 8, Ok(found))
                    }
                    failed => Op::ended(self, depth, dst.cast(), 8, failed),
                }
            }
            Inner::Dyn(state) => match state.faa_word(dst.cast(), addend) {
                Some(ticket) => Op::of_word(self, self.count(Verb::Faa, dst.node(), 8), ticket),
                None => {
                    let posted = self.fetch_block(state, Verb::Faa, dst.cast(), 8, [addend, 0]);
                    Op::posted(self, self.count(Verb::Faa, dst.node(), 8), dst.cast(), 8, posted)
                }
            },
        }
    }

    /// Hints that `src` will be read soon.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # fn f(ep: &Endpoint, next: RemotePtr<[u64; 8]>) {
    /// ep.prefetch(next); // while this thread still works on the one before
    /// # }
    /// ```
    #[inline]
    pub fn prefetch<T>(&self, src: RemotePtr<T>) {
        if let Inner::Shm(lane, _) = &self.inner {
            lane.prefetch(src.cast());
        }
    }

    #[cold]
    #[inline(never)]
    fn fetch_block(
        &self,
        state: &DynState,
        verb: Verb,
        remote: RemotePtr<u8>,
        len: usize,
        operands: [u64; 2],
    ) -> Result<Pending, Code> {
        let block = self.dyn_block(len)?;
        let local = Local::block(&block);
        let landing = Some(Arc::clone(&block));
        let sequence = self.post_raw(state, verb, remote, len, operands, local, Some(block));
        Ok(Pending { remote, len: len as u32, sequence, landing })
    }

    /// A scratch block for an operation of a dynamic lane.
    fn dyn_block(&self, bytes: usize) -> Result<Arc<Block>, Code> {
        self.poll_lane_for_task();
        let scratch = self.scratch(bytes);
        let taken = scratch.take(bytes.max(8)).or_else(|_| {
            self.poll_lane();
            scratch.take(bytes.max(8))
        });
        taken.map_err(|error| match error.kind() {
            ErrorKind::NoBufferMemory { .. } => Code::NoBufferMemory,
            _ => Code::PoolExhausted,
        })
    }

    #[allow(clippy::too_many_arguments, reason = "one place assembles work requests")]
    pub(super) fn post<'e>(
        &'e self,
        state: &DynState,
        verb: Verb,
        remote: RemotePtr<u8>,
        len: usize,
        operands: [u64; 2],
        local: Local,
        block: Option<Arc<Block>>,
    ) -> Op<'e, ()> {
        let sequence = self.post_raw(state, verb, remote, len, operands, local, block);
        let depth = self.count(verb, remote.node(), len);
        Op::pending(self, depth, Pending { remote, len: len as u32, sequence, landing: None })
    }

    #[allow(clippy::too_many_arguments, reason = "one place assembles work requests")]
    fn post_raw(
        &self,
        state: &DynState,
        verb: Verb,
        remote: RemotePtr<u8>,
        len: usize,
        operands: [u64; 2],
        local: Local,
        block: Option<Arc<Block>>,
    ) -> u64 {
        if let Some(block) = &block {
            block.begin();
        }
        let peer = remote.node();
        let sequence = state.lane.borrow_mut().post(WorkRequest { verb, remote, len, operands, local });
        let number = state.issue(verb, remote);
        let mut in_flight = state.in_flight.borrow_mut();
        if in_flight.len() <= peer.index() {
            in_flight.resize_with(peer.index() + 1, VecDeque::new);
        }
        let in_flight = &mut in_flight[peer.index()];
        if in_flight.is_empty() {
            state.busy.borrow_mut().push(peer.index());
        }
        in_flight.push_back(InFlight {
            sequence,
            block,
            scratch: false,
            flushes: (number > 0).then_some((remote, number)),
        });
        sequence
    }
}
