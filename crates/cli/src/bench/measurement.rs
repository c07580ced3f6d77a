//! One measurement: the line of JSON that every benchmark writes, Farfield's and those of other systems alike.
//!
//! Lines contain the whole latency histogram, in the hexadecimal form of HdrHistogram's own encoding (V2). So
//! percentiles of several threads or repetitions come from all of the samples, never from percentiles.

use std::collections::BTreeMap;
use std::time::SystemTime;

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer as HistogramReader, Serializer as _, V2Serializer};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};

/// The version of the lines. It changes if a field is removed or gets another meaning.
pub(crate) const FORMAT: u32 = 1;

/// One repetition of one case.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measurement {
    /// [`FORMAT`].
    pub(crate) format: u32,
    /// The benchmark: `kv`, `locks`, `transfers`, `fabric`, `barrier`, `broadcast`, `collectives`, `queue`,
    /// `rome`, `swarm` or `wrdt`.
    pub(crate) bench: String,
    /// The measured case: the workload of `kv`, the kind of `locks`, the operation of `fabric`, and so on.
    pub(crate) case: String,
    /// `farfield`, or the name of another system.
    pub(crate) system: String,
    pub(crate) system_version: String,
    pub(crate) setup: Setup,
    /// Counted from 0.
    pub(crate) repetition: u32,
    /// The longest that any thread ran.
    pub(crate) seconds: f64,
    /// Operations of all threads.
    pub(crate) operations: u64,
    pub(crate) throughput_ops_per_s: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) latency_ns: Option<Percentiles>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) latency_histogram: Option<Latencies>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) round_trips_per_op: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) fabric_ops_per_op: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) bytes_per_op: Option<f64>,
    /// The slowest thread's operations as a share of the fastest's: 1 is even.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) fairness: Option<f64>,
    /// The time in which this machine passes a cache line from one core to another, measured in the same run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) handoff_ns: Option<f64>,
    /// Whether each thread was kept on a core.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) pinned: Option<bool>,
    /// Figures that only some benchmarks have, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) figures: BTreeMap<String, f64>,
    pub(crate) machine: Machine,
    /// The command line, with its options.
    pub(crate) command: String,
    /// When it ended, in UTC: `2026-11-26T01:02:03Z`.
    pub(crate) at: String,
}

/// The options of the run. A field that does not apply is absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Setup {
    /// The fabric's name: `shm` or `verbs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) fabric: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) nodes: Option<u32>,
    /// Of each node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) threads: Option<u32>,
    /// Operations, or messages, that each thread keeps in flight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) window: Option<u32>,
    /// Bytes of a message or value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) size: Option<u64>,
    /// Keys loaded before the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) keys: Option<u64>,
    /// How likely each key was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) distribution: Option<String>,
    /// The kind of the locks, where it is not the case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) kind: Option<String>,
    /// Locks of all nodes together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) locks: Option<u64>,
    /// The share of acquisitions of locks of the own node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) local_percent: Option<u32>,
    /// How often in a row a cohort of ALock may take the lock while the other waits, if that is not the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) remote_budget: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) local_budget: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) accounts: Option<u64>,
    /// Puts of each thread to each other node before a meeting at a barrier, if there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) puts: Option<u32>,
    /// Memory nodes, and processes that call them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) replicas: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) clients: Option<u32>,
    /// Metadata words of a replicated register, if there is not one for each client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) metadata_words: Option<u32>,
    /// Updates among the calls on a replicated type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) update_percent: Option<u32>,
    /// Time in a critical section.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) work_ns: Option<u64>,
    /// The length of a wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) pause_ms: Option<u32>,
    /// The period of heartbeats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) heartbeats_ms: Option<u32>,
}

/// The machine that was measured on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) cpu: String,
    /// Those that this process may use.
    pub(crate) cores: u32,
    pub(crate) kernel: String,
    pub(crate) memory_bytes: u64,
}

/// Latency percentiles in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Percentiles {
    pub(crate) p50: u64,
    pub(crate) p90: u64,
    pub(crate) p99: u64,
    pub(crate) p99_9: u64,
    /// The slowest of those that were timed.
    pub(crate) max: u64,
}

/// How long operations took, in nanoseconds, to three significant digits; above a minute they count as a minute.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Latencies(Histogram<u64>);

/// Farfield's own name among the systems.
const OURS: &str = "farfield";

impl Measurement {
    /// Whether it is Farfield's, and not a peer's.
    pub(crate) fn is_ours(&self) -> bool {
        self.system == OURS
    }

