//! What a fabric offers a node: memory, lanes, control messages, time, threads, liveness and permissions.

mod region;

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

pub use self::region::{Region, Span, Words};
use crate::alarm::Alarm;
use crate::error::{Code, Error, ErrorKind, Result};
use crate::lane::Lane;
use crate::local::{Instant, Thread};
use crate::ptr::{GroupKey, NodeId, RemotePtr};

/// One process's membership in a session, as the fabric sees it.
///
/// Everything that the layers above depend on comes from here, so that a simulator may own every choice.
pub trait Fabric: Any + Send + Sync {
    /// A short name: `shm`, `weak(shm)`.
    fn name(&self) -> String;
    /// This node.
    fn me(&self) -> NodeId;
    /// How many nodes the session has at a time, those not yet come included. Their numbers are the lowest.
    fn places(&self) -> usize;
    /// How many numbers of nodes there are. A node that was gone and returns is another one, with a number of its own: the
    /// lives of a place have the numbers `place`, `place + places`, `place + 2 · places`, … So no pointer to what a node had
    /// in one life reaches anything in the next.
    fn nodes(&self) -> usize;

    /// A lane for one more thread; in the background if that thread mostly sleeps or has another lane.
    ///
    /// # Errors
    /// [`ErrorKind::TooMany`](crate::ErrorKind::TooMany) when the node's lanes are used up.
    fn open_lane(&self, background: bool) -> Result<Lane>;

    /// A new permission group of this node. The first three exist from the start, see [`GroupKey`].
    ///
    /// A fabric may give a further group queue pairs of its own, so that it can be revoked. Order ("puts to one node land
    /// in order", "a get flushes") holds among the first three groups, and within each further one, not between them.
    ///
    /// It waits until all peers reach it, but for the service thread: there [`Fabric::is_permitted`] says when one does.
    ///
    /// # Errors
    /// [`ErrorKind::TooMany`](crate::ErrorKind::TooMany), or what the system says.
    fn create_group(&self, bell: Bell) -> Result<GroupKey>;

    /// Zeroed memory in a group of this node, aligned to a cache line. It stays until it is given back by
    /// [`Fabric::free`], or the node leaves.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfMemory`](crate::ErrorKind::OutOfMemory), an unknown group, or a peer that counts as up and does not
    /// take note of new memory in time.
    fn alloc(&self, group: GroupKey, bytes: usize) -> Result<Region>;

    /// Words of this node that operations work on, and its processor never does: of locks and counters, which remote atomics
    /// alone change. Word `i` is `pattern[i % pattern.len()]` at first, and 0 with an empty pattern. Where the node's device has memory of its own, they lie in it, and an
    /// operation on them does not cross the bus; elsewhere, or when that memory is used up, in the machine's.
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

    /// Gives words back, as [`Fabric::free`] does memory.
    ///
    /// # Errors
    /// As [`Fabric::free`].
    fn free_words(&self, words: Words) -> Result<()> {
        self.free(words.region)
    }

    /// Gives memory of this node back. From its call on, operations towards the region's pointers end in
    /// [`ErrorKind::Freed`](crate::ErrorKind::Freed), on this node and on all others: on these as soon as they hear of it, which
    /// on one host is at once. Its memory is used for later regions only when nothing that was posted to it can land or read
    /// any more, and when the last clone of `region`, and the last operation from or to it as local memory, is gone here. An operation
    /// under way lands before that, or ends in that error; what a get then has brought is worth nothing.
    ///
    /// It waits for no peer, so the service thread may call it. A clone of a region that was given back already is no error.
    /// Pointers to the new region are others than those to the old one, though it may have the old one's place.
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
    /// The region is not this node's, or what the system says; then its memory is not used again.
    fn free(&self, region: Region) -> Result<()>;

