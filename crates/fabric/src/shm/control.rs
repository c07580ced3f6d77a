//! The control plane: the nodes of the session, their memory, and the messages of the layers above.
//!
//! Every pair of nodes has one connection. The node that has entered the session later makes it. Its first message
//! each way is a greeting that names layout, session and node. A wrong greeting is answered with a refusal and its
//! reason, which both sides log. Then each side sends its permission groups, with their memory as file descriptors.
//!
//! When a later life of a place starts, all earlier lives are over; a node that has not seen one of them end learns it
//! then.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use super::ShmFabric;
use super::groups::OwnGroup;
use super::limits::lock;
use super::node_header::NodeHeader;
use super::options::ShmOptions;
use crate::error::{Error, ErrorKind, Result};
use crate::fabric::{Bell, CONTROL_BYTES_MAX, ControlEvent};
use crate::local::Instant;
use crate::ptr::{GroupKey, NUMBERS_MAX, NodeId};
use crate::sys::liveness;
use crate::sys::session::SessionDir;
use crate::sys::socket::{Conn, Listener, RecvOutcome, SendOutcome, Waker, poll_readable};

/// Messages kept for a peer that does not take them.
const QUEUED_MAX: usize = 4096;
/// A peer that is not there is looked for this often.
const RETRY: Duration = Duration::from_millis(5);
/// A caller that does not greet within this time is hung up on.
const GREETING_MAX: Duration = Duration::from_secs(5);
/// The callers that have not greeted yet, each with a descriptor.
const STRANGERS_MAX: usize = 256;
/// The longest wait of one `serve`: deaths are noticed at least this often.
const WAIT_MAX: Duration = Duration::from_millis(5);

const GREETING: u8 = b'G';
const REFUSAL: u8 = b'R';
const GROUP: u8 = b'M';
const MESSAGE: u8 = b'U';
/// Wakes the service thread, and says no more.
const NUDGE: u8 = b'N';

pub(super) struct Control {
    directory: SessionDir,
    listener: Listener,
    waker: Waker,
    greeting: Vec<u8>,
    layout: String,
    /// By the numbers of nodes: of those that were heard of.
    links: Vec<OnceLock<Box<Mutex<Link>>>>,
    /// Touched by the service thread only.
    service: Mutex<Service>,
}

/// The connection to one peer.
#[derive(Default)]
struct Link {
    /// Shared with a wait for messages, which does not lock the link.
    conn: Option<Arc<Conn>>,
    queue: VecDeque<Vec<u8>>,
    /// Own groups sent so far.
    groups_sent: usize,
    /// The peer's greeting was accepted.
    up: bool,
    down: bool,
    refused: bool,
}

struct Service {
    /// Nodes that were in the session before this one, and have not answered yet: they are called.
    to_call: Vec<u32>,
    /// Callers that have not greeted.
    strangers: Vec<(Conn, Instant)>,
    last_try: Instant,
    bytes: Vec<u8>,
    fds: Vec<OwnedFd>,
}

impl Control {
    pub(super) fn open(
        directory: SessionDir,
        socket: &Path,
        options: &ShmOptions,
        me: NodeId,
        to_call: Vec<u32>,
    ) -> Result<Control, String> {
        let greeting = Greeting {
            layout: options.layout.clone(),
            session: options.session.clone(),
            node: me,
            places: options.places as u32,
        };
        Ok(Control {
            directory,
            listener: Listener::bind(socket).map_err(|why| why.to_string())?,
            waker: Waker::new().map_err(|why| why.to_string())?,
            greeting: greeting.encode(),
            layout: options.layout.clone(),
            links: std::iter::repeat_with(OnceLock::new).take(NUMBERS_MAX).collect(),
            service: Mutex::new(Service {
                to_call,
                strangers: Vec::new(),
                last_try: Instant::default(),
                bytes: Vec::new(),
                fds: Vec::new(),
            }),
        })
    }

    pub(super) fn wake(&self) {
        self.waker.wake();
    }

    /// Sends a new group of this node to all connected peers; the others get it when they connect.
    pub(super) fn announce_groups(&self, fabric: &ShmFabric, groups: &[OwnGroup]) {
        for (_, link) in self.known_links(fabric) {
            let mut link = lock(link);
            if link.up {
                send_groups(&mut link, groups);
            }
        }
    }

