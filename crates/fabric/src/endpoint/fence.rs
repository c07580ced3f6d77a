//! Fences: which earlier operations of an endpoint come before its next steps.

use core::cell::Cell;
use core::future::poll_fn;
use core::task::Poll;
use std::collections::VecDeque;

use smallvec::SmallVec;

use super::op::{self, Op};
use super::{Awaits, DynState, Endpoint, Inner, OtherLane};
use crate::error::{ErrorKind, Result};
use crate::lane::{Local, Status, Verb};
use crate::local::Instant;
use crate::ptr::{GroupKey, NodeId, RemotePtr};

impl Endpoint {
    /// Remote fence (`Rfence`). Later operations on the node start after the reads of the earlier ones are done and
    /// their writes have started. It covers the first three groups.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # async fn f(ep: &Endpoint, at: RemotePtr<u64>, cells: &Region) -> Result<()> {
    /// ep.get_span(at, cells.span(0, 8)).detach()?;
    /// ep.remote_fence(at.node()).detach()?;
    /// ep.put_value(at, 0).await?; // the get has not read this 0
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// (when waited for) A dead or departed node.
    #[inline]
    pub fn remote_fence(&self, node: NodeId) -> Op<'_, ()> {
        let remote = RemotePtr::new(node, GroupKey::SIGNAL, 0);
        match &self.inner {
            // Stores stay in order, loads stay in order, and every get begins with a store-load fence: nothing to do.
            Inner::Shm(lane, _) => {
                let depth = self.count(Verb::RemoteFence, node, 0);
                Op::ended(self, depth, remote, 0, lane.reachable(node))
            }
            Inner::Dyn(state) => self.post(state, Verb::RemoteFence, remote, 0, [0; 2], Local::nothing(), None),
        }
    }

    /// Whether a [global fence](Endpoint::global_fence) must wait for this node: for a put that no later read by the
    /// same queue pair has flushed, or for a get or an atomic in flight.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # async fn f(ep: &Endpoint, at: RemotePtr<u64>) -> Result<()> {
    /// ep.put_value(at, 1).await?;
    /// assert!(ep.has_unflushed(at.node())); // complete, but perhaps not visible
    /// ep.global_fence([at.node()]).await?;
    /// assert!(!ep.has_unflushed(at.node()));
    /// # Ok(()) }
    /// ```
    #[inline]
    pub fn has_unflushed(&self, node: NodeId) -> bool {
        match &self.inner {
            Inner::Shm(_, marks) => marks.has_unflushed(node),
            Inner::Dyn(state) => state.marks.has_unflushed(node) || state.reads_under_way(node, u64::MAX),
        }
    }

    /// Whether the next put to a word, or the next atomic on it, lands after all that this endpoint has put to its
    /// node: no put by another queue pair ([`GroupKey::class`]) may be in flight. Then a lock need not fence its home,
    /// since its release is such an operation.
    ///
    /// ```
    /// # use farfield_fabric::{Endpoint, RemotePtr, Result};
    /// # async fn f(ep: &Endpoint, lock: RemotePtr<u64>) -> Result<()> {
    /// if !ep.is_ordered_before(lock) {
    ///     ep.global_fence([lock.node()]).await?;
    /// }
    /// ep.faa(lock, u64::MAX).await.map(|_| ())
    /// # }
    /// ```
    #[inline]
    pub fn is_ordered_before(&self, word: RemotePtr<u64>) -> bool {
        match &self.inner {
            Inner::Shm(..) => true, // one order covers all groups
            Inner::Dyn(state) => !state.marks.has_unflushed_beside(word.node(), word.key()),
        }
    }

    /// Whether a lock's holder has to fence a node before it releases: something that it has posted there may not be
    /// done, or not be visible. A release by an operation on a word of the first three groups of that very node lands
    /// after all that the same queue pair has put there: then only other queue pairs and reads count.
    ///
    /// ```
    /// # use farfield_fabric::{Endpoint, NodeId, RemotePtr, Result};
    /// # async fn f(ep: &Endpoint, lock: RemotePtr<u64>, nodes: &[NodeId]) -> Result<()> {
    /// if nodes.iter().any(|node| ep.owes_fence(*node, *node == lock.node())) {
    ///     ep.global_fence(nodes.iter().copied()).await?;
    /// }
    /// ep.faa(lock, u64::MAX).await.map(|_| ())
    /// # }
    /// ```
    #[inline]
    pub fn owes_fence(&self, node: NodeId, is_exempt: bool) -> bool {
        match &self.inner {
            _ if !is_exempt => self.has_unflushed(node),
            Inner::Shm(..) => false,
            Inner::Dyn(state) => {
                state.marks.has_unflushed_beside(node, GroupKey::SIGNAL) || state.reads_under_way(node, u64::MAX)
            }
        }
    }

    /// Whether operations end when they are posted, as on shared memory: then one that fails has not been done.
    ///
    /// ```
    /// # use farfield_fabric::{Endpoint, RemotePtr, Result};
    /// # fn f(ep: &Endpoint, word: RemotePtr<u64>) -> Result<()> {
    /// if !ep.ends_at_once() {
    ///     ep.check_word(word)?; // or a failure may leave unknown whether the addition was done
    /// }
    /// ep.faa(word, 1).detach()
    /// # }
    /// ```
    #[inline(always)]
    pub fn ends_at_once(&self) -> bool {
        matches!(self.inner, Inner::Shm(..))
    }

    /// Whether no node is owed a fence, as far as that can be seen at once: false tells nothing.
    ///
    /// ```
    /// # use farfield_fabric::{Endpoint, NodeId};
    /// # fn f(ep: &Endpoint, nodes: &[NodeId]) {
    /// if ep.owes_no_fence() {
    ///     assert!(!nodes.iter().any(|node| ep.has_unflushed(*node)));
    /// }
    /// # }
    /// ```
    #[inline(always)]
    pub fn owes_no_fence(&self) -> bool {
        matches!(&self.inner, Inner::Shm(_, marks) if !marks.any_unflushed())
    }

    /// Whether no other node than `node` is owed a fence, as far as that can be seen at once: false tells nothing.
    ///
    /// ```
    /// # use farfield_fabric::{Endpoint, NodeId};
    /// # fn f(ep: &Endpoint, home: NodeId, nodes: &[NodeId]) {
    /// if ep.owes_no_fence_but(home) {
    ///     assert!(!nodes.iter().any(|node| *node != home && ep.has_unflushed(*node)));
    /// }
    /// # }
    /// ```
    #[inline(always)]
    pub fn owes_no_fence_but(&self, node: NodeId) -> bool {
        matches!(&self.inner, Inner::Shm(_, marks) if marks.unflushed_count() == usize::from(marks.has_unflushed(node)))
    }

    /// A [global fence](Endpoint::global_fence) where it needs no wait: on shared memory. Returns whether it is done.
    /// If not, a global fence does the rest, or says why it fails.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # async fn f(ep: &Endpoint, nodes: &[NodeId]) -> Result<()> {
    /// if !ep.fence_at_once(nodes.iter().copied()) {
    ///     ep.global_fence(nodes.iter().copied()).await?; // only now is there a future, with its memory
    /// }
    /// # Ok(()) }
    /// ```
    #[inline]
    pub fn fence_at_once(&self, nodes: impl IntoIterator<Item = NodeId>) -> bool {
        matches!(self.inner, Inner::Shm(..)) && self.fence_shm(nodes).is_ok()
    }

    /// [`Endpoint::fence_at_once`] of all nodes but one, if any.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # fn f(ep: &Endpoint, home: NodeId, other: NodeId) {
    /// if ep.fence_all_at_once(Some(home)) {
    ///     assert!(!ep.has_unflushed(other));
    /// }
    /// # }
    /// ```
    pub fn fence_all_at_once(&self, exempt: Option<NodeId>) -> bool {
        match &self.inner {
            Inner::Shm(_, marks) => {
                self.fence_shm(marks.unflushed_nodes().filter(|node| Some(*node) != exempt)).is_ok()
            }
            Inner::Dyn(_) => false,
        }
    }

    /// Declares that no read will see the puts to a node, since it is dead or departed for good. Fences leave it out
    /// from now on.
    ///
    /// ```
    /// # fn f(ep: &farfield_fabric::Endpoint, node: farfield_fabric::NodeId) {
    /// if ep.check_alive(node).is_err_and(|error| error.is_gone()) {
    ///     ep.clear_flush_state(node);
    /// }
    /// # }
    /// ```
    pub fn clear_flush_state(&self, node: NodeId) {
        match &self.inner {
            Inner::Shm(_, marks) => marks.read(node, true),
            Inner::Dyn(state) => state.marks.forget(node),
        }
    }

    /// Global fence (`GF`). When it completes, every earlier operation of this endpoint on those nodes has taken
    /// effect: puts are visible there, gets have landed here, and atomics have been done. This covers operations that
    /// no task waits for, and memory of every group.
    ///
    /// It posts one get to each node that received a put since the last read from it, all at once: a get flushes the
    /// puts before it (LOCO §2.2; [`RDMA^WAIT`: NRW before NRR, to one node]). A further group has a queue pair of its
    /// own ([`GroupKey::class`]), and so a get of its own. The fence waits for gets and atomics in flight (NLW before
    /// GF).
    ///
    /// ```
    /// # use farfield_fabric::{Endpoint, Region, RemotePtr, Result};
    /// # async fn f(ep: &Endpoint, src: RemotePtr<u64>, cells: &Region) -> Result<()> {
    /// ep.get_span(src, cells.span(0, 8)).detach()?;
    /// ep.global_fence([src.node()]).await?;
    /// println!("{}", cells.word(0).load()); // what the get has brought
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// A dead or departed node, if there is no other error; the fence covers the others nevertheless.
    /// [`ErrorKind::Revoked`] if the right to a further group was revoked: puts to it have landed or never will, and
    /// the next fence leaves it out.
    pub async fn global_fence(&self, nodes: impl IntoIterator<Item = NodeId>) -> Result<()> {
        let Inner::Dyn(state) = &self.inner else { return self.fence_shm(nodes) };
        let mut gets = Gets::begin(self, state);
        let mut reading: SmallVec<[NodeId; 8]> = SmallVec::new(); // room for eight without an allocation
        for node in nodes {
            if state.reads_under_way(node, u64::MAX) {
                reading.push(node);
            }
            if state.marks.has_unflushed_by(RemotePtr::new(node, GroupKey::SIGNAL, 0)) {
                gets.post(node, GroupKey::SIGNAL);
            }
            state.marks.further(node).into_iter().for_each(|key| gets.post(node, key));
        }
        self.wait_for_reads(reading).await;
        let mut result: Result<()> = Ok(());
        while let Some((place, get)) = gets.next() {
            let got = get.await.map(|_| ()).or_else(|error| self.is_over_there(place, error));
            result = first_error(result, got);
        }
        result
    }

    /// A fence on shared memory, where a get is complete when it was posted.
    #[inline]
    fn fence_shm(&self, nodes: impl IntoIterator<Item = NodeId>) -> Result<()> {
        let (mut result, mut deepest): (Result<()>, u64) = (Ok(()), 0);
        for node in nodes {
            if self.has_unflushed(node) {
                // All are posted before one counts as complete: they take one round trip.
                match self.get::<u64>(RemotePtr::new(node, GroupKey::SIGNAL, 0)).into_state() {
                    (_, op::State::Failed(code, remote, len)) => {
                        result = first_error(result, Err(self.explain(code, remote, len)));
                    }
                    (depth, _) => deepest = deepest.max(depth),
                }
            }
        }
        self.saw_completion(deepest);
        result
    }

    /// Interprets the error of a fence's get for a further group: without a right to it, or without such a group, no
    /// put to it lands any more.
    #[cold]
    fn is_over_there(&self, place: RemotePtr<u64>, error: crate::Error) -> Result<()> {
        let Inner::Dyn(state) = &self.inner else { return Err(error) };
        if place.key() == GroupKey::SIGNAL {
            return Err(error);
        }
        match error.kind() {
            ErrorKind::Revoked { .. } => state.marks.forget_group(place.node(), place.key()),
            ErrorKind::UnknownGroup { .. } | ErrorKind::OutOfBounds { .. } => {
                state.marks.forget_group(place.node(), place.key());
                return Ok(());
            }
            _ => {}
        }
        Err(error)
    }

    /// Waits until all gets and atomics are complete that this endpoint has posted to those nodes before, detached and
    /// dropped ones included. Only their handles return how they end.
    ///
    /// ```
    /// # use farfield_fabric::{Endpoint, RemotePtr, Result};
    /// # async fn f(ep: &Endpoint, word: RemotePtr<u64>) -> Result<()> {
    /// ep.faa(word, 1).detach()?;
    /// ep.wait_for_reads([word.node()]).await; // the addition is done, or its node is gone
    /// # Ok(()) }
    /// ```
    pub async fn wait_for_reads(&self, nodes: impl IntoIterator<Item = NodeId>) {
        // On shared memory no operation is ever in flight.
        let Inner::Dyn(state) = &self.inner else { return };
        let (up_to, depth) = (state.issued.get(), self.depth.get());
        for node in nodes {
            if !state.reads_under_way(node, up_to) {
                continue;
            }
            let _awaits = AwaitsReads::begin(&state.reads_awaited);
            poll_fn(|cx| {
                self.poll_lane();
                let is_open = || state.reads_under_way(node, up_to);
                let waits = is_open() && (!self.pends(cx, Awaits::Completion, Instant::NEVER) || is_open());
                if waits { Poll::Pending } else { Poll::Ready(()) }
            })
            .await;
            // They were posted before, so each completes one round trip later at most.
            self.saw_completion(depth + u64::from(node != self.me));
        }
    }

    /// Waits until all puts of this endpoint are visible, or their targets dead or departed. This includes puts that
    /// no fence waits for: see [`Endpoint::put_untracked`].
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # fn f(ep: &Endpoint, words: &[RemotePtr<u64>]) -> Result<()> {
    /// for word in words {
    ///     ep.put_value(*word, 1).detach()?;
    /// }
    /// ep.flush(); // whoever looks sees them now
    /// # Ok(()) }
    /// ```
    pub fn flush(&self) {
        let nodes = (0..self.fabric.nodes()).map(|index| NodeId(index as u16));
        // An error means a dead or departed target, where there is nothing left to see.
        let _ = self.block_on(self.global_fence(nodes));
        let unfenced = match &self.inner {
            Inner::Shm(_, marks) => marks.take_unfenced(),
            Inner::Dyn(state) => state.marks.take_unfenced(),
        };
        for (node, key) in unfenced {
            let _ = self.block_on(self.get(RemotePtr::<u64>::new(node, key, 0)));
        }
    }
}

