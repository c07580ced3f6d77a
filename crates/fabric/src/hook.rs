//! The place where a simulation takes part in shared cells, local locks and threads.
//!
//! The core does not know the simulator. A simulation registers its functions here ([`Hooks`]) for as long as it runs.
//! Outside of one an access costs a load and a branch, and nothing without the feature `sim`.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::OnceLock;

/// The simulations that run in this process: the one word that an access to a shared cell looks at.
static RUNNING: AtomicUsize = AtomicUsize::new(0);
static HOOKS: OnceLock<&'static Hooks> = OnceLock::new();

/// The functions of the simulator. Those that return `None` or `false` leave the access to the caller, since no
/// simulation runs on its thread of the operating system.
#[cfg_attr(not(feature = "sim"), allow(dead_code, reason = "no simulation registers any"))]
pub(crate) struct Hooks {
    pub(crate) load: fn(&AtomicU64) -> Option<u64>,
    pub(crate) glance: fn(&AtomicU64) -> Option<u64>,
    pub(crate) store: fn(&AtomicU64, u64) -> bool,
    pub(crate) compare_exchange: fn(&AtomicU64, u64, u64) -> Option<Result<u64, u64>>,
    pub(crate) fetch_add: fn(&AtomicU64, u64) -> Option<u64>,
    pub(crate) fence: fn() -> bool,
    pub(crate) backwards: fn(usize) -> bool,
    pub(crate) completes_at_once: fn() -> bool,
    pub(crate) lock: fn(usize, &mut dyn FnMut() -> bool) -> bool,
    pub(crate) unlock: fn(usize),
    pub(crate) structure: fn(usize, bool),
    pub(crate) forget: fn(usize),
    pub(crate) join: fn(u64, usize) -> Result<(), String>,
    pub(crate) is_finished: fn(u64, usize) -> bool,
}

/// Whether a simulation may run on this thread of the operating system.
#[inline(always)]
pub(crate) fn is_active() -> bool {
    cfg!(feature = "sim") && RUNNING.load(Ordering::Relaxed) != 0
}

/// A simulation begins.
#[cfg(feature = "sim")]
pub(crate) fn begin(hooks: &'static Hooks) {
    HOOKS.get_or_init(|| hooks);
    RUNNING.fetch_add(1, Ordering::Relaxed);
}

/// A simulation ends.
#[cfg(feature = "sim")]
pub(crate) fn end() {
    RUNNING.fetch_sub(1, Ordering::Relaxed);
}

/// A load, if a simulation runs here.
#[cold]
pub(crate) fn load(word: &AtomicU64) -> Option<u64> {
    HOOKS.get().and_then(|hooks| (hooks.load)(word))
}

/// A load that is no step of its own, but belongs to the step before it.
#[cold]
pub(crate) fn glance(word: &AtomicU64) -> Option<u64> {
    HOOKS.get().and_then(|hooks| (hooks.glance)(word))
}

/// A store, if a simulation runs here.
#[cold]
pub(crate) fn store(word: &AtomicU64, value: u64) -> bool {
    HOOKS.get().is_some_and(|hooks| (hooks.store)(word, value))
}

/// A CPU compare-and-swap, if a simulation runs here.
#[cold]
pub(crate) fn compare_exchange(word: &AtomicU64, expected: u64, new: u64) -> Option<Result<u64, u64>> {
    HOOKS.get().and_then(|hooks| (hooks.compare_exchange)(word, expected, new))
}

/// A CPU fetch-and-add, if a simulation runs here.
#[cold]
pub(crate) fn fetch_add(word: &AtomicU64, addend: u64) -> Option<u64> {
    HOOKS.get().and_then(|hooks| (hooks.fetch_add)(word, addend))
}

/// A memory fence, if a simulation runs here.
#[cold]
pub(crate) fn fence() -> bool {
    HOOKS.get().is_some_and(|hooks| (hooks.fence)())
}

/// Whether the words of a larger value are accessed backwards, as the search chooses.
#[cold]
pub(crate) fn backwards(words: usize) -> bool {
    HOOKS.get().is_some_and(|hooks| (hooks.backwards)(words))
}

/// Whether operations are to be complete when a caller asks for their value, as on shared memory.
#[cold]
pub(crate) fn completes_at_once() -> bool {
    HOOKS.get().is_some_and(|hooks| (hooks.completes_at_once)())
}

/// Takes a local lock, in the simulation's books; `try_lock` takes it really, and returns whether it could. Returns
/// whether a simulation runs here.
#[cold]
pub(crate) fn lock(address: usize, try_lock: &mut dyn FnMut() -> bool) -> bool {
    HOOKS.get().is_some_and(|hooks| (hooks.lock)(address, try_lock))
}

/// Releases a local lock.
#[cold]
pub(crate) fn unlock(address: usize) {
    if let Some(hooks) = HOOKS.get() {
        (hooks.unlock)(address);
    }
}

/// An access to a concurrent structure of the node's own memory, which may write.
#[cold]
pub(crate) fn structure(address: usize, write: bool) {
    if let Some(hooks) = HOOKS.get() {
        (hooks.structure)(address, write);
    }
}

/// A word, lock or structure of the node's own memory is dropped: a later one at this place is another.
#[cold]
pub(crate) fn forget(address: usize) {
    if let Some(hooks) = HOOKS.get() {
        (hooks.forget)(address);
    }
}

/// Waits for the end of a simulated thread. The error is the message of its panic.
#[cfg(feature = "sim")]
pub(crate) fn join(world: u64, index: usize) -> Result<(), String> {
    HOOKS.get().map_or(Ok(()), |hooks| (hooks.join)(world, index))
}

/// Whether a simulated thread has ended.
#[cfg(feature = "sim")]
pub(crate) fn is_finished(world: u64, index: usize) -> bool {
    HOOKS.get().is_none_or(|hooks| (hooks.is_finished)(world, index))
}
