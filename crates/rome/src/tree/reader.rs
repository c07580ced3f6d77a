//! Reads by operations.
//!
//! A search with cached inner nodes gets `stable` and the leaf's active word together, and then the leaf: two round
//! trips. The two words are read in any order. The result is right in both:
//!
//! - `stable` = V first, then the active word: it names all that has a version up to V. What is read is the state at V,
//!   which was current when `stable` was read.
//! - the active word first, while `stable` was S, and then V ≥ S: it names all up to S, and maybe some up to V. If the
//!   latest record of the key up to V is one of up to S, then it was current when the active word was read. Else it
//!   became current afterwards, when `stable` reached its version, and that is before V was read.

use core::ops::RangeBounds;
use std::collections::BTreeMap;

use farfield_core::{Endpoint, Result};

use super::fetch::{Cache, Fetch, Node, Step, There, corrupt};
use super::scan::{Cursor, Edge, Scan, Side, WINDOW_MAX, some};
use super::{ROOT, RomeTree};
use crate::arena::Stable;
use crate::field::{Field, TreeKey};
use crate::layout::Active;
use crate::open::Opened;
use crate::page::Page;
use crate::reading::{announced, check, read};
use crate::seats::Seat;

/// A thread of any node, which reads the tree by gets. It remembers inner nodes.
///
/// Whatever the owner's threads do, a call has a bounded number of gets: no writer makes it start again. (This thread
/// itself does, by stopping for a quarter of the lease in the middle of a call.)
///
/// ```
/// # use farfield_rome::{RomeTree, TreeOptions};
/// # let nodes = farfield::local_session(2)?;
/// # let owner = nodes[0].id();
/// # let trees = farfield::on_each(&nodes, |node| RomeTree::<u64, u64>::open(node, "tree", owner, TreeOptions::default()))?;
/// let (here, ep) = (nodes[0].endpoint()?, nodes[1].endpoint()?);
/// trees[0].partition()?.load(&here, (0..1000).map(|key| (key, key)))?;
/// let mut reader = trees[1].reader()?;
/// ep.block_on(reader.get(&ep, &700))?; // the first one reads the inner nodes on its way
/// let (value, counts) = ep.block_on(ep.counted(reader.get(&ep, &701)));
/// assert_eq!((value?, counts.gets, counts.round_trips), (Some(701), 3, 2));
/// # Ok::<(), farfield::Error>(())
/// ```
pub struct TreeReader<K, V> {
    pub(super) tree: RomeTree<K, V>,
    pub(super) seat: Seat,
    cache: Cache,
    pub(super) ahead: BTreeMap<u32, u64>,
    /// The latest `stable` that it has seen.
    pub(super) known: u64,
}

/// A leaf, and the version as of which it is.
type Found = (Node, u64);

/// How many right siblings a search follows that does not go through the tree of one version.
pub(super) const MOVES_MAX: usize = 2;

impl<K: TreeKey, V: Field> TreeReader<K, V> {
    pub(super) fn new(tree: RomeTree<K, V>, seat: Seat) -> TreeReader<K, V> {
        TreeReader { tree, seat, cache: Cache::default(), ahead: BTreeMap::new(), known: 0 }
    }

    pub(super) fn fetch<'a>(&'a mut self, ep: &'a Endpoint, version: u64) -> There<'a> {
        let TreeReader { tree, seat, cache, ahead, .. } = self;
        There { opened: &tree.opened, seat, cache, ep, version, ahead }
    }

    /// The value of a key, as it was at one moment during the call.
    ///
    /// ```
    /// # use farfield_rome::{RomeTree, TreeOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let tree = RomeTree::<u64, u64>::open(&node, "tree", node.id(), TreeOptions::default())?;
    /// # let ep = node.endpoint()?;
    /// assert_eq!(ep.block_on(tree.reader()?.get(&ep, &7))?, None);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// The owner is dead or cannot be reached.
    pub async fn get(&mut self, ep: &Endpoint, key: &K) -> Result<Option<V>> {
        let TreeReader { tree, seat, cache, known, .. } = self;
        let opened = &*tree.opened;
        let attempt = async |seat: &mut Seat, known: &mut u64| {
            let mut search = Search { opened, ep, seat, cache: &mut *cache, version: None };
            let (leaf, version) = search.leaf::<K, V>(key).await?;
            *known = version;
            Ok(Page::<&[u64], K, V>::of(&leaf).get(key, version))
        };
        read(opened, ep, seat, known, attempt).await
    }

