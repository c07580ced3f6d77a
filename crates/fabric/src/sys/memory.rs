//! Arenas: the registered memory of one permission group, shared with peers as sealed memfds.
//!
//! ```text
//! base                    len (grown)              limit            reserve
//!  |  allocated, usable    |  address space only, SIGBUS if touched  |
//! ```
//!
//! The whole future length is mapped at once, by the owner and by every peer, so that no pointer ever moves. Growing
//! allocates pages with `fallocate`, which fails with an error where a first write beyond the machine's memory would
//! be a signal. It checks the machine's and the control group's room before, since the kernel would otherwise kill a
//! process to make room. A crash leaves nothing behind: the memory is freed with the last process that maps it.
//!
//! **Huge pages** are taken first, as long as there are free ones, and then ordinary ones: one file for each kind of
//! page, and one part of the arena from each, in this order. A file's offsets are those of the arena.
//!
//! ```text
//!  base            seam                  len
//!  |  2 MiB pages   |  ordinary pages     |  …
//!  |  file 0        |  file 1             |
//! ```
//!
//! A part begins when nothing more can be had of the kind before it: then the owner maps the next file from there on. A
//! peer, which has all files from the beginning, does the same when it hears of memory beyond what it has mapped
//! ([`Mapping::reach`]). It needs no word from the owner: how much was allocated of a file is final when the next one
//! has pages.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{
    FallocateFlags, FileType, MemfdFlags, SealFlags, Stat, fallocate, fcntl_add_seals, fcntl_get_seals, fstat,
    memfd_create,
};
use rustix::io::Errno;
use rustix::mm::Advice;

use super::pages::{Pages, check_room};
use super::range::{MemoryError, Range, STEP_BYTES, check_file_size, system};

/// An arena doubles, but never takes more than this beyond the request.
const AHEAD_BYTES_MAX: usize = 256 << 20;
/// Allocated between two looks at the room left; several nodes may be growing at once. Takes about 16 ms.
const CHUNK_BYTES: usize = 64 << 20;

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

    /// The free bytes of the pages of a pool.
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
    /// `name` shows in `/proc/<pid>/maps`. `reserve_bytes` is rounded up to 2 MiB; a limit beyond it is cut to it.
    /// Pages are taken of the `kinds`, in this order; a kind of which there is none now is left out.
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

    /// Asks for large pages in the remaining memory, if its pages are ordinary ones. The machine's configuration may
    /// ignore it.
    pub(super) fn advise(&self, part: usize) {
        if self.parts[part].pages == Pages::Ordinary {
            let _ = self.range.advise(self.len(), Advice::LinuxHugepage);
        }
    }

    /// Makes at least the first `bytes` bytes usable; they are zero at first.
    ///
    /// Doubles where there is room, so that many small requests cost few calls. Never shrinks. On an error the arena
    /// keeps its memory (perhaps somewhat more than before) and stays usable. Blocks for about 0.25 ms per MiB.
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

    /// Allocates up to `end` or somewhat more, a chunk at a time, and continues in the next part when one has no more
    /// pages.
    fn allocate_to(&self, part: &mut usize, end: usize) -> Result<(), MemoryError> {
        while self.len() < end {
            let len = self.len();
            // On success this also moves the file's end, on failure it gives the new pages back: the file's length
            // is at any time the usable length.
            match (self.parts[*part].allocate(len, end - len, self.ceiling()), self.parts.get(*part + 1)) {
                // Release: a thread that learns the new length may use the memory below it.
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

/// Allocated bytes of a file.
fn allocated(stat: &Stat) -> usize {
    // Mapping a file of huge pages moves its end to that of the mapping, without pages behind it, and a part that is
    // not the first begins with a hole: the blocks count the allocated memory, without gaps.
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
    pub(super) fn map(&mut self, range: &Range) -> Result<usize, MemoryError> {
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
    /// Refuses a file that could turn an access into a signal: one that is no memfd, may shrink or is longer than its
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

    /// Maps all files that have pages by now. Everything that the owner has announced before is mapped then.
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

    /// Usable bytes when it was attached. Its owner announces later lengths.
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
pub(super) fn page_bytes(fd: &OwnedFd) -> Result<usize, MemoryError> {
    let stat = fstat(fd).map_err(system("fstat of a peer's memory"))?;
    Ok(usize::try_from(stat.st_blksize).unwrap_or(0).max(STEP_BYTES))
}

fn round_reserve(reserve_bytes: usize) -> Result<usize, MemoryError> {
    // The address space of a process has 47 bits.
    let rounded = reserve_bytes.checked_next_multiple_of(STEP_BYTES).filter(|&bytes| bytes > 0 && bytes < 1 << 47);
    rounded.ok_or(MemoryError::BadReserve { reserve_bytes })
}

#[cfg(test)]
mod tests;
