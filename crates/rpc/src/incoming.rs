//! Requests that are answered later.

use core::fmt;
use core::marker::PhantomData;
use std::sync::Arc;

use farfield_core::{Endpoint, Value};
use farfield_fabric::NodeId;
use smallvec::SmallVec;

use crate::layout::{Replies, Status};
use crate::requests::{Claim, Core};

/// The requests of one put, taken by [`Server::accept`](crate::Server::accept): one of
/// [`Client::call`](crate::Client::call), several of a batch. It may be sent to another thread, which answers when the
/// results are there. The client's other calls go on meanwhile.
///
/// Dropping it without a reply ends the call with [`NoReply`](crate::NoReply), when the server polls for requests the
/// next time.
///
/// ```
/// use farfield_rpc::{Client, RpcOptions, Server};
/// # let nodes = farfield::local_session(2)?; let options = RpcOptions::default();
/// let server = Server::<u64, u64>::open(&nodes[0], "double", options)?;
/// let client = Client::<u64, u64>::open(&nodes[1], "double", nodes[0].id(), options)?;
/// let (here, there) = (nodes[0].endpoint()?, nodes[1].endpoint()?);
/// let mut calls = [there.block_on(client.begin(&there, &1))?, there.block_on(client.begin(&there, &2))?];
/// let first = here.block_on(server.accept(&here))?;
/// let second = here.block_on(server.accept(&here))?;
/// for incoming in [second, first] {
///     let doubled: Vec<u64> = incoming.requests().iter().map(|request| 2 * request).collect();
///     incoming.reply(&here, doubled); // in another order
/// }
/// assert_eq!(there.block_on(calls[0].wait())?, 2);
/// assert_eq!(there.block_on(calls[1].wait())?, 4);
/// # drop(calls); Ok::<(), farfield::Error>(())
/// ```
#[must_use = "a call whose `Incoming` is dropped ends with an error"]
pub struct Incoming<Req: Value, Rep: Value> {
    core: Arc<Core>,
    /// None once it is answered.
    claim: Option<Claim>,
    client: NodeId,
    requests: SmallVec<[Req; 4]>,
    reply: PhantomData<fn() -> Rep>,
}

impl<Req: Value, Rep: Value> fmt::Debug for Incoming<Req, Rep> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Incoming").field("client", &self.client).field("requests", &self.requests.len()).finish()
    }
}

impl<Req: Value, Rep: Value> Incoming<Req, Rep> {
    pub(crate) fn new(core: Arc<Core>, claim: Claim, requests: SmallVec<[Req; 4]>) -> Incoming<Req, Rep> {
        Incoming { core, client: claim.client(), claim: Some(claim), requests, reply: PhantomData }
    }

    /// The node that has called.
    ///
    /// ```
    /// # use farfield_rpc::Incoming;
    /// fn log(incoming: &Incoming<u64, u64>) {
    ///     println!("{} asks for {} values", incoming.client(), incoming.requests().len());
    /// }
    /// ```
    pub fn client(&self) -> NodeId {
        self.client
    }

    /// Its requests, in order.
    ///
    /// ```
    /// # use farfield_rpc::Incoming;
    /// fn sum(incoming: &Incoming<u64, u64>) -> u64 {
    ///     incoming.requests().iter().sum()
    /// }
    /// ```
    pub fn requests(&self) -> &[Req] {
        &self.requests
    }

    /// Answers them, in order. Requests beyond the replies end with [`NoReply`](crate::NoReply); further replies are
    /// ignored.
    ///
    /// A put that is refused is repeated when the server polls for requests the next time.
    ///
    /// ```
    /// # use farfield::Endpoint;
    /// # use farfield_rpc::Incoming;
    /// fn answer(ep: &Endpoint, incoming: Incoming<u64, u64>) {
    ///     let doubled: Vec<u64> = incoming.requests().iter().map(|request| 2 * request).collect();
    ///     incoming.reply(ep, doubled);
    /// }
    /// ```
    pub fn reply(mut self, endpoint: &Endpoint, replies: impl IntoIterator<Item = Rep>) {
        let Some(claim) = self.claim else { return };
        let mut message = Replies::new();
        for reply in replies.into_iter().take(claim.values) {
            message.push(&reply, self.core.options.reply_bytes_max);
        }
        while message.len() < claim.values {
            message.push_status(Status::None);
        }
        // The iterator may have panicked before.
        self.claim = None;
        // If that is refused, the slot is given back so that a thread that serves puts it again.
        let _ = self.core.answer(endpoint, claim, &mut message);
    }
}

impl<Req: Value, Rep: Value> Drop for Incoming<Req, Rep> {
    fn drop(&mut self) {
        if let Some(claim) = self.claim.take() {
            self.core.give_up(claim);
        }
    }
}
