//! `farfield bench locks`, end to end: real processes, small runs.

use std::collections::BTreeMap;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use farfield::LockKind;
use serde_json::Value;
use tempfile::NamedTempFile;

fn locks(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_farfield"));
    command.args(["bench", "locks"]).args(arguments).output().expect("the binary runs")
}

/// The lines of JSON of a run that has succeeded.
fn measured(arguments: &[&str]) -> Vec<Value> {
    let output = locks(&[arguments, &["--json", "-"]].concat());
    assert!(output.status.success(), "{arguments:?}: {}", said(&output));
    let text = String::from_utf8(output.stdout).expect("text");
    text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is a number"))
}

#[test]
fn all_kinds_exclude_and_are_compared() {
    let lines = measured(&[
        "--nodes",
        "2",
        "--threads",
        "2",
        "--seconds",
        "0.1",
        "--rounds",
        "2",
        "--locks",
        "2,20",
        "--locality",
        "50,100",
    ]);
    assert_eq!(lines.len(), 2 * 4 * LockKind::ALL.len());
    for line in &lines {
        let (setup, figures) = (&line["setup"], &line["figures"]);
        assert!(number(&line["operations"]) > 0.0 && number(&line["throughput_ops_per_s"]) > 0.0, "{line}");
        assert_eq!((&setup["nodes"], &setup["threads"]), (&2.into(), &2.into()));
        assert!(number(&figures["empty_turn_ns"]) > 0.0, "{line}");
        assert!((0.0..=1.0).contains(&number(&line["fairness"])), "{line}");
        for percentile in ["p50", "p90", "p99", "p99_9", "max"] {
            assert!(number(&line["latency_ns"][percentile]) > 0.0, "{line}");
        }
        // One that starves may have had a single lock, of another node.
        let own = figures["own_acquisitions"].is_number();
        if setup["local_percent"] == 100 {
            assert!(own && figures["others_acquisitions"].is_null(), "{line}");
            assert_eq!((number(&figures["own_remote_ops"]), number(&figures["own_round_trips"])), (0.0, 0.0));
        } else if figures["others_acquisitions"].is_number() {
            assert!(number(&figures["others_remote_ops"]) >= 2.0, "one to take it, one to release it: {line}");
        }
        // A lock without asymmetry uses the NIC on its own node, too.
        if own && ["spin", "mutex"].contains(&line["case"].as_str().expect("a name")) {
            assert!(number(&figures["own_loopback_ops"]) >= 2.0, "{line}");
        }
        if own && line["case"] == "alock" {
            assert_eq!(number(&figures["own_loopback_ops"]), 0.0, "{line}");
        }
    }
    for kind in LockKind::ALL {
        assert_eq!(lines.iter().filter(|line| line["case"] == kind.name()).count(), 8, "{kind}");
    }
}

#[test]
fn all_threads_contend_for_a_single_lock() {
    let lines = measured(&["--nodes", "1,2", "--threads", "1", "--locks", "1", "--seconds", "0.1", "--rounds", "1"]);
    assert_eq!(lines.len(), 2 * LockKind::ALL.len());
    for line in &lines {
        let setup = &line["setup"];
        assert_eq!((&setup["locks"], setup["local_percent"].is_null()), (&1.into(), setup["nodes"] == 2), "{line}");
        assert!((0.0..=1.0).contains(&number(&line["fairness"])), "{line}");
    }
    let output = locks(&["--locks", "1", "--threads", "1", "--seconds", "0.1", "--rounds", "1"]);
    assert!(output.status.success(), "{}", said(&output));
    assert!(String::from_utf8_lossy(&output.stdout).contains("a single lock, on node 0"));
}

#[test]
fn a_single_node_has_all_locks() {
    for line in measured(&["--nodes", "1", "--threads", "1", "--seconds", "0.1", "--locks", "1", "--locality", "0"]) {
        assert_eq!(line["operations"].as_f64(), line["figures"]["own_acquisitions"].as_f64(), "{line}");
        assert_eq!(line["setup"]["local_percent"], 100);
    }
}

