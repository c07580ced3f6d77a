//! Restarted nodes, without any fault: node 0 has left, and another takes its rank and opens the objects of the others.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use farfield_core::fabric::{DeathRule, Endpoint, GroupKey, Instant, Word};
use farfield_core::toolkit::{Object, ObjectBuilder};
use farfield_core::{AtomicVar, ErrorKind, MemberStatus, Node, NodeId, Reopening, Result};

use farfield_check::{Cluster, Scenario};

pub(super) fn scenarios() -> Vec<Scenario> {
    vec![admitted(), early(), repeated(), outside(), reopened()]
}

const GONE: NodeId = NodeId(0);
/// The node that takes its rank.
const BACK: usize = 3;
const HOME: NodeId = NodeId(1);
const STAYING: [NodeId; 2] = [HOME, NodeId(2)];

fn restarted(name: &str, about: &str, body: impl Fn(&Cluster) -> Result<()> + Send + Sync + 'static) -> Scenario {
    Scenario::new(name, about, 4, body).places(3).rule(DeathRule::Majority)
}

/// Node 0 leaves, and the two others know it.
fn first_leaves(cluster: &Cluster) -> Result<()> {
    cluster.node(0).leave();
    for node in STAYING.map(|node| cluster.node(node.index())) {
        let ep = node.endpoint()?;
        let has_left = || (node.status_of(GONE) == Some(MemberStatus::Departed)).then_some(());
        ep.block_on(ep.wait_until(Instant::NEVER, has_left))?;
    }
    Ok(())
}

/// Starts the new node: it knows the members as soon as it runs.
fn start(starter: &farfield_check::Starter) -> Result<Node> {
    let node = starter.start(BACK)?;
    let members: Vec<NodeId> = node.live_members();
    assert_eq!(members, [HOME, NodeId(2), node.id()], "those that it finds");
    assert_eq!(
        (node.status_of(GONE), node.status_of(node.id())),
        (Some(MemberStatus::Departed), Some(MemberStatus::Member))
    );
    assert_eq!(node.by_name("1"), Some(HOME), "nodes without a name have their number");
    Ok(node)
}

/// Objects and nodes, kept until all threads have ended, so that no node leaves before.
fn keeps(cluster: &Cluster) -> Rc<RefCell<Vec<(Object, Node)>>> {
    let kept: Rc<RefCell<Vec<(Object, Node)>>> = Rc::default();
    let all = Rc::clone(&kept);
    cluster.at_end(move || {
        drop(all.take());
        Ok(())
    });
    kept
}

/// It joins a variable that the others have open, and takes part in it. When all have closed it, its memory is freed.
/// Meanwhile no member disappears from the view of another.
fn admitted() -> Scenario {
    restarted("restart/admitted", "a new node of a rank adds to a variable that the others have open", |cluster| {
        let opened = cluster.on_each(|node| AtomicVar::open(node, "sum", HOME))?;
        let adds = |sum: &AtomicVar, ep: &Endpoint| -> Result<()> {
            let mut seen = ep.block_on(sum.fetch_add(ep, 1))? + 1;
            while seen < 3 {
                seen = ep.block_on(sum.wait_change(ep, seen, ep.deadline()))?;
            }
            Ok(())
        };
        let mut opened = opened.into_iter();
        drop(opened.next());
        first_leaves(cluster)?;
        for (node, sum) in STAYING.into_iter().zip(opened) {
            let me = cluster.node(node.index());
            let seen = me.clone();
            cluster.invariant("members stay", move || {
                let count = seen.members().count();
                if count < 3 { Err(format!("{} knows of {count} nodes", seen.id())) } else { Ok(()) }
            });
            cluster.thread_that_drops(node.index(), "adds", move |ep| {
                adds(&sum, ep)?;
                drop(sum);
                let is_back = || (me.metrics().memory_bytes == 0).then_some(());
                Ok(ep.block_on(ep.wait_until(ep.deadline(), is_back))?)
            });
        }
        let starter = cluster.starter();
        cluster.thread_without_endpoint(BACK, "comes", move || {
            let node = start(&starter)?;
            let (sum, ep) = (AtomicVar::open(&node, "sum", HOME)?, node.endpoint()?);
            adds(&sum, &ep)
        });
        Ok(())
    })
}

