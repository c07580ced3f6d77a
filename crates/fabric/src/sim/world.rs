//! The state of one execution, and the loop that decides what happens next.

use std::collections::VecDeque;

use foldhash::HashMap;
use mowgli::machine::{Applied, Completion, Loc, Machine, Part, Step, Thread as Cpu};
use smallvec::SmallVec;

use super::choice::{Candidate, Chooser, Failure, FailureKind, Footprint, Touch, pair_of};
use super::faults::FaultState;
use super::heap::Heap;
use super::record::{Cell, Event, What};
use super::schedule::{Search, Time};
use super::settings::Settings;
use super::state::{LaneState, NodeState, Pending, Phase, ThreadState};
use super::wait_set::{Interest, Key, OWN, OwnCells, completions_key, inbox_key, loc_key, mix, peer_key};
use crate::error::Code;
use crate::fabric::{ControlEvent, DeathRule, PeerState};
use crate::ptr::{GroupKey, NodeId};

pub(super) struct Inner {
    pub(super) machine: Machine,
    pub(super) nodes: Vec<NodeState>,
    pub(super) threads: Vec<ThreadState>,
    pub(super) lanes: Vec<LaneState>,
    lane_of: Vec<Option<usize>>,
    pub(super) own: OwnCells,
    /// The thread that runs.
    pub(super) current: Option<usize>,
    pub(super) run: Run,
    pub(super) time: Time,
    pub(super) search: Search,
    pub(super) rules: Rules,
    /// The faults, if the scenario has some.
    pub(super) faults: Option<Box<FaultState>>,
    pub(super) record: Record,
    /// Memory has changed since the invariants were checked.
    pub(super) changed: bool,
    /// See [`Outcome::changes_rights`](super::Outcome::changes_rights).
    pub(super) changes_rights: bool,
}

/// How far the execution is.
pub(super) struct Run {
    pub(super) phase: Phase,
    pub(super) steps: u64,
    pub(super) steps_max: u64,
    /// The step at which the exploration began.
    pub(super) explored_from: u64,
    /// The digest at the end of the exploration.
    pub(super) end: u64,
    pub(super) failure: Option<Failure>,
}

/// The rules of the execution.
pub(super) struct Rules {
    pub(super) death_rule: DeathRule,
    pub(super) completes_at_once: bool,
    pub(super) open_membership: bool,
    pub(super) has_invariants: bool,
}

impl Rules {
    /// Whether a majority decides deaths.
    pub(super) fn by_majority(&self) -> bool {
        self.death_rule == DeathRule::Majority
    }
}

/// The events of an execution, if they are recorded, and the names that they need.
#[derive(Default)]
pub(super) struct Record {
    pub(super) events: Option<Vec<Event>>,
    /// The number of each operation, and the thread that issued it.
    operations: HashMap<(Cpu, u16, u32), (u32, usize)>,
    /// The names of regions: node, first word, words, name.
    pub(super) labels: Vec<(u16, u32, u32, String)>,
}

impl Inner {
    pub(super) fn new(settings: &Settings, chooser: Box<dyn Chooser>) -> Inner {
        let Settings { nodes, steps_max, record, death_rule, completes_at_once, .. } = *settings;
        let node = |_| NodeState {
            words: RESERVED_WORDS,
            regions: Vec::new(),
            heap: Heap::default(),
            groups: 3,
            rights: vec![vec![true; nodes]; 3],
            joined: false,
            left: false,
            incarnation: 1,
            evicted: 0,
            fenced: false,
            knows: vec![false; nodes],
            inbox: (0..nodes).map(|_| VecDeque::new()).collect(),
            inbox_digest: 0,
            news: 0,
            wake: false,
        };
        let mut machine = Machine::new(nodes);
        for node in 0..nodes {
            machine.grow(node as u16, RESERVED_WORDS);
        }
        Inner {
            machine,
            nodes: (0..nodes).map(node).collect(),
            threads: Vec::new(),
            lanes: Vec::new(),
            lane_of: Vec::new(),
            own: OwnCells::default(),
            current: None,
            run: Run { phase: Phase::Settled, steps: 0, steps_max, explored_from: 0, end: 0, failure: None },
            time: Time::default(),
            search: Search::new(chooser),
            rules: Rules { death_rule, completes_at_once, open_membership: false, has_invariants: false },
            faults: settings.faults.clone().map(|faults| Box::new(FaultState::new(faults, nodes))),
            record: Record { events: record.then(Vec::new), ..Record::default() },
            changed: false,
            changes_rights: false,
        }
    }

