//! What a fabric implements for one thread: posting work requests and reporting their completion.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::buf::Block;
use crate::error::Code;
use crate::ptr::{NodeId, RemotePtr};
use crate::shm::ShmLane;
use crate::verbs::{BufferStore, VerbsLane};

/// The private lane of one endpoint: a queue pair to each peer and a completion queue.
///
/// Shared memory is inlined, and pays one predicted branch for not being the only fabric. RDMA has a short way for single
/// words, which is called directly. Everything else, the decorators included, stands behind one dynamic call.
pub enum Lane {
    /// Shared memory: operations complete as they are issued.
    Shm(ShmLane),
    /// RDMA.
    Verbs(Box<VerbsLane>),
    /// Any other fabric.
    Dyn(Box<dyn DynLane>),
}

impl Lane {
    /// The lane behind the dynamic interface, as decorators want it.
    pub fn into_dyn(self) -> Box<dyn DynLane> {
        match self {
            Lane::Shm(lane) => Box::new(lane),
            Lane::Verbs(lane) => lane,
            Lane::Dyn(lane) => lane,
        }
    }

    /// As [`DynLane::store`].
    pub(crate) fn store(&self) -> Option<Arc<BufferStore>> {
        match self {
            Lane::Shm(_) => None,
            Lane::Verbs(lane) => lane.store(),
            Lane::Dyn(lane) => lane.store(),
        }
    }
}

/// What an operation does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verb {
    /// Local bytes to remote memory.
    Put,
    /// Remote bytes to local memory.
    Get,
    /// Remote compare-and-swap of a word; the old value comes back.
    Cas,
    /// Remote fetch-and-add of a word; the old value comes back.
    Faa,
    /// Later operations of this lane to the node wait for the earlier ones (`Rfence`).
    RemoteFence,
}

/// One operation as posted to a lane. Only endpoints make one, and only this crate's lanes execute it: what it says of
/// its local memory has to be true.
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
    /// The node that it goes to.
    pub fn peer(&self) -> NodeId {
        self.remote.node()
    }
}

/// The local end of an operation: valid for `len` bytes for as long as `keep` lives, which travels with the request.
pub(crate) struct Local {
    pub(crate) ptr: *mut u8,
    pub(crate) keep: Keep,
}

// SAFETY: the pointer is used only by whoever executes the request, once, and `keep` keeps its memory alive meanwhile;
// concurrent access is excluded for blocks (counted in flight) and by word-sized atomics for region memory.
unsafe impl Send for Local {}

/// What keeps the local memory of a request alive.
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

/// How far an operation has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// Not complete.
    Pending,
    /// Complete. For a put this is not visibility.
    Done,
    /// Complete with a failure.
    Failed(Code),
}

/// A lane of a fabric other than shared memory, or of a decorator.
///
/// A work id is a peer and a sequence number, which `post` returns and `status` takes. Completions need not come in the
/// order of posting: that a later operation is complete says nothing of an earlier one.
///
/// *What fails, and when it is known.* An operation is either *refused* at posting: its status says so when `post` returns, it
/// has no effect, and no other operation is disturbed. Or it is *accepted*: then it is done; or the connection that carries it
/// ends, and it fails together with all that was posted behind it on that connection (the first three groups of a node share
/// one). Then nobody knows what of it was done, but nothing behind it was done before it. So who posts operations of which a
/// later one says that an earlier one was done looks at each as it is posted, and need not wait for any. Only what goes to memory
/// that its owner gives back meanwhile ([`Fabric::free`](crate::Fabric::free)) ends alone: nobody looks there any more.
///
/// The trait is sealed: memory safety rests on its implementations, which execute requests as they are and say `Done`
/// only when nothing touches the local memory any more.
pub trait DynLane: Send + sealed::Sealed {
    /// Whether the request would be refused now, without executing it.
    ///
    /// # Errors
    /// The code it would fail with.
    fn check(&mut self, request: &WorkRequest) -> Result<(), Code>;

    /// Posts a request; its sequence number among those of this lane to the same peer, counted from 1. If it is refused, its
    /// status says so when this returns.
    fn post(&mut self, request: WorkRequest) -> u64;

    /// A batch to the peer begins: what is posted to it may be held back until [`doorbell`](DynLane::doorbell) or
    /// [`ring`](DynLane::ring). Batches may lie within each other.
    fn hold(&mut self, _peer: NodeId) {}

    /// A batch to the peer ends: what was posted to it starts now at the latest.
    fn doorbell(&mut self, _peer: NodeId) {}

    /// The thread is about to wait: everything that is held back starts now.
    fn ring(&mut self) {}

    /// Whether something was posted that has not started, for want of room or because it has to wait for others.
    fn has_backlog(&self) -> bool {
        false
    }

    /// Where buffers of its operations come from, if they have to lie in registered memory.
    fn store(&self) -> Option<Arc<BufferStore>> {
        None
    }

    /// Makes progress: reaps completions.
    fn poll(&mut self);

    /// How far the operation has come, as far as the last `poll` saw.
    fn status(&self, peer: NodeId, sequence: u64) -> Status;

    /// The result of an operation is handed to whoever waited for it.
    fn taken(&mut self, _peer: NodeId, _sequence: u64) {}
}

/// Copies between the local end of a request and a block, word by word.
///
/// # Safety
/// Both ends are aligned to 8 and valid for `len` bytes; each is accessed by atomics only (region memory), or by nobody
/// else (a block that is counted in flight).
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

/// Bookkeeping of completions that a [`DynLane`] can use: a high-water mark for each peer, and the failures. An operation
/// that completes before an earlier one, by another queue pair, counts as complete with that one.
#[derive(Default)]
pub(crate) struct Completions {
    peers: Vec<PeerCompletions>,
}

#[derive(Default)]
struct PeerCompletions {
    posted: u64,
    /// All up to this one are complete.
    completed: u64,
    /// Those that wait for an earlier one.
    early: BTreeMap<u64, Result<(), Code>>,
    failed: Failures,
}

/// Failed operations to one peer, oldest first.
#[derive(Default)]
pub(crate) struct Failures(std::collections::VecDeque<(u64, Code)>);

impl Failures {
    /// Failures remembered for each peer. An older one whose handle nobody asked about reads as `Unreachable`.
    const KEPT: usize = 4096;

    /// Remembers a failure. One that was refused may be known before others that were posted earlier.
    pub(crate) fn note(&mut self, sequence: u64, code: Code) {
        if self.0.len() == Self::KEPT {
            self.0.pop_front();
        }
        let at = self.0.partition_point(|failure| failure.0 < sequence);
        self.0.insert(at, (sequence, code));
    }

    /// The failure of an operation, which need not have ended.
    fn of(&self, sequence: u64) -> Option<Code> {
        self.0.binary_search_by_key(&sequence, |failure| failure.0).ok().map(|at| self.0[at].1)
    }

    /// How an operation ended that has ended.
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

    /// The number of one that is accepted.
    pub(crate) fn post(&mut self, peer: NodeId) -> u64 {
        let peer = self.peer(peer);
        peer.posted += 1;
        peer.posted
    }

    /// The number of one that is refused.
    pub(crate) fn refuse(&mut self, peer: NodeId, code: Code) -> u64 {
        let peer = self.peer(peer);
        peer.posted += 1;
        // It is known before those that were posted earlier have ended.
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
        let mut next = match sequence == self.completed + 1 {
            true => Some(result),
            false => {
                self.early.insert(sequence, result);
                None
            }
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
