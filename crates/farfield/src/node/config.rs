//! What a node is told at its start: by calls, by a TOML file, by the environment.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use farfield_fabric::{self as fabric, Fabric};
use serde::Deserialize;

use super::{Node, config_error};
use crate::error::Result;

type Decorate = Arc<dyn Fn(Arc<dyn Fabric>) -> fabric::Result<Arc<dyn Fabric>> + Send + Sync>;

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
    pub(crate) pool_bytes_max: usize,
    pub(crate) seed: Option<u64>,
    pub(crate) fabric: Option<Arc<dyn Fabric>>,
    pub(crate) decorate: Option<Decorate>,
}

/// Describes a node that is to be started.
///
/// ```no_run
/// # fn main() -> farfield::Result<()> {
/// use std::time::Duration;
/// let node = farfield::Node::builder().session("orders").node(0).nodes(3).timeout(Duration::from_secs(5)).start()?;
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
                pool_bytes_max: 256 << 20,
                seed: None,
                fabric: None,
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
    pool_bytes_max: Option<usize>,
    seed: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileNode {
    name: String,
}

/// Where launchers say who one is: this node's number, and how many there are.
const LAUNCHERS: [(&str, &str, &str); 4] = [
    ("FARFIELD_NODE", "FARFIELD_NODES", "FARFIELD_SESSION"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMIX_NAMESPACE"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_JOB_ID"),
    ("PMI_RANK", "PMI_SIZE", "PMI_JOBID"),
];

impl Builder {
    /// The session's name: nodes with the same name find each other. Letters, digits, `_`, `-` and `.`. Unless it is
    /// given, a node alone has a session of its own, and several nodes are in `default`.
    pub fn session(mut self, name: &str) -> Builder {
        self.config.session = name.into();
        self
    }

    /// This node's number, from 0.
    pub fn node(mut self, node: u16) -> Builder {
        self.config.node = node;
        self
    }

    /// How many nodes the session has.
    pub fn nodes(mut self, nodes: u16) -> Builder {
        self.config.nodes = nodes;
        self
    }

    /// Names of the nodes, in order; also how many there are.
    pub fn names<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Builder {
        self.config.names = names.into_iter().map(Into::into).collect();
        self.config.nodes = self.config.names.len().try_into().unwrap_or(u16::MAX);
        self
    }

    /// How long opening an object and blocking calls wait where no deadline is given. 30 s unless set.
    pub fn timeout(mut self, timeout: Duration) -> Builder {
        self.config.timeout = timeout;
        self
    }

    /// The most network memory of each permission group, in bytes. Taken only as it is needed.
    pub fn memory_bytes_max(mut self, bytes: usize) -> Builder {
        self.config.memory_bytes_max = bytes;
        self
    }

    /// The most registered buffers of each endpoint, in bytes.
    pub fn pool_bytes_max(mut self, bytes: usize) -> Builder {
        self.config.pool_bytes_max = bytes;
        self
    }

    /// A seed for the node's random choices.
    pub fn seed(mut self, seed: u64) -> Builder {
        self.config.seed = Some(seed);
        self
    }

    /// Starts on a fabric that has joined its session already, a simulated one for example, instead of joining one on
    /// shared memory. The fabric says which node of how many this is.
    pub fn fabric(mut self, fabric: Arc<dyn Fabric>) -> Builder {
        self.config.node = fabric.me().0 % fabric.places() as u16;
        self.config.nodes = fabric.places() as u16;
        self.config.fabric = Some(fabric);
        self
    }

    /// Wraps the fabric in decorators ([`farfield_fabric::weak`], [`farfield_fabric::fault`], …), for tests.
    pub fn decorate(
        mut self,
        wrap: impl Fn(Arc<dyn Fabric>) -> fabric::Result<Arc<dyn Fabric>> + Send + Sync + 'static,
    ) -> Builder {
        self.config.decorate = Some(Arc::new(wrap));
        self
    }

    /// Reads a TOML file. What it does not say stays.
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
    /// # Errors
    /// A file that cannot be read or makes no sense.
    pub fn file(self, path: impl AsRef<Path>) -> Result<Builder> {
        let path = path.as_ref();
        let text = std::fs::read_to_string(path).map_err(|why| config_error(format!("{}: {why}", path.display())))?;
        self.toml(&text).map_err(|error| config_error(format!("{}: {error}", path.display())))
    }

    /// Reads TOML text as [`Builder::file`] does.
    ///
    /// # Errors
    /// A text that makes no sense.
    pub fn toml(mut self, text: &str) -> Result<Builder> {
        let file: File = toml::from_str(text).map_err(|why| config_error(why.to_string()))?;
        if !file.nodes.is_empty() {
            self = self.names(file.nodes.into_iter().map(|node| node.name));
        }
        let config = &mut self.config;
        config.session = file.session.unwrap_or(std::mem::take(&mut config.session));
        config.node = file.node.unwrap_or(config.node);
        config.timeout = file.timeout_ms.map_or(config.timeout, Duration::from_millis);
        config.memory_bytes_max = file.memory_bytes_max.unwrap_or(config.memory_bytes_max);
        config.pool_bytes_max = file.pool_bytes_max.unwrap_or(config.pool_bytes_max);
        config.seed = file.seed.or(config.seed);
        Ok(self)
    }

    /// Reads the environment: `FARFIELD_NODE`, `FARFIELD_NODES` and `FARFIELD_SESSION` (as `farfield run` sets them),
    /// or what `mpirun` and `srun` say. What it does not say stays.
    ///
    /// # Errors
    /// A variable that makes no sense.
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

    /// Starts the node. It does not wait for the others, see [`Node::wait_for_all`].
    ///
    /// # Errors
    /// A configuration that makes no sense, a place that is taken, no memory.
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
        Node::start(config)
    }
}

/// Whether some launcher's variables are set.
pub(super) fn is_launched() -> bool {
    LAUNCHERS.iter().any(|(node, nodes, _)| [node, nodes].iter().all(|name| std::env::var_os(name).is_some()))
}

/// A name that no other session has.
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
    fn numbers_that_make_no_sense_are_refused() {
        assert!(Node::builder().node(2).nodes(2).start().is_err());
        assert!(Node::builder().names(["a", "b"]).nodes(3).start().is_err());
    }
}
