//! The configuration of a node: by calls, from a TOML file, from the environment.

mod environment;
#[cfg(feature = "toml")]
mod file;
#[cfg(not(any(feature = "ucx", feature = "verbs")))]
mod no_hosts;
#[cfg(not(feature = "verbs"))]
mod no_rdma;
#[cfg(not(feature = "ucx"))]
mod no_ucx;
#[cfg(feature = "verbs")]
mod rdma;
#[cfg(any(feature = "ucx", feature = "verbs"))]
mod secret;
#[cfg(feature = "ucx")]
mod ucx;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use farfield_fabric::shm::{ShmFabric, ShmOptions};
use farfield_fabric::{self as fabric, HugePages, Transport};

pub(super) use self::environment::is_launched;
#[cfg(not(any(feature = "ucx", feature = "verbs")))]
use self::no_hosts as secret;
#[cfg(not(feature = "verbs"))]
use self::no_rdma as rdma;
#[cfg(all(feature = "toml", not(feature = "ucx")))]
use self::no_ucx as ucx;
use self::rdma::Rdma;
use self::secret::SharedSecret;
#[cfg(feature = "ucx")]
use self::ucx::OverUcx;
use super::Node;
use crate::error::{Error, ErrorKind, Result};

type Decorate = Arc<dyn Fn(Arc<dyn Transport>) -> fabric::Result<Arc<dyn Transport>> + Send + Sync>;

/// The configuration of a node. Made by a [`Builder`].
///
/// ```
/// // A builder makes it: from calls, from text or a file, and from the environment, in this order here.
/// let builder = farfield::Node::builder().seed(7).toml("timeout_ms = 5000")?.environment()?;
/// # Ok::<(), farfield::Error>(())
/// ```
#[derive(Clone)]
pub struct Config {
    /// Empty if none was given.
    pub(crate) session: String,
    pub(crate) node: u16,
    pub(crate) nodes: u16,
    pub(crate) names: Vec<String>,
    pub(crate) timeout: Duration,
    pub(crate) memory_bytes_max: usize,
    pub(crate) huge_pages: HugePages,
    pub(crate) pool_bytes_max: usize,
    pub(crate) seed: Option<u64>,
    pub(crate) latencies: bool,
    pub(crate) fabric: Choice,
    pub(crate) hosts: Hosts,
    pub(crate) decorate: Option<Decorate>,
}

/// The fabric that a node uses.
#[derive(Clone)]
pub(crate) enum Choice {
    /// Shared memory of one host.
    Shm,
    /// RDMA between hosts.
    Verbs,
    /// UCX between hosts.
    Ucx,
    /// RDMA between hosts where this one has a device for it, and otherwise UCX.
    Auto,
    /// A fabric that has already joined its session.
    Joined(Arc<dyn Transport>),
}

impl Choice {
    /// Whether the nodes are processes of any hosts, which listen for each other.
    fn is_between_hosts(&self) -> bool {
        matches!(self, Choice::Verbs | Choice::Ucx | Choice::Auto)
    }
}

/// The configuration of a node on RDMA or UCX.
#[derive(Clone, Default)]
pub(crate) struct Hosts {
    /// The addresses on which the nodes of all places listen.
    pub(crate) addresses: Vec<SocketAddr>,
    /// How many nodes there were at this place before.
    pub(crate) life: u16,
    /// A node that is silent for this long is suspected.
    pub(crate) silence: Option<Duration>,
    /// The secret of all nodes.
    pub(crate) secret: SharedSecret,
    /// The device on RDMA.
    pub(crate) rdma: Rdma,
    /// The transports and interfaces on UCX.
    #[cfg(feature = "ucx")]
    pub(crate) ucx: OverUcx,
}

impl Config {
    /// The options for joining a session over shared memory.
    pub(super) fn shm(&self) -> ShmOptions {
        let mut options = ShmOptions::new(self.session.clone(), self.node, usize::from(self.nodes));
        options.group_bytes_max = self.memory_bytes_max;
        options.huge_pages = self.huge_pages;
        options.seed = self.seed;
        options
    }
}

