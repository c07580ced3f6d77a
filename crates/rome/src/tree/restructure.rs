//! The levels above the leaves: separators of nodes that were split, and merges of nodes with few pairs.
//!
//! *Locks.* A split locks its node alone, and its parent later. A merge locks the parent, the left node and the right one, in this
//! order: from the root down, and from left to right. So no two wait for each other.

use farfield_core::Endpoint;

use super::change::{BLOCKS, Frame, Locked, SLOTS, Store, lock};
use super::{Partition, ROOT};
use crate::arena::{Arena, Replaced};
use crate::field::{Field, TreeKey};
use crate::page::{Draft, Page, set_version};

impl<K: TreeKey, V: Field> Partition<K, V> {
    /// Tells the levels above of nodes that were split. Without memory it is done later: until then searches move to the right.
    pub(super) fn link(&mut self, ep: &Endpoint) {
        let Partition { tree, seat, stash, words, unlinked, .. } = self;
        let arena = Self::arena(tree);
        while let Some((level, separator, right)) = unlinked.last().copied() {
            if arena.fill(ep, stash, BLOCKS, SLOTS).is_err() {
                return;
            }
            let locked = lock(arena, seat, ep, &separator, level).expect("a node that was split is not the root");
            let page: Page<_, K, u64> = locked.page(arena);
            let mut children = Vec::with_capacity(page.count() + 1);
            page.pairs(u64::MAX, &mut children);
            if let Err(at) = children.binary_search_by(|child| child.0.cmp(&separator)) {
                children.insert(at, (separator, u64::from(right)));
            }
            let mut store = Store { ep, pairs: tree.options.pairs, stash, words };
            let Ok(split) = store.rewrite(arena, locked, &Frame::of(page), &children) else { return };
            unlinked.pop();
            unlinked.extend(split.map(|(separator, right)| (level + 1, separator, right)));
        }
    }

    /// Merges the leaf with the key with a neighbour, if they have few pairs, and so on upwards.
    pub(super) fn merge(&mut self, ep: &Endpoint, key: &K) {
        let mut goes_on = self.merge_once::<V>(ep, key, 0);
        for level in 1.. {
            if !goes_on {
                return;
            }
            goes_on = self.merge_once::<u64>(ep, key, level);
        }
    }

    /// Whether the parent has few children now, and is not the root.
    fn merge_once<T: Field>(&mut self, ep: &Endpoint, key: &K, level: u8) -> bool {
        let Partition { tree, seat, stash, words, .. } = self;
        let (arena, pairs_max) = (Self::arena(tree), tree.options.pairs);
        if arena.fill(ep, stash, BLOCKS, 0).is_err() {
            return false;
        }
        let Some(parent) = lock(arena, seat, ep, key, level + 1) else { return false };
        let page: Page<_, K, u64> = parent.page(arena);
        let mut children = Vec::with_capacity(page.count());
        page.pairs(u64::MAX, &mut children);
        let is_root = parent.slot == ROOT;
        if children.len() > 1 {
            let at = page.child_at(key).min(children.len() - 2);
            let [left, right] = [at, at + 1].map(|at| children[at].1 as u32);
            children.remove(at + 1);
            let mut store = Store { ep, pairs: pairs_max, stash, words };
            if !store.merge::<K, T>(arena, parent, [left, right], &children) {
                return false;
            }
        } else {
            drop(parent);
        }
        match (is_root, children.len()) {
            (true, 1) => {
                self.shrink::<T>(ep, level + 1);
                false
            }
            (true, _) => false,
            (false, count) => count < (pairs_max / 4).max(2),
        }
    }

