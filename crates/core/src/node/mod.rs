//! A node: one process's membership in a session, with its service thread, its objects and its endpoints.

mod calls;
mod config;
mod fencing;
mod local;
mod long_wait;
mod membership;
mod memory;
mod metrics;
mod object;
mod service;

use std::sync::Arc;
use std::time::Duration;

use farfield_fabric::{
    Bell, Counts, CountsReader, Endpoint, EndpointOptions, Fabric, GroupKey, Instant, LocalMutex, NodeId, PeerState,
    Rng, Thread, Transport, Word,
};
use rand::SeedableRng;

pub use calls::{Either, Meter, Timed, Timing};
use calls::{Numbers, SharedNumbers};
pub(crate) use calls::{current, measured};
pub use config::{Builder, Config, PORT, loopback_hosts};
pub use fencing::RefusedPause;
pub use local::{local_session, local_session_with, on_each};
pub(crate) use long_wait::{LONG, LongWait};
#[cfg(feature = "prometheus")]
pub use metrics::MetricsServer;
pub use metrics::{Metrics, ObjectMetrics};
pub use object::reopen::Reopening;
pub use object::{Call, Hold, Object, ObjectBuilder, ObjectDescriptor, Regions};
pub use service::{LEAVE_TIMEOUT, MemberStatus, Poller, Progress};

use self::service::Service;
use crate::error::{ErrorContext, ErrorKind, Result};

/// One process's membership in a session. Clones are handles to the same node. When the last one is dropped, the node
/// leaves gracefully.
///
/// ```
/// # fn main() -> farfield::Result<()> {
/// let node = farfield::Node::builder().session("solo").nodes(1).start()?;
/// assert_eq!((node.id().0, node.nodes()), (0, 1));
/// node.leave();
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Node {
    shared: Arc<Shared>,
    /// Keeps the node in its session. `None` in the handles of the service thread, or the node would keep itself.
    handle: Option<Arc<Handle>>,
}

struct Handle {
    shared: Arc<Shared>,
    service: LocalMutex<Option<Thread>>,
}

/// The state that the service thread and the handles share.
pub(crate) struct Shared {
    fabric: Arc<dyn Transport>,
    me: NodeId,
    pub(crate) config: Config,
    service: Service,
    endpoints: LocalMutex<Endpoints>,
    /// Bytes that are allocated and not freed.
    memory_bytes: Word,
    /// Permission groups that closed objects have given back.
    spare_groups: LocalMutex<Vec<(Bell, GroupKey)>>,
    /// The calls that are measured.
    numbers: SharedNumbers,
    #[cfg(feature = "prometheus")]
    servers: metrics::Servers,
}

/// Counters of the operations that the node's endpoints have posted.
#[derive(Default)]
struct Endpoints {
    open: Vec<CountsReader>,
    /// The sum over closed endpoints.
    closed: Counts,
    opened: usize,
    /// Includes endpoints that could not be opened.
    numbered: usize,
}

impl Node {
    /// Returns the builder of a node that is to be started.
    ///
    /// ```
    /// let node = farfield::Node::builder().names(["alone"]).start()?;
    /// assert_eq!(node.name_of(node.id()), "alone");
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Starts a node with the settings of the environment; see [`Builder::environment`]. Without a launcher it is
    /// alone.
    ///
    /// ```
    /// let node = farfield::Node::from_environment()?; // of one node, if no launcher has started this process
    /// println!("{} of {} nodes", node.id(), node.nodes());
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// An invalid variable, or any error of [`Builder::start`].
    pub fn from_environment() -> Result<Node> {
        Node::builder().environment()?.start()
    }

    /// Whether a launcher (`farfield run`, `mpirun`, `srun`) has set this process's node number. With a part of the
    /// settings that a node needs it is launched, too, and [`Node::from_environment`] says what is missing.
    ///
    /// ```
    /// if !farfield::Node::is_launched() {
    ///     println!("start several with `farfield run`");
    /// }
    /// ```
    pub fn is_launched() -> bool {
        config::is_launched()
    }

