//! Closing: memory is freed when all nodes have closed an object, and not before.

use std::rc::Rc;

use farfield_core::fabric::{DeathRule, Endpoint, ErrorKind as FabricError, GroupKey, Word};
use farfield_core::toolkit::{Object, ObjectBuilder};
use farfield_core::{ErrorKind, Node, NodeId, Result};

use crate::refused;
use farfield_check::parts::patiently;
use farfield_check::{Cluster, Faults, Scenario, choose};

pub(super) fn scenarios() -> Vec<Scenario> {
    vec![
        one_works_on(),
        other_works_on(),
        late_works_on(),
        anew_at_once(),
        anew_late(),
        late(),
        detached(),
        suspected(),
        dies(),
        full(),
    ]
}

/// An object with one word on each node.
fn announce(node: &Node) -> Result<Object> {
    let word = node.alloc(GroupKey::SIGNAL, 8)?;
    word.word(0).store(u64::from(node.id().0) + 1);
    ObjectBuilder::new(node, "object", "Words").region("word", word).announce()
}

fn connect(node: &Node) -> Result<Object> {
    let object = announce(node)?;
    object.wait(node.timeout())?;
    Ok(object)
}

/// Connected on all nodes.
fn opened(cluster: &Cluster) -> Result<Vec<Object>> {
    cluster.on_each(connect)
}

/// Finds the word of another node.
fn finds(object: &Object, ep: &Endpoint, peer: NodeId) -> Result<()> {
    let found = ep.get(object.remote::<u64>(peer, "word")?).wait()?;
    assert_eq!(found, u64::from(peer.0) + 1, "the word of {peer}");
    Ok(())
}

/// Waits until all memory of a node is freed.
fn comes_back(node: &Node, ep: &Endpoint) -> Result<()> {
    let is_back = || (node.metrics().memory_bytes == 0).then_some(());
    patiently(|| Ok(ep.block_on(ep.wait_until(ep.deadline(), is_back))?))
}

/// One node closes an object at any moment; the other continues with the memory of both.
fn works_on(name: &str, works: usize) -> Scenario {
    let about = "who has an object open works on when another closes it; then memory comes back";
    Scenario::new(name, about, 2, move |cluster| {
        for (at, object) in opened(cluster)?.into_iter().enumerate() {
            let node = cluster.node(at);
            cluster.thread_that_drops(at, if at == works { "works" } else { "closes" }, move |ep| {
                if at == works {
                    finds(&object, ep, NodeId(1 - at as u16))?;
                    finds(&object, ep, NodeId(1 - at as u16))?;
                }
                drop(object);
                comes_back(&node, ep)
            });
        }
        Ok(())
    })
}

/// The one that works has been answered. For `closing-freed-early`.
fn one_works_on() -> Scenario {
    works_on("close/one", 1).kills(&["closing-freed-early"])
}

/// The one that works was joined.
fn other_works_on() -> Scenario {
    works_on("close/other", 0)
}

/// The nodes have just started: each announces the object to the other when it learns of it.
fn late_works_on() -> Scenario {
    Scenario::new(
        "close/late-works",
        "nodes come and open an object; one closes it, and the other works",
        2,
        |cluster| {
            for at in 0..2 {
                let starter = cluster.starter();
                cluster.thread_without_endpoint(at, if at == 1 { "works" } else { "closes" }, move || {
                    let node = starter.start(at)?;
                    let (object, ep) = (connect(&node)?, node.endpoint()?);
                    if at == 1 {
                        finds(&object, &ep, NodeId(0))?;
                        finds(&object, &ep, NodeId(0))?;
                    }
                    drop(object);
                    comes_back(&node, &ep)
                });
            }
            Ok(())
        },
    )
    .late_nodes()
}

/// A join may arrive twice where nodes have just started. The second is not taken for one of the next opening.
fn anew_late() -> Scenario {
    Scenario::new("close/anew-late", "nodes come, open an object, close it, and open it again", 2, |cluster| {
        let closed = Rc::new(Word::new(0));
        for at in 0..2 {
            let (starter, closed) = (cluster.starter(), Rc::clone(&closed));
            cluster.thread_without_endpoint(at, "opens twice", move || {
                let node = starter.start(at)?;
                let ep = node.endpoint()?;
                drop(connect(&node)?);
                closed.fetch_add(1);
                ep.block_on(ep.wait_until(ep.deadline(), || (closed.load() == 2).then_some(())))?;
                let object = connect(&node)?;
                finds(&object, &ep, NodeId(1 - at as u16))?;
                drop(object);
                comes_back(&node, &ep)
            });
        }
        Ok(())
    })
    .late_nodes()
}

