//! Permission groups: revoking shuts a peer out, for good until it is permitted again.

use std::time::Duration;

use farfield_fabric::{ErrorKind, GroupKey, NodeId, PeerState, Word};

use crate::harness::{Harness, SOON, eventually, guarded, refused, soon, threads};

/// After a revoke each kind of operation fails with `Revoked` and touches nothing; after a permit all work again.
pub(crate) fn revoked_and_permitted_again(harness: &Harness) {
    let nodes = harness.session(2);
    let (key, region) = guarded(&nodes, 1, 64);
    let word = region.remote::<u64>(0);
    let endpoint = nodes[0].endpoint();
    for round in 0..3 {
        region.word(0).store(7);
        nodes[1].fabric.revoke(NodeId(0), key, SOON).unwrap();
        let buf = endpoint.buf::<u64>(8).unwrap();
        let mut errors = vec![
            refused(endpoint.put_value(word, 1).wait()),
            refused(endpoint.put(word, &buf).wait()),
            refused(endpoint.put_owned(word, endpoint.buf(1).unwrap()).wait().map(drop)),
            refused(endpoint.get(word).wait()),
            refused(endpoint.get_into(word, endpoint.buf(8).unwrap()).wait().map(drop)),
            refused(endpoint.cas(word, 7, 1).wait()),
            refused(endpoint.faa(word, 1).wait()),
        ];
        errors.push(refused(endpoint.block_on(endpoint.batch(NodeId(1)).put_value(word, 1).post())));
        errors.push(refused(endpoint.check_word(word))); // as those before were
        for error in errors {
            assert_eq!(*error.kind(), ErrorKind::Revoked { node: NodeId(1), key }, "round {round}");
            assert_eq!(error.node(), Some(NodeId(1)));
        }
        assert_eq!(region.word(0).load(), 7);
        nodes[1].fabric.permit(NodeId(0), key).unwrap();
        endpoint.check_word(word).unwrap();
        assert_eq!(endpoint.faa(word, 1).wait().unwrap(), 7);
        endpoint.put_value(word, 9).wait().unwrap();
        assert_eq!(endpoint.get(word).wait().unwrap(), 9);
    }
}

/// A revocation affects one peer and one group: other groups, other peers and the owner continue.
pub(crate) fn rights_are_per_peer_and_per_group(harness: &Harness) {
    let nodes = harness.session(3);
    let ((key, region), open) = (guarded(&nodes, 2, 8), nodes[2].region(8));
    let endpoints: Vec<_> = nodes.iter().map(super::harness::Node::endpoint).collect();
    let guarded = region.remote::<u64>(0);
    for endpoint in &endpoints {
        endpoint.put_value(guarded, 1).wait().unwrap();
        endpoint.get(guarded).wait().unwrap(); // so that no put lands later
    }
    nodes[2].fabric.revoke(NodeId(0), key, SOON).unwrap();
    assert!(matches!(refused(endpoints[0].put_value(guarded, 2).wait()).kind(), ErrorKind::Revoked { .. }));
    endpoints[0].put_value(open.remote::<u64>(0), 2).wait().unwrap();
    endpoints[1].put_value(guarded, 3).wait().unwrap();
    assert_eq!(endpoints[1].get(guarded).wait().unwrap(), 3);
    assert_eq!(endpoints[2].faa(guarded, 1).wait().unwrap(), 3);
    // A lane opened after the revoke has no more rights than those before.
    assert!(matches!(refused(nodes[0].endpoint().faa(guarded, 1).wait()).kind(), ErrorKind::Revoked { .. }));
    // The own node can be evicted, too.
    nodes[2].fabric.revoke(NodeId(2), key, SOON).unwrap();
    assert!(matches!(refused(endpoints[2].faa(guarded, 1).wait()).kind(), ErrorKind::Revoked { .. }));
}

