//! One node of a simulated session.

use core::hash::BuildHasher;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::FixedState;

use super::heap;
use super::lane::SimLane;
use super::record::What;
use super::state::Pending;
use super::threads::choose;
use super::threads::{Turn, World, with_world};
use super::wait_set::{CLOCK, inbox_key, mix, peer_key};
use super::world::{Inner, RESERVED_WORDS};
use crate::alarm::Alarm;
use crate::error::{Code, Error, ErrorKind, Result};
use crate::fabric::{Bell, ControlEvent, DeathRule, Fabric, PeerState, Region, Transport, Waiting, explain};
use crate::lane::Lane;
use crate::local::{Instant, Thread};
use crate::ptr::{GroupKey, NodeId, RemotePtr};
use crate::space::{Allocation, GRANULE_BYTES};

/// The most lanes that are open on a node at a time.
const LANES_MAX: usize = 1024;

/// One node of a simulated session. It works on the simulation's own OS thread only.
///
/// ```
/// # use farfield_fabric::{*, sim::*};
/// let outcome = sim::run(Settings::new(1), Box::new(First), |handle| {
///     let node: std::sync::Arc<SimFabric> = handle.join(NodeId(0));
///     let region = node.alloc(GroupKey::DATA, 8).expect("memory");
///     region.word(0).store(7);
///     assert_eq!((node.name(), region.word(0).load()), ("sim".to_string(), 7));
/// });
/// assert_eq!(outcome.failure, None);
/// ```
#[derive(Clone)]
pub struct SimFabric {
    world: u64,
    me: NodeId,
    places: usize,
    nodes: usize,
    seed: u64,
    /// The time of [`SimFabric::late`].
    late_ns: Arc<AtomicU64>,
}

impl SimFabric {
    pub(super) fn join(world: u64, me: NodeId, places: usize, nodes: usize, seed: u64) -> Arc<SimFabric> {
        assert!(me.index() < nodes, "{me} of a simulated session of {nodes} nodes");
        let (seed, late_ns) = (mix(seed, u64::from(me.0) + 1), Arc::new(AtomicU64::new(1 << 62)));
        let fabric = SimFabric { world, me, places, nodes, seed, late_ns };
        fabric.at(|world| {
            world.point(Pending::Write(peer_key(me.0)));
            let mut inner = world.inner.borrow_mut();
            let state = &mut inner.nodes[me.index()];
            assert!(!state.joined || state.left, "{me} has joined already");
            inner.rights_change();
            let state = &mut inner.nodes[me.index()];
            (state.joined, state.knows[me.index()]) = (true, true);
            let present: Vec<u16> = (0..nodes as u16)
                .filter(|node| *node != me.0 && inner.nodes[usize::from(*node)].joined)
                .filter(|node| !inner.nodes[usize::from(*node)].left)
                .collect();
            inner.notify(peer_key(me.0), 1, None);
            for other in present {
                inner.send(me.0, other, ControlEvent::Up(me), 1);
                inner.send(other, me.0, ControlEvent::Up(NodeId(other)), 1);
            }
        });
        Arc::new(fabric)
    }

    pub(super) fn node(&self) -> u16 {
        self.me.0
    }

    pub(super) fn count(&self) -> usize {
        self.nodes
    }

    /// Whether the calling OS thread runs this fabric's world.
    pub(super) fn is_here(&self) -> bool {
        with_world(|world| world.id == self.world) == Some(true)
    }

    pub(super) fn is_torn_down(&self) -> bool {
        with_world(World::is_torn_down) != Some(false)
    }

    /// Calls `f` with the world; `None` if the execution is over.
    fn at<R>(&self, f: impl FnOnce(&World) -> R) -> Option<R> {
        if self.is_here() && !self.is_crashed() { with_world(f) } else { None }
    }

    /// The time of a thread that unwinds, or is left of an execution that is over: none is left for any wait that has
    /// begun, and a second later at each look, so that waits that begin now end, too.
    fn late(&self) -> Instant {
        Instant { ns: self.late_ns.fetch_add(1_000_000_000, Ordering::Relaxed) }
    }

    /// Calls `f` with the thread that runs.
    fn of_current(&self, f: impl FnOnce(&mut Inner, usize)) {
        self.at(|world| {
            let mut inner = world.inner.borrow_mut();
            if let Some(current) = inner.current {
                f(&mut inner, current);
            }
        });
    }

