//! The memory that a run takes, reckoned before any is taken.
//!
//! The figures of processes, threads and indexes are measured ones, rounded up. A run that is refused would have been
//! killed by the system, or would have moved everything else to the disk; one that is let through may still take a
//! tenth more.

use anyhow::Result;
use farfield_check::cli::exit::usage;

use crate::doctor::{self, size};

/// The memory of a node's process without any object, and of each of its threads with its endpoint and its results.
const PROCESS_BYTES: u64 = 20 << 20;
const THREAD_BYTES: u64 = 3 << 20;
/// The memory of a node where the nodes find each other: its header, its socket, its name.
const HEADER_BYTES: u64 = 32 << 10;

/// The memory of a run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Need {
    nodes: u64,
    /// On all nodes together.
    bytes: u64,
}

impl Need {
    /// The processes and threads of a run.
    pub(crate) fn of(nodes: u16, threads: u16) -> Need {
        let nodes = u64::from(nodes);
        Need { nodes, bytes: nodes * (PROCESS_BYTES + u64::from(threads) * THREAD_BYTES) }
    }

    /// And so many bytes on each node.
    pub(crate) fn on_each(self, bytes: u64) -> Need {
        let nodes = self.nodes;
        self.on_all(bytes.saturating_mul(nodes))
    }

    /// And so many bytes on all nodes together.
    pub(crate) fn on_all(mut self, bytes: u64) -> Need {
        self.bytes = self.bytes.saturating_add(bytes);
        self
    }
}

/// Checks that each of these runs, which are one after the other, fits into the free memory of this machine. `lower`
/// names the options that make a run smaller.
///
/// # Errors
/// How much the largest needs, how much there is, and what to lower.
pub(crate) fn ensure_fit(needs: impl IntoIterator<Item = Need>, lower: &str) -> Result<()> {
    fit(needs, lower, doctor::free_memory(), doctor::free_directory())
}

fn fit(
    needs: impl IntoIterator<Item = Need>,
    lower: &str,
    free_memory: Option<u64>,
    free_directory: Option<(String, u64)>,
) -> Result<()> {
    // The run of the most bytes need not be that of the most nodes.
    let needs: Vec<Need> = needs.into_iter().collect();
    let Some(most) = needs.iter().max_by_key(|need| need.bytes) else { return Ok(()) };
    if let Some(free) = free_memory.filter(|free| most.bytes > *free) {
        return Err(usage(format!(
            "the run needs about {} of memory for its {} together, and this machine has {} free: lower {lower}",
            size(most.bytes),
            nodes(most.nodes),
            size(free),
        )));
    }
    let most_nodes = needs.iter().map(|need| need.nodes).max().unwrap_or_default();
    let in_directory = most_nodes * HEADER_BYTES;
    match free_directory.filter(|(_, free)| in_directory > *free) {
        Some((path, free)) => Err(usage(format!(
            "the run needs about {} in {path} for its {}, and {} are free: lower --nodes, or name another directory: \
             export FARFIELD_DIR=/path",
            size(in_directory),
            nodes(most_nodes),
            size(free),
        ))),
        None => Ok(()),
    }
}

fn nodes(count: u64) -> String {
    if count == 1 { "node".into() } else { format!("{count} nodes") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_is_too_large_is_refused() {
        let needs = || [Need::of(2, 1), Need::of(3, 1).on_each(1 << 30), Need::of(2, 2).on_all(1 << 20)];
        assert!(fit(needs(), "--keys", None, None).is_ok(), "nothing is known");
        assert!(fit(needs(), "--keys", Some(4 << 30), Some(("/dev/shm".into(), 1 << 20))).is_ok());
        let error = fit(needs(), "--keys or --size", Some(2 << 30), None).unwrap_err().to_string();
        assert_eq!(
            error,
            "the run needs about 3.1 GiB of memory for its 3 nodes together, and this machine has 2 GiB free: lower \
             --keys or --size"
        );
        let error = fit(needs(), "--keys", None, Some(("/dev/shm".into(), 4096))).unwrap_err().to_string();
        assert_eq!(
            error,
            "the run needs about 96 KiB in /dev/shm for its 3 nodes, and 4 KiB are free: lower --nodes, or name another \
             directory: export FARFIELD_DIR=/path"
        );
        // A small run of more nodes than the largest one.
        let needs = || [Need::of(2, 1).on_each(1 << 30), Need::of(9, 1)];
        let error = fit(needs(), "--keys", None, Some(("/dev/shm".into(), 128 << 10))).unwrap_err().to_string();
        assert!(error.starts_with("the run needs about 288 KiB in /dev/shm for its 9 nodes, and 128 KiB"), "{error}");
        assert!(fit([], "--keys", Some(0), None).is_ok());
        assert!(fit([Need::of(2, 1).on_each(u64::MAX)], "--keys", Some(u64::MAX - 1), None).is_err(), "no overflow");
    }
}
