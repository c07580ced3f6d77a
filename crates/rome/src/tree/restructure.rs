//! The levels above the leaves: separators of nodes that were split, and merges of nodes with few pairs.
//!
//! *Locks.* A split locks its node alone, and its parent later. A merge locks the parent, the left node and the right
//! one, in this order: from the root down, and from left to right. So no two wait for each other.
//!
//! *Merges.* A leaf is merged with a neighbour when a quarter of its pairs is left, and again when it has none, if both
//! fit three quarters of a node; a node without pairs fits any. So of two neighbours one has more than a quarter, but
//! for those with different parents.
//!
//! *Links come first.* A node that its parent does not know yet is no neighbour of any. A merge that reaches one is
//! left to later changes, which find it linked.
//!
//! *No change waits for these.* The change of a leaf that has led to them is visible before they begin. Each step is
//! another change of the tree, for which `stable` has to be raised. So none begins without free memory, while `stable`
//! is frozen, or at a closed gate: it is left to later changes. A change waits only if a freeze or a closed gate begins
//! within a step. A thread that does not wait at gates, the service thread, passes a gate that is closed while it makes
//! an update with the step that has begun, and with no other one.

use std::collections::VecDeque;

use farfield_core::Endpoint;

use super::change::{BLOCKS, Chores, Frame, Locked, SLOTS, Store, lock};
use super::later::Chore;
use super::{Partition, ROOT};
use crate::arena::{Arena, Replaced};
use crate::field::{Field, TreeKey};
use crate::page::{Draft, Page, set_version};

/// What one change does at most of what earlier ones have left: more than it leaves itself, and few, since its caller
/// waits for them.
const OLD_MAX: usize = 8;

/// A step that has to wait: there is no free memory, `stable` is not to change now, or a node is not linked yet that is
/// to be merged.
#[derive(Debug)]
struct NotNow;

/// What has become of a node and its parent.
struct Merged {
    /// The node has another's pairs, too.
    has_merged: bool,
    /// The parent has no other child.
    is_alone: bool,
    /// The parent has few children, and is not the root.
    goes_on: bool,
}

impl<K: TreeKey, V: Field> Partition<K, V> {
    /// Does these, and some of what was left to do. What has to wait is left to later changes: this one has happened,
    /// and does not wait.
    pub(super) fn tidy(&mut self, ep: &Endpoint, new: Chores<K>) {
        let mut chores: VecDeque<_> = self.tree.later.take(OLD_MAX).into();
        // A merge before the link of a neighbour would find nothing to do, and be spent.
        for chore in new.into_iter().flatten() {
            match chore {
                Chore::Link { .. } => chores.push_front(chore),
                Chore::Merge { .. } => chores.push_back(chore),
            }
        }
        while let Some(chore) = chores.pop_front() {
            let is_done = match chore {
                Chore::Link { level, separator, right } => match self.link(ep, level, separator, right) {
                    Ok(split) => {
                        split.into_iter().for_each(|split| chores.push_front(split));
                        true
                    }
                    Err(NotNow) => false,
                },
                Chore::Merge { key } => self.merge(ep, &key).is_ok(),
            };
            if !is_done {
                // The nodes of a tree that was moved stay as they are.
                if !Self::arena(&self.tree).stable_now().is_moved() {
                    chores.push_front(chore);
                    self.tree.later.put(chores.into());
                }
                return;
            }
        }
    }

    /// Tells a level of a node of the one below that was split; the same, if its own node is split.
    fn link(&mut self, ep: &Endpoint, level: u8, separator: K, right: u32) -> Result<Option<Chore<K>>, NotNow> {
        let Partition { tree, seat, stash, words, .. } = self;
        let arena = Self::arena(tree);
        if !arena.is_calm() || !arena.fill_now(stash, BLOCKS, SLOTS) {
            return Err(NotNow);
        }
        let locked = lock(arena, seat, ep, &separator, level).expect("a node that was split is not the root");
        let page: Page<_, K, u64> = locked.page(arena);
        let mut children = Vec::with_capacity(page.count() + 1);
        page.pairs(u64::MAX, &mut children);
        if let Err(at) = children.binary_search_by(|child| child.0.cmp(&separator)) {
            children.insert(at, (separator, u64::from(right)));
        }
        let mut store = Store { ep, pairs: tree.options.pairs, stash, words };
        let Ok(split) = store.rewrite(arena, locked, &Frame::of(page), &children) else {
            return Ok(None); // the tree is another node's
        };
        Ok(split.map(|(separator, right)| Chore::Link { level: level + 1, separator, right }))
    }

