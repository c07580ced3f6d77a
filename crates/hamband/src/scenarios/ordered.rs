//! Conflicting calls: at the leader, at others, and when nodes die.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use farfield_check::parts::{Excuse, goes_on, patiently};
use farfield_check::{Cluster, Faults, Scenario};
use farfield_core::{Endpoint, Result};
use farfield_fabric::DeathRule;

use super::OPTIONS;
use super::till::{Purse, PurseUpdate};
use crate::{Replicated, Writer};

pub(super) fn scenarios() -> Vec<Scenario> {
    vec![
        order(),
        refusal(),
        depends(),
        stable(),
        contended().faults(Faults::new().crashes(1).of([0])),
        deaths("hamband/leader-dies", 3, &[0])
            .faults(Faults::new().crashes(1).of([0]))
            .kills(&["hamband-ordered-twice"]),
        deaths("hamband/caller-dies", 3, &[2]).faults(Faults::new().crashes(1).of([2])),
        deaths("hamband/leader-decided", 3, &[0])
            .rule(DeathRule::Majority)
            .faults(Faults::new().crashes(1).cuts(1).pauses(1).of([0]).side([0])),
    ]
}

type Member = (Replicated<Purse>, Rc<RefCell<Writer<Purse>>>);

/// The calls that have ended well, and those whose end is not known: name and amount.
#[derive(Default)]
struct Calls {
    taken: Vec<(u8, u64)>,
    perhaps: Vec<(u8, u64)>,
    /// A call has timed out, since a fault had happened that was not known yet.
    has_given_up: bool,
}

fn open(cluster: &Cluster) -> Result<Vec<Member>> {
    let members = cluster.on_each(|node| {
        let purse = Replicated::open(node, "purse", Purse::default(), OPTIONS.clone())?;
        let writer = Rc::new(RefCell::new(purse.writer()?));
        Ok((purse, writer))
    })?;
    Ok(members)
}

/// At the end: the orders of all live replicas are prefixes of one, what was acknowledged is in it, once, and nothing else.
fn at_end(cluster: &Cluster, members: &[Member], calls: &Rc<RefCell<Calls>>) {
    let (members, calls, nodes) = (members.to_vec(), Rc::clone(calls), cluster.nodes());
    cluster.at_end(move || {
        let calls = calls.borrow();
        let mut longest: Vec<(u8, u64)> = Vec::new();
        let mut orders = Vec::new();
        for (_, (purse, _)) in nodes.iter().zip(&members).filter(|(node, _)| goes_on(node)) {
            let purse = purse.query(Purse::clone)?;
            if purse.taken.len() > longest.len() {
                longest.clone_from(&purse.taken);
            }
            orders.push(purse.taken);
        }
        if orders.is_empty() {
            return Ok(());
        }
        for order in &orders {
            assert!(longest.starts_with(order), "{orders:?}");
        }
        for call in &calls.taken {
            let times = longest.iter().filter(|other| *other == call).count();
            assert_eq!(times, 1, "{call:?} in {longest:?}");
        }
        for call in &longest {
            assert!(calls.taken.contains(call) || calls.perhaps.contains(call), "{call:?} was refused, or never made");
            assert_eq!(longest.iter().filter(|other| *other == call).count(), 1, "twice in {longest:?}");
        }
        drop(members);
        Ok(())
    });
}

fn update(writer: &mut Writer<Purse>, ep: &Endpoint, update: &PurseUpdate) -> Result<()> {
    let done = ep.block_on(writer.update(ep, update))?;
    assert_eq!(done, Ok(()), "{update:?} is permissible");
    Ok(())
}

/// Takes money, and notes how that has ended. Whether it was taken.
fn take(writer: &mut Writer<Purse>, ep: &Endpoint, calls: &RefCell<Calls>, name: u8, amount: u64) -> Result<bool> {
    // Noted first: the thread may end in the middle.
    calls.borrow_mut().perhaps.push((name, amount));
    let done = ep.block_on(writer.update(ep, &PurseUpdate::Take(name, amount)))?;
    let mut calls = calls.borrow_mut();
    calls.perhaps.retain(|call| *call != (name, amount));
    if done.is_ok() {
        calls.taken.push((name, amount));
    }
    Ok(done.is_ok())
}

