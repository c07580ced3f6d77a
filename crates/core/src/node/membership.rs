//! The membership of the session: the protocol as a state machine, without time, threads or messages of its own. The
//! page `docs/membership.md` describes it; the service thread drives it.
//!
//! An epoch is a set of members. The members of one epoch decide the next by consensus: one instance of Paxos (the
//! single-decree synod; Lamport, "The Part-Time Parliament", TOCS 1998) for each epoch, among the members of the one
//! before. Each member first evicts the nodes that the decision removes, and then reports it. The state of a removed
//! node is recovered when all members have reported.
//!
//! A restarted node is a new node. Its number gives its place and how many nodes there were at that place before. The
//! members decide to admit it by the same protocol, after its predecessor has been removed.

mod paxos;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use farfield_fabric::{DeathRule, Instant, NodeId, Rng};
use rand::RngExt;
use serde::{Deserialize, Serialize};

use self::paxos::Proposal;
use super::service::MemberStatus;

/// The delay between two nodes' proposals for the same suspicion. The first node is rarely disturbed.
const STAGGER: Duration = Duration::from_millis(5);
/// A proposal without a result is repeated after this time and a random addition of up to as much. The time doubles
/// with each proposal, up to `RETRY_DOUBLED_MAX` times. A proposal overtakes the one before it, and on busy machines
/// its answers may take longer than the first delay.
const RETRY: Duration = Duration::from_millis(20);
const RETRY_DOUBLED_MAX: u32 = 6;
/// After this time without a quorum in reach, a node gives up: the others may have continued without it.
pub(super) const ISOLATED_MAX: Duration = Duration::from_millis(500);

/// Contains its leader, so no two nodes lead the same ballot.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug, Serialize, Deserialize)]
pub(super) struct Ballot {
    round: u32,
    leader: u16,
}

/// A decision: the members of the next epoch, and the nodes that have departed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct View {
    /// In ascending order if the view is voted on.
    members: Vec<u16>,
    /// The removed nodes that have left on request. No state of theirs is recovered.
    departed: Vec<u16>,
}

/// The messages between members. `epoch` is the epoch that is to be decided, or that was.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Message {
    /// To all: take part in no lower ballot, and report the view that you have accepted.
    Prepare { epoch: u64, ballot: Ballot },
    /// The answer: the sender takes part in no lower ballot.
    Promise { epoch: u64, ballot: Ballot, accepted: Option<(Ballot, View)> },
    /// To all: accept this view.
    Accept { epoch: u64, ballot: Ballot, view: View },
    /// The answer: the sender has accepted it.
    Accepted { epoch: u64, ballot: Ballot },
    /// The refusal: the sender takes part in a higher ballot.
    Overtaken { epoch: u64, ballot: Ballot },
    /// A quorum has accepted this view.
    Decided { epoch: u64, view: View },
    /// The sender has evicted all nodes that were removed up to this epoch.
    Evicted { epoch: u64 },
    /// The sender has fenced itself and takes no further part.
    Fenced,
    /// To an admitted node: it is a member from this epoch on. It carries the members, the removed nodes, and the
    /// epochs up to which each member has evicted the removed ones.
    Welcome { epoch: u64, members: BTreeSet<u16>, removed: BTreeMap<u16, Removed>, evicted_until: BTreeMap<u16, u64> },
}

/// An action that the machine requests.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Action {
    Send(NodeId, Message),
    /// The others continue without this node.
    Fence,
}

/// Why a node is no longer a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Removed {
    epoch: u64,
    departed: bool,
}

