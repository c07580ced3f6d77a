//! Seeded bugs: a checker of these objects has to find them before it can be trusted.
//!
//! Each [`Mutant`] is a switch: the code has the bug where `BARRIER_NO_FENCE.is_on()`. The algorithms of this crate are
//! written without the bugs. The files `mutants/*.diff` describe the edits, and with the feature `mutants` the build
//! script makes them in copies of the modules (`farfield-seeded` has the format). Without this feature, or without
//! debug assertions, the plain modules are compiled, and the switch is the constant `false`. So no release build has
//! seeded bugs. The feature is for tests of the checker only.
//!
//! A crate with objects of its own declares its mutants with [`mutants!`](crate::mutants!) and writes the switches into
//! its code. It needs no feature for them: [`enable`] switches on a mutant of any crate.
//!
//! The documentation of every mutant states the effect of the bug, the order that is then missing, and the smallest
//! known scenario that shows it. The order uses the stamps of the model: `CR` and `CW` are the CPU's reads and writes,
//! `NLR → NRW` the halves of a put, `NRR → NLW` those of a get. In the scenarios `n0`, `n1` … are nodes, with one
//! thread each unless stated otherwise. `T0`, `T1` are threads of one node that has several. `∥` separates concurrent
//! parts. "Raw" is a word of [`Node::alloc`](crate::Node::alloc) that the endpoint puts and gets.

use core::fmt;

use crate::error::{ErrorKind, Result};

pub mod kv;
pub mod messages;
pub mod mutex;
pub mod node;
pub mod vars;

/// A seeded bug: a switch for code with a bug. Declare yours with [`mutants!`](crate::mutants!).
///
/// ```
/// use farfield::mutants::{Mutant, all};
/// let of_queue = all().filter(|mutant| mutant.object() == "Queue");
/// of_queue.for_each(|mutant: Mutant| println!("{mutant}: {}", mutant.breaks()));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mutant {
    name: &'static str,
    object: &'static str,
    breaks: &'static str,
}

impl Mutant {
    /// A mutant called `name`, in the type `object`; `breaks` describes the bug in one line. Used by
    /// [`mutants!`](crate::mutants!).
    ///
    /// ```
    /// use farfield::mutants::Mutant;
    /// const FLAG_FIRST: Mutant = Mutant::new("mailbox-flag-first", "Mailbox", "`send` puts the flag first.");
    /// assert_eq!(FLAG_FIRST.name(), "mailbox-flag-first");
    /// ```
    pub const fn new(name: &'static str, object: &'static str, breaks: &'static str) -> Mutant {
        Mutant { name, object, breaks }
    }

    /// Its name: `barrier-no-fence`.
    ///
    /// ```
    /// # use farfield::mutants::vars::ATOMIC_STORE_BY_PUT;
    /// assert_eq!(ATOMIC_STORE_BY_PUT.name(), "atomic-store-by-put");
    /// ```
    pub const fn name(self) -> &'static str {
        self.name
    }

    /// The type that has the bug: `Barrier`.
    ///
    /// ```
    /// # use farfield::mutants::vars::ATOMIC_STORE_BY_PUT;
    /// assert_eq!(ATOMIC_STORE_BY_PUT.object(), "AtomicVar");
    /// ```
    pub const fn object(self) -> &'static str {
        self.object
    }

    /// A one-line description of the bug.
    ///
    /// ```
    /// # use farfield::mutants::vars::ATOMIC_STORE_BY_PUT;
    /// assert_eq!(ATOMIC_STORE_BY_PUT.breaks(), "`store` is a put.");
    /// ```
    pub const fn breaks(self) -> &'static str {
        self.breaks
    }
}

