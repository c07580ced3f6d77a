//! Which lanes reach which memory: the pairs and targets between nodes, made and ended by messages of the control
//! plane.
//!
//! ```text
//! node A                                      node B
//!   groups and their memory, Told  ────────►          B knows where A's memory lies
//!          ◄──────────────────────  groups and their memory, Told
//!   Connect(lane, class, address)  ────────►          makes a target, and connects it
//!          ◄──────────────────────  Accept(address)
//!   connects the lane's pair                          (and the same for each lane of B)
//! ```
//!
//! A node is up for another when it has received all announcements, and each of its own lanes has the connections that
//! it asked for. So a thread that has waited for a node can access its memory from any endpoint. Later lanes ask when
//! they are opened, and wait for the answers. A new group, or new memory of one, waits until the lanes of the up nodes
//! reach it.
//!
//! *The own node.* A lane reaches its own node by the carrier, too: only so are its atomics atomic with those of other
//! nodes. Most lanes never do. So the first operation to it opens the pair and its target ([`OwnNode`]), with no
//! message.
//!
//! *Rights.* Each pair of a lane has a target at the other node. Taking a right destroys the targets: after
//! that, nothing that was sent through them can land. Giving it again connects them anew. The peer is notified, since
//! otherwise its operations would fail by timeout only. It answers `Reached` when all of its lanes are connected, and
//! only then the right counts as given.
//!
//! *Order.* A node's announcements arrive in order, and before later messages of the layers above. So the memory is
//! announced before any pointer into it arrives.

mod freeing;
mod rights;
mod talk;

use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;

use self::freeing::{GivenBack, Passing};
use super::carrier::{CarriedLane, Carrier, LanePort, Pair};
use super::control::Control;
use super::layout::PeerMemory;
use super::memory::GroupMemory;
use super::message::Message;
use super::sleepers::Sleepers;
use crate::error::{Code, Error, ErrorKind, Result};
use crate::fabric::{ControlEvent, PeerState, Region};
use crate::lane::{Verb, WorkRequest};
use crate::ptr::{GroupKey, NodeId};

/// The most lanes of one node that are open at a time.
pub(super) const LANES_MAX: usize = 256;
/// The most targets for one peer: one for each of its lanes and classes of groups.
const TARGETS_MAX: usize = 8 * LANES_MAX;
/// How long a new lane or group waits for peers that are not suspected, and do not answer.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// How soon a message that a peer did not take is sent again.
const RESEND: Duration = Duration::from_millis(10);
/// The class of the first three groups.
const BASE: GroupKey = GroupKey::SIGNAL;

pub(crate) struct Connections<C: Carrier> {
    me: NodeId,
    /// Dropped before the memory of the groups, which it works on.
    carrier: C,
    control: Control,
    /// By numbers of nodes.
    states: Box<[PeerWord]>,
    /// One more than the highest number of a node that has been heard of.
    known: AtomicUsize,
    fenced: AtomicBool,
    board: Mutex<Board<C>>,
    /// Something was answered, or will not be.
    changed: Condvar,
    service: OnceLock<ThreadId>,
}

/// The state of a peer that any thread may read at any time.
#[derive(Default)]
struct PeerWord {
    state: AtomicU8,
    incarnation: AtomicU64,
}

const ABSENT: u8 = 0;
const UP: u8 = 1;
const LEFT: u8 = 2;
const DEAD: u8 = 3;
/// It counts as up, and the connection to it is broken for good.
const LOST: u8 = 4;

struct Board<C: Carrier> {
    groups: Vec<Group<C>>,
    /// Those that are or were connected, and this node.
    peers: BTreeMap<NodeId, Peer<C>>,
    lanes: BTreeMap<u32, OpenLane<C>>,
    asks: BTreeMap<u64, Ask<C>>,
    /// Peers that must reach a class of groups, by the last message that concerns it, and have not confirmed it.
    awaited: BTreeMap<(NodeId, u8), u64>,
    /// Those that have reported that some of their lanes do not reach it, for want of queue pairs.
    short: BTreeSet<(NodeId, u8)>,
    /// Rights that this node has taken.
    taken: BTreeSet<(NodeId, u8)>,
    /// The nodes that were refused, or have refused this node, by place, and have not come up since.
    refusals: BTreeMap<Option<u16>, String>,
    last_lane: u32,
    last_ask: u64,
    last_free: u64,
    /// Memory that peers have given back, and that requests of lanes here may still reach.
    passing: Vec<Passing>,
}

struct Group<C: Carrier> {
    memory: Arc<GroupMemory<C::Keeper>>,
    /// The first bytes of the chunks that the peers were notified of.
    told: BTreeSet<u64>,
    given_back: Vec<GivenBack>,
}

