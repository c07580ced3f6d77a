//! The lock of each cell, and the order in which a transaction takes its locks.

use super::Few;

/// The lock of a cell. It is on the cell's node, unless that node has none.
#[inline]
pub(crate) fn lock_of(cell: usize, nodes: usize, locks: usize) -> usize {
    let (node, word) = (cell % nodes, cell / nodes);
    match locks.saturating_sub(node).div_ceil(nodes) {
        0 => node % locks,
        there => node + word % there * nodes,
    }
}

/// The locks of a transaction, each once, in the order of all transactions: so no cycle of waiting transactions can
/// form.
#[inline]
pub(crate) fn in_order(mut locks: Few<usize>) -> Few<usize> {
    if !is_ascending(&locks, |lock| *lock) {
        locks.sort_unstable();
        locks.dedup();
    }
    locks
}

/// Whether the keys of these elements ascend, so that none is there twice.
#[inline]
pub(crate) fn is_ascending<T>(elements: &[T], key: impl Fn(&T) -> usize) -> bool {
    elements.windows(2).all(|pair| key(&pair[0]) < key(&pair[1]))
}
