#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a test watches from outside the fabric")]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use farfield_core::{ByteString, Endpoint, ErrorKind, Node, Value, local_session};
use proptest::prelude::*;

use super::*;
use crate::layout::{CALL, HEADER, Image, Layout, Replies, SESSION, Status};

fn options() -> RpcOptions {
    RpcOptions { window: 4, batch_max: 4, ..RpcOptions::default() }
}

/// A server on the first node, and a client on each other one.
fn open<Req: Value, Rep: Value>(nodes: &[Node], options: RpcOptions) -> (Server<Req, Rep>, Vec<Client<Req, Rep>>) {
    let server = Server::open(&nodes[0], "rpc", options).expect("a server");
    let client = |node| Client::open(node, "rpc", nodes[0].id(), options).expect("a client");
    (server, nodes[1..].iter().map(client).collect())
}

fn endpoints(nodes: &[Node]) -> Vec<Endpoint> {
    nodes.iter().map(|node| node.endpoint().expect("an endpoint")).collect()
}

#[test]
fn requests_and_replies_of_all_lengths_come_back_as_they_were() {
    let nodes = local_session(2).expect("a session");
    let options = RpcOptions { request_bytes_max: 600, reply_bytes_max: 600, ..options() };
    let backwards = |_, request: ByteString| request.iter().rev().copied().collect::<Vec<u8>>().into();
    let _server = Server::<ByteString, ByteString>::open_on_service(&nodes[0], "rpc", options, backwards).unwrap();
    let client = Client::<ByteString, ByteString>::open(&nodes[1], "rpc", nodes[0].id(), options).expect("a client");
    let ep = nodes[1].endpoint().expect("an endpoint");
    for len in 0..=600usize {
        let request: Vec<u8> = (0..len).map(|at| (at * 7 ^ len) as u8).collect();
        let reply = ep.block_on(client.call(&ep, &request.as_slice().into())).expect("a reply");
        assert!(reply.iter().eq(request.iter().rev()), "{len}");
    }
    let error = ep.block_on(client.call(&ep, &vec![0; 601].into())).expect_err("it is too long");
    assert!(matches!(error.kind(), ErrorKind::TooLarge { bytes: 601, max_bytes: 600 }), "{error}");
}

#[test]
fn a_reply_that_is_too_long_is_an_error_of_its_request_alone() {
    let nodes = local_session(2).expect("a session");
    let (server, clients) = open::<u64, ByteString>(&nodes, RpcOptions { reply_bytes_max: 16, ..options() });
    let eps = endpoints(&nodes);
    let mut calls = eps[1].block_on(clients[0].begin_batch(&eps[1], &[16, 17, 1])).expect("sent");
    assert_eq!(server.try_serve(&eps[0], |_, len| vec![7; len as usize].into()).expect("a member"), 3);
    let replies = eps[1].block_on(calls.wait()).expect("replies");
    assert_eq!(replies[0].as_ref().map(|reply| reply.len()), Ok(16));
    let error = replies[1].as_ref().expect_err("it is too long");
    assert_eq!(error.custom_ref(), Some(&ReplyTooLong { server: nodes[0].id(), max_bytes: 16 }));
    assert_eq!(replies[2].as_ref().map(|reply| reply.len()), Ok(1));
    drop(replies);
    let ended = eps[1].block_on(calls.wait()).expect_err("its replies were returned");
    assert!(matches!(ended.kind(), ErrorKind::Config { .. }), "{ended}");
}

#[test]
fn a_full_window_is_an_error_after_which_nothing_has_happened() {
    let nodes = local_session(2).expect("a session");
    let (server, clients) = open::<u64, u64>(&nodes, options());
    let (eps, client) = (endpoints(&nodes), &clients[0]);
    eps[1].set_timeout(Duration::from_millis(20));
    let calls: Vec<_> = (0..4).map(|number| eps[1].block_on(client.begin(&eps[1], &number)).expect("a slot")).collect();
    let error = eps[1].block_on(client.begin(&eps[1], &4)).err().expect("no slot is free");
    let full = error.custom_ref::<WindowFull>().unwrap_or_else(|| panic!("{error}"));
    assert!(full.window == 4 && error.is_timeout() && error.node() == Some(nodes[0].id()), "{error}");
    let mut seen = Vec::new();
    let mut handle = |_, number| {
        seen.push(number);
        number
    };
    server.try_serve(&eps[0], &mut handle).expect("a member");
    for (number, mut call) in calls.into_iter().enumerate() {
        assert_eq!(eps[1].block_on(call.wait()).expect("a reply"), number as u64);
    }
    server.try_serve(&eps[0], &mut handle).expect("a member");
    assert_eq!(seen, [0, 1, 2, 3]);
}

