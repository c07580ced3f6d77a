//! Arenas: the registered memory of one permission group, shared with peers as sealed memfds.
//!
//! ```text
//! base                    len (grown)              limit            reserve
//!  |  allocated, usable    |  address space only, SIGBUS if touched  |
//! ```
//!
//! The whole future length is mapped at once, by the owner and by every peer, so that no pointer ever moves. Growing
//! allocates pages with `fallocate`, which fails with an error where a first write beyond the machine's memory would be a
//! signal; and it looks at the machine's and the control group's room before, since the kernel would otherwise kill a
//! process to make room. Nothing is left behind by a crash: the memory goes with the last process that maps it.
//!
//! **Huge pages** are taken first, as long as there are free ones, and then ordinary ones: one file for each kind of page,
//! and one part of the arena from each, in this order. A file's offsets are those of the arena.
//!
//! ```text
//!  base            seam                  len
//!  |  2 MiB pages   |  ordinary pages     |  …
//!  |  file 0        |  file 1             |
//! ```
//!
//! A part begins when nothing more can be had of the kind before it: then the owner maps the next file from there on. A
//! peer, which has all files from the beginning, does the same when it hears of memory beyond what it has mapped
//! ([`Mapping::reach`]). It needs no word from the owner: how much was allocated of a file is final when the next one has
//! pages.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{
    FallocateFlags, FileType, MemfdFlags, SealFlags, Stat, fallocate, fcntl_add_seals, fcntl_get_seals, fstat,
    memfd_create,
};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use rustix::process::{Resource, getrlimit};

use super::pages::{Pages, check_room};

/// Arenas start, grow and are aligned in units of this size, the larger page size of x86-64.
pub(crate) const STEP_BYTES: usize = 2 << 20;
/// An arena doubles, but never takes more than this beyond what was asked for.
const AHEAD_BYTES_MAX: usize = 256 << 20;
/// Allocated between two looks at the room left; several nodes may be growing at once. Takes about 16 ms.
const CHUNK_BYTES: usize = 64 << 20;

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
    /// A file descriptor from a peer is not what it should be.
    #[error("refused a peer's memory: {why}; is it of another version?")]
    Rejected {
        /// What is wrong with it.
        why: String,
    },
    /// The kernel refused a call.
    #[error("{what} failed: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

/// Gives an error of the kernel its context.
pub(super) fn system(what: &'static str) -> impl FnOnce(Errno) -> MemoryError {
    move |errno| MemoryError::System { what, source: errno.into() }
}

/// Own memory that peers may map.
#[derive(Debug)]
pub(crate) struct Arena {
    range: Range,
    /// One after the other; the last is of ordinary pages.
    parts: Vec<Part>,
    len: AtomicUsize,
    limit_bytes: usize,
    /// The part that grows. Held while growing.
    growing: Mutex<usize>,
}

/// Memory of one kind of page.
#[derive(Debug)]
struct Part {
    pages: Pages,
    fd: OwnedFd,
}

impl Part {
    fn create(name: &str, pages: Pages) -> Result<Part, MemoryError> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | pages.flags();
        let fd = memfd_create(name, flags).map_err(system("memfd_create"))?;
        // Peers rely on the length never shrinking, or their accesses would be signals.
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::SEAL).map_err(system("sealing a memfd"))?;
        Ok(Part { pages, fd })
    }

    /// Bytes of it that are allocated.
    fn taken(&self) -> usize {
        fstat(&self.fd).map_or(0, |stat| allocated(&stat))
    }

    /// What can be had of the pages of a pool.
    fn free_bytes(&self) -> u64 {
        self.pages.free_bytes(|| self.taken())
    }

    /// Allocates up to `wanted` bytes from `len` on, but at least one page, and not beyond `ceiling`; how many.
    fn allocate(&self, len: usize, wanted: usize, ceiling: usize) -> Result<usize, MemoryError> {
        let page = self.pages.bytes();
        let most = self.free_bytes().min((ceiling - len) as u64) as usize;
        let chunk = wanted.min(CHUNK_BYTES).next_multiple_of(page).min(most - most % page);
        let exhausted = |asked: usize| MemoryError::Exhausted {
            asked: asked as u64,
            available: 0,
            what_limits: if self.pages == Pages::Ordinary { "the kernel" } else { "the pool of huge pages" }.to_owned(),
            hint: "free memory on this machine, or lower the session's memory limit",
        };
        if chunk == 0 {
            return Err(exhausted(wanted));
        }
        if self.pages == Pages::Ordinary {
            check_room(chunk)?;
        }
        check_file_size(len, chunk)?;
        loop {
            match fallocate(&self.fd, FallocateFlags::empty(), len as u64, chunk as u64) {
                Ok(()) => return Ok(chunk),
                Err(Errno::INTR) => continue,
                Err(errno) => {
                    // The file of huge pages keeps those that it got.
                    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                    if self.pages != Pages::Ordinary {
                        fallocate(&self.fd, punch, len as u64, chunk as u64).map_err(system("giving pages back"))?;
                    }
                    return Err(match errno {
                        Errno::NOSPC | Errno::NOMEM => exhausted(wanted),
                        errno => system("fallocate on a memfd")(errno),
                    });
                }
            }
        }
    }
}

