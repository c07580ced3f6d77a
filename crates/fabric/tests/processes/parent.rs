//! Starts processes that are nodes, and sends them commands: one a line on their standard input. Each answer is one
//! line, which begins with `@`.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, mpsc};

use farfield_fabric::shm::LAYOUT;
use tempfile::TempDir;

use crate::child::{LAYOUT_VAR, ROLE_VAR};
use crate::{SOON, signal};

/// A directory for sessions that is removed with the test, and the test's share of the cores.
pub(crate) struct Place {
    dir: TempDir,
    _cores: Cores,
}

static CORES: RwLock<()> = RwLock::new(());

enum Cores {
    Whole(#[expect(dead_code, reason = "it is held")] RwLockWriteGuard<'static, ()>),
    Shared(#[expect(dead_code, reason = "it is held")] RwLockReadGuard<'static, ()>),
}

impl Place {
    /// For a test that looks at times, or keeps both cores busy: no other runs beside it.
    pub(crate) fn new() -> Place {
        let alone = CORES.write().unwrap_or_else(PoisonError::into_inner);
        Place { dir: TempDir::new().unwrap(), _cores: Cores::Whole(alone) }
    }

    /// For a test that waits most of its time.
    pub(crate) fn beside_others() -> Place {
        let shared = CORES.read().unwrap_or_else(PoisonError::into_inner);
        Place { dir: TempDir::new().unwrap(), _cores: Cores::Shared(shared) }
    }

    /// Everything below the directory, with its mode.
    pub(crate) fn files(&self) -> BTreeMap<PathBuf, u32> {
        fn walk(at: &Path, found: &mut BTreeMap<PathBuf, u32>) {
            for entry in fs::read_dir(at).unwrap().flatten() {
                let Ok(stat) = fs::symlink_metadata(entry.path()) else { continue };
                found.insert(entry.path(), stat.mode());
                if stat.is_dir() {
                    walk(&entry.path(), found);
                }
            }
        }
        let mut found = BTreeMap::new();
        walk(self.dir.path(), &mut found);
        found
    }

    pub(crate) fn user_dir(&self) -> PathBuf {
        // SAFETY: takes no argument, returns a number, cannot fail.
        self.dir.path().join(format!("farfield-{}", unsafe { libc::geteuid() }))
    }
}

/// How to start a node.
pub(crate) struct Start<'a> {
    pub(crate) dir: Option<&'a Path>,
    pub(crate) session: &'a str,
    pub(crate) node: u16,
    pub(crate) nodes: usize,
    pub(crate) layout: &'a str,
    pub(crate) group_bytes_max: usize,
    /// A command that runs the node's command.
    pub(crate) through: &'a [&'a str],
}

impl<'a> Start<'a> {
    pub(crate) fn of(place: &'a Place, node: u16, nodes: usize) -> Start<'a> {
        let dir = Some(place.dir.path());
        Start { dir, session: "s", node, nodes, layout: LAYOUT, group_bytes_max: 1 << 30, through: &[] }
    }

    fn run(&self) -> Node {
        let exe = std::env::current_exe().unwrap();
        let mut command = match self.through {
            [] => Command::new(&exe),
            [program, args @ ..] => {
                let mut command = Command::new(program);
                command.args(args).arg(&exe);
                command
            }
        };
        command.args(["--exact", "node_process", "--nocapture", "--test-threads=1"]);
        command.env(ROLE_VAR, format!("{} {} {} {}", self.session, self.node, self.nodes, self.group_bytes_max));
        command.env(LAYOUT_VAR, self.layout).env_remove("FARFIELD_DIR");
        if let Some(dir) = self.dir {
            command.env("FARFIELD_DIR", dir);
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (line, lines) = mpsc::channel();
        let output = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for read in output.lines().map_while(Result::ok) {
                // The test harness of the child may print on the same line before.
                if let Some((_, answer)) = read.split_once('@')
                    && line.send(answer.to_owned()).is_err()
                {
                    break;
                }
            }
        });
        let input = child.stdin.take();
        Node { child, input, lines, pid: 0, forked: None }
    }

    /// Starts a node that must come up.
    pub(crate) fn up(&self) -> Node {
        let mut node = self.run();
        let ready = node.answer();
        let Some(pid) = ready.strip_prefix("ready ") else { panic!("node {}: {ready}", self.node) };
        node.pid = pid.parse().unwrap();
        node
    }

    /// Starts a node that must be refused, and returns the reason.
    pub(crate) fn refused(&self) -> String {
        let answer = self.run().answer();
        answer.strip_prefix("refused ").unwrap_or_else(|| panic!("it came up: {answer}")).to_owned()
    }
}

/// A process that is a node.
pub(crate) struct Node {
    pub(crate) child: Child,
    input: Option<ChildStdin>,
    lines: mpsc::Receiver<String>,
    /// The process's own view of its pid.
    pub(crate) pid: i32,
    /// A forked child of the process.
    pub(crate) forked: Option<i32>,
}

impl Node {
    pub(crate) fn answer(&self) -> String {
        self.lines.recv_timeout(SOON).expect("an answer in time")
    }

    pub(crate) fn send(&mut self, command: impl Display) {
        writeln!(self.input.as_mut().unwrap(), "{command}").unwrap();
    }

    /// Sends a command and returns its answer.
    pub(crate) fn ask(&mut self, command: impl Display) -> Result<String, String> {
        self.send(&command);
        let answer = self.answer();
        match (answer.strip_prefix("ok "), answer.strip_prefix("err ")) {
            (Some(value), _) => Ok(value.to_owned()),
            (_, Some(error)) => Err(error.to_owned()),
            _ => panic!("`{command}` was answered by `{answer}`"),
        }
    }

    /// Sends a command that must succeed, and returns the number that it answers.
    #[track_caller]
    pub(crate) fn number(&mut self, command: impl Display) -> u64 {
        let answer = self.ask(&command);
        match answer.as_deref().map(str::parse) {
            Ok(Ok(number)) => number,
            _ => panic!("`{command}`: {answer:?}"),
        }
    }

    /// Sends a command that must fail, and returns its error.
    #[track_caller]
    pub(crate) fn error(&mut self, command: impl Display) -> String {
        match self.ask(&command) {
            Ok(value) => panic!("`{command}` should fail, but gave {value}"),
            Err(error) => error,
        }
    }

    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
        if let Some(pid) = self.forked {
            signal(pid, libc::SIGKILL);
        }
    }
}

/// Starts two connected nodes, and allocates `bytes` bytes in the memory of the second.
pub(crate) fn pair(place: &Place, bytes: usize) -> (Node, Node, u64) {
    let (mut first, mut second) = (Start::of(place, 0, 2).up(), Start::of(place, 1, 2).up());
    first.number("up 1");
    second.number("up 0");
    let word = second.number(format!("alloc 1 {bytes}"));
    (first, second, word)
}

/// Whether this machine permits the actions of a test. If not, it prints that the test was not run.
pub(crate) fn permitted(what: &str, command: &[&str]) -> bool {
    let ran = Command::new(command[0]).args(&command[1..]).stdout(Stdio::null()).stderr(Stdio::piped()).output();
    match ran {
        Ok(output) if output.status.success() => true,
        Ok(output) => {
            println!("not run: {what}: {}", String::from_utf8_lossy(&output.stderr).trim());
            false
        }
        Err(why) => {
            println!("not run: {what}: {why}");
            false
        }
    }
}
