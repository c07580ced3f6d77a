//! The events as lines, for a terminal.

use super::Timeline;
use super::page::words;
use super::story::Story;
use std::fmt::Write;

/// A line for each event: its step, its thread, and the event; then the end. Reads that preceded a landing are marked.
pub(super) fn render(timeline: &Timeline, story: &Story) -> String {
    let names: Vec<String> = timeline.events.iter().map(|event| timeline.name_of(event.thread)).collect();
    let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    let step_width = timeline.events.last().map_or(0, |last| last.step.to_string().len());
    let mut out = format!("{}: {}\n\n", timeline.title, timeline.about);
    for (rank, (event, name)) in timeline.events.iter().zip(&names).enumerate() {
        let mark = if story.failure == Some(rank) {
            '×'
        } else if story.is_early(rank) {
            '!'
        } else {
            ' '
        };
        let what = words(timeline, story, rank);
        let _ = writeln!(out, "{:>step_width$} {mark} {name:<width$}  {what}", event.step);
    }
    if !story.hints.is_empty() {
        out += "\n! a read that came before a write was in memory, or wholly there\n";
    }
    match &timeline.failure {
        Some(failure) => {
            let by = failure.thread.map_or(String::new(), |thread| format!(", {}", timeline.name_of(thread)));
            let message = failure.message.trim_end().replace('\n', "\n  ");
            let _ = writeln!(out, "\nFails at step {}{by}: {message}", failure.step);
        }
        None => out += "\nNothing fails in this execution.\n",
    }
    out
}
