//! Why nodes refuse each other.
//!
//! ```text
//! reason                  what it says
//! 1 version, 4 places     of the refusing node u16, of the refused u16
//! 2 layout, 3 session     of the refusing node text, of the refused text
//! 5 number                node u16, place u16             6 address    wanted u16, found u16
//! 7 caller                caller u16, called u16          8 secret     nothing
//! 9 taken                 place u16, node u16            10 stale      node u16, next u16
//! ```

use super::codec::{Malformed, Rest, put_name};
use crate::ptr::NodeId;

/// Why a node does not let another one in. It reads the same on both sides.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum Refusal {
    /// Another version of this protocol.
    #[error(
        "the refusing node speaks version {refuser} of the control protocol, the refused one version {refused}: run \
         the same build of Farfield on every node"
    )]
    Version {
        /// Of the one that refuses.
        refuser: u16,
        /// Of the other.
        refused: u16,
    },
    /// Another layout.
    #[error(
        "the refusing node runs layout {refuser}, the refused one layout {refused}: run the same build of Farfield on \
         every node, on the same fabric"
    )]
    Layout {
        /// Of the one that refuses.
        refuser: String,
        /// Of the other.
        refused: String,
    },
    /// Another session.
    #[error(
        "the refusing node belongs to session `{refuser}`, the refused one to session `{refused}`: give both the same \
         name, or each session addresses of its own"
    )]
    Session {
        /// Of the one that refuses.
        refuser: String,
        /// Of the other.
        refused: String,
    },
    /// Another number of places.
    #[error(
        "the refusing node says that the session has {refuser} places, the refused one says {refused}: give all nodes \
         the same list of addresses"
    )]
    Places {
        /// Of the one that refuses.
        refuser: u16,
        /// Of the other.
        refused: u16,
    },
    /// A number that no life of that place has.
    #[error(
        "{node} cannot be at place {place}: the lives of a place have its number, or more by a multiple of the places"
    )]
    Number {
        /// The number.
        node: NodeId,
        /// The place.
        place: u16,
    },
    /// The list of addresses is wrong.
    #[error(
        "place {wanted} was to be at an address where place {found} is: give all nodes the same list of addresses, and \
         each its own place"
    )]
    Address {
        /// The place that was called, or answered for.
        wanted: u16,
        /// The place that is there.
        found: u16,
    },
    /// The lower place has called.
    #[error("place {caller} has called place {called}: of two nodes the one of the higher place calls")]
    Caller {
        /// The caller.
        caller: u16,
        /// The called place.
        called: u16,
    },
    /// The secrets differ, or one side has none.
    #[error(
        "the shared secret of one of the two nodes is wrong or missing: give all nodes of the session the \
         same one, or none"
    )]
    Secret,
    /// Another node of that place runs.
    #[error(
        "place {place} is taken: {node} is connected there. Start one process for each place; the next life of a place \
         comes in when the one before it is gone"
    )]
    Taken {
        /// The place.
        place: u16,
        /// The node that is there.
        node: NodeId,
    },
    /// That life of the place is over.
    #[error("{node} was in this session before: who returns has another number, for this place {next} or a later one")]
    Stale {
        /// The life that is over.
        node: NodeId,
        /// The next one.
        next: NodeId,
    },
}

impl Refusal {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.reason());
        let numbers = |out: &mut Vec<u8>, a: u16, b: u16| {
            out.extend_from_slice(&a.to_le_bytes());
            out.extend_from_slice(&b.to_le_bytes());
        };
        match self {
            Refusal::Layout { refuser, refused } | Refusal::Session { refuser, refused } => {
                put_name(out, refuser);
                put_name(out, refused);
            }
            Refusal::Version { refuser, refused } | Refusal::Places { refuser, refused } => {
                numbers(out, *refuser, *refused);
            }
            Refusal::Number { node, place } => numbers(out, node.0, *place),
            Refusal::Address { wanted, found } => numbers(out, *wanted, *found),
            Refusal::Caller { caller, called } => numbers(out, *caller, *called),
            Refusal::Secret => {}
            Refusal::Taken { place, node } => numbers(out, *place, node.0),
            Refusal::Stale { node, next } => numbers(out, node.0, next.0),
        }
    }

    /// The number of its kind.
    pub(super) fn reason(&self) -> u8 {
        match self {
            Refusal::Version { .. } => 1,
            Refusal::Layout { .. } => 2,
            Refusal::Session { .. } => 3,
            Refusal::Places { .. } => 4,
            Refusal::Number { .. } => 5,
            Refusal::Address { .. } => 6,
            Refusal::Caller { .. } => 7,
            Refusal::Secret => 8,
            Refusal::Taken { .. } => 9,
            Refusal::Stale { .. } => 10,
        }
    }

    pub(super) fn decode(rest: &mut Rest<'_>) -> Result<Refusal, Malformed> {
        Ok(match rest.u8()? {
            1 => Refusal::Version { refuser: rest.u16()?, refused: rest.u16()? },
            2 => Refusal::Layout { refuser: rest.name()?, refused: rest.name()? },
            3 => Refusal::Session { refuser: rest.name()?, refused: rest.name()? },
            4 => Refusal::Places { refuser: rest.u16()?, refused: rest.u16()? },
            5 => Refusal::Number { node: NodeId(rest.u16()?), place: rest.u16()? },
            6 => Refusal::Address { wanted: rest.u16()?, found: rest.u16()? },
            7 => Refusal::Caller { caller: rest.u16()?, called: rest.u16()? },
            8 => Refusal::Secret,
            9 => Refusal::Taken { place: rest.u16()?, node: NodeId(rest.u16()?) },
            10 => Refusal::Stale { node: NodeId(rest.u16()?), next: NodeId(rest.u16()?) },
            reason => return Err(Malformed::Reason(reason)),
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// One refusal of each kind.
    pub(in super::super) fn refusals() -> Vec<Refusal> {
        let name = |name: &str| name.to_string();
        vec![
            Refusal::Version { refuser: 1, refused: 7 },
            Refusal::Layout { refuser: name("farfield-verbs-1"), refused: name("farfield-verbs-2") },
            Refusal::Session { refuser: name("night"), refused: name("day") },
            Refusal::Places { refuser: 3, refused: 4 },
            Refusal::Number { node: NodeId(5), place: 1 },
            Refusal::Address { wanted: 1, found: 2 },
            Refusal::Caller { caller: 1, called: 2 },
            Refusal::Secret,
            Refusal::Taken { place: 1, node: NodeId(4) },
            Refusal::Stale { node: NodeId(1), next: NodeId(4) },
        ]
    }
}
