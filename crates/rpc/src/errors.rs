//! The errors that only calls have.

use farfield_core::Error;
use farfield_fabric::NodeId;

/// It is not known whether the call has had, or will have, its effect ([`Error::custom_ref`]). The request was put, and no reply has come.
///
/// After a timeout the call may still be waited for, or asked for again, by its [`Call`](crate::Call): its effect happens once. After the
/// server's death nothing can be known from it: its memory is lost. Ask another server what it knows, and call that only if a second effect
/// does no harm.
///
/// ```
/// # use farfield_rpc::EffectUnknown;
/// fn may_have_happened(error: &farfield::Error) -> bool {
///     error.custom_ref::<EffectUnknown>().is_some() // without it, nothing has happened
/// }
/// ```
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[error("no reply of {server} to call {number}, which may have had its effect: {because}")]
pub struct EffectUnknown {
    /// The server.
    pub server: NodeId,
    /// The number of the call in its slot.
    pub number: u64,
    /// Why it was not waited for any longer.
    #[source]
    pub because: Error,
}

/// All slots of this client are in use until the deadline, and nothing was sent ([`Error::custom_ref`]). Wait for some calls before more
/// begin, or open the server with a larger [`window`](crate::RpcOptions::window).
///
/// ```
/// # use farfield_rpc::WindowFull;
/// fn is_busy(error: &farfield::Error) -> bool {
///     error.custom_ref::<WindowFull>().is_some() && error.is_timeout()
/// }
/// ```
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[error("all {window} slots of this client are in use, by calls that {server} has not answered: {because}")]
pub struct WindowFull {
    /// The server.
    pub server: NodeId,
    /// The number of slots.
    pub window: usize,
    /// The timeout.
    #[source]
    pub because: Error,
}

/// The server was dropped, and its node is alive ([`Error::custom_ref`]). Open the client again when there is a new one.
///
/// ```
/// # use farfield_rpc::{Client, RpcOptions, Server, ServerClosed};
/// # let nodes = farfield::local_session(2)?; let options = RpcOptions::default();
/// let server = Server::<u64, u64>::open(&nodes[0], "double", options)?;
/// let client = Client::<u64, u64>::open(&nodes[1], "double", nodes[0].id(), options)?;
/// # let ep = nodes[1].endpoint()?;
/// drop(server);
/// let error = ep.block_on(client.call(&ep, &7)).unwrap_err();
/// assert_eq!(error.custom_ref(), Some(&ServerClosed { server: nodes[0].id() }));
/// # Ok::<(), farfield::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{server} has closed the server: open the client again when it is there again")]
pub struct ServerClosed {
    /// The server.
    pub server: NodeId,
}

/// The server has taken the request, and its handler has ended without a reply ([`Error::custom_ref`]): it has panicked, or an
/// [`Incoming`](crate::Incoming) was dropped. It may have had an effect, and has no other any more.
///
/// ```
/// # use farfield_rpc::{Client, NoReply, RpcOptions, Server};
/// # let nodes = farfield::local_session(2)?; let options = RpcOptions::default();
/// # let server = Server::<u64, u64>::open(&nodes[0], "double", options)?;
/// # let client = Client::<u64, u64>::open(&nodes[1], "double", nodes[0].id(), options)?;
/// # let (here, there) = (nodes[0].endpoint()?, nodes[1].endpoint()?);
/// let mut call = there.block_on(client.begin(&there, &7))?;
/// drop(here.block_on(server.accept(&here))?); // without a reply
/// server.try_serve(&here, |_, request| request)?; // says so to the client
/// let error = there.block_on(call.wait()).unwrap_err();
/// assert!(error.custom_ref::<NoReply>().is_some());
/// # drop(call); Ok::<(), farfield::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the handler of {server} has ended without a reply: look there for what it has done")]
pub struct NoReply {
    /// The server.
    pub server: NodeId,
}

/// The request had its effect, and the reply is longer than the limit ([`Error::custom_ref`]): open the server with a larger
/// [`reply_bytes_max`](crate::RpcOptions::reply_bytes_max).
///
/// ```
/// use farfield::NodeId;
/// let error = farfield_rpc::ReplyTooLong { server: NodeId(2), max_bytes: 256 };
/// assert!(error.to_string().contains("the limit of 256 bytes"));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{server} has handled the request, and its reply exceeds the limit of {max_bytes} bytes: raise `reply_bytes_max`"
)]
pub struct ReplyTooLong {
    /// The server.
    pub server: NodeId,
    /// The limit.
    pub max_bytes: usize,
}
