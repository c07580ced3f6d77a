//! Scenarios for the model checker.

mod back;
mod commands;
mod heartbeats;
mod histories;
mod refused;
mod relay;
mod returns;
mod turns;

use core::future::{Future, poll_fn};
use core::pin::pin;
use core::task::Poll;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use farfield_check::parts::Excuse;
use farfield_check::{Cluster, Faults, Scenario, choose, with_slow};
use farfield_core::history::Recorder;
use farfield_core::{Endpoint, Error, Result};
use farfield_fabric::{DeathRule, NodeId, Word, fault};

use self::histories::{LogAnswer, LogCall, LogModel};
use crate::layout::{BASE, Stamp, request_at};
use crate::{LogFull, LogOptions, LogReader, NotLeader, OutcomeUnknown, Proposer, ReplicatedLog};

/// All of them.
///
/// ```
/// let scenarios = farfield_mu::scenarios::all();
/// assert!(scenarios.iter().any(|scenario| scenario.name() == "mu/leader-dies"));
/// ```
pub fn all() -> Vec<Scenario> {
    let of_log = [
        decides(),
        recycled(),
        leader_dies(),
        follower_dies(),
        dropped(),
        hand_over(),
        contested(),
        lags(),
        counted(),
        ping_pong(),
        suspected(),
        candidates(),
        leader_cut(),
        recycled_dies(),
        two_of_five(),
        asks_and_dies(),
        unheard(),
        deposed(),
    ];
    let parts = [
        returns::scenarios(),
        refused::scenarios(),
        relay::scenarios(),
        heartbeats::scenarios(),
        commands::scenarios(),
        turns::scenarios(),
        back::scenarios(),
    ];
    with_slow(of_log.into_iter().chain(parts.concat()))
}

/// Words of an entry: it may come in pieces.
const WORDS: usize = 2;

/// The history of all nodes, as an outside observer knows it.
#[derive(Default)]
struct History {
    calls: Recorder<LogModel>,
    /// Nodes ask to lead, so an entry may be lost without a fault.
    is_contested: Cell<bool>,
    /// Entries that may still be proposed.
    left: Cell<u64>,
    /// Entries that are known to be decided.
    decided: Cell<u64>,
    /// A node has stopped taking part, since a fault has cost all of its time.
    has_given_up: Cell<bool>,
}

struct Member {
    log: ReplicatedLog,
    proposer: RefCell<Proposer>,
    reader: RefCell<LogReader>,
    /// The first entry that was there, on a node that has come back.
    base: u64,
}

/// Opens a log on all nodes. It is closed when all threads have ended.
fn open(cluster: &Cluster, entries: usize, left: u64) -> Result<(Vec<Rc<Member>>, Rc<History>)> {
    let members = cluster.on_each(move |node| {
        let options = LogOptions { entry_bytes_max: 8 * WORDS, entries };
        member_of(ReplicatedLog::open(node, "log", options)?)
    })?;
    let history = observed(cluster, members.clone());
    history.left.set(left);
    Ok((members, history))
}

fn member_of(log: ReplicatedLog) -> Result<Rc<Member>> {
    let (proposer, reader) = (RefCell::new(log.proposer()?), RefCell::new(log.reader()?));
    let base = log.0.core.log.word(BASE).load();
    Ok(Rc::new(Member { log, proposer, reader, base }))
}

/// The history of all nodes, which is judged at the end. Then these are dropped.
fn observed<K: 'static>(cluster: &Cluster, kept: K) -> Rc<History> {
    let history = Rc::new(History::default());
    let seen = Rc::clone(&history);
    cluster.at_end(move || {
        seen.calls.check(&LogModel);
        drop(kept);
        Ok(())
    });
    history
}

/// Reads all that there is. Every entry is whole.
fn read(me: usize, member: &Member, history: &History) -> Result<u64> {
    let (mut reader, mut entry) = (member.reader.borrow_mut(), Vec::new());
    while let Some(index) = reader.try_next(&mut entry)? {
        let words: Vec<u64> = entry.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
        assert_eq!(words, [words[0]; WORDS], "entry {index} is in pieces");
        history.calls.at_once(me, LogCall::Read(index), LogAnswer::Value(words[0]));
        reader.acknowledge();
    }
    Ok(reader.position())
}

