//! The exit status of every command, as `farfield --help` has it.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

const FIG_22: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../mowgli/litmus/paper/fig_22.litmus");
const ACCOUNT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../hamband/types/account.wrdt");
const UNCHECKED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../hamband/tests/wrong/withdraw_unchecked.wrdt");
const MEASUREMENTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/synthetic-measurements.jsonl");

/// `farfield LINE`, with blanks between its words; `%` is a directory.
fn command(line: &str, directory: &TempDir) -> Command {
    let path = directory.path().to_str().expect("a plain path");
    // A shell starts a background process with SIGINT ignored, and its children inherit that.
    let mut command = Command::new("env");
    command.args(["--default-signal=INT", env!("CARGO_BIN_EXE_farfield")]);
    command.args(line.replace('%', path).split_whitespace()).current_dir(directory).env("TMPDIR", path);
    command.stdin(Stdio::null());
    command
}

fn run(line: &str) -> Output {
    let directory = TempDir::new().expect("a directory");
    command(line, &directory).output().expect("the binary runs")
}

/// As a shell has it.
fn code(status: ExitStatus) -> Option<i32> {
    status.code().or_else(|| status.signal().map(|signal| 128 + signal))
}

fn said(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes)).concat()
}

#[test]
fn help_has_the_table() {
    let help = said(&run("--help"));
    for line in
        ["Exit status of every command:", "  1    a failure was found", "  2    wrong usage", "  130  interrupted"]
    {
        assert!(help.contains(line), "{line}: {help}");
    }
}

#[test]
fn success_is_0() {
    for line in [
        "bench barrier --seconds 0.05",
        "bench broadcast --seconds 0.05 --window 16",
        "bench fabric --seconds 0.05 --iterations 100",
        "bench idle --seconds 0.05 --case queue",
        "bench kv --seconds 0.05 --keys 100",
        "bench locks --seconds 0.05 --repetitions 1 --kind spin",
        "bench queue --seconds 0.05",
        "bench transfers --seconds 0.05 --accounts 100 --kind spin",
        "check barrier/meeting --executions 10",
        "check --list",
        "completions bash",
        "doctor",
        "litmus --models",
        &format!("litmus {FIG_22}"),
        "man --out %",
        &format!("report {MEASUREMENTS} -o %/page.html"),
        "run -n 2 -- true",
        "--version",
        &format!("wrdt analyse {ACCOUNT}"),
    ] {
        let output = run(line);
        assert_eq!(code(output.status), Some(0), "{line}: {}", said(&output));
    }
}

#[test]
fn a_failure_is_1() {
    for (line, why) in [
        ("bench locks --unlocked --locks 2 --threads 2 --kind spin --seconds 0.3", "exclusion is broken"),
        ("bench transfers --steal --accounts 100 --kind spin --seconds 0.05", "the sum is wrong"),
        ("check barrier/visible --executions 20000 --mutant barrier-no-fence", "FAILS"),
        ("man --out /dev/null/man1", "creating /dev/null/man1"),
        (&format!("litmus --refine bal_no_fence {FIG_22}"), "Unsound"),
        (&format!("report {MEASUREMENTS} -o /no/such/page.html"), "writing /no/such/page.html"),
        ("run -n 2 -- false", "exited with status 1"),
        (&format!("wrdt analyse {UNCHECKED}"), "WRONG"),
        (&format!("wrdt analyse {ACCOUNT} --solver /no/such/z3"), "apt-get install z3"),
    ] {
        let output = run(line);
        assert_eq!(code(output.status), Some(1), "{line}: {}", said(&output));
        assert!(said(&output).contains(why), "{line}: {}", said(&output));
    }
    let directory = TempDir::new().expect("a directory");
    let output = command("doctor", &directory).env("FARFIELD_DIR", "/no/such/directory").output().expect("it runs");
    assert_eq!(code(output.status), Some(1), "{}", said(&output));
}

