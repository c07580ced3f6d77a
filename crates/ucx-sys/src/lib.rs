//! The part of UCX that Farfield uses, which is loaded at run time: declarations of UCP (libucp), and owned handles.
//!
//! It is the part for active messages: contexts, workers and their events, endpoints that report the failure of their
//! peer, sending and handling of messages, flushes. Left out are tags, streams, memory registration, puts, gets
//! and atomics of UCX, listeners, and rendezvous but for its declarations. Fields of these are there, since C has them
//! in between, as [`Skipped`].
//!
//! # How to use it
//!
//! ```no_run
//! use farfield_ucx_sys::{Context, ContextOptions, Worker};
//! use std::time::Duration;
//!
//! # fn peer() -> farfield_ucx_sys::Address { unimplemented!() }
//! let context = Context::new(&ContextOptions::default())?; // says which package to install if there is no library
//! let mut worker = Worker::new(&context)?;
//! worker.handle(1, |message| println!("{} bytes", message.data.len()))?;
//! let peer = worker.connect(&peer())?;
//! worker.send(&peer, 1, b"header", b"data")?;
//! while worker.check(&peer).is_ok() {
//!     worker.wait(Duration::from_secs(1))?;
//! }
//! # Ok::<(), farfield_ucx_sys::UcxError>(())
//! ```
//!
//! [`Context`] and [`Worker`] own objects of UCX. [`Endpoint`] and [`Request`] are places in their worker. Handles may
//! be dropped in any order: a worker keeps its context, closes its endpoints, and frees the memory that UCX points to
//! after UCX has freed its own. No call waits for a peer. Dropping a worker waits a second at most for its endpoints to
//! close. Dropping a worker or the last clone of a context also waits while another thread makes or frees a context or
//! a worker.
//!
//! The functions of the libraries are fields of [`Ucp`] and [`Ucs`], under their C names. The comments in `ucp.h`
//! describe each function and its conditions. They are its safety contract; the comments here only add to them.
//!
//! # Faults of UCX that this crate goes around
//!
//! - Contexts that are made at the same time may hang: contexts and workers are made and freed one at a time.
//! - An operation on an endpoint that has failed may crash: it is refused before, with the status of the failure, and
//!   the endpoint is closed by force as soon as progress has found the failure.
//! - Loading it changes the process: handlers of signals, code of the C library. It is loaded with options that prevent
//!   it, unless the environment sets them: `UCX_HANDLE_ERRORS`, `UCX_DEBUG_SIGNO`, `UCX_MEM_EVENTS`, `UCX_VFS_ENABLE`.
//!   Its log is silent, and goes to standard error: `UCX_LOG_LEVEL`, `UCX_LOG_FILE`.
//! - Closing an endpoint leaves work to progress without an event: progress says that there is more.
//!
//! Others remain:
//!
//! - UCX opens its sockets so that children have them, too. A program that starts others calls [`close_on_exec`] in
//!   each child before `exec`, or its peers do not see its death.
//! - While a peer has accepted a connection and not answered yet, UCX 1.13 reports events all the time: a worker that
//!   waits keeps its core busy.
//!
//! UCX has no defence against bytes that strangers send: neither in addresses (see [`Address::from_bytes`]) nor on its
//! TCP ports.
//!
//! # Why not a published crate
//!
//! The published ones build UCX from source or link it, or end the process on an error. Building Farfield must need
//! neither headers nor libclang nor autotools, and a machine without the library must still run everything else. The
//! declarations are therefore checked in. A test compares sizes, offsets, field types, values of constants and
//! prototypes with the system's headers, where there are any.

#![allow(non_camel_case_types, reason = "the names are C's, as the header has them")]

mod callback;
mod connection;
mod context;
mod environment;
mod error;
mod handle;
mod load;
mod send;
mod sleep;
mod ucp;
mod ucs;
mod worker;

#[cfg(test)]
mod layout;

pub use callback::Message;
pub use context::{Context, ContextOptions};
pub use error::{Status, UcxError};
pub use farfield_c_decl::{MissingFunction, MissingLibrary, Skipped, SkippedFn};
pub use handle::{Endpoint, Request};
pub use load::{LoadError, OLDEST, Ucp, UcpVersion, Ucs, Ucx, Version};
pub use send::{HEADER_BYTES_MAX, MESSAGE_BYTES_MAX};
pub use sleep::{Sleeper, Slept, Waker, close_on_exec};
pub use ucp::*;
pub use ucs::*;
pub use worker::{ADDRESS_BYTES_MAX, Address, Worker};
