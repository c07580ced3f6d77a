//! Control messages, membership, and lanes.

use std::time::Duration;

use farfield_fabric::{CONTROL_BYTES_MAX, ControlEvent, Endpoint, EndpointOptions, ErrorKind, NodeId, PeerState};

use crate::harness::{Harness, eventually, guarded, refused};

/// Messages arrive whole, once and in the order of their sender, whatever their lengths.
pub(crate) fn messages_arrive_whole_and_in_order(harness: &Harness) {
    let nodes = harness.session(3);
    let message = |from: u8, number: usize| {
        let len = [0, 1, 7, 100, 5000, CONTROL_BYTES_MAX][number % 6];
        let mut bytes = vec![number as u8; len];
        if let Some(first) = bytes.first_mut() {
            *first = from;
        }
        bytes
    };
    for number in 0..300 {
        for from in [0, 1] {
            // The queue has room for thousands, and the receiver takes them meanwhile.
            nodes[from].fabric.send_control(NodeId(2), &message(from as u8, number)).unwrap();
        }
    }
    for from in [0, 1] {
        let expected: Vec<_> = (0..300).map(|number| message(from as u8, number)).collect();
        let received = eventually("all messages", || {
            let messages: Vec<_> = nodes[2]
                .events()
                .into_iter()
                .filter_map(|event| match event {
                    ControlEvent::Message(node, bytes) if node.index() == from => Some(bytes),
                    _ => None,
                })
                .collect();
            (messages.len() >= 300).then_some(messages)
        });
        assert!(received == expected, "from {from}");
    }
}

/// A message that is too long is an error here, not a surprise there.
pub(crate) fn messages_too_long_are_refused(harness: &Harness) {
    let nodes = harness.session(2);
    let error = refused(nodes[0].fabric.send_control(NodeId(1), &vec![0; CONTROL_BYTES_MAX + 1]));
    assert!(matches!(error.kind(), ErrorKind::Control { node: NodeId(1), .. }), "{error}");
}

/// A node that leaves in good order has left and is not dead, for operations, waits and messages.
pub(crate) fn a_node_that_leaves_has_left(harness: &Harness) {
    let mut nodes = harness.session(3);
    let (endpoint, gone, stays) = (nodes[0].endpoint(), nodes[2].region(8), nodes[1].region(8));
    let (guarded, _) = guarded(&nodes, 0, 8);
    let word = gone.remote::<u64>(0);
    endpoint.put_value(word, 1).wait().unwrap();
    // The put is visible before the node leaves; otherwise it might be lost with it.
    assert_eq!(endpoint.get(word).wait().unwrap(), 1);
    assert!(matches!(nodes[0].fabric.peer_state(NodeId(2)), PeerState::Up { .. }));
    endpoint.check_alive(NodeId(2)).unwrap();
    endpoint.check_word(word).unwrap();
    endpoint.check_word(stays.remote(0)).unwrap(); // nothing was posted there yet
    nodes[2].leave();
    // Where nodes learn of each other by messages, that takes one.
    eventually("it is known", || (nodes[0].fabric.peer_state(NodeId(2)) == PeerState::Left).then_some(()));
    let left = |error: &farfield_fabric::Error| *error.kind() == ErrorKind::PeerLeft { node: NodeId(2) };
    for error in [
        refused(endpoint.put_value(word, 2).wait()),
        refused(endpoint.get(word).wait()),
        refused(endpoint.cas(word, 1, 2).wait()),
        refused(endpoint.faa(word, 1).wait()),
        refused(endpoint.remote_fence(NodeId(2)).wait()),
        refused(endpoint.check_alive(NodeId(2))),
        refused(endpoint.check_word(word)),
        refused(endpoint.block_on(endpoint.batch(NodeId(2)).put_value(word, 1).post())),
    ] {
        assert!(left(&error) && error.is_gone() && error.node() == Some(NodeId(2)), "{error}");
    }
    assert_eq!(nodes[0].fabric.peer_state(NodeId(2)), PeerState::Left);
    for node in &nodes[..2] {
        eventually("the others are told", || node.events().contains(&ControlEvent::Down(NodeId(2))).then_some(()));
    }
    assert!(left(&refused(nodes[0].fabric.send_control(NodeId(2), b"hello?"))));
    nodes[0].fabric.revoke(NodeId(2), guarded, Duration::from_secs(1)).unwrap();
    // A fence over all nodes covers those that are there, and tells of the one that is not.
    drop(endpoint.put_value(stays.remote::<u64>(0), 5));
    drop(endpoint.put_value(word, 5));
    let error = refused(endpoint.block_on(endpoint.global_fence([NodeId(2), NodeId(1)])));
    assert!(left(&error), "{error}");
    assert_eq!(stays.word(0).load(), 5);
    // The memory of a departed node is still mapped here: reading it in this process is no crash.
    assert_eq!(gone.word(0).load(), 1);
}

/// Endpoints are many but not endless; one that is dropped makes room.
pub(crate) fn endpoints_run_out_and_come_back(harness: &Harness) {
    let nodes = harness.session(1);
    let mut endpoints = Vec::new();
    let error = loop {
        match Endpoint::open(nodes[0].fabric.clone(), EndpointOptions::default()) {
            Ok(endpoint) => endpoints.push(endpoint),
            Err(error) => break error,
        }
        assert!(endpoints.len() < 100_000);
    };
    assert!(matches!(error.kind(), ErrorKind::TooMany { limit, .. } if *limit == endpoints.len()), "{error}");
    endpoints.pop();
    // A weak lane ends when its NIC has noticed.
    let again = eventually("room", || Endpoint::open(nodes[0].fabric.clone(), EndpointOptions::default()).ok());
    let word = nodes[0].region(8);
    again.put_value(word.remote::<u64>(0), 1).wait().unwrap();
    assert_eq!(again.get(word.remote::<u64>(0)).wait().unwrap(), 1);
}
