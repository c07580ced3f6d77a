//! The operations of one thread. `access` has puts, gets and atomics, `counts` counts their cost, `calls` records the
//! calls of objects, `run` waits for operations and interleaves them, `word_wait` waits for memory, `batch` has ordered
//! batches, `words` has the short path of RDMA for single words, `at_once` and `near` those of shared memory for
//! several operations, and `boxed` the memory of futures that wait.

mod access;
mod any_lane;
mod at_once;
mod attempt;
mod batch;
mod boxed;
mod buf;
mod calls;
mod counts;
mod each;
mod elsewhere;
mod fence;
mod marks;
mod near;
mod op;
mod quorum;
mod round;
mod run;
mod together;
mod word_wait;
mod words;

use core::cell::{Cell, RefCell};
use core::sync::atomic::Ordering;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use self::any_lane::{AnyLane, OtherLane, ShmLane};
pub use self::attempt::{Attempt, Begun};
pub use self::batch::{Batch, Posted};
use self::boxed::KeptBlocks;
pub use self::boxed::{Boxed, Kept};
pub use self::buf::Buf;
use self::calls::Calls;
pub use self::calls::{CallCounts, CallEnd, CallsReader, Latencies};
use self::counts::Counters;
pub use self::counts::{Counts, CountsReader};
pub(crate) use self::elsewhere::Awaits;
use self::elsewhere::Elsewhere;
use self::marks::{Marks, ShmMarks};
pub use self::near::{Near, Posts};
pub use self::op::{BufOp, Op};
pub use self::quorum::Quorum;
use self::run::WaitScope;
pub use self::together::Together;
pub use self::word_wait::WordWait;
use crate::error::{Code, Error, ErrorKind, Result};
use crate::fabric::{Fabric, PeerState, Transport, Waiting, Watches};
use crate::lane::{Status, Verb};
use crate::local::Instant;
use crate::pool::{Block, Pool, SMALLEST_BYTES};
use crate::ptr::{NodeId, Plain, RemotePtr};

/// One thread's private access to the fabric. It may be moved to another thread, but not shared:
///
/// ```compile_fail,E0277
/// fn shared<T: Sync>() {}
/// shared::<farfield_fabric::Endpoint>();
/// ```
pub struct Endpoint {
    inner: Inner,
    fabric: Arc<dyn Transport>,
    me: NodeId,
    pool: Pool,
    /// A pool of their own for operations on words, so that buffers never use up its memory.
    words: Pool,
    counters: Arc<Counters>,
    /// The calls of objects, if they are recorded.
    calls: Option<Arc<Calls>>,
    /// The length of the longest chain of round trips that the running task has seen.
    depth: Cell<u64>,
    /// Incremented when a wait condition is satisfied.
    progress: Cell<u64>,
    /// Incremented when something other than the thread's own operations may have changed since its last poll.
    changes: Cell<u64>,
    asleep: Cell<bool>,
    /// The thread's wait still spins: its looks follow each other at once.
    spins: Cell<bool>,
    /// Whether spinning was worth its while, and for how many more waits this is believed.
    spin_advice: Cell<(bool, u32)>,
    /// What the thread's waits depend on.
    watches: Cell<Watches>,
    /// The earliest deadline of a wait.
    next_deadline: Cell<Instant>,
    elsewhere: Elsewhere,
    timeout: Cell<Duration>,
    number: usize,
    blocks: KeptBlocks,
}

enum Inner {
    Shm(ShmLane, ShmMarks),
    Dyn(DynState),
}

struct DynState {
    lane: RefCell<OtherLane>,
    /// Operations in flight that have a block, or that flush, by the number of their node.
    in_flight: RefCell<Vec<VecDeque<InFlight>>>,
    /// The nodes with such operations.
    busy: RefCell<Vec<usize>>,
    marks: Marks,
    /// The number of operations so far.
    issued: Cell<u64>,
    /// Room for the gets of a fence.
    fence_gets: Cell<VecDeque<fence::PostedGet>>,
    /// How many tasks wait for reads while others have the handles ([`Endpoint::wait_for_reads`]).
    reads_awaited: Cell<u32>,
    /// Rounds of tasks in which the lane holds back what is posted ([`Round`](round::Round)).
    rounds: Cell<u32>,
}

