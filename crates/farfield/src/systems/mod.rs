//! Systems: complete facilities that are built from objects, or beside them.

pub mod locks;
pub mod transactions;
