//! The service thread: pollers make progress and learn of changes, and a node leaves in time, whatever crosses.

use std::sync::Arc;

use farfield_core::fabric::{DeathRule, Endpoint, Instant, PeerState, Region, RemotePtr, Word};
use farfield_core::toolkit::{Hold, ObjectBuilder, Poller, Progress};
use farfield_core::{LEAVE_TIMEOUT, MemberStatus, Node, NodeId, Result};

use farfield_check::parts::word;
use farfield_check::{Cluster, Scenario};

pub(super) fn scenarios() -> Vec<Scenario> {
    vec![departs(), two_leave(), finishes(), fenced(), late_work(), answers(), busy(), told(), told_while_leaving()]
}

/// The one that leaves.
const LEAVING: NodeId = NodeId(1);

/// A thread in which a node leaves. It takes no longer than its pending work.
fn leaves(cluster: &Cluster, node: usize) {
    let node = cluster.node(node);
    cluster.thread_without_endpoint(node.id().index(), "leaves", move || {
        let (start, fabric) = (node.now(), Arc::clone(node.transport()));
        node.clone().leave();
        let took = fabric.now() - start;
        assert!(took < LEAVE_TIMEOUT, "it took {took:?} to leave");
        Ok(())
    });
}

/// A thread that stays until a node has left. That was in good order, and this node counts it as one change.
fn sees(cluster: &Cluster, node: usize, leaving: &'static [NodeId]) {
    let node = cluster.node(node);
    assert!(node.members().all(|member| node.status_of(member) == Some(MemberStatus::Member)), "as they begin");
    cluster.thread(node.id().index(), "stays", move |ep| {
        let all_left = || leaving.iter().all(|it| node.status_of(*it) == Some(MemberStatus::Departed)).then_some(());
        ep.block_on(ep.wait_until(Instant::NEVER, all_left))?;
        assert_eq!(node.epoch(), leaving.len() as u64);
        let has_left = |it: &NodeId| node.state_of(*it) == PeerState::Left;
        ep.block_on(ep.wait_until(Instant::NEVER, || leaving.iter().all(has_left).then_some(())))?;
        assert!(!node.fabric().is_fenced(), "it goes on");
        Ok(())
    });
}

fn departs() -> Scenario {
    Scenario::new("leave/departs", "a node leaves, and the other knows that it has", 2, |cluster| {
        leaves(cluster, 1);
        sees(cluster, 0, &[LEAVING]);
        Ok(())
    })
}

/// A node continues alone when the others leave, one after the other or at once: each departure was agreed on.
fn two_leave() -> Scenario {
    Scenario::new("leave/two", "two of three nodes leave, and the third goes on alone", 3, |cluster| {
        (1..3).for_each(|node| leaves(cluster, node));
        sees(cluster, 0, &[LEAVING, NodeId(2)]);
        Ok(())
    })
    .rule(DeathRule::Majority)
}

/// Work that others wait for: an answer to a word that is put.
struct Answer {
    asked: Region,
    answer: RemotePtr<u64>,
}

impl Poller for Answer {
    fn poll(&mut self, endpoint: &Endpoint) -> Progress {
        if self.asked.word(0).load() == 0 {
            return Progress::Idle;
        }
        if endpoint.put_value(self.answer, 1).detach().is_ok() { Progress::Done } else { Progress::Retry }
    }

    fn must_finish_before_leave(&self) -> bool {
        true
    }
}

/// A thread of node 0 asks, and waits for the answer of the other.
fn asks(cluster: &Cluster) -> Result<()> {
    let (asked, answer) = (word(cluster, 1, "asked")?, word(cluster, 0, "answer")?);
    cluster.node(1).add_poller(Box::new(Answer { asked: asked.clone(), answer: answer.remote(0) }));
    cluster.thread(0, "asks", move |ep| {
        ep.put_value(asked.remote::<u64>(0), 1).wait()?;
        Ok(ep.block_on(ep.wait_until(ep.deadline(), || (answer.word(0).load() == 1).then_some(())))?)
    });
    Ok(())
}

fn answers() -> Scenario {
    Scenario::new("service/answers", "a poller does its work when it can, without any message", 2, asks)
}

/// A node leaves when its work for others is done.
fn finishes() -> Scenario {
    Scenario::new("leave/finishes", "a node finishes what others wait for before it leaves", 2, |cluster| {
        asks(cluster)?;
        leaves(cluster, 1);
        Ok(())
    })
}

/// Work that is never done.
struct Stuck;

impl Poller for Stuck {
    fn poll(&mut self, _: &Endpoint) -> Progress {
        Progress::Idle
    }

    fn must_finish_before_leave(&self) -> bool {
        true
    }
}

