//! How a node uses an RDMA device.

use std::time::Duration;

use crate::sys::pages::HugePages;

/// How a node uses its devices. The default chooses everything by itself.
///
/// ```
/// use farfield_fabric::verbs::VerbsOptions;
/// let options = VerbsOptions { device: Some("mlx5_0".into()), port: Some(1), ..VerbsOptions::default() };
/// assert_eq!(options.in_order, None); // the device is asked
/// ```
#[derive(Clone, Debug)]
pub struct VerbsOptions {
    /// The device's name, as `mlx5_0`.
    pub device: Option<String>,
    /// Its port, from 1 on.
    pub port: Option<u8>,
    /// The line of the port's GID table.
    pub gid_index: Option<u8>,
    /// Whether the device places puts in order. By default it is asked, and one that does not say is not trusted: see
    /// the module's documentation.
    pub in_order: Option<bool>,
    /// Whether lanes hold back what Soft-RoCE would get wrong. By default they do on software devices: see the module's
    /// documentation.
    pub holds_back: Option<bool>,
    /// For how long the transport tries to reach a peer before it gives up on it, roughly.
    pub patience: Duration,
    /// The huge pages that registered memory may use. Those of 1 GiB are for pieces of memory of a whole number of
    /// them.
    pub huge_pages: HugePages,
    /// The most bytes of the device's own memory that each group of the node takes for its words
    /// ([`Fabric::alloc_words`](crate::Fabric::alloc_words)): 64 KiB. With 0, or where the device has none left, words
    /// lie in the machine's memory.
    pub device_memory_bytes: usize,
}

impl Default for VerbsOptions {
    fn default() -> VerbsOptions {
        VerbsOptions {
            device: None,
            port: None,
            gid_index: None,
            in_order: None,
            holds_back: None,
            patience: Duration::from_millis(500),
            huge_pages: HugePages::default(),
            device_memory_bytes: 64 << 10,
        }
    }
}
