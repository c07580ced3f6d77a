//! One node: the contract of a [`Fabric`], kept by a carrier, connections and the control plane.

use core::sync::atomic::{AtomicUsize, Ordering};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::carrier::{CarriedLane, Carrier};
use super::connections::Connections;
use super::control::{self, Control, SendError};
use super::options::HostOptions;
use super::sleepers::Sleepers;
use crate::alarm::Alarm;
use crate::error::{Code, Error, ErrorKind, Result};
use crate::fabric::{
    Bell, CONTROL_BYTES_MAX, ControlEvent, DeathRule, Fabric, PeerState, Region, Transport, Waiting, Words,
    check_nodes, explain,
};
use crate::lane::Lane;
use crate::local::{Instant, Thread};
use crate::ptr::{GroupKey, NUMBERS_MAX, NodeId, RemotePtr};
use crate::sys::fence::cpus_allowed;
use crate::sys::fence::register_membarrier;

/// The longest wait of one `serve`: what lanes and devices report is looked for as often.
const SERVE_MAX: Duration = Duration::from_millis(100);
/// Steps of a wait before it sleeps where every thread has a core: spins, then yields. Where threads outnumber cores:
/// [`Carrier::YIELDS_CROWDED`].
const SPINS: u32 = 100;
const YIELDS: u32 = 200;
/// One sleep. Nothing rings a bell when an operation of the thread is complete: a waiting thread polls. Stores of the
/// node's threads for each other ring one ([`Sleepers`]), and so do puts that the node's processor does.
const SLEEP: Duration = Duration::from_micros(50);
const SLEEP_CROWDED: Duration = Duration::from_micros(200);
/// After so many sleeps in a wait, each sleep is longer by as much again, up to a limit: a long wait may end a little
/// later, and many long waits leave the cores to working threads.
const SLEEPS: u32 = 4;
const SLEEP_MAX: Duration = Duration::from_millis(1);

/// One node of a session between hosts: [`VerbsFabric`](crate::verbs::VerbsFabric) over RDMA,
/// [`UcxFabric`](crate::ucx::UcxFabric) over UCX.
///
/// ```no_run
/// # use farfield_fabric::{verbs::*, *};
/// # fn main() -> Result<()> {
/// let listen = "10.0.0.1:7400".parse().expect("an address");
/// let node = VerbsFabric::join(&JoinOptions::new("sensors", 0, 3, listen))?;
/// println!("{} uses {}", node.me(), node.device().info().name);
/// # Ok(()) }
/// ```
#[expect(private_bounds, reason = "the carriers are those of this crate")]
pub struct HostFabric<C: Carrier> {
    me: NodeId,
    places: usize,
    nodes: usize,
    seed: u64,
    group_bytes_max: usize,
    connections: Arc<Connections<C>>,
    /// Threads of this host that share its cores: those of this node, and how many nodes there are.
    lanes: Arc<AtomicUsize>,
    here: AtomicUsize,
    cpus: usize,
    sleepers: Arc<Sleepers>,
    alarm: Alarm,
}

#[expect(private_bounds, reason = "as above")]
impl<C: Carrier> HostFabric<C> {
    /// Joins a session. It does not wait for the peers, which appear as they start.
    ///
    /// ```no_run
    /// # use {farfield_fabric::{verbs::*, *}, std::net::SocketAddr};
    /// # fn main() -> Result<()> {
    /// let at = |host: u8| SocketAddr::from(([10, 0, 0, host], 7400));
    /// let addresses = [1, 2, 3].map(at).to_vec(); // of all places
    /// let node = VerbsFabric::join(&JoinOptions { addresses, ..JoinOptions::new("sensors", 0, 3, at(1)) })?;
    /// assert_eq!(node.me(), NodeId(0));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// A number that cannot be, no device that fits, an address at which it cannot listen, no memory; over UCX with
    /// several places, no secret.
    pub fn join(options: &HostOptions<C::Options>) -> Result<Arc<HostFabric<C>>> {
        if C::NEEDS_SECRET && options.secret.is_none() && options.places > 1 {
            let why = format!(
                "a session over {} needs a secret, since the addresses of its nodes are read unchecked. Give all nodes \
                 the same 16 bytes or more: FARFIELD_SECRET_FILE or FARFIELD_SECRET in the environment, `secret_file` \
                 in the configuration file, `Builder::secret` or `HostOptions::secret` in the program",
                C::TECHNIQUE
            );
            return Err(ErrorKind::Session { session: options.session.clone(), why }.into());
        }
        HostFabric::join_with(options, C::open(&options.device).map_err(Into::<Error>::into)?)
    }