    /// The values of several keys, all as of one moment: in three round trips, if the inner nodes are cached, and one
    /// more for each 64 leaves.
    ///
    /// ```
    /// # use farfield_rome::{RomeTree, TreeOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let tree = RomeTree::<u64, u64>::open(&node, "tree", node.id(), TreeOptions::default())?;
    /// # let ep = node.endpoint()?;
    /// tree.partition()?.put(&ep, 7, 70)?;
    /// assert_eq!(ep.block_on(tree.reader()?.multi_get(&ep, &[6, 7]))?, [None, Some(70)]);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// The owner is dead or cannot be reached.
    pub async fn multi_get(&mut self, ep: &Endpoint, keys: &[K]) -> Result<Vec<Option<V>>> {
        let get = async |there: &mut There<'_>| {
            let leads: Vec<u32> = keys.iter().map(|key| cached(there.cache, key).0).collect();
            let mut slots = leads.clone();
            slots.sort_unstable();
            slots.dedup();
            let nodes = Fetch::<K, V>::nodes(there, &slots, &[]).await?;
            let version = there.version;
            let mut values = Vec::with_capacity(keys.len());
            for (key, lead) in keys.iter().zip(leads) {
                let node = slots.binary_search(&lead).ok().and_then(|at| nodes[at].clone());
                let leaf = match node.filter(|node| Page::<&[u64], K, V>::of(node).has(0, key)) {
                    Some(leaf) => leaf,
                    None => {
                        let There { opened, seat, cache, ep, .. } = there;
                        Search { opened, ep, seat, cache, version: Some(version) }.leaf::<K, V>(key).await?.0
                    }
                };
                values.push(Page::<&[u64], K, V>::of(&leaf).get(key, version));
            }
            Ok(values)
        };
        self.as_of_now(ep, get).await
    }

    /// Reads the tree as it is at one moment.
    async fn as_of_now<T>(&mut self, ep: &Endpoint, mut of: impl AsyncFnMut(&mut There<'_>) -> Result<T>) -> Result<T> {
        let TreeReader { tree, seat, cache, ahead, known } = self;
        let opened = &*tree.opened;
        let attempt = async |seat: &mut Seat, known: &mut u64| {
            let version = version_now(opened, ep, seat, ahead).await?;
            *known = version;
            of(&mut There { opened, seat, cache: &mut *cache, ep, version, ahead: &mut *ahead }).await
        };
        read(opened, ep, seat, known, attempt).await
    }

    /// Up to `limit` pairs of a range, in the order of their keys, all as of one moment during the call.
    ///
    /// ```
    /// # use farfield_rome::{RomeTree, TreeOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let tree = RomeTree::<u64, u64>::open(&node, "tree", node.id(), TreeOptions::default())?;
    /// # let ep = node.endpoint()?;
    /// tree.partition()?.load(&ep, (0..10).map(|key| (key, key * 2)))?;
    /// assert_eq!(ep.block_on(tree.reader()?.range(&ep, 3.., 2))?, [(3, 6), (4, 8)]);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// The owner is dead or cannot be reached.
    pub async fn range(&mut self, ep: &Endpoint, range: impl RangeBounds<K>, limit: usize) -> Result<Vec<(K, V)>> {
        self.some(ep, &range, false, limit).await
    }

    /// Up to `limit` pairs of a range, the last ones, from the last to the first.
    ///
    /// ```
    /// # use farfield_rome::{RomeTree, TreeOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let tree = RomeTree::<u64, u64>::open(&node, "tree", node.id(), TreeOptions::default())?;
    /// # let ep = node.endpoint()?;
    /// tree.partition()?.load(&ep, (0..10).map(|key| (key, key * 2)))?;
    /// assert_eq!(ep.block_on(tree.reader()?.range_back(&ep, .., 2))?, [(9, 18), (8, 16)]);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// The owner is dead or cannot be reached.
    pub async fn range_back(&mut self, ep: &Endpoint, range: impl RangeBounds<K>, limit: usize) -> Result<Vec<(K, V)>> {
        self.some(ep, &range, true, limit).await
    }

    async fn some(
        &mut self,
        ep: &Endpoint,
        range: &impl RangeBounds<K>,
        is_backward: bool,
        limit: usize,
    ) -> Result<Vec<(K, V)>> {
        let pairs_max = self.tree.options.pairs;
        self.as_of_now(ep, async |there: &mut There<'_>| some(there, range, is_backward, limit, pairs_max).await).await
    }

    /// The first pair.
    ///
    /// ```
    /// # use farfield_rome::{RomeTree, TreeOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let tree = RomeTree::<u64, u64>::open(&node, "tree", node.id(), TreeOptions::default())?;
    /// # let ep = node.endpoint()?;
    /// assert_eq!(ep.block_on(tree.reader()?.first(&ep))?, None);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// The owner is dead or cannot be reached.
    pub async fn first(&mut self, ep: &Endpoint) -> Result<Option<(K, V)>> {
        Ok(self.range(ep, .., 1).await?.pop())
    }

    /// The last pair.
    ///
    /// ```
    /// # use farfield_rome::{RomeTree, TreeOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let tree = RomeTree::<u64, u64>::open(&node, "tree", node.id(), TreeOptions::default())?;
    /// # let ep = node.endpoint()?;
    /// assert_eq!(ep.block_on(tree.reader()?.last(&ep))?, None);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// The owner is dead or cannot be reached.
    pub async fn last(&mut self, ep: &Endpoint) -> Result<Option<(K, V)>> {
        Ok(self.range_back(ep, .., 1).await?.pop())
    }

    /// Begins a scan of a range, in the order of its keys: of the pairs as they are at this moment.
    ///
    /// ```
    /// # use farfield_rome::{RomeTree, TreeOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let tree = RomeTree::<u64, u64>::open(&node, "tree", node.id(), TreeOptions::default())?;
    /// # let ep = node.endpoint()?;
    /// let (mut reader, mut pairs) = (tree.reader()?, Vec::new());
    /// ep.block_on(async { reader.scan(&ep, 10..20).await?.next(&ep, &mut pairs).await })?;
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// The owner is dead or cannot be reached.
    pub async fn scan(&mut self, ep: &Endpoint, range: impl RangeBounds<K>) -> Result<Scan<'_, K, V>> {
        self.begin_scan(ep, &range, false).await
    }

    /// Begins a scan of a range from its last key to its first.
    ///
    /// ```
    /// # use farfield_rome::{RomeTree, TreeOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let tree = RomeTree::<u64, u64>::open(&node, "tree", node.id(), TreeOptions::default())?;
    /// # let ep = node.endpoint()?;
    /// let (mut reader, mut pairs) = (tree.reader()?, Vec::new());
    /// ep.block_on(async { reader.scan_back(&ep, 10..20).await?.next(&ep, &mut pairs).await })?;
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// The owner is dead or cannot be reached.
    pub async fn scan_back(&mut self, ep: &Endpoint, range: impl RangeBounds<K>) -> Result<Scan<'_, K, V>> {
        self.begin_scan(ep, &range, true).await
    }

    async fn begin_scan(
        &mut self,
        ep: &Endpoint,
        range: &impl RangeBounds<K>,
        is_backward: bool,
    ) -> Result<Scan<'_, K, V>> {
        let TreeReader { tree, seat, ahead, known, .. } = &mut *self;
        let opened = &*tree.opened;
        let attempt = async |seat: &mut Seat, known: &mut u64| {
            *known = version_now(opened, ep, seat, ahead).await?;
            Ok(*known)
        };
        let version = announced(opened, ep, seat, known, attempt).await?; // until the scan is dropped
        Ok(Scan { reader: self, cursor: Cursor::new(range, is_backward, WINDOW_MAX), version })
    }
}

