//! Key-value stores: limits, and histories of concurrent operations.

use std::sync::Mutex as Log;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use farfield::fabric::NodeId;
use farfield::history::Event;
use farfield::history::kv::{KvHistory, KvInput, KvOutput};
use farfield::{ByteString, Endpoint, Error, ErrorKind, KvOptions, KvStore, Node, Placement};

use crate::harness::{
    Rng, Scene, SetsAtEnd, beside, eventually, everywhere, fabrics, mix, on_each_fabric, refused, session,
};

pub(super) fn is_full(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Full { .. })
}

pub(super) fn small(placement: Placement) -> KvOptions {
    KvOptions { slots_per_node: 6, key_bytes_max: 40, value_bytes_max: 50, locks: 4, placement, tracker_bytes: 1 << 10 }
}

// ---- one operation at a time -----------------------------------------------------------------------------------

/// A full store's error names the node that has no free slot. It takes a key again after a delete by any node.
#[test]
fn a_full_store_takes_a_key_again_after_a_delete() {
    on_each_fabric("full", 3, |scene| {
        let kvs = scene.open(|node| KvStore::<u64, u64>::open(node, "kv", small(Placement::Inserter)));
        let endpoints = [scene.endpoint(0), scene.endpoint(1), scene.endpoint(2)];
        endpoints[0].block_on(async {
            for key in 0..6 {
                assert!(kvs[1].insert(&endpoints[1], &key, &(key * 10)).await.unwrap());
            }
            for round in 0..scene.rounds(10, 100) as u64 {
                let error = refused(kvs[1].insert(&endpoints[1], &100, &1).await);
                assert_eq!(*error.kind(), ErrorKind::Full { node: scene.id(1), slots: 6 });
                assert_eq!((error.object(), error.node()), (Some("kv"), Some(scene.id(1))));
                refused(kvs[1].upsert(&endpoints[1], &100, &1).await);
                refused(kvs[1].modify(&endpoints[1], &100, |_| Some(1)).await);
                // The store is unchanged, and no lock is held.
                assert_eq!(kvs[2].get(&endpoints[2], &100).await.unwrap(), None);
                assert!(!kvs[2].update(&endpoints[2], &100, &2).await.unwrap());
                assert_eq!((kvs[0].len(), kvs[1].len(), kvs[2].len()), (6, 6, 6));
                // Another node has free slots.
                assert!(kvs[2].insert(&endpoints[2], &100, &3).await.unwrap());
                assert!(kvs[0].delete(&endpoints[0], &100).await.unwrap());

                let key = round % 6;
                let deleter = (round % 3) as usize;
                assert!(kvs[deleter].delete(&endpoints[deleter], &key).await.unwrap());
                // At once if node 1 deleted it; if another node did, once node 1 is notified.
                let again = || endpoints[1].block_on(kvs[1].insert(&endpoints[1], &key, &(key * 10)));
                let inserted = eventually("a free slot", || match again() {
                    Err(error) if is_full(&error) && deleter != 1 => None,
                    other => Some(other.unwrap()),
                });
                assert!(inserted);
                for key in 0..6 {
                    assert_eq!(kvs[0].get(&endpoints[0], &key).await.unwrap(), Some(key * 10));
                }
            }
        });
    });
}

