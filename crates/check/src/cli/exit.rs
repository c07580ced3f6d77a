//! The exit statuses of all commands, and the error that means wrong usage.

use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anyhow::{Context, Result};
use signal_hook::flag;

/// A failure was found, or the command could not do its work.
pub const FAILED: u8 = 1;
/// The command does not accept its arguments, or a file that they name. The argument parser exits with this, too.
pub const USAGE: u8 = 2;
/// Ended by a signal: this and the signal's number, as shells say it.
const SIGNALLED: i32 = 128;
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

/// A signal has asked the command to end: exit status 128 and the signal's number, instead of 1.
#[derive(Debug)]
pub struct Interrupted {
    signal: i32,
}

impl Interrupted {
    /// The exit status.
    pub fn status(&self) -> u8 {
        (SIGNALLED + self.signal) as u8
    }
}

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// The signals that ask a command to end, noted for it to end in good order.
#[derive(Default)]
pub struct Signals {
    came: Arc<AtomicBool>,
    number: Arc<AtomicUsize>,
}

impl Signals {
    /// Notes these signals from now on. With `second_ends`, the process ends by the second one, at once.
    ///
    /// # Errors
    /// The system does not let this process handle them.
    pub fn note(&self, signals: &[i32], second_ends: bool) -> Result<()> {
        let note = |signal: i32| {
            // The actions of a signal are done in the order in which they were registered.
            if second_ends {
                flag::register_conditional_shutdown(signal, SIGNALLED + signal, Arc::clone(&self.came))?;
            }
            flag::register_usize(signal, Arc::clone(&self.number), signal as usize)?;
            flag::register(signal, Arc::clone(&self.came))
        };
        signals.iter().try_for_each(|signal| note(*signal).map(drop)).context("cannot handle signals")
    }

    /// The last signal that has come, if one has.
    pub fn seen(&self) -> Option<Interrupted> {
        let number = || self.number.load(Ordering::Relaxed) as i32;
        self.came.load(Ordering::Acquire).then(|| Interrupted { signal: number() })
    }

    /// Whether one has come.
    pub fn have_come(&self) -> &AtomicBool {
        &self.came
    }
}

/// Ends a command silently when no process reads its output any more: exit status 141.
///
/// # Errors
/// Any other error of the command.
pub fn unless_unread(outcome: Result<ExitCode>) -> Result<ExitCode> {
    match outcome {
        Err(error) if is_unread(&error) => Ok(ExitCode::from(UNREAD)),
        outcome => outcome,
    }
}

/// Whether the error is that no process reads the output any more.
pub fn is_unread(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

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
        ExitCode::from(match error.downcast_ref::<Interrupted>() {
            Some(interrupted) => interrupted.status(),
            None if error.is::<Usage>() => USAGE,
            None => FAILED,
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
        assert_eq!(of(Err(Interrupted { signal: 2 }.into())), code(130));
        assert_eq!(of(Err(Interrupted { signal: 15 }.into())), code(143));
        let unread = || -> Result<ExitCode> { Err(io::Error::from(io::ErrorKind::BrokenPipe).into()) };
        assert_eq!(of(unless_unread(unread().context("writing"))), code(UNREAD));
        assert_eq!(of(unless_unread(fails())), code(FAILED));
        assert_eq!(format!("{:#}", fails().context("more").or_usage().unwrap_err()), "more: it fails");
    }
}
