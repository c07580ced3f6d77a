//! The secret and the device of a node on RDMA.

#[cfg(feature = "toml")]
pub(super) mod file;

use std::path::Path;
use std::sync::Arc;

use farfield_fabric::Transport;
use farfield_fabric::verbs::{JoinOptions, VerbsFabric, VerbsOptions};
use farfield_fabric::verbs::{Limits, Secret};

use super::config_error;
use super::environment::parse;
use super::{Builder, Config, Hosts};
use crate::error::Result;

/// What only the fabric over RDMA reads.
#[derive(Clone, Default)]
pub(crate) struct Rdma {
    pub(crate) secret: Option<Secret>,
    pub(crate) device: VerbsOptions,
}

impl Rdma {
    /// Selects this node's device, if several are given.
    pub(super) fn take_device_in_turn(&mut self, node: u16) {
        if let Some(devices) = &mut self.device.device {
            let names: Vec<&str> = devices.split(',').map(str::trim).collect();
            *devices = names[usize::from(node) % names.len()].to_owned();
        }
    }

    /// Reads the environment.
    pub(super) fn read_variables(&mut self, variable: &impl Fn(&str) -> Option<String>) -> Result<()> {
        if let Some(secret) = variable("FARFIELD_SECRET") {
            self.secret = Some(Secret::new(secret.as_bytes()).map_err(|why| config_error(why.to_string()))?);
        } else if let Some(path) = variable("FARFIELD_SECRET_FILE") {
            self.secret = Some(read_secret(Path::new(&path))?);
        }
        if let Some(index) = variable("FARFIELD_GID_INDEX") {
            self.device.gid_index = Some(parse("the number FARFIELD_GID_INDEX", &index)?);
        }
        self.device.device = variable("FARFIELD_DEVICE").or(self.device.device.take());
        Ok(())
    }
}

impl Config {
    /// Joins the session on RDMA.
    pub(in crate::node) fn join_rdma(&self) -> Result<Arc<dyn Transport>> {
        Ok(VerbsFabric::join(&self.rdma())?)
    }

    /// The options for joining a session on RDMA.
    pub(super) fn rdma(&self) -> JoinOptions {
        let Hosts { addresses, life, silence, rdma: Rdma { secret, device } } = &self.hosts;
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

impl Builder {
    /// Sets a secret that all nodes on RDMA share: a process without it is refused. Without a secret, any process that
    /// can connect is admitted. Needs the feature `verbs`.
    ///
    /// ```
    /// use farfield::fabric::verbs::Secret;
    /// let secret = Secret::new(b"sixteen bytes or more").unwrap();
    /// let builder = farfield::Node::builder().hosts(farfield::loopback_hosts(3)).secret(secret);
    /// ```
    pub fn secret(mut self, secret: Secret) -> Builder {
        self.config.hosts.rdma.secret = Some(secret);
        self
    }

    /// Sets the RDMA device of this node and its options. Without a name, the library selects the device. If several
    /// names are given, separated by commas, the nodes take turns. Needs the feature `verbs`.
    ///
    /// ```
    /// use farfield::fabric::verbs::VerbsOptions;
    /// let device = VerbsOptions { device: Some("mlx5_0,mlx5_1".into()), ..VerbsOptions::default() }; // in turns
    /// let builder = farfield::Node::builder().hosts(farfield::loopback_hosts(3)).device(device);
    /// ```
    pub fn device(mut self, device: VerbsOptions) -> Builder {
        self.config.hosts.rdma.device = device;
        self
    }
}

fn read_secret(path: &Path) -> Result<Secret> {
    let bytes = std::fs::read(path).map_err(|why| config_error(format!("the secret, {}: {why}", path.display())))?;
    Secret::new(bytes.trim_ascii_end()).map_err(|why| config_error(format!("{}: {why}", path.display())))
}
