//! The directory in which the nodes of a session find each other; no server, no root.
//!
//! ```text
//! <base>/farfield-<uid>/             base: $FARFIELD_DIR, else /dev/shm, else the directory for temporary files
//!   <session>/                       both 0700 and ours
//!     lock                           flock'd by whoever adds or removes files here; see `sys::lives` for what it holds
//!     <node>.card                    a small file that every peer maps: header, then what the fabric puts there
//!     <node>.sock                    the node's control socket
//!
//! card:  0 magic u64 (written last)   8 version u32   12 pid u32   16 length u64   24 boot id [16]   40 zero   64 free
//! ```
//!
//! A node's place is taken while its card exists and belongs to a living node. Whether it does is told by the fabric's
//! liveness word in the card, which a closure of the caller reads. While a node starts, its word is not yet set; until
//! [`Claim::started`] the creator therefore holds a lock on the card, which the kernel releases when it dies.
//!
//! Files are only added, judged and removed under the session's lock. The lock file itself goes with its directory
//! when the session is empty; who waited for it notices that it has no name any more, and starts again.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::{
    Access, AtFlags, CWD, FallocateFlags, FileType, FlockOperation, Mode, OFlags, access, fallocate, flock, fstat,
    ftruncate, openat, unlinkat,
};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::process::geteuid;