/// The state of one node.
#[derive(Clone, Debug)]
pub(super) struct Membership {
    me: u16,
    /// How many nodes the session has at a time. Numbers that differ by a multiple of it belong to the same place.
    places: u16,
    rule: DeathRule,
    epoch: u64,
    members: BTreeSet<u16>,
    /// Nodes that have started and are not yet members.
    arriving: BTreeSet<u16>,
    /// Decisions that have arrived before those of earlier epochs.
    early: BTreeMap<u64, View>,
    /// The decisions by epoch, as far as this node has taken part.
    decided: BTreeMap<u64, View>,
    removed: BTreeMap<u16, Removed>,
    suspects: BTreeSet<u16>,
    /// The suspects that have fenced themselves.
    fenced: BTreeSet<u16>,
    /// Members that want to leave, or have left.
    departing: BTreeSet<u16>,
    /// The highest ballot that this node takes part in.
    promised: Ballot,
    // State of the instance that decides the next epoch:
    accepted: Option<(Ballot, View)>,
    proposal: Option<Proposal>,
    propose_at: Option<Instant>,
    /// The number of this node's proposals since the last decision or suspicion.
    proposals: u32,
    /// The nodes that this one still has to evict; and the epoch up to which each member has evicted the removed ones.
    to_evict: BTreeSet<u16>,
    evicted_until: BTreeMap<u16, u64>,
    isolated_since: Option<Instant>,
    is_fenced: bool,
    rng: Rng,
    actions: Vec<Action>,
    has_changed: bool,
    /// The published changes of statuses that the pollers have not been told of.
    pub(super) changed: Vec<(NodeId, MemberStatus)>,
}

/// A majority; half of an even number, too, if it contains the lowest member. Any two quorums have a member in common.
fn is_quorum(members: &BTreeSet<u16>, some: impl Iterator<Item = u16>) -> bool {
    let some: BTreeSet<u16> = some.filter(|node| members.contains(node)).collect();
    let has_lowest = members.first().is_some_and(|lowest| some.contains(lowest));
    some.len() * 2 > members.len() || (some.len() * 2 == members.len() && has_lowest)
}

impl Membership {
    /// A session begins with the first node of each place. Where the members vote, they admit a restarted node and send
    /// it the members. Until then it knows of no member.
    pub(super) fn new(me: NodeId, places: u16, rule: DeathRule, rng: Rng) -> Membership {
        let is_told = me.0 >= places && rule == DeathRule::Majority;
        let firsts = (0..places).filter(|_| !is_told);
        Membership {
            me: me.0,
            places,
            rule,
            epoch: 0,
            members: firsts.collect(),
            arriving: BTreeSet::new(),
            early: BTreeMap::new(),
            removed: BTreeMap::new(),
            decided: BTreeMap::new(),
            suspects: BTreeSet::new(),
            fenced: BTreeSet::new(),
            departing: BTreeSet::new(),
            promised: Ballot::default(),
            accepted: None,
            proposal: None,
            propose_at: None,
            proposals: 0,
            to_evict: BTreeSet::new(),
            evicted_until: BTreeMap::new(),
            isolated_since: None,
            is_fenced: false,
            rng,
            actions: Vec::new(),
            has_changed: false,
            changed: Vec::new(),
        }
    }

