//! Reads of several partitions at one instant.
//!
//! *The argument.* A partition is what its version says: all changes with a version up to `stable`, and `stable` only
//! rises. The reader gets `stable` of all partitions; when it has all of them, it gets all of them again. If none has
//! changed, then each partition had this version from its first get to its second one. So all had these versions at
//! once, at the moment between the last of the first gets and the first of the second ones. The scan reads each
//! partition as of this version. It was announced before the gets, so its blocks stay.
//!
//! *Writers.* If a version has changed, the reader closes the gates of the partitions (a put to each owner) and gets
//! again what is stable. Writers that find a closed gate wait at it, with their change all but visible. Only those that
//! were past the gate may still change the version, once. The reader opens the gates when two gets have had the same
//! result. Nothing else depends on the gates, so it does not matter which reader opens them, or that a writer does
//! after `hold`, because the reader has died.

use core::ops::RangeBounds;
use core::time::Duration;

use farfield_core::toolkit::ErrorContext;
use farfield_core::{Endpoint, Error, Result};
use farfield_fabric::Instant;

use super::place::{At, GateAt};
use super::{RomeKv, RomeKvScan, RomeKvThread};
use crate::errors::{NotOneInstant, SnapshotExpired};
use crate::field::{Field, TreeKey};
use crate::reading::late_since;

/// How often versions are read before the gates are closed.
const OPEN_LOOKS: usize = 2;

/// How often the versions of so many partitions are read at most.
///
/// When its gate is closed, one thread of a partition may be past it, and the service thread: their changes make two
/// looks at most differ, which may be others in each partition. So the look after these agrees with the one before,
/// unless a wait at a gate is over: there is as much room again for that.
const fn looks_max(partitions: usize) -> usize {
    16 + 4 * partitions
}

/// The pause before the versions are read again: the writers of one of them may wait for a core.
const PAUSE_MIN: Duration = Duration::from_micros(10);

/// The longest one. Two looks have to agree before the writers have waited for `hold`.
fn pause_max(hold: Duration) -> Duration {
    hold / 8
}

/// Fails unless this thread was stopped, and may try again.
pub(super) fn again(ep: &Endpoint, start: Instant, error: Error) -> Result<()> {
    if error.custom_ref::<SnapshotExpired>().is_none() {
        return Err(error);
    }
    late_since(ep, start)
}

impl<K: TreeKey, V: Field> RomeKvThread<K, V> {
    /// The version of one partition, announced, wherever it is.
    pub(super) async fn begin(&mut self, ep: &Endpoint, partition: usize) -> Result<u64> {
        let start = ep.now();
        loop {
            match self.begin_there(ep, partition, start).await {
                Ok(version) => return Ok(version),
                Err(error) => self.follow(ep, partition, start, error).await?,
            }
        }
    }

    /// The version of one partition, announced, where this thread knows it to be.
    pub(super) async fn begin_there(&mut self, ep: &Endpoint, partition: usize, start: Instant) -> Result<u64> {
        loop {
            let announced = Announced { trees: &mut self.trees[partition..=partition] };
            let tree = &mut announced.trees[0];
            tree.announce(ep);
            let look = tree.look(ep);
            match tree.see(ep, look).await {
                Ok(version) => {
                    tree.pin(version);
                    core::mem::forget(announced); // until the scan has read it
                    return Ok(version);
                }
                Err(error) => again(ep, start, error)?,
            }
        }
    }

    /// Begins a scan of a range, in the order of its keys, of the pairs that all partitions of the range had at one
    /// instant, which is within this call: linearizable over all of them.
    ///
    /// Two round trips, whatever the number of partitions, if they do not change meanwhile. If they do, two or three
    /// more; writers of these partitions wait for one or two of them. One partition takes one round trip, and no writer
    /// waits.
    ///
    /// ```
    /// # use farfield_rome::{RomeKv, RomeKvOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let ep = node.endpoint()?;
    /// # let store = RomeKv::<u64, u64>::open(&node, "store", RomeKvOptions::new([5]))?;
    /// # let (mut thread, mut other) = (store.thread()?, store.thread()?);
    /// ep.block_on(thread.load(&ep, (0..10).map(|key| (key, key))))?;
    /// let (mut scan, mut pairs) = (ep.block_on(thread.scan_at_one_instant(&ep, ..))?, Vec::new());
    /// ep.block_on(other.put(&ep, 9, 0))?; // is not seen
    /// while ep.block_on(scan.next(&ep, &mut pairs))? {}
    /// assert_eq!(pairs[9], (9, 9));
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`RangeUnavailable`](crate::RangeUnavailable): an owner is dead, or does not answer. [`NotOneInstant`]: it was
    /// not to be had.
    pub async fn scan_at_one_instant(
        &mut self,
        ep: &Endpoint,
        range: impl RangeBounds<K>,
    ) -> Result<RomeKvScan<'_, K, V>> {
        self.scan_at_once(ep, &range, false).await
    }

    /// As [`scan_at_one_instant`](Self::scan_at_one_instant), from the last key to the first.
    ///
    /// ```
    /// # use farfield_rome::{RomeKv, RomeKvOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let ep = node.endpoint()?;
    /// # let store = RomeKv::<u64, u64>::open(&node, "store", RomeKvOptions::new([5]))?;
    /// # let mut thread = store.thread()?;
    /// ep.block_on(thread.load(&ep, (0..10).map(|key| (key, key))))?;
    /// let (mut scan, mut pairs) = (ep.block_on(thread.scan_back_at_one_instant(&ep, ..))?, Vec::new());
    /// while ep.block_on(scan.next(&ep, &mut pairs))? {}
    /// assert_eq!(pairs[9], (0, 0));
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As it.
    pub async fn scan_back_at_one_instant(
        &mut self,
        ep: &Endpoint,
        range: impl RangeBounds<K>,
    ) -> Result<RomeKvScan<'_, K, V>> {
        self.scan_at_once(ep, &range, true).await
    }

    pub(super) async fn scan_at_once(
        &mut self,
        ep: &Endpoint,
        range: &impl RangeBounds<K>,
        is_backward: bool,
    ) -> Result<RomeKvScan<'_, K, V>> {
        let bounds = (range.start_bound().cloned(), range.end_bound().cloned());
        let partitions = self.store.partitions_of(range);
        if partitions.len() <= 1 {
            return self.scan_of(range, is_backward).started(ep).await;
        }
        let (first, start) = (partitions.start, ep.now());
        let versions = loop {
            let RomeKvThread { store, trees } = &mut *self;
            let announced = Announced { trees: &mut trees[partitions.clone()] };
            match instant(store, first, announced.trees, ep).await {
                Ok(versions) => {
                    core::mem::forget(announced); // until the scan has read them
                    break versions;
                }
                Err((_, error)) if error.custom_ref::<SnapshotExpired>().is_some() => {
                    late_since(ep, start).of(store.path())?;
                }
                Err((Some(partition), error)) => {
                    drop(announced);
                    // It may have been moved.
                    self.follow(ep, partition, start, error).await?;
                }
                Err((None, error)) => return Err(error),
            }
        };
        Ok(RomeKvScan::as_of(self, bounds, is_backward, partitions.zip(versions)))
    }
}

