//! Announces to all nodes which keys are inserted and deleted.
//!
//! ```text
//! a message:  0 ┌──────────┬───────────┬─────────────┬───────────────┐
//!               │ kind (8) │ slot (8)  │ counter (8) │ key, the rest │
//!               └──────────┴───────────┴─────────────┴───────────────┘
//!                 of a new time: 4 in the low byte, microseconds above it
//! ```
//!
//! A node's threads share its tracker. They take turns under a local lock, and send through one endpoint of the
//! tracker's own: what two endpoints put to a node is in no order, so the head of one could land before the message of
//! another.

use core::time::Duration;
use std::sync::Arc;

use farfield_fabric::{Endpoint, Instant, LocalMutex, RemotePtr};

use super::KvOptions;
use super::expiry::Expiries;
use super::index::{Entry, Index};
use super::recovery::Deaths;
use super::slots::Slots;
use crate::error::Result;
use crate::node::{Hold, Node, Object, Poller, Progress};
use crate::objects::codec::Key;
use crate::objects::participants::Participants;
use crate::objects::ring_buffer::{Acknowledgements, RingBuffer, RingOptions, RingReceiver, RingSender};

/// What happened to a key.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Change {
    /// It is there, though perhaps not valid yet.
    Insert { entry: Entry },
    /// It is not there any more.
    Remove { entry: Entry },
    /// Its slot may be allocated again.
    Free { entry: Entry },
    /// It is to be removed by the slot's node after so many microseconds, or never ([`NEVER_US`]).
    Expire { entry: Entry, us: u64 },
}

/// A time without end, as it is announced: the largest number that its bits hold.
const NEVER_US: u64 = u64::MAX >> 8;

/// A time as it is announced: no shorter than it is.
pub(super) fn microseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1000)).map_or(NEVER_US, |us| us.min(NEVER_US))
}

/// When an announced time is up that begins now.
fn due(now: Instant, us: u64) -> Instant {
    if us == NEVER_US { Instant::NEVER } else { now + Duration::from_micros(us) }
}

impl Change {
    fn encode<K: Key>(self, key: &K, into: &mut Vec<u8>) {
        let (kind, entry) = match self {
            Change::Insert { entry } => (1u64, entry),
            Change::Remove { entry } => (2, entry),
            Change::Free { entry } => (3, entry),
            Change::Expire { entry, us } => (4 | us << 8, entry),
        };
        for word in [kind, entry.slot.packed(), entry.counter] {
            into.extend_from_slice(&word.to_le_bytes());
        }
        key.encode(into);
    }

    fn decode<K: Key>(message: &[u8]) -> Option<(Change, K)> {
        let word = |index: usize| {
            let bytes = message.get(index * 8..index * 8 + 8)?;
            Some(u64::from_le_bytes(bytes.try_into().ok()?))
        };
        let entry = Entry { slot: RemotePtr::from_packed(word(1)?), counter: word(2)? };
        let change = match word(0)? {
            1 => Change::Insert { entry },
            2 => Change::Remove { entry },
            3 => Change::Free { entry },
            kind if kind & 0xff == 4 => Change::Expire { entry, us: kind >> 8 },
            _ => return None,
        };
        Some((change, K::decode(message.get(24..)?)?))
    }
}

/// Room for the message of the longest key, in bytes of the ring.
pub(super) fn message_bytes_max<K: Key>(key_bytes_max: usize) -> usize {
    let key_bytes = if K::FIXED { size_of::<K>() } else { key_bytes_max };
    key_bytes.saturating_add(24).div_ceil(8).saturating_add(1).saturating_mul(8)
}

/// This node's tracker, and the poller that follows the others'.
pub(super) struct Tracker<K> {
    /// None if no other node takes part.
    sending: Option<Arc<Sending>>,
    node: Node,
    message_bytes_max: usize,
    _key: core::marker::PhantomData<fn(K)>,
    /// Keeps the store open until the service thread has sent all announcements.
    _open: Hold,
}

struct Sending {
    sender: LocalMutex<Sender>,
    acknowledgements: Acknowledgements,
}

struct Sender {
    ring: RingSender,
    endpoint: Endpoint,
    message: Vec<u8>,
}

