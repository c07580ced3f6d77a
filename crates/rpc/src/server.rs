//! The server: which requests are there, which of them were handled before, and their replies.

use core::fmt;
use core::marker::PhantomData;
use std::sync::Arc;

use farfield_core::toolkit::{ErrorContext, Hold, Object, ObjectBuilder, ObjectDescriptor, RefusedPause, Regions};
use farfield_core::{Endpoint, Node, Result, Value};
use farfield_fabric::{self as fabric, ErrorKind as FabricError, GroupKey, Instant, LocalMutex, NodeId, Region};
use farfield_fabric::{RemotePtr, Word};

use crate::client::described;
use crate::incoming::Incoming;
use crate::layout::{self, CALL, CHECK, HEADER, Image, Layout, Replies, SESSION, Status, number_of, values_of};
use crate::options::RpcOptions;
use crate::service::Service;

/// Handles the requests of clients on other nodes.
///
/// Either threads of its node serve, when they have time and as many as there are; or the node's service thread does
/// ([`Server::open_on_service`]). The handle can be cloned, and is used by any threads of its node at once.
///
/// ```
/// use farfield_rpc::{Client, RpcOptions, Server};
/// # let nodes = farfield::local_session(2)?; let options = RpcOptions::default();
/// let server = Server::<u64, u64>::open(&nodes[0], "sum", options)?;
/// let mut sum = 0;
/// let thread = nodes[0].spawn("serves", move |ep| {
///     let deadline = ep.now() + std::time::Duration::from_millis(200);
///     let handled = ep.block_on(server.serve(&ep, deadline, |_, request| {
///         sum += request;
///         sum
///     }));
///     assert_eq!(handled.unwrap(), 2);
/// })?;
/// let client = Client::<u64, u64>::open(&nodes[1], "sum", nodes[0].id(), options)?;
/// let ep = nodes[1].endpoint()?;
/// assert_eq!(ep.block_on(client.call(&ep, &3))?, 3);
/// assert_eq!(ep.block_on(client.call(&ep, &4))?, 7);
/// # thread.join().unwrap(); Ok::<(), farfield::Error>(())
/// ```
pub struct Server<Req: Value, Rep: Value> {
    handle: Arc<Handle>,
    types: PhantomData<fn(Req) -> Rep>,
}

impl<Req: Value, Rep: Value> Clone for Server<Req, Rep> {
    fn clone(&self) -> Server<Req, Rep> {
        Server { handle: Arc::clone(&self.handle), types: PhantomData }
    }
}

impl<Req: Value, Rep: Value> fmt::Debug for Server<Req, Rep> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("options", &self.handle.core.options).finish_non_exhaustive()
    }
}

/// Closes the server with the last handle.
struct Handle {
    core: Arc<Core>,
    object: Object,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.core.is_closed.store(1);
        // Calls end, with an error that says so. Without it they time out.
        if let Ok(endpoint) = self.object.node().background_endpoint() {
            for session in self.core.sessions.0.iter().map(Word::load).filter(|session| *session != 0) {
                let _ = endpoint.put_value(RemotePtr::<u64>::from_packed(session), 1).detach();
            }
        }
        self.core.node.fabric().wake_service();
        self.core.node.fabric().wake_local();
    }
}

/// By place: where the replies to its present client go, or 0.
struct Sessions(Box<[Word]>);

impl Sessions {
    /// A node has opened a client. Runs on the service thread.
    fn opened(&self, place: usize, from: NodeId, session: u64) {
        let word = &self.0[place];
        let earlier = word.load();
        // An announcement of an earlier incarnation may be late.
        if earlier == 0 || RemotePtr::<u64>::from_packed(earlier).node() <= from {
            word.store(session);
        }
    }
}