impl DynState {
    fn new(lane: OtherLane, nodes: usize) -> DynState {
        DynState {
            lane: RefCell::new(lane),
            in_flight: RefCell::default(),
            busy: RefCell::default(),
            marks: Marks::new(nodes),
            issued: Cell::new(0),
            fence_gets: Cell::default(),
            reads_awaited: Cell::new(0),
            rounds: Cell::new(0),
        }
    }

    /// Counts an operation. It flushes the puts of its queue pair up to the returned number.
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
    /// The operation owns the block alone. It returns to the pool when the operation is complete.
    scratch: bool,
    /// The source of its read, and its number: it flushes the earlier puts of the same queue pair. None for a put or a
    /// fence.
    flushes: Option<(RemotePtr<u8>, u64)>,
}

/// The least memory for operations on words: enough for 16,384 in flight or forgotten.
const WORDS_BYTES_MIN: usize = 1 << 20;

/// Options of an endpoint.
///
/// ```
/// use farfield_fabric::EndpointOptions;
/// let options = EndpointOptions { pool_bytes_max: 16 << 20, ..EndpointOptions::default() };
/// assert_eq!(options.timeout.as_secs(), 30);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct EndpointOptions {
    /// The most bytes of registered buffers. Operations on words and other small values have as much again, a megabyte
    /// at least, so that buffers never delay them.
    pub pool_bytes_max: usize,
    /// The default timeout of blocking calls.
    pub timeout: Duration,
    /// No thread of its own waits on the endpoint, so it is not counted among the threads that share the cores.
    pub background: bool,
    /// Identifies the endpoint among those of its node: see [`Endpoint::number`].
    pub number: usize,
    /// How many different calls of objects it has room to record, see [`Endpoint::record_call`]. By default none.
    pub calls: usize,
}

impl Default for EndpointOptions {
    fn default() -> Self {
        let (pool_bytes_max, timeout) = (256 << 20, Duration::from_secs(30));
        EndpointOptions { pool_bytes_max, timeout, background: false, number: 0, calls: 0 }
    }
}

impl EndpointOptions {
    /// The most bytes of one buffer ([`Endpoint::buf`]): a buffer takes a power of two, of 1 GiB at most.
    ///
    /// ```
    /// # use farfield_fabric::EndpointOptions;
    /// let options = EndpointOptions { pool_bytes_max: 3 << 20, ..EndpointOptions::default() };
    /// assert_eq!(options.buf_bytes_max(), 2 << 20);
    /// ```
    pub fn buf_bytes_max(&self) -> usize {
        Pool::largest(self.pool_bytes_max)
    }
}

