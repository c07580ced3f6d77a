//! Scenarios of the objects of `farfield-core` for the model checker: small programs, with the properties that must
//! hold. The crate of each system has its own.
//!
//! They are a crate apart, so that a program that checks an object of its own compiles none of them, and so that the
//! checker alone has to be fast.
#![forbid(unsafe_code)]

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

use farfield_check::{Cluster, Scenario, with_at_once, with_slow};

/// All of them, in the order in which they are searched.
///
/// ```
/// let barrier = |scenario: &farfield_check::Scenario| scenario.name().starts_with("barrier/");
/// assert!(farfield_scenarios::all().iter().any(barrier));
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
    "mutex/begun",
    "mutex/turn-dropped",
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
    "kv/repair-cut",
    "kv/update-dies",
    "random/two",
    "random/three",
    "random/dies",
];

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
