//! Operations that are refused at posting.

use std::rc::Rc;
use std::time::Duration;

use farfield_check::parts::{cut, patiently};
use farfield_check::{Cluster, Faults, Scenario, choose, crashed};
use farfield_core::{Endpoint, Result};
use farfield_fabric::fault::{self, inject};
use farfield_fabric::{EndpointOptions, Instant, NodeId, Word};

use super::{Counter, Entries, gives_back, open, open_mcs, open_spin};
use crate::LockGuard;

pub(super) fn scenarios() -> Vec<Scenario> {
    vec![
        refused_once("alock/refused", open, &[0, 1, 2]),
        refused_once("mcs/refused", open_mcs, &[1, 2]),
        refused_once("spin/refused", open_spin, &[1, 2]),
        refused_link("alock/refused-link", open),
        refused_link("mcs/refused-link", open_mcs),
        dropped_release("alock/dropped-release", open),
        dropped_release("mcs/dropped-release", open_mcs),
        dropped_release("spin/dropped-release", open_spin),
        refused_behind_dies("alock/refused-behind-dies", open),
        refused_behind_dies("mcs/refused-behind-dies", open_mcs),
        unfenced("alock/unfenced-local", open, [0, 1]),
        unfenced("alock/unfenced", open, [1, 0]),
        unfenced("alock/unfenced-home", open, [1, 2]),
        unfenced("mcs/unfenced", open_mcs, [1, 2]),
        unfenced("mcs/unfenced-home", open_mcs, [1, 0]),
        unfenced("spin/unfenced", open_spin, [1, 2]),
        unfenced("spin/unfenced-home", open_spin, [1, 0]),
    ]
}

/// An endpoint like another, but with operations that are refused on command.
fn faulty(ep: &Endpoint) -> Result<(Endpoint, fault::Faults)> {
    let faults = fault::Faults::default();
    let fabric = inject(ep.transport().clone(), faults.clone());
    Ok((Endpoint::open(fabric, EndpointOptions::default())?, faults))
}

/// Repeats a refused call.
fn again<T>(mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
    loop {
        match attempt() {
            Err(error) if error.is_refused() => {}
            done => return done,
        }
    }
}

/// One of the operations of node 1 is refused, whichever it is. An acquisition that is refused is repeated, and a
/// release is done nevertheless.
fn refused_once<L: Entries>(
    name: &str,
    open: fn(&Cluster) -> Result<Vec<Rc<L>>>,
    threads: &'static [usize],
) -> Scenario {
    Scenario::new(name, "an operation that is refused leaves nothing, and no release is lost", 3, move |cluster| {
        let (locks, x) = (open(cluster)?, Counter::new(cluster, 0)?);
        for node in threads {
            let (locks, x) = (Rc::clone(&locks[*node]), x.clone());
            cluster.thread(*node, "adder", move |ep| {
                let (ep, faults) = faulty(ep)?;
                if *node == 1 {
                    faults.fail_after(choose(10) as u64);
                }
                for _ in 0..2 {
                    let guard = again(|| ep.block_on(locks.lock(&ep, 0)))?;
                    again(|| ep.block_on(x.add(&ep)))?;
                    // Perhaps long enough for the others to come, and to look again whether they can go on.
                    let stays = [0, 1, 50][choose(3)];
                    ep.block_on(ep.sleep_until(ep.now() + Duration::from_millis(stays)));
                    ep.block_on(guard.unlock())?;
                }
                Ok(())
            });
        }
        x.counts(cluster, &locks, || 2 * threads.len() as u64);
        Ok(())
    })
}

/// The put by which node 2 links itself to the holder is refused, and repeated once. It is not put again while node 2
/// waits: the holder's entry may be another's by the time that such a put lands.
fn refused_link<L: Entries>(name: &str, open: fn(&Cluster) -> Result<Vec<Rc<L>>>) -> Scenario {
    Scenario::new(name, "a waiter whose link was refused links itself once", 3, move |cluster| {
        let (locks, step) = (open(cluster)?, Rc::new(Word::new(0)));
        gives_back(cluster, &locks);
        let (held, steps) = (Rc::clone(&locks[1]), Rc::clone(&step));
        cluster.thread(1, "holds", move |ep| {
            let guard = ep.block_on(held.lock(ep, 0))?;
            steps.store(1);
            // The waiter looks several times whether the holder lives.
            ep.block_on(ep.sleep_until(ep.now() + Duration::from_millis(200)));
            ep.block_on(guard.unlock())
        });
        let locks = Rc::clone(&locks[2]);
        cluster.thread(2, "links", move |ep| {
            let (ep, faults) = faulty(ep)?;
            ep.block_on(ep.wait_until(Instant::NEVER, || (step.load() == 1).then_some(())))?;
            faults.fail_after(2); // two compare-and-swaps: one finds the holder, the other succeeds
            let (guard, spent) = ep.block_on(ep.counted(locks.lock(&ep, 0)));
            assert!(spent.puts <= 2, "it has linked itself {} times", spent.puts);
            ep.block_on(guard?.unlock())
        });
        Ok(())
    })
}

