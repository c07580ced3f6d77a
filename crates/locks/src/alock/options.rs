//! The options of ALocks.

use crate::descriptor;
use farfield_core::{ErrorKind, Result};

/// Options of ALocks. They must be the same on all nodes.
///
/// ```
/// let options = farfield::ALockOptions { remote_budget: 10, ..Default::default() };
/// assert_eq!((options.local_budget, options.operations_max), (5, 1024));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ALockOptions {
    /// How many remote operations in a row may have the lock while a local one waits. Default: 20 (section 6.1).
    pub remote_budget: u32,
    /// How many local operations in a row may have the lock while a remote one waits. Default: 5.
    pub local_budget: u32,
    /// How many operations of a node may hold or await locks of other nodes at a time. The same number may hold or
    /// await locks of the own node. (For queue locks, the limit is for the locks of all nodes together.) Default: 1024.
    /// Each has 64 bytes of network memory.
    pub operations_max: usize,
}

impl Default for ALockOptions {
    fn default() -> ALockOptions {
        ALockOptions { remote_budget: 20, local_budget: 5, operations_max: 1024 }
    }
}

impl ALockOptions {
    /// Checks that the values are valid.
    pub(crate) fn check(&self, count: usize) -> Result<()> {
        let why = if self.remote_budget == 0 || self.local_budget == 0 {
            "`remote_budget` and `local_budget` have to be at least 1".into()
        } else if self.operations_max == 0 || self.operations_max > descriptor::COUNT_MAX {
            format!("`operations_max` is {}, and has to be 1 to {}", self.operations_max, descriptor::COUNT_MAX)
        } else if count > descriptor::LOCKS_MAX {
            format!("{count} locks exceed the limit of {} of one array", descriptor::LOCKS_MAX)
        } else {
            return Ok(());
        };
        Err(ErrorKind::Config { why }.into())
    }
}
