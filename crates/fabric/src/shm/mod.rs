//! The shared-memory fabric: nodes are processes of one host (or parts of one process), their memories are sealed
//! memfds that each maps from the others, and an operation is done by the thread that issues it.
//!
//! - `fences`: full fences on the threads that may be writing. `groups`: this node's memory. `lane`, `nearby`, `copy`:
//!   the operations. `window`: the facts that they need of each group. `node_header`: the small file by which nodes
//!   see each other's life, sleep and rights. `control`: messages. `gone`: of nodes that have gone.
//!   `crate::sys`: the kernel.

mod control;
mod copy;
mod fences;
mod gone;
mod groups;
mod lane;
mod leftovers;
mod limits;
mod nearby;
mod node_header;
mod options;
mod reach;
#[cfg(test)]
mod tests;
mod waiting;
mod window;

use core::sync::atomic::{AtomicBool, Ordering, fence};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use self::control::Control;
use self::fences::Fence;
use self::groups::OwnGroup;
pub use self::lane::ShmLane;
pub use self::leftovers::{remove_leftovers, rendezvous_directory};
pub use self::limits::LAYOUT;
use self::limits::{lock, system};
pub(crate) use self::nearby::Reached;
use self::node_header::{DoorBell, LANES_MAX, NodeHeader, TAKEN};
pub use self::options::ShmOptions;
use self::reach::{LanePlace, Memory, OwnCard};
use self::waiting::{SPINS, WaitersBell, YIELDS};
use self::window::Attach;
use crate::alarm::Alarm;
use crate::error::{Code, Error, ErrorKind, Result};
use crate::fabric::{
    Bell, ControlEvent, DeathRule, Fabric, PeerState, Region, Transport, Waiting, check_nodes, explain,
};
use crate::lane::Lane;
use crate::local::{Instant, Thread};
use crate::ptr::{GroupKey, NUMBERS_MAX, NodeId, RemotePtr};
use crate::space::{GRANULE_BYTES, Offsets};
use crate::sys::fence::{cpus_allowed, fence_own_threads, register_membarrier};
use crate::sys::generations::reserve_for;
use crate::sys::incarnations::{Entry, Places};
use crate::sys::liveness;
use crate::sys::memory::Mapping;
pub use crate::sys::pages::HugePages;
use crate::sys::process::process_number;
use crate::sys::session::SessionDir;

/// One node on shared memory.
///
/// ```
/// # use farfield_fabric::{shm::*, *};
/// fn another_thread(node: &std::sync::Arc<ShmFabric>) -> Result<Endpoint> {
///     Endpoint::open(node.clone(), EndpointOptions::default())
/// }
/// ```
pub struct ShmFabric {
    me: NodeId,
    places: usize,
    session: String,
    seed: u64,
    huge_pages: HugePages,
    memory: Arc<Memory>,
    groups: Mutex<Vec<OwnGroup>>,
    free_lanes: Arc<Mutex<Vec<usize>>>,
    /// Its process: see `fences`.
    process: u64,
    /// By peer and group.
    rights: Mutex<BTreeMap<(NodeId, u8), Right>>,
    control: Control,
    cpus: usize,
    /// Its service thread has died, and with it the node.
    fenced: AtomicBool,
    alarm: Alarm,
}

/// What is known of the right of a peer to a group.
#[derive(Default)]
struct Right {
    /// How often it was given. What began before does for no revocation after that.
    permits: u64,
    /// A revocation that was not decided in time.
    begun: Option<Revocation>,
}

/// A revocation: the fence of the peer's threads; and then the lanes with writes that were under way, with their marks.
struct Revocation {
    fence: Fence,
    writes: Option<Vec<(usize, u64)>>,
}

