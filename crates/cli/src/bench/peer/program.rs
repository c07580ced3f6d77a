//! One run of a peer's program, bounded in time, and the lines that it prints.

use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize;

use super::super::measurement::{Latencies, Measurement, Percentiles};
use crate::caretaker::{self, Left};

/// From asking the processes to end (SIGTERM) to ending them (SIGKILL). `mpirun` ends its processes in this time, which
/// are in groups of their own.
const GRACE: Duration = Duration::from_secs(3);
const TICK: Duration = Duration::from_millis(5);
/// The most bytes of a program's output in an error.
const SAID_MAX: usize = 2000;

/// The line that a program prints for each case.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(super) struct Line {
    system: String,
    version: String,
    pub(super) bench: String,
    pub(super) case: String,
    pub(super) processes: u32,
    seconds: f64,
    operations: u64,
    throughput_ops_per_s: f64,
    fairness: Option<f64>,
    latency_ns: Option<Percentiles>,
    /// Latencies in nanoseconds, and how many operations had them.
    #[serde(default)]
    samples: Vec<(u64, u64)>,
    /// Transfers from an account that held too little.
    aborted: Option<u64>,
    /// How many locks there were.
    locks: Option<u64>,
    /// Whether the process that has the accessed memory took part.
    target_progresses: Option<bool>,
}

impl Line {
    /// The measurement, beside one of Farfield.
    pub(super) fn measurement(&self, ours: &Measurement, command: &str) -> Measurement {
        let mut one = Measurement::new(&ours.bench, &ours.case, ours.setup.clone());
        one.system.clone_from(&self.system);
        one.system_version.clone_from(&self.version);
        one.repetition = ours.repetition;
        one.seconds = self.seconds;
        one.operations = self.operations;
        one.throughput_ops_per_s = self.throughput_ops_per_s;
        one.latency_ns = self.latency_ns;
        if !self.samples.is_empty() {
            let mut latencies = Latencies::new();
            self.samples.iter().for_each(|(ns, operations)| latencies.record(*ns, *operations));
            one.latency_histogram = Some(latencies);
        }
        one.fairness = self.fairness;
        one.handoff_ns = ours.handoff_ns;
        // `mpirun` pins its processes as it is told to; the other programs pin none.
        one.pinned = if self.system == "mpi" { ours.pinned } else { Some(false) };
        if ours.figures.contains_key("ns_per_op") && self.throughput_ops_per_s > 0.0 {
            one.figures.insert("ns_per_op".into(), 1e9 / self.throughput_ops_per_s);
        }
        let figures = [
            ("aborted", self.aborted.map(|count| count as f64)),
            ("peer_locks", self.locks.map(|count| count as f64)),
            ("target_progresses", self.target_progresses.map(|does| f64::from(u8::from(does)))),
        ];
        one.figures.extend(figures.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
        one.command = command.into();
        one
    }
}

/// The lines of JSON in a program's output.
pub(super) fn parse(printed: &str) -> Result<Vec<Line>> {
    let lines = printed.lines().filter(|line| line.starts_with('{'));
    let lines = lines.map(|line| serde_json::from_str(line).context("reading the line that it printed"));
    let lines: Vec<Line> = lines.collect::<Result<_>>()?;
    if lines.is_empty() {
        bail!("it printed no result");
    }
    Ok(lines)
}

/// A process that leads a group of its own. Dropping it ends the group.
struct Group {
    leader: Child,
    has_ended: bool,
}

/// Runs a program to its end, or to the limit.
pub(super) fn run(command: &mut Command, limit: Duration, interrupted: &AtomicBool) -> Result<Vec<Line>> {
    // Files, not pipes: a pipe would have to be read while it runs.
    let scratch = || tempfile::tempfile().context("a file for its output");
    let (mut out, mut err) = (scratch()?, scratch()?);
    command.process_group(0).stdout(out.try_clone()?).stderr(err.try_clone()?);
    let mut group = Group { leader: command.spawn().context("starting it")?, has_ended: false };
    caretaker::owed(group.left());
    let status = group.wait(limit, interrupted)?;
    drop(group);
    let said = text(&mut err)?;
    let said = said.trim().get(..SAID_MAX).unwrap_or(said.trim());
    match status {
        None => bail!("it has not ended within {} s, and was stopped; it said: {said}", limit.as_secs_f64()),
        Some(status) if !status.success() => bail!("{status}; it said: {said}"),
        Some(_) => parse(&text(&mut out)?),
    }
}

/// The text of a file.
fn text(file: &mut File) -> Result<String> {
    let mut bytes = Vec::new();
    file.rewind().and_then(|()| file.read_to_end(&mut bytes)).context("reading its output")?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

impl Group {
    /// What remains of it if this process is killed.
    fn left(&self) -> Left {
        Left::Group(self.leader.id() as i32)
    }

    /// The status of the leader, if it ends within the limit.
    fn wait(&mut self, limit: Duration, interrupted: &AtomicBool) -> Result<Option<ExitStatus>> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.leader.try_wait().context("waiting for it")? {
                self.has_ended = true;
                return Ok(Some(status));
            }
            if interrupted.load(Ordering::Relaxed) {
                bail!("interrupted");
            }
            if start.elapsed() > limit {
                return Ok(None);
            }
            thread::sleep(TICK);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if self.has_ended {
            caretaker::settled(self.left());
            return;
        }
        // The leader is not reaped yet, so that its number is not another group's.
        let group = Pid::from_child(&self.leader);
        let _ = kill_process_group(group, Signal::TERM);
        if !matches!(self.wait(GRACE, &AtomicBool::new(false)), Ok(Some(_))) {
            let _ = kill_process_group(group, Signal::KILL);
            let _ = self.leader.wait();
        }
        caretaker::settled(self.left());
    }
}
