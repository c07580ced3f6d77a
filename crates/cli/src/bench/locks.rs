//! `farfield bench locks`: arrays of locks spread over several processes, measured side by side as ALock's evaluation
//! does.

mod draw;
mod plan;
mod plot;
mod report;
mod serve;
mod study;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;
use farfield::LockKind;
use farfield::mutants::{self, Mutant};

use self::plan::{Plan, Variant};
use self::report::Results;
use super::report::publish;
use super::worker::{self, Workers};
use crate::launch::FabricChoice;
use crate::output;

const HELP: &str = "\
Each thread of each process repeats: draw a lock, take it, add one to the counter that it protects, release it. The lock
is on the thread's own node with the probability of --locality, otherwise on another node; all locks there are equally
likely. The counter is on its lock's node and is accessed by plain loads and stores there, and by a get and a put from
elsewhere. Times run from the end of one turn to the end of the next, so they include drawing the lock and the counter,
for all kinds alike. Operations are counted for lock and unlock alone.

Every run checks exclusion: at the end the sum of the counters has to equal the number of acquisitions, or the run
fails.

The kinds take turns in each round, so that a disturbance of the machine affects all of them. Throughputs and ratios are
medians over the rounds; times and counts are those of all rounds together.

With --fabric shm there is no NIC: an operation on the own node is a processor's, and is counted as loopback all the
same. Use --fabric verbs to see what loopback costs.

Examples:
  farfield bench locks --kind spin,mutex --locks 20,100,1000 --locality 85,90,95,100 --nodes 3 --threads 4
  farfield bench locks --budgets
  farfield bench locks --loopback --threads 8 --svg loopback.svg --fabric verbs";

/// Take and release locks that are spread over several processes.
///
/// Measures how many are taken in a second, how long it takes, how evenly threads get on, and which operations it
/// costs.
#[derive(Args, Clone)]
#[command(after_long_help = HELP)]
pub(crate) struct LocksArgs {
    /// The kinds of lock to compare [default: all]
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    kind: Vec<LockKind>,
    /// Number of locks: fewer locks mean more contention [default: 100]
    #[arg(
        long,
        value_name = "COUNT",
        value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(1..=1_000_000),
    )]
    locks: Vec<u32>,
    /// Percentage of acquisitions of locks on the thread's own node [default: 90]
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', value_parser = clap::value_parser!(u8).range(0..=100))]
    locality: Vec<u8>,
    /// Processes, each a node of the session; all locks of a single one are its own
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    nodes: u16,
    /// The fabric that connects the processes
    #[arg(long, value_enum, default_value_t)]
    fabric: FabricChoice,
    /// Threads of each process
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: u16,
    /// Seconds for each kind, number of locks and locality, all rounds together
    #[arg(long, default_value_t = 1.5, allow_negative_numbers = true)]
    seconds: f64,
    /// Number of parts of each measurement: the kinds take turns between them
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Append the result of each measurement as a line of JSON to this file, or `-` for standard output
    #[arg(long)]
    json: Option<PathBuf>,
    /// Compare remote budgets of 5, 10 and 20 of ALock with a local budget of 5 [default: --locality 85,90,95]
    #[arg(long, conflicts_with_all = ["kind", "loopback"])]
    budgets: bool,
    /// One node whose threads reach their own locks through the NIC: the spinlock and ALock, by 1, 2, 4, … and at last
    /// --threads threads [default: --locks 1000]
    #[arg(long, conflicts_with_all = ["locality", "nodes"])]
    loopback: bool,
    /// Draw the result of --loopback into this file
    #[arg(long, value_name = "FILE", requires = "loopback")]
    svg: Option<PathBuf>,
    /// Seed a bug, to see that it is found
    #[arg(long, hide = true, value_name = "NAME", value_parser = crate::parts::mutant)]
    mutant: Option<Mutant>,
    /// Take no locks, to see that it is found
    #[arg(long, hide = true)]
    unlocked: bool,
}

pub(crate) fn main(args: &LocksArgs) -> Result<()> {
    if let Some(plan) = worker::plan()? {
        return serve::main(&plan, args.mutant);
    }
    mutants::enable(args.mutant)?;
    ensure!(args.seconds > 0.0 && args.seconds <= 86_400.0, "--seconds: between 0 and a day");
    match args {
        LocksArgs { budgets: true, .. } => study::budgets(args),
        LocksArgs { loopback: true, .. } => study::loopback(args),
        _ => compare(args),
    }
}

/// Measures kinds of locks beside each other.
fn compare(args: &LocksArgs) -> Result<()> {
    let kinds = if args.kind.is_empty() { LockKind::ALL.to_vec() } else { args.kind.clone() };
    let plan = args.plan(kinds.into_iter().map(Variant::of), &[90])?;
    let handoff_ns = super::handoff::handoff_ns();
    let reports = run(&plan, args.fabric)?.reports(&plan, args.fabric, handoff_ns)?;
    publish(&reports, args.json.as_deref(), |out| report::write_tables(&plan, &reports, out))
}

impl LocksArgs {
    /// The measurements of some kinds of locks, at these localities if none are given.
    fn plan(&self, variants: impl Iterator<Item = Variant>, localities: &[u8]) -> Result<Plan> {
        let locks = if self.locks.is_empty() { vec![100] } else { self.locks.clone() };
        let localities = if self.locality.is_empty() { localities } else { &self.locality };
        let plan = Plan {
            nodes: self.nodes,
            threads: self.threads,
            rounds: self.rounds,
            slice_seconds: self.seconds / f64::from(self.rounds),
            variants: plan::once_each(variants),
            locks: plan::once_each(locks.into_iter()),
            localities: plan::once_each(localities.iter().copied()),
            unlocked: self.unlocked,
        };
        if let Some(few) = plan.locks.iter().find(|locks| **locks < u32::from(plan.nodes)) {
            anyhow::bail!(
                "--locks {few}: {} nodes need {} locks at least, so that each has one of its own",
                plan.nodes,
                plan.nodes
            );
        }
        Ok(plan)
    }
}

/// Starts the nodes, and collects their measurements.
fn run(plan: &Plan, fabric: FabricChoice) -> Result<Results> {
    let duration = plan.duration();
    let mut results = Results::default();
    // Each measurement ends when the last thread has got its lock, which may take as long as a call may wait.
    let limit = duration * 2 + Duration::from_secs(180);
    let bar = output::progress("measuring", duration);
    Workers::start(plan.nodes, fabric, plan)?.run(limit, &bar, |node, word, more| results.take(node, word, more))?;
    Ok(results)
}
