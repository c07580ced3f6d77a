//! A deliberately weak fabric for tests: as late and as reordered as RDMA^WAIT allows.
//!
//! It decorates a strong fabric and delays: the source of a put is read late (so `put_from_region` may send later
//! stores), writes land after the put is complete, operations to different nodes overtake each other, those to one node
//! do so wherever the stamp table has no order, long transfers land in pieces, completions are late. Objects that are
//! correct on it rely on nothing that shared memory adds.
//!
//! One property is stronger than the model: a remote atomic is one CPU atomic of the fabric below, so no CPU access or
//! put occurs between its halves.
//!
//! Each lane keeps a queue pair for each peer, and one more for each further group ([`GroupKey::class`]): the halves
//! of its first operations, of which any that the table allows may be next. The choice is random. The endpoint takes
//! steps when it posts or polls, and so does a thread of each fabric, since a NIC continues when the CPU does not.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::cell::memory_fence;
use crate::decorate::decorate;
use crate::error::{Code, Result};
use crate::fabric::Transport;
use crate::lane::{Completions, Lane, Local, Status, Verb, WorkRequest, copy_words};
use crate::pool::Block;
use crate::ptr::{GroupKey, NodeId};

/// A fabric as weak as the model allows, with the choices of `seed`.
///
/// ```
/// # use farfield_fabric::{shm::*, *, weak::weaken};
/// # use std::sync::{Arc, mpsc};
/// # fn main() -> Result<()> {
/// # let node = ShmFabric::join(&ShmOptions::new(format!("doc-weaken-{}", std::process::id()), 0, 1))?;
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
/// let ep = Endpoint::open(weaken(node, 7)?, EndpointOptions::default())?;
/// ep.put_value(word, 42).wait()?; // complete, and perhaps not in memory yet
/// assert_eq!(ep.get(word).wait()?, 42); // but a get flushes it
/// # drop((ep, end));
/// # service.join().expect("the service thread does not panic");
/// # Ok(()) }
/// ```
///
/// # Errors
/// The thread for its NIC cannot be started.
pub fn weaken(inner: Arc<dyn Transport>, seed: u64) -> Result<Arc<dyn Transport>> {
    let nic: Arc<Nic> = Arc::default();
    let seeds = Mutex::new(SmallRng::seed_from_u64(seed));
    let engine = Arc::downgrade(&nic);
    let mut rng = SmallRng::seed_from_u64(!seed);
    let run = move || {
        while let Some(nic) = engine.upgrade() {
            let busy = nic.step_all(&mut rng);
            drop(nic);
            // Sometimes it is slow, so that late steps are late by more than a few others.
            match rng.random_range(0..64u32) {
                0 => std::thread::sleep(Duration::from_micros(50)),
                _ if busy => std::thread::yield_now(),
                _ => std::thread::sleep(Duration::from_micros(20)),
            }
        }
    };
    inner.spawn(format!("weak-nic-{}", inner.me().0), Box::new(run))?;
    let wrap = move |inner| {
        let rng = SmallRng::from_rng(&mut *lock(&seeds));
        Box::new(WeakLane::new(inner, &nic, rng)) as Box<dyn Lane>
    };
    Ok(decorate(inner, "weak", Box::new(wrap)))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// All queue pairs of the node, as far as they live or have work left.
#[derive(Default)]
struct Nic {
    lanes: Mutex<Vec<Arc<Shared>>>,
}

impl Nic {
    /// Some steps of each lane; whether there was anything to do.
    fn step_all(&self, rng: &mut SmallRng) -> bool {
        let lanes = lock(&self.lanes).clone();
        let mut busy = false;
        for lane in &lanes {
            let mut pairs = lock(&lane.pairs);
            for _ in 0..rng.random_range(1..4) {
                busy |= pairs.step(rng);
            }
        }
        lock(&self.lanes).retain(|lane| !lane.closed.load(Ordering::Acquire) || lock(&lane.pairs).has_work());
        busy
    }
}

/// A lane, shared with the NIC's thread.
struct Shared {
    pairs: Mutex<Pairs>,
    closed: AtomicBool,
}

struct WeakLane {
    shared: Arc<Shared>,
    rng: SmallRng,
    /// As of the last poll.
    seen: Completions,
}

/// The queue pairs of one lane.
struct Pairs {
    inner: Box<dyn Lane>,
    pairs: Vec<Pair>,
    completed: Vec<(NodeId, u64, Result<(), Code>)>,
}

/// How many operations of a queue pair are in work at a time, at most: those behind them wait. To look at thousands for
/// each step would take minutes.
const IN_WORK_MAX: usize = 64;

/// One queue pair, to a node for the groups of one class: its operations that are not finished, oldest first.
struct Pair {
    peer: NodeId,
    class: GroupKey,
    operations: VecDeque<Operation>,
}

struct Operation {
    sequence: u64,
    request: WorkRequest,
    stage: Stage,
    /// For a put: its bytes, once read. For a get or an atomic: the result on its way back.
    carried: Option<Arc<Block>>,
    /// The pieces of a put or get that have not been moved yet, while it is in the middle of it.
    pieces: Option<Vec<(usize, usize)>>,
    result: Result<(), Code>,
    reported: bool,
}

/// The progress of an operation, in the model's subevents.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Stage {
    Posted,
    /// Its reading half is done: NLR of a put, NRR of a get, NAR and NAW of an atomic.
    Read,
    /// Its writing half is in the NIC's buffer: NRW or NLW has started.
    Started,
    /// Its writing half is in memory.
    Finished,
}

