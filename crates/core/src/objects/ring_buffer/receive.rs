//! The readers of a ring.

use std::sync::Arc;

use farfield_fabric::{Endpoint, Instant, RemotePtr, Word, append_bytes};

use super::{RECV, Shared, TRY_RECV, framed_bytes};
use crate::error::{ErrorContext, ErrorKind, Result};
use crate::node::measured;

/// One reader of a ring buffer.
///
/// ```
/// # fn main() -> farfield::Result<()> {
/// # let nodes = farfield::local_session(2)?;
/// # let (a, b, writer) = (nodes[0].endpoint()?, nodes[1].endpoint()?, nodes[0].id());
/// # let options = |node: &farfield::Node| farfield::RingOptions::broadcast(node, writer, 1 << 12);
/// # let rings = farfield::on_each(&nodes, |node| farfield::RingBuffer::open(node, "log", options(node)))?;
/// # let mut sender = rings[0].sender()?;
/// let (mut receiver, mut message) = (rings[1].receiver()?, Vec::new()); // reused for each message
/// for text in ["one", "two"] {
///     a.block_on(sender.send(&a, text.as_bytes()))?;
///     b.block_on(receiver.recv(&b, &mut message))?;
///     assert_eq!(message, text.as_bytes());
/// }
/// # Ok(()) }
/// ```
pub struct RingReceiver {
    pub(super) shared: Arc<Shared>,
    /// Where the next message begins.
    pub(super) position: u64,
    /// The head when it was last read: the messages up to there have landed.
    seen: u64,
    /// The caller has acknowledged everything before this position.
    dealt_with: u64,
    /// The last position reported to the writer, which may reuse the space before it. Below `dealt_with` only while
    /// reports are refused.
    told: u64,
    tail: Tail,
}

pub(super) enum Tail {
    Local(usize),
    Remote(RemotePtr<u64>),
}

impl RingReceiver {
    pub(super) fn new(shared: Arc<Shared>, tail: Tail) -> RingReceiver {
        RingReceiver { shared, position: 0, seen: 0, dealt_with: 0, told: 0, tail }
    }

    pub(crate) fn path(&self) -> &str {
        self.shared.object.path()
    }

    /// Receives a message if there is one: its bytes replace those of `into`.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let nodes = farfield::local_session(2)?;
    /// # let (a, b, writer) = (nodes[0].endpoint()?, nodes[1].endpoint()?, nodes[0].id());
    /// # let options = |node: &farfield::Node| farfield::RingOptions::broadcast(node, writer, 1 << 12);
    /// # let rings = farfield::on_each(&nodes, |node| farfield::RingBuffer::open(node, "log", options(node)))?;
    /// # let (mut sender, mut receiver, mut message) = (rings[0].sender()?, rings[1].receiver()?, Vec::<u8>::new());
    /// assert!(!receiver.try_recv(&b, &mut message)?); // there is none
    /// a.block_on(sender.send(&a, b"hello"))?;
    /// a.block_on(a.global_fence(nodes[0].others()))?;
    /// assert!(receiver.try_recv(&b, &mut message)?);
    /// assert_eq!(message, b"hello");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The writer's node is unreachable and has left no more messages. Or there is no message, and the acknowledgement
    /// of the last ones was refused (see [`RingReceiver::acknowledge`]). No message is lost by an error: call it again.
    pub fn try_recv(&mut self, endpoint: &Endpoint, into: &mut Vec<u8>) -> Result<bool> {
        let meter = self.shared.object.meter();
        if meter.is_on() && meter.measures(endpoint, TRY_RECV) {
            return self.try_recv_measured(endpoint, into);
        }
        let received = self.receive(endpoint, into)?;
        if received {
            // The message already belongs to the caller. If this is refused, the next call retries it and reports a
            // second refusal.
            let _ = self.acknowledge(endpoint);
        }
        Ok(received)
    }

    /// A look that finds nothing is not counted.
    #[cold]
    fn try_recv_measured(&mut self, endpoint: &Endpoint, into: &mut Vec<u8>) -> Result<bool> {
        let meter = self.shared.object.meter();
        let timing = meter.start(endpoint, TRY_RECV);
        meter.skip(endpoint, TRY_RECV);
        let received = self.try_recv(endpoint, into);
        if !matches!(received, Ok(false)) {
            timing.end(endpoint, &received);
        }
        received
    }

