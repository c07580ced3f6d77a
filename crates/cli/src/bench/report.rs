//! The results of a key-value benchmark: one [`ThreadResult`] per thread, merged into one [`Report`].
//!
//! Threads of other processes pass their results as one line of JSON each. The line contains a latency histogram in the
//! hexadecimal form of HdrHistogram's own encoding (V2), so that percentiles of the whole run are computed from all of
//! the samples, never from percentiles.

use std::io::{self, Write};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer as HistogramReader, Serializer as _, V2Serializer};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};

use super::workload::{Distribution, Workload};
use crate::output::{self, grouped};

/// How long operations took, in nanoseconds, to three significant digits; above a minute they count as a minute.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Latencies(Histogram<u64>);

impl Latencies {
    const MAX_NS: u64 = 60_000_000_000;
    const DIGITS: u8 = 3;

    /// No samples yet.
    pub(crate) fn new() -> Self {
        Self(Histogram::new_with_max(Self::MAX_NS, Self::DIGITS).expect("the bounds are constants that fit"))
    }

    /// Adds the time of `operations` that took equally long.
    #[inline]
    pub(crate) fn record(&mut self, latency_ns: u64, operations: u64) {
        self.0.saturating_record_n(latency_ns, operations);
    }

    /// The percentiles that reports show.
    pub(crate) fn percentiles(&self) -> Percentiles {
        Percentiles {
            p50: self.0.value_at_quantile(0.5),
            p90: self.0.value_at_quantile(0.9),
            p99: self.0.value_at_quantile(0.99),
            p99_9: self.0.value_at_quantile(0.999),
            max: self.0.max(),
        }
    }

    /// Adds all samples of another.
    pub(crate) fn merge(&mut self, other: &Latencies) -> Result<()> {
        self.0.add(&other.0).context("latency histograms of different bounds cannot be merged")
    }
}

impl Serialize for Latencies {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut bytes = Vec::new();
        V2Serializer::new().serialize(&self.0, &mut bytes).map_err(ser::Error::custom)?;
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        serializer.serialize_str(&hex)
    }
}

impl<'de> Deserialize<'de> for Latencies {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let hex = String::deserialize(deserializer)?;
        if hex.len() % 2 != 0 || !hex.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(de::Error::custom("a latency histogram is an even number of hexadecimal digits"));
        }
        let bytes: Vec<u8> = (0..hex.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).map_err(de::Error::custom))
            .collect::<Result<_, _>>()?;
        let histogram = HistogramReader::new()
            .deserialize(&mut bytes.as_slice())
            .map_err(|error| de::Error::custom(format!("not a latency histogram: {error}")))?;
        Ok(Self(histogram))
    }
}

/// What one thread did and how long it took.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ThreadResult {
    /// The node the thread ran on.
    pub(crate) node: u32,
    /// How long the thread issued operations.
    pub(crate) seconds: f64,
    /// Reads completed.
    pub(crate) reads: u64,
    /// Updates completed.
    pub(crate) updates: u64,
    /// Read-modify-writes completed, each counted once and here only.
    pub(crate) read_modify_writes: u64,
    /// Round trips of all operations together.
    pub(crate) round_trips: u64,
    /// Fabric operations posted.
    pub(crate) fabric_ops: u64,
    /// Bytes that those moved.
    pub(crate) bytes: u64,
    /// Each operation's time, from issue to completion.
    pub(crate) latencies: Latencies,
}

impl ThreadResult {
    /// A thread of `node` that has done nothing yet.
    pub(crate) fn new(node: u32) -> Self {
        Self {
            node,
            seconds: 0.0,
            reads: 0,
            updates: 0,
            read_modify_writes: 0,
            round_trips: 0,
            fabric_ops: 0,
            bytes: 0,
            latencies: Latencies::new(),
        }
    }

    /// All operations completed.
    pub(crate) fn operations(&self) -> u64 {
        self.reads + self.updates + self.read_modify_writes
    }
}

/// The configuration of the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Setup {
    /// The fabric's name: `shm`, `verbs` or `sim`.
    pub(crate) fabric: String,
    /// How many nodes took part.
    pub(crate) nodes: u32,
    /// Threads per node.
    pub(crate) threads: u32,
    /// The mix of operations.
    pub(crate) workload: Workload,
    /// How likely each key was.
    pub(crate) distribution: Distribution,
    /// Operations that each thread kept in flight.
    pub(crate) window: u32,
    /// Keys loaded before the run.
    pub(crate) keys: u64,
    /// Bytes of one value.
    pub(crate) value_size: u32,
}

