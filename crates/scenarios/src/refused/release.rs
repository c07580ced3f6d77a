//! The release of a lock is refused, or the fence before it: once, for a while or for good.

use std::time::Duration;

use farfield_core::fabric::{Bell, Instant, Word};
use farfield_core::{Mutex, NodeId, Result};

use super::{anywhere, faulty};
use crate::keep;
use farfield_check::parts::{cut, word};
use farfield_check::{Cluster, Scenario, choose};

pub(super) fn scenarios() -> Vec<Scenario> {
    vec![once(), dropped(), for_good(), revoked()]
}

fn open(cluster: &Cluster) -> Result<std::rc::Rc<Vec<Mutex>>> {
    Ok(keep(cluster, cluster.on_each(|node| Mutex::open(node, "m", NodeId(1)))?))
}

/// The fetch-and-add that releases is refused: the service thread does it. For mutex-release-refused.
fn once() -> Scenario {
    Scenario::new("mutex/refused-release", "a refused release is repeated later", 2, |cluster| {
        let mutexes = open(cluster)?;
        for node in [0, 1] {
            let mutexes = mutexes.clone();
            cluster.thread(node, "holder", move |ep| {
                let (ep, faults) = faulty(ep)?;
                let guard = ep.block_on(mutexes[node].lock(&ep))?;
                if node == 0 {
                    faults.fail_after(0);
                }
                ep.block_on(guard.unlock())
            });
        }
        Ok(())
    })
    .kills(&["mutex-release-refused"])
}

/// The rest of a release that was refused is dropped between any two of its polls, before the first as well. The lock
/// is released nevertheless, behind the put to its home, which needed no fence as long as the same queue pair would
/// release it. A put to a third node needs one, and then the release is posted behind that.
fn dropped() -> Scenario {
    let about = "a lock is released behind the holder's puts, if its release was refused and the rest was dropped";
    Scenario::new("mutex/refused-release-dropped", about, 3, |cluster| {
        let (mutexes, x, y) = (open(cluster)?, word(cluster, 1, "x")?, word(cluster, 2, "y")?);
        let (holds, takes) = (mutexes.clone(), mutexes);
        let (step, words) = (std::rc::Rc::new(Word::new(0)), [x.remote::<u64>(0), y.remote::<u64>(0)]);
        let has_put = step.clone();
        cluster.thread(0, "holds", move |ep| {
            let (ep, faults) = faulty(ep)?;
            let guard = ep.block_on(holds[0].lock(&ep))?;
            let fences = choose(2);
            words[..=fences].iter().try_for_each(|word| ep.put_value(*word, 1).detach())?;
            has_put.store(1 + fences as u64);
            faults.fail_after(fences as u64);
            let rest = guard.begin_unlock()?.expect_err("it has to wait");
            match choose(6) {
                0 => drop(rest),
                polls => drop(ep.block_on(cut(polls - 1, rest)).transpose()?),
            }
            Ok(())
        });
        cluster.thread(1, "takes", move |ep| {
            ep.block_on(ep.wait_until(Instant::NEVER, || (step.load() != 0).then_some(())))?;
            let guard = ep.block_on(takes[1].lock(ep))?;
            assert_eq!(x.word(0).load(), 1, "the lock is free before the put to its home has landed");
            assert!(step.load() == 1 || ep.block_on(ep.get(y.remote::<u64>(0)))? == 1, "or before the other one has");
            ep.block_on(guard.unlock())
        });
        Ok(())
    })
}

/// Each operation of the holder is refused from some moment on: the fence before the release, or the release itself,
/// and all that makes up for it. The call ends, and the lock stays taken if it has said so.
fn for_good() -> Scenario {
    let about = "a release that is refused for good ends in an error, and the lock stays taken";
    Scenario::new("mutex/refused-for-good", about, 3, |cluster| {
        let refusals = anywhere::start(cluster, 3)?;
        let mutexes = open(cluster)?;
        let words = [word(cluster, 1, "x")?, word(cluster, 2, "y")?];
        cluster.thread(0, "holds", move |ep| {
            ep.set_timeout(Duration::from_millis(50));
            let guard = ep.block_on(mutexes[0].lock(ep))?;
            // The put to the home needs no fence, and that to another node does.
            let to = choose(2);
            ep.put_value(words[to].remote::<u64>(0), 1).detach()?;
            refusals.fail_some(0, u32::MAX);
            let start = ep.now();
            let ends = ep.block_on(guard.unlock());
            let took = ep.now() - start;
            refusals.fail_after(u64::MAX);
            assert!(ends.is_err_and(|error| error.is_refused()), "each of its operations is refused");
            assert!(took < Duration::from_millis(80), "it has tried for {took:?}, with a timeout of 50 ms");
            // The service thread would release it a moment later.
            ep.block_on(ep.sleep_until(ep.now() + Duration::from_secs(1)));
            assert!(ep.block_on(mutexes[0].try_lock(ep))?.is_none(), "it is free, and a put may not be visible");
            Ok(())
        });
        Ok(())
    })
    .late_nodes()
}

/// The holder has put to a group of the other node, which revokes its right: the put has landed, or never will. So the
/// fence ends, and the lock is free.
fn revoked() -> Scenario {
    let about = "a holder releases the lock after its right to a group was revoked";
    Scenario::new("mutex/revoked-under-lock", about, 2, |cluster| {
        let (mutexes, step) = (open(cluster)?, std::rc::Rc::new(Word::new(0)));
        let owner = cluster.node(0);
        let group = owner.fabric().create_group(Bell::Silent)?;
        let guarded = owner.alloc(group, 8)?;
        let (holds, takes, steps) = (mutexes.clone(), mutexes, step.clone());
        let to = guarded.remote::<u64>(0);
        cluster.thread(1, "holds", move |ep| {
            let guard = ep.block_on(holds[1].lock(ep))?;
            ep.put_value(to, 1).detach()?;
            steps.store(1);
            if choose(2) == 1 {
                ep.block_on(ep.wait_until(Instant::NEVER, || (steps.load() == 2).then_some(())))?;
            }
            ep.block_on(guard.unlock())
        });
        cluster.thread(0, "revokes", move |ep| {
            ep.block_on(ep.wait_until(Instant::NEVER, || (step.load() == 1).then_some(())))?;
            ep.fabric().revoke(NodeId(1), group, Duration::from_secs(1))?;
            step.store(2);
            let guard = ep.block_on(takes[0].lock(ep))?;
            let seen = guarded.word(0).load();
            ep.block_on(guard.unlock())?;
            assert_eq!(guarded.word(0).load(), seen, "the put has landed after the lock was free");
            Ok(())
        });
        Ok(())
    })
}
