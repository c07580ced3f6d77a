//! The objects and the systems under the checker: all executions of the small scenarios, many of the others, and the
//! seeded bugs.
//!
//! The searches are deterministic. `tests/exhaustive.txt` has the number of executions of the small scenarios, and
//! `tests/mutants.txt` has executions in which each seeded bug is found: those are run again, not all before them.
//! After a change that is meant, `FARFIELD_UPDATE=1 cargo test -p farfield-check --test objects` searches anew and
//! writes both; read the diff. Scenarios of medium size are for a release build: `ci/exhaustive`.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use farfield::mutants::{self, Mutant};
use farfield_check::{Budget, Outcome, RandomExecution, Replay, Scenario, check, check_one, exhaust, replay};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// The scenarios of the objects and of the systems.
fn all() -> Vec<Scenario> {
    [
        farfield_scenarios::all(),
        farfield_locks::scenarios::all(),
        farfield_transactions::scenarios::all(),
        farfield_collectives::scenarios::all(),
        farfield_mu::scenarios::all(),
        farfield_rome::scenarios::all(),
        farfield_hamband::scenarios::all(),
        farfield_swarm::scenarios::all(),
        farfield_rpc::scenarios::all(),
    ]
    .concat()
}

/// A small scenario with more executions is not searched whole each time.
const MANY: u64 = 2_000;
/// Random executions of each scenario that is not searched exhaustively: as many as have so many steps, but some.
/// `farfield check` looks at many more.
const STEPS: u64 = 20_000;
const EXECUTIONS: RangeInclusive<u64> = 3..=10;
/// A mutant that lives longer is not killed.
const EXECUTIONS_MAX: u64 = 100_000;
const SEEDS: u64 = 3;
/// A mutant that has lived so long, with the seeds so far, is not tried with more.
const ENOUGH: u64 = 1_000;
/// So many executions without the mutant are looked at, at most, before the mutant counts as the cause of the finding.
const SILENT: u64 = 300;

/// Applies `work` to all items on all cores; the results, in order.
fn on_all_cores<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let results: Vec<Mutex<Option<R>>> = items.iter().map(|_| Mutex::new(None)).collect();
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, Into::into) {
            scope.spawn(|| {
                while let Some((item, result)) = {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    items.get(at).zip(results.get(at))
                } {
                    let done = work(item);
                    *result.lock().unwrap() = Some(done);
                }
            });
        }
    });
    results.into_iter().map(|result| result.into_inner().unwrap().expect("all were done")).collect()
}

fn is_updating() -> bool {
    std::env::var_os("FARFIELD_UPDATE").is_some()
}

fn is_long() -> bool {
    std::env::var_os("FARFIELD_TEST_LONG").is_some()
}

fn path_of(table: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(table)
}

/// Compares a table with the one that is committed.
fn pinned(file: &str, table: &str) {
    if is_updating() {
        std::fs::write(path_of(file), table).unwrap();
    }
    let committed = std::fs::read_to_string(path_of(file)).unwrap_or_default();
    for (line, (now, then)) in table.lines().zip(committed.lines()).enumerate() {
        assert_eq!(
            now,
            then,
            "line {} of {file}: if the change is meant, update it (see the top of this file)",
            line + 1
        );
    }
    assert_eq!(table.lines().count(), committed.lines().count(), "{file} has other rows: update it");
}

