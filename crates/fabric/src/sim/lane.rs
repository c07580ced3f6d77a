//! A lane of the simulated fabric: its operations become the machine's.

use core::cmp::Ordering;
use std::collections::VecDeque;

use foldhash::HashMap;
use mowgli::machine::{Loc, Operation, Source, Thread as Cpu, Words};
use smallvec::SmallVec;

use super::record::What;
use super::state::Pending;
use super::threads::with_world;
use super::wait_set::{Told, cell_key, completions_key};
use super::{SimFabric, heap};
use crate::error::Code;
use crate::fabric::PeerState;
use crate::lane::{Lane, Local, Status, Verb, WorkRequest};
use crate::ptr::{GroupKey, NodeId, RemotePtr};

/// One endpoint's lane.
pub(super) struct SimLane {
    fabric: SimFabric,
    /// The machine thread with the queue pairs for the first three groups; it names the operations.
    lane: Cpu,
    /// Its queue pairs, by class of groups: first those for the first three.
    classes: SmallVec<[Class; 1]>,
    peers: Vec<Peer>,
    outstanding: usize,
    /// The step of the execution at which the lane was polled last, unless it was polled again since.
    polled_at: Option<u64>,
}

/// Queue pairs to all nodes, for groups of a class.
#[derive(Clone, Copy)]
struct Class {
    key: GroupKey,
    /// Its place in the world, and its machine thread.
    index: usize,
    lane: Cpu,
}

#[derive(Default)]
struct Peer {
    posted: u64,
    pending: VecDeque<InFlight>,
    failed: HashMap<u64, Code>,
    /// The results of complete reads that were not taken yet.
    brought: Vec<(u64, Reads, Words)>,
}

/// What an operation reads: the words, what makes a compare-and-swap succeed, and the cells that a get writes to.
#[derive(Clone, Copy)]
struct Reads {
    from: Loc,
    count: u32,
    succeeds: Option<u64>,
    into: Option<Loc>,
}

struct InFlight {
    sequence: u64,
    /// The machine's thread that it is of, and its number there.
    lane: Cpu,
    machine_sequence: u32,
    reads: Option<Reads>,
    /// Bytes of the result that are written to `local`, zero for none.
    result_bytes: usize,
    local: Local,
    done: bool,
}

impl Class {
    fn open(fabric: &SimFabric, key: GroupKey, of: Option<Cpu>) -> Option<Class> {
        with_world(|world| {
            let mut inner = world.inner.borrow_mut();
            let index = inner.open_lane(fabric.node(), key, of);
            Class { key, index, lane: inner.lanes[index].lane }
        })
    }
}

impl SimLane {
    pub(super) fn open(fabric: SimFabric) -> SimLane {
        let base = Class::open(&fabric, GroupKey::SIGNAL, None).expect("the world lives while its threads run");
        let peers = std::iter::repeat_with(Peer::default).take(fabric.count()).collect();
        let classes = SmallVec::from_elem(base, 1);
        SimLane { fabric, lane: base.lane, classes, peers, outstanding: 0, polled_at: None }
    }

    /// The machine thread for a group. Its queue pairs begin with their first operation.
    fn lane_for(&mut self, key: GroupKey) -> Option<Cpu> {
        let found = self.classes.iter().find(|class| class.key == key.class());
        if let Some(class) = found {
            return Some(class.lane);
        }
        let class = Class::open(&self.fabric, key.class(), Some(self.lane))?;
        self.classes.push(class);
        Some(class.lane)
    }

