//! Events for the service thread.

use std::net::SocketAddr;

use super::protocol::{Ending, Happening};
use super::refusal::Refusal;
use super::wire::Hello;
use crate::ptr::NodeId;

/// What [`Control::serve`](super::Control::serve) reports.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Event {
    /// A node is connected, and has proved that it knows the session's secret, if there is one.
    Up(NodeId, Hello),
    /// Nothing was heard of it for longer than it may be silent.
    Suspected(NodeId),
    /// A suspected node was heard of again.
    Trusted(NodeId),
    /// A node's connection is over, for good.
    Down(NodeId, Ending),
    /// Bytes of the fabric.
    Payload(NodeId, Vec<u8>),
    /// Bytes of the layers above. Payloads and messages of one node arrive in the order in which it sent them.
    Message(NodeId, Vec<u8>),
    /// A node was refused, or refused this one: reported once for each place and reason.
    Refused(Refused),
}

/// A node was refused, or has refused this one. A refusal is not authenticated: it is for a person to read.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{} {} at {address}: {refusal}", self.peer(), if *.by_us { "was refused" } else { "has refused this node" })]
pub(crate) struct Refused {
    /// The place that it claims, or that has its address; unknown if it does not speak this version.
    pub place: Option<u16>,
    /// Where it is.
    pub address: SocketAddr,
    /// Whether this node has refused.
    pub by_us: bool,
    /// Why.
    pub refusal: Refusal,
}

impl Refused {
    fn peer(&self) -> String {
        self.place.map_or("somebody".into(), |place| format!("the node of place {place}"))
    }
}

/// What happened on the connection to a node that is, or was, up.
pub(super) fn report(node: NodeId, what: Happening, event: &mut dyn FnMut(Event)) {
    event(match what {
        Happening::Suspected => Event::Suspected(node),
        Happening::Trusted => Event::Trusted(node),
        Happening::Payload(bytes) => Event::Payload(node, bytes),
        Happening::Message(bytes) => Event::Message(node, bytes),
        Happening::Down(ending) => Event::Down(node, ending),
        Happening::Up(_) | Happening::Refused { .. } | Happening::Failed(_) => return, // these come before
    });
}
