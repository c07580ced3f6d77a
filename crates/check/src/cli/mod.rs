//! The command line of the model checker: searches the executions of scenarios on simulated sessions for one that
//! fails, and shows one again. `farfield check` is this with Farfield's scenarios; [`main`] with those of another
//! crate.
//!
//! `search` gives the work to threads, `report` prints the results. A simulation belongs to one thread of the
//! operating system, so several scenarios, or parts of one, are searched at a time.

mod checkpoint;
pub mod exit;
pub mod output;
mod plan;
mod report;
mod search;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, Command, FromArgMatches};
use farfield_core::mutants::{self, Mutant};

use self::exit::{OrUsage, usage};
use self::output::parse_seconds;
use crate::timeline::Timeline;
use crate::{Replay, Scenario, replay, timeline_of};

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
  farfield check --exhaustive kv/                 all executions of those that are small or of medium size
  farfield check --steps 1e11 --checkpoint night.json     a night's search; the same command continues it
  farfield check --replay 'barrier/visible#e:1=2' one execution again, event by event
  farfield check --replay '…' --timeline out.html drawn, as a page for a browser

A failure is printed as soon as it is found, with a line that replays its execution, and then again with fewer choices
that lead to the same kind of failure. A replay line is valid for the build that printed it; if its choices do not fit
the execution, and nothing fails, that is an error.

Exit status:
  0    no failure
  1    a failure; or the search could not be carried out
  2    wrong usage, such as an unknown scenario, or a replay line of another build
  130  interrupted by Ctrl-C before a failure was found; 128 + n: ended by signal n
  141  the reader of the output has closed it, and no failure was found";

/// What is said with an unknown scenario, or a choice that does not fit.
const OTHER_BUILD: &str = "the line is of another build or program";

/// The scenarios and mutants of a program with the command line of `farfield check`. [`main`] is the short form for
/// scenarios alone.
///
/// ```no_run
/// # mod mailbox {
/// #     pub fn scenarios() -> Vec<farfield_check::Scenario> { Vec::new() }
/// #     pub mod mutants { pub const ALL: &[farfield::mutants::Mutant] = &[]; }
/// # }
/// fn main() -> std::process::ExitCode {
///     farfield_check::Program::new(mailbox::scenarios()).mutants(mailbox::mutants::ALL).main()
/// }
/// ```
#[derive(Default)]
pub struct Program {
    scenarios: Vec<Scenario>,
    mutants: Vec<Mutant>,
}

/// The command line of `farfield check` for the scenarios of an object of your own, as the `main` of a program: it
/// searches, replays, draws and lists. `--help` has the options and the exit status.
///
/// ```no_run
/// use farfield_check::{Scenario, choose};
///
/// fn scenarios() -> Vec<Scenario> {
///     vec![Scenario::new("dice/below-six", "a die has no seven", 1, |cluster| {
///         cluster.thread(0, "throws", |_| Ok(assert!(choose(6) < 6)));
///         Ok(())
///     })]
/// }
///
/// fn main() -> std::process::ExitCode {
///     farfield_check::main(scenarios())
/// }
/// ```
pub fn main(scenarios: impl IntoIterator<Item = Scenario>) -> ExitCode {
    Program::new(scenarios).main()
}

impl Program {
    /// A program with these scenarios.
    ///
    /// ```
    /// # let scenario = farfield_check::Scenario::new("doc/empty", "nothing happens", 1, |_| Ok(()));
    /// let program = farfield_check::Program::new([scenario]);
    /// ```
    pub fn new(scenarios: impl IntoIterator<Item = Scenario>) -> Program {
        Program { scenarios: scenarios.into_iter().collect(), mutants: Vec::new() }
    }

    /// Adds seeded bugs, for `--mutant NAME`. A build without mutants refuses the option (see
    /// [`enable`](farfield_core::mutants::enable)).
    ///
    /// ```
    /// use farfield::mutants::vars;
    /// let program = farfield_check::Program::new([]).mutants(vars::ALL);
    /// ```
    #[must_use]
    pub fn mutants(mut self, mutants: &[Mutant]) -> Program {
        self.mutants.extend(mutants);
        self
    }

