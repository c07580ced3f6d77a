//! The replicas of a data type on the nodes of a session, and the calls on them.

use core::time::Duration;
use std::sync::Arc;

use farfield_core::toolkit::{ErrorContext, Object, ObjectBuilder, Participants, RefusedPause, Regions, region_bytes};
use farfield_core::{Error, ErrorKind, Node, Result};
use farfield_fabric::{self as fabric, Endpoint, GroupKey, Instant, LocalMutex, NodeId, RemotePtr, Word};
use farfield_mu::{LogOptions, ReplicatedLog};

use crate::analysis::Category;
use crate::chores::Chores;
use crate::conflicting::{Asked, Desk, Led, Order, Slip, slot_bytes as slip_bytes};
use crate::data_type::{DataType, Method, Update};
use crate::errors::is_passing;
use crate::feed::{Incoming, Outgoing};
use crate::local::{Begun, Group, Local, Parts};
use crate::options::{MESSAGE_OVERHEAD, ReplicatedOptions};
use crate::repair::{Peer, Repair};
use crate::replica::{Replica, Tables, decode};
use crate::summaries::{Summaries, slot_bytes};
use crate::watch::Watch;

/// The calls, as they are measured.
const CALLS: [&str; 2] = ["update", "stable"];
const UPDATE: usize = 0;
const STABLE: usize = 1;

/// Entries of a log that some replica has not applied yet.
const LOG_ENTRIES: usize = 256;

