//! How the threads of a node wait for its memory to change: spins, yields, sleeps on a bell.

use core::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

use super::node_header::{DoorBell, FAR, NodeHeader};
use super::reach::Memory;
use super::{ShmFabric, bell_of, lane};
use crate::alarm::NodeBell;
use crate::fabric::{Fabric, Waiting, Watches};
use crate::sys::fence::{fence_most_threads, futex_wait};

/// Steps of a wait before it sleeps: spins where every thread has a core, then yields.
pub(super) const SPINS: u32 = 100;

pub(super) const YIELDS: u32 = 50;

/// The same for a wait on the memory of several nodes, which no bell ends.
const REMOTE_YIELDS: u32 = 200;

/// A yield that takes longer has given the core to a thread with work of its own, and the next one would, too. A thread
/// that sleeps gets the core when it is woken.
const YIELD_MAX: Duration = Duration::from_micros(200);

/// The first sleep of a wait that a bell ends: local stores ring none, and deaths are to be noticed. Each further one
/// without a ring is twice as long, up to 8 ms, so that a long wait costs little. A sleep ends with the wait's
/// deadline.
const SLEEP: Duration = Duration::from_micros(250);

const DOUBLINGS_MAX: u32 = 5;

/// After so many rings in a row that were for others, a wait by operations sleeps without a bell after each.
const VAIN_RINGS_MAX: u32 = 2;

/// The sleeps where no bell ends the wait, or where others write all the time: the end is noticed after half of it, as
/// a rule.
const REMOTE_SLEEP: Duration = Duration::from_micros(150);

/// The same for the service thread, which nothing but bells and control messages concerns.
const SERVICE_SLEEP_MAX: Duration = Duration::from_millis(2);

/// Announces a sleeper on a bell: from the return on, a write to the memory behind it that is not seen rings. Returns
/// how often it has rung.
fn announce(bell: &DoorBell) -> u32 {
    bell.sleepers.fetch_add(1, Ordering::SeqCst);
    let ring = bell.ring.load(Ordering::SeqCst);
    // A writer either sees `sleepers` after its write, or wrote before this fence, so that the waiter's next look sees
    // it. Where the kernel leaves its core out, the sleep's bound is what remains.
    fence_most_threads();
    ring
}

/// The same for a thread that waits by operations, perhaps of another node. It need not be taken back.
fn announce_far(bell: &DoorBell) -> u32 {
    // In this order: a ring in between clears the announcement, and has ended the sleep before it begins.
    let ring = bell.ring.load(Ordering::SeqCst);
    bell.sleepers.fetch_or(FAR, Ordering::SeqCst);
    fence_most_threads(); // as above
    ring
}

impl ShmFabric {
    /// The bell of the only memory that a wait depends on, if it reads that by operations.
    fn far_bell(&self, watches: Watches) -> Option<&DoorBell> {
        let Watches::At(node, bell) = watches else { return None };
        if node == self.me {
            return Some(bell_of(self.memory.own.card(), bell));
        }
        let card = self.memory.known_peers().get(node.index())?.get()?.as_ref()?;
        Some(bell_of(NodeHeader::of(card), bell))
    }

    /// The bell that a waiter of this node sleeps on.
    fn own_bell(&self, waiting: &Waiting) -> &DoorBell {
        let card = self.memory.own.card();
        if waiting.service { &card.service } else { &card.waiters }
    }

    /// One step of a wait.
    pub(super) fn step(&self, waiting: &mut Waiting) {
        if waiting.service {
            self.answer_fences();
        }
        let far = self.far_bell(waiting.watches);
        let has_bell = far.is_some() || !waiting.watches.has_remote();
        let left = || Duration::from_nanos(waiting.deadline.ns.saturating_sub(self.now().ns));
        if let Some(ring) = waiting.announced.take() {
            // The waiter has looked since the announcement and found nothing: a write since then rings.
            let sleep = if waiting.service {
                SERVICE_SLEEP_MAX
            } else if has_bell {
                left().min(SLEEP * (1 << waiting.sleeps.min(DOUBLINGS_MAX)))
            } else {
                left().min(REMOTE_SLEEP)
            };
            let announced_at = waiting.announced_at.take();
            let bell = match far {
                // Nothing that it looked at has told it to sleep on another bell.
                Some(bell) if announced_at == Some(waiting.watches) => Some(bell),
                None if announced_at.is_none() => Some(self.own_bell(waiting)),
                _ => None,
            };
            let is_rung = bell.is_none_or(|bell| futex_wait(&bell.ring, ring, sleep));
            if announced_at.is_none() {
                self.own_bell(waiting).sleepers.fetch_sub(1, Ordering::Relaxed);
            }
            // A few more looks, then sleep again. After a sleep that no ring has ended, one look is enough.
            let yields = if has_bell { YIELDS } else { REMOTE_YIELDS };
            waiting.sleeps = if is_rung { 0 } else { waiting.sleeps.saturating_add(1) };
            waiting.vain_rings = if is_rung { waiting.vain_rings.saturating_add(1) } else { 0 };
            waiting.round = if is_rung { YIELDS / 2 } else { waiting.spins + yields };
            return;
        }
        let yields = if has_bell { YIELDS } else { REMOTE_YIELDS };
        if waiting.round == 0 {
            waiting.sleeps = 0;
            waiting.spins = if !waiting.service && self.cores_suffice() { SPINS } else { 1 };
        }
        waiting.round += 1;
        if waiting.round <= waiting.spins {
            core::hint::spin_loop();
        } else if waiting.round <= waiting.spins + yields {
            let before = self.now();
            std::thread::yield_now();
            if self.now() - before > YIELD_MAX {
                waiting.round = waiting.spins + yields;
            }
        } else if far.is_some() && waiting.vain_rings >= VAIN_RINGS_MAX {
            // Others write there all the time: each would pay for waking this thread, for nothing.
            waiting.vain_rings -= 1;
            std::thread::sleep(left().min(REMOTE_SLEEP));
        } else {
            waiting.announced_at = far.map(|_| waiting.watches);
            waiting.announced = Some(match far {
                Some(bell) => announce_far(bell),
                None => announce(self.own_bell(waiting)),
            });
        }
    }

    /// The end of a wait, which may have announced a sleep.
    pub(super) fn end(&self, waiting: &mut Waiting) {
        if waiting.announced.take().is_some() && waiting.announced_at.take().is_none() {
            self.own_bell(waiting).sleepers.fetch_sub(1, Ordering::Relaxed);
        }
    }
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
