//! The queue pairs that a global fence has to wait for: those that an endpoint has put to without a later read by the
//! same one.
//!
//! A get or an atomic flushes the puts before it on its own queue pair, and no others. A node has one for the first
//! three groups, and one for each further group ([`GroupKey::class`]), so there is a mark for each of these.

use core::cell::{Cell, RefCell};

use crate::ptr::{GroupKey, NodeId, RemotePtr};

/// The marks of an endpoint whose operations take time. Operations are numbered from 1.
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
        if self.with(place, |mark| mark.last.set(number)).is_none() && place.key().class() != GroupKey::SIGNAL {
            self.put_first(place, number);
        }
    }

    /// The first put to a further group.
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

    /// The operation of that number puts what no fence has to wait for.
    pub(super) fn put_untracked(&self, place: RemotePtr<u8>, number: u64) {
        self.with(place, |mark| {
            // Every put before it is flushed, so a later fence has this one to wait for, or nothing.
            if mark.last.get() == number {
                mark.flush(number);
                mark.unfenced.set(true);
            }
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
pub(super) struct ShmMarks(Box<[ShmMark]>);

#[derive(Clone, Default)]
struct ShmMark {
    unflushed: Cell<bool>,
    unfenced: Cell<bool>,
}

impl ShmMarks {
    pub(super) fn new(nodes: usize) -> ShmMarks {
        ShmMarks(vec![ShmMark::default(); nodes].into())
    }

    #[inline(always)]
    pub(super) fn put(&self, node: NodeId) {
        if let Some(mark) = self.0.get(node.index()) {
            mark.unflushed.set(true);
        }
    }

    /// A read from the node that was done flushes; one that was refused does not.
    #[inline(always)]
    pub(super) fn read(&self, node: NodeId, done: bool) {
        if let Some(mark) = self.0.get(node.index()) {
            mark.unflushed.set(mark.unflushed.get() & !done);
        }
    }

    pub(super) fn has_unflushed(&self, node: NodeId) -> bool {
        self.0.get(node.index()).is_some_and(|mark| mark.unflushed.get())
    }

    /// The put to the node that was just made, before which none was unflushed, is none that a fence has to wait for.
    pub(super) fn put_untracked(&self, node: NodeId) {
        if let Some(mark) = self.0.get(node.index()) {
            mark.unflushed.set(false);
            mark.unfenced.set(true);
        }
    }

    /// As [`Marks::take_unfenced`].
    pub(super) fn take_unfenced(&self) -> Vec<(NodeId, GroupKey)> {
        let unfenced = self.0.iter().enumerate().filter(|(_, mark)| mark.unfenced.take());
        unfenced.map(|(node, _)| (NodeId(node as u16), GroupKey::SIGNAL)).collect()
    }
}
