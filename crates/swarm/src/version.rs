//! The metadata word of a write: its place in the order of all writes, and where its value is.
//!
//! ```text
//! 63                          24 23        17  16 15           0
//! ┌─────────────────────────────┬────────────┬───┬──────────────┐
//! │ timestamp (40)              │ writer (7) │ V │ buffer (16)  │   0: nothing was written
//! └─────────────────────────────┴────────────┴───┴──────────────┘
//! ```
//!
//! These are the widths in a store. In an array, writers and buffers have as many bits as their numbers need, and the
//! timestamp has the rest ([`Format`]).
//!
//! Timestamp and writer name a write of an instance of a register, and order it. V is set when the timestamp is known
//! to be *fresh*: higher than those of all writes that had ended when this one began. The buffer is one of the writer's
//! own, with the same number on all memory nodes. It decides nothing in the order.
//!
//! The last buffer number is a *seal*: the key of the register was deleted. It is above all versions. The last writer
//! number marks a word to which nothing was written yet; the register's instance is in place of the timestamp. So a
//! word of an earlier instance is no word of this one, and a compare-and-swap that is late exchanges nothing.
//!
//! ```text
//! an instance
//! 38        31 30                     0
//! ┌───────────┬────────────────────────┐
//! │ epoch (8) │ count (31)             │   always 0 in an array
//! └───────────┴────────────────────────┘
//! ```
//!
//! *Timestamps last for years.* A clock counts microseconds, and 40 bits of them are over after twelve days. In a store
//! the timestamps of a register count from the beginning of an epoch, of 2³⁹ microseconds each, which is that of its
//! instance. When its register is used up, a key moves to another one (`moving`) with its next write; a register that
//! becomes free begins an instance of the present epoch. Until 256 epochs are over, a store is four and a half years
//! old.
//!
//! An array has no index in which its registers could move, and needs none: it has so many shards that 47 bits are left
//! for the timestamps, which last as long. Only an array that is too large for that even with the most shards has
//! fewer: it ends sooner, and says so when it is opened (`shards`).
//!
//! Timestamps of different registers are compared by the clock that they stand for ([`Location::time`]).

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};
use zerocopy::IntoBytes;

use crate::errors::TimestampsUsedUp;

/// A hash of some words and of what they belong to.
///
/// XXH3 combines its seed with short inputs by exclusive or: neighbouring seeds with neighbouring values have the same
/// hash. So the seed is hashed first.
pub(crate) fn hash_of(owner: u64, words: &[u64]) -> u64 {
    xxh3_64_with_seed(words.as_bytes(), xxh3_64(&owner.to_ne_bytes()))
}

/// Writers that can be told apart. The last number is that of words to which nothing was written.
pub(crate) const WRITERS_MAX: usize = (1 << WRITER_BITS) - 1;
/// Buffers of one writer. The last number is the seal.
pub(crate) const BUFFERS_MAX: usize = (1 << BUFFER_BITS) - 1;

const BUFFER_BITS: u32 = 16;
const WRITER_BITS: u32 = 7;
/// The last timestamp of a guess in a store, in microseconds: two epochs.
#[cfg(any(test, feature = "scenarios"))]
pub(crate) const TIMESTAMP_MAX: u64 = Format::STORE.timestamp_max();
/// Timestamps of so many bits last for four and a half years, as a store does.
pub(crate) const LASTING_BITS: u32 = EPOCH_BITS + (INSTANCE_BITS - COUNT_BITS);

/// How many bits of a metadata word the writer and the buffer have. The timestamp has the others, but for the flag.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Format {
    writer_bits: u8,
    buffer_bits: u8,
}

impl Format {
    pub(crate) const STORE: Format = Format { writer_bits: WRITER_BITS as u8, buffer_bits: BUFFER_BITS as u8 };

    /// That of an array with so many writers, each with so many buffers. The last numbers of both have their own
    /// meaning in a store, and no other one here.
    pub(crate) fn of_array(writers: usize, buffers: usize) -> Format {
        debug_assert!(writers <= WRITERS_MAX && buffers <= BUFFERS_MAX);
        let bits = |count: usize| (usize::BITS - count.leading_zeros()) as u8;
        Format { writer_bits: bits(writers), buffer_bits: bits(buffers) }
    }

    /// The most buffers of a writer with which the timestamps of an array last.
    pub(crate) fn buffers_that_last(writers: usize) -> usize {
        let Format { writer_bits, .. } = Format::of_array(writers, 0);
        let bits = 63 - LASTING_BITS - u32::from(writer_bits);
        (1 << bits.min(BUFFER_BITS)) - 1
    }

