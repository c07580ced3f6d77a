//! The results of a benchmark of transfers: results of threads, merged into one [`Measurement`].

use anyhow::{Result, ensure};
use farfield::fabric::Counts;
use serde::{Deserialize, Serialize};

use super::{AMOUNT, Plan};
use crate::bench::measurement::{Measurement, Setup};
use crate::bench::options::Common;
use crate::bench::threads::{self, ratio};
use crate::output::grouped;

/// The results of one thread.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ThreadResult {
    pub(super) done: threads::ThreadResult,
    /// Transfers from an account with too little, and transfers that waited too long for a lock.
    pub(super) aborted: u64,
    pub(super) timeouts: u64,
    /// The costs of transfers.
    puts: u64,
    gets: u64,
    atomics: u64,
    /// Of all these, those to the own node.
    loopback: u64,
}

/// All that the nodes have measured.
#[derive(Default)]
pub(super) struct Results {
    threads: Vec<ThreadResult>,
    /// The sum of the accounts of each node.
    sums: Vec<u64>,
}

impl ThreadResult {
    /// Nothing yet.
    pub(super) fn new() -> ThreadResult {
        let done = threads::ThreadResult::new();
        ThreadResult { done, aborted: 0, timeouts: 0, puts: 0, gets: 0, atomics: 0, loopback: 0 }
    }

    /// Adds one transfer with its time and costs.
    #[inline]
    pub(super) fn add(&mut self, latency_ns: u64, cost: Counts) {
        self.done.add(latency_ns, cost);
        self.puts += cost.puts;
        self.gets += cost.gets;
        self.atomics += cost.atomics;
        self.loopback += cost.loopback;
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

    /// The measurement, if the run is complete and the sum of the accounts is unchanged.
    pub(super) fn measurement(&self, plan: &Plan, common: &Common) -> Result<Measurement> {
        let all = usize::from(plan.nodes) * usize::from(plan.threads);
        ensure!(
            self.threads.len() == all && self.sums.len() == usize::from(plan.nodes),
            "{} of {all} threads and {} of {} nodes reported: the run is incomplete",
            self.threads.len(),
            self.sums.len(),
            plan.nodes
        );
        let total = |of: fn(&ThreadResult) -> u64| self.threads.iter().map(of).sum::<u64>();
        let transfers = total(|thread| thread.done.operations);
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
        let setup = Setup {
            kind: Some(plan.kind.clone()),
            accounts: Some(plan.accounts),
            locks: Some(plan.locks as u64),
            ..common.setup(plan.nodes, plan.threads)
        };
        let mut measurement = Measurement::new("transfers", "transfer", setup);
        let done: Vec<_> = self.threads.iter().map(|thread| thread.done.clone()).collect();
        measurement.take(&done, all)?;
        measurement.pinned = Some(plan.cores.is_pinned());
        let each = |of: fn(&ThreadResult) -> u64| ratio(total(of) as f64, transfers as f64);
        measurement.figures = [
            ("puts", each(|thread| thread.puts)),
            ("gets", each(|thread| thread.gets)),
            ("atomics", each(|thread| thread.atomics)),
            ("loopback", each(|thread| thread.loopback)),
            ("aborted", total(|thread| thread.aborted) as f64),
            ("timeouts", total(|thread| thread.timeouts) as f64),
        ]
        .map(|(name, figure)| (name.to_owned(), figure))
        .into();
        Ok(measurement)
    }
}
