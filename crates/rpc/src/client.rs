//! The client: its slots, and its calls from the first word to the last.

use core::fmt;
use core::marker::PhantomData;
use core::time::Duration;
use std::sync::Arc;

use farfield_core::toolkit::{ErrorContext, Object, ObjectBuilder, Regions};
use farfield_core::{Endpoint, Error, ErrorKind, Node, Result, Value, WaitLimit};
use farfield_fabric::{self as fabric, ErrorKind as FabricError, GroupKey, Instant, NodeId, Region, RemotePtr, Word};

use crate::call::{BatchCall, Call, Frame};
use crate::errors::{ServerClosed, WindowFull};
use crate::layout::{self, CALL, CLOSED, Image, KNOWN, Layout, OPENING, check_length, number_of};
use crate::options::RpcOptions;

/// The calls, as they are measured.
const CALLS: [&str; 2] = ["call", "call_many"];
const ONE: usize = 0;
const MANY: usize = 1;

/// The state of a slot, in the low bits of its word; above them the number of its last call.
const FREE: u64 = 0;
/// A call has it.
const TAKEN: u64 = 1;
/// Its call was given up. It is used again when its reply is there, or when no other slot is free.
const GIVEN_UP: u64 = 2;
/// So long a call waits for a free slot before it takes that of a call that was given up.
const GIVEN_UP_PAUSE: Duration = Duration::from_millis(1);
const STATE_BITS: u32 = 2;

fn slot_state(word: u64) -> u64 {
    word & ((1 << STATE_BITS) - 1)
}

/// Calls a [`Server`](crate::Server) on another node. The handle is shared by the threads of its node; each passes its
/// own endpoint.
///
/// ```
/// use farfield_rpc::{Client, RpcOptions, Server};
/// # let nodes = farfield::local_session(2)?; let options = RpcOptions::default();
/// let server = Server::<u64, u64>::open_on_service(&nodes[0], "double", options, |_, request| 2 * request)?;
/// let client = Client::<u64, u64>::open(&nodes[1], "double", nodes[0].id(), options)?;
/// let ep = nodes[1].endpoint()?;
/// assert_eq!(ep.block_on(client.call(&ep, &21))?, 42);
/// # Ok::<(), farfield::Error>(())
/// ```
pub struct Client<Req: Value, Rep: Value> {
    pub(crate) link: Arc<Link>,
    types: PhantomData<fn(Req) -> Rep>,
}

impl<Req: Value, Rep: Value> Clone for Client<Req, Rep> {
    fn clone(&self) -> Client<Req, Rep> {
        Client { link: Arc::clone(&self.link), types: PhantomData }
    }
}

impl<Req: Value, Rep: Value> fmt::Debug for Client<Req, Rep> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("server", &self.link.server).field("options", &self.link.options).finish()
    }
}

/// What a client is without the types of its messages.
pub(crate) struct Link {
    pub(crate) object: Object,
    pub(crate) server: NodeId,
    pub(crate) options: RpcOptions,
    layout: Layout,
    /// Where the replies are: as a word, the name of this opening of this node.
    pub(crate) opening: u64,
    replies: Region,
    /// The server's slots for this node.
    requests: RemotePtr<u64>,
    slots: Box<[Word]>,
}

