//! Whole nodes on devices that tests made: which queue pairs and registrations there are, and rights, whatever the
//! peers do.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::endpoint::{Endpoint, EndpointOptions};
use crate::error::{Error, ErrorKind, Result};
use crate::fabric::{Bell, ControlEvent, Fabric, PeerState, Region, Transport};
use crate::local::Thread;
use crate::ptr::{GroupKey, NodeId, RemotePtr};
use crate::verbs::fabric::{JoinOptions, VerbsFabric};
use crate::verbs::stub::Stub;

mod words;

const SOON: Duration = Duration::from_secs(30);

/// A node, its device, and its service thread, which may be held up.
struct Served {
    fabric: Arc<VerbsFabric>,
    stub: Stub,
    is_held_up: Arc<AtomicBool>,
    /// How often the service thread has given a right.
    given: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    service: Option<Thread>,
}

impl Served {
    fn join(session: &str, place: u16, places: u16) -> Served {
        Served::join_on(Stub::new(false, |_, _| ()), session, place, places)
    }

    fn join_on(stub: Stub, session: &str, place: u16, places: u16) -> Served {
        stub.state().is_prompt = true;
        let mut options = JoinOptions::new(session, place, places, (Ipv4Addr::LOCALHOST, 0).into());
        options.group_bytes_max = 4 << 20;
        let fabric = VerbsFabric::join_on(&options, &stub.device).unwrap();
        let (given, is_held_up, stop) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default(), Arc::default());
        let mut served = Served { fabric, stub, is_held_up, given, stop, service: None };
        let (fabric, stop) = (Arc::clone(&served.fabric), Arc::clone(&served.stop));
        let (given, is_held_up) = (Arc::clone(&served.given), Arc::clone(&served.is_held_up));
        let body = move || {
            while !stop.load(Ordering::Acquire) {
                if is_held_up.load(Ordering::Acquire) {
                    std::thread::sleep(Duration::from_millis(1));
                } else {
                    // Messages of the layers above are handled on this thread, as a poller would do.
                    fabric.serve(Duration::from_millis(5), &mut |event| {
                        if let ControlEvent::Message(from, message) = event {
                            let key = GroupKey(message[0]);
                            let outcome = fabric.permit(from, key);
                            assert!(matches!(outcome.unwrap_err().kind(), ErrorKind::OnServiceThread { .. }));
                            fabric.start_permit(from, key).unwrap();
                            given.fetch_add(1, Ordering::Release);
                        }
                    });
                }
            }
            fabric.leave();
        };
        let fabric = Arc::clone(&served.fabric);
        served.service = Some(fabric.spawn_service("service".into(), Box::new(body)).unwrap());
        served
    }

    fn session(session: &str, count: u16) -> Vec<Served> {
        let nodes: Vec<_> = (0..count).map(|place| Served::join(session, place, count)).collect();
        Served::until_all_are_up(&nodes);
        nodes
    }

    fn until_all_are_up(nodes: &[Served]) {
        meet(nodes);
        for node in nodes {
            until("all are up", || nodes.iter().all(|peer| is_up(node, peer.fabric.me())));
        }
    }

    fn endpoint(&self) -> Endpoint {
        Endpoint::open(Arc::clone(&self.fabric) as Arc<dyn Transport>, EndpointOptions::default()).unwrap()
    }

    /// Memory of a group of its own, and its first word.
    fn guarded(&self) -> (GroupKey, Region) {
        let key = self.fabric.create_group(Bell::Silent).unwrap();
        (key, self.fabric.alloc(key, 64).unwrap())
    }

    /// The reported number of its queue pairs, which must be that of its device.
    #[track_caller]
    fn queue_pairs(&self) -> (usize, usize) {
        let counted = self.fabric.queue_pairs();
        assert_eq!(counted.0 + counted.1, self.stub.state().queue_pairs, "{counted:?}");
        counted
    }

    fn hold_up(&self, is_held_up: bool) {
        self.is_held_up.store(is_held_up, Ordering::Release);
    }

    fn end(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(service) = self.service.take() {
            let ended = service.join();
            assert!(ended.is_ok() || std::thread::panicking(), "the service thread: {ended:?}");
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.end();
    }
}