    /// A measurement of Farfield on this machine, by this command, that ends now. Its numbers are still zero.
    pub(crate) fn new(bench: &str, case: &str, setup: Setup) -> Measurement {
        Measurement {
            format: FORMAT,
            bench: bench.into(),
            case: case.into(),
            system: OURS.into(),
            system_version: env!("CARGO_PKG_VERSION").into(),
            setup,
            repetition: 0,
            seconds: 0.0,
            operations: 0,
            throughput_ops_per_s: 0.0,
            latency_ns: None,
            latency_histogram: None,
            round_trips_per_op: None,
            fabric_ops_per_op: None,
            bytes_per_op: None,
            fairness: None,
            handoff_ns: None,
            pinned: None,
            figures: BTreeMap::new(),
            machine: Machine::read(),
            command: command(),
            at: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        }
    }

    /// Adds the latencies of all threads.
    pub(crate) fn set_latencies(&mut self, latencies: Latencies) {
        self.latency_ns = Some(latencies.percentiles());
        self.latency_histogram = Some(latencies);
    }
}

/// The command line of this process, as a shell reads it.
fn command() -> String {
    let arguments: Vec<String> = std::env::args_os().skip(1).map(|it| it.to_string_lossy().into_owned()).collect();
    let all: Vec<&str> = std::iter::once("farfield").chain(arguments.iter().map(String::as_str)).collect();
    shlex::try_join(all.iter().copied()).unwrap_or_else(|_| all.join(" "))
}

impl Machine {
    /// This machine. A field that `/proc` does not have is empty or zero.
    pub(crate) fn read() -> Machine {
        let read = |file: &str| std::fs::read_to_string(file).unwrap_or_default();
        let value = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.starts_with(name));
            line.and_then(|line| line.split_once(':')).map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
        };
        let memory = value(&read("/proc/meminfo"), "MemTotal");
        let kibibytes: u64 = memory.split(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0);
        Machine {
            cpu: value(&read("/proc/cpuinfo"), "model name"),
            cores: std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            memory_bytes: kibibytes * 1024,
        }
    }
}

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

    /// All samples.
    pub(crate) fn histogram(&self) -> &Histogram<u64> {
        &self.0
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

impl Percentiles {
    /// The titles of [`Percentiles::columns`].
    pub(crate) const TITLES: [&str; 5] = ["p50", "p90", "p99", "p99.9", "max"];

    /// Columns of a table.
    pub(crate) fn columns(&self) -> [String; 5] {
        [self.p50, self.p90, self.p99, self.p99_9, self.max].map(time)
    }
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

/// Whether a figure is the number of calls that have taken so many round trips, such as `trips_2`. There are too many
/// of them for columns.
pub(crate) fn is_part(figure: &str) -> bool {
    figure.strip_prefix("trips_").is_some_and(|count| count.parse::<u64>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_the_expected_fields_and_is_read_back() {
        let setup = Setup { fabric: Some("shm".into()), nodes: Some(2), ..Setup::default() };
        let mut one = Measurement::new("kv", "a", setup);
        let mut latencies = Latencies::new();
        latencies.record(1_000, 10);
        one.set_latencies(latencies);
        let line = serde_json::to_string(&one).expect("a measurement is JSON");
        assert!(!line.contains('\n') && !line.contains("window") && !line.contains("fairness"), "{line}");
        let start = r#"{"format":1,"bench":"kv","case":"a","system":"farfield","system_version":""#;
        assert!(line.starts_with(start) && line.contains(r#""setup":{"fabric":"shm","nodes":2},"repetition":0"#));
        assert!(line.contains(r#""latency_ns":{"p50":1000,"#) && line.contains(r#""p99_9":"#), "{line}");
        assert_eq!(serde_json::from_str::<Measurement>(&line).expect("the line was just written"), one);
        assert!(one.at.ends_with('Z') && one.at.len() == 20, "{}", one.at);
        assert!(one.command.starts_with("farfield") && one.machine.cores > 0);
    }

    #[test]
    fn a_line_without_optional_fields_is_read() {
        let line = r#"{"format":1,"bench":"barrier","case":"fenced","system":"mpi","system_version":"4.1.4",
            "setup":{},"repetition":0,"seconds":1.0,"operations":5,"throughput_ops_per_s":5.0,
            "machine":{"cpu":"x","cores":2,"kernel":"6","memory_bytes":1},"command":"mpirun","at":"now"}"#;
        let read: Measurement = serde_json::from_str(line).expect("a line of another system");
        assert_eq!((read.latency_ns, read.setup), (None, Setup::default()));
    }

    #[test]
    fn damaged_histograms_are_errors() {
        for damage in ["abc", "zz", "é", "", "0000"] {
            assert!(serde_json::from_str::<Latencies>(&format!("\"{damage}\"")).is_err(), "{damage}");
        }
    }

    #[test]
    fn samples_out_of_bounds_cross_process_boundaries() {
        let mut latencies = Latencies::new();
        latencies.record(0, 1);
        latencies.record(u64::MAX, 1);
        let text = serde_json::to_string(&latencies).expect("a histogram is JSON");
        assert_eq!(serde_json::from_str::<Latencies>(&text).expect("it was just written"), latencies);
    }
}
