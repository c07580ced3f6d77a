//! The contract of a fabric for one thread: it posts work requests and reports their completion.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error::Code;
use crate::pool::{Block, BufferMemory};
use crate::ptr::{NodeId, RemotePtr};

/// An operation on a word that a lane has posted by its short path: the number of the place where its result lands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct WordTicket(pub(crate) u8);

/// The target of an operation on a word, and the facts that the endpoint needs when it has ended.
#[derive(Clone, Copy)]
pub(crate) struct WordOrigin {
    pub(crate) remote: RemotePtr<u8>,
    /// The puts that it flushes.
    pub(crate) flushes: u64,
}

/// The kind of an operation.
///
/// ```
/// use farfield_fabric::Verb;
/// fn returns_a_value(verb: Verb) -> bool {
///     matches!(verb, Verb::Get | Verb::Cas | Verb::Faa)
/// }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verb {
    /// Local bytes to remote memory.
    Put,
    /// Remote bytes to local memory.
    Get,
    /// Remote compare-and-swap of a word; returns the old value.
    Cas,
    /// Remote fetch-and-add of a word; returns the old value.
    Faa,
    /// Later operations of this lane to the node wait for the earlier ones (`Rfence`).
    RemoteFence,
}

/// One operation as posted to a lane. Only endpoints make one, and only this crate's lanes execute it: its description
/// of its local memory must be correct.
///
/// ```
/// # use farfield_fabric::*;
/// /// Posts a request unless it would be refused, and returns its work id.
/// fn post_if_possible(lane: &mut dyn Lane, request: WorkRequest) -> Result<(NodeId, u64), Code> {
///     lane.check(&request)?;
///     let peer = request.peer();
///     Ok((peer, lane.post(request)))
/// }
/// ```
pub struct WorkRequest {
    pub(crate) verb: Verb,
    /// The remote place; its node is the peer.
    pub(crate) remote: RemotePtr<u8>,
    /// Bytes to move: 8 for atomics, 0 for a fence.
    pub(crate) len: usize,
    /// Cas: expected and new value; faa: the addend and 0.
    pub(crate) operands: [u64; 2],
    pub(crate) local: Local,
}

impl WorkRequest {
    /// The target node.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// fn is_loopback(request: &WorkRequest, node: &dyn Fabric) -> bool { request.peer() == node.me() }
    /// ```
    pub fn peer(&self) -> NodeId {
        self.remote.node()
    }
}

/// The local end of an operation: valid for `len` bytes for as long as `keep` lives, which travels with the request.
pub(crate) struct Local {
    pub(crate) ptr: *mut u8,
    pub(crate) keep: Keep,
}

// SAFETY: only the lane that executes the request uses the pointer, once, and `keep` keeps its memory alive meanwhile;
// concurrent access is excluded for blocks (counted in flight) and by word-sized atomics for region memory.
unsafe impl Send for Local {}

/// The owner that keeps the local memory of a request alive.
pub(crate) enum Keep {
    /// A fence has no memory.
    Nothing,
    /// A pool block.
    Block(Arc<Block>),
    /// Region memory (shared cells).
    Memory(Arc<dyn Any + Send + Sync>),
}

impl Local {
    pub(crate) fn nothing() -> Local {
        Local { ptr: core::ptr::null_mut(), keep: Keep::Nothing }
    }

    pub(crate) fn block(block: &Arc<Block>) -> Local {
        Local { ptr: block.as_ptr(), keep: Keep::Block(Arc::clone(block)) }
    }
}

pub(crate) mod sealed {
    /// Implemented by the lanes of this crate.
    pub trait Sealed {}
}

/// The progress of an operation.
///
/// ```
/// use farfield_fabric::{Code, Status};
/// fn is_over(status: Status) -> bool {
///     status != Status::Pending
/// }
/// assert!(is_over(Status::Failed(Code::Freed)));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// Not complete.
    Pending,
    /// Complete. For a put this is not visibility.
    Done,
    /// Complete with a failure.
    Failed(Code),
}

