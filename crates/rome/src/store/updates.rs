//! Updates that other nodes ask for: their messages, and the owner's part, which its service thread does.

use std::sync::Arc;

use farfield_core::{Endpoint, Node, Result, Value};
use farfield_fabric::LocalMutex;

use crate::errors::MemoryFull;
use crate::field::{Field, TreeKey};
use crate::gate::Gate;
use crate::tree::{Change, Partition, RomeTree};

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
    pub(super) update: RomeKvUpdate<K, V>,
}

/// Bits of the first word that say which update it is. The number of the partition is above them.
const KIND_BITS: u32 = 8;

impl<K: TreeKey, V: Field> Value for Request<K, V> {
    const FIXED: bool = true;

    fn bytes(&self) -> usize {
        8 * Self::words(0)
    }

    fn words(_: usize) -> usize {
        1 + K::WORDS + V::WORDS
    }

    fn encode(&self, into: &mut [u64]) -> usize {
        let words = Self::words(0);
        let (kind, key, value) = match &self.update {
            RomeKvUpdate::Insert(key, value) => (0, key, Some(value)),
            RomeKvUpdate::Update(key, value) => (1, key, Some(value)),
            RomeKvUpdate::Put(key, value) => (2, key, Some(value)),
            RomeKvUpdate::Delete(key) => (3, key, None),
        };
        into[..words].fill(0);
        into[0] = (self.partition as u64) << KIND_BITS | kind;
        key.store(&mut into[1..1 + K::WORDS]);
        if let Some(value) = value {
            value.store(&mut into[1 + K::WORDS..words]);
        }
        words
    }

    fn decode(words: &[u64]) -> Option<(Self, usize)> {
        let (head, used) = (*words.first()?, Self::words(0));
        let words = words.get(1..used)?;
        let key = K::load(|at| words[at]);
        let value = || V::load(|at| words[K::WORDS + at]);
        let update = match head & ((1 << KIND_BITS) - 1) {
            0 => RomeKvUpdate::Insert(key, value()),
            1 => RomeKvUpdate::Update(key, value()),
            2 => RomeKvUpdate::Put(key, value()),
            3 => RomeKvUpdate::Delete(key),
            _ => return None,
        };
        Some((Request { partition: (head >> KIND_BITS) as usize, update }, used))
    }
}

/// The owner's answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reply<V> {
    /// It has happened; the value before.
    Done(Option<V>),
    /// Nothing has happened: a read of several partitions needs this one as it is for a moment.
    Held,
    /// Nothing has happened: so many blocks wait for readers.
    Full(usize),
    /// Nothing has happened: the partition is not this node's, or the store is closed there.
    Refused,
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
            _ => return None,
        };
        Some((reply, used))
    }
}

/// A partition of this node, for the updates of others.
struct Served<K, V> {
    /// Its number in the store.
    number: usize,
    partition: Partition<K, V>,
    gate: Gate,
}

/// What the service thread changes the partitions of this node with. It is dropped with the store, if the service thread is not using it.
pub(super) struct Serving<K, V> {
    ep: Endpoint,
    served: Vec<Served<K, V>>,
}

/// None once the store is closed, and while the service thread uses it.
pub(super) type Shared<K, V> = Arc<LocalMutex<Option<Serving<K, V>>>>;

impl<K: TreeKey, V: Field> Serving<K, V> {
    pub(super) fn new<'a>(
        node: &Node,
        parts: impl Iterator<Item = (usize, &'a RomeTree<K, V>, Gate)>,
    ) -> Result<Serving<K, V>> {
        let ep = node.background_endpoint()?;
        // The service thread waits for no memory, and at no gate. It looks for it once, and the caller asks again.
        ep.set_timeout(core::time::Duration::ZERO);
        let serve = |(number, tree, gate): (usize, &RomeTree<K, V>, Gate)| {
            Ok(Served { number, partition: tree.partition()?, gate })
        };
        Ok(Serving { ep, served: parts.map(serve).collect::<Result<_>>()? })
    }

    pub(super) fn handle(&mut self, request: &Request<K, V>) -> Reply<V> {
        let Serving { ep, served } = self;
        let Ok(at) = served.binary_search_by_key(&request.partition, |served| served.number) else {
            return Reply::Refused;
        };
        let Served { partition, gate, .. } = &mut served[at];
        // The service thread does not wait: its other work goes on. If the gate is closed from here on, the change passes it.
        if !gate.is_passable(ep) {
            return Reply::Held;
        }
        match request.update.run(partition, ep) {
            Ok(before) => Reply::Done(before),
            Err(error) => match error.custom_ref::<MemoryFull>() {
                Some(full) => Reply::Full(full.waiting),
                None => Reply::Refused,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field::Bytes;

    #[test]
    fn messages_are_what_was_sent() {
        type Ask = Request<Bytes<2>, [u64; 2]>;
        let key = Bytes::<2>::new(b"user:17").expect("it is short");
        let updates = [
            RomeKvUpdate::Insert(key, [1, 2]),
            RomeKvUpdate::Update(key, [3, 4]),
            RomeKvUpdate::Put(key, [5, 6]),
            RomeKvUpdate::Delete(key),
        ];
        for update in updates {
            let mut words = vec![9; Ask::words(0) + 1];
            let used = Request { partition: 77, update }.encode(&mut words);
            let (request, read) = Ask::decode(&words[..used]).expect("a request");
            assert_eq!((request.partition, request.update, read, words[used]), (77, update, used, 9));
            assert!(Ask::decode(&words[..used - 1]).is_none());
        }
        for reply in [Reply::Done(None), Reply::Done(Some([7, 8])), Reply::Held, Reply::Full(300), Reply::Refused] {
            let mut words = [9; 4];
            let used = reply.encode(&mut words);
            assert_eq!(Reply::<[u64; 2]>::decode(&words[..used]), Some((reply, 3)));
        }
        assert!(Reply::<u64>::decode(&[200, 0]).is_none() && Ask::decode(&[200, 0, 0, 0, 0, 0]).is_none());
    }
}
