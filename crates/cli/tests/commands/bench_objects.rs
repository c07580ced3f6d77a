//! `farfield bench barrier`, `broadcast`, `collectives`, `queue`, `rome`, `swarm`, `wrdt` and `idle`, end to end: real
//! processes, small runs.

use std::collections::BTreeMap;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

fn bench(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_farfield"));
    command.arg("bench").args(arguments).output().expect("the binary runs")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The lines of JSON of a run that has succeeded, and its table.
fn measured(arguments: &[&str]) -> (Vec<Value>, String) {
    let output = bench(&[arguments, &["--json", "-"]].concat());
    assert!(output.status.success(), "{arguments:?}: {}", said(&output));
    let text = String::from_utf8(output.stdout.clone()).expect("text");
    (text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect(), said(&output))
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is a number"))
}

fn each_is_whole(lines: &[Value], bench: &str) {
    for line in lines {
        assert_eq!((&line["bench"], &line["system"]), (&bench.into(), &"farfield".into()), "{line}");
        assert!(number(&line["operations"]) > 0.0 && number(&line["throughput_ops_per_s"]) > 0.0, "{line}");
        for percentile in ["p50", "p90", "p99", "p99_9", "max"] {
            assert!(number(&line["latency_ns"][percentile]) > 0.0, "{line}");
        }
        assert!(line["latency_histogram"].is_string() && number(&line["machine"]["cores"]) > 0.0, "{line}");
        assert!(line["command"].as_str().expect("text").contains(&format!("bench {bench}")), "{line}");
    }
}

#[test]
fn threads_meet_with_a_fence_and_without() {
    let (lines, table) = measured(&["barrier", "--nodes", "2", "--threads", "1,2", "--seconds", "0.1"]);
    each_is_whole(&lines, "barrier");
    let cases: Vec<_> = lines.iter().map(|line| (&line["case"], &line["setup"]["threads"])).collect();
    let (fenced, unfenced) = (Value::from("fenced"), Value::from("unfenced"));
    let threads = [Value::from(1), Value::from(2)];
    let expected = [(&fenced, &threads[0]), (&fenced, &threads[1]), (&unfenced, &threads[0]), (&unfenced, &threads[1])];
    assert_eq!(cases, expected);
    assert!(table.contains("unfenced") && table.contains("threads"), "{table}");
    for line in &lines {
        // One put to the other node, for each arrival; a few more tell when it is over.
        let operations = number(&line["fabric_ops_per_op"]);
        assert!((1.0..1.1).contains(&operations), "{line}");
    }
}

#[test]
fn a_fence_makes_earlier_puts_visible() {
    let (lines, _) = measured(&["barrier", "--nodes", "2", "--puts", "2", "--seconds", "0.1"]);
    each_is_whole(&lines, "barrier");
    let trips: Vec<f64> = lines.iter().map(|line| number(&line["round_trips_per_op"])).collect();
    assert!(trips[0] > 0.9 && trips[1] < 0.1, "{trips:?}: a fence is a round trip");
    assert!(lines.iter().all(|line| line["setup"]["puts"] == 2));
}

#[test]
fn messages_reach_all_readers_whole() {
    let (lines, table) =
        measured(&["broadcast", "--nodes", "2,3", "--size", "8,4096", "--window", "1,16", "--seconds", "0.05"]);
    each_is_whole(&lines, "broadcast");
    assert_eq!(lines.len(), 8);
    for line in &lines {
        let bytes = number(&line["throughput_ops_per_s"]) * number(&line["setup"]["size"]);
        assert!((number(&line["figures"]["bytes_per_s"]) / bytes - 1.0).abs() < 1e-6, "{line}");
        // Two puts to each reader, and its acknowledgement.
        let readers = number(&line["setup"]["nodes"]) - 1.0;
        assert!(number(&line["fabric_ops_per_op"]) >= 2.9 * readers, "{line}");
    }
    assert!(table.contains("bytes per s") && table.contains("window"), "{table}");
}

#[test]
fn several_threads_of_a_node_read() {
    let (lines, _) = measured(&["broadcast", "--threads", "2", "--window", "8", "--size", "100", "--seconds", "0.05"]);
    each_is_whole(&lines, "broadcast");
}

#[test]
fn collective_calls_deliver_the_sent_values() {
    let (lines, table) = measured(&["collectives", "--nodes", "2,3", "--size", "8,40000", "--seconds", "0.05"]);
    each_is_whole(&lines, "collectives");
    assert_eq!(lines.len(), 6 * 2 * 2);
    assert!(lines.iter().all(|line| number(&line["round_trips_per_op"]) == 0.0));
    assert!(table.contains("all_to_all") && table.contains("size"), "{table}");
}

#[test]
fn values_come_out_once_and_in_order() {
    let (lines, table) = measured(&["queue", "--nodes", "1,2", "--threads", "2", "--seconds", "0.1"]);
    each_is_whole(&lines, "queue");
    assert_eq!(lines.len(), 2);
    assert!(lines.iter().all(|line| (0.0..=1.0).contains(&number(&line["fairness"]))));
    assert!(table.contains("all values came out once, and in order"), "{table}");
}

#[test]
fn replicated_calls_are_counted_beside_those_of_other_systems() {
    let sizes = ["--keys", "100", "--clients", "2", "--workload", "a", "--seconds", "0.1"];
    let (lines, table) = measured(&[&["swarm", "--system", "swarm,dm-abd,fusee,raw"][..], &sizes].concat());
    each_is_whole(&lines, "swarm");
    let figure = |line: &Value, name: &str| number(&line["figures"][name]);
    let medians = lines.iter().map(|line| (line["case"].as_str().unwrap_or_default(), figure(line, "trips_p50")));
    let expected = [
        ("a swarm get", 1.0),
        ("a swarm update", 1.0),
        ("a dm-abd get", 2.0),
        ("a dm-abd update", 2.0),
        ("a fusee get", 1.0),
        ("a fusee update", 4.0),
        ("a raw get", 1.0),
        ("a raw update", 1.0),
    ];
    assert_eq!(medians.collect::<Vec<_>>(), expected);
    // More of each value is on memory nodes than with one copy.
    assert!(figure(&lines[0], "memory_per_key") > 3.0 * figure(&lines[6], "memory_per_key"));
    assert!(table.contains("one trip %") && table.contains("replicas 3") && !table.contains("trips 1"), "{table}");
    let papers = ["1", "1", "2", "2", "1-2, 99th percentile 2", "4, 99th percentile 5", "1", "1"];
    for (line, paper) in lines.iter().zip(papers) {
        let start = format!("  {}: ", line["case"].as_str().unwrap_or_default());
        let histogram =
            table.lines().find_map(|row| row.strip_prefix(&start)?.strip_suffix(&format!("; paper {paper}")));
        let histogram = histogram.unwrap_or_else(|| panic!("{start}… {paper}: {table}"));
        let shares = histogram.split(", ").map(|part| {
            let (trips, share) = part.split_once(": ").expect("a number and its share");
            let calls = figure(line, &format!("trips_{}", trips.trim_end_matches(" and more")));
            let share: f64 = share.strip_suffix(" %").and_then(|share| share.parse().ok()).expect("a share");
            assert!((share - 100.0 * calls / number(&line["operations"])).abs() < 0.01, "{part}: {line}");
            share
        });
        let sum: f64 = shares.sum();
        assert!((99.9..100.1).contains(&sum), "{sum}: {histogram}");
    }
    // Of a hundred keys, two clients meet at some: more than one call in a hundred may take a second round trip.
    assert!(lines[..2].iter().all(|line| figure(line, "one_trip_%") > 90.0), "{table}");
}

#[test]
fn the_latest_keys_are_read_while_others_come_and_go() {
    let sizes = ["--keys", "400", "--clients", "2", "--workload", "d", "--seconds", "0.3"];
    let (lines, table) = measured(&[&["swarm", "--system", "swarm,raw"][..], &sizes].concat());
    each_is_whole(&lines, "swarm");
    let cases: Vec<&str> = lines.iter().map(|line| line["case"].as_str().unwrap_or_default()).collect();
    assert_eq!(cases, ["d swarm get", "d swarm insert", "d swarm delete", "d raw get", "d raw insert"]);
    let operations = |line: &Value| number(&line["operations"]);
    let (inserts, deletes) = (operations(&lines[1]), operations(&lines[2]));
    assert!(inserts > 0.0 && deletes - inserts <= 2.0 && deletes >= inserts, "{inserts} and {deletes}: {table}");
    assert!(number(&lines[0]["figures"]["client_memory_per_key"]) > 0.0, "{table}");
}

/// What the clients have seen of a death in the middle of a run. (A run fails if a call does.) The bounds are far from
/// what a machine with a core for each process shows: they find calls that wait for the dead.
fn goes_on_after_a_death(lines: &[Value], table: &str) {
    each_is_whole(lines, "swarm");
    let cases: Vec<&str> = lines.iter().map(|line| line["case"].as_str().unwrap_or_default()).collect();
    assert_eq!(cases, ["a swarm get", "a swarm update"], "{table}");
    let gets = number(&lines[0]["operations"]) / lines.iter().map(|line| number(&line["operations"])).sum::<f64>();
    assert!((0.4..0.6).contains(&gets), "half of the calls are gets: {table}");
    for line in lines {
        let figures = line["figures"].as_object().expect("figures");
        // Each call is counted once, by its round trips.
        let is_count = |name: &str| name.strip_prefix("trips_").is_some_and(|trips| trips.parse::<u64>().is_ok());
        let counted: f64 = figures.iter().filter(|(name, _)| is_count(name)).map(|(_, calls)| number(calls)).sum();
        assert_eq!(counted, number(&line["operations"]), "{line}");
        let [before, after, slowest_ns] =
            ["calls_per_s_before", "calls_per_s_after", "slowest_after_ns"].map(|name| match figures.get(name) {
                Some(figure) => number(figure),
                None => panic!("no {name}: {table}"),
            });
        assert!(before > 0.0 && after > before / 20.0, "{before} calls per second before, {after} after: {line}");
        // Of all calls, also those that have ended after the end of the run.
        let slowest_ns = slowest_ns.max(number(&line["latency_ns"]["max"]));
        assert!(slowest_ns < 5e9, "a call has waited for the dead: {line}");
    }
}

#[test]
fn a_memory_node_is_killed_and_no_call_fails() {
    let picture = tempfile::NamedTempFile::new().expect("a file");
    let file = picture.path().to_str().expect("text");
    let sizes = ["--keys", "50", "--clients", "2", "--workload", "a", "--seconds", "1"];
    let (lines, table) = measured(&[&["swarm", "--kill", "--svg", file][..], &sizes].concat());
    goes_on_after_a_death(&lines, &table);
    assert!(table.contains("a memory node was killed after 0.") && table.contains("none failed"), "{table}");
    let picture = std::fs::read_to_string(file).expect("the picture");
    assert!(picture.contains("workload a") && picture.contains("seconds"), "{picture}");
}

#[test]
fn a_minority_of_five_memory_nodes_is_killed_and_no_call_fails() {
    let sizes = ["--keys", "50", "--clients", "2", "--workload", "a", "--seconds", "1"];
    let (lines, table) = measured(&[&["swarm", "--replicas", "5", "--kill"][..], &sizes].concat());
    goes_on_after_a_death(&lines, &table);
    // A run fails if a node fails by itself, or by a signal other than SIGKILL.
    assert!(table.contains("2 memory nodes were killed after 0.") && table.contains("none failed"), "{table}");
}

#[test]
fn replicated_types_take_as_many_operations_as_their_categories() {
    let options = ["--system", "hamband,smr,msg,msg-batch", "--type", "counter,gset-buffered,account"];
    let sizes = ["--nodes", "3", "--calls", "2000"];
    let (lines, table) = measured(&[&["wrdt"][..], &options, &sizes].concat());
    each_is_whole(&lines, "wrdt");
    let of = |case: &str| {
        let found = lines.iter().find(|line| line["case"] == case);
        found.unwrap_or_else(|| panic!("there is no {case}: {table}"))
    };
    assert_eq!(lines.len(), 4 * (4 + 4 + 5), "{table}");
    let made = |what: &str| number(&of(what)["operations"]);
    assert_eq!((made("counter hamband calls"), made("counter hamband updates")), (2000.0, 500.0));
    assert_eq!((made("counter smr queries"), made("account msg Withdraw, conflicting")), (1500.0, 250.0));
    let puts = |case: &str| number(&of(case)["figures"]["puts"]);
    for case in ["counter hamband Add, reducible", "gset-buffered hamband Add, conflict-free"] {
        // The service thread may acknowledge something meanwhile.
        assert!((2.0..2.5).contains(&puts(case)), "{case}: {table}");
        assert!(number(&of(case)["round_trips_per_op"]) < 0.2, "{case}: {table}");
    }
    for case in ["counter msg Add, conflict-free", "account msg Withdraw, conflicting"] {
        assert!((2.0..2.1).contains(&puts(case)), "{case}: {table}");
    }
    // The leader asks each of two followers. One that is not brought up yet is not asked: half of a trip is counted.
    let trips = number(&of("counter smr Add, conflicting")["round_trips_per_op"]);
    assert!((0.5..1.5).contains(&trips), "{trips}: {table}");
    assert!(lines.iter().all(|line| line["setup"]["update_percent"] == 25), "{table}");
    assert!(table.contains("account, 3 nodes, 25 % updates: hamband"), "{table}");
}

#[test]
fn a_leader_is_killed_and_another_one_goes_on() {
    let picture = tempfile::NamedTempFile::new().expect("a file");
    let file = picture.path().to_str().expect("text");
    let options = ["--type", "courseware", "--nodes", "3", "--kill", "none,leader", "--seconds", "2", "--svg", file];
    let (lines, table) = measured(&[&["wrdt"][..], &options].concat());
    assert_eq!(lines.len(), 2 * (3 + 4));
    assert!(lines[0]["case"] == "courseware hamband calls, none killed", "{table}");
    assert!(lines[7]["case"] == "courseware hamband calls, leader killed", "{table}");
    assert!(table.contains("no node was killed; the middle is after 1.00 s."), "{table}");
    assert!(table.contains("a leader was killed after") && table.contains("conflicting ones:"), "{table}");
    // Each of four methods, without a death and with one.
    let times = table.lines().filter(|line| line.contains(" before, ") && line.ends_with(" after, on the average"));
    assert_eq!(times.count(), 2 * 4, "{table}");
    for line in lines[3..7].iter().chain(&lines[10..]) {
        for figure in ["mean_before_ns", "mean_after_ns"] {
            assert!(number(&line["figures"][figure]) > 0.0, "{figure}: {line}");
        }
    }
    let picture = std::fs::read_to_string(file).expect("the picture");
    for line in ["courseware hamband updates, none killed", "courseware hamband updates, leader killed", "seconds"] {
        assert!(picture.contains(line), "{line}: {picture}");
    }
}

#[test]
fn updates_and_queries_are_drawn_over_the_numbers_of_nodes() {
    let picture = tempfile::NamedTempFile::new().expect("a file");
    let file = picture.path().to_str().expect("text");
    let options = ["--system", "hamband,msg", "--nodes", "2,3", "--calls", "1000", "--svg", file];
    let (lines, table) = measured(&[&["wrdt"][..], &options].concat());
    each_is_whole(&lines, "wrdt");
    assert_eq!(lines.len(), 2 * 2 * 4, "{table}");
    let picture = std::fs::read_to_string(file).expect("the picture");
    for system in ["hamband", "msg"] {
        for what in ["updates", "queries"] {
            assert!(picture.contains(&format!(">counter {system} {what}, 25 %<")), "{picture}");
        }
    }
    assert_eq!(picture.matches("<circle").count(), 2 * 2 * 2, "{picture}");
    assert!(picture.contains(">nodes<"), "{picture}");
}

#[test]
fn a_map_is_scanned_by_other_nodes_without_an_operation_of_its_owner() {
    let files = [(); 2].map(|()| tempfile::NamedTempFile::new().expect("a file"));
    let [local, scans] = files.each_ref().map(|file| file.path().to_str().expect("text"));
    let options = ["--system", "rome,btreemap,redb", "--workload", "b,e", "--workers", "2", "--scanners", "0,1"];
    let sizes = ["--keys", "20000", "--pairs", "1000-2000", "--seconds", "0.2", "--svg", local, "--svg-scans", scans];
    let (lines, table) = measured(&[&["rome"][..], &options, &sizes].concat());
    each_is_whole(&lines, "rome");
    let cases: Vec<&str> = lines.iter().map(|line| line["case"].as_str().unwrap_or_default()).collect();
    let of = |mix: &str| {
        ["rome workers", "btreemap workers", "redb workers", "rome workers", "rome scans"]
            .map(|of| format!("{mix} {of}"))
    };
    assert_eq!(cases, [of("b"), of("e")].concat(), "{table}");
    let figure = |line: &Value, name: &str| number(&line["figures"][name]);
    for line in &lines {
        let clients = number(&line["setup"]["clients"]);
        if line["case"].as_str().is_some_and(|case| case.ends_with("workers")) {
            // When memory is used up, the owner gets the seats of the others.
            assert!(number(&line["fabric_ops_per_op"]) < 0.01 * (1.0 + clients), "{line}");
            assert!(figure(line, "per_core_second") > 0.0, "{line}");
        } else {
            // 48 pairs and more of a leaf, and 16 leaves at a time.
            assert!((0.5..12.0).contains(&figure(line, "trips_per_1000_pairs")), "{line}");
            assert_eq!(figure(line, "again"), 0.0, "{line}");
        }
    }
    assert!(
        table.contains("b, 2 workers: rome") && table.contains("x redb") && table.contains("1 scanners:"),
        "{table}"
    );
    for file in [local, scans] {
        let picture = std::fs::read_to_string(file).expect("the picture");
        assert!(picture.contains("e, 2 workers") && picture.contains("scanners"), "{picture}");
    }
}

#[test]
fn an_object_is_read_whole_in_different_ways() {
    let options = ["--object", "rome,locking,versions,checksums", "--writes", "never,some", "--size", "64,4096"];
    let (lines, table) = measured(&[&["rome"][..], &options, &["--readers", "2", "--seconds", "0.1"]].concat());
    let reads: Vec<&Value> =
        lines.iter().filter(|line| line["case"].as_str().is_some_and(|case| case.ends_with("reads"))).collect();
    assert_eq!((reads.len(), lines.len()), (4 * 2 * 2, 4 * 2 * 3), "{table}");
    for line in reads {
        let case = line["case"].as_str().unwrap_or_default();
        let trips = number(&line["round_trips_per_op"]);
        let fits = match case {
            // Never more, whatever the writer does.
            "rome, no writes reads" | "rome, some writes reads" => trips == 2.0,
            "checksums, no writes reads" => trips == 1.0,
            "versions, no writes reads" => trips == 3.0,
            _ => trips >= 1.0,
        };
        assert!(fits, "{line}");
        assert!(number(&line["operations"]) > 0.0, "{line}");
    }
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

/// How many threads a process has.
fn threads(id: &str) -> usize {
    std::fs::read_dir(format!("/proc/{id}/task")).map_or(0, Iterator::count)
}

/// How many clock ticks (10 ms) a process has worked.
fn ticks_of_work(id: &str) -> u64 {
    let line = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    // Its name may have spaces. The text behind it begins with the third field; the 14th and 15th are times.
    let fields = line.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace();
    fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum()
}

#[test]
fn a_node_that_dies_ends_the_run_and_is_named() {
    for name in [
        "barrier",
        "broadcast",
        "collectives",
        "fabric",
        "idle",
        "kv --keys 500",
        "kv --keys 500 --batch",
        "queue",
        "rome --keys 1000 --scanners 1",
        "rome --object rome",
        "swarm --clients 1 --keys 100",
        "transfers",
        "wrdt --calls 1000000000 --nodes 2",
        "wrdt --system msg --calls 1000000000 --nodes 2",
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_farfield"));
        command
            .arg("bench")
            .args(name.split(' '))
            .args(["--seconds", "60"])
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let run = command.spawn().expect("the binary runs");
        let start = Instant::now();
        let nodes = loop {
            let nodes = nodes(run.id());
            // A node that has joined the session has a service thread.
            if nodes.len() >= 2 && nodes.iter().all(|node| threads(node) > 1) {
                break nodes;
            }
            assert!(start.elapsed() < Duration::from_secs(30), "no nodes have joined");
            std::thread::sleep(Duration::from_millis(10)); // between looks
        };
        // In the middle of its work. (A node of `idle` has none.)
        let (joined, before) = (Instant::now(), ticks_of_work(&nodes[1]));
        while ticks_of_work(&nodes[1]) < before + 5 && joined.elapsed() < Duration::from_millis(300) {
            std::thread::sleep(Duration::from_millis(5)); // between looks
        }
        let killed = Command::new("kill").args(["-KILL", &nodes[1]]).status().expect("there is kill");
        assert!(killed.success());
        let output = run.wait_with_output().expect("it ends");
        assert!(!output.status.success() && start.elapsed() < Duration::from_secs(50), "{name}");
        // First of all, before the others' words about it.
        let first = "farfield: node 1 was killed by SIGKILL (signal 9)\n";
        assert!(said(&output).starts_with(first), "{name}: {}", said(&output));
        assert!(!said(&output).contains("the store is broken"), "{name}: {}", said(&output));
    }
}

#[test]
fn values_that_make_no_sense_are_refused() {
    for (arguments, why) in [
        (&["broadcast", "--nodes", "1"][..], "--nodes"),
        (&["broadcast", "--size", "7"], "8..="),
        (&["broadcast", "--window", "0"], "--window"),
        (&["collectives", "--size", "12"], "--size"),
        (&["collectives", "--nodes", "1"], "--nodes"),
        (&["barrier", "--fence", "some"], "--fence"),
        (&["swarm", "--replicas", "4"], "1, 3, 5 or 7"),
        (&["swarm", "--kill", "--system", "raw"], "--kill"),
        (&["swarm", "--peer", "mpi"], "--system"),
        (&["swarm", "--system", "fusee", "--window", "2"], "--window"),
        (&["swarm", "--clients", "128"], "--clients"),
        (&["wrdt", "--nodes", "1"], "--nodes"),
        (&["wrdt", "--updates", "0"], "--updates"),
        (&["wrdt", "--peer", "mpi"], "--system"),
        (&["wrdt", "--system", "msg", "--kill", "leader"], "--kill"),
        (&["wrdt", "--nodes", "2", "--kill", "follower"], "--kill"),
        (&["wrdt", "--kill", "none,all"], "--kill"),
        (&["wrdt", "--svg", "/no/such.svg"], "--svg"),
        (&["rome", "--system", "redb", "--scanners", "2"], "--scanners"),
        (&["rome", "--pairs", "9-3"], "--pairs"),
        (&["rome", "--object", "rome", "--size", "20"], "--size"),
        (&["rome", "--object", "rome", "--workload", "b"], "--object"),
        (&["rome", "--readers", "2"], "--object"),
        (&["rome", "--peer", "mpi"], "--system"),
        (&["queue", "--capacity", "0"], "--capacity"),
        (&["queue", "--seconds", "0"], "between 0 and a day"),
        (&["queue", "--pin", "often"], "--pin"),
    ] {
        let output = bench(arguments);
        assert!(!output.status.success(), "{arguments:?}");
        assert!(said(&output).contains(why), "{arguments:?}: {}", said(&output));
    }
}

#[test]
fn long_waits_end_and_cost_little() {
    let (lines, table) = measured(&["idle", "--seconds", "0.2", "--pause", "20"]);
    each_is_whole(&lines, "idle");
    let cases: Vec<_> = lines.iter().filter_map(|line| line["case"].as_str()).collect();
    assert_eq!(cases, ["queue", "ring", "variable", "barrier", "mutex", "alock"]);
    for line in &lines {
        assert_eq!((number(&line["operations"]), number(&line["setup"]["pause_ms"])), (10.0, 20.0), "{line}");
        let [thread, process] = ["core_percent", "process_percent"].map(|name| number(&line["figures"][name]));
        // Most of the time it sleeps, even if it has to share its core.
        assert!(0.0 < thread && thread <= process && thread < 50.0, "{line}");
    }
    assert!(table.contains("core percent") && table.contains("pause ms"), "{table}");
    let (lines, _) = measured(&["idle", "--seconds", "0.1", "--case", "ring", "--heartbeats", "20"]);
    let suspected = &lines[0]["figures"]["suspected"];
    assert!(suspected.is_number() && lines.len() == 1, "{lines:?}");
}
