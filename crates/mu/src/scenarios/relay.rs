//! What leaders leave behind. All nodes read in the end only, so every copy of every entry counts.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use farfield_check::{Cluster, Faults, Scenario};
use farfield_core::{Endpoint, Result};

use super::histories::{LogAnswer, LogCall};
use super::{History, Member, WORDS, member_of, observed, open, propose, take_part};
use crate::layout::{Image, RAISED, used_words};
use crate::{LogOptions, ReplicatedLog};

pub(super) fn scenarios() -> Vec<Scenario> {
    let paused = "what a leader that stops has begun does not land in a later term";
    let adopted = "of two entries that earlier leaders have left, one is decided, whichever leaders die";
    let stale = "an entry that was not decided is not taken for the one that comes in its place";
    vec![
        relay("mu/relay", paused).kills(&["mu-posted-late"]),
        left_by_two("mu/left-by-two", adopted).faults(Faults::new().crashes(1).of([0])).kills(&["mu-not-raised"]),
        cut_short("mu/left-by-one", stale).kills(&["mu-stale-next"]),
    ]
}

/// Two of three nodes lead in turns, and propose whenever they do.
fn relay(name: &str, about: &str) -> Scenario {
    Scenario::new(name, about, 3, move |cluster: &Cluster| {
        let (members, history) = open(cluster, 16, 0)?;
        history.is_contested.set(true);
        let relaying = Rc::new(Cell::new(2));
        for (me, member) in members.into_iter().enumerate() {
            if me < 2 {
                let asks = member.log.clone();
                cluster.thread(me, "asks", move |ep| {
                    for _ in 0..2 {
                        asks.ask_to_lead();
                        let leads = || asks.is_leader().then_some(());
                        let _ = ep.block_on(ep.wait_until(ep.now() + Duration::from_millis(20), leads));
                    }
                    Ok(())
                });
            }
            let (history, relaying) = (Rc::clone(&history), Rc::clone(&relaying));
            cluster.thread(me, "relays", move |ep| {
                for _ in 0..[3, 2, 0][me] {
                    let leads = || member.log.is_leader().then_some(());
                    if ep.block_on(ep.wait_until(ep.now() + Duration::from_millis(20), leads)).is_ok() {
                        history.left.set(history.left.get() + 1);
                        propose(me, &member, &history, ep, true)?;
                    }
                }
                read_at_the_end(me, &member, &history, &relaying, ep)
            });
        }
        Ok(())
    })
}

/// The part of a node after its proposals: no node reads before all are done, and one more entry.
fn read_at_the_end(me: usize, member: &Member, history: &History, relaying: &Cell<usize>, ep: &Endpoint) -> Result<()> {
    if me < 2 {
        relaying.set(relaying.get() - 1);
        if relaying.get() == 0 {
            history.left.set(1);
        }
    }
    let mut pause = Duration::from_millis(10);
    while relaying.get() > 0 {
        ep.block_on(ep.wait_for_change(ep.now() + pause));
        pause = Duration::from_millis(100).min(2 * pause);
    }
    take_part(me, member, history, ep)
}

/// Opens logs of three replicas. Earlier leaders have left entries in their own, at the first index: their nodes and
/// ballots. No replica is served before [`ReplicatedLog::wait`].
fn logs(cluster: &Cluster, leaders: &'static [(usize, u64)]) -> Result<(Vec<ReplicatedLog>, Rc<History>)> {
    let logs = cluster.on_each(move |node| {
        let options = LogOptions { entry_bytes_max: 8 * WORDS, entries: 4 };
        let nodes: Vec<_> = node.members().collect();
        let log = ReplicatedLog::announce(node, "log", &nodes, options)?;
        let core = &log.0.core;
        if let Some((of, ballot)) = leaders.iter().find(|(of, _)| *of == core.me) {
            let words = image(0, *ballot, *of);
            Image(&mut words.clone()).store(core.slots.words_of(&core.log, 0, words.len()));
        }
        Ok(log)
    })?;
    let history = observed(cluster, logs.clone());
    for (of, _) in leaders {
        history.calls.begin(*of, LogCall::Append(value_of(*of), Some(0)));
    }
    Ok((logs, history))
}

