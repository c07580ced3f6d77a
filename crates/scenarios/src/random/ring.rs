//! A ring buffer: each reader gets each message once, in order, whole, and knows then what the writer knew.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use farfield_core::fabric::Instant;
use farfield_core::{Endpoint, Node, NodeId, Result, RingBuffer, RingOptions, RingReceiver, RingSender};

use super::knowledge::Party;
use super::peril::Peril;
use super::{Object, Program, Step};
use crate::keep;
use farfield_check::crashed;
use farfield_check::parts::Excuse;

/// A call that waits ends when this has passed, and nothing else can happen.
const PATIENCE: Duration = Duration::from_millis(50);

/// A message is its number, and as many bytes again.
type Message = (u64, usize);

/// With its length, in whole words.
fn framed(message: Message) -> usize {
    16 + message.1.next_multiple_of(8)
}

fn bytes_of(message: Message) -> Vec<u8> {
    let (token, padding) = message;
    let mut bytes = token.to_le_bytes().to_vec();
    bytes.extend((0..padding).map(|at| (token as u8).wrapping_add(at as u8)));
    bytes
}

/// When things happened, in order.
#[derive(Default)]
struct Moments(RefCell<Vec<Instant>>);

impl Moments {
    /// `count` have happened until now.
    fn reach(&self, count: usize, ep: &Endpoint) {
        self.0.borrow_mut().resize(count, ep.now());
    }

    /// How many had happened before a deadline. Time passes when nothing else can happen: all threads then know of
    /// everything before.
    fn before(&self, deadline: Instant) -> usize {
        self.0.borrow().partition_point(|moment| *moment < deadline)
    }
}

struct Stream {
    capacity: usize,
    writer: usize,
    writer_node: usize,
    sender: RefCell<RingSender>,
    /// The messages that were sent, and maybe one that is being sent.
    sent: RefCell<Vec<Message>>,
    /// When each of them was sent for certain.
    certain: Moments,
    readers: Vec<Reader>,
    peril: Peril,
}

struct Reader {
    thread: usize,
    node: usize,
    receiver: RefCell<RingReceiver>,
    received: Cell<usize>,
    /// When each message was acknowledged.
    acknowledged: Moments,
}

pub(super) fn open(program: &Program<'_>) -> Result<Box<dyn Object>> {
    let (capacity, writer) = (64 + 8 * program.draw(3), program.draw_thread());
    let others: Vec<usize> = (0..program.threads.len()).filter(|thread| *thread != writer).collect();
    let first = others[program.draw(others.len())];
    let mut threads: Vec<usize> =
        others.into_iter().filter(|thread| *thread == first || program.draw(2) == 0).collect();
    threads.sort_by_key(|thread| program.node_of(*thread));
    let mut counts: Vec<(NodeId, usize)> = Vec::new();
    for thread in &threads {
        let node = NodeId(program.node_of(*thread) as u16);
        match counts.last_mut() {
            Some((last, count)) if *last == node => *count += 1,
            _ => counts.push((node, 1)),
        }
    }
    let options = RingOptions::new(NodeId(program.node_of(writer) as u16), counts, capacity);
    let open = move |node: &Node| {
        let is_reader = options.readers.iter().any(|reader| reader.0 == node.id());
        let takes_part = is_reader || options.writer == node.id();
        takes_part.then(|| RingBuffer::open(node, "ring", options.clone())).transpose()
    };
    let rings = keep(program.cluster, program.cluster.on_each(open)?);
    let ring = |thread: usize| rings[program.node_of(thread)].as_ref().expect("its node takes part");
    let reader = |thread: usize| {
        let (receiver, node) = (RefCell::new(ring(thread).receiver()?), program.node_of(thread));
        Ok(Reader { thread, node, receiver, received: Cell::new(0), acknowledged: Moments::default() })
    };
    let stream = Rc::new(Stream {
        capacity,
        writer,
        writer_node: program.node_of(writer),
        sender: RefCell::new(ring(writer).sender()?),
        sent: RefCell::default(),
        certain: Moments::default(),
        readers: threads.into_iter().map(reader).collect::<Result<_>>()?,
        peril: program.peril.clone(),
    });
    let (nodes, at_end) = (program.cluster.nodes(), Rc::clone(&stream));
    program.cluster.at_end(move || at_end.judge(&nodes));
    Ok(Box::new(stream))
}

