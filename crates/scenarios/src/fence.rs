//! Fences of endpoints, over the queue pairs of several groups.

use core::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use farfield_core::fabric::{self, Bell, ErrorKind, GroupKey, Instant, Region, Word};
use farfield_core::{MemberStatus, NodeId, Result};

use crate::refused;
use farfield_check::parts::word;
use farfield_check::{Cluster, Faults, Scenario, choose, crashed};

pub(super) fn scenarios() -> Vec<Scenario> {
    vec![further_groups(), revoked(), others_reads(), refused_long(), dead()]
}

/// A word on a node, in a group of its own.
fn further_word(cluster: &Cluster, node: usize) -> Result<(GroupKey, Region)> {
    let owner = cluster.node(node);
    let group = owner.fabric().create_group(Bell::Silent)?;
    Ok((group, owner.alloc(group, 8)?))
}

/// A node puts to words of another node by three queue pairs, and gets one from it. Whatever a fence or a flush covers
/// is there when it has ended: `NRW → NRR` on each of the queue pairs, and `NLW → GF`.
fn further_groups() -> Scenario {
    let about = "a fence covers the puts to each group of a node, and the gets that nobody waits for";
    Scenario::new("fence/further-groups", about, 2, |cluster| {
        let bell = cluster.node(0).alloc(GroupKey::SIGNAL, 8)?;
        let words = [word(cluster, 0, "x")?, bell, further_word(cluster, 0)?.1, further_word(cluster, 0)?.1];
        let (source, here) = (word(cluster, 0, "source")?, word(cluster, 1, "here")?);
        source.word(0).store(9);
        // How many rounds are done, and the words that the last one has put to.
        let (rounds, put_to) = (Rc::new(Word::new(0)), Rc::new(Word::new(0)));
        let (looked_at, round, of_round) = (words.clone(), Rc::clone(&rounds), Rc::clone(&put_to));
        cluster.thread(0, "looks", move |ep| {
            ep.block_on(ep.wait_until(Instant::NEVER, || (round.load() == 1).then_some(())))?;
            let chosen = of_round.load() as usize;
            let seen = looked_at.each_ref().map(|word| word.word(0).load());
            assert_eq!(seen, [0, 1, 2, 3].map(|at| u64::from(chosen & 1 << at != 0)), "of {chosen:b}");
            Ok(())
        });
        cluster.thread(1, "puts", move |ep| {
            let (chosen, flushes, gets) = (choose(16), choose(2) == 1, choose(2) == 1);
            for (_, word) in words.iter().enumerate().filter(|(at, _)| chosen & 1 << at != 0) {
                let word = word.remote::<u64>(0);
                if flushes { ep.put_untracked(word, 1) } else { ep.put_value(word, 1) }.detach()?;
            }
            assert_eq!(ep.has_unflushed(NodeId(0)), chosen != 0 && !flushes);
            if gets {
                ep.get_span(source.remote::<u64>(0), here.span(0, 8)).detach()?;
            }
            if flushes {
                ep.flush();
            } else {
                ep.block_on(ep.global_fence([NodeId(0)]))?;
            }
            assert!(!ep.has_unflushed(NodeId(0)), "what the fence has covered");
            assert!(!gets || here.word(0).load() == 9, "the get has not landed");
            put_to.store(chosen as u64);
            rounds.store(1);
            Ok(())
        });
        Ok(())
    })
}

/// A task waits for the reads of its endpoint. Another task of the thread takes their results, the last of them when
/// the first has just looked for it.
fn others_reads() -> Scenario {
    let about = "a wait for reads ends with the last of them, whichever task has its handle";
    Scenario::new("fence/others-reads", about, 2, |cluster| {
        let (x, y, here) = (word(cluster, 1, "x")?, word(cluster, 1, "y")?, word(cluster, 0, "here")?);
        cluster.thread(0, "reads", move |ep| {
            let (x, y) = (x.remote::<u64>(0), y.remote::<u64>(0));
            let gets = [ep.get(x), ep.get(y)];
            let takes = async {
                let [first, last] = gets;
                first.await?;
                here.word(0).load(); // the last may end here
                last.await.map(drop)
            };
            let waits = async {
                ep.wait_for_reads([NodeId(1)]).await;
                Ok(())
            };
            let tasks: [Pin<Box<dyn Future<Output = fabric::Result<()>>>>; 2] = [Box::pin(waits), Box::pin(takes)];
            let mut ends = Ok(());
            ep.run_window(2, tasks, |end| ends = ends.clone().and(end));
            Ok(ends?)
        });
        Ok(())
    })
}

