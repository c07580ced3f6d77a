//! The transports of a node on UCX.

#[cfg(feature = "toml")]
pub(super) mod file;

use std::sync::Arc;

use farfield_fabric::Transport;
use farfield_fabric::ucx::{UcxFabric, UcxOptions};

use super::{Builder, Config};
use crate::error::Result;

/// What only the fabric over UCX reads.
#[derive(Clone, Default)]
pub(crate) struct OverUcx {
    pub(crate) options: UcxOptions,
}

impl Config {
    /// Joins the session on UCX.
    pub(super) fn join_ucx(&self) -> Result<Arc<dyn Transport>> {
        let mut options = self.hosts.ucx.options.clone();
        options.huge_pages = self.huge_pages;
        options.patience = self.hosts.silence.unwrap_or(options.patience);
        Ok(UcxFabric::join(&self.join_options(options))?)
    }
}

impl Builder {
    /// Sets the transports and the interfaces of this node on UCX. Needs the feature `ucx`.
    ///
    /// ```
    /// use farfield::fabric::ucx::UcxOptions;
    /// let options = UcxOptions { devices: Some("eth0".into()), ..UcxOptions::default() };
    /// let builder = farfield::Node::builder().hosts(farfield::loopback_hosts(3)).over_ucx().ucx(options);
    /// ```
    pub fn ucx(mut self, options: UcxOptions) -> Builder {
        self.config.hosts.ucx.options = options;
        self
    }
}
