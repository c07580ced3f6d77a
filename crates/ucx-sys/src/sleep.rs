//! Sleeping until a worker has events, and waking the thread that sleeps.

use core::sync::atomic::{AtomicBool, Ordering, fence};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::UcxError;

/// The longest sleep.
const LONGEST: Duration = Duration::from_secs(3600);

/// Wakes the thread that sleeps for a worker, from any thread. A clone is the same waker.
#[derive(Clone, Debug)]
pub struct Waker {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// From `eventfd`: readable after a wake, until a sleep has ended by it.
    counter: File,
    /// A thread sleeps, or is about to.
    asleep: AtomicBool,
}

impl Waker {
    pub(crate) fn new() -> Result<Waker, UcxError> {
        // SAFETY: the call takes numbers only.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(UcxError::Wait(io::Error::last_os_error().to_string()));
        }
        // SAFETY: the descriptor is new, and nothing else owns it.
        let counter = unsafe { File::from_raw_fd(fd) };
        Ok(Waker { shared: Arc::new(Shared { counter, asleep: AtomicBool::new(false) }) })
    }

    /// Ends the sleep of the worker's thread, or its next one if it does not sleep now.
    pub fn wake(&self) {
        // The write fails when the counter is at its end. The descriptor is readable then.
        let _ = (&self.shared.counter).write(&1_u64.to_ne_bytes());
    }

    /// Wakes the worker's thread, after this one has left something for it. A thread that is awake finds it anyway.
    pub(crate) fn wake_if_asleep(&self) {
        // SeqCst, as in `lie_down`: either this thread sees the mark, or the other one sees the thing that was left.
        // Relaxed: the fence orders the load.
        fence(Ordering::SeqCst);
        if self.shared.asleep.load(Ordering::Relaxed) && self.shared.asleep.swap(false, Ordering::Relaxed) {
            self.wake();
        }
    }

    /// Says that the thread is about to sleep. It looks afterwards whether there is something to do.
    pub(crate) fn lie_down(&self) {
        self.shared.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    fn get_up(&self) {
        // Relaxed: if the mark is seen longer, one sleep ends early.
        self.shared.asleep.store(false, Ordering::Relaxed);
    }

    /// Forgets the wakes until now.
    fn clear(&self) {
        // The read fails if there was none.
        let _ = (&self.shared.counter).read(&mut [0; 8]);
    }
}

/// How a sleep has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slept {
    /// The worker has events, for progress.
    Event,
    /// A [`Waker`] or a dropped handle has woken the thread.
    Woken,
    /// The time is over.
    TimedOut,
}

/// Sleeps for a worker without borrowing it, so that no lock around the worker is held meanwhile. A clone sleeps for
/// the same worker.
///
/// The order is that of [`Worker::wait`](crate::Worker::wait): progress until there is nothing to do, arm, sleep, and
/// again. One thread at a time sleeps for a worker. A thread that uses the worker meanwhile wakes the one that sleeps
/// afterwards, by a [`Waker`]: UCX reports no event for work that a call has left to progress.
#[derive(Clone, Debug)]
pub struct Sleeper {
    /// A duplicate of the worker's descriptor: open even if the worker is dropped meanwhile.
    events: Arc<OwnedFd>,
    waker: Waker,
}

impl Sleeper {
    /// For the worker with this event descriptor.
    pub(crate) fn new(events: BorrowedFd<'_>, waker: Waker) -> Result<Sleeper, UcxError> {
        let events = events.try_clone_to_owned().map_err(|error| UcxError::Wait(error.to_string()))?;
        Ok(Sleeper { events: Arc::new(events), waker })
    }

    pub(crate) fn events(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    /// Sleeps until the worker, which was [armed](crate::Worker::arm), has events, or the thread is woken, or for the
    /// time given, but for an hour at most. A signal does not end the sleep. Dropping the worker does.
    ///
    /// # Errors
    /// The system cannot wait.
    pub fn sleep(&self, timeout: Duration) -> Result<Slept, UcxError> {
        let slept = self.poll(timeout.min(LONGEST));
        self.waker.get_up();
        if slept == Ok(Slept::Woken) {
            self.waker.clear();
        }
        slept
    }

    fn poll(&self, timeout: Duration) -> Result<Slept, UcxError> {
        let end = Instant::now() + timeout;
        let poll = |fd: BorrowedFd<'_>| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let mut polls = [poll(self.waker.shared.counter.as_fd()), poll(self.events.as_fd())];
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let time = libc::timespec {
                tv_sec: left.as_secs().try_into().unwrap_or(libc::time_t::MAX),
                tv_nsec: left.subsec_nanos().into(),
            };
            // SAFETY: two structures and a time, valid for the call; without a mask of signals.
            match unsafe { libc::ppoll(polls.as_mut_ptr(), 2, &time, core::ptr::null()) } {
                -1 => {
                    let error = io::Error::last_os_error();
                    if error.kind() != io::ErrorKind::Interrupted {
                        return Err(UcxError::Wait(error.to_string()));
                    }
                }
                0 => return Ok(Slept::TimedOut),
                _ if polls[0].revents != 0 => return Ok(Slept::Woken),
                _ => return Ok(Slept::Event),
            }
        }
    }
}

/// Marks all descriptors of this process but the first three to be closed by `exec`. For the child, between `fork` and
/// `exec`:
///
/// ```no_run
/// use std::os::unix::process::CommandExt as _;
///
/// let mut command = std::process::Command::new("program");
/// // SAFETY: it makes one system call.
/// unsafe { command.pre_exec(farfield_ucx_sys::close_on_exec) };
/// ```
///
/// UCX opens its sockets without that mark. A child that has them keeps the connections of its parent open: when the
/// parent dies, its peers do not see it until the child ends, too.
///
/// # Errors
/// The system is older than Linux 5.11, or refuses the call.
pub fn close_on_exec() -> io::Result<()> {
    let (first, last): (libc::c_uint, libc::c_uint) = (3, libc::c_uint::MAX);
    // SAFETY: the call takes numbers and sets marks of descriptors, which stay open and valid in this process.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, last, libc::CLOSE_RANGE_CLOEXEC) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sleeper() -> (Waker, Sleeper) {
        let never = Waker::new().unwrap();
        let waker = Waker::new().unwrap();
        (waker.clone(), Sleeper::new(never.shared.counter.as_fd(), waker).unwrap())
    }

    #[test]
    fn a_wake_ends_one_sleep() {
        let (waker, sleeper) = sleeper();
        assert_eq!(sleeper.sleep(Duration::ZERO), Ok(Slept::TimedOut));
        waker.wake();
        waker.wake();
        assert_eq!(sleeper.sleep(Duration::from_secs(60)), Ok(Slept::Woken));
        assert_eq!(sleeper.sleep(Duration::from_millis(1)), Ok(Slept::TimedOut));
        let thread = std::thread::spawn(move || sleeper.sleep(Duration::from_secs(60)));
        waker.wake();
        assert_eq!(thread.join().unwrap(), Ok(Slept::Woken));
    }

    #[test]
    fn a_thread_that_is_awake_is_not_woken() {
        let (waker, sleeper) = sleeper();
        waker.wake_if_asleep();
        assert_eq!(sleeper.sleep(Duration::ZERO), Ok(Slept::TimedOut));
        waker.lie_down();
        waker.wake_if_asleep();
        waker.wake_if_asleep();
        assert_eq!(sleeper.sleep(Duration::from_secs(60)), Ok(Slept::Woken));
        waker.wake_if_asleep();
        assert_eq!(sleeper.sleep(Duration::ZERO), Ok(Slept::TimedOut));
    }
}
