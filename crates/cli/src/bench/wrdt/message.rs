//! Replicas that pass messages, as op-based replicated types do (Hamsaz): each process sends each of its updates to all
//! others over TCP, and applies those that it receives. The calls of a synchronisation group go through its leader,
//! which applies them and sends them to all others in one order.
//!
//! A receiver that has to refuse an update holds it back, and all later ones of the same sender, until others have come
//! that it depends on. No message is acknowledged, so a conflicting call ends when its leader has applied and sent it,
//! though no other process may have it: that is less than the other systems guarantee.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use farfield::fabric::Counts;
use farfield::hamband::Update as _;
use farfield::{AtomicVar, BarrierThread, Endpoint, Node, NodeId};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};

use super::load::{Load, MethodOf};
use super::system::Client;
use crate::bench::worker;

/// How long a process waits for others.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a thread sleeps at most: bytes that a full socket has left are then sent.
const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
/// A caller waits while so many bytes are left for one process.
const LEFT_MAX: usize = 1 << 20;
/// Bytes that are read at a time, and applied without a pause.
const READ: usize = 1 << 14;
/// A batch is about a segment.
pub(super) const BATCH: usize = 1400;

#[derive(Serialize, Deserialize)]
enum Message<U> {
    /// A call without conflicts.
    Free(U),
    /// A conflicting call of this process, which its leader has ordered.
    Ordered { caller: u16, number: u64, call: U },
    /// A conflicting call for its leader.
    Request { number: u64, call: U },
    /// The leader does not permit it.
    Refused { number: u64 },
    /// Asks whether all before it is applied.
    Flush,
    /// It is.
    Flushed,
}

/// The way to one other process.
struct Out {
    to: Option<TcpStream>,
    /// The bytes that are still to be sent.
    left: VecDeque<u8>,
    batch: usize,
    messages: u64,
    bytes: u64,
}

impl Out {
    fn send(&mut self, frame: &[u8]) -> io::Result<()> {
        self.messages += 1;
        self.bytes += frame.len() as u64;
        if self.left.is_empty() && self.batch == 0 {
            let sent = self.write(frame)?;
            self.left.extend(&frame[sent..]);
            return Ok(());
        }
        self.left.extend(frame);
        if self.left.len() >= self.batch { self.flush() } else { Ok(()) }
    }

