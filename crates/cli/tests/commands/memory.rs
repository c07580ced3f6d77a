//! `farfield memory`: processes that lend memory to clients that come and go, and one that dies.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use farfield::fabric::ucx::{self, Secret};
use farfield::swarm::{SwarmStore, SwarmStoreClient, SwarmStoreOptions};
use farfield::{ByteString, Endpoint, ErrorKind, Node, NodeId, Result};
use rustix::process::{Pid, Signal, kill_process};

const PLACES: u16 = 6;

/// A memory node, which is killed if the test fails.
struct Memory {
    process: Child,
    lines: BufReader<ChildStdout>,
}

impl Memory {
    fn start(session: &str, node: u16, size: &str) -> Memory {
        Memory::start_as(session, node, node, size, &[])
    }

    /// One that takes the place of another one, with that number.
    fn replace(session: &str, place: u16, node: u16, size: &str) -> Memory {
        Memory::start_as(session, place, node, size, &["--replace"])
    }

    fn start_as(session: &str, place: u16, node: u16, size: &str, more: &[&str]) -> Memory {
        let places = PLACES.to_string();
        let mut command = Command::new(env!("CARGO_BIN_EXE_farfield"));
        command.args([
            "memory",
            "--size",
            size,
            "--session",
            session,
            "--nodes",
            &places,
            "--node",
            &place.to_string(),
        ]);
        command.args(more);
        Memory::run(node, command)
    }