    /// Sets the first state of a node that starts in a session with restarted nodes: the removed nodes and the live
    /// ones. Where the system reports deaths, the live nodes are the members.
    pub(super) fn finds(&mut self, gone: &[u16], living: &[NodeId]) {
        self.has_changed = true;
        if self.rule == DeathRule::System {
            self.members.retain(|node| !gone.contains(node));
            self.members.extend(living.iter().map(|node| node.0).chain([self.me]));
            self.removed.extend(gone.iter().map(|node| (*node, Removed { epoch: 0, departed: true })));
        }
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    pub(super) fn members(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.members.iter().map(|node| NodeId(*node))
    }

    /// `None` for a node that was never a member.
    pub(super) fn status_of(&self, node: NodeId) -> Option<MemberStatus> {
        Some(match self.removed.get(&node.0) {
            None if !self.members.contains(&node.0) => return None,
            None if self.suspects.contains(&node.0) => MemberStatus::Suspected,
            None => MemberStatus::Member,
            Some(removed) if removed.departed => MemberStatus::Departed,
            Some(removed) if self.is_evicted(node.0, removed.epoch) => MemberStatus::Evicted,
            Some(_) => MemberStatus::Dead,
        })
    }

    /// Whether no operation of a removed node can land anywhere any more.
    fn is_evicted(&self, node: u16, removed: u64) -> bool {
        match self.rule {
            // A node that the system calls dead no longer writes anywhere, once one node has made sure of it.
            DeathRule::System => !self.to_evict.contains(&node),
            // Members removed since then are evicted themselves, or will be.
            DeathRule::Majority => {
                !self.is_fenced && self.members.iter().all(|member| self.has_evicted_until(*member) >= removed)
            }
        }
    }

    fn has_evicted_until(&self, member: u16) -> u64 {
        self.evicted_until.get(&member).copied().unwrap_or(0)
    }

    /// Whether this node is a member: admitted and not removed.
    pub(super) fn is_member(&self) -> bool {
        self.members.contains(&self.me)
    }

    /// Whether this node is no longer a member because it has left.
    fn has_departed(&self) -> bool {
        self.removed.get(&self.me).is_some_and(|removed| removed.departed)
    }

    pub(super) fn is_fenced(&self) -> bool {
        self.is_fenced
    }

    /// The nodes that this node has to evict. The caller confirms each with [`Membership::has_evicted`].
    pub(super) fn to_evict(&self) -> Vec<NodeId> {
        self.to_evict.iter().map(|node| NodeId(*node)).collect()
    }

    /// Whether anything has changed since the last call.
    pub(super) fn has_changed(&mut self) -> bool {
        std::mem::take(&mut self.has_changed)
    }

    /// Whether the machine only waits for events.
    pub(super) fn is_calm(&self) -> bool {
        self.actions.is_empty() && self.to_evict.is_empty() && !self.has_changed && self.next_tick().is_none()
    }

    /// Takes the requested actions.
    pub(super) fn take_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    // ---- events ----------------------------------------------------------------------------------------------------

    /// The system reports that a node is dead ([`DeathRule::System`]).
    pub(super) fn died(&mut self, node: NodeId) {
        self.arriving.remove(&node.0);
        if self.members.contains(&node.0) {
            self.adopt(View { members: self.members_without(node), departed: Vec::new() });
        }
    }

    /// A node has started. The first nodes of the places are members before they start.
    pub(super) fn came(&mut self, node: NodeId) {
        // A first node may start after decisions that could not be sent to it then.
        if self.rule == DeathRule::Majority && node.0 < self.places && self.is_member() {
            let decided =
                self.decided.iter().map(|(epoch, view)| Message::Decided { epoch: *epoch, view: view.clone() });
            self.actions.extend(decided.map(|message| Action::Send(node, message)));
        }
        // The others have already admitted it. The welcome that this node sent then did not reach it.
        if node.0 >= self.places && self.members.contains(&node.0) {
            self.welcome(node.0);
        }
        let is_new = node.0 >= self.places && !self.members.contains(&node.0) && !self.removed.contains_key(&node.0);
        if is_new && self.arriving.insert(node.0) {
            self.has_changed = true;
            self.let_in();
        }
    }

    /// Without votes, a restarted node becomes a member as soon as its predecessor is removed.
    fn let_in(&mut self) {
        if self.rule == DeathRule::System
            && let Some(node) = self.arriving.iter().find(|node| !self.is_taken(**node, &self.members)).copied()
        {
            let members = self.members.iter().copied().chain([node]).collect();
            self.adopt(View { members, departed: Vec::new() });
        }
    }

    /// Whether another node of the same place is among `members`.
    fn is_taken(&self, node: u16, members: &BTreeSet<u16>) -> bool {
        members.iter().any(|member| member % self.places == node % self.places)
    }

    fn members_without(&self, node: NodeId) -> Vec<u16> {
        self.members.iter().copied().filter(|member| *member != node.0).collect()
    }

    /// A node has left gracefully.
    pub(super) fn left(&mut self, node: NodeId) {
        self.arriving.remove(&node.0);
        if !self.members.contains(&node.0) {
            return;
        }
        match self.rule {
            DeathRule::System => {
                self.adopt(View { members: self.members_without(node), departed: vec![node.0] });
            }
            // Either the others agreed before it left, and the decision is in flight; or the node could not wait for
            // that.
            DeathRule::Majority => {
                self.departing.insert(node.0);
            }
        }
    }

    /// A node has been silent for too long.
    pub(super) fn suspect(&mut self, node: NodeId) {
        // A node that is not yet admitted does not know the nodes that concern it.
        let concerns = self.members.contains(&node.0) || self.arriving.contains(&node.0) || self.members.is_empty();
        if concerns && self.suspects.insert(node.0) {
            self.has_changed = true;
            // An earlier proposal may wait for this node's answer.
            (self.proposals, self.propose_at) = (0, None);
        }
    }

    /// A suspected node has sent something again. If the others have begun to decide without it, they may still do so.
    pub(super) fn trust(&mut self, node: NodeId) {
        self.has_changed |= !self.fenced.contains(&node.0) && self.suspects.remove(&node.0);
    }

    /// This node wants to leave. It has left when it is no longer a member.
    pub(super) fn depart(&mut self, now: Instant) {
        self.departing.insert(self.me);
        self.propose_at = Some(now);
    }

    /// This node has closed everything that it had to close to a removed node.
    pub(super) fn has_evicted(&mut self, node: NodeId) {
        self.has_changed |= self.to_evict.remove(&node.0);
        self.report_evicted();
    }

    fn report_evicted(&mut self) {
        if self.to_evict.is_empty() && self.has_evicted_until(self.me) < self.epoch {
            self.evicted_until.insert(self.me, self.epoch);
            if self.rule == DeathRule::Majority {
                self.tell_others(Message::Evicted { epoch: self.epoch });
            }
        }
    }

    /// The time of the next [`Membership::tick`], if one is needed: while members are suspected, want to leave, or are
    /// to be admitted.
    pub(super) fn next_tick(&self) -> Option<Instant> {
        if self.rule == DeathRule::System || self.is_fenced || !self.is_member() || !self.wants_a_change() {
            return None;
        }
        let at =
            if self.is_isolated() { self.isolated_since.map(|since| since + ISOLATED_MAX) } else { self.propose_at };
        Some(at.unwrap_or_default())
    }

    fn wants_a_change(&self) -> bool {
        !self.suspects.is_disjoint(&self.members)
            || !self.departing.is_disjoint(&self.members)
            || (!self.arriving.is_empty() && !self.wanted().members.iter().eq(&self.members))
    }

    /// Proposes, gives up, or does nothing, depending on the time.
    pub(super) fn tick(&mut self, now: Instant) {
        if self.next_tick().is_none() {
            (self.isolated_since, self.propose_at, self.proposals) = (None, None, 0);
            return;
        }
        // A node without a quorum decides nothing, and would continue with too few members.
        if self.is_isolated() {
            if now - *self.isolated_since.get_or_insert(now) >= ISOLATED_MAX {
                self.fence();
            }
            return;
        }
        self.isolated_since = None;
        let at = match self.propose_at {
            Some(at) => at,
            None => now + STAGGER * self.rank(),
        };
        if now < at {
            self.propose_at = Some(at);
            return;
        }
        let retry = RETRY * (1 << self.proposals.min(RETRY_DOUBLED_MAX));
        self.proposals += 1;
        self.propose_at = Some(now + retry + retry.mul_f64(self.rng.random_range(0.0..1.0)));
        let view = self.wanted();
        self.propose(view);
    }

    /// How many members propose before this one.
    fn rank(&self) -> u32 {
        self.members.iter().take_while(|node| **node != self.me).filter(|node| !self.suspects.contains(node)).count()
            as u32
    }

    fn is_isolated(&self) -> bool {
        // A departed node no longer votes. This node votes until it has left.
        let votes = |node: &u16| !self.suspects.contains(node) && (*node == self.me || !self.departing.contains(node));
        !is_quorum(&self.members, self.members.iter().copied().filter(votes))
    }

    /// The view that this node would propose.
    fn wanted(&self) -> View {
        let goes = |node: &u16| self.departing.contains(node) || self.suspects.contains(node);
        let departed: Vec<u16> = self.departing.intersection(&self.members).copied().collect();
        let mut members: BTreeSet<u16> = self.members.iter().copied().filter(|node| !goes(node)).collect();
        for node in self.arriving.iter().filter(|node| !goes(node)) {
            if !self.is_taken(*node, &members) {
                members.insert(*node);
            }
        }
        View { members: members.into_iter().collect(), departed }
    }

    fn fence(&mut self) {
        if !std::mem::replace(&mut self.is_fenced, true) {
            self.has_changed = true;
            self.actions.push(Action::Fence);
            // Otherwise the others would count on its vote.
            self.tell_others(Message::Fenced);
        }
    }

    // ---- decisions -------------------------------------------------------------------------------------------------

    fn tell_others(&mut self, message: Message) {
        for node in self.members.iter().filter(|node| **node != self.me) {
            self.actions.push(Action::Send(NodeId(*node), message.clone()));
        }
    }

    /// Sends to all members, including this node.
    fn tell_all(&mut self, message: Message) {
        self.tell_others(message.clone());
        self.receive(NodeId(self.me), message);
    }

    fn reply(&mut self, to: NodeId, message: Message) {
        if to.0 == self.me {
            self.receive(to, message);
        } else {
            self.actions.push(Action::Send(to, message));
        }
    }

    fn adopt(&mut self, view: View) {
        (self.epoch, self.has_changed) = (self.epoch + 1, true);
        if self.rule == DeathRule::Majority {
            self.decided.insert(self.epoch, view.clone());
        }
        let members: BTreeSet<u16> = view.members.iter().copied().collect();
        let before = std::mem::replace(&mut self.members, members);
        let newcomers: Vec<u16> = self.members.difference(&before).copied().collect();
        for node in before {
            if self.members.contains(&node) {
                continue;
            }
            let departed = view.departed.contains(&node);
            self.removed.insert(node, Removed { epoch: self.epoch, departed });
            if !departed && node != self.me {
                self.to_evict.insert(node);
            }
        }
        // A joining node was open to no node until now, and learns of the removed nodes before any node learns of it.
        newcomers.iter().for_each(|node| self.is_evicted_by(*node, self.epoch));
        self.forget_strangers();
        // Ballots keep increasing: a message from a ballot of an earlier epoch never counts for this one.
        (self.accepted, self.proposal, self.propose_at, self.proposals) = (None, None, None, 0);
        if !self.members.contains(&self.me) && !self.has_departed() {
            self.fence();
        }
        self.report_evicted();
        // The sender of the decision may not get to send it to them.
        newcomers.into_iter().for_each(|node| self.welcome(node));
        self.let_in();
    }

    fn welcome(&mut self, node: u16) {
        if self.rule == DeathRule::Majority && self.is_member() && node != self.me {
            let (members, removed) = (self.members.clone(), self.removed.clone());
            let evicted_until = self.evicted_until.clone();
            let welcome = Message::Welcome { epoch: self.epoch, members, removed, evicted_until };
            self.actions.push(Action::Send(NodeId(node), welcome));
        }
    }

    /// Forgets the arrival of nodes that are now members or removed, and the suspicion of nodes that are neither
    /// members nor arriving.
    fn forget_strangers(&mut self) {
        let Membership { members, removed, arriving, suspects, .. } = self;
        arriving.retain(|node| !members.contains(node) && !removed.contains_key(node));
        suspects.retain(|node| members.contains(node) || arriving.contains(node));
    }
}

#[cfg(test)]
mod tests;
