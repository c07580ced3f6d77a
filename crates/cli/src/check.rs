//! `farfield check`: searches the executions of scenarios on simulated sessions for one that fails, and shows one
//! again.
//!
//! [`search`] gives the work to threads, [`report`] prints the results. A simulation belongs to one thread of the
//! operating system, so several scenarios, or parts of one, are searched at a time.

mod checkpoint;
mod report;
mod search;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use farfield::mutants::{self, Mutant};
use farfield_check::timeline::Timeline;
use farfield_check::{Replay, Scenario, replay, timeline_of};

use crate::parts;
use crate::run::parse_seconds;

/// The default duration of a search.
const TIME: Duration = Duration::from_secs(20);

const HELP: &str = "\
A scenario is a small program on a few simulated nodes, with properties that must hold. It runs the compiled objects
that ship. The checker chooses the order of events: which thread runs next, when a store leaves its buffer, when a NIC
reads, writes and completes. Small scenarios are searched exhaustively, up to commuting steps. Larger ones, and those
that exceed their share of the time, are searched by random executions.

  farfield check                                  all scenarios, for 20 seconds
  farfield check barrier kv/ --seconds 600        those whose names contain `barrier` or `kv/`
  farfield check --executions 10000 --seed 7      the same executions every time, whatever the number of jobs
  farfield check --steps 1e11 --checkpoint night.json     a night's search; the same command continues it
  farfield check --replay 'barrier/visible#e:1=2' one execution again, event by event
  farfield check --replay '…' --timeline out.html drawn, as a page for a browser

A failure is printed as soon as it is found, with a line that replays its execution, and then again with fewer choices
that lead to the same kind of failure. A replay line is valid for the build that printed it.

Exit status:
  0    no failure
  1    a failure, or invalid arguments
  130  interrupted by Ctrl-C before a failure was found";

/// What `farfield check` takes.
#[derive(clap::Args)]
#[command(after_long_help = HELP, after_help = "Examples: --help")]
pub(crate) struct CheckArgs {
    /// Scenarios to search: names, or parts of names [default: all]
    #[arg(value_name = "SCENARIO")]
    names: Vec<String>,
    /// Number of executions of each scenario; the result does not depend on --jobs
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    executions: Option<u64>,
    /// Seconds for all scenarios together [default: 20, or until --executions or --steps are done]
    #[arg(long, value_name = "S", value_parser = parse_seconds)]
    seconds: Option<Duration>,
    /// Number of steps of all scenarios together, such as 1e11
    #[arg(long, value_name = "N", value_parser = parse_count, conflicts_with = "executions")]
    steps: Option<u64>,
    /// Save the state of the search in this file every half a minute and at the end, and continue from it if it exists
    #[arg(long, value_name = "FILE", conflicts_with = "executions")]
    checkpoint: Option<PathBuf>,
    /// The seed of the random executions
    #[arg(long, value_name = "K", default_value_t = 1)]
    seed: u64,
    /// Number of threads that search [default: one for each CPU]
    #[arg(long, value_name = "J", value_parser = clap::value_parser!(u16).range(1..=1024))]
    jobs: Option<u16>,
    /// Replay one execution from the line that came with a failure (or from the file after a `@`), and list its events
    #[arg(
        long,
        value_name = "LINE",
        conflicts_with_all = ["names", "executions", "seconds", "steps", "checkpoint", "seed", "jobs", "list", "json"],
    )]
    replay: Option<String>,
    /// Draw the replayed execution, or the first failure, as a web page
    #[arg(long, value_name = "OUT.html", conflicts_with = "list")]
    timeline: Option<PathBuf>,
    /// List the scenarios
    #[arg(long, conflicts_with_all = ["executions", "seconds", "steps", "checkpoint", "seed", "jobs", "json"])]
    list: bool,
    /// Append the report as a line of JSON to this file, or `-` for standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Seed a bug, to see that it is found. Replay lines do not contain it
    #[arg(long, hide = true, value_name = "NAME", value_parser = parts::mutant)]
    mutant: Option<Mutant>,
}

