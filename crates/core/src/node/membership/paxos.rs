//! Deciding an epoch: one instance of Paxos among the members of the epoch before.

use std::collections::{BTreeMap, BTreeSet};

use farfield_fabric::NodeId;

use super::{Ballot, Membership, Message, Removed, View, is_quorum};

/// A proposal of this node.
#[derive(Clone, Debug)]
pub(super) struct Proposal {
    ballot: Ballot,
    view: View,
    promised: BTreeSet<u16>,
    /// The view accepted in the highest ballot that a promise has reported.
    accepted: Option<(Ballot, View)>,
    /// The members that have accepted the view, once it was put to the vote.
    voted: Option<BTreeSet<u16>>,
}

impl Membership {
    pub(super) fn propose(&mut self, view: View) {
        let ballot = Ballot { round: self.promised.round + 1, leader: self.me };
        let (promised, epoch) = (BTreeSet::new(), self.epoch + 1);
        self.proposal = Some(Proposal { ballot, view, promised, accepted: None, voted: None });
        self.tell_all(Message::Prepare { epoch, ballot });
    }

    /// Handles a message of another node, or of this one to itself.
    pub(in crate::node) fn receive(&mut self, from: NodeId, message: Message) {
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
            Message::Evicted { epoch } => return self.is_evicted_by(from.0, epoch),
            Message::Welcome { epoch, members, removed, evicted_until } => {
                return self.enter(epoch, members, removed, evicted_until);
            }
        };
        // It belongs to another instance: decided here, or not begun. (A node that is behind gets the decisions from
        // all that are not.)
        if epoch != self.epoch + 1 || self.is_fenced || !self.is_member() {
            return;
        }
        match message {
            Message::Prepare { ballot, .. } if ballot > self.promised => {
                self.promised = ballot;
                let accepted = self.accepted.clone();
                self.reply(from, Message::Promise { epoch, ballot, accepted });
            }
            // This accepts even its own removal: a view that others have accepted must find a quorum among the
            // remaining members.
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
                // This node's next proposal uses a higher ballot.
                self.promised = self.promised.max(ballot);
                self.proposal = None;
            }
            Message::Decided { .. } | Message::Evicted { .. } | Message::Fenced | Message::Welcome { .. } => {}
        }
    }

    pub(super) fn is_evicted_by(&mut self, member: u16, epoch: u64) {
        let until = self.evicted_until.entry(member).or_default();
        *until = epoch.max(*until);
        self.has_changed = true;
    }

    /// The members have admitted this node. It has not announced its memory to any node yet. So the removed nodes have
    /// no access to it, and it evicts them before it announces anything.
    fn enter(
        &mut self,
        epoch: u64,
        members: BTreeSet<u16>,
        removed: BTreeMap<u16, Removed>,
        evicted_until: BTreeMap<u16, u64>,
    ) {
        if self.is_member() || self.removed.contains_key(&self.me) || !members.contains(&self.me) {
            return; // repeated
        }
        (self.epoch, self.has_changed) = (epoch, true);
        (self.members, self.removed) = (members, removed);
        evicted_until.into_iter().for_each(|(member, epoch)| self.is_evicted_by(member, epoch));
        let dead = self.removed.iter().filter(|(_, removed)| !removed.departed);
        self.to_evict = dead.map(|(node, _)| *node).collect();
        self.forget_strangers();
        self.report_evicted();
        self.learn_early();
    }

    fn promised_by(&mut self, from: NodeId, ballot: Ballot, accepted: Option<(Ballot, View)>) {
        let Some(proposal) = self.proposal.as_mut().filter(|proposal| proposal.ballot == ballot) else { return };
        proposal.promised.insert(from.0);
        // Compares the ballots, the first of each pair; `None` is less than `Some`.
        if accepted.as_ref().map(|it| it.0) > proposal.accepted.as_ref().map(|it| it.0) {
            proposal.accepted = accepted;
        }
        if proposal.voted.is_some() || !is_quorum(&self.members, proposal.promised.iter().copied()) {
            return;
        }
        // A view that may have been decided already replaces the proposed one.
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
            return; // this node is not admitted yet
        }
        while let Some(view) = self.early.remove(&(self.epoch + 1)) {
            // To all of the last epoch, including removed ones: the sender of the decision may not get to send it to
            // them.
            self.tell_others(Message::Decided { epoch: self.epoch + 1, view: view.clone() });
            self.adopt(view);
        }
    }
}
