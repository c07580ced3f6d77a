//! The replicas of a data type on the nodes of a session, and the calls on them.

use core::time::Duration;
use std::sync::Arc;

use farfield_core::toolkit::{ErrorContext, Object, ObjectBuilder, Participants, RefusedPause, Regions, region_bytes};
use farfield_core::{Error, ErrorKind, Node, Result};
use farfield_fabric::{self as fabric, Endpoint, GroupKey, Instant, LocalMutex, NodeId, RemotePtr, Word};

use crate::analysis::Category;
use crate::chores::Chores;
use crate::data_type::{DataType, Method, Update};
use crate::feed::{Incoming, Outgoing};
use crate::local::{Begun, Local, Parts};
use crate::options::{MESSAGE_OVERHEAD, ReplicatedOptions};
use crate::repair::{Peer, Repair};
use crate::replica::{Replica, Tables};
use crate::summaries::{Summaries, slot_bytes};
use crate::watch::Watch;

/// The calls, as they are measured.
const CALLS: [&str; 2] = ["update", "stable"];
const UPDATE: usize = 0;
const STABLE: usize = 1;

/// How long a wait for a word of another node lasts before the node is looked at again.
const LOOKS_AGAIN: Duration = Duration::from_millis(10);

/// A set of dead processes is a word.
const PROCESSES_MAX: usize = 64;

/// A replicated object of a [`DataType`]: a replica on each node. Any thread reads the one of its node; one [`Writer`] of each node updates
/// it.
///
/// ```
/// use farfield_hamband::{Coordination, DataType, Replicated, ReplicatedOptions, methods};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Clone, Default, PartialEq, Debug, Serialize, Deserialize)]
/// struct Counter {
///     value: i64,
/// }
/// methods! {
///     #[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
///     enum CounterUpdate: CounterMethod {
///         Add(i64),
///     }
/// }
/// impl DataType for Counter {
///     type Update = CounterUpdate;
///     type Refusal = String;
///
///     fn apply(&mut self, CounterUpdate::Add(more): &CounterUpdate) -> Result<(), String> {
///         self.value = self.value.wrapping_add(*more);
///         Ok(())
///     }
///     fn coordination() -> Coordination<CounterMethod> {
///         Coordination::none().summarised([CounterMethod::Add])
///     }
///     fn summarise(CounterUpdate::Add(a): &CounterUpdate, CounterUpdate::Add(b): &CounterUpdate) -> Option<CounterUpdate> {
///         Some(CounterUpdate::Add(a.wrapping_add(*b)))
///     }
///     fn remainder(CounterUpdate::Add(a): &CounterUpdate, CounterUpdate::Add(b): &CounterUpdate) -> Option<CounterUpdate> {
///         Some(CounterUpdate::Add(b.wrapping_sub(*a)))
///     }
/// }
///
/// let nodes = farfield::local_session(3)?;
/// farfield::on_each(&nodes, |node| {
///     let ep = node.endpoint()?;
///     let counter = Replicated::open(node, "visits", Counter::default(), ReplicatedOptions::default())?;
///     let mut writer = counter.writer()?;
///     ep.block_on(writer.update(&ep, &CounterUpdate::Add(5)))?.expect("an addition is always permissible");
///     ep.block_on(writer.stable(&ep))?; // all others have it
///     ep.block_on(counter.wait_until(&ep, ep.deadline(), |counter| counter.value == 15))
/// })?;
/// # Ok::<(), farfield::Error>(())
/// ```
pub struct Replicated<T: DataType>(Arc<Handle<T>>);

impl<T: DataType> Clone for Replicated<T> {
    fn clone(&self) -> Replicated<T> {
        Replicated(Arc::clone(&self.0))
    }
}

struct Handle<T: DataType> {
    shared: Arc<Shared<T>>,
    object: Object,
    /// The counts of applied entries, on all other processes.
    others: Vec<(NodeId, RemotePtr<u64>)>,
    writer_taken: Word,
}

