//! Recovery after the writer's node has died: readers may complete their copies of the ring from each other's.

use farfield_fabric::{Endpoint, NodeId, write_words};

use super::RingReceiver;
use crate::error::{ErrorContext, Result};

/// Bytes read at once.
const CHUNK_BYTES: usize = 1 << 14;

impl RingReceiver {
    /// The end of the last message that it has received.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// The end of the last message that has landed here.
    pub fn has_landed(&self) -> u64 {
        self.shared.head.word(0).load()
    }

    /// Gets the messages up to `until` that have landed on another reader's node and not on this one. The writer must
    /// be dead and fenced: none of its writes can land any more ([`MemberStatus::Evicted`](crate::MemberStatus::Evicted)).
    ///
    /// The other copy still holds them. A writer reuses only space that all living readers have acknowledged, which
    /// ends at or before this reader's position.
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
