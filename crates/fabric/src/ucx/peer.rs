//! A lane's knowledge of a node: its pairs, and the requests that wait, or have no reply yet.

use core::sync::atomic::{Ordering, fence};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farfield_ucx_sys::{Endpoint, Request, UcxError, Worker};

use super::port::{Address, Pair, Switch};
use super::wire::{
    self, Header, InOrder, MESSAGE_WORDS, Outcome, PIECE_BYTES, REQUEST_BYTES, REQUESTS, Reply, WINDOW_BYTES, bytes_of,
};
use crate::error::Code;
use crate::hosts::layout::PeerMemory;
use crate::lane::{Completions, Keep, Local, Verb, WorkRequest, copy_words};
use crate::ptr::{GroupKey, NodeId, RemotePtr};

/// A node that replies to nothing for so many times the patience is given up. The time to move the data under way, at
/// the slowest acceptable pace, does not count.
const PATIENCES_MAX: u32 = 8;
const BYTES_PER_MS_MIN: u64 = 1000;
/// After a pause of the lane for so long nothing is known of the time between.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// A connection that is to be closed, and is not made yet, is kept for so long at most: see `lane`.
pub(super) const CLOSING_MAX: Duration = Duration::from_secs(1);

/// A node, as a lane knows it.
pub(super) struct Peer {
    node: NodeId,
    pub(super) memory: Option<Arc<PeerMemory>>,
    pairs: Vec<PairHere>,
    link: Option<Link>,
    /// A message of it has come: the connection is made in both directions.
    has_answered: bool,
    /// The connection has failed or is closed, or the node does not answer.
    is_lost: bool,
    /// Since when the way to it is known to have ended.
    ended: Option<Instant>,
    waiting: VecDeque<Waiting>,
    under_way: VecDeque<Piece>,
    /// The position of the first that is under way.
    first: u64,
    /// How many under way have not failed.
    open: usize,
    /// Of all under way: for the node they count until it has replied.
    bytes: usize,
    /// Being filled.
    message: Vec<u64>,
    /// How many messages were sent.
    sent: u64,
    arrived: InOrder,
    /// The last remote fence; 0 if there was none.
    pub(super) fence: u64,
    /// Batches that are open.
    pub(super) holds: u32,
    /// It is on the lane's list.
    pub(super) is_busy: bool,
    /// The first position when it was last looked, and since when it is that.
    first_seen: (u64, Instant),
    looked: Instant,
}

/// A pair of the lane.
struct PairHere {
    class: GroupKey,
    /// None to the own node.
    token: Option<u64>,
    switch: Switch,
    failed: Option<Code>,
}

impl PairHere {
    fn check(&self) -> Result<(), Code> {
        self.failed.map_or_else(|| self.switch.check(), Err)
    }
}

/// The way to a node's worker.
struct Link {
    id: u64,
    address: Address,
    endpoint: Option<Endpoint>,
}

/// An operation that was not sent as a whole.
struct Waiting {
    sequence: u64,
    pair: usize,
    verb: Verb,
    remote: RemotePtr<u8>,
    len: usize,
    operands: [u64; 2],
    local: Local,
    /// The number of the fence that it is behind, if it matters.
    fence: u64,
    /// How many of its bytes are under way.
    begun: usize,
    /// A piece of it has failed.
    fault: Option<Code>,
}

/// A request that has no reply yet.
struct Piece {
    sequence: u64,
    is_last: bool,
    pair: usize,
    verb: Verb,
    /// Where its result is to be; the operation's last piece keeps the memory.
    local: Local,
    len: usize,
    fault: Option<Code>,
    /// Its operation has ended.
    is_dead: bool,
}

impl Piece {
    fn cost(&self) -> usize {
        self.len + REQUEST_BYTES
    }
}

impl Peer {
    pub(super) fn new(node: NodeId) -> Peer {
        let now = Instant::now();
        Peer {
            node,
            memory: None,
            pairs: Vec::new(),
            link: None,
            has_answered: false,
            is_lost: false,
            ended: None,
            waiting: VecDeque::new(),
            under_way: VecDeque::new(),
            first: 1,
            open: 0,
            bytes: 0,
            message: Vec::new(),
            sent: 0,
            arrived: InOrder::default(),
            fence: 0,
            holds: 0,
            is_busy: false,
            first_seen: (0, now),
            looked: now,
        }
    }

