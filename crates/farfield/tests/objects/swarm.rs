//! Replicated registers, and a store of them: the calls of all clients are linearizable, with few buffers, few metadata
//! words, and calls that are dropped.

use std::pin::pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use farfield::history::kv::{KvHistory, KvInput, KvOutput};
use farfield::history::{Budget, Event};
use farfield::{SwarmArray, SwarmOptions, SwarmStore, SwarmStoreOptions};

use crate::harness::{Rng, Scene, everywhere, poll_times};

const REGISTERS: usize = 3;

/// A value that can be torn, and names its writer.
type Value = [u64; 5];

fn value(writer: u64) -> Value {
    [writer, !writer, writer << 8, writer.rotate_left(32), writer ^ 0x5555]
}

fn calls_are_linearizable(scene: &Scene) {
    for (round, metadata_words) in [0, 1].into_iter().enumerate() {
        let mut options = SwarmOptions::default();
        options.clients_per_node = scene.threads;
        options.metadata_words = metadata_words;
        options.spare_buffers = 4;
        let path = format!("array-{round}");
        let arrays = scene.open(|node| SwarmArray::<Value>::open(node, &path, REGISTERS, options.clone()));
        let clock = AtomicU64::new(0);
        // A register is like the key of a store; zero is no value.
        let history = Mutex::new(KvHistory::new());
        // Histories of more overlapping calls, or of more dropped ones, take the checker long.
        let calls = scene.rounds(300, 3000) / scene.all_threads();
        scene.run(|node, thread, ep| {
            let client = arrays[node].client(ep).unwrap();
            let mut rng = Rng::new((round as u64) << 32 | thread as u64);
            let mut seen = KvHistory::new();
            for call in 1..=calls as u64 {
                let register = rng.next() as usize % REGISTERS;
                let written = (thread as u64) << 32 | call;
                let is_write = rng.next().is_multiple_of(2);
                let polls = rng.next().is_multiple_of(200).then(|| rng.next() as usize % 4);
                let called = clock.fetch_add(1, Ordering::SeqCst);
                let (input, output) = if is_write {
                    let write = pin!(client.write(register, value(written)));
                    let done = match polls {
                        Some(polls) => poll_times(write, polls),
                        None => Some(ep.block_on(write)),
                    };
                    (KvInput::Upsert(written), done.map(|done| done.map(|()| KvOutput::Stored).unwrap()))
                } else {
                    let read = ep.block_on(client.read(register)).unwrap();
                    assert!(read == value(read[0]) || read == [0; 5], "a torn value: {read:?}");
                    (KvInput::Get, Some(KvOutput::Found(Some(read[0]).filter(|writer| *writer != 0))))
                };
                let returned = output.map(|_| clock.fetch_add(1, Ordering::SeqCst));
                let event = Event { output, return_ns: returned, ..Event::pending(thread as u32, called, input) };
                seen.record(register as u64, event);
            }
            history.lock().unwrap().merge(seen);
        });
        let checked = history.into_inner().unwrap().check_each_key(Budget::default());
        checked.unwrap_or_else(|failure| panic!("{metadata_words} metadata words: {failure}"));
    }
}

#[test]
fn replicated_registers_are_linearizable() {
    everywhere("replicated registers", 3, calls_are_linearizable);
}

/// More than clients: those that have ended leave registers of deleted keys in the index, where a part has ten places.
const KEYS: u64 = 12;

