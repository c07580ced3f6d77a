//! Messages between a lane and a node: requests, and replies. Each is a list of words, as the processor has them; both
//! sides are x86-64.
//!
//! ```text
//! request  target   place   length | verb << 32   operands, or the bytes of a put, filled up to whole words
//! reply    position   status | code << 8 | length << 32   the bytes of a get, or the old word of an atomic
//! ```
//!
//! The requests of a lane to a node are counted from 1 on: that is their *position*. A reply stands for all requests up
//! to its position that need none of their own.

use std::collections::BTreeMap;

use crate::error::Code;
use crate::lane::{Verb, copy_words};
use crate::ptr::RemotePtr;

/// The identifier of messages with requests.
pub(super) const REQUESTS: u16 = 1;
/// The identifier of messages with replies.
pub(super) const REPLIES: u16 = 2;

/// The most bytes that a request moves: longer operations are done in pieces.
pub(super) const PIECE_BYTES: usize = 1 << 20;
/// A message gets no more requests or replies when it has as many words.
pub(super) const MESSAGE_WORDS: usize = 8 << 10;

/// The most bytes under way from a lane to a node: what a request moves, and as much for each as it takes itself. The
/// lane counts a request until its reply has come. A node refuses a lane that does not keep to it.
pub(super) const WINDOW_BYTES: usize = 4 << 20;
pub(super) const REQUEST_BYTES: usize = 64;
/// The header of a message.
pub(super) const HEADER_BYTES: usize = 16;

/// Why a peer that breaks the rules is refused.
pub(super) type Breach = &'static str;

/// What stands before the words of a message: the lane or the node that it is from, and its number, from 0 on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Header {
    pub(super) from: u64,
    pub(super) number: u64,
}

impl Header {
    pub(super) fn encode(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&self.from.to_ne_bytes());
        bytes[8..].copy_from_slice(&self.number.to_ne_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Header> {
        let (words, []) = bytes.as_chunks::<8>() else { return None };
        let &[from, number] = words else { return None };
        Some(Header { from: u64::from_ne_bytes(from), number: u64::from_ne_bytes(number) })
    }
}

/// The words of a message that came, which may be at any address.
pub(super) fn words_of(bytes: &[u8]) -> Option<Vec<u64>> {
    let (words, []) = bytes.as_chunks::<8>() else { return None };
    Some(words.iter().map(|word| u64::from_ne_bytes(*word)).collect())
}

/// The words as bytes, to be sent.
pub(super) fn bytes_of(words: &[u64]) -> &[u8] {
    zerocopy::IntoBytes::as_bytes(words)
}

/// One request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Request<'m> {
    /// The target that it uses.
    pub(super) target: u64,
    pub(super) verb: Verb,
    pub(super) remote: RemotePtr<u8>,
    /// At most [`PIECE_BYTES`]; 8 for atomics.
    pub(super) len: usize,
    /// As [`WorkRequest`](crate::WorkRequest) has them.
    pub(super) operands: [u64; 2],
    /// Of a put: at least `len` bytes.
    pub(super) data: &'m [u64],
}

impl<'m> Request<'m> {
    /// Adds a request to a message, but for the bytes of a put: the room for them is the result.
    pub(super) fn encode(&self, message: &mut Vec<u64>) -> *mut u8 {
        let verb: u64 = match self.verb {
            Verb::Put => 0,
            Verb::Get | Verb::RemoteFence => 1,
            Verb::Cas => 2,
            Verb::Faa => 3,
        };
        debug_assert!(self.len <= PIECE_BYTES);
        message.extend_from_slice(&[self.target, self.remote.packed(), self.len as u64 | verb << 32]);
        let [a, b] = self.operands;
        match self.verb {
            Verb::Put => room(message, self.len),
            Verb::Cas => {
                message.extend_from_slice(&[a, b]);
                core::ptr::null_mut()
            }
            Verb::Faa => {
                message.push(a);
                core::ptr::null_mut()
            }
            Verb::Get | Verb::RemoteFence => core::ptr::null_mut(),
        }
    }