impl ShmFabric {
    /// Joins a session. It does not wait for the peers, which appear as they start.
    ///
    /// ```
    /// # use farfield_fabric::{shm::*, *};
    /// let session = format!("doc-join-{}", std::process::id());
    /// let node = ShmFabric::join(&ShmOptions::new(session.clone(), 0, 1))?;
    /// assert!(ShmFabric::join(&ShmOptions::new(session, 7, 1)).is_err()); // it has one place
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// A bad name or number, a place that is taken by a living process, a directory that is not private, no memory.
    pub fn join(options: &ShmOptions) -> Result<Arc<ShmFabric>> {
        let ShmOptions { session, place, places, .. } = options;
        let (place, places) = (*place, *places);
        let session_error =
            |why: &dyn core::fmt::Display| ErrorKind::Session { session: session.clone(), why: why.to_string() };
        check_nodes(places)?;
        if usize::from(place) >= places {
            return Err(ErrorKind::UnknownNode { node: NodeId(place), nodes: places }.into());
        }
        register_membarrier().map_err(|why| system("membarrier")(&why))?;

        let directory = SessionDir::open(session).map_err(|why| session_error(&why))?;
        directory.sweep(NodeHeader::is_alive).map_err(|why| session_error(&why))?;
        let of = Places { places: places as u32, numbers: NUMBERS_MAX as u32 };
        let Entry { claim, gone, here, living } = directory
            .enter(u32::from(place), of, NodeHeader::file(), NodeHeader::is_alive)
            .map_err(|why| session_error(&why))?;
        let me = NodeId(claim.node() as u16);
        let seed = options.seed.unwrap_or_else(rand::random);
        let own = Arc::new(OwnCard(claim));
        own.card().incarnation.store(rand::random(), Ordering::Relaxed);
        let process = process_number().map_err(|why| system("a random number")(&why))?;
        own.card().process.store(process, Ordering::Relaxed);

        let control = Control::open(directory, own.0.socket_path(), options, me, here.clone())
            .map_err(|why| session_error(&why))?;
        let memory = Arc::new(Memory::new(own, places)?);
        memory.admit(me)?;
        memory.know(me);
        memory.learn(&here, gone, living);
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
            process,
            rights: Mutex::default(),
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
        // SAFETY: `Memory` keeps the arena, its generations and the card as long as the windows; the arena's
        // reservation covers any length that it will announce, and the generations grow before it does.
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
        let card = NodeHeader::of(mapped);
        // `len_now` is the length of the memory as its owner announces it; the owner has grown the memory before.
        let said = card.group_bytes.0[usize::from(key.0)].load(Ordering::Acquire);
        let mapping = Mapping::attach(parts, reserve).map_err(|why| system("memory of a peer")(&why))?;
        let generations = Mapping::attach(vec![generations], reserve_for(reserve));
        let generations = generations.map_err(|why| system("generations of a peer's memory")(&why))?;
        let attach = Attach {
            base: mapping.base(),
            life: card.life.word(),
            right: NodeHeader::right(mapped, key, self.me),
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
        // SAFETY: the windows keep the mappings, and `Memory` the card as long as the windows. The peer grows its
        // memory and then its generations (sealed against shrinking) before it announces the new length in `len_now`,
        // and never beyond its reservation. All of its first file is mapped, and the windows map the others when it
        // announces more than this one had.
        let is_first = unsafe {
            let window = RemotePtr::<u8>::new(peer, key, 0).window();
            self.memory.windows.attach_peer(window, &attach, [mapping, generations])
        };
        if !is_first {
            return Err(system("memory of a peer")(&"it was announced twice"));
        }
        self.close_if_fenced();
        Ok(())
    }

    /// Runs after a window was opened: a fence closes only the windows that it finds.
    fn close_if_fenced(&self) {
        fence(Ordering::SeqCst);
        if self.fenced.load(Ordering::SeqCst) {
            self.memory.close_windows();
        }
    }

    /// Fences this node's threads. When it returns, none of them writes any more.
    fn fence_threads(&self) {
        self.fence_self();
        // A thread that sets its mark after this finds that it has no right; the other threads' writes complete.
        if fence_own_threads().is_err() {
            std::process::abort(); // the end of the writes could not be known
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

    /// Whether all threads that use lanes on this host have a core of their own, as far as is known.
    fn cores_suffice(&self) -> bool {
        let mut lanes = self.memory.own.card().lanes.load(Ordering::Relaxed) as usize;
        for peer in self.memory.known_peers() {
            let Some(Some(card)) = peer.get() else { continue };
            let card = NodeHeader::of(card);
            if liveness::is_alive(card.life.word().load(Ordering::Relaxed)) {
                lanes += card.lanes.load(Ordering::Relaxed) as usize;
            }
        }
        lanes <= self.cpus
    }
}

/// If the service thread panics, the node dies: its own threads are fenced, and then the others learn that it is dead.
/// A node that they take for dead writes nothing any more, though its process lives.
struct FenceOnPanic<'f>(&'f ShmFabric);

impl Drop for FenceOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fence_threads();
        }
    }
}

