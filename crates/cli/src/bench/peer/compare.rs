//! Farfield's measurements beside those of its peers: ratios, their spread, and where Farfield loses.

use std::io::{self, Write};

use super::super::journal::{number, varied};
use super::super::measurement::{Measurement, Setup};
use crate::spread::{Spread, median};

/// A figure that is compared.
struct Figure {
    name: &'static str,
    unit: &'static str,
    of: fn(&Measurement) -> Option<f64>,
    is_smaller_better: bool,
    /// Whether it is compared in this benchmark.
    is_in: fn(&str) -> bool,
}

/// Benchmarks that measure the time of one operation, since the operations follow each other.
fn is_timed(bench: &str) -> bool {
    matches!(bench, "fabric" | "barrier")
}

const FIGURES: [Figure; 5] = [
    Figure {
        name: "time of one",
        unit: "ns",
        of: |one| (one.throughput_ops_per_s > 0.0).then(|| 1e9 / one.throughput_ops_per_s),
        is_smaller_better: true,
        is_in: is_timed,
    },
    Figure {
        name: "throughput",
        unit: "ops/s",
        of: |one| Some(one.throughput_ops_per_s),
        is_smaller_better: false,
        is_in: |bench| !is_timed(bench),
    },
    Figure {
        name: "median latency",
        unit: "ns",
        of: |one| one.latency_ns.map(|latency| latency.p50 as f64),
        is_smaller_better: true,
        is_in: |bench| !is_timed(bench),
    },
    Figure {
        name: "p99 latency",
        unit: "ns",
        of: |one| one.latency_ns.map(|latency| latency.p99 as f64),
        is_smaller_better: true,
        is_in: |_| true,
    },
    Figure {
        name: "fairness",
        unit: "",
        of: |one| one.fairness,
        is_smaller_better: false,
        is_in: |bench| bench == "locks",
    },
];

/// One figure of one case, Farfield's beside a peer's.
#[derive(Debug)]
struct Row {
    bench: String,
    case: String,
    setup: Setup,
    /// The peer, with its version.
    peer: String,
    figure: usize,
    /// Medians over the turns.
    ours: f64,
    theirs: f64,
    turns: usize,
    /// Farfield's by the peer's, of all turns.
    ratio: Spread,
}

/// All that can be compared.
pub(crate) struct Comparison(Vec<Row>);

impl Comparison {
    /// Compares measurements of the same bench, case and setup. Ratios are those of the turns in which both were
    /// measured; a disturbance between turns does not affect them.
    pub(crate) fn of(all: &[Measurement]) -> Comparison {
        let mut rows: Vec<Row> = Vec::new();
        for theirs in all.iter().filter(|one| !one.is_ours()) {
            let is_same = |row: &Row| {
                let peer = name_of(theirs);
                row.bench == theirs.bench && row.case == theirs.case && row.setup == theirs.setup && row.peer == peer
            };
            if !rows.iter().any(is_same) {
                rows.extend((0..FIGURES.len()).filter_map(|figure| Row::of(all, theirs, figure)));
            }
        }
        Comparison(rows)
    }