    /// Like [`RingReceiver::try_recv`], but only [`RingReceiver::acknowledge`] notifies the writer.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let nodes = farfield::local_session(2)?;
    /// # let (a, b, writer) = (nodes[0].endpoint()?, nodes[1].endpoint()?, nodes[0].id());
    /// # let options = |node: &farfield::Node| farfield::RingOptions::broadcast(node, writer, 1 << 12);
    /// # let rings = farfield::on_each(&nodes, |node| farfield::RingBuffer::open(node, "log", options(node)))?;
    /// # let (mut sender, mut receiver, mut message) = (rings[0].sender()?, rings[1].receiver()?, Vec::<u8>::new());
    /// a.block_on(sender.send(&a, b"hello"))?;
    /// a.block_on(a.global_fence(nodes[0].others()))?;
    /// assert!(receiver.try_recv_unacknowledged(&b, &mut message)?);
    /// assert!(!sender.is_acknowledged(&a, sender.position())); // the writer keeps it
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As `try_recv`.
    pub fn try_recv_unacknowledged(&mut self, endpoint: &Endpoint, into: &mut Vec<u8>) -> Result<bool> {
        self.receive(endpoint, into)
    }

    #[inline(always)]
    fn receive(&mut self, endpoint: &Endpoint, into: &mut Vec<u8>) -> Result<bool> {
        let shared = &*self.shared;
        let capacity = shared.options.capacity_bytes;
        // The head is read again only when all messages up to the last one seen are received: it changes with each
        // message, and its cache line moves from core to core.
        if self.seen <= self.position {
            self.seen = shared.head.word(0).load();
            if self.seen <= self.position {
                return self.finds_none(endpoint);
            }
        }
        // The head was read first; all messages that it covers landed before it.
        let at = (self.position % capacity as u64) as usize;
        let len = shared.ring.word(at).load() as usize;
        if framed_bytes(len.min(capacity)) > capacity {
            return self.is_corrupt(len);
        }
        // Up to the end of the ring, and the rest from its beginning.
        let words = len.div_ceil(8);
        let first = words.min((capacity - 8 - at) / 8);
        into.clear();
        append_bytes(shared.ring.words(at + 8, first), into);
        if words > first {
            append_rest(shared.ring.words(0, words - first), into);
        }
        into.truncate(len);
        self.position += framed_bytes(len) as u64;
        Ok(true)
    }

    #[cold]
    #[inline(never)]
    fn finds_none(&mut self, endpoint: &Endpoint) -> Result<bool> {
        self.check_writer(endpoint)?;
        self.tell_again(endpoint).map(|()| false)
    }

    #[cold]
    #[inline(never)]
    fn is_corrupt(&self, len: usize) -> Result<bool> {
        let what = format!("a message of {len} bytes in a ring of {}", self.shared.options.capacity_bytes);
        Err(ErrorKind::Corrupt { what }).of(self.shared.object.path())
    }

    /// Checks whether another message may still arrive, although there is none now.
    #[inline(never)]
    fn check_writer(&self, endpoint: &Endpoint) -> Result<()> {
        let shared = &*self.shared;
        match shared.object.node().fenced_error(endpoint, shared.options.writer) {
            // It may have sent its last messages just before it died or left.
            Some(gone) if shared.head.word(0).load() <= self.position => Err(gone).of(shared.object.path()),
            Some(_) => Ok(()),
            // A reopened ring continues as another generation.
            None => shared.check_unasked(),
        }
    }

    /// Acknowledges everything received so far, so that the writer may reuse its space.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let nodes = farfield::local_session(2)?;
    /// # let (a, b, writer) = (nodes[0].endpoint()?, nodes[1].endpoint()?, nodes[0].id());
    /// # let options = |node: &farfield::Node| farfield::RingOptions::broadcast(node, writer, 1 << 12);
    /// # let rings = farfield::on_each(&nodes, |node| farfield::RingBuffer::open(node, "log", options(node)))?;
    /// # let (mut sender, mut receiver, mut message) = (rings[0].sender()?, rings[1].receiver()?, Vec::<u8>::new());
    /// a.block_on(sender.send(&a, b"hello"))?;
    /// a.block_on(a.global_fence(nodes[0].others()))?;
    /// while receiver.try_recv_unacknowledged(&b, &mut message)? {
    ///     // … make its effect durable …
    /// }
    /// receiver.acknowledge(&b)?; // the writer may reuse the space of all of them
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The operation was refused, for lack of memory, or because this node was evicted. The next `acknowledge`, or the
    /// next receive that finds no message, notifies the writer.
    #[inline]
    pub fn acknowledge(&mut self, endpoint: &Endpoint) -> Result<()> {
        self.dealt_with = self.position;
        self.tell_again(endpoint)
    }

