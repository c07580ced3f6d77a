//! One thread's calls.

use core::cell::RefCell;
use core::ops::{Bound, RangeBounds};

use farfield_core::toolkit::ErrorContext;
use farfield_core::{Endpoint, Error, ErrorKind, Result};
use farfield_fabric::Instant;

use super::ask::{ask, send};
use super::instant::again;
use super::place::At;
use super::updates::{Ask, Reply, Request};
use super::{RomeKv, RomeKvUpdate};
use crate::field::{Field, TreeKey};
use crate::tree::Access;

/// One thread of any node, which reads and changes the store.
///
/// ```
/// # use farfield_rome::{RomeKv, RomeKvOptions};
/// # let node = farfield::Node::builder().start()?;
/// # let ep = node.endpoint()?;
/// let store = RomeKv::<u64, u64>::open(&node, "store", RomeKvOptions::new([500]))?;
/// let mut thread = store.thread()?;
/// ep.block_on(async {
///     assert!(thread.insert(&ep, 7, 70).await?);
///     assert_eq!(thread.get(&ep, &7).await?, Some(70));
///     assert_eq!(thread.delete(&ep, &7).await?, Some(70));
///     Ok::<(), farfield::Error>(())
/// })?;
/// # Ok::<(), farfield::Error>(())
/// ```
pub struct RomeKvThread<K: TreeKey, V: Field> {
    pub(super) store: RomeKv<K, V>,
    /// By partition.
    pub(super) trees: Vec<At<K, V>>,
}

impl<K: TreeKey, V: Field> RomeKvThread<K, V> {
    pub(super) fn new(store: RomeKv<K, V>, trees: Vec<At<K, V>>) -> RomeKvThread<K, V> {
        RomeKvThread { store, trees }
    }

