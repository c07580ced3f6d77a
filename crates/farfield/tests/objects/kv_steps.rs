//! Key-value stores against a map, one operation after the other, and waits for their changes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use farfield::{ByteString, Endpoint, Key, KvStore, Placement, Value};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::harness::{SHORT, SOON, Scene, beside, fabrics, mix, on_each_fabric, session};
use crate::kv::{is_full, small};

/// An operation of a sequential history: its node, kind, key and value.
#[derive(Clone, Debug)]
struct Step {
    node: usize,
    what: u8,
    key: usize,
    value: u64,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = (0..3usize, 0..12u8, 0..12usize, any::<u64>());
    proptest::collection::vec(step.prop_map(|(node, what, key, value)| Step { node, what, key, value }), 1..80)
}

/// Runs steps against a map. A store with few slots may be full where the map is not: then nothing changes.
async fn agrees<K: Key + std::fmt::Debug + Ord, V: Value + std::fmt::Debug + PartialEq>(
    kvs: &[KvStore<K, V>],
    endpoints: &[Endpoint],
    steps: &[Step],
    key_of: impl Fn(usize) -> K,
    value_of: impl Fn(u64) -> V,
) -> Result<usize, TestCaseError> {
    let mut map: BTreeMap<K, V> = BTreeMap::new();
    let mut full = 0;
    for (at, step) in steps.iter().enumerate() {
        let (kv, endpoint) = (&kvs[step.node], &endpoints[step.node]);
        let (key, value) = (key_of(step.key), value_of(if step.what < 3 { step.value % 4 } else { step.value }));
        let there = map.contains_key(&key);
        match step.what {
            0 => prop_assert_eq!(kv.get(endpoint, &key).await.unwrap(), map.get(&key).cloned(), "get, step {}", at),
            1 | 2 => match kv.insert(endpoint, &key, &value).await {
                Ok(inserted) => {
                    prop_assert_eq!(inserted, !there, "insert, step {}", at);
                    map.entry(key).or_insert(value);
                }
                Err(error) => {
                    prop_assert!(is_full(&error) && !there, "insert, step {}: {}", at, error);
                    full += 1;
                }
            },
            3 => {
                prop_assert_eq!(kv.update(endpoint, &key, &value).await.unwrap(), there, "update, step {}", at);
                map.entry(key).and_modify(|old| *old = value);
            }
            4 => match kv.upsert(endpoint, &key, &value).await {
                Ok(()) => _ = map.insert(key, value),
                Err(error) => {
                    prop_assert!(is_full(&error) && !there, "upsert, step {}: {}", at, error);
                    full += 1;
                }
            },
            5 => {
                prop_assert_eq!(kv.delete(endpoint, &key).await.unwrap(), there, "delete, step {}", at);
                map.remove(&key);
            }
            6 => {
                let writes = step.value % 3 > 0;
                let modified = kv.modify(endpoint, &key, |_| writes.then(|| value.clone())).await;
                match modified {
                    Ok(before) => {
                        prop_assert_eq!(before, map.get(&key).cloned(), "modify, step {}", at);
                        if writes {
                            map.insert(key, value);
                        }
                    }
                    Err(error) => {
                        prop_assert!(is_full(&error) && !there && writes, "modify, step {}: {}", at, error);
                        full += 1;
                    }
                }
            }
            7 => {
                let expected = value_of(step.value % 4);
                let passes = map.get(&key) == Some(&expected);
                let updated = kv.update_if(endpoint, &key, |old| *old == expected, &value).await.unwrap();
                prop_assert_eq!(updated, passes, "update_if, step {}", at);
                if passes {
                    map.insert(key, value);
                }
            }
            9 => {
                let expected = value_of(step.value % 4);
                let passes = map.get(&key) == Some(&expected);
                let deleted = kv.delete_if(endpoint, &key, |old| *old == expected).await.unwrap();
                prop_assert_eq!(deleted, passes, "delete_if, step {}", at);
                if passes {
                    map.remove(&key);
                }
            }
            10 => {
                let keys: Vec<K> = (0..step.key).map(|key| key_of((key + at) % 12)).collect();
                let pairs: Vec<(K, V)> = keys.iter().cloned().zip((at as u64..).map(&value_of)).collect();
                match endpoint.block_on(kv.upsert_many(endpoint, &pairs)) {
                    Ok(()) => map.extend(pairs),
                    Err(error) => {
                        prop_assert!(is_full(&error), "upsert_many, step {}: {}", at, error);
                        full += 1;
                        // Those that found a slot are there. Of a key's values, the last was written.
                        for (key, value) in pairs.into_iter().collect::<BTreeMap<K, V>>() {
                            if kv.get(endpoint, &key).await.unwrap().as_ref() == Some(&value) {
                                map.insert(key, value);
                            } else {
                                prop_assert!(!map.contains_key(&key), "what is there is written, step {}", at);
                            }
                        }
                    }
                }
            }
            11 => {
                let keys: Vec<K> = (0..step.key).map(|key| key_of((key + at) % 12)).collect();
                let there = keys.iter().filter(|key| map.remove(*key).is_some()).count();
                let deleted = endpoint.block_on(kv.delete_many(endpoint, &keys));
                prop_assert_eq!(deleted.unwrap(), there, "delete_many, step {}", at);
            }
            8 => {
                let mut keys = kv.keys();
                keys.sort();
                prop_assert_eq!(keys, map.keys().cloned().collect::<Vec<K>>(), "keys, step {}", at);
                let pairs = kv.pairs(endpoint).await.unwrap().into_iter();
                let pairs: BTreeMap<K, V> = pairs.map(|(key, value)| (key, value.unwrap())).collect();
                prop_assert_eq!(&pairs, &map, "pairs, step {}", at);
            }
            _ => {
                let keys: Vec<K> = (0..step.key + 1).map(|key| key_of((key * 7 + at) % 12)).collect();
                let mut values = Vec::new();
                kv.get_many(endpoint, &keys, &mut values).await.unwrap();
                let values: Vec<_> = values.into_iter().map(Result::unwrap).collect();
                let expected: Vec<_> = keys.iter().map(|key| map.get(key).cloned()).collect();
                prop_assert_eq!(values, expected, "get_many, step {}", at);
            }
        }
        for kv in kvs {
            prop_assert_eq!(kv.len(), map.len(), "len, step {}", at);
            prop_assert_eq!(kv.is_empty(), map.is_empty());
        }
    }
    // The store is empty again: every slot returns to the node that hands it out.
    for (key, value) in map {
        prop_assert_eq!(kvs[0].get(&endpoints[0], &key).await.unwrap(), Some(value));
        prop_assert!(kvs[1].delete(&endpoints[1], &key).await.unwrap());
    }
    Ok(full)
}