/// The private lane of one endpoint: a queue pair to each peer and a completion queue.
///
/// A work id is a peer and a sequence number, which `post` returns and `status` takes. Completions may be out of
/// order: a complete operation does not imply that an earlier one is complete.
///
/// *Failures, and when they are known.* An operation may be *refused* at posting. Then its status reports it when
/// `post` returns, it has no effect, and it disturbs no other operation. Or it is *accepted*. Then it is done, or the
/// connection that carries it ends. In the second case it fails together with all later operations on that connection
/// (the first three groups of a node share one). How much of it was done is unknown, but no later operation on the
/// connection was done before it. So a caller that posts a flag after data checks each operation as it is posted, and
/// need not wait for any. Only an operation on memory that its owner frees meanwhile
/// ([`Fabric::free`](crate::Fabric::free)) fails alone: no node reads there any more.
///
/// The trait is sealed: memory safety rests on its implementations, which execute requests as they are and report
/// `Done` only when nothing touches the local memory any more.
///
/// ```
/// # use farfield_fabric::{shm::*, *};
/// # let node = ShmFabric::join(&ShmOptions::new(format!("doc-lane-{}", std::process::id()), 0, 1))?;
/// let mut lane: Box<dyn Lane> = node.open_lane(false)?; // for one thread
/// lane.poll();
/// assert!(!lane.has_backlog());
/// assert_eq!(lane.status(node.me(), 1), Status::Pending); // nothing was posted
/// # Ok::<(), Error>(())
/// ```
pub trait Lane: Any + Send + sealed::Sealed {
    /// Checks whether the request would be refused now, without executing it.
    ///
    /// # Errors
    /// The code it would fail with.
    fn check(&mut self, request: &WorkRequest) -> Result<(), Code>;

    /// Posts a request. Returns its sequence number among those of this lane to the same peer, counted from 1. If the
    /// request is refused, its status reports this when `post` returns.
    fn post(&mut self, request: WorkRequest) -> u64;

    /// Begins a batch to the peer: requests to it may be held back until [`doorbell`](Lane::doorbell) or
    /// [`ring`](Lane::ring). Batches may be nested.
    fn hold(&mut self, _peer: NodeId) {}

    /// Ends a batch to the peer: its requests start now at the latest.
    fn doorbell(&mut self, _peer: NodeId) {}

    /// Begins a round of the thread's tasks: requests to any node may be held back until
    /// [`release_all`](Lane::release_all) or [`ring`](Lane::ring), so that those of several tasks travel together.
    /// Rounds may be nested. Whether the lane does that: then tasks need not poll it during the round.
    fn hold_all(&mut self) -> bool {
        false
    }

    /// Ends a round that [`hold_all`](Lane::hold_all) has begun: its requests start now at the latest.
    fn release_all(&mut self) {}

    /// Starts all requests that are held back. The thread is about to wait.
    fn ring(&mut self) {}

    /// Whether a posted request has not started, for want of room or because it must wait for others.
    fn has_backlog(&self) -> bool {
        false
    }

    /// The source of buffers for its operations, if they must be in registered memory.
    fn store(&self) -> Option<Arc<dyn BufferMemory>> {
        None
    }

    /// Makes progress: reaps completions.
    fn poll(&mut self);

    /// The progress of the operation at the last `poll`.
    fn status(&self, peer: NodeId, sequence: u64) -> Status;

    /// Notes that the result of an operation has been returned to its caller, and whether other tasks of the thread
    /// wait for reads whose results they do not get.
    fn taken(&mut self, _peer: NodeId, _sequence: u64, _others_wait: bool) {}
}

/// Copies between the local end of a request and a block, word by word.
///
/// # Safety
/// Both ends are aligned to 8 and valid for `len` bytes; each is accessed by atomics only (region memory), or by no
/// other code (a block that is counted in flight).
pub(crate) unsafe fn copy_words(from: *const u8, to: *mut u8, len: usize) {
    use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};
    for word in 0..len / 8 {
        // SAFETY: by the contract of this function.
        unsafe {
            let bits = AtomicU64::from_ptr(from.cast::<u64>().add(word).cast_mut()).load(Ordering::Acquire);
            AtomicU64::from_ptr(to.cast::<u64>().add(word)).store(bits, Ordering::Release);
        }
    }
    for byte in len / 8 * 8..len {
        // SAFETY: as above.
        unsafe {
            let bits = AtomicU8::from_ptr(from.add(byte).cast_mut()).load(Ordering::Acquire);
            AtomicU8::from_ptr(to.add(byte)).store(bits, Ordering::Release);
        }
    }
}

