//! Lines over an axis, with whiskers and markers.

use anyhow::Result;
use plotters::chart::ChartBuilder;
use plotters::element::{PathElement, Polygon, Rectangle, Text};
use plotters::series::LineSeries;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, RGBColor};

use super::{Area, Axis, FINE, GRID, INK, Picture, QUIET, STYLES, WIDTH, font, width_of};
use crate::report::panel::Line;

const TOP: i32 = 26;
const LEFT: i32 = 52;
/// Half of a label at the end of the axis.
const RIGHT: i32 = 24;
const PLOT_HEIGHT: i32 = 190;
/// The labels of the axis, and its title.
const LABELS: i32 = 22;
const BOTTOM: i32 = LABELS + 22;
const LEGEND_ROW: i32 = 18;

/// A picture of lines.
pub(in super::super) struct Chart<'a> {
    pub(in super::super) title: &'a str,
    pub(in super::super) x: Axis,
    pub(in super::super) y: Axis,
    pub(in super::super) x_title: String,
    pub(in super::super) y_title: String,
    pub(in super::super) x_format: fn(f64) -> String,
    pub(in super::super) y_format: fn(f64) -> String,
    pub(in super::super) lines: &'a [Line],
    /// Whether points have markers and whiskers.
    pub(in super::super) has_points: bool,
}

impl Chart<'_> {
    /// Draws it.
    pub(in super::super) fn picture(&self) -> Result<Picture> {
        let columns = self.columns();
        let rows = self.lines.len().div_ceil(columns) as i32;
        let height = TOP + PLOT_HEIGHT + BOTTOM + rows * LEGEND_ROW + 6;
        Picture::draw(self.title, self.described(), height, |root| {
            let note = |axis: &Axis| if axis.is_log() { " (log)" } else { "" };
            let y_title = format!("{}{}", self.y_title, note(&self.y));
            root.draw(&Text::new(y_title, (4 * FINE, 4 * FINE), font(12.0, QUIET)))?;
            let (plot, legend) = root.split_vertically((TOP + PLOT_HEIGHT + BOTTOM) * FINE);
            self.plot(&plot.margin(0, (BOTTOM - LABELS) * FINE, 0, 0))?;
            let x_title = format!("{}{}", self.x_title, note(&self.x));
            let middle = ((LEFT + WIDTH - RIGHT) / 2 * FINE, (TOP + PLOT_HEIGHT + LABELS) * FINE);
            let centred = font(12.0, QUIET).pos(Pos::new(HPos::Center, VPos::Top));
            root.draw(&Text::new(x_title, middle, centred))?;
            self.legend(&legend, columns)
        })
    }

    fn described(&self) -> String {
        let names: Vec<_> = self.lines.iter().map(|line| line.label.as_str()).collect();
        format!("{}: {} by {} of {}", self.title, self.y_title, self.x_title, names.join(", "))
    }

    fn plot(&self, area: &Area) -> Result<()> {
        let x_width = |value| width_of(&(self.x_format)(value));
        let x = self.x.thinned(WIDTH - LEFT - RIGHT, x_width);
        let y = self.y.thinned(PLOT_HEIGHT, |_| 14);
        let mut chart = ChartBuilder::on(area)
            .margin_top(TOP * FINE)
            .margin_right(RIGHT * FINE)
            .x_label_area_size(LABELS * FINE)
            .y_label_area_size(LEFT * FINE)
            .build_cartesian_2d(x, y)?;
        chart
            .configure_mesh()
            .bold_line_style(GRID.stroke_width(FINE as u32))
            .axis_style(QUIET.stroke_width(FINE as u32))
            .label_style(font(12.0, INK))
            .set_all_tick_mark_size(4 * FINE)
            .x_label_formatter(&|value| (self.x_format)(*value))
            .y_label_formatter(&|value| (self.y_format)(*value))
            .draw()?;
        // The first line, which is Farfield's, is drawn above the others.
        for line in self.lines.iter().rev() {
            let colour = colour(line);
            let points = line.points.iter().map(|point| (point.x, point.middle));
            chart.draw_series(LineSeries::new(points, colour.stroke_width(2 * FINE as u32)))?;
            for point in line.points.iter().filter(|_| self.has_points) {
                let at = |y| chart.backend_coord(&(point.x, y));
                whiskers(area, colour, at(point.low), at(point.high))?;
                area.draw(&marker(line.style, at(point.middle), colour))?;
            }
        }
        Ok(())
    }

    /// Two columns, if the names are short enough.
    fn columns(&self) -> usize {
        let widest = self.lines.iter().map(|line| width_of(&line.label)).max().unwrap_or(0);
        if widest + 44 <= WIDTH / 2 && self.lines.len() > 1 { 2 } else { 1 }
    }

    fn legend(&self, area: &Area, columns: usize) -> Result<()> {
        for (at, line) in self.lines.iter().enumerate() {
            let x = 8 + (at % columns) as i32 * (WIDTH / columns as i32);
            let y = 6 + (at / columns) as i32 * LEGEND_ROW;
            let colour = colour(line);
            let (start, end) = ((x * FINE, y * FINE), ((x + 28) * FINE, y * FINE));
            area.draw(&PathElement::new([start, end], colour.stroke_width(2 * FINE as u32)))?;
            if self.has_points {
                area.draw(&marker(line.style, ((x + 14) * FINE, y * FINE), colour))?;
            }
            area.draw(&Text::new(line.label.clone(), ((x + 34) * FINE, (y - 7) * FINE), font(12.0, INK)))?;
        }
        Ok(())
    }
}

