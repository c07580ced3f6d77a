//! A node of the tree as words: of a block, or a copy of one.
//!
//! ```text
//!   ┌─────────┬───────┬──────────┬───────┬─────┬──────┬───────────────┬─────────────────┬────────────────────────────────┬─
//!   │ version │ shape │ previous │ right │ low │ high │ keys in order │ their values    │ version << 1 | deleted, key, … │ … records
//!   └─────────┴───────┴──────────┴───────┴─────┴──────┴───────────────┴─────────────────┴────────────────────────────────┴─
//!     shape     count of the base (32), has a high fence (1), is deleted (1), level (8)
//!     previous  the active word before: of the node itself, or of the one that it was split from; 0 for none
//!     right     the slot of the right sibling + 1; 0 for none
//! ```
//!
//! Values of leaves are the user's. Those of inner nodes are slots of children, and keys the low fences of these. An
//! inner node has no log: each change rewrites it.

use core::marker::PhantomData;

use farfield_fabric::Word;

use crate::field::{Field, TreeKey};

const VERSION: usize = 0;
const SHAPE: usize = 1;
const PREVIOUS: usize = 2;
const RIGHT: usize = 3;
const LOW: usize = 4;
const HAS_HIGH: u64 = 1 << 32;
const TOMBSTONE: u64 = 1 << 33;
const LEVEL_SHIFT: u32 = 40;

const fn header<K: TreeKey>() -> usize {
    LOW + 2 * K::WORDS
}

pub(crate) const fn record_words<K: TreeKey, V: Field>() -> usize {
    1 + K::WORDS + V::WORDS
}

/// Words of the largest node.
pub(crate) fn words_max<K: TreeKey, V: Field>(pairs: usize, records: usize) -> usize {
    let leaf = pairs.saturating_mul(K::WORDS + V::WORDS);
    let leaf = leaf.saturating_add(records.saturating_mul(record_words::<K, V>()));
    let inner = pairs.saturating_mul(K::WORDS + 1);
    header::<K>().saturating_add(leaf.max(inner))
}

/// Words that do not change while they are read.
pub(crate) trait Words: Copy {
    fn at(self, at: usize) -> u64;
    fn count(self) -> usize;
}

impl Words for &[Word] {
    #[inline]
    fn at(self, at: usize) -> u64 {
        self[at].load()
    }

    #[inline]
    fn count(self) -> usize {
        self.len()
    }
}

impl Words for &[u64] {
    #[inline]
    fn at(self, at: usize) -> u64 {
        self[at]
    }

    #[inline]
    fn count(self) -> usize {
        self.len()
    }
}

/// A node with keys `K` and values `V`: in an inner node slots, as `u64`.
pub(crate) struct Page<W, K, V> {
    words: W,
    kind: PhantomData<(K, V)>,
}

impl<W: Copy, K, V> Clone for Page<W, K, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<W: Copy, K, V> Copy for Page<W, K, V> {}

impl<W: Words, K: TreeKey, V: Field> Page<W, K, V> {
    #[inline]
    pub(crate) fn of(words: W) -> Page<W, K, V> {
        Page { words, kind: PhantomData }
    }

    /// The same words as an inner node.
    #[inline]
    pub(crate) fn inner(self) -> Page<W, K, u64> {
        Page::of(self.words)
    }

    #[inline]
    pub(crate) fn version(self) -> u64 {
        self.words.at(VERSION)
    }

    #[inline]
    fn shape(self) -> u64 {
        self.words.at(SHAPE)
    }

    #[inline]
    pub(crate) fn count(self) -> usize {
        self.shape() as u32 as usize
    }

    #[inline]
    pub(crate) fn level(self) -> u8 {
        (self.shape() >> LEVEL_SHIFT) as u8
    }

    #[inline]
    pub(crate) fn is_tombstone(self) -> bool {
        self.shape() & TOMBSTONE != 0
    }

    /// The active word before this base.
    #[inline]
    pub(crate) fn previous(self) -> u64 {
        self.words.at(PREVIOUS)
    }

    #[inline]
    pub(crate) fn right(self) -> Option<u32> {
        (self.words.at(RIGHT) as u32).checked_sub(1)
    }

    #[inline]
    fn key_from(self, first: usize) -> K {
        K::load(|at| self.words.at(first + at))
    }

    #[inline]
    pub(crate) fn low(self) -> K {
        self.key_from(LOW)
    }

    #[inline]
    pub(crate) fn high(self) -> Option<K> {
        (self.shape() & HAS_HIGH != 0).then(|| self.key_from(LOW + K::WORDS))
    }

    /// Whether it is the node of this level with this key.
    #[inline]
    pub(crate) fn has(self, level: u8, key: &K) -> bool {
        !self.is_tombstone() && self.level() == level && self.low() <= *key && !self.is_before(key)
    }

    /// Whether the key is beyond its fence, to the right.
    #[inline]
    pub(crate) fn is_before(self, key: &K) -> bool {
        self.high().is_some_and(|high| *key >= high)
    }

