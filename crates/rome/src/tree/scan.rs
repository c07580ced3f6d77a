//! Scans: pairs in the order of their keys, forward or backward, all as of one moment.
//!
//! Inner nodes, cached ones too, say which leaves to read next. They are only believed as far as the fences of the
//! leaves bear them out. A leaf that was split since then is followed to its right sibling.

use core::marker::PhantomData;
use core::ops::{Bound, RangeBounds};
use std::collections::VecDeque;

use farfield_core::toolkit::ErrorContext;
use farfield_core::{Endpoint, Result};

use super::fetch::{Fetch, Here, Node, Step, corrupt};
use super::reader::{MOVES_MAX, TreeReader};
use super::{Partition, ROOT, leaves_of};
use crate::field::{Field, TreeKey};
use crate::page::Page;

type Copied<'n, K, V> = Page<&'n [u64], K, V>;

/// A place in the order of the keys, and so in the tree.
#[derive(Clone, Copy)]
pub(super) enum Edge<K> {
    /// At this key.
    At(K),
    /// Just before this key.
    Below(K),
    /// Behind all keys.
    End,
}

/// Where an edge is, seen from a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Side {
    Inside,
    Left,
    Right,
}

impl<K: TreeKey> Edge<K> {
    pub(super) fn side<V: Field>(&self, page: Copied<'_, K, V>) -> Side {
        let (is_left, is_right) = match self {
            Edge::At(key) => (page.low() > *key, page.is_before(key)),
            Edge::Below(key) => (page.low() >= *key, page.high().is_some_and(|high| high < *key)),
            Edge::End => (false, page.high().is_some()),
        };
        match (is_left, is_right) {
            (true, _) => Side::Left,
            (_, true) => Side::Right,
            _ => Side::Inside,
        }
    }

    /// The place of the child that leads there.
    pub(super) fn child(&self, page: Copied<'_, K, u64>) -> usize {
        match self {
            Edge::At(key) => page.child_at(key),
            Edge::Below(key) => page.child_below(Some(key)),
            Edge::End => page.child_below(None),
        }
    }
}

/// How far a scan is.
pub(crate) struct Cursor<K, V> {
    start: Bound<K>,
    end: Bound<K>,
    is_backward: bool,
    edge: Edge<K>,
    /// Leaves that come next, as far as inner nodes say.
    queue: VecDeque<u32>,
    /// The right sibling of the last leaf.
    link: Option<u32>,
    /// The inner node after the one that has named them.
    sibling: Option<u32>,
    /// The inner node that has named them.
    parent: Option<u32>,
    /// That one is as of the version.
    is_fresh: bool,
    /// A leaf was taken since the last descent. If not, cached nodes lead nowhere, and are not asked again.
    has_taken: bool,
    /// How often a leaf had to be looked for, as cached nodes have named them; none if the nodes are of the version.
    moves: Option<usize>,
    is_done: bool,
    /// How many leaves to read at a time.
    window: usize,
    kind: PhantomData<V>,
}

/// The most leaves that are read at a time.
pub(crate) const WINDOW_MAX: usize = 16;

impl<K: TreeKey, V: Field> Cursor<K, V> {
    pub(crate) fn new(range: &impl RangeBounds<K>, is_backward: bool, window: usize) -> Cursor<K, V> {
        let (start, end) = (range.start_bound().cloned(), range.end_bound().cloned());
        let edge = match (is_backward, start, end) {
            (false, Bound::Included(key) | Bound::Excluded(key), _) => Edge::At(key),
            (false, Bound::Unbounded, _) => Edge::At(K::FIRST),
            (true, _, Bound::Included(key)) => Edge::At(key),
            (true, _, Bound::Excluded(key)) => Edge::Below(key),
            (true, _, Bound::Unbounded) => Edge::End,
        };
        let is_done = matches!(edge, Edge::Below(key) if key == K::FIRST);
        let window = window.clamp(1, WINDOW_MAX);
        let (queue, kind) = (VecDeque::new(), PhantomData);
        Cursor {
            start,
            end,
            is_backward,
            edge,
            queue,
            link: None,
            sibling: None,
            parent: None,
            is_fresh: false,
            has_taken: true,
            moves: None,
            is_done,
            window,
            kind,
        }
    }

