//! All outcomes of a litmus test on the [machine]: every order of its steps.
//!
//! The machine knows the CPU's methods and RDMA's: those of `x86tso`, `rdmawait`, `rdmatso` and `rdmarmw`.

use std::collections::{BTreeSet, HashSet};

use crate::litmus::{Test, Value};
use crate::machine::{self, Crossing, Loc, Machine, Node, Part, Source, Thread};
use crate::run::{NAMELESS, NotRunnable, Number, Operation, Plan, Rmw, Step};

/// Why a test does not run on the machine.
///
/// ```
/// # use mowgli::{explore::{NotThere, outcomes}, litmus::Test, model::Models};
/// let text = "bal t { barrier b(P0); } P0@1 { BAR(b); } exists (true)";
/// let test = Test::parse("t", text, &Models::builtin())?;
/// assert_eq!(outcomes(&test).unwrap_err(), NotThere::Method("bal.BAR".into()));
/// # Ok::<(), mowgli::text::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotThere {
    /// A method that the machine does not have.
    #[error("the machine knows no method `{0}`")]
    Method(String),
    /// Its memory has numbers only.
    #[error("the machine's memory holds numbers, not {0}")]
    Value(Value),
    /// It takes too long.
    #[error("more than {0} states on the machine: the test needs fewer calls or threads")]
    TooMany(usize),
}

/// The machine has the methods of these libraries.
const LIBRARIES: &[&str] = &["x86tso", "rdma", "rdmawait", "rdmatso", "rdmarmw"];
/// How many states are looked at: some kilobytes each in small tests.
pub(crate) const STATES_MAX: usize = 1_000_000;

/// All outcomes of a test on the machine: the observed final values, in the order of [`Test::observables`].
///
/// # Errors
/// It uses a method or a value that the machine does not have.
///
/// ```
/// # use mowgli::{explore::outcomes, litmus::Test, model::Models};
/// let text = "rdmawait fig_1 { x@1; z@2; } P0@1 { Put(d, z, x); Write(x, 1); } exists (z=1)";
/// let test = Test::parse("fig_1.litmus", text, &Models::builtin())?;
/// assert_eq!(outcomes(&test)?.len(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn outcomes(test: &Test) -> Result<BTreeSet<Vec<Value>>, NotThere> {
    let plan = plan(test, |library, _| LIBRARIES.contains(&library))?;
    let mut machine = Machine::new(plan.nodes.max(1));
    let mut sizes = vec![0; plan.nodes];
    let mut words = Vec::new();
    for word in &plan.words {
        let loc = Loc { node: word.node as Node, word: sizes[word.node] };
        sizes[word.node] += 1;
        machine.grow(loc.node, sizes[word.node]);
        machine.poke(loc, word.starts as u64);
        words.push(loc);
    }
    for program in &plan.threads {
        machine.add_thread(program.node as Node);
    }
    let threads = At::start(&plan);
    Driver { plan, words }.explore(State { machine, threads, results: Vec::new() })
}

/// The plan of a test with calls of methods that a machine `has`, by library and name.
pub(crate) fn plan(test: &Test, has: impl Fn(&str, &str) -> bool) -> Result<Plan, NotThere> {
    for call in test.calls() {
        let library = &test.libraries[call.library].name;
        if !has(library, &call.method) {
            return Err(NotThere::Method(format!("{library}.{}", call.method)));
        }
    }
    Plan::of(test, test).map_err(|why| match why {
        NotRunnable::Starts(_, value) => NotThere::Value(value),
        NotRunnable::Method(method) => NotThere::Method(method),
        NotRunnable::Text(_) => unreachable!("the test was read"),
        NotRunnable::Misfit(..) => unreachable!("its calls are on words"),
    })
}

/// Where a thread is.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct At {
    pub(crate) next: usize,
    pub(crate) registers: Vec<Value>,
    /// Its operations.
    issued: Vec<Issued>,
}

/// An operation of a thread.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Issued {
    /// The number of its name.
    id: usize,
    peer: Node,
    sequence: u32,
    /// It can be polled and was not.
    is_unpolled: bool,
    is_put: bool,
    /// It is the only call that is about its local place, and about its remote one.
    is_alone: (bool, bool),
}

