//! Sessions of several processes, some of which are killed, stopped and started again.

mod blocked;
mod closing;
mod deaths;
mod failover;
mod returns;
mod rome;
mod rpc;
mod session;
