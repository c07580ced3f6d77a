//! The results of a test, as herd prints them.

use std::fmt;

use crate::enumerate::Outcomes;
use crate::litmus::{Observable, Quantifier, Test, Value};

/// The outcomes of a test, as herd7 prints them, but for the line with the time.
///
/// ```
/// # use mowgli::{litmus::Test, model::Models};
/// # let text = "x86tso SB { x@1; y@1; }
/// #     P0@1 { Write(x, 1); let a = Read(y); }
/// #     P1@1 { Write(y, 1); let b = Read(x); }
/// #     exists (0:a=0 /\\ 1:b=0)";
/// # let test = Test::parse("SB.litmus", text, &Models::builtin())?;
/// # use mowgli::{enumerate::{Detail, consistent}, report::Herd};
/// let outcomes = consistent(&test, Detail::Executions)?;
/// let printed = Herd { test: &test, outcomes: &outcomes }.to_string();
/// assert!(printed.starts_with("Test SB Allowed\nStates 4\n0:a=0; 1:b=0;\n"));
/// assert!(printed.contains("Observation SB Sometimes 1 3"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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
///
/// ```
/// # use mowgli::{litmus::Test, model::Models};
/// # let text = "x86tso SB { x@1; y@1; }
/// #     P0@1 { Write(x, 1); let a = Read(y); }
/// #     P1@1 { Write(y, 1); let b = Read(x); }
/// #     exists (0:a=0 /\\ 1:b=0)";
/// # let test = Test::parse("SB.litmus", text, &Models::builtin())?;
/// # use mowgli::{litmus::Value, report::seen};
/// let printed = seen(&test, &test.shown, &[Value::number(0), Value::number(1)]);
/// assert_eq!(printed, "0:a=0; 1:b=1;");
/// # Ok::<(), mowgli::text::Error>(())
/// ```
pub fn seen(test: &Test, observables: &[Observable], state: &[Value]) -> String {
    let seen = observables.iter().zip(state).map(|(observable, value)| match observable {
        Observable::Register(..) => format!("{}={value};", test.name_of(*observable)),
        Observable::Place(_) => format!("[{}]={value};", test.name_of(*observable)),
    });
    seen.collect::<Vec<_>>().join(" ")
}

/// The answer to a test's question, as herd7 and litmus7 print it.
///
/// ```
/// # use mowgli::{litmus::Test, model::Models};
/// # let text = "x86tso SB { x@1; y@1; }
/// #     P0@1 { Write(x, 1); let a = Read(y); }
/// #     P1@1 { Write(y, 1); let b = Read(x); }
/// #     exists (0:a=0 /\\ 1:b=0)";
/// # let test = Test::parse("SB.litmus", text, &Models::builtin())?;
/// # use mowgli::report::Answer;
/// let answer = Answer { test: &test, positive: 0, negative: 1000 }.to_string(); // of a run, say
/// assert!(answer.starts_with("No\n") && answer.contains("Observation SB Never 0 1000"));
/// # Ok::<(), mowgli::text::Error>(())
/// ```
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
