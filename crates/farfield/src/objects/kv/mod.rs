//! A key-value store over the memories of all nodes: look-ups take no lock and one round trip.
//!
//! Every node keeps an index of all keys in ordinary memory, and a part of the values in network memory:
//!
//! ```text
//! index (every node):  key → (slot, counter)
//!
//! region `slots` (every node), slot s at s·slot_bytes:
//!   0 ┌─────────────────────────────┬──────────┬───────────────────────┐
//!     │ counter (63) │ valid (1)    │ checksum │ value, whole words    │
//!     └─────────────────────────────┴──────────┴───────────────────────┘
//!       meta, one word                XXH3 of the value, seeded with the counter
//!
//! region `redo` (every node), for each stripe of keys: the last value that another node has put to a slot here
//!   0 ┌──────────┬──────────┬──────────┬───────────────────────┐
//!     │ slot     │ checksum │ checksum │ value, whole words    │
//!     └──────────┴──────────┴──────────┴───────────────────────┘
//!       which it is for       as in the slot; the first covers slot, use, the second, and the value
//! region `reports`: see [`death`]
//! ```
//!
//! Changes of a key are made under one of an array of locks ([`MutexArray`] at `path/locks`). Inserts and deletes are
//! told to all other nodes through the inserter's *tracker*, a [`RingBuffer`](crate::RingBuffer) at `path/tracker/<node>` that the service
//! threads read, apply to the index and acknowledge.
//!
//! - **get** looks up the index (a miss is `None`), reads the slot, and judges it: another counter, or not valid, is
//!   `None`; a wrong checksum is a value that is being written: again.
//! - **insert**: lock; take a free slot, write counter + 1 (not valid), checksum and value; tell all nodes and wait for
//!   their acknowledgements; set valid; unlock. It takes effect when valid is set, when every index has the key.
//! - **update**: lock; write checksum and value; unlock. It takes effect when they have landed.
//! - **delete**: lock; clear valid, and wait until that is visible; tell all nodes and wait for their acknowledgements;
//!   free the slot; unlock. It takes effect when valid is cleared.
//!
//! *What is ordered, and by what.* (1) A value is visible before the lock that protects it can be taken by another: the
//! guard's release fence. (2) Valid is set after every index has the key, or a node whose get misses could be followed
//! by another's that hits and then by a miss again. (3) Valid is visibly cleared before any index loses the key, or a
//! miss on one node could be followed by a hit on another. (4) A slot is free only after all nodes have dropped it from
//! their indexes; the counter tells whoever looked it up before that it is another's now.
//!
//! Linearizable (LOCO §6.2, appendix I). Values lie on the inserter's node, or on one chosen by the key's hash.
//!
//! | call, uncontended | round trips | operations |
//! |---|---|---|
//! | `get`, value here | 0 | none |
//! | `get`, value elsewhere | 1 | 1 get |
//! | `get_many` of k | 1 | at most k gets |
//! | `update`, value here | 2 | cas, faa |
//! | `update`, value elsewhere | 3 (2 where lock and value share a node) | cas, 2 puts, get (fence), faa |
//! | `modify` | as `get`, then `update` or `insert`, under one lock | |
//! | `insert`, value here | 2 and the acknowledgements | cas, faa; the tracker: 2·(n − 1) puts |
//! | `insert`, value elsewhere | 3 (2) and the acknowledgements | cas, 3 puts, get (fence), faa; the tracker: as above |
//! | `delete`, value here | 2 and the acknowledgements | cas, faa; the tracker: as above |
//! | `delete`, value elsewhere | 3 and the acknowledgements | cas, put, get (fence), faa; the tracker: up to twice as many |
//!
//! Where the lock is on the caller's node its two round trips fall away; taking it costs one more when others have queued
//! for it ([`mutex`](crate::objects::mutex)).
//!
//! An insert or delete that is cut short (a timeout, an error, a future that is dropped) leaves its key locked until the
//! service thread has undone the insert, or completed the delete, on all nodes.
//!
//! # When a node dies
//!
//! - **Its values are lost.** Operations on such a key answer [`ErrorKind::Lost`], until it is
//!   inserted again: `insert` and `upsert` take it for absent, `delete` removes it. What [`Placement::Hash`] would place
//!   there goes to the next node. Its share of the others' slots is lost with it. A delete that was under way clears a bit
//!   there first: who has looked meanwhile has missed the key, and may find it lost then, until it is deleted or inserted.
//! - **All else goes on.** Nobody waits for its acknowledgements.
//! - **Its locks move.** Keys whose lock lay there wait until the survivors have agreed that none of them works under it any
//!   more (`death.rs`: a few messages). Then the lock of the next node stands in, of the same row.
//! - **What it has told is made the same everywhere** (`death.rs`): the survivors complete the last messages of its tracker
//!   from each other. Only keys whose locks it held can differ until then: whoever inserts or deletes waits for all
//!   acknowledgements before the release.
//! - **What it left half-done is repaired** under the lock that it held, by the next holder, after that. An insert whose valid
//!   bit is set has happened, another has not; a delete that has cleared it has. An update has happened if its value is there
//!   or can be redone: the value is put twice, first where nobody reads it. Gets meanwhile see what they would have seen
//!   while it lived: an invalid slot is a miss, on whatever node, whether its index has the key or not; a torn value is
//!   waited for, and after a moment the reader takes the lock itself, so that it is repaired.
//!
//! Leaving is the same, without anything half-done: a node that cannot finish what it owes goes as if it had died. A node
//! that stays must keep its handle for as long as any other uses the store: what is closed acknowledges nothing, and the
//! others wait for it.
//!
//! Where a majority says who is dead, a node that was cut off and does not know yet may still find in its own index, and on
//! itself, what the others have changed since, and change it. It can tell none of them: what they do without its
//! acknowledgement ends when it is shut out by all.
//!
//! *A node that comes back* as a new process takes no part in a store that is open: all reopen it
//! ([`KvStore::open_with_pairs_of`]), and it takes part from then on, with all pairs that are not lost.

