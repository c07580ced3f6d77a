//! The shared cells: memory that other nodes may read and write at any moment.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU64, Ordering, fence};

use crate::Plain;
use crate::hook;

/// Eight aligned bytes that are read and written whole, by CPUs and by network operations alike.
///
/// `load` and `store` are TSO reads and writes (`CR`, `CW` of the model): a load may pass an older store of another
/// word, nothing else is reordered. The read-modify-writes are CPU atomics; they are *not* atomic with remote
/// atomics (`Endpoint::cas`, `Endpoint::faa`), which only the same kind excludes.
///
/// ```
/// use farfield_fabric::Word;
/// let w = Word::new(5);
/// w.store(7);
/// assert_eq!(w.load(), 7);
/// ```
#[repr(transparent)]
#[derive(Debug, Default)]
pub struct Word(AtomicU64);

impl Drop for Word {
    #[inline]
    fn drop(&mut self) {
        if hook::is_active() {
            hook::forget(core::ptr::from_ref(self) as usize);
        }
    }
}

impl Word {
    /// A word outside network memory, for private use and tests.
    ///
    /// ```
    /// use farfield_fabric::Word;
    /// static TURN: Word = Word::new(1);
    /// assert_eq!(TURN.load(), 1);
    /// ```
    pub const fn new(value: u64) -> Self {
        Word(AtomicU64::new(value))
    }

    /// Reads the word (`CR`).
    ///
    /// ```
    /// # use farfield_fabric::Word;
    /// # let word = Word::new(7);
    /// assert_eq!(word.load(), 7);
    /// ```
    #[inline]
    pub fn load(&self) -> u64 {
        if hook::is_active()
            && let Some(value) = hook::load(&self.0)
        {
            return value;
        }
        self.0.load(Ordering::Acquire)
    }

    /// Reads the word as a hint that no protocol depends on: a simulation does not search the interleavings just
    /// before it. (In network memory it does: there this is [`load`](Word::load).)
    ///
    /// ```
    /// # use farfield_fabric::Word;
    /// assert_eq!(Word::new(5).glance(), 5);
    /// ```
    #[inline]
    pub fn glance(&self) -> u64 {
        if hook::is_active()
            && let Some(value) = hook::glance(&self.0)
        {
            return value;
        }
        self.0.load(Ordering::Acquire)
    }

    /// Writes the word (`CW`).
    ///
    /// ```
    /// # use farfield_fabric::Word;
    /// # let word = Word::new(7);
    /// word.store(8);
    /// assert_eq!(word.load(), 8);
    /// ```
    #[inline]
    pub fn store(&self, value: u64) {
        if hook::is_active() && hook::store(&self.0, value) {
            return;
        }
        self.0.store(value, Ordering::Release);
    }

    /// A CPU compare-and-swap (`CAS`). Returns the old value, as `Ok` if it was `expected`.
    ///
    /// ```
    /// # use farfield_fabric::Word;
    /// # let word = Word::new(7);
    /// assert_eq!(word.compare_exchange(7, 8), Ok(7));
    /// assert_eq!(word.compare_exchange(7, 9), Err(8));
    /// ```
    ///
    /// # Errors
    /// The value found, if it was different.
    #[inline]
    pub fn compare_exchange(&self, expected: u64, new: u64) -> Result<u64, u64> {
        if hook::is_active()
            && let Some(result) = hook::compare_exchange(&self.0, expected, new)
        {
            return result;
        }
        self.0.compare_exchange(expected, new, Ordering::SeqCst, Ordering::SeqCst)
    }

    /// A CPU fetch-and-add, wrapping. Returns the old value.
    ///
    /// ```
    /// # use farfield_fabric::Word;
    /// # let word = Word::new(7);
    /// assert_eq!((word.fetch_add(2), word.load()), (7, 9));
    /// ```
    #[inline]
    pub fn fetch_add(&self, delta: u64) -> u64 {
        if hook::is_active()
            && let Some(old) = hook::fetch_add(&self.0, delta)
        {
            return old;
        }
        self.0.fetch_add(delta, Ordering::SeqCst)
    }
}

/// A TSO memory fence (`MF`): later loads of this thread come after its earlier stores.
///
/// ```
/// # use farfield_fabric::{Word, memory_fence};
/// # let (mine, theirs) = (Word::new(0), Word::new(0));
/// mine.store(1);
/// memory_fence(); // without it the load may pass the store
/// let is_alone = theirs.load() == 0;
/// # assert!(is_alone);
/// ```
#[inline]
pub fn memory_fence() {
    if hook::is_active() && hook::fence() {
        return;
    }
    fence(Ordering::SeqCst);
}

