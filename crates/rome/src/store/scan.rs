//! Scans over partitions.

use core::ops::{Bound, RangeBounds};
use std::collections::VecDeque;

use farfield_core::{Endpoint, Result};

use super::RomeKvThread;
use crate::field::{Field, TreeKey};
use crate::tree::{Cursor, WINDOW_MAX, leaves_of};

/// A scan of a range: [`RomeKvThread::scan`], [`RomeKvThread::scan_at_one_instant`].
///
/// ```
/// # use farfield_rome::{RomeKv, RomeKvOptions};
/// # let node = farfield::Node::builder().start()?;
/// # let ep = node.endpoint()?;
/// # let store = RomeKv::<u64, u64>::open(&node, "store", RomeKvOptions::new([500]))?;
/// # let mut thread = store.thread()?;
/// ep.block_on(thread.load(&ep, (0..1000).map(|key| (key, key))))?;
/// let mut scan = thread.scan(100..);
/// let (mut pairs, mut count) = (Vec::new(), 0);
/// while ep.block_on(scan.next(&ep, &mut pairs))? {
///     count += pairs.drain(..).len();
/// }
/// assert_eq!(count + pairs.len(), 900);
/// # Ok::<(), farfield::Error>(())
/// ```
pub struct RomeKvScan<'t, K: TreeKey, V: Field> {
    thread: &'t mut RomeKvThread<K, V>,
    range: (Bound<K>, Bound<K>),
    is_backward: bool,
    /// The partitions that come next; each with its version, if all of them are read as of one instant.
    next: VecDeque<(usize, Option<u64>)>,
    /// The partition that is being read, as of which version.
    current: Option<(usize, Cursor<K, V>, u64)>,
    /// The partition of which `next` has read the rest.
    ended: Option<usize>,
    /// How many leaves to read at a time.
    window: usize,
}

impl<K: TreeKey, V: Field> Drop for RomeKvScan<'_, K, V> {
    fn drop(&mut self) {
        let pinned = self.next.iter().filter(|next| next.1.is_some()).map(|next| next.0);
        for partition in pinned.chain(self.current.as_ref().map(|current| current.0)) {
            self.thread.trees[partition].end();
        }
    }
}

impl<K: TreeKey, V: Field> RomeKvThread<K, V> {
    /// Scans a range in the order of its keys. Each partition is read as of one moment: when the scan reaches it. So
    /// changes during the scan may be seen in a later partition, and not in an earlier one.
    ///
    /// ```
    /// # use farfield_rome::{RomeKv, RomeKvOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let ep = node.endpoint()?;
    /// # let store = RomeKv::<u64, u64>::open(&node, "store", RomeKvOptions::new([5]))?;
    /// # let mut thread = store.thread()?;
    /// ep.block_on(thread.load(&ep, (0..10).map(|key| (key, key))))?;
    /// let (mut scan, mut pairs) = (thread.scan(4..7), Vec::new());
    /// while ep.block_on(scan.next(&ep, &mut pairs))? {}
    /// assert_eq!(pairs, [(4, 4), (5, 5), (6, 6)]);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn scan(&mut self, range: impl RangeBounds<K>) -> RomeKvScan<'_, K, V> {
        self.scan_of(&range, false)
    }

    /// Scans a range from its last key to its first, as [`scan`](Self::scan) does.
    ///
    /// ```
    /// # use farfield_rome::{RomeKv, RomeKvOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let ep = node.endpoint()?;
    /// # let store = RomeKv::<u64, u64>::open(&node, "store", RomeKvOptions::new([5]))?;
    /// # let mut thread = store.thread()?;
    /// ep.block_on(thread.load(&ep, (0..10).map(|key| (key, key))))?;
    /// let (mut scan, mut pairs) = (thread.scan_back(4..7), Vec::new());
    /// while ep.block_on(scan.next(&ep, &mut pairs))? {}
    /// assert_eq!(pairs, [(6, 6), (5, 5), (4, 4)]);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn scan_back(&mut self, range: impl RangeBounds<K>) -> RomeKvScan<'_, K, V> {
        self.scan_of(&range, true)
    }

    pub(super) fn scan_of(&mut self, range: &impl RangeBounds<K>, is_backward: bool) -> RomeKvScan<'_, K, V> {
        let partitions = self.store.partitions_of(range).map(|partition| (partition, None));
        let next = if is_backward { partitions.rev().collect() } else { partitions.collect() };
        let range = (range.start_bound().cloned(), range.end_bound().cloned());
        RomeKvScan { thread: self, range, is_backward, next, current: None, ended: None, window: WINDOW_MAX }
    }
}

