//! Replicas that come back: a node that was started again takes the seat of the one before it, and gets a vote when it
//! has all entries.
//!
//! # Why a vote comes late
//!
//! The memory of the earlier node is lost: the entries that it has accepted, and the ballots that it has promised. A
//! replica that forgets either could help to decide another entry where one is decided. So the new one is without a
//! vote at first: no candidate counts it, whatever it grants.
//!
//! 1. *The others take it in* when nothing of the earlier node can land any more. From then on they count nothing that
//!    it has granted or accepted. Each then says so to the new one, with what it has promised, and which replicas are
//!    gone for it.
//! 2. *It promises.* When all others have said so that are not gone for it, a majority with votes among them, and those
//!    that are gone for it are gone for all of them, it promises the highest of their ballots, and grants no lower one.
//! 3. *A leader brings it to its entries* with a ballot that is not lower, and then says so (`BROUGHT`). From then on
//!    it has a vote, and tells the others.
//!
//! *Promises.* Let E lead with a ballot b for which it counts the earlier node D, and f others. If E is not gone for
//! the new node, it is one of those that have answered, and has counted D before that, so it had promised b. If E is
//! gone, it is gone for all that have answered: they have granted E before that. Of the 2f others f + 1 have answered,
//! and f are of E's majority: one of them is in both, and has promised b. So the new node promises b or a higher one.
//!
//! *Entries.* An entry that was decided with D's help has a ballot b, as above. The leader of step 3 has a ballot that
//! is not lower, and a majority without the new node, or with D before step 1. So it has the entry: it is that leader,
//! or has found it at a replica of both majorities. It has its entries when it has taken the new node in, so it counts
//! D for no later one.
//!
//! # Slots that it has not read
//!
//! While it catches up it holds nothing up. From its first entry on a leader uses no slot again before it has read
//! there, and neither may a later leader, which may not know of its vote yet: otherwise it would lack entries that
//! others have recycled, and could neither read on nor lead. So the leader first puts to a majority that the node
//! *reads* (`Slots::reads_at`), and then brings it its entries. Each later leader has that from its own majority, as it
//! has the entries.
//!
//! *Gone* is a replica that has closed the log, and one of which no operation can land any more.

use std::sync::Arc;
use std::time::Duration;

use farfield_core::toolkit::{ObjectDescriptor, Participants};
use farfield_core::{Error, ErrorKind, Node, Result};
use farfield_fabric::{Buf, Endpoint, LocalMutex, NodeId, Quorum, RemotePtr, Word};
use smallvec::SmallVec;

use super::LogPoller;
use super::trips::wait_for_all;
use crate::layout::{
    BASE, BROUGHT, Stamp, Standing, closed_at, founders_at, grant_at, promise_at, request_at, standing_at,
};
use crate::replica::{Core, FEW, Follower, Peer, ranks_of};

/// The nodes that have connected to this one, and have not been looked at.
pub(crate) struct Arrivals {
    nodes: LocalMutex<Vec<(NodeId, ObjectDescriptor)>>,
    count: Word,
    /// By node, for waits: whether it has connected.
    connected: Vec<(NodeId, Word)>,
}

impl Arrivals {
    pub(crate) fn new(participants: &Participants) -> Arrivals {
        let connected = participants.iter().map(|node| (node, Word::new(0))).collect();
        Arrivals { nodes: LocalMutex::default(), count: Word::new(0), connected }
    }

    pub(crate) fn push(&self, node: NodeId, theirs: &ObjectDescriptor) {
        let mut nodes = self.nodes.lock();
        nodes.push((node, theirs.clone()));
        if let Some((_, connected)) = self.connected.iter().find(|(of, _)| *of == node) {
            connected.store(1);
        }
        self.count.store(nodes.len() as u64);
    }

    /// Whether all other participants have connected, or have gone.
    pub(crate) fn are_all(&self, node: &Node) -> bool {
        self.connected.iter().all(|(of, connected)| *of == node.id() || connected.load() != 0 || node.has_gone(*of))
    }

    /// All of them, which stay.
    pub(crate) fn all(&self) -> Vec<(NodeId, ObjectDescriptor)> {
        self.nodes.lock().clone()
    }

    /// Takes them all.
    pub(crate) fn take(&self) -> Vec<(NodeId, ObjectDescriptor)> {
        let mut nodes = self.nodes.lock();
        self.count.store(0);
        core::mem::take(&mut nodes)
    }

    fn is_empty(&self) -> bool {
        self.count.load() == 0
    }
}

/// The regions of a node.
pub(crate) fn peer_of(theirs: &ObjectDescriptor) -> Option<Peer> {
    let find = |name: &str| {
        let found = theirs.regions.iter().find(|region| region.0 == name)?;
        Some(RemotePtr::from_packed(found.1))
    };
    let none = RemotePtr::from_packed(0);
    let (requests, answers) = (find("requests").unwrap_or(none), find("answers").unwrap_or(none));
    Some(Peer { log: find("log")?, control: find("control")?, requests, answers })
}

