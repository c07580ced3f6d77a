//! Joining: every node that opens an object gets connected, in any order of joins, openings and messages.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use farfield_core::fabric::{DeathRule, Endpoint, GroupKey, Instant, Word};
use farfield_core::toolkit::{Object, ObjectBuilder};
use farfield_core::{AtomicVar, ErrorKind, Mutex, Node, NodeId, Result};

use farfield_check::parts::unless_faults;
use farfield_check::{Cluster, Faults, Scenario};

pub(super) fn scenarios() -> Vec<Scenario> {
    vec![
        present(),
        in_time(),
        coming(),
        third(),
        mismatch(),
        regions(),
        stranger(),
        callbacks(),
        variable(),
        not_needed(),
        evicted(),
        anew(),
        returned(),
    ]
}

/// The objects that the nodes of an execution keep until its end, so that no node leaves while another connects.
type Kept<T> = Rc<RefCell<Vec<T>>>;

fn kept<T: 'static>(cluster: &Cluster) -> Kept<T> {
    let kept = Kept::default();
    let all = Rc::clone(&kept);
    cluster.at_end(move || {
        all.take();
        Ok(())
    });
    kept
}

/// An object with one word on each node.
fn announce(node: &Node, layout: &str) -> Result<Object> {
    let word = node.alloc(GroupKey::SIGNAL, 8)?;
    word.word(0).store(u64::from(node.id().0) + 1);
    let expect = |_| vec![("word".into(), 8)];
    ObjectBuilder::new(node, "object", "Words").layout(layout).region("word", word).require_regions(expect).announce()
}

/// Opens the object, waits for the others, and finds their words.
fn connect(node: &Node) -> Result<Object> {
    let object = announce(node, "one word")?;
    object.wait(node.timeout())?;
    let ep = node.endpoint()?;
    for peer in node.others() {
        let found = ep.get(object.remote::<u64>(peer, "word")?).wait()?;
        assert_eq!(found, u64::from(peer.0) + 1, "the word of {peer}, as {} finds it", node.id());
    }
    Ok(object)
}

/// Opens the object on a node that runs, in a thread.
fn connects(cluster: &Cluster, node: usize, kept: &Kept<Object>) {
    let (kept, node) = (Rc::clone(kept), cluster.node(node));
    cluster.thread_without_endpoint(node.id().index(), "opens", move || {
        let object = connect(&node)?;
        kept.borrow_mut().push(object);
        Ok(())
    });
}

/// Starts a node and opens the object on it, in a thread.
fn comes(cluster: &Cluster, node: usize, kept: &Kept<Object>) {
    let (kept, starter) = (Rc::clone(kept), cluster.starter());
    cluster.thread_without_endpoint(node, "comes", move || {
        // The object keeps its node.
        let object = connect(&starter.start(node)?)?;
        kept.borrow_mut().push(object);
        Ok(())
    });
}

/// Both nodes know each other: a join that arrives too early is ignored, and the last node to open is answered. For
/// `join-not-answered`.
fn present() -> Scenario {
    Scenario::new("join/present", "two nodes that know each other open an object, in any order", 2, |cluster| {
        let opened: Kept<Object> = Kept::default();
        for node in cluster.nodes() {
            let opened = Rc::clone(&opened);
            cluster.thread_without_endpoint(node.id().index(), "opens", move || {
                let object = announce(&node, "one word")?;
                opened.borrow_mut().push(object);
                Ok(())
            });
        }
        cluster.at_end(move || {
            for object in opened.take() {
                for peer in object.node().others() {
                    object.remote::<u64>(peer, "word")?;
                }
            }
            Ok(())
        });
        Ok(())
    })
    .small()
    .kills(&["join-not-answered"])
}

/// The wait for the others may end at any moment, also just when the last one has come.
fn in_time() -> Scenario {
    let about = "a wait for the others that times out names one of them";
    Scenario::new("join/in-time", about, 2, |cluster| {
        let kept = kept(cluster);
        for node in cluster.nodes() {
            let kept = Rc::clone(&kept);
            cluster.thread_without_endpoint(node.id().index(), "opens", move || {
                let object = announce(&node, "one word")?;
                if let Err(error) = object.wait(node.timeout()) {
                    let ErrorKind::Timeout { missing, .. } = error.kind() else { return Err(error) };
                    assert_eq!(missing, &node.others().collect::<Vec<_>>(), "{error}");
                }
                kept.borrow_mut().push(object);
                Ok(())
            });
        }
        Ok(())
    })
    .early_timeouts()
}

