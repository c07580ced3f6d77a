//! Operations that follow each other at once on the memory of one group of one node.

use core::cell::Cell;

use super::marks::{ShmMark, ShmMarks};
use super::op::Op;
use super::{Endpoint, Inner};
use crate::error::Result;
use crate::ptr::{NodeId, RemotePtr};
use crate::shm::Reached;

/// What posts operations on words: an [`Endpoint`], or one that has looked up where they are ([`Near`]). So the steps
/// of a call are written once for both. A result that is there at once comes without a handle.
///
/// ```
/// # use farfield_fabric::*;
/// fn take<'e>(posts: &impl Posts<'e>, flag: RemotePtr<u64>, me: u64) -> Begun<u64, Op<'e, u64>> {
///     posts.try_cas(flag, 0, me).map_or_else(|| posts.cas(flag, 0, me).into_value(), Ok)
/// }
/// fn try_take(ep: &Endpoint, flag: RemotePtr<u64>, me: u64) -> Result<bool> {
///     let taken = match ep.near(flag) {
///         Some(near) => near.run(|near| take(near, flag, me)),
///         None => take(&ep, flag, me),
///     };
///     taken.or_else(Op::wait).map(|found| found == 0)
/// }
/// ```
pub trait Posts<'e> {
    /// The endpoint.
    fn endpoint(&self) -> &'e Endpoint;
    /// [`Endpoint::put_value`] of a word, [detached](Op::detach).
    ///
    /// # Errors
    /// As [`Op::detach`].
    fn put(&self, dst: RemotePtr<u64>, value: u64) -> Result<()>;
    /// The word, if it is there at once. Otherwise nothing is done, and [`Posts::get`] posts a get.
    fn try_get(&self, src: RemotePtr<u64>) -> Option<u64>;
    /// [`Endpoint::get`] of a word.
    fn get(&self, src: RemotePtr<u64>) -> Op<'e, u64>;
    /// What a compare-and-swap has found, if it is done at once. Otherwise it is not done, and [`Posts::cas`] posts it.
    fn try_cas(&self, dst: RemotePtr<u64>, expected: u64, new: u64) -> Option<u64>;
    /// [`Endpoint::cas`].
    fn cas(&self, dst: RemotePtr<u64>, expected: u64, new: u64) -> Op<'e, u64>;
    /// [`Endpoint::cas`], [detached](Op::detach).
    ///
    /// # Errors
    /// As [`Op::detach`].
    fn post_cas(&self, dst: RemotePtr<u64>, expected: u64, new: u64) -> Result<()>;
    /// [`Endpoint::remote_fence`], [detached](Op::detach).
    ///
    /// # Errors
    /// As [`Op::detach`].
    fn remote_fence(&self, node: NodeId) -> Result<()>;
    /// The results so far are known: what is posted from now on is another round trip.
    fn next_trip(&self);
}

impl<'e> Posts<'e> for &'e Endpoint {
    #[inline(always)]
    fn endpoint(&self) -> &'e Endpoint {
        self
    }

    #[inline(always)]
    fn put(&self, dst: RemotePtr<u64>, value: u64) -> Result<()> {
        self.put_value(dst, value).detach()
    }

    #[inline(always)]
    fn try_get(&self, _: RemotePtr<u64>) -> Option<u64> {
        None
    }

    #[inline(always)]
    fn get(&self, src: RemotePtr<u64>) -> Op<'e, u64> {
        Endpoint::get(self, src)
    }

    #[inline(always)]
    fn try_cas(&self, _: RemotePtr<u64>, _: u64, _: u64) -> Option<u64> {
        None
    }

    #[inline(always)]
    fn cas(&self, dst: RemotePtr<u64>, expected: u64, new: u64) -> Op<'e, u64> {
        Endpoint::cas(self, dst, expected, new)
    }

    #[inline(always)]
    fn post_cas(&self, dst: RemotePtr<u64>, expected: u64, new: u64) -> Result<()> {
        Endpoint::cas(self, dst, expected, new).detach()
    }

    #[inline(always)]
    fn remote_fence(&self, node: NodeId) -> Result<()> {
        Endpoint::remote_fence(self, node).detach()
    }

    #[inline(always)]
    fn next_trip(&self) {} // each handle has its depth
}

/// The memory of one group of one node, looked up once for several operations that follow each other at once, on shared
/// memory: see [`Endpoint::near`]. An operation elsewhere is one of the endpoint.
#[must_use = "it counts what it posts at the end of `Near::run`"]
pub struct Near<'e> {
    endpoint: &'e Endpoint,
    reached: Reached<'e>,
    marks: &'e ShmMarks,
    mark: &'e ShmMark,
    at: RemotePtr<u64>,
    /// Whether there are results that are not counted as a round trip yet.
    has_results: Cell<bool>,
    /// What is still to be counted: puts, gets and atomics, and fences.
    posted: Cell<[u64; 3]>,
    fences: Cell<u64>,
}

