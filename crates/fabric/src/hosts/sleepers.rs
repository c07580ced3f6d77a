//! Threads of a node that sleep until a word changes, and their bell.

use core::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::alarm::NodeBell;

/// Threads of the node that sleep, and what wakes them before their time.
pub(crate) struct Sleepers {
    is_rung_by_puts: bool,
    count: AtomicUsize,
    rung: Mutex<u32>,
    bell: Condvar,
}

impl Sleepers {
    /// None yet.
    pub(crate) fn new(is_rung_by_puts: bool) -> Arc<Sleepers> {
        let (count, rung) = (AtomicUsize::new(0), Mutex::new(0));
        Arc::new(Sleepers { is_rung_by_puts, count, rung, bell: Condvar::new() })
    }

    /// The thread is about to sleep, and looks once more before it does. Returns the number of rings so far.
    pub(super) fn announce(&self) -> u32 {
        let rung = *self.rung.lock().unwrap_or_else(PoisonError::into_inner);
        // Before that look: a thread that stores after it sees the sleeper.
        self.count.fetch_add(1, Ordering::SeqCst);
        rung
    }

    /// It need not, or has slept.
    pub(super) fn renounce(&self) {
        self.count.fetch_sub(1, Ordering::SeqCst);
    }

    pub(super) fn sleep(&self, heard: u32, time: Duration) {
        let rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
        let woken = self.bell.wait_timeout_while(rung, time, |rung| *rung == heard);
        drop(woken.unwrap_or_else(PoisonError::into_inner));
    }

    /// After stores of the caller: wakes the threads that do not see them.
    pub(crate) fn wake(&self) {
        // The caller's stores precede the look, as the sleeper's announcement precedes its own.
        fence(Ordering::SeqCst);
        if self.count.load(Ordering::Relaxed) != 0 {
            self.ring();
        }
    }

    fn ring(&self) {
        let mut rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
        *rung = rung.wrapping_add(1);
        self.bell.notify_all();
    }
}

impl NodeBell for Arc<Sleepers> {
    fn is_rung_by_puts(&self) -> bool {
        self.is_rung_by_puts
    }

    fn announce(&self) -> u32 {
        Sleepers::announce(self)
    }

    fn heard(&self) -> u32 {
        *self.rung.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sleep(&self, heard: u32, time: Duration) {
        Sleepers::sleep(self, heard, time);
    }

    fn renounce(&self) {
        Sleepers::renounce(self);
    }

    fn ring(&self) {
        Sleepers::ring(self);
    }
}
