//! The contract of a fabric: memory, lanes, control messages, time, threads, liveness and permissions of a node.

mod region;
mod waiting;

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

pub use self::region::{Region, Span, Words};
pub(crate) use self::waiting::Watches;
pub use self::waiting::{Bell, Waiting};
use crate::alarm::Alarm;
use crate::error::{Code, Error, ErrorKind, Result};
use crate::lane::Lane;
use crate::local::{Instant, Thread};
use crate::ptr::{GroupKey, NODES_MAX, NodeId, RemotePtr};

/// One process's membership in a session, as applications and objects use it: its nodes, its memory, the rights to it,
/// and the clock.
///
/// Everything that the layers above depend on is here and in [`Transport`], so that a simulator may own every choice.
///
/// ```
/// use farfield_fabric::{Fabric, GroupKey, Region, Result};
/// /// A bell for each place of the session, which other nodes ring.
/// fn bells(fabric: &dyn Fabric) -> Result<Region> {
///     fabric.alloc(GroupKey::SIGNAL, fabric.places() * 8)
/// }
/// ```
pub trait Fabric: Send + Sync {
    /// A short name: `shm`, `weak(shm)`.
    ///
    /// ```
    /// fn greet(node: &dyn farfield_fabric::Fabric) { println!("{} on {}", node.me(), node.name()) }
    /// ```
    fn name(&self) -> String;

    /// This node.
    ///
    /// ```
    /// # use farfield_fabric::{shm::*, *};
    /// # let node = ShmFabric::join(&ShmOptions::new(format!("doc-me-{}", std::process::id()), 0, 1))?;
    /// assert_eq!(node.me().index() % node.places(), 0); // it is at place 0
    /// # Ok::<(), farfield_fabric::Error>(())
    /// ```
    fn me(&self) -> NodeId;

    /// The number of nodes that the session has at a time, absent ones included. Their first numbers are the lowest.
    ///
    /// ```
    /// fn majority(fabric: &dyn farfield_fabric::Fabric) -> usize { fabric.places() / 2 + 1 }
    /// ```
    fn places(&self) -> usize;

    /// The number of node numbers. A restarted node is a new node with a number of its own: the incarnations at a
    /// place have the numbers `place`, `place + places`, `place + 2 · places`, … So a pointer to the memory of one
    /// incarnation never reaches the memory of the next.
    ///
    /// ```
    /// fn last_heard(fabric: &dyn farfield_fabric::Fabric) -> Vec<u64> { vec![0; fabric.nodes()] } // by number of node
    /// ```
    fn nodes(&self) -> usize;

    /// Creates a permission group of this node. The first three exist from the start: see [`GroupKey`].
    ///
    /// A fabric may give a further group queue pairs of its own, so that it can be revoked. Order ("puts to one node
    /// land in order", "a get flushes") holds among the first three groups, and within each further one, not between
    /// them.
    ///
    /// The call waits until all peers can reach the group. On the service thread it does not wait:
    /// [`Fabric::is_permitted`] reports there whether a peer can reach it.
    ///
    /// ```
    /// # use farfield_fabric::{shm::*, *};
    /// # let node = ShmFabric::join(&ShmOptions::new(format!("doc-group-{}", std::process::id()), 0, 1))?;
    /// let log = node.create_group(Bell::Silent)?; // from which a peer can be shut out
    /// assert_eq!(log.class(), log);
    /// # Ok::<(), farfield_fabric::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::TooMany`](crate::ErrorKind::TooMany), or an error of the system.
    fn create_group(&self, bell: Bell) -> Result<GroupKey>;

    /// Allocates zeroed memory in a group of this node, aligned to a cache line. It lives until [`Fabric::free`], or
    /// until the node leaves. Where there is no memory but some that was freed, it waits for a tenth of a second for
    /// operations that were posted to that.
    ///
    /// ```
    /// # use farfield_fabric::{shm::*, *};
    /// # let node = ShmFabric::join(&ShmOptions::new(format!("doc-alloc-{}", std::process::id()), 0, 1))?;
    /// let region = node.alloc(GroupKey::SIGNAL, 64)?;
    /// assert_eq!((region.bytes(), region.word(0).load()), (64, 0));
    /// # Ok::<(), farfield_fabric::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::OutOfMemory`](crate::ErrorKind::OutOfMemory), an unknown group, or a live peer that does not
    /// acknowledge the new memory in time.
    fn alloc(&self, group: GroupKey, bytes: usize) -> Result<Region>;

