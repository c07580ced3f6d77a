//! Finds how little coordination a sequential type needs when it is replicated, and proves it or shows why not.
//!
//! ```text
//! text ──parser──► syntax ──specification──► core ──question, translate──► SMT-LIB ──solver──► z3
//!                  (types are checked)        │                                                │
//!                                             relations, summary: one question each ◄──────────┘
//!                                             │
//!                                             graph: groups, dependencies, categories ──► report, picture
//! ```
//!
//! # Relations
//!
//! | relation of two methods | question: is there a counterexample? | §3.2 |
//! |---|---|---|
//! | S-commute | c₁ ∘ c₂ ≠ c₂ ∘ c₁ | state-conflict |
//! | invariant-sufficient (one method) | I(σ), and c is not permissible in σ | invariant-sufficiency |
//! | 𝒫-R-commute | c₁ is permissible in σ, and not in c₂(σ) | permissible-conflict |
//! | 𝒫-L-commute | c₂ is permissible in c₁(σ), and not in σ | dependency |
//! | summarisable (§3.3) | c₂(c₁(σ)) ≠ c(σ), for a call c that is given | |
//!
//! Two methods *conflict* if calls of them do not S-commute, or if one does not 𝒫-R-commute with the other and is not
//! invariant-sufficient. A method *depends* on another if it is not invariant-sufficient and does not 𝒫-L-commute with
//! it. Connected components of the conflict graph are *synchronisation groups*. A *summarisation group* is a set of
//! methods that is closed under summaries. The [categories](Category) follow from these (§3.3).
//!
//! The relations of methods are those of all their calls: a counterexample has the two calls' arguments, too.
//! S-commutativity is symmetric, and asked once for two methods; a method that is invariant-sufficient is not asked for
//! the other two relations; and methods that touch different state variables need no question. [`Analysis`] has the
//! counts.
//!
//! What the solver does not decide in time counts as a conflict, a dependency, or no summary ([`Verdict::Undecided`]).
//!
//! `docs/hamband.md` has the language. Source: Houshmand, Saberlatibari and Lesani, *Hamband: RDMA Replicated Data
//! Types*, PLDI 2022, §§2, 3; the use of a solver follows Houshmand and Lesani, *Hamsaz*, POPL 2019.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "it is no object, and waits for another program"
)]

mod core;
mod counterexample;
#[cfg(test)]
mod executions;
#[cfg(test)]
mod exhaustive;
mod graph;
mod lexer;
mod parser;
mod picture;
mod question;
mod relations;
mod report;
mod sexpr;
mod solver;
mod specification;
mod summary;
mod syntax;
mod text;
mod translate;
mod types;
mod value;

pub use counterexample::{Counterexample, ShownState};
pub use graph::{Analysis, Category, Method, Options, Pair, analyse};
pub use picture::svg;
pub use relations::{States, Verdict};
pub use solver::SolverError;
pub use specification::Specification;
pub use summary::SummaryVerdict;
pub use text::{Position, SpecError};
pub use types::Type;
