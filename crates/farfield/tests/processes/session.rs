//! Sessions of real processes, each of which is this test program again, in a role: started, heard, stopped, killed.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use farfield::{Endpoint, Node, NodeId, Result};

const ROLE: &str = "FARFIELD_TEST_ROLE";
const BEGUN: &str = "has begun";
/// A process's line of measurements is passed on if it begins like this.
pub(crate) const MEASURED: &str = "measured: ";
/// Longer than any step takes, in an emulated machine on a busy one, too.
pub(crate) const STEP_MAX: Duration = Duration::from_secs(60);

/// Whether the nodes are on RDMA devices: `FARFIELD_TEST_FABRIC=verbs`.
pub(crate) fn is_on_verbs() -> bool {
    std::env::var("FARFIELD_TEST_FABRIC").is_ok_and(|fabric| fabric == "verbs")
}

/// Sessions run beside each other, but for those that look at times.
static CORES: RwLock<()> = RwLock::new(());
/// How many sessions this process has begun.
static SESSIONS: AtomicU32 = AtomicU32::new(0);

/// Waits until no session runs. None begins before this ends.
pub(crate) fn alone() -> RwLockWriteGuard<'static, ()> {
    CORES.write().unwrap_or_else(PoisonError::into_inner)
}

/// The processes of a session; dropped, they are killed.
pub(crate) struct Session {
    cores: Option<RwLockReadGuard<'static, ()>>,
    /// The test that each process runs.
    test: String,
    role: String,
    name: String,
    nodes: u16,
    /// Of `FARFIELD_TEST_FABRIC=verbs`.
    hosts: String,
    lives: BTreeMap<u16, u16>,
    processes: BTreeMap<u16, (Child, Receiver<String>)>,
}

impl Session {
    /// Starts a role in so many processes. Each runs the `node_process` of a module, which [plays](play) it.
    pub(crate) fn start(module: &str, role: &str, nodes: u16) -> Session {
        let beside = CORES.read().unwrap_or_else(PoisonError::into_inner);
        let mut session = Session::start_alone(module, role, nodes);
        session.cores = Some(beside);
        session
    }

    /// The same where the caller has all cores ([`alone`]).
    pub(crate) fn start_alone(module: &str, role: &str, nodes: u16) -> Session {
        let (_, module) = module.split_once("::").expect("a module of this program");
        let number = SESSIONS.fetch_add(1, Ordering::Relaxed);
        let test = format!("{module}::node_process");
        let name = format!("test-{module}-{role}-{}-{number}", std::process::id());
        let hosts = if is_on_verbs() { farfield::loopback_hosts(nodes) } else { Vec::new() };
        let hosts = hosts.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        let lives = BTreeMap::new();
        let mut session =
            Session { cores: None, test, role: role.into(), name, nodes, hosts, lives, processes: BTreeMap::new() };
        (0..nodes).for_each(|place| session.begin(place));
        session
    }

    /// Starts the process of a place, again if it has ended.
    pub(crate) fn begin(&mut self, place: u16) {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--exact", &self.test, "--nocapture", "--test-threads=1"]).env(ROLE, &self.role);
        command.env("FARFIELD_SESSION", &self.name).env("FARFIELD_NODE", place.to_string());
        let life = self.lives.entry(place).or_default();
        command.env("FARFIELD_HOSTS", &self.hosts).env("FARFIELD_LIFE", life.to_string());
        *life += 1;
        command.env("FARFIELD_NODES", self.nodes.to_string()).stdout(Stdio::piped()).stdin(Stdio::null());
        let mut child = command.spawn().expect("a process");
        let (said, lines) = channel();
        let out = BufReader::new(child.stdout.take().expect("its output"));
        std::thread::spawn(move || out.lines().map_while(Result::ok).all(|line| said.send(line).is_ok()));
        self.processes.insert(place, (child, lines));
    }

    /// The file in which a process keeps what it has done ([`own_file`]). It goes with the session.
    pub(crate) fn file(&self, node: NodeId) -> PathBuf {
        file(&self.name, node)
    }

