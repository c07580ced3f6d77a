//! Calls that move a key: those that depend on its value, and those that find its register used up.

use farfield_core::{Key, Result, Value};

use super::{Name, SwarmStoreClient, UPDATE_IF, Words};
use crate::cell::Entry;
use crate::moving::Moved;
use crate::version::Location;

impl<'e, K: Key, V: Value> SwarmStoreClient<'e, K, V> {
    /// Replaces the value of a key if it passes a test, as one operation. Returns whether it has. An absent key passes
    /// none. The test may be made several times.
    ///
    /// The key moves to another register then, which all clients agree on. This takes up to eight round trips, and two
    /// more of other clients, which have to look for the key once. If the client dies in the middle, others that need
    /// the key end the move.
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

    /// Moves a key to a register with timestamps, with a new value or the same one. False if others have moved or
    /// deleted it.
    #[cold]
    pub(super) async fn renew(&self, name: &Name<'_, 'e>, at: Location, words: Option<&Words>) -> Result<bool> {
        let (entry, mut found) = (Entry::mapped(at, name.hash), self.empty_words());
        let mut replace = |_: &[u64]| Ok(words.cloned());
        let moved = Box::pin(name.core.move_key(name.cell, entry, &mut found, &mut replace)).await?;
        self.forget(name, at);
        match moved {
            Moved::Replaced(to) | Moved::Kept(to) => self.remember(name, to),
            Moved::Lost => return Ok(false),
        }
        name.core.tend_if_many().await;
        Ok(true)
    }
}
