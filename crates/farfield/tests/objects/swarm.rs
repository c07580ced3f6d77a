//! Replicated registers: the calls of all clients are linearizable, with few buffers, few metadata words, and calls that are
//! dropped.

use std::pin::pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use farfield::history::kv::{KvHistory, KvInput, KvOutput};
use farfield::history::{Budget, Event};
use farfield::{SwarmArray, SwarmOptions};

use crate::harness::{Rng, Scene, everywhere, poll_times};

const REGISTERS: usize = 3;

/// A value that can be torn, and says by whom it was written.
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
