//! The shared-memory fabric: nodes are processes of one host (or parts of one process), their memories are sealed
//! memfds that each maps from the others, and an operation is done by the thread that issues it.
//!
//! - `groups`: this node's memory. `lane`: the operations. `window`: what they need to know of each group. `card`: the small file by which
//!   nodes see each other's life, sleep and rights. `control`: the messages between nodes. `gone`: memory of nodes that are gone is given back. `sys`: the kernel.

mod card;
mod control;
mod gone;
mod groups;
mod lane;
pub(crate) mod sys;
#[cfg(test)]
mod tests;
mod window;

use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

pub use lane::ShmLane;
pub(crate) use lane::clear;

use self::card::{Card, DoorBell, LANES_MAX, SILENT, TAKEN};
use self::control::Control;
use self::gone::Gone;
use self::groups::OwnGroup;
use self::sys::fence::{cpus_allowed, futex_wait, heavy_fence, register_membarrier};
use self::sys::generations::{Generations, reserve_for};
use self::sys::liveness::{self, LifeCell};
use self::sys::lives::{Entry, Places};
use self::sys::memory::{Arena, Mapping};
pub use self::sys::pages::HugePages;
use self::sys::session::{CardMapping, Claim, SessionDir};
use self::window::{Attach, Windows};
use crate::alarm::{Alarm, NodeBell};
use crate::error::{Code, Error, ErrorKind, Result};
use crate::fabric::{Bell, ControlEvent, DeathRule, Fabric, PeerState, Region, Waiting, explain};
use crate::lane::Lane;
use crate::local::{Instant, Thread};
use crate::ptr::{GroupKey, NodeId, RemotePtr};
use crate::space::{GRANULE_BYTES, Offsets};

/// The layout that all processes of a session must share. It changes with any change to the card, to the control
/// messages or to what they mean.
pub const LAYOUT: &str = concat!("farfield-shm-6/", env!("CARGO_PKG_VERSION"));

/// The most nodes of one session on one host at a time.
pub const PLACES_MAX: usize = 256;
/// The most numbers of nodes of one session on one host, of those that were there before included. The last one that a pointer
/// could name stays free: a lock's word names its holder by one more.
pub const NODES_MAX: usize = NodeId::COUNT_MAX - 1;

/// How a node joins a session on shared memory.
#[derive(Clone, Debug)]
pub struct ShmOptions {
    /// The session's name: nodes with the same name find each other.
    pub session: String,
    /// This node's place. If a node that was there is gone, this one is its next life, and has another number.
    pub place: u16,
    /// How many nodes the session has at a time.
    pub places: usize,
    /// The most memory of one group, in bytes. Address space for it is reserved, memory is taken as it is needed.
    pub group_bytes_max: usize,
    /// Which pages its memory is made of.
    pub huge_pages: HugePages,
    /// The layout to announce; another one than [`LAYOUT`] is for tests of the refusal.
    pub layout: String,
    /// Seed of random choices; random if none is given.
    pub seed: Option<u64>,
}

impl ShmOptions {
    /// The node at `place` of `places` in a session.
    pub fn new(session: impl Into<String>, place: u16, places: usize) -> ShmOptions {
        ShmOptions {
            session: session.into(),
            place,
            places,
            group_bytes_max: 64 << 30,
            huge_pages: HugePages::default(),
            layout: LAYOUT.into(),
            seed: None,
        }
    }
}

/// One node on shared memory.
pub struct ShmFabric {
    me: NodeId,
    places: usize,
    session: String,
    seed: u64,
    huge_pages: HugePages,
    memory: Arc<Memory>,
    groups: Mutex<Vec<OwnGroup>>,
    free_lanes: Arc<Mutex<Vec<usize>>>,
    control: Control,
    cpus: usize,
    /// Its service thread has died, and with it the node.
    fenced: AtomicBool,
    alarm: Alarm,
}

