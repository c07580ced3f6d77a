//! The lock of each cell, and the order in which a transaction takes its locks.

use super::Few;

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
        there => rank + word % there * nodes,
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
