//! The reader of the environment.

use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use super::{Builder, Choice, config_error};
use crate::error::{Error, Result};

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
    /// Reads the environment: `FARFIELD_NODE`, `FARFIELD_NODES` and `FARFIELD_SESSION` (as `farfield run` sets them),
    /// or the variables of `mpirun` and `srun`; `FARFIELD_HUGE_PAGES`, see [`Builder::huge_pages`]; and
    /// `FARFIELD_LATENCIES`, 0 or 1, see [`Builder::latencies`]. Settings without a variable are unchanged.
    ///
    /// `FARFIELD_HOSTS` puts the nodes on RDMA, or with `FARFIELD_FABRIC=ucx` on UCX. It contains the addresses of the
    /// nodes of all places, separated by commas. With it, or with addresses that were set before, these variables are
    /// read, too, and replace earlier settings:
    /// - `FARFIELD_SECRET`, or `FARFIELD_SECRET_FILE`, the path of a file with the secret;
    /// - `FARFIELD_DEVICE`, one for all nodes, or several, which they use in turns;
    /// - `FARFIELD_GID_INDEX`;
    /// - `FARFIELD_SILENCE_MS`, see [`Builder::suspect_timeout`];
    /// - `FARFIELD_LIFE`, see [`Builder::life`].
    ///
    /// `FARFIELD_FABRIC`, one of `shm`, `verbs` and `ucx`, demands a fabric: the node is on that one, or does not
    /// start. With `auto` a node with addresses is on RDMA or UCX, see [`Builder::over_rdma_or_ucx`], and any other one
    /// on shared memory.
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
        self = self.hosts_variables(&variable)?;
        if let Some(pages) = variable("FARFIELD_HUGE_PAGES") {
            let unknown = |why| config_error(format!("FARFIELD_HUGE_PAGES: {why}"));
            self.config.huge_pages = pages.trim().parse().map_err(unknown)?;
        }
        if let Some(latencies) = variable("FARFIELD_LATENCIES") {
            self.config.latencies = match latencies.trim() {
                "1" | "true" => true,
                "0" | "false" | "" => false,
                other => return Err(config_error(format!("FARFIELD_LATENCIES={other}: set it to 1 or 0"))),
            };
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

    fn hosts_variables(mut self, variable: &impl Fn(&str) -> Option<String>) -> Result<Builder> {
        let hosts = variable("FARFIELD_HOSTS").filter(|hosts| !hosts.is_empty());
        let fabric = variable("FARFIELD_FABRIC").filter(|fabric| !fabric.is_empty());
        let has_addresses = hosts.is_some() || !self.config.hosts.addresses.is_empty();
        let demanded = match fabric.as_deref() {
            None => None,
            Some("shm") if has_addresses => {
                return Err(config_error(
                    "FARFIELD_FABRIC=shm, and the nodes have addresses (FARFIELD_HOSTS, a file, or `Builder::hosts`)",
                ));
            }
            Some("shm") => Some(Choice::Shm),
            Some("verbs") => Some(Choice::Verbs),
            Some("ucx") => Some(Choice::Ucx),
            Some("auto") => Some(if has_addresses { Choice::Auto } else { Choice::Shm }),
            Some(other) => {
                return Err(config_error(format!("FARFIELD_FABRIC={other}: it is one of shm, verbs, ucx and auto")));
            }
        };
        if demanded.as_ref().is_some_and(Choice::is_between_hosts) && !has_addresses {
            return Err(config_error("FARFIELD_FABRIC needs the addresses of the nodes, FARFIELD_HOSTS"));
        }
        self.config.fabric = demanded.unwrap_or(self.config.fabric);
        if let Some(hosts) = hosts {
            let address = |text| parse("an address of FARFIELD_HOSTS, as 10.0.0.1:7471", text);
            let addresses: Result<Vec<SocketAddr>> = hosts.split(',').map(address).collect();
            self = self.hosts(addresses?);
        }
        if !has_addresses {
            return Ok(self);
        }
        let hosts = &mut self.config.hosts;
        if let Some(life) = variable("FARFIELD_LIFE") {
            hosts.life = parse("the number FARFIELD_LIFE", &life)?;
        }
        if let Some(silence) = variable("FARFIELD_SILENCE_MS") {
            hosts.silence = Some(Duration::from_millis(parse("the number FARFIELD_SILENCE_MS", &silence)?));
        }
        hosts.secret.read_variables(variable)?;
        hosts.rdma.read_variables(variable)?;
        Ok(self)
    }
}

pub(super) fn parse<T: FromStr>(name: &str, text: &str) -> Result<T> {
    text.trim().parse().map_err(|_| config_error(format!("{name}: `{text}` is none")))
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
