//! The processes of a run: one for each node, started from this binary, which talk to it by lines of JSON.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use farfield::LockKind;
use farfield::mutants::Mutant;
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process, pidfd_open, waitid};
use serde::{Deserialize, Serialize};

use super::kind::Kind;
use super::link::Link;
use super::log::now_ns;
use crate::launch::{FabricChoice, SILENCE, variables};

/// An order to a node.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub(super) enum Order {
    /// Open the objects of a generation together with these nodes.
    Open(Opening),
    /// Open an object together with a newcomer, beside those that are open and in use.
    Join(Opening),
    /// Work on them.
    Run,
    /// Settle.
    Settle,
    /// Check everything once more: no thread changes it now.
    Look,
    /// Close the objects: no thread uses them now.
    Close,
}

#[derive(Serialize, Deserialize, Clone, Debug)]
pub(super) struct Opening {
    pub(super) generation: u64,
    /// The nodes that take part, by their numbers.
    pub(super) members: Vec<u16>,
    /// The homes of the objects that have one.
    pub(super) homes: Vec<u16>,
    pub(super) seed: u64,
    /// From the beginning of one operation of a thread to that of the next, at least.
    pub(super) pace: Duration,
    pub(super) is_placed_by_hash: bool,
    pub(super) locks: LockKind,
    /// The kinds of objects to open.
    pub(super) kinds: Vec<Kind>,
}

/// A report of a node.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub(super) enum Said {
    /// It has joined, as this node.
    Here(u16),
    /// It has carried out the order.
    Did(Step),
    /// It lives.
    Beat {
        /// How many operations each of its threads has begun.
        begun: BTreeMap<String, u64>,
        /// The dead that it knows to be evicted.
        evict: BTreeSet<u16>,
    },
    /// It is evicted of the session.
    Fenced,
    /// It has seen a result that must not be.
    Violation(String),
}

impl Said {
    /// One line, whole, to the parent.
    pub(super) fn say(&self) {
        let mut line = serde_json::to_string(self).expect("plain data");
        line.push('\n');
        let mut out = std::io::stdout().lock();
        // A parent that does not listen any more has ended this process, or will.
        let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
    }
}

/// A step that a node reports as done.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Opened,
    Joined,
    Running,
    Settled,
    Looked,
    Closed,
}

/// A message, or the end of a process: by place, and the life that it is from.
pub(super) struct Heard {
    pub(super) place: usize,
    pub(super) life: usize,
    /// None when it has ended.
    pub(super) said: Option<String>,
}

/// One process.
struct Process {
    child: Child,
    /// None when there will be no more.
    orders: Option<ChildStdin>,
    life: usize,
    gone: Gone,
}

/// When the system had seen a process off, if it has: the marks of its death are set by then, none of its threads
/// runs any more, and no device reaches its memory.
#[derive(Clone, Default)]
pub(super) struct Gone(Arc<AtomicU64>);

impl Gone {
    pub(super) fn at_ns(&self) -> Option<u64> {
        Some(self.0.load(Ordering::Acquire)).filter(|at_ns| *at_ns != 0)
    }
}

/// The processes of a run. Dropping it ends them.
pub(super) struct Processes {
    variables: Vec<(&'static str, OsString)>,
    /// Of each place, the network namespace that it runs in, if it is another one.
    namespaces: Vec<Option<String>>,
    folder: PathBuf,
    mutant: Option<Mutant>,
    places: Vec<Option<Process>>,
    /// Those that were killed there last.
    killed: Vec<Option<Child>>,
    lives: Vec<usize>,
    say: mpsc::Sender<Heard>,
    heard: mpsc::Receiver<Heard>,
}

impl Processes {
    pub(super) fn new(
        places: usize,
        fabric: FabricChoice,
        silence: Option<Duration>,
        link: Option<&Link>,
        folder: &Path,
        mutant: Option<Mutant>,
    ) -> Result<Processes> {
        let hosts = link.map_or(Ok(Vec::new()), |link| link.hosts(places))?;
        let namespace_of = |place| link.and_then(|link| link.namespace_of(place)).map(String::from);
        let namespaces = (0..places).map(namespace_of).collect();
        let session = format!("chaos-{}-{:08x}", std::process::id(), rand::random::<u32>());
        let mut variables = match &hosts[..] {
            [] => {
                fabric.clean_up(&session);
                fabric.variables(&session, places)
            }
            hosts => variables(&session, places, fabric.name(), hosts),
        };
        variables.extend(silence.map(|silence| (SILENCE, silence.as_millis().to_string().into())));
        let (say, heard) = mpsc::channel();
        let (none, killed) = ((0..places).map(|_| None).collect(), (0..places).map(|_| None).collect());
        let (folder, lives) = (folder.into(), vec![0; places]);
        Ok(Processes { variables, namespaces, folder, mutant, places: none, killed, lives, say, heard })
    }

