//! The processes of a benchmark: one for each node, started from this binary, talking to it by lines of text.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use farfield::{BarrierThread, Endpoint};
use indicatif::ProgressBar;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::launch::FabricChoice;
use crate::run::describe;

/// The environment variable with the plan for the processes that a benchmark starts.
const PLAN: &str = "FARFIELD_BENCH_PLAN";
/// The one with the number of the process that has started them.
const PARENT: &str = "FARFIELD_BENCH_PARENT";
/// How long threads wait for each other.
const PATIENCE: Duration = Duration::from_secs(600);

/// The processes of a benchmark. Dropping it ends them.
pub(crate) struct Workers {
    children: Vec<Child>,
    lines: mpsc::Receiver<(usize, Heard)>,
    open: usize,
    /// Lines of standard error, with their nodes, that are not printed yet.
    held: VecDeque<(Instant, usize, String)>,
    /// Nodes that are killed so long after `running`.
    victims: Option<(Vec<usize>, Duration)>,
    is_killed: bool,
}

/// What is heard of a node.
enum Heard {
    /// A line of its standard output: for the benchmark.
    Said(String),
    /// A line of its standard error: for the user.
    Complained(String),
    /// Its standard output has ended.
    Ended,
}

/// The plan of this process, if a benchmark has started it. The process then ends with the benchmark. Call this first.
pub(crate) fn plan<P: DeserializeOwned>() -> Result<Option<P>> {
    let Some(text) = std::env::var_os(PLAN) else { return Ok(None) };
    set_parent_process_death_signal(Some(Signal::KILL)).context("tying this process's life to its parent's")?;
    // One that has died before is not announced any more.
    let parent = getppid().map_or(0, Pid::as_raw_pid).to_string();
    ensure!(std::env::var(PARENT).is_ok_and(|told| told == parent), "the benchmark has ended");
    let plan: P = serde_json::from_slice(text.as_encoded_bytes()).with_context(|| format!("reading {PLAN}"))?;
    Ok(Some(plan))
}

/// Writes one whole line to the benchmark.
pub(crate) fn say(what: &str, more: &impl Serialize) -> Result<()> {
    let line = format!("{what} {}", serde_json::to_string(more)?);
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).context("telling the benchmark")
}

/// Runs the threads of a worker until all have ended. They wait for each other: if one fails, the process ends.
pub(crate) fn run_threads(all: Vec<impl FnOnce() -> Result<()> + Send + 'static>) -> Result<()> {
    let start = |work| {
        std::thread::spawn(move || {
            let ended = catch_unwind(AssertUnwindSafe(work));
            if let Ok(Err(error)) = &ended {
                let _ = writeln!(std::io::stderr(), "farfield: {error:#}");
            }
            if !matches!(ended, Ok(Ok(()))) {
                std::process::exit(1);
            }
        })
    };
    let threads: Vec<_> = all.into_iter().map(start).collect();
    threads.into_iter().try_for_each(|thread| thread.join()).map_err(|_| anyhow::anyhow!("a thread panicked"))
}

/// Waits for all threads of all workers.
pub(crate) fn meet(endpoint: &Endpoint, phase: &mut BarrierThread) -> Result<()> {
    Ok(endpoint.block_on(phase.wait_deadline(endpoint, endpoint.now() + PATIENCE))?)
}

/// How long a process that was killed may take to end. Its peers learn of its death before.
const DYING_MAX: Duration = Duration::from_millis(500);
/// For how long errors of nodes are held back: a death that they are about is named before them.
const HELD: Duration = Duration::from_millis(600);
/// How long the last lines of a node that has ended may take.
const LAST_WORDS_MAX: Duration = Duration::from_millis(100);

impl Workers {
    /// Starts this binary again, with the same arguments and a plan, as the nodes of a session of its own.
    pub(crate) fn start(nodes: u16, fabric: FabricChoice, plan: &impl Serialize) -> Result<Workers> {
        let nodes = usize::from(nodes);
        let plan = serde_json::to_string(plan).context("writing the plan")?;
        let program = std::env::current_exe().context("finding this program")?;
        let session = format!("bench-{}-{:08x}", std::process::id(), rand::random::<u32>());
        fabric.clean_up(&session);
        let variables = fabric.variables(&session, nodes);
        let (say, lines) = mpsc::channel();
        let mut workers = Workers {
            children: Vec::new(),
            lines,
            open: nodes,
            held: VecDeque::new(),
            victims: None,
            is_killed: false,
        };
        for node in 0..nodes {
            let mut child = Command::new(&program)
                .args(std::env::args_os().skip(1))
                .env(PLAN, &plan)
                .env(PARENT, std::process::id().to_string())
                .envs(variables.iter().cloned())
                .env("FARFIELD_NODE", node.to_string())
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .with_context(|| format!("starting node {node}"))?;
            let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
            workers.children.push(child);
            listen(node, stdout.context("a pipe was asked for")?, &say, Heard::Said, Some(Heard::Ended));
            listen(node, stderr.context("a pipe was asked for")?, &say, Heard::Complained, None);
        }
        Ok(workers)
    }

