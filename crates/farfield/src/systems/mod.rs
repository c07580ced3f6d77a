//! The systems: what is built of objects, or beside them, to be used as a whole.

pub mod locks;
pub mod transactions;