/// Trees that are announced, until it is dropped.
struct Announced<'a, K: TreeKey, V: Field> {
    trees: &'a mut [At<K, V>],
}

impl<K: TreeKey, V: Field> Drop for Announced<'_, K, V> {
    fn drop(&mut self) {
        self.trees.iter().for_each(|tree| tree.end());
    }
}

/// An error, and of which partition it is; none for one of all of them.
type OfOne = (Option<usize>, Error);

/// The versions that these trees had at one instant, from the partition `first` on.
async fn instant<K: TreeKey, V: Field>(
    store: &RomeKv<K, V>,
    first: usize,
    trees: &mut [At<K, V>],
    ep: &Endpoint,
) -> core::result::Result<Vec<u64>, OfOne> {
    let partitions = trees.len();
    trees.iter_mut().for_each(|tree| tree.announce(ep));
    let mut gated = Gated { trees, ep, is_closed: false };
    let mut before = look_at_all(first, gated.trees, ep).await?;
    let (looks, longest) = (looks_max(partitions), pause_max(store.parts.options.hold));
    let mut pause = PAUSE_MIN.min(longest);
    for look in 1..looks {
        if look >= OPEN_LOOKS {
            // Again each time: another reader may have opened them. What is read next is read after it (`NRW → NRR`).
            gated.is_closed = true;
            put_gates(gated.trees, ep, true);
        }
        if look > 2 * OPEN_LOOKS {
            ep.sleep_until(ep.now() + pause).await;
            pause = (2 * pause).min(longest);
        }
        let now = look_at_all(first, gated.trees, ep).await?;
        if now == before {
            return Ok(now);
        }
        before = now;
    }
    Err((None, Error::custom(NotOneInstant { partitions, looks }).of(store.path())))
}

/// The versions of all trees: each look begins when all earlier ones have ended.
async fn look_at_all<K: TreeKey, V: Field>(
    first: usize,
    trees: &mut [At<K, V>],
    ep: &Endpoint,
) -> core::result::Result<Vec<u64>, OfOne> {
    let looks: Vec<_> = trees.iter().map(|tree| tree.look(ep)).collect();
    let mut versions = Vec::with_capacity(trees.len());
    for ((at, tree), look) in trees.iter_mut().enumerate().zip(looks) {
        let version = tree.see(ep, look).await.map_err(|error| (Some(first + at), error))?;
        tree.pin(version);
        versions.push(version);
    }
    Ok(versions)
}

/// Closes the gates of these partitions, or opens them.
fn put_gates<K: TreeKey, V: Field>(trees: &[At<K, V>], ep: &Endpoint, is_closed: bool) {
    for tree in trees {
        match &tree.gate {
            GateAt::Here(gate) if is_closed => gate.close(),
            GateAt::Here(gate) => {
                gate.open();
                ep.wake_local();
            }
            // If it is refused, writers do not wait, or not only as long as they have to.
            GateAt::Nowhere => {}
            GateAt::There(gate) => drop(ep.put_value(*gate, u64::from(is_closed)).detach()),
        }
    }
}

/// Partitions with gates that this reader may have closed, until it is dropped.
struct Gated<'a, K: TreeKey, V: Field> {
    trees: &'a mut [At<K, V>],
    ep: &'a Endpoint,
    is_closed: bool,
}

impl<K: TreeKey, V: Field> Drop for Gated<'_, K, V> {
    fn drop(&mut self) {
        if self.is_closed {
            put_gates(self.trees, self.ep, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_looks_for_the_writers_of_all_partitions_and_pauses_are_short() {
        for partitions in [2, 30, 100] {
            // The first look, one with open gates, one that closes them; two that each partition makes differ, in looks
            // of its own; and one that agrees.
            assert!(looks_max(partitions) > 4 + 2 * partitions);
        }
        // A pause and two looks pass several times while the writers wait.
        for hold in [Duration::from_micros(10), Duration::from_millis(2)] {
            assert!(PAUSE_MIN.min(pause_max(hold)) <= pause_max(hold) && pause_max(hold) * 4 < hold);
        }
    }
}