impl Arena {
    /// Reserves address space for an arena that may grow up to `limit_bytes`, and allocates nothing yet.
    ///
    /// `name` shows in `/proc/<pid>/maps`. `reserve_bytes` is rounded up to 2 MiB; a limit beyond it is cut to it. Pages are
    /// taken of the `kinds`, in this order; a kind of which there is none now is left out.
    pub(crate) fn create(
        name: &str,
        reserve_bytes: usize,
        limit_bytes: usize,
        kinds: &[Pages],
    ) -> Result<Self, MemoryError> {
        let reserve_bytes = round_reserve(reserve_bytes)?;
        let limit_bytes = limit_bytes.min(reserve_bytes);
        // The kernel takes names of up to 249 bytes without a zero byte.
        let name: String = name.chars().filter(|c| *c != '\0').take(60).collect();
        let mut parts = Vec::new();
        for pages in kinds {
            let page = pages.bytes();
            if *pages != Pages::Ordinary && (page > limit_bytes || pages.free_bytes(|| 0) < page as u64) {
                continue;
            }
            match Part::create(&name, *pages) {
                // A kernel without such pages.
                Err(_) if *pages != Pages::Ordinary => {}
                part => parts.push(part?),
            }
        }
        let range = Range::reserve(reserve_bytes, parts.iter().map(|part| part.pages.bytes()).max())?;
        while let Err(why) = range.map_from(parts[0].fd.as_fd(), 0, parts[0].pages.bytes()) {
            if parts.len() == 1 {
                return Err(why);
            }
            parts.remove(0);
        }
        let arena = Self { range, parts, len: AtomicUsize::new(0), limit_bytes, growing: Mutex::new(0) };
        arena.advise(0);
        Ok(arena)
    }

    /// Asks for large pages in what is left, if those are ordinary ones. A wish, which the machine's configuration may ignore.
    fn advise(&self, part: usize) {
        if self.parts[part].pages == Pages::Ordinary {
            let _ = self.range.advise(self.len(), Advice::LinuxHugepage);
        }
    }

    /// Makes at least the first `bytes` bytes usable; they are zero at first.
    ///
    /// Doubles where there is room, so that many small requests cost few calls. Never shrinks. On an error the arena
    /// keeps what it has (perhaps somewhat more than before) and stays usable. Blocks for about 0.25 ms per MiB.
    pub(crate) fn grow_to(&self, bytes: usize) -> Result<(), MemoryError> {
        if bytes <= self.len() {
            return Ok(());
        }
        // The lock guards no data that a panic could leave half-changed.
        let mut part = self.growing.lock().unwrap_or_else(PoisonError::into_inner);
        let len = self.len();
        if bytes <= len {
            return Ok(());
        }
        let ceiling = self.ceiling();
        let needed = bytes.checked_next_multiple_of(STEP_BYTES).filter(|needed| *needed <= ceiling);
        let Some(needed) = needed else {
            return Err(MemoryError::Exhausted {
                asked: (bytes - len) as u64,
                available: (ceiling - len) as u64,
                what_limits: format!("this node may use {} bytes for it", self.limit_bytes),
                hint: "raise the session's memory limit, or open smaller objects",
            });
        };
        let wished = needed.max(len + len.min(AHEAD_BYTES_MAX)).min(ceiling);
        if wished > needed
            && self.check_room(*part, wished - len).is_ok()
            && self.allocate_to(&mut part, wished).is_ok()
        {
            return Ok(());
        }
        self.check_room(*part, needed.saturating_sub(self.len()))?;
        self.allocate_to(&mut part, needed)
    }