    fn known_links(&self, fabric: &ShmFabric) -> impl Iterator<Item = (NodeId, &Mutex<Link>)> {
        let known = &self.links[..fabric.memory.known_peers().len()];
        known.iter().enumerate().filter_map(|(node, link)| Some((NodeId(node as u16), link.get()?.as_ref())))
    }

    fn link(&self, node: NodeId) -> &Mutex<Link> {
        self.links[node.index()].get_or_init(Box::default)
    }

    pub(super) fn send(&self, fabric: &ShmFabric, to: NodeId, message: &[u8]) -> Result<()> {
        let refuse = |why: String| Err(ErrorKind::Control { node: to, why }.into());
        if message.len() > CONTROL_BYTES_MAX {
            return refuse(format!("{} bytes are more than {CONTROL_BYTES_MAX}", message.len()));
        }
        let mut link = lock(self.link(to));
        if !link.up || link.down {
            return Err(fabric.explain_unreachable(to));
        }
        if link.queue.len() >= QUEUED_MAX {
            return refuse(format!("it has not taken {QUEUED_MAX} messages: is it stopped?"));
        }
        let mut framed = Vec::with_capacity(message.len() + 1);
        framed.push(MESSAGE);
        framed.extend_from_slice(message);
        link.queue.push_back(framed);
        flush(&mut link);
        Ok(())
    }

    /// Wakes the service thread of a peer, which may sleep in `wait`.
    pub(super) fn nudge(&self, to: NodeId) {
        let mut link = lock(self.link(to));
        flush(&mut link);
        if let Some(conn) = link.conn.as_ref().filter(|_| link.up) {
            // It passes messages that wait here. If it does not fit, the peer has others to wake for.
            let _ = conn.send(&[NUDGE], &[]);
        }
    }

    pub(super) fn goodbye(&self) {
        for link in self.links.iter().filter_map(OnceLock::get) {
            let mut link = lock(link);
            flush(&mut link);
            link.conn = None;
            link.down = true;
        }
    }

    pub(super) fn serve(&self, fabric: &ShmFabric, timeout: Duration, event: &mut dyn FnMut(ControlEvent)) {
        let mut service = lock(&self.service);
        let service = &mut *service;
        let mut quiet = true;
        let mut event = |what| {
            quiet = false;
            event(what);
        };
        fabric.answer_fences();
        self.send_missing_groups(fabric);
        self.receive(fabric, service, &mut event);
        self.accept(fabric, service, &mut event);
        self.call(service);
        self.look_for_deaths(fabric, &mut event);
        if quiet && !timeout.is_zero() {
            // A nudge for a later request ends the wait.
            fabric.answer_fences();
            self.wait(fabric, service, timeout.min(WAIT_MAX));
            self.waker.drain();
        }
    }

    /// Sends the groups that a full socket did not take at first.
    fn send_missing_groups(&self, fabric: &ShmFabric) {
        let groups = lock(&fabric.groups);
        for (_, link) in self.known_links(fabric) {
            let mut link = lock(link);
            if link.up && !link.down {
                send_groups(&mut link, &groups);
            }
        }
    }

    /// Waits until something can be received.
    fn wait(&self, fabric: &ShmFabric, service: &Service, timeout: Duration) {
        let peers: Vec<Arc<Conn>> = self.known_links(fabric).filter_map(|(_, link)| lock(link).conn.clone()).collect();
        let strangers = service.strangers.iter().map(|(conn, _)| conn.as_fd());
        let mut fds: Vec<BorrowedFd<'_>> = peers.iter().map(|conn| conn.as_fd()).chain(strangers).collect();
        if service.strangers.len() < STRANGERS_MAX {
            fds.push(self.listener.as_fd());
        }
        fds.push(self.waker.as_fd());
        if poll_readable(&fds, timeout).is_err() {
            std::thread::sleep(timeout);
        }
    }

    fn receive(&self, fabric: &ShmFabric, service: &mut Service, event: &mut dyn FnMut(ControlEvent)) {
        for (node, link) in self.known_links(fabric) {
            loop {
                let mut guard = lock(link);
                flush(&mut guard);
                let Some(conn) = &guard.conn else { break };
                match conn.recv(&mut service.bytes, &mut service.fds) {
                    RecvOutcome::Empty => break,
                    RecvOutcome::Gone => {
                        // Its card records whether it died or left.
                        guard.conn = None;
                        break;
                    }
                    RecvOutcome::Message => {}
                }
                drop(guard);
                self.message(fabric, node, service, event);
            }
        }
    }

