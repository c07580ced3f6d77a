//! The metadata word of a write: its place in the order of all writes, and where its value is.
//!
//! ```text
//! 63                          24 23        17  16 15           0
//! ┌─────────────────────────────┬────────────┬───┬──────────────┐
//! │ timestamp (40)              │ writer (7) │ V │ buffer (16)  │   0: nothing was written
//! └─────────────────────────────┴────────────┴───┴──────────────┘
//! ```
//!
//! Timestamp and writer name a write, and order it. V is set when the timestamp is known to be *fresh*: higher than those
//! of all writes that had ended when this one began. The buffer is one of the writer's own, with the same number on all
//! memory nodes. It decides nothing in the order.

use crate::errors::TimestampsUsedUp;

/// Writers that can be told apart.
pub(crate) const WRITERS_MAX: usize = 1 << WRITER_BITS;
/// Buffers of one writer.
pub(crate) const BUFFERS_MAX: usize = 1 << BUFFER_BITS;

const BUFFER_BITS: u32 = 16;
const WRITER_BITS: u32 = 7;
const VERIFIED: u64 = 1 << BUFFER_BITS;
const WRITER_SHIFT: u32 = BUFFER_BITS + 1;
const TIMESTAMP_SHIFT: u32 = WRITER_SHIFT + WRITER_BITS;
/// The last timestamp of a guess, in microseconds: twelve days. A version that has to be later than a guess has room beyond.
pub(crate) const TIMESTAMP_MAX: u64 = (1 << (64 - TIMESTAMP_SHIFT)) - 1 - (1 << 24);

/// A metadata word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Version(pub(crate) u64);

impl Version {
    /// A write whose timestamp is a guess.
    pub(crate) fn guessed(timestamp: u64, writer: usize, buffer: u16) -> Result<Version, TimestampsUsedUp> {
        debug_assert!(writer < WRITERS_MAX);
        if timestamp > TIMESTAMP_MAX {
            return Err(TimestampsUsedUp);
        }
        Ok(Version(timestamp << TIMESTAMP_SHIFT | (writer as u64) << WRITER_SHIFT | u64::from(buffer)))
    }

    /// The same value at another timestamp.
    pub(crate) fn at(self, timestamp: u64) -> Version {
        debug_assert!(timestamp >> (64 - TIMESTAMP_SHIFT) == 0);
        Version(self.0 & ((1 << TIMESTAMP_SHIFT) - 1) | timestamp << TIMESTAMP_SHIFT)
    }

    /// The same write, with a timestamp that is known to be fresh.
    pub(crate) fn verified(self) -> Version {
        Version(self.0 | VERIFIED)
    }

    pub(crate) fn is_verified(self) -> bool {
        self.0 & VERIFIED != 0
    }

    /// Whether nothing was written yet.
    pub(crate) fn is_initial(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn timestamp(self) -> u64 {
        self.0 >> TIMESTAMP_SHIFT
    }

    pub(crate) fn writer(self) -> usize {
        (self.0 >> WRITER_SHIFT) as usize % WRITERS_MAX
    }

    pub(crate) fn buffer(self) -> usize {
        self.0 as usize % BUFFERS_MAX
    }

    /// The write itself: verified or not, and wherever its value is.
    pub(crate) fn write(self) -> u64 {
        self.0 >> WRITER_SHIFT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_order_first_then_writers_then_the_flag() -> Result<(), TimestampsUsedUp> {
        let first = Version::guessed(7, 127, 9)?;
        let ascending = [
            Version(0),
            first,
            first.verified(),
            Version::guessed(8, 0, 0)?,
            Version::guessed(8, 1, 65_535)?,
            Version::guessed(TIMESTAMP_MAX, 0, 0)?,
        ];
        assert!(ascending.is_sorted_by_key(|version| version.0 >> BUFFER_BITS));
        assert_eq!((first.timestamp(), first.writer(), first.buffer()), (7, 127, 9));
        assert_eq!(first.verified().write(), first.write());
        assert!(Version::guessed(TIMESTAMP_MAX + 1, 0, 0).is_err());
        Ok(())
    }
}
