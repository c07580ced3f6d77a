//! A pointer is a number, not a right: wrong ones are typed errors that name the node, and touch nothing.

use farfield_fabric::{Bell, Endpoint, ErrorKind, GroupKey, NodeId, RemotePtr};

use crate::harness::{Harness, eventually, refused};

/// Every kind of operation on a place; their errors.
fn all_kinds(endpoint: &Endpoint, place: RemotePtr<u64>, words: usize) -> Vec<farfield_fabric::Error> {
    let buf = || {
        let mut buf = endpoint.buf::<u64>(words).unwrap();
        buf.fill(0xbad);
        buf
    };
    let mut errors = vec![
        refused(endpoint.put(place, &buf()).wait()),
        refused(endpoint.put_owned(place, buf()).wait().map(drop)),
        refused(endpoint.get_into(place, buf()).wait().map(drop)),
    ];
    if words == 1 {
        errors.push(refused(endpoint.put_value(place, 0xbad).wait()));
        errors.push(refused(endpoint.get(place).wait()));
        errors.push(refused(endpoint.cas(place, 0, 0xbad).wait()));
        errors.push(refused(endpoint.faa(place, 0xbad).wait()));
        errors.push(refused(endpoint.block_on(endpoint.batch(place.node()).put_value(place, 0xbad).post())));
        let mut into = endpoint.buf::<u64>(1).unwrap();
        errors.push(refused(endpoint.block_on(endpoint.get_each(&[place], 1, &mut into))));
    }
    errors
}

/// Beyond the end, over the end, and so far that sums wrap.
pub(crate) fn places_outside_are_refused(harness: &Harness) {
    let nodes = harness.session(2);
    let region = nodes[1].region(4096);
    for word in region.words(0, 512) {
        word.store(7);
    }
    let endpoint = nodes[0].endpoint();
    // How much memory the group has, beyond the requested one, is the fabric's business.
    let ErrorKind::OutOfBounds { memory_bytes, .. } =
        *refused(endpoint.get(RemotePtr::<u64>::new(NodeId(1), GroupKey::DATA, 1 << 40)).wait()).kind()
    else {
        panic!("far outside")
    };
    let end = RemotePtr::<u64>::new(NodeId(1), GroupKey::DATA, memory_bytes);
    let last = RemotePtr::<u64>::new(NodeId(1), GroupKey::DATA, memory_bytes - 8);
    let farthest = RemotePtr::<u64>::new(NodeId(1), GroupKey::DATA, (1 << 44) - 8);
    let cases = [(end, 1), (last, 2), (last, 1000), (end.byte_add(1 << 20), 1), (farthest, 1), (farthest, 4096)];
    for (place, words) in cases {
        for error in all_kinds(&endpoint, place, words) {
            match *error.kind() {
                ErrorKind::OutOfBounds { node, key, offset, .. } => {
                    assert_eq!((node, key, offset), (NodeId(1), GroupKey::DATA, place.offset()));
                }
                _ => panic!("{place:?} × {words}: {error}"),
            }
            assert_eq!(error.node(), Some(NodeId(1)));
        }
    }
    endpoint.get(last).wait().unwrap();
    assert!(region.words(0, 512).iter().all(|word| word.load() == 7), "what lies inside is untouched");
}

/// A group that does not exist, and nodes that do not.
pub(crate) fn wrong_names_are_refused(harness: &Harness) {
    let nodes = harness.session(2);
    let endpoint = nodes[0].endpoint();
    for node in [0, 1] {
        for key in [3, 77, 255] {
            for error in all_kinds(&endpoint, RemotePtr::new(NodeId(node), GroupKey(key), 64), 1) {
                assert_eq!(*error.kind(), ErrorKind::UnknownGroup { node: NodeId(node), key: GroupKey(key) });
                assert_eq!(error.node(), Some(NodeId(node)));
            }
        }
    }
    for node in [2, 64, 4095].map(NodeId) {
        for error in all_kinds(&endpoint, RemotePtr::new(node, GroupKey::DATA, 64), 1) {
            assert_eq!(*error.kind(), ErrorKind::UnknownNode { node, nodes: 2 });
        }
        assert_eq!(*refused(endpoint.remote_fence(node).wait()).kind(), ErrorKind::UnknownNode { node, nodes: 2 });
        let fabric = &nodes[0].fabric;
        assert_eq!(refused(fabric.send_control(node, b"x")).node(), Some(node));
        assert_eq!(refused(fabric.permit(node, GroupKey::DATA)).node(), Some(node));
        assert_eq!(refused(fabric.revoke(node, GroupKey::DATA, crate::harness::SOON)).node(), Some(node));
    }
    assert!(matches!(refused(nodes[0].fabric.alloc(GroupKey(9), 8)).kind(), ErrorKind::UnknownGroup { .. }));
    assert!(matches!(refused(nodes[0].fabric.permit(NodeId(1), GroupKey(9))).kind(), ErrorKind::UnknownGroup { .. }));
    // The endpoint is as good as before.
    let region = nodes[1].region(8);
    endpoint.put_value(region.remote::<u64>(0), 5).wait().unwrap();
    assert_eq!(endpoint.get(region.remote::<u64>(0)).wait().unwrap(), 5);
}