/// What the server keeps while it has work to do.
pub(crate) struct Core {
    /// Its memory stays until the last request is answered.
    #[allow(dead_code, reason = "kept for its drop")]
    hold: Hold,
    pub(crate) path: String,
    node: Node,
    requests: Region,
    sessions: Arc<Sessions>,
    slots: Box<[ServerSlot]>,
    pub(crate) options: RpcOptions,
    layout: Layout,
    /// Where the next look begins.
    next: Word,
    is_closed: Word,
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
    session: u64,
    number: u64,
    /// The message with its replies. It is put again if the request comes again.
    reply: Vec<u64>,
}

/// A request that a thread has taken.
#[derive(Clone, Copy)]
pub(crate) struct Claim {
    slot: usize,
    pub(crate) session: u64,
    call: u64,
    check: u64,
    pub(crate) values: usize,
}

/// What became of a message that was looked at.
enum Found {
    /// A request that was not handled before.
    New(Claim),
    /// The answer was put again, or nothing was to do. Whether a put was refused.
    Old { is_refused: bool },
    /// It is another thread's, or not all of it is there.
    None,
}

impl<Req: Value, Rep: Value> Server<Req, Rep> {
    /// Opens a server whose requests are handled by threads of this node, with [`Server::serve`], [`Server::serve_next`],
    /// [`Server::try_serve`] or [`Server::accept`]. It waits for no client.
    ///
    /// ```
    /// # use farfield_rpc::{RpcOptions, Server};
    /// # let node = farfield::Node::builder().start()?;
    /// let server = Server::<u64, u64>::open(&node, "double", RpcOptions::default())?;
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// The path is open already, or clients still use the memory of an earlier server of this node; no memory; invalid options.
    pub fn open(node: &Node, path: &str, options: RpcOptions) -> Result<Server<Req, Rep>> {
        let handle = open::<Req, Rep>(node, path, options, GroupKey::SIGNAL)?;
        Ok(Server { handle: Arc::new(handle), types: PhantomData })
    }

    /// Opens a server whose requests are handled by the node's service thread: also while all threads of the application compute. The
    /// handler must be short, and must not wait for another node: the service thread has other work. If it panics, the node is dead.
    ///
    /// ```
    /// # use farfield_rpc::{RpcOptions, Server};
    /// # let node = farfield::Node::builder().start()?;
    /// let mut sum = 0;
    /// let server = Server::<u64, u64>::open_on_service(&node, "sum", RpcOptions::default(), move |_client, request| {
    ///     sum += request;
    ///     sum
    /// })?;
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Server::open`].
    pub fn open_on_service(
        node: &Node,
        path: &str,
        options: RpcOptions,
        handler: impl FnMut(NodeId, Req) -> Rep + Send + 'static,
    ) -> Result<Server<Req, Rep>> {
        // A put to its requests wakes the service thread.
        let handle = open::<Req, Rep>(node, path, options, GroupKey::SERVICE)?;
        node.add_poller(Box::new(Service::new(Arc::clone(&handle.core), handler)));
        Ok(Server { handle: Arc::new(handle), types: PhantomData })
    }

    /// Handles requests until the deadline, and sleeps while there are none. The result is how many.
    ///
    /// ```
    /// # use farfield_rpc::{RpcOptions, Server};
    /// # let node = farfield::Node::builder().start()?; let ep = node.endpoint()?;
    /// # let server = Server::<u64, u64>::open(&node, "double", RpcOptions::default())?;
    /// let deadline = ep.now() + std::time::Duration::from_millis(5);
    /// assert_eq!(ep.block_on(server.serve(&ep, deadline, |_client, request| 2 * request))?, 0); // no client has called
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// This node is evicted.
    pub async fn serve(
        &self,
        endpoint: &Endpoint,
        deadline: Instant,
        mut handler: impl FnMut(NodeId, Req) -> Rep,
    ) -> Result<usize> {
        let (mut handled, mut pause) = (0, RefusedPause::default());
        loop {
            self.core().check_member()?;
            let served = self.core().serve_all::<Req, Rep>(endpoint, &mut handler);
            handled += served.handled;
            if endpoint.now() >= deadline {
                return Ok(handled);
            }
            match self.wait(endpoint, deadline, &served, &mut pause).await {
                Err(error) if error.is_timeout() => return Ok(handled),
                waited => waited?,
            }
        }
    }

