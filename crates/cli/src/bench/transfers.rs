//! `farfield bench transfers`: transfers between accounts that are spread over several processes, as LOCO's evaluation
//! does (appendix B.1).

mod report;
mod serve;

use std::time::Duration;

use anyhow::Result;
use clap::Args;
use farfield::LockKind;
use serde::{Deserialize, Serialize};

use self::report::Results;
use super::journal::Journal;
use super::memory::{self, Need};
use super::options::{Common, Cores, Sizes, once_each};
use super::worker::{self, Workers};
use crate::doctor;
use crate::output::{self, grouped};

const HELP: &str = "\
Each thread of each process repeats: draw two accounts and an amount, take the locks of the two accounts, read both, and
move the amount from one to the other. Account c is on node `c mod nodes`, and so is its lock. A transfer from an
account that holds too little is counted as aborted. Times run from the end of one transfer to the end of the next, so
they include the drawing.

Every run checks the sum: at the end all accounts together have to hold what they held at the start, or the run fails.

Examples:
  farfield bench transfers --nodes 2,3,4 --threads 2 --repetitions 5
  farfield bench transfers --accounts 1000 --locks 10 --kind alock,mutex --json -";

/// The initial amount of every account.
const AMOUNT: u64 = 1000;
/// The largest amount of a transfer.
const TRANSFER_MAX: u64 = 100;
/// As many as in LOCO's evaluation.
const ACCOUNTS: u64 = 100_000_000;
const ACCOUNT_BYTES: u64 = 8;

/// Move amounts between accounts that are spread over several processes, under two locks at a time.
///
/// Measures how many transfers are done in a second, how long one takes, and which operations it costs.
#[derive(Args, Clone)]
#[command(
    after_long_help = HELP,
    mut_arg("threads", |arg| arg.default_value("2")),
    mut_arg("seconds", |arg| arg.default_value("2")),
)]
pub(crate) struct TransfersArgs {
    /// How many accounts there are, of 8 bytes each [default: 100 million, or as many as fit into half of the free
    /// memory]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(2..=1 << 40))]
    accounts: Option<u64>,
    /// How many locks there are for each thread of all nodes. The default is the budget of LOCO's evaluation, and no
    /// limit: its authors could open 341 windows with Open MPI, and `--peer mpi` opens no more either
    #[arg(long, value_name = "COUNT", default_value_t = 341, value_parser = clap::value_parser!(u32).range(1..=1 << 16))]
    locks: u32,
    /// The kinds of lock to compare, in turns [default: all]
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    kind: Vec<LockKind>,
    #[command(flatten)]
    sizes: Sizes,
    #[command(flatten)]
    common: Common,
    /// Take one from an account at the end, to see that it is found
    #[arg(long, hide = true)]
    steal: bool,
}

/// The task of a session's nodes.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Plan {
    nodes: u16,
    /// Of each node.
    threads: u16,
    kind: String,
    accounts: u64,
    /// Of all threads together.
    locks: usize,
    seconds: f64,
    cores: Cores,
    steal: bool,
}

pub(crate) fn main(args: &TransfersArgs) -> Result<()> {
    if let Some(plan) = worker::plan()? {
        return serve::main(&plan);
    }
    let accounts = accounts(args.accounts, doctor::free_memory());
    let kinds = if args.kind.is_empty() { LockKind::ALL } else { &args.kind[..] };
    let mut plans = Vec::new();
    for (nodes, threads) in args.sizes.pairs() {
        for kind in once_each(kinds) {
            let all = usize::from(nodes) * usize::from(threads);
            plans.push(Plan {
                nodes,
                threads,
                kind: kind.name().into(),
                accounts,
                locks: args.locks as usize * all,
                seconds: args.common.seconds,
                cores: args.common.pin.cores(all)?,
                steal: args.steal,
            });
        }
    }
    let need = |plan: &Plan| Need::of(plan.nodes, plan.threads).on_all(plan.accounts.saturating_mul(ACCOUNT_BYTES));
    memory::ensure_fit(plans.iter().map(need), "--accounts or --nodes")?;
    let mut journal = Journal::new(&args.common);
    journal.turns(&plans, |plan| Ok(vec![run(plan, &args.common)?.measurement(plan, &args.common)?]))?;
    journal.table(|out| {
        writeln!(
            out,
            "nothing was lost or made: all accounts together hold {}, as at first",
            grouped(accounts * AMOUNT)
        )
    })
}

/// How many accounts there are, where so many bytes are free, if that is known.
fn accounts(asked: Option<u64>, free_bytes: Option<u64>) -> u64 {
    let most = free_bytes.map_or(ACCOUNTS, |free| ACCOUNTS.min(free / 2 / ACCOUNT_BYTES));
    asked.unwrap_or(most.max(2))
}

/// Starts the nodes, and collects their measurements.
fn run(plan: &Plan, common: &Common) -> Result<Results> {
    let duration = Duration::from_secs_f64(plan.seconds);
    let mut results = Results::default();
    // The last transfer may take as long as a call may wait, and so many accounts are first set and then added up.
    let limit = duration * 2 + Duration::from_secs(180 + plan.accounts / 1_000_000);
    let bar = output::progress(&plan.kind, duration);
    Workers::start(plan.nodes, common.fabric, plan)?.run(limit, &bar, |_, word, more| results.take(word, more))?;
    Ok(results)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_fit_into_memory() {
        assert_eq!(accounts(None, None), ACCOUNTS);
        assert_eq!(accounts(None, Some(1 << 40)), ACCOUNTS);
        assert_eq!(accounts(None, Some(160_000_000)), 10_000_000);
        assert_eq!(accounts(Some(7), Some(56)), 7);
    }
}
