//! The measurements of a run: lines of JSON as they come, and a table at the end.

use std::borrow::Borrow;
use std::io::{self, Write};

use anyhow::{Context, Result};
use serde_json::Value;

use super::handoff;
use super::measurement::{Latencies, Measurement, Percentiles, Setup, is_part};
use super::options::Common;
use super::peer::{Comparison, Peers};
use super::threads::ratio;
use crate::output::{self, grouped};
use crate::spread::{Spread, median};

/// Collects the measurements of a run.
pub(crate) struct Journal<'a> {
    common: &'a Common,
    handoff_ns: Option<f64>,
    all: Vec<Measurement>,
}

/// All repetitions of a case with a setup: a row of the table.
struct Row<'a>(Vec<&'a Measurement>);

impl<'a> Journal<'a> {
    /// No measurement yet. Measures how fast a cache line passes between cores.
    pub(crate) fn new(common: &'a Common) -> Journal<'a> {
        Journal { common, handoff_ns: handoff::handoff_ns(), all: Vec::new() }
    }

    /// Runs each of these as often as there are repetitions, in turns, so that a disturbance of the machine affects all
    /// alike. A run gives a measurement, or several. After each, the peers that were asked for do the same work.
    pub(crate) fn turns<P>(&mut self, points: &[P], mut run: impl FnMut(&P) -> Result<Vec<Measurement>>) -> Result<()> {
        let mut peers = Peers::find(&self.common.peer)?;
        for repetition in 0..self.common.repetitions {
            for point in points {
                let ours = peers.unless_interrupted(run(point))?;
                let theirs = peers.measure(&ours, self.common.seconds)?;
                for measurement in ours.into_iter().chain(theirs) {
                    self.add(repetition, measurement)?;
                }
            }
        }
        Ok(())
    }

    /// Adds a measurement, and writes its line at once: a run that fails later does not take it along.
    pub(crate) fn add(&mut self, repetition: u16, mut measurement: Measurement) -> Result<()> {
        measurement.repetition = repetition.into();
        measurement.handoff_ns = self.handoff_ns;
        output::json(self.common.json.as_deref(), &mut io::stdout().lock(), &measurement)?;
        self.all.push(measurement);
        Ok(())
    }

    /// Writes the table, a benchmark's own lines, and the ratios to the peers.
    pub(crate) fn table(&self, more: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<()> {
        self.text(|out| {
            let (ours, theirs): (Vec<&Measurement>, Vec<_>) = self.all.iter().partition(|one| one.is_ours());
            write_table(&ours, out)?;
            more(out)?;
            if !theirs.is_empty() {
                Comparison::of(&self.all).write(out)?;
            }
            self.write_machine(out)
        })
    }

    /// Writes text for people: to standard error if standard output has the lines of JSON.
    pub(crate) fn text(&self, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<()> {
        let is_taken = output::is_stdout(self.common.json.as_deref());
        let written = if is_taken { write(&mut io::stderr().lock()) } else { write(&mut io::stdout().lock()) };
        written.context("writing the table")
    }

    /// The machine of the run, and the pinning of its threads.
    pub(crate) fn write_machine(&self, out: &mut dyn Write) -> io::Result<()> {
        let Some(first) = self.all.first() else { return Ok(()) };
        let machine = &first.machine;
        let pinned = self.all.iter().filter(|one| one.pinned == Some(true)).count();
        let threads = match pinned {
            0 => "threads on no fixed core",
            _ if pinned == self.all.len() => "each thread on one core",
            _ => "each thread on one core if there were enough",
        };
        let handoff = self.handoff_ns.map_or(String::new(), |ns| format!("; cache line hand-off {ns:.0} ns"));
        writeln!(
            out,
            "{}, {} cores, Linux {}, {:.1} GB; {threads}{handoff}",
            machine.cpu,
            machine.cores,
            machine.kernel,
            machine.memory_bytes as f64 / 1e9
        )
    }
}

impl Row<'_> {
    fn first(&self) -> &Measurement {
        self.0[0]
    }

    fn is_of(&self, other: &Measurement) -> bool {
        self.first().case == other.case && self.first().setup == other.setup
    }

    fn throughputs(&self) -> impl Iterator<Item = f64> {
        self.0.iter().map(|one| one.throughput_ops_per_s)
    }

    /// The percentiles of all repetitions together.
    fn percentiles(&self) -> Option<Percentiles> {
        let mut all = Latencies::new();
        for one in &self.0 {
            all.merge(one.latency_histogram.as_ref()?).ok()?;
        }
        Some(all.percentiles())
    }

    /// The mean over the repetitions.
    fn mean(&self, of: impl Fn(&Measurement) -> Option<f64>) -> Option<f64> {
        let values: Option<Vec<f64>> = self.0.iter().map(|one| of(one)).collect();
        values.map(|values| ratio(values.iter().sum(), values.len() as f64))
    }
}

/// The fields of a setup, by name.
fn asked(setup: &Setup) -> Vec<(String, String)> {
    let Ok(Value::Object(fields)) = serde_json::to_value(setup) else { return Vec::new() };
    let text = |value: &Value| match value {
        Value::Number(number) => number.as_u64().map_or_else(|| number.to_string(), grouped),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    fields.iter().map(|(name, value)| (name.replace('_', " "), text(value))).collect()
}

/// The end of a title: the fields of a setup that are not the same in all of these, such as `, replicas 5`.
pub(super) fn varied(setup: &Setup, all: impl Iterator<Item = impl Borrow<Setup>>) -> String {
    let all: Vec<_> = all.map(|other| asked(other.borrow())).collect();
    let is_common = |field: &(String, String)| all.iter().all(|other| other.contains(field));
    let fields = asked(setup).into_iter().filter(|field| !is_common(field));
    fields.map(|(name, value)| format!(", {name} {value}")).collect()
}

/// A row for each case and setup, below the fields that are the same in all.
fn write_table<'a>(all: &[&'a Measurement], out: &mut dyn Write) -> io::Result<()> {
    let mut rows: Vec<Row<'a>> = Vec::new();
    for one in all {
        match rows.iter_mut().find(|row| row.is_of(one)) {
            Some(row) => row.0.push(one),
            None => rows.push(Row(vec![one])),
        }
    }
    let Some(first) = rows.first() else { return Ok(()) };
    let setups: Vec<_> = rows.iter().map(|row| asked(&row.first().setup)).collect();
    let is_common = |field: &(String, String)| setups.iter().all(|setup| setup.contains(field));
    let common: Vec<_> = setups[0].iter().filter(|field| is_common(field)).collect();
    write!(out, "{}", first.first().bench)?;
    common.iter().try_for_each(|(name, value)| write!(out, ", {name} {value}"))?;
    match first.0.len() {
        1 => writeln!(out)?,
        count => writeln!(out, "; {count} repetitions")?,
    }
    let named = setups.iter().flatten().filter(|field| !is_common(field)).map(|(name, _)| name.as_str());
    let varied = super::options::once_each(named);
    let cells: Vec<Vec<String>> = std::iter::once(titles(&rows, &varied))
        .chain(rows.iter().zip(&setups).map(|(row, setup)| row.cells(&rows, setup, &varied)))
        .collect();
    // A column in which nothing applies is left out.
    let columns = (0..cells[0].len()).filter(|column| cells[1..].iter().any(|row| row[*column] != NONE));
    let width = |column: usize| cells.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let columns: Vec<(usize, usize)> = columns.map(|column| (column, width(column))).collect();
    for row in &cells {
        let line: Vec<String> = columns.iter().map(|(column, width)| format!("{:>width$}", row[*column])).collect();
        writeln!(out, "  {}", line.join("  ").trim_end())?;
    }
    Ok(())
}

/// The cell of a figure that does not apply.
const NONE: &str = "-";

/// The figures that any of the rows has, without the parts of distributions.
fn figures<'a>(rows: &[Row<'a>]) -> Vec<&'a str> {
    let all = rows.iter().flat_map(|row| row.0.iter().flat_map(|one| one.figures.keys()));
    super::options::once_each(all.map(String::as_str).filter(|name| !is_part(name)))
}

