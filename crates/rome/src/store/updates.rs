//! Updates that other nodes ask for: their messages, and the owner's part, which its service thread does.

use core::time::Duration;
use std::sync::Arc;

use farfield_core::{Endpoint, Node, Result, Value};
use farfield_fabric::{LocalMutex, NodeId, Region};

use super::moving::{Pendings, freeze_time, served_of};
use super::place::{place_of, raise, word_of};
use crate::errors::MemoryFull;
use crate::field::{Field, TreeKey};
use crate::gate::{GATE_BYTES, Gate, PLACE};
use crate::tree::{Change, Partition};

/// A change of a store: for [`RomeKvThread::apply`](crate::RomeKvThread::apply).
///
/// ```
/// use farfield_rome::RomeKvUpdate;
/// let update = RomeKvUpdate::Put(7, 70);
/// assert_eq!(*update.key(), 7);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RomeKvUpdate<K, V> {
    /// Adds a key, unless it is there.
    Insert(K, V),
    /// Replaces the value of a key that is there.
    Update(K, V),
    /// Gives a key this value.
    Put(K, V),
    /// Takes a key out.
    Delete(K),
}

impl<K, V> RomeKvUpdate<K, V> {
    /// Its key.
    ///
    /// ```
    /// # use farfield_rome::RomeKvUpdate;
    /// assert_eq!(*RomeKvUpdate::<u64, u64>::Delete(7).key(), 7);
    /// ```
    pub fn key(&self) -> &K {
        match self {
            RomeKvUpdate::Insert(key, _) | RomeKvUpdate::Update(key, _) | RomeKvUpdate::Put(key, _) => key,
            RomeKvUpdate::Delete(key) => key,
        }
    }
}

impl<K: TreeKey, V: Field> RomeKvUpdate<K, V> {
    /// Does it on the owner; the value before.
    pub(super) fn run(&self, partition: &mut Partition<K, V>, ep: &Endpoint) -> Result<Option<V>> {
        let unless = |is: bool, change| if is { Change::None } else { change };
        match *self {
            RomeKvUpdate::Insert(key, value) => {
                partition.change(ep, &key, |before| unless(before.is_some(), Change::Put(value)))
            }
            RomeKvUpdate::Update(key, value) => {
                partition.change(ep, &key, |before| unless(before.is_none(), Change::Put(value)))
            }
            RomeKvUpdate::Put(key, value) => partition.put(ep, key, value),
            RomeKvUpdate::Delete(key) => partition.delete(ep, &key),
        }
    }
}

/// What a node asks the owner of a partition.
#[derive(Clone)]
pub(super) struct Request<K, V> {
    pub(super) partition: usize,
    /// How often it was moved, as the asking node knows.
    pub(super) epoch: u64,
    pub(super) ask: Ask<K, V>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ask<K, V> {
    Update(RomeKvUpdate<K, V>),
    /// No change becomes visible from now on, for a while: the asking node takes the partition (`store/moving.rs`).
    /// This and those below begin with the number of that taking, among all of that node.
    Freeze(u64),
    /// The same for a while more, at this version.
    Stay(u64, u64),
    /// The asking node has the pairs of this version, and the partition is its own from now on.
    Publish(u64, u64),
    /// It is not: changes go on.
    Thaw(u64),
}

/// Bits of the first word that say which message it is.
const KIND_BITS: u32 = 4;
/// And those above them that say which partition is meant. The epoch is above these.
const PARTITION_BITS: u32 = 20;
/// How many partitions there are at most.
pub(super) const PARTITIONS_MAX: usize = 1 << PARTITION_BITS;

impl<K: TreeKey, V: Field> Value for Request<K, V> {
    const FIXED: bool = true;

    fn bytes(&self) -> usize {
        8 * Self::words(0)
    }

    fn words(_: usize) -> usize {
        1 + (K::WORDS + V::WORDS).max(2)
    }

