#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a test watches from outside the fabric")]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use farfield_core::{ByteString, Endpoint, Error, ErrorKind, Node, Value, local_session, local_session_with};
use farfield_fabric::EndpointOptions;
use farfield_fabric::fault::{Faults, inject};
use proptest::prelude::*;

use super::*;
use crate::layout::{CALL, HEADER, OPENING};

mod messages;

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
        let request: Vec<u8> = (0..len).map(|at| ((at * 7) ^ len) as u8).collect();
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
    let handled = eps[0].block_on(server.serve_next(&eps[0], |_, len| vec![7; len as usize].into()));
    assert_eq!(handled, Ok(3));
    let replies = eps[1].block_on(calls.wait()).expect("replies");
    assert_eq!(replies[0].as_ref().map(|reply| reply.len()), Ok(16));
    let error = replies[1].as_ref().expect_err("it is too long");
    assert_eq!(error.custom_ref(), Some(&ReplyTooLong { server: nodes[0].id(), max_bytes: 16 }));
    assert_eq!(replies[2].as_ref().map(|reply| reply.len()), Ok(1));
    drop(replies);
    let ended = eps[1].block_on(calls.wait()).expect_err("its replies were returned");
    assert!(ended.custom_ref::<CallEnded>().is_some(), "{ended}");
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
    for _ in 0..4 {
        eps[0].block_on(server.serve_next(&eps[0], &mut handle)).expect("a request");
    }
    for (number, mut call) in calls.into_iter().enumerate() {
        assert_eq!(eps[1].block_on(call.wait()).expect("a reply"), number as u64);
    }
    server.try_serve(&eps[0], &mut handle).expect("a member");
    assert_eq!(seen, [0, 1, 2, 3]);
}

/// The calls that are left after the deadline are not sent, and their errors say so.
#[test]
fn many_calls_end_with_their_deadline() {
    let nodes = local_session(2).expect("a session");
    let (server, clients) = open::<u64, u64>(&nodes, options());
    let (eps, client) = (endpoints(&nodes), &clients[0]);
    // One put of three slots has the deadline, and the fourth is another call's.
    let _other = eps[1].block_on(client.begin(&eps[1], &1000)).expect("a slot");
    let requests: Vec<u64> = (0..100).collect();
    let deadline = eps[1].now() + Duration::from_millis(30);
    let many = async { Ok::<_, Error>(client.call_many_deadline(&eps[1], &requests, deadline).await) };
    let (results, counts) = eps[1].block_on(eps[1].counted(many));
    // The first repeats its message after 10 and 30 ms.
    assert!((3..=3 + 3).contains(&counts.puts), "{} puts", counts.puts);
    for (request, result) in results.expect("results").into_iter().enumerate() {
        let error = result.expect_err("no thread serves");
        let effect = if request < 3 * 4 { Effect::Unknown } else { Effect::None };
        assert!(error.is_timeout() && effect_of(&error) == effect, "{request}: {error}");
        assert_eq!(error.custom_ref::<NotSent>().is_some(), effect == Effect::None, "{request}: {error}");
    }
    let mut handled = Vec::new();
    eventually_serves(&server, &eps[0], 13, |request| handled.push(request));
    handled.sort_unstable();
    assert_eq!(handled, (0..12).chain([1000]).collect::<Vec<u64>>());
}

/// Serves until so many requests were handled. No more are there.
fn eventually_serves<Req: Value>(server: &Server<Req, u64>, ep: &Endpoint, count: usize, mut handle: impl FnMut(Req)) {
    let mut handle = |_, request| {
        handle(request);
        0
    };
    let mut handled = 0;
    while handled < count {
        handled += ep.block_on(server.serve_next(ep, &mut handle)).expect("a request");
    }
    assert_eq!(handled + server.try_serve(ep, handle).expect("a member"), count);
}

#[test]
fn of_many_calls_those_fail_that_are_too_long() {
    let nodes = local_session(2).expect("a session");
    let echo = |_, request: ByteString| request;
    let options = RpcOptions { request_bytes_max: 8, ..options() };
    let _server = Server::open_on_service(&nodes[0], "rpc", options, echo).expect("a server");
    let client = Client::<ByteString, ByteString>::open(&nodes[1], "rpc", nodes[0].id(), options).expect("a client");
    let ep = nodes[1].endpoint().unwrap();
    let is_long = |at: usize| matches!(at, 0 | 5 | 6 | 18 | 19);
    let requests: Vec<ByteString> = (0..20).map(|at| vec![at as u8; if is_long(at) { 9 } else { 8 }].into()).collect();
    for (at, result) in ep.block_on(client.call_many(&ep, &requests)).into_iter().enumerate() {
        match result {
            Ok(reply) => assert!(reply == requests[at] && !is_long(at), "{at}"),
            Err(error) => {
                assert!(is_long(at), "{at}: {error}");
                assert!(matches!(error.kind(), ErrorKind::TooLarge { bytes: 9, max_bytes: 8 }), "{error}");
                assert_eq!(effect_of(&error), Effect::None);
            }
        }
    }
}

