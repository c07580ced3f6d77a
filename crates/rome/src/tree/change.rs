//! Changes of a key: a record in the log of its leaf, or a new base.

use farfield_core::{Endpoint, Result};
use farfield_fabric::Word;

use super::later::Chore;
use super::{Change, Partition, ROOT};
use crate::arena::{Arena, Replaced, SlotLock, Stash};
use crate::field::{Field, TreeKey};
use crate::layout::Active;
use crate::page::{Draft, Page, Words, record_words, set_record_version, set_version, write_record};
use crate::seats::Seat;

/// What a step may need: for the root and its two parts, or for two nodes that are merged and their parent.
pub(super) const BLOCKS: usize = 3;
pub(super) const SLOTS: usize = 2;

/// What a change leaves to do.
pub(super) type Chores<K> = [Option<Chore<K>>; 2];

/// What stays of a node when its pairs change.
pub(super) struct Frame<K> {
    pub(super) level: u8,
    pub(super) right: Option<u32>,
    pub(super) low: K,
    pub(super) high: Option<K>,
}

impl<K: TreeKey> Frame<K> {
    pub(super) fn of<W: Words, T: Field>(page: Page<W, K, T>) -> Frame<K> {
        Frame { level: page.level(), right: page.right(), low: page.low(), high: page.high() }
    }

    pub(super) fn draft<'p, T>(&self, previous: Active, pairs: &'p [(K, T)]) -> Draft<'p, K, T> {
        let Frame { level, right, low, high } = *self;
        Draft { level, is_tombstone: false, previous: previous.word(), right, low, high, pairs }
    }
}

/// A node that this thread has locked.
pub(super) struct Locked<'a> {
    pub(super) slot: u32,
    pub(super) lock: SlotLock<'a>,
    pub(super) active: Active,
}

impl<'a> Locked<'a> {
    pub(super) fn page<K: TreeKey, T: Field>(&self, arena: &'a Arena) -> Page<&'a [Word], K, T> {
        Page::of(arena.block(self.active))
    }
}

/// The slot of the node with the key on a level, as far as it is known; none if the root is lower. The caller has
/// announced a read, and takes the lock next, to look whether it is so.
fn find<K: TreeKey>(arena: &Arena, key: &K, level: u8) -> Option<u32> {
    let mut slot = ROOT;
    loop {
        let page: Page<_, K, u64> = Page::of(arena.block(arena.active(slot)?));
        if page.is_tombstone() {
            slot = ROOT; // it was merged into another one meanwhile
        } else if page.is_before(key) {
            slot = page.right()?;
        } else if page.level() <= level {
            return (page.level() == level).then_some(slot);
        } else {
            slot = page.value(page.child_at(key)) as u32;
        }
    }
}

/// Locks the node with the key on a level; none if the root is lower.
pub(super) fn lock<'a, K: TreeKey>(
    arena: &'a Arena,
    seat: &Seat,
    ep: &Endpoint,
    key: &K,
    level: u8,
) -> Option<Locked<'a>> {
    loop {
        seat.announce_firm(arena.stable());
        let Some(slot) = find(arena, key, level) else {
            seat.clear();
            return None;
        };
        let lock = arena.lock(ep, slot);
        if let Some(active) = lock.active() {
            let page: Page<_, K, u64> = Page::of(arena.block(active));
            if page.has(level, key) {
                // From here on no other thread replaces its block.
                seat.clear();
                return Some(Locked { slot, lock, active });
            }
        }
        // In this order: the slot is not used for another node while it is locked.
        drop(lock);
        seat.clear();
    }
}

/// What a thread stores nodes with.
pub(super) struct Store<'s> {
    pub(super) ep: &'s Endpoint,
    /// Pairs of a base.
    pub(super) pairs: usize,
    /// It is full.
    pub(super) stash: &'s mut Stash,
    pub(super) words: &'s mut Vec<u64>,
}

