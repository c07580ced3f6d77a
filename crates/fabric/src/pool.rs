//! The pool of an endpoint: blocks of registered memory for its buffers.
//!
//! A block counts the operations in flight on it, and is used again only when the count is zero.

use core::any::Any;
use core::cell::{Cell, RefCell};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::sync::{Arc, OnceLock};

use crate::error::{ErrorKind, Result};
use crate::ptr::Plain;

/// A piece of registered memory with a count of the operations that still use it.
pub(crate) struct Block {
    start: NonNull<u8>,
    bytes: usize,
    in_flight: AtomicU32,
    slab: Arc<Slab>,
}

// SAFETY: the memory at `start` is reached through raw pointers only: by the `Buf` that owns the block, and by lanes
// for operations counted in `in_flight`. `Buf` gives out references under the rules in the module's documentation.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

/// The memory of blocks. If a device needs registered memory, slabs are pieces of its node's registered memory
/// ([`BufferMemory`]). A slab of other memory is registered as a whole, with the first operation on one of its blocks.
pub(crate) struct Slab {
    start: NonNull<u8>,
    bytes: usize,
    /// How it was allocated, if it is not a piece of a store.
    layout: Option<Layout>,
    registration: OnceLock<Registration>,
}

/// The source of slabs, where a device needs registered memory.
pub trait BufferMemory: Send + Sync {
    /// At least `bytes` bytes that begin with a page. Their contents are those of an earlier user, or zero.
    ///
    /// # Errors
    /// [`ErrorKind::NoBufferMemory`].
    fn take(self: Arc<Self>, bytes: usize) -> Result<Piece>;
}

/// Registered memory of a [`BufferMemory`].
pub struct Piece {
    start: NonNull<u8>,
    bytes: usize,
    /// The local key by which the device knows it, and the owner that gets the memory back.
    registration: Registration,
}

impl Piece {
    /// # Safety
    /// The memory is valid for reads and writes, nobody else uses it, and it stays there as long as `registration`
    /// lives.
    pub(crate) unsafe fn new(start: NonNull<u8>, bytes: usize, registration: Registration) -> Piece {
        Piece { start, bytes, registration }
    }

    #[cfg(test)]
    pub(crate) fn parts(&self) -> (NonNull<u8>, usize, u32) {
        (self.start, self.bytes, self.registration.key)
    }
}

/// The registration of a slab with a device.
pub(crate) struct Registration {
    /// The local key.
    pub(crate) key: u32,
    /// Ends the registration when dropped, or returns the memory to its store.
    #[allow(dead_code, reason = "held for its drop only")]
    pub(crate) keep: Box<dyn Any + Send + Sync>,
}

// SAFETY: a slab is an address and a length; nothing here reads or writes its memory.
unsafe impl Send for Slab {}
// SAFETY: as above.
unsafe impl Sync for Slab {}

impl Slab {
    fn new(bytes: usize) -> Arc<Slab> {
        // Registration pins whole pages, so larger slabs share no page with other memory.
        let align = if bytes < PAGE_BYTES { BLOCK_ALIGN } else { PAGE_BYTES };
        let layout = Layout::from_size_align(bytes.max(8), align).expect("blocks have at most 1 GiB");
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        Arc::new(Slab { start, bytes: layout.size(), layout: Some(layout), registration: OnceLock::new() })
    }

    /// Memory that is registered already.
    pub(crate) fn of_piece(piece: Piece) -> Arc<Slab> {
        let Piece { start, bytes, registration } = piece;
        Arc::new(Slab { start, bytes, layout: None, registration: OnceLock::from(registration) })
    }

    /// The block of `bytes` bytes at `offset`. The caller gives no byte to two blocks.
    pub(crate) fn block(self: &Arc<Slab>, offset: usize, bytes: usize) -> Arc<Block> {
        assert!(offset + bytes <= self.bytes, "a block lies inside its slab");
        // SAFETY: the offset is inside the slab's allocation.
        let start = unsafe { self.start.add(offset) };
        Arc::new(Block { start, bytes, in_flight: AtomicU32::new(0), slab: Arc::clone(self) })
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        // The registration ends before the memory is freed.
        self.registration.take();
        if let Some(layout) = self.layout {
            // SAFETY: allocated in `new` with this layout; blocks keep their slab, so no address of it is left.
            unsafe { dealloc(self.start.as_ptr(), layout) };
        }
    }
}

