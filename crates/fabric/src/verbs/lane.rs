//! A thread's lane: a queue pair to each peer, one to its own node once it uses it, and one completion queue that the
//! owner polls.
//!
//! - **Posting never blocks.** A request that does not fit the send queue or the completion queue waits here, in order.
//!   It is posted as completions make room, whenever the owner polls. So is a request that a software device would
//!   execute wrongly now. Operations of a batch wait here too, and share one doorbell. Only the last work request of
//!   a doorbell is signalled; its completion means that those before it are complete as well.
//! - **Nothing is lost.** Work requests of a queue pair complete in order, so each has a position; a completion ends
//!   all up to its own. A failure ends the queue pair. Requests in flight end as the device flushes them, waiting
//!   requests end at once, and later ones are refused, all with the first failure's code. If the device does not flush
//!   in time, the queue pair is destroyed, and then no request is in flight. It is never connected again.
//! - **Memory that the peer frees** gets no new request: a waiting request is checked again when it is posted, and
//!   posted requests are counted, so that the freeing node can wait until they have ended (`connections/freeing.rs`). A
//!   late request fails alone, even if it was accepted: its object was closed everywhere, so none depends on it.
//! - **An accepted request fails together with all later ones** ([`Lane`]). A request that the device refuses while
//!   it is posted fails alone. A request that had to wait was accepted, and its caller may no longer check it: if the
//!   device refuses it, the queue pair is ended.
//! - **Local memory.** Short puts are copied into the work request. For the rest, pool blocks are in slabs of the
//!   node's registered memory (`store`): nothing is copied, no operation waits for a place in a staging area, and none
//!   registers anything. Shared cells are registered with their chunk.

mod complete;
mod own;
mod start;
mod words;

use core::sync::atomic::{AtomicU64, Ordering, compiler_fence};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use farfield_verbs_sys::*;

use self::words::{Route, Words};
use super::carrier::Rdma;
use super::device::Device;
use super::error::VerbsError;
use super::peer::{Operation, Pair, Peer};
use super::post::{LocalKey, Poster, Work, WorkId};
use super::queue::{CompletionQueue, INLINE_BYTES_MAX, QueuePair};
use super::registration::MemoryRegion;
use super::store::BufferStore;
use crate::error::{Code, Result};
use crate::hosts::connections::OwnNode;
use crate::hosts::layout::PeerMemory;
use crate::hosts::memory::GroupMemory;
use crate::lane::{Keep, Lane, Local, Status, Verb, WorkRequest};
use crate::pool::{Block, BufferMemory, SMALLEST_BYTES, Slab};
use crate::ptr::{GroupKey, NodeId};
use crate::space::Allocation;

/// The completions that a lane's queue holds, and so the work requests that a lane has in flight.
const COMPLETIONS: usize = 4096;
/// The longest message of one work request; devices may allow less.
const MESSAGE_BYTES_MAX: u64 = 1 << 30;
/// The time that a device may take to flush a failed queue pair.
const FLUSH_TIME: Duration = Duration::from_secs(1);
/// A device gives up on a peer after about its patience, by the specification after four times as much at the latest.
/// After so many times as much silence it never will. The time to move the data in flight, at the slowest acceptable
/// pace, does not count.
const PATIENCES_MAX: u32 = 8;
const BYTES_PER_MS_MIN: u64 = 1000;
/// The completions taken by one call.
const REAPED_MAX: usize = 16;
/// Polls between two checks for queue pairs that are not flushed.
const POLLS_PER_LOOK: u32 = 256;

