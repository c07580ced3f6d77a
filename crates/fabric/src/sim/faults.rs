//! Faults: dying nodes, cuts, stalled NICs and threads, suspicion. The time of each is a choice like any other.
//!
//! - **A crash** takes a node's threads and their store buffers. The operations of its NIC continue, in any order,
//!   until a moment that the search chooses; the rest is lost. A prefix of its control messages arrives.
//!   If the system decides deaths, all nodes learn of the death at one moment, after those operations are over. Until
//!   then the memory of the crashed node exists: operations of other nodes on it go on, and complete puts still land.
//!   From then on operations on it fail. If a majority decides, no operation reaches the node after the crash, and
//!   complete puts need not land; operations end when the transport gives up.
//! - **The transport gives up** on a peer that does not answer, for good. All operations of the node on that
//!   incarnation of the peer, in flight or posted later, end in `Unreachable`, and the suspicion is never withdrawn.
//!   So one of the two is evicted. (A queue pair in error is not repaired: later operations would land without the
//!   lost one.)
//! - **A cut** divides the nodes in two until it heals. Requests in flight at its start may still arrive, and have an
//!   effect there; no answer returns. Operations end when the transport gives up, or continue after the cut. Control
//!   messages are delivered after it, in order.
//! - **A stall** stops a NIC (its own queue pairs, and those that end at its node), a pause a thread, for as long as
//!   the search likes; time may pass meanwhile. Late completions, and threads that are slow while time stands still,
//!   are part of every search.
//! - **Suspicion** follows a crash or a cut at any later moment, at each observer by itself, or has no reason.
//!
//! Not covered: a cut does not hold back messages that were sent before it and are not received yet; a crashed node
//! does not return; a cut is between two sets, and in both directions.

use mowgli::machine::{Completion, Crossing, Step, Thread as Cpu};

use super::choice::Candidate;
use super::fault_kinds::{Fault, Faults, contains, nodes_of};
use super::record::What;
use super::state::{Pending, Phase};
use super::wait_set::{inbox_key, mix, peer_key};
use super::world::Inner;
use crate::error::Code;
use crate::fabric::{ControlEvent, DeathRule};
use crate::ptr::{GroupKey, NodeId};

/// The faults of an execution, if its scenario has some. Sets of nodes are bits.
pub(super) struct FaultState {
    /// The faults that may still happen.
    left: Faults,
    crashed: u64,
    /// The crashed nodes, once their operations are over. If the system decides deaths, all nodes know then.
    over: u64,
    stalled: u64,
    paused: Vec<u16>,
    /// One side of the cut.
    cut: Option<u64>,
    /// By observer.
    suspected: Vec<u64>,
    /// By observer: the peers that its transport has given up on.
    given_up: Vec<u64>,
    /// The requests that had left their nodes when the cut began: for each queue pair across it the last operation.
    on_the_way: Vec<(Cpu, u16, u32)>,
    /// Completions that cannot return across the cut.
    withheld: Vec<(Completion, Option<Code>)>,
    /// Control messages that cannot cross it: sender, receiver, message, and its share of digests.
    held: Vec<(u16, u16, ControlEvent, u64)>,
    time_outs: u32,
    /// The faults so far, and the step of each, without their consequences.
    happened: Vec<(u64, Fault)>,
}

/// How often the transport gives up while another step is possible: a thread that retries for ever would never end.
const TIME_OUTS_MAX: u32 = 4;

impl FaultState {
    pub(super) fn new(faults: Faults, nodes: usize) -> FaultState {
        FaultState {
            left: faults,
            crashed: 0,
            over: 0,
            stalled: 0,
            paused: Vec::new(),
            cut: None,
            suspected: vec![0; nodes],
            given_up: vec![0; nodes],
            on_the_way: Vec::new(),
            withheld: Vec::new(),
            held: Vec::new(),
            time_outs: 0,
            happened: Vec::new(),
        }
    }

    fn is_cut(&self, a: u16, b: u16) -> bool {
        self.cut.is_some_and(|side| contains(side, a) != contains(side, b))
    }

    pub(super) fn is_crashed(&self, node: u16) -> bool {
        contains(self.crashed, node)
    }

    pub(super) fn is_paused(&self, thread: usize) -> bool {
        self.paused.contains(&(thread as u16))
    }

    pub(super) fn has_stood_still(&self) -> bool {
        self.happened.iter().any(|(_, fault)| matches!(fault, Fault::Stall(_) | Fault::Pause(_)))
    }

