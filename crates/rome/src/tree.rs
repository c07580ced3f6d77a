//! The ordered store: a B-link tree; its nodes are objects with versions.

mod access;
mod bulk;
mod change;
mod fetch;
mod later;
mod reader;
mod restructure;
mod scan;

use core::marker::PhantomData;
use core::time::Duration;
use std::sync::Arc;

use farfield_core::toolkit::ErrorContext;
use farfield_core::{Endpoint, Node, Result};
use farfield_fabric::{NodeId, Word};

pub(crate) use self::access::Access;
use self::later::Later;
pub use self::reader::TreeReader;
pub(crate) use self::scan::{Cursor, WINDOW_MAX};
pub use self::scan::{LocalScan, Scan};
use crate::arena::{Arena, Stash};
use crate::field::{Field, TreeKey};
use crate::gate::Gate;
use crate::layout::Active;
use crate::open::{Opened, Plan, open};
use crate::options::TreeOptions;
use crate::page::{Draft, Page};
use crate::seats::Seat;

/// The slot of the root.
pub(crate) const ROOT: u32 = 0;

/// A sorted map in the memory of one node, its owner. The owner's threads change it ([`Partition`]); all nodes read it
/// ([`TreeReader`]), by gets alone, and no change makes them wait.
///
/// ```
/// # use farfield_rome::{RomeTree, TreeOptions};
/// # let nodes = farfield::local_session(2)?;
/// let owner = nodes[0].id();
/// let trees = farfield::on_each(&nodes, |node| RomeTree::<u64, u64>::open(node, "tree", owner, TreeOptions::default()))?;
/// let (here, there) = (nodes[0].endpoint()?, nodes[1].endpoint()?);
/// let mut partition = trees[0].partition()?;
/// for key in 0..1000 {
///     partition.insert(&here, key, key * key)?;
/// }
/// let mut reader = trees[1].reader()?;
/// assert_eq!(there.block_on(reader.get(&there, &12))?, Some(144));
/// let some = there.block_on(reader.range(&there, 10.., 3))?;
/// assert_eq!(some, [(10, 100), (11, 121), (12, 144)]);
/// # Ok::<(), farfield::Error>(())
/// ```
pub struct RomeTree<K, V> {
    pub(crate) opened: Arc<Opened>,
    pub(crate) options: TreeOptions,
    later: Arc<Later<K>>,
    kind: PhantomData<fn() -> V>,
}

impl<K, V> Clone for RomeTree<K, V> {
    fn clone(&self) -> Self {
        let (opened, later) = (Arc::clone(&self.opened), Arc::clone(&self.later));
        RomeTree { opened, options: self.options, later, kind: PhantomData }
    }
}

impl<K: TreeKey, V: Field> RomeTree<K, V> {
    /// Opens the tree, and waits for its owner to do so. Others open it whenever they like, also a node that is
    /// restarted. It is empty at first.
    ///
    /// ```
    /// # use farfield_rome::{Bytes, RomeTree, TreeOptions};
    /// let node = farfield::Node::builder().start()?;
    /// let names = RomeTree::<Bytes<4>, u64>::open(&node, "names", node.id(), TreeOptions::default())?;
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// The owner is missing, dead or departed, or opens it differently; no memory; invalid options.
    pub fn open(node: &Node, path: &str, owner: NodeId, options: TreeOptions) -> Result<RomeTree<K, V>> {
        RomeTree::open_within(node, path, owner, options, None)
    }

    /// The same, of a node that waits so long at most for the owner.
    pub(crate) fn open_within(
        node: &Node,
        path: &str,
        owner: NodeId,
        options: TreeOptions,
        patience: Option<Duration>,
    ) -> Result<RomeTree<K, V>> {
        let shape = options.shape::<K, V>(node).of(path)?;
        let layout = format!("{} and {} words, {options:?}", K::WORDS, V::WORDS);
        let first = |block: &[Word]| {
            let (low, pairs): (K, [(K, V); 0]) = (K::FIRST, []);
            Draft { level: 0, is_tombstone: false, previous: 0, right: None, low, high: None, pairs: &pairs }
                .write(block, &mut Vec::new())
        };
        let plan = Plan { owner, shape, seats: options.seats, lease: options.lease, patience };
        let opened = Arc::new(open(node, path, "RomeTree", plan, &layout, first)?);
        Ok(RomeTree { opened, options, later: Arc::new(Later::new()), kind: PhantomData })
    }