    /// Merges the leaf with the key with its neighbours, as far as they fit one node, and so on upwards.
    fn merge(&mut self, ep: &Endpoint, key: &K) -> Result<(), NotNow> {
        loop {
            let (mut level, mut was_alone, mut has_siblings) = (0, false, false);
            loop {
                let merged = match level {
                    0 => self.merge_node::<V>(ep, key, level)?,
                    _ => self.merge_node::<u64>(ep, key, level)?,
                };
                has_siblings |= was_alone && merged.has_merged;
                was_alone |= merged.is_alone;
                if !merged.goes_on {
                    break;
                }
                level += 1;
            }
            // One that was the only child of its parent may be merged now.
            if !has_siblings {
                return Ok(());
            }
        }
    }

    /// Merges a node with its neighbours of the same parent, as far as they fit one node: first with the left ones,
    /// which were not merged when they had few pairs, because there was no memory.
    fn merge_node<T: Field>(&mut self, ep: &Endpoint, key: &K, level: u8) -> Result<Merged, NotNow> {
        let Partition { tree, seat, stash, words, .. } = self;
        let (arena, pairs_max) = (Self::arena(tree), tree.options.pairs);
        let mut merged = Merged { has_merged: false, is_alone: false, goes_on: false };
        let (is_root, count) = loop {
            if !arena.is_calm() || !arena.fill_now(stash, BLOCKS, 0) {
                return Err(NotNow);
            }
            let Some(parent) = lock(arena, seat, ep, key, level + 1) else { return Ok(merged) };
            let page: Page<_, K, u64> = parent.page(arena);
            let mut children = Vec::with_capacity(page.count());
            page.pairs(u64::MAX, &mut children);
            let at = page.child_at(key);
            let lefts = at.saturating_sub(1)..(at + 1).min(children.len().saturating_sub(1));
            // The neighbour that its parent does not know yet may fit: the split's link follows, and then this is done
            // again.
            if !knows_node_of::<K, T>(arena, ep, children[at].1 as u32, key) {
                return Err(NotNow);
            }
            let mut is_linked = true;
            let mut fits = lefts.filter_map(|at| {
                let slots = [at, at + 1].map(|at| children[at].1 as u32);
                let pair = Pair::<K, T>::lock(arena, ep, slots, pairs_max);
                is_linked &= !matches!(pair, Err(NotNow));
                Some((at, pair.ok()??))
            });
            let Some((at, pair)) = fits.next() else {
                drop(fits);
                if !is_linked {
                    return Err(NotNow);
                }
                break (parent.slot == ROOT, children.len());
            };
            children.remove(at + 1);
            Store { ep, pairs: pairs_max, stash, words }.merge(arena, parent, pair, &children);
            merged.has_merged = true;
        };
        if is_root && count == 1 {
            self.shrink::<T>(ep, level + 1)?;
        }
        (merged.is_alone, merged.goes_on) = (count == 1, !is_root && count < (pairs_max / 4).max(2));
        Ok(merged)
    }

