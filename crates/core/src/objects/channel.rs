//! A stream of typed values from one writer to many readers: a [`RingBuffer`] with values as messages.
//!
//! A message is the words of one value, as in a slot of a [`KvStore`](crate::KvStore) or a cell of a
//! [`Queue`](crate::Queue). Memory, order, credit, costs and the behaviour at a death are those of the ring
//! ([`ring_buffer`](crate::objects::ring_buffer)):
//!
//! - Each reader gets each value once, in the order of sending. (In a [`Queue`](crate::Queue), by contrast, each
//!   value is taken by one consumer only.)
//! - A reader that does not read holds up the writer, once the channel is full. A dead or departed reader does not.
//! - If the writer dies or leaves, readers get the values that it has sent, and then an error that names its node.
//!
//! | call | round trips | operations |
//! |---|---|---|
//! | `try_send`, r remote reader nodes | 0 (not waited for) | 2·r puts, 3·r when the message wraps around the end |
//! | `try_recv`, a value | 0 | 1 put of 8 bytes; none on the writer's node |
//! | `try_recv`, empty | 0 | none |
//!
//! A call that is dropped before its end has sent its value or not, and loses no received one.

use core::marker::PhantomData;

use farfield_fabric::{Endpoint, Instant, NodeId};
use zerocopy::IntoBytes;

use crate::error::{Error, ErrorContext, ErrorKind, Result};
use crate::node::Node;
use crate::objects::codec::Value;
use crate::objects::options::{at_least_one, region_bytes};
use crate::objects::ring_buffer::{RingBuffer, RingOptions, RingReceiver, RingSender, framed_bytes};

/// The participants of a channel, and its size in values. All of its nodes must agree.
///
/// ```
/// # fn main() -> farfield::Result<()> {
/// # let nodes = farfield::local_session(2)?;
/// use farfield::{ByteString, Channel, ChannelOptions};
/// let (a, b) = (nodes[0].id(), nodes[1].id());
/// let options = ChannelOptions { value_bytes_max: 500, ..ChannelOptions::new(a, [(b, 2)], 64) };
/// let open = |node: &farfield::Node| Channel::<ByteString>::open(node, "lines", options.clone());
/// let lines = farfield::on_each(&nodes, open)?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct ChannelOptions {
    /// The node that sends.
    pub writer: NodeId,
    /// The nodes that read, with the number of readers on each. The writer's may be among them.
    pub readers: Vec<(NodeId, usize)>,
    /// The channel has room for so many values of the greatest length, and for more that are shorter.
    pub capacity: usize,
    /// The longest value, in bytes, where values have no fixed length.
    pub value_bytes_max: usize,
}

impl ChannelOptions {
    /// A channel from `writer` to these readers, with room for `capacity` values.
    ///
    /// ```
    /// use farfield::{ChannelOptions, NodeId};
    /// let options = ChannelOptions::new(NodeId(0), [(NodeId(1), 4)], 64); // four threads of one node read
    /// assert_eq!((options.capacity, options.value_bytes_max), (64, 64));
    /// ```
    pub fn new(writer: NodeId, readers: impl IntoIterator<Item = (NodeId, usize)>, capacity: usize) -> Self {
        ChannelOptions { writer, readers: readers.into_iter().collect(), capacity, value_bytes_max: 64 }
    }

    /// A channel from `writer` to one reader on every other member of the session.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let nodes = farfield::local_session(2)?;
    /// let options = farfield::ChannelOptions::broadcast(&nodes[0], nodes[0].id(), 64);
    /// assert_eq!(options.readers, [(nodes[1].id(), 1)]);
    /// # Ok(()) }
    /// ```
    pub fn broadcast(node: &Node, writer: NodeId, capacity: usize) -> ChannelOptions {
        ChannelOptions::broadcast_among(&node.live_members(), writer, capacity)
    }

    /// A channel from `writer` to one reader on every other one of these nodes.
    ///
    /// ```
    /// use farfield::{ChannelOptions, NodeId};
    /// let options = ChannelOptions::broadcast_among(&[NodeId(0), NodeId(2), NodeId(5)], NodeId(2), 64);
    /// assert_eq!(options.readers, [(NodeId(0), 1), (NodeId(5), 1)]);
    /// ```
    pub fn broadcast_among(members: &[NodeId], writer: NodeId, capacity: usize) -> ChannelOptions {
        let RingOptions { readers, .. } = RingOptions::broadcast_among(members, writer, 0);
        ChannelOptions::new(writer, readers, capacity)
    }