    /// Whether this node has crashed: then its calls do nothing.
    pub(super) fn is_crashed(&self) -> bool {
        with_world(|world| world.inner.borrow().is_crashed(self.me.0)) == Some(true)
    }

    fn check_member(&self, node: NodeId) -> Result<()> {
        if node.index() < self.nodes { Ok(()) } else { Err(ErrorKind::UnknownNode { node, nodes: self.nodes }.into()) }
    }

    fn check_group(&self, world: &World, key: GroupKey) -> Result<()> {
        let groups = world.inner.borrow().nodes[self.me.index()].groups;
        if u16::from(key.0) < groups { Ok(()) } else { Err(ErrorKind::UnknownGroup { node: self.me, key }.into()) }
    }

    fn over() -> Error {
        ErrorKind::System { what: "the simulation", why: "it is over, or runs on another thread".into() }.into()
    }

    /// Waits until something that this thread has looked at may have changed, or, if `news` is asked for, there is any.
    fn wait(&self, world: &World, deadline: Option<Instant>, news: bool) -> Turn {
        let current = world.inner.borrow().current;
        if let Some(me) = current {
            let mut inner = world.inner.borrow_mut();
            inner.about_to_wait(me);
            inner.threads[me].deadline = deadline.map(|deadline| deadline.ns);
            inner.note(me, What::Waits);
        }
        world.point(Pending::Idle(news.then_some(self.me.0)))
    }
}

impl Fabric for SimFabric {
    fn name(&self) -> String {
        "sim".into()
    }

    fn me(&self) -> NodeId {
        self.me
    }

    fn places(&self) -> usize {
        self.places
    }

    fn nodes(&self) -> usize {
        self.nodes
    }

    fn create_group(&self, _bell: Bell) -> Result<GroupKey> {
        let made = self.at(|world| {
            let mut inner = world.inner.borrow_mut();
            let nodes = self.nodes;
            let state = &mut inner.nodes[self.me.index()];
            let key = u8::try_from(state.groups).ok().map(GroupKey)?;
            state.groups += 1;
            state.rights.push((0..nodes).map(|peer| state.evicted >> peer & 1 == 0).collect());
            Some(key)
        });
        let limit = GroupKey::COUNT_MAX;
        made.ok_or_else(SimFabric::over)?
            .ok_or_else(|| ErrorKind::TooMany { what: "permission groups of one node", limit }.into())
    }

    fn alloc(&self, key: GroupKey, bytes: usize) -> Result<Region> {
        self.at(|world| {
            self.check_group(world, key)?;
            let mut inner = world.inner.borrow_mut();
            let Some((first, generation)) = inner.take_words(self.me.0, key, bytes) else {
                let why = format!("a simulated node has {} bytes", super::arena::NODE_BYTES);
                return Err(ErrorKind::OutOfMemory { key, asked_bytes: bytes, why }.into());
            };
            let base = world.arena.address(self.me.0, first);
            let start = u64::from(first) * 8;
            let remote = RemotePtr::new(self.me, key, heap::offset(start, generation));
            let whole = bytes.next_multiple_of(GRANULE_BYTES as usize) as u64;
            let keep: Arc<dyn core::any::Any + Send + Sync> =
                Allocation::new(start, whole, generation, Arc::clone(&world.arena) as _);
            // SAFETY: the range is in the arena, which `keep` keeps mapped, is aligned to 64, and belongs to no other
            // region in this execution; it is accessed through `Word`s only, and the machine executes their accesses.
            Ok(unsafe { Region::new(base, bytes, remote, keep) })
        })
        .unwrap_or_else(|| Err(SimFabric::over()))
    }

    fn free(&self, region: Region) -> Result<()> {
        self.at(|world| {
            let key = region.remote::<u8>(0).key();
            let allocation = Arc::clone(region.keep()).downcast::<Allocation>().ok();
            let is_mine = |allocation: &Arc<Allocation>| {
                allocation.is_of(&world.arena) && region.remote::<u8>(0).node() == self.me
            };
            let Some(allocation) = allocation.filter(is_mine) else {
                let why = format!("{region:?} is no memory of {}", self.me);
                return Err(ErrorKind::System { what: "giving memory back", why }.into());
            };
            if world.point(Pending::Write(peer_key(self.me.0))) == Turn::Unwinding || !allocation.give_back() {
                return Ok(());
            }
            let under_way = {
                let mut inner = world.inner.borrow_mut();
                inner.rights_change();
                inner.give_back(self.me.0, key, &allocation);
                inner.under_way(self.me.0, &allocation)
            };
            // Each lands in memory that is not in use yet, or is refused.
            for (from, lane, sequence) in under_way {
                if choose(2) == 1 {
                    let mut inner = world.inner.borrow_mut();
                    // Rights are checked first.
                    let has_right = inner.nodes[self.me.index()].rights[usize::from(key.0)][usize::from(from)];
                    let code = if has_right { Code::Freed } else { Code::Revoked };
                    if let Some(completion) = inner.machine.cancel(lane, self.me.0, sequence) {
                        inner.refused(completion, code);
                    }
                }
            }
            Ok(())
        })
        .unwrap_or_else(|| Err(SimFabric::over()))
    }