    /// Reads the arguments of this process, and runs the command.
    ///
    /// ```no_run
    /// farfield_check::Program::new([]).main();
    /// ```
    pub fn main(self) -> ExitCode {
        let name = output::program();
        let command = self.command(&name);
        let args = CheckArgs::from_arg_matches(&command.get_matches()).unwrap_or_else(|error| error.exit());
        exit::end(&name, exit::unless_unread(self.run(args, &name)))
    }

    fn command(&self, name: &str) -> Command {
        CheckArgs::augment_args(Command::new(name.to_owned()))
            .about("Model-check the objects of this program: search simulated executions for a failure, or replay one")
            .after_long_help(HELP.replace("farfield check", name))
            .mut_arg("mutant", |mutant| mutant.hide(self.mutants.is_empty()))
    }

    /// Runs the command. `again` is the command line to which a user can add `--replay`.
    #[doc(hidden)]
    pub fn run(&self, args: CheckArgs, again: &str) -> Result<ExitCode> {
        let bug = args.mutant.as_deref().map(|name| self.mutant(name)).transpose()?;
        mutants::enable(bug).or_usage()?;
        if let Some(line) = &args.replay {
            return self.again(line, args.timeline.as_deref());
        }
        let scenarios = self.select(&args.names, args.exhaustive)?;
        if args.list {
            print(&report::list(&scenarios))?;
            return Ok(ExitCode::SUCCESS);
        }
        let cpus = || std::thread::available_parallelism().map_or(1, usize::from);
        let is_endless = args.executions.or(args.steps).is_none() && !args.exhaustive;
        let plan = plan::Plan {
            executions: args.executions,
            time: args.seconds.or_else(|| is_endless.then_some(TIME)),
            steps: args.steps,
            exhaustive: args.exhaustive,
            checkpoint: args.checkpoint.clone(),
            seed: args.seed,
            jobs: args.jobs.map_or_else(cpus, usize::from),
            timeline: args.timeline,
            quiet_stdout: args.json.as_deref() == Some(Path::new("-")),
            is_kept: args.json.as_deref().is_some_and(|path| path != Path::new("-")) || args.checkpoint.is_some(),
            // The same bug is seeded again.
            again: args.mutant.map_or_else(|| again.into(), |name| format!("{again} --mutant {name}")),
        };
        let (report, interrupted) = search::search(&scenarios, &plan, bug)?;
        let published = report.publish(args.json.as_deref());
        if report.failures > 0 && published.as_ref().is_err_and(exit::is_unread) {
            return Ok(ExitCode::from(exit::FAILED));
        }
        published?;
        Ok(ExitCode::from(match interrupted {
            _ if report.failures > 0 => exit::FAILED,
            Some(interrupted) => interrupted.status(),
            None => 0,
        }))
    }

    fn mutant(&self, name: &str) -> Result<Mutant> {
        let found = self.mutants.iter().find(|mutant| mutant.name() == name).copied();
        let names = || self.mutants.iter().map(|mutant| mutant.name()).collect::<Vec<_>>().join(", ");
        found.ok_or_else(|| usage(format!("--mutant {name}: there is none of this name, but {}", names())))
    }

    /// The selected scenarios: for each name the one with it, or else those with it in their names; only such that can
    /// be searched exhaustively, if that is wanted.
    fn select(&self, names: &[String], exhaustive: bool) -> Result<Vec<Scenario>> {
        let all = &self.scenarios;
        let mut chosen = vec![names.is_empty(); all.len()];
        for name in names {
            let exact = all.iter().any(|scenario| scenario.name() == name);
            let matches =
                |scenario: &Scenario| if exact { scenario.name() == name } else { scenario.name().contains(name) };
            let before = chosen.clone();
            for (chosen, scenario) in chosen.iter_mut().zip(all) {
                *chosen |= matches(scenario);
            }
            if before == chosen && !all.iter().any(matches) {
                let there = report::names(all);
                return Err(usage(format!("no scenario's name contains `{name}`; there are\n{there}")));
            }
        }
        let fits = |scenario: &Scenario| !exhaustive || scenario.is_small() || scenario.is_medium();
        let chosen = all.iter().zip(chosen).filter(|(scenario, chosen)| *chosen && fits(scenario));
        let chosen: Vec<Scenario> = chosen.map(|(scenario, _)| scenario.clone()).collect();
        if chosen.is_empty() && exhaustive {
            return Err(usage("--exhaustive: none of these scenarios is small or of medium size (see --list)"));
        }
        Ok(chosen)
    }

