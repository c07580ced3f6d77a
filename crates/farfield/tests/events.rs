//! What a node reports by `tracing`: its start, objects that open, reopen and close, nodes that join and go, waits that
//! last.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a test watches from outside the fabric")]

use std::io::{self, Write};
use std::sync::{Arc, Mutex as StdMutex, OnceLock};
use std::time::{Duration, Instant};

use farfield::{AtomicVar, Barrier, Mutex, Node, NodeId, Queue, QueueOptions, on_each};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::FmtSpan;
use tracing_subscriber::layer::SubscriberExt;

/// All lines of this program so far: the subscriber is that of all threads, the service threads' included.
fn lines() -> &'static StdMutex<Vec<u8>> {
    static LINES: OnceLock<StdMutex<Vec<u8>>> = OnceLock::new();
    LINES.get_or_init(|| {
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_span_events(FmtSpan::NEW | FmtSpan::CLOSE);
        subscriber.with_max_level(tracing::Level::INFO).with_writer(|| Lines).init();
        StdMutex::default()
    })
}

struct Lines;

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        lines().lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The lines with all of these in them.
fn with(parts: &[&str]) -> Vec<String> {
    let text = String::from_utf8(lines().lock().unwrap().clone()).unwrap();
    text.lines().filter(|line| parts.iter().all(|part| line.contains(part))).map(String::from).collect()
}

#[track_caller]
fn seen(parts: &[&str]) {
    let start = Instant::now();
    while with(parts).is_empty() {
        assert!(start.elapsed() < Duration::from_secs(20), "no line with {parts:?} in {:#?}", with(&[]));
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn start(session: &str, node: u16, nodes: u16) -> Node {
    lines();
    let session = format!("{session}-{}", std::process::id());
    Node::builder().session(&session).node(node).nodes(nodes).start().unwrap()
}

#[test]
fn nodes_and_objects_come_and_go() {
    let nodes = [start("come", 0, 2), start("come", 1, 2)];
    nodes[0].wait_for_all(nodes[0].timeout()).unwrap();
    seen(&["start{session=\"come-", "node=0 nodes=2}", "the node has started"]);
    seen(&["node 1 has joined"]);
    let vars = on_each(&nodes, |node| AtomicVar::open(node, "come/var", NodeId(0))).unwrap();
    seen(&["open{node=1 object=\"come/var\" kind=\"AtomicVar\"}", " open"]);
    seen(&["open{node=1 object=\"come/var\" kind=\"AtomicVar\"}", "close", "time.busy"]);
    drop(vars);
    seen(&["closed", "node=0", "object=\"come/var\""]);
    let again = on_each(&nodes, |node| {
        node.reopen("come/var", |again| AtomicVar::open(node, again.path(), again.home(NodeId(0))))
    });
    seen(&["reopen{node=0 object=\"come/var\"}", "reopened", "generation=1"]);
    seen(&["reopen{node=0 object=\"come/var\"}:open{node=0 object=\"come/var@1\" kind=\"AtomicVar\"}", " open"]);
    drop(again);
    let [stays, goes] = nodes;
    goes.leave();
    seen(&["the node leaves", "node=1"]);
    seen(&["node 1 has left"]);
    drop(stays);
}

/// The calls of the data path report nothing.
#[test]
fn calls_are_silent() {
    let node = start("silent", 0, 1);
    let (ep, mutex) = (node.endpoint().unwrap(), Mutex::open(&node, "silent/lock", node.id()).unwrap());
    let before = with(&["silent/lock"]).len();
    for _ in 0..100 {
        ep.block_on(async { mutex.lock(&ep).await?.unlock().await }).unwrap();
    }
    assert_eq!(with(&["silent/lock"]).len(), before);
    assert!(before > 0);
}

/// Each wait that lasts more than a second is reported once, while it lasts.
#[test]
fn long_waits_are_reported() {
    let nodes = [start("long", 0, 2), start("long", 1, 2)];
    let (ep, other) = (nodes[0].endpoint().unwrap(), nodes[1].endpoint().unwrap());
    let opening = || on_each(&nodes, |node| Mutex::open(node, "long/lock", NodeId(0)));
    let mutexes = opening().unwrap();
    let queues =
        on_each(&nodes, |node| Queue::<u64>::open(node, "long/queue", QueueOptions::new(NodeId(0), 1))).unwrap();
    let barriers = on_each(&nodes, |node| Barrier::open(node, "long/barrier", 1)).unwrap();
    let held = other.block_on(mutexes[1].lock(&other)).unwrap();
    let until = ep.now() + Duration::from_millis(1500);
    let mut arrival = barriers[0].thread().unwrap();
    let waits = async {
        let lock = mutexes[0].lock_deadline(&ep, until);
        let value = queues[0].dequeue_deadline(&ep, until);
        futures::join!(lock, value, arrival.wait_deadline(&ep, until))
    };
    let (lock, value, passed) = ep.block_on(waits);
    assert!(lock.is_err() && value.is_err() && passed.is_err());
    drop(held);
    for (object, what) in [
        ("object=\"long/lock\"", "still waits for a lock"),
        ("object=\"long/queue\"", "still waits for a value in the queue"),
        ("object=\"long/barrier\"", "still waits for all threads to arrive"),
    ] {
        let found = with(&[what, object]);
        assert_eq!(found.len(), 1, "{object}: {:#?}", with(&["still waits"]));
    }
    std::thread::scope(|scope| {
        scope.spawn(|| AtomicVar::open(&nodes[0], "long/var", NodeId(0)).map(drop).unwrap());
        seen(&[
            "open{node=0 object=\"long/var\"",
            "still waits for all participants to open it",
            "missing=[NodeId(1)]",
        ]);
        AtomicVar::open(&nodes[1], "long/var", NodeId(0)).unwrap();
    });
}

/// Where the events are chosen by the modules that they come from, the waits of an object are among its events. They
/// were reported only to subscribers that listened to the module that takes the time, too.
#[test]
fn a_long_wait_is_an_event_of_its_object() {
    struct Kept(Arc<StdMutex<Vec<u8>>>);
    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    let node = start("targets", 0, 1);
    let (ep, kept) = (node.endpoint().unwrap(), Arc::new(StdMutex::default()));
    let queue = Queue::<u64>::open(&node, "targets/queue", QueueOptions::new(NodeId(0), 1)).unwrap();
    let to = Arc::clone(&kept);
    let lines = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(move || Kept(Arc::clone(&to)));
    let of_objects = Targets::new().with_target("farfield_core::objects", tracing::Level::INFO);
    tracing::subscriber::with_default(tracing_subscriber::registry().with(of_objects).with(lines), || {
        assert!(ep.block_on(queue.dequeue_deadline(&ep, ep.now() + Duration::from_millis(1500))).is_err());
    });
    let text = String::from_utf8(kept.lock().unwrap().clone()).unwrap();
    assert!(text.contains("farfield_core::objects::queue") && text.contains("still waits for a value"), "{text}");
}