/// The builder of a node that is to be started.
///
/// ```
/// # fn main() -> farfield::Result<()> {
/// use std::time::Duration;
/// let builder = farfield::Node::builder().session("doc-builder").names(["left", "right"]).node(1);
/// let right = builder.timeout(Duration::from_secs(5)).memory_bytes_max(1 << 30).seed(7).start()?;
/// assert_eq!((right.id().0, right.nodes()), (1, 2)); // `left` may start later
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "a builder does nothing before `start`"]
pub struct Builder {
    config: Config,
}

impl Default for Builder {
    fn default() -> Builder {
        Builder {
            config: Config {
                session: String::new(),
                node: 0,
                nodes: 1,
                names: Vec::new(),
                timeout: Duration::from_secs(30),
                memory_bytes_max: 64 << 30,
                huge_pages: HugePages::default(),
                pool_bytes_max: 256 << 20,
                seed: None,
                latencies: false,
                fabric: Choice::Shm,
                hosts: Hosts::default(),
                decorate: None,
            },
        }
    }
}

impl Builder {
    /// Sets the session's name: nodes with the same name find each other. It consists of letters, digits, `_`, `-` and
    /// `.`. By default, a session of one node gets a unique name, and several nodes use `default`.
    ///
    /// ```
    /// let node = farfield::Node::builder().session("doc-orders").start()?;
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn session(mut self, name: &str) -> Builder {
        self.config.session = name.into();
        self
    }

    /// Sets this node's number, from 0.
    ///
    /// ```
    /// let node = farfield::Node::builder().node(1).nodes(2).session("doc-second").start()?;
    /// assert_eq!(node.id(), farfield::NodeId(1));
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn node(mut self, node: u16) -> Builder {
        self.config.node = node;
        self
    }