impl<Req: Value, Rep: Value> Client<Req, Rep> {
    /// Opens a client of the server that this node has, or is about to open, and waits for it. Other nodes do not take
    /// part: clients come and go while the server serves others. A node that was restarted, or that has dropped an
    /// earlier client, opens it as any other.
    ///
    /// ```
    /// # use farfield_rpc::{Client, RpcOptions, Server};
    /// # let nodes = farfield::local_session(3)?; let options = RpcOptions::default();
    /// # let server = Server::<u64, u64>::open(&nodes[0], "double", options)?;
    /// let first = Client::<u64, u64>::open(&nodes[1], "double", nodes[0].id(), options)?;
    /// let second = Client::<u64, u64>::open(&nodes[2], "double", nodes[0].id(), options)?;
    /// drop(first);
    /// let again = Client::<u64, u64>::open(&nodes[1], "double", nodes[0].id(), options)?;
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// The server's node is missing, dead or departed, or has opened it differently; the server is
    /// [closed](ServerClosed); it is this node; no memory; invalid options.
    pub fn open(node: &Node, path: &str, server: NodeId, options: RpcOptions) -> Result<Client<Req, Rep>> {
        let layout = Layout::new::<Req, Rep>(&options, node.nodes(), path)?;
        if server == node.id() {
            let why = "the server's own node calls its handler itself, and needs no client".into();
            return Err(Error::from(ErrorKind::Config { why }).of(path));
        }
        let endpoint = node.endpoint()?;
        let deadline = endpoint.now() + node.timeout();
        wait_for_member(node, &endpoint, server, deadline).of(path)?;
        let mut regions = Regions::new(node);
        let replies = regions.alloc("replies", GroupKey::SIGNAL, layout.replies_bytes).of(path)?;
        let of_server = move |peer| {
            if peer == server { vec![("requests".into(), layout.requests_bytes as u64)] } else { Vec::new() }
        };
        let builder = ObjectBuilder::new(node, path, "Rpc").layout(&described::<Req, Rep>(&options)).homes(&[server]);
        let object = builder.calls(&CALLS).regions(regions).require_regions(of_server).announce()?;
        object.wait_with(&endpoint, deadline.since(endpoint.now()))?;
        let rank = node.rank_of(node.id());
        let requests =
            object.remote::<u64>(server, "requests")?.byte_add(layout.request_at(rank * options.window) as u64);
        let opening = replies.remote::<u64>(0).packed();
        let slots = (0..options.window).map(|_| Word::new(FREE)).collect();
        let link = Link { object, server, options, layout, opening, replies, requests, slots };
        link.wait_until_known(&endpoint, deadline).of(path)?;
        Ok(Client { link: Arc::new(link), types: PhantomData })
    }

    /// The server's node.
    ///
    /// ```
    /// # use farfield_rpc::{Client, RpcOptions, Server};
    /// # let nodes = farfield::local_session(2)?; let options = RpcOptions::default();
    /// # let server = Server::<u64, u64>::open(&nodes[0], "double", options)?;
    /// # let client = Client::<u64, u64>::open(&nodes[1], "double", nodes[0].id(), options)?;
    /// assert_eq!(client.server(), nodes[0].id());
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn server(&self) -> NodeId {
        self.link.server
    }

    /// Calls the server, and waits for the reply as long as the endpoint's timeout.
    ///
    /// ```
    /// # use farfield_rpc::{Client, RpcOptions, Server};
    /// # let nodes = farfield::local_session(2)?; let options = RpcOptions::default();
    /// # let server = Server::<u64, u64>::open_on_service(&nodes[0], "double", options, |_, request| 2 * request)?;
    /// # let client = Client::<u64, u64>::open(&nodes[1], "double", nodes[0].id(), options)?;
    /// # let ep = nodes[1].endpoint()?;
    /// assert_eq!(ep.block_on(client.call(&ep, &4))?, 8);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`effect_of`](crate::effect_of) says whether the call has had its effect.
    /// [`EffectUnknown`](crate::EffectUnknown): no reply came, for the reason that it names.
    /// [`NoReply`](crate::NoReply), [`ReplyTooLong`](crate::ReplyTooLong) and
    /// [`ReplyMalformed`](crate::ReplyMalformed): the server has taken it. After any other error nothing has happened:
    /// the request is too long, or [malformed](crate::RequestMalformed), [`WindowFull`], [`ServerClosed`], the server
    /// is dead or departed, this node is evicted, or the put was refused.
    pub async fn call(&self, endpoint: &Endpoint, request: &Req) -> Result<Rep> {
        self.call_within(endpoint, request, WaitLimit::Timeout).await
    }