    fn message(&self, fabric: &ShmFabric, from: NodeId, service: &mut Service, event: &mut dyn FnMut(ControlEvent)) {
        let Some((kind, body)) = service.bytes.split_first() else { return };
        match *kind {
            GREETING => {
                // The answer to our greeting.
                match Greeting::decode(body).ok_or_else(|| self.misfit(from, "unreadable")).and_then(|greeting| {
                    self.check(fabric, &greeting)?;
                    Ok(greeting)
                }) {
                    Ok(greeting) if greeting.node == from => self.come_up(fabric, &greeting, None, event),
                    Ok(greeting) => self.refuse(from, self.misfit(greeting.node, "another node"), event),
                    Err(error) => self.refuse(from, error, event),
                }
            }
            REFUSAL => {
                let theirs = String::from_utf8_lossy(body).into_owned();
                let error = match theirs.strip_prefix("layout ") {
                    Some(theirs) => self.misfit(from, theirs),
                    None => ErrorKind::Control { node: from, why: theirs }.into(),
                };
                self.refuse(from, error, event);
            }
            GROUP => {
                let fields = (body.len() == 10).then(|| (body[0], body[1], &body[2..]));
                let Some((key, bell, reserve)) = fields else { return };
                let reserve = u64::from_le_bytes(reserve.try_into().expect("eight bytes")) as usize;
                let bell = match bell {
                    1 => Bell::Waiters,
                    2 => Bell::Service,
                    _ => Bell::Silent,
                };
                // The memory, part by part, and its generations.
                let mut parts = std::mem::take(&mut service.fds);
                let Some(generations) = parts.pop() else { return };
                if lock(self.link(from)).down {
                    return; // its windows are closed for good
                }
                let attached = fabric.attach_peer_group(from, GroupKey(key), bell, reserve, parts, generations);
                if let Err(error) = attached {
                    event(ControlEvent::Refused(from, error));
                } else if key == GroupKey::SERVICE.0 {
                    // The three groups that every node has are there.
                    event(ControlEvent::Up(from));
                }
            }
            MESSAGE => event(ControlEvent::Message(from, body.to_vec())),
            NUDGE => fabric.answer_fences(),
            _ => {}
        }
        service.fds.clear();
    }

    fn misfit(&self, node: NodeId, theirs: &str) -> Error {
        ErrorKind::VersionMismatch { node, ours: self.layout.clone(), theirs: theirs.into() }.into()
    }

    fn refuse(&self, node: NodeId, error: Error, event: &mut dyn FnMut(ControlEvent)) {
        let mut link = lock(self.link(node));
        link.conn = None;
        // Reported once. A right build that takes its place is another node.
        if !std::mem::replace(&mut link.refused, true) {
            drop(link);
            event(ControlEvent::Refused(node, error));
        }
    }

    fn check(&self, fabric: &ShmFabric, greeting: &Greeting) -> Result<()> {
        if greeting.layout != self.layout {
            return Err(self.misfit(greeting.node, &greeting.layout));
        }
        let why = if greeting.session != fabric.session {
            format!("it belongs to session `{}`", greeting.session)
        } else if greeting.places as usize != fabric.places {
            format!("it says the session has {} nodes, here it has {}", greeting.places, fabric.places)
        } else if greeting.node.index() >= NUMBERS_MAX || greeting.node == fabric.me {
            format!("it calls itself {}", greeting.node)
        } else {
            return Ok(());
        };
        Err(ErrorKind::Control { node: greeting.node, why }.into())
    }

    /// Calls those that were in the session before: one that was starting then may take a moment to listen.
    fn call(&self, service: &mut Service) {
        let now = Instant::monotonic();
        if now.since(service.last_try) < RETRY {
            return;
        }
        service.last_try = now;
        service.to_call.retain(|node| {
            let mut link = lock(self.link(NodeId(*node as u16)));
            if link.up || link.down || link.refused {
                return false;
            }
            if link.conn.is_some() {
                return true;
            }
            match Conn::connect(&self.directory.socket_path(*node)) {
                Ok(Some(conn)) if conn.send(&self.greeting, &[]) == SendOutcome::Sent => {
                    link.conn = Some(Arc::new(conn));
                }
                // It may have died before it was there at all.
                _ => return !self.directory.is_gone(*node, NodeHeader::is_alive),
            }
            true
        });
    }

