//! `farfield run`: starts the nodes of one session as processes on this host and sees them to their end.
//!
//! One event loop on the main thread owns the children: it spawns, signals and reaps them, so that a process id can
//! never be reused between looking and signalling. Two small threads per node copy its stdout and stderr line by line;
//! a third kind turns signals into events.
//!
//! No node outlives the launcher. `run` does not start the program itself but this binary again, as the hidden
//! subcommand `__child`: that asks the kernel for SIGKILL when its parent dies, checks that the parent has not died
//! already, and then becomes the program by `exec`, which keeps the request. Doing the same between fork and exec would
//! need unsafe code. (The kernel drops the request for set-user-id programs, and processes that a node has started are
//! not covered.)

mod hosts;
mod output;
mod signals;

use std::collections::hash_map::RandomState;
use std::ffi::{OsStr, OsString};
use std::hash::{BuildHasher, Hasher};
use std::io::{IsTerminal, PipeReader, PipeWriter, Read, Write};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitCode, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use std::{io, thread};

use anyhow::Context;
use farfield_check::cli::exit::{OrUsage, usage};
use farfield_check::cli::output::parse_seconds;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};
use signal_hook::consts::SIGCHLD;

use self::hosts::Seat;
pub(crate) use self::hosts::remote_main;
use self::output::{DRAIN, Framer, Sink, copy_lines, prefix};
use self::signals::forward_signals_as_events;
use crate::launch::{self, FabricChoice};

/// From asking nodes to end (SIGTERM) to ending them (SIGKILL).
const GRACE: Duration = Duration::from_secs(5);
/// The loop looks at its children at least this often, should a SIGCHLD have been lost.
const TICK: Duration = Duration::from_secs(1);

/// The exit status after `--timeout`, as `timeout(1)` has it.
const STATUS_TIMED_OUT: u8 = 124;
/// The exit status for a program that is there but cannot be executed, as shells have it.
const STATUS_NOT_EXECUTABLE: u8 = 126;
/// The exit status for a program that is not there, as shells have it.
const STATUS_NOT_FOUND: u8 = 127;

const RUN_HELP: &str = "\
Every node is one process with these variables:
  FARFIELD_SESSION  the session's name, the same for all
  FARFIELD_NODE     this node's number, from 0
  FARFIELD_NODES    how many nodes the session has
  FARFIELD_FABRIC   the fabric that connects them
With --fabric verbs and --fabric ucx also where all of them listen for each other, FARFIELD_HOSTS, and what only they
know, FARFIELD_SECRET.

Output comes line by line behind `[node] `, stdout to stdout and stderr to stderr; stdin is empty. A line longer than
64 KiB is written in pieces. SIGINT, SIGTERM and SIGHUP are passed on to the nodes; after a second one they have five
seconds, a third one kills them at once. When `farfield run` itself is killed, its nodes die with it.

Exit status:
  0    every node succeeded
  2    wrong usage
  n    the first node to fail exited with n, or was killed by signal n - 128; the others were then ended, with SIGTERM
       and five seconds later with SIGKILL
  124  the time of --timeout was over
  126  the program cannot be executed
  127  the program was not found

Under mpirun or srun no `farfield run` is needed: start the program itself with them, as in `mpirun -n 4 ./app`, and it
finds its rank and the number of nodes in the variables that they set.";