mod changes;
mod codec;
mod death;
mod index;
mod locks;
mod slots;
mod tracker;
mod unfinished;
mod values;

use std::sync::Arc;

use farfield_fabric::{Buf, Endpoint, GroupKey, NodeId, Region, RemotePtr};

pub use self::codec::{ByteString, Key, Value};
use self::death::Deaths;
use self::index::{Entry, Index};
use self::slots::{Layout, Slots};
use self::tracker::Tracker;
use self::values::{Look, judge};
use crate::error::{Error, ErrorKind, Of, Result};
use crate::mutants;
use crate::mutants::Mutant;
use crate::node::{Node, Object, Regions, Spec};
use crate::objects::mutex::MutexArray;
use crate::objects::participants::Participants;

/// Where the value of a new key goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Placement {
    /// On the node that inserts it.
    #[default]
    Inserter,
    /// On the node that the key's hash says.
    Hash,
}

/// The size and shape of a store. All nodes must agree.
#[derive(Clone, Debug)]
pub struct KvOptions {
    /// Slots for values on each node.
    pub slots_per_node: usize,
    /// The longest key, in bytes, where keys are byte strings.
    pub key_bytes_max: usize,
    /// The longest value, in bytes, where values are byte strings.
    pub value_bytes_max: usize,
    /// Locks; a key's is chosen by its hash.
    pub locks: usize,
    /// Where new values go.
    pub placement: Placement,
    /// Bytes of each node's tracker.
    pub tracker_bytes: usize,
}

impl Default for KvOptions {
    fn default() -> KvOptions {
        KvOptions {
            slots_per_node: 1 << 16,
            key_bytes_max: 64,
            value_bytes_max: 64,
            locks: 4096,
            placement: Placement::default(),
            tracker_bytes: 1 << 18,
        }
    }
}

