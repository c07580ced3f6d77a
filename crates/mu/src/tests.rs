#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a test watches from outside the fabric")]

mod turns;

use std::time::{Duration, Instant};

use farfield_core::{Endpoint, Node, local_session, on_each};
use farfield_fabric::EndpointOptions;
use farfield_fabric::fault::{Faults, inject};

use super::*;

fn options(entries: usize) -> LogOptions {
    LogOptions { entry_bytes_max: 64, entries }
}

fn open(nodes: &[Node], entries: usize) -> Vec<ReplicatedLog> {
    on_each(nodes, |node| ReplicatedLog::open(node, "log", options(entries))).expect("all open it")
}

fn wait_to_lead(ep: &Endpoint, log: &ReplicatedLog) {
    ep.block_on(ep.wait_until(ep.deadline(), || log.is_leader().then_some(()))).expect("it leads");
}

fn wait_for_followers(ep: &Endpoint, leader: &ReplicatedLog) {
    let follow = || (leader.0.core.confirmed.load() == 0b110).then_some(());
    ep.block_on(ep.wait_until(ep.deadline(), follow)).expect("both follow");
}

fn read_all(ep: &Endpoint, reader: &mut LogReader, until: u64) -> Vec<Vec<u8>> {
    let (mut all, mut entry) = (Vec::new(), Vec::new());
    while reader.position() < until {
        ep.block_on(reader.next(ep, &mut entry)).expect("it was decided");
        reader.acknowledge();
        all.push(entry.clone());
    }
    all
}

#[test]
fn entries_of_all_lengths_are_read_as_they_were() {
    let nodes = local_session(3).expect("a session");
    let logs = open(&nodes, 1024);
    let eps: Vec<Endpoint> = nodes.iter().map(|node| node.endpoint().expect("an endpoint")).collect();
    wait_to_lead(&eps[0], &logs[0]);
    let mut proposer = logs[0].proposer().expect("the first");
    let entries: Vec<Vec<u8>> = (0..=64u8).map(|len| (0..len).map(|at| at ^ len).collect()).collect();
    for entry in &entries {
        eps[0].block_on(proposer.propose(&eps[0], entry)).expect("decided");
    }
    let error = eps[0].block_on(proposer.propose(&eps[0], &[0; 65])).expect_err("it is too long");
    assert!(matches!(error.kind(), ErrorKind::TooLarge { .. }), "{error}");
    for (ep, log) in eps.iter().zip(&logs) {
        assert_eq!(read_all(ep, &mut log.reader().expect("the first"), entries.len() as u64), entries);
    }
}

#[test]
fn a_full_log_is_an_error_that_names_the_slowest() {
    let nodes = local_session(3).expect("a session");
    let logs = open(&nodes, 4);
    let eps: Vec<Endpoint> = nodes.iter().map(|node| node.endpoint().expect("an endpoint")).collect();
    wait_to_lead(&eps[0], &logs[0]);
    eps[0].set_timeout(Duration::from_millis(20));
    let mut proposer = logs[0].proposer().expect("the first");
    let mut readers: Vec<LogReader> = logs.iter().map(|log| log.reader().expect("the first")).collect();
    for entry in 0..4u8 {
        eps[0].block_on(proposer.propose(&eps[0], &[entry])).expect("decided");
    }
    for reader in [0, 1] {
        read_all(&eps[reader], &mut readers[reader], 4);
    }
    let error = eps[0].block_on(proposer.propose(&eps[0], &[4])).expect_err("node 2 has not read");
    let full = error.custom_ref::<LogFull>().expect("it is full");
    assert_eq!(*full, LogFull { behind: nodes[2].id(), acknowledged: 0 });
    read_all(&eps[2], &mut readers[2], 4);
    assert_eq!(eps[0].block_on(proposer.propose(&eps[0], &[4])).expect("there is room"), 4);
}