    /// [`serve`](Self::serve), which it waits for on this thread.
    ///
    /// ```
    /// # use farfield_rpc::{RpcOptions, Server};
    /// # let node = farfield::Node::builder().start()?; let ep = node.endpoint()?;
    /// # let server = Server::<u64, u64>::open(&node, "double", RpcOptions::default())?;
    /// let deadline = ep.now() + std::time::Duration::from_millis(5);
    /// assert_eq!(server.serve_blocking(&ep, deadline, |_client, request| 2 * request)?, 0); // no client has called
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As `serve`.
    pub fn serve_blocking(
        &self,
        endpoint: &Endpoint,
        deadline: Instant,
        handler: impl FnMut(NodeId, Req) -> Rep,
    ) -> Result<usize> {
        endpoint.block_on(self.serve(endpoint, deadline, handler))
    }

    /// Waits for requests, as long as the endpoint's timeout, and handles those of one put. The result is how many.
    ///
    /// ```
    /// # use farfield_rpc::{Client, RpcOptions, Server};
    /// # let nodes = farfield::local_session(2)?; let options = RpcOptions::default();
    /// # let server = Server::<u64, u64>::open(&nodes[0], "double", options)?;
    /// # let client = Client::<u64, u64>::open(&nodes[1], "double", nodes[0].id(), options)?;
    /// # let (here, there) = (nodes[0].endpoint()?, nodes[1].endpoint()?);
    /// let mut call = there.block_on(client.begin(&there, &4))?;
    /// assert_eq!(here.block_on(server.serve_next(&here, |_client, request| 2 * request))?, 1);
    /// assert_eq!(there.block_on(call.wait())?, 8);
    /// # drop(call); Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// A timeout; this node is evicted.
    pub async fn serve_next(&self, endpoint: &Endpoint, mut handler: impl FnMut(NodeId, Req) -> Rep) -> Result<usize> {
        let (deadline, mut image) = (endpoint.deadline(), Image::new());
        let claim = self.next(endpoint, deadline, &mut image).await?;
        self.core().handle::<Req, Rep>(endpoint, claim, &image, &mut handler);
        Ok(claim.values)
    }

    /// Handles the requests that are there, at most one put of each slot. The result is how many.
    ///
    /// ```
    /// # use farfield_rpc::{RpcOptions, Server};
    /// # let node = farfield::Node::builder().start()?; let ep = node.endpoint()?;
    /// # let server = Server::<u64, u64>::open(&node, "double", RpcOptions::default())?;
    /// assert_eq!(server.try_serve(&ep, |_client, request| 2 * request)?, 0); // between two pieces of other work
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// This node is evicted.
    pub fn try_serve(&self, endpoint: &Endpoint, mut handler: impl FnMut(NodeId, Req) -> Rep) -> Result<usize> {
        self.core().check_member()?;
        Ok(self.core().serve_all::<Req, Rep>(endpoint, &mut handler).handled)
    }

    /// Waits for requests, as long as the endpoint's timeout, and takes those of one put, to be answered later and by any thread.
    ///
    /// ```
    /// # use farfield_rpc::{Client, RpcOptions, Server};
    /// # let nodes = farfield::local_session(2)?; let options = RpcOptions::default();
    /// # let server = Server::<u64, u64>::open(&nodes[0], "double", options)?;
    /// # let client = Client::<u64, u64>::open(&nodes[1], "double", nodes[0].id(), options)?;
    /// # let (here, there) = (nodes[0].endpoint()?, nodes[1].endpoint()?);
    /// let mut call = there.block_on(client.begin(&there, &4))?;
    /// let incoming = here.block_on(server.accept(&here))?;
    /// assert_eq!((incoming.client(), incoming.requests()), (nodes[1].id(), &[4][..]));
    /// incoming.reply(&here, [8]); // now, or when its result is there
    /// assert_eq!(there.block_on(call.wait())?, 8);
    /// # drop(call); Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// A timeout; this node is evicted.
    pub async fn accept(&self, endpoint: &Endpoint) -> Result<Incoming<Req, Rep>> {
        self.accept_deadline(endpoint, endpoint.deadline()).await
    }

