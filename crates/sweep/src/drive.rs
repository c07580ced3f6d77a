//! Runs the worker for one mistake after the other, several at a time, and writes down what became of each.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::OpenOptions;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use indicatif::{ProgressBar, ProgressStyle};

use crate::report::{Fate, Line, equivalents, found, log_of, read_log};
use crate::tree::{Profile, SYSTEMS, Site, Tree};
use crate::{RunArgs, Which};

/// Executions of each scenario, to see which mistakes it reaches.
const REACH_EXECUTIONS: u64 = 300;

/// A mistake that was found before is found again by that scenario. It takes other executions after a change of the
/// scenario or of the code.
const AGAIN_EXECUTIONS: u64 = 20_000;
const AGAIN_SECONDS: u64 = 120;

/// What the worker says of a scenario.
#[derive(Clone, serde::Deserialize)]
struct Reach {
    scenario: String,
    is_small: bool,
    micros_each: u64,
    sites: Vec<u32>,
    faults: Vec<String>,
}

/// What the worker says of a mistake.
#[derive(serde::Deserialize)]
struct Outcome {
    killed_by: Option<String>,
    executions: u64,
    failure: String,
    replay: String,
}

/// Builds the worker with all mistakes.
fn build(root: &Path, sites: &mut BTreeMap<u32, Site>, profile: Profile, bar: &ProgressBar) -> Result<Tree> {
    let scratch = root.join("target/sweep");
    std::fs::create_dir_all(&scratch)?;
    bar.enable_steady_tick(Duration::from_millis(200));
    let tree = Tree::new(root, &scratch, profile, sites);
    ensure!(sites.len() <= farfield_seeded::switch::SITES_MAX, "more mistakes than a build can have: {}", sites.len());
    let refused = tree.build(sites, |what| bar.set_message(what.to_string()))?;
    println!("{} mistakes; the compiler refuses {refused} more", sites.len());
    Ok(tree)
}

/// Prints for each line with places for mistakes the kinds of faults under which no scenario reaches it, and how many
/// such lines each file has.
pub(crate) fn coverage(root: &Path, mut sites: BTreeMap<u32, Site>, which: &Which) -> Result<()> {
    let bar = ProgressBar::new_spinner();
    let tree = build(root, &mut sites, Profile::Fast, &bar)?;
    bar.set_message("running all scenarios");
    let reaches = reaches(&tree.worker(), &sites)?;
    bar.finish_and_clear();
    let kinds: BTreeSet<&str> = reaches.iter().flat_map(|reach| &reach.faults).map(String::as_str).collect();
    // By file and line: whether a scenario reaches it, and under which kinds of faults.
    let mut lines: BTreeMap<(&str, usize), (bool, BTreeSet<&str>)> = BTreeMap::new();
    for (id, site) in sites.iter().filter(|(_, site)| which.is_of(site)) {
        let (is_reached, under) = lines.entry((&site.file, site.mistake.line)).or_default();
        for reach in reaches.iter().filter(|reach| reach.sites.contains(id)) {
            *is_reached = true;
            under.extend(reach.faults.iter().map(String::as_str));
        }
    }
    let mut files: BTreeMap<&str, Vec<&(bool, BTreeSet<&str>)>> = BTreeMap::new();
    for ((file, line), reached) in &lines {
        files.entry(file).or_default().push(reached);
        let missing: Vec<&str> = kinds.difference(&reached.1).copied().collect();
        match missing[..] {
            _ if !reached.0 => println!("{file}:{line}: no scenario reaches it"),
            [] => {}
            _ => println!("{file}:{line}: under no {}", missing.join(", ")),
        }
    }
    let head: String = kinds.iter().map(|kind| format!(" {kind:>15}")).collect();
    println!("\nLines that no scenario reaches, and those that none reaches under a fault:");
    println!("{:<52} {:>6} {:>6}{head}", "file", "lines", "at all");
    for (file, lines) in &files {
        let never = lines.iter().filter(|line| !line.0).count();
        let not_under = |kind: &&str| lines.iter().filter(|line| !line.1.contains(*kind)).count();
        let columns: String = kinds.iter().map(|kind| format!(" {:>15}", not_under(kind))).collect();
        println!("{file:<52} {:>6} {never:>6}{columns}", lines.len());
    }
    Ok(())
}

