//! Other systems that do the same work as a benchmark of Farfield, in turns with it in the same run.
//!
//! A peer is a small C program (`bench/peers`) with its source in this binary: it is compiled when a run needs it, with
//! the system's own tools, into a directory that is removed after the run. A peer's work follows from Farfield's
//! [`Measurement`] of the same turn, and its line of JSON becomes a measurement with the same bench, case and setup.

mod compare;
mod program;
mod tools;
mod work;

use std::fmt;
use std::io::Write;
use std::sync::atomic::Ordering;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use farfield_check::cli::exit::Signals;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use tempfile::TempDir;

pub(crate) use self::compare::Comparison;
use self::program::Line;
use self::tools::Tools;
use self::work::Work;
use super::measurement::Measurement;
use crate::caretaker;

/// A system to compare with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum)]
pub(crate) enum Peer {
    /// Open MPI: barrier, broadcast, other collectives, one-sided operations, locks of windows
    Mpi,
    /// Redis: GET and SET in a pipeline, over a UNIX socket, or over TCP beside the fabric `ucx`
    Redis,
    /// UCX: one-sided operations on shared memory, or over TCP beside the fabric `ucx`
    Ucx,
}

impl Peer {
    /// The peer's name in measurements and on the command line.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Peer::Mpi => "mpi",
            Peer::Redis => "redis",
            Peer::Ucx => "ucx",
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

/// The peers of a run. Their programs are removed when it is dropped.
pub(crate) struct Peers {
    found: Vec<(Peer, Tools)>,
    /// For their programs. None if no peer was found.
    directory: Option<TempDir>,
    /// The signals that ask this process to end.
    signals: Signals,
    /// Peers with nothing comparable to a case, of which the user knows.
    told: Vec<(Peer, String)>,
}

impl Peers {
    /// Finds the tools of the peers that were asked for. If some are missing, it says how to install them, and the run
    /// continues without that peer.
    pub(crate) fn find(asked: &[Peer]) -> Result<Peers> {
        let mut peers = Peers { found: Vec::new(), directory: None, signals: Signals::default(), told: Vec::new() };
        for peer in asked {
            if peers.found.iter().any(|(found, _)| found == peer) {
                continue;
            }
            match Tools::find(*peer) {
                Ok(tools) => peers.found.push((*peer, tools)),
                Err(missing) => warn(format_args!("no comparison with {peer}: {missing}")),
            }
        }
        if !peers.found.is_empty() {
            let directory = caretaker::folder("farfield-peers-");
            peers.directory = Some(directory.context("a directory for the peers' programs")?);
            // A peer is in a process group of its own, which the terminal does not interrupt: it is ended here.
            peers.signals.note(&[SIGINT, SIGTERM, SIGHUP], false)?;
        }
        Ok(peers)
    }

    /// Lets each peer do, for so many seconds, the work that these measurements of Farfield come from. A peer that has
    /// nothing comparable gives none. A peer that fails gives none either: the error is shown, and it is left out from
    /// then on.
    ///
    /// # Errors
    /// A signal has asked this process to end.
    pub(crate) fn measure(&mut self, ours: &[Measurement], seconds: f64) -> Result<Vec<Measurement>> {
        let mut all = Vec::new();
        let Some(directory) = self.directory.as_ref().map(TempDir::path) else { return Ok(all) };
        let (told, interrupted) = (&mut self.told, self.signals.have_come());
        self.found.retain_mut(|(peer, tools)| {
            if interrupted.load(Ordering::Relaxed) {
                return true;
            }
            let mut run = |work: &Work| tools.run(work, directory, interrupted);
            match theirs(*peer, ours, seconds, &mut run) {
                Ok(measurements) => {
                    let what = ours.first().map_or(String::new(), |one| format!("{} {}", one.bench, one.case));
                    let untold = (*peer, what);
                    if measurements.is_empty() && !told.contains(&untold) {
                        warn(format_args!("{peer} does nothing that is comparable to {} as it is set up", untold.1));
                        told.push(untold);
                    }
                    all.extend(measurements);
                }
                Err(_) if interrupted.load(Ordering::Relaxed) => {}
                Err(error) => {
                    warn(format_args!("{peer} failed, and is left out from now on: {error:#}"));
                    return false;
                }
            }
            true
        });
        self.signals.seen().map_or(Ok(all), |interrupted| Err(interrupted.into()))
    }

    /// The outcome of a run of Farfield. One that a signal has cut short failed for that.
    pub(crate) fn unless_interrupted<T>(&self, outcome: Result<T>) -> Result<T> {
        outcome.map_err(|error| self.signals.seen().map_or(error, Into::into))
    }
}

/// The lines of a program's run, and its command.
type Said = (Vec<Line>, String);

/// The measurements of a peer. Cases that need the same run of its program share one.
fn theirs(
    peer: Peer,
    ours: &[Measurement],
    seconds: f64,
    run: &mut dyn FnMut(&Work) -> Result<Said>,
) -> Result<Vec<Measurement>> {
    let mut done: Vec<(Work, Said)> = Vec::new();
    let mut all = Vec::new();
    for of_ours in ours {
        let Some(work) = Work::of(peer, of_ours, seconds) else { continue };
        let at = match done.iter().position(|(other, _)| *other == work) {
            Some(at) => at,
            None => {
                let said = run(&work)?;
                done.push((work, said));
                done.len() - 1
            }
        };
        let (work, (lines, command)) = &done[at];
        // A program that measures one thing does not know the name that Farfield's case has.
        let line = match &lines[..] {
            [only] => Some(only),
            lines => lines.iter().find(|line| line.case == of_ours.case),
        };
        let line = line.with_context(|| format!("{} said nothing of {}", work.program.name, of_ours.case))?;
        ensure!(
            line.bench == of_ours.bench && line.processes == work.processes,
            "{} measured {} with {} processes, instead of {} with {}",
            work.program.name,
            line.bench,
            line.processes,
            of_ours.bench,
            work.processes
        );
        all.push(line.measurement(of_ours, command));
    }
    Ok(all)
}

/// Reports that the run continues without a peer.
fn warn(what: fmt::Arguments<'_>) {
    // A closed standard error is no reason to panic.
    let _ = writeln!(std::io::stderr(), "farfield: {what}");
}

#[cfg(test)]
mod tests;
