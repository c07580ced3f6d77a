//! What stands in for `std::sync`, `std::thread` and `std::time` above the fabric.

use core::fmt;
use core::ops::{Add, Deref, DerefMut, Sub};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A lock between the threads of one node.
///
/// Never hold it across an `await` or a wait; the endpoint's other operations would wait with it.
///
/// ```
/// let total = farfield_fabric::LocalMutex::new(1);
/// *total.lock() += 1;
/// assert_eq!(*total.lock(), 2);
/// ```
#[derive(Default)]
pub struct LocalMutex<T>(Mutex<T>);

impl<T> LocalMutex<T> {
    /// An open lock.
    pub const fn new(value: T) -> Self {
        LocalMutex(Mutex::new(value))
    }

    /// Takes the lock. A panic of an earlier holder does not spoil it: what it guards is kept consistent at every
    /// step by those who use it.
    pub fn lock(&self) -> LocalGuard<'_, T> {
        LocalGuard(self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<T> fmt::Debug for LocalMutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LocalMutex")
    }
}

/// Access to what a [`LocalMutex`] guards.
pub struct LocalGuard<'a, T>(MutexGuard<'a, T>);

impl<T> Deref for LocalGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for LocalGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

/// A moment on the fabric's clock, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Instant {
    /// Nanoseconds since the clock's start.
    pub ns: u64,
}

impl Instant {
    /// A moment that never comes.
    pub const NEVER: Instant = Instant { ns: u64::MAX };

    /// Now, on the clock that all processes of the host share.
    pub(crate) fn monotonic() -> Instant {
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the pointer is to a timespec of ours. (Through libc, since rustix's own way to the vDSO does not work
        // under valgrind, which counts our instructions.)
        let result = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
        debug_assert_eq!(result, 0, "every Linux has a monotonic clock");
        Instant { ns: now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64 }
    }

    /// The time since an earlier moment, zero if it is not earlier.
    #[must_use]
    pub fn since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.ns.saturating_sub(earlier.ns))
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;
    fn add(self, duration: Duration) -> Instant {
        Instant { ns: self.ns.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)) }
    }
}

impl Sub for Instant {
    type Output = Duration;
    fn sub(self, earlier: Instant) -> Duration {
        self.since(earlier)
    }
}

/// A thread started through the fabric.
#[derive(Debug)]
pub struct Thread(pub(crate) std::thread::JoinHandle<()>);

impl Thread {
    /// Waits for its end, unless it is the caller.
    ///
    /// # Errors
    /// The message of its panic.
    pub fn join(self) -> Result<(), String> {
        // A thread that would wait for itself (a node's last handle dropped by its own service thread) does not.
        if self.0.thread().id() == std::thread::current().id() {
            return Ok(());
        }
        self.0.join().map_err(|panic| {
            let text = panic.downcast_ref::<&str>().map(ToString::to_string);
            text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic".into())
        })
    }

    /// Whether it has ended.
    pub fn is_finished(&self) -> bool {
        self.0.is_finished()
    }
}