struct Peer<C: Carrier> {
    memory: Arc<PeerMemory>,
    /// The classes of its known groups.
    classes: BTreeSet<u8>,
    /// It is connected. (This node never is.)
    is_linked: bool,
    is_suspected: bool,
    /// It has sent all initial announcements.
    is_told: bool,
    is_up: bool,
    /// Why it cannot be reached.
    failure: Option<Error>,
    /// Messages that arrived before it was up.
    held: Vec<ControlEvent>,
    /// Messages that it did not take.
    owed: VecDeque<Vec<u8>>,
    /// The numbers of messages sent to it, and received from it.
    said: u64,
    heard: u64,
    /// It waits to hear that the lanes here reach these.
    to_reach: BTreeSet<u8>,
    /// By its lanes and the classes of groups that they reach here.
    targets: BTreeMap<(u32, u8), C::Target>,
}

impl<C: Carrier> Peer<C> {
    fn new(is_linked: bool) -> Peer<C> {
        Peer {
            memory: PeerMemory::new(),
            classes: BTreeSet::from([BASE.0]),
            is_linked,
            is_suspected: false,
            is_told: false,
            is_up: false,
            failure: None,
            held: Vec::new(),
            owed: VecDeque::new(),
            said: 0,
            heard: 0,
            to_reach: BTreeSet::new(),
            targets: BTreeMap::new(),
        }
    }

    /// Whether an answer may be expected of it soon.
    fn answers(&self) -> bool {
        self.is_linked && !self.is_suspected
    }
}

struct OpenLane<C: Carrier> {
    port: Arc<C::Port>,
    pairs: BTreeMap<(NodeId, u8), C::Switch>,
    /// The reason why it does not reach a node that it should reach.
    failure: Option<Error>,
}

/// A pair that is to be connected.
struct Ask<C: Carrier> {
    lane: u32,
    node: NodeId,
    class: u8,
    pair: C::Pair,
}

/// A lane's way to its own node, which opens with its first operation there. It closes the lane when it is dropped.
pub(crate) struct OwnNode<C: Carrier> {
    lane: u32,
    memory: Arc<PeerMemory>,
    connections: Arc<Connections<C>>,
}

impl<C: Carrier> OwnNode<C> {
    /// The node.
    pub(crate) fn id(&self) -> NodeId {
        self.connections.me
    }

    /// The layout of its memory.
    pub(crate) fn memory(&self) -> &Arc<PeerMemory> {
        &self.memory
    }

    pub(crate) fn is_fenced(&self) -> bool {
        self.connections.is_fenced()
    }

    /// Whether the calling thread is the service thread of the node, which must not wait.
    pub(crate) fn is_service(&self) -> bool {
        self.connections.is_service()
    }

    /// Whether a request that was refused with a code is one to this node that would open the way there.
    ///
    /// # Errors
    /// Another mistake of the request.
    pub(crate) fn may_open(&self, request: &WorkRequest, code: Code, has_atomics: bool) -> Result<bool, Code> {
        let remote = request.remote;
        // One that has failed has failed for good: only where there is none yet, or the right was taken.
        if remote.node() != self.id() || !matches!(code, Code::BadKey | Code::Revoked) {
            return Ok(false);
        }
        if self.is_fenced() {
            return Err(Code::Fenced);
        }
        if self.memory.is_revoked(remote.key()) {
            return Err(Code::Revoked);
        }
        if request.verb == Verb::RemoteFence {
            return Ok(true);
        }
        if !remote.offset().is_multiple_of(8) {
            return Err(Code::Misaligned);
        }
        if matches!(request.verb, Verb::Cas | Verb::Faa) && !has_atomics {
            return Err(Code::NoAtomics);
        }
        self.memory.find(remote, request.len)?;
        Ok(true)
    }

    /// Hands the lane a pair to a class of the node's own groups.
    ///
    /// # Errors
    /// The node is fenced, its right is taken, it has no such group, or the carrier no pair.
    pub(crate) fn open(&self, class: GroupKey) -> Result<(), Code> {
        self.connections.open_own(self.lane, class.0)
    }
}

impl<C: Carrier> Drop for OwnNode<C> {
    fn drop(&mut self) {
        self.connections.close_lane(self.lane);
    }
}

