//! The stream of chunks from each member to each other one.
//!
//! A link has `slots` buffers at the receiver, used in turn, and one word there:
//!
//! ```text
//! word at R of the link S → R:   low half: chunks that S has sent to R      high half: chunks of R that S has taken
//! ```
//!
//! So one put of the word says that a chunk has been sent, and returns the room of all chunks that were taken.

use farfield_core::toolkit::{ErrorContext, Object, RefusedPause};
use farfield_core::{Error, Result, WaitLimit};
use farfield_fabric::{self as fabric, Endpoint, ErrorKind, Instant, NodeId, Region, RemotePtr, Word};
use zerocopy::IntoBytes;

use crate::errors::{CallShape, DifferentCalls, FailedElsewhere};

/// Bytes of a link's words: the word of its chunks, and the word that is not 0 after a failed call. They fill a cache
/// line, so that two senders do not take it from each other.
pub(crate) const WORDS_BYTES: usize = 64;
const FAILED: usize = 8;

/// Words of a slot before its payload.
pub(crate) const HEADER: usize = CallShape::WORDS;

/// A call that is under way.
pub(crate) struct Call {
    pub(crate) shape: CallShape,
    pub(crate) limit: WaitLimit,
}

impl Call {
    fn deadline(&mut self, endpoint: &Endpoint) -> Instant {
        self.limit.until(endpoint, endpoint.now())
    }
}

/// The links of a member to and from all others.
pub(crate) struct Links {
    pub(crate) object: Object,
    pub(crate) slots: usize,
    /// Words of a slot.
    pub(crate) slot_words: usize,
    /// The slots of the links to this node.
    pub(crate) inbox: Region,
    /// Their words.
    pub(crate) words: Region,
    /// In the order of their ranks.
    pub(crate) peers: Vec<Peer>,
}

/// Another member.
pub(crate) struct Peer {
    pub(crate) node: NodeId,
    /// The slots of this node's link there.
    pub(crate) slots: RemotePtr<u64>,
    /// The words of this node's link there.
    pub(crate) words: RemotePtr<u64>,
    /// Chunks that were sent there.
    pub(crate) sent: u64,
    /// Chunks from there that were taken.
    pub(crate) taken: u64,
    /// How many of those it was told of.
    pub(crate) told: u64,
}

/// The word of a link.
fn word(sent: u64, taken: u64) -> u64 {
    sent & u64::from(u32::MAX) | taken << 32
}

/// How far `count` is behind the chunks that a word says were sent. Halves wrap around; far fewer are under way.
fn unread(word: u64, count: u64) -> u32 {
    (word as u32).wrapping_sub(count as u32)
}

/// How many of `count` sent chunks a word says were not taken yet.
fn under_way(word: u64, count: u64) -> u32 {
    (count as u32).wrapping_sub((word >> 32) as u32)
}

/// Posts something, again and again while it is refused, until the call's deadline.
async fn repeat<T>(
    endpoint: &Endpoint,
    call: &mut Call,
    mut post: impl FnMut() -> fabric::Result<T>,
) -> fabric::Result<T> {
    match post() {
        Err(error) if error.is_refused() => {}
        posted => return posted,
    }
    RefusedPause::default().attempts(endpoint, call.deadline(endpoint), post).await
}

/// Copies words to bytes, of which the last word may have fewer than eight.
fn read_bytes(words: &[Word], into: &mut [u8]) {
    let (whole, rest) = into.as_chunks_mut::<8>();
    for (to, from) in whole.iter_mut().zip(words) {
        *to = from.load().to_ne_bytes();
    }
    if let Some(last) = words.get(whole.len()) {
        rest.copy_from_slice(&last.load().to_ne_bytes()[..rest.len()]);
    }
}

impl Links {
    /// Sends a chunk to each of these members, of which each has to have room for it.
    pub(crate) async fn send(
        &mut self,
        endpoint: &Endpoint,
        call: &mut Call,
        to: impl IntoIterator<Item = usize>,
        payload: &[u8],
    ) -> Result<()> {
        // A word of payload needs no buffer.
        if payload.len() <= 8 {
            let mut image = [0u64; HEADER + 1];
            image[..HEADER].copy_from_slice(&call.shape.words());
            image[HEADER..].as_mut_bytes()[..payload.len()].copy_from_slice(payload);
            for at in to {
                let put = |slot: RemotePtr<u64>| endpoint.put_value(slot.cast(), image).detach();
                self.send_to(endpoint, call, at, put).await?;
            }
            return Ok(());
        }
        let words = HEADER + payload.len().div_ceil(8);
        let mut image = repeat(endpoint, call, || endpoint.buf::<u64>(words)).await?;
        image[..HEADER].copy_from_slice(&call.shape.words());
        image[words - 1] = 0; // the buffer has the contents of an earlier user
        image[HEADER..].as_mut_bytes()[..payload.len()].copy_from_slice(payload);
        for at in to {
            self.send_to(endpoint, call, at, |slot| endpoint.put(slot, &image).detach()).await?;
        }
        Ok(())
    }

    async fn send_to(
        &mut self,
        endpoint: &Endpoint,
        call: &mut Call,
        at: usize,
        put: impl Fn(RemotePtr<u64>) -> fabric::Result<()>,
    ) -> Result<()> {
        // The slot's last chunk has been taken: the receiver read it before it put the word that says so.
        let (sent, slots) = (self.peers[at].sent, self.slots as u32);
        self.wait(endpoint, call, at, "room for a chunk", |word| under_way(word, sent) < slots).await?;
        let Peer { slots, words, sent, taken, told, .. } = &mut self.peers[at];
        let slot = slots.at((*sent % self.slots as u64) as usize * self.slot_words);
        *sent += 1;
        let flag = word(*sent, *taken);
        *told = *taken;
        // Both to one node, in this order: the chunk, then the word that says that it is there (`NRW → NRW`).
        repeat(endpoint, call, || put(slot)).await?;
        repeat(endpoint, call, || endpoint.put_untracked(*words, flag).detach()).await.map_err(Error::from)
    }

