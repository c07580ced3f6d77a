//! Replicas that go, and come back as other nodes at the same rank, while the log goes on.

use core::future::{Future, poll_fn};
use core::pin::pin;
use core::task::Poll;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use farfield_check::parts::{Excuse, goes_on};
use farfield_check::{Faults, Scenario, Starter, crashed};
use farfield_core::{Endpoint, Node, Result};
use farfield_fabric::{NodeId, Word};

use super::histories::{LogAnswer, LogCall, LogModel};
use super::relay::{image, value_of};
use super::{History, Member, WORDS, propose, propose_by};
use crate::layout::{COMMIT, Image, applied_at};
use crate::{EntriesMissing, LogOptions, ReplicatedLog};

pub(super) fn scenarios() -> Vec<Scenario> {
    vec![
        returns("mu/returns", "a replica that comes back has all entries, and counts", 3, 8, &[0]),
        returns("mu/returns-recycled", "a replica comes back when entries are recycled", 3, 2, &[0])
            .kills(&["mu-not-rebased"]),
        returns("mu/returns-follower", "a follower comes back, and the leader stays", 3, 4, &[2]),
        returns("mu/returns-of-four", "of four replicas one comes back, and majorities are as before", 4, 4, &[0])
            .steps_max(1_000_000),
        awaited(
            "mu/returns-awaited",
            "no thread that waits for a log goes on before its node has come back to all entries",
        )
        .steps_max(1_000_000),
        returns("mu/returns-leader-dies", "the leader dies while a replica comes back", 5, 2, &[4])
            .steps_max(1_000_000)
            .faults(Faults::new().crashes(1).of([0])),
        lacking("mu/returns-empty", "an entry that the earlier node has helped to decide outlives the leader, too")
            .steps_max(1_000_000)
            .faults(Faults::new().crashes(1).of([0]))
            .kills(&["mu-votes-empty"]),
        busy("mu/returns-busy", "a node that comes back has read nothing of what the one before it has")
            .steps_max(1_000_000),
        asked("mu/returns-heard", "an answer of a node does not count for the one that has come back in its place")
            .steps_max(1_000_000)
            .kills(&["mu-old-heard"]),
        unseen(
            "mu/returns-unseen",
            "a leader that knows of no vote of a replica that has come back keeps what it reads",
        )
        .steps_max(1_000_000)
        .faults(Faults::new().pauses(1).stalls(1).of([3]))
        .kills(&["mu-not-kept"]),
    ]
}

/// Entries that are decided between two goings.
const EACH: u64 = 3;

/// The course of a scenario.
struct Course {
    history: History,
    /// By node: what it has read.
    read: RefCell<Vec<Vec<u64>>>,
    places: usize,
    /// The ranks of the nodes that go, one after the other.
    goes: Vec<usize>,
    /// How many have come back.
    came: Word,
    /// How many have gone.
    went: Word,
    /// A node that goes or comes cannot, since a fault has taken the majority.
    is_over: Word,
    /// Node 2 lacks the first entry, until node 1 has gone.
    lacks: Word,
    /// Node 2 takes the lead as soon as the replica that comes back has its entries.
    takes_lead: bool,
    brought: Word,
    /// Node 2 leaves after the leader has asked it how far it has read: whether it has.
    has_asked: Option<Word>,
    /// Two threads of the node that comes back open the log.
    two_open: bool,
    /// So many more entries are decided while a node is away.
    more: u64,
}

impl Course {
    /// The node of a rank after so many have come back.
    fn node_of(&self, rank: usize, came: usize) -> usize {
        rank + self.places * self.goes[..came].iter().filter(|of| **of == rank).count()
    }

    /// How often a node's rank has come back before this one.
    fn goes_at(&self, node: usize) -> Option<usize> {
        let rank = node % self.places;
        (0..self.goes.len()).find(|at| self.goes[*at] == rank && self.node_of(rank, *at) == node)
    }

    /// Whether the node that is to come back next is on its way.
    fn is_away(&self) -> bool {
        self.came() < self.goes.len()
    }

    fn came(&self) -> usize {
        self.came.load() as usize
    }

    fn is_over(&self) -> bool {
        self.is_over.load() != 0
    }

    fn decided(&self) -> u64 {
        self.history.decided.get()
    }

    /// So many entries are decided before the next one goes.
    fn due(&self, goes: usize) -> u64 {
        EACH * (1 + goes as u64)
    }

    /// Whether the next one may go.
    fn may_go(&self, goes: usize) -> bool {
        self.decided() >= self.due(goes) && !self.has_to_ask()
    }

