//! The queue pairs that a global fence has to wait for: those that an endpoint has put to without a later read by the
//! same one.
//!
//! A get or an atomic flushes the puts before it on its own queue pair, and no others. A node has one for the first
//! three groups, and one for each further group ([`GroupKey::class`]), so there is a mark for each of these.

use core::cell::{Cell, RefCell};

use crate::ptr::{GroupKey, NodeId, RemotePtr};

/// The marks of an endpoint with operations that take time. Operations are numbered from 1.
pub(super) struct Marks {
    /// Of the first three groups, by number of node.
    base: Box<[Mark]>,
    /// Of each further group that was put to.
    further: RefCell<Vec<(NodeId, GroupKey, Mark)>>,
    has_further: Cell<bool>,
}

/// The puts of one queue pair, and how many of them were flushed.
#[derive(Clone, Default)]
struct Mark {
    /// The last put.
    last: Cell<u64>,
    /// All puts up to this number are flushed.
    flushed: Cell<u64>,
    /// Something was put for which no fence waits.
    unfenced: Cell<bool>,
}

impl Mark {
    #[inline]
    fn has_unflushed(&self) -> bool {
        self.last.get() > self.flushed.get()
    }

    #[inline]
    fn flush(&self, number: u64) {
        self.flushed.set(self.flushed.get().max(number));
    }
}

impl Marks {
    pub(super) fn new(nodes: usize) -> Marks {
        Marks { base: vec![Mark::default(); nodes].into(), further: RefCell::default(), has_further: Cell::new(false) }
    }

    /// Calls `body` with the mark of a place's queue pair, if there is one.
    #[inline(always)]
    fn with<R>(&self, place: RemotePtr<u8>, body: impl FnOnce(&Mark) -> R) -> Option<R> {
        if place.key().class() != GroupKey::SIGNAL {
            return self.with_further(place, body);
        }
        self.base.get(place.node().index()).map(body)
    }

    #[cold]
    fn with_further<R>(&self, place: RemotePtr<u8>, body: impl FnOnce(&Mark) -> R) -> Option<R> {
        let further = self.further.borrow();
        let found = further.iter().find(|(node, key, _)| (*node, *key) == (place.node(), place.key()));
        found.map(|(_, _, mark)| body(mark))
    }

    /// The operation of that number puts to a place.
    #[inline(always)]
    pub(super) fn put(&self, place: RemotePtr<u8>, number: u64) {
        if self.with(place, |mark| mark.last.set(number)).is_none() {
            self.put_first(place, number);
        }
    }

    /// The first put to a further group. A put to a node that does not exist has no mark: it is refused.
    #[cold]
    fn put_first(&self, place: RemotePtr<u8>, number: u64) {
        if place.node().index() < self.base.len() {
            let mark = Mark { last: Cell::new(number), ..Mark::default() };
            self.further.borrow_mut().push((place.node(), place.key(), mark));
            self.has_further.set(true);
        }
    }

    /// A read from a place, which flushes all puts of its queue pair up to a number, is complete.
    #[inline(always)]
    pub(super) fn flush(&self, place: RemotePtr<u8>, number: u64) {
        self.with(place, |mark| mark.flush(number));
    }

    /// The operation of that number puts what no fence has to wait for. (If it was refused, nothing was put, and the
    /// mark is flushed already.)
    pub(super) fn put_untracked(&self, place: RemotePtr<u8>, number: u64) {
        self.with(place, |mark| {
            // Every put before it is flushed, so a later fence has this one to wait for, or nothing.
            mark.flush(number);
            mark.unfenced.set(true);
        });
    }

    /// Whether something was put by a place's queue pair that may not be visible yet.
    pub(super) fn has_unflushed_by(&self, place: RemotePtr<u8>) -> bool {
        self.with(place, Mark::has_unflushed).unwrap_or(false)
    }

    /// Whether something was put to a node that may not be visible yet.
    pub(super) fn has_unflushed(&self, node: NodeId) -> bool {
        self.base.get(node.index()).is_some_and(Mark::has_unflushed)
            || self.has_unflushed_beside(node, GroupKey::SIGNAL)
    }

    /// The same, of the queue pairs but that of a group.
    pub(super) fn has_unflushed_beside(&self, node: NodeId, key: GroupKey) -> bool {
        let base = || self.base.get(node.index()).is_some_and(Mark::has_unflushed);
        let further =
            |(of, group, mark): &(NodeId, GroupKey, Mark)| *of == node && *group != key.class() && mark.has_unflushed();
        (key.class() != GroupKey::SIGNAL && base())
            || self.has_further.get() && self.further.borrow().iter().any(further)
    }

    /// The further groups of a node to which something was put that may not be visible yet.
    pub(super) fn further(&self, node: NodeId) -> Vec<GroupKey> {
        if !self.has_further.get() {
            return Vec::new();
        }
        let further = self.further.borrow();
        let unflushed = further.iter().filter(|(of, _, mark)| *of == node && mark.has_unflushed());
        unflushed.map(|(_, key, _)| *key).collect()
    }

