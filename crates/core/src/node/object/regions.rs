//! The memory of an object on this node.

use farfield_fabric::{Bell, GroupKey, Region, RemotePtr, Words};

use super::super::Node;
use crate::error::Result;

/// What an object gives back when it is closed: cells of this node, words that only operations access, and permission
/// groups.
#[derive(Clone)]
pub(in crate::node) enum Memory {
    Region(Region),
    Words(Words),
    Group(Bell, GroupKey),
}

impl Memory {
    /// Its address. A group has none.
    pub(super) fn remote(&self) -> RemotePtr<u8> {
        match self {
            Memory::Region(region) => region.remote(0),
            Memory::Words(words) => words.start(),
            Memory::Group(..) => RemotePtr::from_packed(0),
        }
    }

    pub(super) fn bytes(&self) -> usize {
        match self {
            Memory::Region(region) => region.bytes(),
            Memory::Words(words) => words.bytes(),
            Memory::Group(..) => 0,
        }
    }
}

/// The regions of an object that is being opened ([`ObjectBuilder::regions`](super::ObjectBuilder::regions)). If it is
/// never announced, they are freed at once.
///
/// ```
/// # fn main() -> farfield::Result<()> {
/// use farfield::fabric::GroupKey;
/// use farfield::toolkit::{ObjectBuilder, Regions};
/// let node = farfield::Node::builder().session("doc-regions").start()?;
/// let mut regions = Regions::new(&node);
/// let inbox = regions.alloc("inbox", GroupKey::SIGNAL, 4096)?;
/// let scratch = regions.alloc_own(GroupKey::DATA, 64)?; // no other node learns its address
/// let object = ObjectBuilder::new(&node, "app/mail", "Mail").regions(regions).open()?;
/// assert_eq!(object.remote::<u8>(node.id(), "inbox")?, inbox.remote(0));
/// # drop((object, scratch)); Ok(()) }
/// ```
pub struct Regions {
    node: Node,
    all: Vec<(Option<&'static str>, Memory)>,
}

impl Regions {
    /// No regions of this node yet.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # use farfield::{fabric::GroupKey, toolkit::{ObjectBuilder, ObjectDescriptor, Regions}};
    /// # let node = farfield::Node::builder().start()?;
    /// let mut regions = Regions::new(&node);
    /// regions.alloc("inbox", GroupKey::SIGNAL, 4096)?;
    /// drop(regions); // without an opening: its memory is free again
    /// assert_eq!(node.metrics().memory_bytes, 0);
    /// # Ok(()) }
    /// ```
    pub fn new(node: &Node) -> Regions {
        Regions { node: node.for_service(), all: Vec::new() }
    }

    /// Allocates a region that is announced to the others.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # use farfield::{fabric::GroupKey, toolkit::{ObjectBuilder, ObjectDescriptor, Regions}};
    /// # let node = farfield::Node::builder().start()?;
    /// let mut regions = Regions::new(&node);
    /// let inbox = regions.alloc("inbox", GroupKey::SIGNAL, 4096)?;
    /// inbox.word(0).store(7); // this node's own access
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// No memory is left.
    pub fn alloc(&mut self, name: &'static str, group: GroupKey, bytes: usize) -> Result<Region> {
        let region = self.node.alloc(group, bytes)?;
        self.add(name, region.clone());
        Ok(region)
    }

    /// Allocates words that are announced to the others, and that only operations access ([`Node::alloc_words`]).
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # use farfield::{fabric::GroupKey, toolkit::{ObjectBuilder, ObjectDescriptor, Regions}};
    /// # let node = farfield::Node::builder().start()?;
    /// let mut regions = Regions::new(&node);
    /// regions.alloc_words("count", GroupKey::DATA, 1, &[10])?;
    /// let object = ObjectBuilder::new(&node, "app/count", "Count").regions(regions).open()?;
    /// let count = object.remote::<u64>(node.id(), "count")?;
    /// assert_eq!(node.endpoint()?.faa(count, 1).wait()?, 10);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// No memory is left.
    pub fn alloc_words(&mut self, name: &'static str, group: GroupKey, count: usize, pattern: &[u64]) -> Result<()> {
        let words = self.node.alloc_words(group, count, pattern)?;
        self.add_words(name, words);
        Ok(())
    }

    /// Allocates a region that only this node knows.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # use farfield::{fabric::GroupKey, toolkit::{ObjectBuilder, ObjectDescriptor, Regions}};
    /// # let node = farfield::Node::builder().start()?;
    /// let mut regions = Regions::new(&node);
    /// let scratch = regions.alloc_own(GroupKey::DATA, 64)?; // it has no name: no peer can ask for it
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// No memory is left.
    pub fn alloc_own(&mut self, group: GroupKey, bytes: usize) -> Result<Region> {
        let region = self.node.alloc(group, bytes)?;
        self.all.push((None, Memory::Region(region.clone())));
        Ok(region)
    }

    /// A permission group for regions of this opening: one that an earlier opening of this node has given back, or a
    /// new one. It is given back with the regions, when no other node uses the opening any more.
    ///
    /// The right to a group that was given back may have been taken from some nodes. So revoke it from all nodes before
    /// giving it to one.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # use farfield::{fabric::Bell, toolkit::{ObjectBuilder, Regions}};
    /// # let node = farfield::Node::builder().start()?;
    /// let mut regions = Regions::new(&node);
    /// let group = regions.group(Bell::Service)?;
    /// let log = regions.alloc("log", group, 4096)?;
    /// drop(regions); // without an opening: the group is free again
    /// assert_eq!(Regions::new(&node).group(Bell::Service)?, group);
    /// # drop(log); Ok(()) }
    /// ```
    ///
    /// # Errors
    /// All groups of this node are in use, or an error of the system.
    pub fn group(&mut self, bell: Bell) -> Result<GroupKey> {
        let spare = {
            let mut spare = self.node.shared().spare_groups.lock();
            let at = spare.iter().position(|(of, _)| *of == bell);
            at.map(|at| spare.swap_remove(at).1)
        };
        let group = spare.map_or_else(|| self.node.shared().fabric.create_group(bell), Ok)?;
        self.all.push((None, Memory::Group(bell, group)));
        Ok(group)
    }

    /// Adds a region that was allocated before.
    pub(super) fn add(&mut self, name: &'static str, region: Region) {
        self.all.push((Some(name), Memory::Region(region)));
    }

    /// Adds words that were allocated before.
    pub(super) fn add_words(&mut self, name: &'static str, words: Words) {
        self.all.push((Some(name), Memory::Words(words)));
    }

    /// The announced regions.
    pub(super) fn named(&self) -> impl Iterator<Item = (&'static str, &Memory)> {
        self.all.iter().filter_map(|(name, memory)| Some(((*name)?, memory)))
    }

    /// The bytes of all, announced or not.
    pub(super) fn bytes(&self) -> u64 {
        self.all.iter().map(|(_, memory)| memory.bytes() as u64).sum()
    }

    /// Passes the regions to an opening.
    pub(super) fn take(mut self) -> Vec<Memory> {
        self.take_all()
    }

    /// In the reverse order: a group after the memory in it.
    fn take_all(&mut self) -> Vec<Memory> {
        core::mem::take(&mut self.all).into_iter().rev().map(|it| it.1).collect()
    }
}

impl Drop for Regions {
    fn drop(&mut self) {
        let regions = self.take_all();
        self.node.shared().free_all(regions);
    }
}