    /// How many have begun, and deaths have become known; and whether one lasts.
    pub(super) fn progress(&self) -> (u32, bool) {
        let lasts = self.crashed != self.over || self.stalled != 0 || !self.paused.is_empty() || self.cut.is_some();
        (self.happened.len() as u32 + self.over.count_ones(), lasts)
    }

    fn digest(&self) -> u64 {
        let left = &self.left;
        let counts = [left.crashes, left.cuts, left.stalls, left.pauses, left.false_suspicions, self.time_outs];
        let mut digest = counts.into_iter().fold(0, |digest, count| mix(digest, u64::from(count)));
        for set in [self.crashed, self.over, self.stalled, self.cut.map_or(0, |side| side + 1)] {
            digest = mix(digest, set);
        }
        digest = self.suspected.iter().chain(&self.given_up).fold(digest, |digest, set| mix(digest, *set));
        digest = self.paused.iter().fold(digest, |digest, thread| mix(digest, u64::from(*thread)));
        for (lane, peer, sequence) in &self.on_the_way {
            digest = mix(digest, pair(*lane, *peer) ^ u64::from(*sequence));
        }
        for (Completion { thread, peer, sequence, words }, code) in &self.withheld {
            digest = mix(mix(digest, pair(*thread, *peer)), u64::from(*sequence));
            digest = mix(digest, code.map_or(0, |code| code as u64));
            digest = words.iter().fold(digest, |digest, word| mix(digest, *word));
        }
        for (from, to, _, content) in &self.held {
            digest = mix(mix(digest, u64::from(*from) << 16 | u64::from(*to)), *content);
        }
        digest
    }
}

fn pair(lane: Cpu, peer: u16) -> u64 {
    u64::from(lane.0) << 48 | u64::from(peer) << 32
}

impl Inner {
    pub(super) fn is_crashed(&self, node: u16) -> bool {
        self.faults.as_ref().is_some_and(|faults| faults.is_crashed(node))
    }

    /// Whether all nodes know that a node is dead, since the system reports it.
    pub(super) fn is_known_dead(&self, node: u16) -> bool {
        !self.rules.by_majority() && self.faults.as_ref().is_some_and(|faults| contains(faults.over, node))
    }

    /// Whether operations of a node on a peer fail as they are posted.
    pub(super) fn is_lost_to(&self, node: u16, peer: u16) -> bool {
        let Some(faults) = &self.faults else { return false };
        let is_over = faults.is_crashed(peer) && self.run.phase == Phase::Settled;
        is_over || contains(faults.given_up[usize::from(node)], peer)
    }

    pub(super) fn is_cut(&self, a: u16, b: u16) -> bool {
        self.faults.as_ref().is_some_and(|faults| faults.is_cut(a, b))
    }

    /// Whether a fault may happen before a thread continues, and make a difference: time passes while it is paused,
    /// and a node may crash after the last thread has ended.
    pub(super) fn matters_when(&self, thread: usize) -> bool {
        let ends = self.threads[thread].pending == Pending::JoinHeld;
        self.faults.as_ref().is_some_and(|faults| ends || faults.left.pauses > 0)
    }

    /// All state of faults, rights and membership that decides which steps are possible.
    pub(super) fn faults_digest(&self) -> u64 {
        let Some(faults) = &self.faults else { return 0 };
        let mut digest = faults.digest();
        for node in &self.nodes {
            digest = mix(digest, node.evicted);
            digest = mix(digest, node.heap.digest());
            let bits = [node.fenced, node.joined, node.left, node.wake].into_iter();
            let bits = bits.chain(node.knows.iter().copied()).chain(node.rights.iter().flatten().copied());
            digest = bits.fold(digest, |digest, bit| digest.rotate_left(1) ^ mix(digest, u64::from(bit)));
        }
        for lane in &self.lanes {
            for (peer, sequence, words, failure) in &lane.results {
                digest = mix(mix(digest, pair(lane.lane, *peer)), u64::from(*sequence));
                digest = mix(digest, failure.map_or(0, |code| code as u64));
                digest = words.iter().fold(digest, |digest, word| mix(digest, *word));
            }
        }
        digest
    }

