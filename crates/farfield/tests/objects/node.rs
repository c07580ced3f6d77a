//! Nodes: joining, opening, disagreeing, leaving.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex as Log};
use std::time::Duration;

use farfield::fabric::{ErrorKind as FabricError, GroupKey, PeerState};
use farfield::toolkit::{ObjectBuilder, Poller, Progress};
use farfield::{
    AtomicVar, Barrier, Endpoint, Error, ErrorKind, KvOptions, KvStore, MemberStatus, Mutex, Node, NodeId, OwnedVar,
    Queue, QueueOptions, RingBuffer, RingOptions, SharedVar, Sst, TearCheck,
};

use crate::harness::{
    Over, SHORT, SOON, Scene, alone, beside, eventually, fabrics, on_each_fabric, over, refused, session,
};

fn fresh(label: &str) -> String {
    static SESSIONS: AtomicUsize = AtomicUsize::new(0);
    format!("{label}-{}-{}", std::process::id(), SESSIONS.fetch_add(1, Ordering::Relaxed))
}

fn start(session: &str, node: u16, nodes: u16, fabric: Over) -> Node {
    over(fabric, nodes.into())(Node::builder()).session(session).node(node).nodes(nodes).start().expect("a node")
}

#[test]
fn nodes_have_names_and_numbers() {
    let _cores = beside("names");
    let name = fresh("names");
    let builder = || Node::builder().session(&name).names(["left", "right"]);
    let nodes = [builder().start().unwrap(), builder().node(1).start().unwrap()];
    assert_eq!((nodes[0].nodes(), nodes[1].id()), (2, NodeId(1)));
    assert_eq!(nodes[0].name_of(NodeId(1)), "right");
    assert_eq!((nodes[1].by_name("left"), nodes[1].by_name("middle")), (Some(NodeId(0)), None));
    assert_eq!(nodes[1].members().collect::<Vec<_>>(), [NodeId(0), NodeId(1)]);
    assert_eq!(nodes[1].others().collect::<Vec<_>>(), [NodeId(0)]);
    // Without names, the numbers serve as names.
    let alone = Node::builder().session(&fresh("names")).start().unwrap();
    assert_eq!((alone.name_of(NodeId(0)).as_str(), alone.by_name("0")), ("0", Some(NodeId(0))));
    // A rank can be taken only once.
    assert!(builder().node(1).start().is_err());
}

#[test]
fn missing_nodes_are_named() {
    let _cores = alone("missing nodes");
    let name = fresh("missing");
    let first = start(&name, 0, 3, Over::Shm);
    let missing = |error: Error| match error.kind() {
        ErrorKind::Timeout { missing, .. } => missing.clone(),
        _ => panic!("{error:?}"),
    };
    let error = refused(first.wait_for_all(SHORT));
    assert!(error.to_string().contains("blocked by node 1, node 2: check that they run"), "{error}");
    assert_eq!(missing(error), [NodeId(1), NodeId(2)]);
    assert_eq!(first.state_of(NodeId(2)), PeerState::NotJoined);
    let second = start(&name, 2, 3, Over::Shm);
    first.wait_for([NodeId(2)], SOON).unwrap();
    assert_eq!(missing(refused(second.wait_for_all(SHORT))), [NodeId(1)]);
    assert!(matches!(first.state_of(NodeId(2)), PeerState::Up { .. }));
    // The timeout error names the nodes that have not opened the object: one that runs, and one that has not joined.
    let patient = over(Over::Shm, 3)(Node::builder()).timeout(SHORT).session(&name).node(1).nodes(3).start().unwrap();
    let error = refused(SharedVar::<u64>::open(&patient, "x"));
    assert_eq!(error.object(), Some("x"));
    assert_eq!(missing(error), [NodeId(0), NodeId(2)]);
    // The object is not open after the error, so it can be opened again.
    assert!(patient.metrics().objects.is_empty());
    let third = std::thread::scope(|scope| {
        for node in [&first, &second] {
            scope.spawn(|| SharedVar::<u64>::open(node, "x").map(|_| std::thread::sleep(SHORT)).unwrap());
        }
        eventually("the others open it", || SharedVar::<u64>::open(&patient, "x").ok())
    });
    assert_eq!(third.load(), 0);
}

