//! Operations that fail, give up, are dropped, or meet the dead: in the end, all entries are free.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use farfield_check::parts::{comes_of_faults, cut, patiently, unless_faults};
use farfield_check::{Faults, Scenario, choose, crashed, was_paused};
use farfield_core::{Endpoint, ErrorKind, MemberStatus, Result};
use farfield_fabric::{Bell, DeathRule, ErrorKind as FabricError, Instant, NodeId, Word};

use super::poison::open_mutexes;
use super::{Counter, Entries, Open, gives_back, open, open_mcs, open_mcs_for, open_spin, section};
use crate::{LockArray, LockGuard};

pub(super) fn scenarios() -> Vec<Scenario> {
    vec![
        next_try("alock/next-try-local", open, [0, 0]),
        next_try("alock/next-try-of-remote", open, [0, 1]),
        next_try("alock/next-try-of-local", open, [1, 0]),
        next_try("alock/next-try-remote", open, [1, 2]),
        next_try("mcs/next-try", open_mcs, [1, 2]),
        next_try("spin/next-try", open_spin, [1, 2]),
        within("alock/within", open, &[0, 1, 2]),
        within("mcs/within", open_mcs, &[1, 2]),
        left_behind("alock/left-behind", open),
        left_behind("mcs/left-behind", |cluster| open_mcs_for(cluster, 2)),
        tries_behind("alock/tries-behind", open),
        tries_behind("mcs/tries-behind", open_mcs),
        tries_behind("spin/tries-behind", open_spin),
        not_polled("alock/not-polled", open),
        not_polled("mcs/not-polled", open_mcs),
        further_group("alock/further-group", open, &[1, 2]),
        further_group("mcs/further-group", open_mcs, &[1, 2]),
        further_group("spin/further-group", open_spin, &[1, 2]),
        evicted(),
        home_dies("alock/home-dies", open),
        home_dies("mcs/home-dies", open_mcs),
        home_dies("mutex/lost-with-home", open_mutexes),
        holder_leaves("alock/holder-leaves", open),
        holder_leaves("mcs/holder-leaves", open_mcs),
        holder_leaves("spin/holder-leaves", open_spin),
    ]
}

/// Opens an array on all nodes.
/// Waits until threads have come to a step.
fn waits_for(ep: &Endpoint, step: &Word, reached: u64) -> Result<()> {
    Ok(ep.block_on(ep.wait_until(Instant::NEVER, || (step.load() >= reached).then_some(())))?)
}

/// One thread has the lock, and the other tries to get it: at once, and perhaps until a deadline. When the first has
/// released the lock, the second gets it, and at once if it has not waited.
fn next_try<L: Entries>(name: &str, open: Open<L>, [holds, tries]: [usize; 2]) -> Scenario {
    let about = "a try and a deadline fail beside a holder, and the next try after the release succeeds";
    Scenario::new(name, about, 3, move |cluster| {
        let (locks, step) = (open(cluster)?, Rc::new(Word::new(0)));
        gives_back(cluster, &locks);
        let (held, steps) = (Rc::clone(&locks[holds]), Rc::clone(&step));
        cluster.thread(holds, "holds", move |ep| {
            let guard = ep.block_on(held.lock(ep, 0))?;
            steps.store(1);
            waits_for(ep, &steps, 2)?;
            ep.block_on(guard.unlock())?;
            steps.store(3);
            Ok(())
        });
        let locks = Rc::clone(&locks[tries]);
        cluster.thread(tries, "tries", move |ep| {
            waits_for(ep, &step, 1)?;
            assert!(ep.block_on(locks.try_lock(ep, 0))?.is_none(), "another has it");
            let waits = choose(2) == 1;
            if waits {
                let start = ep.now();
                let error = ep.block_on(locks.lock_deadline(ep, 0, start + Duration::from_millis(1))).err();
                assert!(error.is_some_and(|error| error.is_timeout()), "another has it");
                assert!(ep.now() < start + Duration::from_secs(1), "it waits beyond its deadline");
            }
            step.store(2);
            waits_for(ep, &step, 3)?;
            if waits {
                // The operation that has given up may be passed the lock first.
                ep.block_on(async { locks.lock(ep, 0).await?.unlock().await })?;
            }
            let guard = ep.block_on(locks.try_lock(ep, 0))?.expect("nobody has it");
            ep.block_on(guard.unlock())
        });
        Ok(())
    })
}