    /// Whether a step of the machine must wait for the end of a fault.
    pub(super) fn is_blocked(&self, faults: &FaultState, step: Step) -> bool {
        let Step::Nic { thread, peer, sequence, .. } = step else { return false };
        let node = self.machine.node_of(thread);
        let is_stalled = contains(faults.stalled, node) || contains(faults.stalled, peer);
        // If the system decides deaths, the memory exists until it has reported this one.
        if is_stalled || (faults.is_crashed(peer) && self.rules.by_majority()) {
            return true;
        }
        faults.is_cut(node, peer)
            && match self.machine.crossing(step) {
                None => false,
                Some(Crossing::Back) => true,
                Some(Crossing::There) => {
                    let left = faults.on_the_way.iter().find(|(lane, to, _)| (*lane, *to) == (thread, peer));
                    left.is_none_or(|(.., last)| sequence > *last)
                }
            }
    }

    /// Delivers a completion, unless it cannot return across a cut.
    pub(super) fn answered(&mut self, step: Step, completion: Completion) {
        // The result of a get or an atomic has returned by then; the acknowledgement of a put has not.
        if let (Some(faults), Step::Nic { thread, peer, part: mowgli::machine::Part::Start, .. }) =
            (&mut self.faults, step)
            && faults.is_cut(self.machine.node_of(thread), peer)
        {
            faults.withheld.push((completion, None));
            return;
        }
        self.completed(completion, None);
    }

    /// The target refuses an operation. The issuer learns of it after the cut.
    pub(super) fn refused(&mut self, completion: Completion, code: Code) {
        let node = self.machine.node_of(completion.thread);
        match &mut self.faults {
            Some(faults) if faults.is_cut(node, completion.peer) => faults.withheld.push((completion, Some(code))),
            _ => self.completed(completion, Some(code)),
        }
    }

    /// Ends a lane's operations on a node, except complete puts that have not landed.
    pub(super) fn cut_short(&mut self, lane: Cpu, peer: u16, code: Code) {
        for (sequence, _) in self.machine.in_flight(lane, peer) {
            if !self.machine.is_complete(lane, peer, sequence)
                && let Some(completion) = self.machine.cancel(lane, peer, sequence)
            {
                self.completed(completion, Some(code));
            }
        }
        let Some(faults) = &mut self.faults else { return };
        let of_pair = |(completion, _): &mut (Completion, _)| (completion.thread, completion.peer) == (lane, peer);
        let ended: Vec<_> = faults.withheld.extract_if(.., of_pair).collect();
        for (completion, _) in ended {
            self.completed(completion, Some(code));
        }
    }

    /// Does the same for every target, and all lanes of a node.
    pub(super) fn cut_short_all(&mut self, node: u16, code: Code) {
        for lane in self.lanes_of(node) {
            (0..self.nodes.len() as u16).for_each(|peer| self.cut_short(lane, peer, code));
        }
    }

    pub(super) fn lanes_of(&self, node: u16) -> Vec<Cpu> {
        self.lanes.iter().filter(|lane| lane.node == node).map(|lane| lane.lane).collect()
    }

    /// Cancels all further effects of a lane's operations on a node.
    fn drop_pair(&mut self, lane: Cpu, peer: u16, code: Code) {
        for (sequence, _) in self.machine.in_flight(lane, peer) {
            if let Some(completion) = self.machine.cancel(lane, peer, sequence) {
                self.completed(completion, Some(code));
            }
        }
    }

    // ---- the possible faults ----------------------------------------------------------------------------------------

    /// Adds the possible faults, and the possible consequences of earlier ones. Those that end a fault are first: so a
    /// search that always takes the first candidate terminates.
    pub(super) fn fault_candidates(&self, into: &mut Vec<Candidate>) {
        let Some(faults) = &self.faults else { return };
        let others = into.len();
        let mut add = |fault: Fault| into.push(Candidate::Fault(fault));
        if faults.cut.is_some() {
            add(Fault::Heal);
        }
        nodes_of(faults.stalled).for_each(|node| add(Fault::Resume(node)));
        faults.paused.iter().for_each(|thread| add(Fault::Continue(*thread)));
        for node in nodes_of(faults.crashed & !faults.over) {
            add(if !self.rules.by_majority() { Fault::Known(node) } else { Fault::Lost(node) });
        }
        if self.rules.by_majority() {
            for (observer, peer) in self.observers() {
                let is_cut = faults.is_cut(observer, peer);
                let is_suspected = contains(faults.suspected[usize::from(observer)], peer);
                if !is_suspected && (is_cut || faults.is_crashed(peer)) {
                    add(Fault::Suspect { observer, peer });
                } else if is_suspected
                    && !is_cut
                    && !faults.is_crashed(peer)
                    && !contains(faults.given_up[usize::from(observer)], peer)
                {
                    add(Fault::Trust { observer, peer });
                }
            }
        }
        let has_time_outs = self.rules.by_majority() && (faults.cut.is_some() || faults.crashed != 0);
        if has_time_outs && (faults.time_outs < TIME_OUTS_MAX || into.is_empty()) {
            self.time_outs(faults, into);
        }
        if others == 0 {
            // Time passes while a fault lasts, and no node dies only because no other step is possible.
            self.elapse_candidate(into);
            if into.is_empty() {
                return;
            }
        }
        for from in nodes_of(faults.crashed) {
            for (to, node) in self.nodes.iter().enumerate() {
                if matches!(node.inbox[usize::from(from)].back(), Some(ControlEvent::Message(..))) {
                    into.push(Candidate::Fault(Fault::LoseMessage { from, to: to as u16 }));
                }
            }
        }
        self.new_faults(faults, into);
    }

