//! Several operations in one call, where operations end at once: their effects, results, counts and errors are those of
//! the same operations one by one. Elsewhere there is no such call, and asking for it does nothing.

use farfield_fabric::{Counts, Endpoint, ErrorKind, NodeId, PeerState, Posts, Region, RemotePtr, Result};

use crate::harness::{Harness, Node, SOON, eventually, guarded, refused};

/// The result of a call, its cost, and whether a fence is owed to its node afterwards.
type Seen<T> = (Result<T>, Counts, bool);

fn one_by_one<T>(endpoint: &Endpoint, node: NodeId, call: impl Future<Output = Result<T>>) -> Seen<T> {
    let (result, counts) = endpoint.block_on(endpoint.counted(call));
    (result, counts, endpoint.has_unflushed(node))
}

/// The same of a call that exists only where operations end at once.
fn at_once<T>(endpoint: &Endpoint, node: NodeId, call: impl FnOnce() -> Option<Result<T>>) -> Option<Seen<T>> {
    let owed = endpoint.has_unflushed(node);
    let (result, counts) = endpoint.block_on(endpoint.counted(async { call() }));
    if result.is_none() {
        assert_eq!((counts, endpoint.has_unflushed(node)), (Counts::default(), owed), "nothing is posted");
    }
    result.map(|result| (result, counts, endpoint.has_unflushed(node)))
}

fn contents(region: &Region) -> Vec<u64> {
    region.words(0, region.bytes() / 8).iter().map(farfield_fabric::Word::load).collect()
}

fn fence(endpoint: &Endpoint, node: NodeId) {
    endpoint.block_on(endpoint.global_fence([node])).unwrap();
}

/// Places that are refused, all of node 1, each for another reason.
fn refused_places(nodes: &[Node]) -> [RemotePtr<u64>; 4] {
    let good = nodes[1].region(64).remote::<u64>(0);
    let (key, closed) = guarded(nodes, 1, 64);
    nodes[1].fabric.revoke(NodeId(0), key, SOON).unwrap();
    let freed = nodes[1].region(4096);
    let late = freed.remote::<u64>(0);
    nodes[1].fabric.free(freed).unwrap();
    let endpoint = nodes[0].endpoint();
    let is_freed = || endpoint.get(late).wait().is_err_and(|error| matches!(error.kind(), ErrorKind::Freed { .. }));
    eventually("a get is late", || is_freed().then_some(()));
    [good.byte_add(1 << 40), good.byte_add(4), closed.remote(0), late]
}

/// Lets nodes 2 and 3 go, the one in good order and the other as if it had died. Returns a place of each; none where no
/// operation ends at once.
fn places_of_the_gone(endpoint: &Endpoint, nodes: &mut [Node]) -> Vec<RemotePtr<u64>> {
    if !endpoint.ends_at_once() {
        return Vec::new();
    }
    let places = [2, 3].map(|node: usize| nodes[node].region(64).remote::<u64>(0));
    nodes[2].leave();
    nodes[3].die();
    for node in [2, 3].map(NodeId) {
        let is_up = || matches!(nodes[0].fabric.peer_state(node), PeerState::Up { .. });
        eventually("it is known to be gone", || (!is_up()).then_some(()));
    }
    assert!(matches!(nodes[0].fabric.peer_state(NodeId(3)), PeerState::Dead { .. }));
    places.into()
}

async fn publish(
    endpoint: &Endpoint,
    ring: RemotePtr<u64>,
    (source, bytes): (&Region, usize),
    head: RemotePtr<u64>,
    end: u64,
) -> Result<()> {
    endpoint.put_from_region(ring, source.span(0, bytes)).detach()?;
    endpoint.put_value(head, end).detach()
}

/// A put from a region and a put of the word that announces it, to other nodes and to the own one.
pub(crate) fn a_publication_is_two_puts(harness: &Harness) {
    const RING_BYTES: usize = 4096;
    let nodes = harness.session(2);
    let (endpoint, source) = (nodes[0].endpoint(), nodes[0].region(RING_BYTES));
    for (at, word) in source.words(0, RING_BYTES / 8).iter().enumerate() {
        word.store(u64::MAX / (at as u64 + 1));
    }
    for home in &nodes {
        let node = home.id();
        let (together, apart) = (home.region(RING_BYTES + 8), home.region(RING_BYTES + 8));
        for (end, bytes) in [8, 13, 64, 1000, RING_BYTES].into_iter().enumerate() {
            let places = |region: &Region| (region.remote::<u64>(0), region.remote::<u64>(RING_BYTES));
            let (ring, head) = places(&together);
            let publishes = || endpoint.publish_at_once(ring, source.span(0, bytes), head, end as u64);
            let before = contents(&together);
            let published = at_once(&endpoint, node, publishes);
            fence(&endpoint, node);
            let (ring, head) = places(&apart);
            let expected = one_by_one(&endpoint, node, publish(&endpoint, ring, (&source, bytes), head, end as u64));
            fence(&endpoint, node);
            assert_eq!(expected.0, Ok(()));
            if endpoint.ends_at_once() {
                assert_eq!((published, contents(&together)), (Some(expected), contents(&apart)), "{bytes} to {node}");
            } else {
                assert_eq!((published, contents(&together)), (None, before), "{bytes} to {node}");
            }
        }
    }
}

