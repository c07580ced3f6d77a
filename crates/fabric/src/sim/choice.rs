//! The decisions of a search, and the ends of an execution.

use mowgli::machine::{Step, Thread as Cpu};

use super::fault_kinds::Fault;
use super::record::Event;
use super::world::Inner;
use crate::ptr::NodeId;

/// Something that could happen next.
///
/// ```
/// # use farfield_fabric::sim::Candidate;
/// let candidates = [Candidate::Elapse, Candidate::Thread(2)];
/// let first_thread = candidates.iter().position(|next| matches!(next, Candidate::Thread(_)));
/// assert_eq!(first_thread, Some(1));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Candidate {
    /// A thread continues with its pending access.
    Thread(u16),
    /// The machine takes a step.
    Machine(Step),
    /// Time passes until the next deadline, though something else could happen.
    Elapse,
    /// A fault happens, or something that follows from one.
    Fault(Fault),
}

impl Candidate {
    /// The part of the machine that it is a step of: a thread, its store buffer, a queue pair.
    ///
    /// ```
    /// # use farfield_fabric::sim::Candidate;
    /// let slow = Candidate::Thread(2).component(); // its steps are delayed
    /// let candidates = [1, 2, 3].map(Candidate::Thread);
    /// let fast: Vec<_> = candidates.into_iter().filter(|next| next.component() != slow).collect();
    /// assert_eq!(fast, [Candidate::Thread(1), Candidate::Thread(3)]);
    /// ```
    pub fn component(self) -> u32 {
        match self {
            Candidate::Thread(thread) => u32::from(thread),
            Candidate::Machine(Step::Drain(cpu)) => 1 << 30 | u32::from(cpu.0),
            Candidate::Machine(Step::Nic { thread, peer, .. }) => pair_of(thread, peer),
            Candidate::Elapse => u32::MAX,
            Candidate::Fault(fault) => fault.component(),
        }
    }
}

pub(super) fn pair_of(lane: Cpu, peer: u16) -> u32 {
    2 << 30 | u32::from(lane.0) << 12 | u32::from(peer)
}

/// A range of the keys that threads can notice. Steps whose ranges overlap may depend on each other, if one of them
/// writes: see [`Footprint::depends_on`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Touch {
    pub(super) first: u64,
    pub(super) count: u64,
    pub(super) write: bool,
}

impl Touch {
    fn overlaps(&self, other: &Touch) -> bool {
        (self.write || other.write) && self.first < other.first + other.count && other.first < self.first + self.count
    }
}

/// The footprint of a step: two steps with independent footprints commute.
///
/// ```
/// # use farfield_fabric::sim::Footprint;
/// let nothing = Footprint::default(); // of a step of no thread, which touches nothing
/// assert!(!nothing.depends_on(&nothing));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Footprint {
    pub(super) actors: [Option<u32>; 2],
    pub(super) touches: [Option<Touch>; 2],
    /// It may take any thread, operation or message away: nothing commutes with it.
    pub(super) is_fault: bool,
}

impl Footprint {
    /// Whether the order of the two may matter.
    ///
    /// ```
    /// # use farfield_fabric::{*, sim::*};
    /// # use std::{cell::Cell, rc::Rc};
    /// /// Sets a flag when the first two candidates do not commute. Takes the last one.
    /// struct Conflict(Rc<Cell<bool>>);
    /// impl Chooser for Conflict {
    ///     fn choose(&mut self, view: &View<'_>) -> usize {
    ///         if view.footprint(view.candidates[0]).depends_on(&view.footprint(view.candidates[1])) {
    ///             self.0.set(true);
    ///         }
    ///         view.candidates.len() - 1
    ///     }
    /// #   fn value(&mut self, _: usize) -> usize { 0 }
    /// }
    /// # fn two_threads(handle: Handle) {
    /// #     let word = std::rc::Rc::new(Word::new(0));
    /// #     for _ in 0..2 {
    /// #         let word = word.clone();
    /// #         handle.spawn(NodeId(0), "adds", true, Box::new(move || _ = word.fetch_add(1))).expect("a stack");
    /// #     }
    /// #     handle.explore();
    /// # }
    /// let found = Rc::new(Cell::new(false));
    /// sim::run(Settings::new(1), Box::new(Conflict(found.clone())), two_threads); // both change one word
    /// assert!(found.get());
    /// ```
    pub fn depends_on(&self, other: &Footprint) -> bool {
        let same_actor = self.actors.iter().flatten().any(|actor| other.actors.contains(&Some(*actor)));
        let touch = |mine: &Touch| other.touches.iter().flatten().any(|theirs| mine.overlaps(theirs));
        self.is_fault || other.is_fault || same_actor || self.touches.iter().flatten().any(touch)
    }
}

