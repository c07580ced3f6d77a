//! One thread's way into the fabric: its operations. What they cost is counted in `counts`, waiting for them and
//! interleaving many is in `run`, ordered batches in `batch`, the short way of RDMA for single words in `words`.

mod batch;
mod counts;
mod elsewhere;
mod fence;
mod marks;
mod run;
mod words;

use core::cell::{Cell, RefCell};
use core::ops::{Deref, DerefMut};
use core::sync::atomic::Ordering;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use zerocopy::IntoBytes;

pub use self::batch::Batch;
use self::counts::Counters;
pub use self::counts::{Counts, CountsReader};
pub(crate) use self::elsewhere::Awaits;
use self::elsewhere::Elsewhere;
use self::marks::{Marks, ShmMarks};
use self::run::WaitScope;
use crate::buf::{Block, Buf, Pool, SMALLEST_BYTES};
use crate::error::{Code, Error, ErrorKind, Result};
use crate::fabric::{Fabric, PeerState, Span, Waiting};
use crate::lane::{DynLane, Keep, Lane, Local, Status, Verb, WorkRequest};
use crate::local::Instant;
use crate::op::{BufOp, Landing, Op, Pending};
use crate::ptr::{NodeId, Plain, RemotePtr};
use crate::verbs::VerbsLane;

/// One thread's private lane into the fabric. It may be moved to another thread, not shared:
///
/// ```compile_fail,E0277
/// fn shared<T: Sync>() {}
/// shared::<farfield_fabric::Endpoint>();
/// ```
pub struct Endpoint {
    inner: Inner,
    fabric: Arc<dyn Fabric>,
    me: NodeId,
    pool: Pool,
    /// For what operations on words need themselves, so that they never lack it because of buffers.
    words: Pool,
    counters: Arc<Counters>,
    /// Length of the longest chain of round trips seen by the task that runs now.
    depth: Cell<u64>,
    /// Grows whenever something that was waited for has happened.
    progress: Cell<u64>,
    /// Grows whenever something else than the thread's own operations may have changed since it looked.
    changes: Cell<u64>,
    asleep: Cell<bool>,
    /// A remote word is being waited for, whose change rings no bell here.
    watches_remote: Cell<bool>,
    /// The next moment at which something that waits gives up.
    next_deadline: Cell<Instant>,
    elsewhere: Elsewhere,
    timeout: Cell<Duration>,
    number: usize,
}

enum Inner {
    Shm(crate::shm::ShmLane, ShmMarks),
    Dyn(DynState),
}

struct DynState {
    lane: RefCell<OtherLane>,
    /// Operations in flight that have a block, or flush: by number of node.
    in_flight: RefCell<Vec<VecDeque<InFlight>>>,
    /// Those nodes for which there are any.
    busy: RefCell<Vec<usize>>,
    marks: Marks,
    /// Operations so far.
    issued: Cell<u64>,
}

/// A lane of any fabric but shared memory.
enum OtherLane {
    Verbs(Box<VerbsLane>),
    Dyn(Box<dyn DynLane>),
}

impl Deref for OtherLane {
    type Target = dyn DynLane;
    fn deref(&self) -> &Self::Target {
        match self {
            OtherLane::Verbs(lane) => &**lane,
            OtherLane::Dyn(lane) => &**lane,
        }
    }
}

impl DerefMut for OtherLane {
    fn deref_mut(&mut self) -> &mut Self::Target {
        match self {
            OtherLane::Verbs(lane) => &mut **lane,
            OtherLane::Dyn(lane) => &mut **lane,
        }
    }
}

impl DynState {
    fn new(lane: OtherLane, nodes: usize) -> DynState {
        DynState {
            lane: RefCell::new(lane),
            in_flight: RefCell::default(),
            busy: RefCell::default(),
            marks: Marks::new(nodes),
            issued: Cell::new(0),
        }
    }

    /// Counts an operation. It flushes the puts by its queue pair up to the number that is returned.
    #[inline(always)]
    fn issue(&self, verb: Verb, remote: RemotePtr<u8>) -> u64 {
        let number = self.issued.get() + 1;
        self.issued.set(number);
        match verb {
            Verb::Get | Verb::Cas | Verb::Faa => number,
            Verb::Put => {
                self.marks.put(remote, number);
                0
            }
            Verb::RemoteFence => 0,
        }
    }
}