    fn label(&self, remote: RemotePtr<u8>, bytes: usize, name: core::fmt::Arguments<'_>) {
        self.at(|world| {
            let mut inner = world.inner.borrow_mut();
            if inner.records() {
                let (address, _) = heap::split(remote.offset());
                let (first, words) = ((address / 8) as u32, bytes.div_ceil(8) as u32);
                inner.record.labels.push((remote.node().0, first, words, name.to_string()));
            }
        });
    }

    fn start_permit(&self, peer: NodeId, group: GroupKey) -> Result<()> {
        self.check_member(peer)?;
        self.at(|world| {
            self.check_group(world, group)?;
            world.point(Pending::Write(peer_key(self.me.0)));
            let mut inner = world.inner.borrow_mut();
            inner.peer_state(self.me.0, peer.0).check(peer)?;
            inner.rights_change();
            inner.nodes[self.me.index()].rights[usize::from(group.0)][peer.index()] = true;
            Ok(())
        })
        .unwrap_or_else(|| Err(SimFabric::over()))
    }

    fn is_permitted(&self, peer: NodeId, group: GroupKey) -> Result<bool> {
        self.check_member(peer)?;
        self.at(|world| {
            self.check_group(world, group)?;
            world.point(Pending::Read(peer_key(self.me.0)));
            let mut inner = world.inner.borrow_mut();
            inner.peer_state(self.me.0, peer.0).check(peer)?;
            let may = inner.nodes[self.me.index()].rights[usize::from(group.0)][peer.index()];
            if let Some(current) = inner.current {
                inner.saw(current, peer_key(self.me.0), u64::from(may));
            }
            Ok(may)
        })
        .unwrap_or_else(|| Err(SimFabric::over()))
    }

    fn revoke(&self, peer: NodeId, group: GroupKey, _timeout: Duration) -> Result<()> {
        self.check_member(peer)?;
        self.at(|world| {
            self.check_group(world, group)?;
            world.point(Pending::Write(peer_key(self.me.0)));
            let mut inner = world.inner.borrow_mut();
            inner.rights_change();
            inner.revoke(self.me.0, peer.0, group);
            Ok(())
        })
        .unwrap_or_else(|| Err(SimFabric::over()))
    }

    fn death_rule(&self) -> DeathRule {
        self.at(|world| world.inner.borrow().rules.death_rule).unwrap_or(DeathRule::System)
    }

    fn is_fenced(&self) -> bool {
        let fenced = self.at(|world| {
            if world.inner.borrow().membership_may_change() {
                world.point(Pending::Read(peer_key(self.me.0)));
            }
            let mut inner = world.inner.borrow_mut();
            let fenced = inner.nodes[self.me.index()].fenced;
            if let Some(current) = inner.current {
                inner.saw(current, peer_key(self.me.0), u64::from(fenced));
            }
            fenced
        });
        fenced.unwrap_or(false)
    }

    fn wake_service(&self) {
        self.at(|world| {
            let mut inner = world.inner.borrow_mut();
            inner.nodes[self.me.index()].wake = true;
        });
    }

    fn peer_state(&self, peer: NodeId) -> PeerState {
        let state = self.at(|world| {
            if world.inner.borrow().membership_may_change() {
                world.point(Pending::Read(peer_key(peer.0)));
            }
            let mut inner = world.inner.borrow_mut();
            let state = inner.peer_state(self.me.0, peer.0);
            if let Some(current) = inner.current {
                let seen = match state {
                    PeerState::NotJoined => 0,
                    PeerState::Up { incarnation } => 1 + 2 * incarnation,
                    PeerState::Left => 2,
                    PeerState::Dead { .. } => 4,
                };
                inner.saw(current, peer_key(peer.0), seen);
            }
            state
        });
        state.unwrap_or(PeerState::Left)
    }

