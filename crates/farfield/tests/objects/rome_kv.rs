//! The store over partitions: calls of all nodes on all keys are linearizable, and scans at one instant see all
//! partitions at once.

use std::pin::pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use farfield::history::kv::{KvHistory, KvInput, KvOutput};
use farfield::history::{Budget, Event};
use farfield::{RomeKv, RomeKvOptions, RomeKvUpdate};

use crate::harness::{Rng, Scene, everywhere, poll_times};

const KEYS: u64 = 24;

fn options(scene: &Scene, boundaries: &[u64]) -> RomeKvOptions<u64> {
    let mut options = RomeKvOptions::new(boundaries);
    (options.tree.pairs, options.tree.records, options.tree.blocks) = (4, 2, 80 + 8 * scene.threads);
    options.window = 2;
    options
}

fn calls_are_linearizable(scene: &Scene) {
    let stores = scene.open(|node| RomeKv::<u64, u64>::open(node, "store", options(scene, &[6, 12, 18])));
    let clock = AtomicU64::new(0);
    let tick = || clock.fetch_add(1, Ordering::SeqCst);
    let history = Mutex::new(KvHistory::new());
    let calls = scene.rounds(100, 1500) / scene.threads;
    scene.run(|node, number, ep| {
        let mut rng = Rng::new(number as u64);
        let mut thread = stores[node].thread().unwrap();
        let (mut seen, client) = (KvHistory::new(), number as u32);
        let mut record = |key: u64, called: u64, returned: u64, input: KvInput, output: KvOutput| {
            seen.record(key, Event::returned(client, called, returned, input, output));
        };
        let found = |value: Option<u64>| KvOutput::Found(value);
        for call in 1..=calls as u64 {
            let (from, to) = (rng.next() % KEYS, rng.next() % KEYS);
            let written = u64::from(client) << 32 | call;
            let (kind, called) = (rng.next() % 10, tick());
            if call % 32 == 16 {
                // Its partition is moved to this node, while the others go on.
                ep.block_on(thread.take_partition(ep, (from / 6) as usize)).unwrap();
            }
            match kind {
                0 => {
                    let value = ep.block_on(thread.get(ep, &from)).unwrap();
                    record(from, called, tick(), KvInput::Get, found(value));
                }
                1 => {
                    let keys = [from, to, (from + to) % KEYS];
                    let values = ep.block_on(thread.multi_get(ep, &keys)).unwrap();
                    let returned = tick();
                    for (key, value) in keys.into_iter().zip(values) {
                        record(key, called, returned, KvInput::Get, found(value));
                    }
                }
                2 => {
                    // Dropped in the middle: with an announcement, or with closed gates.
                    let dropped = rng.next() as usize % 4;
                    drop(poll_times(pin!(thread.scan_at_one_instant(ep, ..)), dropped).map(|scan| scan.map(drop)));
                }
                3..6 => {
                    let range = from..to.max(from);
                    let pairs = ep.block_on(async {
                        match kind {
                            3 => thread.range(ep, range, 99).await,
                            4 => thread.scan_at_one_instant(ep, range).await?.collect(ep, 99).await,
                            _ => {
                                let mut pairs =
                                    thread.scan_back_at_one_instant(ep, range).await?.collect(ep, 99).await?;
                                pairs.reverse();
                                Ok(pairs)
                            }
                        }
                    });
                    let (pairs, returned) = (pairs.unwrap(), tick());
                    assert!(pairs.is_sorted_by(|one, next| one.0 < next.0), "{pairs:?}");
                    for key in from..to {
                        let value = pairs.iter().find(|pair| pair.0 == key).map(|pair| pair.1);
                        record(key, called, returned, KvInput::Get, found(value));
                    }
                }
                6 => {
                    let updates =
                        [from, (from + 6) % KEYS, (from + 12) % KEYS].map(|key| RomeKvUpdate::Put(key, written));
                    let results = ep.block_on(thread.apply(ep, &updates));
                    let returned = tick();
                    for (update, result) in updates.iter().zip(results) {
                        result.unwrap();
                        record(*update.key(), called, returned, KvInput::Upsert(written), KvOutput::Stored);
                    }
                }
                7 => {
                    let inserted = ep.block_on(thread.insert(ep, from, written)).unwrap();
                    record(from, called, tick(), KvInput::Insert(written), KvOutput::Succeeded(inserted));
                }
                8 => {
                    ep.block_on(thread.put(ep, from, written)).unwrap();
                    record(from, called, tick(), KvInput::Upsert(written), KvOutput::Stored);
                }
                _ => {
                    let deleted = ep.block_on(thread.delete(ep, &from)).unwrap().is_some();
                    record(from, called, tick(), KvInput::Delete, KvOutput::Succeeded(deleted));
                }
            }
        }
        history.lock().unwrap().merge(seen);
    });
    let checked = history.into_inner().unwrap().check_each_key(Budget::default());
    checked.unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn calls_of_a_store_over_partitions_are_linearizable() {
    everywhere("a store over partitions", 3, calls_are_linearizable);
}

/// Each thread writes its key of each partition, one after the other, with the same count. So at each instant no key
/// has a higher count than the one before it, and the last one's is behind by one at most.
fn scans_are_of_one_instant(scene: &Scene) {
    let stores = scene.open(|node| RomeKv::<u64, u64>::open(node, "counts", options(scene, &[1000, 2000])));
    let rounds = scene.rounds(30, 300) / scene.threads;
    scene.run(|node, number, ep| {
        let mut thread = stores[node].thread().unwrap();
        let own = number as u64;
        for round in 1..=rounds as u64 {
            for partition in 0..3 {
                ep.block_on(thread.put(ep, 1000 * partition + own, round)).unwrap();
            }
            let is_back = round % 2 == 1;
            let pairs = ep.block_on(async {
                let scan = if is_back {
                    thread.scan_back_at_one_instant(ep, ..).await?
                } else {
                    thread.scan_at_one_instant(ep, ..).await?
                };
                scan.collect(ep, usize::MAX).await
            });
            let pairs: std::collections::BTreeMap<u64, u64> = pairs.unwrap().into_iter().collect();
            for writer in 0..scene.all_threads() as u64 {
                let count = |partition: u64| pairs.get(&(1000 * partition + writer)).copied().unwrap_or(0);
                let counts = [0, 1, 2].map(count);
                assert!(counts.is_sorted_by(|one, next| one >= next) && counts[0] <= counts[2] + 1, "{counts:?}");
                assert!(writer != own || counts == [round; 3], "{counts:?} after {round}");
            }
        }
    });
}

#[test]
fn scans_of_several_partitions_are_of_one_instant() {
    everywhere("scans of several partitions at one instant", 3, scans_are_of_one_instant);
}
