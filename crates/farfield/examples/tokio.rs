//! Two nodes whose tasks run in tokio, together with tokio's timers. The first node sends orders and counts the
//! completed ones. The second takes them, one at a time, while a timer ticks.
//!
//! An endpoint belongs to one thread at a time, so its futures are not `Send`. Each node has a current-thread runtime
//! and a `LocalSet`; its tasks share the endpoint.
//!
//! ```sh
//! cargo build --release --bin farfield --examples
//! target/release/examples/tokio                                      # two nodes in one process
//! target/release/farfield run -n 2 -- target/release/examples/tokio  # two processes
//! ```

use std::rc::Rc;
use std::time::Duration;

use farfield::{AtomicVar, Barrier, Endpoint, Node, NodeId, Result, RingBuffer, RingOptions, local_session, on_each};
use tokio::task::{LocalSet, spawn_local};

const ORDERS: u64 = 1000;
const SELLER: NodeId = NodeId(0);
const BUYER: NodeId = NodeId(1);

async fn sell(node: Node, ep: Rc<Endpoint>, done: Rc<AtomicVar>, ring: RingBuffer) -> Result<()> {
    let mut sender = ring.sender()?;
    // Another task of this thread watches the count, with the same endpoint.
    let looks_on = spawn_local({
        let (ep, done) = (Rc::clone(&ep), Rc::clone(&done));
        async move {
            let mut seen = 0;
            while seen < ORDERS {
                seen = done.wait_change(&ep, seen, ep.deadline()).await?;
            }
            Ok::<_, farfield::Error>(seen)
        }
    });
    for order in 0..ORDERS {
        sender.send(&ep, &order.to_le_bytes()).await?;
    }
    let seen = looks_on.await.expect("the task does not panic")?;
    println!("{} has seen all {seen} orders done", node.id());
    Ok(())
}

async fn buy(node: Node, ep: Rc<Endpoint>, done: Rc<AtomicVar>, ring: RingBuffer) -> Result<()> {
    let mut receiver = ring.receiver()?;
    let beats = spawn_local(async {
        let mut beats = tokio::time::interval(Duration::from_millis(1));
        loop {
            beats.tick().await;
        }
    });
    let mut order = Vec::new();
    for expected in 0..ORDERS {
        receiver.recv(&ep, &mut order).await?;
        assert_eq!(order, expected.to_le_bytes(), "an order was lost, repeated or out of order");
        done.fetch_add(&ep, 1).await?;
    }
    beats.abort();
    // A wait that may never end can use tokio's timeouts as well as Farfield's deadlines.
    let none = tokio::time::timeout(Duration::from_millis(5), receiver.recv(&ep, &mut order)).await;
    assert!(none.is_err(), "an order after the last one");
    println!("{} has done {ORDERS} orders", node.id());
    Ok(())
}

fn run(node: &Node) -> Result<()> {
    let (ep, node) = (Rc::new(node.endpoint()?), node.clone());
    let ring = RingBuffer::open(&node, "orders", RingOptions::new(SELLER, [(BUYER, 1)], 4096))?;
    let done = Rc::new(AtomicVar::open(&node, "done", SELLER)?);
    let mut everyone = Barrier::open(&node, "everyone", 1)?.thread()?;

    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    LocalSet::new().block_on(&runtime, async {
        match node.id() {
            SELLER => sell(node, Rc::clone(&ep), done, ring).await?,
            BUYER => buy(node, Rc::clone(&ep), done, ring).await?,
            _ => {}
        }
        everyone.wait(&ep).await // no node leaves while others still read
    })
}

fn main() -> Result<()> {
    if Node::is_launched() { run(&Node::from_environment()?) } else { on_each(&local_session(2)?, run).map(|_| ()) }
}
