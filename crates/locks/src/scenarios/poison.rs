//! The warning that a holder may have died, and the words that such a holder leaves.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use farfield_check::parts::{patiently, unless_faults, word};
use farfield_check::{Cluster, Faults, Scenario, choose, crashed};
use farfield_core::{MutexArray, Result};
use farfield_fabric::{DeathRule, Instant, Word};

use super::{Entries, gives_back, open, open_mcs, open_spin};
use crate::LockGuard;

pub(super) fn scenarios() -> Vec<Scenario> {
    vec![
        told_once("alock/told-once", open, &[0, 2, 0, 2]),
        told_once("alock/told-once-remote", open, &[2, 0, 2, 0]),
        told_once("alock/told-once-local", open, &[0, 0, 2, 0]),
        told_once("mcs/told-once", open_mcs, &[2, 0, 2, 0]),
        told_once("spin/told-once", open_spin, &[2, 0, 2, 0]),
        told_once("mutex/told-once", open_mutexes, &[2, 0, 2, 0]),
        holder_is_cut_off("alock/holder-cut", open),
        holder_is_cut_off("mcs/holder-cut", open_mcs),
        holder_is_cut_off("spin/holder-cut", open_spin),
    ]
}

pub(super) fn open_mutexes(cluster: &Cluster) -> Result<Vec<Rc<MutexArray>>> {
    cluster.on_each(|node| MutexArray::open(node, "locks", 1).map(Rc::new))
}

/// Node 1 has one operation, and may die with it. The others take turns: from the first that is warned, each is warned
/// until one declares that everything is repaired, and none after that.
fn told_once<L: Entries>(name: &str, open: fn(&Cluster) -> Result<Vec<Rc<L>>>, order: &'static [usize]) -> Scenario {
    let about = "holders are warned of a death until one of them has repaired, and then no more";
    Scenario::new(name, about, 3, move |cluster| {
        let locks = open(cluster)?;
        gives_back(cluster, &locks);
        let dies = Rc::clone(&locks[1]);
        cluster.thread(1, "dies", move |ep| {
            let guard = ep.block_on(dies.lock(ep, 0))?;
            ep.block_on(ep.sleep_until(ep.now() + Duration::from_millis(100)));
            ep.block_on(guard.unlock())
        });
        // Whether the last holder has left a warning to the next; none before the first warning.
        let (turn, left) = (Rc::new(Word::new(0)), Rc::new(Cell::new(None::<bool>)));
        for node in [0, 2] {
            let (locks, turn, left) = (Rc::clone(&locks[node]), Rc::clone(&turn), Rc::clone(&left));
            cluster.thread(node, "looks", move |ep| {
                for (at, _) in order.iter().enumerate().filter(|(_, of)| **of == node) {
                    let come = || (turn.load() == at as u64).then_some(());
                    ep.block_on(ep.wait_until(Instant::NEVER, come))?;
                    let mut guard = patiently(|| ep.block_on(locks.lock(ep, 0)))?;
                    let is_told = guard.is_poisoned();
                    assert!(!is_told || crashed(1), "nobody has died");
                    assert!(
                        left.get().is_none_or(|left| left == is_told),
                        "turn {at} is told: {is_told}, but {left:?}"
                    );
                    if is_told {
                        left.set(Some(choose(2) == 0));
                        if left.get() == Some(false) {
                            guard.clear_poison();
                        }
                    }
                    ep.block_on(guard.unlock())?;
                    turn.store(at as u64 + 1);
                }
                Ok(())
            });
        }
        Ok(())
    })
    .faults(Faults::new().crashes(1).of([1]))
}

/// Two words on two nodes are equal whenever the lock is free, unless a holder has died. The puts of a holder that is
/// cut off land before the lock is released, or never.
fn holder_is_cut_off<L: Entries>(name: &str, open: fn(&Cluster) -> Result<Vec<Rc<L>>>) -> Scenario {
    let about = "a lock is taken from one that is cut off, and nothing of it lands later";
    Scenario::new(name, about, 3, move |cluster| {
        let words = [word(cluster, 0, "x")?, word(cluster, 2, "y")?];
        for (node, locks) in open(cluster)?.into_iter().enumerate() {
            let [x, y] = [words[0].remote::<u64>(0), words[1].remote::<u64>(0)];
            cluster.thread(node, "adds", move |ep| {
                let section = async || -> Result<()> {
                    let mut guard = locks.lock(ep, 0).await?;
                    let (a, b) = (ep.get(x).await?, ep.get(y).await?);
                    assert!(a == b || guard.is_poisoned(), "{a} and {b}: it is half-written, and nobody says so");
                    guard.clear_poison();
                    ep.put_value(x, a.max(b) + 1).detach()?;
                    ep.put_value(y, a.max(b) + 1).detach()?;
                    guard.unlock().await
                };
                unless_faults(ep.block_on(section())).map(drop)
            });
        }
        Ok(())
    })
    .rule(DeathRule::Majority)
    .faults(Faults::new().cuts(1).side([1]))
}
