//! Names of nodes, permission groups and places in network memory.

use core::fmt;
use core::marker::PhantomData;

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Plain data: any bit pattern is a value, there is no padding, and a copy of the bytes is a copy of the value.
///
/// All data in network memory is plain. The trait is implemented for every type that derives zerocopy's `FromBytes`,
/// `IntoBytes` and `Immutable` and is `Copy`.
///
/// ```
/// use farfield_fabric::Plain;
/// use zerocopy::{FromBytes, Immutable, IntoBytes};
///
/// #[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
/// #[repr(C)]
/// struct Sample { volts: f64, sequence: u64 }
///
/// fn plain<T: Plain>() {}
/// plain::<Sample>();
/// ```
///
/// A crate that does not depend on zerocopy itself takes the derives from here, and says so to them:
///
/// ```
/// use farfield_fabric::zerocopy::{FromBytes, Immutable, IntoBytes};
///
/// #[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
/// #[zerocopy(crate = "farfield_fabric::zerocopy")]
/// #[repr(C)]
/// struct Sample { volts: f64, sequence: u64 }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not plain data",
    label = "it cannot be in network memory",
    note = "derive `Clone, Copy, FromBytes, IntoBytes, Immutable` on a `#[repr(C)]` type without padding"
)]
pub trait Plain: FromBytes + IntoBytes + Immutable + Copy + Send + 'static {}
impl<T: FromBytes + IntoBytes + Immutable + Copy + Send + 'static> Plain for T {}

/// The number of a node in its session: 0, 1, … `nodes − 1`.
///
/// ```
/// use farfield_fabric::NodeId;
/// assert_eq!(NodeId(3).to_string(), "node 3");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeId(pub u16);

impl NodeId {
    /// The most nodes that a packed pointer can name.
    ///
    /// ```
    /// # use farfield_fabric::{GroupKey, NodeId, RemotePtr};
    /// let last = NodeId((NodeId::COUNT_MAX - 1) as u16);
    /// assert_eq!(RemotePtr::<u64>::new(last, GroupKey::DATA, 0).node(), last);
    /// ```
    pub const COUNT_MAX: usize = 1 << NODE_BITS;

    /// The node's number as an index.
    ///
    /// ```
    /// # use farfield_fabric::NodeId;
    /// let names = ["north", "south"];
    /// assert_eq!(names[NodeId(1).index()], "south");
    /// ```
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// The most nodes that a session has at a time, on shared memory and over RDMA. A node that is started again at the
/// place of a dead one does not count twice. A simulated session has at most 64 (`sim::NODES_MAX`), and some objects
/// and commands have limits of their own.
///
/// ```
/// use farfield_fabric::{NODES_MAX, shm::{ShmFabric, ShmOptions}};
/// let session = format!("doc-nodes-{}", std::process::id());
/// assert!(ShmFabric::join(&ShmOptions::new(session.clone(), 0, NODES_MAX + 1)).is_err());
/// assert!(ShmFabric::join(&ShmOptions::new(session, 0, NODES_MAX)).is_ok());
/// ```
pub const NODES_MAX: usize = 256;

/// The most numbers of nodes of a session, of those that were there before included. The last one that a pointer could
/// name stays free: a lock's word names its holder by one more.
pub(crate) const NUMBERS_MAX: usize = NodeId::COUNT_MAX - 1;

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {}", self.0)
    }
}

/// The key of a permission group of a node: memory that is granted to, and revoked from, a peer as one.
///
/// ```
/// use farfield_fabric::{GroupKey, NodeId, RemotePtr};
/// let bell = RemotePtr::<u64>::new(NodeId(1), GroupKey::SIGNAL, 0);
/// assert_eq!(bell.key(), GroupKey::SIGNAL); // a put to it wakes who waits for it
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct GroupKey(pub u8);