    fn encode(&self, into: &mut [u64]) -> usize {
        let words = Self::words(0);
        into[..words].fill(0);
        let mut update = |key: &K, value: Option<&V>| {
            key.store(&mut into[1..1 + K::WORDS]);
            if let Some(value) = value {
                value.store(&mut into[1 + K::WORDS..1 + K::WORDS + V::WORDS]);
            }
        };
        let kind = match &self.ask {
            Ask::Update(RomeKvUpdate::Insert(key, value)) => {
                update(key, Some(value));
                0
            }
            Ask::Update(RomeKvUpdate::Update(key, value)) => {
                update(key, Some(value));
                1
            }
            Ask::Update(RomeKvUpdate::Put(key, value)) => {
                update(key, Some(value));
                2
            }
            Ask::Update(RomeKvUpdate::Delete(key)) => {
                update(key, None);
                3
            }
            Ask::Freeze(take) => {
                into[1] = *take;
                4
            }
            Ask::Thaw(take) => {
                into[1] = *take;
                5
            }
            Ask::Stay(take, version) => {
                into[1..3].copy_from_slice(&[*take, *version]);
                6
            }
            Ask::Publish(take, version) => {
                into[1..3].copy_from_slice(&[*take, *version]);
                7
            }
        };
        into[0] = (self.epoch << PARTITION_BITS | self.partition as u64) << KIND_BITS | kind;
        words
    }

    fn decode(words: &[u64]) -> Option<(Self, usize)> {
        let (head, used) = (*words.first()?, Self::words(0));
        let words = words.get(1..used)?;
        let key = K::load(|at| words[at]);
        let value = || V::load(|at| words[K::WORDS + at]);
        let ask = match head & ((1 << KIND_BITS) - 1) {
            0 => Ask::Update(RomeKvUpdate::Insert(key, value())),
            1 => Ask::Update(RomeKvUpdate::Update(key, value())),
            2 => Ask::Update(RomeKvUpdate::Put(key, value())),
            3 => Ask::Update(RomeKvUpdate::Delete(key)),
            4 => Ask::Freeze(words[0]),
            5 => Ask::Thaw(words[0]),
            6 => Ask::Stay(words[0], words[1]),
            7 => Ask::Publish(words[0], words[1]),
            _ => return None,
        };
        let place = head >> KIND_BITS;
        Some((Request { partition: place as usize % PARTITIONS_MAX, epoch: place >> PARTITION_BITS, ask }, used))
    }
}

/// The owner's answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reply<V> {
    /// It has happened; the value before.
    Done(Option<V>),
    /// Nothing has happened: a read of several partitions needs this one as it is for a moment, or it is being moved.
    Held,
    /// Nothing has happened: so many blocks wait for readers.
    Full(usize),
    /// Nothing has happened: the store is closed there, or its node is evicted.
    Refused,
    /// Nothing has happened: the partition is another node's, or this node is just taking it.
    Elsewhere,
    /// Nothing has happened: the partition is not frozen at this version any more.
    Late,
}

impl<V> Reply<V> {
    /// The value before the update, if it has happened.
    pub(super) fn before(self) -> Option<V> {
        match self {
            Reply::Done(before) => before,
            _ => None,
        }
    }
}

impl<V: Field> Value for Reply<V> {
    const FIXED: bool = true;

    fn bytes(&self) -> usize {
        8 * Self::words(0)
    }

    fn words(_: usize) -> usize {
        1 + V::WORDS
    }

    fn encode(&self, into: &mut [u64]) -> usize {
        let words = Self::words(0);
        into[..words].fill(0);
        into[0] = match self {
            Reply::Done(None) => 0,
            Reply::Done(Some(value)) => {
                value.store(&mut into[1..words]);
                1
            }
            Reply::Held => 2,
            Reply::Refused => 3,
            Reply::Elsewhere => 5,
            Reply::Late => 6,
            Reply::Full(waiting) => 4 | (*waiting as u64) << KIND_BITS,
        };
        words
    }

    fn decode(words: &[u64]) -> Option<(Self, usize)> {
        let (head, used) = (*words.first()?, Self::words(0));
        let words = words.get(1..used)?;
        let reply = match head & ((1 << KIND_BITS) - 1) {
            0 => Reply::Done(None),
            1 => Reply::Done(Some(V::load(|at| words[at]))),
            2 => Reply::Held,
            3 => Reply::Refused,
            4 => Reply::Full((head >> KIND_BITS) as usize),
            5 => Reply::Elsewhere,
            6 => Reply::Late,
            _ => return None,
        };
        Some((reply, used))
    }
}

