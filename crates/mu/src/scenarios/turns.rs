//! Scenarios of the replicated lock and the election.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use farfield_check::parts::{Excuse, Protected, cut};
use farfield_check::{Cluster, Faults, Scenario, choose, crashed};
use farfield_core::history::Recorder;
use farfield_core::{Endpoint, MemberStatus, Node, Result};
use farfield_fabric::DeathRule;

use super::histories::{LockAnswer, LockCall, LockModel, check_locks};
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
        holds("mu/election-evicted", "no other node leads before the lease of one that was evicted has ended")
            .rule(DeathRule::Majority)
            .faults(Faults::new().false_suspicions(1).of([1]))
            .kills(&["mu-lease-evicted"]),
        holds("mu/election-stopped", "a node whose thread has stopped does not lead when another one does")
            .faults(Faults::new().pauses(1).of([1])),
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

/// The calls on a lock share this.
struct Locking {
    data: Protected,
    calls: Recorder<LockModel>,
    /// How many there were.
    number: Cell<usize>,
    nodes: Vec<Node>,
}

impl Locking {
    /// Panics at the end unless the calls are linearizable.
    fn new(cluster: &Cluster, homes: [usize; 2]) -> Result<Rc<Locking>> {
        let data = Protected::new(cluster, homes, "")?;
        let locking =
            Rc::new(Locking { data, calls: Recorder::default(), number: Cell::new(0), nodes: cluster.nodes() });
        let seen = Rc::clone(&locking);
        cluster.at_end(move || {
            check_locks(&seen.calls);
            Ok(())
        });
        Ok(locking)
    }

    /// Whether another node counts this one as evicted, which may not know it yet.
    fn is_evicted(&self, node: &Node) -> bool {
        let counts =
            |other: &Node| !crashed(other.id().index()) && other.status_of(node.id()) == Some(MemberStatus::Evicted);
        node.fabric().is_fenced() || self.nodes.iter().any(counts)
    }

    /// A call begins: its number, and its place.
    fn begins(&self, node: usize) -> (usize, usize) {
        self.number.set(self.number.get() + 1);
        (self.number.get(), self.calls.begin(node, LockCall::Lock(self.number.get())))
    }
}

async fn section(lock: &ReplicatedMutex, ep: &Endpoint, shared: &Locking) -> Result<()> {
    let (excuse, node) = (Excuse::now(), lock.0.object.node());
    let me = node.id().index();
    let (number, call) = shared.begins(me);
    let guard = match lock.lock(ep).await {
        Ok(guard) => guard,
        Err(error) => {
            assert!(excuse.is_given(), "nothing has happened: {error}");
            return Ok(());
        }
    };
    // A call may end late on a node that was evicted meanwhile.
    let is_evicted = shared.is_evicted(node);
    if !is_evicted {
        shared.calls.end(call, LockAnswer::Token(guard.token()));
    }
    // A node may have died, or been evicted, inside.
    let nodes = lock.0.object.participants();
    let is_poisoned = excuse.is_given() || nodes.iter().any(|node| crashed(node.index()));
    let added = shared.data.add_one(ep, false, is_poisoned, |node| crashed(node) || excuse.is_given()).await;
    // Since it was evicted the lock may be another's.
    let is_evicted = is_evicted || shared.is_evicted(node);
    let unlocks = (!is_evicted).then(|| shared.calls.begin(me, LockCall::Unlock(number)));
    let unlocked = guard.unlock(ep).await;
    match (unlocks, added.and(unlocked)) {
        (Some(call), Ok(())) => shared.calls.end(call, LockAnswer::Unlocked),
        (None, Ok(())) => {}
        (_, Err(error)) => assert!(excuse.is_given(), "nothing has happened: {error}"),
    }
    Ok(())
}

