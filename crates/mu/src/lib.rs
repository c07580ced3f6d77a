//! A replicated log: entries in one order on all replicas, decided by a leader in one round trip.
//!
//! (Draft of the API: see the module's items.)

#![forbid(unsafe_code)]

mod errors;
#[cfg(any(not(seeded), clippy, doc, rust_analyzer))]
mod layout;
pub mod mutants;
mod options;
#[cfg(any(not(seeded), clippy, doc, rust_analyzer))]
mod poller;
#[cfg(any(not(seeded), clippy, doc, rust_analyzer))]
mod proposer;
mod reader;
mod replica;
// The unit tests run none of them, and are built sooner without.
#[cfg(all(feature = "scenarios", not(test)))]
pub mod scenarios;

// Where the seeded bugs are on, copies of the modules that have a `cfg(any(not(seeded), …))` (`mutants`).
#[cfg(all(seeded, not(any(clippy, doc, rust_analyzer))))]
include!(concat!(env!("OUT_DIR"), "/seeded.rs"));

#[cfg(test)]
mod tests;

use std::sync::Arc;

use farfield_core::toolkit::{ErrorContext, ObjectBuilder, Participants, Regions};
use farfield_core::{Error, ErrorKind, Node, Result};
use farfield_fabric::{Bell, GroupKey, NodeId};

pub use self::errors::{LogFull, NoMajority, NotLeader, OutcomeUnknown};
pub use self::options::LogOptions;
use self::poller::LogPoller;
pub use self::proposer::Proposer;
pub use self::reader::LogReader;
use self::replica::{Core, Handle, Peer};

/// A node's part in a replicated log.
///
/// ```
/// use farfield_mu::{LogOptions, ReplicatedLog};
/// let nodes = farfield::local_session(3)?;
/// let logs = farfield::on_each(&nodes, |node| ReplicatedLog::open(node, "log", LogOptions::default()))?;
/// let leader = nodes[0].endpoint()?; // the live member with the lowest number
/// leader.block_on(leader.wait_until(leader.deadline(), || logs[0].is_leader().then_some(())))?;
/// let mut proposer = logs[0].proposer()?;
/// let index = leader.block_on(proposer.propose(&leader, b"first"))?;
///
/// let follower = nodes[2].endpoint()?;
/// let (mut reader, mut entry) = (logs[2].reader()?, Vec::new());
/// let read = follower.block_on(reader.next(&follower, &mut entry))?;
/// assert_eq!((read, entry.as_slice()), (index, b"first".as_slice()));
/// # Ok::<(), farfield::Error>(())
/// ```
#[derive(Clone)]
pub struct ReplicatedLog(Arc<Handle>);

impl ReplicatedLog {
    /// Opens the log with a replica on each live member of the session, and waits for them to do so.
    ///
    /// ```
    /// # use farfield_mu::{LogOptions, ReplicatedLog};
    /// let node = farfield::Node::builder().start()?;
    /// let log = ReplicatedLog::open(&node, "log", LogOptions::default())?; // of one replica
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// A node that is missing, dead or departed, or that opens it differently; no memory; invalid options.
    pub fn open(node: &Node, path: &str, options: LogOptions) -> Result<ReplicatedLog> {
        ReplicatedLog::open_among(node, path, &node.members_for(path), options)
    }

    /// [`ReplicatedLog::open`] with a replica on each of these nodes. Only they open it. An odd number is best: of 2f + 1
    /// replicas f may die.
    ///
    /// ```
    /// # use farfield_mu::{LogOptions, ReplicatedLog};
    /// # let nodes = farfield::local_session(4)?;
    /// let replicas = [0, 1, 3].map(|node: usize| nodes[node].id());
    /// let open = |node: &farfield::Node| ReplicatedLog::open_among(node, "log", &replicas, LogOptions::default());
    /// # let some: Vec<_> = [&nodes[0], &nodes[1], &nodes[3]].into_iter().cloned().collect();
    /// let logs = farfield::on_each(&some, open)?;
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for `open`; this node is no participant.
    pub fn open_among(node: &Node, path: &str, participants: &[NodeId], options: LogOptions) -> Result<ReplicatedLog> {
        let log = ReplicatedLog::announce(node, path, participants, options)?;
        log.wait()?;
        Ok(log)
    }