/// Values that are too long are refused and change nothing, and so are invalid options.
#[test]
fn keys_and_values_too_long_are_refused_and_change_nothing() {
    on_each_fabric("too large", 2, |scene| {
        let kvs = scene.open(|node| KvStore::<ByteString, ByteString>::open(node, "kv", small(Placement::Hash)));
        let endpoint = scene.endpoint(0);
        let of = |len: usize| ByteString::from(vec![7; len]);
        endpoint.block_on(async {
            let kv = &kvs[0];
            assert!(kv.insert(&endpoint, &of(40), &of(50)).await.unwrap());
            let posted = endpoint.counts().posted();
            for error in [
                refused(kv.insert(&endpoint, &of(41), &of(1)).await),
                refused(kv.upsert(&endpoint, &of(41), &of(1)).await),
                refused(kv.update(&endpoint, &of(41), &of(1)).await),
                refused(kv.delete(&endpoint, &of(41)).await),
                refused(kv.modify(&endpoint, &of(41), |_| Some(of(1))).await),
            ] {
                assert_eq!(*error.kind(), ErrorKind::TooLarge { bytes: 41, max_bytes: 40 });
                assert_eq!(error.object(), Some("kv"));
            }
            assert_eq!(endpoint.counts().posted(), posted, "it is known without asking anybody");
            for error in [
                refused(kv.insert(&endpoint, &of(1), &of(51)).await),
                refused(kv.upsert(&endpoint, &of(40), &of(51)).await),
                refused(kv.update(&endpoint, &of(40), &of(51)).await),
                refused(kv.modify(&endpoint, &of(40), |_| Some(of(51))).await),
            ] {
                assert_eq!(*error.kind(), ErrorKind::TooLarge { bytes: 51, max_bytes: 50 });
            }
            assert_eq!(kv.get(&endpoint, &of(40)).await.unwrap(), Some(of(50)));
            assert_eq!(kv.get(&endpoint, &of(1)).await.unwrap(), None);
            assert_eq!(kv.get(&endpoint, &of(41)).await.unwrap(), None);
            assert_eq!(kv.len(), 1);
            assert!(kv.delete(&endpoint, &of(40)).await.unwrap(), "no lock is held");
        });
        for options in [
            KvOptions { slots_per_node: 0, ..KvOptions::default() },
            KvOptions { locks: 0, ..KvOptions::default() },
            KvOptions { tracker_bytes: 80, ..KvOptions::default() },
        ] {
            let error = refused(KvStore::<ByteString, u64>::open(&scene.nodes[0], "other", options));
            assert!(matches!(error.kind(), ErrorKind::Config { .. }), "{error:?}");
        }
    });
}

/// The shortest tracker that holds the longest key is enough, even if many operations wait for space in it.
#[test]
fn a_tracker_of_one_message_is_enough() {
    everywhere("a short tracker", 2, |scene| {
        let options = KvOptions { tracker_bytes: 72, ..small(Placement::Inserter) };
        let kvs = scene.open(|node| KvStore::<ByteString, u64>::open(node, "kv", options.clone()));
        let rounds = scene.rounds(4, 40);
        scene.run(|node, thread, endpoint| {
            // The key fills the ring exactly.
            let key = ByteString::from(vec![thread as u8; 40]);
            for round in 0..rounds {
                endpoint.block_on(async {
                    match kvs[node].insert(endpoint, &key, &(round as u64)).await {
                        Ok(inserted) => {
                            assert!(inserted);
                            assert!(kvs[node].delete(endpoint, &key).await.unwrap());
                        }
                        Err(error) => assert!(is_full(&error), "{error:?}"),
                    }
                });
            }
        });
        assert_eq!((kvs[0].len(), kvs[1].len()), (0, 0));
    });
}

// ---- many operations at once ----------------------------------------------------------------------------------

/// The operations of all threads on a few keys, as histories.
struct Traffic<'a> {
    kvs: &'a [KvStore<u64, u64>],
    nodes: &'a [Node],
    keys: u64,
    next_value: AtomicU64,
    history: Log<KvHistory>,
    full: AtomicUsize,
}