/// Polls a future only when its waker was woken, as an executor does that runs many.
async fn when_woken<T>(future: impl Future<Output = T>) -> T {
    struct Flag(Word);
    impl Wake for Flag {
        fn wake(self: Arc<Self>) {
            self.0.store(1);
        }
    }
    let flag = Arc::new(Flag(Word::new(1)));
    let (waker, mut future) = (Waker::from(Arc::clone(&flag)), pin!(future));
    poll_fn(|_| match flag.0.compare_exchange(1, 0) {
        Ok(_) => future.as_mut().poll(&mut Context::from_waker(&waker)),
        Err(_) => Poll::Pending,
    })
    .await
}

/// The release waits for a get that the holder has not waited for. Each wait is woken.
fn within<L: Entries>(name: &str, open: Open<L>, threads: &'static [usize]) -> Scenario {
    Scenario::new(name, "an operation that is polled only when it is woken comes to its end", 3, move |cluster| {
        let (locks, x) = (open(cluster)?, Counter::new(cluster, 0)?);
        for node in threads {
            let (locks, x) = (Rc::clone(&locks[*node]), x.clone());
            cluster.thread(*node, "adder", move |ep| {
                ep.block_on(when_woken(async {
                    let guard = locks.lock(ep, 0).await?;
                    x.add(ep).await?;
                    ep.get(x.region.remote::<u64>(0)).detach()?;
                    guard.unlock().await
                }))
            });
        }
        x.counts(cluster, &locks, || threads.len() as u64);
        Ok(())
    })
}

/// The data is on the lock's node, in a group of its own: the puts to it and the release go by two queue pairs.
fn further_group<L: Entries>(name: &str, open: Open<L>, threads: &'static [usize]) -> Scenario {
    let about = "what a holder puts into a further group is seen by the next holder";
    Scenario::new(name, about, 3, move |cluster| {
        let (locks, home) = (open(cluster)?, cluster.node(0));
        let x = Counter { home: 0, region: home.alloc(home.fabric().create_group(Bell::Silent)?, 8)? };
        for node in threads {
            let (locks, x) = (Rc::clone(&locks[*node]), x.clone());
            cluster.thread(*node, "adder", move |ep| ep.block_on(section(&*locks, ep, &x)));
        }
        x.counts(cluster, &locks, || threads.len() as u64);
        Ok(())
    })
}

/// Node 1 dies as the holder. The operation behind it is dropped, and the service thread passes the lock on to the one
/// behind that.
fn left_behind<L: Entries>(name: &str, open: Open<L>) -> Scenario {
    let about = "an operation that is dropped behind a dead holder passes the lock on";
    Scenario::new(name, about, 4, move |cluster| {
        let (locks, step) = (open(cluster)?, Rc::new(Word::new(0)));
        gives_back(cluster, &locks);
        for (turn, node) in [1, 2, 3].into_iter().enumerate() {
            let (me, locks, step) = (cluster.node(node), Rc::clone(&locks[node]), Rc::clone(&step));
            cluster.thread(node, ["dies", "drops", "follows"][turn], move |ep| {
                let is_dead = || me.status_of(NodeId(1)) != Some(MemberStatus::Member);
                let come = || (step.load() >= turn as u64 || is_dead()).then_some(());
                ep.block_on(ep.wait_until(Instant::NEVER, come))?;
                if turn == 1 {
                    let guard = ep.block_on(cut(1 + choose(3), locks.lock(ep, 0)));
                    step.store(2);
                    return guard.map_or(Ok(()), |guard| ep.block_on(guard?.unlock()));
                }
                for _ in 0..turn.max(1) {
                    let guard = patiently(|| ep.block_on(locks.lock(ep, 0)))?;
                    step.store(step.load().max(1));
                    // Long enough for the others to come, and to notice a death.
                    ep.block_on(ep.sleep_until(ep.now() + Duration::from_millis(50)));
                    ep.block_on(guard.unlock())?;
                }
                Ok(())
            });
        }
        Ok(())
    })
    .faults(Faults::new().crashes(1).of([1]))
}