    /// The options of its ring.
    fn ring<T: Value>(&self) -> Result<RingOptions> {
        at_least_one(&[("capacity", self.capacity)])?;
        let to_reduce = "`capacity` or `value_bytes_max`";
        let longest = region_bytes(1, T::words(self.value_bytes_max), to_reduce)?;
        let capacity_bytes = region_bytes(self.capacity, framed_bytes(longest) / 8, to_reduce)?;
        Ok(RingOptions::new(self.writer, self.readers.iter().copied(), capacity_bytes.max(RING_BYTES_MIN)))
    }
}

/// The most bytes of a channel.
/// The fewest bytes of a ring.
const RING_BYTES_MIN: usize = 64;

/// A node's part in a channel: a stream of values from one writer to many readers.
///
/// Values are plain data, [`ByteString`](crate::ByteString)s up to a configured length, or with the feature `serde`
/// anything that serde can encode (`Encoded`).
///
/// ```
/// # fn main() -> farfield::Result<()> {
/// use farfield::{Channel, ChannelOptions};
/// let nodes = farfield::local_session(2)?;
/// let writer = nodes[0].id();
/// let open = |node: &farfield::Node| Channel::open(node, "prices", ChannelOptions::broadcast(node, writer, 64));
/// let prices = farfield::on_each(&nodes, open)?;
/// let (mut sender, mut receiver) = (prices[0].sender()?, prices[1].receiver()?);
/// let (near, far) = (nodes[0].endpoint()?, nodes[1].endpoint()?);
/// near.block_on(sender.send(&near, &[17, 250]))?;
/// assert_eq!(far.block_on(receiver.recv(&far))?, [17u32, 250]);
/// # Ok(()) }
/// ```
pub struct Channel<T: Value> {
    ring: RingBuffer,
    value_bytes_max: usize,
    values: PhantomData<fn(T) -> T>,
}

impl<T: Value> Clone for Channel<T> {
    fn clone(&self) -> Channel<T> {
        Channel { ring: self.ring.clone(), ..*self }
    }
}

impl<T: Value> Channel<T> {
    /// Opens the channel, and waits for its writer and all reader nodes to do so. Only these nodes open it.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let nodes = farfield::local_session(3)?;
    /// use farfield::{Channel, ChannelOptions};
    /// let options = ChannelOptions::new(nodes[0].id(), [(nodes[1].id(), 1)], 64);
    /// farfield::on_each(&nodes[..2], |node| Channel::<u64>::open(node, "pipe", options.clone()))?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// A node that is missing, dead or departed, or that opens it differently; no memory; invalid options.
    pub fn open(node: &Node, path: &str, options: ChannelOptions) -> Result<Channel<T>> {
        let value_bytes_max = options.value_bytes_max;
        let layout = format!("{options:?}, values of {} words", T::words(value_bytes_max));
        let ring = RingBuffer::announce_as(node, path, options.ring::<T>().of(path)?, "Channel", &layout)?;
        ring.wait()?;
        Ok(Channel { ring, value_bytes_max, values: PhantomData })
    }

    /// The writer, once, on the writer's node.
    ///
    /// ```
    /// # let node = farfield::Node::builder().start()?; let me = node.id();
    /// # use farfield::{Channel, ChannelOptions};
    /// let channel = Channel::<u64>::open(&node, "log", ChannelOptions::new(me, [(me, 1)], 8))?;
    /// let sender = channel.sender()?;
    /// assert!(channel.sender().is_err()); // the only writer is taken
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// This is another node, or the writer is already in use.
    pub fn sender(&self) -> Result<ChannelSender<T>> {
        let words = vec![0; T::words(self.value_bytes_max)];
        Ok(ChannelSender {
            ring: self.ring.sender()?,
            words,
            value_bytes_max: self.value_bytes_max,
            values: PhantomData,
        })
    }

    /// One more reader of this node.
    ///
    /// ```
    /// # let node = farfield::Node::builder().start()?; let me = node.id();
    /// # use farfield::{Channel, ChannelOptions};
    /// let channel = Channel::<u64>::open(&node, "log", ChannelOptions::new(me, [(me, 1)], 8))?;
    /// let receiver = channel.receiver()?;
    /// assert!(channel.receiver().is_err()); // the options name one reader of this node
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// All readers of this node are in use.
    pub fn receiver(&self) -> Result<ChannelReceiver<T>> {
        Ok(ChannelReceiver { ring: self.ring.receiver()?, bytes: vec![], words: vec![], values: PhantomData })
    }
}