/// How many there are is committed. Those with the most are searched whole with `FARFIELD_TEST_LONG`, which CI sets,
/// and by `farfield check`. Otherwise only their beginning is.
#[test]
fn small_scenarios_hold_in_all_their_executions() {
    let small: Vec<Scenario> = all().into_iter().filter(Scenario::is_small).collect();
    let committed = std::fs::read_to_string(path_of("exhaustive.txt")).unwrap_or_default();
    let executions = |row: &str| row.split_whitespace().nth(1).and_then(|count| count.parse::<u64>().ok());
    let row_of = |name: &str| committed.lines().find(|row| row.split_whitespace().next() == Some(name));
    let rows = on_all_cores(&small, |scenario| {
        let many = row_of(scenario.name()).filter(|row| executions(row).is_some_and(|count| count > MANY));
        let row = many.filter(|_| !is_updating() && !is_long());
        let budget = row.map_or(Budget::unlimited(), |_| Budget::executions(MANY / 10));
        let report = exhaust(scenario, budget);
        if let Some(finding) = &report.finding {
            panic!("{}\nreplay: {}", finding.failure.message, finding.replay);
        }
        let name = scenario.name();
        assert_eq!(report.is_complete, row.is_none(), "{name} has other executions than exhaustive.txt: update it");
        let whole = || format!("{:<32} {:>10} {:>10}", report.scenario, report.executions, report.states);
        row.map_or_else(whole, str::to_owned)
    });
    let mut table = format!("{:<32} {:>10} {:>10}\n", "scenario", "executions", "states");
    rows.iter().for_each(|row| table += &format!("{row}\n"));
    pinned("exhaustive.txt", &table);
}

#[test]
fn larger_scenarios_hold_in_many_executions() {
    let larger: Vec<Scenario> = all().into_iter().filter(|scenario| !scenario.is_small()).collect();
    on_all_cores(&larger, |scenario| {
        let some = check(scenario, Budget::executions(*EXECUTIONS.start()), 1);
        let executions = (STEPS * some.executions / some.steps.max(1)).clamp(*EXECUTIONS.start(), *EXECUTIONS.end());
        let report = check(scenario, Budget::executions(executions), 1);
        if let Some(finding) = &report.finding {
            panic!("{}\nreplay: {}", finding.failure.message, finding.replay);
        }
    });
}

/// Scenarios in which one certain node may die, of how many schedules, and at each how manyth step of them.
const DYING: &[(&str, u64, usize)] = &[
    ("hamband/dies-sending", 3, 1),
    ("hamband/dies-adding", 3, 1),
    ("hamband/dies-overwriting", 1, 1),
    ("hamband/dies", 1, 1),
    ("hamband/leader-dies", 1, 16),
    ("hamband/caller-dies", 1, 16),
    ("mu/follower-dies", 1, 1),
    ("mu/leader-dies", 1, 1),
];

/// A schedule by its choices, in which no node dies.
struct Schedule {
    name: &'static str,
    /// Of the replay line.
    flags: &'static str,
    choices: Vec<(usize, u16)>,
}

impl Schedule {
    fn run(&self, scenario: &Scenario) -> Outcome {
        let choices: Vec<String> = self.choices.iter().map(|(decision, taken)| format!("{decision}={taken}")).collect();
        let line: Replay = format!("{}#{}:{}", self.name, self.flags, choices.join(",")).parse().unwrap();
        replay(scenario, &line)
    }

    /// One with up to 20 choices that are drawn, and its execution.
    fn draw(scenario: &Scenario, name: &'static str, seed: u64) -> (Schedule, Outcome) {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut schedule = Schedule { name, flags: if seed.is_multiple_of(2) { "e" } else { "" }, choices: Vec::new() };
        let mut outcome = schedule.run(scenario);
        for _ in 0..20 {
            let first = schedule.choices.last().map_or(0, |(decision, _)| decision + 1);
            let end = outcome.choices.len().min(first + outcome.choices.len() / 10 + 1);
            if first >= end {
                break;
            }
            let decision = rng.random_range(first..end);
            // The death is the last candidate.
            let others = outcome.choices[decision].of - 1;
            if others > 1 {
                schedule.choices.push((decision, rng.random_range(1..others)));
                outcome = schedule.run(scenario);
            }
        }
        assert_eq!(outcome.faults, None, "{name} with seed {seed}");
        (schedule, outcome)
    }
}

