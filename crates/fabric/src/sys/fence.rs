//! Fences that reach other processes, futexes in shared memory, and how many cores this process may use.
//!
//! Such a fence (`membarrier(2)`) makes other threads pass a full memory barrier before the call returns. It lets the
//! frequent side of a handshake be plain: a sleeper that announces itself, fences and re-checks needs no fence in the
//! writer; a revoker that takes a right, fences and then looks for marks of operations in flight needs none in the
//! operation.

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use rustix::io::Errno;
use rustix::thread::{Timespec, futex, sched_getaffinity};

use super::cgroup;

// linux/membarrier.h
const MEMBARRIER_CMD_GLOBAL: libc::c_int = 1 << 0;
const MEMBARRIER_CMD_GLOBAL_EXPEDITED: libc::c_int = 1 << 1;
const MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED: libc::c_int = 1 << 2;
const MEMBARRIER_CMD_PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
const MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

/// The kernel cannot fence other threads for us.
#[derive(Debug, thiserror::Error)]
#[error(
    "the kernel refuses membarrier(2) {command}: {source}; the fabrics need Linux 4.16 or newer and a container profile \
     (seccomp) that allows this call"
)]
pub(crate) struct FenceError {
    /// The command that was refused.
    command: &'static str,
    /// The kernel's error.
    source: io::Error,
}

/// Asks the kernel for [`fence_own_threads`], and to include this process in every peer's [`fence_most_threads`]; to be
/// called before the node shares memory. The kernel is asked once per process, later calls return the first answer.
pub(crate) fn register_membarrier() -> Result<(), FenceError> {
    // A child of fork inherits both this answer and the registrations; exec drops both.
    static ANSWER: OnceLock<Result<(), (&str, i32)>> = OnceLock::new();
    let answer = ANSWER.get_or_init(|| {
        [
            ("REGISTER_PRIVATE_EXPEDITED", MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED),
            ("REGISTER_GLOBAL_EXPEDITED", MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED),
        ]
        .into_iter()
        .try_for_each(|(name, command)| {
            membarrier(command).map_err(|error| (name, error.raw_os_error().unwrap_or(libc::EIO)))
        })
    });
    answer.map_err(|(command, errno)| FenceError { command, source: io::Error::from_raw_os_error(errno) })
}

/// A full memory barrier on every thread of this process.
///
/// Orders everything this thread wrote before the call before everything any such thread reads after its barrier,
/// and everything such a thread wrote before its barrier before what this thread reads after the call.
/// Takes some microseconds.
pub(crate) fn fence_own_threads() -> Result<(), FenceError> {
    membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED).map_err(|source| FenceError { command: "PRIVATE_EXPEDITED", source })
}

/// The same on the threads of every registered process, but for those on cores that the kernel leaves out (see
/// `shm::fences`). Nothing may depend on it but how soon a thread wakes.
pub(crate) fn fence_most_threads() {
    let _ = membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED);
}

/// The same on every thread of every process, registered or not. Takes some ten milliseconds; refused by kernels with
/// `nohz_full`.
pub(crate) fn fence_all_threads() -> Result<(), FenceError> {
    membarrier(MEMBARRIER_CMD_GLOBAL).map_err(|source| FenceError { command: "GLOBAL", source })
}

fn membarrier(command: libc::c_int) -> io::Result<()> {
    // SAFETY: membarrier takes two integers by value and neither reads nor writes memory of the caller.
    let answer = unsafe { libc::syscall(libc::SYS_membarrier, command, 0) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Sleeps while `word` holds `expected`, until a wake, a signal or the timeout; `false` if the time ran out.
///
/// Wakes may be spurious: the caller re-checks its condition. The futex is shared, that is, keyed by the memory
/// and not by the address space, so a peer that maps the same memory can wake it.
pub(crate) fn futex_wait(word: &AtomicU32, expected: u32, timeout: Duration) -> bool {
    let timeout = Timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(timeout.subsec_nanos()),
    };
    futex::wait(word, futex::Flags::empty(), expected, Some(&timeout)) != Err(Errno::TIMEDOUT)
}

/// Wakes every thread of every process that sleeps on `word`; returns how many there were.
pub(crate) fn futex_wake_all(word: &AtomicU32) -> usize {
    // The kernel reads the count as a signed number. The word is valid memory, so the call cannot fail.
    futex::wake(word, futex::Flags::empty(), i32::MAX as u32).unwrap_or(0)
}

/// How many cores this process may use: its affinity mask, or its cgroup's processor quota if that is less; at least 1.
pub(crate) fn cpus_allowed() -> usize {
    // The mask holds 1024 cores; the kernel refuses it on larger machines.
    let mask = sched_getaffinity(None).map_or(usize::MAX, |set| set.count() as usize);
    let quota = cgroup::cpu_quota().unwrap_or(usize::MAX);
    let cores = mask.min(quota);
    if cores == usize::MAX { std::thread::available_parallelism().map_or(1, Into::into) } else { cores.max(1) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Instant;

    #[test]
    fn registers_more_than_once_and_fences() {
        register_membarrier().unwrap();
        register_membarrier().unwrap();
        fence_own_threads().unwrap();
        fence_most_threads();
        fence_all_threads().unwrap();
    }

    #[test]
    fn an_unknown_command_is_an_error_that_helps() {
        let source = membarrier(1 << 30).unwrap_err();
        let text = FenceError { command: "GLOBAL", source }.to_string();
        assert!(text.contains("membarrier") && text.contains("seccomp"), "{text}");
    }

    /// Dekker's handshake with one plain side: without the fence both sides can miss each other.
    #[test]
    fn a_fence_makes_the_other_side_plain() {
        register_membarrier().unwrap();
        let both_missed = AtomicUsize::new(0);
        for _ in 0..300 {
            let (light, heavy) = (AtomicU32::new(0), AtomicU32::new(0));
            let (light_saw, heavy_saw) = (AtomicU32::new(9), AtomicU32::new(9));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    light.store(1, Ordering::Relaxed);
                    std::sync::atomic::compiler_fence(Ordering::SeqCst);
                    light_saw.store(heavy.load(Ordering::Relaxed), Ordering::Relaxed);
                });
                heavy.store(1, Ordering::Relaxed);
                fence_own_threads().unwrap();
                heavy_saw.store(light.load(Ordering::Relaxed), Ordering::Relaxed);
            });
            if light_saw.into_inner() == 0 && heavy_saw.into_inner() == 0 {
                both_missed.fetch_add(1, Ordering::Relaxed);
            }
        }
        assert_eq!(both_missed.into_inner(), 0);
    }

    #[test]
    fn futex_times_out_returns_on_change_and_wakes() {
        let word = AtomicU32::new(5);
        let start = Instant::now();
        assert!(!futex_wait(&word, 5, Duration::from_millis(20)));
        assert!(start.elapsed() >= Duration::from_millis(20));
        assert!(futex_wait(&word, 4, Duration::from_secs(60)), "another value returns at once");
        std::thread::scope(|scope| {
            let sleepers = [0; 2].map(|_| scope.spawn(|| futex_wait(&word, 5, Duration::MAX)));
            let mut woken = 0;
            while woken < 2 {
                woken += futex_wake_all(&word);
                std::thread::sleep(Duration::from_millis(1));
            }
            assert!(sleepers.into_iter().all(|sleeper| sleeper.join().unwrap()));
        });
    }

    #[test]
    fn some_core_is_allowed() {
        assert!((1..=65_536).contains(&cpus_allowed()));
    }
}
