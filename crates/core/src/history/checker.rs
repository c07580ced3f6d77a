//! The search for a linearization.
//!
//! The algorithm is Wing and Gong's (1993) with Lowe's memoisation ("Testing for linearizability", 2017), in the form
//! that Porcupine made popular. Calls and returns are on one doubly linked list in order of time. An operation is
//! *minimal* if its call precedes the first return. The search places a minimal operation that the model allows,
//! *lifts* its call and return off the list, and continues. If no operation can be placed, it backtracks: it puts
//! operations back and tries another. It never enters a configuration twice.
//!
//! This search differs in the following points.
//!
//! **The cache key.** A configuration is the set of placed operations and the state. The set is determined by its
//! complement within a window that is as narrow as the history is concurrent: the *open* operations, those unplaced
//! with a call before the first return on the list (the *frontier*). Everything else called before the frontier is
//! placed. Everything called after it is not: only minimal operations are ever placed, and the frontier only moves
//! forward. The open set determines the frontier (it is the open operation with the first return). So it is the whole
//! key, exact, without a bitset over the history. At a quiescent moment no operation is open across it, so that the key
//! is the next operations and the state. So the history splits into independent parts there, joined by the set of
//! states possible between them. Of these states, only the needed ones are enumerated. A configuration is added to the
//! cache when it has failed, so a search that does not backtrack stores nothing.
//!
//! If the model makes promises ([`Effect`]), three reductions follow. Each keeps at least one linearization if there is
//! one.
//!
//! **Reads at once.** A minimal read that is possible in the present state is placed now, with no alternative. Take any
//! linearization from here and move the read to its front. It is possible there and changes nothing for the others. It
//! is called already. Any operation that returned before its call is placed already, being before the frontier. So the
//! order of time is kept.
//!
//! **No entering a state too early.** Let a write leave a state `s` that no other unplaced operation leaves. The state
//! must then stay `s` until the last call of a read that needs `s`. The write leads to no linearization if an unplaced
//! operation returns before that call and is not a read possible in `s`. Otherwise all reads that need `s` are placed
//! at once after it, so no state is left too early either. (This is Gibbons and Korach's argument, 1997, by which
//! registers with unique values are checked in polynomial time.)
//!
//! **Interchangeable writes.** Call a write *closed* in two cases. Either no unplaced operation needs the state it
//! leaves. Or it is the only operation of the history that leaves it, the history does not begin in it, and all reads
//! that need it are open; the write and these reads are its cluster. Of several closed writes of one class only that
//! with the first deadline (the first return in its cluster) is tried. For let a linearization from here begin with
//! `b`, and let `a` be the one with the first deadline. If `a` is not in it, `a` is pending and no operation needs its
//! state. So its deadline is never, so is `b`'s, and `a` can take `b`'s place. Otherwise let the two clusters change
//! places, the reads right behind their write. By the promise of a class no other operation can distinguish the two
//! orders. Cluster `a` moves to the front and is open: as above. Cluster `b` moves back to the position of `a`, behind
//! only operations that were before the member of `a` that returns first, hence called before that return, hence before
//! every return in `b`. Likewise for writes of one class that leave the same state, whichever operations need it:
//! change the two writes alone. For the same reason the cache takes two states as equal if no unplaced operation needs
//! them and writes of one class left them.
//!
//! Before the search, [`Search::contradiction`] looks for contradictions that need no search, because their evidence
//! fits on a screen.

mod rank;
mod zones;

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

use foldhash::fast::FixedState;

use self::rank::{Class, Rank};
use super::{Budget, Effect, Event, Evidence, Model, Reason, Verdict, verify};

/// No operation, no state, no position on the list; as a position it is after all others.
const NEVER: u32 = u32::MAX;
/// Marks a cache key's state as "one that writes of this class leave".
const CLASS: u32 = 1 << 31;
/// The most events: positions and states must stay below [`CLASS`].
const EVENTS_MAX: usize = 1 << 29;
/// How many operations the evidence shows in each of its two parts.
const SHOWN_MAX: usize = 16;

/// Decides whether a history is linearizable.
///
/// The events may be in any order. Check independent objects (such as the keys of a store) one by one: a history is
/// linearizable if and only if each object's part is, and the parts are far cheaper to check.
///
/// ```
/// use farfield::history::kv::{KvInput, KvModel, KvOutput};
/// use farfield::history::{Budget, Event, check};
/// let events = [
///     Event::returned(0, 0, 10, KvInput::Upsert(7), KvOutput::Stored),
///     Event::returned(1, 11, 20, KvInput::Get, KvOutput::Found(None)),
/// ];
/// let verdict = check(&KvModel, &events, Budget::default());
/// assert!(verdict.is_violation());
/// ```
pub fn check<M: Model>(model: &M, events: &[Event<M::Input, M::Output>], budget: Budget) -> Verdict {
    check_at_most(EVENTS_MAX, model, events, budget)
}

