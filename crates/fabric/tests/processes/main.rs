//! Shared memory between processes: death, stops, revocation, rendezvous and its files.
//!
//! Every node is a separate process: this test binary, run again with a role in its environment ([`child`]). The test
//! process itself is not a node. It starts the nodes and sends them commands ([`parent`]).

mod child;
mod parent;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::{Duration, Instant};

use farfield_fabric::shm::LAYOUT;
use farfield_fabric::{GroupKey, NodeId, RemotePtr};

use parent::{Node, Place, Start, pair, permitted};

/// How long the test waits for anything that must happen.
const SOON: Duration = Duration::from_secs(60);
/// Operations on the memory of a killed process fail within this time.
const DEATH_MAX: Duration = Duration::from_millis(100);

fn signal(pid: i32, signal: i32) {
    assert!(pid > 1);
    // SAFETY: takes two numbers and touches no memory of this process.
    unsafe { libc::kill(pid, signal) };
}

/// Whether every thread of a process is stopped.
fn all_stopped(pid: i32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    threads.flatten().all(|thread| {
        let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with(['T', 't']))
    })
}

/// Not a test: the body of a child process.
#[test]
fn node_process() {
    child::run();
}

// ---- operations ------------------------------------------------------------------------------------------------

/// All operations work across processes; atomics of two processes are atomic with each other.
#[test]
fn operations_between_two_processes() {
    let place = Place::new();
    let (mut first, mut second, word) = pair(&place, 4096);
    first.number(format!("put {word} 7"));
    assert_eq!(second.number("word 0 0"), 7);
    assert_eq!(first.number(format!("get {word}")), 7);
    assert_eq!(first.number(format!("cas {word} 7 8")), 7);
    assert_eq!(first.number(format!("cas {word} 7 9")), 8);
    assert_eq!(first.number(format!("faa {word} 2")), 8);
    assert_eq!(second.number(format!("get {word}")), 10);
    first.number(format!("fill {word} 4096 50"));
    second.number("check 0 50");
    first.number(format!("put {word} 0"));
    first.send(format!("add {word} 200000"));
    second.send(format!("add {word} 200000"));
    assert_eq!((first.answer(), second.answer()), ("ok 0".into(), "ok 0".into()));
    assert_eq!(second.number("word 0 0"), 400_000);
}

/// Memory allocated after the peer has connected is reachable by it. An allocation beyond the limit is an error, and
/// leaves the rest unchanged.
#[test]
fn memory_grows_until_its_limit() {
    let place = Place::new();
    let mut first = Start { group_bytes_max: 64 << 20, ..Start::of(&place, 0, 2) }.up();
    let mut second = Start { group_bytes_max: 64 << 20, ..Start::of(&place, 1, 2) }.up();
    first.number("up 1");
    second.number("up 0");
    for (region, mib) in [1, 9, 30].into_iter().enumerate() {
        let word = second.number(format!("alloc 1 {}", mib << 20));
        first.number(format!("fill {word} {} {mib}", mib << 20));
        second.number(format!("check {region} {mib}"));
        let beyond = first.error(format!("get {}", word + (60 << 20)));
        assert!(beyond.starts_with("OutOfBounds { node: NodeId(1)"), "{beyond}");
    }
    let error = second.error(format!("alloc 1 {}", 40 << 20));
    assert!(error.starts_with("OutOfMemory"), "{error}");
    for (region, mib) in [1, 9, 30].into_iter().enumerate() {
        second.number(format!("check {region} {mib}"));
    }
    // There is room for a small allocation.
    let word = second.number(format!("alloc 1 {}", 8 << 20));
    first.number(format!("put {word} 3"));
    assert_eq!(second.number("word 3 0"), 3);
}

