//! Turns that are not taken, and holders that have left or died: how long a lock stays with them.

use std::cell::Cell;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use farfield_core::fabric::{DeathRule, Instant, Word};
use farfield_core::objects::mutex::{BYPASS_MAX, STUCK_LONG, STUCK_SHORT};
use farfield_core::{Endpoint, Guard, LEAVE_TIMEOUT, MemberStatus, Mutex, MutexArray, Node, NodeId, Result, WaitLimit};

use super::{Poll, poll_fn};
use crate::keep;
use farfield_check::parts::{Excuse, cut};
use farfield_check::{Cluster, Faults, Scenario, choose, crashed, was_paused};

pub(super) fn scenarios() -> Vec<Scenario> {
    vec![
        passed_over(),
        many_passed_over(),
        turn_dropped(),
        young_turns(),
        begun(),
        behind_one_that_left(),
        behind_dead_waiter(),
        of_the_dead(),
    ]
}

/// The lock, with its word on the last node.
fn open(cluster: &Cluster, home: u16) -> Result<Vec<Rc<Mutex>>> {
    cluster.on_each(move |node| Mutex::open(node, "lock", NodeId(home)).map(Rc::new))
}

/// Polls a call for a lock that is held until it has a ticket. Returns whether it waits: a paused thread may find that
/// its time is over.
async fn draw<'a>(ep: &Endpoint, mut waiting: Pin<&mut impl Future<Output = Result<Guard<'a>>>>) -> bool {
    let looks = ep.counts().gets;
    // It reads the word when it has its ticket.
    poll_fn(|cx| match waiting.as_mut().poll(cx) {
        Poll::Ready(Ok(_)) => panic!("it has taken a lock that is held"),
        Poll::Ready(Err(_)) => Poll::Ready(false),
        Poll::Pending if ep.counts().gets > looks => Poll::Ready(true),
        Poll::Pending => Poll::Pending,
    })
    .await
}

/// Waits until a node knows that another one has left.
fn departs(ep: &Endpoint, node: &Node, leaving: NodeId) -> Result<()> {
    let has_left = || (node.status_of(leaving) == Some(MemberStatus::Departed)).then_some(());
    Ok(ep.block_on(ep.wait_until(Instant::NEVER, has_left))?)
}

/// Leaves, and returns how long that takes.
fn leave(node: Node) -> Duration {
    let (start, fabric) = (node.now(), Arc::clone(node.transport()));
    node.leave();
    fabric.now() - start
}

/// No operation wants the lock, and no ticket is left over: otherwise newcomers could pass it for [`BYPASS_MAX`] times
/// only.
fn is_free<'a>(ep: &Endpoint, mut try_lock: impl FnMut() -> Result<Option<Guard<'a>>>) -> Result<()> {
    for round in 0..BYPASS_MAX + 2 {
        let guard = try_lock()?;
        let guard = guard.unwrap_or_else(|| panic!("no call wants the lock, but it is not free (round {round})"));
        ep.block_on(guard.unlock())?;
    }
    Ok(())
}

/// Waits without doing anything.
fn sleep(ep: &Endpoint, time: Duration) {
    ep.block_on(ep.sleep_until(ep.now() + time));
}