impl Block {
    /// A block in a slab of its own.
    pub(crate) fn new(bytes: usize) -> Arc<Block> {
        let bytes = bytes.div_ceil(8).max(1) * 8;
        Slab::new(bytes).block(0, bytes)
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The key under which a device knows the block's slab. `register` registers the slab's memory the first time.
    #[inline]
    pub(crate) fn local_key<E>(
        &self,
        register: impl FnOnce(*mut u8, usize) -> Result<Registration, E>,
    ) -> Result<u32, E> {
        if let Some(known) = self.slab.registration.get() {
            return Ok(known.key);
        }
        let made = register(self.slab.start.as_ptr(), self.slab.bytes)?;
        Ok(self.slab.registration.get_or_init(|| made).key)
    }

    /// Reads a `T` from the start. The caller guarantees that no operation writes to the block any more.
    pub(crate) fn read<T: Plain>(&self) -> T {
        assert!(size_of::<T>() <= self.bytes(), "a result fits its block");
        // SAFETY: in bounds by the assertion; `T` is plain data, so any bytes will do; unaligned read allowed.
        unsafe { self.as_ptr().cast::<T>().read_unaligned() }
    }

    /// Writes a `T` at the start. The caller has just taken the block from the pool.
    pub(crate) fn write<T: Plain>(&self, value: T) {
        assert!(size_of::<T>() <= self.bytes(), "a value fits its block");
        debug_assert!(self.is_idle());
        // SAFETY: in bounds by the assertion; the block is idle and owned by the caller.
        unsafe { self.as_ptr().cast::<T>().write_unaligned(value) }
    }

    pub(crate) fn begin(&self) {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn end(&self) {
        let before = self.in_flight.fetch_sub(1, Ordering::Release);
        debug_assert!(before > 0, "an operation ends once");
    }

    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight.load(Ordering::Acquire) == 0
    }
}

const CLASSES: usize = 25; // 64 B … 1 GiB
const SMALLEST_SHIFT: u32 = 6;
/// The bytes of the smallest block.
pub(crate) const SMALLEST_BYTES: usize = 1 << SMALLEST_SHIFT;
const BLOCK_ALIGN: usize = 1 << SMALLEST_SHIFT;
const PAGE_BYTES: usize = 4096;
/// Blocks up to this size share slabs, larger ones have one each.
const SHARED_BYTES_MAX: usize = 16 << 10;
/// Slabs that are shared begin with a page and double up to this size.
const SLAB_BYTES_MAX: usize = 64 << 10;

/// The blocks of one endpoint, in classes of powers of two. Used by the endpoint's thread only.
pub(crate) struct Pool {
    free: [RefCell<Vec<Arc<Block>>>; CLASSES],
    parked: RefCell<Vec<Arc<Block>>>,
    /// The slab of the small blocks, and how much of it is used.
    slab: RefCell<Option<(Arc<Slab>, usize)>>,
    allocated_bytes: Cell<usize>,
    limit_bytes: usize,
    /// The source of slabs, if the device needs registered memory.
    store: Option<Arc<dyn BufferMemory>>,
}

impl Pool {
    pub(crate) fn new(limit_bytes: usize, store: Option<Arc<dyn BufferMemory>>) -> Pool {
        Pool {
            free: std::array::from_fn(|_| RefCell::new(Vec::new())),
            parked: RefCell::new(Vec::new()),
            slab: RefCell::new(None),
            allocated_bytes: Cell::new(0),
            limit_bytes,
            store,
        }
    }

    /// The largest block of a pool with this limit.
    pub(crate) fn largest(limit_bytes: usize) -> usize {
        match limit_bytes.checked_ilog2() {
            Some(shift) if shift >= SMALLEST_SHIFT => 1 << shift.min(SMALLEST_SHIFT + CLASSES as u32 - 1),
            _ => 0,
        }
    }

    pub(crate) fn limit_bytes(&self) -> usize {
        self.limit_bytes
    }

    fn class(bytes: usize) -> usize {
        let bytes = bytes.max(1 << SMALLEST_SHIFT);
        (bytes.next_power_of_two().trailing_zeros() - SMALLEST_SHIFT) as usize
    }

    /// An idle block of at least `bytes` bytes.
    #[inline]
    pub(crate) fn take(&self, bytes: usize) -> Result<Arc<Block>> {
        let class = Self::class(bytes);
        match self.free.get(class).and_then(|list| list.borrow_mut().pop()) {
            Some(block) => Ok(block),
            None => self.allocate(class, bytes),
        }
    }

