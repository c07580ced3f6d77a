//! A stream of messages from one writer to many readers.
//!
//! Every node that reads has one copy of the ring, however many readers it has. The writer keeps a copy, too: it is
//! what the NIC sends from.
//!
//! ```text
//! on every node with readers, and on the writer's:
//!   `ring`   0 ┌──────────────────────────────────────────────┐   `head` ┌──────────┐
//!              │ capacity bytes, used modulo capacity         │          │ position │ end of the last message
//!              └──────────────────────────────────────────────┘          └──────────┘
//!   a message at position p:  length (8) │ payload, padded to 8
//! on the writer's node:
//!   `tails`  0 ┌──────────┬──────────┬─
//!              │ reader 0 │ reader 1 │ …  position up to which each reader has read
//!              └──────────┴──────────┴─
//! ```
//!
//! Positions count bytes from the beginning of time, so a credit that arrives late, or twice, can only be too small.
//! The writer may use the ring up to `capacity` beyond the lowest tail.
//!
//! *Order.* The writer puts the message and then the head, both to the same node: they land in this order, so a reader
//! that sees the head sees the message. The head is sent as a copy: sent live, that of the next message could go out
//! with this one (the wait in LOCO's Fig. 14 is against that). The ring is sent live, since its bytes are rewritten only
//! after every reader has read them, and a reader that has read them has received them.
//!
//! | call | round trips | operations |
//! |---|---|---|
//! | `try_send`, r remote reader nodes | 0 (not waited for) | 2·r puts, 3·r when the message wraps around the end |
//! | `try_recv`, message | 0 | 1 put of 8 bytes; none on the writer's node |
//! | `try_recv`, empty | 0 | none |
//!
//! Each reader gets each message once, in order.
//!
//! # When a node dies, or leaves
//!
//! *A reader's.* It is waited for no longer: the room that it has not given back is free, and the others get every message
//! ([`RingSender::gone`] says who does not). Only when no reader is left is sending an error. One that is stopped, and not
//! dead, keeps its room: [`RingSender::try_send`] says `false` then.
//!
//! *The writer's.* Readers get all messages that were whole, which are those that a head was put for; then an error that
//! names it. For a dead one that is when it is [`Standing::ShutOut`](crate::Standing::ShutOut): before, another message may still land.
//!
//! *Reopened* ([`Node::reopen`]), the ring starts anew at position 0, with another writer or other readers. Receivers read what
//! is left in the old one before they call it; a writer that lives waits for [`RingSender::wait_acknowledged`] first.
//!
//! Source: LOCO §5.2, Fig. 14; what happens at a death is ours.

mod inherit;

use std::sync::Arc;

use farfield_fabric::{Endpoint, GroupKey, Instant, NodeId, Region, RemotePtr, Word, write_words};

use crate::error::{Error, ErrorKind, Of, Result};
use crate::mutants::{self, Mutant};
use crate::node::{Node, Object, Spec};

/// Who takes part in a ring buffer, and how large it is.
#[derive(Clone, Debug)]
pub struct RingOptions {
    /// The node that sends.
    pub writer: NodeId,
    /// The nodes that read, with the number of readers on each. The writer's may be among them.
    pub readers: Vec<(NodeId, usize)>,
    /// Bytes of the ring, a multiple of 8. The longest message has 8 less.
    pub capacity_bytes: usize,
    /// The service thread reads, not an application thread.
    pub(crate) read_by_service: bool,
}

impl RingOptions {
    /// A ring from `writer` to one reader on every other node that belongs to the session.
    pub fn broadcast(node: &Node, writer: NodeId, capacity_bytes: usize) -> RingOptions {
        RingOptions::broadcast_among(&node.survivors(), writer, capacity_bytes)
    }

    /// A ring from `writer` to one reader on each other of these nodes.
    pub fn broadcast_among(members: &[NodeId], writer: NodeId, capacity_bytes: usize) -> RingOptions {
        let readers = members.iter().filter(|member| **member != writer).map(|member| (*member, 1)).collect();
        RingOptions { writer, readers, capacity_bytes, read_by_service: false }
    }

    /// A ring from `writer` to these readers.
    pub fn new(writer: NodeId, readers: impl IntoIterator<Item = (NodeId, usize)>, capacity_bytes: usize) -> Self {
        RingOptions { writer, readers: readers.into_iter().collect(), capacity_bytes, read_by_service: false }
    }

