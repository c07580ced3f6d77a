//! The device of a node on RDMA.

#[cfg(feature = "toml")]
pub(super) mod file;

use std::sync::Arc;

use farfield_fabric::Transport;
use farfield_fabric::verbs::{Device, JoinOptions, VerbsFabric, VerbsOptions};

use super::environment::parse;
use super::{Builder, Config};
use crate::error::Result;

/// What only the fabric over RDMA reads.
#[derive(Clone, Default)]
pub(crate) struct Rdma {
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
        if let Some(index) = variable("FARFIELD_GID_INDEX") {
            self.device.gid_index = Some(parse("the number FARFIELD_GID_INDEX", &index)?);
        }
        self.device.device = variable("FARFIELD_DEVICE").or(self.device.device.take());
        Ok(())
    }
}

impl Config {
    /// Joins the session on RDMA.
    pub(super) fn join_rdma(&self) -> Result<Arc<dyn Transport>> {
        Ok(VerbsFabric::join(&self.rdma())?)
    }

    /// The reason why this host has no RDMA for the node, if it has none. A device that is named demands RDMA: if it is
    /// not there, that is the error of joining.
    pub(super) fn lacks_rdma(&self) -> Option<String> {
        let device = &self.hosts.rdma.device;
        if device.device.is_some() {
            return None;
        }
        Device::open(device).err().map(|error| error.to_string())
    }

    /// The options for joining a session on RDMA.
    pub(super) fn rdma(&self) -> JoinOptions {
        let mut device = self.hosts.rdma.device.clone();
        device.huge_pages = self.huge_pages;
        device.patience = self.hosts.silence.unwrap_or(device.patience);
        self.join_options(device)
    }
}

impl Builder {
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
