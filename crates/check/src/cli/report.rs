//! The results of a search: a table for people, a line of JSON for programs.

use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::output::{append, grouped};
use crate::timeline::Timeline;
use crate::{Finding, Scenario};

/// Longer replay lines are put in a file.
const LINE_MAX: usize = 4000;

/// The results of a scenario.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Tally {
    scenario: String,
    nodes: usize,
    /// Executions, exhaustive and random.
    pub(super) executions: u64,
    /// Different states at which there was a choice, of an exhaustive search.
    states: u64,
    /// Whether all executions were seen, up to the order of steps that commute.
    #[serde(rename = "complete")]
    pub(super) is_complete: bool,
    /// Steps of threads and of the machine.
    pub(super) steps: u64,
    /// A digest of all choices that were made: the same for the same seed and as many executions, in every build.
    trace: u64,
    /// Time spent by all threads of the search together.
    seconds: f64,
    #[serde(rename = "failure")]
    pub(super) failing: Option<Failing>,
}

/// A failure.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Failing {
    /// Panic, Invariant, Deadlock or TooLong.
    kind: String,
    message: String,
    /// The execution in which it was found, from 1.
    execution: u64,
    /// The faults that were drawn for it from the seed.
    drawn: Option<String>,
    replay: String,
    choices: usize,
    shrunk: Option<Shrunk>,
}

/// The same with fewer choices.
#[derive(Clone, Serialize, Deserialize)]
struct Shrunk {
    message: String,
    /// The failing thread: "reader on n2".
    by: Option<String>,
    replay: String,
    choices: usize,
}

impl Tally {
    pub(super) fn new(scenario: &Scenario) -> Tally {
        Tally {
            scenario: scenario.name().into(),
            nodes: scenario.nodes(),
            executions: 0,
            states: 0,
            is_complete: false,
            steps: 0,
            trace: 0,
            seconds: 0.0,
            failing: None,
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.scenario
    }

    pub(super) fn add(&mut self, report: &crate::Report) {
        self.executions += report.executions;
        self.states = self.states.max(report.states);
        self.is_complete |= report.is_complete;
        self.steps += report.steps;
        // Batches end in any order.
        self.trace = self.trace.wrapping_add(report.trace);
        self.seconds += report.elapsed.as_secs_f64();
    }

    /// Whether nothing more is to be seen.
    pub(super) fn is_over(&self) -> bool {
        self.is_complete || self.failing.is_some()
    }

    fn result(&self) -> &'static str {
        match self.failing {
            Some(_) => "FAILS",
            None if self.executions == 0 => "not searched",
            None => "ok",
        }
    }
}

impl Failing {
    pub(super) fn new(finding: &Finding, execution: u64) -> Failing {
        Failing {
            kind: format!("{:?}", finding.failure.kind),
            message: finding.failure.message.clone(),
            execution,
            drawn: finding.drawn.clone(),
            replay: finding.replay.to_string(),
            choices: finding.replay.len(),
            shrunk: None,
        }
    }

    pub(super) fn shrink(&mut self, finding: &Finding, timeline: &Timeline) {
        self.shrunk = Some(Shrunk {
            message: finding.failure.message.clone(),
            by: timeline.failing_thread(),
            replay: finding.replay.to_string(),
            choices: finding.replay.len(),
        });
    }

    /// The first report of a failure.
    pub(super) fn found(&self, scenario: &str, again: &str) -> String {
        let execution = grouped(self.execution);
        let message = indented(&self.message);
        let drawn = self.drawn.as_ref().map_or(String::new(), |drawn| format!("  drawn for it: {drawn}\n"));
        format!(
            "{}\n{drawn}  {scenario} fails in execution {execution}: {message}\n",
            command(again, scenario, "found", &self.replay)
        )
    }

    /// The report of the shrunk failure.
    pub(super) fn told(&self, scenario: &str, again: &str, hint: bool) -> String {
        let Some(shrunk) = &self.shrunk else { return String::new() };
        let hint = if hint { "  To see it drawn, add --timeline FILE.html\n" } else { "" };
        let by = shrunk.by.as_ref().map_or(String::new(), |by| format!("{by}: "));
        format!(
            "{}\n  {scenario}, shrunk from {} to {} choice{}: {by}{}\n{hint}",
            command(again, scenario, "shrunk", &shrunk.replay),
            self.choices,
            shrunk.choices,
            s(shrunk.choices as u64),
            indented(&shrunk.message)
        )
    }
}

/// The command that replays a line. A line too long for a terminal is written to a file, if that is possible.
fn command(again: &str, scenario: &str, stage: &str, line: &str) -> String {
    let name = format!("farfield-{}-{}-{stage}.replay", std::process::id(), scenario.replace('/', "-"));
    let path = std::env::temp_dir().join(name);
    if line.len() > LINE_MAX && std::fs::write(&path, line).is_ok() {
        return format!("{again} --replay @{}", path.display());
    }
    format!("{again} --replay '{line}'")
}

fn s(count: u64) -> &'static str {
    if count == 1 { "" } else { "s" }
}

/// The lines after the first, indented.
fn indented(text: &str) -> String {
    text.trim_end().replace('\n', "\n    ")
}

/// A whole search.
#[derive(Serialize)]
pub(super) struct Report {
    farfield: &'static str,
    seed: u64,
    jobs: usize,
    seconds: f64,
    executions: u64,
    states: u64,
    steps: u64,
    steps_per_s_per_core: f64,
    ended_early: bool,
    pub(super) failures: usize,
    scenarios: Vec<Tally>,
}

