//! The options that a server and its clients agree on.

use farfield_core::toolkit::{ErrorContext, at_least_one};
use farfield_core::{Error, ErrorKind, Result};

/// The most requests of one put.
pub(crate) const BATCH_MAX: usize = 32;

/// The sizes of a server's memory. All clients of the server name the same.
///
/// ```
/// use farfield_rpc::RpcOptions;
/// let options = RpcOptions { window: 4, ..RpcOptions::default() };
/// assert_eq!((options.request_bytes_max, options.batch_max), (256, 8));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RpcOptions {
    /// The longest request, if its type has several lengths ([`ByteString`](farfield_core::ByteString), `Encoded`).
    /// Default: 256.
    pub request_bytes_max: usize,
    /// The longest reply, if its type has several lengths. Default: 256.
    pub reply_bytes_max: usize,
    /// The slots of each client node: the most calls, or batches of calls, that all its threads together have under
    /// way. Default: 16.
    pub window: usize,
    /// The most requests that one put carries ([`Client::call_many`](crate::Client::call_many)), 32 at most. Each slot
    /// has room for so many of the longest. Default: 8.
    pub batch_max: usize,
}

impl Default for RpcOptions {
    fn default() -> RpcOptions {
        RpcOptions { request_bytes_max: 256, reply_bytes_max: 256, window: 16, batch_max: 8 }
    }
}

impl RpcOptions {
    pub(crate) fn check(&self, path: &str) -> Result<()> {
        at_least_one(&[("window", self.window), ("batch_max", self.batch_max)]).of(path)?;
        if self.batch_max > BATCH_MAX {
            let why = format!("`batch_max` has to be at most {BATCH_MAX}");
            return Err(Error::from(ErrorKind::Config { why }).of(path));
        }
        Ok(())
    }
}