/// A node has left, so a turn that is not taken may have been its own. A call that does not run is passed over: not
/// before the lock was free for a moment, and its turn is old. It draws another ticket, or gives it up and leaves.
fn passed_over() -> Scenario {
    let about = "a call that is passed over takes the lock later, or leaves nothing behind";
    Scenario::new("mutex/passed-over", about, 3, |cluster| {
        let (mutexes, node) = (keep(cluster, open(cluster, 0)?), cluster.node(1));
        cluster.node(2).leave();
        let mutex = Rc::clone(&mutexes[1]);
        cluster.thread_that_drops(1, "waits", move |ep| {
            departs(ep, &node, NodeId(2))?;
            let gives_up = choose(8);
            ep.block_on(async {
                let held = mutex.lock(ep).await?;
                let lock = || mutex.lock_deadline(ep, ep.now() + Duration::from_secs(30));
                let mut first = Box::pin(lock());
                assert!(draw(ep, first.as_mut()).await);
                let mut second = pin!(lock());
                assert!(draw(ep, second.as_mut()).await);
                // The turn is old before the lock is free, or after.
                let is_old = choose(2) == 1;
                let drawn = ep.now();
                if is_old {
                    let soon = ep.now() + 2 * STUCK_LONG;
                    let waits = poll_fn(|cx| match second.as_mut().poll(cx) {
                        Poll::Ready(_) => panic!("it has taken a lock that is held"),
                        Poll::Pending if ep.now() >= soon => Poll::Ready(()),
                        Poll::Pending => Poll::Pending,
                    });
                    waits.await;
                }
                held.unlock().await?;
                let freed = ep.now();
                let passes = second.await?;
                let (alone, old) = (ep.now() - freed, ep.now() - drawn);
                assert!(alone >= STUCK_SHORT && old >= STUCK_LONG, "passed over after {alone:?}, {old:?}");
                assert!(alone <= STUCK_LONG + STUCK_LONG / 4, "it has waited for {alone:?}");
                match gives_up {
                    0 => {
                        passes.unlock().await?;
                        return first.await?.unlock().await;
                    }
                    // It notices that it was passed over, and draws another ticket.
                    polls => drop(cut(polls - 1, first).await.transpose()?),
                }
                passes.unlock().await
            })?;
            // The service thread passes on the turn that was given up.
            sleep(ep, STUCK_SHORT);
            is_free(ep, || ep.block_on(mutex.try_lock(ep)))?;
            drop(mutex);
            let took = leave(node);
            assert!(took < LEAVE_TIMEOUT, "it took {took:?} to leave");
            Ok(())
        });
        Ok(())
    })
}

/// Many calls do not run, and each is passed over after half the time of the one before, down to the least. Of two that
/// do run both look on: a turn that one of them has skipped counts once.
fn many_passed_over() -> Scenario {
    const LOST: usize = 30;
    let about = "turns in a row that are not taken are passed over in half the time of the one before each";
    Scenario::new("mutex/many-passed-over", about, 2, |cluster| {
        let (mutexes, node) = (keep(cluster, open(cluster, 0)?), cluster.node(0));
        cluster.node(1).leave();
        cluster.thread(0, "waits", move |ep| {
            departs(ep, &node, NodeId(1))?;
            let mutex = &mutexes[0];
            for _twice in 0..2 {
                ep.block_on(async {
                    let held = mutex.lock(ep).await?;
                    let mut calls: Vec<_> = (0..LOST + 2).map(|_| Box::pin(mutex.lock(ep))).collect();
                    for call in &mut calls {
                        assert!(draw(ep, call.as_mut()).await);
                    }
                    held.unlock().await?;
                    let start = ep.now();
                    let (mut last, mut first) = (calls.pop().expect("the last"), calls.pop().expect("the one before"));
                    let both = poll_fn(|cx| {
                        assert!(last.as_mut().poll(cx).is_pending(), "it has passed the other");
                        first.as_mut().poll(cx)
                    });
                    let guard = both.await?;
                    let took = ep.now() - start;
                    // 200 + 100 + 50 + 25 + 12.5 + 6.25 ms, and 4 ms for each of the others; a wait may end 20 ms late.
                    // The next round begins with the whole time again.
                    let least = 2 * STUCK_LONG - STUCK_SHORT + (LOST as u32 - 6) * STUCK_SHORT;
                    assert!(
                        (least..least + STUCK_LONG / 2).contains(&took),
                        "it has waited {took:?}, at least {least:?}"
                    );
                    guard.unlock().await?;
                    last.await?.unlock().await?;
                    for call in calls {
                        call.await?.unlock().await?;
                    }
                    Ok::<(), farfield_core::Error>(())
                })?;
            }
            Ok(())
        });
        Ok(())
    })
}

