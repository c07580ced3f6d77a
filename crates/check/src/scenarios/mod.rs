//! Scenarios for Farfield's own objects.

mod barrier;

use crate::Scenario;

/// All of them.
pub fn all() -> Vec<Scenario> {
    [barrier::scenarios()].into_iter().flatten().collect()
}

/// The one of a name.
pub fn named(name: &str) -> Option<Scenario> {
    all().into_iter().find(|scenario| scenario.name() == name)
}
