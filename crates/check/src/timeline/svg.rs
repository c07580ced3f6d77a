//! The picture. Each element with a position on the axis has it as `data-a` (and `data-b` for its end), a number of
//! columns, so that the script can stretch it; `data-e`, `data-o` and `data-c` name the event, operation and cell.

use super::layout::{COLUMN_PX, END_PX, Kind, LABEL_CHARS_MAX, Label, Layout, Strip, fit};
use html_escape::encode_quoted_attribute as escape;

use super::number::number;
use super::story::{Hint, Op, SpanKind, Story, is_background, op_of};
use super::{Timeline, What};
use std::fmt::Write;
use std::iter;

/// Hints beyond these are ringed, but no line is drawn.
const HINT_LINES_MAX: usize = 8;
/// Top of a bar in its row, and its middle.
const BAR_TOP: u32 = 17;
const BAR_MIDDLE: u32 = 23;

struct Picture<'a> {
    timeline: &'a Timeline,
    story: &'a Story<'a>,
    layout: &'a Layout,
    /// The layers, from below.
    under: String,
    grid: String,
    bars: String,
    lines: String,
    marks: String,
    /// Labels by lane: those of the axis, then those of each strip or row of bars, with the baselines of their rows.
    labels: Vec<(Vec<u32>, Vec<Label>)>,
}

/// The picture as one `svg` element.
pub(super) fn draw(timeline: &Timeline, story: &Story, layout: &Layout) -> String {
    let mut picture = Picture {
        timeline,
        story,
        layout,
        under: String::new(),
        grid: String::new(),
        bars: String::new(),
        lines: String::new(),
        marks: String::new(),
        labels: vec![(vec![17], Vec::new())],
    };
    picture.axis();
    picture.strips();
    picture.spans();
    for op in story.ops.values() {
        picture.operation(op);
    }
    for rank in 0..timeline.events.len() {
        picture.event(rank);
    }
    picture.hints();
    picture.finish()
}

fn x(rank: f64) -> f64 {
    (rank + 0.5) * COLUMN_PX
}

fn rect(class: &str, more: &str, columns: (f64, f64), y: u32, height: u32) -> String {
    let (a, b) = columns;
    format!(
        "<rect class=\"{class}\"{more} data-a=\"{a}\" data-b=\"{b}\" x=\"{:.1}\" y=\"{y}\" width=\"{:.1}\" \
         height=\"{height}\"/>\n",
        x(a),
        x(b) - x(a)
    )
}

fn line(class: &str, more: &str, from: (f64, u32), to: (f64, u32)) -> String {
    format!(
        "<line class=\"{class}\"{more} data-a=\"{}\" data-b=\"{}\" x1=\"{:.1}\" y1=\"{}\" x2=\"{:.1}\" y2=\"{}\"/>\n",
        from.0,
        to.0,
        x(from.0),
        from.1,
        x(to.0),
        to.1
    )
}

/// A shape around the origin for each kind of mark.
pub(super) fn glyph(shape: &str) -> &'static str {
    match shape {
        "read" => "<circle r=\"5.5\"/>",
        "write" => "<circle r=\"5.5\" class=\"full\"/>",
        "rmw" => "<path class=\"full\" d=\"M-6-6H6V6H-6z\"/>",
        "issue" => "<path class=\"full\" d=\"M-5-7 8 0-5 7z\"/>",
        "seen" => "<path d=\"M-6 0-2 5 6-5\" class=\"stroke\"/>",
        "wait" | "woken" => "<path d=\"M0-6V6\" class=\"stroke\"/>",
        "lock" => {
            "<path class=\"full\" d=\"M-5-1H5V7H-5z\"/><path class=\"stroke thin\" d=\"M-3-1V-4a3 3 0 0 1 6 0V-1\"/>"
        }
        "unlock" => "<path d=\"M-5-1H5V7H-5z\"/><path class=\"stroke thin\" d=\"M-3-1V-5a3 3 0 0 1 6 0\"/>",
        "message" | "received" => "<path d=\"M-7-5H7V5H-7zL0 1 7-5\"/>",
        "nicread" => "<circle r=\"3.5\"/>",
        "started" => "<path class=\"full\" d=\"M-4-6H4L0 1z\"/>",
        "completed" => "<path d=\"M0-9V9\" class=\"stroke thick\"/>",
        "landed" | "drained" => "<path class=\"full\" d=\"M0-8 8 0 0 8-8 0z\"/>",
        _ => "<circle r=\"3.5\" class=\"full\"/>",
    }
}