/// Everything that is mapped. Lanes and regions keep it, so it outlives every pointer into it.
struct Memory {
    /// Before what it points into.
    windows: Arc<Windows>,
    own: Arc<OwnCard>,
    /// By their numbers. None for one that was gone before it could be seen.
    peers: Vec<OnceLock<Option<CardMapping>>>,
    /// One more than the highest number of a node that has been heard of.
    known: AtomicUsize,
    /// Those that are gone, whose memory is to be given back.
    gone: Mutex<Vec<Gone>>,
    /// Whose rights have pages on this node's card.
    admitted: Mutex<BTreeSet<NodeId>>,
    /// Arenas of this node, only ever added to.
    arenas: Mutex<Vec<(Arc<Arena>, Arc<Generations>)>>,
}

/// This node's card, and its place in the session directory.
struct OwnCard(Claim);

impl AsRef<LifeCell> for OwnCard {
    fn as_ref(&self) -> &LifeCell {
        &self.card().life
    }
}

impl OwnCard {
    fn mapping(&self) -> &CardMapping {
        self.0.card()
    }

    fn card(&self) -> &Card {
        Card::of(self.mapping())
    }
}

/// A lane's place on its node's card.
pub(crate) struct LanePlace {
    memory: Arc<Memory>,
    index: usize,
    /// 1 if it counts among the threads that share the cores.
    threads: u32,
    free: Arc<Mutex<Vec<usize>>>,
}

impl LanePlace {
    fn mark(&self) -> &AtomicU64 {
        &self.memory.own.card().marks[self.index].0
    }
}

