//! The metadata word of a write: its place in the order of all writes, and where its value is.
//!
//! ```text
//! 63                          24 23        17  16 15           0
//! ┌─────────────────────────────┬────────────┬───┬──────────────┐
//! │ timestamp (40)              │ writer (7) │ V │ buffer (16)  │   0: nothing was written
//! └─────────────────────────────┴────────────┴───┴──────────────┘
//! ```
//!
//! Timestamp and writer name a write of an instance of a register, and order it. V is set when the timestamp is known to be *fresh*: higher than those
//! of all writes that had ended when this one began. The buffer is one of the writer's own, with the same number on all
//! memory nodes. It decides nothing in the order.
//!
//! The last buffer number is a *seal*: the key of the register was deleted. It is above all versions. The last writer number marks a
//! word to which nothing was written yet; the register's instance is in place of the timestamp. So a word of an earlier
//! instance is no word of this one, and a compare-and-swap that is late exchanges nothing.
//!
//! ```text
//! an instance
//! 38        31 30                     0
//! ┌───────────┬────────────────────────┐
//! │ epoch (8) │ count (31)             │   in an array always 0
//! └───────────┴────────────────────────┘
//! ```
//!
//! *Timestamps do not end.* A clock counts microseconds, and 40 bits of them are over after twelve days. So the timestamps of a register
//! count from the beginning of an epoch, of 2³⁹ microseconds each, which is that of its instance. A key whose register is used up moves to
//! another one (`moving`) with its next write; a register that comes free begins an instance of the present epoch. Until 256 epochs are over,
//! a store is four and a half years old. An array has no index in which its registers could move, and ends after the first two.
//!
//! Timestamps of different registers are compared by the clock that they stand for ([`Location::time`]).

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};
use zerocopy::IntoBytes;

use crate::errors::TimestampsUsedUp;

/// A hash of some words and of what they belong to.
///
/// XXH3 combines its seed with short inputs by exclusive or: neighbouring seeds with neighbouring values have the same hash. So the seed is
/// hashed first.
pub(crate) fn hash_of(owner: u64, words: &[u64]) -> u64 {
    xxh3_64_with_seed(words.as_bytes(), xxh3_64(&owner.to_ne_bytes()))
}

/// Writers that can be told apart. The last number is that of words to which nothing was written.
pub(crate) const WRITERS_MAX: usize = (1 << WRITER_BITS) - 1;
/// Buffers of one writer. The last number is the seal.
pub(crate) const BUFFERS_MAX: usize = (1 << BUFFER_BITS) - 1;

const BUFFER_BITS: u32 = 16;
const WRITER_BITS: u32 = 7;
const VERIFIED: u64 = 1 << BUFFER_BITS;
const WRITER_SHIFT: u32 = BUFFER_BITS + 1;
const TIMESTAMP_SHIFT: u32 = WRITER_SHIFT + WRITER_BITS;
/// The last timestamp of a guess, in microseconds: two epochs. A version that has to be later than a guess has room beyond.
pub(crate) const TIMESTAMP_MAX: u64 = (1 << (64 - TIMESTAMP_SHIFT)) - 1 - (1 << 24);

/// The bits of an instance.
pub(crate) const INSTANCE_BITS: u32 = COUNT_BITS + 8;
const COUNT_BITS: u32 = 31;
const EPOCH_MAX: u64 = (1 << (INSTANCE_BITS - COUNT_BITS)) - 1;
/// Of the microseconds of an epoch.
const EPOCH_BITS: u32 = 39;
/// When an epoch begins, the count goes on with these bits of it: they tell limits apart (`moving`).
const COUNT_KEPT: u64 = (1 << 16) - 1;

/// A register, and its instance: it has another one for each key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Location {
    pub(crate) register: usize,
    pub(crate) instance: u64,
}

/// In the instance word of a register: its key moves to another register (`moving`).
const MOVING: u64 = 1 << 63;

impl Location {
    /// The instance that an instance word names.
    pub(crate) fn instance_of(word: u64) -> u64 {
        word & !MOVING
    }

    /// The instance word while its key moves.
    pub(crate) fn moving(self) -> u64 {
        self.instance | MOVING
    }

    fn epoch(self) -> u64 {
        self.instance >> COUNT_BITS
    }

    /// The clock from which the timestamps of this instance count.
    pub(crate) fn base(self) -> u64 {
        self.epoch() << EPOCH_BITS
    }

    /// The clock that the timestamp of a version stands for.
    pub(crate) fn time(self, version: Version) -> u64 {
        self.base() + version.timestamp()
    }

    /// Whether no later instance of this register has timestamps for a longer time.
    pub(crate) fn is_of_last_epoch(self) -> bool {
        self.epoch() == EPOCH_MAX
    }

    /// The next instance, for keys that the register gets from this time on. None if it has had as many in this epoch as can be told apart.
    pub(crate) fn next(self, clock: u64) -> Option<Location> {
        let epoch = (clock >> EPOCH_BITS).min(EPOCH_MAX);
        let count = self.instance % (1 << COUNT_BITS) + 1;
        let instance = match epoch > self.epoch() {
            true => epoch << COUNT_BITS | count & COUNT_KEPT,
            false if count >> COUNT_BITS == 0 => self.instance + 1,
            false => return None,
        };
        Some(Location { instance, ..self })
    }

