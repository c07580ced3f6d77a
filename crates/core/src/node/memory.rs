//! The network memory of a node: allocating and freeing it.

use farfield_fabric::{GroupKey, Region, Words};

use super::Node;
use super::object::Memory;
use crate::error::Result;

impl Node {
    /// Allocates zeroed memory of this node in a permission group, reachable by all peers. It stays allocated until
    /// [`Node::free`], until the object that owns it frees it
    /// ([`ObjectBuilder::region`](super::ObjectBuilder::region)), or until the node leaves.
    ///
    /// ```
    /// # let node = farfield::Node::builder().start()?;
    /// let region = node.alloc(farfield::fabric::GroupKey::DATA, 4096)?;
    /// assert_eq!(node.endpoint()?.get(region.remote::<u64>(0)).wait()?, 0);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// No memory is left.
    pub fn alloc(&self, group: GroupKey, bytes: usize) -> Result<Region> {
        let region = self.shared().fabric.alloc(group, bytes)?;
        self.shared().memory_bytes.fetch_add(bytes as u64);
        Ok(region)
    }

    /// Frees memory of this node that belongs to no object. From now on all operations on it fail with
    /// [`Freed`](farfield_fabric::ErrorKind::Freed), and never reach memory that is later allocated in its place. On
    /// this node the region and its clones can still be read and written. Free a region once.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// use farfield::fabric::{ErrorKind, GroupKey};
    /// let node = farfield::Node::builder().session("doc-free").start()?;
    /// let region = node.alloc(GroupKey::DATA, 64)?;
    /// let late = region.remote::<u64>(0);
    /// node.free(region)?;
    /// let error = node.endpoint()?.put_value(late, 7).wait().unwrap_err();
    /// assert!(matches!(error.kind(), ErrorKind::Freed { .. }));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The region is another node's, or the system refuses to free it.
    pub fn free(&self, region: Region) -> Result<()> {
        self.shared().free(Memory::Region(region))
    }

    /// Allocates words of this node in a permission group, for locks and counters. Only operations access them. The
    /// initial value of word `i` is `pattern[i % pattern.len()]`, and 0 with an empty pattern. A device with memory of
    /// its own stores them there ([`Fabric::alloc_words`](farfield_fabric::Fabric::alloc_words); LOCO, appendix C.2).
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// use farfield::fabric::GroupKey;
    /// let node = farfield::Node::builder().session("doc-words").start()?;
    /// let counters = node.alloc_words(GroupKey::DATA, 4, &[10])?;
    /// assert_eq!(node.endpoint()?.faa(counters.remote(3), 1).wait()?, 10);
    /// node.free_words(counters)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// No memory is left.
    pub fn alloc_words(&self, group: GroupKey, count: usize, pattern: &[u64]) -> Result<Words> {
        let words = self.shared().fabric.alloc_words(group, count, pattern)?;
        self.shared().memory_bytes.fetch_add(words.bytes() as u64);
        Ok(words)
    }

    /// Frees words, as [`Node::free`] frees memory.
    ///
    /// ```
    /// # let node = farfield::Node::builder().start()?;
    /// let words = node.alloc_words(farfield::fabric::GroupKey::DATA, 4, &[])?;
    /// node.free_words(words)?;
    /// assert_eq!(node.metrics().memory_bytes, 0);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Node::free`].
    pub fn free_words(&self, words: Words) -> Result<()> {
        self.shared().free(Memory::Words(words))
    }
}
