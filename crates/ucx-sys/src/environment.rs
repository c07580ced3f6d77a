//! The variables that UCX reads while it is loaded.
//!
//! The initialiser of libucs reads its options from the environment, and there is no other way to give them. Its
//! defaults change the whole process: handlers of SIGSEGV, SIGBUS, SIGILL, SIGFPE and SIGHUP, and, when the first
//! context is made, other code in the C library's `mmap` and `munmap`, while threads may be in these. Farfield
//! registers no memory with UCX and has no use for either. UCX writes its log to standard output, where a program's
//! results are.

use core::ffi::c_char;
use std::env;
use std::ffi::CString;
use std::sync::{Mutex, PoisonError};

/// What is set for the initialiser, unless the program's environment has it.
pub(crate) const DEFAULTS: &[(&str, &str)] = &[
    ("UCX_MEM_EVENTS", "n"),
    ("UCX_HANDLE_ERRORS", "none"),
    ("UCX_DEBUG_SIGNO", "0"),
    ("UCX_LOG_FILE", "stderr"),
    ("UCX_LOG_LEVEL", "fatal"),
    ("UCX_VFS_ENABLE", "n"),
];

unsafe extern "C" {
    /// The C library's list of variables, a null behind the last.
    static mut environ: *mut *mut c_char;
}

/// Calls `load` with an environment that has the [`DEFAULTS`] in addition.
pub(crate) fn with_defaults<T>(load: impl FnOnce() -> T) -> T {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let missing: Vec<*mut c_char> = DEFAULTS
        .iter()
        .filter(|(name, _)| env::var_os(name).is_none())
        .map(|(name, value)| CString::new(format!("{name}={value}")).expect("there is no zero in it").into_raw())
        .collect();
    // SAFETY: `environ` is null or a list of texts that ends in a null. Only changes of the environment write it, and
    // `std::env::set_var`, as `setenv`, demands that no other thread uses the environment then. So nothing changes it
    // while this thread reads it. The new list has the old texts, which stay, and texts that are leaked; the list is
    // leaked, too. So each list is valid for ever, and a thread that reads the environment meanwhile reads a whole one,
    // the old or the new: a pointer is written at once.
    unsafe {
        let old = environ;
        let mut list = Vec::new();
        if !old.is_null() {
            let mut next = old;
            while !(*next).is_null() {
                list.push(*next);
                next = next.add(1);
            }
        }
        list.extend(missing);
        list.push(core::ptr::null_mut());
        let new = Box::leak(list.into_boxed_slice()).as_mut_ptr();
        environ = new;
        // Sets it back also if `load` panics.
        let _restore = Restore { old, new };
        load()
    }
}

/// Sets the environment back to what it was.
struct Restore {
    old: *mut *mut c_char,
    new: *mut *mut c_char,
}

impl Drop for Restore {
    fn drop(&mut self) {
        // SAFETY: as in `with_defaults`: the old list is still whole. If an initialiser has changed the environment,
        // the C library has made a list of its own, which stays.
        unsafe {
            if environ == self.new {
                environ = self.old;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_has_the_defaults_for_a_moment() {
        let before: Vec<_> = env::vars_os().collect();
        let during: Vec<_> = with_defaults(|| env::vars_os().collect());
        assert_eq!(env::vars_os().collect::<Vec<_>>(), before);
        for (name, _) in DEFAULTS {
            assert_eq!(during.iter().filter(|(found, _)| found == name).count(), 1, "{name}");
        }
        assert!(before.iter().all(|variable| during.contains(variable)));
    }
}