impl<'t, K: TreeKey, V: Field> RomeKvScan<'t, K, V> {
    /// One over partitions that are announced, and read as of these versions.
    pub(super) fn as_of(
        thread: &'t mut RomeKvThread<K, V>,
        range: (Bound<K>, Bound<K>),
        is_backward: bool,
        versions: impl DoubleEndedIterator<Item = (usize, u64)>,
    ) -> RomeKvScan<'t, K, V> {
        let next = versions.map(|(partition, version)| (partition, Some(version)));
        let next = if is_backward { next.rev().collect() } else { next.collect() };
        RomeKvScan { thread, range, is_backward, next, current: None, ended: None, window: WINDOW_MAX }
    }

    /// Adds the next pairs, of up to 16 leaves of one partition; whether there may be more.
    ///
    /// ```
    /// # use farfield_rome::{RomeKv, RomeKvOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let ep = node.endpoint()?;
    /// # let store = RomeKv::<u64, u64>::open(&node, "store", RomeKvOptions::new([]))?;
    /// # let mut thread = store.thread()?;
    /// let mut pairs = Vec::new();
    /// assert!(!ep.block_on(thread.scan(..).next(&ep, &mut pairs))?);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`RangeUnavailable`](crate::RangeUnavailable): an owner is dead, or does not answer. All pairs before its keys
    /// were added, by this call or earlier ones, and those that it has added of its keys are right.
    /// [`RomeKvScan::skip`] continues behind them. [`SnapshotExpired`](crate::SnapshotExpired): this thread was
    /// stopped, or has waited too long between two calls.
    pub async fn next(&mut self, ep: &Endpoint, into: &mut Vec<(K, V)>) -> Result<bool> {
        self.ended = None;
        let (partition, cursor, version) = match &mut self.current {
            Some(current) => current,
            none => {
                let Some((partition, pinned)) = self.next.front().copied() else { return Ok(false) };
                let version = match pinned {
                    Some(version) => version,
                    None => self.thread.begin(ep, partition).await?,
                };
                self.next.pop_front();
                let cursor = Cursor::new(&self.range, self.is_backward, self.window);
                none.insert((partition, cursor, version))
            }
        };
        let RomeKvThread { store, trees } = &mut *self.thread;
        // The versions of those behind it stay pinned while this one is read.
        for (later, _) in self.next.iter().filter(|next| next.1.is_some()) {
            trees[*later].keep(ep)?;
        }
        let partition = *partition;
        let more = trees[partition].next(ep, cursor, *version, into).await;
        if more.map_err(|error| store.lost(partition, trees[partition].owner, error))? {
            return Ok(true);
        }
        trees[partition].end();
        self.current = None;
        self.ended = Some(partition).filter(|_| !self.next.is_empty());
        Ok(self.ended.is_some())
    }

    /// Leaves the rest of a partition out: the one that `next` has read from last, of which there may be no more, or
    /// could not read. Its number; none at the end. Without a `next` since then it leaves out the partitions behind it,
    /// one with each call.
    ///
    /// ```
    /// # use farfield_rome::{RomeKv, RomeKvOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let ep = node.endpoint()?;
    /// # let store = RomeKv::<u64, u64>::open(&node, "store", RomeKvOptions::new([5]))?;
    /// # let mut thread = store.thread()?;
    /// ep.block_on(thread.load(&ep, (0..10).map(|key| (key, key))))?;
    /// let (mut scan, mut pairs) = (thread.scan(..), Vec::new());
    /// assert_eq!(scan.skip(), Some(0));
    /// while ep.block_on(scan.next(&ep, &mut pairs))? {}
    /// assert_eq!(pairs[0], (5, 5));
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn skip(&mut self) -> Option<usize> {
        if let Some(ended) = self.ended.take() {
            return Some(ended); // all of it was read
        }
        let current = self.current.take().map(|current| current.0);
        let skipped = current.or_else(|| self.next.pop_front().map(|next| next.0))?;
        self.thread.trees[skipped].end();
        Some(skipped)
    }

    /// Announces the first partition, as of now.
    pub(super) async fn started(mut self, ep: &Endpoint) -> Result<Self> {
        if let Some((partition, version)) = self.next.front_mut() {
            *version = Some(self.thread.begin(ep, *partition).await?);
        }
        Ok(self)
    }

    /// Up to `limit` of its next pairs, and ends it.
    ///
    /// ```
    /// # use farfield_rome::{RomeKv, RomeKvOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let ep = node.endpoint()?;
    /// # let store = RomeKv::<u64, u64>::open(&node, "store", RomeKvOptions::new([5]))?;
    /// # let mut thread = store.thread()?;
    /// ep.block_on(thread.load(&ep, (0..10).map(|key| (key, key))))?;
    /// let all = ep.block_on(async { thread.scan_at_one_instant(&ep, 2..).await?.collect(&ep, 4).await })?;
    /// assert_eq!(all, [(2, 2), (3, 3), (4, 4), (5, 5)]);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub async fn collect(mut self, ep: &Endpoint, limit: usize) -> Result<Vec<(K, V)>> {
        let mut pairs = Vec::new();
        self.window = leaves_of(limit, self.thread.store.parts.options.tree.pairs);
        while pairs.len() < limit && self.next(ep, &mut pairs).await? {}
        pairs.truncate(limit);
        Ok(pairs)
    }
}