impl Endpoint {
    /// Opens an endpoint of a fabric.
    ///
    /// ```
    /// # use farfield_fabric::{shm::*, *};
    /// # use std::sync::{Arc, mpsc};
    /// # fn main() -> Result<()> {
    /// # let node = ShmFabric::join(&ShmOptions::new(format!("doc-open-{}", std::process::id()), 0, 1))?;
    /// # let (end, ends) = mpsc::channel::<()>();
    /// # let serving = Arc::clone(&node);
    /// # let serve = move || {
    /// #     while ends.try_recv() == Err(mpsc::TryRecvError::Empty) {
    /// #         serving.serve(std::time::Duration::from_millis(1), &mut |_| {});
    /// #     }
    /// #     serving.leave();
    /// # };
    /// # let service = Arc::clone(&node).spawn_service("service".into(), Box::new(serve))?;
    /// let word = node.alloc(GroupKey::DATA, 8)?.remote::<u64>(0);
    /// let ep = Endpoint::open(node, EndpointOptions::default())?;
    /// assert_eq!((ep.faa(word, 2).wait()?, ep.get(word).wait()?), (0, 2));
    /// # drop((ep, end));
    /// # service.join().expect("the service thread does not panic");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::TooMany`] when the node's lanes are used up; [`ErrorKind::NoBufferMemory`].
    pub fn open(fabric: Arc<dyn Transport>, options: EndpointOptions) -> Result<Endpoint> {
        let nodes = fabric.nodes();
        let lane = fabric.open_lane(options.background)?;
        let store = lane.store();
        let inner = match AnyLane::of(lane) {
            AnyLane::Shm(lane) => Inner::Shm(*lane, ShmMarks::new(nodes)),
            AnyLane::Other(lane) => Inner::Dyn(DynState::new(lane, nodes)),
        };
        Ok(Endpoint {
            inner,
            me: fabric.me(),
            fabric,
            pool: Pool::new(options.pool_bytes_max, store.clone()),
            words: Pool::new(options.pool_bytes_max.max(WORDS_BYTES_MIN), store),
            counters: Arc::default(),
            calls: Calls::new(options.calls),
            depth: Cell::new(0),
            progress: Cell::new(0),
            changes: Cell::new(0),
            asleep: Cell::new(false),
            spins: Cell::new(false),
            spin_advice: Cell::new((false, 0)),
            watches: Cell::new(Watches::Nothing),
            next_deadline: Cell::new(Instant::NEVER),
            elsewhere: Elsewhere::new(),
            timeout: Cell::new(options.timeout),
            number: options.number,
            blocks: KeptBlocks::default(),
        })
    }

    /// The node of this endpoint.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # fn f(ep: &Endpoint, word: RemotePtr<u64>) {
    /// let is_near = word.node() == ep.me();
    /// # }
    /// ```
    #[inline]
    pub fn me(&self) -> NodeId {
        self.me
    }

    /// The endpoint's number among those of its node, in the order of opening, if its opener has set one.
    ///
    /// ```
    /// # fn f(ep: &farfield_fabric::Endpoint) {
    /// println!("endpoint {} of {}", ep.number(), ep.me());
    /// # }
    /// ```
    #[inline]
    pub fn number(&self) -> usize {
        self.number
    }

    /// The endpoint's fabric.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # fn f(ep: &Endpoint) -> Result<()> {
    /// let region = ep.fabric().alloc(GroupKey::DATA, 4096)?; // memory of this node
    /// # Ok(()) }
    /// ```
    pub fn fabric(&self) -> &dyn Fabric {
        &*self.fabric
    }

    /// The runtime's side of the fabric, for decorators, tools and tests: see [`Transport`].
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # fn f(ep: &Endpoint) -> Result<()> {
    /// let another = Endpoint::open(ep.transport().clone(), EndpointOptions::default())?; // for one more thread
    /// # Ok(()) }
    /// ```
    pub fn transport(&self) -> &Arc<dyn Transport> {
        &self.fabric
    }

    /// The counts of posted operations so far.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # fn f(ep: &Endpoint, word: RemotePtr<u64>) -> Result<()> {
    /// let before = ep.counts();
    /// ep.get(word).wait()?;
    /// assert_eq!((ep.counts() - before).gets, 1);
    /// # Ok(()) }
    /// ```
    pub fn counts(&self) -> Counts {
        Counts { round_trips: self.depth.get(), ..self.counters.read() }
    }

    /// A reader of the endpoint's counters for other threads.
    ///
    /// ```
    /// # fn f(ep: &farfield_fabric::Endpoint) {
    /// let reader = ep.counts_reader();
    /// std::thread::spawn(move || println!("{:?}", reader.read()));
    /// # }
    /// ```
    pub fn counts_reader(&self) -> CountsReader {
        CountsReader(Arc::clone(&self.counters))
    }

    // ---- buffers ----------------------------------------------------------------------------------------------