    /// Whether no operation is pending.
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.open == 0
    }

    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// By which the node's messages are known.
    pub(super) fn id(&self) -> Option<u64> {
        self.link.as_ref().map(|link| link.id)
    }

    /// The place of the pair for a class of groups.
    pub(super) fn pair(&self, class: GroupKey) -> Option<usize> {
        self.pairs.iter().position(|pair| pair.class == class)
    }

    /// # Errors
    /// The pair has ended.
    pub(super) fn check(&self, pair: usize) -> Result<(), Code> {
        self.pairs[pair].check()
    }

    /// Takes a pair that was connected. While one for the same groups works, it is dropped.
    pub(super) fn add(&mut self, class: GroupKey, pair: Pair, completions: &mut Completions) {
        let Pair { target, switch, .. } = pair;
        let token = target.as_ref().map(|target| target.token);
        if let (None, Some(address)) = (&self.link, target) {
            self.link = Some(Link { id: address.id, address, endpoint: None });
        }
        let failed = self.is_lost.then_some(Code::Unreachable);
        let new = PairHere { class, token, switch, failed };
        match self.pair(class) {
            None => self.pairs.push(new),
            Some(at) => {
                if let Err(code) = self.check(at) {
                    self.fail(at, code, completions);
                    self.pairs[at] = new;
                }
            }
        }
    }

    /// Queues an operation.
    pub(super) fn queue(&mut self, sequence: u64, pair: usize, request: WorkRequest) {
        let WorkRequest { verb, remote, len, operands, local } = request;
        // A put reads its source only once the gets before the fence, which may write there, are complete.
        let is_live = verb == Verb::Put && matches!(local.keep, Keep::Memory(_));
        let (fence, begun, fault) = (if is_live { self.fence } else { 0 }, 0, None);
        let waiting = Waiting { sequence, pair, verb, remote, len, operands, local, fence, begun, fault };
        self.waiting.push_back(waiting);
    }

    /// Sends what waits, as far as there is room.
    pub(super) fn start(&mut self, worker: &mut Worker, from: u64, completions: &mut Completions) {
        while let Some(first) = self.waiting.front() {
            if let Err(code) = self.check(first.pair) {
                let pair = first.pair;
                self.fail(pair, code, completions);
                continue;
            }
            let len = (first.len - first.begun).min(PIECE_BYTES);
            let is_before = |piece: &Piece| !piece.is_dead && piece.verb != Verb::Put && piece.sequence < first.fence;
            if first.fence > 0 && self.under_way.iter().any(is_before) {
                break;
            }
            if self.bytes > 0 && self.bytes + len + REQUEST_BYTES > WINDOW_BYTES {
                break;
            }
            self.begin(len);
            if self.message.len() >= MESSAGE_WORDS && !self.send(worker, from, completions) {
                return;
            }
        }
        self.send(worker, from, completions);
    }

    /// Adds a piece of the first waiting operation to the message.
    fn begin(&mut self, len: usize) {
        let Some(first) = self.waiting.front_mut() else { return };
        let (verb, begun) = (first.verb, first.begun);
        let local = first.local.ptr.wrapping_add(begun);
        let target = self.pairs[first.pair].token.unwrap_or_default();
        let remote = first.remote.byte_add(begun as u64);
        let request = wire::Request { target, verb, remote, len, operands: first.operands, data: &[] };
        let room = request.encode(&mut self.message);
        if verb == Verb::Put && len > 0 {
            if matches!(first.local.keep, Keep::Memory(_)) {
                // This thread's earlier stores are visible to all before the source is read.
                fence(Ordering::SeqCst);
            }
            // SAFETY: the source is valid as long as the request's `keep`, and accessed by atomics only, or by no
            // other code. The room is of whole words of the message.
            unsafe { copy_words(local, room, len) };
        }
        first.begun += len;
        let is_last = first.begun == first.len;
        let (sequence, pair, fault) = (first.sequence, first.pair, first.fault);
        let keep = match (is_last, verb) {
            (true, Verb::Get | Verb::Cas | Verb::Faa) => core::mem::replace(&mut first.local.keep, Keep::Nothing),
            _ => Keep::Nothing,
        };
        let local = Local { ptr: local, keep };
        let piece = Piece { sequence, is_last, pair, verb, local, len, fault, is_dead: false };
        self.open += 1;
        self.bytes += piece.cost();
        self.under_way.push_back(piece);
        if is_last {
            self.waiting.pop_front();
        }
    }

    /// Sends the message, if there is something in it. Whether the node is still to be reached.
    fn send(&mut self, worker: &mut Worker, from: u64, completions: &mut Completions) -> bool {
        if self.message.is_empty() {
            return !self.is_lost;
        }
        let header = Header { from, number: self.sent };
        self.sent += 1;
        let message = core::mem::take(&mut self.message);
        let sent = self
            .endpoint(worker)
            .and_then(|endpoint| worker.send(endpoint, REQUESTS, &header.encode(), bytes_of(&message)).map(drop));
        self.message = message;
        self.message.clear();
        if let Err(error) = sent {
            self.lose(&error.to_string(), completions);
        }
        !self.is_lost
    }

    /// Begins to connect, if there is another node. The request is complete when the connection is made in both
    /// directions, and all is sent that was to be.
    pub(super) fn connect(&mut self, worker: &mut Worker, completions: &mut Completions) -> Option<Request> {
        if self.link.is_none() || self.is_lost || self.has_ended() && !self.has_endpoint() {
            return None;
        }
        let flush = self.endpoint(worker).and_then(|endpoint| worker.flush_endpoint(endpoint));
        flush.unwrap_or_else(|error| {
            self.lose(&error.to_string(), completions);
            None
        })
    }

    /// Whether a connection is being made, as far as is known.
    pub(super) fn is_connecting(&self) -> bool {
        !self.has_answered && self.has_endpoint()
    }

    /// Whether a reply may still come.
    pub(super) fn is_owed(&self) -> bool {
        !self.under_way.is_empty() && self.has_endpoint()
    }

    pub(super) fn has_endpoint(&self) -> bool {
        self.link.as_ref().is_some_and(|link| link.endpoint.is_some())
    }

    pub(super) fn is_node(&self, index: usize) -> bool {
        self.node.index() == index
    }

    fn endpoint(&mut self, worker: &mut Worker) -> Result<&Endpoint, UcxError> {
        let Some(Link { address, endpoint, .. }) = &mut self.link else { return Err(UcxError::OtherWorker) };
        match endpoint {
            Some(endpoint) => Ok(endpoint),
            none => Ok(none.insert(worker.connect(&address.worker()?)?)),
        }
    }

    /// A message of the node has come.
    pub(super) fn receive(&mut self, number: u64, words: Vec<u64>, completions: &mut Completions) {
        if self.is_lost {
            return;
        }
        self.has_answered = true;
        let mut arrived = core::mem::take(&mut self.arrived);
        let taken = arrived.arrived(number, words, |words| {
            self.take_replies(words, completions).ok_or("it replies to what was not asked")
        });
        self.arrived = arrived;
        if let Err(why) = taken {
            self.lose(why, completions);
        }
    }

    /// None: the replies do not fit the requests.
    fn take_replies(&mut self, mut words: &[u64], completions: &mut Completions) -> Option<()> {
        while !words.is_empty() {
            let reply = Reply::take(&mut words)?;
            // For the puts before it.
            while self.first < reply.position {
                let piece = self.next_piece()?;
                if !piece.is_dead && piece.verb != Verb::Put {
                    return None;
                }
                self.end(piece, Ok(()), completions);
            }
            if self.first > reply.position {
                return None;
            }
            let first = self.under_way.front()?;
            // The pair of an operation that has ended may have got a successor.
            if let (Outcome::Ended(code), false) = (reply.outcome, first.is_dead) {
                self.refused(first.pair, code, completions);
            }
            let piece = self.next_piece()?;
            let result = match reply.outcome {
                Outcome::Done => self.take_result(&piece, &reply).map(Ok)?,
                Outcome::Failed(code) | Outcome::Ended(code) => Err(code),
            };
            self.end(piece, result, completions);
        }
        Some(())
    }

    /// Copies a result to where it is to be. None: it has another length.
    fn take_result(&self, piece: &Piece, reply: &Reply<'_>) -> Option<()> {
        if piece.is_dead || piece.verb == Verb::Put {
            return Some(());
        }
        if reply.len != piece.len {
            return None;
        }
        // SAFETY: the operation has not ended, so its memory is kept, by this piece or by a later one; it is accessed
        // by atomics only, or by no other code.
        unsafe { wire::write_data(reply.data, piece.local.ptr, piece.len) };
        // It is visible to all before this thread's next reads.
        fence(Ordering::SeqCst);
        Some(())
    }

    /// The first that is under way, which is so no more.
    fn next_piece(&mut self) -> Option<Piece> {
        let piece = self.under_way.pop_front()?;
        self.first += 1;
        self.bytes -= piece.cost();
        self.open -= usize::from(!piece.is_dead);
        Some(piece)
    }

    fn end(&mut self, piece: Piece, result: Result<(), Code>, completions: &mut Completions) {
        if piece.is_dead {
            return;
        }
        let result = piece.fault.map_or(result, Err);
        if piece.is_last {
            completions.complete(self.node, piece.sequence, result);
        } else if let Err(code) = result {
            // The operation ends with its last piece: the next one is right behind this one, or waits.
            match (self.under_way.front_mut(), self.waiting.front_mut()) {
                (Some(next), _) => next.fault = Some(code),
                (None, Some(rest)) => rest.fault = Some(code),
                (None, None) => {}
            }
        }
    }

    /// The target refuses all requests of a pair from one on.
    fn refused(&mut self, pair: usize, code: Code, completions: &mut Completions) {
        let class = self.pairs[pair].class;
        let code = match code {
            // There is none: this node has lost its right to a group, or to all of the node.
            Code::Unreachable if class != GroupKey::SIGNAL => Code::Revoked,
            code => code,
        };
        if code == Code::Unreachable
            && let Some(memory) = &self.memory
        {
            memory.give_up();
        }
        self.fail(pair, code, completions);
    }

    /// A pair has ended: all its operations end.
    fn fail(&mut self, pair: usize, code: Code, completions: &mut Completions) {
        let here = &mut self.pairs[pair];
        let code = *here.failed.get_or_insert(here.switch.check().err().unwrap_or(code));
        for piece in self.under_way.iter_mut().filter(|piece| piece.pair == pair && !piece.is_dead) {
            self.open -= 1;
            piece.is_dead = true;
            piece.local = Local::nothing();
            if piece.is_last {
                completions.complete(self.node, piece.sequence, Err(code));
            }
        }
        self.waiting.retain(|waiting| {
            if waiting.pair == pair {
                completions.complete(self.node, waiting.sequence, Err(code));
            }
            waiting.pair != pair
        });
    }

    /// The node is not to be reached any more.
    fn lose(&mut self, why: &str, completions: &mut Completions) {
        if self.is_lost {
            return;
        }
        tracing::debug!("a lane has lost {}: {why}", self.node);
        self.disconnect(completions);
        if let Some(memory) = &self.memory {
            memory.give_up();
        }
    }

    /// Closes the connection by force: UCX cancels what it has not sent, and nothing more of the node is taken.
    fn disconnect(&mut self, completions: &mut Completions) {
        self.is_lost = true;
        if let Some(link) = &mut self.link {
            link.endpoint = None;
        }
        for pair in 0..self.pairs.len() {
            self.fail(pair, Code::Unreachable, completions);
        }
        self.under_way.clear();
        self.bytes = 0;
        self.arrived = InOrder::default();
    }

    /// Whether another thread has ended the way to the node for good: the node was evicted or has left, or this one is
    /// fenced.
    fn has_ended(&self) -> bool {
        self.pairs.iter().any(|pair| matches!(pair.switch.check(), Err(Code::Unreachable | Code::Fenced)))
    }

    /// Closes the connection to a node if the way to it has ended.
    pub(super) fn part(&mut self, completions: &mut Completions) {
        if self.is_lost || !self.has_ended() {
            return;
        }
        let since = *self.ended.get_or_insert_with(Instant::now);
        if !self.is_connecting() || since.elapsed() >= CLOSING_MAX {
            tracing::debug!("a lane closes its connection to {}", self.node);
            self.disconnect(completions);
        }
    }

    /// Looks at what other threads and the network have ended, and for a node that does not answer.
    pub(super) fn look(&mut self, worker: &mut Worker, patience: Duration, completions: &mut Completions) {
        for pair in 0..self.pairs.len() {
            if self.pairs[pair].failed.is_none()
                && let Err(code) = self.pairs[pair].switch.check()
            {
                self.fail(pair, code, completions);
            }
        }
        self.part(completions);
        let endpoint = self.link.as_ref().and_then(|link| link.endpoint.as_ref());
        if let Some(Err(error)) = endpoint.map(|endpoint| worker.check(endpoint)) {
            return self.lose(&error.to_string(), completions);
        }
        let now = Instant::now();
        let has_looked = now - core::mem::replace(&mut self.looked, now) < PAUSE_MAX;
        let (seen, since) = self.first_seen;
        if self.under_way.is_empty() || seen != self.first || !has_looked {
            self.first_seen = (self.first, now);
            return;
        }
        let moving = Duration::from_millis(self.bytes as u64 / BYTES_PER_MS_MIN);
        if now - since > PATIENCES_MAX * patience + PAUSE_MAX + moving {
            self.lose("it does not answer", completions);
        }
    }
}