    fn now(&self) -> Instant {
        let now = self.at(|world| {
            // Otherwise time stands still while any thread can run.
            if world.inner.borrow().early_timeouts() {
                world.point(Pending::Read(CLOCK));
            }
            let mut inner = world.inner.borrow_mut();
            let now = inner.time.now_ns;
            if let Some(current) = inner.current {
                inner.threads[current].interest.reads_clock = true;
                inner.looked_at_clock(current);
            }
            (!world.is_torn_down()).then_some(Instant { ns: now })
        });
        now.flatten().unwrap_or_else(|| self.late())
    }

    fn seed(&self) -> u64 {
        self.seed
    }

    fn wake_local(&self) {}
}

impl Transport for SimFabric {
    fn open_lane(&self, _background: bool) -> Result<Box<dyn Lane>> {
        let open = self.at(|world| {
            let inner = world.inner.borrow();
            inner.lanes.iter().filter(|lane| lane.in_use && lane.node == self.me.0).count()
        });
        if open.ok_or_else(SimFabric::over)? >= LANES_MAX {
            return Err(ErrorKind::TooMany { what: "endpoints of one node", limit: LANES_MAX }.into());
        }
        Ok(Box::new(SimLane::open(self.clone())))
    }

    fn evict(&self, peer: NodeId, _timeout: Duration) -> Result<()> {
        self.check_member(peer)?;
        self.at(|world| {
            let me = self.me.0;
            // First it is dead here, and later its rights are revoked: in between its writes still land.
            if world.point(Pending::Write(peer_key(peer.0))) != Turn::Unwinding {
                let mut inner = world.inner.borrow_mut();
                inner.nodes[self.me.index()].evicted |= 1 << peer.0;
                for lane in inner.lanes_of(me) {
                    inner.cut_short(lane, peer.0, Code::Unreachable);
                }
                inner.notify(peer_key(peer.0), 1, None);
            }
            if world.point(Pending::Write(peer_key(me))) != Turn::Unwinding {
                let mut inner = world.inner.borrow_mut();
                for group in 0..inner.nodes[self.me.index()].groups {
                    inner.revoke(me, peer.0, GroupKey(group as u8));
                }
                if let Some(current) = inner.current {
                    inner.acted(current, u64::from(peer.0));
                    inner.note(current, What::Evicted { peer });
                }
            }
            Ok(())
        })
        .unwrap_or_else(|| Err(SimFabric::over()))
    }

    fn fence_self(&self) {
        self.at(|world| {
            if world.point(Pending::Write(peer_key(self.me.0))) != Turn::Unwinding {
                let mut inner = world.inner.borrow_mut();
                inner.nodes[self.me.index()].fenced = true;
                inner.cut_short_all(self.me.0, Code::Fenced);
                inner.notify(peer_key(self.me.0), 1, None);
            }
        });
    }

    fn send_control(&self, to: NodeId, message: &[u8]) -> Result<()> {
        self.check_member(to)?;
        if message.len() > crate::fabric::CONTROL_BYTES_MAX {
            let why = format!("{} bytes: at most {}", message.len(), crate::fabric::CONTROL_BYTES_MAX);
            return Err(ErrorKind::Control { node: to, why }.into());
        }
        self.at(|world| {
            // A system call: earlier stores are in memory by then.
            if world.point(Pending::Write(inbox_key(to.0))) == Turn::Unwinding {
                return Err(SimFabric::over());
            }
            let mut inner = world.inner.borrow_mut();
            match inner.peer_state(self.me.0, to.0) {
                PeerState::Up { .. } => {}
                PeerState::Left => return Err(ErrorKind::PeerLeft { node: to }.into()),
                PeerState::Dead { incarnation } => {
                    return Err(ErrorKind::PeerDead { node: to, incarnation }.into());
                }
                PeerState::NotJoined => return Err(ErrorKind::NotConnected { node: to }.into()),
            }
            let content = FixedState::default().hash_one(message);
            if let Some(current) = inner.current {
                inner.note(current, What::Message { to, bytes: message.len() });
            }
            let event = ControlEvent::Message(self.me, message.into());
            if !inner.detain(self.me.0, to.0, &event, content) {
                inner.send(self.me.0, to.0, event, content);
            }
            Ok(())
        })
        .unwrap_or_else(|| Err(SimFabric::over()))
    }

