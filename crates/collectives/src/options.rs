//! The options of collectives.

use farfield_core::toolkit::{buf_bytes_max, region_bytes};
use farfield_core::{Error, ErrorKind, Node, Result};

use crate::links::{HEADER, WORDS_BYTES};

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
    /// The most bytes that are sent at once, a multiple of 8. An element cannot be larger. With 24 bytes more they have
    /// to fit a buffer of an endpoint ([`Builder::pool_bytes_max`](farfield_core::Builder::pool_bytes_max)). Default:
    /// 32 KiB.
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
    const SLOTS_MAX: usize = 1 << 10;

    pub(crate) fn check(&self, node: &Node) -> Result<()> {
        let CollectivesOptions { chunk_bytes, slots } = *self;
        // A chunk is sent from one buffer, with its header.
        let max = buf_bytes_max(node).saturating_sub(8 * HEADER).max(8);
        let why = if !chunk_bytes.is_multiple_of(8) || chunk_bytes == 0 {
            format!("`chunk_bytes` is {chunk_bytes}: it has to be a multiple of 8, at least 8")
        } else if chunk_bytes > max {
            format!(
                "`chunk_bytes` is {chunk_bytes}, and the buffers of this node's endpoints hold {max} at most: reduce it, \
                 or raise `pool_bytes_max`"
            )
        } else if !slots.is_multiple_of(2) || slots == 0 || slots > Self::SLOTS_MAX {
            format!("`slots` is {slots}: it has to be an even number, from 2 to {}", Self::SLOTS_MAX)
        } else {
            return Ok(());
        };
        Err(Error::from(ErrorKind::Config { why }))
    }

    /// Words of a slot; and the bytes of the slots and of the words for `others` members.
    pub(crate) fn sizes(&self, others: usize) -> Result<(usize, usize, usize)> {
        let slot_words = HEADER + self.chunk_bytes / 8;
        // A node that is alone has no links, and a region is never empty.
        let slots_bytes = region_bytes(others * self.slots, slot_words, "`chunk_bytes` or `slots`")?.max(8);
        let words_bytes = region_bytes(others.max(1), WORDS_BYTES / 8, "the number of members")?;
        Ok((slot_words, slots_bytes, words_bytes))
    }
}
