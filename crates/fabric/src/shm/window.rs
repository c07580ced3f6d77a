//! A lane's knowledge of each group of each node, one cache line a group.

use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Mutex;

use super::limits::lock;
use super::node_header::{DoorBell, SILENT, TAKEN};
use crate::error::Code;
use crate::ptr::{GroupKey, NodeId, RemotePtr};
use crate::space::{GRANULE_BYTES, Offsets};
use crate::sys::alike::Alike;
use crate::sys::generations::Retired;
use crate::sys::liveness;
use crate::sys::memory::Mapping;
use crate::sys::range::{MemoryError, Range};

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
    /// The bell that a write rings.
    pub(super) bell: AtomicPtr<DoorBell>,
    /// The number of bytes that exist, as the owner announces it.
    pub(super) len_now: AtomicPtr<AtomicU64>,
    /// The generations of its granules.
    pub(super) generations: AtomicPtr<AtomicU8>,
    /// The bits of an offset that are the address; the generation is above them.
    pub(super) mask: AtomicU64,
}

const _: () = assert!(size_of::<Window>() == 64);

/// The life word, right and length of a window that is not attached.
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

    fn is_closed(&self) -> bool {
        ptr::eq(self.life.load(Ordering::Relaxed), &raw const NO_LIFE)
    }

    /// Whether a lane that has found no owner may have looked before the window was open: it never was, is being
    /// opened, or was opened since.
    pub(super) fn is_new(&self) -> bool {
        if self.base.load(Ordering::Acquire).is_null() {
            return true;
        }
        let has_right = !ptr::eq(self.right.load(Ordering::Relaxed), &raw const NO_RIGHT);
        // SAFETY: the pointer is to a static or was attached under the contract of `attach`.
        let life = unsafe { &*self.life.load(Ordering::Acquire) };
        has_right && (ptr::eq(life, &raw const NO_LIFE) || liveness::is_alive(life.load(Ordering::Relaxed)))
    }

    fn close(&self) {
        self.life.store(ptr::from_ref(&NO_LIFE).cast_mut(), Ordering::Release);
        self.right.store(ptr::from_ref(&NO_RIGHT).cast_mut(), Ordering::Release);
    }
}

/// The indices of the windows on a node.
fn windows_of(node: NodeId) -> core::ops::Range<usize> {
    let first = RemotePtr::<u8>::new(node, GroupKey(0), 0).window();
    first..first + GroupKey::COUNT_MAX
}

/// The windows on all groups of all nodes of the session, indexed by `RemotePtr::window`.
pub(super) struct Windows {
    all: Alike<Window>,
    mapped: Mutex<Mapped>,
}