/// The slot of a call that was given up is used again, though the server has not answered.
#[test]
fn calls_that_are_given_up_leave_their_slots() {
    let nodes = local_session(2).expect("a session");
    let (server, clients) = open::<u64, u64>(&nodes, RpcOptions { window: 1, ..options() });
    let (eps, client) = (endpoints(&nodes), &clients[0]);
    for number in 0..3 {
        drop(eps[1].block_on(client.begin(&eps[1], &number)).expect("a slot"));
    }
    let mut call = eps[1].block_on(client.begin(&eps[1], &3)).expect("a slot");
    let mut seen = Vec::new();
    server
        .try_serve(&eps[0], |_, number| {
            seen.push(number);
            10 * number
        })
        .expect("a member");
    assert_eq!(eps[1].block_on(call.wait()).expect("a reply"), 30);
    assert_eq!(seen, [3]); // the others were overwritten: this thread's puts land in order
}

#[test]
fn a_repeated_request_is_answered_again_and_handled_once() {
    let nodes = local_session(2).expect("a session");
    let (server, clients) = open::<u64, u64>(&nodes, options());
    let (eps, handled) = (endpoints(&nodes), AtomicU64::new(0));
    let mut handle = |_, request: u64| request + handled.fetch_add(1, Ordering::Relaxed);
    let mut call = eps[1].block_on(clients[0].begin(&eps[1], &100)).expect("sent");
    server.try_serve(&eps[0], &mut handle).expect("a member");
    for _ in 0..3 {
        call.retry().expect("sent");
        let (_, counts) = eps[0].block_on(eps[0].counted(async { server.try_serve(&eps[0], &mut handle) }));
        assert_eq!(counts.puts, 1, "it is answered again");
        let (_, counts) = eps[0].block_on(eps[0].counted(async { server.try_serve(&eps[0], &mut handle) }));
        assert_eq!(counts.puts, 0, "once for each repetition");
    }
    assert_eq!(eps[1].block_on(call.wait()).expect("a reply"), 100);
    assert_eq!(handled.load(Ordering::Relaxed), 1);
}

/// The wait asks again by itself, and its reply comes when the server has time.
#[test]
fn a_call_that_timed_out_is_waited_for_again() {
    let nodes = local_session(2).expect("a session");
    let (server, clients) = open::<u64, u64>(&nodes, options());
    let (eps, mut handled) = (endpoints(&nodes), 0);
    let mut call = eps[1].block_on(clients[0].begin(&eps[1], &7)).expect("sent");
    for _ in 0..3 {
        let soon = eps[1].now() + Duration::from_millis(15);
        let error = eps[1].block_on(call.wait_deadline(soon)).expect_err("no thread serves");
        assert!(error.is_timeout() && error.custom_ref::<EffectUnknown>().is_some(), "{error}");
    }
    server
        .try_serve(&eps[0], |_, request| {
            handled += 1;
            request
        })
        .expect("a member");
    assert_eq!(eps[1].block_on(call.wait()).expect("a reply"), 7);
    server
        .try_serve(&eps[0], |_, request| {
            handled += 1;
            request
        })
        .expect("a member");
    assert_eq!(handled, 1);
}

#[test]
fn a_handler_that_panics_ends_its_call_and_handles_it_once() {
    let nodes = local_session(2).expect("a session");
    let (server, clients) = open::<u64, u64>(&nodes, options());
    let (eps, handled) = (endpoints(&nodes), AtomicU64::new(0));
    let mut call = eps[1].block_on(clients[0].begin(&eps[1], &7)).expect("sent");
    let handle = |_, request: u64| {
        assert!(handled.fetch_add(1, Ordering::Relaxed) != 0, "the first panics");
        request
    };
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| server.try_serve(&eps[0], handle)));
    assert!(panicked.is_err());
    call.retry().expect("sent");
    server.try_serve(&eps[0], handle).expect("a member");
    let error = eps[1].block_on(call.wait()).expect_err("there is none");
    assert_eq!(error.custom_ref(), Some(&NoReply { server: nodes[0].id() }));
    assert_eq!(handled.load(Ordering::Relaxed), 1);
    let mut next = eps[1].block_on(clients[0].begin(&eps[1], &8)).expect("sent");
    server.try_serve(&eps[0], handle).expect("a member");
    assert_eq!(eps[1].block_on(next.wait()).expect("a reply"), 8);
}

