//! A key-value store between processes: many operations with checked histories, and the death of a process during
//! the operations.
//!
//! Every node is a process of its own: this test binary, run again with a role in its environment. Each process logs
//! its observations to a file. The test itself is not a node; it merges and checks the files.
//!
//! `FARFIELD_TEST_LONG` has a million operations and more deaths: CI runs that.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::hash::BuildHasher;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::{Child, Command};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use farfield::history::Event;
use farfield::history::kv::{KvEvent, KvHistory, KvInput, KvOutput, KvRecord, Report};
use farfield::{Barrier, Endpoint, ErrorKind, KvOptions, KvStore, Node, NodeId, Placement};
use foldhash::fast::FixedState;
use zerocopy::IntoBytes;

const ROLE: &str = "FARFIELD_TEST_ROLE";
const PLACE: &str = "FARFIELD_TEST_PLACE";
const OPERATIONS: &str = "FARFIELD_TEST_OPERATIONS";
const LONG: &str = "FARFIELD_TEST_LONG";
const THREADS: usize = 2;
const WINDOW: usize = 8;
const KEYS: u64 = 64;
/// The longest run time of a process, on a busy machine too.
const PROCESS_MAX: Duration = Duration::from_secs(300);

// ---- the parent ------------------------------------------------------------------------------------------------

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

    /// Waits until some nodes have ended successfully.
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
            let all = || (0..self.nodes.len()).map(|node| self.said(node)).collect::<String>();
            assert!(status.success(), "node {node}: {}", all());
        }
    }

    /// The merged logs of all nodes.
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