/// Objects are opened in any order, even before a peer has joined.
#[test]
fn peers_that_come_late_are_connected() {
    for fabric in [Over::Shm, Over::Weak(31)] {
        let _cores = beside("late peers");
        let name = fresh("late");
        let first = start(&name, 0, 2, fabric);
        std::thread::scope(|scope| {
            let opening = scope.spawn(|| {
                let var = AtomicVar::open(&first, "var", NodeId(1)).unwrap();
                let lock = Mutex::open(&first, "lock", NodeId(0)).unwrap();
                let endpoint = first.endpoint().unwrap();
                endpoint.block_on(var.fetch_add(&endpoint, 5)).unwrap();
                (var, lock)
            });
            std::thread::sleep(SHORT);
            let second = start(&name, 1, 2, fabric);
            second.wait_for_all(SOON).unwrap();
            std::thread::sleep(SHORT);
            let var = AtomicVar::open(&second, "var", NodeId(1)).unwrap();
            let lock = Mutex::open(&second, "lock", NodeId(0)).unwrap();
            let endpoint = second.endpoint().unwrap();
            endpoint.block_on(async { lock.lock(&endpoint).await.unwrap().unlock().await.unwrap() });
            opening.join().expect("the first");
            assert_eq!(endpoint.block_on(var.load(&endpoint)).unwrap(), 5);
        });
    }
}

/// If two nodes open an object differently, both get an error that names the difference, here and there.
#[test]
fn differences_are_errors_on_both_sides() {
    type Open = Box<dyn Fn(&Node) -> farfield::Result<()> + Send + Sync>;
    fn open<T: 'static>(body: impl Fn(&Node) -> farfield::Result<T> + Send + Sync + 'static) -> Open {
        // Kept for a while, so that an error here is not caused by the other node's leaving.
        Box::new(move |node| body(node).map(|_| std::thread::sleep(SHORT)))
    }
    let kv = |change: fn(&mut KvOptions)| {
        let mut options = KvOptions { slots_per_node: 10, ..KvOptions::default() };
        change(&mut options);
        open(move |node| KvStore::<u64, u64>::open(node, "x", options.clone()))
    };
    let custom = |bytes: usize, expected: u64, participants: &'static [u16]| {
        open(move |node| {
            let region = node.alloc(GroupKey::DATA, bytes)?;
            let opening = ObjectBuilder::new(node, "x", "Custom")
                .region("cells", region)
                .participants(participants.iter().map(|node| NodeId(*node)))
                .require_regions(move |_| vec![("cells".into(), expected)]);
            let object = opening.announce()?;
            object.wait(SOON)
        })
    };
    let both: &[u16] = &[0, 1];
    let cases: Vec<(&str, Open, Open)> = vec![
        (
            "its type",
            open(|node| AtomicVar::open(node, "x", NodeId(0))),
            open(|node| Mutex::open(node, "x", NodeId(0))),
        ),
        ("its type", open(|node| Barrier::open(node, "x", 1)), open(|node| Sst::<u64>::open(node, "x"))),
        ("its type", open(|node| Barrier::open(node, "x", 1)), open(|node| Mutex::open(node, "x", NodeId(0)))),
        (
            "its layout",
            open(|node| AtomicVar::open(node, "x", NodeId(0))),
            open(|node| AtomicVar::open(node, "x", NodeId(1))),
        ),
        ("its layout", open(|node| SharedVar::<u64>::open(node, "x")), open(|node| SharedVar::<i64>::open(node, "x"))),
        (
            "its layout",
            open(|node| OwnedVar::<[u64; 2]>::open_with(node, "x", NodeId(0), TearCheck::Guards)),
            open(|node| OwnedVar::<[u64; 2]>::open_with(node, "x", NodeId(0), TearCheck::Checksum)),
        ),
        (
            "its layout",
            open(|node| Sst::<u64>::open_with(node, "x", &[NodeId(0), NodeId(1)])),
            open(|node| Sst::<u64>::open_with(node, "x", &[NodeId(1), NodeId(0)])),
        ),
        (
            "its layout",
            open(|node| RingBuffer::open(node, "x", RingOptions::broadcast(node, NodeId(0), 64))),
            open(|node| RingBuffer::open(node, "x", RingOptions::broadcast(node, NodeId(0), 128))),
        ),
        ("its layout", kv(|_| ()), kv(|options| options.slots_per_node = 11)),
        ("its layout", kv(|_| ()), kv(|options| options.locks = 5)),
        ("the set of participants", custom(64, 64, both), custom(64, 64, &[0, 1, 2])),
        ("region `cells` in bytes", custom(64, 64, both), custom(128, 128, both)),
    ];
    let _cores = beside("differences");
    for (differs, left, right) in &cases {
        for late in [0, 1] {
            let nodes = session(3, Over::Shm);
            let errors = std::thread::scope(|scope| {
                let threads = [(0, left), (1, right)].map(|(index, open)| {
                    let node = &nodes[index];
                    scope.spawn(move || {
                        if index == late {
                            std::thread::sleep(Duration::from_millis(10));
                        }
                        refused(open(node))
                    })
                });
                threads.map(|thread| thread.join().unwrap_or_else(|panic| panic!("{differs}, {late} late: {panic:?}")))
            });
            for (node, error) in errors.iter().enumerate() {
                let other = NodeId(1 - node as u16);
                assert!(matches!(error.kind(), ErrorKind::Mismatch { node, .. } if *node == other), "{error:?}");
                let text = error.to_string();
                assert!(text.starts_with("x") && text.contains(differs) && text.contains(" here and "), "{error}");
            }
            // The error's "here" on one node is "there" on the other.
            let halves = errors.each_ref().map(|error| {
                let text = error.to_string();
                let (_, said) = text.split_once(" is ").expect("it says what differs");
                let (here, there) = said.split_once(" here and ").expect("both sides");
                (here.to_string(), there.trim_end_matches(" there").to_string())
            });
            assert_eq!((&halves[0].0, &halves[0].1), (&halves[1].1, &halves[1].0), "{differs}");
        }
    }
}