struct InFlight {
    sequence: u64,
    block: Option<Arc<Block>>,
    /// The block is nobody else's: it goes back to the pool when the operation is complete.
    scratch: bool,
    /// Where it reads, and its number: it flushes the puts before it by the same queue pair. None for a put or a fence.
    flushes: Option<(RemotePtr<u8>, u64)>,
}

/// Memory that operations on words have at least: enough for 16,384 that are under way, or were forgotten.
const WORDS_BYTES_MIN: usize = 1 << 20;

/// Options of an endpoint.
#[derive(Clone, Copy, Debug)]
pub struct EndpointOptions {
    /// Most bytes of registered buffers; and as many again, a megabyte at least, for operations on words and other small values,
    /// so that buffers never keep them waiting.
    pub pool_bytes_max: usize,
    /// How long blocking calls wait where none is given.
    pub timeout: Duration,
    /// No thread of its own waits on it, so it is not counted among those that share the cores.
    pub background: bool,
    /// Tells the endpoints of a node apart, see [`Endpoint::number`].
    pub number: usize,
}

impl Default for EndpointOptions {
    fn default() -> Self {
        EndpointOptions { pool_bytes_max: 256 << 20, timeout: Duration::from_secs(30), background: false, number: 0 }
    }
}

impl Endpoint {
    /// Opens an endpoint of a fabric.
    ///
    /// # Errors
    /// [`ErrorKind::TooMany`] when the node's lanes are used up; [`ErrorKind::NoBufferMemory`].
    pub fn open(fabric: Arc<dyn Fabric>, options: EndpointOptions) -> Result<Endpoint> {
        let nodes = fabric.nodes();
        let lane = fabric.open_lane(options.background)?;
        let store = lane.store();
        let inner = match lane {
            Lane::Shm(lane) => Inner::Shm(lane, ShmMarks::new(nodes)),
            Lane::Verbs(lane) => Inner::Dyn(DynState::new(OtherLane::Verbs(lane), nodes)),
            Lane::Dyn(lane) => Inner::Dyn(DynState::new(OtherLane::Dyn(lane), nodes)),
        };
        Ok(Endpoint {
            inner,
            me: fabric.me(),
            fabric,
            pool: Pool::new(options.pool_bytes_max, store.clone()),
            words: Pool::new(options.pool_bytes_max.max(WORDS_BYTES_MIN), store),
            counters: Arc::default(),
            depth: Cell::new(0),
            progress: Cell::new(0),
            changes: Cell::new(0),
            asleep: Cell::new(false),
            watches_remote: Cell::new(false),
            next_deadline: Cell::new(Instant::NEVER),
            elsewhere: Elsewhere::new(),
            timeout: Cell::new(options.timeout),
            number: options.number,
        })
    }

    /// The node that it belongs to.
    #[inline]
    pub fn me(&self) -> NodeId {
        self.me
    }

    /// Its number among the endpoints of its node, in the order in which they were opened, if whoever opened it gave it one.
    #[inline]
    pub fn number(&self) -> usize {
        self.number
    }

    /// Its fabric.
    pub fn fabric(&self) -> &Arc<dyn Fabric> {
        &self.fabric
    }

    /// What it has posted so far.
    pub fn counts(&self) -> Counts {
        Counts { round_trips: self.depth.get(), ..self.counters.read() }
    }

    /// A reader of its counters for other threads.
    pub fn counts_reader(&self) -> CountsReader {
        CountsReader(Arc::clone(&self.counters))
    }

    // ---- buffers ----------------------------------------------------------------------------------------------

