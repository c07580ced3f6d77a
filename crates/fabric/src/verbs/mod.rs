//! The fabric over real RDMA.

pub mod control;
