//! In a build with neither RDMA nor UCX: no node has a secret.

use crate::error::Result;

#[derive(Clone, Default)]
pub(crate) struct SharedSecret;

impl SharedSecret {
    pub(super) fn read_variables(&mut self, _variable: &impl Fn(&str) -> Option<String>) -> Result<()> {
        Ok(())
    }
}
