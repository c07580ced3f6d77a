//! The fields of frames: reading them, and why they cannot be read.

use crate::fabric::CONTROL_BYTES_MAX;

/// The longest frame, with its length and tag.
pub(super) const FRAME_BYTES_MAX: usize = 64 << 10;

/// The longest frame of a peer that has proved nothing yet.
pub(super) const GREETING_BYTES_MAX: usize = 1 << 10;

/// The longest name of a layout or a session.
pub(super) const NAME_BYTES_MAX: usize = 255;

/// Why bytes are no frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum Malformed {
    /// It ends too early.
    #[error("a frame ends in the middle of a field")]
    Short,
    /// It continues after its end.
    #[error("{0} bytes follow the last field of a frame")]
    Trailing(usize),
    /// There is no such kind.
    #[error("there are no frames of kind {0}")]
    Kind(u8),
    /// There is no such reason.
    #[error("there are no refusals of kind {0}")]
    Reason(u8),
    /// It speaks something else.
    #[error("it does not speak Farfield's control protocol")]
    Magic,
    /// It speaks another version, of which no more is understood.
    #[error("it speaks version {0} of the control protocol")]
    Version(u16),
    /// A name is no text.
    #[error("a name is not printable text")]
    Name,
    /// A message is longer than messages are.
    #[error("a message of {0} bytes is longer than {CONTROL_BYTES_MAX}")]
    Long(usize),
}

/// Whether a text can be the name of a layout or a session: others show it to people, and in logs.
pub(super) fn is_name(name: &str) -> bool {
    name.len() <= NAME_BYTES_MAX && !name.chars().any(char::is_control)
}

pub(super) fn put_name(out: &mut Vec<u8>, name: &str) {
    debug_assert!(is_name(name), "`Control::open` looks at the own names, `Rest::name` at the others'");
    out.push(name.len() as u8);
    out.extend_from_slice(name.as_bytes());
}

/// The part of a frame that was not read yet.
pub(super) struct Rest<'a>(pub(super) &'a [u8]);

impl<'a> Rest<'a> {
    pub(super) fn take(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (head, tail) = self.0.split_at_checked(len).ok_or(Malformed::Short)?;
        self.0 = tail;
        Ok(head)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        Ok(*self.take(N)?.first_chunk().expect("so many were taken"))
    }

    pub(super) fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.array::<1>()?[0])
    }

    pub(super) fn u16(&mut self) -> Result<u16, Malformed> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub(super) fn name(&mut self) -> Result<String, Malformed> {
        let len = usize::from(self.u8()?);
        let name = std::str::from_utf8(self.take(len)?).map_err(|_| Malformed::Name)?;
        if is_name(name) { Ok(name.into()) } else { Err(Malformed::Name) }
    }

    pub(super) fn message(&mut self) -> Result<&'a [u8], Malformed> {
        match self.0.len() {
            len if len > CONTROL_BYTES_MAX => Err(Malformed::Long(len)),
            len => self.take(len),
        }
    }
}