/// A region of 256 MiB does not need a large `/dev/shm`: containers have 64 MiB.
#[test]
fn a_small_dev_shm_is_enough() {
    const INSIDE: &str = "FARFIELD_TEST_SMALL_SHM";
    if std::env::var_os(INSIDE).is_none() {
        let mount = "mount -t tmpfs -o size=64m tmpfs /dev/shm";
        if !permitted("a /dev/shm of 64 MiB", &["unshare", "-m", "sh", "-c", mount]) {
            return;
        }
        let _alone = Place::new();
        let exe = std::env::current_exe().unwrap();
        let script = format!("{mount} && exec \"$0\" --exact a_small_dev_shm_is_enough --nocapture");
        let ran = Command::new("unshare").args(["-m", "sh", "-c", &script]).arg(exe).env(INSIDE, "1").output().unwrap();
        let text = String::from_utf8_lossy(&ran.stdout) + String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success() && text.contains("1 passed"), "{text}");
        return;
    }
    let place = Place::new();
    let mut first = Start { dir: None, ..Start::of(&place, 0, 2) }.up();
    let mut second = Start { dir: None, ..Start::of(&place, 1, 2) }.up();
    first.number("up 1");
    second.number("up 0");
    assert!(fs::read_dir("/dev/shm").unwrap().next().is_some(), "the session is in the small /dev/shm");
    let bytes = 256 << 20;
    let word = second.number(format!("alloc 1 {bytes}"));
    first.number(format!("fill {word} {bytes} 1"));
    second.number("check 0 1");
}

// ---- death, stops, leaving -------------------------------------------------------------------------------------

/// Lets the first node kill the second, up to three times, until the first notices it within [`DEATH_MAX`].
fn dies_in_time(what: &str, prepare: impl Fn(&mut Node), through: &[&str]) {
    let mut taken = Vec::new();
    for _ in 0..3 {
        let place = Place::new();
        let mut first = Start::of(&place, 0, 2).up();
        let mut second = Start { through, ..Start::of(&place, 1, 2) }.up();
        first.number("up 1");
        second.number("up 0");
        let word = second.number("alloc 1 64");
        if !through.is_empty() {
            // The node's pid belongs to another namespace: the node is the only child of the process that made the
            // namespace.
            let maker = second.child.id();
            let children = fs::read_to_string(format!("/proc/{maker}/task/{maker}/children")).unwrap();
            second.pid = children.trim().parse().unwrap();
        }
        prepare(&mut second);
        let answer = first.ask(format!("kill {} {word}", second.pid)).unwrap();
        let (micros, error) = answer.split_once(' ').unwrap();
        assert!(error.starts_with("PeerDead { node: NodeId(1)"), "{error}");
        for command in [format!("get {word}"), format!("cas {word} 0 1"), format!("faa {word} 1")] {
            let error = first.error(command);
            assert!(error.starts_with("PeerDead { node: NodeId(1)") && error.contains("node 1"), "{error}");
        }
        assert!(first.ask("state 1").unwrap().starts_with("Dead"));
        first.number("down 1");
        // A dead process writes no more: the revocation is decided, not unknown.
        first.number("revoke 1 1 2000");
        let took = Duration::from_micros(micros.parse().unwrap());
        taken.push(took);
        if took < DEATH_MAX {
            println!("{what}: noticed after {took:?}");
            return;
        }
    }
    panic!("{what}: noticed after {taken:?} only");
}

/// `kill -9`: operations on the process's memory fail soon, with its name.
#[test]
fn a_killed_process_is_dead_at_once() {
    dies_in_time("a small process", |_| (), &[]);
}

/// The kernel frees a large heap before it closes files; death shows before that.
#[test]
fn a_killed_process_with_a_large_heap_is_dead_at_once() {
    let big = std::env::var("FARFIELD_TEST_BIG").is_ok_and(|value| value == "1");
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let free_kib = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:")?.split_whitespace().next()?.parse::<u64>().ok());
    let gib = if big { 4 } else { 1 };
    if free_kib.is_none_or(|free| free < (gib + 1) << 20) {
        println!("not run: a heap of {gib} GiB: not that much memory is available");
        return;
    }
    let touch = |node: &mut Node| assert!(node.number(format!("heap {}", gib << 30)) > 0);
    dies_in_time(&format!("{gib} GiB of heap"), touch, &[]);
}

