//! `farfield bench locks`: arrays of locks spread over several processes, measured side by side as ALock's evaluation does.

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
use crate::place::FabricChoice;
use crate::tell;

const HELP: &str = "\
What is measured: each thread of each process draws a lock, takes it, adds one to the counter that the lock protects, and
releases it, again and again, one lock at a time. With the probability of --locality the lock lies on the thread's own node,
else on another; all of them are equally likely. The counter lies on its lock's node and is read and written by plain accesses:
those of the processor there, a get and a put elsewhere. The times contain it, and the drawing of the next lock,
for all kinds alike, and are from the end of one turn to the end of the next; the operations that are counted are those of
lock and unlock alone.

Every run checks exclusion: when a measurement is over, the counters together must say how often locks were taken. If they
do not, the run fails.

The kinds take turns in each round, so that what disturbs this machine disturbs all of them. Throughputs, and their ratios,
are medians over the rounds; times and counts are those of all rounds together.

On shared memory no NIC is involved: an operation to the own node is one of the processor's there, and counted as loopback
nevertheless. What loopback costs is seen with --fabric verbs.

Examples:
  farfield bench locks --kind spin,mutex --locks 20,100,1000 --locality 85,90,95,100 --nodes 3 --threads 4
  farfield bench locks --budgets
  farfield bench locks --loopback --threads 8 --svg loopback.svg --fabric verbs";

/// Take and release locks that are spread over several processes.
///
/// Measures how many are taken in a second, how long it takes, how evenly threads get on, and which operations it costs.
#[derive(Args, Clone)]
#[command(after_long_help = HELP)]
pub(crate) struct LocksArgs {
    /// The kinds of lock, which are measured in turns [default: all]
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    kind: Vec<LockKind>,
    /// How many locks there are: the fewer, the more threads want the same [default: 100]
    #[arg(long, value_name = "COUNT", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    locks: Vec<u32>,
    /// How many in a hundred acquisitions are of locks of the thread's own node [default: 90]
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', value_parser = clap::value_parser!(u8).range(0..=100))]
    locality: Vec<u8>,
    /// Processes, each a node of the session; all locks of a single one are its own
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    nodes: u16,
    /// What the processes are connected by
    #[arg(long, value_enum, default_value_t)]
    fabric: FabricChoice,
    /// Threads of each process
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: u16,
    /// How long to measure each kind for each number of locks and each locality, all rounds together
    #[arg(long, default_value_t = 1.5, allow_negative_numbers = true)]
    seconds: f64,
    /// In how many parts, between which the kinds take turns
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
    #[arg(long, hide = true, value_name = "NAME")]
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
    /// What is to be measured of some kinds of locks, at these localities if none are given.
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

/// Starts the nodes, and collects what they have measured.
fn run(plan: &Plan, fabric: FabricChoice) -> Result<Results> {
    let duration = plan.duration();
    let mut results = Results::default();
    // Each measurement ends when the last thread has got its lock, which may take as long as a call may wait.
    let limit = duration * 2 + Duration::from_secs(180);
    let bar = tell::progress("measuring", duration);
    Workers::start(plan.nodes, fabric, plan)?.run(limit, &bar, |node, word, more| results.take(node, word, more))?;
    Ok(results)
}
