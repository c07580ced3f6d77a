//! Mowgli: the memory model that Farfield's objects are written against, executable, and the specifications of
//! libraries above it. After the LOCO paper and its framework Mowgli.
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
//!
//! # Running a test on a memory
//!
//! A [`run::Memory`] makes the calls of a thread. In this one every call takes effect at once. `farfield litmus --run`
//! has the memories of Farfield's fabrics.
//!
//! ```
//! use mowgli::{litmus::Value, model::Models, run::{Memory, ObjectCall, Rmw, prepare}};
//!
//! struct AtOnce(Vec<i64>);
//!
//! impl Memory for AtOnce {
//!     type Error = std::convert::Infallible;
//!     fn write(&mut self, at: usize, value: i64) -> Result<(), Self::Error> { Ok(self.0[at] = value) }
//!     fn read(&mut self, at: usize) -> Result<i64, Self::Error> { Ok(self.0[at]) }
//!     fn put(&mut self, _: usize, to: usize, from: usize) -> Result<(), Self::Error> { Ok(self.0[to] = self.0[from]) }
//!     fn get(&mut self, _: usize, to: usize, from: usize) -> Result<(), Self::Error> { Ok(self.0[to] = self.0[from]) }
//!     fn wait(&mut self, _: usize) -> Result<(), Self::Error> { Ok(()) }
//!     // …
//! #   fn cas(&mut self, _: usize, _: i64, _: i64) -> Result<i64, Self::Error> { unimplemented!() }
//! #   fn mfence(&mut self) -> Result<(), Self::Error> { Ok(()) }
//! #   fn rfence(&mut self, _: usize) -> Result<(), Self::Error> { Ok(()) }
//! #   fn poll(&mut self, _: usize) -> Result<bool, Self::Error> { Ok(true) }
//! #   fn rmw(&mut self, _: Rmw) -> Result<(), Self::Error> { unimplemented!() }
//! #   fn on_object(&mut self, _: &ObjectCall, _: Value) -> Result<Value, Self::Error> { Ok(Value::None) }
//! #   fn again(&mut self) -> Result<bool, Self::Error> { Ok(false) }
//! }
//!
//! let text = "rdmawait t { x@1 = 5; z@2; } P0@1 { Put(d, z, x); Wait(d); Write(x, 1); } exists (z=5)";
//! let prepared = prepare("t.litmus", text, &Models::builtin())?;
//! let (plan, program) = (&prepared.plan, &prepared.plan.threads[0]);
//! let mut memory = AtOnce(plan.words.iter().map(|word| word.starts).collect());
//! let mut registers = vec![Value::None; program.registers];
//! program.run(&mut registers, &mut memory).unwrap();
//! let outcome = plan.outcome(|_, register| registers[register].clone(), |word| memory.0[word]);
//! assert_eq!(prepared.holds(&outcome), Some(true));
//! # Ok::<(), mowgli::run::NotRunnable>(())
//! ```
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
mod too_large;
mod trace;
pub mod tso;
pub mod witness;

pub use too_large::TooLarge;
