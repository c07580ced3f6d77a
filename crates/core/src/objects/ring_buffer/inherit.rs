//! Recovery after the writer's node has died: readers may complete their copies of the ring from each other's.

use farfield_fabric::{Endpoint, NodeId, write_words};

use super::RingReceiver;
use crate::error::{ErrorContext, Result};

/// Bytes read at once.
const CHUNK_BYTES: usize = 1 << 14;

impl RingReceiver {
    /// The end of the last message that it has received.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let nodes = farfield::local_session(2)?;
    /// # let (a, b, writer) = (nodes[0].endpoint()?, nodes[1].endpoint()?, nodes[0].id());
    /// # let options = |node: &farfield::Node| farfield::RingOptions::broadcast(node, writer, 1 << 12);
    /// # let rings = farfield::on_each(&nodes, |node| farfield::RingBuffer::open(node, "log", options(node)))?;
    /// # let (mut sender, mut receiver, mut message) = (rings[0].sender()?, rings[1].receiver()?, Vec::<u8>::new());
    /// a.block_on(sender.send(&a, b"hello"))?;
    /// b.block_on(receiver.recv(&b, &mut message))?;
    /// assert_eq!(receiver.position(), sender.position());
    /// # Ok(()) }
    /// ```
    pub fn position(&self) -> u64 {
        self.position
    }

    /// The end of the last message that has landed here.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let nodes = farfield::local_session(2)?;
    /// # let (a, b, writer) = (nodes[0].endpoint()?, nodes[1].endpoint()?, nodes[0].id());
    /// # let options = |node: &farfield::Node| farfield::RingOptions::broadcast(node, writer, 1 << 12);
    /// # let rings = farfield::on_each(&nodes, |node| farfield::RingBuffer::open(node, "log", options(node)))?;
    /// # let (mut sender, mut receiver, mut message) = (rings[0].sender()?, rings[1].receiver()?, Vec::<u8>::new());
    /// a.block_on(sender.send(&a, b"hello"))?;
    /// a.block_on(a.global_fence(nodes[0].others()))?;
    /// assert_eq!(receiver.has_landed(), sender.position()); // whole, but not received yet
    /// # Ok(()) }
    /// ```
    pub fn has_landed(&self) -> u64 {
        self.shared.head.word(0).load()
    }

    /// Gets the messages up to `until` that have landed on another reader's node and not on this one. The writer must
    /// be dead and fenced: none of its writes can land any more
    /// ([`MemberStatus::Evicted`](crate::MemberStatus::Evicted)).
    ///
    /// The other copy still holds them. A writer reuses only space that all living readers have acknowledged, which
    /// ends at or before this reader's position.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let nodes = farfield::local_session(3)?;
    /// # let (ep, writer) = (nodes[1].endpoint()?, nodes[0].id());
    /// # let options = |node: &farfield::Node| farfield::RingOptions::broadcast(node, writer, 1 << 12);
    /// # let rings = farfield::on_each(&nodes, |node| farfield::RingBuffer::open(node, "log", options(node)))?;
    /// # let (mut mine, theirs, other) = (rings[1].receiver()?, rings[2].receiver()?, nodes[2].id());
    /// # let near = nodes[0].endpoint()?;
    /// # near.block_on(rings[0].sender()?.send(&near, b"last words"))?;
    /// # near.block_on(near.global_fence(nodes[0].others()))?;
    /// // The writer is dead and fenced. The other node says how much has landed there.
    /// let until = theirs.has_landed();
    /// mine.complete_from(&ep, other, until)?;
    /// assert!(mine.has_landed() >= until);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The other node is unreachable, or is no reader.
    pub fn complete_from(&mut self, endpoint: &Endpoint, node: NodeId, until: u64) -> Result<()> {
        let shared = &*self.shared;
        let (path, capacity) = (shared.object.path(), shared.options.capacity_bytes);
        let theirs = shared.object.remote::<u64>(node, "ring")?;
        let mut position = self.has_landed();
        while position < until {
            let at = (position % capacity as u64) as usize;
            let bytes = CHUNK_BYTES.min(capacity - at).min((until - position) as usize);
            let into = endpoint.buf::<u64>(bytes / 8).of(path)?;
            let words = endpoint.get_into(theirs.byte_add(at as u64), into).wait().of(path)?;
            write_words(shared.ring.words(at, bytes / 8), &words);
            position += bytes as u64;
        }
        // Stored after the messages, so that a reader that completes its copy from this one finds them.
        shared.head.word(0).store(position);
        Ok(())
    }
}
