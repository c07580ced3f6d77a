//! Hamband: well-coordinated replicated data types. A user writes a plain sequential type with an invariant; replicas
//! of it coordinate only where that is needed for them to converge and to keep the invariant.
//!
//! [`analysis`] finds out where: it reads a specification of the type, asks an SMT solver (the program `z3`), and puts
//! each update method into one of the paper's categories. `farfield wrdt analyse` is its command.
//!
//! ```
//! use farfield_hamband::analysis::{Category, Options, Specification, analyse};
//!
//! let text = "
//!     type Account {
//!         state { balance: int = 0 }
//!         invariant balance >= 0
//!         update deposit(amount: nat) { balance := balance + amount }
//!         update withdraw(amount: nat) {
//!             requires balance >= amount else \"the balance is too low\"
//!             balance := balance - amount
//!         }
//!     }";
//! let account = analyse(&Specification::parse("account.wrdt", text)?, &Options::default())?;
//! assert_eq!(account.category("deposit"), Some(Category::Reducible)); // each process may add up its deposits
//! assert_eq!(account.category("withdraw"), Some(Category::Conflicting)); // one leader orders all withdrawals
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`Replicated`] keeps replicas of such a type, a [`DataType`], on the nodes of a session. [`types`] has those of the
//! paper.
//!
//! # Memory
//!
//! Every node has, for each node with a replica, a *feed* of its irreducible conflict-free calls, two slots for each of
//! its summaries. Each synchronisation group has a replicated log, and slots for the calls that its leader orders
//! ([`Commands`](farfield_mu::Commands)). All are written by one node each.
//!
//! ```text
//! feeds         an entry: number, bytes, hash, call with its dependencies
//! summaries     a slot: number, hash, epoch, bytes, numbers of calls, call
//! taken, applied, repaired    how far this replica is with each feed and log, and with the dead
//! ```
//!
//! # Ordering
//!
//! No fence is needed: entries and summaries are whole when their hashes are right, entries have numbers, and a summary
//! has all calls of those before it. Where one put has to be seen before another (an entry's place is reused, an answer
//! belongs to a request), the receiver's own report or a number says so. The dependencies of a decided call lie at a
//! majority, or in its entry.
//!
//! | call, n nodes | round trips | operations |
//! |---|---|---|
//! | reducible | 0 | n − 1 puts |
//! | irreducible conflict-free | 0 | n − 1 puts; each replica returns room by 1 put for a quarter of the feed |
//! | conflicting, at the leader | 1, or 2 after new calls that it may depend on | n − 1 puts and gets, n − 1 puts that are not waited for; n − 1 gets |
//! | conflicting, elsewhere | 1 of the leader's, and half a one there and back | a put more |
//! | a query | 0 | none |
//!
//! Source: Houshmand, Saberlatibari and Lesani, *Hamband: RDMA Replicated Data Types*, PLDI 2022.

#![forbid(unsafe_code)]

pub mod analysis;
#[cfg(feature = "check")]
pub mod check;
#[cfg(any(not(seeded), clippy, doc, rust_analyzer))]
mod chores;
#[cfg(any(not(seeded), clippy, doc, rust_analyzer))]
mod conflicting;
mod coordination;
mod data_type;
mod errors;
#[cfg(any(not(seeded), clippy, doc, rust_analyzer))]
mod feed;
#[cfg(any(not(seeded), clippy, doc, rust_analyzer))]
mod local;
pub mod mutants;
mod opening;
mod options;
mod process;
#[cfg(any(feature = "check", feature = "scenarios"))]
pub mod recorded;
#[cfg(any(not(seeded), clippy, doc, rust_analyzer))]
mod repair;
#[cfg(any(not(seeded), clippy, doc, rust_analyzer))]
mod replica;
#[cfg(any(not(seeded), clippy, doc, rust_analyzer))]
mod replicated;
// The unit tests run none of them, and are built sooner without.
#[cfg(all(feature = "scenarios", not(test)))]
pub mod scenarios;
#[cfg(any(not(seeded), clippy, doc, rust_analyzer))]
mod summaries;
pub mod types;
mod watch;
mod writer;

// Where the seeded bugs are on, copies of the modules that have a `cfg(any(not(seeded), …))` (`mutants`).
#[cfg(all(seeded, not(any(clippy, doc, rust_analyzer))))]
include!(concat!(env!("OUT_DIR"), "/seeded.rs"));

pub use self::coordination::Coordination;
pub use self::data_type::{DataType, Method, Update};
pub use self::errors::{NoSummary, RefusedAtLength, WrongCoordination};
pub use self::options::ReplicatedOptions;
pub use self::replicated::Replicated;
pub use self::writer::Writer;