/// Proposes an entry; whether it was decided.
fn propose(me: usize, member: &Member, history: &History, ep: &Endpoint, may_fail: bool) -> Result<bool> {
    propose_by(me, history, may_fail, |entry| ep.block_on(member.proposer.borrow_mut().propose(ep, entry)))
}

/// Proposes an entry by this call; whether it was decided.
fn propose_by(me: usize, history: &History, may_fail: bool, run: impl FnOnce(&[u8]) -> Result<u64>) -> Result<bool> {
    // Another node may have taken the last one.
    let Some(left) = history.left.get().checked_sub(1) else { return Ok(false) };
    let value = 100 * (1 + me as u64) + left;
    history.left.set(left);
    let (call, excuse) = (history.calls.begin(me, LogCall::Append(value, None)), Excuse::now());
    let entry = value.to_le_bytes().repeat(WORDS);
    match run(&entry) {
        Ok(index) => {
            history.calls.end(call, LogAnswer::Appended(index));
            history.decided.set(history.decided.get().max(index + 1));
            Ok(true)
        }
        Err(error) if error.custom_ref::<OutcomeUnknown>().is_some() => {
            let is_excused = excuse.is_given() || history.is_contested.get();
            assert!(may_fail && is_excused, "nothing has happened: {error}");
            let index = error.custom_ref::<OutcomeUnknown>().map(|unknown| unknown.index);
            history.calls.amend(call, LogCall::Append(value, index));
            Ok(false)
        }
        Err(error) => {
            refused(me, &error, may_fail, excuse);
            history.calls.end(call, LogAnswer::Refused);
            Ok(false)
        }
    }
}

fn refused(me: usize, error: &Error, may_fail: bool, excuse: Excuse) {
    let is_other = error.custom_ref::<NotLeader>().is_some();
    // It has begun to lead since it has read last, and does not read in the middle of a proposal.
    let is_behind = error.custom_ref::<LogFull>().is_some_and(|full| full.behind.index() == me);
    assert!(may_fail && (is_other || is_behind || excuse.is_given()), "nothing has happened: {error}");
}

/// A node that proposes while it leads, and reads, until all entries of the scenario are proposed and read.
fn take_part(me: usize, member: &Member, history: &History, ep: &Endpoint) -> Result<()> {
    let mut timeouts = 0;
    loop {
        let position = read(me, member, history)?;
        if history.left.get() > 0 && member.log.is_leader() {
            propose(me, member, history, ep, true)?;
            continue;
        }
        let decided = history.decided.get();
        if history.left.get() == 0 && position >= decided {
            return Ok(());
        }
        let excuse = Excuse::now();
        let has_changed = || {
            let leads = history.left.get() > 0 && member.log.is_leader();
            let is_done = history.left.get() == 0 && position >= decided;
            (member.reader.borrow().has_next() || leads || is_done).then_some(())
        };
        if let Err(error) = ep.block_on(ep.wait_until(ep.deadline(), has_changed)) {
            let is_excused = excuse.is_given() || history.has_given_up.get() || history.is_contested.get();
            assert!(is_excused, "no leader, or entries that do not come: {error}");
            timeouts += 1;
            if timeouts == 3 {
                history.has_given_up.set(true);
                return Ok(());
            }
        }
    }
}

/// A scenario in which all nodes take part.
fn all_take_part(name: &str, about: &str, nodes: usize, entries: usize, left: u64) -> Scenario {
    Scenario::new(name, about, nodes, move |cluster| {
        let (members, history) = open(cluster, entries, left)?;
        for (me, member) in members.into_iter().enumerate() {
            let history = Rc::clone(&history);
            cluster.thread(me, "part", move |ep| take_part(me, &member, &history, ep));
        }
        Ok(())
    })
}

/// A leader and two readers.
fn decides() -> Scenario {
    all_take_part("mu/decides", "all replicas read what was decided, in its order", 3, 4, 3).kills(&["mu-word-first"])
}

/// Two slots are used again and again.
fn recycled() -> Scenario {
    all_take_part("mu/recycled", "a slot is used again when all have read its entry", 3, 2, 6).kills(&["mu-no-room"])
}

