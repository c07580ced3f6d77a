//! How long an operation waits for a lock, and the grant by the one before.

use core::time::Duration;

use farfield_core::{Error, ErrorKind};
use farfield_fabric::{Endpoint, Instant, NodeId};

use super::WaitLimit;

/// How often a waiting operation checks whether the nodes that it depends on are still alive.
pub(super) const CHECK_EVERY: Duration = Duration::from_millis(20);
/// The name of the lock in timeout errors.
pub(super) const LOCK: &str = "the lock";

/// An operation's wait. An operation that need not wait does not read the clock.
pub(super) struct Wait<'l> {
    limit: &'l mut WaitLimit,
    /// When it began to wait.
    start: Option<Instant>,
}

impl<'l> Wait<'l> {
    pub(super) fn new(limit: &'l mut WaitLimit) -> Wait<'l> {
        Wait { limit, start: None }
    }

    /// Whether the operation gives up instead of waiting for another one.
    pub(super) fn is_forbidden(&self) -> bool {
        *self.limit == WaitLimit::Now
    }

    /// The time until which it waits before it checks again whether others are alive.
    pub(super) fn slice(&mut self, endpoint: &Endpoint) -> Instant {
        let now = endpoint.now();
        self.start.get_or_insert(now);
        self.limit.until(endpoint, now).min(now + CHECK_EVERY)
    }

    /// The timeout error, if the deadline has passed.
    pub(super) fn is_late(&mut self, endpoint: &Endpoint, what: &str, missing: Option<NodeId>) -> Option<Error> {
        self.slice(endpoint);
        let (now, start) = (endpoint.now(), self.start?);
        let (what, missing) = (what.into(), missing.into_iter().collect());
        (now >= self.limit.until(endpoint, now))
            .then(|| ErrorKind::Timeout { what, waited: now - start, missing }.into())
    }
}

/// A word that a leaving operation hands to the one behind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Grant(pub(super) u64);

const GRANTED: u64 = 1 << 63;

const DIED: u64 = 1 << 62;

impl Grant {
    pub(super) fn new(budget: u32, is_poisoned: bool) -> Grant {
        Grant(GRANTED | if is_poisoned { DIED } else { 0 } | u64::from(budget))
    }

    /// How often the lock may be passed on before the other cohort gets it. 0: the operation must compete for it.
    pub(super) fn budget(self) -> u32 {
        self.0 as u32
    }

    pub(super) fn is_poisoned(self) -> bool {
        self.0 & DIED != 0
    }

    pub(super) fn word(self) -> u64 {
        self.0
    }

    pub(super) fn of(word: u64) -> Option<Grant> {
        (word & GRANTED != 0).then_some(Grant(word))
    }
}
