//! Who belongs to the session: the protocol, as a machine without time, threads or messages of its own. The page
//! `docs/membership.md` describes it; the service thread drives it.
//!
//! An epoch is a set of members. The members of one epoch decide the next by consensus: one instance of Paxos (the
//! single-decree synod; Lamport, "The Part-Time Parliament", TOCS 1998) for each epoch, among the members of the one
//! before. Each member first shuts out whoever the decision removes, and then says so; what the removed have left behind is
//! recovered when all members have said it.
//!
//! A node that returns is another node, whose number says which life of which place it is. The members decide that it
//! belongs to them as they decide that others do not, once the life before it does not any more.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use farfield_fabric::{DeathRule, Instant, NodeId, Rng};
use rand::RngExt;
use serde::{Deserialize, Serialize};

use super::service::Standing;
use crate::mutants::{self, Mutant};

/// How much later each next node proposes what all suspect: the first one is rarely disturbed.
const STAGGER: Duration = Duration::from_millis(5);
/// A proposal that has come to nothing is made again after so long, and up to as much more: twice as long each time, up to
/// so many times, since a proposal overtakes the one before it, and on busy machines its answers may take longer than that.
const RETRY: Duration = Duration::from_millis(20);
const RETRY_DOUBLED_MAX: u32 = 6;
/// A node that has been out of reach of a quorum for so long gives up: the others may have gone on without it.
pub(super) const ISOLATED_MAX: Duration = Duration::from_millis(500);

/// Who leads a ballot is part of it, so no two nodes lead the same.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug, Serialize, Deserialize)]
pub(super) struct Ballot {
    round: u32,
    leader: u16,
}

/// What is decided: who goes on, and who has come.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct View {
    /// In order.
    members: Vec<u16>,
    /// Of those that no longer are, the ones that wanted to go. Nobody recovers anything of theirs.
    departed: Vec<u16>,
}

/// What members say to each other. `epoch` is the one that is to be decided, or that was.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Message {
    /// To all: take part in no lower ballot, and tell what you have accepted.
    Prepare { epoch: u64, ballot: Ballot },
    /// It will not.
    Promise { epoch: u64, ballot: Ballot, accepted: Option<(Ballot, View)> },
    /// To all: accept this.
    Accept { epoch: u64, ballot: Ballot, view: View },
    /// It has.
    Accepted { epoch: u64, ballot: Ballot },
    /// It takes part in a higher ballot.
    Overtaken { epoch: u64, ballot: Ballot },
    /// A quorum has accepted this.
    Decided { epoch: u64, view: View },
    /// The sender has shut out all that were removed up to this epoch.
    ShutOut { epoch: u64 },
    /// The sender is fenced: it takes part in nothing any more.
    Fenced,
    /// To who has come: it is a member from this epoch on. These are the members, those that are none any more, and the
    /// epochs up to which each has shut those out.
    Welcome { epoch: u64, members: BTreeSet<u16>, removed: BTreeMap<u16, Removed>, shut_out: BTreeMap<u16, u64> },
}

/// What the machine wants done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Action {
    Send(NodeId, Message),
    /// The others go on without this node.
    Fence,
}

/// A proposal of this node.
#[derive(Clone, Debug)]
struct Proposal {
    ballot: Ballot,
    view: View,
    promised: BTreeSet<u16>,
    /// What was accepted in the highest of the ballots that were told of.
    accepted: Option<(Ballot, View)>,
    /// Those that have accepted it, once it was put to the vote.
    voted: Option<BTreeSet<u16>>,
}

/// Why a node is no member any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Removed {
    epoch: u64,
    departed: bool,
}

/// What one node knows.
#[derive(Clone, Debug)]
pub(super) struct Membership {
    me: u16,
    /// How many nodes the session has at a time: those that differ by a multiple of it are lives of the same place.
    places: u16,
    rule: DeathRule,
    epoch: u64,
    members: BTreeSet<u16>,
    /// Those that have come and are no members yet.
    arriving: BTreeSet<u16>,
    /// Decisions that have come before their turn.
    early: BTreeMap<u64, View>,
    /// What was decided, by epochs, as far as this node has taken part.
    decided: BTreeMap<u64, View>,
    removed: BTreeMap<u16, Removed>,
    suspects: BTreeSet<u16>,
    /// Of those, the ones that are fenced.
    fenced: BTreeSet<u16>,
    /// Members that want to go, or have gone.
    departing: BTreeSet<u16>,
    /// The highest ballot that it takes part in.
    promised: Ballot,
    // Of the instance that decides the next epoch:
    accepted: Option<(Ballot, View)>,
    proposal: Option<Proposal>,
    propose_at: Option<Instant>,
    /// Of this node, since the last decision or suspicion.
    proposals: u32,
    /// Nodes that this one still has to shut out; and up to which epoch each member has.
    to_shut_out: BTreeSet<u16>,
    shut_out: BTreeMap<u16, u64>,
    isolated_since: Option<Instant>,
    is_fenced: bool,
    rng: Rng,
    actions: Vec<Action>,
    has_changed: bool,
}

