//! The shared secret: how two nodes prove to each other that they know it, and the tags of their later messages.
//!
//! ```text
//! root        = HMAC-SHA-256("farfield control root", secret), or of nothing under a label of its own
//! transcript  = SHA-256(length and bytes of the caller's hello, length and bytes of the listener's)
//! proof       = HMAC(root, label of the side, transcript)
//! key         = HMAC(root, label of the direction, transcript)
//! tag         = HMAC(key, number of the frame u64, kind and body)
//! ```
//!
//! Both hellos carry a nonce of their sender, so a proof is worth nothing on another connection. The sides and
//! directions have labels of their own, so a proof that is sent back is worth nothing. Frames are numbered by both
//! sides from 0, and the number is not sent: one that is left out, repeated, moved or damaged has the wrong tag.
//!
//! Without a secret the protocol is the same, under a public root. A failed proof is refused alike in both cases.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

use super::wire::TAG_BYTES;

type HmacSha256 = Hmac<Sha256>;

/// The secret of the nodes of a session.
///
/// It is used as it is, without the slow hashing of passwords: make it of 32 random bytes.
///
/// ```
/// use farfield_fabric::verbs::Secret;
/// let secret = Secret::new(&[7; 32]).expect("it is long enough"); // take random bytes
/// assert_eq!(format!("{secret:?}"), "Secret(not shown)");
/// ```
#[derive(Clone)]
pub struct Secret(Root);

impl Secret {
    /// The fewest bytes of a secret.
    ///
    /// ```
    /// # use farfield_fabric::verbs::Secret;
    /// assert!(Secret::new(&[7; Secret::BYTES_MIN]).is_ok());
    /// assert!(Secret::new(&[7; Secret::BYTES_MIN - 1]).is_err());
    /// ```
    pub const BYTES_MIN: usize = 16;

    /// A secret of these bytes.
    ///
    /// ```
    /// # use farfield_fabric::verbs::{Secret, SecretTooShort};
    /// assert!(Secret::new(&[7; 32]).is_ok());
    /// assert_eq!(Secret::new(b"guess me").unwrap_err(), SecretTooShort { bytes: 8 });
    /// ```
    ///
    /// # Errors
    /// It is so short that it could be guessed.
    pub fn new(bytes: &[u8]) -> Result<Secret, SecretTooShort> {
        if bytes.len() < Secret::BYTES_MIN {
            return Err(SecretTooShort { bytes: bytes.len() });
        }
        Ok(Secret(Root::of(bytes, b"farfield control root")))
    }

    pub(super) fn root(&self) -> Root {
        self.0.clone()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(not shown)")
    }
}

/// A secret could be guessed.
///
/// ```
/// use farfield_fabric::verbs::{Secret, SecretTooShort};
/// let error: SecretTooShort = Secret::new(b"short").unwrap_err();
/// assert_eq!(error.bytes, 5);
/// assert!(error.to_string().contains("openssl rand -hex 32")); // a way to make a better one
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "a shared secret of {bytes} bytes can be guessed: use {} or more, best 32 random ones (`openssl rand -hex 32`)",
    Secret::BYTES_MIN
)]
pub struct SecretTooShort {
    /// How long it is.
    pub bytes: usize,
}

/// The key that all others are made of.
#[derive(Clone)]
pub(super) struct Root(HmacSha256);

impl Root {
    /// The root without a secret.
    pub(super) fn of_nothing() -> Root {
        Root::of(&[], b"farfield control without a secret")
    }

    fn of(secret: &[u8], label: &[u8]) -> Root {
        // The label is the key: keys are filled up with zeros, messages are not, so no two secrets are the same.
        Root(keyed(&keyed(label).chain_update(secret).finalize().into_bytes()))
    }
}

fn keyed(key: &[u8]) -> HmacSha256 {
    HmacSha256::new_from_slice(key).expect("HMAC takes keys of any length")
}

/// Which of the two nodes of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Side {
    Caller,
    Listener,
}

impl Side {
    pub(super) fn other(self) -> Side {
        match self {
            Side::Caller => Side::Listener,
            Side::Listener => Side::Caller,
        }
    }
}

/// The input of one connection's proofs and keys: the root, and all messages before the proofs.
pub(super) struct Transcript {
    root: Root,
    digest: [u8; 32],
}

impl Transcript {
    pub(super) fn new(root: &Root, caller_hello: &[u8], listener_hello: &[u8]) -> Transcript {
        let mut digest = Sha256::new();
        for hello in [caller_hello, listener_hello] {
            digest.update((hello.len() as u64).to_le_bytes());
            digest.update(hello);
        }
        Transcript { root: root.clone(), digest: digest.finalize().into() }
    }

    fn labelled(&self, label: &[u8]) -> HmacSha256 {
        self.root.0.clone().chain_update(label).chain_update(self.digest)
    }

