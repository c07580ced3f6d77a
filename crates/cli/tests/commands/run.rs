//! The binary `farfield`, end to end: `run` with shell scripts as nodes, and `doctor`.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use tempfile::TempDir;

/// Nothing here takes this long unless it hangs.
const PATIENCE: Duration = Duration::from_secs(30);

fn farfield(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_farfield"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// `farfield run ARGS -- /bin/sh -c SCRIPT`
fn run_script(args: &[&str], script: &str) -> Command {
    let mut command = farfield(&["run"]);
    command.args(args).args(["--", "/bin/sh", "-c", script]);
    command
}

/// Runs to the end; panics if there is none.
fn finish(mut command: Command) -> Output {
    let mut child = command.spawn().expect("farfield starts");
    let (mut out, mut err) = (child.stdout.take().expect("piped"), child.stderr.take().expect("piped"));
    let read_out = std::thread::spawn(move || read_all(&mut out));
    let read_err = std::thread::spawn(move || read_all(&mut err));
    let status = wait(&mut child);
    Output { status, stdout: read_out.join().expect("no panic"), stderr: read_err.join().expect("no panic") }
}

fn read_all(from: &mut impl Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    from.read_to_end(&mut bytes).expect("readable");
    bytes
}

fn wait(child: &mut Child) -> std::process::ExitStatus {
    let mut status = None;
    let ended = eventually(|| {
        status = child.try_wait().expect("waitable");
        status.is_some()
    });
    if !ended {
        let _ = child.kill();
        panic!("farfield did not end within {PATIENCE:?}");
    }
    status.expect("just seen")
}

/// Polls until the condition holds; false if it never does.
fn eventually(mut condition: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    true
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn lines_sorted(bytes: &[u8]) -> Vec<String> {
    let mut lines: Vec<String> = text(bytes).lines().map(str::to_string).collect();
    lines.sort();
    lines
}

/// Reads `count` lines that each hold a process id behind the prefix.
fn read_pids(from: &mut impl BufRead, count: usize) -> Vec<Pid> {
    (0..count)
        .map(|_| {
            let mut line = String::new();
            from.read_line(&mut line).expect("readable");
            let number = line.trim().rsplit(' ').next().and_then(|word| word.parse().ok());
            number.and_then(Pid::from_raw).unwrap_or_else(|| panic!("not a process id: {line:?}"))
        })
        .collect()
}

/// Gone, or dead and waiting for its parent: that cannot run any more.
fn is_gone(pid: Pid) -> bool {
    if test_kill_process(pid).is_err() {
        return true;
    }
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid())).unwrap_or_default();
    stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['Z', 'X']))
}

/// A directory of one test's own, removed at its end.
struct Scratch(TempDir);

impl Scratch {
    fn new() -> Self {
        Self(TempDir::new().expect("a temporary directory"))
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().expect("UTF-8").to_string()
    }
}

#[test]
fn nodes_get_their_environment_behind_prefixes() {
    let output = finish(run_script(
        &["-n", "3", "--session", "here"],
        "echo $FARFIELD_SESSION $FARFIELD_NODE/$FARFIELD_NODES; echo oops >&2",
    ));
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(lines_sorted(&output.stdout), ["[0] here 0/3", "[1] here 1/3", "[2] here 2/3"]);
    assert_eq!(lines_sorted(&output.stderr), ["[0] oops", "[1] oops", "[2] oops"]);
}

#[test]
fn a_generated_session_is_one_for_all_nodes_and_new_every_time() {
    let session = || {
        let output = finish(run_script(&["-n", "2", "--no-prefix"], "echo $FARFIELD_SESSION"));
        let lines = lines_sorted(&output.stdout);
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0], lines[1]);
        assert!(lines[0].starts_with("run-"), "{lines:?}");
        lines[0].clone()
    };
    assert_ne!(session(), session());
}

