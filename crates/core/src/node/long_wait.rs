//! Waits that last: each is reported once, as an event of `tracing`, by a loop that looks at the clock now and then
//! anyway.

use core::cell::Cell;
use core::time::Duration;

use farfield_fabric::{Endpoint, Instant};

/// A wait that has lasted so long is reported.
pub(crate) const LONG: Duration = Duration::from_secs(1);

/// A wait that is reported once if it lasts.
#[derive(Default)]
pub(crate) struct LongWait {
    since: Cell<Option<Instant>>,
    is_told: Cell<bool>,
}

impl LongWait {
    /// How long it has lasted, once, when that has become long. It reads the clock only if somebody listens to the
    /// event: `is_enabled` asks where the event is made, since a subscriber may choose events by their modules.
    pub(crate) fn becomes_long(&self, endpoint: &Endpoint, is_enabled: impl FnOnce() -> bool) -> Option<Duration> {
        if self.is_told.get() || !is_enabled() {
            return None;
        }
        let now = endpoint.now();
        let since = self.since.get().unwrap_or(now);
        self.since.set(Some(since));
        self.is_told.set(now - since >= LONG);
        self.is_told.get().then(|| now - since)
    }
}
