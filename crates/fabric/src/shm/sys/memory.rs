//! Arenas: the registered memory of one permission group, shared with peers as a sealed memfd.
//!
//! ```text
//! base                    len (grown)              limit            reserve
//!  |  allocated, usable    |  address space only, SIGBUS if touched  |
//! ```
//!
//! The whole future length is mapped at once, by the owner and by every peer, so that growing needs no remapping and
//! no pointer ever moves. Growing allocates pages with `fallocate`, which fails with an error where a first write
//! beyond the machine's memory would be a signal; and it looks at the machine's and the control group's room before,
//! since the kernel would otherwise kill a process to make room. Nothing is left behind by a crash: the memory goes
//! with the last process that maps it.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::fs::{
    FallocateFlags, FileType, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, fstat, memfd_create,
};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use rustix::process::{Resource, getrlimit};

use super::cgroup;

/// Arenas start, grow and are aligned in units of this size, the larger page size of x86-64.
pub(crate) const STEP_BYTES: usize = 2 << 20;
/// An arena doubles, but never takes more than this beyond what was asked for.
const AHEAD_BYTES_MAX: usize = 256 << 20;
/// Allocated between two looks at the room left; several nodes may be growing at once. Takes about 16 ms.
const CHUNK_BYTES: usize = 64 << 20;
/// One part in this many of the room is left to everybody else.
const SPARE_PART: u64 = 16;

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
    fd: OwnedFd,
    len: AtomicUsize,
    limit_bytes: usize,
    huge: bool,
    /// Held while growing.
    growing: Mutex<()>,
}

impl Arena {
    /// Reserves address space for an arena that may grow up to `limit_bytes`, and allocates nothing yet.
    ///
    /// `name` shows in `/proc/<pid>/maps`. `reserve_bytes` is rounded up to 2 MiB; a limit beyond it is cut to it.
    /// Huge pages are used if the administrator has set aside enough for the whole limit.
    pub(crate) fn create(name: &str, reserve_bytes: usize, limit_bytes: usize) -> Result<Self, MemoryError> {
        let reserve_bytes = round_reserve(reserve_bytes)?;
        let limit_bytes = limit_bytes.min(reserve_bytes);
        // An arena cannot change its kind of page later, and running out of huge pages while there is plenty of
        // ordinary memory would be a poor failure.
        let enough_huge = limit_bytes > 0 && free_huge_bytes() >= limit_bytes as u64;
        if enough_huge && let Ok(arena) = Self::create_with(name, reserve_bytes, limit_bytes, true) {
            return Ok(arena);
        }
        Self::create_with(name, reserve_bytes, limit_bytes, false)
    }

