//! Scenarios for the objects of `farfield-core`. The crate of each system has its own.

mod barrier;
mod close;
mod death;
mod fence;
mod join;
mod kv;
mod measured;
mod mutex;
mod options;
mod queue;
mod random;
mod refused;
mod reopen;
mod restart;
mod ring;
mod service;
mod vars;

use std::rc::Rc;

use crate::{Cluster, Scenario};

/// All of them, in the order in which they are searched.
///
/// ```
/// let barrier = |scenario: &farfield_check::Scenario| scenario.name().starts_with("barrier/");
/// assert!(farfield_check::scenarios::all().iter().any(barrier));
/// ```
pub fn all() -> Vec<Scenario> {
    let scenarios = [
        barrier::scenarios(),
        vars::scenarios(),
        ring::scenarios(),
        queue::scenarios(),
        mutex::scenarios(),
        kv::scenarios(),
        join::scenarios(),
        close::scenarios(),
        death::scenarios(),
        reopen::scenarios(),
        restart::scenarios(),
        service::scenarios(),
        refused::scenarios(),
        fence::scenarios(),
        options::scenarios(),
        measured::scenarios(),
        random::scenarios(),
    ];
    with_at_once(with_slow(scenarios.into_iter().flatten()), AT_ONCE)
}

/// Those that are also searched with operations that complete at once: of the objects that go another way then.
const AT_ONCE: &[&str] = &[
    "mutex/release",
    "mutex/third-node",
    "mutex/queue",
    "mutex/window",
    "mutex/trying",
    "mutex/timeout",
    "mutex/dropped",
    "mutex/holder-dies",
    "mutex/refused-anywhere",
    "queue/producers",
    "queue/no-gap",
    "queue/consumers",
    "queue/around-two",
    "queue/freed",
    "queue/empty",
    "queue/full",
    "queue/behind",
    "queue/dropped-enqueue",
    "queue/close-enqueue",
    "queue/close-dequeue",
    "queue/laps",
    "queue/spares",
    "queue/batch-full",
    "queue/traffic",
    "queue/dropped-dequeue",
    "queue/producer-dies",
    "queue/consumer-dies",
    "queue/refused-publication",
    "kv/update",
    "kv/torn",
    "kv/traffic",
    "kv/dies",
    "kv/update-dies",
    "random/two",
    "random/three",
    "random/dies",
];

/// Adds to scenarios with faults, but for small and medium ones, the same again with NICs and threads that stall.
///
/// ```
/// # use farfield_check::{Faults, Scenario, scenarios::with_slow};
/// # let scenario = Scenario::new("doc/dies", "a node may die", 2, |_| Ok(())).faults(Faults::new().crashes(1));
/// let names: Vec<String> = with_slow([scenario]).iter().map(|scenario| scenario.name().into()).collect();
/// assert_eq!(names, ["doc/dies", "doc/dies-slow"]);
/// ```
pub fn with_slow(scenarios: impl IntoIterator<Item = Scenario>) -> Vec<Scenario> {
    let mut all = Vec::new();
    for scenario in scenarios {
        let is_searched_whole = scenario.is_small() || scenario.is_medium();
        let slow = (scenario.injected().is_some() && !is_searched_whole).then(|| scenario.clone().slow());
        all.push(scenario);
        all.extend(slow);
    }
    all
}

/// Adds to the named scenarios the same again with operations that are complete as soon as their value is asked for
/// ([`Op::into_value`](farfield_core::fabric::Op::into_value)), as on shared memory: so the ways that objects go there
/// are searched, too.
///
/// ```
/// # use farfield_check::{Scenario, scenarios::with_at_once};
/// # let scenario = Scenario::new("doc/lock", "two never hold it", 2, |_| Ok(()));
/// let names: Vec<String> =
///     with_at_once(vec![scenario], &["doc/lock"]).iter().map(|scenario| scenario.name().into()).collect();
/// assert_eq!(names, ["doc/lock", "doc/lock-at-once"]);
/// ```
///
/// # Panics
/// If there is no scenario of such a name.
pub fn with_at_once(mut scenarios: Vec<Scenario>, names: &[&str]) -> Vec<Scenario> {
    for name in names {
        let scenario = scenarios.iter().find(|scenario| scenario.name() == *name);
        let scenario = scenario.unwrap_or_else(|| panic!("no scenario is called {name}"));
        scenarios.push(scenario.clone().at_once());
    }
    scenarios
}

/// Keeps something that several threads use alive until all of them have ended: closing an object takes locks, and
/// would only add to the search.
fn keep<T: 'static>(cluster: &Cluster, value: T) -> Rc<T> {
    let value = Rc::new(value);
    let kept = Rc::clone(&value);
    cluster.at_end(move || {
        drop(kept);
        Ok(())
    });
    value
}
