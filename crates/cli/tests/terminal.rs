//! The binary `farfield` in a terminal: every command to its end, with Ctrl-C in the middle, and killed.

#![forbid(unsafe_code)]

use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use portable_pty::{Child, CommandBuilder, ExitStatus, MasterPty, PtySize, native_pty_system};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// Nothing here takes this long unless it hangs.
const PATIENCE: Duration = Duration::from_secs(60);
/// Commands that run at the same time.
const AT_ONCE: usize = 6;

/// Each command, so short that it ends soon, with the option that makes it last.
const COMMANDS: &[(&str, &str)] = &[
    ("bench barrier --repetitions 1", "--seconds"),
    ("bench broadcast --repetitions 1", "--seconds"),
    ("bench collectives --repetitions 1 --call broadcast --size 8", "--seconds"),
    ("bench fabric --repetitions 1", "--seconds"),
    ("bench idle --repetitions 1 --case queue", "--seconds"),
    ("bench kv --repetitions 1 --keys 1000 --workload c", "--seconds"),
    ("bench locks --repetitions 1 --kind alock", "--seconds"),
    ("bench queue --repetitions 1", "--seconds"),
    ("bench transfers --repetitions 1 --kind mutex", "--seconds"),
    ("chaos --faults kill", "--seconds"),
    ("check barrier", "--seconds"),
    ("run --nodes 2 -- sleep", ""),
    ("doctor", "?"),
    ("litmus ../mowgli/litmus/paper/fig_5.litmus", "?"),
    ("report tests/data/synthetic-measurements.jsonl -o", "/dev/null"),
];

/// A command in a terminal of its own, and with directories of its own.
struct Terminal {
    directories: [TempDir; 2],
    child: Box<dyn Child + Send + Sync>,
    keyboard: Box<dyn Write + Send>,
    screen: Option<thread::JoinHandle<String>>,
    _pty: Box<dyn MasterPty + Send>,
}

impl Terminal {
    /// `farfield COMMAND`, for so many seconds if it measures any.
    fn start(command: &str, option: &str, seconds: &str) -> Terminal {
        let pty =
            native_pty_system().openpty(PtySize { rows: 24, cols: 100, ..PtySize::default() }).expect("a terminal");
        let mut builder = CommandBuilder::new(env!("CARGO_BIN_EXE_farfield"));
        builder.args(command.split(' '));
        match option {
            "?" => {}
            "" => builder.arg(seconds),
            "--seconds" => builder.args([option, seconds]),
            path => builder.arg(path),
        }
        let directories = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
        for (variable, directory) in ["FARFIELD_DIR", "TMPDIR"].into_iter().zip(&directories) {
            builder.env(variable, directory.path());
        }
        builder.cwd(env!("CARGO_MANIFEST_DIR"));
        let child = pty.slave.spawn_command(builder).expect("it starts");
        drop(pty.slave);
        let mut reader = pty.master.try_clone_reader().expect("a screen");
        let screen = thread::spawn(move || {
            let mut seen = Vec::new();
            let mut bytes = [0; 4096];
            // The end is an error of its own on Linux.
            while let Ok(count @ 1..) = reader.read(&mut bytes) {
                seen.extend_from_slice(&bytes[..count]);
            }
            String::from_utf8_lossy(&seen).into_owned()
        });
        let keyboard = pty.master.take_writer().expect("a keyboard");
        Terminal { directories, child, keyboard, screen: Some(screen), _pty: pty.master }
    }

    /// Waits for the end: the status, and what was on the screen.
    fn end(&mut self) -> (ExitStatus, String) {
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("waitable") {
                break status;
            }
            if start.elapsed() > PATIENCE {
                let _ = self.child.kill();
                panic!("it has not ended");
            }
            thread::sleep(Duration::from_millis(2));
        };
        (status, self.screen.take().expect("once").join().expect("no panic"))
    }

    /// Waits until nothing is left in the directories.
    fn leaves_nothing(&self) -> Result<(), String> {
        let start = Instant::now();
        loop {
            let left: Vec<String> = self.directories.iter().flat_map(|directory| files(directory.path())).collect();
            if left.is_empty() {
                return Ok(());
            }
            if start.elapsed() > PATIENCE {
                return Err(left.join(", "));
            }
            thread::sleep(Duration::from_millis(2));
        }
    }
}

/// All files and folders in a directory.
fn files(directory: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let paths = entries.flatten().map(|entry| entry.path());
    paths.flat_map(|path| [vec![path.display().to_string()], files(&path)].concat()).collect()
}

/// Does the same with every command, with a few at a time: their nodes spin, and with too many one may not get to start
/// in time.
fn with_each(work: impl Fn(&str, &str) -> Result<(), String> + Sync) {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (next, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some((command, option)) = COMMANDS.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(why) = work(command, option) {
                        failures.lock().expect("no panic").push(format!("{command}: {why}"));
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().expect("no panic");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn every_command_runs_in_a_terminal_and_leaves_nothing() {
    with_each(|command, option| {
        let mut terminal = Terminal::start(command, option, "0.3");
        let (status, screen) = terminal.end();
        if !status.success() || ["panicked", "error:", "crate feature"].iter().any(|word| screen.contains(word)) {
            return Err(format!("{status}: {screen}"));
        }
        terminal.leaves_nothing()
    });
}

#[test]
fn ctrl_c_ends_every_command_at_any_moment_and_leaves_nothing() {
    with_each(|command, option| {
        // `FARFIELD_TEST_LONG` looks at more moments: CI does.
        let step = if std::env::var_os("FARFIELD_TEST_LONG").is_some() { 1 } else { 3 };
        (0..10).step_by(step).try_for_each(|moment| {
            let mut terminal = Terminal::start(command, option, "5");
            thread::sleep(Duration::from_millis(3 + 60 * moment));
            let pressed = Instant::now();
            // It fails if the command has ended, and its terminal is gone.
            let _ = terminal.keyboard.write_all(b"\x03");
            let (status, screen) = terminal.end();
            if screen.contains("panicked") {
                return Err(screen);
            }
            if pressed.elapsed() > Duration::from_secs(10) {
                return Err(format!("it has ended {:?} after Ctrl-C, {status}: {screen}", pressed.elapsed()));
            }
            terminal.leaves_nothing().map_err(|left| format!("Ctrl-C after {} ms: {left}", 3 + 60 * moment))
        })
    });
}

#[test]
fn a_command_that_is_killed_leaves_nothing() {
    with_each(|command, option| {
        [30, 250, 600].into_iter().try_for_each(|moment| {
            let mut terminal = Terminal::start(command, option, "5");
            thread::sleep(Duration::from_millis(moment));
            // Its number is not another's: it has not been waited for.
            let process = terminal.child.process_id().and_then(|id| Pid::from_raw(id as i32)).expect("a number");
            kill_process(process, Signal::KILL).expect("ours");
            terminal.end();
            terminal.leaves_nothing().map_err(|left| format!("killed after {moment} ms: {left}"))
        })
    });
}
