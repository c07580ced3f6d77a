//! The report: the faults of the nodes, and the verified properties.

use std::io::{self, Write};
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

use super::judge::Findings;
use super::judge::pace::Recovery;
use super::plan::Generation;
use crate::output::{append, grouped};

/// Violations that are printed; all are in the JSON.
const SHOWN: usize = 5;

/// Something that was done to a node.
#[derive(Serialize)]
pub(super) struct Injected {
    pub(super) generation: usize,
    /// Since the beginning of the generation's load.
    pub(super) at_ms: u64,
    pub(super) action: String,
    pub(super) node: u16,
}

#[derive(Serialize)]
pub(super) struct Report {
    pub(super) seed: u64,
    pub(super) nodes: usize,
    pub(super) seconds: f64,
    pub(super) plan: Vec<Generation>,
    /// The command line that does the same again.
    pub(super) again: String,
    /// Generations that were judged.
    pub(super) generations: usize,
    pub(super) injected: Vec<Injected>,
    pub(super) operations: u64,
    #[serde(flatten)]
    pub(super) findings: Findings,
    pub(super) recoveries: Vec<Recovery>,
}

impl Report {
    pub(super) fn is_right(&self) -> bool {
        self.findings.violations.is_empty()
    }

    /// Prints it, or appends it as a line of JSON to a file; `-` is the standard output.
    pub(super) fn publish(&self, json: Option<&Path>) -> Result<()> {
        let text = match json {
            None => self.text(),
            Some(path) => {
                let line = format!("{}\n", serde_json::to_string(self).context("writing the report")?);
                if path != Path::new("-") {
                    append(path, &line)?;
                    self.text()
                } else {
                    line
                }
            }
        };
        let mut out = io::stdout().lock();
        Ok(out.write_all(text.as_bytes()).and_then(|()| out.flush())?)
    }

    fn text(&self) -> String {
        let mut lines = vec![format!("{:<12}{:>10}  {:<10}{}", "generation", "at", "injected", "node")];
        for Injected { generation, at_ms, action, node } in &self.injected {
            let at = format!("{:.2} s", *at_ms as f64 / 1000.0);
            lines.push(format!("{generation:<12}{at:>10}  {action:<10}{node}"));
        }
        lines.push(format!("\n{:<32}{:>12}", "verified", "times"));
        lines.push(format!("{:<32}{:>12}", "calls", grouped(self.operations)));
        for (what, times) in &self.findings.verified {
            lines.push(format!("{what:<32}{:>12}", grouped(*times)));
        }
        for (variant, times) in &self.findings.errors {
            lines.push(format!("{:<32}{:>12}", format!("errors: {variant}"), grouped(*times)));
        }
        lines.extend(recoveries_text(&self.recoveries));
        let violations = &self.findings.violations;
        for violation in violations.iter().take(SHOWN) {
            lines.push(format!("\nviolation: {violation}"));
        }
        lines.push(match violations.len() {
            0 => format!("\nno violation in {} generations, seed {}", self.generations, self.seed),
            many => format!("\n{many} violations, seed {}; the same plan again:\n  {}", self.seed, self.again),
        });
        lines.push(String::new());
        lines.join("\n")
    }
}

/// What became of the pace after each death, and of all deaths: the median and the worst.
fn recoveries_text(recoveries: &[Recovery]) -> Vec<String> {
    if recoveries.is_empty() {
        return Vec::new();
    }
    let after = |took: Option<u64>| took.map_or("never".into(), |ms| format!("{ms} ms"));
    let row = |cells: [String; 5]| {
        let [death, before, again, least, took] = cells;
        format!("{death:<10}{before:>14}{again:>16}  {least:<18}{took}")
    };
    let title = ["death of", "before, per s", "a second later", "least load", "half of it after"];
    let mut lines = vec![String::new(), row(title.map(Into::into))];
    for recovery in recoveries {
        let least = recovery.percent_by_load.iter().min_by_key(|it| it.1);
        let least = least.map_or(String::new(), |(load, percent)| format!("{load} {percent} %"));
        let from = recovery.stopped_ms.map_or(String::new(), |ms| format!(", since a stop's end {ms} ms later"));
        lines.push(row([
            format!("node {}", recovery.node),
            grouped(recovery.before_per_s),
            format!("{} %", recovery.percent),
            least,
            after(recovery.took_ms) + &from,
        ]));
    }
    let mut percents: Vec<u64> = recoveries.iter().map(|it| it.percent).collect();
    percents.sort_unstable_by(|one, other| other.cmp(one));
    let mut leasts: Vec<u64> = recoveries.iter().filter_map(|it| it.percent_by_load.values().min().copied()).collect();
    leasts.sort_unstable_by(|one, other| other.cmp(one));
    // Never is later than any time.
    let mut times: Vec<u64> = recoveries.iter().map(|it| it.took_ms.unwrap_or(u64::MAX)).collect();
    times.sort_unstable();
    let time = |ms: u64| after((ms != u64::MAX).then_some(ms));
    let percent = |of: &[u64], at: usize| of.get(at).map_or(String::new(), |percent| format!("{percent} %"));
    let (middle, last) = (times.len() / 2, times.len() - 1);
    for (name, at, least) in [("median", middle, leasts.len() / 2), ("worst", last, leasts.len().saturating_sub(1))] {
        let (again, least) = (percent(&percents, at), percent(&leasts, least));
        lines.push(row([name.into(), String::new(), again, least, time(times[at])]));
    }
    lines
}