    fn readers_before(&self, node: NodeId) -> usize {
        self.readers.iter().take_while(|reader| reader.0 != node).map(|reader| reader.1).sum()
    }

    fn readers_on(&self, node: NodeId) -> usize {
        self.readers.iter().find(|reader| reader.0 == node).map_or(0, |reader| reader.1)
    }

    fn reader_count(&self) -> usize {
        self.readers.iter().map(|reader| reader.1).sum()
    }
}

/// A ring buffer as one node sees it.
///
/// ```
/// # fn main() -> farfield::Result<()> {
/// use farfield::{RingBuffer, RingOptions};
/// let nodes = farfield::local_session(2)?;
/// let writer = nodes[0].id();
/// let rings = farfield::on_each(&nodes, |n| RingBuffer::open(n, "log", RingOptions::broadcast(n, writer, 1 << 16)))?;
/// let (mut sender, mut receiver) = (rings[0].sender()?, rings[1].receiver()?);
/// let (near, far) = (nodes[0].endpoint()?, nodes[1].endpoint()?);
/// near.block_on(sender.send(&near, b"hello"))?;
/// let mut message = Vec::new();
/// far.block_on(receiver.recv(&far, &mut message))?;
/// assert_eq!(message, b"hello");
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct RingBuffer(Arc<Shared>);

struct Shared {
    object: Object,
    options: RingOptions,
    ring: Region,
    head: Region,
    /// On the writer's node.
    tails: Option<Region>,
    sender_taken: Word,
    receivers_taken: Word,
}

impl Shared {
    /// An error if the ring was reopened, or another node waits for that. What service threads read goes on to the end of the
    /// object that it belongs to.
    fn check_unasked(&self) -> Result<()> {
        if self.options.read_by_service { Ok(()) } else { self.object.check_unasked() }
    }
}

/// The one writer of a ring buffer.
pub struct RingSender {
    shared: Arc<Shared>,
    tails: Region,
    head: u64,
    /// The lowest tail when last looked at.
    lowest: u64,
    copies: Vec<RemoteCopy>,
    has_local_readers: bool,
    words: Vec<u64>,
}

/// The ring on a node that reads.
struct RemoteCopy {
    ring: RemotePtr<u64>,
    head: RemotePtr<u64>,
}

/// One reader of a ring buffer.
pub struct RingReceiver {
    shared: Arc<Shared>,
    /// Where the next message begins.
    position: u64,
    /// Up to where the writer was told that it may reuse.
    acknowledged: u64,
    tail: Tail,
}

enum Tail {
    Local(usize),
    Remote(RemotePtr<u64>),
}

/// Bytes of a message in the ring.
fn framed_bytes(len: usize) -> usize {
    8 + len.next_multiple_of(8)
}

impl RingBuffer {
    /// Opens the ring and waits for its writer and all reader nodes to do so. Nodes that do neither do not open it.
    ///
    /// # Errors
    /// A node that is missing, gone, or opens it differently; no memory; options that make no sense.
    pub fn open(node: &Node, path: &str, options: RingOptions) -> Result<RingBuffer> {
        let ring = RingBuffer::announce(node, path, options)?;
        ring.connected()?;
        Ok(ring)
    }

