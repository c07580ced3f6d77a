//! Tables.

use html_escape::encode_quoted_attribute as escape;
use std::collections::BTreeSet;
use std::fmt::Write;

use super::compare::Ratio;
use super::group::{Case, Results};
use super::words::{self, digits, short, time};
use crate::bench::measurement::is_part;
use crate::output::grouped;

/// A table; its first column names the row.
struct Table {
    caption: String,
    columns: Vec<String>,
    rows: Vec<(String, Vec<String>)>,
}

impl Table {
    fn html(&self) -> String {
        // Wider than a phone: the table scrolls, and the page does not. It takes the focus, so that keys scroll it.
        let caption = escape(&self.caption);
        let mut out = format!(
            "<div class=\"wide\" tabindex=\"0\" role=\"region\" aria-label=\"{caption}\">\n<table>\n<caption>\
             <span>{caption}</span></caption>\n<thead><tr>"
        );
        for column in &self.columns {
            let _ = write!(out, "<th scope=\"col\">{}</th>", escape(column));
        }
        out += "</tr></thead>\n<tbody>\n";
        for (class, cells) in &self.rows {
            let class = if class.is_empty() { String::new() } else { format!(" class=\"{class}\"") };
            let _ = write!(out, "<tr{class}><th scope=\"row\">{}</th>", escape(&cells[0]));
            for cell in &cells[1..] {
                let _ = write!(out, "<td>{}</td>", escape(cell));
            }
            out += "</tr>\n";
        }
        out + "</tbody>\n</table>\n</div>\n"
    }
}

impl Table {
    /// As README files have tables.
    fn markdown(&self) -> String {
        let line = |cells: &[String]| {
            let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|").replace('\u{a0}', " ")).collect();
            format!("| {} |\n", cells.join(" | "))
        };
        let rule = format!("|---|{}\n", "---:|".repeat(self.columns.len() - 1));
        let rows: String = self.rows.iter().map(|(_, cells)| line(cells)).collect();
        format!("{}:\n\n{}{rule}{rows}\n", self.caption, line(&self.columns))
    }
}

/// Farfield beside its peers.
pub(super) fn ratios(results: &Results, bench: &str, ratios: &[Ratio]) -> String {
    ratio_table(results, bench, ratios).html()
}

/// The same as Markdown.
pub(super) fn ratios_as_markdown(results: &Results, bench: &str, ratios: &[Ratio]) -> String {
    ratio_table(results, bench, ratios).markdown()
}

fn ratio_table(results: &Results, bench: &str, ratios: &[Ratio]) -> Table {
    let differing = results.differing(ratios.iter().map(|of| of.own));
    let row = |of: &Ratio| {
        let cells = vec![
            of.label(&differing),
            short(of.own.throughput.median),
            short(of.peer.throughput.median),
            format!("{} ×", digits(of.ratio)),
            digits(of.min),
            digits(of.max),
            format!("{} ×", digits(1.0 / of.ratio)),
        ];
        (if of.is_loss() { "loss" } else { "" }.to_owned(), cells)
    };
    Table {
        caption: format!("{}: medians of {} per second, and their ratio", words::bench(bench), words::operation(bench)),
        columns: ["Farfield / peer", "Farfield", "peer", "ratio", "least", "greatest", "time"].map(String::from).into(),
        rows: ratios.iter().map(row).collect(),
    }
}

/// All cases of a bench.
pub(super) fn cases(results: &Results, bench: &str) -> String {
    let all: Vec<&Case> = results.of(bench).collect();
    let fields: BTreeSet<&String> = all.iter().flat_map(|case| case.key.setup.keys()).collect();
    let mut columns: Vec<Column> = vec![
        ("system".into(), Box::new(|case| words::system(&case.key.system))),
        ("version".into(), Box::new(|case| case.key.version.clone())),
        ("case".into(), Box::new(|case| case.key.case.clone())),
    ];
    if results.machines.len() > 1 {
        columns.push(("machine".into(), Box::new(|case| machine(case.key.machine))));
    }
    for field in words::in_order(fields.iter().copied()) {
        let cell = |case: &Case| {
            let value = case.key.setup.get(field)?;
            Some(value.parse().map_or_else(|_| value.clone(), grouped))
        };
        columns.push((words::column(field), Box::new(move |case| cell(case).unwrap_or_default())));
    }
    columns.push(("repetitions".into(), Box::new(|case| case.repetitions.len().to_string())));
    columns.push(("median /s".into(), Box::new(|case| short(case.throughput.median))));
    columns.push(("geometric mean /s".into(), Box::new(|case| short(case.throughput.geometric_mean))));
    columns.push(("min /s".into(), Box::new(|case| short(case.throughput.min))));
    columns.push(("max /s".into(), Box::new(|case| short(case.throughput.max))));
    optional(&mut columns, &all, "p50", |case| case.percentiles.map(|of| time(of.p50 as f64)));
    optional(&mut columns, &all, "p90", |case| case.percentiles.map(|of| time(of.p90 as f64)));
    optional(&mut columns, &all, "p99", |case| case.percentiles.map(|of| time(of.p99 as f64)));
    optional(&mut columns, &all, "p99.9", |case| case.percentiles.map(|of| time(of.p99_9 as f64)));
    optional(&mut columns, &all, "slowest", |case| case.percentiles.map(|of| time(of.max as f64)));
    optional(&mut columns, &all, "round trips /op", |case| case.round_trips.map(digits));
    optional(&mut columns, &all, "fabric operations /op", |case| case.fabric_ops.map(digits));
    optional(&mut columns, &all, "bytes /op", |case| case.bytes.map(digits));
    optional(&mut columns, &all, "fairness", |case| case.fairness.map(|of| digits(of.median)));
    optional(&mut columns, &all, "hand-off", |case| case.handoff_ns.map(time));
    let figures = all.iter().flat_map(|case| case.figures.keys()).filter(|name| !is_part(name));
    for name in figures.collect::<BTreeSet<_>>() {
        let cell = |case: &Case| case.figures.get(name).copied().map(short);
        columns.push((words::column(name), Box::new(move |case| cell(case).unwrap_or_default())));
    }
    let row = |case: &&Case| (String::new(), columns.iter().map(|(_, cell)| cell(case)).collect());
    Table {
        caption: format!("{}: all measurements, {} per second", words::bench(bench), words::operation(bench)),
        columns: columns.iter().map(|(title, _)| title.clone()).collect(),
        rows: all.iter().map(row).collect(),
    }
    .html()
}

type Column<'a> = (String, Box<dyn Fn(&Case) -> String + 'a>);

/// A column, if a case has something for it.
fn optional(columns: &mut Vec<Column>, cases: &[&Case], title: &str, cell: fn(&Case) -> Option<String>) {
    if cases.iter().any(|case| cell(case).is_some()) {
        columns.push((title.into(), Box::new(move |case| cell(case).unwrap_or_default())));
    }
}

/// A machine's name: A, B, …
pub(super) fn machine(at: usize) -> String {
    char::from_u32('A' as u32 + at as u32).filter(|_| at < 26).map_or_else(|| format!("machine {at}"), String::from)
}
