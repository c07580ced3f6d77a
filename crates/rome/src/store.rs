//! The store: an ordered map over the memories of several nodes.

mod ask;
mod instant;
mod moving;
mod options;
mod place;
mod returned;
mod scan;
mod thread;
mod updates;

use core::fmt;
use core::ops::{Bound, RangeBounds};
use std::collections::BTreeMap;
use std::sync::Arc;

use farfield_core::toolkit::{ErrorContext, Object, ObjectBuilder, Participants, Regions};
use farfield_core::{Error, ErrorKind, Node, Result};
use farfield_fabric::{GroupKey, LocalMutex, NodeId, Region, Word};
use farfield_rpc::{Client, Effect, RpcOptions, Server, effect_of};

use self::moving::Pendings;
pub use self::options::RomeKvOptions;
use self::place::{Lost, Place, raise, tree_of, word_of};
use self::returned::{Heard, has_returned, returned};
pub use self::scan::RomeKvScan;
pub use self::thread::RomeKvThread;
pub use self::updates::RomeKvUpdate;
use self::updates::{Incoming, Reply, Request, Served, Serving, Shared};
use crate::errors::{MemoryFull, RangeUnavailable, SnapshotExpired};
use crate::field::{Field, TreeKey};
use crate::gate::{GATE_BYTES, Gate, PLACE};
use crate::tree::RomeTree;

type Calls<K, V> = Client<Request<K, V>, Reply<V>>;

/// A sorted map over several nodes. Each node has some ranges of the keys, its partitions: trees in its memory
/// ([`RomeTree`]).
///
/// All nodes read all partitions, by gets alone, and no change makes a read wait or start again. The threads of its
/// owner change a partition in place. Other nodes ask the owner's service thread, by
/// [calls](https://docs.rs/farfield-rpc): each update happens once, however often its request is put.
///
/// ```
/// use farfield_rome::{RomeKv, RomeKvOptions};
/// # let nodes = farfield::local_session(2)?;
/// let options = RomeKvOptions::new([500]); // keys below 500 on the first node, the others on the second
/// let stores = farfield::on_each(&nodes, |node| RomeKv::<u64, u64>::open(node, "store", options.clone()))?;
/// let ep = nodes[0].endpoint()?;
/// let mut thread = stores[0].thread()?;
/// ep.block_on(async {
///     thread.put(&ep, 7, 70).await?; // in this node's memory
///     thread.put(&ep, 700, 7000).await?; // a call to the other node
///     assert_eq!(thread.get(&ep, &700).await?, Some(7000)); // by gets
///     let all = thread.range(&ep, .., 100).await?;
///     assert_eq!(all, [(7, 70), (700, 7000)]);
///     Ok::<(), farfield::Error>(())
/// })?;
/// # Ok::<(), farfield::Error>(())
/// ```
pub struct RomeKv<K: TreeKey, V: Field> {
    parts: Arc<Parts<K, V>>,
}

impl<K: TreeKey, V: Field> Clone for RomeKv<K, V> {
    fn clone(&self) -> Self {
        RomeKv { parts: Arc::clone(&self.parts) }
    }
}

impl<K: TreeKey, V: Field> fmt::Debug for RomeKv<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RomeKv").field("partitions", &self.partitions()).finish_non_exhaustive()
    }
}

/// What the threads of a node share.
struct Parts<K: TreeKey, V: Field> {
    object: Object,
    options: RomeKvOptions<K>,
    /// The gates of this node, one for each partition, and beside them where that is.
    gates: Region,
    /// By partition: where it is, as far as this node knows.
    places: Vec<LocalMutex<Place<K, V>>>,
    /// By partition: 1 while a thread changes that.
    changing: Vec<Word>,
    /// By partition: what all members have said of it, if its owner is dead.
    lost: Vec<LocalMutex<Option<Lost>>>,
    /// By partition: a copy of it that this node has, if the old owner has not answered.
    pending: Pendings<K, V>,
    /// How many partitions this node has begun to take.
    takes: Word,
    /// One for each other owner.
    clients: LocalMutex<BTreeMap<NodeId, Arc<Calls<K, V>>>>,
    /// 1 while a thread opens one.
    opening: Word,
    calls: RpcOptions,
    /// For the partitions that this node has, or takes. Closed first, with the last handle.
    server: Option<Server<Request<K, V>, Reply<V>>>,
    serving: Shared<K, V>,
    incoming: Incoming<K, V>,
    /// A key, for errors.
    text: fn(&K) -> String,
}

impl<K: TreeKey, V: Field> Drop for Parts<K, V> {
    fn drop(&mut self) {
        self.server = None;
        drop(self.serving.lock().take());
    }
}