/// A partition of this node, for the updates of others.
pub(super) struct Served<K, V> {
    /// Its number in the store.
    pub(super) number: usize,
    /// How often it was moved.
    pub(super) epoch: u64,
    pub(super) partition: Partition<K, V>,
    pub(super) gate: Gate,
    /// For which node it was frozen last, and the number of that taking.
    pub(super) taker: Option<(NodeId, u64)>,
}

/// What the service thread changes the partitions of this node with. It is dropped with the store, if the service
/// thread is not using it.
pub(super) struct Serving<K, V> {
    ep: Endpoint,
    me: NodeId,
    served: Vec<Served<K, V>>,
    /// Partitions that this node has taken since.
    incoming: Incoming<K, V>,
    /// Those that it may have.
    pending: Pendings<K, V>,
    /// With the words that say where partitions are.
    gates: Region,
    lease: Duration,
}

/// None once the store is closed, and while the service thread uses it.
pub(super) type Shared<K, V> = Arc<LocalMutex<Option<Serving<K, V>>>>;

/// Partitions that this node has taken, and that its service thread does not know yet.
pub(super) type Incoming<K, V> = Arc<LocalMutex<Vec<Served<K, V>>>>;

impl<K: TreeKey, V: Field> Serving<K, V> {
    pub(super) fn new(
        node: &Node,
        served: Vec<Served<K, V>>,
        (incoming, pending): (&Incoming<K, V>, &Pendings<K, V>),
        gates: &Region,
        lease: Duration,
    ) -> Result<Serving<K, V>> {
        let ep = node.background_endpoint()?;
        // The service thread waits for no memory, and at no gate. It looks for it once, and the caller asks again.
        ep.set_timeout(Duration::ZERO);
        let (incoming, pending, gates) = (Arc::clone(incoming), Arc::clone(pending), gates.clone());
        Ok(Serving { ep, me: node.id(), served, incoming, pending, gates, lease })
    }

