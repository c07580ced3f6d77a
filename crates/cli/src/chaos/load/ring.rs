//! Rings from some nodes to all others: messages of all lengths, numbered.

use farfield::{Endpoint, NodeId, RingBuffer, RingOptions, RingReceiver, RingSender};
use rand::RngExt;
use rand::rngs::SmallRng;

use super::{Load, Place, flush, violation};
use crate::chaos::log::{Answer, Failure, Op, Recorder};

const CAPACITY_BYTES: usize = 4096;
/// Words of the longest message.
const WORDS_MAX: u64 = 12;

pub(super) struct RingLoad {
    me: NodeId,
    /// If this node is a writer.
    sender: Option<RingSender>,
    sent: u64,
    /// The other writers' rings that have not ended.
    receivers: Vec<(NodeId, RingReceiver)>,
    others: Vec<NodeId>,
    endpoint: Endpoint,
    rng: SmallRng,
    bytes: Vec<u8>,
}

/// Message `number` of a writer: its own number, in every word, as many as the number says.
fn message(writer: NodeId, number: u64) -> Vec<u8> {
    let word = u64::from(writer.0) << 48 | number;
    word.to_le_bytes().repeat(1 + (number % WORDS_MAX) as usize)
}

impl RingLoad {
    pub(super) fn open(place: &mut Place<'_>) -> Result<RingLoad, Failure> {
        let (me, members) = (place.node.id(), place.members.clone());
        let (mut sender, mut receivers) = (None, Vec::new());
        for writer in place.homes.clone() {
            let readers = members.iter().filter(|member| **member != writer).map(|member| (*member, 1));
            let options = RingOptions::new(writer, readers, CAPACITY_BYTES);
            let ring = place.open(&format!("ring/{writer}"), |node, path| RingBuffer::open(node, path, options))?;
            let path = format!("the part in ring/{writer}");
            if writer == me {
                sender = Some(place.open(&path, |_, _| ring.sender())?);
            } else {
                receivers.push((writer, place.open(&path, |_, _| ring.receiver())?));
            }
        }
        let (endpoint, rng) = (place.endpoint()?, place.rng("ring"));
        Ok(RingLoad { me, sender, sent: 0, receivers, others: place.others(), endpoint, rng, bytes: Vec::new() })
    }

    fn send(&mut self, log: &mut Recorder) {
        let Some(sender) = &mut self.sender else { return };
        let (endpoint, bytes) = (&self.endpoint, message(self.me, self.sent));
        let begun = log.begin(Op::Send { ring: self.me.0, number: self.sent }, endpoint.timeout());
        // No waiting for a reader that is stopped: this thread is a reader itself.
        let sent = log.end(begun, sender.try_send(endpoint, &bytes), |sent| Answer::Changed(*sent));
        self.sent += u64::from(sent.unwrap_or(false));
    }

    /// Receives what there is, a bounded number of messages from each.
    fn receive(&mut self, log: &mut Recorder, messages_max: usize) {
        let (endpoint, bytes) = (&self.endpoint, &mut self.bytes);
        self.receivers.retain_mut(|(writer, receiver)| {
            for _ in 0..messages_max {
                let received = receiver.try_recv(endpoint, bytes);
                if matches!(received, Ok(false)) {
                    break;
                }
                let begun = log.begin(Op::Receive { ring: writer.0 }, endpoint.timeout());
                let word = bytes.first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
                let number = word & ((1 << 48) - 1);
                if received.is_ok() && *bytes != message(*writer, number) {
                    violation(format!("ring/{writer}: a message of {} bytes is not whole: {bytes:x?}", bytes.len()));
                }
                if log.end(begun, received, |_| Answer::Value(number)).is_err() {
                    return false;
                }
            }
            true
        });
    }
}

impl Load for RingLoad {
    fn step(&mut self, log: &mut Recorder) {
        self.send(log);
        // Not always: the writer runs out of room, now and then.
        if self.rng.random_bool(0.5) {
            self.receive(log, 4);
        }
    }

    fn settle(&mut self, log: &mut Recorder) {
        flush(&self.endpoint, &self.others, log);
    }

    fn look(&mut self, log: &mut Recorder) {
        self.receive(log, usize::MAX);
    }
}
