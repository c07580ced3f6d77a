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

use crate::RunArgs;
use crate::report::{Fate, Line, equivalents, log_of, read_log};
use crate::tree::{Site, Tree};

/// Executions of each scenario, to see which mistakes it reaches.
const REACH_EXECUTIONS: u64 = 60;

/// What the worker says of a scenario.
#[derive(Clone, serde::Deserialize)]
struct Reach {
    scenario: String,
    is_small: bool,
    micros_each: u64,
    sites: Vec<u32>,
}

/// What the worker says of a mistake.
#[derive(serde::Deserialize)]
struct Outcome {
    killed_by: Option<String>,
    executions: u64,
    failure: String,
    replay: String,
}

pub(crate) fn run(root: &Path, mut sites: BTreeMap<u32, Site>, args: &RunArgs) -> Result<()> {
    let scratch = root.join("target/sweep");
    std::fs::create_dir_all(&scratch)?;
    let bar = ProgressBar::new_spinner();
    bar.enable_steady_tick(Duration::from_millis(200));
    let tree = Tree::new(root, &scratch);
    ensure!(sites.len() <= farfield_sweep_switch::SITES_MAX, "more mistakes than a build can have: {}", sites.len());
    let refused = tree.build(&mut sites, |what| bar.set_message(what.to_string()))?;
    let worker = tree.worker();
    println!("{} mistakes; the compiler refuses {refused} more", sites.len());
    bar.set_message("building the unit tests");
    let judges = Judges { worker: worker.clone(), unit_tests: tree.build_unit_tests()? };
    judges.hold_without_mistakes(&sites)?;
    bar.set_message("looking which scenarios reach which mistakes");
    let reaches = reaches(&worker)?;
    bar.finish_and_clear();

    // Survivors are tried again: there may be a scenario more.
    let log = log_of(root);
    let done: Vec<Line> = if args.anew { Vec::new() } else { read_log(root)? };
    let done: Vec<Line> = done.into_iter().filter(|line| line.fate.is_found()).collect();
    let kept: Vec<String> = done.iter().map(serde_json::to_string).collect::<Result<_, _>>()?;
    std::fs::write(&log, kept.iter().map(|line| format!("{line}\n")).collect::<String>())?;
    let done: BTreeSet<String> = done.into_iter().map(|line| line.name).collect();
    let numbers: HashMap<String, u32> = sites.iter().map(|(id, site)| (site.name.clone(), *id)).collect();
    let chosen = args.which.choose(sites.into_values().collect());
    let chosen_names: BTreeSet<String> = chosen.iter().map(|site| site.name.clone()).collect();
    let left: Vec<(u32, Site)> =
        chosen.into_iter().filter(|site| !done.contains(&site.name)).map(|site| (numbers[&site.name], site)).collect();

    let bar = ProgressBar::new(left.len() as u64);
    bar.set_style(ProgressStyle::with_template("{bar:30} {pos}/{len} mistakes, {eta} left  {wide_msg}")?);
    let file = Mutex::new(OpenOptions::new().create(true).append(true).open(&log)?);
    let queue = Mutex::new(left.into_iter());
    let jobs = args.jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, Into::into));
    let work = || -> Result<()> {
        loop {
            let Some((id, site)) = queue.lock().expect("no panic holds it").next() else { return Ok(()) };
            let fate = judges.fate(id, &site, &reaches, args)?;
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
        let known = equivalents(root)?;
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

/// Which scenarios reach which sites; the quickest scenarios first.
fn reaches(worker: &Path) -> Result<Vec<Reach>> {
    let run = Command::new(worker).args(["reach", &REACH_EXECUTIONS.to_string()]).output()?;
    ensure!(run.status.success(), "the worker fails without a mistake: {}", String::from_utf8_lossy(&run.stderr));
    let text = String::from_utf8(run.stdout)?;
    let mut reaches: Vec<Reach> =
        text.lines().map(serde_json::from_str).collect::<Result<_, _>>().context("reading what the worker says")?;
    reaches.sort_by_key(|reach| (!reach.is_small, reach.micros_each));
    Ok(reaches)
}

/// The time for one execution, or one unit test, more than is allowed for all.
const SLACK_SECONDS: u64 = 60;

/// Machines without a fabric, which unit tests drive by random events: the files, and the tests.
const UNIT_TESTED: &[(&str, &str)] = &[
    ("crates/core/src/node/membership", "node::membership::"),
    ("crates/core/src/node/object/close", "node::object::close::"),
    ("crates/core/src/objects/participants", "objects::participants::"),
    ("crates/core/src/objects/kv/slots", "objects::kv::slots::"),
    ("crates/core/src/objects/codec", "objects::codec::"),
    ("crates/core/src/objects/queue/state", "objects::queue::state::"),
    ("crates/core/src/objects/mutex/state", "objects::mutex::state::"),
    ("crates/core/src/objects/kv/recovery", "objects::kv::recovery::"),
];

/// The programs that find mistakes.
struct Judges {
    worker: PathBuf,
    unit_tests: PathBuf,
}

impl Judges {
    /// The unit tests find nothing where there is nothing.
    fn hold_without_mistakes(&self, sites: &BTreeMap<u32, Site>) -> Result<()> {
        for (files, tests) in UNIT_TESTED {
            ensure!(sites.values().any(|site| site.file.starts_with(files)), "no mistake is in {files}");
            let run = Command::new(&self.unit_tests).arg(tests).output()?;
            let text = String::from_utf8_lossy(&run.stdout);
            let has_run = !text.contains("running 0 tests");
            ensure!(run.status.success() && has_run, "the unit tests of {tests} fail, or there are none: {text}");
        }
        Ok(())
    }

    /// What becomes of a mistake.
    fn fate(&self, id: u32, site: &Site, reaches: &[Reach], args: &RunArgs) -> Result<Fate> {
        for (_, tests) in UNIT_TESTED.iter().filter(|(files, _)| site.file.starts_with(files)) {
            let mut run = Command::new(&self.unit_tests);
            run.arg(tests).env(farfield_sweep_switch::VARIABLE, id.to_string());
            match ended(run, args.seconds + SLACK_SECONDS)? {
                None => return Ok(Fate::OutOfTime),
                Some((true, _)) => {}
                Some((false, text)) => {
                    let failed = text.lines().find(|line| line.ends_with("FAILED")).unwrap_or("").to_string();
                    let (scenario, replay) = (format!("unit tests of {tests}"), String::new());
                    return Ok(Fate::Killed { scenario, executions: 1, failure: failed, replay });
                }
            }
        }
        by_scenarios(&self.worker, (id, &site.file), reaches, args)
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

/// What the scenarios that reach a mistake find of it.
fn by_scenarios(worker: &PathBuf, (id, file): (u32, &str), reaches: &[Reach], args: &RunArgs) -> Result<Fate> {
    let mut scenarios: Vec<&str> =
        reaches.iter().filter(|reach| reach.sites.contains(&id)).map(|reach| reach.scenario.as_str()).collect();
    // Those that are about the object first: `mutex/…` for a file `…/mutex/guard.rs`.
    let is_about = |scenario: &str| scenario.split('/').next().is_some_and(|object| file.contains(object));
    scenarios.sort_by_key(|scenario| !is_about(scenario));
    if scenarios.is_empty() {
        return Ok(Fate::NotReached);
    }
    let mut run = Command::new(worker);
    run.args(["kill", &id.to_string(), &args.executions.to_string(), &args.seconds.to_string()]).args(&scenarios);
    // The worker ends in time, unless one execution does not end.
    let text = match ended(run, args.seconds + SLACK_SECONDS)? {
        None => return Ok(Fate::OutOfTime),
        Some((false, _)) => return Ok(Fate::Crashed),
        Some((true, text)) => text,
    };
    let outcome: Outcome = serde_json::from_str(text.trim()).context("reading what the worker says")?;
    Ok(match outcome.killed_by {
        Some(scenario) => {
            let Outcome { executions, failure, replay, .. } = outcome;
            Fate::Killed { scenario, executions, failure, replay }
        }
        None => Fate::Survived { executions: outcome.executions, scenarios: scenarios.len() },
    })
}