    /// Whether keys from this one on, in the order of the scan, are out of the range.
    fn is_beyond(&self, fence: &K) -> bool {
        match (self.is_backward, self.start, self.end) {
            (false, _, Bound::Included(end)) => *fence > end,
            (false, _, Bound::Excluded(end)) => *fence >= end,
            (true, Bound::Included(start) | Bound::Excluded(start), _) => *fence <= start,
            (true, ..) => *fence == K::FIRST,
            _ => false,
        }
    }

    /// Adds the pairs of the next leaves; whether there may be more.
    pub(super) async fn next<F: Fetch<K, V>>(&mut self, fetch: &mut F, into: &mut Vec<(K, V)>) -> Result<bool> {
        if self.is_done {
            return Ok(false);
        }
        if self.queue.is_empty() {
            self.descend(fetch, self.has_taken).await?;
        }
        let mut slots: Vec<u32> = self.queue.drain(..self.window.min(self.queue.len())).collect();
        let mut ahead: Vec<u32> = self.queue.iter().copied().take(self.window).collect();
        // The inner node with the leaves behind these is read beside them, so that no round trip is for it alone.
        let sibling = self.sibling.filter(|_| self.queue.len() <= self.window);
        match sibling {
            Some(sibling) => slots.push(sibling),
            None => ahead.extend(self.sibling),
        }
        let mut nodes = fetch.nodes(&slots, &ahead).await?;
        if let Some(sibling) = sibling {
            slots.pop();
            self.sibling = None;
            if let Some(node) = nodes.pop().flatten() {
                self.continue_with(fetch, sibling, &node);
            }
        }
        let version = fetch.version();
        let mut rest = slots.into_iter().zip(nodes);
        while let Some((slot, node)) = rest.next()
            && !self.is_done
        {
            let next = match self.take(slot, node.as_deref(), version, into) {
                Next::Before(..) if self.moves.is_some_and(|moves| moves >= MOVES_MAX) => Next::Stale,
                next => next,
            };
            match next {
                Next::Taken => {}
                Next::Passed if !self.is_fresh => {}
                Next::Before(first, second) => {
                    self.moves = self.moves.map(|moves| moves + 1);
                    rest.rev().for_each(|(slot, _)| self.queue.push_front(slot));
                    // Where the leaf before it was merged away, the next one is in the queue already.
                    let first = Some(first).filter(|first| second.is_some() || self.queue.front() != Some(first));
                    second.into_iter().chain(first).for_each(|slot| self.queue.push_front(slot));
                    if let (Some(cache), Some(parent)) = (fetch.cache(), self.parent) {
                        cache.forget(parent);
                    }
                    break;
                }
                Next::Stale | Next::Passed if self.is_fresh => return Err(corrupt()),
                Next::Stale | Next::Passed => {
                    self.queue.clear();
                    self.descend(fetch, false).await?;
                    break;
                }
            }
        }
        Ok(!self.is_done)
    }

    /// Adds the pairs of a leaf if it is the next one.
    fn take(&mut self, slot: u32, node: Option<&[u64]>, version: u64, into: &mut Vec<(K, V)>) -> Next {
        let page: Option<Copied<'_, K, V>> = node.map(Page::of);
        let leaf = page.filter(|page| !page.is_tombstone() && page.level() == 0);
        let link = self.link.filter(|link| *link != slot && !self.is_backward);
        match leaf.map(|leaf| (leaf, self.edge.side(leaf))) {
            Some((leaf, Side::Inside)) => {
                self.add(leaf, version, into);
                Next::Taken
            }
            // It was split, and the edge is in another part.
            Some((leaf, Side::Right)) => match leaf.right() {
                Some(right) => Next::Before(right, self.is_backward.then_some(slot)),
                None => Next::Stale,
            },
            // The leaf before this one was split.
            Some((_, Side::Left)) if self.is_backward => Next::Passed,
            Some((_, Side::Left)) if link.is_some() => Next::Before(self.link.take().unwrap_or(slot), Some(slot)),
            // The slot is of no leaf any more.
            None if link.is_some() => Next::Before(self.link.take().unwrap_or(slot), None),
            _ => Next::Stale,
        }
    }

