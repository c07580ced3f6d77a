//! Members that die, leave, make different calls, or are refused an operation.

use core::future::{Future, poll_fn};
use core::pin::pin;
use core::task::Poll;
use std::time::Duration;

use farfield_check::parts::Excuse;
use farfield_check::{Cluster, Faults, Scenario, choose};
use farfield_core::{Endpoint, Error, ErrorKind, Reopening, Result};
use farfield_fabric::fault::{self, inject};
use farfield_fabric::{DeathRule, EndpointOptions, NodeId};

use super::{OPTIONS, open};
use crate::{CallFailed, Collectives, DifferentCalls};

pub(super) fn scenarios() -> Vec<Scenario> {
    vec![dies(), dies_amid(), dies_by_majority(), cut_off(), reopened(), left(), different(), refused()]
}

const VICTIM: usize = 2;

/// Three calls of a member. The first one that fails may do so as `fails` says, and those after it have to fail, too.
/// Returns whether one has failed.
fn three_calls(me: usize, all: &mut Collectives, ep: &Endpoint, mut fails: impl FnMut(&Error, Excuse)) -> bool {
    let mut has_failed = false;
    for call in 0..3 {
        let mut data = [me as u64 + call];
        let excuse = Excuse::now();
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
                if !has_failed {
                    fails(&error, excuse);
                }
                has_failed = true;
            }
        }
    }
    has_failed
}

/// A member dies while the others wait for it, and they get to know. Their call ends, and so does the next one.
fn dies() -> Scenario {
    let about = "a call that waits for a member ends when that is known to be dead, and names it";
    Scenario::new("collectives/dies", about, 3, |cluster| {
        for (me, member) in open(cluster)?.into_iter().enumerate().filter(|member| member.0 != VICTIM) {
            cluster.thread(me, "calls", move |ep| {
                let (mut all, mut data) = (member.borrow_mut(), [1]);
                let victim = NodeId(VICTIM as u16);
                let of_death = |done: Result<()>| {
                    let error = done.expect_err("a call has ended without a member");
                    assert!(error.custom_ref::<CallFailed>().is_some(), "{error}");
                    assert!(!error.is_timeout(), "it has waited for the dead: {error}");
                    assert_eq!(error.node(), Some(victim), "{error}");
                };
                {
                    let mut call = pin!(all.all_reduce(ep, &mut data, |a, b| a + b));
                    let begun = ep.block_on(poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx))));
                    let is_dead = || ep.check_alive(victim).err();
                    if ep.block_on(ep.wait_until(ep.now() + Duration::from_secs(1), is_dead)).is_err() {
                        return Ok(());
                    }
                    match begun {
                        Poll::Ready(done) => of_death(done),
                        Poll::Pending => of_death(ep.block_on(call)),
                    }
                }
                of_death(all.broadcast_blocking(ep, NodeId(0), &mut [1]));
                Ok(())
            });
        }
        Ok(())
    })
    .faults(Faults::new().crashes(1).of([VICTIM]))
    .kills(&["collectives-waits-for-dead"])
}

/// A member may die at any moment of three calls.
fn dies_amid() -> Scenario {
    let about = "calls end when a member dies, and all later ones fail";
    Scenario::new("collectives/dies-amid", about, 3, three_calls_of_all).faults(Faults::new().crashes(1).of([VICTIM]))
}

fn dies_by_majority() -> Scenario {
    let about = "calls end when a member dies, or is cut off and evicted";
    Scenario::new("collectives/decided", about, 3, three_calls_of_all)
        .rule(DeathRule::Majority)
        .faults(Faults::new().crashes(1).cuts(1).of([VICTIM]))
}

/// Room for the next chunk is not worth the call that this one has ended.
fn cut_off() -> Scenario {
    let about = "a member that has all of a call's chunks ends it well, whatever has become of the senders";
    Scenario::new("collectives/cut-off", about, 3, |cluster| {
        for (me, member) in open(cluster)?.into_iter().enumerate() {
            cluster.thread(me, "calls", move |ep| {
                let mut all = [0; 3];
                // What it sends to one that is cut off fails first: its connection is gone when it returns the room.
                let done = member.borrow_mut().all_gather_blocking(ep, &[1 + me as u64], &mut all);
                if let (Err(error), true) = (done, me != VICTIM) {
                    let has_all = (0..3).all(|other| other == me || all[other] == 1 + other as u64);
                    assert!(!has_all, "it has what the others have sent, and fails: {error}");
                }
                Ok(())
            });
        }
        Ok(())
    })
    .rule(DeathRule::Majority)
    .faults(Faults::new().cuts(1).side([VICTIM]))
    .kills(&["collectives-room-matters"])
}

fn three_calls_of_all(cluster: &Cluster) -> Result<()> {
    for (me, member) in open(cluster)?.into_iter().enumerate() {
        cluster.thread(me, "calls", move |ep| {
            three_calls(me, &mut member.borrow_mut(), ep, excused);
            Ok(())
        });
    }
    Ok(())
}

/// A call may time out before the others agree on the death.
fn excused(error: &Error, excuse: Excuse) {
    let is_failed = error.custom_ref::<CallFailed>().is_some();
    assert!(is_failed || matches!(error.kind(), ErrorKind::Reopens { .. }), "{error}");
    assert!(!error.is_timeout() || excuse.is_given(), "it has waited for nothing: {error}");
}

/// After a death the others reopen the object, and go on with it.
fn reopened() -> Scenario {
    let about = "the members that are left reopen the object and go on, with no chunk of the time before";
    Scenario::new("collectives/reopened", about, 3, |cluster| {
        for (me, member) in open(cluster)?.into_iter().enumerate() {
            let node = cluster.node(me);
            cluster.thread_that_drops(me, "calls", move |ep| {
                let has_failed = three_calls(me, &mut member.borrow_mut(), ep, excused);
                // Another may have ended before the death, and reopens nothing.
                if !has_failed || me == VICTIM {
                    return Ok(());
                }
                let open = |again: &Reopening| Collectives::open_among(&node, again.path(), again.members(), OPTIONS);
                let Ok(mut all) = node.reopen("all", open) else { return Ok(()) };
                let mut data = [10 + me as u64];
                if all.members().len() == 2 && all.all_reduce_blocking(ep, &mut data, |a, b| a + b).is_ok() {
                    assert_eq!(data, [21]);
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
        // In an `all_reduce` all have begun before one ends. In the others the victim only sends.
        let call = cluster.draw(3);
        for (me, member) in open(cluster)?.into_iter().enumerate() {
            let node = cluster.node(me);
            cluster.thread_that_drops(me, "calls", move |ep| {
                let (mut all, mut data) = (member.borrow_mut(), [1 + me as u64]);
                let expected = match call {
                    0 => all.all_reduce_blocking(ep, &mut data, |a, b| 10 * a + b).map(|()| Some(123))?,
                    1 => all.broadcast_blocking(ep, NodeId(VICTIM as u16), &mut data).map(|()| Some(3))?,
                    _ => {
                        all.reduce_blocking(ep, NodeId(0), &mut data, |a, b| 10 * a + b)?;
                        (me == 0).then_some(123)
                    }
                };
                drop(all);
                assert!(expected.is_none_or(|expected| data == [expected]), "{data:?}");
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
                let mut data = [[0; 3], [7u64, 8, 9]][me];
                all.broadcast_blocking(&ep, NodeId(1), &mut data)?;
                assert_eq!(data, [7, 8, 9]);
                ep.flush();
                Ok(())
            });
        }
        Ok(())
    })
}
