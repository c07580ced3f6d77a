//! The limits of a session on one host, and two helpers of all files here.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::{Error, ErrorKind};

/// The layout that all processes of a session must share. It changes with any change to the card, to the control
/// messages or to their meaning.
///
/// ```
/// use farfield_fabric::shm::{LAYOUT, ShmOptions};
/// assert!(LAYOUT.starts_with("farfield-shm-"));
/// assert_eq!(ShmOptions::new("sensors", 0, 3).layout, LAYOUT);
/// ```
pub const LAYOUT: &str = concat!("farfield-shm-8/", env!("CARGO_PKG_VERSION"));

/// Bytes at the start of each group that no region gets. Global fences read the first word.
pub(super) const RESERVED_BYTES: usize = 64;

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn system(what: &'static str) -> impl Fn(&dyn core::fmt::Display) -> Error {
    move |why| ErrorKind::System { what, why: why.to_string() }.into()
}
