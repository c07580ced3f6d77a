//! The options of collectives.

use farfield_core::{Error, ErrorKind, Result};

/// The sizes of the buffers. They must be the same on all members.
///
/// A member has `slots` buffers of `chunk_bytes` for each other member.
///
/// ```
/// # use farfield::CollectivesOptions;
/// let mut options = CollectivesOptions::default();
/// options.chunk_bytes = 4096; // longer data is sent in chunks of this size
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct CollectivesOptions {
    /// The most bytes that are sent at once, a multiple of 8. An element cannot be larger. Default: 32 KiB.
    pub chunk_bytes: usize,
    /// Chunks that may be under way from one member to another: an even number. Default: 4.
    pub slots: usize,
}

impl Default for CollectivesOptions {
    fn default() -> CollectivesOptions {
        CollectivesOptions { chunk_bytes: 32 << 10, slots: 4 }
    }
}

impl CollectivesOptions {
    const CHUNK_BYTES_MAX: usize = 1 << 30;
    const SLOTS_MAX: usize = 1 << 10;

    pub(crate) fn check(&self) -> Result<()> {
        let CollectivesOptions { chunk_bytes, slots } = *self;
        let why = if !chunk_bytes.is_multiple_of(8) || chunk_bytes == 0 || chunk_bytes > Self::CHUNK_BYTES_MAX {
            let max = Self::CHUNK_BYTES_MAX;
            format!("`chunk_bytes` is {chunk_bytes}: it has to be a multiple of 8, from 8 to {max}")
        } else if !slots.is_multiple_of(2) || slots == 0 || slots > Self::SLOTS_MAX {
            format!("`slots` is {slots}: it has to be an even number, from 2 to {}", Self::SLOTS_MAX)
        } else {
            return Ok(());
        };
        Err(Error::from(ErrorKind::Config { why }))
    }
}