    fn create_with(name: &str, reserve_bytes: usize, limit_bytes: usize, huge: bool) -> Result<Self, MemoryError> {
        let mut flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        if huge {
            flags |= MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
        }
        // The kernel takes names of up to 249 bytes without a zero byte.
        let name: String = name.chars().filter(|c| *c != '\0').take(60).collect();
        let fd = memfd_create(name.as_str(), flags).map_err(system("memfd_create"))?;
        // Peers rely on the length never shrinking, or their accesses would be signals.
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::SEAL).map_err(system("sealing a memfd"))?;
        let range = Range::map(fd.as_fd(), reserve_bytes)?;
        if !huge {
            // A wish, which the machine's configuration may ignore.
            let _ = range.advise(Advice::LinuxHugepage);
        }
        Ok(Self { range, fd, len: AtomicUsize::new(0), limit_bytes, huge, growing: Mutex::new(()) })
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
        let _growing = self.growing.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let len = self.len();
        if bytes <= len {
            return Ok(());
        }
        let ceiling = self.limit_bytes - self.limit_bytes % STEP_BYTES;
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
        if wished > needed && self.check_room(wished - len).is_ok() && self.allocate_to(wished).is_ok() {
            return Ok(());
        }
        let missing = needed.saturating_sub(self.len());
        self.check_room(missing)?;
        self.allocate_to(needed)
    }

    /// Allocates up to `end`, a chunk at a time.
    fn allocate_to(&self, end: usize) -> Result<(), MemoryError> {
        while self.len() < end {
            let len = self.len();
            let chunk = (end - len).min(CHUNK_BYTES);
            self.check_room(chunk)?;
            // On success this also moves the file's end, on failure it gives back what it took: the file's length is
            // at any time the usable length.
            match fallocate(&self.fd, FallocateFlags::empty(), len as u64, chunk as u64) {
                // Release: whoever learns the new length may use the memory below it.
                Ok(()) => self.len.store(len + chunk, Ordering::Release),
                Err(Errno::INTR) => {}
                Err(Errno::NOSPC | Errno::NOMEM) => {
                    return Err(MemoryError::Exhausted {
                        asked: (end - len) as u64,
                        available: 0,
                        what_limits: if self.huge { "the pool of huge pages" } else { "the kernel" }.to_owned(),
                        hint: "free memory on this machine, or lower the session's memory limit",
                    });
                }
                Err(errno) => return Err(system("fallocate on a memfd")(errno)),
            }
        }
        Ok(())
    }

    /// Whether `more` bytes can be added without asking for trouble.
    fn check_room(&self, more: usize) -> Result<(), MemoryError> {
        check_room(more, self.huge)?;
        // Beyond this limit the kernel would send SIGXFSZ.
        let file_limit = getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX);
        let free = file_limit.saturating_sub(self.len() as u64);
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

    /// The file to send to peers.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Whether the memory comes from the machine's pool of huge pages.
    #[cfg(test)]
    pub(crate) fn uses_huge_pages(&self) -> bool {
        self.huge
    }
}

/// A peer's arena, mapped here.
#[derive(Debug)]
pub(crate) struct Mapping {
    range: Range,
    len: usize,
}

impl Mapping {
    /// Maps the memory that a peer has sent, with the reserve that the peer has named.
    ///
    /// Refuses what could turn an access into a signal: a file that is no memfd, may shrink or is longer than its
    /// reserve. The peer runs under our user (the socket has checked) and could do worse if it wanted to; this
    /// guards against mistakes.
    pub(crate) fn attach(fd: OwnedFd, reserve_bytes: usize) -> Result<Self, MemoryError> {
        let rejected = |why: String| MemoryError::Rejected { why };
        if reserve_bytes == 0 || !reserve_bytes.is_multiple_of(STEP_BYTES) {
            return Err(rejected(format!("a reserve of {reserve_bytes} bytes is no multiple of 2 MiB")));
        }
        // Only memfds (and files of the kernel's own tmpfs) know seals.
        let seals = fcntl_get_seals(&fd).map_err(|_| rejected("the file is no memfd".to_owned()))?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(rejected("the file is not sealed against shrinking".to_owned()));
        }
        if seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE) {
            return Err(rejected("the file is sealed against writing".to_owned()));
        }
        let stat = fstat(&fd).map_err(system("fstat of a peer's memory"))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(rejected("the file is not regular".to_owned()));
        }
        let size = u64::try_from(stat.st_size).unwrap_or(u64::MAX);
        if size > reserve_bytes as u64 {
            return Err(rejected(format!("{size} bytes exceed the reserve of {reserve_bytes}")));
        }
        let range = Range::map(fd.as_fd(), reserve_bytes)?;
        // A core dump of this process need not hold every peer's memory; while dumping, a process is not yet dead.
        let _ = range.advise(Advice::LinuxDontDump);
        let stat = fstat(&fd).map_err(system("fstat of a peer's memory"))?;
        // Mapping a file of huge pages moves its end to that of the mapping, without pages behind it; the blocks count
        // what is allocated, from the start on and without holes. For ordinary pages both say the same.
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        let allocated = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512);
        let len = usize::try_from(size.min(allocated)).unwrap_or(0).min(range.len);
        // The file is closed here: the mapping keeps the memory.
        Ok(Self { range, len })
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

