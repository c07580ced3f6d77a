//! In a build without UCX: a node does not start if its configuration puts it on UCX.

use std::sync::Arc;

use farfield_fabric::Transport;

use super::Config;
use crate::error::{ErrorKind, Result};

impl Config {
    pub(super) fn join_ucx(&self) -> Result<Arc<dyn Transport>> {
        let instead = "leave UCX out (`Builder::over_ucx`, `FARFIELD_FABRIC`, `[ucx]` in a file)";
        Err(ErrorKind::NotBuilt { what: "UCX", feature: "ucx", instead }.into())
    }
}

#[cfg(feature = "toml")]
pub(super) mod file {
    use super::super::Builder;
    use crate::error::Result;

    pub(in super::super) type FileUcx = serde::de::IgnoredAny;

    impl Builder {
        pub(in super::super) fn ucx_file(self, _file: FileUcx) -> Result<Builder> {
            Ok(self.over_ucx())
        }
    }
}
