//! A replicated log: entries in one order on all replicas, decided by a leader in one round trip, after Mu.
//!
//! Each replica has the log in its own memory, in a permission group of its own. One node may write there: the leader
//! that the replica recognises.
//!
//! ```text
//! region `log` of a replica, in a group of its own: only its leader writes it
//!   +0   ┌──────────────┐
//!        │ decided      │  entries that are decided, as far as this replica was told
//!   +64  ├──────────────┼────────┬────────┬────────┬───────┬────────┬───────────────────────┬─
//!        │ index + 1    │ ballot │ origin │ length │ check │ raised │ bytes, padded to 8    │ …  `entries` such slots,
//!        └──────────────┴────────┴────────┴────────┴───────┴────────┴───────────────────────┴─   used in turn
//!          behind the slots, for each rank: the node + 1 that has come back there and reads, or 0
//!          origin: the node that has proposed it (16 bits), and its count of proposals (48)
//!          check: a checksum of all but itself and `raised`
//!          raised: the highest ballot with which the replica has accepted the entry
//! region `control` of a replica, in the service group: all may write; n ranks, which are the places of the session
//!   +0   ┌─ n words ─┬─ n words ──┬─ n words ─┬─ n words ─┬─ n words ─┬─────────┬─ n + 1 ──┐
//!        │ requests  │ grants     │ closed    │ standings │ promises  │ applied │ founders │
//!        └───────────┴────────────┴───────────┴───────────┴───────────┴─────────┴──────────┘
//!          standings, promises: for a replica that has come back
//!          request, grant: round (48), rank (8), attempt (8); the first two are the ballot, which is the term
//! ```
//!
//! # Algorithm
//!
//! *Propose.* The leader stores the entry to its own log, puts it to each follower, and gets its header back from
//! there. When a majority has it, itself included, the entry is decided. The leader then puts the word `decided` to
//! all, and does not wait for that.
//!
//! *Change of the leader.* It is the service threads' work. A node asks to lead if the leader that it has recognised is
//! no longer trusted, and it has the lowest rank of those that are. The others ask, too, if that one does not, after
//! two seconds for each live node of a lower rank. The candidate puts a *request* with a ballot to all replicas, itself
//! included. A replica that has promised no higher ballot promises this one. It revokes the right of all nodes to its
//! log, gives it to the candidate alone, and then puts the *grant*. With the grants of a majority the candidate
//!
//! 1. copies the entries from the granting replica that knows of the most decided ones,
//! 2. reads the slots after those on all of them, and adopts the entry with the highest ballot, index by index, until
//!    there is none,
//! 3. brings a majority to the same entries, with its own ballot, and leads.
//!
//! Other replicas that grant later are brought up in the same way, while it leads. A follower that fails an operation,
//! or is 16 entries behind, is asked for the right anew: its revocation ends all puts that may be under way to it.
//!
//! This is Paxos, entry by entry. Mu has a word `min_proposal` at each replica, which the leader reads and writes in a
//! phase of its own. Here the replica keeps that promise itself, with the grant: the phase costs no round trip, and the
//! right to write enforces the promise.
//!
//! # Ordering
//!
//! *One writer.* A replica revokes before it grants, and no put of the revoked lands afterwards. It ends its own
//! leadership under the lock with which its proposer stores to its log (`CW` → lock → the `NRW` of the grant). So the
//! entries that a candidate finds after the grant are all that this replica has accepted, and no more come.
//!
//! *Accepted is durable.* A complete put may not have landed, and a revocation drops it then. So the leader counts a
//! follower when the header has come back by a get behind the put (`NRW → NRR`, one queue pair): then the entry is in
//! the follower's memory, and any later leader with that follower's grant reads it.
//!
//! *Entries in pieces.* A leader may die in the middle of a put. The checksum tells a whole entry. An adopted entry
//! that a replica has already is not put again: one word, `raised`, is. So a leader that dies in the middle of a change
//! destroys no copy that an acknowledged entry may depend on. Another entry at this index was not decided; it is spoilt
//! by a put of its check before it is overwritten (`NRW → NRW`), so that it never has the new ballot.
//!
//! *Entry before word.* `decided` is put after the entry by the same endpoint (`NRW → NRW`), or when the entry is known
//! to be there. The reader reads the word first (`CR → CR`).
//!
//! *Use of a slot.* The leader gets the word `applied` of all live replicas, and uses a slot again when all have passed
//! its entry. A reader reads an entry before its application acknowledges it (`CR → CW`).
//!
//! *Two endpoints* of the proposer have no order. The leader knows by which one the entries went that a follower has
//! not returned, and puts no word by another. Then that follower learns of them with the next entry.
//!
//! # Costs
//!
//! With n replicas:
//!
//! | call | round trips | operations |
//! |---|---|---|
//! | `propose` on the leader | 1 | n − 1 times: a put of the entry and 48 bytes, a get of 40 bytes, and a put of a word that is not waited for |
//! | `propose`, when the slots known to be free are used up | 2 | n − 1 gets of a word more; it repeats them while a reader is behind |
//! | `propose` elsewhere | 0 | none |
//! | `try_next`, `next`, `acknowledge` | 0 | none |
//! | change of the leader | about 2 for the grants, and 9 with one entry that may be decided | |
//!
//! `propose` allocates no memory with up to six replicas; it takes an uncontended lock of its node. A put to a log
//! wakes the service thread of the follower, so a [`Poller`](farfield_core::toolkit::Poller) may read there.
//!
//! # When a node dies, or leaves
//!
//! *The leader.* The live member with the lowest rank replaces it. Acknowledged entries stay. An entry that was not is
//! decided or not; the error says which, or that it is unknown ([`OutcomeUnknown`]).
//!
//! *A leader that only seemed dead.* Its right is revoked: it gets [`NotLeader`], and corrupts nothing.
//!
//! *A follower.* A majority is waited for. A live one that does not read fills the log ([`LogFull`]); a dead one does
//! not.
//!
//! *More than the majority can bear.* `propose` ends with [`NoMajority`] or [`OutcomeUnknown`], at once where the
//! members have decided about the dead. Decided entries can be read. [`Node::reopen`](farfield_core::Node::reopen)
//! begins an empty log among the survivors.
//!
//! *A node that closes the log* counts as one that has left.
//!
//! *A node that comes back* at the place of one that is gone opens the log again, takes its seat, and has a vote when a
//! leader has brought it all entries, and the lock or election on the log its state. [`EntriesMissing`] says which are
//! recycled. `docs/mu.md` has the argument why no decided entry is lost.
//!
//! # Limits
//!
//! One proposal at a time is under way. An open log has a permission group of each node, of which it has some 250.
//! Messages about a false suspicion may be late: then the old leader waits until it learns from a refused put.
//!
//! Source: Mu (Aguilera et al., OSDI 2020), as Hamband (§4) uses it. The grant that is the promise, the get behind the
//! put, `raised`, and the count of slots are ours.