impl<T: DataType> Drop for Handle<T> {
    fn drop(&mut self) {
        self.shared.is_closed.store(1);
        self.object.node().fabric().wake_service();
    }
}

/// What the service thread needs. It does not keep the node in its session.
pub(crate) struct Shared<T: DataType> {
    pub(crate) local: LocalMutex<Local<T>>,
    pub(crate) is_closed: Word,
    /// Changes whenever the state does, and when what this process owes to others is sent. Threads wait for it without the lock.
    pub(crate) changes: Word,
    /// The dead processes of which all calls are here that any live replica has: a bit for each rank.
    pub(crate) settled: Word,
}

impl<T: DataType> Shared<T> {
    pub(crate) fn has_changed(&self, endpoint: &Endpoint) {
        self.changes.fetch_add(1);
        endpoint.wake_local();
    }
}

impl<T: DataType> Replicated<T> {
    /// Opens the object on all members of the session, and waits for them to do so. All pass the same initial state.
    ///
    /// # Errors
    /// Invalid options; a node that is missing, dead or departed, or that opens it differently: with another initial state, for
    /// example; no memory.
    pub fn open(node: &Node, path: &str, initial: T, options: ReplicatedOptions) -> Result<Replicated<T>> {
        Replicated::open_among(node, path, &node.members_for(path), initial, options)
    }

    /// Opens the object on these nodes, which must name the same, and waits for them to do so.
    ///
    /// # Errors
    /// As `open`, or this node is not among them, or there are more than 64.
    pub fn open_among(
        node: &Node,
        path: &str,
        participants: &[NodeId],
        initial: T,
        options: ReplicatedOptions,
    ) -> Result<Replicated<T>> {
        let participants = Participants::new(participants);
        let me = participants.require(node.id()).of(path)?;
        let processes: Vec<NodeId> = participants.iter().collect();
        if processes.len() > PROCESSES_MAX {
            let why = format!("{} nodes: a replicated object has {PROCESSES_MAX} at most", processes.len());
            return Err(Error::from(ErrorKind::Config { why }).of(path));
        }
        let coordination = T::coordination();
        let tables = Tables::new(&coordination);
        options.check(MESSAGE_OVERHEAD + tables.dependencies_bytes_max(processes.len())).of(path)?;
        let ReplicatedOptions { call_bytes_max, summary_bytes_max, feed_bytes } = options;
        // A number of calls for each method is in front of the call.
        let slot_bytes = slot_bytes(summary_bytes_max + 10 * tables.methods);
        let summaries_bytes = Summaries::region_bytes(processes.len(), tables.summaries.max(1), slot_bytes);
        let feeds_bytes = region_bytes(feed_bytes / 8, processes.len(), "the feeds of all nodes").of(path)?;
        let words_bytes = processes.len() * 8;

        let mut regions = Regions::new(node);
        // A put to a feed wakes the service thread, which applies it. A summary wakes threads that wait for a state.
        let feeds = regions.alloc("feeds", GroupKey::SERVICE, feeds_bytes).of(path)?;
        let summaries = regions.alloc("summaries", GroupKey::SIGNAL, summaries_bytes).of(path)?;
        let taken = regions.alloc("taken", GroupKey::SIGNAL, words_bytes).of(path)?;
        let applied = regions.alloc("applied", GroupKey::DATA, words_bytes).of(path)?;
        let repaired = regions.alloc("repaired", GroupKey::DATA, 8).of(path)?;
        let initial_bytes = postcard::to_allocvec(&initial).map_err(|error| {
            let why = format!("the initial state cannot be encoded: {error}");
            Error::from(ErrorKind::Encoding { why }).of(path)
        })?;
        let initial_hash = xxhash_rust::xxh3::xxh3_64(&initial_bytes);
        let layout = format!("{options:?}, initial={initial_hash:016x}, {}", coordination.layout());
        let opening = ObjectBuilder::new(node, path, "Replicated").layout(&layout).regions(regions).calls(&CALLS);
        let needs = [
            ("feeds", feeds_bytes),
            ("summaries", summaries_bytes),
            ("taken", words_bytes),
            ("applied", words_bytes),
            ("repaired", 8),
        ];
        let needs = needs.map(|(region, bytes)| (region.to_string(), bytes as u64)).to_vec();
        let object = opening.participants(processes.iter().copied()).require_regions(move |_| needs.clone()).open()?;

        let outgoing = Outgoing::new(&object, &processes, me, &feeds, &taken, feed_bytes)?;
        let incoming = processes.iter().enumerate().map(|source| {
            let is_me = source.0 == me;
            if is_me {
                Ok(None)
            } else {
                Incoming::new(&object, (source.0, *source.1), me, &feeds, feed_bytes).map(Some)
            }
        });
        let incoming = incoming.collect::<Result<_>>()?;
        let groups = tables.summaries;
        let summaries = Summaries::new(&object, &processes, me, &summaries, groups, slot_bytes)?;
        let peers = processes.iter().copied().enumerate().filter(|(rank, _)| *rank != me).map(|(rank, node)| {
            let (feeds, summaries) = (object.remote(node, "feeds")?, object.remote(node, "summaries")?);
            Ok(Peer { rank, node, feeds, summaries, repaired: object.remote(node, "repaired")? })
        });
        let repair = Repair::new(node.for_service(), peers.collect::<Result<_>>()?, repaired, feed_bytes);
        let others = processes.iter().filter(|other| **other != node.id());
        let others = others.map(|other| Ok((*other, object.remote::<u64>(*other, "applied")?.at(me))));
        let others = others.collect::<Result<_>>()?;
        let replica = Replica::new(tables, processes.len(), me, initial);
        let local = Local::new(Parts { replica, processes, outgoing, incoming, summaries, applied, call_bytes_max });
        let shared = Arc::new(Shared {
            local: LocalMutex::new(local),
            is_closed: Word::new(0),
            changes: Word::new(0),
            settled: Word::new(0),
        });
        node.add_poller(Box::new(Chores::new(Arc::clone(&shared), repair, object.hold())));
        Ok(Replicated(Arc::new(Handle { shared, object, others, writer_taken: Word::new(0) })))
    }

