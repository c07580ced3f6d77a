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
//!       meta, one word                hash of the value, seeded with the counter
//!
//! region `redo` (every node), for each stripe of keys: the last value that another node has put to a slot here
//!   0 ┌──────────┬──────────┬──────────┬───────────────────────┐
//!     │ slot     │ checksum │ checksum │ value, whole words    │
//!     └──────────┴──────────┴──────────┴───────────────────────┘
//!       which it is for       as in the slot; the first covers slot, use, the second, and the value
//! region `reports`: see [`death`]
//! ```
//!
//! A change of a key happens under one of an array of locks ([`MutexArray`] at `path/locks`). Inserts and deletes are
//! announced to all other nodes through the inserter's *tracker*, a [`RingBuffer`](crate::RingBuffer) at
//! `path/tracker/<node>`. The service threads read it, apply it to the index and acknowledge it.
//!
//! - **get** looks up the index (a miss is `None`), reads the slot, and checks it: another counter, or not valid, is
//!   `None`; a wrong checksum is a value that is being written: it reads again.
//! - **insert**: lock; take a free slot, write counter + 1 (not valid), checksum and value; announce to all nodes and
//!   wait for their acknowledgements; set valid; unlock. It takes effect when valid is set, when every index has the
//!   key.
//! - **update**: lock; write checksum and value; unlock. It takes effect when they have landed.
//! - **delete**: lock; clear valid, and wait until that is visible; announce to all nodes and wait for their
//!   acknowledgements; free the slot; unlock. It takes effect when valid is cleared.
//!
//! *The orders, and their reasons.* (1) A value is visible before another operation can take its lock: by the guard's
//! release fence. (2) Valid is set after every index has the key. Otherwise a miss on one node could be followed by a
//! hit on another and then by a miss again. (3) Valid is visibly cleared before any index loses the key. Otherwise a
//! miss on one node could be followed by a hit on another. (4) A slot is free only after all nodes have dropped it
//! from their indexes; the counter shows an earlier reader of the index that the slot has another use now.
//!
//! - **expiry**: a key that was inserted for a time ([`KvStore::insert_for`]) is deleted by the service thread of the
//!   node that has its value, by that node's clock (`expiry.rs`).
//!
//! Linearizable (LOCO §6.2, appendix I). Values are on the inserter's node, or on one chosen by the key's hash.
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
//! | `insert_for`, `upsert_for` | as `insert`, `upsert`, and elsewhere the acknowledgements | value elsewhere: the tracker once more |
//! | `expire_after`, value here | 2 | cas, faa |
//! | `expire_after`, value elsewhere | 2 and the acknowledgements | cas, faa; the tracker: 2·(n − 1) puts |
//! | `delete`, value here | 2 and the acknowledgements | cas, faa; the tracker: as above |
//! | `delete`, value elsewhere | 3 and the acknowledgements | cas, put, get (fence), faa; the tracker: up to twice as many |
//!
//! If the lock is on the caller's node its two round trips disappear. Taking it costs one more when others have queued
//! for it ([`mutex`](crate::objects::mutex)).
//!
//! An insert or delete that is cut short (a timeout, an error, a dropped future) leaves its key locked until the
//! service thread has undone the insert, or completed the delete, on all nodes.
//!
//! # When a node dies
//!
//! - **Its values are lost.** Operations on such a key fail with [`ErrorKind::ValueLost`], until it is inserted again:
//!   `insert` and `upsert` treat it as absent, `delete` removes it. [`Placement::Hash`] uses the next node instead.
//!   The dead node's share of the others' slots is lost with it. A delete in progress clears a bit there first: a
//!   reader may have missed the key meanwhile, and may then find it lost, until it is deleted or inserted.
//! - **All else continues.** No operation waits for its acknowledgements.
//! - **Its locks move.** Keys with their lock there wait until the survivors have agreed that none of them still works
//!   under it (`death.rs`: a few messages). Then the lock of the next node replaces it, in the same row.
//! - **Its announcements become the same everywhere** (`death.rs`): the survivors complete the last messages of its
//!   tracker from each other. Only keys under locks that it held can differ until then: an insert or delete waits for
//!   all acknowledgements before the release.
//! - **Its unfinished changes are repaired** under the lock that it held, by the next holder, after that. An insert has
//!   happened if its valid bit is set, and else not; a delete has if it has cleared the bit. An update has happened if
//!   its value is complete or can be redone: the value is put twice, first to a place without readers. Gets meanwhile
//!   behave as if it were alive: an invalid slot is a miss, on any node, whether its index has the key or not. A get
//!   waits for a torn value, and after a moment takes the lock itself, so that the value is repaired.
//!
//! Leaving is the same, without unfinished changes: a node that cannot finish its pending work exits as if it had
//! died. A member must keep its handle for as long as any other uses the store: a closed store acknowledges nothing,
//! and the others wait for it.
//!
//! If a majority decides deaths, a node that was cut off and does not know yet may still use its own index and memory,
//! find changes that the others have made since, and change them. It can announce nothing: calls of the others that
//! lack its acknowledgement end when all have evicted it.
//!
//! *A restarted node* takes no part in an open store: all reopen it ([`KvStore::open_with_pairs_of`]), and it takes
//! part from then on, with all pairs that are not lost.

