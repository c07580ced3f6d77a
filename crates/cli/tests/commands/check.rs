//! `farfield check`, end to end, with small budgets. The binary has the seeded bugs (`--mutant`).

use std::process::{Command, Output};

use serde_json::Value;

fn check(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_farfield"));
    command.arg("check").args(arguments).output().expect("the binary runs")
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A search without failure, as JSON.
fn report(arguments: &[&str]) -> Value {
    let output = check(&[arguments, &["--json", "-"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    serde_json::from_slice(&output.stdout).expect("a line of JSON")
}

/// The part of a report that does not depend on speed.
fn counts(report: &Value) -> Vec<Value> {
    let scenarios = report["scenarios"].as_array().expect("a list");
    let of = |scenario: &Value| {
        ["scenario", "executions", "states", "steps", "trace", "complete"].map(|key| scenario[key].clone())
    };
    scenarios.iter().flat_map(of).collect()
}

/// The replay lines of an output, in order.
fn replay_lines(text: &str) -> Vec<&str> {
    text.lines().filter_map(|line| line.strip_prefix(COMMAND)?.strip_suffix('\'')).collect()
}

/// The text before a line, where a bug is seeded.
const COMMAND: &str = "farfield check --mutant barrier-no-fence --replay '";
const MUTANT: [&str; 2] = ["--mutant", "barrier-no-fence"];
const MESSAGE: &str = "not visible after it";

#[test]
fn scenarios_are_listed() {
    let all = check(&["--list"]);
    assert!(all.status.success() && err(&all).is_empty());
    let line = out(&all).lines().find(|line| line.starts_with("barrier/visible ")).map(String::from);
    let line = line.expect("a scenario of the barrier");
    assert!(line.contains(" 3 ") && line.contains("from a third node"), "{line}");
    assert!(out(&all).lines().next().is_some_and(|head| head.starts_with("scenario") && head.contains("size")));
    let some = check(&["--list", "barrier/meeting"]);
    assert_eq!(out(&some).lines().count(), 2, "a full name means one scenario:\n{}", out(&some));
    assert!(out(&check(&["--list", "arrier/"])).lines().count() > 2);
}

/// The same executions as `crates/check/tests/exhaustive.txt` has.
#[test]
fn all_executions_are_searched_if_asked_for() {
    let report = report(&["--exhaustive", "barrier/loopback", "barrier/exchange"]);
    let pinned = std::fs::read_to_string("../check/tests/exhaustive.txt").expect("the table of the tests");
    let row = |scenario: &Value| {
        let of = |key: &str| scenario[key].as_u64().expect("a number");
        assert_eq!(scenario["complete"], true, "{scenario}");
        let name = scenario["scenario"].as_str().expect("a name");
        format!("{name:<32} {:>10} {:>10}", of("executions"), of("states"))
    };
    let rows: Vec<String> = report["scenarios"].as_array().expect("a list").iter().map(row).collect();
    assert!(rows.len() == 2 && rows.iter().all(|row| pinned.contains(row)), "{rows:#?}");
    let none = check(&["--exhaustive", "swarm/late"]);
    assert_eq!(none.status.code(), Some(2));
    assert!(err(&none).contains("none of these scenarios is small"), "{}", err(&none));
}

#[test]
fn a_search_without_failure_says_so() {
    let output = check(&["barrier/visible", "barrier/meeting", "--executions", "40"]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    assert!(err(&output).is_empty(), "no bar where there is no terminal");
    let text = out(&output);
    assert!(
        text.lines().last().is_some_and(|l| l.starts_with("2 scenarios, ") && l.ends_with(": no failure")),
        "{text}"
    );
    let timed = report(&["barrier/visible", "--seconds", "0.2"]);
    assert!(timed["executions"].as_u64() > Some(0) && timed["steps_per_s_per_core"].as_f64() > Some(0.0));
}

#[test]
fn the_same_seed_gives_the_same_counts_for_any_number_of_jobs() {
    let arguments = ["barrier/visible", "barrier/meeting", "--executions", "700", "--seed", "5", "--jobs"];
    let run = |jobs: &str| counts(&report(&[&arguments[..], &[jobs]].concat()));
    let one = run("1");
    assert_eq!(one, run("1"));
    assert_eq!(one, run("3"));
    let other = ["barrier/visible", "--executions", "700", "--seed", "6"];
    assert_ne!(one[..5], counts(&report(&other))[..], "another seed, other executions");
}

#[test]
fn a_search_continues_from_its_checkpoint() {
    let place = tempfile::tempdir().expect("a directory");
    let file = place.path().join("night.json");
    let arguments =
        ["ring/slow-local", "ring/reader", "--steps", "2e4", "--checkpoint", file.to_str().expect("a plain path")];
    let steps = |report: &Value| report["steps"].as_u64().expect("a number");
    let first = report(&arguments);
    assert!(steps(&first) >= 20_000); // small scenarios are searched whole
    // It is over already.
    assert_eq!(counts(&first), counts(&report(&arguments)));
    let wanted = steps(&first) + 100_000;
    let more = report(&[&arguments[..2], &["--steps", &wanted.to_string()], &arguments[4..]].concat());
    assert!(steps(&more) >= wanted);
    let executions = |report: &Value| report["executions"].as_u64().expect("a number");
    assert!(executions(&more) > executions(&first) && more["seconds"].as_f64() > first["seconds"].as_f64());

    let other = check(&[&["--seed", "2"], &arguments[..]].concat());
    assert!(err(&other).contains("belongs to a search with --seed 1; remove it"), "{}", err(&other));
    let other = check(&["queue/", "--checkpoint", arguments[5]]);
    assert!(err(&other).contains("belongs to a search of other scenarios"), "{}", err(&other));
}

#[test]
fn a_failure_is_told_replayed_and_drawn() {
    let place = tempfile::tempdir().expect("a directory");
    let page = place.path().join("page.html");
    let at = page.to_str().expect("a plain path");
    let arguments = ["barrier/visible", "--executions", "20000", "--jobs", "2"];
    let found = check(&[&arguments[..], &MUTANT, &["--timeline", at]].concat());
    let text = out(&found);
    assert_eq!(found.status.code(), Some(1), "{text}{}", err(&found));
    let lines = replay_lines(&text);
    assert_eq!(lines.len(), 2, "as found, and shrunk:\n{text}");
    assert!(text.starts_with(COMMAND) && text.contains("FAILS") && text.contains(": 1 failure"));
    assert!(text.contains(MESSAGE) && text.contains("party on n2"), "{text}");
    let drawn = std::fs::read_to_string(&page).expect("the page of the first failure");
    assert!(drawn.contains(MESSAGE) && drawn.contains("<svg"));

    // One job alone finds the same failure.
    let alone = check(&[&arguments[..4], &["1"], &MUTANT].concat());
    assert_eq!(replay_lines(&out(&alone)), lines);

    for line in lines {
        std::fs::remove_file(&page).expect("it was there");
        let again = check(&[&["--replay", line, "--timeline", at][..], &MUTANT].concat());
        assert_eq!(again.status.code(), Some(1), "{}", err(&again));
        assert!(err(&again).is_empty());
        assert!(out(&again).contains("party on n2: ") && out(&again).contains(MESSAGE), "{}", out(&again));
        assert!(std::fs::read_to_string(&page).expect("a page").contains(MESSAGE));

        // Without the bug there are other decisions. It was a remark, and success.
        let other = check(&["--replay", line]);
        assert_eq!((other.status.code(), out(&other).as_str()), (Some(2), ""), "{}", err(&other));
        assert!(err(&other).contains("choices could not be made") && err(&other).contains("another build"));
    }
    let fine = check(&["--replay", "barrier/visible#e:"]);
    assert_eq!(fine.status.code(), Some(0), "{}", err(&fine));
    assert!(out(&fine).contains("Nothing fails in this execution."));
}

#[test]
fn mistakes_are_explained() {
    for (arguments, part) in [
        (&["no/such"][..], "no scenario's name contains `no/such`; there are\n  barrier/  "),
        (&["--replay", "barrier/visible"], "`barrier/visible` is no replay line"),
        (&["--replay", "barrier/visible#e:2"], "is no replay line"),
        (&["--replay", "barrier/visible#e:2=1,2=1"], "is no replay line"),
        (
            &["--replay", "no/such#e:1=2"],
            "no scenario is called `no/such`: the line is of another build or program; there",
        ),
        // A decision that the execution does not have, and a candidate that the decision does not have.
        (
            &["--replay", "barrier/visible#e:1000000=1"],
            "1 of the line's 1 choices could not be made, the first because there",
        ),
        (&["--replay", "barrier/visible#e:0=60000,1000000=1"], "2 of the line's 2 choices could not be made"),
        (&["--replay", "barrier/visible#e:", "barrier"], "cannot be used with"),
        (&["--executions", "0"], "--executions"),
        (&["--seconds", "0"], "more than 0 seconds"),
        (&["--steps", "many"], "such as 1e11"),
    ] {
        let output = check(arguments);
        assert!(output.status.code() == Some(2) && out(&output).is_empty(), "{arguments:?}");
        assert!(err(&output).contains(part), "{arguments:?}: {}", err(&output));
    }
}
