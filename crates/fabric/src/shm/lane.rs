//! Operations on shared memory: each is done by the calling thread, at once.
//!
//! The memory model needs only one thing beyond x86's own order. The store buffer may reorder a store (a put by this
//! thread, or a CPU write) and a later get, while in RDMA^WAIT a get flushes earlier puts to its node, and CPU writes
//! come before NIC reads. So every get begins with a store-load fence; cas and faa are fences already. Stores stay in
//! order (puts to one node land in order), loads stay in order, and no older store of the same thread passes a load.
//!
//! Memory may be given back while an operation is under way. A write looks at the generation of where it begins inside
//! its mark, as it looks at its right; a read looks again behind its loads.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering, compiler_fence, fence};
use std::sync::Arc;

use super::copy::{STRING_BYTES_MIN, copy_in, copy_out, copy_shared, store_load_fence};
use super::node_header::{DoorBell, FAR, TAKEN};
use super::reach::LanePlace;
use super::window::{Window, Windows};
use crate::error::Code;
use crate::lane::{Completions, Lane, Status, Verb, WorkRequest};
use crate::ptr::{GroupKey, NodeId, Plain, RemotePtr};
use crate::space::GRANULE_BYTES;
use crate::sys::{fence::futex_wake_all, liveness};

/// A thread's lane on shared memory.
///
/// ```
/// # use farfield_fabric::{shm::*, *};
/// # let node = ShmFabric::join(&ShmOptions::new(format!("doc-shmlane-{}", std::process::id()), 0, 1))?;
/// let lane: Box<dyn std::any::Any> = node.open_lane(false)?;
/// assert!(lane.is::<ShmLane>()); // of a fabric that is not decorated
/// # Ok::<(), Error>(())
/// ```
pub struct ShmLane {
    pub(super) windows: Arc<Windows>,
    /// This lane's mark on its node's card, which `place_taken` keeps mapped.
    mark: NonNull<AtomicU64>,
    /// The bell of this node's threads that wait, on the same card.
    waiters: NonNull<DoorBell>,
    completions: Completions,
    _place_taken: LanePlace,
}

// SAFETY: `mark` and `waiters` point into a mapping that `_place_taken` keeps, and to atomics; one thread at a time has
// the lane.
unsafe impl Send for ShmLane {}

/// The target of an operation.
pub(super) struct Place<'w> {
    window: &'w Window,
    pub(super) at: *mut u8,
    /// The generation of the granule where it begins, and that of the pointer.
    entry: *const AtomicU8,
    generation: u8,
}

impl Place<'_> {
    /// Whether the memory still has the pointer's generation.
    #[inline(always)]
    fn holds(&self) -> Result<(), Code> {
        // SAFETY: `Windows::attach`'s contract: the entry is mapped, since the place is in the window's memory.
        let now = unsafe { &*self.entry }.load(Ordering::Relaxed);
        if now == self.generation { Ok(()) } else { Err(self.mistaken(now)) }
    }

    /// No pointer has a future generation.
    #[cold]
    fn mistaken(&self, now: u8) -> Code {
        if now > self.generation { Code::Freed } else { Code::OutOfBounds }
    }

    /// The same for an operation that has read: its loads come before this one. Memory that is given out again has
    /// another generation before it is written: if the generation still holds, the operation has read the right
    /// memory.
    #[inline(always)]
    pub(super) fn held(&self) -> Result<(), Code> {
        fence(Ordering::Acquire); // for the compiler: x86 keeps loads in order
        self.holds()
    }
}

impl ShmLane {
    pub(super) fn new(windows: Arc<Windows>, place: LanePlace) -> ShmLane {
        let (mark, waiters) = (NonNull::from(place.mark()), NonNull::from(place.waiters()));
        ShmLane { windows, mark, waiters, completions: Completions::default(), _place_taken: place }
    }