/// A call is dropped between two of its polls, in its turn as well, while another node takes the lock before it.
fn turn_dropped() -> Scenario {
    let about = "a call that is dropped in its turn does not release the lock that another has just taken";
    Scenario::new("mutex/turn-dropped", about, 2, |cluster| {
        let (mutexes, inside) = (keep(cluster, open(cluster, 0)?), Rc::new(Word::new(0)));
        for me in 0..2 {
            let (mutexes, inside) = (Rc::clone(&mutexes), Rc::clone(&inside));
            cluster.thread(me, "locks", move |ep| {
                let lock = async |mutex: &Mutex| -> Result<()> {
                    let guard = mutex.lock(ep).await?;
                    assert_eq!(inside.fetch_add(1), 0, "two hold the lock");
                    ep.pause().await;
                    inside.fetch_add(u64::MAX);
                    guard.unlock().await
                };
                if me == 0 {
                    return (0..3).try_for_each(|_| ep.block_on(lock(&mutexes[0])));
                }
                drop(ep.block_on(cut(4 + choose(8), mutexes[1].lock(ep))).transpose()?);
                ep.block_on(lock(&mutexes[1]))
            });
        }
        Ok(())
    })
}

/// A node has left. The lock is held for long, and a call waits that does not run when it is freed. Its turn is young:
/// neither an attempt that was refused before nor a ticket that was abandoned behind it skips the turn.
fn young_turns() -> Scenario {
    let about = "a turn is not skipped in the moment in which the lock is freed, however long it was held";
    Scenario::new("mutex/young-turns", about, 3, |cluster| {
        let (mutexes, node) = (keep(cluster, open(cluster, 0)?), cluster.node(1));
        cluster.node(2).leave();
        cluster.thread(1, "waits", move |ep| {
            departs(ep, &node, NodeId(2))?;
            let (mutex, tries) = (&mutexes[1], choose(2) == 0);
            // As many as may pass one that waits; then another is refused.
            let pass = async || -> Result<()> {
                for _ in 0..BYPASS_MAX {
                    mutex.try_lock(ep).await?.expect("a newcomer may pass the other").unlock().await?;
                }
                assert!(mutex.try_lock(ep).await?.is_none(), "it has skipped a turn of a live call");
                Ok(())
            };
            ep.block_on(async {
                let mut held = mutex.lock(ep).await?;
                let (mut first, mut last) = (Box::pin(mutex.lock(ep)), Box::pin(mutex.lock(ep)));
                if tries {
                    assert!(draw(ep, last.as_mut()).await);
                    held.unlock().await?;
                    pass().await?;
                    held = last.await?;
                    assert!(draw(ep, first.as_mut()).await);
                } else {
                    assert!(draw(ep, first.as_mut()).await);
                    let given_up = mutex.lock_deadline(ep, ep.now()).await;
                    assert!(given_up.is_err_and(|error| error.is_timeout()), "it is held");
                    assert!(draw(ep, last.as_mut()).await); // behind it, and does not run
                }
                ep.sleep_until(ep.now() + 2 * STUCK_LONG).await;
                held.unlock().await?;
                if tries {
                    pass().await?;
                } else {
                    ep.sleep_until(ep.now() + STUCK_SHORT / 2).await;
                }
                let start = ep.now();
                first.await?.unlock().await?;
                let took = ep.now() - start;
                assert!(took < STUCK_SHORT, "its turn was skipped: it has waited {took:?}");
                Ok(())
            })
        });
        Ok(())
    })
}

/// The rest of a call that has begun is dropped, before its first poll as well.
fn begun() -> Scenario {
    let about = "the dropped rest of a call that has begun does not hold the lock";
    Scenario::new("mutex/begun", about, 2, |cluster| {
        let locks = keep(cluster, cluster.on_each(|node| MutexArray::open(node, "locks", 1))?);
        let inside = Rc::new(Word::new(0));
        let node = cluster.node(0);
        for me in 0..2 {
            let (locks, inside) = (Rc::clone(&locks), Rc::clone(&inside));
            cluster.thread(me, "locks", move |ep| {
                for polls in [choose(6), usize::MAX] {
                    let guard = match locks[me].begin(ep, 0, WaitLimit::Timeout)? {
                        Ok(guard) => Some(guard),
                        Err(rest) if polls == 0 => {
                            drop(rest);
                            None
                        }
                        Err(rest) => ep.block_on(cut(polls - 1, rest)).transpose()?.flatten(),
                    };
                    if let Some(guard) = guard {
                        assert_eq!(inside.fetch_add(1), 0, "two hold the lock");
                        ep.block_on(ep.pause());
                        inside.fetch_add(u64::MAX);
                        ep.block_on(guard.unlock())?;
                    }
                }
                Ok(())
            });
        }
        cluster.at_end(move || {
            let ep = node.endpoint()?;
            is_free(&ep, || ep.block_on(locks[0].try_lock(&ep, 0)))
        });
        Ok(())
    })
}