impl At {
    /// Where the threads of a plan are at first.
    pub(crate) fn start(plan: &Plan) -> Vec<At> {
        let start = |registers| At { next: 0, registers: vec![Value::number(0); registers], issued: Vec::new() };
        plan.threads.iter().map(|program| start(program.registers)).collect()
    }
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct State {
    machine: Machine,
    threads: Vec<At>,
    /// The targets of the old values of read-modify-writes.
    results: Vec<((Thread, Node, u32), Loc)>,
}

struct Driver {
    plan: Plan,
    /// Where the plan's words are.
    words: Vec<Loc>,
}

impl Driver {
    fn explore(&self, start: State) -> Result<BTreeSet<Vec<Value>>, NotThere> {
        let (mut outcomes, mut seen, mut open) = (BTreeSet::new(), HashSet::new(), vec![start]);
        let mut steps = Vec::new();
        while let Some(mut state) = open.pop() {
            if !settle(&self.plan, &mut state.threads) || seen.contains(&state) {
                continue;
            }
            if seen.len() == STATES_MAX {
                return Err(NotThere::TooMany(STATES_MAX));
            }
            steps.clear();
            state.machine.enabled(&mut steps);
            // A step that no other thread can observe may be taken first.
            let quiet = steps.iter().find(|step| self.is_quiet(&state, **step));
            if let Some(quiet) = quiet {
                open.push(self.step(&state, *quiet));
            } else {
                for thread in 0..state.threads.len() {
                    open.extend(self.call(&state, thread)?);
                }
                open.extend(steps.iter().map(|step| self.step(&state, *step)));
            }
            let is_over =
                self.plan.threads.iter().zip(&state.threads).all(|(program, at)| at.next == program.steps.len());
            if is_over && state.machine.is_idle() {
                let registers = state.threads.iter().flat_map(|at| at.registers.iter().cloned());
                let words = self.words.iter().map(|word| Value::number(state.machine.memory(*word) as i64));
                outcomes.insert(registers.chain(words).collect());
            }
            seen.insert(state);
        }
        Ok(outcomes)
    }

    /// Whether taking a step at once loses no outcome: see [`Machine::is_quiet`]. Its rule for absent memory also
    /// holds for places that no other call accesses: no thread can observe when they are read or written. Returned old
    /// values are stored to such a place here.
    fn is_quiet(&self, state: &State, step: machine::Step) -> bool {
        let machine::Step::Nic { thread, peer, sequence, part } = step else { return state.machine.is_quiet(step) };
        let mut issued = state.threads[usize::from(thread.0)].issued.iter();
        let Some(issued) = issued.find(|it| (it.peer, it.sequence) == (peer, sequence)) else { return false };
        let (local, remote) = issued.is_alone;
        let crossing = state.machine.crossing(step);
        match (part, crossing) {
            (Part::Pass, _) => true,
            // NLR of a put; NRR of a get, NAR.
            (Part::Read(_), None) => local,
            (Part::Read(_), Some(_)) => remote,
            (Part::Modify, _) => remote,
            // NRW enters its buffer; NLW does.
            (Part::Start, Some(Crossing::There)) => state.machine.is_quiet(step),
            (Part::Start, _) => local,
            (Part::Land(_), _) => {
                if issued.is_put {
                    remote
                } else {
                    local
                }
            }
        }
    }

    fn step(&self, state: &State, step: machine::Step) -> State {
        let mut state = state.clone();
        if let Some(completion) = state.machine.apply(step).completion {
            let key = (completion.thread, completion.peer, completion.sequence);
            if let Some(at) = state.results.iter().position(|result| result.0 == key) {
                let (_, loc) = state.results.swap_remove(at);
                state.machine.poke(loc, completion.words[0]);
                state.results.sort_unstable();
            }
        }
        state
    }

