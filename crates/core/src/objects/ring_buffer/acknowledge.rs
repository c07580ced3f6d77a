//! How far the readers of a ring have read.

use std::sync::Arc;

use farfield_fabric::{Endpoint, Instant, NodeId, Region, Word};

use super::Shared;
use crate::error::{ErrorContext, ErrorKind, Result};
use crate::mutants;

/// The positions up to which the readers of a ring have read ([`RingSender::acknowledgements`]). Other tasks of the
/// writer's thread can wait for them while the sender sends.
///
/// [`RingSender::acknowledgements`]: super::RingSender::acknowledgements
#[derive(Clone)]
pub struct Acknowledgements {
    pub(super) shared: Arc<Shared>,
    pub(super) tails: Region,
}

impl Acknowledgements {
    /// Whether what a reader has not read is waited for. One that is gone, but not out for good, may still tell others that
    /// it has not read it.
    fn counts(&self, endpoint: &Endpoint, reader: NodeId) -> bool {
        let node = self.shared.object.node();
        node.fenced_error(endpoint, reader).is_none() || mutants::RING_DEAD_READER_AWAITED.is_on()
    }

    /// The tails, with their readers' nodes.
    pub(super) fn tails(&self) -> impl Iterator<Item = (NodeId, u64)> {
        let readers = self.shared.options.readers.iter();
        let owners = readers.flat_map(|reader| std::iter::repeat_n(reader.0, reader.1));
        owners.zip(self.tails.words(0, self.tails.bytes() / 8).iter().map(Word::load))
    }

    /// The position up to which all readers have read. Dead and departed readers do not count.
    pub fn lowest(&self, endpoint: &Endpoint) -> u64 {
        let tails = self.tails().filter(|(owner, _)| self.counts(endpoint, *owner)).map(|(_, tail)| tail);
        let lowest = if mutants::RING_FASTEST_READER.is_on() { tails.max() } else { tails.min() };
        lowest.unwrap_or(u64::MAX)
    }

    /// Waits until all readers have read up to `position`. Dead and departed readers do not count. `what` describes the
    /// awaited condition, for the error.
    ///
    /// # Errors
    /// A timeout that names the readers which have not, or the ring was reopened.
    pub async fn wait(&self, endpoint: &Endpoint, position: u64, deadline: Instant, what: &str) -> Result<()> {
        self.wait_while(endpoint, position, deadline, what, || ()).await
    }

    /// [`Acknowledgements::wait`], doing something at each look.
    pub(super) async fn wait_while(
        &self,
        endpoint: &Endpoint,
        position: u64,
        deadline: Instant,
        what: &str,
        mut doing: impl FnMut(),
    ) -> Result<()> {
        let behind = || self.tails().filter(|(_, tail)| *tail < position).map(|(owner, _)| owner);
        let start = endpoint.now();
        let look = || {
            doing();
            match behind().any(|owner| self.counts(endpoint, owner)) {
                true => self.shared.check_unasked().err().map(Err),
                false => Some(Ok(())),
            }
        };
        match endpoint.wait_until(deadline, look).await {
            Ok(done) => done,
            Err(_) => {
                let mut missing: Vec<NodeId> = behind().filter(|owner| self.counts(endpoint, *owner)).collect();
                missing.dedup();
                let waited = endpoint.now() - start;
                Err(ErrorKind::Timeout { what: what.into(), waited, missing }).of(self.shared.object.path())
            }
        }
    }
}
