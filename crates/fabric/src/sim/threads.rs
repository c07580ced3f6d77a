//! Running one execution: the coroutines, their scheduling points, and the teardown after a failure.

use core::any::Any;
use core::cell::{Cell as StdCell, RefCell};
use core::sync::atomic::{AtomicU64, Ordering};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Once};

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};

use super::arena::Arena;
use super::choice::{Chooser, FailureKind};
use super::record::Cell;
use super::schedule::Decided;
use super::settings::Settings;
use super::state::Pending;
use super::wait_set::Key;
use super::world::Inner;
use crate::error::{ErrorKind, Result};

/// Names of worlds.
static WORLDS: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// The world of the coroutines that this OS thread runs.
    static CURRENT: StdCell<Option<*const World>> = const { StdCell::new(None) };
    /// Stacks of coroutines that have ended.
    static STACKS: RefCell<Vec<DefaultStack>> = const { RefCell::new(Vec::new()) };
    /// The addresses of the last world, unless they are still in use.
    static ARENA: RefCell<Option<Arc<Arena>>> = const { RefCell::new(None) };
}

/// Bytes of a coroutine's stack; below it is a guard page.
const STACK_BYTES: usize = 512 << 10;

/// Calls `f` with the world of this OS thread, if there is one.
#[inline]
pub(super) fn with_world<R>(f: impl FnOnce(&World) -> R) -> Option<R> {
    let world = CURRENT.get()?;
    // SAFETY: `execute` puts the pointer there, and `IsCurrent` takes it away before the world ends. Coroutines run
    // inside `execute`.
    Some(f(unsafe { &*world }))
}

/// One execution.
pub(super) struct World {
    pub(super) id: u64,
    pub(super) inner: RefCell<Inner>,
    pub(super) arena: Arc<Arena>,
    coroutines: RefCell<Vec<Option<Routine>>>,
    /// What each coroutine yields with, while it exists.
    yielders: RefCell<Vec<*const Yielder<(), ()>>>,
    /// The thread that runs next, chosen by the one that stops.
    next: StdCell<Option<usize>>,
    pub(super) invariants: RefCell<Vec<(String, Invariant)>>,
    pub(super) teardown: StdCell<bool>,
    /// A crashed node with threads that are not unwound yet.
    crashed: StdCell<Option<u16>>,
}

type Routine = Coroutine<(), (), (), DefaultStack>;
type Invariant = Box<dyn Fn() -> core::result::Result<(), String>>;
type Body = Box<dyn FnOnce()>;

/// In which way a scheduling point was passed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Turn {
    /// It is this thread's turn.
    Mine(usize),
    /// No thread of the simulation runs: the access is an observer's.
    Outside,
    /// The execution has failed, and the thread is being unwound.
    Unwinding,
}

/// The payload by which a thread is unwound.
struct Teardown;

impl World {
    /// Starts a thread.
    pub(super) fn spawn(&self, node: u16, name: String, held: bool, body: Body) -> Result<usize> {
        let stack = STACKS.with_borrow_mut(Vec::pop);
        let stack = match stack {
            Some(stack) => stack,
            None => DefaultStack::new(STACK_BYTES)
                .map_err(|why| ErrorKind::System { what: "memory for a simulated thread", why: why.to_string() })?,
        };
        let index = self.inner.borrow_mut().add_thread(node, name, held);
        let routine = Coroutine::with_stack(stack, move |yielder: &Yielder<(), ()>, ()| {
            with_world(|world| {
                let mut yielders = world.yielders.borrow_mut();
                if yielders.len() <= index {
                    yielders.resize(index + 1, core::ptr::null());
                }
                yielders[index] = yielder;
            });
            let ended = match with_world(|world| world.teardown.get()) {
                // It never began. Its captured values may want a lock as they are dropped.
                Some(true) | None => catch_unwind(AssertUnwindSafe(|| drop(body))),
                Some(false) => catch_unwind(AssertUnwindSafe(body)),
            };
            with_world(|world| world.ended(index, ended));
        });
        let mut routines = self.coroutines.borrow_mut();
        debug_assert_eq!(routines.len(), index, "one coroutine for each thread");
        routines.push(Some(routine));
        Ok(index)
    }

