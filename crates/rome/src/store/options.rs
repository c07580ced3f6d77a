//! The options of a store.

use core::time::Duration;

use farfield_core::toolkit::at_least_one;
use farfield_core::{Error, ErrorKind, Result};

use super::updates::PARTITIONS_MAX;
use crate::field::TreeKey;
use crate::options::TreeOptions;

/// The partitions of a [`RomeKv`](crate::RomeKv), and their sizes. They must be the same on all nodes.
///
/// ```
/// use farfield_rome::{Bytes, RomeKvOptions};
/// // Keys before "h", those from "h" on before "q", and those from "q" on.
/// let mut options = RomeKvOptions::new([Bytes::<2>::try_from("h")?, Bytes::try_from("q")?]);
/// options.tree.blocks = 1 << 16;
/// assert_eq!(options.partitions(), 3);
/// # Ok::<(), farfield::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RomeKvOptions<K> {
    /// The first key of each partition but the first one, in ascending order: 2^20 partitions at most. Partition p is
    /// on the p-th node of the session, or on node p mod n if there are more.
    pub boundaries: Vec<K>,
    /// The sizes of each partition. Each thread of a node takes a seat in each of them, and the updates of other nodes
    /// take one.
    pub tree: TreeOptions,
    /// For how long a change waits at most for a read of several partitions at one instant
    /// ([`RomeKvThread::scan_at_one_instant`](crate::RomeKvThread::scan_at_one_instant)). It waits for a round trip as
    /// a rule, and so long if the reader has died in the middle. From 10 µs to 100 ms; several times a round trip, so
    /// that reads succeed beside many writers. Default: 2 ms.
    pub hold: Duration,
    /// How many updates, or batches of updates, the threads of a node may have under way to each other node. Default:
    /// 16.
    pub window: usize,
    /// The most updates that one put carries, 32 at most. Default: 16.
    pub batch_max: usize,
}

impl<K> RomeKvOptions<K> {
    /// Partitions that begin at these keys, and one before the first of them.
    ///
    /// ```
    /// # use farfield_rome::RomeKvOptions;
    /// assert_eq!(RomeKvOptions::<u64>::new([]).partitions(), 1);
    /// ```
    pub fn new(boundaries: impl Into<Vec<K>>) -> RomeKvOptions<K> {
        let (tree, hold) = (TreeOptions::default(), Duration::from_millis(2));
        RomeKvOptions { boundaries: boundaries.into(), tree, hold, window: 16, batch_max: 16 }
    }

    /// How many partitions there are.
    ///
    /// ```
    /// # use farfield_rome::RomeKvOptions;
    /// assert_eq!(RomeKvOptions::evenly(4).partitions(), 4);
    /// ```
    pub fn partitions(&self) -> usize {
        self.boundaries.len() + 1
    }
}

impl RomeKvOptions<u64> {
    /// Partitions with as many of all possible numbers each: for keys that are hashes.
    ///
    /// ```
    /// # use farfield_rome::RomeKvOptions;
    /// assert_eq!(RomeKvOptions::evenly(4).boundaries, [1 << 62, 2 << 62, 3 << 62]);
    /// ```
    pub fn evenly(partitions: usize) -> RomeKvOptions<u64> {
        let partitions = partitions.max(1) as u128;
        let boundary = |partition: u128| ((partition << 64) / partitions) as u64;
        RomeKvOptions::new((1..partitions).map(boundary).collect::<Vec<_>>())
    }
}

/// The least and the longest [`RomeKvOptions::hold`]. Writers of the owner wait so long for a reader that has died.
const HOLD: [Duration; 2] = [Duration::from_micros(10), Duration::from_millis(100)];

impl<K: TreeKey> RomeKvOptions<K> {
    pub(super) fn check(&self) -> Result<()> {
        at_least_one(&[("window", self.window), ("batch_max", self.batch_max)])?;
        if self.hold < HOLD[0] || self.hold > HOLD[1] {
            let why = format!("`hold` is {:?}: it has to be from {:?} to {:?}", self.hold, HOLD[0], HOLD[1]);
            return Err(Error::from(ErrorKind::Config { why }));
        }
        if self.partitions() > PARTITIONS_MAX {
            let why = format!("there are {} partitions: {PARTITIONS_MAX} are the most", self.partitions());
            return Err(Error::from(ErrorKind::Config { why }));
        }
        let in_order = self.boundaries.windows(2).all(|two| two[0] < two[1]);
        if !in_order || self.boundaries.first().is_some_and(|first| *first == K::FIRST) {
            let why = "`boundaries` are not in ascending order, or the first of them is the first of all keys".into();
            return Err(Error::from(ErrorKind::Config { why }));
        }
        Ok(())
    }

    /// What all nodes have to agree on. There may be many boundaries.
    pub(super) fn described(&self) -> String {
        let (mut sum, mut words) = (0u64, vec![0; K::WORDS]);
        for boundary in &self.boundaries {
            boundary.store(&mut words);
            let add = |sum: u64, word: &u64| (sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
            sum = words.iter().fold(sum, add);
        }
        format!(
            "{} partitions ({sum:x}), hold {:?}, {} x {}",
            self.partitions(),
            self.hold,
            self.window,
            self.batch_max
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_no_more_partitions_than_a_message_can_name() {
        let is_good =
            |partitions: usize| RomeKvOptions::new((1..partitions as u64).collect::<Vec<_>>()).check().is_ok();
        assert!(is_good(PARTITIONS_MAX) && !is_good(PARTITIONS_MAX + 1));
    }
}
