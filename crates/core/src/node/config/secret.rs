//! What nodes between hosts have in common: their secret, and how they join.

use std::path::Path;

use farfield_fabric::HostOptions;
#[cfg(not(feature = "verbs"))]
use farfield_fabric::ucx::{Limits, Secret};
#[cfg(feature = "verbs")]
use farfield_fabric::verbs::{Limits, Secret};

use super::{Builder, Config, Hosts, config_error};
use crate::error::Result;

/// The secret of all nodes, if they have one.
#[derive(Clone, Default)]
pub(crate) struct SharedSecret(pub(crate) Option<Secret>);

impl SharedSecret {
    /// Reads the environment.
    pub(super) fn read_variables(&mut self, variable: &impl Fn(&str) -> Option<String>) -> Result<()> {
        if let Some(secret) = variable("FARFIELD_SECRET") {
            self.0 = Some(Secret::new(secret.as_bytes()).map_err(|why| config_error(why.to_string()))?);
        } else if let Some(path) = variable("FARFIELD_SECRET_FILE") {
            self.read_file(Path::new(&path))?;
        }
        Ok(())
    }

    /// Reads a file with the secret.
    pub(super) fn read_file(&mut self, path: &Path) -> Result<()> {
        let fail = |why: &dyn std::fmt::Display| config_error(format!("the secret, {}: {why}", path.display()));
        let bytes = std::fs::read(path).map_err(|why| fail(&why))?;
        self.0 = Some(Secret::new(bytes.trim_ascii_end()).map_err(|why| fail(&why))?);
        Ok(())
    }
}

impl Config {
    /// The options for joining a session between hosts.
    pub(super) fn join_options<D: Default>(&self, device: D) -> HostOptions<D> {
        let Hosts { addresses, life, silence, secret, .. } = &self.hosts;
        let mut limits = Limits::default();
        if let Some(silence) = *silence {
            (limits.silence, limits.beat) = (silence, silence / 5);
        }
        HostOptions {
            life: *life,
            addresses: addresses.clone(),
            secret: secret.0.clone(),
            device,
            limits,
            group_bytes_max: self.memory_bytes_max,
            seed: self.seed,
            ..HostOptions::new(self.session.clone(), self.node, self.nodes, addresses[usize::from(self.node)])
        }
    }
}

impl Builder {
    /// Sets a secret that all nodes on RDMA or UCX share: a process without it is refused. Without a secret, any
    /// process that can connect is admitted on RDMA, and several nodes on UCX do not start. Needs the feature `verbs`
    /// or `ucx`.
    ///
    /// ```
    /// use farfield::fabric::verbs::Secret;
    /// let secret = Secret::new(b"sixteen bytes or more").unwrap();
    /// let builder = farfield::Node::builder().hosts(farfield::loopback_hosts(3)).secret(secret);
    /// ```
    pub fn secret(mut self, secret: Secret) -> Builder {
        self.config.hosts.secret = SharedSecret(Some(secret));
        self
    }
}
