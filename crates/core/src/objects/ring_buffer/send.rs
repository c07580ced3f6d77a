//! The writer: messages, heads and credit.

use core::cell::Cell;
use std::sync::Arc;

use farfield_fabric::{self as fabric, Endpoint, Instant, NodeId, Region, RemotePtr, write_bytes};

use super::acknowledge::Acknowledgements;
use super::{SEND, Shared, TRY_SEND, framed_bytes};
use crate::error::{ErrorContext, ErrorKind, Missed, Result};
use crate::node::{MemberStatus, measured};

/// The one writer of a ring buffer.
///
/// ```
/// # fn main() -> farfield::Result<()> {
/// # let nodes = farfield::local_session(2)?;
/// # let (a, b, writer) = (nodes[0].endpoint()?, nodes[1].endpoint()?, nodes[0].id());
/// # let options = |node: &farfield::Node| farfield::RingOptions::broadcast(node, writer, 1 << 12);
/// # let rings = farfield::on_each(&nodes, |node| farfield::RingBuffer::open(node, "log", options(node)))?;
/// # let (mut receiver, mut message) = (rings[1].receiver()?, Vec::<u8>::new());
/// let mut sender = rings[0].sender()?;
/// a.block_on(sender.send(&a, b"hello"))?;
/// b.block_on(receiver.recv(&b, &mut message))?;
/// a.block_on(sender.wait_acknowledged(&a, sender.position(), a.deadline()))?; // all have read it
/// # Ok(()) }
/// ```
pub struct RingSender {
    pub(super) shared: Arc<Shared>,
    pub(super) tails: Region,
    pub(super) head: u64,
    /// The lowest tail at the last poll.
    pub(super) lowest: u64,
    pub(super) copies: Vec<RemoteCopy>,
    pub(super) has_local_readers: bool,
}

/// The ring on a node with readers.
pub(super) struct RemoteCopy {
    pub(super) ring: RemotePtr<u64>,
    pub(super) head: RemotePtr<u64>,
    /// All bytes up to here were put there, and a head for them. It lags behind the sender's own head while puts are
    /// refused.
    pub(super) sent: Cell<u64>,
}

/// Why some nodes do not get a message. A dead or departed one never does, and does not delay the others; after a
/// refusal a node gets it later.
#[derive(Default)]
struct Missing {
    is_any: bool,
    some_gone: bool,
    refused: Option<fabric::Error>,
}

impl Missing {
    #[cold]
    #[inline(never)]
    fn note(&mut self, error: fabric::Error) {
        self.is_any = true;
        if error.is_gone() {
            self.some_gone = true;
        } else if !error.is_unreachable() {
            self.refused.get_or_insert(error);
        }
    }
}

impl RingSender {
    /// The end of the last message: readers that have acknowledged this position have read it.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let nodes = farfield::local_session(2)?;
    /// # let (a, b) = (nodes[0].endpoint()?, nodes[1].endpoint()?);
    /// # let writer = nodes[0].id();
    /// # let options = |node: &farfield::Node| farfield::RingOptions::broadcast(node, writer, 1 << 12);
    /// # let rings = farfield::on_each(&nodes, |node| farfield::RingBuffer::open(node, "log", options(node)))?;
    /// # let (mut sender, mut receiver) = (rings[0].sender()?, rings[1].receiver()?);
    /// # let mut message = Vec::new();
    /// a.block_on(sender.send(&a, b"one"))?;
    /// let sent = sender.position();
    /// b.block_on(receiver.recv(&b, &mut message))?;
    /// a.block_on(sender.wait_acknowledged(&a, sent, a.deadline()))?;
    /// assert!(sender.is_acknowledged(&a, sent));
    /// # Ok(()) }
    /// ```
    pub fn position(&self) -> u64 {
        self.head
    }

    pub(crate) fn path(&self) -> &str {
        self.shared.object.path()
    }

