//! A word in shared memory which the kernel marks when the thread that holds it dies, for whatever reason.
//!
//! Linux keeps a *robust list* per thread: entries in user memory, each beside a futex word. When the thread ends,
//! `kill -9` included, the kernel walks the list and turns every word that holds the thread's id into
//! `FUTEX_OWNER_DIED`, before it frees any of the process's memory; so a death shows in a fraction of a millisecond
//! however large the process was. See `Documentation/locking/robust-futex-ABI.rst` in the kernel's sources.
//!
//! A node's service thread, which never ends while the node is in the session, holds the node's [`LifeCell`].
//! Values of its word:
//!
//! ```text
//! 0                 not held: never yet, or left gracefully
//! 1 ..= 0x3fff_ffff the holder's thread id (in its own PID namespace): alive, perhaps stopped or dumping core
//! 0x4000_0000       FUTEX_OWNER_DIED: the holder is dead; its process's other threads may run for some microseconds
//! ```
//!
//! No thread sleeps on the word, so FUTEX_WAITERS (bit 31) is never set, and the kernel wakes none here.
//!
//! glibc keeps the robust mutexes of a thread in the same list, of which there can be only one, with one distance
//! from entry to word for all of its entries. The cell therefore has the layout of glibc's mutex, and is linked into
//! glibc's list. Under another C library the thread's list is replaced while the cell is held: its service thread
//! must not lock robust mutexes of that library.

use std::any::Any;
use std::io;
use std::mem::{offset_of, size_of};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering, compiler_fence};

use rustix::thread::gettid;

/// The kernel sets this bit, and clears the others, when the holder dies.
const FUTEX_OWNER_DIED: u32 = 0x4000_0000;

/// The offset of the word from the entry: the same as in glibc's `pthread_mutex_t` on x86-64.
const FUTEX_OFFSET: isize = offset_of!(LifeCell, word) as isize - offset_of!(LifeCell, next) as isize;

/// The kernel follows at most this many entries.
const ROBUST_LIST_LIMIT: usize = 2048;

/// The word in shared memory that shows whether a node lives: 64 bytes on a cache line of its own, all zero at first.
///
/// ```text
///  0  word   read by every peer, written by the holder and by the kernel
///  4  unused
/// 24  prev   links of the holder's robust list: addresses in the holder, of no use to anybody else
/// 32  next
/// 40  unused
/// ```
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub(crate) struct LifeCell {
    word: AtomicU32,
    _unused: [u32; 5],
    prev: AtomicUsize,
    next: AtomicUsize,
    _rest: [u64; 3],
}

const _: () = assert!(size_of::<LifeCell>() == 64 && FUTEX_OFFSET == -32 && offset_of!(LifeCell, prev) == 24);

impl LifeCell {
    /// The word that peers read; judge its value with [`is_alive`].
    #[inline]
    pub(crate) fn word(&self) -> &AtomicU32 {
        &self.word
    }

    /// The entry as the list knows it: the address of `next`.
    fn entry(&self) -> usize {
        self.next.as_ptr() as usize
    }
}

/// Whether a cell's word shows a live holder: a thread id, and nothing else.
#[inline]
#[must_use]
pub(crate) const fn is_alive(word_value: u32) -> bool {
    // One subtraction and one comparison: 0 wraps around, OWNER_DIED and anything above it is too large. The largest
    // id, 0x3fff_ffff, is never given out (Linux stops at 2²²).
    word_value.wrapping_sub(1) < 0x3fff_ffff
}