/// A late message about one opening is not taken for the next one. For `closing-late-taken`.
fn anew_at_once() -> Scenario {
    Scenario::new("close/anew", "an object that is opened again at once has memory of its own", 2, |cluster| {
        let meets = cluster.on_each(|node| node.alloc(GroupKey::SIGNAL, 8))?;
        for (at, object) in opened(cluster)?.into_iter().enumerate() {
            let (node, mine, theirs) = (cluster.node(at), meets[at].clone(), meets[1 - at].remote::<u64>(0));
            cluster.thread_that_drops(at, "opens anew", move |ep| {
                drop(object);
                // Waits until the other has dropped it, too.
                ep.put_value(theirs, 1).wait()?;
                ep.block_on(ep.wait_until(ep.deadline(), || (mine.word(0).load() == 1).then_some(())))?;
                let object = connect(&node)?;
                if at == 1 {
                    finds(&object, ep, NodeId(0))?;
                    finds(&object, ep, NodeId(0))?;
                }
                drop(object);
                let is_back = || (node.metrics().memory_bytes == 8).then_some(());
                Ok(ep.block_on(ep.wait_until(ep.deadline(), is_back))?)
            });
        }
        Ok(())
    })
    .kills(&["closing-late-taken"])
}

/// Joins cross with closing: a joining node is connected to an open object, or to none, and all memory is freed.
fn late() -> Scenario {
    Scenario::new("close/late", "nodes come, open an object and close it, whatever crosses", 2, |cluster| {
        for at in 0..2 {
            let starter = cluster.starter();
            cluster.thread_without_endpoint(at, "comes", move || {
                let node = starter.start(at)?;
                drop(announce(&node)?);
                comes_back(&node, &node.endpoint()?)
            });
        }
        Ok(())
    })
    .late_nodes()
}

/// A detached put may be in flight to memory that is freed: it does not change a later use of that memory.
fn detached() -> Scenario {
    Scenario::new("close/detached", "a put that is under way when memory comes back lands nowhere else", 2, |cluster| {
        for (at, object) in opened(cluster)?.into_iter().enumerate() {
            let node = cluster.node(at);
            cluster.thread_that_drops(at, if at == 0 { "uses it again" } else { "puts" }, move |ep| {
                if at == 1 {
                    ep.put_value(object.remote::<u64>(NodeId(0), "word")?, 7).detach()?;
                }
                drop(object);
                comes_back(&node, ep)?;
                let again = node.alloc(GroupKey::SIGNAL, 8)?;
                for _ in 0..3 {
                    assert_eq!(again.word(0).load(), 0, "something of the object has come");
                    ep.block_on(ep.pause());
                }
                Ok(())
            });
        }
        Ok(())
    })
}

/// A node that others suspect, or have decided to be dead, continues with its open objects, or gets an error:
/// unreachable or fenced. For `closing-suspect-not-awaited`.
fn suspected() -> Scenario {
    Scenario::new("close/suspected", "who is suspected finds the memory of what it has open", 3, |cluster| {
        for (at, object) in opened(cluster)?.into_iter().enumerate() {
            cluster.thread_that_drops(at, if at == 2 { "works" } else { "closes" }, move |ep| {
                for _ in 0..2 {
                    if at != 2 {
                        continue;
                    }
                    if let Err(error) = finds(&object, ep, NodeId(0)) {
                        let ErrorKind::Fabric(cause) = error.kind() else { return Err(error) };
                        assert!(!matches!(cause.kind(), FabricError::Freed { .. }), "{cause}");
                    }
                }
                Ok(())
            });
        }
        Ok(())
    })
    .rule(DeathRule::Majority)
    .faults(Faults::new().false_suspicions(1).of([2]))
    .kills(&["closing-suspect-not-awaited"])
}

/// A node dies at any moment: its open objects keep no memory.
fn dies() -> Scenario {
    Scenario::new("close/dies", "the memory that a dead node has used comes back", 3, |cluster| {
        for (at, object) in opened(cluster)?.into_iter().enumerate() {
            let node = cluster.node(at);
            cluster.thread_that_drops(at, "closes", move |ep| {
                drop(object);
                comes_back(&node, ep)
            });
        }
        Ok(())
    })
    .faults(Faults::new().crashes(1).of([2]))
}

/// Messages of a node are refused for a while, as by a full queue. Among them are those that release the openings of
/// the other node. One of these was connected; the other was not, since the object is not opened here, and waits for an
/// answer.
fn full() -> Scenario {
    let about = "memory comes back if messages about a closed object are refused at first";
    Scenario::new("close/full", about, 2, |cluster| {
        let refusals = refused::anywhere::start(cluster, 2)?;
        for (at, object) in opened(cluster)?.into_iter().enumerate() {
            let node = cluster.node(at);
            cluster.thread_that_drops(at, "closes", move |ep| {
                if at == 1 {
                    drop(
                        ObjectBuilder::new(&node, "alone", "Words")
                            .region("word", node.alloc(GroupKey::DATA, 8)?)
                            .announce()?,
                    );
                }
                drop(object);
                comes_back(&node, ep)
            });
        }
        cluster.thread(0, "refuses", move |ep| {
            (0..choose(8)).for_each(|_| ep.block_on(ep.pause()));
            refusals.refuse_messages(1 + choose(3) as u32);
            Ok(())
        });
        Ok(())
    })
    .late_nodes()
}
