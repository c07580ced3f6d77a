//! The pictures: the output over time, and its error by the controller's period. They are drawn in the colours of a
//! light page; `picture.css` gives other colours to a dark one.

use std::error::Error;
use std::fs;
use std::ops::Range;
use std::path::Path;

use plotters::chart::{ChartBuilder, ChartContext};
use plotters::coord::Shift;
use plotters::coord::cartesian::Cartesian2d;
use plotters::coord::types::RangedCoordf64;
use plotters::element::{PathElement, Polygon, Rectangle, Text};
use plotters::prelude::{Color, DrawingArea, IntoDrawingArea, IntoFont, RGBColor, SVGBackend, TextStyle};
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::Run;
use crate::model::{Nanos, STEADY_UP_TO_US, Stray, target_volts};

const STYLE: &str = include_str!("picture.css");
const INK: RGBColor = RGBColor(0x1b, 0x20, 0x26);
const QUIET: RGBColor = RGBColor(0x5c, 0x66, 0x71);
const GRID: RGBColor = RGBColor(0xd9, 0xde, 0xe4);
const PAPER: RGBColor = RGBColor(0xff, 0xff, 0xff);
const STEADY: RGBColor = RGBColor(0x00, 0x72, 0xb2);
const STRAYS: RGBColor = RGBColor(0xc8, 0x4e, 0x00);
/// Behind the periods up to which the paper's system is stable.
const SHADE: RGBColor = RGBColor(0xe3, 0xf1, 0xec);

/// The backend has whole coordinates only. These are so many in one of ours, so that lines are smooth.
const FINE: i32 = 4;
/// plotters takes the size of a font by its height, and writes it divided by this.
const FONT_HEIGHT: f64 = 1.24;
const WIDTH: i32 = 760;
/// The labels of an axis.
const LABELS: i32 = 20;

type Drawing<T> = Result<T, Box<dyn Error>>;
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// What all runs have in common.
pub(crate) struct About {
    pub(crate) converters: usize,
    pub(crate) seconds: f64,
    pub(crate) delay_us: u32,
    pub(crate) is_real_time: bool,
}

impl About {
    /// For the title of a picture or table.
    pub(crate) fn described(&self) -> String {
        let Self { converters, seconds, delay_us, is_real_time } = self;
        let time = if *is_real_time { "real time" } else { "virtual time" };
        let delay = if *delay_us == 0 { String::new() } else { format!(", messages {delay_us} µs late") };
        let plural = if *converters == 1 { "" } else { "s" };
        format!("{converters} converter{plural}, {seconds} s, {time}{delay}")
    }
}

/// Writes a picture to a file.
pub(crate) fn write(file: &Path, picture: &str) -> Drawing<()> {
    fs::write(file, picture).map_err(|error| format!("the picture {} cannot be written: {error}", file.display()))?;
    Ok(())
}