fn agrees_with_a_map<K: Key + std::fmt::Debug + Ord, V: Value + std::fmt::Debug + PartialEq>(
    label: &str,
    key_of: fn(usize) -> K,
    value_of: fn(u64) -> V,
) {
    for over in fabrics(&[21, 22]) {
        for placement in [Placement::Inserter, Placement::Hash] {
            let _cores = beside(label);
            let scene = Scene { nodes: session(3, over), over, threads: 1 };
            let kvs = scene.open(|node| KvStore::<K, V>::open(node, "kv", small(placement)));
            let endpoints = [scene.endpoint(0), scene.endpoint(1), scene.endpoint(2)];
            // One store for all cases, so that later cases reuse its slots.
            let config = Config { cases: scene.rounds(12, 60) as u32, failure_persistence: None, ..Config::default() };
            let full = AtomicUsize::new(0);
            let ran = TestRunner::new(config).run(&steps(), |steps| {
                let ran = endpoints[0].block_on(agrees(&kvs, &endpoints, &steps, key_of, value_of));
                full.fetch_add(ran?, Ordering::Relaxed);
                Ok(())
            });
            ran.unwrap_or_else(|failure| panic!("{label} over {over:?}, {placement:?}: {failure}"));
            println!("{label} over {over:?}, {placement:?}: {full:?} times full");
        }
    }
}

#[test]
fn words_agree_with_a_map() {
    agrees_with_a_map::<u64, u64>("words", |key| mix(key as u64), |value| value);
}

#[test]
fn byte_strings_of_all_lengths_agree_with_a_map() {
    fn string(bits: u64, max: u64) -> ByteString {
        let len = bits % (max + 1);
        ByteString::from((0..len).map(|at| mix(bits + at / 8) as u8 ^ at as u8).collect::<Vec<u8>>())
    }
    agrees_with_a_map("byte strings", |key| string(mix(key as u64), 40), |value| string(value, 50));
}

/// Plain data of other sizes than a word.
#[test]
fn plain_data_of_any_size_agrees_with_a_map() {
    agrees_with_a_map::<[u8; 5], [u64; 7]>(
        "plain data",
        |key| [key as u8, 1, 2, 3, key as u8],
        |value| std::array::from_fn(|word| value.wrapping_mul(word as u64 + 1)),
    );
}

/// Each kind of change ends the waits of other nodes. Their own calls see it then.
#[test]
fn a_wait_ends_with_the_next_change_of_its_key() {
    on_each_fabric("waits for changes of a key", 2, |scene: &Scene| {
        let kvs = scene.open(|node| KvStore::<u64, u64>::open(node, "kv", small(Placement::Hash)));
        let writer = scene.endpoint(0);
        for key in 0..4 {
            std::thread::scope(|scope| {
                let (kv, waiter) = (&kvs[1], scene.endpoint(1));
                let (sees, seen) = std::sync::mpsc::channel();
                scope.spawn(move || {
                    let mut last = None;
                    for _ in 0..3 {
                        let deadline = waiter.now() + SOON;
                        last = waiter.block_on(kv.wait_change(&waiter, &key, last.as_ref(), deadline)).unwrap();
                        sees.send(last).unwrap();
                    }
                });
                // The next change follows when this one is seen: else the wait may miss it.
                assert!(kvs[0].insert_blocking(&writer, &key, &1).unwrap());
                assert_eq!(seen.recv(), Ok(Some(1)));
                assert!(kvs[0].update_blocking(&writer, &key, &2).unwrap());
                assert_eq!(seen.recv(), Ok(Some(2)));
                assert!(kvs[0].delete_blocking(&writer, &key).unwrap());
                assert_eq!(seen.recv(), Ok(None));
            });
        }
        let deadline = writer.now() + SHORT;
        let unchanged = writer.block_on(kvs[0].wait_change(&writer, &9, None, deadline));
        assert!(unchanged.is_err_and(|error| error.is_timeout()));
    });
}
