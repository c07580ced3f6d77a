//! Nodes that die or leave, and operations that are refused.

use std::cell::RefCell;
use std::rc::Rc;

use farfield_check::{Faults, Scenario};
use farfield_core::{MemberStatus, Result};
use farfield_fabric::NodeId;

use super::till::{Till, TillUpdate};
use super::{OPTIONS, call, open, wait_until};
use crate::Replicated;

pub(super) fn scenarios() -> Vec<Scenario> {
    vec![dies(3, 1), dies(4, 2), reader_dies()]
}

/// What a survivor has in the end, and of which dead nodes it has all.
type Ends = Rc<RefCell<Vec<(Vec<u16>, Till)>>>;

fn settled(till: &Replicated<Till>, nodes: usize) -> Vec<u16> {
    (0..nodes as u16).filter(|node| till.is_settled(NodeId(*node))).collect()
}

/// Sources of calls die in the middle. All survivors have the same calls of theirs in the end.
fn dies(nodes: usize, deaths: usize) -> Scenario {
    let about = "a call of a dead node that some live replica has applied reaches all live replicas";
    let name = if deaths == 1 { "hamband/dies" } else { "hamband/die" };
    let victims: Vec<usize> = (nodes - deaths..nodes).collect();
    let of = victims.clone();
    Scenario::new(name, about, nodes, move |cluster| {
        let ends = Ends::default();
        for (me, (till, writer)) in open(cluster, &OPTIONS)?.into_iter().enumerate() {
            let (ends, node, victims) = (Rc::clone(&ends), cluster.node(me), victims.clone());
            cluster.thread(me, "calls", move |ep| {
                let mut writer = writer.borrow_mut();
                if victims.contains(&me) {
                    for round in 0..2 {
                        call(&mut writer, ep, &TillUpdate::Add(1))?;
                        call(&mut writer, ep, &TillUpdate::Open(10 * me as u8 + round))?;
                        call(&mut writer, ep, &TillUpdate::Deposit(10 * me as u8 + round, 1))?;
                    }
                    return Ok(());
                }
                // Until all victims that die have been dealt with.
                let evicted = || -> Vec<u16> {
                    let nodes = 0..nodes as u16;
                    nodes.filter(|node_of| node.status_of(NodeId(*node_of)) == MemberStatus::Evicted).collect()
                };
                let is_settled = || (!evicted().is_empty() && settled(&till, nodes) == evicted()).then_some(());
                if ep.block_on(ep.wait_until(ep.deadline(), is_settled)).is_err() {
                    return Ok(());
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
    .faults(Faults::new().crashes(deaths as u32).of(of))
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
