//! Control sockets: local, connected, one message per send (`SOCK_SEQPACKET`), with file descriptors on board.
//!
//! Every call returns at once; waiting is [`poll_readable`], which a [`Waker`] interrupts. A message arrives whole or
//! not at all. Both ends run under the same user, which each side checks with the kernel when they meet.

use std::fs;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen,
    recvmsg, sendmsg, socket_with,
};
use rustix::process::geteuid;

use super::process::Process;

/// The longest message.
pub(crate) const MESSAGE_BYTES_MAX: usize = 60 << 10;
/// The most file descriptors that one message carries.
pub(crate) const MESSAGE_FDS_MAX: usize = 16;

/// Connections that wait for `accept`; the kernel may cap it lower.
const BACKLOG: i32 = 1024;

/// Why a control socket could not be set up.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SocketError {
    /// The kernel refused a call.
    #[error("{what} {} failed: {source}", path.display())]
    System {
        /// The attempted action.
        what: &'static str,
        /// The socket's file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The process at the other end belongs to another user.
    #[error(
        "the process that listens at {} belongs to user {uid} and not to user {own}; all nodes of a session must run \
         under one user", path.display()
    )]
    Stranger {
        /// The socket's file.
        path: PathBuf,
        /// Its user.
        uid: u32,
        /// Our user.
        own: u32,
    },
}

/// A socket on which peers call.
#[derive(Debug)]
pub(crate) struct Listener {
    fd: OwnedFd,
    path: PathBuf,
}

impl Listener {
    /// Listens at `path`, which must be the caller's own place: whatever a former owner left there is replaced.
    ///
    /// Dropping the listener leaves the file; the owner of the place removes it.
    pub(crate) fn bind(path: &Path) -> Result<Self, SocketError> {
        let failed = |source: io::Error| SocketError::System { what: "listening at", path: path.to_owned(), source };
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        let fd = open_socket().map_err(|errno| failed(errno.into()))?;
        let address = SocketAddrUnix::new(path).map_err(|errno| failed(errno.into()))?;
        bind(&fd, &address).map_err(|errno| failed(errno.into()))?;
        listen(&fd, BACKLOG).map_err(|errno| failed(errno.into()))?;
        Ok(Self { fd, path: path.to_owned() })
    }

    /// The next peer that calls, if there is one; strangers are hung up on.
    pub(crate) fn accept(&self) -> Result<Option<Conn>, SocketError> {
        loop {
            match accept_with(&self.fd, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
                Ok(fd) => match peer(fd.as_fd()) {
                    Ok(peer) if peer.uid == geteuid().as_raw() => return Ok(Some(Conn { fd })),
                    _ => {}
                },
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(errno) => {
                    let (what, path) = ("accepting a peer at", self.path.clone());
                    return Err(SocketError::System { what, path, source: errno.into() });
                }
            }
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// What became of a message to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SendOutcome {
    /// The kernel has it and delivers it unless the peer dies.
    Sent,
    /// The peer does not keep up; nothing was sent, try later.
    Full,
    /// The peer has hung up or died.
    Gone,
}

/// What there was to receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RecvOutcome {
    /// One message, whole.
    Message,
    /// Nothing yet.
    Empty,
    /// The peer has hung up or died, or broke the rules: a message too long or with too many descriptors.
    Gone,
}

/// A connection to one peer.
#[derive(Debug)]
pub(crate) struct Conn {
    fd: OwnedFd,
}

impl Conn {
    /// Calls the peer that listens at `path`; `None` if no process listens yet, or too many are calling: try later.
    pub(crate) fn connect(path: &Path) -> Result<Option<Self>, SocketError> {
        let failed = |source: io::Error| SocketError::System { what: "connecting to", path: path.to_owned(), source };
        let fd = open_socket().map_err(|errno| failed(errno.into()))?;
        let address = SocketAddrUnix::new(path).map_err(|errno| failed(errno.into()))?;
        loop {
            match connect(&fd, &address) {
                Ok(()) => break,
                Err(Errno::INTR) => {}
                Err(Errno::NOENT | Errno::CONNREFUSED | Errno::AGAIN) => return Ok(None),
                Err(errno) => return Err(failed(errno.into())),
            }
        }
        let peer = peer(fd.as_fd()).map_err(failed)?;
        let own = geteuid().as_raw();
        if peer.uid != own {
            return Err(SocketError::Stranger { path: path.to_owned(), uid: peer.uid, own });
        }
        Ok(Some(Self { fd }))
    }

