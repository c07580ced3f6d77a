//! Users of locks that die, are cut off, or find entries of dead nodes.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use farfield_check::parts::{comes_of_faults, patiently, unless_faults};
use farfield_check::{Cluster, Faults, Scenario, crashed};
use farfield_core::{Endpoint, MemberStatus, Node, Result};
use farfield_fabric::{DeathRule, Instant, NodeId, Word};

use super::{Counter, Entries, Open, gives_back, open, open_mcs, open_mcs_for, open_spin};
use crate::{LockArray, LockGuard, McsGuard};

/// Each thread locks and unlocks twice, even if another dies. The live ones complete in the end. Each stays inside for
/// a while.
fn users<L: Entries>(cluster: &Cluster, locks: Vec<Rc<L>>, threads: &'static [usize], stays: Duration) -> Result<()> {
    gives_back(cluster, &locks);
    let x = Counter::new(cluster, 0)?;
    let (done, inside) = (cluster.log(), Rc::new(Cell::new(None::<usize>)));
    let told = Rc::new(Cell::new(0));
    for node in threads {
        let (locks, x, done) = (Rc::clone(&locks[*node]), x.clone(), done.clone());
        let (inside, told) = (Rc::clone(&inside), Rc::clone(&told));
        cluster.thread(*node, "locks", move |ep| {
            for _ in 0..2 {
                let mut guard = patiently(|| ep.block_on(locks.lock(ep, 0)))?;
                // A dead holder stays inside, and the next holder learns of its death.
                let left = inside.replace(Some(*node));
                assert!(left.is_none_or(|left| crashed(left) && guard.is_poisoned()), "{left:?} is inside, too");
                assert!(!guard.is_poisoned() || (1..3).any(crashed), "nobody has died");
                told.set(told.get() + u32::from(guard.is_poisoned()));
                // Long enough for others to notice a death.
                ep.block_on(ep.sleep_until(ep.now() + stays));
                ep.block_on(x.add(ep))?;
                guard.clear_poison();
                inside.set(None);
                ep.block_on(guard.unlock())?;
            }
            done.push(*node);
            Ok(())
        });
    }
    cluster.at_end(move || {
        let done = done.take();
        for node in threads {
            assert!(crashed(*node) || done.contains(node), "node {node} has had its turns");
        }
        // Each holder repairs the deaths that are reported to it. Each dead node had one operation in the queue at a
        // time, and one that had just left and had lost its grant.
        let dead = threads.iter().filter(|node| crashed(**node)).count() as u32;
        assert!(told.get() <= 2 * dead, "{} were told of the death of {dead}", told.get());
        Ok(())
    });
    Ok(())
}

pub(super) fn spin_holder_dies() -> Scenario {
    Scenario::new("spin/holder-dies", "a lock is taken from the dead", 3, |cluster| {
        users(cluster, open_spin(cluster)?, &[0, 1, 2], Duration::ZERO)
    })
    .faults(Faults::new().crashes(1).of([1]))
    .kills(&["spin-holder-kept"])
}

pub(super) fn mcs_user_dies() -> Scenario {
    Scenario::new("mcs/user-dies", "the queue goes on without the dead", 3, |cluster| {
        users(cluster, open_mcs(cluster)?, &[0, 1, 2], Duration::ZERO)
    })
    .faults(Faults::new().crashes(1).of([1]))
}

/// Node 1 has two operations in the queue when it dies, and others are between them and behind them.
pub(super) fn stuck_twice() -> Scenario {
    Scenario::new("mcs/stuck-twice", "of several that are behind the dead, one at a time goes on", 3, |cluster| {
        users(cluster, open_mcs(cluster)?, &[1, 0, 1, 2], Duration::from_millis(100))
    })
    .faults(Faults::new().crashes(1).of([1]))
    .kills(&["mcs-tail-first"])
}