mod change_many;
mod changes;
mod conditional;
mod expiry;
mod get_many;
mod index;
mod locks;
mod options;
mod recovery;
mod slots;
mod timed;
mod tracker;
mod unfinished;
mod values;
mod whole;

use core::future::Future;
use core::time::Duration;
use std::sync::Arc;

use farfield_fabric::{Attempt, Begun, Endpoint, GroupKey, NodeId, Region, RemotePtr};

use self::expiry::{Expirer, Expiries, Open};
use self::index::{Entry, Index};
use self::locks::Stripes;
pub use self::options::{KvOptions, Placement};
use self::recovery::Deaths;
use self::slots::{FORMAT, Layout, Slots};
use self::tracker::Tracker;
use self::values::{Look, Looking};
use crate::error::{Error, ErrorContext, ErrorKind, Result};
use crate::node::{Node, Object, ObjectBuilder, Regions, measured};
pub use crate::objects::codec::{ByteString, Key, Value};
use crate::objects::mutex::MutexArray;
use crate::objects::options::{at_least_one, region_bytes};
use crate::objects::participants::Participants;

/// A linearizable map from `K` to `V`, spread over the nodes of a session.
///
/// Keys and values are plain data, or [`ByteString`]s up to a configured length. The handle is shared by the threads
/// of its node; each passes its own endpoint. Any number of operations of one thread may be in flight at once
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
    /// The memory of each node, by rank, for the values that others are about to write over its own.
    redo: Vec<RemotePtr<u64>>,
    slots: Arc<Slots>,
    index: Arc<Index<K>>,
    locks: Arc<MutexArray>,
    stripes: Stripes,
    expiries: Arc<Expiries<K>>,
    tracker: Arc<Tracker<K>>,
    deaths: Arc<Deaths>,
    _value: core::marker::PhantomData<fn() -> V>,
}

/// Its calls, as they are measured.
const CALLS: [&str; 8] = ["get", "get_many", "insert", "update", "upsert", "modify", "delete", "expire_after"];
const GET: usize = 0;
const GET_MANY: usize = 1;
const INSERT: usize = 2;
const UPDATE: usize = 3;
const UPSERT: usize = 4;
const MODIFY: usize = 5;
const DELETE: usize = 6;
const EXPIRE_AFTER: usize = 7;

/// Calls that are in flight at once in those for several keys.
const WINDOW: usize = 64;

/// The index has room for all slots from the start, up to this many; beyond, it grows as it fills.
const INDEX_KEYS_MAX: usize = 1 << 22;

