//! The description of a node, and its time limits.

use std::net::SocketAddr;
use std::time::Duration;

use super::secret::Secret;
use crate::ptr::NodeId;

/// How long things may take.
///
/// ```
/// use {farfield_fabric::verbs::Limits, std::time::Duration};
/// let patient = Limits { silence: Duration::from_secs(2), ..Limits::default() };
/// assert!(patient.beat < patient.silence);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// An idle node sends a beat so often.
    pub beat: Duration,
    /// A node that is silent for so long is suspected.
    pub silence: Duration,
    /// The time from a call until both sides have proved their identity.
    pub handshake: Duration,
    /// From the first byte of a frame to its last.
    pub frame: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            beat: Duration::from_millis(100),
            silence: Duration::from_millis(500),
            handshake: Duration::from_secs(5),
            frame: Duration::from_secs(5),
        }
    }
}

/// The description of a node: its session, number, address, secret and time limits.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// The session's name, the same for all.
    pub session: String,
    /// The layout of the fabric's memory and payloads, the same for all.
    pub layout: String,
    /// This node's number.
    pub node: NodeId,
    /// How many places the session has. The node's place is the rest of its number by that.
    pub places: u16,
    /// Which process this is.
    pub incarnation: u64,
    /// Where it listens. With port 0 the system chooses one, see [`Control::address`](super::Control::address).
    pub listen: SocketAddr,
    /// The secret of all nodes; none only if none of them has one.
    pub secret: Option<Secret>,
    /// How long things may take.
    pub limits: Limits,
}
