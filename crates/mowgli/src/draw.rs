//! Draws what [`witness`](crate::witness) finds as an SVG: a column for each thread, a box for each call with its
//! subevents, and arrows for what relates them.

use std::collections::BTreeMap;

use svg::Document;
use svg::node::element::{Definitions, Description, Group, Marker, Path, Rectangle, Text, Title};

use crate::litmus::{Quantifier, Test};
use crate::relation::Relation;
use crate::witness::{Answer, Cycle, Graph};

mod layout;

use layout::{CHARACTER, LINE_HEIGHT, Layout, Line, Rect};

/// Draws the answer for a test.
///
/// ```
/// # use mowgli::{draw, litmus::Test, model::Models, witness};
/// let text = "rdmawait fig_1 { x@1; z@2; } P0@1 { Put(d, z, x); Write(x, 1); } exists (z = 1)";
/// let test = Test::parse("fig_1.litmus", text, &Models::builtin())?;
/// let picture = draw::svg(&test, &witness::find(&test)?);
/// assert!(picture.starts_with("<svg") && picture.contains("fig_1: allowed, z=1") && picture.contains("Put(d, z, x)"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn svg(test: &Test, answer: &Answer) -> String {
    let nothing = Graph {
        calls: Vec::new(),
        subevents: Vec::new(),
        relations: BTreeMap::new(),
        chosen: Vec::new(),
        seen: Vec::new(),
    };
    let (graph, cycle) = match answer {
        Answer::Witness(graph) => (graph, None),
        Answer::Forbidden(graph, cycle) => (graph, Some(cycle)),
        Answer::Impossible => (&nothing, None),
    };
    let lines = cycle.map_or_else(|| of_witness(graph), |cycle| of_cycle(graph, cycle));
    let headers =
        test.threads.iter().enumerate().map(|(at, thread)| format!("P{at} on node {}", thread.node)).collect();
    let headers = if graph.calls.is_empty() { Vec::new() } else { headers };
    let layout = Layout::new(graph, headers, &lines);
    let mut picture = Picture { document: Document::new(), layout: &layout, graph, lines: &lines, y: 0.0 };
    let heading = heading(test, answer);
    let sentences =
        [test.reason.clone(), format!("{} {}", test.quantifier, test.question), answer.reason(test.quantifier)];
    picture.document = picture
        .document
        .add(Title::new(heading.clone()))
        .add(Description::new().add(svg::node::Text::new(sentences.join("\n"))));
    picture.draw(&heading, &sentences)
}

fn heading(test: &Test, answer: &Answer) -> String {
    match answer {
        Answer::Witness(graph) => {
            let seen: Vec<_> = graph.seen.iter().map(|(name, value)| format!("{name}={value}")).collect();
            format!("{}: allowed, {}", test.name, seen.join(" "))
        }
        Answer::Forbidden(..) => format!("{}: forbidden", test.name),
        Answer::Impossible if test.quantifier == Quantifier::Forall => format!("{}: always", test.name),
        Answer::Impossible => format!("{}: never", test.name),
    }
}

/// The lines of a witness: the chosen relations. Program order is downwards.
fn of_witness(graph: &Graph) -> Vec<Line> {
    let mut lines = Vec::new();
    for label in &graph.chosen {
        let relation = &graph.relations[label];
        // Of an order, only neighbours; that the initial writes are first is clear.
        let between = relation.then(relation);
        let is_order = between.minus(relation).is_empty();
        for (from, to) in if is_order { relation.minus(&between) } else { relation.clone() }.pairs() {
            let (first, second) = (&graph.subevents[from], &graph.subevents[to]);
            let is_clear = first.call.is_none() && second.reads.is_none();
            // A library's synchronization is of interest between threads.
            let is_own = label.ends_with(".so") && graph.thread(from) == graph.thread(to);
            if !is_clear && !is_own && !is_initial(graph, from, to) {
                lines.push(Line { from, to, label: label.clone(), is_cycle: false });
            }
        }
    }
    lines
}

/// The lines of a cycle: its edges, and the sources of those of its reads that precede a write.
fn of_cycle(graph: &Graph, cycle: &Cycle) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    let nothing = Relation::empty(graph.subevents.len());
    let rf = graph.relations.get("rf").unwrap_or(&nothing);
    // (What relates initial writes to each other is in the text alone.)
    for edge in cycle.edges.iter().filter(|edge| !is_initial(graph, edge.from, edge.to)) {
        lines.push(match edge.label.strip_suffix("^-1") {
            Some(label) => Line { from: edge.to, to: edge.from, label: label.into(), is_cycle: true },
            None => Line { from: edge.from, to: edge.to, label: edge.label.clone(), is_cycle: true },
        });
    }
    let readers: Vec<usize> = cycle.edges.iter().filter(|edge| edge.label == "rb").map(|edge| edge.from).collect();
    for (from, to) in rf.pairs().filter(|(_, to)| readers.contains(to)) {
        if !lines.iter().any(|line| (line.from, line.to) == (from, to)) {
            lines.push(Line { from, to, label: "rf".into(), is_cycle: false });
        }
    }
    lines
}

