//! From a failing execution to one with fewer choices that fails in the same way.

use std::time::{Duration, Instant};

use farfield_core::fabric::sim::FailureKind;

use super::script::{Replay, Script};
use super::{Finding, run};
use crate::scenario::Scenario;

const EXECUTIONS_MAX: u64 = 20_000;
const TIME_MAX: Duration = Duration::from_secs(10);

/// Removes choices, half of them, a quarter, … one, as long as a failure of the same kind remains. Then it tries
/// smaller choices for the rest.
pub(super) fn shrink(scenario: &Scenario, finding: &Finding) -> Finding {
    let start = Instant::now();
    let mut executions = 0;
    let mut best = finding.clone();
    let mut attempt = |best: &mut Finding, choices: Vec<(usize, u16)>| {
        executions += 1;
        if executions > EXECUTIONS_MAX || start.elapsed() > TIME_MAX {
            return None;
        }
        let replay = best.replay.with(choices);
        let outcome = run(scenario, Box::new(Script::new(&replay)), false);
        // Nothing ends while a cut lasts: that is no failure of the scenario.
        let waits_for_fault = |kind| kind == FailureKind::TooLong && outcome.fault_lasts;
        let is_same = |kind| kind == finding.failure.kind && !waits_for_fault(kind);
        let failure = outcome.failure.filter(|failure| is_same(failure.kind))?;
        // The choices really made: a number beyond the last candidate is the first.
        let made = Replay::new(&scenario.name, replay.eager, replay.early_timeouts, &outcome.choices);
        if (made.len(), made.choices.last()) > (best.replay.len(), best.replay.choices.last()) {
            return None;
        }
        (best.replay, best.failure) = (made, failure);
        Some(())
    };
    loop {
        let before = best.replay.clone();
        let mut chunk = best.replay.len().div_ceil(2).max(1);
        while chunk > 0 {
            let mut at = 0;
            while at < best.replay.len() {
                let mut choices = best.replay.choices.clone();
                choices.drain(at..(at + chunk).min(choices.len()));
                if attempt(&mut best, choices).is_none() {
                    at += chunk;
                }
            }
            chunk /= 2;
        }
        for at in 0..best.replay.len() {
            let Some((_, choice)) = best.replay.choices.get(at).copied() else { break };
            for smaller in 1..choice {
                let mut choices = best.replay.choices.clone();
                choices[at].1 = smaller;
                if attempt(&mut best, choices).is_some() {
                    break;
                }
            }
        }
        if best.replay == before {
            return best;
        }
    }
}