/// Runs mistakes that were found before, with the scenario that has found them.
pub(crate) fn again(root: &Path, mut sites: BTreeMap<u32, Site>, which: &Which) -> Result<()> {
    let mut found = found(root)?;
    sites.retain(|_, site| found.contains_key(&site.name));
    let drawn: BTreeSet<String> =
        which.choose(sites.values().cloned().collect()).into_iter().map(|site| site.name).collect();
    sites.retain(|_, site| drawn.contains(&site.name));
    let bar = ProgressBar::new_spinner();
    let tree = build(root, &mut sites, Profile::BuiltSoon, &bar)?;
    bar.finish_and_clear();
    let (mut missed, count) = (Vec::new(), sites.len());
    for (id, site) in sites {
        let scenario = found.remove(&site.name).expect("it was drawn from them").scenario;
        let outcome = kill(&tree.worker(), id, AGAIN_EXECUTIONS, AGAIN_SECONDS, &[&scenario])?;
        let is_found = !matches!(&outcome, Ended::Whole(outcome) if outcome.killed_by.is_none());
        let executions = if let Ended::Whole(outcome) = &outcome { outcome.executions } else { 1 };
        let end = match (is_found, executions) {
            (true, _) => "found",
            (false, 0) => "NO SCENARIO", // it has another name by now, or has gone
            (false, _) => "NOT FOUND",
        };
        println!("{end:11} {} => {scenario}, {executions}", site.name);
        missed.extend((!is_found).then_some(site.name));
    }
    ensure!(missed.is_empty(), "{} of {count} mistakes are not found any more", missed.len());
    println!("all {count} mistakes are found again");
    Ok(())
}

pub(crate) fn run(root: &Path, mut sites: BTreeMap<u32, Site>, args: &RunArgs) -> Result<()> {
    sites.retain(|_, site| args.which.is_of(site));
    let bar = ProgressBar::new_spinner();
    let tree = build(root, &mut sites, Profile::Fast, &bar)?;
    bar.set_message("building the tests");
    let judges = Judges::build(&tree, &sites)?;
    judges.hold_without_mistakes()?;
    bar.set_message("looking which scenarios reach which mistakes");
    let has_scenarios = sites.values().any(Site::may_be_in_scenarios);
    let reached = Reached::new(if has_scenarios { reaches(&judges.worker, &sites)? } else { Vec::new() }, &sites);
    bar.finish_and_clear();

    let log = log_of(root);
    let before: Vec<Line> = if args.anew { Vec::new() } else { read_log(root)? };
    // Survivors are tried again: there may be a scenario more.
    let survived = |line: &Line| !line.fate.is_found();
    let survivors: BTreeSet<String> =
        before.iter().filter(|line| survived(line)).map(|line| line.name.clone()).collect();
    let done: BTreeSet<String> = before.iter().filter(|line| !survived(line)).map(|line| line.name.clone()).collect();
    let numbers: HashMap<String, u32> = sites.iter().map(|(id, site)| (site.name.clone(), *id)).collect();
    let mut chosen = args.which.choose(sites.into_values().collect());
    chosen.retain(|site| !args.survivors || survivors.contains(&site.name));
    let chosen_names: BTreeSet<String> = chosen.iter().map(|site| site.name.clone()).collect();
    let kept: Vec<String> = before
        .iter()
        .filter(|line| !survived(line) || !chosen_names.contains(&line.name))
        .map(serde_json::to_string)
        .collect::<Result<_, _>>()?;
    std::fs::write(&log, kept.iter().map(|line| format!("{line}\n")).collect::<String>())?;
    let left: Vec<(u32, Site)> =
        chosen.into_iter().filter(|site| !done.contains(&site.name)).map(|site| (numbers[&site.name], site)).collect();

    let bar = ProgressBar::new(left.len() as u64);
    bar.set_style(ProgressStyle::with_template("{bar:30} {pos}/{len} mistakes, {eta} left  {wide_msg}")?);
    let known = equivalents(root)?;
    let file = Mutex::new(OpenOptions::new().create(true).append(true).open(&log)?);
    let queue = Mutex::new(left.into_iter());
    let jobs = args.jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, Into::into));
    let work = || -> Result<()> {
        loop {
            let Some((id, site)) = queue.lock().expect("no panic holds it").next() else { return Ok(()) };
            let is_argued = known.contains_key(&site.name) && !args.all;
            let fate = if is_argued { Fate::Equivalent } else { judges.fate(id, &site, &reached, args)? };
            bar.set_message(format!("{}: {}", site.file, fate.word()));
            let line = Line {
                name: site.name,
                file: site.file,
                line: site.mistake.line,
                kind: site.mistake.kind.into(),
                fate,
            };
            let mut file = file.lock().expect("no panic holds it");
            writeln!(file, "{}", serde_json::to_string(&line)?)?;
            bar.inc(1);
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..jobs).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })?;
    bar.finish_and_clear();
    crate::report::print(root)?;
    if args.strict {
        let survivors: Vec<Line> = read_log(root)?
            .into_iter()
            .filter(|line| {
                chosen_names.contains(&line.name) && !line.fate.is_found() && !known.contains_key(&line.name)
            })
            .collect();
        ensure!(survivors.is_empty(), "{} mistakes survive", survivors.len());
    }
    Ok(())
}