#[test]
fn a_follower_names_the_leader_and_may_lead_itself() {
    let nodes = local_session(3).expect("a session");
    let logs = open(&nodes, 64);
    let eps: Vec<Endpoint> = nodes.iter().map(|node| node.endpoint().expect("an endpoint")).collect();
    wait_to_lead(&eps[0], &logs[0]);
    let mut proposers: Vec<Proposer> = logs.iter().map(|log| log.proposer().expect("the first")).collect();
    eps[0].block_on(proposers[0].propose(&eps[0], b"of 0")).expect("decided");
    eps[2].block_on(eps[2].wait_until(eps[2].deadline(), || logs[2].leader().map(drop))).expect("it knows one");
    let error = eps[2].block_on(proposers[2].propose(&eps[2], b"of 2")).expect_err("node 0 leads");
    assert_eq!(error.custom_ref::<NotLeader>(), Some(&NotLeader { leader: Some(nodes[0].id()) }));
    let term = logs[2].term();
    logs[2].ask_to_lead();
    wait_to_lead(&eps[2], &logs[2]);
    assert!(logs[2].term() > term);
    eps[2].block_on(proposers[2].propose(&eps[2], b"of 2")).expect("decided");
    let error = eps[0].block_on(proposers[0].propose(&eps[0], b"late")).expect_err("node 2 leads");
    assert!(error.custom_ref::<NotLeader>().is_some(), "{error}");
    for (ep, log) in eps.iter().zip(&logs) {
        let read = read_all(ep, &mut log.reader().expect("the first"), 2);
        assert_eq!(read, [b"of 0".to_vec(), b"of 2".to_vec()]);
    }
}

/// A node that had asked once more while it was a candidate took over again from the next leader.
#[test]
fn a_wish_to_lead_ends_when_it_is_fulfilled() {
    let nodes = local_session(3).expect("a session");
    let logs = open(&nodes, 8);
    let eps: Vec<Endpoint> = nodes.iter().map(|node| node.endpoint().expect("an endpoint")).collect();
    wait_to_lead(&eps[0], &logs[0]);
    let (ep, log) = (&eps[1], &logs[1]);
    let term = log.term();
    log.ask_to_lead();
    ep.block_on(ep.wait_until(ep.deadline(), || (log.term() > term).then_some(()))).expect("it is a candidate");
    log.ask_to_lead();
    wait_to_lead(ep, log);
    let is_over = || (log.0.core.is_wanted.load() == 0).then_some(());
    ep.block_on(ep.wait_until(ep.deadline(), is_over)).expect("it leads");
}

#[test]
fn a_leader_that_leaves_is_replaced() {
    let mut nodes = local_session(3).expect("a session");
    let mut logs = open(&nodes, 64);
    {
        let ep = nodes[0].endpoint().expect("an endpoint");
        wait_to_lead(&ep, &logs[0]);
        let mut proposer = logs[0].proposer().expect("the first");
        for entry in 0..10u8 {
            ep.block_on(proposer.propose(&ep, &[entry])).expect("decided");
        }
    }
    let ep = nodes[1].endpoint().expect("an endpoint");
    drop(logs.remove(0));
    let start = Instant::now();
    nodes.remove(0).leave();
    let has_left = || {
        (nodes[0].status_of(farfield_fabric::NodeId(0)) == Some(farfield_core::MemberStatus::Departed)).then_some(())
    };
    ep.block_on(ep.wait_until(ep.deadline(), has_left)).expect("it has left");
    let known = start.elapsed();
    wait_to_lead(&ep, &logs[0]);
    println!("known after {known:?}, replaced after {:?}", start.elapsed());
    let mut proposer = logs[0].proposer().expect("the first");
    assert_eq!(ep.block_on(proposer.propose(&ep, b"next")).expect("two of three decide"), 10);
    let other = nodes[1].endpoint().expect("an endpoint");
    assert_eq!(read_all(&other, &mut logs[1].reader().expect("the first"), 11).len(), 11);
}

#[test]
fn without_a_majority_a_proposal_ends_and_reading_goes_on() {
    let mut nodes = local_session(3).expect("a session");
    let mut logs = open(&nodes, 64);
    let ep = nodes[0].endpoint().expect("an endpoint");
    wait_to_lead(&ep, &logs[0]);
    let mut proposer = logs[0].proposer().expect("the first");
    ep.block_on(proposer.propose(&ep, b"entry")).expect("decided");
    for _ in 0..2 {
        drop(logs.pop());
        nodes.pop().expect("a node").leave();
    }
    // The first call may have put the entry before it knew; later ones do not wait.
    let start = Instant::now();
    let error = ep.block_on(proposer.propose(&ep, b"next")).expect_err("no majority lives");
    let why = error.custom_ref::<NoMajority>().is_some() || error.custom_ref::<OutcomeUnknown>().is_some();
    assert!(why, "{error}");
    let error = ep.block_on(proposer.propose(&ep, b"next")).expect_err("no majority lives");
    assert_eq!(error.custom_ref::<NoMajority>(), Some(&NoMajority { of: 3, needed: 2, present: 1 }), "{error}");
    assert!(start.elapsed() < Duration::from_secs(5), "it has waited for the timeout");
    assert_eq!(read_all(&ep, &mut logs[0].reader().expect("the first"), 1), [b"entry".to_vec()]);
}

