//! Memory of nodes that are gone is given back: it would fill the machine if nodes returned often.
//!
//! Threads of this node may be in the middle of an operation there, so it goes in two steps. First the windows on the node
//! are closed: no operation begins, and a write that is about to finds no right. When all writes that had begun have ended,
//! other pages take the place of the node's (`Windows::vacate`): a read that is under way finds something to read, and then
//! that its memory is gone.

use core::sync::atomic::Ordering;

use super::sys::fence::heavy_fence;
use super::{ShmFabric, lock};
use crate::ptr::NodeId;

/// A node that is gone, and the lanes that were writing then, perhaps to its memory, with their marks.
pub(super) struct Gone {
    node: NodeId,
    writers: Vec<(usize, u64)>,
}

impl ShmFabric {
    /// A peer is gone: closes its windows.
    pub(super) fn close_peer(&self, node: NodeId) {
        self.memory.windows.close_peer(node);
        // A thread that sets its mark after this finds that it has no right; the marks of the others are seen.
        if let Err(why) = heavy_fence() {
            return tracing::error!("the memory of {node}, which is gone, stays mapped: membarrier: {why}");
        }
        let marks = self.memory.own.card().marks.iter().map(|mark| mark.0.load(Ordering::Acquire));
        let writers = marks.enumerate().filter(|(_, mark)| mark % 2 == 1).collect();
        lock(&self.memory.gone).push(Gone { node, writers });
    }

    /// Gives back the memory of those that are gone, and to which nobody writes any more.
    pub(super) fn vacate_gone(&self) {
        let marks = &self.memory.own.card().marks;
        lock(&self.memory.gone).retain_mut(|Gone { node, writers }| {
            writers.retain(|(lane, mark)| marks[*lane].0.load(Ordering::Acquire) == *mark);
            if !writers.is_empty() {
                return true;
            }
            // SAFETY: every write that had begun when the windows were closed has ended, and no other begins: none was given a
            // right since (see `ShmLane::write`), and nobody opens a window on a node that is gone.
            if let Err(why) = unsafe { self.memory.windows.vacate(*node) } {
                tracing::error!("the memory of {node}, which is gone, stays mapped: {why}");
            }
            false
        });
    }
}
