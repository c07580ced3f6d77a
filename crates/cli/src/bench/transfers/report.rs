//! The results of a benchmark of transfers: results of threads, merged into one [`Report`].

use std::io::{self, Write};

use anyhow::{Result, ensure};
use farfield::fabric::Counts;
use serde::{Deserialize, Serialize};

use super::{AMOUNT, Plan, TransfersArgs};
use crate::bench::report::{Fairness, Latencies, Percentiles, ratio};
use crate::output::grouped;

/// The results of one thread.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ThreadResult {
    pub(super) seconds: f64,
    transfers: u64,
    /// Transfers from an account with too little, and transfers that waited too long for a lock.
    pub(super) aborted: u64,
    pub(super) timeouts: u64,
    /// The costs of transfers.
    puts: u64,
    gets: u64,
    atomics: u64,
    /// Of all these, those to the own node.
    loopback: u64,
    round_trips: u64,
    latencies: Latencies,
}

/// All that the nodes have measured.
#[derive(Default)]
pub(super) struct Results {
    threads: Vec<ThreadResult>,
    /// The sum of the accounts of each node.
    sums: Vec<u64>,
}

/// The measurement of a kind: a line of JSON.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    bench: &'static str,
    fabric: &'static str,
    nodes: u16,
    /// Of each node.
    threads: u16,
    kind: String,
    accounts: u64,
    locks_per_thread: u32,
    /// Of all threads together.
    locks: usize,
    /// The longest of a thread.
    seconds: f64,
    transfers: u64,
    aborted: u64,
    timeouts: u64,
    throughput_per_s: f64,
    latency_ns: Percentiles,
    each: Each,
    fairness: Fairness,
    /// The sum of all accounts: the same before and after, or there is no report.
    sum: u64,
}

/// The average cost of a transfer.
#[derive(Clone, Copy, Debug, Serialize)]
struct Each {
    puts: f64,
    gets: f64,
    atomics: f64,
    /// Of all these, those to the own node.
    loopback_ops: f64,
    round_trips: f64,
}

impl ThreadResult {
    /// Nothing yet.
    pub(super) fn new() -> ThreadResult {
        ThreadResult {
            seconds: 0.0,
            transfers: 0,
            aborted: 0,
            timeouts: 0,
            puts: 0,
            gets: 0,
            atomics: 0,
            loopback: 0,
            round_trips: 0,
            latencies: Latencies::new(),
        }
    }

    /// Adds one transfer with its time and costs.
    #[inline]
    pub(super) fn add(&mut self, latency_ns: u64, cost: Counts) {
        self.transfers += 1;
        self.puts += cost.puts;
        self.gets += cost.gets;
        self.atomics += cost.atomics;
        self.loopback += cost.loopback;
        self.round_trips += cost.round_trips;
        self.latencies.record(latency_ns, 1);
    }
}

impl Results {
    /// Adds a line from a node.
    pub(super) fn take(&mut self, what: &str, json: &str) -> Result<()> {
        match what {
            "running" => {}
            "thread" => self.threads.push(serde_json::from_str(json)?),
            "sum" => self.sums.push(serde_json::from_str(json)?),
            _ => anyhow::bail!("`{what}` is none of the benchmark's words"),
        }
        Ok(())
    }

    /// The report, if the run is complete and the sum of the accounts is unchanged.
    pub(super) fn report(&self, plan: &Plan, args: &TransfersArgs) -> Result<Report> {
        let all = usize::from(plan.nodes) * usize::from(plan.threads);
        ensure!(
            self.threads.len() == all && self.sums.len() == usize::from(plan.nodes),
            "{} of {all} threads and {} of {} nodes reported: the run is incomplete",
            self.threads.len(),
            self.sums.len(),
            plan.nodes
        );
        let total = |of: fn(&ThreadResult) -> u64| self.threads.iter().map(of).sum::<u64>();
        let transfers = total(|thread| thread.transfers);
        let (sum, first) = (self.sums.iter().copied().fold(0, u64::wrapping_add), plan.accounts * AMOUNT);
        ensure!(
            sum == first,
            "the sum is wrong: {} accounts held {} together, and hold {} after {} transfers under locks of kind {}",
            grouped(plan.accounts),
            grouped(first),
            grouped(sum),
            grouped(transfers),
            plan.kind
        );
        let mut latencies = Latencies::new();
        self.threads.iter().try_for_each(|thread| latencies.merge(&thread.latencies))?;
        let each = |of: fn(&ThreadResult) -> u64| ratio(total(of) as f64, transfers as f64);
        let seconds = self.threads.iter().map(|thread| thread.seconds).fold(0.0, f64::max);
        Ok(Report {
            bench: "transfers",
            fabric: args.fabric.name(),
            nodes: plan.nodes,
            threads: plan.threads,
            kind: plan.kind.clone(),
            accounts: plan.accounts,
            locks_per_thread: args.locks,
            locks: plan.locks,
            seconds,
            transfers,
            aborted: total(|thread| thread.aborted),
            timeouts: total(|thread| thread.timeouts),
            throughput_per_s: ratio(transfers as f64, seconds),
            latency_ns: latencies.percentiles(),
            each: Each {
                puts: each(|thread| thread.puts),
                gets: each(|thread| thread.gets),
                atomics: each(|thread| thread.atomics),
                loopback_ops: each(|thread| thread.loopback),
                round_trips: each(|thread| thread.round_trips),
            },
            fairness: Fairness::of(self.threads.iter().map(|thread| thread.transfers)),
            sum,
        })
    }
}

/// The table for people.
pub(super) fn write_table(reports: &[Report], out: &mut dyn Write) -> io::Result<()> {
    let Some(Report { fabric, nodes, threads, accounts, locks_per_thread, sum, .. }) = reports.first() else {
        return Ok(());
    };
    writeln!(
        out,
        "{} accounts, {locks_per_thread} locks for each thread; {fabric}, {nodes} nodes x {threads} threads",
        grouped(*accounts)
    )?;
    writeln!(out, "  {:8} {:>12} {:>9} {:>8}   {}", "", "transfers/s", "aborted", "timeouts", Percentiles::TITLES)?;
    for report in reports {
        writeln!(
            out,
            "  {:8} {:>12} {:>9} {:>8}   {}",
            report.kind,
            grouped(report.throughput_per_s as u64),
            grouped(report.aborted),
            grouped(report.timeouts),
            report.latency_ns.columns()
        )?;
    }
    writeln!(
        out,
        "  {:8} {:>12} {:>9} {:>8}   {:>9} {:>11} {:>21}",
        "each", "puts", "gets", "atomics", "loopback", "round trips", "threads: fewest/most"
    )?;
    for report in reports {
        let Each { puts, gets, atomics, loopback_ops, round_trips } = report.each;
        writeln!(
            out,
            "  {:8} {puts:>12.2} {gets:>9.2} {atomics:>8.2}   {loopback_ops:>9.2} {round_trips:>11.2} {:>21.2}",
            report.kind, report.fairness.ratio
        )?;
    }
    writeln!(out, "nothing was lost or made: all accounts together hold {}, as at first", grouped(*sum))
}
