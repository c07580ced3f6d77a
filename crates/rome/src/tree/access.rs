//! A tree as one thread reads it: by the processor on its owner, else by gets. Stores of several trees are made of
//! these.

use farfield_core::toolkit::ErrorContext;
use farfield_core::{Endpoint, Error, Result};

use super::fetch::Here;
use super::scan::Cursor;
use super::{Partition, TreeReader};
use crate::arena::Stable;
use crate::field::{Field, TreeKey};
use crate::reading::{check, check_here};

/// A thread's part in one tree.
pub(crate) enum Access<K, V> {
    Here(Partition<K, V>),
    There(TreeReader<K, V>),
    /// Its owner had gone when this node came.
    Gone(Error),
}

/// A look at `stable` that is under way.
pub(crate) enum Look<'e> {
    Here,
    There(farfield_fabric::Op<'e, u64>),
    Gone,
}

impl<K: TreeKey, V: Field> Access<K, V> {
    pub(crate) async fn get(&mut self, ep: &Endpoint, key: &K) -> Result<Option<V>> {
        match self {
            Access::Here(partition) => {
                let value = partition.get(key);
                // Behind the read (`CR → CR`): at this moment it was not moved, and so the value was current.
                Partition::arena(&partition.tree).stable_now().current()?;
                Ok(value)
            }
            Access::There(reader) => reader.get(ep, key).await,
            Access::Gone(error) => Err(error.clone()),
        }
    }

    pub(crate) async fn multi_get(&mut self, ep: &Endpoint, keys: &[K]) -> Result<Vec<Option<V>>> {
        match self {
            Access::Here(partition) => {
                let values = partition.multi_get(keys);
                Partition::arena(&partition.tree).stable_now().current()?; // as in `get`
                Ok(values)
            }
            Access::There(reader) => reader.multi_get(ep, keys).await,
            Access::Gone(error) => Err(error.clone()),
        }
    }

    /// Whether changes are made here: in this node's memory, and not elsewhere by now. None if it is another node's.
    pub(crate) fn is_current(&self) -> Option<Result<()>> {
        let Access::Here(partition) = self else { return None };
        Some(Partition::arena(&partition.tree).stable_now().current().map(drop))
    }

    fn path(&self) -> &str {
        match self {
            Access::Here(partition) => partition.tree.opened.object.path(),
            Access::There(reader) => reader.tree.opened.object.path(),
            Access::Gone(error) => error.object().unwrap_or_default(),
        }
    }

    /// Announces a read as of the versions that are looked at next, or later ones.
    pub(crate) fn announce(&mut self, ep: &Endpoint) {
        match self {
            Access::Here(Partition { tree, seat, .. }) => seat.announce_here(ep, Partition::arena(tree).stable()),
            Access::There(TreeReader { seat, ahead, known, .. }) => {
                ahead.clear();
                seat.announce(ep, *known);
            }
            Access::Gone(_) => {}
        }
    }

    /// Begins to look at the version that is stable.
    pub(crate) fn look<'e>(&self, ep: &'e Endpoint) -> Look<'e> {
        match self {
            Access::Here(_) => Look::Here,
            Access::There(reader) => Look::There(ep.get(reader.tree.opened.stable_at())),
            Access::Gone(_) => Look::Gone,
        }
    }

    /// The version that was stable at a moment between the beginning of the look and the end of this call.
    ///
    /// # Errors
    /// [`SnapshotExpired`](crate::SnapshotExpired): announce it anew. [`Moved`](crate::errors::Moved): the tree is
    /// another node's. The owner is dead or cannot be reached.
    pub(crate) async fn see(&mut self, ep: &Endpoint, look: Look<'_>) -> Result<u64> {
        let version = match (&mut *self, look) {
            (Access::Here(Partition { tree, seat, .. }), _) => {
                let stable = Partition::arena(tree).stable_now();
                check_here(seat, ep).and_then(|()| stable.current())
            }
            (Access::There(reader), Look::There(get)) => match get.await {
                Ok(stable) => check(&mut reader.seat, ep).and_then(|()| Stable(stable).current()),
                Err(error) => Err(error.into()),
            },
            (Access::Gone(error), _) => Err(error.clone()),
            (Access::There(_), _) => unreachable!("a look is for the tree that has begun it"),
        };
        version.of(self.path())
    }

    /// Reads as of this version follow.
    pub(crate) fn pin(&mut self, version: u64) {
        match self {
            Access::Here(partition) => partition.seat.raise(version),
            Access::There(reader) => {
                reader.known = version;
                reader.seat.raise(version);
            }
            Access::Gone(_) => {}
        }
    }

    /// Keeps the announcement, while this thread reads other trees.
    ///
    /// # Errors
    /// [`SnapshotExpired`](crate::SnapshotExpired)
    pub(crate) fn keep(&mut self, ep: &Endpoint) -> Result<()> {
        let kept = match self {
            Access::Here(partition) => check_here(&mut partition.seat, ep),
            Access::There(reader) => check(&mut reader.seat, ep),
            Access::Gone(error) => return Err(error.clone()),
        };
        kept.of(self.path())
    }

    /// Ends the announcement.
    pub(crate) fn end(&self) {
        match self {
            Access::Here(partition) => partition.seat.clear(),
            Access::There(reader) => reader.seat.clear(),
            Access::Gone(_) => {}
        }
    }

    /// Adds the next pairs of a scan as of a version that is pinned; whether there may be more.
    pub(crate) async fn next(
        &mut self,
        ep: &Endpoint,
        cursor: &mut Cursor<K, V>,
        version: u64,
        into: &mut Vec<(K, V)>,
    ) -> Result<bool> {
        let more = match self {
            Access::Here(Partition { tree, seat, .. }) => {
                let arena = Partition::<K, V>::arena(tree);
                cursor.next(&mut Here { arena, seat, ep, version }, into).await
            }
            Access::There(reader) => cursor.next(&mut reader.fetch(ep, version), into).await,
            Access::Gone(error) => Err(error.clone()),
        };
        more.of(self.path())
    }
}
