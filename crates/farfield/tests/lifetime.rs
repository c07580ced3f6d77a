//! A node stays in its session because of its handles and its user's objects, not because of its service thread.

use std::time::{Duration, Instant};

use farfield::fabric::PeerState;
use farfield::{KvOptions, KvStore, Node, local_session, on_each};

fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(10), "{what}");
        std::thread::yield_now();
    }
}

#[test]
fn a_node_leaves_when_its_last_object_is_dropped_even_one_that_the_service_thread_works_for() {
    let mut nodes = local_session(2).expect("two nodes start");
    let options = KvOptions { slots_per_node: 16, ..KvOptions::default() };
    let stores = on_each(&nodes, |node| KvStore::<u64, u64>::open(node, "kv", options.clone())).expect("they open it");
    let other: Node = nodes.remove(0);
    let mut stores = stores.into_iter();
    let (kept, dropped) = (stores.next(), stores.next());
    let leaving = nodes[0].id();

    drop(nodes); // the store still keeps the node
    let endpoint = other.endpoint().expect("an endpoint");
    let kv = kept.as_ref().expect("a store");
    assert!(endpoint.block_on(kv.insert(&endpoint, &1, &2)).expect("all nodes acknowledge"));
    assert!(matches!(other.state_of(leaving), PeerState::Up { .. }));

    drop(dropped);
    until("the node leaves", || other.state_of(leaving) == PeerState::Left);
    // The remaining nodes are notified of changes. A key with its lock on the departed node returns an error.
    let inserted: Vec<_> = (2..10).map(|key| endpoint.block_on(kv.insert(&endpoint, &key, &key))).collect();
    assert!(inserted.iter().any(Result::is_ok), "{inserted:?}");
    for refused in inserted.iter().filter_map(|result| result.as_ref().err()) {
        assert!(refused.is_gone() && refused.node() == Some(leaving), "{refused}");
    }
    // All other operations continue.
    assert_eq!(endpoint.block_on(kv.get(&endpoint, &1)).expect("it lies here"), Some(2));
}

#[test]
fn metrics_keep_the_counts_of_endpoints_that_are_gone() {
    let node = local_session(1).expect("a node starts").remove(0);
    let memory = node.alloc(farfield::fabric::GroupKey::DATA, 8).expect("memory");
    let before = node.metrics();
    for _ in 0..3 {
        let endpoint = node.endpoint().expect("an endpoint");
        endpoint.put_value(memory.remote::<u64>(0), 1).wait().expect("it is there");
    }
    let after = node.metrics();
    assert_eq!(after.counts.puts - before.counts.puts, 3);
    assert_eq!(after.endpoints - before.endpoints, 3);
}