#[test]
fn a_leader_that_closes_the_log_is_replaced() {
    let nodes = local_session(3).expect("a session");
    let mut logs = open(&nodes, 4);
    let eps: Vec<Endpoint> = nodes.iter().map(|node| node.endpoint().expect("an endpoint")).collect();
    wait_to_lead(&eps[0], &logs[0]);
    {
        let mut proposer = logs[0].proposer().expect("the first");
        eps[0].block_on(proposer.propose(&eps[0], b"entry")).expect("decided");
    }
    drop(logs.remove(0));
    wait_to_lead(&eps[1], &logs[0]);
    let (mut proposer, mut reader) = (logs[0].proposer().expect("the first"), logs[0].reader().expect("the first"));
    let mut other = logs[1].reader().expect("the first");
    // More than the slots: nothing waits for the one that has closed it.
    for entry in 1..10u8 {
        let index = eps[1].block_on(proposer.propose(&eps[1], &[entry])).expect("decided");
        assert_eq!(index, u64::from(entry));
        read_all(&eps[1], &mut reader, index + 1);
        read_all(&eps[2], &mut other, index + 1);
    }
}

#[test]
fn a_call_that_is_dropped_leaves_no_hole() {
    let nodes = local_session(3).expect("a session");
    let logs = open(&nodes, 64);
    let eps: Vec<Endpoint> = nodes.iter().map(|node| node.endpoint().expect("an endpoint")).collect();
    wait_to_lead(&eps[0], &logs[0]);
    let mut proposer = logs[0].proposer().expect("the first");
    drop(proposer.propose(&eps[0], b"never polled"));
    assert_eq!(eps[0].block_on(proposer.propose(&eps[0], b"first")).expect("decided"), 0);
    assert!(logs[0].proposer().is_err() && logs[0].reader().is_ok());
}

#[test]
fn a_node_that_counts_no_more_is_suspected() {
    let nodes = local_session(3).expect("a session");
    let open = |node: &Node| Heartbeats::open(node, "beats", Duration::from_millis(5));
    let mut beats = on_each(&nodes, open).expect("all open it");
    let ep = nodes[0].endpoint().expect("an endpoint");
    drop(beats.pop());
    let suspects = || beats[0].is_suspected(nodes[2].id()).then_some(());
    ep.block_on(ep.wait_until(ep.deadline(), suspects)).expect("its count stands still");
    let counts = || (!beats[0].is_suspected(nodes[1].id())).then_some(());
    ep.block_on(ep.wait_until(ep.deadline(), counts)).expect("it counts, if it was stopped for a moment or not");
    assert!(!beats[0].is_suspected(nodes[0].id()));
}

/// A log gives its permission group back when all nodes have closed it, and a node has no more than 253 of them.
#[test]
fn more_logs_are_opened_one_after_the_other_than_there_are_groups() {
    let nodes = local_session(2).expect("a session");
    let eps: Vec<Endpoint> = nodes.iter().map(|node| node.endpoint().expect("an endpoint")).collect();
    for opening in 0..280u64 {
        let logs = open(&nodes, 8);
        if opening % 40 == 0 {
            // In a group whose rights an earlier leader had, and others lost.
            logs[1].ask_to_lead();
            wait_to_lead(&eps[1], &logs[1]);
            let mut proposer = logs[1].proposer().expect("the first");
            eps[1].block_on(proposer.propose(&eps[1], &opening.to_le_bytes())).expect("decided");
            let read = read_all(&eps[0], &mut logs[0].reader().expect("the first"), 1);
            assert_eq!(read, [opening.to_le_bytes().to_vec()]);
        }
    }
}

