//! The state after nodes die, or are cut off: which nodes decide it, and what the survivors find.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use farfield_core::fabric::{DeathRule, Endpoint, GroupKey, Instant, Region, Word};
use farfield_core::toolkit::{Poller, Progress};
use farfield_core::{
    Barrier, BarrierThread, Error, Guard, MemberStatus, Mutex, Node, NodeId, Result, RingBuffer, RingOptions,
};

use super::keep;
use farfield_check::parts::{comes_of_faults, cut, goes_on, is_decided, patiently, unless_faults, word};
use farfield_check::{Cluster, Faults, Scenario, choose, crashed, was_paused};

pub(super) fn scenarios() -> Vec<Scenario> {
    vec![
        decided(),
        decided_by_two(),
        prompt(),
        left(),
        returns(),
        holder_dies(),
        holder_is_cut_off(),
        waiter_dies(),
        left_behind(),
        reader_dies(),
        writer_dies(),
        writer_is_cut_off(),
        member_dies(),
        member_is_cut_off(),
        holder_of_two_dies(),
        one_of_two_dies(),
    ]
}

/// In the end, the remaining nodes agree on which of them remain.
fn agree(cluster: &Cluster) {
    let nodes: Vec<Node> = cluster.nodes().to_vec();
    // Suspicion is advisory, and local to each node. The execution may also end before the last node has reported an
    // eviction.
    let decided = |node: &Node, of| match node.status_of(of) {
        Some(MemberStatus::Suspected) => Some(MemberStatus::Member),
        Some(MemberStatus::Evicted) => Some(MemberStatus::Dead),
        status => status,
    };
    cluster.at_end(move || {
        let left: Vec<&Node> = nodes.iter().filter(|node| goes_on(node)).collect();
        for node in &left {
            let statuses: Vec<_> = node.members().map(|member| decided(node, member)).collect();
            let first: Vec<_> = node.members().map(|member| decided(left[0], member)).collect();
            assert_eq!((node.epoch(), &statuses), (left[0].epoch(), &first), "{} and {}", node.id(), left[0].id());
            for other in &left {
                assert_eq!(statuses[other.id().index()], Some(MemberStatus::Member), "{} goes on", other.id());
            }
        }
        Ok(())
    });
}

/// Stays until the dead are evicted; it may be evicted itself.
fn stays(cluster: &Cluster, node: usize) {
    let nodes: Vec<Node> = cluster.nodes().to_vec();
    cluster.thread(node, "stays", move |ep| {
        let look = || is_decided(&nodes[node]).then_some(());
        // The wait has no deadline, since the suspicion may be late: without one the wait never ends, which is a
        // failure.
        ep.block_on(ep.wait_until(Instant::NEVER, look))?;
        Ok(())
    });
}

/// A node that is cut off detects it, or is notified. The remaining nodes decide once.
fn decided() -> Scenario {
    Scenario::new("membership/decided", "three nodes, one cut off and one dead: who is left agrees", 3, |cluster| {
        (0..3).for_each(|node| stays(cluster, node));
        agree(cluster);
        Ok(())
    })
    .rule(DeathRule::Majority)
    .faults(Faults::new().crashes(1).cuts(1).false_suspicions(1))
    .kills(&["membership-fenced-in-silence"])
}

fn decided_by_two() -> Scenario {
    Scenario::new("membership/two", "of two that do not hear of each other, the lower goes on", 2, |cluster| {
        (0..2).for_each(|node| stays(cluster, node));
        agree(cluster);
        let nodes: Vec<Node> = cluster.nodes().to_vec();
        cluster.at_end(move || {
            let left = nodes.iter().filter(|node| goes_on(node)).count();
            assert!(left > 0 || crashed(0), "one goes on, unless it has crashed");
            Ok(())
        });
        Ok(())
    })
    .rule(DeathRule::Majority)
    .faults(Faults::new().crashes(1).cuts(1))
    .kills(&["membership-any-half"])
}

/// A poller without work. A service thread with pollers waits in another way than one without.
struct Watches;