    /// [`call`](Self::call), which it waits for on this thread.
    ///
    /// ```
    /// # use farfield_rpc::{Client, RpcOptions, Server};
    /// # let nodes = farfield::local_session(2)?; let options = RpcOptions::default();
    /// # let server = Server::<u64, u64>::open_on_service(&nodes[0], "double", options, |_, request| 2 * request)?;
    /// # let client = Client::<u64, u64>::open(&nodes[1], "double", nodes[0].id(), options)?;
    /// # let ep = nodes[1].endpoint()?;
    /// assert_eq!(client.call_blocking(&ep, &4)?, 8);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As `call`.
    pub fn call_blocking(&self, endpoint: &Endpoint, request: &Req) -> Result<Rep> {
        endpoint.block_on(self.call(endpoint, request))
    }

    /// [`Client::call`] with a deadline.
    ///
    /// ```
    /// # use farfield_rpc::{Client, EffectUnknown, RpcOptions, Server};
    /// # let nodes = farfield::local_session(2)?; let options = RpcOptions::default();
    /// # let server = Server::<u64, u64>::open(&nodes[0], "double", options)?;
    /// # let client = Client::<u64, u64>::open(&nodes[1], "double", nodes[0].id(), options)?;
    /// # let ep = nodes[1].endpoint()?;
    /// let deadline = ep.now() + std::time::Duration::from_millis(5);
    /// let error = ep.block_on(client.call_deadline(&ep, &4, deadline)).unwrap_err(); // no thread serves
    /// assert!(error.is_timeout() && error.custom_ref::<EffectUnknown>().is_some());
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As `call`.
    pub async fn call_deadline(&self, endpoint: &Endpoint, request: &Req, deadline: Instant) -> Result<Rep> {
        self.call_within(endpoint, request, WaitLimit::Deadline(deadline)).await
    }

    async fn call_within(&self, endpoint: &Endpoint, request: &Req, mut limit: WaitLimit) -> Result<Rep> {
        let meter = self.link.object.meter();
        if meter.is_on() && meter.measures(endpoint, ONE) {
            return meter.again(endpoint, ONE, self.call_within(endpoint, request, limit)).await;
        }
        self.begin_within(endpoint, request, &mut limit).await?.wait_within(limit).await
    }

    /// Sends a request, and leaves it to [`Call::wait`] to wait for the reply. So one thread has several calls under
    /// way. It waits only for a free slot, as long as the endpoint's timeout.
    ///
    /// ```
    /// # use farfield_rpc::{Client, RpcOptions, Server};
    /// # let nodes = farfield::local_session(2)?; let options = RpcOptions::default();
    /// # let server = Server::<u64, u64>::open_on_service(&nodes[0], "double", options, |_, request| 2 * request)?;
    /// # let client = Client::<u64, u64>::open(&nodes[1], "double", nodes[0].id(), options)?;
    /// # let ep = nodes[1].endpoint()?;
    /// ep.block_on(async {
    ///     let (mut first, mut second) = (client.begin(&ep, &1).await?, client.begin(&ep, &2).await?);
    ///     assert_eq!((first.wait().await?, second.wait().await?), (2, 4)); // of both in one round trip
    ///     Ok::<(), farfield::Error>(())
    /// })?;
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// Nothing has happened: the request is too long, [`WindowFull`], [`ServerClosed`], the server is dead or departed,
    /// or the put was refused.
    pub async fn begin<'a>(&'a self, endpoint: &'a Endpoint, request: &Req) -> Result<Call<'a, Rep>> {
        self.begin_within(endpoint, request, &mut WaitLimit::Timeout).await
    }

