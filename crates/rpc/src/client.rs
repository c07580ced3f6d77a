//! The client: its slots, and its calls from the first word to the last.

use core::fmt;
use core::marker::PhantomData;
use std::collections::VecDeque;
use std::sync::Arc;

use farfield_core::toolkit::{ErrorContext, Object, ObjectBuilder, Regions};
use farfield_core::{Endpoint, Error, ErrorKind, Node, Result, Value, WaitLimit};
use farfield_fabric::{GroupKey, Instant, NodeId, Region, RemotePtr, Word};

use crate::call::{BatchCall, Call, Frame};
use crate::errors::{ServerClosed, WindowFull};
use crate::layout::{self, CALL, Image, Layout, SESSION, check_length, number_of, values_of};
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
const LEFT: u64 = 2;
const STATE_BITS: u32 = 2;

fn slot_state(word: u64) -> u64 {
    word & ((1 << STATE_BITS) - 1)
}

/// Calls a [`Server`](crate::Server) on another node. The handle is shared by the threads of its node; each passes its own endpoint.
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
    link: Arc<Link>,
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
    pub(crate) session: u64,
    replies: Region,
    /// The server's slots for this node.
    requests: RemotePtr<u64>,
    slots: Box<[Word]>,
}

impl<Req: Value, Rep: Value> Client<Req, Rep> {
    /// Opens a client of the server that this node has, or is about to open, and waits for it. Other nodes do not take part: clients come
    /// and go while the server serves others. A node that was restarted, or that has dropped an earlier client, opens it as any other.
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
    /// The server's node is missing, dead or departed, or has opened it differently; it is this node; no memory; invalid options.
    pub fn open(node: &Node, path: &str, server: NodeId, options: RpcOptions) -> Result<Client<Req, Rep>> {
        let layout = Layout::new::<Req, Rep>(&options, node.nodes(), path)?;
        if server == node.id() {
            let why = "the server's own node calls its handler itself, and needs no client".into();
            return Err(Error::from(ErrorKind::Config { why }).of(path));
        }
        wait_for_member(node, server).of(path)?;
        let mut regions = Regions::new(node);
        let replies = regions.alloc("replies", GroupKey::SIGNAL, layout.replies_bytes).of(path)?;
        let of_server = move |peer| match peer == server {
            true => vec![("requests".into(), layout.requests_bytes as u64)],
            false => Vec::new(),
        };
        let builder = ObjectBuilder::new(node, path, "Rpc").layout(&described::<Req, Rep>(&options)).homes(&[server]);
        let object = builder.calls(&CALLS).regions(regions).require_regions(of_server).open()?;
        let place = node.rank_of(node.id());
        let requests =
            object.remote::<u64>(server, "requests")?.byte_add(layout.request_at(place * options.window) as u64);
        let session = replies.remote::<u64>(0).packed();
        let slots = (0..options.window).map(|_| Word::new(FREE)).collect();
        let link = Link { object, server, options, layout, session, replies, requests, slots };
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
    /// [`EffectUnknown`](crate::EffectUnknown): no reply came, for the reason that it names. [`NoReply`](crate::NoReply) and
    /// [`ReplyTooLong`](crate::ReplyTooLong) say that the server has handled it. After any other error nothing has happened: the request is
    /// too long, [`WindowFull`], [`ServerClosed`], the server is dead or departed, or the put was refused.
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

    /// Sends a request, and leaves it to [`Call::wait`] to wait for the reply. So one thread has several calls under way. It waits only for
    /// a free slot, as long as the endpoint's timeout.
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
    /// Nothing has happened: the request is too long, [`WindowFull`], [`ServerClosed`], the server is dead or departed, or the put was
    /// refused.
    pub async fn begin<'a>(&'a self, endpoint: &'a Endpoint, request: &Req) -> Result<Call<'a, Rep>> {
        self.begin_within(endpoint, request, &mut WaitLimit::Timeout).await
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

    /// Sends several requests in one put, and leaves it to [`BatchCall::wait`] to wait for their replies, which come in one put. The server
    /// handles them one after the other, in their order.
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
        let (asked, max) = (requests.len(), self.link.options.batch_max);
        if asked == 0 || asked > max {
            let what = "requests of a batch";
            return Err(ErrorKind::TooMany { what, asked, max }).of(self.link.object.path());
        }
        let mut frame = self.frame(endpoint, requests, &mut WaitLimit::Timeout).await?;
        frame.post().of(self.link.object.path())?;
        Ok(BatchCall::new(frame))
    }

    /// Calls the server with any number of requests, and waits for their replies as long as the endpoint's timeout: in as few puts as
    /// [`RpcOptions::batch_max`] allows, those that go out together behind one doorbell, and in one round trip as far as the window
    /// reaches. Requests of different puts have no order.
    ///
    /// The result of each request is its own, as of [`Client::call`].
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
        let meter = self.link.object.meter();
        if !meter.is_on() {
            return self.many(endpoint, requests).await;
        }
        let many = async { Ok(self.many(endpoint, requests).await) };
        meter.measure(endpoint, MANY, many).await.unwrap_or_default()
    }

