//! The directory in which the nodes of a session find each other; no server, no root.
//!
//! ```text
//! <base>/farfield-<uid>/             base: $FARFIELD_DIR, else /dev/shm, else the directory for temporary files
//!   <session>/                       both 0700 and ours
//!     lock                           flock'd by whoever adds or removes files here; see `sys::incarnations` for what it holds
//!     <node>.card                    a small file that every peer maps: header, then what the fabric puts there
//!     <node>.sock                    the node's control socket
//!
//! card:  0 magic u64 (written last)   8 version u32   12 pid u32   16 length u64   24 boot id [16]   40 zero   64 free
//! ```
//!
//! A node's place is taken while its card exists and belongs to a live node. The fabric's liveness word in the card
//! decides that; a closure of the caller reads it. While a node starts, its word is not yet set. Until
//! [`Claim::started`] the creator therefore holds a lock on the card, which the kernel releases when it dies.
//!
//! Files are only added, judged and removed under the session's lock. The lock file itself is removed with its
//! directory when the session is empty, and so is the user's directory after it; a process that waited for it notices
//! that it has no name any more, and starts again.

use std::ffi::OsStr;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fs, io};

use rustix::fs::{
    Access, AtFlags, CWD, FlockOperation, Mode, OFlags, access, flock, fstat, ftruncate, openat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::card_file::{
    CARD_BYTES_MAX, CARD_HEADER_BYTES, CardFile, CardMapping, Opened, State, allocate, boot_id, judge, open_card,
};
use super::session_error::{LOCK_MAX, SOCKET_PATH_BYTES_MAX, SessionError, VERSION, system};

const LOCK_FILE: &str = "lock";

/// A session's directory.
#[derive(Debug, Clone)]
pub(crate) struct SessionDir {
    /// `<base>/farfield-<uid>`.
    user: PathBuf,
    /// `<user>/<session>`.
    dir: PathBuf,
}

impl SessionDir {
    /// Finds or creates the directory of the session of this name, and checks that no other user can access it.
    pub(crate) fn open(session: &str) -> Result<Self, SessionError> {
        Self::open_in(&base_dir(), session)
    }

    /// [`SessionDir::open`] below a base of one's own.
    pub(crate) fn open_in(base: &Path, session: &str) -> Result<Self, SessionError> {
        let this = Self::named(base, session)?;
        // Node numbers of up to five digits; longer ones are checked when they are used.
        this.checked_socket_path(99_999)?;
        this.make()?;
        Ok(this)
    }

    /// The directory of a session of this name, whether it is there or not.
    fn named(base: &Path, session: &str) -> Result<Self, SessionError> {
        let is_fit = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
        if session.is_empty() || session.len() > 64 || session.starts_with('.') || !session.chars().all(is_fit) {
            return Err(SessionError::BadName { name: session.to_owned() });
        }
        let user = base.join(format!("farfield-{}", geteuid().as_raw()));
        Ok(Self { dir: user.join(session), user })
    }

    /// Creates the directories, or checks that no other user can access them.
    fn make(&self) -> Result<(), SessionError> {
        let start = Instant::now();
        loop {
            make_private_dir(&self.user)?;
            match make_private_dir(&self.dir) {
                // The last node of another session has just removed the user's directory as empty.
                Err(SessionError::System { source, .. })
                    if source.kind() == io::ErrorKind::NotFound && start.elapsed() < LOCK_MAX => {}
                made => return made,
            }
        }
    }

    /// Removes what ended nodes of a session have left. Returns whether nothing of it is there any more.
    pub(crate) fn remove_leftovers(
        session: &str,
        is_alive: impl Fn(&CardMapping) -> bool,
    ) -> Result<bool, SessionError> {
        let this = Self::named(&base_dir(), session)?;
        if this.dir.exists()
            && let Err(error) = this.sweep_session(&is_alive)
            && this.dir.exists()
        {
            return Err(error);
        }
        // A node that was killed as it created the session's directory has not come further than the user's.
        let _ = fs::remove_dir(&this.user);
        Ok(!this.dir.exists())
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
    /// If a card exists already and its node is dead, the card is removed with its socket; `is_alive` judges that by
    /// the contents of the card. The caller fills the card, makes its liveness word alive, and calls
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
        // From here on the file is removed if anything fails.
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
            Opened::NodeHeader(card, _) if card.version() != VERSION => {
                Err(SessionError::OtherVersion { path, version: card.version(), pid: card.pid() })
            }
            Opened::NodeHeader(card, _) => Ok(Some(card)),
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
        let entries = match fs::read_dir(&self.user) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
            entries => entries.map_err(system("reading", &self.user))?,
        };
        for entry in entries {
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
        if !has_name(&lock, &lock_path) {
            // Another sweeper has removed it meanwhile: a node may be creating its card under a new lock.
            return Ok(0);
        }
        let mut removed = 0;
        for node in self.nodes()? {
            let path = self.card_path(node);
            if matches!(judge(&path, is_alive), Ok(State::Leftover)) && remove_file(&path).is_ok() {
                removed += 1;
            }
        }
        // A node creates its socket after its card and removes it first: without a card it is a leftover.
        let mut left = 0;
        for entry in fs::read_dir(&self.dir).map_err(system("reading", &self.dir))?.flatten() {
            let name = entry.file_name();
            let is_orphan = node_of(&name, ".sock").is_some_and(|node| !self.card_path(node).exists());
            let is_gone = is_orphan && remove_file(&entry.path()).is_ok();
            left += usize::from(!is_gone && name != LOCK_FILE);
        }
        if left == 0 {
            // A process that has opened this lock file meanwhile waits for us and then sees that the session no longer
            // uses it. One that creates a new one before the directory is removed keeps the directory.
            remove_file(&lock_path)?;
            let _ = fs::remove_dir(&self.dir);
            // Refused while there are other sessions.
            let _ = fs::remove_dir(&self.user);
        }
        Ok(removed)
    }

    /// Removes the files of a node, under the session's lock.
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
            self.make()?;
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
    /// The process that claimed it: a forked child does not give up its parent's place.
    owner_pid: u32,
    /// The card, locked until the node has started.
    fd: OwnedFd,
}

impl Claim {
    /// Declares that the card's liveness word is alive. From now on it shows whether this node is.
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

    /// The path of the node's control socket.
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
        // Files that cannot be removed now are swept later.
        let Ok(lock) = self.session.lock() else { return };
        if self.is_ours() {
            let _ = remove_file(&self.socket_path);
            let _ = remove_file(&self.session.card_path(self.node));
        }
        drop(lock);
        let _ = self.session.sweep_session(&|_: &CardMapping| true);
    }
}

/// `7.card` is node 7's; `07.card` is no node's.
fn node_of(name: &OsStr, suffix: &str) -> Option<u32> {
    let digits = name.to_str()?.strip_suffix(suffix)?;
    let node = digits.parse::<u32>().ok()?;
    (node.to_string() == digits).then_some(node)
}

/// The directory below which the nodes of sessions on one host find each other.
pub(crate) fn base_dir() -> PathBuf {
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
        // Removed as empty just now; a process that needs it creates it again.
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

#[cfg(test)]
pub(crate) mod tests;
