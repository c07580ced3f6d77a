//! A thread's lane: a worker of UCX, and an endpoint to each node that it has used.
//!
//! - **Posting waits for no reply.** Requests are copied into a message, and UCX keeps what the network does not take
//!   at once. Above a limit of bytes without a reply they wait here, in order. So do those of a batch, and those of
//!   tasks in a round, which share messages. The first request to a node may wait while the lane connects (below), but
//!   not on the service thread.
//! - **Nothing is lost.** Each request has a reply, or its pair ends, and with it all that were behind.
//! - The worker is made with the first pair to another node. An endpoint is made when the lane is opened, or with the
//!   first request to a later node. Both make progress when the lane is polled.
//! - **Connections are made while a thread waits for them**, but not for long, and are closed only when they are made.
//!   Otherwise the other side would have its answer to the first message pending until this lane is polled, and if the
//!   connection failed meanwhile, UCX 1.13 would end the process there. The service thread does not wait: its lane
//!   reports a backlog until the connection is made, so it polls.
//! - **A connection ends with the way to its node.** When another thread has ended that (the node was evicted or has
//!   left, or this one is fenced), the lane closes the connection by force as soon as it is polled.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use farfield_ucx_sys::Request;

use super::carrier::Ucx;
use super::peer::{CLOSING_MAX, Peer};
use super::port::{Arrival, Port};
use super::responder::Responder;
use super::wire::perform;
use crate::error::Code;
use crate::hosts::connections::OwnNode;
use crate::lane::{Completions, Lane, Status, Verb, WorkRequest};
use crate::ptr::NodeId;

/// Rounds of progress in one poll.
const ROUNDS_MAX: usize = 16;
/// Polls of a lane without operations between two of them that make progress, and look at all nodes.
const IDLE_POLLS: u32 = 64;
/// Polls of a lane that is being closed until it sleeps between them.
const CLOSING_POLLS: u32 = 256;
/// The longest wait for connections to be made, of a lane that is being opened, or uses a node for the first time; not
/// of the service thread.
const OPENING_MAX: Duration = Duration::from_millis(200);

/// A lane over UCX.
pub(crate) struct UcxLane {
    pub(super) port: Arc<Port>,
    /// Arrivals that were taken.
    taken: u64,
    /// By numbers of nodes.
    peers: Vec<Peer>,
    /// Their places, by how their messages are known.
    ids: BTreeMap<u64, usize>,
    /// Those with operations.
    busy: Vec<usize>,
    /// Rounds of tasks that are not over: what they post waits for each other.
    rounds: u32,
    completions: Completions,
    responder: Arc<Responder>,
    patience: Duration,
    polls: u32,
    pub(super) own_node: Option<OwnNode<Ucx>>,
    pub(super) kept: Vec<Box<dyn Send>>,
}

impl UcxLane {
    pub(super) fn new(port: Arc<Port>, responder: &Arc<Responder>, patience: Duration) -> UcxLane {
        UcxLane {
            port,
            taken: 0,
            peers: Vec::new(),
            ids: BTreeMap::new(),
            busy: Vec::new(),
            rounds: 0,
            completions: Completions::default(),
            responder: Arc::clone(responder),
            patience,
            polls: 0,
            own_node: None,
            kept: Vec::new(),
        }
    }

    fn take_arrivals(&mut self) {
        if self.port.count() != self.taken {
            self.take_arrivals_now();
        }
    }

    #[cold]
    fn take_arrivals_now(&mut self) {
        for Arrival { peer: node, class, pair, memory } in self.port.arrivals() {
            self.taken += 1;
            let at = node.index();
            while self.peers.len() <= at {
                self.peers.push(Peer::new(NodeId(self.peers.len() as u16)));
            }
            let peer = &mut self.peers[at];
            peer.memory.get_or_insert(memory);
            peer.add(class, pair, &mut self.completions);
            if let Some(id) = peer.id() {
                self.ids.insert(id, at);
            }
        }
    }

    /// The pair for a request.
    fn place(&self, request: &WorkRequest) -> Result<usize, Code> {
        let key = request.remote.key();
        let peer = self.peers.get(request.peer().index()).ok_or(Code::BadKey)?;
        let Some(pair) = peer.pair(key.class()) else {
            let is_revoked = peer.memory.as_ref().is_some_and(|memory| memory.is_revoked(key));
            return Err(if is_revoked { Code::Revoked } else { Code::BadKey });
        };
        peer.check(pair)?;
        if request.verb == Verb::RemoteFence {
            return Ok(pair);
        }
        if !request.remote.offset().is_multiple_of(8) {
            return Err(Code::Misaligned);
        }
        peer.memory.as_ref().ok_or(Code::BadKey)?.find(request.remote, request.len)?;
        Ok(pair)
    }