fn meet(nodes: &[Served]) {
    let addresses: Vec<_> = nodes.iter().map(|node| node.fabric.address()).collect();
    nodes.iter().for_each(|node| node.fabric.meet(&addresses).unwrap());
}

fn is_up(node: &Served, peer: NodeId) -> bool {
    matches!(node.fabric.peer_state(peer), PeerState::Up { .. })
}

#[track_caller]
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < SOON, "{what}");
        std::thread::sleep(Duration::from_micros(100));
    }
}

#[track_caller]
fn refused<T>(result: Result<T>) -> ErrorKind {
    result.err().map(|error: Error| error.kind().clone()).expect("it should have been refused")
}

/// A node has no queue pair to itself if its threads never use operations on its own memory. (Each lane had one.)
#[test]
fn queue_pairs_are_counted_and_none_is_to_the_own_node_before_it_is_used() {
    let nodes = Served::session("pairs", 3);
    let region = nodes[0].fabric.alloc(GroupKey::DATA, 64).unwrap();
    let word = region.remote::<u64>(0);
    assert!(nodes.iter().all(|node| node.queue_pairs() == (0, 0)));
    let endpoints: Vec<_> = nodes.iter().map(|node| [node.endpoint(), node.endpoint()]).collect();
    let all_have = |own: usize| until("2 lanes of each of 2 others", || nodes[0].fabric.queue_pairs() == (own, own));
    all_have(4);
    assert!(nodes.iter().all(|node| node.queue_pairs() == (4, 4)));
    let [near, other] = &endpoints[0];
    // None of these needs one: checks of words, fences, and flushes without a put before them.
    near.check_word(word).unwrap();
    near.remote_fence(NodeId(0)).wait().unwrap();
    near.block_on(near.global_fence((0..3).map(NodeId))).unwrap();
    near.flush();
    assert!(matches!(refused(near.faa(word.byte_add(4), 1).wait()), ErrorKind::Misaligned { .. }));
    assert!(matches!(refused(near.get(word.byte_add(1 << 30)).wait()), ErrorKind::OutOfBounds { .. }));
    let unknown = RemotePtr::<u64>::new(NodeId(0), GroupKey(9), 0);
    assert!(matches!(refused(near.get(unknown).wait()), ErrorKind::UnknownGroup { .. }));
    near.put_value(nodes[1].fabric.alloc(GroupKey::DATA, 8).unwrap().remote::<u64>(0), 1).wait().unwrap();
    near.flush();
    assert_eq!(nodes[0].queue_pairs(), (4, 4));
    // The first operation opens one, and only that lane has it, whatever follows.
    assert_eq!(near.faa(word, 5).wait().unwrap(), 0);
    assert_eq!(nodes[0].queue_pairs(), (5, 5));
    near.put(word, &near.buf(8).unwrap()).wait().unwrap();
    near.flush();
    assert_eq!((near.get(word).wait().unwrap(), nodes[0].queue_pairs()), (0, (5, 5)));
    other.put_value(word, 7).wait().unwrap();
    assert_eq!(nodes[0].queue_pairs(), (6, 6));
    // Further groups: those of others are connected when they are made; the own one when it is used.
    let (_, guarded) = nodes[0].guarded();
    assert_eq!((nodes[0].queue_pairs(), nodes[1].queue_pairs()), ((6, 10), (6, 4)));
    near.check_word(guarded.remote(0)).unwrap();
    assert_eq!(nodes[0].queue_pairs(), (6, 10));
    near.put_value(guarded.remote(0), 1u64).wait().unwrap();
    assert_eq!(nodes[0].queue_pairs(), (7, 11));
    // A lane that is closed takes its own along, and its target.
    let mut endpoints = endpoints.into_iter();
    drop(endpoints.next());
    assert_eq!(nodes[0].queue_pairs(), (0, 8));
    drop(endpoints);
    until("lanes are closed", || nodes.iter().all(|node| node.stub.state().queue_pairs == 0));
}