/// Two processes take what only one can have.
fn order() -> Scenario {
    let about = "of two calls of which one is permissible, one is made, in one order everywhere";
    Scenario::new("hamband/order", about, 2, |cluster| {
        let (members, calls) = (open(cluster)?, Rc::<RefCell<Calls>>::default());
        at_end(cluster, &members, &calls);
        for (me, (purse, writer)) in members.into_iter().enumerate() {
            let calls = Rc::clone(&calls);
            cluster.thread(me, "calls", move |ep| {
                let (mut writer, name) = (writer.borrow_mut(), me as u8);
                update(&mut writer, ep, &PurseUpdate::Name(name))?;
                update(&mut writer, ep, &PurseUpdate::Add(3))?;
                // All six are there before any is taken.
                ep.block_on(purse.wait_until(ep, ep.deadline(), |purse| purse.cash == 6 || !purse.taken.is_empty()))?;
                take(&mut writer, ep, &calls, name, 5)?;
                ep.block_on(purse.wait_until(ep, ep.deadline(), |purse| purse.taken.len() == 1))
            });
        }
        Ok(())
    })
}

/// Each takes what it has added, and one more call is refused.
fn refusal() -> Scenario {
    let about = "a call that is refused changes nothing, and the next one is made";
    Scenario::new("hamband/refusal", about, 3, |cluster| {
        let (members, calls) = (open(cluster)?, Rc::<RefCell<Calls>>::default());
        at_end(cluster, &members, &calls);
        for (me, (purse, writer)) in members.into_iter().enumerate() {
            let calls = Rc::clone(&calls);
            cluster.thread(me, "calls", move |ep| {
                let (mut writer, name) = (writer.borrow_mut(), me as u8);
                assert!(!take(&mut writer, ep, &calls, 10 + name, 1)?, "there is no such name");
                update(&mut writer, ep, &PurseUpdate::Name(name))?;
                update(&mut writer, ep, &PurseUpdate::Add(1 + u64::from(name)))?;
                assert!(!take(&mut writer, ep, &calls, name, 100)?, "there is too little");
                ep.block_on(writer.stable(ep))?;
                let taken = take(&mut writer, ep, &calls, name, 1 + u64::from(name))?;
                assert!(taken, "nobody else takes what this one has added");
                ep.block_on(purse.wait_until(ep, ep.deadline(), |purse| purse.taken.len() == 3 && purse.cash == 0))
            });
        }
        Ok(())
    })
    .kills(&["hamband-old-answer"])
}

/// A call depends on calls of others that some replicas get later.
fn depends() -> Scenario {
    let about = "an ordered call waits for the calls that it depends on";
    Scenario::new("hamband/ordered-after", about, 3, |cluster| {
        let (members, calls) = (open(cluster)?, Rc::<RefCell<Calls>>::default());
        at_end(cluster, &members, &calls);
        for (me, (purse, writer)) in members.into_iter().enumerate() {
            let calls = Rc::clone(&calls);
            cluster.thread(me, "calls", move |ep| {
                let mut writer = writer.borrow_mut();
                match me {
                    1 => {
                        update(&mut writer, ep, &PurseUpdate::Add(5))?;
                        update(&mut writer, ep, &PurseUpdate::Name(7))?;
                    }
                    0 => {
                        let is_there = |purse: &Purse| purse.cash == 5 && purse.names.contains(&7);
                        ep.block_on(purse.wait_until(ep, ep.deadline(), is_there))?;
                        assert!(take(&mut writer, ep, &calls, 7, 5)?, "it is there");
                    }
                    _ => {}
                }
                ep.block_on(purse.wait_until(ep, ep.deadline(), |purse| purse.taken.len() == 1))
            });
        }
        Ok(())
    })
    .kills(&["hamband-ordered-early", "hamband-not-carried"])
}

