//! The errors that only replicated data types have.

use farfield_fabric::{Error, ErrorKind, NodeId};

/// Whether a put has to be repeated: it was refused for want of memory, the node does not answer, or it has revoked
/// this node's rights, since it counts this one as dead or will learn that it is dead itself. The members decide about
/// it.
pub(crate) fn is_passing(error: &Error) -> bool {
    error.is_refused() || error.is_unreachable() || matches!(error.kind(), ErrorKind::Revoked { .. })
}

/// A replica has to refuse a call that is permissible where it was made: the type declares too little coordination
/// ([`Error::custom_ref`](farfield_core::Error::custom_ref)). The replicas may differ, and all further calls of this
/// one fail. Mend [`DataType::coordination`](crate::DataType::coordination); `farfield_hamband::check` finds the
/// example.
///
/// ```
/// use farfield_hamband::WrongCoordination;
/// let wrong = WrongCoordination { method: "Withdraw", from: farfield::NodeId(2), refusal: "the balance is 3".into() };
/// assert!(wrong.to_string().starts_with("`Withdraw` of node 2 is not permissible here (the balance is 3)"));
/// ```
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "`{method}` of {from} is not permissible here ({refusal}): it conflicts with a method, or depends on one, and the type's \
     `coordination` does not say so"
)]
pub struct WrongCoordination {
    /// The method.
    pub method: &'static str,
    /// The node that has made the call.
    pub from: NodeId,
    /// Why it is refused.
    pub refusal: String,
}

/// The leader has refused a conflicting call, and its reason is longer than
/// [`ReplicatedOptions::refusal_bytes_max`](crate::ReplicatedOptions::refusal_bytes_max)
/// ([`Error::custom_ref`](farfield_core::Error::custom_ref)). Nothing has changed.
///
/// ```
/// assert!(farfield_hamband::RefusedAtLength.to_string().contains("`refusal_bytes_max`"));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the call is refused, for a reason that is too long to be sent: raise `refusal_bytes_max`")]
pub struct RefusedAtLength;

/// Two calls of a summarisation group have no summary, or no remainder
/// ([`Error::custom_ref`](farfield_core::Error::custom_ref)).
///
/// ```
/// use farfield_hamband::NoSummary;
/// assert!(NoSummary { method: "Add" }.to_string().contains("`Add`"));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "`{method}` is in a summarisation group, and `summarise` or `remainder` returns `None` for its calls: implement both, or take \
     it out of `Coordination::summarised`"
)]
pub struct NoSummary {
    /// The method.
    pub method: &'static str,
}