impl Drop for LanePlace {
    fn drop(&mut self) {
        self.memory.own.card().lanes.fetch_sub(self.threads, Ordering::Relaxed);
        lock(&self.free).push(self.index);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn system(what: &'static str) -> impl Fn(&dyn core::fmt::Display) -> Error {
    move |why| ErrorKind::System { what, why: why.to_string() }.into()
}

/// Bytes at the start of each group that no region gets. Global fences read the first word.
const RESERVED_BYTES: usize = 64;

impl ShmFabric {
    /// Joins a session. It does not wait for the peers: they appear as they come.
    ///
    /// # Errors
    /// A bad name or number, a place that is taken by a living process, a directory that is not private, no memory.
    pub fn join(options: &ShmOptions) -> Result<Arc<ShmFabric>> {
        let ShmOptions { session, place, places, .. } = options;
        let (place, places) = (*place, *places);
        let session_error =
            |why: &dyn core::fmt::Display| ErrorKind::Session { session: session.clone(), why: why.to_string() };
        if places == 0 || places > PLACES_MAX {
            return Err(session_error(&format!("{places} nodes: a session on one host has 1 to {PLACES_MAX}")).into());
        }
        if usize::from(place) >= places {
            return Err(ErrorKind::UnknownNode { node: NodeId(place), nodes: places }.into());
        }
        register_membarrier().map_err(|why| system("membarrier")(&why))?;

        let directory = SessionDir::open(session).map_err(|why| session_error(&why))?;
        directory.sweep(Card::is_alive).map_err(|why| session_error(&why))?;
        let of = Places { places: places as u32, numbers: NODES_MAX as u32 };
        let Entry { claim, gone, here, living } =
            directory.enter(u32::from(place), of, Card::file(), Card::is_alive).map_err(|why| session_error(&why))?;
        let me = NodeId(claim.node() as u16);
        let seed = options.seed.unwrap_or_else(rand::random);
        let own = Arc::new(OwnCard(claim));
        own.card().incarnation.store(rand::random(), Ordering::Relaxed);

        let control = Control::open(directory, own.0.socket_path(), options, me, here.clone())
            .map_err(|why| session_error(&why))?;
        let memory = Arc::new(Memory {
            windows: Arc::new(Windows::new(NODES_MAX).map_err(|why| system("windows on peers")(&why))?),
            own,
            peers: std::iter::repeat_with(OnceLock::new).take(NODES_MAX).collect(),
            known: AtomicUsize::new(places),
            arenas: Mutex::default(),
            gone: Mutex::default(),
            admitted: Mutex::default(),
        });
        memory.admit(me)?;
        for node in [u32::from(me.0)].iter().chain(&here).chain(&gone) {
            memory.know(NodeId(*node as u16));
        }
        for node in gone {
            let _ = memory.peers[node as usize].set(None);
        }
        for (node, card) in living {
            let _ = memory.peers[node as usize].set(Some(card));
        }
        let alarm = Alarm::new(format!("farfield-wakes-{}", me.0), Box::new(WaitersBell(Arc::clone(&memory))));
        let fabric = ShmFabric {
            alarm,
            me,
            places,
            session: session.clone(),
            seed,
            huge_pages: options.huge_pages,
            memory,
            groups: Mutex::default(),
            free_lanes: Arc::new(Mutex::new((0..LANES_MAX).rev().collect())),
            control,
            cpus: cpus_allowed(),
            fenced: AtomicBool::new(false),
        };
        for (key, bell) in
            [(GroupKey::SIGNAL, Bell::Waiters), (GroupKey::DATA, Bell::Silent), (GroupKey::SERVICE, Bell::Service)]
        {
            let made = fabric.new_group(bell, options.group_bytes_max)?;
            debug_assert_eq!(made, key);
        }
        Ok(Arc::new(fabric))
    }

    fn new_group(&self, bell: Bell, bytes_max: usize) -> Result<GroupKey> {
        let mut groups = lock(&self.groups);
        let Some(key) = u8::try_from(groups.len()).ok().map(GroupKey) else {
            return Err(ErrorKind::TooMany { what: "permission groups of one node", limit: GroupKey::COUNT_MAX }.into());
        };
        let group = OwnGroup::create(&self.session, self.me, key, bell, bytes_max, self.huge_pages)?;
        let (arena, generations) = (&group.arena, &group.generations);
        lock(&self.memory.arenas).push((Arc::clone(arena), Arc::clone(generations)));
        let card = self.memory.own.card();
        let len_now = &card.group_bytes.0[usize::from(key.0)];
        len_now.store(arena.len() as u64, Ordering::Release);
        let attach = Attach {
            base: arena.base(),
            life: card.life.word(),
            right: self.memory.own_right(key, self.me),
            bell: bell_of(card, bell),
            len_now,
            generations: generations.base(),
            offsets: group.offsets(),
        };
        // SAFETY: `Memory` keeps the arena, its generations and the card as long as the windows; the arena's reservation
        // covers whatever length it will say, and the generations grow before it does.
        unsafe { self.memory.windows.attach(RemotePtr::<u8>::new(self.me, key, 0).window(), &attach) };
        self.close_if_fenced();
        groups.push(group);
        self.control.announce_groups(self, &groups);
        Ok(key)
    }

    /// Maps a group that a peer has sent.
    fn attach_peer_group(
        &self,
        peer: NodeId,
        key: GroupKey,
        bell: Bell,
        reserve: usize,
        parts: Vec<OwnedFd>,
        generations: OwnedFd,
    ) -> Result<()> {
        let Some(mapped) = self.memory.peer(peer) else {
            return Err(ErrorKind::NotConnected { node: peer }.into());
        };
        let card = Card::of(mapped);
        // The owner says in `len_now` how long its memory is; it has made it that long before.
        let said = card.group_bytes.0[usize::from(key.0)].load(Ordering::Acquire);
        let mapping = Mapping::attach(parts, reserve).map_err(|why| system("memory of a peer")(&why))?;
        let generations = Mapping::attach(vec![generations], reserve_for(reserve));
        let generations = generations.map_err(|why| system("generations of a peer's memory")(&why))?;
        let attach = Attach {
            base: mapping.base(),
            life: card.life.word(),
            right: Card::right(mapped, key, self.me),
            bell: bell_of(card, bell),
            len_now: &card.group_bytes.0[usize::from(key.0)],
            generations: generations.base(),
            offsets: Offsets::new(reserve as u64),
        };
        let real = mapping.len();
        if said > real as u64 {
            return Err(system("memory of a peer")(&format!("{said} bytes are said to be there, {real} are")));
        }
        if said / GRANULE_BYTES >= generations.len() as u64 {
            return Err(system("memory of a peer")(&format!("of {said} bytes not all have a generation")));
        }
        // SAFETY: the windows keep the mappings, and `Memory` the card as long as the windows. The peer grows its memory and then
        // its generations (sealed against shrinking) before it says so in `len_now`, and never beyond its reservation. All of
        // its first file is mapped, and the windows map the others when it says more than there was in this one.
        unsafe {
            let window = RemotePtr::<u8>::new(peer, key, 0).window();
            self.memory.windows.attach_peer(window, &attach, [mapping, generations]);
        }
        self.close_if_fenced();
        Ok(())
    }

    /// After opening a window: who fences closes those that it finds.
    fn close_if_fenced(&self) {
        fence(Ordering::SeqCst);
        if self.fenced.load(Ordering::SeqCst) {
            self.memory.close_windows();
        }
    }

    /// Fences this node's threads. When it returns, none of them writes anything any more.
    fn fence_threads(&self) {
        self.fence();
        // A thread that sets its mark after this finds that it has no right; the others' writes come to their end.
        if heavy_fence().is_err() {
            std::process::abort(); // nobody could tell when they have
        }
        for mark in &self.memory.own.card().marks {
            while mark.0.load(Ordering::Acquire) % 2 == 1 {
                std::thread::yield_now();
            }
        }
    }

    fn check_member(&self, node: NodeId) -> Result<()> {
        let is_known = node.index() < self.memory.known_peers().len();
        if is_known { Ok(()) } else { Err(ErrorKind::UnknownNode { node, nodes: self.places }.into()) }
    }

    /// Whether a peer's right to a group can be given and taken.
    fn check_right(&self, peer: NodeId, key: GroupKey) -> Result<()> {
        self.check_member(peer)?;
        let is_known = usize::from(key.0) < lock(&self.groups).len();
        if is_known { Ok(()) } else { Err(ErrorKind::UnknownGroup { node: self.me, key }.into()) }
    }

    /// Whether all threads that use lanes on this host have a core of their own, as far as can be told.
    fn cores_suffice(&self) -> bool {
        let mut lanes = self.memory.own.card().lanes.load(Ordering::Relaxed) as usize;
        for peer in self.memory.known_peers() {
            let Some(Some(card)) = peer.get() else { continue };
            let card = Card::of(card);
            if liveness::is_alive(card.life.word().load(Ordering::Relaxed)) {
                lanes += card.lanes.load(Ordering::Relaxed) as usize;
            }
        }
        lanes <= self.cpus
    }
}

/// A service thread that panics takes its node along: its own threads are fenced, and then the others are told that it is
/// dead. What they take for dead writes nothing any more, though its process lives.
struct FenceOnPanic<'f>(&'f ShmFabric);

impl Drop for FenceOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fence_threads();
        }
    }
}