impl Poller for Watches {
    fn poll(&mut self, _: &Endpoint) -> Progress {
        Progress::Idle
    }
}

/// The time in which a decision is made at most: the lowest nodes propose first, each 5 ms before the next. A proposal
/// is repeated after 20 ms, so a node that sleeps on a message is found by the time that the decision takes.
const PROMPT: Duration = Duration::from_millis(15);

/// A node is suspected without a reason, by one other node. The members decide without repeating a message.
fn prompt() -> Scenario {
    Scenario::new("membership/prompt", "a decision takes as long as its messages, beside pollers", 3, |cluster| {
        let nodes: Vec<Node> = cluster.nodes().to_vec();
        nodes.iter().for_each(|node| node.add_poller(Box::new(Watches)));
        (0..3).for_each(|node| stays(cluster, node));
        let began = nodes[0].now();
        cluster.at_end(move || {
            for node in &nodes {
                let ep = node.endpoint()?;
                ep.block_on(ep.wait_until(Instant::NEVER, || is_decided(node).then_some(())))?;
            }
            let took = nodes[0].now() - began;
            assert!(took < PROMPT, "the decision took {took:?}: a message was repeated");
            Ok(())
        });
        Ok(())
    })
    .rule(DeathRule::Majority)
    .faults(Faults::new().false_suspicions(1))
}

/// A node leaves while another dies or is cut off.
fn left() -> Scenario {
    Scenario::new("membership/left", "a node leaves in good order, while another dies", 4, |cluster| {
        (0..3).for_each(|node| stays(cluster, node));
        let leaving = cluster.node(3).clone();
        cluster.thread(3, "leaves", move |_| {
            leaving.clone().leave();
            Ok(())
        });
        let nodes: Vec<Node> = cluster.nodes().to_vec();
        cluster.at_end(move || {
            for node in nodes[..3].iter().filter(|node| goes_on(node)) {
                let status = node.status_of(NodeId(3));
                assert!(
                    crashed(3) || matches!(status, Some(MemberStatus::Departed | MemberStatus::Evicted)),
                    "{status:?}"
                );
            }
            Ok(())
        });
        Ok(())
    })
    .rule(DeathRule::Majority)
    .faults(Faults::new().crashes(1).of([0, 1, 2]))
    .kills(&["membership-goes-in-silence"])
}

/// A new node takes the rank of a dead one: all remaining nodes admit it when the dead one is removed, and it works
/// with them.
fn returns() -> Scenario {
    const BACK: NodeId = NodeId(3);
    let meet = |node: &Node, ep: &Endpoint| -> Result<()> {
        assert!(!node.live_members().contains(&NodeId(0)), "one life of a place at a time");
        let barrier = Barrier::open(node, "again", 1)?;
        ep.block_on(barrier.thread()?.wait(ep))
    };
    Scenario::new("membership/returns", "a node dies, or is cut off, and another takes its place", 4, move |cluster| {
        // Whether it has given up: no node had died, or it was not admitted in time. Then the others may miss it, or
        // each other.
        let in_vain = Rc::new(Word::new(0));
        let missed = cluster.log::<NodeId>();
        for node in [1, 2] {
            let (me, in_vain, missed) = (cluster.node(node), Rc::clone(&in_vain), missed.clone());
            cluster.thread(node, "waits", move |ep| {
                let has_come = || me.live_members().contains(&BACK).then_some(true);
                let look = || has_come().or_else(|| (in_vain.load() == 1).then_some(false));
                if !ep.block_on(ep.wait_until(Instant::NEVER, look))? {
                    return Ok(());
                }
                if unless_faults(meet(&me, ep))?.is_none() {
                    missed.push(me.id());
                }
                Ok(())
            });
        }
        let starter = cluster.starter();
        // It stays until all are done.
        let stays = Rc::new(RefCell::new(None));
        let (stayed, was_in_vain) = (Rc::clone(&stays), Rc::clone(&in_vain));
        cluster.at_end(move || {
            assert!(missed.take().is_empty() || was_in_vain.load() == 1, "all were there");
            drop(stayed.take());
            Ok(())
        });
        cluster.thread_without_endpoint(3, "returns", move || {
            match starter.start(3) {
                Ok(me) => {
                    stays.replace(Some(me.clone()));
                    meet(&me, &me.endpoint()?)?;
                }
                Err(error) if error.is_timeout() => in_vain.store(1),
                Err(error) => return Err(error),
            }
            Ok(())
        });
        Ok(())
    })
    .places(3)
    .rule(DeathRule::Majority)
    .faults(Faults::new().crashes(1).cuts(1).of([0]).side([0]))
    .kills(&["membership-let-in-early"])
}