    fn has_to_ask(&self) -> bool {
        self.has_asked.as_ref().is_some_and(|has_asked| has_asked.load() == 0)
    }

    /// So many are decided at most before the next one comes.
    fn limit(&self, came: usize) -> u64 {
        self.due(came) + if self.is_away() { 1 + self.more } else { 0 }
    }
}

/// Reads all that there is. A node that has come back takes what is recycled from another one that has read it.
fn read(me: usize, member: &Member, course: &Course) -> Result<u64> {
    let (mut reader, mut entry) = (member.reader.borrow_mut(), Vec::new());
    loop {
        match reader.try_next(&mut entry) {
            Ok(None) => return Ok(reader.position()),
            Ok(Some(index)) => {
                let words: Vec<u64> =
                    entry.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
                assert_eq!(words, [words[0]; WORDS], "entry {index} is in pieces");
                let mut read = course.read.borrow_mut();
                assert_eq!(index, read[me].len() as u64, "node {me}");
                read[me].push(words[0]);
                drop(read);
                course.history.calls.at_once(me, LogCall::Read(index), LogAnswer::Value(words[0]));
                reader.acknowledge();
            }
            Err(error) => {
                let Some(EntriesMissing { next }) = error.custom_ref::<EntriesMissing>().copied() else {
                    return Err(error);
                };
                let mut read = course.read.borrow_mut();
                // None is missing later: the others keep it. A leader that has died may have begun at a later one than
                // the present.
                assert!(next >= member.base, "node {me} is at entry {next}, and has none before {}", member.base);
                assert!(read[me].is_empty(), "node {me} has lost entries since it has a vote");
                let of =
                    read.iter().position(|read| read.len() as u64 >= next).expect("recycled, and not read anywhere");
                read[me] = read[of][..next as usize].to_vec();
                drop(read);
                assert_eq!(reader.position(), next);
                reader.acknowledge();
            }
        }
    }
}

/// Proposes while it leads, and reads, until all is decided that the scenario has, or this node's turn to go comes.
fn take_part(me: usize, node: &Node, member: &Member, course: &Course, ep: &Endpoint) -> Result<()> {
    let turn = course.goes_at(me);
    let (mut timeouts, excuse) = (0, Excuse::now());
    let is_lost = || course.is_away() && (0..course.read.borrow().len()).any(crashed);
    if me == 0 && course.lacks.load() != 0 {
        decide_with_one(member, &course.history, ep)?;
    }
    loop {
        if me == 0 && course.went.load() > 0 && course.lacks.load() != 0 {
            course.lacks.store(0);
            member.log.0.core.drop_follower(member.log.0.core.leading.load(), 2);
        }
        let position = read(me, member, course)?;
        if is_lost() && course.places < 5 {
            course.history.has_given_up.set(true); // too few have votes
            return Ok(());
        }
        let came = course.came();
        if course.is_over() || turn.is_some_and(|turn| came == turn && course.may_go(turn)) {
            return Ok(());
        }
        let may_ask = me == 0 && course.has_to_ask() && course.history.left.get() > 0;
        if may_ask && member.log.is_leader() && course.decided() >= course.due(0) {
            propose_late(member, course, ep)?;
            continue;
        }
        // Entries until the next one goes, and some without it.
        let limit = course.limit(came);
        let leads = || member.log.is_leader() && course.decided() < limit && course.history.left.get() > 0;
        if leads() {
            propose(me, member, &course.history, ep, true)?;
            continue;
        }
        let is_done =
            || !course.is_away() && position >= course.decided() && course.decided() >= course.due(course.goes.len());
        if is_done() {
            return Ok(());
        }
        let goes = || turn.is_some_and(|turn| course.came() == turn && course.may_go(turn));
        let has_changed = || {
            let news = member.reader.borrow().has_next() || course.came() != came || course.is_over();
            (news || leads() || goes() || is_done()).then_some(())
        };
        if let Err(error) = ep.block_on(ep.wait_until(ep.deadline(), has_changed)) {
            if !goes_on(node) || is_lost() {
                // This one is evicted, or too few have votes.
                course.history.has_given_up.set(true);
                return Ok(());
            }
            // Of one that has given up, no node comes.
            let may_come = course.is_away() && !course.history.has_given_up.get();
            if course.came() == came && may_come && position == limit {
                continue; // the node that comes says if it takes too long
            }
            timeouts += 1;
            if timeouts < 3 {
                continue; // a leader may wait for its own reader in the middle of a call
            }
            let (leader, leads) = (member.log.leader(), member.log.is_leader());
            let at = format!("at {position} of {}, {came} came, leader {leader:?}, leads: {leads}", course.decided());
            let is_excused = excuse.is_given() || course.history.has_given_up.get();
            assert!(is_excused, "node {me}: no leader, or entries that do not come: {at}: {error}");
            course.history.has_given_up.set(true);
            return Ok(());
        }
        timeouts = 0;
    }
}

