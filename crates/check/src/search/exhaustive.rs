//! All executions, up to the order of steps that commute.
//!
//! Depth-first search over the choices, each execution from the start. Three reductions keep it small:
//!
//! - **Eager steps**: a step happens at once if no thread could distinguish this from a later time (the machine's
//!   `is_quiet`, and threads that continue after a wait).
//! - **Visited states** are not explored again: the state is the machine's together with everything that each thread
//!   has read, which determines its next steps.
//! - **Sleep sets** (Godefroid): after a choice has been explored, the choices beside it need not begin with the same
//!   step as long as only steps follow that commute with it. A state that was visited with a larger sleep set is
//!   explored again with the choices that slept then.
//!
//! An execution with nothing new to show is not aborted. It runs to its end without further choices: that costs little,
//! and leaves nothing to clean up.

use std::cell::RefCell;
use std::rc::Rc;

use farfield_core::fabric::sim::{Candidate, Chooser, Footprint, View};
use foldhash::{HashMap, HashMapExt};
use smallvec::SmallVec;

type Sleeping = Vec<(Candidate, Footprint)>;

/// A search of all executions.
pub(super) struct Exhaustive(Rc<RefCell<Search>>);

struct Search {
    frames: Vec<Frame>,
    /// For each visited state, the choices that slept at every visit.
    visited: HashMap<u64, SmallVec<[Candidate; 2]>>,
    /// Frames that the execution has passed.
    depth: usize,
    sleeping: Sleeping,
    /// This execution visits no new state.
    is_free: bool,
    /// The same choices have led to another state: the scenario depends on something that is not chosen.
    has_diverged: bool,
    /// If false, every path is explored: for the tests of the reduction.
    is_reduced: bool,
}

enum Frame {
    /// Steps, of which `taken` is explored.
    Steps { options: Sleeping, taken: usize, sleeping: Sleeping },
    /// A value that a thread asks for.
    Values { of: usize, taken: usize },
}

impl Exhaustive {
    pub(super) fn new() -> Exhaustive {
        Exhaustive::with_reduction(true)
    }

    pub(super) fn with_reduction(is_reduced: bool) -> Exhaustive {
        Exhaustive(Rc::new(RefCell::new(Search {
            frames: Vec::new(),
            visited: HashMap::new(),
            depth: 0,
            sleeping: Vec::new(),
            is_free: false,
            has_diverged: false,
            is_reduced,
        })))
    }

    /// For the next execution.
    pub(super) fn chooser(&self) -> Box<dyn Chooser> {
        let mut search = self.0.borrow_mut();
        search.depth = 0;
        search.sleeping.clear();
        search.is_free = false;
        Box::new(Follower(Rc::clone(&self.0)))
    }

    /// Whether the same choices have led to another state.
    pub(super) fn has_diverged(&self) -> bool {
        self.0.borrow().has_diverged
    }

    pub(super) fn states(&self) -> u64 {
        self.0.borrow().visited.len() as u64
    }

    /// Moves to the next branch. Returns whether there is one.
    pub(super) fn advance(&self) -> bool {
        let frames = &mut self.0.borrow_mut().frames;
        while let Some(frame) = frames.last_mut() {
            let more = match frame {
                Frame::Steps { options, taken, .. } => {
                    *taken += 1;
                    *taken < options.len()
                }
                Frame::Values { of, taken } => {
                    *taken += 1;
                    taken < of
                }
            };
            if more {
                return true;
            }
            frames.pop();
        }
        false
    }
}

/// Follows the search's path, and extends it.
struct Follower(Rc<RefCell<Search>>);

fn sleeps(sleeping: &Sleeping, candidate: Candidate) -> bool {
    sleeping.iter().any(|(asleep, _)| *asleep == candidate)
}

impl Search {
    /// A step is taken: the choices that depend on it wake up.
    fn pass(&mut self, footprint: &Footprint) {
        self.sleeping.retain(|(_, asleep)| !asleep.depends_on(footprint));
    }

    fn choose(&mut self, view: &View<'_>) -> usize {
        let candidates = view.candidates;
        if self.is_free {
            return 0;
        }
        if let [only] = candidates {
            if sleeps(&self.sleeping, *only) {
                self.is_free = true;
            } else {
                self.pass(&view.footprint(*only));
            }
            return 0;
        }
        if self.depth == self.frames.len() && !self.open(view) {
            self.is_free = true;
            return 0;
        }
        let Frame::Steps { options, taken, sleeping } = &self.frames[self.depth] else { return self.diverge() };
        let (chosen, footprint) = options[*taken];
        let Some(position) = candidates.iter().position(|candidate| *candidate == chosen) else {
            return self.diverge();
        };
        self.depth += 1;
        if !self.is_reduced {
            return position;
        }
        // The choices explored before sleep from here on, as far as they commute with this one.
        let asleep = sleeping.iter().chain(&options[..*taken]);
        self.sleeping = asleep.filter(|(_, asleep)| !asleep.depends_on(&footprint)).copied().collect();
        position
    }

    fn diverge(&mut self) -> usize {
        (self.has_diverged, self.is_free) = (true, true);
        0
    }

    /// Adds a frame for the state. Returns whether there is a choice to explore.
    fn open(&mut self, view: &View<'_>) -> bool {
        if !self.is_reduced {
            let options = view.candidates.iter().map(|c| (*c, Footprint::default())).collect();
            self.frames.push(Frame::Steps { options, taken: 0, sleeping: Vec::new() });
            return true;
        }
        let slept = self.visited.get(&view.digest()).cloned();
        let fresh = |candidate: &Candidate| {
            !sleeps(&self.sleeping, *candidate) && slept.as_ref().is_none_or(|slept| slept.contains(candidate))
        };
        let options: Sleeping = view.candidates.iter().filter(|c| fresh(c)).map(|c| (*c, view.footprint(*c))).collect();
        // The choices that slept at every visit stay asleep. (A choice that was explored at an earlier visit does not
        // sleep now: it was explored without the choices that slept then.)
        let still = |candidate: &Candidate| slept.as_ref().is_none_or(|slept| slept.contains(candidate));
        let sleeping: Sleeping = self.sleeping.iter().filter(|(asleep, _)| still(asleep)).copied().collect();
        self.visited.insert(view.digest(), sleeping.iter().map(|(asleep, _)| *asleep).collect());
        if options.is_empty() {
            return false;
        }
        self.frames.push(Frame::Steps { options, taken: 0, sleeping });
        true
    }

    fn value(&mut self, options: usize) -> usize {
        if self.is_free {
            return 0;
        }
        if self.depth == self.frames.len() {
            self.frames.push(Frame::Values { of: options, taken: 0 });
        }
        let Frame::Values { of, taken } = self.frames[self.depth] else { return self.diverge() };
        if of != options {
            return self.diverge();
        }
        self.depth += 1;
        taken
    }
}

impl Chooser for Follower {
    fn eager(&self) -> bool {
        self.0.borrow().is_reduced
    }

    fn wants_all(&self) -> bool {
        true
    }

    fn choose(&mut self, view: &View<'_>) -> usize {
        self.0.borrow_mut().choose(view)
    }

    fn value(&mut self, options: usize) -> usize {
        self.0.borrow_mut().value(options)
    }

    fn passed(&mut self, footprint: &Footprint) {
        self.0.borrow_mut().pass(footprint);
    }
}