impl<C: Carrier> Connections<C> {
    pub(super) fn new(me: NodeId, nodes: usize, carrier: C, control: Control) -> Connections<C> {
        Connections {
            me,
            carrier,
            control,
            states: std::iter::repeat_with(PeerWord::default).take(nodes).collect(),
            known: AtomicUsize::new(0),
            fenced: AtomicBool::new(false),
            board: Mutex::new(Board {
                groups: Vec::new(),
                peers: BTreeMap::from([(me, Peer::new(false))]),
                lanes: BTreeMap::new(),
                asks: BTreeMap::new(),
                awaited: BTreeMap::new(),
                short: BTreeSet::new(),
                taken: BTreeSet::new(),
                refusals: BTreeMap::new(),
                last_lane: 0,
                last_ask: 0,
                last_free: 0,
                passing: Vec::new(),
            }),
            changed: Condvar::new(),
            service: OnceLock::new(),
        }
    }

    /// Operations of others on this node's memory are done from now on.
    pub(super) fn serve_memory(&self, sleepers: &Arc<Sleepers>) -> Result<()> {
        let memory = Arc::clone(&self.own(&mut self.lock()).memory);
        self.carrier.serve(self.me, &memory, sleepers)
    }

    fn lock(&self) -> MutexGuard<'_, Board<C>> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn carrier(&self) -> &C {
        &self.carrier
    }

    pub(super) fn control(&self) -> &Control {
        &self.control
    }

    /// The calling thread is the one that serves.
    pub(super) fn serves_here(&self) {
        let _ = self.service.set(std::thread::current().id());
    }

    // ---- the states of nodes ----------------------------------------------------------------------------------------

    pub(super) fn set_up(&self, node: NodeId, incarnation: u64) {
        self.know(node, incarnation);
        self.set_state(node, UP);
    }

    fn know(&self, node: NodeId, incarnation: u64) {
        self.states[node.index()].incarnation.store(incarnation, Ordering::Relaxed);
        self.known.fetch_max(node.index() + 1, Ordering::Relaxed);
    }

    fn set_state(&self, node: NodeId, state: u8) {
        self.states[node.index()].state.store(state, Ordering::Release);
    }

    fn state(&self, node: NodeId) -> u8 {
        self.states.get(node.index()).map_or(ABSENT, |word| word.state.load(Ordering::Acquire))
    }

    fn is_over(&self, node: NodeId) -> bool {
        matches!(self.state(node), LEFT | DEAD | LOST)
    }

    /// One more than the highest number of a node that has been heard of.
    pub(super) fn known(&self) -> usize {
        self.known.load(Ordering::Relaxed)
    }

    pub(super) fn is_lost(&self, node: NodeId) -> bool {
        self.state(node) == LOST
    }

    pub(super) fn peer_state(&self, node: NodeId) -> PeerState {
        let Some(word) = self.states.get(node.index()) else { return PeerState::NotJoined };
        let incarnation = word.incarnation.load(Ordering::Relaxed);
        match word.state.load(Ordering::Acquire) {
            UP | LOST => PeerState::Up { incarnation },
            LEFT => PeerState::Left,
            DEAD => PeerState::Dead { incarnation },
            _ => PeerState::NotJoined,
        }
    }

    /// How many bytes of a group of a node's are known.
    pub(super) fn bytes_of(&self, node: NodeId, key: GroupKey) -> u64 {
        self.lock().peers.get(&node).map_or(0, |peer| peer.memory.bytes(key))
    }

    /// How many pairs there are: of the lanes of this node, and the targets for those that reach it, its own
    /// included.
    pub(super) fn queue_pairs(&self) -> (usize, usize) {
        let board = self.lock();
        let own = board.lanes.values().map(|lane| lane.pairs.len()).sum::<usize>() + board.asks.len();
        (own, board.peers.values().map(|peer| peer.targets.len()).sum())
    }

    /// The reasons why nodes have not come up, as far as they are known.
    pub(super) fn refusals(&self) -> Vec<String> {
        self.lock().refusals.values().cloned().collect()
    }

    // ---- groups -----------------------------------------------------------------------------------------------------

    /// How many groups there are.
    pub(super) fn groups(&self) -> usize {
        self.lock().groups.len()
    }

    /// Adds a group, and waits until the peers can reach it.
    pub(super) fn create_group(&self, limit_bytes: usize) -> Result<GroupKey> {
        let mut board = self.lock();
        let Some(key) = u8::try_from(board.groups.len()).ok().map(GroupKey) else {
            return Err(ErrorKind::TooMany { what: "permission groups of one node", limit: GroupKey::COUNT_MAX }.into());
        };
        let memory = GroupMemory::create(self.carrier.keeper(), key, limit_bytes)?;
        board.groups.push(Group { memory, told: BTreeSet::new(), given_back: Vec::new() });
        let is_further = key.class() == key && key != BASE;
        if is_further {
            self.own(&mut board).classes.insert(key.0);
            self.tell_all(&mut board, &Message::Group { key: key.0 });
        }
        self.tell_chunks(&mut board, key);
        self.wait_until_reached(board, key.class().0)?;
        Ok(key)
    }

    /// Memory of a group.
    pub(super) fn alloc(&self, key: GroupKey, bytes: usize) -> Result<Region> {
        let board = self.lock();
        let Some(group) = board.groups.get(usize::from(key.0)) else {
            return Err(ErrorKind::UnknownGroup { node: self.me, key }.into());
        };
        let memory = Arc::clone(&group.memory);
        let board = match self.alloc_again(board, key, &memory, bytes)? {
            Ok(region) => return Ok(region),
            Err(board) => board,
        };
        drop(board); // registering much memory takes long, and the service thread has to say that this node lives
        let region = match memory.alloc(self.me, bytes) {
            Ok(region) => region,
            Err(error) => return self.alloc_later(key, &memory, bytes).unwrap_or(Err(error)),
        };
        let mut board = self.lock();
        self.tell_chunks(&mut board, key);
        self.wait_until_reached(board, key.class().0)?;
        Ok(region)
    }

    /// Announces the memory of a new group.
    fn tell_chunks(&self, board: &mut Board<C>, key: GroupKey) {
        let group = &mut board.groups[usize::from(key.0)];
        if group.memory.count() == group.told.len() {
            return;
        }
        let chunks: Vec<_> = group.memory.chunks().into_iter().filter(|chunk| group.told.insert(chunk.first)).collect();
        for chunk in chunks {
            self.own(board).memory.add(key, chunk);
            self.tell_all(board, &Message::Chunk { key: key.0, chunk });
        }
        self.await_reached(board, key);
    }

    /// Awaits the confirmations of the peers that they have received the announcements of a group.
    fn await_reached(&self, board: &mut Board<C>, key: GroupKey) {
        let linked = board.peers.iter().filter(|(_, peer)| peer.is_linked);
        board.awaited.extend(linked.map(|(node, peer)| ((*node, key.class().0), peer.said)));
    }

    fn own<'b>(&self, board: &'b mut Board<C>) -> &'b mut Peer<C> {
        board.peers.get_mut(&self.me).expect("this node is there from the start")
    }

    // ---- lanes ------------------------------------------------------------------------------------------------------

    /// A lane that reaches all other nodes that are up, and opens its way to this one when it needs it.
    pub(crate) fn open_lane(self: &Arc<Self>) -> Result<C::Lane> {
        let mut lane = self.carrier.open_lane()?;
        let mut board = self.lock();
        if board.lanes.len() >= LANES_MAX {
            return Err(ErrorKind::TooMany { what: "endpoints (threads) of one node", limit: LANES_MAX }.into());
        }
        board.last_lane = board.last_lane.wrapping_add(1);
        let id = board.last_lane;
        board.lanes.insert(id, OpenLane { port: lane.port(), pairs: BTreeMap::new(), failure: None });
        let memory = Arc::clone(&self.own(&mut board).memory);
        let own = OwnNode { lane: id, memory, connections: Arc::clone(self) };
        let asked = self.connect_lane(&mut board, id);
        let laggard = |board: &Board<C>| {
            let waits = |ask: &&Ask<C>| ask.lane == id && board.peers.get(&ask.node).is_some_and(Peer::answers);
            board.asks.values().find(waits).map(|ask| ask.node)
        };
        let mut board = self.wait(board, |board| laggard(board).is_some());
        let slow = laggard(&board).filter(|_| !self.is_service());
        let unreachable = slow.map(|node| ErrorKind::Unreachable { node }.into());
        let failure = board.lanes.get_mut(&id).and_then(|lane| lane.failure.take()).or(unreachable);
        drop(board); // which closing takes, if this has failed
        lane.set_own_node(own);
        asked.map_err(Into::<Error>::into)?;
        if let Some(failure) = failure {
            return Err(failure);
        }
        lane.opened();
        Ok(lane)
    }

    fn connect_lane(&self, board: &mut Board<C>, lane: u32) -> Result<(), C::Error> {
        if self.is_fenced() {
            return Ok(());
        }
        let of =
            |(node, peer): (&NodeId, &Peer<C>)| peer.classes.iter().map(|class| (*node, *class)).collect::<Vec<_>>();
        let others = board.peers.iter().filter(|(_, peer)| peer.is_linked && peer.failure.is_none());
        let ways: Vec<_> = others.flat_map(of).collect();
        ways.into_iter().try_for_each(|(node, class)| self.connect(board, lane, node, class))
    }

    /// Begins to connect a lane of this node to another, if nothing connects them yet.
    fn connect(&self, board: &mut Board<C>, lane: u32, node: NodeId, class: u8) -> Result<(), C::Error> {
        let is_asked = |ask: &Ask<C>| (ask.lane, ask.node, ask.class) == (lane, node, class);
        let is_linked = board.peers.get(&node).is_some_and(|peer| peer.is_linked);
        // The target of a second pair would take the place of the first one's.
        if !is_linked || board.asks.values().any(is_asked) {
            return Ok(());
        }
        let Some(open) = board.lanes.get(&lane).filter(|open| !open.pairs.contains_key(&(node, class))) else {
            return Ok(());
        };
        let pair = open.port.new_pair()?;
        board.last_ask += 1;
        let (ask, address) = (board.last_ask, pair.address());
        board.asks.insert(ask, Ask { lane, node, class, pair });
        self.tell(board, node, &Message::Connect { ask, lane, class, address });
        Ok(())
    }

    /// Connects a lane to a class of this node's own groups. All of it holds the lock: a fence or a revocation is
    /// earlier, and is seen here, or later, and ends the connections made here.
    fn open_own(&self, lane: u32, class: u8) -> Result<(), Code> {
        let mut board = self.lock();
        let board = &mut *board;
        if self.is_fenced() {
            return Err(Code::Fenced);
        }
        if board.taken.contains(&(self.me, class)) {
            return Err(Code::Revoked);
        }
        let own = board.peers.get_mut(&self.me).filter(|own| own.classes.contains(&class));
        let (Some(own), Some(open)) = (own, board.lanes.get_mut(&lane)) else { return Err(Code::BadKey) };
        let made = self.carrier.own_pair(&open.port, GroupKey(class));
        let (pair, target) = made.map_err(|error| {
            tracing::warn!("no pair to the own node: {error}");
            Code::NoQueuePair
        })?;
        own.targets.insert((lane, class), target);
        open.pairs.insert((self.me, class), pair.switch());
        open.port.add(self.me, GroupKey(class), pair, Arc::clone(&own.memory));
        Ok(())
    }

    fn close_lane(&self, lane: u32) {
        let mut board = self.lock();
        let open = board.lanes.remove(&lane);
        let asks: Vec<_> = board.asks.extract_if(.., |_, ask| ask.lane == lane).collect();
        let own = self.own(&mut board).targets.extract_if(.., |(of, _), _| *of == lane).collect::<Vec<_>>();
        self.tell_all(&mut board, &Message::Close { lane });
        drop(board);
        drop((open, asks, own));
    }

    /// Refuses operations of others on this node's memory from now on.
    pub(super) fn close(&self) {
        let mut board = self.lock();
        let me = self.me;
        let targets = board.peers.iter_mut().filter(|(node, _)| **node != me);
        let targets: Vec<_> = targets.map(|(_, peer)| core::mem::take(&mut peer.targets)).collect();
        for peer in board.peers.values_mut() {
            peer.is_linked = false;
        }
        self.changed.notify_all();
        drop(board);
        drop(targets);
    }

    /// Waits while others have to answer; not on the thread that would hear them, and not for ever.
    fn wait<'b>(
        &'b self,
        board: MutexGuard<'b, Board<C>>,
        is_open: impl Fn(&Board<C>) -> bool,
    ) -> MutexGuard<'b, Board<C>> {
        if self.is_service() {
            return board;
        }
        let waited = self.changed.wait_timeout_while(board, ANSWER_MAX, |board| is_open(board));
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Waits until all that answer reach a class of groups.
    fn wait_until_reached(&self, board: MutexGuard<'_, Board<C>>, class: u8) -> Result<()> {
        let board = self.wait(board, |board| board.laggard(class).is_some());
        match board.laggard(class).filter(|_| !self.is_service()) {
            Some(node) => Err(ErrorKind::Unreachable { node }.into()),
            None => Ok(()),
        }
    }

    fn is_service(&self) -> bool {
        self.service.get() == Some(&std::thread::current().id())
    }
}

impl<C: Carrier> Board<C> {
    fn linked(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.peers.iter().filter(|(_, peer)| peer.is_linked).map(|(node, _)| *node)
    }

    /// A peer that answers, and has not confirmed that it reaches a class of groups.
    fn laggard(&self, class: u8) -> Option<NodeId> {
        let mut awaited = self.awaited.keys().filter(|(_, of)| *of == class).map(|(node, _)| *node);
        awaited.find(|node| self.peers.get(node).is_some_and(Peer::answers))
    }
}
