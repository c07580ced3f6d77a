//! Steps of a candidate that cannot read the logs of others.

use farfield_core::{Node, local_session, on_each};
use farfield_fabric::EndpointOptions;
use farfield_fabric::fault::{Faults, inject};

use super::*;
use crate::{LogOptions, ReplicatedLog};

fn open(nodes: &[Node]) -> Vec<ReplicatedLog> {
    let options = LogOptions { entry_bytes_max: 64, entries: 4 };
    on_each(nodes, |node| ReplicatedLog::open(node, "log", options)).expect("all open it")
}

/// Node 0 of three, to which both others have given the right.
fn candidate(phase: Phase) -> Candidacy {
    let granted = Other { state: Granted::Yes { has: None, told: 0 }, ..Other::NEW };
    Candidacy { stamp: Stamp::first(9, 0), phase, others: [Other::NEW, granted, granted].into_iter().collect() }
}

/// Without a buffer for each of them it would take the log of one for those of all.
#[test]
fn a_candidate_without_buffers_adopts_nothing_and_looks_again() {
    let nodes = local_session(3).expect("a session");
    let logs = open(&nodes);
    let core = &*logs[0].0.core;
    let peers = core.state.lock().peers.clone();
    let endpoint = |pool_bytes_max| {
        let options = EndpointOptions { pool_bytes_max, ..EndpointOptions::default() };
        Endpoint::open(nodes[0].transport().clone(), options).expect("an endpoint")
    };
    let (of_one, of_all) = (endpoint(8 * core.slots.words.next_power_of_two()), endpoint(1 << 20));
    let mut candidacy = candidate(Phase::Adopting { index: 0 });
    candidacy.adopt(core, &peers, &of_one, 0);
    assert_eq!(candidacy.phase, Phase::Adopting { index: 0 }, "it has not looked at both");
    candidacy.adopt(core, &peers, &of_all, 0);
    assert_eq!(candidacy.phase, Phase::Confirming { tail: 0 });
}

/// It would read from that replica again and again, without its right.
#[test]
fn a_candidate_that_cannot_copy_from_a_replica_asks_it_again() {
    let nodes = local_session(3).expect("a session");
    let logs = open(&nodes);
    let core = &*logs[0].0.core;
    let peers = core.state.lock().peers.clone();
    let faults = Faults::default();
    let refusing = inject(nodes[0].transport().clone(), faults.clone());
    let endpoint = Endpoint::open(refusing, EndpointOptions::default()).expect("an endpoint");
    // Entry 0 is not there; and then the replica does not answer.
    for is_cut in [false, true] {
        faults.cut(nodes[1].id(), is_cut);
        let mut candidacy = candidate(Phase::Copying { from: 1, until: 1 });
        candidacy.copy(core, &peers, &endpoint, 1, 1);
        assert_eq!((candidacy.phase, candidacy.others[1].state), (Phase::Asking, Granted::No), "cut: {is_cut}");
        assert_eq!(core.decided(), 0);
    }
    faults.cut(nodes[1].id(), false);
}
