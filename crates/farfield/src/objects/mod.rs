//! The objects. Each module says what its object is, where it comes from, how its memory looks, what it guarantees,
//! and what its calls cost.

pub mod atomic_var;
pub mod barrier;
pub mod kv;
pub mod mutex;
pub(crate) mod owed;
pub mod owned_var;
pub(crate) mod participants;
pub mod queue;
pub mod ring_buffer;
pub(crate) mod settle;
pub mod shared_var;
pub mod sst;
