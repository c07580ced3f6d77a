//! Metrics over HTTP, for Prometheus: one thread, one request at a time. It reads a few kilobytes of each request at
//! most, and gives each connection a few seconds, so a slow or broken client costs a node no more than that.

use core::ops::DerefMut;
use std::io::{self, ErrorKind as IoErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Weak};
use std::time::Duration;

use farfield_fabric::{self as fabric, Thread};
use rustix::event::{PollFd, PollFlags, poll};

use super::Node;
use crate::error::{Error, ErrorKind, Result};

/// The longest request, with its headers.
const REQUEST_BYTES_MAX: usize = 8 << 10;
const HEADERS_MAX: usize = 64;
/// How long a client may take to send its request, and then to take the answer.
const CLIENT_MAX: Duration = Duration::from_secs(2);

const TEXT: &str = "text/plain; charset=utf-8";
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

#[allow(clippy::disallowed_types, reason = "no simulated node serves HTTP, and a simulator must not see this lock")]
type Mutex<T> = std::sync::Mutex<T>;

/// Serves a node's metrics over HTTP, as long as it lives and the node has not left: [`Node::serve_metrics`].
///
/// ```
/// # let node = farfield::Node::builder().start()?;
/// let server = node.serve_metrics("127.0.0.1:0")?;
/// println!("scrape http://{}/metrics", server.address());
/// drop(server); // the port is free again
/// # Ok::<(), farfield::Error>(())
/// ```
#[must_use = "it stops when it is dropped"]
pub struct MetricsServer {
    address: SocketAddr,
    running: Arc<Running>,
}

struct Running {
    /// A byte in it ends the thread.
    stop: UnixStream,
    thread: Mutex<Option<Thread>>,
}

/// The servers of a node, which end before it leaves. None once it leaves.
pub(in crate::node) struct Servers(Mutex<Option<Vec<Weak<Running>>>>);

impl Default for Servers {
    fn default() -> Servers {
        Servers(Mutex::new(Some(Vec::new())))
    }
}

impl Servers {
    fn all(&self) -> impl DerefMut<Target = Option<Vec<Weak<Running>>>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Adds a server, unless the node leaves.
    fn add(&self, server: &Arc<Running>) -> bool {
        let mut all = self.all();
        let Some(servers) = &mut *all else { return false };
        servers.retain(|server| server.strong_count() > 0);
        servers.push(Arc::downgrade(server));
        true
    }

    fn are_over(&self) -> bool {
        self.all().is_none()
    }

    pub(in crate::node) fn stop(&self) {
        let servers = self.all().take().unwrap_or_default();
        servers.iter().filter_map(Weak::upgrade).for_each(|server| server.stop());
    }
}

impl Running {
    fn stop(&self) {
        let thread = self.thread.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
        let Some(thread) = thread else { return };
        let _ = (&self.stop).write(&[1]);
        if let Err(panic) = thread.join() {
            tracing::error!("the thread that serves metrics panicked: {panic}");
        }
    }
}

impl MetricsServer {
    /// The address at which it listens.
    ///
    /// ```
    /// # let node = farfield::Node::builder().start()?;
    /// let server = node.serve_metrics("127.0.0.1:0")?; // any free port
    /// assert_ne!(server.address().port(), 0);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        self.running.stop();
    }
}

impl Node {
    /// Serves [`Node::metrics`] at this address over HTTP: `GET /metrics` answers with
    /// [`Metrics::to_prometheus`](crate::Metrics::to_prometheus). It uses one thread, which ends when the server is
    /// dropped or the node leaves. Needs the feature `prometheus`. There is neither encryption nor a password, so
    /// choose an address that only permitted readers reach.
    ///
    /// ```
    /// use std::io::{Read, Write};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let node = farfield::Node::builder().latencies(true).start()?;
    /// let server = node.serve_metrics("127.0.0.1:0")?;
    /// let mut client = std::net::TcpStream::connect(server.address())?;
    /// client.write_all(b"GET /metrics HTTP/1.1\r\n\r\n")?;
    /// let mut answer = String::new();
    /// client.read_to_string(&mut answer)?;
    /// assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.contains("farfield_memory_bytes"));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Listen`]: the address is in use, or not one of this host's; or no thread can be started. The
    /// fabric's [`PeerLeft`](farfield_fabric::ErrorKind::PeerLeft), with this node: it has left.
    pub fn serve_metrics(&self, address: impl ToSocketAddrs + std::fmt::Debug) -> Result<MetricsServer> {
        let has_left = || Error::from(fabric::Error::from(fabric::ErrorKind::PeerLeft { node: self.id() }));
        if self.shared().servers.are_over() {
            return Err(has_left());
        }
        let refused =
            |why: &io::Error| Error::from(ErrorKind::Listen { address: format!("{address:?}"), why: why.kind() });
        let listener = TcpListener::bind(&address).map_err(|why| refused(&why))?;
        listener.set_nonblocking(true).map_err(|why| refused(&why))?;
        let address = listener.local_addr().map_err(|why| refused(&why))?;
        let (stop, stopped) = UnixStream::pair().map_err(|why| refused(&why))?;
        let node = self.for_service();
        let serve = move || serve(&node, &listener, &stopped);
        let thread = self.shared().fabric.spawn(format!("metrics-{}", self.id().0), Box::new(serve))?;
        let running = Arc::new(Running { stop, thread: Mutex::new(Some(thread)) });
        let server = MetricsServer { address, running };
        // Otherwise it ends here.
        if self.shared().servers.add(&server.running) { Ok(server) } else { Err(has_left()) }
    }
}

