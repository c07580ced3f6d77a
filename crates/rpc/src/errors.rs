//! The errors that only calls have, and what each error says about the call's effect.

use farfield_core::Error;
use farfield_fabric::NodeId;

/// What is known of a call's effect after its error: [`effect_of`].
///
/// ```
/// use farfield::{Error, NodeId};
/// use farfield_rpc::{Effect, NoReply, effect_of};
/// let advice = |error: &Error| match effect_of(error) {
///     Effect::None => "call again",
///     Effect::Unknown => "look for the effect first",
///     Effect::Done => "do not call again",
/// };
/// let error = Error::custom(NoReply { server: NodeId(2) });
/// assert_eq!(advice(&error), "look for the effect first");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// It has none, and will have none: call again, later or elsewhere.
    None,
    /// It may have had its effect, or may still have it, once at most.
    Unknown,
    /// The server's handler has had the request, and has ended.
    Done,
}

/// What an error of a call says about its effect. For errors of [`Client::begin`](crate::Client::begin) and of waits,
/// too.
///
/// ```
/// use farfield::NodeId;
/// use farfield_rpc::{Effect, NoReply, ReplyTooLong, effect_of};
/// fn may_call_again(error: &farfield::Error) -> bool {
///     effect_of(error) == Effect::None
/// }
/// let server = NodeId(2);
/// assert!(!may_call_again(&farfield::Error::custom(NoReply { server })));
/// assert_eq!(effect_of(&farfield::Error::custom(ReplyTooLong { server, max_bytes: 8 })), Effect::Done);
/// ```
pub fn effect_of(error: &Error) -> Effect {
    let is_unknown = error.custom_ref::<EffectUnknown>().is_some()
        || error.custom_ref::<NoReply>().is_some()
        || error.custom_ref::<CallEnded>().is_some();
    match error {
        _ if is_unknown => Effect::Unknown,
        _ if error.custom_ref::<ReplyTooLong>().is_some() => Effect::Done,
        _ if error.custom_ref::<ReplyMalformed>().is_some() => Effect::Done,
        _ => Effect::None,
    }
}

/// It is not known whether the call has had, or will have, its effect ([`Error::custom_ref`]). The request was put, and
/// no reply has come.
///
/// After a timeout the call may still be waited for, or asked for again, by its [`Call`](crate::Call): its effect
/// happens once. After the server's death nothing can be known from it: its memory is lost. Ask another server what it
/// knows, and call that only if a second effect does no harm.
///
/// ```
/// # use farfield_rpc::EffectUnknown;
/// fn may_be_waited_for(error: &farfield::Error) -> bool {
///     error.custom_ref::<EffectUnknown>().is_some_and(|unknown| unknown.because.is_timeout())
/// }
/// ```
///
/// Of a server that was dropped, `because` is [`ServerClosed`]:
///
/// ```
/// # use farfield_rpc::{EffectUnknown, ServerClosed};
/// fn is_closed(error: &farfield::Error) -> bool {
///     let because = error.custom_ref::<EffectUnknown>().map_or(error, |unknown| &unknown.because);
///     because.custom_ref::<ServerClosed>().is_some()
/// }
/// ```
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[error(
    "no reply of {server} to call {number} of slot {slot}, which may have had its effect: after a timeout wait for the same call again, \
     otherwise find out from the data ({because})"
)]
pub struct EffectUnknown {
    /// The server.
    pub server: NodeId,
    /// The slot of the call.
    pub slot: usize,
    /// The number of the call in its slot.
    pub number: u64,
    /// Why it was not waited for any longer.
    #[source]
    pub because: Error,
}

/// All slots of this client are in use until the deadline, and nothing was sent ([`Error::custom_ref`]). Wait for some
/// calls before more begin, or open the server with a larger [`window`](crate::RpcOptions::window).
///
/// ```
/// # use farfield_rpc::WindowFull;
/// fn is_busy(error: &farfield::Error) -> bool {
///     error.custom_ref::<WindowFull>().is_some() && error.is_timeout()
/// }
/// ```
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[error(
    "all {window} slots of this client are in use, by calls that {server} has not answered: wait for some of them, or open server and \
     clients with a larger `window` ({because})"
)]
pub struct WindowFull {
    /// The server.
    pub server: NodeId,
    /// The number of slots.
    pub window: usize,
    /// The timeout.
    #[source]
    pub because: Error,
}

