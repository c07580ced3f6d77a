//! `farfield bench`: what objects and fabrics do on this machine.

mod barrier;
mod broadcast;
mod collectives;
mod fabric;
mod handoff;
mod idle;
mod journal;
mod kv;
mod locks;
pub(crate) mod measurement;
pub(crate) mod memory;
mod options;
mod peer;
mod plot;
mod queue;
mod rome;
mod slices;
mod swarm;
mod threads;
mod transfers;
mod worker;
mod workload;
mod wrdt;

use anyhow::Result;
use clap::{Args, Subcommand};

#[derive(Args)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve YCSB workloads from a key-value store spread over several processes
    Kv(kv::KvArgs),
    /// Take and release locks that are spread over several processes
    Locks(locks::LocksArgs),
    /// Move amounts between accounts that are spread over several processes
    Transfers(transfers::TransfersArgs),
    /// Meet at a barrier, with all threads of several processes
    Barrier(barrier::BarrierArgs),
    /// Send messages from one process to all others through a ring buffer
    Broadcast(broadcast::BroadcastArgs),
    /// Broadcast, reduce, gather and exchange data among several processes
    Collectives(collectives::CollectivesArgs),
    /// Enqueue and dequeue words, with all threads of several processes
    Queue(queue::QueueArgs),
    /// Scan a sorted map of another process, beside local maps; read objects of another process whole
    Rome(rome::RomeArgs),
    /// Compare the replicated store with other ways to keep values on memory nodes, and kill one of these
    Swarm(swarm::SwarmArgs),
    /// Compare replicated data types with state machine replication and message passing, and kill a node
    Wrdt(wrdt::WrdtArgs),
    /// Wait for long for an object of another process
    Idle(idle::IdleArgs),
    /// Time waited-for 8-byte put, get, cas and faa to another process
    Fabric(fabric::FabricArgs),
}

pub(crate) fn main(args: BenchArgs) -> Result<()> {
    match args.command {
        Command::Kv(args) => kv::main(&args),
        Command::Locks(args) => locks::main(&args),
        Command::Transfers(args) => transfers::main(&args),
        Command::Barrier(args) => barrier::main(&args),
        Command::Broadcast(args) => broadcast::main(&args),
        Command::Collectives(args) => collectives::main(&args),
        Command::Queue(args) => queue::main(&args),
        Command::Rome(args) => rome::main(&args),
        Command::Swarm(args) => swarm::main(&args),
        Command::Wrdt(args) => wrdt::main(&args),
        Command::Idle(args) => idle::main(&args),
        Command::Fabric(args) => fabric::main(&args),
    }
}