    /// [`Client::begin`] with a deadline for the free slot.
    ///
    /// ```
    /// # use farfield_rpc::{Client, RpcOptions, Server, WindowFull};
    /// # let nodes = farfield::local_session(2)?; let options = RpcOptions { window: 1, ..RpcOptions::default() };
    /// # let server = Server::<u64, u64>::open(&nodes[0], "double", options)?;
    /// # let client = Client::<u64, u64>::open(&nodes[1], "double", nodes[0].id(), options)?;
    /// # let ep = nodes[1].endpoint()?;
    /// let call = ep.block_on(client.begin(&ep, &1))?; // in the one slot
    /// let deadline = ep.now() + std::time::Duration::from_millis(5);
    /// let error = ep.block_on(client.begin_deadline(&ep, &2, deadline)).err().unwrap();
    /// assert!(error.custom_ref::<WindowFull>().is_some());
    /// # drop(call); Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As `begin`.
    pub async fn begin_deadline<'a>(
        &'a self,
        endpoint: &'a Endpoint,
        request: &Req,
        deadline: Instant,
    ) -> Result<Call<'a, Rep>> {
        self.begin_within(endpoint, request, &mut WaitLimit::Deadline(deadline)).await
    }

    async fn begin_within<'a>(
        &'a self,
        endpoint: &'a Endpoint,
        request: &Req,
        limit: &mut WaitLimit,
    ) -> Result<Call<'a, Rep>> {
        let mut frame = self.frame(endpoint, core::slice::from_ref(request), limit).await?;
        frame.post().of(self.link.object.path())?;
        Ok(Call::new(frame))
    }

    /// Sends several requests in one put, and leaves it to [`BatchCall::wait`] to wait for their replies, which come in
    /// one put. The server handles them one after the other, in their order.
    ///
    /// ```
    /// # use farfield_rpc::{Client, RpcOptions, Server};
    /// # let nodes = farfield::local_session(2)?; let options = RpcOptions::default();
    /// # let server = Server::<u64, u64>::open_on_service(&nodes[0], "double", options, |_, request| 2 * request)?;
    /// # let client = Client::<u64, u64>::open(&nodes[1], "double", nodes[0].id(), options)?;
    /// # let ep = nodes[1].endpoint()?;
    /// let replies = ep.block_on(async { client.begin_batch(&ep, &[1, 2, 3]).await?.wait().await })?;
    /// assert_eq!(replies.into_iter().collect::<farfield::Result<Vec<u64>>>()?, [2, 4, 6]);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Client::begin`], or there are more than [`RpcOptions::batch_max`] of them, or none.
    pub async fn begin_batch<'a>(&'a self, endpoint: &'a Endpoint, requests: &[Req]) -> Result<BatchCall<'a, Rep>> {
        self.begin_batch_within(endpoint, requests, WaitLimit::Timeout).await
    }

    /// [`Client::begin_batch`] with a deadline for the free slot.
    ///
    /// ```
    /// # use farfield_rpc::{Client, RpcOptions, Server};
    /// # let nodes = farfield::local_session(2)?; let options = RpcOptions::default();
    /// # let server = Server::<u64, u64>::open_on_service(&nodes[0], "double", options, |_, request| 2 * request)?;
    /// # let client = Client::<u64, u64>::open(&nodes[1], "double", nodes[0].id(), options)?;
    /// # let ep = nodes[1].endpoint()?;
    /// let soon = ep.now() + std::time::Duration::from_millis(5);
    /// let replies = ep.block_on(async { client.begin_batch_deadline(&ep, &[1, 2], soon).await?.wait().await })?;
    /// assert_eq!(replies.len(), 2);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As `begin_batch`.
    pub async fn begin_batch_deadline<'a>(
        &'a self,
        endpoint: &'a Endpoint,
        requests: &[Req],
        deadline: Instant,
    ) -> Result<BatchCall<'a, Rep>> {
        self.begin_batch_within(endpoint, requests, WaitLimit::Deadline(deadline)).await
    }

    async fn begin_batch_within<'a>(
        &'a self,
        endpoint: &'a Endpoint,
        requests: &[Req],
        mut limit: WaitLimit,
    ) -> Result<BatchCall<'a, Rep>> {
        let (asked, max) = (requests.len(), self.link.options.batch_max);
        if asked == 0 {
            let why = "a batch has no requests: give it one at least".into();
            return Err(ErrorKind::Config { why }).of(self.link.object.path());
        }
        if asked > max {
            let what = "requests of a batch";
            return Err(ErrorKind::TooMany { what, asked, max }).of(self.link.object.path());
        }
        let mut frame = self.frame(endpoint, requests, &mut limit).await?;
        frame.post().of(self.link.object.path())?;
        Ok(BatchCall::new(frame))
    }

    /// Calls the server with any number of requests, and waits for their replies as long as the endpoint's timeout: in
    /// as few puts as [`RpcOptions::batch_max`] allows, those that go out together behind one doorbell, and in one
    /// round trip as far as the window reaches. Requests of different puts have no order.
    ///
    /// The result of each request is its own, as of [`Client::call`]. After the deadline nothing more is sent: the
    /// requests that are left fail with [`NotSent`](crate::NotSent).
    ///
    /// ```
    /// # use farfield_rpc::{Client, RpcOptions, Server};
    /// # let nodes = farfield::local_session(2)?; let options = RpcOptions::default();
    /// # let server = Server::<u64, u64>::open_on_service(&nodes[0], "double", options, |_, request| 2 * request)?;
    /// # let client = Client::<u64, u64>::open(&nodes[1], "double", nodes[0].id(), options)?;
    /// # let ep = nodes[1].endpoint()?;
    /// let requests: Vec<u64> = (0..100).collect();
    /// let replies = ep.block_on(client.call_many(&ep, &requests));
    /// assert_eq!(replies.len(), 100);
    /// for (request, reply) in requests.iter().zip(replies) {
    ///     assert_eq!(reply?, 2 * request);
    /// }
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub async fn call_many(&self, endpoint: &Endpoint, requests: &[Req]) -> Vec<Result<Rep>> {
        self.call_many_within(endpoint, requests, WaitLimit::Timeout).await
    }

    /// [`call_many`](Self::call_many), which it waits for on this thread.
    ///
    /// ```
    /// # use farfield_rpc::{Client, RpcOptions, Server};
    /// # let nodes = farfield::local_session(2)?; let options = RpcOptions::default();
    /// # let server = Server::<u64, u64>::open_on_service(&nodes[0], "double", options, |_, request| 2 * request)?;
    /// # let client = Client::<u64, u64>::open(&nodes[1], "double", nodes[0].id(), options)?;
    /// # let ep = nodes[1].endpoint()?;
    /// let replies: farfield::Result<Vec<u64>> = client.call_many_blocking(&ep, &[1, 2, 3]).into_iter().collect();
    /// assert_eq!(replies?, [2, 4, 6]);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn call_many_blocking(&self, endpoint: &Endpoint, requests: &[Req]) -> Vec<Result<Rep>> {
        endpoint.block_on(self.call_many(endpoint, requests))
    }

    /// [`Client::call_many`] with a deadline for all of them.
    ///
    /// ```
    /// # use farfield_rpc::{Client, Effect, RpcOptions, Server, effect_of};
    /// # let nodes = farfield::local_session(2)?; let options = RpcOptions { window: 1, batch_max: 2, ..RpcOptions::default() };
    /// # let server = Server::<u64, u64>::open(&nodes[0], "double", options)?;
    /// # let client = Client::<u64, u64>::open(&nodes[1], "double", nodes[0].id(), options)?;
    /// # let ep = nodes[1].endpoint()?;
    /// let deadline = ep.now() + std::time::Duration::from_millis(5);
    /// let replies = ep.block_on(client.call_many_deadline(&ep, &[1, 2, 3], deadline)); // no thread serves
    /// let effects = replies.into_iter().map(|reply| effect_of(&reply.unwrap_err()));
    /// assert!(effects.eq([Effect::Unknown, Effect::Unknown, Effect::None])); // the third was not sent
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub async fn call_many_deadline(
        &self,
        endpoint: &Endpoint,
        requests: &[Req],
        deadline: Instant,
    ) -> Vec<Result<Rep>> {
        self.call_many_within(endpoint, requests, WaitLimit::Deadline(deadline)).await
    }

    async fn call_many_within(&self, endpoint: &Endpoint, requests: &[Req], limit: WaitLimit) -> Vec<Result<Rep>> {
        let timing = self.link.object.meter().start(endpoint, MANY);
        let replies = self.many(endpoint, requests, limit).await;
        timing.end(endpoint, &Ok(()));
        replies
    }

    /// Takes a slot, and prepares the message.
    pub(crate) async fn frame<'a>(
        &'a self,
        endpoint: &'a Endpoint,
        requests: &[Req],
        limit: &mut WaitLimit,
    ) -> Result<Frame<'a>> {
        let (link, path) = (&*self.link, self.link.object.path());
        requests.iter().try_for_each(|request| check_length(request, link.options.request_bytes_max)).of(path)?;
        link.check_usable()?;
        let taken = match link.try_take(false) {
            Some(taken) => taken,
            None => link.take(endpoint, limit).await.of(path)?,
        };
        Frame::new(link, endpoint, taken, requests).of(path)
    }
}

