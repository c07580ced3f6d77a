//! The processes of a benchmark: one for each node, started from this binary, talking to it by lines of text.

use std::io::{BufRead, BufReader, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Signal, set_parent_process_death_signal};
use serde::Serialize;

use crate::place::FabricChoice;

/// Set in the processes that a benchmark starts.
const WORKER: &str = "FARFIELD_BENCH_WORKER";

/// The processes of a benchmark. Dropping it ends them.
pub(crate) struct Workers {
    children: Vec<Child>,
    lines: mpsc::Receiver<(usize, Option<String>)>,
    open: usize,
}

/// What a worker says.
pub(crate) enum Said {
    /// A line of text.
    Line(usize, String),
    /// It has ended well.
    Ended,
}

/// Whether this process is one of a benchmark's.
pub(crate) fn is_worker() -> bool {
    std::env::var_os(WORKER).is_some()
}

/// To be called first in a worker: it does not outlive the benchmark.
pub(crate) fn begin() -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL)).context("tying this process's life to its parent's")?;
    Ok(())
}

/// One line, whole, to the benchmark.
pub(crate) fn say(what: &str, more: &impl Serialize) -> Result<()> {
    let line = format!("{what} {}", serde_json::to_string(more)?);
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).context("telling the benchmark")
}

/// A thread of a worker, for which others wait: if it fails, the process ends.
pub(crate) fn thread(work: impl FnOnce() -> Result<()> + Send + 'static) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let ended = catch_unwind(AssertUnwindSafe(work));
        if let Ok(Err(error)) = &ended {
            let _ = writeln!(std::io::stderr(), "farfield: {error:#}");
        }
        if !matches!(ended, Ok(Ok(()))) {
            std::process::exit(1);
        }
    })
}

impl Workers {
    /// Starts this binary again, with the same arguments, as the nodes of a session of its own.
    pub(crate) fn start(nodes: usize, fabric: FabricChoice) -> Result<Workers> {
        Workers::start_with(nodes, fabric, &[])
    }

    /// The same, with further variables.
    pub(crate) fn start_with(nodes: usize, fabric: FabricChoice, more: &[(&str, String)]) -> Result<Workers> {
        let program = std::env::current_exe().context("finding this program")?;
        let session = format!("bench-{}-{:08x}", std::process::id(), rand::random::<u32>());
        let variables = fabric.variables(&session, nodes);
        let (say, lines) = mpsc::channel();
        let mut workers = Workers { children: Vec::new(), lines, open: nodes };
        for node in 0..nodes {
            let mut child = Command::new(&program)
                .args(std::env::args_os().skip(1))
                .env(WORKER, "1")
                .envs(variables.iter().cloned())
                .envs(more.iter().map(|(name, value)| (name, value)))
                .env("FARFIELD_NODE", node.to_string())
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .spawn()
                .with_context(|| format!("starting node {node}"))?;
            let stdout = child.stdout.take().context("a pipe was asked for")?;
            workers.children.push(child);
            let say = say.clone();
            std::thread::spawn(move || {
                for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                    if say.send((node, Some(line))).is_err() {
                        return;
                    }
                }
                let _ = say.send((node, None));
            });
        }
        Ok(workers)
    }

    /// What is said next; none after `timeout`.
    pub(crate) fn next(&mut self, timeout: Duration) -> Result<Option<Said>> {
        let (node, line) = match self.lines.recv_timeout(timeout) {
            Ok(said) => said,
            Err(mpsc::RecvTimeoutError::Timeout) => return Ok(None),
            Err(mpsc::RecvTimeoutError::Disconnected) => return Ok(Some(Said::Ended)),
        };
        if let Some(line) = line {
            return Ok(Some(Said::Line(node, line)));
        }
        let status = self.children[node].wait().with_context(|| format!("waiting for node {node}"))?;
        if !status.success() {
            bail!("node {node} failed: {status}; what it said is above");
        }
        self.open -= 1;
        Ok(Some(Said::Ended))
    }

    /// Whether all have ended.
    pub(crate) fn all_ended(&self) -> bool {
        self.open == 0
    }

    /// Runs until all have ended, handing over their lines and, between them, the time.
    pub(crate) fn run(
        mut self,
        limit: Duration,
        mut line: impl FnMut(usize, &str) -> Result<()>,
        mut tick: impl FnMut(),
    ) -> Result<()> {
        let start = Instant::now();
        while !self.all_ended() {
            tick();
            if let Some(Said::Line(node, text)) = self.next(Duration::from_millis(50))? {
                line(node, &text)?;
            }
            if start.elapsed() > limit {
                bail!("the benchmark has not ended within {limit:?}: its processes are stopped now");
            }
        }
        Ok(())
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
