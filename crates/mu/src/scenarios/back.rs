//! Nodes that come back to a replicated lock and to an election.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use farfield_check::parts::patiently;
use farfield_check::{Scenario, Starter};
use farfield_core::{Endpoint, Node, Result};
use farfield_fabric::{NodeId, Word};

use crate::{Election, Leadership, ReplicatedGuard, ReplicatedMutex};

pub(super) fn scenarios() -> Vec<Scenario> {
    let about = "a node that comes back to a lock has its state, and counts when another one goes";
    vec![
        locks("mu/mutex-returns", about, Meanwhile::Nothing).kills(&["mu-votes-stateless"]),
        locks(
            "mu/mutex-returns-held",
            "a lock that a node holds while another one comes back stays held",
            Meanwhile::Held,
        ),
        locks(
            "mu/mutex-returns-busy",
            "a node that comes back has what was ordered while it got the state",
            Meanwhile::Busy,
        )
        .kills(&["mu-state-alone"]),
        locks(
            "mu/mutex-returns-asked",
            "two of three replicas take part at each moment, and a third that asks finds them",
            Meanwhile::Asked,
        ),
        elects(),
    ]
}

/// The nodes of a scenario: node 0 goes, node 3 takes its place, and then node 1 goes.
const COMES: usize = 3;

/// What has happened.
#[derive(Default)]
struct Course {
    /// How many nodes have had their first turn; and one more when node 1 holds the lock again.
    turns: Word,
    went: Word,
    came: Word,
    /// Node 3 has begun to get the state.
    follows: Word,
    /// The node inside, and the last token.
    inside: Cell<Option<usize>>,
    token: Cell<u64>,
    /// The parts of nodes that stay.
    kept: RefCell<Vec<Node>>,
}

/// Waits for a word, however long.
fn wait_for(ep: &Endpoint, word: &Word, value: u64) -> Result<()> {
    patiently(|| {
        let is_there = || (word.load() >= value).then_some(());
        loop {
            if ep.block_on(ep.wait_until(ep.deadline(), is_there)).is_ok() {
                return Ok(());
            }
        }
    })
}

impl Course {
    fn enters(&self, node: usize, guard: &ReplicatedGuard) {
        assert_eq!(self.inside.replace(Some(node)), None, "node {node} enters beside another");
        assert_eq!(guard.token(), self.token.get() + 1, "node {node}");
        self.token.set(guard.token());
    }

    async fn leaves(&self, ep: &Endpoint, guard: ReplicatedGuard) -> Result<()> {
        self.inside.set(None);
        guard.unlock(ep).await
    }

    fn turn(&self, node: usize, lock: &ReplicatedMutex, ep: &Endpoint) -> Result<()> {
        ep.block_on(async {
            let guard = lock.lock(ep).await?;
            self.enters(node, &guard);
            self.leaves(ep, guard).await
        })
    }

    fn goes(&self, node: Node) {
        node.leave();
        self.went.fetch_add(1);
    }
}

/// Starts in place of node 0, when that has gone and the others are known.
fn start(starter: &Starter, course: &Course) -> Result<(Node, [NodeId; 3])> {
    let node = starter.start(COMES)?;
    let ep = node.endpoint()?;
    wait_for(&ep, &course.went, 1)?;
    let among = [1, 2, COMES as u16].map(NodeId);
    let are_known = || among.iter().all(|of| node.members().any(|member| member == *of)).then_some(());
    while ep.block_on(ep.wait_until(ep.deadline(), are_known)).is_err() {}
    drop(ep);
    Ok((node, among))
}

/// Turns of node 2 while node 3 gets the state.
const TURNS: usize = 4;

/// On node 1: waits until node 3 follows it. Now it brings that one the state.
fn wait_until_followed(ep: &Endpoint, lock: &ReplicatedMutex) {
    let core = lock.0.shared.core();
    let follows = || (core.confirmed.load() & core.returned.load() & 1 != 0).then_some(());
    while ep.block_on(ep.wait_until(ep.deadline(), follows)).is_err() {}
}

/// The other nodes' work while node 3 comes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Meanwhile {
    Nothing,
    /// Node 1 holds the lock.
    Held,
    /// Node 2 takes it some times.
    Busy,
    /// Node 2 asks whether there is a majority whenever something changes.
    Asked,
}