    /// The bytes up to which it grows.
    fn ceiling(&self) -> usize {
        self.limit_bytes - self.limit_bytes % STEP_BYTES
    }

    /// Allocates up to `end` or somewhat more, a chunk at a time, and goes on to the next part where one has no more pages.
    fn allocate_to(&self, part: &mut usize, end: usize) -> Result<(), MemoryError> {
        while self.len() < end {
            let len = self.len();
            // On success this also moves the file's end, on failure it gives back what it took: the file's length is
            // at any time the usable length.
            match (self.parts[*part].allocate(len, end - len, self.ceiling()), self.parts.get(*part + 1)) {
                // Release: whoever learns the new length may use the memory below it.
                (Ok(bytes), _) => self.len.store(len + bytes, Ordering::Release),
                (Err(_), Some(next)) => {
                    self.range.map_from(next.fd.as_fd(), len, next.pages.bytes())?;
                    *part += 1;
                    self.advise(*part);
                }
                (Err(why), None) => return Err(why),
            }
        }
        Ok(())
    }

    /// Whether `more` bytes can be added without asking for trouble.
    fn check_room(&self, part: usize, more: usize) -> Result<(), MemoryError> {
        let pools = self.parts[part..].iter().filter(|part| part.pages != Pages::Ordinary);
        let huge: u64 = pools.map(Part::free_bytes).sum();
        check_room((more as u64).saturating_sub(huge) as usize)?;
        check_file_size(self.len(), more)
    }

    /// Where the arena starts; fixed for its life, aligned to 2 MiB.
    pub(crate) fn base(&self) -> *mut u8 {
        self.range.base.as_ptr()
    }

    /// Usable bytes by now.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        // Acquire: pairs with the store after an allocation.
        self.len.load(Ordering::Acquire)
    }

    /// Bytes of address space.
    pub(crate) fn reserve(&self) -> usize {
        self.range.len
    }

    /// The bytes up to which it may grow.
    pub(crate) fn limit(&self) -> usize {
        self.limit_bytes
    }

    /// The files to send to peers, in order.
    pub(crate) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.parts.iter().map(|part| part.fd.as_fd())
    }

    /// How many bytes there are of a kind of page.
    #[cfg(test)]
    fn bytes_of(&self, pages: Pages) -> usize {
        self.parts.iter().filter(|part| part.pages == pages).map(Part::taken).sum()
    }
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

/// Allocated bytes of a file.
fn allocated(stat: &Stat) -> usize {
    // Mapping a file of huge pages moves its end to that of the mapping, without pages behind it, and a part that is not
    // the first begins with a hole: the blocks count what is allocated, without gaps.
    usize::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512)
}

/// A peer's memory, mapped here.
#[derive(Debug)]
pub(crate) struct Mapping {
    range: Range,
    len: usize,
    /// Files of which nothing is mapped yet, after the one that is mapped last, which has a start.
    files: Mutex<Files>,
}

#[derive(Debug)]
struct Files {
    /// Where the last part begins that is mapped.
    start: usize,
    /// Its file, if others follow, and those.
    rest: std::collections::VecDeque<OwnedFd>,
}

impl Files {
    /// Maps all that have pages by now; where the memory ends.
    fn map(&mut self, range: &Range) -> Result<usize, MemoryError> {
        let bytes = |fd: &OwnedFd| fstat(fd).map(|stat| allocated(&stat)).map_err(system("fstat of a peer's memory"));
        while let (Some(last), Some(next)) = (self.rest.front(), self.rest.get(1)) {
            // In this order: a file that has a follower with pages grows no more.
            if bytes(next)? == 0 {
                break;
            }
            let seam = self.start + bytes(last)?;
            range.map_from(next.as_fd(), seam, page_bytes(next)?)?;
            let _ = range.advise(seam, Advice::LinuxDontDump);
            self.start = seam;
            self.rest.pop_front();
        }
        let end = self.rest.front().map_or(Ok(0), bytes)?;
        if self.rest.len() == 1 {
            // Nothing follows; the mapping keeps the memory.
            self.rest.clear();
        }
        Ok((self.start + end).min(range.len))
    }
}