    /// [`UcxLane::place`] of a request that will be done: the first one to the own node opens the way there.
    fn place_to_post(&mut self, request: &WorkRequest) -> Result<usize, Code> {
        let code = match self.place(request) {
            Err(code) => code,
            placed => return placed,
        };
        let Some(own) = &self.own_node else { return Err(code) };
        if !own.may_open(request, code, true)? {
            return Err(code);
        }
        own.open(request.remote.key().class())?;
        self.take_arrivals();
        self.place(request)
    }

    fn is_own(&self, node: NodeId) -> bool {
        self.own_node.as_ref().is_some_and(|own| own.id() == node)
    }

    /// Does an operation on the own node's memory.
    fn run_own(&self, pair: usize, request: &WorkRequest) -> Result<(), Code> {
        let WorkRequest { verb, remote, len, operands, local } = request;
        let own = self.own_node.as_ref().ok_or(Code::BadKey)?;
        // What takes the right, or the memory, waits until the gate is shut.
        let gate = self.responder.gate.read().unwrap_or_else(PoisonError::into_inner);
        self.peers[own.id().index()].check(pair)?;
        let (address, _) = own.memory().find(*remote, *len)?;
        // Earlier stores of this thread are visible to all before it reads, and a result before its next reads.
        crate::cell::memory_fence();
        // SAFETY: the place was just found in this node's memory, which is aligned to 8, is accessed by atomics only,
        // and stays while the gate is open. The local end is as the request describes it.
        unsafe { perform(*verb, address as *mut u8, local.ptr, *len, *operands) };
        crate::cell::memory_fence();
        drop(gate);
        if matches!(verb, Verb::Put | Verb::Cas | Verb::Faa) {
            self.responder.wrote();
        }
        Ok(())
    }

    fn start(&mut self, at: usize) {
        if !self.peers[at].has_endpoint() {
            self.until_connected(self.opening_max(), |peer| peer.is_node(at));
        }
        if let Some(carried) = &mut *self.port.worker() {
            self.peers[at].start(&mut carried.worker, self.port.id(), &mut self.completions);
        }
    }

    /// Makes progress on all operations.
    fn progress(&mut self) {
        let mut worker = self.port.worker();
        let Some(carried) = &mut *worker else { return };
        for _ in 0..ROUNDS_MAX {
            if !carried.worker.progress() {
                break;
            }
        }
        for (header, words) in carried.received() {
            if let Some(at) = self.ids.get(&header.from) {
                self.peers[*at].receive(header.number, words, &mut self.completions);
            }
        }
        let UcxLane { peers, rounds, completions, .. } = self;
        self.busy.retain(|at| {
            let peer = &mut peers[*at];
            peer.look(&mut carried.worker, self.patience, completions);
            if peer.holds == 0 && *rounds == 0 {
                peer.start(&mut carried.worker, self.port.id(), completions);
            }
            peer.is_busy = !peer.is_idle();
            peer.is_busy
        });
    }

    /// Connects to all nodes, as far as they answer soon.
    pub(super) fn connect(&mut self) {
        self.take_arrivals();
        self.until_connected(self.opening_max(), |_| true);
    }

    fn opening_max(&self) -> Duration {
        let must_not_wait = self.own_node.as_ref().is_some_and(OwnNode::is_service);
        if must_not_wait { Duration::ZERO } else { OPENING_MAX }
    }

    /// Closes the connections to nodes that this one has ended the way to.
    fn part(&mut self) {
        self.peers.iter_mut().for_each(|peer| peer.part(&mut self.completions));
    }

    /// Waits until connections are made, but not for long.
    fn until_connected(&mut self, longest: Duration, which: impl Fn(&Peer) -> bool) {
        let mut flushes: Vec<Request> = match &mut *self.port.worker() {
            Some(carried) => {
                let peers = self.peers.iter_mut().filter(|peer| which(peer));
                peers.filter_map(|peer| peer.connect(&mut carried.worker, &mut self.completions)).collect()
            }
            None => return,
        };
        let end = Instant::now() + longest;
        while !flushes.is_empty() && Instant::now() < end {
            // Not longer under the lock, for which the service thread may wait.
            let did = match &mut *self.port.worker() {
                Some(carried) => {
                    let did = carried.worker.progress();
                    flushes.retain(|flush| carried.worker.is_complete(flush) == Ok(false));
                    did
                }
                None => return,
            };
            if !did {
                std::thread::yield_now();
            }
        }
    }