/// The error of a fence that covers several nodes. If no target is left, there is nothing to see there, so any other
/// error has priority.
fn first_error(first: Result<()>, got: Result<()>) -> Result<()> {
    match (first, got) {
        (Err(first), Err(error)) if first.is_gone() && !error.is_gone() => Err(error),
        (first, got) => first.and(got),
    }
}

/// The gets of a fence in the order in which they were posted. Their memory passes from one fence to the next.
struct Gets<'e> {
    endpoint: &'e Endpoint,
    state: &'e DynState,
    posted: VecDeque<PostedGet>,
}

/// A get of a fence: its place, its place in the chain of round trips, and its state.
pub(super) type PostedGet = (RemotePtr<u64>, u64, op::State<u64>);

impl<'e> Gets<'e> {
    fn begin(endpoint: &'e Endpoint, state: &'e DynState) -> Gets<'e> {
        Gets { endpoint, state, posted: state.fence_gets.take() }
    }

    fn post(&mut self, node: NodeId, key: GroupKey) {
        let place = RemotePtr::new(node, key, 0);
        let (depth, get) = self.endpoint.get(place).into_state();
        self.posted.push_back((place, depth, get));
    }

    fn next(&mut self) -> Option<(RemotePtr<u64>, Op<'e, u64>)> {
        let (place, depth, get) = self.posted.pop_front()?;
        Some((place, Op::of_state(self.endpoint, depth, get)))
    }
}

