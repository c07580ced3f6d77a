//! The measurements of a run: lines of JSON as they come, and a table at the end.

use std::io::{self, Write};

use anyhow::{Context, Result};
use serde_json::Value;

use super::handoff;
use super::measurement::{Latencies, Measurement, Percentiles};
use super::options::Common;
use super::peer::{Comparison, Peers};
use super::threads::ratio;
use crate::output::{self, grouped};

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
                let ours = run(point)?;
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

    /// Writes the table, the ratios to the peers, and what a benchmark has to add to it.
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

    /// What was measured on, and what was done with the threads.
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

/// The median of some numbers: the middle one, or the mean of the two in the middle.
pub(crate) fn median(numbers: impl Iterator<Item = f64>) -> f64 {
    let mut numbers: Vec<f64> = numbers.collect();
    numbers.sort_by(f64::total_cmp);
    match numbers.len() {
        0 => 0.0,
        count => (numbers[(count - 1) / 2] + numbers[count / 2]) / 2.0,
    }
}

/// The geometric mean of some numbers; zero if one is.
fn geometric_mean(numbers: impl Iterator<Item = f64> + Clone) -> f64 {
    let count = numbers.clone().count();
    if count == 0 { 0.0 } else { (numbers.map(f64::ln).sum::<f64>() / count as f64).exp() }
}

/// The distance from the least to the most, as a share of the median.
fn spread(numbers: impl Iterator<Item = f64> + Clone) -> f64 {
    let (least, most) = (numbers.clone().fold(f64::INFINITY, f64::min), numbers.clone().fold(0.0, f64::max));
    ratio(most - least, median(numbers))
}

/// What was asked for, by name.
fn asked(measurement: &Measurement) -> Vec<(String, String)> {
    let Ok(Value::Object(fields)) = serde_json::to_value(&measurement.setup) else { return Vec::new() };
    let text = |value: &Value| match value {
        Value::Number(number) => number.as_u64().map_or_else(|| number.to_string(), grouped),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    fields.iter().map(|(name, value)| (name.replace('_', " "), text(value))).collect()
}

/// A row for each case and setup. What is the same in all stands above them.
fn write_table<'a>(all: &[&'a Measurement], out: &mut dyn Write) -> io::Result<()> {
    let mut rows: Vec<Row<'a>> = Vec::new();
    for one in all {
        match rows.iter_mut().find(|row| row.is_of(one)) {
            Some(row) => row.0.push(one),
            None => rows.push(Row(vec![one])),
        }
    }
    let Some(first) = rows.first() else { return Ok(()) };
    let setups: Vec<_> = rows.iter().map(|row| asked(row.first())).collect();
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

/// The cell of what does not apply.
const NONE: &str = "-";

/// The figures that any of the rows has.
fn figures<'a>(rows: &[Row<'a>]) -> Vec<&'a str> {
    let all = rows.iter().flat_map(|row| row.0.iter().flat_map(|one| one.figures.keys()));
    super::options::once_each(all.map(String::as_str))
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
            let all: Vec<f64> = self.throughputs().collect();
            cells.push(number(geometric_mean(all.iter().copied())));
            cells.push(format!("{:.0} %", 100.0 * spread(all.iter().copied())));
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
fn number(value: f64) -> String {
    if value >= 100.0 { grouped(value.round() as u64) } else { format!("{value:.2}") }
}

#[cfg(test)]
mod tests {
    use super::super::measurement::Setup;
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
    fn what_is_the_same_stands_above_and_the_rest_in_columns() {
        let mut all = vec![one("a", 2, 1234.0), one("a", 3, 99.5)];
        all[0].round_trips_per_op = Some(1.25);
        all[1].figures.insert("bytes_per_s".into(), 2e6);
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

    #[test]
    fn medians_lie_in_the_middle() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), 2.0);
        assert_eq!(median([4.0, 1.0].into_iter()), 2.5);
        assert_eq!(median(std::iter::empty()), 0.0);
    }
}
