//! Calls that depend on the value of a key.

use farfield_core::{Key, Result, Value};

use super::{SwarmStoreClient, UPDATE_IF};
use crate::cell::Entry;
use crate::moving::Moved;

impl<K: Key, V: Value> SwarmStoreClient<'_, K, V> {
    /// Replaces the value of a key if it passes a test, as one operation. Returns whether it has. An absent key passes none. The
    /// test may be made several times.
    ///
    /// The key moves to another register then, which all clients agree on. This takes up to eight round trips, and two more of
    /// other clients, which have to look for the key once. If the client dies in the middle, others that need the key end the move.
    ///
    /// ```
    /// # use farfield::swarm::{SwarmStore, SwarmStoreOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let store = SwarmStore::<u64, u64>::open(&node, "s", SwarmStoreOptions::default())?;
    /// # let ep = node.endpoint()?;
    /// # let client = store.client(&ep)?;
    /// client.insert_blocking(&7, &70)?;
    /// assert!(ep.block_on(client.update_if(&7, |value| *value == 70, &71))?); // compare and set
    /// assert!(!ep.block_on(client.update_if(&7, |value| *value == 70, &72))?);
    /// # drop(client);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`SwarmStoreClient::insert`]: the move needs a free register, too.
    pub async fn update_if(&self, key: &K, mut passes: impl FnMut(&V) -> bool, value: &V) -> Result<bool> {
        measured!(self.cores.first(), UPDATE_IF, self.update_if(key, passes, value));
        let name = self.name(key)?;
        let (words, mut found) = (self.encode(&name, value)?, self.empty_words());
        loop {
            let Some(at) = self.find(&name, &mut found).await? else { return Ok(false) };
            if !passes(&self.decode(&found)?) {
                return Ok(false);
            }
            let mut replace = |found: &[u64]| Ok(passes(&self.decode(found)?).then(|| words.clone()));
            let entry = Entry::mapped(at, name.hash);
            let moved = name.core.move_key(name.cell, entry, &mut found, &mut replace).await?;
            self.forget(&name, at);
            match moved {
                Moved::Replaced(to) => {
                    self.remember(&name, to);
                    name.core.tend_if_many().await;
                    return Ok(true);
                }
                Moved::Kept(to) => {
                    self.remember(&name, to);
                    return Ok(false);
                }
                Moved::Lost => {}
            }
        }
    }
}