/// Four processes of two threads, each with eight operations in flight, on 64 keys.
/// All observations can be explained by operations that happened one at a time.
#[test]
fn operations_of_four_processes_are_linearizable() {
    let operations = if std::env::var_os(LONG).is_some() { 1_000_000 } else { 300_000 };
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

/// One or two processes are killed during their operations. Pairs with values there are lost until they are inserted
/// again. No other pair is lost, and no other operation fails. The survivors' observations are consistent.
fn killed(role: &str, nodes: u16, rounds: u64) {
    let story: Story = role.parse().expect("a story");
    let rounds = if std::env::var_os(LONG).is_some() { rounds } else { 1 };
    for round in 0..rounds {
        let mut session = Session::start(role, nodes, 0);
        let survivors = usize::from(nodes) - story.deaths;
        let start = Instant::now();
        for victim in survivors..usize::from(nodes) {
            let going = session.place.join(format!("{victim}-0.log"));
            while std::fs::metadata(&going).map_or(0, |log| log.len()) < 300 * KvRecord::LEN as u64 {
                assert!(start.elapsed() < PROCESS_MAX, "{}", session.said(victim));
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        for victim in (survivors..usize::from(nodes)).rev() {
            std::thread::sleep(Duration::from_millis(4 * round));
            session.nodes[victim].kill().expect("kill -9");
        }
        std::fs::write(session.place.join("killed"), "").expect("the news");
        session.end(0..survivors);
        let mut history = session.history();
        for victim in survivors..usize::from(nodes) {
            // The last sign of life of the victim. At some moment after it, each value on the victim was lost.
            let of_victim = |client: u32| client as usize / THREADS == victim;
            let times = history.iter().filter(|(_, event)| of_victim(event.client)).map(|(_, event)| event.call_ns);
            let lost_ns = times.max().expect("it did something");
            for key in (0..KEYS).filter(|key| !story.is_kept(*key, nodes)) {
                history.record(key, Event::pending(1000 + victim as u32, lost_ns, KvInput::Delete));
            }
        }
        println!("{role}, round {round}: {}", checked(&history));
        for node in 0..survivors {
            let said = session.said(node);
            println!("{}", said.lines().find(|line| line.contains("after it:")).unwrap_or("nothing"));
        }
    }
}

#[test]
fn a_death_loses_the_nodes_values_and_no_others() {
    killed("kill-inserter-1", 3, 3);
}

#[test]
fn a_death_among_four_loses_the_nodes_values_and_no_others() {
    killed("kill-hash-1", 4, 3);
}

#[test]
fn a_double_death_loses_the_nodes_values_and_no_others() {
    killed("kill-hash-2", 4, 3);
    killed("kill-inserter-2", 4, 2);
}

/// A process dies during operations of each kind, each stopped at another of its awaits. The survivors find each
/// operation either done or not done, and can use every key.
#[test]
fn an_operation_cut_short_by_a_death_is_done_or_not() {
    for (round, placement) in ["inserter", "hash"].into_iter().cycle().take(6).enumerate() {
        let mut session = Session::start(&format!("cut-{placement}"), 3, round as u64);
        session.end(0..2);
        for node in 0..2 {
            let said = session.said(node);
            println!("{}", said.lines().find(|line| line.contains("found")).unwrap_or("nothing"));
        }
    }
}

/// One scenario of deaths.
struct Story {
    placement: Placement,
    deaths: usize,
}

impl std::str::FromStr for Story {
    type Err = String;

    fn from_str(role: &str) -> Result<Story, String> {
        let (placement, deaths) = role.strip_prefix("kill-").and_then(|rest| rest.split_once('-')).ok_or(role)?;
        let placement = if placement == "hash" { Placement::Hash } else { Placement::Inserter };
        Ok(Story { placement, deaths: deaths.parse().map_err(|_| role)? })
    }
}

impl Story {
    fn options(&self) -> KvOptions {
        KvOptions { slots_per_node: 8 * KEYS as usize, locks: 96, placement: self.placement, ..KvOptions::default() }
    }

    /// Whether the value of a key is never stored on a node that will die.
    fn is_kept(&self, key: u64, nodes: u16) -> bool {
        match self.placement {
            // The other nodes do not insert it.
            Placement::Inserter => key.is_multiple_of(2),
            Placement::Hash => {
                let home = FixedState::with_seed(0x6661_7266_6965_6c64).hash_one(key) % u64::from(nodes);
                home < u64::from(nodes) - self.deaths as u64
            }
        }
    }
}

// ---- the nodes -------------------------------------------------------------------------------------------------

/// Not a test: the role of a child process.
#[test]
fn node_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let place = PathBuf::from(std::env::var(PLACE).expect("a place"));
    let operations: u64 = std::env::var(OPERATIONS).expect("a number").parse().expect("a number");
    // The child ends even if the parent dies.
    std::thread::spawn(|| {
        std::thread::sleep(PROCESS_MAX);
        eprintln!("not ended within {PROCESS_MAX:?}");
        std::process::abort();
    });
    match role.as_str() {
        "stress" => stress(&place, operations),
        role if role.starts_with("cut-") => cut(role == "cut-hash", operations),
        role if role.starts_with("kill-") => mortal(role, &place),
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

/// The operations of one thread.
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

    /// A value that no other client writes.
    fn value(&self) -> u64 {
        self.values.set(self.values.get() + 1);
        u64::from(self.number + 1) << 40 | self.values.get()
    }

    /// Runs one operation on a random key.
    async fn operation(&self, choice: u64) -> farfield::Result<()> {
        let key = choice % KEYS;
        let input = match choice >> 32 & 31 {
            0..14 => KvInput::Get,
            14 => return self.several(key).await,
            15..18 => KvInput::Insert(self.value()),
            18..24 => KvInput::Update(self.value()),
            24..28 => KvInput::Upsert(self.value()),
            _ => KvInput::Delete,
        };
        self.one(key, input).await
    }

    async fn one(&self, key: u64, input: KvInput) -> farfield::Result<()> {
        let (kv, endpoint) = (self.kv, self.endpoint);
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

    /// Reads several keys at once; each read counts as an operation.
    async fn several(&self, first: u64) -> farfield::Result<()> {
        let keys: Vec<u64> = (0..6).map(|key| (first + key * 11) % KEYS).collect();
        self.several_of(keys).await
    }

    async fn several_of(&self, keys: Vec<u64>) -> farfield::Result<()> {
        let mut found = Vec::new();
        let call_ns = self.now();
        self.kv.get_many(self.endpoint, &keys, &mut found).await?;
        let return_ns = self.now();
        for (key, found) in keys.into_iter().zip(found) {
            let found = KvOutput::Found(found?);
            (self.log)(key, Event::returned(self.number, call_ns, return_ns, KvInput::Get, found));
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

/// A node of a session in which the last nodes are killed. The victims log until they die, the others until some time
/// after the news.
fn mortal(role: &str, place: &Path) {
    let story: Story = role.parse().expect("a story");
    let node = Node::builder()
        .timeout(Duration::from_secs(10))
        .environment()
        .and_then(|builder| builder.start())
        .expect("a node");
    let kv = KvStore::<u64, u64>::open(&node, "kv", story.options()).expect("a store");
    let (me, nodes) = (node.id(), node.nodes() as u16);
    let survivors = nodes - story.deaths as u16;
    let is_victim = me.0 >= survivors;
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (node, kv, story) = (&node, &kv, &story);
            scope.spawn(move || {
                let endpoint = node.endpoint().expect("an endpoint");
                let number = u32::from(me.0) * THREADS as u32 + thread as u32;
                let name = place.join(format!("{}-{thread}.log", me.0));
                let file = RefCell::new(File::create(name).expect("a log"));
                // Each record takes one system call, so that logged records survive the death of the process.
                let log = |key, event: KvEvent| {
                    file.borrow_mut().write_all(KvRecord::new(key, &event).as_bytes()).expect("logging");
                };
                let client = Client { kv, node, endpoint: &endpoint, number, values: Cell::new(0), log: &log };
                let client = &client;
                let mut rng = Rng(u64::from(number) ^ std::process::id() as u64);
                let (mut dead_since, mut good, mut lost, mut slowest) = (None, 0u64, 0u64, Duration::ZERO);
                let operation = async |choice: u64| {
                    let key = choice % KEYS;
                    let inserts = matches!(choice >> 32 & 31, 15..18 | 24..28);
                    if is_victim && inserts && story.placement == Placement::Inserter && story.is_kept(key, nodes) {
                        return (key, client.one(key, KvInput::Update(client.value())).await);
                    }
                    let done = client.operation(choice).await;
                    let is_lost = done.as_ref().is_err_and(|error| matches!(error.kind(), ErrorKind::ValueLost { .. }));
                    // (A future victim does not upsert. The lost key may be another of several that were read, and a
                    // key that is kept must not be inserted on a victim.)
                    if is_lost && !is_victim {
                        // Upserts the key, as the error asks.
                        let again = client.one(key, KvInput::Upsert(client.value())).await;
                        if again.is_err() {
                            return (key, again);
                        }
                    }
                    (key, done)
                };
                // Batches of operations, until two seconds after the death was announced.
                while dead_since.is_none_or(|since: Instant| since.elapsed() < Duration::from_secs(2)) {
                    if dead_since.is_none() && place.join("killed").exists() {
                        dead_since = Some(Instant::now());
                    }
                    let start = Instant::now();
                    let futures = (0..64).map(|_| operation(rng.next()));
                    endpoint.run_window(WINDOW, futures, |(key, done)| match done {
                        Ok(()) => good += u64::from(dead_since.is_some()),
                        Err(error) => {
                            let gone = error.node().expect("it names a node");
                            assert!(gone.0 >= survivors && error.object().is_some(), "{error:?}");
                            // (A read of several keys also reads other keys than `key`.)
                            let is_of_key = matches!(error.kind(), ErrorKind::ValueLost { .. });
                            assert!(is_of_key || !story.is_kept(key, nodes), "key {key}: {error:?}");
                            lost += 1;
                        }
                    });
                    slowest = slowest.max(start.elapsed());
                }
                println!("node {}, after it: {good} good, {lost} lost, at most {slowest:.0?} for 64", me.0);
                assert!(good > 0, "the store goes on");
                // A dead waiter's ticket is passed over only after a pause, at first of `STUCK_LONG`.
                assert!(slowest < Duration::from_secs(9), "{slowest:?}");
                // Every key can be used, and read together with others.
                endpoint.block_on(async {
                    for key in 0..KEYS {
                        if let Err(error) = client.one(key, KvInput::Get).await {
                            assert!(matches!(error.kind(), ErrorKind::ValueLost { .. }), "{error}");
                            assert!(!story.is_kept(key, nodes), "key {key}: {error}");
                        }
                        client.one(key, KvInput::Upsert(client.value())).await.expect("an upsert");
                        client.one(key, KvInput::Get).await.expect("a get");
                    }
                    client.several_of((0..KEYS).collect()).await.expect("all");
                });
            });
        }
    });
    together(place, me.0, survivors, "done");
}

/// Waits until all survivors have arrived here, so that no node closes the store while another uses it.
fn together(place: &Path, me: u16, survivors: u16, what: &str) {
    let sign = |node: u16| place.join(format!("{node}.{what}"));
    std::fs::write(sign(me), "").expect("a sign");
    while (0..survivors).any(|node| !sign(node).exists()) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A value of several words that are all the same.
type Wide = [u64; 8];

const CUT_KINDS: u64 = 4;
const CUT_POLLS: u64 = 10;
/// The number of keys for each kind of operation and number of polls.
const CUT_EACH: u64 = 4;

/// Node 2 stops an operation of each kind after each number of polls, and dies. The others check the state that it
/// left.
fn cut(by_hash: bool, seed: u64) {
    const VICTIM: NodeId = NodeId(2);
    let place = PathBuf::from(std::env::var(PLACE).expect("a place"));
    let builder = Node::builder().timeout(Duration::from_secs(10)).environment().expect("an environment");
    let builder = builder.decorate(move |inner| farfield::fabric::weak::weaken(inner, seed + 1));
    let node = builder.start().expect("a node");
    let placement = if by_hash { Placement::Hash } else { Placement::Inserter };
    let keys = CUT_KINDS * CUT_POLLS * CUT_EACH;
    let options = KvOptions { slots_per_node: 3 * keys as usize, locks: 1000, placement, ..KvOptions::default() };
    let kv = KvStore::<u64, Wide>::open(&node, "kv", options).expect("a store");
    let endpoint = node.endpoint().expect("an endpoint");
    let (kind_of, old, new) = (|key: u64| key % CUT_KINDS, |key: u64| [key; 8], |key: u64| [key + 10_000; 8]);
    let is_first = |key: u64| (key / (CUT_KINDS * CUT_POLLS)).is_multiple_of(2);
    if node.id().0 == 0 {
        // All kinds except the insert need an existing value; the victim inserts half of them.
        for key in (0..keys).filter(|key| kind_of(*key) != 0 && is_first(*key)) {
            assert!(endpoint.block_on(kv.insert(&endpoint, &key, &old(key))).expect("an insert"));
        }
    }
    if node.id() == VICTIM {
        for key in (0..keys).filter(|key| kind_of(*key) != 0 && !is_first(*key)) {
            assert!(endpoint.block_on(kv.insert(&endpoint, &key, &old(key))).expect("an insert"));
        }
    }
    together(&place, node.id().0, 3, "there");
    if node.id() == VICTIM {
        let mut context = Context::from_waker(Waker::noop());
        let mut cut = Vec::new();
        for key in 0..keys {
            let (kv, endpoint, value) = (&kv, &endpoint, new(key));
            let mut operation: Pin<Box<dyn Future<Output = farfield::Result<()>>>> = Box::pin(async move {
                match kind_of(key) {
                    0 => kv.insert(endpoint, &key, &value).await.map(drop),
                    1 => kv.update(endpoint, &key, &value).await.map(drop),
                    2 => kv.delete(endpoint, &key).await.map(drop),
                    _ => kv.upsert(endpoint, &key, &value).await,
                }
            });
            let polls = key / CUT_KINDS % CUT_POLLS;
            if (0..polls).all(|_| operation.as_mut().poll(&mut context).is_pending()) {
                // Kept rather than dropped: a dead process does not clean up.
                cut.push(operation);
            }
        }
        let me = std::process::id().to_string();
        Command::new("kill").args(["-9", &me]).status().expect("kill -9");
        std::thread::sleep(PROCESS_MAX);
    }
    while endpoint.check_alive(VICTIM).is_ok() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut found = [0; 3];
    endpoint.block_on(async {
        for key in 0..keys {
            // `modify` repairs the interrupted operation under the lock.
            let seen = kv.modify(&endpoint, &key, |_| None).await;
            let possible = match (&seen, kind_of(key)) {
                (Err(error), _) => matches!(error.kind(), ErrorKind::ValueLost { node } if *node == VICTIM),
                (Ok(value), 0) => [None, Some(new(key))].contains(value),
                (Ok(value), 2) => [None, Some(old(key))].contains(value),
                (Ok(value), _) => [Some(old(key)), Some(new(key))].contains(value),
            };
            assert!(possible, "key {key}, cut at poll {}: {seen:?}", key / CUT_KINDS % CUT_POLLS);
            found[match seen {
                Err(_) => 0,
                Ok(None) => 1,
                Ok(Some(_)) => 2,
            }] += 1;
            let read = kv.get(&endpoint, &key).await;
            assert_eq!(read.as_ref().ok(), seen.as_ref().ok(), "key {key}: {read:?}, {seen:?}");
            std::fs::write(place.join(format!("{}-{key}", node.id().0)), format!("{:?}", seen.ok())).expect("a note");
        }
    });
    println!("node {} found {found:?} lost, absent, there", node.id().0);
    together(&place, node.id().0, 2, "seen");
    let note = |node: u16, key: u64| std::fs::read(place.join(format!("{node}-{key}"))).expect("a note");
    endpoint.block_on(async {
        for key in 0..keys {
            assert_eq!(note(0, key), note(1, key), "key {key}");
            if key % 2 == u64::from(node.id().0) {
                kv.upsert(&endpoint, &key, &new(key)).await.expect("an upsert");
                assert_eq!(kv.get(&endpoint, &key).await.expect("a get"), Some(new(key)));
                assert!(kv.delete(&endpoint, &key).await.expect("a delete"));
                assert!(kv.insert(&endpoint, &key, &old(key)).await.expect("an insert"));
            }
        }
    });
    together(&place, node.id().0, 2, "used");
    endpoint.block_on(async {
        for key in 0..keys {
            assert_eq!(kv.get(&endpoint, &key).await.expect("a get"), Some(old(key)), "key {key}");
        }
    });
    together(&place, node.id().0, 2, "done");
}