/// Answers clients until something arrives from `stopped`.
fn serve(node: &Node, listener: &TcpListener, stopped: &UnixStream) {
    loop {
        let mut events = [PollFd::new(listener, PollFlags::IN), PollFd::new(stopped, PollFlags::IN)];
        match poll(&mut events, None) {
            Err(rustix::io::Errno::INTR) => continue,
            Err(why) => return tracing::error!("metrics are no longer served: {why}"),
            Ok(_) if !events[1].revents().is_empty() => return,
            Ok(_) => {}
        }
        match listener.accept() {
            Ok((client, from)) => {
                if let Err(why) = answer(node, client) {
                    tracing::debug!("metrics were not sent to {from}: {why}");
                }
            }
            Err(why) if matches!(why.kind(), IoErrorKind::WouldBlock | IoErrorKind::Interrupted) => {}
            Err(why) if why.kind() == IoErrorKind::ConnectionAborted => {}
            // Such as too many open files: it may pass.
            Err(why) => {
                tracing::warn!("a client of the metrics cannot be accepted: {why}");
                let pause = rustix::event::Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
                let _ = poll(&mut [PollFd::new(stopped, PollFlags::IN)], Some(&pause));
            }
        }
    }
}

/// Reads one request, and answers it.
fn answer(node: &Node, mut client: TcpStream) -> io::Result<()> {
    client.set_nonblocking(false)?;
    let (status, kind, body, has_body) = match read_request(node, &mut client)? {
        Request::Get => ("200 OK", OPENMETRICS, node.metrics().to_prometheus(), true),
        Request::Head => ("200 OK", OPENMETRICS, node.metrics().to_prometheus(), false),
        Request::Refused(status, why) => (status, TEXT, format!("{why}\n"), true),
        Request::HeadRefused(status, why) => (status, TEXT, format!("{why}\n"), false),
    };
    let allow = if status.starts_with("405") { "Allow: GET, HEAD\r\n" } else { "" };
    let length = body.len();
    let mut bytes = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n{allow}Connection: close\r\n\r\n"
    );
    if has_body {
        bytes += &body;
    }
    let (mut rest, until) = (bytes.as_bytes(), node.now() + CLIENT_MAX);
    while !rest.is_empty() {
        let left = until - node.now();
        if left.is_zero() {
            return Err(IoErrorKind::TimedOut.into());
        }
        client.set_write_timeout(Some(left))?;
        match client.write(rest)? {
            0 => return Err(IoErrorKind::WriteZero.into()),
            sent => rest = &rest[sent..],
        }
    }
    // Unread bytes would make the kernel reset the connection, and the client might lose the answer.
    client.shutdown(std::net::Shutdown::Write)?;
    client.set_read_timeout(Some(Duration::from_millis(50)))?;
    let _ = client.read(&mut [0; 1024]);
    Ok(())
}

enum Request {
    Get,
    Head,
    Refused(&'static str, &'static str),
    HeadRefused(&'static str, &'static str),
}

fn read_request(node: &Node, client: &mut TcpStream) -> io::Result<Request> {
    let (mut bytes, mut len, until) = ([0; REQUEST_BYTES_MAX], 0, node.now() + CLIENT_MAX);
    loop {
        let left = until - node.now();
        if left.is_zero() {
            return Ok(Request::Refused("408 Request Timeout", "the request did not come within 2 seconds"));
        }
        client.set_read_timeout(Some(left))?;
        match client.read(&mut bytes[len..]) {
            Ok(0) => return Err(IoErrorKind::UnexpectedEof.into()),
            Ok(more) => len += more,
            Err(why) if matches!(why.kind(), IoErrorKind::WouldBlock | IoErrorKind::Interrupted) => continue,
            Err(why) => return Err(why),
        }
        match judge(&bytes[..len]) {
            Some(request) => return Ok(request),
            None if len == bytes.len() => return Ok(TOO_LONG),
            None => {}
        }
    }
}

const TOO_LONG: Request = Request::Refused("431 Request Header Fields Too Large", "the request is longer than 8 KiB");

const NOT_FOUND: (&str, &str) = ("404 Not Found", "the metrics are at /metrics");

/// The request in these bytes; none if it is not complete.
fn judge(bytes: &[u8]) -> Option<Request> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(httparse::Status::Partial) => return None,
        Ok(httparse::Status::Complete(_)) => {}
        Err(httparse::Error::TooManyHeaders) => return Some(TOO_LONG),
        Err(_) => return Some(Request::Refused("400 Bad Request", "this is not HTTP")),
    }
    let path = request.path.unwrap_or_default().split('?').next().unwrap_or_default();
    Some(match (request.method.unwrap_or_default(), path) {
        ("GET", "/metrics") => Request::Get,
        ("HEAD", "/metrics") => Request::Head,
        (_, "/metrics") => Request::Refused("405 Method Not Allowed", "use GET"),
        ("HEAD", _) => Request::HeadRefused(NOT_FOUND.0, NOT_FOUND.1),
        _ => Request::Refused(NOT_FOUND.0, NOT_FOUND.1),
    })
}