/// A linearizable map from `K` to `V`, spread over the nodes of a session.
///
/// Keys and values are plain data, or [`ByteString`]s up to a configured length. The handle is shared by the threads of
/// its node; each passes its own endpoint. Any number of operations of one thread may be under way at once
/// ([`Endpoint::run_window`]).
///
/// ```
/// # fn main() -> farfield::Result<()> {
/// use farfield::{KvOptions, KvStore};
/// let node = farfield::Node::builder().session("doc-kv").start()?;
/// let kv = KvStore::<u64, u64>::open(&node, "kv", KvOptions { slots_per_node: 100, ..KvOptions::default() })?;
/// let ep = node.endpoint()?;
/// ep.block_on(async {
///     assert!(kv.insert(&ep, &1, &10).await?);
///     assert!(kv.update(&ep, &1, &11).await?);
///     assert_eq!(kv.get(&ep, &1).await?, Some(11));
///     assert!(kv.delete(&ep, &1).await?);
///     assert_eq!(kv.get(&ep, &1).await?, None);
///     Ok(())
/// })
/// # }
/// ```
pub struct KvStore<K: Key, V: Value> {
    object: Object,
    participants: Participants,
    options: KvOptions,
    layout: Layout,
    region: Region,
    /// Where each node, by rank, keeps the values that others are about to write over its own.
    redo: Vec<RemotePtr<u64>>,
    slots: Arc<Slots>,
    index: Arc<Index<K>>,
    locks: MutexArray,
    tracker: Arc<Tracker<K>>,
    deaths: Arc<Deaths>,
    _value: core::marker::PhantomData<fn() -> V>,
}

/// Slots that are read at once.
const CHUNK: usize = 64;

/// The index has room for all slots from the start, up to this many; beyond, it grows as it fills.
const INDEX_KEYS_MAX: usize = 1 << 22;

impl<K: Key, V: Value> KvStore<K, V> {
    /// Opens the store among the nodes that belong to the session ([`Node::survivors`]), and waits for them to do so.
    ///
    /// # Errors
    /// A node that is missing, gone, or opens it differently; no memory; options that make no sense.
    pub fn open(node: &Node, path: &str, options: KvOptions) -> Result<KvStore<K, V>> {
        KvStore::open_among(node, path, &node.members_for(path), options)
    }

    /// Opens the store among these nodes, which name the same, and waits for them to do so.
    ///
    /// # Errors
    /// As `open`, or this node is none of them.
    pub fn open_among(node: &Node, path: &str, participants: &[NodeId], options: KvOptions) -> Result<KvStore<K, V>> {
        let participants = Participants::new(participants);
        if participants.rank_of(node.id()).is_none() {
            let why = format!("{} is not one of its participants", node.id());
            return Err(Error::from(ErrorKind::Config { why }).of(path));
        }
        let count = participants.len();
        let value_words = V::words(options.value_bytes_max);
        let layout = Layout { words: 2 + value_words, per_node: options.slots_per_node };
        if options.slots_per_node == 0 || options.locks == 0 {
            let why = "`slots_per_node` and `locks` have to be at least 1".into();
            return Err(Error::from(ErrorKind::Config { why }).of(path));
        }
        let message_bytes = tracker::message_bytes_max::<K>(options.key_bytes_max);
        if options.tracker_bytes < message_bytes {
            let why = format!("`tracker_bytes` has to be at least {message_bytes}: a message holds the longest key");
            return Err(Error::from(ErrorKind::Config { why }).of(path));
        }
        let bytes = layout.bytes();
        let mut regions = Regions::new(node);
        let region = regions.alloc("slots", GroupKey::DATA, bytes).of(path)?;
        let redo_bytes = options.locks * layout.redo_words() * 8;
        regions.alloc("redo", GroupKey::DATA, redo_bytes).of(path)?;
        let reports_bytes = count * count * 8;
        let reports = regions.alloc("reports", GroupKey::SERVICE, reports_bytes).of(path)?;
        let spec = Spec {
            path: path.into(),
            kind: "KvStore",
            layout: format!("key={}, value={}, {options:?}", core::any::type_name::<K>(), core::any::type_name::<V>()),
            participants: participants.iter().collect(),
            takes_in: false,
            regions,
            expect: Box::new(move |_| {
                let sizes = [("slots", bytes), ("redo", redo_bytes), ("reports", reports_bytes)];
                sizes.into_iter().map(|(region, bytes)| (region.into(), bytes as u64)).collect()
            }),
        };
        let object = Object::open(node, spec)?;
        let of_all = |region| participants.iter().map(|peer| object.remote(peer, region)).collect::<Result<Vec<_>>>();
        let (bases, redo) = (of_all("slots")?, of_all("redo")?);
        let deaths = Arc::new(Deaths::new(node, participants.clone(), reports, of_all("reports")?));
        // One on each node for each row of stripes: any may have to stand in for any other.
        let (locks, homes) = (options.locks.next_multiple_of(count), participants.iter().collect());
        let locks = MutexArray::open_among(node, &format!("{path}/locks"), locks, homes)?;
        let slots = Arc::new(Slots::new(layout, participants.clone(), node.id(), options.placement, bases));
        let index = Arc::new(Index::new(options.slots_per_node.saturating_mul(count).min(INDEX_KEYS_MAX)));
        let followed = (Arc::clone(&index), Arc::clone(&slots), Arc::clone(&deaths));
        let tracker = Tracker::open(&object, &participants, &options, followed.0, followed.1, followed.2)?;
        Ok(KvStore {
            object,
            participants,
            options,
            layout,
            region,
            redo,
            slots,
            index,
            locks,
            tracker: Arc::new(tracker),
            deaths,
            _value: core::marker::PhantomData,
        })
    }

