//! Litmus programs as text, and all their outcomes on the machine.
//!
//! Locations are declared with their node, from 1: `"x@1 y@2=5 z@2[2]"` (initially 5; two words, `z.0` and `z.1`).
//! Every other name is a register. A thread is its node and its statements,
//! `"1: x = 1; put y = x as d; wait d; a = x"`:
//!
//! | statement | meaning |
//! |---|---|
//! | `x = 1`, `x = a`, `x = a+1` | CPU write |
//! | `a = x` | CPU read |
//! | `cas a = x 0 1`, `mfence` | CPU compare-and-swap (1 over 0), memory fence |
//! | `put y = x`, `put y = 1,2`, `put y = a` | put of cells, or of words that are fixed |
//! | `put y = 3 mask 1` | of the last word, only these bits |
//! | `get x = y`, `get a = y` | get into cells, or into registers (`a`, or `a.0`, `a.1`, … if `y` is longer) |
//! | `rcas a = y 0 1`, `rfaa a = y 1` | remote compare-and-swap, fetch-and-add |
//! | `rfence 2` | remote fence towards node 2 |
//! | `… as d`, `wait d` | names an operation; waits for all earlier operations of that name |
//! | `poll 2` | waits for the oldest operation towards node 2 that was not polled yet |
//! | `until x 1` | waits until a CPU read gives 1 |

use std::cell::OnceCell;
use std::collections::{BTreeSet, HashMap, HashSet};

use mowgli::machine::{Loc, Machine, Node, Operation, Source, Step, Thread};

/// The values at the end: the registers, then the declared memory.
pub(crate) type Outcome = Vec<u64>;

#[derive(Clone, Copy)]
struct Place {
    loc: Loc,
    words: u32,
}

enum Value {
    Constant(u64),
    Register(usize, u64),
}

enum Statement {
    Write(u32, Value),
    Read(usize, u32),
    Cas(usize, u32, u64, u64),
    Mfence,
    /// The operation, and a register for its carried word.
    Issue(Operation, Option<Value>),
    /// Operations by peer and sequence.
    Await(Vec<(Node, u32)>),
    Until(u32, u64),
}

/// A parsed program.
pub(crate) struct Program {
    text: String,
    nodes: usize,
    places: Vec<(String, Place)>,
    initial: Vec<(Loc, u64)>,
    registers: Vec<String>,
    threads: Vec<(Node, Vec<Statement>)>,
    /// The first register that an operation's words go to.
    results: HashMap<(Thread, Node, u32), usize>,
    outcomes: OnceCell<BTreeSet<Outcome>>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct State {
    machine: Machine,
    next: Vec<usize>,
    registers: Vec<u64>,
}

/// The operations that a thread has issued so far, while it is parsed.
#[derive(Default)]
struct Issued {
    all: Vec<(Node, u32, String)>,
    counts: HashMap<Node, u32>,
    unpolled: HashMap<Node, Vec<u32>>,
}

impl Issued {
    /// Counts an operation.
    fn next(&mut self, peer: Node, name: &str, is_polled: bool) -> u32 {
        let count = self.counts.entry(peer).or_default();
        *count += 1;
        self.all.push((peer, *count, name.to_owned()));
        if is_polled {
            self.unpolled.entry(peer).or_default().push(*count);
        }
        *count
    }
}

fn number(text: &str) -> u64 {
    text.parse().unwrap_or_else(|_| panic!("{text} is no number"))
}

impl Program {
    /// Reads a program.
    pub(crate) fn new(locations: &str, threads: &[&str]) -> Program {
        let text = format!("[{locations}] {}", threads.join(" | "));
        let (nodes, places, initial, registers, results, outcomes) = Default::default();
        let mut program = Program { text, nodes, places, initial, registers, threads: Vec::new(), results, outcomes };
        let mut sizes: HashMap<Node, u32> = HashMap::new();
        for declaration in locations.split_whitespace() {
            let (name, home) = declaration.split_once('@').expect("name@node");
            let (home, initial) = home.split_once('=').unwrap_or((home, "0"));
            let (home, words) = home.split_once('[').unwrap_or((home, "1]"));
            let (node, words) = (number(home) as Node - 1, number(words.trim_end_matches(']')) as u32);
            let size = sizes.entry(node).or_default();
            let loc = Loc { node, word: *size };
            *size += words;
            program.places.push((name.to_owned(), Place { loc, words }));
            program.initial.push((loc, number(initial)));
            program.nodes = program.nodes.max(usize::from(node) + 1);
        }
        for (index, thread) in threads.iter().enumerate() {
            let (node, body) = thread.split_once(':').expect("node: statements");
            program.nodes = program.nodes.max(number(node) as usize);
            let mut issued = Issued::default();
            let statements = body.split(';').map(str::trim).filter(|statement| !statement.is_empty());
            let statements =
                statements.map(|statement| program.statement(Thread(index as u16), statement, &mut issued)).collect();
            program.threads.push((number(node) as Node - 1, statements));
        }
        program
    }