/// A lane over RDMA.
pub(crate) struct VerbsLane {
    port: Arc<LanePort>,
    completions: Arc<CompletionQueue>,
    /// Arrivals that were taken.
    taken: u64,
    peers: Vec<Peer>,
    /// All queue pairs. An ended one keeps its place.
    pairs: Vec<Pair>,
    /// Work requests in flight, on all queue pairs.
    outstanding: usize,
    /// Peers with waiting work.
    backlog: Vec<usize>,
    poster: Poster,
    /// The target of reads that only flush.
    scratch: Arc<Block>,
    words: Words,
    /// The route of the last operation on a word, if nothing has invalidated it since.
    route: Route,
    newest_word: WorkId,
    polls: u32,
    /// The time of the last check for operations that do not end.
    looked: Instant,
    /// Room for completions.
    reaped: Box<[ibv_wc; REAPED_MAX]>,
    /// Dropped after the queue pairs, and so are the following fields.
    own_node: Option<OwnNode<Rdma>>,
    kept: Vec<Box<dyn Send>>,
    store: Arc<BufferStore>,
}

/// The side of a lane that other threads use: the control plane passes connections to it.
pub(crate) struct LanePort {
    device: Arc<Device>,
    completions: Arc<CompletionQueue>,
    arrivals: Mutex<Vec<Arrival>>,
    count: AtomicU64,
    /// Work requests that the lane was about to post, and how many of them are no longer in flight. The lane counts a
    /// request before it checks for the last time that the request's memory exists.
    posted: AtomicU64,
    ended: AtomicU64,
}

/// A connection that the lane has not taken yet.
struct Arrival {
    peer: NodeId,
    class: GroupKey,
    queue: QueuePair,
    memory: Arc<PeerMemory>,
}

impl LanePort {
    /// The lane is about to post.
    #[inline]
    fn begin(&self, count: usize) {
        self.posted.store(self.posted.load(Ordering::Relaxed) + count as u64, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst); // the thread that hears of memory given back makes the processor's fence
    }

    #[inline]
    fn end(&self, count: usize) {
        self.ended.store(self.ended.load(Ordering::Relaxed) + count as u64, Ordering::Release);
    }

    /// Called after a heavy fence: the requests that the lane may have in flight by its earlier knowledge, as a number
    /// for [`LanePort::has_ended`].
    pub(super) fn under_way(&self) -> Option<u64> {
        let posted = self.posted.load(Ordering::Acquire);
        (!self.has_ended(posted)).then_some(posted)
    }

    pub(super) fn has_ended(&self, posted: u64) -> bool {
        self.ended.load(Ordering::Acquire) >= posted
    }

    /// A queue pair of the lane, to be connected.
    ///
    /// # Errors
    /// The device has no more.
    pub(crate) fn new_pair(&self) -> Result<QueuePair, VerbsError> {
        QueuePair::new(&self.device, &self.completions)
    }

    #[cfg(any(test, feature = "bare"))]
    pub(super) fn completions(&self) -> Arc<CompletionQueue> {
        Arc::clone(&self.completions)
    }

    /// Passes a connected queue pair to the lane, by which it reaches `memory` of the peer: the group `key`, or if it
    /// is one of the first three, all three of them. While one for the same groups works, another is dropped.
    pub(crate) fn add(&self, peer: NodeId, key: GroupKey, queue: QueuePair, memory: Arc<PeerMemory>) {
        let mut arrivals = self.arrivals.lock().unwrap_or_else(PoisonError::into_inner);
        arrivals.push(Arrival { peer, class: key.class(), queue, memory });
        self.count.fetch_add(1, Ordering::Release);
    }
}

impl VerbsLane {
    /// Opens a lane without peers. Its endpoint has its buffers in `store`.
    ///
    /// # Errors
    /// The device has no more completion queues, or no more memory can be registered.
    pub(crate) fn open(store: &Arc<BufferStore>) -> Result<VerbsLane> {
        let device = store.device();
        let own = Slab::of_piece(Arc::clone(store).take(Words::BYTES + SMALLEST_BYTES)?);
        let port = LanePort {
            device: Arc::clone(device),
            completions: Arc::new(CompletionQueue::new(device, COMPLETIONS)?),
            arrivals: Mutex::default(),
            count: AtomicU64::new(0),
            posted: AtomicU64::new(0),
            ended: AtomicU64::new(0),
        };
        Ok(VerbsLane {
            completions: Arc::clone(&port.completions),
            port: Arc::new(port),
            taken: 0,
            peers: Vec::new(),
            pairs: Vec::new(),
            outstanding: 0,
            backlog: Vec::new(),
            poster: Poster::new(),
            scratch: own.block(Words::BYTES, SMALLEST_BYTES),
            words: Words::new(own.block(0, Words::BYTES)),
            route: Route::SHUT,
            newest_word: WorkId::NONE,
            polls: 0,
            looked: Instant::now(),
            reaped: Box::new([ibv_wc::default(); REAPED_MAX]),
            own_node: None,
            kept: Vec::new(),
            store: Arc::clone(store),
        })
    }