/// Latency percentiles in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Percentiles {
    /// The median.
    pub(crate) p50: u64,
    /// The 90th percentile.
    pub(crate) p90: u64,
    /// The 99th percentile.
    pub(crate) p99: u64,
    /// The 99.9th percentile.
    pub(crate) p99_9: u64,
    /// The slowest operation.
    pub(crate) max: u64,
}

impl Percentiles {
    /// The titles of [`Percentiles::columns`].
    pub(crate) const TITLES: &str = "      p50       p90       p99     p99.9       max";

    /// Columns of a table.
    pub(crate) fn columns(&self) -> String {
        [self.p50, self.p90, self.p99, self.p99_9, self.max].map(|ns| format!("{:>9}", time(ns))).join(" ")
    }
}

/// How evenly threads got on.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Fairness {
    pub(crate) fewest: u64,
    pub(crate) most: u64,
    /// The fewest as a share of the most: 1 is perfectly fair.
    pub(crate) ratio: f64,
}

impl Fairness {
    /// The fairness of threads with these counts.
    pub(crate) fn of(threads: impl Iterator<Item = u64> + Clone) -> Fairness {
        let (fewest, most) = (threads.clone().min().unwrap_or(0), threads.max().unwrap_or(0));
        Fairness { fewest, most, ratio: ratio(fewest as f64, most as f64) }
    }
}

/// How evenly the nodes got on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct PerNode {
    /// The slowest node's throughput.
    pub(crate) min_ops_per_s: f64,
    /// The fastest node's throughput.
    pub(crate) max_ops_per_s: f64,
    /// The slowest as a share of the fastest: 1 is perfectly fair.
    pub(crate) fairness: f64,
}

/// A whole run: one line of JSON, or a table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Report {
    /// The configuration of the run.
    #[serde(flatten)]
    pub(crate) setup: Setup,
    /// The longest that any thread ran.
    pub(crate) seconds: f64,
    /// Operations completed by all threads.
    pub(crate) operations: u64,
    /// `operations` by `seconds`.
    pub(crate) throughput_ops_per_s: f64,
    /// Reads among the operations.
    pub(crate) reads: u64,
    /// Updates among the operations.
    pub(crate) updates: u64,
    /// Read-modify-writes among the operations.
    pub(crate) read_modify_writes: u64,
    /// How long operations took.
    pub(crate) latency_ns: Percentiles,
    /// Mean round trips of an operation.
    pub(crate) round_trips_per_op: f64,
    /// Mean fabric operations posted for an operation.
    pub(crate) fabric_ops_per_op: f64,
    /// Mean bytes moved for an operation.
    pub(crate) bytes_per_op: f64,
    /// The time in which this machine passes a cache line from one core to another, measured in the same run: the
    /// yardstick for latencies over shared memory.
    pub(crate) handoff_ns: Option<f64>,
    /// How evenly the nodes got on.
    pub(crate) per_node: PerNode,
}

impl Report {
    /// Merges the results of all threads of all nodes.
    pub(crate) fn merge(setup: Setup, results: &[ThreadResult], handoff_ns: Option<f64>) -> Result<Self> {
        let threads = setup.nodes as usize * setup.threads as usize;
        ensure!(results.len() == threads, "{} of {threads} threads reported: the run is incomplete", results.len());
        let mut latencies = Latencies::new();
        let mut node_operations = vec![0; setup.nodes as usize];
        for result in results {
            latencies.merge(&result.latencies)?;
            match node_operations.get_mut(result.node as usize) {
                Some(operations) => *operations += result.operations(),
                None => bail!("node {} reported, but only {} nodes take part", result.node, setup.nodes),
            }
        }
        let seconds = results.iter().map(|result| result.seconds).fold(0.0, f64::max);
        let total = |field: fn(&ThreadResult) -> u64| results.iter().map(field).sum::<u64>();
        let operations = total(ThreadResult::operations);
        let per_op = |count: u64| ratio(count as f64, operations as f64);
        let rate = |operations: Option<&u64>| ratio(operations.copied().unwrap_or(0) as f64, seconds);
        let min_ops_per_s = rate(node_operations.iter().min());
        let max_ops_per_s = rate(node_operations.iter().max());
        Ok(Self {
            setup,
            seconds,
            operations,
            throughput_ops_per_s: ratio(operations as f64, seconds),
            reads: total(|result| result.reads),
            updates: total(|result| result.updates),
            read_modify_writes: total(|result| result.read_modify_writes),
            latency_ns: latencies.percentiles(),
            round_trips_per_op: per_op(total(|result| result.round_trips)),
            fabric_ops_per_op: per_op(total(|result| result.fabric_ops)),
            bytes_per_op: per_op(total(|result| result.bytes)),
            handoff_ns,
            per_node: PerNode { min_ops_per_s, max_ops_per_s, fairness: ratio(min_ops_per_s, max_ops_per_s) },
        })
    }

