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
    /// are not a snapshot. If a key's value is lost, or cannot be read, the others are not affected.
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
            let remotes = self.find_each(endpoint, keys, &mut entries, &mut remote);
            let alone = match endpoint.get_each(&remote[..remotes], words, &mut buf).await {
                Ok(()) => 0,
                Err(_) => self.get_those_there(endpoint, &entries, &mut buf).await,
            };
            let first = into.len();
            let torn = self.judge_each(endpoint, &entries[..keys.len()], &buf, alone, into);
            if torn != 0 {
                // No value before those of the keys before it: the call may be dropped while it reads one.
                let begin = torn.trailing_zeros() as usize;
                let rest = into.split_off(first + begin);
                for (at, value) in (begin..).zip(rest) {
                    into.push(if torn >> at & 1 == 0 {
                        value
                    } else {
                        self.object.meter().skip(endpoint, GET);
                        self.get(endpoint, &keys[at]).await
                    });
                }
            }
        }
        Ok(())
    }

    /// Looks up the keys of a chunk. Returns how many of their slots are on other nodes: they are in `remote`.
    #[inline]
    fn find_each(
        &self,
        endpoint: &Endpoint,
        keys: &[K],
        entries: &mut [Option<Entry>; CHUNK],
        remote: &mut [RemotePtr<u64>; CHUNK],
    ) -> usize {
        let (me, mut remotes) = (endpoint.me(), 0);
        self.index.get_each(keys, |at, entry| {
            entries[at] = Some(entry);
            // One more than were found: it is written over, unless this one counts.
            remote[remotes] = entry.slot;
            remotes += usize::from(entry.slot.node() != me);
        });
        remotes
    }

    /// Adds the values of a chunk, of which `images` has those on other nodes. Returns a bit for each key that must be
    /// read alone.
    #[inline]
    fn judge_each(
        &self,
        endpoint: &Endpoint,
        entries: &[Option<Entry>],
        images: &[u64],
        alone: u64,
        into: &mut Vec<Result<Option<V>>>,
    ) -> u64 {
        let (me, mut torn) = (endpoint.me(), 0);
        let mut images = images.chunks_exact(self.layout.words);
        into.extend(entries.iter().enumerate().map(|(at, entry)| {
            let look = match entry {
                None => Look::Absent,
                Some(entry) if entry.slot.node() == me => self.look_here(*entry),
                Some(_) if alone >> at & 1 == 1 => Look::Torn,
                Some(entry) => images.next().map_or(Look::Torn, |image| judge(image, entry.counter)),
            };
            match look {
                Look::Found(value) => Ok(Some(value)),
                Look::Absent => Ok(None),
                Look::Torn => {
                    torn |= 1 << at;
                    Ok(None) // until it is read
                }
            }
        }));
        torn
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
