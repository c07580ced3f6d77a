//! The objects. Each module explains its object: its source, its memory, its guarantees,
//! and what its calls cost.

pub mod atomic_var;
pub mod barrier;
pub(crate) mod cancel_guard;
pub mod channel;
pub(crate) mod codec;
#[cfg(feature = "serde")]
pub(crate) mod encoded;
pub(crate) mod holding;
pub mod kv;
pub mod mutex;
pub(crate) mod options;
pub mod owned_var;
pub(crate) mod participants;
pub mod queue;
pub mod release;
pub mod ring_buffer;
pub mod shared_var;
pub mod sst;
pub(crate) mod wait_limit;