    pub(super) fn add_thread(&mut self, node: u16, name: String, held: bool) -> usize {
        let cpu = self.machine.add_thread(node);
        let index = self.threads.len();
        self.threads.push(ThreadState {
            name,
            node,
            cpu,
            pending: if held { Pending::Held } else { Pending::Start },
            interest: Interest::default(),
            outer: SmallVec::new(),
            waits: 0,
            deadline: None,
            keeps_interest: false,
            seen: mix(0, index as u64),
            completions_seen: 0,
            glance: 0,
            glance_before: 0,
            seen_before: 0,
            has_acted: true,
            was_held: held,
            unwinding: false,
            panic: None,
        });
        index
    }

    /// Opens a lane's queue pairs for a class of groups: for the first three, or for a further one of the lane that
    /// has those.
    pub(super) fn open_lane(&mut self, node: u16, class: GroupKey, of: Option<Cpu>) -> usize {
        // A dropped one is reused when none of its operations is in flight: endpoints share no order.
        let nodes = self.nodes.len() as u16;
        let is_calm = |lane: Cpu| (0..nodes).all(|peer| self.machine.in_flight(lane, peer).is_empty());
        let free = |lane: &LaneState| lane.node == node && !lane.in_use && is_calm(lane.lane);
        if let Some(free) = self.lanes.iter().position(free) {
            let lane = self.lanes[free].lane;
            let kept = core::mem::take(&mut self.lanes[free].kept); // of its other classes perhaps
            self.lanes[free] =
                LaneState { lane, base: of.unwrap_or(lane), class, node, in_use: true, results: Vec::new(), kept };
            return free;
        }
        let lane = self.machine.add_thread(node);
        let index = self.lanes.len();
        self.lane_of.resize(usize::from(lane.0) + 1, None);
        self.lane_of[usize::from(lane.0)] = Some(index);
        self.lanes.push(LaneState {
            lane,
            base: of.unwrap_or(lane),
            class,
            node,
            in_use: true,
            results: Vec::new(),
            kept: Vec::new(),
        });
        index
    }

    /// The key that threads watch while they wait for a lane's operations: the same for all its queue pairs.
    pub(super) fn completions_of(&self, lane: Cpu) -> Key {
        let index = self.lane_of.get(usize::from(lane.0)).copied().flatten();
        completions_key(index.map_or(lane, |index| self.lanes[index].base))
    }

    // ---- what threads do --------------------------------------------------------------------------------------------

    /// Checks whether a thread accesses another node's memory. Only code outside the execution may, before and after
    /// it. Returns the message for any other thread.
    pub(super) fn elsewhere(&self, thread: usize, node: u16) -> Result<bool, String> {
        let mine = self.threads[thread].node;
        if mine != node && self.run.phase == Phase::Explored {
            let (mine, node) = (NodeId(mine), NodeId(node));
            return Err(format!("a thread of {mine} touches a word of {node} without an operation"));
        }
        Ok(mine != node)
    }

    pub(super) fn note(&mut self, thread: usize, what: What) {
        let (step, time_ns) = (self.run.steps, self.time.now_ns);
        if let Some(events) = &mut self.record.events {
            events.push(Event { step, time_ns, thread, what });
        }
    }

    pub(super) fn records(&self) -> bool {
        self.record.events.is_some()
    }

    /// The number of an operation, for the record.
    pub(super) fn operation_issued(&mut self, thread: usize, lane: Cpu, peer: u16, sequence: u32) -> u32 {
        let number = self.record.operations.len() as u32;
        self.record.operations.insert((lane, peer, sequence), (number, thread));
        number
    }

    pub(super) fn operation(&self, lane: Cpu, peer: u16, sequence: u32) -> Option<(u32, usize)> {
        self.record.operations.get(&(lane, peer, sequence)).copied()
    }

    pub(super) fn send(&mut self, from: u16, to: u16, event: ControlEvent, content: u64) {
        let node = &mut self.nodes[usize::from(to)];
        node.inbox[usize::from(from)].push_back(event);
        node.news += 1;
        node.inbox_digest = mix(mix(node.inbox_digest, u64::from(from)), content);
        self.notify(inbox_key(to), 1, None);
    }

    pub(super) fn peer_state(&self, me: u16, peer: u16) -> PeerState {
        let Some(state) = self.nodes.get(usize::from(peer)) else { return PeerState::NotJoined };
        if !state.joined || (me != peer && !self.nodes[usize::from(me)].knows[usize::from(peer)]) {
            PeerState::NotJoined
        } else if state.left {
            PeerState::Left
        } else if self.nodes[usize::from(me)].evicted >> peer & 1 == 1 || self.is_known_dead(peer) {
            PeerState::Dead { incarnation: state.incarnation }
        } else {
            PeerState::Up { incarnation: state.incarnation }
        }
    }

