//! The limits of a session on one host, and two helpers of all files here.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::{Error, ErrorKind};
use crate::ptr::NodeId;

/// The layout that all processes of a session must share. It changes with any change to the card, to the control
/// messages or to their meaning.
pub const LAYOUT: &str = concat!("farfield-shm-7/", env!("CARGO_PKG_VERSION"));

/// The most nodes of one session on one host at a time.
pub const PLACES_MAX: usize = 256;
/// The most numbers of nodes of one session on one host, of those that were there before included. The last one that a
/// pointer could name stays free: a lock's word names its holder by one more.
pub const NODES_MAX: usize = NodeId::COUNT_MAX - 1;

/// Bytes at the start of each group that no region gets. Global fences read the first word.
pub(super) const RESERVED_BYTES: usize = 64;

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn system(what: &'static str) -> impl Fn(&dyn core::fmt::Display) -> Error {
    move |why| ErrorKind::System { what, why: why.to_string() }.into()
}