    pub(crate) fn announce(node: &Node, path: &str, options: RingOptions) -> Result<RingBuffer> {
        let refuse = |why: &str| Err(Error::from(ErrorKind::Config { why: why.into() }).of(path));
        let capacity = options.capacity_bytes;
        if capacity < 64 || !capacity.is_multiple_of(8) {
            return refuse("the capacity of a ring is a multiple of 8, and at least 64 bytes");
        }
        let mut nodes: Vec<NodeId> = options.readers.iter().map(|reader| reader.0).collect();
        nodes.sort_unstable();
        nodes.dedup();
        if nodes.is_empty() || nodes.len() < options.readers.len() || options.readers.iter().any(|reader| reader.1 == 0)
        {
            return refuse("a ring needs a reader, and each of its nodes is named once, with at least one");
        }
        let mut participants: Vec<NodeId> = options.readers.iter().map(|reader| reader.0).collect();
        participants.push(options.writer);
        participants.sort_unstable();
        participants.dedup();

        let head_group = if options.read_by_service { GroupKey::SERVICE } else { GroupKey::SIGNAL };
        let ring = node.alloc(GroupKey::DATA, capacity).of(path)?;
        let head = node.alloc(head_group, 8).of(path)?;
        let mut regions = vec![("ring", ring.clone()), ("head", head.clone())];
        let tails_bytes = options.reader_count() * 8;
        let tails = match node.id() == options.writer {
            true => Some(node.alloc(GroupKey::SIGNAL, tails_bytes).of(path)?),
            false => None,
        };
        regions.extend(tails.clone().map(|tails| ("tails", tails)));
        let writer = options.writer;
        let expect = move |peer| {
            let mut expected = vec![("ring".into(), capacity as u64), ("head".into(), 8)];
            if peer == writer {
                expected.push(("tails".into(), tails_bytes as u64));
            }
            expected
        };
        let spec = Spec {
            path: path.into(),
            kind: "RingBuffer",
            layout: format!("{options:?}"),
            participants,
            regions,
            expect: Box::new(expect),
        };
        let object = Object::announce(node, spec)?;
        let (sender_taken, receivers_taken) = (Word::new(0), Word::new(0));
        Ok(RingBuffer(Arc::new(Shared { object, options, ring, head, tails, sender_taken, receivers_taken })))
    }

    pub(crate) fn connected(&self) -> Result<()> {
        let node = self.0.object.node();
        self.0.object.connected(&node.endpoint()?, node.timeout())
    }

    /// The writer, once, on the writer's node.
    ///
    /// # Errors
    /// This is another node, or the writer was taken before.
    pub fn sender(&self) -> Result<RingSender> {
        let shared = &self.0;
        let me = shared.object.node().id();
        let Some(tails) = shared.tails.clone() else {
            return self.refuse(format!("only {} sends", shared.options.writer));
        };
        let copy = |node| -> Result<RemoteCopy> {
            Ok(RemoteCopy { ring: shared.object.remote(node, "ring")?, head: shared.object.remote(node, "head")? })
        };
        let remote = shared.options.readers.iter().map(|reader| reader.0).filter(|node| *node != me);
        let copies = remote.map(copy).collect::<Result<_>>()?;
        if shared.sender_taken.compare_exchange(0, 1).is_err() {
            return self.refuse("its one writer has been taken already".into());
        }
        Ok(RingSender {
            tails,
            head: 0,
            lowest: 0,
            copies,
            has_local_readers: shared.options.readers_on(me) > 0,
            words: Vec::new(),
            shared: Arc::clone(shared),
        })
    }

    /// One more reader of this node.
    ///
    /// # Errors
    /// All readers of this node have been taken.
    pub fn receiver(&self) -> Result<RingReceiver> {
        let shared = &self.0;
        let me = shared.object.node().id();
        let index = shared.receivers_taken.fetch_add(1) as usize;
        if index >= shared.options.readers_on(me) {
            return self.refuse(format!("it was opened for {} readers on this node", shared.options.readers_on(me)));
        }
        let offset = (shared.options.readers_before(me) + index) * 8;
        let tail = if me == shared.options.writer {
            Tail::Local(offset)
        } else {
            Tail::Remote(shared.object.remote::<u64>(shared.options.writer, "tails")?.byte_add(offset as u64))
        };
        Ok(RingReceiver { shared: Arc::clone(shared), position: 0, acknowledged: 0, tail })
    }

    fn refuse<T>(&self, why: String) -> Result<T> {
        Err(ErrorKind::NotAParticipant { why }).of(self.0.object.path())
    }
}

impl RingSender {
    /// The end of the last message: readers that have acknowledged this position have read it.
    pub fn position(&self) -> u64 {
        self.head
    }

    /// The longest message, in bytes.
    pub fn message_bytes_max(&self) -> usize {
        self.shared.options.capacity_bytes - 8
    }

