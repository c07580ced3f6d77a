//! One node over RDMA.

use super::carrier::Rdma;
use super::device::Device;
use super::options::VerbsOptions;
use crate::hosts::{self, HostFabric};

/// How a node joins a session over RDMA.
///
/// ```
/// use farfield_fabric::verbs::{JoinOptions, Secret};
/// let (listen, secret) = ("10.0.0.1:7400".parse().expect("an address"), Secret::new(&[7; 32]).ok());
/// let options = JoinOptions { secret, ..JoinOptions::new("sensors", 0, 3, listen) };
/// assert!(options.secret.is_some());
/// assert_eq!((options.place, options.places, options.life), (0, 3, 0));
/// ```
pub type JoinOptions = hosts::HostOptions<VerbsOptions>;

/// One node over RDMA.
///
/// ```no_run
/// # use farfield_fabric::{verbs::*, *};
/// # fn main() -> Result<()> {
/// let listen = "10.0.0.1:7400".parse().expect("an address");
/// let node = VerbsFabric::join(&JoinOptions::new("sensors", 0, 3, listen))?;
/// println!("{} uses {}", node.me(), node.device().info().name);
/// # Ok(()) }
/// ```
pub type VerbsFabric = HostFabric<Rdma>;

impl HostFabric<Rdma> {
    /// [`HostFabric::join`] with a device that is open.
    #[cfg(any(test, feature = "counted"))]
    pub(super) fn join_on(
        options: &JoinOptions,
        device: &std::sync::Arc<Device>,
    ) -> crate::Result<std::sync::Arc<VerbsFabric>> {
        HostFabric::join_with(options, Rdma::on(device)?)
    }

    /// The device that is used.
    ///
    /// ```
    /// # fn f(node: &farfield_fabric::verbs::VerbsFabric) {
    /// let is_hardware = !node.device().info().is_software;
    /// # }
    /// ```
    pub fn device(&self) -> &Device {
        self.connections().carrier().device()
    }

    /// A queue pair of its own to a word, for comparison with what an endpoint does.
    ///
    /// ```
    /// # use farfield_fabric::{verbs::VerbsFabric, *};
    /// # fn f(node: &VerbsFabric, word: RemotePtr<u64>) -> Result<()> {
    /// let mut bare = node.bare(word)?;
    /// let value = bare.run(Verb::Get, [0, 0]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// None is left, or it does not reach the word.
    #[cfg(any(test, feature = "bare"))]
    pub fn bare(&self, word: crate::RemotePtr<u64>) -> crate::Result<super::bare::Bare> {
        use crate::fabric::Transport;
        let lane = self.connections().open_lane()?;
        super::bare::Bare::new(lane, word).map_err(|code| self.explain(code, word.cast(), 8))
    }
}