impl Mapping {
    /// Maps the memory that a peer has sent, file by file, with the reserve that the peer has named.
    ///
    /// Refuses what could turn an access into a signal: a file that is no memfd, may shrink or is longer than its
    /// reserve. The peer runs under our user (the socket has checked) and could do worse if it wanted to; this
    /// guards against mistakes.
    pub(crate) fn attach(fds: Vec<OwnedFd>, reserve_bytes: usize) -> Result<Self, MemoryError> {
        let rejected = |why: String| MemoryError::Rejected { why };
        if reserve_bytes == 0 || !reserve_bytes.is_multiple_of(STEP_BYTES) {
            return Err(rejected(format!("a reserve of {reserve_bytes} bytes is no multiple of 2 MiB")));
        }
        let Some(first) = fds.first() else { return Err(rejected("no file was sent".to_owned())) };
        for fd in &fds {
            // Only memfds (and files of the kernel's own tmpfs) know seals.
            let seals = fcntl_get_seals(fd).map_err(|_| rejected("the file is no memfd".to_owned()))?;
            if !seals.contains(SealFlags::SHRINK) {
                return Err(rejected("the file is not sealed against shrinking".to_owned()));
            }
            if seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE) {
                return Err(rejected("the file is sealed against writing".to_owned()));
            }
            let stat = fstat(fd).map_err(system("fstat of a peer's memory"))?;
            if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
                return Err(rejected("the file is not regular".to_owned()));
            }
            let size = u64::try_from(stat.st_size).unwrap_or(u64::MAX);
            if size > reserve_bytes as u64 {
                return Err(rejected(format!("{size} bytes exceed the reserve of {reserve_bytes}")));
            }
        }
        let pages = fds.iter().map(page_bytes).collect::<Result<Vec<_>, _>>()?;
        let range = Range::reserve(reserve_bytes, pages.iter().max().copied())?;
        range.map_from(first.as_fd(), 0, pages[0])?;
        // A core dump of this process need not hold every peer's memory; while dumping, a process is not yet dead.
        let _ = range.advise(0, Advice::LinuxDontDump);
        let mut files = Files { start: 0, rest: fds.into() };
        let len = files.map(&range)?;
        Ok(Self { range, len, files: Mutex::new(files) })
    }

    /// Maps all files that have pages by now: what the owner has said before is mapped then.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn reach(&self) -> Result<(), MemoryError> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner).map(&self.range).map(drop)
    }

    /// Its address space, still mapped, without the files that would follow.
    pub(crate) fn into_range(self) -> Range {
        self.range
    }

    /// Where it is mapped here; fixed for its life, aligned to 2 MiB.
    pub(crate) fn base(&self) -> *mut u8 {
        self.range.base.as_ptr()
    }

    /// Usable bytes when it was attached. Its owner says how many there are later.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Bytes of address space.
    #[cfg(test)]
    pub(crate) fn reserve(&self) -> usize {
        self.range.len
    }
}

/// The size of the pages of a file, or that of a step, if it is larger.
fn page_bytes(fd: &OwnedFd) -> Result<usize, MemoryError> {
    let stat = fstat(fd).map_err(system("fstat of a peer's memory"))?;
    Ok(usize::try_from(stat.st_blksize).unwrap_or(0).max(STEP_BYTES))
}

/// Address space, into which files are mapped that may be shorter.
#[derive(Debug)]
pub(crate) struct Range {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: a range is an address and a length; the memory behind it stays mapped until the only owner drops it, and
// all access goes through raw pointers, for which whoever dereferences them answers.
unsafe impl Send for Range {}
// SAFETY: as above; no method reads or writes the memory. `map_from` replaces what nobody uses yet.
unsafe impl Sync for Range {}

impl Range {
    /// Maps `len` bytes of a file of ordinary pages, a multiple of 2 MiB.
    pub(super) fn map(fd: BorrowedFd<'_>, len: usize) -> Result<Self, MemoryError> {
        let range = Range::reserve(len, None)?;
        range.map_from(fd, 0, STEP_BYTES)?;
        Ok(range)
    }

    /// Reserves `len` bytes, a multiple of 2 MiB, at an address aligned to `align` or to 2 MiB (or no huge page would fit).
    fn reserve(len: usize, align: Option<usize>) -> Result<Self, MemoryError> {
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
        // SAFETY: both pieces are rests of our reservation, left and right of the range, page-aligned since `space`, the
        // alignment and the length are; nobody has their addresses. A rest that stays costs address space only.
        let _ = unsafe { if before > 0 { munmap(space.cast(), before) } else { Ok(()) } };
        // SAFETY: as above; `after` is positive.
        let _ = unsafe { munmap(base.wrapping_add(len).cast(), after) };
        let base = NonNull::new(base).ok_or(MemoryError::BadReserve { reserve_bytes: len })?;
        Ok(Self { base, len })
    }

