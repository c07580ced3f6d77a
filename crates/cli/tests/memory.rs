//! `farfield memory`: processes that lend memory to clients that come and go, and one that dies.

#![forbid(unsafe_code)]

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};

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
        let places = PLACES.to_string();
        let mut command = Command::new(env!("CARGO_BIN_EXE_farfield"));
        command.args(["memory", "--size", size, "--session", session, "--nodes", &places, "--node", &node.to_string()]);
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

    // The first client comes, and later another one.
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

    // A memory node dies in the middle of it. The first client goes, and is started again at the same place.
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