impl<K: TreeKey + fmt::Debug, V: Field> RomeKv<K, V> {
    /// Opens the store, and waits for all members to do so. Its partitions are empty at first.
    ///
    /// A node that is started at the place of one that has gone opens it as the others did, while these go on. It has
    /// no partition at first. Those of the node before it are lost, if they were not moved in time; it can take others.
    ///
    /// ```
    /// # use farfield_rome::{Bytes, RomeKv, RomeKvOptions};
    /// let node = farfield::Node::builder().start()?;
    /// let options = RomeKvOptions::new([Bytes::<4>::try_from("n")?]);
    /// let names = RomeKv::<Bytes<4>, u64>::open(&node, "names", options)?;
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// A node that is missing, dead or departed, or that opens it differently; no memory; invalid options.
    pub fn open(node: &Node, path: &str, options: RomeKvOptions<K>) -> Result<RomeKv<K, V>> {
        options.check().of(path)?;
        let members = members_of(node, path);
        let me = node.id();
        let owners: Vec<NodeId> =
            (0..options.partitions()).map(|partition| members.at(partition % members.count())).collect();
        let (gates, object, heard) = open_gates(node, path, &options, &members)?;
        let open = |number: usize, place: (u64, NodeId), patience| {
            // The store's object keeps the node in its session. The trees must not: the service thread has a part in
            // them.
            RomeTree::open_within(&node.for_service(), &tree_of(path, number, place), place.1, options.tree, patience)
        };
        let (mut places, mut served) = (Vec::new(), Vec::new());
        let has_returned = has_returned(node, &object, &heard)?;
        if has_returned {
            places = returned(&object, &gates, options.partitions(), open)?;
        } else {
            for (number, owner) in owners.iter().copied().enumerate() {
                raise(gates.word(number * GATE_BYTES + PLACE), word_of(0, owner));
                let mut tree = open(number, (0, owner), None)?;
                if owner == me {
                    let gate = Gate::new(&gates, number, options.hold);
                    tree.set_gate(gate.clone());
                    served.push(Served { number, epoch: 0, partition: tree.partition()?, gate, taker: None });
                }
                places.push(Place::new(0, owner, tree));
            }
        }
        let places: Vec<_> = places.into_iter().map(LocalMutex::new).collect();
        let calls = RpcOptions { window: options.window, batch_max: options.batch_max, ..RpcOptions::default() };
        let (serving, incoming) = (Shared::<K, V>::new(LocalMutex::new(None)), Incoming::<K, V>::default());
        let pending = Pendings::<K, V>::new(owners.iter().map(|_| LocalMutex::default()).collect());
        let mut server = None;
        if members.count() > 1 {
            *serving.lock() =
                Some(Serving::new(node, served, (&incoming, &pending), &gates, options.tree.lease).of(path)?);
            let taken = Arc::clone(&serving);
            let handle = move |client, request: Request<K, V>| {
                // It is not locked meanwhile: a change may wait for another thread.
                let Some(mut serving) = taken.lock().take() else { return Reply::Refused };
                let reply = serving.handle(client, &request);
                *taken.lock() = Some(serving);
                reply
            };
            server = Some(Server::open_on_service(node, &updates_of(path, me), calls, handle)?);
        }
        let parts = Parts {
            object,
            gates,
            places,
            changing: owners.iter().map(|_| Word::new(0)).collect(),
            lost: owners.iter().map(|_| LocalMutex::default()).collect(),
            pending,
            clients: LocalMutex::default(),
            takes: Word::new(0),
            opening: Word::new(0),
            calls,
            server,
            serving,
            incoming,
            text: |key: &K| format!("{key:?}"),
            options,
        };
        let store = RomeKv { parts: Arc::new(parts) };
        // A node that has returned opens them when they are needed: an owner may have died meanwhile.
        let first = if has_returned { 0 } else { members.count() };
        for owner in owners.iter().copied().take(first).filter(|owner| *owner != me) {
            store.client_of(owner)?;
        }
        Ok(store)
    }
}

/// The members: of each place the last node. That the one before it has gone may be known later.
fn members_of(node: &Node, path: &str) -> Participants {
    let mut members = node.members_for(path);
    let all = members.clone();
    members.retain(|one| !all.iter().any(|other| other > one && node.rank_of(*other) == node.rank_of(*one)));
    Participants::new(&members)
}

/// The path of the calls of an owner.
fn updates_of(path: &str, owner: NodeId) -> String {
    format!("{path}/updates-{}", owner.0)
}

/// The memory of this node's gates, and the object with those of all.
fn open_gates<K: TreeKey>(
    node: &Node,
    path: &str,
    options: &RomeKvOptions<K>,
    members: &Participants,
) -> Result<(Region, Object, Arc<Heard>)> {
    let (mut regions, bytes) = (Regions::new(node), options.partitions() * GATE_BYTES);
    let gates = regions.alloc("gates", GroupKey::SIGNAL, bytes).of(path)?;
    let (heard, me) = (Arc::new(Heard::default()), node.id());
    let hears = Arc::clone(&heard);
    let object = ObjectBuilder::new(node, path, "RomeKv")
        .layout(&options.described())
        .participants(members.iter())
        .regions(regions)
        .require_regions(move |_| vec![("gates".to_string(), bytes as u64)])
        .takes_in_returned()
        .on_connect(move |_, theirs| hears.told(theirs.participants.contains(&me.0)))
        .open()?;
    Ok((gates, object, heard))
}

