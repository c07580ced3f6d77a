//! Conflicting calls: at the leader, at others, and when nodes die.

use std::cell::RefCell;
use std::rc::Rc;

use farfield_check::parts::{Excuse, goes_on, patiently};
use farfield_check::{Cluster, Faults, Scenario};
use farfield_core::{Endpoint, Node, Result};
use farfield_fabric::DeathRule;

use super::OPTIONS;
use super::till::{Purse, PurseUpdate};
use crate::{Replicated, ReplicatedOptions, Writer};

pub(super) fn scenarios() -> Vec<Scenario> {
    vec![
        order(),
        refusal(),
        depends(),
        stable(),
        stalled().faults(Faults::new().stalls(1).of([2])),
        contended().faults(Faults::new().crashes(1).of([0])),
        deaths("hamband/leader-dies", 3, &[0])
            .faults(Faults::new().crashes(1).of([0]))
            .kills(&["hamband-ordered-twice", "hamband-change-unseen"]),
        deaths("hamband/caller-dies", 3, &[2]).faults(Faults::new().crashes(1).of([2])),
        deaths("hamband/two-of-five", 5, &[0, 1]).faults(Faults::new().crashes(2).of([0, 1])),
        deaths("hamband/leader-decided", 3, &[0])
            .rule(DeathRule::Majority)
            .faults(Faults::new().crashes(1).cuts(1).pauses(1).of([0]).side([0])),
    ]
}

type Member = (Replicated<Purse>, Rc<RefCell<Writer<Purse>>>);

/// The calls that have ended well, and those that may have: name and amount.
#[derive(Default)]
struct Calls {
    taken: Vec<(u8, u64)>,
    perhaps: Vec<(u8, u64)>,
    /// A call has timed out, since a fault had happened that was not known yet.
    has_given_up: bool,
    /// The one that has taken knows that all have it.
    are_stable: bool,
}

fn open(cluster: &Cluster) -> Result<Vec<Member>> {
    let members = cluster.on_each(|node| {
        // Dependencies have a number for each node.
        let feed_bytes = if node.nodes() > 4 { 1024 } else { OPTIONS.feed_bytes };
        let purse =
            Replicated::open(node, "purse", Purse::default(), ReplicatedOptions { feed_bytes, ..OPTIONS.clone() })?;
        let writer = Rc::new(RefCell::new(purse.writer()?));
        Ok((purse, writer))
    })?;
    Ok(members)
}

/// At the end: the orders of all live replicas are prefixes of one, all acknowledged calls are in it, once, and nothing
/// else.
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

/// A node's part in a scenario.
struct Part {
    me: usize,
    node: Node,
    purse: Replicated<Purse>,
    writer: Rc<RefCell<Writer<Purse>>>,
    calls: Rc<RefCell<Calls>>,
}

impl Part {
    /// The name under which this node takes.
    fn name(&self) -> u8 {
        self.me as u8
    }

    /// Makes a call that is permissible.
    fn update(&self, ep: &Endpoint, update: &PurseUpdate) -> Result<()> {
        let done = ep.block_on(self.writer.borrow_mut().update(ep, update))?;
        assert_eq!(done, Ok(()), "{update:?} is permissible");
        Ok(())
    }

    /// Takes money, and notes how that has ended. Whether it was taken.
    fn take(&self, ep: &Endpoint, name: u8, amount: u64) -> Result<bool> {
        // Noted first: the thread may end in the middle.
        self.calls.borrow_mut().perhaps.push((name, amount));
        let done = ep.block_on(self.writer.borrow_mut().update(ep, &PurseUpdate::Take(name, amount)))?;
        let mut calls = self.calls.borrow_mut();
        calls.perhaps.retain(|call| *call != (name, amount));
        if done.is_ok() {
            calls.taken.push((name, amount));
        }
        Ok(done.is_ok())
    }

    fn stable(&self, ep: &Endpoint) -> Result<()> {
        ep.block_on(self.writer.borrow_mut().stable(ep))
    }

    fn wait_until(&self, ep: &Endpoint, condition: impl FnMut(&Purse) -> bool) -> Result<()> {
        ep.block_on(self.purse.wait_until(ep, ep.deadline(), condition))
    }
}

/// A scenario in which each node has a thread. At its end the orders of all replicas are compared.
fn calls(
    name: &str,
    about: &str,
    nodes: usize,
    body: impl Fn(&Part, &Endpoint) -> Result<()> + Clone + Send + Sync + 'static,
) -> Scenario {
    Scenario::new(name, about, nodes, move |cluster| {
        let (members, calls) = (open(cluster)?, Rc::<RefCell<Calls>>::default());
        at_end(cluster, &members, &calls);
        for (me, (purse, writer)) in members.into_iter().enumerate() {
            let part = Part { me, node: cluster.node(me), purse, writer, calls: Rc::clone(&calls) };
            let body = body.clone();
            cluster.thread(me, "calls", move |ep| body(&part, ep));
        }
        Ok(())
    })
}

/// Two processes take money that is there for one.
fn order() -> Scenario {
    let about = "of two calls of which one is permissible, one is made, in one order everywhere";
    calls("hamband/order", about, 2, |part, ep| {
        part.update(ep, &PurseUpdate::Name(part.name()))?;
        part.update(ep, &PurseUpdate::Add(3))?;
        // All six are there before any is taken.
        part.wait_until(ep, |purse| purse.cash == 6 || !purse.taken.is_empty())?;
        part.take(ep, part.name(), 5)?;
        part.wait_until(ep, |purse| purse.taken.len() == 1)
    })
}