/// A client that goes leaves nothing to the next one of its node.
#[test]
fn clients_come_and_go() {
    let nodes = local_session(3).expect("a session");
    let (server, mut clients) = open::<u64, [u64; 2]>(&nodes, RpcOptions { window: 1, ..options() });
    let (stops, stop) = (server.clone(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let (ep, mut handled) = (nodes[0].endpoint().unwrap(), 0);
            while !stop.load(Ordering::Relaxed) {
                let soon = ep.now() + Duration::from_millis(5);
                ep.block_on(stops.serve(&ep, soon, |_, request| {
                    handled += 1;
                    [request, handled]
                }))
                .unwrap();
            }
            handled
        });
        let ep = nodes[1].endpoint().unwrap();
        let mut last = 0;
        for round in 0..20 {
            for call in 0..1 + round % 3 {
                let [request, handled] = ep.block_on(clients[0].call(&ep, &(100 * round + call))).expect("a reply");
                assert_eq!((request, handled), (100 * round + call, last + 1));
                last = handled;
            }
            drop(clients.remove(0));
            clients.insert(
                0,
                Client::open(&nodes[1], "rpc", nodes[0].id(), RpcOptions { window: 1, ..options() }).unwrap(),
            );
        }
        stop.store(true, Ordering::Relaxed);
        assert_eq!(thread.join().unwrap(), last);
    });
}

/// A server that has left is an error of each request, in one put or in several.
#[test]
fn calls_of_a_server_that_has_left_have_not_happened() {
    let mut nodes = local_session(2).expect("a session");
    let (server, clients) = open::<u64, u64>(&nodes, options());
    let (there, ep) = (nodes[0].id(), nodes[1].endpoint().unwrap());
    drop(server);
    nodes.remove(0).leave();
    ep.block_on(ep.wait_until(ep.deadline(), || ep.check_alive(there).err())).expect("it leaves");
    for count in [1, 4, 5, 17] {
        let results = ep.block_on(clients[0].call_many(&ep, &vec![7; count]));
        assert_eq!(results.len(), count);
        for result in results {
            let error = result.expect_err("it has left");
            assert!(error.is_gone() || error.custom_ref::<ServerClosed>().is_some(), "{error}");
            assert!(error.custom_ref::<EffectUnknown>().is_none(), "{error}");
        }
    }
}

#[test]
fn what_cannot_work_is_refused() {
    let nodes = local_session(2).expect("a session");
    let is_config = |result: farfield_core::Result<Server<u64, u64>>| {
        let error = result.expect_err("refused");
        assert!(matches!(error.kind(), ErrorKind::Config { .. }), "{error}");
    };
    is_config(Server::open(&nodes[0], "rpc", RpcOptions { window: 0, ..options() }));
    is_config(Server::open(&nodes[0], "rpc", RpcOptions { batch_max: 0, ..options() }));
    is_config(Server::open(&nodes[0], "rpc", RpcOptions { batch_max: 33, ..options() }));
    is_config(Server::open(&nodes[0], "rpc", RpcOptions { window: usize::MAX, ..options() }));
    let own = Client::<u64, u64>::open(&nodes[0], "rpc", nodes[0].id(), options()).expect_err("of its own node");
    assert!(matches!(own.kind(), ErrorKind::Config { .. }), "{own}");
    let (_server, clients) = open::<u64, u64>(&nodes, options());
    let ep = nodes[1].endpoint().unwrap();
    for requests in [&[][..], &[1; 5]] {
        let error = ep.block_on(clients[0].begin_batch(&ep, requests)).err().expect("none, or too many");
        assert!(matches!(error.kind(), ErrorKind::TooMany { max: 4, .. }), "{error}");
    }
    assert!(ep.block_on(clients[0].call_many(&ep, &[])).is_empty());
}

#[test]
fn clients_have_to_agree_with_the_server() {
    let nodes = local_session(2).expect("a session");
    let _server = Server::<u64, u64>::open(&nodes[0], "rpc", options()).expect("a server");
    let error = Client::<u64, [u64; 2]>::open(&nodes[1], "rpc", nodes[0].id(), options()).expect_err("other replies");
    assert!(matches!(error.kind(), ErrorKind::Mismatch { .. }), "{error}");
}

fn message(values: &[Vec<u8>], number: u64, attempt: u64, session: u64) -> Image {
    let values: Vec<ByteString> = values.iter().map(|value| value.as_slice().into()).collect();
    let mut image = Image::new();
    image.grow(HEADER + layout::words_of(&values));
    let mut at = HEADER;
    for value in &values {
        at += value.encode(&mut image[at..]);
    }
    layout::seal(&mut image, layout::call_word(number, attempt), session, values.len());
    image
}

