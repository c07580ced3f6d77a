//! Declarations of the part of libibverbs that Farfield uses, which is loaded at run time.
//!
//! That part is what puts, gets and remote atomics over reliable connections (RC) need: devices, ports, GIDs, memory
//! registration, device memory, completion queues and queue pairs with the classic and with the extended calls, the
//! query for in-order placement, and asynchronous events.
//!
//! Left out are datagrams, shared receive queues, XRC, on-demand paging, completion channels, flow steering, memory
//! windows, and sends that carry a message. Fields of these are there, since C has them in between, as [`Skipped`].
//!
//! # How to use it
//!
//! Functions that the library exports are fields of [`Verbs`], under their C names, once the library is loaded.
//! Functions that C's headers define inline (posting, polling, what calls through a context) are functions of this
//! crate, and need no library: they call through the object's own function pointers, so an object may also be one that
//! a test made.
//!
//! ```no_run
//! use farfield_verbs_sys::Verbs;
//!
//! let verbs = Verbs::get()?; // says which package to install if there is no library
//! let mut devices = 0;
//! // SAFETY: the list is freed once, and not used afterwards.
//! unsafe {
//!     let list = (verbs.ibv_get_device_list)(&mut devices);
//!     if !list.is_null() {
//!         (verbs.ibv_free_device_list)(list);
//!     }
//! }
//! println!("{devices} devices");
//! # Ok::<(), farfield_verbs_sys::LoadError>(())
//! ```
//!
//! The manual pages (`man ibv_post_send`) say what a function does and demands. They are its safety
//! contract; the comments here only add to them. Three ways to report a failure occur, named at each
//! function: *errno value* (0 is success, else the error number itself), *-1 and errno*, *null and errno*.
//!
//! # Why not a published crate
//!
//! The published ones run bindgen over the machine's headers, or build rdma-core or C stubs, and most link the library.
//! Building Farfield must need neither headers nor libclang nor cmake, and a machine without the library must still
//! run everything else. The declarations are therefore checked in. A test compares sizes, offsets, field types, values
//! of constants and prototypes with the system's headers, where there are any.

#![allow(non_camel_case_types, reason = "the names are C's, as the manual pages have them")]

mod completion;
mod context;
mod device;
mod load;
mod memory;
mod queue_pair;

#[cfg(test)]
mod layout;

pub use completion::*;
pub use context::*;
pub use device::*;
pub use farfield_c_decl::{MissingFunction, MissingLibrary, Skipped, SkippedFn};
pub use load::{LoadError, Verbs};
pub use memory::*;
pub use queue_pair::*;

/// A 32-bit number in network byte order.
pub type be32 = u32;
/// A 64-bit number in network byte order.
pub type be64 = u64;