/// Refused bytes, a refused word, nodes that are gone, and places on two nodes.
pub(crate) fn publications_are_refused_as_two_puts(harness: &Harness) {
    let mut nodes = harness.session(4);
    let (endpoint, source) = (nodes[0].endpoint(), nodes[0].region(64));
    let (ring, head) = (nodes[1].region(64), nodes[1].region(8));
    let good = (ring.remote::<u64>(0), head.remote::<u64>(0));
    let elsewhere = nodes[2].region(8).remote::<u64>(0);
    let on_two = || endpoint.publish_at_once(good.0, source.span(0, 64), elsewhere, 1);
    assert_eq!(at_once(&endpoint, NodeId(1), on_two), None);
    let refused_places = refused_places(&nodes);
    let gone = places_of_the_gone(&endpoint, &mut nodes);
    let bytes = refused_places.map(|place| (place, good.1)).into_iter();
    let words = refused_places.map(|place| (good.0, place)).into_iter();
    for (ring, head) in bytes.chain(words).chain(gone.into_iter().map(|place| (place, place.at(1)))) {
        let node = ring.node();
        let publishes = || endpoint.publish_at_once(ring, source.span(0, 64), head, 1);
        let Some(published) = at_once(&endpoint, node, publishes) else {
            assert!(!endpoint.ends_at_once());
            continue;
        };
        refused(published.0.clone());
        endpoint.clear_flush_state(node);
        assert_eq!(published, one_by_one(&endpoint, node, publish(&endpoint, ring, (&source, 64), head, 1)));
        endpoint.clear_flush_state(node);
    }
    assert_eq!(head.word(0).load(), 0, "no word was put without its bytes");
}

/// A put of a word of a record and a get of others, or of the same one.
pub(crate) fn a_put_and_a_get_together_are_two_operations(harness: &Harness) {
    let nodes = harness.session(2);
    let endpoint = nodes[0].endpoint();
    for home in &nodes {
        let node = home.id();
        let (together, apart) = (home.region(64), home.region(64));
        for region in [&together, &apart] {
            region.words(0, 8).iter().enumerate().for_each(|(at, word)| word.store(10 + at as u64));
        }
        for (round, (put_at, get_at)) in [(0, 1), (7, 0), (2, 2), (6, 5), (1, 5)].into_iter().enumerate() {
            let value = 100 + round as u64;
            let record = together.remote::<u64>(0);
            let before = contents(&together);
            let puts_and_gets = || endpoint.put_and_get_at_once::<3>(record, (put_at, value), get_at).map(Ok);
            if round % 2 == 1 {
                endpoint.put_value(record, before[0]).wait().unwrap(); // the get flushes it, too
            }
            let seen = at_once(&endpoint, node, puts_and_gets);
            fence(&endpoint, node);
            let record = apart.remote::<u64>(0);
            let expected = one_by_one(&endpoint, node, async {
                endpoint.put_value(record.at(put_at), value).detach()?;
                endpoint.get_words::<3>(record.at(get_at)).await
            });
            if endpoint.ends_at_once() {
                assert_eq!((seen, contents(&together)), (Some(expected), contents(&apart)), "{round} on {node}");
            } else {
                assert_eq!((seen, contents(&together)), (None, before), "{round} on {node}");
            }
        }
    }
}

