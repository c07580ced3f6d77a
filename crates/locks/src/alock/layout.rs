//! The words of an ALock, as the module draws them.

pub(crate) const TAIL_REMOTE: usize = 0;
pub(crate) const TAIL_LOCAL: usize = 1;
pub(crate) const VICTIM: usize = 2;
pub(crate) const CLAIMS: usize = 3;
pub(crate) const BURIALS: usize = 4;
pub(crate) const REPAIRED: usize = 5;
pub(crate) const BURIED: usize = 6;
pub(crate) const WORDS: usize = 8;

/// The victims. A new lock has none, which is as good as either name while both queues are empty.
pub(crate) const REMOTE: u64 = 1;
pub(crate) const LOCAL: u64 = 2;
