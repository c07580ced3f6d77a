//! All keys of a store, with their values.

use farfield_fabric::Endpoint;

use super::{Key, KvStore, Value};
use crate::error::Result;

impl<K: Key, V: Value> KvStore<K, V> {
    /// The number of keys in this node's index.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let node = farfield::Node::builder().session("doc-objects-kv-mod-1").start()?;
    /// # let ep = node.endpoint()?;
    /// # let store = farfield::KvStore::<u64, u64>::open(&node, "store", farfield::KvOptions::default())?;
    /// ep.block_on(store.insert(&ep, &7, &70))?;
    /// assert_eq!((store.len(), store.is_empty()), (1, false));
    /// # Ok(()) }
    /// ```
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether this node's index has no keys.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let node = farfield::Node::builder().start()?;
    /// # let store = farfield::KvStore::<u64, u64>::open(&node, "store", farfield::KvOptions::default())?;
    /// assert!(store.is_empty());
    /// # Ok(()) }
    /// ```
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The keys in this node's index, in no order. A key is there if its insert has returned before the call, on
    /// whichever node, and its delete has not begun. A key that is inserted or deleted meanwhile may be there or not.
    /// It takes no round trip.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let node = farfield::Node::builder().session("doc-kv-keys").start()?;
    /// # let ep = node.endpoint()?;
    /// # let store = farfield::KvStore::<u64, u64>::open(&node, "store", farfield::KvOptions::default())?;
    /// for key in [8, 7] {
    ///     ep.block_on(store.insert(&ep, &key, &(key * 10)))?;
    /// }
    /// let mut keys = store.keys();
    /// keys.sort_unstable();
    /// assert_eq!(keys, [7, 8]);
    /// # Ok(()) }
    /// ```
    pub fn keys(&self) -> Vec<K> {
        self.index.entries(|_| true).into_iter().map(|(key, _)| key).collect()
    }

    /// The pairs of the store: the keys as [`KvStore::keys`] has them, each with the result of reading it, in no order.
    /// Each key is read at its own moment, and those on other nodes many at a time, as by [`KvStore::get_many`]:
    /// together the pairs are not a snapshot. A key that has gone meanwhile is left out.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let node = farfield::Node::builder().session("doc-kv-pairs").start()?;
    /// # let ep = node.endpoint()?;
    /// # let store = farfield::KvStore::<u64, u64>::open(&node, "store", farfield::KvOptions::default())?;
    /// ep.block_on(store.insert(&ep, &7, &70))?;
    /// for (key, value) in ep.block_on(store.pairs(&ep))? {
    ///     assert_eq!((key, value?), (7, 70)); // a value that was lost with its node is an error of its own
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// There is no memory to read into.
    pub async fn pairs(&self, endpoint: &Endpoint) -> Result<Vec<(K, Result<V>)>> {
        let keys = self.keys();
        let mut values = Vec::with_capacity(keys.len());
        self.get_many(endpoint, &keys, &mut values).await?;
        Ok(keys.into_iter().zip(values).filter_map(|(key, value)| Some((key, value.transpose()?))).collect())
    }
}
