//! The state that the service thread, the proposer and the reader of a replica share.

use std::sync::Arc;

use farfield_core::toolkit::{Object, Participants, buf_bytes_max};
use farfield_core::{MemberStatus, Node};
use farfield_fabric::{GroupKey, LocalMutex, NodeId, Region, RemotePtr, Word};
use smallvec::SmallVec;

use crate::errors::NoMajority;
use crate::layout::{COMMIT, REPLICAS_MAX, Slots, Standing, applied_at, closed_at, standing_at};
use crate::options::LogOptions;
use crate::poller::Arrivals;

/// A replica, as the others reach it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub(crate) log: RemotePtr<u64>,
    pub(crate) control: RemotePtr<u64>,
    /// For commands (`commands/slots.rs`), if the log has any.
    pub(crate) requests: RemotePtr<u64>,
    pub(crate) answers: RemotePtr<u64>,
}

impl Peer {
    /// In place of the replica of a rank that has none, or that is not connected.
    pub(crate) const NONE: Peer = {
        let none = RemotePtr::from_packed(0);
        Peer { log: none, control: none, requests: none, answers: none }
    };

    pub(crate) fn is_some(&self) -> bool {
        self.control.packed() != 0
    }
}

/// How many ranks a log has. A rank is the place of a node in the session, so that a node that returns in place of
/// another has its rank. Where there are more places than ranks can be, it is the number among the participants, and
/// none returns.
pub(crate) fn ranks_of(node: &Node, participants: &Participants) -> usize {
    if node.nodes() <= REPLICAS_MAX { node.nodes() } else { participants.count() }
}

/// The rank of a participant.
pub(crate) fn rank_in(node: &Node, participants: &Participants, of: NodeId) -> usize {
    if node.nodes() <= REPLICAS_MAX { node.rank_of(of) } else { participants.rank_of(of).unwrap_or(0) }
}

/// The state of more followers than these needs an allocation.
pub(crate) const FEW: usize = 6;

/// Bytes that are copied to or from a replica at a time.
const CHUNK_BYTES: usize = 16 << 10;

/// The replica of this node.
pub(crate) struct Core {
    /// The service thread holds this: it must not keep the node in its session.
    pub(crate) node: Node,
    pub(crate) path: String,
    /// The rank of this node.
    pub(crate) me: usize,
    /// By rank: the node + 1, or 0. A returning node takes the seat of the one that was there.
    seats: Box<[Word]>,
    /// How many seats are taken, since the log was opened first.
    count: Word,
    /// A bit for each rank: its vote is not known before it says so, since its node has come back.
    pub(crate) returned: Word,
    /// Whether this replica has a vote: it has all that was decided with the help of the one before it.
    pub(crate) votes: Word,
    /// An object on the log keeps a state of its own, which a returning node takes from the others before it has a
    /// vote.
    pub(crate) keeps_state: bool,
    /// It is here.
    pub(crate) has_state: Word,
    pub(crate) slots: Slots,
    /// Slots that are copied at a time.
    pub(crate) chunk: u64,
    /// The log's group. Only the leader has the right to it.
    pub(crate) group: GroupKey,
    pub(crate) log: Region,
    pub(crate) control: Region,
    /// Headers that were got back from followers.
    pub(crate) echoes: Region,
    pub(crate) state: LocalMutex<State>,
    /// The ballot with which this node leads, or 0: as in `state`, to be read without its lock.
    pub(crate) leading: Word,
    /// The ranks of the confirmed followers, as bits.
    pub(crate) confirmed: Word,
    /// The ballot that this replica has promised.
    pub(crate) term: Word,
    /// The rank of its candidate + 1.
    pub(crate) promised_to: Word,
    /// Counts the changes that the proposer may wait for: other followers, another leader.
    pub(crate) changes: Word,
    /// Entries that this node has proposed.
    pub(crate) proposed: Word,
    /// The application wants this node to lead.
    pub(crate) is_wanted: Word,
    /// The handles of this node are dropped.
    pub(crate) is_closed: Word,
}

/// The words that change together.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) leading: Option<Leading>,
    /// By rank.
    pub(crate) peers: SmallVec<[Peer; FEW]>,
    /// By rank: from this entry on a replica that has come back gets them from this node as a leader, so their slots
    /// are not used again.
    pub(crate) bases: SmallVec<[Option<u64>; FEW]>,
}

/// The state of a leader.
pub(crate) struct Leading {
    pub(crate) ballot: u64,
    /// Entries in this node's log: the next one is proposed at this index.
    pub(crate) tail: u64,
    /// Entries that are decided: all but the last, or all.
    pub(crate) decided: u64,
    /// Entries below this one may be proposed: their slots are free.
    pub(crate) room: u64,
    /// By rank.
    pub(crate) followers: SmallVec<[Follower; FEW]>,
}