    /// Has these nodes killed together so long after the first `running`. The word `killed` of each says when that was,
    /// in nanoseconds of the clock that all processes of the host share.
    pub(crate) fn kill(&mut self, nodes: Vec<usize>, after: Duration) {
        self.victims = Some((nodes, after));
    }

    /// Runs until all workers have ended, and passes their lines on: node, word, and more. From the word `running` on,
    /// the bar shows the time.
    ///
    /// # Errors
    /// A node has failed. The error names first the one that a signal has ended, if there is one, and then quotes the
    /// errors of all nodes.
    pub(crate) fn run(
        mut self,
        limit: Duration,
        bar: &ProgressBar,
        said: impl FnMut(usize, &str, &str) -> Result<()>,
    ) -> Result<()> {
        let outcome = self.watch(limit, bar, said);
        bar.finish_and_clear();
        self.hear_last_words();
        match outcome {
            Ok(()) => {
                self.print_held(Duration::ZERO, bar, &mut io::stderr());
                Ok(())
            }
            Err(error) => Err(self.with_complaints(error)),
        }
    }

    fn watch(
        &mut self,
        limit: Duration,
        bar: &ProgressBar,
        mut said: impl FnMut(usize, &str, &str) -> Result<()>,
    ) -> Result<()> {
        let start = Instant::now();
        let mut running: Option<Instant> = None;
        while self.open > 0 {
            if start.elapsed() > limit {
                let running = self.children.iter_mut().enumerate();
                let running = running.filter_map(|(node, child)| matches!(child.try_wait(), Ok(None)).then_some(node));
                let nodes: Vec<String> = running.map(|node| node.to_string()).collect();
                bail!(
                    "the benchmark has not ended within {limit:?}: it stops the nodes that still run, {}",
                    nodes.join(", ")
                );
            }
            if let Some(since) = running {
                bar.set_position(since.elapsed().as_millis() as u64);
            }
            if let (Some(since), Some((nodes, after)), false) = (running, &self.victims, self.is_killed)
                && since.elapsed() >= *after
            {
                self.is_killed = true;
                let now = clock_gettime(ClockId::Monotonic);
                let now_ns = (now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64).to_string();
                for &node in nodes {
                    self.children[node].kill().with_context(|| format!("killing node {node}"))?;
                    said(node, "killed", &now_ns)?;
                }
            }
            self.print_held(HELD, bar, &mut io::stderr());
            match self.lines.recv_timeout(Duration::from_millis(50)) {
                Ok((node, Heard::Said(line))) => {
                    let (word, more) = line.split_once(' ').context("a node says something strange")?;
                    if word == "running" {
                        running.get_or_insert_with(Instant::now);
                    }
                    said(node, word, more).with_context(|| format!("reading what node {node} says"))?;
                }
                Ok((node, Heard::Complained(line))) => self.held.push_back((Instant::now(), node, line)),
                Ok((node, Heard::Ended)) => self.ended(node)?,
                Err(_) => {}
            }
        }
        Ok(())
    }

    fn ended(&mut self, node: usize) -> Result<()> {
        let status = self.children[node].wait().with_context(|| format!("waiting for node {node}"))?;
        let is_victim = self.is_killed && self.victims.as_ref().is_some_and(|(victims, _)| victims.contains(&node));
        let was_killed = is_victim && status.signal() == Some(Signal::KILL.as_raw());
        if !status.success() && !was_killed {
            let (node, status) = self.killed().unwrap_or((node, status));
            bail!("node {node} {}", describe(status));
        }
        self.open -= 1;
        Ok(())
    }

    /// Prints the lines that nodes have complained with, each when it has been held for so long.
    fn print_held(&mut self, held: Duration, bar: &ProgressBar, out: &mut impl Write) {
        while let Some((_, node, line)) = self.held.pop_front_if(|(at, ..)| at.elapsed() >= held) {
            // Not eprintln: a closed stderr is no reason to panic.
            bar.suspend(|| _ = writeln!(out, "[{node}] {line}"));
        }
    }