    /// The side of the lane for other threads.
    #[must_use]
    pub(crate) fn port(&self) -> Arc<LanePort> {
        Arc::clone(&self.port)
    }

    /// The queue pair that reaches a word, the word's address and its key.
    #[cfg(any(test, feature = "bare"))]
    pub(super) fn path_to(&mut self, word: crate::ptr::RemotePtr<u64>) -> Result<(&QueuePair, u64, u32), Code> {
        self.take_arrivals();
        let (pair_at, address, rkey) = self.place_to_post(&WorkRequest {
            verb: Verb::Faa,
            remote: word.cast(),
            len: 8,
            operands: [0; 2],
            local: Local::nothing(),
        })?;
        let queue = self.pairs[pair_at].queue.as_ref().ok_or(Code::Unreachable)?;
        Ok((queue, address, rkey))
    }

    /// A block of registered memory, for a word.
    #[cfg(any(test, feature = "bare"))]
    pub(super) fn new_block(&self) -> Result<Arc<Block>, Code> {
        let piece = Arc::clone(&self.store).take(SMALLEST_BYTES).map_err(|_| Code::NoBufferMemory)?;
        Ok(Slab::of_piece(piece).block(0, SMALLEST_BYTES))
    }

    /// The local key of a block.
    pub(super) fn register(&self, block: &Block) -> Result<u32, Code> {
        match self.block_key(block)? {
            LocalKey::Registered(key) => Ok(key),
            _ => Err(Code::Device),
        }
    }

    /// Keeps this until the lane is closed.
    pub(super) fn keep(&mut self, kept: Box<dyn Send>) {
        self.kept.push(kept);
    }

    fn peer(&mut self, at: usize) -> &mut Peer {
        if self.peers.len() <= at {
            self.peers.resize_with(at + 1, Peer::default);
        }
        &mut self.peers[at]
    }

    #[inline]
    fn take_arrivals(&mut self) {
        if self.port.count.load(Ordering::Acquire) != self.taken {
            self.take_arrivals_now();
        }
    }

    #[cold]
    fn take_arrivals_now(&mut self) {
        self.route = Route::SHUT;
        let arrivals = core::mem::take(&mut *self.port.arrivals.lock().unwrap_or_else(PoisonError::into_inner));
        for Arrival { peer: node, class, queue, memory } in arrivals {
            self.taken += 1;
            let new_at = self.pairs.len();
            let peer = self.peer(node.index());
            peer.memory.get_or_insert(memory);
            let Some(pair_at) = peer.pair(class) else {
                if new_at < WorkId::PAIRS_MAX {
                    peer.pairs.push((class, new_at));
                    self.pairs.push(Pair::new(node, class, queue, 0));
                }
                continue;
            };
            if self.pairs[pair_at].check().is_err() {
                self.destroy(pair_at);
                // Positions continue: no completion of the earlier queue pair counts for this one.
                self.pairs[pair_at] = Pair::new(node, class, queue, self.pairs[pair_at].posted.next);
            }
        }
    }

