//! Wakes the futures of a node that other executors poll: one thread for each node, which sleeps on the bell of the
//! node's waiters for them.
//!
//! A future registers its waker and looks once more. The announcement ([`NodeBell::announce`]) stands before that look, and
//! until the thread has taken the waker: a write that the look missed rings, and the thread then wakes all that are
//! registered. What rings no bell is looked for at a moment that comes with each waker.

use core::sync::atomic::{AtomicU64, Ordering};
use core::task::Waker;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use foldhash::fast::FixedState;

use crate::local::{Instant, Thread};

/// The bell that wakes those who wait on a node.
pub(crate) trait NodeBell: Send + Sync {
    /// Whether a put of another node rings it.
    fn is_rung_by_puts(&self) -> bool;
    /// From now on a write that is not seen by a look after this call rings. How often it has rung.
    fn announce(&self) -> u32;
    /// How often it has rung.
    fn heard(&self) -> u32;
    /// Sleeps until it has rung more often than that, or for this time. The announcement stands.
    fn sleep(&self, heard: u32, time: Duration);
    /// Takes the announcement back.
    fn renounce(&self);
    /// Rings it, while an announcement stands.
    fn ring(&self);
}

/// So long the thread listens on after it has woken somebody: whoever was woken mostly waits again soon.
const LINGER: Duration = Duration::from_micros(500);

/// Wakes the futures of a node that other executors than its endpoints' own poll. Its thread starts when the first of them
/// waits, and sleeps while none does.
pub struct Alarm {
    shared: Arc<Shared>,
    /// Of the thread.
    name: String,
    /// The thread, once it has started.
    thread: Mutex<Option<Thread>>,
}

struct Shared {
    bell: Box<dyn NodeBell>,
    state: Mutex<State>,
    /// Grows whenever somebody is woken.
    woken: AtomicU64,
    /// The thread sleeps on it while nobody waits.
    first: Condvar,
}

#[derive(Default)]
struct State {
    /// By the addresses that make out a waker: one for each task, however many of its futures wait.
    waiters: HashMap<(usize, usize), Waiter, FixedState>,
    /// The announcement stands.
    is_announced: bool,
    /// How often the bell had rung when the thread last took note, and its own rings since.
    heard: u32,
    /// While the thread sleeps on the bell: the moment at which it wakes by itself.
    sleeps_until: Option<Instant>,
    is_started: bool,
    is_over: bool,
}

struct Waiter {
    waker: Waker,
    /// It is woken then, at the latest.
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

    /// Whether a put to memory whose writers wake waiters wakes those that are registered.
    pub(crate) fn is_rung_by_puts(&self) -> bool {
        self.shared.bell.is_rung_by_puts()
    }

    /// Grows whenever it has woken anybody.
    pub(crate) fn woken(&self) -> u64 {
        self.shared.woken.load(Ordering::Acquire)
    }

    /// Has a task woken when the bell rings, or at that moment. A write that its next look does not see rings.
    /// False if there is no thread to do so.
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
            // It is the thread's own ring, which does not wake the others that are registered.
            state.sleeps_until = None;
            state.heard = state.heard.wrapping_add(1);
            self.shared.bell.ring();
        }
        true
    }

    /// Wakes all that are registered.
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

/// The mistake of an executor keeps nobody else asleep.
fn wake(waker: Waker) {
    let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
}

fn run(shared: &Shared) {
    let mut woken: Vec<Waker> = Vec::new();
    let mut lingers = false;
    let mut state = shared.state();
    while !state.is_over {
        if state.waiters.is_empty() && !core::mem::take(&mut lingers) {
            // Nobody waits any more, or nobody yet.
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
        // Whoever registers from here on looks after that, so nothing is missed that has rung before.
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
