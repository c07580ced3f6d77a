//! A key-value store between processes: a million operations whose histories are checked, and the death of a process in
//! the middle of them.
//!
//! Every node is a process of its own: this test binary run again, with a role in its environment. Each writes what it
//! saw to a file; the test, which is no node, merges and checks the files.
//!
//! `FARFIELD_TEST_OPERATIONS` changes the number of operations.

#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "tests stand outside the fabric")]

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use farfield::history::Event;
use farfield::history::kv::{KvEvent, KvHistory, KvInput, KvOutput, KvRecord, Report};
use farfield::{Barrier, Endpoint, Error, KvOptions, KvStore, Node, NodeId};
use zerocopy::IntoBytes;

const ROLE: &str = "FARFIELD_TEST_ROLE";
const PLACE: &str = "FARFIELD_TEST_PLACE";
const OPERATIONS: &str = "FARFIELD_TEST_OPERATIONS";
const THREADS: usize = 2;
const WINDOW: usize = 8;
const KEYS: u64 = 64;
/// However busy the machine is, nothing takes longer.
const PROCESS_MAX: Duration = Duration::from_secs(300);

// ---- what the parent does --------------------------------------------------------------------------------------

/// A session of processes, with a folder for their files.
struct Session {
    place: PathBuf,
    nodes: Vec<Child>,
}

impl Session {
    fn start(role: &str, nodes: u16, operations: u64) -> Session {
        let name = format!("{role}-{}", std::process::id());
        let place = std::env::temp_dir().join(format!("farfield-{name}"));
        let _ = std::fs::remove_dir_all(&place);
        std::fs::create_dir_all(&place).expect("a temporary folder");
        let start = |node: u16| {
            Command::new(std::env::current_exe().expect("this binary"))
                .args(["node_process", "--exact", "--nocapture", "--test-threads=1"])
                .env(ROLE, role)
                .env(PLACE, &place)
                .env(OPERATIONS, operations.to_string())
                .env("FARFIELD_NODE", node.to_string())
                .env("FARFIELD_NODES", nodes.to_string())
                .env("FARFIELD_SESSION", &name)
                .stdout(File::create(place.join(format!("{node}.out"))).expect("a file for its output"))
                .stderr(File::create(place.join(format!("{node}.err"))).expect("a file for its errors"))
                .spawn()
                .expect("a process")
        };
        let nodes = (0..nodes).map(start).collect();
        Session { place, nodes }
    }

    fn said(&self, node: usize) -> String {
        let read = |kind: &str| std::fs::read_to_string(self.place.join(format!("{node}.{kind}"))).unwrap_or_default();
        format!("node {node} said: {}{}", read("out"), read("err"))
    }

    /// Waits for the end of some nodes, which must be a good one.
    fn end(&mut self, nodes: impl IntoIterator<Item = usize>) {
        let start = Instant::now();
        for node in nodes {
            let status = loop {
                if let Some(status) = self.nodes[node].try_wait().expect("its status") {
                    break status;
                }
                assert!(start.elapsed() < PROCESS_MAX, "it hangs. {}", self.said(node));
                std::thread::sleep(Duration::from_millis(5));
            };
            assert!(status.success(), "{}", self.said(node));
        }
    }

    /// What all nodes have logged.
    fn history(&self) -> KvHistory {
        let mut all = KvHistory::new();
        for entry in std::fs::read_dir(&self.place).expect("the folder") {
            let path = entry.expect("an entry").path();
            if path.extension().is_some_and(|kind| kind == "log") {
                let bytes = std::fs::read(&path).expect("a log");
                let whole = bytes.len() / KvRecord::LEN * KvRecord::LEN;
                all.merge(KvHistory::from_bytes(&bytes[..whole]).expect("a log that makes sense"));
            }
        }
        all
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            let _ = node.kill();
            let _ = node.wait();
        }
        let _ = std::fs::remove_dir_all(&self.place);
    }
}

fn checked(history: &KvHistory) -> Report {
    history.check_each_key(Default::default()).unwrap_or_else(|failure| panic!("{failure}"))
}

/// Four processes of two threads with eight operations each under way, 64 keys, two million operations unless told otherwise: what
/// every one of them saw can be explained by operations that happened one at a time.
#[test]
fn a_million_operations_of_four_processes_are_linearizable() {
    let operations = std::env::var(OPERATIONS).map_or(2_000_000, |text| text.parse().expect("a number"));
    let start = Instant::now();
    let mut session = Session::start("stress", 4, operations);
    session.end(0..4);
    let ran = start.elapsed();
    let history = session.history();
    let report = checked(&history);
    let Report { operations: seen, overlapping, .. } = report;
    println!(
        "{seen} operations in {:.1} s, {:.0} % overlapping on their key; checked in {:.1} s: {report}",
        ran.as_secs_f64(),
        overlapping as f64 * 100.0 / seen as f64,
        (start.elapsed() - ran).as_secs_f64(),
    );
    assert!(seen >= operations && overlapping * 10 >= seen && report.keys == KEYS, "{report}");
}