impl fmt::Display for Mutant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl fmt::Debug for Mutant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Declares a crate's mutants in a module of their own: a constant for each, and `ALL`.
///
/// ```
/// mod mutants {
///     farfield::mutants! {
///         /// *Missing:* the letter's `NRW` before that of the flag.
///         ///
///         /// *Scenario:* `mailbox/one-letter`.
///         MAILBOX_FLAG_FIRST = "mailbox-flag-first" in "Mailbox": "`send` puts the flag before the letter.";
///     }
/// }
/// # fn put_flag() {}
/// # fn put_letter() {}
///
/// if mutants::MAILBOX_FLAG_FIRST.is_on() {
///     put_flag();
///     put_letter();
/// } else {
///     put_letter();
///     put_flag();
/// }
/// assert_eq!(mutants::ALL[0].object(), "Mailbox");
/// ```
#[macro_export]
macro_rules! mutants {
    ($($(#[doc = $doc:literal])+ $mutant:ident = $name:literal in $object:literal: $breaks:literal;)+) => {
        $(
            #[doc = $breaks]
            #[doc = ""]
            $(#[doc = $doc])+
            pub const $mutant: $crate::mutants::Mutant = $crate::mutants::Mutant::new($name, $object, $breaks);
        )+

        /// All mutants of this module.
        pub const ALL: &[$crate::mutants::Mutant] = &[$($mutant),+];
    };
}

/// All mutants of this crate.
///
/// ```
/// assert!(farfield::mutants::all().any(|mutant| mutant.object() == "Barrier"));
/// ```
pub fn all() -> impl Iterator<Item = Mutant> {
    [vars::ALL, messages::ALL, mutex::ALL, kv::ALL, node::ALL].into_iter().flatten().copied()
}

// Cargo unites the features of all packages that one command builds, and tests and examples of the workspace enable
// this one. So the switch also requires debug assertions: a release build never has seeded bugs.
#[cfg(all(feature = "mutants", debug_assertions))]
mod switch {
    #![allow(clippy::disallowed_types, reason = "a session under the simulator is one thread, and has one mutant")]

    use core::cell::Cell;

    use super::Mutant;

    thread_local! {
        static ON: Cell<Option<Mutant>> = const { Cell::new(None) };
    }

    pub(super) fn set(mutant: Option<Mutant>) -> bool {
        ON.set(mutant);
        true
    }

    impl Mutant {
        /// Whether it is on, in this thread.
        ///
        /// ```
        /// # use farfield::mutants::vars::ATOMIC_STORE_BY_PUT;
        /// assert!(!ATOMIC_STORE_BY_PUT.is_on()); // nothing has enabled it
        /// ```
        #[inline]
        pub fn is_on(self) -> bool {
            ON.get().is_some_and(|on| on.name == self.name)
        }
    }
}

#[cfg(not(all(feature = "mutants", debug_assertions)))]
mod switch {
    use super::Mutant;

    pub(super) fn set(mutant: Option<Mutant>) -> bool {
        mutant.is_none()
    }

    impl Mutant {
        /// Whether it is on, in this thread: never, without the feature.
        ///
        /// ```
        /// # use farfield::mutants::vars::ATOMIC_STORE_BY_PUT;
        /// assert!(!ATOMIC_STORE_BY_PUT.is_on()); // nothing has enabled it
        /// ```
        #[inline(always)]
        pub const fn is_on(self) -> bool {
            false
        }
    }
}

/// Switches one mutant on, or all off, for this thread of the operating system from now on.
///
/// ```
/// # use farfield::mutants::{enable, vars::ATOMIC_STORE_BY_PUT};
/// let has_mutants = enable(Some(ATOMIC_STORE_BY_PUT)).is_ok(); // false in a program without the feature
/// assert_eq!(ATOMIC_STORE_BY_PUT.is_on(), has_mutants);
/// enable(None)?;
/// # Ok::<(), farfield::Error>(())
/// ```
///
/// # Errors
/// The program was built without mutants.
pub fn enable(mutant: Option<Mutant>) -> Result<()> {
    if switch::set(mutant) {
        return Ok(());
    }
    let why = "this program has no mutants: build it with the feature `farfield/mutants`, and not for release".into();
    Err(ErrorKind::Config { why }.into())
}

/// Checks the names of a crate's mutants: in kebab case, each once, and beginning with the name of its type. For the
/// tests of a crate that declares some.
///
/// ```
/// use farfield::mutants::{all, check_names};
/// check_names(all());
/// ```
///
/// # Panics
/// If a name is not like that.
pub fn check_names(mutants: impl IntoIterator<Item = Mutant>) {
    let mut names = Vec::new();
    for mutant in mutants {
        let name = mutant.name();
        assert!(name.chars().all(|c| c.is_ascii_lowercase() || c == '-'), "{name}");
        let first = name.split('-').next().unwrap_or_default();
        assert!(mutant.object().to_ascii_lowercase().starts_with(first), "{name}: {}", mutant.object());
        assert!(!names.contains(&name), "{name} twice");
        names.push(name);
    }
}

#[cfg(all(test, feature = "mutants", debug_assertions))]
mod tests {
    use super::messages::{BARRIER_NO_FENCE, RING_HEAD_FIRST};
    use super::*;

    #[test]
    fn names_are_kebab_case_and_begin_with_the_object() {
        check_names(all());
    }

    #[test]
    fn one_is_on_at_a_time() {
        enable(Some(BARRIER_NO_FENCE)).unwrap();
        assert!(BARRIER_NO_FENCE.is_on() && !RING_HEAD_FIRST.is_on());
        enable(None).unwrap();
        assert!(!BARRIER_NO_FENCE.is_on());
    }
}