    fn ended(&self, index: usize, ended: core::result::Result<(), Box<dyn Any + Send>>) {
        let mut inner = self.inner.borrow_mut();
        inner.threads[index].pending = Pending::Finished;
        if let Err(panic) = ended
            && !panic.is::<Teardown>()
            && !inner.is_dead(index)
        {
            let message = message_of(&*panic);
            inner.threads[index].panic = Some(message.clone());
            inner.fail(FailureKind::Panic, message); // unless the hook has said it already, with the place
        }
    }

    /// Stops the running thread; another one continues, or the execution ends.
    fn suspend(&self, index: usize) {
        let yielder = self.yielders.borrow()[index];
        // SAFETY: the coroutine of this thread has put the pointer there; it runs, so its yielder exists.
        unsafe { &*yielder }.suspend(());
    }

    /// A scheduling point. It returns when it is this thread's turn to do the pending step.
    pub(super) fn point(&self, pending: Pending) -> Turn {
        let Some(me) = self.inner.borrow().current else { return Turn::Outside };
        if self.teardown.get() {
            return self.unwind(me);
        }
        self.inner.borrow_mut().threads[me].pending = pending;
        let next = self.decide(Some(me));
        if next != Some(me) {
            self.next.set(next);
            self.suspend(me);
            if self.teardown.get() {
                return self.unwind(me);
            }
        }
        let mut inner = self.inner.borrow_mut();
        inner.threads[me].pending = Pending::Nothing;
        Turn::Mine(me)
    }

    /// The thread that continues.
    fn decide(&self, current: Option<usize>) -> Option<usize> {
        loop {
            let decided = self.inner.borrow_mut().decide(current);
            match decided {
                Decided::Run(index) => return Some(index),
                Decided::End => {
                    if self.inner.borrow().run.failure.is_some() {
                        self.teardown.set(true);
                    }
                    return None;
                }
                Decided::Check => self.check_invariants(),
                Decided::Crashed(node) => {
                    self.crashed.set(Some(node));
                    return None;
                }
            }
        }
    }

    pub(super) fn is_torn_down(&self) -> bool {
        self.teardown.get()
    }

    fn check_invariants(&self) {
        let current = self.inner.borrow_mut().current.take();
        let broken = self.invariants.borrow().iter().find_map(|(name, holds)| {
            // A panic of what only looks is a failure like its answer, and must not leave this call.
            let held = catch_unwind(AssertUnwindSafe(holds)).unwrap_or_else(|panic| Err(message_of(&*panic)));
            held.err().map(|why| format!("the invariant `{name}` does not hold: {why}"))
        });
        let mut inner = self.inner.borrow_mut();
        inner.current = current;
        if let Some(message) = broken {
            inner.fail(FailureKind::Invariant, message);
        }
    }

    /// Whether a thread looks at another node's memory, see [`Inner::elsewhere`].
    pub(super) fn is_elsewhere(&self, thread: usize, node: u16) -> bool {
        let elsewhere = self.inner.borrow().elsewhere(thread, node);
        // The panic follows the borrow, since it is noted in the borrowed data.
        elsewhere.unwrap_or_else(|message| panic!("{message}"))
    }

    /// Unwinds the running thread, unless it is being unwound already.
    fn unwind(&self, me: usize) -> Turn {
        // Its own panic marks the thread at once. If another thread is in the middle of its unwinding, this one's
        // stack is not: it must not continue as if nothing had happened, or a thread that waits for all others would
        // never stop.
        let begins = !core::mem::replace(&mut self.inner.borrow_mut().threads[me].unwinding, true);
        if begins {
            resume_unwind(Box::new(Teardown));
        }
        Turn::Unwinding
    }