/// The version as of which the caller reads. The caller is announced, and reads everything else after it.
async fn version_now(opened: &Opened, ep: &Endpoint, seat: &mut Seat, ahead: &mut BTreeMap<u32, u64>) -> Result<u64> {
    ahead.clear();
    let version = Stable(ep.get(opened.stable_at()).await?).current()?;
    check(seat, ep)?;
    seat.raise(version);
    Ok(version)
}

/// The slot that cached nodes lead to, and the one that has named it.
fn cached<K: TreeKey>(cache: &Cache, key: &K) -> (u32, Option<u32>) {
    let (mut slot, mut parent, mut step) = (ROOT, None, Step::First);
    while let Some(node) = cache.get(slot) {
        let page: Page<&[u64], K, u64> = Page::of(node);
        match (Edge::At(*key).side(page), page.right()) {
            _ if !step.leads_to(page) => return (ROOT, None),
            (Side::Inside, _) => {
                (parent, step) = (Some(slot), Step::Down(page.level()));
                slot = page.value(page.child_at(key)) as u32;
            }
            (Side::Right, Some(right)) => (slot, step) = (right, Step::right(page)),
            _ => return (ROOT, None),
        }
    }
    (slot, parent)
}

/// A search of a reader that has announced itself.
struct Search<'a> {
    opened: &'a Opened,
    ep: &'a Endpoint,
    seat: &'a mut Seat,
    cache: &'a mut Cache,
    /// As of which version; none for one that is current.
    version: Option<u64>,
}