    async fn many(&self, endpoint: &Endpoint, requests: &[Req]) -> Vec<Result<Rep>> {
        let link = &*self.link;
        let (mut results, mut limit) = (Vec::with_capacity(requests.len()), WaitLimit::Timeout);
        let mut batches = requests.chunks(link.options.batch_max);
        let mut under_way = VecDeque::with_capacity(link.options.window.min(batches.len()));
        let mut next = batches.next();
        while next.is_some() || !under_way.is_empty() {
            // All that there are slots for, and one at least.
            let first = under_way.len();
            while let Some(batch) = next {
                let mut now = WaitLimit::Now;
                let may_wait = under_way.is_empty();
                match self.frame(endpoint, batch, if may_wait { &mut limit } else { &mut now }).await {
                    Ok(frame) => under_way.push_back(Ok(frame)),
                    Err(error) if !may_wait && error.custom_ref::<WindowFull>().is_some() => break,
                    Err(error) => under_way.push_back(Err((batch.len(), error))),
                }
                next = batches.next();
            }
            let is_one = under_way.len() == first + 1;
            let gone = endpoint.check_alive(link.server).err();
            for slot in under_way.iter_mut().skip(first) {
                let Ok(frame) = slot else { continue };
                let refused = match &gone {
                    Some(gone) => Some(gone.clone()),
                    None if is_one => frame.post().err(),
                    None => None,
                };
                // Nothing of it has happened.
                if let Some(error) = refused {
                    let count = values_of(frame.image());
                    *slot = Err((count, Error::from(error).of(link.object.path())));
                }
            }
            if !is_one {
                post_all(link, endpoint, under_way.iter().skip(first).filter_map(|frame| frame.as_ref().ok()));
            }
            match under_way.pop_front() {
                Some(Ok(mut frame)) => results.extend(frame.replies_of_all(&mut limit).await),
                Some(Err((count, error))) => results.extend((0..count).map(|_| Err(error.clone()))),
                None => {}
            }
        }
        results
    }

    /// Takes a slot, and prepares the message.
    async fn frame<'a>(&'a self, endpoint: &'a Endpoint, requests: &[Req], limit: &mut WaitLimit) -> Result<Frame<'a>> {
        let (link, path) = (&*self.link, self.link.object.path());
        requests.iter().try_for_each(|request| check_length(request, link.options.request_bytes_max)).of(path)?;
        link.object.check_current()?;
        link.check_open().of(path)?;
        let (slot, number) = match link.try_take() {
            Some(taken) => taken,
            None => link.take(endpoint, limit).await.of(path)?,
        };
        Frame::new(link, endpoint, slot, number, requests).of(path)
    }
}

/// Puts several messages behind one doorbell. Which of them are refused is not known: their waits put them again.
fn post_all<'a, 'b: 'a>(link: &Link, endpoint: &Endpoint, frames: impl Iterator<Item = &'a Frame<'b>>) {
    drop(frames.fold(endpoint.batch(link.server), |batch, frame| batch.put(frame.target(), frame.image())).post());
}

impl Link {
    pub(crate) fn check_open(&self) -> Result<()> {
        if self.replies.word(0).load() == 0 {
            return Ok(());
        }
        Err(Error::custom(ServerClosed { server: self.server }).about(self.server))
    }

