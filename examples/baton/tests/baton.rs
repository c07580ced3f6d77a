//! The baton under the model checker, and in processes that die.

use std::process::Command;
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

#[test]
fn it_survives_chaos() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let program = env!("CARGO_BIN_EXE_farfield-baton");
    let args = ["chaos", "--nodes", "4", "--seconds", "8", "--seed", "3", "--faults", "kill,restart"];
    let output = Command::new(program).args(args).output().expect("the program starts");
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("calls of baton"), "{said}");
}