/// A number above 0, also as 1e11.
fn parse_count(text: &str) -> Result<u64, String> {
    match text.parse::<f64>() {
        Ok(number) if number >= 1.0 && number <= 2f64.powi(63) => Ok(number as u64),
        _ => Err("it must be a number from 1, such as 1e11".into()),
    }
}

/// Runs the command; an error is a mistake in it.
pub(crate) fn main(args: CheckArgs) -> Result<ExitCode> {
    let bug = args.mutant;
    mutants::enable(bug)?;
    if let Some(line) = &args.replay {
        return again(line, args.timeline.as_deref());
    }
    let scenarios = select(&args.names)?;
    if args.list {
        print(&report::list(&scenarios))?;
        return Ok(ExitCode::SUCCESS);
    }
    let cpus = || std::thread::available_parallelism().map_or(1, usize::from);
    let plan = search::Plan {
        executions: args.executions,
        time: args.seconds.or_else(|| args.executions.or(args.steps).is_none().then_some(TIME)),
        steps: args.steps,
        checkpoint: args.checkpoint,
        seed: args.seed,
        jobs: args.jobs.map_or_else(cpus, usize::from),
        timeline: args.timeline,
        quiet_stdout: args.json.as_deref() == Some(Path::new("-")),
    };
    let report = search::search(&scenarios, &plan, bug)?;
    report.publish(args.json.as_deref())?;
    Ok(match &report {
        report if report.failures > 0 => ExitCode::FAILURE,
        report if report.ended_early => ExitCode::from(130),
        _ => ExitCode::SUCCESS,
    })
}

/// The selected scenarios: those with a name, or whose names contain it.
fn select(names: &[String]) -> Result<Vec<Scenario>> {
    let all = parts::scenarios();
    let mut chosen = vec![names.is_empty(); all.len()];
    for name in names {
        let exact = all.iter().any(|scenario| scenario.name() == name);
        let matches =
            |scenario: &Scenario| if exact { scenario.name() == name } else { scenario.name().contains(name) };
        let before = chosen.clone();
        for (chosen, scenario) in chosen.iter_mut().zip(&all) {
            *chosen |= matches(scenario);
        }
        if before == chosen && !all.iter().any(matches) {
            bail!("no scenario's name contains `{name}`; there are\n{}", report::names(&all));
        }
    }
    Ok(all.into_iter().zip(chosen).filter_map(|(scenario, chosen)| chosen.then_some(scenario)).collect())
}

/// Runs one execution again, lists it, and draws it if asked to.
fn again(line: &str, timeline_at: Option<&Path>) -> Result<ExitCode> {
    let read = |path| std::fs::read_to_string(path).with_context(|| format!("reading the replay line from {path}"));
    let line: Replay = line.strip_prefix('@').map_or_else(|| Ok(line.to_string()), read)?.parse()?;
    let Some(scenario) = parts::scenarios().into_iter().find(|scenario| scenario.name() == line.scenario()) else {
        bail!("no scenario is called `{}`; there are\n{}", line.scenario(), report::names(&parts::scenarios()));
    };
    let outcome = replay(&scenario, &line);
    let timeline = timeline_of(&scenario, &line, &outcome);
    print(&timeline.to_text())?;
    let made = outcome.choices.iter().filter(|choice| choice.taken != 0).count();
    if made != line.len() {
        let message = format!(
            "{} of the line's {} choices could not be made: it belongs to another build",
            line.len() - made,
            line.len()
        );
        let _ = writeln!(io::stderr(), "farfield: {message}");
    }
    if let Some(path) = timeline_at {
        write_page(path, &timeline)?;
        print(&format!("The timeline is in {}\n", path.display()))?;
    }
    Ok(if outcome.failure.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn write_page(path: &Path, timeline: &Timeline) -> Result<()> {
    std::fs::write(path, timeline.to_html()).with_context(|| format!("writing the timeline to {}", path.display()))
}

/// Prints to standard output; a closed reader is no error.
fn print(text: &str) -> Result<()> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}