impl<K: Key> Tracker<K> {
    pub(super) fn open(
        store: &Object,
        participants: &Participants,
        options: &KvOptions,
        index: Arc<Index<K>>,
        slots: Arc<Slots>,
        deaths: Arc<Deaths>,
        expiries: Arc<Expiries<K>>,
    ) -> Result<Tracker<K>> {
        let (_key, message_bytes_max) = (core::marker::PhantomData, message_bytes_max::<K>(options.key_bytes_max));
        let (node, path, _open) = (store.node(), store.path(), store.hold());
        if participants.count() == 1 {
            return Ok(Tracker { sending: None, node: node.for_service(), message_bytes_max, _key, _open });
        }
        // The service thread reads them: they must not keep the node in its session.
        let service = node.for_service();
        let ring_of = |writer| {
            let readers = participants.except(writer).map(|reader| (reader, 1));
            let mut ring = RingOptions::new(writer, readers, options.tracker_bytes);
            ring.read_by_service = true;
            RingBuffer::announce(&service, &format!("{path}/tracker/{}", writer.0), ring)
        };
        // All are announced before the first is waited for.
        let rings = participants.iter().map(ring_of).collect::<Result<Vec<_>>>()?;
        rings.iter().try_for_each(RingBuffer::wait)?;
        let (mut ring, mut followed) = (None, Vec::new());
        for (rank, writer) in participants.iter().enumerate() {
            if writer == node.id() {
                ring = Some(rings[rank].sender()?);
            } else {
                followed.push(Followed { writer: rank, receiver: rings[rank].receiver()?, removed: Vec::new() });
            }
        }
        let ring = ring.expect("who opens it takes part");
        let acknowledgements = ring.acknowledgements();
        let follower =
            Follower { followed, index: Arc::downgrade(&index), slots, deaths, expiries, message: Vec::new() };
        node.add_poller(Box::new(follower));
        let sender = LocalMutex::new(Sender { ring, endpoint: node.background_endpoint()?, message: Vec::new() });
        let sending = Arc::new(Sending { sender, acknowledgements });
        Ok(Tracker { sending: Some(sending), node: service, message_bytes_max, _key, _open })
    }

    /// Announces a change to all other live nodes. Returns the position that they acknowledge when they have applied
    /// it.
    pub(super) async fn tell(&self, endpoint: &Endpoint, key: &K, change: Change) -> Result<u64> {
        let deadline = endpoint.deadline();
        loop {
            if let Some(position) = self.try_tell(key, change)? {
                return Ok(position);
            }
            let Some(sending) = &self.sending else { return Ok(0) };
            // There is room for this message, unless another task takes it.
            let full = {
                let ring = &sending.sender.lock().ring;
                (ring.position() + self.message_bytes_max as u64).saturating_sub(8 + ring.message_bytes_max() as u64)
            };
            sending.acknowledgements.wait(endpoint, full, deadline, "room in the tracker").await?;
        }
    }

    /// [`Tracker::tell`] if there is room now.
    pub(super) fn try_tell(&self, key: &K, change: Change) -> Result<Option<u64>> {
        let Some(sending) = &self.sending else { return Ok(Some(0)) };
        let mut sender = sending.sender.lock();
        let Sender { ring, endpoint: own, message } = &mut *sender;
        message.clear();
        change.encode(key, message);
        match ring.try_send(own, message) {
            // No node is left to notify, and none acknowledges a message that was not sent. A wait for that position
            // ends when all of them are evicted or have left.
            Err(error) if error.is_gone() => Ok(Some(ring.position() + 1)),
            sent => {
                let is_sent = sent?;
                if ring.is_behind() {
                    // Others wait until all nodes have applied it.
                    self.node.add_poller(Box::new(Behind { sending: Arc::clone(sending), node: self.node.clone() }));
                }
                Ok(is_sent.then(|| ring.position()))
            }
        }
    }

    /// The end of the announcements so far.
    pub(super) fn position(&self) -> u64 {
        self.sending.as_ref().map_or(0, |sending| sending.sender.lock().ring.position())
    }

    /// Waits until all other nodes that live have applied everything up to a position.
    pub(super) async fn wait(&self, endpoint: &Endpoint, position: u64) -> Result<()> {
        let Some(sending) = &self.sending else { return Ok(()) };
        let what = "all nodes to apply the change to their indexes";
        sending.acknowledgements.wait(endpoint, position, endpoint.deadline(), what).await
    }

    /// Whether all other nodes that live have applied everything up to a position.
    pub(super) fn is_applied(&self, endpoint: &Endpoint, position: u64) -> bool {
        let sending = self.sending.as_ref();
        sending.is_none_or(|sending| sending.acknowledgements.lowest(endpoint) >= position)
    }
}

/// Sends the other nodes the refused messages, on the service thread and by the tracker's own endpoint.
struct Behind {
    sending: Arc<Sending>,
    node: Node,
}

impl Poller for Behind {
    fn must_finish_before_leave(&self) -> bool {
        true
    }

    fn poll(&mut self, _: &Endpoint) -> Progress {
        if self.node.fabric().is_fenced() {
            return Progress::Done; // no node accepts anything from this one
        }
        let sender = self.sending.sender.lock();
        // The members decide about a node that does not answer.
        match sender.ring.try_flush(&sender.endpoint) {
            Err(error) if !error.is_unreachable() => Progress::Retry,
            _ => Progress::Done,
        }
    }
}

