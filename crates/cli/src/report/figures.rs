//! Figures: pictures with the cases that are in them.

use std::collections::BTreeSet;

use anyhow::Result;

use super::FARFIELD;
use super::compare::Ratio;
use super::group::{Case, HOW, Results};
use super::panel::{self, Line, Measure, Panel, Point, Styles};
use super::picture::{Axis, Bar, Bars, Chart, Picture};
use super::words::{self, digits, short, time};
use crate::spread::Spread;

/// A y axis with values this far apart is logarithmic.
const LOG_FROM: f64 = 25.0;
/// More bars than these make a picture that is higher than a screen.
const BARS_MAX: usize = 14;
/// A distribution ends here: the slowest few of millions would press all others together.
const CDF_TO: f64 = 0.999;
/// Points of a distribution are this far apart, as a part of the whole.
const CDF_STEP: f64 = 0.004;

/// A picture with its caption.
pub(super) struct Figure<'a> {
    pub(super) picture: Picture,
    pub(super) cases: Vec<&'a Case>,
}

impl<'a> Figure<'a> {
    fn new(picture: Picture, cases: Vec<&'a Case>) -> Figure<'a> {
        Figure { picture, cases }
    }

    /// The bench that it is of.
    pub(super) fn bench(&self) -> &'a str {
        self.cases.first().map_or("", |case| &case.key.bench)
    }
}

/// Lines over a field.
pub(super) fn lines<'a>(panel: &Panel<'a>, measure: Measure) -> Result<Figure<'a>> {
    let bench = words::bench(panel.bench);
    let title = if panel.title.is_empty() { bench } else { format!("{bench}: {}", panel.title) };
    let operation = words::operation(panel.bench);
    let (y_title, y_format): (String, fn(f64) -> String) = match measure {
        Measure::Throughput => (format!("{operation} per second"), short),
        Measure::MeanThroughput => (format!("{operation} per second, geometric mean"), short),
        Measure::Latency => ("time of one, median".into(), time),
    };
    let x_format = if panel.field == "size" { short } else { digits };
    let picture = chart(&title, &panel.lines, (words::field(panel.field), x_format), (y_title, y_format))?;
    Ok(Figure::new(picture, panel.cases.clone()))
}

/// A chart of lines with points.
pub(super) fn chart(
    title: &str,
    lines: &[Line],
    (x_title, x_format): (String, fn(f64) -> String),
    (y_title, y_format): (String, fn(f64) -> String),
) -> Result<Picture> {
    let points = || lines.iter().flat_map(|line| &line.points);
    let xs: Vec<f64> = points().map(|point| point.x).collect();
    let high = points().map(|point| point.high).fold(0.0, f64::max);
    let middle = points().map(|point| point.middle).fold(f64::INFINITY, f64::min);
    let low = points().map(|point| point.low).filter(|low| *low > 0.0).fold(middle, f64::min);
    let y = if high / middle > LOG_FROM { Axis::log(low, high) } else { Axis::from_zero(high) };
    Chart { title, x: Axis::at(&xs), y, x_title, y_title, x_format, y_format, lines, has_points: true }.picture()
}

/// Distributions of latencies: a figure for each setup.
pub(super) fn distributions<'a>(results: &Results, cases: &[&'a Case], styles: &Styles) -> Result<Vec<Figure<'a>>> {
    let sampled: Vec<&Case> = cases.iter().copied().filter(|case| case.samples.is_some()).collect();
    let differing = results.differing(sampled.iter().copied());
    let mut figures = Vec::new();
    for group in panel::groups(results, &sampled, "") {
        let setup = words::setup(&group[0].key.setup, |name| !HOW.contains(&name) && differing.contains(name));
        for (part, lines) in panel::lines(results, &group) {
            let of: Vec<_> = [&part, &setup].into_iter().filter(|text| !text.is_empty()).cloned().collect();
            let bench = words::bench(&group[0].key.bench);
            let title = if of.is_empty() { bench } else { format!("{bench}: {}", of.join(", ")) };
            let cases: Vec<&Case> = lines.values().flatten().copied().collect();
            let mut lines: Vec<Line> = lines
                .into_iter()
                .map(|(label, cases)| Line { style: styles.style(&label), points: distribution(&cases), label })
                .collect();
            panel::tell_apart(&mut lines);
            let points = || lines.iter().flat_map(|line| &line.points).map(|point| point.x);
            let x = Axis::log(points().fold(f64::INFINITY, f64::min), points().fold(0.0, f64::max));
            let y = Axis::with_ticks(0.0, 1.0, &[0.0, 0.25, 0.5, 0.75, 0.9, 1.0]);
            let chart = Chart {
                title: &title,
                x,
                y,
                x_title: "time of one operation".into(),
                y_title: "share that took at most so long".into(),
                x_format: time,
                y_format: |share| format!("{:.0} %", share * 100.0),
                lines: &lines,
                has_points: false,
            };
            figures.push(Figure::new(chart.picture()?, cases));
        }
    }
    Ok(figures)
}

