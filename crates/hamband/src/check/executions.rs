//! Executions of the abstract semantics (§3.2, figure 5) with the coordination that a type declares.

use super::laws::{Laws, name_of, shown};
use super::refuted::{Example, Refuted, Relation};
use crate::data_type::{DataType, Update};

/// A step of an execution. Steps that its conditions forbid are left out.
#[derive(Clone, Debug)]
pub(super) enum Step<U> {
    /// The rule CALL.
    Call { process: usize, call: U },
    /// The rule PROP, of one of the calls that were made.
    Propagate { process: usize, call: usize },
}

/// A call that was made: where, and the calls there before it.
struct Made<U> {
    call: U,
    process: usize,
    before: Vec<usize>,
}

/// Processes, each with a state and the calls that lead to it.
struct World<'a, T: DataType> {
    laws: &'a Laws<T>,
    made: Vec<Made<T::Update>>,
    states: Vec<T>,
    histories: Vec<Vec<usize>>,
    /// The history, in words.
    told: Vec<(String, String)>,
}

impl<T: DataType> Laws<T> {
    /// One execution: these steps, and then all propagations that are left. The number of its calls.
    pub(super) fn execute(&self, processes: usize, steps: &[Step<T::Update>]) -> Result<usize, Refuted> {
        let states = vec![self.initial.clone(); processes];
        let mut world = World { laws: self, made: vec![], states, histories: vec![vec![]; processes], told: vec![] };
        for step in steps {
            match step {
                Step::Call { process, call } => world.call(process % processes, call)?,
                Step::Propagate { process, call } if !world.made.is_empty() => {
                    world.propagate(process % processes, call % world.made.len())?;
                }
                Step::Propagate { .. } => {}
            }
        }
        let mut goes_on = true;
        while goes_on {
            goes_on = false;
            for process in 0..processes {
                for call in 0..world.made.len() {
                    goes_on |= world.propagate(process, call)?;
                }
            }
        }
        if world.histories.iter().all(|history| history.len() == world.made.len()) {
            Ok(world.made.len())
        } else {
            Err(world.refuted(Relation::ExecutionStuck))
        }
    }
}

impl<T: DataType> World<'_, T> {
    /// The rule CALL, if its conditions hold.
    fn call(&mut self, process: usize, call: &T::Update) -> Result<(), Refuted> {
        let coordination = &self.laws.coordination;
        let here = &self.histories[process];
        let is_synchronised = |(number, other): (usize, &Made<T::Update>)| {
            here.contains(&number) || !coordination.conflicts(other.call.method(), call.method())
        };
        let is_possible = self.made.iter().all(|other| !(self.laws.never_both)(&other.call, call));
        if !is_possible
            || !self.made.iter().enumerate().all(is_synchronised)
            || self.laws.then(&self.states[process], call).is_err()
        {
            return Ok(());
        }
        self.made.push(Made { call: call.clone(), process, before: here.clone() });
        self.apply(process, self.made.len() - 1)
    }

    /// The rule PROP, if its conditions hold; whether they did.
    fn propagate(&mut self, process: usize, number: usize) -> Result<bool, Refuted> {
        let here = &self.histories[process];
        if here.contains(&number) {
            return Ok(false);
        }
        let Made { call, before, .. } = &self.made[number];
        let coordination = &self.laws.coordination;
        let conflicts = |other: &usize| coordination.conflicts(call.method(), self.made[*other].call.method());
        let earlier = self.histories.iter().filter_map(|history| {
            let place = history.iter().position(|other| *other == number)?;
            Some(&history[..place])
        });
        let is_ordered = earlier.flatten().all(|other| here.contains(other) || !conflicts(other));
        let dependencies = coordination.dependencies(call.method());
        let depends = |other: &usize| dependencies.contains(&self.made[*other].call.method());
        if !is_ordered || before.iter().any(|other| depends(other) && !here.contains(other)) {
            return Ok(false);
        }
        self.apply(process, number).map(|()| true)
    }

    fn apply(&mut self, process: usize, number: usize) -> Result<(), Refuted> {
        let Made { call, process: of, .. } = &self.made[number];
        let (call, is_own) = (call.clone(), *of == process);
        let label = if is_own {
            format!("process {process} calls {call:?}")
        } else {
            format!("process {process} applies {call:?} of process {of}")
        };
        let outcome = self.laws.then(&self.states[process], &call);
        self.told.push((label, shown(&outcome)));
        self.histories[process].push(number);
        match outcome {
            Ok(state) => self.states[process] = state,
            Err(_) => return Err(self.refuted(Relation::ExecutionIntegrity { method: name_of(&call) })),
        }
        let sorted = |process: usize| {
            let mut history = self.histories[process].clone();
            history.sort_unstable();
            history
        };
        let (own, state) = (sorted(process), &self.states[process]);
        if (0..self.states.len()).all(|other| self.states[other] == *state || sorted(other) != own) {
            Ok(())
        } else {
            Err(self.refuted(Relation::ExecutionConvergence))
        }
    }

    fn refuted(&self, relation: Relation) -> Refuted {
        let initial = ("before".to_owned(), format!("{:?}", self.laws.initial));
        let lines = [initial].into_iter().chain(self.told.iter().cloned()).collect();
        Refuted { relation, example: Example { reached_by: vec![], lines } }
    }
}
