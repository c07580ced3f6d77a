//! Hamband: well-coordinated replicated data types. A user writes a plain sequential type with an invariant; replicas of it coordinate
//! only where that is needed for them to converge and to keep the invariant.
//!
//! [`analysis`] finds out where: it reads a specification of the type, asks an SMT solver (the program `z3`), and puts each update
//! method into one of the paper's categories. `farfield wrdt analyse` is its command.
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
mod options;
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

// Where the seeded bugs are on, copies of the modules that have a `cfg(any(not(seeded), …))` (`mutants`).
#[cfg(all(seeded, not(any(clippy, doc, rust_analyzer))))]
include!(concat!(env!("OUT_DIR"), "/seeded.rs"));

pub use self::coordination::Coordination;
pub use self::data_type::{DataType, Method, Update};
pub use self::errors::{NoSummary, WrongCoordination};
pub use self::options::ReplicatedOptions;
pub use self::replicated::{Replicated, Writer};