/// A waiter behind the dead one reads the other waiters' descriptors. Meanwhile one of them, at the head, leaves and
/// takes the lock again with the same descriptor: then it is behind the waiter that reads.
pub(super) fn used_again() -> Scenario {
    let about = "what is read of the others is read of one use of their descriptors";
    Scenario::new("mcs/used-again", about, 4, |cluster| {
        let locks = open_mcs(cluster)?;
        let nodes: Vec<Node> = cluster.nodes().to_vec();
        // How many have entered the queue, and how many gets the last one has posted.
        let (came, looks) = (Rc::new(Word::new(0)), Rc::new(Word::new(0)));
        let inside = Rc::new(Cell::new(None::<usize>));
        let enter = move |ep: &Endpoint, guard: &mut McsGuard<'_>| {
            let left = inside.replace(Some(ep.me().index()));
            assert!(left.is_none_or(|left| left == 1 && crashed(1)), "{left:?} is inside, too");
            ep.block_on(ep.sleep_until(ep.now() + Duration::from_millis(1)));
            guard.clear_poison();
            inside.set(None);
        };
        for (turn, node) in [0, 2, 1, 3].into_iter().enumerate() {
            let (locks, node) = (Rc::clone(&locks[node]), nodes[node].clone());
            let (came, looks, enter) = (Rc::clone(&came), Rc::clone(&looks), enter.clone());
            cluster.thread(node.id().index(), ["leads", "follows", "dies", "looks"][turn], move |ep| {
                let waits_for = |come: &Word, count: usize| {
                    let is_dead = || node.status_of(NodeId(1)) != Some(MemberStatus::Member);
                    let come = || (come.load() >= count as u64 || is_dead()).then_some(());
                    ep.block_on(ep.wait_until(Instant::NEVER, come))
                };
                waits_for(&came, turn)?;
                let counts = ep.counts();
                let mut lock = pin!(locks.lock(ep, 0));
                let mut guard = ep.block_on(poll_fn(|cx| {
                    let polled = lock.as_mut().poll(cx);
                    let spent = ep.counts() - counts;
                    // It is in the queue: it has notified its predecessor.
                    if came.load() == turn as u64 && (polled.is_ready() || spent.puts > 0) {
                        came.store(turn as u64 + 1);
                    }
                    if turn == 3 {
                        looks.store(spent.gets);
                    }
                    polled
                }))?;
                if turn == 0 {
                    waits_for(&came, 4)?;
                    // With its sixth get, the last one reads this one's state for the second time.
                    let may_go = || (looks.load() >= 6).then_some(());
                    let _ = ep.block_on(ep.wait_until(ep.now() + Duration::from_secs(1), may_go));
                    ep.block_on(guard.unlock())?;
                    guard = ep.block_on(locks.lock(ep, 0))?;
                }
                enter(ep, &mut guard);
                ep.block_on(guard.unlock())
            });
        }
        Ok(())
    })
    .faults(Faults::new().crashes(1).of([1]))
    .kills(&["mcs-survey-torn"])
}

/// It is unknown whether an attempt that a cut has ended has entered the queue, so its descriptor is not used again.
/// However many attempts there are, they use up only one descriptor.
pub(super) fn home_is_cut_off() -> Scenario {
    let about = "attempts to lock what is out of reach use up no more than one operation";
    Scenario::new("mcs/home-cut", about, 3, |cluster| {
        let locks = Rc::clone(&open_mcs_for(cluster, 2)?[1]);
        cluster.thread(1, "locks", move |ep| {
            for _ in 0..4 {
                match ep.block_on(async { locks.lock(ep, 0).await?.unlock().await }) {
                    Err(error) if !comes_of_faults(&error) => return Err(error),
                    _ => {}
                }
            }
            Ok(())
        });
        Ok(())
    })
    .rule(DeathRule::Majority)
    .faults(Faults::new().cuts(1).side([0]))
    .kills(&["mcs-asks-again"])
}

fn alock_users(name: &str, about: &str, nodes: usize, threads: &'static [usize], stays: Duration) -> Scenario {
    Scenario::new(name, about, nodes, move |cluster| users(cluster, open(cluster)?, threads, stays))
}

