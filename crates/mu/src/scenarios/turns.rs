//! Scenarios of the replicated lock and the election.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use farfield_check::parts::{Excuse, Protected, cut};
use farfield_check::{Cluster, Faults, Scenario, choose, crashed};
use farfield_core::{Endpoint, Result};
use farfield_fabric::DeathRule;

use crate::{Election, ReplicatedMutex};

/// The nodes that lead, or think so.
type Leaders = Rc<RefCell<Vec<(usize, Rc<crate::Leadership>)>>>;

pub(super) fn scenarios() -> Vec<Scenario> {
    vec![
        locks("mu/mutex", "one holder at a time, and it sees what the last has written", 2),
        locks("mu/mutex-leader-dies", "the lock outlives the leader of its log, which may hold it", 2)
            .faults(Faults::new().crashes(1).of([0]))
            .kills(&["mu-dead-holds"]),
        locks("mu/mutex-holder-dies", "a dead holder's lock is released", 2)
            .faults(Faults::new().crashes(1).of([2]))
            .kills(&["mu-dead-holds"]),
        locks("mu/mutex-suspected", "a holder that was taken for dead disturbs no other", 2)
            .rule(DeathRule::Majority)
            .faults(Faults::new().false_suspicions(1)),
        both_die(),
        dropped().kills(&["mu-dropped-holds"]),
        elects("mu/election", "one leader at a time").faults(Faults::new().pauses(1)),
        elects("mu/election-renewed", "a lease that is renewed does not end")
            .kills(&["mu-lease-not-renewed", "mu-lease-cut"]),
        elects("mu/election-leader-dies", "a dead leader's lease ends").faults(Faults::new().crashes(1)),
        elects("mu/election-suspected", "a leader that was taken for dead knows when its lease has ended")
            .rule(DeathRule::Majority)
            .steps_max(1_000_000)
            .faults(Faults::new().false_suspicions(1)),
    ]
}

fn open(cluster: &Cluster) -> Result<Vec<ReplicatedMutex>> {
    let locks = cluster.on_each(|node| ReplicatedMutex::open(node, "lock"))?;
    let kept = locks.clone();
    cluster.at_end(move || {
        drop(kept);
        Ok(())
    });
    Ok(locks)
}

/// The last token. Each holder's is higher.
type Last = Rc<Cell<u64>>;

async fn section(lock: &ReplicatedMutex, ep: &Endpoint, data: &Protected, last: &Last) -> Result<()> {
    let excuse = Excuse::now();
    let guard = match lock.lock(ep).await {
        Ok(guard) => guard,
        Err(error) => {
            assert!(excuse.is_given(), "nothing has happened: {error}");
            return Ok(());
        }
    };
    let token = guard.token();
    // A call may end late on a node that was evicted meanwhile.
    let before = last.replace(token.max(last.get()));
    assert!(token > before || excuse.is_given(), "token {token} is not higher than the last");
    // A node may have died, or been evicted, inside.
    let nodes = lock.0.object.participants();
    let is_poisoned = excuse.is_given() || nodes.iter().any(|node| crashed(node.index()));
    let added = data.add_one(ep, false, is_poisoned, |node| crashed(node) || excuse.is_given()).await;
    if let Err(error) = added.and(guard.unlock(ep).await) {
        assert!(excuse.is_given(), "nothing has happened: {error}");
    }
    Ok(())
}

/// Each node has a thread, which holds the lock so often.
fn locks(name: &str, about: &str, times: usize) -> Scenario {
    Scenario::new(name, about, 3, move |cluster| {
        let locks = open(cluster)?;
        let (data, last) = (Rc::new(Protected::new(cluster, [1, 1], "")?), Last::default());
        for (me, lock) in locks.into_iter().enumerate() {
            let (data, last) = (Rc::clone(&data), Rc::clone(&last));
            cluster.thread(me, "locks", move |ep| {
                (0..times).try_for_each(|_| ep.block_on(section(&lock, ep, &data, &last)))
            });
        }
        Ok(())
    })
}

fn both_die() -> Scenario {
    let about = "the lock outlives two of five nodes: the log's leader, and a holder";
    Scenario::new("mu/mutex-both-die", about, 5, move |cluster| {
        let locks = open(cluster)?;
        let (data, last) = (Rc::new(Protected::new(cluster, [4, 4], "")?), Last::default());
        for (me, lock) in locks.into_iter().enumerate().take(3) {
            let (data, last) = (Rc::clone(&data), Rc::clone(&last));
            cluster.thread(me, "locks", move |ep| ep.block_on(section(&lock, ep, &data, &last)));
        }
        Ok(())
    })
    .faults(Faults::new().crashes(2).of([0, 1]))
}

fn dropped() -> Scenario {
    let about = "a call that is dropped leaves nothing locked";
    Scenario::new("mu/mutex-dropped", about, 3, move |cluster| {
        let locks = open(cluster)?;
        let (data, last) = (Rc::new(Protected::new(cluster, [1, 1], "")?), Last::default());
        for (me, lock) in locks.into_iter().enumerate() {
            let (data, last) = (Rc::clone(&data), Rc::clone(&last));
            cluster.thread(me, "locks", move |ep| {
                let polls = choose(4);
                ep.block_on(async {
                    if let Some(guard) = cut(polls, lock.lock(ep)).await {
                        let token = guard?.token(); // and drops it
                        last.set(last.get().max(token));
                    }
                    section(&lock, ep, &data, &last).await
                })
            });
        }
        Ok(())
    })
}

/// Two candidates, which resign and are elected again. No two lead at one time.
fn elects(name: &str, about: &str) -> Scenario {
    Scenario::new(name, about, 3, move |cluster| {
        let elections = cluster.on_each(|node| Election::open(node, "leader", Duration::from_millis(1000)))?;
        let kept = elections.clone();
        let leaders = Leaders::default();
        let last = Last::default();
        for (me, election) in elections.into_iter().enumerate().skip(1) {
            let (leaders, last) = (Rc::clone(&leaders), Rc::clone(&last));
            cluster.thread(me, "campaigns", move |ep| {
                for _ in 0..2 {
                    let excuse = Excuse::now();
                    let leadership = match ep.block_on(election.campaign(ep)) {
                        Ok(leadership) => Rc::new(leadership),
                        Err(error) => {
                            assert!(excuse.is_given(), "nothing has happened: {error}");
                            return Ok(());
                        }
                    };
                    let term = leadership.term();
                    if leadership.is_leader() {
                        assert!(term > last.replace(term), "term {term} is not higher than the last");
                    }
                    leaders.borrow_mut().push((me, Rc::clone(&leadership)));
                    // Longer than a lease, in all.
                    for _ in 0..4 {
                        let others: Vec<_> = leaders.borrow().iter().filter(|it| it.0 != me).cloned().collect();
                        for (other, of_other) in others {
                            let both = leadership.is_leader() && of_other.is_leader() && leadership.is_leader();
                            assert!(!both || crashed(other), "nodes {me} and {other} lead at one time");
                        }
                        let has_ended = || (!leadership.is_leader()).then_some(());
                        let ended = ep.block_on(ep.wait_until(ep.now() + Duration::from_millis(375), has_ended));
                        assert!(ended.is_err() || excuse.is_given(), "the lease was not renewed");
                    }
                    leaders.borrow_mut().retain(|(node, _)| *node != me);
                    drop(leadership);
                }
                Ok(())
            });
        }
        cluster.at_end(move || {
            leaders.borrow_mut().clear();
            drop(kept);
            Ok(())
        });
        Ok(())
    })
}