    fn place(&self, remote: RemotePtr<u8>, len: usize) -> Result<Loc, Code> {
        with_world(|world| {
            let inner = world.inner.borrow();
            let (me, peer) = (self.fabric.node(), remote.node().0);
            match inner.peer_state(me, peer) {
                PeerState::Up { .. } => {}
                _ if usize::from(peer) >= inner.nodes.len() => return Err(Code::BadKey),
                _ => return Err(Code::Unreachable),
            }
            if inner.nodes[usize::from(me)].fenced {
                return Err(Code::Fenced);
            }
            if inner.is_lost_to(me, peer) {
                return Err(Code::Unreachable);
            }
            let node = &inner.nodes[usize::from(peer)];
            let key = remote.key();
            if u16::from(key.0) >= node.groups {
                return Err(Code::BadKey);
            }
            let offset = remote.offset();
            if !offset.is_multiple_of(8) {
                return Err(Code::Misaligned);
            }
            // Across a cut the state is unknown: then it is refused after the cut.
            if !node.rights[usize::from(key.0)][usize::from(me)] && !inner.is_cut(me, peer) {
                return Err(Code::Revoked);
            }
            let (address, generation) = heap::split(offset);
            let (first, end) = (address / 8, address.saturating_add(len as u64).div_ceil(8));
            match node.heap.generation(first).cmp(&generation) {
                // Across a cut a node that was evicted has not heard that its object was closed.
                Ordering::Greater if inner.is_cut(me, peer) => return Err(Code::Unreachable),
                Ordering::Greater => return Err(Code::Freed),
                Ordering::Less => return Err(Code::OutOfBounds),
                Ordering::Equal => {}
            }
            let inside = |&(start, words, group): &(u32, u32, _)| {
                group == key && u64::from(start) <= first && end <= u64::from(start) + u64::from(words)
            };
            if end > u64::from(super::world::RESERVED_WORDS) && !node.regions.iter().any(inside) {
                return Err(Code::OutOfBounds);
            }
            Ok(Loc { node: peer, word: first as u32 })
        })
        .unwrap_or(Err(Code::Unreachable))
    }

    /// The machine's operation for a request.
    fn operation(&self, request: &WorkRequest, at: Loc) -> Operation {
        let words = request.len.div_ceil(8) as u32;
        match request.verb {
            Verb::Put => {
                let source = match cells(&request.local) {
                    Some(first) => Source::Cells(first.word),
                    None => Source::Carried(read_words(&request.local, request.len)),
                };
                let rest = request.len % 8;
                let last_mask = if rest == 0 { u64::MAX } else { (1 << (rest * 8)) - 1 };
                Operation::Put { source, to: at, words, last_mask }
            }
            Verb::Get => Operation::Get { from: at, words, into: cells(&request.local).map(|first| first.word) },
            Verb::Cas => Operation::Cas { at, expected: request.operands[0], new: request.operands[1] },
            Verb::Faa => Operation::Faa { at, addend: request.operands[0] },
            Verb::RemoteFence => Operation::Fence { node: at.node },
        }
    }

    fn take_results(&mut self) {
        for class in self.classes.clone() {
            self.take_results_of(class);
        }
    }

    fn take_results_of(&mut self, Class { index, lane, .. }: Class) {
        let results = with_world(|world| {
            let mut inner = world.inner.borrow_mut();
            let results = core::mem::take(&mut inner.lanes[index].results);
            if let Some(current) = inner.current {
                let key = completions_key(self.lane);
                inner.watch(current, key);
                for result in &results {
                    inner.saw_completion(current, lane, result);
                    if let Some((op, _)) = inner.operation(lane, result.0, result.1) {
                        inner.note(current, What::Seen { op });
                    }
                }
            }
            results
        });
        let mut results = results.unwrap_or_default();
        let mut told: SmallVec<[Told; 8]> = SmallVec::new();
        for (node, sequence, words, failure) in results.drain(..) {
            let peer = &mut self.peers[usize::from(node)];
            let is_meant = |flight: &&mut InFlight| (flight.lane, flight.machine_sequence) == (lane, sequence);
            let found = peer.pending.iter_mut().find(is_meant);
            if let Some(flight) = found
                && !core::mem::replace(&mut flight.done, true)
            {
                self.outstanding -= 1;
                told.push((self.lane, node, flight.sequence));
                if let Some(code) = failure {
                    peer.failed.insert(flight.sequence, code);
                } else if flight.result_bytes > 0 {
                    write_words(&flight.local, &words, flight.result_bytes);
                }
                if let (Some(reads), None) = (flight.reads, failure) {
                    peer.brought.push((flight.sequence, reads, words));
                }
            }
            peer.pending.retain(|flight| !flight.done);
        }
        with_world(|world| {
            let mut inner = world.inner.borrow_mut();
            inner.lanes[index].results = results; // its room serves the next
            if let Some(current) = inner.current {
                inner.told_of(current, &told);
            }
        });
    }

