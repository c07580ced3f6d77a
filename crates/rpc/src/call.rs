//! A call that is under way.

use core::marker::PhantomData;
use core::time::Duration;

use farfield_core::toolkit::ErrorContext;
use farfield_core::{Endpoint, Error, ErrorKind, Result, Value, WaitLimit};
use farfield_fabric::{self as fabric, Buf, ErrorKind as FabricError, Instant, RemotePtr};

use crate::client::Link;
use crate::errors::{CallEnded, EffectUnknown, NoReply, ReplyMalformed, ReplyTooLong, RequestMalformed, ServerClosed};
use crate::layout::{HEADER, Image, OPENING, Status, call_word, seal, values_of, words_of};

/// A request without a reply is put again after such a pause, which doubles. The first may have been lost with a
/// connection, or its reply refused; or a late put has overwritten one of them.
const REPEAT_PAUSES: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(100)];

/// The requests of one put, and the slot that waits for their replies.
pub(crate) struct Frame<'a> {
    link: &'a Link,
    endpoint: &'a Endpoint,
    slot: usize,
    number: u64,
    attempt: u64,
    image: Buf<'a, u64>,
    /// When it is put again, and the pause after that; none before the first wait.
    again: Option<(Instant, Duration)>,
    /// The reply is there, or nothing was sent.
    has_ended: bool,
}

impl Drop for Frame<'_> {
    fn drop(&mut self) {
        self.link.leave(self.endpoint, self.slot, self.number, self.has_ended);
    }
}

