//! Which fabric the nodes that this program starts are on, and how they are told.

use std::ffi::OsString;
use std::net::SocketAddr;

use clap::ValueEnum;

/// The fabric of a session's nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub(crate) enum FabricChoice {
    /// Shared memory of this host
    #[default]
    Shm,
    /// RDMA, by this host's devices: all nodes on the first that fits, or in turns on those of FARFIELD_DEVICE
    Verbs,
}

impl FabricChoice {
    pub(crate) fn name(self) -> &'static str {
        match self {
            FabricChoice::Shm => "shm",
            FabricChoice::Verbs => "verbs",
        }
    }

    /// The variables by which all nodes of a session on this host are told, beside their number, and how many they are.
    pub(crate) fn variables(self, session: &str, nodes: usize) -> Vec<(&'static str, OsString)> {
        let hosts = match self {
            FabricChoice::Shm => Vec::new(),
            FabricChoice::Verbs => farfield::loopback_hosts(nodes as u16),
        };
        variables(session, nodes, &hosts)
    }
}

/// The variables of all nodes of a session; on RDMA, if there are addresses.
pub(crate) fn variables(session: &str, nodes: usize, hosts: &[SocketAddr]) -> Vec<(&'static str, OsString)> {
    let list = hosts.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(",");
    let mut variables = vec![
        ("FARFIELD_SESSION", session.into()),
        ("FARFIELD_NODES", nodes.to_string().into()),
        // Also if there are none: whatever this program was told itself is not for them.
        ("FARFIELD_HOSTS", list.into()),
    ];
    if !hosts.is_empty() {
        variables.push(("FARFIELD_SECRET", format!("{:032x}", rand::random::<u128>()).into()));
    }
    variables
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_node_has_an_address_of_its_own() {
        let variables = FabricChoice::Verbs.variables("s", 4096);
        let hosts = variables.iter().find(|(name, _)| *name == "FARFIELD_HOSTS").unwrap().1.to_str().unwrap();
        let addresses: std::collections::BTreeSet<std::net::SocketAddr> =
            hosts.split(',').map(|address| address.parse().unwrap()).collect();
        assert_eq!(addresses.len(), 4096);
        assert!(FabricChoice::Shm.variables("s", 2).contains(&("FARFIELD_HOSTS", "".into())));
    }
}