/// What `farfield run` takes.
#[derive(clap::Args)]
#[command(after_long_help = RUN_HELP)]
#[command(
    after_help = "Under mpirun or srun start the program itself: it finds its rank in their variables. More: --help"
)]
pub(crate) struct RunArgs {
    /// Number of nodes to start
    #[arg(short = 'n', long, value_name = "NODES", value_parser = launch::parse_nodes)]
    #[arg(required_unless_present = "hosts")]
    nodes: Option<u16>,
    /// Start the nodes on the hosts of this file, through ssh, and connect them by RDMA or UCX
    ///
    /// A host in each line, as ssh knows it, with its settings: `HOST [address=IP] [nodes=N] [port=P]
    /// [device=NAME,…]`. Its nodes listen at the address; the default is that of the host's name. Farfield has to be
    /// installed on all of them, and the program at the same path
    #[arg(long, value_name = "FILE", conflicts_with = "nodes")]
    hosts: Option<PathBuf>,
    /// How to reach the hosts: a command to which host and command line are added
    #[arg(long, value_name = "COMMAND", default_value = "ssh -oBatchMode=yes", requires = "hosts")]
    ssh: String,
    /// The session's name [default: a fresh one, run-<pid>-<random>]
    #[arg(long, value_name = "NAME", value_parser = parse_session)]
    session: Option<String>,
    /// The fabric that connects the nodes [default: shm; with --hosts, verbs if a host has a device for it, or ucx]
    #[arg(long, value_enum)]
    fabric: Option<FabricChoice>,
    /// After this time, end all nodes and exit with status 124
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    timeout: Option<Duration>,
    /// Print the nodes' output without the prefix, still in whole lines
    #[arg(long)]
    no_prefix: bool,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// The places of a file of hosts: the address of each, and the device if it is named.
pub(crate) fn seats(file: &Path) -> anyhow::Result<Vec<(SocketAddr, Option<String>)>> {
    Ok(hosts::read(file)?.into_iter().map(|seat| (seat.address, seat.device)).collect())
}

/// The arguments of the hidden `farfield __child`.
#[derive(clap::Args)]
pub(crate) struct ChildArgs {
    /// The process that must be the parent
    #[arg(long)]
    launcher: i32,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

/// Runs the session and returns the exit status that [`RUN_HELP`] promises.
pub(crate) fn main(args: RunArgs) -> anyhow::Result<ExitCode> {
    if args.hosts.is_none()
        && let Err((status, problem)) = look_up(&args.command[0])
    {
        report(&problem);
        return Ok(ExitCode::from(status));
    }
    let plan = Plan::of(&args)?;
    let (events, inbox) = mpsc::channel();
    // Before the first child: a signal that arrives while nodes are starting waits in the inbox.
    forward_signals_as_events(&events)?;
    let mut launcher = Launcher::start(&args, &plan, &events)?;
    Ok(ExitCode::from(launcher.see_through(&inbox)))
}

/// Becomes the program of a node; returns only if that fails.
pub(crate) fn child_main(args: &ChildArgs) -> ExitCode {
    if let Err(error) = rustix::process::set_parent_process_death_signal(Some(Signal::KILL)) {
        report(&format!("cannot tie this node to its launcher: {error}"));
        return ExitCode::FAILURE;
    }
    // The order matters: a launcher that died before the request was made is seen here, one that dies later is not
    // missed.
    if rustix::process::getppid().map(Pid::as_raw_pid) != Some(args.launcher) {
        return ExitCode::FAILURE;
    }
    let program = &args.command[0];
    let error = Command::new(program).args(&args.command[1..]).exec();
    report(&format!("cannot start {}: {error}", program.display()));
    let missing = error.kind() == io::ErrorKind::NotFound;
    ExitCode::from(if missing { STATUS_NOT_FOUND } else { STATUS_NOT_EXECUTABLE })
}

/// The hosts of the nodes, and the settings that all of them get.
struct Plan {
    /// None for nodes on this host.
    seats: Vec<Option<Seat>>,
    variables: Vec<(&'static str, OsString)>,
    ssh: Vec<String>,
}

impl Plan {
    fn of(args: &RunArgs) -> anyhow::Result<Plan> {
        let session = args.session.clone().unwrap_or_else(fresh_session);
        let ssh: Vec<String> = args.ssh.split_whitespace().map(String::from).collect();
        if let Some(path) = &args.hosts {
            let seats = hosts::read(path).or_usage()?;
            if ssh.is_empty() {
                return Err(usage("--ssh: an empty command"));
            }
            let addresses: Vec<_> = seats.iter().map(|seat| seat.address).collect();
            if args.fabric == Some(FabricChoice::Shm) {
                return Err(usage("--fabric shm: it connects the nodes of one host, without --hosts"));
            }
            let fabric = args.fabric.map_or("auto", FabricChoice::name);
            let variables = launch::variables(&session, seats.len(), fabric, &addresses);
            return Ok(Plan { seats: seats.into_iter().map(Some).collect(), variables, ssh });
        }
        let nodes = usize::from(args.nodes.unwrap_or(1));
        let fabric = args.fabric.unwrap_or_default();
        fabric.clean_up(&session);
        Ok(Plan { seats: vec![None; nodes], variables: fabric.variables(&session, nodes), ssh })
    }
}

/// An event of the loop.
enum Event {
    /// This process received a signal; SIGCHLD among them.
    Signal(i32),
    /// One of the two copiers of this node's output has finished.
    CopierDone(usize),
}

/// One process of the session.
struct Node {
    child: Child,
    /// Also its process group. Valid for signals until `ended`: the process is reaped in the same step.
    pid: Pid,
    /// To a node on another host, for which the process stands.
    orders: Option<ChildStdin>,
    ended: bool,
    /// Open while the process lives; its end closes it, which the copiers notice.
    alive: Option<PipeWriter>,
    /// How many of its output streams are still being copied.
    copiers: usize,
}

/// The first failure of a session.
struct Failure {
    node: usize,
    status: ExitStatus,
    /// Whether others had to be ended for it.
    ends_others: bool,
    told: bool,
}

/// The session as its event loop sees it.
struct Launcher {
    nodes: Vec<Node>,
    /// The command, for messages.
    command: String,
    first_failure: Option<Failure>,
    timed_out: bool,
    /// The number of signals to pass on.
    signals: u32,
    /// When `--timeout` strikes; none once the session is being ended.
    timeout_at: Option<Instant>,
    /// The time at which the remaining processes are killed.
    kill_at: Option<Instant>,
    /// The time at which unread output is given up: only after a request to end.
    abandon_at: Option<Instant>,
}

impl Launcher {
    /// Starts all nodes, or none.
    fn start(args: &RunArgs, plan: &Plan, events: &Sender<Event>) -> anyhow::Result<Self> {
        let mut launcher = Self {
            nodes: Vec::new(),
            command: shown(&args.command),
            first_failure: None,
            timed_out: false,
            signals: 0,
            timeout_at: args.timeout.and_then(|timeout| Instant::now().checked_add(timeout)),
            kill_at: None,
            abandon_at: None,
        };
        for index in 0..plan.seats.len() {
            let started = launcher.start_node(args, plan, index, events);
            if let Err(error) = started {
                for node in &mut launcher.nodes {
                    node.orders = None; // which is the order to end, on another host
                    let _ = rustix::process::kill_process_group(node.pid, Signal::KILL);
                }
                for node in &mut launcher.nodes {
                    let _ = node.child.wait();
                }
                return Err(error.context(format!("cannot start node {index} of {}", plan.seats.len())));
            }
        }
        Ok(launcher)
    }