/// Two words on two nodes are equal whenever the lock is free, unless a holder has died.
fn pair(cluster: &Cluster) -> Result<()> {
    let mutexes = cluster.on_each(|node| Mutex::open(node, "lock", NodeId(0)).map(Rc::new))?;
    let words = [word(cluster, 0, "x")?, word(cluster, 2, "y")?];
    for (node, mutex) in mutexes.into_iter().enumerate() {
        let [x, y] = [words[0].remote::<u64>(0), words[1].remote::<u64>(0)];
        cluster.thread(node, "adds", move |ep| {
            let section = async |mut guard: Guard<'_>| -> Result<()> {
                let (a, b) = (ep.get(x).await?, ep.get(y).await?);
                let mut both = a;
                if guard.is_poisoned() {
                    both = a.max(b);
                    guard.clear_poison();
                } else {
                    assert_eq!(a, b, "it is half-written, and nobody says so");
                }
                ep.put_value(x, both + 1).detach()?;
                ep.put_value(y, both + 1).detach()?;
                guard.unlock().await
            };
            unless_faults(ep.block_on(async { section(mutex.lock(ep).await?).await })).map(drop)
        });
    }
    agree(cluster);
    Ok(())
}

/// For the mutants of the death mark.
fn holder_dies() -> Scenario {
    Scenario::new("mutex/holder-dies", "the next holder learns that one died in the middle", 3, pair)
        .faults(Faults::new().crashes(1).of([1]))
        .kills(&["mutex-death-unmarked"])
}

/// A put of a holder that is cut off lands after the cut, unless the holder was evicted before the lock was taken from
/// it.
fn holder_is_cut_off() -> Scenario {
    Scenario::new(
        "mutex/holder-cut",
        "a lock is taken from one that is cut off, and nothing of it lands later",
        3,
        pair,
    )
    .rule(DeathRule::Majority)
    .faults(Faults::new().cuts(1).side([1]))
    .kills(&["membership-own-eviction", "mutex-released-undecided"])
}

/// A dead node is before the ticket of a caller that has given up. No other call wants the lock, so the service thread
/// has to notice: it could not leave before.
fn left_behind() -> Scenario {
    let about = "a node leaves without delay whose abandoned ticket is behind one of a dead node";
    Scenario::new("mutex/left-behind", about, 3, |cluster| {
        let mutexes = cluster.on_each(|node| Mutex::open(node, "lock", NodeId(0)).map(Rc::new))?;
        let step = Rc::new(Word::new(0));
        let (mutex, steps) = (Rc::clone(&mutexes[1]), Rc::clone(&step));
        cluster.thread(1, "holds", move |ep| {
            let guard = ep.block_on(mutex.lock(ep))?;
            steps.store(1);
            ep.block_on(ep.wait_until(Instant::NEVER, || (steps.load() == 2).then_some(())))?;
            ep.block_on(guard.unlock())
        });
        let (mutex, node) = (Rc::clone(&mutexes[2]), cluster.node(2));
        cluster.thread(2, "gives up", move |ep| {
            // Neither a crash nor the members' decision changes a word of memory, so the waits end by themselves, too.
            let wait = || ep.block_on(ep.wait_for_change(ep.deadline()));
            while step.load() != 1 && !crashed(1) {
                wait();
            }
            drop(ep.block_on(cut(1 + choose(4), mutex.lock(ep))));
            if crashed(1) {
                while node.status_of(NodeId(1)) != Some(MemberStatus::Evicted) {
                    wait();
                }
                let start = node.now();
                node.clone().leave();
                let took = node.now() - start;
                assert!(was_paused() || took < Duration::from_secs(1), "it has waited {took:?} for a dead node");
            }
            step.store(2);
            Ok(())
        });
        Ok(())
    })
    .faults(Faults::new().crashes(1).of([1]))
    .kills(&["mutex-ticket-behind-dead"])
}