/// The same operations report why. Nothing is put to a place that is refused.
pub(crate) fn a_put_and_a_get_together_are_refused(harness: &Harness) {
    let mut nodes = harness.session(4);
    let endpoint = nodes[0].endpoint();
    let refused_places = refused_places(&nodes);
    let gone = places_of_the_gone(&endpoint, &mut nodes);
    for place in refused_places.into_iter().chain(gone) {
        let puts_and_gets = || endpoint.put_and_get_at_once::<2>(place, (0, 1), 1).map(Ok);
        assert_eq!(at_once(&endpoint, place.node(), puts_and_gets), None, "{place:?}");
        if endpoint.ends_at_once() {
            refused(endpoint.put_value(place, 1).wait());
            refused(endpoint.get_words::<2>(place).wait());
            endpoint.clear_flush_state(place.node());
        }
    }
    let good = nodes[1].region(64).remote::<u64>(0);
    for (put_at, get_at) in [(usize::MAX, 0), (0, usize::MAX), (usize::MAX / 8, 0), (0, usize::MAX / 8), (1 << 40, 0)] {
        let puts_and_gets = || endpoint.put_and_get_at_once::<2>(good, (put_at, 1), get_at).map(Ok);
        assert_eq!(at_once(&endpoint, NodeId(1), puts_and_gets), None, "{put_at} and {get_at}");
    }
}

/// Every kind of operation, at three words and at one elsewhere, in two round trips.
fn steps<'e>(posts: &impl Posts<'e>, at: RemotePtr<u64>, elsewhere: RemotePtr<u64>) -> Result<[u64; 3]> {
    let [first, second] = match (posts.try_get(at), posts.try_get(at.at(1))) {
        (Some(first), Some(second)) => [first, second],
        _ => {
            let (first, second) = (posts.get(at), posts.get(at.at(1)));
            [first.wait()?, second.wait()?]
        }
    };
    posts.next_trip();
    posts.put(at.at(2), first + 10)?;
    posts.remote_fence(at.node())?;
    let found = match posts.try_cas(at.at(1), second, second + 1) {
        Some(found) => found,
        None => posts.cas(at.at(1), second, second + 1).wait()?,
    };
    posts.next_trip();
    posts.post_cas(at, first, first + 3)?;
    posts.put(elsewhere, found)?;
    posts.remote_fence(elsewhere.node())?;
    Ok([first, second, found])
}

/// Operations on memory that was looked up once: on other nodes and on the own one, with one elsewhere in between.
pub(crate) fn operations_nearby_are_those_of_the_endpoint(harness: &Harness) {
    let nodes = harness.session(3);
    let endpoint = &nodes[0].endpoint();
    for home in &nodes[..2] {
        let node = home.id();
        for other in [home.signals(16), nodes[2].signals(16)] {
            let (near, apart) = (home.region(24), home.region(24));
            for round in 0..3 {
                let (at, elsewhere) = (near.remote::<u64>(0), other.remote(0));
                let nearby = || endpoint.near(at).map(|near| near.run(|near| steps(near, at, elsewhere)));
                let seen = at_once(endpoint, node, nearby);
                nodes.iter().for_each(|node| fence(endpoint, node.id()));
                let (at, elsewhere) = (apart.remote::<u64>(0), other.remote(8));
                let expected = one_by_one(endpoint, node, async { steps(&endpoint, at, elsewhere) });
                nodes.iter().for_each(|node| fence(endpoint, node.id()));
                assert_eq!(expected.0, Ok([3 * round, round, round]));
                if endpoint.ends_at_once() {
                    assert_eq!((seen, contents(&near)), (Some(expected), contents(&apart)), "{round} on {node}");
                    assert_eq!(other.word(0).load(), other.word(8).load());
                } else {
                    assert_eq!((seen, contents(&near)), (None, vec![0; 3]), "{round} on {node}");
                }
            }
        }
    }
}

/// A place that is refused, in the memory that was looked up and elsewhere. The memory of a node that is gone is not
/// looked up.
pub(crate) fn operations_nearby_are_refused_as_those_of_the_endpoint(harness: &Harness) {
    let mut nodes = harness.session(4);
    let endpoint = &nodes[0].endpoint();
    let good = nodes[1].region(24).remote::<u64>(0);
    let places = refused_places(&nodes);
    let gone = places_of_the_gone(endpoint, &mut nodes);
    assert!(gone.iter().all(|place| endpoint.near(*place).is_none()));
    for place in places.into_iter().chain(gone.clone()) {
        for (at, elsewhere) in [(place, good), (good, place)] {
            // That of the good place, and that of the group which is closed.
            for looked_up in [good, at] {
                let Some(near) = endpoint.near(looked_up) else {
                    assert!(!endpoint.ends_at_once() || gone.contains(&looked_up));
                    continue;
                };
                let nearby = refused(near.run(|near| steps(near, at, elsewhere)));
                assert_eq!(nearby, refused(steps(&endpoint, at, elsewhere)), "{at:?} and {elsewhere:?}");
            }
        }
    }
}
