//! What fabrics between hosts have in common: membership, memory, rights and freeing. A
//! [`Carrier`](carrier::Carrier) moves the data.
//!
//! - `fabric`: [`HostFabric`], one node. `connections`: which lanes reach which memory, and `message`: the nodes'
//!   messages about it. `control`: the connections between nodes over TCP that carry them.
//! - `layout`: the memory of a group as its owner announces it; `memory`: that of this node, `keeper` and `pages`: its
//!   pages. `sleepers`: threads that wait.
//! - `carrier`: the parts that differ.

pub(crate) mod carrier;
pub(crate) mod connections;
pub(crate) mod control;
mod fabric;
pub(crate) mod keeper;
pub(crate) mod layout;
pub(crate) mod memory;
mod message;
mod options;
pub(crate) mod pages;
pub(crate) mod sleepers;

pub use fabric::HostFabric;
pub use options::HostOptions;