impl<'a> Frame<'a> {
    /// Of a slot that was taken. It is free again if this fails.
    pub(crate) fn new<Req: Value>(
        link: &'a Link,
        endpoint: &'a Endpoint,
        (slot, number): (usize, u64),
        requests: &[Req],
    ) -> Result<Frame<'a>> {
        let mut image = match endpoint.buf::<u64>(HEADER + words_of(requests)) {
            Ok(image) => image,
            Err(refused) => {
                link.leave(endpoint, slot, number, true);
                return Err(refused.into());
            }
        };
        let mut at = HEADER;
        for request in requests {
            at += request.encode(&mut image[at..]);
        }
        seal(&mut image, call_word(number, 0), link.opening, requests.len());
        Ok(Frame { link, endpoint, slot, number, attempt: 0, image, again: None, has_ended: true })
    }

    fn target(&self) -> RemotePtr<u64> {
        self.link.request(self.slot)
    }

    /// Whether it was put, and waits for its replies.
    pub(crate) fn is_sent(&self) -> bool {
        !self.has_ended
    }

    pub(crate) fn image(&self) -> &Buf<'a, u64> {
        &self.image
    }

    /// Puts it for the first time. If that is refused, nothing has happened.
    pub(crate) fn post(&mut self) -> fabric::Result<()> {
        let posted = self.endpoint.put(self.target(), &self.image).detach();
        self.has_ended = posted.is_err();
        posted
    }

    /// Puts it again, as another attempt: the server answers it again, and does nothing else again. It is refused, or
    /// not, as any put.
    fn post_again(&mut self) -> fabric::Result<()> {
        self.attempt += 1;
        // The buffer of the last attempt may still be read.
        let mut image = self.endpoint.buf::<u64>(self.image.len())?;
        image.copy_from_slice(&self.image);
        let values = values_of(&image);
        seal(&mut image, call_word(self.number, self.attempt), self.link.opening, values);
        self.endpoint.put(self.target(), &image).detach()?;
        self.image = image;
        Ok(())
    }

    fn has_reply(&self) -> bool {
        self.link.read_reply(self.slot, self.number, &mut Image::new())
    }

    /// Waits for the message of the replies.
    async fn reply(&mut self, limit: &mut WaitLimit, image: &mut Image) -> Result<()> {
        let (link, endpoint, slot, number) = (self.link, self.endpoint, self.slot, self.number);
        if self.has_ended {
            return Err(Error::custom(CallEnded { server: link.server }).about(link.server).of(link.object.path()));
        }
        let mut has_come = || link.read_reply(slot, number, image).then_some(());
        if endpoint.spin_until(&mut has_come).is_none() && has_come().is_none() {
            // In memory of its own: the wait is most of the future, and seldom needed.
            let ended = endpoint.boxed(self.wait(limit, &mut has_come)).await;
            // It may have landed before its server died.
            if let Err(because) = ended
                && has_come().is_none()
            {
                let unknown = EffectUnknown { server: link.server, slot, number, because };
                return Err(Error::custom(unknown).about(link.server).of(link.object.path()));
            }
        }
        self.has_ended = true;
        debug_assert_eq!(image[OPENING], link.opening);
        Ok(())
    }

    /// Waits for a reply, and puts the request again now and then. The error is the reason for which it waits no
    /// longer.
    async fn wait(&mut self, limit: &mut WaitLimit, has_come: &mut impl FnMut() -> Option<()>) -> Result<()> {
        let (link, endpoint, start) = (self.link, self.endpoint, self.endpoint.now());
        let deadline = limit.begin(endpoint).unwrap_or(start);
        loop {
            let (again, pause) = *self.again.get_or_insert_with(|| (start + REPEAT_PAUSES[0], REPEAT_PAUSES[0]));
            let replied = || has_come().map(Ok);
            let fails = || link.failure(endpoint).map(Err);
            match endpoint.wait_until_or(deadline.min(again), replied, fails).await {
                Ok(Err(closed)) if closed.custom_ref::<ServerClosed>().is_some() => {
                    // Its last replies may land after the word that says so: they come from other endpoints.
                    let soon = deadline.min(endpoint.now() + REPEAT_PAUSES[0]);
                    return endpoint.wait_until(soon, &mut *has_come).await.map_err(|_| closed);
                }
                Ok(ended) => return ended,
                Err(error) if !error.is_timeout() => return Err(error.into()),
                Err(_) => {}
            }
            let now = endpoint.now();
            if now >= deadline {
                let (what, missing) = ("a reply".into(), vec![link.server]);
                return Err(ErrorKind::Timeout { what, waited: now - start, missing }.into());
            }
            let pause = REPEAT_PAUSES[1].min(2 * pause);
            self.again = Some((now + pause, pause));
            match self.post_again() {
                Err(error) if !may_try_again(&error) => return Err(error.into()),
                // The members decide about a server that does not answer.
                _ => {}
            }
        }
    }

    /// The reply to the one request.
    async fn reply_of_one<Rep: Value>(&mut self, limit: &mut WaitLimit) -> Result<Rep> {
        let mut image = Image::new();
        self.reply(limit, &mut image).await?;
        self.value(&image, 0, &image[(HEADER + 1).min(image.len())..]).map(|(value, _)| value)
    }

    /// The result of each request.
    pub(crate) async fn replies_of_all<Rep: Value>(&mut self, limit: &mut WaitLimit) -> Vec<Result<Rep>> {
        match self.replies(limit).await {
            Ok(replies) => replies,
            Err(error) => (0..values_of(&self.image)).map(|_| Err(error.clone())).collect(),
        }
    }

    /// The result of each request; or the one error of all.
    async fn replies<Rep: Value>(&mut self, limit: &mut WaitLimit) -> Result<Vec<Result<Rep>>> {
        let mut image = Image::new();
        self.reply(limit, &mut image).await?;
        Ok(self.values(&image, values_of(&self.image)))
    }

    fn values<Rep: Value>(&self, image: &[u64], count: usize) -> Vec<Result<Rep>> {
        let mut words = &image[(HEADER + 1).min(image.len())..];
        let next = |value| {
            let (reply, used) = self.value(image, value, words)?;
            words = &words[used..];
            Ok(reply)
        };
        (0..count).map(next).collect()
    }

    /// A reply, from the words of it and of those after it.
    fn value<Rep: Value>(&self, image: &[u64], value: usize, words: &[u64]) -> Result<(Rep, usize)> {
        let (server, link) = (self.link.server, self.link);
        let malformed = || Error::custom(ReplyMalformed { server });
        let error = match Status::of(image, value) {
            _ if values_of(image) != values_of(&self.image) => malformed(),
            Status::Done => match Rep::decode(words) {
                Some((reply, used)) if used <= words.len() => return Ok((reply, used)),
                _ => malformed(),
            },
            Status::TooLong => Error::custom(ReplyTooLong { server, max_bytes: link.options.reply_bytes_max }),
            Status::None => Error::custom(NoReply { server }),
            Status::Malformed => Error::custom(RequestMalformed { server }),
        };
        Err(error.about(server).of(link.object.path()))
    }
}

