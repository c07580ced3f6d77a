//! Reopening: all remaining nodes agree on a generation of an object, whatever each of them knows at any time.

mod calls;

use std::cell::RefCell;
use std::rc::Rc;

use farfield_core::fabric::{DeathRule, Endpoint, GroupKey, Instant, Word};
use farfield_core::toolkit::{Object, ObjectBuilder};
use farfield_core::{
    AtomicVar, Barrier, ErrorKind, Mutex, Node, NodeId, OwnedVar, Queue, QueueOptions, Result, RingBuffer, RingOptions,
    SharedVar,
};

use super::keep;
use farfield_check::parts::{comes_of_faults, goes_on};
use farfield_check::{Cluster, Faults, Scenario, was_paused};

pub(super) fn scenarios() -> Vec<Scenario> {
    vec![
        twice(),
        another_dies(),
        is_cut_off(),
        joined(),
        asked(),
        asked_word(),
        asked_lock(),
        stale(),
        calls::coming(),
        calls::comes_meanwhile(),
        calls::fails(),
        calls::in_vain(),
    ]
}

/// The objects that a node has reopened, kept to the end.
type Kept<T> = Rc<RefCell<Vec<(u16, u64, T)>>>;

fn kept<T: 'static>(cluster: &Cluster) -> Kept<T> {
    let kept = Kept::default();
    let all = Rc::clone(&kept);
    cluster.at_end(move || {
        all.take();
        Ok(())
    });
    kept
}

/// Reopens an object with a word on each node, which stores the generation, and reads the words of all members.
fn reopen(node: &Node, candidates: &[NodeId]) -> Result<(u64, Vec<NodeId>, Object)> {
    node.reopen_among("words", candidates, |again| {
        let word = node.alloc(GroupKey::SIGNAL, 8)?;
        word.word(0).store(again.generation());
        let object = ObjectBuilder::new(node, again.path(), "Words").region("word", word).announce()?;
        object.wait(node.timeout())?;
        Ok((again.generation(), again.members().to_vec(), object))
    })
}

/// Reads the words of all live members of a generation.
fn look(ep: &Endpoint, generation: u64, members: &[NodeId], object: &Object) -> Result<()> {
    for member in members {
        match ep.get(object.remote::<u64>(*member, "word")?).wait() {
            Ok(found) => assert_eq!(found, generation, "the word of {member}"),
            Err(error) => assert!(comes_of_faults(&error.clone().into()), "{error}"),
        }
    }
    Ok(())
}

fn all(cluster: &Cluster) -> Vec<NodeId> {
    cluster.nodes().iter().map(Node::id).collect()
}