/// Runs a scenario with a death at each step of some schedules, or at each so manyth.
fn die_at_each_step(name: &'static str, schedules: u64, apart: usize) -> Vec<Outcome> {
    let scenario = all().into_iter().find(|scenario| scenario.name() == name).expect("it is one of them");
    let mut outcomes = Vec::new();
    for seed in 0..schedules {
        let (schedule, undisturbed) = Schedule::draw(&scenario, name, seed);
        for (decision, choice) in undisturbed.choices.iter().enumerate().step_by(apart) {
            let before = schedule.choices.iter().copied().filter(|(other, _)| *other < decision);
            let choices = before.chain([(decision, choice.of - 1)]).collect();
            let outcome = Schedule { choices, ..schedule }.run(&scenario);
            let dies = outcome.faults.as_ref().is_some_and(|faults| faults.contains("crashes"));
            outcomes.extend(dies.then_some(outcome));
        }
    }
    outcomes
}

/// The searches draw the moment of a death.
#[test]
fn a_node_may_die_at_each_step() {
    on_all_cores(DYING, |(name, schedules, apart)| {
        let outcomes = die_at_each_step(name, *schedules, *apart);
        assert!(outcomes.len() > 500, "{name}: {} deaths", outcomes.len());
        outcomes.iter().for_each(|outcome| assert_eq!(outcome.failure, None, "{name}: {:?}", outcome.faults));
    });
    for name in ["hamband-uncopied", "hamband-summary-uncopied"] {
        mutants::enable(mutants::all().find(|mutant| mutant.name() == name)).unwrap();
        let scenario = if name == "hamband-uncopied" { "hamband/dies-sending" } else { "hamband/dies-adding" };
        let outcomes = die_at_each_step(scenario, 3, 1);
        mutants::enable(None).unwrap();
        assert!(outcomes.iter().any(|outcome| outcome.failure.is_some()), "{name} is not found");
    }
}

/// Executions in which a shipped object was found wrong.
const FOUND: &[(&str, &str)] = &[
    (
        "a path was opened anew while an answer to its earlier opening was under way, and got that opening's memory",
        "join/anew#e:0=1,4=1,7=2,8=2,12=2,17=1,19=2,21=2,24=2,25=2,29=1,31=1,34=1,36=2,42=1,47=2,52=1,58=2,63=2",
    ),
    (
        "a holder evicted by one node, and not yet by the lock's home, released the lock though its put had been \
         refused",
        "mutex/holder-cut#:9=1,18=1,25=1,26=2,27=1,28=1,29=1,33=2,34=1,35=1,38=1,39=1,44=2,45=1,46=1,47=1,50=1,\
     57=1,60=2,61=2,68=2,69=1,70=1,71=1,76=2,104=2,105=5,118=3,119=3,120=4,133=1,140=2,155=2,166=2,183=2,\
     189=2,190=2,191=2",
    ),
    (
        "a ring's writer forgot its last reader, which had died just after the one before it, and then sent to nobody",
        "ring/readers-die#e:2=1,3=1,4=1,5=1,6=1,7=1,8=1,9=1,11=1,12=1,13=1,14=1,15=1,16=1,17=1,18=1,19=1,\
     20=1,21=1,22=1,23=1,24=1,27=1,28=1,29=1,30=1,31=1,32=1,33=1,34=1,36=1,37=1,38=1,39=1,40=1,41=1,\
     44=1,45=4,46=3,47=1,48=3,51=1,52=3,53=3,54=3,55=1,56=3,57=1,58=1,59=3,60=3,61=3,75=1,76=2,77=2,\
     78=2,79=2,80=1,84=1,85=1,86=1,87=1,91=2,92=1",
    ),
];

#[test]
fn found_bugs_stay_fixed() {
    for (story, line) in FOUND {
        let line: Replay = line.parse().unwrap();
        let scenario = all().into_iter().find(|scenario| scenario.name() == line.scenario()).expect("its scenario");
        // The line's choices keep their meaning only as long as the code is the same: the scenario is searched, too.
        assert_eq!(replay(&scenario, &line).failure, None, "{story}");
        let report = check(&scenario, Budget::executions(if is_long() { 5000 } else { 1000 }), 7);
        assert!(report.finding.is_none(), "{story}: {:?}", report.finding);
    }
}