/// The request of a [`call_many`](crate::Client::call_many) was not sent before the deadline, and nothing has happened
/// ([`Error::custom_ref`]): earlier ones have not been answered.
///
/// ```
/// # use farfield_rpc::NotSent;
/// fn left<T>(results: &[farfield::Result<T>]) -> usize {
///     let is_left = |result: &&farfield::Result<T>| matches!(result, Err(error) if error.custom_ref::<NotSent>().is_some());
///     results.iter().filter(is_left).count()
/// }
/// ```
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[error("the request was not sent to {server}: call again, with more time or fewer requests ({because})")]
pub struct NotSent {
    /// The server.
    pub server: NodeId,
    /// The timeout.
    #[source]
    pub because: Error,
}

/// The server was dropped, and its node is alive ([`Error::custom_ref`]). Open the client again when there is a new
/// one. A call that was under way fails with [`EffectUnknown`], because of this.
///
/// ```
/// # use farfield_rpc::{Client, EffectUnknown, RpcOptions, Server, ServerClosed};
/// # let nodes = farfield::local_session(2)?; let options = RpcOptions::default();
/// let server = Server::<u64, u64>::open(&nodes[0], "double", options)?;
/// let client = Client::<u64, u64>::open(&nodes[1], "double", nodes[0].id(), options)?;
/// # let ep = nodes[1].endpoint()?;
/// drop(server);
/// let error = ep.block_on(client.call(&ep, &7)).unwrap_err();
/// // A call that the client had begun before it learned of that:
/// let because = error.custom_ref::<EffectUnknown>().map_or(&error, |unknown| &unknown.because);
/// assert_eq!(because.custom_ref(), Some(&ServerClosed { server: nodes[0].id() }));
/// # Ok::<(), farfield::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{server} has closed the server: open the client again when it is there again")]
pub struct ServerClosed {
    /// The server.
    pub server: NodeId,
}

/// The server has taken the request, and its handler has ended without a reply ([`Error::custom_ref`]): it has
/// panicked, or an [`Incoming`](crate::Incoming) was dropped. It may have had an effect, and has no other any more.
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

/// The request had its effect, and the reply is longer than the limit ([`Error::custom_ref`]): open the server with a
/// larger [`reply_bytes_max`](crate::RpcOptions::reply_bytes_max).
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

/// The server has found the request to be no value of its type, and has not handled it ([`Error::custom_ref`]). Its
/// type decodes it in another way than the client's encodes it.
///
/// ```
/// let error = farfield_rpc::RequestMalformed { server: farfield::NodeId(2) };
/// assert!(error.to_string().contains("not handled"));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{server} has not handled the request, which is no value of its type: use the same type on both sides")]
pub struct RequestMalformed {
    /// The server.
    pub server: NodeId,
}

/// The request had its effect, and the reply is no value of its type ([`Error::custom_ref`]): the client's type decodes
/// it in another way than the server's encodes it.
///
/// ```
/// let error = farfield_rpc::ReplyMalformed { server: farfield::NodeId(2) };
/// assert!(error.to_string().contains("has handled the request"));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{server} has handled the request, and its reply is no value of its type: use the same type on both sides")]
pub struct ReplyMalformed {
    /// The server.
    pub server: NodeId,
}

/// The call has ended: an earlier wait has returned its reply, or its error ([`Error::custom_ref`]).
///
/// ```
/// # use farfield_rpc::{CallEnded, Client, RpcOptions, Server};
/// # let nodes = farfield::local_session(2)?; let options = RpcOptions::default();
/// # let server = Server::<u64, u64>::open_on_service(&nodes[0], "double", options, |_, request| 2 * request)?;
/// # let client = Client::<u64, u64>::open(&nodes[1], "double", nodes[0].id(), options)?;
/// # let ep = nodes[1].endpoint()?;
/// let mut call = ep.block_on(client.begin(&ep, &4))?;
/// assert_eq!(ep.block_on(call.wait())?, 8);
/// assert!(ep.block_on(call.wait()).unwrap_err().custom_ref::<CallEnded>().is_some());
/// # drop(call); Ok::<(), farfield::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the call of {server} has ended: its result was returned before")]
pub struct CallEnded {
    /// The server.
    pub server: NodeId,
}
