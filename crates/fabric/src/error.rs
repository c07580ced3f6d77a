//! What can go wrong in a fabric, and what to do about it.

use core::fmt;
use std::time::Duration;

use crate::{GroupKey, NodeId};

/// The result of a fabric call.
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
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The process of that node is gone.
    #[error("{node} (incarnation {incarnation:#x}) is dead: go on without it, or restart it and open its objects anew")]
    PeerDead {
        /// Which node.
        node: NodeId,
        /// Which of its lives.
        incarnation: u64,
    },
    /// The node left the session in good order.
    #[error("{node} has left the session: it takes no more operations")]
    PeerLeft {
        /// Which node.
        node: NodeId,
    },
    /// The node has not come up yet, or its memory has not been announced here.
    #[error("{node} is not connected yet: start it, or wait for it with a deadline (`Node::wait_for`)")]
    NotConnected {
        /// Which node.
        node: NodeId,
    },
    /// The node counts as up, and does not answer. Nobody knows yet whether it is dead: an operation that ended so may have
    /// been applied or not.
    #[error(
        "{node} does not answer: it may be dead, stopped or cut off; the session decides which: try again, or wait for its decision"
    )]
    Unreachable {
        /// Which node.
        node: NodeId,
    },
    /// No such node in this session.
    #[error("{node} is not a member of this session of {nodes} nodes")]
    UnknownNode {
        /// The number asked for.
        node: NodeId,
        /// How many there are.
        nodes: usize,
    },
    /// An operation of a batch went to another node than the batch.
    #[error(
        "an operation on {node} was added to a batch for {batch}: a batch orders operations on one node, begin another"
    )]
    OtherNode {
        /// The operation's node.
        node: NodeId,
        /// The batch's node.
        batch: NodeId,
    },
    /// The group key is not one of that node's.
    #[error("{node} has no permission group {}: the pointer is stale or damaged", .key.0)]
    UnknownGroup {
        /// Whose.
        node: NodeId,
        /// The key.
        key: GroupKey,
    },
    /// The place lies outside the group's memory.
    #[error("bytes {offset}..{} lie outside group {} of {node}, which has {memory_bytes} bytes: the pointer is stale or damaged", .offset + .len, .key.0)]
    OutOfBounds {
        /// Whose memory.
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
    /// The owner has given the memory back. A pointer to what has its place later is another one.
    #[error(
        "the memory at {offset:#x} in group {} of {node} was given back: its object was closed, open it anew", .key.0
    )]
    Freed {
        /// Whose memory.
        node: NodeId,
        /// The group.
        key: GroupKey,
        /// The offset, as the pointer has it.
        offset: u64,
    },
    /// Words and atomics lie on 8-byte boundaries.
    #[error("offset {offset} in group {} of {node} is not a multiple of 8", .key.0)]
    Misaligned {
        /// Whose memory.
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
    /// The group shares what carries it with others, so it cannot be taken alone.
    #[error(
        "group {} shares its connections with the other two that every node has: it cannot be taken from {node} alone; put \
         what is to be revoked into a group of its own (`create_group`)", .key.0
    )]
    Shared {
        /// The peer to be shut out.
        node: NodeId,
        /// The group.
        key: GroupKey,
    },
    /// A revocation could not be proven complete in time.
    #[error("{node} may still have one write to group {} under way after {waited:?} (it is stopped in the middle of an operation): it cannot be shut out before it runs or dies; call `revoke` again", .key.0)]
    RevokeUndecided {
        /// The peer to be shut out.
        node: NodeId,
        /// The group.
        key: GroupKey,
        /// How long it was waited for.
        waited: Duration,
    },
    /// This node was shut out by the others.
    #[error("this node has been shut out of the session: stop using its objects and rejoin")]
    Fenced,
    /// The endpoint's buffers are all in use, or as many operations on words are under way.
    #[error(
        "the endpoint's buffer pool of {limit_bytes} bytes is exhausted ({asked_bytes} more asked for): drop buffers, wait for operations, or raise `pool_bytes_max`"
    )]
    PoolExhausted {
        /// Bytes asked for.
        asked_bytes: usize,
        /// The limit.
        limit_bytes: usize,
    },
    /// Buffers have to be registered with the device, and no more memory can be.
    #[error("no registered memory for {asked_bytes} more bytes of buffers: {why}")]
    NoBufferMemory {
        /// Bytes asked for.
        asked_bytes: usize,
        /// Which limit was met, and what to do.
        why: String,
    },
    /// No memory left for a region.
    #[error("no memory for {asked_bytes} more bytes in group {}: {why}", .key.0)]
    OutOfMemory {
        /// The group.
        key: GroupKey,
        /// Bytes asked for.
        asked_bytes: usize,
        /// Which limit was met, and what to do.
        why: String,
    },
    /// A table of fixed size is full.
    #[error("{what}: at most {limit}")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// A peer runs a build with another memory layout.
    #[error("{node} runs layout {theirs}, this process layout {ours}: run the same build of Farfield on every node")]
    VersionMismatch {
        /// The peer.
        node: NodeId,
        /// This build.
        ours: String,
        /// The peer's build.
        theirs: String,
    },
    /// The session could not be entered.
    #[error("cannot enter session `{session}`: {why}")]
    Session {
        /// Its name.
        session: String,
        /// What is wrong and what to do.
        why: String,
    },
    /// A condition did not come true in time.
    #[error("not within {waited:?}")]
    Timeout {
        /// How long it was waited for.
        waited: Duration,
    },
    /// A control message was too long, or the peer does not take any more.
    #[error("control message to {node}: {why}")]
    Control {
        /// The receiver.
        node: NodeId,
        /// What is wrong.
        why: String,
    },
    /// The operating system refused something.
    #[error("{what}: {why}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Its answer.
        why: String,
    },
    /// A device does no remote atomics.
    #[error(
        "the RDMA device here or on {node} does no remote atomics on 8 bytes: use objects that need none, or a device that \
         has them (`farfield doctor` shows which)"
    )]
    NoAtomics {
        /// The target of the operation.
        node: NodeId,
    },
    /// There is no queue pair for an operation. It was not posted, and others go on.
    #[error(
        "the RDMA device here or on {node} has no queue pair left that would reach {node}'s memory or be reached from it: drop \
         endpoints, or use a device that has more (`farfield doctor` shows how many), and try again"
    )]
    NoQueuePair {
        /// The other side.
        node: NodeId,
    },
    /// A call that waits for other nodes was made on the thread that would hear them.
    #[error("`{what}` would wait for ever on the service thread, which hears the answer: call `{instead}` there")]
    OnServiceThread {
        /// Which call.
        what: &'static str,
        /// What to call instead.
        instead: &'static str,
    },
    /// The device of this node failed.
    #[error(
        "the RDMA device of this node has failed an operation to {node}: see the kernel's log, and whether locked memory is \
         limited (`ulimit -l`); the connection is lost"
    )]
    Device {
        /// The target of the operation.
        node: NodeId,
    },
    /// An operation failed because a test asked for it.
    #[error("injected fault on an operation to {node}")]
    Injected {
        /// The target of the operation.
        node: NodeId,
    },
}

