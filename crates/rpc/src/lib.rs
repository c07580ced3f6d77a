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
mod options;
#[cfg(any(not(seeded), clippy, doc, rust_analyzer))]
mod server;
mod service;
#[cfg(test)]
mod tests;

pub use call::{BatchCall, Call};
pub use client::Client;
pub use errors::{EffectUnknown, NoReply, ReplyTooLong, ServerClosed, WindowFull};
pub use incoming::Incoming;
pub use options::RpcOptions;
pub use server::Server;
