//! What was found out about a test, as herd prints it.

use std::fmt;

use crate::enumerate::Outcomes;
use crate::litmus::{Observable, Quantifier, Test};

/// The outcomes of a test, as herd7 prints them, but for the line with the time.
pub struct Herd<'a> {
    /// The test.
    pub test: &'a Test,
    /// What can happen in it.
    pub outcomes: &'a Outcomes,
}

impl fmt::Display for Herd<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Herd { test, outcomes } = self;
        let Outcomes { states, observables, positive, negative } = outcomes;
        let kind = match test.quantifier {
            Quantifier::Exists => "Allowed",
            Quantifier::NotExists => "Forbidden",
            Quantifier::Forall => "Required",
        };
        writeln!(f, "Test {} {kind}", test.name)?;
        writeln!(f, "States {}", states.len())?;
        for state in states.keys() {
            let seen = observables.iter().zip(state).map(|(observable, value)| match observable {
                Observable::Register(..) => format!("{}={value};", test.name_of(*observable)),
                Observable::Place(_) => format!("[{}]={value};", test.name_of(*observable)),
            });
            writeln!(f, "{}", seen.collect::<Vec<_>>().join(" "))?;
        }
        writeln!(f, "{}", if outcomes.is_ok(test.quantifier) { "Ok" } else { "No" })?;
        let (witnesses, others) = match test.quantifier {
            Quantifier::NotExists => (negative, positive),
            _ => (positive, negative),
        };
        writeln!(f, "Witnesses\nPositive: {witnesses} Negative: {others}")?;
        writeln!(f, "Condition {} {}", test.quantifier, test.question)?;
        let often = match (positive, negative) {
            (0, _) => "Never",
            (_, 0) => "Always",
            _ => "Sometimes",
        };
        writeln!(f, "Observation {} {often} {positive} {negative}", test.name)
    }
}
