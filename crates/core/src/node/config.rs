//! The configuration of a node: by calls, from a TOML file, from the environment.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use farfield_fabric::verbs::control::{Limits, Secret};
use farfield_fabric::verbs::{JoinOptions, VerbsOptions};
use farfield_fabric::{self as fabric, HugePages, Transport};
use serde::Deserialize;

use super::{Node, config_error};
use crate::error::Result;

type Decorate = Arc<dyn Fn(Arc<dyn Transport>) -> fabric::Result<Arc<dyn Transport>> + Send + Sync>;

/// The configuration of a node. Made by a [`Builder`].
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
    /// A fabric that has already joined its session.
    Joined(Arc<dyn Transport>),
}

/// The configuration of a node on RDMA.
#[derive(Clone, Default)]
pub(crate) struct Hosts {
    /// The addresses on which the nodes of all places listen.
    pub(crate) addresses: Vec<SocketAddr>,
    /// How many nodes there were at this place before.
    pub(crate) life: u16,
    pub(crate) secret: Option<Secret>,
    pub(crate) device: VerbsOptions,
    /// A node that is silent for this long is suspected.
    pub(crate) silence: Option<Duration>,
}

impl Hosts {
    /// Selects this node's device, if several are given.
    fn take_device_in_turn(&mut self, node: u16) {
        if let Some(devices) = &mut self.device.device {
            let names: Vec<&str> = devices.split(',').map(str::trim).collect();
            *devices = names[usize::from(node) % names.len()].to_owned();
        }
    }
}

impl Config {
    /// The options for joining a session on RDMA.
    pub(super) fn rdma(&self) -> JoinOptions {
        let Hosts { addresses, life, secret, device, silence } = &self.hosts;
        let listen = addresses[usize::from(self.node)];
        let (mut limits, mut device) = (Limits::default(), device.clone());
        device.huge_pages = self.huge_pages;
        if let Some(silence) = *silence {
            (limits.silence, limits.beat, device.patience) = (silence, silence / 5, silence);
        }
        JoinOptions {
            life: *life,
            addresses: addresses.clone(),
            secret: secret.clone(),
            device,
            limits,
            group_bytes_max: self.memory_bytes_max,
            seed: self.seed,
            ..JoinOptions::new(self.session.clone(), self.node, self.nodes, listen)
        }
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
                fabric: Choice::Shm,
                hosts: Hosts::default(),
                decorate: None,
            },
        }
    }
}