    /// Opens the log without waiting for the others. Call [`ReplicatedLog::wait`] before anything else.
    ///
    /// ```
    /// # use farfield_mu::{LogOptions, ReplicatedLog};
    /// # let node = farfield::Node::builder().start()?;
    /// let announce = |path| ReplicatedLog::announce(&node, path, &[node.id()], LogOptions::default());
    /// let (one, two) = (announce("one")?, announce("two")?);
    /// one.wait()?;
    /// two.wait()?;
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// Memory or permission groups are exhausted, or the options are invalid.
    pub fn announce(node: &Node, path: &str, participants: &[NodeId], options: LogOptions) -> Result<ReplicatedLog> {
        options.check(node).of(path)?;
        let participants = Participants::new(participants);
        let me = participants.require(node.id()).of(path)?;
        let replicas = participants.count();
        if replicas > layout::REPLICAS_MAX {
            let why = format!("a log has at most {} replicas, and {replicas} were named", layout::REPLICAS_MAX);
            return Err(Error::from(ErrorKind::Config { why }).of(path));
        }
        // A put to the log wakes the service thread, and with it the readers that are polled there.
        let group = node.fabric().create_group(Bell::Service).map_err(Error::from).of(path)?;
        let mut regions = Regions::new(node);
        let log_bytes = options.log_bytes().of(path)?;
        let control_bytes = layout::control_bytes(replicas);
        let log = regions.alloc("log", group, log_bytes).of(path)?;
        let control = regions.alloc("control", GroupKey::SERVICE, control_bytes).of(path)?;
        let echoes = regions.alloc_own(GroupKey::DATA, layout::echo_bytes(replicas)).of(path)?;
        let expect = move |_| vec![("log".into(), log_bytes as u64), ("control".into(), control_bytes as u64)];
        let object = ObjectBuilder::new(node, path, "ReplicatedLog")
            .layout(&format!("{options:?}"))
            .participants(participants.iter())
            .regions(regions)
            .require_regions(expect)
            .announce()?;
        let core = Core::new(node, path, participants, me, options, group, log, control, echoes);
        Ok(ReplicatedLog(Arc::new(Handle::new(object, Arc::new(core)))))
    }

    /// Waits until all replicas have opened the log. From then on the service threads choose a leader.
    ///
    /// ```
    /// # use farfield_mu::{LogOptions, ReplicatedLog};
    /// # let node = farfield::Node::builder().start()?;
    /// let log = ReplicatedLog::announce(&node, "log", &[node.id()], LogOptions::default())?;
    /// log.wait()?;
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// A node that is missing, dead or departed, or that opens it differently.
    pub fn wait(&self) -> Result<()> {
        let Handle { object, core, begun, .. } = &*self.0;
        let node = object.node();
        object.wait_with(&node.endpoint()?, node.timeout())?;
        if begun.compare_exchange(0, 1).is_ok() {
            let peer = |node| Ok(Peer { log: object.remote(node, "log")?, control: object.remote(node, "control")? });
            let peers = core.participants.iter().map(peer).collect::<Result<Vec<Peer>>>()?;
            node.add_poller(Box::new(LogPoller::new(Arc::clone(core), peers.clone(), object.hold())));
            *core.peers.lock() = peers.into();
        }
        Ok(())
    }

    /// The node that leads the log, as far as this one knows: the last that this one has let write its log, if it is still
    /// trusted. It may have been replaced already.
    ///
    /// ```
    /// # use farfield_mu::{LogOptions, ReplicatedLog};
    /// # let node = farfield::Node::builder().start()?;
    /// # let log = ReplicatedLog::open(&node, "log", LogOptions::default())?;
    /// # let ep = node.endpoint()?;
    /// let leader = ep.block_on(ep.wait_until(ep.deadline(), || log.leader()))?;
    /// assert_eq!(leader, node.id());
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn leader(&self) -> Option<NodeId> {
        self.0.core.leader()
    }