fn bell_of(card: &Card, bell: Bell) -> &DoorBell {
    match bell {
        Bell::Silent => &SILENT,
        Bell::Waiters => &card.waiters,
        Bell::Service => &card.service,
    }
}

impl Memory {
    fn own_right(&self, key: GroupKey, peer: NodeId) -> &core::sync::atomic::AtomicU8 {
        Card::right(self.own.mapping(), key, peer)
    }

    /// Makes sure that the rights of a peer are there, before it reads them, or this node does.
    ///
    /// # Errors
    /// The file system of the session is full.
    fn admit(&self, peer: NodeId) -> Result<()> {
        let mut admitted = lock(&self.admitted);
        if !admitted.contains(&peer) {
            self.own.0.reserve(Card::rights_of(peer)).map_err(|why| system("the rights of a peer")(&why))?;
            admitted.insert(peer);
        }
        Ok(())
    }

    fn close_windows(&self) {
        self.windows.close(self.known_peers().len());
    }

    /// The card of a peer, if it is known.
    fn peer(&self, node: NodeId) -> Option<&CardMapping> {
        self.peers.get(node.index())?.get()?.as_ref()
    }

    /// There is, or was, a node of this number.
    fn know(&self, node: NodeId) {
        self.known.fetch_max(node.index() + 1, Ordering::Relaxed);
    }