impl Drop for Gets<'_> {
    fn drop(&mut self) {
        while self.next().is_some() {} // the fence was dropped
        self.state.fence_gets.replace(core::mem::take(&mut self.posted));
    }
}

/// A task that waits for the ends of operations; other tasks take their results.
struct AwaitsReads<'e>(&'e Cell<u32>);

impl<'e> AwaitsReads<'e> {
    fn begin(tasks: &'e Cell<u32>) -> AwaitsReads<'e> {
        tasks.set(tasks.get() + 1);
        AwaitsReads(tasks)
    }
}

impl Drop for AwaitsReads<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl DynState {
    /// Whether a get or an atomic on a node is in flight with a number of at most `up_to`.
    fn reads_under_way(&self, node: NodeId, up_to: u64) -> bool {
        let lane = self.lane.borrow();
        let words = match &*lane {
            OtherLane::Verbs(lane) => lane.word_reads_under_way(node, up_to),
            OtherLane::Dyn(_) => false,
        };
        let in_flight = self.in_flight.borrow();
        words
            || in_flight.get(node.index()).is_some_and(|to_peer| {
                to_peer.iter().any(|operation| {
                    let is_meant = operation.flushes.is_some_and(|(_, number)| number <= up_to);
                    is_meant && lane.status(node, operation.sequence) == Status::Pending
                })
            })
    }
}