    /// The longest message, in bytes.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let nodes = farfield::local_session(2)?;
    /// # let (a, b) = (nodes[0].endpoint()?, nodes[1].endpoint()?);
    /// # let writer = nodes[0].id();
    /// # let options = |node: &farfield::Node| farfield::RingOptions::broadcast(node, writer, 1 << 12);
    /// # let rings = farfield::on_each(&nodes, |node| farfield::RingBuffer::open(node, "log", options(node)))?;
    /// # let mut sender = rings[0].sender()?;
    /// let long = vec![0; sender.message_bytes_max() + 1];
    /// assert!(a.block_on(sender.send(&a, &long)).is_err());
    /// # Ok(()) }
    /// ```
    pub fn message_bytes_max(&self) -> usize {
        self.shared.options.capacity_bytes - 8
    }

    /// Sends a message if there is room for it now. Returns whether there was.
    ///
    /// Pass the same endpoint to every call of the sender: the puts of two endpoints have no order.
    ///
    /// `true` means that the message is accepted: every reader on a live node gets it. If the put to a node was
    /// refused for want of memory, the next call of the sender that can put it does. If there is no next call, see
    /// [`RingSender::flush`].
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let nodes = farfield::local_session(2)?;
    /// # let (a, b) = (nodes[0].endpoint()?, nodes[1].endpoint()?);
    /// # let writer = nodes[0].id();
    /// # let options = |node: &farfield::Node| farfield::RingOptions::broadcast(node, writer, 1 << 12);
    /// # let rings = farfield::on_each(&nodes, |node| farfield::RingBuffer::open(node, "log", options(node)))?;
    /// # let (mut sender, mut receiver) = (rings[0].sender()?, rings[1].receiver()?);
    /// # let mut message = Vec::new();
    /// while sender.try_send(&a, &[7; 100])? {} // until the ring is full
    /// b.block_on(receiver.recv(&b, &mut message))?;
    /// assert_eq!(message, [7; 100]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// A message longer than [`RingSender::message_bytes_max`], or no live reader node, or refused puts to all of
    /// them. Then the message was not sent, and no reader will see any of it.
    pub fn try_send(&mut self, endpoint: &Endpoint, message: &[u8]) -> Result<bool> {
        let shared = &*self.shared;
        if !shared.options.read_by_service
            && !shared.object.is_plain()
            && let Some(sent) = self.try_send_measured(endpoint, message)?
        {
            return Ok(sent);
        }
        let capacity = self.shared.options.capacity_bytes;
        let framed = framed_bytes(message.len());
        if framed > capacity {
            return self.is_too_large(message);
        }
        let end = self.head + framed as u64;
        if end - self.lowest > capacity as u64 {
            self.learn_room(endpoint);
            if end - self.lowest > capacity as u64 {
                return Ok(false);
            }
        }

        // The first live one ends the search: one read, as a rule.
        if !self.has_local_readers
            && let [first, ..] = &self.copies[..]
            && endpoint.check_alive(first.ring.node()).is_err()
            && let Err(gone) = self.check_any_alive(endpoint)
        {
            return Err(gone);
        }

        let at = (self.head % capacity as u64) as usize;
        self.write_local(message, at, framed);
        if self.has_local_readers {
            // After the message: stores stay in order.
            self.shared.head.word(0).store(end);
            endpoint.wake_local();
        }
        let begin = core::mem::replace(&mut self.head, end);
        let (mut is_sent, mut missed) = (self.has_local_readers, Missing::default());
        for copy in &self.copies {
            let sent = if copy.sent.get() == begin {
                self.put(endpoint, copy, at, framed)
            } else {
                self.put_missing(endpoint, copy)
            };
            match sent {
                Ok(()) => is_sent = true,
                Err(error) => missed.note(error),
            }
        }
        if missed.is_any { self.end_with(endpoint, begin, is_sent, missed) } else { Ok(true) }
    }

    /// The call as it is measured; `None` if it is not, and the ring is current.
    #[cold]
    #[inline(never)]
    fn try_send_measured(&mut self, endpoint: &Endpoint, message: &[u8]) -> Result<Option<bool>> {
        let meter = self.shared.object.meter();
        if meter.measures(endpoint, TRY_SEND) {
            return meter.again_now(endpoint, TRY_SEND, || self.try_send(endpoint, message)).map(Some);
        }
        self.shared.object.check_current().map(|()| None)
    }

