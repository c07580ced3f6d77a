//! The variables that UCX reads while it is loaded.
//!
//! The initialiser of libucs reads its options from the environment, and there is no other way to give them. Its
//! defaults change the whole process: handlers of SIGSEGV, SIGBUS, SIGILL, SIGFPE and SIGHUP, and, when the first
//! context is made, other code in the C library's `mmap` and `munmap`, while threads may be in these. Farfield
//! registers no memory with UCX and has no use for either. UCX writes its log to standard output, where a program's
//! results are.

use core::ffi::c_char;
use core::sync::atomic::{AtomicPtr, Ordering};
use std::env;
use std::ffi::CString;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The variables for the initialiser, but for those that the program's environment has.
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

/// The pointer to the list.
///
/// The C library and std load it without atomics. In compiled code that is one load of an aligned word, which finds the
/// old pointer or the new one; the lists of both are whole and stay for ever. The C library's `setenv` replaces the
/// pointer in the same way, under a lock of its own that `getenv` does not take.
fn list() -> &'static AtomicPtr<*mut c_char> {
    // SAFETY: the pointer is aligned and lives as long as the process. This crate accesses it by this function only;
    // for other accesses see above.
    unsafe { AtomicPtr::from_ptr(&raw mut environ) }
}

/// The variables in a list.
///
/// # Safety
/// The list is null, or valid and ends in a null, and nothing changes it meanwhile.
unsafe fn variables(list: *const *mut c_char) -> Vec<*mut c_char> {
    let mut variables = Vec::new();
    if !list.is_null() {
        // SAFETY: by the contract of this function: the loop ends at the null.
        unsafe {
            let mut next = list;
            while !(*next).is_null() {
                variables.push(*next);
                next = next.add(1);
            }
        }
    }
    variables
}

/// Makes a list, which is never freed: others may have its pointer for ever.
fn leaked(mut variables: Vec<*mut c_char>) -> *mut *mut c_char {
    variables.push(core::ptr::null_mut());
    Box::leak(variables.into_boxed_slice()).as_mut_ptr()
}

/// One thread at a time replaces the list.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Calls `load` with an environment that has the [`DEFAULTS`] in addition. Changes that `load` makes to other variables
/// stay.
pub(crate) fn with_defaults<T>(load: impl FnOnce() -> T) -> T {
    let _one = one_at_a_time();
    replaced(load)
}

/// As [`with_defaults`], for a thread that has the lock.
fn replaced<T>(load: impl FnOnce() -> T) -> T {
    let missing: Vec<*mut c_char> = DEFAULTS
        .iter()
        .filter(|(name, _)| env::var_os(name).is_none())
        .map(|(name, value)| CString::new(format!("{name}={value}")).expect("there is no zero in it").into_raw())
        .collect();
    // Acquire: for the list of a thread that has replaced it.
    let old = list().load(Ordering::Acquire);
    // SAFETY: the C library keeps the list in this form. Nothing changes it meanwhile: `Ucx::get` demands it.
    let mut with = unsafe { variables(old) };
    with.extend(&missing);
    let new = leaked(with.clone());
    // Release: a reader that finds the new list finds its texts.
    list().store(new, Ordering::Release);
    // Takes the defaults away also if `load` panics.
    let _restore = Restore { old, new, with, missing };
    load()
}

/// Takes the defaults away when it is dropped.
struct Restore {
    old: *mut *mut c_char,
    new: *mut *mut c_char,
    /// The variables in the new list, as it was made.
    with: Vec<*mut c_char>,
    /// The defaults among them.
    missing: Vec<*mut c_char>,
}

impl Drop for Restore {
    fn drop(&mut self) {
        let current = list().load(Ordering::Acquire);
        // SAFETY: as in `replaced`. An initialiser may have changed the new list, or put one of the C library in its
        // place; both have this form.
        let mut variables = unsafe { variables(current) };
        if current == self.new && variables == self.with {
            list().store(self.old, Ordering::Release);
            return;
        }
        variables.retain(|variable| !self.missing.contains(variable));
        list().store(leaked(variables), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsString;

    fn environment() -> Vec<(OsString, OsString)> {
        env::vars_os().collect()
    }

    #[test]
    fn the_environment_has_the_defaults_for_a_moment() {
        let _one = one_at_a_time();
        let (before, list_before) = (environment(), list().load(Ordering::Acquire));
        let during = replaced(environment);
        assert_eq!(environment(), before);
        assert_eq!(list().load(Ordering::Acquire), list_before);
        for (name, _) in DEFAULTS {
            assert_eq!(during.iter().filter(|(found, _)| found == name).count(), 1, "{name}");
        }
        assert!(before.iter().all(|variable| during.contains(variable)));
    }

    #[test]
    fn a_change_of_an_initialiser_stays_and_the_defaults_go() {
        const THERE: &str = "FARFIELD_TEST_THERE";
        const NEW: &str = "FARFIELD_TEST_NEW";
        let _one = one_at_a_time();
        let change = |change: &dyn Fn()| {
            // SAFETY: other tests read the environment by std alone, which `set_var` and `remove_var` keep away, or
            // while they have the lock.
            unsafe {
                env::set_var(THERE, "before");
                env::remove_var(NEW);
            }
            let without = environment();
            replaced(change);
            let after = environment();
            for (name, _) in DEFAULTS {
                let of = |list: &[(OsString, OsString)]| list.iter().filter(|(found, _)| found == name).count();
                assert_eq!(of(&after), of(&without), "{name}");
            }
            let others = |list: Vec<(OsString, OsString)>| -> Vec<_> {
                list.into_iter().filter(|(name, _)| name != THERE && name != NEW).collect()
            };
            assert_eq!(others(after), others(without));
            (env::var(THERE).ok(), env::var(NEW).ok())
        };
        let text = |text: &str| Some(text.to_owned());
        // SAFETY: as above, for all of these.
        unsafe {
            // In place, a copy, and both.
            assert_eq!(change(&|| env::remove_var(THERE)), (None, None));
            assert_eq!(change(&|| env::set_var(THERE, "after")), (text("after"), None));
            assert_eq!(change(&|| env::set_var(NEW, "new")), (text("before"), text("new")));
            let both = || {
                env::remove_var(THERE);
                env::set_var(NEW, "new");
            };
            assert_eq!(change(&both), (None, text("new")));
            env::remove_var(THERE);
            env::remove_var(NEW);
        }
    }
}