    /// The place of `len` bytes at `remote`, if they exist and their owner lives.
    #[inline(always)]
    pub(super) fn place(&self, remote: RemotePtr<u8>, len: usize) -> Result<Place<'_>, Code> {
        let Some(window) = self.windows.get(remote.window()) else { return Err(Code::BadKey) };
        if !Self::is_owned(window) {
            return Err(Self::unreachable(window));
        }
        self.place_in(window, remote, len)
    }

    /// The place of `len` bytes at `remote`, in its window, the owner of which lives.
    #[inline(always)]
    pub(super) fn place_in<'w>(
        &self,
        window: &'w Window,
        remote: RemotePtr<u8>,
        len: usize,
    ) -> Result<Place<'w>, Code> {
        let offset = remote.offset();
        if !offset.is_multiple_of(8) {
            return Err(Code::Misaligned);
        }
        let is_known = offset.saturating_add(len as u64) <= window.len.load(Ordering::Relaxed);
        let (address, generation) =
            if is_known { (offset, 0) } else { self.beyond(remote.window(), window, offset, len)? };
        let at = window.base.load(Ordering::Relaxed).wrapping_add(address as usize);
        let granule = (address / GRANULE_BYTES) as usize;
        let entry = window.generations.load(Ordering::Relaxed).wrapping_add(granule);
        Ok(Place { window, at, entry, generation })
    }

    #[cold]
    fn unreachable(window: &Window) -> Code {
        // On a live node, a window that was not open is a bad key; `explain` distinguishes the cases.
        if window.is_new() { Code::BadKey } else { Code::Unreachable }
    }

    /// Address and generation of an offset beyond the bytes that were known: the memory was given out before, or may
    /// have grown since this process last looked.
    #[inline(never)]
    fn beyond(&self, index: usize, window: &Window, offset: u64, len: usize) -> Result<(u64, u8), Code> {
        let mask = window.mask.load(Ordering::Relaxed);
        let (address, generation) = (offset & mask, (offset >> mask.count_ones()) as u8);
        let fits = |bytes: u64| bytes.checked_sub(address).is_some_and(|room| len as u64 <= room);
        if fits(window.len.load(Ordering::Relaxed)) {
            return Ok((address, generation));
        }
        if fits(self.windows.wait_for_change(index, window)?) {
            Ok((address, generation))
        } else {
            Err(Code::OutOfBounds)
        }
    }

    /// Does a write under this lane's mark, which `revoke` waits for.
    ///
    /// The mark is set before the right and the generation are read. A revocation clears the right, and a release of
    /// memory changes the generation; both then fence all writers (see `fences`). So either this thread reads the
    /// change, or its mark is seen.
    ///
    /// It fails before the write, or not at all: callers rely on that (`Endpoint::ends_at_once`).
    #[inline(always)]
    pub(super) fn write<R>(&self, place: &Place<'_>, write: impl FnOnce() -> R) -> Result<R, Code> {
        let even = self.begin_write();
        if let Err(code) = Self::may_write(place) {
            self.end_write(even);
            return Err(code);
        }
        let result = write();
        self.end_write(even);
        Self::wake_readers(place.window);
        Ok(result)
    }

    /// Sets the mark. Returns what it was.
    #[inline(always)]
    fn begin_write(&self) -> u64 {
        // SAFETY: see `mark`.
        let mark = unsafe { self.mark.as_ref() };
        let even = mark.load(Ordering::Relaxed);
        mark.store(even + 1, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst); // the processor's share is the revoker's fence
        even
    }

    #[inline(always)]
    fn end_write(&self, even: u64) {
        // SAFETY: see `mark`.
        let mark = unsafe { self.mark.as_ref() };
        mark.store(even + 2, Ordering::Release); // after the write: x86 keeps stores in order
    }

    /// Under the mark: whether the place may be written to, and is still the one that the pointer meant.
    #[inline(always)]
    fn may_write(place: &Place<'_>) -> Result<(), Code> {
        Self::may(place.window)?;
        place.holds()
    }

    /// Wakes those that wait for a write to this memory.
    #[inline(always)]
    fn wake_readers(window: &Window) {
        compiler_fence(Ordering::SeqCst); // the processor's share is the sleeper's fence
        // SAFETY: as for `life` in `is_owned`.
        let bell: &DoorBell = unsafe { &*window.bell.load(Ordering::Relaxed) };
        if bell.sleepers.load(Ordering::Relaxed) != 0 {
            ring(bell);
        }
    }

    /// Whether access is allowed.
    #[inline(always)]
    pub(super) fn may(window: &Window) -> Result<(), Code> {
        // SAFETY: as for `life` in `is_owned`.
        let right: &AtomicU8 = unsafe { &*window.right.load(Ordering::Relaxed) };
        if right.load(Ordering::Relaxed) == TAKEN { Err(Code::Revoked) } else { Ok(()) }
    }

    /// Puts a value; 8 bytes in one store.
    #[inline(always)]
    pub(crate) fn put_value<T: Plain>(&self, dst: RemotePtr<T>, value: T) -> Result<(), Code> {
        let place = self.place(dst.cast(), size_of::<T>())?;
        let at = place.at;
        self.write(&place, || {
            if size_of::<T>() == 8 {
                // SAFETY: `place` has checked that 8 aligned bytes exist at `at`; access there is atomic by contract.
                // The value has 8 bytes, any of them initialised (it is plain data).
                unsafe {
                    let bits = core::mem::transmute_copy::<T, u64>(&value);
                    AtomicU64::from_ptr(at.cast()).store(bits, Ordering::Release);
                }
            } else {
                // SAFETY: source is a private value, destination is as above.
                unsafe { copy_in(at, core::ptr::from_ref(&value).cast(), size_of::<T>()) }
            }
        })
    }

    /// # Safety
    /// `src` is aligned to 8 and valid for `len` bytes of memory that is accessed by atomics only, or that no thread
    /// writes to meanwhile.
    #[inline]
    pub(crate) unsafe fn put_from(&self, dst: RemotePtr<u8>, src: *const u8, len: usize) -> Result<(), Code> {
        let place = self.place(dst, len)?;
        // SAFETY: `place` for the destination, the caller for the source.
        self.write(&place, || unsafe { copy_shared(place.at, src, len) })
    }

    /// `put_from` memory that others see: this thread's earlier stores are visible to them before the source is read
    /// (CW→NLR).
    ///
    /// # Safety
    /// As [`ShmLane::put_from`].
    #[inline]
    pub(crate) unsafe fn put_shared(&self, dst: RemotePtr<u8>, src: *const u8, len: usize) -> Result<(), Code> {
        store_load_fence();
        // SAFETY: the caller's.
        unsafe { self.put_from(dst, src, len) }
    }

    /// [`ShmLane::put_shared`], and then a put of a word to the same node, under one mark. If it fails, neither is
    /// done, and the error has whether it is the word that is refused.
    ///
    /// # Safety
    /// As [`ShmLane::put_from`].
    #[inline(always)]
    pub(crate) unsafe fn publish(
        &self,
        dst: RemotePtr<u8>,
        src: *const u8,
        len: usize,
        word: RemotePtr<u64>,
        value: u64,
    ) -> Result<(), (Code, bool)> {
        store_load_fence();
        let of_bytes = |code| (code, false);
        let of_word = |code| (code, true);
        let bytes = self.place(dst, len).map_err(of_bytes)?;
        let word = self.place(word.cast(), 8).map_err(of_word)?;
        let even = self.begin_write();
        if let Err(refused) = Self::may_write(&bytes).map_err(of_bytes).and(Self::may_write(&word).map_err(of_word)) {
            self.end_write(even);
            return Err(refused);
        }
        // SAFETY: `place` for the destination, the caller for the source.
        unsafe { copy_shared(bytes.at, src, len) };
        // SAFETY: `place` has checked that 8 aligned bytes exist there; access is atomic by contract.
        unsafe { AtomicU64::from_ptr(word.at.cast()) }.store(value, Ordering::Release); // behind the bytes
        self.end_write(even);
        Self::wake_readers(bytes.window);
        Self::wake_readers(word.window);
        Ok(())
    }

    /// Gets a value; 8 bytes in one load.
    #[inline(always)]
    pub(crate) fn get_value<T: Plain>(&self, src: RemotePtr<T>) -> Result<T, Code> {
        let place = self.place(src.cast(), size_of::<T>())?;
        Self::may(place.window)?;
        store_load_fence();
        let at = place.at;
        if size_of::<T>() == 8 {
            // SAFETY: `place` has checked that 8 aligned bytes exist at `at`; access there is atomic by contract; any
            // bits are a `T`, which is plain data of 8 bytes.
            unsafe {
                let bits = AtomicU64::from_ptr(at.cast()).load(Ordering::Acquire);
                place.held()?;
                Ok(core::mem::transmute_copy::<u64, T>(&bits))
            }
        } else {
            let mut value = core::mem::MaybeUninit::<T>::uninit();
            // SAFETY: the source is as above, the destination is a private value of that size, which is then
            // initialised in full; `T` is plain data.
            unsafe {
                copy_out(value.as_mut_ptr().cast(), at, size_of::<T>());
                place.held()?;
                Ok(value.assume_init())
            }
        }
    }

    /// Puts a word of a record and then gets others, as a put and a get of their own would. `None` if either is
    /// refused: the put may be done.
    #[inline(always)]
    pub(crate) fn put_and_get<const N: usize>(
        &self,
        record: RemotePtr<u64>,
        (put_at, value): (usize, u64),
        get_at: usize,
    ) -> Option<[u64; N]> {
        let words = put_at.checked_add(1)?.max(get_at.checked_add(N)?);
        let place = self.place(record.cast(), words.checked_mul(8)?).ok()?;
        // SAFETY: `place` has checked that the words up to the last of both exist; access is atomic by contract.
        let word = |at: usize| unsafe { AtomicU64::from_ptr(place.at.cast::<u64>().add(at)) };
        self.write(&place, || word(put_at).store(value, Ordering::Release)).ok()?;
        store_load_fence();
        let got = core::array::from_fn(|at| word(get_at + at).load(Ordering::Acquire));
        place.held().ok()?;
        Some(got)
    }

    /// # Safety
    /// `into` is aligned to 8 and valid for writes of `len` bytes, accessed by atomics only or by no other thread.
    #[inline]
    pub(crate) unsafe fn get_to(&self, src: RemotePtr<u8>, into: *mut u8, len: usize) -> Result<(), Code> {
        // SAFETY: the caller's.
        unsafe { self.get_to_after(src, into, len, false) }
    }

    /// `get_to` into memory that others see: its result is visible to them before this thread's next reads.
    ///
    /// # Safety
    /// As [`ShmLane::get_to`].
    #[inline]
    pub(crate) unsafe fn get_visibly(&self, src: RemotePtr<u8>, into: *mut u8, len: usize) -> Result<(), Code> {
        // SAFETY: the caller's.
        unsafe { self.get_to(src, into, len)? };
        // The stores may wait in this core's buffer; a get is complete when its write has ended (NLW is before WT, and
        // WT before CR).
        store_load_fence();
        Ok(())
    }

    /// `get_to`, without the fence if this thread has `fenced` and stored nothing to shared memory since.
    ///
    /// # Safety
    /// As [`ShmLane::get_to`].
    #[inline(always)]
    pub(crate) unsafe fn get_to_after(
        &self,
        src: RemotePtr<u8>,
        into: *mut u8,
        len: usize,
        fenced: bool,
    ) -> Result<(), Code> {
        let place = self.place(src, len)?;
        Self::may(place.window)?;
        // A late one leaves the destination alone.
        place.holds()?;
        if !fenced {
            store_load_fence();
        }
        // SAFETY: `place` for the source, the caller for the destination.
        unsafe { copy_shared(into, place.at, len) };
        if len >= STRING_BYTES_MIN {
            // Of the loads of string instructions nothing is specified but that this waits for them.
            // SAFETY: the instruction is part of every x86-64.
            unsafe { core::arch::x86_64::_mm_lfence() };
        }
        place.held()
    }

    #[inline(always)]
    pub(crate) fn cas(&self, dst: RemotePtr<u64>, expected: u64, new: u64) -> Result<u64, Code> {
        let place = self.place(dst.cast(), 8)?;
        self.cas_at(&place, expected, new)
    }

    /// A compare-and-swap of a word at a place of eight bytes.
    #[inline(always)]
    pub(super) fn cas_at(&self, place: &Place<'_>, expected: u64, new: u64) -> Result<u64, Code> {
        self.write(place, || {
            // SAFETY: `place` has checked that 8 aligned bytes exist there; access is atomic by contract.
            let word = unsafe { AtomicU64::from_ptr(place.at.cast()) };
            word.compare_exchange(expected, new, Ordering::SeqCst, Ordering::SeqCst).unwrap_or_else(|found| found)
        })
    }

    #[inline(always)]
    pub(crate) fn faa(&self, dst: RemotePtr<u64>, addend: u64) -> Result<u64, Code> {
        let place = self.place(dst.cast(), 8)?;
        // SAFETY: as in `cas`.
        self.write(&place, || unsafe { AtomicU64::from_ptr(place.at.cast()) }.fetch_add(addend, Ordering::SeqCst))
    }

    /// Whether an operation on a word would be done.
    #[inline]
    pub(crate) fn check_word(&self, word: RemotePtr<u64>) -> Result<(), Code> {
        let place = self.place(word.cast(), 8)?;
        Self::may(place.window)?;
        place.holds()
    }

    /// Whether the node is there.
    #[inline]
    pub(crate) fn reachable(&self, node: NodeId) -> Result<(), Code> {
        let signal = RemotePtr::<u8>::new(node, GroupKey::SIGNAL, 0);
        let Some(window) = self.windows.get(signal.window()) else { return Err(Code::BadKey) };
        if Self::is_owned(window) { Ok(()) } else { Err(Self::unreachable(window)) }
    }

    /// Whether the owner of a window lives.
    #[inline(always)]
    pub(super) fn is_owned(window: &Window) -> bool {
        // SAFETY: the pointer is to a static or was attached under `Windows::attach`'s contract; the windows live.
        let life = unsafe { &*window.life.load(Ordering::Acquire) };
        liveness::is_alive(life.load(Ordering::Relaxed))
    }

    /// Wakes the threads of this node that wait for a word which this one has just stored to.
    #[inline]
    pub(crate) fn wake_local(&self) {
        // SAFETY: see `waiters`.
        wake(unsafe { self.waiters.as_ref() });
    }

    /// Brings the line towards this core, if the place exists.
    #[inline(always)]
    pub(crate) fn prefetch(&self, src: RemotePtr<u8>) {
        if let Some(window) = self.windows.get(src.window()) {
            let address = src.offset() & window.mask.load(Ordering::Relaxed);
            let at = window.base.load(Ordering::Relaxed).wrapping_add(address as usize);
            // SAFETY: a prefetch is a hint: it reads nothing and faults on nothing, whatever the address.
            unsafe { core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(at.cast()) };
        }
    }
}

