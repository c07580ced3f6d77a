//! All outcomes of a litmus test on the [machine](crate::machine): every order of its steps.
//!
//! The machine knows the CPU's methods and RDMA's: those of `x86tso`, `rdmawait`, `rdmatso` and `rdmarmw`.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use crate::litmus::{Argument, Call, Expression, Instruction, NodeNumber, Place, Test, Value};
use crate::machine::{Crossing, Loc, Machine, Node, Operation, Part, Source, Step, Thread};
use crate::run::{NotRunnable, Plan};
use crate::trace::{compare, evaluate};

/// Why a test does not run on the machine.
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

/// Those whose methods the machine has.
const LIBRARIES: &[&str] = &["x86tso", "rdma", "rdmawait", "rdmatso", "rdmarmw"];
/// How many states are looked at: some kilobytes each in small tests.
pub(crate) const STATES_MAX: usize = 1_000_000;

/// All outcomes of a test on the machine: what is seen at the end, in the order of [`Test::observables`].
///
/// # Errors
/// It uses what the machine does not have.
///
/// ```
/// # use mowgli::{explore::outcomes, litmus::Test, model::Models};
/// let text = "rdmawait fig_1 { x@1; z@2; } P0@1 { Put(d, z, x); Write(x, 1); } exists (z=1)";
/// let test = Test::parse("fig_1.litmus", text, &Models::builtin())?;
/// assert_eq!(outcomes(&test)?.len(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn outcomes(test: &Test) -> Result<BTreeSet<Vec<Value>>, NotThere> {
    let mut driver = Driver { test, places: BTreeMap::new(), uses: uses(test) };
    let mut machine = Machine::new(test.nodes.len().max(1));
    let mut sizes: BTreeMap<Node, u32> = BTreeMap::new();
    for place in test.places() {
        let node = number_of(test, place.1);
        let size = sizes.entry(node).or_default();
        let loc = Loc { node, word: *size };
        *size += 1;
        machine.grow(loc.node, *size);
        machine.poke(loc, number(test.objects[place.0].starts.as_ref().expect("places have an initial value"))?);
        driver.places.insert(place, loc);
    }
    let mut threads = Vec::new();
    for thread in &test.threads {
        machine.add_thread(number_of(test, thread.node));
        threads.push(At::start(thread.registers.len()));
        for instruction in &thread.code {
            if let Instruction::Call(_, call) = instruction {
                let library = &test.libraries[call.library].name;
                if !LIBRARIES.contains(&library.as_str()) {
                    return Err(NotThere::Method(format!("{library}.{}", call.method)));
                }
            }
        }
    }
    check(test)?;
    driver.explore(State { machine, threads, results: Vec::new() })
}

/// Whether all calls are those of the machine's libraries: a model of the same name may have other ones.
pub(crate) fn check(test: &Test) -> Result<(), NotThere> {
    match Plan::of(test, test) {
        Ok(_) => Ok(()),
        Err(NotRunnable::Starts(_, value)) => Err(NotThere::Value(value)),
        Err(NotRunnable::Method(method)) => Err(NotThere::Method(method)),
        Err(NotRunnable::Text(_)) => unreachable!("the test was read"),
    }
}

/// The machine's number for a node: it has those that the test names.
fn number_of(test: &Test, node: NodeNumber) -> Node {
    test.nodes.binary_search(&node).expect("a test knows its nodes") as Node
}

/// How many calls are about each object.
fn uses(test: &Test) -> Vec<usize> {
    let mut uses = vec![0; test.objects.len()];
    for step in test.threads.iter().flat_map(|thread| &thread.code) {
        if let Instruction::Call(_, call) = step {
            for argument in &call.arguments {
                if let Argument::Object(object) = argument {
                    uses[*object] += 1;
                }
            }
        }
    }
    uses
}

fn number(value: &Value) -> Result<u64, NotThere> {
    value.as_number().map(|number| number as u64).ok_or_else(|| NotThere::Value(value.clone()))
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
    id: Option<usize>,
    peer: Node,
    sequence: u32,
    /// It can be polled and was not.
    is_unpolled: bool,
    is_put: bool,
    /// It is the only call that is about its local place, and about its remote one.
    is_alone: (bool, bool),
}

