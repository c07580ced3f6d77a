//! The errors that only transactions have.

/// The error of a call that names a cell which does not exist
/// ([`Error::custom_ref`](farfield_core::Error::custom_ref)).
///
/// ```
/// # use farfield::{LockKind::ALock, LockOptions, TransactionOptions, Transactions, transactions::NoSuchCell};
/// # let (node, lock) = (farfield::Node::builder().start()?, LockOptions::new(ALock));
/// # let cells = Transactions::open(&node, "cells", TransactionOptions { cells: 10, locks: 4, lock })?;
/// let error = cells.lock_of(10).unwrap_err(); // they are numbered from 0
/// assert_eq!(error.custom_ref(), Some(&NoSuchCell { cell: 10, cells: 10 }));
/// # Ok::<(), farfield::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("cell {cell} does not exist: there are {cells}, numbered from 0")]
pub struct NoSuchCell {
    /// The number.
    pub cell: usize,
    /// How many cells there are.
    pub cells: usize,
}

/// The error of a call that names a cell without holding its lock
/// ([`Error::custom_ref`](farfield_core::Error::custom_ref)).
///
/// ```
/// # use farfield::{LockKind::ALock, LockOptions, TransactionOptions, Transactions};
/// # let node = farfield::Node::builder().session("doc-tx-named").start()?;
/// # let (ep, lock) = (node.endpoint()?, LockOptions::new(ALock));
/// # let cells = Transactions::open(&node, "cells", TransactionOptions { cells: 10, locks: 4, lock })?;
/// let mut transaction = ep.block_on(cells.begin(&ep, &[3]))?;
/// let error = transaction.write(4, 30).unwrap_err(); // it holds no lock of cell 4
/// assert_eq!(error.custom_ref::<farfield::transactions::NotInTransaction>().unwrap().cell, 4);
/// # Ok::<(), farfield::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("cell {cell} is not part of this transaction: name it when the transaction begins")]
pub struct NotInTransaction {
    /// The cell.
    pub cell: usize,
}
