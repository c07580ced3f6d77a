//! The bytes of keys and values: in the messages and slots of a key-value store, and in the cells of a queue.

use core::borrow::Borrow;
use core::fmt;
use core::hash::Hash;
use core::ops::Deref;
use core::str::Utf8Error;

use farfield_fabric::Plain;
use zerocopy::IntoBytes;

/// A key: plain data, or a [`ByteString`].
///
/// ```
/// use farfield::{ByteString, Key};
/// let mut bytes = Vec::new();
/// ByteString::from("user:17").encode(&mut bytes); // as in a message to the other nodes
/// assert_eq!(ByteString::decode(&bytes), Some(ByteString::from("user:17")));
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a key",
    label = "neither plain data with `Hash` and `Eq`, nor a `ByteString`",
    note = "derive `Clone, Copy, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable` on a `#[repr(C)]` type without padding; for \
            keys of any length use `ByteString`"
)]
pub trait Key: Hash + Eq + Clone + Send + Sync + 'static {
    /// Whether all keys have the same length.
    const FIXED: bool;
    /// Its length.
    ///
    /// ```
    /// # use farfield::{ByteString, Key};
    /// assert_eq!((7u32.bytes(), ByteString::from("user:17").bytes()), (4, 7));
    /// ```
    fn bytes(&self) -> usize;
    /// Appends its bytes.
    ///
    /// ```
    /// # use farfield::{ByteString, Key};
    /// let mut bytes = vec![0xff]; // what is there stays
    /// 7u16.encode(&mut bytes);
    /// assert_eq!(bytes, [0xff, 7, 0]);
    /// ```
    fn encode(&self, into: &mut Vec<u8>);
    /// The key of some bytes.
    ///
    /// ```
    /// # use farfield::{ByteString, Key};
    /// assert_eq!(u16::decode(&[7, 0]), Some(7));
    /// assert_eq!(u16::decode(&[7]), None); // too short
    /// ```
    fn decode(bytes: &[u8]) -> Option<Self>;
}

/// A value: plain data, a [`ByteString`], or with the feature `serde` anything that serde can encode (`Encoded`).
///
/// ```
/// use farfield::{ByteString, Value};
/// let mut words = [0; 4];
/// let used = ByteString::from("twelve bytes").encode(&mut words); // as in a slot: a length and two words
/// assert_eq!((used, words[0]), (3, 12));
/// assert_eq!(ByteString::decode(&words), Some((ByteString::from("twelve bytes"), 3)));
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a value",
    label = "neither plain data, nor a `ByteString`",
    note = "derive `Clone, Copy, FromBytes, IntoBytes, Immutable` on a `#[repr(C)]` type without padding; for values of any \
            length use `ByteString`; for types that serde can encode use `Encoded` (feature `serde`)"
)]
pub trait Value: Clone + Send + Sync + 'static {
    /// Whether all values have the same length.
    const FIXED: bool;
    /// Its length in bytes.
    ///
    /// ```
    /// # use farfield::{ByteString, Value};
    /// assert_eq!((7u32.bytes(), ByteString::from("user:17").bytes()), (4, 7));
    /// ```
    fn bytes(&self) -> usize;
    /// Words of the longest value, if byte strings may have `bytes_max` bytes.
    ///
    /// ```
    /// # use farfield::{ByteString, Value};
    /// assert_eq!(<[u64; 3]>::words(200), 3); // plain data has one length
    /// assert_eq!(ByteString::words(200), 1 + 25);
    /// ```
    fn words(bytes_max: usize) -> usize;
    /// Writes it as words; how many. There is room for the longest.
    ///
    /// ```
    /// # use farfield::{ByteString, Value};
    /// let mut words = [0; 2];
    /// assert_eq!((7u16.encode(&mut words), words[0].to_ne_bytes()[0]), (1, 7));
    /// ```
    fn encode(&self, into: &mut [u64]) -> usize;
    /// Reads it from words, which may be garbage; and how many it took.
    ///
    /// ```
    /// # use farfield::{ByteString, Value};
    /// assert_eq!(u64::decode(&[7, 8]), Some((7, 1))); // it took one word
    /// assert_eq!(ByteString::decode(&[u64::MAX, 0]), None); // garbage has no such length
    /// ```
    fn decode(words: &[u64]) -> Option<(Self, usize)>;
}

impl<T: Plain + Hash + Eq + Sync> Key for T {
    const FIXED: bool = true;

    fn bytes(&self) -> usize {
        size_of::<T>()
    }

    fn encode(&self, into: &mut Vec<u8>) {
        into.extend_from_slice(self.as_bytes());
    }

    fn decode(bytes: &[u8]) -> Option<T> {
        T::read_from_bytes(bytes).ok()
    }
}

impl<T: Plain + Sync> Value for T {
    const FIXED: bool = true;

    fn bytes(&self) -> usize {
        size_of::<T>()
    }

    fn words(_: usize) -> usize {
        size_of::<T>().div_ceil(8)
    }