/// A forked child keeps the dead process's files and sockets open, and its node is still dead.
#[test]
fn a_killed_process_with_a_forked_child_is_dead_at_once() {
    let fork = |node: &mut Node| node.forked = Some(node.number("fork") as i32);
    dies_in_time("a forked child left behind", fork, &[]);
}

/// A process in another PID namespace, where process numbers have another meaning.
#[test]
fn a_killed_process_of_another_pid_namespace_is_dead_at_once() {
    let through = ["unshare", "--pid", "--fork", "--kill-child"];
    if permitted("another PID namespace", &["unshare", "--pid", "--fork", "--kill-child", "true"]) {
        dies_in_time("another PID namespace", |_| (), &through);
    }
}

/// A stopped process is not dead: its memory stays reachable, and it continues where it stopped.
#[test]
fn a_stopped_process_is_not_dead() {
    let place = Place::new();
    let (mut first, mut second, word) = pair(&place, 64);
    signal(second.pid, libc::SIGSTOP);
    let start = Instant::now();
    while !all_stopped(second.pid) {
        assert!(start.elapsed() < SOON);
        std::thread::sleep(Duration::from_millis(1));
    }
    for round in 0..50 {
        first.number(format!("put {word} {round}"));
        assert_eq!(first.number(format!("faa {word} 1")), round);
        assert_eq!(first.number(format!("get {word}")), round + 1);
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(first.ask("state 1").unwrap().starts_with("Up"));
    signal(second.pid, libc::SIGCONT);
    assert_eq!(second.number("word 0 0"), 50);
}

/// A graceful leave is not a death, whether the process continues or ends afterwards.
#[test]
fn a_node_that_leaves_has_left_and_is_not_dead() {
    let place = Place::new();
    let (mut first, mut second, word) = pair(&place, 64);
    first.number(format!("put {word} 1"));
    second.number("leave");
    for end in [false, true] {
        if end {
            second.kill();
        }
        for command in ["get", "put", "faa"] {
            let error = first.error(format!("{command} {word} 1"));
            assert!(error.starts_with("PeerLeft { node: NodeId(1) }"), "{error}");
        }
        assert_eq!(first.ask("state 1").unwrap(), "Left");
    }
    first.number("down 1");
}

/// Whether peers are stopped more often: `FARFIELD_TEST_LONG`. CI does.
fn is_long() -> bool {
    std::env::var_os("FARFIELD_TEST_LONG").is_some()
}

/// Revokes the right of a peer that is stopped at any moment of its writing. Either no write lands after the peer
/// continues, or the error reports that this is undecided. Then a second revoke, once the peer runs, decides it.
#[test]
fn revoking_a_stopped_writer() {
    let place = Place::beside_others();
    let mut owner = Start::of(&place, 0, 2).up();
    let mut writer = Start::of(&place, 1, 2).up();
    owner.number("up 1");
    writer.number("up 0");
    let (target, beat) = (owner.number("alloc 1 65536"), owner.number("alloc 0 64"));
    writer.number(format!("write {target} {beat}"));
    let rounds = if is_long() { 300 } else { 100 };
    let undecided = owner.number(format!("revoke_stopped {} 1 {rounds}", writer.pid));
    println!("{rounds} revokes of a stopped writer, {undecided} undecided at first");
    assert!((1..rounds).contains(&undecided), "both answers come up, {undecided} undecided of {rounds}");
    // A writer that is killed while it is stopped in the middle of a write is dead, so the revocation is decided.
    assert_eq!(owner.ask("revoke 1 1 1000"), Ok("0".into()));
}

/// Revokes the right of a peer while its threads start and end: no write lands afterwards.
#[test]
fn revoking_a_process_whose_threads_end() {
    let place = Place::new();
    let mut owner = Start::of(&place, 0, 2).up();
    let mut writer = Start::of(&place, 1, 2).up();
    owner.number("up 1");
    writer.number("up 0");
    let (target, beat) = (owner.number("alloc 1 64"), owner.number("alloc 0 8192"));
    writer.number(format!("write_by_many {target} {beat}"));
    for (rounds, timeout_us) in [(20_000, 10_000_000), (2_000, 20)] {
        let us = owner.number(format!("revoke_often 1 {rounds} {timeout_us}"));
        println!("{rounds} revokes of a running writer, {us} us each, by calls of {timeout_us} us");
        // A service thread answers within the time of the slow fence, as a rule.
        assert!(us < 5_000, "{us} us");
    }
}

/// A peer that is stopped does not hold up those that give memory back, and the memory is used again: 4,000 regions of
/// 64 KiB need less than 64 MiB.
#[test]
fn giving_back_beside_a_stopped_process() {
    let place = Place::new();
    let mut owner = Start { group_bytes_max: 64 << 20, ..Start::of(&place, 0, 3) }.up();
    let others = [1, 2].map(|node| Start { group_bytes_max: 64 << 20, ..Start::of(&place, node, 3) }.up());
    owner.number("up 1");
    owner.number("up 2");
    let mut us = |when: &str| {
        let took = owner.ask("free_often 65536 4000").expect("memory is used again");
        println!("{when}: a free and an allocation take {took} us");
        let took: Vec<u64> = took.split(' ').map(|us| us.parse().expect("a number")).collect();
        (took[0], took[1])
    };
    let running = us("all run");
    signal(others[0].pid, libc::SIGSTOP);
    while !all_stopped(others[0].pid) {}
    let stopped = us("one is stopped");
    signal(others[0].pid, libc::SIGKILL);
    let killed = us("one is killed");
    // None waits for an answer, and an allocation seldom.
    for (free, alloc) in [running, stopped, killed] {
        assert!(free < 1_000 && alloc < 5_000, "{free} us, {alloc} us");
    }
}

/// Frees memory that a peer writes to, which is stopped at any moment. In the middle of a write, the memory stays out
/// of use until the peer continues or is killed. Reallocated memory never contains a late write.
#[test]
fn giving_back_memory_that_a_stopped_writer_writes_to() {
    let place = Place::beside_others();
    let mut owner = Start::of(&place, 0, 2).up();
    let mut writer = Start::of(&place, 1, 2).up();
    owner.number("up 1");
    writer.number("up 0");
    let beat = owner.number("alloc 0 128");
    writer.number(format!("write_late {} {beat}", beat + 64));
    let rounds = 100;
    let kept = owner.number(format!("free_stopped {} 1 {rounds}", writer.pid));
    println!("memory given back {rounds} times and more, a stopped peer in the middle of writing to it {kept} times");
    assert!((1..rounds).contains(&kept), "both come up, {kept} of {rounds}");
}

// ---- rendezvous ------------------------------------------------------------------------------------------------

/// The files of a killed session are removed by the next start, of any session.
#[test]
fn leftovers_of_a_killed_session_are_removed() {
    let place = Place::new();
    let (mut first, mut second, _) = pair(&place, 64);
    let _living = Start { session: "living", ..Start::of(&place, 0, 1) }.up();
    first.kill();
    second.kill();
    let of_session =
        |place: &Place| place.files().into_keys().filter(|path| path.starts_with(place.user_dir().join("s"))).count();
    assert!(of_session(&place) > 0, "a killed process cannot clean up");
    let next = Start { session: "t", ..Start::of(&place, 0, 1) }.up();
    assert_eq!(of_session(&place), 0, "{:?}", place.files());
    let files = place.files();
    for session in ["t", "living"] {
        assert!(files.keys().any(|path| path.starts_with(place.user_dir().join(session))), "{files:?}");
    }
    drop(next);
    // The session's name can be used again.
    let (mut first, mut second, word) = pair(&place, 64);
    first.number(format!("put {word} 1"));
    // Nodes that leave gracefully leave no files.
    for node in [&mut first, &mut second] {
        node.number("leave");
        node.send("go");
        assert!(node.child.wait().unwrap().success());
    }
    assert_eq!(of_session(&place), 0, "{:?}", place.files());
}

/// No other user can access a session: only the owner can read its files.
#[test]
fn files_are_private() {
    let place = Place::new();
    let (_first, _second, _) = pair(&place, 64);
    let files = place.files();
    assert!(files.values().filter(|mode| **mode & libc::S_IFMT == libc::S_IFREG).count() >= 2, "{files:?}");
    for (path, mode) in files {
        let expected = if mode & libc::S_IFMT == libc::S_IFDIR { 0o700 } else { 0o600 };
        // A socket in a private directory is as private as the directory.
        if mode & libc::S_IFMT != libc::S_IFSOCK {
            assert_eq!(mode & 0o777, expected, "{}", path.display());
        }
    }
}

/// A directory that others could change is not used, and the error names the remedy.
#[test]
fn foreign_directories_are_refused() {
    let place = Place::new();
    fs::create_dir(place.user_dir()).unwrap();
    fs::set_permissions(place.user_dir(), fs::Permissions::from_mode(0o755)).unwrap();
    let error = Start::of(&place, 0, 1).refused();
    assert!(error.contains("chmod 700") && error.contains("session `s`"), "{error}");
    // SAFETY: takes no argument, returns a number.
    if unsafe { libc::geteuid() } == 0 {
        fs::set_permissions(place.user_dir(), fs::Permissions::from_mode(0o700)).unwrap();
        std::os::unix::fs::chown(place.user_dir(), Some(12_345), None).unwrap();
        let error = Start::of(&place, 0, 1).refused();
        assert!(error.contains("12345") && error.contains("FARFIELD_DIR"), "{error}");
    } else {
        println!("not run: a directory of another user: needs root");
    }
}

/// Two processes cannot be the same node.
#[test]
fn a_node_is_one_process() {
    let place = Place::new();
    let first = Start::of(&place, 0, 2).up();
    let error = Start::of(&place, 0, 2).refused();
    assert!(error.contains("node 0") && error.contains(&first.pid.to_string()), "{error}");
    let error = Start::of(&place, 2, 2).refused();
    assert!(error.contains("node 2 is not a member of this session"), "{error}");
    drop(first);
    Start::of(&place, 0, 2).up();
}

/// Builds with different layouts refuse each other, in either order of their start. Both sides report it once, with
/// both names.
#[test]
fn another_layout_is_refused_by_both() {
    for (first, second) in [(LAYOUT, "farfield-shm-7/9.9.9"), ("farfield-shm-7/9.9.9", LAYOUT)] {
        let place = Place::new();
        let mut nodes = [
            Start { layout: first, ..Start::of(&place, 0, 2) }.up(),
            Start { layout: second, ..Start::of(&place, 1, 2) }.up(),
        ];
        for (at, (ours, theirs)) in [(first, second), (second, first)].into_iter().enumerate() {
            let event = nodes[at].ask("refusal").unwrap();
            let expected = format!(
                "Refused(NodeId({peer}), VersionMismatch {{ node: NodeId({peer}), ours: {ours:?}, theirs: \
                 {theirs:?} }})",
                peer = 1 - at
            );
            assert_eq!(event, expected);
            let error = nodes[at]
                .error(format!("get {}", RemotePtr::<u64>::new(NodeId(1 - at as u16), GroupKey::DATA, 0).packed()));
            assert!(error.starts_with("NotConnected"), "{error}");
        }
        std::thread::sleep(Duration::from_millis(50));
        for node in &mut nodes {
            assert_eq!(node.number("refusals"), 1, "told once, though they go on trying");
        }
    }
}

/// Nodes that disagree on how many there are refuse each other, with both numbers.
#[test]
fn another_number_of_nodes_is_refused() {
    let place = Place::new();
    let _first = Start::of(&place, 0, 2).up();
    let why = Start::of(&place, 1, 3).refused();
    assert!(why.contains("it has 2 nodes, and this one says 3"), "{why}");
}