/// The value of the entry that a node has left.
pub(super) fn value_of(node: usize) -> u64 {
    7 + node as u64
}

/// A slot with this entry.
pub(super) fn image(index: u64, ballot: u64, of: usize) -> Vec<u64> {
    let mut words = vec![0; used_words(8 * WORDS)];
    Image(&mut words).fill(index, ballot, 1 << 40 | of as u64, &value_of(of).to_le_bytes().repeat(WORDS));
    words
}

/// Nodes 0 and 1 have led, and each has an entry that no other replica has. Node 1 serves its replica late, so node 0
/// leads without it, and then node 1.
fn left_by_two(name: &str, about: &str) -> Scenario {
    Scenario::new(name, about, 3, move |cluster: &Cluster| {
        let (logs, history) = logs(cluster, &[(0, 1), (1, 2)])?;
        // Any majority has one of them, so one is decided.
        history.decided.set(1);
        for (me, log) in logs.into_iter().enumerate() {
            let history = Rc::clone(&history);
            cluster.thread(me, "part", move |ep| {
                if me == 1 {
                    ep.block_on(ep.wait_for_change(ep.now() + Duration::from_millis(1)));
                }
                log.wait()?;
                take_part(me, &*member_of(log.clone())?, &history, ep)
            });
        }
        Ok(())
    })
}

/// Node 1 has led, and its entry is in its log only. Node 0 leads without it, takes it in as a follower, and proposes
/// another entry. Of its put to node 1 only the last word lands. Then node 1 leads.
fn cut_short(name: &str, about: &str) -> Scenario {
    Scenario::new(name, about, 3, move |cluster: &Cluster| {
        let (logs, history) = logs(cluster, &[(1, 1)])?;
        history.is_contested.set(true);
        let is_cut = Rc::new(Cell::new(false));
        for (me, log) in logs.into_iter().enumerate() {
            let (history, is_cut) = (Rc::clone(&history), Rc::clone(&is_cut));
            cluster.thread(me, "part", move |ep| {
                if me == 1 {
                    ep.block_on(ep.wait_for_change(ep.now() + Duration::from_millis(1)));
                }
                log.wait()?;
                let member = member_of(log.clone())?;
                if me == 0 {
                    let follow = || (log.0.core.confirmed.load() == 0b110).then_some(());
                    ep.block_on(ep.wait_until(ep.deadline(), follow))?;
                    propose_in_pieces(&log, &history, ep)?;
                    is_cut.set(true);
                    // Its proposer does not know of the entry.
                    ep.block_on(ep.wait_until(ep.deadline(), || (!log.is_leader()).then_some(())))?;
                    history.left.set(1);
                }
                let mut pause = Duration::from_millis(10);
                while !is_cut.get() {
                    ep.block_on(ep.wait_for_change(ep.now() + pause));
                    pause = Duration::from_millis(100).min(2 * pause);
                }
                if me == 1 {
                    log.ask_to_lead();
                }
                take_part(me, &member, &history, ep)
            });
        }
        Ok(())
    })
}

/// The first proposal of node 0, as [`Proposer`](crate::Proposer) makes it. One word of the put to node 1 lands. Node 2
/// has all of it, so it is decided.
fn propose_in_pieces(log: &ReplicatedLog, history: &History, ep: &Endpoint) -> Result<()> {
    let core = &log.0.core;
    let (ballot, peers) = (core.leading.load(), core.state.lock().peers.clone());
    let call = history.calls.begin(0, LogCall::Append(value_of(0), None));
    let words = image(0, ballot, 0);
    Image(&mut words.clone()).store(core.slots.words_of(&core.log, 0, words.len()));
    let mut buf = ep.buf::<u64>(words.len())?;
    buf.copy_from_slice(&words);
    let [one, two] = [1, 2].map(|rank: usize| core.slots.remote(peers[rank].log, 0));
    ep.put(two, &buf).detach()?;
    ep.put_value(one.at(RAISED), ballot).detach()?;
    ep.block_on(async {
        ep.get(two).await?;
        ep.get(one).await
    })?;
    history.calls.end(call, LogAnswer::Appended(0));
    history.decided.set(1);
    Ok(())
}