    /// Whether this node leads the log and can decide entries, as far as it knows. Another node may have replaced it
    /// already: then the next `propose` says so, and nothing that it proposes is decided.
    ///
    /// ```
    /// # use farfield_mu::{LogOptions, ReplicatedLog};
    /// # let node = farfield::Node::builder().start()?;
    /// # let log = ReplicatedLog::open(&node, "log", LogOptions::default())?;
    /// # let ep = node.endpoint()?;
    /// ep.block_on(ep.wait_until(ep.deadline(), || log.is_leader().then_some(())))?;
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn is_leader(&self) -> bool {
        self.0.core.leading.load() != 0
    }

    /// The term of the leader that this node recognises: each leader has a higher one than all before it, so it is a
    /// fencing token. 0 before the first.
    ///
    /// ```
    /// # use farfield_mu::{LogOptions, ReplicatedLog};
    /// # let node = farfield::Node::builder().start()?;
    /// # let log = ReplicatedLog::open(&node, "log", LogOptions::default())?;
    /// # let ep = node.endpoint()?;
    /// ep.block_on(ep.wait_until(ep.deadline(), || log.is_leader().then_some(())))?;
    /// assert!(log.term() > 0);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn term(&self) -> u64 {
        self.0.core.term.load()
    }

    /// Asks the replicas to let this node lead, though another one leads that is alive: before that one is shut down, say,
    /// or to move the leader to where the work is. The service thread does it. It may fail, or be overtaken by another
    /// candidate: see [`ReplicatedLog::is_leader`].
    ///
    /// ```
    /// # use farfield_mu::{LogOptions, ReplicatedLog};
    /// # let nodes = farfield::local_session(3)?;
    /// # let logs = farfield::on_each(&nodes, |node| ReplicatedLog::open(node, "log", LogOptions::default()))?;
    /// # let ep = nodes[2].endpoint()?;
    /// # ep.block_on(ep.wait_until(ep.deadline(), || logs[2].leader().map(|_| ())))?;
    /// logs[2].ask_to_lead();
    /// ep.block_on(ep.wait_until(ep.deadline(), || logs[2].is_leader().then_some(())))?;
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn ask_to_lead(&self) {
        let core = &self.0.core;
        if core.leading.load() == 0 {
            core.is_wanted.store(1);
            core.node.fabric().wake_service();
        }
    }

    /// How many entries are known here to be decided.
    ///
    /// ```
    /// # use farfield_mu::{LogOptions, ReplicatedLog};
    /// # let node = farfield::Node::builder().start()?;
    /// let log = ReplicatedLog::open(&node, "log", LogOptions::default())?;
    /// assert_eq!(log.decided(), 0);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn decided(&self) -> u64 {
        self.0.core.decided()
    }

    /// The replicas, in the order of their ranks.
    ///
    /// ```
    /// # use farfield_mu::{LogOptions, ReplicatedLog};
    /// # let node = farfield::Node::builder().start()?;
    /// # let log = ReplicatedLog::open(&node, "log", LogOptions::default())?;
    /// assert_eq!(log.participants().count(), 1);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn participants(&self) -> &Participants {
        &self.0.core.participants
    }

    /// The part that proposes entries, once on a node. It may exist on all nodes; on the leader it succeeds.
    ///
    /// ```
    /// # use farfield_mu::{LogOptions, ReplicatedLog};
    /// # let node = farfield::Node::builder().start()?;
    /// # let log = ReplicatedLog::open(&node, "log", LogOptions::default())?;
    /// let proposer = log.proposer()?;
    /// assert!(log.proposer().is_err()); // until `proposer` is dropped
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InUse`]: it exists already.
    pub fn proposer(&self) -> Result<Proposer> {
        Proposer::new(&self.0)
    }

    /// The part that reads the decided entries, once on a node. The entries of a node that does not read them fill the
    /// log: each node reads, or drops its `ReplicatedLog`.
    ///
    /// ```
    /// # use farfield_mu::{LogOptions, ReplicatedLog};
    /// # let node = farfield::Node::builder().start()?;
    /// # let log = ReplicatedLog::open(&node, "log", LogOptions::default())?;
    /// # let ep = node.endpoint()?;
    /// let mut reader = log.reader()?;
    /// assert_eq!(reader.try_next(&ep, &mut Vec::new())?, None); // nothing is decided yet
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InUse`]: it exists already.
    pub fn reader(&self) -> Result<LogReader> {
        LogReader::new(&self.0)
    }
}
