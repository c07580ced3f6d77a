//! What travels on a connection of the control plane, byte by byte.
//!
//! ```text
//! frame      length u32 | kind u8 | body | tag 32     the length is of all that follows it; numbers are little-endian
//! text       length u8 | UTF-8 without control characters
//!
//! kind       body                                                                            tag
//! 1 hello    "FARFIELD" version u16 | layout text | session text | node u16 | place u16 |    no
//!            to u16 | places u16 | incarnation u64 | nonce 32
//! 2 proof    32 bytes                                                                        no
//! 3 refusal  reason u8 | what it says, see `refusal`                                         no
//! 4 beat     nothing                                                                         yes
//! 5 goodbye  nothing                                                                         yes
//! 6 payload  bytes of the fabric                                                             yes
//! 7 message  bytes of the layers above                                                       yes
//! ```
//!
//! A frame has [`FRAME_BYTES_MAX`] bytes at most, one before the peer has proved its identity [`GREETING_BYTES_MAX`].
//! Every value has one encoding only, and nothing may follow it. Magic and version of a hello, and the refusal of a
//! version, stay as they are in all versions, so that two builds can report why they do not fit.

use std::fmt;

use super::codec::{Malformed, Rest, put_name};
use super::refusal::Refusal;
use crate::ptr::NodeId;

/// The version of this protocol.
pub(super) const VERSION: u16 = 1;
/// The length before each frame.
pub(super) const LENGTH_BYTES: usize = 4;
/// The tag after each frame of an open connection.
pub(super) const TAG_BYTES: usize = 32;

const MAGIC: &[u8; 8] = b"FARFIELD";

const HELLO: u8 = 1;
const PROOF: u8 = 2;
const REFUSAL: u8 = 3;
const BEAT: u8 = 4;
const GOODBYE: u8 = 5;
const PAYLOAD: u8 = 6;
const MESSAGE: u8 = 7;

/// One frame, without its length and its tag.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Frame<'a> {
    Hello(Hello),
    /// That the sender knows the secret.
    Proof([u8; 32]),
    Refusal(Refusal),
    Beat,
    Goodbye,
    Payload(&'a [u8]),
    Message(&'a [u8]),
}

/// The first message of a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Hello {
    /// The layout of the fabric's memory and payloads.
    pub layout: String,
    /// The session.
    pub session: String,
    /// The node's number.
    pub node: NodeId,
    /// Its place.
    pub place: u16,
    /// How many places the session has.
    pub places: u16,
    /// Which process it is.
    pub incarnation: u64,
    /// The place that it believes to talk to.
    pub(super) to: u16,
    /// Never the same twice, so that no proof is of use for another connection.
    pub(super) nonce: [u8; 32],
}

impl Frame<'_> {
    /// Appends kind and body.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Frame::Hello(hello) => {
                out.push(HELLO);
                out.extend_from_slice(MAGIC);
                out.extend_from_slice(&VERSION.to_le_bytes());
                put_name(out, &hello.layout);
                put_name(out, &hello.session);
                for number in [hello.node.0, hello.place, hello.to, hello.places] {
                    out.extend_from_slice(&number.to_le_bytes());
                }
                out.extend_from_slice(&hello.incarnation.to_le_bytes());
                out.extend_from_slice(&hello.nonce);
            }
            Frame::Proof(proof) => {
                out.push(PROOF);
                out.extend_from_slice(proof);
            }
            Frame::Refusal(refusal) => {
                out.push(REFUSAL);
                refusal.encode(out);
            }
            Frame::Beat => out.push(BEAT),
            Frame::Goodbye => out.push(GOODBYE),
            Frame::Payload(bytes) => {
                out.push(PAYLOAD);
                out.extend_from_slice(bytes);
            }
            Frame::Message(bytes) => {
                out.push(MESSAGE);
                out.extend_from_slice(bytes);
            }
        }
    }

    /// Reads kind and body, and nothing but them.
    pub(super) fn decode(bytes: &[u8]) -> Result<Frame<'_>, Malformed> {
        let mut rest = Rest(bytes);
        let frame = match rest.u8()? {
            HELLO => Frame::Hello(Hello::decode(&mut rest)?),
            PROOF => Frame::Proof(rest.array()?),
            REFUSAL => Frame::Refusal(Refusal::decode(&mut rest)?),
            BEAT => Frame::Beat,
            GOODBYE => Frame::Goodbye,
            PAYLOAD => Frame::Payload(rest.message()?),
            MESSAGE => Frame::Message(rest.message()?),
            kind => return Err(Malformed::Kind(kind)),
        };
        match rest.0.len() {
            0 => Ok(frame),
            more => Err(Malformed::Trailing(more)),
        }
    }
}