    #[cold]
    #[inline(never)]
    fn is_too_large(&self, message: &[u8]) -> Result<bool> {
        let max_bytes = self.shared.options.capacity_bytes - 8;
        Err(ErrorKind::TooLarge { bytes: message.len(), max_bytes }).of(self.shared.object.path())
    }

    /// Reads how far the readers have read.
    #[cold]
    #[inline(never)]
    fn learn_room(&mut self, endpoint: &Endpoint) {
        self.see_to_copies(endpoint);
        self.lowest = self.acknowledgements().lowest(endpoint).min(self.head);
    }

    /// Fails if no node with a copy is alive.
    #[cold]
    #[inline(never)]
    fn check_any_alive(&self, endpoint: &Endpoint) -> Result<()> {
        let check = |copy: &RemoteCopy| endpoint.check_alive(copy.ring.node());
        match self.copies.first() {
            Some(first) if self.copies.iter().all(|copy| check(copy).is_err()) => {
                check(first).of(self.shared.object.path())
            }
            _ => Ok(()),
        }
    }

    /// The end of a call that was refused by some nodes.
    #[cold]
    #[inline(never)]
    fn end_with(&mut self, endpoint: &Endpoint, begin: u64, is_sent: bool, missed: Missing) -> Result<bool> {
        let Missing { some_gone, refused, .. } = missed;
        if some_gone {
            self.drop_gone(endpoint);
        }
        match refused {
            // No head covers it: it was not sent, and the next message takes its place.
            Some(error) if !is_sent => {
                self.head = begin;
                Err(error).of(self.shared.object.path())
            }
            _ => Ok(true),
        }
    }

    /// Writes a message at `at` into the local copy, from which the NIC reads: no reader needs its old contents.
    #[inline(always)]
    fn write_local(&self, message: &[u8], at: usize, framed: usize) {
        let Shared { ring, options, .. } = &*self.shared;
        if framed > options.capacity_bytes - at {
            return self.write_wrapped(message, at, framed);
        }
        let words = ring.words(at, framed / 8);
        words[0].store(message.len() as u64);
        write_bytes(&words[1..], message);
    }

    #[cold]
    #[inline(never)]
    fn write_wrapped(&self, message: &[u8], at: usize, framed: usize) {
        let Shared { ring, options, .. } = &*self.shared;
        let first = options.capacity_bytes - at;
        let words = ring.words(at, first / 8);
        words[0].store(message.len() as u64);
        let (to_end, from_beginning) = message.split_at(message.len().min(first - 8));
        write_bytes(&words[1..], to_end);
        write_bytes(ring.words(0, (framed - first) / 8), from_beginning);
    }

    /// Drops the copies on dead and departed nodes, which never return. One copy stays, to report when all are dead or
    /// departed.
    #[cold]
    fn drop_gone(&mut self, endpoint: &Endpoint) {
        let mut left = self.copies.len();
        // Each is looked at once: another may die meanwhile.
        self.copies.retain(|copy| {
            let stays = left == 1 || endpoint.check_alive(copy.head.node()).is_ok();
            left -= usize::from(!stays);
            stays
        });
    }

    /// Puts the last `bytes` bytes of the sent messages, which begin at `at` in the ring, and then the head. It is a
    /// call of its own, with all registers for itself.
    #[inline(never)]
    fn put(&self, endpoint: &Endpoint, copy: &RemoteCopy, at: usize, bytes: usize) -> fabric::Result<()> {
        let Shared { ring, options, .. } = &*self.shared;
        let to = copy.ring.byte_add(at as u64);
        let is_whole = endpoint.ends_at_once() && bytes <= options.capacity_bytes - at;
        let published = || endpoint.publish_at_once(to, ring.span(at, bytes), copy.head, self.head);
        match is_whole.then(published).flatten() {
            Some(put) => put?,
            None => self.put_parts(endpoint, copy, at, bytes)?,
        }
        copy.sent.set(self.head);
        Ok(())
    }

