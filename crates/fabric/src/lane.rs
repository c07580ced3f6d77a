//! What a fabric implements for one thread: posting work requests and reporting their completion.

use std::any::Any;
use std::sync::Arc;

use crate::buf::Block;
use crate::error::Code;
use crate::ptr::{NodeId, RemotePtr};
use crate::shm::ShmLane;

/// The private lane of one endpoint: a queue pair to each peer and a completion queue.
///
/// Shared memory is inlined, and pays one predicted branch for not being the only fabric; everything else, the
/// decorators included, stands behind one dynamic call.
pub enum Lane {
    /// Shared memory: operations complete as they are issued.
    Shm(ShmLane),
    /// Any other fabric.
    Dyn(Box<dyn DynLane>),
}

impl Lane {
    /// The lane behind the dynamic interface, as decorators want it.
    pub fn into_dyn(self) -> Box<dyn DynLane> {
        match self {
            Lane::Shm(lane) => Box::new(lane),
            Lane::Dyn(lane) => lane,
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
    #[allow(dead_code, reason = "held for its drop only")]
    pub(crate) keep: Keep,
}

// SAFETY: the pointer is used only by whoever executes the request, once, and `keep` keeps its memory alive meanwhile;
// concurrent access is excluded for blocks (counted in flight) and by word-sized atomics for region memory.
unsafe impl Send for Local {}

/// What keeps the local memory of a request alive.
#[allow(dead_code, reason = "held for its drop only")]
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
/// The trait is sealed: memory safety rests on its implementations, which execute requests as they are and say `Done`
/// only when nothing touches the local memory any more.
pub trait DynLane: Send + sealed::Sealed {
    /// Whether the request would be refused now, without executing it.
    ///
    /// # Errors
    /// The code it would fail with.
    fn check(&self, request: &WorkRequest) -> Result<(), Code>;

    /// Posts a request; its sequence number among those of this lane to the same peer, counted from 1. A failure
    /// shows in its status.
    fn post(&mut self, request: WorkRequest) -> u64;

    /// Rings the doorbell: what was posted to the peer starts now at the latest.
    fn doorbell(&mut self, _peer: NodeId) {}

    /// Makes progress: reaps completions.
    fn poll(&mut self);

    /// How far the operation has come, as far as the last `poll` saw.
    fn status(&self, peer: NodeId, sequence: u64) -> Status;

    /// The result of an operation is handed to whoever waited for it.
    fn taken(&mut self, _peer: NodeId, _sequence: u64) {}
}

/// Bookkeeping of completions that a [`DynLane`] can use: a high-water mark for each peer, and the failures.
#[derive(Default)]
pub(crate) struct Completions {
    peers: Vec<PeerCompletions>,
}

#[derive(Default)]
struct PeerCompletions {
    posted: u64,
    completed: u64,
    failed: std::collections::VecDeque<(u64, Code)>,
}

/// Failures remembered for each peer. An older one whose handle nobody asked about reads as `Unreachable`.
const FAILURES_KEPT: usize = 4096;

impl Completions {
    fn peer(&mut self, peer: NodeId) -> &mut PeerCompletions {
        if self.peers.len() <= peer.index() {
            self.peers.resize_with(peer.index() + 1, PeerCompletions::default);
        }
        &mut self.peers[peer.index()]
    }

    pub(crate) fn post(&mut self, peer: NodeId) -> u64 {
        let peer = self.peer(peer);
        peer.posted += 1;
        peer.posted
    }

    pub(crate) fn complete(&mut self, peer: NodeId, sequence: u64, result: Result<(), Code>) {
        let peer = self.peer(peer);
        debug_assert_eq!(sequence, peer.completed + 1, "completions come in order");
        peer.completed = sequence;
        if let Err(code) = result {
            if peer.failed.len() == FAILURES_KEPT {
                peer.failed.pop_front();
            }
            peer.failed.push_back((sequence, code));
        }
    }

    pub(crate) fn status(&self, peer: NodeId, sequence: u64) -> Status {
        let Some(peer) = self.peers.get(peer.index()) else { return Status::Pending };
        if sequence > peer.completed {
            return Status::Pending;
        }
        match peer.failed.binary_search_by_key(&sequence, |failure| failure.0) {
            Ok(at) => Status::Failed(peer.failed[at].1),
            Err(0) if peer.failed.len() == FAILURES_KEPT => Status::Failed(Code::Unreachable),
            Err(_) => Status::Done,
        }
    }
}