impl Link {
    /// Whether a call may begin.
    pub(crate) fn check_usable(&self) -> Result<()> {
        self.object.check_current()?;
        self.check_open().of(self.object.path())
    }

    /// A server that is closed before it knows this client cannot say so to it.
    fn wait_until_known(&self, endpoint: &Endpoint, deadline: Instant) -> Result<()> {
        let is_known = || (self.replies.word(KNOWN).load() != 0).then_some(Ok(()));
        let fails = || self.failure(endpoint).map(Err);
        let waited = endpoint.block_on(endpoint.wait_until_or(deadline, is_known, fails));
        waited.waiting_for_nodes("the server to know this client", &[self.server])?
    }

    fn check_open(&self) -> Result<()> {
        if self.replies.word(CLOSED).load() == 0 {
            return Ok(());
        }
        Err(Error::custom(ServerClosed { server: self.server }).about(self.server))
    }

    /// Takes a free slot for a new call: which, and its number. A slot of a call that was given up is free again with
    /// its reply. With `given_up` it is taken without: the server may be in the middle of that call, and answers the
    /// new one when it has ended.
    pub(crate) fn try_take(&self, given_up: bool) -> Option<(usize, u64)> {
        let take = |slot: usize, found: u64| {
            let number = (found >> STATE_BITS) + 1;
            self.slots[slot].compare_exchange(found, number << STATE_BITS | TAKEN).ok().map(|_| (slot, number))
        };
        let slots = || self.slots.iter().map(Word::load).enumerate();
        let mut free = slots().filter(|(slot, found)| self.is_free(*slot, *found));
        let mut left = slots().filter(|(_, found)| given_up && slot_state(*found) == GIVEN_UP);
        let taken = free.find_map(|(slot, found)| take(slot, found));
        taken.or_else(|| left.find_map(|(slot, found)| take(slot, found)))
    }