#![forbid(unsafe_code)]

#[cfg(any(not(seeded), clippy, doc, rust_analyzer))]
mod commands;
mod election;
mod errors;
mod heartbeats;
#[cfg(any(not(seeded), clippy, doc, rust_analyzer))]
mod layout;
pub mod mutants;
mod mutex;
mod options;
#[cfg(any(not(seeded), clippy, doc, rust_analyzer))]
mod poller;
#[cfg(any(not(seeded), clippy, doc, rust_analyzer))]
mod proposer;
mod reader;
mod replica;
#[cfg(any(not(seeded), clippy, doc, rust_analyzer))]
mod turns;
// The unit tests run none of them, and are built sooner without.
#[cfg(all(feature = "scenarios", not(test)))]
pub mod scenarios;

// Where the seeded bugs are on, copies of the modules that have a `cfg(any(not(seeded), …))` (`mutants`).
#[cfg(all(seeded, not(any(clippy, doc, rust_analyzer))))]
include!(concat!(env!("OUT_DIR"), "/seeded.rs"));

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use farfield_core::toolkit::{ErrorContext, ObjectBuilder, Participants, Regions};
use farfield_core::{Error, ErrorKind, Node, Result};
use farfield_fabric::{Bell, Endpoint, GroupKey, NodeId, Region};