/// The output over time: a row for each period, with the start on the left and the whole run on the right.
pub(crate) fn over_time(about: &About, runs: &[Run]) -> Drawing<String> {
    const TOP: i32 = 44;
    const ROW: i32 = 74;
    const BOTTOM: i32 = LABELS + 20;
    const NAME: i32 = 116;
    const START_WIDTH: i32 = 270;
    let target = target_volts(about.converters);
    let strays: Vec<Stray> = runs.iter().map(|run| Stray::of(target, &run.seen)).collect();
    let start_s = (about.seconds / 2.0).min(0.004);
    let overshoot = strays.iter().map(Stray::overshoot_volts).fold(0.0, f64::max);
    let start_volts = 0.0..(target + overshoot) * 1.05;
    let widest = strays.iter().map(Stray::max_volts).fold(0.05 * target, f64::max) * 1.15;
    let volts = target - widest..target + widest;
    let height = TOP + ROW * runs.len() as i32 + BOTTOM;
    let title = format!("Output voltage over time, by the period of the controller: {}", about.described());
    draw(&title, height, |root| {
        text(root, (8, 6), 14.0, INK, HPos::Left, &title)?;
        text(root, (NAME + 8, 26), 12.0, QUIET, HPos::Left, "volts at the start")?;
        text(root, (NAME + START_WIDTH + 8, 26), 12.0, QUIET, HPos::Left, "volts in the whole run (note the scale)")?;
        for (at, (run, stray)) in runs.iter().zip(&strays).enumerate() {
            let is_last = at + 1 == runs.len();
            let top = TOP + ROW * at as i32;
            let bottom = top + ROW + if is_last { LABELS } else { 0 };
            let colour = if stray.settled() { STEADY } else { STRAYS };
            text(root, (8, top + 14), 13.0, INK, HPos::Left, &format!("{} µs", run.period_us()))?;
            let verdict = if stray.settled() { "steady" } else { "strays" };
            text(root, (8, top + 31), 12.0, colour, HPos::Left, verdict)?;
            text(root, (8, top + 46), 12.0, QUIET, HPos::Left, &format!("rms {:.1} V", stray.rms_volts()))?;
            let area = |left: i32, right: i32| part(root, left..right, top..bottom);
            let start = area(NAME, NAME + START_WIDTH);
            let mut chart = axes(&start, 0.0..start_s * 1000.0, start_volts.clone(), is_last)?;
            let seen = run.seen.iter().take_while(|(time, _)| *time as f64 * 1e-9 <= start_s);
            let line: Vec<_> = seen.map(|(time, volts)| (*time as f64 * 1e-6, *volts)).collect();
            mark_target(&mut chart, start_s * 1000.0, target)?;
            chart.draw_series([PathElement::new(line, colour.stroke_width(5))])?;

            let whole = area(NAME + START_WIDTH, WIDTH - 8);
            let mut chart = axes(&whole, 0.0..about.seconds, volts.clone(), is_last)?;
            mark_target(&mut chart, about.seconds, target)?;
            chart.draw_series([Polygon::new(envelope(&run.seen, &volts), colour.filled())])?;
        }
        let y = height - 20;
        text(root, (NAME + (40 + START_WIDTH) / 2, y), 12.0, QUIET, HPos::Center, "milliseconds")?;
        text(root, (NAME + START_WIDTH + (WIDTH - NAME - START_WIDTH) / 2, y), 12.0, QUIET, HPos::Center, "seconds")
    })
}

/// The error of the output by the controller's period.
pub(crate) fn by_period(about: &About, runs: &[Run]) -> Drawing<String> {
    const TOP: i32 = 46;
    const PLOT: i32 = 250;
    const HEIGHT: i32 = TOP + PLOT + LABELS + 50;
    let target = target_volts(about.converters);
    let strays: Vec<Stray> = runs.iter().map(|run| Stray::of(target, &run.seen)).collect();
    let percent = |volts: f64| 100.0 * volts / target;
    let most = strays.iter().map(|stray| percent(stray.max_volts())).fold(1.0, f64::max) * 1.1;
    let longest = runs.iter().map(Run::period_us).max().unwrap_or(0) as f64 * 1.05;
    let title = format!("Error of the output voltage by the period of the controller: {}", about.described());
    draw(&title, HEIGHT, |root| {
        text(root, (8, 6), 14.0, INK, HPos::Left, &title)?;
        text(root, (8, 28), 12.0, QUIET, HPos::Left, "percent of the target, in the second half of each run")?;
        let area = part(root, 8..WIDTH - 16, TOP..TOP + PLOT + LABELS);
        let steady_up_to = f64::from(STEADY_UP_TO_US);
        // The shade is behind the grid.
        let shade = scales(&area, 0.0..longest, 0.0..most)?;
        let corners = [shade.backend_coord(&(0.0, most)), shade.backend_coord(&(steady_up_to, 0.0))];
        root.draw(&Rectangle::new(corners, SHADE.filled()))?;
        let mut chart = axes(&area, 0.0..longest, 0.0..most, true)?;
        // Behind the words there is no grid.
        let (x, y) = chart.backend_coord(&(steady_up_to / 2.0, most * 0.95));
        let (half, line) = (125 * FINE, 16 * FINE);
        root.draw(&Rectangle::new([(x - half, y - FINE), (x + half, y + line)], SHADE.filled()))?;
        text(root, (x / FINE, y / FINE), 12.0, QUIET, HPos::Center, "steady in LOCO's figure 21: up to 40 µs")?;
        type Measure = fn(&Stray) -> f64;
        let lines: [(&str, RGBColor, Measure); 2] =
            [("at most", STRAYS, Stray::max_volts), ("root mean square", STEADY, Stray::rms_volts)];
        for (at, (name, colour, measure)) in lines.into_iter().enumerate() {
            let points: Vec<_> = runs
                .iter()
                .zip(&strays)
                .map(|(run, stray)| (run.period_us() as f64, percent(measure(stray))))
                .collect();
            let marks: Vec<_> = points.iter().map(|point| marker(at, chart.backend_coord(point), colour)).collect();
            chart.draw_series([PathElement::new(points, colour.stroke_width(2 * FINE as u32))])?;
            marks.iter().try_for_each(|mark| root.draw(mark))?;
            let (x, y) = (60 + 160 * at as i32, HEIGHT - 14);
            let line = [(x * FINE, y * FINE), ((x + 28) * FINE, y * FINE)];
            root.draw(&PathElement::new(line, colour.stroke_width(2 * FINE as u32)))?;
            root.draw(&marker(at, ((x + 14) * FINE, y * FINE), colour))?;
            text(root, (x + 36, y - 7), 12.0, INK, HPos::Left, name)?;
        }
        let middle = (8 + 44 + WIDTH - 16) / 2;
        text(root, (middle, TOP + PLOT + LABELS + 4), 12.0, QUIET, HPos::Center, "period of the controller, in µs")
    })
}