impl<K: TreeKey, V: Field> RomeKv<K, V> {
    /// The part of one thread of this node.
    ///
    /// ```
    /// # use farfield_rome::{RomeKv, RomeKvOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let store = RomeKv::<u64, u64>::open(&node, "store", RomeKvOptions::new([500]))?;
    /// let (of_one, of_another) = (store.thread()?, store.thread()?);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// All seats of this node are taken ([`TreeOptions::seats`](crate::TreeOptions::seats)).
    pub fn thread(&self) -> Result<RomeKvThread<K, V>> {
        let trees = (0..self.partitions()).map(|partition| self.at(partition)).collect::<Result<_>>()?;
        Ok(RomeKvThread::new(self.clone(), trees))
    }

    /// How many partitions there are.
    ///
    /// ```
    /// # use farfield_rome::{RomeKv, RomeKvOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let store = RomeKv::<u64, u64>::open(&node, "store", RomeKvOptions::new([500]))?;
    /// assert_eq!(store.partitions(), 2);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn partitions(&self) -> usize {
        self.parts.places.len()
    }

    /// The partition of a key.
    ///
    /// ```
    /// # use farfield_rome::{RomeKv, RomeKvOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let store = RomeKv::<u64, u64>::open(&node, "store", RomeKvOptions::new([500]))?;
    /// assert_eq!([7, 499, 500].map(|key| store.partition_of(&key)), [0, 0, 1]);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    #[inline]
    pub fn partition_of(&self, key: &K) -> usize {
        self.parts.options.boundaries.partition_point(|boundary| boundary <= key)
    }

    /// The node that has a partition in its memory, as far as this one knows: a call that finds it moved learns where.
    ///
    /// ```
    /// # use farfield_rome::{RomeKv, RomeKvOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let store = RomeKv::<u64, u64>::open(&node, "store", RomeKvOptions::new([500]))?;
    /// assert_eq!(store.owner_of(1), node.id());
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Panics
    /// There is no such partition.
    pub fn owner_of(&self, partition: usize) -> NodeId {
        self.parts.places[partition].lock().owner
    }

    /// The keys of a partition: from the first one on, before the second one.
    ///
    /// ```
    /// # use farfield_rome::{RomeKv, RomeKvOptions};
    /// # let node = farfield::Node::builder().start()?;
    /// # let store = RomeKv::<u64, u64>::open(&node, "store", RomeKvOptions::new([500]))?;
    /// assert_eq!((store.range_of(0), store.range_of(1)), ((0, Some(500)), (500, None)));
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Panics
    /// There is no such partition.
    pub fn range_of(&self, partition: usize) -> (K, Option<K>) {
        let boundaries = &self.parts.options.boundaries;
        assert!(partition <= boundaries.len(), "there are {} partitions", boundaries.len() + 1);
        let first = partition.checked_sub(1).map_or(K::FIRST, |before| boundaries[before]);
        (first, boundaries.get(partition).copied())
    }

    /// The partitions with keys of a range.
    fn partitions_of(&self, range: &impl RangeBounds<K>) -> core::ops::Range<usize> {
        let boundaries = &self.parts.options.boundaries;
        let first = match range.start_bound() {
            Bound::Included(key) | Bound::Excluded(key) => self.partition_of(key),
            Bound::Unbounded => 0,
        };
        let last = match range.end_bound() {
            Bound::Included(key) => self.partition_of(key),
            Bound::Excluded(key) => boundaries.partition_point(|boundary| boundary < key),
            Bound::Unbounded => boundaries.len(),
        };
        first..last + 1
    }

    fn path(&self) -> &str {
        self.parts.object.path()
    }

    /// An error of an operation on a partition of another node: it names the keys, unless it is no matter of the owner.
    fn lost(&self, partition: usize, owner: NodeId, error: Error) -> Error {
        let is_other = error.custom_ref::<MemoryFull>().is_some()
            || error.custom_ref::<SnapshotExpired>().is_some()
            || error.custom_ref::<RangeUnavailable>().is_some()
            || matches!(error.kind(), ErrorKind::Config { .. } | ErrorKind::Corrupt { .. });
        if is_other || owner == self.parts.object.node().id() {
            return error;
        }
        let text = |key: K| (self.parts.text)(&key);
        let range = match self.range_of(partition) {
            (first, Some(next)) => format!("from {} to before {}", text(first), text(next)),
            (first, None) => format!("from {} on", text(first)),
        };
        let may_have_happened = effect_of(&error) != Effect::None;
        let lost = RangeUnavailable { partition, owner, range, may_have_happened, because: error };
        Error::custom(lost).about(owner).of(self.path())
    }
}