impl Hello {
    fn decode(rest: &mut Rest<'_>) -> Result<Hello, Malformed> {
        if rest.take(MAGIC.len())? != MAGIC {
            return Err(Malformed::Magic);
        }
        let version = rest.u16()?;
        if version != VERSION {
            return Err(Malformed::Version(version));
        }
        let (layout, session) = (rest.name()?, rest.name()?);
        let (node, place, to, places) = (NodeId(rest.u16()?), rest.u16()?, rest.u16()?, rest.u16()?);
        let incarnation = u64::from_le_bytes(rest.array()?);
        Ok(Hello { layout, session, node, place, places, incarnation, to, nonce: rest.array()? })
    }
}

impl fmt::Display for Hello {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at place {} (incarnation {:#x})", self.node, self.place, self.incarnation)
    }
}

#[cfg(test)]
mod tests {
    use super::super::codec::{FRAME_BYTES_MAX, GREETING_BYTES_MAX, NAME_BYTES_MAX};
    use super::super::refusal::tests::refusals;
    use super::*;
    use crate::fabric::CONTROL_BYTES_MAX;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn encoded(frame: &Frame<'_>) -> Vec<u8> {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        bytes
    }

    fn hello() -> Hello {
        Hello {
            layout: "farfield-verbs-1".into(),
            session: "night".into(),
            node: NodeId(5),
            place: 2,
            places: 3,
            incarnation: 0x1234_5678_9abc_def0,
            to: 1,
            nonce: [7; 32],
        }
    }

    #[test]
    fn the_bytes_are_those_of_the_drawing() {
        let bytes = encoded(&Frame::Hello(hello()));
        let expected = [
            &[1][..],
            b"FARFIELD\x01\0\x10farfield-verbs-1\x05night\x05\0\x02\0\x01\0\x03\0",
            &[0xf0, 0xde, 0xbc, 0x9a, 0x78, 0x56, 0x34, 0x12],
            &[7; 32],
        ];
        assert_eq!(bytes, expected.concat());
        assert_eq!(encoded(&Frame::Proof([9; 32])), [&[2][..], &[9; 32]].concat());
        assert_eq!(encoded(&Frame::Refusal(Refusal::Version { refuser: 1, refused: 2 })), [3, 1, 1, 0, 2, 0]);
        assert_eq!(encoded(&Frame::Refusal(Refusal::Secret)), [3, 8]);
        assert_eq!((encoded(&Frame::Beat), encoded(&Frame::Goodbye)), (vec![4], vec![5]));
        assert_eq!(encoded(&Frame::Payload(b"qp")), b"\x06qp");
        assert_eq!(encoded(&Frame::Message(b"")), b"\x07");
    }

    #[test]
    fn every_refusal_comes_back_and_gives_advice() {
        for (refusal, reason) in refusals().into_iter().zip(1u8..) {
            assert_eq!(refusal.reason(), reason);
            let bytes = encoded(&Frame::Refusal(refusal.clone()));
            assert_eq!(Frame::decode(&bytes), Ok(Frame::Refusal(refusal.clone())));
            for cut in 0..bytes.len() {
                assert_eq!(Frame::decode(&bytes[..cut]), Err(Malformed::Short), "{refusal}, cut at {cut}");
            }
            assert!(refusal.to_string().contains(':') || refusal.to_string().contains('.'), "{refusal}");
        }
    }

    #[test]
    fn a_hello_that_is_cut_damaged_or_prolonged_is_refused() {
        let bytes = encoded(&Frame::Hello(hello()));
        for cut in 0..bytes.len() {
            assert_eq!(Frame::decode(&bytes[..cut]), Err(Malformed::Short), "cut at {cut}");
        }
        assert_eq!(Frame::decode(&[&bytes[..], &[0, 0]].concat()), Err(Malformed::Trailing(2)));
        let with = |at: usize, byte: u8| {
            let mut bytes = bytes.clone();
            bytes[at] = byte;
            Frame::decode(&bytes).map(|_| ())
        };
        assert_eq!(with(1, b'f'), Err(Malformed::Magic));
        assert_eq!(with(9, 2), Err(Malformed::Version(2)));
        assert_eq!(with(12, b'\n'), Err(Malformed::Name), "nobody writes lines into our log");
        assert_eq!(with(12, 0xff), Err(Malformed::Name));
        // Of another version nothing but the version is read.
        assert_eq!(Frame::decode(b"\x01FARFIELD\x02\x01and more"), Err(Malformed::Version(258)));
    }