    /// The same, put by put.
    #[inline(never)]
    fn put_parts(&self, endpoint: &Endpoint, copy: &RemoteCopy, at: usize, bytes: usize) -> fabric::Result<()> {
        let Shared { ring, options, .. } = &*self.shared;
        let first = bytes.min(options.capacity_bytes - at);
        // To one node, in this order: message, then head. A refused put leaves a hole, so the head is not put.
        let mut sent = endpoint.put_from_region(copy.ring.byte_add(at as u64), ring.span(at, first)).detach();
        if bytes > first {
            sent = sent.and_then(|()| endpoint.put_from_region(copy.ring, ring.span(0, bytes - first)).detach());
        }
        sent.and_then(|()| endpoint.put_value(copy.head, self.head).detach())?;
        Ok(())
    }

    /// Puts the bytes that a copy was refused. They are still here: its readers have not acknowledged them. Bytes that
    /// have landed there land once more, before the head that covers them.
    #[cold]
    fn put_missing(&self, endpoint: &Endpoint, copy: &RemoteCopy) -> fabric::Result<()> {
        // No call waits for the room of a dead or departed node.
        endpoint.check_alive(copy.head.node())?;
        let from = copy.sent.get();
        let at = (from % self.shared.options.capacity_bytes as u64) as usize;
        self.put(endpoint, copy, at, (self.head - from) as usize)
    }

    /// Whether a put to a reader node was refused, and not repeated since.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let nodes = farfield::local_session(2)?;
    /// # let (a, b, writer) = (nodes[0].endpoint()?, nodes[1].endpoint()?, nodes[0].id());
    /// # let options = |node: &farfield::Node| farfield::RingOptions::broadcast(node, writer, 1 << 12);
    /// # let rings = farfield::on_each(&nodes, |node| farfield::RingBuffer::open(node, "log", options(node)))?;
    /// # let (mut sender, mut receiver, mut message) = (rings[0].sender()?, rings[1].receiver()?, Vec::<u8>::new());
    /// assert!(sender.try_send(&a, b"hello")?);
    /// assert!(!sender.is_behind()); // no put was refused
    /// # Ok(()) }
    /// ```
    pub fn is_behind(&self) -> bool {
        self.copies.iter().any(|copy| copy.sent.get() != self.head)
    }