/// [`check`], for at most so many events.
fn check_at_most<M: Model>(
    events_max: usize,
    model: &M,
    events: &[Event<M::Input, M::Output>],
    budget: Budget,
) -> Verdict {
    if events.len() > events_max {
        let evidence =
            Evidence { reason: Reason::TooLong, placed: vec![], culprits: vec![], text: Reason::TooLong.to_string() };
        return Verdict::Undecided { evidence, steps: 0 };
    }
    if let Some(at) =
        events.iter().position(|event| event.answered_ns().is_some_and(|return_ns| return_ns < event.call_ns))
    {
        let evidence = conflict(events, Reason::ReturnsBeforeCall, vec![at]);
        return Verdict::Violation { evidence, steps: 0 };
    }
    let mut search = Search::new(model, events, budget);
    if let Some((reason, culprits)) = search.contradiction() {
        return Verdict::Violation { evidence: conflict(events, reason, culprits), steps: search.steps };
    }
    let end = search.run();
    let steps = search.steps;
    match end {
        End::Placed => {
            let order: Vec<usize> = search.trail.iter().map(|&op| op as usize).collect();
            // An error in the search, or a wrong promise of the model, may cost a verdict, but must not grant one.
            if verify(model, events, &order) {
                Verdict::Linearizable { order, steps }
            } else {
                Verdict::Undecided { evidence: search.evidence(), steps }
            }
        }
        End::Exhausted => Verdict::Violation { evidence: search.evidence(), steps },
        End::OutOfBudget => Verdict::Undecided { evidence: search.evidence(), steps },
    }
}

/// Evidence without a prefix.
fn conflict<I: std::fmt::Debug, O: std::fmt::Debug>(
    events: &[Event<I, O>],
    reason: Reason,
    culprits: Vec<usize>,
) -> Evidence {
    let mut text = reason.to_string();
    for &at in &culprits {
        // Writing to a string cannot fail.
        let _ = write!(text, "\n  #{at:<6} {}", events[at]);
    }
    Evidence { reason, placed: vec![], culprits, text }
}

enum End {
    Placed,
    Exhausted,
    OutOfBudget,
}

/// [`Effect`] with states as numbers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Unknown,
    Read { only_in: u32 },
    Write { leaves: u32, class: u32 },
}

/// An operation: the positions of its call and return on the list, and its effect.
#[derive(Clone, Copy)]
struct Op {
    call_at: u32,
    /// [`NEVER`] if it is pending.
    return_at: u32,
    kind: Kind,
}

/// The operations on one state: those that leave it, and those that need it (reads with that `only_in`).
#[derive(Clone, Copy)]
struct Traffic {
    writers_total: u32,
    /// Unplaced ones.
    writers: u32,
    /// Unplaced ones.
    readers: u32,
    /// Some writer; the only one if `writers_total` is one.
    writer: u32,
    /// The reader called last, and that call.
    reader_called_last: u32,
    reader_call_max: u32,
    /// The reader or writer that returns first, and that return.
    returned_first: u32,
    return_min: u32,
}

const NO_TRAFFIC: Traffic = Traffic {
    writers_total: 0,
    writers: 0,
    readers: 0,
    writer: NEVER,
    reader_called_last: NEVER,
    reader_call_max: 0,
    returned_first: NEVER,
    return_min: NEVER,
};

/// A configuration on the path of the search: its state, and its remaining candidates.
struct Frame {
    /// Length of the trail before the write that led here.
    mark: u32,
    state: u32,
    /// The class of that write.
    class: u32,
    /// The start of its part of the pool of candidates, which ends where the next frame's begins, or with the pool.
    candidates_at: u32,
    next: u32,
}

/// States as small numbers.
struct States<S> {
    ids: HashMap<S, u32, FixedState>,
    all: Vec<S>,
}

impl<S: Clone + Eq + std::hash::Hash> States<S> {
    fn id(&mut self, state: S) -> u32 {
        *self.ids.entry(state).or_insert_with_key(|state| {
            let id = self.all.len() as u32;
            self.all.push(state.clone());
            id
        })
    }
}

