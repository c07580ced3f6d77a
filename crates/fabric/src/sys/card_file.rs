//! The file of a node in its session: its header, and how it is opened, mapped and judged.

use std::fs::File;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::SystemTime;
use std::{fs, io, ptr};

use rustix::fs::{CWD, FallocateFlags, FileType, FlockOperation, Mode, OFlags, fallocate, flock, fstat, openat};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::process::geteuid;

use super::session_error::{START_MAX, SessionError, VERSION, system};

/// Bytes at the start of a card that belong to this module.
pub(crate) const CARD_HEADER_BYTES: usize = 64;

/// The size of a card file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CardFile {
    /// Its length.
    pub(crate) bytes: usize,
    /// How much of it is there from the start; the rest when it is reserved ([`Claim::reserve`]).
    pub(crate) there: usize,
}

/// The longest card; a larger file is not one.
pub(crate) const CARD_BYTES_MAX: usize = 1 << 30;

/// `"FARFIELD"` in memory order. The header's layout is the same in all versions.
const MAGIC: u64 = u64::from_le_bytes(*b"FARFIELD");

/// A card, mapped for reading and writing.
#[derive(Debug)]
pub(crate) struct CardMapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: an address and a length; the memory stays mapped until the only owner drops it, and all access uses atomics,
// or raw pointers; their users are responsible for it.
unsafe impl Send for CardMapping {}

// SAFETY: as above.
unsafe impl Sync for CardMapping {}

impl CardMapping {
    /// Where it is mapped, aligned to a page. The first [`CARD_HEADER_BYTES`] are not the caller's.
    pub(crate) fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Its length with the header.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The process that made it, as its own PID namespace counts.
    pub(crate) fn pid(&self) -> u32 {
        self.u32_at(12).load(Ordering::Relaxed)
    }

    pub(super) fn version(&self) -> u32 {
        self.u32_at(8).load(Ordering::Relaxed)
    }

    pub(super) fn boot_id(&self) -> [u8; 16] {
        let halves = [24, 32].map(|at| self.u64_at(at).load(Ordering::Relaxed).to_ne_bytes());
        let mut id = [0; 16];
        id[..8].copy_from_slice(&halves[0]);
        id[8..].copy_from_slice(&halves[1]);
        id
    }

    pub(super) fn u32_at(&self, at: usize) -> &AtomicU32 {
        assert!(at.is_multiple_of(4) && at + 4 <= CARD_HEADER_BYTES);
        // SAFETY: aligned and within the header, which every mapping contains, and only accessed through atomics.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(at).cast()) }
    }

    pub(super) fn u64_at(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at + 8 <= CARD_HEADER_BYTES);
        // SAFETY: aligned and within the header, which every mapping contains, and only accessed through atomics.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(at).cast()) }
    }

    pub(super) fn write_header(&self, boot_id: &[u8; 16]) {
        self.u32_at(8).store(VERSION, Ordering::Relaxed);
        self.u32_at(12).store(std::process::id(), Ordering::Relaxed);
        self.u64_at(16).store(self.len as u64, Ordering::Relaxed);
        for (at, half) in [(24, &boot_id[..8]), (32, &boot_id[8..])] {
            let half = half.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
            self.u64_at(at).store(half, Ordering::Relaxed);
        }
        // Release: a peer, which maps without a lock, that sees the magic sees the header.
        self.u64_at(0).store(MAGIC, Ordering::Release);
    }

    pub(super) fn map(fd: &OwnedFd, len: usize, path: &Path) -> Result<Self, SessionError> {
        // SAFETY: the kernel chooses a range that nothing uses.
        let base = unsafe { mmap(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, fd, 0) };
        let base = base.map_err(system("mapping", path))?.cast();
        let base = NonNull::new(base).ok_or(Errno::FAULT).map_err(system("mapping", path))?;
        Ok(Self { base, len })
    }
}

impl Drop for CardMapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length and unmapped once; the holder of a pointer into it has promised to
        // keep the mapping as well.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// The state of the path of a card.
pub(super) enum Opened {
    Absent,
    /// Its creator is at work, or died at it.
    Unfinished,
    NodeHeader(CardMapping, OwnedFd),
}