/// Places are on 8-byte boundaries.
pub(crate) fn odd_places_are_refused(harness: &Harness) {
    let nodes = harness.session(2);
    let region = nodes[1].region(64);
    let endpoint = nodes[0].endpoint();
    for by in 1..8 {
        let place = region.remote::<u64>(16).byte_add(by);
        for error in all_kinds(&endpoint, place, 1) {
            let (node, key, offset) = (NodeId(1), GroupKey::DATA, place.offset());
            assert_eq!(*error.kind(), ErrorKind::Misaligned { node, key, offset });
        }
    }
    assert!(region.words(0, 8).iter().all(|word| word.load() == 0));
}

/// A group created and memory allocated after the peers have connected reach them.
pub(crate) fn a_new_group_and_grown_memory_are_reachable(harness: &Harness) {
    let nodes = harness.session(2);
    let endpoint = nodes[0].endpoint();
    let key = nodes[1].fabric.create_group(Bell::Silent).unwrap();
    let region = nodes[1].fabric.alloc(key, 64).unwrap();
    let place = region.remote::<u64>(0);
    assert_eq!((place.node(), place.key()), (NodeId(1), key));
    eventually("the group is announced", || match endpoint.put_value(place, 3).wait() {
        Ok(()) => Some(()),
        Err(error) => {
            assert!(matches!(error.kind(), ErrorKind::UnknownGroup { .. }), "{error}");
            None
        }
    });
    assert_eq!(endpoint.get(place).wait().unwrap(), 3);
    for group in [key, GroupKey::DATA, GroupKey::SIGNAL, GroupKey::SERVICE] {
        for _ in 0..4 {
            let more = nodes[1].fabric.alloc(group, 3 << 20).unwrap();
            let last = more.remote::<u64>(more.bytes() - 8);
            drop(endpoint.put_value(last, 11));
            assert_eq!(endpoint.get(last).wait().unwrap(), 11);
            assert_eq!(more.word(more.bytes() - 8).load(), 11);
        }
    }
}

/// Regions are zero, begin on cache lines and do not overlap.
pub(crate) fn memory_is_zeroed_aligned_and_apart(harness: &Harness) {
    let nodes = harness.session(1);
    let regions: Vec<_> = [8, 64, 1, 100, 4096, 0, 24].map(|bytes| nodes[0].region(bytes)).into();
    let mut end = 0;
    for region in &regions {
        let start = region.remote::<u8>(0).offset();
        assert!(start % 64 == 0 && start >= end, "{region:?}");
        end = start + region.bytes() as u64;
        assert!(region.words(0, region.bytes() / 8).iter().all(|word| word.load() == 0));
    }
}

/// A group's limit is an error that says so, and the earlier memory stays.
pub(crate) fn running_out_of_memory_is_an_error(harness: &Harness) {
    let (nodes, limit) = harness.session_with_small_groups(2);
    let region = nodes[1].region(limit / 8 * 3);
    region.word(0).store(42);
    for bytes in [limit / 4 * 3, 1 << 30, 1 << 44, usize::MAX - 7, usize::MAX] {
        let error = refused(nodes[1].fabric.alloc(GroupKey::DATA, bytes));
        assert!(matches!(error.kind(), ErrorKind::OutOfMemory { key: GroupKey::DATA, .. }), "{error}");
    }
    let rest = nodes[1].region(limit / 2);
    let endpoint = nodes[0].endpoint();
    assert_eq!(endpoint.get(region.remote::<u64>(0)).wait().unwrap(), 42);
    drop(endpoint.put_value(rest.remote(rest.bytes() - 8), 6u64));
    assert_eq!(endpoint.get(rest.remote::<u64>(rest.bytes() - 8)).wait().unwrap(), 6);
}