struct Search<'a, M: Model> {
    model: &'a M,
    events: &'a [Event<M::Input, M::Output>],
    budget: u64,
    steps: u64,
    ops: Vec<Op>,
    states: States<M::State>,
    /// Whether the model made a promise for every operation.
    tracked: bool,
    /// Indexed by state; states found after the start have none.
    traffic: Vec<Traffic>,
    /// The list: position 0 is both its ends, the others are in order of time.
    op_at: Vec<u32>,
    next: Vec<u32>,
    prev: Vec<u32>,
    /// The present configuration: the placed operations, in order, and the state.
    trail: Vec<u32>,
    state: u32,
    class: u32,
    /// The open operations of the configuration entered last.
    open: Vec<u32>,
    frames: Vec<Frame>,
    pool: Vec<u32>,
    failed: HashSet<Box<[u32]>, FixedState>,
    key: Vec<u32>,
    /// The candidates during sorting; and the class of each one kept so far, with the state if it matters.
    ranked: Vec<Rank>,
    kept: Vec<(u32, u32)>,
    /// The classes of open writes, possible ones and others.
    classes: Vec<Class>,
    impossible: Vec<u32>,
    /// The longest trail that ended, how much of it the present trail shares, and the operations that were open at its
    /// end.
    best: Vec<u32>,
    best_shared: usize,
    best_open: Vec<u32>,
}

/// The operations of a history, and the operation at each position of the list: calls and returns, in order of time.
fn ops_of<M: Model>(
    model: &M,
    events: &[Event<M::Input, M::Output>],
    states: &mut States<M::State>,
) -> (Vec<Op>, Vec<u32>) {
    let mut ops: Vec<Op> = Vec::with_capacity(events.len());
    // (time, is a return, operation): a call sorts before a return of the same time, so touching is overlapping.
    let mut timeline: Vec<(u64, bool, u32)> = Vec::with_capacity(2 * events.len());
    for (at, event) in events.iter().enumerate() {
        let kind = match model.effect(&event.input, event.output.as_ref()) {
            Effect::Unknown => Kind::Unknown,
            Effect::Read { only_in } => Kind::Read { only_in: only_in.map_or(NEVER, |state| states.id(state)) },
            Effect::Write { leaves, class } => Kind::Write { leaves: states.id(leaves), class },
        };
        ops.push(Op { call_at: NEVER, return_at: NEVER, kind });
        match event.answered_ns() {
            Some(return_ns) => timeline.extend([(event.call_ns, false, at as u32), (return_ns, true, at as u32)]),
            // A pending read gives no information.
            None if matches!(kind, Kind::Read { .. }) => {}
            None => timeline.push((event.call_ns, false, at as u32)),
        }
    }
    timeline.sort_unstable();
    let mut op_at = vec![NEVER];
    for (at, &(_, returns, op)) in (1..).zip(&timeline) {
        op_at.push(op);
        let op = &mut ops[op as usize];
        *(if returns { &mut op.return_at } else { &mut op.call_at }) = at;
    }
    (ops, op_at)
}

/// The operations on each state. Those that are not on the list do not count.
fn traffic_of(ops: &[Op], states: usize) -> Vec<Traffic> {
    let mut traffic = vec![NO_TRAFFIC; states];
    for (id, op) in (0..).zip(ops) {
        if op.call_at == NEVER {
            continue;
        }
        let entry = match op.kind {
            Kind::Unknown | Kind::Read { only_in: NEVER } => continue,
            Kind::Read { only_in } => {
                let entry = &mut traffic[only_in as usize];
                entry.readers += 1;
                if entry.reader_call_max <= op.call_at {
                    (entry.reader_called_last, entry.reader_call_max) = (id, op.call_at);
                }
                entry
            }
            Kind::Write { leaves, .. } => {
                let entry = &mut traffic[leaves as usize];
                entry.writers += 1;
                entry.writers_total += 1;
                entry.writer = id;
                entry
            }
        };
        if op.return_at < entry.return_min {
            (entry.returned_first, entry.return_min) = (id, op.return_at);
        }
    }
    traffic
}

/// The result of [`Search::enter`].
enum Entered {
    /// Every operation that returned is placed.
    Done,
    /// There is now a frame for the configuration.
    Frame,
    /// This configuration has failed before.
    Failed,
}

