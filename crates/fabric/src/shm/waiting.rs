//! How the threads of a node wait for its memory to change: spins, yields, sleeps on a bell.

use core::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

use super::lane;
use super::node_header::{DoorBell, FAR};
use super::reach::Memory;
use crate::alarm::NodeBell;
use crate::sys::fence::{futex_wait, heavy_fence};

/// Steps of a wait before it sleeps: spins where every thread has a core, then yields.
pub(super) const SPINS: u32 = 100;

pub(super) const YIELDS: u32 = 50;

/// The same for a wait on the memory of several nodes, which no bell ends.
pub(super) const REMOTE_YIELDS: u32 = 200;

/// The first sleeps of a wait that a bell ends: local stores ring none, and deaths are to be noticed. After every
/// [`SLEEPS`] in a row without a ring they are twice as long, up to eight times. A sleep ends with the wait's deadline.
pub(super) const SLEEP: Duration = Duration::from_micros(250);

pub(super) const SLEEPS: u32 = 4;

pub(super) const DOUBLINGS_MAX: u32 = 3;

/// After so many rings in a row that were for others, a wait by operations sleeps without a bell after each.
pub(super) const VAIN_RINGS_MAX: u32 = 2;

/// The sleeps where no bell ends the wait, or where others write all the time: the end is noticed after half of it, as a
/// rule.
pub(super) const REMOTE_SLEEP: Duration = Duration::from_micros(150);

/// The same for the service thread, which nothing but bells and control messages concerns.
pub(super) const SERVICE_SLEEP_MAX: Duration = Duration::from_millis(2);

/// Announces a sleeper on a bell: from the return on, a write to the memory behind it that is not seen rings. Returns
/// how often it has rung.
pub(super) fn announce(bell: &DoorBell) -> u32 {
    bell.sleepers.fetch_add(1, Ordering::SeqCst);
    let ring = bell.ring.load(Ordering::SeqCst);
    // Every writer either sees `sleepers` after its write, or wrote before this fence, so that the waiter's
    // next look sees it. If the kernel refuses, the sleep's bound is what remains.
    let _ = heavy_fence();
    ring
}

/// The same for a thread that waits by operations, perhaps of another node. It need not be taken back.
pub(super) fn announce_far(bell: &DoorBell) -> u32 {
    // In this order: a ring in between clears the announcement, and has ended the sleep before it begins.
    let ring = bell.ring.load(Ordering::SeqCst);
    bell.sleepers.fetch_or(FAR, Ordering::SeqCst);
    let _ = heavy_fence(); // as above
    ring
}

/// The bell of this node's waiters.
pub(super) struct WaitersBell(pub(super) Arc<Memory>);

impl WaitersBell {
    fn bell(&self) -> &DoorBell {
        &self.0.own.card().waiters
    }
}

impl NodeBell for WaitersBell {
    fn is_rung_by_puts(&self) -> bool {
        true
    }

    fn announce(&self) -> u32 {
        announce(self.bell())
    }

    fn heard(&self) -> u32 {
        self.bell().ring.load(Ordering::SeqCst)
    }

    fn sleep(&self, heard: u32, time: Duration) {
        futex_wait(&self.bell().ring, heard, time);
    }

    fn renounce(&self) {
        self.bell().sleepers.fetch_sub(1, Ordering::Relaxed);
    }

    fn ring(&self) {
        lane::ring(self.bell());
    }
}