    fn add(&mut self, leaf: Copied<'_, K, V>, version: u64, into: &mut Vec<(K, V)>) {
        let mut pairs = Vec::new();
        leaf.pairs(version, &mut pairs);
        let (edge, range) = (self.edge, (self.start, self.end));
        let is_in = |key: &K| {
            let is_ahead = match edge {
                Edge::At(at) => {
                    if self.is_backward {
                        *key <= at
                    } else {
                        *key >= at
                    }
                }
                Edge::Below(bound) => *key < bound,
                Edge::End => true,
            };
            is_ahead && range.contains(key)
        };
        let pairs = pairs.into_iter().filter(|pair| is_in(&pair.0));
        if self.is_backward {
            into.extend(pairs.rev())
        } else {
            into.extend(pairs)
        }
        let fence = if self.is_backward { Some(leaf.low()) } else { leaf.high() };
        self.link = leaf.right();
        (self.is_fresh, self.has_taken) = (false, true);
        match fence {
            Some(fence) if !self.is_beyond(&fence) => {
                self.edge = if self.is_backward { Edge::Below(fence) } else { Edge::At(fence) };
            }
            _ => self.is_done = true,
        }
    }

    /// The leaves of the next inner node, if it is one.
    fn continue_with<F: Fetch<K, V>>(&mut self, fetch: &mut F, slot: u32, node: &Node) {
        let inner: Copied<'_, K, u64> = Page::of(node);
        if !inner.is_tombstone() && inner.level() == 1 && inner.count() > 0 {
            if let Some(cache) = fetch.cache() {
                cache.keep(slot, node);
            }
            self.enqueue(inner, 0);
            self.parent = Some(slot);
        }
    }

    /// Finds the next leaves. Without cached nodes the first of them is right, or its right siblings are.
    async fn descend<F: Fetch<K, V>>(&mut self, fetch: &mut F, mut uses_cache: bool) -> Result<()> {
        uses_cache &= fetch.cache().is_some();
        let (mut slot, mut step, mut moves) = (ROOT, Step::First, 0);
        self.has_taken = false;
        loop {
            let cached = fetch.cache().filter(|_| uses_cache).and_then(|cache| cache.get(slot).cloned());
            let is_cached = cached.is_some();
            let node = match cached {
                Some(node) => Some(node),
                None => fetch.nodes(&[slot], &[]).await?.pop().flatten(),
            };
            let page: Option<Copied<'_, K, V>> = node.as_deref().map(Page::of);
            let page = page.filter(|page| !page.is_tombstone() && step.leads_to(*page));
            let side = page.map(|page| (page, self.edge.side(page)));
            match (side, &node) {
                (Some((page, Side::Right)), _) if !uses_cache || moves < MOVES_MAX => {
                    moves += usize::from(!is_cached);
                    slot = page.right().ok_or_else(corrupt)?;
                    step = Step::right(page);
                }
                (Some((page, Side::Inside)), Some(node)) => {
                    if page.level() == 0 {
                        self.queue.push_back(slot);
                        (self.is_fresh, self.parent, self.sibling) = (!uses_cache, None, None);
                        self.moves = uses_cache.then_some(0);
                        return Ok(());
                    }
                    if let (false, Some(cache)) = (is_cached, fetch.cache()) {
                        cache.keep(slot, node);
                    }
                    let inner = page.inner();
                    let at = self.edge.child(inner);
                    if page.level() == 1 {
                        self.enqueue(inner, at);
                        (self.is_fresh, self.parent) = (!uses_cache, Some(slot));
                        self.moves = uses_cache.then_some(0);
                        return Ok(());
                    }
                    slot = inner.value(at) as u32;
                    step = Step::Down(page.level());
                }
                _ if uses_cache => {
                    if let Some(cache) = fetch.cache() {
                        cache.clear();
                    }
                    (uses_cache, slot, step) = (false, ROOT, Step::First);
                }
                _ => return Err(corrupt()),
            }
        }
    }