    /// Whether the server has answered the last call of a slot, of this word.
    fn is_free(&self, slot: usize, found: u64) -> bool {
        match slot_state(found) {
            FREE => true,
            GIVEN_UP => self.read_reply(slot, found >> STATE_BITS, &mut Image::new()),
            _ => false,
        }
    }

    async fn take(&self, endpoint: &Endpoint, limit: &mut WaitLimit) -> Result<(usize, u64)> {
        let start = endpoint.now();
        let deadline = limit.begin(endpoint).unwrap_or(start);
        // A slot may be free in a moment: then no call that was given up is lost for it.
        let left = if deadline > start { deadline - start } else { Duration::ZERO };
        let soon = start + GIVEN_UP_PAUSE.min(left / 2);
        let mut given_up = false;
        loop {
            let is_one =
                |slot: usize, found: u64| self.is_free(slot, found) || given_up && slot_state(found) == GIVEN_UP;
            let is_any = || self.slots.iter().enumerate().any(|(slot, word)| is_one(slot, word.load()));
            let fails = || self.failure(endpoint).map(Err);
            let until = if given_up { deadline } else { soon };
            match endpoint.wait_until_or(until, || is_any().then_some(Ok(())), fails).await {
                Ok(free) => free?,
                Err(error) if !error.is_timeout() => return Err(error.into()),
                Err(_) if endpoint.now() >= deadline => {
                    let what = "a free slot".into();
                    let missing = vec![self.server];
                    let because = ErrorKind::Timeout { what, waited: endpoint.now() - start, missing }.into();
                    let full = WindowFull { server: self.server, window: self.slots.len(), because };
                    return Err(Error::custom(full).about(self.server));
                }
                Err(_) => given_up = true,
            }
            // Another thread may have been faster.
            if let Some(taken) = self.try_take(given_up) {
                return Ok(taken);
            }
        }
    }