    /// Maps a file from `from` on, an offset of the range and of the file, up to the end or to its last whole page.
    ///
    /// Nobody may use what lies there yet.
    fn map_from(&self, fd: BorrowedFd<'_>, from: usize, page_bytes: usize) -> Result<(), MemoryError> {
        let len = self.len.saturating_sub(from);
        let len = len - len % page_bytes;
        if len == 0 {
            return Ok(());
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::NORESERVE | MapFlags::FIXED;
        let at = self.base.as_ptr().wrapping_add(from);
        // SAFETY: the target lies within this range, which is ours, and holds nothing that is used: lengths are published
        // only after this.
        let mapped = unsafe { mmap(at.cast(), len, access, flags, fd, from as u64) };
        mapped.map(drop).map_err(system("mapping shared memory"))
    }

    /// Gives back the memory behind it, and the address space beyond its first `used` bytes. Those can be read as before: they
    /// are zero, or those of the file, over and over, if one is given with its length.
    ///
    /// # Safety
    /// Nobody writes to it, or reads anything but its first `used` bytes, now or later.
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
                // All at once: a part of what is mapped in huge pages could not be replaced.
                // SAFETY: the target is this range, to which nobody writes; what is read there may change, says the caller.
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
            // SAFETY: the rest of this range, which nobody uses.
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

    fn advise(&self, from: usize, advice: Advice) -> rustix::io::Result<()> {
        // SAFETY: the range is mapped or reserved; only advice that leaves contents alone is given here.
        unsafe { madvise(self.base.as_ptr().wrapping_add(from).cast(), self.len - from, advice) }
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `map` and is unmapped once; whoever kept a pointer into it promised to keep
        // its owner as well.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

fn round_reserve(reserve_bytes: usize) -> Result<usize, MemoryError> {
    // The address space of a process has 47 bits.
    let rounded = reserve_bytes.checked_next_multiple_of(STEP_BYTES).filter(|&bytes| bytes > 0 && bytes < 1 << 47);
    rounded.ok_or(MemoryError::BadReserve { reserve_bytes })
}

#[cfg(test)]
mod tests {
    use super::super::pages::HugePages;
    use super::*;

    const MIB: usize = 1 << 20;

    const ORDINARY: &[Pages] = &[Pages::Ordinary];

    fn fds(arena: &Arena) -> Vec<OwnedFd> {
        arena.fds().map(|fd| fd.try_clone_to_owned().unwrap()).collect()
    }

    fn attach(arena: &Arena) -> Mapping {
        Mapping::attach(fds(arena), arena.reserve()).unwrap()
    }

    /// Writes to the last word below each 2 MiB of the one, and reads it in the others.
    fn all_is_shared(arena: &Arena, peers: &[&Mapping]) {
        for end in (STEP_BYTES..=arena.len()).step_by(STEP_BYTES) {
            // SAFETY: both addresses are the last usable word of a step, in mappings that live; nothing else touches it.
            unsafe {
                arena.base().add(end - 8).cast::<usize>().write_volatile(end);
                for peer in peers {
                    assert_eq!(peer.base().add(end - 8).cast::<usize>().read_volatile(), end);
                }
            }
        }
    }

    #[test]
    fn grows_in_place_and_peers_see_it() {
        let arena = Arena::create("test", 1 << 30, 1 << 30, ORDINARY).unwrap();
        assert_eq!((arena.len(), arena.reserve(), arena.limit()), (0, 1 << 30, 1 << 30));
        assert_eq!(arena.base().align_offset(STEP_BYTES), 0);
        let peer = attach(&arena);
        assert_eq!(peer.len(), 0);
        let base = arena.base();
        arena.grow_to(1).unwrap();
        assert_eq!(arena.len(), 2 * MIB);
        arena.grow_to(3 * MIB).unwrap();
        assert_eq!((arena.len(), peer.len()), (4 * MIB, 0));
        assert_eq!(attach(&arena).len(), 4 * MIB);
        arena.grow_to(4 * MIB + 1).unwrap();
        assert_eq!(arena.len(), 8 * MIB, "doubled");
        assert_eq!((attach(&arena).len(), peer.len()), (8 * MIB, 0));
        assert_eq!(arena.base(), base);
        // SAFETY: both addresses are the last usable byte of mappings that live, and nothing else touches it.
        unsafe {
            arena.base().add(8 * MIB - 1).write_volatile(7);
            assert_eq!(peer.base().add(8 * MIB - 1).read_volatile(), 7);
        }
        drop(arena);
        // SAFETY: the peer's own mapping keeps the memory.
        assert_eq!(unsafe { peer.base().add(8 * MIB - 1).read_volatile() }, 7);
        assert_eq!(peer.reserve(), 1 << 30);
    }

    #[test]
    fn the_limit_is_an_error_that_says_so() {
        let arena = Arena::create("test", 64 * MIB, 5 * MIB, ORDINARY).unwrap();
        arena.grow_to(4 * MIB).unwrap();
        let error = arena.grow_to(5 * MIB).unwrap_err();
        let MemoryError::Exhausted { asked, available, .. } = &error else { panic!("{error}") };
        assert_eq!((*asked, *available), (MIB as u64, 0));
        assert!(error.to_string().contains("memory limit"), "{error}");
        assert!(matches!(arena.grow_to(usize::MAX), Err(MemoryError::Exhausted { .. })));
        assert_eq!(arena.len(), 4 * MIB);
    }

    #[test]
    fn more_than_the_machine_has_is_an_error_and_not_a_kill() {
        let arena = Arena::create("test", 1 << 46, 1 << 46, ORDINARY).unwrap();
        arena.grow_to(1).unwrap();
        let error = arena.grow_to(1 << 45).unwrap_err();
        let MemoryError::Exhausted { asked, available, what_limits, .. } = &error else { panic!("{error}") };
        assert!(asked > available && !what_limits.is_empty(), "{error}");
        assert_eq!(arena.len(), 2 * MIB, "nothing was taken");
        arena.grow_to(4 * MIB).unwrap();
    }

    #[test]
    fn it_cannot_shrink_and_the_file_ends_where_the_arena_does() {
        let arena = Arena::create("test", 16 * MIB, 16 * MIB, ORDINARY).unwrap();
        arena.grow_to(2 * MIB).unwrap();
        assert_eq!(rustix::fs::ftruncate(&fds(&arena)[0], 0), Err(Errno::PERM));
        assert_eq!(fstat(&fds(&arena)[0]).unwrap().st_size, 2 << 20);
    }

    #[test]
    fn unfit_files_are_refused() {
        let why = |fd: OwnedFd, reserve| match Mapping::attach(vec![fd], reserve) {
            Err(MemoryError::Rejected { why }) => why,
            other => panic!("{other:?}"),
        };
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        assert!(why(file.into(), STEP_BYTES).contains("no memfd"));
        let (pipe, _) = rustix::pipe::pipe().unwrap();
        assert!(why(pipe, STEP_BYTES).contains("no memfd"));
        let open = memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
        assert!(why(open, STEP_BYTES).contains("shrinking"));
        let arena = Arena::create("test", 8 * MIB, 8 * MIB, ORDINARY).unwrap();
        arena.grow_to(4 * MIB).unwrap();
        let fd = || fds(&arena).remove(0);
        assert!(why(fd(), 2 * MIB).contains("exceed"));
        assert!(why(fd(), MIB).contains("multiple"));
        assert!(why(fd(), 0).contains("multiple"));
        let sealed = memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
        fcntl_add_seals(&sealed, SealFlags::SHRINK | SealFlags::WRITE).unwrap();
        assert!(why(sealed, STEP_BYTES).contains("writing"));
    }

    #[test]
    fn impossible_reserves_are_errors() {
        for reserve_bytes in [0, 1 << 47, usize::MAX] {
            let answer = Arena::create("test", reserve_bytes, MIB, ORDINARY);
            assert!(matches!(answer, Err(MemoryError::BadReserve { .. })), "{reserve_bytes}");
        }
        assert_eq!(Arena::create("a\0b", 1, 1, ORDINARY).unwrap().reserve(), STEP_BYTES);
    }

    #[test]
    fn threads_may_grow_it_together() {
        let arena = Arena::create("test", 64 * MIB, 64 * MIB, ORDINARY).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let arena = &arena;
                scope.spawn(move || (1..=8).for_each(|step| arena.grow_to(step * MIB * (thread + 1)).unwrap()));
            }
        });
        assert_eq!(arena.len() % STEP_BYTES, 0);
        assert!(arena.len() >= 32 * MIB);
    }