    /// Nothing that was put to the node has to be waited for.
    pub(super) fn forget(&self, node: NodeId) {
        self.base.get(node.index()).inspect(|mark| mark.flush(mark.last.get()));
        self.further.borrow_mut().retain(|(of, _, _)| *of != node);
    }

    /// Nothing that was put to a further group has to be waited for.
    pub(super) fn forget_group(&self, node: NodeId, key: GroupKey) {
        self.further.borrow_mut().retain(|(of, group, _)| (*of, *group) != (node, key));
    }

    /// The queue pairs by which something was put that no fence has waited for, since this was asked last.
    pub(super) fn take_unfenced(&self) -> Vec<(NodeId, GroupKey)> {
        let base = self.base.iter().enumerate().filter(|(_, mark)| mark.unfenced.take());
        let base = base.map(|(node, _)| (NodeId(node as u16), GroupKey::SIGNAL));
        let further = self.further.borrow();
        base.chain(further.iter().filter(|it| it.2.unfenced.take()).map(|it| (it.0, it.1))).collect()
    }
}

/// The marks on shared memory, where one order covers all groups: nodes put to without a later read.
pub(super) struct ShmMarks {
    nodes: Box<[ShmMark]>,
    /// How many of them have something unflushed.
    unflushed: Cell<usize>,
}

#[derive(Clone, Default)]
pub(super) struct ShmMark {
    unflushed: Cell<bool>,
    unfenced: Cell<bool>,
}

impl ShmMarks {
    pub(super) fn new(nodes: usize) -> ShmMarks {
        ShmMarks { nodes: vec![ShmMark::default(); nodes].into(), unflushed: Cell::new(0) }
    }

    /// That of a node, to be used more than once.
    #[inline(always)]
    pub(super) fn of(&self, node: NodeId) -> Option<&ShmMark> {
        self.nodes.get(node.index())
    }

    /// [`ShmMarks::put`] by the node's mark.
    #[inline(always)]
    pub(super) fn put_at(&self, mark: &ShmMark) {
        if !mark.unflushed.get() {
            mark.unflushed.set(true);
            self.unflushed.set(self.unflushed.get() + 1);
        }
    }

    /// [`ShmMarks::read`] by the node's mark.
    #[inline(always)]
    pub(super) fn read_at(&self, mark: &ShmMark, done: bool) {
        if mark.unflushed.get() & done {
            mark.unflushed.set(false);
            self.unflushed.set(self.unflushed.get() - 1);
        }
    }

    #[inline(always)]
    pub(super) fn put(&self, node: NodeId) {
        if let Some(mark) = self.of(node) {
            self.put_at(mark);
        }
    }

    /// A read from the node that was done flushes; one that was refused does not.
    #[inline(always)]
    pub(super) fn read(&self, node: NodeId, done: bool) {
        if let Some(mark) = self.of(node) {
            self.read_at(mark, done);
        }
    }

    #[inline(always)]
    pub(super) fn has_unflushed(&self, node: NodeId) -> bool {
        self.nodes.get(node.index()).is_some_and(|mark| mark.unflushed.get())
    }

    /// The nodes that have something unflushed.
    pub(super) fn unflushed_nodes(&self) -> impl Iterator<Item = NodeId> {
        let unflushed = self.nodes.iter().enumerate().filter(|(_, mark)| mark.unflushed.get());
        // There are marks for all nodes that may ever come: those behind the last one are not looked at.
        unflushed.map(|(node, _)| NodeId(node as u16)).take(self.unflushed.get())
    }

    /// How many nodes have something unflushed.
    #[inline(always)]
    pub(super) fn unflushed_count(&self) -> usize {
        self.unflushed.get()
    }

    /// Whether some node has something unflushed.
    #[inline(always)]
    pub(super) fn any_unflushed(&self) -> bool {
        self.unflushed.get() > 0
    }

    /// A put to the node that no fence has to wait for. One that waits for earlier puts waits for it, too.
    #[inline(always)]
    pub(super) fn put_untracked(&self, node: NodeId) {
        if let Some(mark) = self.nodes.get(node.index())
            && !mark.unflushed.get()
        {
            mark.unfenced.set(true);
        }
    }

