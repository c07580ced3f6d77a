//! Cases over the simulator ([`farfield_fabric::sim`]): a case is the main thread of a world.
//!
//! The case itself follows one schedule. The threads that it runs by [`threads`] are explored, by one random execution,
//! always the same.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::sync::Arc;

use farfield_fabric::sim::{self, Candidate, Chooser, Handle, Settings, View};
use farfield_fabric::{NodeId, Thread, Transport};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::harness::Job;

/// The memory of a simulated node, for all its groups.
pub(crate) const NODE_BYTES: usize = 64 << 20;
/// A case takes half a million steps at most. A case that never ends is ended here, and the error reports which thread
/// waits for what.
const STEPS_MAX: u64 = 1 << 24;

thread_local! {
    /// The world that this OS thread runs.
    static WORLD: RefCell<Option<Rc<Handle>>> = const { RefCell::new(None) };
    /// Set while the case runs only to find the number of nodes of its session.
    static IS_ASKED: Cell<bool> = const { Cell::new(false) };
}

fn world() -> Option<Rc<Handle>> {
    WORLD.with_borrow(Clone::clone)
}

/// Whether the caller runs in a simulation.
pub(crate) fn is_here() -> bool {
    WORLD.with_borrow(Option::is_some)
}

/// Runs a case.
pub(crate) fn run(case: impl Fn() + 'static) {
    let nodes = nodes_of(&case);
    let settings = Settings { steps_max: STEPS_MAX, ..Settings::new(nodes) };
    let outcome = sim::run(settings, Box::new(Random::new(1)), move |handle| {
        WORLD.set(Some(Rc::new(handle)));
        case();
    });
    WORLD.set(None);
    if let Some(failure) = outcome.failure {
        panic!("{:?} at step {}: {}", failure.kind, failure.step, failure.message);
    }
}

/// The size of a world is fixed from its start, so the case is first run up to its first session.
fn nodes_of(case: &impl Fn()) -> usize {
    IS_ASKED.set(true);
    let asked = catch_unwind(AssertUnwindSafe(case));
    IS_ASKED.set(false);
    let nodes = asked.expect_err("a case has a session").downcast::<usize>();
    *nodes.unwrap_or_else(|panic| resume_unwind(panic))
}

/// A node of a session of `nodes` nodes.
pub(crate) fn join(node: NodeId, nodes: usize) -> Arc<dyn Transport> {
    if IS_ASKED.get() {
        resume_unwind(Box::new(nodes));
    }
    world().expect("a case runs in a world").join(node)
}

/// Waits until `ready` gives a value, at the latest until no other thread has anything to do.
pub(crate) fn eventually<T>(what: &str, mut ready: impl FnMut() -> Option<T>) -> T {
    for _ in 0..3 {
        if let Some(value) = ready() {
            return value;
        }
        sim::calm();
    }
    panic!("not when all is calm: {what}");
}

/// Explores threads.
pub(crate) fn threads<T: Send, const N: usize>(jobs: [Job<'_, T>; N]) -> [T; N] {
    let world = world().expect("a case runs in a world");
    let results = [const { RefCell::new(None) }; N];
    let mut threads: Vec<Thread> = Vec::new();
    let explored = catch_unwind(AssertUnwindSafe(|| {
        for (at, (node, body)) in jobs.into_iter().enumerate() {
            let result = &results[at];
            let body: Box<dyn FnOnce() + '_> = Box::new(move || *result.borrow_mut() = Some(body()));
            // SAFETY: only the lifetime changes. The thread has ended, and so dropped the body, before this function
            // returns or continues unwinding: see below. If the world gives up unwinding, no thread ever runs again.
            let body: Box<dyn FnOnce() + 'static> = unsafe { core::mem::transmute(body) };
            threads.push(world.spawn(node.id(), &format!("thread-{at}"), true, body).expect("memory for its stack"));
        }
        world.explore();
    }));
    while !threads.iter().all(Thread::is_finished) {
        sim::calm(); // while the world is torn down, this lets others unwind
    }
    explored.unwrap_or_else(|panic: Box<dyn Any + Send>| resume_unwind(panic));
    results.map(|result| result.into_inner().expect("a thread that has ended has a result"))
}

/// Chooses at random. An even choice hardly ever delays a component for long. So for a while some components are slow
/// and others fast, and then the roles change.
struct Random {
    rng: SmallRng,
    salt: u64,
    /// The decision at which other components become slow.
    until: usize,
}

impl Random {
    fn new(seed: u64) -> Random {
        Random { rng: SmallRng::seed_from_u64(seed), salt: 0, until: 0 }
    }

    fn weight(&self, candidate: &Candidate) -> u32 {
        let mixed = (self.salt ^ u64::from(candidate.component())).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        1 << ((mixed ^ mixed >> 31).wrapping_mul(0xd6e8_feb8_6659_fd93) >> 61)
    }
}

impl Chooser for Random {
    fn choose(&mut self, view: &View<'_>) -> usize {
        if view.decision >= self.until {
            self.until = view.decision + self.rng.random_range(1..200);
            self.salt = self.rng.random();
        }
        let total = view.candidates.iter().map(|candidate| self.weight(candidate)).sum();
        let mut drawn = self.rng.random_range(0..total);
        let mut weights = view.candidates.iter().map(|candidate| self.weight(candidate));
        let found = weights.position(|weight| {
            let taken = drawn < weight;
            drawn = drawn.wrapping_sub(weight);
            taken
        });
        found.expect("less than the sum of all weights was drawn")
    }

    fn value(&mut self, options: usize) -> usize {
        self.rng.random_range(0..options)
    }
}