/// Once a revocation has returned, no write of the peer lands any more, though it keeps writing without a pause.
pub(crate) fn no_write_lands_after_a_revoke(harness: &Harness) {
    let nodes = harness.session(2);
    let (key, region) = guarded(&nodes, 1, 4096);
    let (stop, refusals) = (Word::new(0), Word::new(0));
    let write = || {
        let (endpoint, place) = (nodes[0].endpoint(), region.remote::<u64>(0));
        let mut buf = endpoint.buf::<u64>(512).unwrap();
        let mut value = 0;
        while stop.load() == 0 {
            value += 1;
            buf.fill(value);
            let results = [
                endpoint.put(place, &buf).wait(),
                endpoint.put_value(place, value).wait(),
                endpoint.faa(place, 1).wait().map(drop),
            ];
            refusals.fetch_add(results.iter().filter(|result| result.is_err()).count() as u64);
        }
    };
    let revoke = || {
        let endpoint = nodes[1].endpoint();
        let snapshot = || region.words(0, 512).iter().map(Word::load).collect::<Vec<_>>();
        for round in 0..harness.rounds(50).min(500) {
            let before = region.word(8).load();
            soon(&endpoint, "the peer writes", || region.word(8).load() != before);
            nodes[1].fabric.revoke(NodeId(0), key, SOON).unwrap();
            let settled = snapshot();
            let refused_before = refusals.load();
            // The peer tries on meanwhile.
            soon(&endpoint, "the peer is refused", || refusals.load() > refused_before + 3);
            assert!(snapshot() == settled, "a write landed after revoke {round}");
            nodes[1].fabric.permit(NodeId(0), key).unwrap();
        }
        stop.store(1);
    };
    threads([(&nodes[0], &write), (&nodes[1], &revoke)]);
    // Revoking takes almost no time when no operation is pending.
    let start = std::time::Instant::now();
    nodes[1].fabric.revoke(NodeId(0), key, SOON).unwrap();
    assert!(start.elapsed() < Duration::from_secs(1));
}

/// A write may be in a core's store buffer when the right is taken, and the mark that announces it too: the revoke
/// reaches into store buffers. They are kept full by stores to lines that the revoker has just taken away.
pub(crate) fn a_revoke_reaches_into_store_buffers(harness: &Harness) {
    let nodes = harness.session(2);
    let ((key, region), lines) = (guarded(&nodes, 1, 8), nodes[0].region(64 * 40));
    let (stop, refusals) = (Word::new(0), Word::new(0));
    let touch = |value: u64| (0..40).for_each(|line| lines.word(64 * line).store(value));
    let write = || {
        let (endpoint, word) = (nodes[0].endpoint(), region.remote::<u64>(0));
        let mut value = 0;
        while stop.load() == 0 {
            value += 1;
            touch(value);
            if endpoint.put_value(word, value).wait().is_err() {
                refusals.fetch_add(1);
            }
        }
    };
    let revoke = || {
        let (endpoint, target) = (nodes[1].endpoint(), region.word(0));
        for round in harness.rounds_in_turns(500) {
            let before = target.load();
            soon(&endpoint, "the peer writes", || target.load() != before);
            if !harness.is_simulated() {
                touch(0); // there the store buffers are as slow as they like without it
            }
            nodes[1].fabric.revoke(NodeId(0), key, SOON).unwrap();
            let settled = target.load();
            let refused_before = refusals.load();
            soon(&endpoint, "the peer is refused", || refusals.load() > refused_before + 1);
            assert_eq!(target.load(), settled, "a write landed after revoke {round}");
            nodes[1].fabric.permit(NodeId(0), key).unwrap();
        }
        stop.store(1);
    };
    threads([(&nodes[0], &write), (&nodes[1], &revoke)]);
}

/// A peer that is reported to have a right can use it at once, from every endpoint; and `start_permit` does not wait.
pub(crate) fn a_right_can_be_used_when_it_is_said_to_be_there(harness: &Harness) {
    let nodes = harness.session(2);
    let (key, region) = guarded(&nodes, 1, 64);
    let word = region.remote::<u64>(0);
    let owner = &nodes[1].fabric;
    let (first, second) = (nodes[0].endpoint(), nodes[0].endpoint());
    let own = nodes[1].endpoint();
    let mut sum = 0;
    for round in harness.rounds_in_turns(20).take(50) {
        // Any number of times, taken again in between or not: the last call counts.
        for _ in 0..1 + round % 3 {
            for peer in [NodeId(0), NodeId(1)] {
                owner.revoke(peer, key, SOON).unwrap();
                assert!(!owner.is_permitted(peer, key).unwrap());
                owner.start_permit(peer, key).unwrap();
                owner.start_permit(peer, key).unwrap();
            }
        }
        if round % 2 == 0 {
            owner.permit(NodeId(0), key).unwrap();
            assert!(owner.is_permitted(NodeId(0), key).unwrap());
        } else {
            eventually("the peer can use it", || owner.is_permitted(NodeId(0), key).unwrap().then_some(()));
        }
        assert!(owner.is_permitted(NodeId(1), key).unwrap());
        for endpoint in [&first, &second, &nodes[0].endpoint(), &own] {
            assert_eq!(endpoint.faa(word, 1).wait().unwrap(), sum, "round {round}");
            sum += 1;
        }
    }
    assert!(matches!(refused(owner.is_permitted(NodeId(0), GroupKey(9))).kind(), ErrorKind::UnknownGroup { .. }));
    assert!(matches!(refused(owner.start_permit(NodeId(7), key)).kind(), ErrorKind::UnknownNode { .. }));
}