/// Refused puts and buffers of some calls are no errors while others are under way: they are sent after these.
#[test]
fn of_many_calls_those_that_are_refused_are_sent_later() {
    let nodes = local_session(2).expect("a session");
    let (sum, before) = (std::sync::Arc::new(AtomicU64::new(0)), std::sync::Arc::new(AtomicU64::new(0)));
    let at_server = std::sync::Arc::clone(&sum);
    let add = move |_, request: u64| at_server.fetch_add(request, Ordering::Relaxed) + request;
    let _server = Server::open_on_service(&nodes[0], "rpc", options(), add).expect("a server");
    let client = Client::<u64, u64>::open(&nodes[1], "rpc", nodes[0].id(), options()).expect("a client");
    let faults = Faults::default();
    let fabric = inject(nodes[1].transport().clone(), faults.clone());
    let ep = Endpoint::open(fabric, EndpointOptions::default()).expect("an endpoint");
    for after in 0..4 {
        for count in 1..4 {
            faults.fail_some(after, count);
            let results = ep.block_on(client.call_many(&ep, &[1; 40]));
            faults.fail_after(u64::MAX);
            let replied = results.iter().filter(|result| result.is_ok()).count();
            for error in results.into_iter().filter_map(Result::err) {
                assert!(after == 0 && error.is_refused() && effect_of(&error) == Effect::None, "{error}");
            }
            // The first put may be refused alone, and the first of those that are left.
            assert!(
                replied >= 40 - 4 * if after == 0 { count as usize } else { 0 },
                "{replied} after {after}, {count}"
            );
            assert_eq!(
                sum.load(Ordering::Relaxed),
                before.fetch_add(replied as u64, Ordering::Relaxed) + replied as u64
            );
        }
    }
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
    let handle = |_, number| {
        seen.push(number);
        10 * number
    };
    eps[0].block_on(server.serve_next(&eps[0], handle)).expect("a request");
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
    eps[0].block_on(server.serve_next(&eps[0], &mut handle)).expect("a request");
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

/// The wait asks again by itself, and its reply arrives when the server has time.
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
    let handle = |_, request| {
        handled += 1;
        request
    };
    eps[0].block_on(server.serve_next(&eps[0], handle)).expect("a request");
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
    let panicked =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| eps[0].block_on(server.serve_next(&eps[0], handle))));
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

/// A client that is closed leaves nothing to the next one of its node.
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
fn invalid_options_and_batches_are_refused() {
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
    let error = ep.block_on(clients[0].begin_batch(&ep, &[])).err().expect("none");
    assert!(matches!(error.kind(), ErrorKind::Config { .. }), "{error}");
    let error = ep.block_on(clients[0].begin_batch(&ep, &[1; 5])).err().expect("too many");
    assert!(matches!(error.kind(), ErrorKind::TooMany { max: 4, .. }), "{error}");
    assert!(ep.block_on(clients[0].call_many(&ep, &[])).is_empty());
}

/// Threads do not handle requests for the service thread.
#[test]
fn threads_do_not_serve_for_the_service_thread() {
    let nodes = local_session(1).expect("a session");
    let server =
        Server::<u64, u64>::open_on_service(&nodes[0], "rpc", options(), |_, request| request).expect("a server");
    let ep = nodes[0].endpoint().unwrap();
    let soon = ep.now() + Duration::from_millis(5);
    let refused = [
        ep.block_on(server.serve(&ep, soon, |_, request| request)).err(),
        ep.block_on(server.serve_next(&ep, |_, request| request)).err(),
        server.try_serve(&ep, |_, request| request).err(),
        ep.block_on(server.accept(&ep)).err(),
    ];
    for error in refused {
        let error = error.expect("refused");
        assert!(matches!(error.kind(), ErrorKind::Config { .. }), "{error}");
    }
}

/// A request, or a reply, that its type does not decode, or decodes with a panic.
#[derive(Clone, Debug)]
struct Odd(u64);

impl Odd {
    const UNKNOWN: u64 = 1;
    const PANICS: u64 = 2;
}

impl Value for Odd {
    const FIXED: bool = true;

    fn bytes(&self) -> usize {
        8
    }

