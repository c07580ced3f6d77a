//! Announcements of readers: the versions from which on they need blocks. The owner reads them, by operations.
//!
//! ```text
//! region `seats` of each node, `seats` lines of 64 bytes, each of one reader
//!   ┌─────────┬──────────────┬────────┐
//!   │ counter │ announcement │ unused │     announcement: 0 while it reads nothing, else FIRM (1 bit), version + 1 (63)
//!   └─────────┴──────────────┴────────┘
//! ```
//!
//! The counter rises with each announcement, and while a reader continues. An owner that has seen both words the same
//! for a whole lease takes the reader for stopped, and no longer waits for it. So a reader looks at its clock after
//! each get and before it returns data: when a quarter of the lease has passed since the counter last rose, it discards
//! what it has read.
//!
//! *Why a quarter.* The counter rises at a store, and the reader takes the time before the check that precedes the
//! store. If that check was in time, and the next one is, the reads end at most twice the limit after the rise before:
//! half of the lease. So clocks may differ by a factor of two. With a limit of half a lease there would be no room for
//! any difference.
//!
//! A `FIRM` announcement has no lease: that of a local call, which is over as soon as its thread runs.

use core::time::Duration;
use std::sync::Arc;

use farfield_core::toolkit::Regions;
use farfield_core::{Endpoint, Result};
use farfield_fabric::{GroupKey, Instant, LocalMutex, Region, RemotePtr, memory_fence};

/// Words of a seat: one cache line.
pub(crate) const SEAT_WORDS: usize = 8;
const COUNTER: usize = 0;
const ANNOUNCEMENT: usize = 1;
const FIRM: u64 = 1 << 63;

/// What an owner reads of a seat.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Announced {
    counter: u64,
    word: u64,
}

impl Announced {
    /// Of the words of a seat.
    pub(crate) fn of(words: &[u64]) -> Announced {
        Announced { counter: words[COUNTER], word: words[ANNOUNCEMENT] }
    }

    pub(crate) fn is_firm(self) -> bool {
        self.word & FIRM != 0
    }

    /// The version from which on blocks are needed; none if the reader reads nothing.
    pub(crate) fn version(self) -> Option<u64> {
        (self.word & !FIRM).checked_sub(1)
    }
}

/// The seats of this node.
pub(crate) struct Seats {
    region: Region,
    taken: LocalMutex<Vec<bool>>,
    lease: Duration,
}

impl Seats {
    pub(crate) fn bytes(seats: usize) -> usize {
        seats * SEAT_WORDS * 8
    }

    pub(crate) fn alloc(regions: &mut Regions, seats: usize, lease: Duration) -> Result<Arc<Seats>> {
        let region = regions.alloc("seats", GroupKey::DATA, Seats::bytes(seats))?;
        Ok(Arc::new(Seats { region, taken: LocalMutex::new(vec![false; seats]), lease }))
    }

    /// A free seat.
    pub(crate) fn take(self: &Arc<Seats>) -> Option<Seat> {
        let mut taken = self.taken.lock();
        let at = taken.iter().position(|taken| !taken)?;
        taken[at] = true;
        let counter = self.region.word(at * SEAT_WORDS * 8).load();
        Some(Seat { seats: Arc::clone(self), at, counter, last: Instant::default() })
    }

    /// Where other nodes read them.
    pub(crate) fn pointer(&self) -> RemotePtr<u64> {
        self.region.remote(0)
    }

    pub(crate) fn count(&self) -> usize {
        self.region.bytes() / (SEAT_WORDS * 8)
    }

    pub(crate) fn lease(&self) -> Duration {
        self.lease
    }

    /// The announcements of this node's readers.
    pub(crate) fn each(&self) -> impl Iterator<Item = Announced> + '_ {
        (0..self.count()).map(|at| {
            let words = self.region.words(at * SEAT_WORDS * 8, 2);
            // In this order: a word that is not of this counter is of an earlier one, and was not changed since.
            let counter = words[COUNTER].load();
            Announced { counter, word: words[ANNOUNCEMENT].load() }
        })
    }
}

/// The place of one reader.
pub(crate) struct Seat {
    seats: Arc<Seats>,
    at: usize,
    counter: u64,
    /// No later than when the counter has risen last.
    last: Instant,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.clear();
        self.seats.taken.lock()[self.at] = false;
    }
}

impl Seat {
    #[inline]
    fn word(&self, which: usize) -> &farfield_fabric::Word {
        self.seats.region.word((self.at * SEAT_WORDS + which) * 8)
    }

    fn rise(&mut self, now: Instant) {
        self.last = now;
        self.counter += 1;
        self.word(COUNTER).store(self.counter);
    }

    /// Announces reads at this version or later ones. Operations that are posted afterwards come after it (`CW → NRR`).
    pub(crate) fn announce(&mut self, ep: &Endpoint, version: u64) {
        self.rise(ep.now());
        self.word(ANNOUNCEMENT).store(version + 1);
    }

    /// Announces a scan by the processor, which has the lease of one by operations.
    pub(crate) fn announce_here(&mut self, ep: &Endpoint, version: u64) {
        self.announce(ep, version);
        // As in `announce_firm`.
        memory_fence();
    }

    /// Announces reads of the processor, of which the next are after it.
    #[inline]
    pub(crate) fn announce_firm(&self, version: u64) {
        self.word(ANNOUNCEMENT).store(FIRM | (version + 1));
        // `CW → MF → CR`: an owner that has not seen the announcement has made `stable` visible before the reader loads
        // it.
        memory_fence();
    }

    /// From here on blocks are needed from this version on, a later one.
    pub(crate) fn raise(&mut self, version: u64) {
        self.word(ANNOUNCEMENT).store(version + 1);
    }

    /// Whether what was read until now is whole: the owner has kept it. Then the reader may go on.
    ///
    /// # Errors
    /// For how long it has made no progress.
    pub(crate) fn check(&mut self, ep: &Endpoint) -> core::result::Result<(), Duration> {
        let now = ep.now();
        let idle = now.since(self.last);
        if idle > self.seats.lease / 4 {
            return Err(idle);
        }
        if idle > self.seats.lease / 8 {
            self.rise(now);
        }
        Ok(())
    }

    /// [`Seat::check`] for reads by the processor.
    ///
    /// # Errors
    /// As of that one.
    pub(crate) fn check_here(&mut self, ep: &Endpoint) -> core::result::Result<(), Duration> {
        let counter = self.counter;
        self.check(ep)?;
        if self.counter != counter {
            // The next reads are after the rise, as in `announce_firm`.
            memory_fence();
        }
        Ok(())
    }

    pub(crate) fn lease(&self) -> Duration {
        self.seats.lease
    }

    /// Nothing is read any more.
    #[inline]
    pub(crate) fn clear(&self) {
        self.word(ANNOUNCEMENT).store(0);
    }
}
