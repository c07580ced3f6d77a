//! ROMe
#![forbid(unsafe_code)]

mod arena;
mod errors;
mod field;
mod layout;
mod object;
mod open;
mod options;
mod page;
mod seats;
mod tree;

pub use self::errors::{MemoryFull, SnapshotExpired};
pub use self::field::{Bytes, Field, TreeKey};
pub use self::object::{ObjectReader, ObjectWriter, RomeObject};
pub use self::options::{ObjectOptions, TreeOptions};
pub use self::tree::{Change, LocalScan, Partition, RomeTree, Scan, TreeReader};

#[cfg(test)]
mod tests;
