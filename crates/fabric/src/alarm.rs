//! Wakes the futures of a node that other executors poll. One thread for each node sleeps on their behalf, on the bell
//! of the node's waiters.
//!
//! A future registers its waker and polls once more. The announcement ([`NodeBell::announce`]) holds from before that
//! poll until the thread has taken the waker. A write that the poll missed rings the bell, and the thread then wakes
//! all registered futures. Each waker has a time at which its future polls again, for changes that ring no bell.

use core::sync::atomic::{AtomicU64, Ordering};
use core::task::Waker;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use foldhash::fast::FixedState;

use crate::local::{Instant, Thread};

/// The bell that wakes the waiters of a node.
pub(crate) trait NodeBell: Send + Sync {
    /// Whether a put of another node rings it.
    fn is_rung_by_puts(&self) -> bool;
    /// Announces a sleeper: after this call, a write that a later poll does not see rings. Returns how often the bell
    /// has rung.
    fn announce(&self) -> u32;
    /// How often it has rung.
    fn heard(&self) -> u32;
    /// Sleeps until the bell has rung more often than that, or for this time. The announcement still holds.
    fn sleep(&self, heard: u32, time: Duration);
    /// Withdraws the announcement.
    fn renounce(&self);
    /// Rings the bell, while an announcement holds.
    fn ring(&self);
}

/// The time for which the thread keeps listening after it has woken a task: most tasks soon wait again.
const LINGER: Duration = Duration::from_micros(500);

/// Wakes the futures of a node that other executors than its endpoints' own poll. Its thread starts when the first of
/// them waits, and sleeps while none does.
///
/// ```
/// # use farfield_fabric::{shm::*, *};
/// # let node = ShmFabric::join(&ShmOptions::new(format!("doc-alarm-{}", std::process::id()), 0, 1))?;
/// let alarm: Option<&Alarm> = node.alarm();
/// assert!(alarm.is_some()); // so other executors may poll the node's futures
/// # Ok::<(), Error>(())
/// ```
pub struct Alarm {
    shared: Arc<Shared>,
    /// The name of the thread.
    name: String,
    /// The thread, once it has started.
    thread: Mutex<Option<Thread>>,
}

struct Shared {
    bell: Box<dyn NodeBell>,
    state: Mutex<State>,
    /// Incremented when a task is woken.
    woken: AtomicU64,
    /// The thread sleeps on it while no task waits.
    first: Condvar,
}

#[derive(Default)]
struct State {
    /// By the addresses that identify a waker: one for each task, however many of its futures wait.
    waiters: HashMap<(usize, usize), Waiter, FixedState>,
    /// Whether the announcement holds.
    is_announced: bool,
    /// How often the bell had rung when the thread last checked, and its own rings since.
    heard: u32,
    /// While the thread sleeps on the bell: the time at which it wakes by itself.
    sleeps_until: Option<Instant>,
    is_started: bool,
    is_over: bool,
}

struct Waiter {
    waker: Waker,
    /// The latest time at which the task is woken.
    at: Instant,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Alarm {
    pub(crate) fn new(name: String, bell: Box<dyn NodeBell>) -> Alarm {
        let shared = Shared { bell, state: Mutex::default(), woken: AtomicU64::new(0), first: Condvar::new() };
        Alarm { shared: Arc::new(shared), name, thread: Mutex::default() }
    }

    /// Whether a put wakes the registered tasks, if its memory is of the kind in which writes wake waiters.
    pub(crate) fn is_rung_by_puts(&self) -> bool {
        self.shared.bell.is_rung_by_puts()
    }

    /// Incremented whenever it has woken a task.
    pub(crate) fn woken(&self) -> u64 {
        self.shared.woken.load(Ordering::Acquire)
    }

    /// Has a task woken when the bell rings, or at that time. A write that the task's next poll does not see rings.
    /// Returns false if there is no thread to do so.
    pub(crate) fn wake_at(&self, waker: &Waker, at: Instant) -> bool {
        let mut state = self.shared.state();
        if !state.is_started && !self.start() {
            return false;
        }
        state.is_started = true;
        let key = (waker.data().addr(), core::ptr::from_ref(waker.vtable()).addr());
        let waiter = state.waiters.entry(key).or_insert_with(|| Waiter { waker: waker.clone(), at });
        waiter.at = waiter.at.min(at);
        if !state.is_announced {
            state.is_announced = true;
            state.heard = self.shared.bell.announce();
            self.shared.first.notify_one();
        } else if state.sleeps_until.is_some_and(|until| at < until) {
            // This ring is the thread's own, which does not wake the other registered tasks.
            state.sleeps_until = None;
            state.heard = state.heard.wrapping_add(1);
            self.shared.bell.ring();
        }
        true
    }

    /// Wakes all registered tasks.
    pub(crate) fn wake_all(&self) {
        let mut state = self.shared.state();
        let all = core::mem::take(&mut state.waiters);
        self.shared.woken.fetch_add(1, Ordering::Release);
        drop(state);
        all.into_values().for_each(|waiter| wake(waiter.waker));
    }

    #[cold]
    fn start(&self) -> bool {
        let shared = Arc::clone(&self.shared);
        let started = Thread::start(self.name.clone(), Box::new(move || run(&shared)));
        match started {
            Ok(thread) => {
                *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
                true
            }
            Err(why) => {
                tracing::warn!("futures that other executors poll are polled again and again, since {why}");
                false
            }
        }
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.is_over = true;
        if state.is_announced {
            self.shared.bell.ring();
        }
        drop(state);
        self.shared.first.notify_one();
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = thread.join(); // it panics nowhere
        }
    }
}

/// An executor's panic does not keep other tasks asleep.
fn wake(waker: Waker) {
    let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
}

fn run(shared: &Shared) {
    let mut woken: Vec<Waker> = Vec::new();
    let mut lingers = false;
    let mut state = shared.state();
    while !state.is_over {
        if state.waiters.is_empty() && !core::mem::take(&mut lingers) {
            // No task waits now.
            if core::mem::take(&mut state.is_announced) {
                shared.bell.renounce();
            }
            state = shared.first.wait(state).unwrap_or_else(PoisonError::into_inner);
            continue;
        }
        let now = Instant::monotonic();
        let until = state.waiters.values().map(|waiter| waiter.at).min().unwrap_or(now + LINGER);
        let heard = state.heard;
        state.sleeps_until = Some(until);
        drop(state);
        if until > now {
            shared.bell.sleep(heard, until - now);
        }
        state = shared.state();
        state.sleeps_until = None;
        // A task that registers from here on polls after that, so it misses no earlier ring.
        let heard = shared.bell.heard();
        let is_rung = core::mem::replace(&mut state.heard, heard) != heard;
        let now = Instant::monotonic();
        let due = state.waiters.extract_if(|_, waiter| is_rung || waiter.at <= now);
        woken.extend(due.map(|(_, waiter)| waiter.waker));
        lingers = !woken.is_empty();
        if lingers {
            shared.woken.fetch_add(1, Ordering::Release);
            drop(state);
            woken.drain(..).for_each(wake);
            state = shared.state();
        }
    }
    if core::mem::take(&mut state.is_announced) {
        shared.bell.renounce();
    }
}