    /// Allocates words of this node that only operations access, never its processor: for locks and counters, which
    /// remote atomics alone change. Word `i` starts as `pattern[i % pattern.len()]`, or as 0 with an empty pattern. If
    /// the node's device has memory of its own, the words are in it, and an operation on them does not cross the bus.
    /// Otherwise, or when that memory is used up, they are in the machine's memory.
    ///
    /// ```no_run
    /// use farfield_fabric::{Fabric, GroupKey, shm::{ShmFabric, ShmOptions}};
    /// # fn main() -> farfield_fabric::Result<()> {
    /// let node = ShmFabric::join(&ShmOptions::new("session", 0, 1))?;
    /// let counters = node.alloc_words(GroupKey::DATA, 16, &[])?;
    /// let third = counters.remote(2); // for atomics, gets and puts of all nodes, this one included
    /// # let _ = third;
    /// node.free_words(counters)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Fabric::alloc`].
    fn alloc_words(&self, group: GroupKey, count: usize, pattern: &[u64]) -> Result<Words> {
        Ok(Words::of_region(self.alloc(group, count.saturating_mul(8))?, count, pattern))
    }

    /// Frees words, as [`Fabric::free`] frees memory.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// fn close(node: &dyn Fabric, locks: Words) -> Result<()> { node.free_words(locks) }
    /// ```
    ///
    /// # Errors
    /// As [`Fabric::free`].
    fn free_words(&self, words: Words) -> Result<()> {
        self.free(words.region)
    }

    /// Frees memory of this node. From this call on, operations on the region's pointers fail with
    /// [`ErrorKind::Freed`](crate::ErrorKind::Freed), on this node and on all others. Other nodes learn of it by a
    /// message; on one host it holds at once. The memory is reused only when no operation that was posted to it can
    /// still land or read, and when this node has dropped the last clone of `region` and completed the last operation
    /// that uses it as local memory. An operation in flight lands before that, or fails with that error; the result of
    /// such a get is void.
    ///
    /// The call waits for no peer, so the service thread may make it. Freeing a clone of a freed region is no error.
    /// Pointers to a later region differ from those to the old one, even if it is at the same address.
    ///
    /// ```no_run
    /// use farfield_fabric::{Fabric, GroupKey, shm::{ShmFabric, ShmOptions}};
    /// # fn main() -> farfield_fabric::Result<()> {
    /// let node = ShmFabric::join(&ShmOptions::new("session", 0, 1))?;
    /// let region = node.alloc(GroupKey::DATA, 4096)?;
    /// node.free(region)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The region is not this node's, or an error of the system; then the memory is never reused.
    fn free(&self, region: Region) -> Result<()>;

    /// Lets a peer read and write a group of this node, and waits until it can. All peers may from the start.
    ///
    /// After `Ok`, no operation that an endpoint of the peer posts is refused for want of the right, until the right
    /// is revoked. Endpoints that the peer opens later have it, too. So a message that is sent to the peer afterwards
    /// may ask it to write. An absent peer has the right when it joins.
    ///
    /// The call may need the peer's answer, so the service thread uses [`Fabric::start_permit`] and
    /// [`Fabric::is_permitted`] instead.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # fn f(node: &dyn Fabric, log: GroupKey, leader: NodeId) -> Result<()> {
    /// node.permit(leader, log)?; // from here on a message may ask it to write
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// An unknown node or group; a departed or dead peer, which gets no right.
    /// [`ErrorKind::Unreachable`](crate::ErrorKind::Unreachable): the peer is suspected, or has not answered within
    /// five seconds. It has the right, and `is_permitted` reports when it can use it.
    /// [`ErrorKind::NoQueuePair`](crate::ErrorKind::NoQueuePair): some of its endpoints cannot use it; call again when
    /// the devices have more. [`ErrorKind::Revoked`](crate::ErrorKind::Revoked): another thread has revoked the right
    /// meanwhile. [`ErrorKind::OnServiceThread`](crate::ErrorKind::OnServiceThread): the peer gets no right.
    fn permit(&self, peer: NodeId, group: GroupKey) -> Result<()> {
        // For fabrics where a right holds at once.
        self.start_permit(peer, group)
    }

