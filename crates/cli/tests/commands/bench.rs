//! `farfield bench`, end to end: real processes, small runs.

use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::NamedTempFile;

fn farfield(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_farfield")).args(arguments).output().expect("the binary runs")
}

/// The lines of JSON of a run that has succeeded.
fn measured(arguments: &[&str]) -> Vec<Value> {
    let output = farfield(&[&["bench"], arguments, &["--json", "-"]].concat());
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("text");
    text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is a number"))
}

#[test]
fn every_workload_runs_and_appends_a_line_of_json() {
    let file = NamedTempFile::new().expect("a file");
    let path = file.path().to_str().expect("a plain path");
    for more in [
        &["--distribution", "uniform"][..],
        &["--distribution", "zipfian", "--threads", "2", "--size", "100", "--window", "1"],
    ] {
        let common = ["bench", "kv", "--workload", "a,b,c,f", "--keys", "500", "--seconds", "0.1", "--json", path];
        let output = farfield(&[&common, more].concat());
        assert!(output.status.success(), "{more:?}: {}", String::from_utf8_lossy(&output.stderr));
        let table = String::from_utf8(output.stdout).expect("text");
        assert!(table.starts_with("kv, ") && table.contains("fabric shm, keys 500, nodes 3"), "{table}");
    }
    let text = std::fs::read_to_string(&file).expect("the file was written");
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect();
    assert_eq!(lines.len(), 8);
    for line in lines {
        assert_eq!((&line["format"], &line["bench"], &line["system"]), (&1.into(), &"kv".into(), &"farfield".into()));
        assert!(number(&line["throughput_ops_per_s"]) > 0.0, "{line}");
        assert_eq!((&line["setup"]["nodes"], &line["setup"]["keys"]), (&3.into(), &500.into()));
        assert!(number(&line["latency_ns"]["p50"]) > 0.0 && line["latency_histogram"].is_string(), "{line}");
        assert!(line["command"].as_str().expect("text").contains("bench kv --workload"), "{line}");
        // A third of the values is on the reader's own node; reads of the others take one round trip.
        let per_operation = number(&line["round_trips_per_op"]);
        match line["case"].as_str() {
            Some("c") => assert!((0.5..=0.8).contains(&per_operation), "{line}"),
            _ => assert!(per_operation > 0.5, "{line}"),
        }
    }
}

#[test]
fn batches_are_measured_apart() {
    let lines = measured(&["kv", "--batch", "--window", "4,16", "--nodes", "2", "--keys", "500", "--seconds", "0.1"]);
    let windows: Vec<_> = lines.iter().map(|line| (&line["case"], &line["setup"]["window"])).collect();
    assert_eq!(windows, [(&"get_many".into(), &4.into()), (&"get_many".into(), &16.into())]);
    assert!(lines.iter().all(|line| number(&line["operations"]) % number(&line["setup"]["window"]) == 0.0));
}