/// Whether an attempt that ends so may be followed by another.
fn may_try_again(error: &fabric::Error) -> bool {
    error.is_refused() || error.is_unreachable() || matches!(error.kind(), FabricError::Revoked { .. })
}

/// A call with a request that was sent: [`Client::begin`](crate::Client::begin).
///
/// Dropping it gives it up. Its effect may still happen, and its slot is used again when the server has answered.
///
/// ```
/// # use farfield_rpc::{Client, RpcOptions, Server};
/// # let nodes = farfield::local_session(2)?; let options = RpcOptions::default();
/// let server = Server::<u64, u64>::open(&nodes[0], "double", options)?;
/// let client = Client::<u64, u64>::open(&nodes[1], "double", nodes[0].id(), options)?;
/// let (here, there) = (nodes[0].endpoint()?, nodes[1].endpoint()?);
/// let mut call = there.block_on(client.begin(&there, &4))?;
/// assert!(!call.has_reply()); // the server's thread has other work
/// here.block_on(server.serve_next(&here, |_, request| 2 * request))?;
/// assert_eq!(there.block_on(call.wait())?, 8);
/// # drop(call); Ok::<(), farfield::Error>(())
/// ```
#[must_use = "a call that is dropped is given up: its effect may happen or not"]
pub struct Call<'a, Rep: Value> {
    frame: Frame<'a>,
    reply: PhantomData<fn() -> Rep>,
}