pub(super) fn scenarios() -> Vec<Scenario> {
    vec![
        tried_after_death("mcs/tried-after-death", open_mcs),
        tried_after_death("alock/tried-after-death", open),
        slow_behind(),
        seen_whole(),
        lost_release("spin/lost-release", open_spin),
        lost_release("mcs/lost-release", open_mcs),
        lost_release("alock/lost-release", open),
    ]
}

/// The remote queue has only the dead one: the local head detects that.
pub(super) fn last_remote_dies() -> Scenario {
    alock_users("alock/last-remote-dies", "a local head does not wait for the dead", 2, &[0, 1], Duration::ZERO)
        .faults(Faults::new().crashes(1).of([1]))
}

/// Node 1 dies: as the holder, in front of node 2, or behind it.
pub(super) fn holder_dies() -> Scenario {
    alock_users("alock/holder-dies", "the remote queue goes on without a dead holder", 3, &[1, 2], Duration::ZERO)
        .faults(Faults::new().crashes(1).of([1]))
}

/// Node 2 dies between two others: the waiter behind it does not take the lock from a living holder.
pub(super) fn waiter_dies() -> Scenario {
    alock_users(
        "alock/waiter-dies",
        "the remote queue goes on without a dead waiter",
        4,
        &[1, 2, 3],
        Duration::from_millis(100),
    )
    .faults(Faults::new().crashes(1).of([2]))
    .kills(&["mcs-claims-blindly"])
}

/// The same in both cohorts, with one more waiter behind.
pub(super) fn users_die() -> Scenario {
    const THREADS: &[usize] = &[0, 1, 2, 3, 4];
    alock_users("alock/users-die", "both cohorts go on without the dead", 5, THREADS, Duration::from_millis(100))
        .faults(Faults::new().crashes(2).of([1, 2]))
}

/// Node 1 locks, and may die. At the end the lock is free, or its holder is dead.
fn tried_after_death<L: Entries>(name: &str, open: Open<L>) -> Scenario {
    let about = "a try takes the lock of a dead holder, also if nobody has waited for it";
    Scenario::new(name, about, 3, move |cluster| {
        let locks = open(cluster)?;
        gives_back(cluster, &locks);
        let dies = Rc::clone(&locks[1]);
        cluster.thread(1, "dies", move |ep| ep.block_on(async { dies.lock(ep, 0).await?.unlock().await }));
        let (node, locks) = (cluster.node(2), Rc::clone(&locks[2]));
        cluster.at_end(move || {
            let ep = node.endpoint()?;
            for _ in 0..20 {
                if let Some(guard) = ep.block_on(locks.try_lock(&ep, 0))? {
                    return ep.block_on(guard.unlock());
                }
                // The holder's death may not have been decided yet.
                assert!(crashed(1), "nobody has the lock");
                ep.block_on(ep.sleep_until(ep.now() + Duration::from_millis(100)));
            }
            panic!("its holder is dead");
        });
        Ok(())
    })
    .faults(Faults::new().crashes(1).of([1]))
}

/// The home may die at any point of a release. An operation posted once its death is known releases nothing.
fn lost_release<L: Entries>(name: &str, open: Open<L>) -> Scenario {
    let about = "a release that its home has not seen is an error";
    Scenario::new(name, about, 3, move |cluster| {
        let locks = Rc::clone(&open(cluster)?[1]);
        cluster.thread(1, "releases", move |ep| {
            let Some(guard) = unless_faults(ep.block_on(locks.lock(ep, 0)))? else { return Ok(()) };
            let (atomics, was_dead) = (ep.counts().atomics, Cell::new(false));
            let mut release = pin!(guard.unlock());
            let released = ep.block_on(poll_fn(|cx| {
                let is_dead = ep.check_alive(NodeId(0)).is_err();
                was_dead.set(was_dead.get() || (is_dead && ep.counts().atomics == atomics));
                release.as_mut().poll(cx)
            }));
            assert!(released.is_err() || !was_dead.get(), "its home has not released it");
            unless_faults(released).map(|_| ())
        });
        Ok(())
    })
    .faults(Faults::new().crashes(1).of([0]))
}