/// Of two nodes that a fence covers, one has taken the right to a group, and the other may have died.
fn revoked() -> Scenario {
    let about = "a fence returns the error of a node that lives, if another is dead";
    Scenario::new("fence/revoked", about, 3, |cluster| {
        let ((group, guarded), x) = (further_word(cluster, 1)?, word(cluster, 2, "x")?);
        let (me, step) = (cluster.node(0), Rc::new(Word::new(0)));
        let revoked = Rc::clone(&step);
        cluster.thread(1, "revokes", move |ep| {
            ep.fabric().revoke(NodeId(0), group, Duration::from_secs(1))?;
            revoked.store(1);
            Ok(())
        });
        cluster.thread(0, "fences", move |ep| {
            // Either is refused if its node is quick.
            let _ = ep.put_value(guarded.remote::<u64>(0), 1).detach();
            let _ = ep.put_value(x.remote::<u64>(0), 1).detach();
            let is_decided = || !crashed(2) || me.status_of(NodeId(2)) == Some(MemberStatus::Evicted);
            let come = || (step.load() == 1 && is_decided()).then_some(());
            ep.block_on(ep.wait_until(Instant::NEVER, come))?;
            if !ep.has_unflushed(NodeId(1)) {
                return Ok(());
            }
            let error = ep.block_on(ep.global_fence([2, 1].map(NodeId))).expect_err("the right is revoked");
            assert!(matches!(error.kind(), ErrorKind::Revoked { key, .. } if *key == group), "{error}");
            // The next one leaves that group out.
            let error = ep.block_on(ep.global_fence([1].map(NodeId))).err();
            assert!(error.is_none(), "{error:?}");
            Ok(())
        });
        Ok(())
    })
    .faults(Faults::new().crashes(1).of([2]))
}

/// The fence of a release is refused a few times, or until the timeout of its endpoint.
fn refused_long() -> Scenario {
    let about = "a fence that is refused is repeated, and ends in an error at the latest when its time is over";
    Scenario::new("fence/refused-long", about, 2, |cluster| {
        let refusals = refused::anywhere::start(cluster, 2)?;
        let (me, x) = (cluster.node(0), word(cluster, 1, "x")?);
        cluster.thread(0, "fences", move |ep| {
            let for_good = choose(2) == 1;
            ep.put_value(x.remote::<u64>(0), 1).detach()?;
            refusals.fail_some(0, if for_good { u32::MAX } else { 1 + choose(3) as u32 });
            let ends = ep.block_on(me.fence_live_nodes(ep, [NodeId(1)].into_iter()));
            refusals.fail_after(u64::MAX);
            match ends {
                Err(error) if for_good && error.is_refused() => Ok(()),
                Ok(lost) if !for_good && lost.is_empty() => Ok(()),
                ends => panic!("{ends:?}, refused for good: {for_good}"),
            }
        });
        Ok(())
    })
    .late_nodes()
}

/// One of the nodes with puts may be dead, and known to be.
fn dead() -> Scenario {
    let about = "a fence does not wait for a node that is known to be dead";
    Scenario::new("fence/dead", about, 3, |cluster| {
        let (me, words) = (cluster.node(0), [word(cluster, 1, "x")?, word(cluster, 2, "x")?]);
        cluster.thread(0, "fences", move |ep| {
            for word in &words {
                // An error if the node is quick to die.
                let _ = ep.put_value(word.remote::<u64>(0), 1).detach();
            }
            let is_decided = || !crashed(2) || me.status_of(NodeId(2)) == Some(MemberStatus::Evicted);
            ep.block_on(ep.wait_until(Instant::NEVER, || is_decided().then_some(())))?;
            let (is_dead, start) = (crashed(2), ep.now());
            let lost = ep.block_on(me.fence_live_nodes(ep, [1, 2].map(NodeId).into_iter()))?;
            let took = ep.now() - start;
            assert!(!is_dead || lost.is_empty(), "{lost:?}");
            assert!(!is_dead || took < me.timeout() / 2, "it has waited for {took:?}");
            Ok(())
        });
        Ok(())
    })
    .faults(Faults::new().crashes(1).of([2]))
}