/// An object of two nodes with a word on the first, which admits new nodes.
fn pair(node: &Node, participants: &[NodeId]) -> Result<Object> {
    let expect = |peer| if peer == HOME { vec![("word".into(), 8)] } else { vec![] };
    let mut opening = ObjectBuilder::new(node, "pair", "Pair").participants(participants.iter().copied());
    if node.id() == HOME {
        let word = node.alloc(GroupKey::SIGNAL, 8)?;
        word.word(0).store(7);
        opening = opening.region("word", word);
    }
    opening.require_regions(expect).takes_in_returned().announce()
}

/// Its join may arrive before the object is open between the others.
fn early() -> Scenario {
    restarted("restart/early", "a new node of a rank joins an object while the others open it", |cluster| {
        first_leaves(cluster)?;
        let (kept, announced) = (keeps(cluster), Rc::new(Word::new(0)));
        let finds = |object: &Object, ep: &Endpoint| -> Result<()> {
            object.wait(object.node().timeout())?;
            assert_eq!(ep.get(object.remote::<u64>(HOME, "word")?).wait()?, 7);
            Ok(())
        };
        for node in STAYING.map(|node| cluster.node(node.index())) {
            let (kept, announced) = (Rc::clone(&kept), Rc::clone(&announced));
            cluster.thread(node.id().index(), "opens", move |ep| {
                let object = pair(&node, &STAYING)?;
                announced.fetch_add(1);
                finds(&object, ep)?;
                kept.borrow_mut().push((object, node.clone()));
                Ok(())
            });
        }
        let starter = cluster.starter();
        cluster.thread_without_endpoint(BACK, "comes", move || {
            let node = start(&starter)?;
            let ep = node.endpoint()?;
            ep.block_on(ep.wait_until(Instant::NEVER, || (announced.load() == 2).then_some(())))?;
            let object = pair(&node, &[HOME, NodeId(2), node.id()])?;
            finds(&object, &ep)?;
            kept.borrow_mut().push((object, node));
            Ok(())
        });
        Ok(())
    })
}

/// An opening that fails has admitted no node: it is repeated with the new one as a participant.
fn repeated() -> Scenario {
    restarted("restart/repeated", "an opening fails, and is repeated with the new node of a rank", |cluster| {
        first_leaves(cluster)?;
        let (kept, failed) = (keeps(cluster), Rc::new(Word::new(0)));
        let all = [1, 2, BACK as u16].map(NodeId);
        for node in STAYING.map(|node| cluster.node(node.index())) {
            let (kept, failed) = (Rc::clone(&kept), Rc::clone(&failed));
            cluster.thread(node.id().index(), "opens", move |ep| {
                if node.id() == HOME {
                    let alone = pair(&node, &STAYING)?.wait(Duration::from_millis(1));
                    assert!(alone.is_err_and(|error| error.is_timeout()), "node 2 has not opened it");
                    failed.store(1);
                }
                let is_known = || (failed.load() == 1 && node.live_members() == all).then_some(());
                ep.block_on(ep.wait_until(Instant::NEVER, is_known))?;
                let object = pair(&node, &all)?;
                object.wait(node.timeout())?;
                kept.borrow_mut().push((object, node.clone()));
                Ok(())
            });
        }
        let starter = cluster.starter();
        cluster.thread_without_endpoint(BACK, "comes", move || {
            let node = start(&starter)?;
            let object = pair(&node, &all)?;
            object.wait(node.timeout())?;
            kept.borrow_mut().push((object, node));
            Ok(())
        });
        Ok(())
    })
}

/// An object with a word on each node. One that admits new nodes has a word on the first only.
fn words(node: &Node, path: &str, layout: &str) -> Result<ObjectBuilder> {
    let word = node.alloc(GroupKey::SIGNAL, 8)?;
    let opening = ObjectBuilder::new(node, path, "Words").layout(layout).region("word", word);
    Ok(if path == "admits" { opening.takes_in_returned() } else { opening })
}

/// The timeout names the nodes that have the object open, the reason why they do not admit the new one, and the remedy.
fn is_outside(object: &Object, why: &str) {
    let node = object.node();
    let error = object.wait(node.timeout()).expect_err("it is not admitted");
    let ErrorKind::Timeout { missing, .. } = error.kind() else { panic!("{error}") };
    assert_eq!(missing[..], STAYING, "{error}");
    let text = error.to_string();
    assert!([why, "Node::reopen", object.path()].iter().all(|part| text.contains(part)), "{why}: {error}");
}