    /// The process at the other end. None if it is in a PID namespace that this one does not see, or has ended.
    pub(crate) fn process(&self) -> Option<Process> {
        Process::of(peer(self.fd.as_fd()).ok()?.pid)
    }

    /// Sends one message with copies of `fds`.
    ///
    /// # Panics
    ///
    /// If the message is empty (which would look like hanging up), longer than [`MESSAGE_BYTES_MAX`] or has more than
    /// [`MESSAGE_FDS_MAX`] descriptors.
    pub(crate) fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> SendOutcome {
        assert!(!bytes.is_empty(), "an empty message cannot be told from a hang-up");
        assert!(bytes.len() <= MESSAGE_BYTES_MAX, "a message of {} bytes is too long", bytes.len());
        assert!(fds.len() <= MESSAGE_FDS_MAX, "{} descriptors are too many for one message", fds.len());
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MESSAGE_FDS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            let fits = control.push(SendAncillaryMessage::ScmRights(fds));
            debug_assert!(fits, "the space is computed for the maximum");
        }
        loop {
            let sent = sendmsg(&self.fd, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL);
            return match sent {
                Ok(_) => SendOutcome::Sent,
                Err(Errno::INTR) => continue,
                // The last: too many descriptors of this user are under way.
                Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM | Errno::TOOMANYREFS) => SendOutcome::Full,
                Err(_) => SendOutcome::Gone,
            };
        }
    }

    /// Receives one message into `bytes` and its descriptors into `fds`; both are emptied first.
    pub(crate) fn recv(&self, bytes: &mut Vec<u8>, fds: &mut Vec<OwnedFd>) -> RecvOutcome {
        fds.clear();
        bytes.resize(MESSAGE_BYTES_MAX, 0);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MESSAGE_FDS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = loop {
            let answer = recvmsg(&self.fd, &mut [IoSliceMut::new(bytes)], &mut control, RecvFlags::CMSG_CLOEXEC);
            if answer.as_ref().err() != Some(&Errno::INTR) {
                break answer;
            }
        };
        // Also of a message that is refused below: descriptors that are not used must be closed.
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                fds.extend(received);
            }
        }
        let outcome = match &received {
            Ok(message) if message.bytes == 0 => RecvOutcome::Gone,
            // The space has room for alignment, which one descriptor too many may use.
            Ok(_) if fds.len() > MESSAGE_FDS_MAX => RecvOutcome::Gone,
            Ok(message) if message.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) => RecvOutcome::Gone,
            Ok(_) => RecvOutcome::Message,
            Err(Errno::AGAIN | Errno::NOMEM | Errno::NOBUFS) => RecvOutcome::Empty,
            Err(_) => RecvOutcome::Gone,
        };
        match received {
            Ok(message) if outcome == RecvOutcome::Message => bytes.truncate(message.bytes),
            _ => {
                bytes.clear();
                fds.clear();
            }
        }
        outcome
    }
}

impl AsFd for Conn {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Interrupts a [`poll_readable`] of another thread that watches it.
#[derive(Debug)]
pub(crate) struct Waker {
    fd: OwnedFd,
}

impl Waker {
    /// A waker that is not woken.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { fd: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)? })
    }

    /// Makes it readable until it is drained.
    pub(crate) fn wake(&self) {
        // Fails only if the count would overflow, and then it is readable anyway.
        let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
    }

