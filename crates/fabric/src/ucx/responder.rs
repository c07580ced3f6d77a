//! The node's own worker: its thread does the requests of other nodes' lanes, and answers them.
//!
//! Everything is checked here: the target, which stands for the right, the place, and the generation of its memory. A
//! message is handled under the lock of the [`Board`], and what takes a right or memory takes that lock, too: so
//! nothing lands afterwards. Operations of the node's own lanes hold the [`gate`](Responder::gate) open for the same
//! reason.

use core::sync::atomic::{AtomicBool, Ordering};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use farfield_ucx_sys::{self as sys, Endpoint, Message, Slept, UcxError, Waker, Worker};

use super::wire::{
    Header, InOrder, Outcome, PIECE_BYTES, REPLIES, REQUESTS, Reply, Request, bytes_of, perform, words_of,
};
use crate::error::{Code, Result};
use crate::hosts::carrier;
use crate::hosts::layout::PeerMemory;
use crate::hosts::sleepers::Sleepers;
use crate::lane::Verb;
use crate::local::Thread;
use crate::ptr::{GroupKey, NodeId};

/// The longest sleep of the thread: UCX's own timers wake it sooner.
const SLEEP_MAX: Duration = Duration::from_secs(60);
/// Events in a row for which there was nothing to do, after which the thread rests: while a peer has accepted a
/// connection and not answered, UCX 1.13 reports events all the time.
const VAIN_MAX: u32 = 16;
const REST: Duration = Duration::from_millis(1);
/// The worker is closed when it has had nothing to do for so long, or after so long.
const QUIET: Duration = Duration::from_millis(20);
const LEAVING_MAX: Duration = Duration::from_millis(500);

/// What other nodes' lanes reach of this node.
pub(super) struct Responder {
    /// By which its messages are known.
    pub(super) id: u64,
    /// The address of its worker.
    pub(super) address: Vec<u8>,
    board: Mutex<Board>,
    /// Open for each operation of an own lane on this node's memory.
    pub(super) gate: RwLock<()>,
    served: OnceLock<Served>,
    waker: Waker,
    stops: AtomicBool,
    failed: AtomicBool,
}

/// The memory of this node, and its threads that sleep until a word of it changes.
struct Served {
    me: NodeId,
    memory: Arc<PeerMemory>,
    sleepers: Arc<Sleepers>,
}

#[derive(Default)]
struct Board {
    /// By the numbers that they have chosen.
    lanes: BTreeMap<u64, Caller>,
    /// Those with replies to send, and those that are gone.
    answered: Vec<u64>,
    gone: Vec<u64>,
    /// Something was written since the sleepers were woken last.
    has_written: bool,
}

/// A lane of another node.
struct Caller {
    address: Vec<u8>,
    arrived: InOrder,
    ends: Ends,
}

/// The targets of a lane, and the replies that it is to get.
#[derive(Default)]
struct Ends {
    targets: BTreeMap<u64, GroupKey>,
    /// The position of the last request that was handled, and of the last one with a reply.
    position: u64,
    replied: u64,
    replies: Vec<u64>,
    /// How many messages with replies were sent.
    sent: u64,
    is_answered: bool,
}

/// Makes the worker, and starts nothing yet.
pub(super) fn open(context: &sys::Context) -> Result<(Arc<Responder>, Worker), UcxError> {
    let mut worker = Worker::new(context)?;
    let responder = Arc::new(Responder {
        id: rand::random(),
        address: worker.address()?.as_bytes().to_vec(),
        board: Mutex::default(),
        gate: RwLock::new(()),
        served: OnceLock::new(),
        waker: worker.waker(),
        stops: AtomicBool::new(false),
        failed: AtomicBool::new(false),
    });
    let handler = Arc::clone(&responder);
    worker.handle(REQUESTS, move |message| handler.handle(message))?;
    Ok((responder, worker))
}