fn options(entries: usize) -> LogOptions {
    LogOptions { entry_bytes_max: 8 * WORDS, entries }
}

fn open(node: &Node, among: &[NodeId], entries: usize) -> Result<Rc<Member>> {
    super::member_of(ReplicatedLog::open_among(node, "log", among, options(entries))?)
}

/// Two threads wait for it. None of them goes on before this node knows of so many entries that they are decided.
fn open_by_two(node: &Node, among: &[NodeId], entries: usize, decided: u64) -> Result<Rc<Member>> {
    let log = ReplicatedLog::announce(node, "log", among, options(entries))?;
    let waits = move |log: &ReplicatedLog| -> Result<()> {
        log.wait()?;
        assert!(log.decided() >= decided, "it knows of {} entries only", log.decided());
        Ok(())
    };
    let other = log.clone();
    let second = node.spawn("waits", move |_| waits(&other).expect("there are no faults"))?;
    waits(&log)?;
    second.join().expect("it has not panicked");
    super::member_of(log)
}

/// The first proposal of node 0, of which nothing has come to node 2: node 1 has it, so it is decided.
pub(super) fn decide_with_one(member: &Member, history: &History, ep: &Endpoint) -> Result<()> {
    let core = &member.log.0.core;
    if ep.block_on(ep.wait_until(ep.deadline(), || (core.confirmed.load() == 0b110).then_some(()))).is_err() {
        return Ok(());
    }
    let ballot = core.leading.load();
    history.left.set(history.left.get() - 1);
    let call = history.calls.begin(0, LogCall::Append(value_of(0), None));
    let mut words = image(0, ballot, 0);
    let mut buf = ep.buf::<u64>(words.len())?;
    buf.copy_from_slice(&words);
    let there = {
        let mut state = core.state.lock();
        let there = state.peers[1].log;
        let Some(leading) = &mut state.leading else { return Ok(()) };
        leading.tail = 1;
        Image(&mut words).store(core.slots.words_of(&core.log, 0, buf.len()));
        ep.put(core.slots.remote(there, 0), &buf).detach()?;
        there
    };
    ep.block_on(ep.get(core.slots.remote(there, 0)))?;
    if let Some(leading) = &mut core.state.lock().leading {
        (leading.decided, leading.followers[1].has) = (1, 1);
    }
    core.log.word(COMMIT).store(1);
    history.calls.end(call, LogAnswer::Appended(0));
    history.decided.set(1);
    Ok(())
}

/// A proposal of node 0 that needs a free slot. It asks the others how far they have read, and looks at their answers
/// when another node follows it at the rank of node 2.
fn propose_late(member: &Member, course: &Course, ep: &Endpoint) -> Result<()> {
    let core = &member.log.0.core;
    let peers = core.state.lock().peers.clone();
    let read_by = |rank: usize| ep.get(peers[rank].control.byte_add(applied_at(core.ranks()) as u64));
    // Their answers would do: all have read all entries.
    for rank in [1, 2] {
        while ep.block_on(read_by(rank))? < course.due(0) {
            ep.block_on(ep.wait_for_change(ep.now() + Duration::from_millis(1)));
        }
    }
    if let Some(leading) = &mut core.state.lock().leading {
        // Earlier answers are forgotten: it has to ask, and the node that returns gets entries that it has to read.
        leading.room = leading.tail;
    }
    let is_back = || {
        let follows = core.confirmed.load() & core.returned.load() & 0b100 != 0;
        (follows || course.is_over() || course.history.has_given_up.get()).then_some(())
    };
    let timeout = ep.timeout();
    // A node leaves and another one returns within the call.
    ep.set_timeout(10 * timeout);
    let proposed = propose_by(0, &course.history, true, |entry| {
        let mut proposer = member.proposer.borrow_mut();
        let mut call = pin!(proposer.propose(ep, entry));
        ep.block_on(async {
            let begun = poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx))).await;
            // Behind the call's own get (`NLW → NLW`): that one has its answer, too, and node 2 may leave.
            read_by(2).await?;
            if let Some(has_asked) = &course.has_asked {
                has_asked.store(1);
            }
            match begun {
                Poll::Ready(decided) => decided,
                Poll::Pending => {
                    let _ = ep.wait_until(ep.deadline(), is_back).await;
                    call.await
                }
            }
        })
    });
    ep.set_timeout(timeout);
    proposed.map(drop)
}