/// Opening against joining the session: an object that was opened before its peer is announced when the peer joins. For
/// `join-late-not-announced`, `join-not-answered`.
fn coming() -> Scenario {
    Scenario::new("join/coming", "two nodes come and open an object, in any order", 2, |cluster| {
        let kept = kept(cluster);
        (0..2).for_each(|node| comes(cluster, node, &kept));
        Ok(())
    })
    .late_nodes()
    .kills(&["join-late-not-announced"])
}

/// A node joins late, while two others know each other, or do not yet.
fn third() -> Scenario {
    Scenario::new("join/third", "a third node comes while two open an object", 3, |cluster| {
        (0..2).try_for_each(|node| cluster.start(node).map(drop))?;
        let kept = kept(cluster);
        (0..2).for_each(|node| connects(cluster, node, &kept));
        comes(cluster, 2, &kept);
        Ok(())
    })
    .late_nodes()
}

/// A difference is an error on both sides, no matter which side detects it.
fn mismatch() -> Scenario {
    Scenario::new("join/mismatch", "who opens an object differently is told so, and so is the other", 2, |cluster| {
        let kept = kept(cluster);
        for (node, layout) in [(0, "one word"), (1, "another")] {
            let (kept, starter) = (Rc::clone(&kept), cluster.starter());
            cluster.thread_without_endpoint(node, "opens", move || {
                let node = starter.start(node)?;
                let waited = announce(&node, layout)?.wait(node.timeout());
                let error = waited.expect_err("it was opened differently on the other node");
                let other = NodeId(1 - node.id().0);
                assert!(matches!(error.kind(), ErrorKind::Mismatch { node, .. } if *node == other), "{error}");
                kept.borrow_mut().push(node);
                Ok(())
            });
        }
        Ok(())
    })
    .late_nodes()
}

/// A region that a node needs of the other, which has another. Both learn of it, whichever opens first.
fn regions() -> Scenario {
    Scenario::new(
        "join/regions",
        "who lacks a region that the other needs is told so, and so is the other",
        2,
        |cluster| {
            let kept = kept(cluster);
            for at in 0..2 {
                let (kept, starter) = (Rc::clone(&kept), cluster.starter());
                cluster.thread_without_endpoint(at, "opens", move || {
                    let node = starter.start(at)?;
                    let opening =
                        ObjectBuilder::new(&node, "object", "Words").region("word", node.alloc(GroupKey::SIGNAL, 8)?);
                    let needs = move |_| if at == 0 { vec![("word".into(), 16)] } else { vec![] };
                    let object = opening.require_regions(needs).announce()?;
                    let error = object.wait(node.timeout()).expect_err("the word is too small");
                    let other = NodeId(1 - node.id().0);
                    assert!(matches!(error.kind(), ErrorKind::Mismatch { node, .. } if *node == other), "{error}");
                    kept.borrow_mut().push(object);
                    Ok(())
                });
            }
            Ok(())
        },
    )
    .late_nodes()
    .kills(&["join-needs-unchecked"])
}

/// A node that opens an object in which it has no part gets an error; the participants do not notice.
fn stranger() -> Scenario {
    Scenario::new("join/stranger", "a node without a part in an object opens it, and is told so", 3, |cluster| {
        let kept: Kept<Object> = Kept::default();
        // The order in which they are named does not matter.
        for (at, participants) in [(0, [1, 0, 1]), (1, [0, 1, 1])] {
            let node = cluster.start(at)?;
            let opening = ObjectBuilder::new(&node, "object", "Words").participants(participants.map(NodeId));
            kept.borrow_mut().push(opening.region("word", node.alloc(GroupKey::SIGNAL, 8)?).announce()?);
        }
        kept.borrow().iter().try_for_each(|object| object.wait(object.node().timeout()))?;
        let (starter, opened) = (cluster.starter(), Rc::clone(&kept));
        cluster.thread_without_endpoint(2, "comes", move || {
            let node = starter.start(2)?;
            let object = announce(&node, "")?;
            let error = object.wait(node.timeout()).expect_err("it has no part in it");
            assert!(matches!(error.kind(), ErrorKind::Mismatch { .. }), "{error}");
            kept.borrow_mut().push(object);
            Ok(())
        });
        cluster.at_end(move || {
            opened.take().into_iter().filter(|object| object.node().id() != NodeId(2)).try_for_each(|object| {
                object.wait(object.node().timeout())?;
                object.others().try_for_each(|other| object.remote::<u64>(other, "word").map(drop))
            })
        });
        Ok(())
    })
    .late_nodes()
}

