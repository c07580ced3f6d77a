//! The reader of a configuration file.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use farfield_fabric::HugePages;
use serde::Deserialize;

use super::Builder;
use super::config_error;
use super::rdma::file::FileRdma;
use super::ucx::file::FileUcx;
use crate::error::Result;

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
    latencies: Option<bool>,
    rdma: Option<FileRdma>,
    ucx: Option<FileUcx>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileNode {
    name: String,
    address: Option<SocketAddr>,
}

impl Builder {
    /// Reads a TOML file. Settings that the file does not contain are unchanged. Needs the feature `toml`.
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
    /// silence_ms = 500                     # a node that is silent for so long is suspected
    /// ```
    ///
    /// With a table `[ucx]` instead of `[rdma]` they are on UCX:
    ///
    /// ```toml
    /// [ucx]
    /// secret_file = "/etc/orders.secret"
    /// transports = "tcp"                   # as in UCX_TLS
    /// devices = "eth0"                     # as in UCX_NET_DEVICES: for TCP, interfaces
    /// silence_ms = 500
    /// ```
    ///
    /// # Errors
    /// The file cannot be read or is invalid.
    pub fn file(self, path: impl AsRef<Path>) -> Result<Builder> {
        let path = path.as_ref();
        let text = std::fs::read_to_string(path).map_err(|why| config_error(format!("{}: {why}", path.display())))?;
        self.toml(&text).map_err(|error| config_error(format!("{}: {error}", path.display())))
    }

    /// Reads TOML text as [`Builder::file`] does. Needs the feature `toml`.
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
        if file.rdma.is_some() && file.ucx.is_some() {
            return Err(config_error("the tables [rdma] and [ucx]: one of them"));
        }
        if let Some(rdma) = file.rdma {
            self = self.rdma_file(rdma)?;
        }
        if let Some(ucx) = file.ucx {
            self = self.ucx_file(ucx)?;
        }
        let config = &mut self.config;
        config.session = file.session.unwrap_or(std::mem::take(&mut config.session));
        config.node = file.node.unwrap_or(config.node);
        config.timeout = file.timeout_ms.map_or(config.timeout, Duration::from_millis);
        config.memory_bytes_max = file.memory_bytes_max.unwrap_or(config.memory_bytes_max);
        config.huge_pages = file.huge_pages.unwrap_or(config.huge_pages);
        config.pool_bytes_max = file.pool_bytes_max.unwrap_or(config.pool_bytes_max);
        config.seed = file.seed.or(config.seed);
        config.latencies = file.latencies.unwrap_or(config.latencies);
        Ok(self)
    }
}