impl Traffic<'_> {
    async fn operation(&self, node: usize, client: u32, endpoint: &Endpoint, choice: u64) {
        let (kv, clock) = (&self.kvs[node], || self.nodes[node].now().ns);
        let key = choice % self.keys;
        let value = self.next_value.fetch_add(1, Ordering::Relaxed);
        let call_ns = clock();
        let (input, output) = match choice >> 32 & 15 {
            0..5 => {
                let found = kv.get(endpoint, &key).await.unwrap();
                (KvInput::Get, Some(KvOutput::Found(found)))
            }
            5 => {
                let keys: Vec<u64> = (0..self.keys).collect();
                let mut found = Vec::new();
                kv.get_many(endpoint, &keys, &mut found).await.unwrap();
                let return_ns = clock();
                let mut history = self.history.lock().unwrap();
                for (key, found) in keys.into_iter().zip(found) {
                    let output = KvOutput::Found(found.unwrap());
                    history.record(key, Event::returned(client, call_ns, return_ns, KvInput::Get, output));
                }
                return;
            }
            6 | 7 => {
                let inserted = kv.insert(endpoint, &key, &value).await;
                (KvInput::Insert(value), self.unless_full(inserted).map(KvOutput::Succeeded))
            }
            8 | 9 => {
                let updated = kv.update(endpoint, &key, &value).await.unwrap();
                (KvInput::Update(value), Some(KvOutput::Succeeded(updated)))
            }
            10 | 11 => {
                let stored = kv.upsert(endpoint, &key, &value).await;
                (KvInput::Upsert(value), self.unless_full(stored).map(|()| KvOutput::Stored))
            }
            12 => {
                // A read and a write at one moment: an insert if the key is absent, and an update if it is present.
                let mut before = None;
                let modified = kv.modify(endpoint, &key, |old| {
                    before = Some(old.copied());
                    Some(value)
                });
                let Some(seen) = self.unless_full(modified.await) else { return };
                assert_eq!(before, Some(seen));
                let input = if seen.is_some() { KvInput::Update(value) } else { KvInput::Insert(value) };
                (input, Some(KvOutput::Succeeded(true)))
            }
            _ => {
                let deleted = kv.delete(endpoint, &key).await.unwrap();
                (KvInput::Delete, Some(KvOutput::Succeeded(deleted)))
            }
        };
        // An operation that found the store full has changed nothing.
        let Some(output) = output else { return };
        let event = Event::returned(client, call_ns, clock(), input, output);
        self.history.lock().unwrap().record(key, event);
    }

    fn unless_full<T>(&self, result: farfield::Result<T>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                assert!(is_full(&error), "{error:?}");
                self.full.fetch_add(1, Ordering::Relaxed);
                None
            }
        }
    }
}

fn histories_are_linearizable(scene: &Scene, options: &KvOptions, keys: u64, operations: usize) {
    let kvs = scene.open(|node| KvStore::<u64, u64>::open(node, "kv", options.clone()));
    let traffic = Traffic {
        kvs: &kvs,
        nodes: &scene.nodes,
        keys,
        next_value: AtomicU64::new(1),
        history: Log::default(),
        full: AtomicUsize::new(0),
    };
    scene.run(|node, thread, endpoint| {
        let mut rng = Rng::new(thread as u64 + 1);
        let traffic = &traffic;
        let futures = (0..operations).map(|_| traffic.operation(node, thread as u32, endpoint, rng.next()));
        endpoint.run_window(8, futures, |()| ());
    });
    let report = match traffic.history.into_inner().unwrap().check_each_key(Default::default()) {
        Ok(report) => report,
        Err(failure) => panic!("{failure}"),
    };
    let share = report.overlapping * 100 / report.operations.max(1);
    println!("{} operations, {share} % overlapping, {:?} times full", report.operations, traffic.full);
    // In a short history, operations may not overlap at all.
    assert!(share >= 10 || report.operations < 100, "too few operations meet: {report}");
    let len = kvs[0].len();
    for kv in &kvs {
        assert_eq!(kv.len(), len, "all indexes agree when nothing is under way");
        assert!(len <= keys as usize);
    }
    // Every key in the index has a value.
    let endpoint = scene.endpoint(1);
    let mut values = Vec::new();
    endpoint.block_on(kvs[1].get_many(&endpoint, &(0..keys).collect::<Vec<_>>(), &mut values)).unwrap();
    assert_eq!(values.into_iter().filter_map(Result::unwrap).count(), len);
}

#[test]
fn histories_of_hot_keys_are_linearizable() {
    everywhere("hot keys", 3, |scene| {
        let options = KvOptions { slots_per_node: 64, locks: 8, ..KvOptions::default() };
        histories_are_linearizable(scene, &options, 5, scene.rounds(66, 3000) / scene.threads);
    });
}

#[test]
fn histories_with_values_placed_by_hash_are_linearizable() {
    everywhere("by hash", 3, |scene| {
        let options = KvOptions { slots_per_node: 64, locks: 3, placement: Placement::Hash, ..KvOptions::default() };
        histories_are_linearizable(scene, &options, 5, scene.rounds(66, 3000) / scene.threads);
    });
}