    #[test]
    fn what_is_scarce_comes_first_and_ordinary_pages_follow() {
        const KINDS: &[Pages] = &[Pages::Scarce(4 * MIB), Pages::Scarce(6 * MIB), Pages::Ordinary];
        let arena = Arena::create("test", 64 * MIB, 64 * MIB, KINDS).unwrap();
        let early = attach(&arena);
        arena.grow_to(MIB).unwrap();
        let (before, base) = (attach(&arena), arena.base());
        early.reach().unwrap();
        assert_eq!(before.len(), 2 * MIB);
        all_is_shared(&arena, &[&early, &before]);
        // Into the second part, and through it into the third.
        arena.grow_to(5 * MIB).unwrap();
        assert_eq!((arena.len(), attach(&arena).len()), (6 * MIB, 6 * MIB));
        before.reach().unwrap();
        all_is_shared(&arena, &[&before, &attach(&arena)]);
        arena.grow_to(20 * MIB).unwrap();
        assert_eq!(arena.len(), 20 * MIB);
        let late = attach(&arena);
        [&early, &before, &late].into_iter().for_each(|peer| peer.reach().unwrap());
        assert_eq!(late.len(), 20 * MIB);
        all_is_shared(&arena, &[&early, &before, &late]);
        let taken = [4, 6, 10].map(|mib| mib * MIB);
        assert_eq!([KINDS[0], KINDS[1], KINDS[2]].map(|kind| arena.bytes_of(kind)), taken);
        // What has ended grows no more, and nothing has moved.
        arena.grow_to(40 * MIB).unwrap();
        early.reach().unwrap();
        assert_eq!(arena.base(), base);
        all_is_shared(&arena, &[&early, &before, &late]);
        assert!(arena.grow_to(65 * MIB).unwrap_err().to_string().contains("memory limit"));
    }