    /// In a teardown: lets the other threads unwind, so that they release the locks that this one needs.
    pub(super) fn let_others_unwind(&self) {
        let Some(me) = self.inner.borrow().current else { return };
        self.next.set(None);
        self.suspend(me);
    }

    /// Runs a thread until its next stop.
    fn resume(&self, index: usize) {
        let Some(mut routine) = self.coroutines.borrow_mut()[index].take() else { return };
        self.inner.borrow_mut().current = Some(index);
        let stopped = routine.resume(());
        self.inner.borrow_mut().current = None;
        match stopped {
            CoroutineResult::Yield(()) => self.coroutines.borrow_mut()[index] = Some(routine),
            CoroutineResult::Return(()) => {
                STACKS.with_borrow_mut(|stacks| stacks.push(routine.into_stack()));
                if !self.teardown.get() {
                    let next = self.decide(None);
                    self.next.set(next);
                }
            }
        }
    }

    fn run(&self) {
        let first = self.decide(None);
        self.next.set(first);
        loop {
            while let Some(index) = self.next.take() {
                self.resume(index);
            }
            let Some(node) = self.crashed.take() else { break };
            self.bury(node);
            let next = self.decide(None);
            self.next.set(next);
        }
        if self.inner.borrow().run.failure.is_none() {
            return;
        }
        self.teardown.set(true);
        let all: Vec<usize> = (0..self.coroutines.borrow().len()).collect();
        self.unwind_all(&all);
    }

    /// A node has crashed: its threads are unwound, and whatever they call does nothing meanwhile.
    fn bury(&self, node: u16) {
        let threads = self.inner.borrow().threads.len();
        let dead: Vec<usize> = {
            let inner = self.inner.borrow();
            (0..threads).filter(|index| inner.threads[*index].node == node && inner.is_dead(*index)).collect()
        };
        self.teardown.set(true);
        self.unwind_all(&dead);
        self.teardown.set(false);
        let mut inner = self.inner.borrow_mut();
        dead.into_iter().for_each(|index| inner.threads[index].pending = Pending::Finished);
    }

    /// Each thread unwinds to its end; one that needs a lock lets the others unwind first.
    fn unwind_all(&self, threads: &[usize]) {
        for _ in 0..UNWIND_ROUNDS {
            let left: Vec<usize> =
                threads.iter().copied().filter(|at| self.coroutines.borrow()[*at].is_some()).collect();
            if left.is_empty() {
                return;
            }
            left.into_iter().for_each(|index| self.resume(index));
        }
        for index in threads {
            if let Some(routine) = &mut self.coroutines.borrow_mut()[*index] {
                // SAFETY: the stack's contents are leaked, not used again: nothing else refers to them, since a thread
                // lends nothing of its stack to others (bodies are 'static), and this one is never resumed: the
                // coroutine is done after the reset, and a crashed node's threads count as finished.
                unsafe { routine.force_reset() };
            }
        }
    }

    /// Waits for the end of a thread; the message of its panic.
    pub(super) fn join(&self, index: usize) -> core::result::Result<(), String> {
        self.point(Pending::Join(index as u16));
        match &self.inner.borrow().threads[index].panic {
            Some(message) => Err(message.clone()),
            None => Ok(()),
        }
    }

    pub(super) fn is_finished(&self, index: usize) -> bool {
        self.inner.borrow().threads[index].pending == Pending::Finished
    }
}

/// While this exists, [`CURRENT`] and the hooks are those of a world.
struct IsCurrent;

impl Drop for IsCurrent {
    fn drop(&mut self) {
        crate::hook::end();
        CURRENT.set(None);
    }
}

