//! A service opens and closes objects in four processes, one of which dies. Its memory stays flat.

use std::time::{Duration, Instant};

use farfield::fabric::{ErrorKind as FabricError, NodeId};
use farfield::{
    AtomicVar, Barrier, Endpoint, Error, ErrorKind, MemberStatus, Node, Result, RingBuffer, RingOptions, SharedVar,
};

use crate::session::{STEP_MAX, Session};

const VICTIM: NodeId = NodeId(2);
/// Each round opens four objects.
const ROUNDS: usize = 250;

#[test]
fn a_thousand_objects_on_four_nodes_of_which_one_dies_leave_memory_flat() {
    let mut session = Session::start(module_path!(), "service", 4);
    session.hear(VICTIM, "ready");
    session.kill(VICTIM);
    session.end([0, 1, 3]);
}

/// Not a test: the role of a child process.
#[test]
fn node_process() {
    crate::session::play(Duration::from_secs(20), |role, node, endpoint| match role {
        "service" => service(node, endpoint),
        _ => panic!("no role {role}"),
    });
}

/// Opens four objects, uses them, and closes them. In its last round the victim keeps the first ones open, and waits to
/// be killed.
fn serve(node: &Node, endpoint: &Endpoint, round: usize, is_last: bool) -> Result<()> {
    let path = |kind: &str| format!("{round}/{kind}");
    // Chosen before the victim can be dead: a late node must not open the ring without the victim, since the others
    // never open it once their push has failed.
    let options = RingOptions::broadcast(node, NodeId(0), 1 << 14);
    let var = AtomicVar::open(node, &path("var"), NodeId(0))?;
    let shared = SharedVar::<u64>::open(node, &path("shared"))?;
    endpoint.block_on(var.fetch_add(endpoint, 1))?;
    shared.store(1);
    endpoint.block_on(shared.push_all(endpoint))?;
    if is_last && node.id() == VICTIM {
        println!("ready");
        loop {
            std::thread::park();
        }
    }
    let ring = RingBuffer::open(node, &path("ring"), options)?;
    match node.id() {
        NodeId(0) => endpoint.block_on(ring.sender()?.send(endpoint, b"hello"))?,
        _ => endpoint.block_on(ring.receiver()?.recv(endpoint, &mut Vec::new()))?,
    }
    endpoint.block_on(Barrier::open(node, &path("all"), 1)?.thread()?.wait(endpoint))
}

fn comes_back(node: &Node) {
    let start = Instant::now();
    while node.metrics().memory_bytes > 0 {
        assert!(start.elapsed() < STEP_MAX, "{} bytes are not given back", node.metrics().memory_bytes);
        std::thread::yield_now();
    }
}

fn assert_names_the_dead(error: &Error) {
    let causes = match error.kind() {
        ErrorKind::Fabric(cause) => vec![cause],
        ErrorKind::Missed { nodes } => nodes.iter().map(|(_, cause)| cause).collect(),
        _ => panic!("{error:?}"),
    };
    let is_of_victim = |cause: &FabricError| matches!(cause, FabricError::PeerDead { node: VICTIM, .. });
    assert!(!causes.is_empty() && causes.iter().all(|cause| is_of_victim(cause.kind())), "{error:?}");
}

fn service(node: &Node, endpoint: &Endpoint) -> Result<()> {
    for round in 0..ROUNDS / 2 {
        serve(node, endpoint, round, false)?;
        // A slow node still has only a few objects open.
        let bytes = node.metrics().memory_bytes;
        assert!(bytes < 1 << 17, "{bytes} bytes in round {round}");
    }
    let error = serve(node, endpoint, ROUNDS / 2, true).expect_err("one dies in the middle of it");
    assert_names_the_dead(&error);
    while node.status_of(VICTIM) != Some(MemberStatus::Evicted) {
        std::thread::yield_now();
    }
    for round in ROUNDS / 2 + 1..=ROUNDS {
        serve(node, endpoint, round, false)?;
    }
    comes_back(node);
    assert!(node.metrics().objects.is_empty());
    // All nodes wait here: a node that leaves keeps no memory.
    endpoint.block_on(Barrier::open(node, "end", 1)?.thread()?.wait(endpoint))?;
    Ok(())
}