/// The state that a [`Chooser`] may see.
///
/// ```
/// # use farfield_fabric::{*, sim::*};
/// # struct Last;
/// # impl Chooser for Last {
/// #     fn choose(&mut self, view: &View<'_>) -> usize { view.candidates.len() - 1 }
/// #     fn value(&mut self, _: usize) -> usize { 0 }
/// # }
/// # fn two_threads(handle: Handle) {
/// #     let word = std::rc::Rc::new(Word::new(0));
/// #     for _ in 0..2 {
/// #         let word = word.clone();
/// #         handle.spawn(NodeId(0), "adds", true, Box::new(move || _ = word.fetch_add(1))).expect("a stack");
/// #     }
/// #     handle.explore();
/// # }
/// /// Repeats the choices of another execution.
/// struct Again(Vec<Choice>);
/// impl Chooser for Again {
///     fn choose(&mut self, view: &View<'_>) -> usize {
///         self.0.get(view.decision).map_or(0, |choice| usize::from(choice.taken))
///     }
/// #   fn value(&mut self, _: usize) -> usize { 0 }
/// }
/// let first = sim::run(Settings::new(1), Box::new(Last), two_threads);
/// let again = sim::run(Settings::new(1), Box::new(Again(first.choices.clone())), two_threads);
/// assert_eq!(again.choices, first.choices);
/// ```
pub struct View<'a> {
    /// The possible next steps, never empty, in an order that depends on the state only: the running thread first, then
    /// the others, then the machine.
    pub candidates: &'a [Candidate],
    /// Decisions so far in this execution.
    pub decision: usize,
    pub(super) inner: &'a Inner,
}

impl View<'_> {
    /// A digest of the state, the same for the same state: memory, buffers, queue pairs, and the values that each
    /// thread has seen.
    ///
    /// ```
    /// # use farfield_fabric::{*, sim::*};
    /// # use std::{cell::RefCell, rc::Rc};
    /// # fn two_threads(handle: Handle) {
    /// #     let word = std::rc::Rc::new(Word::new(0));
    /// #     for _ in 0..2 {
    /// #         let word = word.clone();
    /// #         handle.spawn(NodeId(0), "adds", true, Box::new(move || _ = word.fetch_add(1))).expect("a stack");
    /// #     }
    /// #     handle.explore();
    /// # }
    /// struct Digests(Rc<RefCell<Vec<u64>>>);
    /// impl Chooser for Digests {
    ///     fn choose(&mut self, view: &View<'_>) -> usize {
    ///         self.0.borrow_mut().push(view.digest());
    ///         0
    ///     }
    /// #   fn value(&mut self, _: usize) -> usize { 0 }
    /// }
    /// let states = [(); 2].map(|()| {
    ///     let seen = Rc::new(RefCell::new(Vec::new()));
    ///     sim::run(Settings::new(1), Box::new(Digests(seen.clone())), two_threads);
    ///     seen.take()
    /// });
    /// assert_eq!(states[0], states[1]);
    /// ```
    pub fn digest(&self) -> u64 {
        self.inner.digest()
    }

    /// The footprint of a candidate's step.
    ///
    /// ```
    /// # use farfield_fabric::sim::{Candidate, View};
    /// /// Whether the order of two possible steps may matter.
    /// fn may_matter(view: &View<'_>, a: Candidate, b: Candidate) -> bool {
    ///     view.footprint(a).depends_on(&view.footprint(b))
    /// }
    /// ```
    pub fn footprint(&self, candidate: Candidate) -> Footprint {
        self.inner.footprint(candidate)
    }
}

/// A choice that was made: which candidate or value, of how many.
///
/// ```
/// # use farfield_fabric::{*, sim::*};
/// let outcome = sim::run(Settings::new(1), Box::new(First), |handle| assert_eq!(handle.draw(3), 0));
/// assert_eq!(outcome.choices, [Choice { taken: 0, of: 3 }]);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Choice {
    /// Its number.
    pub taken: u16,
    /// How many there were, at least two.
    pub of: u16,
}