    /// Lets a peer read and write a group of this node, and waits until it can. All peers may from the start.
    ///
    /// When it returns `Ok`, no operation that an endpoint of the peer posts from then on is refused for want of the right,
    /// until it is taken again; endpoints that the peer opens later have it, too. So a message that is sent to the peer
    /// afterwards may tell it to write. A peer that has not come yet has the right when it comes.
    ///
    /// It may take the peer's answer, so the service thread calls [`Fabric::start_permit`] and [`Fabric::is_permitted`] instead.
    ///
    /// # Errors
    /// An unknown node or group; a peer that has left or is dead, which is given nothing.
    /// [`ErrorKind::Unreachable`](crate::ErrorKind::Unreachable): it is suspected, or has not answered within five seconds; it has
    /// the right, and `is_permitted` says when it can use it. [`ErrorKind::NoQueuePair`](crate::ErrorKind::NoQueuePair): some
    /// of its endpoints cannot; call it again when devices have more. [`ErrorKind::Revoked`](crate::ErrorKind::Revoked): another
    /// thread has taken the right meanwhile. [`ErrorKind::OnServiceThread`](crate::ErrorKind::OnServiceThread), and nothing
    /// is given.
    fn permit(&self, peer: NodeId, group: GroupKey) -> Result<()> {
        // Where a right holds as soon as it is given.
        self.start_permit(peer, group)
    }

    /// Gives the right that [`Fabric::permit`] gives, and waits for nobody: [`Fabric::is_permitted`] says when the peer can use
    /// it. Both may be called on the service thread. Where a right needs no answer (shared memory), it holds at once.
    ///
    /// ```
    /// # use farfield_fabric::{Fabric, GroupKey, NodeId, Result};
    /// /// Makes another node the writer of a log, from the service thread (a `Poller`): called again until it says `true`.
    /// fn hand_over(fabric: &dyn Fabric, log: GroupKey, leader: NodeId, has_begun: &mut bool) -> Result<bool> {
    ///     if !*has_begun {
    ///         fabric.start_permit(leader, log)?;
    ///         *has_begun = true;
    ///     }
    ///     let is_permitted = fabric.is_permitted(leader, log)?; // an error: it is gone, or does not answer
    ///     if is_permitted {
    ///         fabric.send_control(leader, b"write")?;
    ///     }
    ///     Ok(is_permitted)
    /// }
    /// ```
    ///
    /// # Errors
    /// An unknown node or group; a peer that has left or is dead, which is given nothing.
    fn start_permit(&self, peer: NodeId, group: GroupKey) -> Result<()>;

    /// Whether a peer has the right to a group of this node and can use it: what [`Fabric::permit`] waits for. It posts and sends
    /// nothing. True of a peer that has not come, unless the right was taken: it has it when it comes.
    ///
    /// # Errors
    /// An unknown node or group, a peer that has left or is dead. [`ErrorKind::Unreachable`](crate::ErrorKind::Unreachable):
    /// its answer is missing and it is suspected; if it is trusted again, so is this.
    /// [`ErrorKind::NoQueuePair`](crate::ErrorKind::NoQueuePair), as for `permit`.
    fn is_permitted(&self, peer: NodeId, group: GroupKey) -> Result<bool>;

    /// Takes a peer's right to read and write a group of this node. When it returns, no write of that peer to the group can
    /// land any more, even if the peer is stopped between two instructions.
    ///
    /// # Errors
    /// [`ErrorKind::Shared`](crate::ErrorKind::Shared) for one of the first three groups, where the fabric can only take all
    /// of them, which [`Fabric::shut_out`] does.
    /// [`ErrorKind::RevokeUndecided`](crate::ErrorKind::RevokeUndecided) when that cannot be promised within
    /// `timeout`: the right is taken, but one write may be under way.
    fn revoke(&self, peer: NodeId, group: GroupKey, timeout: Duration) -> Result<()>;

    /// Who says that a node is dead.
    fn death_rule(&self) -> DeathRule;

    /// Shuts a peer out for good. From its call on, this node's operations towards that life of the peer end in
    /// [`ErrorKind::PeerDead`](crate::ErrorKind::PeerDead); when it returns, no write of the peer can land in any group
    /// of this node any more. Under [`DeathRule::System`] it is called for the dead only.
    ///
    /// # Errors
    /// As [`Fabric::revoke`]; to be called again then.
    fn shut_out(&self, peer: NodeId, timeout: Duration) -> Result<()>;

    /// This node was shut out by the others, or its service thread has died: whatever it posts from now on, and whatever
    /// it has under way, ends in [`ErrorKind::Fenced`](crate::ErrorKind::Fenced).
    fn fence(&self);

