//! Runs of litmus tests on simulated nodes: the code of endpoints that ships, over a machine with choices that are
//! drawn at random from a seed. The same seed gives the same executions.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Result, bail};
use farfield::fabric::{GroupKey, memory_fence, sim};
use farfield::mutants;
use farfield_check::{Budget, Scenario, check_with, choose, replay, timeline_of};
use indicatif::ProgressBar;
use mowgli::litmus::Value;
use mowgli::run::{ObjectKind, Plan, Stopped};

use super::calls::{Calls, Layout, Pace};
use super::objects::{Objects, Parts};
use super::{Ask, Counts};

/// Runs a plan. Of the first execution with an outcome that is not `allowed`, it also lists the events.
pub(super) fn run(
    name: &str,
    plan: &Plan,
    iterations: u64,
    ask: &Ask,
    allowed: &BTreeSet<Vec<Value>>,
    bar: &ProgressBar,
) -> Result<(Counts, Option<String>)> {
    mutants::enable(ask.mutant)?;
    let seed = ask.seed;
    let counts: Arc<Mutex<Counts>> = Arc::default();
    let counted = Arc::clone(&counts);
    let all = scenario(name, plan, move |outcome| {
        let mut counts = counted.lock().unwrap_or_else(PoisonError::into_inner);
        counts.iterations += 1;
        match outcome {
            Some(outcome) => counts.add(outcome),
            None => counts.not_finished += 1,
        }
    });
    let report = check_with(&all, Budget::executions(iterations), seed, |report| bar.set_position(report.executions));
    if let Some(finding) = report.finding {
        bail!("execution {} of seed {seed} has failed: {}", finding.execution, finding.failure.message);
    }
    let counts = std::mem::take(&mut *counts.lock().unwrap_or_else(PoisonError::into_inner));
    if counts.states.keys().all(|state| allowed.contains(state)) {
        return Ok((counts, None));
    }
    // The same executions again, of which the first that is forbidden is a failure: so it is found, and made short.
    let expected = allowed.clone();
    let strict = scenario(name, plan, move |outcome| match outcome {
        Some(outcome) if !expected.contains(&outcome) => sim::fail("this outcome is forbidden".to_owned()),
        _ => {}
    });
    let finding = check_with(&strict, Budget::executions(iterations), seed, |_| {}).finding;
    let listed = finding.map(|finding| {
        let shrunk = finding.shrunk(&strict);
        let outcome = replay(&strict, &shrunk.replay);
        let events = timeline_of(&strict, &shrunk.replay, &outcome).to_text();
        format!("Execution {} of seed {seed}, made short\n{events}", finding.execution)
    });
    Ok((counts, listed))
}

/// The plan as a scenario: `ended` is told the outcome of each execution, or that a thread has not finished.
fn scenario(name: &str, plan: &Plan, ended: impl Fn(Option<Vec<Value>>) + Send + Sync + 'static) -> Scenario {
    let (plan, ended) = (Arc::new(plan.clone()), Arc::new(ended));
    Scenario::new(&format!("litmus/{name}"), "a litmus test", plan.nodes, move |stage| {
        // A pair is kept whole in two ways. All threads take the same, which the first of them has chosen.
        let has_pairs = plan.objects.iter().any(|object| matches!(object.kind, ObjectKind::Owned { .. }));
        let instances = if has_pairs { 2 } else { 1 };
        let chosen: Rc<OnceCell<usize>> = Rc::default();
        let layout = Layout::new(&plan, instances, |(node, bytes)| stage.node(node).alloc(GroupKey::DATA, bytes))?;
        let layout = Rc::new(layout);
        for (at, word) in plan.words.iter().enumerate() {
            (0..instances).for_each(|instance| layout.word(at, instance).store(word.starts.cast_unsigned()));
        }
        let objects: Rc<Vec<Objects>> = Rc::new(if plan.objects.is_empty() {
            (0..plan.nodes).map(|_| Objects::default()).collect()
        } else {
            let plan = Arc::clone(&plan);
            stage.on_each(move |node| Objects::open(&plan, instances, node))?
        });
        memory_fence();
        let registers: Rc<RefCell<Vec<Vec<Value>>>> = Rc::default();
        let is_finished = Rc::new(Cell::new(true));
        for (at, program) in plan.threads.iter().enumerate() {
            registers.borrow_mut().push(vec![Value::None; program.registers]);
            let parts = Parts::take(&plan, at, &objects[program.node])?;
            let (plan, layout, objects) = (Arc::clone(&plan), Rc::clone(&layout), Rc::clone(&objects));
            let (node, chosen) = (program.node, Rc::clone(&chosen));
            let (registers, is_finished) = (Rc::clone(&registers), Rc::clone(&is_finished));
            stage.thread_that_drops(program.node, &format!("P{at}"), move |endpoint| {
                let mut calls = Calls::new(endpoint, &layout, &objects[node], parts, Pace::Simulated);
                let choice = if instances > 1 { choose(instances) } else { 0 };
                calls.begin(*chosen.get_or_init(|| choice));
                let mut own = vec![Value::None; plan.threads[at].registers];
                let ran = plan.threads[at].run(&mut own, &mut calls);
                match ran {
                    Ok(()) => registers.borrow_mut()[at] = own,
                    Err(Stopped::NotFinished) => is_finished.set(false),
                    Err(stopped) => sim::fail(format!("P{at} has stopped: {stopped:?}")),
                }
                if let Err(error) = calls.finish() {
                    sim::fail(format!("P{at}: {error:#}"));
                }
                Ok(())
            });
        }
        let (plan, ended) = (Arc::clone(&plan), Arc::clone(&ended));
        stage.at_end(move || {
            let registers = registers.borrow();
            let register = |thread: usize, at: usize| registers[thread][at].clone();
            let instance = chosen.get().copied().unwrap_or(0);
            let word = |at| layout.word(at, instance).load().cast_signed();
            drop(objects);
            ended(is_finished.get().then(|| plan.outcome(register, word)));
            Ok(())
        });
        Ok(())
    })
}