#[test]
fn loopback_is_measured_by_more_and_more_threads_and_drawn() {
    let file = NamedTempFile::new().expect("a file");
    let path = file.path().to_str().expect("a plain path");
    let lines = measured(&["--loopback", "--threads", "3", "--seconds", "0.1", "--rounds", "1", "--svg", path]);
    let threads: Vec<_> =
        lines.iter().filter(|line| line["case"] == "spin").map(|line| line["setup"]["threads"].clone()).collect();
    assert_eq!(threads, [1, 2, 3].map(Value::from));
    assert!(lines.iter().all(|line| line["setup"]["locks"] == 1000 && line["setup"]["nodes"] == 1));
    let picture = std::fs::read_to_string(&file).expect("the picture was written");
    assert!(picture.starts_with("<svg") && picture.contains(">spin<"), "{picture}");
}

#[test]
fn budgets_are_compared_where_a_kind_has_them() {
    let arguments = ["--budgets", "--seconds", "0.1", "--rounds", "1", "--locks", "4", "--locality", "50"];
    if "alock".parse::<LockKind>().is_err() {
        let output = locks(&arguments);
        assert!(!output.status.success() && said(&output).contains("alock"), "{}", said(&output));
        return;
    }
    let lines = measured(&arguments);
    let budgets: Vec<_> = lines.iter().map(|line| line["setup"]["remote_budget"].clone()).collect();
    assert_eq!(budgets, [5, 10, 20].map(Value::from));
}

/// Where no lock is taken the counters are found to be wrong, if two threads have ever run at once.
#[test]
fn a_run_without_exclusion_fails() {
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        return;
    }
    let arguments = ["--kind", "spin", "--locks", "2", "--unlocked", "--seconds", "0.5", "--rounds", "1"];
    let mut runs = std::iter::repeat_with(|| locks(&arguments)).take(20);
    let output = runs.find(|output| !output.status.success()).expect("additions are lost");
    assert!(said(&output).contains("exclusion is broken: the 2 locks of kind spin"), "{}", said(&output));
    assert!(output.stdout.is_empty(), "nothing is reported");
}

/// The nodes that a benchmark has started, in their order.
fn nodes(id: u32) -> Vec<String> {
    let list = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
    // One that cleans up after it has no number, and neither has a process that has not become a node yet.
    let number = |child: &str| {
        let variables = std::fs::read(format!("/proc/{child}/environ")).unwrap_or_default();
        let variable = |one: &[u8]| std::str::from_utf8(one).ok()?.strip_prefix("FARFIELD_NODE=")?.parse::<u16>().ok();
        variables.split(|byte| *byte == 0).find_map(variable)
    };
    let nodes = list.split_whitespace().filter_map(|child| Some((number(child)?, child.to_owned())));
    nodes.collect::<BTreeMap<_, _>>().into_values().collect()
}

#[test]
fn a_node_that_dies_ends_the_run() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_farfield"));
    command.args(["bench", "locks", "--seconds", "60"]).stdout(Stdio::null()).stderr(Stdio::piped());
    let run = command.spawn().expect("the binary runs");
    let start = Instant::now();
    let nodes = loop {
        let nodes = nodes(run.id());
        if nodes.len() == 2 {
            break nodes;
        }
        assert!(start.elapsed() < Duration::from_secs(30), "no nodes were started");
        std::thread::sleep(Duration::from_millis(10));
    };
    std::thread::sleep(Duration::from_millis(500));
    let killed = Command::new("kill").args(["-KILL", &nodes[1]]).status().expect("there is kill");
    assert!(killed.success());
    let output = run.wait_with_output().expect("it ends");
    assert!(!output.status.success() && start.elapsed() < Duration::from_secs(50));
    assert!(said(&output).contains("farfield: node 1 was killed by SIGKILL (signal 9)"), "{}", said(&output));
}

#[test]
fn values_that_make_no_sense_are_refused() {
    for (arguments, why) in [
        (&["--locks", "0"][..], "--locks"),
        (&["--locality", "101"], "0..=100"),
        (&["--threads", "0"], "--threads"),
        (&["--nodes", "0"], "--nodes"),
        (&["--rounds", "0"], "--repetitions"),
        (&["--seconds", "0"], "--seconds"),
        (&["--seconds", "-1"], "--seconds"),
        (&["--kind", "spin,padlock"], "unknown kind of lock `padlock`: "),
        (&["--loopback", "--nodes", "2"], "--loopback"),
        (&["--svg", "x.svg"], "--loopback"),
        (&["--budgets", "--kind", "spin"], "--budgets"),
    ] {
        let output = locks(arguments);
        assert!(!output.status.success(), "{arguments:?}");
        assert!(said(&output).contains(why), "{arguments:?}: {}", said(&output));
    }
}
