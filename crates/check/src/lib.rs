//! Model checking for objects over network memory: the compiled code that ships, on a simulated session. The search
//! controls every choice of the simulation.
//!
//! A [`Scenario`] is a small program over a few nodes, with the properties that must hold. [`check`] runs it many
//! times, each time with another order of events; [`exhaust`] runs all executions of a small one. A failure carries a
//! [`Replay`]: a line that leads to the same execution again, and that can be [shrunk](Finding::shrunk).
//!
//! Write scenarios for objects of your own as [`farfield-scenarios`](https://docs.rs/farfield-scenarios) does for
//! Farfield's; [`parts`] has what they have in common.
//!
//! With the feature `cli`, [`main`] is the command line of `farfield check` for scenarios of your own.
#![forbid(unsafe_code)]

#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod cli;
mod log;
pub mod parts;
mod scenario;
mod search;
pub mod timeline;
mod trace;

#[cfg(feature = "cli")]
#[doc(inline)]
pub use cli::{Program, main};
pub use farfield_core::fabric::sim::{Failure, FailureKind, Faults, Outcome};
pub use log::Log;
pub use scenario::{Cluster, Scenario, Starter, choose, crashed, note, was_paused, with_at_once, with_slow};
pub use search::{
    Budget, Finding, RandomExecution, Replay, ReplayError, Report, check, check_one, check_with, exhaust, exhaust_with,
    replay,
};
pub use trace::timeline_of;