/// Each takes the money that it has added, and one more call is refused.
fn refusal() -> Scenario {
    let about = "a call that is refused changes nothing, and the next one is made";
    calls("hamband/refusal", about, 3, |part, ep| {
        let (name, amount) = (part.name(), 1 + part.me as u64);
        assert!(!part.take(ep, 10 + name, 1)?, "there is no such name");
        part.update(ep, &PurseUpdate::Name(name))?;
        part.update(ep, &PurseUpdate::Add(amount))?;
        assert!(!part.take(ep, name, 100)?, "there is too little");
        part.stable(ep)?;
        assert!(part.take(ep, name, amount)?, "no other node takes the money of this one");
        part.wait_until(ep, |purse| purse.taken.len() == 3 && purse.cash == 0)
    })
}

/// A call depends on calls of others that some replicas get later.
fn depends() -> Scenario {
    let about = "an ordered call waits for the calls that it depends on";
    calls("hamband/ordered-after", about, 3, |part, ep| {
        match part.me {
            1 => {
                part.update(ep, &PurseUpdate::Add(5))?;
                part.update(ep, &PurseUpdate::Name(7))?;
            }
            0 => {
                part.wait_until(ep, |purse| purse.cash == 5 && purse.names.contains(&7))?;
                assert!(part.take(ep, 7, 5)?, "it is there");
            }
            _ => {}
        }
        part.wait_until(ep, |purse| purse.taken.len() == 1)
    })
    .kills(&["hamband-ordered-early", "hamband-not-carried"])
}

/// A call is stable when it is applied everywhere.
fn stable() -> Scenario {
    let about = "an ordered call is stable when all replicas have applied it";
    calls("hamband/ordered-stable", about, 3, |part, ep| {
        if part.me == 1 {
            part.update(ep, &PurseUpdate::Name(1))?;
            part.update(ep, &PurseUpdate::Add(5))?;
            assert!(part.take(ep, 1, 5)?, "it has added that");
            part.stable(ep)?;
            part.calls.borrow_mut().are_stable = true;
            return Ok(());
        }
        for _ in 0..4 {
            let are_stable = part.calls.borrow().are_stable;
            let has_taken = part.purse.query(|purse| !purse.taken.is_empty())?;
            assert!(has_taken || !are_stable, "it is stable, and not applied here");
            ep.block_on(ep.pause());
        }
        Ok(())
    })
    .kills(&["hamband-stable-early"])
}

/// The NIC of the one node stands still that the leader's calls do not need.
fn stalled() -> Scenario {
    let about = "a call waits for a majority to apply others, and not for a node that does not answer";
    calls("hamband/ordered-stalled", about, 3, |part, ep| {
        if part.me != 0 {
            return Ok(());
        }
        let excuse = Excuse::now();
        let begins = || -> Result<()> {
            part.update(ep, &PurseUpdate::Add(5))?;
            part.update(ep, &PurseUpdate::Name(0))?;
            part.take(ep, 0, 1).map(drop)
        };
        let begun = begins();
        if excuse.is_given() {
            return Ok(()); // a leader asks all nodes once for room in its log
        }
        begun?;
        for name in 1..=4 {
            part.update(ep, &PurseUpdate::Name(name))?;
            assert!(part.take(ep, name, 1)?, "no other node takes");
        }
        Ok(())
    })
}

/// All take money that is there for one, and the leader dies.
fn contended() -> Scenario {
    let about = "a leader decides with the entries of those before it";
    calls("hamband/contended", about, 3, |part, ep| {
        let excuse = Excuse::now();
        let work = || -> Result<()> {
            part.update(ep, &PurseUpdate::Name(part.name()))?;
            part.update(ep, &PurseUpdate::Add(2))?;
            (1..=3).try_for_each(|amount| part.take(ep, part.name(), amount).map(drop))
        };
        match work() {
            Err(_) if part.me == 0 || !goes_on(&part.node) => Ok(()),
            Err(error) if error.is_timeout() && excuse.is_given() => Ok(()),
            done => done,
        }
    })
    .kills(&["hamband-asked-early"])
}

/// Nodes die while all take. The others' calls end well.
fn deaths(name: &str, nodes: usize, victims: &[usize]) -> Scenario {
    let about = "calls go on when a node dies, what was acknowledged stays, and replicas agree";
    let victims = victims.to_vec();
    calls(name, about, nodes, move |part, ep| {
        let (is_victim, excuse) = (victims.contains(&part.me), Excuse::now());
        let work = || -> Result<()> {
            part.update(ep, &PurseUpdate::Name(part.name()))?;
            for amount in 1..=2 {
                part.update(ep, &PurseUpdate::Add(amount))?;
                assert!(part.take(ep, part.name(), amount)?, "no other node takes the money of this one");
            }
            Ok(())
        };
        match work() {
            // One that is cut off finds out that it counts as dead.
            Err(_) if is_victim || !goes_on(&part.node) => {
                part.calls.borrow_mut().has_given_up |= !is_victim;
                return Ok(());
            }
            Err(error) if error.is_timeout() && excuse.is_given() => {
                part.calls.borrow_mut().has_given_up = true;
                return Ok(());
            }
            done => done?,
        }
        if is_victim {
            return Ok(());
        }
        let lives = |name: &u8| !victims.contains(&usize::from(*name));
        let live = (0..nodes as u8).filter(lives).count();
        let has_given_up = || part.calls.borrow().has_given_up;
        let is_over =
            |purse: &Purse| has_given_up() || purse.taken.iter().filter(|(name, _)| lives(name)).count() == 2 * live;
        let waited = patiently(|| part.wait_until(ep, is_over));
        if has_given_up() || !goes_on(&part.node) { Ok(()) } else { waited }
    })
}
