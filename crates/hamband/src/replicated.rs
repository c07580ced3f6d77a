//! The replicas of a data type on the nodes of a session, and the calls on them.

use std::sync::Arc;

use farfield_core::toolkit::{ErrorContext, Object, ObjectBuilder, Participants, Regions, region_bytes};
use farfield_core::{Error, ErrorKind, Node, Result};
use farfield_fabric::{self as fabric, Endpoint, GroupKey, Instant, LocalMutex, NodeId, RemotePtr, Word};
use farfield_mu::{AnnouncedCommands, CommandOptions, Commands, LogOptions};

use crate::chores::Chores;
use crate::conflicting::Order;
use crate::data_type::{DataType, Method, Update};
use crate::feed::{Incoming, Outgoing};
use crate::local::{Group, Local, Parts};
use crate::options::{MESSAGE_OVERHEAD, ReplicatedOptions};
use crate::repair::{Peer, Repair};
use crate::replica::{Replica, Tables};
use crate::summaries::{Summaries, slot_bytes};
use crate::writer::Writer;

/// The calls, as they are measured.
const CALLS: [&str; 2] = ["update", "stable"];
pub(crate) const UPDATE: usize = 0;
pub(crate) const STABLE: usize = 1;

/// Entries of a log that some replica has not applied yet.
const LOG_ENTRIES: usize = 256;

/// A set of dead processes is a word.
const PROCESSES_MAX: usize = 64;

/// A replicated object of a [`DataType`]: a replica on each node. Any thread reads the one of its node; one [`Writer`] of each node updates
/// it.
///
/// ```
/// use farfield_hamband::types::{Counter, CounterUpdate};
/// use farfield_hamband::{Replicated, ReplicatedOptions};
///
/// let nodes = farfield::local_session(3)?;
/// farfield::on_each(&nodes, |node| {
///     let ep = node.endpoint()?;
///     let counter = Replicated::open(node, "visits", Counter::default(), ReplicatedOptions::default())?;
///     let mut writer = counter.writer()?;
///     ep.block_on(writer.update(&ep, &CounterUpdate::Add(5)))?.expect("an addition is always permissible");
///     ep.block_on(counter.wait_until(&ep, ep.deadline(), |counter| counter.value() == 15))?; // of all three
///     ep.block_on(writer.stable(&ep)) // all others have it
/// })?;
/// # Ok::<(), farfield::Error>(())
/// ```
pub struct Replicated<T: DataType>(pub(crate) Arc<Handle<T>>);

impl<T: DataType> Clone for Replicated<T> {
    fn clone(&self) -> Replicated<T> {
        Replicated(Arc::clone(&self.0))
    }
}

pub(crate) struct Handle<T: DataType> {
    pub(crate) shared: Arc<Shared<T>>,
    pub(crate) object: Object,
    writer_taken: Word,
}

impl<T: DataType> Drop for Handle<T> {
    fn drop(&mut self) {
        self.shared.is_closed.store(1);
        self.object.node().fabric().wake_service();
    }
}

/// The part of a node that the service thread needs. It does not keep the node in its session.
pub(crate) struct Shared<T: DataType> {
    node: Node,
    /// The longest refusal, encoded.
    pub(crate) refusal_bytes_max: usize,
    pub(crate) local: LocalMutex<Local<T>>,
    /// The rank of this process.
    pub(crate) me: usize,
    /// The counts of applied entries of all feeds, of each process.
    pub(crate) counts: Vec<(usize, NodeId, RemotePtr<u64>)>,
    /// By synchronisation group.
    pub(crate) orders: Vec<Order>,
    /// The synchronisation group of each conflicting method.
    group_of: Vec<Option<usize>>,
    pub(crate) is_closed: Word,
    /// Changes whenever the state does, and when this process has sent all that it owes to others. Threads wait for it without the lock.
    pub(crate) changes: Word,
    /// The dead processes of which all calls are here that any live replica has: a bit for each rank.
    pub(crate) settled: Word,
}

impl<T: DataType> Shared<T> {
    /// The state has changed, if `some`. Called under the lock. The count of changes now.
    pub(crate) fn note(&self, some: bool) -> u64 {
        if some {
            self.changes.fetch_add(1);
            self.node.fabric().wake_local();
        }
        self.changes.load()
    }

    pub(crate) fn has_changed(&self, endpoint: &Endpoint) {
        self.changes.fetch_add(1);
        endpoint.wake_local();
    }

    /// Why a wait ends: the object is reopened, or this node was evicted, and nothing arrives any more.
    pub(crate) fn ends(&self, object: &Object) -> Option<Error> {
        let is_fenced = object.node().fabric().is_fenced();
        let fenced = || is_fenced.then(|| fabric::Error::from(fabric::ErrorKind::Fenced).into());
        object.check_unasked().err().or_else(fenced)
    }

    /// How many entries of all logs are decided: it grows with each.
    pub(crate) fn decided(&self) -> u64 {
        self.orders.iter().map(|order| order.commands.log().decided()).sum()
    }
}