/// Messages of the first reopening arrive late, during the second.
fn twice() -> Scenario {
    Scenario::new("reopen/twice", "two nodes reopen an object, and again", 2, |cluster| {
        let (kept, all) = (kept(cluster), all(cluster));
        for node in cluster.nodes() {
            let (kept, all) = (Rc::clone(&kept), all.clone());
            cluster.thread_that_drops(node.id().index(), "reopens", move |ep| {
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

/// The one that may die, or be cut off.
const VICTIM: u16 = 2;

/// All three reopen, and one may die or be cut off at any moment. The others end with the same generation. They may
/// detect the fault late. Then they get an error: they have waited for the failed node in vain, or for each other.
fn reopens(cluster: &Cluster, is_cut: bool) -> Result<()> {
    let (ended, all): (Kept<Option<Object>>, _) = (Kept::default(), all(cluster));
    let in_vain = cluster.log::<(u16, Vec<NodeId>)>();
    for node in cluster.nodes() {
        let (ended, in_vain, all) = (Rc::clone(&ended), in_vain.clone(), all.clone());
        cluster.thread_that_drops(node.id().index(), "reopens", move |ep| {
            let reopened = reopen(&node, &all);
            if !goes_on(&node) {
                return Ok(());
            }
            match reopened {
                Ok((generation, members, object)) => {
                    look(ep, generation, &members, &object)?;
                    ended.borrow_mut().push((node.id().0, generation, Some(object)));
                }
                Err(error) => match error.kind() {
                    ErrorKind::Timeout { missing, .. } => _ = in_vain.push((node.id().0, missing.clone())),
                    _ => assert!(node.id().0 == VICTIM && comes_of_faults(&error), "{error}"),
                },
            }
            Ok(())
        });
    }
    let nodes = cluster.nodes();
    cluster.at_end(move || {
        let is_left = |node: u16| node != VICTIM && goes_on(&nodes[usize::from(node)]);
        let (ended, in_vain) = (ended.take(), in_vain.take());
        let generations: Vec<(u16, u64)> = ended.iter().map(|it| (it.0, it.1)).filter(|it| is_left(it.0)).collect();
        assert!(generations.windows(2).all(|two| two[0].1 == two[1].1), "of one generation: {generations:?}");
        for (node, missing) in in_vain.iter().filter(|it| is_left(it.0)) {
            // The last message may arrive too late, where a message or a thread was held up: one node has returned, and
            // another gives up waiting for it.
            let has_ended = |node: &NodeId| (is_cut || was_paused()) && ended.iter().any(|it| it.0 == node.0);
            // A node that was paused may have been evicted.
            let excused =
                |node: &NodeId| !is_left(node.0) || has_ended(node) || in_vain.iter().any(|other| other.0 == node.0);
            assert!(missing.iter().any(excused), "node {node} has waited in vain for {missing:?}, of {generations:?}");
        }
        Ok(())
    });
    Ok(())
}

/// The second death: another of the remaining nodes dies while they reopen. For `reopen-uncommitted`.
fn another_dies() -> Scenario {
    Scenario::new("reopen/another-dies", "three nodes reopen an object, and one dies meanwhile", 3, |cluster| {
        reopens(cluster, false)
    })
    .faults(Faults::new().crashes(1).of([usize::from(VICTIM)]))
    .kills(&["reopen-uncommitted"])
}

/// The members decide by a majority, and one is cut off.
fn is_cut_off() -> Scenario {
    let about = "three nodes reopen an object, and one is cut off meanwhile";
    Scenario::new("reopen/member-cut", about, 3, |cluster| reopens(cluster, true))
        .rule(DeathRule::Majority)
        .faults(Faults::new().cuts(1).side([usize::from(VICTIM)]))
}

/// One node knows nothing of the earlier generations.
fn joined() -> Scenario {
    Scenario::new("reopen/joined", "a node reopens what others have reopened without it", 3, |cluster| {
        let before = cluster.on_each(|node| match node.id().0 {
            0 | 1 => reopen(node, &[NodeId(0), NodeId(1)]).map(Some),
            _ => Ok(None),
        })?;
        let (kept, all) = (kept(cluster), all(cluster));
        for (node, before) in cluster.nodes().into_iter().zip(before) {
            let (kept, all) = (Rc::clone(&kept), all.clone());
            cluster.thread_that_drops(node.id().index(), "reopens", move |ep| {
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

/// A waiter at an object that another node reopens gets an error.
fn asked() -> Scenario {
    Scenario::new("reopen/asked", "a barrier is reopened while a node waits at it", 2, |cluster| {
        let barriers = cluster.on_each(|node| Barrier::open(node, "meet", 1))?;
        let kept = kept(cluster);
        for (node, old) in cluster.nodes().into_iter().zip(barriers) {
            let kept = Rc::clone(&kept);
            cluster.thread_that_drops(node.id().index(), "meets", move |ep| {
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

/// The same for a thread that waits for a word to change.
fn asked_word() -> Scenario {
    Scenario::new("reopen/asked-word", "a word is reopened while a node waits for it to change", 2, |cluster| {
        let words = cluster.on_each(|node| AtomicVar::open(node, "word", NodeId(0)))?;
        let kept = kept(cluster);
        for (node, old) in cluster.nodes().into_iter().zip(words) {
            let kept = Rc::clone(&kept);
            cluster.thread_that_drops(node.id().index(), "waits", move |ep| {
                if node.id().0 == 0 {
                    let told = ep.block_on(old.wait_change(ep, 0, ep.deadline())).expect_err("it never changes");
                    assert!(matches!(told.kind(), ErrorKind::Reopens { node } if node.0 == 1), "{told}");
                }
                let word = node.reopen("word", |again| AtomicVar::open(&node, again.path(), NodeId(0)))?;
                ep.block_on(word.fetch_add(ep, 1))?;
                kept.borrow_mut().push((node.id().0, 0, (old, word)));
                Ok(())
            });
        }
        Ok(())
    })
}

/// The same for a thread that waits for a lock: its holder reopens it.
fn asked_lock() -> Scenario {
    Scenario::new("reopen/asked-lock", "a lock is reopened while a node waits for it", 2, |cluster| {
        let locks = cluster.on_each(|node| Mutex::open(node, "lock", NodeId(0)))?;
        let (kept, step) = (kept(cluster), Rc::new(Word::new(0)));
        for (node, old) in cluster.nodes().into_iter().zip(locks) {
            let (kept, step) = (Rc::clone(&kept), Rc::clone(&step));
            cluster.thread_that_drops(node.id().index(), "locks", move |ep| {
                if node.id().0 == 0 {
                    ep.block_on(ep.wait_until(Instant::NEVER, || (step.load() == 1).then_some(())))?;
                    let told = ep.block_on(old.lock(ep)).err().expect("its holder reopens it");
                    assert!(matches!(told.kind(), ErrorKind::Reopens { node } if node.0 == 1), "{told}");
                } else {
                    core::mem::forget(ep.block_on(old.lock(ep))?);
                    step.store(1);
                }
                let lock = node.reopen("lock", |again| Mutex::open(&node, again.path(), NodeId(0)))?;
                ep.block_on(async { lock.lock(ep).await?.unlock().await })?;
                kept.borrow_mut().push((node.id().0, 0, (old, lock)));
                Ok(())
            });
        }
        Ok(())
    })
}

fn is_stale<T>(done: Result<T>) {
    let stale = done.err().expect("the object was reopened");
    assert!(matches!(stale.kind(), ErrorKind::Reopened { generation: 1 }), "{stale}");
}

/// Calls through the handles from before fail, whatever the object, and change nothing.
fn stale() -> Scenario {
    Scenario::new("reopen/stale", "a handle from before an object was reopened is of no use", 2, |cluster| {
        let home = NodeId(0);
        let old = cluster.on_each(move |node| {
            let ring = RingOptions::new(home, [(home, 1), (NodeId(1), 1)], 64);
            Ok((
                AtomicVar::open(node, "word", home)?,
                SharedVar::<u64>::open(node, "shared")?,
                OwnedVar::<u64>::open(node, "owned", home)?,
                RingBuffer::open(node, "ring", ring)?,
                Queue::<u64>::open(node, "queue", QueueOptions::new(home, 2))?,
                Mutex::open(node, "lock", home)?,
            ))
        })?;
        let new = cluster.on_each(move |node| {
            let names = ["word", "shared", "owned", "ring", "queue", "lock"];
            names.into_iter().map(|name| node.reopen(name, |again| reopened(node, name, again.path()))).collect()
        })?;
        let new: Vec<Vec<Box<dyn std::any::Any>>> = new;
        for (node, (word, shared, owned, ring, queue, lock)) in cluster.nodes().iter().zip(&old) {
            let ep = node.endpoint()?;
            ep.block_on(async {
                is_stale(word.load(&ep).await);
                is_stale(word.fetch_add(&ep, 1).await);
                is_stale(word.compare_exchange(&ep, 0, 1).await);
                is_stale(word.swap(&ep, 1).await);
                is_stale(word.store(&ep, 1).await);
                is_stale(word.wait_change(&ep, 0, ep.deadline()).await);
                is_stale(shared.push_all(&ep).await);
                is_stale(shared.pull(&ep, NodeId(1)).await);
                is_stale(owned.pull(&ep).await);
                is_stale(ring.receiver()?.recv(&ep, &mut Vec::new()).await);
                is_stale(queue.enqueue(&ep, &1).await);
                is_stale(queue.dequeue(&ep).await);
                is_stale(lock.lock(&ep).await);
                is_stale(lock.try_lock(&ep).await);
                if node.id() == home {
                    is_stale(owned.writer()?.push(&ep).await);
                    is_stale(ring.sender()?.try_send(&ep, &[1]));
                }
                Ok::<(), farfield_core::Error>(())
            })?;
        }
        // The data under the lock may be half-written, as after a death.
        for (node, new) in cluster.nodes().iter().zip(&new) {
            let ep = node.endpoint()?;
            let lock: &Mutex = new[5].downcast_ref().expect("the lock");
            let guard = ep.block_on(lock.try_lock(&ep))?.expect("it is free");
            assert!(guard.is_poisoned(), "the holder is not warned");
            ep.block_on(guard.unlock())?;
        }
        keep(cluster, (old, new));
        Ok(())
    })
}

/// One of them.
fn reopened(node: &Node, name: &str, path: &str) -> Result<Box<dyn std::any::Any>> {
    let home = NodeId(0);
    let ring = RingOptions::new(home, [(home, 1), (NodeId(1), 1)], 64);
    Ok(match name {
        "word" => Box::new(AtomicVar::open(node, path, home)?),
        "shared" => Box::new(SharedVar::<u64>::open(node, path)?),
        "owned" => Box::new(OwnedVar::<u64>::open(node, path, home)?),
        "ring" => Box::new(RingBuffer::open(node, path, ring)?),
        "queue" => Box::new(Queue::<u64>::open(node, path, QueueOptions::new(home, 2))?),
        _ => Box::new(Mutex::open(node, path, home)?),
    })
}