/// Lines of a file so near to each other are about the same thing.
const NEAR: usize = 12;

/// Which scenarios reach which sites.
struct Reached {
    reaches: Vec<Reach>,
    /// By site: how many scenarios reach it, and the sites near to it.
    counts: HashMap<u32, usize>,
    near: HashMap<u32, Vec<u32>>,
}

impl Reached {
    fn new(reaches: Vec<Reach>, sites: &BTreeMap<u32, Site>) -> Reached {
        let mut counts = HashMap::new();
        reaches.iter().flat_map(|reach| &reach.sites).for_each(|site| *counts.entry(*site).or_default() += 1);
        let is_near =
            |one: &Site, other: &Site| one.file == other.file && one.mistake.line.abs_diff(other.mistake.line) <= NEAR;
        let near_to = |site: &Site| sites.iter().filter(|(_, other)| is_near(site, other)).map(|(id, _)| *id).collect();
        let near = sites.iter().map(|(id, site)| (*id, near_to(site))).collect();
        Reached { reaches, counts, near }
    }

    /// The scenarios that reach a site. Those first that reach code near to it which few reach: there the mistake may
    /// show.
    fn by_preference(&self, site: u32) -> Vec<&str> {
        let weight = |site: &u32| 1.0 / self.counts.get(site).copied().unwrap_or(1) as f64;
        let near = &self.near[&site];
        let preference =
            |reach: &Reach| -> f64 { near.iter().filter(|other| reach.sites.contains(other)).map(weight).sum::<f64>() };
        let reaching = self.reaches.iter().filter(|reach| reach.sites.contains(&site));
        let mut ordered: Vec<(f64, &str)> =
            reaching.map(|reach| (preference(reach), reach.scenario.as_str())).collect();
        ordered.sort_by(|(one, _), (other, _)| other.total_cmp(one));
        ordered.into_iter().map(|(_, scenario)| scenario).collect()
    }
}

/// Which scenarios reach which sites; the quickest scenarios first. All cores run some.
fn reaches(worker: &Path, sites: &BTreeMap<u32, Site>) -> Result<Vec<Reach>> {
    // The systems are run by scenarios of systems alone, which bear their names.
    let objects: &[&str] = if sites.values().all(Site::is_of_system) { &SYSTEMS } else { &[] };
    let parts = std::thread::available_parallelism().map_or(1, Into::<usize>::into);
    let part = |part: usize| {
        let numbers = [REACH_EXECUTIONS, part as u64, parts as u64].map(|number| number.to_string());
        Command::new(worker).arg("reach").args(numbers).args(objects).output()
    };
    let runs: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..parts).map(|at| scope.spawn(move || part(at))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    let mut reaches = Vec::new();
    for run in runs {
        let run = run?;
        ensure!(run.status.success(), "the worker fails without a mistake: {}", String::from_utf8_lossy(&run.stderr));
        for line in String::from_utf8(run.stdout)?.lines() {
            reaches.push(serde_json::from_str::<Reach>(line).context("reading what the worker says")?);
        }
    }
    reaches.sort_by_key(|reach| (!reach.is_small, reach.micros_each));
    Ok(reaches)
}