/// The nodes that have opened the log first, by rank, if this node has come back to it. It asks those that were there.
pub(crate) fn founders(
    node: &Node,
    endpoint: &Endpoint,
    participants: &Participants,
    connected: &[(NodeId, ObjectDescriptor)],
) -> Result<Option<Vec<Option<NodeId>>>> {
    let was_there = |theirs: &&(NodeId, ObjectDescriptor)| !theirs.1.participants.contains(&node.id().0);
    let there: Vec<Peer> = connected.iter().filter(was_there).filter_map(|theirs| peer_of(&theirs.1)).collect();
    if there.is_empty() {
        return Ok(None);
    }
    let ranks = ranks_of(node, participants);
    let deadline = endpoint.deadline();
    // A node that has just opened it may not have written them yet, or die.
    let mut pause = Duration::from_millis(1);
    loop {
        let (mut failed, mut gets) = (None, Vec::new());
        for peer in &there {
            match endpoint.buf::<u64>(ranks + 1) {
                Ok(into) => gets.push(endpoint.get_into(peer.control.byte_add(founders_at(ranks) as u64), into)),
                Err(error) => failed = Some(error),
            }
        }
        // One answer is enough, and a silent node does not hold up those that are asked again.
        let has_them = |found: &Buf<'_, u64>| found[0] != 0;
        let until = deadline.min(endpoint.now() + 10 * pause);
        let asked = endpoint.within(until, endpoint.quorum_where(gets, 1, has_them));
        for (_, found) in endpoint.block_on(asked).iter().flat_map(Quorum::ended) {
            match found {
                Ok(found) if has_them(found) => {
                    let nodes = found[1..].iter().map(|node| node.checked_sub(1).map(|node| NodeId(node as u16)));
                    return Ok(Some(nodes.collect()));
                }
                Ok(_) => {}
                Err(error) => failed = Some(error.clone()),
            }
        }
        let now = endpoint.now();
        if now >= deadline {
            let missing = connected.iter().filter(was_there).map(|theirs| theirs.0).collect();
            let what = "the nodes that have the log open to say who else has".into();
            let timeout = || ErrorKind::Timeout { what, waited: endpoint.timeout(), missing }.into();
            return Err(failed.map_or_else(timeout, Error::from));
        }
        endpoint.block_on(endpoint.wait_for_change(deadline.min(now + pause)));
        pause = Duration::from_millis(100).min(2 * pause);
    }
}

/// The state of the service thread.
pub(super) struct Returns {
    arrivals: Arc<Arrivals>,
    /// Nodes that wait until the one before them is out: rank, node, memory.
    waiting: Vec<(usize, NodeId, Peer)>,
    /// This replica grants nothing before it knows what the one before it may have promised.
    may_promise: bool,
    /// By rank: the node that this one has told its standing, which one, and whether that node's own was here then.
    told: SmallVec<[Option<(NodeId, Standing, bool)>; FEW]>,
}

impl Returns {
    pub(super) fn new(core: &Core, arrivals: Arc<Arrivals>) -> Returns {
        let told = (0..core.ranks()).map(|_| None).collect();
        Returns { arrivals, waiting: Vec::new(), may_promise: core.has_vote(core.me), told }
    }

    pub(super) fn may_promise(&self) -> bool {
        self.may_promise
    }
}

/// Whether nothing of a replica counts any more, and nothing of it can land.
fn is_out(core: &Core, endpoint: &Endpoint, rank: usize) -> bool {
    let Some(node) = core.node_at(rank) else { return false };
    core.is_gone(rank)
        && (core.has_closed(rank)
            // It was gone before this node has started.
            || !core.is_known(node)
            || core.node.fenced_error(endpoint, node).is_some()
            || !core.state.lock().peers[rank].is_some() && core.node.has_gone(node))
}

impl LogPoller {
    /// Takes in nodes that come back, and tells all how this one stands. Whether it has to try again.
    pub(super) fn serve_returns(&mut self, endpoint: &Endpoint) -> bool {
        let core = Arc::clone(&self.core);
        if !self.returns.arrivals.is_empty() {
            self.meet();
        }
        if !self.returns.waiting.is_empty() {
            self.take_in(endpoint);
        }
        if core.returned.load() == 0 {
            return false;
        }
        let base = core.log.word(BASE).load();
        let applied = core.applied().load();
        if base > applied {
            // The reader may have gone further meanwhile.
            let _ = core.applied().compare_exchange(applied, base);
        }
        let is_brought = || core.log.word(BROUGHT).load() != 0;
        let has_state = || core.has_state.load() != 0;
        if core.votes.load() == 0 && is_brought() && has_state() {
            tracing::info!(node = core.node.id().0, object = core.path, entries = core.decided(), "has a vote");
            core.votes.store(1);
            core.changed();
        }
        let out = |rank: &usize| *rank != core.me && is_out(&core, endpoint, *rank);
        let gone = (0..core.ranks()).filter(out).fold(0, |gone, rank| gone | 1 << rank);
        self.find_promise(gone);
        self.tell(endpoint, gone)
    }

