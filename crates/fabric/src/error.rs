//! Errors of a fabric, and what to do about them.

use core::fmt;
use std::time::Duration;

use crate::{GroupKey, NODES_MAX, NodeId};

/// The result of a fabric call.
///
/// ```
/// use farfield_fabric::{Result, check_nodes};
/// fn majority(nodes: usize) -> Result<usize> { check_nodes(nodes).map(|()| nodes / 2 + 1) }
/// assert_eq!(majority(3), Ok(2));
/// assert!(majority(0).is_err());
/// ```
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// A fabric error: one pointer wide, so that the hot path returns it in a register.
///
/// ```
/// use farfield_fabric::{Error, ErrorKind, NodeId};
/// let e = Error::from(ErrorKind::PeerDead { node: NodeId(2), incarnation: 7 });
/// assert_eq!(e.node(), Some(NodeId(2)));
/// assert!(e.to_string().starts_with("node 2 (incarnation 0x7) is dead"));
/// ```
#[derive(Clone, PartialEq)]
pub struct Error(Box<ErrorKind>);

/// The kinds of fabric error.
///
/// ```
/// use farfield_fabric::{Error, ErrorKind, NodeId};
/// let error = Error::from(ErrorKind::PeerLeft { node: NodeId(1) });
/// match error.kind() {
///     ErrorKind::PeerLeft { node } | ErrorKind::PeerDead { node, .. } => println!("go on without {node}"),
///     kind => println!("{kind}"),
/// }
/// ```
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The node's process has died.
    #[error("{node} (incarnation {incarnation:#x}) is dead: continue without it, or restart it and reopen its objects")]
    PeerDead {
        /// Which node.
        node: NodeId,
        /// Its incarnation.
        incarnation: u64,
    },
    /// The node has left the session gracefully.
    #[error("{node} has left the session and accepts no more operations")]
    PeerLeft {
        /// Which node.
        node: NodeId,
    },
    /// The node has not come up yet, or its memory has not been announced here.
    #[error("{node} is not connected yet: start it, or wait for it with `Node::wait_for`")]
    NotConnected {
        /// Which node.
        node: NodeId,
    },
    /// The node counts as up but does not answer. Whether it is dead is not decided yet. The operation may or may not
    /// have been applied.
    #[error("{node} does not answer and may be dead, stopped or cut off: retry, or wait until the session has decided")]
    Unreachable {
        /// Which node.
        node: NodeId,
    },
    /// A session of no nodes, or of too many.
    #[error("{nodes} nodes: a session has 1 to {NODES_MAX} nodes at a time")]
    NodeCount {
        /// The number asked for.
        nodes: usize,
    },
    /// No such node in this session.
    #[error("{node} is not a member of this session, which has {nodes} nodes")]
    UnknownNode {
        /// The number asked for.
        node: NodeId,
        /// How many there are.
        nodes: usize,
    },
    /// An operation was added to a batch for another node.
    #[error("a batch for {batch} cannot take an operation on {node}: begin a batch for each node")]
    OtherNode {
        /// The operation's node.
        node: NodeId,
        /// The batch's node.
        batch: NodeId,
    },
    /// The node has no group with that key.
    #[error("{node} has no permission group {}: the pointer is stale or corrupt", .key.0)]
    UnknownGroup {
        /// Its node.
        node: NodeId,
        /// The key.
        key: GroupKey,
    },
    /// The bytes are outside the group's memory.
    #[error(
        "bytes {offset}..{} are outside group {} of {node}, which has {memory_bytes} bytes: the pointer is stale or \
         corrupt",
        .offset + .len,
        .key.0
    )]
    OutOfBounds {
        /// The node with the memory.
        node: NodeId,
        /// The group.
        key: GroupKey,
        /// First byte.
        offset: u64,
        /// How many bytes.
        len: u64,
        /// How many bytes the group has.
        memory_bytes: u64,
    },
    /// The owner has freed the memory. Pointers to memory allocated there later are different.
    #[error(
        "the memory at {offset:#x} in group {} of {node} was freed when its object was closed: open the object again",
        .key.0
    )]
    Freed {
        /// The node with the memory.
        node: NodeId,
        /// The group.
        key: GroupKey,
        /// The offset, as the pointer has it.
        offset: u64,
    },
    /// The offset of a word or an atomic is not a multiple of 8.
    #[error("offset {offset} in group {} of {node} is not a multiple of 8: words are aligned to 8 bytes", .key.0)]
    Misaligned {
        /// The node with the memory.
        node: NodeId,
        /// The group.
        key: GroupKey,
        /// The offset.
        offset: u64,
    },
    /// The owner has revoked this node's right to the group.
    #[error("{node} has revoked this node's access to its group {}", .key.0)]
    Revoked {
        /// The owner.
        node: NodeId,
        /// The group.
        key: GroupKey,
    },
    /// The group shares its queue pairs with others, so it cannot be revoked alone.
    #[error(
        "group {} cannot be revoked from {node} alone, because it shares queue pairs with the other default groups: \
         put revocable memory into a group of its own (`create_group`)",
        .key.0
    )]
    Shared {
        /// The peer whose right is revoked.
        node: NodeId,
        /// The group.
        key: GroupKey,
    },
    /// A revocation was not proven complete in time.
    #[error(
        "after {waited:?} {node}, which is stopped, may still have a write to group {} in flight: call `revoke` again \
         when it runs or is dead",
        .key.0
    )]
    RevokeUndecided {
        /// The peer whose right is revoked.
        node: NodeId,
        /// The group.
        key: GroupKey,
        /// How long the call waited.
        waited: Duration,
    },
    /// The other members have evicted this node.
    #[error("this node was evicted from the session: drop its objects and join again")]
    Fenced,
    /// The endpoint's buffers, or its operations on words, are all in use.
    #[error(
        "the endpoint's buffer pool of {limit_bytes} bytes has no room for {asked_bytes} more: drop buffers, \
         await operations, or raise `pool_bytes_max`"
    )]
    PoolExhausted {
        /// Bytes asked for.
        asked_bytes: usize,
        /// The limit.
        limit_bytes: usize,
    },
    /// The caller's buffer is too short.
    #[error("{asked_bytes} bytes do not fit into a buffer of {buffer_bytes} bytes")]
    BufferTooShort {
        /// Bytes that the operation returns.
        asked_bytes: usize,
        /// The size of the buffer.
        buffer_bytes: usize,
    },
    /// The device cannot register more memory for buffers.
    #[error("cannot register {asked_bytes} more bytes of buffers: {why}")]
    NoBufferMemory {
        /// Bytes asked for.
        asked_bytes: usize,
        /// Which limit was met, and what to do.
        why: String,
    },
    /// There is no memory for a region.
    #[error("cannot allocate {asked_bytes} more bytes in group {}: {why}", .key.0)]
    OutOfMemory {
        /// The group.
        key: GroupKey,
        /// Bytes asked for.
        asked_bytes: usize,
        /// Which limit was met, and what to do.
        why: String,
    },
    /// A fixed limit is reached.
    #[error("too many {what}: the limit is {limit}")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// A peer runs a build with another memory layout.
    #[error("{node} uses memory layout {theirs} and this process {ours}: run the same build of Farfield on every node")]
    VersionMismatch {
        /// The peer.
        node: NodeId,
        /// This build.
        ours: String,
        /// The peer's build.
        theirs: String,
    },
    /// This process could not join the session.
    #[error("cannot join session `{session}`: {why}")]
    Session {
        /// Its name.
        session: String,
        /// The defect, and what to do.
        why: String,
    },
    /// The deadline passed.
    #[error("timed out after {waited:?}")]
    Timeout {
        /// How long the call waited.
        waited: Duration,
    },
    /// A control message is too long, or the peer accepts no more.
    #[error("cannot send a control message to {node}: {why}")]
    Control {
        /// The receiver.
        node: NodeId,
        /// The reason.
        why: String,
    },
    /// A system call failed.
    #[error("{what}: {why}")]
    System {
        /// The call.
        what: &'static str,
        /// Its answer.
        why: String,
    },
    /// A device has no remote atomics.
    #[error(
        "the RDMA device here or on {node} has no remote atomics on 8 bytes: use objects that need none, or another \
         device (see `farfield doctor`)"
    )]
    NoAtomics {
        /// The target of the operation.
        node: NodeId,
    },
    /// There is no queue pair for the operation, which was not posted. Other operations continue.
    #[error(
        "the RDMA device here or on {node} has no free queue pair: drop endpoints and retry, or use a device with \
         more (see `farfield doctor`)"
    )]
    NoQueuePair {
        /// The other side.
        node: NodeId,
    },
    /// The service thread made a call that waits for a message, which only the service thread receives.
    #[error("`{what}` would block the service thread, which has to receive the answer: call `{instead}` there")]
    OnServiceThread {
        /// Which call.
        what: &'static str,
        /// What to call instead.
        instead: &'static str,
    },
    /// The device of this node failed.
    #[error(
        "this node's RDMA device failed an operation to {node}, and the connection is lost: check the kernel log and \
         the limit of locked memory (`ulimit -l`)"
    )]
    Device {
        /// The target of the operation.
        node: NodeId,
    },
    /// A test injected this failure.
    #[error("injected fault on an operation to {node}")]
    Injected {
        /// The target of the operation.
        node: NodeId,
    },
}