pub(super) fn open_card(path: &Path) -> Result<Opened, SessionError> {
    let bad = |why: String| SessionError::BadCard { path: path.to_owned(), why };
    // Not blocking: the checks below refuse a pipe, say.
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let fd = match openat(CWD, path, flags, Mode::empty()) {
        Ok(fd) => fd,
        Err(Errno::NOENT) => return Ok(Opened::Absent),
        Err(Errno::LOOP) => return Err(bad("it is a symbolic link".to_owned())),
        Err(errno) => return Err(system("opening", path)(errno)),
    };
    let stat = fstat(&fd).map_err(system("fstat of", path))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(bad("it is no regular file".to_owned()));
    }
    if stat.st_uid != geteuid().as_raw() {
        return Err(bad(format!("it belongs to user {}", stat.st_uid)));
    }
    if stat.st_mode & 0o777 != 0o600 {
        return Err(bad(format!("its mode is {:o} instead of 600", stat.st_mode & 0o777)));
    }
    let len = usize::try_from(stat.st_size).unwrap_or(usize::MAX);
    if len > CARD_BYTES_MAX {
        return Err(bad(format!("it has {len} bytes")));
    }
    if len < CARD_HEADER_BYTES {
        return Ok(Opened::Unfinished);
    }
    let card = CardMapping::map(&fd, len, path)?;
    // Acquire: pairs with the store of the magic by the creator.
    match card.u64_at(0).load(Ordering::Acquire) {
        0 => Ok(Opened::Unfinished),
        MAGIC if card.u64_at(16).load(Ordering::Relaxed) == len as u64 => Ok(Opened::NodeHeader(card, fd)),
        MAGIC => Err(bad(format!("its length is {len} instead of {}", card.u64_at(16).load(Ordering::Relaxed)))),
        other => Err(bad(format!("it starts with {other:#x}"))),
    }
}

/// The owner of a place.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum State {
    Absent,
    Leftover,
    Taken { pid: u32 },
    OtherVersion { version: u32, pid: u32 },
}

/// Judges a card; the session's lock is held.
pub(super) fn judge(path: &Path, is_alive: &impl Fn(&CardMapping) -> bool) -> Result<State, SessionError> {
    let (card, fd) = match open_card(path)? {
        Opened::Absent => return Ok(State::Absent),
        // Headers are written under the lock that we hold: the creator died at it.
        Opened::Unfinished => return Ok(State::Leftover),
        Opened::NodeHeader(card, fd) => (card, fd),
    };
    if card.boot_id() != boot_id()? {
        return Ok(State::Leftover);
    }
    let pid = card.pid();
    if card.version() != VERSION {
        return Ok(State::OtherVersion { version: card.version(), pid });
    }
    if is_alive(&card) {
        return Ok(State::Taken { pid });
    }
    // Dead, or still starting: then its creator holds this lock, and so does any child it forked.
    if flock(&fd, FlockOperation::NonBlockingLockExclusive) != Err(Errno::AGAIN) {
        return Ok(State::Leftover);
    }
    let changed = File::from(fd).metadata().and_then(|found| found.modified());
    let created = changed.map_err(system("fstat of", path))?;
    // A clock that was set back makes it look young for a while, no more.
    let age = SystemTime::now().duration_since(created).unwrap_or_default();
    Ok(if age > START_MAX { State::Leftover } else { State::Taken { pid } })
}

/// Gives a range of the file, which has none there yet, zero bytes that are really there: a hole on a full disk would
/// be a signal when touched.
pub(super) fn allocate(fd: &OwnedFd, range: Range<usize>) -> rustix::io::Result<()> {
    let reserve = || fallocate(fd, FallocateFlags::empty(), range.start as u64, range.len() as u64);
    match rustix::io::retry_on_intr(reserve) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
        answer => return answer,
    }
    let zeros = [0; 4096];
    let mut written = range.start;
    while written < range.end {
        let piece = &zeros[..zeros.len().min(range.end - written)];
        written += rustix::io::retry_on_intr(|| rustix::io::pwrite(fd, piece, written as u64))?;
    }
    Ok(())
}

/// Which boot of the machine this is.
pub(super) fn boot_id() -> Result<[u8; 16], SessionError> {
    let path = Path::new("/proc/sys/kernel/random/boot_id");
    let text = fs::read_to_string(path).map_err(system("reading", path))?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let number = u128::from_str_radix(&digits, 16).map_err(io::Error::other).map_err(system("reading", path))?;
    Ok(number.to_be_bytes())
}
