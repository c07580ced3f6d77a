//! The calls of a client that it waits for on its thread.

use farfield_core::{Key, Result, Value};

use super::SwarmStoreClient;

impl<'e, K: Key, V: Value> SwarmStoreClient<'e, K, V> {
    /// [`SwarmStoreClient::get`], which it waits for on this thread.
    ///
    /// ```
    /// # use farfield::swarm::{SwarmStore, SwarmStoreOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let store = SwarmStore::<u64, u64>::open(&node, "s", SwarmStoreOptions::default())?;
    /// # let ep = node.endpoint()?;
    /// # let client = store.client(&ep)?;
    /// assert_eq!(client.get_blocking(&7)?, None);
    /// # drop(client);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As `get`.
    pub fn get_blocking(&self, key: &K) -> Result<Option<V>> {
        self.cores.first().endpoint.block_on(self.get(key))
    }

    /// [`SwarmStoreClient::get_many`], which it waits for on this thread.
    ///
    /// ```
    /// # use farfield::swarm::{SwarmStore, SwarmStoreOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let store = SwarmStore::<u64, u64>::open(&node, "s", SwarmStoreOptions::default())?;
    /// # let ep = node.endpoint()?;
    /// # let client = store.client(&ep)?;
    /// assert_eq!(client.get_many_blocking(&[7, 8])?, [None, None]);
    /// # drop(client);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As `get_many`.
    pub fn get_many_blocking(&self, keys: &[K]) -> Result<Vec<Option<V>>> {
        self.cores.first().endpoint.block_on(self.get_many(keys))
    }

    /// [`SwarmStoreClient::insert`], which it waits for on this thread.
    ///
    /// ```
    /// # use farfield::swarm::{SwarmStore, SwarmStoreOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let store = SwarmStore::<u64, u64>::open(&node, "s", SwarmStoreOptions::default())?;
    /// # let ep = node.endpoint()?;
    /// # let client = store.client(&ep)?;
    /// assert!(client.insert_blocking(&7, &49)?);
    /// # drop(client);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As `insert`.
    pub fn insert_blocking(&self, key: &K, value: &V) -> Result<bool> {
        self.cores.first().endpoint.block_on(self.insert(key, value))
    }

    /// [`SwarmStoreClient::update`], which it waits for on this thread.
    ///
    /// ```
    /// # use farfield::swarm::{SwarmStore, SwarmStoreOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let store = SwarmStore::<u64, u64>::open(&node, "s", SwarmStoreOptions::default())?;
    /// # let ep = node.endpoint()?;
    /// # let client = store.client(&ep)?;
    /// assert!(!client.update_blocking(&7, &49)?);
    /// # drop(client);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As `update`.
    pub fn update_blocking(&self, key: &K, value: &V) -> Result<bool> {
        self.cores.first().endpoint.block_on(self.update(key, value))
    }

    /// [`SwarmStoreClient::upsert`], which it waits for on this thread.
    ///
    /// ```
    /// # use farfield::swarm::{SwarmStore, SwarmStoreOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let store = SwarmStore::<u64, u64>::open(&node, "s", SwarmStoreOptions::default())?;
    /// # let ep = node.endpoint()?;
    /// # let client = store.client(&ep)?;
    /// client.upsert_blocking(&7, &49)?;
    /// # drop(client);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As `upsert`.
    pub fn upsert_blocking(&self, key: &K, value: &V) -> Result<()> {
        self.cores.first().endpoint.block_on(self.upsert(key, value))
    }

    /// [`SwarmStoreClient::delete`], which it waits for on this thread.
    ///
    /// ```
    /// # use farfield::swarm::{SwarmStore, SwarmStoreOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let store = SwarmStore::<u64, u64>::open(&node, "s", SwarmStoreOptions::default())?;
    /// # let ep = node.endpoint()?;
    /// # let client = store.client(&ep)?;
    /// client.delete_blocking(&7)?;
    /// # drop(client);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As `delete`.
    pub fn delete_blocking(&self, key: &K) -> Result<()> {
        self.cores.first().endpoint.block_on(self.delete(key))
    }

    /// [`SwarmStoreClient::update_if`], which it waits for on this thread.
    ///
    /// ```
    /// # use farfield::swarm::{SwarmStore, SwarmStoreOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let store = SwarmStore::<u64, u64>::open(&node, "s", SwarmStoreOptions::default())?;
    /// # let ep = node.endpoint()?;
    /// # let client = store.client(&ep)?;
    /// assert!(!client.update_if_blocking(&7, |_| true, &49)?);
    /// # drop(client);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As `update_if`.
    pub fn update_if_blocking(&self, key: &K, passes: impl FnMut(&V) -> bool, value: &V) -> Result<bool> {
        self.cores.first().endpoint.block_on(self.update_if(key, passes, value))
    }
}
