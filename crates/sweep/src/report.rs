//! What became of the mistakes: the log, the table, and those that are known to change nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// What became of a mistake.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Fate {
    /// A scenario failed.
    Killed { scenario: String, executions: u64, failure: String, replay: String },
    /// No scenario failed in so many executions.
    Survived { executions: u64, scenarios: usize },
    /// No scenario reaches it.
    NotReached,
    /// An execution did not end: the code loops without a step of the simulation. Found, too.
    OutOfTime,
    /// The process died of it. Found, too.
    Crashed,
    /// It was not run, since `equivalent.txt` says why it changes nothing.
    Equivalent,
}

impl Fate {
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Fate::Killed { .. } => "killed",
            Fate::Survived { .. } => "survives",
            Fate::NotReached => "not reached",
            Fate::OutOfTime => "out of time",
            Fate::Crashed => "crashes",
            Fate::Equivalent => "equivalent",
        }
    }

    pub(crate) fn is_found(&self) -> bool {
        matches!(self, Fate::Killed { .. } | Fate::OutOfTime | Fate::Crashed)
    }
}

/// A line of the log.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) file: String,
    pub(crate) line: usize,
    pub(crate) kind: String,
    pub(crate) fate: Fate,
}

pub(crate) fn log_of(root: &Path) -> PathBuf {
    root.join("target/sweep/log.jsonl")
}

pub(crate) fn read_log(root: &Path) -> Result<Vec<Line>> {
    let Ok(text) = std::fs::read_to_string(log_of(root)) else { return Ok(Vec::new()) };
    // The last line is cut short if the run was.
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole.lines().map(serde_json::from_str).collect::<Result<_, _>>().context("reading the log")
}

/// The mistakes that change nothing, each with the reason: `NAME => REASON` in each line of `equivalent.txt`.
pub(crate) fn equivalents(root: &Path) -> Result<BTreeMap<String, String>> {
    let text = std::fs::read_to_string(root.join("crates/sweep/equivalent.txt")).unwrap_or_default();
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let (name, why) = line.rsplit_once(" => ").with_context(|| format!("a line without a reason: {line}"))?;
            Ok((name.to_string(), why.to_string()))
        })
        .collect()
}

/// A mistake that a scenario has found.
pub(crate) struct Found {
    pub(crate) scenario: String,
    /// Executions of all scenarios until then.
    pub(crate) executions: u64,
}

const FOUND: &str = "crates/sweep/found.txt";

/// The mistakes that were found by scenarios: `NAME => SCENARIO, EXECUTIONS` in each line of `found.txt`.
pub(crate) fn found(root: &Path) -> Result<BTreeMap<String, Found>> {
    let text = std::fs::read_to_string(root.join(FOUND)).with_context(|| format!("reading {FOUND}"))?;
    let line = |line: &str| {
        let (name, by) = line.rsplit_once(" => ")?;
        let (scenario, executions) = by.rsplit_once(", ")?;
        Some((name.to_string(), Found { scenario: scenario.to_string(), executions: executions.parse().ok()? }))
    };
    text.lines()
        .filter(|text| !text.starts_with('#'))
        .map(|text| line(text).with_context(|| format!("a line of {FOUND}: {text}")))
        .collect()
}

/// Writes which scenarios have found which mistakes: those of the log, and those that were written before and still
/// exist.
pub(crate) fn write_found(root: &Path) -> Result<()> {
    let sites: BTreeSet<String> = crate::tree::sites(root)?.into_iter().map(|site| site.name).collect();
    let mut all = found(root).unwrap_or_default();
    for line in read_log(root)? {
        match line.fate {
            Fate::Killed { scenario, executions, replay, .. } if !replay.is_empty() => {
                all.insert(line.name, Found { scenario, executions });
            }
            _ => _ = all.remove(&line.name),
        }
    }
    all.retain(|name, _| sites.contains(name));
    let mut text = String::from(
        "# Mistakes that scenarios find: NAME => SCENARIO, EXECUTIONS. `sweep report --write` writes it.\n",
    );
    for (name, Found { scenario, executions }) in &all {
        text.push_str(&format!("{name} => {scenario}, {executions}\n"));
    }
    std::fs::write(root.join(FOUND), text)?;
    Ok(())
}

/// Prints the table by file, and the survivors.
pub(crate) fn print(root: &Path) -> Result<()> {
    let (mut log, known) = (read_log(root)?, equivalents(root)?);
    // The code of some may have changed.
    let sites: BTreeSet<String> = crate::tree::sites(root)?.into_iter().map(|site| site.name).collect();
    log.retain(|line| sites.contains(&line.name));
    let mut rows: BTreeMap<&str, [usize; 5]> = BTreeMap::new();
    let (mut executions, mut by_scenario) = (Vec::new(), BTreeMap::<&str, usize>::new());
    for line in &log {
        let is_known = known.contains_key(&line.name);
        let column = match &line.fate {
            _ if !line.fate.is_found() && is_known => 3,
            Fate::Killed { scenario, executions: after, .. } => {
                executions.push(*after);
                *by_scenario.entry(scenario).or_default() += 1;
                1
            }
            Fate::OutOfTime | Fate::Crashed => 2,
            _ => 4,
        };
        let row = rows.entry(&line.file).or_default();
        row[0] += 1;
        row[column] += 1;
    }
    println!(
        "{:<52} {:>8} {:>6} {:>12} {:>10} {:>8}",
        "file", "mistakes", "killed", "loop or die", "equivalent", "survive"
    );
    let mut total = [0; 5];
    for (file, row) in &rows {
        let [all, killed, died, equivalent, survive] = row;
        println!("{file:<52} {all:>8} {killed:>6} {died:>12} {equivalent:>10} {survive:>8}");
        total.iter_mut().zip(row).for_each(|(sum, of_row)| *sum += of_row);
    }
    let [all, killed, died, equivalent, survive] = total;
    println!("{:<52} {all:>8} {killed:>6} {died:>12} {equivalent:>10} {survive:>8}", "");
    let found = 100.0 * (killed + died) as f64 / (all - equivalent).max(1) as f64;
    executions.sort_unstable();
    let at = |part: f64| executions.get((executions.len() as f64 * part) as usize).copied().unwrap_or_default();
    println!(
        "\n{found:.1} % of those that are not equivalent are found; half after {} executions, 95 % after {}",
        at(0.5),
        at(0.95)
    );
    for line in log.iter().filter(|line| !line.fate.is_found() && !known.contains_key(&line.name)) {
        println!(
            "{}:{}: {}: {}",
            line.file,
            line.line,
            line.fate.word(),
            line.name.split_once(" | ").map_or("", |name| name.1)
        );
    }
    Ok(())
}