    #[inline]
    fn encode(&self, into: &mut [u64]) -> usize {
        let words = size_of::<T>().div_ceil(8);
        into[..words].fill(0);
        into[..words].as_mut_bytes()[..size_of::<T>()].copy_from_slice(self.as_bytes());
        words
    }

    #[inline]
    fn decode(words: &[u64]) -> Option<(T, usize)> {
        let (value, _) = T::read_from_prefix(words.as_bytes()).ok()?;
        Some((value, size_of::<T>().div_ceil(8)))
    }
}

/// A string of bytes of any length up to the store's limit. It is used like a slice of bytes; [`ByteString::as_str`]
/// gives it as text.
///
/// ```
/// use farfield::ByteString;
/// let key = ByteString::from("user:17");
/// assert_eq!((key.len(), key.as_str()), (7, Ok("user:17")));
/// assert!(key == *"user:17" && key.starts_with(b"user:"));
/// assert_eq!(format!("{key} is {key:?}"), r#"user:17 is b"user:17""#);
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct ByteString(Box<[u8]>);

impl ByteString {
    /// The bytes as text.
    ///
    /// ```
    /// # use farfield::ByteString;
    /// assert_eq!(ByteString::from("Zürich").as_str(), Ok("Zürich"));
    /// assert!(ByteString::from(&[0xff]).as_str().is_err());
    /// ```
    ///
    /// # Errors
    /// They are not UTF-8.
    pub fn as_str(&self) -> Result<&str, Utf8Error> {
        core::str::from_utf8(&self.0)
    }
}

impl From<&str> for ByteString {
    fn from(text: &str) -> ByteString {
        text.as_bytes().into()
    }
}

impl From<String> for ByteString {
    fn from(text: String) -> ByteString {
        text.into_bytes().into()
    }
}

impl From<&[u8]> for ByteString {
    fn from(bytes: &[u8]) -> ByteString {
        ByteString(bytes.into())
    }
}

impl<const N: usize> From<&[u8; N]> for ByteString {
    fn from(bytes: &[u8; N]) -> ByteString {
        bytes[..].into()
    }
}

impl From<Vec<u8>> for ByteString {
    fn from(bytes: Vec<u8>) -> ByteString {
        ByteString(bytes.into())
    }
}

impl From<ByteString> for Vec<u8> {
    fn from(string: ByteString) -> Vec<u8> {
        string.0.into()
    }
}

impl Deref for ByteString {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl AsRef<[u8]> for ByteString {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// Looks up by bytes in a map of [`ByteString`]s.
impl Borrow<[u8]> for ByteString {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

impl PartialEq<str> for ByteString {
    fn eq(&self, other: &str) -> bool {
        *self.0 == *other.as_bytes()
    }
}

impl PartialEq<[u8]> for ByteString {
    fn eq(&self, other: &[u8]) -> bool {
        *self.0 == *other
    }
}

/// As text; bytes that are none are replaced by U+FFFD.
impl fmt::Display for ByteString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&String::from_utf8_lossy(&self.0))
    }
}

impl fmt::Debug for ByteString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b\"{}\"", self.0.escape_ascii())
    }
}

impl Key for ByteString {
    const FIXED: bool = false;

    fn bytes(&self) -> usize {
        self.0.len()
    }

    fn encode(&self, into: &mut Vec<u8>) {
        into.extend_from_slice(&self.0);
    }

    fn decode(bytes: &[u8]) -> Option<ByteString> {
        Some(bytes.into())
    }
}

/// In a slot: the length, then the bytes, padded to words.
impl Value for ByteString {
    const FIXED: bool = false;

    fn bytes(&self) -> usize {
        self.0.len()
    }

    fn words(bytes_max: usize) -> usize {
        1 + bytes_max.div_ceil(8)
    }

    fn encode(&self, into: &mut [u64]) -> usize {
        let words = 1 + self.0.len().div_ceil(8);
        into[words - 1] = 0;
        into[0] = self.0.len() as u64;
        into[1..words].as_mut_bytes()[..self.0.len()].copy_from_slice(&self.0);
        words
    }

    fn decode(words: &[u64]) -> Option<(ByteString, usize)> {
        let (len, rest) = words.split_first()?;
        let len = usize::try_from(*len).ok()?;
        let bytes = rest.as_bytes().get(..len)?;
        Some((bytes.into(), 1 + len.div_ceil(8)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_back_and_garbage_is_no_value() {
        for len in [0, 1, 7, 8, 9, 23] {
            let value = ByteString::from(vec![7u8; len]);
            let mut words = vec![u64::MAX; ByteString::words(23)];
            let used = Value::encode(&value, &mut words);
            assert_eq!(<ByteString as Value>::decode(&words), Some((value, used)));
        }
        assert_eq!(<ByteString as Value>::decode(&[u64::MAX, 0]), None);
        assert_eq!(<ByteString as Value>::decode(&[9, 0]), None);
        let mut words = [u64::MAX];
        assert_eq!((Value::encode(&5u16, &mut words), words), (1, [5]));
        assert_eq!(<u16 as Value>::decode(&words), Some((5, 1)));
    }
}
