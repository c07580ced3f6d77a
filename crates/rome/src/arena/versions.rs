//! Versions: tickets, and the word `stable`, which is raised in their order. It can be frozen, for a tree that is moved
//! to another node.
//!
//! *A freeze is exact.* `stable` is changed by compare-and-swaps alone, and its two upper bits are part of what they
//! compare. So from the moment at which it is frozen no change becomes visible, and its version is that of the last one
//! which was: no other thread has to agree, or to be waited for. Changes that come meanwhile are stored, as those
//! behind a closed gate. When the freeze ends, they become visible. If the tree is moved instead, they never do, and
//! their threads learn that ([`Moved`]).
//!
//! *Readers* see the bits with each get of `stable`, so a moved tree costs them no operation of its own.

use farfield_core::{Endpoint, Error, Result};
use farfield_fabric::{Instant, Word};

use super::Arena;
use crate::errors::Moved;

/// A value of the word `stable`.
///
/// ```text
/// 63      62       61                                                  0
/// ┌───────┬────────┬───────────────────────────────────────────────────┐
/// │ moved │ frozen │ version up to which all is in memory              │
/// └───────┴────────┴───────────────────────────────────────────────────┘
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stable(pub(crate) u64);

impl Stable {
    const MOVED: u64 = 1 << 63;
    const FROZEN: u64 = 1 << 62;

    #[inline]
    pub(crate) fn version(self) -> u64 {
        self.0 & !(Stable::MOVED | Stable::FROZEN)
    }

    #[inline]
    pub(crate) fn is_moved(self) -> bool {
        self.0 & Stable::MOVED != 0
    }

    /// The version stays as it is for a while.
    #[inline]
    pub(crate) fn is_frozen(self) -> bool {
        self.0 & Stable::FROZEN != 0
    }

    #[inline]
    fn is_plain(self) -> bool {
        !self.is_moved() && !self.is_frozen()
    }

    /// The version, for a read that begins.
    ///
    /// # Errors
    /// [`Moved`]: later changes are made elsewhere.
    #[inline]
    pub(crate) fn current(self) -> Result<u64> {
        if self.is_moved() { Err(Error::custom(Moved)) } else { Ok(self.version()) }
    }
}

impl Arena {
    #[inline]
    fn stable_word(&self) -> &Word {
        self.region.word(0)
    }

    /// The word `stable`.
    #[inline]
    pub(crate) fn stable_now(&self) -> Stable {
        Stable(self.stable_word().load())
    }

    /// All that has this version or an earlier one is in memory.
    #[inline]
    pub(crate) fn stable(&self) -> u64 {
        self.stable_now().version()
    }

    /// The version of a change, of which all is in memory but the versions and the active words. Whatever its caller
    /// does until [`Arena::publish`], others wait for.
    #[inline]
    pub(crate) fn ticket(&self) -> u64 {
        self.tickets.fetch_add(1) + 1
    }

    /// The active words of this version are stored. Returns when it is stable.
    ///
    /// Before its turn, a thread notes that it is done, and a thread before it raises `stable` for it. So a thread that
    /// sleeps here holds up no other.
    ///
    /// # Errors
    /// [`Moved`]: the change has not happened, and will not.
    #[inline]
    pub(crate) fn publish(&self, ep: &Endpoint, version: u64) -> Result<()> {
        // No other thread raises it to this version, since this one has not said that it is done. As an atomic (`CAS`)
        // it is in memory when the caller returns, and with it all that he has stored before: a read that begins
        // afterwards, anywhere, finds it. It fails where `stable` was frozen in between.
        if self.stable_now().0 == version - 1
            && self.is_open()
            && self.stable_word().compare_exchange(version - 1, version).is_ok()
        {
            self.raise(ep, version);
            Ok(())
        } else {
            self.publish_later(ep, version)
        }
    }

    #[inline]
    fn is_open(&self) -> bool {
        self.gate.as_ref().is_none_or(|gate| !gate.is_closed())
    }

    /// Whether a change that begins now would become visible without a wait for a gate or for the end of a freeze, as
    /// far as is known.
    pub(crate) fn is_calm(&self) -> bool {
        self.is_open() && self.stable_now().is_plain()
    }

    /// Waits while the gate is closed, and `stable` is this. It is raised after that: once more at most when the gate
    /// is closed in between, whatever the number of threads is, since each of them passes the gate anew after it has
    /// seen what another one has raised. (Once more by the service thread, which has looked at the gate before its
    /// change, and before each step that this one leaves to do, and waits for nothing.)
    ///
    /// Whether this thread has waited as long as a change may have to.
    fn pass_gate(&self, ep: &Endpoint, stable: u64) -> bool {
        if let Some(gate) = &self.gate {
            return gate.pass(ep, || self.stable() != stable);
        }
        false
    }

