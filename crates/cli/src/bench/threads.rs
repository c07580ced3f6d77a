//! The results of a benchmark's threads, and how they become one [`Measurement`].

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use farfield::fabric::Counts;
use serde::{Deserialize, Serialize};

use super::measurement::{Latencies, Measurement};
use super::options::Common;
use super::worker::Workers;
use crate::output;

/// The operations of one thread, and their time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ThreadResult {
    /// How long the thread issued operations.
    pub(crate) seconds: f64,
    pub(crate) operations: u64,
    /// Fabric operations posted.
    pub(crate) fabric_ops: u64,
    /// Bytes that those moved.
    pub(crate) bytes: u64,
    /// Round trips, and of how many operations.
    pub(crate) round_trips: u64,
    pub(crate) counted: u64,
    /// The times of those operations that were timed.
    pub(crate) latencies: Latencies,
}

impl ThreadResult {
    /// A thread that has done nothing yet.
    pub(crate) fn new() -> Self {
        Self {
            seconds: 0.0,
            operations: 0,
            fabric_ops: 0,
            bytes: 0,
            round_trips: 0,
            counted: 0,
            latencies: Latencies::new(),
        }
    }

    /// Adds an operation with its time and cost.
    #[inline]
    pub(crate) fn add(&mut self, latency_ns: u64, cost: Counts) {
        self.operations += 1;
        self.add_cost(cost);
        self.round_trips += cost.round_trips;
        self.counted += 1;
        self.latencies.record(latency_ns, 1);
    }

    /// Adds posted operations, without their round trips.
    #[inline]
    pub(crate) fn add_cost(&mut self, cost: Counts) {
        self.fabric_ops += cost.posted();
        self.bytes += cost.bytes;
    }
}

/// Starts so many nodes with a plan, and collects the results that their threads say.
pub(crate) fn run(nodes: u16, common: &Common, plan: &impl Serialize) -> Result<Vec<ThreadResult>> {
    let mut results = Vec::new();
    let bar = output::progress("measuring", common.duration());
    let limit = common.duration() * 2 + Duration::from_secs(120);
    Workers::start(nodes, common.fabric, plan)?.run(limit, &bar, |_, word, more| {
        match word {
            "running" => {}
            "result" => results.push(serde_json::from_str(more)?),
            _ => bail!("`{word}` is none of the benchmark's words"),
        }
        Ok(())
    })?;
    Ok(results)
}

impl Measurement {
    /// Takes the results of all threads, which have to be so many.
    pub(crate) fn take(&mut self, results: &[ThreadResult], threads: usize) -> Result<()> {
        ensure!(results.len() == threads, "{} of {threads} threads reported: the run is incomplete", results.len());
        let total = |field: fn(&ThreadResult) -> u64| results.iter().map(field).sum::<u64>() as f64;
        self.operations = results.iter().map(|result| result.operations).sum();
        self.seconds = results.iter().map(|result| result.seconds).fold(0.0, f64::max);
        let operations = self.operations as f64;
        self.throughput_ops_per_s = ratio(operations, self.seconds);
        self.fabric_ops_per_op = Some(ratio(total(|result| result.fabric_ops), operations));
        self.bytes_per_op = Some(ratio(total(|result| result.bytes), operations));
        self.round_trips_per_op = Some(ratio(total(|result| result.round_trips), total(|result| result.counted)));
        self.fairness = Some(fairness(results.iter().map(|result| result.operations)));
        let mut latencies = Latencies::new();
        results.iter().try_for_each(|result| latencies.merge(&result.latencies))?;
        self.set_latencies(latencies);
        Ok(())
    }
}

/// `part` by `whole`, and zero for nothing.
pub(crate) fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

/// The fewest operations of a thread as a share of the most: 1 is perfectly fair.
pub(crate) fn fairness(threads: impl Iterator<Item = u64>) -> f64 {
    let (fewest, most) = threads.fold((u64::MAX, 0), |(fewest, most), one| (fewest.min(one), most.max(one)));
    ratio(fewest as f64, most as f64)
}

#[cfg(test)]
mod tests {
    use super::super::measurement::Setup;
    use super::*;

    /// A thread with operations of 1000 ns and one round trip, and others of 3000 ns and two.
    fn thread(seconds: f64, short: u64, long: u64) -> ThreadResult {
        let mut result = ThreadResult { seconds, ..ThreadResult::new() };
        (0..short).for_each(|_| result.add(1_000, Counts { gets: 1, bytes: 16, round_trips: 1, ..Counts::default() }));
        (0..long).for_each(|_| result.add(3_000, Counts { puts: 3, bytes: 64, round_trips: 2, ..Counts::default() }));
        result
    }

    #[test]
    fn merging_adds_up_and_keeps_every_sample() {
        let mut all = Measurement::new("kv", "a", Setup::default());
        all.take(&[thread(1.0, 800, 200), thread(2.0, 400, 100)], 2).expect("both threads reported");
        assert_eq!((all.operations, all.seconds, all.throughput_ops_per_s), (1_500, 2.0, 750.0));
        assert_eq!((all.round_trips_per_op, all.fabric_ops_per_op), (Some(1.2), Some(1.4)));
        assert_eq!((all.bytes_per_op, all.fairness), (Some(25.6), Some(0.5)));
        let near = |ns: u64, expected: u64| ns.abs_diff(expected) <= expected / 500;
        let latency = all.latency_ns.expect("they were timed");
        assert!(near(latency.p50, 1_000) && near(latency.p90, 3_000) && near(latency.max, 3_000), "{latency:?}");
    }

    #[test]
    fn a_missing_thread_is_an_error() {
        let mut all = Measurement::new("kv", "a", Setup::default());
        let error = all.take(&[thread(1.0, 1, 0)], 2).expect_err("a thread is missing").to_string();
        assert_eq!(error, "1 of 2 threads reported: the run is incomplete");
    }

    #[test]
    fn a_run_without_operations_has_no_infinities() {
        let mut all = Measurement::new("kv", "a", Setup::default());
        all.take(&[ThreadResult::new()], 1).expect("the thread reported");
        assert_eq!((all.throughput_ops_per_s, all.round_trips_per_op, all.fairness), (0.0, Some(0.0), Some(0.0)));
    }
}