    /// As [`Marks::take_unfenced`].
    pub(super) fn take_unfenced(&self) -> Vec<(NodeId, GroupKey)> {
        let unfenced = self.nodes.iter().enumerate().filter(|(_, mark)| mark.unfenced.take());
        unfenced.map(|(node, _)| (NodeId(node as u16), GroupKey::SIGNAL)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODES: usize = 3;
    const FURTHER: [GroupKey; 2] = [GroupKey(3), GroupKey(4)];

    fn place(node: u16, key: GroupKey) -> RemotePtr<u8> {
        RemotePtr::new(NodeId(node), key, 0)
    }

    /// The queue pairs of all nodes, and of a node that does not exist.
    fn places() -> impl Iterator<Item = RemotePtr<u8>> {
        let keys = [GroupKey::SIGNAL, FURTHER[0], FURTHER[1]];
        (0..=NODES as u16).flat_map(move |node| keys.map(|key| place(node, key)))
    }

    /// The marks of each queue pair agree with a list of its puts.
    #[test]
    fn marks_are_as_a_list_of_puts() {
        for seed in 0..200u64 {
            let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            let mut draw = |below: usize| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 33) as usize % below
            };
            let marks = Marks::new(NODES);
            let mut unflushed: Vec<(RemotePtr<u8>, u64)> = Vec::new();
            let mut unfenced: Vec<RemotePtr<u8>> = Vec::new();
            for number in 1..60 {
                let at = places().nth(draw(places().count())).expect("one of them");
                let exists = at.node().index() < NODES;
                match draw(6) {
                    0 | 1 => {
                        marks.put(at, number);
                        unflushed.extend(exists.then_some((at, number)));
                    }
                    2 => {
                        // As `Endpoint::put_untracked`.
                        let others = marks.has_unflushed_by(at);
                        marks.put(at, number);
                        if others {
                            unflushed.push((at, number));
                        } else {
                            marks.put_untracked(at, number);
                            unfenced.extend(exists.then_some(at));
                        }
                    }
                    3 => {
                        // Reads complete in any order.
                        let up_to = number - draw(5).min(number as usize - 1) as u64;
                        marks.flush(at, up_to);
                        unflushed.retain(|(of, put)| *of != at || *put > up_to);
                    }
                    4 if draw(3) == 0 => {
                        marks.forget(at.node());
                        unflushed.retain(|(of, _)| of.node() != at.node());
                        unfenced.retain(|of| of.node() != at.node() || of.key() == GroupKey::SIGNAL);
                    }
                    4 if at.key() != GroupKey::SIGNAL => {
                        marks.forget_group(at.node(), at.key());
                        unflushed.retain(|(of, _)| *of != at);
                        unfenced.retain(|of| *of != at);
                    }
                    _ => {}
                }
                let is = |place: RemotePtr<u8>| unflushed.iter().any(|(of, _)| *of == place);
                for place in places() {
                    let (node, key) = (place.node(), place.key());
                    let beside = places().filter(|other| other.node() == node && other.key() != key);
                    let further = FURTHER.into_iter().filter(|key| is(RemotePtr::new(node, *key, 0)));
                    assert_eq!(marks.has_unflushed_by(place), is(place));
                    assert_eq!(marks.has_unflushed(node), places().any(|of| of.node() == node && is(of)));
                    assert_eq!(marks.has_unflushed_beside(node, key), beside.into_iter().any(is), "beside {place:?}");
                    let mut found = marks.further(node);
                    found.sort_unstable_by_key(|key| key.0);
                    assert_eq!(found, further.collect::<Vec<_>>());
                }
            }
            let found = marks.take_unfenced();
            let is = |place: &RemotePtr<u8>| found.contains(&(place.node(), place.key()));
            places().for_each(|place| assert_eq!(is(&place), unfenced.contains(&place), "{place:?}"));
            assert!(marks.take_unfenced().is_empty());
        }
    }

    /// Groups below 3 share a queue pair.
    #[test]
    fn the_first_groups_are_one() {
        let marks = Marks::new(NODES);
        marks.put(place(1, GroupKey::DATA), 1);
        assert!(marks.has_unflushed_by(place(1, GroupKey::SERVICE)));
        assert!(!marks.has_unflushed_beside(NodeId(1), GroupKey::SERVICE));
        marks.flush(place(1, GroupKey::SIGNAL), 2);
        assert!(!marks.has_unflushed(NodeId(1)));
    }

    #[test]
    fn on_shared_memory_a_read_flushes() {
        let marks = ShmMarks::new(NODES);
        let [node, beside, nowhere] = [1, 2, NODES as u16].map(NodeId);
        marks.put(node);
        marks.put(nowhere);
        assert!(marks.has_unflushed(node) && !marks.has_unflushed(beside) && !marks.has_unflushed(nowhere));
        assert_eq!((marks.unflushed_nodes().collect::<Vec<_>>(), marks.unflushed_count()), (vec![node], 1));
        marks.read(node, false); // refused
        assert!(marks.has_unflushed(node));
        marks.read(node, true);
        marks.read(nowhere, true);
        assert!(!marks.has_unflushed(node) && marks.take_unfenced().is_empty());
        marks.put(node);
        marks.put_untracked(node);
        assert!(marks.has_unflushed(node) && marks.take_unfenced().is_empty(), "a fence waits for both");
        marks.read(node, true);
        marks.put_untracked(node);
        marks.put_untracked(nowhere);
        assert!(!marks.has_unflushed(node));
        assert_eq!(marks.take_unfenced(), [(node, GroupKey::SIGNAL)]);
        assert!(marks.take_unfenced().is_empty());
    }
}