/// Works with memory of all kinds that a thread uses: its buffers, those of the pool for words, and its lane's.
fn work(endpoint: &Endpoint, word: RemotePtr<u64>) {
    for len in [1, 64, 4000] {
        let buf = endpoint.buf::<u64>(len).unwrap();
        endpoint.put(word, &buf).wait().unwrap();
    }
    endpoint.put_value(word.cast(), [7_u64; 32]).wait().unwrap();
    assert_eq!((endpoint.faa(word, 1).wait().unwrap(), endpoint.get(word).wait().unwrap()), (7, 8));
}

/// Every endpoint registered the slabs of its own pool, and a device has tables for few.
#[test]
fn the_number_of_registrations_does_not_grow_with_threads() {
    let nodes = Served::session("registrations", 2);
    let region = nodes[1].fabric.alloc(GroupKey::DATA, 64 << 10).unwrap();
    let word = region.remote::<u64>(0);
    let registered = || nodes[0].stub.state().registered.clone();
    let groups = registered();
    for round in 0..3 {
        let endpoints: Vec<_> = (0..8).map(|_| nodes[0].endpoint()).collect();
        endpoints.iter().for_each(|endpoint| work(endpoint, word));
        assert_eq!(registered()[groups.len()..], [2 << 20], "round {round}");
    }
    // Much more memory takes few, however many endpoints share it, and later ones use it again.
    for round in 0..2 {
        let endpoints: Vec<_> = (0..8).map(|_| nodes[0].endpoint()).collect();
        let many: Vec<_> =
            endpoints.iter().flat_map(|one| (0..16).map(|_| one.buf::<u64>(16 << 10).unwrap())).collect();
        assert_eq!(registered()[groups.len()..], [2 << 20, 2 << 20, 4 << 20, 8 << 20, 16 << 20], "round {round}");
        drop(many);
    }
}

#[test]
fn without_room_for_buffers_an_operation_is_refused_and_the_lane_goes_on() {
    let nodes = Served::session("no room", 2);
    let word = nodes[1].fabric.alloc(GroupKey::DATA, 64 << 10).unwrap().remote::<u64>(0);
    let endpoint = nodes[0].endpoint();
    work(&endpoint, word);
    let there_is: usize = nodes[0].stub.state().registered.iter().sum();
    nodes[0].stub.state().registered_bytes_max = Some(there_is);
    let kind = refused(endpoint.buf::<u64>(1 << 20));
    assert!(matches!(kind, ErrorKind::NoBufferMemory { asked_bytes: 8_388_608, .. }), "{kind:?}");
    let held: Vec<_> = std::iter::from_fn(|| endpoint.buf::<u64>(32 << 10).ok()).collect();
    let small: Vec<_> = std::iter::from_fn(|| endpoint.buf::<u64>(256).ok()).collect();
    assert!(!held.is_empty() && !small.is_empty());
    let error = endpoint.put_value(word.cast(), [0_u64; 200]).wait().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::NoBufferMemory { asked_bytes: 1600, .. }) && error.is_refused());
    // Another thread finds no place for the queue pairs that it needs, and reports it when it opens.
    let open = || Endpoint::open(Arc::clone(&nodes[0].fabric) as Arc<dyn Transport>, EndpointOptions::default());
    let mut others = Vec::new();
    let kind = refused((0..32).try_for_each(|_| open().map(|other| others.push(other))));
    assert!(matches!(kind, ErrorKind::NoBufferMemory { .. }), "{kind:?}");
    drop(others);
    assert_eq!(endpoint.faa(word, 1).wait().unwrap(), 8);
    drop((held, small));
    work(&endpoint, word);
}