fn waiter_dies() -> Scenario {
    Scenario::new("mutex/waiter-dies", "the turn of a dead waiter is passed over", 3, |cluster| {
        let mutexes = cluster.on_each(|node| Mutex::open(node, "lock", NodeId(0)).map(Rc::new))?;
        let done = cluster.log();
        for (node, mutex) in mutexes.into_iter().enumerate() {
            let done = done.clone();
            cluster.thread(node, "locks", move |ep| {
                for _ in 0..2 {
                    ep.block_on(async { mutex.lock(ep).await?.unlock().await })?;
                }
                done.push(node);
                Ok(())
            });
        }
        cluster.at_end(move || {
            let done = done.take();
            assert!([0, 2].iter().all(|node| done.contains(node)) && (crashed(1) || done.contains(&1)));
            Ok(())
        });
        agree(cluster);
        Ok(())
    })
    .faults(Faults::new().crashes(1).of([1]))
    .kills(&["mutex-turn-kept"])
}

const RING_BYTES: usize = 64;

/// Node 0 sends to the others. Each receives a prefix of the messages that were sent.
fn stream(cluster: &Cluster, messages: u64) -> Result<()> {
    let rings =
        cluster.on_each(|node| RingBuffer::open(node, "ring", RingOptions::broadcast(node, NodeId(0), RING_BYTES)))?;
    let received = cluster.log();
    for (node, ring) in rings.into_iter().enumerate() {
        let received = received.clone();
        cluster.thread(node, if node == 0 { "sends" } else { "receives" }, move |ep| {
            if node == 0 {
                let mut sender = ring.sender()?;
                for number in 1..=messages {
                    patiently(|| ep.block_on(sender.send(ep, &number.to_le_bytes())))?;
                }
                return Ok(());
            }
            let (mut receiver, mut bytes) = (ring.receiver()?, Vec::new());
            let mut count = 0;
            while count < messages {
                if let Err(error) = patiently(|| ep.block_on(receiver.recv(ep, &mut bytes))) {
                    assert!(crashed(0) && error.is_gone(), "{error}");
                    // The end of the stream is final.
                    assert!(receiver.try_recv(ep, &mut bytes).is_err(), "a message after the end of the stream");
                    break;
                }
                count += 1;
                assert_eq!(bytes, count.to_le_bytes(), "a message that was not sent, or not in its turn");
            }
            received.push((node, count));
            Ok(())
        });
    }
    cluster.at_end(move || {
        let received = received.take();
        for node in [1, 2] {
            let count = received.iter().find(|it| it.0 == node).map_or(0, |it| it.1);
            assert!(crashed(node) || crashed(0) || count == messages, "node {node} has received {count}");
        }
        Ok(())
    });
    agree(cluster);
    Ok(())
}

fn reader_dies() -> Scenario {
    Scenario::new("ring/reader-dies", "a dead reader gives its room back, the other gets all", 3, |cluster| {
        stream(cluster, 7)
    })
    .faults(Faults::new().crashes(1).of([1]))
    .kills(&["ring-dead-reader-awaited"])
}

fn writer_dies() -> Scenario {
    Scenario::new("ring/writer-dies", "the stream ends after the last whole message, for good", 3, |cluster| {
        stream(cluster, 3)
    })
    .faults(Faults::new().crashes(1).of([0]))
}

