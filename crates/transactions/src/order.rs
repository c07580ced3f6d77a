//! The lock of each cell, and the order in which a transaction takes its locks.

use farfield_fabric::NodeId;

use super::Few;

/// A lock, and the node that it is on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Lock {
    pub(crate) number: usize,
    pub(crate) home: NodeId,
}

/// How many of the locks are on the `rank`-th node.
pub(crate) fn locks_of(rank: usize, nodes: usize, locks: usize) -> usize {
    locks.saturating_sub(rank).div_ceil(nodes)
}

/// The lock of the `word`-th cell of the `rank`-th node, where `there` of all locks are. It is one of those, if there
/// are any.
#[inline]
pub(crate) fn lock_of(rank: usize, word: usize, nodes: usize, there: usize, locks: impl FnOnce() -> usize) -> usize {
    match there {
        0 => rank % locks(),
        there if word < there => rank + word * nodes, // without a division
        there => rank + word % there * nodes,
    }
}

/// Puts the locks of a transaction, each once, in the order of all transactions: so no cycle of waiting transactions
/// can form.
#[inline]
pub(crate) fn put_in_order(locks: &mut Few<Lock>, seen: Ascent) {
    if !seen.is_kept {
        locks.sort_unstable();
        locks.dedup();
    }
}

/// Whether numbers ascend that are seen one after the other, so that none is there twice.
pub(crate) struct Ascent {
    pub(crate) is_kept: bool,
    /// No number seen is as large.
    above: usize,
}

impl Ascent {
    pub(crate) const NONE_SEEN: Ascent = Ascent { is_kept: true, above: 0 };

    /// Sees a number of a cell or a lock.
    #[inline(always)]
    pub(crate) fn sees(&mut self, number: usize) {
        self.is_kept &= number >= self.above;
        self.above = number + 1;
    }
}
