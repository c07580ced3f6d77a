//! Loading many pairs into an empty tree.

use farfield_core::toolkit::ErrorContext;
use farfield_core::{Endpoint, Error, ErrorKind, Result};

use super::change::{Frame, Store, lock};
use super::{Partition, ROOT, leaf_at, page_at};
use crate::arena::{Arena, Replaced, Stash};
use crate::errors::Moved;
use crate::field::{Field, TreeKey};
use crate::page::{Draft, Page, set_version};
use crate::seats::Seat;

impl<K: TreeKey, V: Field> Partition<K, V> {
    /// Fills an empty tree with pairs in the order of their keys, several times as fast as by inserting them. Readers
    /// see all of them at one moment. Nodes are filled to three quarters.
    ///
    /// ```
    /// # use farfield_rome::{RomeTree, TreeOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let tree = RomeTree::<u64, u64>::open(&node, "tree", node.id(), TreeOptions::default())?;
    /// # let ep = node.endpoint()?;
    /// let mut partition = tree.partition()?;
    /// partition.load(&ep, (0..100_000).map(|key| (key, key * 2)))?;
    /// assert_eq!(partition.get(&77_777), Some(155_554));
    /// assert!(partition.load(&ep, [(1, 1)]).is_err()); // it is not empty
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Config`]: the tree is not empty, or was not all the time, or keys are not in order.
    /// [`MemoryFull`](crate::MemoryFull). Then the tree is as it was.
    pub fn load(&mut self, ep: &Endpoint, pairs: impl IntoIterator<Item = (K, V)>) -> Result<()> {
        self.load_or_keep(ep, pairs, &mut Vec::new())
    }

    /// The same. Where the tree is moved meanwhile, `kept` has the pairs that were taken and are not loaded.
    ///
    /// # Errors
    /// The same. [`Moved`].
    pub(crate) fn load_or_keep(
        &mut self,
        ep: &Endpoint,
        pairs: impl IntoIterator<Item = (K, V)>,
        kept: &mut Vec<(K, V)>,
    ) -> Result<()> {
        let Partition { tree, seat, words, .. } = self;
        let (arena, options) = (Self::arena(tree), &tree.options);
        tree.opened.object.check_current()?;
        // So that a tree that was moved before takes none of them.
        arena.stable_now().current()?;
        let mut stash = Stash::default();
        let store = Store { ep, pairs: options.pairs, stash: &mut stash, words };
        let mut load = Load {
            arena,
            store,
            fill: (options.pairs * 3 / 4).max(2),
            slots: Vec::new(),
            blocks: Vec::new(),
            version: 0,
        };
        let loaded = load.all(seat, pairs);
        if loaded.as_ref().is_err_and(|error| error.custom_ref::<Moved>().is_some()) {
            // Its nodes stay: the root names them, at a version that will not be stable. So no block of them is used
            // again.
            pairs_at(arena, load.version, kept);
        } else if loaded.is_err() {
            load.slots.iter().for_each(|slot| arena.unuse_slot(*slot));
            let (slots, blocks) = (load.slots, load.blocks);
            arena.give_back(&mut Stash { blocks, slots });
            arena.give_back(&mut stash);
        }
        loaded.of(tree.opened.object.path())
    }
}

/// Nodes that no reader reaches yet. Their slots were never used, so no reader remembers one of them.
struct Load<'a> {
    arena: &'a Arena,
    store: Store<'a>,
    /// Pairs of a node.
    fill: usize,
    slots: Vec<u32>,
    blocks: Vec<u32>,
    /// Of the root that names them, when it is stored.
    version: u64,
}

/// All pairs of a version; its blocks stay.
fn pairs_at<K: TreeKey, V: Field>(arena: &Arena, version: u64, into: &mut Vec<(K, V)>) {
    let (mut page, mut of_leaf) = (leaf_at::<K, V>(arena, &K::FIRST, version), Vec::new());
    loop {
        page.pairs(version, &mut of_leaf);
        into.append(&mut of_leaf);
        let Some(right) = page.right() else { return };
        page = page_at(arena, right, version).expect("the tree of a version is whole");
    }
}

/// A level that is being filled: the last node, and all before it.
struct Level<K, T> {
    level: u8,
    slot: Option<u32>,
    pairs: Vec<(K, T)>,
    nodes: Vec<(K, u64)>,
}

fn refuse<T>(why: &str) -> Result<T> {
    Err(Error::from(ErrorKind::Config { why: why.into() }))
}

impl Load<'_> {
    fn all<K: TreeKey, V: Field>(&mut self, seat: &Seat, pairs: impl IntoIterator<Item = (K, V)>) -> Result<()> {
        let mut leaves = Level { level: 0, slot: None, pairs: Vec::new(), nodes: Vec::new() };
        for (key, value) in pairs {
            if leaves.pairs.last().is_some_and(|last: &(K, V)| last.0 >= key) {
                return refuse("the keys to load are not in order, or one is there twice");
            }
            self.add(&mut leaves, (key, value))?;
        }
        if leaves.nodes.is_empty() {
            return self.publish(seat, 0, &leaves.pairs);
        }
        self.node(&mut leaves, None)?;
        let (mut children, mut level) = (leaves.nodes, 1);
        while children.len() > self.fill {
            let mut above = Level { level, slot: None, pairs: Vec::new(), nodes: Vec::new() };
            for child in children {
                self.add(&mut above, child)?;
            }
            self.node(&mut above, None)?;
            (children, level) = (above.nodes, level + 1);
        }
        self.publish(seat, level, &children)
    }

    /// Adds a pair to a level.
    fn add<K: TreeKey, T: Field>(&mut self, level: &mut Level<K, T>, pair: (K, T)) -> Result<()> {
        if level.pairs.len() == self.fill {
            self.node(level, Some(pair.0))?;
        }
        level.pairs.push(pair);
        Ok(())
    }

    fn slot(&mut self) -> Result<u32> {
        self.arena.take_unused(self.store.stash, 0, 1)?;
        let slot = self.store.stash.slots.pop().expect("it was taken");
        self.slots.push(slot);
        Ok(slot)
    }

    /// Stores the last node of a level. Its version is earlier than that of any reader that reaches it.
    fn node<K: TreeKey, T: Field>(&mut self, level: &mut Level<K, T>, high: Option<K>) -> Result<()> {
        let slot = level.slot.take().map_or_else(|| self.slot(), Ok)?;
        level.slot = high.map(|_| self.slot()).transpose()?;
        self.arena.take_unused(self.store.stash, 1, 0)?;
        let low = if level.nodes.is_empty() { K::FIRST } else { level.pairs[0].0 };
        let draft = Draft {
            level: level.level,
            is_tombstone: false,
            previous: 0,
            right: level.slot,
            low,
            high,
            pairs: &level.pairs,
        };
        let new = self.store.write(self.arena, &draft);
        self.blocks.push(new.block);
        set_version(self.arena.block_words(new.block), 0);
        self.arena.use_slot(slot, 0, new);
        level.nodes.push((low, u64::from(slot)));
        level.pairs.clear();
        Ok(())
    }

    /// Makes these pairs those of the root, which is empty.
    fn publish<K: TreeKey, T: Field>(&mut self, seat: &Seat, level: u8, pairs: &[(K, T)]) -> Result<()> {
        let (arena, ep) = (self.arena, self.store.ep);
        arena.take_unused(self.store.stash, 1, 0)?;
        let Some(root) = lock(arena, seat, ep, &K::FIRST, 0) else { return refuse("the tree is not empty") };
        let page: Page<_, K, u64> = root.page(arena);
        let is_empty = page.high().is_none() && page.count() == 0 && page.has_no_log();
        if root.slot != ROOT || !is_empty {
            return refuse("the tree is not empty");
        }
        let frame = Frame { level, right: None, low: K::FIRST, high: None };
        let new = self.store.write(arena, &frame.draft(root.active, pairs));
        let version = arena.ticket();
        self.version = version;
        set_version(arena.block_words(new.block), version);
        root.lock.set(version, new);
        let replaced = Replaced::Block(root.active.block);
        drop(root);
        arena.publish(ep, version)?;
        arena.replaced(version, [replaced]);
        Ok(())
    }
}