/// The stream of a writer that is cut off ends when none of its puts can land any more.
fn writer_is_cut_off() -> Scenario {
    Scenario::new("ring/writer-cut", "the stream of a writer that is cut off ends for good", 3, |cluster| {
        let rings = cluster
            .on_each(|node| RingBuffer::open(node, "ring", RingOptions::broadcast(node, NodeId(2), RING_BYTES)))?;
        for (node, ring) in rings.into_iter().enumerate() {
            cluster.thread(node, if node == 2 { "sends" } else { "receives" }, move |ep| {
                if node == 2 {
                    let mut sender = ring.sender()?;
                    for number in 1..=2u64 {
                        if unless_faults(ep.block_on(sender.send(ep, &number.to_le_bytes())))?.is_none() {
                            break;
                        }
                    }
                    return Ok(());
                }
                let (mut receiver, mut bytes) = (ring.receiver()?, Vec::new());
                for count in 1..=2u64 {
                    if let Err(error) = ep.block_on(receiver.recv(ep, &mut bytes)) {
                        assert!(comes_of_faults(&error), "{error}");
                        if error.is_gone() {
                            let again = receiver.try_recv(ep, &mut bytes);
                            assert!(again.is_err(), "a message after the end of the stream");
                        }
                        break;
                    }
                    assert_eq!(bytes, count.to_le_bytes(), "a message that was not sent, or not in its turn");
                }
                Ok(())
            });
        }
        agree(cluster);
        Ok(())
    })
    .rule(DeathRule::Majority)
    .faults(Faults::new().cuts(1).side([2]))
}

fn member_dies() -> Scenario {
    Scenario::new("barrier/member-dies", "who waits for the dead is told, and the survivors meet again", 3, |cluster| {
        let barriers = cluster.on_each(|node| Barrier::open(node, "all", 1))?;
        for (node, barrier) in barriers.into_iter().enumerate() {
            let me = cluster.node(node).clone();
            cluster.thread(node, "meets", move |ep| {
                let mut part = barrier.thread()?;
                let assert_names_the_dead = |error: &Error| {
                    assert!(crashed(2) && error.is_gone() && error.node() == Some(NodeId(2)), "{error}");
                };
                for _ in 0..2 {
                    let again = |part: &mut BarrierThread| ep.block_on(part.retry_wait(ep, ep.deadline()));
                    let passed = ep
                        .block_on(part.wait(ep))
                        .or_else(|error| if error.is_timeout() { patiently(|| again(&mut part)) } else { Err(error) });
                    if let Err(error) = passed {
                        assert_names_the_dead(&error);
                        break;
                    }
                }
                // Some nodes may have passed without knowing of the death.
                loop {
                    match Barrier::open(&me, "again", 1).and_then(|again| ep.block_on(again.thread()?.wait(ep))) {
                        // Time has passed before the death was known: the others may still have it open.
                        Err(error) if error.is_timeout() && (crashed(2) || was_paused()) => return Ok(()),
                        Err(error) => assert_names_the_dead(&error),
                        Ok(()) => return Ok(()),
                    }
                }
            });
        }
        agree(cluster);
        Ok(())
    })
    .faults(Faults::new().crashes(1).of([2]))
    .kills(&["join-epoch-unchecked"])
}