impl Report {
    pub(super) fn new(
        scenarios: Vec<Tally>,
        (seed, jobs): (u64, usize),
        elapsed: Duration,
        ended_early: bool,
    ) -> Report {
        let sum = |field: fn(&Tally) -> u64| scenarios.iter().map(field).sum::<u64>();
        let steps = sum(|tally| tally.steps);
        let seconds = scenarios.iter().map(|tally| tally.seconds).sum::<f64>();
        Report {
            farfield: env!("CARGO_PKG_VERSION"),
            seed,
            jobs,
            seconds: elapsed.as_secs_f64(),
            executions: sum(|tally| tally.executions),
            states: sum(|tally| tally.states),
            steps,
            steps_per_s_per_core: if seconds > 0.0 { steps as f64 / seconds } else { 0.0 },
            ended_early,
            failures: scenarios.iter().filter(|tally| tally.failing.is_some()).count(),
            scenarios,
        }
    }

    /// Prints the table, and appends the line of JSON to the file `json` if one is named. `-` names standard output,
    /// which then gets only the line; the table is printed to standard error.
    pub(super) fn publish(&self, json: Option<&Path>) -> Result<()> {
        let line = serde_json::to_string(self).context("writing the report as JSON")? + "\n";
        match json {
            None => super::print(&self.table()),
            Some(path) if path == Path::new("-") => {
                io::stderr().lock().write_all(self.table().as_bytes()).context("writing the report")?;
                super::print(&line)
            }
            Some(path) => {
                append(path, &line)?;
                super::print(&self.table())
            }
        }
    }

    fn table(&self) -> String {
        let head = ["scenario", "executions", "states", "complete", "steps", "M steps/s", "result"].map(String::from);
        let rows = self.scenarios.iter().map(|tally| {
            [
                tally.scenario.clone(),
                grouped(tally.executions),
                if tally.states > 0 { grouped(tally.states) } else { "-".into() },
                (if tally.is_complete { "yes" } else { "-" }).into(),
                grouped(tally.steps),
                if tally.seconds > 0.0 {
                    format!("{:.2}", tally.steps as f64 / tally.seconds / 1e6)
                } else {
                    "-".into()
                },
                tally.result().into(),
            ]
        });
        let mut text = columns(&std::iter::once(head).chain(rows).collect::<Vec<_>>(), &[1, 2, 4, 5]);
        let outcome = match self.failures {
            0 => "no failure".into(),
            count => format!("{count} failure{}", s(count as u64)),
        };
        text += &format!(
            "{} scenario{}, {} execution{}, {} distinct states, {} steps ({:.2} M steps/s per core){}: {outcome}\n",
            self.scenarios.len(),
            s(self.scenarios.len() as u64),
            grouped(self.executions),
            s(self.executions),
            grouped(self.states),
            grouped(self.steps),
            self.steps_per_s_per_core / 1e6,
            if self.ended_early { ", ended early" } else { "" },
        );
        text
    }
}

/// The scenarios, one a line.
pub(super) fn list(scenarios: &[Scenario]) -> String {
    let head = ["scenario", "nodes", "size", "about"].map(String::from);
    let rows = scenarios.iter().map(|scenario| {
        let size = match (scenario.is_small(), scenario.is_medium()) {
            (true, _) => "small",
            (_, true) => "medium",
            _ => "-",
        };
        [scenario.name().into(), scenario.nodes().to_string(), size.into(), scenario.about().into()]
    });
    columns(&std::iter::once(head).chain(rows).collect::<Vec<_>>(), &[1])
}

/// The choices of random executions before they begin, drawn from the seed, for the scenarios with faults.
pub(super) fn faults(scenarios: &[Scenario], seed: u64) -> String {
    let mut groups: Vec<(String, u32, Vec<&str>)> = Vec::new();
    for scenario in scenarios {
        let Some(faults) = scenario.injected() else { continue };
        let (told, count) = (faults.to_string(), faults.count());
        match groups.iter_mut().find(|group| group.0 == told) {
            Some(group) => group.2.push(scenario.name()),
            None => groups.push((told, count, vec![scenario.name()])),
        }
    }
    if groups.is_empty() {
        return String::new();
    }
    let head = ["faults", "of at most", "in"].map(String::from);
    let rows = groups.into_iter().map(|(told, count, names)| {
        let more = names.len().saturating_sub(3);
        let shown = names[..names.len() - more].join(", ");
        let names = if more > 0 { format!("{shown} and {more} more") } else { shown };
        [format!("0 to {count}"), told, names]
    });
    let table = columns(&std::iter::once(head).chain(rows).collect::<Vec<_>>(), &[]);
    format!(
        "Each random execution draws from seed {seed} how many faults it has, and when they begin and end:\n{table}\n"
    )
}

/// The names of the scenarios, a line for each object.
pub(super) fn names(scenarios: &[Scenario]) -> String {
    let mut lines: Vec<(&str, String)> = Vec::new();
    for scenario in scenarios {
        let (object, property) = scenario.name().split_once('/').unwrap_or((scenario.name(), ""));
        match lines.iter_mut().find(|(other, _)| *other == object) {
            Some((_, line)) => *line += &format!(", {property}"),
            None => lines.push((object, format!("  {object}/  {property}"))),
        }
    }
    lines.into_iter().map(|(_, line)| line).collect::<Vec<_>>().join("\n")
}

/// A table with columns as wide as their contents; those in `numbers` are aligned to the right.
fn columns<const N: usize>(rows: &[[String; N]], numbers: &[usize]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().enumerate().map(|(column, cell)| match widths[column] {
            width if numbers.contains(&column) => format!("{cell:>width$}"),
            width => format!("{cell:<width$}"),
        });
        text += cells.collect::<Vec<_>>().join("  ").trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_they_need_be() {
        let rows = [["name", "n", "x"], ["a", "10", ""]].map(|row| row.map(String::from));
        assert_eq!(columns(&rows, &[1]), "name   n  x\na     10\n");
    }
}
