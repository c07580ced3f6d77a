//! Objects of any size that remote nodes read whole by two gets, whatever their writers do; and a sorted map of them,
//! with linearizable range queries. After ROMe.
//!
//! ```text
//! region `memory` of the owner: its threads write, all nodes read; other nodes put where their seats are
//!   ┌────────┬──────────────────────┬─────────────────────────┬──────────────────────────────────────────────────┬─
//!   │ stable │ active words         │ locks, last versions,   │ block: header │ base │ log: records …    │ unused │ … blocks
//!   └────────┴──────────────────────┴─────────────────────────┴──────────────────────────────────────────────────┴─
//!              active word: block, end of its log ─────────────────────────────────────────────────▲
//! region `seats` of each node: its readers write, the owner reads
//!   ┌─────────┬──────────────┬────────┬─
//!   │ counter │ announcement │ unused │ … a line for each reader
//!   └─────────┴──────────────┴────────┴─
//! ```
//!
//! # Algorithm
//!
//! *A write* appends a record to the log, and then stores the active word with the log's new end. The bytes before an
//! end never change. When the log is full, the state is written into another block, and the active word names that one.
//!
//! *A read* gets the active word, and then the block up to its end.
//!
//! *Versions.* Each change of a tree takes a ticket, which is the version of what it writes, and of all nodes that it
//! changes. The word `stable` is raised to it when all earlier ones are stored. A scan gets `stable` first. It takes no
//! record that is later, and where a base is, it follows its name for the block before. So a scan sees one moment, and
//! no writer waits for it.
//!
//! *Reuse.* A reader announces in its own memory the last `stable` that it knows, before it reads. The owner reads the
//! announcements when it needs memory: a block that was replaced at a version is free when no reader announces an
//! earlier one.
//!
//! # Ordering
//!
//! *Record before active word* (`CW → CW`), and the reader waits for the active word before it posts the get of the
//! block (`NLW → WT → NRR`).
//!
//! *Active words before `stable`* (`CW → CAS`): whatever has a version up to it can be found.
//!
//! *Announcement before reads*: `CW → NRR` for operations, `CW → MF → CR` for the owner's threads.
//!
//! *`stable` before the announcements* (`CR → NRR`): a reader that had not announced itself when the owner looked reads
//! a later `stable`, and finds active words that no longer name the block.
//!
//! *Several trees at one instant* (`RomeKvThread::scan_at_one_instant`): `stable` of all is got, and when all gets have
//! ended (`NLW → WT`), it is got again. If none has changed, all had these versions at once. If one has, the gates of
//! the trees are closed before it is got again (`NRW → NRR`).
//!
//! *A tree that is moved* (`RomeKvThread::take_partition`): its `stable` is frozen by a `CAS`, copied as of that
//! version, and marked as moved by another `CAS`. Each read gets `stable`, and each change is a `CAS` of it, so both
//! find that out. `store/moving.rs` has the argument.
//!
//! `docs/rome.md` has the whole argument.
//!
//! # Costs
//!
//! | call | round trips | operations |
//! |---|---|---|
//! | `ObjectReader::read` | 2 | 2 gets, whatever the size |
//! | `TreeReader::get`, inner nodes remembered | 2 | 3 gets, of 8 and 8 bytes and a leaf |
//! | `TreeReader::multi_get`, the same | 3 for up to 64 leaves, 1 for each 64 more | 1 get, and 2 for each leaf |
//! | a scan | 1 for 16 leaves, about 750 pairs; backward, 3 for each inner node more | 2 gets for each leaf, and for each inner node |
//! | calls of the owner's threads | 0 | none |
//! | an update of a store, of a partition of another node | 1 | 1 put, and 1 put of the owner |
//! | [`RomeKvThread::scan_at_one_instant`], to begin | 2; with writers 4 or 5 | 2 gets for each partition; with writers 4 or 5, and 3 or 4 puts |
//! | [`RomeKvThread::first`] and `last` | 3; 2 more if that partition is empty | 4 or 5 gets; then 2 for each partition, too |
//! | [`RomeKvThread::take_partition`] | 3 calls of the owner, and a scan of the partition | |
//! | the owner, when its blocks are used up | 1, and more for a node that does not answer | a get of each node's seats |
//!
//! A node that was rewritten since the reader's version costs a round trip and a get more, for each time. A reader that
//! remembers outdated inner nodes searches once from the root, at one version: two gets for each level.
//!
//! # When a node dies, or leaves
//!
//! *The owner:* its data is gone, and calls of the readers fail.
//!
//! *A node that takes a partition:* the partition is where it was, and changes of it wait for a lease at most. After
//! the move it is its owner.
//!
//! *A reader* that stands still holds replaced blocks for the lease (`TreeOptions::lease`). It notices that, and
//! discards the data that it has read. One that is dead, or that the owner does not reach, holds them until the members
//! have decided about its node.
//!
//! *Readers come and go* at any time, also a node that is restarted: opening an object puts where the seats are into
//! the owner's memory.
//!
//! *A node that is restarted* comes back to a [`RomeKv`], without a partition; those of the node before it are lost.
//!
//! # Limits
//!
//! Clocks of the nodes run at rates that differ by less than a factor of two. Keys and values have a fixed number of
//! words ([`Field`]).
//!
//! Source: Nelson-Slivon, Yankovich, Hassan and Palmieri: ROMe: Wait-free Objects for RDMA (SPAA 2024). Versions,
//! predecessors, announcements with leases and the active word that names the block are ours.

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
mod reading;
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