/// The scenario that is named for a mutant.
fn scenario_of(mutant: Mutant) -> Scenario {
    let name = mutant.name();
    let found = all().into_iter().find(|scenario| scenario.mutants().contains(&name));
    found.unwrap_or_else(|| panic!("no scenario is named for {name}"))
}

/// Searches for a mutant with several seeds: the executions that kill it.
fn kills(mutant: Mutant, scenario: &Scenario) -> Vec<RandomExecution> {
    let name = mutant.name();
    mutants::enable(Some(mutant)).unwrap();
    let mut kills: Vec<RandomExecution> = Vec::new();
    for seed in 1..=SEEDS {
        let finding = check(scenario, Budget::executions(EXECUTIONS_MAX), seed).finding;
        let killed = finding.and_then(|finding| finding.random);
        kills.push(killed.unwrap_or_else(|| panic!("{name} survives {} with seed {seed}", scenario.name())));
        if kills.iter().map(|kill| kill.execution).sum::<u64>() > ENOUGH {
            break;
        }
    }
    mutants::enable(None).unwrap();
    // With the switch off the same search is silent: the longest of them, or its beginning.
    let longest = kills.iter().max_by_key(|kill| kill.execution).expect("there is a seed");
    let silent = check(scenario, Budget::executions(longest.execution.min(SILENT)), longest.seed);
    assert!(silent.finding.is_none(), "{} without {name}: {:?}", scenario.name(), silent.finding);
    kills
}

/// Runs the executions that kill a mutant again: each fails with the mutant, and passes without it.
fn is_killed_by(mutant: Mutant, scenario: &Scenario, kills: &[RandomExecution]) {
    let (name, of) = (mutant.name(), scenario.name());
    assert!(!kills.is_empty(), "no execution kills {name}");
    mutants::enable(Some(mutant)).unwrap();
    let survived = kills.iter().find(|kill| check_one(scenario, **kill).finding.is_none());
    mutants::enable(None).unwrap();
    assert_eq!(survived, None, "{name} survives this execution of {of}: search anew (see the top of this file)");
    for kill in kills {
        let finding = check_one(scenario, *kill).finding;
        assert!(finding.is_none(), "{of} without {name}: {finding:?}");
    }
}

#[test]
fn every_mutant_is_killed_by_its_scenario() {
    const TABLE: &str = "mutants.txt";
    let every: Vec<Mutant> = mutants::all().collect();
    if is_updating() {
        let rows = on_all_cores(&every, |mutant| {
            let scenario = scenario_of(*mutant);
            let kills = kills(*mutant, &scenario);
            let kills: Vec<String> = kills.iter().map(RandomExecution::to_string).collect();
            format!("{:<32} {:<32} {}\n", mutant.name(), scenario.name(), kills.join(" "))
        });
        let mut table = format!("{:<32} {:<32} seed:execution:decisions\n", "mutant", "killed by");
        rows.iter().for_each(|row| table.push_str(row));
        std::fs::write(path_of(TABLE), table).unwrap();
    }
    let table = std::fs::read_to_string(path_of(TABLE)).unwrap();
    let rows: Vec<Vec<&str>> = table.lines().skip(1).map(|row| row.split_whitespace().collect()).collect();
    let names: Vec<&str> = every.iter().map(|mutant| mutant.name()).collect();
    assert_eq!(rows.iter().map(|row| row[0]).collect::<Vec<_>>(), names, "{TABLE} has other rows: update it");
    let every: Vec<(Mutant, &[&str])> = every.into_iter().zip(rows.iter().map(|row| &row[1..])).collect();
    on_all_cores(&every, |(mutant, row)| {
        let scenario = scenario_of(*mutant);
        assert_eq!(scenario.name(), row[0], "{} has another scenario: update {TABLE}", mutant.name());
        let kills: Vec<RandomExecution> = row[1..].iter().map(|kill| kill.parse().unwrap()).collect();
        is_killed_by(*mutant, &scenario, &kills);
    });
}
