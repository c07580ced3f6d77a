//! The state machine of one connection: each refusal, each end, each limit, without a socket and at any time we like.

use std::time::Duration;

use super::super::codec::{FRAME_BYTES_MAX, GREETING_BYTES_MAX, Malformed};
use super::super::protocol::{Broken, Ending, Happening, Identity, SendError};
use super::super::queues::QUEUE_BYTES_MAX;
use super::super::refusal::Refusal;
use super::super::refusal::tests::refusals;
use super::super::wire::{Frame, VERSION};
use super::{End, Pair, admit_all, framed, hello_of, identity, secret};
use crate::fabric::CONTROL_BYTES_MAX;
use crate::ptr::NodeId;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Both sides learn of a refusal, and report the same.
fn both_refused(pair: &Pair, by_caller: bool, expected: &Refusal) {
    for (end, by_us) in [(&pair.caller, by_caller), (&pair.listener, !by_caller)] {
        match &end.happened[..] {
            [Happening::Refused { by_us: by, refusal, .. }] if *by == by_us && refusal == expected => {}
            other => panic!("{expected:?} by the caller: {by_caller}, but {other:?}"),
        }
        assert!(end.protocol.is_over());
    }
}

#[test]
fn two_nodes_with_one_secret_or_none_come_up() {
    for secret in [Some(secret(7)), None] {
        let mut pair = Pair::new(identity(5, secret.as_ref()), identity(1, secret.as_ref()));
        pair.talk();
        for (end, node, incarnation) in [(&pair.caller, 1, 1001), (&pair.listener, 5, 1005)] {
            let [Happening::Up(hello)] = &end.happened[..] else { panic!("{:?}", end.happened) };
            assert_eq!((hello.node, hello.place, hello.incarnation), (NodeId(node), node % 3, incarnation));
        }
    }
}

#[test]
fn wrong_and_missing_secrets_are_refused_alike_on_both_sides() {
    let said =
        [(Some(secret(7)), Some(secret(8))), (Some(secret(7)), None), (None, Some(secret(7)))].map(|(ours, theirs)| {
            let mut pair = Pair::new(identity(2, ours.as_ref()), identity(1, theirs.as_ref()));
            let hello = pair.caller.said();
            pair.listener.hear(&hello, pair.now, &admit_all);
            let hello = pair.listener.said();
            pair.caller.hear(&hello, pair.now, &admit_all);
            let proof = pair.caller.said();
            pair.listener.hear(&proof, pair.now, &admit_all);
            let refusal = pair.listener.said();
            pair.caller.hear(&refusal, pair.now, &admit_all);
            both_refused(&pair, false, &Refusal::Secret);
            (hello, refusal)
        });
    assert!(said[0] == said[1] && said[1] == said[2], "the listener says the same in all cases");
}

/// A listener that does not know the secret, but claims that the caller's proof was right.
#[test]
fn the_caller_too_looks_whether_the_other_knows_the_secret() {
    let mut pair = Pair::new(identity(2, Some(&secret(7))), identity(1, None));
    let hello = pair.caller.said();
    pair.listener.hear(&hello, pair.now, &admit_all);
    let hello = pair.listener.said();
    pair.caller.hear(&hello, pair.now, &admit_all);
    let proof = pair.caller.said();
    // Neither an invented proof nor the caller's own, sent back.
    for answer in [framed(&Frame::Proof([0; 32])), proof] {
        let mut pair = Pair::new(identity(2, Some(&secret(7))), identity(1, None));
        pair.caller.said();
        pair.caller.hear(&hello, pair.now, &admit_all);
        pair.caller.hear(&answer, pair.now, &admit_all);
        let expected = Happening::Refused { place: Some(1), by_us: true, refusal: Refusal::Secret };
        assert_eq!(pair.caller.happened, [expected]);
    }
}