    /// The writer of this node, once.
    ///
    /// # Errors
    /// It was taken before.
    pub fn writer(&self) -> Result<Writer<T>> {
        if self.0.writer_taken.fetch_add(1) > 0 {
            let why = "this node's writer was taken before: a node has one, which its threads pass on".to_string();
            return Err(Error::from(ErrorKind::Config { why }).of(self.0.object.path()));
        }
        Ok(Writer(self.clone()))
    }

    /// Reads this node's replica (rule QUERY): all calls of this node, and those of the others that have arrived. It takes no round trip.
    /// While `query` runs, no thread of this node applies an update: it should be short, and must make no call on the object.
    ///
    /// # Errors
    /// [`WrongCoordination`](crate::WrongCoordination); the object was reopened.
    pub fn query<V>(&self, query: impl FnOnce(&T) -> V) -> Result<V> {
        let object = &self.0.object;
        object.check_current()?;
        let mut local = self.0.shared.local.lock();
        local.drain().of(object.path())?;
        Ok(query(&local.replica.state))
    }

    /// Waits until this node's replica satisfies a condition.
    ///
    /// # Errors
    /// A timeout; as [`Replicated::query`].
    pub async fn wait_until(
        &self,
        endpoint: &Endpoint,
        deadline: Instant,
        mut condition: impl FnMut(&T) -> bool,
    ) -> Result<()> {
        let Handle { shared, object, .. } = &*self.0;
        loop {
            object.check_current()?;
            let (is_satisfied, changes, watch) = {
                let mut local = shared.local.lock();
                let changes = shared.changes.load();
                local.drain().of(object.path())?;
                (condition(&local.replica.state), changes, local.watch())
            };
            if is_satisfied {
                return Ok(());
            }
            let has_changed = || (watch.has_changed() || shared.changes.load() != changes).then_some(Ok(()));
            let fails = || object.check_unasked().err().map(Err);
            let waited = endpoint.wait_until_or(deadline, has_changed, fails).await;
            waited.waiting_for("the state of a replica").of(object.path())??;
        }
    }