/// A thread that passes finds the puts to it from all that had arrived before, even if one of them, or the thread's own
/// node, was cut off, and the thread had to wait twice.
fn member_is_cut_off() -> Scenario {
    Scenario::new(
        "barrier/member-cut",
        "who passes, at once or at last, sees what the others have put to it",
        3,
        |cluster| {
            let barriers = cluster.on_each(|node| Barrier::open(node, "all", 1))?;
            let words: Vec<Region> = cluster
                .nodes()
                .iter()
                .map(|node| {
                    let region = node.alloc(GroupKey::DATA, 3 * 8)?;
                    node.fabric().label(region.remote(0), 3 * 8, format_args!("put to {}", node.id()));
                    Ok(region)
                })
                .collect::<Result<_>>()?;
            for (me, barrier) in barriers.into_iter().enumerate() {
                let words = words.clone();
                cluster.thread(me, "meets", move |ep| {
                    let mut part = barrier.thread()?;
                    for round in 1..=2u64 {
                        for node in (0..3).filter(|node| *node != me) {
                            // An unreachable node does not get it, and cannot pass.
                            unless_faults(
                                ep.put_value(words[node].remote(8 * me), round).detach().map_err(Error::from),
                            )?;
                        }
                        let passed = ep.block_on(part.wait(ep)).or_else(|error| {
                            if error.is_timeout() {
                                ep.block_on(part.retry_wait(ep, ep.deadline()))
                            } else {
                                Err(error)
                            }
                        });
                        if unless_faults(passed)?.is_none() {
                            return Ok(());
                        }
                        for other in (0..3).filter(|other| *other != me) {
                            let seen = words[me].word(8 * other).load();
                            assert!(
                                seen >= round,
                                "node {me} has passed round {round} without what node {other} had put"
                            );
                        }
                    }
                    Ok(())
                });
            }
            agree(cluster);
            Ok(())
        },
    )
    .rule(DeathRule::Majority)
    .faults(Faults::new().cuts(1).side([2]))
}

// ---- small enough to run all executions ---------------------------------------------------------------------------

/// The `NRW`s of a holder's puts, and the `NAW` of its release. Any of them may be the last to land. For
/// `mutex-death-unmarked`.
fn holder_of_two_dies() -> Scenario {
    let about = "of a pair that a dead holder has put, the next one finds all, or is told that it may be half-written";
    Scenario::new("mutex/holder-of-two-dies", about, 2, |cluster| {
        let mutexes = keep(cluster, cluster.on_each(|node| Mutex::open(node, "lock", NodeId(0)))?);
        let pair = [word(cluster, 0, "x")?, word(cluster, 0, "y")?];
        let there = pair.each_ref().map(|word| word.remote::<u64>(0));
        let (holds, takes) = (Rc::clone(&mutexes), mutexes);
        cluster.thread(1, "holds", move |ep| {
            ep.block_on(async {
                let guard = holds[1].lock(ep).await?;
                there.into_iter().try_for_each(|word| ep.put_value(word, 1).detach())?;
                guard.unlock().await
            })
        });
        let node = cluster.node(0);
        cluster.at_end(move || {
            let ep = node.endpoint()?;
            ep.block_on(async {
                let guard = takes[0].lock(&ep).await?;
                let [x, y] = pair.each_ref().map(|word| word.word(0).load());
                assert!(x == y || guard.is_poisoned(), "it is half-written, and nobody says so");
                assert!(!guard.is_poisoned() || crashed(1), "nobody has died");
                guard.unlock().await
            })
        });
        Ok(())
    })
    .faults(Faults::new().crashes(1).of([1]))
    .small()
}

/// A node that has arrived and waits passes, or learns of the death. The node that may die announces its arrival, and
/// does not wait.
fn one_of_two_dies() -> Scenario {
    Scenario::new("barrier/one-of-two-dies", "who waits for one that dies passes, or is told which", 2, |cluster| {
        let barriers = keep(cluster, cluster.on_each(|node| Barrier::open(node, "all", 1))?);
        let (mut waits, mut comes) = (barriers[0].thread()?, barriers[1].thread()?);
        let ep = cluster.node(0).endpoint()?;
        let alone = ep.block_on(waits.wait_deadline(&ep, ep.now()));
        assert!(alone.is_err_and(|error| error.is_timeout()), "it passed alone");
        cluster.thread(0, "waits", move |ep| {
            if let Err(error) = patiently(|| ep.block_on(waits.retry_wait(ep, ep.deadline()))) {
                assert!(crashed(1) && error.is_gone() && error.node() == Some(NodeId(1)), "{error}");
            }
            Ok(())
        });
        cluster.thread(1, "comes", move |ep| match ep.block_on(comes.wait_deadline(ep, ep.now())) {
            Err(error) if !error.is_timeout() => Err(error),
            _ => Ok(()),
        });
        Ok(())
    })
    .faults(Faults::new().crashes(1).of([1]))
    .small()
}