    /// Starts one node. On the main thread only: the kernel's death signal is sent when the *thread* that spawned
    /// ends.
    fn start_node(&mut self, args: &RunArgs, plan: &Plan, index: usize, events: &Sender<Event>) -> anyhow::Result<()> {
        let (hang_up, alive) = io::pipe().context("no pipe (see `ulimit -n`)")?;
        let seat = &plan.seats[index];
        let own = [("FARFIELD_NODE", index.to_string().into())].into_iter();
        let variables: Vec<_> =
            plan.variables.iter().cloned().chain(own).chain(seat.as_ref().and_then(hosts::variables_of)).collect();
        let mut command = match seat {
            Some(seat) => hosts::command(&plan.ssh, &seat.host)?,
            None => {
                let mut command = Command::new("/proc/self/exe");
                let launcher = std::process::id().to_string();
                command.arg0("farfield").args(["__child", "--launcher", &launcher, "--"]).args(&args.command);
                command.envs(variables.iter().cloned()).stdin(Stdio::null());
                command
            }
        };
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = command.spawn().with_context(|| match seat {
            Some(_) => format!("no {} here", plan.ssh[0]),
            None => "no process (see `ulimit -u` and `ulimit -n`)".into(),
        })?;
        let pid = Pid::from_child(&child);
        let (out, err, orders) = (child.stdout.take(), child.stderr.take(), child.stdin.take());
        self.nodes.push(Node { child, pid, orders, ended: false, alive: Some(alive), copiers: 0 });

        let hang_up = Arc::new(hang_up);
        let prefix = |terminal: bool| (!args.no_prefix).then(|| prefix(index, terminal));
        if let Some(out) = out {
            let framer = Framer::new(prefix(io::stdout().is_terminal()));
            self.start_copier(index, out, Sink::Out, framer, &hang_up, events)?;
        }
        if let Some(err) = err {
            let framer = Framer::new(prefix(io::stderr().is_terminal()));
            self.start_copier(index, err, Sink::Err, framer, &hang_up, events)?;
        }
        if let Some(orders) = &mut self.nodes[index].orders {
            hosts::instruct(orders, &variables, &args.command)?;
        }
        Ok(())
    }

    fn start_copier(
        &mut self,
        index: usize,
        from: impl Read + AsFd + Send + 'static,
        to: Sink,
        framer: Framer,
        hang_up: &Arc<PipeReader>,
        events: &Sender<Event>,
    ) -> anyhow::Result<()> {
        let (hang_up, events) = (Arc::clone(hang_up), events.clone());
        thread::Builder::new()
            .name(format!("node {index} output"))
            .stack_size(256 * 1024)
            .spawn(move || {
                // An error means that our own output is closed. Returning closes the node's pipe, and the node notices
                // it as it would have without us.
                let _ = copy_lines(from, &hang_up, to, framer);
                let _ = events.send(Event::CopierDone(index));
            })
            .context("no thread (see `ulimit -u`)")?;
        self.nodes[index].copiers += 1;
        Ok(())
    }