    /// Whether this replica has all calls of a dead node that any live replica has: no more will come. The survivors copy them from each
    /// other (reliable broadcast, §4).
    pub fn is_settled(&self, node: NodeId) -> bool {
        let rank = self.nodes().iter().position(|other| *other == node);
        rank.is_some_and(|rank| self.0.shared.settled.load() & 1 << rank != 0)
    }

    /// The nodes with replicas, in the order of their numbers.
    pub fn nodes(&self) -> &[NodeId] {
        self.0.object.participants()
    }
}

/// The writer of a node: its updates.
pub struct Writer<T: DataType>(Replicated<T>);

impl<T: DataType> Writer<T> {
    /// Makes a call of an update method. Pass the same endpoint to every call.
    ///
    /// | category | it returns when | operations, n replicas |
    /// |---|---|---|
    /// | reducible | it is applied here, and on its way to all others | n − 1 puts; no wait |
    /// | irreducible conflict-free | as above; it waits for room in the feed | n − 1 puts; no wait, as a rule |
    ///
    /// The inner result is the refusal of a call that is not permissible here. Then nothing has changed. If this node
    /// dies, the others have the call, all or none of them: see [`Writer::stable`].
    ///
    /// # Errors
    /// The call is longer than [`ReplicatedOptions::call_bytes_max`]. A timeout names the nodes that have not applied enough of earlier
    /// calls. [`WrongCoordination`](crate::WrongCoordination), [`NoSummary`](crate::NoSummary).
    pub async fn update(&mut self, endpoint: &Endpoint, update: &T::Update) -> Result<Result<(), T::Refusal>> {
        let Handle { object, .. } = &*self.0.0;
        if object.is_plain() {
            return self.update_now(endpoint, update).await.of(object.path());
        }
        object.check_current()?;
        let meter = object.meter();
        meter.measure(endpoint, UPDATE, self.update_now(endpoint, update)).await.of(object.path())
    }

    async fn update_now(&self, endpoint: &Endpoint, update: &T::Update) -> Result<Result<(), T::Refusal>> {
        let Handle { shared, object, .. } = &*self.0.0;
        let method = update.method().number();
        let deadline = endpoint.deadline();
        loop {
            let mut local = shared.local.lock();
            let begun = match local.replica.tables.category[method] {
                Category::Reducible => {
                    let group = local.replica.tables.summary_of[method].unwrap_or_default();
                    local.reduce(endpoint, update, group)
                }
                Category::ConflictFree | Category::Conflicting => local.free(endpoint, update),
            };
            let owes = local.owes();
            drop(local);
            if owes {
                object.node().fabric().wake_service();
            }
            match begun? {
                Begun::Done => {
                    shared.has_changed(endpoint);
                    return Ok(Ok(()));
                }
                Begun::Refused(refusal) => return Ok(Err(refusal)),
                Begun::Full => self.wait_for_room(endpoint, deadline).await?,
            }
        }
    }

    /// Waits until the feed has room for the longest message.
    async fn wait_for_room(&self, endpoint: &Endpoint, deadline: Instant) -> Result<()> {
        let Handle { shared, object, .. } = &*self.0.0;
        let mut watch = Watch::default();
        let slow = {
            let mut local = shared.local.lock();
            local.outgoing.watch_room(&mut watch);
            // A replica may have reported since the call looked.
            let bytes = local.message_bytes_max();
            if local.outgoing.has_room(endpoint, bytes) {
                return Ok(());
            }
            local.outgoing.slow(endpoint)
        };
        // A replica reports, or dies.
        let is_alive = |node: &NodeId| endpoint.check_alive(*node).is_ok();
        let may_have_room = || (watch.has_changed() || !slow.iter().all(is_alive)).then_some(Ok(()));
        let fails = || object.check_unasked().err().map(Err);
        let waited = endpoint.wait_until_or(deadline, may_have_room, fails).await;
        waited.waiting_for_nodes("room for a call: earlier ones are not applied", &slow)?
    }

