//! Calls that fail, are repeated, or meet a node that starts meanwhile.

use std::time::Duration;

use super::*;

/// The call of a node reaches one that starts later.
pub(super) fn coming() -> Scenario {
    Scenario::new("reopen/coming", "two nodes come and reopen an object, in any order", 2, |cluster| {
        let kept = kept(cluster);
        for at in 0..2 {
            let (kept, starter) = (Rc::clone(&kept), cluster.starter());
            cluster.thread_without_endpoint(at, "reopens", move || {
                let (node, all) = (starter.start(at)?, [NodeId(0), NodeId(1)]);
                let (generation, members, object) = reopen(&node, &all)?;
                assert_eq!((generation, &members[..]), (1, &all[..]));
                look(&node.endpoint()?, generation, &members, &object)?;
                kept.borrow_mut().push((node.id().0, generation, object));
                Ok(())
            });
        }
        Ok(())
    })
    .late_nodes()
}

/// Node 0 has left, and another takes its rank while the others reopen an object: again, until it takes part.
pub(super) fn comes_meanwhile() -> Scenario {
    const BACK: NodeId = NodeId(3);
    let until_all = |node: &Node, kept: &Kept<Object>| -> Result<()> {
        let (ep, start) = (node.endpoint()?, node.now());
        loop {
            let candidates: Vec<NodeId> = (1..4).map(NodeId).collect();
            let (generation, members, object) = reopen(node, &candidates)?;
            look(&ep, generation, &members, &object)?;
            kept.borrow_mut().push((node.id().0, generation, object));
            if members.contains(&BACK) {
                let took = node.now() - start;
                assert!(took < node.timeout(), "nobody is missing, and still it took {took:?}");
                return Ok(());
            }
            // It is not called more often than that, or it might be for ever.
            let has_come = || node.live_members().contains(&BACK).then_some(());
            ep.block_on(ep.wait_until(Instant::NEVER, has_come))?;
        }
    };
    let about = "a node takes the rank of one that has left, while the others reopen an object";
    Scenario::new("reopen/comes", about, 4, move |cluster| {
        cluster.node(0).leave();
        let kept = kept(cluster);
        for node in [1, 2].map(|node| cluster.node(node)) {
            let kept = Rc::clone(&kept);
            cluster.thread_without_endpoint(node.id().index(), "reopens", move || until_all(&node, &kept));
        }
        let starter = cluster.starter();
        cluster.thread_without_endpoint(BACK.index(), "comes", move || until_all(&starter.start(BACK.index())?, &kept));
        Ok(())
    })
    .places(3)
    .rule(DeathRule::Majority)
    .kills(&["reopen-change-missed"])
}

/// A call fails where the objects are opened. The others notice when it is repeated, and follow at once.
pub(super) fn fails() -> Scenario {
    Scenario::new("reopen/fails", "a call of reopen fails, and is repeated", 2, |cluster| {
        let (kept, all) = (kept(cluster), all(cluster));
        for node in cluster.nodes() {
            let (kept, all) = (Rc::clone(&kept), all.clone());
            cluster.thread_that_drops(node.id().index(), "reopens", move |ep| {
                let start = node.now();
                if node.id().0 == 1 {
                    let refused = node.reopen_among("words", &all, |again| -> Result<()> {
                        Err(ErrorKind::Config { why: format!("not {}", again.path()) }.into())
                    });
                    let error = refused.expect_err("its objects are not opened");
                    assert!(matches!(error.kind(), ErrorKind::Config { .. }), "{error}");
                }
                let (generation, members, object) = reopen(&node, &all)?;
                assert_eq!((generation, &members), (2, &all));
                look(ep, generation, &members, &object)?;
                kept.borrow_mut().push((node.id().0, generation, object));
                assert!(node.now() - start < node.timeout(), "it followed only after a timeout");
                Ok(())
            });
        }
        Ok(())
    })
}

/// Time passes when nothing else can happen: all messages have arrived.
fn sleep(ep: &Endpoint, time: Duration) {
    assert!(ep.block_on(ep.wait_until(ep.now() + time, || None::<()>)).is_err());
}

/// A node calls, and gives up since the other does not. Then both continue with the old object.
pub(super) fn in_vain() -> Scenario {
    Scenario::new("reopen/in-vain", "a node reopens a barrier in vain, and both meet at the old one", 2, |cluster| {
        let barriers = cluster.on_each(|node| Barrier::open(node, "meet", 1))?;
        let (kept, given_up) = (kept(cluster), Rc::new(Word::new(0)));
        for (node, old) in cluster.nodes().into_iter().zip(barriers) {
            let (kept, given_up) = (Rc::clone(&kept), Rc::clone(&given_up));
            cluster.thread_that_drops(node.id().index(), "meets", move |ep| {
                let mut part = old.thread()?;
                if node.id().0 == 1 {
                    let failed = node.reopen("meet", |again| Barrier::open(&node, again.path(), 1));
                    let error = failed.err().expect("the other does not call it");
                    assert!(
                        matches!(error.kind(), ErrorKind::Timeout { missing, .. } if missing[..] == [NodeId(0)]),
                        "{error}"
                    );
                    given_up.store(1);
                    // The other waits for it by then.
                    sleep(ep, Duration::from_millis(2));
                }
                if let Err(error) = ep.block_on(part.wait(ep)) {
                    let is_asked = matches!(error.kind(), ErrorKind::Reopens { node } if node.0 == 1);
                    assert!(node.id().0 == 0 && (is_asked || error.is_timeout()), "{error}");
                    ep.block_on(ep.wait_until(Instant::NEVER, || (given_up.load() == 1).then_some(())))?;
                    sleep(ep, Duration::from_millis(1));
                    ep.block_on(part.retry_wait(ep, ep.deadline()))?;
                }
                kept.borrow_mut().push((node.id().0, 0, old));
                Ok(())
            });
        }
        Ok(())
    })
}