    fn place(&self, name: &str) -> Option<Place> {
        let (base, index) =
            name.split_once('.').map_or((name, None), |(base, index)| (base, Some(number(index) as u32)));
        let (_, place) = self.places.iter().find(|(other, _)| other == base)?;
        Some(match index {
            Some(index) => Place { loc: Loc { word: place.loc.word + index, ..place.loc }, words: 1 },
            None => *place,
        })
    }

    fn register(&mut self, name: &str) -> usize {
        assert!(self.place(name).is_none(), "{name} is a location");
        self.registers.iter().position(|other| other == name).unwrap_or_else(|| {
            self.registers.push(name.to_owned());
            self.registers.len() - 1
        })
    }

    fn value(&mut self, text: &str) -> Value {
        if text.starts_with(|first: char| first.is_ascii_digit()) {
            return Value::Constant(number(text));
        }
        let (register, plus) = text.split_once('+').unwrap_or((text, "0"));
        Value::Register(self.register(register), number(plus))
    }

    fn statement(&mut self, thread: Thread, text: &str, issued: &mut Issued) -> Statement {
        let mut tokens: Vec<&str> = text.split_whitespace().collect();
        let mut option = |name: &str| {
            let at = tokens.iter().position(|token| *token == name)?;
            tokens.drain(at..at + 2).nth(1)
        };
        let name = option("as").unwrap_or("");
        let last_mask = option("mask").map_or(u64::MAX, number);
        let at = |program: &Program, name: &str| program.place(name).unwrap_or_else(|| panic!("{name} in {text}?"));
        let mut result = None;
        let (operation, carried) = match tokens[..] {
            ["mfence"] => return Statement::Mfence,
            ["cas", register, "=", word, expected, new] => {
                let (word, register) = (at(self, word).loc.word, self.register(register));
                return Statement::Cas(register, word, number(expected), number(new));
            }
            ["wait", name] => {
                let named = issued.all.iter().filter(|(.., other)| other == name);
                return Statement::Await(named.map(|(peer, sequence, _)| (*peer, *sequence)).collect());
            }
            ["poll", node] => {
                let peer = number(node) as Node - 1;
                return Statement::Await(vec![(peer, issued.unpolled.get_mut(&peer).expect("unpolled").remove(0))]);
            }
            ["until", word, value] => return Statement::Until(at(self, word).loc.word, number(value)),
            [target, "=", source] => {
                return match self.place(target) {
                    Some(place) => Statement::Write(place.loc.word, self.value(source)),
                    None => Statement::Read(self.register(target), at(self, source).loc.word),
                };
            }
            ["put", to, "=", source] => {
                let Place { loc: to, words } = at(self, to);
                let (source, register) = match self.place(source) {
                    Some(place) => (Source::Cells(place.loc.word), None),
                    None if source.contains(',') => (Source::Carried(source.split(',').map(number).collect()), None),
                    None => match self.value(source) {
                        Value::Constant(value) => (Source::Carried([value].into_iter().collect()), None),
                        register => (Source::Carried([0].into_iter().collect()), Some(register)),
                    },
                };
                (Operation::Put { source, to, words, last_mask }, register)
            }
            ["get", into, "=", from] => {
                let Place { loc: from, words } = at(self, from);
                let into = self.place(into).map(|place| place.loc.word).or_else(|| {
                    let names =
                        (0..words).map(|word| if words == 1 { into.to_owned() } else { format!("{into}.{word}") });
                    let registers: Vec<usize> = names.map(|name| self.register(&name)).collect();
                    result = registers.first().copied();
                    None
                });
                (Operation::Get { from, words, into }, None)
            }
            ["rcas", register, "=", word, expected, new] => {
                result = Some(self.register(register));
                let (expected, new) = (number(expected), number(new));
                (Operation::Cas { at: at(self, word).loc, expected, new }, None)
            }
            ["rfaa", register, "=", word, addend] => {
                result = Some(self.register(register));
                (Operation::Faa { at: at(self, word).loc, addend: number(addend) }, None)
            }
            ["rfence", node] => (Operation::Fence { node: number(node) as Node - 1 }, None),
            _ => panic!("{text}?"),
        };
        let (peer, is_polled) = match operation {
            Operation::Put { to: loc, .. } | Operation::Get { from: loc, .. } => (loc.node, true),
            Operation::Cas { at: loc, .. } | Operation::Faa { at: loc, .. } => (loc.node, true),
            Operation::Fence { node } => (node, false),
        };
        let sequence = issued.next(peer, name, is_polled);
        if let Some(result) = result {
            self.results.insert((thread, peer, sequence), result);
        }
        Statement::Issue(operation, carried)
    }