    fn words(_: usize) -> usize {
        1
    }

    fn encode(&self, into: &mut [u64]) -> usize {
        into[0] = self.0;
        1
    }

    fn decode(words: &[u64]) -> Option<(Odd, usize)> {
        match *words.first()? {
            Odd::UNKNOWN => None,
            Odd::PANICS => panic!("a type's own panic"),
            word => Some((Odd(word), 1)),
        }
    }
}

/// Messages whose values are none end their calls, are not handled, and leave their slots.
#[test]
fn malformed_requests_and_replies_say_whether_they_were_handled() {
    let nodes = local_session(2).expect("a session");
    let (server, clients) = open::<Odd, Odd>(&nodes, RpcOptions { window: 1, ..options() });
    let (eps, handled) = (endpoints(&nodes), AtomicU64::new(0));
    let handle = |_, request: Odd| {
        handled.fetch_add(1, Ordering::Relaxed);
        Odd(request.0 - 10)
    };
    let serve =
        || eps[0].block_on(server.serve_next_deadline(&eps[0], eps[0].now() + Duration::from_millis(50), handle));
    let begin = |word| eps[1].block_on(clients[0].begin(&eps[1], &Odd(word))).expect("a slot");
    // The request is none: it is not counted as handled.
    let mut call = begin(Odd::UNKNOWN);
    assert!(serve().expect_err("no request was handled").is_timeout());
    let error = eps[1].block_on(call.wait()).expect_err("it is none");
    assert!(error.custom_ref::<RequestMalformed>().is_some() && effect_of(&error) == Effect::None, "{error}");
    drop(call);
    // The reply is none.
    let mut call = begin(10 + Odd::UNKNOWN);
    assert_eq!(serve(), Ok(1));
    let error = eps[1].block_on(call.wait()).expect_err("it is none");
    assert!(error.custom_ref::<ReplyMalformed>().is_some() && effect_of(&error) == Effect::Done, "{error}");
    drop(call);
    // The request's type panics.
    for accepts in [false, true] {
        let mut call = begin(Odd::PANICS);
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            if accepts { eps[0].block_on(server.accept(&eps[0])).map(drop) } else { serve().map(drop) }
        }));
        assert!(panicked.is_err());
        assert_eq!(server.try_serve(&eps[0], handle), Ok(0));
        let error = eps[1].block_on(call.wait()).expect_err("there is none");
        assert!(error.custom_ref::<NoReply>().is_some() && effect_of(&error) == Effect::Unknown, "{error}");
        drop(call);
    }
    assert_eq!(handled.load(Ordering::Relaxed), 1);
}

/// Whatever the number of values says, a message of others than a client's is ignored.
#[test]
fn messages_of_no_client_are_ignored() {
    let nodes = local_session(2).expect("a session");
    let (server, clients) = open::<u64, u64>(&nodes, options());
    let (eps, link) = (endpoints(&nodes), &clients[0].link);
    for (number, values) in [0, 5, 32, 33, 64, u32::MAX as usize].into_iter().enumerate() {
        let mut image = eps[1].buf::<u64>(HEADER + 4).expect("a buffer");
        image.fill(0);
        layout::seal(&mut image, layout::call_word(number as u64 + 1, 0), link.opening, values);
        eps[1].block_on(async { eps[1].put(link.request(0), &image).await }).expect("it lands");
        assert_eq!(server.try_serve(&eps[0], |_, request| request), Ok(0), "{values} values");
    }
    let mut call = eps[1].block_on(clients[0].begin(&eps[1], &7)).expect("a slot");
    assert_eq!(eps[0].block_on(server.serve_next(&eps[0], |_, request| request)), Ok(1));
    assert_eq!(eps[1].block_on(call.wait()), Ok(7));
}

/// A request arrives while another thread has an earlier one of its slot, from a call that was given up: a thread that
/// sleeps is woken for it.
#[test]
fn a_slot_is_used_again_while_its_request_is_kept() {
    let nodes = local_session(2).expect("a session");
    let (server, clients) = open::<u64, u64>(&nodes, RpcOptions { window: 1, ..options() });
    let (eps, client) = (endpoints(&nodes), &clients[0]);
    for round in 0..20 {
        let call = eps[1].block_on(client.begin(&eps[1], &(2 * round))).expect("a slot");
        let kept = eps[0].block_on(server.accept(&eps[0])).expect("a request");
        drop(call);
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| {
                let ep = nodes[0].endpoint().unwrap();
                ep.block_on(server.serve_next(&ep, |_, request| request)).expect("a request")
            });
            let mut next = eps[1].block_on(client.begin(&eps[1], &(2 * round + 1))).expect("a slot");
            kept.reply(&eps[0], [2 * round]);
            assert_eq!(eps[1].block_on(next.wait()).expect("a reply"), 2 * round + 1);
            assert_eq!(sleeper.join().unwrap(), 1);
        });
    }
}

