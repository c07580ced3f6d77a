//! Errors of the owned handles.

use core::fmt;

use crate::{ADDRESS_BYTES_MAX, LoadError, UCS_OK, Ucx, ucs_status_t};

/// How a call or an operation of UCX ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Status(pub ucs_status_t);

impl Status {
    /// An error for any status but `UCS_OK`.
    pub(crate) fn of(self, call: &'static str) -> Result<(), UcxError> {
        if self.0 == UCS_OK { Ok(()) } else { Err(UcxError::Call { call, status: self }) }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Ucx::if_loaded() {
            Some(ucx) => write!(f, "{} (status {})", ucx.status_text(self.0), self.0),
            None => write!(f, "status {}", self.0),
        }
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Status({})", self.0)
    }
}

/// Why something of UCX could not be done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UcxError {
    /// There is no UCX.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The transports have no device.
    #[error(
        "UCX has no device for the transports {transports} on {devices}; `ucx_info -d` (package ucx-utils) lists the \
         devices that there are"
    )]
    NoDevice {
        /// The transports of the options.
        transports: String,
        /// The devices of the options.
        devices: String,
    },
    /// The library was built for one thread only.
    #[error("this UCX was built without --enable-mt: install the distribution's package, or build it with that")]
    NoThreads,
    /// An option cannot be given to C.
    #[error("the option {name} of UCX has a zero byte in it")]
    ZeroByte {
        /// The option.
        name: String,
    },
    /// UCX does not take the value of an option.
    #[error("UCX does not take {value:?} as its option {name}: {status}")]
    Option {
        /// The option.
        name: String,
        /// Its value.
        value: String,
        /// The status that UCX reported.
        status: Status,
    },
    /// A call or an operation has failed.
    #[error("{call} failed: {status}")]
    Call {
        /// The function of UCX.
        call: &'static str,
        /// Its status.
        status: Status,
    },
    /// The connection is gone, and the endpoint is of no use any more.
    #[error("the endpoint has failed: {status}; drop it, and connect again if the peer is there")]
    EndpointFailed {
        /// The status that UCX reported.
        status: Status,
    },
    /// A handle of another worker.
    #[error("the handle is that of another worker")]
    OtherWorker,
    /// A peer's address is empty or too long.
    #[error("{bytes} bytes are no address of a worker: one has 1 to {ADDRESS_BYTES_MAX}")]
    NoAddress {
        /// Its length.
        bytes: usize,
    },
    /// A message that is too long.
    #[error("a {part} of {bytes} bytes is longer than the {limit} bytes that are possible")]
    TooLong {
        /// `header` or `message`.
        part: &'static str,
        /// Its length.
        bytes: usize,
        /// The longest one.
        limit: usize,
    },
    /// The system cannot wait for a worker's events.
    #[error("waiting for events of UCX failed: {0}")]
    Wait(String),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::UCS_ERR_CONNECTION_RESET;

    #[test]
    fn errors_say_the_call_and_the_status() {
        let text = Status(UCS_ERR_CONNECTION_RESET).of("ucp_ep_create").unwrap_err().to_string();
        assert!(text.starts_with("ucp_ep_create failed: ") && text.contains("-25"), "{text}");
        assert_eq!(Status(UCS_OK).of("ucp_ep_create"), Ok(()));
    }
}