/// A node that waits for others says what they have opened instead, as long as they have it open.
#[test]
fn a_misspelt_path_is_seen_in_the_error() {
    let _cores = beside("misspelt paths");
    let session = fresh("misspelt");
    let started = |number: u16| {
        let builder = over(Over::Shm, 2)(Node::builder()).timeout(SHORT);
        builder.session(&session).node(number).nodes(2).start().expect("it starts")
    };
    let nodes = [started(0), started(1)];
    let opened = ObjectBuilder::new(&nodes[1], "job", "Mail").announce().expect("nothing is waited for");
    let waits = || refused(Queue::<u64>::open(&nodes[0], "jobs", QueueOptions::new(NodeId(0), 4))).to_string();
    let is_named = |error: &String| error.contains("node 1 has opened `job` (Mail), and this node has not");
    eventually("the other path is named", || is_named(&waits()).then_some(()));
    drop(opened);
    eventually("a closed one is not", || (!waits().contains("this node has not")).then_some(()));
}

#[test]
fn a_name_is_opened_once_at_a_time() {
    on_each_fabric("reopening", 2, |scene| {
        for round in 0..3 {
            let vars = scene.open(|node| AtomicVar::open(node, "var", scene.id(0)));
            let error = refused(AtomicVar::open(&scene.nodes[0], "var", scene.id(0)));
            assert_eq!((error.kind(), error.object()), (&ErrorKind::AlreadyOpen, Some("var")));
            let endpoint = scene.endpoint(1);
            assert_eq!(endpoint.block_on(vars[1].fetch_add(&endpoint, 1)).unwrap(), 0, "round {round}: fresh memory");
            let kvs = scene.open(|node| KvStore::<u64, u64>::open(node, "kv", KvOptions::default()));
            assert!(endpoint.block_on(kvs[1].insert(&endpoint, &1, &2)).unwrap());
            let open = scene.nodes[0].metrics();
            assert_eq!(open.open_paths(), ["kv", "kv/locks", "kv/tracker/0", "kv/tracker/1", "var"]);
            drop((vars, kvs));
            // The service thread soon releases its part.
            for node in &scene.nodes {
                eventually("all names are free", || node.metrics().objects.is_empty().then_some(()));
            }
        }
        for path in ["", "x".repeat(513).as_str()] {
            assert!(matches!(refused(SharedVar::<u64>::open(&scene.nodes[0], path)).kind(), ErrorKind::Config { .. }));
        }
        let stranger =
            ObjectBuilder::new(&scene.nodes[0], "x", "Custom").participants([NodeId(0), NodeId(7)]).announce();
        assert!(refused(stranger).to_string().contains("node 7, a participant, was never a member"));
        let outside = ObjectBuilder::new(&scene.nodes[0], "x", "Custom").participants([NodeId(1)]).announce();
        let error = refused(outside);
        assert!(matches!(error.kind(), ErrorKind::NotAParticipant { .. }), "{error:?}");
        assert!(error.to_string().starts_with("x: node 0 is not one of its participants"), "{error}");
    });
}