    /// A buffer of `len` elements from the pool. Its contents are what an earlier user left, or zero.
    ///
    /// # Errors
    /// [`ErrorKind::PoolExhausted`]; [`ErrorKind::NoBufferMemory`] where buffers have to be registered, and no more can be.
    #[inline]
    pub fn buf<T: Plain>(&self, len: usize) -> Result<Buf<'_, T>> {
        Buf::new(self, len)
    }

    #[inline]
    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Where a block that an operation needs itself comes from, and goes back to.
    pub(crate) fn scratch(&self, bytes: usize) -> &Pool {
        if bytes <= SMALLEST_BYTES { &self.words } else { &self.pool }
    }

    #[cold]
    pub(crate) fn wait_for_block(&self, block: &Block) {
        // Every operation ends, at the latest with an error when its peer dies, so this does.
        let _wait = WaitScope::begin(self);
        let mut waiting = Waiting::default();
        while !block.is_idle() {
            self.poll_lane();
            self.idle(&mut waiting);
        }
        self.idle_end(&mut waiting);
    }

    // ---- operations -------------------------------------------------------------------------------------------

    /// Puts a value: its bytes are copied now, and land at `dst` later, in the order of this endpoint's puts to the
    /// node. Eight bytes land whole, more may be seen torn.
    ///
    /// # Errors
    /// (when waited for) A bad pointer, a revoked right, a node that is gone.
    #[inline(always)]
    pub fn put_value<T: Plain>(&self, dst: RemotePtr<T>, value: T) -> Op<'_, ()> {
        match &self.inner {
            Inner::Shm(lane, marks) => {
                marks.put(dst.node());
                let result = lane.put_value(dst, value);
                let depth = self.count(Verb::Put, dst.node(), size_of::<T>());
                Op::ended(self, depth, dst.cast(), size_of::<T>(), result)
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

    // Out of the way of shared memory, which is inlined.
    #[cold]
    #[inline(never)]
    fn put_value_block<'e, T: Plain>(
        &'e self,
        state: &DynState,
        dst: RemotePtr<T>,
        value: T,
    ) -> Result<Pending<'e>, Code> {
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

    /// Puts a word that no fence of this endpoint waits for: one that says something to a node which waits for it, and is
    /// nothing that others look for once it was told. Otherwise it is as any other put: it lands after what was put to
    /// that node before.
    ///
    /// ```
    /// # async fn f(ep: &farfield_fabric::Endpoint, bell: farfield_fabric::RemotePtr<u64>) -> farfield_fabric::Result<()> {
    /// ep.put_unfenced(bell, 1).await?;
    /// assert!(!ep.has_unflushed(bell.node()));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// (when waited for) As [`Endpoint::put_value`].
    #[inline]
    pub fn put_unfenced(&self, dst: RemotePtr<u64>, value: u64) -> Op<'_, ()> {
        match &self.inner {
            Inner::Shm(_, marks) => {
                let others = marks.has_unflushed(dst.node());
                let put = self.put_value(dst, value);
                if !others {
                    marks.put_unfenced(dst.node());
                }
                put
            }
            Inner::Dyn(state) => {
                let others = state.marks.has_unflushed_by(dst.cast());
                let put = self.put_value(dst, value);
                if !others {
                    state.marks.put_unfenced(dst.cast(), state.issued.get());
                }
                put
            }
        }
    }

    /// Puts the elements of a buffer, which cannot be changed while the handle lives.
    ///
    /// # Errors
    /// (when waited for) As [`Endpoint::put_value`].
    #[inline]
    pub fn put<'b, T: Plain>(&'b self, dst: RemotePtr<T>, src: &'b Buf<'_, T>) -> Op<'b, ()> {
        self.put_block(dst.cast(), src.block(), src.size_bytes())
    }

    /// Puts the elements of a buffer that the operation owns until it is complete.
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
                // SAFETY: the block has at least `len` bytes, and nobody writes to it while this call runs.
                let result = unsafe { lane.put_from(dst, block.as_ptr(), len) };
                Op::ended(self, self.count(Verb::Put, dst.node(), len), dst, len, result)
            }
            Inner::Dyn(state) => {
                let block = Some(Arc::clone(block));
                let local = Local::block(block.as_ref().expect("just made"));
                self.post(state, Verb::Put, dst, len, [0; 2], local, block)
            }
        }
    }

    /// Puts whatever the shared cells of `src` hold when the NIC reads them: at any moment until the operation is
    /// complete. The name says what is dangerous: a store that follows the call may be sent in place of what was there
    /// (`put x; x := 1` may send 1).
    ///
    /// # Errors
    /// (when waited for) As [`Endpoint::put_value`].
    #[inline]
    pub fn put_live<T: Plain>(&self, dst: RemotePtr<T>, src: Span<'_>) -> Op<'_, ()> {
        let len = src.bytes();
        match &self.inner {
            Inner::Shm(lane, marks) => {
                marks.put(dst.node());
                // SAFETY: the span covers `len` bytes of region memory, which is accessed by atomics only.
                let result = unsafe { lane.put_shared(dst.cast(), src.as_ptr(), len) };
                Op::ended(self, self.count(Verb::Put, dst.node(), len), dst.cast(), len, result)
            }
            Inner::Dyn(state) => {
                let local = Local { ptr: src.as_ptr(), keep: Keep::Memory(src.keep()) };
                self.post(state, Verb::Put, dst.cast(), len, [0; 2], local, None)
            }
        }
    }

    /// Gets a value. Eight bytes come whole; a larger value may mix several writes, so it comes [`Torn`](crate::Torn)
    /// from [`Endpoint::get_torn`]: this call is for words.
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
    /// # Errors
    /// (when waited for) As [`Endpoint::put_value`].
    #[inline]
    pub async fn get_torn<T: Plain>(&self, src: RemotePtr<T>) -> Result<crate::Torn<T>> {
        self.get_raw(src).await.map(crate::Torn)
    }

    #[inline(always)]
    fn get_raw<T: Plain>(&self, src: RemotePtr<T>) -> Op<'_, T> {
        match &self.inner {
            Inner::Shm(lane, marks) => {
                let result = lane.get_value(src);
                marks.read(src.node(), result.is_ok());
                let depth = self.count(Verb::Get, src.node(), size_of::<T>());
                Op::ended(self, depth, src.cast(), size_of::<T>(), result)
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
    /// # Errors
    /// (when waited for) As [`Endpoint::put_value`].
    #[inline]
    pub fn get_into<'e, T: Plain>(&'e self, src: RemotePtr<T>, into: Buf<'e, T>) -> BufOp<'e, T> {
        let (src, len) = (src.cast::<u8>(), into.size_bytes());
        if !into.block().is_idle() {
            // A put that was dropped may still read the memory: the get must not change it under it.
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

    /// Gets `words_each` words from each of `sources`, one after the other, into `into`: all of them posted together,
    /// in no order among each other.
    ///
    /// This is how many independent reads become as cheap as the memory allows: on shared memory they are prefetched
    /// and share one fence.
    ///
    /// # Errors
    /// The first failure; what is in `into` is not to be used then.
    pub async fn get_each(&self, sources: &[RemotePtr<u64>], words_each: usize, into: &mut Buf<'_, u64>) -> Result<()> {
        let (len, stride) = (words_each * 8, words_each);
        if into.len() < sources.len() * stride {
            let asked_bytes = sources.len() * len;
            return Err(ErrorKind::BufferTooShort { asked_bytes, buffer_bytes: into.size_bytes() }.into());
        }
        match &self.inner {
            Inner::Shm(lane, marks) => {
                for source in sources {
                    lane.prefetch(source.cast());
                }
                let _ = &mut **into; // waits for operations that were dropped on the buffer
                let mut first = Ok(());
                let mut fenced = false;
                for (index, source) in sources.iter().enumerate() {
                    self.count(Verb::Get, source.node(), len);
                    // SAFETY: the buffer has room for `sources.len() * stride` words, checked above, and is borrowed
                    // exclusively. One fence suffices: this thread stores nothing to region memory in between.
                    let result = unsafe {
                        lane.get_to_after(source.cast(), into.block().as_ptr().add(index * len), len, fenced)
                    };
                    // One that was refused has not fenced.
                    fenced |= result.is_ok();
                    marks.read(source.node(), result.is_ok());
                    if let Err(code) = result {
                        into[index * stride..][..stride].fill(0);
                        first = first.and(Err(self.explain(code, source.cast(), len as u32)));
                    }
                }
                let remote = sources.iter().any(|source| source.node() != self.me);
                self.saw_completion(self.depth.get() + u64::from(remote));
                first
            }
            Inner::Dyn(_) => {
                let mut gets = Vec::with_capacity(sources.len());
                for source in sources {
                    gets.push(self.get_into(*source, self.buf(stride)?));
                }
                let mut first = Ok(());
                for (index, get) in gets.into_iter().enumerate() {
                    match get.await {
                        Ok(words) => into[index * stride..][..stride].copy_from_slice(&words),
                        Err(error) => {
                            into[index * stride..][..stride].fill(0);
                            first = first.and(Err(error));
                        }
                    }
                }
                first
            }
        }
    }

    /// Remote compare-and-swap of a word: writes `new` if it is `expected`; the value found. Atomic with other remote
    /// atomics on the word, not with CPU accesses and puts.
    ///
    /// # Errors
    /// (when waited for) As [`Endpoint::put_value`].
    #[inline(always)]
    pub fn cas(&self, dst: RemotePtr<u64>, expected: u64, new: u64) -> Op<'_, u64> {
        match &self.inner {
            Inner::Shm(lane, marks) => {
                let result = lane.cas(dst, expected, new);
                marks.read(dst.node(), result.is_ok());
                Op::ended(self, self.count(Verb::Cas, dst.node(), 8), dst.cast(), 8, result)
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

    /// Remote fetch-and-add of a word, wrapping; the old value. Atomic with other remote atomics on the word, not with
    /// CPU accesses and puts.
    ///
    /// # Errors
    /// (when waited for) As [`Endpoint::put_value`].
    #[inline(always)]
    pub fn faa(&self, dst: RemotePtr<u64>, addend: u64) -> Op<'_, u64> {
        match &self.inner {
            Inner::Shm(lane, marks) => {
                let result = lane.faa(dst, addend);
                marks.read(dst.node(), result.is_ok());
                Op::ended(self, self.count(Verb::Faa, dst.node(), 8), dst.cast(), 8, result)
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

    /// An ordered batch to one node behind one doorbell.
    pub fn batch(&self, node: NodeId) -> Batch<'_> {
        Batch::new(self, node)
    }

    /// Hints that `src` will be read soon.
    #[inline]
    pub fn prefetch<T>(&self, src: RemotePtr<T>) {
        if let Inner::Shm(lane, _) = &self.inner {
            lane.prefetch(src.cast());
        }
    }

    #[cold]
    #[inline(never)]
    fn fetch_block<'e>(
        &'e self,
        state: &DynState,
        verb: Verb,
        remote: RemotePtr<u8>,
        len: usize,
        operands: [u64; 2],
    ) -> Result<Pending<'e>, Code> {
        let block = self.dyn_block(len)?;
        let local = Local::block(&block);
        let landing = Landing::new(self, Arc::clone(&block));
        let sequence = self.post_raw(state, verb, remote, len, operands, local, Some(block));
        Ok(Pending { remote, len: len as u32, sequence, landing: Some(landing) })
    }

    /// A scratch block for an operation of a dynamic lane.
    fn dyn_block(&self, bytes: usize) -> Result<Arc<Block>, Code> {
        self.poll_lane();
        self.scratch(bytes).take(bytes.max(8)).map_err(|error| match error.kind() {
            ErrorKind::NoBufferMemory { .. } => Code::NoBufferMemory,
            _ => Code::PoolExhausted,
        })
    }

    #[allow(clippy::too_many_arguments, reason = "one place assembles work requests")]
    fn post<'e>(
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

    /// The thread waits for something: what a dynamic lane holds back for a batch may be what it waits for.
    pub(crate) fn ring(&self) {
        if let Inner::Dyn(state) = &self.inner {
            state.lane.borrow_mut().ring();
        }
    }

    /// Makes progress with operations that nobody waits for: starts those that there was no room for, or that had to wait for
    /// others. Whether some have not started yet. Waiting for anything does the same; so this is for a thread that has
    /// [detached](Op::detach) operations and then does something else for long.
    ///
    /// ```
    /// # use farfield_fabric::{Endpoint, RemotePtr, Result};
    /// fn count(endpoint: &Endpoint, word: RemotePtr<u64>) -> Result<()> {
    ///     endpoint.faa(word, 1).detach()?;
    ///     while endpoint.progress() {
    ///         std::thread::yield_now();
    ///     }
    ///     Ok(())
    /// }
    /// ```
    pub fn progress(&self) -> bool {
        let Inner::Dyn(state) = &self.inner else { return false };
        let has_backlog = || state.lane.borrow().has_backlog();
        has_backlog() && {
            self.ring();
            self.poll_lane();
            has_backlog()
        }
    }

    /// Reaps completions of a dynamic lane.
    pub(crate) fn poll_lane(&self) {
        let Inner::Dyn(state) = &self.inner else { return };
        let mut lane = state.lane.borrow_mut();
        lane.poll();
        let mut in_flight = state.in_flight.borrow_mut();
        state.busy.borrow_mut().retain(|&index| {
            let to_peer = &mut in_flight[index];
            while let Some(first) = to_peer.front() {
                let status = lane.status(NodeId(index as u16), first.sequence);
                if status == Status::Pending {
                    break;
                }
                let ended = to_peer.pop_front().expect("just seen");
                if status == Status::Done
                    && let Some((remote, number)) = ended.flushes
                {
                    state.marks.flush(remote, number);
                }
                if let Some(block) = ended.block {
                    block.end();
                    self.progress.set(self.progress.get() + 1);
                    // The lane may hold the block a while longer, but a complete put reads it no more.
                    if ended.scratch {
                        self.scratch(block.bytes()).put_back(block);
                    }
                }
            }
            !to_peer.is_empty()
        });
    }

    pub(crate) fn status(&self, peer: NodeId, sequence: u64) -> Status {
        match &self.inner {
            Inner::Shm(..) => Status::Done,
            Inner::Dyn(state) => state.lane.borrow().status(peer, sequence),
        }
    }

    /// Tells a dynamic lane that a result is handed on.
    pub(crate) fn taken(&self, peer: NodeId, sequence: u64) {
        if let Inner::Dyn(state) = &self.inner {
            state.lane.borrow_mut().taken(peer, sequence);
        }
    }

    #[cold]
    pub(crate) fn explain(&self, code: Code, remote: RemotePtr<u8>, len: u32) -> Error {
        if code == Code::PoolExhausted {
            let limit_bytes = self.scratch(len as usize).limit_bytes();
            return ErrorKind::PoolExhausted { asked_bytes: len as usize, limit_bytes }.into();
        }
        self.fabric.explain(code, remote, len as usize)
    }

    /// The error that an operation to `node` would end in now, if the node is gone. A fabric may also say that this node
    /// is fenced; where it does not, the next operation does.
    ///
    /// # Errors
    /// [`ErrorKind::PeerDead`], [`ErrorKind::PeerLeft`] or [`ErrorKind::Fenced`].
    #[inline]
    pub fn check_alive(&self, node: NodeId) -> Result<()> {
        match &self.inner {
            Inner::Shm(lane, _) if lane.reachable(node).is_ok() => Ok(()),
            _ => self.check_alive_slow(node),
        }
    }

    /// The error that an operation on a word would be refused with now. Whatever is refused has not been done, while one that
    /// ends in an error after it was posted may have been. Nothing is posted. It is looked at as an atomic, so a node whose
    /// device has none refuses it. What this endpoint may lack itself ([`ErrorKind::PoolExhausted`],
    /// [`ErrorKind::NoQueuePair`] to its own node) is not foreseen.
    ///
    /// ```
    /// # async fn f(ep: &farfield_fabric::Endpoint, tail: farfield_fabric::RemotePtr<u64>) -> farfield_fabric::Result<()> {
    /// ep.check_word(tail)?; // after this error nobody has to be told that the swap may have been done
    /// let found = ep.cas(tail, 0, 1).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Those of [`Endpoint::check_alive`], and those of the operation.
    #[inline]
    pub fn check_word(&self, word: RemotePtr<u64>) -> Result<()> {
        let checked = match &self.inner {
            Inner::Shm(lane, _) => lane.check_word(word),
            Inner::Dyn(state) => self.check_alive(word.node()).map(|()| state.check_word(word))?,
        };
        checked.map_err(|code| self.explain(code, word.cast(), 8))
    }

    #[cold]
    fn check_alive_slow(&self, node: NodeId) -> Result<()> {
        match self.fabric.peer_state(node) {
            PeerState::Dead { incarnation } => Err(ErrorKind::PeerDead { node, incarnation }.into()),
            PeerState::Left => Err(ErrorKind::PeerLeft { node }.into()),
            // Elsewhere who is fenced learns it from the next operation.
            _ if matches!(self.inner, Inner::Shm(..)) && self.fabric.is_fenced() => Err(ErrorKind::Fenced.into()),
            PeerState::Absent | PeerState::Up { .. } => Ok(()),
        }
    }
}

impl Drop for Endpoint {
    /// Waits until what it has put is visible, or its target gone: a node that has dropped its endpoints and then leaves
    /// takes nothing with it.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.flush();
        }
        self.publish_depth();
        self.counters.closed.store(true, Ordering::Release);
    }
}