    const fn verified(self) -> u64 {
        1 << self.buffer_bits
    }

    const fn writer_shift(self) -> u32 {
        self.buffer_bits as u32 + 1
    }

    const fn timestamp_shift(self) -> u32 {
        self.writer_shift() + self.writer_bits as u32
    }

    /// The bits of a timestamp.
    pub(crate) fn timestamp_bits(self) -> u32 {
        64 - self.timestamp_shift()
    }

    /// The last timestamp of a guess. A version that has to be later than a guess has room beyond.
    pub(crate) const fn timestamp_max(self) -> u64 {
        (1 << (64 - self.timestamp_shift())) - 1 - (1 << 24)
    }

    /// The version of a metadata word.
    pub(crate) fn version(self, word: u64) -> Version {
        Version(word, self)
    }

    /// A write with a guessed timestamp.
    pub(crate) fn guessed(self, timestamp: u64, writer: usize, buffer: u16) -> Result<Version, TimestampsUsedUp> {
        debug_assert!(writer < (1 << self.writer_bits) - 1 && u64::from(buffer) < self.verified());
        if timestamp > self.timestamp_max() {
            return Err(TimestampsUsedUp);
        }
        let word = timestamp << self.timestamp_shift() | (writer as u64) << self.writer_shift() | u64::from(buffer);
        Ok(Version(word, self))
    }

    /// The end of an instance of a register of a store.
    pub(crate) fn seal(self, timestamp: u64, writer: usize) -> Result<Version, TimestampsUsedUp> {
        self.guessed(timestamp, writer, (self.verified() - 1) as u16).map(Version::verified)
    }

    /// The highest of some metadata words.
    pub(crate) fn newest(self, words: &[u64]) -> Version {
        let versions = words.iter().map(|word| self.version(*word));
        versions.max_by_key(|version| version.rank()).unwrap_or(Version::NONE)
    }
}

/// The bits of an instance.
pub(crate) const INSTANCE_BITS: u32 = COUNT_BITS + 8;
const COUNT_BITS: u32 = 31;
const EPOCH_MAX: u64 = (1 << (INSTANCE_BITS - COUNT_BITS)) - 1;
/// Of the microseconds of an epoch.
const EPOCH_BITS: u32 = 39;
/// When an epoch begins, the count continues with these bits of it: they tell limits apart (`moving`).
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

    /// The next instance, for keys that the register gets from this time on. None if it has had as many in this epoch
    /// as can be told apart.
    pub(crate) fn next(self, clock: u64) -> Option<Location> {
        let epoch = (clock >> EPOCH_BITS).min(EPOCH_MAX);
        let count = self.instance % (1 << COUNT_BITS) + 1;
        let instance = if epoch > self.epoch() {
            epoch << COUNT_BITS | count & COUNT_KEPT
        } else if count >> COUNT_BITS == 0 {
            self.instance + 1
        } else {
            return None;
        };
        Some(Location { instance, ..self })
    }

    /// Whether an instance word is that of this instance, whether its key moves or not.
    pub(crate) fn is_in(self, word: u64) -> bool {
        word & !MOVING == self.instance
    }
}

/// A metadata word, and how its bits are used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Version(pub(crate) u64, Format);

impl PartialEq for Version {
    fn eq(&self, other: &Version) -> bool {
        self.0 == other.0
    }
}

impl Eq for Version {}

impl Version {
    /// Nothing was written yet.
    pub(crate) const NONE: Version = Version(0, Format::STORE);

    /// The word of a register to which nothing was written in this instance.
    pub(crate) fn empty(instance: u64) -> Version {
        match instance {
            0 => Version::NONE,
            _ => {
                let format = Format::STORE;
                let word = instance << format.timestamp_shift() | (WRITERS_MAX as u64) << format.writer_shift();
                Version(word, format)
            }
        }
    }

    pub(crate) fn format(self) -> Format {
        self.1
    }

    pub(crate) fn is_sealed(self) -> bool {
        self.buffer() as u64 == self.1.verified() - 1
    }

    /// The same value at another timestamp.
    pub(crate) fn at(self, timestamp: u64) -> Version {
        let shift = self.1.timestamp_shift();
        debug_assert!(timestamp >> (64 - shift) == 0);
        Version(self.0 & ((1 << shift) - 1) | timestamp << shift, self.1)
    }