/// Runs the coroutines of an execution, `main` first; it gets the world's name. Returns the state at the end.
pub(super) fn execute(settings: &Settings, chooser: Box<dyn Chooser>, main: impl FnOnce(u64) + 'static) -> Inner {
    assert!(CURRENT.get().is_none(), "one simulation at a time on an OS thread");
    hook_panics();
    let arena = ARENA.take().filter(|arena| Arc::strong_count(arena) == 1 && arena.nodes() >= settings.nodes);
    let arena = arena.unwrap_or_else(|| Arena::new(settings.nodes.max(8)).expect("addresses for a simulation"));
    let world = World {
        id: WORLDS.fetch_add(1, Ordering::Relaxed),
        inner: RefCell::new(Inner::new(settings, chooser)),
        arena,
        coroutines: RefCell::default(),
        yielders: RefCell::default(),
        next: StdCell::new(None),
        invariants: RefCell::default(),
        teardown: StdCell::new(false),
        crashed: StdCell::new(None),
    };
    CURRENT.set(Some(&raw const world));
    let current = IsCurrent; // ends before the world, also if this panics
    crate::hook::begin(super::hook::HOOKS);
    let id = world.id;
    world.spawn(0, "main".into(), false, Box::new(move || main(id))).expect("memory for a simulated thread");
    world.run();
    world.invariants.borrow_mut().clear();
    drop(current);
    let World { inner, arena, coroutines, .. } = world;
    drop(coroutines);
    ARENA.set(Some(arena));
    inner.into_inner()
}

/// A number below `options` that a scenario leaves open, and the search chooses. Zero outside of simulations.
///
/// ```
/// # use farfield_fabric::{*, sim::*};
/// # struct Last;
/// # impl Chooser for Last {
/// #     fn choose(&mut self, view: &View<'_>) -> usize { view.candidates.len() - 1 }
/// #     fn value(&mut self, options: usize) -> usize { options - 1 }
/// # }
/// let outcome = sim::run(Settings::new(1), Box::new(Last), |handle| {
///     let draws = || assert_eq!(sim::choose(3), 2); // this search takes the largest
///     handle.spawn(NodeId(0), "draws", true, Box::new(draws)).expect("a stack");
///     handle.explore();
/// });
/// assert_eq!(outcome.failure, None);
/// assert_eq!(sim::choose(3), 0); // no simulation runs
/// ```
pub fn choose(options: usize) -> usize {
    let chosen = with_world(|world| {
        let mut inner = world.inner.borrow_mut();
        let current = inner.current?;
        (options > 1 && !world.teardown.get()).then(|| inner.value(current, options))
    });
    chosen.flatten().unwrap_or(0)
}

/// Ends the thread of a failed execution, by unwinding it. Outside of simulations this is a panic.
pub(super) fn end_thread(message: String) -> ! {
    if CURRENT.get().is_none() {
        panic!("{message}");
    }
    resume_unwind(Box::new(Teardown))
}

impl Inner {
    /// Whether a thread runs no more because its node has crashed. The simulation's first thread stands outside of
    /// nodes.
    pub(super) fn is_dead(&self, thread: usize) -> bool {
        thread != MAIN && self.is_crashed(self.threads[thread].node)
    }
}

/// The thread that sets the stage.
const MAIN: usize = 0;

/// Rounds in which threads may wait for each other while they unwind. Beyond, their values are leaked.
const UNWIND_ROUNDS: usize = 1000;

fn message_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic".into())
}

/// A panic on a simulated thread is the execution's failure: it is noted where it happens, before anything is unwound,
/// and not printed.
fn hook_panics() {
    static HOOKED: Once = Once::new();
    HOOKED.call_once(|| {
        let outside = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let noted = with_world(|world| {
                let Ok(mut inner) = world.inner.try_borrow_mut() else { return false };
                let Some(me) = inner.current else { return false };
                if inner.is_dead(me) {
                    return false; // a destructor panics while the thread is unwound: that ends the process
                }
                let place = info.location().map_or_else(String::new, |at| format!(" ({}:{})", at.file(), at.line()));
                let message = format!("{}{place}", message_of(info.payload()));
                inner.threads[me].unwinding = true;
                inner.threads[me].panic = Some(message.clone());
                inner.fail(FailureKind::Panic, message);
                world.teardown.set(true);
                true
            });
            if noted != Some(true) {
                outside(info);
            }
        }));
    });
}

pub(super) fn own_cell(key: Key) -> Cell {
    Cell::Own(key as u32)
}