type Kept = Rc<RefCell<Vec<(Node, Rc<Member>)>>>;

/// Takes part, and leaves the session when its turn comes.
fn stays_or_goes(me: usize, node: Node, member: Rc<Member>, course: &Course, kept: &Kept) -> Result<()> {
    let ep = node.endpoint()?;
    take_part(me, &node, &member, course, &ep)?;
    drop(ep);
    let goes = course.goes_at(me).is_some() && !course.is_over() && !course.history.has_given_up.get();
    if goes && goes_on(&node) {
        drop(member);
        node.leave();
        course.went.fetch_add(1);
    } else {
        if goes {
            // It has lost its place before its turn, so none comes in its place.
            course.is_over.store(1);
        }
        kept.borrow_mut().push((node, member));
    }
    Ok(())
}

/// Takes the seat of the one before it, when its turn comes. None if a fault prevents that.
fn comes(
    me: usize,
    at: usize,
    starter: &Starter,
    course: &Course,
    entries: usize,
) -> Result<Option<(Node, Rc<Member>)>> {
    let node = starter.start(me)?;
    let ep = node.endpoint()?;
    // The simulator lets it start before the node that it replaces has gone.
    while course.went.load() <= at as u64 {
        let is_turn = || (course.went.load() > at as u64 || course.is_over()).then_some(());
        let _ = ep.block_on(ep.wait_until(ep.deadline(), is_turn));
        if course.is_over() || course.history.has_given_up.get() {
            return Ok(None);
        }
    }
    let excuse = Excuse::now();
    // In a simulated session the nodes that come later may run already.
    let nodes = (0..course.places).map(|rank| course.node_of(rank, at + 1)).filter(|node| !crashed(*node));
    let among: Vec<NodeId> = nodes.map(|node| NodeId(node as u16)).collect();
    let are_known = || among.iter().all(|of| node.members().any(|member| member == *of)).then_some(());
    while ep.block_on(ep.wait_until(ep.deadline(), are_known)).is_err() {
        if course.is_over() || course.history.has_given_up.get() || among.iter().any(|of| crashed(of.index())) {
            course.is_over.store(1);
            return Ok(None);
        }
    }
    let opened = if course.two_open {
        open_by_two(&node, &among, entries, course.due(at))
    } else {
        open(&node, &among, entries)
    };
    match opened {
        Ok(member) => {
            // As many as have opened it first.
            assert_eq!(member.log.0.core.replicas(), course.places, "node {me} has another count of replicas");
            Ok(Some((node, member)))
        }
        Err(error) => {
            let has_crashed = (0..course.read.borrow().len()).any(crashed);
            if excuse.is_given() || has_crashed || course.history.has_given_up.get() {
                // The majority is lost, or it has died itself.
                course.is_over.store(1);
                return Ok(None);
            }
            Err(error)
        }
    }
}

/// Nodes of these ranks go, one after the other. Each comes back before the next goes. Entries are decided before,
/// between and after.
fn returns(name: &str, about: &str, places: usize, entries: usize, goes: &'static [usize]) -> Scenario {
    returns_if(name, about, places, entries, goes, Beside::Nothing)
}

/// Node 1 goes and comes back, and has helped to decide an entry that node 2 lacks.
fn lacking(name: &str, about: &str) -> Scenario {
    returns_if(name, about, 3, 8, &[1], Beside::Lacks)
}

/// A follower goes and comes back, while the leader uses the few slots again and again.
fn busy(name: &str, about: &str) -> Scenario {
    returns_if(name, about, 3, 2, &[2], Beside::GoesOn)
}

/// A follower answers how far it has read, and leaves. The leader reads the answer when another node has its rank.
fn asked(name: &str, about: &str) -> Scenario {
    returns_if(name, about, 3, 2, &[2], Beside::Asked)
}

/// Node 0 goes and comes back as node 3, which node 1 brings its entries. Then node 2 leads, and uses all slots again.
fn unseen(name: &str, about: &str) -> Scenario {
    returns_if(name, about, 3, 4, &[0], Beside::TakesLead)
}

/// Node 0 goes and comes back, and two of its threads open the log.
fn awaited(name: &str, about: &str) -> Scenario {
    returns_if(name, about, 3, 8, &[0], Beside::TwoOpen)
}

