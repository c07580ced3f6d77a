//! One execution, for its caller: its limits, its main thread's view, and what its threads may ask.

use std::sync::Arc;

use super::NODES_MAX;
use super::choice::{Chooser, FailureKind, Outcome};
use super::record::What;
use super::settings::Settings;
use super::state::{Pending, Phase};
use super::threads::{Turn, end_thread, execute, with_world};
use crate::error::Result;
use crate::fabric::DeathRule;
use crate::local::Thread;
use crate::ptr::NodeId;

/// The simulation, as its main thread sees it. What happens before and after [`Handle::explore`] follows one schedule
/// without choices.
///
/// ```
/// # use farfield_fabric::{*, sim::*};
/// let outcome = sim::run(Settings::new(1), Box::new(First), |handle: Handle| {
///     let words = handle.join(NodeId(0)).alloc(GroupKey::DATA, 8).expect("memory");
///     let own = words.clone();
///     handle.spawn(NodeId(0), "sets", true, Box::new(move || own.word(0).store(7))).expect("a stack");
///     handle.explore();
///     assert_eq!(words.word(0).load(), 7);
/// });
/// assert_eq!(outcome.failure, None);
/// ```
pub struct Handle {
    id: u64,
    nodes: usize,
    places: usize,
    seed: u64,
}

/// Runs one execution. `main` runs as a thread of node 0; the execution ends when all threads have.
///
/// ```
/// # use farfield_fabric::{*, sim::*};
/// let outcome = sim::run(Settings::new(1), Box::new(First), |handle| {
///     let words = handle.join(NodeId(0)).alloc(GroupKey::DATA, 8).expect("memory");
///     for name in ["first", "second"] {
///         let words = words.clone();
///         let add = move || _ = words.word(0).fetch_add(1);
///         handle.spawn(NodeId(0), name, true, Box::new(add)).expect("a stack");
///     }
///     handle.explore();
///     assert_eq!(words.word(0).load(), 2);
/// });
/// assert_eq!(outcome.failure, None);
/// ```
///
/// # Panics
/// If this OS thread already runs a simulation, or there is no memory for one.
pub fn run(settings: Settings, chooser: Box<dyn Chooser>, main: impl FnOnce(Handle) + 'static) -> Outcome {
    assert!((1..=NODES_MAX).contains(&settings.nodes), "a simulated session has 1 to {NODES_MAX} nodes");
    assert!((1..=settings.nodes).contains(&settings.places), "a simulated session has at least one place");
    if let (DeathRule::System, Some(faults)) = (settings.death_rule, &settings.faults) {
        assert!(
            faults.cuts + faults.false_suspicions == 0,
            "only a majority can decide about a node that is cut off or slow"
        );
    }
    let (nodes, places, seed) = (settings.nodes, settings.places, settings.seed);
    let mut inner = execute(&settings, chooser, move |id| main(Handle { id, nodes, places, seed }));
    let faults = inner.tell_faults();
    if let (Some(failure), Some(faults)) = (&mut inner.run.failure, &faults) {
        failure.message = format!("({faults}) {}", failure.message);
    }
    Outcome {
        fault_lasts: inner.faults.as_ref().is_some_and(|faults| faults.progress().1),
        failure: inner.run.failure,
        faults,
        choices: inner.search.log,
        explored_from: inner.run.explored_from,
        steps: inner.run.steps,
        end: inner.run.end,
        events: inner.record.events.unwrap_or_default(),
        threads: inner.threads.into_iter().map(|thread| (NodeId(thread.node), thread.name)).collect(),
        labels: inner.record.labels,
        changes_rights: inner.changes_rights,
        chooser: inner.search.chooser.expect("it is there between choices"),
    }
}

impl Handle {
    /// How many nodes the session has.
    ///
    /// ```
    /// # use farfield_fabric::{*, sim::*};
    /// let outcome = sim::run(Settings::new(3), Box::new(First), |handle| assert_eq!(handle.nodes(), 3));
    /// assert_eq!(outcome.failure, None);
    /// ```
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// A number below `options` that the search chooses, before the exploration too.
    ///
    /// ```
    /// # use farfield_fabric::{*, sim::*};
    /// # struct Last;
    /// # impl Chooser for Last {
    /// #     fn choose(&mut self, view: &View<'_>) -> usize { view.candidates.len() - 1 }
    /// #     fn value(&mut self, options: usize) -> usize { options - 1 }
    /// # }
    /// let outcome = sim::run(Settings::new(1), Box::new(Last), |handle| {
    ///     assert_eq!([2, 5].map(|options| handle.draw(options)), [1, 4]); // this search takes the largest
    /// });
    /// assert_eq!(outcome.failure, None);
    /// ```
    pub fn draw(&self, options: usize) -> usize {
        with_world(|world| world.inner.borrow_mut().draw(options)).unwrap_or(0)
    }

