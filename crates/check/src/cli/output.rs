//! Output and options that all commands share.

use std::fs::OpenOptions;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};

/// A number with its thousands set apart.
pub fn grouped(number: u64) -> String {
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

/// Appends a line, with its end, to a file, which is created if need be.
///
/// # Errors
/// The file cannot be written.
pub fn append(path: &Path, line: &str) -> Result<()> {
    // One write in append mode: lines of runs that end at once do not mix.
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .and_then(|mut file| file.write_all(line.as_bytes()))
        .with_context(|| format!("appending the report to {}", path.display()))
}

/// A progress bar over a number of things to do, drawn as `template` has it, on standard error; hidden where that is no
/// terminal.
pub fn bar(template: &str, count: u64) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template(template).expect("templates are constants");
    ProgressBar::new(count).with_style(style.progress_chars("=> "))
}

/// The name of this program, for command lines that the user may repeat.
pub fn program() -> String {
    let path = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("farfield"));
    path.file_name().map_or("farfield".into(), |name| name.to_string_lossy().into_owned())
}

/// Sums of times stay far below the limit of a clock.
const SECONDS_MAX: Duration = Duration::from_secs(100 * 366 * 24 * 3600);

/// Reads a number of seconds.
///
/// # Errors
/// It is none, not above 0, or above a hundred years.
pub fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_string())?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(time) if time > SECONDS_MAX => Err("a hundred years are the most".into()),
        Ok(time) if !time.is_zero() => Ok(time),
        _ => Err("it must be more than 0 seconds".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_a_positive_number() {
        assert_eq!(parse_seconds("0.5"), Ok(Duration::from_millis(500)));
        for bad in ["", "x", "0", "-1", "NaN", "inf", "1e30", "1s"] {
            assert!(parse_seconds(bad).is_err(), "{bad:?}");
        }
    }
}
