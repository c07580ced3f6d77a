//! The decorators themselves: injected faults and records, on any fabric.

use farfield_fabric::fault::{Faults, inject};
use farfield_fabric::record::{Posted, Record, record};
use farfield_fabric::{Endpoint, EndpointOptions, ErrorKind, NodeId, Verb};

use crate::harness::{Harness, refused};

/// Operations to a node that is cut off fail and have no effect there; others continue; it can be joined again.
pub(crate) fn a_cut_fails_operations_and_heals(harness: &Harness) {
    let nodes = harness.session(3);
    let faults = Faults::default();
    let faulty = inject(nodes[0].fabric.clone(), faults.clone());
    assert_eq!(faulty.name(), format!("fault({})", nodes[0].fabric.name()));
    let endpoint = Endpoint::open(faulty, EndpointOptions::default()).unwrap();
    let (one, two) = (nodes[1].region(8), nodes[2].region(8));
    let word = one.remote::<u64>(0);
    for round in 1..20 {
        one.word(0).store(7);
        faults.cut(NodeId(1), true);
        for error in [
            refused(endpoint.put_value(word, 1).wait()),
            refused(endpoint.get(word).wait()),
            refused(endpoint.cas(word, 7, 1).wait()),
            refused(endpoint.check_word(word)),
            refused(endpoint.faa(word, 1).wait()),
            refused(endpoint.get_into(word, endpoint.buf(1).unwrap()).wait().map(drop)),
            refused(endpoint.block_on(endpoint.batch(NodeId(1)).put_value(word, 1).post())),
        ] {
            assert_eq!(*error.kind(), ErrorKind::Injected { node: NodeId(1) });
        }
        drop(endpoint.put_value(two.remote::<u64>(0), round));
        assert_eq!(endpoint.get(two.remote::<u64>(0)).wait().unwrap(), round);
        assert_eq!(one.word(0).load(), 7);
        faults.cut(NodeId(1), false);
        assert_eq!(endpoint.faa(word, 1).wait().unwrap(), 7);
    }
    faults.cut(NodeId(4000), true); // no such node: nothing happens
    endpoint.get(word).wait().unwrap();
}

/// One operation fails, the one that was asked for.
pub(crate) fn one_operation_fails_on_command(harness: &Harness) {
    let nodes = harness.session(2);
    let faults = Faults::default();
    let endpoint = Endpoint::open(inject(nodes[0].fabric.clone(), faults.clone()), EndpointOptions::default()).unwrap();
    let word = nodes[1].region(8).remote::<u64>(0);
    for after in [0, 1, 5] {
        faults.fail_after(after);
        let failed: Vec<u64> = (0..10).filter(|_| true).filter(|_| endpoint.faa(word, 1).wait().is_err()).collect();
        assert_eq!(failed, [after]);
    }
    assert_eq!(endpoint.get(word).wait().unwrap(), 27, "what failed had no effect");
    // Posted together: the others of the same node are not disturbed.
    faults.fail_after(3);
    let ops: Vec<_> = (0..8).map(|_| endpoint.faa(word, 1)).collect();
    let results: Vec<bool> = ops.into_iter().map(|op| op.wait().is_ok()).collect();
    assert_eq!(results, [true, true, true, false, true, true, true, true]);
    assert_eq!(endpoint.get(word).wait().unwrap(), 34);
}

/// A record lists the posted operations, in order.
pub(crate) fn a_record_lists_the_posted_operations(harness: &Harness) {
    let nodes = harness.session(2);
    let log = Record::default();
    let endpoint = Endpoint::open(record(nodes[0].fabric.clone(), log.clone()), EndpointOptions::default()).unwrap();
    let region = nodes[1].region(64);
    let word = region.remote::<u64>(0);
    endpoint.put_value(word, 1).wait().unwrap();
    endpoint.get(word).wait().unwrap();
    endpoint.cas(word, 1, 2).wait().unwrap();
    endpoint.faa(word.at(1), 2).wait().unwrap();
    endpoint.put_owned(word, endpoint.buf(4).unwrap()).wait().unwrap();
    endpoint.remote_fence(NodeId(1)).wait().unwrap();
    let expected = [
        (Verb::Put, word, 8),
        (Verb::Get, word, 8),
        (Verb::Cas, word, 8),
        (Verb::Faa, word.at(1), 8),
        (Verb::Put, word, 32),
    ];
    let expected: Vec<_> = expected.map(|(verb, at, len)| Posted { verb, remote: at.cast(), len }).into();
    let posted = log.take();
    assert_eq!(posted[..5], expected[..]);
    assert_eq!((posted[5].verb, posted[5].remote.node(), posted[5].len), (Verb::RemoteFence, NodeId(1), 0));
    assert_eq!(posted.len(), 6);
    assert!(log.take().is_empty());
}
