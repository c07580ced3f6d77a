//! Changing several keys at once.

use farfield_fabric::Endpoint;

use super::{Key, KvStore, Value, WINDOW};
use crate::error::Result;

impl<K: Key, V: Value> KvStore<K, V> {
    /// Inserts several keys, or changes their values, up to 64 of them at a time. Each is an operation of its own
    /// ([`KvStore::upsert`]); together they are none. Of several values of one key, one stays.
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
        let mut ended = Ok(());
        let calls = pairs.iter().map(|(key, value)| self.upsert(endpoint, key, value));
        let note = |done| {
            if ended.is_ok() {
                ended = done;
            }
        };
        endpoint.each_in_window(WINDOW, calls, note).await;
        ended
    }

    /// Removes several keys, up to 64 of them at a time. Each is an operation of its own ([`KvStore::delete`]). Returns how
    /// many of them were there.
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
        let (mut removed, mut ended) = (0, Ok(()));
        let calls = keys.iter().map(|key| self.delete(endpoint, key));
        endpoint
            .each_in_window(WINDOW, calls, |done| match done {
                Ok(was_there) => removed += usize::from(was_there),
                Err(error) if ended.is_ok() => ended = Err(error),
                Err(_) => {}
            })
            .await;
        ended.map(|()| removed)
    }
}
