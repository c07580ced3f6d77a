//! A large table: its entries all begin alike, and most are never written.
//!
//! Entries lie in a small file of pages that every part of the table maps privately: a part of it that is written gets
//! pages of its own (copy on write), and the others take no memory, though each can be read like any.

use core::marker::PhantomData;
use core::ops::Deref;
use core::ptr::{self, NonNull};

use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use super::pages::check_room;
use super::range::{MemoryError, check_file_size, system};

/// The length of the file.
const PART_BYTES: usize = 1 << 20;

/// A table of `T`, by its slice.
pub(crate) struct Alike<T> {
    base: NonNull<T>,
    count: usize,
    bytes: usize,
    _entries: PhantomData<T>,
}

// SAFETY: it owns its entries, as a vector does.
unsafe impl<T: Send> Send for Alike<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Alike<T> {}

impl<T> Alike<T> {
    /// So many entries, each as `entry` makes them. They are never dropped.
    ///
    /// # Errors
    /// No memory for one part of them, or no address space for all.
    pub(crate) fn new(count: usize, entry: impl Fn() -> T) -> Result<Alike<T>, MemoryError> {
        const { assert!(PART_BYTES.is_multiple_of(size_of::<T>()) && !core::mem::needs_drop::<T>()) };
        check_room(PART_BYTES)?;
        let file = memfd_create("farfield-table", MemfdFlags::CLOEXEC).map_err(system("memfd_create"))?;
        check_file_size(0, PART_BYTES)?;
        let reserve = || fallocate(&file, FallocateFlags::empty(), 0, PART_BYTES as u64);
        rustix::io::retry_on_intr(reserve).map_err(system("fallocate on a memfd"))?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses a range that nothing uses.
        let first = unsafe { mmap(ptr::null_mut(), PART_BYTES, access, MapFlags::SHARED, &file, 0) };
        let first = first.map_err(system("mapping a table"))?.cast::<T>();
        for at in 0..PART_BYTES / size_of::<T>() {
            // SAFETY: inside the mapping just made, which has pages and is aligned to them.
            unsafe { first.add(at).write(entry()) };
        }
        // SAFETY: mapped a moment ago, and no code keeps its addresses.
        let _ = unsafe { munmap(first.cast(), PART_BYTES) };

        let bytes = (count * size_of::<T>()).next_multiple_of(PART_BYTES).max(PART_BYTES);
        // SAFETY: the kernel chooses a range that nothing uses.
        let base = unsafe {
            mmap_anonymous(ptr::null_mut(), bytes, ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE)
        };
        let base = base.map_err(system("reserving address space (ulimit -v?)"))?;
        let base = NonNull::new(base.cast::<T>()).expect("a mapping is not at address zero");
        let table = Alike { base, count, bytes, _entries: PhantomData };
        for part in (0..bytes).step_by(PART_BYTES) {
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
            let at = base.as_ptr().wrapping_byte_add(part);
            // SAFETY: the target is a part of the range that was just reserved, and nothing uses it.
            unsafe { mmap(at.cast(), PART_BYTES, access, flags, &file, 0) }.map_err(system("mapping a table"))?;
        }
        Ok(table)
    }
}

impl<T> Deref for Alike<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: mapped for as long as `self`, aligned to pages, and full of entries: parts are whole numbers of them,
        // and each begins as the file, which is not written any more.
        unsafe { core::slice::from_raw_parts(self.base.as_ptr(), self.count) }
    }
}

impl<T> Drop for Alike<T> {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` and unmapped once; borrows of entries have ended.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn entries_are_alike_until_they_are_written() {
        const COUNT: usize = 3 * PART_BYTES / 8 + 5;
        let table = Alike::new(COUNT, || AtomicU64::new(7)).unwrap();
        assert_eq!((table.len(), table.get(COUNT).is_none()), (COUNT, true));
        assert!(table.iter().all(|entry| entry.load(Ordering::Relaxed) == 7));
        let places = [0, 1, PART_BYTES / 8, 2 * PART_BYTES / 8 + 600, COUNT - 1];
        for (value, at) in places.into_iter().enumerate() {
            table[at].store(value as u64, Ordering::Relaxed);
        }
        let written = table.iter().enumerate().filter(|entry| entry.1.load(Ordering::Relaxed) != 7);
        assert!(written.map(|entry| entry.0).eq(places));
        assert!(places.iter().zip(0..).all(|(at, value)| table[*at].load(Ordering::Relaxed) == value));
    }
}