    /// Waits until all live replicas have applied all calls of this writer so far.
    ///
    /// # Errors
    /// A timeout names the nodes that have not.
    pub async fn stable(&mut self, endpoint: &Endpoint) -> Result<()> {
        let Handle { object, .. } = &*self.0.0;
        if object.is_plain() {
            return self.stable_now(endpoint).await.of(object.path());
        }
        object.check_current()?;
        object.meter().measure(endpoint, STABLE, self.stable_now(endpoint)).await.of(object.path())
    }

    async fn stable_now(&self, endpoint: &Endpoint) -> Result<()> {
        let Handle { shared, object, others, .. } = &*self.0.0;
        let deadline = endpoint.deadline();
        // What was refused is sent by the service thread.
        let entries = loop {
            let changes = shared.changes.load();
            let (owes, entries) = {
                let local = shared.local.lock();
                (local.owes(), local.outgoing.entries())
            };
            if !owes {
                break entries;
            }
            let has_changed = || (shared.changes.load() != changes).then_some(());
            let nodes: Vec<NodeId> = others.iter().map(|(node, _)| *node).collect();
            let sent = endpoint.wait_until(deadline, has_changed).await;
            sent.waiting_for_nodes("nodes that refuse this one's calls", &nodes)?;
        };
        // Summaries are read when they are visible. A node that does not answer is decided about by the members.
        let mut pause = RefusedPause::default();
        loop {
            let nodes = others.iter().map(|(node, _)| *node);
            let lost = object.node().fence_live_nodes(endpoint, nodes).await?;
            if lost.is_empty() {
                break;
            }
            if endpoint.now() >= deadline {
                let (what, waited) = ("nodes that do not answer".into(), endpoint.timeout());
                return Err(ErrorKind::Timeout { what, waited, missing: lost }.into());
            }
            pause.wait(endpoint, deadline).await;
        }
        for (node, applied) in others {
            self.wait_until_applied(endpoint, *node, *applied, entries, deadline).await?;
        }
        Ok(())
    }

    /// Waits until a node has applied this many entries, or is gone.
    async fn wait_until_applied(
        &self,
        endpoint: &Endpoint,
        node: NodeId,
        applied: RemotePtr<u64>,
        entries: u64,
        deadline: Instant,
    ) -> Result<()> {
        let mut seen = endpoint.get(applied).await;
        loop {
            let now = endpoint.now();
            match seen {
                Ok(count) if count >= entries => return Ok(()),
                Err(error) if error.is_gone() => return Ok(()),
                Err(error) if !error.is_unreachable() && !error.is_refused() => return Err(error.into()),
                _ if now >= deadline => {
                    let (what, waited) = ("a replica that has not applied all calls".into(), endpoint.timeout());
                    return Err(ErrorKind::Timeout { what, waited, missing: vec![node] }.into());
                }
                // A death does not change the word.
                Ok(count) => {
                    let until = deadline.min(now + LOOKS_AGAIN);
                    let waited = endpoint.wait_remote(applied, count, until).await;
                    seen = if waited.as_ref().is_err_and(fabric::Error::is_timeout) { Ok(count) } else { waited };
                }
                Err(_) => {
                    endpoint.wait_for_change(deadline.min(now + LOOKS_AGAIN)).await;
                    seen = endpoint.get(applied).await;
                }
            }
        }
    }

    /// The object.
    pub fn replicated(&self) -> &Replicated<T> {
        &self.0
    }

    /// The category of an update's method.
    pub fn category(&self, update: &T::Update) -> Category {
        self.0.0.shared.local.lock().replica.tables.category[update.method().number()]
    }
}