    /// The children of an inner node, from this one on.
    fn enqueue(&mut self, inner: Copied<'_, K, u64>, at: usize) {
        self.queue.push_back(inner.value(at) as u32);
        if self.is_backward {
            // The low fence of each is the high one of the next.
            let more = (0..at).rev().take_while(|at| !self.is_beyond(&inner.key(at + 1)));
            let more: Vec<u32> = more.map(|at| inner.value(at) as u32).collect();
            self.queue.extend(more);
        } else {
            let more = (at + 1..inner.count()).take_while(|at| !self.is_beyond(&inner.key(*at)));
            let more: Vec<u32> = more.map(|at| inner.value(at) as u32).collect();
            self.queue.extend(more);
            self.sibling = inner.right().filter(|_| inner.high().is_some_and(|high| !self.is_beyond(&high)));
        }
    }
}

/// The outcome for a leaf that was read.
enum Next {
    /// Its pairs are added.
    Taken,
    /// All its pairs were there.
    Passed,
    /// This one is next, and then the other one.
    Before(u32, Option<u32>),
    /// The inner node that has led to it is out of date.
    Stale,
}

/// Reads up to so many pairs of a range.
pub(super) async fn some<K: TreeKey, V: Field, F: Fetch<K, V>>(
    fetch: &mut F,
    range: &impl RangeBounds<K>,
    is_backward: bool,
    limit: usize,
    pairs_max: usize,
) -> Result<Vec<(K, V)>> {
    let (mut cursor, mut pairs) = (Cursor::new(range, is_backward, leaves_of(limit, pairs_max)), Vec::new());
    while pairs.len() < limit && cursor.next(fetch, &mut pairs).await? {}
    pairs.truncate(limit);
    Ok(pairs)
}

/// A scan of the owner's: all pairs of a range as of the moment at which it began. It keeps their memory from being
/// used again, until it ends, or makes no progress for a quarter of the lease.
///
/// ```
/// # use farfield_rome::{RomeTree, TreeOptions};
/// # let node = farfield::Node::builder().start()?;
/// # let tree = RomeTree::<u64, u64>::open(&node, "tree", node.id(), TreeOptions::default())?;
/// # let ep = node.endpoint()?;
/// let (mut partition, mut other) = (tree.partition()?, tree.partition()?);
/// partition.load(&ep, (0..1000).map(|key| (key, key)))?;
/// let mut scan = partition.scan(&ep, ..);
/// other.delete(&ep, &999)?; // is not seen
/// let (mut pairs, mut count) = (Vec::new(), 0);
/// while scan.next(&ep, &mut pairs)? {
///     count += pairs.drain(..).len();
/// }
/// assert_eq!(count + pairs.len(), 1000);
/// # Ok::<(), farfield::Error>(())
/// ```
pub struct LocalScan<'p, K, V> {
    partition: &'p mut Partition<K, V>,
    cursor: Cursor<K, V>,
    version: u64,
}

impl<K, V> Drop for LocalScan<'_, K, V> {
    fn drop(&mut self) {
        self.partition.seat.clear();
    }
}

impl<K: TreeKey, V: Field> LocalScan<'_, K, V> {
    /// Adds the next pairs, those of a leaf; whether there may be more.
    ///
    /// ```
    /// # use farfield_rome::{RomeTree, TreeOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let tree = RomeTree::<u64, u64>::open(&node, "tree", node.id(), TreeOptions::default())?;
    /// # let ep = node.endpoint()?;
    /// let mut partition = tree.partition()?;
    /// let mut pairs = Vec::new();
    /// assert!(!partition.scan_back(&ep, ..=7).next(&ep, &mut pairs)? && pairs.is_empty());
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`SnapshotExpired`](crate::SnapshotExpired)
    pub fn next(&mut self, ep: &Endpoint, into: &mut Vec<(K, V)>) -> Result<bool> {
        let LocalScan { partition: Partition { tree, seat, .. }, cursor, version } = self;
        tree.opened.object.check_current()?;
        let arena = Partition::<K, V>::arena(tree);
        let mut here = Here { arena, seat, ep, version: *version };
        ep.block_on(cursor.next(&mut here, into)).of(tree.opened.object.path())
    }
}