/// With hardly more slots than keys, each slot soon belongs to another key.
#[test]
fn histories_are_linearizable_when_slots_are_used_again_at_once() {
    everywhere("slot reuse, inserter", 3, |scene| reuse(scene, Placement::Inserter));
    everywhere("slot reuse, hash", 3, |scene| reuse(scene, Placement::Hash));
}

fn reuse(scene: &Scene, placement: Placement) {
    let options = KvOptions { slots_per_node: 3, locks: 2, placement, ..KvOptions::default() };
    histories_are_linearizable(scene, &options, 5, scene.rounds(46, 2250) / scene.threads);
}

/// Once one node has missed a key during its deletion, no other node finds it any more, even if its value is elsewhere
/// and the notice is late.
#[test]
fn a_miss_is_not_followed_by_a_hit_elsewhere() {
    on_each_fabric("miss, then hit", 3, |scene| {
        let kvs = scene.open(|node| KvStore::<u64, u64>::open(node, "kv", small(Placement::Inserter)));
        let (rounds, missed, over) = (scene.rounds(40, 75) as u64, AtomicU64::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let (kvs, missed, over) = (&kvs, &missed, &over);
            // Node 1 stores the value, node 0 deletes it, and another thread of node 0 misses it.
            let ends = [scene.endpoint(0), scene.endpoint(1), scene.endpoint(0), scene.endpoint(2)];
            let [deletes, inserts, misses, finds] = ends;
            scope.spawn(move || {
                let _at_end = SetsAtEnd(over);
                for round in 1..=rounds {
                    assert!(inserts.block_on(kvs[1].insert(&inserts, &1, &round)).unwrap());
                    assert!(deletes_on(&kvs[0], &deletes));
                }
            });
            scope.spawn(move || {
                let mut last = 0;
                while !over.load(Ordering::SeqCst) {
                    match misses.block_on(kvs[0].get(&misses, &1)).unwrap() {
                        // The last value seen is deleted for good.
                        None => _ = missed.fetch_max(last, Ordering::SeqCst),
                        Some(round) => last = round,
                    }
                }
            });
            scope.spawn(move || {
                while !over.load(Ordering::SeqCst) {
                    let gone = missed.load(Ordering::SeqCst);
                    if let Some(found) = finds.block_on(kvs[2].get(&finds, &1)).unwrap() {
                        assert!(found > gone, "{found} was found after {gone} had been missed");
                    }
                }
            });
        });
    });
}

fn deletes_on(kv: &KvStore<u64, u64>, endpoint: &Endpoint) -> bool {
    endpoint.block_on(kv.delete(endpoint, &1)).unwrap()
}

/// Large values are overwritten repeatedly while they are read. Each read is whole, and never older than the one
/// before.
#[test]
fn large_values_are_never_seen_torn() {
    everywhere("large values", 3, |scene| {
        const BYTES: usize = 2000;
        let options = KvOptions { slots_per_node: 8, value_bytes_max: BYTES, locks: 4, ..KvOptions::default() };
        let kvs = scene.open(|node| KvStore::<u64, ByteString>::open(node, "kv", options.clone()));
        let value = |number: u64| {
            let len = 8 + mix(number) as usize % (BYTES - 8);
            let mut bytes: Vec<u8> = (0..len).map(|at| mix(number ^ at as u64 >> 3 << 20) as u8).collect();
            bytes[..8].copy_from_slice(&number.to_le_bytes());
            ByteString::from(bytes)
        };
        let number_of = |bytes: &ByteString| u64::from_le_bytes(bytes.as_ref()[..8].try_into().unwrap());
        let endpoint = scene.endpoint(1);
        for key in 0..3 {
            assert!(endpoint.block_on(kvs[1].insert(&endpoint, &key, &value(1))).unwrap());
        }
        let rounds = scene.rounds(130, 1500) as u64;
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let at_end = SetsAtEnd(&over);
            let mut readers = Vec::new();
            for reader in 0..scene.all_threads() {
                let (kv, endpoint, over) = (&kvs[reader % 3], scene.endpoint(reader % 3), &over);
                readers.push(scope.spawn(move || {
                    let mut last = [0; 3];
                    let mut values = Vec::new();
                    let mut reads = 0usize;
                    while !over.load(Ordering::SeqCst) {
                        if reads.is_multiple_of(2) {
                            endpoint.block_on(kv.get_many(&endpoint, &[0, 1, 2], &mut values)).unwrap();
                        } else {
                            values.clear();
                            endpoint.run_window(3, [0, 1, 2].iter().map(|key| kv.get(&endpoint, key)), |got| {
                                values.push(got)
                            });
                        }
                        let mut numbers: Vec<u64> = Vec::new();
                        for found in &values {
                            let found = found.as_ref().unwrap().as_ref().expect("it is never deleted");
                            assert_eq!(*found, value(number_of(found)));
                            numbers.push(number_of(found));
                        }
                        if reads.is_multiple_of(2) {
                            for (key, number) in numbers.into_iter().enumerate() {
                                assert!(number >= last[key], "key {key}: {number} after {}", last[key]);
                                last[key] = number;
                            }
                        }
                        reads += 1;
                        std::thread::yield_now();
                    }
                    reads
                }));
            }
            // Each key has one writer; not all of them are on the node of the values.
            let writers: Vec<_> = (0..3)
                .map(|key| {
                    let (kv, endpoint, value) = (&kvs[key as usize], scene.endpoint(key as usize), &value);
                    scope.spawn(move || {
                        for number in 2..=rounds {
                            assert!(endpoint.block_on(kv.update(&endpoint, &key, &value(number))).unwrap());
                        }
                    })
                })
                .collect();
            writers.into_iter().for_each(|writer| writer.join().expect("a writer"));
            drop(at_end);
            let reads: usize = readers.into_iter().map(|reader| reader.join().expect("a reader")).sum();
            println!("{reads} times all three values were read");
        });
    });
}