#[test]
fn arguments_reach_the_program_as_they_are() {
    let mut command = farfield(&["run", "-n", "1", "--no-prefix", "--", "/bin/sh", "-c", "printf '<%s>' \"$@\"", "sh"]);
    command.args(["-n", "--", "a b", "", "--timeout"]);
    let output = finish(command);
    assert_eq!(text(&output.stdout), "<-n><--><a b><><--timeout>");
}

#[test]
fn partial_lines_and_binary_bytes_come_through() {
    let output = finish(run_script(&["-n", "1"], r"printf 'a\000\377\nlast'"));
    assert_eq!(output.stdout, b"[0] a\0\xff\n[0] last\n");
    let output = finish(run_script(&["-n", "1", "--no-prefix"], r"printf 'a\000\377\nlast'"));
    assert_eq!(output.stdout, b"a\0\xff\nlast");
}

#[test]
fn a_line_without_end_comes_in_pieces() {
    let output = finish(run_script(&["-n", "1"], "head -c 1000000 /dev/zero"));
    assert_eq!(output.stdout.iter().filter(|&&byte| byte == 0).count(), 1_000_000);
    assert!(output.stdout.split(|&byte| byte == b'\n').all(|line| line.len() <= 4 + 64 * 1024));
}

#[test]
fn lines_of_nodes_do_not_mix() {
    let script = "i=0; while [ $i -lt 300 ]; do echo aaaaaaaaaa$FARFIELD_NODE; i=$((i+1)); done";
    let output = finish(run_script(&["-n", "4"], script));
    let lines = lines_sorted(&output.stdout);
    assert_eq!(lines.len(), 1200);
    for (index, line) in lines.iter().enumerate() {
        let node = index / 300;
        assert_eq!(*line, format!("[{node}] aaaaaaaaaa{node}"));
    }
}

#[test]
fn stdin_is_empty() {
    let output = finish(run_script(&["-n", "2"], "cat; echo done"));
    assert_eq!(lines_sorted(&output.stdout), ["[0] done", "[1] done"]);
}

#[test]
fn the_first_failure_decides_and_ends_the_others() {
    // The others would sleep for ten minutes; that the test ends shows that they were ended.
    let script = "if [ $FARFIELD_NODE = 1 ]; then echo last words; exit 3; fi; exec sleep 600";
    let output = finish(run_script(&["-n", "3"], script));
    assert_eq!(output.status.code(), Some(3));
    let errors = text(&output.stderr);
    let told: Vec<&str> = errors.lines().filter(|line| line.starts_with("farfield:")).collect();
    assert_eq!(told.len(), 1, "{errors}");
    assert!(told[0].contains("node 1 exited with status 3, ending the other nodes: /bin/sh -c"), "{errors}");
    assert!(text(&output.stdout).contains("[1] last words"));
}

#[test]
fn a_killed_node_counts_as_128_and_the_signal() {
    let output = finish(run_script(&["-n", "2"], "[ $FARFIELD_NODE = 0 ] && kill -9 $$; exec sleep 600"));
    assert_eq!(output.status.code(), Some(137));
    let errors = text(&output.stderr);
    assert!(errors.contains("node 0 was killed by SIGKILL (signal 9), ending the other nodes: /bin/sh"), "{errors}");
}

