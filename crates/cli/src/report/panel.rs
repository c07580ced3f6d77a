//! The contents of pictures: lines over a field of the setup that varies, bars, distributions.

use std::collections::{BTreeMap, BTreeSet};

use super::group::{Case, HOW, Results};
use super::picture::STYLES;
use super::{FARFIELD, words};
use crate::spread::Spread;

/// The fields over which lines are drawn.
pub(super) const FIELDS: [&str; 4] = ["nodes", "threads", "window", "size"];
/// More lines than these in one picture cannot be told apart.
const LINES_MAX: usize = 6;

/// The figure of a line, and its value over the repetitions.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Measure {
    /// The median throughput.
    Throughput,
    /// The geometric mean of the throughputs, as the LOCO paper has it.
    MeanThroughput,
    /// The median of the latencies, or, where none were taken, the mean time of an operation.
    Latency,
}

/// A point of a line, with whiskers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Point {
    pub(super) x: f64,
    pub(super) middle: f64,
    pub(super) low: f64,
    pub(super) high: f64,
}

/// A line.
#[derive(Clone, Debug)]
pub(super) struct Line {
    pub(super) label: String,
    /// Its colour, dash and marker: one of [`STYLES`].
    pub(super) style: usize,
    pub(super) points: Vec<Point>,
}

/// Lines that belong together.
#[derive(Clone)]
pub(super) struct Panel<'a> {
    pub(super) bench: &'a str,
    pub(super) title: String,
    pub(super) field: &'static str,
    pub(super) lines: Vec<Line>,
    /// All that is in the picture.
    pub(super) cases: Vec<&'a Case>,
}

impl Measure {
    fn of(self, case: &Case) -> Option<Spread> {
        match self {
            Measure::Throughput => Some(case.throughput),
            Measure::MeanThroughput => Some(Spread { median: case.throughput.geometric_mean, ..case.throughput }),
            Measure::Latency => case.latency.or_else(|| {
                let ns = |per_second: f64| (per_second > 0.0).then(|| 1e9 / per_second);
                let of = case.throughput;
                Some(Spread { median: ns(of.median)?, min: ns(of.max)?, max: ns(of.min)?, ..of })
            }),
        }
        .filter(|spread| spread.median > 0.0)
    }
}

/// Styles of all lines of a bench, so that a case looks alike in all of its pictures.
pub(super) struct Styles(BTreeMap<String, usize>);

impl Styles {
    /// The cases of one bench.
    pub(super) fn of<'a>(cases: impl Iterator<Item = &'a Case> + Clone) -> Styles {
        let mut labels: Vec<_> = cases
            .clone()
            .map(|case| (case.key.system != FARFIELD, label(case, cases.clone())))
            .collect::<BTreeSet<_>>()
            .into_iter()
            .map(|(_, label)| label)
            .collect();
        labels.dedup();
        Styles(labels.into_iter().enumerate().map(|(at, label)| (label, at)).collect())
    }

    /// The style of a line. One that stands for several cases of a peer has that of the first.
    pub(super) fn style(&self, label: &str) -> usize {
        let first = || self.0.iter().find(|(other, _)| other.starts_with(label)).map(|(_, style)| style);
        self.0.get(label).or_else(first).copied().unwrap_or(0)
    }
}

/// The fields that tell a case apart within its bench: the system, and, where these differ, the case, the fabric, the
/// version.
pub(super) fn label<'a>(case: &Case, among: impl Iterator<Item = &'a Case> + Clone) -> String {
    let own = || among.clone().filter(|other| other.key.system == case.key.system);
    let several = |of: fn(&Case) -> Option<&String>| own().filter_map(of).collect::<BTreeSet<_>>().len() > 1;
    let mut label = words::system(&case.key.system);
    if several(|case| Some(&case.key.version)) {
        label += &format!(" {}", case.key.version);
    }
    if among.clone().map(|other| &other.key.case).collect::<BTreeSet<_>>().len() > 1 {
        label += &format!(" {}", case.key.case);
    }
    if several(|case| case.key.setup.get("fabric")) {
        label += &format!(", {}", case.key.setup.get("fabric").map_or("no fabric", String::as_str));
    }
    label
}