    /// Gives the right that [`Fabric::permit`] gives, without waiting: [`Fabric::is_permitted`] reports when the peer
    /// can use it. Both may be called on the service thread. Where a right needs no answer (shared memory), it holds
    /// at once.
    ///
    /// ```
    /// # use farfield_fabric::{Fabric, GroupKey, NodeId, Result};
    /// /// Makes another node the writer of a log, from the service thread (a `Poller`): called again until it is
    /// /// `true`.
    /// fn hand_over(fabric: &dyn Fabric, log: GroupKey, leader: NodeId, has_begun: &mut bool) -> Result<bool> {
    ///     if !*has_begun {
    ///         fabric.start_permit(leader, log)?;
    ///         *has_begun = true;
    ///     }
    ///     fabric.is_permitted(leader, log) // an error: the leader is gone, or does not answer
    /// }
    /// ```
    ///
    /// # Errors
    /// An unknown node or group; a departed or dead peer, which gets no right.
    fn start_permit(&self, peer: NodeId, group: GroupKey) -> Result<()>;

    /// Whether a peer has the right to a group of this node and can use it: the condition that [`Fabric::permit`]
    /// waits for. The call posts and sends nothing. True for an absent peer, unless the right was revoked: it has the
    /// right when it joins.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// fn writes(node: &dyn Fabric, peer: NodeId, log: GroupKey) -> bool { node.is_permitted(peer, log) == Ok(true) }
    /// ```
    ///
    /// # Errors
    /// An unknown node or group, a departed or dead peer. [`ErrorKind::Unreachable`](crate::ErrorKind::Unreachable):
    /// its answer is missing and it is suspected. The error ends when the peer is trusted again.
    /// [`ErrorKind::NoQueuePair`](crate::ErrorKind::NoQueuePair), as for `permit`.
    fn is_permitted(&self, peer: NodeId, group: GroupKey) -> Result<bool>;

    /// Revokes a peer's right to read and write a group of this node. After `Ok`, no write of that peer to the group
    /// can land, even if the peer is stopped between two instructions. A revocation that is not decided within the
    /// timeout continues in the next call. (On shared memory, a call that finds a peer stopped may take ten
    /// milliseconds longer.)
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// # fn f(node: &dyn Fabric, log: GroupKey, old: NodeId, leader: NodeId) -> Result<()> {
    /// node.revoke(old, log, std::time::Duration::from_millis(100))?; // it has written its last
    /// node.permit(leader, log)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Shared`](crate::ErrorKind::Shared) for one of the first three groups, if the fabric can only
    /// revoke all of them; [`Transport::evict`] does that.
    /// [`ErrorKind::RevokeUndecided`](crate::ErrorKind::RevokeUndecided) if this cannot be guaranteed within
    /// `timeout`: the right is revoked, but one write may be in flight.
    fn revoke(&self, peer: NodeId, group: GroupKey, timeout: Duration) -> Result<()>;

    /// How a death is decided.
    ///
    /// ```
    /// # use farfield_fabric::{DeathRule, Fabric};
    /// fn votes(fabric: &dyn Fabric) -> bool { fabric.death_rule() == DeathRule::Majority }
    /// ```
    fn death_rule(&self) -> DeathRule;

    /// Whether this node is fenced.
    ///
    /// ```
    /// fn may_lead(node: &dyn farfield_fabric::Fabric) -> bool { !node.is_fenced() }
    /// ```
    fn is_fenced(&self) -> bool;

    /// Ends the current wait in `serve`.
    fn wake_service(&self);

    /// The state of a node, as far as this node knows.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// fn is_up(node: &dyn Fabric, peer: NodeId) -> bool { matches!(node.peer_state(peer), PeerState::Up { .. }) }
    /// ```
    fn peer_state(&self, peer: NodeId) -> PeerState;

    /// The fabric's clock, comparable between the nodes of one host.
    ///
    /// ```
    /// # use farfield_fabric::*;
    /// fn age(fabric: &dyn Fabric, written: Instant) -> std::time::Duration { fabric.now() - written }
    /// ```
    fn now(&self) -> Instant;