    /// The thread's next call, if it has one and it does not wait.
    fn call(&self, state: &State, thread: usize) -> Result<Option<State>, NotThere> {
        let at = &state.threads[thread];
        let Some(Step::Call(into, operation)) = self.plan.threads[thread].steps.get(at.next) else { return Ok(None) };
        let thread = Thread(thread as u16);
        let number = |number: &Number| number.of(&at.registers).map(|it| it as u64).map_err(NotThere::Value);
        let is_complete = |issued: &Issued| state.machine.is_complete(thread, issued.peer, issued.sequence);
        let is_alone =
            |local: usize, remote: usize| (self.plan.words[local].mentions == 1, self.plan.words[remote].mentions == 1);
        let mut next = state.clone();
        let mut found = None;
        match operation {
            Operation::Write(at, value) => next.machine.write(thread, self.words[*at].word, number(value)?),
            Operation::Read(at) => found = Some(state.machine.read(thread, self.words[*at].word)),
            Operation::Mfence | Operation::Cas(..) if !state.machine.is_drained(thread) => return Ok(None),
            Operation::Mfence => {}
            Operation::Cas(at, old, new) => {
                let (at, old, new) = (self.words[*at].word, number(old)?, number(new)?);
                found = Some(next.machine.compare_exchange(thread, at, old, new));
            }
            Operation::Put { id, to, from } => {
                let source = Source::Cells(self.words[*from].word);
                let put = machine::Operation::Put { source, to: self.words[*to], words: 1, last_mask: u64::MAX };
                next.issue(thread, *id, put, is_alone(*from, *to));
            }
            Operation::Get { id, to, from } => {
                let into = Some(self.words[*to].word);
                let get = machine::Operation::Get { from: self.words[*from], words: 1, into };
                next.issue(thread, *id, get, is_alone(*to, *from));
            }
            Operation::Rfence(node) => {
                let fence = machine::Operation::Fence { node: *node as Node };
                next.issue(thread, NAMELESS, fence, (false, false));
            }
            Operation::RCas(Rmw { id, into, at, .. }, old, new) => {
                let cas = machine::Operation::Cas { at: self.words[*at], expected: number(old)?, new: number(new)? };
                let key = next.issue(thread, *id, cas, is_alone(*into, *at));
                next.bring(key, self.words[*into]);
            }
            Operation::RFaa(Rmw { id, into, at, .. }, addend) => {
                let faa = machine::Operation::Faa { at: self.words[*at], addend: number(addend)? };
                let key = next.issue(thread, *id, faa, is_alone(*into, *at));
                next.bring(key, self.words[*into]);
            }
            Operation::Wait(id) => {
                if !at.issued.iter().filter(|issued| issued.id == *id).all(is_complete) {
                    return Ok(None);
                }
            }
            Operation::Poll(node) => {
                let mut issued = next.at(thread).issued.iter_mut();
                let oldest = issued.find(|issued| usize::from(issued.peer) == *node && issued.is_unpolled);
                let Some(oldest) = oldest.filter(|oldest| is_complete(oldest)) else { return Ok(None) };
                oldest.is_unpolled = false;
            }
            Operation::Object(..) => unreachable!("the machine's plans have words only"),
        }
        let at = next.at(thread);
        at.next += 1;
        if let Some(register) = into {
            at.registers[*register] = found.map_or(Value::None, |word| Value::number(word as i64));
        }
        Ok(Some(next))
    }
}

impl State {
    fn at(&mut self, thread: Thread) -> &mut At {
        &mut self.threads[usize::from(thread.0)]
    }

    /// A thread begins an operation: which one it is on the machine.
    fn issue(
        &mut self,
        thread: Thread,
        id: usize,
        operation: machine::Operation,
        is_alone: (bool, bool),
    ) -> (Thread, Node, u32) {
        let is_put = matches!(operation, machine::Operation::Put { .. });
        let is_unpolled = !matches!(operation, machine::Operation::Fence { .. });
        let (peer, sequence) = self.machine.issue(thread, operation);
        self.at(thread).issued.push(Issued { id, peer, sequence, is_unpolled, is_put, is_alone });
        (thread, peer, sequence)
    }

    /// Stores the old value of an operation in a word.
    fn bring(&mut self, operation: (Thread, Node, u32), to: Loc) {
        self.results.push((operation, to));
        self.results.sort_unstable();
    }
}

/// Advances each thread to its next call: no other thread observes the steps between. False if an execution does not
/// count.
pub(crate) fn settle(plan: &Plan, threads: &mut [At]) -> bool {
    plan.threads.iter().zip(threads).all(|(program, at)| {
        while let Some(Step::Own(own)) = program.steps.get(at.next) {
            at.next += 1;
            own.take(&mut at.next, &mut at.registers);
        }
        !matches!(program.steps.get(at.next), Some(Step::Again(_)))
    })
}