    /// The table for people.
    pub(crate) fn table(&self) -> String {
        let (setup, latency, node) = (&self.setup, &self.latency_ns, &self.per_node);
        let mut rows = vec![
            (
                "run",
                format!("{}, {} nodes x {} threads, window {}", setup.fabric, setup.nodes, setup.threads, setup.window),
            ),
            (
                "workload",
                format!(
                    "{}, {}, {} keys, {}-byte values",
                    name(setup.workload),
                    name(setup.distribution),
                    grouped(setup.keys),
                    setup.value_size
                ),
            ),
            (
                "operations",
                format!(
                    "{} in {:.2} s ({} reads, {} updates, {} read-modify-writes)",
                    grouped(self.operations),
                    self.seconds,
                    grouped(self.reads),
                    grouped(self.updates),
                    grouped(self.read_modify_writes)
                ),
            ),
            ("throughput", format!("{} ops/s", grouped(self.throughput_ops_per_s as u64))),
            (
                "latency",
                format!(
                    "p50 {}  p90 {}  p99 {}  p99.9 {}  max {}",
                    time(latency.p50),
                    time(latency.p90),
                    time(latency.p99),
                    time(latency.p99_9),
                    time(latency.max)
                ),
            ),
            (
                "per operation",
                format!(
                    "{:.2} round trips, {:.2} fabric operations, {:.0} bytes",
                    self.round_trips_per_op, self.fabric_ops_per_op, self.bytes_per_op
                ),
            ),
            (
                "nodes",
                format!(
                    "slowest {} ops/s, fastest {} ops/s, fairness {:.2}",
                    grouped(node.min_ops_per_s as u64),
                    grouped(node.max_ops_per_s as u64),
                    node.fairness
                ),
            ),
        ];
        if let Some(handoff_ns) = self.handoff_ns {
            rows.push(("cache line hand-off", format!("{handoff_ns:.0} ns")));
        }
        rows.iter().map(|(label, value)| format!("{label:<20} {value}\n")).collect()
    }
}

