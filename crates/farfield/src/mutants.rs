//! Seeded bugs of all crates, for tests of the checker.
//!
//! ```
//! use farfield::mutants;
//! assert_eq!(mutants::named("ring-head-first")?, mutants::messages::RING_HEAD_FIRST);
//! assert!(mutants::all().any(|mutant| mutant.object() == "ALock"));
//! # Ok::<(), farfield::Error>(())
//! ```

#[doc(inline)]
pub use farfield_core::mutants::*;

use crate::{ErrorKind, Result};

/// All mutants: those of the nodes and objects, and those of the systems in this build.
///
/// ```
/// let barriers = farfield::mutants::all().filter(|mutant| mutant.object() == "Barrier");
/// assert!(barriers.count() > 1);
/// ```
pub fn all() -> impl Iterator<Item = Mutant> {
    let core = farfield_core::mutants::all();
    #[cfg(feature = "locks")]
    let core = core.chain(farfield_locks::mutants::ALL.iter().copied());
    #[cfg(feature = "transactions")]
    let core = core.chain(farfield_transactions::mutants::ALL.iter().copied());
    #[cfg(feature = "collectives")]
    let core = core.chain(farfield_collectives::mutants::ALL.iter().copied());
    #[cfg(feature = "mu")]
    let core = core.chain(farfield_mu::mutants::ALL.iter().copied());
    #[cfg(feature = "rome")]
    let core = core.chain(farfield_rome::mutants::ALL.iter().copied());
    #[cfg(feature = "hamband")]
    let core = core.chain(farfield_hamband::mutants::ALL.iter().copied());
    #[cfg(feature = "rpc")]
    let core = core.chain(farfield_rpc::mutants::ALL.iter().copied());
    #[cfg(feature = "swarm")]
    let core = core.chain(farfield_swarm::mutants::ALL.iter().copied());
    core
}

/// The mutant with this name.
///
/// ```
/// assert_eq!(farfield::mutants::named("ring-head-first")?.object(), "RingBuffer");
/// assert!(farfield::mutants::named("ring").is_err());
/// # Ok::<(), farfield::Error>(())
/// ```
///
/// # Errors
/// There is none.
pub fn named(name: &str) -> Result<Mutant> {
    let found = all().find(|mutant| mutant.name() == name);
    found.ok_or_else(|| ErrorKind::Config { why: format!("unknown mutant `{name}`") }.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_kebab_case_and_lead_back() {
        check_names(all());
        assert!(all().all(|mutant| named(mutant.name()).is_ok_and(|found| found == mutant)));
        assert!(named("barrier").is_err());
    }
}