    /// Takes the next chunk of a member, which has to have as many bytes.
    pub(crate) async fn take(
        &mut self,
        endpoint: &Endpoint,
        call: &mut Call,
        at: usize,
        into: &mut [u8],
    ) -> Result<()> {
        let (taken, slots) = (self.peers[at].taken, self.slots as u32);
        self.wait(endpoint, call, at, "a chunk", |word| (1..=slots).contains(&unread(word, taken))).await?;
        // The word was read first (`CR → CR`), and the chunk had landed before it.
        let slot = at * self.slots + (taken % self.slots as u64) as usize;
        let words = HEADER + into.len().div_ceil(8);
        let chunk = self.inbox.words(slot * self.slot_words * 8, words);
        let mut header = [0; HEADER];
        fabric::read_words(&chunk[..HEADER], &mut header);
        if header != call.shape.words() {
            let (node, there) = (self.peers[at].node, CallShape::of_words(header));
            let different = DifferentCalls { node, there, here: call.shape };
            return Err(Error::custom(different).about(node));
        }
        read_bytes(&chunk[HEADER..], into);
        self.peers[at].taken += 1;
        self.give_room(endpoint, call, at).await
    }

    /// Tells a member that its chunks were taken, unless a chunk for it will soon say so: it is told of half of its
    /// slots at the latest, so it always has the other half.
    async fn give_room(&mut self, endpoint: &Endpoint, call: &mut Call, at: usize) -> Result<()> {
        let Peer { words, sent, taken, told, .. } = &mut self.peers[at];
        if *taken - *told < self.slots as u64 / 2 {
            return Ok(());
        }
        *told = *taken;
        // The chunks were read first (`CR → NRW`).
        let flag = word(*sent, *taken);
        match repeat(endpoint, call, || endpoint.put_untracked(*words, flag).detach()).await {
            // It needs no room any more. The chunk is here, so this call may end well; a later one may not.
            Err(error) if error.is_unreachable() => Ok(()),
            given => given.map_err(Error::from),
        }
    }

    /// Waits until the word of a member's link satisfies a condition.
    async fn wait(
        &self,
        endpoint: &Endpoint,
        call: &mut Call,
        at: usize,
        what: &str,
        condition: impl Fn(u64) -> bool,
    ) -> Result<()> {
        let flag = self.words.word(at * WORDS_BYTES);
        let is_there = || condition(flag.load()).then_some(Ok(()));
        if is_there().or_else(|| endpoint.spin_until(is_there)).is_some() {
            return Ok(());
        }
        // A member that has left may have sent its last chunk just before.
        let fails = || self.failure(endpoint, Some(at)).map(|error| is_there().unwrap_or(Err(error)));
        let waited = endpoint.wait_until_or(call.deadline(endpoint), is_there, fails).await;
        waited.waiting_for_nodes(what, &[self.peers[at].node])?
    }

    /// Why a call cannot end that waits for a member, or begins. Any of the others may wait for a dead member, and
    /// never send anything again. A member that has left has ended its calls, perhaps this one, too: it is missed by
    /// those only that wait for it.
    pub(crate) fn failure(&self, endpoint: &Endpoint, waits_for: Option<usize>) -> Option<Error> {
        for (at, peer) in self.peers.iter().enumerate() {
            if let Err(gone) = endpoint.check_alive(peer.node) {
                let is_missed = waits_for == Some(at);
                if is_missed || !matches!(gone.kind(), ErrorKind::PeerLeft { .. }) {
                    return Some(gone.into());
                }
            }
        }
        for (at, peer) in self.peers.iter().enumerate() {
            let told = self.words.word(at * WORDS_BYTES + FAILED).load();
            if told != 0 {
                let because_of = told.checked_sub(2).map(|node| NodeId(node as u16));
                let failed = FailedElsewhere { node: peer.node, because_of };
                return Some(Error::custom(failed).about(because_of.unwrap_or(peer.node)));
            }
        }
        self.object.check_unasked().err()
    }

    /// Tells all members that a call has failed here, so that none waits for this one.
    pub(crate) fn tell_failed(&self, endpoint: &Endpoint, error: &Error) {
        let told = error.node().map_or(1, |node| u64::from(node.0) + 2);
        for peer in &self.peers {
            // A member that is not told waits until its deadline.
            let _ = endpoint.put_untracked(peer.words.byte_add(FAILED as u64), told).detach();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_wrap_around() {
        for sent in [0, 7, u64::from(u32::MAX) - 1, u64::from(u32::MAX), 1 << 32, (1 << 33) + 5] {
            for taken in [0, 3, u64::from(u32::MAX), 1 << 32] {
                let there = word(sent, taken);
                assert_eq!((unread(there, sent), under_way(there, taken)), (0, 0));
                assert_eq!((unread(word(sent + 3, taken), sent), under_way(there, taken + 2)), (3, 2));
            }
        }
    }

    #[test]
    fn bytes_come_back_as_they_were() {
        let words = [Word::new(u64::from_ne_bytes(*b"abcdefgh")), Word::new(u64::from_ne_bytes(*b"ijklmnop"))];
        for len in 0..=16 {
            let mut into = vec![0; len];
            read_bytes(&words[..len.div_ceil(8)], &mut into);
            assert_eq!(into, b"abcdefghijklmnop"[..len]);
        }
    }
}
