//! A gate of a tree: while it is closed, no change becomes visible.
//!
//! It makes the comparison of versions succeed that a read of several trees at one instant consists of. Nothing else
//! depends on it: a change that passes a closed gate makes that read compare again. So it needs no agreement, and it opens by itself: a
//! writer waits as long as [`Gate::new`] says, and then opens it.

use core::time::Duration;

use farfield_core::Endpoint;
use farfield_fabric::{Region, RemotePtr, Word};

/// Bytes of a gate: a cache line, of which one word is used. It is 0, or 1 if the gate is closed.
pub(crate) const GATE_BYTES: usize = 64;

/// The gate of a tree of this node. It lies in memory whose puts wake waiting threads.
#[derive(Clone)]
pub(crate) struct Gate {
    region: Region,
    at: usize,
    /// How long a change waits at most.
    wait_max: Duration,
}

impl Gate {
    /// The gate with this number in the region.
    pub(crate) fn new(region: &Region, number: usize, wait_max: Duration) -> Gate {
        Gate { region: region.clone(), at: number * GATE_BYTES, wait_max }
    }

    #[inline]
    fn word(&self) -> &Word {
        self.region.word(self.at)
    }

    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.word().load() != 0
    }

    pub(crate) fn close(&self) {
        self.word().store(1);
    }

    pub(crate) fn open(&self) {
        self.word().store(0);
    }

    pub(crate) fn wait_max(&self) -> Duration {
        self.wait_max
    }

    /// Waits until it is open. The reader that has closed it may have died.
    #[inline]
    pub(crate) fn pass(&self, ep: &Endpoint) {
        if self.is_closed() {
            self.wait(ep);
        }
    }

    #[cold]
    fn wait(&self, ep: &Endpoint) {
        let is_open = || (!self.is_closed()).then_some(());
        let until = ep.now() + self.wait_max;
        if ep.spin_until(is_open).is_none() && ep.block_on(ep.wait_until(until, is_open)).is_err() {
            self.open();
        }
    }
}

/// The gate with this number in the region of another node.
pub(crate) fn remote_gate(region: RemotePtr<u64>, number: usize) -> RemotePtr<u64> {
    region.byte_add((number * GATE_BYTES) as u64)
}