#[test]
fn errors_name_the_known_effect_of_a_call() {
    let server = farfield_fabric::NodeId(1);
    let timeout = || Error::from(ErrorKind::Timeout { what: "it".into(), waited: Duration::ZERO, missing: Vec::new() });
    let unknown = |because| Error::custom(EffectUnknown { server, slot: 0, number: 1, because });
    let closed = unknown(Error::custom(ServerClosed { server }));
    let because = &closed.custom_ref::<EffectUnknown>().expect("it is one").because;
    assert!(because.custom_ref::<ServerClosed>().is_some());
    for (effect, error) in [
        (Effect::Unknown, unknown(timeout())),
        (Effect::Unknown, closed),
        (Effect::Unknown, Error::custom(NoReply { server })),
        (Effect::Unknown, Error::custom(CallEnded { server })),
        (Effect::Done, Error::custom(ReplyTooLong { server, max_bytes: 8 })),
        (Effect::Done, Error::custom(ReplyMalformed { server })),
        (Effect::None, Error::custom(RequestMalformed { server })),
        (Effect::None, Error::custom(ServerClosed { server })),
        (Effect::None, Error::custom(WindowFull { server, window: 1, because: timeout() })),
        (Effect::None, Error::custom(NotSent { server, because: timeout() })),
        (Effect::None, ErrorKind::TooLarge { bytes: 2, max_bytes: 1 }.into()),
    ] {
        assert_eq!(effect_of(&error), effect, "{error}");
    }
}

#[test]
fn clients_have_to_agree_with_the_server() {
    let nodes = local_session(2).expect("a session");
    let _server = Server::<u64, u64>::open(&nodes[0], "rpc", options()).expect("a server");
    let error = Client::<u64, [u64; 2]>::open(&nodes[1], "rpc", nodes[0].id(), options()).expect_err("other replies");
    assert!(matches!(error.kind(), ErrorKind::Mismatch { .. }), "{error}");
    // As many words, and of any length.
    let options = RpcOptions { request_bytes_max: 0, ..options() };
    let _server = Server::<u64, u64>::open(&nodes[0], "lengths", options).expect("a server");
    let error =
        Client::<ByteString, u64>::open(&nodes[1], "lengths", nodes[0].id(), options).expect_err("other requests");
    assert!(matches!(error.kind(), ErrorKind::Mismatch { .. }), "{error}");
}

#[test]
fn a_server_stops_at_its_deadline_though_there_are_requests() {
    let nodes = local_session(2).expect("a session");
    let (server, clients) = open::<u64, u64>(&nodes, RpcOptions { window: 1, ..options() });
    let eps = endpoints(&nodes);
    let begin = |number: u64| drop(eps[1].block_on(clients[0].begin(&eps[1], &number)).expect("a slot"));
    begin(0);
    let handle = |_, number: u64| {
        if number < 4 {
            begin(number + 1); // the next one is there when this one has ended
        }
        number
    };
    assert_eq!(eps[0].block_on(server.serve(&eps[0], eps[0].now(), handle)), Ok(1));
}

#[test]
fn calls_that_are_given_up_are_handled_where_other_slots_are_free() {
    let nodes = local_session(2).expect("a session");
    let (server, clients) = open::<u64, u64>(&nodes, options());
    let eps = endpoints(&nodes);
    for number in 0..4 {
        drop(eps[1].block_on(clients[0].begin(&eps[1], &number)).expect("a slot"));
    }
    assert_eq!(server.try_serve(&eps[0], |_, number| number), Ok(4));
}

#[test]
fn many_calls_are_measured_as_one() {
    let nodes = local_session_with(2, |builder| builder.latencies(true)).expect("a session");
    let _server =
        Server::<u64, u64>::open_on_service(&nodes[0], "rpc", options(), |_, request| request).expect("a server");
    let client = Client::<u64, u64>::open(&nodes[1], "rpc", nodes[0].id(), options()).expect("a client");
    let ep = nodes[1].endpoint().expect("an endpoint");
    assert_eq!(ep.block_on(client.call_many(&ep, &[7; 9])).len(), 9);
    let metrics = nodes[1].metrics();
    let calls = metrics.call("rpc", "call_many").expect("it was called");
    assert_eq!((calls.latencies.count(), calls.errors), (1, 0));
}