    /// Sets how many nodes the session has: 1 to [`NODES_MAX`](crate::NODES_MAX).
    ///
    /// ```
    /// let node = farfield::Node::builder().nodes(2).session("doc-pair").start()?; // the other may start later
    /// assert_eq!(node.nodes(), 2);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn nodes(mut self, nodes: u16) -> Builder {
        self.config.nodes = nodes;
        self
    }

    /// Sets the names of the nodes, in order, and thereby how many there are.
    ///
    /// ```
    /// let node = farfield::Node::builder().names(["left", "right"]).session("doc-names").start()?;
    /// assert_eq!(node.by_name("right"), Some(farfield::NodeId(1)));
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn names<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Builder {
        self.config.names = names.into_iter().map(Into::into).collect();
        self.config.nodes = self.config.names.len().try_into().unwrap_or(u16::MAX);
        self
    }

    /// Sets how long blocking calls and the opening of an object wait if no deadline is given. Default: 30 s.
    ///
    /// ```
    /// let second = std::time::Duration::from_secs(1);
    /// let node = farfield::Node::builder().timeout(second).start()?;
    /// assert_eq!(node.timeout(), second);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn timeout(mut self, timeout: Duration) -> Builder {
        self.config.timeout = timeout;
        self
    }

    /// Sets the most network memory of each permission group, in bytes. It is allocated only as needed.
    ///
    /// ```
    /// let node = farfield::Node::builder().memory_bytes_max(1 << 24).start()?;
    /// assert!(node.alloc(farfield::fabric::GroupKey::DATA, 1 << 25).is_err());
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn memory_bytes_max(mut self, bytes: usize) -> Builder {
        self.config.memory_bytes_max = bytes;
        self
    }

    /// Sets the page size of network memory. The default is 2 MiB as long as the machine has free pages of that size.
    /// In a file this is `huge_pages = "none"`, `"2M"` or `"1G"`; in the environment `FARFIELD_HUGE_PAGES`. It applies
    /// to all fabrics, and replaces `VerbsOptions::huge_pages` and `UcxOptions::huge_pages`.
    ///
    /// ```
    /// let node = farfield::Node::builder().huge_pages(farfield::HugePages::Never).start()?;
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn huge_pages(mut self, pages: HugePages) -> Builder {
        self.config.huge_pages = pages;
        self
    }

    /// Sets the most registered buffers of each endpoint, in bytes. An endpoint may use as many again, at least a
    /// megabyte, for operations on words.
    ///
    /// ```
    /// let node = farfield::Node::builder().pool_bytes_max(1 << 20).start()?;
    /// assert!(node.endpoint()?.buf::<u8>(1 << 22).is_err());
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn pool_bytes_max(mut self, bytes: usize) -> Builder {
        self.config.pool_bytes_max = bytes;
        self
    }

    /// Sets a seed for the node's random choices.
    ///
    /// ```
    /// let node = farfield::Node::builder().seed(7).start()?; // the same choices in each run
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn seed(mut self, seed: u64) -> Builder {
        self.config.seed = Some(seed);
        self
    }

    /// Sets whether the node counts and times the calls of its objects, for [`Node::metrics`]. It does not by default:
    /// then a call takes at most about 4 % more instructions. A measured call reads the clock twice. In a file this is
    /// `latencies = true`; in the environment `FARFIELD_LATENCIES=1`.
    ///
    /// The calls that wait or move data are measured: those of variables, rings, queues, mutexes and other locks,
    /// stores and barriers, and the beginnings and commits of transactions. Releases of locks, questions about a whole
    /// queue, and collectives are not. A call that finds nothing to take, or no room, counts as one that ends well; a
    /// look at an empty ring does not count.
    ///
    /// Each endpoint has room for 1,024 different calls, 1.3 MB of address space, of which it uses the part of the
    /// calls that are made. Objects that are closed keep their places, and so does each generation of one that is
    /// reopened. Objects that are opened when all are taken are counted together, as an object without a path, of the
    /// kind `other`.
    ///
    /// ```
    /// let node = farfield::Node::builder().latencies(true).start()?;
    /// let (ep, mutex) = (node.endpoint()?, farfield::Mutex::open(&node, "account", node.id())?);
    /// drop(ep.block_on(mutex.lock(&ep))?);
    /// let metrics = node.metrics();
    /// println!("{:?}", metrics.call("account", "lock").unwrap().latencies.mean());
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn latencies(mut self, are_measured: bool) -> Builder {
        self.config.latencies = are_measured;
        self
    }

    /// Starts the node on a fabric that has already joined its session, such as a simulated one, instead of joining one
    /// on shared memory. The fabric determines this node's number and the number of nodes.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use farfield::fabric::shm::{ShmFabric, ShmOptions};
    /// let fabric = ShmFabric::join(&ShmOptions::new("doc-fabric", 0, 1))?;
    /// let node = farfield::Node::builder().fabric(fabric).start()?;
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn fabric(mut self, fabric: Arc<dyn Transport>) -> Builder {
        self.config.node = fabric.me().0 % fabric.places() as u16;
        self.config.nodes = fabric.places() as u16;
        self.config.fabric = Choice::Joined(fabric);
        self
    }

    /// Starts the node on RDMA. The nodes of all places listen at these addresses, in order; their number is the number
    /// of nodes. Each node uses one device, see `Builder::device`. In a build without the feature `verbs`,
    /// [`Builder::start`] returns [`ErrorKind::NotBuilt`](crate::ErrorKind::NotBuilt). With [`Builder::over_ucx`] they
    /// are on UCX instead.
    ///
    /// ```no_run
    /// # fn main() -> farfield::Result<()> {
    /// let addresses = ["10.0.0.1:7471", "10.0.0.2:7471"].map(|address| address.parse().unwrap());
    /// let secret = farfield::fabric::verbs::Secret::new(b"sixteen bytes or more").unwrap();
    /// let node = farfield::Node::builder().session("orders").hosts(addresses).node(0).secret(secret).start()?;
    /// # Ok(()) }
    /// ```
    pub fn hosts(mut self, addresses: impl IntoIterator<Item = SocketAddr>) -> Builder {
        self.config.hosts.addresses = addresses.into_iter().collect();
        self.config.nodes = self.config.hosts.addresses.len().try_into().unwrap_or(u16::MAX);
        if !self.config.fabric.is_between_hosts() {
            self.config.fabric = Choice::Verbs;
        }
        self
    }

    /// Starts the node on UCX, which needs no RDMA device but TCP. [`Builder::hosts`] has the addresses at which the
    /// nodes listen for each other, as on RDMA; for its data UCX uses ports of its own choice. Several nodes need a
    /// secret (`Builder::secret`). In the environment this is `FARFIELD_FABRIC=ucx`, in a file the table `[ucx]`. In a
    /// build without the feature `ucx`, [`Builder::start`] returns [`ErrorKind::NotBuilt`](crate::ErrorKind::NotBuilt).
    ///
    /// ```no_run
    /// # fn main() -> farfield::Result<()> {
    /// let addresses = ["10.0.0.1:7471", "10.0.0.2:7471"].map(|address| address.parse().unwrap());
    /// let secret = farfield::fabric::ucx::Secret::new(b"sixteen bytes or more").unwrap();
    /// let builder = farfield::Node::builder().session("orders").hosts(addresses).over_ucx().secret(secret);
    /// let node = builder.node(0).start()?;
    /// # Ok(()) }
    /// ```
    pub fn over_ucx(mut self) -> Builder {
        self.config.fabric = Choice::Ucx;
        self
    }

    /// Starts the node on RDMA, whatever was set before: a choice of the environment, say. [`Builder::hosts`] has the
    /// addresses. In the environment this is `FARFIELD_FABRIC=verbs`.
    ///
    /// ```
    /// let builder = farfield::Node::builder().hosts(farfield::loopback_hosts(3)).over_rdma();
    /// ```
    pub fn over_rdma(mut self) -> Builder {
        self.config.fabric = Choice::Verbs;
        self
    }

    /// Starts the node on RDMA if this host has a device for it, and otherwise on UCX. A node whose device is named is
    /// on RDMA, or does not start. All hosts have to come to the same result: a session is on one of them. The node
    /// logs (`tracing`) which one it has chosen, and why. On UCX several nodes need a secret (`Builder::secret`). In
    /// the environment this is `FARFIELD_FABRIC=auto`.
    ///
    /// ```no_run
    /// # fn main() -> farfield::Result<()> {
    /// let addresses = ["10.0.0.1:7471", "10.0.0.2:7471"].map(|address| address.parse().unwrap());
    /// let secret = farfield::fabric::ucx::Secret::new(b"sixteen bytes or more").unwrap();
    /// let builder = farfield::Node::builder().session("orders").hosts(addresses).over_rdma_or_ucx().secret(secret);
    /// let node = builder.node(0).start()?;
    /// # Ok(()) }
    /// ```
    pub fn over_rdma_or_ucx(mut self) -> Builder {
        self.config.fabric = Choice::Auto;
        self
    }

    /// Sets how long a node on RDMA or UCX may be silent; half a second by default. After that the others suspect
    /// that it is dead, and decide it. Devices give up on a peer after about as long. All nodes must use the same
    /// value.
    ///
    /// ```
    /// let silence = std::time::Duration::from_millis(200);
    /// let builder = farfield::Node::builder().hosts(farfield::loopback_hosts(3)).suspect_timeout(silence);
    /// ```
    pub fn suspect_timeout(mut self, silence: Duration) -> Builder {
        self.config.hosts.silence = Some(silence);
        self
    }

    /// Sets how many nodes there were at this place before, on RDMA or UCX. A restarted node never gets its
    /// predecessor's number.
    ///
    /// ```
    /// let restarted = farfield::Node::builder().hosts(farfield::loopback_hosts(3)).node(1).life(1);
    /// ```
    pub fn life(mut self, life: u16) -> Builder {
        self.config.hosts.life = life;
        self
    }

    /// Wraps the fabric in decorators ([`farfield_fabric::weak`], [`farfield_fabric::fault`], …), for tests.
    ///
    /// ```
    /// use farfield::fabric::fault::{Faults, inject};
    /// let faults = Faults::default();
    /// let injected = faults.clone();
    /// let decorated = farfield::Node::builder().decorate(move |fabric| Ok(inject(fabric, injected.clone()))).start()?;
    /// faults.fail_after(10); // the eleventh operation of the node from now on fails
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn decorate(
        mut self,
        wrap: impl Fn(Arc<dyn Transport>) -> fabric::Result<Arc<dyn Transport>> + Send + Sync + 'static,
    ) -> Builder {
        self.config.decorate = Some(Arc::new(wrap));
        self
    }

    /// Starts the node. It does not wait for the others, see [`Node::wait_for_all`].
    ///
    /// ```
    /// let node = farfield::Node::builder().start()?;
    /// assert!(farfield::Node::builder().node(2).nodes(2).start().is_err()); // numbers go from 0 to 1
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// The configuration is invalid, the place is taken, or no memory is left.
    pub fn start(self) -> Result<Node> {
        let mut config = self.config;
        if config.session.is_empty() {
            config.session = if config.nodes == 1 { unique_session("alone") } else { "default".into() };
        }
        // The lists have a length that `nodes` may not hold.
        let count = usize::from(config.nodes).max(config.names.len()).max(config.hosts.addresses.len());
        fabric::check_nodes(count)?;
        if config.node >= config.nodes {
            let why = format!("node {} of {} nodes: numbers go from 0 to nodes − 1", config.node, config.nodes);
            return Err(config_error(why));
        }
        if !config.names.is_empty() && config.names.len() != usize::from(config.nodes) {
            let why = format!("{} names for {} nodes", config.names.len(), config.nodes);
            return Err(config_error(why));
        }
        config.hosts.rdma.take_device_in_turn(config.node);
        if config.fabric.is_between_hosts() && config.hosts.addresses.len() != usize::from(config.nodes) {
            let why = format!("{} addresses for {} nodes", config.hosts.addresses.len(), config.nodes);
            return Err(config_error(why));
        }
        Node::start(config)
    }
}