/// A holder surveys the queue while another node enters it: twice, and the second time with the descriptor of the
/// first.
fn seen_whole() -> Scenario {
    let about = "an operation is seen in the queue together with the one before it";
    Scenario::new("mcs/seen-whole", about, 2, |cluster| {
        let locks = open_mcs(cluster)?;
        // How often the holder has taken the lock, and the other has begun to.
        let (taken, begun) = (Rc::new(Word::new(0)), Rc::new(Word::new(0)));
        let (enters, has_taken, begins) = (Rc::clone(&locks[1]), Rc::clone(&taken), Rc::clone(&begun));
        cluster.thread(1, "enters", move |ep| {
            for turn in 1..=2 {
                ep.block_on(ep.wait_until(Instant::NEVER, || (has_taken.load() == turn).then_some(())))?;
                begins.store(turn);
                ep.block_on(async { enters.lock(ep, 0).await?.unlock().await })?;
            }
            Ok(())
        });
        let holds = Rc::clone(&locks[0]);
        cluster.thread(0, "holds", move |ep| {
            // What was seen of the other's first turn: some of it may be there in the second.
            let mut before = None;
            for turn in 1..=2 {
                let guard = ep.block_on(holds.lock(ep, 0))?;
                taken.store(turn);
                ep.block_on(ep.wait_until(Instant::NEVER, || (begun.load() == turn).then_some(())))?;
                for look in 0..4 {
                    if look == 3 {
                        // Until the other waits.
                        ep.block_on(ep.sleep_until(ep.now() + Duration::from_millis(1)));
                    }
                    let seen = ep.block_on(holds.seen_in_queue(ep, 0))?;
                    let other = seen.into_iter().find(|(id, _)| id.node() == Some(NodeId(1)));
                    let Some((id, pred)) = other.filter(|(id, _)| before.is_none_or(|(earlier, _)| earlier != *id))
                    else {
                        continue;
                    };
                    let is_earlier = before.is_some_and(|(_, earlier)| earlier == pred);
                    assert!(pred.node() == Some(NodeId(0)) && !is_earlier, "{id:?} is behind the holder, not {pred:?}");
                    if look == 3 && turn == 1 {
                        before = Some((id, pred));
                    }
                }
                ep.block_on(guard.unlock())?;
                if before.is_none() {
                    break; // the second turn could not be told from the first
                }
            }
            taken.store(2);
            Ok(())
        });
        Ok(())
    })
}

/// Node 2 may die, so a holder that leaves surveys the queue. The waiter behind it has entered the queue, and is slow
/// to link itself to the holder.
fn slow_behind() -> Scenario {
    let about = "a holder that finds no link is there until the one behind it has made it";
    Scenario::new("mcs/slow-behind", about, 3, |cluster| {
        let (locks, step) = (open_mcs(cluster)?, Rc::new(Word::new(0)));
        gives_back(cluster, &locks);
        let (held, steps) = (Rc::clone(&locks[1]), Rc::clone(&step));
        cluster.thread(1, "holds", move |ep| {
            let guard = ep.block_on(held.lock(ep, 0))?;
            steps.store(1);
            ep.block_on(ep.wait_until(Instant::NEVER, || (steps.load() == 2).then_some(())))?;
            ep.block_on(guard.unlock())
        });
        let locks = Rc::clone(&locks[0]);
        cluster.thread(0, "waits", move |ep| {
            ep.block_on(ep.wait_until(Instant::NEVER, || (step.load() == 1).then_some(())))?;
            let mut lock = pin!(locks.lock(ep, 0));
            let atomics = ep.counts().atomics;
            ep.block_on(poll_fn(|cx| {
                let polled = lock.as_mut().poll(cx);
                assert!(polled.is_pending(), "another has it");
                // The second attempt is the one that finds the holder in the queue.
                if ep.counts().atomics >= atomics + 2 { Poll::Ready(()) } else { Poll::Pending }
            }));
            step.store(2);
            ep.block_on(ep.sleep_until(ep.now() + Duration::from_secs(1)));
            ep.block_on(async { lock.await?.unlock().await })
        });
        Ok(())
    })
    .faults(Faults::new().crashes(1).of([2]))
}