/// A call is stable when it is applied everywhere.
fn stable() -> Scenario {
    let about = "an ordered call is stable when all replicas have applied it";
    Scenario::new("hamband/ordered-stable", about, 3, |cluster| {
        let (members, calls) = (open(cluster)?, Rc::<RefCell<Calls>>::default());
        at_end(cluster, &members, &calls);
        let is_stable = Rc::new(Cell::new(false));
        for (me, (purse, writer)) in members.into_iter().enumerate() {
            let (calls, is_stable) = (Rc::clone(&calls), Rc::clone(&is_stable));
            cluster.thread(me, "calls", move |ep| {
                let mut writer = writer.borrow_mut();
                if me == 1 {
                    update(&mut writer, ep, &PurseUpdate::Name(1))?;
                    update(&mut writer, ep, &PurseUpdate::Add(5))?;
                    assert!(take(&mut writer, ep, &calls, 1, 5)?, "it has added that");
                    ep.block_on(writer.stable(ep))?;
                    is_stable.set(true);
                    return Ok(());
                }
                for _ in 0..4 {
                    let was_stable = is_stable.get();
                    let has_taken = purse.query(|purse| !purse.taken.is_empty())?;
                    assert!(has_taken || !was_stable, "it is stable, and not applied here");
                    ep.block_on(ep.pause());
                }
                Ok(())
            });
        }
        Ok(())
    })
    .kills(&["hamband-stable-early"])
}

/// All take from what is enough for one, and the leader dies.
fn contended() -> Scenario {
    let about = "a leader decides with the entries of those before it";
    Scenario::new("hamband/contended", about, 3, |cluster| {
        let (members, calls) = (open(cluster)?, Rc::<RefCell<Calls>>::default());
        at_end(cluster, &members, &calls);
        for (me, (_, writer)) in members.into_iter().enumerate() {
            let (calls, node) = (Rc::clone(&calls), cluster.node(me));
            cluster.thread(me, "calls", move |ep| {
                let (mut writer, name, excuse) = (writer.borrow_mut(), me as u8, Excuse::now());
                let mut work = || -> Result<()> {
                    update(&mut writer, ep, &PurseUpdate::Name(name))?;
                    update(&mut writer, ep, &PurseUpdate::Add(2))?;
                    for amount in 1..=3 {
                        take(&mut writer, ep, &calls, name, amount)?;
                    }
                    Ok(())
                };
                match work() {
                    Err(_) if me == 0 || !goes_on(&node) => Ok(()),
                    Err(error) if error.is_timeout() && excuse.is_given() => Ok(()),
                    done => done,
                }
            });
        }
        Ok(())
    })
    .kills(&["hamband-asked-early"])
}

/// Nodes die while all take. The others' calls end well.
fn deaths(name: &str, nodes: usize, victims: &[usize]) -> Scenario {
    let about = "calls go on when a node dies, what was acknowledged stays, and replicas agree";
    let victims = victims.to_vec();
    Scenario::new(name, about, nodes, move |cluster| {
        let (members, calls) = (open(cluster)?, Rc::<RefCell<Calls>>::default());
        at_end(cluster, &members, &calls);
        for (me, (purse, writer)) in members.into_iter().enumerate() {
            let (calls, victims, node) = (Rc::clone(&calls), victims.clone(), cluster.node(me));
            cluster.thread(me, "calls", move |ep| {
                let (mut writer, name) = (writer.borrow_mut(), me as u8);
                let (is_victim, excuse) = (victims.contains(&me), Excuse::now());
                let mut work = || -> Result<()> {
                    update(&mut writer, ep, &PurseUpdate::Name(name))?;
                    for amount in 1..=2 {
                        update(&mut writer, ep, &PurseUpdate::Add(amount))?;
                        let taken = take(&mut writer, ep, &calls, name, amount)?;
                        assert!(taken, "nobody else takes what this one has added");
                    }
                    Ok(())
                };
                match work() {
                    // One that is cut off finds out that it counts as dead.
                    Err(_) if is_victim || !goes_on(&node) => {
                        calls.borrow_mut().has_given_up |= !is_victim;
                        return Ok(());
                    }
                    Err(error) if error.is_timeout() && excuse.is_given() => {
                        calls.borrow_mut().has_given_up = true;
                        return Ok(());
                    }
                    done => done?,
                }
                let others = |purse: &Purse| {
                    let of = |other: &u8| !victims.contains(&usize::from(*other));
                    let live = (0..nodes as u8).filter(of).count();
                    purse.taken.iter().filter(|(name, _)| of(name)).count() == 2 * live
                };
                let is_over = |purse: &Purse| others(purse) || calls.borrow().has_given_up;
                if is_victim {
                    return Ok(());
                }
                let waited = patiently(|| ep.block_on(purse.wait_until(ep, ep.deadline(), is_over)));
                if calls.borrow().has_given_up || !goes_on(&node) { Ok(()) } else { waited }
            });
        }
        Ok(())
    })
}