    pub(crate) fn start(config: Config) -> Result<Node> {
        let (session, number, nodes) = (config.session.clone(), config.node, config.nodes);
        let _span = tracing::info_span!("start", session, node = number, nodes).entered();
        let fabric = config.join()?;
        let service = Service::new(fabric.places(), fabric.nodes());
        let (endpoints, memory_bytes, numbers) = (LocalMutex::default(), Word::new(0), SharedNumbers::default());
        let shared = Arc::new(Shared {
            me: fabric.me(),
            fabric,
            config,
            service,
            endpoints,
            memory_bytes,
            spare_groups: LocalMutex::default(),
            numbers,
            #[cfg(feature = "prometheus")]
            servers: metrics::Servers::default(),
        });
        let (served, fabric) = (Arc::clone(&shared), Arc::clone(&shared.fabric));
        let endpoint = shared.endpoint(true)?;
        let name = format!("farfield-{}", shared.config.node);
        let thread = fabric.spawn_service(name, Box::new(move || service::run(&served, &endpoint)))?;
        let handle = Handle { shared: Arc::clone(&shared), service: LocalMutex::new(Some(thread)) };
        let node = Node { shared, handle: Some(Arc::new(handle)) };
        if node.fabric().nodes() > node.nodes() {
            node.wait_to_be_let_in()?;
        }
        tracing::info!(node = node.id().0, "the node has started");
        Ok(node)
    }

    /// In a session with restarted nodes, waits until the members have admitted this node and it knows them.
    fn wait_to_be_let_in(&self) -> Result<()> {
        let endpoint = self.endpoint()?;
        let is_let_in = || self.shared().service.is_let_in().then_some(());
        let deadline = endpoint.now() + self.timeout();
        let waited = endpoint.block_on(self.wait_for_members(&endpoint, deadline, is_let_in));
        waited.waiting_for(&self.with_refusals(format!("the members to admit {}, which was restarted", self.id())))
    }

    /// What a wait is for, and what this node has refused meanwhile.
    fn with_refusals(&self, what: String) -> String {
        let refusals = self.shared().fabric.refusals();
        if refusals.is_empty() { what } else { format!("{what} ({})", refusals.join("; ")) }
    }

    /// This node's number. A restarted node has a new number: the successive nodes of a place have the numbers `place`,
    /// `place + nodes`, `place + 2 · nodes`, …
    ///
    /// ```
    /// # let nodes = farfield::local_session(2)?;
    /// assert_eq!(nodes[1].id(), farfield::NodeId(1));
    /// # Ok::<(), farfield::Error>(())
    /// ```
    #[inline]
    pub fn id(&self) -> NodeId {
        self.shared().me
    }