/// Nothing that a fenced node does has an effect, so it waits for nothing.
fn fenced() -> Scenario {
    Scenario::new("leave/fenced", "a node that is fenced does not wait for its work to be done", 2, |cluster| {
        let node = cluster.node(1);
        node.add_poller(Box::new(Stuck));
        node.transport().fence_self();
        leaves(cluster, 1);
        Ok(())
    })
    .rule(DeathRule::Majority)
}

/// Work that keeps an object open.
struct Keeps {
    _hold: Hold,
}

impl Poller for Keeps {
    fn poll(&mut self, _: &Endpoint) -> Progress {
        Progress::Done
    }
}

/// A thread still leaves work to the service thread of a node that leaves.
fn late_work() -> Scenario {
    Scenario::new("leave/late-work", "a node leaves while another thread of it gives work to it", 2, |cluster| {
        let object = ObjectBuilder::new(&cluster.node(1), "alone", "Alone").participants([LEAVING]).open()?;
        let (node, hold) = (cluster.node(1), object.hold());
        drop(object);
        cluster.thread_without_endpoint(1, "works", move || {
            node.add_poller(Box::new(Keeps { _hold: hold }));
            Ok(())
        });
        leaves(cluster, 1);
        sees(cluster, 0, &[LEAVING]);
        Ok(())
    })
    .kills(&["service-drops-under-lock"])
}

/// From the moment at which the other has left it always has work, until this node knows.
struct Busy {
    node: Node,
    left: Arc<Word>,
    polls: u32,
}

impl Poller for Busy {
    fn poll(&mut self, _: &Endpoint) -> Progress {
        if self.node.status_of(LEAVING) == Some(MemberStatus::Departed) {
            return Progress::Done;
        }
        if self.left.load() == 0 {
            return Progress::Idle;
        }
        self.polls += 1;
        assert!(self.polls < 100, "no message is served, since there is always work");
        Progress::Busy
    }
}

/// Messages are served although a poller always has work.
fn busy() -> Scenario {
    Scenario::new("service/busy", "a node with a busy poller learns of what happens", 2, |cluster| {
        let left = Arc::new(Word::new(0));
        cluster.node(0).add_poller(Box::new(Busy {
            node: cluster.node(0).for_service(),
            left: Arc::clone(&left),
            polls: 0,
        }));
        let leaving = cluster.node(1);
        cluster.thread_without_endpoint(1, "leaves", move || {
            leaving.clone().leave();
            left.store(1);
            Ok(())
        });
        sees(cluster, 0, &[LEAVING]);
        Ok(())
    })
}

/// Counts the departures that are reported to it.
struct Told(Arc<Word>);

impl Poller for Told {
    fn poll(&mut self, _: &Endpoint) -> Progress {
        Progress::Idle
    }

    fn status_changed(&mut self, node: NodeId, status: MemberStatus) {
        assert_eq!((node, status), (LEAVING, MemberStatus::Departed), "what else has happened");
        self.0.fetch_add(1);
    }
}

fn told() -> Scenario {
    Scenario::new("service/told", "each poller is told once that a node has left", 2, |cluster| {
        let told = [(); 2].map(|()| Arc::new(Word::new(0)));
        for told in &told {
            cluster.node(0).add_poller(Box::new(Told(Arc::clone(told))));
        }
        leaves(cluster, 1);
        cluster.thread(0, "stays", move |ep| {
            let all_know = || told.iter().all(|told| told.load() == 1).then_some(());
            Ok(ep.block_on(ep.wait_until(ep.deadline(), all_know))?)
        });
        Ok(())
    })
    .kills(&["service-sleeps-on-news"])
}

/// Work that has to be finished before its node leaves, and that waits for another node's departure.
struct Owed(Told);

impl Poller for Owed {
    fn poll(&mut self, _: &Endpoint) -> Progress {
        if self.must_finish_before_leave() { Progress::Idle } else { Progress::Done }
    }

    fn must_finish_before_leave(&self) -> bool {
        self.0.0.load() == 0
    }

    fn status_changed(&mut self, node: NodeId, status: MemberStatus) {
        self.0.status_changed(node, status);
    }
}

fn told_while_leaving() -> Scenario {
    Scenario::new("service/told-while-leaving", "a node that leaves hears of another's departure", 2, |cluster| {
        let told = Arc::new(Word::new(0));
        cluster.node(0).add_poller(Box::new(Owed(Told(Arc::clone(&told)))));
        leaves(cluster, 1);
        let node = cluster.node(0);
        cluster.thread_without_endpoint(0, "leaves too", move || {
            node.clone().leave();
            assert_eq!(told.load(), 1, "its work is not finished");
            Ok(())
        });
        Ok(())
    })
}