/// A shared mapping of a file, which may be shorter.
#[derive(Debug)]
pub(super) struct Range {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: a range is an address and a length; the memory behind it stays mapped until the only owner drops it, and
// all access goes through raw pointers, for which whoever dereferences them answers.
unsafe impl Send for Range {}
// SAFETY: as above; no method reads or writes the memory or changes the fields.
unsafe impl Sync for Range {}

impl Range {
    /// Maps `len` bytes of the file, a multiple of 2 MiB, at an address aligned to 2 MiB (or no huge page would fit).
    pub(super) fn map(fd: BorrowedFd<'_>, len: usize) -> Result<Self, MemoryError> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let padded = len.checked_add(STEP_BYTES).ok_or(MemoryError::BadReserve { reserve_bytes: len })?;
        // SAFETY: the kernel chooses an address range that nothing uses.
        let space = unsafe {
            mmap_anonymous(ptr::null_mut(), padded, ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE)
        };
        let space = space.map_err(system("reserving address space (ulimit -v?)"))?.cast::<u8>();
        let before = space.align_offset(STEP_BYTES);
        let base = space.wrapping_add(before);
        // SAFETY: the target lies within `space`, reserved just above and used by nobody else; `before` is less than
        // the padding.
        let mapped =
            unsafe { mmap(base.cast(), len, access, MapFlags::SHARED | MapFlags::NORESERVE | MapFlags::FIXED, fd, 0) };
        if let Err(errno) = mapped {
            // SAFETY: the reservation is ours, whole, and nobody has its address.
            let _ = unsafe { munmap(space.cast(), padded) };
            return Err(system("mapping shared memory")(errno));
        }
        let after = STEP_BYTES - before;
        // SAFETY: both pieces are rests of our reservation, left and right of the mapping, page-aligned since `space`
        // and 2 MiB are; nobody has their addresses. A rest that stays costs address space only.
        let _ = unsafe { if before > 0 { munmap(space.cast(), before) } else { Ok(()) } };
        // SAFETY: as above; `after` is positive.
        let _ = unsafe { munmap(base.wrapping_add(len).cast(), after) };
        let base = NonNull::new(base).ok_or(MemoryError::BadReserve { reserve_bytes: len })?;
        Ok(Self { base, len })
    }