    /// Pairs of a live node and another that it knows and has not evicted.
    fn observers(&self) -> impl Iterator<Item = (u16, u16)> {
        let count = self.nodes.len() as u16;
        let pairs = (0..count).flat_map(move |observer| (0..count).map(move |peer| (observer, peer)));
        pairs.filter(|&(observer, peer)| {
            let node = &self.nodes[usize::from(observer)];
            let is_here = node.joined && !node.left && !self.is_crashed(observer);
            let peers = observer != peer && node.knows[usize::from(peer)] && !self.nodes[usize::from(peer)].left;
            is_here && peers && !contains(node.evicted, peer)
        })
    }

    /// The nodes that wait for one that does not answer.
    fn time_outs(&self, faults: &FaultState, into: &mut Vec<Candidate>) {
        for (observer, peer) in self.observers() {
            let is_silent = faults.is_cut(observer, peer) || faults.is_crashed(peer);
            let waits = |lane: &Cpu| {
                let withheld =
                    |(completion, _): &(Completion, _)| (completion.thread, completion.peer) == (*lane, peer);
                !self.machine.in_flight(*lane, peer).is_empty() || faults.withheld.iter().any(withheld)
            };
            if is_silent && self.lanes_of(observer).iter().any(waits) {
                into.push(Candidate::Fault(Fault::TimeOut { observer, peer }));
            }
        }
    }

    fn new_faults(&self, faults: &FaultState, into: &mut Vec<Candidate>) {
        let left = &faults.left;
        let count = self.nodes.len() as u16;
        let lives = |node: &u16| {
            let state = &self.nodes[usize::from(*node)];
            left.has(*node) && state.joined && !state.left && !faults.is_crashed(*node)
        };
        let mut add = |fault: Fault| into.push(Candidate::Fault(fault));
        if left.crashes > 0 {
            (0..count).filter(lives).for_each(|node| add(Fault::Crash(node)));
        }
        if left.cuts > 0 && faults.cut.is_none() {
            match &left.sides[..] {
                [] => (0..count).filter(lives).for_each(|node| add(Fault::Cut(1 << node))),
                sides => sides.iter().for_each(|side| add(Fault::Cut(*side))),
            }
        }
        if left.stalls > 0 {
            (0..count).filter(lives).filter(|n| !contains(faults.stalled, *n)).for_each(|node| add(Fault::Stall(node)));
        }
        if left.pauses > 0 {
            for (index, thread) in self.threads.iter().enumerate().skip(1) {
                let runs = !matches!(thread.pending, Pending::Finished | Pending::Held);
                if runs && lives(&thread.node) && !faults.is_paused(index) {
                    add(Fault::Pause(index as u16));
                }
            }
        }
        if left.false_suspicions > 0 && self.rules.by_majority() {
            for (observer, peer) in self.observers().filter(|(_, peer)| lives(peer)) {
                if !contains(faults.suspected[usize::from(observer)], peer) && !faults.is_cut(observer, peer) {
                    add(Fault::FalselySuspect { observer, peer });
                }
            }
        }
    }

    // ---- what happens -----------------------------------------------------------------------------------------------