/// The lines of some cases of one bench over a field. Lines of fewer than `points_min` points are left out.
pub(super) fn panels<'a>(
    results: &'a Results,
    cases: &[&'a Case],
    styles: &Styles,
    field: &'static str,
    measure: Measure,
    points_min: usize,
) -> Vec<Panel<'a>> {
    let with_field: Vec<_> = cases.iter().copied().filter(|case| x_of(case, field).is_some()).collect();
    let differing = results.differing(cases.iter().copied());
    let is_told = |name: &str| name != field && !HOW.contains(&name) && differing.contains(name);
    let mut panels = Vec::new();
    for group in groups(results, &with_field, field) {
        let bench = group[0].key.bench.as_str();
        let setup = words::setup(&group[0].key.setup, is_told);
        for (part, lines) in lines(results, &group) {
            let title = [part, setup.clone()].into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>();
            let mut panel = Panel { bench, title: title.join(", "), field, lines: vec![], cases: vec![] };
            for (label, cases) in lines {
                let points = points(&cases, field, measure);
                if points.len() >= points_min {
                    panel.lines.push(Line { style: styles.style(&label), points, label });
                    panel.cases.extend(cases);
                }
            }
            tell_apart(&mut panel.lines);
            if !panel.lines.is_empty() {
                panels.push(panel);
            }
        }
    }
    panels
}

/// Cases that did the same work, but for a field. Farfield's come first, and each peer's is in all groups that it fits.
pub(super) fn groups<'a>(results: &Results, cases: &[&'a Case], except: &str) -> Vec<Vec<&'a Case>> {
    let mut groups: Vec<Vec<&Case>> = Vec::new();
    let (own, peers): (Vec<&Case>, Vec<&Case>) = cases.iter().partition(|case| case.key.system == FARFIELD);
    for case in own {
        let is_same = |group: &&mut Vec<&Case>| results.is_same_work(&group[0].key, &case.key, except);
        match groups.iter_mut().find(is_same) {
            Some(group) => group.push(case),
            None => groups.push(vec![case]),
        }
    }
    let own = groups.len();
    for case in peers {
        let mut is_alone = true;
        for (at, group) in groups.iter_mut().enumerate() {
            let is_same = results.is_same_work(&group[0].key, &case.key, except);
            if is_same && (at < own || is_alone) {
                group.push(case);
                is_alone = false;
            }
        }
        if is_alone {
            groups.push(vec![case]);
        }
    }
    groups
}

/// Puts lines in order, and gives them styles of their own where several have the same.
pub(super) fn tell_apart(lines: &mut [Line]) {
    lines.sort_by_key(|line| line.style);
    let styles: BTreeSet<usize> = lines.iter().map(|line| line.style % STYLES.len()).collect();
    if styles.len() < lines.len() {
        lines.iter_mut().enumerate().for_each(|(at, line)| line.style = at);
    }
}

/// The cases of each line, by its label.
type Lines<'a> = BTreeMap<String, Vec<&'a Case>>;

/// The lines of a group: all in one part without a name, or, if these are too many, those of each case in a part.
pub(super) fn lines<'a>(results: &Results, group: &[&'a Case]) -> BTreeMap<String, Lines<'a>> {
    let bench = group[0].key.bench.as_str();
    let mut lines = Lines::new();
    for case in group {
        lines.entry(label(case, results.of(bench))).or_default().push(case);
    }
    share(&mut lines);
    let is_split = lines.len() > LINES_MAX;
    let mut parts: BTreeMap<String, Lines> = BTreeMap::new();
    for (label, cases) in lines {
        let part = if is_split { cases[0].key.case.clone() } else { String::new() };
        parts.entry(part).or_default().insert(label, cases);
    }
    parts
}

/// A peer that does the same for several of Farfield's cases is measured once for all of them: that is one line.
fn share(lines: &mut Lines) {
    let of_peer = |cases: &[&Case]| Some(cases[0].key.system.clone()).filter(|system| system != FARFIELD);
    let peers: BTreeSet<String> = lines.values().filter_map(|cases| of_peer(cases)).collect();
    for peer in peers {
        let is_of = |cases: &[&Case]| cases[0].key.system == peer;
        let runs = |cases: &[&Case]| cases.iter().flat_map(|case| case.repetitions.clone()).collect::<Vec<_>>();
        let labels: Vec<String> =
            lines.iter().filter(|(_, cases)| is_of(cases)).map(|(label, _)| label.clone()).collect();
        if labels.len() > 1 && labels.iter().all(|label| runs(&lines[label]) == runs(&lines[&labels[0]])) {
            let all: Vec<_> = labels.iter().filter_map(|label| lines.remove(label)).collect();
            let shared = all.into_iter().next();
            lines.extend(shared.map(|cases| (words::system(&peer), cases)));
        }
    }
}

