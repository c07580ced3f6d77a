//! The suite of litmus tests: every verdict is the one in the test's header, every outcome is in the file beside it,
//! and the machine has the same outcomes.
//!
//! `FARFIELD_UPDATE=1` writes the files anew.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use mowgli::enumerate::{Detail, consistent};
use mowgli::explore::{NotThere, outcomes};
use mowgli::litmus::Test;
use mowgli::model::Models;
use mowgli::report::Herd;

fn files() -> Vec<PathBuf> {
    let suite = Path::new(env!("CARGO_MANIFEST_DIR")).join("litmus");
    let mut files = Vec::new();
    for directory in std::fs::read_dir(suite).expect("the suite") {
        let directory = directory.expect("an entry").path();
        files.extend(
            std::fs::read_dir(directory).expect("a part of the suite").map(|entry| entry.expect("an entry").path()),
        );
    }
    files.retain(|file| file.extension().is_some_and(|kind| kind == "litmus"));
    files.sort();
    files
}

fn parsed(models: &Models, file: &Path) -> Test {
    let text = std::fs::read_to_string(file).expect("a test");
    Test::parse(&file.display().to_string(), &text, models).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn every_verdict_is_the_one_in_the_header() {
    let models = Models::builtin();
    let is_update = std::env::var_os("FARFIELD_UPDATE").is_some();
    for file in files() {
        let test = parsed(&models, &file);
        assert_eq!(file.file_stem().and_then(|stem| stem.to_str()), Some(test.name.as_str()), "{}", file.display());
        assert!(test.reason.ends_with('.'), "{}: a sentence says why", test.name);
        let outcomes = consistent(&test, Detail::Executions).unwrap_or_else(|error| panic!("{}: {error}", test.name));
        let herd = Herd { test: &test, outcomes: &outcomes }.to_string();
        assert!(outcomes.is_ok(test.quantifier), "{herd}");
        assert!(outcomes.positive + outcomes.negative > 0, "nothing can happen: {herd}");
        let beside = file.with_extension("expected");
        if is_update {
            std::fs::write(&beside, &herd).expect("the file beside it");
        }
        let expected = std::fs::read_to_string(&beside).unwrap_or_default();
        assert_eq!(herd, expected, "{}", beside.display());
    }
}

#[test]
fn the_machine_has_the_same_outcomes() {
    let models = Models::builtin();
    let mut compared = 0;
    for file in files() {
        let test = parsed(&models, &file);
        let machine = match outcomes(&test) {
            Ok(machine) => machine,
            // Of the libraries above it, it knows nothing.
            Err(NotThere::Method(_) | NotThere::Value(_)) => continue,
            Err(error) => panic!("{}: {error}", test.name),
        };
        let declared = consistent(&test, Detail::States).expect("it was enumerated");
        assert_eq!(declared.states.into_keys().collect::<BTreeSet<_>>(), machine, "{}", test.name);
        compared += 1;
    }
    assert!(compared > 40, "{compared}");
}