/// Why a cell could not be held.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LivenessError {
    /// The cell is not fresh.
    #[error(
        "the liveness word is {value:#x} instead of 0: it is held already, or its holder died; a new incarnation \
         needs a new cell"
    )]
    InUse {
        /// The value of the word.
        value: u32,
    },
    /// The kernel refuses robust lists.
    #[error("the kernel refuses {call}: {source}; a container profile (seccomp) must allow it")]
    Refused {
        /// The system call.
        call: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

/// A head of our own.
#[repr(C)]
struct OwnHead {
    /// glibc would keep a back link here.
    prev: AtomicUsize,
    head: Head,
}

/// `struct robust_list_head` of the kernel.
#[repr(C)]
struct Head {
    list: AtomicUsize,
    futex_offset: isize,
    pending: AtomicUsize,
}

/// Keeps the calling thread's word alive. Dropping it, on the same thread, is leaving gracefully.
///
/// If the thread unwinds from a panic, dropping marks the word like a death. Forgetting it leaks the cell's memory,
/// and the kernel marks the word when the thread ends. It is neither `Send` nor `Sync`: the list is the thread's.
#[derive(Debug)]
#[must_use = "the word stops being alive when the guard is dropped"]
pub(crate) struct LivenessGuard {
    cell: *const LifeCell,
    tid: u32,
    /// The list's head that the cell was linked into.
    head: *const Head,
    /// Ours, if the thread's own could not be used, and the one to put back.
    replaced: Option<(*mut OwnHead, *mut Head)>,
    /// Keeps the cell mapped.
    _keeper: Arc<dyn Any + Send + Sync>,
}

/// Makes the calling thread the holder of `cell`'s word until the guard is dropped or the thread dies.
///
/// The guard keeps `cell` and with it the mapping, which must not be unmapped before, whatever else happens.
pub(crate) fn hold<C>(cell: Arc<C>) -> Result<LivenessGuard, LivenessError>
where
    C: AsRef<LifeCell> + Send + Sync + 'static,
{
    let life: &LifeCell = (*cell).as_ref();
    let value = life.word.load(Ordering::Relaxed);
    if value != 0 {
        return Err(LivenessError::InUse { value });
    }
    let tid = gettid().as_raw_nonzero().get().cast_unsigned();
    let old = get_robust_list()?;
    // SAFETY: `get_robust_list` returned null or the head that this thread's C library (or an earlier guard)
    // registered, which stays valid until the thread ends or registers another.
    let (head, replaced) = match unsafe { old.as_ref() } {
        Some(head) if head.futex_offset == FUTEX_OFFSET => (ptr::from_ref(head), None),
        _ => {
            let own = Box::into_raw(Box::new(OwnHead {
                prev: AtomicUsize::new(0),
                head: Head { list: AtomicUsize::new(0), futex_offset: FUTEX_OFFSET, pending: AtomicUsize::new(0) },
            }));
            // SAFETY: `own` is from a box that nothing else refers to.
            let head = unsafe { &raw mut (*own).head };
            // SAFETY: as above; an empty list points to its own head.
            unsafe { (*head).list.store(head as usize, Ordering::Relaxed) };
            if let Err(error) = set_robust_list(head) {
                // SAFETY: the kernel did not take the head, so nothing refers to the box.
                drop(unsafe { Box::from_raw(own) });
                return Err(error);
            }
            (head.cast_const(), Some((own, old)))
        }
    };
    // SAFETY: `head` is this thread's registered list; `life` stays mapped as long as the guard, which unlinks it,
    // and for ever if the guard is forgotten.
    unsafe { link(&*head, life) };
    // Only now, for the kernel ignores an entry with a word that is not ours, and must not miss one with ours. Release:
    // a peer that sees the node alive sees its earlier writes to its card.
    if let Err(value) = life.word.compare_exchange(0, tid, Ordering::Release, Ordering::Relaxed) {
        // SAFETY: linked just above, by this thread.
        unsafe { unlink(&*head, life) };
        restore(replaced);
        return Err(LivenessError::InUse { value });
    }
    Ok(LivenessGuard { cell: life, tid, head, replaced, _keeper: cell })
}

impl Drop for LivenessGuard {
    fn drop(&mut self) {
        if gettid().as_raw_nonzero().get().cast_unsigned() != self.tid {
            // A forked child that inherited the guard: the word and the list are its parent's.
            return;
        }
        // SAFETY: the keeper, dropped after this, keeps the cell mapped.
        let life = unsafe { &*self.cell };
        let last = if std::thread::panicking() { FUTEX_OWNER_DIED } else { 0 };
        // Release: a peer that sees the node's end sees all earlier writes of this thread.
        life.word.store(last, Ordering::Release);
        // SAFETY: this thread linked the cell into this head, which stays valid until the thread ends.
        unsafe { unlink(&*self.head, life) };
        restore(self.replaced.take());
    }
}

/// Puts the thread's former list back, unless other code has linked entries into ours or replaced it.
fn restore(replaced: Option<(*mut OwnHead, *mut Head)>) {
    let Some((own, old)) = replaced else { return };
    // SAFETY: `own` was boxed by `hold` and is freed only below.
    let head = unsafe { &raw mut (*own).head };
    // SAFETY: as above.
    let is_empty = unsafe { (*head).list.load(Ordering::Relaxed) } == head as usize;
    let is_registered = get_robust_list().is_ok_and(|now| now == head);
    if is_empty && is_registered && set_robust_list(old).is_ok() {
        // SAFETY: the kernel walks `old` again and no entry points to our head.
        drop(unsafe { Box::from_raw(own) });
    }
    // Else the head is leaked: the kernel may still walk it.
}

/// Puts the cell in front of the list.
///
/// # Safety
///
/// `head` is the calling thread's registered list with our offset, and the cell stays mapped while linked.
unsafe fn link(head: &Head, cell: &LifeCell) {
    let first = head.list.load(Ordering::Relaxed);
    cell.next.store(first, Ordering::Relaxed);
    // As glibc has it, links in both directions lead to the `next` of an entry or to the head.
    cell.prev.store(ptr::from_ref(head) as usize, Ordering::Relaxed);
    // The thread may be killed between any two instructions and the kernel then walks the list as it is: the cell
    // must lead on before anything leads to it.
    compiler_fence(Ordering::SeqCst);
    head.list.store(cell.entry(), Ordering::Relaxed);
    // SAFETY: by the caller's promise.
    unsafe { set_back_link(head, first, cell.entry()) };
}

/// Takes the cell out of the list, wherever it is by now.
///
/// # Safety
///
/// As for [`link`], and the cell was linked into `head`.
unsafe fn unlink(head: &Head, cell: &LifeCell) {
    let end = ptr::from_ref(head) as usize;
    let mut link = &head.list;
    for _ in 0..ROBUST_LIST_LIMIT {
        // The lowest bit of a link marks a priority-inheritance mutex.
        let entry = link.load(Ordering::Relaxed) & !1;
        if entry == cell.entry() {
            let next = cell.next.load(Ordering::Relaxed);
            link.store(next, Ordering::Relaxed);
            // SAFETY: by the caller's promise.
            unsafe { set_back_link(head, next, cell.prev.load(Ordering::Relaxed)) };
            return;
        }
        if entry == end || entry == 0 {
            return;
        }
        // SAFETY: every entry before the end is a `next` pointer of a mutex that this thread holds, or of a cell;
        // only this thread changes its list, so it is there and stays for this step.
        link = unsafe { AtomicUsize::from_ptr(entry as *mut usize) };
    }
}

/// Writes the back link of the entry that `entry` (with its lowest bit) leads to; the head's is of no use.
///
/// # Safety
///
/// `entry` is a link of the list of `head`.
unsafe fn set_back_link(head: &Head, entry: usize, value: usize) {
    let entry = entry & !1;
    if entry != ptr::from_ref(head) as usize && entry != 0 {
        // SAFETY: with our offset the entry is in a cell or in a glibc mutex; both keep `prev` right before `next`.
        unsafe { AtomicUsize::from_ptr((entry - size_of::<usize>()) as *mut usize) }.store(value, Ordering::Relaxed);
    }
}

fn get_robust_list() -> Result<*mut Head, LivenessError> {
    let mut head: *mut Head = ptr::null_mut();
    let mut len: usize = 0;
    // SAFETY: the kernel writes a pointer and a size to the two places given; 0 means the calling thread.
    let answer = unsafe { libc::syscall(libc::SYS_get_robust_list, 0, &raw mut head, &raw mut len) };
    if answer < 0 {
        return Err(LivenessError::Refused { call: "get_robust_list(2)", source: io::Error::last_os_error() });
    }
    Ok(head)
}

fn set_robust_list(head: *mut Head) -> Result<(), LivenessError> {
    // SAFETY: the kernel only notes the address, and reads it when the thread ends, tolerating any fault. Callers pass
    // a head that lives until it is replaced.
    let answer = unsafe { libc::syscall(libc::SYS_set_robust_list, head, size_of::<Head>()) };
    if answer < 0 {
        return Err(LivenessError::Refused { call: "set_robust_list(2)", source: io::Error::last_os_error() });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
