//! The choice of the next step, and the passing of time.

use mowgli::machine::Step;

use super::choice::{Candidate, Choice, Chooser, FailureKind, View};
use super::fault_kinds::Fault;
use super::record::What;
use super::state::{Pending, Phase, ThreadState};
use super::world::Inner;

/// The result of the loop.
pub(super) enum Decided {
    /// This thread continues.
    Run(usize),
    /// Memory has changed: check the invariants, and return.
    Check,
    /// A node has crashed: unwind its threads.
    Crashed(u16),
    /// No thread continues: the execution has ended, or failed.
    End,
}

/// How often service threads poll once more when no step is possible, in all, and without a step of the machine in
/// between.
const NUDGES_MAX: u32 = 10_000;

const NUDGES_IN_A_ROW_MAX: u32 = 8;

/// How often time passes early in an execution: a wait in slices would otherwise run through all of them.
const EARLY_JUMPS_MAX: u32 = 4;

/// The clock at the start of every execution: zero would mean never.
const START_NS: u64 = 1_000_000_000;

/// The virtual clock, and what limits it.
pub(super) struct Time {
    pub(super) now_ns: u64,
    /// See [`NUDGES_MAX`].
    nudges: u32,
    nudges_in_a_row: u32,
    /// See [`EARLY_JUMPS_MAX`].
    early_jumps: u32,
}

impl Default for Time {
    fn default() -> Time {
        Time { now_ns: START_NS, nudges: 0, nudges_in_a_row: 0, early_jumps: 0 }
    }
}

/// The choices of an execution.
pub(super) struct Search {
    /// There is one, except while it chooses.
    pub(super) chooser: Option<Box<dyn Chooser>>,
    pub(super) log: Vec<Choice>,
    decisions: usize,
    /// Memory of [`Inner::decide`], which is kept: the possible steps of the machine, and all candidates.
    machine_steps: Vec<Step>,
    candidates: Vec<Candidate>,
}

impl Search {
    pub(super) fn new(chooser: Box<dyn Chooser>) -> Search {
        Search {
            chooser: Some(chooser),
            log: Vec::new(),
            decisions: 0,
            machine_steps: Vec::new(),
            candidates: Vec::new(),
        }
    }
}

impl Inner {
    /// Adds the passing of time, if a thread waits with a deadline.
    pub(super) fn elapse_candidate(&self, into: &mut Vec<Candidate>) {
        let waits = |t: &ThreadState| matches!(t.pending, Pending::Idle(_)) && !t.is_woken() && t.deadline.is_some();
        if self.time.early_jumps < EARLY_JUMPS_MAX && self.threads.iter().any(waits) {
            into.push(Candidate::Elapse);
        }
    }

    /// Lets time pass until a waiting thread may have work. Returns whether there is such a thread.
    fn elapse(&mut self) -> bool {
        let waits = |thread: &ThreadState| matches!(thread.pending, Pending::Idle(_)) && !thread.is_woken();
        let deadlines = self.threads.iter().filter(|thread| waits(thread)).filter_map(|thread| thread.deadline);
        let Some(until) = deadlines.min() else { return false };
        self.time.now_ns = self.time.now_ns.max(until);
        let now = self.time.now_ns;
        for thread in &mut self.threads {
            if matches!(thread.pending, Pending::Idle(_)) {
                thread.interest.has_changed |= thread.deadline.is_some_and(|deadline| deadline <= now)
                    || (thread.deadline.is_none() && thread.interest.reads_clock);
            }
            for outer in thread.outer.iter_mut().filter(|outer| outer.reads_clock) {
                outer.has_changed = true;
            }
        }
        self.note(0, What::Elapsed);
        true
    }

    /// No step is possible. But a service thread may depend on ordinary memory that it has changed itself, which is not
    /// tracked: all of them poll once more. Any other thread has missed what it waits for.
    fn nudge(&mut self) -> bool {
        if self.time.nudges == NUDGES_MAX || self.time.nudges_in_a_row == NUDGES_IN_A_ROW_MAX {
            return false;
        }
        self.time.nudges += 1;
        self.time.nudges_in_a_row += 1;
        let mut found = false;
        let polls =
            |thread: &&mut ThreadState| matches!(thread.pending, Pending::Idle(Some(_))) && !thread.interest.is_deaf();
        for thread in self.threads.iter_mut().filter(polls) {
            (thread.interest.has_changed, found) = (true, true);
        }
        found
    }