impl Responder {
    fn lock(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the thread.
    pub(super) fn start(
        self: &Arc<Responder>,
        worker: Worker,
        me: NodeId,
        memory: &Arc<PeerMemory>,
        sleepers: &Arc<Sleepers>,
    ) -> Result<Thread> {
        let served = Served { me, memory: Arc::clone(memory), sleepers: Arc::clone(sleepers) };
        let _ = self.served.set(served); // it is started once
        let responder = Arc::clone(self);
        let body = move || {
            let fails = FailsOnPanic(&responder);
            if let Err(error) = responder.run(worker) {
                tracing::error!("the requests of other nodes are not answered any more: {error}");
                responder.failed.store(true, Ordering::Release);
            }
            drop(fails);
        };
        Thread::start(format!("farfield-answers-{}", me.0), Box::new(body))
    }

    /// Ends the thread soon.
    pub(super) fn stop(&self) {
        self.stops.store(true, Ordering::Release);
        self.waker.wake();
    }

    pub(super) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// No operation is under way that was checked before.
    pub(super) fn settle(&self) {
        drop(self.lock());
        drop(self.gate.write().unwrap_or_else(PoisonError::into_inner));
    }

    /// Words of this node were written: its threads that wait for them are woken.
    pub(super) fn wrote(&self) {
        if let Some(served) = self.served.get() {
            served.sleepers.wake();
        }
    }

    /// A target for a class of groups, for the lane of that number with its worker at that address.
    pub(super) fn target(self: &Arc<Responder>, class: GroupKey, lane: u64, address: &[u8]) -> Target {
        let token = rand::random();
        let caller = || Caller { address: address.to_vec(), arrived: InOrder::default(), ends: Ends::default() };
        self.lock().lanes.entry(lane).or_insert_with(caller).ends.targets.insert(token, class);
        Target { responder: Arc::clone(self), of: Some((lane, token)) }
    }

    /// The target of an own lane's pair.
    pub(super) fn own_target(self: &Arc<Responder>) -> Target {
        Target { responder: Arc::clone(self), of: None }
    }

    /// UCX has a message, and this thread makes progress.
    fn handle(&self, message: Message<'_>) {
        let (Some(header), Some(words)) = (Header::decode(message.header), words_of(message.data)) else { return };
        let Some(served) = self.served.get() else { return };
        let mut board = self.lock();
        let Board { lanes, answered, has_written, .. } = &mut *board;
        let Some(Caller { arrived, ends, .. }) = lanes.get_mut(&header.from) else { return };
        arrived.arrived(header.number, words, |words| *has_written |= ends.handle(words, served));
        if !core::mem::replace(&mut ends.is_answered, true) {
            answered.push(header.from);
        }
    }

    fn run(&self, mut worker: Worker) -> Result<(), UcxError> {
        let sleeper = worker.sleeper();
        let mut endpoints = BTreeMap::new();
        let mut vain = 0;
        while !self.stops.load(Ordering::Acquire) {
            let did = worker.progress();
            if self.answer(&mut worker, &mut endpoints) || did {
                vain = 0;
                continue;
            }
            if vain > VAIN_MAX {
                std::thread::sleep(REST);
            }
            if !worker.arm()? {
                vain += 1;
                continue;
            }
            match sleeper.sleep(SLEEP_MAX)? {
                Slept::Event => vain += 1,
                Slept::Woken | Slept::TimedOut => vain = 0,
            }
        }
        // UCX 1.13 ends the process if a connection is closed that is not answered yet: lanes that connect get their
        // answers.
        let end = Instant::now() + LEAVING_MAX;
        let mut quiet = Instant::now();
        while quiet.elapsed() < QUIET && Instant::now() < end {
            if worker.progress() {
                quiet = Instant::now();
            } else {
                std::thread::sleep(REST);
            }
        }
        Ok(())
    }

    /// Sends the replies, wakes sleepers, and forgets lanes that are gone. Whether there was anything to do.
    fn answer(&self, worker: &mut Worker, endpoints: &mut Endpoints) -> bool {
        let mut board = self.lock();
        let has_written = core::mem::take(&mut board.has_written);
        let (gone, answered) = (core::mem::take(&mut board.gone), core::mem::take(&mut board.answered));
        let did = has_written || !gone.is_empty() || !answered.is_empty();
        // Endpoints close in the next round of progress.
        gone.iter().for_each(|lane| drop(endpoints.remove(lane)));
        let messages: Vec<_> = answered.iter().filter_map(|lane| board.take_replies(*lane, self.id)).collect();
        drop(board);
        if has_written {
            self.wrote();
        }
        for (lane, address, header, replies) in messages {
            if let Err(error) = reply(worker, endpoints, (lane, &address), header, &replies) {
                // Its lane finds that it has no answer, or is gone itself. It is not called back: see `lane`.
                tracing::debug!("a lane cannot be answered: {error}");
                endpoints.insert(lane, None);
            }
        }
        did
    }
}

/// The endpoints to lanes; none to one whose connection has failed.
type Endpoints = BTreeMap<u64, Option<Endpoint>>;

/// Sends a message to a lane.
fn reply(
    worker: &mut Worker,
    endpoints: &mut Endpoints,
    (lane, address): (u64, &[u8]),
    header: Header,
    replies: &[u64],
) -> Result<(), UcxError> {
    if let Entry::Vacant(place) = endpoints.entry(lane) {
        // SAFETY: the address is that of a lane of a node of this session. The control plane has brought it whole, and
        // nodes of a session use the same version of UCX (`Carrier::layout`).
        let address = unsafe { sys::Address::from_bytes(address) };
        place.insert(Some(worker.connect(&address)?));
    }
    let Some(Some(endpoint)) = endpoints.get(&lane) else { return Ok(()) };
    worker.send(endpoint, REPLIES, &header.encode(), bytes_of(replies)).map(drop)
}

/// The lane, its address, the header of a message to it, and its words.
type Replies = (u64, Vec<u8>, Header, Vec<u64>);

impl Board {
    fn take_replies(&mut self, lane: u64, from: u64) -> Option<Replies> {
        let Caller { address, ends, .. } = self.lanes.get_mut(&lane)?;
        ends.is_answered = false;
        if ends.replied < ends.position {
            // For all puts up to here.
            let done = Reply { position: ends.position, outcome: Outcome::Done, len: 0, data: &[] };
            done.encode(&mut ends.replies);
            ends.replied = ends.position;
        }
        if ends.replies.is_empty() {
            return None;
        }
        let header = Header { from, number: ends.sent };
        ends.sent += 1;
        Some((lane, address.clone(), header, core::mem::take(&mut ends.replies)))
    }
}

impl Ends {
    /// Does the requests of a message. Whether something was written.
    fn handle(&mut self, mut words: &[u64], served: &Served) -> bool {
        let mut has_written = false;
        while !words.is_empty() {
            let Some(request) = Request::take(&mut words) else {
                // The rest of the lane's requests is unknown: it gets no answer.
                tracing::warn!("a lane has sent bytes that are no request");
                self.targets.clear();
                break;
            };
            self.position += 1;
            match self.place(&request, served) {
                Ok(at) => {
                    has_written |= request.verb != Verb::Get;
                    self.perform(&request, at);
                }
                Err(outcome) => {
                    if let Outcome::Ended(_) = outcome {
                        self.targets.remove(&request.target);
                    }
                    Reply { position: self.position, outcome, len: 0, data: &[] }.encode(&mut self.replies);
                    self.replied = self.position;
                }
            }
        }
        has_written
    }

