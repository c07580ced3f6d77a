//! The node's own worker: its thread does the requests of other nodes' lanes, and answers them.
//!
//! Everything is checked here: the target, which stands for the right, the place, and the generation of its memory. A
//! message is handled under the lock of the [`Board`], and what takes a right or memory takes that lock, too: so
//! nothing lands afterwards. Operations of the node's own lanes hold the [`gate`](Responder::gate) open for the same
//! reason.
//!
//! Bounds are checked, too. A lane that asks for more than its window ([`WINDOW_BYTES`]), or sends what is no request,
//! is refused: its connection is closed, nothing of it is handled any more, and its node counts as lost.

use core::sync::atomic::{AtomicBool, Ordering};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use farfield_ucx_sys::{self as sys, Endpoint, Message, Slept, UcxError, Waker, Worker};

use super::port::Address;
use super::wire::{
    Breach, Header, InOrder, Outcome, PIECE_BYTES, REPLIES, REQUESTS, Reply, Request, WINDOW_BYTES, bytes_of,
    message_bytes, perform, words_of, write_data,
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
/// The longest look for the next message before the thread sleeps: about as long as it takes to wake it.
const LOOK_MAX: Duration = Duration::from_micros(100);
/// The worker is closed when it has had nothing to do for so long, or after so long.
const QUIET: Duration = Duration::from_millis(20);
const LEAVING_MAX: Duration = Duration::from_millis(500);
/// The most bytes of replies to a lane that UCX has not sent. A lane has a window of them to get; UCX may report late
/// that it has sent some.
const UNSENT_BYTES_MAX: usize = 2 * WINDOW_BYTES;

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

/// A message that cannot be read.
const NO_REQUEST: Breach = "it sends what is no request";

#[derive(Default)]
struct Board {
    /// By the numbers that they have chosen.
    lanes: BTreeMap<u64, Caller>,
    /// Those with replies to send, and those that are gone.
    answered: Vec<u64>,
    gone: Vec<u64>,
    /// The nodes of lanes that were refused, until they are reported.
    refused: Vec<(NodeId, Breach)>,
    /// Something was written since the sleepers were woken last.
    has_written: bool,
}

/// A lane of another node.
struct Caller {
    node: NodeId,
    address: Address,
    /// How many targets it was given that are not dropped. More than it can use, after some have refused.
    targets: usize,
    arrived: InOrder,
    ends: Ends,
    /// It has broken the rules.
    is_refused: bool,
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

    /// The nodes of lanes that were refused since the last call, and why.
    pub(super) fn refused(&self) -> Vec<(NodeId, Breach)> {
        core::mem::take(&mut self.lock().refused)
    }

    /// A target for a class of groups, for the lane at that address.
    pub(super) fn target(self: &Arc<Responder>, class: GroupKey, from: NodeId, address: &Address) -> Target {
        let token = rand::random();
        self.lock().add(address, from, token, class);
        Target { responder: Arc::clone(self), of: Some((address.id, token)) }
    }

    /// The target of an own lane's pair.
    pub(super) fn own_target(self: &Arc<Responder>) -> Target {
        Target { responder: Arc::clone(self), of: None }
    }

    /// UCX has a message, and this thread makes progress.
    fn handle(&self, message: Message<'_>) {
        if let (Some(header), Some(served)) = (Header::decode(message.header), self.served.get()) {
            self.lock().handle(header, message.data, served);
        }
    }

    fn run(&self, mut worker: Worker) -> Result<(), UcxError> {
        let sleeper = worker.sleeper();
        let mut ways = BTreeMap::new();
        let mut vain = 0;
        let mut looks = Looks::default();
        while !self.stops.load(Ordering::Acquire) {
            let did = worker.progress();
            if self.answer(&mut worker, &mut ways) || did {
                vain = 0;
                looks.found(Instant::now());
                continue;
            }
            if looks.go_on(Instant::now()) {
                // Others need the core as much.
                std::thread::yield_now();
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
    fn answer(&self, worker: &mut Worker, ways: &mut BTreeMap<u64, Way>) -> bool {
        let mut board = self.lock();
        let has_written = core::mem::take(&mut board.has_written);
        let (gone, answered) = (core::mem::take(&mut board.gone), core::mem::take(&mut board.answered));
        let did = has_written || !gone.is_empty() || !answered.is_empty();
        // Endpoints close in the next round of progress.
        gone.iter().for_each(|lane| drop(ways.remove(lane)));
        let messages: Vec<_> = answered.iter().filter_map(|lane| board.take_replies(*lane, self.id)).collect();
        drop(board);
        if has_written {
            self.wrote();
        }
        for (address, header, replies) in messages {
            let way = match ways.entry(address.id) {
                Entry::Occupied(way) => way.into_mut(),
                Entry::Vacant(place) => place.insert(Way::to(worker, &address)),
            };
            if !way.has_room(worker, message_bytes(&replies)) {
                self.lock().refuse(address.id, "it does not take the replies that it asks for, and asks for more");
            } else {
                way.send(worker, header, &replies);
            }
        }
        did
    }
}

/// How long to look for the next message before a sleep: for a while if the last one came so soon, and not at all
/// otherwise. So the thread of a busy node does not sleep, and the beats of an idle one cost no looks.
#[derive(Default)]
struct Looks {
    pays: bool,
    /// Since when there has been nothing to do.
    since: Option<Instant>,
}

impl Looks {
    /// Something has come.
    fn found(&mut self, now: Instant) {
        if let Some(since) = self.since.take() {
            self.pays = now - since < LOOK_MAX;
        }
    }

    /// Nothing has come: whether to look again.
    fn go_on(&mut self, now: Instant) -> bool {
        let since = *self.since.get_or_insert(now);
        self.pays && now - since < LOOK_MAX
    }
}

/// The way back to a lane.
struct Way {
    /// None if the connection has failed.
    endpoint: Option<Endpoint>,
    /// Messages that UCX has not sent, and their bytes.
    unsent: VecDeque<(sys::Request, usize)>,
    unsent_bytes: usize,
}

impl Way {
    fn to(worker: &mut Worker, address: &Address) -> Way {
        let endpoint = address.worker().and_then(|address| worker.connect(&address));
        let endpoint = endpoint.map_err(|error| tracing::debug!("a lane cannot be answered: {error}")).ok();
        Way { endpoint, unsent: VecDeque::new(), unsent_bytes: 0 }
    }

    /// Whether UCX can keep so many bytes more.
    fn has_room(&mut self, worker: &mut Worker, bytes: usize) -> bool {
        let mut is_unsent = |request: &sys::Request| worker.is_complete(request) == Ok(false);
        while let Some((_, sent)) = self.unsent.pop_front_if(|(request, _)| !is_unsent(request)) {
            self.unsent_bytes -= sent;
        }
        if self.unsent_bytes + bytes > UNSENT_BYTES_MAX {
            // UCX need not keep the order.
            self.unsent.retain(|(request, _)| is_unsent(request));
            self.unsent_bytes = self.unsent.iter().map(|(_, bytes)| bytes).sum();
        }
        self.unsent_bytes + bytes <= UNSENT_BYTES_MAX
    }

    fn send(&mut self, worker: &mut Worker, header: Header, replies: &[u64]) {
        let Some(endpoint) = &self.endpoint else { return };
        match worker.send(endpoint, REPLIES, &header.encode(), bytes_of(replies)) {
            Ok(None) => {}
            Ok(Some(request)) => {
                self.unsent.push_back((request, message_bytes(replies)));
                self.unsent_bytes += message_bytes(replies);
            }
            Err(error) => {
                // The lane finds that it has no answer, or is gone itself. It is not called back: see `lane`.
                tracing::debug!("a lane cannot be answered: {error}");
                *self = Way { endpoint: None, unsent: VecDeque::new(), unsent_bytes: 0 };
            }
        }
    }
}

/// The address of a lane, the header of a message to it, and its words.
type Replies = (Address, Header, Vec<u64>);

impl Board {
    /// Adds a target of a lane.
    fn add(&mut self, address: &Address, node: NodeId, token: u64, class: GroupKey) {
        let caller = self.lanes.entry(address.id).or_insert_with(|| Caller {
            node,
            address: address.clone(),
            targets: 0,
            arrived: InOrder::default(),
            ends: Ends::default(),
            is_refused: false,
        });
        caller.targets += 1;
        caller.ends.targets.insert(token, class);
    }

    /// A target is dropped. Whether it was the last one of its lane, which is forgotten then: one that gets another
    /// target later is a new one, which counts its messages from 0.
    fn remove(&mut self, lane: u64, token: u64) -> bool {
        let Some(caller) = self.lanes.get_mut(&lane) else { return false };
        caller.ends.targets.remove(&token);
        caller.targets -= 1;
        if caller.targets > 0 {
            return false;
        }
        self.lanes.remove(&lane);
        self.gone.push(lane);
        true
    }

    /// A message has come. That of a lane that is gone, was refused or never was has no effect.
    fn handle(&mut self, header: Header, data: &[u8], served: &Served) {
        let Some(caller) = self.lanes.get_mut(&header.from).filter(|caller| !caller.is_refused) else { return };
        let Caller { arrived, ends, .. } = caller;
        let words = match data.len() {
            0..=WINDOW_BYTES => words_of(data).ok_or(NO_REQUEST),
            _ => Err("it sends a message that is longer than what may be under way"),
        };
        let has_written = &mut self.has_written;
        let taken = words
            .and_then(|words| arrived.arrived(header.number, words, |words| ends.handle(words, served, has_written)));
        match taken {
            Ok(()) if core::mem::replace(&mut ends.is_answered, true) => {}
            Ok(()) => self.answered.push(header.from),
            Err(why) => self.refuse(header.from, why),
        }
    }

    /// Handles nothing of a lane any more, and has its connection closed.
    fn refuse(&mut self, lane: u64, why: Breach) {
        let Some(caller) = self.lanes.get_mut(&lane).filter(|caller| !caller.is_refused) else { return };
        caller.is_refused = true;
        // What it has sent, and the replies to it.
        (caller.arrived, caller.ends) = Default::default();
        self.gone.push(lane);
        self.refused.push((caller.node, why));
    }

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
        Some((address.clone(), header, core::mem::take(&mut ends.replies)))
    }
}

impl Ends {
    /// Does the requests of a message, and notes whether something was written.
    ///
    /// # Errors
    /// They are no requests, or ask for more than may be under way.
    fn handle(&mut self, mut words: &[u64], served: &Served, has_written: &mut bool) -> Result<(), Breach> {
        while !words.is_empty() {
            let request = Request::take(&mut words).ok_or(NO_REQUEST)?;
            let brought = if request.verb == Verb::Put { 0 } else { request.len };
            if message_bytes(&self.replies) + brought > WINDOW_BYTES {
                return Err("it asks for more than may be under way");
            }
            self.position += 1;
            match self.place(&request, served) {
                Ok(at) => {
                    *has_written |= request.verb != Verb::Get;
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
        Ok(())
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
        if request.verb == Verb::Put {
            // SAFETY: the place was just found in this node's memory, which is aligned to 8, stays mapped while there
            // are targets, and is accessed by atomics only. It has as many bytes, and keeps them while the lock is
            // held.
            return unsafe { write_data(request.data, at, request.len) };
        }
        let reply = Reply { position: self.position, outcome: Outcome::Done, len: request.len, data: &[] };
        self.replied = self.position;
        let local = reply.encode(&mut self.replies);
        // SAFETY: the place is as above. The local end is of whole words of a message that no other code uses.
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
        let was_last = self.responder.lock().remove(lane, token);
        if was_last {
            self.responder.waker.wake();
        }
    }
}

#[cfg(test)]
mod tests;