#[test]
fn others_that_ignore_the_request_are_killed() {
    // Node 1 fails only after node 0 has shut its ears; the shell passes that on to its sleep.
    let scratch = Scratch::new();
    let script = "if [ $FARFIELD_NODE = 0 ]; then trap '' TERM; : > \"$0\"; sleep 600; exit; fi
        until [ -e \"$0\" ]; do sleep 0.01; done; exit 5";
    let mut command = run_script(&["-n", "2"], script);
    command.arg(scratch.path("ready"));
    let started = Instant::now();
    let output = finish(command);
    assert_eq!(output.status.code(), Some(5));
    assert!(started.elapsed() >= Duration::from_secs(5), "the grace period is five seconds");
}

#[test]
fn the_timeout_ends_everything_with_124() {
    let output = finish(run_script(&["-n", "2", "--timeout", "2"], "echo begun; exec sleep 600"));
    assert_eq!(output.status.code(), Some(124));
    assert!(text(&output.stderr).contains("--timeout"), "{}", text(&output.stderr));
    assert_eq!(lines_sorted(&output.stdout), ["[0] begun", "[1] begun"]);
    let output = finish(run_script(&["-n", "2", "--timeout", "600"], "exit 0"));
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn a_missing_program_is_127_and_said_once() {
    for program in ["farfield-no-such-program", "/no/such/program"] {
        let output = finish(farfield(&["run", "-n", "3", "--", program]));
        assert_eq!(output.status.code(), Some(127));
        let errors = text(&output.stderr);
        assert_eq!(errors.lines().count(), 1, "{errors}");
        assert!(errors.contains(program), "{errors}");
    }
}

#[test]
fn a_program_that_cannot_be_executed_is_126() {
    let scratch = Scratch::new();
    let path = scratch.path("plain");
    fs::write(&path, "#!/bin/sh\n").expect("a file");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("permissions");
    for program in [path.as_str(), "/"] {
        let output = finish(farfield(&["run", "-n", "2", "--", program]));
        assert_eq!(output.status.code(), Some(126), "{}", text(&output.stderr));
    }
}

#[test]
fn a_script_with_a_missing_interpreter_fails_like_a_missing_program() {
    let scratch = Scratch::new();
    let path = scratch.path("script");
    fs::write(&path, "#!/no/such/interpreter\n").expect("a file");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("permissions");
    let output = finish(farfield(&["run", "-n", "1", "--", &path]));
    assert_eq!(output.status.code(), Some(127));
    assert!(text(&output.stderr).contains("[0] farfield: cannot start"), "{}", text(&output.stderr));
}

#[test]
fn bad_arguments_are_refused() {
    for args in [
        &["run", "--", "true"][..],
        &["run", "-n", "0", "--", "true"],
        &["run", "-n", "2"],
        &["run", "-n", "2", "--session", "a/b", "--", "true"],
        &["run", "-n", "2", "--timeout", "-1", "--", "true"],
    ] {
        assert_eq!(finish(farfield(args)).status.code(), Some(2), "{args:?}");
    }
}

/// There were three limits, and as many texts.
#[test]
fn every_command_has_the_same_limit_of_nodes() {
    let scratch = Scratch::new();
    fs::write(scratch.path("hosts"), "left address=10.0.0.1 nodes=257\n").expect("writable");
    let hosts = scratch.path("hosts");
    for args in [
        &["run", "-n", "257", "--", "true"][..],
        &["run", "--hosts", &hosts, "--", "true"],
        &["bench", "kv", "--nodes", "2,257"],
        &["bench", "locks", "--nodes", "257"],
        &["chaos", "--nodes", "257"],
    ] {
        let output = finish(farfield(args));
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        let errors = text(&output.stderr);
        assert!(errors.contains("257 nodes: a session has 1 to 256 nodes at a time"), "{args:?}: {errors}");
    }
}

/// Without `--fabric` each node chooses, on hosts of which this program knows nothing.
#[test]
fn nodes_on_hosts_are_on_the_fabric_that_is_demanded() {
    let scratch = Scratch::new();
    for (fabric, told) in [(None, "auto"), (Some("ucx"), "ucx"), (Some("verbs"), "verbs")] {
        let mut command = on_hosts(&scratch, "left address=10.0.0.1\n");
        command.args(fabric.into_iter().flat_map(|fabric| ["--fabric", fabric]));
        command.args(["--", "sh", "-c", "echo $FARFIELD_FABRIC"]);
        assert_eq!(text(&finish(command).stdout), format!("[0] {told}\n"));
    }
    let mut command = on_hosts(&scratch, "left address=10.0.0.1\n");
    command.args(["--fabric", "shm", "--", "true"]);
    let output = finish(command);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("--fabric shm"), "{}", text(&output.stderr));
}

#[test]
fn a_signal_is_passed_on() {
    let script = "trap 'echo caught; exit 7' TERM; echo ready; while :; do sleep 0.05; done";
    let mut child = run_script(&["-n", "1"], script).spawn().expect("farfield starts");
    let mut out = BufReader::new(child.stdout.take().expect("piped"));
    let mut line = String::new();
    out.read_line(&mut line).expect("readable");
    assert_eq!(line, "[0] ready\n");
    kill_process(Pid::from_child(&child), Signal::TERM).expect("signalled");
    assert_eq!(wait(&mut child).code(), Some(7));
    assert_eq!(text(&read_all(&mut out)), "[0] caught\n");
}

#[test]
fn the_third_signal_kills() {
    let script = "trap '' TERM; echo $$; while :; do sleep 600; done";
    let mut child = run_script(&["-n", "2"], script).spawn().expect("farfield starts");
    let mut out = BufReader::new(child.stdout.take().expect("piped"));
    let pids = read_pids(&mut out, 2);
    let started = Instant::now();
    // Signals that meet merge into one, so send until it has an effect.
    let ended = eventually(|| {
        let _ = kill_process(Pid::from_child(&child), Signal::TERM);
        child.try_wait().expect("waitable").is_some()
    });
    assert!(ended && started.elapsed() < Duration::from_secs(5));
    assert_eq!(wait(&mut child).code(), Some(137));
    assert!(pids.into_iter().all(is_gone));
}

#[test]
fn nodes_die_with_a_killed_launcher() {
    let mut child = run_script(&["-n", "3"], "echo $$; exec sleep 600").spawn().expect("farfield starts");
    let mut out = BufReader::new(child.stdout.take().expect("piped"));
    let pids = read_pids(&mut out, 3);
    child.kill().expect("killed");
    assert_eq!(wait(&mut child).signal(), Some(9));
    assert!(eventually(|| pids.iter().all(|&pid| is_gone(pid))), "{pids:?}");
}

/// Hosts that are all this one. A stand-in for ssh runs the given command line, and prints the host's name.
fn on_hosts(scratch: &Scratch, hosts: &str) -> Command {
    fs::write(scratch.path("hosts"), hosts).expect("writable");
    fs::write(scratch.path("ssh"), "#!/bin/sh\necho \"for $2\" >&2\nexec sh -c \"$3\"\n").expect("writable");
    fs::set_permissions(scratch.path("ssh"), fs::Permissions::from_mode(0o700)).expect("settable");
    let ssh = format!("{} -q", scratch.path("ssh"));
    farfield(&["run", "--hosts", &scratch.path("hosts"), "--ssh", &ssh])
}

fn run_on_hosts(scratch: &Scratch, hosts: &str, script: &str) -> Command {
    let mut command = on_hosts(scratch, hosts);
    command.args(["--", "/bin/sh", "-c", script]);
    command
}

const HOSTS: &str = "# two\nleft address=10.0.0.1 nodes=2\nroot@right address=fd99::2 device=mlx5_0\n";

#[test]
fn nodes_on_hosts_are_told_where_all_are() {
    let scratch = Scratch::new();
    let script =
        "echo $FARFIELD_NODE/$FARFIELD_NODES $FARFIELD_HOSTS ${#FARFIELD_SECRET} $FARFIELD_DEVICE $0 \"$1\"; pwd";
    let mut command = run_on_hosts(&scratch, HOSTS, script);
    command.args(["it's", "two  words"]).current_dir(&scratch.0);
    let output = finish(command);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let directory = fs::canonicalize(&scratch.0).expect("it is there").display().to_string();
    let mut expected = Vec::new();
    for (node, device) in [(0, ""), (1, ""), (2, " mlx5_0")] {
        let hosts = "10.0.0.1:7471,10.0.0.1:7472,[fd99::2]:7471";
        expected.push(format!("[{node}] {node}/3 {hosts} 32{device} it's two  words"));
        expected.push(format!("[{node}] {directory}"));
    }
    expected.sort();
    assert_eq!(lines_sorted(&output.stdout), expected);
    assert_eq!(lines_sorted(&output.stderr), ["[0] for left", "[1] for left", "[2] for root@right"]);
    let refused = finish(run_on_hosts(&scratch, "left slots=2\n", "true"));
    assert!(text(&refused.stderr).contains("line 1: `slots` is unknown"), "{}", text(&refused.stderr));
}

#[test]
fn the_first_failure_on_a_host_ends_the_others() {
    let scratch = Scratch::new();
    let output = finish(run_on_hosts(&scratch, HOSTS, "[ $FARFIELD_NODE = 2 ] && exit 3; exec sleep 600"));
    assert_eq!(output.status.code(), Some(3));
    assert!(text(&output.stderr).contains("node 2 exited with status 3, ending the other nodes"));
    let output = finish(run_on_hosts(&scratch, HOSTS, "[ $FARFIELD_NODE = 0 ] && kill -9 $$; trap '' TERM; sleep 600"));
    assert_eq!(output.status.code(), Some(137));
}

#[test]
fn a_signal_reaches_nodes_on_hosts() {
    let scratch = Scratch::new();
    let script = "trap 'echo caught; exit 7' TERM; echo ready; while :; do sleep 0.05; done";
    let mut child = run_on_hosts(&scratch, "left address=10.0.0.1\n", script).spawn().expect("farfield starts");
    let mut out = BufReader::new(child.stdout.take().expect("piped"));
    let mut line = String::new();
    out.read_line(&mut line).expect("readable");
    assert_eq!(line, "[0] ready\n");
    kill_process(Pid::from_child(&child), Signal::TERM).expect("signalled");
    assert_eq!(wait(&mut child).code(), Some(7));
    assert_eq!(text(&read_all(&mut out)), "[0] caught\n");
}

#[test]
fn nodes_on_hosts_die_with_a_killed_launcher() {
    let scratch = Scratch::new();
    let mut child = run_on_hosts(&scratch, HOSTS, "echo $$; exec sleep 600").spawn().expect("farfield starts");
    let mut out = BufReader::new(child.stdout.take().expect("piped"));
    let pids = read_pids(&mut out, 3);
    child.kill().expect("killed");
    assert_eq!(wait(&mut child).signal(), Some(9));
    assert!(eventually(|| pids.iter().all(|&pid| is_gone(pid))), "{pids:?}");
}

#[test]
fn a_grandchild_that_holds_the_pipe_does_not_hang() {
    let mut child = run_script(&["-n", "1"], "sleep 600 & echo $!; echo last").spawn().expect("farfield starts");
    let mut out = BufReader::new(child.stdout.take().expect("piped"));
    let grandchild = read_pids(&mut out, 1)[0];
    assert_eq!(wait(&mut child).code(), Some(0));
    assert_eq!(text(&read_all(&mut out)), "[0] last\n");
    assert!(!is_gone(grandchild), "what a successful node leaves running is its own affair");
    kill_process(grandchild, Signal::KILL).expect("killed");
}

#[test]
fn a_grandchild_that_keeps_writing_does_not_hang() {
    let script = "(while echo noise; do :; done) & echo $!; exit 4";
    let output = finish(run_script(&["-n", "1"], script));
    assert_eq!(output.status.code(), Some(4));
    let out = text(&output.stdout);
    let pid = out.lines().find_map(|line| Pid::from_raw(line.strip_prefix("[0] ")?.parse().ok()?));
    let grandchild = pid.expect("a line with the process id");
    assert!(eventually(|| is_gone(grandchild)), "a failed node's group goes with it");
}

#[test]
fn a_closed_output_reaches_the_nodes() {
    let mut child = run_script(&["-n", "1"], "while echo on; do :; done").spawn().expect("farfield starts");
    let mut out = BufReader::new(child.stdout.take().expect("piped"));
    out.read_line(&mut String::new()).expect("readable");
    drop(out);
    assert!(!wait(&mut child).success());
}

#[test]
fn help_explains_mpirun_and_hides_the_inner_command() {
    let help = text(&finish(farfield(&["run", "--help"])).stdout);
    for word in ["mpirun", "srun", "FARFIELD_SESSION", "124"] {
        assert!(help.contains(word), "{word} in {help}");
    }
    let help = text(&finish(farfield(&["--help"])).stdout);
    assert!(help.contains("doctor") && !help.contains("__child"), "{help}");
}

#[test]
fn the_doctor_finds_shared_memory_usable() {
    let scratch = Scratch::new();
    let mut command = farfield(&["doctor"]);
    command.env("FARFIELD_DIR", scratch.0.path());
    let output = finish(command);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stdout));
    let report = text(&output.stdout);
    assert!(
        report.contains(scratch.0.path().to_str().expect("UTF-8")) && report.contains("Shared memory is usable"),
        "{report}"
    );
    assert!(!report.contains('\x1b'), "no colours into a pipe");
    assert_eq!(fs::read_dir(&scratch.0).expect("readable").count(), 0, "it leaves nothing behind");
}