    /// Sends a message if there is room for it now; whether there was.
    ///
    /// Pass the same endpoint each time: what two endpoints put to a node is in no order.
    ///
    /// # Errors
    /// A message longer than [`RingSender::message_bytes_max`], or the nodes of all readers are gone. Nothing was sent
    /// then.
    pub fn try_send(&mut self, endpoint: &Endpoint, message: &[u8]) -> Result<bool> {
        if !self.shared.options.read_by_service {
            self.shared.object.check_current()?;
        }
        let path = self.shared.object.path();
        let capacity = self.shared.options.capacity_bytes;
        let framed = framed_bytes(message.len());
        if framed > capacity {
            let max_bytes = capacity - 8;
            return Err(ErrorKind::TooLarge { bytes: message.len(), max_bytes }).of(path);
        }
        let end = self.head + framed as u64;
        let room = capacity as u64 + if mutants::is_on(Mutant::RingRoomForgetsHeader) { 8 } else { 0 };
        if end - self.lowest > room {
            self.lowest = self.acknowledgements().lowest(endpoint).min(self.head);
            if end - self.lowest > room {
                return Ok(false);
            }
        }

        if !self.has_local_readers && !self.copies.is_empty() {
            // The first that lives ends the search: one look, as a rule.
            let check = |copy: &RemoteCopy| endpoint.check_alive(copy.ring.node());
            if self.copies.iter().all(|copy| check(copy).is_err()) {
                return check(&self.copies[0]).of(path).map(|()| false);
            }
        }

        // Into the local copy, from which the NIC reads: no reader needs what was there before.
        self.words.clear();
        self.words.push(message.len() as u64);
        for chunk in message.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.words.push(u64::from_le_bytes(word));
        }
        let at = (self.head % capacity as u64) as usize;
        let first = framed.min(capacity - at);
        write_words(self.shared.ring.words(at, first / 8), &self.words[..first / 8]);
        write_words(self.shared.ring.words(0, (framed - first) / 8), &self.words[first / 8..]);
        if self.has_local_readers || mutants::is_on(Mutant::RingHeadLive) {
            // After the message: stores stay in order.
            self.shared.head.word(0).store(end);
            endpoint.wake_local();
        }
        self.head = end;
        let (mut result, mut some_gone) = (Ok(()), false);
        for copy in &self.copies {
            // To one node, in this order: message, then head.
            let send_head = || match mutants::is_on(Mutant::RingHeadLive) {
                false => endpoint.put_value(copy.head, end).detach(),
                true => endpoint.put_live(copy.head, self.shared.head.span(0, 8)).detach(),
            };
            if mutants::is_on(Mutant::RingHeadFirst) {
                let _ = send_head();
            }
            let mut sent = endpoint.put_live(copy.ring.byte_add(at as u64), self.shared.ring.span(at, first)).detach();
            if framed > first {
                if mutants::is_on(Mutant::RingHeadBeforeWrapped) {
                    let _ = send_head();
                }
                sent = sent.and(endpoint.put_live(copy.ring, self.shared.ring.span(0, framed - first)).detach());
            }
            sent = sent.and_then(|()| send_head());
            // Who is gone does not get it, and does not keep the others from it.
            some_gone |= sent.as_ref().is_err_and(farfield_fabric::Error::is_gone);
            result = result.and(sent.or_else(|error| if error.is_out_of_reach() { Ok(()) } else { Err(error) }));
        }
        if some_gone {
            // It never comes back. One copy stays, to say so if all are gone.
            let is_gone = |copy: &RemoteCopy| endpoint.check_alive(copy.head.node()).is_err();
            let mut stays = self.copies.iter().all(is_gone);
            self.copies.retain(|copy| !is_gone(copy) || core::mem::take(&mut stays));
        }
        result.of(self.shared.object.path()).map(|()| true)
    }

    /// Sends a message, waiting for room as long as the endpoint's timeout.
    ///
    /// # Errors
    /// As [`RingSender::try_send`], or a timeout that names those who do not keep up. Nothing was sent then.
    pub async fn send(&mut self, endpoint: &Endpoint, message: &[u8]) -> Result<()> {
        self.send_deadline(endpoint, message, endpoint.deadline()).await
    }

    /// [`RingSender::send`] with a deadline.
    ///
    /// # Errors
    /// As `send`.
    pub async fn send_deadline(&mut self, endpoint: &Endpoint, message: &[u8], deadline: Instant) -> Result<()> {
        while !self.try_send(endpoint, message)? {
            let needed = (self.head + framed_bytes(message.len()) as u64) - self.shared.options.capacity_bytes as u64;
            self.wait_tails(endpoint, needed, deadline, "room in the ring").await?;
        }
        Ok(())
    }

    /// Whether all readers that are not gone have read up to `position`.
    pub fn is_acknowledged(&self, endpoint: &Endpoint, position: u64) -> bool {
        self.acknowledgements().lowest(endpoint) >= position
    }

    /// The nodes of readers that are gone: what has been sent since is nothing to them.
    pub fn gone(&self, endpoint: &Endpoint) -> Vec<NodeId> {
        let readers = self.shared.options.readers.iter().map(|reader| reader.0);
        readers.filter(|node| endpoint.check_alive(*node).is_err()).collect()
    }

    /// Waits until all readers that are not gone have read up to `position`.
    ///
    /// # Errors
    /// A timeout that names the nodes that have not.
    pub async fn wait_acknowledged(&self, endpoint: &Endpoint, position: u64, deadline: Instant) -> Result<()> {
        self.wait_tails(endpoint, position, deadline, "all readers have read the message").await
    }

    /// A view of the acknowledgements that can be waited on while the sender is used.
    pub(crate) fn acknowledgements(&self) -> Acknowledgements {
        Acknowledgements { shared: Arc::clone(&self.shared), tails: self.tails.clone() }
    }

    async fn wait_tails(&self, endpoint: &Endpoint, position: u64, deadline: Instant, what: &str) -> Result<()> {
        self.acknowledgements().wait(endpoint, position, deadline, what).await
    }
}