impl Operation {
    fn is_put(&self) -> bool {
        self.request.verb == Verb::Put
    }

    /// Whether the operation is complete: a put when its write has started, everything else when it is finished.
    fn is_complete(&self) -> bool {
        self.stage >= if self.is_put() { Stage::Started } else { Stage::Finished }
    }
}

impl Pair {
    /// Whether the next subevent of the operation at `at` may happen now (semantics.md, sections 1 and 6).
    fn may_step(&self, at: usize) -> bool {
        let operation = &self.operations[at];
        let earlier = || self.operations.iter().take(at);
        // No write waits in the buffer of the remote (local) side.
        let in_work = || self.operations.iter().take(IN_WORK_MAX);
        let remote_empty = || !in_work().any(|o| o.is_put() && o.stage == Stage::Started);
        let local_empty = || !in_work().any(|o| !o.is_put() && o.stage == Stage::Started);
        let fences_passed = || earlier().all(|o| o.request.verb != Verb::RemoteFence || o.stage == Stage::Finished);
        match (operation.request.verb, operation.stage) {
            // NLR: after earlier NLR and fences; flushes the local side (nfo).
            (Verb::Put, Stage::Posted) => {
                earlier().all(|o| !o.is_put() || o.stage >= Stage::Read) && fences_passed() && local_empty()
            }
            // NRW: after earlier NRW have started (the buffer is a FIFO).
            (Verb::Put, Stage::Read) => earlier().all(|o| !o.is_put() || o.stage >= Stage::Started),
            // NRW leaves the buffer in order.
            (Verb::Put, Stage::Started) => earlier().all(|o| !o.is_put() || o.stage == Stage::Finished),
            // NRR, NAR: after earlier NLR and NRW; an atomic also after earlier atomics; flushes the remote side.
            (Verb::Get | Verb::Cas | Verb::Faa, Stage::Posted) => {
                earlier().all(|o| match o.request.verb {
                    Verb::Put => o.stage == Stage::Finished,
                    Verb::Cas | Verb::Faa => operation.request.verb == Verb::Get || o.stage >= Stage::Read,
                    Verb::Get => true,
                    Verb::RemoteFence => o.stage == Stage::Finished,
                }) && remote_empty()
            }
            // NLW: after earlier NRR, NRW and NLR, and after earlier NLW have started.
            (Verb::Get | Verb::Cas | Verb::Faa, Stage::Read) => earlier().all(|o| match o.request.verb {
                Verb::Put => o.stage == Stage::Finished,
                Verb::RemoteFence => true,
                _ => o.stage >= Stage::Started,
            }),
            (Verb::Get | Verb::Cas | Verb::Faa, Stage::Started) => {
                earlier().all(|o| o.is_put() || o.request.verb == Verb::RemoteFence || o.stage == Stage::Finished)
            }
            // RF: after earlier reads are done and earlier writes have started.
            (Verb::RemoteFence, Stage::Posted) => earlier().all(|o| match o.request.verb {
                Verb::RemoteFence => o.stage == Stage::Finished,
                _ => o.stage >= Stage::Started,
            }),
            (Verb::RemoteFence, _) | (_, Stage::Finished) => false,
        }
    }
}