    /// The number of places of the session: how many nodes it has at a time.
    ///
    /// ```
    /// # let nodes = farfield::local_session(2)?;
    /// assert_eq!(nodes[0].nodes(), 2);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn nodes(&self) -> usize {
        self.shared().fabric.places()
    }

    /// All nodes that belong to the session, whether they have started yet or not, and all that belonged to it before.
    ///
    /// ```
    /// # let nodes = farfield::local_session(2)?; let node = &nodes[0];
    /// assert_eq!(node.members().count(), 2);
    /// assert_eq!(node.others().collect::<Vec<_>>(), [nodes[1].id()]);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn members(&self) -> impl Iterator<Item = NodeId> + Clone + '_ {
        self.shared().service.known()
    }

    /// All nodes of [`Node::members`] but this one.
    ///
    /// ```
    /// # let nodes = farfield::local_session(2)?;
    /// assert!(nodes[0].others().eq([nodes[1].id()]));
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn others(&self) -> impl Iterator<Item = NodeId> + '_ {
        let me = self.id();
        self.members().filter(move |node| *node != me)
    }

    /// The place of a node, from 0: the number that it was started with.
    ///
    /// ```
    /// # let nodes = farfield::local_session(2)?;
    /// assert_eq!(nodes[0].rank_of(farfield::NodeId(3)), 1); // the second node of the second place
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn rank_of(&self, node: NodeId) -> usize {
        node.index() % self.nodes()
    }

    /// The configured name of a node's place, or the node's number.
    ///
    /// ```
    /// # let node = farfield::Node::builder().names(["left"]).start().unwrap();
    /// assert_eq!(node.name_of(node.id()), "left");
    /// ```
    pub fn name_of(&self, node: NodeId) -> String {
        let name = self.shared().config.names.get(self.rank_of(node));
        name.cloned().unwrap_or_else(|| node.0.to_string())
    }

    /// The node with a configured name; the latest, if its place has had several.
    ///
    /// ```
    /// # let nodes = farfield::local_session(2)?; let node = &nodes[0];
    /// assert_eq!(node.by_name(&node.name_of(nodes[1].id())), Some(nodes[1].id()));
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn by_name(&self, name: &str) -> Option<NodeId> {
        self.members().filter(|node| self.name_of(*node) == name).last()
    }

    /// The state of a node as the fabric sees it.
    ///
    /// ```
    /// # let nodes = farfield::local_session(2)?;
    /// use farfield::fabric::PeerState;
    /// assert!(matches!(nodes[0].state_of(nodes[1].id()), PeerState::Up { .. }));
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn state_of(&self, node: NodeId) -> PeerState {
        self.shared().fabric.peer_state(node)
    }

    /// The number of membership changes of the session. Where a majority of the nodes decides, an epoch has the same
    /// members on all nodes. Where the system reports deaths, each node counts the changes that it has learned of.
    ///
    /// ```
    /// # let nodes = farfield::local_session(2)?; let node = &nodes[0];
    /// assert_eq!(node.epoch(), 0); // no member has died yet
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn epoch(&self) -> u64 {
        self.shared().service.epoch()
    }

    /// The membership status of a node. The state of a dead node may be recovered from [`MemberStatus::Evicted`] on.
    /// `None` of a node that this one has never known: one that joins now may hold a lock before it is known
    /// everywhere.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// let nodes = farfield::local_session(2)?;
    /// assert_eq!(nodes[0].status_of(nodes[1].id()), Some(farfield::MemberStatus::Member));
    /// # Ok(()) }
    /// ```
    pub fn status_of(&self, node: NodeId) -> Option<MemberStatus> {
        self.shared().service.status_of(node)
    }

    /// The nodes that are neither dead nor departed, whether they have started yet or not. They are the default
    /// participants of an object.
    ///
    /// ```
    /// # let nodes = farfield::local_session(2)?; let node = &nodes[0];
    /// assert_eq!(node.live_members(), [nodes[0].id(), nodes[1].id()]);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn live_members(&self) -> Vec<NodeId> {
        self.shared().live_members()
    }

    /// Opens an endpoint for one more thread.
    ///
    /// ```
    /// # let nodes = farfield::local_session(2)?; let node = &nodes[0];
    /// let endpoint = node.endpoint()?; // one for each thread
    /// assert_eq!(endpoint.me(), node.id());
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// The node's lanes are used up.
    pub fn endpoint(&self) -> Result<Endpoint> {
        self.shared().endpoint(false)
    }

    /// Opens an endpoint for an object's own use, besides that of the calling thread. The NIC has a share of queue
    /// pairs for such endpoints.
    ///
    /// ```
    /// # let node = farfield::Node::builder().start()?;
    /// let endpoint = node.background_endpoint()?; // for a thread of the object
    /// assert_eq!(endpoint.me(), node.id());
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// The node's lanes are used up.
    pub fn background_endpoint(&self) -> Result<Endpoint> {
        self.shared().endpoint(true)
    }

    /// Starts a thread with an endpoint of its own.
    ///
    /// ```
    /// # let node = farfield::Node::builder().start()?; let me = node.id();
    /// let worker = node.spawn("worker", move |endpoint| assert_eq!(endpoint.me(), me))?;
    /// worker.join().unwrap();
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// The node's lanes are used up, or the system cannot start a thread.
    pub fn spawn(&self, name: &str, body: impl FnOnce(Endpoint) + Send + 'static) -> Result<Thread> {
        let endpoint = self.endpoint()?;
        Ok(self.shared().fabric.spawn(name.into(), Box::new(move || body(endpoint)))?)
    }

    /// Waits until these nodes have started and are connected.
    ///
    /// ```
    /// # let nodes = farfield::local_session(2)?;
    /// nodes[0].wait_for([nodes[1].id()], nodes[0].timeout())?; // it can be reached now
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// A timeout that names the missing nodes, a node that is dead or departed, or one that was refused.
    pub fn wait_for(&self, nodes: impl IntoIterator<Item = NodeId>, timeout: Duration) -> Result<()> {
        let shared = self.shared();
        let mut missing: Vec<NodeId> = nodes.into_iter().filter(|node| *node != self.id()).collect();
        let endpoint = self.endpoint()?;
        let start = endpoint.now();
        let waited = endpoint.block_on(endpoint.wait_until(start + timeout, || {
            missing.retain(|node| !shared.service.is_up(*node));
            if let Some(refusal) = shared.service.refusal_of(&missing) {
                return Some(Err(refusal));
            }
            let gone = missing.iter().find_map(|node| endpoint.check_alive(*node).err());
            if let Some(error) = gone {
                return Some(Err(error.into()));
            }
            missing.is_empty().then_some(Ok(()))
        }));
        match waited {
            Ok(result) => result,
            Err(_) => {
                let what = self.with_refusals("the nodes of the session to start".into());
                Err(ErrorKind::Timeout { what, waited: endpoint.now() - start, missing }.into())
            }
        }
    }

    /// Waits until all members of the session have started. It does not wait for dead or departed ones.
    ///
    /// ```
    /// # let nodes = farfield::local_session(2)?;
    /// nodes[0].wait_for_all(nodes[0].timeout())?; // both have started
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Node::wait_for`].
    pub fn wait_for_all(&self, timeout: Duration) -> Result<()> {
        self.wait_for(self.live_members(), timeout)
    }

    /// How long blocking calls and the opening of an object wait if no deadline is given.
    ///
    /// ```
    /// # let node = farfield::Node::builder().start()?;
    /// assert_eq!(node.timeout().as_secs(), 30); // the default
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn timeout(&self) -> Duration {
        self.shared().config.timeout
    }

    /// Registers work for the service thread, which polls it from now on until it reports that it is done.
    ///
    /// ```
    /// # let node = farfield::Node::builder().start()?;
    /// use farfield::{Endpoint, toolkit::{Poller, Progress}};
    /// struct Once(std::sync::mpsc::Sender<()>);
    /// impl Poller for Once {
    ///     fn poll(&mut self, _: &Endpoint) -> Progress {
    ///         let _ = self.0.send(());
    ///         Progress::Done
    ///     }
    /// }
    /// let (sender, done) = std::sync::mpsc::channel();
    /// node.add_poller(Box::new(Once(sender)));
    /// done.recv().unwrap(); // by the service thread
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn add_poller(&self, poller: Box<dyn Poller>) {
        self.shared().add_poller(poller);
    }

    /// Leaves the session gracefully: peers that still use this node's memory get
    /// [`PeerLeft`](farfield_fabric::ErrorKind::PeerLeft). Dropping the last handle does the same. Drop the endpoints
    /// first: their puts are then visible. Puts of an endpoint that is still open may be lost.
    ///
    /// ```
    /// # let nodes = farfield::local_session(2)?;
    /// let [stays, leaves] = nodes.try_into().ok().unwrap();
    /// let other = leaves.id();
    /// leaves.leave();
    /// let ep = stays.endpoint()?;
    /// ep.block_on(ep.wait_until(ep.deadline(), || ep.check_alive(other).err()))?;
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn leave(self) {
        if let Some(handle) = &self.handle {
            handle.leave();
        }
    }

    /// Whether the node is leaving: its service thread takes no new pollers any more.
    pub(crate) fn is_leaving(&self) -> bool {
        self.shared.service.is_stopped()
    }

    /// A handle for a [`Poller`]. It does not keep the node in its session: a poller that held an ordinary handle would
    /// keep its own service thread running.
    ///
    /// ```
    /// # let node = farfield::Node::builder().start()?;
    /// let handle = node.for_service(); // to keep in a poller
    /// assert_eq!(handle.id(), node.id());
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn for_service(&self) -> Node {
        Node { shared: Arc::clone(&self.shared), handle: None }
    }

    /// Returns a generator of random numbers for a `stream`, from the node's seed. Each stream has its own.
    ///
    /// ```
    /// use rand::RngExt;
    /// let [one, two] = [1, 2].map(|_| farfield::Node::builder().seed(7).start());
    /// assert_eq!(one?.rng(3).random::<u64>(), two?.rng(3).random::<u64>()); // of one seed and stream
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn rng(&self, stream: u64) -> Rng {
        self.shared.rng(stream)
    }

    /// The fabric that the node uses: its memory, permission groups, peers and clock.
    ///
    /// ```
    /// # let node = farfield::Node::builder().start().unwrap();
    /// assert_eq!(node.fabric().me(), node.id());
    /// ```
    pub fn fabric(&self) -> &dyn Fabric {
        &*self.shared().fabric
    }

    /// The runtime's side of the fabric, for decorators, tools and tests: see
    /// [`Transport`](farfield_fabric::Transport). An application that uses it can evict peers, or leave the session.
    ///
    /// ```
    /// # let node = farfield::Node::builder().start().unwrap();
    /// assert_eq!(node.transport().me(), node.id());
    /// ```
    pub fn transport(&self) -> &Arc<dyn Transport> {
        &self.shared().fabric
    }

    /// The fabric's clock.
    ///
    /// ```
    /// # let node = farfield::Node::builder().start().unwrap();
    /// assert!(node.now() <= node.now());
    /// ```
    pub fn now(&self) -> Instant {
        self.shared().fabric.now()
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl Handle {
    fn leave(&self) {
        let Some(thread) = self.service.lock().take() else { return };
        #[cfg(feature = "prometheus")]
        self.shared.servers.stop();
        tracing::info!(node = self.shared.fabric.me().0, "the node leaves");
        self.shared.service.stop();
        self.shared.fabric.wake_service();
        if let Err(panic) = thread.join() {
            tracing::error!("the service thread of node {} panicked: {panic}", self.shared.config.node);
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.leave();
    }
}

impl Shared {
    /// Nodes that no longer belong to the session.
    fn gone(&self) -> Vec<u16> {
        // This includes nodes that this node has not seen: the fabric knows of them before the membership does.
        (0..self.fabric.nodes() as u16).filter(|node| self.is_gone(NodeId(*node))).collect()
    }

    fn live_members(&self) -> Vec<NodeId> {
        self.service.known().filter(|node| !self.is_gone(*node)).collect()
    }

    /// Whether a node no longer belongs to the session.
    fn is_gone(&self, node: NodeId) -> bool {
        // This asks the fabric: after an error that names a dead node, the caller must not take that node for a
        // survivor. Nodes that died or left before this one started are known from the membership only. Only a
        // restarted node, or one that started after a restarted one, can have missed any.
        matches!(self.fabric.peer_state(node), PeerState::Left | PeerState::Dead { .. })
            || (self.fabric.me().index() >= self.fabric.places() && self.service.is_removed(node))
    }

    fn rng(&self, stream: u64) -> Rng {
        Rng::seed_from_u64(self.fabric.seed() ^ stream.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn endpoint(&self, background: bool) -> Result<Endpoint> {
        let (pool_bytes_max, timeout) = (self.config.pool_bytes_max, self.config.timeout);
        let number = {
            let mut endpoints = self.endpoints.lock();
            endpoints.numbered += 1;
            endpoints.numbered - 1
        };
        let calls = Numbers::room(self.config.latencies);
        let options = EndpointOptions { pool_bytes_max, timeout, background, number, calls };
        let endpoint = Endpoint::open(Arc::clone(&self.fabric), options)?;
        if let Some(reader) = endpoint.calls_reader() {
            self.numbers.lock().follow(reader);
        }
        let mut endpoints = self.endpoints.lock();
        let closed = endpoints
            .open
            .extract_if(.., |reader| reader.is_final())
            .fold(Counts::default(), |sum, reader| sum + reader.read());
        endpoints.closed = endpoints.closed + closed;
        endpoints.open.push(endpoint.counts_reader());
        endpoints.opened += 1;
        Ok(endpoint)
    }

    pub(crate) fn add_poller(&self, poller: Box<dyn Poller>) {
        self.service.add_poller(poller);
        self.fabric.wake_service();
    }
}
