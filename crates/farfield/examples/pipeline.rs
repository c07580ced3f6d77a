//! A pipeline: the first node produces messages, each node between adds its mark to every one of them, the last node
//! checks that all have come, once, in order, and with every mark.
//!
//! It shows [`RingBuffer`]: one writer, a credit that makes a fast one wait for a slow reader, and an orderly end.
//!
//! ```sh
//! cargo build --release --bin farfield --examples
//! target/release/examples/pipeline                                      # three nodes in one process
//! target/release/farfield run -n 3 -- target/release/examples/pipeline  # three processes, or more for more stages
//! ```

use farfield::{
    Endpoint, Node, NodeId, Result, RingBuffer, RingOptions, RingReceiver, RingSender, local_session, on_each,
};

const MESSAGES: u64 = 200_000;
/// Small, so that the credit matters.
const RING_BYTES: usize = 4096;

/// Opens the ring between two neighbours. Only those two take part in it.
fn hop(node: &Node, from: u16) -> Result<RingBuffer> {
    let options = RingOptions::new(NodeId(from), [(NodeId(from + 1), 1)], RING_BYTES);
    RingBuffer::open(node, &format!("pipeline/{from}"), options)
}

/// Sends the empty message that ends the stream, and stays until it has been read.
async fn finish(sender: &mut RingSender, ep: &Endpoint) -> Result<()> {
    sender.send(ep, &[]).await?;
    sender.wait_acknowledged(ep, sender.position(), ep.deadline()).await
}

async fn produce(mut sender: RingSender, ep: &Endpoint) -> Result<()> {
    for number in 0..MESSAGES {
        sender.send(ep, &number.to_le_bytes()).await?;
    }
    finish(&mut sender, ep).await
}

async fn mark(mut receiver: RingReceiver, mut sender: RingSender, ep: &Endpoint) -> Result<()> {
    let mut message = Vec::new();
    loop {
        receiver.recv(ep, &mut message).await?;
        if message.is_empty() {
            return finish(&mut sender, ep).await;
        }
        message.push(ep.me().0 as u8);
        sender.send(ep, &message).await?;
    }
}

async fn consume(mut receiver: RingReceiver, ep: &Endpoint, marks: &[u8]) -> Result<()> {
    let mut message = Vec::new();
    let start = ep.now();
    for number in 0..MESSAGES {
        receiver.recv(ep, &mut message).await?;
        let (body, marked) = message.split_at_checked(8).expect("a message has a number");
        assert_eq!(body, number.to_le_bytes(), "a message was lost, repeated or out of order");
        assert_eq!(marked, marks, "message {number} was not marked by every stage");
    }
    receiver.recv(ep, &mut message).await?;
    assert!(message.is_empty(), "a message after the last one");
    let seconds = (ep.now() - start).as_secs_f64();
    let stages = marks.len();
    println!("{MESSAGES} messages in order through {stages} stages, {:.2} million/s", MESSAGES as f64 / seconds / 1e6);
    Ok(())
}

fn run(node: &Node) -> Result<()> {
    let last = node.nodes() as u16 - 1;
    assert!(last > 0, "a pipeline has at least two nodes");
    let ep = node.endpoint()?;
    match node.id().0 {
        0 => ep.block_on(produce(hop(node, 0)?.sender()?, &ep)),
        me if me == last => {
            let marks: Vec<u8> = (1..last).map(|stage| stage as u8).collect();
            ep.block_on(consume(hop(node, me - 1)?.receiver()?, &ep, &marks))
        }
        me => {
            let (before, after) = (hop(node, me - 1)?, hop(node, me)?);
            ep.block_on(mark(before.receiver()?, after.sender()?, &ep))
        }
    }
}

fn main() -> Result<()> {
    if Node::is_launched() { run(&Node::from_environment()?) } else { on_each(&local_session(3)?, run).map(|_| ()) }
}
