//! ROMe
#![forbid(unsafe_code)]

#[cfg(any(not(seeded), clippy, doc, rust_analyzer))]
mod arena;
mod errors;
mod field;
#[cfg(any(not(seeded), clippy, doc, rust_analyzer))]
mod gate;
mod layout;
pub mod mutants;
#[cfg(any(not(seeded), clippy, doc, rust_analyzer))]
mod object;
mod open;
mod options;
#[cfg(any(not(seeded), clippy, doc, rust_analyzer))]
mod page;
#[cfg(any(not(seeded), clippy, doc, rust_analyzer))]
mod seats;
#[cfg(any(not(seeded), clippy, doc, rust_analyzer))]
mod store;
#[cfg(any(not(seeded), clippy, doc, rust_analyzer))]
mod tree;

pub use self::errors::{MemoryFull, NotOneInstant, RangeUnavailable, SnapshotExpired};
pub use self::field::{Bytes, Field, TreeKey};
pub use self::object::{ObjectReader, ObjectWriter, RomeObject};
pub use self::options::{ObjectOptions, TreeOptions};
pub use self::store::{RomeKv, RomeKvOptions, RomeKvScan, RomeKvThread, RomeKvUpdate};
pub use self::tree::{Change, LocalScan, Memory, Partition, RomeTree, Scan, TreeReader};

// The unit tests run none of them, and are built sooner without.
#[cfg(all(feature = "scenarios", not(test)))]
pub mod scenarios;

// Where the seeded bugs are on, copies of the modules that have a `cfg(any(not(seeded), …))` (`mutants`).
#[cfg(all(seeded, not(any(clippy, doc, rust_analyzer))))]
include!(concat!(env!("OUT_DIR"), "/seeded.rs"));

#[cfg(test)]
mod tests;
