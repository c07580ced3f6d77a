//! Full fences on the threads that may be writing to this node's memory.
//!
//! A write sets its lane's mark and reads its right with no fence between the two (see `ShmLane::write`). The node that
//! has changed the right, or a generation, fences the writers before it looks at their marks:
//!
//! - **threads of this process** by `membarrier(2)`, which knows exactly where they run;
//! - **threads of another process** by a request to its service thread, which does the same there. The request is a
//!   counter on that node's card; the answer is another one. A service thread that waits for an answer itself continues
//!   to answer, so two nodes can ask each other;
//! - where a process has ended, as its descriptor says (`pidfd_open(2)`), there is nothing to fence;
//! - where no answer arrives in time (the process is stopped, or dead and not seen to have ended), by `membarrier`'s
//!   slow command, which waits until every core has passed through the scheduler.
//!
//! The kernel has a fast command for all processes, too. It is not used here, because Linux leaves out cores: from 5.4
//! on, a core on which this process ran before it was registered, and from 5.11 on, a core on which a thread of this
//! process has ended, until another process has run there. A writer on such a core can then write after a revocation.
//!
//! A node without lanes has no writers, and is not asked.

use core::sync::atomic::{Ordering, fence};
use std::time::Duration;

use super::ShmFabric;
use super::limits::{lock, system};
use super::node_header::NodeHeader;
use super::reach::Memory;
use super::waiting::{SPINS, YIELDS};
use crate::error::Result;
use crate::local::Instant;
use crate::ptr::NodeId;
use crate::sys::fence::{fence_all_threads, fence_own_threads};
use crate::sys::liveness;
use crate::sys::process::Process;

/// How old a request gets before the slow fence, which takes some ten milliseconds.
const ANSWER_MAX: Duration = Duration::from_millis(2);

/// Where the kernel has no slow fence: the time in which a thread has met the signal that has killed its process. The
/// interrupt that delivers it was sent before the process's death was seen.
const SIGNAL_MAX: Duration = Duration::from_millis(10);

/// A full fence that has begun: each write that begins later finds all that this thread had written, and the mark of
/// each earlier one is visible when it is done.
#[derive(Clone)]
pub(super) struct Fence {
    /// Nodes that have not answered yet, with the numbers of the requests.
    asked: Vec<(NodeId, u64)>,
    since: Instant,
}

impl Fence {
    pub(super) fn is_over(&self) -> bool {
        self.asked.is_empty()
    }
}

impl Memory {
    /// Whether a node is gone, and none of its threads writes any more.
    pub(super) fn has_ended(&self, node: NodeId) -> bool {
        let Some(card) = self.peer(node).map(NodeHeader::of) else { return false };
        if liveness::is_alive(card.life.word().load(Ordering::Acquire)) {
            return false;
        }
        let mut ended = lock(&self.ended);
        if !ended.contains(&node) && lock(&self.processes).get(&node).is_some_and(Process::has_ended) {
            ended.insert(node);
        }
        ended.contains(&node)
    }

    /// Closes the descriptors of processes that are needed no more.
    pub(super) fn forget_processes(&self) {
        let known: Vec<NodeId> = lock(&self.processes).keys().copied().collect();
        let is_needed = |node: &NodeId| {
            let Some(card) = self.peer(*node).map(NodeHeader::of) else { return false };
            let is_alive = liveness::is_alive(card.life.word().load(Ordering::Acquire));
            is_alive || card.open_lanes.load(Ordering::SeqCst) > 0 && !self.has_ended(*node)
        };
        for node in known.iter().filter(|node| !is_needed(node)) {
            lock(&self.processes).remove(node);
        }
    }

    /// Whether a node has had no writers since that request, or has fenced them.
    fn has_passed(&self, node: NodeId, request: u64) -> bool {
        let Some(card) = self.peer(node).map(NodeHeader::of) else { return true };
        card.fences_done.load(Ordering::Acquire) >= request
            // The writes of a lane that was closed come before this; one that opens later reads the values written
            // before.
            || card.open_lanes.load(Ordering::SeqCst) == 0
            || self.has_ended(node)
    }

