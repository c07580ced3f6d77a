//! How a node uses UCX.

use std::time::Duration;

use crate::sys::pages::HugePages;

/// How a node uses UCX. All else is UCX's own configuration: `UCX_…` in the environment.
///
/// ```
/// use farfield_fabric::ucx::UcxOptions;
/// let options = UcxOptions { devices: Some("eth0".into()), ..UcxOptions::default() };
/// assert_eq!(options.transports, "tcp");
/// ```
#[derive(Clone, Debug)]
pub struct UcxOptions {
    /// The transports, as in `UCX_TLS`, which has no effect itself: `tcp` by default; `all` for those that UCX finds.
    pub transports: String,
    /// The network devices, as in `UCX_NET_DEVICES`, which counts if there is none here. For TCP the names are those of
    /// interfaces.
    pub devices: Option<String>,
    /// A peer that answers no operation for several times as long is given up.
    pub patience: Duration,
    /// The huge pages that memory of groups may use.
    pub huge_pages: HugePages,
}

impl Default for UcxOptions {
    fn default() -> UcxOptions {
        UcxOptions {
            transports: "tcp".into(),
            devices: None,
            patience: Duration::from_millis(500),
            huge_pages: HugePages::default(),
        }
    }
}