fn bell_of(card: &NodeHeader, bell: Bell) -> &DoorBell {
    match bell {
        Bell::Silent => &card.others,
        Bell::Waiters => &card.waiters,
        Bell::Service => &card.service,
    }
}

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
        NUMBERS_MAX
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
        // Peers read it before each operation, directly on this card: so it holds from now on.
        self.memory.admit(peer)?;
        let mut rights = lock(&self.rights);
        let right = rights.entry((peer, group.0)).or_default();
        (right.permits, right.begun) = (right.permits + 1, None);
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
        // A revocation that an earlier call has begun continues.
        let (begun, permits) = {
            let mut rights = lock(&self.rights);
            self.memory.own_right(group, peer).store(TAKEN, Ordering::SeqCst);
            let right = rights.entry((peer, group.0)).or_default();
            (right.begun.take(), right.permits)
        };
        let card = if peer == self.me {
            self.memory.own.card()
        } else {
            match self.memory.peer(peer) {
                Some(card) => NodeHeader::of(card),
                None => return Ok(()), // it was never seen here, so it has written nothing
            }
        };
        let start = Instant::monotonic();
        let mut revocation = match begun {
            Some(begun) => begun,
            None => Revocation { fence: self.begin_fence(Some(peer))?, writes: None },
        };
        let undecided = |revocation: Revocation| {
            let mut rights = lock(&self.rights);
            let right = rights.entry((peer, group.0)).or_default();
            if right.permits == permits {
                right.begun = Some(revocation);
            }
            let waited = Instant::monotonic().since(start);
            Err(ErrorKind::RevokeUndecided { node: peer, key: group, waited }.into())
        };
        let mut waiting = Waiting::default();
        loop {
            let left = timeout.saturating_sub(Instant::monotonic().since(start));
            if !revocation.fence.is_over() {
                self.urge(&revocation.fence);
                if !self.wait_for_fence(&mut revocation.fence, left) {
                    return undecided(revocation);
                }
            }
            // A thread of the peer has read the right after it was taken, or its mark is visible here.
            let mark = |lane: usize| card.marks[lane].0.load(Ordering::Acquire);
            let all = || (0..LANES_MAX).map(|lane| (lane, mark(lane))).filter(|(_, mark)| mark % 2 == 1).collect();
            let writes = revocation.writes.get_or_insert_with(all);
            writes.retain(|(lane, seen)| mark(*lane) == *seen);
            // The marks of a process that was killed stay as they were.
            if writes.is_empty() || self.memory.has_ended(peer) {
                return Ok(());
            }
            if left.is_zero() {
                return undecided(revocation);
            }
            if card.is_dead() {
                // Its threads soon run no more code. (All that has ended by now has no lanes to be fenced.)
                revocation.fence = self.begin_fence(Some(peer))?;
                if revocation.fence.is_over() {
                    return Ok(());
                }
                continue;
            }
            self.answer_fences();
            if waiting.round < SPINS + YIELDS {
                waiting.round += 1;
                std::thread::yield_now();
            } else {
                std::thread::sleep(Duration::from_micros(50));
            }
        }
    }

    fn death_rule(&self) -> DeathRule {
        DeathRule::System
    }

    fn is_fenced(&self) -> bool {
        self.fenced.load(Ordering::Relaxed)
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
                Some(Some(card)) => NodeHeader::of(card),
                Some(None) => return PeerState::Left,
                None => return PeerState::NotJoined,
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

    fn now(&self) -> Instant {
        Instant::monotonic()
    }

    fn seed(&self) -> u64 {
        self.seed
    }

    fn wake_local(&self) {
        lane::wake(&self.memory.own.card().waiters);
    }
}

impl Transport for ShmFabric {
    fn open_lane(&self, background: bool) -> Result<Box<dyn Lane>> {
        let Some(index) = lock(&self.free_lanes).pop() else {
            return Err(ErrorKind::TooMany { what: "endpoints (threads) of one node", limit: LANES_MAX }.into());
        };
        let threads = u32::from(!background);
        let card = self.memory.own.card();
        card.lanes.fetch_add(threads, Ordering::Relaxed);
        card.open_lanes.fetch_add(1, Ordering::SeqCst); // before it reads any right: see `begin_fence`
        let place = LanePlace { memory: Arc::clone(&self.memory), index, threads, free: Arc::clone(&self.free_lanes) };
        Ok(Box::new(ShmLane::new(Arc::clone(&self.memory.windows), place)))
    }

    fn evict(&self, peer: NodeId, timeout: Duration) -> Result<()> {
        let groups = lock(&self.groups).len();
        (0..groups).try_for_each(|group| self.revoke(peer, GroupKey(group as u8), timeout))
    }

    /// On shared memory a node is fenced only when its service thread has died while other threads of it still run.
    fn fence_self(&self) {
        self.fenced.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst); // with the one in `close_if_fenced`: one of the two sees the other
        self.memory.close_windows();
    }

    fn send_control(&self, to: NodeId, message: &[u8]) -> Result<()> {
        self.check_member(to)?;
        self.control.send(self, to, message)
    }

    fn serve(&self, timeout: Duration, event: &mut dyn FnMut(ControlEvent)) {
        self.control.serve(self, timeout, event);
    }

    fn leave(&self) {
        // Before the life word becomes zero, so that no node takes the departure for a death.
        self.memory.own.card().left.store(1, Ordering::SeqCst);
        self.control.goodbye();
    }

    fn leave_uncleanly(&self) {
        self.fence_threads();
        self.control.goodbye(); // the life word becomes zero without `left`
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

    fn spawn(&self, name: String, body: Box<dyn FnOnce() + Send>) -> Result<Thread> {
        Thread::start(name, body)
    }

    fn spawn_service(self: Arc<Self>, name: String, body: Box<dyn FnOnce() + Send>) -> Result<Thread> {
        let (told, tell) = std::sync::mpsc::sync_channel(1);
        let (own, fabric) = (Arc::clone(&self.memory.own), Arc::clone(&self));
        let thread = Transport::spawn(
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

    fn is_spin_worthwhile(&self) -> bool {
        self.cores_suffice()
    }

    fn idle(&self, waiting: &mut Waiting) {
        self.step(waiting);
    }

    fn idle_end(&self, waiting: &mut Waiting) {
        self.end(waiting);
    }

    fn alarm(&self) -> Option<&Alarm> {
        Some(&self.alarm)
    }
}
