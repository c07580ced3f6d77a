//! A stream of messages from one writer to many readers.
//!
//! Every node with readers has one copy of the ring, however many readers it has. The writer keeps a copy, too, from
//! which the NIC sends.
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
//! Positions count bytes since the start, so a credit that arrives late, or twice, can only be too small. The writer
//! may use the ring up to `capacity` beyond the lowest tail.
//!
//! *Order.* The writer puts the message and then the head, both to the same node: they land in this order, so a reader
//! that sees the head sees the message. The head is sent as a copy: sent live, the head of the next message could
//! leave with this one (the wait in LOCO's Fig. 14 prevents that). The ring is sent live: its bytes are rewritten only
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
//! *A refused operation* ([`Op::accepted`](farfield_fabric::Op::accepted)) makes neither a hole nor a duplicate. A
//! head is put only after its bytes were accepted; so a copy with a refused put lags, as a whole. The writer's own
//! copy keeps the bytes until every reader has acknowledged them, and positions are absolute. So the next call puts
//! all bytes that the copy lacks, and then the head. If no copy received a head, the message was not sent. The next
//! receive repeats a refused acknowledgement.
//!
//! # When a node dies, or leaves
//!
//! *A reader's.* The writer no longer waits for it: the room that it has not returned is free, and the others get
//! every message ([`RingSender::gone`] names the nodes that do not). Sending fails only when no reader is left. A
//! reader that is stopped, and not dead, keeps its room: then [`RingSender::try_send`] returns `false`.
//!
//! *The writer's.* Readers get all complete messages, which are those with a head, and then an error that names the
//! writer. For a dead writer this happens when it is [`MemberStatus::Evicted`](crate::MemberStatus::Evicted): before,
//! another message may still land.
//!
//! *Reopened* ([`Node::reopen`]), the ring starts anew at position 0, with another writer or other readers. Receivers
//! read the rest of the old ring before they call `reopen`; a live writer waits for [`RingSender::wait_acknowledged`]
//! first.
//!
//! Source: LOCO §5.2, Fig. 14; the behaviour at a death is ours.

mod acknowledge;
mod inherit;
mod receive;
mod send;

use core::cell::Cell;
use std::sync::Arc;

use farfield_fabric::{GroupKey, NodeId, Region, Word};

pub use self::acknowledge::Acknowledgements;
pub use self::receive::RingReceiver;
use self::receive::Tail;
use self::send::RemoteCopy;
pub use self::send::RingSender;
use crate::error::{Error, ErrorContext, ErrorKind, Result};
use crate::node::{Node, Object, ObjectBuilder, Regions};
use crate::objects::options::region_bytes;
use crate::objects::participants::Participants;

/// The participants of a ring buffer, and its size.
///
/// ```
/// # fn main() -> farfield::Result<()> {
/// # let nodes = farfield::local_session(2)?;
/// use farfield::{RingBuffer, RingOptions};
/// let (a, b) = (nodes[0].id(), nodes[1].id());
/// let mut options = RingOptions::new(a, [(a, 1), (b, 3)], 1 << 16); // the writer's node reads, too
/// options.read_by_service = true; // a message wakes the service threads
/// let rings = farfield::on_each(&nodes, |node| RingBuffer::open(node, "log", options.clone()))?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct RingOptions {
    /// The node that sends.
    pub writer: NodeId,
    /// The nodes that read, with the number of readers on each. The writer's may be among them.
    pub readers: Vec<(NodeId, usize)>,
    /// Bytes of the ring, a multiple of 8. The longest message has 8 less.
    pub capacity_bytes: usize,
    /// The service threads of the readers read, not application threads: a message wakes a reader's service thread. A
    /// [`Poller`](crate::toolkit::Poller) there holds the receiver. Default: false.
    pub read_by_service: bool,
}

impl RingOptions {
    /// A ring from `writer` to one reader on every other member of the session.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let nodes = farfield::local_session(2)?;
    /// let options = farfield::RingOptions::broadcast(&nodes[0], nodes[0].id(), 1 << 16);
    /// assert_eq!(options.readers, [(nodes[1].id(), 1)]);
    /// # Ok(()) }
    /// ```
    pub fn broadcast(node: &Node, writer: NodeId, capacity_bytes: usize) -> RingOptions {
        RingOptions::broadcast_among(&node.live_members(), writer, capacity_bytes)
    }

    /// A ring from `writer` to one reader on every other one of these nodes.
    ///
    /// ```
    /// use farfield::{NodeId, RingOptions};
    /// let options = RingOptions::broadcast_among(&[NodeId(0), NodeId(2), NodeId(5)], NodeId(2), 1 << 16);
    /// assert_eq!(options.readers, [(NodeId(0), 1), (NodeId(5), 1)]);
    /// ```
    pub fn broadcast_among(members: &[NodeId], writer: NodeId, capacity_bytes: usize) -> RingOptions {
        let readers = members.iter().filter(|member| **member != writer).map(|member| (*member, 1)).collect();
        RingOptions { writer, readers, capacity_bytes, read_by_service: false }
    }

