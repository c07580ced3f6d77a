//! Tests of the peers. Those that run their programs say so and pass where the tools are missing.

use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use super::super::measurement::{Measurement, Setup};
use super::*;

/// A measurement of Farfield.
fn ours(bench: &str, case: &str, more: Setup) -> Measurement {
    let setup = Setup { fabric: Some("shm".into()), nodes: Some(2), threads: Some(1), ..more };
    Measurement {
        throughput_ops_per_s: 2e6,
        seconds: 1.0,
        operations: 2_000_000,
        ..Measurement::new(bench, case, setup)
    }
}

fn fabric() -> Vec<Measurement> {
    ["put", "get", "cas", "faa"].map(|case| ours("fabric", case, Setup::default())).into()
}

const LINE: &str = r#"{"system":"mpi","version":"4.1.4","bench":"locks","case":"rma_lock","processes":2,"seconds":0.5,
    "operations":1000,"throughput_ops_per_s":2000.0,"aborted":3,"fairness":0.75,
    "latency_ns":{"p50":100,"p90":200,"p99":300,"p99_9":400,"max":500},"samples":[[100,600],[500,400]]}"#;

fn line() -> String {
    LINE.replace('\n', "")
}

#[test]
fn lines_are_found_among_other_output() {
    let printed = format!("a warning of mpirun\n{}\n{}\n", line(), line());
    let lines = program::parse(&printed).expect("two lines");
    assert_eq!(lines.len(), 2);
    let of_ours = Measurement { repetition: 4, ..ours("locks", "mutex", Setup { locks: Some(1), ..Setup::default() }) };
    let measured = lines[0].measurement(&of_ours, "mpirun -n 2 mpi_lock");
    assert_eq!((measured.system.as_str(), measured.system_version.as_str()), ("mpi", "4.1.4"));
    assert_eq!((measured.bench.as_str(), measured.case.as_str()), ("locks", "mutex"));
    assert_eq!((measured.setup.clone(), measured.repetition), (of_ours.setup, 4));
    assert_eq!((measured.operations, measured.throughput_ops_per_s), (1000, 2000.0));
    assert_eq!((measured.fairness, measured.figures["aborted"]), (Some(0.75), 3.0));
    assert_eq!(measured.command, "mpirun -n 2 mpi_lock");
    let histogram = measured.latency_histogram.expect("there are samples").percentiles();
    assert!(histogram.p50.abs_diff(100) <= 1 && histogram.p99.abs_diff(500) <= 1, "{histogram:?}");
    assert_eq!(measured.latency_ns.map(|latency| latency.p99_9), Some(400));
}

#[test]
fn output_without_a_result_is_an_error() {
    let error = program::parse("nothing of use\n").expect_err("no line").to_string();
    assert_eq!(error, "it printed no result");
    assert!(program::parse(&line().replace("\"operations\":1000,", "")).is_err());
    assert!(program::parse(&line()[..100]).is_err());
}

#[test]
fn a_program_is_stopped_at_its_limit_and_failures_are_told() {
    let run = |script: &str, limit: f64| {
        let mut command = Command::new("sh");
        let limit = Duration::from_secs_f64(limit);
        program::run(command.args(["-c", script]), limit, &AtomicBool::new(false)).expect_err("no result").to_string()
    };
    let start = Instant::now();
    // The shell has a child of its own, which the whole group's end takes along.
    let error = run("echo waiting >&2; sleep 60; true", 0.3);
    assert!(error.contains("has not ended within 0.3 s") && error.contains("waiting"), "{error}");
    assert!(start.elapsed() < Duration::from_secs(20));
    let error = run("echo no memory >&2; exit 3", 30.0);
    assert!(error.contains("exit status: 3") && error.contains("no memory"), "{error}");
    assert_eq!(run("true", 30.0), "it printed no result");
}