/// Whether both are initial writes.
fn is_initial(graph: &Graph, from: usize, to: usize) -> bool {
    graph.subevents[from].call.is_none() && graph.subevents[to].call.is_none()
}

const CYCLE: &str = "#cf222e";
const INK: &str = "#1f2328";
const PALE: &str = "#59636e";

fn colour(line: &Line) -> &'static str {
    match line.label.as_str() {
        _ if line.is_cycle => CYCLE,
        "rf" | "rfe" => "#1a7f37",
        "mo" => "#0969da",
        "nfo" => "#8250df",
        "ao" => "#bf3989",
        "rb" | "fb" => "#bc4c00",
        "ppo" | "ippo" | "po" | "iso" => PALE,
        "pfg" | "pfp" | "pf" => "#1b7c83",
        _ => "#9a6700",
    }
}

/// The meaning of a relation, for the legend.
fn meaning(label: &str) -> String {
    match label {
        "po" => "program order",
        "ppo" => "program order that is kept: the first is done before the second",
        "ippo" => "program order that is kept between starts: the first starts before the second",
        "iso" => "steps of one call, in order",
        "rf" => "reads from: the second finds what the first wrote",
        "rfe" => "reads from, through memory: the second finds what the first wrote",
        "rb" => "reads before: the first finds what was there before the second wrote",
        "mo" => "memory order of the writes to a place",
        "nfo" => "order in which a NIC's reads and writes of one side pass",
        "ao" => "order of remote read-modify-writes",
        "pfg" => "the wait comes behind the get's end",
        "pfp" => "the wait comes behind the start of the put's writing",
        "pf" => "the wait comes behind what it waits for",
        "fb" => "finds nothing before the second was there",
        other => {
            return match other.strip_suffix(".so") {
                Some(library) => format!("what {library} synchronizes"),
                None => "of the model".into(),
            };
        }
    }
    .into()
}

/// To a tenth of a pixel.
fn tenth(number: f64) -> f64 {
    (number * 10.0).round() / 10.0
}

fn text(content: &str, x: f64, y: f64, size: u32, fill: &str) -> Text {
    let text = Text::new(content).set("x", tenth(x)).set("y", tenth(y)).set("font-size", size);
    text.set("fill", fill.to_owned())
}

fn rectangle(rect: &Rect, class: &str, fill: &str, stroke: &str) -> Rectangle {
    let rectangle = Rectangle::new().set("class", class).set("fill", fill).set("stroke", stroke);
    let rectangle = rectangle.set("x", tenth(rect.x)).set("y", tenth(rect.y));
    rectangle.set("width", tenth(rect.width)).set("height", tenth(rect.height))
}