#[test]
fn without_a_queue_pair_an_operation_is_refused_and_the_lane_goes_on() {
    let nodes = Served::session("short", 2);
    let (own, far) = (nodes[0].fabric.alloc(GroupKey::DATA, 64).unwrap(), nodes[1].fabric.alloc(GroupKey::DATA, 64));
    let (own, far) = (own.remote::<u64>(0), far.unwrap().remote::<u64>(0));
    let endpoint = nodes[0].endpoint();
    // One is not enough: there has to be a target, too.
    for room in [0, 1] {
        let there_are = nodes[0].stub.state().queue_pairs;
        nodes[0].stub.state().queue_pairs_max = Some(there_are + room);
        let buf = endpoint.buf::<u64>(4).unwrap();
        let refusals = [
            refused(endpoint.faa(own, 1).wait()),
            refused(endpoint.put_value(own, 1).wait()),
            refused(endpoint.put(own, &buf).wait()),
            refused(endpoint.get(own).wait()),
        ];
        assert!(refusals.iter().all(|kind| *kind == ErrorKind::NoQueuePair { node: NodeId(0) }), "{refusals:?}");
        assert_eq!(nodes[0].queue_pairs(), (1, 0));
        assert_eq!(endpoint.faa(far, 1).wait().unwrap(), room as u64);
    }
    nodes[0].stub.state().queue_pairs_max = None;
    assert_eq!(endpoint.faa(own, 1).wait().unwrap(), 0);
    assert_eq!((endpoint.get(own).wait().unwrap(), nodes[0].queue_pairs()), (1, (2, 1)));
}

#[test]
fn the_right_of_the_own_node_is_taken_and_given_whether_it_was_used_or_not() {
    let nodes = Served::session("own-right", 1);
    let fabric = &nodes[0].fabric;
    let (key, region) = nodes[0].guarded();
    let word = region.remote::<u64>(0);
    let (used, unused) = (nodes[0].endpoint(), nodes[0].endpoint());
    for round in 0..3 {
        assert_eq!(used.faa(word, 1).wait().unwrap(), 2 * round);
        fabric.revoke(NodeId(0), key, SOON).unwrap();
        assert!(!fabric.is_permitted(NodeId(0), key).unwrap());
        let late = nodes[0].endpoint();
        for endpoint in [&used, &unused, &late] {
            let revoked = ErrorKind::Revoked { node: NodeId(0), key };
            assert_eq!(refused(endpoint.check_word(word)), revoked);
            assert_eq!(refused(endpoint.faa(word, 1).wait()), revoked);
        }
        fabric.permit(NodeId(0), key).unwrap();
        assert!(fabric.is_permitted(NodeId(0), key).unwrap());
        used.check_word(word).unwrap();
        assert_eq!(used.faa(word, 1).wait().unwrap(), 2 * round + 1);
        assert_eq!(nodes[0].queue_pairs(), (1, 1), "in place of the one before");
    }
    assert_eq!(nodes[0].stub.state().posted.len(), 0);
    fabric.fence_self();
    assert_eq!(refused(unused.check_word(word)), ErrorKind::Fenced);
    for endpoint in [&used, &unused] {
        assert_eq!(refused(endpoint.put_value(word, 1).wait()), ErrorKind::Fenced);
    }
    assert_eq!(region.word(0).load(), 6);
}

/// Lanes open their way to the own node while its right is taken and given, groups are made, and at last the node is
/// fenced.
#[test]
fn first_use_of_the_own_node_races_with_revokes_and_a_fence() {
    let nodes = Served::session("own-race", 1);
    let fabric = &nodes[0].fabric;
    let (key, region) = nodes[0].guarded();
    let word = region.remote::<u64>(0);
    let is_fenced = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let (mut done, mut refusals) = (0, 0);
                    while !is_fenced.load(Ordering::Acquire) {
                        let endpoint = nodes[0].endpoint(); // each time the first use
                        match endpoint.faa(word, 1).wait() {
                            Ok(_) => done += 1,
                            Err(error) => {
                                let kind = error.kind();
                                assert!(matches!(kind, ErrorKind::Revoked { .. } | ErrorKind::Fenced), "{kind:?}");
                                refusals += 1;
                            }
                        }
                    }
                    assert_eq!(refused(nodes[0].endpoint().faa(word, 1).wait()), ErrorKind::Fenced);
                    (done, refusals)
                })
            })
            .collect();
        for round in 0..20 {
            let before = region.word(0).load();
            until("they work", || region.word(0).load() > before + 1);
            if round % 4 == 0 {
                let (_, other) = nodes[0].guarded();
                nodes[0].endpoint().put_value(other.remote(0), 1u64).wait().unwrap();
            }
            fabric.revoke(NodeId(0), key, SOON).unwrap();
            let settled = region.word(0).load();
            std::thread::sleep(Duration::from_micros(500));
            assert_eq!(region.word(0).load(), settled, "an operation landed after revoke {round}");
            fabric.permit(NodeId(0), key).unwrap();
        }
        fabric.fence_self();
        is_fenced.store(true, Ordering::Release);
        let (done, refusals) = workers.into_iter().fold((0, 0), |all, worker| {
            let (done, refusals) = worker.join().unwrap();
            (all.0 + done, all.1 + refusals)
        });
        assert!(done == region.word(0).load() && refusals > 0, "{done} done, {refusals} refused");
    });
    assert_eq!(nodes[0].stub.state().queue_pairs, 0);
}