    /// Names memory, for recorders and pictures.
    ///
    /// ```
    /// # fn f(node: &dyn farfield_fabric::Fabric, region: &farfield_fabric::Region) {
    /// node.label(region.remote(0), region.bytes(), format_args!("the log"));
    /// # }
    /// ```
    fn label(&self, _remote: RemotePtr<u8>, _bytes: usize, _name: core::fmt::Arguments<'_>) {}

    /// The number of queue pairs that this node has on a device: those of its own lanes, and the targets of all lanes
    /// that reach it. A lane has one queue pair to each other node, more for further groups, and one to its own node
    /// if it has used it.
    ///
    /// ```
    /// # use farfield_fabric::{shm::*, *};
    /// # let node = ShmFabric::join(&ShmOptions::new(format!("doc-pairs-{}", std::process::id()), 0, 1))?;
    /// assert_eq!(node.queue_pairs(), (0, 0)); // shared memory needs none
    /// # Ok::<(), farfield_fabric::Error>(())
    /// ```
    fn queue_pairs(&self) -> (usize, usize) {
        (0, 0)
    }

    /// The reasons why absent nodes were refused, or have refused this one. They are for a person to read: an unproven
    /// stranger may have sent them, so nothing depends on them.
    ///
    /// ```
    /// fn report(node: &dyn farfield_fabric::Fabric) { node.refusals().iter().for_each(|why| eprintln!("{why}")) }
    /// ```
    fn refusals(&self) -> Vec<String> {
        Vec::new()
    }

    /// A seed for this node's random choices.
    ///
    /// ```
    /// # use {farfield_fabric::{Fabric, Rng}, rand::SeedableRng};
    /// fn dice(node: &dyn Fabric) -> Rng { Rng::seed_from_u64(node.seed()) }
    /// ```
    fn seed(&self) -> u64;

    /// Wakes threads of this node that sleep until a word changes, after a local store to it.
    fn wake_local(&self);
}

/// The side of a [`Fabric`] that the runtime of a node uses: lanes, control messages, evictions, threads and waiting.
///
/// Decorators ([`weak`](crate::weak), [`fault`](crate::fault), [`record`](crate::record)) wrap one. An application has
/// no use for it: with it, it could evict its peers, or leave the session under the node's feet.
///
/// ```
/// # use farfield_fabric::{Result, Transport, weak::weaken};
/// /// For tests: as late and as reordered as the model allows.
/// fn under_test(fabric: std::sync::Arc<dyn Transport>) -> Result<std::sync::Arc<dyn Transport>> { weaken(fabric, 7) }
/// ```
pub trait Transport: Fabric + Any {
    /// Opens a lane for one more thread: in the background if that thread mostly sleeps or has another lane.
    ///
    /// # Errors
    /// [`ErrorKind::TooMany`](crate::ErrorKind::TooMany) when the node's lanes are used up.
    fn open_lane(&self, background: bool) -> Result<Box<dyn Lane>>;

    /// Evicts a peer for good. From this call on, this node's operations on that incarnation of the peer fail with
    /// [`ErrorKind::PeerDead`](crate::ErrorKind::PeerDead). After `Ok`, no write of the peer can land in any group of
    /// this node. Under [`DeathRule::System`] only dead peers are evicted.
    ///
    /// # Errors
    /// As [`Fabric::revoke`]; call it again then.
    fn evict(&self, peer: NodeId, timeout: Duration) -> Result<()>;

    /// Fences this node, because the others have evicted it or its service thread has died: its operations in flight,
    /// and all that it posts later, fail with [`ErrorKind::Fenced`](crate::ErrorKind::Fenced).
    fn fence_self(&self);

    /// Sends a control message: reliable and in order, at most [`CONTROL_BYTES_MAX`] bytes.
    ///
    /// # Errors
    /// The peer is dead, departed or not connected, or its queue is full because it takes no messages.
    fn send_control(&self, to: NodeId, message: &[u8]) -> Result<()>;

    /// Does the fabric's housekeeping, waits for an event for at most `timeout`, and passes events to `event`. Only the
    /// node's service thread calls it, in a loop.
    fn serve(&self, timeout: Duration, event: &mut dyn FnMut(ControlEvent));

    /// Whether [`Transport::serve`] should be called soon, whatever else the service thread has to do, because peers
    /// wait for signs of life. Never, unless the fabric says otherwise. Only the node's service thread calls it.
    fn serve_is_due(&self) -> bool {
        false
    }