    /// Applies a fault.
    pub(super) fn fault(&mut self, fault: Fault) {
        self.changed = true;
        if let Some(thread) = self.thread_of(fault)
            && self.records()
        {
            self.note(thread, What::Fault { fault });
        }
        let step = self.run.steps;
        let Some(faults) = &mut self.faults else { return };
        if fault.is_new() || fault.is_end() {
            faults.happened.push((step, fault));
        }
        match fault {
            Fault::Heal => self.heal(),
            Fault::Resume(node) => faults.stalled &= !(1 << node),
            Fault::Continue(thread) => faults.paused.retain(|paused| *paused != thread),
            Fault::Known(node) => self.known(node),
            Fault::Lost(node) => self.over(node),
            Fault::Suspect { observer, peer } => self.suspect(observer, peer),
            Fault::FalselySuspect { observer, peer } => {
                faults.left.false_suspicions -= 1;
                self.suspect(observer, peer);
            }
            Fault::Trust { observer, peer } => {
                faults.suspected[usize::from(observer)] &= !(1 << peer);
                self.send(peer, observer, ControlEvent::Trusted(NodeId(peer)), 4);
            }
            Fault::TimeOut { observer, peer } => {
                faults.time_outs += 1;
                faults.given_up[usize::from(observer)] |= 1 << peer;
                if !contains(faults.suspected[usize::from(observer)], peer) {
                    self.suspect(observer, peer);
                }
                for lane in self.lanes_of(observer) {
                    self.cut_short(lane, peer, Code::Unreachable);
                }
            }
            Fault::LoseMessage { from, to } => self.lose_message(from, to),
            Fault::Crash(node) => {
                faults.left.crashes -= 1;
                self.crash(node);
            }
            Fault::Cut(side) => {
                faults.left.cuts -= 1;
                faults.cut = Some(side);
                self.note_on_the_way();
            }
            Fault::Stall(node) => {
                faults.left.stalls -= 1;
                faults.stalled |= 1 << node;
            }
            Fault::Pause(thread) => {
                faults.left.pauses -= 1;
                faults.paused.push(thread);
            }
        }
    }

    /// The thread with the line that shows a fault.
    fn thread_of(&self, fault: Fault) -> Option<usize> {
        let node = match fault {
            Fault::Continue(thread) | Fault::Pause(thread) => return Some(usize::from(thread)),
            Fault::Heal => 0,
            Fault::Resume(node) | Fault::Stall(node) => node,
            Fault::Known(node) | Fault::Lost(node) | Fault::Crash(node) => node,
            Fault::Cut(side) => side.trailing_zeros() as u16,
            Fault::LoseMessage { from, .. } => from,
            Fault::TimeOut { observer, .. }
            | Fault::Suspect { observer, .. }
            | Fault::FalselySuspect { observer, .. }
            | Fault::Trust { observer, .. } => observer,
        };
        let of_node = |held: bool| self.threads.iter().skip(1).position(|t| t.node == node && t.was_held >= held);
        of_node(true).or_else(|| of_node(false)).map(|index| index + 1)
    }

    /// Stops a node's threads. (The caller unwinds their coroutines.)
    fn crash(&mut self, node: u16) {
        self.machine.lose_store_buffers(node);
        for at in 0..self.lanes.len() {
            let (lane, owner) = (self.lanes[at].lane, self.lanes[at].node);
            for (sequence, _) in self.machine.in_flight(lane, node) {
                // If the system decides deaths, the memory exists until it has reported this one. A get that succeeds
                // meanwhile has flushed the earlier puts of its queue pair, so these still land. Otherwise no operation
                // reaches the node any more, and complete puts need not land. The rest fails when the death is known or
                // the transport gives up.
                let is_over = self.rules.by_majority() && self.machine.is_complete(lane, node, sequence);
                if (owner == node || is_over)
                    && let Some(completion) = self.machine.cancel(lane, node, sequence)
                {
                    self.completed(completion, Some(Code::Unreachable));
                }
            }
        }
        let (machine, threads) = (&self.machine, &self.threads);
        let Some(faults) = &mut self.faults else { return };
        faults.crashed |= 1 << node;
        faults.suspected[usize::from(node)] = 0;
        faults.withheld.retain(|(completion, _)| machine.node_of(completion.thread) != node);
        faults.held.retain(|(_, to, ..)| *to != node);
        faults.paused.retain(|thread| threads[usize::from(*thread)].node != node);
    }

    /// Ends the operations of a crashed node.
    fn over(&mut self, node: u16) {
        for lane in self.lanes_of(node) {
            (0..self.nodes.len() as u16).for_each(|peer| self.drop_pair(lane, peer, Code::Unreachable));
        }
        if let Some(faults) = &mut self.faults {
            faults.over |= 1 << node;
        }
    }