/// A refusal ends the operations in flight only: an operation that is posted after the right was given again is done.
pub(crate) fn a_refusal_ends_with_the_next_right(harness: &Harness) {
    let nodes = harness.session(2);
    let (key, region) = guarded(&nodes, 1, 64);
    let (owner, endpoint, word) = (&nodes[1].fabric, nodes[0].endpoint(), region.remote::<u64>(0));
    for round in 1..=harness.rounds(3000) as u64 {
        let under_way = endpoint.put_value(word, round);
        owner.revoke(NodeId(0), key, SOON).unwrap();
        if let Err(error) = under_way.wait() {
            assert!(matches!(error.kind(), ErrorKind::Revoked { .. }), "{error}");
        }
        owner.permit(NodeId(0), key).unwrap();
        endpoint.put_value(word, round).wait().expect("it may write again");
        assert_eq!(endpoint.get(word).wait().unwrap(), round);
    }
}

/// As in consensus: a replica takes its log from one writer, gives it to another, and notifies that one. The new
/// writer is never refused, and nothing of the old one lands any more; it continues until it is refused.
pub(crate) fn a_right_is_handed_from_writer_to_writer(harness: &Harness) {
    let nodes = harness.session(3);
    let (key, log) = guarded(&nodes, 2, 64);
    let (turns, done) = ([nodes[0].signals(64), nodes[1].signals(64)], nodes[2].signals(64));
    let rounds = harness.rounds(20).min(200) as u64;
    let write = |me: usize| {
        let (endpoint, place) = (nodes[me].endpoint(), log.remote::<u64>(0));
        for round in (1..=rounds).filter(|round| round % 2 == me as u64) {
            soon(&endpoint, "its turn", || turns[me].word(0).load() >= round);
            endpoint.put_value(place, round).wait().expect("it was told that it may write");
            assert_eq!(endpoint.get(place).wait().unwrap(), round);
            endpoint.put_value(done.remote(0), round).wait().unwrap();
            // Or it has slept meanwhile, and it is its turn again.
            while endpoint.put_value(place, round).wait().is_ok() && turns[me].word(0).load() == round {}
        }
    };
    let replica = || {
        let (endpoint, fabric) = (nodes[2].endpoint(), &nodes[2].fabric);
        for round in 1..=rounds {
            let (old, new) = (NodeId(1 - (round % 2) as u16), NodeId((round % 2) as u16));
            fabric.revoke(old, key, SOON).unwrap();
            fabric.permit(new, key).unwrap();
            endpoint.put_value(turns[new.index()].remote(0), round).wait().unwrap();
            soon(&endpoint, "the new one has written", || done.word(0).load() == round);
            assert_eq!(log.word(0).load(), round, "the old one has written after it was evicted");
        }
        [0, 1].into_iter().for_each(|writer| fabric.revoke(NodeId(writer), key, SOON).unwrap());
    };
    threads([(&nodes[0], &|| write(0)), (&nodes[1], &|| write(1)), (&nodes[2], &replica)]);
}

/// A departed node gets no right, and no call waits for it.
pub(crate) fn nothing_is_permitted_to_one_that_has_left(harness: &Harness) {
    let mut nodes = harness.session(2);
    let (key, _) = guarded(&nodes, 1, 64);
    nodes[1].fabric.revoke(NodeId(0), key, SOON).unwrap();
    nodes[0].leave();
    let owner = &nodes[1].fabric;
    eventually("it has left", || (owner.peer_state(NodeId(0)) == PeerState::Left).then_some(()));
    for outcome in
        [owner.permit(NodeId(0), key), owner.start_permit(NodeId(0), key), owner.is_permitted(NodeId(0), key).map(drop)]
    {
        assert_eq!(*refused(outcome).kind(), ErrorKind::PeerLeft { node: NodeId(0) });
    }
}
