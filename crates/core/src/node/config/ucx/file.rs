//! The part of a configuration file about UCX.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use super::super::Builder;
use crate::error::Result;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct FileUcx {
    secret_file: Option<PathBuf>,
    transports: Option<String>,
    devices: Option<String>,
    silence_ms: Option<u64>,
}

impl Builder {
    pub(in super::super) fn ucx_file(mut self, file: FileUcx) -> Result<Builder> {
        self = self.over_ucx();
        let hosts = &mut self.config.hosts;
        if let Some(path) = &file.secret_file {
            hosts.secret.read_file(path)?;
        }
        hosts.silence = file.silence_ms.map(Duration::from_millis).or(hosts.silence);
        let options = &mut hosts.ucx.options;
        options.transports = file.transports.unwrap_or(core::mem::take(&mut options.transports));
        options.devices = file.devices.or(options.devices.take());
        Ok(self)
    }
}