    pub(super) fn handle(&mut self, client: NodeId, request: &Request<K, V>) -> Reply<V> {
        let Serving { ep, me, served, incoming, pending, gates, lease } = self;
        let find =
            |served: &[Served<K, V>]| served.binary_search_by_key(&request.partition, |served| served.number).ok();
        let mut found = find(served);
        if found.is_none() {
            served.append(&mut incoming.lock());
            served.sort_unstable_by_key(|served| served.number);
            found = find(served);
        }
        let place = gates.word(request.partition * GATE_BYTES + PLACE);
        if found.is_none() && place_of(place.load()).0 < request.epoch {
            // The asking node knows a place of which this one has not heard. It has asked here, so it is this node, of
            // which the old owner has not answered.
            if let Some(known) = served_of(&pending[request.partition], request.epoch) {
                raise(place, word_of(request.epoch, *me));
                served.push(known);
                served.sort_unstable_by_key(|served| served.number);
                found = find(served);
            }
        }
        let is_update = matches!(request.ask, Ask::Update(_));
        let Some(at) = found.filter(|at| is_update || served[*at].epoch == request.epoch) else {
            // Asked again, after the first reply was late.
            let is_published = matches!(request.ask, Ask::Publish(..));
            let is_published = is_published && place.load() == word_of(request.epoch + 1, client);
            return if is_published { Reply::Done(None) } else { Reply::Elsewhere };
        };
        let Served { partition, gate, taker, .. } = &mut served[at];
        let Ok(arena) = partition.tree.opened.arena() else { return Reply::Refused };
        // The node that takes it may have died.
        arena.thaw_late(ep);
        let until = ep.now() + freeze_time(*lease);
        match request.ask {
            Ask::Update(update) => {
                // The service thread does not wait: its other work continues. It alone freezes the partition. If the
                // gate is closed from here on, the change passes it.
                if arena.stable_now().is_frozen() || !gate.is_passable(ep) {
                    return Reply::Held;
                }
                match update.run(partition, ep) {
                    Ok(before) => Reply::Done(before),
                    Err(error) => match error.custom_ref::<MemoryFull>() {
                        Some(full) => Reply::Full(full.waiting),
                        None => Reply::Refused,
                    },
                }
            }
            Ask::Freeze(_) if client == *me => Reply::Refused,
            Ask::Freeze(take) => match arena.freeze(until) {
                Some(_) => {
                    *taker = Some((client, take));
                    // Threads that wait for `stable` find until when.
                    ep.wake_local();
                    Reply::Done(None)
                }
                None => Reply::Held,
            },
            // One that was given up may come after the freeze of another taking, at the same version: nothing has
            // changed in between.
            Ask::Stay(take, _) | Ask::Publish(take, _) if *taker != Some((client, take)) => Reply::Late,
            Ask::Stay(_, version) if arena.stay_frozen(version, until) => Reply::Done(None),
            Ask::Stay(..) => Reply::Late,
            Ask::Thaw(take) => {
                let now = arena.stable_now();
                if now.is_frozen() && *taker == Some((client, take)) {
                    arena.thaw(ep, now.version());
                }
                Reply::Done(None)
            }
            Ask::Publish(_, version) => {
                if !arena.move_away(ep, version) {
                    return Reply::Late;
                }
                // Readers that see "moved" look for this word, again if it is not there yet.
                raise(place, word_of(served[at].epoch + 1, client));
                drop(served.remove(at));
                Reply::Done(None)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field::Bytes;

    #[test]
    fn decoded_messages_equal_the_sent_ones() {
        type Asked = Request<Bytes<2>, [u64; 2]>;
        let key = Bytes::<2>::new(b"user:17").expect("it is short");
        let updates = [
            RomeKvUpdate::Insert(key, [1, 2]),
            RomeKvUpdate::Update(key, [3, 4]),
            RomeKvUpdate::Put(key, [5, 6]),
            RomeKvUpdate::Delete(key),
        ];
        let moves = [Ask::Freeze(1), Ask::Thaw(2), Ask::Stay(3, 1 << 60), Ask::Publish(4, 7)];
        for ask in updates.map(Ask::Update).into_iter().chain(moves) {
            let mut words = vec![9; Asked::words(0) + 1];
            let used = Request { partition: 77, epoch: 1 << 33, ask }.encode(&mut words);
            let (request, read) = Asked::decode(&words[..used]).expect("a request");
            assert_eq!((request.partition, request.epoch, request.ask), (77, 1 << 33, ask));
            assert_eq!((read, words[used]), (used, 9));
            assert!(Asked::decode(&words[..used - 1]).is_none());
        }
        let done = [Reply::Done(None), Reply::Done(Some([7, 8]))];
        let not = [Reply::Held, Reply::Full(300), Reply::Refused, Reply::Elsewhere, Reply::Late];
        for reply in done.into_iter().chain(not) {
            let mut words = [9; 4];
            let used = reply.encode(&mut words);
            assert_eq!(Reply::<[u64; 2]>::decode(&words[..used]), Some((reply, 3)));
        }
        assert!(Reply::<u64>::decode(&[200, 0]).is_none() && Asked::decode(&[200, 0, 0, 0, 0, 0]).is_none());
    }

    #[test]
    fn a_request_of_a_taking_that_was_given_up_is_late() {
        let nodes = farfield_core::local_session(2).expect("a session");
        let options = crate::RomeKvOptions::new([500]);
        let open = |node: &Node| crate::RomeKv::<u64, u64>::open(node, "store", options.clone());
        let stores = farfield_core::on_each(&nodes, open).expect("all open it");
        // No other node asks for anything.
        let mut serving = stores[0].parts.serving.lock();
        let serving = serving.as_mut().expect("it is open");
        let version = serving.served[0].partition.tree.opened.arena().expect("it is open").stable_now().version();
        let mut asked = |ask| serving.handle(NodeId(1), &Request { partition: 0, epoch: 0, ask });
        assert_eq!([Ask::Freeze(1), Ask::Thaw(1), Ask::Freeze(2)].map(&mut asked), [Reply::Done(None); 3]);
        // Nothing has changed in between: the version is the same.
        assert_eq!(asked(Ask::Publish(1, version)), Reply::Late);
        assert_eq!(asked(Ask::Stay(1, version)), Reply::Late);
        asked(Ask::Thaw(1));
        assert_eq!(asked(Ask::Freeze(3)), Reply::Held, "it is frozen for the second taking");
        assert_eq!(asked(Ask::Publish(2, version)), Reply::Done(None));
    }
}