#[test]
fn a_mismatched_node_is_refused_on_both_sides_with_the_reason() {
    let key = secret(7);
    let me = || identity(1, Some(&key));
    let peer = || identity(2, Some(&key));
    let name = |name: &str| name.to_string();
    let cases = [
        (
            Identity { layout: name("other"), ..peer() },
            me(),
            Refusal::Layout { refuser: me().layout, refused: name("other") },
        ),
        (
            Identity { session: name("day"), ..peer() },
            me(),
            Refusal::Session { refuser: me().session, refused: name("day") },
        ),
        (Identity { places: 4, ..peer() }, me(), Refusal::Places { refuser: 3, refused: 4 }),
        (Identity { node: NodeId(4), ..peer() }, me(), Refusal::Number { node: NodeId(4), place: 2 }),
        (Identity { node: NodeId(4097), place: 2, ..peer() }, me(), Refusal::Number { node: NodeId(4097), place: 2 }),
        // The lower one calls the higher.
        (me(), peer(), Refusal::Caller { caller: 1, called: 2 }),
    ];
    for (caller, listener, refusal) in cases {
        let mut pair = Pair::new(caller, listener);
        pair.talk();
        both_refused(&pair, false, &refusal);
    }
    // At the address of place 0 is place 1.
    let mut pair = Pair::new(peer(), Identity { place: 0, ..me() });
    let hello = pair.caller.said();
    pair.listener = Pair::new(peer(), me()).listener;
    pair.listener.hear(&hello, pair.now, &admit_all);
    pair.talk();
    both_refused(&pair, false, &Refusal::Address { wanted: 0, found: 1 });
    // The answering node claims to be another.
    let mut pair = Pair::new(peer(), me());
    let answer = Frame::Hello(hello_of(&identity(0, Some(&key)), 2));
    pair.caller.hear(&framed(&answer), pair.now, &admit_all);
    let refusal = Refusal::Address { wanted: 1, found: 0 };
    assert_eq!(pair.caller.happened, [Happening::Refused { place: Some(1), by_us: true, refusal }]);
}

#[test]
fn another_version_is_refused_before_anything_else_is_read() {
    let mut pair = Pair::new(identity(2, None), identity(1, None));
    let mut hello = pair.caller.said();
    hello[13] = 9; // length, kind, and magic come before
    pair.listener.hear(&hello, pair.now, &admit_all);
    pair.talk();
    both_refused(&pair, false, &Refusal::Version { refuser: VERSION, refused: 9 });
}

#[test]
fn a_node_that_is_not_admitted_is_refused_by_either_side() {
    let refusal = Refusal::Stale { node: NodeId(2), next: NodeId(5) };
    let refuse = |_: &super::Hello| Err(refusal.clone());
    let mut pair = Pair::new(identity(2, None), identity(1, None));
    for _ in 0..4 {
        let said = pair.caller.said();
        pair.listener.hear(&said, pair.now, &refuse);
        let said = pair.listener.said();
        pair.caller.hear(&said, pair.now, &admit_all);
    }
    both_refused(&pair, false, &refusal);
    let mut pair = Pair::new(identity(2, None), identity(1, None));
    for _ in 0..4 {
        let said = pair.caller.said();
        pair.listener.hear(&said, pair.now, &admit_all);
        let said = pair.listener.said();
        pair.caller.hear(&said, pair.now, &refuse);
    }
    both_refused(&pair, true, &refusal);
}

#[test]
fn every_refusal_of_a_peer_is_handed_over() {
    for refusal in refusals() {
        let mut pair = Pair::new(identity(2, None), identity(1, None));
        pair.caller.hear(&framed(&Frame::Refusal(refusal.clone())), pair.now, &admit_all);
        assert_eq!(pair.caller.happened, [Happening::Refused { place: Some(1), by_us: false, refusal }]);
    }
}

#[test]
fn messages_come_in_order_and_the_goodbye_behind_them() {
    let mut pair = Pair::up();
    let long = vec![3; CONTROL_BYTES_MAX];
    pair.caller.protocol.send_message(b"one").unwrap();
    pair.caller.protocol.send_payload(&long).unwrap();
    pair.caller.protocol.send_message(b"").unwrap();
    pair.listener.protocol.send_message(b"back").unwrap();
    pair.caller.protocol.goodbye();
    assert_eq!(pair.caller.protocol.send_message(b"late"), Err(SendError::NotUp));
    let said = pair.caller.said();
    for piece in said.chunks(977) {
        pair.listener.hear(piece, pair.now, &admit_all);
    }
    let message = |bytes: &[u8]| Happening::Message(bytes.to_vec());
    let expected = [message(b"one"), Happening::Payload(long), message(b""), Happening::Down(Ending::Goodbye)];
    assert_eq!(pair.listener.happened, expected);
}