    /// [`Server::accept`] with a deadline.
    ///
    /// ```
    /// # use farfield_rpc::{RpcOptions, Server};
    /// # let node = farfield::Node::builder().start()?; let ep = node.endpoint()?;
    /// # let server = Server::<u64, u64>::open(&node, "double", RpcOptions::default())?;
    /// let deadline = ep.now() + std::time::Duration::from_millis(5);
    /// assert!(ep.block_on(server.accept_deadline(&ep, deadline)).unwrap_err().is_timeout()); // no client has called
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As `accept`.
    pub async fn accept_deadline(&self, endpoint: &Endpoint, deadline: Instant) -> Result<Incoming<Req, Rep>> {
        let mut image = Image::new();
        loop {
            let claim = self.next(endpoint, deadline, &mut image).await?;
            match layout::decode::<Req>(&image[HEADER..], claim.values) {
                Some(requests) => return Ok(Incoming::new(Arc::clone(self.core()), claim, requests)),
                None => self.core().refuse(endpoint, claim),
            };
        }
    }

    fn core(&self) -> &Arc<Core> {
        &self.handle.core
    }

    /// Takes the next message, with a copy of it.
    async fn next(&self, endpoint: &Endpoint, deadline: Instant, image: &mut Image) -> Result<Claim> {
        let mut pause = RefusedPause::default();
        loop {
            self.core().check_member()?;
            match self.core().next(endpoint, image) {
                (Some(claim), _) => return Ok(claim),
                (None, served) => self.wait(endpoint, deadline, &served, &mut pause).await?,
            }
        }
    }

    /// Waits until a request is there; or a little, if the last look could not answer one.
    async fn wait(
        &self,
        endpoint: &Endpoint,
        deadline: Instant,
        last: &Served,
        pause: &mut RefusedPause,
    ) -> Result<()> {
        if last.is_refused && endpoint.now() < deadline {
            pause.wait(endpoint, deadline).await;
            return Ok(());
        }
        let core = self.core();
        let mut image = Image::new();
        let mut is_there = || core.is_any_ready(&mut image).then_some(Ok(()));
        if endpoint.spin_until(&mut is_there).is_some() {
            return Ok(());
        }
        let fails = || core.check_member().err().map(Err);
        let waited = endpoint.wait_until_or(deadline, is_there, fails).await;
        waited.waiting_for("a request").of(&core.path)?
    }
}

fn open<Req: Value, Rep: Value>(node: &Node, path: &str, options: RpcOptions, group: GroupKey) -> Result<Handle> {
    let places = node.nodes();
    let layout = Layout::new::<Req, Rep>(&options, places, path)?;
    let mut regions = Regions::new(node);
    let requests = regions.alloc("requests", group, layout.requests_bytes).of(path)?;
    let sessions = Arc::new(Sessions((0..places).map(|_| Word::new(0)).collect()));
    let (of_clients, here) = (Arc::clone(&sessions), node.for_service());
    let connected = move |from: NodeId, theirs: &ObjectDescriptor| {
        let replies =
            theirs.regions.iter().find(|region| region.0 == "replies" && region.2 == layout.replies_bytes as u64);
        let Some((_, session, _)) = replies else { return };
        of_clients.opened(here.rank_of(from), from, *session);
        // A request may have come before.
        here.fabric().wake_local();
    };
    let builder = ObjectBuilder::new(node, path, "Rpc").layout(&described::<Req, Rep>(&options)).homes(&[node.id()]);
    let object = builder.regions(regions).on_connect(connected).open()?;
    let slot = |_| ServerSlot { is_taken: Word::new(0), done: Word::new(0), last: LocalMutex::default() };
    let core = Core {
        hold: object.hold(),
        path: path.into(),
        node: node.for_service(),
        requests,
        sessions,
        slots: (0..places * options.window).map(slot).collect(),
        options,
        layout,
        next: Word::new(0),
        is_closed: Word::new(0),
    };
    Ok(Handle { core: Arc::new(core), object })
}