    fn serve(&self, timeout: Duration, event: &mut dyn FnMut(ControlEvent)) {
        self.at(|world| {
            let has_news = |world: &World| world.inner.borrow().has_news(self.me.0);
            if !timeout.is_zero() && !has_news(world) {
                let deadline = (timeout != Duration::MAX).then(|| self.now() + timeout);
                world.inner.borrow_mut().hears_news_only();
                self.wait(world, deadline, true);
            }
            loop {
                world.inner.borrow_mut().nodes[self.me.index()].wake = false;
                let looks = has_news(world) || world.inner.borrow().empty_inbox_poll_is_scheduling_point();
                if !looks || world.point(Pending::Write(inbox_key(self.me.0))) == Turn::Unwinding {
                    return;
                }
                // More may have arrived before this thread's turn; no other thread takes any.
                let senders: Vec<usize> = {
                    let inner = world.inner.borrow();
                    let inbox = &inner.nodes[self.me.index()].inbox;
                    (0..inbox.len()).filter(|from| !inbox[*from].is_empty()).collect()
                };
                if senders.is_empty() {
                    let mut inner = world.inner.borrow_mut();
                    if let Some(current) = inner.current {
                        let digest = inner.nodes[self.me.index()].inbox_digest;
                        inner.saw(current, inbox_key(self.me.0), digest);
                    }
                    return;
                }
                // The messages of one sender arrive in order; those of different senders in any order.
                let from = senders[super::threads::choose(senders.len())];
                let taken = world.inner.borrow_mut().take_news(self.me.0, from);
                let Some(taken) = taken else { continue };
                event(taken);
            }
        });
    }

    fn leave(&self) {
        self.at(|world| {
            world.point(Pending::Write(peer_key(self.me.0)));
            let mut inner = world.inner.borrow_mut();
            inner.rights_change();
            inner.nodes[self.me.index()].left = true;
            inner.notify(peer_key(self.me.0), 1, None);
            for other in 0..self.nodes as u16 {
                if other != self.me.0 && inner.nodes[usize::from(other)].knows[self.me.index()] {
                    inner.send(self.me.0, other, ControlEvent::Down(self.me), 2);
                }
            }
        });
    }

    fn leave_uncleanly(&self) {
        // To the others it looks like leaving: only faults that a scenario asks for make the dead.
        self.fence_self();
        self.leave();
    }

    fn explain(&self, code: Code, remote: RemotePtr<u8>, len: usize) -> Error {
        if let Err(error) = self.check_member(remote.node()) {
            return error;
        }
        // The memory of a group ends with its last region.
        let memory_bytes = self.at(|world| {
            let inner = world.inner.borrow();
            let regions = inner.nodes[remote.node().index()].regions.iter().rev();
            let last = regions.into_iter().find(|(_, _, key)| *key == remote.key());
            last.map(|(first, words, _)| u64::from(first + words) * 8)
        });
        let state = self.peer_state(remote.node());
        explain(code, state, remote, len, memory_bytes.flatten().unwrap_or(u64::from(RESERVED_WORDS) * 8))
    }

    fn spawn(&self, name: String, body: Box<dyn FnOnce() + Send>) -> Result<Thread> {
        let index = self.at(|world| world.spawn(self.me.0, name, false, body)).ok_or_else(SimFabric::over)??;
        Ok(Thread::simulated(self.world, index))
    }

    fn spawn_service(self: Arc<Self>, name: String, body: Box<dyn FnOnce() + Send>) -> Result<Thread> {
        Transport::spawn(&*self, name, body)
    }

    fn idle(&self, waiting: &mut Waiting) {
        // Each look at the clock and at deadlines counts: no time passes unseen.
        waiting.announced = Some(0);
        let deadline = (waiting.deadline != Instant::NEVER).then_some(waiting.deadline);
        self.at(|world| {
            world.inner.borrow_mut().keep_interest(waiting.watches.has_remote());
            let turn = self.wait(world, deadline, waiting.service);
            waiting.only_completions = turn != Turn::Unwinding && world.inner.borrow().was_kept();
        });
    }

    fn idle_end(&self, waiting: &mut Waiting) {
        waiting.announced = None;
    }

    fn wait_begins(&self) {
        self.of_current(Inner::begin_wait);
    }

    fn wait_ends(&self) {
        self.of_current(Inner::end_wait);
    }

    fn stay_awake(&self) {
        self.of_current(Inner::stay_awake);
    }

    fn alarm(&self) -> Option<&Alarm> {
        None
    }
}
