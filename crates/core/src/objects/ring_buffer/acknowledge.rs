//! How far the readers of a ring have read.

use std::sync::Arc;

use farfield_fabric::{Endpoint, Instant, NodeId, Region, Word};

use super::Shared;
use crate::error::{ErrorContext, ErrorKind, Result};

/// The positions up to which the readers of a ring have read ([`RingSender::acknowledgements`]). Other tasks of the
/// writer's thread can wait for them while the sender sends.
///
/// [`RingSender::acknowledgements`]: super::RingSender::acknowledgements
///
/// ```
/// # fn main() -> farfield::Result<()> {
/// # let nodes = farfield::local_session(2)?;
/// # let (a, b, writer) = (nodes[0].endpoint()?, nodes[1].endpoint()?, nodes[0].id());
/// # let options = |node: &farfield::Node| farfield::RingOptions::broadcast(node, writer, 1 << 12);
/// # let rings = farfield::on_each(&nodes, |node| farfield::RingBuffer::open(node, "log", options(node)))?;
/// # let (mut sender, mut receiver, mut message) = (rings[0].sender()?, rings[1].receiver()?, Vec::<u8>::new());
/// let read = sender.acknowledgements(); // another task of the thread can wait for it
/// a.block_on(sender.send(&a, b"hello"))?;
/// assert!(read.lowest(&a) < sender.position()); // the reader has not read it yet
/// b.block_on(receiver.recv(&b, &mut message))?;
/// a.block_on(read.wait(&a, sender.position(), a.deadline(), "the greeting to be read"))?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Acknowledgements {
    pub(super) shared: Arc<Shared>,
    pub(super) tails: Region,
}

impl Acknowledgements {
    /// Whether the writer waits for messages that a reader has not read. One that is gone, but not out for good, may
    /// still tell others that it has not read it.
    fn counts(&self, endpoint: &Endpoint, reader: NodeId) -> bool {
        let node = self.shared.object.node();
        node.fenced_error(endpoint, reader).is_none()
    }

    /// The tails, with their readers' nodes.
    pub(super) fn tails(&self) -> impl Iterator<Item = (NodeId, u64)> {
        let readers = self.shared.options.readers.iter();
        let owners = readers.flat_map(|reader| std::iter::repeat_n(reader.0, reader.1));
        owners.zip(self.tails.words(0, self.tails.bytes() / 8).iter().map(Word::load))
    }

    /// The position up to which all readers have read. Dead and departed readers do not count.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let nodes = farfield::local_session(2)?;
    /// # let (a, b, writer) = (nodes[0].endpoint()?, nodes[1].endpoint()?, nodes[0].id());
    /// # let options = |node: &farfield::Node| farfield::RingOptions::broadcast(node, writer, 1 << 12);
    /// # let rings = farfield::on_each(&nodes, |node| farfield::RingBuffer::open(node, "log", options(node)))?;
    /// # let (mut sender, mut receiver, mut message) = (rings[0].sender()?, rings[1].receiver()?, Vec::<u8>::new());
    /// a.block_on(sender.send(&a, b"hello"))?;
    /// assert_eq!(sender.acknowledgements().lowest(&a), 0); // nothing was read
    /// # Ok(()) }
    /// ```
    pub fn lowest(&self, endpoint: &Endpoint) -> u64 {
        let tails = self.tails().filter(|(owner, _)| self.counts(endpoint, *owner)).map(|(_, tail)| tail);
        tails.min().unwrap_or(u64::MAX)
    }

    /// Waits until all readers have read up to `position`. Dead and departed readers do not count. `what` describes the
    /// awaited condition, for the error.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let nodes = farfield::local_session(2)?;
    /// # let (a, b, writer) = (nodes[0].endpoint()?, nodes[1].endpoint()?, nodes[0].id());
    /// # let options = |node: &farfield::Node| farfield::RingOptions::broadcast(node, writer, 1 << 12);
    /// # let rings = farfield::on_each(&nodes, |node| farfield::RingBuffer::open(node, "log", options(node)))?;
    /// # let (mut sender, mut receiver, mut message) = (rings[0].sender()?, rings[1].receiver()?, Vec::<u8>::new());
    /// a.block_on(sender.send(&a, b"hello"))?;
    /// let soon = a.now() + std::time::Duration::from_millis(10);
    /// let waited = a.block_on(sender.acknowledgements().wait(&a, sender.position(), soon, "the greeting to be read"));
    /// assert_eq!(waited.unwrap_err().node(), Some(nodes[1].id())); // its reader has not read it
    /// # Ok(()) }
    /// ```
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
        doing(); // even where no wait follows
        // Those that are dead or departed do not count.
        let none_counts = || (!behind().any(|owner| self.counts(endpoint, owner))).then_some(Ok(()));
        let mut fails = || {
            doing();
            self.shared.check_unasked().err().map(Err)
        };
        match endpoint.wait_until_or(deadline, none_counts, &mut fails).await {
            Ok(done) => done,
            Err(_) => {
                let mut missing: Vec<NodeId> = behind().filter(|owner| self.counts(endpoint, *owner)).collect();
                missing.dedup();
                // The last one has come since the last look.
                if missing.is_empty()
                    && let Some(done) = none_counts().or_else(fails)
                {
                    return done;
                }
                let waited = endpoint.now() - start;
                Err(ErrorKind::Timeout { what: what.into(), waited, missing }).of(self.shared.object.path())
            }
        }
    }
}