    /// Leaves gracefully: notifies the peers, and refuses new operations on this node's memory. The service thread
    /// calls it as its last act.
    fn leave(&self);

    /// Exits without a goodbye, because work that others wait for is unfinished: they treat this node as dead, and
    /// recover its state. This node's own threads are fenced first. The service thread calls it as its last act.
    fn leave_uncleanly(&self);

    /// The error behind a code.
    fn explain(&self, code: Code, remote: RemotePtr<u8>, len: usize) -> Error;

    /// Starts a thread.
    ///
    /// # Errors
    /// An error of the system.
    fn spawn(&self, name: String, body: Box<dyn FnOnce() + Send>) -> Result<Thread>;

    /// Runs `body` on a new thread that carries the node's liveness: if it, or its process, dies, so does the node.
    ///
    /// # Errors
    /// An error of the system.
    fn spawn_service(self: Arc<Self>, name: String, body: Box<dyn FnOnce() + Send>) -> Result<Thread>;

    /// The calling thread begins to wait, or to poll a condition before it waits, perhaps inside another wait.
    fn wait_begins(&self) {}

    /// The innermost wait is over.
    fn wait_ends(&self) {}

    /// Whether it is worth to look again and again for a moment before a wait begins: what other nodes write is there
    /// at once, and every thread has a core of its own.
    fn is_spin_worthwhile(&self) -> bool {
        false
    }

    /// One step of waiting, by a thread that found nothing to do. See [`Waiting`].
    fn idle(&self, waiting: &mut Waiting);

    /// The end of a wait that may have begun to sleep.
    fn idle_end(&self, waiting: &mut Waiting);

    /// The calling thread has more to do, whatever it has polled: its next step of waiting ends by itself. (On fabrics
    /// where all steps do, this does nothing.)
    fn stay_awake(&self) {}

    /// The alarm that wakes futures polled by an executor other than [`Endpoint::block_on`](crate::Endpoint::block_on).
    /// None in a simulation, which has no other executor.
    fn alarm(&self) -> Option<&Alarm>;
}

/// The error behind a code, for a target that is a member.
pub(crate) fn explain(code: Code, state: PeerState, remote: RemotePtr<u8>, len: usize, memory_bytes: u64) -> Error {
    let (node, key) = (remote.node(), remote.key());
    let kind = match (code, state) {
        (Code::BadKey | Code::Unreachable, PeerState::NotJoined) => ErrorKind::NotConnected { node },
        (Code::BadKey, PeerState::Up { .. }) if key.0 <= GroupKey::SERVICE.0 => ErrorKind::NotConnected { node },
        (Code::BadKey, PeerState::Up { .. }) => ErrorKind::UnknownGroup { node, key },
        // The death also explains missing rights and memory.
        (Code::BadKey | Code::Unreachable | Code::Revoked | Code::Freed, PeerState::Left) => {
            ErrorKind::PeerLeft { node }
        }
        (Code::BadKey | Code::Unreachable | Code::Revoked | Code::Freed, PeerState::Dead { incarnation }) => {
            ErrorKind::PeerDead { node, incarnation }
        }
        (Code::Unreachable, PeerState::Up { .. }) => ErrorKind::Unreachable { node },
        (Code::OutOfBounds, _) => {
            ErrorKind::OutOfBounds { node, key, offset: remote.offset(), len: len as u64, memory_bytes }
        }
        (Code::Misaligned, _) => ErrorKind::Misaligned { node, key, offset: remote.offset() },
        (Code::Revoked, _) => ErrorKind::Revoked { node, key },
        (Code::Freed, _) => ErrorKind::Freed { node, key, offset: remote.offset() },
        (Code::PoolExhausted, _) => ErrorKind::PoolExhausted { asked_bytes: len, limit_bytes: 0 },
        (Code::NoBufferMemory, _) => ErrorKind::NoBufferMemory {
            asked_bytes: len,
            why: "the device or the machine has no room for it, or the limit of locked memory is met: raise it \
                  (`ulimit -l unlimited`), or drop buffers and endpoints"
                .into(),
        },
        (Code::Fenced, _) => ErrorKind::Fenced,
        (Code::Injected, _) => ErrorKind::Injected { node },
        (Code::NoAtomics, _) => ErrorKind::NoAtomics { node },
        (Code::NoQueuePair, _) => ErrorKind::NoQueuePair { node },
        (Code::Device, _) => ErrorKind::Device { node },
    };
    kind.into()
}

/// The longest control message.
///
/// ```
/// # use farfield_fabric::*;
/// fn send_all(node: &dyn Transport, to: NodeId, bytes: &[u8]) -> Result<()> {
///     bytes.chunks(CONTROL_BYTES_MAX).try_for_each(|part| node.send_control(to, part))
/// }
/// assert_eq!(vec![0u8; 100_000].chunks(CONTROL_BYTES_MAX).count(), 3); // messages
/// ```
pub const CONTROL_BYTES_MAX: usize = 48 * 1024;

/// How a death is decided.
///
/// ```
/// # use farfield_fabric::DeathRule;
/// fn may_be_wrong(rule: DeathRule) -> bool { rule == DeathRule::Majority } // it may only be cut off
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeathRule {
    /// By the system under all nodes. A process that it reports as dead runs no more, and is [`PeerState::Dead`] to
    /// all.
    System,
    /// By a majority of the nodes: a node that does not answer may only be unreachable. The fabric reports
    /// [`ControlEvent::Suspected`]; a peer is [`PeerState::Dead`] here from [`Transport::evict`] on.
    ///
    /// A transport that gives up on a peer does so for good. This node's operations on that peer then fail with
    /// [`ErrorKind::Unreachable`](crate::ErrorKind::Unreachable), and the peer stays suspected, so one of the two must
    /// be evicted.
    Majority,
}

/// The state of a node, as another node knows it.
///
/// ```
/// # use farfield_fabric::PeerState;
/// fn is_over(state: PeerState) -> bool { matches!(state, PeerState::Left | PeerState::Dead { .. }) }
/// # assert!(is_over(PeerState::Left) && !is_over(PeerState::NotJoined));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PeerState {
    /// It has not joined yet.
    NotJoined,
    /// It runs.
    Up {
        /// Its incarnation.
        incarnation: u64,
    },
    /// It left gracefully, or was dead or departed before this node joined.
    Left,
    /// Its process has died.
    Dead {
        /// The incarnation that ended.
        incarnation: u64,
    },
}

