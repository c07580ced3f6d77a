//! The control plane between hosts: membership of the session, and the messages of the fabric and of the layers above,
//! over TCP.
//!
//! Each pair of nodes has one connection in all their lives. The node of the higher place calls the other at the
//! address of its place until a node answers; so two calls cannot cross. A broken connection is not restored: messages
//! in flight would be missing, and the layers above depend on order. They decide whether that incarnation is dead; a
//! restarted node has another number. [`Control::serve`] does all the work, on one thread, by readiness.
//!
//! - `wire`, `refusal`, `codec`: the messages, byte by byte. `secret`: proofs and tags. `queues`: frames in pieces, and
//!   waiting output.
//! - `protocol`: one connection as a state machine without sockets and clock. `conn`: its socket.
//! - `options`, `event`: the input and the output.
//!
//! # Time
//!
//! Nothing waits for ever ([`Limits`]). A call without an answer is given up, and so are a caller that does not prove
//! its identity and a frame that begins and does not end. Nodes send beats while they have no message, and a node that
//! is silent for longer is *suspected* until it sends again. Time in which this node did not poll does not count.
//!
//! # The secret's protection, and its limits
//!
//! With a shared [`Secret`], no stranger can enter a session, impersonate a node, or change, drop, repeat or add a
//! frame, on any connection: this is detected, and ends the connection. The secret does not protect
//!
//! - **the RDMA traffic**, which no NIC encrypts or authenticates: an attacker that can send packets on that network
//!   can try queue-pair numbers and keys, and an observer reads everything;
//! - **the traffic of UCX**, likewise: an attacker that can connect to its ports can send it any bytes;
//! - **these messages from being read**: names, places, queue-pair numbers, keys of memory and all messages are in the
//!   clear;
//! - **availability**: an attacker who can cut or reset a connection can do so here. One who can connect can hold
//!   up to [`STRANGERS_MAX`] unproven connections for a few seconds each. A refusal is not authenticated: it is for a
//!   person to read, and no decision depends on it;
//! - **a secret that can be guessed**, if an attacker answers in a node's place, or observes the network, and tries
//!   guesses offline;
//! - **nodes from each other**: all that know the secret are one party. There is no forward secrecy, as only the secret
//!   itself is secret.
//!
//! So it keeps out strangers, and nodes of other sessions by mistake. Use a network for data that only the session's
//! hosts can reach. Without a secret on either side, every process that can connect can be a node; the log reports
//! this.

mod codec;
mod conn;
mod event;
mod options;
mod protocol;
mod queues;
mod refusal;
mod secret;
mod wire;

#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};

pub(crate) use self::event::{Event, Refused};
pub use self::options::Limits;
pub(crate) use self::options::Options;
pub(crate) use self::protocol::{Ending, SendError};
pub(crate) use self::refusal::Refusal;
pub use self::secret::{Secret, SecretTooShort};
pub(crate) use self::wire::Hello;

use self::conn::{Conn, READ_BYTES, Watch};
use self::event::report;
use self::protocol::{Happening, Identity, Protocol, is_life_of};
use self::secret::Root;
use crate::error::{Error, ErrorKind, Result};
use crate::local::Instant;
use crate::ptr::NodeId;
use crate::sys::socket::{Waker, poll_until_ready};

/// The most connections with unproven callers; one more replaces the oldest.
pub(super) const STRANGERS_MAX: usize = 256;

/// A service thread that has other work serves again after this time. Beats are 10 times as far apart, and more.
const SERVE_AFTER: Duration = Duration::from_millis(5);
/// The delay before a failed call is repeated, doubled each time up to [`RECALL_MAX`].
const RECALL_MIN: Duration = Duration::from_millis(20);
const RECALL_MAX: Duration = Duration::from_secs(1);
/// The pause in accepting connections when the system has no descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);
/// The longest time that a leaving node waits for the others to receive its goodbye.
const GOODBYE_MAX: Duration = Duration::from_millis(500);

/// One node's side of the control plane, for a whole session.
pub(super) struct Control {
    me: Arc<Identity>,
    address: SocketAddr,
    waker: Waker,
    /// The addresses of all places, once they are known.
    addresses: OnceLock<Vec<SocketAddr>>,
    places: Vec<Mutex<Place>>,
    /// Used by the service thread only.
    service: Mutex<Service>,
}

