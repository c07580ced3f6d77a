//! The exit statuses of all commands, and the error that means wrong usage.

use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Result;

/// A failure was found, or the command could not do its work.
pub const FAILED: u8 = 1;
/// The command does not accept its arguments, or a file that they name. The argument parser exits with this, too.
pub const USAGE: u8 = 2;
/// Interrupted by Ctrl-C: 128 and the signal's number, as shells say it.
pub const INTERRUPTED: u8 = 130;
/// The reader of the output has closed it: 128 and the number of SIGPIPE.
pub const UNREAD: u8 = 141;

/// The table for `--help`.
pub const HELP: &str = "\
Exit status of every command:
  0    success: nothing has failed
  1    a failure was found, or the command could not do its work
  2    wrong usage: the command does not accept its arguments, a variable or a file that they name, and has run nothing
  130  interrupted by Ctrl-C; 128 + n: ended by signal n
  141  the reader of the output has closed it
`run` passes on the status of its nodes, and has some of its own: see `run --help`.";

/// Wrong usage: exit status 2 instead of 1.
#[derive(Debug)]
pub struct Usage(String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// A signal has asked the command to end: exit status 130 instead of 1.
#[derive(Debug)]
pub struct Interrupted;

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// An error that means wrong usage.
pub fn usage(why: impl Into<String>) -> anyhow::Error {
    Usage(why.into()).into()
}

/// Turns the error of a result into wrong usage.
pub trait OrUsage<T> {
    /// The same with an error that means wrong usage.
    ///
    /// # Errors
    /// That of the result.
    fn or_usage(self) -> Result<T>;
}

impl<T, E: Into<anyhow::Error>> OrUsage<T> for Result<T, E> {
    fn or_usage(self) -> Result<T> {
        self.map_err(|error| usage(format!("{:#}", error.into())))
    }
}

/// Ends a command: prints its error, if there is one, and returns the exit status for it.
pub fn end(program: &str, outcome: Result<ExitCode>) -> ExitCode {
    outcome.unwrap_or_else(|error| {
        // Not eprintln: a closed stderr is no reason to panic.
        let _ = writeln!(io::stderr(), "{program}: {error:#}");
        ExitCode::from(match () {
            () if error.is::<Usage>() => USAGE,
            () if error.is::<Interrupted>() => INTERRUPTED,
            () => FAILED,
        })
    })
}

#[cfg(test)]
mod tests {
    use anyhow::{Context, bail};

    use super::*;

    #[test]
    fn wrong_usage_is_told_from_failures() {
        let of = |outcome: Result<ExitCode>| format!("{:?}", end("test", outcome));
        let code = |status: u8| format!("{:?}", ExitCode::from(status));
        let fails = || -> Result<ExitCode> { bail!("it fails") };
        assert_eq!(of(fails()), code(FAILED));
        assert_eq!(of(fails().context("more").or_usage()), code(USAGE));
        assert_eq!(of(fails().or_usage().context("more")), code(USAGE));
        assert_eq!(of(Err(Interrupted.into())), code(INTERRUPTED));
        assert_eq!(format!("{:#}", fails().context("more").or_usage().unwrap_err()), "more: it fails");
    }
}
