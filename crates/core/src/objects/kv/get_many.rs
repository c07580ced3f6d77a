//! Reading several keys at once.

use farfield_fabric::{Buf, Endpoint, RemotePtr};

use super::index::Entry;
use super::values::{Look, judge};
use super::{GET, GET_MANY, Key, KvStore, Value};
use crate::error::{ErrorContext, Result};
use crate::node::measured;

/// Slots that one call reads at once.
const CHUNK: usize = 64;

impl<K: Key, V: Value> KvStore<K, V> {
    /// The values of several keys: `into` gets one result for each, as of [`KvStore::get`]. All slots are read at
    /// once, which is several times as fast as one after the other. Each key is read at its own moment; together they
    /// are not a snapshot. A key whose value is lost, or cannot be read, does not affect the others.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let node = farfield::Node::builder().session("doc-objects-kv-mod-3").start()?;
    /// # let ep = node.endpoint()?;
    /// # let store = farfield::KvStore::<u64, u64>::open(&node, "store", farfield::KvOptions::default())?;
    /// ep.block_on(store.insert(&ep, &7, &70))?;
    /// let mut values = Vec::new(); // reused from call to call
    /// ep.block_on(store.get_many(&ep, &[7, 8], &mut values))?;
    /// assert_eq!(values[0].as_ref().unwrap(), &Some(70));
    /// assert_eq!(values[1].as_ref().unwrap(), &None);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// There is no memory to read into.
    pub async fn get_many(&self, endpoint: &Endpoint, keys: &[K], into: &mut Vec<Result<Option<V>>>) -> Result<()> {
        measured!(self.object.meter(), endpoint, GET_MANY, self.get_many(endpoint, keys, into));
        into.clear();
        let words = self.layout.words;
        let mut buf = endpoint.buf::<u64>(words * CHUNK.min(keys.len())).of(self.object.path())?;
        for keys in keys.chunks(CHUNK) {
            let mut entries = [None; CHUNK];
            let mut remote = [RemotePtr::from_packed(0); CHUNK];
            let mut remotes = 0;
            self.index.get_each(keys, |at, entry| {
                entries[at] = Some(entry);
                // In flight already while the other keys are looked up.
                endpoint.prefetch(entry.slot);
                if entry.slot.node() != self.object.node().id() {
                    remote[remotes] = entry.slot;
                    remotes += 1;
                }
            });
            let alone = match endpoint.get_each(&remote[..remotes], words, &mut buf).await {
                Ok(()) => 0,
                Err(_) => self.get_those_there(endpoint, &entries, &mut buf).await,
            };
            let mut images = buf.chunks_exact(words);
            for (at, key) in keys.iter().enumerate() {
                let look = match entries[at] {
                    None => Look::Absent,
                    Some(entry) if entry.slot.node() == self.object.node().id() => self.look_here(entry),
                    Some(_) if alone >> at & 1 == 1 => Look::Torn,
                    Some(entry) => match images.next() {
                        Some(image) => judge(image, entry.counter),
                        None => Look::Torn,
                    },
                };
                into.push(match look {
                    Look::Found(value) => Ok(Some(value)),
                    Look::Absent => Ok(None),
                    Look::Torn => {
                        self.object.meter().skip(endpoint, GET);
                        self.get(endpoint, key).await
                    }
                });
            }
        }
        Ok(())
    }

    /// Reads the slots of a chunk of [`KvStore::get_many`] again, except those on dead or departed nodes. Returns a
    /// bit for each slot that must be read alone, since it has an error of its own.
    #[cold]
    async fn get_those_there(
        &self,
        endpoint: &Endpoint,
        entries: &[Option<Entry>; CHUNK],
        buf: &mut Buf<'_, u64>,
    ) -> u64 {
        let (mut alone, mut there, mut count) = (0, [RemotePtr::from_packed(0); CHUNK], 0);
        for (at, entry) in entries.iter().enumerate() {
            let remote = entry.filter(|entry| entry.slot.node() != self.object.node().id());
            match remote {
                Some(entry) if self.check_there(endpoint, entry).is_ok() => {
                    there[count] = entry.slot;
                    count += 1;
                }
                Some(_) => alone |= 1 << at,
                None => {}
            }
        }
        // A node may be unreachable, and not known to be dead.
        let got = endpoint.get_each(&there[..count], self.layout.words, buf).await;
        if got.is_ok() { alone } else { u64::MAX }
    }
}