impl Error {
    /// Which kind it is.
    ///
    /// ```
    /// # use farfield_fabric::{Error, ErrorKind};
    /// let error = Error::from(ErrorKind::Fenced);
    /// assert_eq!(*error.kind(), ErrorKind::Fenced);
    /// ```
    pub fn kind(&self) -> &ErrorKind {
        &self.0
    }

    /// The node that the error is about, if it is about one.
    ///
    /// ```
    /// # use farfield_fabric::{Error, ErrorKind, NodeId};
    /// let error = Error::from(ErrorKind::NotConnected { node: NodeId(2) });
    /// assert_eq!(error.node(), Some(NodeId(2)));
    /// ```
    pub fn node(&self) -> Option<NodeId> {
        use ErrorKind as K;
        match *self.0 {
            K::PeerDead { node, .. }
            | K::PeerLeft { node }
            | K::NotConnected { node }
            | K::Unreachable { node }
            | K::UnknownNode { node, .. }
            | K::OtherNode { node, .. }
            | K::UnknownGroup { node, .. }
            | K::OutOfBounds { node, .. }
            | K::Misaligned { node, .. }
            | K::Freed { node, .. }
            | K::Revoked { node, .. }
            | K::Shared { node, .. }
            | K::RevokeUndecided { node, .. }
            | K::VersionMismatch { node, .. }
            | K::Control { node, .. }
            | K::NoAtomics { node }
            | K::NoQueuePair { node }
            | K::Device { node }
            | K::Injected { node } => Some(node),
            _ => None,
        }
    }

