use farfield::mutants;
use farfield_check::{Budget, check, exhaust};
fn main() {
    let filter = std::env::args().nth(1).unwrap_or_default();
    let executions: u64 = std::env::args().nth(2).map_or(300, |n| n.parse().unwrap());
    for scenario in farfield_collectives::scenarios::all() {
        if !scenario.name().contains(&filter) { continue; }
        let start = std::time::Instant::now();
        let report = if scenario.is_small() { exhaust(&scenario, Budget::executions(2_000_000)) } else { check(&scenario, Budget::executions(executions), 1) };
        println!("{} {} executions, complete {}, {:?}", scenario.name(), report.executions, report.is_complete, start.elapsed());
        if let Some(finding) = &report.finding {
            println!("  FOUND {}\n  replay: {}", finding.failure.message, finding.replay);
        }
        for name in scenario.mutants() {
            let mutant = mutants::named(name).unwrap();
            let start = std::time::Instant::now();
            mutants::enable(Some(mutant)).unwrap();
            let report = check(&scenario, Budget::executions(20_000), 1);
            mutants::enable(None).unwrap();
            match report.finding {
                Some(finding) => println!("  {name} killed after {} executions, {:?}: {}", report.executions, start.elapsed(), finding.failure.message),
                None => println!("  {name} LIVES after {}, {:?}", report.executions, start.elapsed()),
            }
        }
    }
}