    /// Takes the news of one sender, for the service thread.
    pub(super) fn take_news(&mut self, me: u16, from: usize) -> Option<ControlEvent> {
        let node = &mut self.nodes[usize::from(me)];
        let event = node.inbox[from].pop_front()?;
        node.news -= 1;
        node.inbox_digest = mix(node.inbox_digest, from as u64 + 0x100);
        if let ControlEvent::Up(peer) = event {
            node.knows[peer.index()] = true;
            // It left or died in the meantime, when this node did not know it yet.
            if self.nodes[peer.index()].left || self.is_known_dead(peer.0) {
                self.send(peer.0, me, ControlEvent::Down(peer), 2);
            }
        }
        self.notify(peer_key(from as u16), 1, None);
        if let Some(current) = self.current {
            let digest = self.nodes[usize::from(me)].inbox_digest;
            self.saw(current, inbox_key(me), digest);
            if self.records() {
                let text = match &event {
                    ControlEvent::Up(peer) => format!("{peer} is up"),
                    ControlEvent::Down(peer) => format!("{peer} is gone"),
                    ControlEvent::Suspected(peer) => format!("{peer} is suspected"),
                    ControlEvent::Trusted(peer) => format!("{peer} is trusted again"),
                    ControlEvent::Refused(peer, _) => format!("{peer} was refused"),
                    ControlEvent::Message(_, bytes) => format!("{} bytes", bytes.len()),
                };
                self.note(current, What::Received { from: NodeId(from as u16), text });
            }
        }
        Some(event)
    }

    /// Revokes a peer's right to a group: its operations there end now.
    pub(super) fn revoke(&mut self, owner: u16, peer: u16, group: GroupKey) {
        let node = &mut self.nodes[usize::from(owner)];
        node.rights[usize::from(group.0)][usize::from(peer)] = false;
        let regions = node.regions.clone();
        let inside = |class: GroupKey, loc: Loc| {
            // A fence is a get of the first word: if it continued, it would confirm puts that were refused before it.
            let is_fence = group == class && loc.word < RESERVED_WORDS;
            let holds = |&(first, words, key): &(u32, u32, GroupKey)| {
                key == group && loc.word >= first && loc.word < first + words
            };
            is_fence || regions.iter().any(holds)
        };
        let of_peer = self.lanes.iter().filter(|lane| lane.node == peer);
        let lanes: Vec<(Cpu, GroupKey)> = of_peer.map(|lane| (lane.lane, lane.class)).collect();
        for (lane, class) in lanes {
            for (sequence, loc) in self.machine.in_flight(lane, owner) {
                if inside(class, loc)
                    && let Some(completion) = self.machine.cancel(lane, owner, sequence)
                {
                    self.refused(completion, Code::Revoked);
                }
            }
        }
    }

    /// Whether a NIC has stalled or a thread was paused so far.
    pub(super) fn has_stood_still(&self) -> bool {
        self.faults.as_ref().is_some_and(|faults| faults.has_stood_still())
    }

    /// See [`super::excuses`].
    pub(super) fn excuses(&self) -> Option<u32> {
        let (count, lasts) = self.faults.as_ref().map_or((0, false), |faults| faults.progress());
        let passes = lasts || self.early_timeouts() || self.has_stood_still() || self.rules.by_majority();
        (!passes).then_some(count)
    }

    /// Whether time may pass at any moment.
    pub(super) fn early_timeouts(&self) -> bool {
        self.run.phase == Phase::Explored
            && self.search.chooser.as_ref().is_some_and(|chooser| chooser.early_timeouts())
    }

    /// Whether nodes join or leave during the search. Otherwise reading the membership is no scheduling point.
    pub(super) fn membership_may_change(&self) -> bool {
        self.run.phase == Phase::Explored && (self.rules.open_membership || self.faults.is_some())
    }

    /// Rights or membership change.
    pub(super) fn rights_change(&mut self) {
        self.changes_rights |= self.run.phase == Phase::Explored && self.faults.is_none();
    }

    /// Whether polling an empty inbox is a scheduling point. If it is not, the poll belongs to the thread's step
    /// before it. A search that takes steps eagerly takes that one early, so it would never find a message that
    /// arrives in between.
    pub(super) fn empty_inbox_poll_is_scheduling_point(&self) -> bool {
        self.membership_may_change() && self.search.chooser.as_ref().is_some_and(|chooser| chooser.eager())
    }