    /// Whether it was.
    fn is_fenced(&self) -> bool;

    /// Sends a control message: reliable and in order, at most [`CONTROL_BYTES_MAX`] bytes.
    ///
    /// # Errors
    /// The peer is gone or not connected, or its queue is full because it takes no messages.
    fn send_control(&self, to: NodeId, message: &[u8]) -> Result<()>;

    /// Called in a loop by the node's service thread, and by no other: does the fabric's housekeeping, waits for at
    /// most `timeout` until something happens, and hands over what did.
    fn serve(&self, timeout: Duration, event: &mut dyn FnMut(ControlEvent));

    /// Ends the current wait in `serve`.
    fn wake_service(&self);

    /// What is known of a node.
    fn peer_state(&self, peer: NodeId) -> PeerState;

    /// Leaves in good order: tells the peers, and refuses new operations on this node's memory. Called by the service
    /// thread as its last act.
    fn leave(&self);

    /// Goes without a goodbye, because something is left undone that others wait for: they take this node for dead, and
    /// repair what it leaves. Its own threads are fenced first. Called by the service thread as its last act.
    fn abandon(&self);

    /// The error behind a code.
    fn explain(&self, code: Code, remote: RemotePtr<u8>, len: usize) -> Error;

    /// The fabric's clock, comparable between the nodes of one host.
    fn now(&self) -> Instant;

    /// Starts a thread.
    ///
    /// # Errors
    /// What the system says.
    fn spawn(&self, name: String, body: Box<dyn FnOnce() + Send>) -> Result<Thread>;

    /// Runs `body` on a new thread that carries the node's liveness: if it, or its process, dies, so does the node.
    ///
    /// # Errors
    /// What the system says.
    fn spawn_service(self: Arc<Self>, name: String, body: Box<dyn FnOnce() + Send>) -> Result<Thread>;

    /// Gives memory a name, for whoever looks on.
    fn label(&self, _remote: RemotePtr<u8>, _bytes: usize, _name: core::fmt::Arguments<'_>) {}

    /// How many queue pairs of a device this node has: of its own lanes, and those by which lanes reach it, of other nodes and
    /// of its own. A lane has one to each other node; further groups have more; and one to its own node if it has used it.
    fn queue_pairs(&self) -> (usize, usize) {
        (0, 0)
    }

    /// Why nodes that have not come were refused, or have refused this one, as far as it was heard. It is for a person to
    /// read: nobody has proved anything, so nothing follows from it.
    fn refusals(&self) -> Vec<String> {
        Vec::new()
    }

    /// A seed for this node's random choices.
    fn seed(&self) -> u64;

    /// The calling thread begins to wait, or to poll what it will wait for, perhaps in the middle of another wait.
    fn wait_begins(&self) {}
    /// The wait that has begun last is over.
    fn wait_ends(&self) {}
    /// One step of waiting by an endpoint's thread that found nothing to do. See [`Waiting`].
    fn idle(&self, waiting: &mut Waiting);
    /// The end of a wait that may have begun to sleep.
    fn idle_end(&self, waiting: &mut Waiting);
    /// The calling thread has more to do, whatever it has looked at: its next step of waiting ends by itself. (Where
    /// all steps do, this does nothing.)
    fn stay_awake(&self) {}
    /// Wakes threads of this node that sleep until a word changes, after a local store that they wait for.
    fn wake_local(&self);
    /// What wakes futures of this node that another executor polls than [`Endpoint::block_on`](crate::Endpoint::block_on).
    /// None in a simulation, where nothing else polls.
    fn alarm(&self) -> Option<&Alarm>;
}

/// The error behind a code, for a target that is a member.
pub(crate) fn explain(code: Code, state: PeerState, remote: RemotePtr<u8>, len: usize, memory_bytes: u64) -> Error {
    let (node, key) = (remote.node(), remote.key());
    let kind = match (code, state) {
        (Code::BadKey | Code::Unreachable, PeerState::Absent) => ErrorKind::NotConnected { node },
        (Code::BadKey, PeerState::Up { .. }) if key.0 <= GroupKey::SERVICE.0 => ErrorKind::NotConnected { node },
        (Code::BadKey, PeerState::Up { .. }) => ErrorKind::UnknownGroup { node, key },
        // That its rights and its memory are gone, too, says nothing more.
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
            why: "the device or the machine has no room for it, or the limit of locked memory is met: raise it (`ulimit -l \
                  unlimited`), or drop buffers and endpoints"
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
pub const CONTROL_BYTES_MAX: usize = 48 * 1024;

/// Who is woken by a put to a group's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bell {
    /// Nobody.
    Silent,
    /// Threads that wait for a word.
    Waiters,
    /// The service thread.
    Service,
}

/// Who says that a node is dead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeathRule {
    /// The system under all nodes. What it calls dead runs no more; [`PeerState::Dead`] says it to all.
    System,
    /// The nodes themselves, by a majority: one that does not answer may be out of reach only. The fabric reports
    /// [`ControlEvent::Suspected`]; a peer is [`PeerState::Dead`] here from [`Fabric::shut_out`] on.
    ///
    /// A transport that gives up on a peer does so for good: whatever this node has under way to it, and posts later, ends in
    /// [`ErrorKind::Unreachable`](crate::ErrorKind::Unreachable), and the peer stays suspected, so one of the two has to go.
    Majority,
}

/// What is known of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PeerState {
    /// It has not come yet.
    Absent,
    /// It runs.
    Up {
        /// Which of its lives.
        incarnation: u64,
    },
    /// It left in good order, or was gone before this node came.
    Left,
    /// Its process is gone.
    Dead {
        /// Which of its lives ended.
        incarnation: u64,
    },
}