/// On the service thread `permit` returned at once, and the peer was refused when it was ordered to write.
#[test]
fn the_service_thread_gives_a_right_and_asks_when_it_holds() {
    let nodes = Served::session("service", 2);
    let (key, region) = nodes[0].guarded();
    let (word, peer) = (region.remote::<u64>(0), NodeId(1));
    let endpoints = [nodes[1].endpoint(), nodes[1].endpoint()];
    let fabric = &nodes[0].fabric;
    for round in 0..5 {
        assert!(fabric.is_permitted(peer, key).unwrap());
        endpoints[0].faa(word, 1).wait().unwrap();
        fabric.revoke(peer, key, SOON).unwrap();
        assert!(!fabric.is_permitted(peer, key).unwrap());
        until("it hears that", || endpoints[0].faa(word, 1).wait().is_err());
        // The peer does not answer now: so the right must not count as usable.
        nodes[1].hold_up(true);
        nodes[1].fabric.send_control(NodeId(0), &[key.0]).unwrap();
        until("the service thread gives it", || nodes[0].given.load(Ordering::Acquire) == round + 1);
        std::thread::sleep(Duration::from_millis(10 * (round % 2)));
        assert!(!fabric.is_permitted(peer, key).unwrap_or(false));
        assert!(matches!(refused(endpoints[0].faa(word, 1).wait()), ErrorKind::Revoked { .. }));
        nodes[1].hold_up(false);
        until("the peer can use it", || matches!(fabric.is_permitted(peer, key), Ok(true)));
        for endpoint in &endpoints {
            endpoint.faa(word, 1).wait().unwrap();
        }
    }
}

/// The second of two calls returned at once, though the peer had not answered the first.
#[test]
fn a_second_permit_waits_as_the_first_does_and_a_revoke_ends_both() {
    let nodes = Served::session("twice", 2);
    let (key, region) = nodes[0].guarded();
    let (word, peer) = (region.remote::<u64>(0), NodeId(1));
    let endpoint = nodes[1].endpoint();
    let fabric = &nodes[0].fabric;
    fabric.revoke(peer, key, SOON).unwrap();
    fabric.permit(peer, key).unwrap();
    endpoint.faa(word, 1).wait().unwrap();
    // Many of them in a row are answered by the last one's state.
    nodes[1].hold_up(true);
    for _ in 0..3 {
        fabric.revoke(peer, key, SOON).unwrap();
        fabric.start_permit(peer, key).unwrap();
        fabric.start_permit(peer, key).unwrap();
    }
    std::thread::scope(|scope| {
        let permits: Vec<_> = (0..2).map(|_| scope.spawn(|| fabric.permit(peer, key))).collect();
        std::thread::sleep(Duration::from_millis(20));
        assert!(permits.iter().all(|permit| !permit.is_finished()));
        nodes[1].hold_up(false);
        permits.into_iter().for_each(|permit| permit.join().unwrap().unwrap());
    });
    endpoint.faa(word, 1).wait().unwrap();
    assert_eq!(nodes[1].queue_pairs().0, 2, "one to the first groups, one to the guarded one");
    // Taken while another thread waits for the answer.
    nodes[1].hold_up(true);
    fabric.revoke(peer, key, SOON).unwrap();
    std::thread::scope(|scope| {
        let permit = scope.spawn(|| fabric.permit(peer, key));
        until("it is given", || fabric.start_permit(peer, key).is_ok());
        std::thread::sleep(Duration::from_millis(20));
        fabric.revoke(peer, key, SOON).unwrap();
        assert_eq!(refused(permit.join().unwrap()), ErrorKind::Revoked { node: NodeId(0), key });
        nodes[1].hold_up(false);
    });
    until("it hears that", || matches!(refused(endpoint.faa(word, 1).wait()), ErrorKind::Revoked { .. }));
    assert_eq!(region.word(0).load(), 2);
}