    fn start(&self) -> State {
        let mut machine = Machine::new(self.nodes);
        for (_, place) in &self.places {
            machine.grow(place.loc.node, place.loc.word + place.words);
        }
        for &(loc, value) in &self.initial {
            machine.poke(loc, value);
        }
        for &(node, _) in &self.threads {
            machine.add_thread(node);
        }
        State { machine, next: vec![0; self.threads.len()], registers: vec![0; self.registers.len()] }
    }

    /// The thread's next statement, if it has one and it does not wait.
    fn execute(&self, state: &State, thread: usize) -> Option<State> {
        let statement = self.threads[thread].1.get(state.next[thread])?;
        let id = Thread(thread as u16);
        let may_go = match statement {
            Statement::Mfence | Statement::Cas(..) => state.machine.is_drained(id),
            Statement::Await(operations) => {
                operations.iter().all(|&(peer, sequence)| state.machine.is_complete(id, peer, sequence))
            }
            Statement::Until(word, value) => state.machine.read(id, *word) == *value,
            _ => true,
        };
        let mut state = may_go.then(|| state.clone())?;
        let evaluate = |registers: &[u64], value: &Value| match *value {
            Value::Constant(value) => value,
            Value::Register(register, plus) => registers[register] + plus,
        };
        match statement {
            Statement::Write(word, value) => state.machine.write(id, *word, evaluate(&state.registers, value)),
            Statement::Read(register, word) => state.registers[*register] = state.machine.read(id, *word),
            Statement::Cas(register, word, expected, new) => {
                state.registers[*register] = state.machine.compare_exchange(id, *word, *expected, *new);
            }
            Statement::Issue(operation, register) => {
                let mut operation = operation.clone();
                if let (Operation::Put { source, .. }, Some(register)) = (&mut operation, register) {
                    *source = Source::Carried([evaluate(&state.registers, register)].into_iter().collect());
                }
                state.machine.issue(id, operation);
            }
            Statement::Mfence | Statement::Await(_) | Statement::Until(..) => {}
        }
        state.next[thread] += 1;
        Some(state)
    }

