//! What an RDMA device refuses, and why.

use std::io;

use farfield_verbs_sys::LoadError;

/// Why a device cannot be used.
///
/// ```
/// use farfield_fabric::{Error, ErrorKind, verbs::VerbsError};
/// let error = Error::from(VerbsError::NoDevice);
/// assert!(matches!(error.kind(), ErrorKind::System { what: "RDMA", .. }));
/// assert!(error.to_string().contains("no RDMA device"));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// There are no libraries.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// No device at all.
    #[error(
        "this machine has no RDMA device: load the driver of the network card, or add a software device \
         (`rdma link add rxe0 type rxe netdev eth0`); see `farfield doctor`"
    )]
    NoDevice,
    /// No device of that name.
    #[error("there is no RDMA device `{name}`, only: {there}")]
    NoSuchDevice {
        /// The name asked for.
        name: String,
        /// The names that there are.
        there: String,
    },
    /// No port fits.
    #[error("no port of {devices} can be used: {why}")]
    NoPort {
        /// Names of the devices.
        devices: String,
        /// The defect of each port.
        why: String,
    },
    /// Not enough memory may be locked.
    #[error(
        "cannot register {bytes} bytes with {device}: this process may lock {limit} bytes of memory: raise the limit \
         (`ulimit -l unlimited`, or `memlock` in /etc/security/limits.conf), or open smaller objects"
    )]
    LockedMemory {
        /// The device.
        device: String,
        /// How much was to be registered.
        bytes: usize,
        /// The limit.
        limit: u64,
    },
    /// No packet from the port reaches the peer's.
    #[error("{device} has no way to the peer: {why}")]
    NoWay {
        /// The device.
        device: String,
        /// The obstacle, and the remedy.
        why: String,
    },
    /// A call failed.
    #[error("{what} on {device}: {source}")]
    Call {
        /// The call, and what to do if that is known.
        what: &'static str,
        /// The device.
        device: String,
        /// The system's error.
        source: io::Error,
    },
}

impl From<VerbsError> for crate::Error {
    fn from(error: VerbsError) -> crate::Error {
        crate::ErrorKind::System { what: "RDMA", why: error.to_string() }.into()
    }
}

pub(super) fn call(what: &'static str, device: &str, source: io::Error) -> VerbsError {
    VerbsError::Call { what, device: device.to_owned(), source }
}
