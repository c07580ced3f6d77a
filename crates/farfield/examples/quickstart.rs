//! The program of the README: a key-value store over the memories of all nodes.
//!
//! Without a launcher it is a session of one node; started by `farfield run` it is one of several:
//!
//! ```sh
//! cargo build --release --bin farfield --examples
//! target/release/examples/quickstart
//! target/release/farfield run -n 3 -- target/release/examples/quickstart
//! ```

use farfield::{Barrier, KvOptions, KvStore, Node};

fn main() -> farfield::Result<()> {
    let node = Node::from_environment()?;
    let kv = KvStore::<u64, u64>::open(&node, "squares", KvOptions::default())?;
    let (ep, mut everyone) = (node.endpoint()?, Barrier::open(&node, "everyone", 1)?.thread()?);
    let me = u64::from(node.id().0);
    ep.block_on(async {
        kv.insert(&ep, &me, &(me * me)).await?; // into this node's memory
        everyone.wait(&ep).await?;
        let last = node.nodes() as u64 - 1;
        assert_eq!(kv.get(&ep, &last).await?, Some(last * last)); // one get from another's
        println!("{} found the square of {last}", node.id());
        everyone.wait(&ep).await // nobody leaves while others still read
    })
}