    /// The event loop: returns the exit status once every node has ended and its output is out.
    fn see_through(&mut self, inbox: &Receiver<Event>) -> u8 {
        loop {
            self.reap();
            self.tell_failure(false);
            if self.all_ended() && (self.all_copied() || self.abandon_at.is_some_and(|at| at <= Instant::now())) {
                break;
            }
            match inbox.recv_timeout(self.patience()) {
                Ok(Event::Signal(SIGCHLD)) | Err(RecvTimeoutError::Timeout) => {}
                Ok(Event::Signal(number)) => self.pass_on(number),
                Ok(Event::CopierDone(index)) => self.nodes[index].copiers -= 1,
                Err(RecvTimeoutError::Disconnected) => break,
            }
            self.keep_time();
        }
        self.tell_failure(true);
        match &self.first_failure {
            _ if self.timed_out => STATUS_TIMED_OUT,
            Some(failure) => exit_status_of(failure.status),
            None => 0,
        }
    }

    /// The time until something must be done, unless an event arrives before.
    fn patience(&self) -> Duration {
        let now = Instant::now();
        [self.timeout_at, self.kill_at, self.abandon_at]
            .into_iter()
            .flatten()
            .map(|at| at.saturating_duration_since(now))
            .fold(TICK, Duration::min)
    }

    /// Notices nodes that have ended; the first that failed ends the others.
    fn reap(&mut self) {
        for index in 0..self.nodes.len() {
            let ending = self.is_ending();
            let node = &mut self.nodes[index];
            if node.ended {
                continue;
            }
            let Some(succeeded) = outcome(node.pid) else {
                continue;
            };
            // The process is a zombie until `wait`, so its number still names its group and no other. The rest of the
            // group of a failed or terminated node ends with it; a node that succeeded may leave processes running.
            if ending || !succeeded {
                let _ = rustix::process::kill_process_group(node.pid, Signal::KILL);
            }
            let status = node.child.wait().unwrap_or_else(|_| ExitStatus::from_raw(0x100));
            node.ended = true;
            node.alive = None;
            if !status.success() && !ending {
                self.first_failure =
                    Some(Failure { node: index, status, ends_others: self.running() > 0, told: false });
                self.end_all();
            }
        }
        if self.all_ended() {
            self.timeout_at = None;
            if self.timed_out || self.signals >= 2 {
                self.abandon_at.get_or_insert(Instant::now() + 2 * DRAIN);
            }
        }
    }

    /// Prints the first failure after the failed node's last output, or `now`.
    fn tell_failure(&mut self, now: bool) {
        if let Some(failure) = &mut self.first_failure
            && !failure.told
            && (now || self.nodes[failure.node].copiers == 0)
        {
            failure.told = true;
            let what = describe(failure.status);
            let then = if failure.ends_others { ", ending the other nodes" } else { "" };
            report(&format!("node {} {what}{then}: {}", failure.node, self.command));
        }
    }

    /// Passes a signal on to the nodes, with more force each time.
    fn pass_on(&mut self, number: i32) {
        self.signals += 1;
        let now = Instant::now();
        if self.all_ended() {
            // Only output is pending, and the user wants this program to end.
            self.abandon_at = Some(now);
            return;
        }
        if self.signals >= 3 {
            self.kill_at = Some(now);
            return;
        }
        if self.signals == 2 {
            self.kill_at = Some(self.kill_at.map_or(now + GRACE, |at| at.min(now + GRACE)));
        }
        if let Some(signal) = Signal::from_named_raw(number) {
            self.signal(signal);
        }
    }

    /// Acts on the timers: the timeout, and the kill after the grace period.
    fn keep_time(&mut self) {
        let now = Instant::now();
        if self.timeout_at.is_some_and(|at| at <= now) {
            self.timed_out = true;
            report(&format!("the time is over (--timeout): ending {} of {} nodes", self.running(), self.nodes.len()));
            self.end_all();
        }
        if self.kill_at.is_some_and(|at| at <= now) {
            self.kill_at = None;
            self.kill();
        }
    }

    /// Asks every node to end, and remembers to insist.
    fn end_all(&mut self) {
        self.timeout_at = None;
        self.kill_at.get_or_insert(Instant::now() + GRACE);
        self.signal(Signal::TERM);
    }

    /// Signals the process groups of the nodes that run.
    fn signal(&mut self, signal: Signal) {
        for node in self.nodes.iter_mut().filter(|node| !node.ended) {
            match &mut node.orders {
                Some(orders) => hosts::signal(orders, signal),
                None => _ = rustix::process::kill_process_group(node.pid, signal),
            }
        }
    }