/// Bytes at the start of a card that belong to this module.
pub(crate) const CARD_HEADER_BYTES: usize = 64;
/// What a card file has.
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
const VERSION: u32 = 1;
/// A node that takes longer to start has lost its place, if another one wants it.
const START_MAX: Duration = Duration::from_secs(10);
/// Nobody holds a session's lock for longer than some milliseconds, unless it is stopped.
const LOCK_MAX: Duration = Duration::from_secs(10);
const LOCK_FILE: &str = "lock";
/// `sun_path` less its terminating zero.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Why a session could not be entered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SessionError {
    /// The name cannot be a directory's.
    #[error("{name:?} is no session name: use 1 to 64 of A-Z a-z 0-9 _ - and ., not starting with .")]
    BadName {
        /// The name.
        name: String,
    },
    /// A directory is not private to us.
    #[error("{} {why}; {advice}", path.display())]
    Unsafe {
        /// The directory.
        path: PathBuf,
        /// What is wrong with it, and whose it is.
        why: String,
        /// What to do.
        advice: String,
    },
    /// Sockets have short names.
    #[error(
        "the socket path {} has {len} bytes and the system allows {SOCKET_PATH_BYTES_MAX}: use a shorter session name \
         or set FARFIELD_DIR to a shorter directory", path.display()
    )]
    PathTooLong {
        /// The path.
        path: PathBuf,
        /// Its length.
        len: usize,
    },
    /// The node's place is taken.
    #[error(
        "node {node} of this session is running already, as process {pid}: choose another node number or another \
         session, or end that process"
    )]
    AlreadyRunning {
        /// The node.
        node: u32,
        /// Its process, in its own PID namespace.
        pid: u32,
    },
    /// The node's place is taken by a version that we cannot judge.
    #[error(
        "{} was written by another version of Farfield ({version}, this is {VERSION}), process {pid}: end that process \
         and remove the file", path.display()
    )]
    OtherVersion {
        /// The card.
        path: PathBuf,
        /// Its version.
        version: u32,
        /// Its process.
        pid: u32,
    },
    /// Others say that the session has another number of places.
    #[error(
        "the nodes of this session that run say that it has {theirs} nodes, and this one says {ours}: choose another session"
    )]
    OtherPlaces {
        /// What this node was told.
        ours: u32,
        /// What they were told.
        theirs: u32,
    },
    /// The place has no lives left.
    #[error(
        "place {place} of this session has had {lives} lives, which is the most for {places} places: end the session and \
         begin a new one"
    )]
    NoLifeLeft {
        /// The place.
        place: u32,
        /// How many lives it has had.
        lives: u32,
        /// How many places the session has.
        places: u32,
    },
    /// The node took too long to start and was replaced.
    #[error("node {node} took more than {} s to start and another process has taken its place", START_MAX.as_secs())]
    Replaced {
        /// The node.
        node: u32,
    },
    /// The session's lock is not to be had.
    #[error("{} has been locked for {} s: is a process of this session stopped (state T in ps)?", path.display(),
        LOCK_MAX.as_secs())]
    Locked {
        /// The lock file.
        path: PathBuf,
    },
    /// A card is not what it should be.
    #[error("{} is no card of a node: {why}", path.display())]
    BadCard {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The kernel refused a call.
    #[error("{what} {} failed: {source}", path.display())]
    System {
        /// What was tried.
        what: &'static str,
        /// With which file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}

/// Gives an error its context.
pub(super) fn system<E: Into<io::Error>>(what: &'static str, path: &Path) -> impl FnOnce(E) -> SessionError {
    let path = path.to_owned();
    move |error| SessionError::System { what, path, source: error.into() }
}

/// A session's directory.
#[derive(Debug, Clone)]
pub(crate) struct SessionDir {
    /// `<base>/farfield-<uid>`.
    user: PathBuf,
    /// `<user>/<session>`.
    dir: PathBuf,
}

impl SessionDir {
    /// Finds or makes the directory of the session of this name, and checks that nobody else can touch it.
    pub(crate) fn open(session: &str) -> Result<Self, SessionError> {
        Self::open_in(&base_dir(), session)
    }

    /// [`SessionDir::open`] below a base of one's own.
    pub(crate) fn open_in(base: &Path, session: &str) -> Result<Self, SessionError> {
        let is_fit = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
        if session.is_empty() || session.len() > 64 || session.starts_with('.') || !session.chars().all(is_fit) {
            return Err(SessionError::BadName { name: session.to_owned() });
        }
        let user = base.join(format!("farfield-{}", geteuid().as_raw()));
        let this = Self { dir: user.join(session), user };
        // Node numbers of up to five digits; longer ones are checked when they come.
        this.checked_socket_path(99_999)?;
        make_private_dir(&this.user)?;
        make_private_dir(&this.dir)?;
        Ok(this)
    }

    /// The session's directory.
    #[cfg(test)]
    pub(crate) fn path(&self) -> &Path {
        &self.dir
    }

    /// Where the control socket of a node of this session is.
    pub(crate) fn socket_path(&self, node: u32) -> PathBuf {
        self.dir.join(format!("{node}.sock"))
    }

    /// [`SessionDir::socket_path`], if the system can bind it.
    fn checked_socket_path(&self, node: u32) -> Result<PathBuf, SessionError> {
        let path = self.socket_path(node);
        let len = path.as_os_str().len();
        if len > SOCKET_PATH_BYTES_MAX { Err(SessionError::PathTooLong { path, len }) } else { Ok(path) }
    }

    pub(super) fn lock_path(&self) -> PathBuf {
        self.dir.join(LOCK_FILE)
    }

    fn card_path(&self, node: u32) -> PathBuf {
        self.dir.join(format!("{node}.card"))
    }

    /// Takes the place of a node, under the session's lock: makes its card, zero but for the header.
    ///
    /// A card that is there already is removed with its socket if its node is dead, which `is_alive` judges by what
    /// the fabric keeps in the card. The caller fills the card, makes its liveness word alive, and says
    /// [`Claim::started`] within ten seconds.
    ///
    /// # Panics
    ///
    /// If the card has not between [`CARD_HEADER_BYTES`] and [`CARD_BYTES_MAX`] bytes, or not even so many at first.
    pub(super) fn claim(
        &self,
        lock: &OwnedFd,
        node: u32,
        file: CardFile,
        is_alive: impl Fn(&CardMapping) -> bool,
    ) -> Result<Claim, SessionError> {
        let CardFile { bytes: card_len, there } = file;
        assert!((CARD_HEADER_BYTES..=CARD_BYTES_MAX).contains(&card_len), "a card of {card_len} bytes");
        assert!((CARD_HEADER_BYTES..=card_len).contains(&there), "{there} bytes of a card of {card_len}");
        let socket_path = self.checked_socket_path(node)?;
        let path = self.card_path(node);
        match self.judge(node, &is_alive)? {
            State::Absent => {}
            State::Leftover => self.clear(lock, node)?,
            State::Taken { pid } => return Err(SessionError::AlreadyRunning { node, pid }),
            State::OtherVersion { version, pid } => return Err(SessionError::OtherVersion { path, version, pid }),
        }
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let fd = openat(CWD, &path, flags, Mode::RUSR | Mode::WUSR).map_err(system("creating", &path))?;
        // From here on the file goes if anything fails.
        let undo = |error: SessionError| {
            let _ = fs::remove_file(&path);
            error
        };
        flock(&fd, FlockOperation::NonBlockingLockExclusive).map_err(system("locking", &path)).map_err(undo)?;
        allocate(&fd, 0..there).map_err(system("allocating", &path)).map_err(undo)?;
        ftruncate(&fd, card_len as u64).map_err(system("sizing", &path)).map_err(undo)?;
        let card = CardMapping::map(&fd, card_len, &path).map_err(undo)?;
        let stat = fstat(&fd).map_err(system("fstat of", &path)).map_err(undo)?;
        card.write_header(&boot_id().map_err(undo)?);
        Ok(Claim {
            session: self.clone(),
            node,
            card: Arc::new(card),
            socket_path,
            identity: (stat.st_dev, stat.st_ino),
            owner_pid: std::process::id(),
            fd,
        })
    }

    /// Maps the card of a peer; `None` if it has none (yet).
    pub(crate) fn open_peer(&self, node: u32) -> Result<Option<CardMapping>, SessionError> {
        let path = self.card_path(node);
        match open_card(&path)? {
            Opened::Card(card, _) if card.version() != VERSION => {
                Err(SessionError::OtherVersion { path, version: card.version(), pid: card.pid() })
            }
            Opened::Card(card, _) => Ok(Some(card)),
            Opened::Absent | Opened::Unfinished => Ok(None),
        }
    }

    /// Whether a node is dead or has left, or has never been.
    pub(crate) fn is_gone(&self, node: u32, is_alive: impl Fn(&CardMapping) -> bool) -> bool {
        matches!(self.judge(node, &is_alive), Ok(State::Absent | State::Leftover))
    }

    /// The nodes that have a card, alive or not, in order.
    pub(crate) fn nodes(&self) -> Result<Vec<u32>, SessionError> {
        let mut nodes: Vec<u32> = match fs::read_dir(&self.dir) {
            Ok(entries) => entries.filter_map(|entry| node_of(&entry.ok()?.file_name(), ".card")).collect(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(system("reading", &self.dir)(error)),
        };
        nodes.sort_unstable();
        Ok(nodes)
    }

    /// Removes what crashed nodes of any session of this user have left, and sessions that are empty; returns how
    /// many cards were removed. To be called at each start; safe beside others that start.
    ///
    /// A session that is locked, or where a file resists, is passed over: the next start tries again.
    pub(crate) fn sweep(&self, is_alive: impl Fn(&CardMapping) -> bool) -> Result<usize, SessionError> {
        let mut removed = 0;
        for entry in fs::read_dir(&self.user).map_err(system("reading", &self.user))? {
            let Ok(entry) = entry else { continue };
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                let session = Self { user: self.user.clone(), dir: entry.path() };
                removed += session.sweep_session(&is_alive).unwrap_or(0);
            }
        }
        Ok(removed)
    }

    fn sweep_session(&self, is_alive: &impl Fn(&CardMapping) -> bool) -> Result<usize, SessionError> {
        check_private_dir(&self.dir)?;
        let lock_path = self.lock_path();
        let lock = open_lock(&lock_path).map_err(system("opening", &lock_path))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(system("locking", &lock_path))?;
        let mut removed = 0;
        for node in self.nodes()? {
            let path = self.card_path(node);
            if matches!(judge(&path, is_alive), Ok(State::Leftover)) && remove_file(&path).is_ok() {
                removed += 1;
            }
        }
        // A socket is made by who has a card and goes before it: without one it is a leftover.
        let mut left = 0;
        for entry in fs::read_dir(&self.dir).map_err(system("reading", &self.dir))?.flatten() {
            let name = entry.file_name();
            let is_orphan = node_of(&name, ".sock").is_some_and(|node| !self.card_path(node).exists());
            let is_gone = is_orphan && remove_file(&entry.path()).is_ok();
            left += usize::from(!is_gone && name != LOCK_FILE);
        }
        if left == 0 && has_name(&lock, &lock_path) {
            // Whoever opened this lock file meanwhile waits for us and then sees that it is not the session's any
            // more. Whoever makes a new one before the directory goes keeps the directory.
            remove_file(&lock_path)?;
            let _ = fs::remove_dir(&self.dir);
        }
        Ok(removed)
    }

    /// Removes what a node has left, under the session's lock.
    pub(super) fn clear(&self, _lock: &OwnedFd, node: u32) -> Result<(), SessionError> {
        remove_file(&self.card_path(node))?;
        remove_file(&self.socket_path(node))
    }

    pub(super) fn judge(&self, node: u32, is_alive: &impl Fn(&CardMapping) -> bool) -> Result<State, SessionError> {
        judge(&self.card_path(node), is_alive)
    }

    /// Waits for the session's lock, and makes the directory again if the last node to leave removed it.
    pub(super) fn lock(&self) -> Result<OwnedFd, SessionError> {
        let path = self.lock_path();
        let start = Instant::now();
        loop {
            make_private_dir(&self.dir)?;
            match open_lock(&path) {
                Ok(lock) => match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                    Ok(()) if has_name(&lock, &path) => return Ok(lock),
                    Ok(()) | Err(Errno::AGAIN | Errno::INTR) => {}
                    Err(errno) => return Err(system("locking", &path)(errno)),
                },
                Err(Errno::NOENT) => {}
                Err(errno) => return Err(system("opening", &path)(errno)),
            }
            if start.elapsed() > LOCK_MAX {
                return Err(SessionError::Locked { path });
            }
            // Not a wait of the data path: two nodes start at the same moment.
            std::thread::sleep(Duration::from_micros(500));
        }
    }
}

/// A node's place in a session. Dropping it removes the node's files, and the session's directory if it is the last.
#[derive(Debug)]
pub(crate) struct Claim {
    session: SessionDir,
    node: u32,
    card: Arc<CardMapping>,
    socket_path: PathBuf,
    /// Device and inode of the card: the place may be another's by now.
    identity: (u64, u64),
    /// Who claimed it: a forked child does not give up its parent's place.
    owner_pid: u32,
    /// The card, locked until the node has started.
    fd: OwnedFd,
}

impl Claim {
    /// Says that the card's liveness word is alive, which from now on tells about this node.
    pub(crate) fn started(&self) -> Result<(), SessionError> {
        let _lock = self.session.lock()?;
        if !self.is_ours() {
            return Err(SessionError::Replaced { node: self.node });
        }
        // In so many words: the mapping, and any forked child, would keep the lock of a file that is merely closed.
        flock(&self.fd, FlockOperation::Unlock).map_err(system("unlocking", &self.session.card_path(self.node)))
    }

    /// Makes sure that a part of the card that was not there from the start is.
    pub(crate) fn reserve(&self, part: Range<usize>) -> Result<(), SessionError> {
        assert!(part.end <= self.card.len(), "a part of the card");
        allocate(&self.fd, part).map_err(system("allocating", &self.session.card_path(self.node)))
    }

    /// The node's card, mapped.
    pub(crate) fn card(&self) -> &Arc<CardMapping> {
        &self.card
    }

    /// Where the node's control socket goes.
    pub(crate) fn socket_path(&self) -> &Path {
        &self.socket_path
    }

    /// The node's number.
    pub(crate) fn node(&self) -> u32 {
        self.node
    }

    /// Whether the card in the directory is this one; to be asked under the session's lock.
    fn is_ours(&self) -> bool {
        let path = self.session.card_path(self.node);
        fs::symlink_metadata(path).is_ok_and(|found| (found.dev(), found.ino()) == self.identity)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if std::process::id() != self.owner_pid {
            return;
        }
        // What cannot be removed now is swept later.
        let Ok(lock) = self.session.lock() else { return };
        if self.is_ours() {
            let _ = remove_file(&self.socket_path);
            let _ = remove_file(&self.session.card_path(self.node));
        }
        drop(lock);
        let _ = self.session.sweep_session(&|_: &CardMapping| true);
    }
}

/// A card, mapped for reading and writing.
#[derive(Debug)]
pub(crate) struct CardMapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: an address and a length; the memory stays mapped until the only owner drops it, and all access goes through
// atomics or through raw pointers, for which whoever dereferences them answers.
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

    fn version(&self) -> u32 {
        self.u32_at(8).load(Ordering::Relaxed)
    }

    fn boot_id(&self) -> [u8; 16] {
        let halves = [24, 32].map(|at| self.u64_at(at).load(Ordering::Relaxed).to_ne_bytes());
        let mut id = [0; 16];
        id[..8].copy_from_slice(&halves[0]);
        id[8..].copy_from_slice(&halves[1]);
        id
    }

    fn u32_at(&self, at: usize) -> &AtomicU32 {
        assert!(at.is_multiple_of(4) && at + 4 <= CARD_HEADER_BYTES);
        // SAFETY: aligned and within the header, which every mapping contains, and only accessed through atomics.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(at).cast()) }
    }

    fn u64_at(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at + 8 <= CARD_HEADER_BYTES);
        // SAFETY: aligned and within the header, which every mapping contains, and only accessed through atomics.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(at).cast()) }
    }

    fn write_header(&self, boot_id: &[u8; 16]) {
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

    fn map(fd: &OwnedFd, len: usize, path: &Path) -> Result<Self, SessionError> {
        // SAFETY: the kernel chooses a range that nothing uses.
        let base = unsafe { mmap(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, fd, 0) };
        let base = base.map_err(system("mapping", path))?.cast();
        let base = NonNull::new(base).ok_or(Errno::FAULT).map_err(system("mapping", path))?;
        Ok(Self { base, len })
    }
}

