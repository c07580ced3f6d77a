//! Random programs, to compare outcomes that should be equal: any calls ([`program`]), cycles over the stamp order
//! ([`cycle`]), and clients of the libraries that have implementations ([`client`]).
//!
//! All of them are texts of litmus tests, and the same for the same seed.

use std::fmt::Write;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

mod client;
mod cycle;

pub use client::{CLIENTS, client};
pub use cycle::cycle;

/// Random numbers, always the same for a seed.
struct Rng(SmallRng);

impl Rng {
    fn new(seed: u64) -> Rng {
        Rng(SmallRng::seed_from_u64(seed))
    }

    fn below(&mut self, end: usize) -> usize {
        self.0.random_range(0..end)
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}

/// How large programs are.
///
/// ```
/// use mowgli::random::{Size, program};
/// let text = program("x86tso", 1, Size { nodes: 1, threads: 2, calls: 4 });
/// assert!(text.starts_with("x86tso random_1") && !text.contains("P2@"));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Size {
    /// Nodes at most.
    pub nodes: usize,
    /// Threads at most.
    pub threads: usize,
    /// Calls of all threads at most.
    pub calls: usize,
}

impl Size {
    fn check(self) {
        assert!(
            self.nodes > 0 && self.threads > 0 && self.calls > 1,
            "{self:?}: a node, a thread and two calls at least"
        );
    }
}

/// A random program in the methods of `x86tso`, `rdmawait`, `rdmatso` or `rdmarmw`, as the text of a litmus test. Few
/// places are shared by many accesses, and the CPU also writes and reads the places of puts and gets: so that threads
/// meet.
///
/// # Panics
/// If the size allows no node, no thread or less than two calls.
///
/// ```
/// use mowgli::random::{Size, program};
/// let size = Size { nodes: 2, threads: 2, calls: 6 };
/// assert_eq!(program("rdmawait", 1, size), program("rdmawait", 1, size));
/// ```
pub fn program(model: &str, seed: u64, size: Size) -> String {
    size.check();
    let mut rng = Rng::new(seed);
    let nodes = 1 + rng.below(size.nodes);
    let threads = 1 + rng.below(size.threads.min(size.calls));
    // x1, y1, ... on node 1, and so on.
    let names = |rng: &mut Rng, node: usize| format!("{}{node}", ["x", "y"][rng.below(2)]);
    let mut text = format!("{model} random_{seed}\n\n{{");
    for node in 1..=nodes {
        write!(text, " x{node}@{node}; y{node}@{node} = {};", 10 * node).expect("a string takes everything");
    }
    text += " }\n";
    let (mut value, mut left) = (0, threads.max(2 + rng.below(size.calls - 1)));
    for thread in 0..threads {
        let node = 1 + rng.below(nodes);
        let share = if thread + 1 == threads { left } else { 1 + rng.below((left + thread + 1 - threads).div_ceil(2)) };
        left -= share.min(left);
        write!(text, "\nP{thread}@{node} {{\n").expect("a string takes everything");
        let mut unpolled = Vec::new();
        for call in 0..share {
            let peer = 1 + rng.below(nodes);
            let (own, other) = (names(&mut rng, node), names(&mut rng, peer));
            let tag = ["d", "e"][rng.below(2)];
            let tagged = if model == "rdmatso" { String::new() } else { format!("{tag}, ") };
            value += 1;
            let kinds = if model == "x86tso" { 7 } else { 18 };
            let line = match rng.below(kinds) {
                0..3 => format!("Write({own}, {value})"),
                3..5 => format!("let a{call} = Read({own})"),
                5 => format!("let a{call} = CAS({own}, {}, {value})", rng.below(2)),
                6 => "Mfence()".to_owned(),
                12 => format!("Rfence({peer})"),
                13..15 if model == "rdmatso" => match unpolled.pop() {
                    Some(peer) => format!("Poll({peer})"),
                    None => format!("let a{call} = Read({own})"),
                },
                13..15 => format!("Wait({tag})"),
                15 if model == "rdmarmw" => format!("RFaa({tagged}{own}, {other}, {value})"),
                16 if model == "rdmarmw" => format!("RCas({tagged}{own}, {other}, 0, {value})"),
                kind => {
                    unpolled.push(peer);
                    if !(10..16).contains(&kind) {
                        format!("Put({tagged}{other}, {own})")
                    } else {
                        format!("Get({tagged}{own}, {other})")
                    }
                }
            };
            writeln!(text, "    {line};").expect("a string takes everything");
        }
        text += "}\n";
    }
    text += "\nexists (true)\n";
    text
}
