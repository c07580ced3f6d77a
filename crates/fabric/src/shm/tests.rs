//! Two nodes of this process: their lanes and mappings are looked at from inside.

use core::any::Any;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use super::limits::lock;
use super::{HugePages, ShmFabric, ShmLane, ShmOptions};
use crate::fabric::{Bell, ControlEvent, Fabric, Transport};
use crate::local::Thread;
use crate::sys::generations::reserve_for;
use crate::{Code, Endpoint, EndpointOptions, ErrorKind, GroupKey, NodeId};

/// A node with its service thread.
struct Peer {
    fabric: Arc<ShmFabric>,
    events: Receiver<ControlEvent>,
    stop: Arc<AtomicBool>,
    service: Option<Thread>,
}

impl Peer {
    fn start(options: &ShmOptions) -> Peer {
        let fabric = ShmFabric::join(options).expect("a place in the session");
        let (node, stop) = (Arc::clone(&fabric), Arc::<AtomicBool>::default());
        let (tell, events) = channel();
        let is_over = Arc::clone(&stop);
        let body = move || {
            while !is_over.load(Ordering::Acquire) {
                node.serve(Duration::from_millis(5), &mut |event| tell.send(event).unwrap_or(()));
            }
            node.leave();
        };
        let service = Transport::spawn_service(Arc::clone(&fabric) as _, "service".into(), Box::new(body));
        Peer { fabric, events, stop, service: Some(service.expect("a thread")) }
    }

    /// Two that have seen each other.
    fn pair(session: &str, pages: HugePages) -> [Peer; 2] {
        let pair =
            [0, 1].map(|place| Peer::start(&ShmOptions { huge_pages: pages, ..ShmOptions::new(session, place, 2) }));
        pair.iter().for_each(|peer| peer.hear("peer", |event| matches!(event, ControlEvent::Up(_))));
        pair
    }

    fn hear(&self, what: &str, is_it: impl Fn(ControlEvent) -> bool) {
        while !is_it(self.events.recv_timeout(Duration::from_secs(20)).unwrap_or_else(|_| panic!("no {what}"))) {}
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.service.take().into_iter().for_each(|service| service.join().expect("its end"));
    }
}

#[test]
fn memory_of_several_kinds_of_pages_is_one_memory_to_peers() {
    let session = format!("test-pages-{}", std::process::id());
    let [owner, peer] = Peer::pair(&session, HugePages::Scarce);
    let endpoints = [&owner, &peer].map(|node| {
        let fabric: Arc<dyn Transport> = Arc::clone(&node.fabric) as _;
        Endpoint::open(fabric, EndpointOptions::default()).expect("an endpoint")
    });
    // One after the other, until they are beyond all that is scarce.
    for at in 0..8 {
        let region = owner.fabric.alloc(GroupKey::DATA, 2 << 20).expect("memory");
        for offset in [0, 8 << 10, (2 << 20) - 8] {
            let (place, value) = (region.remote::<u64>(offset), (at << 32 | offset) as u64);
            endpoints[1].put_value(place, value).wait().expect("a put");
            assert_eq!(region.word(offset).load(), value);
            region.word(offset).store(value + 1);
            assert_eq!(endpoints.each_ref().map(|endpoint| endpoint.get(place).wait().expect("a get")), [value + 1; 2]);
        }
    }
}

/// A peer that announces a group again gets an error, and what lanes use stays mapped.
#[test]
fn a_group_of_a_peer_is_mapped_once() {
    let [owner, peer] = Peer::pair(&format!("test-twice-{}", std::process::id()), HugePages::Never);
    let region = owner.fabric.alloc(GroupKey::DATA, 64).expect("memory");
    region.word(0).store(7);
    let endpoint = Endpoint::open(Arc::clone(&peer.fabric) as _, EndpointOptions::default()).expect("an endpoint");
    assert_eq!(endpoint.get(region.remote::<u64>(0)).wait().expect("a get"), 7);
    let (reserve, parts, generations) = {
        let groups = lock(&owner.fabric.groups);
        let group = &groups[usize::from(GroupKey::DATA.0)];
        let own = |fd: BorrowedFd<'_>| fd.try_clone_to_owned().expect("a descriptor");
        (group.arena.reserve(), group.arena.fds().map(own).collect(), own(group.generations.fd()))
    };
    let again =
        peer.fabric.attach_peer_group(owner.fabric.me, GroupKey::DATA, Bell::Silent, reserve, parts, generations);
    assert!(again.is_err());
    assert_eq!(endpoint.get(region.remote::<u64>(0)).wait().expect("a get"), 7);
}