impl<'a, Rep: Value> Call<'a, Rep> {
    pub(crate) fn new(frame: Frame<'a>) -> Call<'a, Rep> {
        Call { frame, reply: PhantomData }
    }

    /// Whether the reply is there: then a wait ends at once.
    ///
    /// ```
    /// # use farfield_rpc::{Client, RpcOptions, Server};
    /// # let nodes = farfield::local_session(2)?; let options = RpcOptions::default();
    /// # let server = Server::<u64, u64>::open(&nodes[0], "double", options)?;
    /// # let client = Client::<u64, u64>::open(&nodes[1], "double", nodes[0].id(), options)?;
    /// # let ep = nodes[1].endpoint()?;
    /// let call = ep.block_on(client.begin(&ep, &4))?;
    /// assert!(!call.has_reply());
    /// # drop(call); Ok::<(), farfield::Error>(())
    /// ```
    pub fn has_reply(&self) -> bool {
        self.frame.has_reply()
    }

    /// Waits for the reply, as long as the endpoint's timeout. After an error of a timeout it may be waited for again:
    /// the request is put again now and then, and has its effect once.
    ///
    /// ```
    /// # use farfield_rpc::{Client, RpcOptions, Server};
    /// # let nodes = farfield::local_session(2)?; let options = RpcOptions::default();
    /// # let server = Server::<u64, u64>::open_on_service(&nodes[0], "double", options, |_, request| 2 * request)?;
    /// # let client = Client::<u64, u64>::open(&nodes[1], "double", nodes[0].id(), options)?;
    /// # let ep = nodes[1].endpoint()?;
    /// let mut call = ep.block_on(client.begin(&ep, &4))?;
    /// assert_eq!(ep.block_on(call.wait())?, 8);
    /// # drop(call); Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`EffectUnknown`], [`NoReply`], [`ReplyTooLong`], [`ReplyMalformed`], [`RequestMalformed`]; [`CallEnded`].
    pub async fn wait(&mut self) -> Result<Rep> {
        self.frame.reply_of_one(&mut WaitLimit::Timeout).await
    }

    /// [`Call::wait`] with a deadline.
    ///
    /// ```
    /// # use farfield_rpc::{Client, RpcOptions, Server};
    /// # let nodes = farfield::local_session(2)?; let options = RpcOptions::default();
    /// # let server = Server::<u64, u64>::open(&nodes[0], "double", options)?;
    /// # let client = Client::<u64, u64>::open(&nodes[1], "double", nodes[0].id(), options)?;
    /// # let ep = nodes[1].endpoint()?;
    /// let mut call = ep.block_on(client.begin(&ep, &4))?;
    /// let soon = ep.now() + std::time::Duration::from_millis(5);
    /// assert!(ep.block_on(call.wait_deadline(soon)).unwrap_err().is_timeout()); // no thread serves
    /// # drop(call); Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As `wait`.
    pub async fn wait_deadline(&mut self, deadline: Instant) -> Result<Rep> {
        self.frame.reply_of_one(&mut WaitLimit::Deadline(deadline)).await
    }

    /// Asks again now. A wait does so by itself, after 10 ms and then at most every 100 ms. The server answers again
    /// what it has answered, and handles the request only if it has not.
    ///
    /// ```
    /// # use farfield_rpc::{Client, RpcOptions, Server};
    /// # let nodes = farfield::local_session(2)?; let options = RpcOptions::default();
    /// # let server = Server::<u64, u64>::open(&nodes[0], "count", options)?;
    /// # let client = Client::<u64, u64>::open(&nodes[1], "count", nodes[0].id(), options)?;
    /// # let (here, there) = (nodes[0].endpoint()?, nodes[1].endpoint()?);
    /// let mut sum = 0;
    /// let mut add = |_, request: u64| {
    ///     sum += request;
    ///     sum
    /// };
    /// let mut call = there.block_on(client.begin(&there, &4))?;
    /// here.block_on(server.serve_next(&here, &mut add))?;
    /// call.retry()?;
    /// server.try_serve(&here, &mut add)?;
    /// assert_eq!(there.block_on(call.wait())?, 4); // added once
    /// # drop(call); Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of a put: the server is dead or departed, or it was refused. The call stays as it was.
    pub fn retry(&mut self) -> Result<()> {
        self.frame.post_again().of(self.frame.link.object.path())
    }

    pub(crate) async fn wait_within(mut self, mut limit: WaitLimit) -> Result<Rep> {
        self.frame.reply_of_one(&mut limit).await
    }
}

/// Calls with requests that were sent in one put: [`Client::begin_batch`](crate::Client::begin_batch).
///
/// ```
/// # use farfield_rpc::{Client, RpcOptions, Server};
/// # let nodes = farfield::local_session(2)?; let options = RpcOptions::default();
/// # let server = Server::<u64, u64>::open_on_service(&nodes[0], "double", options, |_, request| 2 * request)?;
/// # let client = Client::<u64, u64>::open(&nodes[1], "double", nodes[0].id(), options)?;
/// # let ep = nodes[1].endpoint()?;
/// let mut calls = ep.block_on(client.begin_batch(&ep, &[4, 5]))?;
/// assert_eq!(ep.block_on(calls.wait())?.len(), 2);
/// # drop(calls); Ok::<(), farfield::Error>(())
/// ```
#[must_use = "calls that are dropped are given up: their effects may happen or not"]
pub struct BatchCall<'a, Rep: Value> {
    frame: Frame<'a>,
    reply: PhantomData<fn() -> Rep>,
}