/// A follower as its leader sees it.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Follower {
    /// It has the right entries up to `has`, has given this node the right to write, and gets the entries from there
    /// on.
    pub(crate) is_confirmed: bool,
    /// The entries below are known to be in its memory.
    pub(crate) has: u64,
    /// The number of the endpoint that has put the entries since then.
    pub(crate) by: Option<usize>,
}

impl Core {
    #[expect(clippy::too_many_arguments, reason = "the one call is next to the allocations")]
    pub(crate) fn new(
        node: &Node,
        path: &str,
        participants: &Participants,
        options: LogOptions,
        keeps_state: bool,
        group: GroupKey,
        log: Region,
        control: Region,
        echoes: Region,
    ) -> Core {
        let ranks = ranks_of(node, participants);
        let seats: Box<[Word]> = (0..ranks).map(|_| Word::new(0)).collect();
        for of in participants.iter() {
            seats[rank_in(node, participants, of)].store(u64::from(of.0) + 1);
        }
        let peers = (0..ranks).map(|_| Peer::NONE).collect();
        let bases = (0..ranks).map(|_| None).collect();
        Core {
            node: node.for_service(),
            path: path.into(),
            me: rank_in(node, participants, node.id()),
            seats,
            count: Word::new(participants.count() as u64),
            returned: Word::new(0),
            votes: Word::new(1),
            keeps_state,
            has_state: Word::new(1),
            chunk: (CHUNK_BYTES.min(buf_bytes_max(node)) / (8 * options.slot_words())).max(1) as u64,
            slots: Slots { count: options.entries as u64, words: options.slot_words() },
            group,
            log,
            control,
            echoes,
            state: LocalMutex::new(State { leading: None, peers, bases }),
            leading: Word::new(0),
            confirmed: Word::new(0),
            term: Word::new(0),
            promised_to: Word::new(0),
            changes: Word::new(0),
            proposed: Word::new(0),
            is_wanted: Word::new(0),
            is_closed: Word::new(0),
        }
    }

    /// How many ranks there are. Some may have no replica.
    pub(crate) fn ranks(&self) -> usize {
        self.seats.len()
    }

    pub(crate) fn replicas(&self) -> usize {
        self.count.load() as usize
    }

    /// The node of a rank, if there is one.
    pub(crate) fn node_at(&self, rank: usize) -> Option<NodeId> {
        self.seats[rank].load().checked_sub(1).map(|node| NodeId(node as u16))
    }