/// A configuration file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    session: Option<String>,
    node: Option<u16>,
    #[serde(default)]
    nodes: Vec<FileNode>,
    timeout_ms: Option<u64>,
    memory_bytes_max: Option<usize>,
    huge_pages: Option<HugePages>,
    pool_bytes_max: Option<usize>,
    seed: Option<u64>,
    rdma: Option<FileRdma>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileNode {
    name: String,
    address: Option<SocketAddr>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileRdma {
    secret_file: Option<PathBuf>,
    device: Option<String>,
    port: Option<u8>,
    gid_index: Option<u8>,
    in_order: Option<bool>,
    silence_ms: Option<u64>,
}

/// The variables of each launcher: this process's node number, the number of nodes, and the session.
const LAUNCHERS: [(&str, &str, &str); 4] = [
    ("FARFIELD_NODE", "FARFIELD_NODES", "FARFIELD_SESSION"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMIX_NAMESPACE"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_JOB_ID"),
    ("PMI_RANK", "PMI_SIZE", "PMI_JOBID"),
];

impl Builder {
    /// Sets the session's name: nodes with the same name find each other. It consists of letters, digits, `_`, `-` and
    /// `.`. By default, a session of one node gets a unique name, and several nodes use `default`.
    pub fn session(mut self, name: &str) -> Builder {
        self.config.session = name.into();
        self
    }

    /// Sets this node's number, from 0.
    pub fn node(mut self, node: u16) -> Builder {
        self.config.node = node;
        self
    }

    /// Sets how many nodes the session has.
    pub fn nodes(mut self, nodes: u16) -> Builder {
        self.config.nodes = nodes;
        self
    }

    /// Sets the names of the nodes, in order, and thereby how many there are.
    pub fn names<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Builder {
        self.config.names = names.into_iter().map(Into::into).collect();
        self.config.nodes = self.config.names.len().try_into().unwrap_or(u16::MAX);
        self
    }

    /// Sets how long blocking calls and the opening of an object wait if no deadline is given. Default: 30 s.
    pub fn timeout(mut self, timeout: Duration) -> Builder {
        self.config.timeout = timeout;
        self
    }

    /// Sets the most network memory of each permission group, in bytes. It is allocated only as needed.
    pub fn memory_bytes_max(mut self, bytes: usize) -> Builder {
        self.config.memory_bytes_max = bytes;
        self
    }

    /// Sets the page size of network memory. The default is 2 MiB as long as the machine has free pages of that size.
    /// In a file this is `huge_pages = "none"`, `"2M"` or `"1G"`; in the environment `FARFIELD_HUGE_PAGES`. It applies
    /// to shared memory and RDMA, and replaces [`VerbsOptions::huge_pages`].
    pub fn huge_pages(mut self, pages: HugePages) -> Builder {
        self.config.huge_pages = pages;
        self
    }

    /// Sets the most registered buffers of each endpoint, in bytes. An endpoint may use as many again, at least a
    /// megabyte, for operations on words.
    pub fn pool_bytes_max(mut self, bytes: usize) -> Builder {
        self.config.pool_bytes_max = bytes;
        self
    }

    /// Sets a seed for the node's random choices.
    pub fn seed(mut self, seed: u64) -> Builder {
        self.config.seed = Some(seed);
        self
    }

    /// Starts the node on a fabric that has already joined its session, such as a simulated one, instead of joining one
    /// on shared memory. The fabric determines this node's number and the number of nodes.
    pub fn fabric(mut self, fabric: Arc<dyn Transport>) -> Builder {
        self.config.node = fabric.me().0 % fabric.places() as u16;
        self.config.nodes = fabric.places() as u16;
        self.config.fabric = Choice::Joined(fabric);
        self
    }

    /// Starts the node on RDMA. The nodes of all places listen at these addresses, in order; their number is the number
    /// of nodes. Each node uses one device, see [`Builder::device`].
    ///
    /// ```no_run
    /// # fn main() -> farfield::Result<()> {
    /// let addresses = ["10.0.0.1:7471", "10.0.0.2:7471"].map(|address| address.parse().unwrap());
    /// let secret = farfield::fabric::verbs::control::Secret::new(b"sixteen bytes or more").unwrap();
    /// let node = farfield::Node::builder().session("orders").hosts(addresses).node(0).secret(secret).start()?;
    /// # Ok(()) }
    /// ```
    pub fn hosts(mut self, addresses: impl IntoIterator<Item = SocketAddr>) -> Builder {
        self.config.hosts.addresses = addresses.into_iter().collect();
        self.config.nodes = self.config.hosts.addresses.len().try_into().unwrap_or(u16::MAX);
        self.config.fabric = Choice::Verbs;
        self
    }

    /// Sets a secret that all nodes on RDMA share: a process without it is refused. Without a secret, any process that
    /// can connect is admitted.
    pub fn secret(mut self, secret: Secret) -> Builder {
        self.config.hosts.secret = Some(secret);
        self
    }

    /// Sets the RDMA device of this node and its options. Without a name, the library selects the device. If several
    /// names are given, separated by commas, the nodes take turns.
    pub fn device(mut self, device: VerbsOptions) -> Builder {
        self.config.hosts.device = device;
        self
    }

    /// Sets how long a node on RDMA may be silent; half a second by default. After that the others suspect that it is
    /// dead, and decide it. Devices give up on a peer after about as long. All nodes must use the same value.
    pub fn suspect_timeout(mut self, silence: Duration) -> Builder {
        self.config.hosts.silence = Some(silence);
        self
    }

    /// Sets how many nodes there were at this place before, on RDMA. A restarted node never gets its predecessor's
    /// number.
    pub fn life(mut self, life: u16) -> Builder {
        self.config.hosts.life = life;
        self
    }

    /// Wraps the fabric in decorators ([`farfield_fabric::weak`], [`farfield_fabric::fault`], …), for tests.
    pub fn decorate(
        mut self,
        wrap: impl Fn(Arc<dyn Transport>) -> fabric::Result<Arc<dyn Transport>> + Send + Sync + 'static,
    ) -> Builder {
        self.config.decorate = Some(Arc::new(wrap));
        self
    }

    /// Reads a TOML file. Settings that the file does not contain are unchanged.
    ///
    /// ```toml
    /// session = "orders"
    /// timeout_ms = 5000
    /// [[nodes]]
    /// name = "left"
    /// [[nodes]]
    /// name = "right"
    /// ```
    ///
    /// With addresses the nodes are on RDMA, and further settings apply:
    ///
    /// ```toml
    /// [[nodes]]
    /// name = "left"
    /// address = "10.0.0.1:7471"
    /// [[nodes]]
    /// name = "right"
    /// address = "10.0.0.2:7471"
    /// [rdma]
    /// secret_file = "/etc/orders.secret"   # the same bytes on every host
    /// device = "mlx5_0"
    /// port = 1
    /// gid_index = 3
    /// in_order = true                      # this device is known to place puts in order
    /// silence_ms = 500                     # who says nothing for so long is suspected to be dead
    /// ```
    ///
    /// # Errors
    /// The file cannot be read or is invalid.
    pub fn file(self, path: impl AsRef<Path>) -> Result<Builder> {
        let path = path.as_ref();
        let text = std::fs::read_to_string(path).map_err(|why| config_error(format!("{}: {why}", path.display())))?;
        self.toml(&text).map_err(|error| config_error(format!("{}: {error}", path.display())))
    }

    /// Reads TOML text as [`Builder::file`] does.
    ///
    /// ```
    /// let left = farfield::Node::builder().toml("timeout_ms = 5000\n[[nodes]]\nname = 'left'")?.start()?;
    /// assert_eq!((left.nodes(), left.name_of(left.id())), (1, "left".to_string()));
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// The text is invalid.
    pub fn toml(mut self, text: &str) -> Result<Builder> {
        let file: File = toml::from_str(text).map_err(|why| config_error(why.to_string()))?;
        if !file.nodes.is_empty() {
            let addresses: Vec<SocketAddr> = file.nodes.iter().filter_map(|node| node.address).collect();
            if !addresses.is_empty() && addresses.len() != file.nodes.len() {
                let why = format!("{} of {} nodes have an address: all or none", addresses.len(), file.nodes.len());
                return Err(config_error(why));
            }
            if !addresses.is_empty() {
                self = self.hosts(addresses);
            }
            self = self.names(file.nodes.into_iter().map(|node| node.name));
        }
        if let Some(rdma) = file.rdma {
            if let Some(path) = &rdma.secret_file {
                self = self.secret(read_secret(path)?);
            }
            self.config.hosts.silence = rdma.silence_ms.map(Duration::from_millis).or(self.config.hosts.silence);
            let device = &mut self.config.hosts.device;
            device.device = rdma.device.or(device.device.take());
            device.port = rdma.port.or(device.port);
            device.gid_index = rdma.gid_index.or(device.gid_index);
            device.in_order = rdma.in_order.or(device.in_order);
        }
        let config = &mut self.config;
        config.session = file.session.unwrap_or(std::mem::take(&mut config.session));
        config.node = file.node.unwrap_or(config.node);
        config.timeout = file.timeout_ms.map_or(config.timeout, Duration::from_millis);
        config.memory_bytes_max = file.memory_bytes_max.unwrap_or(config.memory_bytes_max);
        config.huge_pages = file.huge_pages.unwrap_or(config.huge_pages);
        config.pool_bytes_max = file.pool_bytes_max.unwrap_or(config.pool_bytes_max);
        config.seed = file.seed.or(config.seed);
        Ok(self)
    }

    /// Reads the environment: `FARFIELD_NODE`, `FARFIELD_NODES` and `FARFIELD_SESSION` (as `farfield run` sets them),
    /// or the variables of `mpirun` and `srun`; and `FARFIELD_HUGE_PAGES`, see [`Builder::huge_pages`]. Settings
    /// without a variable are unchanged.
    ///
    /// `FARFIELD_HOSTS` puts the nodes on RDMA. It contains the addresses of the nodes of all places, separated by
    /// commas. These variables are then read, too:
    /// - `FARFIELD_SECRET`, or `FARFIELD_SECRET_FILE`, the path of a file with the secret;
    /// - `FARFIELD_DEVICE`, one for all nodes, or several, which they use in turns;
    /// - `FARFIELD_GID_INDEX`;
    /// - `FARFIELD_SILENCE_MS`, see [`Builder::suspect_timeout`];
    /// - `FARFIELD_LIFE`, see [`Builder::life`].
    ///
    /// # Errors
    /// A variable is invalid.
    pub fn environment(self) -> Result<Builder> {
        self.variables(|name| std::env::var(name).ok())
    }

    fn variables(mut self, variable: impl Fn(&str) -> Option<String>) -> Result<Builder> {
        let number = |name: &str| {
            let text = variable(name);
            let parse = |text: String| {
                text.parse::<u16>().map_err(|_| config_error(format!("{name}={text}: not a number of nodes")))
            };
            text.map(parse).transpose()
        };
        self = self.rdma_variables(&variable)?;
        if let Some(pages) = variable("FARFIELD_HUGE_PAGES") {
            let unknown = |why| config_error(format!("FARFIELD_HUGE_PAGES: {why}"));
            self.config.huge_pages = pages.trim().parse().map_err(unknown)?;
        }
        for (node, nodes, session) in LAUNCHERS {
            let (Some(node), Some(nodes)) = (number(node)?, number(nodes)?) else { continue };
            (self.config.node, self.config.nodes) = (node, nodes);
            if let Some(name) = variable("FARFIELD_SESSION").or_else(|| variable(session)) {
                let fit = |c: char| if c.is_ascii_alphanumeric() || "_.-".contains(c) { c } else { '_' };
                self.config.session = name.chars().map(fit).take(64).collect();
            }
            return Ok(self);
        }
        if let Some(name) = variable("FARFIELD_SESSION") {
            self.config.session = name;
        }
        Ok(self)
    }

    fn rdma_variables(mut self, variable: &impl Fn(&str) -> Option<String>) -> Result<Builder> {
        fn parse<T: FromStr>(name: &str, text: &str) -> Result<T> {
            text.trim().parse().map_err(|_| config_error(format!("{name}: `{text}` is none")))
        }
        let Some(hosts) = variable("FARFIELD_HOSTS").filter(|hosts| !hosts.is_empty()) else { return Ok(self) };
        let addresses: Result<Vec<SocketAddr>> =
            hosts.split(',').map(|address| parse("an address of FARFIELD_HOSTS, as 10.0.0.1:7471", address)).collect();
        self = self.hosts(addresses?);
        if let Some(secret) = variable("FARFIELD_SECRET") {
            self = self.secret(Secret::new(secret.as_bytes()).map_err(|why| config_error(why.to_string()))?);
        } else if let Some(path) = variable("FARFIELD_SECRET_FILE") {
            self = self.secret(read_secret(Path::new(&path))?);
        }
        if let Some(life) = variable("FARFIELD_LIFE") {
            self.config.hosts.life = parse("the number FARFIELD_LIFE", &life)?;
        }
        if let Some(silence) = variable("FARFIELD_SILENCE_MS") {
            self.config.hosts.silence = Some(Duration::from_millis(parse("the number FARFIELD_SILENCE_MS", &silence)?));
        }
        let device = &mut self.config.hosts.device;
        if let Some(index) = variable("FARFIELD_GID_INDEX") {
            device.gid_index = Some(parse("the number FARFIELD_GID_INDEX", &index)?);
        }
        device.device = variable("FARFIELD_DEVICE").or(device.device.take());
        Ok(self)
    }

    /// Starts the node. It does not wait for the others, see [`Node::wait_for_all`].
    ///
    /// # Errors
    /// The configuration is invalid, the place is taken, or no memory is left.
    pub fn start(self) -> Result<Node> {
        let mut config = self.config;
        if config.session.is_empty() {
            config.session = if config.nodes == 1 { unique_session("alone") } else { "default".into() };
        }
        if config.node >= config.nodes {
            let why = format!("node {} of {} nodes: numbers go from 0 to nodes − 1", config.node, config.nodes);
            return Err(config_error(why));
        }
        if !config.names.is_empty() && config.names.len() != usize::from(config.nodes) {
            let why = format!("{} names for {} nodes", config.names.len(), config.nodes);
            return Err(config_error(why));
        }
        config.hosts.take_device_in_turn(config.node);
        if matches!(config.fabric, Choice::Verbs) && config.hosts.addresses.len() != usize::from(config.nodes) {
            let why = format!("{} addresses for {} nodes", config.hosts.addresses.len(), config.nodes);
            return Err(config_error(why));
        }
        Node::start(config)
    }
}

fn read_secret(path: &Path) -> Result<Secret> {
    let bytes = std::fs::read(path).map_err(|why| config_error(format!("the secret, {}: {why}", path.display())))?;
    Secret::new(bytes.trim_ascii_end()).map_err(|why| config_error(format!("{}: {why}", path.display())))
}

/// Returns addresses for a session on RDMA whose nodes are all on this host. They belong to the loopback network and
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

/// The default port of nodes on RDMA.
pub const PORT: u16 = 7471;

/// Whether the variables of a launcher are set.
pub(super) fn is_launched() -> bool {
    LAUNCHERS.iter().any(|(node, nodes, _)| [node, nodes].iter().all(|name| std::env::var_os(name).is_some()))
}

/// Returns a name that no other session has.
#[allow(
    clippy::disallowed_methods,
    reason = "not a choice that a simulator has to own: names of sessions order nothing"
)]
pub(super) fn unique_session(purpose: &str) -> String {
    format!("{purpose}-{}-{:016x}", std::process::id(), rand::random::<u64>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(variables: &[(&str, &str)]) -> Result<Config> {
        let find = |name: &str| variables.iter().find(|v| v.0 == name).map(|v| v.1.to_string());
        Node::builder().variables(find).map(|builder| builder.config)
    }

    #[test]
    fn the_rank_is_found_inside_every_launcher() {
        for (node, nodes) in [
            ("FARFIELD_NODE", "FARFIELD_NODES"),
            ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
            ("SLURM_PROCID", "SLURM_NTASKS"),
            ("PMI_RANK", "PMI_SIZE"),
        ] {
            let config = from(&[(node, "2"), (nodes, "4"), ("FARFIELD_SESSION", "s")]).unwrap();
            assert_eq!((config.node, config.nodes, config.session.as_str()), (2, 4, "s"));
        }
        let config = from(&[("SLURM_PROCID", "1"), ("SLURM_NTASKS", "2"), ("SLURM_JOB_ID", "77")]).unwrap();
        assert_eq!(config.session, "77");
        assert_eq!(from(&[]).unwrap().nodes, 1);
        assert!(from(&[("FARFIELD_NODE", "x"), ("FARFIELD_NODES", "2")]).is_err());
    }

    #[test]
    fn a_file_says_names_and_limits_and_nothing_unknown() {
        let text = "session='s'\nnode=1\ntimeout_ms=50\n[[nodes]]\nname='a'\n[[nodes]]\nname='b'\n";
        let config = Node::builder().toml(text).unwrap().config;
        assert_eq!((config.node, config.nodes, config.timeout.as_millis()), (1, 2, 50));
        assert!(Node::builder().toml("sesion='s'").is_err());
    }

    #[test]
    fn huge_pages_are_named() {
        assert_eq!(from(&[]).unwrap().huge_pages, HugePages::TwoMib);
        assert_eq!(from(&[("FARFIELD_HUGE_PAGES", "1G")]).unwrap().huge_pages, HugePages::OneGib);
        assert!(from(&[("FARFIELD_HUGE_PAGES", "4K")]).is_err());
        let file = Node::builder().toml("huge_pages = 'none'\n[[nodes]]\nname = 'a'").unwrap().config;
        assert_eq!(file.huge_pages, HugePages::Never);
    }

    #[test]
    fn addresses_put_a_node_on_rdma() {
        let text =
            "[[nodes]]\nname='a'\naddress='10.0.0.1:1'\n[[nodes]]\nname='b'\naddress='[fd99::2]:1'\n[rdma]\nport=2";
        let config = Node::builder().toml(text).unwrap().config;
        assert!(matches!(config.fabric, Choice::Verbs) && config.hosts.addresses[1].is_ipv6());
        assert_eq!((config.nodes, config.hosts.device.port), (2, Some(2)));
        let huge = Node::builder().toml(&format!("huge_pages='1G'\n{text}")).unwrap().config;
        assert_eq!(
            (config.rdma().device.huge_pages, huge.rdma().device.huge_pages),
            (HugePages::TwoMib, HugePages::OneGib)
        );
        assert!(Node::builder().toml(&text.replace("address='10.0.0.1:1'", "")).is_err(), "one without an address");

        let hosts = ("FARFIELD_HOSTS", "127.0.0.1:1,127.0.0.2:1, 127.0.0.3:1");
        let node = [("FARFIELD_NODE", "1"), ("FARFIELD_NODES", "3"), ("FARFIELD_DEVICE", "a,b")];
        let mut config = from(&[&node[..], &[hosts, ("FARFIELD_SECRET", "0123456789abcdef")]].concat()).unwrap();
        config.hosts.take_device_in_turn(config.node);
        assert_eq!((config.hosts.addresses.len(), config.hosts.device.device.as_deref()), (3, Some("b")));
        assert!(config.hosts.secret.is_some());
        for wrong in [("FARFIELD_HOSTS", "here"), ("FARFIELD_LIFE", "x"), ("FARFIELD_SECRET", "short")] {
            assert!(from(&[hosts, wrong][usize::from(wrong.0 == hosts.0)..]).is_err(), "{wrong:?}");
        }
        assert!(matches!(from(&node).unwrap().fabric, Choice::Shm));
    }

    #[test]
    fn numbers_that_make_no_sense_are_refused() {
        assert!(Node::builder().node(2).nodes(2).start().is_err());
        assert!(Node::builder().names(["a", "b"]).nodes(3).start().is_err());
    }
}