/// The least and the greatest of what was seen in each of many parts of the run: forth along the one, back along the
/// other.
fn envelope(seen: &[(Nanos, f64)], volts: &Range<f64>) -> Vec<(f64, f64)> {
    const PARTS: usize = 160;
    /// A steady output is a line of this share of the axis.
    const LINE: f64 = 0.025;
    let (mut above, mut below) = (Vec::new(), Vec::new());
    let last = seen.last().map_or(0, |last| last.0);
    let end = last + 1;
    for part in seen.chunk_by(|a, b| a.0 * PARTS as Nanos / end == b.0 * PARTS as Nanos / end) {
        let [least, most] = part.iter().fold([f64::INFINITY, f64::NEG_INFINITY], |[least, most], (_, volts)| {
            [least.min(*volts), most.max(*volts)]
        });
        let thicker = ((volts.end - volts.start) * LINE - (most - least)).max(0.0) / 2.0;
        let within = |value: f64| value.clamp(volts.start, volts.end);
        let is_last = part[part.len() - 1].0 == last;
        for time in [part[0].0, last].into_iter().take(1 + usize::from(is_last)) {
            let time_s = time as f64 * 1e-9;
            above.push((time_s, within(most + thicker)));
            below.push((time_s, within(least - thicker)));
        }
    }
    above.into_iter().chain(below.into_iter().rev()).collect()
}

/// Draws with coordinates of 1/[`FINE`].
fn draw(title: &str, height: i32, draw: impl Fn(&Area) -> Drawing<()>) -> Drawing<String> {
    let mut drawn = String::new();
    {
        let size = ((WIDTH * FINE) as u32, (height * FINE) as u32);
        let root = SVGBackend::with_string(&mut drawn, size).into_drawing_area();
        root.fill(&PAPER)?;
        draw(&root)?;
        root.present()?;
    }
    let content = drawn.split_once('>').map_or("", |(_, rest)| rest);
    let (wide, high) = (WIDTH * FINE, height * FINE);
    Ok(format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"dcdc\" role=\"img\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {wide} {high}\">\n<title>{title}</title>\n<style>\n{STYLE}</style>{content}"
    ))
}

fn part<'a>(root: &Area<'a>, x: Range<i32>, y: Range<i32>) -> Area<'a> {
    root.clone().shrink((x.start * FINE, y.start * FINE), ((x.end - x.start) * FINE, (y.end - y.start) * FINE))
}

/// A chart without its axes, and room for labels below it if there are any.
fn scales<'a, 'b>(area: &'a Area<'b>, x: Range<f64>, y: Range<f64>) -> Drawing<Chart<'a, 'b>> {
    Ok(builder(area, true).build_cartesian_2d(x, y)?)
}

fn builder<'a, 'b>(area: &'a Area<'b>, has_labels: bool) -> ChartBuilder<'a, 'b, SVGBackend<'b>> {
    let mut builder = ChartBuilder::on(area);
    builder.margin_top(8 * FINE).margin_right(10 * FINE).y_label_area_size(40 * FINE);
    builder.x_label_area_size(if has_labels { LABELS * FINE } else { 0 });
    builder
}