impl<T: DataType> Replicated<T> {
    /// Opens the object on all members of the session, and waits for them to do so. All pass the same initial state.
    ///
    /// ```
    /// # use farfield_hamband::{Replicated, ReplicatedOptions, types::{Counter, CounterUpdate}};
    /// # let nodes = farfield::local_session(2)?;
    /// let open = |node: &farfield::Node| Replicated::open(node, "visits", Counter::default(), ReplicatedOptions::default());
    /// let replicas = farfield::on_each(&nodes, open)?;
    /// assert_eq!(replicas[1].nodes().len(), 2);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// Invalid options; a node that is missing, dead or departed, or that opens it differently: with another initial state, for
    /// example; no memory.
    pub fn open(node: &Node, path: &str, initial: T, options: ReplicatedOptions) -> Result<Replicated<T>> {
        Replicated::open_among(node, path, &node.members_for(path), initial, options)
    }

    /// Opens the object on these nodes, which must name the same, and waits for them to do so.
    ///
    /// ```
    /// # use farfield_hamband::{Replicated, ReplicatedOptions, types::{Counter, CounterUpdate}};
    /// # let nodes = farfield::local_session(3)?;
    /// let (pair, options) = ([nodes[0].id(), nodes[2].id()], ReplicatedOptions::default());
    /// let open = |node: &_| Replicated::open_among(node, "visits", &pair, Counter::default(), options.clone());
    /// let replicas = farfield::on_each(&[nodes[0].clone(), nodes[2].clone()], open)?; // node 1 does not open it
    /// assert_eq!(replicas[1].nodes(), pair);
    /// # Ok::<(), farfield::Error>(())
    /// ```
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
        let ReplicatedOptions { call_bytes_max, refusal_bytes_max, summary_bytes_max, feed_bytes } = options;
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
        let initial_bytes = postcard::to_allocvec(&initial).map_err(|error| {
            let why = format!("the initial state cannot be encoded: {error}");
            Error::from(ErrorKind::Encoding { why }).of(path)
        })?;
        let initial_hash = xxhash_rust::xxh3::xxh3_64(&initial_bytes);
        let layout = format!("{options:?}, initial={initial_hash:016x}, {}", coordination.layout());
        // Each group has a log, and a leader of its own. All are announced before any is waited for.
        let log_options = LogOptions {
            entry_bytes_max: call_bytes_max.max(refusal_bytes_max)
                + tables.entry_bytes_beside(processes.len(), summary_bytes_max),
            entries: LOG_ENTRIES,
        };
        // A refusal has a byte more, which says whether it is there.
        let command_options = CommandOptions {
            log: log_options,
            command_bytes_max: call_bytes_max,
            answer_bytes_max: refusal_bytes_max + 1,
        };
        let announce = |group| {
            Commands::announce(&node.for_service(), &format!("{path}/order{group}"), &processes, command_options)
        };
        let announced = (0..tables.groups.len()).map(announce).collect::<Result<Vec<_>>>()?;
        let opening = ObjectBuilder::new(node, path, "Replicated").layout(&layout).regions(regions).calls(&CALLS);
        let needs = [
            ("feeds", feeds_bytes),
            ("summaries", summaries_bytes),
            ("taken", words_bytes),
            ("applied", applied_bytes),
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
        let incoming = incoming.collect::<Result<Vec<_>>>()?;
        let groups = tables.summaries;
        let summaries = Summaries::new(&object, &processes, me, &summaries, groups, slot_bytes)?;
        let peers = processes.iter().copied().enumerate().filter(|(rank, _)| *rank != me).map(|(rank, node)| {
            let (feeds, summaries) = (object.remote(node, "feeds")?, object.remote(node, "summaries")?);
            Ok(Peer { rank, node, feeds, summaries, repaired: object.remote(node, "repaired")? })
        });
        let copies =
            incoming.iter().map(|incoming: &Option<Incoming>| incoming.as_ref().map(|feed| feed.place.clone()));
        let copies = copies.collect();
        let slots = summaries.slots.clone();
        let repair =
            Repair::new(node.for_service(), peers.collect::<Result<_>>()?, copies, slots, repaired, feed_bytes);
        let ranked = || processes.iter().copied().enumerate();
        let counts = ranked().map(|(rank, node)| Ok((rank, node, object.remote::<u64>(node, "applied")?)));
        let counts = counts.collect::<Result<_>>()?;
        let orders = announced.into_iter().map(AnnouncedCommands::wait).collect::<Result<Vec<Commands>>>()?;
        // Each group has another leader, as far as there are nodes. Of the first group it is the first node in any case.
        let group_of = tables.group_of.clone();
        let others = orders.iter().enumerate().skip(1);
        others.filter(|(at, _)| at % processes.len() == me).for_each(|(_, order)| order.log().ask_to_lead());
        let group = |order: &Commands| Ok(Group::new(order.log().reader()?, processes.len(), groups));
        let of_groups = orders.iter().map(group).collect::<Result<_>>()?;
        let orders = orders.into_iter().map(|commands| Order::new(commands, processes.len())).collect();
        let replica = Replica::new(tables, processes.len(), me, initial);
        let parts =
            Parts { replica, processes, outgoing, incoming, summaries, groups: of_groups, applied, call_bytes_max };
        let shared = Arc::new(Shared {
            node: node.for_service(),
            refusal_bytes_max,
            local: LocalMutex::new(Local::new(parts)),
            me,
            counts,
            orders,
            group_of,
            is_closed: Word::new(0),
            changes: Word::new(0),
            settled: Word::new(0),
        });
        node.add_poller(Box::new(Chores::new(Arc::clone(&shared), repair, object.hold())));
        Ok(Replicated(Arc::new(Handle { shared, object, writer_taken: Word::new(0) })))
    }

