//! A store that keeps serving when a node dies: kill one while it works.
//!
//! ```sh
//! cargo build --release --examples
//! export FARFIELD_SESSION=survivors FARFIELD_NODES=3
//! for node in 0 1 2; do FARFIELD_NODE=$node target/release/examples/survivors 10 & done
//! sleep 3; kill -9 $!
//! ```
//!
//! (Do not use `farfield run`, which ends all nodes when one fails.) The first argument is the number of seconds to
//! work. With a second argument, `death`, a node fails unless it has seen another die and continued.

use std::collections::BTreeSet;
use std::error::Error;
use std::time::Duration;

use farfield::{Barrier, Endpoint, KvOptions, KvStore, Node, NodeId, Result};

/// Pairs of each node; their values are in its memory.
const PAIRS: u64 = 100;

/// How long it waits for a death, after its seconds.
const PATIENCE: Duration = Duration::from_secs(10);

/// The observations of a node.
#[derive(Default)]
struct Seen {
    served: u64,
    /// Calls since the first death.
    served_since: u64,
    dead: BTreeSet<NodeId>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let seconds = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(2);
    let wants_a_death = arguments.next().is_some_and(|word| word == "death");

    let node = Node::from_environment()?;
    node.wait_for_all(Duration::from_secs(30))?;
    let store = KvStore::<u64, u64>::open(&node, "pairs", KvOptions::default())?;
    let endpoint = node.endpoint()?;
    for pair in 0..PAIRS {
        endpoint.block_on(store.insert(&endpoint, &key_of(node.id(), pair), &0))?;
    }
    let mut everyone = Barrier::open(&node, "filled", 1)?.thread()?;
    endpoint.block_on(everyone.wait(&endpoint))?;
    println!("{} serves", node.id());

    let (mut seen, end) = (Seen::default(), endpoint.now() + Duration::from_secs(seconds));
    for round in 1.. {
        // On a slow machine a death may become known late. Then it goes on for a while.
        let is_late = wants_a_death && seen.served_since < PAIRS && endpoint.now() < end + PATIENCE;
        if endpoint.now() >= end && !is_late {
            break;
        }
        serve(&node, &store, &endpoint, round, &mut seen)?;
    }
    // No node leaves while others still read. Dead nodes cannot reach the barrier, so the survivors reopen it.
    let mut survivors = node.reopen("filled", |again| Barrier::open(&node, again.path(), 1))?.thread()?;
    endpoint.block_on(survivors.wait(&endpoint))?;
    println!("{}: {} calls, {} of them without {:?}", node.id(), seen.served, seen.served_since, seen.dead);
    if wants_a_death && (seen.dead.is_empty() || seen.served_since < PAIRS) {
        return Err(format!("{} has not gone on after a death", node.id()).into());
    }
    Ok(())
}

fn key_of(node: NodeId, pair: u64) -> u64 {
    u64::from(node.0) << 32 | pair
}

/// Looks up a pair of each node, and changes one of its own.
fn serve(node: &Node, store: &KvStore<u64, u64>, endpoint: &Endpoint, round: u64, seen: &mut Seen) -> Result<()> {
    let pair = round % PAIRS;
    for home in node.members() {
        match endpoint.block_on(store.get(endpoint, &key_of(home, pair))) {
            Ok(value) => {
                assert!(value.is_some(), "{home} has had its pairs from the start");
                seen.count();
            }
            // Values on a dead node are lost; all others remain.
            Err(error) if error.is_gone() => {
                assert_eq!(error.node(), Some(home), "only what lay on the dead is lost");
                if seen.dead.insert(home) {
                    println!("{}: {error}", node.id());
                }
            }
            // The node does not answer: the session decides whether it is dead.
            Err(error) if error.is_unreachable() || error.is_timeout() => {}
            Err(error) => return Err(error),
        }
    }
    match endpoint.block_on(store.update(endpoint, &key_of(node.id(), pair), &round)) {
        Ok(was_there) => {
            assert!(was_there, "{} has its own pairs", node.id());
            seen.count();
            Ok(())
        }
        Err(error) if error.is_unreachable() || error.is_timeout() => Ok(()),
        Err(error) => Err(error),
    }
}

impl Seen {
    fn count(&mut self) {
        self.served += 1;
        self.served_since += u64::from(!self.dead.is_empty());
    }
}
