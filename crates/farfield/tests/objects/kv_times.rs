//! Keys of a store that stay for a time, by real clocks.

use std::time::{Duration, Instant};

use farfield::{KvOptions, KvStore, Node, Placement};

use crate::harness::{Rng, SOON, Scene, eventually, on_each_fabric};
use crate::kv::is_full;

const MS: Duration = Duration::from_millis(1);

fn options(placement: Placement) -> KvOptions {
    KvOptions { slots_per_node: 30, locks: 5, placement, ..KvOptions::default() }
}

/// No key is missed before its time is up, whichever node looks, and all of them are gone soon after. An update leaves
/// the time as it is, a later time replaces it, and a delete ends it.
#[test]
fn keys_go_when_their_time_is_up_and_not_before() {
    on_each_fabric("times of keys", 3, |scene| {
        for placement in [Placement::Inserter, Placement::Hash] {
            let kvs =
                scene.open(|node| KvStore::<u64, u64>::open(node, &format!("kv/{placement:?}"), options(placement)));
            std::thread::scope(|scope| {
                for node in 0..3 {
                    let kvs = &kvs;
                    scope.spawn(move || times(scene, kvs, node));
                }
            });
            assert!(kvs.iter().all(KvStore::is_empty));
            // Every slot has come back, once.
            let ep = scene.endpoint(0);
            let (mut room, mut keys) = (0, 0..);
            let mut insert = || {
                let key = keys.next()?;
                match kvs[0].insert_blocking(&ep, &key, &key) {
                    Ok(_) => room += 1,
                    Err(error) => assert!(is_full(&error), "{error}"),
                }
                (room >= 30).then_some(())
            };
            eventually("all slots that node 0 hands out are free", &mut insert);
            (0..60).for_each(|_| _ = insert());
            assert_eq!(room, 30);
        }
    });
}

fn times(scene: &Scene, kvs: &[KvStore<u64, u64>], node: usize) {
    let (kv, ep, other, far) = (&kvs[node], scene.endpoint(node), &kvs[(node + 1) % 3], scene.endpoint((node + 1) % 3));
    let mut rng = Rng::new(node as u64);
    for round in 0..scene.rounds(3, 10) as u64 {
        // Each key with the moment before which it must be there: that of its last call, and its time.
        let mut keys = Vec::new();
        for key in (0..3).map(|key| node as u64 * 1000 + round * 10 + key) {
            let mut time = MS * rng.below(20) as u32;
            let mut begin = Instant::now();
            assert!(ep.block_on(kv.insert_for(&ep, &key, &0, time)).unwrap());
            let is_there = match rng.below(4) {
                0 => ep.block_on(kv.update(&ep, &key, &1)).unwrap(),
                1 => {
                    let (again, longer) = (Instant::now(), time + MS * 10);
                    let renewed = far.block_on(other.expire_after(&far, &key, longer)).unwrap();
                    if renewed {
                        (begin, time) = (again, longer);
                    }
                    renewed
                }
                2 => {
                    let again = Instant::now();
                    ep.block_on(kv.upsert_for(&ep, &key, &2, time)).unwrap();
                    begin = again;
                    true
                }
                _ => {
                    ep.block_on(kv.delete(&ep, &key)).unwrap();
                    ep.block_on(kv.insert(&ep, &key, &3)).unwrap();
                    time = Duration::MAX;
                    true
                }
            };
            assert!(is_there || begin.elapsed() >= time, "{key} is gone after {:?} of {time:?}", begin.elapsed());
            keys.push((key, begin, time));
        }
        for (key, begin, time) in keys {
            if time == Duration::MAX {
                std::thread::sleep((begin + MS * 25).saturating_duration_since(Instant::now()));
                assert_eq!(far.block_on(other.get(&far, &key)).unwrap(), Some(3));
                assert!(far.block_on(other.delete(&far, &key)).unwrap());
                continue;
            }
            while far.block_on(other.get(&far, &key)).unwrap().is_some() {
                assert!(begin.elapsed() < time + SOON, "{key} is there after {:?} of {time:?}", begin.elapsed());
                std::thread::yield_now();
            }
            assert!(begin.elapsed() >= time, "{key} is gone after {:?} of {time:?}", begin.elapsed());
            assert_eq!(ep.block_on(kv.get(&ep, &key)).unwrap(), None, "once one node misses it, all do");
        }
        let is_without = |kv: &KvStore<u64, u64>| kv.keys().iter().all(|key| key / 1000 != node as u64);
        eventually("no index has the keys", || kvs.iter().all(is_without).then_some(()));
    }
}

/// A store that is reopened has the rest of the times.
#[test]
fn a_reopened_store_keeps_the_times() {
    on_each_fabric("times of a reopened store", 2, |scene| {
        for placement in [Placement::Inserter, Placement::Hash] {
            let path = &format!("kv/{placement:?}");
            let olds = scene.open(|node| KvStore::<u64, u64>::open(node, path, options(placement)));
            let begin = Instant::now();
            for (node, old) in olds.iter().enumerate() {
                let ep = scene.endpoint(node);
                for key in (0..4).map(|key| 10 * node as u64 + key) {
                    let time = if key % 2 == 0 { MS * 300 } else { Duration::MAX };
                    assert!(ep.block_on(old.insert_for(&ep, &key, &key, time)).unwrap());
                }
            }
            let open = |node: &Node| {
                let old = &olds[node.id().index()];
                node.reopen(path, |again| {
                    KvStore::open_with_pairs_of(node, again.path(), options(placement), Some(old))
                })
            };
            let news = scene.open(open);
            drop(olds);
            let ep = scene.endpoint(1);
            for key in [0, 2, 10, 12] {
                let gone = ep.block_on(news[1].wait_change(&ep, &key, Some(&key), ep.now() + SOON)).unwrap();
                assert_eq!(gone, None);
                assert!(begin.elapsed() >= MS * 300);
                assert_eq!(ep.block_on(news[1].get(&ep, &(key + 1))).unwrap(), Some(key + 1));
            }
        }
    });
}