fn leader_dies() -> Scenario {
    let about = "what was decided is there after the leader's death, and the next one goes on";
    all_take_part("mu/leader-dies", about, 3, 4, 4).faults(Faults::new().crashes(1).of([0])).kills(&[
        "mu-no-adoption",
        "mu-minority",
        "mu-not-brought-up",
        "mu-torn",
    ])
}

fn follower_dies() -> Scenario {
    all_take_part("mu/follower-dies", "the leader goes on without a dead follower", 3, 4, 4)
        .faults(Faults::new().crashes(1).of([2]))
        .kills(&["mu-waits-for-all"])
}

/// The leader's first call is dropped in the middle, and another node takes over, or the leader's next call ends it.
fn dropped() -> Scenario {
    let about = "an entry whose call was dropped is decided by a later one, or by the next leader, or never";
    Scenario::new("mu/dropped", about, 3, move |cluster| {
        let (members, history) = open(cluster, 4, 3)?;
        history.is_contested.set(true);
        let takes_over = cluster.draw(2) == 1;
        for (me, member) in members.into_iter().enumerate() {
            let history = Rc::clone(&history);
            cluster.thread(me, "part", move |ep| {
                if me == 0 {
                    let polls = choose(8);
                    let mut proposer = member.proposer.borrow_mut();
                    let entry = 7u64.to_le_bytes().repeat(WORDS);
                    history.calls.begin(me, LogCall::Append(7, None));
                    let mut call = pin!(proposer.propose(ep, &entry));
                    let mut polled = 0;
                    ep.block_on(poll_fn(|cx| {
                        polled += 1;
                        if polled > polls || call.as_mut().poll(cx).is_ready() {
                            Poll::Ready(())
                        } else {
                            Poll::Pending
                        }
                    }));
                }
                if me == 1 && takes_over {
                    member.log.ask_to_lead();
                }
                take_part(me, &member, &history, ep)
            });
        }
        Ok(())
    })
}

/// A scenario without faults in which these nodes ask to lead, so many times each.
fn asking(name: &str, about: &str, asking: &'static [usize], times: usize) -> Scenario {
    Scenario::new(name, about, 3, move |cluster| {
        let (members, history) = open(cluster, 4, 5)?;
        history.is_contested.set(true);
        for (me, member) in members.into_iter().enumerate() {
            let (history, asks) = (Rc::clone(&history), member.log.clone());
            cluster.thread(me, "part", move |ep| take_part(me, &member, &history, ep));
            if asking.contains(&me) {
                cluster.thread(me, "asks", move |ep| {
                    for _ in 0..times {
                        asks.ask_to_lead();
                        let leads = || asks.is_leader().then_some(());
                        let _ = ep.block_on(ep.wait_until(ep.now() + Duration::from_millis(20), leads));
                    }
                    Ok(())
                });
            }
        }
        Ok(())
    })
}

fn hand_over() -> Scenario {
    asking("mu/hand-over", "a leader that lives is replaced in the middle of its calls", &[1], 1)
        .kills(&["mu-no-revoke", "mu-leads-on"])
}

/// The first leader is replaced, and replaces the other one in turn.
fn ping_pong() -> Scenario {
    asking("mu/ping-pong", "what a leader has begun in one term does not land in a later one", &[0, 1], 2)
        .faults(Faults::new().pauses(1).of([0]))
}

fn contested() -> Scenario {
    asking("mu/contested", "of two candidates one leads at a time, and what was decided stays", &[1, 2], 2)
}

/// Node 0 decides an entry with one of the others. When it has ended that call, node 2 asks to lead.
fn asks_behind(name: &str, about: &str, decide: fn(&Member, &History, &Endpoint) -> Result<()>) -> Scenario {
    Scenario::new(name, about, 3, move |cluster| {
        let (members, history) = open(cluster, 4, 4)?;
        history.is_contested.set(true);
        let is_decided = Rc::new(Word::new(0));
        for (me, member) in members.into_iter().enumerate() {
            let (history, is_decided) = (Rc::clone(&history), Rc::clone(&is_decided));
            cluster.thread(me, "part", move |ep| {
                if me == 0 {
                    decide(&member, &history, ep)?;
                    is_decided.store(1);
                    let is_replaced = || (!member.log.is_leader()).then_some(());
                    let _ = ep.block_on(ep.wait_until(ep.now() + Duration::from_millis(20), is_replaced));
                    // A leader that is not replaced brings the entry to node 2 itself.
                    let core = &member.log.0.core;
                    core.drop_follower(core.leading.load(), 2);
                }
                if me == 2 {
                    let is_there = || (is_decided.load() != 0).then_some(());
                    let _ = ep.block_on(ep.wait_until(ep.now() + Duration::from_millis(20), is_there));
                    member.log.ask_to_lead();
                }
                take_part(me, &member, &history, ep)
            });
        }
        Ok(())
    })
}