    #[inline]
    pub(crate) fn key(self, at: usize) -> K {
        self.key_from(header::<K>() + at * K::WORDS)
    }

    #[inline]
    pub(crate) fn value(self, at: usize) -> V {
        let first = header::<K>() + self.count() * K::WORDS + at * V::WORDS;
        V::load(|word| self.words.at(first + word))
    }

    /// How many keys of the base are less.
    #[inline]
    fn lower_bound(self, key: &K) -> usize {
        let (mut from, mut count) = (0, self.count());
        while count > 0 {
            let half = count / 2;
            if self.key(from + half) < *key {
                from += half + 1;
                count -= half + 1;
            } else {
                count = half;
            }
        }
        from
    }

    /// In an inner node: the place of the child with the key.
    #[inline]
    pub(crate) fn child_at(self, key: &K) -> usize {
        let at = self.lower_bound(key);
        if at < self.count() && self.key(at) == *key { at } else { at.saturating_sub(1) }
    }

    /// In an inner node: the place of the last child with keys that are less; of the last one without a bound.
    pub(crate) fn child_below(self, bound: Option<&K>) -> usize {
        bound.map_or(self.count(), |bound| self.lower_bound(bound)).saturating_sub(1)
    }

    #[inline]
    fn log_from(self) -> usize {
        header::<K>() + self.count() * (K::WORDS + V::WORDS)
    }

    pub(crate) fn records(self) -> usize {
        (self.words.count() - self.log_from()) / record_words::<K, V>()
    }

    /// Of a node without pairs in its base, whatever its values are.
    pub(crate) fn has_no_log(self) -> bool {
        self.words.count() == header::<K>()
    }

    /// The version of the last change.
    pub(crate) fn last_version(self) -> u64 {
        match self.records() {
            0 => self.version(),
            records => self.words.at(self.log_from() + (records - 1) * record_words::<K, V>()) >> 1,
        }
    }

    /// The value of a key, among what has this version or an earlier one, as the base has.
    #[inline]
    pub(crate) fn get(self, key: &K, version: u64) -> Option<V> {
        let (first, len) = (self.log_from(), record_words::<K, V>());
        let mut at = self.words.count();
        while at > first {
            at -= len;
            if self.key_from(at + 1) == *key {
                let head = self.words.at(at);
                if head >> 1 <= version {
                    let value = || V::load(|word| self.words.at(at + 1 + K::WORDS + word));
                    return (head & 1 == 0).then(value);
                }
            }
        }
        let at = self.lower_bound(key);
        (at < self.count() && self.key(at) == *key).then(|| self.value(at))
    }

    /// How many pairs there are, if surely or perhaps not more than so many: otherwise it is not counted.
    pub(crate) fn live_up_to(self, max: usize) -> Option<usize> {
        let (first, len, records) = (self.log_from(), record_words::<K, V>(), self.records());
        let is_deleted = |record: usize| self.words.at(first + record * len) & 1 != 0;
        let deletions = (0..records).filter(|record| is_deleted(*record)).count();
        if self.count() > max + deletions {
            return None;
        }
        let key = |record: usize| self.key_from(first + record * len + 1);
        let mut live = self.count();
        // The last record of each key.
        for record in (0..records).filter(|record| (record + 1..records).all(|later| key(later) != key(*record))) {
            let at = self.lower_bound(&key(record));
            let is_in_base = at < self.count() && self.key(at) == key(record);
            live = live + usize::from(!is_deleted(record)) - usize::from(is_in_base);
        }
        Some(live)
    }

    /// All pairs of this version, in order.
    pub(crate) fn pairs(self, version: u64, into: &mut Vec<(K, V)>) {
        into.clear();
        let (first, len) = (self.log_from(), record_words::<K, V>());
        let mut changes: Vec<(K, Option<V>)> = Vec::with_capacity(self.records());
        for record in (0..self.records()).map(|record| first + record * len) {
            let head = self.words.at(record);
            if head >> 1 > version {
                break;
            }
            let value = || V::load(|word| self.words.at(record + 1 + K::WORDS + word));
            changes.push((self.key_from(record + 1), (head & 1 == 0).then(value)));
        }
        // The last one of a key prevails: of equal keys they stay in order.
        changes.sort_by_key(|change| change.0);
        let (mut changes, mut base) = (changes.into_iter().peekable(), 0..self.count());
        let mut next = base.next();
        while let Some((key, mut value)) = changes.next() {
            while let Some((_, later)) = changes.next_if(|(other, _)| *other == key) {
                value = later;
            }
            while let Some(at) = next
                && self.key(at) < key
            {
                into.push((self.key(at), self.value(at)));
                next = base.next();
            }
            if next.is_some_and(|at| self.key(at) == key) {
                next = base.next();
            }
            into.extend(value.map(|value| (key, value)));
        }
        while let Some(at) = next {
            into.push((self.key(at), self.value(at)));
            next = base.next();
        }
    }
}