    /// The fabric of a node, which has joined the session then.
    ///
    /// ```
    /// # use farfield_fabric::{*, sim::*};
    /// let outcome = sim::run(Settings::new(2), Box::new(First), |handle| {
    ///     let nodes = [0, 1].map(|node| handle.join(NodeId(node)));
    ///     assert_eq!(nodes.map(|node| node.me()), [NodeId(0), NodeId(1)]);
    /// });
    /// assert_eq!(outcome.failure, None);
    /// ```
    ///
    /// # Panics
    /// If there is no such node, or it has joined already.
    pub fn join(&self, node: NodeId) -> Arc<super::SimFabric> {
        super::SimFabric::join(self.id, node, self.places, self.nodes, self.seed)
    }

    /// Starts a thread on a node. One that is `held` begins with the exploration.
    ///
    /// ```
    /// # use farfield_fabric::{*, sim::*};
    /// let outcome = sim::run(Settings::new(1), Box::new(First), |handle| {
    ///     let word = std::rc::Rc::new(Word::new(0));
    ///     let own = word.clone();
    ///     let thread = handle.spawn(NodeId(0), "sets", false, Box::new(move || own.store(7))).expect("a stack");
    ///     thread.join().expect("it does not panic");
    ///     assert_eq!(word.load(), 7);
    /// });
    /// assert_eq!(outcome.failure, None);
    /// ```
    ///
    /// # Errors
    /// No memory for its stack.
    pub fn spawn(&self, node: NodeId, name: &str, held: bool, body: Box<dyn FnOnce()>) -> Result<Thread> {
        let spawned = with_world(|world| world.spawn(node.0, name.into(), held, body));
        let index = spawned.expect("a handle lives as long as its world")?;
        Ok(Thread::simulated(self.id, index))
    }

    /// Something that holds whenever memory has changed. It must only look.
    ///
    /// ```
    /// # use farfield_fabric::{*, sim::*};
    /// let outcome = sim::run(Settings::new(1), Box::new(First), |handle| {
    ///     let words = handle.join(NodeId(0)).alloc(GroupKey::DATA, 8).expect("memory");
    ///     let seen = words.clone();
    ///     handle.invariant("at most one", move || match seen.word(0).load() {
    ///         0 | 1 => Ok(()),
    ///         more => Err(more.to_string()),
    ///     });
    ///     handle.spawn(NodeId(0), "sets", true, Box::new(move || words.word(0).store(2))).expect("a stack");
    ///     handle.explore();
    /// });
    /// assert_eq!(outcome.failure.expect("it has failed").kind, FailureKind::Invariant);
    /// ```
    pub fn invariant(&self, name: &str, holds: impl Fn() -> core::result::Result<(), String> + 'static) {
        with_world(|world| {
            world.invariants.borrow_mut().push((name.into(), Box::new(holds)));
            world.inner.borrow_mut().rules.has_invariants = true;
        });
    }

    /// Explores: waits until all held threads have ended, and their stores and puts have landed.
    ///
    /// ```
    /// # use farfield_fabric::{*, sim::*};
    /// let outcome = sim::run(Settings::new(1), Box::new(First), |handle| {
    ///     let thread = handle.spawn(NodeId(0), "idles", true, Box::new(|| ())).expect("a stack");
    ///     assert!(!thread.is_finished()); // it is held
    ///     handle.explore();
    ///     assert!(thread.is_finished());
    /// });
    /// assert_eq!(outcome.failure, None);
    /// ```
    pub fn explore(&self) {
        with_world(|world| {
            // The work that the setup has left is done before.
            world.point(Pending::Calm);
            {
                let mut inner = world.inner.borrow_mut();
                inner.run.phase = Phase::Explored;
                inner.run.explored_from = inner.run.steps;
                inner.rules.open_membership = inner.nodes.iter().any(|node| !node.joined || node.left);
                for thread in &mut inner.threads {
                    if thread.pending == Pending::Held {
                        thread.pending = Pending::Start;
                    }
                }
            }
            world.point(Pending::JoinHeld);
            {
                let mut inner = world.inner.borrow_mut();
                inner.run.end = inner.digest();
                inner.run.phase = Phase::Settled;
                inner.end_faults();
            }
            world.point(Pending::Calm);
            world.inner.borrow_mut().rules.has_invariants = false;
        });
    }
}

/// Ends the execution as a failure, such as that of a thread that returned an error.
///
/// ```
/// # use farfield_fabric::{*, sim::*};
/// let outcome = sim::run(Settings::new(1), Box::new(First), |_| sim::fail("no majority".into()));
/// let failure = outcome.failure.expect("it has failed");
/// assert_eq!((failure.kind, &failure.message[..]), (FailureKind::Error, "no majority"));
/// ```
pub fn fail(message: String) -> ! {
    with_world(|world| {
        let mut inner = world.inner.borrow_mut();
        if let Some(me) = inner.current {
            inner.threads[me].unwinding = true;
            if inner.is_dead(me) {
                return;
            }
        }
        inner.fail(FailureKind::Error, message.clone());
        world.teardown.set(true);
    });
    end_thread(message)
}