/// Node 1 dies as the holder, or in the queue. Others try, again and again: each try gets the lock, or finds it
/// taken.
fn tries_behind<L: Entries>(name: &str, open: Open<L>) -> Scenario {
    Scenario::new(name, "a try beside the dead returns no error", 4, move |cluster| {
        let locks = open(cluster)?;
        gives_back(cluster, &locks);
        for node in [1, 2, 3] {
            let locks = Rc::clone(&locks[node]);
            cluster.thread(node, if node == 1 { "dies" } else { "tries" }, move |ep| {
                let pause = || drop(ep.block_on(ep.wait_until(ep.now() + Duration::from_millis(30), || None::<()>)));
                if node == 1 {
                    let guard = ep.block_on(locks.lock(ep, 0))?;
                    pause();
                    return ep.block_on(guard.unlock());
                }
                for _ in 0..20 {
                    if let Some(guard) = ep.block_on(locks.try_lock(ep, 0))? {
                        return ep.block_on(guard.unlock());
                    }
                    pause();
                }
                Ok(())
            });
        }
        Ok(())
    })
    .faults(Faults::new().crashes(1).of([1]))
}

/// The operation of node 2 is not polled for long, and may be at the head all the time. Node 1 dies behind it. Node 3,
/// behind that, must not take the lock.
fn not_polled<L: Entries>(name: &str, open: Open<L>) -> Scenario {
    let about = "who is behind the dead does not take the lock from one that does not know yet that it has it";
    Scenario::new(name, about, 4, move |cluster| {
        let (locks, step) = (open(cluster)?, Rc::new(Word::new(0)));
        gives_back(cluster, &locks);
        let inside = Rc::new(Cell::new(None::<usize>));
        for node in [1, 2, 3] {
            let (me, locks, step) = (cluster.node(node), Rc::clone(&locks[node]), Rc::clone(&step));
            let inside = Rc::clone(&inside);
            cluster.thread(node, ["", "dies", "is not polled", "is stuck"][node], move |ep| {
                let pause = |ms| drop(ep.block_on(ep.wait_until(ep.now() + Duration::from_millis(ms), || None::<()>)));
                let guard = if node == 2 {
                    let mut lock = pin!(locks.lock(ep, 0));
                    let once = ep.block_on(poll_fn(|cx| match lock.as_mut().poll(cx) {
                        Poll::Ready(guard) => Poll::Ready(Some(guard)),
                        Poll::Pending => Poll::Ready(None),
                    }));
                    step.store(1);
                    pause(200);
                    once.unwrap_or_else(|| ep.block_on(lock))?
                } else {
                    waits_for(ep, &step, 1)?;
                    if node == 3 {
                        let is_dead = || (me.status_of(NodeId(1)) != Some(MemberStatus::Member)).then_some(());
                        let _ = ep.block_on(ep.wait_until(ep.now() + Duration::from_millis(5), is_dead));
                    }
                    patiently(|| ep.block_on(locks.lock(ep, 0)))?
                };
                let left = inside.replace(Some(node));
                assert!(left.is_none_or(|left| left == 1 && crashed(1)), "{left:?} is inside, too");
                pause(if node == 3 { 300 } else { 1 });
                inside.set(None);
                ep.block_on(guard.unlock())
            });
        }
        Ok(())
    })
    .faults(Faults::new().crashes(1).of([1]))
}

