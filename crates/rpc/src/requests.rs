//! The requests of a server: which are there, which of them were handled before, and their replies.

use std::sync::Arc;

use farfield_core::toolkit::{ErrorContext, Hold, Object};
use farfield_core::{Endpoint, Error, ErrorKind, Node, Result, Value};
use farfield_fabric::{self as fabric, ErrorKind as FabricError, LocalMutex, NodeId, Region, RemotePtr, Word};
use smallvec::SmallVec;

use crate::layout::{self, CALL, CHECK, HEADER, Image, Layout, OPENING, Replies, Status, number_of, values_of};
use crate::options::RpcOptions;

/// By rank: where the replies to its present client go, or 0.
pub(crate) struct Openings(Box<[Word]>);

impl Openings {
    pub(crate) fn new(places: usize) -> Openings {
        Openings((0..places).map(|_| Word::new(0)).collect())
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = u64> {
        self.0.iter().map(Word::load).filter(|opening| *opening != 0)
    }

    /// A node has opened a client. Runs on the service thread.
    pub(crate) fn opened(&self, place: usize, from: NodeId, opening: u64) {
        let word = &self.0[place];
        let earlier = word.load();
        // An announcement of an earlier incarnation may be late.
        if earlier == 0 || RemotePtr::<u64>::from_packed(earlier).node() <= from {
            word.store(opening);
        }
    }
}

/// What the server keeps while it has work to do.
pub(crate) struct Core {
    /// Its memory stays until the last request is answered.
    _hold: Hold,
    pub(crate) path: String,
    node: Node,
    requests: Region,
    openings: Arc<Openings>,
    slots: Box<[ServerSlot]>,
    pub(crate) options: RpcOptions,
    layout: Layout,
    /// Where the next scan begins.
    next: Word,
    is_closed: Word,
    /// The service thread handles the requests, and no other thread.
    is_on_service: bool,
}

/// What the server knows of a slot.
struct ServerSlot {
    /// 1 while a thread has the slot's request.
    is_taken: Word,
    /// The hash of the last message that needs no answer any more. 0 if the answer has to be put again.
    done: Word,
    /// Only the thread that has the request takes it.
    last: LocalMutex<Last>,
}

/// The last call of a slot.
#[derive(Default)]
struct Last {
    opening: u64,
    number: u64,
    /// The message with its replies. It is put again if the request arrives again.
    reply: Vec<u64>,
}

/// A request that a thread has taken.
#[derive(Clone, Copy)]
pub(crate) struct Claim {
    slot: usize,
    pub(crate) opening: u64,
    call: u64,
    check: u64,
    pub(crate) values: usize,
}

/// What became of a message that was polled.
enum Found {
    /// A request that was not handled before.
    New(Claim),
    /// The answer was put again, or nothing was to do. Whether a put was refused.
    Old { is_refused: bool },
    /// It is another thread's, or not all of it is there.
    None,
}

/// What a scan of all slots has achieved.
#[derive(Default)]
pub(crate) struct Served {
    pub(crate) handled: usize,
    /// An answer was put again.
    pub(crate) has_answered: bool,
    /// An answer was refused, and has to be put again.
    pub(crate) is_refused: bool,
}

/// What became of the requests of a message.
pub(crate) struct Handled {
    /// How many the handler has had: none if they are no values of their type.
    pub(crate) count: usize,
    /// The answer was refused.
    pub(crate) is_refused: bool,
}

impl Served {
    fn answered(&mut self, is_refused: bool) {
        self.has_answered |= !is_refused;
        self.is_refused |= is_refused;
    }
}

impl Core {
    pub(crate) fn new(
        object: &Object,
        requests: Region,
        openings: Arc<Openings>,
        layout: Layout,
        options: RpcOptions,
        is_on_service: bool,
    ) -> Core {
        let slot = |_| ServerSlot { is_taken: Word::new(0), done: Word::new(0), last: LocalMutex::default() };
        Core {
            _hold: object.hold(),
            path: object.path().into(),
            node: object.node().for_service(),
            requests,
            slots: (0..openings.0.len() * options.window).map(slot).collect(),
            openings,
            options,
            layout,
            next: Word::new(0),
            is_closed: Word::new(0),
            is_on_service,
        }
    }

    /// No request is handled any more by the service thread.
    pub(crate) fn close(&self) {
        self.is_closed.store(1);
        self.node.fabric().wake_local();
    }

    pub(crate) fn openings(&self) -> Arc<Openings> {
        Arc::clone(&self.openings)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load() != 0
    }

    /// Whether a thread of the application may handle requests.
    pub(crate) fn check_threads(&self) -> Result<()> {
        if self.is_on_service {
            let why = "the service thread handles the requests of this server: open it with `Server::open` for threads";
            return Err(Error::from(ErrorKind::Config { why: why.into() }).of(&self.path));
        }
        self.check_member()
    }

    pub(crate) fn check_member(&self) -> Result<()> {
        if self.node.fabric().is_fenced() {
            return Err(fabric::Error::from(FabricError::Fenced)).of(&self.path);
        }
        Ok(())
    }

