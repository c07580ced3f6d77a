//! `farfield bench`, end to end: real processes, small runs.

use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::NamedTempFile;

fn farfield(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_farfield")).args(arguments).output().expect("the binary runs")
}

#[test]
fn every_workload_runs_and_reports_a_line_of_json() {
    let file = NamedTempFile::new().expect("a file");
    let path = file.path().to_str().expect("a plain path");
    for workload in ["a", "b", "c", "f"] {
        for more in [
            &["--distribution", "uniform"][..],
            &["--distribution", "zipfian", "--threads", "2", "--value-size", "100"],
        ] {
            let common = ["bench", "kv", "--workload", workload, "--keys", "500", "--seconds", "0.1", "--json", path];
            let output = farfield(&[&common, more].concat());
            assert!(output.status.success(), "{workload} {more:?}: {}", String::from_utf8_lossy(&output.stderr));
        }
    }
    let text = std::fs::read_to_string(&file).expect("the file was written");
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect();
    assert_eq!(lines.len(), 8);
    for line in lines {
        assert!(line["throughput_ops_per_s"].as_f64().expect("a number") > 0.0, "{line}");
        assert_eq!(line["nodes"], 3);
        // A third of the values is on the reader's own node; reads of the others take one round trip.
        if line["workload"] == "c" {
            let per_operation = line["round_trips_per_op"].as_f64().expect("a number");
            assert!((0.9..=1.0).contains(&per_operation), "{line}");
        }
    }
}

#[test]
fn waited_for_operations_are_timed() {
    let output = farfield(&["bench", "fabric", "--iterations", "1000", "--batches", "3", "--json", "-"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let line: Value = serde_json::from_slice(&output.stdout).expect("a line of JSON");
    for name in ["put_ns", "get_ns", "cas_ns", "faa_ns"] {
        assert!(line[name].as_f64().expect("a number") > 0.0, "{line}");
    }
}

#[test]
fn who_is_read_no_more_ends_without_a_word() {
    let (_, nobody_reads) = std::io::pipe().expect("a pipe");
    let mut command = Command::new(env!("CARGO_BIN_EXE_farfield"));
    command.args(["bench", "fabric", "--iterations", "100", "--batches", "1", "--json", "-"]);
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
    ] {
        let output = farfield(arguments);
        assert!(!output.status.success(), "{arguments:?}");
        assert!(!output.stderr.is_empty(), "{arguments:?} says why");
    }
}