    /// Gives the root, if it is on this level, what its only child has.
    fn shrink<T: Field>(&mut self, ep: &Endpoint, level: u8) -> Result<(), NotNow> {
        let Partition { tree, stash, words, .. } = self;
        let arena = Self::arena(tree);
        if !arena.is_calm() || !arena.fill_now(stash, BLOCKS, 0) {
            return Err(NotNow);
        }
        let Some(root) = locked(arena, ep, ROOT) else { return Ok(()) };
        let page: Page<_, K, u64> = root.page(arena);
        if page.level() != level || page.count() != 1 {
            return Ok(());
        }
        let Some(child) = locked(arena, ep, page.value(0) as u32) else { return Ok(()) };
        let page: Page<_, K, T> = child.page(arena);
        let mut pairs = Vec::new();
        page.pairs(u64::MAX, &mut pairs);
        // With a right sibling that the root does not know yet it is not the only one.
        if page.right().is_some() || pairs.len() > tree.options.pairs {
            return Ok(());
        }
        let mut store = Store { ep, pairs: tree.options.pairs, stash, words };
        let root_new = store.write(arena, &Frame::of(page).draft(root.active, &pairs));
        let tombstone = store.write(arena, &tombstone(&child, page));
        let version = arena.ticket();
        for new in [root_new, tombstone] {
            set_version(arena.block_words(new.block), version);
        }
        // In this order: so a thread that looks for a leaf to lock waits for a lock, and does not come to the tombstone
        // again and again.
        root.lock.set(version, root_new);
        child.lock.set(version, tombstone);
        let (slot, blocks) = (child.slot, [root.active, child.active].map(|active| Replaced::Block(active.block)));
        drop((root, child));
        if arena.publish(ep, version).is_err() {
            return Ok(()); // the tree is another node's
        }
        arena.replaced(version, blocks.into_iter().chain([Replaced::Slot(slot)]));
        Ok(())
    }
}

/// Two neighbours that fit one node, locked.
struct Pair<'a, K, T> {
    left: Locked<'a>,
    right: Locked<'a>,
    /// Of both.
    pairs: Vec<(K, T)>,
}

impl<'a, K: TreeKey, T: Field> Pair<'a, K, T> {
    /// The caller has locked their parent. None if they do not fit.
    ///
    /// # Errors
    /// Between the two is one that was split from the left one, and that the parent does not know yet.
    fn lock(
        arena: &'a Arena,
        ep: &Endpoint,
        slots: [u32; 2],
        pairs_max: usize,
    ) -> Result<Option<Pair<'a, K, T>>, NotNow> {
        let [Some(left), Some(right)] = slots.map(|slot| locked(arena, ep, slot)) else { return Ok(None) };
        let (left_page, right_page): (Page<_, K, T>, Page<_, K, T>) = (left.page(arena), right.page(arena));
        if left_page.right() != Some(right.slot) {
            return Err(NotNow);
        }
        let (mut pairs, mut of_right) = (Vec::new(), Vec::new());
        left_page.pairs(u64::MAX, &mut pairs);
        right_page.pairs(u64::MAX, &mut of_right);
        // Nodes that are filled up would soon be split again. But one without pairs, or with a child alone, is merged
        // in any case.
        let is_next_to_nothing = pairs.len().min(of_right.len()) <= 1;
        pairs.append(&mut of_right);
        let fits = if is_next_to_nothing { pairs_max } else { pairs_max * 3 / 4 };
        Ok((pairs.len() <= fits).then_some(Pair { left, right, pairs }))
    }
}

/// Whether this child of a node that is locked is the one with the key: not, if that was split from it, and its parent
/// does not know it yet.
fn knows_node_of<K: TreeKey, T: Field>(arena: &Arena, ep: &Endpoint, child: u32, key: &K) -> bool {
    locked(arena, ep, child).is_none_or(|child| !child.page::<K, T>(arena).is_before(key))
}