    /// Decides until a thread continues. `current` is the thread that has reached a point.
    pub(super) fn decide(&mut self, current: Option<usize>) -> Decided {
        loop {
            if self.run.failure.is_some() {
                return Decided::End;
            }
            if self.changed && self.rules.has_invariants {
                self.changed = false;
                return Decided::Check;
            }
            self.run.steps += 1;
            if self.run.steps > self.run.steps_max {
                let message = format!("it has not ended after {} steps{}", self.run.steps_max, self.describe());
                self.fail(FailureKind::TooLong, message);
                return Decided::End;
            }
            let mut steps = core::mem::take(&mut self.search.machine_steps);
            steps.clear();
            self.machine.enabled(&mut steps);
            if let Some(faults) = &self.faults {
                steps.retain(|step| !self.is_blocked(faults, *step));
            }
            let decided = match self.run.phase {
                Phase::Settled => self.decide_settled(&steps, current),
                Phase::Explored => self.decide_explored(&steps, current),
            };
            self.search.machine_steps = steps;
            match decided {
                Next::Thread(index) => {
                    self.resume(index);
                    return Decided::Run(index);
                }
                Next::Machine(step) => {
                    self.time.nudges_in_a_row = 0;
                    self.apply(step);
                }
                Next::Elapse => {
                    self.time.early_jumps += 1;
                    self.elapse();
                }
                Next::Fault(fault) => {
                    self.time.nudges_in_a_row = 0;
                    self.fault(fault);
                    if let Fault::Crash(node) = fault {
                        return Decided::Crashed(node);
                    }
                }
                Next::Stuck if self.elapse() || self.nudge() => {}
                Next::Stuck => {
                    if self.threads.iter().any(|thread| thread.pending != Pending::Finished) {
                        let message = format!("nothing can happen any more{}", self.describe());
                        self.fail(FailureKind::Deadlock, message);
                    }
                    return Decided::End;
                }
            }
        }
    }

    fn resume(&mut self, index: usize) {
        let thread = &mut self.threads[index];
        if let Pending::Idle(_) = thread.pending {
            thread.keeps_interest = thread.interest.end(thread.keeps_interest);
            thread.deadline = None;
            thread.interest.reads_clock = false;
            if self.record.events.is_some() {
                self.note(index, What::Woken);
            }
        }
    }

    fn decide_settled(&mut self, steps: &[Step], current: Option<usize>) -> Next {
        if let Some(step) = steps.first() {
            return Next::Machine(*step);
        }
        let from = current.unwrap_or(0);
        let count = self.threads.len();
        let found = (0..count).map(|offset| (from + offset) % count).find(|index| self.is_enabled(*index));
        found.map_or(Next::Stuck, Next::Thread)
    }

    fn decide_explored(&mut self, steps: &[Step], current: Option<usize>) -> Next {
        let mut chooser = self.search.chooser.take().expect("a chooser, except while it chooses");
        let next = self.ask(&mut *chooser, steps, current);
        self.search.chooser = Some(chooser);
        next
    }

    fn ask(&mut self, chooser: &mut dyn Chooser, steps: &[Step], current: Option<usize>) -> Next {
        let is_eager = chooser.eager();
        // A step that a fault may cut short differs by when it happens.
        if is_eager
            && self.faults.is_none()
            && let Some(step) = steps.iter().find(|step| self.machine.is_quiet(**step))
        {
            chooser.passed(&self.footprint(Candidate::Machine(*step)));
            return Next::Machine(*step);
        }
        let mut candidates = core::mem::take(&mut self.search.candidates);
        candidates.clear();
        for index in (0..self.threads.len()).filter(|index| self.is_enabled(*index)) {
            let candidate = Candidate::Thread(index as u16);
            if is_eager && self.is_quiet(index) && !self.matters_when(index) {
                chooser.passed(&self.footprint(candidate));
                self.search.candidates = candidates;
                return Next::Thread(index);
            }
            candidates.push(candidate);
            if Some(index) == current {
                candidates.rotate_right(1);
            }
        }
        candidates.extend(steps.iter().map(|step| Candidate::Machine(*step)));
        if chooser.early_timeouts() && !candidates.is_empty() {
            self.elapse_candidate(&mut candidates);
        }
        self.fault_candidates(&mut candidates);
        let next = match candidates.len() {
            0 => Next::Stuck,
            1 if !chooser.wants_all() => next_of(candidates[0]),
            of => {
                let view = View { candidates: &candidates, decision: self.search.decisions, inner: self };
                let taken = chooser.choose(&view);
                let taken = if taken < of { taken } else { 0 };
                if of > 1 {
                    self.search.decisions += 1;
                    self.search.log.push(Choice { taken: taken as u16, of: of as u16 });
                }
                next_of(candidates[taken])
            }
        };
        self.search.candidates = candidates;
        next
    }

    /// A number below `options`, for the running thread.
    pub(super) fn value(&mut self, thread: usize, options: usize) -> usize {
        let taken = match self.run.phase {
            Phase::Settled => 0,
            Phase::Explored => self.draw(options),
        };
        self.acted(thread, taken as u64 + 0x1000);
        taken
    }

    /// The same, in the preparation as well.
    pub(super) fn draw(&mut self, options: usize) -> usize {
        if options < 2 {
            return 0;
        }
        let mut chooser = self.search.chooser.take().expect("a chooser, except while it chooses");
        let taken = chooser.value(options) % options;
        self.search.chooser = Some(chooser);
        self.search.decisions += 1;
        self.search.log.push(Choice { taken: taken as u16, of: options as u16 });
        taken
    }
}

enum Next {
    Thread(usize),
    Machine(Step),
    Fault(Fault),
    Elapse,
    Stuck,
}

fn next_of(kind: Candidate) -> Next {
    match kind {
        Candidate::Thread(index) => Next::Thread(usize::from(index)),
        Candidate::Machine(step) => Next::Machine(step),
        Candidate::Elapse => Next::Elapse,
        Candidate::Fault(fault) => Next::Fault(fault),
    }
}