    fn message(&self, slot: usize) -> &[Word] {
        self.requests.words(self.layout.request_at(slot), self.layout.request_words)
    }

    /// Polls the slots of nodes with clients, from one on and round, until one gives a value. It gets the slot, and the
    /// opening of its node.
    fn scan<T>(&self, first: usize, mut poll: impl FnMut(usize, u64) -> Option<T>) -> Option<T> {
        let (window, places) = (self.layout.window, self.openings.0.len());
        let (mut place, index) = (first / window, first % window);
        for turn in 0..=places {
            let opening = self.openings.0[place].load();
            if opening != 0 {
                let slots = if turn == 0 { index } else { 0 }..if turn == places { index } else { window };
                let found = slots.map(|index| place * window + index).find_map(|slot| poll(slot, opening));
                if found.is_some() {
                    return found;
                }
            }
            place = if place + 1 == places { 0 } else { place + 1 };
        }
        None
    }

    /// Whether a slot has another message than the last that was dealt with, and no thread has it: it reads one word,
    /// as a rule.
    #[inline(always)]
    fn is_changed(&self, slot: usize) -> bool {
        let of = &self.slots[slot];
        self.requests.word(self.layout.request_at(slot) + 8 * CHECK).load() != of.done.load() && of.is_taken.load() == 0
    }

    /// Whether a message is there that needs an answer. It reads words only, so that a poll that finds nothing changes
    /// nothing.
    fn is_ready(&self, slot: usize, opening: u64, image: &mut Image) -> bool {
        self.is_changed(slot) && self.is_message(slot, opening, image)
    }

    /// Whether the changed slot has a whole message of a client's opening, which it reads.
    fn is_message(&self, slot: usize, opening: u64, image: &mut Image) -> bool {
        let words = self.message(slot);
        let is_it = words[OPENING].load() == opening && layout::read(words, image) && image[OPENING] == opening;
        is_it && self.has_values(image)
    }

    /// A message of another number of values is none of a client.
    fn has_values(&self, image: &Image) -> bool {
        (1..=self.options.batch_max).contains(&values_of(image))
    }

    pub(crate) fn is_any_ready(&self, image: &mut Image) -> bool {
        self.scan(0, |slot, opening| self.is_ready(slot, opening, image).then_some(())).is_some()
    }

    /// Takes the message of a slot, if there is one. An old one is dealt with.
    #[inline(always)]
    fn take(&self, endpoint: &Endpoint, slot: usize, opening: u64, image: &mut Image) -> Found {
        // A scan finds nothing in most slots.
        if self.is_changed(slot) { self.take_changed(endpoint, slot, opening, image) } else { Found::None }
    }

    #[inline(never)]
    fn take_changed(&self, endpoint: &Endpoint, slot: usize, opening: u64, image: &mut Image) -> Found {
        let of = &self.slots[slot];
        if !self.is_message(slot, opening, image) || of.is_taken.compare_exchange(0, 1).is_err() {
            return Found::None;
        }
        // Another thread may have dealt with it in between. So may a later incarnation of the node have come, or
        // another opening: then what is known of the slot is about that one.
        let is_current = self.openings.0[slot / self.layout.window].load() == opening;
        if image[CHECK] == of.done.load() || !is_current {
            self.give_back(slot);
            return Found::None;
        }
        let (call, check) = (image[CALL], image[CHECK]);
        let mut last = of.last.lock();
        if last.opening != opening {
            (last.opening, last.number) = (opening, 0);
        }
        if number_of(call) > last.number {
            last.number = number_of(call);
            return Found::New(Claim { slot, opening, call, check, values: values_of(image) });
        }
        // It was handled before: nothing happens again. A message of an earlier call is late, and needs no answer.
        let mut is_refused = false;
        if number_of(call) == last.number {
            is_refused = self.put(endpoint, slot, opening, &last.reply);
        }
        drop(last);
        of.done.store(if is_refused { 0 } else { check });
        self.give_back(slot);
        Found::Old { is_refused }
    }

    /// Another thread may take the slot's message. One that has polled meanwhile has seen that it is taken, and sleeps:
    /// its put has woken it too early, if another message has come.
    fn give_back(&self, slot: usize) {
        // Not a store, which could reach memory after the look: a thread that polls in between would sleep on.
        let _ = self.slots[slot].is_taken.compare_exchange(1, 0);
        if self.is_changed(slot) {
            self.wake();
        }
    }

    /// Wakes threads that wait for requests.
    pub(crate) fn wake(&self) {
        self.node.fabric().wake_local();
    }

    /// The next request that was not handled before; and what else was found on the way.
    pub(crate) fn next(&self, endpoint: &Endpoint, image: &mut Image) -> (Option<Claim>, Served) {
        let mut served = Served::default();
        let first = self.next.glance() as usize;
        let claim = self.scan(if first < self.slots.len() { first } else { 0 }, |slot, opening| {
            match self.take(endpoint, slot, opening, image) {
                Found::New(claim) => {
                    // The others have their turn before this one has another.
                    self.next.store(slot as u64 + 1);
                    return Some(claim);
                }
                Found::Old { is_refused } => served.answered(is_refused),
                Found::None => {}
            }
            None
        });
        (claim, served)
    }