    /// Whether there is nothing to compare.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Writes the table of ratios, and below it where Farfield loses.
    pub(crate) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        if self.is_empty() {
            return writeln!(out, "nothing could be compared");
        }
        let titles = ["", "", "farfield", "peer", "", "ratio", "least", "most", ""].map(str::to_owned);
        let cells: Vec<[String; 9]> = std::iter::once(titles).chain(self.0.iter().map(|row| self.cells(row))).collect();
        let width = |column: usize| cells.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: [usize; 9] = std::array::from_fn(width);
        for row in &cells {
            let mut line = String::new();
            for (at, (cell, width)) in row.iter().zip(widths).enumerate() {
                // Words begin at the left, numbers end at the right.
                line += &if matches!(at, 2 | 3 | 5..=7) {
                    format!("  {cell:>width$}")
                } else {
                    format!("  {cell:<width$}")
                };
            }
            writeln!(out, "{}", line.trim_end())?;
        }
        let turns = self.0.iter().map(|row| row.turns).max().unwrap_or(0);
        writeln!(
            out,
            "ratio: Farfield's by the peer's, the median of {turns} turn{}; throughput and fairness are better if it is \
             above 1, times and latencies if it is below 1",
            if turns == 1 { "" } else { "s" }
        )?;
        if cfg!(debug_assertions) {
            writeln!(out, "This Farfield was built without optimization, and loses by that: build it with --release.")?;
        }
        let lost: Vec<&Row> = self.0.iter().filter(|row| row.is_lost()).collect();
        if lost.is_empty() {
            return writeln!(out, "Farfield loses nowhere in this table.");
        }
        for row in lost {
            let always = if row.is_clear() { "" } else { ", though not in every turn" };
            writeln!(
                out,
                "Farfield loses against {} at {}, {}: ratio {:.2}{always}.",
                row.peer,
                self.title(row),
                row.figure().name,
                row.ratio.median
            )?;
        }
        Ok(())
    }

    /// The case, and the fields of its setup that differ among the rows.
    fn title(&self, row: &Row) -> String {
        let varied = varied(&row.setup, self.0.iter().map(|other| &other.setup));
        format!("{} {}{varied}", row.bench, row.case)
    }

    fn cells(&self, row: &Row) -> [String; 9] {
        let figure = row.figure();
        [
            self.title(row),
            figure.name.into(),
            number(row.ours),
            number(row.theirs),
            format!("{} {}", figure.unit, row.peer).trim().to_owned(),
            format!("{:.2}", row.ratio.median),
            format!("{:.2}", row.ratio.min),
            format!("{:.2}", row.ratio.max),
            if row.is_lost() { "LOSES" } else { "" }.into(),
        ]
    }
}

impl Row {
    /// A figure of a peer's case beside Farfield's, if both have it.
    fn of(all: &[Measurement], peer: &Measurement, at: usize) -> Option<Row> {
        let figure = &FIGURES[at];
        if !(figure.is_in)(&peer.bench) {
            return None;
        }
        let is_case = |one: &&Measurement| one.bench == peer.bench && one.case == peer.case && one.setup == peer.setup;
        let (mut ours, mut theirs, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for their in all.iter().filter(is_case).filter(|one| one.system == peer.system) {
            let same_turn = |one: &&Measurement| one.is_ours() && one.repetition == their.repetition;
            let Some(our) = all.iter().filter(is_case).find(same_turn) else { continue };
            let (Some(our), Some(their)) = ((figure.of)(our), (figure.of)(their)) else { continue };
            if their > 0.0 && our.is_finite() {
                ours.push(our);
                theirs.push(their);
                ratios.push(our / their);
            }
        }
        let turns = ratios.len();
        let ratio = Spread::of(ratios)?;
        Some(Row {
            bench: peer.bench.clone(),
            case: peer.case.clone(),
            setup: peer.setup.clone(),
            peer: name_of(peer),
            figure: at,
            ours: median(ours),
            theirs: median(theirs),
            turns,
            ratio,
        })
    }

    fn figure(&self) -> &'static Figure {
        &FIGURES[self.figure]
    }

    fn is_lost(&self) -> bool {
        self.is_worse(self.ratio.median)
    }

    /// Whether all turns agree.
    fn is_clear(&self) -> bool {
        self.is_worse(self.ratio.min) == self.is_worse(self.ratio.max)
    }

    fn is_worse(&self, ratio: f64) -> bool {
        if self.figure().is_smaller_better { ratio > 1.0 } else { ratio < 1.0 }
    }
}

/// A system with its version.
fn name_of(one: &Measurement) -> String {
    format!("{} {}", one.system, one.system_version)
}
