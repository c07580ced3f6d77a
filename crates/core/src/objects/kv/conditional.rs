//! Calls that depend on the value of a key: changes if it passes a test, and waits until it is another.

use core::time::Duration;

use farfield_fabric::{Endpoint, Instant};

use super::{DELETE, GET, Key, KvStore, Value};
use crate::error::{ErrorContext, ErrorKind, Result};
use crate::node::measured;

/// A wait for a change looks at least so often: an insert on another node, or the reopening of the store, need not wake
/// it.
const LOOK_EVERY: Duration = Duration::from_millis(10);

impl<K: Key, V: Value> KvStore<K, V> {
    /// Updates a key if its value passes a test, as one operation. Returns whether it has. An absent key passes none.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let node = farfield::Node::builder().session("doc-kv-update-if").start()?;
    /// # let ep = node.endpoint()?;
    /// # let store = farfield::KvStore::<u64, u64>::open(&node, "store", farfield::KvOptions::default())?;
    /// ep.block_on(store.insert(&ep, &7, &70))?;
    /// assert!(ep.block_on(store.update_if(&ep, &7, |value| *value == 70, &71))?); // compare and set
    /// assert!(!ep.block_on(store.update_if(&ep, &7, |value| *value == 70, &72))?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`KvStore::modify`].
    pub async fn update_if(
        &self,
        endpoint: &Endpoint,
        key: &K,
        passes: impl FnOnce(&V) -> bool,
        value: &V,
    ) -> Result<bool> {
        let mut is_updated = false;
        let change = |old: Option<&V>| {
            is_updated = old.is_some_and(passes);
            is_updated.then(|| value.clone())
        };
        self.modify(endpoint, key, change).await?;
        Ok(is_updated)
    }

    /// Removes a key if its value passes a test, as one operation. Returns whether it has. An absent key passes none.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let node = farfield::Node::builder().session("doc-kv-delete-if").start()?;
    /// # let ep = node.endpoint()?;
    /// # let store = farfield::KvStore::<u64, u64>::open(&node, "store", farfield::KvOptions::default())?;
    /// ep.block_on(store.insert(&ep, &7, &70))?;
    /// assert!(!ep.block_on(store.delete_if(&ep, &7, |value| *value == 71))?); // another has changed it
    /// assert!(ep.block_on(store.delete_if(&ep, &7, |value| *value == 70))?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`KvStore::delete`], or [`ErrorKind::ValueLost`]: the value cannot be read.
    pub async fn delete_if(&self, endpoint: &Endpoint, key: &K, passes: impl FnOnce(&V) -> bool) -> Result<bool> {
        measured!(self.object.meter(), endpoint, DELETE, self.delete_if(endpoint, key, passes));
        self.check_sizes(key, None)?;
        let locked = self.lock(endpoint, key).await?;
        self.object.meter().skip(endpoint, GET);
        let passes = self.get(endpoint, key).await?.is_some_and(|value| passes(&value));
        match self.index.get(key).filter(|_| passes) {
            None => locked.unlock().await.map(|()| false),
            Some(entry) => self.remove(locked, key, entry).await?.unlock().await.map(|()| true),
        }
    }

    /// Waits until the value of a key is another than `seen` (none: the key is absent). Returns the new value. A value
    /// that changes and changes back between two looks may go unnoticed.
    ///
    /// Each look is a get, and a change is noticed within 10 ms. (If a writer has stopped in the middle of the value, a
    /// look takes up to the endpoint's timeout.)
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let node = farfield::Node::builder().session("doc-kv-wait-change").start()?;
    /// # let ep = node.endpoint()?;
    /// # let store = farfield::KvStore::<u64, u64>::open(&node, "store", farfield::KvOptions::default())?;
    /// let mut seen = ep.block_on(store.get(&ep, &7))?;
    /// # ep.block_on(store.upsert(&ep, &7, &70))?;
    /// // … another node inserts the key …
    /// seen = ep.block_on(store.wait_change(&ep, &7, seen.as_ref(), ep.deadline()))?;
    /// assert_eq!(seen, Some(70));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// A timeout; those of [`KvStore::get`]; the store is reopened.
    pub async fn wait_change(
        &self,
        endpoint: &Endpoint,
        key: &K,
        seen: Option<&V>,
        deadline: Instant,
    ) -> Result<Option<V>>
    where
        V: PartialEq,
    {
        let start = endpoint.now();
        loop {
            let value = self.get(endpoint, key).await?;
            if value.as_ref() != seen {
                return Ok(value);
            }
            self.object.check_unasked()?;
            let now = endpoint.now();
            if now >= deadline {
                let (what, waited) = ("the value to change".into(), now - start);
                return Err(ErrorKind::Timeout { what, waited, missing: Vec::new() }).of(self.object.path());
            }
            let until = deadline.min(now + LOOK_EVERY);
            match self.index.get(key) {
                Some(entry) if entry.slot.node() != endpoint.me() => {
                    endpoint.wait_for_change_on(entry.slot, until).await;
                }
                _ => endpoint.wait_for_change(until).await,
            }
        }
    }
}