    /// Handles all requests that are there, each slot once at most.
    pub(crate) fn serve_all<Req: Value, Rep: Value>(
        &self,
        endpoint: &Endpoint,
        handler: &mut impl FnMut(NodeId, Req) -> Rep,
    ) -> Served {
        let (mut served, mut image) = (Served::default(), Image::new());
        self.scan(0, |slot, opening| {
            match self.take(endpoint, slot, opening, &mut image) {
                Found::New(claim) => {
                    let handled = self.handle(endpoint, claim, &image, handler);
                    served.is_refused |= handled.is_refused;
                    served.handled += handled.count;
                }
                Found::Old { is_refused } => served.answered(is_refused),
                Found::None => {}
            }
            None::<()>
        });
        served
    }

    /// Handles the requests of a message, one after the other, and answers.
    pub(crate) fn handle<Req: Value, Rep: Value>(
        &self,
        endpoint: &Endpoint,
        claim: Claim,
        image: &[u64],
        handler: &mut impl FnMut(NodeId, Req) -> Rep,
    ) -> Handled {
        let requests = match self.decode::<Req>(endpoint, claim, image) {
            Ok(requests) => requests,
            Err(is_refused) => return Handled { count: 0, is_refused },
        };
        let (client, unwinding) = (claim.client(), Unwinding { core: self, claim });
        let mut replies = Replies::new();
        for request in requests {
            replies.push(&handler(client, request), self.options.reply_bytes_max);
        }
        core::mem::forget(unwinding);
        Handled { count: claim.values, is_refused: self.answer(endpoint, claim, &mut replies) }
    }

    /// The requests of a message that this thread has taken. If they are no values of their type, it is answered with
    /// that: then whether the answer was refused.
    pub(crate) fn decode<Req: Value>(
        &self,
        endpoint: &Endpoint,
        claim: Claim,
        image: &[u64],
    ) -> core::result::Result<SmallVec<[Req; 4]>, bool> {
        // A type's own code may panic.
        let unwinding = Unwinding { core: self, claim };
        let requests = layout::decode::<Req>(&image[HEADER..], claim.values);
        core::mem::forget(unwinding);
        requests.ok_or_else(|| self.answer(endpoint, claim, &mut Replies::all(Status::Malformed, claim.values)))
    }

    /// Answers a message that this thread has taken. Whether the put was refused: then a later scan puts it again.
    pub(crate) fn answer(&self, endpoint: &Endpoint, claim: Claim, replies: &mut Replies) -> bool {
        replies.seal(claim.call, claim.opening);
        // Before the slot is given back. If the client has given the call up, the slot may have its next request, and
        // another thread puts the replies to that one at the same place. Over RDMA they may still land first: then the
        // client asks again.
        let is_refused = self.put(endpoint, claim.slot, claim.opening, &replies.image);
        self.keep(Claim { check: if is_refused { 0 } else { claim.check }, ..claim }, &replies.image);
        is_refused
    }

    /// The message is not answered: the next thread that scans says so to the client.
    pub(crate) fn give_up(&self, claim: Claim) {
        let mut replies = Replies::all(Status::None, claim.values);
        replies.seal(claim.call, claim.opening);
        self.keep(Claim { check: 0, ..claim }, &replies.image);
        self.node.fabric().wake_service();
    }

    /// Keeps the replies, and gives the slot back.
    fn keep(&self, claim: Claim, replies: &[u64]) {
        let of = &self.slots[claim.slot];
        let mut last = of.last.lock();
        last.reply.clear();
        last.reply.extend_from_slice(replies);
        drop(last);
        of.done.store(claim.check);
        self.give_back(claim.slot);
    }

    /// Puts replies to the client. Whether that was refused, so that it has to be repeated. A dead or departed client
    /// needs none.
    fn put(&self, endpoint: &Endpoint, slot: usize, opening: u64, replies: &[u64]) -> bool {
        let to =
            RemotePtr::<u64>::from_packed(opening).byte_add(self.layout.reply_at(slot % self.layout.window) as u64);
        let put = || {
            let mut image = endpoint.buf::<u64>(replies.len())?;
            image.copy_from_slice(replies);
            endpoint.put(to, &image).detach()
        };
        put().is_err_and(|error: fabric::Error| error.is_refused())
    }
}

impl Claim {
    pub(crate) fn client(&self) -> NodeId {
        RemotePtr::<u64>::from_packed(self.opening).node()
    }
}

/// The handler may panic.
struct Unwinding<'c> {
    core: &'c Core,
    claim: Claim,
}

impl Drop for Unwinding<'_> {
    fn drop(&mut self) {
        self.core.give_up(self.claim);
    }
}