fn slot_of(image: &[u64], words: usize) -> Vec<farfield_fabric::Word> {
    let rest = core::iter::repeat_n(&0, words - image.len());
    image.iter().chain(rest).map(|word| farfield_fabric::Word::new(*word)).collect()
}

fn values() -> impl Strategy<Value = Vec<Vec<u8>>> {
    prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..8)
}

const SLOT: usize = HEADER + 8 * 7;

proptest! {
    /// A message comes back, with its number, session and values.
    #[test]
    fn messages_come_back(values in values(), number in 1u64..1 << 48, attempt in any::<u16>(), session in any::<u64>()) {
        let image = message(&values, number, attempt.into(), session);
        let mut copy = Image::new();
        prop_assert!(layout::read(&slot_of(&image, SLOT), &mut copy));
        prop_assert_eq!(&*copy, &*image);
        prop_assert_eq!((layout::number_of(copy[CALL]), copy[SESSION]), (number, session));
        let decoded = layout::decode::<ByteString>(&copy[HEADER..], layout::values_of(&copy)).expect("its values");
        prop_assert!(decoded.iter().map(|value| value.to_vec()).eq(values));
    }

    /// A mixture of two messages is none, unless it is one of them.
    #[test]
    fn mixtures_are_no_messages(
        [one, two] in [values(), values()],
        numbers in [1u64..50, 1..50],
        parts in prop::collection::vec(any::<bool>(), SLOT),
    ) {
        let images = [message(&one, numbers[0], 0, 7), message(&two, numbers[1], 1, 7)];
        let [one, two] = images.each_ref().map(|image| slot_of(image, SLOT));
        let mixed: Vec<_> = parts.iter().enumerate().map(|(at, first)| {
            farfield_fabric::Word::new(if *first { one[at].load() } else { two[at].load() })
        }).collect();
        let mut copy = Image::new();
        if layout::read(&mixed, &mut copy) {
            prop_assert!(images.iter().any(|image| **image == *copy));
        }
    }

    /// Any words are a message or none.
    #[test]
    fn garbage_is_no_message_and_no_panic(words in prop::collection::vec(any::<u64>(), SLOT), shape in any::<u64>()) {
        let mut words = words;
        words[3] = shape % (1 << 39);
        prop_assert!(!layout::read(&slot_of(&words, SLOT), &mut Image::new()));
        let _ = layout::decode::<ByteString>(&words[HEADER..], shape as usize % 40);
    }

    /// Each value of a reply has its own status.
    #[test]
    fn statuses_come_back(lens in prop::collection::vec(0usize..30, 1..=32)) {
        let mut replies = Replies::new();
        for len in &lens {
            match len {
                0 => replies.push_status(Status::None),
                1 => replies.push_status(Status::Malformed),
                len => replies.push(&ByteString::from(vec![1; *len]), 16),
            }
        }
        replies.seal(layout::call_word(1, 0), 7);
        prop_assert_eq!(layout::values_of(&replies.image), lens.len());
        for (value, len) in lens.iter().enumerate() {
            let status = match len { 0 => Status::None, 1 => Status::Malformed, 2..=16 => Status::Done, _ => Status::TooLong };
            prop_assert_eq!(Status::of(&replies.image, value), status);
        }
    }

    /// No two slots share memory, and all lie in their regions.
    #[test]
    fn slots_lie_side_by_side(window in 1usize..9, batch_max in 1usize..=32, bytes in 0usize..200, places in 1usize..9) {
        let options = RpcOptions { window, batch_max, request_bytes_max: bytes, reply_bytes_max: bytes };
        let layout = Layout::new::<ByteString, ByteString>(&options, places, "rpc").expect("sizes");
        let requests = (0..places * window).map(|slot| (layout.request_at(slot), layout.request_words));
        let replies = (0..window).map(|slot| (layout.reply_at(slot), layout.reply_words));
        let ends = |slots: &mut dyn Iterator<Item = (usize, usize)>, first: usize, bytes: usize| {
            let mut end = first;
            for (at, words) in slots {
                assert!(at >= end && at.is_multiple_of(64), "{at} after {end}");
                end = at + 8 * words;
            }
            assert!(end <= bytes, "{end} of {bytes}");
        };
        ends(&mut { requests }, 0, layout.requests_bytes);
        ends(&mut { replies }, layout::REPLIES, layout.replies_bytes);
    }
}
