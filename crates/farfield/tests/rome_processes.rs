//! `kill -9` of an owner under load, in a session of real processes: the other partitions go on, and errors say truly what may have happened.

mod session;

use std::time::Duration;

use farfield::rome::RangeUnavailable;
use farfield::{Endpoint, Error, Node, NodeId, Result, RomeKv, RomeKvOptions};

use session::{MEASURED, STEP_MAX, Session, begun};

const PLACES: u16 = 3;
/// Keys of a partition.
const KEYS: u64 = 1000;

/// Node 1 is killed while all nodes change and scan all partitions.
#[test]
fn the_other_partitions_outlive_an_owner() {
    let mut session = Session::start("store", PLACES);
    session.all_begun();
    for node in [0, 2] {
        session.hear(NodeId(node), "calls");
    }
    session.kill(NodeId(1));
    session.end([0, 2]);
}

/// Not a test: the role of a child process.
#[test]
fn node_process() {
    session::play(Duration::from_secs(20), |_, node, endpoint| store(node, endpoint));
}

/// An error of a call; whether the update may have happened.
fn lost(error: &Error) -> bool {
    let lost = error.custom_ref::<RangeUnavailable>().unwrap_or_else(|| panic!("which keys? {error}"));
    assert_eq!((lost.partition, lost.owner), (1, NodeId(1)), "{error}");
    assert!(error.is_gone(), "{error}");
    lost.may_have_happened
}

fn store(node: &Node, endpoint: &Endpoint) -> Result<()> {
    let mut options = RomeKvOptions::new([KEYS, 2 * KEYS]);
    (options.tree.pairs, options.tree.records) = (8, 4);
    let store = RomeKv::<u64, u64>::open(node, "store", options)?;
    let mut thread = store.thread()?;
    begun();
    if node.id() == NodeId(1) {
        // It is killed.
        for round in 1.. {
            endpoint.block_on(thread.put(endpoint, KEYS + round % 100, round))?;
        }
    }
    // This node's keys of all partitions: none but this thread changes them.
    let mine = 500 + u64::from(node.id().0);
    let mut counts = [0u64; 3];
    let (mut gone_since, mut unknown) = (None, 0);
    for round in 1u64.. {
        if round == 300 {
            println!("calls");
        }
        for (partition, count) in counts.iter_mut().enumerate() {
            match endpoint.block_on(thread.put(endpoint, partition as u64 * KEYS + mine, round)) {
                Ok(before) => {
                    assert_eq!(before.unwrap_or(0), *count, "an update has happened twice, or not");
                    *count = round;
                }
                Err(error) => {
                    assert_eq!(partition, 1);
                    unknown += u32::from(lost(&error));
                    gone_since.get_or_insert(round);
                }
            }
        }
        let scanned = endpoint.block_on(async {
            let scan = thread.scan_at_one_instant(endpoint, ..).await?;
            scan.collect(endpoint, usize::MAX).await
        });
        match scanned {
            Ok(pairs) => {
                let count = |partition| {
                    let key = partition as u64 * KEYS + mine;
                    pairs.binary_search_by_key(&key, |pair| pair.0).map_or(0, |at| pairs[at].1)
                };
                assert_eq!([0, 1, 2].map(count), counts);
            }
            Err(error) => {
                assert!(!lost(&error), "a scan changes nothing");
                gone_since.get_or_insert(round);
            }
        }
        if let Some(since) = gone_since {
            // The others go on, one without the other.
            let (mut pairs, mut scan) = (Vec::new(), thread.scan(..));
            loop {
                match endpoint.block_on(scan.next(endpoint, &mut pairs)) {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(error) => {
                        lost(&error);
                        assert!(pairs.iter().all(|pair| pair.0 < KEYS), "what comes before it was delivered");
                        assert_eq!(scan.skip(), Some(1));
                    }
                }
            }
            assert!(pairs.contains(&(mine, round)));
            assert!(pairs.iter().any(|pair| *pair == (2 * KEYS + mine, round)));
            if round - since > 200 {
                println!("{MEASURED}{since} rounds before the death; updates whose effect is unknown: {unknown}");
                break;
            }
        }
    }
    // The other node may still ask this one.
    let other = NodeId(2 - node.id().0);
    endpoint.block_on(thread.put(endpoint, 2 * KEYS * u64::from(other.0 / 2) + 900 + mine % 10, 1)).ok();
    let key = 2 * KEYS * u64::from(node.id().0 / 2) + 900 + u64::from(other.0 % 10);
    let deadline = endpoint.now() + STEP_MAX;
    while endpoint.block_on(thread.get(endpoint, &key))?.is_none() {
        assert!(endpoint.now() < deadline, "the other node has not ended");
        endpoint.block_on(endpoint.wait_until(endpoint.now() + Duration::from_millis(5), || None::<()>)).ok();
    }
    Ok(())
}
