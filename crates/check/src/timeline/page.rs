//! The page around the picture: the failure in words, the legend, and a table of all events.

use super::layout::{Kind, Layout};
use super::number::number;
use super::story::{Hint, Story, op_of};
use super::{Timeline, What, svg};
use html_escape::encode_quoted_attribute as escape;
use std::fmt::Write;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");
/// Early reads beyond these are only counted.
const HINTS_MAX: usize = 4;

pub(super) fn render(timeline: &Timeline, story: &Story, layout: &Layout) -> String {
    let title = escape(&timeline.title);
    let mut out = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>{title}</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n<header>\n<h1>{title}</h1>\n"
    );
    if !timeline.about.is_empty() {
        let _ = writeln!(out, "<p class=\"about\">{}</p>", escape(&timeline.about));
    }
    out += "</header>\n";
    verdict(&mut out, timeline, story);
    tools(&mut out, story);
    let _ = writeln!(out, "<div class=\"frame\">");
    names(&mut out, timeline, layout);
    let _ = write!(out, "<div class=\"view\">\n{}</div>\n</div>\n", svg::draw(timeline, story, layout));
    if !layout.idle.is_empty() {
        let _ = writeln!(out, "<p class=\"aside\">Without work, not drawn: {}.</p>", escape(&layout.idle.join(", ")));
    }
    if !timeline.replay.is_empty() {
        let _ = writeln!(out, "<p class=\"aside\">Replay: <code>{}</code></p>", escape(&timeline.replay));
    }
    table(&mut out, timeline, story);
    let _ = write!(out, "<div id=\"tip\" hidden></div>\n<script>\n{SCRIPT}</script>\n</body>\n</html>\n");
    out
}

/// The failure, and the reads that happened while a write was in flight.
fn verdict(out: &mut String, timeline: &Timeline, story: &Story) {
    let Some(failure) = &timeline.failure else {
        *out += "<section class=\"verdict fine\"><p>Nothing fails in this execution.</p></section>\n";
        return;
    };
    let by = failure.thread.map_or(String::new(), |thread| format!(" · {}", escape(&timeline.name_of(thread))));
    let when = if story.failure == Some(timeline.events.len()) {
        "at the end".to_string()
    } else {
        format!("at step {}", failure.step)
    };
    let message = escape(&failure.message);
    let _ = writeln!(out, "<section class=\"verdict\">\n<p><b>Fails {when}{by}</b><br>{message}</p>");
    if !story.hints.is_empty() {
        *out += "<p class=\"look\">Reads that came before a write was in memory:</p>\n<ul>\n";
        let mut shown: Vec<_> = story.hints.iter().take(HINTS_MAX).collect();
        shown.sort_by_key(|hint| hint.read);
        for hint in shown {
            let _ = writeln!(out, "<li>{}</li>", explain(timeline, story, hint));
        }
        if let more @ 1.. = story.hints.len().saturating_sub(HINTS_MAX) {
            let _ = writeln!(out, "<li>{more} more such reads, ringed in the picture</li>");
        }
        *out += "</ul>\n";
    }
    *out += "</section>\n";
}

fn explain(timeline: &Timeline, story: &Story, hint: &Hint) -> String {
    let event = &timeline.events[hint.read];
    let Some(op) = story.ops.get(&hint.op) else { return String::new() };
    let lands = match hint.lands {
        Some(rank) => format!("lands at step {}", timeline.events[rank].step),
        None => "has not landed by the end".to_string(),
    };
    let state = match op.completed.filter(|&completed| completed < hint.read) {
        _ if hint.torn && hint.found => format!("had landed <em>in part</em>, this word already; the rest {lands}"),
        _ if hint.torn => format!("had landed <em>in part</em>, this word not; the rest {lands}"),
        Some(completed) => format!(
            "was complete since step {} but <em>not in memory</em>; it {lands}",
            timeline.events[completed].step
        ),
        None => format!("was under way; it {lands}"),
    };
    format!(
        "<a href=\"#m{}\">Step {}</a>, {}: {}, while <a href=\"#m{}\">#{} {}</a> of {} {state}.",
        hint.read,
        event.step,
        escape(&timeline.name_of(event.thread)),
        escape(&words(timeline, story, hint.read)),
        op.issue,
        op.id,
        escape(op.text),
        escape(&timeline.name_of(op.thread)),
    )
}

/// Buttons and the legend.
fn tools(out: &mut String, story: &Story) {
    *out += "<div class=\"tools\"><span class=\"buttons\"><button id=\"out\" title=\"narrower (ctrl-wheel)\">−</button>\
             <button id=\"in\" title=\"wider (ctrl-wheel)\">+</button><button id=\"whole\">whole</button>";
    if story.failure.is_some() {
        *out += "<button id=\"failing\">failure</button>";
    }
    *out += "</span>\n<ul class=\"legend\">";
    for (class, shape, text) in [
        ("cpu", "read", "read"),
        ("cpu", "write", "write"),
        ("cpu", "rmw", "CPU atomic"),
        ("cpu", "seen", "completion seen"),
        ("put", "nicread", "NIC reads"),
        ("put", "started", "enters NIC buffer"),
        ("put", "completed", "complete"),
        ("put", "landed", "landed in memory"),
        ("cpu", "drained", "CPU write in memory"),
        ("cpu early", "read", "read before a landing"),
    ] {
        let _ = write!(
            out,
            "<li><svg width=\"22\" height=\"20\"><g class=\"mark {class}\" transform=\"translate(11,10)\">\
             <circle class=\"halo\" r=\"9\"/>{}</g></svg>{text}</li>",
            svg::glyph(shape)
        );
    }
    for (class, text) in [
        ("bar put", "put"),
        ("bar get", "get"),
        ("bar atomic", "atomic"),
        ("late", "complete, not in memory"),
        ("buffer", "in the store buffer"),
        ("wait", "waiting"),
        ("held", "lock held"),
    ] {
        let height = if matches!(class, "buffer" | "held") { 4 } else { 12 };
        let y = 10 - height / 2;
        let _ = write!(
            out,
            "<li><svg width=\"30\" height=\"20\"><rect class=\"{class}\" x=\"1\" y=\"{y}\" width=\"26\" \
             height=\"{height}\"/></svg>{text}</li>"
        );
    }
    *out += "</ul></div>\n";
}