    /// Of the nodes that have connected, those that have come back.
    fn meet(&mut self) {
        let core = &*self.core;
        for (node, theirs) in self.returns.arrivals.take() {
            let rank = core.node.rank_of(node);
            let (Some(seated), Some(peer)) = (core.node_at(rank), peer_of(&theirs)) else { continue };
            if seated < node {
                self.returns.waiting.retain(|(of, ..)| *of != rank);
                self.returns.waiting.push((rank, node, peer));
            }
        }
    }

    fn take_in(&mut self, endpoint: &Endpoint) {
        let core = Arc::clone(&self.core);
        // Its messages may be here before the news that it is a member.
        let is_ready = |(rank, node, _): &(usize, NodeId, Peer)| core.is_known(*node) && is_out(&core, endpoint, *rank);
        let (ready, waiting) = self.returns.waiting.drain(..).partition(is_ready);
        self.returns.waiting = waiting;
        let ready: Vec<(usize, NodeId, Peer)> = ready;
        for (rank, node, peer) in ready {
            // The words of the earlier node are void, and it writes no more.
            for at in [
                request_at(rank),
                grant_at(core.ranks(), rank),
                closed_at(core.ranks(), rank),
                standing_at(core.ranks(), rank),
                promise_at(core.ranks(), rank),
            ] {
                core.control.word(at).store(0);
            }
            let mut state = core.state.lock();
            core.returned.store(core.returned.load() | 1 << rank);
            core.seat(rank, node);
            (state.peers[rank], state.bases[rank]) = (peer, None);
            core.confirmed.store(core.confirmed.load() & !(1 << rank));
            if let Some(leading) = &mut state.leading {
                leading.followers[rank] = Follower::default();
            }
            drop(state);
            if core.promised_to.load() == rank as u64 + 1 {
                core.promised_to.store(0);
            }
            if self.granting.as_ref().is_some_and(|granting| granting.stamp.rank() == rank) {
                self.granting = None;
            }
            (self.peers[rank], self.may_write[rank], self.refused[rank]) = (peer, true, 0);
            self.lead.forget(rank);
            core.changed();
            tracing::info!(node = core.node.id().0, object = core.path, rank, by = node.0, "is taken over");
        }
    }

    /// The least that this replica has to promise, in place of the node before it.
    fn find_promise(&mut self, gone: u64) {
        let core = &*self.core;
        if self.returns.may_promise {
            return;
        }
        let is_other = |rank: &usize| *rank != core.me && core.node_at(*rank).is_some() && gone >> rank & 1 == 0;
        let others = || (0..core.ranks()).filter(is_other);
        // Their standings first, and then the promises that they have put before (`NRW → NRW`, `CR → CR`).
        if !others().all(|rank| core.standing(rank).knows(gone)) {
            return;
        }
        let with_vote = others().filter(|rank| core.standing(*rank).votes(*rank));
        if with_vote.count() < core.majority() {
            return;
        }
        let promises = others().map(|rank| core.control.word(promise_at(core.ranks(), rank)).load());
        let highest = Stamp(promises.max().unwrap_or(0));
        // One attempt of the same ballot is granted: its candidate may lead already.
        self.promised = self.promised.max(highest.below());
        self.returns.may_promise = true;
        tracing::debug!(node = core.node.id().0, object = core.path, term = highest.ballot(), "may promise");
    }

    /// Tells each other replica for which it matters how this one stands. Whether one could not be told.
    fn tell(&mut self, endpoint: &Endpoint, gone: u64) -> bool {
        let core = Arc::clone(&self.core);
        let standing = Standing::new(core.me, core.has_vote(core.me), gone);
        let mut is_retried = false;
        for rank in (0..core.ranks()).filter(|rank| *rank != core.me && !core.is_gone(*rank)) {
            let Some(node) = core.node_at(rank) else { continue };
            // Until it has taken this node in, it may wipe out the puts of this one. It says how it stands after that,
            // so it is told again then.
            let told = Some((node, standing, core.standing(rank).is_said()));
            if self.returns.told[rank] == told || !self.peers[rank].is_some() {
                continue;
            }
            let put = |at: usize, value| {
                let at = self.peers[rank].control.byte_add(at as u64);
                endpoint.put_untracked(at, value).detach()
            };
            // In this order (`NRW → NRW`).
            let is_told = put(promise_at(core.ranks(), core.me), self.promised.0).is_ok()
                && put(standing_at(core.ranks(), core.me), standing.0).is_ok();
            if is_told {
                self.returns.told[rank] = told;
            }
            is_retried |= !is_told;
        }
        is_retried
    }
}