#[test]
fn wrong_usage_is_2() {
    for (line, why) in [
        ("", "Usage:"),
        ("no-such-command", "unrecognized subcommand"),
        ("bench barrier --nodes 0", "--nodes"),
        ("bench broadcast --nodes 1", "--nodes 1: one node sends"),
        ("bench fabric --iterations 0", "--iterations"),
        ("bench idle --pause 0", "--pause"),
        ("bench kv --keys 1000000000 --size 65536", "the run needs about"),
        ("bench locks --kind padlock", "unknown kind of lock"),
        ("bench queue --capacity 0", "--capacity"),
        ("bench transfers --accounts 1000000000000", "the run needs about"),
        ("chaos --nodes 1", "--nodes 1"),
        ("chaos --detection 3", "--detection"),
        ("check no/such", "no scenario's name contains"),
        ("check --replay no/such#e:1=1", "another build"),
        ("check --replay @/no/such/file", "/no/such/file"),
        ("check --mutant no-such", "--mutant no-such"),
        ("completions no-such", "no-such"),
        ("doctor --no-such", "--no-such"),
        ("litmus /no/such.litmus", "/no/such.litmus"),
        (&format!("litmus --refine no-such {FIG_22}"), "no implementation"),
        ("man", "--out"),
        ("report /no/such.jsonl", "/no/such.jsonl"),
        ("run -n 2", "COMMAND"),
        ("run --hosts /no/such -- true", "/no/such"),
        ("wrdt", "Usage:"),
        ("wrdt analyse /no/such.wrdt", "/no/such.wrdt"),
    ] {
        let output = run(line);
        assert_eq!(code(output.status), Some(2), "{line}: {}", said(&output));
        assert!(said(&output).contains(why), "{line}: {}", said(&output));
    }
    let directory = TempDir::new().expect("a directory");
    let output = command("bench fabric", &directory).env("FARFIELD_LOG", "loud").output().expect("it runs");
    assert_eq!((code(output.status), output.stdout.len()), (Some(2), 0), "{}", said(&output));
}

/// Commands that end in good order, and commands that the signal ends.
#[test]
fn a_signal_ends_a_command_with_128_and_its_number() {
    for line in [
        "bench barrier --seconds 60",
        "bench kv --seconds 60 --keys 1000",
        "chaos --seconds 60",
        "check barrier --seconds 60",
        &format!("litmus --run sim --iterations 1000000000 {FIG_22}"),
        "run -n 2 -- sleep 60",
    ] {
        for (signal, expected) in [(Signal::INT, 130), (Signal::TERM, 143)] {
            let directory = TempDir::new().expect("a directory");
            let mut command = command(line, &directory);
            let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
            thread::sleep(Duration::from_millis(400));
            kill_process(Pid::from_child(&child), signal).expect("it runs");
            let start = Instant::now();
            let status = loop {
                if let Some(status) = child.try_wait().expect("waitable") {
                    break status;
                }
                assert!(start.elapsed() < Duration::from_secs(30), "{line} goes on");
                thread::sleep(Duration::from_millis(5));
            };
            assert_eq!(code(status), Some(expected), "{line}");
        }
    }
}

/// A pipe that nobody reads ends a command without a word. A failure is one, whether it is read or not.
#[test]
fn a_pipe_without_a_reader_ends_a_command_with_141() {
    for (line, expected) in [
        ("check --list", 141),
        ("check barrier/meeting --executions 10", 141),
        ("check barrier/meeting --executions 10 --json -", 141),
        ("check --replay barrier/visible#e:", 141),
        ("check barrier/visible --executions 20000 --mutant barrier-no-fence", 1),
        ("check barrier/visible --executions 20000 --jobs 2 --mutant barrier-no-fence --json %/report.json", 1),
        ("chaos --nodes 2 --seconds 0.3 --faults kill --seed 1", 141),
        ("completions bash", 141),
        ("doctor", 141),
        ("doctor --json", 141),
        (&format!("wrdt analyse {ACCOUNT}"), 141),
    ] {
        let directory = TempDir::new().expect("a directory");
        let (_, nobody_reads) = std::io::pipe().expect("a pipe");
        let started = command(line, &directory).stdout(nobody_reads).stderr(Stdio::piped()).spawn();
        let output = started.and_then(|child| child.wait_with_output()).expect("the binary runs");
        let said = said(&output);
        assert_eq!(code(output.status), Some(expected), "{line}: {said}");
        assert!(!said.contains("panicked") && !said.contains("roken pipe"), "{line}: {said}");
        if line.contains("report.json") {
            let report = std::fs::read_to_string(directory.path().join("report.json")).expect("a report");
            assert!(report.contains("\"failures\":1"), "{report}");
        }
    }
}