/// The mappings that the windows on peers point into.
#[derive(Default)]
struct Mapped {
    /// The memory of each, and its generations.
    peers: BTreeMap<usize, [Mapping; 2]>,
    /// The address space of dead nodes: a late read may still load from it.
    vacated: Vec<Range>,
    retired: Retired,
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
        Ok(Windows { all, mapped: Mutex::default() })
    }

    #[inline(always)]
    pub(super) fn get(&self, index: usize) -> Option<&Window> {
        self.all.get(index)
    }

    /// The bytes that exist in a window by now, all of them mapped.
    ///
    /// # Errors
    /// [`Code::Device`] if the kernel does not map the memory that was added since.
    #[cold]
    pub(super) fn wait_for_change(&self, index: usize, window: &Window) -> Result<u64, Code> {
        let mapped = lock(&self.mapped);
        if window.is_closed() {
            return Err(Code::Unreachable); // since the caller has looked; `window.len` bytes of its memory are kept
        }
        // SAFETY: the pointer is to a static or was attached under the contract of `attach`.
        let now = unsafe { &*window.len_now.load(Ordering::Relaxed) }.load(Ordering::Acquire);
        if now > window.len.load(Ordering::Relaxed)
            && let Some([memory, _]) = mapped.peers.get(&index)
            && let Err(why) = memory.reach()
        {
            tracing::error!("memory of a peer cannot be mapped: {why}");
            return Err(Code::Device);
        }
        window.len.store(now, Ordering::Relaxed);
        Ok(now)
    }

    /// Closes all windows on nodes below `known` for good: a posted operation finds no live node, and a pending write
    /// has no right.
    pub(super) fn close(&self, known: usize) {
        // To write to those that are closed would take memory.
        self.all[..known * GroupKey::COUNT_MAX].iter().filter(|window| !window.is_closed()).for_each(Window::close);
    }

    /// The same for those on one peer, which is dead or has left.
    pub(super) fn close_peer(&self, peer: NodeId) {
        // Holds the lock, so that `wait_for_change` finds the window closed, or has recorded before how much of it is
        // used.
        let mapped = lock(&self.mapped);
        mapped.peers.range(windows_of(peer)).for_each(|(index, _)| self.all[*index].close());
    }

    /// Gives back the memory of a peer with closed windows. A late read ends in an error, since all generations there
    /// are the retired one.
    ///
    /// # Safety
    /// No thread of this node writes to it any more, or will.
    pub(super) unsafe fn vacate(&self, peer: NodeId) -> Result<(), MemoryError> {
        let mut mapped = lock(&self.mapped);
        let Mapped { peers, vacated, retired } = &mut *mapped;
        let windows: Vec<usize> = peers.range(windows_of(peer)).map(|(index, _)| *index).collect();
        for index in windows {
            let Some(mappings) = peers.remove(&index) else { continue };
            let [mut memory, mut generations] = mappings.map(Mapping::into_range);
            let used = self.all[index].len.load(Ordering::Relaxed);
            let entries = (used / GRANULE_BYTES) as usize + 1;
            // In this order: a read of memory that is no longer the peer's finds its generation changed after that
            // (`Place::held`).
            // SAFETY: no thread writes there, by the caller's promise; reads find entries for as much memory as there
            // was, and one more, and zeros wherever a lane has known of memory (`wait_for_change`).
            let done = retired.file(entries).and_then(|file| unsafe {
                generations.vacate(entries, Some(file))?;
                memory.vacate(used as usize, None)
            });
            vacated.extend([memory, generations]);
            done?;
        }
        Ok(())
    }

    /// Opens a window on a peer's memory, and keeps its mappings. Not a second time, which would unmap memory that
    /// lanes use: returns whether it is the first.
    ///
    /// # Safety
    /// As for [`attach`](Windows::attach), but only the memory that existed when it was attached must be mapped.
    pub(super) unsafe fn attach_peer(&self, index: usize, attach: &Attach<'_>, mappings: [Mapping; 2]) -> bool {
        let mut mapped = lock(&self.mapped);
        let Entry::Vacant(vacant) = mapped.peers.entry(index) else { return false };
        vacant.insert(mappings);
        // SAFETY: the caller's promise; later memory is mapped before it is used (`wait_for_change`).
        unsafe { self.attach(index, attach) };
        true
    }

    /// Opens a window. Its first use looks how many bytes there are.
    ///
    /// # Safety
    /// The pointers in `attach` stay mapped as long as `self`: `base` for as many bytes as `len_now` will ever
    /// announce, and `generations` for as many granules and one more.
    pub(super) unsafe fn attach(&self, index: usize, attach: &Attach<'_>) {
        let Some(window) = self.all.get(index) else { return };
        window.right.store(ptr::from_ref(attach.right).cast_mut(), Ordering::Relaxed);
        window.base.store(attach.base, Ordering::Release); // after the right: see `is_new`
        window.bell.store(ptr::from_ref(attach.bell).cast_mut(), Ordering::Relaxed);
        window.len_now.store(ptr::from_ref(attach.len_now).cast_mut(), Ordering::Relaxed);
        window.generations.store(attach.generations.cast(), Ordering::Relaxed);
        window.mask.store(attach.offsets.mask(), Ordering::Relaxed);
        // Last: a lane that sees the owner alive sees the rest (it loads this pointer first, with acquire).
        window.life.store(ptr::from_ref(attach.life).cast_mut(), Ordering::Release);
    }
}