/// The one writer of a channel.
///
/// ```
/// # let node = farfield::Node::builder().start()?; let (ep, me) = (node.endpoint()?, node.id());
/// # use farfield::{Channel, ChannelOptions};
/// # let channel = Channel::<u64>::open(&node, "log", ChannelOptions::new(me, [(me, 1)], 8))?;
/// # let mut receiver = channel.receiver()?;
/// let mut sender = channel.sender()?;
/// ep.block_on(sender.send(&ep, &7))?;
/// # ep.block_on(receiver.recv(&ep))?;
/// ep.block_on(sender.ring().wait_acknowledged(&ep, sender.ring().position(), ep.deadline()))?; // all have read it
/// # Ok::<(), farfield::Error>(())
/// ```
pub struct ChannelSender<T: Value> {
    ring: RingSender,
    /// The words of the value that is being sent: room for the longest.
    words: Vec<u64>,
    value_bytes_max: usize,
    values: PhantomData<fn(T)>,
}

impl<T: Value> ChannelSender<T> {
    /// Sends a value if there is room for it now. Returns whether there was. See [`RingSender::try_send`].
    ///
    /// ```
    /// # let node = farfield::Node::builder().start()?; let (ep, me) = (node.endpoint()?, node.id());
    /// # use farfield::{Channel, ChannelOptions};
    /// # let channel = Channel::<u64>::open(&node, "log", ChannelOptions::new(me, [(me, 1)], 8))?;
    /// let (mut sender, mut sent) = (channel.sender()?, 0);
    /// while sender.try_send(&ep, &sent)? {
    ///     sent += 1;
    /// }
    /// assert_eq!(sent, 8); // it is full
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// The value is too long ([`ErrorKind::TooLarge`]), or as `RingSender::try_send`.
    pub fn try_send(&mut self, endpoint: &Endpoint, value: &T) -> Result<bool> {
        let used = self.encode(value)?;
        self.ring.try_send(endpoint, self.words[..used].as_bytes())
    }

    /// Sends a value, waiting for room as long as the endpoint's timeout.
    ///
    /// ```
    /// # let node = farfield::Node::builder().start()?; let (ep, me) = (node.endpoint()?, node.id());
    /// # use farfield::{Channel, ChannelOptions};
    /// # let channel = Channel::<u64>::open(&node, "log", ChannelOptions::new(me, [(me, 1)], 8))?;
    /// # let (mut sender, mut receiver) = (channel.sender()?, channel.receiver()?);
    /// ep.block_on(sender.send(&ep, &7))?;
    /// assert_eq!(ep.block_on(receiver.recv(&ep))?, 7);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As `try_send`, or a timeout that names the slow readers. Then nothing was sent.
    pub async fn send(&mut self, endpoint: &Endpoint, value: &T) -> Result<()> {
        self.send_deadline(endpoint, value, endpoint.deadline()).await
    }

    /// [`ChannelSender::send`] with a deadline.
    ///
    /// ```
    /// # let node = farfield::Node::builder().start()?; let (ep, me) = (node.endpoint()?, node.id());
    /// # use farfield::{Channel, ChannelOptions};
    /// # let channel = Channel::<u64>::open(&node, "log", ChannelOptions::new(me, [(me, 1)], 8))?;
    /// # let mut sender = channel.sender()?;
    /// let deadline = ep.now() + std::time::Duration::from_millis(100);
    /// ep.block_on(sender.send_deadline(&ep, &7, deadline))?;
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As `send`.
    pub async fn send_deadline(&mut self, endpoint: &Endpoint, value: &T, deadline: Instant) -> Result<()> {
        let used = self.encode(value)?;
        self.ring.send_deadline(endpoint, self.words[..used].as_bytes(), deadline).await
    }

    /// The writer of its ring: positions, acknowledgements, the readers that are gone, and what is to be flushed.
    ///
    /// ```
    /// # let node = farfield::Node::builder().start()?; let (ep, me) = (node.endpoint()?, node.id());
    /// # use farfield::{Channel, ChannelOptions};
    /// # let channel = Channel::<u64>::open(&node, "log", ChannelOptions::new(me, [(me, 1)], 8))?;
    /// let mut sender = channel.sender()?;
    /// sender.try_send(&ep, &7)?;
    /// assert!(!sender.ring().is_acknowledged(&ep, sender.ring().position())); // not read yet
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn ring(&self) -> &RingSender {
        &self.ring
    }

    /// Writes a value into `words`; how many it takes.
    fn encode(&mut self, value: &T) -> Result<usize> {
        let (bytes, max_bytes) = (value.bytes(), self.value_bytes_max);
        if !T::FIXED && bytes > max_bytes {
            return Err(Error::from(ErrorKind::TooLarge { bytes, max_bytes }).of(self.ring.path()));
        }
        Ok(value.encode(&mut self.words))
    }
}