    /// Starts a process at a place where none is.
    pub(super) fn start(&mut self, place: usize) -> Result<()> {
        if let Some(mut before) = self.killed[place].take() {
            before.wait().with_context(|| format!("waiting for the end of the process at place {place}"))?;
        }
        let life = self.lives[place];
        self.lives[place] += 1;
        let path = self.errors_of(place);
        let errors = File::options().create(true).append(true).open(&path);
        let errors = errors.with_context(|| format!("creating {}", path.display()))?;
        let own = std::env::current_exe().context("finding this program")?;
        let mut command = match &self.namespaces[place] {
            None => Command::new(own),
            // It becomes the node's process.
            Some(namespace) => {
                let mut within = Command::new("ip");
                within.args(["netns", "exec", namespace]).arg(own);
                within
            }
        };
        let mut child = command
            .args(["__chaos".as_ref(), self.folder.as_os_str()])
            .args(self.mutant.iter().flat_map(|mutant| ["--mutant", mutant.name()]))
            .envs(self.variables.iter().cloned())
            .env("FARFIELD_NODE", place.to_string())
            .env("FARFIELD_LIFE", life.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()
            .with_context(|| format!("starting a process for place {place}"))?;
        let stdout = child.stdout.take().context("a pipe was asked for")?;
        let orders = child.stdin.take().context("a pipe was asked for")?;
        let pid = Pid::from_child(&child);
        let process = pidfd_open(pid, PidfdFlags::empty()).with_context(|| format!("watching process {pid:?}"))?;
        let (say, gone) = (self.say.clone(), Gone::default());
        let ended = gone.clone();
        std::thread::spawn(move || {
            for said in BufReader::new(stdout).lines().map_while(Result::ok) {
                if say.send(Heard { place, life, said: Some(said) }).is_err() {
                    return;
                }
            }
            // It closes the pipe before it closes its devices, which may read its memory until then. One that was
            // waited for before this could look has ended, too.
            let _ = waitid(WaitId::PidFd(process.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
            ended.0.store(now_ns(), Ordering::Release);
            let _ = say.send(Heard { place, life, said: None });
        });
        self.places[place] = Some(Process { child, orders: Some(orders), life, gone });
        Ok(())
    }

    fn errors_of(&self, place: usize) -> PathBuf {
        self.folder.join(format!("{place}.err"))
    }

    /// The end of a place's standard error.
    pub(super) fn tail_of(&self, place: usize) -> String {
        let text = std::fs::read_to_string(self.errors_of(place)).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    /// The next report of a live node; none within `timeout`.
    pub(super) fn hear(&mut self, timeout: Duration) -> Option<Heard> {
        let heard = self.heard.recv_timeout(timeout).ok()?;
        let lives = |process: &Process| process.life == heard.life;
        // A dead node may have sent a report before, which is not awaited.
        self.places[heard.place].as_ref().is_some_and(lives).then_some(heard)
    }

    /// Sends an order to a place.
    pub(super) fn tell(&mut self, place: usize, order: &Order) -> Result<()> {
        let process = self.places[place].as_mut().context("nobody is there")?;
        let mut line = serde_json::to_string(order)?;
        line.push('\n');
        let orders = process.orders.as_mut().context("it was dismissed")?;
        orders.write_all(line.as_bytes()).with_context(|| format!("telling place {place} to {order:?}"))
    }

    pub(super) fn signal(&self, place: usize, signal: Signal) -> Result<()> {
        let process = self.places[place].as_ref().context("nobody is there")?;
        // Not reaped yet, so no other process has its number.
        let pid = Pid::from_raw(process.child.id() as i32).context("a process has a number")?;
        kill_process(pid, signal).with_context(|| format!("sending {signal:?} to place {place}"))
    }

    /// Kills a process. When the system has seen it off, its place can be taken.
    pub(super) fn kill(&mut self, place: usize) -> Result<Gone> {
        self.signal(place, Signal::KILL)?;
        let process = self.places[place].take().context("nobody is there")?;
        self.killed[place] = Some(process.child);
        Ok(process.gone)
    }

    /// There are no more orders for a place: its process is to leave the session, and end.
    pub(super) fn dismiss(&mut self, place: usize) {
        if let Some(process) = &mut self.places[place] {
            process.orders = None;
        }
    }

    /// How the process at a place has ended; none if it has not in time.
    pub(super) fn wait_for_end(&mut self, place: usize, timeout: Duration) -> Result<Option<ExitStatus>> {
        let process = self.places[place].as_mut().context("nobody is there")?;
        let start = Instant::now();
        loop {
            match process.child.try_wait().context("waiting for the end of a process")? {
                None if start.elapsed() < timeout => std::thread::sleep(Duration::from_millis(5)),
                ended => return Ok(ended),
            }
        }
    }

    /// How a process has ended that sends no more reports.
    pub(super) fn end_of(&mut self, place: usize) -> String {
        let Some(mut process) = self.places[place].take() else { return "nobody is there".into() };
        process.child.wait().map_or_else(|error| error.to_string(), |status| status.to_string())
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        let present = self.places.iter_mut().flatten().map(|process| &mut process.child);
        for child in present.chain(self.killed.iter_mut().flatten()) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