impl<'a, Rep: Value> BatchCall<'a, Rep> {
    pub(crate) fn new(frame: Frame<'a>) -> BatchCall<'a, Rep> {
        BatchCall { frame, reply: PhantomData }
    }

    /// Whether the replies are there: then a wait ends at once.
    ///
    /// ```
    /// # use farfield_rpc::{Client, RpcOptions, Server};
    /// # let nodes = farfield::local_session(2)?; let options = RpcOptions::default();
    /// # let server = Server::<u64, u64>::open(&nodes[0], "double", options)?;
    /// # let client = Client::<u64, u64>::open(&nodes[1], "double", nodes[0].id(), options)?;
    /// # let ep = nodes[1].endpoint()?;
    /// let calls = ep.block_on(client.begin_batch(&ep, &[4, 5]))?;
    /// assert!(!calls.have_replies());
    /// # drop(calls); Ok::<(), farfield::Error>(())
    /// ```
    pub fn have_replies(&self) -> bool {
        self.frame.has_reply()
    }

    /// Waits for the replies, as long as the endpoint's timeout, as [`Call::wait`] does. Each request has a result of
    /// its own.
    ///
    /// ```
    /// # use farfield_rpc::{Client, RpcOptions, Server};
    /// # let nodes = farfield::local_session(2)?; let options = RpcOptions::default();
    /// # let server = Server::<u64, u64>::open_on_service(&nodes[0], "double", options, |_, request| 2 * request)?;
    /// # let client = Client::<u64, u64>::open(&nodes[1], "double", nodes[0].id(), options)?;
    /// # let ep = nodes[1].endpoint()?;
    /// let mut calls = ep.block_on(client.begin_batch(&ep, &[4, 5]))?;
    /// for (reply, doubled) in ep.block_on(calls.wait())?.into_iter().zip([8, 10]) {
    ///     assert_eq!(reply?, doubled);
    /// }
    /// # drop(calls); Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`EffectUnknown`], for all of them; [`CallEnded`].
    pub async fn wait(&mut self) -> Result<Vec<Result<Rep>>> {
        self.wait_within(WaitLimit::Timeout).await
    }

    /// [`BatchCall::wait`] with a deadline.
    ///
    /// ```
    /// # use farfield_rpc::{Client, RpcOptions, Server};
    /// # let nodes = farfield::local_session(2)?; let options = RpcOptions::default();
    /// # let server = Server::<u64, u64>::open(&nodes[0], "double", options)?;
    /// # let client = Client::<u64, u64>::open(&nodes[1], "double", nodes[0].id(), options)?;
    /// # let ep = nodes[1].endpoint()?;
    /// let mut calls = ep.block_on(client.begin_batch(&ep, &[4, 5]))?;
    /// let soon = ep.now() + std::time::Duration::from_millis(5);
    /// assert!(ep.block_on(calls.wait_deadline(soon)).unwrap_err().is_timeout()); // no thread serves
    /// # drop(calls); Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As `wait`.
    pub async fn wait_deadline(&mut self, deadline: Instant) -> Result<Vec<Result<Rep>>> {
        self.wait_within(WaitLimit::Deadline(deadline)).await
    }

    /// Asks again now, as [`Call::retry`] does.
    ///
    /// ```
    /// # use farfield_rpc::{Client, RpcOptions, Server};
    /// # let nodes = farfield::local_session(2)?; let options = RpcOptions::default();
    /// # let server = Server::<u64, u64>::open_on_service(&nodes[0], "double", options, |_, request| 2 * request)?;
    /// # let client = Client::<u64, u64>::open(&nodes[1], "double", nodes[0].id(), options)?;
    /// # let ep = nodes[1].endpoint()?;
    /// let mut calls = ep.block_on(client.begin_batch(&ep, &[4, 5]))?;
    /// calls.retry()?;
    /// assert_eq!(ep.block_on(calls.wait())?.len(), 2);
    /// # drop(calls); Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of a put.
    pub fn retry(&mut self) -> Result<()> {
        self.frame.post_again().of(self.frame.link.object.path())
    }

    async fn wait_within(&mut self, mut limit: WaitLimit) -> Result<Vec<Result<Rep>>> {
        self.frame.replies(&mut limit).await
    }
}