    /// Gives the root, if it is on this level, what its only child has.
    fn shrink<T: Field>(&mut self, ep: &Endpoint, level: u8) {
        let Partition { tree, stash, words, .. } = self;
        let arena = Self::arena(tree);
        if arena.fill(ep, stash, BLOCKS, 0).is_err() {
            return;
        }
        let Some(root) = locked(arena, ep, ROOT) else { return };
        let page: Page<_, K, u64> = root.page(arena);
        if page.level() != level || page.count() != 1 {
            return;
        }
        let Some(child) = locked(arena, ep, page.value(0) as u32) else { return };
        let page: Page<_, K, T> = child.page(arena);
        let mut pairs = Vec::new();
        page.pairs(u64::MAX, &mut pairs);
        // With a right sibling that the root does not know yet it is not the only one.
        if page.right().is_some() || pairs.len() > tree.options.pairs {
            return;
        }
        let mut store = Store { ep, pairs: tree.options.pairs, stash, words };
        let root_new = store.write(arena, &Frame::of(page).draft(root.active, &pairs));
        let tombstone = store.write(arena, &tombstone(&child, page));
        let version = arena.ticket();
        for new in [root_new, tombstone] {
            set_version(arena.block_words(new.block), version);
        }
        // In this order: so a thread that looks for a leaf to lock waits for a lock, and does not come to the tombstone again and again.
        root.lock.set(version, root_new);
        child.lock.set_deleted(true);
        child.lock.set(version, tombstone);
        let (slot, blocks) = (child.slot, [root.active, child.active].map(|active| Replaced::Block(active.block)));
        drop((root, child));
        if arena.publish(ep, version).is_err() {
            return; // the tree is another node's
        }
        arena.replaced(version, blocks.into_iter().chain([Replaced::Slot(slot)]));
    }
}

impl Store<'_> {
    /// Puts the pairs of two neighbours into the left one, unless they are too many. These are the parent's children then.
    fn merge<K: TreeKey, T: Field>(
        &mut self,
        arena: &Arena,
        parent: Locked<'_>,
        [left, right]: [u32; 2],
        children: &[(K, u64)],
    ) -> bool {
        let Some(left) = locked(arena, self.ep, left) else { return false };
        let Some(right) = locked(arena, self.ep, right) else { return false };
        let (left_page, right_page): (Page<_, K, T>, Page<_, K, T>) = (left.page(arena), right.page(arena));
        // Between the two may be one that was split from the left one, and that the parent does not know yet.
        if left_page.right() != Some(right.slot) {
            return false;
        }
        let (mut pairs, mut of_right) = (Vec::new(), Vec::new());
        left_page.pairs(u64::MAX, &mut pairs);
        right_page.pairs(u64::MAX, &mut of_right);
        pairs.append(&mut of_right);
        if pairs.len() > self.pairs * 3 / 4 {
            return false;
        }
        let merged = Frame { high: right_page.high(), right: right_page.right(), ..Frame::of(left_page) };
        let left_new = self.write(arena, &merged.draft(left.active, &pairs));
        let tombstone = self.write(arena, &tombstone(&right, right_page));
        let parent_page: Page<_, K, u64> = parent.page(arena);
        let parent_new = self.write(arena, &Frame::of(parent_page).draft(parent.active, children));
        let version = arena.ticket();
        for new in [left_new, tombstone, parent_new] {
            set_version(arena.block_words(new.block), version);
        }
        // The order as in `shrink`.
        parent.lock.set(version, parent_new);
        left.lock.set(version, left_new);
        right.lock.set_deleted(true);
        right.lock.set(version, tombstone);
        let slot = right.slot;
        let blocks = [left.active, right.active, parent.active].map(|active| Replaced::Block(active.block));
        drop((parent, left, right));
        if arena.publish(self.ep, version).is_err() {
            return false; // the tree is another node's
        }
        arena.replaced(version, blocks.into_iter().chain([Replaced::Slot(slot)]));
        true
    }
}

/// What a node leaves behind that is part of another one: readers at an earlier version find it through it.
fn tombstone<'p, W: crate::page::Words, K: TreeKey, T: Field>(
    node: &Locked<'_>,
    page: Page<W, K, T>,
) -> Draft<'p, K, T> {
    Draft { is_tombstone: true, ..Frame::of(page).draft(node.active, &[]) }
}

/// Locks the node of a slot.
fn locked<'a>(arena: &'a Arena, ep: &Endpoint, slot: u32) -> Option<Locked<'a>> {
    let lock = arena.lock(ep, slot);
    let active = lock.active()?;
    Some(Locked { slot, lock, active })
}
