//! Waiting for memory: deadlines and wake-ups.

use std::time::Duration;

use farfield_fabric::{Endpoint, ErrorKind};

use crate::harness::{Harness, Node, refused, rest, threads};

/// How late a deadline may be noticed on a busy machine.
const LATE_MAX: Duration = Duration::from_secs(2);

/// A wait gives up at its deadline: not before, and soon after.
pub(crate) fn a_wait_ends_at_its_deadline(harness: &Harness) {
    let nodes = harness.session(1);
    let endpoint = nodes[0].endpoint();
    for wait in [0, 1, 20, 100].map(Duration::from_millis) {
        let start = endpoint.now();
        let never = endpoint.wait_until(endpoint.now() + wait, || None::<()>);
        let error = refused(endpoint.block_on(never));
        let took = endpoint.now() - start;
        assert!(took >= wait, "{took:?} of {wait:?}");
        assert!(took < wait + LATE_MAX, "{took:?} of {wait:?}");
        match *error.kind() {
            ErrorKind::Timeout { waited } => assert!(waited <= took),
            _ => panic!("{error}"),
        }
        assert!(error.is_timeout() && error.node().is_none());
    }
    // A condition that already holds needs no time, even after the deadline.
    let value = endpoint.block_on(endpoint.wait_until(farfield_fabric::Instant::default(), || Some(3)));
    assert_eq!(value.unwrap(), 3);
    endpoint.set_timeout(Duration::from_millis(30));
    let start = endpoint.now();
    refused(endpoint.block_on(endpoint.wait_until(endpoint.deadline(), || None::<()>)));
    assert!(endpoint.now() - start >= Duration::from_millis(30));
}

/// The same for a wait for a remote word.
pub(crate) fn a_remote_wait_ends_at_its_deadline(harness: &Harness) {
    let nodes = harness.session(2);
    let (endpoint, region) = (nodes[0].endpoint(), nodes[1].region(8));
    let (start, wait) = (endpoint.now(), Duration::from_millis(50));
    let never = endpoint.wait_remote(region.remote(0), 0, endpoint.now() + wait);
    let error = refused(endpoint.block_on(never));
    let took = endpoint.now() - start;
    assert!(error.is_timeout() && took >= wait && took < wait + LATE_MAX, "{error} {took:?}");
}

/// How long a waiting thread needs to notice a value of a word of its own node, after the start of `wake`.
fn latency(
    (sleeper, waker): (&Node, &Node),
    is_there: impl Fn() -> bool + Sync,
    wake: impl Fn(&Endpoint) + Sync,
) -> Duration {
    let sleep = || {
        let endpoint = sleeper.endpoint();
        let came = || is_there().then(|| endpoint.now());
        endpoint.block_on(endpoint.wait_until(endpoint.deadline(), came)).unwrap()
    };
    let send = || {
        rest(Duration::from_millis(50));
        let endpoint = waker.endpoint();
        let sent = endpoint.now();
        wake(&endpoint);
        sent
    };
    let [came, sent] = threads([(sleeper, &sleep), (waker, &send)]);
    came - sent
}

/// A put of another node wakes a thread that has waited so long that it sleeps.
pub(crate) fn a_sleeper_is_woken_by_a_put(harness: &Harness) {
    let nodes = harness.session(2);
    let region = nodes[1].signals(8);
    let wake = |value: u64| {
        let pair = (&nodes[1], &nodes[(value % 2) as usize]);
        latency(pair, || region.word(0).load() == value, |endpoint| drop(endpoint.put_value(region.remote(0), value)))
    };
    let latencies: Vec<_> = (1..=10).map(wake).collect();
    let best = latencies.iter().min().unwrap();
    assert!(*best < Duration::from_millis(100), "{latencies:?}");
}

/// A local store wakes it, too: if its writer calls `wake_local`, and soon even if not.
pub(crate) fn a_sleeper_is_woken_by_a_local_store(harness: &Harness) {
    let nodes = harness.session(1);
    let region = nodes[0].signals(8);
    let wake = |value: u64| {
        let store = |endpoint: &Endpoint| {
            region.word(0).store(value);
            if value.is_multiple_of(2) {
                endpoint.wake_local();
            }
        };
        latency((&nodes[0], &nodes[0]), || region.word(0).load() == value, store)
    };
    let latencies: Vec<_> = (1..=6).map(wake).collect();
    assert!(*latencies.iter().min().unwrap() < Duration::from_millis(100), "{latencies:?}");
}

/// A wait for a remote word ends when the word changes, and returns the value.
pub(crate) fn a_remote_word_is_waited_for(harness: &Harness) {
    let nodes = harness.session(2);
    let region = nodes[1].region(8);
    let store = || {
        for value in 1..=20 {
            rest(Duration::from_millis(2));
            region.word(0).store(value);
        }
    };
    let wait = || {
        let endpoint = nodes[0].endpoint();
        let (mut seen, deadline) = (0, endpoint.deadline());
        while seen < 20 {
            let next = endpoint.block_on(endpoint.wait_remote(region.remote(0), seen, endpoint.deadline())).unwrap();
            assert!(next > seen);
            seen = next;
        }
        assert!(endpoint.now() < deadline, "the change ends the wait, not its deadline");
    };
    threads([(&nodes[1], &store), (&nodes[0], &wait)]);
}
