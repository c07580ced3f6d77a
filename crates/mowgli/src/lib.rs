//! Mowgli: the memory model that Farfield's objects are written against, executable, and the specifications of libraries above it.
//! After the LOCO paper and its framework Mowgli.
//!
//! | module | contents |
//! |---|---|
//! | [`model`] | libraries as texts: methods, stamped subevents, and which executions are consistent |
//! | [`stamp`] | the stamp order, one table |
//! | [`litmus`] | litmus tests, and [implementations](litmus::Implementation) of libraries as programs |
//! | [`enumerate`] | all consistent executions of a test |
//! | [`witness`], `draw` | an execution that answers a test's question, or the cycle that forbids one; and its picture (the feature `draw`) |
//! | [`refine`] | whether an implementation shows what its specification forbids |
//! | [`compose`] | whether a library is monotone and decomposable, so that it may be used beside others |
//! | [`machine`] | RDMA^TSO as plain data: store buffers, queue pairs, the buffers of the NICs, and the steps that are possible. It stands alone: its driver decides which step is next |
//! | [`explore`], [`tso`] | all outcomes of a test on that machine, and on x86-TSO's |
//! | [`random`] | programs by seed, to compare outcomes that should be equal |
//! | [`report`] | the results of a test, as herd prints them |
#![forbid(unsafe_code)]

pub mod compose;
#[cfg(feature = "draw")]
pub mod draw;
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
pub mod tso;
pub mod witness;

pub use trace::TooLarge;
