//! Made-up measurements for tests, in the form of real ones.

use super::read::{self, Row};
use crate::bench::measurement::{FORMAT, Latencies, Measurement, Setup};

/// A measurement on two nodes over shared memory.
pub(super) fn measurement(bench: &str, case: &str, system: &str, throughput: f64) -> Measurement {
    let is_own = system == "farfield";
    let measurement = serde_json::json!({
        "format": FORMAT,
        "bench": bench,
        "case": case,
        "system": system,
        "system_version": if is_own { "0.1.0" } else { "4.1.4" },
        "setup": { "fabric": "shm", "nodes": 2, "threads": 1 },
        "repetition": 0,
        "seconds": 1.0,
        "operations": throughput as u64,
        "throughput_ops_per_s": throughput,
        "round_trips_per_op": is_own.then_some(1.5),
        "fabric_ops_per_op": is_own.then_some(2.0),
        "fairness": 0.9,
        "handoff_ns": 85.0,
        "machine": {
            "cpu": "Synthetic processor of tests",
            "cores": 2,
            "kernel": "6.18.0",
            "memory_bytes": 8u64 << 30,
        },
        "command": format!("farfield bench {bench} --json results.jsonl"),
        "at": "2026-11-26T01:02:03Z",
    });
    let mut measurement: Measurement = serde_json::from_value(measurement).expect("a measurement");
    take_times(&mut measurement, 1e9 / throughput.max(1.0), 1.0);
    measurement
}

/// A measurement as read.
pub(super) fn row(bench: &str, case: &str, system: &str, throughput: f64, edit: impl FnOnce(&mut Measurement)) -> Row {
    let mut measurement = measurement(bench, case, system, throughput);
    edit(&mut measurement);
    read::row(&serde_json::to_string(&measurement).expect("JSON")).expect("a measurement")
}

/// Latencies around a typical one, with a longer tail where `tail` is greater.
fn take_times(of: &mut Measurement, typical_ns: f64, tail: f64) {
    let mut latencies = Latencies::new();
    for step in -8i32..=24 {
        let (deviation, count) = (f64::from(step) / 8.0, 60_000.0 * 0.5f64.powi(step.abs()));
        latencies.record((typical_ns * (deviation * tail).exp()).max(1.0) as u64, (count as u64).max(1));
    }
    of.latency_ns = Some(latencies.percentiles());
    of.latency_histogram = Some(latencies);
}

const FIXTURE: &str = "tests/data/synthetic-measurements.jsonl";
const REPETITIONS: u32 = 3;

/// Lines for the test of the whole command, with something for every part of the page but ALock's budgets.
fn fixture() -> String {
    let mut text = String::new();
    let mut random = 1u64;
    let mut add = |bench: &str, case: &str, system: &str, throughput: f64, setup: Setup| {
        for repetition in 0..REPETITIONS {
            // Some noise, the same each time.
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let noise = 0.88 + 0.24 * (random >> 40) as f64 / (1u64 << 24) as f64;
            let mut of = measurement(bench, case, system, (throughput * noise).round());
            (of.repetition, of.setup) = (repetition, setup.clone());
            of.fairness = Some((noise - 0.2).min(1.0));
            if system == "redis" {
                of.system_version = "7.0.15".into();
            }
            let threads = f64::from(setup.nodes.unwrap_or(1) * setup.threads.unwrap_or(1));
            let window = f64::from(setup.window.unwrap_or(1));
            take_times(&mut of, 1e9 * threads * window / throughput, if system == "farfield" { 1.0 } else { 1.4 });
            if bench == "fabric" {
                (of.latency_ns, of.latency_histogram, of.fairness) = (None, None, None);
            }
            text += &(serde_json::to_string(&of).expect("JSON") + "\n");
        }
    };
    let setup = |nodes: u32, threads: u32| Setup {
        fabric: Some("shm".into()),
        nodes: Some(nodes),
        threads: Some(threads),
        ..Setup::default()
    };
    for (case, own, mpi) in [("put", 3.2e8, 5.4e7), ("get", 3.3e8, 5.8e7), ("cas", 2.5e8, 3.9e7), ("faa", 2.6e8, 5e7)] {
        add("fabric", case, "farfield", own, Setup { size: Some(8), ..setup(2, 1) });
        add("fabric", case, "mpi", mpi, Setup { size: Some(8), fabric: None, ..setup(2, 1) });
    }
    for nodes in [2, 4] {
        let slower = f64::from(nodes).powi(3);
        for (case, system, throughput) in
            [("fenced", "farfield", 5e7), ("unfenced", "farfield", 6e7), ("fenced", "mpi", 4.4e7)]
        {
            add("barrier", case, system, throughput / slower, setup(nodes, 1));
        }
        for window in [1, 16, 128] {
            let more = f64::from(window).sqrt();
            let setup = Setup { window: Some(window), size: Some(64), ..setup(nodes, 1) };
            add("broadcast", "ring", "farfield", 3e6 * more / f64::from(nodes), setup.clone());
            add("broadcast", "ring", "mpi", 2e6 * more.sqrt() / f64::from(nodes), setup);
        }
        let one = Setup { locks: Some(1), ..setup(nodes, 1) };
        add("locks", "mutex", "farfield", 9e6 / slower, one.clone());
        add("locks", "mutex", "mpi", 1e7 / slower, one);
        let accounts = Setup { accounts: Some(1_000_000), ..setup(nodes, 1) };
        add("transfers", "transfer", "farfield", 4e6 / f64::from(nodes), accounts.clone());
        add("transfers", "transfer", "mpi", 1.9e7 / f64::from(nodes), accounts);
    }
    for (at, case) in ["alock", "mcs", "mutex", "spin"].into_iter().enumerate() {
        for threads in [1, 2, 4] {
            let setup = Setup { locks: Some(100), local_percent: Some(90), ..setup(2, threads) };
            add("locks", case, "farfield", 4e6 * f64::from(threads).sqrt() / (1.0 + 0.3 * at as f64), setup);
        }
    }
    for (case, own, redis) in [("a", 3.4e6, 1.3e6), ("c", 1.6e7, 1.6e6)] {
        for nodes in [2, 3] {
            let setup = Setup {
                window: Some(128),
                keys: Some(500_000),
                distribution: Some("uniform".into()),
                ..setup(nodes, 1)
            };
            add("kv", case, "farfield", own * f64::from(nodes) / 3.0, setup.clone());
            add("kv", case, "redis", redis, Setup { fabric: None, threads: None, ..setup });
        }
    }
    text
}

/// The committed file is made here: `FARFIELD_UPDATE=1` writes it.
#[test]
fn the_synthetic_file_is_up_to_date() {
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(FIXTURE);
    if std::env::var_os("FARFIELD_UPDATE").is_some() {
        std::fs::create_dir_all(file.parent().expect("a directory")).expect("it is made");
        std::fs::write(&file, fixture()).expect("it is written");
    }
    let kept = std::fs::read_to_string(&file).expect("the file of synthetic measurements");
    assert!(kept == fixture(), "{FIXTURE} is another: FARFIELD_UPDATE=1 writes it anew");
}