    fn child(&mut self, node: NodeId) -> &mut Child {
        &mut self.processes.get_mut(&node.0).expect("a process").0
    }

    /// Waits until the process of a place has said something.
    pub(crate) fn hear(&self, node: NodeId, what: &str) {
        self.heard(node, what);
    }

    /// The same, with the whole line, of which this is the end.
    pub(crate) fn heard(&self, node: NodeId, what: &str) -> String {
        let start = Instant::now();
        while let Some(left) = STEP_MAX.checked_sub(start.elapsed()) {
            match self.processes[&node.0].1.recv_timeout(left) {
                Ok(line) if line.ends_with(what) => return line,
                Ok(line) if line.starts_with(MEASURED) => println!("{node} has {line}"),
                Ok(_) => {}
                Err(_) => break,
            }
        }
        panic!("{node} has not said `{what}`");
    }

    /// Waits until all processes have said [`begun`]. None may be killed before: another could still be in a step that
    /// needs all nodes, and would learn of the death there.
    pub(crate) fn all_begun(&self) {
        self.processes.keys().for_each(|place| self.hear(NodeId(*place), BEGUN));
    }

    pub(crate) fn signal(&mut self, node: NodeId, name: &str) {
        signal(self.child(node).id().into(), name);
    }

    pub(crate) fn kill(&mut self, node: NodeId) {
        self.child(node).kill().expect("kill -9");
        self.child(node).wait().expect("its end");
    }

    /// Waits until the process of a place ends in good order.
    pub(crate) fn ends(&mut self, node: NodeId) {
        self.hear(node, "all is right");
        assert!(self.child(node).wait().expect("its end").success(), "{node}");
    }

    /// Waits for the end of the survivors; each says itself whether all was right.
    pub(crate) fn end(mut self, nodes: impl IntoIterator<Item = u16>) {
        nodes.into_iter().for_each(|node| self.ends(NodeId(node)));
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        for (node, _) in self.processes.values_mut() {
            let _ = node.kill();
            let _ = node.wait();
        }
        for node in 0..self.nodes {
            let _ = std::fs::remove_file(self.file(NodeId(node)));
        }
    }
}

/// Sends a process a signal.
pub(crate) fn signal(pid: u64, name: &str) {
    assert!(Command::new("kill").args([name, &pid.to_string()]).status().expect("kill").success());
}

/// Whether a process is stopped.
pub(crate) fn is_stopped(pid: u64) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it lives");
    stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T'))
}

/// Where the process of a node keeps what it has done, for the parent.
pub(crate) fn own_file(node: NodeId) -> PathBuf {
    file(&std::env::var("FARFIELD_SESSION").expect("a process of a session"), node)
}

fn file(session: &str, node: NodeId) -> PathBuf {
    std::env::temp_dir().join(format!("{session}-{}", node.0))
}

/// Says that this process has passed all steps that need every node alive; [`Session::all_begun`] waits for it.
pub(crate) fn begun() {
    println!("{BEGUN}");
}

/// Plays the role of this process, if it is one of a session, on a node that waits for `timeout`, when all others have
/// come. Whatever happens to the parent, it ends.
pub(crate) fn play(timeout: Duration, play: impl FnOnce(&str, &Node, &Endpoint) -> Result<()>) {
    let Ok(role) = std::env::var(ROLE) else { return };
    std::thread::spawn(|| {
        std::thread::sleep(2 * STEP_MAX);
        eprintln!("not ended within {:?}", 2 * STEP_MAX);
        std::process::abort();
    });
    let builder = Node::builder().environment().expect("an environment");
    let node = builder.timeout(timeout).start().expect("the node starts");
    node.wait_for_all(STEP_MAX).expect("all come");
    let endpoint = node.endpoint().expect("an endpoint");
    play(&role, &node, &endpoint).expect("no error but those that are expected");
    drop(endpoint);
    node.leave();
    println!("all is right");
}