    fn step(&self, state: &State, step: Step) -> State {
        let mut state = state.clone();
        let footprint = state.machine.footprint(step);
        let applied = state.machine.apply(step);
        assert_eq!(footprint.completes, applied.completion.is_some(), "{step:?} in {}", self.text);
        if let Some(completion) = applied.completion {
            let key = (completion.thread, completion.peer, completion.sequence);
            assert!(state.machine.is_complete(key.0, key.1, key.2), "{step:?} in {}", self.text);
            if let Some(&register) = self.results.get(&key) {
                state.registers[register..][..completion.words.len()].copy_from_slice(&completion.words);
            }
        }
        state
    }

    /// All outcomes. With `quiet_first`, a quiet step is taken before others are considered.
    fn explore(&self, quiet_first: bool) -> BTreeSet<Outcome> {
        let (mut outcomes, mut seen, mut open) = (BTreeSet::new(), HashSet::new(), vec![self.start()]);
        let mut steps = Vec::new();
        while let Some(state) = open.pop() {
            if seen.contains(&state) {
                continue;
            }
            steps.clear();
            state.machine.enabled(&mut steps);
            assert!(steps.is_sorted_by_key(|&step| (state.machine.footprint(step).thread, step)), "canonical order");
            if let Some(&quiet) = steps.iter().find(|step| quiet_first && state.machine.is_quiet(**step)) {
                open.push(self.step(&state, quiet));
            } else {
                open.extend((0..self.threads.len()).filter_map(|thread| self.execute(&state, thread)));
                open.extend(steps.iter().map(|&step| self.step(&state, step)));
            }
            let is_over = self.threads.iter().zip(&state.next).all(|((_, body), next)| body.len() == *next);
            if is_over && state.machine.is_idle() {
                assert!(steps.is_empty());
                let memory = self.places.iter().flat_map(|(_, place)| {
                    (0..place.words).map(|word| Loc { word: place.loc.word + word, ..place.loc })
                });
                let memory = memory.map(|loc| state.machine.memory(loc));
                outcomes.insert(state.registers.iter().copied().chain(memory).collect());
            }
            seen.insert(state);
        }
        assert!(!outcomes.is_empty(), "never ends: {}", self.text);
        outcomes
    }

    /// All outcomes, which must be the same with quiet steps first.
    pub(crate) fn all_outcomes(&self) -> &BTreeSet<Outcome> {
        self.outcomes.get_or_init(|| {
            let outcomes = self.explore(false);
            assert!(outcomes == self.explore(true), "quiet steps lose outcomes: {}", self.text);
            outcomes
        })
    }

    /// Where in an outcome a register or a word of memory is.
    fn index(&self, name: &str) -> usize {
        if let Some(register) = self.registers.iter().position(|other| other == name) {
            return register;
        }
        let place = self.place(name).unwrap_or_else(|| panic!("{name}?"));
        let before = |other: &Place| other.loc.node == place.loc.node && other.loc.word <= place.loc.word;
        let mut at = self.registers.len();
        for (_, other) in &self.places {
            if before(other) && place.loc.word < other.loc.word + other.words {
                return at + (place.loc.word - other.loc.word) as usize;
            }
            at += other.words as usize;
        }
        unreachable!("every place is declared")
    }

    fn has(&self, condition: &str) -> bool {
        let wanted: Vec<(usize, u64)> = condition
            .split_whitespace()
            .map(|part| part.split_once('=').expect("name=value"))
            .map(|(name, value)| (self.index(name), number(value)))
            .collect();
        self.all_outcomes().iter().any(|outcome| wanted.iter().all(|&(at, value)| outcome[at] == value))
    }

    /// Some outcome is like this.
    #[track_caller]
    pub(crate) fn allows(self, condition: &str) -> Program {
        assert!(self.has(condition), "{condition} should be possible: {}", self.text);
        self
    }

    /// No outcome is like this.
    #[track_caller]
    pub(crate) fn forbids(self, condition: &str) -> Program {
        assert!(!self.has(condition), "{condition} should be impossible: {}", self.text);
        self
    }
}