/// Writes the tables, and a line of JSON for each report to the file if one is named. `-` names standard output, which
/// then gets the lines alone, and the tables go to standard error.
pub(crate) fn publish(
    reports: &[impl Serialize],
    json: Option<&Path>,
    tables: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<()> {
    let written =
        if output::is_stdout(json) { tables(&mut io::stderr().lock()) } else { tables(&mut io::stdout().lock()) };
    written.context("writing the report")?;
    let mut out = io::stdout().lock();
    reports.iter().try_for_each(|report| output::json(json, &mut out, report))
}

/// `part` by `whole`, and zero for nothing.
pub(crate) fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

/// A choice as it is spelled on the command line.
fn name(choice: impl ValueEnum) -> String {
    choice.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// A time in the unit that suits it.
pub(crate) fn time(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.1} us", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        _ => format!("{:.1} s", ns as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setup(nodes: u32, threads: u32) -> Setup {
        Setup {
            fabric: "shm".into(),
            nodes,
            threads,
            workload: Workload::A,
            distribution: Distribution::Zipfian,
            window: 4,
            keys: 500_000,
            value_size: 8,
        }
    }

    /// A thread of `node` with `reads` reads of 1000 ns each and `updates` updates of 3000 ns each.
    fn thread(node: u32, seconds: f64, reads: u64, updates: u64) -> ThreadResult {
        let mut result = ThreadResult { seconds, reads, updates, ..ThreadResult::new(node) };
        result.round_trips = reads + 2 * updates;
        result.fabric_ops = reads + 3 * updates;
        result.bytes = 16 * reads + 64 * updates;
        (0..reads).for_each(|_| result.latencies.record(1_000, 1));
        (0..updates).for_each(|_| result.latencies.record(3_000, 1));
        result
    }

    #[test]
    fn merging_adds_up_and_keeps_every_sample() {
        let results = [thread(0, 1.0, 800, 200), thread(1, 2.0, 400, 100)];
        let report = Report::merge(setup(2, 1), &results, Some(55.0)).expect("both threads reported");
        assert_eq!((report.operations, report.reads, report.updates), (1_500, 1_200, 300));
        assert_eq!((report.seconds, report.throughput_ops_per_s), (2.0, 750.0));
        assert_eq!(report.round_trips_per_op, 1.2);
        assert_eq!(report.fabric_ops_per_op, 1.4);
        assert_eq!(report.bytes_per_op, 25.6);
        assert_eq!(report.per_node, PerNode { min_ops_per_s: 250.0, max_ops_per_s: 500.0, fairness: 0.5 });
        let near = |ns: u64, expected: u64| ns.abs_diff(expected) <= expected / 500;
        let latency = report.latency_ns;
        assert!(near(latency.p50, 1_000) && near(latency.p90, 3_000) && near(latency.max, 3_000), "{latency:?}");
    }

    #[test]
    fn results_cross_process_boundaries_unchanged() {
        let mut result = thread(3, 1.5, 10, 20);
        result.latencies.record(0, 1);
        result.latencies.record(u64::MAX, 1);
        let line = serde_json::to_string(&result).expect("a result is JSON");
        assert!(!line.contains('\n'));
        assert_eq!(serde_json::from_str::<ThreadResult>(&line).expect("the line was just written"), result);
    }

    #[test]
    fn damaged_results_are_errors() {
        let line = serde_json::to_string(&thread(0, 1.0, 10, 0)).expect("a result is JSON");
        let at = line.find("\"latencies\":\"").expect("the histogram is a string") + 13;
        for damage in ["abc", "zz", "é", "", "0000"] {
            let damaged = format!("{}{damage}\"}}", &line[..at]);
            assert!(serde_json::from_str::<ThreadResult>(&damaged).is_err(), "{damage}");
        }
    }

    #[test]
    fn missing_and_unknown_threads_are_errors() {
        let one = [thread(0, 1.0, 1, 0)];
        let error = Report::merge(setup(2, 1), &one, None).expect_err("a thread is missing").to_string();
        assert_eq!(error, "1 of 2 threads reported: the run is incomplete");
        let unknown = [thread(0, 1.0, 1, 0), thread(2, 1.0, 1, 0)];
        assert!(Report::merge(setup(2, 1), &unknown, None).is_err());
    }

    #[test]
    fn a_report_is_one_flat_line_of_json() {
        let report = Report::merge(setup(1, 1), &[thread(0, 2.0, 10, 0)], None).expect("the thread reported");
        let line = serde_json::to_string(&report).expect("a report is JSON");
        assert!(line.starts_with(r#"{"fabric":"shm","nodes":1,"threads":1,"workload":"a","distribution":"zipfian","#));
        assert!(line.contains(r#""throughput_ops_per_s":5.0"#) && line.contains(r#""p99_9":"#), "{line}");
        assert_eq!(serde_json::from_str::<Report>(&line).expect("the line was just written"), report);
    }

    #[test]
    fn a_run_without_operations_has_no_infinities() {
        let report = Report::merge(setup(1, 1), &[ThreadResult::new(0)], None).expect("the thread reported");
        assert_eq!((report.throughput_ops_per_s, report.round_trips_per_op, report.per_node.fairness), (0.0, 0.0, 0.0));
    }

    #[test]
    fn reports_are_appended() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let report = Report::merge(setup(1, 1), &[thread(0, 2.0, 10, 0)], None).expect("the thread reported");
        publish(&[&report, &report], Some(file.path()), |_| Ok(())).expect("a temporary file");
        let text = std::fs::read_to_string(&file).expect("the file was just written");
        assert_eq!(text.lines().count(), 2);
        assert!(text.lines().all(|line| serde_json::from_str::<Report>(line).is_ok()));
    }

    #[test]
    fn the_table_is_readable() {
        let report = Report::merge(setup(1, 2), &[thread(0, 2.0, 5_000, 0), thread(0, 2.0, 5_000, 0)], Some(54.6));
        let table = report.expect("both threads reported").table();
        assert!(table.contains("shm, 1 nodes x 2 threads, window 4") && table.contains("10,000 in 2.00 s"), "{table}");
        assert!(table.contains("a, zipfian, 500,000 keys, 8-byte values") && table.contains("55 ns"), "{table}");
    }
}
