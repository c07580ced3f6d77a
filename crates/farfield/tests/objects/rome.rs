//! Objects and trees that are read by gets: the calls of the owner's threads and of readers are linearizable, with
//! nodes of a few pairs, hardly more memory than is in use, and reads that are dropped.

use std::pin::pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use farfield::history::kv::{KvHistory, KvInput, KvOutput};
use farfield::history::{Budget, Event};
use farfield::{ObjectOptions, RomeObject, RomeTree, TreeOptions};

use crate::harness::{Rng, Scene, everywhere, poll_times};

const KEYS: u64 = 24;

/// Threads of node 0 change the tree, and those of the others read it.
fn trees_are_linearizable(scene: &Scene) {
    for (round, (pairs, records, blocks)) in [(4, 2, 100), (3, 1, 400), (16, 8, 60)].into_iter().enumerate() {
        let blocks = blocks + 4 * scene.threads;
        let options = TreeOptions { pairs, records, blocks, ..TreeOptions::default() };
        let (path, owner) = (format!("tree-{round}"), scene.id(0));
        let trees = scene.open(|node| RomeTree::<u64, u64>::open(node, &path, owner, options));
        let clock = AtomicU64::new(0);
        let tick = || clock.fetch_add(1, Ordering::SeqCst);
        let history = Mutex::new(KvHistory::new());
        let calls = scene.rounds(200, 3000) / scene.threads;
        scene.run(|node, thread, ep| {
            let mut rng = Rng::new((round as u64) << 48 | (node as u64) << 32 | thread as u64);
            let mut seen = KvHistory::new();
            let client = thread as u32;
            let mut record = |key: u64, called: u64, returned: u64, input: KvInput, output: KvOutput| {
                seen.record(key, Event::returned(client, called, returned, input, output));
            };
            let found = |value: Option<u64>| KvOutput::Found(value);
            if node == 0 {
                let mut partition = trees[0].partition().unwrap();
                for call in 1..=calls as u64 {
                    let (key, written) = (rng.next() % KEYS, (thread as u64) << 32 | call);
                    let kind = rng.next() % 8;
                    let called = tick();
                    let (input, output) = match kind {
                        0..2 => (KvInput::Get, found(partition.get(&key))),
                        2..4 => {
                            let inserted = partition.insert(ep, key, written).unwrap();
                            (KvInput::Insert(written), KvOutput::Succeeded(inserted))
                        }
                        4 => {
                            partition.put(ep, key, written).unwrap();
                            (KvInput::Upsert(written), KvOutput::Stored)
                        }
                        _ => {
                            let deleted = partition.delete(ep, &key).unwrap().is_some();
                            (KvInput::Delete, KvOutput::Succeeded(deleted))
                        }
                    };
                    record(key, called, tick(), input, output);
                }
            } else {
                let mut reader = trees[node].reader().unwrap();
                for _ in 0..calls {
                    let (from, to) = (rng.next() % KEYS, rng.next() % KEYS);
                    let (kind, called) = (rng.next() % 5, tick());
                    match kind {
                        0 => {
                            let value = ep.block_on(reader.get(ep, &from)).unwrap();
                            record(from, called, tick(), KvInput::Get, found(value));
                        }
                        1 => {
                            let keys = [from, to, (from + to) % KEYS];
                            let values = ep.block_on(reader.multi_get(ep, &keys)).unwrap();
                            let returned = tick();
                            for (key, value) in keys.into_iter().zip(values) {
                                record(key, called, returned, KvInput::Get, found(value));
                            }
                        }
                        2 => {
                            // Dropped in the middle, and it has announced itself.
                            let read = pin!(reader.get(ep, &from));
                            drop(poll_times(read, rng.next() as usize % 4));
                        }
                        backward => {
                            let pairs = if backward == 3 {
                                let mut pairs = ep.block_on(reader.range_back(ep, from..to.max(from), 99)).unwrap();
                                pairs.reverse();
                                pairs
                            } else {
                                ep.block_on(reader.range(ep, from..to.max(from), 99)).unwrap()
                            };
                            let returned = tick();
                            assert!(pairs.is_sorted_by(|one, next| one.0 < next.0), "{pairs:?}");
                            for key in from..to {
                                let value = pairs.iter().find(|pair| pair.0 == key).map(|pair| pair.1);
                                record(key, called, returned, KvInput::Get, found(value));
                            }
                        }
                    }
                }
            }
            history.lock().unwrap().merge(seen);
        });
        let checked = history.into_inner().unwrap().check_each_key(Budget::default());
        checked.unwrap_or_else(|failure| panic!("nodes of {pairs} pairs: {failure}"));
    }
}

#[test]
fn trees_that_are_read_by_gets_are_linearizable() {
    everywhere("trees read by gets", 3, trees_are_linearizable);
}

/// Each key is written before the next one with the same value, so a scan never finds one that is later than the one
/// before it.
fn scans_are_of_one_moment(scene: &Scene) {
    let options = TreeOptions { pairs: 4, records: 2, blocks: 400, ..TreeOptions::default() };
    let owner = scene.id(0);
    let trees = scene.open(|node| RomeTree::<u64, u64>::open(node, "ordered", owner, options));
    let rounds = scene.rounds(20, 300);
    scene.run(|node, thread, ep| {
        let base = thread as u64 * 1000;
        if node == 0 {
            let mut partition = trees[0].partition().unwrap();
            for round in 1..=rounds as u64 {
                for key in 0..20 {
                    partition.put(ep, base + key, round).unwrap();
                }
            }
        } else {
            let mut reader = trees[node].reader().unwrap();
            for _ in 0..rounds {
                let pairs = ep.block_on(reader.range(ep, base..base + 20, 99)).unwrap();
                let mut pairs: Vec<u64> = pairs.into_iter().map(|pair| pair.1).collect();
                pairs.resize(20, 0);
                let (first, last) = (pairs[0], pairs[19]);
                assert!(pairs.is_sorted_by(|one, next| one >= next) && first - last <= 1, "{pairs:?}");
            }
        }
    });
}

#[test]
fn scans_by_gets_are_of_one_moment() {
    everywhere("scans by gets", 3, scans_are_of_one_moment);
}

/// All words of the value are equal at each moment.
fn objects_are_whole(scene: &Scene) {
    let options = ObjectOptions { bytes: 200, log_bytes: 500, blocks: 2 + scene.threads, ..ObjectOptions::default() };
    let owner = scene.id(0);
    let objects = scene.open(|node| RomeObject::open(node, "object", owner, options));
    let rounds = scene.rounds(200, 2000);
    scene.run(|node, thread, ep| {
        let mut value = Vec::new();
        if node == 0 {
            let mut writer = objects[0].writer().unwrap();
            for round in 0..rounds as u64 {
                let word = ((thread as u64) << 32 | round).to_le_bytes();
                writer.write(ep, &word.repeat(25)).unwrap();
                writer.read(&mut value);
                assert!(value.chunks(8).all(|word| word == &value[..8]), "{value:?}");
            }
        } else {
            let mut reader = objects[node].reader().unwrap();
            for _ in 0..rounds {
                ep.block_on(reader.read(ep, &mut value)).unwrap();
                assert!(value.chunks(8).all(|word| word == &value[..8]), "{value:?}");
            }
        }
    });
}

#[test]
fn objects_that_are_read_by_gets_are_whole() {
    everywhere("objects read by gets", 3, objects_are_whole);
}
