//! Keys and values as words.

use farfield_core::{Error, ErrorKind, Result};

/// A value of a tree, or a key: it takes the same number of words each time.
///
/// ```
/// use farfield_rome::{Bytes, Field};
/// assert_eq!((u64::WORDS, <[u64; 3]>::WORDS, Bytes::<2>::WORDS), (1, 3, 3));
/// ```
pub trait Field: Copy + Send + Sync + 'static {
    /// How many.
    const WORDS: usize;

    /// Writes it.
    ///
    /// ```
    /// # use farfield_rome::Field;
    /// let mut words = [0; 2];
    /// [7, 8].store(&mut words);
    /// assert_eq!(words, [7, 8]);
    /// ```
    fn store(&self, into: &mut [u64]);

    /// Reads it; `word` gives each word by its number.
    ///
    /// ```
    /// # use farfield_rome::Field;
    /// assert_eq!(<[u64; 2]>::load(|at| at as u64 + 7), [7, 8]);
    /// ```
    fn load(word: impl Fn(usize) -> u64) -> Self;
}

/// A key of a tree: keys have an order.
///
/// ```
/// use farfield_rome::{Bytes, TreeKey};
/// assert!(u64::FIRST <= 0 && Bytes::<2>::FIRST <= Bytes::try_from("a")?);
/// # Ok::<(), farfield::Error>(())
/// ```
pub trait TreeKey: Field + Ord {
    /// The first of all keys in their order.
    const FIRST: Self;
}

impl Field for u64 {
    const WORDS: usize = 1;

    #[inline]
    fn store(&self, into: &mut [u64]) {
        into[0] = *self;
    }

    #[inline]
    fn load(word: impl Fn(usize) -> u64) -> u64 {
        word(0)
    }
}

impl TreeKey for u64 {
    const FIRST: u64 = 0;
}

impl<const N: usize> Field for [u64; N] {
    const WORDS: usize = N;

    #[inline]
    fn store(&self, into: &mut [u64]) {
        into.copy_from_slice(self);
    }

    #[inline]
    fn load(word: impl Fn(usize) -> u64) -> [u64; N] {
        core::array::from_fn(word)
    }
}

/// A string of up to 8 · `W` bytes, in the order of bytes. It takes `W` + 1 words, however long it is.
///
/// ```
/// use farfield_rome::Bytes;
/// let name = Bytes::<2>::try_from("user:17")?;
/// assert_eq!((name.to_vec(), name.len()), (b"user:17".to_vec(), 7));
/// assert!(name < Bytes::try_from("user:2")? && name > Bytes::try_from("user:1")?);
/// # Ok::<(), farfield::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes<const W: usize> {
    /// Big-endian, so that words have the order of bytes; then the shorter of two is the first, as zeros were added to
    /// it.
    words: [u64; W],
    len: u64,
}

impl<const W: usize> Bytes<W> {
    /// A string, unless it is too long.
    ///
    /// ```
    /// # use farfield_rome::Bytes;
    /// assert!(Bytes::<1>::new(b"eight by").is_some() && Bytes::<1>::new(b"nine byte").is_none());
    /// ```
    pub fn new(bytes: &[u8]) -> Option<Bytes<W>> {
        let mut words = [0; W];
        (bytes.len() <= 8 * W).then(|| {
            for (word, chunk) in words.iter_mut().zip(bytes.chunks(8)) {
                let mut bytes = [0; 8];
                bytes[..chunk.len()].copy_from_slice(chunk);
                *word = u64::from_be_bytes(bytes);
            }
            Bytes { words, len: bytes.len() as u64 }
        })
    }

    /// How many bytes.
    ///
    /// ```
    /// # use farfield_rome::Bytes;
    /// assert_eq!(Bytes::<2>::try_from("")?.len(), 0);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether there are none.
    ///
    /// ```
    /// # use farfield_rome::Bytes;
    /// assert!(Bytes::<2>::try_from("")?.is_empty());
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes.
    ///
    /// ```
    /// # use farfield_rome::Bytes;
    /// assert_eq!(Bytes::<2>::try_from("user:17")?.to_vec(), b"user:17");
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes: Vec<u8> = self.words.iter().flat_map(|word| word.to_be_bytes()).collect();
        bytes.truncate(self.len());
        bytes
    }
}

impl<const W: usize> TryFrom<&str> for Bytes<W> {
    type Error = Error;

    /// # Errors
    /// [`ErrorKind::TooLarge`]
    fn try_from(text: &str) -> Result<Bytes<W>> {
        let too_large = || ErrorKind::TooLarge { bytes: text.len(), max_bytes: 8 * W }.into();
        Bytes::new(text.as_bytes()).ok_or_else(too_large)
    }
}

impl<const W: usize> core::fmt::Debug for Bytes<W> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "b\"{}\"", self.to_vec().escape_ascii())
    }
}

impl<const W: usize> Field for Bytes<W> {
    const WORDS: usize = W + 1;

    #[inline]
    fn store(&self, into: &mut [u64]) {
        into[..W].copy_from_slice(&self.words);
        into[W] = self.len;
    }

    #[inline]
    fn load(word: impl Fn(usize) -> u64) -> Bytes<W> {
        Bytes { len: word(W), words: core::array::from_fn(word) }
    }
}

impl<const W: usize> TreeKey for Bytes<W> {
    const FIRST: Bytes<W> = Bytes { words: [0; W], len: 0 };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_have_the_order_of_their_bytes() {
        let mut texts =
            ["", "\0", "\0\0", "a", "a\0", "ab", "abcdefgh", "abcdefgh\0", "abcdefghi", "b", "user:1", "user:10"];
        texts.sort_unstable();
        let strings = texts.map(|text| Bytes::<2>::try_from(text).expect("it is short"));
        assert!(strings.is_sorted_by(|one, next| one < next));
        for (text, string) in texts.iter().zip(strings) {
            let mut words = [0; 3];
            string.store(&mut words);
            assert_eq!(Bytes::load(|at| words[at]), string);
            assert_eq!(string.to_vec(), text.as_bytes());
        }
    }
}
