//! The baton under the model checker, and in processes that die.

use std::process::{Command, Output};
use std::sync::{Mutex, PoisonError};

use farfield::mutants;
use farfield_baton::scenarios;
use farfield_check::{Budget, check, exhaust};

/// One test at a time: `chaos` judges the pace of its processes, and searches would take the cores from them.
static ONE: Mutex<()> = Mutex::new(());

/// Enough for each seeded bug to be found several times.
const EXECUTIONS: u64 = 5000;

#[test]
fn scenarios_hold() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    for scenario in scenarios::all() {
        let report = if scenario.is_small() {
            exhaust(&scenario, Budget::unlimited())
        } else {
            check(&scenario, Budget::executions(EXECUTIONS), 1)
        };
        assert!(report.finding.is_none(), "{}: {:?}", scenario.name(), report.finding);
    }
}

#[test]
fn every_mutant_is_killed_by_its_scenario() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    mutants::check_names(farfield_baton::mutants::ALL.iter().copied());
    for mutant in farfield_baton::mutants::ALL {
        let all = scenarios::all();
        let scenario = all.iter().find(|scenario| scenario.mutants().contains(&mutant.name())).expect("its scenario");
        mutants::enable(Some(*mutant)).unwrap();
        let report = check(scenario, Budget::executions(EXECUTIONS), 1);
        mutants::enable(None).unwrap();
        assert!(report.finding.is_some(), "{mutant} survives {}", scenario.name());
    }
}

/// The crate's own `farfield check`.
fn baton_check(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_baton-check")).args(args).output().expect("the program starts")
}

fn said(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes)).concat()
}

#[test]
fn its_program_lists_and_searches() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let list = baton_check(&["--list"]);
    assert!(list.status.success() && list.stderr.is_empty(), "{}", said(&list));
    // A head, and the scenarios of this crate alone.
    assert_eq!(said(&list).lines().count(), 1 + scenarios::all().len(), "{}", said(&list));
    let found = baton_check(&["holder", "--executions", "50", "--seed", "7", "--jobs", "1"]);
    assert_eq!(found.status.code(), Some(0), "{}", said(&found));
    assert!(said(&found).contains("2 scenarios, 100 executions"), "{}", said(&found));
    let help = said(&baton_check(&["--help"]));
    assert!(help.contains("baton-check --replay") && !help.contains("farfield check"), "{help}");
    assert!(help.contains("--mutant") && help.contains("Exit status:"), "{help}");
    for (args, why) in [
        (&["queue"][..], "no scenario's name contains `queue`"),
        (&["--mutant", "baton-lost"], "there is none of this name, but baton-no-fence"),
        (&["--replay", "queue/order#e:1=1"], "no scenario is called `queue/order`: the line is of another build"),
        (&["--replay", "baton/pass#e:100000=1"], "1 of the line's 1 choices could not be made"),
        (&["--seconds", "0"], "more than 0 seconds"),
    ] {
        let refused = baton_check(args);
        assert_eq!(refused.status.code(), Some(2), "{args:?}: {}", said(&refused));
        assert!(said(&refused).contains(why), "{args:?}: {}", said(&refused));
    }
}

#[test]
fn its_program_replays_and_draws_a_seeded_bug() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let bug = ["--mutant", "baton-no-fence"];
    let found = baton_check(&[&["baton/pass", "--executions", "5000"][..], &bug].concat());
    assert_eq!(found.status.code(), Some(1), "{}", said(&found));
    let text = said(&found);
    let lines = text
        .lines()
        .filter_map(|line| line.strip_prefix("baton-check --mutant baton-no-fence --replay '")?.strip_suffix('\''));
    let lines: Vec<&str> = lines.collect();
    assert_eq!(lines.len(), 2, "as found, and shrunk: {text}");
    let folder = tempfile::tempdir().expect("a directory");
    let page = folder.path().join("page.html");
    for line in lines {
        let drawn = ["--timeline", page.to_str().expect("a plain path")];
        // The arguments that were printed.
        let again = baton_check(&[&bug[..], &["--replay", line], &drawn].concat());
        assert_eq!(again.status.code(), Some(1), "{}", said(&again));
        assert!(said(&again).contains("of 2 additions are there"), "{}", said(&again));
        let page = std::fs::read_to_string(&page).expect("a page");
        assert!(page.contains("<svg") && page.contains("of 2 additions are there"));
    }
}

#[test]
fn it_survives_chaos() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let program = env!("CARGO_BIN_EXE_farfield-baton");
    let args = ["chaos", "--nodes", "4", "--seconds", "6", "--seed", "3", "--faults", "kill,restart"];
    let output = Command::new(program).args(args).output().expect("the program starts");
    assert!(output.status.success(), "{}", said(&output));
    let said = said(&output);
    assert!(said.contains("calls of baton") && said.contains(" s kill "), "{said}");
}