    /// The call has ended, or is given up.
    pub(crate) fn leave(&self, endpoint: &Endpoint, slot: usize, number: u64, has_ended: bool) {
        let state = if has_ended { FREE } else { GIVEN_UP };
        self.slots[slot].store(number << STATE_BITS | state);
        // Threads that wait for a slot.
        endpoint.wake_local();
    }

    /// Copies the reply to this call, if all of it is there.
    pub(crate) fn read_reply(&self, slot: usize, number: u64, image: &mut Image) -> bool {
        let words = self.replies.words(self.layout.reply_at(slot), self.layout.reply_words);
        let is_it = |call: u64| number_of(call) == number;
        // It reads one word, as a rule.
        is_it(words[CALL].load()) && layout::read(words, image) && is_it(image[CALL]) && image[OPENING] == self.opening
    }

    /// Where the request of a slot is put.
    pub(crate) fn request(&self, slot: usize) -> RemotePtr<u64> {
        self.requests.byte_add(self.layout.request_at(slot) as u64)
    }

    /// Why no reply can come any more.
    pub(crate) fn failure(&self, endpoint: &Endpoint) -> Option<Error> {
        let node = self.object.node();
        let gone = || node.fenced_error(endpoint, self.server).map(Error::from);
        // The members have evicted this node, and the server takes nothing from it any more.
        let fenced = || node.fabric().is_fenced().then(|| fabric::Error::from(FabricError::Fenced).into());
        self.check_open().and_then(|()| self.object.check_current()).err().or_else(gone).or_else(fenced)
    }
}

/// A node that has just started may not be known here yet.
fn wait_for_member(node: &Node, endpoint: &Endpoint, server: NodeId, deadline: Instant) -> Result<()> {
    let is_known = || (node.members().any(|member| member == server) || node.has_gone(server)).then_some(());
    let waited = endpoint.block_on(node.wait_for_members(endpoint, deadline, is_known));
    waited.waiting_for_nodes("the server's node to join the session", &[server])
}

/// What the server and its clients have to agree on.
pub(crate) fn described<Req: Value, Rep: Value>(options: &RpcOptions) -> String {
    let (request, reply) = (Req::words(options.request_bytes_max), Rep::words(options.reply_bytes_max));
    // Two types may need as many words.
    let length = |is_fixed| if is_fixed { "always" } else { "at most" };
    let (of_request, of_reply) = (length(Req::FIXED), length(Rep::FIXED));
    format!("{options:?}, requests of {of_request} {request} words, replies of {of_reply} {reply} words")
}
