//! The options of transactions.

use farfield_locks::LockOptions;

/// The numbers of cells and locks. They must be the same on all nodes.
///
/// ```
/// # use farfield::{LockKind, LockOptions, TransactionOptions};
/// let options = TransactionOptions { cells: 1000, locks: 16, lock: LockOptions::new(LockKind::Mcs) };
/// # assert_eq!(options.locks, 16);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TransactionOptions {
    /// The number of words on all nodes together.
    pub cells: usize,
    /// The number of locks on all nodes together.
    pub locks: usize,
    /// The kind of the locks, with its options.
    pub lock: LockOptions,
}
