//! The replicated lock and the election on shared memory.

use super::*;

fn locks(nodes: &[Node]) -> Vec<ReplicatedMutex> {
    on_each(nodes, |node| ReplicatedMutex::open(node, "lock")).expect("all open it")
}

#[test]
fn threads_of_all_nodes_hold_one_after_the_other() {
    let nodes = local_session(3).expect("a session");
    let locks = locks(&nodes);
    let tokens = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for (node, lock) in nodes.iter().zip(&locks).chain(nodes.iter().zip(&locks)) {
            let tokens = &tokens;
            scope.spawn(move || {
                let ep = node.endpoint().expect("an endpoint");
                for _ in 0..20 {
                    let guard = ep.block_on(lock.lock(&ep)).expect("it is given back");
                    tokens.try_lock().expect("one holder").push(guard.token());
                    ep.block_on(guard.unlock(&ep)).expect("decided");
                }
            });
        }
    });
    assert_eq!(tokens.into_inner().expect("no panic"), (1..=120).collect::<Vec<u64>>());
}

#[test]
fn a_timeout_names_the_holder_and_gives_back() {
    let nodes = local_session(3).expect("a session");
    let locks = locks(&nodes);
    let eps: Vec<Endpoint> = nodes.iter().map(|node| node.endpoint().expect("an endpoint")).collect();
    let guard = eps[1].block_on(locks[1].lock(&eps[1])).expect("it is free");
    eps[2].set_timeout(Duration::from_millis(50));
    let error = eps[2].block_on(locks[2].lock(&eps[2])).err().expect("node 1 holds");
    assert!(error.is_timeout(), "{error}");
    drop(guard);
    let next = eps[0].block_on(locks[0].lock(&eps[0])).expect("node 2 waits no more");
    eps[0].block_on(next.unlock(&eps[0])).expect("decided");
}

/// The holder, and the leader of the log, leaves: the time until the next one holds.
#[test]
fn a_holder_that_leaves_is_followed() {
    let mut nodes = local_session(3).expect("a session");
    let mut locks = locks(&nodes);
    let ep = nodes[0].endpoint().expect("an endpoint");
    let guard = ep.block_on(locks[0].lock(&ep)).expect("it is free");
    drop((ep, locks.remove(0)));
    let next = std::thread::scope(|scope| {
        let (node, lock) = (nodes[2].clone(), &locks[1]);
        let waits = scope.spawn(move || {
            let ep = node.endpoint().expect("an endpoint");
            let guard = ep.block_on(lock.lock(&ep)).expect("the holder leaves");
            (guard.token(), Instant::now())
        });
        let node = nodes.remove(0);
        drop(guard);
        node.leave();
        let ep = nodes[0].endpoint().expect("an endpoint");
        let status = || nodes[0].status_of(farfield_fabric::NodeId(0));
        let has_left = || (status() == Some(farfield_core::MemberStatus::Departed)).then_some(());
        ep.block_on(ep.wait_until(ep.deadline(), has_left)).expect("it has left");
        let known = Instant::now();
        let (token, held) = waits.join().expect("no panic");
        println!("the next holder holds {:?} after the departure is known", held.saturating_duration_since(known));
        token
    });
    assert_eq!(next, 2);
}

#[test]
fn a_leader_renews_its_lease_and_resigns() {
    let nodes = local_session(3).expect("a session");
    let lease = Duration::from_millis(400);
    let elections = on_each(&nodes, |node| Election::open(node, "leader", lease)).expect("all open it");
    let eps: Vec<Endpoint> = nodes.iter().map(|node| node.endpoint().expect("an endpoint")).collect();
    let first = eps[1].block_on(elections[1].campaign(&eps[1])).expect("no other candidate");
    // It has less and less left, and more again with each renewal.
    let (mut left, mut renewals) = (first.lease_left(), 0);
    let is_renewed = || {
        let before = std::mem::replace(&mut left, first.lease_left());
        renewals += u32::from(left > before);
        (renewals == 3).then_some(())
    };
    eps[1].block_on(eps[1].wait_until(eps[1].deadline(), is_renewed)).expect("the service thread renews it");
    assert!(first.is_leader() && first.term() == 1);
    assert_eq!(eps[2].block_on(elections[2].wait_until_leader(&eps[2])).expect("one"), (nodes[1].id(), 1));
    let start = Instant::now();
    eps[1].block_on(first.resign(&eps[1])).expect("decided");
    let next = eps[2].block_on(elections[2].campaign(&eps[2])).expect("the first has resigned");
    println!("resigned and elected in {:?}", start.elapsed());
    assert!(next.is_leader() && next.term() == 2);
}

/// Of two nodes that have come back one is stopped, and never has a vote.
#[test]
fn a_stopped_node_does_not_keep_another_from_its_state() {
    use crate::turns::{Due, first_due};
    let at = |ms: u64| farfield_fabric::Instant { ns: ms * 1_000_000 };
    let (stopped, comes) = ((0, 6), (1, 7));
    let mut brought = vec![None; 5];
    let due = |brought: &[_], lacking: &[(usize, u64)], now| first_due(lacking.iter().copied(), brought, at(now));
    assert_eq!(due(&brought, &[stopped], 0), Due::Now(0, 6));
    brought[0] = Some((6, at(10)));
    assert_eq!(due(&brought, &[stopped], 11), Due::At(at(110)));
    // The other one comes: it has got nothing, so it is first, also when the stopped one gets the state again.
    assert_eq!(due(&brought, &[stopped, comes], 20), Due::Now(1, 7));
    assert_eq!(due(&brought, &[stopped, comes], 200), Due::Now(1, 7));
    brought[1] = Some((7, at(200)));
    assert_eq!(due(&brought, &[stopped, comes], 201), Due::Now(0, 6));
    // Another node at the rank of the stopped one has got nothing.
    assert_eq!(due(&brought, &[(0, 11)], 201), Due::Now(0, 11));
    assert_eq!(due(&brought, &[], 201), Due::None);
}