/// Modifications of one key exclude each other, on all nodes and within a window.
#[test]
fn modifications_lose_no_update() {
    everywhere("modify", 3, |scene| {
        let kvs = scene.open(|node| KvStore::<u64, u64>::open(node, "kv", small(Placement::Hash)));
        let rounds = scene.rounds(130, 1000);
        scene.run(|node, _, endpoint| {
            let add = |_| kvs[node].modify(endpoint, &7, |old| Some(old.copied().unwrap_or(0) + 1));
            let mut last = None;
            endpoint.run_window(4, (0..rounds).map(add), |before| last = before.unwrap());
            assert!(last.is_some() || scene.all_threads() * rounds == 1);
        });
        let endpoint = scene.endpoint(2);
        let total = (scene.all_threads() * rounds) as u64;
        assert_eq!(endpoint.block_on(kvs[2].get(&endpoint, &7)).unwrap(), Some(total));
    });
}

/// Reads of a departed node's values return an error that names it. Values on other nodes stay available.
#[test]
fn values_of_a_node_that_left_are_errors_that_name_it() {
    for over in fabrics(&[23]) {
        let _cores = beside("a node leaves a store");
        let mut scene = Scene { nodes: session(3, over), over, threads: 1 };
        let kvs = scene.open(|node| KvStore::<u64, u64>::open(node, "kv", small(Placement::Inserter)));
        let endpoint = scene.endpoint(0);
        for (node, kv) in kvs.iter().enumerate() {
            let endpoint = scene.endpoint(node);
            assert!(endpoint.block_on(kv.insert(&endpoint, &(node as u64), &7)).unwrap());
        }
        scene.nodes.pop().unwrap().leave();
        let gone = NodeId(2);
        eventually("the node is seen to have left", || endpoint.check_alive(gone).err());
        endpoint.block_on(async {
            let kv = &kvs[0];
            assert_eq!(kv.get(&endpoint, &1).await.unwrap(), Some(7));
            let names_it = |error: &Error| error.is_gone() && error.node() == Some(gone);
            let error = refused(kv.get(&endpoint, &2).await);
            assert!(names_it(&error), "{error:?}");
            // The remaining nodes can still make changes, if the key's lock is not on the departed node.
            let mut changed = 0;
            for key in 50..60 {
                match kv.insert(&endpoint, &key, &1).await {
                    Ok(inserted) => {
                        assert!(inserted && kv.delete(&endpoint, &key).await.unwrap());
                        changed += 1;
                    }
                    Err(error) => assert!(names_it(&error), "{error:?}"),
                }
            }
            assert!(changed > 0, "some locks are left");
        });
    }
}
