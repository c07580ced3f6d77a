//! Ring buffers.

use std::time::Duration;

use farfield::fabric::ErrorKind as FabricError;
use farfield::{Endpoint, ErrorKind, RingBuffer, RingOptions, RingReceiver};

use crate::harness::{Rng, SHORT, Scene, beside, everywhere, fabrics, mix, on_each_fabric, refused, rounds, session};

/// A message in which every byte follows from its number and length.
fn message(number: u64, len: usize) -> Vec<u8> {
    (0..len).map(|at| mix((number << 16) ^ (at as u64 / 8)).to_le_bytes()[at % 8]).collect()
}

/// The lengths of the messages, the same for the sender and the readers. Any length occurs, from empty to the maximum.
fn lengths(seed: u64, max: usize) -> impl FnMut() -> usize {
    let mut rng = Rng::new(seed);
    move || match rng.below(8) {
        0 => 0,
        1 => max,
        2 => max - rng.below(9),
        3 => rng.below(max + 1),
        _ => rng.below(40),
    }
}

/// Each reader gets each message once, whole and in order. Readers are on other nodes, several on one node, and on the
/// writer's own. The messages fill the ring many times.
#[test]
fn each_reader_gets_each_message_once_in_order() {
    everywhere("messages", 3, |scene| {
        const CAPACITY: usize = 512;
        let readers = [1, 0, 2].map(|node| (scene.id(node), scene.threads));
        let options = RingOptions::new(scene.id(0), readers, CAPACITY);
        let rings = scene.open(|node| RingBuffer::open(node, "ring", options.clone()));
        let messages = scene.rounds(1800, 18_000) as u64;
        std::thread::scope(|scope| {
            for reader in 0..scene.all_threads() {
                let endpoint = scene.endpoint(reader % 3);
                let mut receiver = rings[reader % 3].receiver().unwrap();
                scope.spawn(move || receive_all(&mut receiver, &endpoint, reader, messages, CAPACITY - 8));
            }
            let endpoint = scene.endpoint(0);
            let mut sender = rings[0].sender().unwrap();
            assert_eq!(sender.message_bytes_max(), CAPACITY - 8);
            let mut lengths = lengths(7, CAPACITY - 8);
            for number in 0..messages {
                let bytes = message(number, lengths());
                match number % 2 {
                    0 => endpoint.block_on(sender.send(&endpoint, &bytes)).unwrap(),
                    _ => {
                        while !sender.try_send(&endpoint, &bytes).unwrap() {
                            std::thread::yield_now();
                        }
                    }
                }
            }
            let deadline = endpoint.deadline();
            endpoint.block_on(sender.wait_acknowledged(&endpoint, sender.position(), deadline)).unwrap();
            assert!(sender.is_acknowledged(&endpoint, sender.position()));
        });
    });
}

fn receive_all(receiver: &mut RingReceiver, endpoint: &Endpoint, reader: usize, messages: u64, max: usize) {
    let mut lengths = lengths(7, max);
    let mut bytes = vec![1, 2, 3];
    for number in 0..messages {
        match (reader as u64 + number) % 3 {
            0 => {
                // The writer may wait for unacknowledged space.
                receiver.acknowledge(endpoint).unwrap();
                endpoint.block_on(receiver.recv(endpoint, &mut bytes)).unwrap();
            }
            1 => {
                while !receiver.try_recv_unacknowledged(endpoint, &mut bytes).unwrap() {
                    receiver.acknowledge(endpoint).unwrap();
                    std::thread::yield_now();
                }
            }
            _ => {
                receiver.acknowledge(endpoint).unwrap();
                while !receiver.try_recv(endpoint, &mut bytes).unwrap() {
                    std::thread::yield_now();
                }
            }
        }
        assert_eq!(bytes, message(number, lengths()), "message {number} at reader {reader}");
    }
    receiver.acknowledge(endpoint).unwrap();
    assert!(!receiver.try_recv(endpoint, &mut bytes).unwrap(), "there were no more");
}