impl Drop for CardMapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length and unmapped once; whoever kept a pointer into it promised to keep
        // the mapping as well.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// What there is at the path of a card.
enum Opened {
    Absent,
    /// Its creator is at work, or died at it.
    Unfinished,
    Card(CardMapping, OwnedFd),
}

fn open_card(path: &Path) -> Result<Opened, SessionError> {
    let bad = |why: String| SessionError::BadCard { path: path.to_owned(), why };
    // Not blocking: if it is a pipe, say, that is found below.
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
        MAGIC if card.u64_at(16).load(Ordering::Relaxed) == len as u64 => Ok(Opened::Card(card, fd)),
        MAGIC => Err(bad(format!("its length is {len} instead of {}", card.u64_at(16).load(Ordering::Relaxed)))),
        other => Err(bad(format!("it starts with {other:#x}"))),
    }
}

/// Whose place it is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum State {
    Absent,
    Leftover,
    Taken { pid: u32 },
    OtherVersion { version: u32, pid: u32 },
}

/// Judges a card; the session's lock is held.
fn judge(path: &Path, is_alive: &impl Fn(&CardMapping) -> bool) -> Result<State, SessionError> {
    let (card, fd) = match open_card(path)? {
        Opened::Absent => return Ok(State::Absent),
        // Headers are written under the lock that we hold: the creator died at it.
        Opened::Unfinished => return Ok(State::Leftover),
        Opened::Card(card, fd) => (card, fd),
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

/// `7.card` is node 7's; `07.card` is nobody's.
fn node_of(name: &OsStr, suffix: &str) -> Option<u32> {
    let digits = name.to_str()?.strip_suffix(suffix)?;
    let node = digits.parse::<u32>().ok()?;
    (node.to_string() == digits).then_some(node)
}

fn base_dir() -> PathBuf {
    if let Some(dir) = std::env::var_os("FARFIELD_DIR").filter(|dir| !dir.is_empty()) {
        return dir.into();
    }
    let shm = Path::new("/dev/shm");
    if shm.is_dir() && access(shm, Access::WRITE_OK | Access::EXEC_OK).is_ok() {
        return shm.to_owned();
    }
    std::env::temp_dir()
}

fn make_private_dir(path: &Path) -> Result<(), SessionError> {
    match rustix::fs::mkdir(path, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => check_private_dir(path),
        Err(errno) => Err(system("creating the directory", path)(errno)),
    }
}

fn check_private_dir(path: &Path) -> Result<(), SessionError> {
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        // Removed as empty just now; who needs it makes it again.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(system("looking at", path)(error)),
    };
    let own = geteuid().as_raw();
    let advice = |text: &str| format!("{text}, or set FARFIELD_DIR to a directory of your own");
    let (why, advice) = if !found.is_dir() {
        (format!("is no directory and belongs to user {}", found.uid()), advice("have it removed"))
    } else if found.uid() != own {
        let advice = advice("ask that user or an administrator to remove it");
        (format!("belongs to user {} and not to you, user {own}", found.uid()), advice)
    } else if found.mode() & 0o077 != 0 {
        let why = format!("is yours but open to others (mode {:o})", found.mode() & 0o777);
        (why, format!("run: chmod 700 {}", path.display()))
    } else {
        return Ok(());
    };
    Err(SessionError::Unsafe { path: path.to_owned(), why, advice })
}

fn open_lock(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    openat(CWD, path, flags, Mode::RUSR | Mode::WUSR)
}

/// Whether the locked file is still the one at its path.
fn has_name(lock: &OwnedFd, path: &Path) -> bool {
    let Ok(locked) = fstat(lock.as_fd()) else { return false };
    fs::symlink_metadata(path).is_ok_and(|found| (found.dev(), found.ino()) == (locked.st_dev, locked.st_ino))
}

/// Removes a file; that there is none is as good.
fn remove_file(path: &Path) -> Result<(), SessionError> {
    match unlinkat(CWD, path, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(system("removing", path)(errno)),
    }
}

/// Gives a range of the file, which has none there yet, zero bytes that are really there: a hole on a full disk would be a signal when
/// touched.
fn allocate(fd: &OwnedFd, range: Range<usize>) -> rustix::io::Result<()> {
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
fn boot_id() -> Result<[u8; 16], SessionError> {
    let path = Path::new("/proc/sys/kernel/random/boot_id");
    let text = fs::read_to_string(path).map_err(system("reading", path))?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let number = u128::from_str_radix(&digits, 16).map_err(io::Error::other).map_err(system("reading", path))?;
    Ok(number.to_be_bytes())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::os::unix::net::UnixListener;

    /// A base directory that goes with the test.
    pub(crate) struct Base(PathBuf);

    impl Base {
        pub(crate) fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("ff{}{name}", std::process::id()));
            fs::create_dir(&path).unwrap();
            Self(path)
        }

        pub(crate) fn open(&self, session: &str) -> SessionDir {
            SessionDir::open_in(&self.0, session).unwrap()
        }

        fn user(&self) -> PathBuf {
            self.0.join(format!("farfield-{}", geteuid().as_raw()))
        }
    }

    impl Drop for Base {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// Stands for the fabric's liveness word.
    fn word(card: &CardMapping) -> &AtomicU32 {
        // SAFETY: aligned, within the cards of these tests, which have at least 128 bytes, and only accessed so.
        unsafe { AtomicU32::from_ptr(card.base().add(64).cast()) }
    }

    pub(crate) fn is_alive(card: &CardMapping) -> bool {
        word(card).load(Ordering::Relaxed) == 1
    }

    fn take(
        session: &SessionDir,
        node: u32,
        card_len: usize,
        is_alive: impl Fn(&CardMapping) -> bool,
    ) -> Result<Claim, SessionError> {
        let file = CardFile { bytes: card_len, there: card_len.min(4096) };
        session.claim(&session.lock()?, node, file, is_alive)
    }

    fn start(session: &SessionDir, node: u32) -> Claim {
        let claim = take(session, node, 4096, is_alive).unwrap();
        raise(&claim);
        claim
    }

    #[test]
    fn parts_of_a_card_are_there_when_they_are_reserved() {
        let base = Base::new("parts");
        let session = base.open("s");
        let claim = take(&session, 0, 1 << 20, is_alive).unwrap();
        raise(&claim);
        let blocks = || fs::metadata(session.card_path(0)).unwrap().blocks() * 512;
        assert_eq!((claim.card().len(), blocks()), (1 << 20, 4096));
        claim.reserve(700_000..700_256).unwrap();
        assert!((4096 + 256..=4096 + 8192).contains(&blocks()), "{} bytes", blocks());
        let peer = session.open_peer(0).unwrap().expect("a card");
        // SAFETY: inside the card, which has the part, by atomics only.
        let [own, theirs] =
            [claim.card(), &peer].map(|card| unsafe { AtomicU32::from_ptr(card.base().add(700_004).cast()) });
        own.store(5, Ordering::Relaxed);
        assert_eq!(theirs.load(Ordering::Relaxed), 5);
    }

    /// It lives from here on.
    pub(crate) fn raise(claim: &Claim) {
        word(claim.card()).store(1, Ordering::Relaxed);
        claim.started().unwrap();
    }

    /// Leaves what a crashed node leaves: its files and a word that says it is dead.
    pub(crate) fn crash(claim: Claim) {
        drop(UnixListener::bind(claim.socket_path()).unwrap());
        word(claim.card()).store(0x4000_0000, Ordering::Relaxed);
        std::mem::forget(claim);
    }

    #[test]
    fn names_are_checked() {
        let base = Base::new("names");
        for name in ["", ".hidden", "..", "a/b", "a b", "ä", &"x".repeat(65)] {
            let error = SessionDir::open_in(&base.0, name).unwrap_err();
            assert!(matches!(error, SessionError::BadName { .. }), "{name:?}");
        }
        assert!(base.open("A-z_0.9").path().ends_with("A-z_0.9"));
        assert!(!base.user().join("a b").exists());
    }

    #[test]
    fn directories_are_private_or_refused_with_advice() {
        let base = Base::new("private");
        let session = base.open("s");
        assert_eq!(fs::metadata(session.path()).unwrap().mode() & 0o777, 0o700);
        fs::set_permissions(session.path(), fs::Permissions::from_mode(0o750)).unwrap();
        let text = SessionDir::open_in(&base.0, "s").unwrap_err().to_string();
        assert!(text.contains("chmod 700") && text.contains("750"), "{text}");
        let other = Base::new("private-link");
        symlink(base.user(), other.user()).unwrap();
        let text = SessionDir::open_in(&other.0, "s").unwrap_err().to_string();
        assert!(text.contains("no directory"), "{text}");
        if geteuid().is_root() {
            let stranger = Base::new("private-uid");
            fs::create_dir(stranger.user()).unwrap();
            std::os::unix::fs::chown(stranger.user(), Some(12_345), None).unwrap();
            let text = SessionDir::open_in(&stranger.0, "s").unwrap_err().to_string();
            assert!(text.contains("user 12345") && text.contains("FARFIELD_DIR"), "{text}");
        }
        assert!(matches!(SessionDir::open_in(Path::new("/nonexistent"), "s"), Err(SessionError::System { .. })));
    }

    #[test]
    fn long_paths_are_refused_early() {
        let base = Base::new("long");
        let deep = base.0.join("d".repeat(90));
        fs::create_dir(&deep).unwrap();
        let error = SessionDir::open_in(&deep, "s").unwrap_err();
        assert!(matches!(error, SessionError::PathTooLong { .. }) && error.to_string().contains("FARFIELD_DIR"));
        assert_eq!(fs::read_dir(&deep).unwrap().count(), 0);
    }

    #[test]
    fn a_place_is_claimed_shared_and_given_up() {
        let base = Base::new("claim");
        let session = base.open("s");
        assert!(session.open_peer(3).unwrap().is_none());
        let claim = start(&session, 3);
        let card = session.open_peer(3).unwrap().unwrap();
        assert_eq!((card.len(), card.pid(), card.boot_id()), (4096, std::process::id(), boot_id().unwrap()));
        assert!(is_alive(&card));
        assert_eq!((claim.node(), session.nodes().unwrap()), (3, vec![3]));
        let error = take(&session, 3, 4096, is_alive).unwrap_err();
        assert!(matches!(error, SessionError::AlreadyRunning { node: 3, pid } if pid == std::process::id()));
        let _socket = UnixListener::bind(claim.socket_path()).unwrap();
        drop(claim);
        assert!(!session.path().exists(), "the last one out removes the directory");
        assert_eq!(session.nodes().unwrap(), []);
        assert!(session.open_peer(3).unwrap().is_none());
        drop(start(&session, 3));
    }

    #[test]
    fn leftovers_of_the_dead_are_replaced() {
        let base = Base::new("dead");
        let session = base.open("s");
        crash(start(&session, 0));
        crash(start(&session, 1));
        let _alive = start(&session, 2);
        let again = start(&session, 0);
        assert!(!again.socket_path().exists());
        assert_eq!(session.nodes().unwrap(), [0, 1, 2]);
        assert_eq!(session.sweep(is_alive).unwrap(), 1);
        assert_eq!(session.nodes().unwrap(), [0, 2]);
        assert!(!session.socket_path(1).exists());
    }

    #[test]
    fn who_is_starting_keeps_the_place_while_its_lock_is_held() {
        let base = Base::new("starting");
        let session = base.open("s");
        let starting = take(&session, 0, 128, is_alive).unwrap();
        assert!(matches!(take(&session, 0, 128, is_alive), Err(SessionError::AlreadyRunning { .. })));
        assert_eq!(session.sweep(is_alive).unwrap(), 0);
        // It dies before its word is set.
        flock(&starting.fd, FlockOperation::Unlock).unwrap();
        std::mem::forget(starting);
        let slow = take(&session, 0, 128, is_alive).unwrap();
        // Eleven seconds pass.
        let card = File::options().write(true).open(session.card_path(0)).unwrap();
        card.set_modified(SystemTime::now() - START_MAX - Duration::from_secs(1)).unwrap();
        let next = start(&session, 0);
        assert!(matches!(slow.started(), Err(SessionError::Replaced { node: 0 })));
        drop(slow);
        assert!(session.open_peer(0).unwrap().is_some(), "the slow one leaves its successor's files alone");
        drop(next);
    }

    #[test]
    fn cards_of_another_boot_and_broken_ones() {
        let base = Base::new("broken");
        let session = base.open("s");
        let claim = start(&session, 0);
        claim.card().u64_at(24).fetch_xor(1, Ordering::Relaxed);
        std::mem::forget(claim);
        let claim = start(&session, 0);
        claim.card().u32_at(8).store(VERSION + 1, Ordering::Relaxed);
        let error = take(&session, 0, 128, is_alive).unwrap_err();
        assert!(matches!(error, SessionError::OtherVersion { .. }), "{error}");
        assert!(matches!(session.open_peer(0), Err(SessionError::OtherVersion { .. })));
        // The creator died before the header was written, before the file had its length.
        claim.card().u64_at(0).store(0, Ordering::Relaxed);
        assert!(session.open_peer(0).unwrap().is_none());
        assert_eq!(session.sweep(is_alive).unwrap(), 1);
        make_private_dir(session.path()).unwrap();
        let path = session.path().join("1.card");
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        drop(start(&session, 1));
        let bad = |why: &str| match session.open_peer(9) {
            Err(SessionError::BadCard { why: found, .. }) => assert!(found.contains(why), "{found}"),
            other => panic!("{other:?}"),
        };
        make_private_dir(session.path()).unwrap();
        let path = session.path().join("9.card");
        fs::write(&path, [7; 100]).unwrap();
        bad("mode");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        bad("starts with");
        fs::remove_file(&path).unwrap();
        symlink("/dev/null", &path).unwrap();
        bad("symbolic link");
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(session.open_peer(9).is_err());
    }

    #[test]
    fn sweeping_clears_other_sessions_and_spares_the_living() {
        let base = Base::new("sweep");
        let (own, dead, mixed) = (base.open("own"), base.open("dead"), base.open("mixed"));
        crash(start(&dead, 0));
        crash(start(&dead, 1));
        crash(start(&mixed, 0));
        let _alive = start(&mixed, 1);
        let _own = start(&own, 0);
        drop(UnixListener::bind(mixed.socket_path(7)).unwrap());
        fs::write(mixed.path().join("notes.txt"), "").unwrap();
        assert_eq!(own.sweep(is_alive).unwrap(), 3);
        assert!(!dead.path().exists());
        assert_eq!(mixed.nodes().unwrap(), [1]);
        assert!(!mixed.socket_path(7).exists());
        assert!(mixed.path().join("notes.txt").exists(), "files of others are left alone");
        // A session that is locked is passed over.
        crash(start(&dead, 0));
        let lock = dead.lock().unwrap();
        assert_eq!(own.sweep(is_alive).unwrap(), 0);
        drop(lock);
        assert_eq!(own.sweep(is_alive).unwrap(), 1);
    }

    #[test]
    fn starters_leavers_and_sweepers_do_not_disturb_each_other() {
        let base = Base::new("race");
        std::thread::scope(|scope| {
            for node in 0..3 {
                let session = base.open("s");
                scope.spawn(move || {
                    for _ in 0..60 {
                        let claim = take(&session, node, 128, is_alive).unwrap();
                        word(claim.card()).store(1, Ordering::Relaxed);
                        claim.started().unwrap();
                        assert!(session.open_peer(node).unwrap().is_some_and(|card| is_alive(&card)));
                        session.sweep(is_alive).unwrap();
                        assert!(session.nodes().unwrap().contains(&node));
                    }
                });
            }
        });
        assert_eq!(fs::read_dir(base.user()).unwrap().count(), 0);
    }

    #[test]
    fn one_of_many_gets_the_place() {
        let base = Base::new("one");
        let session = base.open("s");
        crash(start(&session, 0));
        let claims: Vec<_> = std::thread::scope(|scope| {
            let starters = [0; 4].map(|_| scope.spawn(|| take(&session, 0, 128, is_alive)));
            starters.into_iter().map(|starter| starter.join().unwrap()).collect()
        });
        assert_eq!(claims.iter().filter(|claim| claim.is_ok()).count(), 1);
    }

    #[test]
    fn files_of_nodes_have_one_name() {
        let node = |name: &str| node_of(OsStr::new(name), ".card");
        assert_eq!((node("0.card"), node("4294967295.card")), (Some(0), Some(u32::MAX)));
        for name in ["07.card", "+7.card", ".card", "7.sock", "4294967296.card", "-1.card", "lock"] {
            assert_eq!(node(name), None, "{name}");
        }
    }
}
