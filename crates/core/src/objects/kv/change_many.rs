//! Changing several keys at once.

use farfield_fabric::Endpoint;

use super::{Key, KvStore, Value, WINDOW};
use crate::error::Result;

impl<K: Key, V: Value> KvStore<K, V> {
    /// Inserts several keys, or changes their values, up to 64 of them at a time; those that share a lock one after the
    /// other. Each is an operation of its own ([`KvStore::upsert`]); together they are none. Of several values of one
    /// key, the last stays.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let node = farfield::Node::builder().session("doc-kv-upsert-many").start()?;
    /// # let ep = node.endpoint()?;
    /// # let store = farfield::KvStore::<u64, u64>::open(&node, "store", farfield::KvOptions::default())?;
    /// ep.block_on(store.upsert_many(&ep, &[(7, 70), (8, 80)]))?;
    /// assert_eq!(ep.block_on(store.get(&ep, &8))?, Some(80));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The first error of [`KvStore::upsert`]. The other pairs are written nevertheless.
    pub async fn upsert_many(&self, endpoint: &Endpoint, pairs: &[(K, V)]) -> Result<()> {
        let order = self.by_lock(pairs.iter().map(|(key, _)| key));
        let calls = order.chunk_by(|a, b| a.0 == b.0).map(async |group| {
            let mut ended = Ok(());
            for (_, at) in group {
                let (key, value) = &pairs[*at];
                ended = ended.and(self.upsert(endpoint, key, value).await);
            }
            ended
        });
        let mut ended = Ok(());
        endpoint.each_in_window(WINDOW, calls, |done| ended = ended.clone().and(done)).await;
        ended
    }

    /// Removes several keys, up to 64 of them at a time; those that share a lock one after the other. Each is an
    /// operation of its own ([`KvStore::delete`]). Returns how many of them were there.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let node = farfield::Node::builder().session("doc-kv-delete-many").start()?;
    /// # let ep = node.endpoint()?;
    /// # let store = farfield::KvStore::<u64, u64>::open(&node, "store", farfield::KvOptions::default())?;
    /// ep.block_on(store.upsert_many(&ep, &[(7, 70), (8, 80)]))?;
    /// assert_eq!(ep.block_on(store.delete_many(&ep, &[8, 9]))?, 1);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The first error of [`KvStore::delete`]. The other keys are removed nevertheless.
    pub async fn delete_many(&self, endpoint: &Endpoint, keys: &[K]) -> Result<usize> {
        let order = self.by_lock(keys.iter());
        let calls = order.chunk_by(|a, b| a.0 == b.0).map(async |group| {
            let (mut removed, mut ended) = (0, Ok(()));
            for (_, at) in group {
                let done = self.delete(endpoint, &keys[*at]).await;
                removed += usize::from(matches!(done, Ok(true)));
                ended = ended.and(done.map(drop));
            }
            (removed, ended)
        });
        let (mut removed, mut ended) = (0, Ok(()));
        let note = |(of_group, done)| {
            removed += of_group;
            ended = ended.clone().and(done);
        };
        endpoint.each_in_window(WINDOW, calls, note).await;
        ended.map(|()| removed)
    }

    /// The stripes of keys, in order, with the places of the keys. Calls under one lock would only wait for each other.
    fn by_lock<'k>(&self, keys: impl Iterator<Item = &'k K>) -> Vec<(usize, usize)> {
        let mut order: Vec<_> = keys.enumerate().map(|(at, key)| (self.stripe(key), at)).collect();
        order.sort_unstable();
        order
    }
}