/// A process is killed in the middle of its operations. The others get errors that name it, soon, or go on with what
/// does not need it; what they see still makes sense.
#[test]
fn the_death_of_a_process_is_an_error_that_names_it() {
    for round in 0..6 {
        let mut session = Session::start("kill", 3, 0);
        let going = session.place.join("2.log");
        let start = Instant::now();
        while std::fs::metadata(&going).map_or(0, |log| log.len()) < 400 * KvRecord::LEN as u64 {
            assert!(start.elapsed() < PROCESS_MAX, "{}", session.said(2));
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(7 * round));
        session.nodes[2].kill().expect("kill -9");
        session.nodes[2].wait().expect("its end");
        std::fs::write(session.place.join("killed"), "").expect("the news");
        session.end(0..2);
        println!("round {round}: {}", checked(&session.history()));
        for node in 0..2 {
            let said = session.said(node);
            println!("{}", said.lines().find(|line| line.contains("after it:")).unwrap_or("nothing"));
        }
    }
}

// ---- what a node does ------------------------------------------------------------------------------------------

/// Not a test: what a child process does.
#[test]
fn node_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let place = PathBuf::from(std::env::var(PLACE).expect("a place"));
    let operations: u64 = std::env::var(OPERATIONS).expect("a number").parse().expect("a number");
    // Whatever happens to the parent, it ends.
    std::thread::spawn(|| {
        std::thread::sleep(PROCESS_MAX);
        eprintln!("not ended within {PROCESS_MAX:?}");
        std::process::abort();
    });
    match role.as_str() {
        "stress" => stress(&place, operations),
        "kill" => mortal(&place),
        role => panic!("no role {role}"),
    }
}

/// Small random numbers (splitmix64).
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let bits = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ bits >> 31
    }
}

/// One thread's operations.
struct Client<'a> {
    kv: &'a KvStore<u64, u64>,
    node: &'a Node,
    endpoint: &'a Endpoint,
    number: u32,
    values: Cell<u64>,
    log: &'a dyn Fn(u64, KvEvent),
}

impl Client<'_> {
    fn now(&self) -> u64 {
        self.node.now().ns
    }

    /// A value that nobody else writes.
    fn value(&self) -> u64 {
        self.values.set(self.values.get() + 1);
        u64::from(self.number + 1) << 40 | self.values.get()
    }

    /// One operation on a random key.
    async fn operation(&self, choice: u64) -> farfield::Result<()> {
        let (kv, endpoint) = (self.kv, self.endpoint);
        let key = choice % KEYS;
        let input = match choice >> 32 & 31 {
            0..14 => KvInput::Get,
            14 => return self.several(key).await,
            15..18 => KvInput::Insert(self.value()),
            18..24 => KvInput::Update(self.value()),
            24..28 => KvInput::Upsert(self.value()),
            _ => KvInput::Delete,
        };
        let event = Event::pending(self.number, self.now(), input);
        (self.log)(key, event);
        let output = match input {
            KvInput::Get => KvOutput::Found(kv.get(endpoint, &key).await?),
            KvInput::Insert(value) => KvOutput::Succeeded(kv.insert(endpoint, &key, &value).await?),
            KvInput::Update(value) => KvOutput::Succeeded(kv.update(endpoint, &key, &value).await?),
            KvInput::Upsert(value) => {
                kv.upsert(endpoint, &key, &value).await?;
                KvOutput::Stored
            }
            KvInput::Delete => KvOutput::Succeeded(kv.delete(endpoint, &key).await?),
        };
        (self.log)(key, Event { return_ns: Some(self.now()), output: Some(output), ..event });
        Ok(())
    }

    /// Several keys read at once: each is an operation.
    async fn several(&self, first: u64) -> farfield::Result<()> {
        let keys: Vec<u64> = (0..6).map(|key| (first + key * 11) % KEYS).collect();
        let mut found = Vec::new();
        let call_ns = self.now();
        self.kv.get_many(self.endpoint, &keys, &mut found).await?;
        let return_ns = self.now();
        for (key, found) in keys.into_iter().zip(found) {
            (self.log)(key, Event::returned(self.number, call_ns, return_ns, KvInput::Get, KvOutput::Found(found)));
        }
        Ok(())
    }
}