/// A node leaves instead of opening two objects. No node waits for it where its memory is not needed; where it is, the
/// error names it.
fn not_needed() -> Scenario {
    let open = |node: &Node, path: &str, home: NodeId| -> Result<Object> {
        let expect = move |peer| if peer == home { vec![("word".into(), 8)] } else { vec![] };
        let mut opening = ObjectBuilder::new(node, path, "Words").participants([0, 1, 2].map(NodeId));
        if node.id() == home {
            opening = opening.region("word", node.alloc(GroupKey::SIGNAL, 8)?);
        }
        opening.require_regions(expect).takes_in_returned().announce()
    };
    let about = "a node leaves while others open objects with and without its memory";
    Scenario::new("join/not-needed", about, 3, move |cluster| {
        let (kept, leaving) = (kept(cluster), cluster.node(0));
        cluster.thread_without_endpoint(0, "leaves", move || {
            leaving.clone().leave();
            Ok(())
        });
        for node in [1, 2].map(|node| cluster.node(node)) {
            let kept = Rc::clone(&kept);
            cluster.thread(node.id().index(), "opens", move |ep| {
                let object = open(&node, "sum", NodeId(1))?;
                object.wait_with(ep, node.timeout())?;
                ep.faa(object.remote::<u64>(NodeId(1), "word")?, 1).wait()?;
                let lost = open(&node, "lost", NodeId(0))?;
                let error = lost.wait_with(ep, node.timeout()).expect_err("its home is gone");
                assert!(error.is_gone() && error.node() == Some(NodeId(0)), "{error}");
                kept.borrow_mut().extend([object, lost]);
                Ok(())
            });
        }
        Ok(())
    })
}

/// A node is suspected without a reason, and removed. The others learn of it one after the other, while all open an
/// object: none takes that for a difference.
fn evicted() -> Scenario {
    Scenario::new("join/evicted", "three nodes open an object, and one of them may be evicted", 3, |cluster| {
        let kept = kept(cluster);
        for node in cluster.nodes() {
            let kept = Rc::clone(&kept);
            cluster.thread_without_endpoint(node.id().index(), "opens", move || {
                let object = announce(&node, "one word")?;
                unless_faults(object.wait(node.timeout()))?;
                kept.borrow_mut().push(object);
                Ok(())
            });
        }
        Ok(())
    })
    .rule(DeathRule::Majority)
    .faults(Faults::new().false_suspicions(1).of([2]))
}

/// Two joins and two answers may cross. Still each node learns of the other's regions once. It sees the other's join at
/// most once, and at least one of them sees it.
fn callbacks() -> Scenario {
    Scenario::new("join/callbacks", "callbacks run once for each peer, whatever crosses", 2, |cluster| {
        let kept = kept(cluster);
        let counts: [[Arc<AtomicU32>; 2]; 2] = Default::default();
        for (at, [joined, connected]) in counts.clone().into_iter().enumerate() {
            let (kept, starter) = (Rc::clone(&kept), cluster.starter());
            cluster.thread_without_endpoint(at, "opens", move || {
                let node = starter.start(at)?;
                let object = ObjectBuilder::new(&node, "object", "Callbacks")
                    .on_join(move |_, _| _ = joined.fetch_add(1, Relaxed))
                    .on_connect(move |_, _| _ = connected.fetch_add(1, Relaxed))
                    .announce()?;
                object.wait(node.timeout())?;
                kept.borrow_mut().push(object);
                Ok(())
            });
        }
        cluster.at_end(move || {
            let [joined, connected] = [0, 1].map(|what| counts.each_ref().map(|counts| counts[what].load(Relaxed)));
            assert_eq!(connected, [1, 1], "how often each node was told that the other is connected");
            assert!(matches!(joined, [1, 0] | [0, 1] | [1, 1]), "how often each was told of a join: {joined:?}");
            Ok(())
        });
        Ok(())
    })
    .late_nodes()
}