/// A full ring refuses messages, and accepts more once it has been read. After a deadline, the error names the reader
/// that does not read, and nothing has changed.
#[test]
fn a_full_ring_refuses_and_goes_on() {
    on_each_fabric("full", 3, |scene| {
        let options = RingOptions::broadcast(&scene.nodes[0], scene.id(0), 128);
        let rings = scene.open(|node| RingBuffer::open(node, "ring", options.clone()));
        let (near, quick, slow) = (scene.endpoint(0), scene.endpoint(1), scene.endpoint(2));
        let mut sender = rings[0].sender().unwrap();
        let mut readers = [rings[1].receiver().unwrap(), rings[2].receiver().unwrap()];
        let mut bytes = Vec::new();
        let mut number = 0;
        for _ in 0..scene.rounds(5, 6) {
            let first = number;
            while sender.try_send(&near, &message(number, 24)).unwrap() {
                number += 1;
            }
            assert_eq!(number, first + 4, "four messages of 32 bytes");
            // One reader has read everything, the other nothing.
            for expected in first..number {
                quick.block_on(readers[0].recv(&quick, &mut bytes)).unwrap();
                assert_eq!(bytes, message(expected, 24));
            }
            let position = sender.position();
            let deadline = near.now() + SHORT;
            let error = refused(near.block_on(sender.send_deadline(&near, b"lost", deadline)));
            assert!(
                matches!(error.kind(), ErrorKind::Timeout { missing, .. } if *missing == [scene.id(2)]),
                "{error:?}"
            );
            assert!(error.to_string().starts_with("ring: timed out after "), "{error}");
            assert_eq!(sender.position(), position);
            let error = refused(near.block_on(sender.wait_acknowledged(&near, position, near.now() + SHORT / 4)));
            assert!(error.is_timeout() && error.node() == Some(scene.id(2)), "{error:?}");
            assert!(!sender.is_acknowledged(&near, position));
            assert!(!readers[0].try_recv(&quick, &mut bytes).unwrap(), "nothing was sent");
            for expected in first..number {
                slow.block_on(readers[1].recv(&slow, &mut bytes)).unwrap();
                assert_eq!(bytes, message(expected, 24));
            }
            near.block_on(sender.wait_acknowledged(&near, position, near.deadline())).unwrap();
            assert!(sender.try_send(&near, &message(number, 120)).unwrap(), "the whole ring is free again");
            for (reader, endpoint) in readers.iter_mut().zip([&quick, &slow]) {
                endpoint.block_on(reader.recv(endpoint, &mut bytes)).unwrap();
                assert_eq!(bytes, message(number, 120));
            }
            number += 1;
            near.block_on(sender.wait_acknowledged(&near, sender.position(), near.deadline())).unwrap();
        }
    });
}

/// The writer waits for unacknowledged space, as it should.
#[test]
fn room_is_given_back_by_the_acknowledgement_only() {
    on_each_fabric("acknowledge", 2, |scene| {
        let options = RingOptions::broadcast(&scene.nodes[0], scene.id(0), 64);
        let rings = scene.open(|node| RingBuffer::open(node, "ring", options.clone()));
        let (near, far) = (scene.endpoint(0), scene.endpoint(1));
        let (mut sender, mut receiver) = (rings[0].sender().unwrap(), rings[1].receiver().unwrap());
        let mut bytes = Vec::new();
        for round in 0..scene.rounds(60, 150) {
            assert!(sender.try_send(&near, &message(round as u64, 56)).unwrap());
            while !receiver.try_recv_unacknowledged(&far, &mut bytes).unwrap() {}
            assert_eq!(bytes, message(round as u64, 56));
            std::thread::sleep(Duration::from_micros(300));
            assert!(!sender.try_send(&near, b"").unwrap() && !sender.is_acknowledged(&near, sender.position()));
            receiver.acknowledge(&far).unwrap();
            near.block_on(sender.wait_acknowledged(&near, sender.position(), near.deadline())).unwrap();
        }
    });
}