impl Pairs {
    fn has_work(&self) -> bool {
        self.pairs.iter().any(|pair| !pair.operations.is_empty())
    }

    /// Does one subevent, chosen at random among those allowed.
    fn step(&mut self, rng: &mut SmallRng) -> bool {
        let mut candidates = Vec::new();
        for (of, pair) in self.pairs.iter().enumerate() {
            let in_work = pair.operations.len().min(IN_WORK_MAX);
            candidates.extend((0..in_work).filter(|at| pair.may_step(*at)).map(|at| (of, at)));
        }
        let Some(&(of, at)) = candidates.get(rng.random_range(0..candidates.len().max(1))) else { return false };
        let Pair { peer, operations, .. } = &mut self.pairs[of];
        let before = operations[at].result;
        advance(&mut *self.inner, &mut operations[at], rng);
        if let (Ok(()), Err(code)) = (before, operations[at].result) {
            // An accepted request fails together with all behind it: the queue pair is over for them, and not for those
            // that are posted later. A reported one is lost, as the put before it may have been.
            for behind in operations.range_mut(at + 1..) {
                behind.result = behind.result.and(Err(code));
            }
        }
        // Completions of a queue pair are in order.
        for operation in operations.iter_mut() {
            if !operation.is_complete() {
                break;
            }
            if !std::mem::replace(&mut operation.reported, true) {
                self.completed.push((*peer, operation.sequence, operation.result));
            }
        }
        while operations.front().is_some_and(|first| first.stage == Stage::Finished && first.reported) {
            operations.pop_front();
        }
        true
    }
}

/// Does the next subevent of an operation.
fn advance(inner: &mut dyn Lane, operation: &mut Operation, rng: &mut SmallRng) {
    let request = &operation.request;
    let (verb, len) = (request.verb, request.len);
    let refused = |inner: &mut dyn Lane, part: WorkRequest| {
        let (peer, sequence) = (part.peer(), inner.post(part));
        inner.poll();
        match inner.status(peer, sequence) {
            Status::Failed(code) => Err(code),
            Status::Done | Status::Pending => Ok(()),
        }
    };
    operation.stage = match (verb, operation.stage) {
        (Verb::RemoteFence, _) => {
            operation.result = operation.result.and_then(|()| inner.check(request));
            Stage::Finished
        }
        (Verb::Put, Stage::Posted) => {
            let carried = Block::new(len);
            // Earlier stores of this thread are in memory when the source is read (CW→NLR).
            memory_fence();
            // SAFETY: the request keeps its local memory, and the block is new and has room.
            unsafe { copy_words(request.local.ptr, carried.as_ptr(), len) };
            operation.carried = Some(carried);
            // A put that would fail now fails before it counts as started.
            operation.result = operation.result.and_then(|()| inner.check(request));
            Stage::Read
        }
        (Verb::Put, Stage::Read) => Stage::Started,
        (Verb::Put, Stage::Started) => {
            if operation.result.is_ok()
                && let Some(carried) = &operation.carried
            {
                // Piece by piece, in any order. One that fails now is lost: the put may be complete already.
                let left = operation.pieces.get_or_insert_with(|| pieces(len, rng));
                if let Some(piece) = left.pop() {
                    operation.result = refused(inner, part(request, piece, carried));
                }
                if !left.is_empty() && operation.result.is_ok() {
                    return;
                }
            }
            Stage::Finished
        }
        (_, Stage::Posted) => {
            let carried = operation.carried.get_or_insert_with(|| Block::new(len));
            let left = operation.pieces.get_or_insert_with(|| pieces(len, rng));
            if operation.result.is_ok()
                && let Some(piece) = left.pop()
            {
                operation.result = refused(inner, part(request, piece, carried));
            }
            if !left.is_empty() && operation.result.is_ok() {
                return;
            }
            Stage::Read
        }
        (_, Stage::Read) => Stage::Started,
        (_, Stage::Started) => {
            if operation.result.is_ok()
                && let Some(carried) = &operation.carried
            {
                // SAFETY: the request keeps its local memory, and no other code uses the block.
                unsafe { copy_words(carried.as_ptr(), request.local.ptr, len) };
                // It is in memory before this thread's next reads (NLW→WT→CR).
                memory_fence();
            }
            Stage::Finished
        }
        (_, Stage::Finished) => Stage::Finished,
    };
}

