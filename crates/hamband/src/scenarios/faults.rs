//! Nodes that die or leave, and operations that are refused.

use std::cell::RefCell;
use std::rc::Rc;

use farfield_check::parts::{Excuse, goes_on};
use farfield_check::{Faults, Scenario, choose};
use farfield_core::{Endpoint, MemberStatus, Result};
use farfield_fabric::fault::{self, inject};
use farfield_fabric::{DeathRule, EndpointOptions, NodeId};

use super::till::{Till, TillUpdate};
use super::{OPTIONS, call, open, open_each, wait_until};
use crate::Replicated;

pub(super) fn scenarios() -> Vec<Scenario> {
    // The source's first put is to the lowest rank.
    let by_majority = dies("hamband/decided", 3, &[2], None, many).rule(DeathRule::Majority);
    vec![
        dies("hamband/dies", 3, &[2], None, many)
            .faults(Faults::new().crashes(1).of([2]))
            .kills(&["hamband-uncopied", "hamband-summary-uncopied"]),
        dies("hamband/dies-sending", 3, &[2], None, |_| vec![TillUpdate::Open(1)])
            .faults(Faults::new().crashes(1).of([2])),
        dies("hamband/dies-adding", 3, &[2], None, |_| vec![TillUpdate::Add(1)])
            .faults(Faults::new().crashes(1).of([2])),
        dies("hamband/dies-overwriting", 3, &[2], None, |_| vec![TillUpdate::Add(1), TillUpdate::Add(2)])
            .faults(Faults::new().crashes(1).of([2]))
            .kills(&["hamband-one-slot"]),
        dies("hamband/die", 4, &[0, 3], None, last_only).faults(Faults::new().crashes(2).of([0, 3])),
        dies("hamband/closed", 4, &[3], Some(1), many)
            .faults(Faults::new().crashes(1).of([3]))
            .kills(&["hamband-closed-asked"]),
        by_majority.faults(Faults::new().crashes(1).cuts(1).of([2]).side([2])),
        reader_dies(),
        refused(),
    ]
}

/// The states of survivors in the end, and of which dead nodes they have all.
type Ends = Rc<RefCell<Vec<(Vec<u16>, Till)>>>;

fn settled(till: &Replicated<Till>, nodes: usize) -> Vec<u16> {
    (0..nodes as u16).filter(|node| till.is_settled(NodeId(*node))).collect()
}

/// Sources of calls die in the middle. All survivors have the same calls of theirs in the end, also if one of them
/// closes the object.
fn dies(
    name: &str,
    nodes: usize,
    victims: &[usize],
    closes: Option<usize>,
    calls_of: fn(usize) -> Vec<TillUpdate>,
) -> Scenario {
    let about = "a call of a dead node that some live replica has applied reaches all live replicas";
    let victims = victims.to_vec();
    Scenario::new(name, about, nodes, move |cluster| {
        let ends = Ends::default();
        let members = if closes.is_some() { open_each(cluster, &OPTIONS)? } else { open(cluster, &OPTIONS)? };
        for (me, (till, writer)) in members.into_iter().enumerate().filter(|(me, _)| closes != Some(*me)) {
            let (ends, node, victims) = (Rc::clone(&ends), cluster.node(me), victims.clone());
            cluster.thread(me, "calls", move |ep| {
                let mut writer = writer.borrow_mut();
                if victims.contains(&me) {
                    // One that is cut off finds out that it counts as dead.
                    let _ = calls_of(me).iter().try_for_each(|update| call(&mut writer, ep, update));
                    return Ok(());
                }
                // Until all victims that die have been dealt with.
                let evicted = || -> Vec<u16> {
                    let nodes = 0..nodes as u16;
                    nodes.filter(|node_of| node.status_of(NodeId(*node_of)) == Some(MemberStatus::Evicted)).collect()
                };
                let is_settled = || (!evicted().is_empty() && settled(&till, nodes) == evicted()).then_some(());
                loop {
                    let excuse = Excuse::now();
                    if ep.block_on(ep.wait_until(ep.deadline(), is_settled)).is_ok() {
                        break;
                    }
                    if evicted().is_empty() || !goes_on(&node) {
                        return Ok(());
                    }
                    assert!(excuse.is_given(), "calls of the dead are not settled");
                }
                let of = settled(&till, nodes);
                let state = till.query(Till::clone)?;
                if settled(&till, nodes) == of {
                    ends.borrow_mut().push((of, state));
                }
                Ok(())
            });
        }
        let victims = victims.len();
        cluster.at_end(move || {
            // Those of live victims may be under way, so they are not compared.
            let all: Vec<_> = ends.borrow().iter().filter(|(of, _)| of.len() == victims).cloned().collect();
            for pair in all.windows(2) {
                assert_eq!(pair[0].1, pair[1].1, "survivors differ");
            }
            Ok(())
        });
        Ok(())
    })
}