    /// Takes the first request of a message; none if that is no request.
    pub(super) fn take(message: &mut &'m [u64]) -> Option<Request<'m>> {
        let (&[target, packed, what], rest) = message.split_first_chunk::<3>()?;
        let len = what as u32 as usize;
        let (verb, operands, data, rest) = match what >> 32 {
            0 => {
                let (data, rest) = rest.split_at_checked(len.div_ceil(8))?;
                (Verb::Put, [0; 2], data, rest)
            }
            1 => (Verb::Get, [0; 2], &[][..], rest),
            2 => {
                let (operands, rest) = rest.split_first_chunk::<2>()?;
                (Verb::Cas, *operands, &[][..], rest)
            }
            3 => {
                let (addend, rest) = rest.split_first()?;
                (Verb::Faa, [*addend, 0], &[][..], rest)
            }
            _ => return None,
        };
        if len > PIECE_BYTES || matches!(verb, Verb::Cas | Verb::Faa) && len != 8 {
            return None;
        }
        *message = rest;
        Some(Request { target, verb, remote: RemotePtr::from_packed(packed), len, operands, data })
    }
}

/// How a request has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    /// It was done.
    Done,
    /// It alone was not done.
    Failed(Code),
    /// It was not done, and none behind it by the same target will be.
    Ended(Code),
}

/// One reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Reply<'m> {
    pub(super) position: u64,
    pub(super) outcome: Outcome,
    pub(super) len: usize,
    /// At least `len` bytes.
    pub(super) data: &'m [u64],
}

impl<'m> Reply<'m> {
    /// Adds a reply to a message, but for its bytes: the room for them is the result.
    pub(super) fn encode(&self, message: &mut Vec<u64>) -> *mut u8 {
        let outcome = match self.outcome {
            Outcome::Done => 0,
            Outcome::Failed(code) => 1 | (code as u64) << 8,
            Outcome::Ended(code) => 2 | (code as u64) << 8,
        };
        message.extend_from_slice(&[self.position, outcome | (self.len as u64) << 32]);
        room(message, self.len)
    }

    /// Takes the first reply of a message; none if that is no reply.
    pub(super) fn take(message: &mut &'m [u64]) -> Option<Reply<'m>> {
        let (&[position, what], rest) = message.split_first_chunk::<2>()?;
        let len = (what >> 32) as usize;
        let (data, rest) = rest.split_at_checked(len.div_ceil(8))?;
        let outcome = match (what as u8, code_of((what >> 8) as u8)) {
            (0, _) => Outcome::Done,
            (1, code) => Outcome::Failed(code),
            (2, code) => Outcome::Ended(code),
            _ => return None,
        };
        *message = rest;
        Some(Reply { position, outcome, len, data })
    }
}

/// The codes that a target refuses with.
fn code_of(byte: u8) -> Code {
    let codes = [Code::BadKey, Code::OutOfBounds, Code::Misaligned, Code::Revoked, Code::Freed];
    codes.into_iter().find(|code| *code as u8 == byte).unwrap_or(Code::Unreachable)
}

/// Room for so many bytes behind the words of a message.
fn room(message: &mut Vec<u64>, len: usize) -> *mut u8 {
    let at = message.len();
    message.resize(at + len.div_ceil(8), 0);
    message[at..].as_mut_ptr().cast()
}

/// Writes bytes of a message to memory, word by word.
///
/// # Safety
/// The memory is aligned to 8 and valid for `len` bytes; it is accessed by atomics only, or by no other code.
pub(super) unsafe fn write_data(words: &[u64], to: *mut u8, len: usize) {
    use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};
    let (whole, rest) = words[..len.div_ceil(8)].split_at(len / 8);
    for (at, word) in whole.iter().enumerate() {
        // SAFETY: by the contract of this function.
        unsafe { AtomicU64::from_ptr(to.cast::<u64>().add(at)) }.store(*word, Ordering::Release);
    }
    for (at, byte) in bytes_of(rest).iter().take(len % 8).enumerate() {
        // SAFETY: as above.
        unsafe { AtomicU8::from_ptr(to.add(len / 8 * 8 + at)) }.store(*byte, Ordering::Release);
    }
}