/// Writes the nodes that have opened the log first, by rank, for those that come back later.
pub(crate) fn write_founders(core: &Core, founders: &[Option<NodeId>]) {
    let at = founders_at(core.ranks());
    for (rank, founder) in founders.iter().enumerate() {
        core.control.word(at + 8 + 8 * rank).store(founder.map_or(0, |node| u64::from(node.0) + 1));
    }
    // The count last (`CW → CW`): it says that the others are there.
    core.control.word(at).store(founders.iter().flatten().count() as u64);
}

/// The first entry that a replica gets which has come back and has those before `first`: that one, or the first that
/// this leader keeps. From then on this leader does not use the slots from there on again before that replica has read
/// them.
///
/// No later one, though this node's reader may be further: another replica may lack it, and this leader may go. Then
/// the next one would find the entry nowhere.
pub(super) fn begins_at(core: &Core, rank: usize, first: u64, applied: u64) -> u64 {
    let mut state = core.state.lock();
    // Not only there, but to stay there: the proposer may use the slots of as many entries as it has room for. All live
    // replicas have acknowledged those before.
    let used = state.leading.as_ref().map_or(0, |leading| leading.room.max(leading.tail));
    let kept = used.saturating_sub(core.slots.count).max(core.log.word(BASE).load());
    let from = first.max(kept);
    // Earlier ones that it has are read there, too.
    state.bases[rank] = Some(if from > first { from } else { first.min(applied) });
    from
}

/// The words of [`Slots::reads_at`](crate::layout::Slots::reads_at) that this node knows: the place of each in a log,
/// and its value.
pub(super) fn known_reads(core: &Core) -> impl Iterator<Item = (usize, u64)> {
    let ranks = if core.returned.load() == 0 { 0 } else { core.ranks() };
    let word_of = |rank| {
        let at = core.slots.reads_at(rank);
        (at, core.log.word(at).load())
    };
    (0..ranks).map(word_of).filter(|(_, node)| *node != 0)
}

/// As a candidate: adds the words of these replicas, which have granted the right, about the ones that read. For each,
/// whether it has answered.
pub(super) fn get_reads(core: &Core, peers: &[Peer], endpoint: &Endpoint, granted: &[usize]) -> Vec<bool> {
    // None has come back, or the candidate would have taken it in: before that it grants nothing, and no leader can
    // bring it anything.
    if core.returned.load() == 0 {
        return vec![true; granted.len()];
    }
    let at = core.slots.reads_at(0);
    let gets = granted.iter().filter_map(|rank| {
        let into = endpoint.buf::<u64>(core.ranks()).ok()?;
        Some(endpoint.get_into(peers[*rank].log.byte_add(at as u64), into))
    });
    let gets: Vec<_> = gets.collect();
    if gets.len() < granted.len() {
        return vec![false; granted.len()];
    }
    let answers = wait_for_all(endpoint, gets).into_iter();
    let add = |answer: Option<Buf<'_, u64>>| {
        for (rank, node) in answer.iter().flat_map(|words| words.iter().enumerate()) {
            let own = core.log.word(core.slots.reads_at(rank));
            // Of two nodes at a rank the later one.
            own.store(own.load().max(*node));
        }
        answer.is_some()
    };
    answers.map(add).collect()
}

/// As the leader: has a majority know that a replica reads which has come back. Whether it does.
pub(super) fn begins_to_read(core: &Core, peers: &[Peer], endpoint: &Endpoint, rank: usize, granted: &[usize]) -> bool {
    let Some(node) = core.node_at(rank).filter(|_| !core.reads(rank)) else { return true };
    let (at, word) = (core.slots.reads_at(rank) as u64, u64::from(node.0) + 1);
    let (mut puts, mut gets) = (Vec::new(), Vec::new());
    for peer in granted.iter().filter(|of| **of != rank).map(|of| &peers[*of]) {
        puts.push(endpoint.put_value(peer.log.byte_add(at), word));
        // Behind the put (`NRW → NRR`), as for an entry: then each later leader finds it that has the right to this
        // log.
        gets.push(endpoint.get(peer.log.byte_add(at)));
    }
    let puts = wait_for_all(endpoint, puts);
    let there = puts.iter().zip(wait_for_all(endpoint, gets)).filter(|(put, got)| put.is_some() && *got == Some(word));
    if 1 + there.count() < core.majority() {
        return false;
    }
    core.log.word(core.slots.reads_at(rank)).store(word);
    true
}