    /// [`HostFabric::join`] with a carrier that is open.
    pub(crate) fn join_with(options: &HostOptions<C::Options>, carrier: C) -> Result<Arc<HostFabric<C>>> {
        let (place, places) = (usize::from(options.place), usize::from(options.places));
        check_nodes(places)?;
        let nodes = NUMBERS_MAX / places * places;
        let number = place + usize::from(options.life) * places;
        if place >= places || number >= nodes {
            let why = format!("place {place} of {places}, life {}: there are {nodes} numbers", options.life);
            return Err(ErrorKind::Session { session: options.session.clone(), why }.into());
        }
        let (me, incarnation) = (NodeId(number as u16), rand::random());
        let control = Control::open(&control::Options {
            session: options.session.clone(),
            layout: carrier.layout(),
            node: me,
            places: options.places,
            incarnation,
            listen: options.listen,
            secret: options.secret.clone(),
            limits: options.limits,
        })?;
        // Where the kernel refuses it, memory that is given back is not used again.
        let _ = register_membarrier();
        let connections = Connections::new(me, nodes, carrier, control);
        connections.set_up(me, incarnation);
        let sleepers = Sleepers::new(C::PUTS_WAKE);
        connections.serve_memory(&sleepers)?;
        let fabric = HostFabric {
            me,
            places,
            nodes,
            seed: options.seed.unwrap_or_else(rand::random),
            group_bytes_max: options.group_bytes_max,
            connections: Arc::new(connections),
            lanes: Arc::default(),
            here: AtomicUsize::new(1),
            cpus: cpus_allowed(),
            alarm: Alarm::new(format!("farfield-wakes-{}", me.0), Box::new(Arc::clone(&sleepers))),
            sleepers,
        };
        for key in [GroupKey::SIGNAL, GroupKey::DATA, GroupKey::SERVICE] {
            let made = fabric.connections.create_group(options.group_bytes_max)?;
            debug_assert_eq!(made, key);
        }
        if !options.addresses.is_empty() {
            fabric.meet(&options.addresses)?;
        }
        Ok(Arc::new(fabric))
    }

    /// Where this node listens.
    ///
    /// ```
    /// # fn f(node: &farfield_fabric::verbs::VerbsFabric) {
    /// println!("{}", node.address()); // for the other nodes
    /// # }
    /// ```
    pub fn address(&self) -> SocketAddr {
        self.connections.control().address()
    }

    /// Sets the addresses at which the nodes of all places listen: from now on they are called.
    ///
    /// ```
    /// # use {farfield_fabric::{Result, verbs::VerbsFabric}, std::net::SocketAddr};
    /// /// Joins nodes that listen on ports of the system's choice, once these are known.
    /// fn connect(node: &VerbsFabric, of_all: &[SocketAddr]) -> Result<()> {
    ///     assert!(of_all.contains(&node.address()));
    ///     node.meet(of_all)
    /// }
    /// ```
    ///
    /// # Errors
    /// They are more or fewer than there are places.
    pub fn meet(&self, addresses: &[SocketAddr]) -> Result<()> {
        let mine = addresses.get(self.me.index() % self.places).map(SocketAddr::ip);
        let is_here = |address: &&SocketAddr| Some(address.ip()) == mine || address.ip().is_loopback();
        self.here.store(addresses.iter().filter(is_here).count().max(1), Ordering::Relaxed);
        self.connections.control().meet(addresses)
    }