/// Applies the other nodes' changes, on the service thread.
struct Follower<K> {
    followed: Vec<Followed>,
    index: std::sync::Weak<Index<K>>,
    slots: Arc<Slots>,
    deaths: Arc<Deaths>,
    expiries: Arc<Expiries<K>>,
    message: Vec<u8>,
}

/// The tracker of another node.
struct Followed {
    /// Its rank.
    writer: usize,
    receiver: RingReceiver,
    /// Slots of this node that the writer has ordered all nodes to drop, and has not handed back yet.
    removed: Vec<Entry>,
}

/// Messages applied from one tracker before the next has its turn.
const TURN: usize = 64;

impl<K: Key> Poller for Follower<K> {
    fn poll(&mut self, endpoint: &Endpoint) -> Progress {
        let Some(index) = self.index.upgrade() else { return Progress::Done };
        let (mut is_busy, mut retries) = (false, false);
        let Follower { followed, slots, deaths, expiries, message, .. } = self;
        for Followed { writer, receiver, removed } in followed.iter_mut() {
            let mut received = 0;
            while received < TURN {
                match receiver.try_recv_unacknowledged(endpoint, message) {
                    Ok(true) => received += 1,
                    Ok(false) => break,
                    // The writer is dead or has left, and its last message is read.
                    Err(error) if error.is_gone() => {
                        match deaths.settle(endpoint, *writer, receiver) {
                            Ok(true) => is_busy = true,
                            Ok(false) => {}
                            Err(error) => {
                                tracing::debug!("settling what a node has left: {error}");
                                retries = true;
                            }
                        }
                        if deaths.is_settled(*writer) {
                            // Every index has dropped them, and no other node hands them back.
                            removed.drain(..).for_each(|entry| slots.free(entry.slot));
                        }
                        break;
                    }
                    Err(error) if error.is_refused() => {
                        retries = true; // its writer is told later
                        break;
                    }
                    Err(error) => {
                        tracing::error!("node {}: a tracker cannot be followed: {error}", slots.me().0);
                        break;
                    }
                }
                match Change::decode::<K>(message) {
                    Some((Change::Insert { entry }, key)) => index.insert(key, entry),
                    Some((Change::Remove { entry }, key)) => {
                        index.remove(&key, entry);
                        // A writer that was cut short announces it twice.
                        if slots.is_ours(entry.slot) && !removed.contains(&entry) {
                            removed.push(entry);
                        }
                    }
                    Some((Change::Free { entry }, _)) if slots.is_ours(entry.slot) => {
                        removed.retain(|other| *other != entry);
                        slots.free(entry.slot);
                    }
                    Some((Change::Free { .. }, _)) => {}
                    // Only the node that has the value counts its time.
                    Some((Change::Expire { entry, us }, key)) if entry.slot.node() == slots.me() => {
                        expiries.set(&key, entry, due(endpoint.now(), us));
                    }
                    Some((Change::Expire { .. }, _)) => {}
                    None => tracing::error!("node {}: a tracker message cannot be read", slots.me().0),
                }
            }
            if received > 0 {
                is_busy = true;
                // Only now, since the acknowledgement promises that the index has changed.
                if let Err(error) = receiver.acknowledge(endpoint) {
                    tracing::debug!("acknowledging a tracker: {error}");
                }
            }
        }
        match (is_busy, retries) {
            (true, _) => Progress::Busy,
            (false, true) => Progress::Retry,
            (false, false) => Progress::Idle,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_survive_the_wire_and_garbage_is_refused() {
        let entry = Entry { slot: RemotePtr::from_packed(77), counter: 5 };
        let times = [0, 1, NEVER_US].map(|us| Change::Expire { entry, us });
        for change in
            [Change::Insert { entry }, Change::Remove { entry }, Change::Free { entry }].into_iter().chain(times)
        {
            let mut message = Vec::new();
            change.encode(&9u64, &mut message);
            assert_eq!(Change::decode::<u64>(&message), Some((change, 9)));
            assert_eq!(Change::decode::<u64>(&message[..message.len() - 1]), None);
        }
        assert_eq!(Change::decode::<u64>(&[0; 32]), None);
    }

    #[test]
    fn an_announced_time_is_no_shorter() {
        let now = Instant { ns: 5 };
        for (time, ns) in [(Duration::ZERO, 5), (Duration::from_nanos(1), 1005), (Duration::from_micros(7), 7005)] {
            assert_eq!(due(now, microseconds(time)), Instant { ns });
        }
        assert_eq!(due(now, microseconds(Duration::MAX)), Instant::NEVER);
    }
}
