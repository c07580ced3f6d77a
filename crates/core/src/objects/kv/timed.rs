//! Keys that stay for a time.

use core::time::Duration;

use farfield_fabric::Endpoint;

use super::{EXPIRE_AFTER, INSERT, Key, KvStore, UPSERT, Value};
use crate::error::Result;
use crate::node::measured;

impl<K: Key, V: Value> KvStore<K, V> {
    /// [`KvStore::insert`] of a key with a time to live: it is removed when its time is up. The node that has the value
    /// counts the time, by its own clock. The key is not removed before `time` has passed since the call began. It is
    /// removed soon after, as by [`KvStore::delete`], and no node has to call anything: within a millisecond or two if
    /// the service thread of that node gets a core, and the key's lock is free then. While other calls hold the lock,
    /// it tries again every millisecond. Keys that expire together are removed one after the other, some ten thousand
    /// in a second.
    ///
    /// The time is the key's. [`KvStore::update`], [`KvStore::upsert`] and [`KvStore::modify`] change its value and
    /// leave the time as it is. [`KvStore::upsert_for`] and [`KvStore::expire_after`] set it anew. It ends with a
    /// delete: a key that is inserted again has no time, or its own. [`KvStore::open_with_pairs_of`] copies the rest of
    /// it. If the node with the value dies or leaves, the value is lost, and nothing removes its key.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # use std::time::Duration;
    /// # let node = farfield::Node::builder().session("doc-kv-insert-for").start()?;
    /// # let ep = node.endpoint()?;
    /// # let store = farfield::KvStore::<u64, u64>::open(&node, "store", farfield::KvOptions::default())?;
    /// assert!(ep.block_on(store.insert_for(&ep, &7, &70, Duration::from_millis(20)))?);
    /// assert_eq!(ep.block_on(store.wait_change(&ep, &7, Some(&70), ep.deadline()))?, None); // 20 ms later
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`KvStore::insert`].
    pub async fn insert_for(&self, endpoint: &Endpoint, key: &K, value: &V, time: Duration) -> Result<bool> {
        measured!(self.object.meter(), endpoint, INSERT, self.insert_for(endpoint, key, value, time));
        self.check_sizes(key, Some(value))?;
        let locked = self.lock(endpoint, key).await?;
        if self.index.get(key).is_some_and(|entry| self.check_there(endpoint, entry).is_ok()) {
            return locked.unlock().await.map(|()| false);
        }
        self.insert_locked(locked, key, value, Some(time)).await.map(|()| true)
    }

    /// [`KvStore::upsert`] of a key with a time to live, see [`KvStore::insert_for`]. The time begins anew.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # use std::time::Duration;
    /// # let node = farfield::Node::builder().session("doc-kv-upsert-for").start()?;
    /// # let ep = node.endpoint()?;
    /// # let store = farfield::KvStore::<u64, u64>::open(&node, "store", farfield::KvOptions::default())?;
    /// ep.block_on(store.upsert(&ep, &7, &70))?; // it stays
    /// ep.block_on(store.upsert_for(&ep, &7, &71, Duration::from_millis(20)))?;
    /// assert_eq!(ep.block_on(store.wait_change(&ep, &7, Some(&71), ep.deadline()))?, None); // 20 ms later
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`KvStore::insert`]. The time may be set nevertheless, and the value not changed.
    pub async fn upsert_for(&self, endpoint: &Endpoint, key: &K, value: &V, time: Duration) -> Result<()> {
        measured!(self.object.meter(), endpoint, UPSERT, self.upsert_for(endpoint, key, value, time));
        self.check_sizes(key, Some(value))?;
        let locked = self.lock(endpoint, key).await?;
        match self.index.get(key).filter(|entry| self.check_there(endpoint, *entry).is_ok()) {
            None => self.insert_locked(locked, key, value, Some(time)).await,
            Some(entry) => {
                // First, since it needs the lock: the update ends with its release.
                let locked = self.set_time(locked, key, entry, time).await?;
                self.update_locked(locked, entry, value).await
            }
        }
    }

    /// Sets the time to live of a key, from now on, see [`KvStore::insert_for`]. With [`Duration::MAX`] the key
    /// stays. Returns `false` if the key is absent: then its time was up, or another has removed it.
    ///
    /// This takes 2 round trips if the value is here. If it is elsewhere, all nodes learn of the time: 2 and the
    /// acknowledgements.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # use std::time::Duration;
    /// # let node = farfield::Node::builder().session("doc-kv-expire-after").start()?;
    /// # let ep = node.endpoint()?;
    /// # let store = farfield::KvStore::<u64, u64>::open(&node, "leases", farfield::KvOptions::default())?;
    /// let lease = Duration::from_secs(1);
    /// assert!(ep.block_on(store.insert_for(&ep, &7, &70, lease))?);
    /// // … every now and then, as long as it is needed …
    /// assert!(ep.block_on(store.expire_after(&ep, &7, lease))?);
    /// assert!(ep.block_on(store.expire_after(&ep, &7, Duration::MAX))?); // it stays after all
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::ValueLost`](crate::ErrorKind::ValueLost), or a timeout: the time may be set nevertheless.
    pub async fn expire_after(&self, endpoint: &Endpoint, key: &K, time: Duration) -> Result<bool> {
        measured!(self.object.meter(), endpoint, EXPIRE_AFTER, self.expire_after(endpoint, key, time));
        self.check_sizes(key, None)?;
        let locked = self.lock(endpoint, key).await?;
        let Some(entry) = self.index.get(key) else {
            return locked.unlock().await.map(|()| false);
        };
        self.check_there(endpoint, entry)?;
        let locked = self.set_time(locked, key, entry, time).await?;
        locked.unlock().await?;
        self.check_there(endpoint, entry).map(|()| true)
    }
}