/// Wakes the sleepers of a bell, if there are any, after a store that they wait for.
#[inline]
pub(super) fn wake(bell: &DoorBell) {
    // The caller's stores precede the read, as a sleeper's announcement precedes its own. They also precede the
    // caller's next loads: `Endpoint::fence_and_wake_local` has no other fence.
    fence(Ordering::SeqCst);
    if bell.sleepers.load(Ordering::Relaxed) != 0 {
        ring(bell);
    }
}

/// Wakes the sleepers of a bell.
#[cold]
pub(super) fn ring(bell: &DoorBell) {
    if bell.sleepers.load(Ordering::Relaxed) & FAR != 0 {
        // Before the ring: a thread that announces itself later finds the ring as it is, or sets this again.
        bell.sleepers.fetch_and(!FAR, Ordering::SeqCst);
    }
    bell.ring.fetch_add(1, Ordering::SeqCst);
    futex_wake_all(&bell.ring);
}

/// The lane behind the dynamic interface, for decorators: an operation is complete when `post` returns.
impl crate::lane::sealed::Sealed for ShmLane {}

impl Lane for ShmLane {
    fn check(&mut self, request: &WorkRequest) -> Result<(), Code> {
        let place = self.place(request.remote, request.len)?;
        if request.verb == Verb::RemoteFence {
            return Ok(());
        }
        Self::may(place.window)?;
        place.holds()
    }

