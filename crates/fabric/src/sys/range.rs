//! Reserved address space, and errors of memory.

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::{io, ptr};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use rustix::process::{Resource, getrlimit};

/// Arenas start, grow and are aligned in units of this size, the larger page size of x86-64.
pub(crate) const STEP_BYTES: usize = 2 << 20;

/// Why memory could not be had or was not accepted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MemoryError {
    /// There is no room; nothing was harmed.
    #[error("{asked} more bytes of shared memory are needed but {available} can be had: {what_limits}; {hint}")]
    Exhausted {
        /// Bytes that were to be added.
        asked: u64,
        /// Bytes that could be added at most.
        available: u64,
        /// The limit that was hit.
        what_limits: String,
        /// What to do.
        hint: &'static str,
    },
    /// A size that cannot be.
    #[error("an arena cannot reserve {reserve_bytes} bytes of address space")]
    BadReserve {
        /// The size asked for.
        reserve_bytes: usize,
    },
    /// A file descriptor from a peer is unsuitable.
    #[error("refused a peer's memory: {why}; is it of another version?")]
    Rejected {
        /// The defect.
        why: String,
    },
    /// The kernel refused a call.
    #[error("{what} failed: {source}")]
    System {
        /// The attempted action.
        what: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

/// Gives an error of the kernel its context.
pub(super) fn system(what: &'static str) -> impl FnOnce(Errno) -> MemoryError {
    move |errno| MemoryError::System { what, source: errno.into() }
}

/// Whether a file of `len` bytes may have `more`. Beyond the limit the kernel would send SIGXFSZ.
pub(super) fn check_file_size(len: usize, more: usize) -> Result<(), MemoryError> {
    let limit = getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX);
    let free = limit.saturating_sub(len as u64);
    if more as u64 > free {
        return Err(MemoryError::Exhausted {
            asked: more as u64,
            available: free,
            what_limits: "this process's limit on file sizes".to_owned(),
            hint: "raise it: ulimit -f unlimited",
        });
    }
    Ok(())
}

/// Address space, into which files are mapped that may be shorter.
#[derive(Debug)]
pub(crate) struct Range {
    pub(super) base: NonNull<u8>,
    pub(super) len: usize,
}

// SAFETY: a range is an address and a length; the memory behind it stays mapped until the only owner drops it, and all
// access uses raw pointers; their users are responsible for it.
unsafe impl Send for Range {}

// SAFETY: as above; no method reads or writes the memory. `map_from` replaces memory that is not in use yet.
unsafe impl Sync for Range {}

impl Range {
    /// Maps `len` bytes of a file of ordinary pages, a multiple of 2 MiB.
    pub(super) fn map(fd: BorrowedFd<'_>, len: usize) -> Result<Self, MemoryError> {
        let range = Range::reserve(len, None)?;
        range.map_from(fd, 0, STEP_BYTES)?;
        Ok(range)
    }

    /// Reserves `len` bytes, a multiple of 2 MiB, at an address aligned to `align` or to 2 MiB (or no huge page would
    /// fit).
    pub(super) fn reserve(len: usize, align: Option<usize>) -> Result<Self, MemoryError> {
        let align = align.unwrap_or(STEP_BYTES).max(STEP_BYTES);
        let padded = len.checked_add(align).ok_or(MemoryError::BadReserve { reserve_bytes: len })?;
        // SAFETY: the kernel chooses an address range that nothing uses.
        let space = unsafe {
            mmap_anonymous(ptr::null_mut(), padded, ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE)
        };
        let space = space.map_err(system("reserving address space (ulimit -v?)"))?.cast::<u8>();
        let before = space.align_offset(align);
        let base = space.wrapping_add(before);
        let after = align - before;
        // SAFETY: both pieces are rests of our reservation, left and right of the range, page-aligned since `space`,
        // the alignment and the length are; no other code has their addresses. A rest that stays costs address space
        // only.
        let _ = unsafe { if before > 0 { munmap(space.cast(), before) } else { Ok(()) } };
        // SAFETY: as above; `after` is positive.
        let _ = unsafe { munmap(base.wrapping_add(len).cast(), after) };
        let base = NonNull::new(base).ok_or(MemoryError::BadReserve { reserve_bytes: len })?;
        Ok(Self { base, len })
    }

    /// Maps a file from `from` on, an offset of the range and of the file, up to the end or to its last whole page.
    ///
    /// The target must not be in use yet.
    pub(super) fn map_from(&self, fd: BorrowedFd<'_>, from: usize, page_bytes: usize) -> Result<(), MemoryError> {
        let len = self.len.saturating_sub(from);
        let len = len - len % page_bytes;
        if len == 0 {
            return Ok(());
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::NORESERVE | MapFlags::FIXED;
        let at = self.base.as_ptr().wrapping_add(from);
        // SAFETY: the target is inside this range, which is ours, and is not in use: lengths are published only after
        // this.
        let mapped = unsafe { mmap(at.cast(), len, access, flags, fd, from as u64) };
        mapped.map(drop).map_err(system("mapping shared memory"))
    }

    /// Gives back the memory behind it, and the address space beyond its first `used` bytes. Those can be read as
    /// before: they are zero, or those of the file, over and over, if one is given with its length.
    ///
    /// # Safety
    /// No thread writes to it, or reads anything but its first `used` bytes, now or later.
    ///
    /// # Errors
    /// The kernel's. All of it can still be read.
    pub(crate) unsafe fn vacate(
        &mut self,
        used: usize,
        file: Option<(BorrowedFd<'_>, usize)>,
    ) -> Result<(), MemoryError> {
        let kept = used.next_multiple_of(STEP_BYTES).min(self.len);
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        let vacating = system("giving back the memory of a peer");
        match file {
            None => {
                // All at once: a part of a mapping in huge pages could not be replaced.
                // SAFETY: the target is this range, to which no thread writes; its contents may change, by the
                // contract of this function.
                let mapped = unsafe { mmap_anonymous(self.base.as_ptr().cast(), self.len, ProtFlags::READ, flags) };
                mapped.map_err(vacating)?;
            }
            Some((file, bytes)) => {
                let parts = (0..kept).step_by(bytes).map(|from| (from, bytes.min(kept - from)));
                let mapped = parts.map(|(from, len)| {
                    let at = self.base.as_ptr().wrapping_add(from);
                    // SAFETY: as above; the file has as many bytes.
                    unsafe { mmap(at.cast(), len, ProtFlags::READ, flags, file, 0) }.map(drop)
                });
                mapped.collect::<Result<(), _>>().map_err(vacating)?;
            }
        }
        if kept < self.len {
            // SAFETY: the rest of this range, which is not in use.
            let rest = unsafe { munmap(self.base.as_ptr().wrapping_add(kept).cast(), self.len - kept) };
            rest.map_err(system("giving back address space"))?;
            self.len = kept;
        }
        Ok(())
    }

    /// Where it begins.
    pub(super) fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    pub(super) fn advise(&self, from: usize, advice: Advice) -> rustix::io::Result<()> {
        // SAFETY: the range is mapped or reserved; only advice that leaves contents alone is given here.
        unsafe { madvise(self.base.as_ptr().wrapping_add(from).cast(), self.len - from, advice) }
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `map` and is unmapped once; the holder of a pointer into it has promised to
        // keep its owner as well.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}