    fn known_peers(&self) -> &[OnceLock<Option<CardMapping>>] {
        &self.peers[..self.known.load(Ordering::Relaxed)]
    }
}

/// Steps of a wait before it sleeps: spins where every thread has a core, then yields.
const SPINS: u32 = 100;
const YIELDS: u32 = 50;
/// The same for a wait on another node's memory, which no bell ends.
const REMOTE_YIELDS: u32 = 1000;
/// The longest sleep: local stores ring no bell, and deadlines and deaths are to be noticed.
const SLEEP_MAX: Duration = Duration::from_micros(500);
/// The same for the service thread, which nothing but bells and control messages concerns.
const SERVICE_SLEEP_MAX: Duration = Duration::from_millis(2);

impl Fabric for ShmFabric {
    fn name(&self) -> String {
        "shm".into()
    }

    fn me(&self) -> NodeId {
        self.me
    }

    fn places(&self) -> usize {
        self.places
    }

    fn nodes(&self) -> usize {
        NODES_MAX
    }

    fn open_lane(&self, background: bool) -> Result<Lane> {
        let Some(index) = lock(&self.free_lanes).pop() else {
            return Err(ErrorKind::TooMany { what: "endpoints (threads) of one node", limit: LANES_MAX }.into());
        };
        let threads = u32::from(!background);
        self.memory.own.card().lanes.fetch_add(threads, Ordering::Relaxed);
        let place = LanePlace { memory: Arc::clone(&self.memory), index, threads, free: Arc::clone(&self.free_lanes) };
        Ok(Lane::Shm(ShmLane::new(Arc::clone(&self.memory.windows), place)))
    }

    fn create_group(&self, bell: Bell) -> Result<GroupKey> {
        let bytes_max = lock(&self.groups)[0].arena.limit();
        self.new_group(bell, bytes_max)
    }

    fn alloc(&self, key: GroupKey, bytes: usize) -> Result<Region> {
        self.alloc_in(key, bytes)
    }

    fn free(&self, region: Region) -> Result<()> {
        self.give_back(&region)
    }

    fn start_permit(&self, peer: NodeId, group: GroupKey) -> Result<()> {
        self.check_right(peer, group)?;
        self.peer_state(peer).check(peer)?;
        // Peers read it before each operation, where it lies: so it holds from now on.
        self.memory.admit(peer)?;
        self.memory.own_right(group, peer).store(0, Ordering::Release);
        Ok(())
    }

    fn is_permitted(&self, peer: NodeId, group: GroupKey) -> Result<bool> {
        self.check_right(peer, group)?;
        self.peer_state(peer).check(peer)?;
        self.memory.admit(peer)?;
        Ok(self.memory.own_right(group, peer).load(Ordering::Acquire) != TAKEN)
    }