fn options() -> KvOptions {
    KvOptions { slots_per_node: 2 * KEYS as usize, locks: 256, ..KvOptions::default() }
}

fn stress(place: &Path, operations: u64) {
    let node = Node::from_environment().expect("a node");
    let kv = KvStore::<u64, u64>::open(&node, "kv", options()).expect("a store");
    let barrier = Barrier::open(&node, "all", THREADS).expect("a barrier");
    let each = operations.div_ceil((node.nodes() * THREADS) as u64);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (node, kv, barrier) = (&node, &kv, &barrier);
            scope.spawn(move || {
                let endpoint = node.endpoint().expect("an endpoint");
                let number = (node.id().index() * THREADS + thread) as u32;
                let history = RefCell::new(KvHistory::new());
                let log = |key, event: KvEvent| {
                    if event.output.is_some() {
                        history.borrow_mut().record(key, event);
                    }
                };
                let client = Client { kv, node, endpoint: &endpoint, number, values: Cell::new(0), log: &log };
                let client = &client;
                let mut rng = Rng(u64::from(number));
                let mut part = barrier.thread().expect("a part");
                endpoint.block_on(part.wait(&endpoint)).expect("all have come");
                let futures = (0..each).map(|_| client.operation(rng.next()));
                endpoint.run_window(WINDOW, futures, |done| done.expect("an operation"));
                std::fs::write(place.join(format!("{number}.log")), history.borrow().to_bytes()).expect("a log");
                endpoint.block_on(part.wait(&endpoint)).expect("all have ended");
            });
        }
    });
}

/// A node of which one is killed: node 2. It logs as it goes; the others until some time after the news of its death.
fn mortal(place: &Path) {
    const GONE: NodeId = NodeId(2);
    let node = Node::builder()
        .timeout(Duration::from_secs(10))
        .environment()
        .and_then(|builder| builder.start())
        .expect("a node");
    let kv = KvStore::<u64, u64>::open(&node, "kv", options()).expect("a store");
    let me = node.id();
    let name = |thread: usize| {
        place.join(if me == GONE && thread == 0 { "2.log".into() } else { format!("{}-{thread}.log", me.0) })
    };
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (node, kv, name) = (&node, &kv, &name);
            scope.spawn(move || {
                let endpoint = node.endpoint().expect("an endpoint");
                let number = u32::from(me.0) * THREADS as u32 + thread as u32;
                let file = RefCell::new(File::create(name(thread)).expect("a log"));
                // A call to the system for each record: what was logged stays when the process dies.
                let log = |key, event: KvEvent| {
                    file.borrow_mut().write_all(KvRecord::new(key, &event).as_bytes()).expect("logging");
                };
                let client = Client { kv, node, endpoint: &endpoint, number, values: Cell::new(0), log: &log };
                let client = &client;
                let mut rng = Rng(u64::from(number) ^ std::process::id() as u64);
                let (mut dead_since, mut good, mut bad, mut slowest) = (None, 0u64, 0u64, Duration::ZERO);
                // Batches of operations, until a second after the death was announced.
                while dead_since.is_none_or(|since: Instant| since.elapsed() < Duration::from_secs(1)) {
                    if dead_since.is_none() && place.join("killed").exists() {
                        dead_since = Some(Instant::now());
                    }
                    let start = Instant::now();
                    let futures = (0..64).map(|_| client.operation(rng.next()));
                    endpoint.run_window(WINDOW, futures, |done| match done {
                        Ok(()) => good += u64::from(dead_since.is_some()),
                        Err(error) => {
                            assert_names(&error, GONE);
                            bad += 1;
                        }
                    });
                    slowest = slowest.max(start.elapsed());
                    if dead_since.is_some() {
                        // Errors come fast; each is an operation that may have taken effect, which is costly to check.
                        std::thread::sleep(Duration::from_millis(5));
                    }
                }
                println!("node {}, after it: {good} good, {bad} errors, at most {slowest:.0?} for 64", me.0);
                assert!(good > 0, "what does not need the dead node goes on");
                assert!(slowest < Duration::from_secs(5), "{slowest:?}");
            });
        }
    });
    // Who ends first must not be missed by the other.
    let done = |node: u16| place.join(format!("{node}.done"));
    std::fs::write(done(me.0), "").expect("a sign");
    while !done(1 - me.0).exists() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn assert_names(error: &Error, gone: NodeId) {
    assert!(error.is_gone() && error.node() == Some(gone) && error.object().is_some(), "{error:?}");
}
