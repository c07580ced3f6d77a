//! The x86-TSO machine: a memory, and a buffer of writes for each thread. Owens, Sarkar, Sewell, "A better x86 memory
//! model: x86-TSO" (TPHOLs 2009).
//!
//! [`machine`](crate::machine) has store buffers too, among much else. This one has nothing else, and shares with its
//! driver only the reading of programs and the steps in a thread's registers: so its agreement with that machine and
//! the model `x86tso` is not one mistake made three times.

use std::collections::{BTreeSet, HashSet, VecDeque};

use crate::explore::{At, NotThere, STATES_MAX, plan, settle};
use crate::litmus::{Test, Value};
use crate::run::{Number, Operation, Plan, Step};

/// The methods that the machine has.
const METHODS: [&str; 4] = ["Write", "Read", "CAS", "Mfence"];

#[derive(Clone, PartialEq, Eq, Hash)]
struct State {
    memory: Vec<i64>,
    threads: Vec<At>,
    /// The writes of each thread that no other thread sees yet, the oldest first.
    buffers: Vec<VecDeque<(usize, i64)>>,
}

/// All outcomes of a test that uses `x86tso` alone: the observed final values, in the order of [`Test::observables`].
///
/// # Errors
/// It uses something else, or takes too long.
///
/// ```
/// # use mowgli::{litmus::Test, model::Models, tso::outcomes};
/// let text = "x86tso SB { x@1; y@1; }
///     P0@1 { Write(x, 1); let a = Read(y); }
///     P1@1 { Write(y, 1); let b = Read(x); }
///     exists (0:a=0 /\\ 1:b=0)";
/// let test = Test::parse("SB.litmus", text, &Models::builtin())?;
/// assert_eq!(outcomes(&test)?.len(), 4);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn outcomes(test: &Test) -> Result<BTreeSet<Vec<Value>>, NotThere> {
    let plan = plan(test, |library, method| library == "x86tso" && METHODS.contains(&method))?;
    let start = State {
        memory: plan.words.iter().map(|word| word.starts).collect(),
        threads: At::start(&plan),
        buffers: vec![VecDeque::new(); plan.threads.len()],
    };
    let (mut outcomes, mut seen, mut open) = (BTreeSet::new(), HashSet::new(), vec![start]);
    while let Some(mut state) = open.pop() {
        if !settle(&plan, &mut state.threads) || seen.contains(&state) {
            continue;
        }
        if seen.len() == STATES_MAX {
            return Err(NotThere::TooMany(STATES_MAX));
        }
        let before = open.len();
        for thread in 0..state.threads.len() {
            open.extend(call(&plan, &state, thread)?);
            if !state.buffers[thread].is_empty() {
                let mut next = state.clone();
                next.drain(thread);
                open.push(next);
            }
        }
        // A waiting thread waits for its buffer, so none waits for ever.
        if open.len() == before {
            let registers = state.threads.iter().flat_map(|at| at.registers.iter().cloned());
            outcomes.insert(registers.chain(state.memory.iter().copied().map(Value::number)).collect());
        }
        seen.insert(state);
    }
    Ok(outcomes)
}

impl State {
    /// The oldest write of a thread reaches memory.
    fn drain(&mut self, thread: usize) {
        if let Some((at, value)) = self.buffers[thread].pop_front() {
            self.memory[at] = value;
        }
    }
}

/// The thread's next call, if it has one and its buffer lets it.
fn call(plan: &Plan, state: &State, thread: usize) -> Result<Option<State>, NotThere> {
    let at = &state.threads[thread];
    let Some(Step::Call(into, operation)) = plan.threads[thread].steps.get(at.next) else { return Ok(None) };
    let number = |number: &Number| number.of(&at.registers).map_err(NotThere::Value);
    let is_drained = state.buffers[thread].is_empty();
    let mut next = state.clone();
    next.threads[thread].next += 1;
    let mut found = None;
    match operation {
        Operation::Write(at, value) => next.buffers[thread].push_back((*at, number(value)?)),
        Operation::Read(at) => {
            let own = state.buffers[thread].iter().rev().find(|write| write.0 == *at);
            found = Some(own.map_or(state.memory[*at], |write| write.1));
        }
        Operation::Mfence | Operation::Cas(..) if !is_drained => return Ok(None),
        Operation::Mfence => {}
        Operation::Cas(at, old, new) => {
            found = Some(state.memory[*at]);
            if found == Some(number(old)?) {
                next.memory[*at] = number(new)?;
            }
        }
        _ => unreachable!("the test calls none but the machine's methods"),
    }
    if let Some(register) = into {
        next.threads[thread].registers[*register] = found.map_or(Value::None, Value::number);
    }
    Ok(Some(next))
}
