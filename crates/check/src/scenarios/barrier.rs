//! The barrier: none passes before all have arrived, and all that was put before is visible to all after.

use farfield::fabric::GroupKey;
use farfield::{AtomicVar, Barrier, SharedVar};

use crate::Scenario;

pub(super) fn scenarios() -> Vec<Scenario> {
    vec![visible(), meeting()]
}

/// LOCO Fig. 22: a put to a third node must be visible to whoever passes, wherever it looks.
fn visible() -> Scenario {
    Scenario::new(
        "barrier/visible",
        "a put before the barrier is seen by a get after it, from a third node",
        3,
        |stage| {
            let opened = stage.on_each(|node| {
                let words = node.alloc(GroupKey::DATA, 8)?;
                let custom = farfield::Opening::new(node, "z", "words").region("z", words.clone()).announce()?;
                custom.wait(node.timeout())?;
                Ok((Barrier::open(node, "b", 1)?, custom))
            })?;
            for (me, (barrier, custom)) in opened.into_iter().enumerate() {
                let mut thread = barrier.thread()?;
                let z = custom.remote::<u64>(farfield::NodeId(1), "z")?;
                stage.thread(me, "party", move |ep| {
                    let _custom = custom;
                    if me == 0 {
                        ep.put_value(z, 1).wait()?;
                    }
                    ep.block_on(thread.wait(ep))?;
                    if me == 2 {
                        assert_eq!(ep.get(z).wait()?, 1, "a put from before the barrier is not visible after it");
                    }
                    Ok(())
                });
            }
            Ok(())
        },
    )
}

/// Nobody passes before all have come.
fn meeting() -> Scenario {
    let _ = (core::any::type_name::<AtomicVar>(), core::any::type_name::<SharedVar<u64>>());
    Scenario::new("barrier/meeting", "nobody passes before all have come, round after round", 2, |stage| {
        let barriers = stage.on_each(|node| Barrier::open(node, "b", 1))?;
        let log = stage.log::<(usize, u64, bool)>();
        for (me, barrier) in barriers.into_iter().enumerate() {
            let (mut thread, log) = (barrier.thread()?, log.clone());
            stage.thread(me, "party", move |ep| {
                for round in 0..2 {
                    log.push((me, round, false));
                    ep.block_on(thread.wait(ep))?;
                    log.push((me, round, true));
                }
                Ok(())
            });
        }
        stage.finally(move || {
            let entries = log.take();
            for (at, (_, round, passed)) in entries.iter().enumerate() {
                if *passed {
                    let arrived = entries[..at].iter().filter(|(_, r, p)| r == round && !p).count();
                    assert_eq!(arrived, 2, "somebody passed round {round} before all had come");
                }
            }
            Ok(())
        });
        Ok(())
    })
    .small()
}
