//! The readers of a configuration: of the TOML file, and of the environment.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use farfield_fabric::HugePages;
use farfield_fabric::verbs::control::Secret;
use serde::Deserialize;

use super::super::config_error;
use super::Builder;
use crate::error::{Error, Result};

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

const OWN_NODE: &str = "FARFIELD_NODE";
const OWN_NODES: &str = "FARFIELD_NODES";

/// The variables of each launcher: this process's node number, the number of nodes, and the session.
const LAUNCHERS: [(&str, &str, &str); 4] = [
    (OWN_NODE, OWN_NODES, "FARFIELD_SESSION"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMIX_NAMESPACE"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_JOB_ID"),
    ("PMI_RANK", "PMI_SIZE", "PMI_JOBID"),
];

impl Builder {
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
    /// ```
    /// let node = farfield::Node::builder().environment()?.start()?; // of one node, without a launcher
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// A variable is invalid, or a node's number is set without the number of nodes, or the other way round.
    pub fn environment(self) -> Result<Builder> {
        self.variables(|name| std::env::var(name).ok())
    }

    pub(super) fn variables(mut self, variable: impl Fn(&str) -> Option<String>) -> Result<Builder> {
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
        for (node_name, nodes_name, session) in LAUNCHERS {
            let (node, nodes) = match (number(node_name)?, number(nodes_name)?) {
                (Some(node), Some(nodes)) => (node, nodes),
                (None, None) => continue,
                // A shell in an allocation has the size as well, but is no node.
                (None, Some(_)) if node_name != OWN_NODE => continue,
                (Some(_), None) => return Err(half_set(node_name, nodes_name)),
                (None, Some(_)) => return Err(half_set(nodes_name, node_name)),
            };
            (self.config.node, self.config.nodes) = (node, nodes);
            if let Some(name) = variable(session) {
                // A launcher's own name for the run may have any characters.
                let fit = |c: char| if c.is_ascii_alphanumeric() || "_.-".contains(c) { c } else { '_' };
                self.config.session = name.chars().map(fit).take(64).collect();
            }
            break;
        }
        // As it is: a name that no session can have is refused at the start.
        self.config.session = variable("FARFIELD_SESSION").unwrap_or(self.config.session);
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
}

/// One of a launcher's variables is set without the other.
#[cold]
fn half_set(there: &str, missing: &str) -> Error {
    config_error(format!(
        "{there} is set, and {missing} is not: a node needs its number, from 0, and how many nodes there are; start it by \
         `farfield run`, mpirun or srun, or set both"
    ))
}

/// Whether the variables of a launcher are set, or some of them.
pub(in crate::node) fn is_launched() -> bool {
    LAUNCHERS.iter().map(|(node, ..)| node).chain([&OWN_NODES]).any(|name| std::env::var_os(name).is_some())
}

fn read_secret(path: &Path) -> Result<Secret> {
    let bytes = std::fs::read(path).map_err(|why| config_error(format!("the secret, {}: {why}", path.display())))?;
    Secret::new(bytes.trim_ascii_end()).map_err(|why| config_error(format!("{}: {why}", path.display())))
}