/// Lines of words that are not longer than so many characters.
fn wrapped(sentence: &str, characters: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in sentence.split(' ').filter(|word| !word.is_empty()) {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= characters => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Around everything.
const MARGIN: f64 = 16.0;
const WIDTH_MIN: f64 = 560.0;

struct Picture<'a> {
    document: Document,
    layout: &'a Layout,
    graph: &'a Graph,
    lines: &'a [Line],
    /// The place of the next item.
    y: f64,
}

impl Picture<'_> {
    fn draw(mut self, heading: &str, sentences: &[String]) -> String {
        let width = (self.layout.width + 2.0 * MARGIN).max(WIDTH_MIN);
        let characters = ((width - 2.0 * MARGIN) / CHARACTER) as usize;
        let mut top = Group::new().add(text(heading, MARGIN, MARGIN + 14.0, 18, INK).set("font-weight", "bold"));
        self.y = MARGIN + 22.0;
        for (at, sentence) in sentences.iter().enumerate() {
            for line in wrapped(sentence, characters) {
                self.y += LINE_HEIGHT;
                let fill = if at == 2 { CYCLE } else { PALE };
                top = top.add(text(&line, MARGIN, self.y, 12, fill));
            }
        }
        self.y += 20.0;
        let left = (width - self.layout.width) / 2.0;
        let graph = self.graph().set("transform", format!("translate({} {})", tenth(left), tenth(self.y)));
        self.y += self.layout.height;
        let legend = self.legend(characters);
        self.y += MARGIN;
        let all = Rect { x: 0.0, y: 0.0, width, height: self.y };
        let document = self.document.set("viewBox", (0.0, 0.0, tenth(width), tenth(self.y)));
        let document = document.set("width", tenth(width)).set("height", tenth(self.y));
        let document = document.set("font-family", "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace");
        let document = document.add(rectangle(&all, "background", "#ffffff", "none"));
        document.add(markers(self.lines)).add(top).add(graph).add(legend).to_string()
    }

    fn graph(&self) -> Group {
        let mut group = Group::new();
        for (rect, header) in &self.layout.headers {
            let middle = text(header, rect.x + rect.width / 2.0, rect.y + 15.0, 13, INK).set("text-anchor", "middle");
            group = group.add(middle.set("font-weight", "bold").set("class", "header"));
        }
        for (rect, call) in self.layout.calls.iter().zip(&self.graph.calls) {
            group = group.add(rectangle(rect, "call", "#f6f8fa", "#d1d9e0").set("rx", 6));
            group = group.add(text(&call.text, rect.x + 10.0, rect.y + 18.0, 13, INK));
        }
        for (at, rect) in self.layout.subevents.iter().enumerate() {
            let Some(rect) = rect else { continue };
            let subevent = &self.graph.subevents[at];
            let is_on = self.lines.iter().any(|line| line.is_cycle && (line.from == at || line.to == at));
            let class = if subevent.call.is_some() { "subevent" } else { "initial" };
            let rectangle = rectangle(rect, class, "#ffffff", if is_on { CYCLE } else { "#818b98" });
            group = group.add(rectangle.set("rx", 10));
            let (x, y) = (rect.x + rect.width / 2.0, rect.y + 15.0);
            group = group.add(text(&subevent.to_string(), x, y, 12, INK).set("text-anchor", "middle"));
        }
        for (line, path) in self.lines.iter().zip(&self.layout.paths) {
            let mut data = String::new();
            for (at, curve) in path.iter().enumerate() {
                let [from, a, b, to] = curve.map(|(x, y)| format!("{},{}", tenth(x), tenth(y)));
                let start = if at == 0 { format!("M{from}") } else { String::new() };
                data += &format!("{start} C{a} {b} {to}");
            }
            let path = Path::new().set("d", data).set("fill", "none").set("stroke", colour(line));
            let path = path.set("stroke-width", if line.is_cycle { 2.4 } else { 1.3 });
            group = group.add(path.set("class", "edge").set("marker-end", format!("url(#{})", marker(line))));
        }
        for (line, rect) in self.lines.iter().zip(&self.layout.labels) {
            group = group.add(rectangle(rect, "label", "#ffffff", "none").set("fill-opacity", 0.9));
            let label = text(&line.label, rect.x + rect.width / 2.0, rect.y + 12.0, 12, colour(line));
            let weight = if line.is_cycle { "bold" } else { "normal" };
            group = group.add(label.set("text-anchor", "middle").set("font-weight", weight));
        }
        group
    }

    fn legend(&mut self, characters: usize) -> Group {
        let mut group = Group::new();
        let mut known: Vec<(&str, bool)> = Vec::new();
        let names = self.lines.iter().map(|line| line.label.chars().count()).max().unwrap_or(0) + 2;
        self.y += 20.0;
        for line in self.lines {
            if known.contains(&(&line.label, line.is_cycle)) {
                continue;
            }
            known.push((&line.label, line.is_cycle));
            self.y += LINE_HEIGHT;
            let (x, y) = (MARGIN, self.y - 4.0);
            let sample = Path::new().set("d", format!("M{x},{} h24", tenth(y))).set("stroke", colour(line));
            let sample = sample.set("stroke-width", if line.is_cycle { 2.4 } else { 1.3 });
            group = group.add(sample.set("marker-end", format!("url(#{})", marker(line))));
            group = group.add(text(&line.label, x + 36.0, self.y, 12, colour(line)).set("font-weight", "bold"));
            let left = x + 36.0 + names as f64 * CHARACTER;
            for (at, words) in wrapped(&meaning(&line.label), characters.saturating_sub(names + 5)).iter().enumerate() {
                self.y += if at > 0 { LINE_HEIGHT } else { 0.0 };
                group = group.add(text(words, left, self.y, 12, PALE));
            }
        }
        group
    }
}

fn marker(line: &Line) -> String {
    format!("arrow-{}{}", &colour(line)[1..], if line.is_cycle { "-cycle" } else { "" })
}

/// An arrow head for each colour.
fn markers(lines: &[Line]) -> Definitions {
    let mut definitions = Definitions::new();
    let mut known = Vec::new();
    for line in lines {
        let name = marker(line);
        if known.contains(&name) {
            continue;
        }
        let size = if line.is_cycle { 11 } else { 8 };
        let marker = Marker::new().set("id", name.clone()).set("viewBox", "0 0 10 10").set("refX", 9).set("refY", 5);
        let marker = marker.set("markerUnits", "userSpaceOnUse").set("markerWidth", size).set("markerHeight", size);
        let head = Path::new().set("d", "M0,1 L10,5 L0,9 z").set("fill", colour(line));
        definitions = definitions.add(marker.set("orient", "auto").add(head));
        known.push(name);
    }
    definitions
}