    /// [`KvStore::open`] with all pairs of a store that is reopened, but for those whose value is lost: for the closure of
    /// [`Node::reopen`]. A node that has `old` open copies the pairs whose values lie on it; a node that has just been started
    /// has none. When `reopen` returns, every node has copied its own. Nobody may change `old` from when its node has called
    /// `reopen`; a change that a dead node had under way has happened or not.
    ///
    /// A store goes on without being reopened when a node dies: reopen it so that a node that was started again can use it, or
    /// to have room and locks only on nodes that live.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// use farfield::{KvOptions, KvStore, Node};
    /// let nodes = farfield::local_session(2)?;
    /// let options = || KvOptions { slots_per_node: 100, ..KvOptions::default() };
    /// let old = KvStore::<u64, u64>::open;
    /// let olds = farfield::on_each(&nodes, |node| old(node, "kv", options()))?;
    /// let ep = nodes[1].endpoint()?;
    /// ep.block_on(olds[1].insert(&ep, &7, &49))?;
    ///
    /// let reopen = |node: &Node| {
    ///     let old = &olds[usize::from(node.id().0)];
    ///     node.reopen("kv", |again| KvStore::open_with_pairs_of(node, again.path(), options(), Some(old)))
    /// };
    /// let news = farfield::on_each(&nodes, reopen)?;
    /// assert_eq!(ep.block_on(news[1].get(&ep, &7))?, Some(49));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As `open`, and as [`KvStore::insert`]: fewer nodes may have too few slots for all pairs.
    pub fn open_with_pairs_of(
        node: &Node,
        path: &str,
        options: KvOptions,
        old: Option<&KvStore<K, V>>,
    ) -> Result<KvStore<K, V>> {
        let store = KvStore::open(node, path, options)?;
        let Some(old) = old else { return Ok(store) };
        let endpoint = node.endpoint()?;
        // A pair that is here and valid is in this node's index: its inserter, dead or not, had all nodes' acknowledgements.
        let here = old.index.entries(|_| true).into_iter().filter(|(_, entry)| entry.slot.node() == node.id());
        let copy = async |key: K| match old.get(&endpoint, &key).await? {
            Some(value) => store.insert(&endpoint, &key, &value).await.map(drop),
            None => Ok(()),
        };
        let mut copied = Ok(());
        endpoint.run_window(CHUNK, here.map(|(key, _)| copy(key)), |done: Result<()>| {
            if copied.is_ok() {
                copied = done;
            }
        });
        copied.map(|()| store)
    }

    /// The number of keys, as this node sees it.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether there are no keys, as this node sees it.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The options that it was opened with.
    pub fn options(&self) -> &KvOptions {
        &self.options
    }

    /// The node on which [`Placement::Hash`] puts a key's value. If that node is gone when the key is inserted, it is
    /// the next one of those that take part, in order of their numbers, that is not gone. None where a value lies with
    /// its inserter.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// use farfield::{KvOptions, KvStore, Placement};
    /// let node = farfield::Node::builder().session("doc-kv-home").start()?;
    /// let options = KvOptions { slots_per_node: 100, placement: Placement::Hash, ..KvOptions::default() };
    /// let kv = KvStore::<u64, u64>::open(&node, "kv", options)?;
    /// assert_eq!(kv.home_of(&1), Some(node.id()));
    /// # Ok(()) }
    /// ```
    pub fn home_of(&self, key: &K) -> Option<NodeId> {
        let is_by_hash = self.options.placement == Placement::Hash;
        is_by_hash.then(|| self.participants.at(self.rank_by_hash(key)))
    }

