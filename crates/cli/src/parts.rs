//! The parts that other crates add to the command line.

use std::sync::OnceLock;

use farfield::mutants::{self, Mutant};
pub(crate) use farfield_check::cli::output::program;
use farfield_check::{Program, Scenario};

use crate::Load;

/// The parts that a crate with objects of its own adds to the command line.
///
/// ```
/// use farfield_cli::Parts;
/// use farfield_check::Scenario;
///
/// let scenario = Scenario::new("mine/empty", "nothing happens", 1, |_| Ok(()));
/// let parts = Parts { scenarios: vec![scenario], ..Parts::default() }; // no mutants, no loads
/// assert_eq!(parts.scenarios[0].name(), "mine/empty");
/// ```
#[derive(Default)]
pub struct Parts {
    /// Scenarios for `check`.
    pub scenarios: Vec<Scenario>,
    /// Seeded bugs for `--mutant`, in a debug build with the feature `farfield/mutants`.
    pub mutants: Vec<Mutant>,
    /// Loads for `chaos`, beside those of Farfield's own objects.
    pub loads: Vec<Load>,
}

static PARTS: OnceLock<Parts> = OnceLock::new();

pub(crate) fn set(parts: Parts) {
    // A second call of `main` in a process keeps the parts of the first.
    let _ = PARTS.set(parts);
}

/// What `check` has: the scenarios and mutants of the objects, of the systems, and of other crates.
pub(crate) fn checked() -> Program {
    let others = PARTS.get().map(|parts| parts.scenarios.clone()).unwrap_or_default();
    let own = [
        farfield_scenarios::all(),
        farfield_locks::scenarios::all(),
        farfield_transactions::scenarios::all(),
        farfield_collectives::scenarios::all(),
        farfield_mu::scenarios::all(),
        farfield_rome::scenarios::all(),
        farfield_hamband::scenarios::all(),
        farfield_swarm::scenarios::all(),
        farfield_rpc::scenarios::all(),
    ];
    let all: Vec<Mutant> = mutants().iter().copied().chain(mutants::all()).collect();
    Program::new(own.into_iter().flatten().chain(others)).mutants(&all)
}

/// The mutants of other crates.
fn mutants() -> &'static [Mutant] {
    PARTS.get().map(|parts| parts.mutants.as_slice()).unwrap_or_default()
}

/// The mutant with this name.
pub(crate) fn mutant(name: &str) -> farfield::Result<Mutant> {
    mutants().iter().find(|mutant| mutant.name() == name).copied().map_or_else(|| mutants::named(name), Ok)
}

/// The loads of other crates.
pub(crate) fn loads() -> &'static [Load] {
    PARTS.get().map(|parts| parts.loads.as_slice()).unwrap_or_default()
}
