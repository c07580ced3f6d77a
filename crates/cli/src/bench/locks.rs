//! `farfield bench locks`: arrays of locks spread over several processes, measured side by side as ALock's evaluation
//! does.

mod draw;
mod plan;
mod report;
mod serve;
mod study;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use farfield::LockKind;
use farfield::mutants::{self, Mutant};

use self::plan::{Plan, Variant};
use self::report::{Report, Results};
use super::journal::Journal;
use super::memory;
use super::options::{Common, Sizes, once_each};
use super::worker::{self, Workers};
use crate::output;

const HELP: &str = "\
Each thread of each process repeats: draw a lock, take it, add one to the counter that it protects, release it. The lock
is on the thread's own node with the probability of --locality, otherwise on another node; all locks there are equally
likely. The counter is on its lock's node and is accessed by plain loads and stores there, and by a get and a put from
elsewhere. Times run from the end of one turn to the end of the next, so they include drawing the lock and the counter,
for all kinds alike. Operations are counted for lock and unlock alone. With fewer locks than nodes some nodes have no lock
of their own, and take those of others; with --locks 1 all threads of all nodes contend for one.

Every run checks exclusion: at the end the sum of the counters has to equal the number of acquisitions, or the run
fails.

The kinds take turns in each repetition (round), so that a disturbance of the machine affects all of them. Throughputs
and ratios are medians over the rounds; times and counts are those of all rounds together.

With --fabric shm there is no NIC: an operation on the own node is a processor's, and is counted as loopback all the
same. Use --fabric verbs to see what loopback costs.

Examples:
  farfield bench locks --locks 1 --nodes 2,4 --threads 1 --repetitions 5
  farfield bench locks --kind spin,mutex --locks 20,100,1000 --locality 85,90,95,100 --nodes 3 --threads 4
  farfield bench locks --budgets
  farfield bench locks --loopback --threads 8 --svg loopback.svg --fabric verbs";

/// Take and release locks that are spread over several processes.
///
/// Measures how many are taken in a second, how long it takes, how evenly threads get on, and which operations it
/// costs.
#[derive(Args, Clone)]
#[command(
    after_long_help = HELP,
    mut_arg("threads", |arg| arg.default_value("2")),
    mut_arg("seconds", |arg| arg.default_value("0.5")),
    mut_arg("repetitions", |arg| arg.default_value("3").visible_alias("rounds")),
)]
pub(crate) struct LocksArgs {
    /// The kinds of lock to compare [default: all]
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    kind: Vec<LockKind>,
    /// Number of locks: fewer locks mean more contention, and 1 is a single lock for all [default: 100]
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
    #[command(flatten)]
    sizes: Sizes,
    #[command(flatten)]
    common: Common,
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
    match args {
        LocksArgs { budgets: true, .. } => study::budgets(args),
        LocksArgs { loopback: true, .. } => study::loopback(args),
        _ if !args.common.peer.is_empty() => beside_peers(args),
        _ => compare(args),
    }
}

/// Measures kinds of locks beside each other, by each number of nodes and threads.
fn compare(args: &LocksArgs) -> Result<()> {
    let mut journal = Journal::new(&args.common);
    for plan in args.plans(args.kinds(), &[90])? {
        let reports = run(&plan, &args.common, &mut journal)?;
        journal.text(|out| report::write_tables(&plan, &reports, out))?;
    }
    journal.text(|out| journal.write_machine(out))
}

/// The same in turns with the peers, each turn a session of its own.
fn beside_peers(args: &LocksArgs) -> Result<()> {
    let plans = args.plans(args.kinds(), &[90])?;
    let plans: Vec<Plan> = plans.into_iter().map(|plan| Plan { rounds: 1, ..plan }).collect();
    let mut journal = Journal::new(&args.common);
    journal.turns(&plans, |plan| {
        let results = measure(plan, &args.common)?;
        results.reports(plan, args.common.fabric)?; // they check exclusion
        plan.cases().into_iter().map(|case| results.measurement(plan, case, 0, &args.common)).collect()
    })?;
    journal.table(|_| Ok(()))
}

impl LocksArgs {
    /// The kinds of locks to compare.
    fn kinds(&self) -> impl Iterator<Item = Variant> + Clone {
        let kinds = if self.kind.is_empty() { LockKind::ALL.to_vec() } else { self.kind.clone() };
        kinds.into_iter().map(Variant::of)
    }

    /// The measurements of some kinds of locks with each number of nodes and threads, at these localities if none are
    /// given.
    fn plans(&self, variants: impl Iterator<Item = Variant> + Clone, localities: &[u8]) -> Result<Vec<Plan>> {
        let plan = |(nodes, threads)| self.plan(nodes, threads, variants.clone(), localities);
        let plans: Vec<Plan> = self.sizes.pairs().into_iter().map(plan).collect::<Result<_>>()?;
        memory::ensure_fit(plans.iter().map(Plan::need), "--locks, --kind or --nodes")?;
        Ok(plans)
    }

    /// One of them.
    fn plan(
        &self,
        nodes: u16,
        threads: u16,
        variants: impl Iterator<Item = Variant>,
        localities: &[u8],
    ) -> Result<Plan> {
        let locks = if self.locks.is_empty() { &[100][..] } else { &self.locks };
        let localities = if self.locality.is_empty() { localities } else { &self.locality };
        Ok(Plan {
            nodes,
            threads,
            rounds: self.common.repetitions,
            slice_seconds: self.common.seconds,
            variants: once_each(variants),
            locks: once_each(locks.iter().copied()),
            localities: once_each(localities.iter().copied()),
            cores: self.common.pin.cores(usize::from(nodes) * usize::from(threads))?,
            unlocked: self.unlocked,
        })
    }
}

/// Measures a plan: a report for each case, and a line for each round of it.
fn run(plan: &Plan, common: &Common, journal: &mut Journal<'_>) -> Result<Vec<Report>> {
    let results = measure(plan, common)?;
    let reports = results.reports(plan, common.fabric)?;
    for round in 0..plan.rounds {
        for case in plan.cases() {
            journal.add(round, results.measurement(plan, case, round, common)?)?;
        }
    }
    Ok(reports)
}

/// Starts the nodes, and collects the measurements of their threads.
fn measure(plan: &Plan, common: &Common) -> Result<Results> {
    let duration = plan.duration();
    let mut results = Results::default();
    // Each measurement ends when the last thread has got its lock, which may take as long as a call may wait.
    let limit = duration * 2 + Duration::from_secs(180);
    let bar = output::progress("measuring", duration);
    Workers::start(plan.nodes, common.fabric, plan)?
        .run(limit, &bar, |node, word, more| results.take(node, word, more))?;
    Ok(results)
}