fn shape(what: &What) -> &'static str {
    match what {
        What::Read { .. } => "read",
        What::Write { .. } => "write",
        What::Drained { .. } => "drained",
        What::Rmw { .. } => "rmw",
        What::Issue { .. } => "issue",
        What::NicRead { .. } => "nicread",
        What::Started { .. } => "started",
        What::Landed { .. } => "landed",
        What::Completed { .. } => "completed",
        What::Seen { .. } => "seen",
        What::Waits { .. } => "wait",
        What::Woken => "woken",
        What::Lock { .. } => "lock",
        What::Unlock { .. } => "unlock",
        What::Message { .. } => "message",
        What::Received { .. } => "received",
        What::Clock { .. } | What::Note { .. } => "note",
    }
}

/// The class that colours an operation.
pub(super) fn colour(verb: &str) -> &'static str {
    match verb {
        "put" => "put",
        "get" => "get",
        "cas" | "faa" => "atomic",
        _ => "other",
    }
}

impl Picture<'_> {
    fn axis(&mut self) {
        for (rank, event) in self.timeline.events.iter().enumerate() {
            let at = rank as f64;
            if rank % 5 == 0 {
                self.grid += &line("grid", "", (at, 22), (at, self.layout.height));
            }
            let fails = self.story.failure == Some(rank);
            if rank % 5 == 0 && !fails {
                self.label(0, (at, -4.0), event.step.to_string(), false, "tick", "");
            }
        }
        if let Some(rank) = self.story.failure {
            let at = rank as f64;
            self.grid += &rect("band", "", (at - 0.5, at + 0.5), 0, self.layout.height);
            let text = match &self.timeline.failure {
                Some(failure) if rank < self.timeline.events.len() => format!("{} fails", failure.step),
                _ => "fails".to_string(),
            };
            self.label(0, (at, -4.0), text, true, "fails", "");
        }
    }

    fn strips(&mut self) {
        let end = self.layout.columns as f64 - 0.5;
        for strip in &self.layout.strips {
            let fails = self.timeline.failure.as_ref().and_then(|f| f.thread).map(Kind::Thread) == Some(strip.kind);
            let class = match strip.kind {
                Kind::Thread(_) if fails => "lane failing",
                Kind::Thread(_) => "lane",
                Kind::Nic => "lane nic",
                Kind::Memory => "lane memory",
            };
            self.under +=
                &format!("<rect class=\"{class}\" y=\"{}\" width=\"100%\" height=\"{}\"/>\n", strip.y, strip.height);
            if strip.kind != Kind::Nic {
                self.under += &line("rail", "", (-0.5, strip.rail()), (end, strip.rail()));
            }
            let rows: Vec<u32> = match strip.kind {
                Kind::Thread(_) => iter::once(14).chain((1..strip.rows).map(|row| 35 + 14 * row)).collect(),
                Kind::Nic => Vec::new(),
                Kind::Memory => (0..strip.rows).map(|row| 34 + 14 * row).collect(),
            };
            let rows = rows.into_iter().map(|y| strip.y + y).collect();
            self.labels.push((rows, Vec::new()));
        }
        let mut tops: Vec<u32> = self.layout.bars.values().copied().collect();
        tops.sort_unstable();
        tops.dedup();
        self.labels.extend(tops.into_iter().map(|top| (vec![top + 12], Vec::new())));
    }

    fn spans(&mut self) {
        for span in &self.story.spans {
            let thread = self.timeline.events[span.from].thread;
            let Some(strip) = self.layout.thread(thread) else { continue };
            let to = span.to.map_or(self.layout.columns as f64 - 0.5, |rank| rank as f64);
            let (class, y, height) = match span.kind {
                SpanKind::Wait => ("wait", strip.rail() - 3, 6),
                SpanKind::Buffer => ("buffer", strip.rail() + 7, 4),
                SpanKind::Lock => ("held", strip.y + strip.height - 4, 4),
            };
            self.bars += &rect(class, &self.attributes(span.from), (span.from as f64, to), y, height);
        }
        for &(sent, received) in &self.story.messages {
            let at = |rank: usize| self.layout.thread(self.timeline.events[rank].thread).map(Strip::rail);
            if let (Some(from), Some(to)) = (at(sent), at(received)) {
                let more = self.attributes(sent);
                self.lines += &line("message", &more, (sent as f64, from), (received as f64, to));
            }
        }
    }

    /// The bar of an operation: solid until it is complete, hatched while its write is complete and not in memory.
    fn operation(&mut self, op: &Op) {
        let Some(&top) = self.layout.bars.get(&op.id) else { return };
        let end = self.layout.columns as f64 - 0.5;
        let colour = colour(op.verb);
        let more = format!(" data-o=\"{}\" data-t=\"{}\"", op.id, escape(&self.summary(op)));
        let issue = op.issue as f64;
        let solid = op.completed.map_or(end, |rank| rank as f64);
        self.bars += &rect(&format!("bar {colour}"), &more, (issue, solid), top + BAR_TOP, 12);
        let late = op.late();
        if let Some(landed) = late {
            let to = landed.map_or(end, |rank| rank as f64);
            self.bars += &rect("late-back", &more, (solid, to), top + BAR_TOP, 12);
            let class = if self.drawn_hints().any(|hint| hint.op == op.id) { "late overtaken" } else { "late" };
            self.bars += &rect(class, &more, (solid, to), top + BAR_TOP, 12);
        }
        if let Some(strip) = self.layout.thread(op.thread) {
            let class = format!("issue {colour}");
            self.lines += &line(&class, &more, (issue, strip.rail()), (issue, top + BAR_MIDDLE));
        }
        for (rank, place, _) in &op.landed {
            let Some(memory) = self.layout.memory(place.0) else { continue };
            let at = *rank as f64;
            let class = format!("lands {colour}");
            self.lines += &line(&class, &more, (at - 0.7, top + BAR_MIDDLE), (at, memory.rail()));
        }
        let row = self.row_of_bar(top);
        let text = format!("#{} {}", op.id, op.text);
        let stay = format!("{more} data-b=\"{}\"", op.end().map_or(end, |rank| rank as f64));
        self.label(row, (issue, 0.0), text, false, colour, &stay);
        let open = match (op.completed, late) {
            (None, _) => Some(("not complete", "open")),
            (_, Some(None)) => Some(("not landed", "open late-text")),
            _ => None,
        };
        if let Some((text, class)) = open {
            self.label(row, (end, 6.0), text.to_string(), true, class, &more);
        }
    }

    fn event(&mut self, rank: usize) {
        let event = &self.timeline.events[rank];
        let thread = self.layout.thread(event.thread);
        let bar = op_of(&event.what).and_then(|op| self.layout.bars.get(&op)).map(|top| top + BAR_MIDDLE);
        let memory = self.story.places[rank].as_ref().and_then(|place| self.layout.memory(place.0));
        let in_memory = memory.map(Strip::rail);
        let y = match &event.what {
            What::Drained { .. } | What::Landed { .. } => in_memory,
            what if is_background(what) => bar,
            _ => thread.map(Strip::rail),
        };
        let (Some(y), class) = (y, self.class(rank)) else { return };
        let more = self.attributes(rank);
        self.mark(&class, &format!("{more} id=\"m{rank}\""), rank, y, glyph(shape(&event.what)));
        if let What::Rmw { .. } = event.what
            && let Some(below) = in_memory
        {
            self.mark(&class, &more, rank, below, glyph("drained"));
        }
        if let (What::Drained { .. } | What::Rmw { .. }, Some(below), Some(strip)) = (&event.what, in_memory, thread) {
            let at = rank as f64;
            self.lines += &line("drains", &more, (at, strip.rail() + 9), (at, below));
        }
        let first = self.story.failure == Some(rank) || self.story.is_early(rank);
        if let Some(text) = short(&event.what, self.timeline.node_of(event.thread))
            && let Some(strip) = thread
        {
            let lane = self.lane_of(strip.y);
            self.label(lane, (rank as f64, -5.0), text, first, &class, &more);
        }
        if let (Some((old, new)), Some(place), Some(strip)) =
            (self.story.changes[rank], &self.story.places[rank], memory)
        {
            let text = format!("{}: {}→{}", place.1, number(old), number(new));
            let lane = self.lane_of(strip.y);
            self.label(lane, (rank as f64, -5.0), text, first, &class, &more);
        }
    }

    fn mark(&mut self, class: &str, more: &str, rank: usize, y: u32, glyph: &str) {
        let at = x(rank as f64);
        let _ = writeln!(
            self.marks,
            "<g class=\"mark {class}\"{more} data-a=\"{rank}\" data-y=\"{y}\" transform=\"translate({at:.1},{y})\">\
             <circle class=\"halo\" r=\"9\"/>{glyph}</g>"
        );
    }

    fn drawn_hints(&self) -> impl Iterator<Item = &Hint> {
        self.story.hints.iter().take(HINT_LINES_MAX)
    }

    /// For each read that preceded a landing: a line from that write's bar to the reader and to the memory read.
    fn hints(&mut self) {
        for (read, op, found) in self.drawn_hints().map(|h| (h.read, h.op, h.found)).collect::<Vec<_>>() {
            let event = &self.timeline.events[read];
            let Some((place, bar)) = self.story.places[read].as_ref().zip(self.layout.bars.get(&op)) else { continue };
            let reader = match op_of(&event.what) {
                Some(op) => self.layout.bars.get(&op).map(|top| top + BAR_MIDDLE),
                None => self.layout.thread(event.thread).map(Strip::rail),
            };
            let memory = self.layout.memory(place.0);
            let ends = [Some(bar + BAR_MIDDLE), reader, memory.map(Strip::rail)];
            let (at, more) = (read as f64, self.attributes(read));
            let (from, to) = (ends.iter().flatten().min(), ends.iter().flatten().max());
            self.lines += &line("hint", &more, (at, *from.unwrap_or(bar)), (at, *to.unwrap_or(bar)));
            let (Some(strip), What::Read { value, .. } | What::NicRead { value, .. }) = (memory, &event.what) else {
                continue;
            };
            self.mark("cpu early", &more, read, strip.rail(), glyph("nicread"));
            let state = if found { "already" } else { "still" };
            let (lane, text) = (self.lane_of(strip.y), format!("{} {state} {}", place.1, number(*value)));
            self.label(lane, (at, -5.0), text, true, "early", &more);
        }
    }

    fn attributes(&self, rank: usize) -> String {
        let mut text = format!(" data-e=\"{rank}\"");
        if let Some(op) = op_of(&self.timeline.events[rank].what) {
            let _ = write!(text, " data-o=\"{op}\"");
        }
        if let Some((node, cell)) = &self.story.places[rank] {
            let _ = write!(text, " data-c=\"n{node} {}\"", escape(cell));
        }
        text
    }

    /// The classes of an event's mark and label.
    fn class(&self, rank: usize) -> String {
        let what = &self.timeline.events[rank].what;
        let verb = op_of(what).and_then(|op| self.story.ops.get(&op)).map(|op| op.verb);
        let mut class = verb.map_or("cpu", colour).to_string();
        if matches!(what, What::Read { buffered: true, .. }) {
            class += " buffered";
        }
        if self.story.is_early(rank) {
            class += " early";
        }
        if self.story.failure == Some(rank) {
            class += " fatal";
        }
        class
    }

    fn summary(&self, op: &Op) -> String {
        let step = |rank: usize| self.timeline.events[rank].step;
        let complete =
            op.completed.map_or("not complete at the end".into(), |rank| format!("complete at {}", step(rank)));
        let mut text = format!(
            "#{} {} · {} · issued at step {} · {complete}",
            op.id,
            op.text,
            self.timeline.name_of(op.thread),
            step(op.issue)
        );
        for (rank, place, value) in &op.landed {
            let _ = write!(text, " · n{} {} = {} landed at {}", place.0, place.1, number(*value), step(*rank));
        }
        if op.lands_later() {
            text += " · not wholly landed at the end";
        }
        text
    }

    fn lane_of(&self, y: u32) -> usize {
        1 + self.layout.strips.iter().position(|strip| strip.y == y).unwrap_or(0)
    }

    fn row_of_bar(&self, top: u32) -> usize {
        self.labels.iter().position(|(rows, _)| rows[..] == [top + 12]).unwrap_or(0)
    }

    fn label(&mut self, lane: usize, (rank, shift_px): (f64, f64), text: String, first: bool, class: &str, more: &str) {
        let text = match text.char_indices().nth(LABEL_CHARS_MAX) {
            Some((cut, _)) => text[..cut].to_string() + "…",
            None => text,
        };
        let first_attribute = if first { " data-first=\"\"" } else { "" };
        let attributes =
            format!(" class=\"{class}\" data-a=\"{rank}\" data-shift=\"{shift_px}\"{first_attribute}{more}");
        self.labels[lane].1.push(Label { rank, shift_px, text, first, attributes });
    }

    fn finish(self) -> String {
        let width = self.layout.columns as f64 * COLUMN_PX + END_PX;
        let mut out = format!(
            "<svg id=\"picture\" role=\"img\" aria-label=\"timeline\" data-columns=\"{}\" data-end=\"{END_PX}\" \
             data-fails=\"{}\" width=\"{width:.0}\" height=\"{}\">\n<defs><pattern id=\"hatch\" width=\"7\" \
             height=\"7\" patternUnits=\"userSpaceOnUse\" \
             patternTransform=\"rotate(45)\"><rect class=\"hatch\" width=\"3.5\" \
             height=\"7\"/></pattern><pattern id=\"grey\" width=\"5\" height=\"4\" \
             patternUnits=\"userSpaceOnUse\"><rect class=\"grey\" width=\"3\" height=\"4\"/></pattern></defs>\n",
            self.layout.columns,
            self.story.failure.map_or(String::new(), |rank| rank.to_string()),
            self.layout.height
        );
        let names = ["under", "grids", "bars", "lines", "marks"];
        for (name, layer) in names.iter().zip([&self.under, &self.grid, &self.bars, &self.lines, &self.marks]) {
            let _ = write!(out, "<g class=\"{name}\">\n{layer}</g>\n");
        }
        out += "<g class=\"labels\">\n";
        for (rows, labels) in self.labels.iter().filter(|(_, labels)| !labels.is_empty()) {
            let baselines: Vec<String> = rows.iter().map(u32::to_string).collect();
            let _ = writeln!(out, "<g data-rows=\"{}\">", baselines.join(" "));
            for (label, row) in labels.iter().zip(fit(labels, rows.len())) {
                let hidden = if row.is_none() { " hidden=\"\"" } else { "" };
                let (y, more) = (rows[row.unwrap_or(0)], &label.attributes);
                let text = escape(&label.text);
                let _ = writeln!(out, "<text{more}{hidden} x=\"{:.1}\" y=\"{y}\">{text}</text>", label.x());
            }
            out += "</g>\n";
        }
        out + "</g>\n</svg>\n"
    }
}

/// The text beside a mark in its thread's lane, on this node: cells of the node itself are shown without its name.
fn short(what: &What, node: u16) -> Option<String> {
    let own = format!("n{node} ");
    let cell = |cell: &str| cell.strip_prefix(&own).unwrap_or(cell).to_string();
    Some(match what {
        What::Read { cell: at, value, .. } => format!("read {}={}", cell(at), number(*value)),
        What::Write { cell: at, value } => format!("write {}={}", cell(at), number(*value)),
        What::Rmw { cell: at, new, .. } => format!("{}:={}", cell(at), number(*new)),
        What::Issue { op, verb, .. } => format!("{verb} #{op}"),
        What::Seen { op } => format!("saw #{op}"),
        What::Waits { text } => format!("wait {}", text.replace(&own, "")),
        What::Lock { name } => format!("lock {name}"),
        What::Unlock { name } => format!("unlock {name}"),
        What::Message { to, text } => format!("to n{to}: {text}"),
        What::Received { from, text } => format!("from n{from}: {text}"),
        What::Clock { ns } => format!("{ns} ns"),
        What::Note { text } => text.clone(),
        _ => return None,
    })
}