    fn revoke(&self, peer: NodeId, group: GroupKey, timeout: Duration) -> Result<()> {
        self.check_right(peer, group)?;
        if self.peer_state(peer).check(peer).is_err() && self.memory.peer(peer).is_none() {
            return Ok(()); // it was never seen here, and will never come
        }
        self.memory.admit(peer)?;
        self.memory.own_right(group, peer).store(TAKEN, Ordering::SeqCst);
        let card = if peer == self.me {
            self.memory.own.card()
        } else {
            match self.memory.peer(peer) {
                Some(card) => Card::of(card),
                None => return Ok(()), // it was never seen here, so it has written nothing
            }
        };
        // Every core has executed a full fence when this returns: a thread of the peer either reads the right after
        // it was cleared, or its mark is visible below.
        heavy_fence().map_err(|why| system("membarrier")(&why))?;
        let start = Instant::monotonic();
        let mut waiting = Waiting::default();
        for mark in &card.marks {
            let seen = mark.0.load(Ordering::Acquire);
            while seen % 2 == 1 && mark.0.load(Ordering::Acquire) == seen {
                // A killed process runs no more user code after that fence: its threads have a fatal signal pending,
                // which the fence's interrupt delivers. Its marks stay as they were.
                if !liveness::is_alive(card.life.word().load(Ordering::Acquire))
                    && card.left.load(Ordering::Acquire) == 0
                {
                    return heavy_fence().map_err(|why| system("membarrier")(&why));
                }
                let waited = Instant::monotonic().since(start);
                if waited >= timeout {
                    return Err(ErrorKind::RevokeUndecided { node: peer, key: group, waited }.into());
                }
                if waiting.round < SPINS + YIELDS {
                    waiting.round += 1;
                    std::thread::yield_now();
                } else {
                    std::thread::sleep(Duration::from_micros(50));
                }
            }
        }
        Ok(())
    }

    fn death_rule(&self) -> DeathRule {
        DeathRule::System
    }

    fn shut_out(&self, peer: NodeId, timeout: Duration) -> Result<()> {
        let groups = lock(&self.groups).len();
        (0..groups).try_for_each(|group| self.revoke(peer, GroupKey(group as u8), timeout))
    }