/// Invalid messages and options are refused, with the reason.
#[test]
fn messages_and_options_that_do_not_fit_are_refused() {
    on_each_fabric("refused", 2, |scene| {
        let options = RingOptions::new(scene.id(0), [(scene.id(1), 1)], 64);
        let rings = scene.open(|node| RingBuffer::open(node, "ring", options.clone()));
        let endpoint = scene.endpoint(0);
        let mut sender = rings[0].sender().unwrap();
        let error = refused(sender.try_send(&endpoint, &[0; 57]));
        assert_eq!(*error.kind(), ErrorKind::TooLarge { bytes: 57, max_bytes: 56 });
        assert_eq!((sender.position(), error.object()), (0, Some("ring")));
        assert!(refused(rings[0].sender()).to_string().contains("its only writer is already taken"));
        assert!(refused(rings[1].sender()).to_string().contains("only node 0 can send"));
        assert!(refused(rings[0].receiver()).to_string().contains("it has 0 readers on this node"));
        let _receiver = rings[1].receiver().unwrap();
        assert!(refused(rings[1].receiver()).to_string().contains("it has 1 readers on this node"));
        for (capacity, readers) in [(63, 1), (65, 1), (0, 1), (64, 0)] {
            let options = RingOptions::new(scene.id(0), [(scene.id(0), readers)], capacity);
            let error = refused(RingBuffer::open(&scene.nodes[0], "other", options));
            assert!(matches!(error.kind(), ErrorKind::Config { .. }), "{error:?}");
        }
    });
}

/// All messages that a writer sent before it left are received.
#[test]
fn messages_sent_before_the_writer_left_are_received() {
    let _cores = beside("leaving writer");
    for (round, over) in rounds(20, 2) {
        let mut scene = Scene { nodes: session(3, over), over, threads: 1 };
        let writer = scene.id(2);
        let options = RingOptions::broadcast(&scene.nodes[0], writer, 1 << 12);
        let rings = scene.open(|node| RingBuffer::open(node, "ring", options.clone()));
        let messages = 1 + round % 7;
        std::thread::scope(|scope| {
            for (node, ring) in rings[..2].iter().enumerate() {
                let endpoint = scene.endpoint(node);
                scope.spawn(move || {
                    let (mut receiver, mut bytes) = (ring.receiver().unwrap(), Vec::new());
                    for number in 0..messages {
                        endpoint.block_on(receiver.recv(&endpoint, &mut bytes)).unwrap();
                        assert_eq!(bytes, message(number, 100 + number as usize));
                    }
                    let error = refused(endpoint.block_on(receiver.recv(&endpoint, &mut bytes)));
                    let left = FabricError::PeerLeft { node: writer };
                    assert!(matches!(error.kind(), ErrorKind::Fabric(kind) if *kind.kind() == left), "{error:?}");
                });
            }
            let node = scene.nodes.pop().unwrap();
            let endpoint = node.endpoint().unwrap();
            let mut sender = rings[2].sender().unwrap();
            for number in 0..messages {
                assert!(sender.try_send(&endpoint, &message(number, 100 + number as usize)).unwrap());
            }
            drop(endpoint);
            node.leave();
        });
    }
}

/// A departed reader's space is freed, and the others still get messages. Without readers, sending is an error.
#[test]
fn a_reader_that_left_is_not_waited_for() {
    for over in fabrics(&[11]) {
        let _cores = beside("leaving reader");
        let mut scene = Scene { nodes: session(3, over), over, threads: 1 };
        let options = RingOptions::broadcast(&scene.nodes[0], scene.id(0), 64);
        let rings = scene.open(|node| RingBuffer::open(node, "ring", options.clone()));
        let endpoint = scene.endpoint(0);
        let mut sender = rings[0].sender().unwrap();
        endpoint.block_on(sender.send(&endpoint, &[7; 56])).unwrap();
        let (second, far) = (scene.nodes.pop().unwrap(), scene.endpoint(1));
        let first = scene.nodes.pop().unwrap();
        let ids = [first.id(), second.id()];
        let mut receiver = rings[1].receiver().unwrap();
        let mut bytes = Vec::new();
        far.block_on(receiver.recv(&far, &mut bytes)).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                std::thread::sleep(SHORT);
                second.leave();
            });
            // The sender waits for space when the node leaves.
            endpoint.block_on(sender.send(&endpoint, &[8; 56])).unwrap();
        });
        far.block_on(receiver.recv(&far, &mut bytes)).unwrap();
        assert_eq!((bytes, sender.gone(&endpoint)), (vec![8; 56], vec![ids[1]]));
        drop((receiver, far));
        first.leave();
        let error = refused(sender.try_send(&endpoint, b""));
        assert!(error.is_gone() && error.node() == Some(ids[0]), "{error:?}");
        assert_eq!(sender.gone(&endpoint), ids);
    }
}