    /// Waits for the last lines that nodes complain with: their standard error may end after their standard output, and
    /// a process of theirs may keep it open.
    fn hear_last_words(&mut self) {
        let start = Instant::now();
        while let Ok((node, heard)) = self.lines.recv_timeout(LAST_WORDS_MAX.saturating_sub(start.elapsed())) {
            if let Heard::Complained(line) = heard {
                self.held.push_back((Instant::now(), node, line));
            }
        }
    }

    /// An error, with the lines that nodes have complained with.
    fn with_complaints(&mut self, error: anyhow::Error) -> anyhow::Error {
        let complaints: String = self.held.drain(..).map(|(_, node, line)| format!("\n[{node}] {line}")).collect();
        anyhow::anyhow!("{error:#}{complaints}")
    }

    /// A node that a signal has ended, which is why another one may have failed before it was seen: its peers learn of
    /// a death while the system still frees the process's memory.
    fn killed(&mut self) -> Option<(usize, ExitStatus)> {
        let start = Instant::now();
        loop {
            let ended = self.children.iter_mut().enumerate();
            let mut ended = ended.filter_map(|(node, child)| Some((node, child.try_wait().ok()??)));
            let killed = ended.find(|(_, status)| status.signal().is_some());
            if killed.is_some() || start.elapsed() > DYING_MAX {
                return killed;
            }
            std::thread::sleep(Duration::from_millis(5)); // between looks
        }
    }
}

/// Passes the lines of a node on, in a thread of its own. Bytes that are no UTF-8 are replaced: a library may print
/// them.
fn listen(
    node: usize,
    from: impl Read + Send + 'static,
    to: &mpsc::Sender<(usize, Heard)>,
    heard: fn(String) -> Heard,
    end: Option<Heard>,
) {
    let to = to.clone();
    std::thread::spawn(move || {
        let mut from = BufReader::new(from);
        let mut bytes = Vec::new();
        while from.read_until(b'\n', &mut bytes).is_ok_and(|read| read > 0) {
            let line = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
            let line = String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(line)).into_owned();
            if to.send((node, heard(line))).is_err() {
                return;
            }
            bytes.clear();
        }
        if let Some(end) = end {
            let _ = to.send((node, end));
        }
    });
}

impl Drop for Workers {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A shell as the only node.
    fn node(script: &str) -> Workers {
        let (say, lines) = mpsc::channel();
        let mut shell = Command::new("sh");
        let mut child =
            shell.args(["-c", script]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("a shell");
        listen(0, child.stdout.take().expect("a pipe"), &say, Heard::Said, Some(Heard::Ended));
        listen(0, child.stderr.take().expect("a pipe"), &say, Heard::Complained, None);
        Workers { children: vec![child], lines, open: 1, held: VecDeque::new(), victims: None, is_killed: false }
    }

    /// Runs it to its end: what it has said, and what was printed of its complaints.
    fn run(mut workers: Workers) -> (Vec<String>, String) {
        let (bar, mut all, mut printed) = (ProgressBar::hidden(), Vec::new(), Vec::new());
        let said = |_: usize, word: &str, more: &str| {
            all.push(format!("{word} {more}"));
            Ok(())
        };
        workers.watch(Duration::from_secs(60), &bar, said).expect("the shell succeeds");
        workers.hear_last_words();
        workers.print_held(Duration::ZERO, &bar, &mut printed);
        (all, String::from_utf8(printed).expect("text"))
    }

    /// They were lost when a node's standard output ended before them.
    #[test]
    fn the_last_complaints_of_a_node_that_succeeds_are_printed() {
        // Its status precedes the last words of a process of its own.
        let (said, printed) = run(node("echo result 1; (sleep 0.03; echo late >&2; echo later >&2) >&- &"));
        assert_eq!((&said[..], &*printed), (&["result 1".into()][..], "[0] late\n[0] later\n"));
        let start = Instant::now();
        run(node("sleep 30 >&- &"));
        assert!(start.elapsed() < Duration::from_secs(20), "it waits for a process that keeps the pipe open");
    }

    /// A line that was no UTF-8 ended the listener, and the node with it.
    #[test]
    fn lines_that_are_no_text_are_passed_on_and_those_after_them() {
        let (said, printed) =
            run(node(r"printf 'result \377\r\n'; printf 'odd \200\nplain\nno end' >&2; echo result 2"));
        assert_eq!(said, ["result \u{fffd}", "result 2"]);
        assert_eq!(printed, "[0] odd \u{fffd}\n[0] plain\n[0] no end\n");
    }
}
