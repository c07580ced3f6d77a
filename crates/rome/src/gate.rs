//! A gate of a tree: while it is closed, no change becomes visible.
//!
//! It makes the comparison of versions succeed that a read of several trees at one instant consists of. Nothing else
//! depends on it: a change that passes a closed gate makes that read compare again. So it needs no agreement, and it
//! opens by itself: when changes have waited as long as [`Gate::new`] says, one of them opens it. All of them wait
//! since the first one has found it closed, so they go on together, and the read that closes it again finds none of
//! them on its way.

use core::time::Duration;
use std::sync::Arc;

use farfield_core::Endpoint;
use farfield_fabric::{Instant, LocalMutex, Region, Word};

/// Bytes of a gate: a cache line, of which the first word is 0, or 1 if the gate is closed.
pub(crate) const GATE_BYTES: usize = 64;
/// The word beside it that says where the partition is (`store/place.rs`).
pub(crate) const PLACE: usize = 8;

/// The gate of a tree of this node. It is in memory in which puts wake waiting threads.
#[derive(Clone)]
pub(crate) struct Gate {
    region: Region,
    at: usize,
    /// How long a change waits at most.
    wait_max: Duration,
    /// When a change has found it closed first, and last; none since one has found it open again.
    closed: Arc<LocalMutex<Option<(Instant, Instant)>>>,
}

impl Gate {
    /// The gate with this number in the region.
    pub(crate) fn new(region: &Region, number: usize, wait_max: Duration) -> Gate {
        Gate { region: region.clone(), at: number * GATE_BYTES, wait_max, closed: Arc::default() }
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

    /// Since when changes find it closed, without a break of the longest wait: one at which no change has waited is as
    /// good as open.
    fn closed_since(&self, now: Instant) -> Instant {
        let mut closed = self.closed.lock();
        let since = match *closed {
            Some((since, last)) if now.since(last) < self.wait_max => since,
            _ => now,
        };
        *closed = Some((since, now));
        since
    }

    /// Opens it, if that is still the wait that has begun then. Others that have waited as long go on without opening
    /// it: the reader may have closed it again.
    fn give_up(&self, since: Instant) {
        let is_same = self.closed.lock().take_if(|closed| closed.0 == since).is_some();
        if is_same {
            self.open();
        }
    }

    /// Whether a change may go on at once. One that may not is tried again.
    pub(crate) fn is_passable(&self, ep: &Endpoint) -> bool {
        if !self.is_closed() {
            return true;
        }
        let now = ep.now();
        let since = self.closed_since(now);
        if now.since(since) < self.wait_max {
            return false;
        }
        self.give_up(since);
        true
    }

    /// Waits until it is open, or the change has passed it otherwise, but not longer than the endpoint's timeout: the
    /// reader that has closed it may have died. Whether it has waited as long as a change may have to.
    #[inline]
    pub(crate) fn pass(&self, ep: &Endpoint, has_passed: impl Fn() -> bool) -> bool {
        self.is_closed() && self.wait(ep, has_passed)
    }

    #[cold]
    fn wait(&self, ep: &Endpoint, has_passed: impl Fn() -> bool) -> bool {
        let now = ep.now();
        let since = self.closed_since(now);
        // The service thread's endpoint has no time to wait.
        let until = (since + self.wait_max).min(ep.deadline());
        let is_over = || (!self.is_closed() || has_passed()).then_some(());
        let is_open =
            now < until && (ep.spin_until(is_over).is_some() || ep.block_on(ep.wait_until(until, is_over)).is_ok());
        if is_open {
            if !self.is_closed() {
                *self.closed.lock() = None;
            }
            return false;
        }
        let is_late = ep.now().since(since) >= self.wait_max;
        if is_late {
            self.give_up(since);
        }
        is_late
    }
}

#[cfg(test)]
mod tests {
    use farfield_core::Node;
    use farfield_fabric::GroupKey;

    use super::*;

    const HOLD: Duration = Duration::from_millis(100);

    fn with_gate(test: impl FnOnce(&Gate, &Endpoint)) {
        let node = Node::builder().start().expect("a node");
        let region = node.alloc(GroupKey::SIGNAL, GATE_BYTES).expect("memory");
        test(&Gate::new(&region, 0, HOLD), &node.endpoint().expect("an endpoint"));
    }

    #[test]
    fn waits_that_have_begun_at_different_times_end_at_the_same() {
        with_gate(|gate, _| {
            let at = |parts: u32| Instant { ns: 1 } + HOLD * parts / 4;
            gate.close();
            assert_eq!([0, 1, 3, 4].map(|parts| gate.closed_since(at(parts))), [at(0); 4]);
            gate.give_up(at(0));
            assert!(!gate.is_closed());
            // The second one that has waited until then does not open the gate again, which the reader has closed anew.
            gate.close();
            gate.give_up(at(0));
            assert!(gate.is_closed());
            assert_eq!(gate.closed_since(at(5)), at(5));
            // Nothing has waited there for long: it is another read that has closed it.
            assert_eq!(gate.closed_since(at(9)), at(9));
        });
    }

    #[test]
    fn a_thread_without_time_does_not_wait() {
        with_gate(|gate, ep| {
            gate.close();
            ep.set_timeout(Duration::ZERO);
            assert!(!gate.pass(ep, || false) && gate.is_closed());
        });
    }

    #[test]
    fn a_reader_that_has_died_stops_changes_once() {
        with_gate(|gate, ep| {
            gate.close();
            assert!(!gate.is_passable(ep));
            assert!(gate.pass(ep, || false), "it has waited");
            assert!(!gate.is_closed() && gate.is_passable(ep));
        });
    }
}
