//! The replacements of `std::sync`, `std::thread` and `std::time` above the fabric.

use core::fmt;
use core::ops::{Add, Deref, DerefMut, Sub};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use crate::error::{ErrorKind, Result};
use crate::hook;

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

impl<T> Drop for LocalMutex<T> {
    fn drop(&mut self) {
        if hook::is_active() {
            hook::forget(core::ptr::from_ref(self) as usize);
        }
    }
}

impl<T> LocalMutex<T> {
    /// An unlocked mutex.
    ///
    /// ```
    /// use farfield_fabric::LocalMutex;
    /// static NAMES: LocalMutex<Vec<String>> = LocalMutex::new(Vec::new());
    /// NAMES.lock().push("north".into());
    /// ```
    pub const fn new(value: T) -> Self {
        LocalMutex(Mutex::new(value))
    }

    /// Takes the lock. A panic of an earlier holder does not poison it: its users keep the data consistent at every
    /// step.
    ///
    /// ```
    /// # let tasks = farfield_fabric::LocalMutex::new(vec![1, 2]);
    /// let next = tasks.lock().pop(); // unlocked at the end of the statement
    /// assert_eq!((next, tasks.lock().len()), (Some(2), 1));
    /// ```
    pub fn lock(&self) -> LocalGuard<'_, T> {
        if hook::is_active() {
            return self.lock_simulated();
        }
        self.lock_now()
    }

    fn lock_now(&self) -> LocalGuard<'_, T> {
        LocalGuard { guard: self.0.lock().unwrap_or_else(PoisonError::into_inner), simulated: None }
    }

    #[cold]
    fn lock_simulated(&self) -> LocalGuard<'_, T> {
        let address = core::ptr::from_ref(self) as usize;
        let mut taken = None;
        let mut try_lock = || {
            taken = match self.0.try_lock() {
                Ok(guard) => Some(guard),
                Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => None,
            };
            taken.is_some()
        };
        let is_simulated = hook::lock(address, &mut try_lock);
        match taken {
            Some(guard) if is_simulated => LocalGuard { guard, simulated: Some(address) },
            _ => self.lock_now(),
        }
    }
}

impl<T> fmt::Debug for LocalMutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LocalMutex")
    }
}

/// Access to the data of a [`LocalMutex`].
///
/// ```
/// use farfield_fabric::{LocalGuard, LocalMutex};
/// let total = LocalMutex::new(1);
/// let mut guard: LocalGuard<'_, i32> = total.lock();
/// *guard += 1;
/// drop(guard); // before the next await
/// # assert_eq!(*total.lock(), 2);
/// ```
pub struct LocalGuard<'a, T> {
    guard: MutexGuard<'a, T>,
    /// The lock's address, if a simulation runs it.
    simulated: Option<usize>,
}

impl<T> Drop for LocalGuard<'_, T> {
    fn drop(&mut self) {
        if let Some(address) = self.simulated {
            hook::unlock(address);
        }
    }
}

impl<T> Deref for LocalGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for LocalGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

/// A time on the fabric's clock, in nanoseconds.
///
/// ```
/// # use {farfield_fabric::Instant, std::time::Duration};
/// let start = Instant { ns: 1_000 };
/// let deadline = start + Duration::from_micros(1);
/// assert!(start < deadline && deadline < Instant::NEVER);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Instant {
    /// Nanoseconds since the clock's start.
    pub ns: u64,
}

impl Instant {
    /// A time that is never reached.
    ///
    /// ```
    /// # use {farfield_fabric::Instant, std::time::Duration};
    /// let deadlines = [Instant::NEVER, Instant { ns: 5 }];
    /// assert_eq!(deadlines.into_iter().min(), Some(Instant { ns: 5 }));
    /// assert_eq!(Instant::NEVER + Duration::from_secs(1), Instant::NEVER);
    /// ```
    pub const NEVER: Instant = Instant { ns: u64::MAX };

