//! Leases of an election of one node.

use core::future::{Future, poll_fn};
use core::pin::pin;
use core::task::Poll;

use farfield_core::local_session;

use super::*;
use crate::Election;

/// Its service thread renews it after a quarter, when the test is over.
const LEASE: Duration = Duration::from_secs(60);

fn election() -> (Node, Election) {
    let node = local_session(1).expect("a session").remove(0);
    let election = Election::open(&node, "leader", LEASE).expect("there is no other node");
    (node, election)
}

#[test]
fn a_lease_that_has_ended_before_its_call_is_not_returned() {
    let (node, election) = election();
    let [ep, other] = [(); 2].map(|()| node.endpoint().expect("an endpoint"));
    let first = other.block_on(election.campaign(&other)).expect("no other candidate");
    let mut campaign = pin!(election.campaign(&ep));
    let waits = ep.block_on(poll_fn(|cx| Poll::Ready(campaign.as_mut().poll(cx).is_pending())));
    assert!(waits, "another call leads");
    drop(first);
    let shared = &election.0.shared;
    let begins = || (shared.lease_of.load() == 2).then_some(());
    other.block_on(other.wait_until(other.deadline(), begins)).expect("the first has resigned");
    // As if the thread had stood still for so long.
    shared.lease_until.store(0);
    let leadership = ep.block_on(campaign).expect("no other candidate");
    assert!(leadership.is_leader(), "its lease has ended");
    assert_eq!(leadership.term(), 3);
}

/// Without a leader of the log they would pile up.
#[test]
fn no_renewal_is_queued_while_one_is_under_way() {
    let (node, election) = election();
    let ep = node.endpoint().expect("an endpoint");
    let leadership = ep.block_on(election.campaign(&ep)).expect("no other candidate");
    let shared = &election.0.shared;
    // It never comes to the log.
    let renewing = Some((u64::MAX, ep.now()));
    shared.local.lock().renewing = renewing;
    let chores = Chores { shared: Arc::clone(shared), served: Served::default(), forward: None, open: None };
    assert_eq!(chores.renew(ep.now() + LEASE), None);
    assert_eq!(shared.local.lock().renewing, renewing, "another one was queued");
    assert!(leadership.is_leader());
}