/// Copies `words` into `into`, word by word, in no promised order.
///
/// Each word is whole; the sequence may mix several writes. Every word read here is read before the later reads of
/// the thread.
///
/// ```
/// # use farfield_fabric::{Word, read_words};
/// let words = [Word::new(1), Word::new(2)];
/// let mut copy = [0; 2];
/// read_words(&words, &mut copy);
/// assert_eq!(copy, [1, 2]);
/// ```
///
/// # Panics
/// If the lengths differ, as slices do.
#[inline]
pub fn read_words(words: &[Word], into: &mut [u64]) {
    if words.len() != into.len() {
        lengths_differ(words.len(), into.len());
    }
    if hook::is_active() {
        in_some_order(words.len(), |at| into[at] = words[at].load());
        return;
    }
    for (to, from) in into.iter_mut().zip(words) {
        *to = from.0.load(Ordering::Relaxed);
    }
    // The loads above come before later loads: a guard or a counter read next confirms them. Free on x86.
    fence(Ordering::Acquire);
}

/// Appends the bytes of `words` to `into`, word by word, from the first to the last.
///
/// Each word is whole; the sequence may mix several writes. The words are read one after the other, as by
/// [`Word::load`]: after the thread's earlier reads, and before its later reads and writes. So a counter that was read
/// before vouches for the words that it covers, and a later store can give their room away.
///
/// ```
/// # use farfield_fabric::{Word, append_bytes};
/// let mut bytes = vec![7];
/// append_bytes(&[Word::new(0x6f_77), Word::new(1)], &mut bytes);
/// assert_eq!(bytes[..4], *b"\x07wo\0");
/// assert_eq!(bytes.len(), 17);
/// ```
#[inline]
pub fn append_bytes(words: &[Word], into: &mut Vec<u8>) {
    if hook::is_active() {
        words.iter().for_each(|word| into.extend_from_slice(&word.load().to_le_bytes()));
        return;
    }
    into.reserve(words.len() * 8);
    let begin = into.len();
    let spare = into.spare_capacity_mut().as_mut_ptr().cast::<[u8; 8]>();
    for (at, word) in words.iter().enumerate() {
        // SAFETY: room for all the words is reserved; eight bytes need no alignment.
        unsafe { spare.add(at).write(word.0.load(Ordering::Acquire).to_le_bytes()) };
    }
    // SAFETY: the bytes up to there were written just now.
    unsafe { into.set_len(begin + words.len() * 8) };
}

/// Copies `from` into `words`, word by word, in no promised order, after everything that the thread wrote before.
///
/// ```
/// # use farfield_fabric::{Word, write_words};
/// let words = [Word::new(0), Word::new(0)];
/// write_words(&words, &[1, 2]);
/// assert_eq!(words[1].load(), 2);
/// ```
///
/// # Panics
/// If the lengths differ, as slices do.
#[inline]
pub fn write_words(words: &[Word], from: &[u64]) {
    if words.len() != from.len() {
        lengths_differ(words.len(), from.len());
    }
    if hook::is_active() {
        in_some_order(words.len(), |at| words[at].store(from[at]));
        return;
    }
    // Earlier stores (a leading guard, say) come before these stores. Free on x86.
    fence(Ordering::Release);
    for (to, from) in words.iter().zip(from) {
        to.0.store(*from, Ordering::Relaxed);
    }
}

/// [`write_words`] of bytes: the last word is filled up with zeros.
///
/// ```
/// # use farfield_fabric::{Word, write_bytes};
/// let words = [Word::new(0), Word::new(0)];
/// write_bytes(&words, b"network m");
/// assert_eq!(words[1].load(), u64::from(b'm'));
/// ```
///
/// # Panics
/// If the words are not exactly those that the bytes need.
#[inline]
pub fn write_bytes(words: &[Word], from: &[u8]) {
    let (whole, rest) = from.as_chunks::<8>();
    if words.len() != whole.len() + usize::from(!rest.is_empty()) {
        lengths_differ(8 * words.len(), from.len());
    }
    if hook::is_active() {
        in_some_order(whole.len(), |at| words[at].store(u64::from_le_bytes(whole[at])));
    } else {
        fence(Ordering::Release); // as in `write_words`
        for (to, from) in words.iter().zip(whole) {
            to.0.store(u64::from_le_bytes(*from), Ordering::Relaxed);
        }
    }
    if let ([.., last], [_, ..]) = (words, rest) {
        let mut bytes = [0; 8];
        bytes[..rest.len()].copy_from_slice(rest);
        last.store(u64::from_le_bytes(bytes));
    }
}

#[cold]
#[inline(never)]
fn lengths_differ(of_words: usize, of_copy: usize) -> ! {
    panic!("lengths of a copy: {of_words} and {of_copy}")
}

/// Under a simulation the search chooses the order in which the words of a larger value are accessed, as far as it
/// matters.
#[cold]
fn in_some_order(words: usize, mut access: impl FnMut(usize)) {
    let backwards = hook::backwards(words);
    for at in 0..words {
        access(if backwards { words - 1 - at } else { at });
    }
}

/// A `T` in network memory. It may be larger than a word, and a reader may then see it torn.
///
/// Reading gives a [`Torn`] copy, which becomes a `T` only with evidence that it is whole.
///
/// ```
/// use farfield_fabric::Slot;
/// let pair = Slot::new([0u64; 2]); // its writers keep both halves equal
/// pair.write([7, 7]);
/// assert_eq!(pair.read().validate(|pair| pair[0] == pair[1]), Some([7, 7]));
/// ```
#[repr(transparent)]
pub struct Slot<T>(UnsafeCell<T>);

