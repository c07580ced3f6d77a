//! `farfield litmus`, end to end.

use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::{NamedTempFile, tempdir};

const SUITE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../mowgli/litmus");

fn litmus(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_farfield"));
    command.arg("litmus").args(arguments).output().expect("the binary runs")
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A file with this text, removed with the guard.
fn written(text: &str) -> NamedTempFile {
    let file = NamedTempFile::new().expect("a file");
    std::fs::write(&file, text).expect("a file");
    file
}

fn name(file: &NamedTempFile) -> &str {
    file.path().to_str().expect("a plain path")
}

#[test]
fn a_test_is_answered_as_herd_does() {
    let output = litmus(&[&format!("{SUITE}/x86/SB.litmus"), "--machine"]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let text = out(&output);
    assert!(text.starts_with("Test SB Allowed\nStates 4\n0:a=0; 1:b=0;\n"), "{text}");
    assert!(text.contains("Ok\nWitnesses\nPositive: 1 Negative: 3\n"), "{text}");
    assert!(text.contains("Observation SB Sometimes 1 3\nTime SB "), "{text}");
}

#[test]
fn the_whole_suite_is_as_it_says() {
    let output = litmus(&[SUITE, "--machine", "--json", "-"]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let lines: Vec<Value> = out(&output).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert!(lines.len() > 100 && lines.iter().all(|line| line["ok"] == true), "{}", lines.len());
    // The machine knows many of them, but not those of the libraries above it.
    assert!(lines.iter().filter(|line| line["machine_differs"] == false).count() > 80);
    assert!(lines.iter().any(|line| line["machine_differs"].is_null()));
}

#[test]
fn a_refinement_that_is_unsound_is_told() {
    let test = format!("{SUITE}/paper/fig_22.litmus");
    let output = litmus(&["--refine", "bal_no_fence", &test]);
    assert!(output.status.code() == Some(1) && out(&output).contains("Unsound: 2:a=0;"), "{}", out(&output));
    // It says why: the cycle that forbids it, and an execution that has it.
    let text = out(&output);
    let why = "Why the specification forbids it: It breaks Λ-consistency by the cycle P0: ";
    assert!(text.contains(why) && text.contains("NRW₂ z=1"), "{text}");
    assert!(text.contains("How it happens over bal_no_fence") && text.contains("P0: Put(d, z, p)  "), "{text}");
    assert!(text.contains(" z=0 (initial)"), "{text}");
    let output = litmus(&["--refine", "bal_sv,sv_rdma", &test]);
    assert_eq!(output.status.code(), Some(0), "{}{}", out(&output), err(&output));
    assert!(!out(&output).contains("Why"), "{}", out(&output));
}

#[test]
fn a_test_is_drawn() {
    let place = tempdir().expect("a directory");
    let pictures = place.path().join("pictures");
    let pictures = pictures.to_str().expect("a name");
    let (forbidden, allowed) = (format!("{SUITE}/paper/fig_3d.litmus"), format!("{SUITE}/paper/fig_1.litmus"));
    let output = litmus(&["--svg", pictures, &forbidden, &allowed]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    for (name, heading) in [("fig_3d", "fig_3d: forbidden"), ("fig_1", "fig_1: allowed, z=1")] {
        let file = format!("{pictures}/{name}.svg");
        assert!(out(&output).lines().any(|line| line == file), "{}", out(&output));
        let picture = std::fs::read_to_string(&file).expect("a picture");
        assert!(picture.starts_with("<svg") && picture.contains(heading), "{picture}");
    }
    // Where it cannot be written is told.
    let output = litmus(&["--svg", &format!("{pictures}/fig_1.svg"), &forbidden]);
    assert!(output.status.code() == Some(1) && err(&output).contains("fig_1.svg"), "{}", err(&output));
}

#[test]
fn mistakes_are_told() {
    let test = written("x86tso wrong { x@1; }\nP0@1 { let a = Read(y); }\nexists (0:a=1)");
    let output = litmus(&[name(&test)]);
    assert_eq!(output.status.code(), Some(2));
    assert!(err(&output).contains(":2:21: `x` is a word"), "{}", err(&output));
    let misuses: [&[&str]; 5] = [
        &["nowhere.litmus"],
        &[],
        &["--refine", "nothing", SUITE],
        &["--run", "ether", SUITE],
        &["--iterations", "3", SUITE],
    ];
    for arguments in misuses {
        let output = litmus(arguments);
        assert!(!output.status.success() && !output.stderr.is_empty(), "{arguments:?}");
    }
}

/// The lines of `--json -`.
fn lines(output: &Output) -> Vec<Value> {
    out(output).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn suite(tests: &[&str]) -> Vec<String> {
    tests.iter().map(|test| format!("{SUITE}/{test}.litmus")).collect()
}

/// Runs tests; no outcome is one that the models forbid, and every iteration has finished.
#[track_caller]
fn only_allowed_outcomes(on: &str, over: &str, iterations: &str, tests: &[&str]) -> Vec<Value> {
    let files = suite(tests);
    let mut arguments = vec!["--run", on, "--over", over, "--iterations", iterations, "--json", "-"];
    arguments.extend(files.iter().map(String::as_str));
    let output = litmus(&arguments);
    assert_eq!(output.status.code(), Some(0), "{}{}", out(&output), err(&output));
    let lines = lines(&output);
    assert_eq!(lines.len(), tests.len());
    for line in &lines {
        let counted: u64 =
            line["states"].as_array().expect("states").iter().filter_map(|it| it["count"].as_u64()).sum();
        assert_eq!(
            (line["forbidden_but_seen"].as_u64(), Some(counted)),
            (Some(0), line["iterations"].as_u64()),
            "{line}"
        );
    }
    lines
}

/// Those of the libraries above words run over their implementations, if that is asked for.
const FROM_EVERY_LIBRARY: [&str; 10] = [
    "x86/SB",
    "x86/MP",
    "paper/fig_4_top",
    "paper/fig_3d",
    "paper/fig_3a",
    "paper/fig_5",
    "paper/fig_22",
    "paper/fig_23",
    "paper/msw_put",
    "stamps/naw_nlw",
];

#[test]
fn shared_memory_shows_only_allowed_outcomes() {
    // (An allowed outcome need not be seen: that is the machine's affair.)
    let lines = only_allowed_outcomes("shm", "text", "3000", &FROM_EVERY_LIBRARY);
    let over = |at: usize| lines[at]["over"].to_string();
    assert_eq!((over(0), over(7)), ("[]".into(), r#"["rbl_sv","bal_sv","sv_rdma"]"#.into()));
    assert_eq!(lines[0]["condition"], "exists (0:a=0 /\\ 1:b=0)");
    assert!(lines.iter().all(|line| line["iterations"] == 3000 && line["shipped"] == false));
}

/// Every object, every method, and gets that a fence or a barrier waits for.
const ON_OBJECTS: [&str; 16] = [
    "paper/fig_5",
    "paper/fig_5_wait",
    "paper/fig_6",
    "paper/fig_9a",
    "paper/fig_12",
    "paper/fig_13",
    "paper/fig_22",
    "paper/fig_23",
    "paper/msw_get",
    "paper/msw_put_twice",
    "paper/msw_get_large",
    "paper/w1",
    "stamps/nlw_gf_cr",
    "stamps/nlw_bar_cr",
    "stamps/nrr_bar_cw",
    "stamps/cw_bar_cr",
];

#[test]
fn objects_that_ship_show_only_outcomes_their_models_allow() {
    for (on, iterations) in [("shm", "800"), ("weak", "320"), ("sim", "300")] {
        let lines = only_allowed_outcomes(on, "shipped", iterations, &ON_OBJECTS);
        assert!(lines.iter().all(|line| line["shipped"] == true), "{on}");
        let over: Vec<String> = lines.iter().map(|line| line["over"].to_string()).collect();
        assert_eq!(
            (over[0].as_str(), over[5].as_str(), over[7].as_str(), over[8].as_str()),
            (r#"["SharedVar"]"#, r#"["RingBuffer","global_fence"]"#, r#"["RingBuffer","Barrier"]"#, r#"["OwnedVar"]"#)
        );
    }
}

#[test]
fn objects_that_ship_are_found_out_if_they_are_broken() {
    for (mutant, test) in [
        ("barrier-no-fence", "paper/fig_22"),
        ("barrier-store-unfenced", "stamps/cw_bar_cr"),
        ("ring-head-first", "paper/fig_13_no_fence"),
        ("shared-fence-remote", "paper/fig_5"),
        ("owned-trail-first", "paper/msw_put_twice"),
        ("owned-load-forward", "paper/msw_put_twice"),
    ] {
        let file = format!("{SUITE}/{test}.litmus");
        let ask = ["--run", "sim", "--over", "shipped", "--iterations", "1000", "--mutant", mutant];
        let output = litmus(&[&ask[..], &[&file]].concat());
        assert_eq!(output.status.code(), Some(1), "{mutant}: {}{}", out(&output), err(&output));
        assert!(out(&output).contains("<-- forbidden but seen\n"), "{mutant}: {}", out(&output));
        assert!(err(&output).contains("on sim over shipped objects"), "{mutant}: {}", err(&output));
    }
}

/// The others continue.
#[test]
fn a_test_that_fits_no_object_says_why() {
    let text = "msw t { wide x@1 = (0, 0); } P0@1 { Write(x, (1, 1)); } P1@1 { Write(x, (2, 2)); let a = TryRead(x); }
                exists (1:a=(2,2))";
    let test = written(text);
    let output = litmus(&[name(&test), "--run", "sim", "--iterations", "30", "--json", "-"]);
    assert_eq!(output.status.code(), Some(0), "{}{}", out(&output), err(&output));
    let lines = lines(&output);
    let why = "`x` does not fit an object that ships: an OwnedVar has one writer, on its owner's node";
    assert_eq!((&lines[0]["over"][0], &lines[1]["not_run"]), (&"msw_hash".into(), &why.into()));
}

#[test]
fn so_does_the_weak_fabric() {
    only_allowed_outcomes("weak", "text", "500", &FROM_EVERY_LIBRARY);
}

#[test]
fn the_simulator_shows_all_allowed_outcomes_and_no_others() {
    only_allowed_outcomes("sim", "text", "500", &FROM_EVERY_LIBRARY);
    let lines = only_allowed_outcomes("sim", "text", "4000", &["paper/fig_4_top", "x86/SB", "x86/MP", "paper/fig_3b"]);
    for line in lines {
        assert_eq!(line["never_seen"].as_array().map(Vec::len), Some(0), "{line}");
    }
}

#[test]
fn a_run_is_told_as_litmus7_does() {
    let test = format!("{SUITE}/x86/SB.litmus");
    let output = litmus(&[&test, "--run", "sim", "--iterations", "500", "--seed", "3"]);
    let text = out(&output);
    assert!(text.starts_with("Test SB Allowed\nRun on sim, 500 times\nHistogram (4 states)\n"), "{text}");
    assert!(text.contains("*>0:a=0; 1:b=0;\n") && text.contains(":>0:a=1; 1:b=1;\n"), "{text}");
    assert!(text.contains("\nOk\nWitnesses\nPositive: ") && text.contains("\nObservation SB Sometimes "), "{text}");
    // The same seed, the same executions.
    let again = out(&litmus(&[&test, "--run", "sim", "--iterations", "500", "--seed", "3"]));
    let counts = |text: &str| text.lines().filter(|line| line.contains('>')).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(counts(&text), counts(&again));
}

/// x86 with sequential consistency in the place of TSO, which no x86 has.
const TOO_STRONG: &str = "library x86tso
object word(home) starts 0
method Write(x: word, v) { CW: write x v }
method Read(x: word) -> v { CR: read x v }
pick rf in (W * R) & loc & val
orient mo in (W * W) & loc \\ id
let rb = (rf^-1; mo) \\ id
let so = iso | rf | rb | mo | po
";

#[test]
fn an_outcome_that_is_forbidden_but_seen_is_reported() {
    let (test, model) = (format!("{SUITE}/x86/SB.litmus"), written(TOO_STRONG));
    let with = |rest: &[&str]| {
        litmus(&[&["--model", name(&model), &test, "--iterations", "500", "--run", "sim"], rest].concat())
    };
    let (run, table) = (with(&[]), with(&["--table"]));
    assert_eq!(run.status.code(), Some(1));
    assert!(out(&run).contains("*>0:a=0; 1:b=0;  <-- forbidden but seen\n"), "{}", out(&run));
    // The reason.
    assert!(
        out(&run).contains("to its store buffer") && out(&run).contains("this outcome is forbidden"),
        "{}",
        out(&run)
    );
    assert!(err(&run).contains("forbidden but seen") && err(&run).contains("SB.litmus on sim"), "{}", err(&run));
    assert_eq!(table.status.code(), Some(1));
    assert!(out(&table).lines().any(|line| line.starts_with("SB ") && line.ends_with("/500 !")), "{}", out(&table));
}

#[test]
fn a_test_that_cannot_run_says_why_and_the_others_run() {
    let place = tempdir().expect("a directory");
    let (model, test) = (place.path().join("cells"), place.path().join("peek.litmus"));
    std::fs::write(
        &model,
        "library cells object cell(home) starts 0 method Peek(x: cell) -> v { CR: read x v } let so = 0",
    )
    .expect("a file");
    std::fs::write(&test, "cells peek { x@1; } P0@1 { let a = Peek(x); } exists (0:a=0)").expect("a file");
    let (model, test) = (model.display().to_string(), test.display().to_string());
    let with = |rest: &[&str]| {
        let tests = [&test, &format!("{SUITE}/x86/LB.litmus")];
        litmus(&[&["--model", &model, tests[0], tests[1], "--run", "sim", "--iterations", "50"], rest].concat())
    };
    let (output, in_json, in_table) = (with(&[]), with(&["--json", "-"]), with(&["--table", "--json", "-"]));
    assert!(out(&output).contains("peek.litmus is not run: `cells.Peek` works on no words"), "{}", out(&output));
    assert!(output.status.success() && out(&output).contains("Observation LB Never 0 50"), "{}", out(&output));
    let (run, row) = (&lines(&in_json)[0], &lines(&in_table)[0]);
    assert!(run["not_run"].as_str().is_some_and(|why| why.starts_with("`cells.Peek` works on no words")), "{run}");
    assert_eq!(row["runs"]["sim"]["not_run"], run["not_run"], "{row}");
}

/// The run ends: it does not wait for each iteration.
#[test]
fn a_thread_that_waits_in_vain_has_not_finished() {
    let text =
        "x86tso vain { x@1; } P0@1 { loop 1 { let a = Read(x); if a == 1 { break; } } } P1@1 { let b = Read(x); }
                exists (0:a=1)";
    let test = written(text);
    let output = litmus(&[name(&test), "--run", "sim,shm", "--iterations", "600", "--json", "-"]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let not_finished: Vec<u64> = lines(&output).iter().filter_map(|line| line["not_finished"].as_u64()).collect();
    assert_eq!(not_finished, [600, 256], "{}", out(&output));
}

#[test]
fn a_table_has_a_line_for_each_test() {
    let files = suite(&["x86/SB", "paper/fig_12", "paper/fig_6", "paper/fig_3b"]);
    let mut arguments = vec!["--table", "--run", "sim", "--iterations", "200"];
    arguments.extend(files.iter().map(String::as_str));
    let output = litmus(&arguments);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let text = out(&output);
    let table: Vec<Vec<&str>> =
        text.lines().take_while(|line| !line.is_empty()).map(|line| line.split_whitespace().collect()).collect();
    let columns =
        ["test", "asks", "x86tso", "rdma", "rdmawait", "rdmatso", "rdmarmw", "bal", "balp", "sim", "sim:shipped"];
    assert_eq!(table[0], columns, "{text}");
    assert_eq!(table[1][..9], ["SB", "exists", "allow*", "allow", "allow", "allow", "allow", "-", "-"], "{text}");
    assert_eq!(
        table[2][..9],
        ["fig_12", "~exists", "-", "forbid", "forbid*", "-", "forbid", "forbid*", "allow"],
        "{text}"
    );
    assert_eq!(
        table[3][2..],
        ["-", "holds", "holds*", "-", "holds", "holds*", "holds", "200/200", "200/200"],
        "{text}"
    );
    assert!(table[4][9].ends_with("/200") && text.contains("\nallow, forbid "), "{text}");
    // Aligned: every line's cells begin where those of the first do.
    let at = |line: &str, cell: &str| line.find(cell).expect("the cell");
    let mut all = text.lines();
    let (head, line) = (all.next().expect("a head"), all.next().expect("a line"));
    assert_eq!(at(head, "x86tso"), at(line, "allow*"), "{text}");

    arguments.extend(["--json", "-"]);
    let rows = lines(&litmus(&arguments));
    assert_eq!((rows.len(), &rows[1]["models"]["balp"], &rows[1]["own"][1]), (4, &"allow".into(), &"bal".into()));
    assert_eq!(rows[0]["runs"]["sim"]["forbidden_but_seen"], 0);
    assert_eq!(rows[1]["runs"]["sim:shipped"]["over"][0], "Barrier");
    assert!(rows[0]["runs"]["sim:shipped"].is_null());
}

#[test]
fn a_command_ends_silently_when_its_output_is_closed() {
    let test = format!("{SUITE}/paper/fig_22.litmus");
    let ways: [&[&str]; 7] = [
        &["--models"],
        &[&test],
        &[&test, "--json", "-"],
        &["--refine", "bal_sv", &test],
        &["--table", &test],
        &["--run", "sim", "--iterations", "20", &test],
        &["--run", "sim", "--iterations", "20", "--json", "-", &test],
    ];
    for arguments in ways {
        let (_, nobody_reads) = std::io::pipe().expect("a pipe");
        let mut command = Command::new(env!("CARGO_BIN_EXE_farfield"));
        let started = command.arg("litmus").args(arguments).stdout(nobody_reads).stderr(Stdio::piped()).spawn();
        let output = started.and_then(|child| child.wait_with_output()).expect("the binary runs");
        assert_eq!((output.status.code(), err(&output)), (Some(141), String::new()), "{arguments:?}");
    }
}

/// Generated programs: cycles over the stamp order.
#[test]
fn random_programs_show_only_allowed_outcomes() {
    let directory = tempdir().expect("a directory");
    let size = mowgli::random::Size { nodes: 3, threads: 3, calls: 8 };
    for model in ["x86tso", "rdmawait", "rdmatso", "rdmarmw"] {
        for seed in 0..16 {
            let text = mowgli::random::cycle(model, seed, size);
            std::fs::write(directory.path().join(format!("{model}_{seed}.litmus")), text).expect("a file");
        }
    }
    let place = directory.path().display().to_string();
    let runs = [("shm", "5000"), ("weak", "200"), ("sim", "200")]
        .map(|(on, iterations)| litmus(&[&place, "--run", on, "--iterations", iterations, "--json", "-"]));
    for output in runs {
        assert_eq!(output.status.code(), Some(0), "{}", err(&output));
        let lines = lines(&output);
        assert_eq!(lines.len(), 64);
        assert!(lines.iter().all(|line| line["forbidden_but_seen"] == 0));
    }
}