/// Several calls of each category.
fn many(_: usize) -> Vec<TillUpdate> {
    let of = |account| [TillUpdate::Add(1), TillUpdate::Open(account), TillUpdate::Deposit(account, 1)];
    [of(10), of(11)].concat()
}

/// One call, but none of the first process.
fn last_only(me: usize) -> Vec<TillUpdate> {
    if me == 0 { Vec::new() } else { vec![TillUpdate::Open(1)] }
}

/// A replica dies that has applied nothing: its room is free.
fn reader_dies() -> Scenario {
    let about = "calls go on when a replica dies, and reach the others";
    Scenario::new("hamband/reader-dies", about, 3, move |cluster| {
        for (me, (till, writer)) in open(cluster, &OPTIONS)?.into_iter().enumerate().take(2) {
            cluster.thread(me, "calls", move |ep| -> Result<()> {
                let mut writer = writer.borrow_mut();
                if me == 0 {
                    call(&mut writer, ep, &TillUpdate::Open(1))?;
                    for _ in 0..12 {
                        call(&mut writer, ep, &TillUpdate::Add(1))?;
                        call(&mut writer, ep, &TillUpdate::Deposit(1, 1))?;
                    }
                    return ep.block_on(writer.stable(ep));
                }
                wait_until(&till, ep, |till| till.cash == 12 && till.accounts.get(&1) == Some(&12))
            });
        }
        Ok(())
    })
    .faults(Faults::new().crashes(1).of([2]))
}

/// An endpoint with operations that are refused at times.
fn faulty(ep: &Endpoint) -> Result<(Endpoint, fault::Faults)> {
    let faults = fault::Faults::default();
    let refusing = inject(ep.transport().clone(), faults.clone());
    Ok((Endpoint::open(refusing, EndpointOptions::default())?, faults))
}

/// Puts of the writer are refused: its service thread repeats them, and folds summaries.
fn refused() -> Scenario {
    let about = "a call whose put is refused reaches the others, also if it is the last one";
    Scenario::new("hamband/refused", about, 2, |cluster| {
        for (me, (till, writer)) in open(cluster, &OPTIONS)?.into_iter().enumerate() {
            cluster.thread(me, "calls", move |ep| {
                if me == 0 {
                    let (ep, faults) = faulty(ep)?;
                    let mut writer = writer.borrow_mut();
                    faults.fail_some(choose(4) as u64, 1 + choose(3) as u32);
                    call(&mut writer, &ep, &TillUpdate::Mark([0].into()))?;
                    call(&mut writer, &ep, &TillUpdate::Open(7))?;
                    for mark in 1..16 {
                        call(&mut writer, &ep, &TillUpdate::Mark([mark].into()))?;
                    }
                    call(&mut writer, &ep, &TillUpdate::Deposit(7, 1))?;
                    ep.flush();
                    return Ok(());
                }
                let mut last = 0;
                wait_until(&till, ep, |till| {
                    let marks = till.marks.len();
                    assert!(last <= marks && till.marks.iter().copied().eq(0..marks as u8), "{:?}", till.marks);
                    last = marks;
                    marks == 16 && till.accounts.get(&7) == Some(&1)
                })
            });
        }
        Ok(())
    })
    .kills(&["hamband-fold-unawaited"])
}