impl Endpoint {
    /// The memory around a word, for several operations. `None` over RDMA, where it would help nothing, and if the node
    /// does not live.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// fn both(ep: &Endpoint, word: RemotePtr<u64>) -> Result<(u64, u64)> {
    ///     let at_once = |near: &Near<'_>| near.try_get(word).zip(near.try_get(word.at(1)));
    ///     match ep.near(word).and_then(|near| near.run(at_once)) {
    ///         Some(both) => Ok(both),
    ///         None => Ok((ep.get(word).wait()?, ep.get(word.at(1)).wait()?)),
    ///     }
    /// }
    /// ```
    #[inline(always)]
    pub fn near(&self, at: RemotePtr<u64>) -> Option<Near<'_>> {
        let Inner::Shm(lane, marks) = &self.inner else { return None };
        let (reached, mark) = (lane.reach(at.cast())?, marks.of(at.node())?);
        let (has_results, posted, fences) = (Cell::new(false), Cell::new([0; 3]), Cell::new(0));
        Some(Near { endpoint: self, reached, marks, mark, at, has_results, posted, fences })
    }
}

impl<'e> Near<'e> {
    /// Posts some operations.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// fn swap(ep: &Endpoint, word: RemotePtr<u64>) -> Option<u64> {
    ///     ep.near(word)?.run(|near| near.try_cas(word, 0, 1))
    /// }
    /// ```
    #[inline(always)]
    pub fn run<T>(self, steps: impl FnOnce(&Near<'e>) -> T) -> T {
        let result = steps(&self);
        // Not in a drop, which would keep all of this in memory.
        self.next_trip();
        let posted = self.posted.get();
        self.endpoint.count_fences(self.fences.get(), self.at.node());
        self.endpoint.count_all(posted, self.at.node(), 8 * posted.iter().sum::<u64>() as usize);
        result
    }

    /// An operation is done: it is counted later.
    #[inline(always)]
    fn done(&self, operation: usize) {
        let mut posted = self.posted.get();
        posted[operation] += 1;
        self.posted.set(posted);
    }

    /// A read or an atomic is done: it has flushed earlier puts.
    #[inline(always)]
    fn read(&self, operation: usize) {
        self.marks.read_at(self.mark, true);
        self.done(operation);
    }
}

impl<'e> Posts<'e> for Near<'e> {
    #[inline(always)]
    fn endpoint(&self) -> &'e Endpoint {
        self.endpoint
    }

    #[inline(always)]
    fn put(&self, dst: RemotePtr<u64>, value: u64) -> Result<()> {
        if self.reached.has(dst) && self.reached.put(dst, value).is_ok() {
            self.marks.put_at(self.mark);
            self.done(0);
            return Ok(());
        }
        self.endpoint.put_elsewhere(dst, value)
    }

    #[inline(always)]
    fn try_get(&self, src: RemotePtr<u64>) -> Option<u64> {
        if !self.reached.has(src) {
            return None;
        }
        let value = self.reached.get(src).ok()?;
        self.read(1);
        self.has_results.set(true);
        Some(value)
    }

    #[inline(always)]
    fn get(&self, src: RemotePtr<u64>) -> Op<'e, u64> {
        self.endpoint.get_elsewhere(src)
    }

    #[inline(always)]
    fn try_cas(&self, dst: RemotePtr<u64>, expected: u64, new: u64) -> Option<u64> {
        if !self.reached.has(dst) {
            return None;
        }
        let found = self.reached.cas(dst, expected, new).ok()?;
        self.read(2);
        self.has_results.set(true);
        Some(found)
    }

    #[inline(always)]
    fn cas(&self, dst: RemotePtr<u64>, expected: u64, new: u64) -> Op<'e, u64> {
        self.endpoint.cas_elsewhere(dst, expected, new)
    }

    #[inline(always)]
    fn post_cas(&self, dst: RemotePtr<u64>, expected: u64, new: u64) -> Result<()> {
        if self.reached.has(dst) && self.reached.cas(dst, expected, new).is_ok() {
            self.read(2);
            return Ok(());
        }
        self.endpoint.cas_elsewhere(dst, expected, new).detach()
    }

    #[inline(always)]
    fn next_trip(&self) {
        if self.has_results.replace(false) {
            self.endpoint.depth.set(self.endpoint.depth.get() + u64::from(self.at.node() != self.endpoint.me));
        }
    }

    #[inline(always)]
    fn remote_fence(&self, node: NodeId) -> Result<()> {
        if node == self.at.node() {
            // Nothing to do, as ever on shared memory, and the node was there a moment ago.
            self.fences.set(self.fences.get() + 1);
            return Ok(());
        }
        self.endpoint.fence_elsewhere(node)
    }
}

// What is not nearby, or refused: a refused operation is not done, and the same one says why. Out of the way of those
// nearby, which are inlined.
impl Endpoint {
    #[cold]
    #[inline(never)]
    fn put_elsewhere(&self, dst: RemotePtr<u64>, value: u64) -> Result<()> {
        self.put_value(dst, value).detach()
    }

    #[cold]
    #[inline(never)]
    fn get_elsewhere(&self, src: RemotePtr<u64>) -> Op<'_, u64> {
        self.get(src)
    }

    #[cold]
    #[inline(never)]
    fn fence_elsewhere(&self, node: NodeId) -> Result<()> {
        self.remote_fence(node).detach()
    }

    #[cold]
    #[inline(never)]
    fn cas_elsewhere(&self, dst: RemotePtr<u64>, expected: u64, new: u64) -> Op<'_, u64> {
        self.cas(dst, expected, new)
    }
}
