//! Full fences on the threads that may be writing to this node's memory.
//!
//! A write sets its lane's mark and reads its right with no fence between the two (see `ShmLane::write`). The node that
//! has changed the right, or a generation, fences the writers before it looks at their marks:
//!
//! - **threads of this process** by `membarrier(2)`, which knows exactly where they run;
//! - **threads of another process** by a request to its service thread, which does the same there. The request is a
//!   counter on that node's card; the answer is another one. A service thread that waits for an answer itself goes on
//!   answering, so two nodes can ask each other;
//! - where no answer comes in time (the process is stopped, or dead and still ending), by `membarrier`'s slow command,
//!   which waits until every core has passed through the scheduler.
//!
//! The kernel has a fast command for all processes, too. It is not used here, because Linux leaves out cores: from 5.4
//! on, a core on which this process ran before it was registered, and from 5.11 on, a core on which a thread of this
//! process has ended, until another process has run there. A writer on such a core can then write after a revocation.
//!
//! A node without lanes has no writers, and is not asked.

use core::sync::atomic::Ordering;
use std::sync::OnceLock;
use std::time::Duration;

use super::ShmFabric;
use super::limits::{lock, system};
use super::node_header::NodeHeader;
use super::waiting::{SPINS, YIELDS};
use crate::error::Result;
use crate::local::Instant;
use crate::ptr::NodeId;
use crate::sys::fence::{fence_all_threads, fence_most_threads, fence_own_threads};
use crate::sys::liveness;

/// How long an answer is waited for before the slow fence: that takes some ten milliseconds.
const ANSWER_MAX: Duration = Duration::from_millis(2);

/// A number that is this process's alone, whatever PID namespace it is in.
pub(super) fn process_number() -> u64 {
    static RANDOM: OnceLock<u64> = OnceLock::new();
    // A child of fork has the same random number, and another process id.
    RANDOM.get_or_init(rand::random).wrapping_add(u64::from(std::process::id()))
}

/// A node that was asked to fence its threads.
struct Asked<'c> {
    card: &'c NodeHeader,
    request: u64,
}

impl Asked<'_> {
    fn is_answered(&self) -> bool {
        self.card.fences_done.load(Ordering::Acquire) >= self.request
    }
}

impl ShmFabric {
    /// A full fence on every thread of these nodes that may be writing: each of their later writes begins with all that
    /// this thread has written by now, and the mark of each earlier one is visible when this returns.
    ///
    /// # Errors
    /// One cannot be asked, or has not answered within the timeout, and the kernel has no slow fence.
    pub(super) fn fence_writers(&self, nodes: impl Iterator<Item = NodeId>, timeout: Duration) -> Result<()> {
        // With the one in `open_lane`: a lane that is not counted below reads what was written before this.
        core::sync::atomic::fence(Ordering::SeqCst);
        // Nodes that were asked, and those that cannot answer any more.
        let (mut asked, mut gone) = (Vec::new(), Vec::new());
        for node in nodes.filter(|node| *node != self.me) {
            let Some(card) = self.memory.peer(node).map(NodeHeader::of) else { continue };
            let is_here = card.process.load(Ordering::Relaxed) == process_number();
            if is_here || card.open_lanes.load(Ordering::SeqCst) == 0 {
                continue;
            }
            if liveness::is_alive(card.life.word().load(Ordering::Acquire)) {
                let request = card.fences_asked.fetch_add(1, Ordering::SeqCst) + 1;
                super::lane::ring(&card.service);
                self.control.nudge(node);
                asked.push((node, Asked { card, request }));
            } else if !lock(&self.memory.ended).contains(&node) {
                gone.push(node);
            }
        }
        fence_own_threads().map_err(|why| system("membarrier")(&why))?;

        let start = Instant::monotonic();
        let (mut has_slow, mut looks) = (true, 0);
        loop {
            self.answer_fences();
            asked.retain(|(node, peer)| {
                let is_alive = liveness::is_alive(peer.card.life.word().load(Ordering::Acquire));
                if !is_alive && !peer.is_answered() {
                    gone.push(*node);
                }
                is_alive && !peer.is_answered()
            });
            let waited = Instant::monotonic().since(start);
            let is_late = waited >= ANSWER_MAX.min(timeout);
            if has_slow && (is_late && !asked.is_empty() || asked.is_empty() && !gone.is_empty()) {
                if fence_all_threads().is_ok() {
                    lock(&self.memory.ended).extend(gone.into_iter().filter(|node| self.is_dead(*node)));
                    return Ok(());
                }
                has_slow = false; // a kernel with `nohz_full`
            }
            if asked.is_empty() {
                return self.fence_gone(&gone);
            }
            if waited >= timeout {
                let why =
                    format!("{} has not answered within {waited:?}, and the kernel has no slow fence", asked[0].0);
                return Err(system("a fence of another process's threads")(&why));
            }
            looks += 1;
            if looks < SPINS + YIELDS {
                std::thread::yield_now();
            } else {
                std::thread::sleep(Duration::from_micros(50));
            }
        }
    }

    /// Without a slow fence, as far as that goes: when the death of a node was seen, each of its threads had a fatal
    /// signal pending, which the next interrupt delivers. A node that has left may have threads that write on.
    fn fence_gone(&self, gone: &[NodeId]) -> Result<()> {
        if let Some(node) = gone.iter().find(|node| !self.is_dead(**node)) {
            let why = format!("{node} has left, its process has endpoints, and the kernel has no slow fence");
            return Err(system("a fence of another process's threads")(&why));
        }
        if !gone.is_empty() {
            fence_most_threads();
        }
        Ok(())
    }

    fn is_dead(&self, node: NodeId) -> bool {
        self.memory.peer(node).map(NodeHeader::of).is_some_and(NodeHeader::is_dead)
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