impl<K: Key, V: Value> KvStore<K, V> {
    /// Opens the store among the members of the session ([`Node::live_members`]), and waits for them to do so.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let nodes = farfield::local_session(2)?;
    /// use farfield::{KvOptions, KvStore};
    /// let open = |node: &farfield::Node| KvStore::<u64, u64>::open(node, "store", KvOptions::default());
    /// let stores = farfield::on_each(&nodes, open)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// A node that is missing, dead or departed, or that opens it differently; no memory; invalid options.
    pub fn open(node: &Node, path: &str, options: KvOptions) -> Result<KvStore<K, V>> {
        KvStore::open_among(node, path, &node.members_for(path), options)
    }

    /// Opens the store among these nodes, which must name the same, and waits for them to do so.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let nodes = farfield::local_session(3)?;
    /// use farfield::{KvOptions, KvStore, Node};
    /// let pair = [nodes[0].id(), nodes[1].id()];
    /// let open = |node: &Node| KvStore::<u64, u64>::open_among(node, "store", &pair, KvOptions::default());
    /// let stores = farfield::on_each(&nodes[..2], open)?; // the third node does not open it
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As `open`, or this node is not among them.
    pub fn open_among(node: &Node, path: &str, participants: &[NodeId], options: KvOptions) -> Result<KvStore<K, V>> {
        let participants = Participants::new(participants);
        participants.require(node.id()).of(path)?;
        let count = participants.count();
        let value_words = V::words(options.value_bytes_max);
        let layout = Layout { words: 2 + value_words, per_node: options.slots_per_node };
        at_least_one(&[("slots_per_node", options.slots_per_node), ("locks", options.locks)]).of(path)?;
        region_bytes(options.tracker_bytes / 8, 1, "`tracker_bytes`").of(path)?;
        let message_bytes = tracker::message_bytes_max::<K>(options.key_bytes_max);
        if options.tracker_bytes < message_bytes || !options.tracker_bytes.is_multiple_of(8) {
            let why = format!(
                "`tracker_bytes` has to be a multiple of 8, and at least {message_bytes}: a message holds the longest key"
            );
            return Err(Error::from(ErrorKind::Config { why }).of(path));
        }
        let bytes = layout.bytes().of(path)?;
        let mut regions = Regions::new(node);
        let region = regions.alloc("slots", GroupKey::DATA, bytes).of(path)?;
        let redo_bytes = region_bytes(options.locks, layout.redo_words(), "`locks` or `value_bytes_max`").of(path)?;
        regions.alloc("redo", GroupKey::DATA, redo_bytes).of(path)?;
        let reports_bytes = count * count * 8;
        let reports = regions.alloc("reports", GroupKey::SERVICE, reports_bytes).of(path)?;
        let expect = move |_| {
            let sizes = [("slots", bytes), ("redo", redo_bytes), ("reports", reports_bytes)];
            sizes.into_iter().map(|(region, bytes)| (region.into(), bytes as u64)).collect()
        };
        let (key, value) = (core::any::type_name::<K>(), core::any::type_name::<V>());
        let options_here = format!("format={FORMAT}, key={key}, value={value}, {options:?}");
        let opening = ObjectBuilder::new(node, path, "KvStore").layout(&options_here).participants(participants.iter());
        let object = opening.calls(&CALLS).regions(regions).require_regions(expect).open()?;
        let of_all = |region| participants.iter().map(|peer| object.remote(peer, region)).collect::<Result<Vec<_>>>();
        let (bases, redo) = (of_all("slots")?, of_all("redo")?);
        let deaths = Arc::new(Deaths::new(node, participants.clone(), reports, of_all("reports")?));
        // One lock on each node for each row of stripes: any may have to replace any other.
        let stripes = Stripes { count: options.locks, nodes: count };
        let (locks, homes) = (options.locks.next_multiple_of(count), object.participants());
        // The service thread may drop the last handle, which must not take the node with it.
        let service = node.for_service();
        let locks = Arc::new(MutexArray::open_unmarked(&service, &format!("{path}/locks"), homes, locks)?);
        let slots = Arc::new(Slots::new(layout, participants.clone(), node.id(), options.placement, bases));
        let index = Arc::new(Index::new(options.slots_per_node.saturating_mul(count).min(INDEX_KEYS_MAX)));
        let expiries = Arc::new(Expiries::new(node.for_service()));
        let (slots_too, deaths_too, expiries_too) = (Arc::clone(&slots), Arc::clone(&deaths), Arc::clone(&expiries));
        let index_too = Arc::clone(&index);
        let tracker = Tracker::open(&object, &participants, &options, index_too, slots_too, deaths_too, expiries_too)?;
        let tracker = Arc::new(tracker);
        let (index_too, locks_too) = (Arc::clone(&index), Arc::clone(&locks));
        let open = Open { expiries, tracker, index: index_too, locks: locks_too };
        let (slots_too, deaths_too) = (Arc::clone(&slots), Arc::clone(&deaths));
        let expirer = Expirer::new(node.for_service(), &open, slots_too, deaths_too, stripes, region.clone());
        open.expiries.has_poller(expirer);
        let Open { expiries, tracker, .. } = open;
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
            stripes,
            expiries,
            tracker,
            deaths,
            _value: core::marker::PhantomData,
        })
    }

    /// [`KvStore::open`] with all pairs of a store that is reopened, except lost ones: for the closure of
    /// [`Node::reopen`]. A node that has `old` open copies the pairs with values in its own memory; a restarted node
    /// has none. When `reopen` returns, every node has copied its own. From its node's call of `reopen` on, no thread
    /// may change `old`; a change that a dead node had begun has happened or not.
    ///
    /// A store continues without being reopened when a node dies. Reopen it so that a restarted node can use it, or to
    /// have slots and locks on live nodes only.
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
        // A valid pair here is in this node's index: its inserter, dead or not, had all nodes' acknowledgements.
        let here = old.index.entries(|_| true).into_iter().filter(|(_, entry)| entry.slot.node() == node.id());
        let copy = async |key: K, entry: Entry| {
            // Looked at first: when the time is up, the value is removed before its note.
            let left = old.expiries.left(entry, endpoint.now());
            match (old.get(&endpoint, &key).await?, left) {
                (None, _) | (_, Some(Duration::ZERO)) => Ok(()),
                (Some(value), None) => store.insert(&endpoint, &key, &value).await.map(drop),
                (Some(value), Some(left)) => store.insert_for(&endpoint, &key, &value, left).await.map(drop),
            }
        };
        let mut copied = Ok(());
        endpoint.run_window(WINDOW, here.map(|(key, entry)| copy(key, entry)), |done: Result<()>| {
            if copied.is_ok() {
                copied = done;
            }
        });
        copied.map(|()| store)
    }

    /// The options of the store.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let node = farfield::Node::builder().start()?;
    /// # let store = farfield::KvStore::<u64, u64>::open(&node, "store", farfield::KvOptions::default())?;
    /// assert_eq!(store.options().placement, farfield::Placement::Inserter);
    /// # Ok(()) }
    /// ```
    pub fn options(&self) -> &KvOptions {
        &self.options
    }

    /// The node on which [`Placement::Hash`] puts a key's value. If that node is dead or departed at the insert, it is
    /// the next live participant, in order of their numbers. None if values are stored with their inserters.
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
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let node = farfield::Node::builder().session("doc-objects-kv-mod-2").start()?;
    /// # let ep = node.endpoint()?;
    /// # let store = farfield::KvStore::<u64, u64>::open(&node, "store", farfield::KvOptions::default())?;
    /// ep.block_on(store.insert(&ep, &7, &70))?;
    /// assert_eq!(ep.block_on(store.get(&ep, &7))?, Some(70));
    /// assert_eq!(ep.block_on(store.get(&ep, &8))?, None);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::ValueLost`], or a timeout: a writer stopped during its update of the value.
    #[inline]
    pub fn get<'a>(&'a self, endpoint: &'a Endpoint, key: &'a K) -> impl Future<Output = Result<Option<V>>> + 'a {
        Attempt::new(move || {
            let mut begun = None;
            if !self.object.meter().is_on() {
                let Some(entry) = self.index.find(key) else { return Ok(Ok(None)) };
                begun = Some(match self.begin_look(endpoint, entry)? {
                    Ok(Look::Found(value)) => return Ok(Ok(Some(value))),
                    Ok(Look::Absent) => return Ok(Ok(None)),
                    Ok(Look::Torn) => Ok(Look::Torn),
                    Err(looking) => Err((looking, entry)),
                });
            }
            Ok(Err(endpoint.boxed(self.get_on(endpoint, key, begun))))
        })
    }

    /// [`KvStore::get`] after its first look, if it has begun one.
    #[cold]
    async fn get_on(
        &self,
        endpoint: &Endpoint,
        key: &K,
        mut begun: Option<Begun<Look<V>, (Looking<'_>, Entry)>>,
    ) -> Result<Option<V>> {
        measured!(self.object.meter(), endpoint, GET, self.get_on(endpoint, key, None));
        let mut since = None;
        loop {
            let look = match begun.take() {
                Some(Ok(look)) => look,
                Some(Err((looking, entry))) => self.end_look(looking, entry).await?,
                None => {
                    let Some(entry) = self.index.get(key) else { return Ok(None) };
                    self.look(endpoint, entry).await?
                }
            };
            match look {
                Look::Found(value) => return Ok(Some(value)),
                Look::Absent => return Ok(None),
                Look::Torn => self.torn(endpoint, key, &mut since).await?,
            }
        }
    }

    /// Inserts a key. Returns `false`, without a change, if it is present already. A key with a lost value is absent.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let node = farfield::Node::builder().session("doc-objects-kv-mod-4").start()?;
    /// # let ep = node.endpoint()?;
    /// # let store = farfield::KvStore::<u64, u64>::open(&node, "store", farfield::KvOptions::default())?;
    /// assert!(ep.block_on(store.insert(&ep, &7, &70))?);
    /// assert!(!ep.block_on(store.insert(&ep, &7, &71))?); // it is there already, and stays as it is
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// No free slot, a key or value that is too long, a dead or departed node, or a timeout. Except for the last two,
    /// nothing has changed.
    pub async fn insert(&self, endpoint: &Endpoint, key: &K, value: &V) -> Result<bool> {
        measured!(self.object.meter(), endpoint, INSERT, self.insert(endpoint, key, value));
        self.check_sizes(key, Some(value))?;
        let locked = self.lock(endpoint, key).await?;
        if self.index.get(key).is_some_and(|entry| self.check_there(endpoint, entry).is_ok()) {
            return locked.unlock().await.map(|()| false);
        }
        self.insert_locked(locked, key, value, None).await.map(|()| true)
    }

    /// Changes the value of a key. Returns `false` if the key is absent.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let node = farfield::Node::builder().session("doc-objects-kv-mod-5").start()?;
    /// # let ep = node.endpoint()?;
    /// # let store = farfield::KvStore::<u64, u64>::open(&node, "store", farfield::KvOptions::default())?;
    /// assert!(!ep.block_on(store.update(&ep, &7, &70))?); // there is no such key
    /// ep.block_on(store.insert(&ep, &7, &70))?;
    /// assert!(ep.block_on(store.update(&ep, &7, &71))?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::ValueLost`], a value that is too long, or a timeout.
    #[inline]
    pub fn update<'a>(
        &'a self,
        endpoint: &'a Endpoint,
        key: &'a K,
        value: &'a V,
    ) -> impl Future<Output = Result<bool>> + 'a {
        Attempt::new(move || self.begin_update(endpoint, key, value))
    }

    /// Inserts the key, or changes its value.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let node = farfield::Node::builder().session("doc-objects-kv-mod-6").start()?;
    /// # let ep = node.endpoint()?;
    /// # let store = farfield::KvStore::<u64, u64>::open(&node, "store", farfield::KvOptions::default())?;
    /// ep.block_on(store.upsert(&ep, &7, &70))?;
    /// ep.block_on(store.upsert(&ep, &7, &71))?;
    /// assert_eq!(ep.block_on(store.get(&ep, &7))?, Some(71));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`KvStore::insert`].
    pub async fn upsert(&self, endpoint: &Endpoint, key: &K, value: &V) -> Result<()> {
        measured!(self.object.meter(), endpoint, UPSERT, self.upsert(endpoint, key, value));
        self.check_sizes(key, Some(value))?;
        let locked = self.lock(endpoint, key).await?;
        match self.index.get(key).filter(|entry| self.check_there(endpoint, *entry).is_ok()) {
            None => self.insert_locked(locked, key, value, None).await,
            Some(entry) => self.update_locked(locked, entry, value).await,
        }
    }

    /// Reads a key, and writes the result of `change`, as one operation. Returns the old value. If `change` returns
    /// `None`, the value stays.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let node = farfield::Node::builder().session("doc-objects-kv-mod-7").start()?;
    /// # let ep = node.endpoint()?;
    /// # let store = farfield::KvStore::<u64, u64>::open(&node, "store", farfield::KvOptions::default())?;
    /// ep.block_on(store.insert(&ep, &7, &70))?;
    /// let before = ep.block_on(store.modify(&ep, &7, |value| value.map(|value| value + 1)))?;
    /// assert_eq!((before, ep.block_on(store.get(&ep, &7))?), (Some(70), Some(71)));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`KvStore::insert`], or [`ErrorKind::ValueLost`]: the old value cannot be read.
    pub async fn modify(
        &self,
        endpoint: &Endpoint,
        key: &K,
        change: impl FnOnce(Option<&V>) -> Option<V>,
    ) -> Result<Option<V>> {
        measured!(self.object.meter(), endpoint, MODIFY, self.modify(endpoint, key, change));
        self.check_sizes(key, None)?;
        let locked = self.lock(endpoint, key).await?;
        self.object.meter().skip(endpoint, GET);
        let before = self.get(endpoint, key).await?;
        match change(before.as_ref()) {
            None => locked.unlock().await?,
            Some(value) => {
                self.check_sizes(key, Some(&value))?;
                match self.index.get(key) {
                    None => self.insert_locked(locked, key, &value, None).await?,
                    Some(entry) => self.update_locked(locked, entry, &value).await?,
                }
            }
        }
        Ok(before)
    }

    /// Removes a key. Returns `false` if it was absent. If another node owns the slot, that node may reuse it a moment
    /// later.
    ///
    /// ```
    /// # fn main() -> farfield::Result<()> {
    /// # let node = farfield::Node::builder().session("doc-objects-kv-mod-8").start()?;
    /// # let ep = node.endpoint()?;
    /// # let store = farfield::KvStore::<u64, u64>::open(&node, "store", farfield::KvOptions::default())?;
    /// ep.block_on(store.insert(&ep, &7, &70))?;
    /// assert!(ep.block_on(store.delete(&ep, &7))?);
    /// assert!(!ep.block_on(store.delete(&ep, &7))?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// A dead or departed node, or a timeout. The key may be removed nevertheless.
    pub async fn delete(&self, endpoint: &Endpoint, key: &K) -> Result<bool> {
        measured!(self.object.meter(), endpoint, DELETE, self.delete(endpoint, key));
        self.check_sizes(key, None)?;
        let locked = self.lock(endpoint, key).await?;
        let Some(entry) = self.index.get(key) else {
            return locked.unlock().await.map(|()| false);
        };
        self.remove(locked, key, entry).await?.unlock().await.map(|()| true)
    }
}