fn names(out: &mut String, timeline: &Timeline, layout: &Layout) {
    let _ = writeln!(out, "<div class=\"names\" style=\"height:{}px\"><div class=\"axis\">step</div>", layout.height);
    let fails = timeline.failure.as_ref().and_then(|f| f.thread).map(Kind::Thread);
    let mut node = None;
    for strip in &layout.strips {
        let own: Vec<_> = layout.strips.iter().filter(|other| other.node == strip.node).collect();
        if node.replace(strip.node) != Some(strip.node) {
            let height: u32 = own.iter().map(|strip| strip.height).sum();
            let _ = writeln!(
                out,
                "<div class=\"node\" style=\"top:{}px;height:{height}px\">n{}</div>",
                strip.y, strip.node
            );
        }
        let class = match strip.kind {
            kind if Some(kind) == fails => "name failing",
            Kind::Thread(_) => "name",
            Kind::Nic => "name nic",
            Kind::Memory => "name memory",
        };
        let (y, height, name) = (strip.y, strip.height, escape(&strip.name));
        let _ =
            writeln!(out, "<div class=\"{class}\" title=\"{name}\" style=\"top:{y}px;height:{height}px\">{name}</div>");
    }
    *out += "</div>\n";
}

fn table(out: &mut String, timeline: &Timeline, story: &Story) {
    let timed = timeline.events.iter().any(|event| event.time_ns > 0);
    let time_head = if timed { "<th>time (ns)</th>" } else { "" };
    let _ = writeln!(
        out,
        "<h2>All {} events</h2>\n<table>\n<thead><tr><th>step</th>{time_head}<th>thread</th><th>what</th></tr>\
         </thead>\n<tbody>",
        timeline.events.len()
    );
    for (rank, event) in timeline.events.iter().enumerate() {
        let early = story.is_early(rank);
        let class = if story.failure == Some(rank) {
            " class=\"fatal\""
        } else if early {
            " class=\"early\""
        } else {
            ""
        };
        let op = op_of(&event.what).map_or(String::new(), |op| format!(" data-o=\"{op}\""));
        let time = if timed { format!("<td>{}</td>", event.time_ns) } else { String::new() };
        let _ = writeln!(
            out,
            "<tr id=\"e{rank}\"{class}{op}><td><a href=\"#m{rank}\">{}</a></td>{time}<td>{}</td><td>{}</td></tr>",
            event.step,
            escape(&timeline.name_of(event.thread)),
            escape(&words(timeline, story, rank))
        );
    }
    *out += "</tbody>\n</table>\n";
    if let Some(failure) = timeline.failure.as_ref().filter(|_| story.failure == Some(timeline.events.len())) {
        let _ = writeln!(out, "<p class=\"end\">At the end: {}</p>", escape(&failure.message));
    }
}

/// An event in words.
pub(super) fn words(timeline: &Timeline, story: &Story, rank: usize) -> String {
    let place = story.places[rank].as_ref().map_or(String::new(), |(node, cell)| format!("n{node} {cell}"));
    let of = |op: u32| match story.ops.get(&op) {
        Some(op) => format!("#{} {}", op.id, op.text),
        None => format!("#{op}"),
    };
    let old = story.changes[rank].map_or(String::new(), |(old, _)| format!(" (was {})", number(old)));
    match &timeline.events[rank].what {
        What::Read { value, buffered: false, .. } => format!("reads {place} = {}", number(*value)),
        What::Read { value, .. } => format!("reads {place} = {} from its store buffer", number(*value)),
        What::Write { value, .. } => format!("writes {place} = {} to its store buffer", number(*value)),
        What::Drained { value, .. } => format!("its write {place} = {} reaches memory{old}", number(*value)),
        What::Rmw { old, new, .. } => format!("atomically changes {place}: {} → {}", number(*old), number(*new)),
        What::Issue { op, .. } => format!("issues {}", of(*op)),
        What::NicRead { op, value, .. } => format!("its NIC reads {place} = {} for {}", number(*value), of(*op)),
        What::Started { op } => format!("its NIC buffers the write of {}", of(*op)),
        What::Landed { op, value, .. } => format!("{place} = {} lands{old}, by {}", number(*value), of(*op)),
        What::Completed { op } => format!("complete: {}", of(*op)),
        What::Seen { op } => format!("sees the completion of {}", of(*op)),
        What::Waits { text } => format!("waits {text}"),
        What::Woken => "goes on".to_string(),
        What::Lock { name } => format!("locks {name}"),
        What::Unlock { name } => format!("unlocks {name}"),
        What::Message { to, text } => format!("sends to n{to}: {text}"),
        What::Received { from, text } => format!("receives from n{from}: {text}"),
        What::Clock { ns } => format!("reads the clock: {ns} ns"),
        What::Note { text } => text.clone(),
    }
}