    /// A ring from `writer` to these readers.
    ///
    /// ```
    /// use farfield::{NodeId, RingOptions};
    /// let options = RingOptions::new(NodeId(0), [(NodeId(1), 4)], 1 << 16); // four threads of one node read
    /// assert_eq!((options.writer, options.read_by_service), (NodeId(0), false));
    /// ```
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
        self.readers.iter().fold(0, |sum, reader| sum.saturating_add(reader.1))
    }
}

/// A node's part in a ring buffer.
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

/// The calls, as they are measured.
const CALLS: [&str; 4] = ["send", "try_send", "recv", "try_recv"];
const SEND: usize = 0;
const TRY_SEND: usize = 1;
const RECV: usize = 2;
const TRY_RECV: usize = 3;

impl Shared {
    /// Fails if the ring was reopened, or another node waits for that. A ring read by service threads continues until
    /// the end of the object that owns it.
    fn check_unasked(&self) -> Result<()> {
        if self.options.read_by_service { Ok(()) } else { self.object.check_unasked() }
    }
}

impl RingBuffer {
    /// Opens the ring and waits for its writer and all reader nodes to do so. Only these nodes open it.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let nodes = farfield::local_session(3)?;
    /// use farfield::{RingBuffer, RingOptions};
    /// let options = RingOptions::new(nodes[0].id(), [(nodes[1].id(), 1)], 1 << 16);
    /// let rings = farfield::on_each(&nodes[..2], |node| RingBuffer::open(node, "pipe", options.clone()))?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// A node that is missing, dead or departed, or that opens it differently; no memory; invalid options.
    pub fn open(node: &Node, path: &str, options: RingOptions) -> Result<RingBuffer> {
        let ring = RingBuffer::announce(node, path, options)?;
        ring.wait()?;
        Ok(ring)
    }

    /// Opens the ring without waiting for the others. Call [`RingBuffer::wait`] before [`RingBuffer::sender`].
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let nodes = farfield::local_session(2)?;
    /// use farfield::{RingBuffer, RingOptions};
    /// let open = |node, path| RingBuffer::announce(node, path, RingOptions::broadcast(node, nodes[0].id(), 1 << 12));
    /// let there = (open(&nodes[1], "requests")?, open(&nodes[1], "answers")?); // one thread opens all of them
    /// let here = (open(&nodes[0], "requests")?, open(&nodes[0], "answers")?);
    /// here.0.wait()?;
    /// let sender = here.0.sender()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Memory is exhausted, or the options are invalid.
    pub fn announce(node: &Node, path: &str, options: RingOptions) -> Result<RingBuffer> {
        let layout = format!("{options:?}");
        RingBuffer::announce_as(node, path, options, "RingBuffer", &layout)
    }

    /// [`RingBuffer::announce`] for an object of another kind, which consists of this ring.
    pub(crate) fn announce_as(
        node: &Node,
        path: &str,
        options: RingOptions,
        kind: &'static str,
        layout: &str,
    ) -> Result<RingBuffer> {
        let refuse = |why: &str| Err(Error::from(ErrorKind::Config { why: why.into() }).of(path));
        let capacity = options.capacity_bytes;
        region_bytes(capacity / 8, 1, "`capacity_bytes`").of(path)?;
        if capacity < 64 || !capacity.is_multiple_of(8) {
            return refuse("`capacity_bytes` has to be a multiple of 8, and at least 64");
        }
        let mut nodes: Vec<NodeId> = options.readers.iter().map(|reader| reader.0).collect();
        nodes.sort_unstable();
        nodes.dedup();
        if nodes.is_empty() || nodes.len() < options.readers.len() || options.readers.iter().any(|reader| reader.1 == 0)
        {
            return refuse("`readers` has to name at least one node, and each node once, with at least one reader");
        }
        let participants = Participants::new(&[nodes.as_slice(), &[options.writer]].concat());

        let head_group = if options.read_by_service { GroupKey::SERVICE } else { GroupKey::SIGNAL };
        let mut regions = Regions::new(node);
        let ring = regions.alloc("ring", GroupKey::DATA, capacity).of(path)?;
        let head = regions.alloc("head", head_group, 8).of(path)?;
        let tails_bytes = region_bytes(options.reader_count(), 1, "the readers on each node").of(path)?;
        let tails = if node.id() == options.writer {
            Some(regions.alloc("tails", GroupKey::SIGNAL, tails_bytes).of(path)?)
        } else {
            None
        };
        let writer = options.writer;
        let expect = move |peer| {
            let mut expected = vec![("ring".into(), capacity as u64), ("head".into(), 8)];
            if peer == writer {
                expected.push(("tails".into(), tails_bytes as u64));
            }
            expected
        };
        // A message between service threads is no call of a user.
        let calls: &[&str] = if options.read_by_service { &[] } else { &CALLS };
        let opening = ObjectBuilder::new(node, path, kind).layout(layout).calls(calls);
        let object = opening.participants(participants.iter()).regions(regions).require_regions(expect).announce()?;
        let (sender_taken, receivers_taken) = (Word::new(0), Word::new(0));
        Ok(RingBuffer(Arc::new(Shared { object, options, ring, head, tails, sender_taken, receivers_taken })))
    }

