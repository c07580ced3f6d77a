//! Runs scenarios with one mistake switched on. `farfield-sweep` builds it from a copy of the sources with mistakes,
//! and starts it once for each.
//!
//! ```text
//! farfield-sweep-worker reach EXECUTIONS PART PARTS [OBJECT...]      a line of JSON for each scenario: the sites that it reaches
//! farfield-sweep-worker kill SITE EXECUTIONS SECONDS SCENARIO...     a line of JSON: which scenario fails, and after how many
//! ```

#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::{Duration, Instant};

use farfield_check::{Budget, Faults, Finding, Scenario, check, exhaust};
use farfield_seeded::switch;

/// Executions of a scenario in the first round. Each further round has four times as many, of half of the scenarios.
const FIRST_ROUND: u64 = 50;
/// All executions of a small scenario are run if they are no more than this.
const EXHAUST_MAX: u64 = 3000;

/// The most time for the executions of a scenario that show what it reaches.
const REACH_TIME: Duration = Duration::from_secs(2);

/// The sites that a scenario reaches.
#[derive(serde::Serialize)]
struct Reach {
    scenario: String,
    is_small: bool,
    micros_each: u64,
    sites: Vec<u32>,
    /// The kinds of faults that may happen in it.
    faults: Vec<&'static str>,
}

/// What became of a mistake.
#[derive(serde::Serialize)]
struct Outcome {
    /// The scenario that failed, if one did.
    killed_by: Option<String>,
    /// Executions of all scenarios until then.
    executions: u64,
    failure: String,
    replay: String,
}

fn all() -> Vec<Scenario> {
    [
        farfield_scenarios::all(),
        farfield_locks::scenarios::all(),
        farfield_transactions::scenarios::all(),
        farfield_collectives::scenarios::all(),
        of_systems(),
    ]
    .concat()
}

#[cfg(feature = "systems")]
fn of_systems() -> Vec<Scenario> {
    [
        farfield_mu::scenarios::all(),
        farfield_hamband::scenarios::all(),
        farfield_rpc::scenarios::all(),
        farfield_rome::scenarios::all(),
        farfield_swarm::scenarios::all(),
    ]
    .concat()
}

#[cfg(not(feature = "systems"))]
fn of_systems() -> Vec<Scenario> {
    Vec::new()
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words[..] {
        ["reach", executions, part, parts, ref objects @ ..] => {
            reach(number(executions), number(part) as usize, number(parts) as usize, objects);
        }
        ["kill", site, executions, seconds, ref scenarios @ ..] => {
            kill(number(site) as u32, number(executions), Duration::from_secs(number(seconds)), scenarios);
        }
        _ => {
            eprintln!("usage: reach EXECUTIONS PART PARTS [OBJECT...] | kill SITE EXECUTIONS SECONDS SCENARIO...");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn number(text: &str) -> u64 {
    text.parse().expect("`farfield-sweep` passes numbers")
}

fn print(line: &impl serde::Serialize) {
    println!("{}", serde_json::to_string(line).expect("plain data"));
}

/// Runs each scenario of one of several parts: all of them, or those about one of these objects.
fn reach(executions: u64, part: usize, parts: usize, objects: &[&str]) {
    let object_of = |scenario: &Scenario| scenario.name().split(['/', '-']).next().unwrap_or_default().to_string();
    let is_about = |scenario: &Scenario| objects.is_empty() || objects.contains(&object_of(scenario).as_str());
    for scenario in all().into_iter().filter(is_about).skip(part).step_by(parts) {
        switch::take_reached();
        let start = Instant::now();
        let report = check(&scenario, Budget::executions(executions).within(REACH_TIME), 1);
        assert!(report.finding.is_none(), "{} fails without any mistake", scenario.name());
        let micros_each = start.elapsed().as_micros() as u64 / report.executions.max(1);
        print(&Reach {
            scenario: scenario.name().to_string(),
            is_small: scenario.is_small(),
            micros_each,
            sites: switch::take_reached(),
            faults: scenario.injected().into_iter().flat_map(Faults::kinds).collect(),
        });
    }
}

fn kill(site: u32, executions_max: u64, time_max: Duration, names: &[&str]) {
    let start = Instant::now();
    let left_of = |time: Duration| time.saturating_sub(start.elapsed());
    let all = all();
    let mut scenarios: Vec<&Scenario> =
        names.iter().filter_map(|name| all.iter().find(|scenario| scenario.name() == *name)).collect();
    switch::enable(Some(site));
    let mut spent = 0;
    let (mut each, mut seed) = (FIRST_ROUND, 1);
    let goes_on = |spent: u64| spent < executions_max && start.elapsed() < time_max;
    while goes_on(spent) && !scenarios.is_empty() {
        let mut round = scenarios.clone().into_iter();
        while let Some(scenario) = round.next().filter(|_| goes_on(spent)) {
            let left = executions_max - spent;
            // Random executions of all scenarios have not found it: now all executions of the small ones decide.
            let decides = seed == 2 && scenario.is_small();
            let report = if decides {
                exhaust(scenario, Budget::executions(EXHAUST_MAX.min(left)).within(left_of(time_max)))
            } else {
                check(scenario, Budget::executions(each.min(left)).within(left_of(time_max)), seed)
            };
            spent += report.executions;
            if let Some(finding) = report.finding {
                return print(&outcome(scenario, spent, &finding));
            }
            if decides && report.is_complete {
                scenarios.retain(|other| other.name() != scenario.name());
            }
        }
        scenarios.truncate(scenarios.len().div_ceil(2));
        (each, seed) = (4 * each, seed + 1);
    }
    let (failure, replay) = Default::default();
    print(&Outcome { killed_by: None, executions: spent, failure, replay });
}

fn outcome(scenario: &Scenario, executions: u64, finding: &Finding) -> Outcome {
    Outcome {
        killed_by: Some(scenario.name().to_string()),
        executions,
        failure: finding.failure.message.clone(),
        replay: finding.replay.to_string(),
    }
}