/// What the base of a node consists of, but for its version, which is stored when it has one.
pub(crate) struct Draft<'p, K, V> {
    pub(crate) level: u8,
    pub(crate) is_tombstone: bool,
    pub(crate) previous: u64,
    pub(crate) right: Option<u32>,
    pub(crate) low: K,
    pub(crate) high: Option<K>,
    pub(crate) pairs: &'p [(K, V)],
}

impl<K: TreeKey, V: Field> Draft<'_, K, V> {
    /// Writes it into a block; how many words.
    pub(crate) fn write(&self, block: &[Word], words: &mut Vec<u64>) -> usize {
        let count = self.pairs.len();
        let end = header::<K>() + count * (K::WORDS + V::WORDS);
        words.clear();
        words.resize(end, 0);
        words[SHAPE] = count as u64
            | u64::from(self.level) << LEVEL_SHIFT
            | if self.high.is_some() { HAS_HIGH } else { 0 }
            | if self.is_tombstone { TOMBSTONE } else { 0 };
        words[PREVIOUS] = self.previous;
        words[RIGHT] = self.right.map_or(0, |slot| u64::from(slot) + 1);
        self.low.store(&mut words[LOW..LOW + K::WORDS]);
        if let Some(high) = &self.high {
            high.store(&mut words[LOW + K::WORDS..header::<K>()]);
        }
        let values = header::<K>() + count * K::WORDS;
        for (at, (key, value)) in self.pairs.iter().enumerate() {
            let first = header::<K>() + at * K::WORDS;
            key.store(&mut words[first..first + K::WORDS]);
            let first = values + at * V::WORDS;
            value.store(&mut words[first..first + V::WORDS]);
        }
        farfield_fabric::write_words(&block[VERSION + 1..end], &words[VERSION + 1..]);
        end
    }
}

/// Gives the base in a block its version.
pub(crate) fn set_version(block: &[Word], version: u64) {
    block[VERSION].store(version);
}

/// Writes a record, but for its head.
pub(crate) fn write_record<K: TreeKey, V: Field>(words: &[Word], key: &K, value: Option<&V>, into: &mut Vec<u64>) {
    into.clear();
    into.resize(record_words::<K, V>() - 1, 0);
    key.store(&mut into[..K::WORDS]);
    if let Some(value) = value {
        value.store(&mut into[K::WORDS..]);
    }
    farfield_fabric::write_words(&words[1..], into);
}

pub(crate) fn set_record_version(words: &[Word], version: u64, is_deleted: bool) {
    words[0].store(version << 1 | u64::from(is_deleted));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_read_as_of_each_version() {
        let block: Vec<Word> = (0..words_max::<u64, u64>(8, 4)).map(|_| Word::new(0)).collect();
        let pairs = [(10, 1), (20, 2), (30, 3)];
        let draft =
            Draft { level: 0, is_tombstone: false, previous: 0, right: Some(4), low: 5, high: Some(40), pairs: &pairs };
        let mut scratch = Vec::new();
        let mut end = draft.write(&block, &mut scratch);
        set_version(&block, 7);
        for (version, key, value) in [(8, 20, Some(22)), (9, 15, Some(15)), (10, 20, None), (11, 20, Some(23))] {
            let record = &block[end..end + record_words::<u64, u64>()];
            write_record::<u64, u64>(record, &key, value.as_ref(), &mut scratch);
            set_record_version(record, version, value.is_none());
            end += record.len();
        }
        let page: Page<&[Word], u64, u64> = Page::of(&block[..end]);
        assert_eq!((page.version(), page.last_version(), page.count(), page.records()), (7, 11, 3, 4));
        assert_eq!((page.low(), page.high(), page.right(), page.level()), (5, Some(40), Some(4), 0));
        assert!(page.is_before(&40) && !page.is_before(&39) && !page.is_tombstone());
        let all = |version| {
            let mut pairs = Vec::new();
            page.pairs(version, &mut pairs);
            assert!(pairs.iter().all(|(key, value)| page.get(key, version) == Some(*value)));
            pairs
        };
        assert_eq!([1, 2, 9].map(|max| page.live_up_to(max)), [None, Some(4), Some(4)]);
        assert_eq!(all(7), pairs);
        assert_eq!(all(9), [(10, 1), (15, 15), (20, 22), (30, 3)]);
        assert_eq!(all(10), [(10, 1), (15, 15), (30, 3)]);
        assert_eq!(page.get(&20, 10), None);
        assert_eq!(all(11), [(10, 1), (15, 15), (20, 23), (30, 3)]);
        assert_eq!([9, 10, 19, 20, 31].map(|key| page.child_at(&key)), [0, 0, 0, 1, 2]);
        assert_eq!([Some(11), Some(20), Some(21), None].map(|key| page.child_below(key.as_ref())), [0, 0, 1, 2]);
    }
}