    /// Repeats the puts that were refused to reader nodes, for want of memory or because the nodes do not answer.
    /// Every other call of the sender does the same, but without a call nothing does. So a program that sends nothing
    /// for long, or drops the sender, calls this, or waits ([`RingSender::flush`]).
    ///
    /// ```
    /// # fn f(sender: &mut farfield::RingSender, ep: &farfield::Endpoint) -> farfield::Result<()> {
    /// if sender.try_send(ep, b"last words")? {
    ///     ep.block_on(sender.flush(ep))?;
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Missed`] names the nodes that still lack messages, and why. Dead and departed nodes are not among
    /// them.
    pub fn try_flush(&self, endpoint: &Endpoint) -> Result<()> {
        let mut missed = Missed::default();
        for copy in self.copies.iter().filter(|copy| copy.sent.get() != self.head) {
            let sent = self.put_missing(endpoint, copy);
            if !sent.as_ref().is_err_and(fabric::Error::is_gone) {
                missed.note(copy.head.node(), sent);
            }
        }
        missed.end().of(self.shared.object.path())
    }

    /// [`RingSender::try_flush`] until no node lacks a message, as long as the endpoint's timeout.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let nodes = farfield::local_session(2)?;
    /// # let (a, b, writer) = (nodes[0].endpoint()?, nodes[1].endpoint()?, nodes[0].id());
    /// # let options = |node: &farfield::Node| farfield::RingOptions::broadcast(node, writer, 1 << 12);
    /// # let rings = farfield::on_each(&nodes, |node| farfield::RingBuffer::open(node, "log", options(node)))?;
    /// # let (mut sender, mut receiver, mut message) = (rings[0].sender()?, rings[1].receiver()?, Vec::<u8>::new());
    /// a.block_on(sender.send(&a, b"last words"))?;
    /// a.block_on(sender.flush(&a))?; // accepted for every node, so the sender may be dropped
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As `try_flush`, after the timeout.
    pub async fn flush(&self, endpoint: &Endpoint) -> Result<()> {
        let mut flushed = Ok(());
        let look = || {
            flushed = self.try_flush(endpoint);
            flushed.is_ok().then_some(())
        };
        let _ = endpoint.wait_until(endpoint.deadline(), look).await;
        flushed
    }

    /// A wait for the readers must make sure that they have received the messages.
    #[inline]
    fn see_to_copies(&self, endpoint: &Endpoint) {
        if self.is_behind() {
            let _ = self.try_flush(endpoint);
        }
    }

    /// Sends a message, waiting for room as long as the endpoint's timeout.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let nodes = farfield::local_session(2)?;
    /// # let (a, b) = (nodes[0].endpoint()?, nodes[1].endpoint()?);
    /// # let writer = nodes[0].id();
    /// # let options = |node: &farfield::Node| farfield::RingOptions::broadcast(node, writer, 1 << 12);
    /// # let rings = farfield::on_each(&nodes, |node| farfield::RingBuffer::open(node, "log", options(node)))?;
    /// # let (mut sender, mut receiver) = (rings[0].sender()?, rings[1].receiver()?);
    /// # let mut message = Vec::new();
    /// a.block_on(sender.send(&a, b"hello"))?;
    /// b.block_on(receiver.recv(&b, &mut message))?;
    /// assert_eq!(message, b"hello");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`RingSender::try_send`], or a timeout that names the slow readers. Then nothing was sent.
    pub async fn send(&mut self, endpoint: &Endpoint, message: &[u8]) -> Result<()> {
        self.send_deadline(endpoint, message, endpoint.deadline()).await
    }

    /// [`RingSender::send`] with a deadline.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let nodes = farfield::local_session(2)?;
    /// # let (a, b) = (nodes[0].endpoint()?, nodes[1].endpoint()?);
    /// # let writer = nodes[0].id();
    /// # let options = |node: &farfield::Node| farfield::RingOptions::broadcast(node, writer, 1 << 12);
    /// # let rings = farfield::on_each(&nodes, |node| farfield::RingBuffer::open(node, "log", options(node)))?;
    /// # let mut sender = rings[0].sender()?;
    /// let deadline = a.now() + std::time::Duration::from_millis(100);
    /// a.block_on(sender.send_deadline(&a, b"in time", deadline))?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As `send`.
    pub async fn send_deadline(&mut self, endpoint: &Endpoint, message: &[u8], deadline: Instant) -> Result<()> {
        let meter = self.shared.object.meter();
        measured!(meter, endpoint, SEND, self.send_deadline(endpoint, message, deadline));
        loop {
            meter.skip(endpoint, TRY_SEND);
            if self.try_send(endpoint, message)? {
                return Ok(());
            }
            let needed = (self.head + framed_bytes(message.len()) as u64) - self.shared.options.capacity_bytes as u64;
            self.wait_tails(endpoint, needed, deadline, "room in the ring").await?;
        }
    }

    /// Whether all readers on live nodes have read up to `position`.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let nodes = farfield::local_session(2)?;
    /// # let (a, b, writer) = (nodes[0].endpoint()?, nodes[1].endpoint()?, nodes[0].id());
    /// # let options = |node: &farfield::Node| farfield::RingOptions::broadcast(node, writer, 1 << 12);
    /// # let rings = farfield::on_each(&nodes, |node| farfield::RingBuffer::open(node, "log", options(node)))?;
    /// # let (mut sender, mut receiver, mut message) = (rings[0].sender()?, rings[1].receiver()?, Vec::<u8>::new());
    /// a.block_on(sender.send(&a, b"hello"))?;
    /// assert!(!sender.is_acknowledged(&a, sender.position())); // not read yet
    /// # Ok(()) }
    /// ```
    pub fn is_acknowledged(&self, endpoint: &Endpoint, position: u64) -> bool {
        self.see_to_copies(endpoint);
        self.acknowledgements().lowest(endpoint) >= position
    }