fn colour(line: &Line) -> RGBColor {
    STYLES[line.style % STYLES.len()]
}

/// From the least of the repetitions to the greatest.
fn whiskers(area: &Area, colour: RGBColor, (x, low): (i32, i32), (_, high): (i32, i32)) -> Result<()> {
    if low == high {
        return Ok(());
    }
    let (half, cap) = (FINE / 2, 4 * FINE);
    // Rectangles, because lines of this colour have dashes.
    for (from, to) in [
        ((x - half, high), (x + half, low)),
        ((x - cap, high - half), (x + cap, high + half)),
        ((x - cap, low - half), (x + cap, low + half)),
    ] {
        area.draw(&Rectangle::new([from, to], colour.filled()))?;
    }
    Ok(())
}

/// A shape of its own for each style.
fn marker(style: usize, (x, y): (i32, i32), colour: RGBColor) -> Polygon<(i32, i32)> {
    let round: Vec<_> = (0..16).map(|at| (f64::from(at) * std::f64::consts::TAU / 16.0).sin_cos()).collect();
    let shape: &[(f64, f64)] = match style % STYLES.len() {
        0 => &round,
        1 => &[(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)],
        2 => &[(0.0, -1.2), (1.1, 0.8), (-1.1, 0.8)],
        3 => &[(0.0, -1.3), (1.3, 0.0), (0.0, 1.3), (-1.3, 0.0)],
        4 => &[(0.0, 1.2), (1.1, -0.8), (-1.1, -0.8)],
        _ => &[
            (-1.2, -0.4),
            (-0.4, -0.4),
            (-0.4, -1.2),
            (0.4, -1.2),
            (0.4, -0.4),
            (1.2, -0.4),
            (1.2, 0.4),
            (0.4, 0.4),
            (0.4, 1.2),
            (-0.4, 1.2),
            (-0.4, 0.4),
            (-1.2, 0.4),
        ],
    };
    let radius = 4.0 * f64::from(FINE);
    let points = shape.iter().map(|(dx, dy)| (x + (dx * radius).round() as i32, y + (dy * radius).round() as i32));
    Polygon::new(points.collect::<Vec<_>>(), colour.filled())
}