    /// The current time, on the clock that all processes of the host share.
    pub(crate) fn monotonic() -> Instant {
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the pointer is to a timespec of ours. (Through libc, since rustix's own access to the vDSO does not
        // work under valgrind, which counts our instructions.)
        let result = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
        debug_assert_eq!(result, 0, "every Linux has a monotonic clock");
        Instant { ns: now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64 }
    }

    /// The time since an earlier one, zero if that one is later.
    ///
    /// ```
    /// # use {farfield_fabric::Instant, std::time::Duration};
    /// let (start, end) = (Instant { ns: 1_000 }, Instant { ns: 3_000 });
    /// assert_eq!((end.since(start), start.since(end)), (Duration::from_micros(2), Duration::ZERO));
    /// ```
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
///
/// ```
/// # use farfield_fabric::*;
/// # fn f(fabric: &dyn Transport) -> Result<()> {
/// let thread: Thread = fabric.spawn("worker".into(), Box::new(|| println!("at work")))?;
/// thread.join().expect("it does not panic");
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Thread(Running);

#[derive(Debug)]
enum Running {
    /// A thread of the operating system.
    Os(std::thread::JoinHandle<()>),
    #[cfg(feature = "sim")]
    /// A thread of a simulation: its world and number.
    Simulated(u64, usize),
}

impl From<std::thread::JoinHandle<()>> for Thread {
    fn from(thread: std::thread::JoinHandle<()>) -> Thread {
        Thread(Running::Os(thread))
    }
}

impl Thread {
    /// Starts a thread of the operating system.
    pub(crate) fn start(name: String, body: Box<dyn FnOnce() + Send>) -> Result<Thread> {
        let spawned = std::thread::Builder::new().name(name).spawn(body);
        let failed = |why: std::io::Error| ErrorKind::System { what: "starting a thread", why: why.to_string() };
        Ok(spawned.map_err(failed)?.into())
    }

    #[cfg(feature = "sim")]
    pub(crate) fn simulated(world: u64, index: usize) -> Thread {
        Thread(Running::Simulated(world, index))
    }

    /// Waits for the thread's end, unless it is the caller.
    ///
    /// ```
    /// # use farfield_fabric::Thread;
    /// let thread = Thread::from(std::thread::spawn(|| assert!(1 > 2, "no more work")));
    /// assert_eq!(thread.join(), Err("no more work".into()));
    /// ```
    ///
    /// # Errors
    /// The message of its panic.
    pub fn join(self) -> Result<(), String> {
        match self.0 {
            #[cfg(feature = "sim")]
            Running::Simulated(world, index) => hook::join(world, index),
            // A thread that would wait for itself (a node's last handle dropped by its own service thread) does not
            // wait.
            Running::Os(thread) if thread.thread().id() == std::thread::current().id() => Ok(()),
            Running::Os(thread) => thread.join().map_err(|panic| {
                let text = panic.downcast_ref::<&str>().map(ToString::to_string);
                text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic".into())
            }),
        }
    }

    /// Whether it has ended.
    ///
    /// ```
    /// # use farfield_fabric::Thread;
    /// let thread = Thread::from(std::thread::spawn(|| println!("at work")));
    /// while !thread.is_finished() {
    ///     std::thread::yield_now();
    /// }
    /// ```
    pub fn is_finished(&self) -> bool {
        match &self.0 {
            Running::Os(thread) => thread.is_finished(),
            #[cfg(feature = "sim")]
            Running::Simulated(world, index) => hook::is_finished(*world, *index),
        }
    }
}

/// A concurrent data structure in a node's own memory: its operations are atomic by themselves.
///
/// Every access declares whether it reads or changes the structure, for the simulator: each is a scheduling point.
///
/// ```
/// use farfield_fabric::Concurrent;
/// let counter = Concurrent::new(std::sync::atomic::AtomicU64::new(5));
/// counter.write().fetch_add(1, std::sync::atomic::Ordering::Relaxed);
/// assert_eq!(counter.read().load(std::sync::atomic::Ordering::Relaxed), 6);
/// ```
#[derive(Default, Debug)]
pub struct Concurrent<T>(T);

impl<T> Drop for Concurrent<T> {
    fn drop(&mut self) {
        if hook::is_active() {
            hook::forget(core::ptr::from_ref(self) as usize);
        }
    }
}

impl<T> Concurrent<T> {
    /// Wraps a structure.
    ///
    /// ```
    /// use {farfield_fabric::Concurrent, std::sync::atomic::AtomicU64};
    /// static TOTAL: Concurrent<AtomicU64> = Concurrent::new(AtomicU64::new(0));
    /// # let _ = &TOTAL;
    /// ```
    pub const fn new(structure: T) -> Self {
        Concurrent(structure)
    }

    /// The structure, for one operation that changes nothing.
    ///
    /// ```
    /// # use {farfield_fabric::Concurrent, std::sync::atomic::{AtomicU64, Ordering}};
    /// let total = Concurrent::new(AtomicU64::new(5));
    /// assert_eq!(total.read().load(Ordering::Relaxed), 5);
    /// ```
    #[inline]
    pub fn read(&self) -> &T {
        if hook::is_active() {
            hook::structure(core::ptr::from_ref(self) as usize, false);
        }
        &self.0
    }

    /// The structure, for one operation that may change it.
    ///
    /// ```
    /// # use {farfield_fabric::Concurrent, std::sync::atomic::{AtomicU64, Ordering}};
    /// let total = Concurrent::new(AtomicU64::new(5));
    /// assert_eq!(total.write().swap(0, Ordering::Relaxed), 5);
    /// ```
    #[inline]
    pub fn write(&self) -> &T {
        if hook::is_active() {
            hook::structure(core::ptr::from_ref(self) as usize, true);
        }
        &self.0
    }
}