/// Few keys, few registers and a small cache: registers are used again all the time, and clients know old places.
fn store_is_linearizable(scene: &Scene) {
    for (round, metadata_words) in [0, 1].into_iter().enumerate() {
        let mut options = SwarmStoreOptions::default();
        (options.keys, options.cached_keys) = (KEYS as usize, if round == 0 { 2 } else { 16 });
        options.replicas.clients_per_node = scene.threads;
        options.replicas.metadata_words = metadata_words;
        options.replicas.spare_buffers = 4;
        let path = format!("store-{round}");
        let stores = scene.open(|node| SwarmStore::<u64, Value>::open(node, &path, options.clone()));
        let clock = AtomicU64::new(0);
        let history = Mutex::new(KvHistory::new());
        let calls = scene.rounds(300, 3000) / scene.all_threads();
        scene.run(|node, thread, ep| {
            let client = stores[node].client(ep).unwrap();
            let mut rng = Rng::new(7 | (round as u64) << 32 | thread as u64);
            let mut seen = KvHistory::new();
            for call in 1..=calls as u64 {
                let (key, written) = (rng.next() % KEYS, (thread as u64) << 32 | call);
                let kind = rng.next() % 10;
                let polls = rng.next().is_multiple_of(200).then(|| rng.next() as usize % 4);
                let called = clock.fetch_add(1, Ordering::SeqCst);
                let (input, output) = match kind {
                    0 => {
                        let (mut found, new) = (0, value(written));
                        let passes = |old: &Value| {
                            found = old[0];
                            found.is_multiple_of(2)
                        };
                        if ep.block_on(client.update_if(&key, passes, &new)).unwrap() {
                            // The old value was there at some moment, and the new one after that.
                            let returned = Some(clock.fetch_add(1, Ordering::SeqCst));
                            let output = Some(KvOutput::Found(Some(found)));
                            let pending = Event::pending(thread as u32, called, KvInput::Get);
                            seen.record(key, Event { output, return_ns: returned, ..pending });
                            let event = Event::pending(thread as u32, called, KvInput::Update(written));
                            let output = Some(KvOutput::Succeeded(true));
                            seen.record(key, Event { output, return_ns: returned, ..event });
                        }
                        continue;
                    }
                    1..4 => {
                        let found = ep.block_on(client.get(&key)).unwrap();
                        assert!(found.is_none_or(|found| found == value(found[0])), "a torn value: {found:?}");
                        (KvInput::Get, Some(KvOutput::Found(found.map(|found| found[0]))))
                    }
                    4..6 => {
                        let updated = ep.block_on(client.update(&key, &value(written))).unwrap();
                        (KvInput::Update(written), Some(KvOutput::Succeeded(updated)))
                    }
                    6..8 => {
                        let value = value(written);
                        let insert = pin!(client.insert(&key, &value));
                        let inserted = match polls {
                            Some(polls) => poll_times(insert, polls),
                            None => Some(ep.block_on(insert)),
                        };
                        (KvInput::Insert(written), inserted.map(|inserted| KvOutput::Succeeded(inserted.unwrap())))
                    }
                    8 => {
                        ep.block_on(client.upsert(&key, &value(written))).unwrap();
                        (KvInput::Upsert(written), Some(KvOutput::Stored))
                    }
                    _ => {
                        ep.block_on(client.delete(&key)).unwrap();
                        (KvInput::Delete, Some(KvOutput::Stored))
                    }
                };
                let returned = output.map(|_| clock.fetch_add(1, Ordering::SeqCst));
                let event = Event { output, return_ns: returned, ..Event::pending(thread as u32, called, input) };
                seen.record(key, event);
            }
            history.lock().unwrap().merge(seen);
        });
        let checked = history.into_inner().unwrap().check_each_key(Budget::default());
        checked.unwrap_or_else(|failure| panic!("{metadata_words} metadata words: {failure}"));
    }
}

#[test]
fn a_replicated_store_is_linearizable() {
    everywhere("a replicated store", 3, store_is_linearizable);
}

/// All clients count with one key, and none of their steps is lost, while the key moves.
fn steps_add_up(scene: &Scene) {
    let mut options = SwarmStoreOptions::default();
    options.keys = 2;
    options.replicas.clients_per_node = scene.threads;
    options.replicas.spare_buffers = 4;
    let stores = scene.open(|node| SwarmStore::<u64, u64>::open(node, "counters", options.clone()));
    let steps = scene.rounds(90, 300) / scene.all_threads();
    scene.run(|node, _, ep| {
        let client = stores[node].client(ep).unwrap();
        ep.block_on(client.insert(&7, &0)).unwrap();
        for _ in 0..steps {
            loop {
                let before = ep.block_on(client.get(&7)).unwrap().unwrap();
                if ep.block_on(client.update_if(&7, |now| *now == before, &(before + 1))).unwrap() {
                    break;
                }
            }
        }
    });
    let ep = scene.endpoint(0);
    let client = stores[0].client(&ep).unwrap();
    let counted = ep.block_on(client.get(&7)).unwrap();
    assert_eq!(counted, Some((steps * scene.all_threads()) as u64));
    assert!(!ep.block_on(client.update_if(&8, |_| true, &1)).unwrap(), "there is no such key");
}

#[test]
fn conditional_updates_add_up() {
    everywhere("conditional updates", 3, steps_add_up);
}