    /// Reports to the writer any acknowledged space that it does not know of. The writer may wait for that space, and
    /// would wait for ever without the report.
    #[inline(always)]
    fn tell_again(&mut self, endpoint: &Endpoint) -> Result<()> {
        if self.told == self.dealt_with {
            return Ok(());
        }
        let told = self.tell_writer(endpoint, self.dealt_with);
        if told.is_ok() {
            self.told = self.dealt_with;
        }
        told
    }

    /// Returns the space before a position to the writer.
    #[inline(always)]
    fn tell_writer(&self, endpoint: &Endpoint, position: u64) -> Result<()> {
        match (&self.tail, &self.shared.tails) {
            (Tail::Local(offset), Some(tails)) => {
                tails.word(*offset).store(position);
                endpoint.wake_local();
                Ok(())
            }
            (Tail::Local(_), None) => Ok(()),
            (Tail::Remote(tail), _) => match endpoint.put_value(*tail, position).detach() {
                // An unreachable writer reuses no space.
                Err(error) if !error.is_unreachable() => Err(error).of(self.shared.object.path()),
                _ => Ok(()),
            },
        }
    }

    /// Receives the next message, waiting for it as long as the endpoint's timeout.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let nodes = farfield::local_session(2)?;
    /// # let (a, b, writer) = (nodes[0].endpoint()?, nodes[1].endpoint()?, nodes[0].id());
    /// # let options = |node: &farfield::Node| farfield::RingOptions::broadcast(node, writer, 1 << 12);
    /// # let rings = farfield::on_each(&nodes, |node| farfield::RingBuffer::open(node, "log", options(node)))?;
    /// # let (mut sender, mut receiver, mut message) = (rings[0].sender()?, rings[1].receiver()?, Vec::<u8>::new());
    /// a.block_on(sender.send(&a, b"hello"))?;
    /// b.block_on(receiver.recv(&b, &mut message))?;
    /// assert_eq!(message, b"hello");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// A timeout, or as [`RingReceiver::try_recv`].
    pub async fn recv(&mut self, endpoint: &Endpoint, into: &mut Vec<u8>) -> Result<()> {
        self.recv_deadline(endpoint, into, endpoint.deadline()).await
    }

    /// [`RingReceiver::recv`] with a deadline.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let nodes = farfield::local_session(2)?;
    /// # let (a, b, writer) = (nodes[0].endpoint()?, nodes[1].endpoint()?, nodes[0].id());
    /// # let options = |node: &farfield::Node| farfield::RingOptions::broadcast(node, writer, 1 << 12);
    /// # let rings = farfield::on_each(&nodes, |node| farfield::RingBuffer::open(node, "log", options(node)))?;
    /// # let (mut sender, mut receiver, mut message) = (rings[0].sender()?, rings[1].receiver()?, Vec::<u8>::new());
    /// let deadline = b.now() + std::time::Duration::from_millis(10);
    /// let error = b.block_on(receiver.recv_deadline(&b, &mut message, deadline)).unwrap_err();
    /// assert!(error.is_timeout()); // no message came
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As `recv`.
    pub async fn recv_deadline(&mut self, endpoint: &Endpoint, into: &mut Vec<u8>, deadline: Instant) -> Result<()> {
        let meter = self.shared.object.meter();
        measured!(meter, endpoint, RECV, self.recv_deadline(endpoint, into, deadline));
        loop {
            meter.skip(endpoint, TRY_RECV);
            if self.try_recv(endpoint, into)? {
                return Ok(());
            }
            let (shared, position) = (Arc::clone(&self.shared), self.position);
            let head = shared.head.word(0);
            let has_come = || (head.load() > position).then_some(Ok(()));
            if endpoint.spin_until(has_come).is_some() {
                continue;
            }
            let fails = || self.check_writer(endpoint).and_then(|()| self.tell_again(endpoint)).err().map(Err);
            let waited = endpoint.wait_until_or(deadline, has_come, fails).await;
            waited.waiting_for_nodes("a message", &[shared.options.writer]).of(shared.object.path())??;
        }
    }
}

/// The part of a message behind the end of the ring.
#[cold]
#[inline(never)]
fn append_rest(words: &[Word], into: &mut Vec<u8>) {
    append_bytes(words, into);
}
