//! Calls: each has its own reply, and its effect once.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use farfield::fabric::EndpointOptions;
use farfield::fabric::fault::{Faults, inject};
use farfield::{ByteString, Endpoint, NodeId, RpcClient, RpcOptions, RpcServer};

use crate::harness::{Over, Rng, SOON, Scene, alone, eventually, everywhere, mix, on_each_fabric, session};

/// A request: which, and bytes that follow from it.
fn request(number: u64) -> ByteString {
    let len = 8 + mix(number) as usize % 100;
    number
        .to_le_bytes()
        .into_iter()
        .chain((8..len).map(|at| (number as usize).wrapping_mul(at) as u8))
        .collect::<Vec<u8>>()
        .into()
}

fn number_of(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(*bytes.first_chunk().expect("a number"))
}

/// The requests that were handled, and how often.
#[derive(Default)]
struct Handled(Mutex<HashMap<u64, u32>>);

impl Handled {
    fn handle(&self, from: NodeId, asked: &ByteString) -> ByteString {
        let number = number_of(asked);
        assert_eq!(*asked, request(number), "a request is in pieces");
        assert_eq!(u64::from(from.0), number >> 48, "it is another node's");
        *self.0.lock().unwrap().entry(number).or_default() += 1;
        request(!number)
    }

    /// These were handled once, and no other one more often.
    fn check(&self, replied: &[u64]) {
        let handled = self.0.lock().unwrap();
        assert!(handled.values().all(|times| *times == 1), "one was handled twice");
        assert!(replied.iter().all(|number| handled.contains_key(number)), "one has a reply and was not handled");
    }
}

const OPTIONS: RpcOptions = RpcOptions { request_bytes_max: 108, reply_bytes_max: 108, window: 3, batch_max: 4 };

/// Calls of all kinds. The result is which of them had a reply.
fn calls(
    scene: &Scene,
    client: &RpcClient<ByteString, ByteString>,
    node: usize,
    thread: usize,
    ep: &Endpoint,
) -> Vec<u64> {
    let (mut rng, mut replied) = (Rng::new(thread as u64), Vec::new());
    let mut next = (scene.id(node).0 as u64) << 48 | (thread as u64) << 32;
    let mut number = move || {
        next += 1;
        next
    };
    let mut is_right = |number: u64, reply: &ByteString| {
        assert_eq!(*reply, request(!number), "the reply to another call");
        replied.push(number);
    };
    for _ in 0..scene.rounds(30, 400) {
        match rng.below(5) {
            0 => {
                let number = number();
                is_right(number, &ep.block_on(client.call(ep, &request(number))).expect("a reply"));
            }
            1 => {
                let numbers: Vec<u64> = (0..1 + rng.below(20)).map(|_| number()).collect();
                let requests: Vec<ByteString> = numbers.iter().copied().map(request).collect();
                let replies = ep.block_on(client.call_many(ep, &requests));
                assert_eq!(replies.len(), numbers.len());
                numbers.iter().zip(replies).for_each(|(number, reply)| is_right(*number, &reply.expect("a reply")));
            }
            2 => {
                let number = number();
                let mut call = ep.block_on(client.begin(ep, &request(number))).expect("a slot");
                (0..rng.below(3)).for_each(|_| call.retry().expect("sent"));
                is_right(number, &ep.block_on(call.wait()).expect("a reply"));
            }
            3 => drop(ep.block_on(client.begin(ep, &request(number()))).expect("a slot")),
            _ => {
                let number = number();
                let mut call = ep.block_on(client.begin(ep, &request(number))).expect("a slot");
                let soon = ep.now() + Duration::from_micros(rng.below(50) as u64);
                match ep.block_on(call.wait_deadline(soon)) {
                    Ok(reply) => is_right(number, &reply),
                    Err(error) => {
                        assert!(error.is_timeout(), "{error}");
                        is_right(number, &ep.block_on(call.wait()).expect("a reply"));
                    }
                }
            }
        }
    }
    replied
}

fn clients(scene: &Scene) -> Vec<Option<RpcClient<ByteString, ByteString>>> {
    let server = scene.id(0);
    scene.open(
        |node| if node.id() == server { Ok(None) } else { RpcClient::open(node, "rpc", server, OPTIONS).map(Some) },
    )
}

/// A thread that calls, until its scope ends.
struct Ends<'a>(&'a AtomicUsize);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The threads of node 0 serve those of the others.
#[test]
fn threads_answer_each_call_once() {
    everywhere("calls that threads serve", 3, |scene| {
        let server = RpcServer::open(&scene.nodes[0], "rpc", OPTIONS).expect("a server");
        let (clients, handled, callers) = (clients(scene), Handled::default(), AtomicUsize::new(2 * scene.threads));
        let replied = scene.run(|node, thread, ep| {
            let Some(client) = &clients[node] else {
                while callers.load(Ordering::SeqCst) > 0 {
                    let soon = ep.now() + Duration::from_millis(5);
                    ep.block_on(server.serve(ep, soon, |from, asked| handled.handle(from, &asked))).expect("a member");
                }
                return Vec::new();
            };
            // Also after a panic, so that the server's threads stop.
            let _end = Ends(&callers);
            calls(scene, client, node, thread, ep)
        });
        handled.check(&replied.concat());
    });
}