    /// Accepts the calls of later nodes.
    fn accept(&self, fabric: &ShmFabric, service: &mut Service, event: &mut dyn FnMut(ControlEvent)) {
        let now = Instant::monotonic();
        // More than these wait until one of them has sent its greeting, or has not in time.
        while service.strangers.len() < STRANGERS_MAX
            && let Ok(Some(conn)) = self.listener.accept()
        {
            service.strangers.push((conn, now));
        }
        for (conn, since) in std::mem::take(&mut service.strangers) {
            match conn.recv(&mut service.bytes, &mut service.fds) {
                RecvOutcome::Empty if now.since(since) < GREETING_MAX => service.strangers.push((conn, since)),
                RecvOutcome::Empty | RecvOutcome::Gone => {}
                RecvOutcome::Message => {
                    let body = service.bytes.strip_prefix(&[GREETING]);
                    let Some(greeting) = body.and_then(Greeting::decode) else { continue };
                    match self.check(fabric, &greeting) {
                        Ok(()) => self.come_up(fabric, &greeting, Some(conn), event),
                        Err(error) => {
                            let why = match error.kind() {
                                ErrorKind::VersionMismatch { ours, .. } => format!("layout {ours}"),
                                _ => error.to_string(),
                            };
                            let _ = conn.send(&[&[REFUSAL], why.as_bytes()].concat(), &[]);
                            if greeting.node.index() < self.links.len() {
                                let mut link = lock(self.link(greeting.node));
                                let first = !std::mem::replace(&mut link.refused, true);
                                drop(link);
                                if first {
                                    event(ControlEvent::Refused(greeting.node, error));
                                }
                            }
                        }
                    }
                }
            }
        }
    }

    /// A peer's greeting was right. `conn` is its call; none if it answered ours.
    fn come_up(
        &self,
        fabric: &ShmFabric,
        greeting: &Greeting,
        conn: Option<Conn>,
        event: &mut dyn FnMut(ControlEvent),
    ) {
        let node = greeting.node;
        let slot = &fabric.memory.peers[node.index()];
        if lock(self.link(node)).up || matches!(slot.get(), Some(None)) {
            // Each life of a place has its own number, so the greeting is wrong.
            let error: Error = ErrorKind::Control { node, why: "it was here before".into() }.into();
            if let Some(conn) = conn {
                let _ = conn.send(&[&[REFUSAL], error.to_string().as_bytes()].concat(), &[]);
            }
            event(ControlEvent::Refused(node, error));
            return;
        }
        let card = match self.directory.open_peer(u32::from(node.0)) {
            Ok(Some(card)) if card.len() == NodeHeader::file_bytes() => Ok(card),
            Ok(Some(_)) => Err("its card has another length".to_string()),
            Ok(None) => Err("its card is gone".to_string()),
            Err(why) => Err(why.to_string()),
        };
        let card = match card {
            Ok(card) => card,
            Err(why) => return event(ControlEvent::Refused(node, ErrorKind::Control { node, why }.into())),
        };
        if let Err(why) = fabric.memory.admit(node) {
            lock(self.link(node)).conn = None; // it is called again
            return event(ControlEvent::Refused(node, why));
        }
        self.bury_earlier_lives(fabric, node, event);
        let is_here = NodeHeader::of(&card).process.load(Ordering::Relaxed) == fabric.process;
        let process = conn.as_ref().map_or_else(|| lock(self.link(node)).conn.as_ref()?.process(), Conn::process);
        if let Some(process) = process.filter(|_| !is_here) {
            lock(&fabric.memory.processes).insert(node, process);
        }
        // It may be known already: a joining node maps the cards of all live nodes.
        let _ = slot.set(Some(card));
        fabric.memory.know(node);
        // The groups are locked first, as in `new_group`: a group is either sent here or announced by it.
        let groups = lock(&fabric.groups);
        let mut link = lock(self.link(node));
        if let Some(conn) = conn {
            let _ = conn.send(&self.greeting, &[]);
            link.conn = Some(Arc::new(conn));
        }
        link.up = true;
        link.refused = false;
        send_groups(&mut link, &groups);
    }