    /// Changes wait at this gate. The tree was opened just now: no thread has a part in it.
    pub(crate) fn set_gate(&mut self, gate: Gate) {
        Arc::get_mut(&mut self.opened).expect("this is the only handle").set_gate(gate);
    }

    /// The gate, on its owner.
    pub(crate) fn gate(&self) -> Option<Gate> {
        self.opened.arena().ok()?.gate()
    }

    /// The node that has it in its memory.
    ///
    /// ```
    /// # use farfield_rome::{RomeTree, TreeOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let tree = RomeTree::<u64, u64>::open(&node, "tree", node.id(), TreeOptions::default())?;
    /// assert_eq!(tree.owner(), node.id());
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn owner(&self) -> NodeId {
        self.opened.owner
    }

    /// How the owner's memory is used, at this moment.
    ///
    /// ```
    /// # use farfield_rome::{RomeTree, TreeOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let tree = RomeTree::<u64, u64>::open(&node, "tree", node.id(), TreeOptions::default())?;
    /// let memory = tree.memory()?;
    /// assert_eq!((memory.blocks, memory.free, memory.waiting), (4096, 4095, 0)); // the root takes one
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// This node is not the owner.
    pub fn memory(&self) -> Result<Memory> {
        Ok(self.opened.arena()?.memory())
    }

    /// The part of one of the owner's threads.
    ///
    /// ```
    /// # use farfield_rome::{RomeTree, TreeOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let tree = RomeTree::<u64, u64>::open(&node, "tree", node.id(), TreeOptions::default())?;
    /// let (of_one, of_another) = (tree.partition()?, tree.partition()?);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// This node is not the owner; all seats are taken.
    pub fn partition(&self) -> Result<Partition<K, V>> {
        self.opened.arena()?;
        let seat = self.opened.seat()?;
        let tree = self.clone();
        Ok(Partition { tree, seat, stash: Stash::default(), words: Vec::new(), pairs: Vec::new() })
    }

    /// The part of one thread of any node that reads by operations.
    ///
    /// ```
    /// # use farfield_rome::{RomeTree, TreeOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let tree = RomeTree::<u64, u64>::open(&node, "tree", node.id(), TreeOptions::default())?;
    /// let reader = tree.reader()?;
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// All seats are taken.
    pub fn reader(&self) -> Result<TreeReader<K, V>> {
        Ok(TreeReader::new(self.clone(), self.opened.seat()?))
    }
}

/// How the owner's memory is used ([`RomeTree::memory`]).
///
/// ```
/// # use farfield_rome::Memory;
/// fn in_use(memory: &Memory) -> usize {
///     memory.blocks - memory.free - memory.waiting // the nodes of the tree, and a few that writers keep at hand
/// }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Memory {
    /// All blocks: a node of the tree takes one.
    pub blocks: usize,
    /// Those that are free.
    pub free: usize,
    /// Blocks, and slots of nodes that were merged into others, that were replaced and not looked at since.
    pub waiting: usize,
    /// How many changes have waited for memory: until no reader needed the replaced blocks any more, or until other
    /// changes freed some.
    pub waits: u64,
}

/// One of the owner's threads, which changes the tree and reads it, without an operation of the fabric.
///
/// Threads work on different leaves at the same time. Reads wait for nothing.
///
/// ```
/// # use farfield_rome::{RomeTree, TreeOptions};
/// # let node = farfield::Node::builder().start()?;
/// # let tree = RomeTree::<u64, u64>::open(&node, "tree", node.id(), TreeOptions::default())?;
/// # let ep = node.endpoint()?;
/// let mut partition = tree.partition()?;
/// assert_eq!(partition.put(&ep, 7, 70)?, None);
/// assert_eq!(partition.get(&7), Some(70));
/// assert_eq!(partition.delete(&ep, &7)?, Some(70));
/// # Ok::<(), farfield::Error>(())
/// ```
pub struct Partition<K, V> {
    pub(crate) tree: RomeTree<K, V>,
    seat: Seat,
    stash: Stash,
    words: Vec<u64>,
    pairs: Vec<(K, V)>,
}