    /// The queue pair for a request, and the address and key of its remote memory.
    fn place(&self, request: &WorkRequest) -> Result<(usize, u64, u32), Code> {
        let peer = self.peers.get(request.peer().index()).ok_or(Code::BadKey)?;
        let key = request.remote.key();
        let Some(at) = peer.pair(key.class()) else {
            let is_revoked = peer.memory.as_ref().is_some_and(|memory| memory.is_revoked(key));
            return Err(if is_revoked { Code::Revoked } else { Code::BadKey });
        };
        let pair = &self.pairs[at];
        pair.check()?;
        if request.verb == Verb::RemoteFence {
            return Ok((at, 0, 0));
        }
        if !request.remote.offset().is_multiple_of(8) {
            return Err(Code::Misaligned);
        }
        if matches!(request.verb, Verb::Cas | Verb::Faa) && !pair.queue.as_ref().is_some_and(|queue| queue.has_atomics)
        {
            return Err(Code::NoAtomics);
        }
        let (address, rkey) = peer.memory.as_ref().ok_or(Code::BadKey)?.find(request.remote, request.len)?;
        Ok((at, address, rkey))
    }

    /// How a request names its local memory.
    fn local_key(&self, request: &WorkRequest, inline_bytes_max: usize) -> Result<LocalKey, Code> {
        let inline = request.verb == Verb::Put && request.len <= inline_bytes_max.min(INLINE_BYTES_MAX);
        match &request.local.keep {
            _ if request.len == 0 => Ok(LocalKey::Empty),
            Keep::Block(_) if inline => Ok(LocalKey::Inline),
            Keep::Memory(_) if inline => Ok(LocalKey::InlineShared),
            Keep::Block(block) => self.block_key(block),
            Keep::Memory(memory) => {
                match memory.downcast_ref().and_then(|part: &Allocation| part.memory.downcast_ref()) {
                    Some(memory) => GroupMemory::<Device>::local_key(memory, request.local.ptr, request.len)
                        .map(LocalKey::Registered),
                    None => Err(Code::Device),
                }
            }
            Keep::Nothing => Err(Code::Device),
        }
    }

    fn block_key(&self, block: &Block) -> Result<LocalKey, Code> {
        let device = &self.port.device;
        // A block of a store is registered. The copies that decorators make are not.
        // SAFETY: the slab keeps the registration and drops it before its memory, which operations use as `buf`
        // describes.
        let key = block.local_key(|start, bytes| unsafe { MemoryRegion::of_slab(device, start, bytes) });
        key.map(LocalKey::Registered).map_err(|_| Code::Device)
    }

    /// Queues the work of a request; `Done` if there is none.
    fn admit(&mut self, request: &WorkRequest, sequence: u64) -> Result<Status, Code> {
        if request.verb == Verb::RemoteFence {
            match self.place(request) {
                Ok((pair_at, ..)) => self.pairs[pair_at].fence_next = true,
                // No earlier put to its own node could be overtaken.
                Err(code) => drop(self.may_open(request, code)?.ok_or(code)?),
            }
            return Ok(Status::Done);
        }
        let (pair_at, address, rkey) = self.place_to_post(request)?;
        let info = self.pairs[pair_at].queue.as_ref().ok_or(Code::Unreachable)?.info;
        let key = self.local_key(request, info.inline_bytes_max)?;
        let flush_key = match request.verb {
            Verb::Put if !info.puts_in_order && self.pairs[pair_at].has_open_put && request.len > 0 => {
                Some(self.block_key(&self.scratch)?)
            }
            _ => None,
        };
        let piece_bytes = self.port.device.port.message_bytes_max.clamp(1, MESSAGE_BYTES_MAX) as usize & !7;
        let pair = &mut self.pairs[pair_at];
        let into_cells = matches!(request.local.keep, Keep::Memory(_)) && request.verb == Verb::Get;
        let must_follow =
            if request.verb == Verb::Put { !info.puts_in_order } else { into_cells && !info.gets_in_order };
        let whole = Work {
            sequence,
            is_whole: request.len <= piece_bytes,
            verb: request.verb,
            fence: core::mem::take(&mut pair.fence_next) || must_follow,
            local: request.local.ptr,
            len: request.len as u32,
            key,
            address,
            rkey,
            operands: request.operands,
            remote: request.remote,
        };
        if let Some(key) = flush_key {
            // The read finds the earlier puts done, and the put waits for the read: see the module's "Order".
            let local = self.scratch.as_ptr();
            pair.waiting.push_back(Work { sequence: 0, verb: Verb::Get, fence: false, local, len: 8, key, ..whole });
        }
        pair.has_open_put = request.verb == Verb::Put;
        let mut from = 0;
        while request.len - from > piece_bytes {
            let (local, address) = (whole.local.wrapping_add(from), address + from as u64);
            let (fence, remote) = (whole.fence && from == 0, request.remote.byte_add(from as u64));
            pair.waiting.push_back(Work {
                sequence: 0,
                fence,
                local,
                len: piece_bytes as u32,
                address,
                remote,
                ..whole
            });
            from += piece_bytes;
        }
        let (local, len) = (whole.local.wrapping_add(from), (request.len - from) as u32);
        let (fence, remote) = (whole.fence && from == 0, request.remote.byte_add(from as u64));
        pair.waiting.push_back(Work { fence, local, len, address: address + from as u64, remote, ..whole });
        Ok(Status::Pending)
    }
}