/// The time for one execution, or some tests, more than is allowed for all.
const SLACK_SECONDS: u64 = 60;

/// Tests that judge the mistakes of some files, besides the scenarios.
struct Tests {
    files: &'static str,
    /// The package, and the target.
    program: Program,
    filter: &'static str,
}

/// A test program: the package, and the target.
type Program = (&'static str, &'static str);

const CORE: Program = ("farfield-core", "farfield_core");
const FABRIC: Program = ("farfield-fabric", "farfield_fabric");
const LOCKS: Program = ("farfield-locks", "farfield_locks");
const TRANSACTIONS: Program = ("farfield-transactions", "farfield_transactions");
const COLLECTIVES: Program = ("farfield-collectives", "farfield_collectives");
const HAMBAND: Program = ("farfield-hamband", "farfield_hamband");
const MU: Program = ("farfield-mu", "farfield_mu");
const ROME: Program = ("farfield-rome", "farfield_rome");
const RPC: Program = ("farfield-rpc", "farfield_rpc");
const SWARM: Program = ("farfield-swarm", "farfield_swarm");
const CLI: Program = ("farfield-cli", "farfield_cli");
/// Texts of models and litmus tests, right and wrong ones.
const MOWGLI: Program = ("mowgli", "mowgli");
const MODELS: Program = ("mowgli", "models");
/// The suite that every fabric passes.
const CONFORMANCE: Program = ("farfield-fabric", "conformance");
/// The objects over shared memory, and nodes that start, die, leave and return.
const OBJECTS: Program = ("farfield", "objects");
const DEATHS: Program = ("farfield", "deaths");
const RETURNS: Program = ("farfield", "returns");

const fn tests(files: &'static str, program: Program, filter: &'static str) -> Tests {
    Tests { files, program, filter }
}

/// Code without concurrency, and machines that unit tests drive by random events: they come before the scenarios.
const BEFORE: &[Tests] = &[
    tests("crates/core/src/node/membership", CORE, "node::membership::"),
    tests("crates/core/src/node/object/announcement", CORE, "node::object::announcement::"),
    tests("crates/core/src/node/object/close", CORE, "node::object::close::"),
    tests("crates/core/src/node/object/reopen", CORE, "node::object::reopen::"),
    tests("crates/core/src/node/service", CORE, "node::service::"),
    tests("crates/core/src/objects/participants", CORE, "objects::participants::"),
    tests("crates/core/src/objects/kv/slots", CORE, "objects::kv::slots::"),
    tests("crates/core/src/objects/codec", CORE, "objects::codec::"),
    tests("crates/core/src/objects/queue/state", CORE, "objects::queue::state::"),
    tests("crates/core/src/objects/mutex/state", CORE, "objects::mutex::state::"),
    tests("crates/core/src/objects/kv/recovery", CORE, "objects::kv::recovery::"),
    tests("crates/fabric/src/endpoint/marks", FABRIC, "endpoint::marks::"),
    tests("crates/fabric/src/endpoint", CONFORMANCE, ""),
    tests("crates/locks/src", LOCKS, "tests::"),
    tests("crates/transactions/src", TRANSACTIONS, "tests::"),
    tests("crates/collectives/src", COLLECTIVES, "tests::"),
    tests("crates/hamband/src", HAMBAND, ""),
    tests("crates/mu/src", MU, ""),
    tests("crates/rome/src", ROME, ""),
    tests("crates/rpc/src", RPC, ""),
    tests("crates/swarm/src", SWARM, ""),
    tests("crates/core/src/history", CORE, "history::"),
    tests("crates/mowgli/src", MOWGLI, ""),
    tests("crates/mowgli/src", MODELS, "errors::"),
    tests("crates/mowgli/src", MODELS, "suite::"),
    tests("crates/cli/src", CLI, "chaos::judge::"),
];

