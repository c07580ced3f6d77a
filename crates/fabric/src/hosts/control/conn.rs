//! One TCP connection: a socket that never blocks, and the protocol that it carries.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with};

use super::protocol::{Admit, Broken, Happening, Protocol};
use crate::local::Instant;

/// The most that one read takes.
pub(super) const READ_BYTES: usize = 64 << 10;
/// So often is one connection read before the others have their turn.
const READS_MAX: usize = 8;

pub(super) struct Conn {
    /// Shared with a `Watch`, which polls it without a lock.
    stream: Arc<TcpStream>,
    /// The other side.
    pub(super) address: SocketAddr,
    pub(super) protocol: Protocol,
}

impl Conn {
    /// A connection that was made, or is pending. The system reports a failure in time: until then, a socket that
    /// connects has nothing to read and accepts nothing.
    pub(super) fn new(stream: TcpStream, address: SocketAddr, protocol: Protocol) -> Conn {
        Conn { stream: Arc::new(stream), address, protocol }
    }

    /// Sends and receives as much as possible, and does the work that is due.
    pub(super) fn drive(&mut self, now: Instant, buffer: &mut [u8], admit: Admit<'_>, out: &mut Vec<Happening>) {
        // Reads first: a send may find the other side closed, while its last messages are still unread.
        for _ in 0..READS_MAX {
            match (&*self.stream).read(buffer) {
                Ok(0) => self.protocol.end(Broken::HungUp, out),
                Ok(len) => self.protocol.input(&buffer[..len], now, admit, out),
                Err(why) if why.kind() == ErrorKind::WouldBlock => break,
                Err(why) if why.kind() == ErrorKind::Interrupted => continue,
                Err(why) => self.protocol.end(broken(&why), out),
            }
            if self.protocol.is_over() {
                break;
            }
        }
        self.protocol.tick(now, out);
        if let Err(why) = self.flush() {
            self.protocol.end(broken(&why), out);
        }
    }

    /// Sends as many of the waiting bytes as the system takes now.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        while !self.protocol.outgoing.is_empty() {
            match (&*self.stream).write(self.protocol.outgoing.next()) {
                Ok(sent) => self.protocol.outgoing.sent(sent),
                Err(why) if why.kind() == ErrorKind::WouldBlock => break,
                Err(why) if why.kind() == ErrorKind::Interrupted => {}
                Err(why) => return Err(why),
            }
        }
        Ok(())
    }

    /// To wait for it.
    pub(super) fn watch(&self) -> Watch {
        let flags = if self.protocol.outgoing.is_empty() { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT };
        Watch { stream: Arc::clone(&self.stream), flags }
    }

    /// Closes it for sending, after the queued bytes.
    pub(super) fn finish(&self) {
        let _ = self.stream.shutdown(Shutdown::Write); // fails if it is closed already
    }

    /// Reads the remaining input. Returns whether the other side has closed it.
    pub(super) fn is_drained(&self, buffer: &mut [u8]) -> bool {
        loop {
            match (&*self.stream).read(buffer) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(why) if why.kind() == ErrorKind::Interrupted => {}
                Err(why) => return why.kind() != ErrorKind::WouldBlock,
            }
        }
    }
}

impl Drop for Conn {
    fn drop(&mut self) {
        // Closing is not enough: a `Watch` may still hold the socket.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// The awaited events of one connection.
pub(super) struct Watch {
    stream: Arc<TcpStream>,
    flags: PollFlags,
}

impl Watch {
    pub(super) fn poll_fd(&self) -> PollFd<'_> {
        let fd: BorrowedFd<'_> = self.stream.as_fd();
        PollFd::from_borrowed_fd(fd, self.flags)
    }
}

/// Begins to connect to an address, from the one at which this node itself is called: a host may have several networks.
pub(super) fn call(address: SocketAddr, mut from: SocketAddr) -> io::Result<TcpStream> {
    let family = if address.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC, None)?;
    if !from.ip().is_unspecified() && from.is_ipv6() == address.is_ipv6() {
        from.set_port(0);
        bind(&socket, &from)?;
    }
    match connect(&socket, &address) {
        // After a signal it keeps connecting, too.
        Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => {}
        Err(errno) => return Err(errno.into()),
    }
    let stream = TcpStream::from(socket);
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Makes a connection ready that was accepted.
pub(super) fn accepted(stream: TcpStream) -> io::Result<TcpStream> {
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

fn broken(why: &io::Error) -> Broken {
    match why.kind() {
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => Broken::HungUp,
        _ => Broken::System(why.to_string()),
    }
}