/// Decides what happens next.
///
/// ```
/// # use farfield_fabric::{*, sim::*};
/// /// Takes the last candidate, and the largest number.
/// struct Last;
/// impl Chooser for Last {
///     fn choose(&mut self, view: &View<'_>) -> usize { view.candidates.len() - 1 }
///     fn value(&mut self, options: usize) -> usize { options - 1 }
/// }
/// let outcome = sim::run(Settings::new(1), Box::new(Last), |handle| assert_eq!(handle.draw(3), 2));
/// assert_eq!(outcome.failure, None);
/// ```
pub trait Chooser {
    /// Whether a step is taken at once, without a decision, if its time cannot be observed.
    fn eager(&self) -> bool {
        false
    }
    /// Whether deadlines may pass while something else could happen.
    fn early_timeouts(&self) -> bool {
        false
    }
    /// Whether it is asked where there is one candidate, too.
    fn wants_all(&self) -> bool {
        false
    }
    /// Which of the candidates happens. A number beyond the last means the first.
    fn choose(&mut self, view: &View<'_>) -> usize;
    /// A number below `options`, for a thread that asked for one.
    fn value(&mut self, options: usize) -> usize;
    /// A step was taken without asking.
    fn passed(&mut self, _footprint: &Footprint) {}
}

/// Takes the first candidate, and zero: one schedule, in which each thread runs until it waits.
///
/// ```
/// # use farfield_fabric::{*, sim::*};
/// let outcome = sim::run(Settings::new(1), Box::new(First), |handle| assert_eq!(handle.draw(3), 0));
/// assert_eq!(outcome.failure, None);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct First;

impl Chooser for First {
    fn choose(&mut self, _view: &View<'_>) -> usize {
        0
    }

    fn value(&mut self, _options: usize) -> usize {
        0
    }
}

/// Why an execution failed.
///
/// ```
/// # use farfield_fabric::{*, sim::*};
/// let outcome = sim::run(Settings::new(1), Box::new(First), |_| panic!("a bug"));
/// let failure: Failure = outcome.failure.expect("it has failed");
/// assert_eq!((failure.kind, failure.thread), (FailureKind::Panic, Some(0)));
/// assert!(failure.message.starts_with("a bug"));
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The kind of failure.
    pub kind: FailureKind,
    /// In words.
    pub message: String,
    /// The thread that ran.
    pub thread: Option<usize>,
    /// Position in the schedule.
    pub step: u64,
}

/// The kinds of failures of an execution.
///
/// ```
/// # use farfield_fabric::{*, sim::*};
/// let outcome = sim::run(Settings::new(1), Box::new(First), |_| {
///     let word = Word::new(0);
///     while word.load() == 0 {} // no thread sets it
/// });
/// assert_eq!(outcome.failure.expect("it has failed").kind, FailureKind::TooLong);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FailureKind {
    /// A thread panicked.
    Panic,
    /// A thread ended in an error.
    Error,
    /// An invariant did not hold.
    Invariant,
    /// Nothing can ever happen again, and threads have not ended.
    Deadlock,
    /// It did not end within the limit of steps.
    TooLong,
    /// The same choices led elsewhere than before: the scenario depends on something that is not chosen.
    Unrepeatable,
}

/// How an execution ended.
///
/// ```
/// # use farfield_fabric::{*, sim::*};
/// let outcome: Outcome = sim::run(Settings::new(1), Box::new(First), |handle| drop(handle.join(NodeId(0))));
/// assert!(outcome.failure.is_none() && outcome.faults.is_none());
/// assert!(outcome.choices.is_empty() && outcome.steps > 0);
/// assert_eq!(outcome.threads, [(NodeId(0), "main".to_string())]);
/// ```
pub struct Outcome {
    /// Why it failed, if it did.
    pub failure: Option<Failure>,
    /// The choices that were made.
    pub choices: Vec<Choice>,
    /// The step at which the exploration began.
    pub explored_from: u64,
    /// Steps of threads and of the machine.
    pub steps: u64,
    /// A digest of the state at the end of the exploration: the same if all threads have seen the same.
    pub end: u64,
    /// What happened, if it was recorded.
    pub events: Vec<Event>,
    /// The threads: node and name.
    pub threads: Vec<(NodeId, String)>,
    /// Names of memory: node, first word, words, name.
    pub labels: Vec<(u16, u32, u32, String)>,
    /// The faults that happened, in words.
    pub faults: Option<String>,
    /// A fault has not ended: a cut, a stall, or a death that is not known to all nodes.
    pub fault_lasts: bool,
    /// Rights or membership have changed in the explored executions, and the settings have neither faults nor a rule:
    /// the reduction of an exhaustive search does not account for that.
    pub changes_rights: bool,
    /// The chooser, back.
    pub chooser: Box<dyn Chooser>,
}
