//! The replicas of a data type on the nodes of a session, and the calls on them.

use std::sync::Arc;

use farfield_core::toolkit::{ErrorContext, Object, Participants};
use farfield_core::{Error, ErrorKind, Node, Result};
use farfield_fabric::{Endpoint, Instant, LocalMutex, NodeId, Word};
use farfield_mu::{Led, ReplicatedLog};

use crate::chores::Chores;
use crate::conflicting::Order;
use crate::coordination::Coordination;
use crate::data_type::{DataType, Method, Update};
use crate::local::{Group, Local, Parts};
use crate::opening::{self, Opened};
use crate::options::ReplicatedOptions;
use crate::process::Process;
use crate::replica::{Replica, Tables};
use crate::writer::Writer;

/// A replicated object of a [`DataType`]: a replica on each node. Any thread reads the one of its node; one [`Writer`]
/// of each node updates it.
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

/// The log of each synchronisation group, in their order.
impl<T: DataType> Led for Replicated<T> {
    fn logs(&self) -> Vec<&ReplicatedLog> {
        self.0.shared.process.orders.iter().map(|order| order.commands.log()).collect()
    }
}

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
        self.shared.process.is_closed.store(1);
        self.object.node().fabric().wake_service();
    }
}

/// The part of a node that the service thread needs. It does not keep the node in its session.
pub(crate) struct Shared<T: DataType> {
    pub(crate) process: Process,
    /// The longest refusal, encoded.
    pub(crate) refusal_bytes_max: usize,
    pub(crate) local: LocalMutex<Local<T>>,
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
    /// Invalid options; a node that is missing, dead or departed, or that opens it differently: with another initial
    /// state, for example; no memory.
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
        let coordination = if options.serialised { Coordination::all() } else { T::coordination() };
        let tables = Tables::new(&coordination);
        let initial_bytes = postcard::to_allocvec(&initial).map_err(|error| {
            let why = format!("the initial state cannot be encoded: {error}");
            Error::from(ErrorKind::Encoding { why }).of(path)
        })?;
        let initial_hash = xxhash_rust::xxh3::xxh3_64(&initial_bytes);
        let layout = format!("{options:?}, initial={initial_hash:016x}, {}", coordination.layout());
        let Opened { object, outgoing, incoming, summaries, applied, repair, counts, orders } =
            opening::open(node, path, &processes, me, &tables, &layout, &options)?;

        let group = |order: &Order| Ok(Group::new(order.commands.log().reader()?, processes.len(), tables.summaries));
        let groups = orders.iter().map(group).collect::<Result<_>>()?;
        let group_of = tables.group_of.clone();
        let replica = Replica::new(tables, processes.len(), me, initial);
        let call_bytes_max = options.call_bytes_max;
        let parts = Parts { replica, processes, outgoing, incoming, summaries, groups, applied, call_bytes_max };
        let shared = Arc::new(Shared {
            process: Process::new(node, me, counts, orders, group_of),
            refusal_bytes_max: options.refusal_bytes_max,
            local: LocalMutex::new(Local::new(parts)),
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

    /// Reads this node's replica (rule QUERY): all calls of this node, and those of the others that have arrived. It
    /// takes no round trip. While `query` runs, no thread of this node applies an update: it should be short, and must
    /// make no call on the object.
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
        self.0.shared.process.note(drained.some);
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
            let decided = shared.process.decided();
            let (is_satisfied, changes, watch) = {
                let mut local = shared.local.lock();
                let (some, watch) = local.drain_and_watch().of(object.path())?;
                (condition(&local.replica.state), shared.process.note(some), watch)
            };
            if is_satisfied {
                return Ok(());
            }
            let has_changed = || {
                (watch.has_changed() || shared.process.changes.load() != changes || shared.process.decided() != decided)
                    .then_some(Ok(()))
            };
            let fails = || shared.process.ends(object).map(Err);
            let waited = endpoint.wait_until_or(deadline, has_changed, fails).await;
            waited.waiting_for("the state of a replica").of(object.path())??;
        }
    }

    /// Whether this replica has all calls of a dead node that any live replica has: no more will come. The survivors
    /// copy them from each other (reliable broadcast, §4).
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
        rank.is_some_and(|rank| self.0.shared.process.settled.load() & 1 << rank != 0)
    }

    /// The node that orders the calls of a conflicting method now, as far as this one knows. None if the method does
    /// not conflict, or while there is no leader. A call made there takes one round trip; elsewhere it is forwarded.
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
        let process = &self.0.shared.process;
        process.orders[process.group_of[method.number()]?].commands.log().leader()
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
