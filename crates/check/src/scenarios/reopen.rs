//! Reopening: all that are left agree on a generation of an object, whatever each of them knows, and when.

use std::cell::RefCell;
use std::rc::Rc;

use farfield::fabric::{DeathRule, Endpoint, GroupKey};
use farfield::{Barrier, CustomObject, ErrorKind, Node, NodeId, Opening, Result};

use super::death::{comes_of_faults, goes_on};
use crate::Faults;
use crate::scenario::{Scenario, Stage};

pub(super) fn scenarios() -> Vec<Scenario> {
    vec![twice(), another_dies(), is_cut_off(), joined(), asked()]
}

/// What a node has reopened, kept to the end.
type Kept<T> = Rc<RefCell<Vec<(u16, u64, T)>>>;

fn kept<T: 'static>(stage: &Stage) -> Kept<T> {
    let kept = Kept::default();
    let all = Rc::clone(&kept);
    stage.finally(move || {
        all.take();
        Ok(())
    });
    kept
}

/// Reopens an object with a word on each node, which says of which generation it is, and looks at those of all members.
fn reopen(node: &Node, candidates: &[NodeId]) -> Result<(u64, Vec<NodeId>, CustomObject)> {
    node.reopen_among("words", candidates, |again| {
        let word = node.alloc(GroupKey::SIGNAL, 8)?;
        word.word(0).store(again.generation());
        let object = Opening::new(node, again.path(), "Words").region("word", word).announce()?;
        object.wait(node.timeout())?;
        Ok((again.generation(), again.members().to_vec(), object))
    })
}

/// Finds the words of all members of a generation, if they live.
fn look(ep: &Endpoint, generation: u64, members: &[NodeId], object: &CustomObject) -> Result<()> {
    for member in members {
        match ep.get(object.remote::<u64>(*member, "word")?).wait() {
            Ok(found) => assert_eq!(found, generation, "the word of {member}"),
            Err(error) => assert!(comes_of_faults(&error.clone().into()), "{error}"),
        }
    }
    Ok(())
}

fn all(stage: &Stage) -> Vec<NodeId> {
    stage.nodes().iter().map(Node::id).collect()
}

/// Messages of the first time are late when it happens again.
fn twice() -> Scenario {
    Scenario::new("reopen/twice", "two nodes reopen an object, and again", 2, |stage| {
        let (kept, all) = (kept(stage), all(stage));
        for node in stage.nodes() {
            let (kept, all) = (Rc::clone(&kept), all.clone());
            stage.thread(node.id().index(), "reopens", move |ep| {
                for time in 1..=2 {
                    let (generation, members, object) = reopen(&node, &all)?;
                    assert_eq!((generation, &members), (time, &all));
                    look(ep, generation, &members, &object)?;
                    kept.borrow_mut().push((node.id().0, generation, object));
                }
                Ok(())
            });
        }
        Ok(())
    })
}

/// All three reopen, and may find each other lost at any moment: whoever is left has the same generation.
fn reopens(stage: &Stage) -> Result<()> {
    let (kept, all) = (Kept::default(), all(stage));
    for node in stage.nodes() {
        let (kept, all) = (Rc::clone(&kept), all.clone());
        stage.thread(node.id().index(), "reopens", move |ep| {
            let reopened = reopen(&node, &all);
            if !goes_on(&node) {
                return Ok(());
            }
            let (generation, members, object) = reopened?;
            look(ep, generation, &members, &object)?;
            kept.borrow_mut().push((node.id().0, generation, object));
            Ok(())
        });
    }
    let nodes = stage.nodes();
    stage.finally(move || {
        let kept = kept.take();
        let generations: Vec<(u16, u64)> = kept.iter().map(|it| (it.0, it.1)).collect();
        let left = nodes.iter().filter(|node| goes_on(node)).map(|node| node.id().0);
        for node in left {
            let mine = generations.iter().find(|it| it.0 == node);
            assert_eq!(mine.map(|it| it.1), Some(generations[0].1), "node {node} of {generations:?}");
        }
        Ok(())
    });
    Ok(())
}

/// The second death: one more of those that are left dies while they reopen. For `reopen-uncommitted`,
/// `reopen-members-unchecked`.
fn another_dies() -> Scenario {
    Scenario::new("reopen/another-dies", "three nodes reopen an object, and one dies meanwhile", 3, reopens)
        .faults(Faults::new().crashes(1).of([2]))
        .kills(&["reopen-uncommitted", "reopen-members-unchecked"])
}

/// Where the members decide by a majority, and one is cut off.
fn is_cut_off() -> Scenario {
    Scenario::new("reopen/member-cut", "three nodes reopen an object, and one is cut off meanwhile", 3, reopens)
        .rule(DeathRule::Majority)
        .faults(Faults::new().cuts(1).side([2]))
}

/// One knows nothing of the generations that there were.
fn joined() -> Scenario {
    Scenario::new("reopen/joined", "a node reopens what others have reopened without it", 3, |stage| {
        let before = stage.on_each(|node| match node.id().0 {
            0 | 1 => reopen(node, &[NodeId(0), NodeId(1)]).map(Some),
            _ => Ok(None),
        })?;
        let (kept, all) = (kept(stage), all(stage));
        for (node, before) in stage.nodes().into_iter().zip(before) {
            let (kept, all) = (Rc::clone(&kept), all.clone());
            stage.thread(node.id().index(), "reopens", move |ep| {
                let (generation, members, object) = reopen(&node, &all)?;
                assert_eq!((generation, &members), (2, &all));
                look(ep, generation, &members, &object)?;
                kept.borrow_mut().push((node.id().0, generation, object));
                drop(before);
                Ok(())
            });
        }
        Ok(())
    })
    .kills(&["reopen-generation-own"])
}

/// Who waits at an object that another reopens is told so.
fn asked() -> Scenario {
    Scenario::new("reopen/asked", "a barrier is reopened while a node waits at it", 2, |stage| {
        let barriers = stage.on_each(|node| Barrier::open(node, "meet", 1))?;
        let kept = kept(stage);
        for (node, old) in stage.nodes().into_iter().zip(barriers) {
            let kept = Rc::clone(&kept);
            stage.thread(node.id().index(), "meets", move |ep| {
                let mut old = old.thread()?;
                if node.id().0 == 0 {
                    let told = ep.block_on(old.wait(ep)).expect_err("the other never comes");
                    assert!(matches!(told.kind(), ErrorKind::Reopens { node } if node.0 == 1), "{told}");
                }
                let barrier = node.reopen("meet", |again| Barrier::open(&node, again.path(), 1))?;
                ep.block_on(barrier.thread()?.wait(ep))?;
                if node.id().0 == 0 {
                    let told = ep.block_on(old.wait(ep)).expect_err("the other never comes");
                    assert!(matches!(told.kind(), ErrorKind::Reopened { generation: 1 }), "{told}");
                }
                kept.borrow_mut().push((node.id().0, 0, barrier));
                Ok(())
            });
        }
        Ok(())
    })
}
