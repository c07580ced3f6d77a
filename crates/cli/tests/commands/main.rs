//! The binary `farfield`, end to end. One program, since most of these tests wait: those of one command go on beside
//! those of others. The pace of `chaos` is judged, and `terminal` counts lines on a screen: they are programs of their
//! own.

#![forbid(unsafe_code)]

mod bench;
mod bench_locks;
mod bench_objects;
mod bench_transfers;
mod check;
mod exit;
mod litmus;
mod memory;
mod report;
mod run;
mod wrdt;
