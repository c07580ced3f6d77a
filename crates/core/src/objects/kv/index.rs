//! A node's index: the place of the value of each key. Ordinary memory; a concurrent map with lock-free look-ups.

use core::hash::{BuildHasher, Hash};

use farfield_fabric::{Concurrent, RemotePtr};
use foldhash::fast::FixedState;

use crate::objects::codec::Key;

/// The slot of a value, and its use of the slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Entry {
    pub(super) slot: RemotePtr<u64>,
    pub(super) counter: u64,
}

pub(super) struct Index<K> {
    map: Concurrent<papaya::HashMap<K, Entry, FixedState>>,
}

/// The same on all nodes, of which each key's lock and place are chosen.
const HASHER: FixedState = FixedState::with_seed(0x6661_7266_6965_6c64);

#[inline]
pub(super) fn hash_of<K: Hash>(key: &K) -> u64 {
    HASHER.hash_one(key)
}

impl<K: Key> Index<K> {
    /// An index that need not grow before it has `keys` keys.
    pub(super) fn new(keys: usize) -> Index<K> {
        Index { map: Concurrent::new(papaya::HashMap::with_capacity_and_hasher(keys, HASHER)) }
    }

    pub(super) fn get(&self, key: &K) -> Option<Entry> {
        self.find(key)
    }

    /// [`Index::get`] as a part of its caller.
    #[inline(always)]
    pub(super) fn find(&self, key: &K) -> Option<Entry> {
        self.map.read().pin().get(key).copied()
    }

    /// Looks up several keys at once: `found` gets the position and the entry of each that is there.
    #[inline]
    pub(super) fn get_each(&self, keys: &[K], mut found: impl FnMut(usize, Entry)) {
        let map = self.map.read().pin();
        for (at, key) in keys.iter().enumerate() {
            if let Some(entry) = map.get(key) {
                found(at, *entry);
            }
        }
    }

    pub(super) fn insert(&self, key: K, entry: Entry) {
        self.map.write().pin().insert(key, entry);
    }

    /// Removes the key if it still leads to this use of the slot.
    pub(super) fn remove(&self, key: &K, entry: Entry) {
        let _ = self.map.write().pin().remove_if(key, |_, found| *found == entry);
    }

    /// The keys that are wanted, with their entries.
    pub(super) fn entries(&self, wanted: impl Fn(&K) -> bool) -> Vec<(K, Entry)> {
        let map = self.map.read().pin();
        map.iter().filter(|(key, _)| wanted(key)).map(|(key, entry)| (key.clone(), *entry)).collect()
    }

    pub(super) fn len(&self) -> usize {
        self.map.read().len()
    }
}