#[test]
fn only_comparable_work_is_given_to_a_peer() {
    let work =
        |peer, ours: &Measurement| Work::of(peer, ours, 0.5).map(|work| (work.processes, work.arguments.join(" ")));
    let with = |text: &str| Some((2, text.to_owned()));
    let plain = Setup::default;
    for peer in [Peer::Mpi, Peer::Ucx] {
        assert_eq!(work(peer, &ours("fabric", "cas", plain())), with("--seconds 0.5"));
    }
    assert_eq!(work(Peer::Redis, &ours("fabric", "cas", plain())), None);
    let mut elsewhere = ours("fabric", "put", plain());
    elsewhere.setup.fabric = Some("verbs".into());
    assert_eq!(work(Peer::Mpi, &elsewhere), None);
    let over_tcp = |case| {
        let mut ours = ours("fabric", case, plain());
        ours.setup.fabric = Some("ucx".into());
        ours
    };
    assert_eq!(work(Peer::Mpi, &over_tcp("put")), None);
    assert_eq!(work(Peer::Ucx, &over_tcp("put")), with("--tls tcp --seconds 0.5"));
    let set = "--bench fabric --network tcp --clients 1 --window 1 --keys 1 --read-percent 0 --seconds 0.5";
    assert_eq!(work(Peer::Redis, &over_tcp("put")), Some((1, set.into())));
    assert_eq!(work(Peer::Redis, &over_tcp("cas")), None);

    assert_eq!(work(Peer::Mpi, &ours("barrier", "fenced", plain())), with("--seconds 0.5"));
    assert_eq!(work(Peer::Mpi, &ours("barrier", "fenced", Setup { puts: Some(1), ..plain() })), None);
    let message = Setup { size: Some(64), window: Some(128), ..plain() };
    let broadcast = "--size 64 --window 128 --seconds 0.5";
    assert_eq!(work(Peer::Mpi, &ours("broadcast", "ring", message)), with(broadcast));
    let odd = Setup { size: Some(65), ..plain() };
    assert_eq!(work(Peer::Mpi, &ours("broadcast", "ring", odd)), None);
    let sized = Setup { nodes: Some(2), size: Some(64), ..plain() };
    let gather = "--call gather --size 64 --seconds 0.5";
    assert_eq!(work(Peer::Mpi, &ours("collectives", "gather", sized)), with(gather));
    let one = Setup { locks: Some(1), work_ns: Some(50), ..plain() };
    assert_eq!(work(Peer::Mpi, &ours("locks", "mcs", one)), with("--work-ns 50 --seconds 0.5"));
    let many = Setup { locks: Some(1000), ..plain() };
    assert_eq!(work(Peer::Mpi, &ours("locks", "mcs", many)), None);
    let accounts = Setup { accounts: Some(1000), locks: Some(682), ..plain() };
    let transfers = "--accounts 1000 --windows 341 --seconds 0.5";
    assert_eq!(work(Peer::Mpi, &ours("transfers", "transfer", accounts)), with(transfers));
    assert_eq!(work(Peer::Mpi, &ours("queue", "pair", plain())), None);

    let keys = Setup { keys: Some(500), window: Some(128), size: Some(8), ..plain() };
    let redis =
        "--clients 2 --window 128 --keys 500 --value-size 8 --read-percent 50 --distribution uniform --seconds 0.5";
    assert_eq!(work(Peer::Redis, &ours("kv", "a", keys.clone())), with(redis));
    assert_eq!(work(Peer::Redis, &ours("kv", "f", keys)), None);
}

#[test]
fn cases_of_one_run_share_it() {
    let mut runs = 0;
    let mut run = |work: &Work| {
        runs += 1;
        let cases = ["put", "get", "cas", "faa"].iter().map(|case| {
            let line = line().replace("rma_lock", case).replace("locks", "fabric");
            line.replace("2000.0", "1000000.0")
        });
        Ok((program::parse(&cases.collect::<Vec<_>>().join("\n"))?, work.program.name.to_owned()))
    };
    let measured = theirs(Peer::Mpi, &fabric(), 0.5, &mut run).expect("all four");
    assert_eq!(measured.iter().map(|one| one.case.as_str()).collect::<Vec<_>>(), ["put", "get", "cas", "faa"]);
    assert_eq!(runs, 1);
    let mut wrong = |_: &Work| Ok((program::parse(&line())?, "mpi_rma".to_owned()));
    let error = theirs(Peer::Mpi, &fabric(), 0.5, &mut wrong).expect_err("another benchmark").to_string();
    assert_eq!(error, "mpi_rma measured locks with 2 processes, instead of fabric with 2");
}