    /// What keeps the node's connections.
    pub(crate) fn connections(&self) -> &Arc<Connections<C>> {
        &self.connections
    }

    fn check_member(&self, node: NodeId) -> Result<()> {
        let known = self.connections.known().max(self.places);
        let is_known = node.index() < known.min(self.nodes);
        if is_known { Ok(()) } else { Err(ErrorKind::UnknownNode { node, nodes: self.places }.into()) }
    }

    /// Whether there are a peer and a group of this node's.
    fn check_group(&self, peer: NodeId, key: GroupKey) -> Result<()> {
        self.check_member(peer)?;
        let is_known = usize::from(key.0) < self.connections.groups();
        if is_known { Ok(()) } else { Err(ErrorKind::UnknownGroup { node: self.me, key }.into()) }
    }

    /// Whether a group's rights can be given and taken.
    fn check_right(&self, peer: NodeId, key: GroupKey) -> Result<()> {
        self.check_group(peer, key)?;
        let is_shared = key.0 <= GroupKey::SERVICE.0;
        if is_shared { Err(ErrorKind::Shared { node: peer, key }.into()) } else { Ok(()) }
    }
}

/// A lane that counts among the threads of its host.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A service thread that panics takes its node along: its own threads are fenced, and the others hear no more of it.
struct FenceOnPanic<'f, C: Carrier>(&'f HostFabric<C>);

impl<C: Carrier> Drop for FenceOnPanic<'_, C> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.leave_uncleanly();
        }
    }
}

impl<C: Carrier> Fabric for HostFabric<C> {
    fn name(&self) -> String {
        C::NAME.into()
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
        self.connections.create_group(self.group_bytes_max)
    }

    fn alloc(&self, group: GroupKey, bytes: usize) -> Result<Region> {
        self.connections.alloc(group, bytes)
    }

    fn alloc_words(&self, group: GroupKey, count: usize, pattern: &[u64]) -> Result<Words> {
        match self.connections.alloc_words(group, count, pattern)? {
            Some(region) => Ok(Words::new(region, count)),
            None => Ok(Words::of_region(self.alloc(group, count.saturating_mul(8))?, count, pattern)),
        }
    }

    fn free(&self, region: Region) -> Result<()> {
        self.connections.free(&region)
    }

    fn permit(&self, peer: NodeId, group: GroupKey) -> Result<()> {
        self.check_right(peer, group)?;
        self.connections.permit(peer, group)
    }

    fn start_permit(&self, peer: NodeId, group: GroupKey) -> Result<()> {
        self.check_right(peer, group)?;
        self.connections.start_permit(peer, group)
    }

    fn is_permitted(&self, peer: NodeId, group: GroupKey) -> Result<bool> {
        self.check_group(peer, group)?;
        self.connections.is_permitted(peer, group)
    }

    fn revoke(&self, peer: NodeId, group: GroupKey, _timeout: Duration) -> Result<()> {
        self.check_right(peer, group)?;
        self.connections.revoke(peer, group);
        Ok(())
    }

    fn death_rule(&self) -> DeathRule {
        DeathRule::Majority
    }

    fn is_fenced(&self) -> bool {
        self.connections.is_fenced()
    }

    fn wake_service(&self) {
        self.connections.control().wake();
    }

    fn peer_state(&self, peer: NodeId) -> PeerState {
        self.connections.peer_state(peer)
    }

    fn now(&self) -> Instant {
        Instant::monotonic()
    }

    fn queue_pairs(&self) -> (usize, usize) {
        self.connections.queue_pairs()
    }

    fn refusals(&self) -> Vec<String> {
        self.connections.refusals()
    }

    fn seed(&self) -> u64 {
        self.seed
    }

    fn wake_local(&self) {
        self.sleepers.wake();
    }
}

impl<C: Carrier> Transport for HostFabric<C> {
    fn open_lane(&self, background: bool) -> Result<Box<dyn Lane>> {
        let mut lane = self.connections.open_lane()?;
        if !background {
            self.lanes.fetch_add(1, Ordering::Relaxed);
            lane.keep(Box::new(Counted(Arc::clone(&self.lanes))));
        }
        Ok(Box::new(lane))
    }