    /// Where it begins.
    pub(super) fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    fn advise(&self, advice: Advice) -> rustix::io::Result<()> {
        // SAFETY: the range is mapped; only advice that leaves contents alone is given here.
        unsafe { madvise(self.base.as_ptr().cast(), self.len, advice) }
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

/// Whether the machine, and the control group of this process, have room for `more` bytes.
pub(crate) fn check_room(more: usize, huge: bool) -> Result<(), MemoryError> {
    let more = more as u64;
    let exhausted =
        |available, what_limits, hint| Err(MemoryError::Exhausted { asked: more, available, what_limits, hint });
    if huge {
        let free = free_huge_bytes();
        if more > free {
            let hint = "set aside more huge pages (/proc/sys/vm/nr_hugepages), or none";
            return exhausted(free, "free huge pages of 2 MiB".to_owned(), hint);
        }
        return Ok(());
    }
    // Where /proc is not mounted, nothing is known and the kernel decides.
    let free = meminfo_bytes("MemAvailable:").map_or(u64::MAX, |free| free - free / SPARE_PART);
    if more > free {
        let hint = "close other programs, use a larger machine, or open smaller objects";
        return exhausted(free, "memory available on this machine, less a reserve".to_owned(), hint);
    }
    if let Some(room) = cgroup::memory_room() {
        let free = room.bytes - room.bytes / SPARE_PART;
        if more > free {
            let limit = format!("memory limit of control group {}, less a reserve", room.group.display());
            let hint = "raise the limit of the container or service (memory.max), or open smaller objects";
            return exhausted(free, limit, hint);
        }
    }
    Ok(())
}

/// Bytes of a line of `/proc/meminfo`.
fn meminfo_bytes(field: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    parse_meminfo(&text, field)
}

fn parse_meminfo(text: &str, field: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(field))?;
    let kib: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Bytes in free huge pages of 2 MiB that nobody has reserved.
pub(crate) fn free_huge_bytes() -> u64 {
    let read = |name: &str| -> Option<u64> {
        let path = format!("/sys/kernel/mm/hugepages/hugepages-2048kB/{name}");
        fs::read_to_string(path).ok()?.trim().parse().ok()
    };
    let free = read("free_hugepages").unwrap_or(0);
    let reserved = read("resv_hugepages").unwrap_or(0);
    free.saturating_sub(reserved).saturating_mul(STEP_BYTES as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn attach(arena: &Arena) -> Mapping {
        Mapping::attach(arena.fd().try_clone_to_owned().unwrap(), arena.reserve()).unwrap()
    }

    #[test]
    fn grows_in_place_and_peers_see_it() {
        let arena = Arena::create("test", 1 << 30, 1 << 30).unwrap();
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
        let arena = Arena::create("test", 64 * MIB, 5 * MIB).unwrap();
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
        let arena = Arena::create("test", 1 << 46, 1 << 46).unwrap();
        arena.grow_to(1).unwrap();
        let error = arena.grow_to(1 << 45).unwrap_err();
        let MemoryError::Exhausted { asked, available, what_limits, .. } = &error else { panic!("{error}") };
        assert!(asked > available && !what_limits.is_empty(), "{error}");
        assert_eq!(arena.len(), 2 * MIB, "nothing was taken");
        arena.grow_to(4 * MIB).unwrap();
    }

    #[test]
    fn it_cannot_shrink_and_the_file_ends_where_the_arena_does() {
        let arena = Arena::create("test", 16 * MIB, 16 * MIB).unwrap();
        arena.grow_to(2 * MIB).unwrap();
        assert_eq!(rustix::fs::ftruncate(arena.fd(), 0), Err(Errno::PERM));
        if !arena.uses_huge_pages() {
            assert_eq!(fstat(arena.fd()).unwrap().st_size, 2 << 20);
        }
    }

    #[test]
    fn unfit_files_are_refused() {
        let why = |fd: OwnedFd, reserve| match Mapping::attach(fd, reserve) {
            Err(MemoryError::Rejected { why }) => why,
            other => panic!("{other:?}"),
        };
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        assert!(why(file.into(), STEP_BYTES).contains("no memfd"));
        let (pipe, _) = rustix::pipe::pipe().unwrap();
        assert!(why(pipe, STEP_BYTES).contains("no memfd"));
        let open = memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
        assert!(why(open, STEP_BYTES).contains("shrinking"));
        let arena = Arena::create("test", 8 * MIB, 8 * MIB).unwrap();
        arena.grow_to(4 * MIB).unwrap();
        let fd = || arena.fd().try_clone_to_owned().unwrap();
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
            let answer = Arena::create("test", reserve_bytes, MIB);
            assert!(matches!(answer, Err(MemoryError::BadReserve { .. })), "{reserve_bytes}");
        }
        assert_eq!(Arena::create("a\0b", 1, 1).unwrap().reserve(), STEP_BYTES);
    }

    #[test]
    fn threads_may_grow_it_together() {
        let arena = Arena::create("test", 64 * MIB, 64 * MIB).unwrap();
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
    fn meminfo_is_read() {
        assert_eq!(parse_meminfo("MemTotal:  5 kB\nMemAvailable:   12 kB\n", "MemAvailable:"), Some(12 << 10));
        assert_eq!(parse_meminfo("MemTotal:  5 kB\n", "MemAvailable:"), None);
        assert!(meminfo_bytes("MemAvailable:").is_some_and(|bytes| bytes > 0));
    }
}