/// The part of a request that moves one piece, between the remote memory and the carried block.
fn part(request: &WorkRequest, (from, to): (usize, usize), carried: &Arc<Block>) -> WorkRequest {
    WorkRequest {
        verb: request.verb,
        remote: request.remote.byte_add(from as u64),
        len: to - from,
        operands: request.operands,
        local: Local { ptr: carried.as_ptr().wrapping_add(from), ..Local::block(carried) },
    }
}

/// Cuts `len` bytes into pieces of whole words, in random order.
fn pieces(len: usize, rng: &mut SmallRng) -> Vec<(usize, usize)> {
    let mut pieces = Vec::new();
    let mut from = 0;
    while from < len {
        // Mostly words, so that every mixture shows; long ones for speed.
        let longest = if len <= 256 { 4 } else { 64 };
        let to = (from + 8 * rng.random_range(1..=longest)).min(len);
        pieces.push((from, to));
        from = to;
    }
    for i in (1..pieces.len()).rev() {
        pieces.swap(i, rng.random_range(0..=i));
    }
    pieces
}

impl WeakLane {
    fn new(inner: Box<dyn Lane>, nic: &Arc<Nic>, rng: SmallRng) -> WeakLane {
        let pairs = Pairs { inner, pairs: Vec::new(), completed: Vec::new() };
        let shared = Arc::new(Shared { pairs: Mutex::new(pairs), closed: AtomicBool::new(false) });
        lock(&nic.lanes).push(Arc::clone(&shared));
        WeakLane { shared, rng, seen: Completions::default() }
    }
}

impl Drop for WeakLane {
    fn drop(&mut self) {
        // Posted requests still land; the NIC's thread forgets the lane then.
        self.shared.closed.store(true, Ordering::Release);
    }
}

impl crate::lane::sealed::Sealed for WeakLane {}

impl Lane for WeakLane {
    fn check(&mut self, request: &WorkRequest) -> Result<(), Code> {
        lock(&self.shared.pairs).inner.check(request)
    }

    fn post(&mut self, request: WorkRequest) -> u64 {
        let peer = request.peer();
        let mut pairs = lock(&self.shared.pairs);
        if let Err(code) = pairs.inner.check(&request) {
            return self.seen.refuse(peer, code);
        }
        let sequence = self.seen.post(peer);
        let class = request.remote.key().class();
        let at = pairs.pairs.iter().position(|pair| (pair.peer, pair.class) == (peer, class));
        let at = at.unwrap_or_else(|| {
            pairs.pairs.push(Pair { peer, class, operations: VecDeque::new() });
            pairs.pairs.len() - 1
        });
        pairs.pairs[at].operations.push_back(Operation {
            sequence,
            request,
            stage: Stage::Posted,
            carried: None,
            pieces: None,
            result: Ok(()),
            reported: false,
        });
        // Sometimes the NIC is fast.
        for _ in 0..self.rng.random_range(0..3) {
            pairs.step(&mut self.rng);
        }
        sequence
    }

    fn poll(&mut self) {
        let mut pairs = lock(&self.shared.pairs);
        for _ in 0..self.rng.random_range(0..4) {
            pairs.step(&mut self.rng);
        }
        // Completions are noticed late, too.
        if self.rng.random_range(0..4) > 0 {
            for (peer, sequence, result) in pairs.completed.drain(..) {
                self.seen.complete(peer, sequence, result);
            }
        }
    }

    fn status(&self, peer: NodeId, sequence: u64) -> Status {
        self.seen.status(peer, sequence)
    }
}
