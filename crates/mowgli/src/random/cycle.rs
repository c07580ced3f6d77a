//! Programs made from cycles, as the diy tool makes them for CPUs: each thread has two accesses, the second of which
//! meets the first of the next thread at a place. The stamp order decides whether all of them can happen as in the
//! cycle.

use super::*;

/// An access of a cycle: by which subevent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    /// CR
    Read,
    /// CW
    Write,
    /// CAS
    Cas,
    /// NLR of a put from the place.
    PutFrom,
    /// NRW of a put to the place.
    PutTo,
    /// NRR of a get from the place.
    GetFrom,
    /// NLW of a get into the place.
    GetTo,
    /// NAR of a compare-and-swap that fails.
    RemoteRead,
    /// NAW.
    RemoteAdd,
}

/// The cycle that is being written.
struct Cycle<'a> {
    rng: Rng,
    model: &'a str,
    nodes: usize,
    objects: String,
    threads: Vec<String>,
    /// The description of the cycle.
    says: Vec<String>,
    /// How many objects were made besides the places of the cycle.
    made: usize,
    /// How many registers, and how many names of operations.
    registers: usize,
    tags: usize,
}

/// A random program of two accesses for each thread, some with a fence or a wait between, of which each two neighbours
/// meet at a place: in the methods of `x86tso`, `rdmawait`, `rdmatso` or `rdmarmw`. It asks for the cycle.
///
/// # Panics
/// As [`program`].
///
/// ```
/// use mowgli::random::{Size, cycle};
/// let text = cycle("x86tso", 3, Size { nodes: 1, threads: 2, calls: 6 });
/// assert!(text.contains("exists (") && text.contains("P0@1"), "{text}");
/// ```
pub fn cycle(model: &str, seed: u64, size: Size) -> String {
    size.check();
    let mut rng = Rng::new(seed);
    let threads = 1 + rng.below(size.threads.min(size.calls / 2));
    let nodes = if model == "x86tso" { 1 } else { 1 + rng.below(size.nodes) };
    let at: Vec<usize> = (0..threads).map(|_| 1 + rng.below(nodes)).collect();
    // The place where a thread's second access meets the first of the next.
    let mut homes: Vec<usize> = (0..threads).map(|thread| rng.of(&[at[thread], at[(thread + 1) % threads]])).collect();
    if rng.below(4) == 0 {
        homes.iter_mut().for_each(|home| *home = 1 + rng.below(nodes));
    }
    // Whether each of the two that meet at a place writes: one of them does.
    let meetings: Vec<[bool; 2]> =
        homes.iter().map(|_| rng.of(&[[true, false], [false, true], [true, true]])).collect();
    let mut all = Cycle {
        rng,
        model,
        nodes,
        objects: String::new(),
        threads: vec![String::new(); threads],
        says: Vec::new(),
        made: 0,
        registers: 0,
        tags: 0,
    };
    let mut between = size.calls - 2 * threads;
    for (place, home) in homes.iter().enumerate() {
        write!(all.objects, " l{place}@{home};").expect("a string takes everything");
    }
    for (thread, here) in at.iter().enumerate() {
        let before = (thread + threads - 1) % threads;
        let peer = all.access(
            thread,
            *here,
            Meeting { place: before, home: homes[before], writes: meetings[before], side: 1 },
        );
        if between > 0 && all.rng.below(2) == 0 {
            between -= 1;
            let line = match (model, peer, all.rng.below(3)) {
                ("rdmatso", Some(peer), 0) => format!("Poll({peer})"),
                (_, Some(_), 0) => format!("Wait(d{})", all.tags),
                (_, Some(peer), 1) => format!("Rfence({peer})"),
                _ => "Mfence()".to_owned(),
            };
            all.line(thread, &line);
        }
        all.access(thread, *here, Meeting { place: thread, home: homes[thread], writes: meetings[thread], side: 0 });
    }
    let mut text = format!("{model} cycle_{seed}\n\n{{{} }}\n", all.objects);
    for (thread, code) in all.threads.iter().enumerate() {
        write!(text, "\nP{thread}@{} {{\n{code}}}\n", at[thread]).expect("a string takes everything");
    }
    let says = if all.says.is_empty() { "true".to_owned() } else { all.says.join(" /\\ ") };
    write!(text, "\nexists ({says})\n").expect("a string takes everything");
    text
}

