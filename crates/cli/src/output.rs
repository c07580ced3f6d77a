//! Output that the commands share: numbers, bars of progress, lines of JSON.

use std::fs::OpenOptions;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use tracing_subscriber::filter::LevelFilter;

/// A number with its thousands set apart.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// Whether `--json` names standard output, which then gets no text.
pub(crate) fn is_stdout(json: Option<&Path>) -> bool {
    json == Some(Path::new("-"))
}

/// Writes a line of JSON to where `--json` says: to standard output, which is `out`, or to the end of a file.
pub(crate) fn json(to: Option<&Path>, out: &mut impl Write, what: &impl Serialize) -> Result<()> {
    let Some(file) = to else { return Ok(()) };
    let line = serde_json::to_string(what).context("writing JSON")? + "\n";
    if is_stdout(to) { Ok(out.write_all(line.as_bytes())?) } else { append(file, &line) }
}

/// What shells say of a program that a closed pipe has ended: 128 and the signal's number.
const STATUS_UNREAD: u8 = 141;

/// Ends a command silently when no process reads its output any more.
pub(crate) fn unless_unread(outcome: Result<ExitCode>) -> Result<ExitCode> {
    let is_unread = |error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe;
    match outcome {
        Err(error) if error.downcast_ref().is_some_and(is_unread) => Ok(ExitCode::from(STATUS_UNREAD)),
        outcome => outcome,
    }
}

/// Appends a line, with its end, to a file, which is created if need be.
pub(crate) fn append(path: &Path, line: &str) -> Result<()> {
    // One write in append mode: lines of runs that end at once do not mix.
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .and_then(|mut file| file.write_all(line.as_bytes()))
        .with_context(|| format!("appending the report to {}", path.display()))
}

/// A progress bar over `duration` on standard error, hidden where that is no terminal. Call
/// `set_position(elapsed_ms)` as time passes and `finish_and_clear()` before the report.
pub(crate) fn progress(message: &str, duration: Duration) -> ProgressBar {
    counting(message, duration.as_millis() as u64)
}

/// A progress bar over a number of things to do, like [`progress`].
pub(crate) fn counting(message: &str, count: u64) -> ProgressBar {
    bar("{msg:20} [{bar:40}] {percent:>3}%", count).with_message(message.to_owned())
}

/// A progress bar over a number of things to do, drawn as `template` has it.
pub(crate) fn bar(template: &str, count: u64) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template(template).expect("templates are constants");
    ProgressBar::new(count).with_style(style.progress_chars("=> "))
}

/// Shows the library's events of nodes and connections, on standard error: those for the user, or all down to the level
/// that `FARFIELD_LOG` names. Not for commands that simulate nodes, which fail as they should, a thousand times a
/// second.
pub(crate) fn log() -> Result<()> {
    let level = match std::env::var("FARFIELD_LOG") {
        Ok(level) => level.parse().with_context(|| format!("FARFIELD_LOG: `{level}` is none of the levels"))?,
        Err(_) => LevelFilter::WARN,
    };
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .init();
    Ok(())
}