/// Node 2 lacks an entry that nodes 0 and 1 have decided, and asks to lead.
fn lags() -> Scenario {
    let about = "a candidate that lacks a decided entry finds it at a majority, and does not lead without one";
    asks_behind("mu/lags", about, returns::decide_with_one).kills(&["mu-leads-early"])
}

/// Nodes 0 and 2 have decided an entry, and node 2 asks to lead.
fn counted() -> Scenario {
    let about = "an entry that a follower has helped to decide is there when that one revokes the leader's right";
    asks_behind("mu/counted", about, decide_with_last).kills(&["mu-no-flush"])
}

/// A proposal of node 0 of which nothing is put to node 1: it is decided with node 2.
fn decide_with_last(member: &Member, history: &History, ep: &Endpoint) -> Result<()> {
    let core = &member.log.0.core;
    let follow = || (core.confirmed.load() == 0b110).then_some(());
    if ep.block_on(ep.wait_until(ep.deadline(), follow)).is_ok() {
        // The service thread asks it again, after a pause.
        core.drop_follower(core.leading.load(), 1);
        propose(0, member, history, ep, true)?;
    }
    Ok(())
}

/// The leader is slow, is replaced, and does not know it.
fn suspected() -> Scenario {
    let about = "a leader that was taken for dead decides nothing more, and corrupts nothing";
    all_take_part("mu/suspected", about, 3, 4, 5)
        .rule(DeathRule::Majority)
        .faults(Faults::new().false_suspicions(1).of([0]))
}

/// Several suspicions: nodes ask at the same time.
fn candidates() -> Scenario {
    all_take_part("mu/candidates", "of several candidates one leads at a time", 3, 4, 4)
        .rule(DeathRule::Majority)
        .faults(Faults::new().false_suspicions(3))
}

fn leader_cut() -> Scenario {
    let about = "a leader that is cut off is replaced, and comes back as a follower or not at all";
    all_take_part("mu/leader-cut", about, 3, 4, 4).rule(DeathRule::Majority).faults(Faults::new().cuts(1).side([0]))
}

fn recycled_dies() -> Scenario {
    let about = "slots are used again without the dead";
    all_take_part("mu/recycled-dies", about, 3, 2, 6).faults(Faults::new().crashes(1))
}

fn two_of_five() -> Scenario {
    let about = "two of five replicas may die, the leader and the next one";
    all_take_part("mu/two-of-five", about, 5, 4, 4).faults(Faults::new().crashes(2).of([0, 1]))
}

/// The first leader is replaced while it lives, and then both may die.
fn asks_and_dies() -> Scenario {
    let about = "two of five replicas may die: the leader, and the one that replaces it in the middle of that";
    Scenario::new("mu/asks-and-dies", about, 5, move |cluster| {
        let (members, history) = open(cluster, 4, 3)?;
        history.is_contested.set(true);
        for (me, member) in members.into_iter().enumerate() {
            let history = Rc::clone(&history);
            cluster.thread(me, "part", move |ep| {
                if me == 1 {
                    member.log.ask_to_lead();
                }
                take_part(me, &member, &history, ep)
            });
        }
        Ok(())
    })
    .faults(Faults::new().crashes(2).of([0, 1]))
}

/// The stages of [`unheard`].
const FIRST_IS_KNOWN: u64 = 1;
const LAST_HAS_LEFT: u64 = 2;