    /// Kills all running processes. Those on other hosts end when their connection does, if they have not ended
    /// before.
    fn kill(&mut self) {
        self.signal(Signal::KILL);
        for node in self.nodes.iter_mut().filter(|node| !node.ended) {
            // A second time: the host does not answer.
            match node.orders.take() {
                Some(_) => self.kill_at = Some(Instant::now() + GRACE),
                None => _ = rustix::process::kill_process_group(node.pid, Signal::KILL),
            }
        }
    }

    fn is_ending(&self) -> bool {
        self.first_failure.is_some() || self.timed_out
    }

    fn running(&self) -> usize {
        self.nodes.iter().filter(|node| !node.ended).count()
    }

    fn all_ended(&self) -> bool {
        self.running() == 0
    }

    fn all_copied(&self) -> bool {
        self.nodes.iter().all(|node| node.copiers == 0)
    }
}

/// Whether a child has ended, and if so with success; leaves it to be reaped.
fn outcome(pid: Pid) -> Option<bool> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    match rustix::process::waitid(WaitId::Pid(pid), options) {
        Ok(status) => status.map(|status| status.exit_status() == Some(0)),
        Err(rustix::io::Errno::INTR) => None,
        Err(_) => Some(false),
    }
}

/// Checks that a program can be started, before any node is: otherwise every node would report it.
fn look_up(program: &OsStr) -> Result<(), (u8, String)> {
    let name = program.display();
    let can_execute = |path: &Path| path.is_file() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok();
    if program.as_encoded_bytes().contains(&b'/') {
        let path = Path::new(program);
        return match path.metadata() {
            Err(error) => Err((STATUS_NOT_FOUND, format!("cannot start {name}: {error}"))),
            Ok(found) if found.is_dir() => {
                Err((STATUS_NOT_EXECUTABLE, format!("cannot start {name}: it is a directory")))
            }
            Ok(_) if can_execute(path) => Ok(()),
            Ok(_) => Err((STATUS_NOT_EXECUTABLE, format!("cannot start {name}: not executable (chmod +x {name})"))),
        };
    }
    let search = std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/bin:/usr/bin".into());
    let found: Vec<PathBuf> =
        std::env::split_paths(&search).map(|folder| folder.join(program)).filter(|path| path.is_file()).collect();
    match found.first() {
        _ if found.iter().any(|path| can_execute(path)) => Ok(()),
        Some(path) => {
            Err((STATUS_NOT_EXECUTABLE, format!("cannot start {name}: {} is not executable", path.display())))
        }
        None => {
            let hint = if Path::new(program).is_file() { format!("; did you mean ./{name}?") } else { String::new() };
            Err((STATUS_NOT_FOUND, format!("cannot start {name}: no such program in PATH{hint}")))
        }
    }
}

pub(crate) fn parse_session(name: &str) -> Result<String, String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if name.is_empty() || name.len() > 64 || name.starts_with('.') || !name.bytes().all(plain) {
        return Err("1 to 64 letters, digits, '-', '_' and '.', and no '.' at the start".into());
    }
    Ok(name.into())
}

/// A session name that no other session on this host has.
fn fresh_session() -> String {
    // The standard library's hash keys are random per process.
    let random = RandomState::new().build_hasher().finish() & 0xffff_ffff;
    format!("run-{}-{random:08x}", std::process::id())
}

/// A command as messages show it: its words, cut after about a line.
fn shown(command: &[OsString]) -> String {
    const CHARS_MAX: usize = 160;
    let words: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
    let text = words.join(" ").replace(|letter: char| letter.is_control(), " ");
    match text.char_indices().nth(CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// How a node ended, in words.
pub(crate) fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exited with status {code}"),
        (None, Some(number)) => {
            let core = if status.core_dumped() { ", core dumped" } else { "" };
            match signal_hook::low_level::signal_name(number) {
                Some(name) => format!("was killed by {name} (signal {number}{core})"),
                None => format!("was killed by signal {number}{core}"),
            }
        }
        (None, None) => format!("ended strangely ({status})"),
    }
}

/// A node's end as our own exit status.
fn exit_status_of(status: ExitStatus) -> u8 {
    let number = status.code().or_else(|| status.signal().map(|number| 128 + number));
    number.and_then(|number| u8::try_from(number).ok()).unwrap_or(1)
}

/// One line on stderr; a closed stderr is no reason to fail.
fn report(line: &str) {
    let _ = writeln!(io::stderr(), "farfield: {line}");
}

#[cfg(test)]
mod tests;
