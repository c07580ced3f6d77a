//! Limits of what is enumerated.

use crate::relation::SUBEVENTS_MAX;

/// More of a thread are too many.
pub(crate) const TRACES_MAX: usize = 100_000;

/// Why the executions of a test cannot be enumerated.
///
/// ```
/// # use mowgli::{TooLarge, enumerate::{Detail, consistent}, litmus::Test, model::Models};
/// let text = format!("x86tso t {{ x@1; }} P0@1 {{ {} }} exists (x=1)", "Write(x, 1); ".repeat(200));
/// let test = Test::parse("t.litmus", &text, &Models::builtin()).unwrap();
/// assert!(matches!(consistent(&test, Detail::Shown), Err(TooLarge::Subevents(_))));
/// ```
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TooLarge {
    /// A thread alone may do too many things.
    #[error(
        "P{0} alone has more than {TRACES_MAX} ways to go: it needs fewer calls that read, or its places fewer values"
    )]
    Traces(usize),
    /// The executions are too many.
    #[error(
        "more than {} candidates for executions: the test needs fewer calls or threads",
        crate::enumerate::CANDIDATES_MAX
    )]
    Candidates,
    /// An execution has too many subevents.
    #[error(
        "an execution has {0} subevents or more, and {max} are the most that are looked at: it needs fewer calls",
        max = SUBEVENTS_MAX
    )]
    Subevents(usize),
}