/// Tests of properties that no scenario sees: the operations and round trips of a call, refused arguments, and
/// processes that start and die. They come after the scenarios.
const AFTER: &[Tests] = &[
    tests("crates/core/src/objects", OBJECTS, "costs::"),
    tests("crates/core/src/objects/barrier", OBJECTS, "barrier::"),
    tests("crates/core/src/objects/mutex", OBJECTS, "mutex::"),
    tests("crates/core/src/objects/queue", OBJECTS, "queue"),
    tests("crates/core/src/objects/ring", OBJECTS, "ring::"),
    tests("crates/core/src/objects/kv", OBJECTS, "kv"),
    tests("crates/locks", OBJECTS, "costs::"),
    tests("crates/locks", OBJECTS, "locks::"),
    tests("crates/transactions", OBJECTS, "costs::"),
    tests("crates/transactions", OBJECTS, "transactions::"),
    tests("crates/collectives", OBJECTS, "costs::"),
    tests("crates/collectives", OBJECTS, "collectives::"),
    tests("crates/hamband", OBJECTS, "wrdt::"),
    tests("crates/mu", OBJECTS, "logs::"),
    tests("crates/rome", OBJECTS, "rome"),
    tests("crates/rpc", OBJECTS, "rpc::"),
    tests("crates/swarm", OBJECTS, "swarm::"),
    tests("crates", OBJECTS, "refused::"),
    tests("crates/core/src/node", DEATHS, ""),
    tests("crates/core/src/node", RETURNS, ""),
];

/// The programs that find mistakes.
struct Judges {
    worker: PathBuf,
    before: Vec<&'static Tests>,
    after: Vec<&'static Tests>,
    programs: Vec<(Program, PathBuf)>,
}

impl Judges {
    /// Builds the tests of these mistakes.
    fn build(tree: &Tree, sites: &BTreeMap<u32, Site>) -> Result<Judges> {
        let is_needed = |tests: &&Tests| sites.values().any(|site| site.file.starts_with(tests.files));
        let [before, after] = [BEFORE, AFTER].map(|all| all.iter().filter(is_needed).collect::<Vec<_>>());
        let programs: BTreeSet<Program> = before.iter().chain(&after).map(|tests| tests.program).collect();
        let programs: Vec<Program> = programs.into_iter().collect();
        let paths = tree.build_tests(&programs)?;
        let programs = programs.into_iter().zip(paths).collect();
        Ok(Judges { worker: tree.worker(), before, after, programs })
    }

    fn command(&self, tests: &Tests) -> Command {
        let (_, path) = self.programs.iter().find(|(program, _)| *program == tests.program).expect("all were built");
        let mut run = Command::new(path);
        // A failure that is meant to be is no test case for later.
        run.arg(tests.filter).env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "1");
        run
    }

    /// The tests find nothing where there is nothing.
    fn hold_without_mistakes(&self) -> Result<()> {
        for tests in self.before.iter().chain(&self.after) {
            let run = self.command(tests).output()?;
            let text = String::from_utf8_lossy(&run.stdout);
            let has_run = !text.contains("running 0 tests");
            ensure!(run.status.success() && has_run, "the tests `{}` fail, or there are none: {text}", tests.filter);
        }
        Ok(())
    }

    /// What becomes of a mistake.
    fn fate(&self, id: u32, site: &Site, reached: &Reached, args: &RunArgs) -> Result<Fate> {
        if let Some(found) = self.by_tests(&self.before, id, site, args)? {
            return Ok(found);
        }
        if !site.may_be_in_scenarios() {
            return Ok(Fate::Survived { executions: 0, scenarios: 0 });
        }
        let fate = by_scenarios(&self.worker, (id, &site.file), reached, args)?;
        if fate.is_found() { Ok(fate) } else { Ok(self.by_tests(&self.after, id, site, args)?.unwrap_or(fate)) }
    }

    /// The result of some tests with a mistake; none if they pass.
    fn by_tests(&self, all: &[&Tests], id: u32, site: &Site, args: &RunArgs) -> Result<Option<Fate>> {
        for tests in all.iter().filter(|tests| site.file.starts_with(tests.files)) {
            let mut run = self.command(tests);
            run.env(farfield_seeded::switch::VARIABLE, id.to_string());
            match ended(run, args.seconds + SLACK_SECONDS)? {
                None => return Ok(Some(Fate::OutOfTime)),
                Some((true, _)) => {}
                Some((false, text)) => {
                    let failure = text.lines().find(|line| line.ends_with("FAILED")).unwrap_or("").to_string();
                    let scenario = format!("tests of {} {}", tests.program.0, tests.filter);
                    return Ok(Some(Fate::Killed { scenario, executions: 1, failure, replay: String::new() }));
                }
            }
        }
        Ok(None)
    }
}