#[test]
fn a_peer_that_is_short_of_queue_pairs_says_so() {
    let nodes = Served::session("peer-short", 2);
    let (key, region) = nodes[0].guarded();
    let (word, peer) = (region.remote::<u64>(0), NodeId(1));
    let endpoints = [nodes[1].endpoint(), nodes[1].endpoint()];
    let fabric = &nodes[0].fabric;
    for side in [1, 0] {
        fabric.revoke(peer, key, SOON).unwrap();
        // The ended queue pairs are destroyed when their lanes notice.
        until("it hears that", || endpoints.iter().all(|endpoint| endpoint.faa(word, 1).wait().is_err()));
        let there_are = nodes[side].stub.state().queue_pairs;
        nodes[side].stub.state().queue_pairs_max = Some(there_are + 1);
        assert_eq!(refused(fabric.permit(peer, key)), ErrorKind::NoQueuePair { node: peer }, "side {side}");
        assert_eq!(refused(fabric.is_permitted(peer, key)), ErrorKind::NoQueuePair { node: peer });
        nodes[side].stub.state().queue_pairs_max = None;
        fabric.permit(peer, key).unwrap();
        for endpoint in &endpoints {
            endpoint.faa(word, 1).wait().unwrap();
        }
    }
    assert_eq!(region.word(0).load(), 4);
}

#[test]
fn a_late_peer_finds_its_rights_and_a_gone_one_is_an_error() {
    let mut nodes: Vec<_> = (0..2).map(|place| Served::join("comes", place, 2)).collect();
    let (key, region) = nodes[0].guarded();
    let (word, peer) = (region.remote::<u64>(0), NodeId(1));
    let fabric = Arc::clone(&nodes[0].fabric);
    assert!(fabric.is_permitted(peer, key).unwrap());
    fabric.revoke(peer, key, SOON).unwrap();
    assert!(!fabric.is_permitted(peer, key).unwrap());
    fabric.permit(peer, key).unwrap();
    assert!(fabric.is_permitted(peer, key).unwrap());
    let early = nodes[1].endpoint();
    meet(&nodes);
    until("it comes", || is_up(&nodes[1], NodeId(0)));
    early.faa(word, 1).wait().unwrap();
    nodes[1].endpoint().faa(word, 1).wait().unwrap();
    until("it has come", || is_up(&nodes[0], peer));
    // Held up for longer than it may be silent: no call waits for it.
    fabric.revoke(peer, key, SOON).unwrap();
    nodes[1].hold_up(true);
    assert_eq!(refused(fabric.permit(peer, key)), ErrorKind::Unreachable { node: peer });
    until("it is suspected", || fabric.is_permitted(peer, key).is_err());
    assert_eq!(refused(fabric.is_permitted(peer, key)), ErrorKind::Unreachable { node: peer });
    nodes[1].hold_up(false);
    until("it is trusted again", || matches!(fabric.is_permitted(peer, key), Ok(true)));
    early.faa(word, 1).wait().unwrap();
    // It leaves in the middle.
    fabric.revoke(peer, key, SOON).unwrap();
    nodes[1].hold_up(true);
    std::thread::scope(|scope| {
        let permit = scope.spawn(|| fabric.permit(peer, key));
        nodes[1].end();
        let gone = refused(permit.join().unwrap());
        assert!(matches!(gone, ErrorKind::PeerLeft { .. } | ErrorKind::Unreachable { .. }), "{gone:?}");
    });
    until("it has left", || matches!(fabric.peer_state(peer), PeerState::Left));
    for gone in [refused(fabric.permit(peer, key)), refused(fabric.start_permit(peer, key))] {
        assert_eq!(gone, ErrorKind::PeerLeft { node: peer });
    }
    assert_eq!(refused(fabric.is_permitted(peer, key)), ErrorKind::PeerLeft { node: peer });
    assert_eq!(region.word(0).load(), 3);
}