    #[cold]
    fn allocate(&self, class: usize, asked_bytes: usize) -> Result<Arc<Block>> {
        self.unpark();
        if let Some(block) = self.free.get(class).and_then(|list| list.borrow_mut().pop()) {
            return Ok(block);
        }
        let bytes = 1usize << (class as u32 + SMALLEST_SHIFT).min(62);
        if class >= CLASSES || self.allocated_bytes.get().saturating_add(bytes) > self.limit_bytes {
            return Err(ErrorKind::PoolExhausted { asked_bytes, limit_bytes: self.limit_bytes }.into());
        }
        let block = if bytes <= SHARED_BYTES_MAX { self.cut(bytes)? } else { self.slab(bytes)?.block(0, bytes) };
        self.allocated_bytes.set(self.allocated_bytes.get() + bytes);
        Ok(block)
    }

    fn slab(&self, bytes: usize) -> Result<Arc<Slab>> {
        Ok(match &self.store {
            Some(store) => Slab::of_piece(Arc::clone(store).take(bytes)?),
            None => Slab::new(bytes),
        })
    }

    /// A small block of a shared slab.
    fn cut(&self, bytes: usize) -> Result<Arc<Block>> {
        let mut slab = self.slab.borrow_mut();
        let used_up = slab.as_ref().is_none_or(|(slab, used)| used + bytes > slab.bytes);
        if used_up {
            let last = slab.as_ref().map_or(0, |(slab, _)| slab.bytes);
            let next = (2 * last).clamp(bytes.max(PAGE_BYTES), SLAB_BYTES_MAX);
            *slab = Some((self.slab(next).or_else(|_| self.slab(bytes))?, 0));
        }
        let (slab, used) = slab.as_mut().expect("just made");
        let offset = core::mem::replace(used, *used + bytes);
        Ok(slab.block(offset, bytes))
    }

    #[inline]
    pub(crate) fn put_back(&self, block: Arc<Block>) {
        if block.is_idle() {
            self.free[Self::class(block.bytes())].borrow_mut().push(block);
        } else {
            self.parked.borrow_mut().push(block);
        }
    }

    /// Frees parked blocks after their operations have completed.
    fn unpark(&self) {
        for block in self.parked.borrow_mut().extract_if(.., |block| block.is_idle()) {
            self.free[Self::class(block.bytes())].borrow_mut().push(block);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_block_is_given_and_none_that_is_larger() {
        assert_eq!([0, 63].map(Pool::largest), [0, 0]);
        assert_eq!([usize::MAX, 1 << 40].map(Pool::largest), [1 << 30, 1 << 30]);
        for limit in [64, 100, 4096, 5000, 1 << 20] {
            let largest = Pool::largest(limit);
            assert!(largest <= limit && Pool::new(limit, None).take(largest).is_ok(), "{limit}");
            assert!(Pool::new(limit, None).take(largest + 1).is_err(), "{limit}");
        }
    }

    #[test]
    fn a_parked_block_comes_back_only_when_its_operations_have_ended() {
        let pool = Pool::new(64, None);
        let block = pool.take(8).unwrap();
        let handle = Arc::clone(&block);
        handle.begin();
        pool.put_back(block);
        assert!(matches!(pool.take(8).map(|_| ()).unwrap_err().kind(), ErrorKind::PoolExhausted { .. }));
        handle.end();
        assert!(Arc::ptr_eq(&pool.take(8).unwrap(), &handle));
    }

    #[test]
    fn small_blocks_share_slabs_and_their_registration() {
        let pool = Pool::new(1 << 20, None);
        let blocks: Vec<_> = (0..64).map(|_| pool.take(8).unwrap()).collect();
        let register = |start: *mut u8, bytes| {
            assert_eq!((start.align_offset(PAGE_BYTES), bytes), (0, PAGE_BYTES));
            Ok::<_, ()>(Registration { key: 7, keep: Box::new(()) })
        };
        assert_eq!(blocks[0].local_key(register), Ok(7));
        assert!(blocks.iter().all(|block| block.local_key(|_, _| Err(())) == Ok(7)), "registered once");
        let mut starts: Vec<_> = blocks.iter().map(|block| block.as_ptr() as usize).collect();
        starts.sort_unstable();
        assert!(starts.windows(2).all(|pair| pair[0] + 64 <= pair[1]), "no two overlap");
        let other = pool.take(SHARED_BYTES_MAX + 1).unwrap();
        assert_eq!(other.local_key(|_, _| Err(())), Err(()), "a large block has a slab of its own");
    }
}
