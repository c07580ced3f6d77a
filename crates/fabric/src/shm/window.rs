//! What a lane needs to know of each group of each node, one cache line a group.

use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};

use std::collections::HashMap;
use std::sync::Mutex;

use super::card::{DoorBell, SILENT, TAKEN};
use super::lock;
use super::sys::alike::Alike;
use super::sys::memory::{Mapping, MemoryError};
use crate::GroupKey;
use crate::error::Code;
use crate::space::Offsets;

/// A window on one permission group of one node.
#[repr(align(64))]
pub(super) struct Window {
    /// Start of the memory here; null until attached.
    pub(super) base: AtomicPtr<u8>,
    /// Bytes known to exist.
    pub(super) len: AtomicU64,
    /// The owner's liveness word.
    pub(super) life: AtomicPtr<AtomicU32>,
    /// Whether this node's right was taken.
    pub(super) right: AtomicPtr<AtomicU8>,
    /// Who is woken by a write.
    pub(super) bell: AtomicPtr<DoorBell>,
    /// Where the owner says how many bytes exist.
    pub(super) len_now: AtomicPtr<AtomicU64>,
    /// The generations of its granules.
    pub(super) generations: AtomicPtr<AtomicU8>,
    /// The bits of an offset that are the address; the generation is above them.
    pub(super) mask: AtomicU64,
}

const _: () = assert!(size_of::<Window>() == 64);

/// The life word, right and length of what is not attached.
static NO_LIFE: AtomicU32 = AtomicU32::new(0);
static NO_RIGHT: AtomicU8 = AtomicU8::new(TAKEN);
static NO_BYTES: AtomicU64 = AtomicU64::new(0);

impl Window {
    fn closed() -> Window {
        Window {
            base: AtomicPtr::new(ptr::null_mut()),
            len: AtomicU64::new(0),
            life: AtomicPtr::new(ptr::from_ref(&NO_LIFE).cast_mut()),
            right: AtomicPtr::new(ptr::from_ref(&NO_RIGHT).cast_mut()),
            bell: AtomicPtr::new(ptr::from_ref::<DoorBell>(&SILENT).cast_mut()),
            len_now: AtomicPtr::new(ptr::from_ref(&NO_BYTES).cast_mut()),
            generations: AtomicPtr::new(ptr::null_mut()),
            mask: AtomicU64::new(0),
        }
    }
}

/// The windows on all groups of all nodes of the session, indexed by `RemotePtr::window`.
pub(super) struct Windows {
    all: Alike<Window>,
    /// What those on peers point into: their memory, and its generations.
    mappings: Mutex<HashMap<usize, [Mapping; 2]>>,
}

/// The pointers of one window. All must stay valid as long as the `Windows`.
pub(super) struct Attach<'a> {
    pub(super) base: *mut u8,
    pub(super) life: &'a AtomicU32,
    pub(super) right: &'a AtomicU8,
    pub(super) bell: &'a DoorBell,
    pub(super) len_now: &'a AtomicU64,
    pub(super) generations: *mut u8,
    pub(super) offsets: Offsets,
}

impl Windows {
    /// On so many nodes, all closed.
    pub(super) fn new(nodes: usize) -> Result<Windows, MemoryError> {
        let all = Alike::new(nodes * GroupKey::COUNT_MAX, Window::closed)?;
        Ok(Windows { all, mappings: Mutex::default() })
    }

    #[inline(always)]
    pub(super) fn get(&self, index: usize) -> Option<&Window> {
        self.all.get(index)
    }

    /// The bytes that exist in a window by now, all of them mapped.
    ///
    /// # Errors
    /// [`Code::Device`] if the kernel does not map what has come since.
    #[cold]
    pub(super) fn look_again(&self, index: usize, window: &Window) -> Result<u64, Code> {
        // SAFETY: the pointer is to a static or was attached under the contract of `attach`.
        let now = unsafe { &*window.len_now.load(Ordering::Relaxed) }.load(Ordering::Acquire);
        if now > window.len.load(Ordering::Relaxed)
            && let Some([memory, _]) = lock(&self.mappings).get(&index)
            && let Err(why) = memory.reach()
        {
            tracing::error!("memory of a peer cannot be mapped: {why}");
            return Err(Code::Device);
        }
        window.len.store(now, Ordering::Relaxed);
        Ok(now)
    }

    /// Closes all windows on nodes below `known` for good: whatever is posted finds nobody alive, and what is about to write has no right to.
    pub(super) fn close(&self, known: usize) {
        // The others are closed, and to write to them would take memory.
        let is_open = |window: &&Window| !ptr::eq(window.life.load(Ordering::Relaxed), &raw const NO_LIFE);
        for window in self.all[..known * GroupKey::COUNT_MAX].iter().filter(is_open) {
            window.life.store(ptr::from_ref(&NO_LIFE).cast_mut(), Ordering::Release);
            window.right.store(ptr::from_ref(&NO_RIGHT).cast_mut(), Ordering::Release);
        }
    }

    /// Opens a window on a peer's memory, and keeps its mappings.
    ///
    /// # Safety
    /// As for [`attach`](Windows::attach), but that of the memory only what was there when it was attached has to be mapped.
    pub(super) unsafe fn attach_peer(&self, index: usize, attach: &Attach<'_>, mappings: [Mapping; 2]) {
        lock(&self.mappings).insert(index, mappings);
        // SAFETY: the caller's promise; what comes later is mapped before it is used (`look_again`).
        unsafe { self.attach(index, attach) };
    }

    /// Opens a window. Its first use looks how many bytes there are.
    ///
    /// # Safety
    /// What `attach` points to stays mapped as long as `self`: `base` for as many bytes as `len_now` will ever say, and
    /// `generations` for as many granules and one more.
    pub(super) unsafe fn attach(&self, index: usize, attach: &Attach<'_>) {
        let Some(window) = self.all.get(index) else { return };
        window.base.store(attach.base, Ordering::Relaxed);
        window.right.store(ptr::from_ref(attach.right).cast_mut(), Ordering::Relaxed);
        window.bell.store(ptr::from_ref(attach.bell).cast_mut(), Ordering::Relaxed);
        window.len_now.store(ptr::from_ref(attach.len_now).cast_mut(), Ordering::Relaxed);
        window.generations.store(attach.generations.cast(), Ordering::Relaxed);
        window.mask.store(attach.offsets.mask(), Ordering::Relaxed);
        // Last: a lane that sees the owner alive sees the rest (it loads this pointer first, with acquire).
        window.life.store(ptr::from_ref(attach.life).cast_mut(), Ordering::Release);
    }
}