/// The positions up to which the readers of a ring have read.
#[derive(Clone)]
pub(crate) struct Acknowledgements {
    shared: Arc<Shared>,
    tails: Region,
}

impl Acknowledgements {
    /// Whether what a reader has not read is waited for. One that is gone, but not out for good, may still tell others that
    /// it has not read it.
    fn counts(&self, endpoint: &Endpoint, reader: NodeId) -> bool {
        let node = self.shared.object.node();
        node.silence_of(endpoint, reader).is_none() || mutants::is_on(Mutant::RingDeadReaderAwaited)
    }

    /// The tails, with their readers' nodes.
    fn tails(&self) -> impl Iterator<Item = (NodeId, u64)> {
        let readers = self.shared.options.readers.iter();
        let owners = readers.flat_map(|reader| std::iter::repeat_n(reader.0, reader.1));
        owners.zip(self.tails.words(0, self.tails.bytes() / 8).iter().map(Word::load))
    }

    /// The lowest tail of those whose nodes are not gone.
    pub(crate) fn lowest(&self, endpoint: &Endpoint) -> u64 {
        let tails = self.tails().filter(|(owner, _)| self.counts(endpoint, *owner)).map(|(_, tail)| tail);
        let lowest = if mutants::is_on(Mutant::RingFastestReader) { tails.max() } else { tails.min() };
        lowest.unwrap_or(u64::MAX)
    }

    /// Waits until the tails of those whose nodes are not gone are at least `position`.
    pub(crate) async fn wait(&self, endpoint: &Endpoint, position: u64, deadline: Instant, what: &str) -> Result<()> {
        let behind = || self.tails().filter(|(_, tail)| *tail < position).map(|(owner, _)| owner);
        let start = endpoint.now();
        let look = || match behind().any(|owner| self.counts(endpoint, owner)) {
            true => self.shared.check_unasked().err().map(Err),
            false => Some(Ok(())),
        };
        match endpoint.wait_until(deadline, look).await {
            Ok(done) => done,
            Err(_) => {
                let mut missing: Vec<NodeId> = behind().filter(|owner| self.counts(endpoint, *owner)).collect();
                missing.dedup();
                let waited = endpoint.now() - start;
                Err(ErrorKind::Timeout { what: what.into(), waited, missing }).of(self.shared.object.path())
            }
        }
    }
}

impl RingReceiver {
    /// Receives a message if there is one: its bytes replace those of `into`.
    ///
    /// # Errors
    /// The writer's node is gone and has left no more messages.
    pub fn try_recv(&mut self, endpoint: &Endpoint, into: &mut Vec<u8>) -> Result<bool> {
        let received = self.try_recv_unacknowledged(endpoint, into)?;
        if received {
            self.acknowledge(endpoint)?;
        }
        Ok(received)
    }

