//! Memory that a node has allocated, its words, and spans of it.

use std::any::Any;
use std::sync::Arc;

use crate::cell::{Slot, Word, memory_fence};
use crate::ptr::{Plain, RemotePtr};

/// A range of this node's registered memory.
///
/// [`Word`]s and [`Slot`]s access it locally, [`RemotePtr`]s remotely.
///
/// ```
/// # use farfield_fabric::*;
/// # fn f(node: &dyn Fabric, ep: &Endpoint) -> Result<()> {
/// let region = node.alloc(GroupKey::DATA, 4096)?;
/// region.word(0).store(7); // by this node's processor
/// let seen = ep.get(region.remote::<u64>(0)).wait()?; // by an operation
/// assert_eq!(seen, 7);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Region {
    base: core::ptr::NonNull<u8>,
    bytes: usize,
    remote: RemotePtr<u8>,
    keep: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the memory behind `base` is shared by nature; it is reached through atomics only (`Word`, `Slot`, spans).
unsafe impl Send for Region {}

// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// # Safety
    /// `base` is aligned to 8 and points to `bytes` bytes that stay mapped as long as `keep` lives and that are only
    /// accessed by atomics or by operations of a fabric.
    pub(crate) unsafe fn new(
        base: core::ptr::NonNull<u8>,
        bytes: usize,
        remote: RemotePtr<u8>,
        keep: Arc<dyn Any + Send + Sync>,
    ) -> Region {
        Region { base, bytes, remote, keep }
    }

    /// The owner that keeps the memory alive.
    pub(crate) fn keep(&self) -> &Arc<dyn Any + Send + Sync> {
        &self.keep
    }

    /// Its size in bytes.
    ///
    /// ```
    /// # use farfield_fabric::{shm::*, *};
    /// # let node = ShmFabric::join(&ShmOptions::new(format!("doc-bytes-{}", std::process::id()), 0, 1))?;
    /// let region = node.alloc(GroupKey::DATA, 4096)?;
    /// assert_eq!(region.words(0, region.bytes() / 8).len(), 512);
    /// # Ok::<(), farfield_fabric::Error>(())
    /// ```
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// A pointer that this and other nodes use to reach the `T` at `offset` bytes.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # fn f(region: &Region) {
    /// let flag = region.remote::<u64>(0); // for other nodes
    /// assert_eq!(flag.at(1), region.remote(8));
    /// # }
    /// ```
    #[inline]
    pub fn remote<T>(&self, offset: usize) -> RemotePtr<T> {
        self.remote.byte_add(offset as u64).cast()
    }

    #[inline(always)]
    pub(super) fn check(&self, offset: usize, bytes: usize) {
        let inside = offset.checked_add(bytes).is_some_and(|end| end <= self.bytes);
        if !inside || !offset.is_multiple_of(8) {
            self.is_outside(offset, bytes);
        }
    }

    #[cold]
    #[inline(never)]
    fn is_outside(&self, offset: usize, bytes: usize) -> ! {
        panic!("{bytes} bytes at {offset} of a region of {}", self.bytes)
    }

    /// The word at `offset` bytes.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # fn f(region: &Region) {
    /// region.word(8).store(1); // the second word, by this node itself
    /// # }
    /// ```
    ///
    /// # Panics
    /// If it is not inside the region or not at a multiple of 8, as indexing a slice does.
    #[inline]
    pub fn word(&self, offset: usize) -> &Word {
        &self.words(offset, 1)[0]
    }

    /// `count` words at `offset` bytes.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # fn f(region: &Region) {
    /// let largest = region.words(0, 8).iter().map(Word::load).max();
    /// # }
    /// ```
    ///
    /// # Panics
    /// As [`Region::word`].
    #[inline]
    pub fn words(&self, offset: usize, count: usize) -> &[Word] {
        self.check(offset, count.saturating_mul(8));
        // SAFETY: in bounds and aligned by the check; `Word` is an atomic, and the region's contract (`Region::new`)
        // says that all access is atomic; the memory lives as long as `self.keep`, so as long as the borrow.
        unsafe { core::slice::from_raw_parts(self.base.as_ptr().add(offset).cast(), count) }
    }

    /// The slot at `offset` bytes.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # fn f(region: &Region) {
    /// let pair = region.slot::<[u64; 2]>(16);
    /// pair.write([1, 1]);
    /// # }
    /// ```
    ///
    /// # Panics
    /// As [`Region::word`].
    #[inline]
    pub fn slot<T: Plain>(&self, offset: usize) -> &Slot<T> {
        let () = Slot::<T>::WHOLE_WORDS; // so that 8-byte alignment is enough
        self.check(offset, size_of::<T>());
        // SAFETY: as in `words`; a `Slot` accesses its memory by atomics only.
        unsafe { &*self.base.as_ptr().add(offset).cast() }
    }

    /// A part of the region as the live source of a put or the target of a get.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # fn f(region: &Region) {
    /// let span = region.span(0, 64);
    /// assert_eq!(span.bytes(), 64);
    /// # }
    /// ```
    ///
    /// # Panics
    /// As [`Region::word`].
    #[inline]
    pub fn span(&self, offset: usize, bytes: usize) -> Span<'_> {
        self.check(offset, bytes);
        Span { region: self, offset, bytes }
    }
}

