//! Model checking for objects over network memory: the compiled code that ships, on a simulated session whose every
//! choice the search owns.
//!
//! A [`Scenario`] is a small program over a few nodes, and what must be true of it. [`check`] runs it many times, each
//! time with other choices of what happens when; [`exhaust`] looks at all executions of a small one. A failure comes with
//! a [`Replay`]: a line that leads to the same execution again, and that can be [shrunk](Finding::shrunk).
//!
//! Write scenarios for objects of your own as [`scenarios`] does for Farfield's.
#![forbid(unsafe_code)]

mod scenario;
pub mod scenarios;
mod search;
pub mod timeline;
mod trace;

pub use farfield::fabric::sim::{Failure, FailureKind, Faults, Outcome};
pub use scenario::{Log, Scenario, Stage, Starter, choose, crashed, note, stood_still};
pub use search::{Budget, Finding, Replay, ReplayError, Report, check, check_with, exhaust, exhaust_with, replay};
pub use trace::timeline_of;
