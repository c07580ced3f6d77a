//! How a node joins a session between hosts.

use std::net::SocketAddr;

use super::control::{Limits, Secret};

/// How a node joins a session between hosts. `D` has the options of what carries its operations.
///
/// ```
/// use farfield_fabric::{HostOptions, ucx::UcxOptions};
/// let device = UcxOptions { devices: Some("eth0".into()), ..UcxOptions::default() };
/// let listen = "10.0.0.1:7400".parse().expect("an address");
/// let options = HostOptions { device, ..HostOptions::new("sensors", 0, 3, listen) };
/// assert!(options.secret.is_none()); // to be set: over UCX a node of several does not join without
/// ```
#[derive(Clone, Debug)]
pub struct HostOptions<D> {
    /// The session's name, the same for all.
    pub session: String,
    /// This node's place.
    pub place: u16,
    /// How many nodes the session has at a time.
    pub places: u16,
    /// The number of earlier nodes at this place: a dead node never returns under its number.
    pub life: u16,
    /// Where this node listens for the others.
    pub listen: SocketAddr,
    /// The addresses at which the nodes of all places listen.
    /// [`HostFabric::meet`](crate::HostFabric::meet) may set them later.
    pub addresses: Vec<SocketAddr>,
    /// What all nodes know; none only if none of them has one. Over UCX several nodes need one.
    pub secret: Option<Secret>,
    /// The device or the transport, and how it is used.
    pub device: D,
    /// The most memory of one group, in bytes. Address space for it is reserved, memory is taken as it is needed.
    pub group_bytes_max: usize,
    /// How long things may take.
    pub limits: Limits,
    /// Seed of random choices; random if none is given.
    pub seed: Option<u64>,
}

impl<D: Default> HostOptions<D> {
    /// The node at `place` of `places` in a session, which listens there.
    ///
    /// ```
    /// # use farfield_fabric::verbs::JoinOptions;
    /// let listen = "127.0.0.1:0".parse().expect("an address"); // on a port of the system's choice
    /// let options = JoinOptions::new("sensors", 1, 3, listen);
    /// assert!(options.addresses.is_empty()); // they are known later
    /// ```
    pub fn new(session: impl Into<String>, place: u16, places: u16, listen: SocketAddr) -> HostOptions<D> {
        HostOptions {
            session: session.into(),
            place,
            places,
            life: 0,
            listen,
            addresses: Vec::new(),
            secret: None,
            device: D::default(),
            group_bytes_max: 64 << 30,
            limits: Limits::default(),
            seed: None,
        }
    }
}