    /// Nobody is shut out of shared memory but the dead: nodes whose service thread has died, though others of their threads
    /// go on.
    fn fence(&self) {
        self.fenced.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst); // with the one in `close_if_fenced`: one of the two sees the other
        self.memory.close_windows();
    }

    fn is_fenced(&self) -> bool {
        self.fenced.load(Ordering::Relaxed)
    }

    fn send_control(&self, to: NodeId, message: &[u8]) -> Result<()> {
        self.check_member(to)?;
        self.control.send(self, to, message)
    }

    fn serve(&self, timeout: Duration, event: &mut dyn FnMut(ControlEvent)) {
        self.control.serve(self, timeout, event);
    }

    fn wake_service(&self) {
        self.control.wake();
        lane::ring(&self.memory.own.card().service);
    }

    fn peer_state(&self, peer: NodeId) -> PeerState {
        let card = if peer == self.me {
            self.memory.own.card()
        } else {
            match self.memory.peers.get(peer.index()).and_then(OnceLock::get) {
                Some(Some(card)) => Card::of(card),
                Some(None) => return PeerState::Left,
                None => return PeerState::Absent,
            }
        };
        let incarnation = card.incarnation.load(Ordering::Relaxed);
        if liveness::is_alive(card.life.word().load(Ordering::Acquire)) {
            PeerState::Up { incarnation }
        } else if card.left.load(Ordering::Acquire) != 0 {
            PeerState::Left
        } else {
            PeerState::Dead { incarnation }
        }
    }

    fn leave(&self) {
        // Before the life word goes to zero, so that nobody takes leaving for dying.
        self.memory.own.card().left.store(1, Ordering::SeqCst);
        self.control.goodbye();
    }

    fn abandon(&self) {
        self.fence_threads();
        self.control.goodbye(); // the life word goes to zero without `left`
    }

    fn explain(&self, code: Code, remote: RemotePtr<u8>, len: usize) -> Error {
        let node = remote.node();
        if let Err(error) = self.check_member(node) {
            return error;
        }
        if self.is_fenced() {
            return ErrorKind::Fenced.into();
        }
        let window = self.memory.windows.get(remote.window());
        let memory_bytes = window.map_or(0, |window| window.len.load(Ordering::Relaxed));
        explain(code, self.peer_state(node), remote, len, memory_bytes)
    }

    fn now(&self) -> Instant {
        Instant::monotonic()
    }

    fn spawn(&self, name: String, body: Box<dyn FnOnce() + Send>) -> Result<Thread> {
        Thread::start(name, body)
    }

    fn spawn_service(self: Arc<Self>, name: String, body: Box<dyn FnOnce() + Send>) -> Result<Thread> {
        let (told, tell) = std::sync::mpsc::sync_channel(1);
        let (own, fabric) = (Arc::clone(&self.memory.own), Arc::clone(&self));
        let thread = Fabric::spawn(
            &*self,
            name,
            Box::new(move || {
                let guard = liveness::hold(Arc::clone(&own));
                let held = match &guard {
                    Ok(_) => own.0.started().map_err(|why| system("taking the node's place")(&why)),
                    Err(why) => Err(system("liveness word")(why)),
                };
                let failed = held.is_err();
                let _ = told.send(held);
                if failed {
                    return;
                }
                let fence = FenceOnPanic(&fabric);
                body();
                drop(fence);
                drop(guard); // the node is no longer alive; whether it left or died was said before
            }),
        )?;
        match tell.recv() {
            Ok(Ok(())) => Ok(thread),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(system("starting a thread")(&"it ended at once")),
        }
    }

    fn seed(&self) -> u64 {
        self.seed
    }

    fn idle(&self, waiting: &mut Waiting) {
        let card = self.memory.own.card();
        let bell = if waiting.service { &card.service } else { &card.waiters };
        if let Some(ring) = waiting.announced.take() {
            // The waiter has looked since the announcement and found nothing: a write since then rings.
            futex_wait(&bell.ring, ring, if waiting.service { SERVICE_SLEEP_MAX } else { SLEEP_MAX });
            bell.sleepers.fetch_sub(1, Ordering::Relaxed);
            waiting.round = YIELDS / 2; // a few more looks, then sleep again
            return;
        }
        let yields = if waiting.remote { REMOTE_YIELDS } else { YIELDS };
        if waiting.round == 0 {
            waiting.spins = if !waiting.service && self.cores_suffice() { SPINS } else { 1 };
        }
        waiting.round += 1;
        if waiting.round <= waiting.spins {
            core::hint::spin_loop();
        } else if waiting.round <= waiting.spins + yields {
            std::thread::yield_now();
        } else {
            waiting.announced = Some(announce(bell));
        }
    }

    fn idle_end(&self, waiting: &mut Waiting) {
        if waiting.announced.take().is_some() {
            let card = self.memory.own.card();
            let bell = if waiting.service { &card.service } else { &card.waiters };
            bell.sleepers.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn wake_local(&self) {
        let bell = &self.memory.own.card().waiters;
        // The caller's stores come before the look, as a sleeper's announcement before its own.
        core::sync::atomic::fence(Ordering::SeqCst);
        if bell.sleepers.load(Ordering::Relaxed) != 0 {
            lane::ring(bell);
        }
    }

    fn alarm(&self) -> Option<&Alarm> {
        Some(&self.alarm)
    }
}

/// Says that somebody will sleep on a bell: from the return on, a write to the memory behind it that is not seen rings. How
/// often it has rung.
fn announce(bell: &DoorBell) -> u32 {
    bell.sleepers.fetch_add(1, Ordering::SeqCst);
    let ring = bell.ring.load(Ordering::SeqCst);
    // Every writer either sees `sleepers` after its write, or wrote before this fence, so that the waiter's
    // next look sees it. If the kernel refuses, the sleep's bound is what remains.
    let _ = heavy_fence();
    ring
}

/// The bell of this node's waiters.
struct WaitersBell(Arc<Memory>);

impl WaitersBell {
    fn bell(&self) -> &DoorBell {
        &self.0.own.card().waiters
    }
}

impl NodeBell for WaitersBell {
    fn is_rung_by_puts(&self) -> bool {
        true
    }

    fn announce(&self) -> u32 {
        announce(self.bell())
    }

    fn heard(&self) -> u32 {
        self.bell().ring.load(Ordering::SeqCst)
    }

    fn sleep(&self, heard: u32, time: Duration) {
        futex_wait(&self.bell().ring, heard, time);
    }

    fn renounce(&self) {
        self.bell().sleepers.fetch_sub(1, Ordering::Relaxed);
    }

    fn ring(&self) {
        lane::ring(self.bell());
    }
}