/// The share of samples up to each value.
fn distribution(cases: &[&Case]) -> Vec<Point> {
    let mut points: Vec<Point> = Vec::new();
    let mut all = cases.iter().filter_map(|case| case.samples.as_ref());
    let Some(mut samples) = all.next().cloned() else { return points };
    // They resize themselves, so nothing is lost.
    all.for_each(|more| samples += more);
    let total = samples.len() as f64;
    let mut seen = 0;
    for value in samples.iter_recorded() {
        let before = seen as f64 / total;
        seen += value.count_at_value();
        let (x, share) = (value.value_iterated_to().max(1) as f64, seen as f64 / total);
        if points.is_empty() {
            points.push(Point { x, middle: 0.0, low: 0.0, high: 0.0 });
        }
        let is_last = before >= CDF_TO;
        let is_far = points.last().is_none_or(|last| share - last.middle >= CDF_STEP || x / last.x >= 1.05);
        if is_far || seen == samples.len() || share >= CDF_TO {
            points.push(Point { x, middle: share, low: share, high: share });
        }
        if is_last {
            break;
        }
    }
    points
}

/// Farfield by its peers: bars to the right where it wins, to the left where it loses.
pub(super) fn ratios<'a>(results: &Results, title: &str, ratios: &[Ratio<'a>]) -> Result<Vec<Figure<'a>>> {
    let low = ratios.iter().map(|of| of.min.min(of.ratio)).fold(0.5, f64::min);
    let high = ratios.iter().map(|of| of.max.max(of.ratio)).fold(2.0, f64::max);
    let differing = results.differing(ratios.iter().map(|of| of.own));
    let mut figures = Vec::new();
    for ratios in ratios.chunks(BARS_MAX) {
        let bars: Vec<Bar> = ratios
            .iter()
            .map(|of| Bar {
                label: of.label(&differing),
                value: of.ratio,
                low: of.min,
                high: of.max,
                text: format!("{} ×", digits(of.ratio)),
                style: 0,
                is_loss: of.is_loss(),
            })
            .collect();
        let axis = Axis::log(low.max(1e-6), high);
        let axis_title = "Farfield's throughput by the peer's";
        let bars = Bars { title, axis, base: 1.0, axis_title, format: digits, bars: &bars };
        figures.push(Figure::new(bars.picture()?, ratios.iter().flat_map(|of| [of.own, of.peer]).collect()));
    }
    Ok(figures)
}

/// A bar for each case, of its figure `of`, in the colour of its system.
pub(super) fn bars<'a>(
    results: &Results,
    title: &str,
    axis_title: &str,
    cases: &[&'a Case],
    of: fn(&Case) -> Option<Spread>,
) -> Result<Vec<Figure<'a>>> {
    let valued: Vec<(&Case, Spread)> = cases.iter().filter_map(|case| Some((*case, of(case)?))).collect();
    let high = valued.iter().map(|(_, spread)| spread.max).fold(0.0, f64::max);
    let differing = results.differing(valued.iter().map(|(case, _)| *case));
    let systems = || valued.iter().map(|(case, _)| case.key.system.as_str());
    let peers: BTreeSet<&str> = systems().filter(|system| *system != FARFIELD).collect();
    let mut figures = Vec::new();
    for valued in valued.chunks(BARS_MAX) {
        let bar = |(case, spread): &(&Case, Spread)| {
            let line = panel::label(case, results.of(&case.key.bench));
            let setup = words::setup(&case.key.setup, |name| !HOW.contains(&name) && differing.contains(name));
            Bar {
                style: peers.iter().position(|peer| *peer == case.key.system).map_or(0, |at| at + 1),
                label: if setup.is_empty() { line } else { format!("{line}, {setup}") },
                value: spread.median,
                low: spread.min,
                high: spread.max,
                text: short(spread.median),
                is_loss: false,
            }
        };
        let bars: Vec<Bar> = valued.iter().map(bar).collect();
        let bars = Bars { title, axis: Axis::from_zero(high), base: 0.0, axis_title, format: short, bars: &bars };
        figures.push(Figure::new(bars.picture()?, valued.iter().map(|(case, _)| *case).collect()));
    }
    Ok(figures)
}