/// Waits until no other thread has anything to do. During a teardown, lets the others unwind.
///
/// ```
/// # use farfield_fabric::{*, sim::*};
/// let outcome = sim::run(Settings::new(1), Box::new(First), |handle| {
///     let word = std::rc::Rc::new(Word::new(0));
///     let own = word.clone();
///     handle.spawn(NodeId(0), "sets", false, Box::new(move || own.store(7))).expect("a stack");
///     sim::calm();
///     assert_eq!(word.load(), 7);
/// });
/// assert_eq!(outcome.failure, None);
/// ```
pub fn calm() {
    with_world(|world| {
        if world.point(Pending::Calm) == Turn::Unwinding {
            world.let_others_unwind();
        }
    });
}

/// Whether a node has crashed in this execution.
///
/// ```
/// # use farfield_fabric::{*, sim::*};
/// # struct Worst;
/// # impl Chooser for Worst {
/// #     fn choose(&mut self, view: &View<'_>) -> usize {
/// #         let is_new = |next: &Candidate| matches!(next, Candidate::Fault(fault) if fault.is_new());
/// #         view.candidates.iter().position(is_new).unwrap_or(0)
/// #     }
/// #     fn value(&mut self, _: usize) -> usize { 0 }
/// # }
/// let settings = Settings { faults: Some(Faults::new().crashes(1).of([1])), ..Settings::new(2) };
/// // A search that takes a fault wherever one can happen: here the crash of node 1.
/// let outcome = sim::run(settings, Box::new(Worst), |handle| {
///     let nodes = [0, 1].map(|node| handle.join(NodeId(node)));
///     handle.spawn(NodeId(1), "works", true, Box::new(|| ())).expect("a stack");
///     handle.explore();
///     assert_eq!(nodes.map(|node| sim::crashed(node.me())), [false, true]);
/// });
/// assert_eq!(outcome.failure, None);
/// ```
pub fn crashed(node: NodeId) -> bool {
    with_world(|world| world.inner.borrow().is_crashed(node.0)) == Some(true)
}

/// Whether a NIC has stalled or a thread was paused in this execution, so that time may have passed with work left.
///
/// ```
/// # use farfield_fabric::{*, sim::*};
/// # struct Worst;
/// # impl Chooser for Worst {
/// #     fn choose(&mut self, view: &View<'_>) -> usize {
/// #         let is_new = |next: &Candidate| matches!(next, Candidate::Fault(fault) if fault.is_new());
/// #         view.candidates.iter().position(is_new).unwrap_or(0)
/// #     }
/// #     fn value(&mut self, _: usize) -> usize { 0 }
/// # }
/// let settings = Settings { faults: Some(Faults::new().pauses(1)), ..Settings::new(1) };
/// // A search that takes a fault wherever one can happen: here a pause of the thread.
/// let outcome = sim::run(settings, Box::new(Worst), |handle| {
///     let _node = handle.join(NodeId(0));
///     handle.spawn(NodeId(0), "works", true, Box::new(|| ())).expect("a stack");
///     assert!(!sim::was_paused());
///     handle.explore();
///     assert!(sim::was_paused()); // a wait of the thread may have timed out
/// });
/// assert_eq!(outcome.failure, None);
/// ```
pub fn was_paused() -> bool {
    with_world(|world| world.inner.borrow().has_stood_still()) == Some(true)
}

/// How much has happened that lets a wait time out, or none if time may pass at any moment: a fault lasts, something
/// has stood still, or a majority decides deaths, and the nodes have to find out.
///
/// ```
/// # use farfield_fabric::{*, sim::*};
/// let outcome = sim::run(Settings::new(1), Box::new(First), |handle| {
///     let _node = handle.join(NodeId(0));
///     assert_eq!(sim::excuses(), Some(0)); // a wait that times out now does so without a reason
/// });
/// assert_eq!(outcome.failure, None);
/// ```
pub fn excuses() -> Option<u32> {
    with_world(|world| world.inner.borrow().excuses()).flatten()
}

/// Adds a remark to the record of the execution.
///
/// ```
/// # use farfield_fabric::{*, sim::*};
/// let settings = Settings { record: true, ..Settings::new(1) };
/// let outcome = sim::run(settings, Box::new(First), |_| sim::note(|| "half way".into()));
/// let remark = What::Note { text: "half way".into() };
/// assert!(outcome.events.iter().any(|event| event.what == remark));
/// ```
pub fn note(text: impl FnOnce() -> String) {
    with_world(|world| {
        let mut inner = world.inner.borrow_mut();
        if let (true, Some(current)) = (inner.records(), inner.current) {
            inner.note(current, What::Note { text: text() });
        }
    });
}