/// A holder leaves, with the lock or without. A call behind it has given up before. Its node leaves, too: a ticket
/// behind a lock that is never released keeps it no longer.
fn behind_one_that_left() -> Scenario {
    let about = "a node leaves that has given up waiting for one that has left with the lock";
    Scenario::new("mutex/behind-one-that-left", about, 3, |cluster| {
        let (mut mutexes, step) = (open(cluster, 2)?, Rc::new(Word::new(0)));
        let (home, is_released) = (keep(cluster, mutexes.pop()), Rc::new(Cell::new(false)));
        let (gives_up, holds) = (mutexes.pop().expect("of node 1"), mutexes.pop().expect("of node 0"));
        let (node, given_up, releases) = (cluster.node(0), Rc::clone(&step), Rc::clone(&is_released));
        cluster.thread_that_drops(0, "holds", move |ep| {
            let guard = ep.block_on(holds.lock(ep))?;
            given_up.store(1);
            ep.block_on(ep.wait_until(Instant::NEVER, || (given_up.load() == 2).then_some(())))?;
            match choose(2) {
                0 => {
                    releases.set(true);
                    ep.block_on(guard.unlock())?;
                }
                _ => core::mem::forget(guard),
            }
            drop(holds);
            leave(node);
            Ok(())
        });
        let node = cluster.node(1);
        cluster.thread_that_drops(1, "gives up", move |ep| {
            ep.block_on(ep.wait_until(Instant::NEVER, || (step.load() == 1).then_some(())))?;
            let refused = ep.block_on(gives_up.lock_deadline(ep, ep.now()));
            assert!(refused.is_err_and(|error| error.is_timeout()), "another holds it");
            step.store(2);
            if choose(2) == 0 {
                departs(ep, &node, NodeId(0))?;
            }
            drop(gives_up);
            let took = leave(node);
            assert!(took < LEAVE_TIMEOUT, "it took {took:?} to leave");
            Ok(())
        });
        let last = cluster.node(2);
        cluster.at_end(move || {
            let (ep, mutex) = (last.endpoint()?, home.as_ref().as_ref().expect("of node 2"));
            if is_released.get() { is_free(&ep, || ep.block_on(mutex.try_lock(&ep))) } else { Ok(()) }
        });
        Ok(())
    })
}

