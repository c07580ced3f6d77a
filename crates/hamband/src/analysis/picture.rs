//! Draws the conflict graph and the dependency relation as an SVG.
//!
//! Conflict-free methods stand on the left, and the synchronisation groups on the right. So most dependencies cross the
//! space between, conflicts are on the right of the methods, and dependencies within a column on their left.

use std::fmt::Write;

use super::graph::{Analysis, Category};

const BOX_HEIGHT: i32 = 46;
const ROW: i32 = 70;
/// Beside the columns, for arcs.
const MARGIN: i32 = 110;
/// Between the columns.
const GAP: i32 = 170;
const TOP: i32 = 56;
/// Of a frame: above its first box, for the label, and around its boxes.
const FRAME_TOP: i32 = 30;
const FRAME: i32 = 14;
const CHARACTER: i32 = 9;

const STYLE: &str = "\
svg{color-scheme:light dark}\
.page{fill:#ffffff}\
text{font-family:system-ui,sans-serif;fill:#1f2933}\
.title{font-size:17px;font-weight:600}.name{font-size:15px;font-weight:600}.small{font-size:12px}\
.box{stroke:#66707c}.reducible{fill:#dcefdf}.free{fill:#dde8f7}.conflicting{fill:#fae3cf}\
.frame{fill:none;stroke:#8a929c;stroke-dasharray:5 4}\
.conflict{fill:none;stroke:#b3421e;stroke-width:2}\
.depends{fill:none;stroke:#2d5f9e;stroke-width:1.6}.head{fill:#2d5f9e}\
@media screen and (prefers-color-scheme: dark){\
.page{fill:#15191e}text{fill:#e6eaee}.box{stroke:#8f99a5}\
.reducible{fill:#1f4227}.free{fill:#1e3a5c}.conflicting{fill:#5a3418}\
.conflict{stroke:#f08a5d}.depends{stroke:#8ab6ea}.head{fill:#8ab6ea}}";

/// A method's box.
#[derive(Clone, Copy)]
struct Place {
    x: i32,
    /// The middle.
    y: i32,
    is_left: bool,
}

/// Draws an analysis. The picture has its own colours for light and dark pages.
///
/// ```
/// use farfield_hamband::analysis::{Options, Specification, analyse, svg};
///
/// let text = "type Last { state { last: int = 0 } update set(to: int) { last := to } }";
/// let picture = svg(&analyse(&Specification::parse("last.wrdt", text)?, &Options::default())?);
/// assert!(picture.starts_with("<svg") && picture.contains("synchronisation group"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn svg(analysis: &Analysis) -> String {
    let longest = analysis.methods.iter().map(|method| method.name.len() as i32).max().unwrap_or(0);
    let width = (longest * CHARACTER + 28).max(190);
    let free = |category| {
        let of = analysis.methods.iter().enumerate().filter(move |(_, method)| method.category == category);
        of.map(|(number, _)| number).collect::<Vec<usize>>()
    };
    let mut left: Vec<(String, Vec<usize>)> = Vec::new();
    for group in &analysis.summarisation_groups {
        left.push(("summarisation group".to_owned(), group.clone()));
    }
    left.extend(free(Category::ConflictFree).into_iter().map(|method| (String::new(), vec![method])));
    let right: Vec<(String, Vec<usize>)> = analysis
        .synchronisation_groups
        .iter()
        .zip(1..)
        .map(|(group, number)| (format!("synchronisation group {number}"), group.clone()))
        .collect();
    let right_x = if left.is_empty() { MARGIN } else { MARGIN + width + GAP };
    let mut drawing = Drawing { text: String::new(), places: vec![None; analysis.methods.len()], width };
    let bottoms = [drawing.column(&left, MARGIN, true), drawing.column(&right, right_x, false)];
    let end_x = if right.is_empty() { MARGIN + width } else { right_x + width };
    let (total, height) = ((end_x + MARGIN).max(560), bottoms[0].max(bottoms[1]) + 48);
    drawing.edges(analysis);
    drawing.boxes(analysis);
    drawing.legend(height - 20);
    let name = &analysis.name;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {total} {height}\" width=\"{total}\" height=\"{height}\" \
         role=\"img\" aria-label=\"Conflicts and dependencies of {name}\">\n<style>{STYLE}</style>\n\
         <defs><marker id=\"head\" viewBox=\"0 0 10 10\" refX=\"9\" refY=\"5\" markerWidth=\"8\" markerHeight=\"8\" \
         orient=\"auto-start-reverse\"><path class=\"head\" d=\"M 0 0 L 10 5 L 0 10 z\"/></marker></defs>\n\
         <rect class=\"page\" width=\"{total}\" height=\"{height}\"/>\n\
         <text class=\"title\" x=\"24\" y=\"32\">{name}</text>\n{}</svg>\n",
        drawing.text
    )
}