impl<K, V> Drop for Partition<K, V> {
    fn drop(&mut self) {
        if let Ok(arena) = self.tree.opened.arena() {
            arena.give_back(&mut self.stash);
        }
    }
}

/// Loads the first lines of a node, on none of which the next loads depend: so they come from memory at the same time.
/// A look-up among five million pairs takes half the time.
#[inline]
fn touch(words: &[Word]) {
    if words.len() > 32 {
        for word in words.iter().take(112).step_by(8) {
            core::hint::black_box(word.glance());
        }
    }
}

/// The state of a slot at a version. There is one where a search from the root at this version leads.
#[inline]
pub(crate) fn page_at<K: TreeKey, V: Field>(arena: &Arena, slot: u32, version: u64) -> Option<Page<&[Word], K, V>> {
    let mut active = arena.active(slot)?;
    loop {
        let words = arena.block(active);
        touch(words);
        let page: Page<_, K, V> = Page::of(words);
        if page.version() <= version {
            return Some(page);
        }
        active = Active::of(page.previous())?;
    }
}

impl<K: TreeKey, V: Field> Partition<K, V> {
    #[inline]
    fn arena(tree: &RomeTree<K, V>) -> &Arena {
        tree.opened.arena().expect("a partition is of the owner")
    }

    /// The value of a key.
    ///
    /// ```
    /// # use farfield_rome::{RomeTree, TreeOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let tree = RomeTree::<u64, u64>::open(&node, "tree", node.id(), TreeOptions::default())?;
    /// assert_eq!(tree.partition()?.get(&7), None);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    #[inline]
    pub fn get(&mut self, key: &K) -> Option<V> {
        let arena = Self::arena(&self.tree);
        self.seat.announce_firm(arena.stable());
        let version = arena.stable();
        let value = leaf_at::<K, V>(arena, key, version).get(key, version);
        self.seat.clear();
        value
    }

