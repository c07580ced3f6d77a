//! Pictures, as SVG. They are drawn in the colours of a light page; `picture.css` gives other colours to a dark one,
//! and dashes to the lines, by the colours that are written here.

mod axis;
mod bars;
mod chart;

use anyhow::Result;
use html_escape::encode_quoted_attribute as escape;
use plotters::coord::Shift;
use plotters::prelude::{DrawingArea, IntoDrawingArea, IntoFont, RGBColor, SVGBackend, TextStyle};

pub(super) use axis::Axis;
pub(super) use bars::{Bar, Bars};
pub(super) use chart::Chart;

/// Colours of a dark page, and dashes.
pub(super) const STYLE: &str = include_str!("picture.css");

/// Text and marks.
const INK: RGBColor = RGBColor(0x1b, 0x20, 0x26);
const QUIET: RGBColor = RGBColor(0x5c, 0x66, 0x71);
const GRID: RGBColor = RGBColor(0xd9, 0xde, 0xe4);
const PAPER: RGBColor = RGBColor(0xff, 0xff, 0xff);
const LOSS: RGBColor = RGBColor(0xb8, 0x3a, 0x00);

/// Colours of lines: distinguishable with limited colour vision, on white, and, as `picture.css` has them, on black.
pub(super) const STYLES: [RGBColor; 6] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xc8, 0x4e, 0x00),
    RGBColor(0x00, 0x7a, 0x5a),
    RGBColor(0xa1, 0x45, 0x8f),
    RGBColor(0x8f, 0x6a, 0x00),
    RGBColor(0x4a, 0x4a, 0x4b),
];

/// The width of every picture, that of a phone: a wider screen shows several beside each other.
const WIDTH: i32 = 380;
/// The backend has whole coordinates only. These are so many in one of ours, so that lines are smooth.
const FINE: i32 = 4;
/// plotters takes the size of a font by its height, and writes it divided by this.
const FONT_HEIGHT: f64 = 1.24;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// A finished picture.
pub(super) struct Picture {
    /// Of the file that it is also written to, and of its place in the page.
    pub(super) name: String,
    pub(super) title: String,
    /// A description for readers who do not see the picture.
    pub(super) described: String,
    height: i32,
    /// The content of the `svg` element.
    content: String,
}

impl Picture {
    /// Draws with coordinates of 1/[`FINE`].
    fn draw(title: &str, described: String, height: i32, draw: impl Fn(&Area) -> Result<()>) -> Result<Picture> {
        let mut text = String::new();
        {
            let root =
                SVGBackend::with_string(&mut text, ((WIDTH * FINE) as u32, (height * FINE) as u32)).into_drawing_area();
            root.fill(&PAPER)?;
            draw(&root)?;
            root.present()?;
        }
        // The element around it depends on the place of the picture.
        let content = text.split_once('>').map_or("", |(_, rest)| rest);
        let content = content.trim_end().trim_end_matches("</svg>").to_owned();
        Ok(Picture { name: String::new(), title: title.to_owned(), described, height, content })
    }

    /// As an element of a page.
    pub(super) fn in_page(&self) -> String {
        let (width, height) = (WIDTH * FINE, self.height * FINE);
        format!(
            "<svg class=\"picture\" role=\"img\" viewBox=\"0 0 {width} {height}\" aria-label=\"{0}\">\n<title>{0}\
             </title>\n{1}</svg>\n",
            escape(&self.described),
            self.content
        )
    }

    /// As a file.
    pub(super) fn alone(&self) -> String {
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"picture\" role=\"img\" width=\"{WIDTH}\" \
             height=\"{}\" viewBox=\"0 0 {} {}\">\n<title>{}</title>\n<style>\n{STYLE}</style>\n{}</svg>\n",
            self.height,
            WIDTH * FINE,
            self.height * FINE,
            escape(&self.described),
            self.content
        )
    }
}

/// Text of so many pixels.
fn font(px: f64, colour: RGBColor) -> TextStyle<'static> {
    ("sans-serif", px * f64::from(FINE) * FONT_HEIGHT).into_font().color(&colour)
}

/// About how wide a text of 12 pixels is. There are no fonts here to measure it with.
fn width_of(text: &str) -> i32 {
    text.chars().map(|c| if "iljt.,:' ".contains(c) { 4 } else { 7 }).sum()
}