impl crate::lane::sealed::Sealed for VerbsLane {}

impl Lane for VerbsLane {
    fn check(&mut self, request: &WorkRequest) -> Result<(), Code> {
        self.take_arrivals();
        match self.place(request) {
            Ok(_) => Ok(()),
            // A check opens no queue pair.
            Err(code) => self.may_open(request, code)?.map(drop).ok_or(code),
        }
    }

    fn post(&mut self, request: WorkRequest) -> u64 {
        self.take_arrivals();
        self.route = Route::SHUT;
        let at = request.peer().index();
        let peer = self.peer(at);
        let sequence = peer.ended + peer.operations.len() as u64 + 1;
        let status = self.admit(&request, sequence).unwrap_or_else(Status::Failed);
        let keep = if status == Status::Pending { request.local.keep } else { Keep::Nothing };
        let peer = &mut self.peers[at];
        peer.operations.push_back(Operation { status, keep });
        if status != Status::Pending {
            peer.settle();
        } else if peer.holds == 0 {
            self.start(at, sequence);
            if self.peers[at].is_in_backlog {
                // The queue is full: completions make room.
                self.poll();
            }
        } else if !core::mem::replace(&mut peer.is_in_backlog, true) {
            self.backlog.push(at);
        }
        sequence
    }

    fn hold(&mut self, peer: NodeId) {
        self.route = Route::SHUT;
        self.peer(peer.index()).holds += 1;
    }

    fn doorbell(&mut self, peer: NodeId) {
        let at = peer.index();
        let peer = self.peer(at);
        peer.holds = peer.holds.saturating_sub(1);
        if peer.holds == 0 {
            self.start(at, 0);
        }
    }

    fn store(&self) -> Option<Arc<dyn BufferMemory>> {
        Some(self.store.clone())
    }

    fn ring(&mut self) {
        if !self.backlog.is_empty() {
            self.start_backlog(true);
        }
    }

    fn has_backlog(&self) -> bool {
        !self.backlog.is_empty()
    }

    fn poll(&mut self) {
        self.reap();
        self.look_around();
    }

    fn status(&self, peer: NodeId, sequence: u64) -> Status {
        let Some(peer) = self.peers.get(peer.index()) else { return Status::Pending };
        match sequence.checked_sub(peer.ended + 1) {
            Some(at) => peer.operations.get(at as usize).map_or(Status::Pending, |operation| operation.status),
            None => peer.failures.status(sequence),
        }
    }
}

impl Drop for VerbsLane {
    /// Waits until all operations have ended, detached ones included. Operations that are lost with the queue pairs
    /// would otherwise be neither done nor failed. An operation that does not end fails in time.
    fn drop(&mut self) {
        let mut polls = 0;
        while !std::thread::panicking() && (self.outstanding > 0 || self.has_backlog()) {
            self.ring();
            self.poll();
            polls += 1;
            if polls < POLLS_PER_LOOK {
                std::thread::yield_now();
            } else {
                std::thread::sleep(Duration::from_millis(1));
                self.reap_stalled_pairs();
            }
        }
        // Queue pairs are dropped first: while one exists, the device may touch memory that the operations keep.
        self.pairs.clear();
    }
}