impl Error {
    /// Which kind it is.
    pub fn kind(&self) -> &ErrorKind {
        &self.0
    }

    /// The node that the error is about, if it is about one.
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

    /// Whether the node of the operation is gone, by death or by leaving: then there is nobody to whom it matters.
    pub fn is_gone(&self) -> bool {
        matches!(*self.0, ErrorKind::PeerDead { .. } | ErrorKind::PeerLeft { .. })
    }

    /// Whether the node of the operation is gone, or the transport has given up on it: nothing that this node posts gets
    /// there any more. If it lives, the session will decide which of the two goes on.
    pub fn is_out_of_reach(&self) -> bool {
        self.is_gone() || matches!(*self.0, ErrorKind::Unreachable { .. })
    }

    /// Whether the operation was refused for want of something on this side: it had no effect and never will have, others were
    /// not disturbed, and another attempt may succeed.
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

/// Why one operation failed, small enough to travel in a completion. [`Error`] is built from it at the edge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Code {
    /// The target does not run, has not come, or has left.
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
    /// This node was shut out.
    Fenced,
    /// A test asked for it.
    Injected,
    /// A device on the way does no remote atomics.
    NoAtomics,
    /// This node's own device has failed it.
    Device,
    /// This node's own device has no queue pair for it; it was not posted.
    NoQueuePair,
    /// The owner has given the memory back.
    Freed,
    /// No more memory can be registered for it.
    NoBufferMemory,
}