/// The new leader's own reader has still to read what fills the log: its call says so, and does not wait for all of its
/// time.
#[test]
fn a_new_leader_that_has_not_read_is_told_soon() {
    let nodes = local_session(3).expect("a session");
    let logs = open(&nodes, 2);
    let eps: Vec<Endpoint> = nodes.iter().map(|node| node.endpoint().expect("an endpoint")).collect();
    let mut readers: Vec<LogReader> = logs.iter().map(|log| log.reader().expect("the first")).collect();
    wait_to_lead(&eps[0], &logs[0]);
    let mut first = logs[0].proposer().expect("the first");
    for entry in 0..2u8 {
        eps[0].block_on(first.propose(&eps[0], &[entry])).expect("decided");
    }
    for reader in [0, 2] {
        read_all(&eps[reader], &mut readers[reader], 2);
    }
    logs[1].ask_to_lead();
    wait_to_lead(&eps[1], &logs[1]);
    let mut next = logs[1].proposer().expect("the first");
    eps[1].set_timeout(Duration::from_secs(60));
    let start = Instant::now();
    let error = eps[1].block_on(next.propose(&eps[1], &[2])).expect_err("node 1 has not read");
    let full = error.custom_ref::<LogFull>().expect("it is full");
    assert_eq!(*full, LogFull { behind: nodes[1].id(), acknowledged: 0 });
    assert!(start.elapsed() < Duration::from_secs(30), "it has waited for the timeout");
    read_all(&eps[1], &mut readers[1], 2);
    assert_eq!(eps[1].block_on(next.propose(&eps[1], &[2])).expect("there is room"), 2);
}

#[test]
fn an_entry_costs_one_round_trip() {
    let nodes = local_session(3).expect("a session");
    let logs = open(&nodes, 64);
    let ep = nodes[0].endpoint().expect("an endpoint");
    wait_to_lead(&ep, &logs[0]);
    wait_for_followers(&ep, &logs[0]);
    let mut proposer = logs[0].proposer().expect("the first");
    // It asks for room first.
    ep.block_on(proposer.propose(&ep, b"first")).expect("decided");
    for _ in 0..20 {
        let before = ep.counts();
        ep.block_on(proposer.propose(&ep, b"entry")).expect("decided");
        let counts = ep.counts() - before;
        assert_eq!((counts.round_trips, counts.gets), (1, 2), "{counts:?}");
    }
}

#[test]
fn the_round_trips_of_a_command_are_counted() {
    let nodes = local_session(3).expect("a session");
    let options = CommandOptions { log: options(64), command_bytes_max: 8, answer_bytes_max: 0 };
    let commands = on_each(&nodes, |node| Commands::open(node, "commands", options)).expect("all open it");
    let ep = nodes[0].endpoint().expect("an endpoint");
    wait_to_lead(&ep, commands[0].log());
    wait_for_followers(&ep, commands[0].log());
    let order = || {
        let mut proposer = commands[0].proposer().expect("no other thread orders a command");
        let decide = async |next: &NextEntry<'_>| Ok(Decision::Propose(b"entry".to_vec(), next.index));
        let ordered = proposer.order(ep.timeout(), decide).expect("decided");
        (ordered, proposer.round_trips())
    };
    // It asks for room first.
    assert_eq!(order().0, Ordered::Done(0));
    assert_eq!(order(), (Ordered::Done(1), 1));
}

/// The put to one follower is refused, and the entry is decided with the other one before the thread looks again.
#[test]
fn a_follower_that_was_refused_an_entry_gets_it() {
    let nodes = local_session(3).expect("a session");
    let logs = open(&nodes, 64);
    let eps: Vec<Endpoint> = nodes.iter().map(|node| node.endpoint().expect("an endpoint")).collect();
    wait_to_lead(&eps[0], &logs[0]);
    wait_for_followers(&eps[0], &logs[0]);
    let faults = Faults::default();
    let refusing = inject(nodes[0].transport().clone(), faults.clone());
    let ep = Endpoint::open(refusing, EndpointOptions::default()).expect("an endpoint");
    let mut proposer = logs[0].proposer().expect("the first");
    // It asks for room first.
    ep.block_on(proposer.propose(&ep, b"first")).expect("decided");
    // The put to node 1 is the next operation.
    faults.fail_after(0);
    ep.block_on(proposer.propose(&ep, b"second")).expect("decided with node 2");
    let entries = [b"first".to_vec(), b"second".to_vec()];
    for (ep, log) in eps.iter().zip(&logs) {
        assert_eq!(read_all(ep, &mut log.reader().expect("the first"), 2), entries);
    }
}