    fn proof_mac(&self, side: Side) -> HmacSha256 {
        self.labelled(match side {
            Side::Caller => b"proof of the caller",
            Side::Listener => b"proof of the listener",
        })
    }

    /// That `side` knows the secret.
    pub(super) fn proof(&self, side: Side) -> [u8; 32] {
        self.proof_mac(side).finalize().into_bytes().into()
    }

    /// Whether this is that proof, in constant time.
    pub(super) fn is_proof(&self, side: Side, proof: &[u8; 32]) -> bool {
        self.proof_mac(side).verify_slice(proof).is_ok()
    }

    /// For the tags of the messages of `side`.
    pub(super) fn seal(&self, side: Side) -> Seal {
        let key = self.labelled(match side {
            Side::Caller => b"key of the caller",
            Side::Listener => b"key of the listener",
        });
        Seal { mac: keyed(&key.finalize().into_bytes()), frames: 0 }
    }
}

/// The tags of one direction of a connection.
pub(super) struct Seal {
    mac: HmacSha256,
    /// How many frames so far.
    frames: u64,
}

impl Seal {
    fn next(&mut self, frame: &[u8]) -> HmacSha256 {
        let mac = self.mac.clone().chain_update(self.frames.to_le_bytes()).chain_update(frame);
        self.frames += 1;
        mac
    }

    /// The tag of the next frame.
    pub(super) fn tag(&mut self, frame: &[u8]) -> [u8; TAG_BYTES] {
        self.next(frame).finalize().into_bytes().into()
    }

    /// The next frame without its tag, if that is right; compared in constant time.
    pub(super) fn open<'a>(&mut self, tagged: &'a [u8]) -> Option<&'a [u8]> {
        let (frame, tag) = tagged.split_last_chunk::<TAG_BYTES>()?;
        self.next(frame).verify_slice(tag).is_ok().then_some(frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(byte: u8) -> Root {
        Secret::new(&[byte; 16]).unwrap().root()
    }

    #[test]
    fn a_proof_holds_for_its_side_its_hellos_and_its_secret_only() {
        let transcript = Transcript::new(&secret(1), b"caller", b"listener");
        let proof = transcript.proof(Side::Caller);
        assert!(transcript.is_proof(Side::Caller, &proof));
        assert!(!transcript.is_proof(Side::Listener, &proof), "sent back");
        for other in [
            Transcript::new(&secret(2), b"caller", b"listener"),
            Transcript::new(&Root::of_nothing(), b"caller", b"listener"),
            Transcript::new(&secret(1), b"caller again", b"listener"),
            Transcript::new(&secret(1), b"caller", b"listener again"),
            Transcript::new(&secret(1), b"listener", b"caller"),
            Transcript::new(&secret(1), b"callerl", b"istener"),
        ] {
            assert!(!other.is_proof(Side::Caller, &proof));
        }
        assert!(Transcript::new(&secret(1), b"caller", b"listener").is_proof(Side::Caller, &proof));
    }

    #[test]
    fn a_tag_holds_for_its_frame_its_number_and_its_direction_only() {
        let transcript = Transcript::new(&secret(1), b"caller", b"listener");
        let (mut says, mut hears) = (transcript.seal(Side::Caller), transcript.seal(Side::Caller));
        let tagged = |seal: &mut Seal, frame: &[u8]| [frame, &seal.tag(frame)].concat();
        let first = tagged(&mut says, b"first");
        assert_eq!(hears.open(&first), Some(&b"first"[..]));
        assert_eq!(hears.open(&first), None, "repeated");
        let (mut says, mut hears) = (transcript.seal(Side::Caller), transcript.seal(Side::Caller));
        assert_eq!(transcript.seal(Side::Listener).open(&tagged(&mut says, b"x")), None, "sent back");
        assert_eq!(hears.open(&tagged(&mut says, b"second")), None, "the first is missing");
        assert_eq!(hears.open(b"short"), None);
        for bit in 0..8 * first.len() {
            let mut damaged = first.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(transcript.seal(Side::Caller).open(&damaged), None, "bit {bit}");
        }
    }

    #[test]
    fn secrets_that_differ_by_a_zero_differ() {
        let proof = |secret: &[u8]| Transcript::new(&Secret::new(secret).unwrap().root(), b"", b"").proof(Side::Caller);
        assert_ne!(proof(&[0; 16]), proof(&[0; 17]));
    }

    #[test]
    fn a_secret_that_can_be_guessed_is_none_and_no_secret_is_shown() {
        let error = Secret::new(&[0; 15]).unwrap_err();
        assert_eq!(error, SecretTooShort { bytes: 15 });
        assert!(error.to_string().contains("15 bytes"), "{error}");
        let shown = format!("{:?}", Secret::new(b"correct horse battery").unwrap());
        assert!(!shown.contains("horse"), "{shown}");
    }
}