    /// Whether the execution is over for this thread: then nothing is pending any more.
    fn is_torn_down(&self) -> bool {
        !self.fabric.is_here() || self.fabric.is_torn_down() || self.fabric.is_crashed()
    }
}

/// The word of registered memory at an address, if it is no block.
fn cells(local: &Local) -> Option<Loc> {
    let place = with_world(|world| world.arena.place(local.ptr as usize)).flatten();
    place.map(|(node, word)| Loc { node, word })
}

/// Issues an operation of a node on the machine, and records it. Returns its sequence there, if an execution is under
/// way.
fn issue(node: u16, lane: Cpu, request: &WorkRequest, at: Loc, operation: Operation) -> Option<u32> {
    with_world(|world| {
        let current = world.inner.borrow().current?;
        // What stands outside the execution uses lanes of all nodes.
        let elsewhere = world.is_elsewhere(current, node);
        let mut inner = world.inner.borrow_mut();
        let cpu = if elsewhere { lane } else { inner.threads[current].cpu };
        let value = match &operation {
            Operation::Put { source: Source::Carried(words), .. } => words.first().copied(),
            Operation::Cas { new, .. } => Some(*new),
            Operation::Faa { addend, .. } => Some(*addend),
            _ => None,
        };
        let (_, machine_sequence) = inner.machine.issue_on(cpu, lane, operation);
        inner.acted(current, u64::from(machine_sequence));
        if inner.records() {
            let peer = request.peer();
            let op = inner.operation_issued(current, lane, peer.0, machine_sequence);
            let words = request.len.div_ceil(8) as u32;
            let remote = (words > 0).then_some(at);
            inner.note(current, What::Issue { op, verb: request.verb, peer, remote, words, value });
        }
        Some(machine_sequence)
    })
    .flatten()
}

/// The thread has looked at remote words, so its next wait ends when they change: it may get them again. If they have
/// changed since they were read, it does not begin.
fn looked_at(reads: Reads, brought: &[u64]) {
    // A successful read is not tried again.
    if reads.succeeds.is_some() && reads.succeeds == brought.first().copied() {
        return;
    }
    with_world(|world| {
        let mut inner = world.inner.borrow_mut();
        let Some(current) = inner.current else { return };
        for at in 0..reads.count {
            let loc = Loc { word: reads.from.word + at, ..reads.from };
            let key = cell_key(loc.node, loc.word);
            inner.watch(current, key);
            let found = match reads.into {
                Some(first) => inner.machine.memory(Loc { word: first.word + at, ..first }),
                None => brought[at as usize],
            };
            if inner.machine.memory(loc) != found {
                inner.notify(key, 1, None);
            }
        }
    });
}

/// Copies a request's bytes into words; the rest of the last is zero.
fn read_words(local: &Local, len: usize) -> Words {
    let word = |index: usize| {
        let mut bytes = [0u8; 8];
        let count = (len - index * 8).min(8);
        // SAFETY: the request's local memory is valid for `len` bytes while it exists, and a block that an operation
        // may read is not written to meanwhile.
        unsafe { core::ptr::copy_nonoverlapping(local.ptr.add(index * 8), bytes.as_mut_ptr(), count) };
        u64::from_le_bytes(bytes)
    };
    (0..len.div_ceil(8)).map(word).collect()
}

/// Copies words into a request's bytes.
fn write_words(local: &Local, words: &[u64], len: usize) {
    for (index, word) in words.iter().enumerate().take(len.div_ceil(8)) {
        let count = (len - index * 8).min(8);
        // SAFETY: as in `read_words`; the block is counted in flight until this lane reports that the operation is
        // done, so no other code reads it.
        unsafe { core::ptr::copy_nonoverlapping(word.to_le_bytes().as_ptr(), local.ptr.add(index * 8), count) };
    }
}

impl crate::lane::sealed::Sealed for SimLane {}

impl Lane for SimLane {
    fn check(&mut self, request: &WorkRequest) -> Result<(), Code> {
        self.place(request.remote, request.len).map(|_| ())
    }