    /// The writer of this node, once.
    ///
    /// ```
    /// # use farfield_hamband::{Replicated, ReplicatedOptions, types::{Counter, CounterUpdate}};
    /// # let node = farfield::Node::builder().start()?;
    /// # let ep = node.endpoint()?;
    /// # let counter = Replicated::open(&node, "visits", Counter::default(), ReplicatedOptions::default())?;
    /// let mut writer = counter.writer()?;
    /// assert!(counter.writer().is_err()); // there is one
    /// # Ok::<(), farfield::Error>(())
    /// ```
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
    /// ```
    /// # use farfield_hamband::{Replicated, ReplicatedOptions, types::{Counter, CounterUpdate}};
    /// # let node = farfield::Node::builder().start()?;
    /// # let ep = node.endpoint()?;
    /// # let counter = Replicated::open(&node, "visits", Counter::default(), ReplicatedOptions::default())?;
    /// assert_eq!(counter.query(|counter| counter.value())?, 0);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`WrongCoordination`](crate::WrongCoordination); the object was reopened.
    pub fn query<V>(&self, query: impl FnOnce(&T) -> V) -> Result<V> {
        let object = &self.0.object;
        object.check_current()?;
        let mut local = self.0.shared.local.lock();
        let drained = local.drain().of(object.path())?;
        self.0.shared.note(drained.some);
        Ok(query(&local.replica.state))
    }

    /// Waits until this node's replica satisfies a condition.
    ///
    /// ```
    /// # use farfield_hamband::{Replicated, ReplicatedOptions, types::{Counter, CounterUpdate}};
    /// # let node = farfield::Node::builder().start()?;
    /// # let ep = node.endpoint()?;
    /// # let counter = Replicated::open(&node, "visits", Counter::default(), ReplicatedOptions::default())?;
    /// ep.block_on(counter.wait_until(&ep, ep.deadline(), |counter| counter.value() == 0))?;
    /// # Ok::<(), farfield::Error>(())
    /// ```
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
            // Before the look: a change after it ends the wait.
            let decided = shared.decided();
            let (is_satisfied, changes, watch) = {
                let mut local = shared.local.lock();
                let (some, watch) = local.drain_and_watch().of(object.path())?;
                (condition(&local.replica.state), shared.note(some), watch)
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
    ///
    /// ```
    /// # use farfield_hamband::{Replicated, ReplicatedOptions, types::{Counter, CounterUpdate}};
    /// # let node = farfield::Node::builder().start()?;
    /// # let ep = node.endpoint()?;
    /// # let counter = Replicated::open(&node, "visits", Counter::default(), ReplicatedOptions::default())?;
    /// assert!(!counter.is_settled(node.id())); // it is alive
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn is_settled(&self, node: NodeId) -> bool {
        let rank = self.nodes().iter().position(|other| *other == node);
        rank.is_some_and(|rank| self.0.shared.settled.load() & 1 << rank != 0)
    }

    /// The node that orders the calls of a conflicting method now, as far as this one knows. None if the method does not conflict, or while there is
    /// no leader. A call made there takes one round trip; elsewhere it is forwarded.
    ///
    /// ```
    /// # use farfield_hamband::{Replicated, ReplicatedOptions, types::{Account, AccountMethod}};
    /// # let node = farfield::Node::builder().start()?;
    /// # let ep = node.endpoint()?;
    /// let account = Replicated::open(&node, "account", Account::default(), ReplicatedOptions::default())?;
    /// ep.block_on(ep.wait_until(ep.deadline(), || account.leader_of(AccountMethod::Withdraw)))?; // elected
    /// assert_eq!(account.leader_of(AccountMethod::Deposit), None); // each node makes its own
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn leader_of(&self, method: <T::Update as Update>::Method) -> Option<NodeId> {
        let shared = &self.0.shared;
        shared.orders[shared.group_of[method.number()]?].commands.log().leader()
    }

    /// The nodes with replicas, in the order of their numbers.
    ///
    /// ```
    /// # use farfield_hamband::{Replicated, ReplicatedOptions, types::{Counter, CounterUpdate}};
    /// # let node = farfield::Node::builder().start()?;
    /// # let ep = node.endpoint()?;
    /// # let counter = Replicated::open(&node, "visits", Counter::default(), ReplicatedOptions::default())?;
    /// assert_eq!(counter.nodes(), [node.id()]);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn nodes(&self) -> &[NodeId] {
        self.0.object.participants()
    }
}
