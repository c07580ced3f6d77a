//! `farfield litmus`, end to end.

use std::process::{Command, Output};

use serde_json::Value;

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
    let output = litmus(&["--refine", "bal_sv,sv_rdma", &test]);
    assert_eq!(output.status.code(), Some(0), "{}{}", out(&output), err(&output));
}

#[test]
fn a_test_is_drawn() {
    let place = std::env::temp_dir().join(format!("farfield-litmus-svg-{}", std::process::id()));
    let pictures = place.join("pictures");
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
    std::fs::remove_dir_all(&place).expect("the directory");
}

#[test]
fn mistakes_are_told() {
    let place = std::env::temp_dir().join(format!("farfield-litmus-{}", std::process::id()));
    std::fs::write(&place, "x86tso wrong { x@1; }\nP0@1 { let a = Read(y); }\nexists (0:a=1)").expect("a file");
    let output = litmus(&[&place.display().to_string()]);
    std::fs::remove_file(&place).expect("the file");
    assert_eq!(output.status.code(), Some(1));
    assert!(err(&output).contains(":2:21: `x` is a word"), "{}", err(&output));
    for arguments in [&["nowhere.litmus"][..], &[], &["--refine", "nothing", SUITE]] {
        let output = litmus(arguments);
        assert!(!output.status.success() && !output.stderr.is_empty(), "{arguments:?}");
    }
}
