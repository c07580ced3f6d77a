//! Mowgli: the memory model that Farfield's objects are written against, executable.
//!
//! [`machine`] is the operational model RDMA^TSO as plain data: store buffers, queue pairs, and the write buffers of the
//! NICs on both sides, with the steps that are possible ([`machine::Machine::enabled`]) and what each does
//! ([`machine::Machine::apply`]). It stands alone: whoever drives it decides which step is next.
#![forbid(unsafe_code)]

pub mod enumerate;
mod execution;
pub mod explore;
pub mod litmus;
pub mod machine;
pub mod model;
pub mod random;
pub mod refine;
pub mod relation;
pub mod report;
pub mod run;
pub mod stamp;
pub mod text;
mod trace;

pub use trace::TooLarge;
