//! The state that the service thread, the proposer and the reader of a replica share.

use std::sync::Arc;

use farfield_core::toolkit::{Object, Participants, buf_bytes_max};
use farfield_core::{MemberStatus, Node};
use farfield_fabric::{GroupKey, LocalMutex, NodeId, Region, RemotePtr, Word};
use smallvec::SmallVec;

use crate::errors::NoMajority;
use crate::layout::{COMMIT, Slots, applied_at, closed_at};
use crate::options::LogOptions;

/// A replica, as the others reach it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub(crate) log: RemotePtr<u64>,
    pub(crate) control: RemotePtr<u64>,
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
    pub(crate) participants: Participants,
    /// The rank of this node.
    pub(crate) me: usize,
    pub(crate) slots: Slots,
    /// Slots that are copied at a time.
    pub(crate) chunk: u64,
    /// The log's group. Only the leader has the right to it.
    pub(crate) group: GroupKey,
    pub(crate) log: Region,
    pub(crate) control: Region,
    /// Headers that were got back from followers.
    pub(crate) echoes: Region,
    pub(crate) peers: LocalMutex<SmallVec<[Peer; FEW]>>,
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
    /// It has the right entries up to `has`, has given this node the right to write, and gets the entries from there on.
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
        participants: Participants,
        me: usize,
        options: LogOptions,
        group: GroupKey,
        log: Region,
        control: Region,
        echoes: Region,
    ) -> Core {
        Core {
            node: node.for_service(),
            path: path.into(),
            participants,
            me,
            chunk: (CHUNK_BYTES.min(buf_bytes_max(node)) / (8 * options.slot_words())).max(1) as u64,
            slots: Slots { count: options.entries as u64, words: options.slot_words() },
            group,
            log,
            control,
            echoes,
            peers: LocalMutex::default(),
            state: LocalMutex::default(),
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

    pub(crate) fn replicas(&self) -> usize {
        self.participants.count()
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
        self.control.word(applied_at(self.replicas()))
    }

    /// Whether a replica may still read or write: its node is no longer a member, or has closed the log.
    pub(crate) fn is_gone(&self, rank: usize) -> bool {
        let is_removed = matches!(
            self.node.status_of(self.participants.at(rank)),
            MemberStatus::Departed | MemberStatus::Dead | MemberStatus::Evicted
        );
        is_removed || self.control.word(closed_at(self.replicas(), rank)).load() != 0
    }

    /// The error of a log that no majority can serve any more, whatever happens.
    pub(crate) fn check_majority(&self) -> Result<(), NoMajority> {
        let present = (0..self.replicas()).filter(|rank| *rank == self.me || !self.is_gone(*rank)).count();
        let (of, needed) = (self.replicas(), self.majority());
        if present >= needed { Ok(()) } else { Err(NoMajority { of, needed, present }) }
    }

    /// Whether a replica may lead.
    pub(crate) fn is_trusted(&self, rank: usize) -> bool {
        !self.is_gone(rank)
            && (rank == self.me || self.node.status_of(self.participants.at(rank)) == MemberStatus::Member)
    }

    pub(crate) fn leader_rank(&self) -> Option<usize> {
        let rank = self.promised_to.load().checked_sub(1)? as usize;
        let leads = if rank == self.me { self.leading.load() != 0 } else { self.is_trusted(rank) };
        leads.then_some(rank)
    }

    pub(crate) fn leader(&self) -> Option<NodeId> {
        self.leader_rank().map(|rank| self.participants.at(rank))
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

/// The handles of the application: when the last is dropped, this node closes the log.
pub(crate) struct Handle {
    pub(crate) object: Object,
    pub(crate) core: Arc<Core>,
    pub(crate) begun: Word,
    pub(crate) proposer_taken: Word,
    pub(crate) reader_taken: Word,
}

impl Handle {
    pub(crate) fn new(object: Object, core: Arc<Core>) -> Handle {
        Handle { object, core, begun: Word::new(0), proposer_taken: Word::new(0), reader_taken: Word::new(0) }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.core.is_closed.store(1);
        self.core.node.fabric().wake_service();
    }
}
