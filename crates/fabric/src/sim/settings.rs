//! The limits of an execution.

use super::fault_kinds::Faults;
use crate::fabric::DeathRule;

/// The limits of an execution.
///
/// ```
/// use farfield_fabric::{DeathRule, sim::{Faults, Settings}};
/// let settings = Settings {
///     death_rule: DeathRule::Majority,
///     faults: Some(Faults::new().crashes(1)), // one of the three may die
///     ..Settings::new(3)
/// };
/// assert_eq!(settings.faults.map(|faults| faults.count()), Some(1));
/// ```
#[derive(Clone, Debug)]
pub struct Settings {
    /// Nodes of the session, at most 64.
    pub nodes: usize,
    /// How many of them there are at a time; the others are later incarnations of these.
    pub places: usize,
    /// An execution with more steps has failed.
    pub steps_max: u64,
    /// Whether events are recorded.
    pub record: bool,
    /// The seed that nodes get.
    pub seed: u64,
    /// Whether [`Op::into_value`](crate::Op::into_value) waits: on shared memory every operation is complete at once.
    pub completes_at_once: bool,
    /// The rule that decides deaths.
    pub death_rule: DeathRule,
    /// The faults that may occur. With `Some`, even with none in it, the search handles operations that are cut short.
    pub faults: Option<Faults>,
}

impl Settings {
    /// The defaults for this many nodes: no faults, a system that decides deaths, at most 1000 steps, no record.
    ///
    /// ```
    /// use farfield_fabric::sim::Settings;
    /// let settings = Settings { record: true, ..Settings::new(2) };
    /// assert_eq!((settings.nodes, settings.places, settings.steps_max), (2, 2, 1000));
    /// ```
    pub fn new(nodes: usize) -> Settings {
        Settings {
            nodes,
            places: nodes,
            steps_max: 1000,
            record: false,
            seed: 1,
            completes_at_once: false,
            death_rule: DeathRule::System,
            faults: None,
        }
    }
}