/// Each node has a thread, which holds the lock so often.
fn locks(name: &str, about: &str, times: usize) -> Scenario {
    Scenario::new(name, about, 3, move |cluster| {
        let locks = open(cluster)?;
        let shared = Locking::new(cluster, [1, 1])?;
        for (me, lock) in locks.into_iter().enumerate() {
            let shared = Rc::clone(&shared);
            cluster
                .thread(me, "locks", move |ep| (0..times).try_for_each(|_| ep.block_on(section(&lock, ep, &shared))));
        }
        Ok(())
    })
}

fn both_die() -> Scenario {
    let about = "the lock outlives two of five nodes: the log's leader, and a holder";
    Scenario::new("mu/mutex-both-die", about, 5, move |cluster| {
        let locks = open(cluster)?;
        let shared = Locking::new(cluster, [4, 4])?;
        for (me, lock) in locks.into_iter().enumerate().take(3) {
            let shared = Rc::clone(&shared);
            cluster.thread(me, "locks", move |ep| ep.block_on(section(&lock, ep, &shared)));
        }
        Ok(())
    })
    .faults(Faults::new().crashes(2).of([0, 1]))
}

fn dropped() -> Scenario {
    let about = "a call that is dropped leaves nothing locked";
    Scenario::new("mu/mutex-dropped", about, 3, move |cluster| {
        let locks = open(cluster)?;
        let shared = Locking::new(cluster, [1, 1])?;
        for (me, lock) in locks.into_iter().enumerate() {
            let shared = Rc::clone(&shared);
            cluster.thread(me, "locks", move |ep| {
                let polls = choose(4);
                ep.block_on(async {
                    // The guard is dropped: so it is a call that never returns, as the one that is cut.
                    shared.begins(me);
                    drop(cut(polls, lock.lock(ep)).await.transpose()?);
                    section(&lock, ep, &shared).await
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
        closes(cluster, leaders, kept);
        Ok(())
    })
}

/// At the end, all close the election.
fn closes(cluster: &Cluster, leaders: Leaders, elections: Vec<Election>) {
    cluster.at_end(move || {
        leaders.borrow_mut().clear();
        drop(elections);
        Ok(())
    });
}

/// Node 1 leads, and does not resign; node 2 is a candidate. No two lead at one time.
fn holds(name: &str, about: &str) -> Scenario {
    Scenario::new(name, about, 3, move |cluster| {
        let elections = cluster.on_each(|node| Election::open(node, "leader", Duration::from_millis(1000)))?;
        let (kept, leaders) = (elections.clone(), Leaders::default());
        let has_begun = Rc::new(Cell::new(false));
        for (me, election) in elections.into_iter().enumerate().skip(1) {
            let (leaders, has_begun) = (Rc::clone(&leaders), Rc::clone(&has_begun));
            cluster.thread(me, "campaigns", move |ep| {
                let mut pause = Duration::from_millis(10);
                while me == 2 && !has_begun.get() {
                    ep.block_on(ep.wait_for_change(ep.now() + pause));
                    pause = Duration::from_millis(100).min(2 * pause);
                }
                ep.set_timeout(Duration::from_secs(5));
                // Node 1 keeps its lead, as a rule.
                let elected = ep.block_on(election.campaign(ep));
                has_begun.set(true);
                let Ok(leadership) = elected.map(Rc::new) else { return Ok(()) };
                leaders.borrow_mut().push((me, Rc::clone(&leadership)));
                for _ in 0..12 {
                    let leads = leadership.is_leader();
                    for (other, of_other) in leaders.borrow().iter().filter(|(other, _)| *other != me) {
                        let both = leadership.is_leader() && of_other.is_leader() && leadership.is_leader();
                        assert!(!both, "nodes {me} and {other} lead at one time");
                    }
                    let has_changed = || (leadership.is_leader() != leads).then_some(());
                    let _ = ep.block_on(ep.wait_until(ep.now() + Duration::from_millis(200), has_changed));
                }
                Ok(())
            });
        }
        closes(cluster, leaders, kept);
        Ok(())
    })
}
