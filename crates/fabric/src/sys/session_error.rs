//! Errors of session directories.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The version of the layout of cards.
pub(super) const VERSION: u32 = 1;

/// A node that takes longer to start has lost its place, if another one wants it.
pub(super) const START_MAX: Duration = Duration::from_secs(10);

/// The limit for holding a session's lock: some milliseconds suffice, unless the holder is stopped.
pub(super) const LOCK_MAX: Duration = Duration::from_secs(10);

/// `sun_path` less its terminating zero.
pub(super) const SOCKET_PATH_BYTES_MAX: usize = 107;

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
        /// Its defect, and its owner.
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
    /// The other nodes have another number of places.
    #[error(
        "the nodes of this session that run say that it has {theirs} nodes, and this one says {ours}: choose another \
         session"
    )]
    OtherPlaces {
        /// This node's number.
        ours: u32,
        /// Theirs.
        theirs: u32,
    },
    /// The rank has no incarnations left.
    #[error(
        "rank {rank} of this session has had {incarnations} incarnations, which is the most for {ranks} ranks: end the \
         session and begin a new one"
    )]
    NoLifeLeft {
        /// The rank.
        rank: u32,
        /// How many incarnations it has had.
        incarnations: u32,
        /// How many ranks the session has.
        ranks: u32,
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
    /// A file is no valid card.
    #[error("{} is no card of a node: {why}", path.display())]
    BadCard {
        /// The file.
        path: PathBuf,
        /// Its defect.
        why: String,
    },
    /// The kernel refused a call.
    #[error("{what} {} failed: {source}", path.display())]
    System {
        /// The attempted action.
        what: &'static str,
        /// With which file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
}

/// Gives an error its context.
pub(super) fn system<E: Into<io::Error>>(what: &'static str, path: &Path) -> impl FnOnce(E) -> SessionError {
    let path = path.to_owned();
    move |error| SessionError::System { what, path, source: error.into() }
}