    // ---- the possible steps -----------------------------------------------------------------------------------------

    /// Whether a node's inbox has a message.
    pub(super) fn has_news(&self, node: u16) -> bool {
        self.nodes[usize::from(node)].news > 0
    }

    pub(super) fn is_enabled(&self, index: usize) -> bool {
        let thread = &self.threads[index];
        if self.faults.as_ref().is_some_and(|faults| faults.is_paused(index)) {
            return false;
        }
        match thread.pending {
            Pending::Nothing | Pending::Start | Pending::Read(_) => true,
            Pending::Fence => self.machine.is_drained(thread.cpu),
            Pending::Write(key) if key < OWN => self.machine.is_drained(thread.cpu),
            Pending::Write(_) | Pending::Empty => self.machine.is_empty(thread.cpu),
            Pending::Lock(key) => {
                self.machine.is_empty(thread.cpu) && self.own.cells[(key & !OWN) as usize].holder.is_none()
            }
            Pending::Idle(news_of) => {
                thread.is_woken()
                    || news_of.is_some_and(|node| self.nodes[usize::from(node)].wake || self.has_news(node))
            }
            Pending::Join(other) => {
                let other = &self.threads[usize::from(other)];
                other.pending == Pending::Finished && self.machine.is_empty(other.cpu)
            }
            Pending::Calm => (0..self.threads.len()).all(|other| other == index || !self.is_enabled(other)),
            // Their stores and puts have landed, in every order.
            Pending::JoinHeld => {
                self.machine.is_idle()
                    && self.threads.iter().all(|thread| !thread.was_held || thread.pending == Pending::Finished)
            }
            Pending::Held | Pending::Finished => false,
        }
    }

    /// Whether the time of its next step makes no difference to other threads: it reads nothing that others change.
    pub(super) fn is_quiet(&self, index: usize) -> bool {
        matches!(
            self.threads[index].pending,
            Pending::Start | Pending::Fence | Pending::Empty | Pending::Join(_) | Pending::JoinHeld | Pending::Idle(_)
        )
    }

    pub(super) fn footprint(&self, kind: Candidate) -> Footprint {
        let touch = |first, count, write| Some(Touch { first, count, write });
        match kind {
            Candidate::Elapse => Footprint {
                actors: [Some(kind.component()), None],
                touches: [touch(0, Key::MAX, true), None],
                is_fault: false,
            },
            Candidate::Fault(_) => Footprint { is_fault: true, ..Footprint::default() },
            Candidate::Thread(index) => {
                let actors = [Some(kind.component()), None];
                let thread = &self.threads[usize::from(index)];
                let first = match thread.pending {
                    Pending::Read(key) => touch(key, 1, false),
                    Pending::Write(key) | Pending::Lock(key) => touch(key, 1, true),
                    _ => None,
                };
                Footprint { actors, touches: [first, None], is_fault: false }
            }
            Candidate::Machine(step) => {
                let found = self.machine.footprint(step);
                let pair = found.pair.map(|(lane, peer)| pair_of(lane, peer));
                let range =
                    |(loc, count): (Loc, u32), write| Touch { first: loc_key(loc), count: u64::from(count), write };
                let memory = found.writes.map(|w| range(w, true)).or(found.reads.map(|r| range(r, false)));
                let completion =
                    found.completes.then(|| Touch { first: self.completions_of(found.thread), count: 1, write: true });
                Footprint { actors: [Some(kind.component()), pair], touches: [memory, completion], is_fault: false }
            }
        }
    }

    pub(super) fn digest(&self) -> u64 {
        let mut digest = mix(self.machine.digest(), self.own.digest);
        digest = mix(digest, self.time.now_ns);
        for thread in &self.threads {
            let (kind, key) = match thread.pending {
                Pending::Nothing => (0, 0),
                Pending::Held => (1, 0),
                Pending::Start => (2, 0),
                Pending::Read(key) => (3, key),
                Pending::Write(key) => (4, key),
                Pending::Fence => (5, 0),
                Pending::Lock(key) => (6, key),
                Pending::Idle(node) => (7, node.map_or(0, |node| u64::from(node) + 1)),
                Pending::Join(other) => (8, u64::from(other)),
                Pending::JoinHeld => (9, 0),
                Pending::Finished => (10, 0),
                Pending::Calm => (11, 0),
                Pending::Empty => (12, 0),
            };
            // The reason why a thread woke matters to a thread that keeps its reads.
            let woken = u64::from(thread.is_woken()) + u64::from(thread.keeps_interest && thread.interest.has_changed);
            // The running thread does not matter: it is at a point like all others.
            digest = mix(mix(digest, thread.seen ^ thread.completions_seen), mix(kind << 2 | woken, key));
        }
        digest = self.nodes.iter().fold(digest, |digest, node| mix(digest, node.inbox_digest));
        if self.faults.is_some() { mix(digest, self.faults_digest()) } else { digest }
    }