    /// The place of a request in this node's memory.
    fn place(&self, request: &Request<'_>, served: &Served) -> Result<*mut u8, Outcome> {
        let class = *self.targets.get(&request.target).ok_or(Outcome::Ended(Code::Unreachable))?;
        let remote = request.remote;
        if remote.key().class() != class || remote.node() != served.me {
            return Err(Outcome::Ended(Code::BadKey));
        }
        if !remote.offset().is_multiple_of(8) {
            return Err(Outcome::Ended(Code::Misaligned));
        }
        match served.memory.find(remote, request.len) {
            Ok((address, _)) => Ok(address as *mut u8),
            // The lane could not know it yet.
            Err(Code::Freed) => Err(Outcome::Failed(Code::Freed)),
            Err(code) => Err(Outcome::Ended(code)),
        }
    }

    fn perform(&mut self, request: &Request<'_>, at: *mut u8) {
        debug_assert!(request.len <= PIECE_BYTES);
        let local = if request.verb == Verb::Put {
            request.data.as_ptr().cast_mut().cast()
        } else {
            let reply = Reply { position: self.position, outcome: Outcome::Done, len: request.len, data: &[] };
            self.replied = self.position;
            reply.encode(&mut self.replies)
        };
        // SAFETY: the place was just found in this node's memory, which is aligned to 8, stays mapped while there are
        // targets, and is accessed by atomics only; it has as many bytes, and keeps them while the lock is held. The
        // local end is of whole words of a message that no other code uses; a put only reads it.
        unsafe { perform(request.verb, at, local, request.len, request.operands) };
    }
}

/// The thread has panicked: no lane is answered any more.
struct FailsOnPanic<'r>(&'r Responder);

impl Drop for FailsOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.failed.store(true, Ordering::Release);
        }
    }
}

/// What a pair of a lane reaches of this node.
pub(crate) struct Target {
    responder: Arc<Responder>,
    /// The lane and the target's number; none for an own lane.
    of: Option<(u64, u64)>,
}

impl carrier::Target for Target {
    /// Dropping it is as soon done.
    fn refuse(&self) {}
}

impl Target {
    /// Its number.
    pub(super) fn token(&self) -> u64 {
        self.of.map_or(0, |(_, token)| token)
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let Some((lane, token)) = self.of else {
            // The pair has ended: an operation that has not seen it is over when the gate is shut.
            return drop(self.responder.gate.write().unwrap_or_else(PoisonError::into_inner));
        };
        // The lock: no request is under way.
        let mut board = self.responder.lock();
        let Some(caller) = board.lanes.get_mut(&lane) else { return };
        caller.ends.targets.remove(&token);
        // A target that has refused is gone before it is dropped, and may be the last one then.
        if caller.ends.targets.is_empty() {
            board.lanes.remove(&lane);
            board.gone.push(lane);
            drop(board);
            self.responder.waker.wake();
        }
    }
}