impl Store<'_> {
    /// Writes a node, but for its version.
    pub(super) fn write<K: TreeKey, T: Field>(&mut self, arena: &Arena, draft: &Draft<'_, K, T>) -> Active {
        let block = self.stash.blocks.pop().expect("the stash is full");
        let end = draft.write(arena.block_words(block), self.words) as u32;
        Active { block, end }
    }

    /// Gives a node these pairs: in a new base, or in two nodes. Then it returns the separator and slot of the right
    /// one, unless it was the root, which gets another level.
    pub(super) fn rewrite<K: TreeKey, T: Field>(
        &mut self,
        arena: &Arena,
        locked: Locked<'_>,
        frame: &Frame<K>,
        pairs: &[(K, T)],
    ) -> Result<Option<(K, u32)>> {
        let active = locked.active;
        if pairs.len() <= self.pairs {
            let new = self.write(arena, &frame.draft(active, pairs));
            let version = arena.ticket();
            set_version(arena.block_words(new.block), version);
            self.replace(arena, locked, version, new)?;
            return Ok(None);
        }
        // Keys that are inserted in their order fill the nodes.
        let is_last = frame.high.is_none();
        let middle = if is_last { pairs.len() - self.pairs / 4 } else { pairs.len() / 2 };
        let (left, right) = pairs.split_at(middle.clamp(1, self.pairs));
        let separator = right[0].0;
        let right_slot = self.stash.slots.pop().expect("the stash is full");
        let Frame { level, low, high, .. } = *frame;
        let left_frame = Frame { level, low, right: Some(right_slot), high: Some(separator) };
        // Readers at an earlier version, which only come to the left one, find what was there before. Those that come
        // to the root find what that was, and to neither of its parts.
        let is_root = locked.slot == ROOT;
        let previous = if is_root { 0 } else { active.word() };
        let right_new = self.write(arena, &Draft { previous, low: separator, ..frame.draft(active, right) });
        let left_new = self.write(arena, &Draft { previous, ..left_frame.draft(active, left) });
        if !is_root {
            let version = arena.ticket();
            set_version(arena.block_words(right_new.block), version);
            set_version(arena.block_words(left_new.block), version);
            // A thread that finds the left node moves to the right one.
            arena.use_slot(right_slot, version, right_new);
            self.replace(arena, locked, version, left_new)?;
            return Ok(Some((separator, right_slot)));
        }
        let left_slot = self.stash.slots.pop().expect("the stash is full");
        let children = [(low, u64::from(left_slot)), (separator, u64::from(right_slot))];
        let root_frame = Frame { level: level + 1, low, right: None, high };
        let root_new = self.write(arena, &root_frame.draft(active, &children));
        let version = arena.ticket();
        for new in [right_new, left_new, root_new] {
            set_version(arena.block_words(new.block), version);
        }
        arena.use_slot(right_slot, version, right_new);
        arena.use_slot(left_slot, version, left_new);
        self.replace(arena, locked, version, root_new)?;
        Ok(None)
    }

    /// Makes a state that is stored, of this version, the one of a node. The version is stable when it returns.
    fn replace(&self, arena: &Arena, locked: Locked<'_>, version: u64, new: Active) -> Result<()> {
        let Locked { lock, active, .. } = locked;
        lock.set(version, new);
        drop(lock);
        arena.publish(self.ep, version)?;
        arena.replaced(version, [Replaced::Block(active.block)]);
        Ok(())
    }
}

impl<K: TreeKey, V: Field> Partition<K, V> {
    pub(super) fn change_with(
        &mut self,
        ep: &Endpoint,
        key: &K,
        decide: impl FnMut(Option<V>) -> Change<V>,
    ) -> Result<Option<V>> {
        let (before, chores) = self.change_leaf(ep, key, decide)?;
        if let Some(chores) = chores {
            self.tidy(ep, chores);
        }
        Ok(before)
    }

    /// The value before. If a node was rewritten, or has few pairs now, also what is to be done: it makes searches
    /// shorter, or nodes fewer.
    #[inline]
    pub(super) fn change_leaf(
        &mut self,
        ep: &Endpoint,
        key: &K,
        mut decide: impl FnMut(Option<V>) -> Change<V>,
    ) -> Result<(Option<V>, Option<Chores<K>>)> {
        loop {
            let Partition { tree, seat, stash, words, pairs } = self;
            let (arena, options) = (Self::arena(tree), &tree.options);
            tree.opened.object.check_current()?;
            let locked = lock(arena, seat, ep, key, 0).expect("there are always leaves");
            let page: Page<_, K, V> = locked.page(arena);
            let before = page.get(key, u64::MAX);
            let value = match decide(before) {
                Change::None => {
                    // What it has seen may be of a change that is not stable yet. Later reads must not miss it.
                    let seen = page.last_version();
                    drop(locked);
                    arena.await_stable(ep, seen)?;
                    // Behind the read (`CR → CR`): at this moment the tree was not moved, and so what was read was
                    // current.
                    arena.stable_now().current()?;
                    return Ok((before, None));
                }
                Change::Put(value) => Some(value),
                Change::Delete => None,
            };
            let few = options.pairs / 4;
            if page.records() < options.records {
                // One that has few pairs now, or none, may get no more, and its log is never full.
                let gets_few = value.is_none()
                    && before.is_some()
                    && locked.slot != ROOT
                    && page.live_up_to(few + 1).is_some_and(|live| live == 1 || live == few + 1);
                let Locked { lock, active, .. } = locked;
                let end = active.end as usize + record_words::<K, V>();
                let record = &arena.block_words(active.block)[active.end as usize..end];
                write_record(record, key, value.as_ref(), words);
                let version = arena.ticket();
                set_record_version(record, version, value.is_none());
                // All of the record is in memory before the active word is (`CW → CW`).
                lock.set(version, Active { end: end as u32, ..active });
                drop(lock);
                arena.publish(ep, version)?;
                return Ok((before, gets_few.then_some([Some(Chore::Merge { key: *key }), None])));
            }
            if stash.blocks.len() < BLOCKS || stash.slots.len() < SLOTS {
                drop(locked);
                arena.fill(ep, stash, BLOCKS, SLOTS)?;
                continue;
            }
            page.pairs(u64::MAX, pairs);
            match (pairs.binary_search_by(|pair| pair.0.cmp(key)), value) {
                (Ok(at), Some(value)) => pairs[at].1 = value,
                (Ok(at), None) => drop(pairs.remove(at)),
                (Err(at), Some(value)) => pairs.insert(at, (*key, value)),
                (Err(_), None) => {}
            }
            let is_few = pairs.len() <= few && locked.slot != ROOT;
            let split =
                Store { ep, pairs: options.pairs, stash, words }.rewrite(arena, locked, &Frame::of(page), pairs)?;
            let split = split.map(|(separator, right)| Chore::Link { level: 1, separator, right });
            return Ok((before, Some([is_few.then_some(Chore::Merge { key: *key }), split])));
        }
    }
}