    #[test]
    fn malformed_frames_are_refused() {
        let refused = |bytes: &[u8]| Frame::decode(bytes).unwrap_err();
        assert_eq!(refused(&[]), Malformed::Short);
        assert_eq!(refused(&[0]), Malformed::Kind(0));
        assert_eq!(refused(b"GET / HTTP/1.1"), Malformed::Kind(b'G'));
        assert_eq!(refused(&[PROOF; 40]), Malformed::Trailing(7));
        assert_eq!(refused(&[REFUSAL, 0]), Malformed::Reason(0));
        assert_eq!(refused(&[REFUSAL, 99]), Malformed::Reason(99));
        assert_eq!(refused(&[REFUSAL, 8, 1]), Malformed::Trailing(1));
        assert_eq!(refused(&[BEAT, 0]), Malformed::Trailing(1));
        assert_eq!(refused(&[GOODBYE, 0]), Malformed::Trailing(1));
        let mut long = vec![MESSAGE; CONTROL_BYTES_MAX + 2];
        assert_eq!(refused(&long), Malformed::Long(CONTROL_BYTES_MAX + 1));
        long[0] = PAYLOAD;
        assert_eq!(refused(&long), Malformed::Long(CONTROL_BYTES_MAX + 1));
        assert!(Frame::decode(&long[..=CONTROL_BYTES_MAX]).is_ok());
    }

    #[test]
    fn the_longest_of_each_kind_fits_into_its_bound() {
        let name = "x".repeat(NAME_BYTES_MAX);
        let longest = Hello { layout: name.clone(), session: name.clone(), ..hello() };
        assert!(LENGTH_BYTES + encoded(&Frame::Hello(longest)).len() <= GREETING_BYTES_MAX);
        let longest = Refusal::Session { refuser: name.clone(), refused: name };
        assert!(LENGTH_BYTES + encoded(&Frame::Refusal(longest)).len() <= GREETING_BYTES_MAX);
        const { assert!(LENGTH_BYTES + 1 + CONTROL_BYTES_MAX + TAG_BYTES <= FRAME_BYTES_MAX) };
    }

    fn any_refusal() -> impl Strategy<Value = Refusal> {
        let text = "\\PC{0,60}";
        (0..refusals().len(), text, text, any::<u16>(), any::<u16>()).prop_map(|(kind, text, other, a, b)| {
            match refusals().swap_remove(kind) {
                Refusal::Layout { .. } => Refusal::Layout { refuser: text, refused: other },
                Refusal::Session { .. } => Refusal::Session { refuser: text, refused: other },
                Refusal::Version { .. } => Refusal::Version { refuser: a, refused: b },
                Refusal::Stale { .. } => Refusal::Stale { node: NodeId(a), next: NodeId(b) },
                refusal => refusal,
            }
        })
    }

    fn any_hello() -> impl Strategy<Value = Hello> {
        let numbers = (any::<u16>(), any::<u16>(), any::<u16>(), any::<u16>(), any::<u64>());
        ("\\PC{0,60}", "\\PC{0,60}", numbers, any::<[u8; 32]>()).prop_map(|(layout, session, numbers, nonce)| {
            let (node, place, places, to, incarnation) = numbers;
            Hello { layout, session, node: NodeId(node), place, places, incarnation, to, nonce }
        })
    }

    proptest! {
        #[test]
        fn encoded_frames_come_back(
            hello in any_hello(),
            refusal in any_refusal(),
            proof: [u8; 32],
            bytes in vec(any::<u8>(), 0..300),
        ) {
            let frames = [
                Frame::Hello(hello), Frame::Refusal(refusal), Frame::Proof(proof), Frame::Beat, Frame::Goodbye,
                Frame::Payload(&bytes), Frame::Message(&bytes),
            ];
            for frame in frames {
                let bytes = encoded(&frame);
                prop_assert_eq!(Frame::decode(&bytes), Ok(frame));
            }
        }

        /// So no two byte strings mean the same, and a tag covers exactly the decoded frame.
        #[test]
        fn a_decoded_frame_encodes_to_the_same_bytes(kind in 0u8..9, bytes in vec(any::<u8>(), 0..300)) {
            let bytes = [&[kind][..], &bytes].concat();
            if let Ok(frame) = Frame::decode(&bytes) {
                prop_assert_eq!(encoded(&frame), bytes);
            }
        }
    }
}