fn axes<'a, 'b>(area: &'a Area<'b>, x: Range<f64>, y: Range<f64>, has_labels: bool) -> Drawing<Chart<'a, 'b>> {
    let mut chart = builder(area, has_labels).build_cartesian_2d(x, y)?;
    // As many digits as it has, without those that are lost in sums.
    let label = |value: &f64| ((value * 1e6).round() / 1e6 + 0.0).to_string();
    let rows = if area.dim_in_pixel().1 > (100 * FINE) as u32 { 6 } else { 3 };
    chart
        .configure_mesh()
        .x_labels(6)
        .y_labels(rows)
        .max_light_lines(0)
        .bold_line_style(GRID.stroke_width(FINE as u32))
        .axis_style(QUIET.stroke_width(FINE as u32))
        .label_style(font(11.0, INK))
        .set_all_tick_mark_size(3 * FINE)
        .x_label_formatter(&label)
        .y_label_formatter(&label)
        .draw()?;
    Ok(chart)
}

fn mark_target(chart: &mut Chart, end: f64, target: f64) -> Drawing<()> {
    chart.draw_series([PathElement::new([(0.0, target), (end, target)], QUIET.stroke_width(FINE as u32))])?;
    Ok(())
}

fn font(px: f64, colour: RGBColor) -> TextStyle<'static> {
    ("sans-serif", px * f64::from(FINE) * FONT_HEIGHT).into_font().color(&colour)
}

fn text(root: &Area, (x, y): (i32, i32), px: f64, colour: RGBColor, h: HPos, text: &str) -> Drawing<()> {
    let style = font(px, colour).pos(Pos::new(h, VPos::Top));
    root.draw(&Text::new(text.to_owned(), (x * FINE, y * FINE), style))?;
    Ok(())
}

/// A shape of its own for each line.
fn marker(line: usize, (x, y): (i32, i32), colour: RGBColor) -> Polygon<(i32, i32)> {
    const SIZE: i32 = 4 * FINE;
    let shape = match line {
        0 => [(-SIZE, 0), (0, -SIZE), (SIZE, 0), (0, SIZE)],
        _ => [(-SIZE, -SIZE), (SIZE, -SIZE), (SIZE, SIZE), (-SIZE, SIZE)].map(|(x, y)| (x * 3 / 4, y * 3 / 4)),
    };
    Polygon::new(shape.map(|(dx, dy)| (x + dx, y + dy)), colour.filled())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Setting;
    use crate::model::{Timing, simulate};

    fn pictures(is_real_time: bool) -> [String; 2] {
        let run = |period_us: u64| {
            let timing = Timing { period: period_us * 1000, delay: 0, end: 50_000_000 };
            Run { setting: Setting { timing }, seen: simulate(3, timing), achieved_us: None }
        };
        let about = About { converters: 3, seconds: 0.05, delay_us: 0, is_real_time };
        let runs = [run(40), run(80)];
        [over_time(&about, &runs).expect("a picture"), by_period(&about, &runs).expect("a picture")]
    }

    #[test]
    fn a_picture_names_its_time_and_the_straying_converter() {
        for (is_real_time, time) in [(true, "3 converters, 0.05 s, real time"), (false, ", virtual time")] {
            for picture in pictures(is_real_time) {
                assert!(picture.contains(time) && picture.trim_end().ends_with("</svg>"), "{picture}");
            }
        }
        let [over_time, _] = pictures(false);
        assert_eq!([over_time.matches("steady").count(), over_time.matches("strays").count()], [1, 1]);
        assert!(["0.01", "0.04"].iter().all(|label| over_time.contains(&format!("\n{label}\n"))), "{over_time}");
    }

    /// Every colour that is drawn has another one on a dark page.
    #[test]
    fn a_dark_page_has_colours_of_its_own() {
        for picture in pictures(false) {
            let (style, content) = picture.split_once("</style>").expect("a style");
            for kind in ["fill=\"#", "stroke=\"#"] {
                for colour in content.split(kind).skip(1).map(|rest| &rest[..6]) {
                    assert!(style.contains(&format!("[{kind}{colour}\"]")), "{kind}{colour}");
                }
            }
        }
    }

    #[test]
    fn an_envelope_keeps_every_peak() {
        let seen: Vec<_> = (0..100_000).map(|at| (at, if at == 54_321 { 9.0 } else { 1.0 })).collect();
        let most = envelope(&seen, &(0.0..10.0)).iter().map(|point| point.1).fold(0.0, f64::max);
        assert_eq!(most, 9.0);
    }
}