    /// Sends as much as the socket takes.
    fn flush(&mut self) -> io::Result<()> {
        while !self.left.is_empty() {
            let (mut to, front) = (self.to.as_ref(), self.left.as_slices().0);
            let sent = match &mut to {
                Some(to) => to.write(front),
                None => Ok(front.len()),
            };
            match sent {
                Ok(sent) => drop(self.left.drain(..sent)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn write(&mut self, frame: &[u8]) -> io::Result<usize> {
        let Some(mut to) = self.to.as_ref() else { return Ok(frame.len()) };
        match to.write(frame) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
            sent => sent,
        }
    }
}

/// This process's replica.
struct Replica<T: Load> {
    state: T,
    /// By process: messages that cannot be applied yet.
    held: Vec<VecDeque<Message<T::Update>>>,
    /// The last conflicting call of this process that was decided, and whether it was refused.
    decided: (u64, bool),
    /// How many others have applied all that was sent before the last question.
    flushed: usize,
    failed: Option<String>,
}

struct Shared<T: Load> {
    me: usize,
    replica: Mutex<Replica<T>>,
    changed: Condvar,
    outs: Vec<Mutex<Out>>,
}

/// One node's access.
pub(super) struct Messages<T: Load> {
    shared: Arc<Shared<T>>,
    frame: Vec<u8>,
    requests: u64,
}

fn lock<V>(mutex: &Mutex<V>) -> MutexGuard<'_, V> {
    // A thread that has panicked has ended the process.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The rank of the process that orders the calls of a method, if it conflicts.
fn leader_of<T: Load>(method: MethodOf<T>, processes: usize) -> Option<usize> {
    T::coordination().group_of(method).map(|group| group % processes)
}

/// A message with its length.
fn encode<U: Serialize>(message: &Message<U>, frame: &mut Vec<u8>) -> Result<()> {
    frame.clear();
    frame.extend([0; 2]);
    *frame = postcard::to_extend(message, std::mem::take(frame))?;
    let bytes = u16::try_from(frame.len() - 2).context("a message is too long")?;
    frame[..2].copy_from_slice(&bytes.to_le_bytes());
    Ok(())
}

impl<T: Load> Messages<T> {
    /// Connects all nodes. `batch`: bytes that a sender collects before it sends; 0: it sends each message at once.
    pub(super) fn open(
        node: &Node,
        endpoint: &Endpoint,
        phases: &mut BarrierThread,
        nodes: usize,
        batch: usize,
    ) -> Result<Messages<T>> {
        let me = usize::from(node.id().0);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("opening a socket")?;
        let port = |rank: usize| AtomicVar::open(node, &format!("port{rank}"), NodeId(rank as u16));
        let ports = (0..nodes).map(port).collect::<farfield::Result<Vec<_>>>()?;
        endpoint.block_on(ports[me].fetch_add(endpoint, listener.local_addr()?.port().into()))?;
        worker::meet(endpoint, phases)?;
        let mut sockets: Vec<Option<TcpStream>> = (0..nodes).map(|_| None).collect();
        for (rank, port) in ports.iter().enumerate().take(me) {
            let port = endpoint.block_on(port.load(endpoint))? as u16;
            let mut socket = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).context("connecting to a node")?;
            socket.write_all(&(me as u16).to_le_bytes())?;
            sockets[rank] = Some(socket);
        }
        for _ in me + 1..nodes {
            let (mut socket, _) = listener.accept().context("a node that connects")?;
            let mut rank = [0; 2];
            socket.read_exact(&mut rank)?;
            sockets[usize::from(u16::from_le_bytes(rank))] = Some(socket);
        }
        for socket in sockets.iter().flatten() {
            socket.set_nodelay(true)?;
            socket.set_nonblocking(true)?;
        }
        let ins = sockets.iter().map(|socket| socket.as_ref().map(TcpStream::try_clone).transpose());
        let ins = ins.collect::<io::Result<Vec<_>>>()?;
        let out = |to| Mutex::new(Out { to, left: VecDeque::new(), batch, messages: 0, bytes: 0 });
        let replica = Replica {
            state: T::initial(),
            held: (0..nodes).map(|_| VecDeque::new()).collect(),
            decided: (0, false),
            flushed: 0,
            failed: None,
        };
        let outs = sockets.into_iter().map(out).collect();
        let shared = Arc::new(Shared { me, replica: Mutex::new(replica), changed: Condvar::new(), outs });
        let receiver = Arc::clone(&shared);
        std::thread::Builder::new().name("receiver".into()).spawn(move || {
            if let Err(error) = receiver.receive(&ins) {
                lock(&receiver.replica).failed = Some(format!("{error:#}"));
                receiver.changed.notify_all();
            }
        })?;
        Ok(Messages { shared, frame: Vec::new(), requests: 0 })
    }

    /// Waits until the replica satisfies a condition.
    fn wait<V>(&self, what: &str, mut condition: impl FnMut(&mut Replica<T>) -> Option<V>) -> Result<V> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.shared.flush()?;
            let mut replica = lock(&self.shared.replica);
            if let Some(value) = condition(&mut replica) {
                return Ok(value);
            }
            if let Some(why) = &replica.failed {
                bail!("{why}");
            }
            ensure!(Instant::now() < deadline, "{what}: the others have not answered within {PATIENCE:?}");
            let waited = self.shared.changed.wait_timeout(replica, Duration::from_millis(1));
            drop(waited);
        }
    }

    /// Waits while a socket is far behind.
    fn wait_for_room(&self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        for out in &self.shared.outs {
            while lock(out).left.len() > LEFT_MAX {
                lock(out).flush()?;
                ensure!(Instant::now() < deadline, "a node takes no messages");
                std::thread::yield_now();
            }
        }
        Ok(())
    }
}

impl<T: Load> Client<T> for Messages<T> {
    fn update(&mut self, _: &Endpoint, update: &T::Update) -> Result<bool> {
        let shared = &self.shared;
        let Some(leader) = leader_of::<T>(update.method(), shared.outs.len()) else {
            let applied = lock(&shared.replica).state.apply(update);
            if applied.is_ok() {
                encode(&Message::Free(update), &mut self.frame)?;
                shared.send_to_all(&self.frame)?;
            }
            self.wait_for_room()?;
            return Ok(applied.is_ok());
        };
        self.requests += 1;
        let number = self.requests;
        if leader == shared.me {
            let mut replica = lock(&shared.replica);
            return shared.order(&mut replica, shared.me, number, update, &mut self.frame);
        }
        encode(&Message::Request { number, call: update }, &mut self.frame)?;
        lock(&shared.outs[leader]).send(&self.frame)?;
        let decided = |replica: &mut Replica<T>| (replica.decided.0 >= number).then_some(!replica.decided.1);
        self.wait("a conflicting call", decided)
    }

    fn query<V>(&self, query: impl FnOnce(&T) -> V) -> Result<V> {
        Ok(query(&lock(&self.shared.replica).state))
    }

    fn stable(&mut self, _: &Endpoint) -> Result<()> {
        lock(&self.shared.replica).flushed = 0;
        encode(&Message::<()>::Flush, &mut self.frame)?;
        self.shared.send_to_all(&self.frame)?;
        let others = self.shared.outs.len() - 1;
        self.wait("all updates to be applied", |replica| (replica.flushed == others).then_some(()))
    }

    fn leader_of(&self, method: MethodOf<T>) -> Option<usize> {
        leader_of::<T>(method, self.shared.outs.len())
    }

    fn is_settled(&self, _: NodeId) -> bool {
        false
    }