struct Drawing {
    text: String,
    places: Vec<Option<Place>>,
    /// Of a box.
    width: i32,
}

impl Drawing {
    /// Places the methods of groups below each other, with frames around groups that have a name; the lower end.
    fn column(&mut self, groups: &[(String, Vec<usize>)], x: i32, is_left: bool) -> i32 {
        let mut y = TOP;
        for (label, group) in groups {
            let top = y;
            y += if label.is_empty() { 0 } else { FRAME_TOP };
            for method in group {
                self.places[*method] = Some(Place { x, y: y + BOX_HEIGHT / 2, is_left });
                y += ROW;
            }
            if !label.is_empty() {
                let (left, width, height) = (x - FRAME, self.width + 2 * FRAME, y - top - (ROW - BOX_HEIGHT) + FRAME);
                let _ = writeln!(
                    self.text,
                    "<rect class=\"frame\" x=\"{left}\" y=\"{top}\" width=\"{width}\" height=\"{height}\" rx=\"10\"/>\n\
                     <text class=\"small\" x=\"{x}\" y=\"{}\">{label}</text>",
                    top + 20
                );
                y += FRAME;
            }
        }
        y
    }

    fn edges(&mut self, analysis: &Analysis) {
        for (a, b) in &analysis.conflicts {
            let (Some(from), Some(to)) = (self.places[*a], self.places[*b]) else { continue };
            let names = (&analysis.methods[*a].name, &analysis.methods[*b].name);
            let title = format!("{} conflicts with {}", names.0, names.1);
            self.arc(from, to, from.x + self.width, 1, "class=\"conflict\"", &title);
        }
        for (of, on) in &analysis.dependencies {
            let (Some(from), Some(to)) = (self.places[*of], self.places[*on]) else { continue };
            let title = format!("{} depends on {}", analysis.methods[*of].name, analysis.methods[*on].name);
            let attributes = "class=\"depends\" marker-end=\"url(#head)\"";
            if from.is_left == to.is_left {
                self.arc(from, to, from.x, -1, attributes, &title);
                continue;
            }
            // From one column to the other.
            let side = |place: Place| if place.is_left { place.x + self.width } else { place.x };
            let (start, end) = (side(from), side(to));
            let middle = (start + end) / 2;
            let (from, to) = (from.y - 6, to.y + 6);
            let path = format!("M {start} {from} C {middle} {from} {middle} {to} {end} {to}");
            let _ = writeln!(self.text, "<path {attributes} d=\"{path}\"><title>{title}</title></path>");
        }
    }

    /// From one box of a column to another, or to itself, on the right (`side` is 1) or the left of it.
    fn arc(&mut self, from: Place, to: Place, x: i32, side: i32, attributes: &str, title: &str) {
        let rows = (from.y - to.y).abs() / ROW;
        let (start, end) = match from.y.cmp(&to.y) {
            std::cmp::Ordering::Equal => (from.y - 16, to.y - 2),
            std::cmp::Ordering::Less => (from.y + 8, to.y - 8),
            std::cmp::Ordering::Greater => (from.y - 8, to.y + 8),
        };
        let far = x + side * (34 + 22 * rows).min(130);
        let path = format!("M {x} {start} C {far} {start} {far} {end} {x} {end}");
        let _ = writeln!(self.text, "<path {attributes} d=\"{path}\"><title>{title}</title></path>");
    }

    fn boxes(&mut self, analysis: &Analysis) {
        for (method, place) in analysis.methods.iter().zip(&self.places) {
            let Some(Place { x, y, .. }) = *place else { continue };
            let class = match method.category {
                Category::Reducible => "reducible",
                Category::ConflictFree => "free",
                Category::Conflicting => "conflicting",
            };
            let (top, width) = (y - BOX_HEIGHT / 2, self.width);
            let _ = writeln!(
                self.text,
                "<rect class=\"box {class}\" x=\"{x}\" y=\"{top}\" width=\"{width}\" height=\"{BOX_HEIGHT}\" rx=\"8\"/>\n\
                 <text class=\"name\" x=\"{}\" y=\"{}\">{}</text>\n<text class=\"small\" x=\"{}\" y=\"{}\">{}</text>",
                x + 12,
                y - 3,
                method.name,
                x + 12,
                y + 15,
                method.category,
            );
        }
    }

    fn legend(&mut self, y: i32) {
        let line = y - 4;
        let _ = writeln!(
            self.text,
            "<path class=\"conflict\" d=\"M 24 {line} H 64\"/>\n<text class=\"small\" x=\"72\" y=\"{y}\">conflict: one order everywhere</text>\n\
             <path class=\"depends\" marker-end=\"url(#head)\" d=\"M 280 {line} H 320\"/>\n\
             <text class=\"small\" x=\"328\" y=\"{y}\">depends on: applied after it</text>"
        );
    }
}