    /// Whether the target node is dead or departed: the operation no longer matters.
    ///
    /// ```
    /// # use farfield_fabric::{Error, ErrorKind, NodeId};
    /// assert!(Error::from(ErrorKind::PeerLeft { node: NodeId(1) }).is_gone());
    /// assert!(!Error::from(ErrorKind::Unreachable { node: NodeId(1) }).is_gone()); // it may only be cut off
    /// ```
    pub fn is_gone(&self) -> bool {
        matches!(*self.0, ErrorKind::PeerDead { .. } | ErrorKind::PeerLeft { .. })
    }

    /// Whether the target node is dead, departed or unreachable: nothing that this node posts will reach it. If both
    /// nodes are alive, the session decides which of them stays a member.
    ///
    /// ```
    /// # use farfield_fabric::{Error, ErrorKind, NodeId};
    /// assert!(Error::from(ErrorKind::PeerLeft { node: NodeId(1) }).is_unreachable());
    /// assert!(Error::from(ErrorKind::Unreachable { node: NodeId(1) }).is_unreachable());
    /// ```
    pub fn is_unreachable(&self) -> bool {
        self.is_gone() || matches!(*self.0, ErrorKind::Unreachable { .. })
    }

    /// Whether the operation was refused for lack of a local resource. It has no effect, now or later; other operations
    /// continue; a retry may succeed.
    ///
    /// ```
    /// use farfield_fabric::{Error, ErrorKind, NodeId};
    /// assert!(Error::from(ErrorKind::PoolExhausted { asked_bytes: 100, limit_bytes: 64 }).is_refused());
    /// assert!(!Error::from(ErrorKind::Unreachable { node: NodeId(1) }).is_refused());
    /// ```
    pub fn is_refused(&self) -> bool {
        use ErrorKind::{Injected, NoAtomics, NoBufferMemory, NoQueuePair, PoolExhausted};
        let is_short = matches!(*self.0, PoolExhausted { .. } | NoBufferMemory { .. } | NoQueuePair { .. });
        is_short || matches!(*self.0, NoAtomics { .. } | Injected { .. })
    }

    /// Whether a deadline passed.
    ///
    /// ```
    /// # use {farfield_fabric::{Error, ErrorKind}, std::time::Duration};
    /// assert!(Error::from(ErrorKind::Timeout { waited: Duration::from_secs(1) }).is_timeout());
    /// ```
    pub fn is_timeout(&self) -> bool {
        matches!(*self.0, ErrorKind::Timeout { .. })
    }
}

impl From<ErrorKind> for Error {
    #[cold]
    fn from(kind: ErrorKind) -> Self {
        Error(Box::new(kind))
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Error {}

/// The reason why one operation failed, small enough for a completion. [`Error`] is built from it where the operation
/// returns.
///
/// ```
/// use farfield_fabric::{Code, Status};
/// assert_eq!((size_of::<Code>(), size_of::<Status>()), (1, 1));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Code {
    /// The target is dead, absent or departed.
    Unreachable = 1,
    /// No such node or group.
    BadKey,
    /// Outside the group's memory.
    OutOfBounds,
    /// Not on an 8-byte boundary.
    Misaligned,
    /// Revoked by the owner.
    Revoked,
    /// No buffer left to execute it with.
    PoolExhausted,
    /// This node was evicted.
    Fenced,
    /// A test injected it.
    Injected,
    /// A device on the way does no remote atomics.
    NoAtomics,
    /// This node's own device has failed the operation.
    Device,
    /// This node's own device has no queue pair for the operation, which was not posted.
    NoQueuePair,
    /// The owner has freed the memory.
    Freed,
    /// No more memory can be registered for it.
    NoBufferMemory,
}