    /// Messages are counted as puts.
    fn counts(&self) -> Counts {
        let outs = || self.shared.outs.iter().map(lock);
        Counts {
            puts: outs().map(|out| out.messages).sum(),
            bytes: outs().map(|out| out.bytes).sum(),
            ..Counts::default()
        }
    }
}

impl<T: Load> Shared<T> {
    fn send_to_all(&self, frame: &[u8]) -> Result<()> {
        let mut others = self.outs.iter().enumerate().filter(|(rank, _)| *rank != self.me);
        Ok(others.try_for_each(|(_, out)| lock(out).send(frame))?)
    }

    fn flush(&self) -> Result<()> {
        Ok(self.outs.iter().try_for_each(|out| lock(out).flush())?)
    }

    /// Applies a conflicting call as its leader, and sends it to all. Under the lock, so that all receive them in the
    /// order in which they are applied.
    fn order(
        &self,
        replica: &mut Replica<T>,
        caller: usize,
        number: u64,
        call: &T::Update,
        frame: &mut Vec<u8>,
    ) -> Result<bool> {
        let is_permissible = replica.state.apply(call).is_ok();
        if is_permissible {
            encode(&Message::Ordered { caller: caller as u16, number, call }, frame)?;
            self.send_to_all(frame)?;
        } else if caller != self.me {
            encode(&Message::<()>::Refused { number }, frame)?;
            lock(&self.outs[caller]).send(frame)?;
        }
        Ok(is_permissible)
    }

    /// Receives messages until all others have closed.
    fn receive(&self, ins: &[Option<TcpStream>]) -> Result<()> {
        let mut open: Vec<(usize, &TcpStream)> =
            ins.iter().enumerate().filter_map(|(rank, socket)| Some((rank, socket.as_ref()?))).collect();
        let mut unread: Vec<Vec<u8>> = ins.iter().map(|_| Vec::new()).collect();
        let (mut chunk, mut frame) = (vec![0; READ], Vec::new());
        while !open.is_empty() {
            let mut waits: Vec<PollFd<'_>> =
                open.iter().map(|(_, socket)| PollFd::new(*socket, PollFlags::IN)).collect();
            match poll(&mut waits, Some(&TICK)) {
                Ok(0) => self.flush()?,
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error).context("waiting for messages"),
            }
            let ready: Vec<bool> = waits.iter().map(|wait| !wait.revents().is_empty()).collect();
            let mut closed = Vec::new();
            for ((rank, socket), _) in open.iter().zip(ready).filter(|(_, ready)| *ready) {
                let mut socket = *socket;
                match socket.read(&mut chunk) {
                    Ok(0) => closed.push(*rank),
                    Ok(read) => {
                        unread[*rank].extend(&chunk[..read]);
                        self.take(*rank, &mut unread[*rank], &mut frame)?;
                    }
                    Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                    // A process that has ended.
                    Err(error) if error.kind() == ErrorKind::ConnectionReset => closed.push(*rank),
                    Err(error) => return Err(error).context("reading messages"),
                }
            }
            open.retain(|(rank, _)| !closed.contains(rank));
        }
        Ok(())
    }

    /// Takes all whole messages, and applies what can be applied.
    fn take(&self, from: usize, unread: &mut Vec<u8>, frame: &mut Vec<u8>) -> Result<()> {
        let mut replica = lock(&self.replica);
        let mut at = 0;
        while let Some((length, rest)) = unread[at..].split_first_chunk::<2>() {
            let Some(message) = rest.get(..u16::from_le_bytes(*length).into()) else { break };
            replica.held[from].push_back(postcard::from_bytes(message).context("a message")?);
            at += 2 + message.len();
        }
        unread.drain(..at);
        // What one sender has held back may be applied after a message of another.
        while (0..self.outs.len())
            .try_fold(false, |some, from| anyhow::Ok(some | self.apply(&mut replica, from, frame)?))?
        {}
        drop(replica);
        self.changed.notify_all();
        Ok(())
    }

    /// Applies the messages of one sender until one has to wait. Whether there was any.
    fn apply(&self, replica: &mut Replica<T>, from: usize, frame: &mut Vec<u8>) -> Result<bool> {
        let mut some = false;
        while let Some(message) = replica.held[from].pop_front() {
            match &message {
                Message::Free(call) | Message::Ordered { call, .. } if replica.state.apply(call).is_err() => {
                    replica.held[from].push_front(message);
                    return Ok(some);
                }
                Message::Free(_) => {}
                Message::Ordered { caller, number, .. } => {
                    if usize::from(*caller) == self.me {
                        replica.decided = (*number, false);
                    }
                }
                Message::Request { number, call } => {
                    self.order(replica, from, *number, call, frame)?;
                }
                Message::Refused { number } => replica.decided = (*number, true),
                Message::Flush => {
                    encode(&Message::<()>::Flushed, frame)?;
                    let mut out = lock(&self.outs[from]);
                    out.send(frame)?;
                    out.flush()?;
                }
                Message::Flushed => replica.flushed += 1,
            }
            some = true;
        }
        Ok(some)
    }
}