/// The release is dropped at any moment, and one of its operations may be refused: the guard that is dropped with it
/// releases.
fn dropped_release<L: Entries>(name: &str, open: fn(&Cluster) -> Result<Vec<Rc<L>>>) -> Scenario {
    Scenario::new(name, "a release that is dropped is done nevertheless", 3, move |cluster| {
        let (locks, x) = (open(cluster)?, Counter::new(cluster, 0)?);
        for node in [1, 2] {
            let (locks, x) = (Rc::clone(&locks[node]), x.clone());
            cluster.thread(node, "adder", move |ep| {
                let (ep, faults) = faulty(ep)?;
                let guard = ep.block_on(locks.lock(&ep, 0))?;
                ep.block_on(x.add(&ep))?;
                if node == 1 {
                    faults.fail_after(choose(4) as u64);
                }
                ep.block_on(cut(choose(4), guard.unlock())).unwrap_or(Ok(()))
            });
        }
        x.counts(cluster, &locks, || 2);
        Ok(())
    })
}

/// Node 2 dies, perhaps behind node 1, of which an operation is refused. The others get the lock.
fn refused_behind_dies<L: Entries>(name: &str, open: fn(&Cluster) -> Result<Vec<Rc<L>>>) -> Scenario {
    Scenario::new(name, "a release that is refused, in front of a dead waiter, is not lost", 4, move |cluster| {
        let locks = open(cluster)?;
        gives_back(cluster, &locks);
        let x = Counter::new(cluster, 2)?;
        for node in [1, 2, 3] {
            let (locks, x) = (Rc::clone(&locks[node]), x.clone());
            cluster.thread(node, "locks", move |ep| {
                let (ep, faults) = faulty(ep)?;
                if node == 1 {
                    faults.fail_after(choose(8) as u64);
                }
                let guard = again(|| patiently(|| ep.block_on(locks.lock(&ep, 0))))?;
                let added = again(|| ep.block_on(x.add(&ep)));
                assert!(added.is_ok() || crashed(2), "{added:?}");
                // Long enough for the others to come.
                ep.block_on(ep.sleep_until(ep.now() + Duration::from_millis(1)));
                ep.block_on(guard.unlock())
            });
        }
        Ok(())
    })
    .faults(Faults::new().crashes(1).of([2]))
}

/// All operations to a node are refused that a holder has put to: its puts cannot be made visible, and the lock stays
/// taken.
fn unfenced<L: Entries>(name: &str, open: fn(&Cluster) -> Result<Vec<Rc<L>>>, [holds, there]: [usize; 2]) -> Scenario {
    let about = "a lock whose holder cannot make its puts visible stays taken";
    Scenario::new(name, about, 3, move |cluster| {
        let (locks, x) = (open(cluster)?, Counter::new(cluster, there)?);
        let step = Rc::new(Word::new(0));
        let (held, steps) = (Rc::clone(&locks[holds]), Rc::clone(&step));
        cluster.thread(holds, "holds", move |ep| {
            let (ep, faults) = faulty(ep)?;
            let guard = ep.block_on(held.lock(&ep, 0))?;
            ep.block_on(x.add(&ep))?;
            faults.cut(NodeId(there as u16), true);
            if choose(2) == 0 {
                drop(guard);
            } else {
                let released = ep.block_on(guard.unlock());
                assert!(released.is_err_and(|error| error.is_refused()), "it is not released");
            }
            steps.store(1);
            Ok(())
        });
        let tries = 3 - holds - there;
        let locks = Rc::clone(&locks[tries]);
        cluster.thread(tries, "tries", move |ep| {
            ep.block_on(ep.wait_until(Instant::NEVER, || (step.load() == 1).then_some(())))?;
            for _ in 0..2 {
                assert!(ep.block_on(locks.try_lock(ep, 0))?.is_none(), "it was released");
                ep.block_on(ep.sleep_until(ep.now() + Duration::from_secs(1)));
            }
            Ok(())
        });
        Ok(())
    })
}
