//! A box office: node 0 sells numbered tickets, and all other nodes buy them, one by one, several at a time, and a few
//! again after a timeout that is too short. In the end each ticket was sold once.
//!
//! It shows [`RpcServer`] and [`RpcClient`]: calls of a server on another node, each with its effect once.
//!
//! ```sh
//! cargo build --release --bin farfield --examples
//! target/release/examples/tickets                                      # three nodes in one process
//! target/release/farfield run -n 3 -- target/release/examples/tickets  # three processes
//! ```

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use farfield::{Endpoint, Node, NodeId, Result, RpcClient, RpcOptions, RpcServer, local_session};

/// Tickets that each node buys.
const TICKETS: u64 = 1000;

/// What node 0 has sold: a ticket's number is its place in here.
type Sold = Arc<Mutex<Vec<NodeId>>>;

fn sell(node: &Node, ep: &Endpoint) -> Result<()> {
    let sold = Sold::default();
    let at_server = Arc::clone(&sold);
    // By the service thread: this one may compute meanwhile.
    let sells = move |buyer, count: u64| {
        let mut sold = at_server.lock().unwrap();
        let first = sold.len() as u64;
        sold.extend((0..count).map(|_| buyer));
        first
    };
    let server = RpcServer::<u64, u64>::open_on_service(node, "box office", RpcOptions::default(), sells)?;
    let buyers = node.nodes() as u64 - 1;
    // The buyers leave when they have theirs.
    let have_left = || node.others().all(|buyer| node.has_gone(buyer)).then_some(());
    ep.block_on(ep.wait_until(ep.now() + Duration::from_secs(60), have_left))?;
    drop(server);
    let sold = sold.lock().unwrap().len() as u64;
    assert_eq!(sold, buyers * TICKETS);
    println!("{sold} tickets were sold to {buyers} nodes, each once");
    Ok(())
}

fn buy(node: &Node, ep: &Endpoint) -> Result<()> {
    let office = RpcClient::<u64, u64>::open(node, "box office", NodeId(0), RpcOptions::default())?;
    let mut tickets = BTreeSet::new();
    let mut have = |first: u64, count: u64| {
        for ticket in first..first + count {
            assert!(tickets.insert(ticket), "ticket {ticket} twice");
        }
    };
    ep.block_on(async {
        let mut left = TICKETS;
        // Several in one call, and several calls in one round trip.
        for reply in office.call_many(ep, &[10; 20]).await {
            have(reply?, 10);
            left -= 10;
        }
        // One after the other. Some are waited for too short a time at first: it is the same call afterwards, and the
        // same ticket.
        while left > 0 {
            let mut call = office.begin(ep, &1).await?;
            let ticket = match call.wait_deadline(ep.now() + Duration::from_micros(left % 10)).await {
                Err(error) if error.is_timeout() => call.wait().await?,
                ticket => ticket?,
            };
            have(ticket, 1);
            left -= 1;
        }
        Ok(())
    })
}

fn part(node: &Node) -> Result<()> {
    let ep = node.endpoint()?;
    if node.id() == NodeId(0) { sell(node, &ep) } else { buy(node, &ep) }
}

fn main() -> Result<()> {
    if Node::is_launched() {
        return part(&Node::from_environment()?);
    }
    // The nodes leave when their threads end.
    let nodes = local_session(3)?;
    std::thread::scope(|scope| {
        let threads: Vec<_> = nodes.into_iter().map(|node| scope.spawn(move || part(&node))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })
}