    /// The dead among all nodes.
    fn dead(&self) -> impl Iterator<Item = NodeId> {
        let is_dead = |node: &NodeId| self.peer(*node).map(NodeHeader::of).is_some_and(NodeHeader::is_dead);
        (0..self.known_peers().len()).map(|node| NodeId(node as u16)).filter(is_dead)
    }
}

impl ShmFabric {
    /// Begins a full fence on every thread of a node, or of all nodes, that may be writing. Threads of this process are
    /// fenced when it returns.
    ///
    /// # Errors
    /// The kernel refuses to fence threads of this process.
    pub(super) fn begin_fence(&self, only: Option<NodeId>) -> Result<Fence> {
        // With the one in `open_lane`: a lane that is not counted below reads what was written before this.
        fence(Ordering::SeqCst);
        let all = only.map_or(0..self.memory.known_peers().len(), |node| node.index()..node.index() + 1);
        let mut asked = Vec::new();
        for node in all.map(|node| NodeId(node as u16)).filter(|node| *node != self.me) {
            let Some(card) = self.memory.peer(node).map(NodeHeader::of) else { continue };
            let is_here = card.process.load(Ordering::Relaxed) == self.process;
            if !is_here && card.open_lanes.load(Ordering::SeqCst) > 0 && !self.memory.has_ended(node) {
                asked.push((node, card.fences_asked.fetch_add(1, Ordering::SeqCst) + 1));
            }
        }
        let since = Instant::monotonic();
        fence_own_threads().map_err(|why| system("membarrier")(&why))?;
        Ok(Fence { asked, since })
    }

    /// Wakes the service threads that a fence waits for. They would answer within milliseconds.
    pub(super) fn urge(&self, fence: &Fence) {
        for (node, _) in &fence.asked {
            let Some(card) = self.memory.peer(*node).map(NodeHeader::of) else { continue };
            if liveness::is_alive(card.life.word().load(Ordering::Acquire)) {
                super::lane::ring(&card.service);
                self.control.nudge(*node);
            }
        }
    }

    /// Whether a fence is done by now.
    pub(super) fn is_done(&self, fence: &mut Fence) -> bool {
        if fence.since.ns < self.memory.all_fenced_ns.load(Ordering::Acquire) {
            fence.asked.clear();
        }
        fence.asked.retain(|(node, request)| !self.memory.has_passed(*node, *request));
        fence.asked.is_empty()
    }

    /// Waits until a fence is done; whether it is. The slow fence may take longer than the timeout.
    pub(super) fn wait_for_fence(&self, fence: &mut Fence, timeout: Duration) -> bool {
        let start = Instant::monotonic();
        let (mut has_slow, mut looks) = (true, 0);
        loop {
            self.answer_fences();
            if self.is_done(fence) {
                return true;
            }
            let now = Instant::monotonic();
            if has_slow && now.since(fence.since) >= ANSWER_MAX {
                let dead: Vec<NodeId> = self.memory.dead().collect();
                has_slow = fence_all_threads().is_ok();
                if !has_slow {
                    // A kernel with `nohz_full`.
                    if fence.asked.iter().any(|(node, _)| dead.contains(node)) {
                        std::thread::sleep(SIGNAL_MAX);
                        lock(&self.memory.ended).extend(dead);
                    }
                    continue;
                }
                // Those run no more code.
                lock(&self.memory.ended).extend(dead);
                self.memory.all_fenced_ns.fetch_max(now.ns, Ordering::AcqRel);
                fence.asked.clear();
                return true;
            }
            if now.since(start) >= timeout {
                return false;
            }
            looks += 1;
            if looks < SPINS + YIELDS {
                std::thread::yield_now();
            } else {
                std::thread::sleep(Duration::from_micros(50));
            }
        }
    }

    /// Answers the requests of other processes to fence this one's threads.
    pub(super) fn answer_fences(&self) {
        let card = self.memory.own.card();
        let request = card.fences_asked.load(Ordering::Acquire);
        if request != card.fences_done.load(Ordering::Relaxed) && fence_own_threads().is_ok() {
            card.fences_done.fetch_max(request, Ordering::Release);
        }
    }
}
