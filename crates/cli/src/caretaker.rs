//! Cleans up after a command, however it ends. Another process of this program, in a group of its own, waits until the
//! command has ended: by itself, by Ctrl-C, or killed. Then it ends the processes that the command has started, and
//! removes its files.

use std::fs;
use std::io::{self, BufRead, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use farfield::fabric::shm::remove_leftovers;
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

/// How long the nodes of a session may take to end when their command was killed: the system ends them then.
const ENDING_MAX: Duration = Duration::from_secs(10);
/// From asking a group of processes to end (SIGTERM) to ending it (SIGKILL).
const GRACE: Duration = Duration::from_secs(3);
const TICK: Duration = Duration::from_millis(2);
/// A process that a signal ends together with the command has ended after this time, and creates no more files.
const DYING_MAX: Duration = Duration::from_millis(100);

/// What is cleaned up.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) enum Left {
    /// The files of a session on shared memory.
    Session(String),
    Folder(PathBuf),
    /// A group of processes, by its leader's number.
    Group(i32),
    /// A change of the system, which this command takes back: a program and its arguments.
    Change(Vec<String>),
}

/// What the command tells its caretaker.
#[derive(Serialize, Deserialize)]
enum Note {
    Owed(Left),
    Settled(Left),
    /// The command has come to its end: all that it started has ended.
    Finished,
}

struct Caretaker {
    process: Child,
    notes: ChildStdin,
}

/// That of this command, once it owes something.
static CARETAKER: Mutex<Option<Caretaker>> = Mutex::new(None);

fn caretaker() -> MutexGuard<'static, Option<Caretaker>> {
    CARETAKER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// To be cleaned up when this command has ended, unless it is [`settled`] by then. Where no process can be started for
/// it, the command does without: the next one removes the files of sessions.
pub(crate) fn owed(left: Left) {
    let mut caretaker = caretaker();
    if caretaker.is_none() {
        *caretaker = start().ok();
    }
    tell(&mut caretaker, &Note::Owed(left));
}

/// A directory for temporary files. Its name begins so. It is owed before it is there: no moment is left in which a
/// signal would leave it behind.
pub(crate) fn folder(prefix: &str) -> io::Result<TempDir> {
    let name = format!("{prefix}{:016x}", rand::random::<u64>());
    owed(Left::Folder(std::env::temp_dir().join(&name)));
    tempfile::Builder::new().prefix(&name).rand_bytes(0).tempdir()
}

/// Not to be cleaned up any more.
pub(crate) fn settled(left: Left) {
    tell(&mut caretaker(), &Note::Settled(left));
}

/// Cleans up what is owed, and waits for it.
pub(crate) fn finish() {
    let mut caretaker = caretaker();
    tell(&mut caretaker, &Note::Finished);
    if let Some(Caretaker { mut process, notes }) = caretaker.take() {
        drop(notes);
        let _ = process.wait();
    }
}

fn start() -> io::Result<Caretaker> {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("farfield").arg("__caretaker").stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    // The terminal and `timeout` signal the group of this command.
    let mut process = command.process_group(0).spawn()?;
    let notes = process.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
    Ok(Caretaker { process, notes })
}

fn tell(caretaker: &mut Option<Caretaker>, note: &Note) {
    let (Some(caretaker), Ok(line)) = (caretaker, serde_json::to_string(note)) else { return };
    let _ = writeln!(caretaker.notes, "{line}");
}

/// The caretaker's own program.
pub(crate) fn main() {
    let (mut owed, mut kept, mut was_killed) = (Vec::new(), Vec::new(), true);
    for line in io::stdin().lock().lines().map_while(Result::ok) {
        match serde_json::from_str(&line) {
            Ok(Note::Owed(left)) => owed.push(left),
            Ok(Note::Settled(left)) => {
                owed.retain(|other| *other != left);
                kept.extend(Some(left).filter(|left| matches!(left, Left::Folder(_))));
            }
            Ok(Note::Finished) => was_killed = false,
            Err(_) => {} // cut short: the command was killed while it wrote
        }
    }
    if was_killed {
        thread::sleep(DYING_MAX);
        // It has kept them for the failure of a node that the same signal has ended.
        owed.append(&mut kept);
    }
    // Processes first: they may still write files.
    owed.sort_by_key(|left| !matches!(left, Left::Group(_)));
    let patience = if was_killed { ENDING_MAX } else { Duration::ZERO };
    owed.iter().for_each(|left| clean_up(left, patience));
}

/// Cleans up. A session may have other nodes than this command's: it is waited for as long as `patience`.
fn clean_up(left: &Left, patience: Duration) {
    match left {
        Left::Group(leader) => {
            let Some(group) = Pid::from_raw(*leader) else { return };
            let is_gone = || test_kill_process_group(group).is_err();
            let _ = kill_process_group(group, Signal::TERM);
            if !within(GRACE, is_gone) {
                let _ = kill_process_group(group, Signal::KILL);
            }
        }
        Left::Session(name) => _ = within(patience, || remove_leftovers(name).unwrap_or(false)),
        Left::Folder(path) => {
            let is_gone = || fs::remove_dir_all(path).is_ok() || !path.exists();
            within(patience, is_gone);
        }
        Left::Change(undo) => {
            let [program, arguments @ ..] = &undo[..] else { return };
            let _ = Command::new(program).args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).status();
        }
    }
}

/// Whether it holds within a time.
fn within(time: Duration, holds: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    loop {
        if holds() {
            return true;
        }
        if start.elapsed() > time {
            return false;
        }
        thread::sleep(TICK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_go_with_their_contents_and_processes_end() {
        let folder = tempfile::tempdir().unwrap().keep();
        fs::write(folder.join("file"), "text").unwrap();
        clean_up(&Left::Folder(folder.clone()), ENDING_MAX);
        assert!(!folder.exists());
        clean_up(&Left::Folder(folder), ENDING_MAX); // there is none any more

        let mut sleeps = Command::new("sleep").arg("60").process_group(0).spawn().unwrap();
        let leader = sleeps.id() as i32;
        let reaps = thread::spawn(move || sleeps.wait());
        clean_up(&Left::Group(leader), ENDING_MAX);
        assert!(!reaps.join().unwrap().unwrap().success());
    }

    #[test]
    fn changes_of_the_system_are_taken_back() {
        let change = tempfile::NamedTempFile::new().unwrap();
        let path = change.path().to_str().unwrap();
        clean_up(&Left::Change(["rm", path].map(String::from).into()), ENDING_MAX);
        assert!(!change.path().exists());
        clean_up(&Left::Change(["no-such-program"].map(String::from).into()), ENDING_MAX);
    }
}