impl Config {
    /// Joins the session.
    pub(super) fn join(&self) -> Result<Arc<dyn Transport>> {
        let fabric = match &self.fabric {
            Choice::Joined(fabric) => Arc::clone(fabric),
            Choice::Verbs => self.join_rdma()?,
            Choice::Ucx => self.join_ucx()?,
            Choice::Auto => match self.lacks_rdma() {
                Some(why) if cfg!(feature = "ucx") => {
                    tracing::info!(why, "no RDMA: the node is on UCX");
                    self.join_ucx()?
                }
                _ => {
                    tracing::info!("the node is on RDMA");
                    self.join_rdma()?
                }
            },
            Choice::Shm => ShmFabric::join(&self.shm())?,
        };
        match &self.decorate {
            Some(decorate) => Ok(decorate(fabric)?),
            None => Ok(fabric),
        }
    }
}

/// Returns addresses for a session on RDMA or UCX with all nodes on this host. They belong to the loopback network and
/// are chosen at random, so that no other session's nodes listen there.
///
/// ```
/// let hosts = farfield::loopback_hosts(3);
/// assert!(hosts.len() == 3 && hosts.iter().all(|host| host.ip().is_loopback()));
/// ```
#[allow(
    clippy::disallowed_methods,
    reason = "not a choice that a simulator has to own: addresses of sessions order nothing"
)]
pub fn loopback_hosts(nodes: u16) -> Vec<SocketAddr> {
    let [second, third] = [rand::random_range(1..=254u8), rand::random()];
    let address = |node: u16| {
        let ip = [127, second, third.wrapping_add((node / 250) as u8), (1 + node % 250) as u8];
        SocketAddr::from((ip, PORT))
    };
    (0..nodes).map(address).collect()
}

/// The default port of nodes on RDMA or UCX.
///
/// ```
/// let hosts = farfield::loopback_hosts(3);
/// assert!(hosts.iter().all(|host| host.port() == farfield::PORT));
/// ```
pub const PORT: u16 = 7471;

/// Returns a name that no other session has.
#[allow(
    clippy::disallowed_methods,
    reason = "not a choice that a simulator has to own: names of sessions order nothing"
)]
pub(super) fn unique_session(purpose: &str) -> String {
    format!("{purpose}-{}-{:016x}", std::process::id(), rand::random::<u64>())
}

fn config_error(why: impl Into<String>) -> Error {
    ErrorKind::Config { why: why.into() }.into()
}

#[cfg(test)]
mod tests;