fn x_of(case: &Case, field: &str) -> Option<u64> {
    case.key.setup.get(field)?.parse().ok()
}

fn points(cases: &[&Case], field: &str, measure: Measure) -> Vec<Point> {
    let point = |case: &&Case| {
        let spread = measure.of(case)?;
        Some(Point { x: x_of(case, field)? as f64, middle: spread.median, low: spread.min, high: spread.max })
    };
    let mut points: Vec<Point> = cases.iter().filter_map(point).collect();
    points.sort_by(|a, b| a.x.total_cmp(&b.x));
    points
}

#[cfg(test)]
mod tests {
    use super::super::samples;
    use super::*;

    fn panels_of<'a>(results: &'a Results, field: &'static str) -> Vec<Panel<'a>> {
        let cases: Vec<&Case> = results.of("locks").collect();
        panels(results, &cases, &Styles::of(results.of("locks")), field, Measure::Throughput, 2)
    }

    #[test]
    fn lines_are_of_cases_and_systems_and_panels_of_setups() {
        let mut rows = Vec::new();
        for nodes in [4, 2, 8] {
            for locks in [1, 100] {
                for (case, system) in [("mutex", "farfield"), ("alock", "farfield"), ("mutex", "mpi")] {
                    rows.push(samples::row("locks", case, system, f64::from(nodes) * 1e6, |of| {
                        (of.setup.nodes, of.setup.locks) = (Some(nodes), Some(locks));
                        if system == "mpi" {
                            of.setup.fabric = None;
                        }
                    }));
                }
            }
        }
        let results = Results::new(rows).expect("results");
        let panels = panels_of(&results, "nodes");
        let titles: Vec<_> = panels.iter().map(|panel| panel.title.as_str()).collect();
        assert_eq!(titles, ["1 lock", "100 locks"]);
        let labels: Vec<_> = panels[0].lines.iter().map(|line| line.label.as_str()).collect();
        assert_eq!(labels, ["Farfield alock", "Farfield mutex", "MPI mutex"]);
        let xs: Vec<_> = panels[0].lines[0].points.iter().map(|point| point.x).collect();
        assert_eq!(xs, [2.0, 4.0, 8.0]);
        assert_eq!(panels[0].lines[0].points[0].middle, 2e6);
        assert!(panels_of(&results, "threads").is_empty(), "one number of threads makes no line");
    }

    #[test]
    fn a_peer_that_was_measured_once_for_all_cases_is_one_line() {
        let mut rows = Vec::new();
        for case in ["alock", "mcs", "mutex", "spin"] {
            for nodes in [2, 3] {
                let at = |of: &mut crate::bench::measurement::Measurement| of.setup.nodes = Some(nodes);
                rows.push(samples::row("locks", case, "farfield", 1e6, at));
                rows.push(samples::row("locks", case, "mpi", 1e6 / f64::from(nodes), at));
            }
        }
        let results = Results::new(rows).expect("results");
        let panels = panels_of(&results, "nodes");
        assert_eq!(panels.len(), 1);
        let labels: Vec<_> = panels[0].lines.iter().map(|line| line.label.as_str()).collect();
        assert_eq!(labels, ["Farfield alock", "Farfield mcs", "Farfield mutex", "Farfield spin", "MPI"]);
    }

    #[test]
    fn many_lines_are_split_by_case() {
        let mut rows = Vec::new();
        for case in ["a", "b", "c", "d", "e", "f", "g"] {
            for nodes in [2, 3] {
                rows.push(samples::row("locks", case, "farfield", 1e6, |of| of.setup.nodes = Some(nodes)));
            }
        }
        let results = Results::new(rows).expect("results");
        let panels = panels_of(&results, "nodes");
        assert_eq!(panels.len(), 7);
        assert_eq!(panels[6].title, "g");
    }
}