fn locks(name: &str, about: &str, meanwhile: Meanwhile) -> Scenario {
    let is_held = meanwhile == Meanwhile::Held;
    Scenario::new(name, about, COMES + 1, move |cluster| {
        let course = Rc::new(Course::default());
        let founders = [0, 1, 2].map(NodeId);
        let locks = cluster.on_each(move |node| ReplicatedMutex::open_among(node, "lock", &founders))?;
        let locks_kept = Rc::new(RefCell::new(Vec::new()));
        let (ends, locks_end) = (Rc::clone(&course), Rc::clone(&locks_kept));
        cluster.at_end(move || {
            drop((locks_end.take(), ends.kept.take()));
            Ok(())
        });
        for (me, lock) in locks.into_iter().enumerate() {
            let (course, kept, node) = (Rc::clone(&course), Rc::clone(&locks_kept), cluster.node(me));
            cluster.thread_without_endpoint(me, "locks", move || {
                let ep = node.endpoint()?;
                course.turn(me, &lock, &ep)?;
                course.turns.fetch_add(1);
                if me == 1 && is_held {
                    wait_for(&ep, &course.turns, 3)?;
                    let guard = ep.block_on(lock.lock(&ep))?;
                    course.enters(me, &guard);
                    // Node 0 goes now.
                    course.turns.fetch_add(1);
                    wait_for(&ep, &course.came, 1)?;
                    ep.block_on(course.leaves(&ep, guard))?;
                }
                match me {
                    0 if is_held => wait_for(&ep, &course.turns, 4)?,
                    0 => {}
                    1 => {
                        if meanwhile == Meanwhile::Busy {
                            wait_until_followed(&ep, &lock);
                            course.follows.store(1);
                        }
                        wait_for(&ep, &course.came, 1)?;
                        course.turn(me, &lock, &ep)?;
                    }
                    _ => {
                        if meanwhile == Meanwhile::Busy {
                            wait_for(&ep, &course.follows, 1)?;
                            (0..TURNS).try_for_each(|_| course.turn(me, &lock, &ep))?;
                        }
                        if meanwhile == Meanwhile::Asked {
                            let have_gone = || {
                                lock.0.shared.core().check_majority().expect("another replica takes part");
                                (course.went.load() == 2).then_some(())
                            };
                            while ep.block_on(ep.wait_until(ep.deadline(), have_gone)).is_err() {}
                        }
                        wait_for(&ep, &course.went, 2)?;
                        course.turn(me, &lock, &ep)?;
                        kept.borrow_mut().push(lock);
                        course.kept.borrow_mut().push(node);
                        return Ok(());
                    }
                }
                drop((lock, ep));
                course.goes(node);
                Ok(())
            });
        }
        let (kept, starter) = (locks_kept, cluster.starter());
        cluster.thread_without_endpoint(COMES, "comes", move || {
            let (node, among) = start(&starter, &course)?;
            let lock = ReplicatedMutex::open_among(&node, "lock", &among)?;
            if is_held {
                assert_eq!(lock.holder(), Some(NodeId(1)), "it holds for all of that time");
            }
            course.came.store(1);
            let ep = node.endpoint()?;
            course.turn(COMES, &lock, &ep)?;
            wait_for(&ep, &course.went, 2)?;
            course.turn(COMES, &lock, &ep)?;
            kept.borrow_mut().push(lock);
            course.kept.borrow_mut().push(node);
            Ok(())
        });
        Ok(())
    })
    .places(3)
    .steps_max(1_000_000)
}

/// Node 1 leads for all of the time in which node 0 goes and node 3 comes, which then follows it.
fn elects() -> Scenario {
    let about = "a node that comes back to an election knows its leader, and may be the next one";
    Scenario::new("mu/election-returns", about, COMES + 1, move |cluster| {
        let course = Rc::new(Course::default());
        let (founders, lease) = ([0, 1, 2].map(NodeId), Duration::from_millis(1000));
        let elections = cluster.on_each(move |node| Election::open_among(node, "leader", &founders, lease))?;
        let kept = Rc::new(RefCell::new((Vec::<Election>::new(), Vec::<Leadership>::new())));
        let (ends, elections_end) = (Rc::clone(&course), Rc::clone(&kept));
        cluster.at_end(move || {
            let (elections, leaderships) = elections_end.take();
            drop((leaderships, elections, ends.kept.take()));
            Ok(())
        });
        let leads = Rc::new(Word::new(0));
        for (me, election) in elections.into_iter().enumerate() {
            let (course, kept, node, leads) =
                (Rc::clone(&course), Rc::clone(&kept), cluster.node(me), Rc::clone(&leads));
            cluster.thread_without_endpoint(me, "part", move || {
                let ep = node.endpoint()?;
                match me {
                    0 => {
                        wait_for(&ep, &leads, 1)?;
                        drop((election, ep));
                        course.goes(node);
                        return Ok(());
                    }
                    1 => {
                        let leadership = ep.block_on(election.campaign(&ep))?;
                        assert_eq!(leadership.term(), 1);
                        leads.store(1);
                        wait_for(&ep, &course.came, 1)?;
                        ep.block_on(leadership.resign(&ep))?;
                    }
                    _ => {}
                }
                kept.borrow_mut().0.push(election);
                course.kept.borrow_mut().push(node);
                Ok(())
            });
        }
        let starter = cluster.starter();
        cluster.thread_without_endpoint(COMES, "comes", move || {
            let (node, among) = start(&starter, &course)?;
            let election = Election::open_among(&node, "leader", &among, lease)?;
            assert_eq!(election.leader(), Some((NodeId(1), 1)));
            course.came.store(1);
            let ep = node.endpoint()?;
            let leadership = ep.block_on(election.campaign(&ep))?;
            assert_eq!(leadership.term(), 2);
            assert!(leadership.is_leader(), "nothing has happened");
            let mut kept = kept.borrow_mut();
            kept.0.push(election);
            kept.1.push(leadership);
            course.kept.borrow_mut().push(node);
            Ok(())
        });
        Ok(())
    })
    .places(3)
    .steps_max(1_000_000)
}