/// One reader of a channel.
///
/// ```
/// # let node = farfield::Node::builder().start()?; let (ep, me) = (node.endpoint()?, node.id());
/// # use farfield::{Channel, ChannelOptions};
/// # let channel = Channel::<u64>::open(&node, "log", ChannelOptions::new(me, [(me, 1)], 8))?;
/// let (mut sender, mut receiver) = (channel.sender()?, channel.receiver()?);
/// for value in [17, 18] {
///     ep.block_on(sender.send(&ep, &value))?;
///     assert_eq!(ep.block_on(receiver.recv(&ep))?, value);
/// }
/// # Ok::<(), farfield::Error>(())
/// ```
pub struct ChannelReceiver<T: Value> {
    ring: RingReceiver,
    /// The last message, as bytes and as words.
    bytes: Vec<u8>,
    words: Vec<u64>,
    values: PhantomData<fn() -> T>,
}

impl<T: Value> ChannelReceiver<T> {
    /// Receives a value if there is one. Its room is the writer's again.
    ///
    /// ```
    /// # let node = farfield::Node::builder().start()?; let (ep, me) = (node.endpoint()?, node.id());
    /// # use farfield::{Channel, ChannelOptions};
    /// # let channel = Channel::<u64>::open(&node, "log", ChannelOptions::new(me, [(me, 1)], 8))?;
    /// # let (mut sender, mut receiver) = (channel.sender()?, channel.receiver()?);
    /// assert_eq!(receiver.try_recv(&ep)?, None);
    /// sender.try_send(&ep, &7)?;
    /// assert_eq!(receiver.try_recv(&ep)?, Some(7));
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`RingReceiver::try_recv`]. A message that is no value of this type ([`ErrorKind::Corrupt`]): the next call
    /// receives the next one.
    pub fn try_recv(&mut self, endpoint: &Endpoint) -> Result<Option<T>> {
        let received = self.ring.try_recv(endpoint, &mut self.bytes)?;
        received.then(|| self.decode()).transpose()
    }

    /// Receives the next value, waiting for it as long as the endpoint's timeout.
    ///
    /// ```
    /// # let node = farfield::Node::builder().start()?; let (ep, me) = (node.endpoint()?, node.id());
    /// # use farfield::{Channel, ChannelOptions};
    /// # let channel = Channel::<u64>::open(&node, "log", ChannelOptions::new(me, [(me, 1)], 8))?;
    /// # let (mut sender, mut receiver) = (channel.sender()?, channel.receiver()?);
    /// ep.block_on(sender.send(&ep, &7))?;
    /// assert_eq!(ep.block_on(receiver.recv(&ep))?, 7);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// A timeout, or as `try_recv`.
    pub async fn recv(&mut self, endpoint: &Endpoint) -> Result<T> {
        self.recv_deadline(endpoint, endpoint.deadline()).await
    }

    /// [`ChannelReceiver::recv`] with a deadline.
    ///
    /// ```
    /// # let node = farfield::Node::builder().start()?; let (ep, me) = (node.endpoint()?, node.id());
    /// # use farfield::{Channel, ChannelOptions};
    /// # let channel = Channel::<u64>::open(&node, "log", ChannelOptions::new(me, [(me, 1)], 8))?;
    /// # let mut receiver = channel.receiver()?;
    /// let deadline = ep.now() + std::time::Duration::from_millis(10);
    /// let error = ep.block_on(receiver.recv_deadline(&ep, deadline)).unwrap_err();
    /// assert!(error.is_timeout()); // no value came
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As `recv`.
    pub async fn recv_deadline(&mut self, endpoint: &Endpoint, deadline: Instant) -> Result<T> {
        self.ring.recv_deadline(endpoint, &mut self.bytes, deadline).await?;
        self.decode()
    }

    /// The reader of its ring: positions.
    ///
    /// ```
    /// # let node = farfield::Node::builder().start()?; let (ep, me) = (node.endpoint()?, node.id());
    /// # use farfield::{Channel, ChannelOptions};
    /// # let channel = Channel::<u64>::open(&node, "log", ChannelOptions::new(me, [(me, 1)], 8))?;
    /// # let (mut sender, mut receiver) = (channel.sender()?, channel.receiver()?);
    /// sender.try_send(&ep, &7)?;
    /// receiver.try_recv(&ep)?;
    /// assert_eq!(receiver.ring().position(), sender.ring().position());
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn ring(&self) -> &RingReceiver {
        &self.ring
    }

    /// The value of the last message.
    fn decode(&mut self) -> Result<T> {
        self.words.clear();
        self.words.resize(self.bytes.len().div_ceil(8), 0);
        self.words.as_mut_bytes()[..self.bytes.len()].copy_from_slice(&self.bytes);
        match T::decode(&self.words) {
            Some((value, used)) if used * 8 == self.bytes.len() => Ok(value),
            _ => {
                let what = format!("a message of {} bytes is no value of this channel", self.bytes.len());
                Err(ErrorKind::Corrupt { what }).of(self.ring.path())
            }
        }
    }
}