    fn post(&mut self, request: WorkRequest) -> u64 {
        let peer = request.peer();
        if self.peers.len() <= peer.index() {
            self.peers.resize_with(peer.index() + 1, Peer::default);
        }
        let placed = if self.is_torn_down() { Err(Code::Unreachable) } else { self.place(request.remote, request.len) };
        if let Some(local) = cells(&request.local) {
            let (me, owner) = (NodeId(self.fabric.node()), NodeId(local.node));
            assert_eq!(me, owner, "an endpoint of {me} sends from, or gets into, memory of {owner}");
        }
        let operation = placed.map(|at| (at, self.operation(&request, at)));
        let lane = if operation.is_ok() { self.lane_for(request.remote.key()) } else { None };
        let state = &mut self.peers[peer.index()];
        state.posted += 1;
        let sequence = state.posted;
        let (at, operation) = match operation {
            Ok(operation) => operation,
            Err(code) => {
                state.failed.insert(sequence, code);
                return sequence;
            }
        };
        let result_bytes = match operation {
            Operation::Get { into: None, .. } | Operation::Cas { .. } | Operation::Faa { .. } => request.len,
            _ => 0,
        };
        let reads = match operation {
            Operation::Get { words, .. } => {
                Some(Reads { from: at, count: words, succeeds: None, into: cells(&request.local) })
            }
            Operation::Cas { expected, .. } => Some(Reads { from: at, count: 1, succeeds: Some(expected), into: None }),
            _ => None,
        };
        let issued = lane.and_then(|lane| Some((lane, issue(self.fabric.node(), lane, &request, at, operation)?)));
        let Some((lane, machine_sequence)) = issued else {
            state.failed.insert(sequence, Code::Unreachable);
            return sequence;
        };
        let local = request.local;
        state.pending.push_back(InFlight { sequence, lane, machine_sequence, reads, result_bytes, local, done: false });
        self.outstanding += 1;
        sequence
    }

    fn poll(&mut self) {
        if self.outstanding == 0 {
            return;
        }
        let step = || with_world(|world| world.inner.borrow().run.steps);
        // A second look in a row shows nothing new, and a loop of looks lets the other threads run in between.
        if self.polled_at.is_some() && self.polled_at.take() == step() {
            return;
        }
        if !self.is_torn_down() {
            with_world(|world| world.point(Pending::Read(completions_key(self.lane))));
        }
        self.take_results();
        self.polled_at = step();
    }

    fn taken(&mut self, peer: NodeId, sequence: u64, others_wait: bool) {
        with_world(|world| {
            let mut inner = world.inner.borrow_mut();
            if let Some(current) = inner.current
                && !others_wait
            {
                inner.took(current, (self.lane, peer.0, sequence));
            }
        });
        // Only now does the thread know: another of its operations may have waited when the result arrived.
        let brought = &mut self.peers[peer.index()].brought;
        if let Some(at) = brought.iter().position(|(of, ..)| *of == sequence) {
            let (_, reads, words) = brought.swap_remove(at);
            looked_at(reads, &words);
        }
    }

    fn status(&self, peer: NodeId, sequence: u64) -> Status {
        let Some(peer) = self.peers.get(peer.index()) else { return Status::Pending };
        if let Some(code) = peer.failed.get(&sequence) {
            return Status::Failed(*code);
        }
        if sequence > peer.posted {
            return Status::Pending;
        }
        if !peer.pending.iter().any(|flight| flight.sequence == sequence) {
            Status::Done
        } else if self.is_torn_down() {
            Status::Failed(Code::Unreachable)
        } else {
            Status::Pending
        }
    }
}

impl Drop for SimLane {
    fn drop(&mut self) {
        with_world(|world| {
            if let Ok(mut inner) = world.inner.try_borrow_mut()
                && self.fabric.is_here()
            {
                self.classes.iter().for_each(|class| inner.lanes[class.index].in_use = false);
                let pending = self.peers.iter_mut().flat_map(|peer| peer.pending.drain(..));
                let kept = pending.filter(|flight| !flight.done).map(|flight| flight.local);
                if let Some(class) = self.classes.first() {
                    inner.lanes[class.index].kept.extend(kept);
                }
            }
        });
    }
}