    /// Forgets all wakes so far; whether there were any.
    pub(crate) fn drain(&self) -> bool {
        rustix::io::read(&self.fd, &mut [0; 8]).is_ok()
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Waits until one of `fds` can be read or was hung up on, and returns the positions of all such; none if the time
/// ran out. Signals do not end the wait.
pub(crate) fn poll_readable(fds: &[BorrowedFd<'_>], timeout: Duration) -> io::Result<Vec<usize>> {
    let mut watched: Vec<PollFd<'_>> = fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    poll_until_ready(&mut watched, timeout)?;
    let ready = watched.iter().enumerate().filter(|(_, fd)| !fd.revents().is_empty());
    Ok(ready.map(|(position, _)| position).collect())
}

/// Waits until one of `watched` is ready, or the time runs out. Signals do not end the wait.
pub(crate) fn poll_until_ready(watched: &mut [PollFd<'_>], timeout: Duration) -> io::Result<()> {
    let start = Instant::now();
    loop {
        let left = timeout.saturating_sub(start.elapsed());
        // A wait of 30 years is as good as one of a million; the kernel refuses larger numbers.
        let left = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX).min(1_000_000_000),
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        match poll(watched, Some(&left)) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

fn open_socket() -> rustix::io::Result<OwnedFd> {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC, None)
}

/// The process at the other end, by the kernel, at the time of `connect` or `listen`.
fn peer(fd: BorrowedFd<'_>) -> io::Result<libc::ucred> {
    // Not rustix's call: its type has no room for process 0, the kernel's number for an invisible namespace.
    let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `peer`. That has this size, and all its bit patterns are valid.
    let answer = unsafe {
        libc::getsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut peer).cast(), &raw mut len)
    };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(peer) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileTypeExt;

    use tempfile::tempdir;

    fn pair() -> (Conn, Conn) {
        let place = tempdir().unwrap();
        let path = place.path().join("socket");
        let listener = Listener::bind(&path).unwrap();
        let left = Conn::connect(&path).unwrap().unwrap();
        let right = listener.accept().unwrap().unwrap();
        assert!(listener.accept().unwrap().is_none());
        (left, right)
    }

    #[test]
    fn a_missing_listener_is_no_error_and_leftovers_are_replaced() {
        let place = tempdir().unwrap();
        let path = place.path().join("socket");
        assert!(Conn::connect(&path).unwrap().is_none());
        drop(Listener::bind(&path).unwrap());
        assert!(fs::symlink_metadata(&path).unwrap().file_type().is_socket());
        assert!(Conn::connect(&path).unwrap().is_none(), "the file is there, nobody listens");
        let listener = Listener::bind(&path).unwrap();
        let _caller = Conn::connect(&path).unwrap().unwrap();
        assert!(listener.accept().unwrap().is_some());
    }

    #[test]
    fn a_full_backlog_is_not_an_error() {
        let place = tempdir().unwrap();
        let path = place.path().join("socket");
        let listener = Listener::bind(&path).unwrap();
        listen(&listener.fd, 1).unwrap();
        let callers: Vec<_> = (0..4).map(|_| Conn::connect(&path).unwrap()).collect();
        assert!(callers[0].is_some() && callers[3].is_none());
    }

    #[test]
    fn errors_name_the_path() {
        let error = Listener::bind(Path::new("/nonexistent-folder/socket")).unwrap_err();
        assert!(error.to_string().contains("/nonexistent-folder/socket"), "{error}");
        let long = PathBuf::from(format!("/tmp/{}", "x".repeat(120)));
        assert!(Conn::connect(&long).is_err());
    }

    #[test]
    fn messages_keep_their_bounds_and_order() {
        let (left, right) = pair();
        let (mut bytes, mut fds) = (Vec::new(), Vec::new());
        assert_eq!(right.recv(&mut bytes, &mut fds), RecvOutcome::Empty);
        assert_eq!(left.send(b"one", &[]), SendOutcome::Sent);
        assert_eq!(left.send(&[9; MESSAGE_BYTES_MAX], &[]), SendOutcome::Sent);
        assert_eq!(right.recv(&mut bytes, &mut fds), RecvOutcome::Message);
        assert_eq!(bytes, b"one");
        assert_eq!(right.recv(&mut bytes, &mut fds), RecvOutcome::Message);
        assert_eq!(bytes, [9; MESSAGE_BYTES_MAX]);
        assert_eq!(right.recv(&mut bytes, &mut fds), RecvOutcome::Empty);
        assert!(bytes.is_empty() && fds.is_empty());
    }

    #[test]
    fn a_slow_reader_makes_it_full_and_a_hang_up_gone() {
        let (left, right) = pair();
        let sent = (0..10_000).take_while(|_| left.send(&[1; 1000], &[]) == SendOutcome::Sent).count();
        assert!((1..10_000).contains(&sent), "{sent}");
        assert_eq!(left.send(&[1; 1000], &[]), SendOutcome::Full);
        let (mut bytes, mut fds) = (Vec::new(), Vec::new());
        assert_eq!(right.recv(&mut bytes, &mut fds), RecvOutcome::Message);
        drop(left);
        for _ in 1..sent {
            assert_eq!(right.recv(&mut bytes, &mut fds), RecvOutcome::Message, "what was sent still arrives");
        }
        assert_eq!(right.recv(&mut bytes, &mut fds), RecvOutcome::Gone);
        assert_eq!(right.send(b"x", &[]), SendOutcome::Gone);
    }

    #[test]
    fn descriptors_travel_and_close_on_exec() {
        let (left, right) = pair();
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        assert_eq!(left.send(b"pipe", &[writer.as_fd(); MESSAGE_FDS_MAX]), SendOutcome::Sent);
        drop(writer);
        let (mut bytes, mut fds) = (Vec::new(), Vec::new());
        assert_eq!(right.recv(&mut bytes, &mut fds), RecvOutcome::Message);
        assert_eq!(fds.len(), MESSAGE_FDS_MAX);
        for fd in &fds {
            assert!(rustix::io::fcntl_getfd(fd).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
        }
        rustix::io::write(&fds[15], b"hi").unwrap();
        fds.clear();
        let mut text = [0; 8];
        assert_eq!(rustix::io::read(&reader, &mut text).unwrap(), 2);
        assert_eq!(rustix::io::read(&reader, &mut text).unwrap(), 0, "all copies are closed");
    }

    #[test]
    fn a_peer_that_breaks_the_rules_is_gone_and_leaks_nothing() {
        let (left, right) = pair();
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let fds = [writer.as_fd(); MESSAGE_FDS_MAX + 1];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MESSAGE_FDS_MAX + 1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        sendmsg(&left, &[IoSlice::new(b"x")], &mut control, SendFlags::empty()).unwrap();
        let (mut bytes, mut received) = (Vec::new(), Vec::new());
        assert_eq!(right.recv(&mut bytes, &mut received), RecvOutcome::Gone);
        drop(writer);
        assert_eq!(rustix::io::read(&reader, &mut [0; 8]).unwrap(), 0, "the descriptors were closed");
        let long = vec![0; MESSAGE_BYTES_MAX + 1];
        sendmsg(&left, &[IoSlice::new(&long)], &mut SendAncillaryBuffer::default(), SendFlags::empty()).unwrap();
        assert_eq!(right.recv(&mut bytes, &mut received), RecvOutcome::Gone);
        assert!(bytes.is_empty() && received.is_empty());
    }

    #[test]
    fn polling_names_ready_sockets_and_can_be_interrupted() {
        let (left, right) = pair();
        let waker = Waker::new().unwrap();
        let watched = [right.as_fd(), waker.as_fd()];
        assert_eq!(poll_readable(&watched, Duration::ZERO).unwrap(), []);
        assert!(!waker.drain());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(20));
                waker.wake();
                waker.wake();
            });
            assert_eq!(poll_readable(&watched, Duration::MAX).unwrap(), [1]);
        });
        assert!(waker.drain() && !waker.drain());
        assert_eq!(left.send(b"x", &[]), SendOutcome::Sent);
        assert_eq!(poll_readable(&watched, Duration::from_secs(10)).unwrap(), [0]);
        drop(left);
        waker.wake();
        assert_eq!(poll_readable(&watched, Duration::from_secs(10)).unwrap(), [0, 1]);
        let start = Instant::now();
        assert_eq!(poll_readable(&[], Duration::from_millis(15)).unwrap(), []);
        assert!(start.elapsed() >= Duration::from_millis(15));
    }
}
