//! One node over UCX.

use super::carrier::Ucx;
use super::options::UcxOptions;
use crate::error::Result;
use crate::hosts::{self, HostFabric};

/// How a node joins a session over UCX.
///
/// ```
/// use farfield_fabric::ucx::{JoinOptions, Secret};
/// let (listen, secret) = ("10.0.0.1:7400".parse().expect("an address"), Secret::new(&[7; 32]).ok());
/// let options = JoinOptions { secret, ..JoinOptions::new("sensors", 0, 3, listen) };
/// assert_eq!((options.place, options.places, options.life), (0, 3, 0));
/// ```
pub type JoinOptions = hosts::HostOptions<UcxOptions>;

/// One node over UCX.
///
/// ```no_run
/// # use farfield_fabric::{ucx::*, *};
/// # fn main() -> Result<()> {
/// let (listen, secret) = ("10.0.0.1:7400".parse().expect("an address"), Secret::new(b"sixteen bytes or more").ok());
/// let node = UcxFabric::join(&JoinOptions { secret, ..JoinOptions::new("sensors", 0, 3, listen) })?;
/// println!("{} on {}", node.me(), node.name());
/// # Ok(()) }
/// ```
pub type UcxFabric = HostFabric<Ucx>;

/// Checks that UCX is on this machine, in a version that works.
///
/// ```
/// if let Err(error) = farfield_fabric::ucx::check_library() {
///     println!("no session over UCX: {error}"); // with the package to install
/// }
/// ```
///
/// # Errors
/// There is no library, or it is too old.
pub fn check_library() -> Result<()> {
    farfield_ucx_sys::Ucx::get().map(drop).map_err(|error| farfield_ucx_sys::UcxError::from(error).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether there is UCX on this machine or not.
    #[test]
    fn nodes_do_not_meet_without_a_secret() {
        let options = JoinOptions::new("no-secret", 0, 2, (std::net::Ipv4Addr::LOCALHOST, 0).into());
        let error = UcxFabric::join(&options).err().expect("it has no secret").to_string();
        assert!(error.contains("`no-secret`") && error.contains("FARFIELD_SECRET_FILE"), "{error}");
    }
}
