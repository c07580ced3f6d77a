//! Operations of the key-value store are dropped at any of their awaits. The key stays usable, all nodes agree on it,
//! and no slot is lost.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;

use farfield::{Endpoint, KvOptions, KvStore, Node, Placement, Result, fabric, local_session_with, on_each};

type Store = KvStore<u64, u64>;

const SLOTS: usize = 4;

/// Polls a future up to `polls` times and drops it. Returns whether it had completed.
fn poll_and_drop<T>(polls: usize, future: impl Future<Output = Result<T>>) -> bool {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    (0..polls).any(|_| future.as_mut().poll(&mut context).is_ready())
}

fn sessions() -> Vec<(String, Vec<Node>)> {
    let strong = local_session_with(3, |builder| builder).expect("nodes start");
    let weak = local_session_with(3, |builder| builder.decorate(|inner| fabric::weak::weaken(inner, 11)));
    vec![("shm".into(), strong), ("weak".into(), weak.expect("nodes start"))]
}

fn open(nodes: &[Node], placement: Placement) -> Vec<Store> {
    let options = KvOptions { slots_per_node: SLOTS * 3, locks: 8, placement, ..KvOptions::default() };
    on_each(nodes, |node| Store::open(node, &format!("kv/{placement:?}"), options.clone())).expect("they open it")
}

/// The value of a key as all nodes see it; they must agree.
fn agreed(stores: &[Store], endpoints: &[Endpoint], key: u64) -> Option<u64> {
    let seen: Vec<_> =
        stores.iter().zip(endpoints).map(|(kv, ep)| ep.block_on(kv.get(ep, &key)).expect("a get")).collect();
    assert!(seen.windows(2).all(|pair| pair[0] == pair[1]), "key {key}: {seen:?}");
    seen[0]
}

#[test]
fn an_operation_dropped_at_any_await_leaves_the_key_usable_everywhere() {
    for (name, nodes) in sessions() {
        for placement in [Placement::Inserter, Placement::Hash] {
            let stores = open(&nodes, placement);
            let endpoints: Vec<_> = nodes.iter().map(|node| node.endpoint().expect("an endpoint")).collect();
            let (kv, ep) = (&stores[0], &endpoints[0]);
            // More polls than any operation needs, and far more rounds than there are slots.
            for polls in 0..60 {
                let (key, old, new) = (polls as u64 % 5, polls as u64 * 2, polls as u64 * 2 + 1);
                poll_and_drop(polls, kv.insert(ep, &key, &old));
                // The lock is free again once the interrupted operation has been undone, if not before.
                ep.block_on(kv.upsert(ep, &key, &old)).unwrap_or_else(|error| panic!("{name} {polls}: {error}"));
                assert_eq!(agreed(&stores, &endpoints, key), Some(old), "{name} {polls}");

                poll_and_drop(polls, kv.update(ep, &key, &new));
                let other = &stores[1];
                let found = endpoints[1].block_on(other.modify(&endpoints[1], &key, |found| found.copied()));
                let found = found.expect("a modify").expect("it is there");
                assert!(found == old || found == new, "{name} {polls}: {found}");

                poll_and_drop(polls, kv.delete(ep, &key));
                // Deleted by this call or before: in either case the key is absent.
                ep.block_on(kv.delete(ep, &key)).unwrap_or_else(|error| panic!("{name} {polls}: {error}"));
                assert_eq!(agreed(&stores, &endpoints, key), None, "{name} {polls}");
            }
            // No slot was lost: this node still has its whole share.
            let deadline = ep.now() + Duration::from_secs(20);
            for key in 100..100 + SLOTS as u64 {
                loop {
                    match ep.block_on(kv.insert(ep, &key, &key)) {
                        Ok(inserted) => break assert!(inserted),
                        // The slots that other nodes free for this one return a moment later.
                        Err(error) => assert!(ep.now() < deadline, "{name}: {error}"),
                    }
                }
            }
            let keys = stores.iter().map(Store::len).collect::<Vec<_>>();
            assert_eq!(keys, [SLOTS; 3], "{name}: every index has the same keys");
            drop(stores);
        }
        drop(nodes);
    }
}