impl<K: TreeKey, V: Field> Partition<K, V> {
    /// Scans a range in the order of its keys.
    ///
    /// ```
    /// # use farfield_rome::{RomeTree, TreeOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let tree = RomeTree::<u64, u64>::open(&node, "tree", node.id(), TreeOptions::default())?;
    /// # let ep = node.endpoint()?;
    /// let mut partition = tree.partition()?;
    /// partition.load(&ep, (0..10).map(|key| (key, key * 2)))?;
    /// let mut pairs = Vec::new();
    /// partition.scan(&ep, 3..5).next(&ep, &mut pairs)?;
    /// assert_eq!(pairs, [(3, 6), (4, 8)]);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn scan(&mut self, ep: &Endpoint, range: impl RangeBounds<K>) -> LocalScan<'_, K, V> {
        self.begin_scan(ep, &range, false)
    }

    /// Scans a range from its last key to its first.
    ///
    /// ```
    /// # use farfield_rome::{RomeTree, TreeOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let tree = RomeTree::<u64, u64>::open(&node, "tree", node.id(), TreeOptions::default())?;
    /// # let ep = node.endpoint()?;
    /// let mut partition = tree.partition()?;
    /// partition.load(&ep, (0..10).map(|key| (key, key * 2)))?;
    /// let mut pairs = Vec::new();
    /// partition.scan_back(&ep, 3..5).next(&ep, &mut pairs)?;
    /// assert_eq!(pairs, [(4, 8), (3, 6)]);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn scan_back(&mut self, ep: &Endpoint, range: impl RangeBounds<K>) -> LocalScan<'_, K, V> {
        self.begin_scan(ep, &range, true)
    }

    fn begin_scan(&mut self, ep: &Endpoint, range: &impl RangeBounds<K>, is_backward: bool) -> LocalScan<'_, K, V> {
        let arena = Self::arena(&self.tree);
        self.seat.announce_here(ep, arena.stable());
        let version = arena.stable();
        self.seat.raise(version);
        LocalScan { partition: self, cursor: Cursor::new(range, is_backward, 1), version }
    }

    /// Up to `limit` pairs of a range, in the order of their keys, all as of one moment.
    ///
    /// ```
    /// # use farfield_rome::{RomeTree, TreeOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let tree = RomeTree::<u64, u64>::open(&node, "tree", node.id(), TreeOptions::default())?;
    /// # let ep = node.endpoint()?;
    /// let mut partition = tree.partition()?;
    /// partition.load(&ep, (0..10).map(|key| (key, key * 2)))?;
    /// assert_eq!(partition.range(&ep, 3.., 2)?, [(3, 6), (4, 8)]);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`SnapshotExpired`](crate::SnapshotExpired): this thread was stopped.
    pub fn range(&mut self, ep: &Endpoint, range: impl RangeBounds<K>, limit: usize) -> Result<Vec<(K, V)>> {
        self.some(ep, &range, false, limit)
    }

    /// Up to `limit` pairs of a range, the last ones, from the last to the first.
    ///
    /// ```
    /// # use farfield_rome::{RomeTree, TreeOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let tree = RomeTree::<u64, u64>::open(&node, "tree", node.id(), TreeOptions::default())?;
    /// # let ep = node.endpoint()?;
    /// let mut partition = tree.partition()?;
    /// partition.load(&ep, (0..10).map(|key| (key, key * 2)))?;
    /// assert_eq!(partition.range_back(&ep, .., 2)?, [(9, 18), (8, 16)]);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Partition::range`].
    pub fn range_back(&mut self, ep: &Endpoint, range: impl RangeBounds<K>, limit: usize) -> Result<Vec<(K, V)>> {
        self.some(ep, &range, true, limit)
    }

    fn some(&mut self, ep: &Endpoint, range: &impl RangeBounds<K>, back: bool, limit: usize) -> Result<Vec<(K, V)>> {
        let (mut scan, mut pairs) = (self.begin_scan(ep, range, back), Vec::new());
        while pairs.len() < limit && scan.next(ep, &mut pairs)? {}
        pairs.truncate(limit);
        Ok(pairs)
    }

    /// The first pair.
    ///
    /// ```
    /// # use farfield_rome::{RomeTree, TreeOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let tree = RomeTree::<u64, u64>::open(&node, "tree", node.id(), TreeOptions::default())?;
    /// # let ep = node.endpoint()?;
    /// assert_eq!(tree.partition()?.first(&ep)?, None);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Partition::range`].
    pub fn first(&mut self, ep: &Endpoint) -> Result<Option<(K, V)>> {
        Ok(self.range(ep, .., 1)?.pop())
    }

    /// The last pair.
    ///
    /// ```
    /// # use farfield_rome::{RomeTree, TreeOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let tree = RomeTree::<u64, u64>::open(&node, "tree", node.id(), TreeOptions::default())?;
    /// # let ep = node.endpoint()?;
    /// assert_eq!(tree.partition()?.last(&ep)?, None);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Partition::range`].
    pub fn last(&mut self, ep: &Endpoint) -> Result<Option<(K, V)>> {
        Ok(self.range_back(ep, .., 1)?.pop())
    }
}

