//! How far the readers of a ring have read.

use std::sync::Arc;

use farfield_fabric::{Endpoint, Instant, NodeId, Region, Word};

use super::Shared;
use crate::error::{ErrorKind, Of, Result};
use crate::mutants;
use crate::mutants::Mutant;

/// The positions up to which the readers of a ring have read.
#[derive(Clone)]
pub(crate) struct Acknowledgements {
    pub(super) shared: Arc<Shared>,
    pub(super) tails: Region,
}

impl Acknowledgements {
    /// Whether what a reader has not read is waited for. One that is gone, but not out for good, may still tell others that
    /// it has not read it.
    fn counts(&self, endpoint: &Endpoint, reader: NodeId) -> bool {
        let node = self.shared.object.node();
        node.silence_of(endpoint, reader).is_none() || mutants::is_on(Mutant::RingDeadReaderAwaited)
    }

    /// The tails, with their readers' nodes.
    pub(super) fn tails(&self) -> impl Iterator<Item = (NodeId, u64)> {
        let readers = self.shared.options.readers.iter();
        let owners = readers.flat_map(|reader| std::iter::repeat_n(reader.0, reader.1));
        owners.zip(self.tails.words(0, self.tails.bytes() / 8).iter().map(Word::load))
    }

    /// The lowest tail of those whose nodes are not gone.
    pub(crate) fn lowest(&self, endpoint: &Endpoint) -> u64 {
        let tails = self.tails().filter(|(owner, _)| self.counts(endpoint, *owner)).map(|(_, tail)| tail);
        let lowest = if mutants::is_on(Mutant::RingFastestReader) { tails.max() } else { tails.min() };
        lowest.unwrap_or(u64::MAX)
    }

    /// Waits until the tails of those whose nodes are not gone are at least `position`.
    pub(crate) async fn wait(&self, endpoint: &Endpoint, position: u64, deadline: Instant, what: &str) -> Result<()> {
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
