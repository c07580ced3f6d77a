//! The part of a configuration file about RDMA.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use super::super::Builder;
use crate::error::Result;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct FileRdma {
    secret_file: Option<PathBuf>,
    device: Option<String>,
    port: Option<u8>,
    gid_index: Option<u8>,
    in_order: Option<bool>,
    silence_ms: Option<u64>,
}

impl Builder {
    pub(in super::super) fn rdma_file(mut self, file: FileRdma) -> Result<Builder> {
        let hosts = &mut self.config.hosts;
        if let Some(path) = &file.secret_file {
            hosts.secret.read_file(path)?;
        }
        hosts.silence = file.silence_ms.map(Duration::from_millis).or(hosts.silence);
        let device = &mut hosts.rdma.device;
        device.device = file.device.or(device.device.take());
        device.port = file.port.or(device.port);
        device.gid_index = file.gid_index.or(device.gid_index);
        device.in_order = file.in_order.or(device.in_order);
        Ok(self)
    }
}