/// The state of one place.
struct Place {
    /// The first of its incarnations that may be admitted.
    next: usize,
    /// The connected node.
    link: Option<(NodeId, Conn)>,
}

struct Service {
    /// None once this node has left.
    listener: Option<TcpListener>,
    /// The system has no room for connections before this time.
    accept_after: Instant,
    /// Callers that have not proved their identity, the oldest first.
    strangers: Vec<Conn>,
    /// The places that this node calls.
    calls: Vec<Call>,
    /// The time of its last poll.
    looked: Instant,
    /// The reported refusals: the place, the refusing side, and the reason.
    refused: HashSet<(Option<u16>, bool, u8)>,
    buffer: Vec<u8>,
}

/// A place that this node calls while no node of it is connected.
struct Call {
    place: u16,
    conn: Option<Conn>,
    /// The earliest time of the next call.
    next: Instant,
    pause: Duration,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Control {
    /// Listens. No place is called before [`Control::meet`], but every caller is answered.
    ///
    /// # Errors
    /// An invalid name or number, or an address at which this node cannot listen.
    pub(super) fn open(options: &Options) -> Result<Control> {
        let Options { session, layout, node, places, incarnation, listen, secret, limits } = options;
        let (node, places) = (*node, *places);
        let fail = |why: String| -> Error { ErrorKind::Session { session: session.clone(), why }.into() };
        if !codec::is_name(session) || !codec::is_name(layout) {
            let bytes = codec::NAME_BYTES_MAX;
            return Err(fail(format!(
                "its name, or that of the layout, is not printable or longer than {bytes} bytes"
            )));
        }
        if places == 0 || !is_life_of(node, node.0 % places, places) {
            return Err(fail(format!("{node} is no node of a session of {places} places")));
        }
        if secret.is_none() && places > 1 {
            tracing::warn!(
                "session `{session}` has no shared secret: whoever can connect to {listen} can be a node of it"
            );
        }
        let listening = TcpListener::bind(listen).and_then(|listener| {
            listener.set_nonblocking(true)?;
            Ok((listener.local_addr()?, listener))
        });
        let (address, listener) = listening.map_err(|why| {
            fail(format!("cannot listen at {listen}: {why}. Is it an address of this host, and the port free?"))
        })?;
        let me = Identity {
            layout: layout.clone(),
            session: session.clone(),
            node,
            place: node.0 % places,
            places,
            incarnation: *incarnation,
            root: secret.as_ref().map_or_else(Root::of_nothing, Secret::root),
            limits: *limits,
        };
        let call = |place| Call { place, conn: None, next: Instant::default(), pause: RECALL_MIN };
        let service = Service {
            listener: Some(listener),
            accept_after: Instant::default(),
            strangers: Vec::new(),
            calls: (0..me.place).map(call).collect(),
            looked: Instant::monotonic(),
            refused: HashSet::new(),
            buffer: vec![0; READ_BYTES],
        };
        Ok(Control {
            me: Arc::new(me),
            address,
            waker: Waker::new().map_err(|why| fail(why.to_string()))?,
            addresses: OnceLock::new(),
            places: (0..places).map(|place| Mutex::new(Place { next: place.into(), link: None })).collect(),
            service: Mutex::new(service),
        })
    }

    /// The address at which this node listens.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets the addresses of the others, by their places: from now on this node calls those of lower places. The
    /// addresses cannot change later.
    ///
    /// # Errors
    /// Their number differs from that of the places.
    pub(super) fn meet(&self, addresses: &[SocketAddr]) -> Result<()> {
        if addresses.len() != self.places.len() {
            let why = format!("{} addresses for {} places: give one for each", addresses.len(), self.places.len());
            return Err(ErrorKind::Session { session: self.me.session.clone(), why }.into());
        }
        let _ = self.addresses.set(addresses.to_vec()); // a second list changes nothing
        self.wake();
        Ok(())
    }

    /// Ends the current wait in `serve`.
    pub(super) fn wake(&self) {
        self.waker.wake();
    }

    /// Sends bytes of the layers above.
    ///
    /// # Errors
    /// [`SendError`].
    pub(super) fn send(&self, to: NodeId, message: &[u8]) -> Result<(), SendError> {
        self.send_by(to, |protocol| protocol.send_message(message))
    }

    /// Sends bytes of the fabric.
    ///
    /// # Errors
    /// [`SendError`].
    pub(super) fn send_payload(&self, to: NodeId, payload: &[u8]) -> Result<(), SendError> {
        self.send_by(to, |protocol| protocol.send_payload(payload))
    }

    fn send_by(&self, to: NodeId, send: impl FnOnce(&mut Protocol) -> Result<(), SendError>) -> Result<(), SendError> {
        let mut place = lock(&self.places[to.index() % self.places.len()]);
        let Some((_, conn)) = place.link.as_mut().filter(|(node, _)| *node == to) else { return Err(SendError::NotUp) };
        send(&mut conn.protocol)?;
        // The service thread finds a connection that has ended, and reads the peer's last words first.
        let _ = conn.flush();
        if !conn.protocol.outgoing.is_empty() {
            drop(place);
            self.wake(); // it waits for room
        }
        Ok(())
    }

    /// Ends the connection to a node, without a goodbye and without an event. That incarnation is never admitted
    /// again.
    pub(super) fn hang_up(&self, node: NodeId) {
        let mut place = lock(&self.places[node.index() % self.places.len()]);
        place.next = place.next.max(node.index() + self.places.len());
        place.link.take_if(|(linked, _)| *linked == node);
    }

    /// Leaves gracefully: the others receive all messages and the goodbye, if they listen. The call waits for that,
    /// but not for long. The service thread calls it as its last act.
    pub(super) fn goodbye(&self) {
        let mut leaving = self.go();
        for conn in &mut leaving {
            conn.protocol.goodbye();
        }
        let deadline = Instant::monotonic() + GOODBYE_MAX;
        let mut buffer = vec![0; READ_BYTES];
        loop {
            // A socket that is closed before it was read to the end resets the connection, and the goodbye may be
            // lost. So the other side closes first.
            leaving.retain_mut(|conn| {
                let is_sent = conn.flush().is_ok();
                if conn.protocol.outgoing.is_empty() {
                    conn.finish();
                }
                is_sent && !conn.is_drained(&mut buffer)
            });
            let left = deadline - Instant::monotonic();
            if leaving.is_empty() || left.is_zero() {
                return;
            }
            self.wait_for(&leaving.iter().map(Conn::watch).collect::<Vec<_>>(), None, left);
        }
    }

    /// Exits without a goodbye. The service thread calls it as its last act.
    pub(super) fn leave_uncleanly(&self) {
        drop(self.go());
    }

    /// Disconnects all nodes, and stops calling and answering. Returns the connections that were up.
    fn go(&self) -> Vec<Conn> {
        let mut service = lock(&self.service);
        service.listener = None;
        service.strangers.clear();
        service.calls.clear();
        self.places.iter().filter_map(|place| lock(place).link.take()).map(|(_, conn)| conn).collect()
    }

    /// Sends, receives, calls and answers, waits for an event for at most `timeout`, and passes events on. The service
    /// thread calls it in a loop.
    pub(super) fn serve(&self, timeout: Duration, event: &mut dyn FnMut(Event)) {
        let mut service = lock(&self.service);
        let deadline = Instant::monotonic() + timeout;
        let mut is_woken = false;
        loop {
            let is_quiet = self.look(&mut service, event);
            let now = Instant::monotonic();
            if !is_quiet || is_woken || now >= deadline {
                return;
            }
            let (watched, until) = self.watched(&service, now);
            let listener = service.listener.as_ref().filter(|_| now >= service.accept_after);
            let asked = deadline.min(until) - now;
            is_woken = self.wait_for(&watched, listener, asked);
            // If the wait took longer than asked for, this node was stopped for the rest.
            service.looked = Instant::monotonic().min(now + asked);
        }
    }

    /// Whether it has not served for so long that the peers should get a sign of life. For the service thread.
    pub(super) fn is_due(&self) -> bool {
        Instant::monotonic().since(lock(&self.service).looked) >= SERVE_AFTER
    }

    /// Polls everything once. Returns whether nothing happened.
    fn look(&self, service: &mut Service, event: &mut dyn FnMut(Event)) -> bool {
        let now = Instant::monotonic();
        self.forgive(service, now.since(service.looked).saturating_sub(self.me.limits.beat));
        service.looked = now;
        let mut is_quiet = true;
        let mut event = |what| {
            is_quiet = false;
            event(what);
        };
        self.accept(service, now);
        self.call(service, now);
        self.drive_links(service, now, &mut event);
        self.drive_strangers(service, now, &mut event);
        self.drive_calls(service, now, &mut event);
        is_quiet
    }

    /// This node did not poll for so long, so it has missed beats.
    fn forgive(&self, service: &mut Service, gap: Duration) {
        if gap.is_zero() {
            return;
        }
        for place in &self.places {
            if let Some((_, conn)) = &mut lock(place).link {
                conn.protocol.forgive(gap);
            }
        }
        let calls = service.calls.iter_mut().filter_map(|call| call.conn.as_mut());
        for conn in service.strangers.iter_mut().chain(calls) {
            conn.protocol.forgive(gap);
        }
    }

    /// The descriptors to wait for, and the time until which to wait.
    fn watched(&self, service: &Service, now: Instant) -> (Vec<Watch>, Instant) {
        let (mut watched, mut until) = (Vec::new(), Instant::NEVER);
        let mut add = |conn: &Conn| {
            until = until.min(conn.protocol.deadline());
            watched.push(conn.watch());
        };
        self.places.iter().for_each(|place| lock(place).link.iter().for_each(|(_, conn)| add(conn)));
        service.strangers.iter().for_each(&mut add);
        service.calls.iter().filter_map(|call| call.conn.as_ref()).for_each(&mut add);
        let is_idle = |call: &&Call| call.conn.is_none() && lock(&self.places[usize::from(call.place)]).link.is_none();
        if self.addresses.get().is_some() {
            until = service.calls.iter().filter(is_idle).map(|call| call.next).fold(until, Instant::min);
        }
        if service.listener.is_some() && now < service.accept_after {
            until = until.min(service.accept_after);
        }
        (watched, until)
    }

    /// Waits until there is work. Returns whether it was woken.
    fn wait_for(&self, watched: &[Watch], listener: Option<&TcpListener>, timeout: Duration) -> bool {
        let mut fds: Vec<PollFd<'_>> = watched.iter().map(Watch::poll_fd).collect();
        fds.extend(listener.map(|listener| PollFd::new(listener, PollFlags::IN)));
        fds.push(PollFd::new(&self.waker, PollFlags::IN));
        if poll_until_ready(&mut fds, timeout).is_err() {
            std::thread::sleep(timeout.min(RECALL_MIN)); // the system has no memory for the list
        }
        self.waker.drain()
    }

    fn accept(&self, service: &mut Service, now: Instant) {
        let Some(listener) = service.listener.as_ref().filter(|_| now >= service.accept_after) else { return };
        for _ in 0..STRANGERS_MAX {
            match listener.accept() {
                Ok((stream, address)) => {
                    let Ok(stream) = conn::accepted(stream) else { continue };
                    if service.strangers.len() >= STRANGERS_MAX {
                        service.strangers.remove(0);
                    }
                    let protocol = Protocol::listener(Arc::clone(&self.me), rand::random(), now);
                    service.strangers.push(Conn::new(stream, address, protocol));
                }
                Err(why) if why.kind() == io::ErrorKind::WouldBlock => return,
                Err(why) if is_of_the_caller(&why) => {}
                Err(why) => {
                    tracing::warn!("nobody can connect to {}: {why}", self.address);
                    service.accept_after = now + ACCEPT_PAUSE;
                    return;
                }
            }
        }
    }

    fn call(&self, service: &mut Service, now: Instant) {
        let Some(addresses) = self.addresses.get() else { return };
        for call in service.calls.iter_mut().filter(|call| call.conn.is_none() && now >= call.next) {
            if lock(&self.places[usize::from(call.place)]).link.is_some() {
                continue;
            }
            let address = addresses[usize::from(call.place)];
            match conn::call(address, self.address) {
                Ok(stream) => {
                    let protocol = Protocol::caller(Arc::clone(&self.me), call.place, rand::random(), now);
                    call.conn = Some(Conn::new(stream, address, protocol));
                }
                Err(why) => {
                    tracing::debug!("place {} cannot be called at {address}: {why}", call.place);
                    call.later(now);
                }
            }
        }
    }

    fn drive_links(&self, service: &mut Service, now: Instant, event: &mut dyn FnMut(Event)) {
        let mut out = Vec::new();
        for place in &self.places {
            let mut guard = lock(place);
            let Some((node, conn)) = &mut guard.link else { continue };
            let node = *node;
            conn.drive(now, &mut service.buffer, &|_| Ok(()), &mut out);
            if conn.protocol.is_over() {
                guard.link = None;
            }
            drop(guard); // the event's handler may send
            out.drain(..).for_each(|what| report(node, what, event));
        }
    }

    fn drive_strangers(&self, service: &mut Service, now: Instant, event: &mut dyn FnMut(Event)) {
        for stranger in std::mem::take(&mut service.strangers) {
            if let Some(stranger) = self.drive_handshake(stranger, service, now, event) {
                service.strangers.push(stranger);
            }
        }
    }

    fn drive_calls(&self, service: &mut Service, now: Instant, event: &mut dyn FnMut(Event)) {
        for mut call in std::mem::take(&mut service.calls) {
            if let Some(conn) = call.conn.take() {
                call.conn = self.drive_handshake(conn, service, now, event);
                match &call.conn {
                    Some(_) => {}
                    None if lock(&self.places[usize::from(call.place)]).link.is_some() => call.pause = RECALL_MIN,
                    None => call.later(now),
                }
            }
            service.calls.push(call);
        }
    }

    /// Continues a connection that is not up. Returns it if it still is not, and may be.
    fn drive_handshake(
        &self,
        mut conn: Conn,
        service: &mut Service,
        now: Instant,
        event: &mut dyn FnMut(Event),
    ) -> Option<Conn> {
        let mut out = Vec::new();
        conn.drive(now, &mut service.buffer, &|hello| self.admit(hello), &mut out);
        let mut out = out.into_iter();
        match out.next() {
            None => return Some(conn),
            Some(Happening::Up(hello)) => {
                let node = hello.node;
                if self.come_up(service, hello, conn, event) {
                    out.for_each(|what| report(node, what, event));
                }
            }
            Some(Happening::Refused { place, by_us, refusal }) => {
                if service.refused.insert((place, by_us, refusal.reason())) {
                    event(Event::Refused(Refused { place, address: conn.address, by_us, refusal }));
                }
            }
            Some(Happening::Failed(why)) => tracing::debug!("no connection with {}: {why}", conn.address),
            Some(_) => {} // these come after it is up
        }
        None
    }

    /// Whether a node with a fitting hello and the secret may come up now.
    fn admit(&self, hello: &Hello) -> Result<(), Refusal> {
        let place = lock(&self.places[usize::from(hello.place)]);
        match &place.link {
            Some((node, _)) => Err(Refusal::Taken { place: hello.place, node: *node }),
            None if hello.node.index() < place.next => {
                Err(Refusal::Stale { node: hello.node, next: NodeId(place.next as u16) })
            }
            None => Ok(()),
        }
    }

    /// Brings up an admitted node. Returns false if its connection was closed meanwhile.
    fn come_up(&self, service: &mut Service, hello: Hello, conn: Conn, event: &mut dyn FnMut(Event)) -> bool {
        let node = hello.node;
        let mut place = lock(&self.places[usize::from(hello.place)]);
        if node.index() < place.next {
            return false; // another thread has just hung up on it
        }
        place.next = node.index() + self.places.len();
        if !conn.protocol.is_over() {
            place.link = Some((node, conn));
        }
        drop(place);
        service.refused.retain(|(place, ..)| *place != Some(hello.place)); // that was another one
        event(Event::Up(node, hello));
        true
    }
}

impl Call {
    /// The connection failed.
    fn later(&mut self, now: Instant) {
        self.next = now + self.pause;
        self.pause = (2 * self.pause).min(RECALL_MAX);
    }
}

/// Whether one connection failed, and the next may be accepted.
fn is_of_the_caller(why: &io::Error) -> bool {
    matches!(why.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::Interrupted)
}