/// A scan of any node, by operations: all pairs of a range as of the moment at which it began. Its owner keeps their
/// memory from being used again, until the scan is dropped, or makes no progress for a quarter of the lease.
///
/// ```
/// # use farfield_rome::{RomeTree, TreeOptions};
/// # let nodes = farfield::local_session(2)?;
/// # let owner = nodes[0].id();
/// # let trees = farfield::on_each(&nodes, |node| RomeTree::<u64, u64>::open(node, "tree", owner, TreeOptions::default()))?;
/// let (here, there) = (nodes[0].endpoint()?, nodes[1].endpoint()?);
/// trees[0].partition()?.load(&here, (0..1000).map(|key| (key, key)))?;
/// let mut reader = trees[1].reader()?;
/// there.block_on(async {
///     let mut scan = reader.scan(&there, ..).await?;
///     let (mut pairs, mut count) = (Vec::new(), 0);
///     while scan.next(&there, &mut pairs).await? {
///         count += pairs.drain(..).len();
///     }
///     assert_eq!(count + pairs.len(), 1000);
///     Ok::<(), farfield::Error>(())
/// })?;
/// # Ok::<(), farfield::Error>(())
/// ```
pub struct Scan<'r, K, V> {
    pub(super) reader: &'r mut TreeReader<K, V>,
    pub(super) cursor: Cursor<K, V>,
    pub(super) version: u64,
}

impl<K, V> Drop for Scan<'_, K, V> {
    fn drop(&mut self) {
        self.reader.seat.clear();
    }
}

impl<K: TreeKey, V: Field> Scan<'_, K, V> {
    /// Adds the next pairs, of up to 16 leaves; whether there may be more.
    ///
    /// ```
    /// # use farfield_rome::{RomeTree, TreeOptions};
    /// # let nodes = farfield::local_session(2)?;
    /// # let owner = nodes[0].id();
    /// # let trees = farfield::on_each(&nodes, |node| RomeTree::<u64, u64>::open(node, "tree", owner, TreeOptions::default()))?;
    /// # let ep = nodes[1].endpoint()?;
    /// # let mut reader = trees[1].reader()?;
    /// let mut pairs = Vec::new();
    /// let is_more = ep.block_on(async { reader.scan_back(&ep, ..).await?.next(&ep, &mut pairs).await })?;
    /// assert!(!is_more && pairs.is_empty());
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`SnapshotExpired`](crate::SnapshotExpired). The owner is dead or cannot be reached.
    pub async fn next(&mut self, ep: &Endpoint, into: &mut Vec<(K, V)>) -> Result<bool> {
        let Scan { reader, cursor, version } = self;
        let mut there = reader.fetch(ep, *version);
        let path = there.opened.object.path();
        there.opened.object.check_current()?;
        cursor.next(&mut there, into).await.of(path)
    }
}