/// Each callback runs once for each peer, with the peer's message.
#[test]
fn callbacks_run_once_for_each_peer() {
    let _cores = beside("callbacks");
    for round in 0..10u64 {
        let name = fresh("callbacks");
        let fabric = if round % 3 == 2 { Over::Weak(round) } else { Over::Shm };
        type Calls = Arc<Log<Vec<(&'static str, u16, u16)>>>;
        let calls: Calls = Calls::default();
        let objects = std::thread::scope(|scope| {
            let open = |node: u16| {
                let (name, calls) = (&name, &calls);
                move || {
                    std::thread::sleep(Duration::from_micros(300 * (u64::from(node) * round % 7)));
                    let node = start(name, node, 3, fabric);
                    let me = node.id().0;
                    let region = node.alloc(GroupKey::DATA, 64).unwrap();
                    let note = |what| {
                        let calls = Arc::clone(calls);
                        move |from: NodeId, theirs: &farfield::toolkit::ObjectDescriptor| {
                            assert_eq!((theirs.path.as_str(), theirs.kind.as_str()), ("x", "Custom"));
                            assert_eq!(theirs.regions[0].0, "cells");
                            calls.lock().unwrap().push((what, me, from.0));
                        }
                    };
                    let opening = ObjectBuilder::new(&node, "x", "Custom").region("cells", region);
                    let object = opening.on_join(note("join")).on_connect(note("connect")).announce().unwrap();
                    object.wait(SOON).unwrap();
                    for peer in node.others() {
                        assert!(object.remote::<u64>(peer, "cells").is_ok());
                        let error = refused(object.remote::<u64>(peer, "other"));
                        assert!(error.to_string().contains("no region `other`"), "{error}");
                    }
                    (node, object)
                }
            };
            let threads = [0, 1, 2].map(|node| scope.spawn(open(node)));
            threads.map(|thread| thread.join().expect("a node"))
        });
        std::thread::sleep(Duration::from_millis(20));
        let calls = calls.lock().unwrap();
        let times = |call: (&'static str, u16, u16)| calls.iter().filter(|seen| **seen == call).count();
        for (a, b) in [(0, 1), (1, 2), (2, 0)] {
            assert_eq!((times(("connect", a, b)), times(("connect", b, a))), (1, 1), "{calls:?}");
            let joins = [times(("join", a, b)), times(("join", b, a))];
            assert!(joins.iter().all(|times| *times <= 1) && joins != [0, 0], "{calls:?}");
        }
        drop(objects);
    }
}

/// Handles are dropped in any order; a node leaves with the last one.
#[test]
fn a_node_leaves_when_its_last_handle_is_dropped() {
    let _cores = beside("dropping handles");
    for fabric in fabrics(&[33]) {
        for order in 0..4 {
            let mut nodes = session(2, fabric);
            let kvs =
                farfield::on_each(&nodes, |node| KvStore::<u64, u64>::open(node, "kv", KvOptions::default())).unwrap();
            let barriers = farfield::on_each(&nodes, |node| Barrier::open(node, "all", 1)).unwrap();
            let mut objects: Vec<_> = kvs.into_iter().zip(barriers).collect();
            let (kv, barrier) = objects.pop().unwrap();
            let node = nodes.pop().unwrap();
            match order {
                0 => drop((node, barrier, kv)),
                1 => drop((kv, barrier, node)),
                2 => {
                    node.clone().leave();
                    drop((barrier, kv, node));
                }
                _ => drop((barrier.thread().unwrap(), node, kv, barrier)),
            }
            eventually("it has left", || (nodes[0].state_of(NodeId(1)) == PeerState::Left).then_some(()));
        }
    }
}

#[test]
fn metrics_report_the_operations_and_objects_of_a_node() {
    let _cores = beside("metrics");
    let mut scene = Scene { nodes: session(2, Over::Shm), over: Over::Shm, threads: 1 };
    let vars = scene.open(|node| AtomicVar::open(node, "a/b", scene.id(0)));
    let endpoint = scene.endpoint(1);
    let before = scene.nodes[1].metrics();
    assert_eq!(before.open_paths(), ["a/b"]);
    assert!(before.peers.iter().all(|peer| matches!(peer.1, PeerState::Up { .. })) && before.peers.len() == 2);
    for _ in 0..10 {
        endpoint.block_on(vars[1].fetch_add(&endpoint, 1)).unwrap();
        endpoint.block_on(vars[1].load(&endpoint)).unwrap();
    }
    let after = scene.nodes[1].metrics();
    let cost = after.counts - before.counts;
    assert_eq!((cost.atomics, cost.gets, cost.puts, cost.bytes), (10, 10, 0, 160));
    // The counts of a dropped endpoint are kept.
    drop(endpoint);
    assert_eq!(scene.nodes[1].metrics().counts.atomics, after.counts.atomics);
    let more = scene.endpoint(1);
    assert_eq!(scene.nodes[1].metrics().endpoints, after.endpoints + 1);
    drop((more, vars));
    assert!(scene.nodes[1].metrics().objects.is_empty());
    scene.nodes.pop().unwrap().leave();
    eventually("it has left", || (scene.nodes[0].metrics().peers[1].1 == PeerState::Left).then_some(()));
}

/// After the service thread has died, the node's remaining threads cannot access the memory of other nodes.
#[test]
fn a_service_thread_that_panics_takes_its_node_along() {
    struct Panics;
    impl Poller for Panics {
        fn poll(&mut self, _: &Endpoint) -> Progress {
            panic!("it is meant to");
        }
    }
    let _cores = beside("panicking poller");
    let scene = Scene { nodes: session(2, Over::Shm), over: Over::Shm, threads: 1 };
    let vars = scene.open(|node| AtomicVar::open(node, "word", scene.id(0)));
    let (here, there) = (scene.endpoint(0), scene.endpoint(1));
    there.block_on(vars[1].store(&there, 1)).unwrap();
    scene.nodes[1].add_poller(Box::new(Panics));
    let dead = eventually("it is dead", || here.check_alive(scene.id(1)).err());
    assert!(matches!(dead.kind(), FabricError::PeerDead { node, .. } if *node == scene.id(1)), "{dead}");
    eventually("it is evicted", || {
        (scene.nodes[0].status_of(scene.id(1)) == Some(MemberStatus::Evicted)).then_some(())
    });
    let error = there.block_on(vars[1].store(&there, 2)).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Fabric(cause) if matches!(cause.kind(), FabricError::Fenced)), "{error}");
    assert_eq!(here.block_on(vars[0].load(&here)).unwrap(), 1);
}