    /// Whether an instance word is that of this instance, whether its key moves or not.
    pub(crate) fn is_in(self, word: u64) -> bool {
        word & !MOVING == self.instance
    }
}

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

    /// The word of a register to which nothing was written in this instance.
    pub(crate) fn empty(instance: u64) -> Version {
        match instance {
            0 => Version(0),
            _ => Version(instance << TIMESTAMP_SHIFT | (WRITERS_MAX as u64) << WRITER_SHIFT),
        }
    }

    /// The end of an instance of a register.
    pub(crate) fn seal(timestamp: u64, writer: usize) -> Result<Version, TimestampsUsedUp> {
        Version::guessed(timestamp, writer, BUFFERS_MAX as u16).map(Version::verified)
    }

    pub(crate) fn is_sealed(self) -> bool {
        self.buffer() == BUFFERS_MAX
    }

    /// The same value at another timestamp.
    pub(crate) fn at(self, timestamp: u64) -> Version {
        debug_assert!(timestamp >> (64 - TIMESTAMP_SHIFT) == 0);
        Version(self.0 & ((1 << TIMESTAMP_SHIFT) - 1) | timestamp << TIMESTAMP_SHIFT)
    }

    /// The same write, as a guess.
    pub(crate) fn unverified(self) -> Version {
        Version(self.0 & !VERIFIED)
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
        self.0 == 0 || self.writer() == WRITERS_MAX
    }

    pub(crate) fn timestamp(self) -> u64 {
        self.0 >> TIMESTAMP_SHIFT
    }

    pub(crate) fn writer(self) -> usize {
        (self.0 >> WRITER_SHIFT) as usize % (1 << WRITER_BITS)
    }

    pub(crate) fn buffer(self) -> usize {
        self.0 as usize % (1 << BUFFER_BITS)
    }

    /// The write itself: verified or not, and wherever its value is.
    pub(crate) fn write(self) -> u64 {
        if self.is_initial() { 0 } else { self.0 >> WRITER_SHIFT }
    }

    /// The write itself, among those of all instances of a register.
    pub(crate) fn write_at(self, at: Location) -> u64 {
        at.epoch() << (64 - WRITER_SHIFT) | self.write()
    }

    /// Its place in the order of the max register. A verified version is above the same guessed one.
    pub(crate) fn rank(self) -> u64 {
        if self.is_sealed() { u64::MAX } else { self.write() << 1 | u64::from(self.is_verified()) }
    }

    /// Whether this is of the same write as another, or of a later one.
    pub(crate) fn is_as_new(self, other: Version) -> bool {
        self.is_sealed() || !other.is_sealed() && self.write() >= other.write()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbouring_versions_and_values_have_different_hashes() {
        let mut hashes = std::collections::HashSet::new();
        for owner in 6784..6784 + 64 {
            for value in 0..64 {
                let image = [value; 12];
                assert!((1..=12).all(|words| hashes.insert(hash_of(owner, &image[..words]))), "{owner}, {value}");
            }
        }
    }

    #[test]
    fn an_instance_is_followed_by_one_whose_timestamps_last() {
        let at = |instance| Location { register: 3, instance };
        let epoch = 1 << EPOCH_BITS;
        assert_eq!(at(0).next(epoch - 1), Some(at(1)));
        let later = at(COUNT_KEPT).next(5 * epoch + 7).expect("an instance");
        assert_eq!((later.base(), later.instance % (1 << COUNT_BITS)), (5 * epoch, 0));
        // Its clock is behind that of another client.
        assert_eq!(later.next(epoch).map(Location::base), Some(5 * epoch));
        let used_up = at(later.instance + (1 << COUNT_BITS) - 1);
        assert_eq!((used_up.base(), used_up.next(6 * epoch - 1)), (5 * epoch, None));
        let next = used_up.next(6 * epoch).expect("an instance");
        assert_eq!(next.instance % (COUNT_KEPT + 1), (used_up.instance + 1) % (COUNT_KEPT + 1));
        let last = used_up.next(u64::MAX).expect("an instance");
        assert!(last.is_of_last_epoch() && last.instance >> INSTANCE_BITS == 0 && !used_up.is_of_last_epoch());
        assert!(!Version::empty(last.instance).is_sealed() && Version::empty(last.instance).is_initial());
    }

    #[test]
    fn timestamps_order_first_then_writers_then_the_flag() -> Result<(), TimestampsUsedUp> {
        let first = Version::guessed(7, 126, 9)?;
        let ascending = [
            Version(0),
            first,
            first.verified(),
            Version::guessed(8, 0, 0)?,
            Version::guessed(8, 1, 65_534)?,
            Version::guessed(TIMESTAMP_MAX, 0, 0)?,
            Version::seal(1, 0)?,
        ];
        assert!(ascending.is_sorted_by_key(|version| version.rank()));
        assert_eq!((first.timestamp(), first.writer(), first.buffer()), (7, 126, 9));
        assert_eq!(first.verified().write(), first.write());
        assert!(Version::guessed(TIMESTAMP_MAX + 1, 0, 0).is_err());
        for instance in [0, 1, 7] {
            let empty = Version::empty(instance);
            assert!(empty.is_initial() && !empty.is_sealed() && first.is_as_new(empty) && empty.rank() == 0);
            assert_ne!(empty, Version::empty(instance + 1));
        }
        Ok(())
    }
}