    /// Waits until the writer and all reader nodes have opened the ring.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let nodes = farfield::local_session(2)?;
    /// # use farfield::{RingBuffer, RingOptions};
    /// # let options = RingOptions::broadcast(&nodes[0], nodes[0].id(), 1 << 12);
    /// let here = RingBuffer::announce(&nodes[0], "log", options.clone())?;
    /// let there = RingBuffer::announce(&nodes[1], "log", options)?;
    /// here.wait()?; // both have opened it
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// A node that is missing, dead or departed, or that opens it differently.
    pub fn wait(&self) -> Result<()> {
        let node = self.0.object.node();
        self.0.object.wait_with(&node.endpoint()?, node.timeout())
    }

    /// The writer, once, on the writer's node.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let nodes = farfield::local_session(2)?;
    /// # let (a, b, writer) = (nodes[0].endpoint()?, nodes[1].endpoint()?, nodes[0].id());
    /// # let options = |node: &farfield::Node| farfield::RingOptions::broadcast(node, writer, 1 << 12);
    /// # let rings = farfield::on_each(&nodes, |node| farfield::RingBuffer::open(node, "log", options(node)))?;
    /// let mut sender = rings[0].sender()?;
    /// assert!(sender.try_send(&a, b"hello")?);
    /// assert!(rings[0].sender().is_err()); // the only writer is taken
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// This is another node, or the writer is already in use.
    pub fn sender(&self) -> Result<RingSender> {
        let shared = &self.0;
        let me = shared.object.node().id();
        let Some(tails) = shared.tails.clone() else {
            return self.refuse(format!("only {} can send", shared.options.writer));
        };
        let copy = |node| -> Result<RemoteCopy> {
            let (ring, head) = (shared.object.remote(node, "ring")?, shared.object.remote(node, "head")?);
            Ok(RemoteCopy { ring, head, sent: Cell::new(0) })
        };
        let remote = shared.options.readers.iter().map(|reader| reader.0).filter(|node| *node != me);
        let copies = remote.map(copy).collect::<Result<_>>()?;
        if shared.sender_taken.compare_exchange(0, 1).is_err() {
            return self.refuse("its only writer is already taken".into());
        }
        Ok(RingSender {
            tails,
            head: 0,
            lowest: 0,
            copies,
            has_local_readers: shared.options.readers_on(me) > 0,
            shared: Arc::clone(shared),
        })
    }

    /// One more reader of this node.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let nodes = farfield::local_session(2)?;
    /// # let (a, b, writer) = (nodes[0].endpoint()?, nodes[1].endpoint()?, nodes[0].id());
    /// # let options = |node: &farfield::Node| farfield::RingOptions::broadcast(node, writer, 1 << 12);
    /// # let rings = farfield::on_each(&nodes, |node| farfield::RingBuffer::open(node, "log", options(node)))?;
    /// let receiver = rings[1].receiver()?;
    /// assert!(rings[1].receiver().is_err()); // the options name one reader of this node
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// All readers of this node are in use.
    pub fn receiver(&self) -> Result<RingReceiver> {
        let shared = &self.0;
        let me = shared.object.node().id();
        let index = shared.receivers_taken.fetch_add(1) as usize;
        if index >= shared.options.readers_on(me) {
            return self
                .refuse(format!("it has {} readers on this node, and all are taken", shared.options.readers_on(me)));
        }
        let offset = (shared.options.readers_before(me) + index) * 8;
        let tail = if me == shared.options.writer {
            Tail::Local(offset)
        } else {
            Tail::Remote(shared.object.remote::<u64>(shared.options.writer, "tails")?.byte_add(offset as u64))
        };
        Ok(RingReceiver::new(Arc::clone(shared), tail))
    }

    fn refuse<T>(&self, why: String) -> Result<T> {
        Err(ErrorKind::NotAParticipant { why }).of(self.0.object.path())
    }
}

/// Bytes of a message in the ring.
#[inline]
pub(crate) fn framed_bytes(len: usize) -> usize {
    8 + len.next_multiple_of(8)
}
