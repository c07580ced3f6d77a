//! `farfield wrdt`, end to end.

use std::process::{Command, Output};

use serde_json::Value;
use tempfile::tempdir;

const TYPES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../hamband/types");
const WRONG: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../hamband/tests/wrong");

fn analyse(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_farfield"));
    command.args(["wrdt", "analyse"]).args(arguments).output().expect("the binary runs")
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_type_is_analysed_and_drawn() {
    let directory = tempdir().expect("a directory");
    let picture = directory.path().join("account.svg");
    let output = analyse(&[&format!("{TYPES}/account.wrdt"), "--picture", picture.to_str().expect("a plain path")]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let text = out(&output);
    assert!(text.starts_with("Account\n\n  deposit   reducible\n  withdraw  conflicting"), "{text}");
    assert!(text.contains("synchronisation groups  {withdraw}\nsummarisation groups    {deposit}\n"), "{text}");
    assert!(
        text.contains("withdraw does not P-L-commute with deposit: withdraw depends on deposit\n    before"),
        "{text}"
    );
    assert!(text.contains("questions to z3"), "{text}");
    let picture = std::fs::read_to_string(picture).expect("a picture");
    let document = roxmltree::Document::parse(&picture).expect("well-formed");
    let titles = document.descendants().filter(|node| node.has_tag_name("title")).filter_map(|node| node.text());
    assert_eq!(titles.collect::<Vec<_>>(), ["withdraw conflicts with withdraw", "withdraw depends on deposit"]);
}

#[test]
fn results_are_lines_of_json() {
    let files = ["counter", "or_set"].map(|name| format!("{TYPES}/{name}.wrdt"));
    let output = analyse(&[&files[0], &files[1], "--json", "-"]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let lines: Vec<Value> = out(&output).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!((lines.len(), &lines[0]["type"], &lines[0]["right"]), (2, &"Counter".into(), &true.into()));
    assert_eq!(lines[0]["methods"][0]["category"], "reducible");
    assert_eq!(lines[1]["methods"][1]["depends_on"][0], "add");
    let fails =
        lines[1]["p_l_commute"].as_array().expect("a list").iter().find(|pair| pair["verdict"]["fails"].is_object());
    assert_eq!(fails.expect("one fails")["verdict"]["fails"]["states"][0]["label"], "before");
}

#[test]
fn a_wrong_specification_is_a_failure() {
    let output = analyse(&[&format!("{WRONG}/withdraw_unchecked.wrdt")]);
    assert_eq!(output.status.code(), Some(1), "{}", err(&output));
    assert!(
        out(&output).starts_with("WRONG: withdraw breaks the invariant where its requirements hold"),
        "{}",
        out(&output)
    );
    assert!(err(&output).contains("not right as a sequential type: ") && err(&output).contains("withdraw_unchecked"));
}

#[test]
fn mistakes_are_told() {
    let directory = tempdir().expect("a directory");
    let file = directory.path().join("t.wrdt");
    std::fs::write(&file, "type T {\n  state { n: int = true }\n}\n").expect("a file");
    let file = file.to_str().expect("a plain path");
    let account = format!("{TYPES}/account.wrdt");
    for (arguments, status, expected) in [
        (vec![file], 2, "t.wrdt:2:20: expected int, found bool"),
        (vec!["/no/such.wrdt"], 2, "/no/such.wrdt"),
        (vec![&*account, &*account, "--picture", "p.svg"], 2, "--picture draws one specification"),
        (vec![&*account, "--timeout", "0"], 2, "not between 0.001 and 86400"),
        (vec![&*account, "--solver", "/no/such/z3"], 1, "install it (apt-get install z3)"),
        (vec![&*account, "--picture", "/no/such/p.svg"], 1, "writing /no/such/p.svg"),
    ] {
        let output = analyse(&arguments);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {}", err(&output));
        assert!(err(&output).contains(expected), "{arguments:?}: {}", err(&output));
    }
}