    /// Takes a buffer of `len` elements from the pool. Its contents are those of an earlier user, or zero.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # fn f(ep: &Endpoint, row: RemotePtr<u64>) -> Result<()> {
    /// let mut buf = ep.buf::<u64>(64)?;
    /// buf.fill(7);
    /// ep.put(row, &buf).wait()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::PoolExhausted`]. [`ErrorKind::NoBufferMemory`] if buffers must be registered and no more can be.
    #[inline]
    pub fn buf<T: Plain>(&self, len: usize) -> Result<Buf<'_, T>> {
        Buf::new(self, len)
    }

    #[inline]
    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The pool for blocks that operations need themselves.
    pub(crate) fn scratch(&self, bytes: usize) -> &Pool {
        if bytes <= SMALLEST_BYTES { &self.words } else { &self.pool }
    }

    #[cold]
    pub(crate) fn wait_for_block(&self, block: &Block) {
        // Every operation ends, at the latest with an error when its peer dies, so this wait ends.
        let _wait = WaitScope::begin(self);
        let mut waiting = Waiting::default();
        while !block.is_idle() {
            self.poll_lane();
            self.idle(&mut waiting);
        }
        self.idle_end(&mut waiting);
    }

    // ---- operations -------------------------------------------------------------------------------------------

    /// An ordered batch to one node behind one doorbell.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # async fn f(ep: &Endpoint, row: RemotePtr<u64>) -> Result<()> {
    /// ep.batch(row.node()).put_value(row, 42).put_value(row.at(1), 1).post().await?;
    /// # Ok(()) }
    /// ```
    pub fn batch(&self, node: NodeId) -> Batch<'_> {
        Batch::new(self, node)
    }

    /// Starts the work that a dynamic lane holds back for a batch: the waiting thread may depend on it.
    pub(crate) fn ring(&self) {
        if let Inner::Dyn(state) = &self.inner {
            state.lane.borrow_mut().ring();
        }
    }

    /// Makes progress with operations that no task waits for: starts those that had no room, or that had to wait for
    /// others. Returns whether some have not started yet. Any wait does the same. So this is for a thread that has
    /// [detached](crate::Op::detach) operations and then does something else for long.
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
                    // The lane may hold the block longer, but a complete put no longer reads it.
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

    /// Informs a dynamic lane that a result has been returned.
    pub(crate) fn taken(&self, peer: NodeId, sequence: u64) {
        if let Inner::Dyn(state) = &self.inner {
            state.lane.borrow_mut().taken(peer, sequence, state.reads_awaited.get() > 0);
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

    /// Checks that a node is alive: fails with the error that an operation on it would end in now. Some fabrics also
    /// report that this node is fenced; on the others the next operation does.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # async fn f(ep: &Endpoint, peer: NodeId, answer: &Word) -> Result<u64> {
    /// let look = || match ep.check_alive(peer) {
    ///     Ok(()) => Some(answer.load()).filter(|value| *value != 0).map(Ok),
    ///     Err(gone) => Some(Err(gone)), // or it would wait for an answer that never comes
    /// };
    /// ep.wait_until(ep.deadline(), look).await?
    /// # }
    /// ```
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

    /// Fails with the error that an operation on a word would be refused with now, and posts nothing. A refused
    /// operation has not been done, while one that fails after it was posted may have been. The check is that of an
    /// atomic, so it fails if the node's device has no atomics. It does not predict resources that this endpoint may
    /// lack itself ([`ErrorKind::PoolExhausted`], [`ErrorKind::NoQueuePair`] to its own node).
    ///
    /// ```
    /// # use farfield_fabric::{Endpoint, RemotePtr, Result};
    /// # async fn f(ep: &Endpoint, tail: RemotePtr<u64>) -> Result<()> {
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
            // On other fabrics a fenced node learns it from its next operation.
            _ if matches!(self.inner, Inner::Shm(..)) && self.fabric.is_fenced() => Err(ErrorKind::Fenced.into()),
            PeerState::NotJoined | PeerState::Up { .. } => Ok(()),
        }
    }
}

impl Drop for Endpoint {
    /// Waits until the endpoint's puts are visible, or their targets dead or departed. So a node that drops its
    /// endpoints and then leaves loses no put.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.flush();
        }
        self.publish_depth();
        self.counters.closed.store(true, Ordering::Release);
        if let Some(calls) = &self.calls {
            calls.close();
        }
    }
}
