//! Executions that are recorded, and compared with the abstract semantics (§3.2, figure 5).

use std::cell::RefCell;
use std::rc::Rc;

use farfield_check::parts::{Excuse, goes_on};
use farfield_check::{Faults, Scenario, choose};
use farfield_core::{Endpoint, Result};

use super::till::{Purse, PurseUpdate, Till, TillUpdate};
use crate::recorded::{Calls, Recorded, well_coordinated};
use crate::types::{MovieRental, MovieUpdate};
use crate::{DataType, Replicated, ReplicatedOptions, Writer};

pub(super) fn scenarios() -> Vec<Scenario> {
    let anyone = || Faults::new().crashes(1).of([0, 1, 2]);
    vec![
        refines("hamband/refines-free", Till::default, till),
        refines("hamband/refines", Purse::default, purse),
        refines("hamband/refines-groups", MovieRental::default, movie).kills(&["hamband-group-split"]),
        refines("hamband/refines-free-dies", Till::default, till).faults(anyone()),
        refines("hamband/refines-dies", Purse::default, purse).faults(anyone()),
        refines("hamband/refines-groups-dies", MovieRental::default, movie).faults(anyone()),
    ]
}

/// Summaries have all their calls.
static OPTIONS: ReplicatedOptions = ReplicatedOptions {
    call_bytes_max: 32,
    refusal_bytes_max: 24,
    summary_bytes_max: 64,
    feed_bytes: 1024,
    serialised: false,
};

fn till(me: u8) -> TillUpdate {
    match choose(5) {
        0 => TillUpdate::Add(1),
        1 => TillUpdate::Mark([me].into()),
        2 => TillUpdate::Open(0),
        3 => TillUpdate::Deposit(0, 1),
        _ => TillUpdate::Use(0),
    }
}

fn purse(me: u8) -> PurseUpdate {
    match choose(3) {
        0 => PurseUpdate::Add(1),
        1 => PurseUpdate::Name(0),
        _ => PurseUpdate::Take(0, u64::from(me % 2) + 1),
    }
}

/// Two groups, with leaders of their own.
fn movie(_: u8) -> MovieUpdate<u8, u8> {
    match choose(4) {
        0 => MovieUpdate::AddCustomer(0),
        1 => MovieUpdate::DeleteCustomer(0),
        2 => MovieUpdate::AddMovie(0),
        _ => MovieUpdate::DeleteMovie(0),
    }
}

/// The calls of each node are chosen, and may be refused. The histories of all replicas that live have been well
/// coordinated in the end, and are alike if no node has died.
fn refines<T: DataType>(name: &str, initial: fn() -> T, update: fn(u8) -> T::Update) -> Scenario {
    const NODES: usize = 3;
    let about = "the histories of replicas are some of the abstract semantics";
    Scenario::new(name, about, NODES, move |cluster| {
        let members = cluster.on_each(move |node| {
            let replica = Replicated::open(node, "recorded", Recorded::new(initial()), OPTIONS.clone())?;
            let writer = replica.writer()?;
            Ok((replica, Rc::new(RefCell::new(writer))))
        })?;
        let are_stable = Rc::new(RefCell::new(0));
        for (me, (_, writer)) in members.iter().enumerate() {
            let (writer, node, are_stable) = (Rc::clone(writer), cluster.node(me), Rc::clone(&are_stable));
            cluster.thread(me, "calls", move |ep| {
                let excuse = Excuse::now();
                match makes_calls(&mut writer.borrow_mut(), ep, me, update) {
                    Ok(()) => *are_stable.borrow_mut() += 1,
                    Err(_) if !goes_on(&node) => {}
                    Err(error) if error.is_timeout() && excuse.is_given() => {}
                    Err(error) => return Err(error),
                }
                Ok(())
            });
        }
        let nodes = cluster.nodes();
        cluster.at_end(move || {
            let mut replicas = Vec::new();
            for (node, (replica, _)) in nodes.iter().zip(&members) {
                replicas.push(if goes_on(node) { Some(replica.query(Recorded::clone)?) } else { None });
            }
            well_coordinated(&initial(), &replicas).unwrap_or_else(|fault| panic!("{fault}"));
            let lengths: Vec<usize> = replicas.iter().flatten().map(|replica| replica.history().len()).collect();
            let is_whole = *are_stable.borrow() == NODES && lengths.len() == NODES;
            assert!(!is_whole || lengths.iter().all(|length| *length == lengths[0]), "calls are missing: {replicas:?}");
            Ok(())
        });
        Ok(())
    })
}

/// Three calls, refused or not, and a wait until all replicas have them.
fn makes_calls<T: DataType>(
    writer: &mut Writer<Recorded<T>>,
    ep: &Endpoint,
    me: usize,
    update: fn(u8) -> T::Update,
) -> Result<()> {
    for number in 0..3 {
        let call = Calls::one(me as u16, number, update(me as u8));
        let _refusal = ep.block_on(writer.update(ep, &call))?;
    }
    ep.block_on(writer.stable(ep))
}