impl GroupKey {
    /// Memory with words that threads wait for: a put to it wakes the sleeping waiters of its node.
    ///
    /// ```
    /// # use farfield_fabric::{shm::*, *};
    /// # let node = ShmFabric::join(&ShmOptions::new(format!("doc-signal-{}", std::process::id()), 0, 1))?;
    /// let bell = node.alloc(GroupKey::SIGNAL, 8)?.remote::<u64>(0); // a put to it wakes its waiters
    /// assert_eq!(bell.key(), GroupKey::SIGNAL);
    /// # Ok::<(), Error>(())
    /// ```
    pub const SIGNAL: GroupKey = GroupKey(0);
    /// Bulk memory: a put to it wakes no thread but one that waits for a word there by operations.
    ///
    /// ```
    /// # use farfield_fabric::{shm::*, *};
    /// # let node = ShmFabric::join(&ShmOptions::new(format!("doc-data-{}", std::process::id()), 0, 1))?;
    /// let rows = node.alloc(GroupKey::DATA, 4096)?.remote::<[u64; 8]>(0);
    /// assert_eq!(rows.at(1).key(), GroupKey::DATA);
    /// # Ok::<(), Error>(())
    /// ```
    pub const DATA: GroupKey = GroupKey(1);
    /// Memory that the node's service thread watches.
    ///
    /// ```
    /// # use farfield_fabric::{GroupKey, NodeId, RemotePtr};
    /// let request = RemotePtr::<u64>::new(NodeId(1), GroupKey::SERVICE, 64); // a put to it wakes the service thread
    /// assert_eq!(request.key().class(), GroupKey::DATA.class()); // it lands after earlier puts of data
    /// ```
    pub const SERVICE: GroupKey = GroupKey(2);
    /// The number of groups a node may have.
    ///
    /// ```
    /// # use farfield_fabric::GroupKey;
    /// let mut names = ["further"; GroupKey::COUNT_MAX];
    /// names[usize::from(GroupKey::DATA.0)] = "data";
    /// assert_eq!(names.len(), 256);
    /// ```
    pub const COUNT_MAX: usize = 1 << KEY_BITS;

    /// The group that names the queue pair of this one: the first three groups share one, each further group has its
    /// own. Puts by one queue pair land in order, and a get by it flushes them. There is no order between two queue
    /// pairs.
    ///
    /// ```
    /// use farfield_fabric::GroupKey;
    /// assert_eq!(GroupKey::DATA.class(), GroupKey::SERVICE.class());
    /// assert_eq!(GroupKey(3).class(), GroupKey(3));
    /// ```
    #[inline]
    pub const fn class(self) -> GroupKey {
        if self.0 <= GroupKey::SERVICE.0 { GroupKey::SIGNAL } else { self }
    }
}

const NODE_BITS: u32 = 12;
const KEY_BITS: u32 = 8;
const OFFSET_BITS: u32 = 64 - NODE_BITS - KEY_BITS;
const OFFSET_MASK: u64 = (1 << OFFSET_BITS) - 1;

/// The address of a `T` (or an array of them) in the memory of some node: node, group key and byte offset.
///
/// The packed form fits a word, so pointers may themselves be stored in network memory:
///
/// ```text
/// 63          52 51     44 43                                          0
/// ┌─────────────┬─────────┬─────────────────────────────────────────────┐
/// │ node (12)   │ key (8) │ offset in the group, bytes (44)             │
/// └─────────────┴─────────┴─────────────────────────────────────────────┘
/// ```
///
/// A pointer is a number, not a right: every operation checks it, and an invalid one is an error. Offsets have more
/// bits than a group has memory. The upper bits count how often the memory was freed before, so a pointer to an
/// earlier use of it is invalid.
///
/// ```
/// use farfield_fabric::{GroupKey, NodeId, RemotePtr};
/// let p = RemotePtr::<u64>::new(NodeId(3), GroupKey::DATA, 4096);
/// let q = RemotePtr::<u64>::from_packed(p.packed());
/// assert_eq!((q.node(), q.key(), q.offset()), (NodeId(3), GroupKey::DATA, 4096));
/// assert_eq!(p.at(2).offset(), 4112);
/// ```
#[repr(transparent)]
pub struct RemotePtr<T> {
    packed: u64,
    _type: PhantomData<fn() -> T>,
}

impl<T> Clone for RemotePtr<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for RemotePtr<T> {}
impl<T> PartialEq for RemotePtr<T> {
    fn eq(&self, other: &Self) -> bool {
        self.packed == other.packed
    }
}
impl<T> Eq for RemotePtr<T> {}

impl<T> fmt::Debug for RemotePtr<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}+{:#x}", self.node(), self.key().0, self.offset())
    }
}

impl<T> RemotePtr<T> {
    /// The place at `offset` bytes in group `key` of `node`. Bits that do not fit the packed form are cut off.
    ///
    /// ```
    /// # use farfield_fabric::{GroupKey, NodeId, RemotePtr};
    /// const HEAD: RemotePtr<u64> = RemotePtr::new(NodeId(0), GroupKey::DATA, 64);
    /// assert_eq!(HEAD.offset(), 64);
    /// ```
    #[inline]
    pub const fn new(node: NodeId, key: GroupKey, offset: u64) -> Self {
        let node = (node.0 as u64) << (KEY_BITS + OFFSET_BITS);
        Self::from_packed(node | (key.0 as u64) << OFFSET_BITS | offset & OFFSET_MASK)
    }