/// Runs a program to its end: whether it succeeded, and its output. None if it takes too long.
fn ended(mut command: Command, seconds_max: u64) -> Result<Option<(bool, String)>> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let mut output = child.stdout.take().context("its output")?;
    // A pipe holds little: it is read while the program runs.
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        output.read_to_string(&mut text).map(|_| text)
    });
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if start.elapsed() > Duration::from_secs(seconds_max) {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let text = reader.join().expect("it does not panic")?;
    Ok(Some((status.success(), text)))
}

/// The first parts of the names of scenarios about nodes, and about locks.
const ABOUT_NODES: &[&str] = &["join", "close", "reopen", "restart", "membership", "leave", "service"];
const ABOUT_LOCKS: &[&str] = &["alock", "mcs", "spin", "locks"];

/// What the scenarios that reach a mistake find of it.
fn by_scenarios(worker: &Path, (id, file): (u32, &str), reached: &Reached, args: &RunArgs) -> Result<Fate> {
    let mut scenarios = reached.by_preference(id);
    // `mutex/…` is about a file `…/mutex/guard.rs`.
    let is_about = |scenario: &str| {
        let object = scenario.split('/').next().unwrap_or(scenario);
        file.contains(object)
            || (file.contains("/node/") && ABOUT_NODES.contains(&object))
            || (file.contains("/locks/src/") && ABOUT_LOCKS.contains(&object))
    };
    // Some code is reached once in many thousand executions.
    let is_reached = !scenarios.is_empty();
    if !is_reached {
        let all = reached.reaches.iter().map(|reach| reach.scenario.as_str());
        scenarios = all.filter(|scenario| is_about(scenario)).collect();
    }
    // Those about the file have half of the executions: where hundreds reach a line, each of all would have few.
    let count = scenarios.len();
    let (about, others): (Vec<&str>, Vec<&str>) = scenarios.into_iter().partition(|scenario| is_about(scenario));
    let mut executed = 0;
    for (scenarios, limit) in [(about, args.executions / 2), (others, args.executions)] {
        let outcome = match kill(worker, id, limit - executed.min(limit), args.seconds / 2, &scenarios)? {
            Ended::OutOfTime => return Ok(Fate::OutOfTime),
            Ended::Crashed => return Ok(Fate::Crashed),
            Ended::Whole(outcome) => outcome,
        };
        executed += outcome.executions;
        if let Some(scenario) = outcome.killed_by {
            let Outcome { failure, replay, .. } = outcome;
            return Ok(Fate::Killed { scenario, executions: executed, failure, replay });
        }
    }
    Ok(if is_reached { Fate::Survived { executions: executed, scenarios: count } } else { Fate::NotReached })
}

/// How the worker has ended.
enum Ended {
    Whole(Outcome),
    OutOfTime,
    Crashed,
}

/// Runs scenarios with a mistake.
fn kill(worker: &Path, id: u32, executions: u64, seconds: u64, scenarios: &[&str]) -> Result<Ended> {
    let mut run = Command::new(worker);
    run.args(["kill", &id.to_string(), &executions.to_string(), &seconds.to_string()]).args(scenarios);
    // The worker ends in time, unless one execution does not end.
    Ok(match ended(run, seconds + SLACK_SECONDS)? {
        None => Ended::OutOfTime,
        Some((false, _)) => Ended::Crashed,
        Some((true, text)) => Ended::Whole(serde_json::from_str(text.trim()).context("reading what the worker says")?),
    })
}