impl At {
    pub(crate) fn start(registers: usize) -> At {
        At { next: 0, registers: vec![Value::number(0); registers], issued: Vec::new() }
    }
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct State {
    machine: Machine,
    threads: Vec<At>,
    /// Where the old values of read-modify-writes go.
    results: Vec<((Thread, Node, u32), Loc)>,
}

struct Driver<'a> {
    test: &'a Test,
    places: BTreeMap<Place, Loc>,
    /// How many calls are about each object.
    uses: Vec<usize>,
}

impl Driver<'_> {
    fn explore(&self, start: State) -> Result<BTreeSet<Vec<Value>>, NotThere> {
        let (mut outcomes, mut seen, mut open) = (BTreeSet::new(), HashSet::new(), vec![start]);
        let mut steps = Vec::new();
        while let Some(mut state) = open.pop() {
            if !settle(self.test, &mut state.threads) || seen.contains(&state) {
                continue;
            }
            if seen.len() == STATES_MAX {
                return Err(NotThere::TooMany(STATES_MAX));
            }
            steps.clear();
            state.machine.enabled(&mut steps);
            // One that nobody can see may be taken first.
            let quiet = steps.iter().find(|step| self.is_quiet(&state, **step));
            if let Some(quiet) = quiet {
                open.push(self.step(&state, *quiet));
            } else {
                for thread in 0..state.threads.len() {
                    open.extend(self.call(&state, thread)?);
                }
                open.extend(steps.iter().map(|step| self.step(&state, *step)));
            }
            let is_over = self.test.threads.iter().zip(&state.threads).all(|(thread, at)| at.next == thread.code.len());
            if is_over && state.machine.is_idle() {
                let seen = self.test.observables().into_iter().map(|observable| match observable {
                    crate::litmus::Observable::Register(thread, register) => {
                        state.threads[thread].registers[register].clone()
                    }
                    crate::litmus::Observable::Place(place) => {
                        Value::number(state.machine.memory(self.places[&place]) as i64)
                    }
                });
                outcomes.insert(seen.collect());
            }
            seen.insert(state);
        }
        Ok(outcomes)
    }

    /// Whether taking a step at once loses no outcome: see [`Machine::is_quiet`]. What it says of memory that is not there is also
    /// true of places that no other call is about: when they are read or written is seen by nobody. Old values that come back go to a
    /// place here.
    fn is_quiet(&self, state: &State, step: Step) -> bool {
        let Step::Nic { thread, peer, sequence, part } = step else { return state.machine.is_quiet(step) };
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

    fn step(&self, state: &State, step: Step) -> State {
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
        let Some(Instruction::Call(into, call)) = self.test.threads[thread].code.get(at.next) else { return Ok(None) };
        let id = Thread(thread as u16);
        let place = |argument: usize| match call.arguments[argument] {
            Argument::Object(object) => self.places[&(object, self.test.objects[object].home.unwrap_or_default())],
            _ => unreachable!("the models of the machine are built in"),
        };
        let value = |argument: usize| match &call.arguments[argument] {
            Argument::Value(value) => number(&evaluate(&at.registers, value)),
            _ => unreachable!("the models of the machine are built in"),
        };
        let is_complete = |issued: &Issued| state.machine.is_complete(id, issued.peer, issued.sequence);
        let mut next = state.clone();
        next.threads[thread].next += 1;
        let mut result = Value::None;
        match call.method.as_str() {
            "Write" => next.machine.write(id, place(0).word, value(1)?),
            "Read" => result = Value::number(state.machine.read(id, place(0).word) as i64),
            "Mfence" | "CAS" if !state.machine.is_drained(id) => return Ok(None),
            "Mfence" => {}
            "CAS" => {
                result = Value::number(next.machine.compare_exchange(id, place(0).word, value(1)?, value(2)?) as i64);
            }
            "Put" | "Get" | "Rfence" | "RCas" | "RFaa" => self.issue(&mut next, thread, call)?,
            "Wait" => {
                let Argument::Id(name) = call.arguments[0] else {
                    unreachable!("the models of the machine are built in")
                };
                if !at.issued.iter().filter(|issued| issued.id == Some(name)).all(is_complete) {
                    return Ok(None);
                }
            }
            "Poll" => {
                let Argument::Node(node) = call.arguments[0] else {
                    unreachable!("the models of the machine are built in")
                };
                let oldest =
                    at.issued.iter().position(|issued| issued.peer == number_of(self.test, node) && issued.is_unpolled);
                let Some(oldest) = oldest.filter(|oldest| is_complete(&at.issued[*oldest])) else { return Ok(None) };
                next.threads[thread].issued[oldest].is_unpolled = false;
            }
            other => return Err(NotThere::Method(other.to_owned())),
        }
        if let Some(register) = into {
            next.threads[thread].registers[*register] = result;
        }
        Ok(Some(next))
    }

    fn issue(&self, next: &mut State, thread: usize, call: &Call) -> Result<(), NotThere> {
        let (mut ids, mut objects, mut alone, mut values) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut operation = None;
        for argument in &call.arguments {
            match argument {
                Argument::Id(id) => ids.push(*id),
                Argument::Object(object) => {
                    alone.push(self.uses[*object] == 1);
                    objects.push(self.places[&(*object, self.test.objects[*object].home.unwrap_or_default())]);
                }
                Argument::Value(value) => values.push(self.number(next, thread, value)?),
                Argument::Node(node) => operation = Some(Operation::Fence { node: number_of(self.test, *node) }),
                Argument::Nodes(_) => return Err(NotThere::Method(call.method.clone())),
            }
        }
        let is_fence = operation.is_some();
        let operation = match (call.method.as_str(), operation) {
            (_, Some(fence)) => fence,
            ("Put", _) => {
                Operation::Put { source: Source::Cells(objects[1].word), to: objects[0], words: 1, last_mask: u64::MAX }
            }
            ("Get", _) => Operation::Get { from: objects[1], words: 1, into: Some(objects[0].word) },
            ("RCas", _) => Operation::Cas { at: objects[1], expected: values[0], new: values[1] },
            _ => Operation::Faa { at: objects[1], addend: values[0] },
        };
        let brings = matches!(operation, Operation::Cas { .. } | Operation::Faa { .. });
        let id = Thread(thread as u16);
        let (peer, sequence) = next.machine.issue(id, operation);
        let is_put = matches!(call.method.as_str(), "Put");
        // A put names the remote place first.
        let is_alone = match alone[..] {
            [remote, local] if is_put => (local, remote),
            [local, remote] => (local, remote),
            _ => (false, false),
        };
        let id_of = ids.first().copied();
        next.threads[thread].issued.push(Issued {
            id: id_of,
            peer,
            sequence,
            is_unpolled: !is_fence,
            is_put,
            is_alone,
        });
        if brings {
            next.results.push(((id, peer, sequence), objects[0]));
            next.results.sort_unstable();
        }
        Ok(())
    }

    fn number(&self, state: &State, thread: usize, value: &Expression) -> Result<u64, NotThere> {
        number(&evaluate(&state.threads[thread].registers, value))
    }
}

/// Goes on to the next call of each thread: what is between is nobody else's. False if an execution does not count.
pub(crate) fn settle(test: &Test, threads: &mut [At]) -> bool {
    for (thread, at) in test.threads.iter().zip(threads) {
        while let Some(instruction) = thread.code.get(at.next) {
            at.next += 1;
            match instruction {
                Instruction::Call(..) => {
                    at.next -= 1;
                    break;
                }
                Instruction::Stop(_) => return false,
                Instruction::Jump(to) => at.next = *to,
                Instruction::Set(register, value) => at.registers[*register] = evaluate(&at.registers, value),
                Instruction::Unless(left, comparison, right, to) => {
                    let (left, right) = (evaluate(&at.registers, left), evaluate(&at.registers, right));
                    if !compare(&left, *comparison, &right) {
                        at.next = *to;
                    }
                }
            }
        }
    }
    true
}