impl<'a, M: Model> Search<'a, M> {
    fn new(model: &'a M, events: &'a [Event<M::Input, M::Output>], budget: Budget) -> Self {
        let mut states = States { ids: HashMap::default(), all: Vec::new() };
        let initial = states.id(model.initial());
        let (ops, op_at) = ops_of(model, events, &mut states);
        let traffic = traffic_of(&ops, states.all.len());
        let len = op_at.len() as u32;
        Search {
            model,
            events,
            budget: budget.steps,
            steps: 0,
            tracked: ops.iter().all(|op| op.kind != Kind::Unknown),
            ops,
            states,
            traffic,
            op_at,
            next: (0..len).map(|at| (at + 1) % len).collect(),
            prev: (0..len).map(|at| (at + len - 1) % len).collect(),
            trail: Vec::new(),
            state: initial,
            class: NEVER,
            open: Vec::new(),
            frames: Vec::new(),
            pool: Vec::new(),
            failed: HashSet::default(),
            key: Vec::new(),
            ranked: Vec::new(),
            kept: Vec::new(),
            classes: Vec::new(),
            impossible: Vec::new(),
            best: Vec::new(),
            best_shared: 0,
            best_open: Vec::new(),
        }
    }

    /// Searches depth first. A configuration on the stack is never entered again, since every step places one more
    /// operation.
    fn run(&mut self) -> End {
        if matches!(self.enter(0), Entered::Done) {
            return End::Placed;
        }
        while let Some(frame) = self.frames.last_mut() {
            if self.steps > self.budget {
                self.note_best();
                return End::OutOfBudget;
            }
            (self.state, self.class) = (frame.state, frame.class);
            let Some(&op) = self.pool.get(frame.next as usize) else {
                self.leave();
                continue;
            };
            frame.next += 1;
            let Some(after) = self.try_place(op) else { continue };
            let mark = self.trail.len() as u32;
            self.place(op);
            (self.state, self.class) = match self.ops[op as usize].kind {
                Kind::Write { class, .. } => (after, class),
                _ => (after, NEVER),
            };
            match self.enter(mark) {
                Entered::Done => return End::Placed,
                Entered::Frame => {}
                Entered::Failed => self.undo(mark),
            }
        }
        End::Exhausted
    }

    /// Enters the present configuration: places every read that is possible at once, and makes a frame for the rest.
    fn enter(&mut self, mark: u32) -> Entered {
        let frontier = self.place_reads();
        if frontier == NEVER {
            return Entered::Done;
        }
        if !self.failed.is_empty() {
            self.make_key();
            if self.failed.contains(&self.key[..]) {
                return Entered::Failed;
            }
        }
        let candidates_at = self.pool.len() as u32;
        self.rank_candidates(frontier);
        self.frames.push(Frame { mark, state: self.state, class: self.class, candidates_at, next: candidates_at });
        Entered::Frame
    }

    /// Abandons the present configuration, and puts its operations back.
    fn leave(&mut self) {
        self.note_best();
        self.gather_open();
        self.make_key();
        self.failed.insert(self.key.as_slice().into());
        if let Some(frame) = self.frames.pop() {
            self.pool.truncate(frame.candidates_at as usize);
            self.undo(frame.mark);
        }
    }

    /// Places the minimal reads that are possible now, and gathers the remaining open operations. Returns the
    /// frontier's operation, or [`NEVER`] if no return is left. One pass is enough: the state does not change, so an
    /// impossible read stays impossible.
    fn place_reads(&mut self) -> u32 {
        self.open.clear();
        let mut at = self.next[0];
        while at != 0 {
            let id = self.op_at[at as usize];
            if self.ops[id as usize].return_at == at {
                return id;
            }
            if self.is_read_possible_in(self.state, id) {
                // Continue from before the call: the element after the call may be its own return, lifted with it.
                let before = self.prev[at as usize];
                self.place(id);
                at = self.next[before as usize];
            } else {
                self.open.push(id);
                at = self.next[at as usize];
            }
        }
        NEVER
    }

    /// The state after an operation, if it is possible now and not known to lead to no linearization.
    fn try_place(&mut self, id: u32) -> Option<u32> {
        let after = self.step(self.state, id)?;
        let Kind::Write { leaves, .. } = self.ops[id as usize].kind else {
            return Some(self.states.id(after));
        };
        debug_assert!(self.states.all[leaves as usize] == after, "a write left another state than the model promised");
        if !self.tracked {
            return Some(leaves);
        }
        let entry = self.traffic[leaves as usize];
        if entry.readers > 0 && entry.writers == 1 {
            let mut at = self.next[0];
            // The list does not end before that call: its read is on the list, or else an open one that returns later.
            while at < entry.reader_call_max {
                let other = self.op_at[at as usize];
                let returns = self.ops[other as usize].return_at == at;
                if returns && other != id && !self.is_read_possible_in(leaves, other) {
                    return None;
                }
                self.steps += 1;
                at = self.next[at as usize];
            }
        }
        Some(leaves)
    }

