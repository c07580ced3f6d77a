//! The results of a test, as herd prints them.

use std::fmt;

use crate::enumerate::Outcomes;
use crate::litmus::{Observable, Quantifier, Test, Value};

/// The outcomes of a test, as herd7 prints them, but for the line with the time.
pub struct Herd<'a> {
    /// The test.
    pub test: &'a Test,
    /// Its outcomes.
    pub outcomes: &'a Outcomes,
}

impl fmt::Display for Herd<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Herd { test, outcomes } = self;
        let Outcomes { states, observables, positive, negative } = outcomes;
        writeln!(f, "Test {} {}", test.name, test.quantifier.kind())?;
        writeln!(f, "States {}", states.len())?;
        for state in states.keys() {
            writeln!(f, "{}", seen(test, observables, state))?;
        }
        write!(f, "{}", Answer { test, positive: *positive, negative: *negative })
    }
}

/// The values that are seen, as herd7 prints them: `0:a=1; [x]=0;`.
pub fn seen(test: &Test, observables: &[Observable], state: &[Value]) -> String {
    let seen = observables.iter().zip(state).map(|(observable, value)| match observable {
        Observable::Register(..) => format!("{}={value};", test.name_of(*observable)),
        Observable::Place(_) => format!("[{}]={value};", test.name_of(*observable)),
    });
    seen.collect::<Vec<_>>().join(" ")
}

/// The answer to a test's question, as herd7 and litmus7 print it.
pub struct Answer<'a> {
    /// The test.
    pub test: &'a Test,
    /// How often its condition holds.
    pub positive: u64,
    /// How often it does not.
    pub negative: u64,
}

impl fmt::Display for Answer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Answer { test, positive, negative } = self;
        writeln!(f, "{}", if test.quantifier.is_met(*positive, *negative) { "Ok" } else { "No" })?;
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