    /// The same write, as a guess.
    pub(crate) fn unverified(self) -> Version {
        Version(self.0 & !self.1.verified(), self.1)
    }

    /// The same write, with a timestamp that is known to be fresh.
    pub(crate) fn verified(self) -> Version {
        Version(self.0 | self.1.verified(), self.1)
    }

    pub(crate) fn is_verified(self) -> bool {
        self.0 & self.1.verified() != 0
    }

    /// Whether nothing was written yet.
    pub(crate) fn is_initial(self) -> bool {
        self.0 == 0 || self.writer() == (1 << self.1.writer_bits) - 1
    }

    pub(crate) fn timestamp(self) -> u64 {
        self.0 >> self.1.timestamp_shift()
    }

    pub(crate) fn writer(self) -> usize {
        (self.0 >> self.1.writer_shift()) as usize & ((1 << self.1.writer_bits) - 1)
    }

    pub(crate) fn buffer(self) -> usize {
        self.0 as usize & ((1 << self.1.buffer_bits) - 1)
    }

    /// The write itself: verified or not, and wherever its value is.
    pub(crate) fn write(self) -> u64 {
        if self.is_initial() { 0 } else { self.0 >> self.1.writer_shift() }
    }

    /// The write itself, among those of all instances of a register. (In an array there is one instance, of epoch 0.)
    pub(crate) fn write_at(self, at: Location) -> u64 {
        at.epoch() << (64 - Format::STORE.writer_shift()) | self.write()
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
        let format = Format::STORE;
        let first = format.guessed(7, 126, 9)?;
        let ascending = [
            Version::NONE,
            first,
            first.verified(),
            format.guessed(8, 0, 0)?,
            format.guessed(8, 1, 65_534)?,
            format.guessed(TIMESTAMP_MAX, 0, 0)?,
            format.seal(1, 0)?,
        ];
        assert!(ascending.is_sorted_by_key(|version| version.rank()));
        assert_eq!((first.timestamp(), first.writer(), first.buffer()), (7, 126, 9));
        assert_eq!(first.verified().write(), first.write());
        assert!(format.guessed(TIMESTAMP_MAX + 1, 0, 0).is_err());
        for instance in [0, 1, 7] {
            let empty = Version::empty(instance);
            assert!(empty.is_initial() && !empty.is_sealed() && first.is_as_new(empty) && empty.rank() == 0);
            assert_ne!(empty, Version::empty(instance + 1));
        }
        Ok(())
    }

    #[test]
    fn an_array_orders_versions_as_a_store_does_with_timestamps_that_last() -> Result<(), TimestampsUsedUp> {
        for writers in [1, 2, 3, 7, 8, 64, WRITERS_MAX] {
            let most = Format::buffers_that_last(writers);
            for buffers in [1, 2, 3, most - 1, most] {
                let format = Format::of_array(writers, buffers);
                assert!(format.timestamp_bits() >= LASTING_BITS, "{writers} writers, {buffers} buffers: {format:?}");
                let (writer, buffer, max) = (writers - 1, buffers as u16 - 1, format.timestamp_max());
                let late = 1 << 40 | 7;
                let last = format.guessed(late, writer, buffer)?;
                assert_eq!((last.timestamp(), last.writer(), last.buffer()), (late, writer, usize::from(buffer)));
                assert!(
                    !last.is_sealed() && !last.is_initial() && !last.is_verified() && last.verified().is_verified()
                );
                let ascending = [
                    Version::NONE,
                    format.guessed(7, 0, buffer)?,
                    format.guessed(7, writer, 0)?.verified(),
                    format.guessed(late, 0, buffer)?,
                    last,
                    last.verified(),
                    last.at(late + 1),
                    format.guessed(max, writer, buffer)?.verified(),
                ];
                assert!(ascending.is_sorted_by_key(|version| version.rank()));
                for (at, low) in ascending.iter().enumerate() {
                    for (number, high) in ascending.iter().enumerate() {
                        assert_eq!(low.is_as_new(*high), low.write() >= high.write(), "{at}, {number}");
                    }
                }
                assert!(format.guessed(max + 1, 0, 0).is_err());
            }
            let least = Format::of_array(writers, (most + 1).min(BUFFERS_MAX));
            assert_eq!(least.timestamp_bits() < LASTING_BITS, most < BUFFERS_MAX);
            assert!(Format::of_array(writers, BUFFERS_MAX).timestamp_bits() >= 40);
        }
        Ok(())
    }
}