/// Does an operation on memory by this processor. `local` has the bytes of a put, and gets those of a get or the old
/// word of an atomic.
///
/// # Safety
/// Both ends are aligned to 8 and valid for `len` bytes, 8 for atomics; each is accessed by atomics only, or by no
/// other code.
pub(super) unsafe fn perform(verb: Verb, at: *mut u8, local: *mut u8, len: usize, operands: [u64; 2]) {
    use core::sync::atomic::{AtomicU64, Ordering, fence};
    let [a, b] = operands;
    // SAFETY: by the contract of this function.
    unsafe {
        match verb {
            Verb::Put => copy_words(local, at, len),
            Verb::Get | Verb::RemoteFence => {
                // Earlier stores of this thread, the puts before it, are visible to all before it reads.
                fence(Ordering::SeqCst);
                copy_words(at, local, len);
            }
            Verb::Cas => {
                let swap = AtomicU64::from_ptr(at.cast()).compare_exchange(a, b, Ordering::SeqCst, Ordering::SeqCst);
                local.cast::<u64>().write_unaligned(swap.unwrap_or_else(|found| found));
            }
            Verb::Faa => {
                let old = AtomicU64::from_ptr(at.cast()).fetch_add(a, Ordering::SeqCst);
                local.cast::<u64>().write_unaligned(old);
            }
        }
    }
}

/// Messages in the order of their numbers: UCX delivers them so over TCP, and does not promise it.
#[derive(Default)]
pub(super) struct InOrder {
    next: u64,
    early: BTreeMap<u64, Vec<u64>>,
    /// Of those that are early, with their headers.
    early_bytes: usize,
}

impl InOrder {
    /// Whether nothing is early.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.early.is_empty()
    }

    /// A message has arrived: it and those that have waited for it are taken, if it is their turn. A second one with
    /// the same number is dropped.
    ///
    /// # Errors
    /// One was not taken, and why; or more bytes are early than can be under way.
    pub(super) fn arrived(
        &mut self,
        number: u64,
        message: Vec<u64>,
        mut take: impl FnMut(&[u64]) -> Result<(), Breach>,
    ) -> Result<(), Breach> {
        if number > self.next && !self.early.contains_key(&number) {
            self.early_bytes += message_bytes(&message);
            if self.early_bytes > WINDOW_BYTES {
                return Err("more of its bytes have come early than may be under way");
            }
            self.early.insert(number, message);
        } else if number == self.next {
            take(&message)?;
            self.next += 1;
            while let Some(message) = self.early.remove(&self.next) {
                self.early_bytes -= message_bytes(&message);
                take(&message)?;
                self.next += 1;
            }
        }
        Ok(())
    }
}