/// A special event during the return.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Beside {
    Nothing,
    Lacks,
    TakesLead,
    GoesOn,
    Asked,
    TwoOpen,
}

/// On node 1, which leads: waits until it has brought the node that comes back to its entries. On node 2: takes the
/// lead then.
fn takes_lead(me: usize, member: &Member, course: &Course, ep: &Endpoint) {
    let core = &member.log.0.core;
    let follows = || me == 1 && core.confirmed.load() & core.returned.load() & 1 != 0;
    let is_time = || (follows() || me == 2 && course.brought.load() != 0 || course.is_over()).then_some(());
    while ep.block_on(ep.wait_until(ep.deadline(), is_time)).is_err() {
        if course.history.has_given_up.get() {
            return;
        }
    }
    if me == 1 {
        course.brought.store(1);
    } else {
        member.log.ask_to_lead();
    }
}

fn returns_if(
    name: &str,
    about: &str,
    places: usize,
    entries: usize,
    goes: &'static [usize],
    beside: Beside,
) -> Scenario {
    Scenario::new(name, about, nodes_of(places, goes), move |cluster| {
        let course = Rc::new(Course {
            history: History::default(),
            read: RefCell::default(),
            places,
            goes: goes.to_vec(),
            came: Word::new(0),
            went: Word::new(0),
            is_over: Word::new(0),
            lacks: Word::new(u64::from(beside == Beside::Lacks)),
            takes_lead: beside == Beside::TakesLead,
            brought: Word::new(0),
            has_asked: (beside == Beside::Asked).then(|| Word::new(0)),
            two_open: beside == Beside::TwoOpen,
            more: match beside {
                Beside::Nothing | Beside::Lacks | Beside::Asked | Beside::TwoOpen => 0,
                // Slots are used again.
                Beside::TakesLead => 1 + entries as u64,
                Beside::GoesOn => 4 * entries as u64,
            },
        });
        let nodes = nodes_of(places, goes);
        course.history.left.set(EACH * (1 + goes.len() as u64) + goes.len() as u64 + 3 + course.more);
        course.history.is_contested.set(true);
        course.read.borrow_mut().resize_with(nodes, Vec::new);
        let kept = Kept::default();
        let (seen, keeps) = (Rc::clone(&course), Rc::clone(&kept));
        let founders: Vec<NodeId> = (0..places as u16).map(NodeId).collect();
        let members = cluster.on_each(move |node| open(node, &founders, entries))?;
        cluster.at_end(move || {
            seen.history.calls.check(&LogModel);
            check_end(&seen);
            drop(keeps.take());
            Ok(())
        });
        for me in [1, 2].into_iter().filter(|_| course.takes_lead) {
            let (course, member) = (Rc::clone(&course), Rc::clone(&members[me]));
            cluster.thread(me, "asks", move |ep| {
                takes_lead(me, &member, &course, ep);
                Ok(())
            });
        }
        for (me, member) in members.into_iter().enumerate() {
            let (course, kept, node) = (Rc::clone(&course), Rc::clone(&kept), cluster.node(me));
            cluster.thread_without_endpoint(me, "part", move || stays_or_goes(me, node, member, &course, &kept));
        }
        for (at, rank) in goes.iter().enumerate() {
            let (course, kept, starter) = (Rc::clone(&course), Rc::clone(&kept), cluster.starter());
            let me = course.node_of(*rank, at + 1);
            cluster.thread_without_endpoint(me, "comes", move || {
                let Some((node, member)) = comes(me, at, &starter, &course, entries)? else { return Ok(()) };
                course.came.store(at as u64 + 1);
                stays_or_goes(me, node, member, &course, &kept)
            });
        }
        Ok(())
    })
    .places(places)
}

/// All incarnations are numbered, also those that never come: the numbers of a rank are `places` apart.
fn nodes_of(places: usize, goes: &[usize]) -> usize {
    let last = |rank: usize| rank + places * goes.iter().filter(|of| **of == rank).count();
    1 + (0..places).map(last).max().unwrap_or(0)
}

/// Where no fault has happened, all has been decided that the scenario has, and the last nodes have all of it.
fn check_end(course: &Course) {
    let (read, last) = (course.read.borrow(), course.goes.len());
    let is_whole = !course.is_over() && !course.history.has_given_up.get();
    for node in (0..course.places).map(|rank| course.node_of(rank, last)).filter(|node| is_whole && !crashed(*node)) {
        assert!(read[node].len() as u64 >= course.due(last), "node {node} has read {:?}", read[node]);
    }
}