    pub(crate) fn nodes(&self) -> impl Iterator<Item = NodeId> + '_ {
        (0..self.ranks()).filter_map(|rank| self.node_at(rank))
    }

    /// A node takes a seat.
    pub(crate) fn seat(&self, rank: usize, node: NodeId) {
        self.seats[rank].store(u64::from(node.0) + 1);
    }

    /// This node has come back to a log that was opened with these, by rank.
    pub(crate) fn comes_back(&self, founders: &[Option<NodeId>]) {
        self.count.store(founders.iter().flatten().count() as u64);
        for (rank, founder) in founders.iter().enumerate() {
            if let (Some(founder), None) = (founder, self.node_at(rank)) {
                self.seat(rank, *founder);
            }
        }
        self.votes.store(0);
        self.has_state.store(u64::from(!self.keeps_state));
        self.returned.store(u64::MAX >> 1);
    }

    /// Whether a replica counts for majorities.
    pub(crate) fn has_vote(&self, rank: usize) -> bool {
        if rank == self.me {
            return self.votes.load() != 0;
        }
        self.returned.load() >> rank & 1 == 0 || self.standing(rank).votes(rank)
    }

    /// Whether a replica that has come back has begun to read, as far as leaders before this one have known: then no
    /// slot is used again before it has read there, whether its vote is known or not.
    pub(crate) fn reads(&self, rank: usize) -> bool {
        self.node_at(rank).is_some_and(|node| self.log.word(self.slots.reads_at(rank)).load() == u64::from(node.0) + 1)
    }

    pub(crate) fn standing(&self, rank: usize) -> Standing {
        Standing(self.control.word(standing_at(self.ranks(), rank)).load())
    }

    pub(crate) fn majority(&self) -> usize {
        self.replicas() / 2 + 1
    }

    /// Entries that this replica knows to be decided.
    pub(crate) fn decided(&self) -> u64 {
        self.log.word(COMMIT).load()
    }

    /// Entries that this node's reader has acknowledged.
    pub(crate) fn applied(&self) -> &Word {
        self.control.word(applied_at(self.ranks()))
    }

    /// Whether a replica may still read or write: its node is no longer a member, or has closed the log.
    pub(crate) fn is_gone(&self, rank: usize) -> bool {
        let status = self.node_at(rank).and_then(|node| self.node.status_of(node));
        !matches!(status, Some(MemberStatus::Member | MemberStatus::Suspected)) || self.has_closed(rank)
    }

    /// Whether this node knows another: not one that was gone before it came.
    pub(crate) fn is_known(&self, node: NodeId) -> bool {
        self.node.status_of(node).is_some()
    }

    pub(crate) fn has_closed(&self, rank: usize) -> bool {
        self.control.word(closed_at(self.ranks(), rank)).load() != 0
    }

    /// The error of a log that no majority can serve any more: so many replicas are gone at one moment.
    pub(crate) fn check_majority(&self) -> Result<(), NoMajority> {
        let missing = || {
            let present = (0..self.ranks()).filter(|rank| *rank == self.me || !self.is_gone(*rank)).count();
            let (of, needed) = (self.replicas(), self.majority());
            (present < needed).then_some(NoMajority { of, needed, present })
        };
        if missing().is_none() {
            return Ok(());
        }
        // The one at a seat that a node has just taken again may have counted as gone, and another that has left since
        // as well. A replica that is gone comes back only as a node with a higher number.
        let seated = || self.seats.iter().map(Word::load).sum::<u64>();
        loop {
            let before = seated();
            match missing() {
                None => return Ok(()),
                Some(missing) if seated() == before => return Err(missing),
                Some(_) => {}
            }
        }
    }

    /// Whether a replica may lead.
    pub(crate) fn is_trusted(&self, rank: usize) -> bool {
        let is_member = |node| rank == self.me || self.node.status_of(node) == Some(MemberStatus::Member);
        !self.is_gone(rank) && self.has_vote(rank) && self.node_at(rank).is_some_and(is_member)
    }

    pub(crate) fn leader(&self) -> Option<NodeId> {
        self.node_at(self.leader_rank()?)
    }

    pub(crate) fn leader_rank(&self) -> Option<usize> {
        let rank = self.promised_to.load().checked_sub(1)? as usize;
        let leads = if rank == self.me { self.leading.load() != 0 } else { self.is_trusted(rank) };
        leads.then_some(rank)
    }

    /// The service thread asks the others to let this node lead.
    pub(crate) fn ask_to_lead(&self) {
        if self.leading.load() == 0 {
            self.is_wanted.store(1);
            self.node.fabric().wake_service();
        }
    }

    /// Wakes the proposer and the readers of this node.
    pub(crate) fn changed(&self) {
        self.changes.fetch_add(1);
        self.node.fabric().wake_local();
    }

    /// This node leads no longer with this ballot, if it does. The service thread finds out which node does.
    pub(crate) fn step_down(&self, ballot: u64) {
        let mut state = self.state.lock();
        if state.leading.as_ref().is_some_and(|leading| leading.ballot == ballot) {
            self.ends_leading(&mut state);
            drop(state);
            self.changed();
            self.node.fabric().wake_service();
        }
    }

    /// Under the lock, so that the proposer does not write to this node's log after it.
    pub(crate) fn ends_leading(&self, state: &mut State) {
        if let Some(leading) = state.leading.take() {
            tracing::info!(node = self.node.id().0, object = self.path, term = leading.ballot, "leads no longer");
        }
        self.leading.store(0);
        self.confirmed.store(0);
    }

    /// A follower misses entries: the service thread asks it for the right again, and brings it up to date.
    pub(crate) fn drop_follower(&self, ballot: u64, rank: usize) {
        let mut state = self.state.lock();
        if let Some(leading) = state.leading.as_mut().filter(|leading| leading.ballot == ballot) {
            leading.followers[rank] = Follower::default();
            self.confirmed.store(self.confirmed.load() & !(1 << rank));
            drop(state);
            self.changed();
            self.node.fabric().wake_service();
        }
    }
}

impl Leading {
    /// Replicas that have all entries below `index`, this node included.
    pub(crate) fn have(&self, index: u64) -> usize {
        1 + self.followers.iter().filter(|follower| follower.is_confirmed && follower.has >= index).count()
    }

    /// Replicas that take part, this node included.
    pub(crate) fn present(&self) -> usize {
        self.have(0)
    }
}

/// No thread of this node has begun to take part.
pub(crate) const NOT_BEGUN: u64 = 0;
/// A thread is about to.
pub(crate) const BEGINS: u64 = 1;
/// This node takes part.
pub(crate) const HAS_BEGUN: u64 = 2;

/// The handles of the application: when the last is dropped, this node closes the log.
pub(crate) struct Handle {
    pub(crate) object: Object,
    pub(crate) core: Arc<Core>,
    /// The nodes with which this one has opened it.
    pub(crate) participants: Participants,
    pub(crate) arrivals: Arc<Arrivals>,
    /// Whether this node takes part: `NOT_BEGUN`, `BEGINS` or `HAS_BEGUN`.
    pub(crate) begun: Word,
    pub(crate) proposer_taken: Word,
    pub(crate) reader_taken: Word,
}

impl Handle {
    pub(crate) fn new(object: Object, core: Arc<Core>, participants: Participants, arrivals: Arc<Arrivals>) -> Handle {
        let [begun, proposer_taken, reader_taken] = [NOT_BEGUN, 0, 0].map(Word::new);
        Handle { object, core, participants, arrivals, begun, proposer_taken, reader_taken }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.core.is_closed.store(1);
        self.core.node.fabric().wake_service();
    }
}
