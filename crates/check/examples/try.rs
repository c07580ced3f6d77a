//! Runs scenarios whose names contain the first argument, for so many executions, with a seed, and a mutant by name.
use std::str::FromStr;

use farfield_check::{Budget, check, exhaust, replay, scenarios};

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let number = |at: usize, default: u64| args.get(at).and_then(|text| text.parse().ok()).unwrap_or(default);
    let (executions, seed) = (number(2, 1000), number(3, 1));
    if let Some(name) = args.get(4) {
        farfield::mutants::enable(Some(farfield::mutants::Mutant::from_str(name).expect("a mutant"))).expect("mutants");
    }
    for scenario in scenarios::all() {
        if !scenario.name().contains(args.get(1).map_or("", String::as_str)) {
            continue;
        }
        let mut reports = vec![("random", check(&scenario, Budget::executions(executions), seed))];
        if scenario.is_small() {
            reports.push(("exhaustive", exhaust(&scenario, Budget::executions(executions))));
        }
        for (how, report) in reports {
            let speed = report.steps as f64 / report.elapsed.as_secs_f64() / 1e6;
            println!(
                "{} {how}: {} executions, {} states, complete: {}, {} steps, {speed:.2} M steps/s, {:.2?}",
                report.scenario, report.executions, report.states, report.is_complete, report.steps, report.elapsed
            );
            if let Some(finding) = &report.finding {
                println!("  {:?}\n  {}", finding.failure, finding.replay);
                let finding = finding.shrunk(&scenario);
                println!("  shrunk: {:?}\n  {}", finding.failure, finding.replay);
                if std::env::var_os("TRACE").is_some() {
                    let outcome = replay(&scenario, &finding.replay);
                    for event in outcome.events.iter().filter(|event| event.step >= outcome.explored_from) {
                        println!("  {} thread {} {:?}", event.step, event.thread, event.what);
                    }
                }
            }
        }
    }
}