/// A waiter dies with its ticket. A call behind it has given up, and no other one waits: its node leaves without delay.
fn behind_dead_waiter() -> Scenario {
    let about = "a node that has abandoned a ticket behind a dead waiter leaves without delay, and leaves no ticket";
    Scenario::new("mutex/behind-dead-waiter", about, 3, |cluster| {
        let mutexes = keep(cluster, open(cluster, 0)?);
        let (step, given_up) = (Rc::new(Word::new(0)), Rc::new(Word::new(0)));
        let reaches = |step: &Word, ep: &Endpoint, number: u64| {
            // A crash changes no word of memory, so the wait ends by itself, too.
            while step.load() < number && !crashed(1) {
                ep.block_on(ep.wait_for_change(ep.deadline()));
            }
        };
        let (holds, steps, is_given_up) = (Rc::clone(&mutexes), Rc::clone(&step), Rc::clone(&given_up));
        cluster.thread(0, "holds", move |ep| {
            let guard = ep.block_on(holds[0].lock(ep))?;
            steps.store(1);
            while is_given_up.load() == 0 {
                ep.block_on(ep.wait_for_change(ep.deadline()));
            }
            ep.block_on(guard.unlock())
        });
        let (dies, steps) = (Rc::clone(&mutexes), Rc::clone(&step));
        cluster.thread(1, "dies", move |ep| {
            reaches(&steps, ep, 1);
            let mut waiting = Box::pin(dies[1].lock(ep));
            let waits = ep.block_on(draw(ep, waiting.as_mut()));
            steps.store(2);
            let ends = ep.block_on(async { if waits { waiting.await?.unlock().await } else { Ok(()) } });
            ends.or_else(|error| if was_paused() && error.is_timeout() { Ok(()) } else { Err(error) })
        });
        let (first, mutex) = (cluster.node(0), Rc::clone(&mutexes));
        let abandoned = Rc::new(Cell::new(false));
        let has_abandoned = Rc::clone(&abandoned);
        cluster.at_end(move || {
            let ep = first.endpoint()?;
            sleep(&ep, 2 * STUCK_LONG);
            let is_left = crashed(1) && !has_abandoned.get(); // no call has looked for the dead one's ticket
            if is_left { Ok(()) } else { is_free(&ep, || ep.block_on(mutex[0].try_lock(&ep))) }
        });
        let node = cluster.node(2);
        cluster.thread_that_drops(2, "gives up", move |ep| {
            reaches(&step, ep, 2);
            if step.load() == 2 {
                let refused = ep.block_on(mutexes[2].lock_deadline(ep, ep.now()));
                assert!(refused.is_err_and(|error| error.is_timeout()), "it has passed the others");
                abandoned.set(true);
            }
            given_up.store(1);
            if !crashed(1) {
                return Ok(());
            }
            while node.status_of(NodeId(1)) != Some(MemberStatus::Evicted) {
                ep.block_on(ep.wait_for_change(ep.deadline()));
            }
            let excuse = Excuse::now();
            drop(mutexes);
            let took = leave(node);
            assert!(excuse.is_given() || took < LEAVE_TIMEOUT / 2, "it took {took:?} to leave");
            Ok(())
        });
        Ok(())
    })
    .faults(Faults::new().crashes(1).of([1]))
}

/// The holder dies. Until the members have evicted it a call ends with an error that names it. Then the lock is taken
/// at once, by a call that waits or one that does not.
fn of_the_dead() -> Scenario {
    let about = "the lock of a dead node is taken as soon as that node is evicted, and by every kind of call";
    Scenario::new("mutex/of-the-dead", about, 3, |cluster| {
        let (mutexes, step) = (keep(cluster, open(cluster, 0)?), Rc::new(Word::new(0)));
        let (holds, takes, held) = (Rc::clone(&mutexes[1]), Rc::clone(&mutexes[0]), Rc::clone(&step));
        cluster.thread(1, "holds", move |ep| {
            let guard = ep.block_on(holds.lock(ep))?;
            held.store(1);
            // Perhaps it dies meanwhile.
            sleep(ep, Duration::from_millis(1));
            held.store(2);
            ep.block_on(guard.unlock())
        });
        let node = cluster.node(0);
        cluster.thread(0, "takes", move |ep| {
            let wait = || ep.block_on(ep.wait_for_change(ep.deadline()));
            while step.load() != 1 && !crashed(1) {
                wait();
            }
            if !crashed(1) || step.load() != 1 {
                return Ok(());
            }
            let knows = || node.status_of(NodeId(1)) == Some(MemberStatus::Evicted);
            while ep.check_alive(NodeId(1)).is_ok() {
                wait();
            }
            if !knows() {
                let ends = ep.block_on(takes.lock_deadline(ep, ep.now()));
                let names = ends.as_ref().is_err_and(|error| error.is_gone() && error.node() == Some(NodeId(1)));
                assert!(names || knows(), "{:?}", ends.err());
            }
            while !knows() {
                wait();
            }
            let (excuse, start) = (Excuse::now(), ep.now());
            let guard = match choose(2) {
                0 => ep.block_on(takes.try_lock(ep))?.expect("its holder is evicted"),
                _ => ep.block_on(takes.lock(ep))?,
            };
            let took = ep.now() - start;
            assert!(excuse.is_given() || took < STUCK_LONG / 2, "it has waited for {took:?}");
            assert!(guard.is_poisoned(), "its holder has died");
            ep.block_on(guard.unlock())
        });
        Ok(())
    })
    .rule(DeathRule::Majority)
    .faults(Faults::new().crashes(1).of([1]))
}