    fn post(&mut self, request: WorkRequest) -> u64 {
        let (remote, len, local) = (request.remote, request.len, request.local.ptr);
        let result = match request.verb {
            // SAFETY: the request's local memory is valid for `len` bytes while it exists, aligned (blocks and spans
            // are), and either shared cells or counted in flight.
            Verb::Put => unsafe { self.put_shared(remote, local, len) },
            // SAFETY: as above.
            Verb::Get => unsafe { self.get_visibly(remote, local, len) },
            Verb::Cas | Verb::Faa => {
                let [a, b] = request.operands;
                let word = remote.cast();
                let old = if request.verb == Verb::Cas { self.cas(word, a, b) } else { self.faa(word, a) };
                // SAFETY: as above; an atomic's local memory has 8 bytes.
                old.map(|old| unsafe { AtomicU64::from_ptr(local.cast()) }.store(old, Ordering::Release))
            }
            Verb::RemoteFence => self.place(remote, 0).map(|_| ()),
        };
        let peer = request.remote.node();
        let sequence = self.completions.post(peer);
        self.completions.complete(peer, sequence, result);
        sequence
    }

    fn poll(&mut self) {}

    fn status(&self, peer: NodeId, sequence: u64) -> Status {
        self.completions.status(peer, sequence)
    }
}
