//! Replicated registers: what all clients have seen is linearizable, with few buffers, few metadata words, clocks that
//! differ, and calls that are dropped.

use std::pin::pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use farfield::history::{Budget, Event, Model, check};
use farfield::{SwarmArray, SwarmOptions};

use crate::harness::{Rng, Scene, everywhere, poll_times};

const REGISTERS: usize = 3;

/// A value that can be torn, and says by whom it was written.
type Value = [u64; 5];

fn value(writer: u64) -> Value {
    [writer, !writer, writer << 8, writer.rotate_left(32), writer ^ 0x5555]
}

/// A register: a write has its value, a read has none.
struct Register;

impl Model for Register {
    type Input = Option<u64>;
    type Output = u64;
    type State = u64;

    fn initial(&self) -> u64 {
        0
    }

    fn step(&self, state: &u64, written: &Option<u64>, read: Option<&u64>) -> Option<u64> {
        match written {
            Some(value) => Some(*value),
            None => read.is_none_or(|read| read == state).then_some(*state),
        }
    }
}

type Call = Event<Option<u64>, u64>;

fn calls_are_linearizable(scene: &Scene) {
    for (round, metadata_words) in [0, 1].into_iter().enumerate() {
        let mut options = SwarmOptions::default();
        options.clients_per_node = scene.threads;
        options.metadata_words = metadata_words;
        options.spare_buffers = 4;
        let path = format!("array-{round}");
        let arrays = scene.open(|node| SwarmArray::<Value>::open(node, &path, REGISTERS, options.clone()));
        let clock = AtomicU64::new(0);
        let history: Mutex<Vec<Vec<Call>>> = Mutex::new(vec![Vec::new(); REGISTERS]);
        // Histories of more overlapping calls, or of more dropped ones, take the checker long.
        let calls = scene.rounds(300, 3000) / scene.all_threads();
        scene.run(|node, thread, ep| {
            let client = arrays[node].client(ep).unwrap();
            let mut rng = Rng::new((round as u64) << 32 | thread as u64);
            let mut seen = Vec::new();
            for call in 1..=calls as u64 {
                let register = rng.next() as usize % REGISTERS;
                let input = rng.next().is_multiple_of(2).then_some((thread as u64) << 32 | call);
                let is_dropped = rng.next().is_multiple_of(200);
                let called = clock.fetch_add(1, Ordering::SeqCst);
                let output = match input {
                    Some(written) if is_dropped => {
                        let write = pin!(client.write(register, value(written)));
                        poll_times(write, rng.next() as usize % 4).map(|done| done.unwrap()).map(|()| written)
                    }
                    Some(written) => {
                        ep.block_on(client.write(register, value(written))).map(|()| Some(written)).unwrap()
                    }
                    None => {
                        let read = ep.block_on(client.read(register)).unwrap();
                        assert!(read == value(read[0]) || read == [0; 5], "a torn value: {read:?}");
                        Some(read[0])
                    }
                };
                let returned = clock.fetch_add(1, Ordering::SeqCst);
                let event = Event { output, return_ns: Some(returned), ..Event::pending(thread as u32, called, input) };
                seen.push((register, event));
            }
            let mut history = history.lock().unwrap();
            seen.into_iter().for_each(|(register, event)| history[register].push(event));
        });
        for (register, calls) in history.into_inner().unwrap().iter().enumerate() {
            let verdict = check(&Register, calls, Budget::default());
            assert!(verdict.is_linearizable(), "register {register}, {metadata_words} words: {verdict}");
        }
    }
}

#[test]
fn replicated_registers_are_linearizable() {
    everywhere("replicated registers", 3, calls_are_linearizable);
}
