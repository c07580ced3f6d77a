//! How many steps of the machine a second: six threads on four nodes that always have some operations in flight.
//!
//! `cargo run --release -p mowgli --example throughput`

use std::hint::black_box;
use std::time::Instant;

use mowgli::machine::{Loc, Machine, Operation, Source, Thread};

const NODES: u64 = 4;
const THREADS: u16 = 6;
const WORDS: u64 = 64;

/// A step of SplitMix64.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let x = (*state ^ (*state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// Puts and gets of one to four words, now and then an atomic or a fence.
fn operation(state: &mut u64) -> Operation {
    let dice = random(state);
    let remote = Loc { node: ((dice >> 8) % NODES) as u16, word: ((dice >> 16) % (WORDS - 4)) as u32 };
    let (cells, words) = (((dice >> 32) % (WORDS - 4)) as u32, ((dice >> 48) % 4 + 1) as u32);
    match dice % 16 {
        0..4 => {
            let source = Source::Carried((0..u64::from(words)).map(|word| dice ^ word).collect());
            Operation::Put { source, to: remote, words, last_mask: u64::MAX }
        }
        4..7 => Operation::Put { source: Source::Cells(cells), to: remote, words, last_mask: u64::MAX },
        7..10 => Operation::Get { from: remote, words, into: None },
        10..13 => Operation::Get { from: remote, words, into: Some(cells) },
        13 => Operation::Cas { at: remote, expected: 0, new: dice },
        14 => Operation::Faa { at: remote, addend: 1 },
        _ => Operation::Fence { node: remote.node },
    }
}

/// Runs so many steps. Returns nanoseconds per step, and how many steps were enabled on average.
fn measure(steps: u64, with_digest: bool) -> (f64, f64) {
    let mut machine = Machine::new(NODES as usize);
    for node in 0..NODES {
        machine.grow(node as u16, WORDS as u32);
    }
    for thread in 0..THREADS {
        machine.add_thread(thread % NODES as u16);
    }
    let (mut state, mut enabled) = (7, Vec::new());
    let mut in_flight = [0u32; THREADS as usize];
    let mut choices = 0;
    let start = Instant::now();
    for _ in 0..steps {
        let dice = random(&mut state);
        let thread = (dice % u64::from(THREADS)) as u16;
        if in_flight[usize::from(thread)] < 4 {
            machine.issue(Thread(thread), operation(&mut state));
            machine.write(Thread(thread), (dice >> 16) as u32 % WORDS as u32, dice);
            in_flight[usize::from(thread)] += 1;
        }
        enabled.clear();
        machine.enabled(&mut enabled);
        choices += enabled.len();
        if enabled.is_empty() {
            continue;
        }
        let applied = machine.apply(enabled[(dice >> 32) as usize % enabled.len()]);
        if let Some(completion) = &applied.completion {
            in_flight[usize::from(completion.thread.0)] -= 1;
        }
        if with_digest {
            black_box(machine.digest());
        }
    }
    (start.elapsed().as_nanos() as f64 / steps as f64, choices as f64 / steps as f64)
}

fn main() {
    for with_digest in [false, true] {
        let rounds = (0..7).map(|_| measure(1_000_000, with_digest));
        let (step_ns, choices) = rounds.min_by(|a, b| a.0.total_cmp(&b.0)).expect("some rounds");
        let what = if with_digest { "enabled + apply + digest" } else { "enabled + apply" };
        println!("{what}: {step_ns:.0} ns per step, with {choices:.1} steps enabled (best of 7 rounds)");
    }
}
