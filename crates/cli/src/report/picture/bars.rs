//! Horizontal bars, each below its name: long names have room on a phone, too.

use anyhow::Result;
use plotters::element::{Rectangle, Text};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, RGBColor};

use super::{Area, Axis, FINE, GRID, INK, LOSS, Picture, QUIET, STYLES, WIDTH, font, width_of};

const TOP: i32 = 6;
const LEFT: i32 = 10;
/// For the values.
const RIGHT: i32 = 66;
const ROW: i32 = 36;
const BOTTOM: i32 = 40;

/// A bar.
pub(in super::super) struct Bar {
    pub(in super::super) label: String,
    pub(in super::super) value: f64,
    pub(in super::super) low: f64,
    pub(in super::super) high: f64,
    /// The value, in words.
    pub(in super::super) text: String,
    pub(in super::super) style: usize,
    /// Whether it is one that Farfield loses.
    pub(in super::super) is_loss: bool,
}

/// A picture of bars.
pub(in super::super) struct Bars<'a> {
    pub(in super::super) title: &'a str,
    pub(in super::super) axis: Axis,
    /// Where bars begin.
    pub(in super::super) base: f64,
    pub(in super::super) axis_title: &'a str,
    pub(in super::super) format: fn(f64) -> String,
    pub(in super::super) bars: &'a [Bar],
}

impl Bars<'_> {
    /// Draws it.
    pub(in super::super) fn picture(&self) -> Result<Picture> {
        let all: Vec<_> = self.bars.iter().map(|bar| format!("{}: {}", bar.label, bar.text)).collect();
        let described = format!("{}: {}. {}", self.title, self.axis_title, all.join("; "));
        let height = TOP + self.bars.len() as i32 * ROW + BOTTOM;
        Picture::draw(self.title, described, height, |root| {
            self.axis(root, height)?;
            self.bars.iter().enumerate().try_for_each(|(at, bar)| self.bar(root, TOP + at as i32 * ROW, bar))
        })
    }

    fn x(&self, value: f64) -> i32 {
        let length = f64::from((WIDTH - LEFT - RIGHT) * FINE);
        LEFT * FINE + (self.axis.place(value) * length).round() as i32
    }

    fn axis(&self, root: &Area, height: i32) -> Result<()> {
        let bottom = (height - BOTTOM) * FINE;
        let upright = |x: i32, colour: RGBColor, half: i32| {
            Rectangle::new([(x - half, TOP * FINE), (x + half, bottom)], colour.filled())
        };
        let centred = |px, colour| font(px, colour).pos(Pos::new(HPos::Center, VPos::Top));
        for tick in self.axis.ticks(WIDTH - LEFT - RIGHT, |value| width_of(&(self.format)(value))) {
            root.draw(&upright(self.x(tick), GRID, FINE / 2))?;
            root.draw(&Text::new((self.format)(tick), (self.x(tick), bottom + 4 * FINE), centred(12.0, INK)))?;
        }
        root.draw(&upright(self.x(self.base), QUIET, FINE / 2))?;
        let note = if self.axis.is_log() { " (log)" } else { "" };
        let middle = (LEFT + WIDTH - RIGHT) / 2 * FINE;
        let title = format!("{}{note}", self.axis_title);
        root.draw(&Text::new(title, (middle, bottom + 21 * FINE), centred(12.0, QUIET)))?;
        Ok(())
    }

    fn bar(&self, root: &Area, y: i32, bar: &Bar) -> Result<()> {
        let colour = if bar.is_loss { LOSS } else { STYLES[bar.style % STYLES.len()] };
        let (from, to) = (self.x(self.base.min(bar.value)), self.x(self.base.max(bar.value)));
        let (top, bottom) = ((y + 17) * FINE, (y + 30) * FINE);
        root.draw(&Text::new(bar.label.clone(), ((LEFT + 3) * FINE, y * FINE), font(12.0, INK)))?;
        root.draw(&Rectangle::new([(from, top), (to.max(from + FINE), bottom)], colour.mix(0.85).filled()))?;
        let (low, high, middle, half) = (self.x(bar.low), self.x(bar.high), (top + bottom) / 2, FINE / 2);
        if high > low {
            for (from, to) in [
                ((low, middle - half), (high, middle + half)),
                ((low - half, middle - 4 * FINE), (low + half, middle + 4 * FINE)),
                ((high - half, middle - 4 * FINE), (high + half, middle + 4 * FINE)),
            ] {
                root.draw(&Rectangle::new([from, to], INK.filled()))?;
            }
        }
        let text = font(12.0, if bar.is_loss { LOSS } else { INK }).pos(Pos::new(HPos::Right, VPos::Center));
        root.draw(&Text::new(bar.text.clone(), ((WIDTH - 6) * FINE, middle), text))?;
        Ok(())
    }
}