/// The accesses that meet at a place: the last of one thread, and the first of the next, which is later in the cycle.
struct Meeting {
    place: usize,
    home: usize,
    writes: [bool; 2],
    /// Which of the two this is.
    side: usize,
}

impl Cycle<'_> {
    fn line(&mut self, thread: usize, line: &str) {
        writeln!(self.threads[thread], "    {line};").expect("a string takes everything");
    }

    /// An object on a node, which others do not use.
    fn object(&mut self, node: usize, value: usize) -> String {
        self.made += 1;
        let name = format!("m{}", self.made);
        write!(self.objects, " {name}@{node} = {value};").expect("a string takes everything");
        name
    }

    /// Chooses among the accesses of the model that write, or read, a place that is on the thread's own node or on
    /// another.
    fn choose(&mut self, writes: bool, is_here: bool) -> Access {
        let mut all = match (writes, is_here) {
            (true, true) => vec![Access::Write, Access::Write, Access::Cas],
            (false, true) => vec![Access::Read, Access::Read],
            _ => Vec::new(),
        };
        if self.model != "x86tso" {
            all.push(if writes { Access::PutTo } else { Access::GetFrom });
            if is_here {
                all.push(if writes { Access::GetTo } else { Access::PutFrom });
            }
        }
        if self.model == "rdmarmw" {
            all.push(if writes { Access::RemoteAdd } else { Access::RemoteRead });
        }
        self.rng.of(&all)
    }

    /// Writes an access; the node that a queue pair leads to, if it has one.
    fn access(&mut self, thread: usize, here: usize, meeting: Meeting) -> Option<usize> {
        let Meeting { place, home, writes, side } = meeting;
        let access = self.choose(writes[side], home == here);
        // The first writes 1, and the second 2. A reader finds the first one's value, or the value before the second.
        let value = if writes[side] { 1 + side } else { side };
        let expected = usize::from(side == 1 && writes[0]);
        if writes == [true, true] && side == 1 {
            let sum = if access == Access::RemoteAdd {
                format!("(l{place}=2 \\/ l{place}=3)")
            } else {
                format!("l{place}=2")
            };
            self.says.push(sum);
        }
        let place = format!("l{place}");
        let other = 1 + self.rng.below(self.nodes);
        let mut tag = String::new();
        if self.model != "rdmatso" && !matches!(access, Access::Read | Access::Write | Access::Cas) {
            self.tags += 1;
            tag = format!("d{}, ", self.tags);
        }
        let (line, peer) = match access {
            Access::Read => {
                self.registers += 1;
                self.says.push(format!("{thread}:a{}={value}", self.registers));
                (format!("let a{} = Read({place})", self.registers), None)
            }
            Access::Write => (format!("Write({place}, {value})"), None),
            Access::Cas => (format!("CAS({place}, {expected}, {value})"), None),
            Access::PutFrom => {
                let sink = self.object(other, 0);
                self.says.push(format!("{sink}={value}"));
                (format!("Put({tag}{sink}, {place})"), Some(other))
            }
            Access::PutTo => {
                let source = self.object(here, value);
                (format!("Put({tag}{place}, {source})"), Some(home))
            }
            Access::GetFrom => {
                let sink = self.object(here, 0);
                self.says.push(format!("{sink}={value}"));
                (format!("Get({tag}{sink}, {place})"), Some(home))
            }
            Access::GetTo => {
                let source = self.object(other, value);
                (format!("Get({tag}{place}, {source})"), Some(other))
            }
            Access::RemoteRead => {
                let sink = self.object(here, 0);
                self.says.push(format!("{sink}={value}"));
                (format!("RCas({tag}{sink}, {place}, 99, 98)"), Some(home))
            }
            Access::RemoteAdd => {
                let sink = self.object(here, 0);
                (format!("RFaa({tag}{sink}, {place}, {value})"), Some(home))
            }
        };
        self.line(thread, &line);
        peer
    }
}