    fn known(&mut self, node: u16) {
        self.over(node);
        for lane in 0..self.lanes.len() {
            self.drop_pair(self.lanes[lane].lane, node, Code::Unreachable);
        }
        self.notify(peer_key(node), 1, None);
        let observers: Vec<u16> =
            self.observers().filter(|(_, peer)| *peer == node).map(|(observer, _)| observer).collect();
        for observer in observers {
            self.send(node, observer, ControlEvent::Down(NodeId(node)), 2);
        }
    }

    fn suspect(&mut self, observer: u16, peer: u16) {
        if let Some(faults) = &mut self.faults {
            faults.suspected[usize::from(observer)] |= 1 << peer;
        }
        self.send(peer, observer, ControlEvent::Suspected(NodeId(peer)), 3);
    }

    fn lose_message(&mut self, from: u16, to: u16) {
        self.nodes[usize::from(to)].lose_last(from);
        self.notify(inbox_key(to), 1, None);
    }

    fn note_on_the_way(&mut self) {
        let mut on_the_way = Vec::new();
        for lane in &self.lanes {
            for peer in (0..self.nodes.len() as u16).filter(|peer| self.is_cut(lane.node, *peer)) {
                on_the_way.extend(self.machine.newest_posted(lane.lane, peer).map(|last| (lane.lane, peer, last)));
            }
        }
        if let Some(faults) = &mut self.faults {
            faults.on_the_way = on_the_way;
        }
    }

    /// Holds back a control message that cannot cross a cut, or drops it if its receiver has crashed.
    pub(super) fn detain(&mut self, from: u16, to: u16, event: &ControlEvent, content: u64) -> bool {
        let Some(faults) = &mut self.faults else { return false };
        let is_cut = faults.is_cut(from, to);
        if is_cut && !faults.is_crashed(to) {
            faults.held.push((from, to, event.clone(), content));
        }
        is_cut || faults.is_crashed(to)
    }

    fn heal(&mut self) {
        let Some(faults) = &mut self.faults else { return };
        let Some(side) = faults.cut.take() else { return };
        faults.on_the_way.clear();
        let (withheld, held) = (core::mem::take(&mut faults.withheld), core::mem::take(&mut faults.held));
        for (completion, code) in withheld {
            self.completed(completion, code);
        }
        for (from, to, event, content) in held {
            self.send(from, to, event, content);
        }
        // Requests posted during the cut without the right to the memory are refused now.
        for (owner, peer) in self.everybody().filter(|(owner, peer)| contains(side, *owner) != contains(side, *peer)) {
            for group in 0..self.nodes[usize::from(owner)].groups {
                if !self.nodes[usize::from(owner)].rights[usize::from(group)][usize::from(peer)] {
                    self.revoke(owner, peer, GroupKey(group as u8));
                }
            }
        }
    }

    fn everybody(&self) -> impl Iterator<Item = (u16, u16)> + use<> {
        let count = self.nodes.len() as u16;
        (0..count).flat_map(move |a| (0..count).map(move |b| (a, b)))
    }

    /// Ends every fault after the search, and applies the consequences of permanent ones at once.
    pub(super) fn end_faults(&mut self) {
        self.heal();
        let Some(faults) = &mut self.faults else { return };
        faults.stalled = 0;
        faults.paused.clear();
        let (crashed, over) = (faults.crashed, faults.over);
        for node in nodes_of(crashed & !over) {
            match self.rules.death_rule {
                DeathRule::System => self.known(node),
                DeathRule::Majority => self.over(node),
            }
        }
        for node in nodes_of(crashed) {
            for at in 0..self.lanes.len() {
                self.drop_pair(self.lanes[at].lane, node, Code::Unreachable);
            }
        }
    }

    /// The faults that have happened, as text.
    pub(super) fn tell_faults(&self) -> Option<String> {
        let happened = &self.faults.as_ref()?.happened;
        let told = happened.iter().map(|(step, fault)| match fault {
            Fault::Pause(thread) | Fault::Continue(thread) => {
                let state = &self.threads[usize::from(*thread)];
                format!("{fault}: {} on n{} at step {step}", state.name, state.node)
            }
            _ => format!("{fault} at step {step}"),
        });
        (!happened.is_empty()).then(|| told.collect::<Vec<_>>().join(", "))
    }
}