// SAFETY: all access is by relaxed 64-bit atomics (see `words`), which may race freely.
unsafe impl<T: Plain> Sync for Slot<T> {}

impl<T: Plain> Slot<T> {
    pub(crate) const WHOLE_WORDS: () = assert!(
        size_of::<T>().is_multiple_of(8) && align_of::<T>() <= 8 && size_of::<T>() > 0,
        "a Slot's type is made of whole 8-byte words"
    );

    /// A slot outside network memory, for private use and tests.
    ///
    /// ```
    /// use farfield_fabric::Slot;
    /// let s = Slot::new([1u64, 2]);
    /// s.write([3, 4]);
    /// assert_eq!(s.read().validate(|v| v[0] + 1 == v[1]), Some([3, 4]));
    /// ```
    pub fn new(value: T) -> Self {
        let () = Self::WHOLE_WORDS;
        Slot(UnsafeCell::new(value))
    }

    /// The slot as words. It must be 8-byte aligned, which network memory is.
    ///
    /// ```
    /// # use farfield_fabric::Slot;
    /// # let slot = Slot::new([1u64, 2]);
    /// slot.words()[1].store(3); // one half alone
    /// assert_eq!(slot.read().validate(|_| true), Some([1, 3]));
    /// ```
    ///
    /// # Panics
    /// If a slot outside network memory is not aligned to 8 bytes.
    #[inline]
    pub fn words(&self) -> &[Word] {
        let () = Self::WHOLE_WORDS;
        let start = self.0.get().cast::<Word>();
        assert!(start.is_aligned(), "a Slot lies on an 8-byte boundary");
        // SAFETY: the slot covers `size_of::<T>()` bytes, a multiple of 8, valid for the borrow of `self`; `T` is
        // plain data, so any bytes are fine, and the UnsafeCell permits writes through the shared reference.
        unsafe { core::slice::from_raw_parts(start, size_of::<T>() / 8) }
    }

    /// A copy that may mix several writes.
    ///
    /// ```
    /// # use farfield_fabric::Slot;
    /// # let slot = Slot::new([1u64, 2]);
    /// let pair = slot.read().validate(|pair| pair[1] == 2 * pair[0]);
    /// assert_eq!(pair, Some([1, 2]));
    /// ```
    #[inline]
    pub fn read(&self) -> Torn<T> {
        let mut value = T::new_zeroed();
        if hook::is_active() {
            let (words, bytes) = (self.words(), value.as_mut_bytes());
            in_some_order(words.len(), |at| bytes[at * 8..][..8].copy_from_slice(&words[at].load().to_ne_bytes()));
            return Torn(value);
        }
        for (to, from) in value.as_mut_bytes().chunks_exact_mut(8).zip(self.words()) {
            to.copy_from_slice(&from.0.load(Ordering::Relaxed).to_ne_bytes());
        }
        fence(Ordering::Acquire); // as in `read_words`
        Torn(value)
    }

    /// Writes all words, in no promised order, after everything that the thread wrote before.
    ///
    /// ```
    /// # use farfield_fabric::Slot;
    /// # let slot = Slot::new([1u64, 2]);
    /// slot.write([2, 4]);
    /// assert_eq!(slot.read().validate(|_| true), Some([2, 4]));
    /// ```
    #[inline]
    pub fn write(&self, value: T) {
        if hook::is_active() {
            let (words, bytes) = (self.words(), value.as_bytes());
            let word_at = |at: usize| u64::from_ne_bytes(bytes[at * 8..][..8].try_into().expect("eight bytes"));
            in_some_order(words.len(), |at| words[at].store(word_at(at)));
            return;
        }
        fence(Ordering::Release); // as in `write_words`
        for (to, from) in self.words().iter().zip(value.as_bytes().chunks_exact(8)) {
            to.0.store(u64::from_ne_bytes(from.try_into().expect("eight bytes")), Ordering::Relaxed);
        }
    }
}

/// A copy of shared memory that may mix several writes: not yet a `T`.
///
/// ```
/// use farfield_fabric::{Slot, Torn};
/// let copy: Torn<[u64; 2]> = Slot::new([1, 2]).read();
/// assert_eq!(copy.validate(|pair| pair[0] == pair[1]), None); // it is no value of ours
/// ```
#[must_use = "a torn copy says nothing until it is vouched for"]
#[derive(Clone, Copy)]
pub struct Torn<T>(pub(crate) T);

impl<T> Torn<T> {
    /// The value, if `evidence` (a checksum, matching guards, a protocol's turn) proves that it is whole.
    ///
    /// ```
    /// # use farfield_fabric::Slot;
    /// # let slot = Slot::new([3u64, 5, 8]);
    /// let sum = slot.read().validate(|parts| parts[0] + parts[1] == parts[2]).map(|parts| parts[2]);
    /// assert_eq!(sum, Some(8));
    /// ```
    #[inline]
    pub fn validate(self, evidence: impl FnOnce(&T) -> bool) -> Option<T> {
        if evidence(&self.0) { Some(self.0) } else { None }
    }
}