    /// Takes a slot for a new call: which, and its number. One whose call was given up is free again with its reply. If no other is left,
    /// it is taken without: the server may be in the middle of that call, and answers the new one when it has ended.
    fn try_take(&self) -> Option<(usize, u64)> {
        let take = |slot: usize, found: u64| {
            let number = (found >> STATE_BITS) + 1;
            self.slots[slot].compare_exchange(found, number << STATE_BITS | TAKEN).ok().map(|_| (slot, number))
        };
        let slots = || self.slots.iter().map(Word::load).enumerate();
        let mut free = slots().filter(|(slot, found)| match slot_state(*found) {
            FREE => true,
            LEFT => self.read_reply(*slot, found >> STATE_BITS, &mut Image::new()),
            _ => false,
        });
        let mut left = slots().filter(|(_, found)| slot_state(*found) == LEFT);
        let taken = free.find_map(|(slot, found)| take(slot, found));
        taken.or_else(|| left.find_map(|(slot, found)| take(slot, found)))
    }

    async fn take(&self, endpoint: &Endpoint, limit: &mut WaitLimit) -> Result<(usize, u64)> {
        let start = endpoint.now();
        let deadline = limit.begin(endpoint).unwrap_or(start);
        loop {
            let is_any_free = || self.slots.iter().any(|slot| slot_state(slot.load()) != TAKEN);
            let fails = || self.failure(endpoint).map(Err);
            let waited = match *limit {
                WaitLimit::Now => Err(None),
                _ => endpoint.wait_until_or(deadline, || is_any_free().then_some(Ok(())), fails).await.map_err(Some),
            };
            match waited {
                Ok(free) => free?,
                Err(Some(error)) if !error.is_timeout() => return Err(error.into()),
                Err(_) => {
                    let what = "a free slot".into();
                    let missing = vec![self.server];
                    let because = ErrorKind::Timeout { what, waited: endpoint.now() - start, missing }.into();
                    let full = WindowFull { server: self.server, window: self.slots.len(), because };
                    return Err(Error::custom(full).about(self.server));
                }
            }
            // Another thread may have been faster.
            if let Some(taken) = self.try_take() {
                return Ok(taken);
            }
        }
    }

    /// The call has ended, or is given up.
    pub(crate) fn leave(&self, endpoint: &Endpoint, slot: usize, number: u64, has_ended: bool) {
        let state = if has_ended { FREE } else { LEFT };
        self.slots[slot].store(number << STATE_BITS | state);
        // Threads that wait for a slot.
        endpoint.wake_local();
    }

    /// Copies the reply to this call, if all of it is there.
    pub(crate) fn read_reply(&self, slot: usize, number: u64, image: &mut Image) -> bool {
        let words = self.replies.words(self.layout.reply_at(slot), self.layout.reply_words);
        let is_it = |call: u64| number_of(call) == number;
        // A look at one word, as a rule.
        is_it(words[CALL].load()) && layout::read(words, image) && is_it(image[CALL]) && image[SESSION] == self.session
    }

    /// Where the request of a slot is put.
    pub(crate) fn request(&self, slot: usize) -> RemotePtr<u64> {
        self.requests.byte_add(self.layout.request_at(slot) as u64)
    }

    /// Why no reply can come any more.
    pub(crate) fn failure(&self, endpoint: &Endpoint) -> Option<Error> {
        let gone = || self.object.node().fenced_error(endpoint, self.server).map(Error::from);
        self.check_open().and_then(|()| self.object.check_current()).err().or_else(gone)
    }
}

/// A node that has just started may not be known here yet.
fn wait_for_member(node: &Node, server: NodeId) -> Result<()> {
    let is_known = || node.members().any(|member| member == server).then_some(());
    if is_known().is_none() && !node.has_gone(server) {
        let endpoint = node.endpoint()?;
        let waited = endpoint.block_on(endpoint.wait_until(endpoint.now() + node.timeout(), is_known));
        waited.waiting_for_nodes("the server's node to join the session", &[server])?;
    }
    Ok(())
}

/// What the server and its clients have to agree on.
pub(crate) fn described<Req: Value, Rep: Value>(options: &RpcOptions) -> String {
    let (request, reply) = (Req::words(options.request_bytes_max), Rep::words(options.reply_bytes_max));
    format!("{options:?}, requests of {request} words, replies of {reply} words")
}