#[test]
fn ratios_are_those_of_turns_and_losses_are_told() {
    let mut all = Vec::new();
    // The machine is slow in turn 1, for both: the ratio stays the same.
    for (repetition, speed) in [(0, 1.0), (1, 0.1), (2, 1.0)] {
        let one = |system: &str, bench: &str, case: &str, throughput: f64| Measurement {
            system: system.into(),
            system_version: "4.1.4".into(),
            repetition,
            throughput_ops_per_s: throughput * speed,
            ..ours(bench, case, Setup::default())
        };
        all.extend([one("farfield", "fabric", "put", 2e8), one("mpi", "fabric", "put", 5e7)]);
        all.extend([one("farfield", "transfers", "transfer", 2e6), one("mpi", "transfers", "transfer", 4e6)]);
        // Only measured by Farfield.
        all.push(one("farfield", "queue", "pair", 1e6));
    }
    let comparison = Comparison::of(&all);
    let mut table = Vec::new();
    comparison.write(&mut table).expect("a vector takes everything");
    let table = String::from_utf8(table).expect("text");
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    let put = "fabric put time of one 5.00 20.00 ns mpi 4.1.4 0.25 0.25 0.25";
    assert_eq!(rows[1], put.split(' ').collect::<Vec<_>>(), "{table}");
    let transfer = "transfers transfer throughput 2,000,000 4,000,000 ops/s mpi 4.1.4 0.50 0.50 0.50 LOSES";
    assert_eq!(rows[2], transfer.split(' ').collect::<Vec<_>>(), "{table}");
    let lost = "Farfield loses against mpi 4.1.4 at transfers transfer, throughput: ratio 0.50.";
    assert!(table.ends_with(&format!("{lost}\n")) && !table.contains("queue"), "{table}");
    assert!(Comparison::of(&all[4..5]).is_empty());
}

/// Runs a peer beside made-up measurements of Farfield. Returns nothing where its tools are missing.
fn run(peer: Peer, measured: &[Measurement]) -> Vec<Measurement> {
    let mut peers = Peers::find(&[peer]).expect("a directory");
    if peers.found.is_empty() {
        eprintln!("skipped: {peer} is not installed");
        return Vec::new();
    }
    let all = peers.measure(measured, 0.2).expect("nothing interrupts it");
    assert_eq!(all.len(), measured.len(), "{peer} has failed; what it said is above");
    for (one, of_ours) in all.iter().zip(measured) {
        assert_eq!((&one.bench, &one.case, &one.setup), (&of_ours.bench, &of_ours.case, &of_ours.setup));
        assert!(one.operations > 0 && one.throughput_ops_per_s > 0.0 && one.seconds > 0.0, "{one:?}");
        assert_eq!(one.system, peer.name());
    }
    all
}

#[test]
fn mpi_does_the_work_of_each_benchmark() {
    let fabric = run(Peer::Mpi, &fabric());
    assert!(fabric.iter().all(|one| one.command.starts_with("mpirun") && one.command.contains(" mpi_rma ")));
    let accounts = Setup { accounts: Some(1000), locks: Some(20), ..Setup::default() };
    let message = Setup { size: Some(64), window: Some(16), ..Setup::default() };
    run(
        Peer::Mpi,
        &[
            ours("barrier", "fenced", Setup::default()),
            ours("broadcast", "ring", message),
            ours("collectives", "all_reduce", Setup { size: Some(64), ..Setup::default() }),
            ours("locks", "mutex", Setup { locks: Some(1), ..Setup::default() }),
            ours("transfers", "transfer", accounts),
        ],
    );
}

#[test]
fn ucx_does_the_work_of_the_fabric() {
    let all = run(Peer::Ucx, &fabric());
    // On shared memory no process has to answer.
    assert!(all.iter().all(|one| one.figures["target_progresses"] == 0.0), "{all:?}");
}

/// Both sides over TCP.
#[test]
fn peers_work_over_tcp() {
    let over_tcp = |mut ours: Measurement| {
        ours.setup.fabric = Some("ucx".into());
        ours
    };
    let fabric: Vec<Measurement> = fabric().into_iter().map(over_tcp).collect();
    let all = run(Peer::Ucx, &fabric);
    // No processor does the operations by itself.
    assert!(all.iter().all(|one| one.figures["target_progresses"] == 1.0), "{all:?}");
    run(Peer::Redis, &fabric[..2]);
    let keys = Setup { keys: Some(2000), window: Some(32), ..Setup::default() };
    run(Peer::Redis, &[over_tcp(ours("kv", "c", keys))]);
}

#[test]
fn redis_serves_the_mixes() {
    let keys = Setup { keys: Some(2000), window: Some(32), size: Some(100), ..Setup::default() };
    let skewed = Setup { distribution: Some("zipfian".into()), ..keys.clone() };
    let all = run(Peer::Redis, &[ours("kv", "a", keys), ours("kv", "c", skewed)]);
    assert!(all.iter().all(|one| one.latency_histogram.is_some() && one.fairness.is_some()));
}