#[test]
fn a_sweep_has_each_combination_and_repetition() {
    let arguments = ["bench", "kv", "--nodes", "1,2", "--threads", "1,2", "--keys", "100", "--seconds", "0.05"];
    let file = NamedTempFile::new().expect("a file");
    let path = file.path().to_str().expect("a plain path");
    let more = ["--repetitions", "2", "--pin", "never", "--json", path];
    let output = farfield(&[&arguments[..], &more].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let table = String::from_utf8(output.stdout).expect("text");
    assert!(table.contains("; 2 repetitions") && table.contains("geo. mean  spread"), "{table}");
    assert!(table.contains("threads on no fixed core"), "{table}");
    let text = std::fs::read_to_string(&file).expect("the file was written");
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect();
    let seen: Vec<_> = lines
        .iter()
        .map(|line| (&line["repetition"], &line["setup"]["nodes"], &line["setup"]["threads"]))
        .map(|(repetition, nodes, threads)| [repetition, nodes, threads].map(|it| it.as_u64().expect("a number")))
        .collect();
    let round = |repetition| [[1, 1], [1, 2], [2, 1], [2, 2]].map(|[nodes, threads]| [repetition, nodes, threads]);
    assert_eq!(seen, [round(0), round(1)].concat());
    assert!(lines.iter().all(|line| line["pinned"] == false));
}

#[test]
fn waited_for_operations_are_timed() {
    let lines = measured(&["fabric", "--iterations", "1000", "--seconds", "0.1", "--repetitions", "2"]);
    let cases: Vec<_> = lines.iter().map(|line| line["case"].as_str().expect("a name")).collect();
    assert_eq!(cases, ["put", "get", "cas", "faa"].repeat(2));
    for line in &lines {
        assert!(number(&line["throughput_ops_per_s"]) > 0.0 && number(&line["figures"]["ns_per_op"]) > 0.0, "{line}");
    }
}

#[test]
fn peers_that_are_missing_are_left_out() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_farfield"));
    command.args("bench fabric --iterations 1000 --seconds 0.1 --peer mpi,redis,ucx --json -".split(' '));
    let output = command.env("PATH", "/nowhere").output().expect("the binary runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    for peer in ["mpi", "redis", "ucx"] {
        let missing = said.lines().find(|line| line.contains(&format!("no comparison with {peer}: ")));
        let is_helpful = |line: &str| line.contains("is not in PATH") && line.contains("apt-get install");
        assert!(missing.is_some_and(is_helpful), "{said}");
    }
    let lines: Vec<Value> = String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(|line| serde_json::from_str(line).expect("a line of JSON"))
        .collect();
    assert!(lines.len() == 4 && lines.iter().all(|line| line["system"] == "farfield"), "{lines:?}");
}

#[test]
fn a_command_ends_silently_when_its_output_is_closed() {
    let (_, nobody_reads) = std::io::pipe().expect("a pipe");
    let mut command = Command::new(env!("CARGO_BIN_EXE_farfield"));
    command.args(["bench", "fabric", "--iterations", "100", "--seconds", "0.01", "--json", "-"]);
    let started = command.stdout(nobody_reads).stderr(Stdio::piped()).spawn();
    let output = started.and_then(|child| child.wait_with_output()).expect("the binary runs");
    assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr)), (Some(141), "".into()));
}

#[test]
fn values_that_make_no_sense_are_refused() {
    for arguments in [
        &["bench", "kv", "--nodes", "0"][..],
        &["bench", "kv", "--seconds", "-1"],
        &["bench", "kv", "--keys", "0"],
        &["bench", "kv", "--workload", "z"],
        &["bench", "kv", "--batch", "--workload", "a"],
        &["bench", "kv", "--nodes", "2,x"],
        &["bench", "kv", "--repetitions", "0"],
    ] {
        let output = farfield(arguments);
        assert!(!output.status.success(), "{arguments:?}");
        assert!(!output.stderr.is_empty(), "{arguments:?} says why");
    }
}

/// It took all of the machine's memory first.
#[test]
fn memory_is_reckoned_before_any_is_taken() {
    for (arguments, lower) in [
        (&["kv", "--keys", "1000000000", "--size", "65536"][..], "lower --keys, --size or --nodes"),
        // The second run is too large: the first does not begin.
        (&["kv", "--size", "8,65536", "--keys", "1000000000", "--seconds", "60"], "lower --keys, --size or --nodes"),
        (
            &["broadcast", "--size", "1048576", "--window", "1024", "--nodes", "256"],
            "lower --size, --window or --nodes",
        ),
        (&["transfers", "--accounts", "1000000000000"], "lower --accounts or --nodes"),
    ] {
        let start = Instant::now();
        let output = farfield(&[&["bench"], arguments].concat());
        assert!(start.elapsed() < Duration::from_secs(20), "{arguments:?}");
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.starts_with("farfield: the run needs about ") && said.contains("iB free: "), "{said}");
        assert!(said.trim_end().ends_with(lower) && output.stdout.is_empty(), "{said}");
    }
}