/// Node 1 leaves with a guard that was forgotten: the lock is never released.
fn holder_leaves<L: Entries>(name: &str, open: Open<L>) -> Scenario {
    let about = "who waits for a lock whose holder has left gets an error that names the holder";
    Scenario::new(name, about, 3, move |cluster| {
        let (locks, step) = (open(cluster)?, Rc::new(Word::new(0)));
        let (held, steps, leaving) = (Rc::clone(&locks[1]), Rc::clone(&step), cluster.node(1));
        cluster.thread(1, "leaves", move |ep| {
            core::mem::forget(ep.block_on(held.lock(ep, 0))?);
            steps.store(1);
            leaving.clone().leave();
            Ok(())
        });
        let locks = Rc::clone(&locks[2]);
        cluster.thread(2, "waits", move |ep| {
            waits_for(ep, &step, 1)?;
            let error = ep.block_on(locks.lock(ep, 0)).err().expect("it is held for ever");
            assert_eq!((error.node(), error.is_timeout()), (Some(NodeId(1)), false), "{error}");
            Ok(())
        });
        Ok(())
    })
}

/// Node 1 is cut off, and evicted. An operation that was in flight is in no queue then, so its entry is used again.
fn evicted() -> Scenario {
    let about = "operations of a node that is evicted use up no entries";
    Scenario::new("mcs/evicted", about, 3, |cluster| {
        let locks = Rc::clone(&open_mcs_for(cluster, 1)?[1]);
        cluster.thread(1, "locks", move |ep| {
            // After any other error it is unknown whether the operation is in the queue.
            let mut is_known = true;
            for _ in 0..5 {
                let error = match ep.block_on(locks.lock(ep, 0)) {
                    Ok(guard) => {
                        is_known &= unless_faults(ep.block_on(guard.unlock()))?.is_some();
                        continue;
                    }
                    Err(error) => error,
                };
                match error.kind() {
                    ErrorKind::InUse { .. } => assert!(!is_known, "{error}"),
                    ErrorKind::Fabric(error) if *error.kind() == FabricError::Fenced => {}
                    _ if comes_of_faults(&error) => is_known = false,
                    _ => return Err(error),
                }
            }
            Ok(())
        });
        Ok(())
    })
    .rule(DeathRule::Majority)
    .faults(Faults::new().cuts(1).side([1]))
}

/// The lock's home dies. The service thread of node 2 has an operation that waits for node 1: it need not wait, and the
/// node can leave.
fn home_dies<L: Entries>(name: &str, open: Open<L>) -> Scenario {
    let about = "a node leaves without delay whose dropped operation waits for a lost lock";
    Scenario::new(name, about, 4, move |cluster| {
        let (locks, step) = (open(cluster)?, Rc::new(Word::new(0)));
        let (held, steps) = (Rc::clone(&locks[1]), Rc::clone(&step));
        cluster.thread(1, "holds", move |ep| {
            let guard = ep.block_on(held.lock(ep, 0));
            steps.store(1);
            waits_for(ep, &steps, 2)?;
            unless_faults(ep.block_on(async { guard?.unlock().await })).map(drop)
        });
        let (locks, me) = (Rc::clone(&locks[2]), cluster.node(2));
        cluster.thread(2, "drops", move |ep| {
            waits_for(ep, &step, 1)?;
            drop(ep.block_on(cut(2, locks.lock(ep, 0))));
            let is_evicted = || me.status_of(NodeId(0)) == Some(MemberStatus::Evicted);
            if crashed(0) {
                ep.block_on(ep.wait_until(Instant::NEVER, || is_evicted().then_some(())))?;
                let start = me.now();
                me.clone().leave();
                assert!(was_paused() || me.now() - start < Duration::from_millis(500), "it waits for a lost lock");
            }
            step.store(2);
            Ok(())
        });
        Ok(())
    })
    .faults(Faults::new().crashes(1).of([0]))
}
