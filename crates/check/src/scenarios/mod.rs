//! Scenarios for Farfield's own objects.

mod barrier;
mod close;
mod death;
mod join;
mod kv;
mod locks;
mod mutex;
mod queue;
mod refused;
mod reopen;
mod ring;
mod vars;

use std::rc::Rc;

use crate::{Scenario, Stage};

/// All of them.
pub fn all() -> Vec<Scenario> {
    let scenarios = [
        barrier::scenarios(),
        vars::scenarios(),
        ring::scenarios(),
        queue::scenarios(),
        mutex::scenarios(),
        locks::scenarios(),
        kv::scenarios(),
        join::scenarios(),
        close::scenarios(),
        death::scenarios(),
        reopen::scenarios(),
        refused::scenarios(),
    ];
    let mut all = Vec::new();
    for scenario in scenarios.into_iter().flatten() {
        let slow = (scenario.injected().is_some() && !scenario.is_small()).then(|| scenario.clone().slow());
        all.push(scenario);
        all.extend(slow);
    }
    all
}

/// The scenario with this name.
pub fn named(name: &str) -> Option<Scenario> {
    all().into_iter().find(|scenario| scenario.name() == name)
}

/// Keeps something that several threads use alive until all of them have ended: closing an object takes locks, and
/// would only add to the search.
fn keep<T: 'static>(stage: &Stage, value: T) -> Rc<T> {
    let value = Rc::new(value);
    let kept = Rc::clone(&value);
    stage.finally(move || {
        drop(kept);
        Ok(())
    });
    value
}

/// The scenario that is there to find a seeded bug.
pub fn killing(mutant: &str) -> Option<Scenario> {
    all().into_iter().find(|scenario| scenario.mutants().contains(&mutant))
}