    /// A node begins its life only after the one before it at its place has ended: that one is reported first.
    fn bury_earlier_lives(&self, fabric: &ShmFabric, node: NodeId, event: &mut dyn FnMut(ControlEvent)) {
        let earlier = (node.index() % fabric.places..node.index()).step_by(fabric.places);
        for index in earlier.filter(|index| *index != fabric.me.index()) {
            fabric.memory.know(NodeId(index as u16));
            let _ = fabric.memory.peers[index].set(None); // unless it was seen
        }
        self.look_for_deaths(fabric, event);
    }

    fn look_for_deaths(&self, fabric: &ShmFabric, event: &mut dyn FnMut(ControlEvent)) {
        for (index, peer) in fabric.memory.known_peers().iter().enumerate() {
            let Some(peer) = peer.get() else { continue };
            let life = peer.as_ref().map(|card| NodeHeader::of(card).life.word().load(Ordering::Acquire));
            if life.is_some_and(liveness::is_alive) {
                continue;
            }
            let mut link = lock(self.link(NodeId(index as u16)));
            if !std::mem::replace(&mut link.down, true) {
                link.queue.clear();
                drop(link);
                fabric.close_peer(NodeId(index as u16));
                event(ControlEvent::Down(NodeId(index as u16)));
            }
        }
        fabric.vacate_gone();
    }
}

impl ShmFabric {
    fn explain_unreachable(&self, node: NodeId) -> Error {
        use crate::Transport;
        self.explain(crate::Code::Unreachable, crate::RemotePtr::new(node, GroupKey::SIGNAL, 0), 0)
    }
}

/// Sends the queued messages, as far as the peer takes them.
fn flush(link: &mut Link) {
    let Some(conn) = &link.conn else { return };
    while let Some(first) = link.queue.front() {
        match conn.send(first, &[]) {
            SendOutcome::Sent => drop(link.queue.pop_front()),
            SendOutcome::Full => break,
            SendOutcome::Gone => {
                link.queue.clear();
                break;
            }
        }
    }
}

fn send_groups(link: &mut Link, groups: &[OwnGroup]) {
    let Some(conn) = &link.conn else { return };
    while let Some(group) = groups.get(link.groups_sent) {
        let mut message = vec![GROUP, link.groups_sent as u8, group.bell as u8];
        message.extend_from_slice(&(group.arena.reserve() as u64).to_le_bytes());
        // A later `serve` sends the messages that a full socket does not take.
        let fds: Vec<_> = group.arena.fds().chain([group.generations.fd()]).collect();
        if conn.send(&message, &fds) != SendOutcome::Sent {
            break;
        }
        link.groups_sent += 1;
    }
}

/// The first message of a node.
struct Greeting {
    layout: String,
    session: String,
    node: NodeId,
    places: u32,
}

impl Greeting {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![GREETING];
        for text in [&self.layout, &self.session] {
            bytes.push(text.len().min(255) as u8);
            bytes.extend_from_slice(&text.as_bytes()[..text.len().min(255)]);
        }
        bytes.extend_from_slice(&self.node.0.to_le_bytes());
        bytes.extend_from_slice(&self.places.to_le_bytes());
        bytes
    }

    fn decode(mut body: &[u8]) -> Option<Greeting> {
        let mut take = |len: usize| {
            let (head, tail) = body.split_at_checked(len)?;
            body = tail;
            Some(head)
        };
        let mut text = || {
            let len = usize::from(*take(1)?.first()?);
            String::from_utf8(take(len)?.to_vec()).ok()
        };
        let (layout, session) = (text()?, text()?);
        Some(Greeting {
            layout,
            session,
            node: NodeId(u16::from_le_bytes(take(2)?.try_into().ok()?)),
            places: u32::from_le_bytes(take(4)?.try_into().ok()?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greetings_survive_the_wire_and_garbage_is_refused() {
        let greeting = Greeting { layout: "a-1".into(), session: "s".into(), node: NodeId(3), places: 5 };
        let bytes = greeting.encode();
        let back = Greeting::decode(&bytes[1..]).unwrap();
        assert_eq!((back.layout, back.session, back.node, back.places), ("a-1".into(), "s".into(), NodeId(3), 5));
        for cut in 1..bytes.len() - 1 {
            assert!(Greeting::decode(&bytes[1..cut]).is_none(), "cut at {cut}");
        }
        assert!(Greeting::decode(&[255; 40]).is_none());
    }
}
