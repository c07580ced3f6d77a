//! `farfield litmus --table`: each model's verdict on each test, and how often each fabric has shown it.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Write};
use std::path::Path;

use anyhow::{Context, Result};
use farfield_check::cli::exit::OrUsage;
use indicatif::ProgressBar;
use mowgli::enumerate::{Detail, Outcomes, consistent};
use mowgli::litmus::{Quantifier, Test};
use mowgli::model::Models;
use serde_json::json;

use super::run::{Ask, On, Ran};
use crate::output;

/// The columns of the built-in models, from the bottom up; others follow.
const ORDER: [&str; 10] = ["x86tso", "rdma", "rdmawait", "rdmatso", "rdmarmw", "msw", "sv", "bal", "balp", "rbl"];

const LEGEND: &str = "\
allow, forbid   whether the model allows what the test asks for;  of `forall` tests: holds, or fails in some execution
*               a model of the test itself;  ?  too many executions to look at;  -  the test makes no sense there
SEEN/OF         how often the fabric has shown what the test asks for;  :shipped  by calls on the objects that ship
!               an outcome that the models forbid was seen;  ~  they allow what the test asks for, and it was \
never seen";

/// A model's verdict on a test.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    Allow,
    Forbid,
    Holds,
    Fails,
    TooLarge,
}

impl Verdict {
    fn of(quantifier: Quantifier, outcomes: &Outcomes) -> Verdict {
        match quantifier {
            Quantifier::Forall if outcomes.negative == 0 => Verdict::Holds,
            Quantifier::Forall => Verdict::Fails,
            Quantifier::Exists | Quantifier::NotExists if outcomes.positive > 0 => Verdict::Allow,
            Quantifier::Exists | Quantifier::NotExists => Verdict::Forbid,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Verdict::Allow => "allow",
            Verdict::Forbid => "forbid",
            Verdict::Holds => "holds",
            Verdict::Fails => "fails",
            Verdict::TooLarge => "?",
        }
    }
}

/// The observations of a test on a fabric.
#[derive(Clone, Debug)]
enum Shown {
    NotRun,
    Ran { times: String, is_forbidden: bool, is_unseen: bool },
}

/// A fabric, and whether calls are made on the objects that ship.
type Column = (On, bool);

/// All that tests may be run on.
fn columns(ask: &Ask) -> Vec<Column> {
    ask.on.iter().flat_map(|on| [(*on, false), (*on, true)]).collect()
}

fn name_of((on, is_shipped): Column) -> String {
    format!("{}{}", on.name(), if is_shipped { ":shipped" } else { "" })
}

/// A test.
struct Row {
    name: String,
    asks: Quantifier,
    verdicts: BTreeMap<String, Verdict>,
    own: Vec<String>,
    /// On the columns of fabrics, see [`columns`].
    shown: Vec<Shown>,
    /// Its JSON, for each requested column.
    runs: Vec<(Column, serde_json::Value)>,
    /// The verdict is not that of the test.
    is_wrong: bool,
}

/// Prints the table of some tests. Returns whether each has its expected verdict, and no forbidden outcome was seen.
pub(super) fn main(
    files: &[(String, String)],
    models: &Models,
    ask: &Ask,
    json: Option<&Path>,
    out: &mut impl Write,
) -> Result<bool> {
    let bar = output::counting("tests", files.len() as u64);
    let mut rows = Vec::new();
    for (file, text) in files {
        let row = Row::of(file, text, models, ask).with_context(|| file.clone())?;
        output::json(json, out, &row.json())?;
        rows.push(row);
        bar.inc(1);
    }
    bar.finish_and_clear();
    if !output::is_stdout(json) {
        let is_coloured = io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|no| no.is_empty());
        print(&rows, ask, is_coloured, out)?;
    }
    Ok(rows.iter().all(Row::is_right))
}

impl Row {
    fn of(file: &str, text: &str, models: &Models, ask: &Ask) -> Result<Row> {
        let test = Test::parse(file, text, models).or_usage()?;
        let own: Vec<String> = test.libraries().map(str::to_owned).collect();
        let outcomes = consistent(&test, Detail::Executions)?;
        let mut verdicts = BTreeMap::new();
        for model in models.names() {
            // In the place of the first of its libraries that it can take.
            let others = || own.iter().filter_map(|name| models.with(name, model));
            let verdict = if own.iter().any(|name| name == model) {
                Some(Verdict::of(test.quantifier, &outcomes))
            } else {
                others().find_map(|models| Test::parse(file, text, &models).ok()).map(|test| {
                    consistent(&test, Detail::Shown)
                        .map_or(Verdict::TooLarge, |outcomes| Verdict::of(test.quantifier, &outcomes))
                })
            };
            verdicts.extend(verdict.map(|verdict| (model.to_owned(), verdict)));
        }
        let (mut shown, mut runs) = (Vec::new(), Vec::new());
        let ways = if ask.on.is_empty() { Vec::new() } else { ask.ways(file, text, models)? };
        for column in columns(ask) {
            let Some(way) = ways.iter().find(|way| way.is_shipped == column.1) else {
                shown.push(Shown::NotRun);
                continue;
            };
            match &way.prepared {
                Ok(prepared) => {
                    let ran = Ran::of(prepared, column.0, ask, &ProgressBar::hidden())
                        .with_context(|| format!("on {}", name_of(column)))?;
                    runs.push((column, ran.json()));
                    shown.push(Shown::of(&ran, test.quantifier));
                }
                Err(why) => {
                    let not_run = json!({ "fabric": column.0.name(), "shipped": column.1, "not_run": why.to_string() });
                    runs.push((column, not_run));
                    shown.push(Shown::NotRun);
                }
            }
        }
        let is_wrong = !outcomes.is_ok(test.quantifier);
        Ok(Row { name: test.name.clone(), asks: test.quantifier, verdicts, own, shown, runs, is_wrong })
    }