    /// The pointer of a packed form.
    ///
    /// ```
    /// # use farfield_fabric::{GroupKey, NodeId, RemotePtr};
    /// let word = RemotePtr::<u64>::new(NodeId(2), GroupKey::DATA, 8).packed(); // as it was read from network memory
    /// assert_eq!(RemotePtr::<u64>::from_packed(word).node(), NodeId(2));
    /// ```
    #[inline]
    pub const fn from_packed(packed: u64) -> Self {
        RemotePtr { packed, _type: PhantomData }
    }

    /// The packed form.
    ///
    /// ```
    /// # use farfield_fabric::{GroupKey, NodeId, RemotePtr};
    /// # let at = RemotePtr::<u64>::new(NodeId(1), GroupKey::DATA, 64);
    /// let word: u64 = at.packed(); // to store it in network memory
    /// assert_eq!(RemotePtr::<u64>::from_packed(word), at);
    /// ```
    #[inline]
    pub const fn packed(self) -> u64 {
        self.packed
    }

    /// The node of the memory.
    ///
    /// ```
    /// # use farfield_fabric::{GroupKey, NodeId, RemotePtr};
    /// # let lock = RemotePtr::<u64>::new(NodeId(1), GroupKey::DATA, 64);
    /// assert_eq!(lock.node(), NodeId(1)); // whose death ends the wait for it
    /// ```
    #[inline]
    pub const fn node(self) -> NodeId {
        NodeId((self.packed >> (KEY_BITS + OFFSET_BITS)) as u16)
    }

    /// The permission group.
    ///
    /// ```
    /// # use farfield_fabric::{GroupKey, NodeId, RemotePtr};
    /// # let at = RemotePtr::<u64>::new(NodeId(1), GroupKey::DATA, 64);
    /// assert_eq!(at.key(), GroupKey::DATA);
    /// ```
    #[inline]
    pub const fn key(self) -> GroupKey {
        GroupKey((self.packed >> OFFSET_BITS) as u8)
    }

    /// The offset in the group, in bytes.
    ///
    /// ```
    /// # use farfield_fabric::{GroupKey, NodeId, RemotePtr};
    /// # let at = RemotePtr::<u64>::new(NodeId(1), GroupKey::DATA, 64);
    /// assert_eq!(at.at(1).offset() - at.offset(), 8);
    /// ```
    #[inline]
    pub const fn offset(self) -> u64 {
        self.packed & OFFSET_MASK
    }

    /// Node and key as one index: `node · 256 + key`.
    #[inline]
    pub(crate) const fn window(self) -> usize {
        (self.packed >> OFFSET_BITS) as usize
    }

    /// The `index`-th element of an array that starts here.
    ///
    /// ```
    /// # use farfield_fabric::{GroupKey, NodeId, RemotePtr};
    /// # let at = RemotePtr::<u64>::new(NodeId(1), GroupKey::DATA, 64);
    /// assert_eq!(at.at(2).offset(), 64 + 2 * 8);
    /// ```
    #[inline]
    #[must_use]
    pub const fn at(self, index: usize) -> Self {
        self.byte_add((index as u64).wrapping_mul(size_of::<T>() as u64))
    }

    /// The place `bytes` further on. It stays in the group, modulo the largest offset: it may be invalid, but is never
    /// in another group.
    ///
    /// ```
    /// # use farfield_fabric::{GroupKey, NodeId, RemotePtr};
    /// # let at = RemotePtr::<u64>::new(NodeId(1), GroupKey::DATA, 64);
    /// assert_eq!(at.byte_add(8), at.at(1));
    /// ```
    #[inline]
    #[must_use]
    pub const fn byte_add(self, bytes: u64) -> Self {
        Self::from_packed(self.packed & !OFFSET_MASK | self.packed.wrapping_add(bytes) & OFFSET_MASK)
    }

    /// The same address as another type.
    ///
    /// ```
    /// # use farfield_fabric::{GroupKey, NodeId, RemotePtr};
    /// # let at = RemotePtr::<u64>::new(NodeId(1), GroupKey::DATA, 64);
    /// let pair = at.cast::<[u64; 2]>();
    /// assert_eq!(pair.at(1).offset(), 64 + 16);
    /// ```
    #[inline]
    #[must_use]
    pub const fn cast<U>(self) -> RemotePtr<U> {
        RemotePtr::from_packed(self.packed)
    }
}