#[test]
fn the_doctor_speaks_json() {
    let scratch = Scratch::new();
    let own = scratch.0.path().join(format!("farfield-{}", rustix::process::geteuid().as_raw()));
    fs::create_dir_all(own.join("old-session")).expect("a directory");
    let mut command = farfield(&["doctor", "--json"]);
    command.env("FARFIELD_DIR", scratch.0.path());
    let output = finish(command);
    assert_eq!(output.status.code(), Some(0));
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(found["shared_memory_usable"], true);
    let checks = found["checks"].as_array().expect("a list");
    let check = |name: &str| checks.iter().find(|check| check["name"] == name).unwrap_or_else(|| panic!("no {name}"));
    assert_eq!(check("sessions")["data"]["left_over"], serde_json::json!(["old-session"]));
    for check in checks {
        assert_eq!(check["mark"] == "ok", check["advice"].is_null(), "{check}");
    }
}

#[test]
fn the_doctor_fails_without_a_rendezvous_directory() {
    let mut command = farfield(&["doctor"]);
    command.env("FARFIELD_DIR", "/no/such/directory");
    let output = finish(command);
    assert_eq!(output.status.code(), Some(1));
    let report = text(&output.stdout);
    assert!(report.contains("export FARFIELD_DIR="), "{report}");
}

/// Nodes find each other in another directory then, and the doctor says which and why.
#[test]
fn the_doctor_works_beside_a_dev_shm_that_is_read_only() {
    let mount = |then: &str| {
        let mut command = Command::new("unshare");
        let script = format!("mount -t tmpfs -o ro none /dev/shm && {then}");
        command.args(["--user", "--map-root-user", "--mount", "sh", "-c", &script, env!("CARGO_BIN_EXE_farfield")]);
        command.env_remove("FARFIELD_DIR").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    if !mount("true").output().is_ok_and(|output| output.status.success()) {
        return eprintln!("not run: this user may not mount over /dev/shm");
    }
    let output = finish(mount("\"$0\" doctor"));
    let report = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{report}");
    assert!(report.contains("the temporary directory, as /dev/shm is mounted read-only"), "{report}");
    // And the nodes work there.
    let output = finish(mount("\"$0\" bench fabric --seconds 0.05"));
    assert_eq!(output.status.code(), Some(0), "{}{}", text(&output.stdout), text(&output.stderr));
}