    /// The values of several keys, all as of one moment.
    ///
    /// ```
    /// # use farfield_rome::{RomeTree, TreeOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let tree = RomeTree::<u64, u64>::open(&node, "tree", node.id(), TreeOptions::default())?;
    /// # let ep = node.endpoint()?;
    /// let mut partition = tree.partition()?;
    /// partition.put(&ep, 7, 70)?;
    /// assert_eq!(partition.multi_get(&[6, 7]), [None, Some(70)]);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn multi_get(&mut self, keys: &[K]) -> Vec<Option<V>> {
        let arena = Self::arena(&self.tree);
        self.seat.announce_firm(arena.stable());
        let version = arena.stable();
        let get = |key| leaf_at::<K, V>(arena, key, version).get(key, version);
        let values = keys.iter().map(get).collect();
        self.seat.clear();
        values
    }

    /// Adds a key with its value; whether it was not there. Nothing changes if it was.
    ///
    /// ```
    /// # use farfield_rome::{RomeTree, TreeOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let tree = RomeTree::<u64, u64>::open(&node, "tree", node.id(), TreeOptions::default())?;
    /// # let ep = node.endpoint()?;
    /// let mut partition = tree.partition()?;
    /// assert!(partition.insert(&ep, 7, 70)? && !partition.insert(&ep, 7, 71)?);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`MemoryFull`](crate::MemoryFull): nothing has changed.
    #[inline]
    pub fn insert(&mut self, ep: &Endpoint, key: K, value: V) -> Result<bool> {
        let before =
            self.change(ep, &key, |before| if before.is_some() { Change::None } else { Change::Put(value) })?;
        Ok(before.is_none())
    }

    /// Replaces the value of a key; whether the key was there. Nothing changes if it was not.
    ///
    /// ```
    /// # use farfield_rome::{RomeTree, TreeOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let tree = RomeTree::<u64, u64>::open(&node, "tree", node.id(), TreeOptions::default())?;
    /// # let ep = node.endpoint()?;
    /// let mut partition = tree.partition()?;
    /// assert!(!partition.update(&ep, 7, 70)?);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`MemoryFull`](crate::MemoryFull): nothing has changed.
    #[inline]
    pub fn update(&mut self, ep: &Endpoint, key: K, value: V) -> Result<bool> {
        let before =
            self.change(ep, &key, |before| if before.is_some() { Change::Put(value) } else { Change::None })?;
        Ok(before.is_some())
    }

    /// Gives a key this value; the one before.
    ///
    /// ```
    /// # use farfield_rome::{RomeTree, TreeOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let tree = RomeTree::<u64, u64>::open(&node, "tree", node.id(), TreeOptions::default())?;
    /// # let ep = node.endpoint()?;
    /// let mut partition = tree.partition()?;
    /// assert_eq!((partition.put(&ep, 7, 70)?, partition.put(&ep, 7, 71)?), (None, Some(70)));
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`MemoryFull`](crate::MemoryFull): nothing has changed.
    #[inline]
    pub fn put(&mut self, ep: &Endpoint, key: K, value: V) -> Result<Option<V>> {
        self.change(ep, &key, |_| Change::Put(value))
    }

    /// Takes a key out; the value that it had.
    ///
    /// ```
    /// # use farfield_rome::{RomeTree, TreeOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let tree = RomeTree::<u64, u64>::open(&node, "tree", node.id(), TreeOptions::default())?;
    /// # let ep = node.endpoint()?;
    /// assert_eq!(tree.partition()?.delete(&ep, &7)?, None);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`MemoryFull`](crate::MemoryFull): nothing has changed.
    #[inline]
    pub fn delete(&mut self, ep: &Endpoint, key: &K) -> Result<Option<V>> {
        self.change(ep, key, |before| if before.is_some() { Change::Delete } else { Change::None })
    }

    /// Changes a key as a function of its value says, which may be called again. The value before.
    ///
    /// The leaf with the key is locked while the function is called. It must not block, since changes of keys nearby
    /// and the reuse of memory wait for it, and must not call another [`Partition`] of this tree, since that may wait
    /// for the same lock for ever.
    ///
    /// ```
    /// # use farfield_rome::{Change, RomeTree, TreeOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let tree = RomeTree::<u64, u64>::open(&node, "tree", node.id(), TreeOptions::default())?;
    /// # let ep = node.endpoint()?;
    /// let mut partition = tree.partition()?;
    /// for _ in 0..3 {
    ///     partition.change(&ep, &7, |count| Change::Put(count.unwrap_or(0) + 1))?;
    /// }
    /// assert_eq!(partition.get(&7), Some(3));
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`MemoryFull`](crate::MemoryFull): nothing has changed.
    pub fn change(&mut self, ep: &Endpoint, key: &K, decide: impl FnMut(Option<V>) -> Change<V>) -> Result<Option<V>> {
        self.change_with(ep, key, decide).of(self.tree.opened.object.path())
    }
}

/// How many leaves to read at a time for so many pairs. Most of them have as many as half a base.
pub(crate) fn leaves_of(limit: usize, pairs_max: usize) -> usize {
    limit.div_ceil(pairs_max / 2 + 1).min(WINDOW_MAX)
}

/// What happens to a key.
///
/// ```
/// use farfield_rome::Change;
/// assert_ne!(Change::Put(7), Change::Delete);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change<V> {
    /// It stays as it is.
    None,
    /// It has this value.
    Put(V),
    /// It is taken out.
    Delete,
}

/// The leaf of a key at a version, which the caller has announced.
#[inline]
fn leaf_at<'a, K: TreeKey, V: Field>(arena: &'a Arena, key: &K, version: u64) -> Page<&'a [Word], K, V> {
    let mut slot = ROOT;
    loop {
        let page = page_at::<K, V>(arena, slot, version).expect("the tree of a version is whole");
        if page.is_before(key) {
            slot = page.right().expect("a node with a high fence has a right sibling");
        } else if page.level() == 0 {
            return page;
        } else {
            let inner = page.inner();
            slot = inner.value(inner.child_at(key)) as u32;
        }
    }
}