    #[test]
    fn pages_of_which_there_are_none_are_left_out() {
        let kinds = [Pages::Scarce(0), Pages::Scarce(128 * MIB), Pages::Ordinary];
        let arena = Arena::create("test", 64 * MIB, 64 * MIB, &kinds).unwrap();
        assert_eq!(arena.fds().count(), 2);
        arena.grow_to(64 * MIB).unwrap();
        assert_eq!(arena.bytes_of(kinds[1]), 64 * MIB, "all of it");
        assert_eq!(attach(&arena).len(), 64 * MIB);
        let small = Arena::create("test", STEP_BYTES, STEP_BYTES, HugePages::OneGib.kinds()).unwrap();
        assert!(small.fds().count() <= 2, "less than a page of 1 GiB");
    }

    /// On machines with huge pages: a part of what is free, in several arenas at once, and beyond what is free.
    #[test]
    fn huge_pages_of_the_machine_are_taken_until_there_are_none() {
        if std::env::var_os("FARFIELD_NEED_HUGE_PAGES").is_some() {
            assert!(Pages::Huge.free_bytes(|| 0) >= 16 * MIB as u64, "huge pages are set aside");
        }
        let free = Pages::Huge.free_bytes(|| 0).min(1 << 30) as usize;
        let limit = free + 64 * MIB;
        let arenas = [(); 2].map(|()| Arena::create("test", limit, limit, HugePages::TwoMib.kinds()).unwrap());
        let early = arenas.each_ref().map(attach);
        for step in 1..=4 {
            for arena in &arenas {
                arena.grow_to(step * (free / 8 + MIB)).unwrap();
            }
        }
        let taken: usize = arenas.iter().map(|arena| arena.bytes_of(Pages::Huge)).sum();
        // Others may take some meanwhile.
        assert!(free == 0 || taken >= free / 2, "{taken} of {free}");
        for (arena, early) in arenas.iter().zip(&early) {
            early.reach().unwrap();
            assert_eq!(attach(arena).len(), arena.len());
            all_is_shared(arena, &[early, &attach(arena)]);
        }
        drop((arenas, early));
        assert!(Pages::Huge.free_bytes(|| 0) as usize >= free / 2, "they come back");
    }
}
