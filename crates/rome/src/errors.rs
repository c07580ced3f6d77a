//! The errors that only ROMe has.

use core::time::Duration;

/// No block was free within the time of the call ([`Error::custom_ref`](farfield_core::Error::custom_ref)). Nothing was
/// changed. Either the data is larger than the memory, or readers still need blocks that were replaced.
///
/// ```
/// # use farfield_rome::MemoryFull;
/// fn explain(error: &farfield::Error) {
///     if let Some(full) = error.custom_ref::<MemoryFull>() {
///         eprintln!("{} of {} blocks wait for readers", full.waiting, full.blocks);
///     }
/// }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "no block is free: {waiting} of {blocks} were replaced and may still be read; open it with more `blocks`, or end long scans sooner"
)]
pub struct MemoryFull {
    /// All blocks.
    pub blocks: usize,
    /// Those that were replaced, and that readers may still need.
    pub waiting: usize,
}

/// A scan has made no progress for so long that its owner no longer keeps the snapshot for it
/// ([`Error::custom_ref`](farfield_core::Error::custom_ref)). Begin another one; what the scan has returned so far was right.
///
/// ```
/// # use farfield_rome::SnapshotExpired;
/// fn must_begin_again(error: &farfield::Error) -> bool {
///     error.custom_ref::<SnapshotExpired>().is_some()
/// }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "the snapshot has expired: nothing was read for {idle:?}, more than a quarter of the `lease` of {lease:?}; begin a new scan"
)]
pub struct SnapshotExpired {
    /// How long the scan had made no progress.
    pub idle: Duration,
    /// The option `lease` of the object.
    pub lease: Duration,
}