    /// Messages that UCX has not sent.
    fn has_unsent(&self) -> bool {
        self.port.worker().as_ref().is_some_and(|carried| carried.worker.operations() > 0)
    }
}

impl crate::lane::sealed::Sealed for UcxLane {}

impl Lane for UcxLane {
    fn check(&mut self, request: &WorkRequest) -> Result<(), Code> {
        self.take_arrivals();
        match self.place(request) {
            Ok(_) => Ok(()),
            Err(code) => match &self.own_node {
                Some(own) if own.may_open(request, code, true)? => Ok(()),
                _ => Err(code),
            },
        }
    }

    fn post(&mut self, request: WorkRequest) -> u64 {
        self.take_arrivals();
        let node = request.peer();
        let placed = self.place_to_post(&request).and_then(|pair| {
            let is_done = request.verb == Verb::RemoteFence || self.is_own(node);
            if is_done && request.verb != Verb::RemoteFence {
                self.run_own(pair, &request)?;
            }
            Ok((pair, is_done))
        });
        let (pair, is_done) = match placed {
            Ok(placed) => placed,
            Err(code) => return self.completions.refuse(node, code),
        };
        let sequence = self.completions.post(node);
        let at = node.index();
        let peer = &mut self.peers[at];
        if is_done {
            if request.verb == Verb::RemoteFence {
                peer.fence = sequence;
            }
            self.completions.complete(node, sequence, Ok(()));
            return sequence;
        }
        peer.queue(sequence, pair, request);
        if !core::mem::replace(&mut peer.is_busy, true) {
            self.busy.push(at);
        }
        if peer.holds == 0 && self.rounds == 0 {
            self.start(at);
        }
        sequence
    }

    fn hold(&mut self, peer: NodeId) {
        if let Some(peer) = self.peers.get_mut(peer.index()) {
            peer.holds += 1;
        }
    }

    fn doorbell(&mut self, peer: NodeId) {
        let at = peer.index();
        let Some(peer) = self.peers.get_mut(at) else { return };
        peer.holds = peer.holds.saturating_sub(1);
        if peer.holds == 0 && self.rounds == 0 && peer.has_waiting() {
            self.start(at);
        }
    }

    fn hold_all(&mut self) -> bool {
        self.rounds += 1;
        true
    }

    fn release_all(&mut self) {
        self.rounds = self.rounds.saturating_sub(1);
        if self.rounds == 0 {
            self.ring();
        }
    }

    fn ring(&mut self) {
        for place in 0..self.busy.len() {
            let at = self.busy[place];
            if self.peers[at].has_waiting() {
                self.start(at);
            }
        }
    }

    fn has_backlog(&self) -> bool {
        self.busy.iter().any(|at| self.peers[*at].has_waiting()) || self.has_unsent()
    }

    fn poll(&mut self) {
        self.take_arrivals();
        self.polls = self.polls.wrapping_add(1);
        let looks = self.polls.is_multiple_of(IDLE_POLLS);
        if looks {
            self.part();
        }
        if looks || !self.busy.is_empty() {
            self.progress();
        }
    }

    fn status(&self, peer: NodeId, sequence: u64) -> Status {
        self.completions.status(peer, sequence)
    }
}

impl Drop for UcxLane {
    /// Waits until all operations have ended, detached ones included. One that does not end fails in time.
    fn drop(&mut self) {
        self.part();
        let (start, mut polls) = (Instant::now(), 0);
        let mut waits = |lane: &UcxLane| {
            // Of an operation that has failed the reply may still be on its way: see above.
            let is_owed = || lane.peers.iter().any(Peer::is_owed) && start.elapsed() < OPENING_MAX;
            let is_busy = !lane.busy.is_empty() && (!std::thread::panicking() || start.elapsed() < CLOSING_MAX);
            polls += 1;
            if polls < CLOSING_POLLS {
                std::thread::yield_now();
            } else {
                std::thread::sleep(Duration::from_millis(1));
            }
            is_busy || is_owed()
        };
        while waits(self) {
            self.ring();
            self.progress();
        }
        self.until_connected(CLOSING_MAX, Peer::is_connecting);
        // First the lane is closed for the other nodes, and asks for no pair any more.
        self.own_node = None;
        drop(self.port.worker().take());
    }
}
