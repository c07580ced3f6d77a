//! Address space, and the pages in it: mapped, and registered where a device needs that, in one step, on the largest
//! pages that there are.
//!
//! [`HugePages`](crate::HugePages) decides which pages those may be. Memory that is a whole number of pages of 1 GiB is
//! on such pages if the kernel has them free, or else on pages of 2 MiB, or else on ordinary ones, which the kernel is
//! asked to make huge as it can. Fewer and larger pages take fewer entries in the tables of the processor and of the
//! device. Huge pages are allocated before they are mapped, so a lack of them is an error here, and never a signal
//! later.

use core::ptr::NonNull;
use std::os::fd::OwnedFd;

use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use crate::sys::pages::{Pages, check_room};
use crate::sys::range::STEP_BYTES;

pub(crate) const GIB: usize = 1 << 30;

/// A range of addresses of this process that nothing else uses. Dropping it unmaps its usable parts.
pub(crate) struct AddressRange {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: an address and a length; nothing here reads or writes memory.
unsafe impl Send for AddressRange {}
// SAFETY: as above.
unsafe impl Sync for AddressRange {}

impl AddressRange {
    /// Aligned so that pages of any size fit that the range has room for.
    ///
    /// # Errors
    /// There is no address space left; the text has the reason.
    pub(crate) fn reserve(bytes: usize) -> Result<AddressRange, String> {
        let align = if bytes >= GIB { GIB } else { STEP_BYTES };
        let bytes = bytes.next_multiple_of(STEP_BYTES);
        let padded = bytes + align;
        // SAFETY: the kernel chooses an address range that nothing uses.
        let space = unsafe {
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
            mmap_anonymous(core::ptr::null_mut(), padded, ProtFlags::empty(), flags)
        };
        let space = space.map_err(|errno| format!("no address space (ulimit -v?): {errno}"))?.cast::<u8>();
        let before = space.align_offset(align);
        let base = space.wrapping_add(before);
        // SAFETY: both parts of the padding are of the mapping that was just made, and no other code has their
        // addresses. (A refusal costs address space only.)
        unsafe {
            if before > 0 {
                let _ = munmap(space.cast(), before);
            }
            let _ = munmap(base.wrapping_add(bytes).cast(), align - before);
        }
        Ok(AddressRange { base: NonNull::new(base).expect("a mapping is not at address zero"), bytes })
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Maps a part of the range as zeroed memory, on the first of these kinds of pages on which `accept` accepts it.
    ///
    /// # Safety
    /// That part is not in use yet.
    ///
    /// # Errors
    /// No memory, or it is not accepted; the text has the reason. Then the part is as it was.
    pub(crate) unsafe fn map<T>(
        &self,
        kinds: &[Pages],
        offset: usize,
        bytes: usize,
        mut accept: impl FnMut(*mut u8) -> Result<T, String>,
    ) -> Result<T, String> {
        assert!(offset.checked_add(bytes).is_some_and(|end| end <= self.bytes), "it is in the range");
        // SAFETY: inside the range.
        let start = unsafe { self.base.add(offset) }.as_ptr();
        let mut why = String::new();
        for &pages in kinds {
            // SAFETY: the part is inside the range, and not in use, by the contract of this function.
            match unsafe { map(start, bytes, pages) } {
                Ok(true) => {}
                Ok(false) => continue,
                Err(error) => {
                    why = error;
                    continue;
                }
            }
            match accept(start) {
                Ok(accepted) => {
                    tracing::debug!("mapped {bytes} bytes on {pages:?} pages");
                    return Ok(accepted);
                }
                Err(error) => {
                    why = error;
                    // SAFETY: no other code knows of the memory, and its addresses stay reserved.
                    let _ = unsafe {
                        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
                        mmap_anonymous(start.cast(), bytes, ProtFlags::empty(), flags)
                    };
                }
            }
        }
        Err(why)
    }
}

impl Drop for AddressRange {
    fn drop(&mut self) {
        // SAFETY: our own range; any holder of an address in it keeps the range.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// Maps memory on such pages; false if it has none that fit it, or none are free.
///
/// # Safety
/// The range is reserved, and not in use.
unsafe fn map(start: *mut u8, bytes: usize, pages: Pages) -> Result<bool, String> {
    // Shared, so that a child of this process does not make it copy-on-write under the device.
    let flags = MapFlags::SHARED | MapFlags::NORESERVE | MapFlags::FIXED;
    let may = ProtFlags::READ | ProtFlags::WRITE;
    if !pages.flags().contains(MemfdFlags::HUGETLB) {
        check_room(bytes).map_err(|why| why.to_string())?;
        // SAFETY: by the contract of this function.
        let mapped = unsafe { mmap_anonymous(start.cast(), bytes, may, flags) };
        mapped.map_err(|errno| format!("mmap: {errno}"))?;
        // SAFETY: just mapped; a wish, which leaves contents alone and which the kernel may ignore.
        let _ = unsafe { madvise(start.cast(), bytes, Advice::LinuxHugepage) };
        return Ok(true);
    }
    if !bytes.is_multiple_of(pages.bytes()) || !start.addr().is_multiple_of(pages.bytes()) {
        return Ok(false);
    }
    let Some(file) = huge_file(bytes, pages) else { return Ok(false) };
    // SAFETY: by the contract of this function. The file has all its pages, so nothing that reads or writes here meets
    // a signal.
    let mapped = unsafe { mmap(start.cast(), bytes, may, flags, &file, 0) };
    mapped.map(|_| true).map_err(|errno| format!("mmap of huge pages: {errno}"))
}

/// A file with all pages allocated. Mapping anonymous memory instead would detect a lack of pages too late: when
/// the addresses are no longer reserved, or by a signal at the first access.
fn huge_file(bytes: usize, pages: Pages) -> Option<OwnedFd> {
    let file = memfd_create("farfield-group", MemfdFlags::CLOEXEC | pages.flags()).ok()?;
    ftruncate(&file, bytes as u64).ok()?;
    fallocate(&file, FallocateFlags::empty(), 0, bytes as u64).ok()?;
    Some(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_aligned_to_the_pages_that_fit_in_them() {
        for (bytes, align) in [(4096, STEP_BYTES), (3 << 20, STEP_BYTES), (GIB, GIB), (5 * GIB, GIB)] {
            let range = AddressRange::reserve(bytes).unwrap();
            assert_eq!(range.base().as_ptr().align_offset(align), 0);
            assert!((bytes..bytes + STEP_BYTES).contains(&range.bytes()));
        }
    }

    /// Huge pages are mapped where there are some; where there are none, the error is reported before anything is
    /// mapped.
    #[test]
    fn pages_are_there_when_they_are_mapped() {
        for (pages, bytes) in [(Pages::Ordinary, 4096), (Pages::Huge, 2 * STEP_BYTES), (Pages::Gigantic, GIB)] {
            let range = AddressRange::reserve(bytes).unwrap();
            let start = range.base().as_ptr();
            // SAFETY: no other code uses the range.
            if unsafe { map(start, bytes, pages) }.unwrap() {
                for at in [0, bytes - 8] {
                    // SAFETY: just mapped.
                    unsafe {
                        assert_eq!(start.add(at).read(), 0);
                        start.add(at).write(1);
                    }
                }
            } else {
                assert_ne!(pages, Pages::Ordinary);
            }
            // SAFETY: as above.
            let odd = unsafe { map(start, 4096, Pages::Gigantic) };
            assert_eq!(odd, Ok(false), "a part of a page is no page");
        }
    }
}