/// The nodes that have it open work on. A set of participants that is just wrong is an error at once.
fn outside() -> Scenario {
    restarted("restart/outside", "a new node of a rank is told why it cannot join an object", |cluster| {
        let opened = cluster.on_each(|node| {
            let all = (words(node, "parts", "")?.announce()?, words(node, "admits", "")?.announce()?);
            [&all.0, &all.1].into_iter().try_for_each(|object| object.wait(node.timeout()))?;
            Ok(all)
        })?;
        let mut opened = opened.into_iter();
        drop(opened.next());
        first_leaves(cluster)?;
        let opened: Vec<_> = opened.collect();
        let later = STAYING.map(|node| words(&cluster.node(node.index()), "later", "")?.announce());
        let (starter, kept) = (cluster.starter(), keeps(cluster));
        for object in later {
            let object = object?;
            object.wait(object.node().timeout())?;
            kept.borrow_mut().push((object, cluster.node(1)));
        }
        let works = move |ep: &Endpoint| {
            let all = opened.iter().flat_map(|(parts, admits)| [parts, admits]);
            all.filter(|object| object.node().id() == ep.me()).try_for_each(|object| {
                STAYING.iter().try_for_each(|node| Ok(ep.get(object.remote::<u64>(*node, "word")?).wait().map(drop)?))
            })
        };
        cluster.thread(1, "works", works);
        cluster.thread_without_endpoint(BACK, "comes", move || {
            let node = start(&starter)?;
            is_outside(&words(&node, "parts", "")?.announce()?, "a part for each node");
            is_outside(&words(&node, "later", "")?.announce()?, "a part for each node");
            is_outside(&words(&node, "admits", "another")?.announce()?, "its layout is");
            let wrong = words(&node, "admits", "")?.participants([HOME, node.id()]).announce()?;
            let error = wrong.wait(node.timeout()).expect_err("node 2 takes part, too");
            assert!(matches!(error.kind(), ErrorKind::Mismatch { node: HOME, .. }), "{error}");
            let stranger = words(&node, "parts", "")?.participants([node.id(), NodeId(4)]).announce();
            assert!(stranger.is_err_and(|error| matches!(error.kind(), ErrorKind::Config { .. })), "no such member");
            kept.borrow_mut().push((words(&node, "kept", "")?.announce()?, node));
            Ok(())
        });
        Ok(())
    })
    .kills(&["join-outside-differs"])
}

/// The others have reopened two objects, and have dropped the old one of the first.
fn reopened() -> Scenario {
    const PATHS: [&str; 2] = ["dropped", "held"];
    restarted("restart/reopened", "a new node of a rank is told that an object was reopened", |cluster| {
        let old = cluster.on_each(|node| {
            let open = |path| words(node, path, "")?.announce();
            let [dropped, held] = [open(PATHS[0])?, open(PATHS[1])?];
            [&dropped, &held].into_iter().try_for_each(|object| object.wait(node.timeout()))?;
            Ok(held)
        })?;
        let mut old = old.into_iter();
        drop(old.next());
        first_leaves(cluster)?;
        let done = Rc::new(Word::new(0));
        for (node, held) in STAYING.into_iter().zip(old) {
            let (node, done) = (cluster.node(node.index()), Rc::clone(&done));
            cluster.thread_that_drops(node.id().index(), "reopens", move |ep| {
                let reopen = |path| {
                    let open = |again: &Reopening| words(&node, again.path(), "")?.open();
                    node.reopen_among(path, &STAYING, open)
                };
                let new = [reopen(PATHS[0])?, reopen(PATHS[1])?];
                done.fetch_add(1);
                ep.block_on(ep.wait_until(Instant::NEVER, || (done.load() == 3).then_some(())))?;
                drop((held, new));
                Ok(())
            });
        }
        let starter = cluster.starter();
        cluster.thread_without_endpoint(BACK, "comes", move || {
            let node = start(&starter)?;
            let ep = node.endpoint()?;
            ep.block_on(ep.wait_until(Instant::NEVER, || (done.load() == 2).then_some(())))?;
            for path in PATHS {
                is_outside(&words(&node, path, "")?.announce()?, "it has been reopened since");
            }
            done.fetch_add(1);
            Ok(())
        });
        Ok(())
    })
}