/// The service thread of node 0 serves the threads of the others.
#[test]
fn the_service_thread_answers_each_call_once() {
    everywhere("calls that the service thread serves", 3, |scene| {
        let handled = std::sync::Arc::new(Handled::default());
        let at_server = std::sync::Arc::clone(&handled);
        let handle = move |from, asked: ByteString| at_server.handle(from, &asked);
        let _server = RpcServer::open_on_service(&scene.nodes[0], "rpc", OPTIONS, handle).expect("a server");
        let clients = clients(scene);
        let replied = scene.run(|node, thread, ep| {
            clients[node].as_ref().map_or_else(Vec::new, |client| calls(scene, client, node, thread, ep))
        });
        handled.check(&replied.concat());
    });
}

/// A client does not notice that a put of the server, or one of its own repetitions, was refused.
#[test]
fn refused_puts_are_repeated() {
    on_each_fabric("refused puts of calls", 2, |scene| {
        let server = RpcServer::<u64, u64>::open(&scene.nodes[0], "rpc", RpcOptions::default()).expect("a server");
        let client =
            RpcClient::<u64, u64>::open(&scene.nodes[1], "rpc", scene.id(0), RpcOptions::default()).expect("a client");
        let faulty = |node: usize| {
            let faults = Faults::default();
            let fabric = inject(scene.nodes[node].transport().clone(), faults.clone());
            (Endpoint::open(fabric, EndpointOptions::default()).unwrap(), faults)
        };
        let ((here, here_faults), (there, there_faults)) = (faulty(0), faulty(1));
        let mut handled = 0;
        let mut serve = || {
            server.try_serve(&here, |_, asked| {
                handled += 1;
                asked + 1
            })
        };
        // The request: nothing has happened, and the slot is free again.
        there_faults.fail_after(0);
        let error = there.block_on(client.begin(&there, &1)).err().expect("its put is refused");
        assert!(error.is_refused(), "{error}");
        there_faults.fail_after(u64::MAX);
        // The reply.
        let mut call = there.block_on(client.begin(&there, &10)).expect("sent");
        here_faults.fail_after(0);
        eventually("the request is there", || (serve().expect("a member") == 1).then_some(()));
        here_faults.fail_after(u64::MAX);
        assert!(!call.has_reply());
        assert_eq!(serve().expect("a member"), 0, "it was handled");
        assert_eq!(there.block_on(call.wait()).expect("a reply"), 11);
        drop(call);
        // A repetition.
        let mut call = there.block_on(client.begin(&there, &20)).expect("sent");
        there_faults.fail_after(0);
        assert!(call.retry().expect_err("its put is refused").is_refused());
        there_faults.fail_after(u64::MAX);
        eventually("the request is there", || (serve().expect("a member") == 1).then_some(()));
        assert_eq!(there.block_on(call.wait()).expect("a reply"), 21);
        assert_eq!(handled, 2);
    });
}

/// A request wakes a server's sleeping thread, and the reply wakes its client: neither takes as long as a wait without
/// a bell.
#[test]
fn sleepers_are_woken() {
    let _cores = alone("calls of sleepers");
    let over = crate::harness::between_hosts().unwrap_or(Over::Shm);
    if over == Over::Verbs {
        return; // a NIC wakes no thread
    }
    let nodes = session(2, over);
    let server = RpcServer::<u64, u64>::open(&nodes[0], "rpc", RpcOptions::default()).expect("a server");
    let client = RpcClient::<u64, u64>::open(&nodes[1], "rpc", nodes[0].id(), RpcOptions::default()).expect("a client");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let ep = nodes[0].endpoint().expect("an endpoint");
            ep.set_timeout(SOON);
            for _ in 0..20 {
                ep.block_on(server.serve_next(&ep, |_, asked| asked)).expect("a request");
            }
        });
        let ep = nodes[1].endpoint().expect("an endpoint");
        let mut least = SOON;
        for number in 0..20 {
            // Long enough for the server's thread to sleep for 8 ms at a time.
            let until = ep.now() + Duration::from_millis(30);
            ep.block_on(ep.sleep_until(until));
            let before = ep.now();
            assert_eq!(ep.block_on(client.call(&ep, &number)).expect("a reply"), number);
            least = least.min(ep.now() - before);
        }
        println!("a call of sleepers takes {least:?} at least");
        assert!(least < Duration::from_millis(2), "{least:?}");
    });
}
