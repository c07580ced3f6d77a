//! Processes: a number of this one, and whether another one has ended.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

use rand::TryRng;
use rand::rngs::SysRng;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// The number of this process; 0 if it has none yet.
static NUMBER: AtomicU64 = AtomicU64::new(0);

extern "C" fn forget_number() {
    NUMBER.store(0, Ordering::Relaxed);
}

/// A number that is this process's alone, in whatever PID namespace it is, and whatever it was forked from.
///
/// # Errors
/// The kernel gives no random number.
pub(crate) fn process_number() -> io::Result<u64> {
    static FORGETS: Once = Once::new();
    FORGETS.call_once(|| {
        // SAFETY: the handler stores to an atomic and does nothing else, which a child of fork may do. If it cannot be
        // registered (no memory is left), a child has its parent's number.
        unsafe { libc::pthread_atfork(None, None, Some(forget_number)) };
    });
    let known = NUMBER.load(Ordering::Relaxed);
    if known != 0 {
        return Ok(known);
    }
    // Not `rand::random`: a child of fork would draw what its siblings draw.
    let drawn = SysRng.try_next_u64().map_err(io::Error::other)?.max(1);
    Ok(match NUMBER.compare_exchange(0, drawn, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => drawn,
        Err(first) => first,
    })
}

/// Another process.
#[derive(Debug)]
pub(crate) struct Process(OwnedFd);

impl Process {
    /// The process with this number in this one's PID namespace. None if there is none, or the kernel is too old.
    pub(crate) fn of(pid: i32) -> Option<Process> {
        let pid = Pid::from_raw(pid.max(0))?;
        pidfd_open(pid, PidfdFlags::empty()).ok().map(Process)
    }

    /// Whether it has ended: no thread of it runs any code any more.
    pub(crate) fn has_ended(&self) -> bool {
        let mut fd = [PollFd::new(&self.0, PollFlags::IN)];
        poll(&mut fd, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_process_has_ended_when_it_is_killed() {
        let mut child = Command::new("sleep").arg("60").stdout(Stdio::null()).spawn().expect("a child");
        let process = Process::of(child.id() as i32).expect("Linux 5.3 has descriptors of processes");
        assert!(!process.has_ended());
        child.kill().expect("it is killed");
        let start = std::time::Instant::now();
        while !process.has_ended() {
            assert!(start.elapsed() < std::time::Duration::from_secs(20));
            std::thread::yield_now();
        }
        child.wait().expect("it has ended");
        assert!(Process::of(0).is_none() && Process::of(-1).is_none());
    }

    #[test]
    fn a_child_of_fork_has_another_number() {
        let number = process_number().expect("a number");
        assert_eq!(process_number().expect("a number"), number);
        let (from, to) = rustix::pipe::pipe().expect("a pipe");
        // SAFETY: the child draws a number by system calls, writes it, and ends, without locks or allocations.
        if unsafe { libc::fork() } == 0 {
            let of_child = process_number().unwrap_or_default();
            let _ = rustix::io::write(&to, &of_child.to_ne_bytes());
            // SAFETY: it ends the child at once.
            unsafe { libc::_exit(0) };
        }
        let mut bytes = [0; 8];
        assert_eq!(rustix::io::read(&from, &mut bytes).expect("the child writes"), 8);
        let of_child = u64::from_ne_bytes(bytes);
        assert!(of_child != 0 && of_child != number);
    }
}
