//! Memory of dead and departed nodes is given back: restarts would fill the machine otherwise.
//!
//! Threads of this node may be in the middle of an operation there, so it takes two steps. First the windows on the
//! node are closed: no operation begins, and a pending write finds no right. When all writes that had begun have
//! ended, other pages replace the node's (`Windows::vacate`): a pending read still finds readable memory, and then
//! that its generation has changed.

use core::sync::atomic::Ordering;

use super::ShmFabric;
use super::limits::lock;
use crate::ptr::NodeId;
use crate::sys::fence::fence_own_threads;

/// A dead or departed node, and the lanes that were writing then, perhaps to its memory, with their marks.
pub(super) struct Gone {
    node: NodeId,
    writers: Vec<(usize, u64)>,
}

impl ShmFabric {
    /// Closes the windows of a dead or departed peer.
    pub(super) fn close_peer(&self, node: NodeId) {
        self.memory.windows.close_peer(node);
        // A thread that sets its mark after this finds that it has no right; the marks of the others are seen.
        if let Err(why) = fence_own_threads() {
            return tracing::error!("the memory of {node}, which is gone, stays mapped: membarrier: {why}");
        }
        let marks = self.memory.own.card().marks.iter().map(|mark| mark.0.load(Ordering::Acquire));
        let writers = marks.enumerate().filter(|(_, mark)| mark % 2 == 1).collect();
        lock(&self.memory.gone).push(Gone { node, writers });
    }

    /// Gives back the memory of dead and departed nodes to which no write is pending any more.
    pub(super) fn vacate_gone(&self) {
        self.memory.forget_processes();
        let marks = &self.memory.own.card().marks;
        lock(&self.memory.gone).retain_mut(|Gone { node, writers }| {
            writers.retain(|(lane, mark)| marks[*lane].0.load(Ordering::Acquire) == *mark);
            if !writers.is_empty() {
                return true;
            }
            // SAFETY: every write that had begun when the windows were closed has ended, and no other begins: none got
            // a right since (see `ShmLane::write`), and no window is opened on a dead or departed node.
            if let Err(why) = unsafe { self.memory.windows.vacate(*node) } {
                tracing::error!("the memory of {node}, which is gone, stays mapped: {why}");
            }
            false
        });
    }
}