pub use self::commands::{
    AnnouncedCommands, Command, CommandNumbers, CommandOptions, CommandProposer, Commands, Decision, Forward,
    NextEntry, Ordered, ServeProgress, Served, View,
};
pub use self::election::{Election, Leadership};
pub use self::errors::{EntriesMissing, LogFull, NoMajority, NotLeader, NotNext, OutcomeUnknown};
pub use self::heartbeats::{Heartbeats, Led};
pub use self::mutex::{ReplicatedGuard, ReplicatedMutex};
pub use self::options::LogOptions;
use self::poller::{Arrivals, LogPoller};
pub use self::proposer::Proposer;
pub use self::reader::LogReader;
use self::replica::{BEGINS, Core, HAS_BEGUN, Handle, NOT_BEGUN, Peer, rank_in, ranks_of};

/// What an object on a log adds to it.
pub(crate) struct Beside<'a> {
    /// Regions of each node: their names, groups and bytes.
    pub(crate) regions: &'a [(&'static str, GroupKey, usize)],
    /// The object brings its state to a node that comes back.
    pub(crate) keeps_state: bool,
}

/// Of several nodes of one place all but the last have gone, though this node may not know it yet.
pub(crate) fn last_of_each_place(node: &Node, nodes: &[NodeId]) -> Participants {
    let is_last = |of: &&NodeId| !nodes.iter().any(|it| it > *of && node.rank_of(*it) == node.rank_of(**of));
    Participants::new(&nodes.iter().filter(is_last).copied().collect::<Vec<_>>())
}

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

    /// [`ReplicatedLog::open`] with a replica on each of these nodes. Only they open it. An odd number is best: of 2f +
    /// 1 replicas f may die.
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
        let beside = Beside { regions: &[], keeps_state: false };
        ReplicatedLog::announce_with(node, path, participants, options, &beside).map(|(log, _)| log)
    }

    /// With what an object on the log adds.
    pub(crate) fn announce_with(
        node: &Node,
        path: &str,
        participants: &[NodeId],
        options: LogOptions,
        beside: &Beside<'_>,
    ) -> Result<(ReplicatedLog, Vec<Region>)> {
        options.check(node).of(path)?;
        let participants = last_of_each_place(node, participants);
        participants.require(node.id()).of(path)?;
        let (ranks, replicas) = (ranks_of(node, &participants), participants.count());
        if replicas > layout::REPLICAS_MAX {
            let why = format!("a log has at most {} replicas, and {replicas} were named", layout::REPLICAS_MAX);
            return Err(Error::from(ErrorKind::Config { why }).of(path));
        }
        // A put to the log wakes the service thread, and with it the readers that are polled there.
        let mut regions = Regions::new(node);
        // It may be that of a log that was closed: each grant revokes it from all others first
        // (`LogPoller::may_write`).
        let group = regions.group(Bell::Service).of(path)?;
        let log_bytes = options.log_bytes(ranks).of(path)?;
        let control_bytes = layout::control_bytes(ranks);
        let log = regions.alloc("log", group, log_bytes).of(path)?;
        let control = regions.alloc("control", GroupKey::SERVICE, control_bytes).of(path)?;
        let echoes = regions.alloc_own(GroupKey::DATA, layout::echo_bytes(ranks)).of(path)?;
        let alloc = |&(name, group, bytes): &(_, _, usize)| regions.alloc(name, group, bytes);
        let others = beside.regions.iter().map(alloc).collect::<Result<Vec<_>>>().of(path)?;
        let sizes = beside.regions.iter().map(|(name, _, bytes)| (*name, *bytes));
        let sizes: Vec<(&str, usize)> =
            [("log", log_bytes), ("control", control_bytes)].into_iter().chain(sizes).collect();
        let layout = format!("{options:?}, {sizes:?}");
        // A node that comes back needs no part of one that goes meanwhile. The others are founders, and check its own.
        let takes_in = beside.regions.is_empty() || beside.keeps_state;
        let comes_back = takes_in && node.id().index() >= node.nodes();
        let expect = move |_| {
            let needs = sizes.iter().filter(|_| !comes_back);
            needs.map(|(name, bytes)| (name.to_string(), *bytes as u64)).collect()
        };
        let core = Core::new(node, path, &participants, options, beside.keeps_state, group, log, control, echoes);
        let arrivals = Arc::new(Arrivals::new(&participants));
        let connects = Arc::clone(&arrivals);
        let object = ObjectBuilder::new(node, path, "ReplicatedLog")
            .layout(&layout)
            .participants(participants.iter())
            .regions(regions)
            .require_regions(expect)
            .on_connect(move |node, theirs| connects.push(node, theirs));
        // Others that lay memory beside the log know nothing of nodes that come back.
        let object = if takes_in { object.takes_in_returned() } else { object }.announce()?;
        Ok((ReplicatedLog(Arc::new(Handle::new(object, Arc::new(core), participants, arrivals))), others))
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
    /// On a node that has come back it also waits until a leader has brought it up to date, and it counts again.
    /// Several threads may wait.
    ///
    /// # Errors
    /// A node that is missing, dead or departed, or that opens it differently.
    pub fn wait(&self) -> Result<()> {
        self.wait_longer(Duration::ZERO)
    }

    /// [`ReplicatedLog::wait`], so much longer than the node's timeout for a vote.
    pub(crate) fn wait_longer(&self, by: Duration) -> Result<()> {
        let endpoint = self.wait_for_all()?;
        let Handle { object, core, .. } = &*self.0;
        let is_up_to_date = || (core.votes.load() != 0).then_some(());
        let waited = endpoint.block_on(endpoint.wait_until(endpoint.deadline() + by, is_up_to_date));
        waited.waiting_for("a leader of the log to bring this node up to date").of(object.path())
    }

    /// Waits until all replicas have opened the log, and takes part. A node that has come back has no vote yet.
    pub(crate) fn wait_for_all(&self) -> Result<Endpoint> {
        let Handle { object, begun, .. } = &*self.0;
        let (node, endpoint) = (object.node(), object.node().endpoint()?);
        // One thread begins, and the others wait for it: before that a node that has come back does not know that it
        // has no vote.
        while let Err(seen) = begun.compare_exchange(NOT_BEGUN, BEGINS) {
            if seen == HAS_BEGUN {
                return Ok(endpoint);
            }
            let has_ended = || (begun.load() != BEGINS).then_some(());
            let waited = endpoint.block_on(endpoint.wait_until(endpoint.deadline(), has_ended));
            waited.waiting_for("another thread to begin with the log").of(object.path())?;
        }
        let began = self.begin(&endpoint);
        // After an error the next call begins anew.
        begun.store(if began.is_ok() { HAS_BEGUN } else { NOT_BEGUN });
        node.fabric().wake_local();
        began.map(|()| endpoint)
    }

    /// Waits for the other replicas, and begins to take part.
    fn begin(&self, endpoint: &Endpoint) -> Result<()> {
        let Handle { object, core, participants, arrivals, .. } = &*self.0;
        let node = object.node();
        object.wait_with(endpoint, node.timeout())?;
        let are_all = || arrivals.are_all(node).then_some(());
        let waited = endpoint.block_on(endpoint.wait_until(endpoint.deadline(), are_all));
        waited.waiting_for("all replicas to open the log").of(object.path())?;
        // They are taken when nothing can fail any more.
        let founders = poller::founders(node, endpoint, participants, &arrivals.all()).of(object.path())?;
        let connected = arrivals.take();
        if let Some(founders) = &founders {
            core.comes_back(founders);
        }
        let mut state = core.state.lock();
        for (of, theirs) in &connected {
            let rank = rank_in(node, participants, *of);
            if participants.rank_of(*of).is_none() {
                arrivals.push(*of, theirs); // it has come back since
            } else if core.node_at(rank) == Some(*of) {
                // Not the one before this node, which may have been live still when this one came.
                state.peers[rank] = poller::peer_of(theirs).unwrap_or(Peer::NONE);
            }
        }
        state.peers[core.me] = Peer { log: core.log.remote(0), control: core.control.remote(0), ..Peer::NONE };
        drop(state);
        let own = || (0..core.ranks()).map(|rank| core.node_at(rank)).collect();
        poller::write_founders(core, &founders.unwrap_or_else(own));
        node.add_poller(Box::new(LogPoller::new(Arc::clone(core), Arc::clone(arrivals), object.hold())));
        Ok(())
    }

    /// The node that leads the log, as far as this one knows: the last that this one has let write its log, if it is
    /// still trusted. It may have been replaced already.
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

    /// Asks the replicas to let this node lead, though another one leads that is alive: before that one is shut down,
    /// say, or to move the leader to where the work is. The service thread does it. It may fail, or be overtaken by
    /// another candidate: see [`ReplicatedLog::is_leader`]. Two nodes that ask again and again, faster than one of them
    /// can begin to lead, overtake each other, and nothing is decided: ask again only after a new entry.
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
        self.0.core.ask_to_lead();
    }

    /// Whether a majority of the replicas may still take part, as far as this node knows. Otherwise nothing is decided
    /// any more: the others are dead, or have left.
    ///
    /// ```
    /// # use farfield_mu::{LogOptions, ReplicatedLog};
    /// # let node = farfield::Node::builder().start()?;
    /// # let log = ReplicatedLog::open(&node, "log", LogOptions::default())?;
    /// assert_eq!(log.check_majority(), Ok(())); // while the nodes live
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`NoMajority`], with the number of those that are left.
    pub fn check_majority(&self) -> std::result::Result<(), NoMajority> {
        self.0.core.check_majority()
    }

    /// The entries in this node's memory, whether it knows that they are decided or not: for scenarios of objects that
    /// stand on a log, which judge what the survivors of a leader have.
    ///
    /// ```
    /// # use farfield_mu::{LogOptions, ReplicatedLog};
    /// # let node = farfield::Node::builder().start()?;
    /// # let log = ReplicatedLog::open(&node, "log", LogOptions::default())?;
    /// assert!(log.entries_here().is_empty());
    /// # Ok::<(), farfield::Error>(())
    /// ```
    #[cfg(feature = "scenarios")]
    pub fn entries_here(&self) -> Vec<Vec<u8>> {
        let core = &self.0.core;
        let mut words = vec![0; core.slots.words];
        let mut entries = Vec::new();
        for slot in 0..core.slots.count {
            let there = core.slots.words_of(&core.log, slot, core.slots.words);
            let mut image = layout::Image(&mut words);
            image.load(there);
            if let (Some(index), _, len) = layout::header_of(there)
                && image.is_whole(index)
            {
                let mut entry = Vec::new();
                layout::read_entry(there, len, &mut entry);
                entries.push(entry);
            }
        }
        entries
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

    /// The nodes with a replica. In place of one that has died it is the one that has come back for it.
    ///
    /// ```
    /// # use farfield_mu::{LogOptions, ReplicatedLog};
    /// # let node = farfield::Node::builder().start()?;
    /// # let log = ReplicatedLog::open(&node, "log", LogOptions::default())?;
    /// assert_eq!(log.participants().count(), 1);
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn participants(&self) -> Participants {
        Participants::new(&self.0.core.nodes().collect::<Vec<_>>())
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
    /// assert_eq!(reader.try_next(&mut Vec::new())?, None); // nothing is decided yet
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InUse`]: it exists already.
    pub fn reader(&self) -> Result<LogReader> {
        LogReader::new(&self.0)
    }
}