/// An object of the library, between a running node and one that joins late.
fn variable() -> Scenario {
    Scenario::new("join/variable", "a variable is shared with a node that comes late", 2, |cluster| {
        let (there, starter, kept) = (cluster.start(0)?, cluster.starter(), kept(cluster));
        let add = move |node: &Node| -> Result<()> {
            let variable = AtomicVar::open(node, "sum", NodeId(0))?;
            let ep = node.endpoint()?;
            let before = ep.block_on(variable.fetch_add(&ep, 1))?;
            if before == 0 {
                ep.block_on(variable.wait_change(&ep, 1, ep.deadline()))?;
            }
            kept.borrow_mut().push(variable);
            Ok(())
        };
        let adds = add.clone();
        cluster.thread_without_endpoint(0, "adds", move || adds(&there));
        cluster.thread_without_endpoint(1, "comes", move || add(&starter.start(1)?));
        Ok(())
    })
    .late_nodes()
}

/// An object that was dropped on all nodes and is opened anew: its peers' words are those of the new opening.
fn anew() -> Scenario {
    Scenario::new("join/anew", "an object that all have dropped can be opened anew", 2, |cluster| {
        let kept = kept(cluster);
        let dropped = cluster.on_each(|node| node.alloc(GroupKey::SIGNAL, 8))?;
        for at in 0..2 {
            let (kept, node) = (Rc::clone(&kept), cluster.node(at));
            let (mine, theirs) = (dropped[at].clone(), dropped[1 - at].remote::<u64>(0));
            cluster.thread(at, "opens", move |ep| {
                drop(connect(&node)?);
                // Waits until the other has dropped it, too.
                ep.put_value(theirs, 1).wait()?;
                ep.block_on(ep.wait_until(ep.deadline(), || (mine.word(0).load() == 1).then_some(())))?;
                let object = connect(&node)?;
                kept.borrow_mut().push(object);
                Ok(())
            });
        }
        Ok(())
    })
    .kills(&["join-late-answer-taken"])
}

/// A node dies, and its next incarnation joins an object that the other has open. It works with that object, also after
/// the other closes it. For `join-returned-untold`.
fn returned() -> Scenario {
    const HOME: NodeId = NodeId(1);
    let open = |node: &Node| Ok((AtomicVar::open(node, "sum", HOME)?, Mutex::open(node, "lock", HOME)?));
    // No addition under the lock is lost, even if a holder dies.
    let add = |(sum, lock): &(AtomicVar, Mutex), ep: &Endpoint| -> Result<u64> {
        ep.block_on(async {
            let mut guard = lock.lock(ep).await?;
            guard.clear_poison();
            let before = sum.load(ep).await?;
            sum.store(ep, before + 1).await?;
            guard.unlock().await?;
            Ok(before + 1)
        })
    };
    let about = "a node dies, and its next life joins a variable and a lock that the others have open, and close";
    Scenario::new("join/returned", about, 4, move |cluster| {
        let mut opened = cluster.on_each(open)?.into_iter();
        let mut next = || opened.next().expect("one for each");
        let dies = next();
        cluster.thread_that_drops(0, "dies", move |ep| {
            unless_faults(add(&dies, ep))?;
            drop(dies);
            Ok(())
        });
        // 1: the next incarnation has joined; 2: no node has died, or it is not admitted in time.
        let came = Rc::new(Word::new(0));
        for node in [1, 2] {
            let (stays, came) = (next(), Rc::clone(&came));
            cluster.thread_that_drops(node, "closes", move |ep| {
                ep.block_on(ep.wait_until(Instant::NEVER, || (came.load() != 0).then_some(())))?;
                drop(stays);
                Ok(())
            });
        }
        let starter = cluster.starter();
        let kept = kept(cluster);
        cluster.thread_without_endpoint(3, "returns", move || {
            let node = match starter.start(3) {
                Ok(node) => node,
                Err(error) if error.is_timeout() => {
                    came.store(2);
                    return Ok(());
                }
                Err(error) => return Err(error),
            };
            let joined = open(&node)?;
            came.store(1);
            let (first, second) = (add(&joined, &node.endpoint()?)?, add(&joined, &node.endpoint()?)?);
            assert!(first < second && second <= 3, "{first}, {second}");
            kept.borrow_mut().push((node, joined));
            Ok(())
        });
        Ok(())
    })
    .places(3)
    .rule(DeathRule::Majority)
    .faults(Faults::new().crashes(1).of([0]))
    .kills(&["join-returned-untold"])
}