    fn is_read_possible_in(&mut self, state: u32, id: u32) -> bool {
        match self.ops[id as usize].kind {
            Kind::Read { only_in } => (only_in == NEVER || only_in == state) && self.step(state, id).is_some(),
            _ => false,
        }
    }

    /// Calls the model.
    fn step(&mut self, state: u32, id: u32) -> Option<M::State> {
        self.steps += 1;
        let event = &self.events[id as usize];
        self.model.step(&self.states.all[state as usize], &event.input, event.output.as_ref())
    }

    /// Lifts an operation off the list and onto the trail.
    fn place(&mut self, id: u32) {
        let op = self.ops[id as usize];
        for at in [op.call_at, op.return_at] {
            if at != NEVER {
                let (prev, next) = (self.prev[at as usize], self.next[at as usize]);
                self.next[prev as usize] = next;
                self.prev[next as usize] = prev;
            }
        }
        match op.kind {
            Kind::Read { only_in } if only_in != NEVER => self.traffic[only_in as usize].readers -= 1,
            Kind::Write { leaves, .. } => self.traffic[leaves as usize].writers -= 1,
            _ => {}
        }
        self.trail.push(id);
    }

    /// Puts operations back, the last first, until the trail has its earlier length.
    fn undo(&mut self, mark: u32) {
        while self.trail.len() > mark as usize {
            let Some(id) = self.trail.pop() else { return };
            let op = self.ops[id as usize];
            for at in [op.return_at, op.call_at] {
                if at != NEVER {
                    let (prev, next) = (self.prev[at as usize], self.next[at as usize]);
                    self.next[prev as usize] = at;
                    self.prev[next as usize] = at;
                }
            }
            match op.kind {
                Kind::Read { only_in } if only_in != NEVER => self.traffic[only_in as usize].readers += 1,
                Kind::Write { leaves, .. } => self.traffic[leaves as usize].writers += 1,
                _ => {}
            }
        }
        self.best_shared = self.best_shared.min(self.trail.len());
    }

    /// Keeps the present trail if it is the longest that ended so far. Then `open` is its own: if another configuration
    /// was entered in between, a longer trail has ended.
    fn note_best(&mut self) {
        if self.trail.len() < self.best.len() || (self.trail.len() == self.best.len() && !self.best_open.is_empty()) {
            return;
        }
        self.best.truncate(self.best_shared);
        self.best.extend_from_slice(&self.trail[self.best_shared..]);
        self.best_shared = self.best.len();
        self.best_open.clone_from(&self.open);
    }

    /// The evidence of a search that found no order.
    fn evidence(&self) -> Evidence {
        let placed: Vec<usize> = self.best.iter().map(|&op| op as usize).collect();
        let culprits: Vec<usize> = self.best_open.iter().map(|&op| op as usize).collect();
        let mut text = format!("{} ({} of {} placed)", Reason::Stuck, placed.len(), self.events.len());
        let mut state = self.model.initial();
        let hidden = placed.len().saturating_sub(SHOWN_MAX);
        // Writing to a string cannot fail.
        if hidden > 0 {
            let _ = write!(text, "\n  ... {hidden} operations");
        }
        for (nth, &at) in placed.iter().enumerate() {
            let event = &self.events[at];
            state = self.model.step(&state, &event.input, event.output.as_ref()).unwrap_or(state);
            if nth >= hidden {
                let _ = write!(text, "\n  #{at:<6} {event}   leaves {state:?}");
            }
        }
        let _ = write!(text, "\n  then, in state {state:?}, none of these leads on:");
        for &at in culprits.iter().take(SHOWN_MAX) {
            let event = &self.events[at];
            let possible = self.model.step(&state, &event.input, event.output.as_ref()).is_some();
            let remark = if possible { "possible here, but another then fails" } else { "impossible here" };
            let _ = write!(text, "\n  #{at:<6} {event}   {remark}");
        }
        if culprits.len() > SHOWN_MAX {
            let _ = write!(text, "\n  ... and {} more", culprits.len() - SHOWN_MAX);
        }
        Evidence { reason: Reason::Stuck, placed, culprits, text }
    }
}

#[cfg(test)]
pub(super) mod tests;