impl Store<'_> {
    /// Puts the pairs of two neighbours into the left one. These are the parent's children then.
    fn merge<K: TreeKey, T: Field>(
        &mut self,
        arena: &Arena,
        parent: Locked<'_>,
        Pair { left, right, pairs }: Pair<'_, K, T>,
        children: &[(K, u64)],
    ) {
        let (left_page, right_page): (Page<_, K, T>, Page<_, K, T>) = (left.page(arena), right.page(arena));
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
        right.lock.set(version, tombstone);
        let slot = right.slot;
        let blocks = [left.active, right.active, parent.active].map(|active| Replaced::Block(active.block));
        drop((parent, left, right));
        if arena.publish(self.ep, version).is_err() {
            return; // the tree is another node's
        }
        let slot = Replaced::Slot(slot);
        arena.replaced(version, blocks.into_iter().chain([slot]));
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

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use farfield_core::{local_session, on_each};
    use farfield_fabric::GroupKey;

    use super::*;
    use crate::gate::{GATE_BYTES, Gate};
    use crate::tree::{Change, page_at};
    use crate::{RomeTree, TreeOptions};

    type Tree = RomeTree<u64, u64>;

    /// The nodes of a level, from left to right, and those that the level above names.
    fn nodes_of(arena: &Arena, level: u8) -> (Vec<u32>, Vec<u32>) {
        let at = |slot| page_at::<u64, u64>(arena, slot, arena.stable()).expect("it is a node").inner();
        let mut first = ROOT;
        while at(first).level() > level {
            first = at(first).value(0) as u32;
        }
        let row = |first| core::iter::successors(Some(first), |slot| at(*slot).right()).collect::<Vec<u32>>();
        let mut above = ROOT;
        while at(above).level() > level + 1 {
            above = at(above).value(0) as u32;
        }
        let children = |slot: u32| (0..at(slot).count()).map(move |child| at(slot).value(child) as u32);
        (row(first), row(above).into_iter().flat_map(children).collect())
    }

    /// A reader holds memory, so that splits are not linked. The thread that has made them ends, and another one links
    /// them: they were forgotten with the first one once. No change waits for memory that it needs for links alone.
    #[test]
    fn a_split_that_is_not_linked_is_left_to_any_thread() {
        let mut left = 0;
        for blocks in 16..28 {
            let nodes = local_session(2).expect("a session");
            let options = TreeOptions { pairs: 4, records: 1, blocks, ..TreeOptions::default() };
            let owner = nodes[0].id();
            let trees = on_each(&nodes, |node| Tree::open(node, "tree", owner, options)).expect("all open it");
            let (ep, other) = (nodes[0].endpoint().expect("one"), nodes[1].endpoint().expect("one"));
            ep.set_timeout(Duration::from_millis(5));
            let mut seat = trees[1].opened.seat().expect("a seat");
            seat.announce(&other, 0);
            let mut partition = trees[0].partition().expect("a seat");
            let mut keys = 0;
            while partition.put(&ep, keys, keys).is_ok() {
                keys += 1;
            }
            drop(partition);
            let arena = trees[0].opened.arena().expect("it is the owner");
            let (row, known) = nodes_of(arena, 0);
            left += row.len() - known.len();
            seat.clear();
            let mut partition = trees[0].partition().expect("a seat");
            for round in 0..4 {
                partition.put(&ep, 0, round).expect("there is room");
            }
            let (row, known) = nodes_of(arena, 0);
            assert_eq!(row, known, "of {blocks} blocks");
            assert!((1..keys).all(|key| partition.get(&key) == Some(key)));
        }
        assert!(left > 0, "all were linked at once");
    }

    const LONG: Duration = Duration::from_secs(60);

    /// Splits a leaf below the root, and does not tell the level above.
    fn split(partition: &mut Partition<u64, u64>, ep: &Endpoint, keys: &mut impl Iterator<Item = u64>) -> Chores<u64> {
        loop {
            let key = keys.next().expect("there are enough");
            let (_, chores) = partition.change_leaf(ep, &key, |_| Change::Put(key)).expect("there is room");
            if let Some(chores @ [_, Some(Chore::Link { .. })]) = chores {
                return chores;
            }
        }
    }

    #[test]
    fn the_chores_of_a_change_wait_and_the_change_does_not() {
        let node = farfield_core::Node::builder().start().expect("a node");
        let options = TreeOptions { pairs: 4, records: 1, blocks: 1000, ..TreeOptions::default() };
        let mut tree = Tree::open(&node, "tree", node.id(), options).expect("one");
        let gate = Gate::new(&node.alloc(GroupKey::SIGNAL, GATE_BYTES).expect("memory"), 0, LONG);
        tree.set_gate(gate.clone());
        let (ep, mut partition, mut keys) = (node.endpoint().expect("one"), tree.partition().expect("a seat"), 0..100);
        let arena = tree.opened.arena().expect("it is the owner");
        let is_linked = || {
            let (row, known) = nodes_of(arena, 0);
            row == known
        };
        let chores = split(&mut partition, &ep, &mut keys);
        let stable = arena.stable();
        gate.close();
        partition.tidy(&ep, chores);
        assert!(gate.is_closed() && arena.stable() == stable && !is_linked(), "a gate is closed");
        gate.open();
        let frozen = arena.freeze(ep.now() + LONG).expect("it is not frozen");
        partition.tidy(&ep, [None, None]);
        assert!(arena.stable_now().is_frozen() && arena.stable() == stable && !is_linked(), "it is frozen");
        arena.thaw(&ep, frozen);
        partition.tidy(&ep, [None, None]);
        assert!(is_linked(), "nothing hinders it");
        let chores = split(&mut partition, &ep, &mut keys);
        let frozen = arena.freeze(ep.now() + LONG).expect("it is not frozen");
        assert!(arena.move_away(&ep, frozen));
        partition.tidy(&ep, chores);
        assert_eq!(tree.later.take(usize::MAX), [], "it is another node's");
    }

    #[test]
    fn a_change_does_some_of_the_chores_left() {
        let node = farfield_core::Node::builder().start().expect("a node");
        let tree = Tree::open(&node, "tree", node.id(), TreeOptions::default()).expect("one");
        let (ep, mut partition) = (node.endpoint().expect("one"), tree.partition().expect("a seat"));
        tree.later.put((0..20).map(|key| Chore::Merge { key }).collect());
        partition.tidy(&ep, [None, None]);
        let left = tree.later.take(usize::MAX);
        assert_eq!(left, (OLD_MAX as u64..20).map(|key| Chore::Merge { key }).collect::<Vec<_>>(), "the oldest first");
    }

    /// A merge that came before the link of its neighbour, which an earlier change had left, found nothing to do once,
    /// and was spent.
    #[test]
    fn a_leaf_is_merged_with_a_neighbour_that_was_not_linked_yet() {
        for is_of_right in [false, true] {
            let node = farfield_core::Node::builder().start().expect("a node");
            let options = TreeOptions { pairs: 4, records: 1, blocks: 1000, ..TreeOptions::default() };
            let (tree, ep) =
                (Tree::open(&node, "tree", node.id(), options).expect("one"), node.endpoint().expect("one"));
            let (mut partition, mut keys) = (tree.partition().expect("a seat"), 0..100);
            let arena = tree.opened.arena().expect("it is the owner");
            let link = split(&mut partition, &ep, &mut keys);
            // The right leaf has the last key alone, and the left one those before it.
            let last = keys.start - 1;
            for key in last - 4..last - 1 {
                partition.change_leaf(&ep, &key, |_| Change::Delete).expect("there is room");
            }
            let merge = Chore::Merge { key: if is_of_right { last } else { last - 1 } };
            let leaves = nodes_of(arena, 0).0.len();
            if is_of_right {
                // Another thread is about to do it.
                partition.tidy(&ep, [Some(merge), None]);
                partition.tidy(&ep, link);
            } else {
                tree.later.put(link.into_iter().flatten().collect());
                partition.tidy(&ep, [Some(merge), None]);
            }
            partition.tidy(&ep, [None, None]);
            let (row, known) = nodes_of(arena, 0);
            assert_eq!((row.len(), row), (leaves - 1, known));
            assert_eq!(tree.later.take(usize::MAX), [], "nothing is left to do");
        }
    }

    #[test]
    fn a_tree_of_one_key_is_a_leaf() {
        let node = farfield_core::Node::builder().start().expect("a node");
        let options = TreeOptions { pairs: 8, records: 2, blocks: 1000, ..TreeOptions::default() };
        let (tree, ep) = (Tree::open(&node, "tree", node.id(), options).expect("one"), node.endpoint().expect("one"));
        let mut partition = tree.partition().expect("a seat");
        partition.load(&ep, (0..400).map(|key| (key, key))).expect("it is empty");
        // From left to right, each second one first.
        for key in (0..400).step_by(2).chain((1..400).step_by(2)).filter(|key| *key != 200) {
            partition.delete(&ep, &key).expect("there is room");
        }
        let arena = tree.opened.arena().expect("it is the owner");
        let root = page_at::<u64, u64>(arena, ROOT, arena.stable()).expect("it is a node");
        assert_eq!((root.level(), partition.range(&ep, .., 9).expect("no stop")), (0, vec![(200, 200)]));
    }
}