#[test]
fn messages_too_long_and_queues_too_full_are_errors() {
    let mut pair = Pair::up();
    let long = vec![0; CONTROL_BYTES_MAX + 1];
    let error = SendError::TooLong { bytes: CONTROL_BYTES_MAX + 1 };
    assert_eq!(pair.caller.protocol.send_message(&long), Err(error));
    assert_eq!(pair.caller.protocol.send_payload(&long), Err(error));
    let mut sent = 0;
    while pair.caller.protocol.send_message(&long[1..]).is_ok() {
        sent += 1;
    }
    assert_eq!(pair.caller.protocol.send_message(&long[1..]), Err(SendError::Full));
    assert!(sent > 100 && sent * CONTROL_BYTES_MAX <= QUEUE_BYTES_MAX, "{sent}");
    pair.talk();
    assert_eq!(pair.listener.happened.len(), sent);
    pair.caller.protocol.send_message(&long[1..]).unwrap();
}

#[test]
fn a_frame_that_is_damaged_left_out_or_repeated_ends_the_connection() {
    let frames = |pair: &mut Pair| -> Vec<Vec<u8>> {
        let numbers = 0..3u8;
        numbers
            .map(|number| {
                pair.caller.protocol.send_message(&[number]).unwrap();
                pair.caller.said()
            })
            .collect()
    };
    let end_of = |heard: &[&[u8]], pair: &mut Pair| {
        heard.iter().for_each(|bytes| pair.listener.hear(bytes, pair.now, &admit_all));
        pair.listener.happened.pop().unwrap()
    };
    let tag = Happening::Down(Ending::Broken(Broken::Tag));
    for order in [[0, 2, 1], [0, 0, 1], [1, 0, 2]] {
        let mut pair = Pair::up();
        let frames = frames(&mut pair);
        assert_eq!(end_of(&order.map(|number: usize| &frames[number][..]), &mut pair), tag);
    }
    let mut pair = Pair::up();
    let mut damaged = frames(&mut pair).swap_remove(0);
    damaged[5] ^= 1;
    assert_eq!(end_of(&[&damaged], &mut pair), tag);
    // Its own messages, reflected.
    let mut pair = Pair::up();
    pair.listener.protocol.send_message(b"x").unwrap();
    let said = pair.listener.said();
    assert_eq!(end_of(&[&said], &mut pair), tag);
    // Frames without a tag, as before it was up.
    for frame in [Frame::Goodbye, Frame::Message(b"x"), Frame::Refusal(Refusal::Secret)] {
        let mut pair = Pair::up();
        assert_eq!(end_of(&[&framed(&frame)], &mut pair), tag);
    }
}

#[test]
fn frames_out_of_turn_and_malformed_ones_end_the_connection() {
    let failed = |bytes: &[u8]| {
        let mut pair = Pair::new(identity(2, None), identity(1, None));
        pair.listener.hear(bytes, pair.now, &admit_all);
        assert!(pair.listener.said().is_empty(), "strangers get no answer");
        match &mut pair.listener.happened[..] {
            [Happening::Failed(why)] => why.clone(),
            other => panic!("{other:?}"),
        }
    };
    for frame in [Frame::Proof([0; 32]), Frame::Refusal(Refusal::Secret), Frame::Beat, Frame::Message(b"x")] {
        assert_eq!(failed(&framed(&frame)), Broken::Turn);
    }
    assert_eq!(failed(&[0, 0, 0, 0]), Broken::Malformed(Malformed::Short));
    assert_eq!(failed(&[1, 0, 0, 0, 99]), Broken::Malformed(Malformed::Kind(99)));
    assert_eq!(failed(b"GET / HTTP/1.1\r\n"), Broken::Long(u32::from_le_bytes(*b"GET ") as usize));
    let longer = (GREETING_BYTES_MAX - 3) as u32;
    assert_eq!(failed(&longer.to_le_bytes()), Broken::Long(longer as usize));
    let mut pair = Pair::up();
    let longer = (FRAME_BYTES_MAX - 3) as u32;
    pair.listener.hear(&longer.to_le_bytes(), pair.now, &admit_all);
    assert_eq!(pair.listener.happened, [Happening::Down(Ending::Broken(Broken::Long(longer as usize)))]);
}