    /// The dead and departed reader nodes: they get no message any more.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let nodes = farfield::local_session(2)?;
    /// # let (a, b, writer) = (nodes[0].endpoint()?, nodes[1].endpoint()?, nodes[0].id());
    /// # let options = |node: &farfield::Node| farfield::RingOptions::broadcast(node, writer, 1 << 12);
    /// # let rings = farfield::on_each(&nodes, |node| farfield::RingBuffer::open(node, "log", options(node)))?;
    /// # let (mut sender, mut receiver, mut message) = (rings[0].sender()?, rings[1].receiver()?, Vec::<u8>::new());
    /// assert!(sender.gone(&a).is_empty()); // all reader nodes are alive
    /// # Ok(()) }
    /// ```
    pub fn gone(&self, endpoint: &Endpoint) -> Vec<NodeId> {
        let readers = self.shared.options.readers.iter().map(|reader| reader.0);
        readers.filter(|node| endpoint.check_alive(*node).is_err()).collect()
    }

    /// Waits until all readers on live nodes have read up to `position`.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let nodes = farfield::local_session(2)?;
    /// # let (a, b) = (nodes[0].endpoint()?, nodes[1].endpoint()?);
    /// # let writer = nodes[0].id();
    /// # let options = |node: &farfield::Node| farfield::RingOptions::broadcast(node, writer, 1 << 12);
    /// # let rings = farfield::on_each(&nodes, |node| farfield::RingBuffer::open(node, "log", options(node)))?;
    /// # let (mut sender, mut receiver) = (rings[0].sender()?, rings[1].receiver()?);
    /// # let mut message = Vec::new();
    /// a.block_on(sender.send(&a, b"one"))?;
    /// b.block_on(receiver.recv(&b, &mut message))?;
    /// a.block_on(sender.wait_acknowledged(&a, sender.position(), a.deadline()))?; // every reader has it
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// A timeout that names the nodes of the others.
    pub async fn wait_acknowledged(&self, endpoint: &Endpoint, position: u64, deadline: Instant) -> Result<()> {
        self.wait_tails(endpoint, position, deadline, "all readers have read the message").await
    }

    /// A view of the acknowledgements that can be awaited while the sender is used.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let nodes = farfield::local_session(2)?;
    /// # let (a, b, writer) = (nodes[0].endpoint()?, nodes[1].endpoint()?, nodes[0].id());
    /// # let options = |node: &farfield::Node| farfield::RingOptions::broadcast(node, writer, 1 << 12);
    /// # let rings = farfield::on_each(&nodes, |node| farfield::RingBuffer::open(node, "log", options(node)))?;
    /// # let (mut sender, mut receiver, mut message) = (rings[0].sender()?, rings[1].receiver()?, Vec::<u8>::new());
    /// let read = sender.acknowledgements(); // it does not borrow the sender
    /// a.block_on(sender.send(&a, b"hello"))?;
    /// assert_eq!(read.lowest(&a), 0);
    /// # Ok(()) }
    /// ```
    pub fn acknowledgements(&self) -> Acknowledgements {
        Acknowledgements { shared: Arc::clone(&self.shared), tails: self.tails.clone() }
    }

    async fn wait_tails(&self, endpoint: &Endpoint, position: u64, deadline: Instant, what: &str) -> Result<()> {
        self.acknowledgements().wait_while(endpoint, position, deadline, what, || self.see_to_copies(endpoint)).await
    }
}

impl Drop for RingSender {
    fn drop(&mut self) {
        let status = |node| self.shared.object.node().status_of(node);
        let is_member = |node| matches!(status(node), Some(MemberStatus::Member | MemberStatus::Suspected));
        let behind = self.copies.iter().filter(|copy| copy.sent.get() != self.head).map(|copy| copy.head.node());
        for node in behind.filter(|node| is_member(*node)) {
            let path = self.shared.object.path();
            tracing::warn!("{path}: the sender is dropped, and {node} lacks messages that were sent: flush it before");
        }
    }
}