impl Search<'_> {
    /// The leaf with a key.
    async fn leaf<K: TreeKey, V: Field>(&mut self, key: &K) -> Result<Found> {
        if let Some(found) = self.walk::<K, V>(key, true).await? {
            return Ok(found);
        }
        // Cached nodes were out of date. The tree of a version is whole.
        self.cache.clear();
        self.walk::<K, V>(key, false).await?.ok_or_else(corrupt)
    }

    async fn walk<K: TreeKey, V: Field>(&mut self, key: &K, uses_cache: bool) -> Result<Option<Found>> {
        let (opened, ep) = (self.opened, self.ep);
        let (mut slot, mut parent) = if uses_cache { cached(self.cache, key) } else { (ROOT, None) };
        // A root, too, may be out of date by any number of splits if its active word was read before `stable`.
        let mut moves = 0;
        let (version, mut word) = match self.version {
            Some(version) => (version, ep.get(opened.slot_at(slot)).await?),
            None if !uses_cache => {
                // In this order: so the walk is in the tree of that version.
                let stable = Stable(ep.get(opened.stable_at()).await?).current()?;
                (stable, ep.get(opened.slot_at(slot)).await?)
            }
            None => {
                // In one round trip.
                let (stable, word) = (ep.get(opened.stable_at()), ep.get(opened.slot_at(slot)));
                (Stable(stable.await?).current()?, word.await?)
            }
        };
        loop {
            check(self.seat, ep)?;
            let Some(node) = self.state::<K, V>(word, version).await? else { return Ok(None) };
            let page: Page<&[u64], K, V> = Page::of(&node);
            let side = Edge::At(*key).side(page);
            match (side, page.right()) {
                _ if page.is_tombstone() => return Ok(None),
                (Side::Left, _) => return Ok(None),
                (Side::Right, Some(right)) => {
                    moves += 1;
                    if uses_cache && moves > MOVES_MAX {
                        return Ok(None);
                    }
                    if let Some(parent) = parent.take() {
                        self.cache.forget(parent); // it does not know that sibling
                    }
                    slot = right;
                }
                (Side::Right, None) => return Err(corrupt()),
                (Side::Inside, _) if page.level() == 0 => return Ok(Some((node, version))),
                (Side::Inside, _) => {
                    self.cache.keep(slot, &node);
                    let inner = page.inner();
                    slot = inner.value(inner.child_at(key)) as u32;
                }
            }
            word = ep.get(opened.slot_at(slot)).await?;
        }
    }

    /// The state of a node as of a version, by its active word.
    async fn state<K: TreeKey, V: Field>(&mut self, mut word: u64, version: u64) -> Result<Option<Node>> {
        while let Some(active) = Active::of(word) {
            let into = self.ep.buf::<u64>(active.end as usize)?;
            let words = self.ep.get_into(self.opened.block_at(active.block), into).await?;
            check(self.seat, self.ep)?;
            let page: Page<&[u64], K, V> = Page::of(&words);
            if page.version() <= version {
                return Ok(Some(Node::from(&words[..])));
            }
            word = page.previous();
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use farfield_fabric::Word;

    use super::*;
    use crate::page::Draft;

    /// A node of a level with this range and one child.
    fn node(level: u8, low: u64, high: Option<u64>, right: Option<u32>, child: u32) -> Node {
        let block: Vec<Word> = (0..64).map(|_| Word::new(0)).collect();
        let pairs = [(low, u64::from(child))];
        let draft = Draft { level, is_tombstone: false, previous: 0, right, low, high, pairs: &pairs };
        let end = draft.write(&block, &mut Vec::new());
        block[..end].iter().map(Word::load).collect()
    }

    /// Slot 2 was of a leaf when node 1 was read, and is of a node above that one now.
    #[test]
    fn a_search_among_nodes_of_different_moments_ends() {
        let mut cache = Cache::default();
        cache.keep(ROOT, &node(2, 0, None, None, 1));
        cache.keep(1, &node(1, 0, Some(100), None, 2));
        assert_eq!(cached(&cache, &12u64), (2, Some(1)));
        cache.keep(2, &node(2, 0, Some(50), None, 1));
        assert_eq!(cached(&cache, &12u64), (ROOT, None));
        // Two nodes that name each other as right siblings.
        cache.keep(1, &node(1, 0, Some(10), Some(3), 2));
        cache.keep(3, &node(1, 0, Some(10), Some(1), 2));
        assert_eq!(cached(&cache, &12u64), (ROOT, None));
        cache.keep(3, &node(1, 10, Some(20), Some(1), 4));
        assert_eq!(cached(&cache, &12u64), (4, Some(3)));
    }

    /// Nodes of one version, by their slots, of which none is cached.
    struct Nodes(Vec<Node>);

    impl Fetch<u64, u64> for Nodes {
        fn version(&self) -> u64 {
            0
        }

        async fn nodes(&mut self, slots: &[u32], _: &[u32]) -> Result<Vec<Option<Node>>> {
            Ok(slots.iter().map(|slot| self.0.get(*slot as usize).cloned()).collect())
        }

        fn cache(&mut self) -> Option<&mut Cache> {
            None
        }
    }

    /// The level above knows the first of them alone. More moves than these lead from cached nodes to the root.
    #[test]
    fn a_scan_passes_all_nodes_that_are_not_linked() {
        let here = farfield_core::Node::builder().start().expect("a node");
        let ep = here.endpoint().expect("an endpoint");
        let last = MOVES_MAX as u32 + 2;
        let fence = |slot: u32| u64::from(slot) * 10;
        let inner = |slot: u32| {
            let right = (slot < last).then_some(slot + 1);
            node(1, fence(slot - 1), right.map(|_| fence(slot)), right, last + 1)
        };
        let leaf = node(0, fence(last - 1), None, None, 7);
        let all = [node(2, 0, None, None, 1)].into_iter().chain((1..=last).map(inner)).chain([leaf]);
        let (mut nodes, mut pairs) = (Nodes(all.collect()), Vec::new());
        let mut cursor = Cursor::<u64, u64>::new(&(fence(last - 1)..), false, 1);
        let more = ep.block_on(cursor.next(&mut nodes, &mut pairs));
        assert_eq!((more.expect("the tree is whole"), pairs), (false, vec![(fence(last - 1), 7)]));
    }
}
