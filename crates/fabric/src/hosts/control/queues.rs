//! The bytes of a connection: the received part of the current frame, and the bytes that wait to be sent.

use std::collections::VecDeque;

use super::wire::LENGTH_BYTES;
use crate::local::Instant;

/// What waits for a peer that does not take it is at most so much, and the frames of the protocol itself.
pub(super) const QUEUE_BYTES_MAX: usize = 8 << 20;
/// An empty queue keeps so much of its memory.
const QUEUE_BYTES_KEPT: usize = 256 << 10;

/// Assembles frames from pieces. It never holds more than one, and reserves memory for received bytes only, not for
/// the announced length.
#[derive(Default)]
pub(super) struct Incoming {
    /// The current frame, with its length.
    bytes: Vec<u8>,
    /// When its first byte arrived.
    pub(super) began: Option<Instant>,
}

/// A frame announces more bytes than it may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct TooLong {
    pub(super) said_bytes: usize,
}

impl Incoming {
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Moves bytes from `input` until the frame is whole or the input is empty. A whole frame is returned, without its
    /// length; a frame has at most `frame_bytes_max` bytes with it.
    pub(super) fn take(
        &mut self,
        input: &mut &[u8],
        frame_bytes_max: usize,
        now: Instant,
    ) -> Result<Option<Vec<u8>>, TooLong> {
        if !input.is_empty() {
            self.began.get_or_insert(now);
        }
        self.move_up_to(LENGTH_BYTES, input);
        let Some(length) = self.bytes.first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
        let said_bytes = u32::from_le_bytes(*length) as usize;
        if said_bytes > frame_bytes_max - LENGTH_BYTES {
            return Err(TooLong { said_bytes });
        }
        self.move_up_to(LENGTH_BYTES + said_bytes, input);
        if self.bytes.len() < LENGTH_BYTES + said_bytes {
            return Ok(None);
        }
        self.began = None;
        let mut frame = std::mem::take(&mut self.bytes);
        frame.drain(..LENGTH_BYTES);
        Ok(Some(frame))
    }

    fn move_up_to(&mut self, len: usize, input: &mut &[u8]) {
        let missing = len.saturating_sub(self.bytes.len()).min(input.len());
        let (head, tail) = input.split_at(missing);
        self.bytes.extend_from_slice(head);
        *input = tail;
    }
}

/// What waits to be sent, in order.
#[derive(Default)]
pub(super) struct Outgoing(VecDeque<u8>);

impl Outgoing {
    /// Adds a frame, with its length.
    pub(super) fn push(&mut self, frame: &[u8], tag: &[u8]) {
        let len = (frame.len() + tag.len()) as u32;
        self.0.extend(&len.to_le_bytes());
        self.0.extend(frame);
        self.0.extend(tag);
    }

    pub(super) fn has_room_for(&self, bytes: usize) -> bool {
        self.0.len() + bytes <= QUEUE_BYTES_MAX
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next bytes to send; none if there are none.
    pub(super) fn next(&self) -> &[u8] {
        match self.0.as_slices() {
            ([], tail) => tail,
            (head, _) => head,
        }
    }

    /// So many of them were sent.
    pub(super) fn sent(&mut self, bytes: usize) {
        self.0.drain(..bytes);
        if self.0.is_empty() {
            self.0.shrink_to(QUEUE_BYTES_KEPT);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant { ns: 5 };

    fn framed(frames: &[&[u8]]) -> Vec<u8> {
        let mut out = Outgoing::default();
        for frame in frames {
            out.push(&frame[..frame.len() / 2], &frame[frame.len() / 2..]);
        }
        let mut bytes = Vec::new();
        while !out.is_empty() {
            bytes.push(out.next()[0]);
            out.sent(1);
        }
        bytes
    }

    #[test]
    fn frames_come_whole_however_they_are_cut() {
        let frames: [&[u8]; 4] = [b"one", b"", b"three and more", &[7; 1000]];
        let bytes = framed(&frames);
        for cut in 1..bytes.len() {
            let mut incoming = Incoming::default();
            let mut got = Vec::new();
            for mut piece in bytes.chunks(cut) {
                while !piece.is_empty() {
                    got.extend(incoming.take(&mut piece, 2000, NOW).unwrap());
                }
            }
            assert_eq!(got, frames, "pieces of {cut}");
            assert_eq!(incoming.began, None);
        }
    }

    #[test]
    fn a_frame_is_refused_for_its_length_before_it_has_come() {
        let mut incoming = Incoming::default();
        let mut input = &[0xfd, 3, 0, 0][..];
        assert_eq!(incoming.take(&mut input, 1024, NOW), Err(TooLong { said_bytes: 1021 }));
        let mut incoming = Incoming::default();
        let mut input = &[0xff; 9][..];
        assert_eq!(incoming.take(&mut input, 64 << 10, NOW), Err(TooLong { said_bytes: u32::MAX as usize }));
        let mut incoming = Incoming::default();
        let mut input = &[0xfc, 3, 0, 0, 1][..];
        assert_eq!(incoming.take(&mut input, 1024, NOW), Ok(None));
        assert_eq!((incoming.began, incoming.bytes.len()), (Some(NOW), 5));
        assert!(incoming.bytes.capacity() < 100, "memory is taken for what comes, not for what is said");
    }

    #[test]
    fn the_time_of_a_frame_is_that_of_its_first_byte() {
        let bytes = framed(&[b"one", b"two"]);
        let mut incoming = Incoming::default();
        let mut input = &bytes[..8];
        assert_eq!(incoming.take(&mut input, 100, Instant { ns: 1 }), Ok(Some(b"one".to_vec())));
        assert_eq!(incoming.began, None);
        assert_eq!(incoming.take(&mut input, 100, Instant { ns: 2 }), Ok(None));
        assert_eq!(incoming.take(&mut &bytes[8..10], 100, Instant { ns: 3 }), Ok(None));
        assert_eq!(incoming.began, Some(Instant { ns: 2 }));
    }

    #[test]
    fn the_queue_is_bounded() {
        let mut out = Outgoing::default();
        assert!(out.has_room_for(QUEUE_BYTES_MAX) && !out.has_room_for(QUEUE_BYTES_MAX + 1));
        out.push(&[1; 1000], &[]);
        assert!(!out.has_room_for(QUEUE_BYTES_MAX - 1000));
        out.sent(1004);
        assert!(out.has_room_for(QUEUE_BYTES_MAX));
    }
}