/// What a look at all slots has achieved.
#[derive(Default)]
pub(crate) struct Served {
    pub(crate) handled: usize,
    /// An answer was put again.
    pub(crate) has_answered: bool,
    /// An answer was refused, and has to be put again.
    pub(crate) is_refused: bool,
}

impl Served {
    fn answered(&mut self, is_refused: bool) {
        self.has_answered |= !is_refused;
        self.is_refused |= is_refused;
    }
}

impl Core {
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load() != 0
    }

    fn check_member(&self) -> Result<()> {
        if self.node.fabric().is_fenced() {
            return Err(fabric::Error::from(FabricError::Fenced)).of(&self.path);
        }
        Ok(())
    }

    fn message(&self, slot: usize) -> &[Word] {
        self.requests.words(self.layout.request_at(slot), self.layout.request_words)
    }

    /// Looks at the slots of nodes with clients, from one on and round, until a look gives a value. It gets the slot, and the session of its
    /// node.
    fn scan<T>(&self, first: usize, mut look: impl FnMut(usize, u64) -> Option<T>) -> Option<T> {
        let (window, places) = (self.layout.window, self.sessions.0.len());
        let (mut place, index) = (first / window, first % window);
        for turn in 0..=places {
            let session = self.sessions.0[place].load();
            if session != 0 {
                let slots = if turn == 0 { index } else { 0 }..if turn == places { index } else { window };
                let found = slots.map(|index| place * window + index).find_map(|slot| look(slot, session));
                if found.is_some() {
                    return found;
                }
            }
            place = if place + 1 == places { 0 } else { place + 1 };
        }
        None
    }

    /// Whether a slot has another message than the last that was dealt with, and no thread has it: a look at one word, as a rule.
    #[inline]
    fn is_changed(&self, slot: usize) -> bool {
        let of = &self.slots[slot];
        self.requests.word(self.layout.request_at(slot) + 8 * CHECK).load() != of.done.load() && of.is_taken.load() == 0
    }

    /// Whether a message is there that needs an answer. It reads words only, so that a look that finds nothing changes nothing.
    fn is_ready(&self, slot: usize, session: u64, image: &mut Image) -> bool {
        if !self.is_changed(slot) {
            return false;
        }
        let words = self.message(slot);
        words[SESSION].load() == session && layout::read(words, image) && image[SESSION] == session
    }

    fn is_any_ready(&self, image: &mut Image) -> bool {
        self.scan(0, |slot, session| self.is_ready(slot, session, image).then_some(())).is_some()
    }

    /// Takes the message of a slot, if there is one. An old one is dealt with.
    fn take(&self, endpoint: &Endpoint, slot: usize, session: u64, image: &mut Image) -> Found {
        let of = &self.slots[slot];
        if !self.is_ready(slot, session, image) || of.is_taken.compare_exchange(0, 1).is_err() {
            return Found::None;
        }
        // Another thread may have dealt with it in between. So may a later incarnation of the node have come, or another opening: then
        // what is known of the slot is about that one.
        let is_current = self.sessions.0[slot / self.layout.window].load() == session;
        if image[CHECK] == of.done.load() || !is_current {
            of.is_taken.store(0);
            return Found::None;
        }
        let (call, check) = (image[CALL], image[CHECK]);
        let mut last = of.last.lock();
        if last.session != session {
            (last.session, last.number) = (session, 0);
        }
        if number_of(call) > last.number {
            last.number = number_of(call);
            return Found::New(Claim { slot, session, call, check, values: values_of(image) });
        }
        // It was handled before: nothing happens again. A message of an earlier call is late, and needs no answer.
        let mut is_refused = false;
        if number_of(call) == last.number {
            is_refused = self.put(endpoint, slot, session, &last.reply);
        }
        drop(last);
        of.done.store(if is_refused { 0 } else { check });
        of.is_taken.store(0);
        Found::Old { is_refused }
    }

    /// The next request that was not handled before; and what else was found on the way.
    fn next(&self, endpoint: &Endpoint, image: &mut Image) -> (Option<Claim>, Served) {
        let mut served = Served::default();
        let first = self.next.glance() as usize;
        let claim = self.scan(if first < self.slots.len() { first } else { 0 }, |slot, session| {
            match self.take(endpoint, slot, session, image) {
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
        self.scan(0, |slot, session| {
            match self.take(endpoint, slot, session, &mut image) {
                Found::New(claim) => {
                    served.is_refused |= self.handle(endpoint, claim, &image, handler);
                    served.handled += claim.values;
                }
                Found::Old { is_refused } => served.answered(is_refused),
                Found::None => {}
            }
            None::<()>
        });
        served
    }

    /// Handles the requests of a message, one after the other, and answers. Whether the answer was refused.
    fn handle<Req: Value, Rep: Value>(
        &self,
        endpoint: &Endpoint,
        claim: Claim,
        image: &[u64],
        handler: &mut impl FnMut(NodeId, Req) -> Rep,
    ) -> bool {
        let Some(requests) = layout::decode::<Req>(&image[HEADER..], claim.values) else {
            return self.refuse(endpoint, claim);
        };
        let (client, unwinding) = (claim.client(), Unwinding { core: self, claim });
        let mut replies = Replies::new();
        for request in requests {
            replies.push(&handler(client, request), self.options.reply_bytes_max);
        }
        core::mem::forget(unwinding);
        self.answer(endpoint, claim, replies)
    }

    /// The requests of a message are no values of their type.
    fn refuse(&self, endpoint: &Endpoint, claim: Claim) -> bool {
        self.answer(endpoint, claim, Replies::all(Status::Malformed, claim.values))
    }

    /// Answers a message that this thread has taken. Whether the put was refused: then a later look puts it again.
    pub(crate) fn answer(&self, endpoint: &Endpoint, claim: Claim, mut replies: Replies) -> bool {
        replies.seal(claim.call, claim.session);
        self.keep(claim, &replies.image);
        let is_refused = self.put(endpoint, claim.slot, claim.session, &replies.image);
        if is_refused {
            self.slots[claim.slot].done.store(0);
        }
        is_refused
    }

    /// The message is not answered: the next thread that looks says so to the client.
    pub(crate) fn give_up(&self, claim: Claim) {
        let mut replies = Replies::all(Status::None, claim.values);
        replies.seal(claim.call, claim.session);
        self.keep(Claim { check: 0, ..claim }, &replies.image);
        self.node.fabric().wake_local();
        self.node.fabric().wake_service();
    }

    /// Keeps the replies, and gives the slot back. The client's next request is put when it has these; so the slot is given back before they
    /// are put, and any thread takes that request.
    fn keep(&self, claim: Claim, replies: &[u64]) {
        let of = &self.slots[claim.slot];
        let mut last = of.last.lock();
        last.reply.clear();
        last.reply.extend_from_slice(replies);
        drop(last);
        of.done.store(claim.check);
        of.is_taken.store(0);
    }

    /// Puts replies to the client. Whether that was refused, so that it has to be repeated. A client that is gone needs none.
    fn put(&self, endpoint: &Endpoint, slot: usize, session: u64, replies: &[u64]) -> bool {
        let to =
            RemotePtr::<u64>::from_packed(session).byte_add(self.layout.reply_at(slot % self.layout.window) as u64);
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
        RemotePtr::<u64>::from_packed(self.session).node()
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
