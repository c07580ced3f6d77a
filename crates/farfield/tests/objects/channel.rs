//! Channels: typed ring buffers.

use farfield::{ByteString, Channel, ChannelOptions, ChannelReceiver, Endpoint, ErrorKind, NodeId, RingBuffer, Value};
use farfield::{RingOptions, on_each};

use crate::harness::{Over, Rng, SHORT, beside, everywhere, mix, on_each_fabric, refused, related, session};

const BYTES_MAX: usize = 100;

/// A string whose length and bytes follow from its number. Any length occurs, from empty to the maximum.
fn text(number: u64) -> ByteString {
    let len = match number % 5 {
        0 => number as usize % 9,
        1 => BYTES_MAX,
        _ => Rng::new(number).below(BYTES_MAX + 1),
    };
    (0..len).map(|at| mix(number ^ at as u64) as u8).collect::<Vec<u8>>().into()
}

/// Each reader gets each value once, whole and in order: values of three words, and of any length.
#[test]
fn each_reader_gets_each_value_once_in_order() {
    everywhere("values", 3, |scene| {
        let readers = [1, 0, 2].map(|node| (scene.id(node), scene.threads));
        let options = ChannelOptions { value_bytes_max: BYTES_MAX, ..ChannelOptions::new(scene.id(0), readers, 5) };
        let numbers = scene.open(|node| Channel::<[u64; 3]>::open(node, "numbers", options.clone()));
        let texts = scene.open(|node| Channel::<ByteString>::open(node, "texts", options.clone()));
        let count = scene.rounds(400, 4000) as u64;
        std::thread::scope(|scope| {
            for reader in 0..scene.all_threads() {
                let endpoint = scene.endpoint(reader % 3);
                let mut numbers = numbers[reader % 3].receiver().unwrap();
                let mut texts = texts[reader % 3].receiver().unwrap();
                scope.spawn(move || {
                    for number in 0..count {
                        assert_eq!(receive(&mut numbers, &endpoint, number), related::<3>(number));
                        assert_eq!(receive(&mut texts, &endpoint, number), text(number), "{number}");
                    }
                    assert_eq!(numbers.try_recv(&endpoint).unwrap(), None, "there were no more");
                    assert_eq!(texts.try_recv(&endpoint).unwrap(), None, "there were no more");
                });
            }
            let endpoint = scene.endpoint(0);
            let (mut numbers, mut texts) = (numbers[0].sender().unwrap(), texts[0].sender().unwrap());
            for number in 0..count {
                numbers.send_blocking(&endpoint, &related(number)).unwrap();
                while !texts.try_send(&endpoint, &text(number)).unwrap() {
                    std::thread::yield_now();
                }
            }
            for ring in [numbers.ring(), texts.ring()] {
                endpoint.block_on(ring.wait_acknowledged(&endpoint, ring.position(), endpoint.deadline())).unwrap();
            }
        });
    });
}

fn receive<T: Value>(from: &mut ChannelReceiver<T>, endpoint: &Endpoint, number: u64) -> T {
    if number.is_multiple_of(2) {
        return from.recv_blocking(endpoint).unwrap();
    }
    loop {
        match from.try_recv(endpoint).unwrap() {
            Some(value) => return value,
            None => std::thread::yield_now(),
        }
    }
}

/// A channel holds as many of the longest values as its options say. A call that times out has done nothing, and a
/// value that is too long is refused.
#[test]
fn a_channel_has_the_room_that_its_options_name() {
    on_each_fabric("room", 2, |scene| {
        let writer = scene.id(0);
        let options =
            ChannelOptions { value_bytes_max: BYTES_MAX, ..ChannelOptions::new(writer, [(scene.id(1), 1)], 3) };
        let channels = scene.open(|node| Channel::<ByteString>::open(node, "texts", options.clone()));
        let (near, far) = (scene.endpoint(0), scene.endpoint(1));
        let (mut sender, mut receiver) = (channels[0].sender().unwrap(), channels[1].receiver().unwrap());
        let longest = |byte: u8| ByteString::from(vec![byte; BYTES_MAX]);
        for byte in 0..3 {
            assert!(sender.try_send(&near, &longest(byte)).unwrap());
        }
        assert!(!sender.try_send(&near, &longest(3)).unwrap());
        let error = refused(near.block_on(sender.send_deadline(&near, &longest(3), near.now() + SHORT)));
        assert!(error.is_timeout() && error.node() == Some(scene.id(1)), "{error}");
        let error = refused(sender.try_send(&near, &ByteString::from(vec![0; BYTES_MAX + 1])));
        let too_large = ErrorKind::TooLarge { bytes: BYTES_MAX + 1, max_bytes: BYTES_MAX };
        assert_eq!((error.kind(), error.object()), (&too_large, Some("texts")));
        for byte in 0..3 {
            assert_eq!(far.block_on(receiver.recv(&far)).unwrap(), longest(byte));
        }
        let error = refused(far.block_on(receiver.recv_deadline(&far, far.now() + SHORT)));
        assert!(error.is_timeout() && error.node() == Some(writer), "{error}");
        near.block_on(sender.send(&near, &longest(4))).unwrap();
        assert_eq!(far.block_on(receiver.recv(&far)).unwrap(), longest(4));
    });
}

/// Nodes that open a path with other values, sizes or kinds of object learn of it.
#[test]
fn channels_that_differ_are_refused() {
    let _cores = beside("channels that differ");
    let nodes = session(2, Over::Shm);
    let (a, b) = (nodes[0].id(), nodes[1].id());
    let options = |capacity| ChannelOptions::new(a, [(b, 1)], capacity);
    let differ = |path: &str, open: &(dyn Fn(&farfield::Node, bool) -> farfield::Result<()> + Sync)| {
        let error = refused(on_each(&nodes, |node| open(node, node.id() == a)));
        assert!(matches!(error.kind(), ErrorKind::Mismatch { .. }), "{path}: {error}");
        assert_eq!(error.object(), Some(path));
    };
    differ("values", &|node, first| {
        if first {
            Channel::<u64>::open(node, "values", options(8)).map(drop)
        } else {
            Channel::<[u64; 2]>::open(node, "values", options(8)).map(drop)
        }
    });
    differ("sizes", &|node, first| Channel::<u64>::open(node, "sizes", options(if first { 8 } else { 9 })).map(drop));
    differ("kinds", &|node, first| {
        if first {
            Channel::<u64>::open(node, "kinds", options(8)).map(drop)
        } else {
            RingBuffer::open(node, "kinds", RingOptions::new(a, [(b, 1)], 128)).map(drop)
        }
    });
}

#[test]
fn options_that_cannot_be_are_refused() {
    let _cores = beside("wrong options of channels");
    let nodes = session(1, Over::Shm);
    let me = nodes[0].id();
    let good = ChannelOptions::new(me, [(me, 1)], 8);
    let refuse = |options: ChannelOptions| {
        let error = refused(Channel::<ByteString>::open(&nodes[0], "texts", options));
        assert!(matches!(error.kind(), ErrorKind::Config { .. }), "{error}");
        assert_eq!(error.object(), Some("texts"));
    };
    refuse(ChannelOptions { capacity: 0, ..good.clone() });
    refuse(ChannelOptions { capacity: usize::MAX, ..good.clone() });
    refuse(ChannelOptions { value_bytes_max: usize::MAX, ..good.clone() });
    refuse(ChannelOptions { readers: vec![], ..good.clone() });
    refuse(ChannelOptions { readers: vec![(NodeId(0), 0)], ..good.clone() });
    Channel::<ByteString>::open(&nodes[0], "texts", good).unwrap();
}
