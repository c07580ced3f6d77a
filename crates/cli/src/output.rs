//! Output that the commands share: numbers, bars of progress, lines of JSON.

use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use farfield_check::cli::exit::OrUsage;
pub(crate) use farfield_check::cli::exit::unless_unread;
pub(crate) use farfield_check::cli::output::{append, bar, grouped};
use indicatif::ProgressBar;
use serde::Serialize;
use tracing_subscriber::filter::LevelFilter;

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

/// A progress bar over `duration` on standard error, hidden where that is no terminal. Call
/// `set_position(elapsed_ms)` as time passes and `finish_and_clear()` before the report.
pub(crate) fn progress(message: &str, duration: Duration) -> ProgressBar {
    counting(message, duration.as_millis() as u64)
}

/// A progress bar over a number of things to do, like [`progress`].
pub(crate) fn counting(message: &str, count: u64) -> ProgressBar {
    bar("{msg:20} [{bar:40}] {percent:>3}%", count).with_message(message.to_owned())
}

/// Shows the library's events of nodes and connections, on standard error: those for the user, or all down to the level
/// that `FARFIELD_LOG` names. Not for commands that simulate nodes, which fail as they should, a thousand times a
/// second.
pub(crate) fn log() -> Result<()> {
    let level = match std::env::var("FARFIELD_LOG") {
        Ok(level) => {
            level.parse().with_context(|| format!("FARFIELD_LOG: `{level}` is none of the levels")).or_usage()?
        }
        Err(_) => LevelFilter::WARN,
    };
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .init();
    Ok(())
}