    fn run(node: u16, mut command: Command) -> Memory {
        let mut process = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("farfield starts");
        let lines = BufReader::new(process.stdout.take().expect("piped"));
        let mut memory = Memory { process, lines };
        let first = memory.line();
        assert!(first.starts_with(&format!("node {node} of 6 lends up to ")), "{first}");
        memory
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("readable");
        line
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).expect("it runs");
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The secret of a session between hosts.
const SECRET: &str = "known to the nodes of a test";

fn start(session: &str, place: u16) -> Node {
    Node::builder().session(session).node(place).nodes(PLACES).start().expect("the node starts")
}

type Stock = SwarmStore<ByteString, u64>;

/// The first three places have the memory, and the others clients.
fn open(node: &Node, keys: usize) -> Result<Stock> {
    let mut options = SwarmStoreOptions::default();
    options.keys = keys;
    options.replicas.memory = (0..3).map(NodeId).collect();
    options.replicas.clients = (3..PLACES).map(NodeId).collect();
    SwarmStore::open(node, "stock", options)
}

fn key(number: u64) -> ByteString {
    ByteString::from(format!("key {number}"))
}

/// Adds one to each of these keys.
fn add(client: &SwarmStoreClient<'_, ByteString, u64>, keys: core::ops::Range<u64>) -> Result<()> {
    for number in keys {
        let value = client.get_blocking(&key(number))?.unwrap_or(0);
        client.upsert_blocking(&key(number), &(value + 1))?;
    }
    Ok(())
}

fn with_client(node: &Node, store: &Stock, body: impl FnOnce(&SwarmStoreClient<'_, ByteString, u64>, &Endpoint)) {
    let endpoint = node.endpoint().expect("an endpoint");
    let client = store.client(&endpoint).expect("a client");
    body(&client, &endpoint);
}

#[test]
fn clients_come_and_go_and_a_memory_node_dies() {
    let session = format!("memory-{}", std::process::id());
    let mut memory: Vec<Memory> = (0..3).map(|node| Memory::start(&session, node, "256MiB")).collect();

    // The first client starts, and later another one.
    let first = start(&session, 3);
    let stock = open(&first, 500).expect("the memory nodes lend it");
    for memory in &mut memory {
        let line = memory.line();
        assert!(line.starts_with("lends ") && line.trim_end().ends_with(" to `stock`"), "{line}");
    }
    with_client(&first, &stock, |client, _| add(client, 0..200).expect("all memory nodes live"));
    let second = start(&session, 4);
    let seen = open(&second, 500).expect("it is open");
    with_client(&second, &seen, |client, _| {
        add(client, 0..200).expect("all memory nodes live");
        assert_eq!(client.get_blocking(&key(7)).expect("they live"), Some(2));
    });

    // A store of another size is an error, and so is one that does not fit.
    let third = start(&session, 5);
    let error = open(&third, 400).err().expect("it is open with 500 keys");
    assert!(matches!(error.kind(), ErrorKind::Mismatch { .. }), "{error}");
    let large = SwarmStore::<u64, [u64; 512]>::open(&third, "large", {
        let mut options = SwarmStoreOptions::default();
        options.keys = 50_000;
        options.replicas.memory = (0..3).map(NodeId).collect();
        options.replicas.clients = vec![NodeId(5)];
        options
    });
    let error = large.err().expect("it does not fit");
    assert!(error.to_string().contains("left to lend"), "{error}");
    drop(third);

    // A memory node dies in the middle of it. The first client leaves, and is started again at the same place.
    memory[1].signal(Signal::KILL);
    with_client(&second, &seen, |client, _| add(client, 0..200).expect("two of three live"));
    drop(stock);
    first.leave();
    let again = start(&session, 3);
    let stock = open(&again, 500).expect("two of three live");
    with_client(&again, &stock, |client, _| {
        add(client, 0..250).expect("two of three live");
        for number in 0..250 {
            let times = if number < 200 { 4 } else { 1 };
            assert_eq!(client.get_blocking(&key(number)).expect("two of three live"), Some(times));
        }
    });

    // All clients go, and the values stay.
    drop((stock, seen));
    again.leave();
    second.leave();
    let last = start(&session, 4);
    let stock = open(&last, 500).expect("two of three live");
    with_client(&last, &stock, |client, _| {
        assert_eq!(client.get_blocking(&key(7)).expect("two of three live"), Some(4));
        client.delete_blocking(&key(7)).expect("two of three live");
        assert_eq!(client.get_blocking(&key(7)).expect("two of three live"), None);
    });
    drop(stock);
    last.leave();
    for mut memory in memory.into_iter().enumerate().filter_map(|(node, memory)| (node != 1).then_some(memory)) {
        memory.signal(Signal::TERM);
        assert!(memory.process.wait().expect("it ends").success());
    }
}

/// As between hosts, by a file of their addresses. One memory node dies, and another one takes its place.
#[test]
fn memory_nodes_lend_over_ucx() {
    if let Err(error) = ucx::check_library() {
        assert_ne!(std::env::var("FARFIELD_NEED_UCX").as_deref(), Ok("1"), "{error}");
        return eprintln!("passed over: {error}");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (file, addresses) = (folder.path().join("hosts"), farfield::loopback_hosts(PLACES));
    let lines: String = addresses.iter().map(|address| format!("here address={}\n", address.ip())).collect();
    std::fs::write(&file, lines).expect("written");
    let memory = |place: u16, node: u16, more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_farfield"));
        command.args(["memory", "--size", "64MiB", "--session", "lent", "--fabric", "ucx"]);
        command.args(["--node", &place.to_string(), "--hosts"]).arg(&file).args(more);
        command.env("FARFIELD_SECRET", SECRET).env("FARFIELD_LIFE", (node / PLACES).to_string());
        // The file's places count, wherever it runs.
        command.env("FARFIELD_HOSTS", "127.0.0.9:1").envs([("SLURM_PROCID", "0"), ("SLURM_NTASKS", "1")]);
        Memory::run(node, command)
    };
    let mut nodes: Vec<Memory> = (0..3).map(|node| memory(node, node, &[])).collect();
    let secret = Secret::new(SECRET.as_bytes()).expect("it is long enough");
    let client = Node::builder().session("lent").hosts(addresses).over_ucx().secret(secret).node(3);
    let client = client.start().expect("the client starts");
    let stock = open(&client, 500).expect("the memory nodes lend it");
    with_client(&client, &stock, |client, _| add(client, 0..100).expect("all memory nodes live"));
    nodes[1].signal(Signal::KILL);
    with_client(&client, &stock, |client, _| add(client, 0..100).expect("two of three live"));
    let replacing = memory(1, 1 + PLACES, &["--replace"]);
    drop(std::mem::replace(&mut nodes[1], replacing));
    let line = nodes[1].line();
    assert!(line.starts_with("lends ") && line.trim_end().ends_with("in place of node 1"), "{line}");
    // Without the third one only the replaced one makes a majority.
    nodes[2].signal(Signal::KILL);
    with_client(&client, &stock, |client, _| {
        for number in 0..100 {
            assert_eq!(client.get_blocking(&key(number)).expect("two of three live"), Some(2));
        }
    });
    drop(stock);
    client.leave();
}

/// A key of each thread, which it increments again and again, and others that come and go.
fn work(client: &SwarmStoreClient<'_, ByteString, u64>, own: u64, until: &AtomicBool) -> Result<u64> {
    let (mut calls, own) = (0, key(1000 + own));
    client.insert_blocking(&own, &0)?;
    while !until.load(Ordering::Relaxed) {
        calls += 1;
        assert_eq!(client.get_blocking(&own)?, Some(calls - 1));
        assert!(client.update_blocking(&own, &calls)?);
        let other = key(2000 + calls % 20);
        client.upsert_blocking(&other, &calls)?;
        if calls % 3 == 0 {
            client.delete_blocking(&other)?;
        }
    }
    Ok(calls)
}

/// First one memory node dies and is replaced, then another one: the values have outlived two of three.
#[test]
fn memory_nodes_are_replaced_under_load() {
    let session = format!("replaced-{}", std::process::id());
    let mut memory: Vec<Memory> = (0..3).map(|node| Memory::start(&session, node, "256MiB")).collect();
    let nodes = [3, 4].map(|place| start(&session, place));
    let stocks = nodes.each_ref().map(|node| open(node, 500).expect("the memory nodes lend it"));
    with_client(&nodes[0], &stocks[0], |client, _| add(client, 0..300).expect("all memory nodes live"));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let works: Vec<_> = nodes
            .iter()
            .zip(&stocks)
            .zip(0..)
            .map(|((node, stock), own)| {
                let is_over = &is_over;
                scope.spawn(move || {
                    let endpoint = node.endpoint().expect("an endpoint");
                    let client = stock.client(&endpoint).expect("a client");
                    work(&client, own, is_over).expect("no call fails")
                })
            })
            .collect();
        for (place, dead, node) in [(0, 0, 6), (2, 2, 8), (0, 0, 12)] {
            memory[usize::from(place)].signal(Signal::KILL);
            let mut next = Memory::replace(&session, place, node, "256MiB");
            let line = next.line();
            assert!(line.trim_end().ends_with(&format!(" to `stock`, in place of node {dead}")), "{line}");
            memory[usize::from(place)] = next;
        }
        is_over.store(true, Ordering::Relaxed);
        // Each node has one client at a time.
        let works: Vec<u64> = works.into_iter().map(|work| work.join().expect("it does not panic")).collect();
        for (own, calls) in (0..).zip(works) {
            with_client(&nodes[1], &stocks[1], |client, _| {
                assert_eq!(client.get_blocking(&key(1000 + own)).expect("they live"), Some(calls));
            });
        }
    });
    // A later client finds the present memory nodes, and works without the last one of the beginning.
    let late = start(&session, 5);
    let seen = open(&late, 500).expect("most memory nodes live");
    memory[1].signal(Signal::KILL);
    with_client(&late, &seen, |client, _| {
        add(client, 0..300).expect("most memory nodes live");
        for number in 0..300 {
            assert_eq!(client.get_blocking(&key(number)).expect("they live"), Some(2), "key {number}");
        }
    });
}