    pub(super) fn fail(&mut self, kind: FailureKind, message: String) {
        let (thread, step) = (self.current, self.run.steps);
        self.run.failure.get_or_insert(Failure { kind, message, thread, step });
    }

    pub(super) fn apply(&mut self, step: Step) {
        if self.record.events.is_some() {
            self.apply_recorded(step);
            return;
        }
        let applied = self.machine.apply(step);
        self.applied(step, applied);
    }

    fn applied(&mut self, step: Step, applied: Applied) {
        if applied.changed
            && let Some((loc, count)) = applied.writes
        {
            // A thread already knows of its own write.
            let by = match step {
                Step::Drain(cpu) => self.threads.iter().position(|thread| thread.cpu == cpu),
                Step::Nic { .. } => None,
            };
            self.notify(loc_key(loc), u64::from(count), by);
        }
        if let Some(completion) = applied.completion {
            self.answered(step, completion);
        }
    }

    pub(super) fn completed(&mut self, completion: Completion, failure: Option<Code>) {
        let Completion { thread: lane, peer, sequence, words } = completion;
        if let Some(index) = self.lane_of.get(usize::from(lane.0)).copied().flatten()
            && self.lanes[index].in_use
        {
            self.lanes[index].results.push((peer, sequence, words, failure));
        }
        let key = self.completions_of(lane);
        for interest in self.threads.iter_mut().flat_map(ThreadState::interests) {
            interest.has_arrivals = interest.has_arrivals || interest.looks_at(key, 1);
        }
    }

    #[cold]
    fn apply_recorded(&mut self, step: Step) {
        let applied = self.machine.apply(step);
        let values = |machine: &Machine, range: Option<(Loc, u32)>| -> Vec<(Loc, u64)> {
            let Some((first, count)) = range else { return Vec::new() };
            let locs = (0..count).map(|at| Loc { word: first.word + at, ..first });
            locs.map(|loc| (loc, machine.memory(loc))).collect()
        };
        let (read, written) = (values(&self.machine, applied.reads), values(&self.machine, applied.writes));
        match step {
            Step::Drain(cpu) => {
                let thread = self.threads.iter().position(|thread| thread.cpu == cpu).unwrap_or(0);
                for (loc, value) in written {
                    self.note(thread, What::Drained { cell: Cell::Region(loc), value });
                }
            }
            Step::Nic { thread: lane, peer, sequence, part } => {
                if let Some((op, thread)) = self.operation(lane, peer, sequence) {
                    for (loc, value) in read {
                        self.note(thread, What::NicRead { op, loc, value });
                    }
                    if part == Part::Start {
                        self.note(thread, What::Started { op });
                    }
                    for (loc, value) in written {
                        self.note(thread, What::Landed { op, loc, value });
                    }
                    if applied.completion.is_some() {
                        self.note(thread, What::Completed { op });
                    }
                }
            }
        }
        self.applied(step, applied);
    }

    /// The next action of every thread, for messages.
    pub(super) fn describe(&self) -> String {
        let mut text = String::new();
        for thread in &self.threads {
            let what = match thread.pending {
                Pending::Finished | Pending::Held | Pending::Calm => continue,
                Pending::Idle(_) => format!("waits for a change of {} places", thread.interest.watch.len()),
                Pending::Lock(_) => "waits for a local lock".into(),
                Pending::Join(other) => format!("waits for the end of {}", self.threads[usize::from(other)].name),
                Pending::JoinHeld => "waits for the end of the threads".into(),
                Pending::Write(_) | Pending::Fence | Pending::Empty => "waits for its store buffer".into(),
                Pending::Nothing | Pending::Start | Pending::Read(_) => "could go on".into(),
            };
            text.push_str(&format!("; {} on {} {what}", thread.name, NodeId(thread.node)));
        }
        text
    }
}

/// Words at the start of each node's memory that belong to no region. Global fences read the first.
pub(super) const RESERVED_WORDS: u32 = 8;
