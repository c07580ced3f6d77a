//! The data types of `farfield-hamband`: against their specifications, against the checks of what they declare, and
//! replicated.
//!
//! They are here, and not beside that crate, for the time to build them: a profile belongs to a package, that crate is
//! optimised for its scenarios, and all types in all instances take ten times as long with it. Nothing here takes long
//! to run.

mod check;
mod crdts;
mod effects;
mod replicas;
mod types;
