//! Inserting (§5.3.1): the value and its mapping at the same time.

use farfield_core::{Error, Key, Result, Value};
use farfield_fabric::Instant;

use super::{INSERT, Name, SwarmStoreClient};
use crate::agreement::Deciding;
use crate::cell::{Change, Entry};
use crate::chores::Chore;
use crate::errors::StoreFull;
use crate::mapping::Mapping;
use crate::registers::Doubt;
use crate::safe_guess::Read;
use crate::version::Version;

impl<'e, K: Key, V: Value> SwarmStoreClient<'e, K, V> {
    /// Inserts a key. False if it is there already.
    ///
    /// ```
    /// # use farfield::swarm::{SwarmStore, SwarmStoreOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let store = SwarmStore::<u64, u64>::open(&node, "s", SwarmStoreOptions::default())?;
    /// # let ep = node.endpoint()?;
    /// # let client = store.client(&ep)?;
    /// assert!(ep.block_on(client.insert(&7, &49))?);
    /// assert!(!ep.block_on(client.insert(&7, &50))?);
    /// # drop(client);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`NoMajority`](crate::NoMajority), a timeout and more than 64 calls at a time: it has happened, or not, or will
    /// before this client's next insert that finds no free register. The key or the value is too long, [`StoreFull`] or
    /// [`TimestampsUsedUp`](crate::TimestampsUsedUp): it has not.
    pub async fn insert(&self, key: &K, value: &V) -> Result<bool> {
        measured!(self.cores.first(), INSERT, self.insert(key, value));
        self.add(key, value).await
    }

    pub(super) async fn add(&self, key: &K, value: &V) -> Result<bool> {
        let name = self.name(key)?;
        let words = self.encode(&name, value)?;
        let mut found = self.empty_words();
        if self.cached(&name).is_some() && self.find(&name, &mut found).await?.is_some() {
            return Ok(false);
        }
        let core = name.core;
        let deciding = Deciding { is_new: !core.is_used(name.cell), ..Deciding::new(name.cell) };
        let room = core.take_room().await?;
        let mut mapping = room.fill(&words, deciding, |at| Entry::mapped(at, name.hash), None)?;
        let mapped = self.map(&mut mapping, &name, &mut found).await?;
        if mapped == Mapped::Now {
            self.remember(&name, mapping.doubt.mapping.at());
        }
        let has_had = mapping.end(mapped == Mapped::Now).await?;
        if !has_had {
            core.tend_if_many().await;
        }
        match mapped {
            Mapped::Full if !has_had => {
                Err(Error::custom(StoreFull { keys: core.shared.size }).of(core.shared.object.path()))
            }
            Mapped::NoRoom { since } if !has_had => {
                let what = "room for the key in the index: other clients give back the registers of deleted keys there \
                            with their next inserts and deletes";
                Err(core.timed_out(what, since, Vec::new()))
            }
            _ => Ok(has_had),
        }
    }

    /// Maps the key to the register, unless another one has it already.
    async fn map(&self, mapping: &mut Mapping<'_, 'e>, name: &Name<'_, 'e>, found: &mut [u64]) -> Result<Mapped> {
        let core = name.core;
        let (doubt, payload) = mapping.parts();
        let mapping = doubt.mapping;
        let start = core.endpoint.now();
        let Doubt { deciding, moved, .. } = doubt;
        // Those that look alike, and are of other keys; and one that was deleted, whose place is taken.
        let (mut others, mut deleted): (Vec<Entry>, Option<(Entry, Version)>) = (Vec::new(), None);
        loop {
            let (mut alike, mut is_full) = (None, false);
            let mut map = |entries: &_| {
                let entries: &crate::cell::Entries = entries;
                (alike, is_full) = (None, false);
                if entries.contains(&mapping) {
                    return None;
                }
                let deleted = deleted.filter(|(entry, _)| entries.contains(entry));
                let (from, limit) = deleted.unwrap_or((Entry::NONE, Version::NONE));
                let is_alike = |entry: &&Entry| entry.may_be(name.hash) && !others.contains(*entry) && **entry != from;
                alike = entries.iter().find(is_alike).copied();
                is_full = !entries.contains(&from);
                let change = Change { version: payload.version, limit, ..Change::new(from, mapping) };
                let is_made = alike.is_none() && !is_full;
                if is_made {
                    *moved = deleted.map(|(entry, seal)| (entry.at(), seal));
                }
                is_made.then_some(change)
            };
            let entries = core.change(deciding, Some(payload), &mut map).await?.state();
            if entries.contains(&mapping) {
                return Ok(Mapped::Now);
            }
            if deciding.has_ended {
                return Ok(Mapped::Before);
            }
            if let Some(entry) = alike {
                let section = core.enter()?;
                let read = core.read_in(&section, entry.at(), found).await;
                section.end();
                match read? {
                    Read::Value if self.is_of(name, found) => {
                        self.remember(name, entry.at());
                        return Ok(Mapped::Exists);
                    }
                    Read::Value => others.push(entry),
                    // It leaves the index with the mapping, and so before another key can be where it was.
                    Read::Sealed(seal) if deleted.is_none_or(|(other, _)| !entries.contains(&other)) => {
                        deleted = Some((entry, seal));
                    }
                    Read::Sealed(seal) => {
                        Box::pin(core.do_this(Chore::Unmap { cell: name.cell, entry, seal })).await?;
                    }
                    Read::Moved => drop(core.left(name.cell, entry).await?),
                }
            } else if is_full
                && !core.take_free_of(name.cell).await?
                && let Some(none) = self.make_room(name, &entries, start).await?
            {
                return Ok(none);
            }
        }
    }

    /// Unmaps the deleted keys of a cell, and waits until others have taken theirs out. False if there is none of
    /// either.
    async fn make_room(&self, name: &Name<'_, 'e>, entries: &[Entry], since: Instant) -> Result<Option<Mapped>> {
        let (core, cell, mut words, mut keys) = (name.core, name.cell, self.empty_words(), 0);
        for entry in entries.iter().copied().filter(|entry| entry.is_mapped()) {
            match core.read(entry.at(), &mut words).await? {
                Read::Value => keys += 1,
                Read::Sealed(seal) => core.add_chore(Chore::Unmap { cell, entry, seal }),
                Read::Moved => drop(core.left(cell, entry).await?),
            }
        }
        if keys == entries.len() {
            return Ok(Some(Mapped::Full));
        }
        if core.endpoint.now() >= since + core.endpoint.timeout() {
            return Ok(Some(Mapped::NoRoom { since }));
        }
        // One of them may leave this cell, or another client's.
        let before = core.in_hand();
        core.tend_until(|| core.in_hand() < before.max(1)).await?;
        core.pause(core.endpoint.now() + core.shared.options.patience).await;
        Ok(None)
    }
}

/// What has become of a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mapped {
    Now,
    /// It was chosen, and the key was deleted since.
    Before,
    /// Another register has the key.
    Exists,
    /// All places of the cell have keys.
    Full,
    /// Some have registers of deleted keys that other clients have not taken out, in all of the time.
    NoRoom {
        since: Instant,
    },
}