/// With its header. Those of all messages under way are fewer than their requests count.
pub(super) fn message_bytes(words: &[u64]) -> usize {
    HEADER_BYTES + size_of_val(words)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ptr::{GroupKey, NodeId};

    fn request<'m>(verb: Verb, len: usize, data: &'m [u64]) -> Request<'m> {
        let operands = match verb {
            Verb::Cas => [3, 4],
            Verb::Faa => [3, 0],
            _ => [0; 2],
        };
        Request { target: 7, verb, remote: RemotePtr::new(NodeId(2), GroupKey(1), 64), len, operands, data }
    }

    #[test]
    fn requests_and_replies_survive_the_wire_and_nothing_less_is_one() {
        let words = [1, 2, 3];
        let requests = [
            request(Verb::Put, 20, &words),
            request(Verb::Get, 4000, &[]),
            request(Verb::Cas, 8, &[]),
            request(Verb::Put, 0, &[]),
            request(Verb::Faa, 8, &[]),
        ];
        let mut message = Vec::new();
        let mut ends = Vec::new();
        for request in &requests {
            let room = request.encode(&mut message);
            if request.verb == Verb::Put {
                // SAFETY: the room is of whole words, and nothing else uses it.
                unsafe { core::ptr::copy_nonoverlapping(request.data.as_ptr(), room.cast(), request.data.len()) };
            }
            ends.push(message.len());
        }
        let mut rest = &message[..];
        for request in &requests {
            assert_eq!(Request::take(&mut rest), Some(*request));
        }
        assert!(rest.is_empty());
        for end in 0..message.len() {
            let mut rest = &message[..end];
            let whole = core::iter::from_fn(|| Request::take(&mut rest)).count();
            assert_eq!(whole, ends.iter().filter(|whole| **whole <= end).count(), "of {end} words");
        }
        for outcome in [Outcome::Done, Outcome::Failed(Code::Freed), Outcome::Ended(Code::OutOfBounds)] {
            let mut message = Vec::new();
            Reply { position: 9, outcome, len: 12, data: &[] }.encode(&mut message);
            let data = [0, 0];
            let mut rest = &message[..];
            assert_eq!(Reply::take(&mut rest), Some(Reply { position: 9, outcome, len: 12, data: &data }));
            assert_eq!((rest, Reply::take(&mut &message[..3])), (&[][..], None));
        }
    }

    #[test]
    fn messages_are_taken_in_the_order_of_their_numbers() {
        let mut order = InOrder::default();
        let mut seen = Vec::new();
        for number in [1, 0, 0, 4, 3, 1, 2] {
            let take = |message: &[u64]| {
                seen.push(message[0]);
                Ok(())
            };
            order.arrived(number, vec![number], take).unwrap();
        }
        assert_eq!((seen, order.early_bytes), (vec![0, 1, 2, 3, 4], 0));
        assert_eq!(order.arrived(5, vec![5], |_| Err("not that")), Err("not that"));
    }

    #[test]
    fn no_more_bytes_are_early_than_can_be_under_way() {
        for words in [0, 1, 1000] {
            let mut order = InOrder::default();
            let most = WINDOW_BYTES / (HEADER_BYTES + 8 * words);
            for number in 1..=most as u64 {
                // A second one of the same number counts for nothing.
                for _ in 0..2 {
                    order.arrived(number, vec![7; words], |_| unreachable!("the first one is missing")).unwrap();
                }
            }
            let breach = order.arrived(most as u64 + 1, vec![7; words], |_| Ok(())).unwrap_err();
            assert!(breach.contains("early"), "{breach}");
        }
    }

    /// Bytes of a lane within its window, as the lane counts them, are within the bounds of the node.
    #[test]
    fn messages_and_replies_take_no_more_bytes_than_their_requests_count() {
        for verb in [Verb::Put, Verb::Get, Verb::Cas, Verb::Faa] {
            let lens = if matches!(verb, Verb::Put | Verb::Get) { 0..200 } else { 8..9 };
            for len in lens {
                let (mut message, mut reply) = (Vec::new(), Vec::new());
                request(verb, len, &[]).encode(&mut message);
                let brought = if verb == Verb::Put { 0 } else { len };
                Reply { position: 1, outcome: Outcome::Done, len: brought, data: &[] }.encode(&mut reply);
                let counted = len + REQUEST_BYTES;
                assert!(message_bytes(&message) <= counted && message_bytes(&reply) <= counted, "{verb:?}: {len}");
            }
        }
    }

    proptest! {
        #[test]
        fn any_words_are_requests_or_none(words: Vec<u64>) {
            let mut rest = &words[..];
            while let Some(request) = Request::take(&mut rest) {
                prop_assert!(request.len <= PIECE_BYTES && request.data.len() <= words.len());
            }
            let mut rest = &words[..];
            while let Some(reply) = Reply::take(&mut rest) {
                prop_assert!(reply.len.div_ceil(8) == reply.data.len());
            }
        }

        #[test]
        fn headers_survive_the_wire(from: u64, number: u64, bytes: Vec<u8>) {
            let header = Header { from, number };
            prop_assert_eq!(Header::decode(&header.encode()), Some(header));
            prop_assert!(bytes.len() == 16 || Header::decode(&bytes).is_none());
        }
    }
}