/// How many mappings this process has of a node's memory, those of the node itself left out.
fn mappings_of(session: &str, node: &ShmFabric) -> usize {
    let name = format!("{session}-{}-", node.me.0);
    let own: Vec<_> = (node.memory.arenas.lock().expect("no panic").iter())
        .flat_map(|(arena, generations)| {
            let bytes = [arena.reserve(), reserve_for(arena.reserve())];
            [arena.base(), generations.base()].map(|base| base as usize).into_iter().zip(bytes)
        })
        .collect();
    let maps = std::fs::read_to_string("/proc/self/maps").expect("the process's own");
    let starts = maps
        .lines()
        .filter(|line| line.contains(&name))
        .map(|line| usize::from_str_radix(line.split('-').next().expect("a start"), 16).expect("an address"));
    starts.filter(|start| !own.iter().any(|(base, bytes)| (*base..base + bytes).contains(start))).count()
}

#[test]
fn memory_of_a_gone_node_is_given_back_after_the_last_write() {
    for (pages, name) in [(HugePages::Never, "ordinary"), (HugePages::Scarce, "scarce")] {
        let session = format!("test-gone-{name}-{}", std::process::id());
        let [stays, goes] = Peer::pair(&session, pages);
        let region = goes.fabric.alloc(GroupKey::DATA, 8 << 20).expect("memory");
        let (word, last) = (region.remote::<u64>(0), region.remote::<u64>((8 << 20) - 8));
        let lanes = [(); 2].map(|()| {
            let lane: Box<dyn Any> = stays.fabric.open_lane(false).expect("a lane");
            lane.downcast::<ShmLane>().expect("a lane on shared memory")
        });
        [word, last].iter().for_each(|place| lanes[0].put_value(*place, 7u64).expect("it is there"));

        // A read and a write that have begun, and a write that has found its right before the node dies.
        let [read, write, longer] =
            [last, word, word].map(|place| lanes[0].place(place.cast(), 8).unwrap_or_else(|code| panic!("{code:?}")));
        // SAFETY: eight bytes of memory that are mapped and accessed by atomics only.
        let look = || (unsafe { AtomicU64::from_ptr(read.at.cast()) }.load(Ordering::Acquire), read.held());
        let gone = Arc::clone(&goes.fabric);
        let all = mappings_of(&session, &gone);
        assert!(all >= 6, "three groups and their generations");
        let seen = lanes[1].write(&longer, || {
            drop(goes);
            stays.hear("end", |event| matches!(event, ControlEvent::Down(NodeId(1))));
            std::thread::sleep(Duration::from_millis(50));
            (mappings_of(&session, &gone), look())
        });
        assert_eq!(seen, Ok((all, (7, Ok(())))), "one is writing to it");
        let began = std::time::Instant::now();
        while mappings_of(&session, &gone) > 0 {
            assert!(began.elapsed() < Duration::from_secs(20), "it is given back");
            std::thread::yield_now();
        }
        // An access under way ends in an error, and none is a signal.
        assert_eq!(look(), (0, Err(Code::Freed)));
        assert_eq!(lanes[0].write(&write, || unreachable!("nobody has a right to")), Err::<(), _>(Code::Revoked));
        assert_eq!(lanes[0].get_value(last), Err(Code::Unreachable));
        for code in [Code::Freed, Code::Revoked, Code::Unreachable] {
            let error = stays.fabric.explain(code, last.cast(), 8);
            assert!(matches!(error.kind(), ErrorKind::PeerLeft { node: NodeId(1) }), "{error}");
        }
    }
}
