//! In a build without RDMA: nothing is read for it, and a node does not start if its configuration puts it on RDMA.

use std::sync::Arc;

use farfield_fabric::Transport;

use super::Config;
use crate::error::{ErrorKind, Result};

#[derive(Clone, Default)]
pub(crate) struct Rdma;

impl Rdma {
    pub(super) fn take_device_in_turn(&mut self, _node: u16) {}

    pub(super) fn read_variables(&mut self, _variable: &impl Fn(&str) -> Option<String>) -> Result<()> {
        Ok(())
    }
}

impl Config {
    pub(super) fn join_rdma(&self) -> Result<Arc<dyn Transport>> {
        let instead = "give no addresses (`Builder::hosts`, `FARFIELD_HOSTS`, `address` in a file)";
        Err(ErrorKind::NotBuilt { what: "RDMA", feature: "verbs", instead }.into())
    }

    pub(super) fn lacks_rdma(&self) -> Option<String> {
        Some("this program was built without the feature `verbs`".into())
    }
}

#[cfg(feature = "toml")]
pub(super) mod file {
    use super::super::Builder;
    use crate::error::Result;

    pub(in super::super) type FileRdma = serde::de::IgnoredAny;

    impl Builder {
        pub(in super::super) fn rdma_file(self, _file: FileRdma) -> Result<Builder> {
            Ok(self)
        }
    }
}