impl core::fmt::Debug for Region {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Region({:?}, {} bytes)", self.remote, self.bytes)
    }
}

/// Words of this node that only operations access: see [`Fabric::alloc_words`](crate::Fabric::alloc_words).
///
/// ```
/// # use farfield_fabric::*;
/// # fn f(node: &dyn Fabric, ep: &Endpoint) -> Result<()> {
/// let turns = node.alloc_words(GroupKey::DATA, 1, &[])?;
/// let turn = ep.faa(turns.remote(0), 1).wait()?; // of this node and all others
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Words {
    /// Has no bytes if the words are on the device.
    pub(super) region: Region,
    count: usize,
}

impl Words {
    /// The words of a region that was made for them.
    pub(crate) fn new(region: Region, count: usize) -> Words {
        Words { region, count }
    }

    /// The words of ordinary memory, which is zeroed; no other thread has its address yet.
    pub(crate) fn of_region(region: Region, count: usize, pattern: &[u64]) -> Words {
        if pattern.iter().any(|value| *value != 0) {
            let words = region.words(0, count).iter().zip(pattern.iter().cycle());
            words.filter(|(_, value)| **value != 0).for_each(|(word, value)| word.store(*value));
            // This is done before their address is announced.
            memory_fence();
        }
        Words::new(region, count)
    }

    /// The number of words.
    ///
    /// ```
    /// # use farfield_fabric::{shm::*, *};
    /// # let node = ShmFabric::join(&ShmOptions::new(format!("doc-count-{}", std::process::id()), 0, 1))?;
    /// let locks = node.alloc_words(GroupKey::DATA, 16, &[])?;
    /// assert_eq!(locks.count(), 16);
    /// # Ok::<(), farfield_fabric::Error>(())
    /// ```
    pub fn count(&self) -> usize {
        self.count
    }

    /// Their size in bytes.
    ///
    /// ```
    /// # use farfield_fabric::{shm::*, *};
    /// # let node = ShmFabric::join(&ShmOptions::new(format!("doc-size-{}", std::process::id()), 0, 1))?;
    /// assert_eq!(node.alloc_words(GroupKey::DATA, 16, &[])?.bytes(), 16 * 8);
    /// # Ok::<(), farfield_fabric::Error>(())
    /// ```
    pub fn bytes(&self) -> usize {
        self.count * 8
    }

    /// A pointer to the first word, or to its place if there is none.
    ///
    /// ```
    /// # use farfield_fabric::{shm::*, *};
    /// # let node = ShmFabric::join(&ShmOptions::new(format!("doc-start-{}", std::process::id()), 0, 1))?;
    /// let locks = node.alloc_words(GroupKey::DATA, 16, &[])?;
    /// assert_eq!(locks.start().byte_add(8).cast(), locks.remote(1));
    /// # Ok::<(), farfield_fabric::Error>(())
    /// ```
    pub fn start(&self) -> RemotePtr<u8> {
        self.region.remote(0)
    }

    /// A pointer that this and other nodes use to reach a word.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # fn f(locks: &Words) {
    /// let all: Vec<_> = (0..locks.count()).map(|lock| locks.remote(lock)).collect(); // to tell the others
    /// # }
    /// ```
    ///
    /// # Panics
    /// If there is no such word, as indexing a slice does.
    pub fn remote(&self, index: usize) -> RemotePtr<u64> {
        assert!(index < self.count, "word {index} of {}", self.count);
        self.region.remote(index * 8)
    }
}

/// A part of a [`Region`]: shared cells that an operation reads or writes while others may.
///
/// ```
/// # use farfield_fabric::*;
/// # fn f(ep: &Endpoint, row: RemotePtr<u64>, cells: &Region) -> Result<()> {
/// let into: Span<'_> = cells.span(64, 64); // eight words
/// ep.get_span(row, into).wait()?;
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Span<'r> {
    region: &'r Region,
    offset: usize,
    bytes: usize,
}

impl Span<'_> {
    /// Its size in bytes.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # fn f(cells: &Region) {
    /// assert_eq!(cells.span(64, 32).bytes(), 32);
    /// # }
    /// ```
    #[inline]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        // SAFETY: `Region::span` checked that the offset is inside.
        unsafe { self.region.base.as_ptr().add(self.offset) }
    }

    pub(crate) fn keep(&self) -> Arc<dyn Any + Send + Sync> {
        Arc::clone(&self.region.keep)
    }
}