    /// The value of a key.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`], or a timeout: a writer stopped in the middle of the value.
    #[inline]
    pub async fn get(&self, endpoint: &Endpoint, key: &K) -> Result<Option<V>> {
        let mut since = None;
        loop {
            let Some(entry) = self.index.get(key) else { return Ok(None) };
            match self.look(endpoint, entry).await? {
                Look::Found(value) => return Ok(Some(value)),
                Look::Absent => return Ok(None),
                Look::Torn if mutants::is_on(Mutant::KvTornIsAbsent) => return Ok(None),
                Look::Torn => self.torn(endpoint, key, &mut since).await?,
            }
        }
    }

    /// The values of several keys: `into` gets one answer for each, that of [`KvStore::get`]. All slots are read at once,
    /// which is several times as fast as one after the other. Each key is read at a moment of its own; together they are
    /// not a snapshot. A key whose value is lost, or cannot be read, is no obstacle to the others.
    ///
    /// # Errors
    /// There is no memory to read into.
    pub async fn get_many(&self, endpoint: &Endpoint, keys: &[K], into: &mut Vec<Result<Option<V>>>) -> Result<()> {
        into.clear();
        let words = self.layout.words;
        let mut buf = endpoint.buf::<u64>(words * CHUNK.min(keys.len())).of(self.object.path())?;
        for keys in keys.chunks(CHUNK) {
            let mut entries = [None; CHUNK];
            let mut remote = [RemotePtr::from_packed(0); CHUNK];
            let mut remotes = 0;
            self.index.get_each(keys, |at, entry| {
                entries[at] = Some(entry);
                // On its way already while the other keys are looked up.
                endpoint.prefetch(entry.slot);
                if entry.slot.node() != self.object.node().id() {
                    remote[remotes] = entry.slot;
                    remotes += 1;
                }
            });
            let alone = match endpoint.get_each(&remote[..remotes], words, &mut buf).await {
                Ok(()) => 0,
                Err(_) => self.get_those_there(endpoint, &entries, &mut buf).await,
            };
            let mut images = buf.chunks_exact(words);
            for (at, key) in keys.iter().enumerate() {
                let look = match entries[at] {
                    None => Look::Absent,
                    Some(entry) if entry.slot.node() == self.object.node().id() => self.look_here(entry),
                    Some(_) if alone >> at & 1 == 1 => Look::Torn,
                    Some(entry) => match images.next() {
                        Some(image) => judge(image, entry.counter),
                        None => Look::Torn,
                    },
                };
                into.push(match look {
                    Look::Found(value) => Ok(Some(value)),
                    Look::Absent => Ok(None),
                    Look::Torn => self.get(endpoint, key).await,
                });
            }
        }
        Ok(())
    }

    /// Reads the slots of a chunk of [`KvStore::get_many`] again, but for those on nodes that are gone; a bit for each that
    /// is to be read alone: its error is its own.
    #[cold]
    async fn get_those_there(
        &self,
        endpoint: &Endpoint,
        entries: &[Option<Entry>; CHUNK],
        buf: &mut Buf<'_, u64>,
    ) -> u64 {
        let (mut alone, mut there, mut count) = (0, [RemotePtr::from_packed(0); CHUNK], 0);
        for (at, entry) in entries.iter().enumerate() {
            let remote = entry.filter(|entry| entry.slot.node() != self.object.node().id());
            match remote {
                Some(entry) if self.check_there(endpoint, entry).is_ok() => {
                    there[count] = entry.slot;
                    count += 1;
                }
                Some(_) => alone |= 1 << at,
                None => {}
            }
        }
        // One may be out of reach, and not known to be gone.
        let got = endpoint.get_each(&there[..count], self.layout.words, buf).await;
        if got.is_ok() { alone } else { u64::MAX }
    }

    /// Inserts a key; `false`, and no change, if it is there already. A lost value is not there.
    ///
    /// # Errors
    /// No free slot, a key or value that is too long, a node that is gone, or a timeout. Unless it is the node or the
    /// timeout, nothing has changed.
    pub async fn insert(&self, endpoint: &Endpoint, key: &K, value: &V) -> Result<bool> {
        self.check_sizes(key, Some(value))?;
        let locked = self.lock(endpoint, key).await?;
        if self.index.get(key).is_some_and(|entry| self.check_there(endpoint, entry).is_ok()) {
            return locked.unlock().await.map(|()| false);
        }
        self.insert_locked(locked, key, value).await.map(|()| true)
    }

