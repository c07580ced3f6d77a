//! Which fabric the nodes that this program starts are on, and how they are told.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::ValueEnum;
use farfield::fabric::check_nodes;

use crate::caretaker::{self, Left};

/// For how long a node may be silent, in milliseconds.
pub(crate) const SILENCE: &str = "FARFIELD_SILENCE_MS";
const SILENCE_DEFAULT: Duration = Duration::from_millis(500);

/// Reads a number of nodes. All options that take one use this.
pub(crate) fn parse_nodes(text: &str) -> Result<u16, String> {
    let nodes: usize = text.parse().map_err(|_| "it is no number of nodes".to_owned())?;
    check_nodes(nodes).map_err(|error| error.to_string())?;
    u16::try_from(nodes).map_err(|error| error.to_string())
}

/// The fabric of a session's nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub(crate) enum FabricChoice {
    /// Shared memory of this host
    #[default]
    Shm,
    /// RDMA, by this host's devices: all nodes on the first that fits, or in turns on those of FARFIELD_DEVICE
    Verbs,
    /// UCX, over TCP: needs no device but libucp
    Ucx,
}

impl FabricChoice {
    pub(crate) fn name(self) -> &'static str {
        match self {
            FabricChoice::Shm => "shm",
            FabricChoice::Verbs => "verbs",
            FabricChoice::Ucx => "ucx",
        }
    }

    /// Where no system says which nodes are dead: for how long one may be silent until it is suspected.
    pub(crate) fn silence(self) -> Result<Option<Duration>> {
        if self == FabricChoice::Shm {
            return Ok(None);
        }
        let Ok(text) = std::env::var(SILENCE) else { return Ok(Some(SILENCE_DEFAULT)) };
        let ms = text.parse().with_context(|| format!("{SILENCE}: `{text}` is no number of milliseconds"))?;
        Ok(Some(Duration::from_millis(ms)))
    }

    /// The files that the nodes of a session leave on this host are removed when this command has ended.
    pub(crate) fn clean_up(self, session: &str) {
        if self == FabricChoice::Shm {
            caretaker::owed(Left::Session(session.into()));
        }
    }

    /// The variables by which all nodes of a session on this host are told, beside their number, and how many they are.
    pub(crate) fn variables(self, session: &str, nodes: usize) -> Vec<(&'static str, OsString)> {
        let hosts = match self {
            FabricChoice::Shm => Vec::new(),
            FabricChoice::Verbs | FabricChoice::Ucx => farfield::loopback_hosts(nodes as u16),
        };
        variables(session, nodes, self.name(), &hosts)
    }
}

/// The variables of all nodes of a session on a fabric of this name, with their addresses if it is one between hosts.
pub(crate) fn variables(
    session: &str,
    nodes: usize,
    fabric: &str,
    hosts: &[SocketAddr],
) -> Vec<(&'static str, OsString)> {
    let list = hosts.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(",");
    let mut variables = vec![
        ("FARFIELD_SESSION", session.into()),
        ("FARFIELD_NODES", nodes.to_string().into()),
        // Also if there are none: whatever this program was told itself is not for them.
        ("FARFIELD_HOSTS", list.into()),
        ("FARFIELD_FABRIC", fabric.into()),
    ];
    if !hosts.is_empty() {
        variables.push(("FARFIELD_SECRET", format!("{:032x}", rand::random::<u128>()).into()));
    }
    variables
}

#[cfg(test)]
mod tests {
    use farfield::NODES_MAX;

    use super::*;

    #[test]
    fn numbers_of_nodes_are_those_of_sessions() {
        assert_eq!((parse_nodes("1"), parse_nodes(&NODES_MAX.to_string())), (Ok(1), Ok(NODES_MAX as u16)));
        for text in ["0", "257", "65536", "99999999999"] {
            let error = parse_nodes(text).unwrap_err();
            assert_eq!(error, format!("{text} nodes: a session has 1 to 256 nodes at a time"));
        }
        assert!(parse_nodes("-1").is_err() && parse_nodes("two").is_err());
    }

    #[test]
    fn every_node_has_an_address_of_its_own() {
        let variables = FabricChoice::Verbs.variables("s", NODES_MAX);
        let hosts = variables.iter().find(|(name, _)| *name == "FARFIELD_HOSTS").unwrap().1.to_str().unwrap();
        let addresses: std::collections::BTreeSet<std::net::SocketAddr> =
            hosts.split(',').map(|address| address.parse().unwrap()).collect();
        assert_eq!(addresses.len(), NODES_MAX);
        assert!(FabricChoice::Shm.variables("s", 2).contains(&("FARFIELD_HOSTS", "".into())));
    }
}