    fn evict(&self, peer: NodeId, _timeout: Duration) -> Result<()> {
        self.connections.evict(peer);
        Ok(())
    }

    fn fence_self(&self) {
        self.connections.fence();
    }

    fn send_control(&self, to: NodeId, message: &[u8]) -> Result<()> {
        self.check_member(to)?;
        self.connections.send(to, message).map_err(|why| match why {
            SendError::NotUp => self.explain(Code::Unreachable, RemotePtr::new(to, GroupKey::SIGNAL, 0), 0),
            SendError::TooLong { .. } | SendError::Full => {
                debug_assert!(why == SendError::Full || message.len() > CONTROL_BYTES_MAX);
                ErrorKind::Control { node: to, why: why.to_string() }.into()
            }
        })
    }

    fn serve(&self, timeout: Duration, event: &mut dyn FnMut(ControlEvent)) {
        self.connections.serve(timeout.min(SERVE_MAX), event);
    }

    fn serve_is_due(&self) -> bool {
        self.connections.control().is_due()
    }

    fn leave(&self) {
        // A peer that has the goodbye expects nothing more; only then is the memory closed.
        self.connections.control().goodbye();
        self.connections.close();
    }

    fn leave_uncleanly(&self) {
        self.fence_self();
        self.connections.control().leave_uncleanly();
        self.connections.close();
    }

    fn explain(&self, code: Code, remote: RemotePtr<u8>, len: usize) -> Error {
        let node = remote.node();
        if let Err(error) = self.check_member(node) {
            return error;
        }
        if self.is_fenced() {
            return ErrorKind::Fenced.into();
        }
        let code = if code == Code::BadKey && self.connections.is_lost(node) { Code::Unreachable } else { code };
        let memory_bytes = if code == Code::OutOfBounds { self.connections.bytes_of(node, remote.key()) } else { 0 };
        explain(code, self.peer_state(node), remote, len, memory_bytes)
    }

    fn spawn(&self, name: String, body: Box<dyn FnOnce() + Send>) -> Result<Thread> {
        Thread::start(name, body)
    }

    fn spawn_service(self: Arc<Self>, name: String, body: Box<dyn FnOnce() + Send>) -> Result<Thread> {
        let fabric = Arc::clone(&self);
        let body = move || {
            fabric.connections.serves_here();
            let fence = FenceOnPanic(&fabric);
            body();
            drop(fence);
        };
        Transport::spawn(&*self, name, Box::new(body))
    }

    fn idle(&self, waiting: &mut Waiting) {
        if waiting.round == 0 {
            waiting.sleeps = 0;
            let threads = (self.lanes.load(Ordering::Relaxed) + 1) * self.here.load(Ordering::Relaxed);
            waiting.spins = if threads > self.cpus {
                0
            } else if waiting.service {
                1
            } else {
                SPINS
            };
        }
        let is_crowded = waiting.spins == 0;
        let yields = if is_crowded { C::YIELDS_CROWDED } else { YIELDS };
        if let Some(heard) = waiting.announced.take() {
            let sleep = if is_crowded { SLEEP_CROWDED } else { SLEEP };
            self.sleepers.sleep(heard, (sleep * (1 + waiting.sleeps / SLEEPS)).min(SLEEP_MAX));
            self.sleepers.renounce();
            waiting.sleeps = waiting.sleeps.saturating_add(1);
            waiting.round = waiting.spins + yields / 2; // a few more looks, then sleep again
            return;
        }
        waiting.round += 1;
        if waiting.round <= waiting.spins {
            core::hint::spin_loop();
        } else if waiting.round <= waiting.spins + yields {
            std::thread::yield_now();
        } else {
            waiting.announced = Some(self.sleepers.announce());
        }
    }

    fn idle_end(&self, waiting: &mut Waiting) {
        if waiting.announced.take().is_some() {
            self.sleepers.renounce();
        }
    }

    fn alarm(&self) -> Option<&Alarm> {
        Some(&self.alarm)
    }
}
