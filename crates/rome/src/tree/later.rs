//! What is left to do above the leaves, because there was no memory for it, the tree was frozen, or its gate was
//! closed: any thread does some of it that rewrites a node later.

use std::collections::VecDeque;

use farfield_fabric::{LocalMutex, Word};

/// Something that makes searches shorter, or nodes fewer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Chore<K> {
    /// A node was split, and the level above, which is this one, does not know the right part. Until it does, searches
    /// move to the right.
    Link { level: u8, separator: K, right: u32 },
    /// The leaf with this key has few pairs, and may be merged with a neighbour.
    Merge { key: K },
}

/// Merges that are remembered. Beyond that, nodes stay until a neighbour is merged.
const MERGES_MAX: usize = 1 << 10;

/// The chores of a tree.
pub(crate) struct Later<K> {
    /// How many, as of a moment ago: so that those that have nothing to do take no lock.
    count: Word,
    /// Links, and merges.
    chores: LocalMutex<[VecDeque<Chore<K>>; 2]>,
}

impl<K> Later<K> {
    pub(super) fn new() -> Later<K> {
        Later { count: Word::new(0), chores: LocalMutex::default() }
    }

    pub(super) fn put(&self, chores: Vec<Chore<K>>) {
        let mut all = self.chores.lock();
        let [links, merges] = &mut *all;
        for chore in chores {
            match chore {
                Chore::Link { .. } => links.push_back(chore),
                Chore::Merge { .. } if merges.len() < MERGES_MAX => merges.push_back(chore),
                Chore::Merge { .. } => {}
            }
        }
        self.count.store((links.len() + merges.len()) as u64);
    }

    /// The oldest ones, so many at most: the caller does them, or puts them back. Links come first: nodes are merged
    /// that their parent knows.
    pub(super) fn take(&self, max: usize) -> Vec<Chore<K>> {
        if self.count.load() == 0 {
            return Vec::new();
        }
        let mut all = self.chores.lock();
        let mut taken = Vec::new();
        for some in &mut *all {
            let end = (max - taken.len()).min(some.len());
            taken.extend(some.drain(..end));
        }
        let left = all.iter().map(VecDeque::len).sum::<usize>();
        self.count.store(left as u64);
        taken
    }
}