    #[cold]
    fn publish_later(&self, ep: &Endpoint, version: u64) -> Result<()> {
        // An atomic, so that of this thread and the one before at least one sees what the other has done (`CAS → CR` on
        // both sides). Also where only the gate is closed: then the service thread, which does not wait there, need not
        // wait for this thread either.
        let done = self.done(version);
        let _ = done.compare_exchange(done.load(), version);
        self.await_slow(ep, version)
    }

    /// The word in which the thread with this ticket says that it is done: there are as many as threads can wait.
    #[inline]
    fn done(&self, version: u64) -> &Word {
        &self.done[version as usize & (self.done.len() - 1)]
    }

    /// Raises `stable`, which was this, to the versions behind it of which the threads are done.
    #[inline]
    fn raise(&self, ep: &Endpoint, stable: u64) {
        if self.done(stable + 1).load() == stable + 1 {
            self.raise_slow(ep, stable);
        }
    }

    #[cold]
    fn raise_slow(&self, ep: &Endpoint, mut stable: u64) {
        // Up to here no change waits at the gate any more.
        let mut late = 0;
        while self.done(stable + 1).load() == stable + 1 {
            if stable >= late && self.pass_gate(ep, stable) {
                late = self.tickets.load();
            }
            stable = match self.stable_word().compare_exchange(stable, stable + 1) {
                Ok(_) => stable + 1,
                Err(later) if Stable(later).is_plain() => later,
                Err(_) => break,
            };
        }
        ep.wake_local();
    }

    /// Waits until all tickets up to this version are published. Their holders are threads of this process that run.
    ///
    /// # Errors
    /// [`Moved`]: they will not be.
    #[inline]
    pub(crate) fn await_stable(&self, ep: &Endpoint, version: u64) -> Result<()> {
        if self.stable() >= version { Ok(()) } else { self.await_slow(ep, version) }
    }

    #[cold]
    fn await_slow(&self, ep: &Endpoint, version: u64) -> Result<()> {
        loop {
            let now = self.stable_now();
            if now.version() >= version {
                return Ok(());
            }
            if now.is_moved() {
                return Err(Error::custom(Moved));
            }
            if !now.is_frozen() {
                // Also what was done while `stable` was frozen.
                self.raise(ep, now.version());
            }
            let is_over = || {
                let then = self.stable_now();
                (then.version() >= version || then.is_plain() != now.is_plain() || then.is_moved()).then_some(())
            };
            if is_over().is_some() || ep.spin_until(is_over).is_some() {
                continue;
            }
            let until = if now.is_frozen() { Instant { ns: self.frozen_until.load() } } else { Instant::NEVER };
            if ep.block_on(ep.wait_until(until, is_over)).is_err() {
                self.thaw_late(ep);
            }
        }
    }

    // ---- by the service thread alone, but for the end of a freeze ---------------------------------------------------

    /// From here on no change becomes stable, until then at least. The version; none if it is moved or frozen.
    pub(crate) fn freeze(&self, until: Instant) -> Option<u64> {
        let mut now = self.stable_now();
        while now.is_plain() {
            // Before the bit (`CW → CAS`): a thread that finds it frozen finds until when.
            self.frozen_until.store(until.ns);
            match self.stable_word().compare_exchange(now.0, now.0 | Stable::FROZEN) {
                Ok(_) => return Some(now.0),
                Err(later) => now = Stable(later),
            }
        }
        None
    }

    /// Continues a freeze at this version; whether there is one. A thread that has read before until when it is may end
    /// it all the same.
    pub(crate) fn stay_frozen(&self, version: u64, until: Instant) -> bool {
        self.frozen_until.store(until.ns);
        self.stable_now().0 == version | Stable::FROZEN
    }

    /// Ends a freeze at this version. The threads with changes make them visible.
    pub(crate) fn thaw(&self, ep: &Endpoint, version: u64) {
        if self.stable_word().compare_exchange(version | Stable::FROZEN, version).is_ok() {
            ep.wake_local();
        }
    }

    /// Ends an expired freeze: the node that takes the tree may have died. Any thread does.
    pub(crate) fn thaw_late(&self, ep: &Endpoint) {
        let now = self.stable_now();
        if now.is_frozen() && ep.now().ns >= self.frozen_until.load() {
            self.thaw(ep, now.version());
        }
    }

    /// Moves the tree away, of which another node has what it was at this version; whether it is still frozen at it.
    /// Then it stays so for ever.
    pub(crate) fn move_away(&self, ep: &Endpoint, version: u64) -> bool {
        let moved = self.stable_word().compare_exchange(version | Stable::FROZEN, version | Stable::MOVED).is_ok();
        ep.wake_local();
        moved
    }
}
