//! Remote procedure calls over one-sided puts.

#![forbid(unsafe_code)]

#[cfg(any(not(seeded), clippy, doc, rust_analyzer))]
mod call;
#[cfg(any(not(seeded), clippy, doc, rust_analyzer))]
mod client;
mod errors;
#[cfg(any(not(seeded), clippy, doc, rust_analyzer))]
mod incoming;
#[cfg(any(not(seeded), clippy, doc, rust_analyzer))]
mod layout;
pub mod mutants;
mod options;
#[cfg(any(not(seeded), clippy, doc, rust_analyzer))]
mod server;
mod service;
// The unit tests run none of them, and are built sooner without.
#[cfg(all(feature = "scenarios", not(test)))]
pub mod scenarios;
#[cfg(test)]
mod tests;

// Where the seeded bugs are on, copies of the modules that have a `cfg(any(not(seeded), …))` (`mutants`).
#[cfg(all(seeded, not(any(clippy, doc, rust_analyzer))))]
include!(concat!(env!("OUT_DIR"), "/seeded.rs"));

pub use call::{BatchCall, Call};
pub use client::Client;
pub use errors::{EffectUnknown, NoReply, ReplyTooLong, ServerClosed, WindowFull};
pub use incoming::Incoming;
pub use options::RpcOptions;
pub use server::Server;