    fn is_right(&self) -> bool {
        let is_forbidden = |shown: &Shown| matches!(shown, Shown::Ran { is_forbidden: true, .. });
        !self.is_wrong && !self.shown.iter().any(is_forbidden)
    }

    fn json(&self) -> serde_json::Value {
        let verdicts = self.verdicts.iter().map(|(model, verdict)| (model.clone(), json!(verdict.name())));
        let runs = self.runs.iter().map(|(column, ran)| (name_of(*column), ran.clone()));
        json!({
            "test": self.name,
            "asks": self.asks.to_string(),
            "own": self.own,
            "ok": !self.is_wrong,
            "models": verdicts.collect::<serde_json::Map<_, _>>(),
            "runs": runs.collect::<serde_json::Map<_, _>>(),
        })
    }
}

impl Shown {
    fn of(ran: &Ran<'_>, quantifier: Quantifier) -> Shown {
        let positive = ran.answers().map(|answers| answers.0);
        let times = positive.map_or("?".to_owned(), |positive| positive.to_string());
        Shown::Ran {
            times: format!("{times}/{}", ran.counts.iterations),
            is_forbidden: ran.forbidden().next().is_some(),
            is_unseen: quantifier != Quantifier::Forall && positive == Some(0) && ran.may_hold(),
        }
    }
}

/// How a cell is drawn on a terminal.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tone {
    Plain,
    Quiet,
    Alarm,
}

fn print(rows: &[Row], ask: &Ask, is_coloured: bool, out: &mut impl Write) -> Result<()> {
    let mut models: Vec<&String> = Vec::new();
    for row in rows {
        models.extend(row.verdicts.keys());
    }
    models.sort_by_key(|name| (ORDER.iter().position(|known| *known == name.as_str()).unwrap_or(ORDER.len()), *name));
    models.dedup();
    // Those on which a test was run.
    let columns = columns(ask).into_iter().enumerate();
    let has_run = |at: usize| rows.iter().any(|row| matches!(row.shown[at], Shown::Ran { .. }));
    let columns: Vec<(usize, Column)> = columns.filter(|(at, column)| !column.1 || has_run(*at)).collect();
    let plain = |text: &str| (text.to_owned(), Tone::Plain);
    let mut lines = vec![vec![plain("test"), plain("asks")]];
    lines[0].extend(
        models.iter().map(|name| plain(name)).chain(columns.iter().map(|(_, column)| plain(&name_of(*column)))),
    );
    for row in rows {
        let mut line = vec![plain(&row.name), plain(&row.asks.to_string())];
        line.extend(models.iter().map(|model| match row.verdicts.get(*model) {
            None => ("-".to_owned(), Tone::Quiet),
            Some(verdict) if row.own.contains(*model) => {
                (format!("{}*", verdict.name()), if row.is_wrong { Tone::Alarm } else { Tone::Plain })
            }
            Some(verdict) => plain(verdict.name()),
        }));
        line.extend(columns.iter().map(|(at, _)| match &row.shown[*at] {
            Shown::NotRun => ("-".to_owned(), Tone::Quiet),
            Shown::Ran { times, is_forbidden: true, .. } => (format!("{times} !"), Tone::Alarm),
            Shown::Ran { times, is_unseen: true, .. } => (format!("{times} ~"), Tone::Quiet),
            Shown::Ran { times, .. } => plain(times),
        }));
        lines.push(line);
    }
    let widths: Vec<usize> =
        (0..lines[0].len()).map(|at| lines.iter().map(|line| line[at].0.chars().count()).max().unwrap_or(0)).collect();
    for line in &lines {
        let mut text = String::new();
        for ((cell, tone), width) in line.iter().zip(&widths) {
            let padded = format!("{cell:width$}");
            text += &match tone {
                Tone::Alarm if is_coloured => format!("\x1b[1;31m{padded}\x1b[0m"),
                Tone::Quiet if is_coloured => format!("\x1b[2m{padded}\x1b[0m"),
                _ => padded,
            };
            text += "  ";
        }
        writeln!(out, "{}", text.trim_end())?;
    }
    writeln!(out, "\n{LEGEND}")?;
    Ok(())
}