/// The title of a cost that rows may have, the cost, and how many digits it is shown with.
type Cost = (&'static str, fn(&Measurement) -> Option<f64>, usize);

const COSTS: [Cost; 4] = [
    ("round trips", |one| one.round_trips_per_op, 2),
    ("operations", |one| one.fabric_ops_per_op, 2),
    ("bytes", |one| one.bytes_per_op, 0),
    ("fairness", |one| one.fairness, 2),
];

fn titles(rows: &[Row<'_>], varied: &[&str]) -> Vec<String> {
    let mut titles = vec!["case"];
    titles.extend(varied);
    titles.push("ops/s");
    if rows[0].0.len() > 1 {
        titles.extend(["geo. mean", "spread"]);
    }
    titles.extend(Percentiles::TITLES);
    titles.extend(COSTS.map(|(title, _, _)| title));
    let mut titles: Vec<String> = titles.into_iter().map(str::to_owned).collect();
    titles.extend(figures(rows).into_iter().map(|name| name.replace('_', " ")));
    titles
}

impl Row<'_> {
    fn cells(&self, rows: &[Row<'_>], setup: &[(String, String)], varied: &[&str]) -> Vec<String> {
        let mut cells = vec![self.first().case.clone()];
        let value = |name: &&str| setup.iter().find(|field| field.0 == **name).map_or("", |field| field.1.as_str());
        cells.extend(varied.iter().map(|name| value(name).to_owned()));
        cells.push(number(median(self.throughputs())));
        if rows[0].0.len() > 1 {
            let of = Spread::of(self.throughputs()).expect("a row has measurements");
            cells.push(number(of.geometric_mean));
            cells.push(format!("{:.0} %", 100.0 * ratio(of.max - of.min, of.median)));
        }
        match self.percentiles() {
            Some(percentiles) => cells.extend(percentiles.columns()),
            None => cells.extend(Percentiles::TITLES.map(|_| NONE.to_owned())),
        }
        let cost = |value: Option<f64>, digits: usize| value.map_or(NONE.into(), |value| format!("{value:.digits$}"));
        cells.extend(COSTS.map(|(_, of, digits)| cost(self.mean(of), digits)));
        let figure = |name: &str| self.mean(|one| one.figures.get(name).copied());
        cells.extend(figures(rows).into_iter().map(|name| figure(name).map_or(NONE.into(), number)));
        cells
    }
}

/// A number in as many digits as it needs.
pub(super) fn number(value: f64) -> String {
    if value >= 100.0 { grouped(value.round() as u64) } else { format!("{value:.2}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(case: &str, nodes: u32, throughput: f64) -> Measurement {
        let setup = Setup { fabric: Some("shm".into()), nodes: Some(nodes), ..Setup::default() };
        Measurement { throughput_ops_per_s: throughput, ..Measurement::new("kv", case, setup) }
    }

    fn table(all: &[Measurement]) -> String {
        let mut out = Vec::new();
        write_table(&all.iter().collect::<Vec<_>>(), &mut out).expect("a vector takes everything");
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn equal_settings_stand_above_and_the_rest_in_columns() {
        let mut all = vec![one("a", 2, 1234.0), one("a", 3, 99.5)];
        all[0].round_trips_per_op = Some(1.25);
        all[1].figures = [("bytes_per_s".into(), 2e6), ("trips_2".into(), 7.0)].into();
        let table = table(&all);
        let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
        assert!(table.starts_with("kv, fabric shm\n"), "{table}");
        assert_eq!(lines[1][..3], ["case", "nodes", "ops/s"], "{table}");
        assert_eq!(lines[2][..3], ["a", "2", "1,234"], "{table}");
        assert_eq!(lines[1][3..], ["round", "trips", "bytes", "per", "s"], "no column is empty: {table}");
        assert_eq!(lines[2][3..], ["1.25", "-"], "{table}");
        assert_eq!(lines[3].last(), Some(&"2,000,000"), "{table}");
    }

    #[test]
    fn repetitions_are_one_row_with_a_median_a_mean_and_a_spread() {
        let table = table(&[one("a", 2, 100.0), one("c", 2, 5.0), one("a", 2, 400.0), one("c", 2, 5.0)]);
        let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
        assert!(table.starts_with("kv, fabric shm, nodes 2; 2 repetitions\n"), "{table}");
        assert_eq!(lines[2][..5], ["a", "250", "200", "120", "%"], "{table}");
        assert_eq!(lines[3][..5], ["c", "5.00", "5.00", "0", "%"], "{table}");
    }
}