/// Bookkeeping of completions that a [`Lane`] can use: a high-water mark for each peer, and the failures. An operation
/// that completes before an earlier one, by another queue pair, counts as complete with that one.
#[derive(Default)]
pub(crate) struct Completions {
    peers: Vec<PeerCompletions>,
}

#[derive(Default)]
struct PeerCompletions {
    posted: u64,
    /// All operations up to this one are complete.
    completed: u64,
    /// Complete operations that follow an incomplete one.
    early: BTreeMap<u64, Result<(), Code>>,
    failed: Failures,
}

/// Failed operations to one peer, oldest first.
#[derive(Default)]
pub(crate) struct Failures(std::collections::VecDeque<(u64, Code)>);

impl Failures {
    /// Failures remembered for each peer. An older failure that no handle has read becomes `Unreachable`.
    const KEPT: usize = 4096;

    /// Remembers a failure. A refusal may be known before the result of earlier operations.
    pub(crate) fn note(&mut self, sequence: u64, code: Code) {
        if self.0.len() == Self::KEPT {
            self.0.pop_front();
        }
        let at = self.0.partition_point(|failure| failure.0 < sequence);
        self.0.insert(at, (sequence, code));
    }

    /// The failure of an operation, which may still be in flight.
    fn of(&self, sequence: u64) -> Option<Code> {
        self.0.binary_search_by_key(&sequence, |failure| failure.0).ok().map(|at| self.0[at].1)
    }

    /// The result of a complete operation.
    pub(crate) fn status(&self, sequence: u64) -> Status {
        match self.0.binary_search_by_key(&sequence, |failure| failure.0) {
            Ok(at) => Status::Failed(self.0[at].1),
            Err(0) if self.0.len() == Self::KEPT => Status::Failed(Code::Unreachable),
            Err(_) => Status::Done,
        }
    }
}

impl Completions {
    fn peer(&mut self, peer: NodeId) -> &mut PeerCompletions {
        if self.peers.len() <= peer.index() {
            self.peers.resize_with(peer.index() + 1, PeerCompletions::default);
        }
        &mut self.peers[peer.index()]
    }

    /// The sequence number of an accepted operation.
    pub(crate) fn post(&mut self, peer: NodeId) -> u64 {
        let peer = self.peer(peer);
        peer.posted += 1;
        peer.posted
    }

    /// The sequence number of a refused operation.
    pub(crate) fn refuse(&mut self, peer: NodeId, code: Code) -> u64 {
        let peer = self.peer(peer);
        peer.posted += 1;
        // The refusal is known before earlier operations have completed.
        peer.failed.note(peer.posted, code);
        peer.end(peer.posted, Ok(()));
        peer.posted
    }

    pub(crate) fn complete(&mut self, peer: NodeId, sequence: u64, result: Result<(), Code>) {
        self.peer(peer).end(sequence, result);
    }

    pub(crate) fn status(&self, peer: NodeId, sequence: u64) -> Status {
        match self.peers.get(peer.index()) {
            Some(peer) if sequence <= peer.completed => peer.failed.status(sequence),
            Some(peer) => peer.failed.of(sequence).map_or(Status::Pending, Status::Failed),
            None => Status::Pending,
        }
    }
}

impl PeerCompletions {
    fn end(&mut self, sequence: u64, result: Result<(), Code>) {
        let mut next = if sequence == self.completed + 1 {
            Some(result)
        } else {
            self.early.insert(sequence, result);
            None
        };
        while let Some(result) = next {
            self.completed += 1;
            if let Err(code) = result {
                self.failed.note(self.completed, code);
            }
            next = if self.early.is_empty() { None } else { self.early.remove(&(self.completed + 1)) };
        }
    }
}