    /// The store.
    ///
    /// ```
    /// # use farfield_rome::{RomeKv, RomeKvOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let store = RomeKv::<u64, u64>::open(&node, "store", RomeKvOptions::new([500]))?;
    /// assert_eq!(store.thread()?.store().partitions(), 2);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn store(&self) -> &RomeKv<K, V> {
        &self.store
    }

    /// The value of a key, as it was at one moment during the call.
    ///
    /// ```
    /// # use farfield_rome::{RomeKv, RomeKvOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let ep = node.endpoint()?;
    /// # let store = RomeKv::<u64, u64>::open(&node, "store", RomeKvOptions::new([500]))?;
    /// assert_eq!(ep.block_on(store.thread()?.get(&ep, &7))?, None);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`RangeUnavailable`](crate::RangeUnavailable): the key's owner is dead, or does not answer.
    pub async fn get(&mut self, ep: &Endpoint, key: &K) -> Result<Option<V>> {
        let (partition, mut start) = (self.store.partition_of(key), None);
        loop {
            match self.trees[partition].get(ep, key).await {
                Ok(value) => return Ok(value),
                // It may have been moved.
                Err(error) => {
                    let start = *start.get_or_insert_with(|| ep.now());
                    self.follow(ep, partition, start, error).await?;
                }
            }
        }
    }

    /// The values of several keys, of all partitions at the same time. Those of one partition are as of one moment,
    /// which is within the call.
    ///
    /// ```
    /// # use farfield_rome::{RomeKv, RomeKvOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let ep = node.endpoint()?;
    /// # let store = RomeKv::<u64, u64>::open(&node, "store", RomeKvOptions::new([500]))?;
    /// let mut thread = store.thread()?;
    /// ep.block_on(thread.put(&ep, 700, 7))?;
    /// assert_eq!(ep.block_on(thread.multi_get(&ep, &[70, 700]))?, [None, Some(7)]);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`get`](Self::get): the first one.
    pub async fn multi_get(&mut self, ep: &Endpoint, keys: &[K]) -> Result<Vec<Option<V>>> {
        let (start, store, trees) = (ep.now(), &self.store, &mut self.trees);
        let mut order: Vec<usize> = (0..keys.len()).collect();
        order.sort_by_key(|at| store.partition_of(&keys[*at]));
        let is_same = |one: &usize, next: &usize| store.partition_of(&keys[*one]) == store.partition_of(&keys[*next]);
        let mut groups = order.chunk_by(is_same).peekable();
        let reads = trees.iter_mut().enumerate().filter_map(|(partition, tree)| {
            let group = groups.next_if(|group| store.partition_of(&keys[group[0]]) == partition)?;
            Some(async move {
                let keys: Vec<K> = group.iter().map(|at| keys[*at]).collect();
                let values = tree.multi_get(ep, &keys).await;
                (partition, group, values)
            })
        });
        let mut found = Vec::new();
        ep.each_in_window(usize::MAX, reads, |read| found.push(read)).await;
        let mut values = vec![None; keys.len()];
        for (partition, group, mut of_it) in found {
            let of_it = loop {
                match of_it {
                    Ok(of_it) => break of_it,
                    // It may have been moved.
                    Err(error) => self.follow(ep, partition, start, error).await?,
                }
                let keys: Vec<K> = group.iter().map(|at| keys[*at]).collect();
                of_it = self.trees[partition].multi_get(ep, &keys).await;
            };
            for (at, value) in group.iter().zip(of_it) {
                values[*at] = value;
            }
        }
        Ok(values)
    }

    /// Adds a key with its value; whether it was not there. Nothing changes if it was.
    ///
    /// ```
    /// # use farfield_rome::{RomeKv, RomeKvOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let ep = node.endpoint()?;
    /// # let store = RomeKv::<u64, u64>::open(&node, "store", RomeKvOptions::new([500]))?;
    /// let mut thread = store.thread()?;
    /// assert!(ep.block_on(thread.insert(&ep, 7, 70))?);
    /// assert!(!ep.block_on(thread.insert(&ep, 7, 71))?);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`MemoryFull`](crate::MemoryFull): nothing has changed. [`RangeUnavailable`](crate::RangeUnavailable): the key's
    /// owner is dead, or does not answer; its [`may_have_happened`](crate::RangeUnavailable::may_have_happened) says
    /// whether the change was sent.
    pub async fn insert(&mut self, ep: &Endpoint, key: K, value: V) -> Result<bool> {
        Ok(self.update_one(ep, RomeKvUpdate::Insert(key, value)).await?.is_none())
    }

    /// Replaces the value of a key; whether the key was there. Nothing changes if it was not.
    ///
    /// ```
    /// # use farfield_rome::{RomeKv, RomeKvOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let ep = node.endpoint()?;
    /// # let store = RomeKv::<u64, u64>::open(&node, "store", RomeKvOptions::new([500]))?;
    /// assert!(!ep.block_on(store.thread()?.update(&ep, 7, 70))?);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    pub async fn update(&mut self, ep: &Endpoint, key: K, value: V) -> Result<bool> {
        Ok(self.update_one(ep, RomeKvUpdate::Update(key, value)).await?.is_some())
    }

    /// Gives a key this value; the one before.
    ///
    /// ```
    /// # use farfield_rome::{RomeKv, RomeKvOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let ep = node.endpoint()?;
    /// # let store = RomeKv::<u64, u64>::open(&node, "store", RomeKvOptions::new([500]))?;
    /// let mut thread = store.thread()?;
    /// assert_eq!(ep.block_on(thread.put(&ep, 7, 70))?, None);
    /// assert_eq!(ep.block_on(thread.put(&ep, 7, 71))?, Some(70));
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    pub async fn put(&mut self, ep: &Endpoint, key: K, value: V) -> Result<Option<V>> {
        self.update_one(ep, RomeKvUpdate::Put(key, value)).await
    }

    /// Takes a key out; the value that it had.
    ///
    /// ```
    /// # use farfield_rome::{RomeKv, RomeKvOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let ep = node.endpoint()?;
    /// # let store = RomeKv::<u64, u64>::open(&node, "store", RomeKvOptions::new([500]))?;
    /// assert_eq!(ep.block_on(store.thread()?.delete(&ep, &7))?, None);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    pub async fn delete(&mut self, ep: &Endpoint, key: &K) -> Result<Option<V>> {
        self.update_one(ep, RomeKvUpdate::Delete(*key)).await
    }

    /// Makes several updates. Those of this node's partitions are made at once, and the others are sent together, in as
    /// few puts as [`batch_max`](crate::RomeKvOptions::batch_max) allows. Each has its own result: the value before.
    ///
    /// They are no transaction, and have no order.
    ///
    /// ```
    /// # use farfield_rome::{RomeKv, RomeKvOptions, RomeKvUpdate};
    /// # let node = farfield::Node::builder().start()?;
    /// # let ep = node.endpoint()?;
    /// # let store = RomeKv::<u64, u64>::open(&node, "store", RomeKvOptions::new([500]))?;
    /// let mut thread = store.thread()?;
    /// let updates = [RomeKvUpdate::Put(7, 70), RomeKvUpdate::Insert(700, 7)];
    /// for before in ep.block_on(thread.apply(&ep, &updates)) {
    ///     assert_eq!(before?, None);
    /// }
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub async fn apply(&mut self, ep: &Endpoint, updates: &[RomeKvUpdate<K, V>]) -> Vec<Result<Option<V>>> {
        let (start, store) = (ep.now(), &self.store);
        let me = store.parts.object.node().id();
        let epochs: Vec<u64> = self.trees.iter().map(|tree| tree.epoch).collect();
        let mut clients: Vec<_> = self.trees.iter().map(|tree| (tree.owner, None)).collect();
        for update in updates {
            let partition = store.partition_of(update.key());
            let at = &mut self.trees[partition];
            if !at.is_here() && clients[partition].1.is_none() {
                // Without one, each of its updates has the error.
                clients[partition].1 = Some(at.client(store).cloned());
            }
        }
        let owner = |at: &usize| clients[store.partition_of(updates[*at].key())].0;
        let is_own = |at: &usize| owner(at) == me;
        let (own, mut sent): (Vec<usize>, Vec<usize>) = (0..updates.len()).partition(is_own);
        sent.sort_by_key(owner);
        let trees = RefCell::new(&mut self.trees);
        let groups = sent.chunk_by(|one, next| owner(one) == owner(next)).chain([&own[..]]);
        let sends = groups.map(|group| {
            let (trees, clients, epochs) = (&trees, &clients, &epochs);
            async move {
                // Those of this node are made while the others are under way.
                match group.first() {
                    Some(first) if let Some(client) = &clients[store.partition_of(updates[*first].key())].1 => {
                        match client {
                            Ok(client) => send(store, ep, start, client, (updates, epochs), group).await,
                            Err(error) => group.iter().map(|at| (*at, Err(error.clone()))).collect(),
                        }
                    }
                    _ => {
                        let trees = &mut **trees.borrow_mut();
                        group.iter().map(|at| (*at, run_here(store, trees, ep, &updates[*at]))).collect()
                    }
                }
            }
        });
        let mut results: Vec<(usize, Result<Option<V>>)> = Vec::with_capacity(updates.len());
        ep.each_in_window(usize::MAX, sends, |done: Vec<_>| results.extend(done)).await;
        results.sort_by_key(|result| result.0);
        let mut done = Vec::with_capacity(results.len());
        for (at, result) in results {
            done.push(match result {
                Ok(before) => Ok(before),
                // Its partition may have been moved.
                Err(error) => self.update_after(ep, start, updates[at], Some(error)).await,
            });
        }
        done
    }

    /// Fills empty partitions with pairs in the order of their keys: this node's own ones at the speed of
    /// [`Partition::load`](crate::Partition::load), those of others by updates in batches. If another node takes a
    /// partition meanwhile, the remaining pairs are sent to that one.
    ///
    /// ```
    /// # use farfield_rome::{RomeKv, RomeKvOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let ep = node.endpoint()?;
    /// # let store = RomeKv::<u64, u64>::open(&node, "store", RomeKvOptions::new([500]))?;
    /// let mut thread = store.thread()?;
    /// ep.block_on(thread.load(&ep, (0..1000).map(|key| (key, key * 2))))?;
    /// assert_eq!(ep.block_on(thread.get(&ep, &777))?, Some(1554));
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Config`]: the keys are not in order, or an own partition is not empty.
    /// [`MemoryFull`](crate::MemoryFull). [`RangeUnavailable`](crate::RangeUnavailable). The partitions before that one
    /// are loaded.
    pub async fn load(&mut self, ep: &Endpoint, pairs: impl IntoIterator<Item = (K, V)>) -> Result<()> {
        let mut pairs = pairs.into_iter().peekable();
        let (mut last, mut moved): (Option<K>, Option<Instant>) = (None, None);
        while let Some((first, _)) = pairs.peek().copied() {
            let partition = self.store.partition_of(&first);
            if last.is_some_and(|last| last >= first) {
                let why = "the keys to load are not in order, or one is there twice".into();
                return Err(Error::from(ErrorKind::Config { why }).of(self.store.path()));
            }
            let store = self.store.clone();
            let end = store.range_of(partition).1;
            let is_in = |pair: &(K, V)| pair.0 >= first && end.is_none_or(|end| pair.0 < end);
            if let Access::Here(tree) = &mut *self.trees[partition] {
                let of_it = core::iter::from_fn(|| pairs.next_if(is_in).inspect(|pair| last = Some(pair.0)));
                let mut kept = Vec::new();
                match tree.load_or_keep(ep, of_it, &mut kept) {
                    Ok(()) => moved = None,
                    Err(error) => {
                        let start = *moved.get_or_insert_with(|| ep.now());
                        self.follow(ep, partition, start, error).await?;
                        self.put_all(ep, kept).await?;
                    }
                }
                continue;
            }
            moved = None;
            let count_max = store.parts.options.window.saturating_mul(store.parts.options.batch_max);
            let mut puts = Vec::new();
            while puts.len() < count_max
                && let Some((key, value)) = pairs.next_if(is_in)
            {
                if last.is_some_and(|last| last >= key) {
                    let why = "the keys to load are not in order, or one is there twice".into();
                    return Err(Error::from(ErrorKind::Config { why }).of(self.store.path()));
                }
                last = Some(key);
                puts.push(RomeKvUpdate::Put(key, value));
            }
            for result in self.apply(ep, &puts).await {
                result?;
            }
        }
        Ok(())
    }

    /// By updates, wherever their keys are.
    async fn put_all(&mut self, ep: &Endpoint, pairs: Vec<(K, V)>) -> Result<()> {
        let options = &self.store.parts.options;
        let count_max = options.window.saturating_mul(options.batch_max);
        for some in pairs.chunks(count_max) {
            let puts: Vec<_> = some.iter().map(|(key, value)| RomeKvUpdate::Put(*key, *value)).collect();
            for result in self.apply(ep, &puts).await {
                result?;
            }
        }
        Ok(())
    }

    async fn update_one(&mut self, ep: &Endpoint, update: RomeKvUpdate<K, V>) -> Result<Option<V>> {
        let mut failed = None;
        if let Access::Here(tree) = &mut *self.trees[self.store.partition_of(update.key())] {
            match update.run(tree, ep) {
                Ok(before) => return Ok(before),
                Err(error) => failed = Some(error),
            }
        }
        self.update_after(ep, ep.now(), update, failed).await
    }

    /// Makes an update, after an attempt with this error.
    async fn update_after(
        &mut self,
        ep: &Endpoint,
        start: Instant,
        update: RomeKvUpdate<K, V>,
        mut error: Option<Error>,
    ) -> Result<Option<V>> {
        let partition = self.store.partition_of(update.key());
        loop {
            if let Some(error) = error.take() {
                // Its partition may have been moved.
                self.follow(ep, partition, start, error).await?;
            }
            let at = &mut self.trees[partition];
            let epoch = at.epoch;
            let result = match at.access() {
                Access::Here(tree) => update.run(tree, ep),
                Access::There(_) | Access::Gone(_) => match at.client(&self.store) {
                    Ok(client) => {
                        let request = Request { partition, epoch, ask: Ask::Update(update) };
                        ask(&self.store, ep, start, client, request).await.map(Reply::before)
                    }
                    Err(error) => Err(error),
                },
            };
            match result {
                Ok(before) => return Ok(before),
                Err(failed) => error = Some(failed),
            }
        }
    }

    /// Up to `limit` pairs of a range, in the order of their keys. Each partition is read as of one moment, which is
    /// within the call.
    ///
    /// ```
    /// # use farfield_rome::{RomeKv, RomeKvOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let ep = node.endpoint()?;
    /// # let store = RomeKv::<u64, u64>::open(&node, "store", RomeKvOptions::new([5]))?;
    /// # let mut thread = store.thread()?;
    /// ep.block_on(thread.load(&ep, (0..10).map(|key| (key, key * 2))))?;
    /// assert_eq!(ep.block_on(thread.range(&ep, 4.., 2))?, [(4, 8), (5, 10)]);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`RangeUnavailable`](crate::RangeUnavailable): an owner is dead, or does not answer. For the pairs before its
    /// keys, use [`scan`](Self::scan).
    pub async fn range(&mut self, ep: &Endpoint, range: impl RangeBounds<K>, limit: usize) -> Result<Vec<(K, V)>> {
        self.some(ep, &range, false, limit).await
    }

    /// Up to `limit` pairs of a range, the last ones, from the last to the first, as [`range`](Self::range).
    ///
    /// ```
    /// # use farfield_rome::{RomeKv, RomeKvOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let ep = node.endpoint()?;
    /// # let store = RomeKv::<u64, u64>::open(&node, "store", RomeKvOptions::new([5]))?;
    /// # let mut thread = store.thread()?;
    /// ep.block_on(thread.load(&ep, (0..10).map(|key| (key, key * 2))))?;
    /// assert_eq!(ep.block_on(thread.range_back(&ep, ..6, 2))?, [(5, 10), (4, 8)]);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As `range`.
    pub async fn range_back(&mut self, ep: &Endpoint, range: impl RangeBounds<K>, limit: usize) -> Result<Vec<(K, V)>> {
        self.some(ep, &range, true, limit).await
    }

    async fn some(
        &mut self,
        ep: &Endpoint,
        range: &impl RangeBounds<K>,
        is_backward: bool,
        limit: usize,
    ) -> Result<Vec<(K, V)>> {
        let start = ep.now();
        loop {
            match self.scan_of(range, is_backward).collect(ep, limit).await {
                // This thread was stopped.
                Err(error) => again(ep, start, error).of(self.store.path())?,
                pairs => return pairs,
            }
        }
    }

    /// The first pair of all, or the last one.
    async fn end(&mut self, ep: &Endpoint, is_last: bool) -> Result<Option<(K, V)>> {
        let (start, partitions) = (ep.now(), self.store.partitions());
        let (first, next) = self.store.range_of(if is_last { partitions - 1 } else { 0 });
        let range = (Bound::Included(first), next.map_or(Bound::Unbounded, Bound::Excluded));
        // A pair of this partition precedes those of all others. If it has none, all of them have to be read at one
        // instant: otherwise its first pair may come, and the one that is found go, before the other is read.
        if let Some(pair) = self.some(ep, &range, is_last, 1).await?.pop() {
            return Ok(Some(pair));
        }
        if partitions == 1 {
            return Ok(None);
        }
        loop {
            let pairs = async { self.scan_at_once(ep, &.., is_last).await?.collect(ep, 1).await };
            match pairs.await {
                Err(error) => again(ep, start, error).of(self.store.path())?,
                pairs => return Ok(pairs?.pop()),
            }
        }
    }

    /// The first pair, as it was at one moment during the call. If the first partition is empty, all of them are read
    /// at one instant, as by [`scan_at_one_instant`](Self::scan_at_one_instant).
    ///
    /// ```
    /// # use farfield_rome::{RomeKv, RomeKvOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let ep = node.endpoint()?;
    /// # let store = RomeKv::<u64, u64>::open(&node, "store", RomeKvOptions::new([500]))?;
    /// assert_eq!(ep.block_on(store.thread()?.first(&ep))?, None);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`scan_at_one_instant`](Self::scan_at_one_instant).
    pub async fn first(&mut self, ep: &Endpoint) -> Result<Option<(K, V)>> {
        self.end(ep, false).await
    }

    /// The last pair, as [`first`](Self::first).
    ///
    /// ```
    /// # use farfield_rome::{RomeKv, RomeKvOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let ep = node.endpoint()?;
    /// # let store = RomeKv::<u64, u64>::open(&node, "store", RomeKvOptions::new([500]))?;
    /// assert_eq!(ep.block_on(store.thread()?.last(&ep))?, None);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`first`](Self::first).
    pub async fn last(&mut self, ep: &Endpoint) -> Result<Option<(K, V)>> {
        self.end(ep, true).await
    }
}

/// Makes an update of a partition of this node.
fn run_here<K: TreeKey, V: Field>(
    store: &RomeKv<K, V>,
    trees: &mut [At<K, V>],
    ep: &Endpoint,
    update: &RomeKvUpdate<K, V>,
) -> Result<Option<V>> {
    match &mut *trees[store.partition_of(update.key())] {
        Access::Here(tree) => update.run(tree, ep),
        Access::There(_) | Access::Gone(_) => unreachable!("it is this node's"),
    }
}