impl Stream {
    /// In the end each reader that continues has got all messages, or a part of them from the start if the writer is
    /// gone.
    fn judge(&self, nodes: &[Node]) -> Result<()> {
        let goes_on = |node: usize| self.peril.goes_on(&nodes[node]);
        let stays = goes_on(self.writer_node);
        if stays {
            let ep = nodes[self.writer_node].endpoint()?;
            ep.block_on(self.sender.borrow().flush(&ep))?;
        }
        for reader in self.readers.iter().filter(|reader| goes_on(reader.node)) {
            let ep = nodes[reader.node].endpoint()?;
            let mut bytes = Vec::new();
            loop {
                match reader.receiver.borrow_mut().try_recv(&ep, &mut bytes) {
                    Ok(true) => drop(self.take(reader, &bytes)),
                    Ok(false) => break,
                    Err(error) if !stays && error.is_gone() => break,
                    Err(error) => return Err(error),
                }
            }
            let (received, sent) = (reader.received.get(), self.sent.borrow().len());
            assert!(!stays || received == sent, "a reader has received {received} of {sent} messages");
            if stays {
                reader.receiver.borrow_mut().acknowledge(&ep)?;
            }
        }
        if stays {
            let (ep, sender) = (nodes[self.writer_node].endpoint()?, self.sender.borrow());
            ep.block_on(sender.wait_acknowledged(&ep, sender.position(), ep.deadline()))?;
        }
        Ok(())
    }

    /// A reader has got these bytes. Returns their number.
    fn take(&self, reader: &Reader, bytes: &[u8]) -> u64 {
        let at = reader.received.get();
        let message = self.sent.borrow().get(at).copied();
        let message = message.unwrap_or_else(|| panic!("message {at} is received, but was not sent"));
        assert_eq!(bytes, bytes_of(message), "message {at} is not what was sent");
        reader.received.set(at + 1);
        message.0
    }

    fn send(&self, ep: &Endpoint, party: &Party, padding: usize, waits: bool) -> Result<()> {
        let message = (party.token(), padding);
        self.sent.borrow_mut().push(message);
        let (since, bytes) = (Excuse::now(), bytes_of(message));
        let deadline = ep.now() + PATIENCE;
        let sent = {
            let mut sender = self.sender.borrow_mut();
            if waits {
                ep.block_on(sender.send_deadline(ep, &bytes, deadline)).map(|()| true)
            } else {
                sender.try_send(ep, &bytes)
            }
        };
        if matches!(sent, Ok(true)) {
            self.certain.reach(self.sent.borrow().len(), ep);
            return Ok(());
        }
        self.sent.borrow_mut().pop();
        match sent {
            Err(error) if error.is_timeout() && matches!(self.peril, Peril::Nothing | Peril::Death) => {
                let lives = |reader: &&Reader| !crashed(reader.node);
                let read = self.readers.iter().filter(lives).map(|reader| reader.acknowledged.before(deadline)).min();
                let unread: usize = self.sent.borrow()[read.unwrap_or(0)..].iter().map(|unread| framed(*unread)).sum();
                let is_full = unread + framed(message) > self.capacity;
                assert!(is_full || since.is_given(), "{error}: but there is room");
                Ok(())
            }
            Err(error) if error.is_timeout() => Ok(()),
            // It may be that all readers are gone.
            sent => self.peril.unless_faults(since, sent.map(drop)).map(drop),
        }
    }

    fn receive(&self, ep: &Endpoint, reader: &Reader, party: &mut Party, how: Receive) -> Result<()> {
        let (since, mut bytes) = (Excuse::now(), Vec::new());
        let deadline = ep.now() + PATIENCE;
        let received = {
            let mut receiver = reader.receiver.borrow_mut();
            match how {
                Receive::Waits => ep.block_on(receiver.recv_deadline(ep, &mut bytes, deadline)).map(|()| true),
                Receive::Tries => receiver.try_recv(ep, &mut bytes),
                Receive::Keeps => receiver.try_recv_unacknowledged(ep, &mut bytes),
            }
        };
        match received {
            Ok(true) => {
                let token = self.take(reader, &bytes);
                party.hears(token, (reader.node != self.writer_node).then_some(reader.node));
                if !matches!(how, Receive::Keeps) {
                    reader.acknowledged.reach(reader.received.get(), ep);
                }
                Ok(())
            }
            Err(error) if error.is_timeout() => {
                let sender = self.sender.try_borrow();
                let is_behind = sender.is_ok_and(|sender| sender.is_behind());
                let has_all = reader.received.get() >= self.certain.before(deadline);
                assert!(has_all || is_behind || since.is_given(), "{error}: but it has been sent");
                Ok(())
            }
            received => self.peril.unless_faults(since, received.map(drop)).map(drop),
        }
    }
}

#[derive(Clone, Copy)]
enum Receive {
    Waits,
    Tries,
    /// Without an acknowledgement.
    Keeps,
}

impl Object for Rc<Stream> {
    fn step(&self, program: &Program<'_>, thread: usize) -> Option<Step> {
        let stream = Rc::clone(self);
        if thread == self.writer {
            let (padding, waits) = (program.draw(25), program.draw(2) == 0);
            return Some(Box::new(move |ep, party| stream.send(ep, party, padding, waits)));
        }
        let at = self.readers.iter().position(|reader| reader.thread == thread)?;
        let how = match program.draw(4) {
            0 => Receive::Tries,
            1 => Receive::Keeps,
            _ => Receive::Waits,
        };
        Some(Box::new(move |ep, party| stream.receive(ep, &stream.readers[at], party, how)))
    }
}