impl PeerState {
    /// Whether a node is there, or may come.
    ///
    /// # Errors
    /// It has left, or is dead.
    pub(crate) fn check(self, node: NodeId) -> Result<()> {
        match self {
            PeerState::Left => Err(ErrorKind::PeerLeft { node }.into()),
            PeerState::Dead { incarnation } => Err(ErrorKind::PeerDead { node, incarnation }.into()),
            PeerState::Absent | PeerState::Up { .. } => Ok(()),
        }
    }
}

/// What `serve` reports.
#[derive(Clone, PartialEq, Debug)]
pub enum ControlEvent {
    /// A peer came up.
    Up(NodeId),
    /// A peer left or died; its state says which.
    Down(NodeId),
    /// Nothing was heard of a peer for longer than it may be silent.
    Suspected(NodeId),
    /// A suspected peer was heard of again.
    Trusted(NodeId),
    /// A peer was refused, or refused us.
    Refused(NodeId, Error),
    /// A message.
    Message(NodeId, Vec<u8>),
}

/// The state of one wait: it first spins, then yields, then sleeps.
///
/// Sleeping is announced in one step and done in the next, so that the waiter looks once more in between: a write that
/// came after its last look and before the announcement is seen by that look, a later one rings the bell.
#[derive(Debug)]
pub struct Waiting {
    pub(crate) round: u32,
    pub(crate) spins: u32,
    pub(crate) announced: Option<u32>,
    /// How often it has slept.
    pub(crate) sleeps: u32,
    /// A word of another node is waited for, too, whose change rings no bell here.
    pub(crate) remote: bool,
    /// The last step ended because operations of the thread itself were complete, and not because something else may have
    /// changed. (Where all steps end by themselves, none does for this reason alone.)
    pub(crate) only_completions: bool,
    /// It is the service thread that waits.
    pub(crate) service: bool,
    /// The next moment at which something that waits gives up, if it has said so.
    pub(crate) deadline: Instant,
}

impl Default for Waiting {
    fn default() -> Waiting {
        Waiting {
            round: 0,
            spins: 0,
            announced: None,
            sleeps: 0,
            remote: false,
            only_completions: false,
            service: false,
            deadline: Instant::NEVER,
        }
    }
}

impl Waiting {
    /// A wait of the node's service thread.
    pub fn of_service() -> Waiting {
        Waiting { service: true, ..Waiting::default() }
    }

    /// Something happened: begin again by spinning.
    #[inline]
    pub fn reset(&mut self) {
        self.round = 0;
    }

    /// The wait ends at this moment at the latest.
    pub fn until(&mut self, deadline: Instant) {
        self.deadline = deadline;
    }

    /// Whether the wait has got as far as sleeping.
    pub fn is_asleep(&self) -> bool {
        self.announced.is_some()
    }
}
