//! Members that die, leave, make different calls, or are refused an operation.

use std::cell::RefCell;
use std::rc::Rc;

use farfield_check::{Faults, Scenario, choose, crashed, was_paused};
use farfield_core::{Endpoint, Error, Result};
use farfield_fabric::fault::{self, inject};
use farfield_fabric::{DeathRule, EndpointOptions, NodeId};

use super::{OPTIONS, open};
use crate::{CallFailed, Collectives, DifferentCalls};

pub(super) fn scenarios() -> Vec<Scenario> {
    vec![dies(), reopened(), left(), different(), refused()]
}

const VICTIM: usize = 2;

/// The call has failed because of the node that may die, and has not waited for it.
fn comes_of_death(error: &Error) {
    assert!(crashed(VICTIM), "{error}");
    assert!(error.custom_ref::<CallFailed>().is_some(), "{error}");
    assert!(error.node() == Some(NodeId(VICTIM as u16)) || was_paused(), "it names another node: {error}");
    assert!(!error.is_timeout() || was_paused(), "it has waited for the dead: {error}");
}

/// One of three may die at any moment. The calls of the others end, and those after them fail.
fn dies() -> Scenario {
    let about = "a call that misses a dead member fails at once and names it, and so do all later ones";
    Scenario::new("collectives/dies", about, 3, |cluster| {
        for (me, member) in open(cluster)?.into_iter().enumerate() {
            cluster.thread(me, "calls", move |ep| {
                let mut all = member.borrow_mut();
                let mut has_failed = false;
                for call in 0..3 {
                    let mut data = [me as u64 + call];
                    let done = match call {
                        1 => all.broadcast_blocking(ep, NodeId(0), &mut data),
                        _ => all.all_reduce_blocking(ep, &mut data, |a, b| a + b),
                    };
                    match done {
                        Ok(()) => {
                            assert!(!has_failed, "a call works after one that has failed");
                            assert_eq!(data, [if call == 1 { 1 } else { 3 + 3 * call }]);
                        }
                        Err(error) => {
                            comes_of_death(&error);
                            has_failed = true;
                        }
                    }
                }
                Ok(())
            });
        }
        Ok(())
    })
    .rule(DeathRule::Majority)
    .faults(Faults::new().crashes(1).of([VICTIM]))
    .kills(&["collectives-waits-for-dead"])
}

/// After a death the others reopen the object, and go on with it.
fn reopened() -> Scenario {
    let about = "the members that are left reopen the object and go on, with no chunk of the time before";
    Scenario::new("collectives/reopened", about, 3, |cluster| {
        for (me, member) in open(cluster)?.into_iter().enumerate() {
            let node = cluster.node(me);
            cluster.thread(me, "calls", move |ep| {
                let mut data = [1];
                let mut failed = None;
                for _ in 0..2 {
                    failed = member.borrow_mut().all_reduce_blocking(ep, &mut data, |a, b| a + b).err().or(failed);
                }
                if ep.check_alive(NodeId(VICTIM as u16)).is_ok() && failed.is_none() {
                    return Ok(());
                }
                if let Some(error) = &failed {
                    comes_of_death(error);
                }
                let open = |again: &farfield_core::Reopening| {
                    let all = Collectives::open_among(&node, again.path(), again.members(), OPTIONS)?;
                    Ok(Rc::new(RefCell::new(all)))
                };
                // Another may have ended before the death: it does not reopen.
                let Ok(all) = node.reopen("all", open) else { return Ok(()) };
                let mut data = [10 + me as u64];
                if let Ok(()) = all.borrow_mut().all_reduce_blocking(ep, &mut data, |a, b| a + b) {
                    assert_eq!(data, [21], "of two members");
                }
                Ok(())
            });
        }
        Ok(())
    })
    .faults(Faults::new().crashes(1).of([VICTIM]))
}

/// A member leaves after its last call, in which others may still be.
fn left() -> Scenario {
    let about = "a member that has ended its last call, and left, keeps nobody from ending it";
    Scenario::new("collectives/left", about, 3, |cluster| {
        for (me, member) in open(cluster)?.into_iter().enumerate() {
            let node = cluster.node(me);
            cluster.thread_that_drops(me, "calls", move |ep| {
                let mut data = [1 + me as u64];
                member.borrow_mut().all_reduce_blocking(ep, &mut data, |a, b| 10 * a + b)?;
                assert_eq!(data, [123]);
                if me == VICTIM {
                    ep.flush();
                    node.leave();
                }
                Ok(())
            });
        }
        Ok(())
    })
}

/// Node 2 makes another call than the others. It sees that where it takes a chunk, or they do.
fn different() -> Scenario {
    let about = "a member that makes another call is found, and no call waits until its deadline";
    Scenario::new("collectives/different", about, 3, |cluster| {
        for (me, member) in open(cluster)?.into_iter().enumerate() {
            cluster.thread(me, "calls", move |ep| {
                let mut all = member.borrow_mut();
                let mut data = [me as u64];
                let done = match me {
                    VICTIM => all.broadcast_blocking(ep, NodeId(0), &mut data),
                    _ => all.all_reduce_blocking(ep, &mut data, |a, b| a + b),
                };
                let error = done.expect_err("one member makes another call");
                assert!(!error.is_timeout(), "it has waited for a call that nobody makes: {error}");
                let failed = error.custom_ref::<CallFailed>().expect("a failed call");
                let is_seen_here = failed.because.custom_ref::<DifferentCalls>().is_some();
                assert!(me != VICTIM || is_seen_here, "{error}");
                Ok(())
            });
        }
        Ok(())
    })
    .kills(&["collectives-failure-untold"])
}

/// An endpoint like another, but with operations that are refused on command.
fn faulty(ep: &Endpoint) -> Result<(Endpoint, fault::Faults)> {
    let faults = fault::Faults::default();
    let fabric = inject(ep.transport().clone(), faults.clone());
    Ok((Endpoint::open(fabric, EndpointOptions::default())?, faults))
}

/// Some operations of node 0 are refused, whichever they are. They are repeated.
fn refused() -> Scenario {
    let about = "an operation that is refused is repeated, and no chunk is lost or sent twice";
    Scenario::new("collectives/refused", about, 2, |cluster| {
        for (me, member) in open(cluster)?.into_iter().enumerate() {
            cluster.thread(me, "calls", move |ep| {
                let (ep, faults) = faulty(ep)?;
                if me == 0 {
                    faults.fail_some(choose(8) as u64, 1 + choose(2) as u32);
                }
                let mut all = member.borrow_mut();
                for call in 1..=2 {
                    let mut data = [call * (1 + me as u64), 5];
                    all.all_reduce_blocking(&ep, &mut data, |a, b| a + b)?;
                    assert_eq!(data, [3 * call, 10]);
                }
                let mut data = [[7, 8, 9], [0; 3]][1 - me];
                all.broadcast_blocking(&ep, NodeId(1), &mut data)?;
                assert_eq!(data, [7, 8, 9]);
                ep.flush();
                Ok(())
            });
        }
        Ok(())
    })
}