    /// Like [`RingReceiver::try_recv`], but the writer is told only by [`RingReceiver::acknowledge`].
    ///
    /// # Errors
    /// As `try_recv`.
    pub fn try_recv_unacknowledged(&mut self, endpoint: &Endpoint, into: &mut Vec<u8>) -> Result<bool> {
        let shared = &*self.shared;
        let capacity = shared.options.capacity_bytes;
        let word_at = |position: u64| shared.ring.word((position % capacity as u64) as usize);
        let len_too_early = mutants::is_on(Mutant::RingLengthBeforeHead).then(|| word_at(self.position).load());
        if shared.head.word(0).load() <= self.position {
            return self.check_writer(endpoint).map(|()| false);
        }
        // The head was read first; what it covers has landed before it.
        let len = len_too_early.unwrap_or_else(|| word_at(self.position).load()) as usize;
        if framed_bytes(len.min(capacity)) > capacity {
            let why = format!("a message of {len} bytes in a ring of {capacity}: its memory was overwritten");
            return Err(ErrorKind::Config { why }).of(shared.object.path());
        }
        if mutants::is_on(Mutant::RingAckBeforeRead) {
            self.tell_writer(endpoint, self.position + framed_bytes(len) as u64)?;
        }
        into.clear();
        let mut position = self.position + 8;
        while into.len() < len {
            into.extend_from_slice(&word_at(position).load().to_le_bytes());
            position += 8;
        }
        into.truncate(len);
        self.position = position;
        Ok(true)
    }

    /// Whether there may be another message, though there is none now.
    fn check_writer(&self, endpoint: &Endpoint) -> Result<()> {
        let shared = &*self.shared;
        match shared.object.node().silence_of(endpoint, shared.options.writer) {
            // It may have sent its last messages just before it went.
            Some(gone) if shared.head.word(0).load() <= self.position => Err(gone).of(shared.object.path()),
            Some(_) => Ok(()),
            // It goes on with another generation.
            None => shared.check_unasked(),
        }
    }

    /// Tells the writer that everything received so far has been dealt with.
    ///
    /// # Errors
    /// The writer's node is gone.
    pub fn acknowledge(&mut self, endpoint: &Endpoint) -> Result<()> {
        if self.acknowledged == self.position {
            return Ok(());
        }
        self.acknowledged = self.position;
        self.tell_writer(endpoint, self.position)
    }

    /// Gives the writer the room before a position.
    fn tell_writer(&self, endpoint: &Endpoint, position: u64) -> Result<()> {
        let position = match mutants::is_on(Mutant::RingCreditModulo) {
            false => position,
            true => position % self.shared.options.capacity_bytes as u64,
        };
        match (&self.tail, &self.shared.tails) {
            (Tail::Local(offset), Some(tails)) => {
                tails.word(*offset).store(position);
                endpoint.wake_local();
                Ok(())
            }
            (Tail::Local(_), None) => Ok(()),
            (Tail::Remote(tail), _) => match endpoint.put_value(*tail, position).detach() {
                // Nobody is left to reuse the room.
                Err(error) if !error.is_out_of_reach() => Err(error).of(self.shared.object.path()),
                _ => Ok(()),
            },
        }
    }

    /// Receives the next message, waiting for it as long as the endpoint's timeout.
    ///
    /// # Errors
    /// A timeout, or the writer's node is gone and has left no more messages.
    pub async fn recv(&mut self, endpoint: &Endpoint, into: &mut Vec<u8>) -> Result<()> {
        self.recv_deadline(endpoint, into, endpoint.deadline()).await
    }

    /// [`RingReceiver::recv`] with a deadline.
    ///
    /// # Errors
    /// As `recv`.
    pub async fn recv_deadline(&mut self, endpoint: &Endpoint, into: &mut Vec<u8>, deadline: Instant) -> Result<()> {
        let received = endpoint
            .wait_until(deadline, || match self.try_recv(endpoint, into) {
                Ok(true) => Some(Ok(())),
                Ok(false) => None,
                Err(error) => Some(Err(error)),
            })
            .await;
        received.waiting_for_nodes("a message", &[self.shared.options.writer]).of(self.shared.object.path())?
    }
}
