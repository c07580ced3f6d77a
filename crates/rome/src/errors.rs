//! The errors that only ROMe has.

use core::time::Duration;

use farfield_core::Error;
use farfield_fabric::NodeId;

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
#[error("no block is free: {}", explain(*waiting, *blocks))]
pub struct MemoryFull {
    /// All blocks.
    pub blocks: usize,
    /// Those that were replaced, and that readers may still need.
    pub waiting: usize,
}

fn explain(waiting: usize, blocks: usize) -> String {
    match waiting {
        0 => format!(
            "the data takes all {blocks}, but for those that writers have at hand; open it with more `blocks`, or drop idle writers"
        ),
        _ => format!(
            "{waiting} of {blocks} were replaced and may still be read; open it with more `blocks`, or end long scans sooner"
        ),
    }
}

/// A scan has made no progress for so long that its owner no longer keeps the snapshot for it
/// ([`Error::custom_ref`](farfield_core::Error::custom_ref)). Begin another one; the pairs that the scan has returned
/// so far were right.
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

/// Keys of a store, if their owner cannot be reached, or is dead ([`Error::custom_ref`]). The other keys are not
/// concerned.
///
/// ```
/// # use farfield_rome::RangeUnavailable;
/// fn explain(error: &farfield::Error) {
///     if let Some(lost) = error.custom_ref::<RangeUnavailable>() {
///         eprintln!("the keys {} were on {}", lost.range, lost.owner);
///     }
/// }
/// ```
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[error("the keys {range} are on {owner}, which has not answered: {because}")]
pub struct RangeUnavailable {
    /// The partition: [`RomeKv::range_of`](crate::RomeKv::range_of).
    pub partition: usize,
    /// Its owner.
    pub owner: NodeId,
    /// Its keys.
    pub range: String,
    /// A change was sent, and may have happened or not. If this is false, nothing has changed.
    pub may_have_happened: bool,
    /// Why.
    #[source]
    pub because: Error,
}

/// A read of several partitions at one instant has found them changed each time ([`Error::custom_ref`]): the calling
/// thread, or the owners' threads, were stopped again and again. Repeat it, or open the store with a longer
/// [`hold`](crate::RomeKvOptions::hold).
///
/// ```
/// # use farfield_rome::NotOneInstant;
/// fn may_repeat(error: &farfield::Error) -> bool {
///     error.custom_ref::<NotOneInstant>().is_some()
/// }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{partitions} partitions have changed during each of {looks} looks at their versions: repeat it, or raise `hold`"
)]
pub struct NotOneInstant {
    /// The partitions of the read.
    pub partitions: usize,
    /// How often their versions were read.
    pub looks: usize,
}

/// A tree was moved to another node, and is not changed any more. The store finds out where it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the tree was moved to another node")]
pub(crate) struct Moved;