/// A majority; of an even number, also the half with the lowest member. Any two have a member in common.
fn is_quorum(members: &BTreeSet<u16>, some: impl Iterator<Item = u16>) -> bool {
    let some: BTreeSet<u16> = some.filter(|node| members.contains(node)).collect();
    let lowest = members.first().is_some_and(|lowest| some.contains(lowest));
    let has_lowest = lowest || mutants::is_on(Mutant::MembershipAnyHalf);
    some.len() * 2 > members.len() || (some.len() * 2 == members.len() && has_lowest)
}

impl Membership {
    /// A session begins with the first life of each place. Where nodes vote, the members let a later one in, and tell it who
    /// they are; until then it knows of none.
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
            to_shut_out: BTreeSet::new(),
            shut_out: BTreeMap::new(),
            isolated_since: None,
            is_fenced: false,
            rng,
            actions: Vec::new(),
            has_changed: false,
        }
    }

    /// What a node finds when it starts where nodes return: who is gone, and who lives. Where the system says who is dead,
    /// these are the members.
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

    /// None of a node that was never a member.
    pub(super) fn standing_of(&self, node: NodeId) -> Option<Standing> {
        let is_expected = node.0 < self.places || self.members.contains(&node.0);
        Some(match self.removed.get(&node.0) {
            None if !is_expected => return None,
            None if self.suspects.contains(&node.0) => Standing::Suspected,
            None => Standing::Member,
            Some(removed) if removed.departed => Standing::Departed,
            Some(removed) if self.is_shut_out(node.0, removed.epoch) => Standing::ShutOut,
            Some(_) => Standing::Dead,
        })
    }

    /// Whether nothing of a node that was removed can land anywhere any more.
    fn is_shut_out(&self, node: u16, removed: u64) -> bool {
        if mutants::is_on(Mutant::MembershipOwnShutOut) {
            return self.has_shut_out_until(self.me) >= removed;
        }
        match self.rule {
            // What the system calls dead writes nowhere any more, once one node has made sure of it.
            DeathRule::System => !self.to_shut_out.contains(&node),
            // Those removed since are shut out themselves, or will be.
            DeathRule::Majority => {
                !self.is_fenced && self.members.iter().all(|member| self.has_shut_out_until(*member) >= removed)
            }
        }
    }

    fn has_shut_out_until(&self, member: u16) -> u64 {
        self.shut_out.get(&member).copied().unwrap_or(0)
    }

    /// Whether this node is a member: it has been let in, and is not removed.
    pub(super) fn is_member(&self) -> bool {
        self.members.contains(&self.me)
    }

    /// Whether this node is no member any more, because it wanted to go.
    fn has_departed(&self) -> bool {
        self.removed.get(&self.me).is_some_and(|removed| removed.departed)
    }

    pub(super) fn is_fenced(&self) -> bool {
        self.is_fenced
    }

    /// Whom this node has to shut out; it says so with [`Membership::has_shut_out`].
    pub(super) fn to_shut_out(&self) -> Vec<NodeId> {
        self.to_shut_out.iter().map(|node| NodeId(*node)).collect()
    }

    /// Whether anything is different from when this was asked last.
    pub(super) fn has_changed(&mut self) -> bool {
        std::mem::take(&mut self.has_changed)
    }

    /// Whether there is nothing to do but to wait for what happens.
    pub(super) fn is_calm(&self) -> bool {
        self.actions.is_empty() && self.to_shut_out.is_empty() && !self.has_changed && self.next_tick().is_none()
    }

    /// What is to be done now.
    pub(super) fn take_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    // ---- what happens ------------------------------------------------------------------------------------------------

    /// The system says that a node is dead ([`DeathRule::System`]).
    pub(super) fn died(&mut self, node: NodeId) {
        self.arriving.remove(&node.0);
        if self.members.contains(&node.0) {
            self.adopt(View { members: self.members_without(node), departed: Vec::new() });
        }
    }

    /// A node has come. The first lives are members before they do.
    pub(super) fn came(&mut self, node: NodeId) {
        // A first life may come when much is decided already, of which nobody could tell it.
        if self.rule == DeathRule::Majority && node.0 < self.places && self.is_member() {
            let decided =
                self.decided.iter().map(|(epoch, view)| Message::Decided { epoch: *epoch, view: view.clone() });
            self.actions.extend(decided.map(|message| Action::Send(node, message)));
        }
        // The others have let it in already; what this node has told it then did not reach it.
        if node.0 >= self.places && self.members.contains(&node.0) {
            self.welcome(node.0);
        }
        let is_new = node.0 >= self.places && !self.members.contains(&node.0) && !self.removed.contains_key(&node.0);
        if is_new && self.arriving.insert(node.0) {
            self.has_changed = true;
            self.let_in();
        }
    }

    /// Where nothing is voted on, who comes is a member when the life before it is not any more.
    fn let_in(&mut self) {
        if self.rule == DeathRule::System
            && let Some(node) = self.arriving.iter().find(|node| !self.is_taken(**node, &self.members)).copied()
        {
            let members = self.members.iter().copied().chain([node]).collect();
            self.adopt(View { members, departed: Vec::new() });
        }
    }

    /// Whether another life of a node's place is among them.
    fn is_taken(&self, node: u16, members: &BTreeSet<u16>) -> bool {
        let is_same = |member: &u16| member % self.places == node % self.places;
        members.iter().any(is_same) && !mutants::is_on(Mutant::MembershipLetInEarly)
    }

    fn members_without(&self, node: NodeId) -> Vec<u16> {
        self.members.iter().copied().filter(|member| *member != node.0).collect()
    }

    /// A node has left in good order.
    pub(super) fn left(&mut self, node: NodeId) {
        self.arriving.remove(&node.0);
        if !self.members.contains(&node.0) {
            return;
        }
        match self.rule {
            DeathRule::System => {
                self.adopt(View { members: self.members_without(node), departed: vec![node.0] });
            }
            // The others have agreed before it went, and the decision is on its way; or it could not wait for that.
            DeathRule::Majority => {
                self.departing.insert(node.0);
            }
        }
    }

    /// Nothing was heard of a node for long.
    pub(super) fn suspect(&mut self, node: NodeId) {
        // Who is not let in yet does not know whom it concerns.
        let concerns = self.members.contains(&node.0) || self.arriving.contains(&node.0) || self.members.is_empty();
        if concerns && self.suspects.insert(node.0) {
            self.has_changed = true;
            // What was proposed before may wait for this one.
            (self.proposals, self.propose_at) = (0, None);
        }
    }

    /// It was heard of again. If the others have begun to decide without it, they may still.
    pub(super) fn trust(&mut self, node: NodeId) {
        self.has_changed |= !self.fenced.contains(&node.0) && self.suspects.remove(&node.0);
    }

    /// This node wants to go; it has when it is no member any more.
    pub(super) fn depart(&mut self, now: Instant) {
        self.departing.insert(self.me);
        self.propose_at = Some(now);
    }

    /// Everything that this node had to shut a node out of is closed to it.
    pub(super) fn has_shut_out(&mut self, node: NodeId) {
        self.has_changed |= self.to_shut_out.remove(&node.0);
        self.report_shut_out();
    }

    fn report_shut_out(&mut self) {
        if self.to_shut_out.is_empty() && self.has_shut_out_until(self.me) < self.epoch {
            self.shut_out.insert(self.me, self.epoch);
            if self.rule == DeathRule::Majority {
                self.tell_others(Message::ShutOut { epoch: self.epoch });
            }
        }
    }

    /// When [`Membership::tick`] has something to do, if ever: while members are suspected, want to go, or are to be let in.
    pub(super) fn next_tick(&self) -> Option<Instant> {
        if self.rule == DeathRule::System || self.is_fenced || !self.is_member() || !self.wants_a_change() {
            return None;
        }
        let at = match self.is_isolated() {
            true => self.isolated_since.map(|since| since + ISOLATED_MAX),
            false => self.propose_at,
        };
        Some(at.unwrap_or_default())
    }

    fn wants_a_change(&self) -> bool {
        !self.suspects.is_disjoint(&self.members)
            || !self.departing.is_disjoint(&self.members)
            || (!self.arriving.is_empty() && !self.wanted().members.iter().eq(&self.members))
    }

    /// Proposes, gives up, or does nothing, as the time demands.
    pub(super) fn tick(&mut self, now: Instant) {
        if self.next_tick().is_none() {
            (self.isolated_since, self.propose_at, self.proposals) = (None, None, 0);
            return;
        }
        // Who hears of no quorum decides nothing, and would go on with too few.
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

    /// How many members come before this one in proposing.
    fn rank(&self) -> u32 {
        self.members.iter().take_while(|node| **node != self.me).filter(|node| !self.suspects.contains(node)).count()
            as u32
    }

    fn is_isolated(&self) -> bool {
        // Who has left has no voice any more; this node has, until it goes.
        let votes = |node: &u16| !self.suspects.contains(node) && (*node == self.me || !self.departing.contains(node));
        !is_quorum(&self.members, self.members.iter().copied().filter(votes))
    }

    /// What this node would decide.
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
            // Or the others would count on its voice.
            if !mutants::is_on(Mutant::MembershipFencedInSilence) {
                self.tell_others(Message::Fenced);
            }
        }
    }

    // ---- deciding ----------------------------------------------------------------------------------------------------

    fn tell_others(&mut self, message: Message) {
        for node in self.members.iter().filter(|node| **node != self.me) {
            self.actions.push(Action::Send(NodeId(*node), message.clone()));
        }
    }

    /// To all members, this node among them.
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

    fn propose(&mut self, view: View) {
        let ballot = Ballot { round: self.promised.round + 1, leader: self.me };
        let (promised, epoch) = (BTreeSet::new(), self.epoch + 1);
        self.proposal = Some(Proposal { ballot, view, promised, accepted: None, voted: None });
        self.tell_all(Message::Prepare { epoch, ballot });
    }

    /// A message of another node, or of this one to itself.
    pub(super) fn receive(&mut self, from: NodeId, message: Message) {
        let epoch = match message {
            Message::Prepare { epoch, .. }
            | Message::Promise { epoch, .. }
            | Message::Accept { epoch, .. }
            | Message::Accepted { epoch, .. }
            | Message::Overtaken { epoch, .. } => epoch,
            Message::Decided { epoch, view } => return self.learn(epoch, view),
            Message::Fenced => {
                self.fenced.insert(from.0);
                self.suspect(from);
                return;
            }
            Message::ShutOut { epoch } => return self.is_shut_out_by(from.0, epoch),
            Message::Welcome { epoch, members, removed, shut_out } => {
                return self.enter(epoch, members, removed, shut_out);
            }
        };
        // Of another instance: decided here, or not begun. (Whoever is behind is told by all that are not.)
        if epoch != self.epoch + 1 || self.is_fenced || !self.is_member() {
            return;
        }
        match message {
            Message::Prepare { ballot, .. } if ballot > self.promised => {
                self.promised = ballot;
                let accepted = self.accepted.clone();
                self.reply(from, Message::Promise { epoch, ballot, accepted });
            }
            // Even its own removal: what others have accepted must find a quorum among those that are left.
            Message::Accept { ballot, view, .. } if ballot >= self.promised => {
                self.promised = ballot;
                self.accepted = Some((ballot, view));
                self.reply(from, Message::Accepted { epoch, ballot });
            }
            Message::Prepare { .. } | Message::Accept { .. } => {
                self.reply(from, Message::Overtaken { epoch, ballot: self.promised });
            }
            Message::Promise { ballot, accepted, .. } => self.promised_by(from, ballot, accepted),
            Message::Accepted { ballot, .. } => self.accepted_by(from, ballot),
            Message::Overtaken { ballot, .. } => {
                // The next proposal of this node is in a higher one.
                self.promised = self.promised.max(ballot);
                self.proposal = None;
            }
            Message::Decided { .. } | Message::ShutOut { .. } | Message::Fenced | Message::Welcome { .. } => {}
        }
    }

    fn is_shut_out_by(&mut self, member: u16, epoch: u64) {
        let until = self.shut_out.entry(member).or_default();
        *until = epoch.max(*until);
        self.has_changed = true;
    }

    /// The members have let this node in. It has told nobody anything yet: it is open to none of those that were removed,
    /// and shuts them out before it tells.
    fn enter(
        &mut self,
        epoch: u64,
        members: BTreeSet<u16>,
        removed: BTreeMap<u16, Removed>,
        shut_out: BTreeMap<u16, u64>,
    ) {
        if self.is_member() || self.removed.contains_key(&self.me) || !members.contains(&self.me) {
            return; // told so before
        }
        (self.epoch, self.has_changed) = (epoch, true);
        (self.members, self.removed) = (members, removed);
        shut_out.into_iter().for_each(|(member, epoch)| self.is_shut_out_by(member, epoch));
        let dead = self.removed.iter().filter(|(_, removed)| !removed.departed);
        self.to_shut_out = dead.map(|(node, _)| *node).collect();
        self.forget_strangers();
        self.report_shut_out();
        self.learn_early();
    }

    fn promised_by(&mut self, from: NodeId, ballot: Ballot, accepted: Option<(Ballot, View)>) {
        let Some(proposal) = self.proposal.as_mut().filter(|proposal| proposal.ballot == ballot) else { return };
        proposal.promised.insert(from.0);
        // In order of their ballots, which comes first in the pair; nothing is less than something.
        if accepted.as_ref().map(|it| it.0) > proposal.accepted.as_ref().map(|it| it.0) {
            proposal.accepted = accepted;
        }
        if proposal.voted.is_some() || !is_quorum(&self.members, proposal.promised.iter().copied()) {
            return;
        }
        // What may have been decided already is what is proposed.
        if let Some((_, view)) = &proposal.accepted {
            proposal.view = view.clone();
        }
        proposal.voted = Some(BTreeSet::new());
        let (epoch, view) = (self.epoch + 1, proposal.view.clone());
        self.tell_all(Message::Accept { epoch, ballot, view });
    }

    fn accepted_by(&mut self, from: NodeId, ballot: Ballot) {
        let Some(proposal) = self.proposal.as_mut().filter(|proposal| proposal.ballot == ballot) else { return };
        let Some(voted) = &mut proposal.voted else { return };
        voted.insert(from.0);
        if is_quorum(&self.members, voted.iter().copied()) {
            let view = proposal.view.clone();
            self.learn(self.epoch + 1, view);
        }
    }

    fn learn(&mut self, epoch: u64, view: View) {
        if epoch > self.epoch {
            self.early.insert(epoch, view);
        }
        self.learn_early();
    }

    fn learn_early(&mut self) {
        if self.members.is_empty() {
            return; // this node is not let in yet
        }
        while let Some(view) = self.early.remove(&(self.epoch + 1)) {
            // To all of the last epoch, those that are removed included: whoever told this node may not get to tell them.
            self.tell_others(Message::Decided { epoch: self.epoch + 1, view: view.clone() });
            self.adopt(view);
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
                self.to_shut_out.insert(node);
            }
        }
        // A newcomer was open to nobody until now, and is told of the removed before anybody hears of it.
        newcomers.iter().for_each(|node| self.is_shut_out_by(*node, self.epoch));
        self.forget_strangers();
        // Ballots go on: what was said in one of an epoch before is never taken for one of this.
        (self.accepted, self.proposal, self.propose_at, self.proposals) = (None, None, None, 0);
        if !self.members.contains(&self.me) && !self.has_departed() {
            self.fence();
        }
        self.report_shut_out();
        // Whoever told this node may not get to tell them.
        newcomers.into_iter().for_each(|node| self.welcome(node));
        self.let_in();
    }

    fn welcome(&mut self, node: u16) {
        if self.rule == DeathRule::Majority && self.is_member() && node != self.me {
            let (members, removed, shut_out) = (self.members.clone(), self.removed.clone(), self.shut_out.clone());
            let welcome = Message::Welcome { epoch: self.epoch, members, removed, shut_out };
            self.actions.push(Action::Send(NodeId(node), welcome));
        }
    }

    /// Who is no member any more, or is one now, neither comes nor is suspected to go.
    fn forget_strangers(&mut self) {
        let Membership { members, removed, arriving, suspects, .. } = self;
        arriving.retain(|node| !members.contains(node) && !removed.contains_key(node));
        suspects.retain(|node| members.contains(node) || arriving.contains(node));
    }
}

#[cfg(test)]
mod tests;