/// Node 1 leads. Node 2 replaces it and leaves, and node 0 never hears of that: the link between the two is cut. Then
/// node 1 is not the first in line, and node 0, which is, takes node 1 for the leader.
fn unheard() -> Scenario {
    let about = "a log has a next leader, also when the first in line has not heard of the last one";
    Scenario::new("mu/unheard", about, 3, |cluster| {
        let refusals = fault::Faults::default();
        (0..2).try_for_each(|node| cluster.start(node).map(drop))?;
        let last = cluster.start_refusing(2, refusals.clone())?;
        last.wait_for_all(last.timeout())?;
        let (members, history) = open(cluster, 4, 1)?;
        let stage = Rc::new(Word::new(0));
        for (me, member) in members.into_iter().enumerate() {
            let (history, stage) = (Rc::clone(&history), Rc::clone(&stage));
            let (refusals, last) = (refusals.clone(), last.clone());
            cluster.thread(me, "part", move |ep| {
                let is_at = |of: u64| ep.block_on(ep.wait_until(ep.deadline(), || (stage.load() >= of).then_some(())));
                match me {
                    0 => {
                        let hears = || (member.log.leader() == Some(NodeId(1))).then_some(());
                        ep.block_on(ep.wait_until(ep.deadline(), hears))?;
                        stage.store(FIRST_IS_KNOWN);
                    }
                    1 => member.log.ask_to_lead(),
                    _ => {
                        is_at(FIRST_IS_KNOWN)?;
                        refusals.cut(NodeId(0), true);
                        member.log.ask_to_lead();
                        ep.block_on(ep.wait_until(ep.deadline(), || member.log.is_leader().then_some(())))?;
                        last.clone().leave();
                        stage.store(LAST_HAS_LEFT);
                        return Ok(());
                    }
                }
                is_at(LAST_HAS_LEFT)?;
                take_part(me, &member, &history, ep)
            });
        }
        Ok(())
    })
    .late_nodes()
    .kills(&["mu-first-alone"])
}

/// Node 4 leads, and leaves when nodes 0 and 1 do not reach each other any more. Node 0 is the next one. Node 1 does
/// not hear of it, asks in its turn, and deposes it, which node 0 does not hear of either.
fn deposed() -> Scenario {
    let about = "two candidates that do not reach each other depose each other ever more rarely";
    Scenario::new("mu/deposed", about, 5, |cluster| {
        let refusals = [fault::Faults::default(), fault::Faults::default()];
        for (node, refusals) in refusals.iter().enumerate() {
            cluster.start_refusing(node, refusals.clone())?;
        }
        (2..4).try_for_each(|node| cluster.start(node).map(drop))?;
        let last = cluster.start(4)?;
        last.wait_for_all(last.timeout())?;
        let (members, _) = open(cluster, 4, 0)?;
        let known: Rc<[Word; 4]> = Rc::new(core::array::from_fn(|_| Word::new(0)));
        let has_left = Rc::new(Word::new(0));
        for (me, member) in members.into_iter().enumerate() {
            let (known, has_left) = (Rc::clone(&known), Rc::clone(&has_left));
            let (refusals, last) = (refusals.clone(), last.clone());
            cluster.thread(me, "part", move |ep| {
                let comes = |condition: &dyn Fn() -> bool| {
                    ep.block_on(ep.wait_until(ep.deadline(), || condition().then_some(())))
                };
                if me == 4 {
                    member.log.ask_to_lead();
                    comes(&|| known.iter().all(|word| word.load() != 0))?;
                    refusals[0].cut(NodeId(1), true);
                    refusals[1].cut(NodeId(0), true);
                    last.clone().leave();
                    has_left.store(1);
                    return Ok(());
                }
                comes(&|| member.log.leader() == Some(NodeId(4)))?;
                known[me].store(1);
                if me == 2 {
                    comes(&|| has_left.load() != 0)?;
                    ep.block_on(ep.sleep_until(ep.now() + Duration::from_secs(4)));
                    let asked = |rank| Stamp(member.log.0.core.control.word(request_at(rank)).load()).round();
                    let rounds = asked(0).max(asked(1));
                    assert!(rounds < ROUNDS_MAX, "{rounds} rounds");
                    comes(&|| member.log.leader().is_some())?;
                }
                Ok(())
            });
        }
        Ok(())
    })
    .late_nodes()
    .kills(&["mu-rests-alike"])
}

/// In the two seconds after the turn of node 1. Without rests that grow there are hundreds.
const ROUNDS_MAX: u64 = 60;
