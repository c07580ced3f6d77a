//! What makes the memory of groups usable for operations: for a device it is registered, for a processor it is mapped.

use std::sync::Arc;

use super::pages::AddressRange;

/// Opens pages of groups for operations.
pub(crate) trait Keeper: Send + Sync + 'static {
    /// A usable part of a range. The memory's owner drops it before the range.
    type Part: Send + Sync;
    /// Memory of the keeper's own, for words.
    type Words: WordMemory;

    /// Makes a part of a range usable, as zeroed memory that operations of this node and of its peers access.
    ///
    /// # Safety
    /// That part is not in use yet, the result is dropped before the range, and the memory tolerates that operations
    /// read and write it.
    ///
    /// # Errors
    /// No memory; the text has the reason. Then the part is as it was.
    unsafe fn open(
        self: &Arc<Self>,
        range: &AddressRange,
        first: usize,
        bytes: usize,
    ) -> Result<Opened<Self::Part>, String>;

    /// The most bytes of its own memory for each group.
    fn words_bytes_max(&self) -> usize {
        0
    }

    /// Takes at least `least` and at most `most` bytes of its own memory.
    ///
    /// # Errors
    /// There is none, or not that much left; the text has the reason.
    fn take_words(self: &Arc<Self>, least: usize, most: usize) -> Result<Self::Words, String>;
}

/// A usable part of a range, and the keys by which operations of this node and of its peers name it.
pub(crate) struct Opened<P> {
    pub(crate) part: P,
    pub(crate) local_key: u32,
    pub(crate) remote_key: u32,
}

/// Memory of a keeper that has no address in this process.
pub(crate) trait WordMemory: Send + Sync {
    /// How large it is.
    fn bytes(&self) -> usize;

    /// The key by which operations name it.
    fn remote_key(&self) -> u32;

    /// Writes words at an offset, before their addresses are announced.
    ///
    /// # Errors
    /// The text has the reason.
    fn write(&self, offset: u64, words: &[u64]) -> Result<(), String>;
}
