//! What the sessions of this host keep in the file system, for programs that start and end them.

use std::path::PathBuf;

use super::node_header::NodeHeader;
use crate::error::{ErrorKind, Result};
use crate::sys::session::{SessionDir, base_dir};

/// The directory in which nodes on one host find each other: that of `FARFIELD_DIR`; else `/dev/shm`, if this process
/// may write there; else the one for temporary files. In it is `farfield-` with the user's number, while the user has
/// sessions.
///
/// ```
/// let directory = farfield_fabric::shm::rendezvous_directory();
/// assert!(directory.is_absolute());
/// ```
pub fn rendezvous_directory() -> PathBuf {
    base_dir()
}

/// Removes the files of a session's nodes that have ended. A node that leaves removes its own; the files of one that
/// was killed remain until this, or until this user starts a node. Returns whether nothing of the session is left.
///
/// ```
/// use farfield_fabric::shm::{ShmFabric, ShmOptions, remove_leftovers};
///
/// let session = format!("doc-leftovers-{}", std::process::id());
/// let node = ShmFabric::join(&ShmOptions::new(session.clone(), 0, 1))?;
/// assert!(!remove_leftovers(&session)?, "it lives");
/// drop(node);
/// assert!(remove_leftovers(&session)?);
/// # Ok::<(), farfield_fabric::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::Session`]: a bad name, a directory that other users can access, or files that cannot be removed.
pub fn remove_leftovers(session: &str) -> Result<bool> {
    SessionDir::remove_leftovers(session, NodeHeader::is_alive)
        .map_err(|why| ErrorKind::Session { session: session.into(), why: why.to_string() }.into())
}