/// A socket that connects to a free port of its own host may be given that very port, and reach itself.
#[test]
fn a_node_that_reaches_itself_notices() {
    let mut pair = Pair::new(identity(2, None), identity(1, None));
    let hello = pair.caller.said();
    pair.caller.hear(&hello, pair.now, &admit_all);
    assert_eq!(pair.caller.happened, [Happening::Failed(Broken::Myself)]);
}

#[test]
fn the_silent_are_suspected_and_trusted_when_they_speak_again() {
    let mut pair = Pair::up();
    for _ in 0..20 {
        pair.pass(ms(90));
        pair.talk(); // beats keep it up
    }
    assert!(pair.caller.happened.is_empty() && pair.listener.happened.is_empty());
    for _ in 0..8 {
        pair.pass(ms(90));
        let _lost = (pair.caller.said(), pair.listener.tick(pair.now));
    }
    assert_eq!(pair.listener.happened, [Happening::Suspected], "once");
    let back = pair.listener.said();
    pair.caller.hear(&back, pair.now, &admit_all);
    assert_eq!(pair.caller.happened, [Happening::Suspected, Happening::Trusted]);

    // One that sends nothing but half of a frame is silent, too.
    let mut pair = Pair::up();
    pair.caller.protocol.send_message(b"hello").unwrap();
    let said = pair.caller.said();
    for byte in &said[..6] {
        pair.pass(ms(100));
        pair.caller.said();
        pair.listener.hear(&[*byte], pair.now, &admit_all);
    }
    assert_eq!(pair.listener.happened, [Happening::Suspected]);
    pair.listener.hear(&said[6..], pair.now, &admit_all);
    assert_eq!(pair.listener.happened[1..], [Happening::Trusted, Happening::Message(b"hello".to_vec())]);
}

/// A process that was stopped finds the messages of that time in its sockets; the ones that are about to be sent
/// arrive a little later.
#[test]
fn time_while_this_node_was_stopped_counts_against_no_peer() {
    let mut pair = Pair::up();
    pair.caller.protocol.send_message(b"hello").unwrap();
    let said = pair.caller.said();
    pair.listener.hear(&said[..5], pair.now, &admit_all);
    pair.now = pair.now + ms(60_000);
    pair.listener.protocol.forgive(ms(60_000));
    pair.listener.tick(pair.now);
    assert!(pair.listener.happened.is_empty());
    pair.listener.hear(&said[5..], pair.now, &admit_all);
    assert_eq!(pair.listener.happened, [Happening::Message(b"hello".to_vec())]);
}

#[test]
fn a_handshake_or_a_frame_that_does_not_end_is_given_up() {
    let expected = [Happening::Failed(Broken::Handshake(ms(5000)))];
    // A caller that sends nothing, or one byte a second.
    for says_bytes in [false, true] {
        let mut pair = Pair::new(identity(2, None), identity(1, None));
        let hello = pair.caller.said();
        for byte in &hello[..5] {
            assert!(pair.listener.happened.is_empty());
            if says_bytes {
                pair.listener.hear(&[*byte], pair.now, &admit_all);
            }
            pair.pass(ms(1000));
        }
        assert_eq!(pair.listener.happened, expected);
        assert_eq!(pair.caller.happened, expected, "nor did the other answer");
        stays_over(&mut pair.listener);
    }
    let mut pair = Pair::up();
    pair.caller.protocol.send_message(b"hello").unwrap();
    let said = pair.caller.said();
    for byte in &said[..6] {
        pair.listener.hear(&[*byte], pair.now, &admit_all);
        pair.pass(ms(1000));
    }
    let expected = [Happening::Suspected, Happening::Down(Ending::Broken(Broken::Frame(ms(5000))))];
    assert_eq!(pair.listener.happened, expected);
}

/// A connection that is over stays so, whatever its input.
fn stays_over(end: &mut End) {
    end.happened.clear();
    end.hear(&framed(&Frame::Beat), crate::local::Instant { ns: 1 << 60 }, &admit_all);
    end.tick(crate::local::Instant { ns: 1 << 60 });
    assert!(end.happened.is_empty() && end.protocol.is_over());
    assert_eq!(end.protocol.deadline(), crate::local::Instant::NEVER);
}