    /// Changes the value of a key; `false` if it is not there.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`], a value that is too long, or a timeout.
    pub async fn update(&self, endpoint: &Endpoint, key: &K, value: &V) -> Result<bool> {
        self.check_sizes(key, Some(value))?;
        let locked = self.lock(endpoint, key).await?;
        match self.index.get(key) {
            None => locked.unlock().await.map(|()| false),
            Some(entry) => self.update_locked(locked, self.stripe(key), entry, value).await.map(|()| true),
        }
    }

    /// Inserts the key, or changes its value.
    ///
    /// # Errors
    /// As [`KvStore::insert`].
    pub async fn upsert(&self, endpoint: &Endpoint, key: &K, value: &V) -> Result<()> {
        self.check_sizes(key, Some(value))?;
        let locked = self.lock(endpoint, key).await?;
        match self.index.get(key).filter(|entry| self.check_there(endpoint, *entry).is_ok()) {
            None => self.insert_locked(locked, key, value).await,
            Some(entry) => self.update_locked(locked, self.stripe(key), entry, value).await,
        }
    }

    /// Reads a key, and writes what `change` makes of it, as one operation; what was there before. `None` from `change`
    /// leaves it as it is.
    ///
    /// # Errors
    /// As [`KvStore::insert`], or [`ErrorKind::Lost`]: what was there cannot be read.
    pub async fn modify(
        &self,
        endpoint: &Endpoint,
        key: &K,
        change: impl FnOnce(Option<&V>) -> Option<V>,
    ) -> Result<Option<V>> {
        self.check_sizes(key, None)?;
        let locked = self.lock(endpoint, key).await?;
        let before = self.get(endpoint, key).await?;
        match change(before.as_ref()) {
            None => locked.unlock().await?,
            Some(value) => {
                self.check_sizes(key, Some(&value))?;
                match self.index.get(key) {
                    None => self.insert_locked(locked, key, &value).await?,
                    Some(entry) => self.update_locked(locked, self.stripe(key), entry, &value).await?,
                }
            }
        }
        Ok(before)
    }

    /// Removes a key; `false` if it was not there. If another node handed the slot out, that node may use it again a
    /// moment later only.
    ///
    /// # Errors
    /// A node that is gone, or a timeout. The key may be gone nevertheless.
    pub async fn delete(&self, endpoint: &Endpoint, key: &K) -> Result<bool> {
        self.check_sizes(key, None)?;
        let locked = self.lock(endpoint, key).await?;
        let Some(entry) = self.index.get(key) else {
            return locked.unlock().await.map(|()| false);
        };
        self.remove(locked, key, entry).await?.unlock().await.map(|()| true)
    }

    fn check_sizes(&self, key: &K, value: Option<&V>) -> Result<()> {
        let too_large = |bytes: usize, max_bytes: usize| {
            Err(Error::from(ErrorKind::TooLarge { bytes, max_bytes }).of(self.object.path()))
        };
        let (key_bytes, value_bytes) = (key.bytes(), value.map_or(0, Value::bytes));
        if !K::FIXED && key_bytes > self.options.key_bytes_max {
            return too_large(key_bytes, self.options.key_bytes_max);
        }
        if !V::FIXED && value_bytes > self.options.value_bytes_max {
            return too_large(value_bytes, self.options.value_bytes_max);
        }
        Ok(())
    }

    // ---- values ------------------------------------------------------------------------------------------------------

    /// Whether the node of a value is not gone.
    fn check_there(&self, endpoint: &Endpoint, entry: Entry) -> Result<()> {
        let node = entry.slot.node();
        if node == self.object.node().id() {
            return Ok(());
        }
        endpoint.check_alive(node).map_err(|error| self.lost_by(error))
    }

    /// The error of a value whose node is gone.
    #[cold]
    fn lost_by(&self, error: impl Into<Error>) -> Error {
        let error = error.into();
        let error = match error.node() {
            Some(node) if error.is_gone() => ErrorKind::Lost { node }.into(),
            _ => error,
        };
        error.of(self.object.path())
    }
}