/// How long a wait for another node lasts before that is looked at again, at first.
const LOOKS_AGAIN: Duration = Duration::from_millis(10);
const LOOKS_AGAIN_MAX: Duration = Duration::from_millis(100);

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
    /// The rank of this process.
    pub(crate) me: usize,
    /// The counts of applied entries of all feeds, of each process.
    pub(crate) counts: Vec<(usize, NodeId, RemotePtr<u64>)>,
    /// By synchronisation group.
    pub(crate) orders: Vec<Order>,
    pub(crate) desk: Desk,
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

    /// Why a wait ends: the object is reopened, or this node was evicted, and nothing arrives any more.
    fn ends(&self, object: &Object) -> Option<Error> {
        let is_fenced = object.node().fabric().is_fenced();
        let fenced = || is_fenced.then(|| fabric::Error::from(fabric::ErrorKind::Fenced).into());
        object.check_unasked().err().or_else(fenced)
    }

    /// How many entries of all logs are decided: it grows with each.
    pub(crate) fn decided(&self) -> u64 {
        self.orders.iter().map(|order| order.log.decided()).sum()
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
        let applied_bytes = words_bytes + tables.groups.len() * 8;

        let mut regions = Regions::new(node);
        // A put to a feed wakes the service thread, which applies it. A summary wakes threads that wait for a state.
        let feeds = regions.alloc("feeds", GroupKey::SERVICE, feeds_bytes).of(path)?;
        let summaries = regions.alloc("summaries", GroupKey::SIGNAL, summaries_bytes).of(path)?;
        let taken = regions.alloc("taken", GroupKey::SIGNAL, words_bytes).of(path)?;
        let applied = regions.alloc("applied", GroupKey::DATA, applied_bytes).of(path)?;
        let repaired = regions.alloc("repaired", GroupKey::DATA, 8).of(path)?;
        let slip_bytes = slip_bytes(call_bytes_max);
        let desk_bytes = processes.len() * slip_bytes;
        let requests = regions.alloc("requests", GroupKey::SERVICE, desk_bytes).of(path)?;
        let answers = regions.alloc("answers", GroupKey::SIGNAL, desk_bytes).of(path)?;
        let initial_bytes = postcard::to_allocvec(&initial).map_err(|error| {
            let why = format!("the initial state cannot be encoded: {error}");
            Error::from(ErrorKind::Encoding { why }).of(path)
        })?;
        let initial_hash = xxhash_rust::xxh3::xxh3_64(&initial_bytes);
        let layout = format!("{options:?}, initial={initial_hash:016x}, {}", coordination.layout());
        // Each group has a log, and a leader of its own. All are announced before any is waited for.
        let log_options = LogOptions {
            entry_bytes_max: call_bytes_max + tables.entry_bytes_beside(processes.len(), summary_bytes_max),
            entries: LOG_ENTRIES,
        };
        let announce = |group| {
            ReplicatedLog::announce(&node.for_service(), &format!("{path}/order{group}"), &processes, log_options)
        };
        let logs = (0..tables.groups.len()).map(announce).collect::<Result<Vec<_>>>()?;
        let opening = ObjectBuilder::new(node, path, "Replicated").layout(&layout).regions(regions).calls(&CALLS);
        let needs = [
            ("feeds", feeds_bytes),
            ("summaries", summaries_bytes),
            ("taken", words_bytes),
            ("applied", applied_bytes),
            ("repaired", 8),
            ("requests", desk_bytes),
            ("answers", desk_bytes),
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
        let ranked = || processes.iter().copied().enumerate();
        let counts = ranked().map(|(rank, node)| Ok((rank, node, object.remote::<u64>(node, "applied")?)));
        let counts = counts.collect::<Result<_>>()?;
        let slots =
            ranked().map(|(_, node)| Ok((node, object.remote(node, "requests")?, object.remote(node, "answers")?)));
        let desk = Desk::new(requests, answers, slip_bytes, me, slots.collect::<Result<_>>()?);
        logs.iter().try_for_each(ReplicatedLog::wait)?;
        let group = |log: &ReplicatedLog| Ok(Group::new(log.reader()?, processes.len(), groups));
        let of_groups = logs.iter().map(group).collect::<Result<_>>()?;
        let orders = logs.into_iter().map(|log| Order::new(node, log, processes.len())).collect::<Result<_>>()?;
        let replica = Replica::new(tables, processes.len(), me, initial);
        let parts =
            Parts { replica, processes, outgoing, incoming, summaries, groups: of_groups, applied, call_bytes_max };
        let shared = Arc::new(Shared {
            local: LocalMutex::new(Local::new(parts)),
            me,
            counts,
            orders,
            desk,
            is_closed: Word::new(0),
            changes: Word::new(0),
            settled: Word::new(0),
        });
        node.add_poller(Box::new(Chores::new(Arc::clone(&shared), repair, object.hold())));
        Ok(Replicated(Arc::new(Handle { shared, object, writer_taken: Word::new(0) })))
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
            // Before the look: what comes after it ends the wait.
            let decided = shared.decided();
            let (is_satisfied, changes, watch) = {
                let mut local = shared.local.lock();
                let changes = shared.changes.load();
                local.drain().of(object.path())?;
                (condition(&local.replica.state), changes, local.watch())
            };
            if is_satisfied {
                return Ok(());
            }
            let has_changed = || {
                (watch.has_changed() || shared.changes.load() != changes || shared.decided() != decided)
                    .then_some(Ok(()))
            };
            let fails = || shared.ends(object).map(Err);
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
            if let Some(group) = local.replica.tables.group_of[method] {
                drop(local);
                return self.order(endpoint, update, group, deadline).await;
            }
            let begun = match local.replica.tables.category[method] {
                Category::Reducible => {
                    let group = local.replica.tables.summary_of[method].unwrap_or_default();
                    local.reduce(endpoint, update, group)
                }
                _ => local.free(endpoint, update),
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

    /// Rule CONF: here if this process leads the group, and otherwise at the process that does.
    async fn order(
        &self,
        endpoint: &Endpoint,
        call: &T::Update,
        group: usize,
        deadline: Instant,
    ) -> Result<Result<(), T::Refusal>> {
        let Handle { shared, object, .. } = &*self.0.0;
        let (order, me) = (&shared.orders[group], shared.me);
        let (number, bytes) = {
            let mut local = shared.local.lock();
            local.check()?;
            let bytes = local.encode_call(call)?.to_vec();
            local.groups[group].last_call += 1;
            (local.groups[group].last_call, bytes)
        };
        let asked = Asked { group, origin: me, number, call };
        // The term in which a request is on its way, and to which process.
        let mut requested = None;
        let mut pause = LOOKS_AGAIN;
        loop {
            // Before the look: what comes after it ends the wait.
            let (term, decided, leader) = (order.log.term(), shared.decided(), order.log.leader());
            let (leads, is_busy) = (order.log.is_leader(), order.is_busy.load());
            let (changes, watch) = {
                let mut local = shared.local.lock();
                let changes = shared.changes.load();
                local.drain()?;
                if local.groups[group].applied.last[me] >= number {
                    drop(local);
                    shared.has_changed(endpoint);
                    return Ok(Ok(()));
                }
                let mut watch = local.watch();
                shared.desk.watch_answers(&mut watch);
                (changes, watch)
            };
            if leads {
                if let Some(mut turn) = order.take_turn() {
                    match shared.lead(&mut turn, &asked, deadline.since(endpoint.now()))? {
                        Led::Refused(refusal) => return Ok(Err(refusal)),
                        Led::Ordered | Led::NotLeader => continue,
                    }
                }
            } else if let Some(leader) = leader.and_then(|leader| self.rank_of(leader)).filter(|leader| *leader != me) {
                if requested != Some((leader, term)) {
                    let slip = Slip { group, term, number, bytes: bytes.clone() };
                    match shared.desk.request(endpoint, leader, &slip) {
                        Err(error) if is_passing(&error) => {}
                        sent => {
                            sent?;
                            requested = Some((leader, term));
                        }
                    }
                }
                let is_it = |slip: &Slip| (slip.group, slip.term, slip.number) == (group, term, number);
                if let Some(slip) = shared.desk.answered(leader).filter(is_it) {
                    let refusal = decode::<T::Refusal, T::Refusal>(&slip.bytes);
                    let (refusal, _) = refusal.map_err(|wrong| shared.local.lock().error(leader, wrong))?;
                    return Ok(Err(refusal));
                }
            }
            let has_changed = || {
                let of_log = order.log.term() != term || order.log.leader() != leader || shared.decided() != decided;
                let of_others = watch.has_changed() || shared.changes.load() != changes;
                let of_turn = order.is_busy.load() != is_busy || order.log.is_leader() != leads;
                (of_log || of_others || of_turn).then_some(Ok(()))
            };
            let fails = || shared.ends(object).map(Err);
            // A request that could not be put is put again.
            let until = if requested.is_some() { deadline } else { deadline.min(endpoint.now() + pause) };
            pause = LOOKS_AGAIN_MAX.min(2 * pause);
            match endpoint.wait_until_or(until, has_changed, fails).await {
                Err(error) if error.is_timeout() && endpoint.now() < deadline => {}
                waited => {
                    let missing: Vec<NodeId> = leader.into_iter().collect();
                    waited.waiting_for_nodes("a call to be ordered; it may be yet", &missing)??;
                }
            }
        }
    }

    fn rank_of(&self, node: NodeId) -> Option<usize> {
        self.0.nodes().iter().position(|other| *other == node)
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
        let fails = || shared.ends(object).map(Err);
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
        let Handle { shared, object, .. } = &*self.0.0;
        let others = || shared.counts.iter().filter(|(rank, ..)| *rank != shared.me);
        let deadline = endpoint.deadline();
        // What was refused is sent by the service thread.
        let entries = loop {
            let changes = shared.changes.load();
            let (owes, entries) = {
                let local = shared.local.lock();
                (local.owes(), local.entries_of_calls())
            };
            if !owes {
                break entries;
            }
            let has_changed = || (shared.changes.load() != changes).then_some(());
            let nodes: Vec<NodeId> = others().map(|(_, node, _)| *node).collect();
            let sent = endpoint.wait_until(deadline, has_changed).await;
            sent.waiting_for_nodes("nodes that refuse this one's calls", &nodes)?;
        };
        // Summaries are read when they are visible. A node that does not answer is decided about by the members.
        let mut pause = RefusedPause::default();
        loop {
            let nodes = others().map(|(_, node, _)| *node);
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
        for (_, node, row) in others() {
            for (word, count) in &entries {
                self.wait_until_applied(endpoint, *node, row.at(*word), *count, deadline).await?;
            }
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
        let mut pause = LOOKS_AGAIN;
        loop {
            let now = endpoint.now();
            let until = deadline.min(now + pause);
            pause = LOOKS_AGAIN_MAX.min(2 * pause);
            match seen {
                Ok(count) if count >= entries => return Ok(()),
                Err(error) if error.is_gone() => return Ok(()),
                Err(error) if !is_passing(&error) => return Err(error.into()),
                _ if now >= deadline => {
                    let (what, waited) = ("a replica that has not applied all calls".into(), endpoint.timeout());
                    return Err(ErrorKind::Timeout { what, waited, missing: vec![node] }.into());
                }
                // A death does not change the word.
                Ok(count) => {
                    let waited = endpoint.wait_remote(applied, count, until).await;
                    seen = if waited.as_ref().is_err_and(fabric::Error::is_timeout) { Ok(count) } else { waited };
                }
                Err(_) => {
                    endpoint.wait_for_change(until).await;
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