impl PeerState {
    /// Checks that a node is up, or may still join.
    ///
    /// # Errors
    /// It has departed, or is dead.
    pub(crate) fn check(self, node: NodeId) -> Result<()> {
        match self {
            PeerState::Left => Err(ErrorKind::PeerLeft { node }.into()),
            PeerState::Dead { incarnation } => Err(ErrorKind::PeerDead { node, incarnation }.into()),
            PeerState::NotJoined | PeerState::Up { .. } => Ok(()),
        }
    }
}

/// An event that [`Transport::serve`] reports.
///
/// ```
/// # use farfield_fabric::ControlEvent;
/// fn is_change(event: &ControlEvent) -> bool { matches!(event, ControlEvent::Up(_) | ControlEvent::Down(_)) }
/// ```
#[derive(Clone, PartialEq, Debug)]
pub enum ControlEvent {
    /// A peer came up.
    Up(NodeId),
    /// A peer left or died; its state says which. It is reported once for each peer that came up, and no `Up` follows
    /// it.
    Down(NodeId),
    /// A peer has sent nothing for longer than the suspicion timeout.
    Suspected(NodeId),
    /// A suspected peer has sent something again.
    Trusted(NodeId),
    /// A peer was refused, or has refused this node.
    Refused(NodeId, Error),
    /// A message.
    Message(NodeId, Vec<u8>),
}

/// Checks a number of nodes of a session.
///
/// ```
/// # use farfield_fabric::check_nodes;
/// assert!(check_nodes(1).is_ok());
/// assert_eq!(check_nodes(257).unwrap_err().to_string(), "257 nodes: a session has 1 to 256 nodes at a time");
/// ```
///
/// # Errors
/// It is 0, or above [`NODES_MAX`].
pub fn check_nodes(nodes: usize) -> Result<()> {
    if (1..=NODES_MAX).contains(&nodes) { Ok(()) } else { Err(ErrorKind::NodeCount { nodes }.into()) }
}