    /// Runs one execution again, lists it, and draws it if asked to.
    fn again(&self, line: &str, timeline_at: Option<&Path>) -> Result<ExitCode> {
        let read = |path| std::fs::read_to_string(path).with_context(|| format!("reading the replay line from {path}"));
        let line = line.strip_prefix('@').map_or_else(|| Ok(line.to_string()), read).or_usage()?;
        let line: Replay = line.parse().or_usage()?;
        let Some(scenario) = self.scenarios.iter().find(|scenario| scenario.name() == line.scenario()) else {
            let there = report::names(&self.scenarios);
            let name = line.scenario();
            return Err(usage(format!("no scenario is called `{name}`: {OTHER_BUILD}; there are\n{there}")));
        };
        let outcome = replay(scenario, &line);
        let misfit = line.fits(&outcome).err();
        if let (Some(why), None) = (&misfit, &outcome.failure) {
            let why = format!("{why}; the execution that it leads to here is another one, in which nothing fails");
            return Err(usage(why));
        }
        let timeline = timeline_of(scenario, &line, &outcome);
        if let Some(path) = timeline_at {
            write_page(path, &timeline)?;
        }
        let mut text = timeline.to_text();
        if let Some(path) = timeline_at {
            text += &format!("The timeline is in {}\n", path.display());
        }
        match print(&text) {
            // A failure is the result, whether anyone reads it or not.
            Err(error) if outcome.failure.is_some() && exit::is_unread(&error) => {}
            printed => printed?,
        }
        if let Some(why) = misfit {
            let _ = writeln!(io::stderr(), "This execution fails, but {why}");
        }
        Ok(ExitCode::from(if outcome.failure.is_some() { exit::FAILED } else { 0 }))
    }
}

/// What `farfield check` takes.
#[doc(hidden)]
#[derive(Args)]
#[command(after_long_help = HELP, after_help = "Examples: --help")]
pub struct CheckArgs {
    /// Scenarios to search: names, or parts of names [default: all]
    #[arg(value_name = "SCENARIO")]
    names: Vec<String>,
    /// Number of executions of each scenario; the result does not depend on --jobs
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    executions: Option<u64>,
    /// Seconds for all scenarios together [default: 20, or until --executions, --steps or --exhaustive is done]
    #[arg(long, value_name = "S", value_parser = parse_seconds)]
    seconds: Option<Duration>,
    /// Number of steps of all scenarios together, such as 1e11
    #[arg(long, value_name = "N", value_parser = parse_count, conflicts_with = "executions")]
    steps: Option<u64>,
    /// All executions of the scenarios that are small or of medium size (see --list), however long it takes, up to
    /// --seconds; and no random executions
    #[arg(long, conflicts_with_all = ["executions", "steps", "checkpoint"])]
    exhaustive: bool,
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
        conflicts_with_all = ["names", "executions", "seconds", "steps", "checkpoint", "seed", "jobs", "list", "json",
            "exhaustive"],
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
    /// Seed a bug, to see that it is found. Replay lines do not contain it; the commands that are printed with them do
    #[arg(long, hide = true, value_name = "NAME")]
    mutant: Option<String>,
}

/// A number above 0, also as 1e11.
fn parse_count(text: &str) -> Result<u64, String> {
    match text.parse::<f64>() {
        Ok(number) if number >= 1.0 && number <= 2f64.powi(63) => Ok(number as u64),
        _ => Err("it must be a number from 1, such as 1e11".into()),
    }
}

fn write_page(path: &Path, timeline: &Timeline) -> Result<()> {
    std::fs::write(path, timeline.to_html()).with_context(|| format!("writing the timeline to {}", path.display()))
}

/// Prints to standard output.
fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    // The last line may have no end.
    Ok(out.write_all(text.as_bytes()).and_then(|()| out.flush())?)
}
