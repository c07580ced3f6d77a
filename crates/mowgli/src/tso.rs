//! The x86-TSO machine: a memory, and a buffer of writes for each thread. Owens, Sarkar, Sewell, "A better x86 memory model: x86-TSO"
//! (TPHOLs 2009).
//!
//! [`machine`](crate::machine) has store buffers too, among much else. This one has nothing else, and shares with its driver
//! only what goes on in a thread's registers: what both of them and the model `x86tso` say is not one mistake made three times.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};

use crate::explore::{At, NotThere, STATES_MAX, check, settle};
use crate::litmus::{Argument, Instruction, Observable, Place, Test, Value};
use crate::trace::evaluate;

#[derive(Clone, PartialEq, Eq, Hash)]
struct State {
    memory: BTreeMap<Place, Value>,
    threads: Vec<At>,
    /// What each thread has written and nobody else sees, the oldest first.
    buffers: Vec<VecDeque<(Place, Value)>>,
}

/// All outcomes of a test that uses `x86tso` alone: what is seen at the end, in the order of [`Test::observables`].
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
    check(test)?;
    let starts = |place: Place| test.objects[place.0].starts.clone().unwrap_or_default();
    let start = State {
        memory: test.places().into_iter().map(|place| (place, starts(place))).collect(),
        threads: test.threads.iter().map(|thread| At::start(thread.registers.len())).collect(),
        buffers: vec![VecDeque::new(); test.threads.len()],
    };
    let (mut outcomes, mut seen, mut open) = (BTreeSet::new(), HashSet::new(), vec![start]);
    while let Some(mut state) = open.pop() {
        if !settle(test, &mut state.threads) || seen.contains(&state) {
            continue;
        }
        if seen.len() == STATES_MAX {
            return Err(NotThere::TooMany(STATES_MAX));
        }
        let before = open.len();
        for thread in 0..state.threads.len() {
            open.extend(call(test, &state, thread)?);
            if !state.buffers[thread].is_empty() {
                let mut next = state.clone();
                next.drain(thread);
                open.push(next);
            }
        }
        // Who waits waits for his buffer, so nobody stands still for ever.
        if open.len() == before {
            let seen = test.observables().into_iter().map(|observable| match observable {
                Observable::Register(thread, register) => state.threads[thread].registers[register].clone(),
                Observable::Place(place) => state.memory[&place].clone(),
            });
            outcomes.insert(seen.collect());
        }
        seen.insert(state);
    }
    Ok(outcomes)
}

impl State {
    /// The oldest write of a thread reaches memory.
    fn drain(&mut self, thread: usize) {
        if let Some((place, value)) = self.buffers[thread].pop_front() {
            self.memory.insert(place, value);
        }
    }
}

/// The thread's next call, if it has one and its buffer lets it.
fn call(test: &Test, state: &State, thread: usize) -> Result<Option<State>, NotThere> {
    let at = &state.threads[thread];
    let Some(Instruction::Call(into, call)) = test.threads[thread].code.get(at.next) else { return Ok(None) };
    let library = &test.libraries[call.library].name;
    if library != "x86tso" {
        return Err(NotThere::Method(format!("{library}.{}", call.method)));
    }
    let place = match call.arguments.first() {
        Some(Argument::Object(object)) => Some((*object, test.objects[*object].home.unwrap_or_default())),
        _ => None,
    };
    let value = |argument: usize| match &call.arguments[argument] {
        Argument::Value(value) => evaluate(&at.registers, value),
        _ => Value::None,
    };
    let is_drained = state.buffers[thread].is_empty();
    let mut next = state.clone();
    next.threads[thread].next += 1;
    let result = match (call.method.as_str(), place) {
        ("Write", Some(place)) => {
            next.buffers[thread].push_back((place, value(1)));
            Value::None
        }
        ("Read", Some(place)) => {
            let own = state.buffers[thread].iter().rev().find(|write| write.0 == place);
            own.map_or_else(|| state.memory[&place].clone(), |write| write.1.clone())
        }
        ("CAS", Some(place)) if is_drained => {
            let old = state.memory[&place].clone();
            if old == value(1) {
                next.memory.insert(place, value(2));
            }
            old
        }
        ("Mfence", None) if is_drained => Value::None,
        ("CAS" | "Mfence", _) => return Ok(None),
        (other, _) => return Err(NotThere::Method(other.to_owned())),
    };
    if let Some(register) = into {
        next.threads[thread].registers[*register] = result;
    }
    Ok(Some(next))
}
