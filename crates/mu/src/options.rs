//! The options of a replicated log.

use farfield_core::toolkit::{buf_bytes_max, region_bytes};
use farfield_core::{Error, ErrorKind, Node, Result};

use crate::layout::{HEADER, SLOTS_AT};

/// The sizes of a replicated log. They must be the same on all replicas.
///
/// ```
/// use farfield_mu::LogOptions;
/// let mut options = LogOptions::default();
/// options.entry_bytes_max = 1024; // a longer entry is refused
/// options.entries = 4096; // the leader may be so many entries ahead of the slowest live reader
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogOptions {
    /// The longest entry in bytes. With 40 bytes more it has to fit a buffer of an endpoint
    /// ([`Builder::pool_bytes_max`](farfield_core::Builder::pool_bytes_max)). Default: 256.
    pub entry_bytes_max: usize,
    /// Slots of the log, at least 2. A slot is used again when all live replicas have acknowledged its entry. Default:
    /// 1024.
    pub entries: usize,
}

impl Default for LogOptions {
    fn default() -> LogOptions {
        LogOptions { entry_bytes_max: 256, entries: 1024 }
    }
}

impl LogOptions {
    const ENTRIES_MAX: usize = 1 << 24;

    pub(crate) fn check(&self, node: &Node) -> Result<()> {
        let LogOptions { entry_bytes_max, entries } = *self;
        let max = buf_bytes_max(node).saturating_sub(8 * HEADER).max(8);
        let why = if entry_bytes_max == 0 || entry_bytes_max > max {
            format!(
                "`entry_bytes_max` is {entry_bytes_max}: it has to be from 1 to {max}, which the buffers of this node's \
                 endpoints hold; `pool_bytes_max` raises that"
            )
        } else if !(2..=Self::ENTRIES_MAX).contains(&entries) {
            format!("`entries` is {entries}: it has to be from 2 to {}", Self::ENTRIES_MAX)
        } else {
            return Ok(());
        };
        Err(Error::from(ErrorKind::Config { why }))
    }

    /// Words of a slot.
    pub(crate) fn slot_words(&self) -> usize {
        HEADER + self.entry_bytes_max.div_ceil(8)
    }

    /// Bytes of the log on a replica: its head, the slots, and a word for each rank.
    pub(crate) fn log_bytes(&self, ranks: usize) -> Result<usize> {
        Ok(SLOTS_AT + region_bytes(self.entries, self.slot_words(), "`entry_bytes_max` or `entries`")? + 8 * ranks)
    }
}
