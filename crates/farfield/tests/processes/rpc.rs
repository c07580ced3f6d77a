//! `kill -9` of a client and of a server under load, in sessions of real processes: each call has its effect once, and
//! its caller knows which calls may have had theirs.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use farfield::rpc::{Effect, effect_of};
use farfield::{Endpoint, MemberStatus, Node, NodeId, Result, RpcClient, RpcOptions, RpcServer};

use crate::session::{MEASURED, STEP_MAX, Session, begun};

const PLACES: u16 = 3;
const OPTIONS: RpcOptions = RpcOptions { request_bytes_max: 0, reply_bytes_max: 0, window: 4, batch_max: 2 };
/// The request of a client that has no more calls.
const LAST: u64 = u64::MAX;

/// A client is killed under load and started again, three times; the other one continues.
#[test]
fn a_server_outlives_its_clients() {
    let mut session = Session::start(module_path!(), "clients", PLACES);
    session.all_begun();
    for _ in 0..3 {
        session.hear(NodeId(1), "calls");
        session.kill(NodeId(1));
        session.begin(1);
    }
    session.end(0..PLACES);
}

/// The server is killed under load, and another one takes its place.
#[test]
fn clients_outlive_their_server() {
    let mut session = Session::start(module_path!(), "server", PLACES);
    session.all_begun();
    for client in [1, 2] {
        session.hear(NodeId(client), "calls");
    }
    session.kill(NodeId(0));
    session.begin(0);
    session.end(0..PLACES);
}

/// Not a test: the role of a child process.
#[test]
fn node_process() {
    crate::session::play(Duration::from_secs(20), |role, node, endpoint| match role {
        "clients" => clients(node, endpoint),
        "server" => server(node, endpoint),
        role => panic!("no role {role}"),
    });
}

/// A request: a number of the client's thread, the thread, and both together.
type Ask = [u64; 3];

fn ask(thread: u64, number: u64) -> Ask {
    [number, thread, number ^ thread << 32]
}

/// What a server knows of each thread of a client: the last number. A thread waits for each reply, so the next request
/// has the next number: any other one was handled twice, or lost.
#[derive(Default)]
struct Threads(Mutex<HashMap<(NodeId, u64), u64>>);

impl Threads {
    fn handle(&self, client: NodeId, ask: Ask) -> u64 {
        assert_eq!(ask[2], ask[0] ^ ask[1] << 32, "a request is in pieces");
        let mut threads = self.0.lock().expect("no panic");
        let last = threads.entry((client, ask[1])).or_default();
        if ask[0] == LAST {
            return *last;
        }
        assert_eq!(ask[0], *last + 1, "a request of {client}, thread {}, is lost or was handled twice", ask[1]);
        *last = ask[0];
        ask[0]
    }

    /// How many clients have said that they have no more calls.
    fn count(&self) -> u64 {
        self.0.lock().expect("no panic").values().sum()
    }
}

/// One call after the other, some of which are asked for several times. The result is their number, and the error that
/// has ended them.
fn calls(
    client: &RpcClient<Ask, u64>,
    endpoint: &Endpoint,
    thread: u64,
    until: impl Fn(u64) -> bool,
) -> (u64, Option<farfield::Error>) {
    let mut number = 0;
    while !until(number) {
        let result = endpoint.block_on(async {
            let mut call = client.begin(endpoint, &ask(thread, number + 1)).await?;
            for _ in 0..number % 3 {
                let _ = call.retry();
            }
            call.wait().await
        });
        match result {
            Ok(reply) => assert_eq!(reply, number + 1, "the reply to another call"),
            Err(error) => return (number, Some(error)),
        }
        number += 1;
    }
    (number, None)
}

/// Both threads of a client, each with an endpoint of its own.
fn on_two_threads<T: Send>(node: &Node, body: impl Fn(&Endpoint, u64) -> T + Sync) -> [T; 2] {
    std::thread::scope(|scope| {
        [0, 1]
            .map(|thread| {
                scope.spawn({
                    let body = &body;
                    move || body(&node.endpoint().expect("an endpoint"), thread)
                })
            })
            .map(|thread| thread.join().expect("no panic"))
    })
}

fn clients(node: &Node, endpoint: &Endpoint) -> Result<()> {
    // Nodes of place 1 are clients 1, 4, 7 and 10: the last one is not killed.
    let last = NodeId(1 + 3 * PLACES);
    if node.id() == NodeId(0) {
        let threads = Threads::default();
        let server = RpcServer::<Ask, u64>::open(node, "rpc", OPTIONS)?;
        begun();
        let (is_over, ended) = (AtomicBool::new(false), Mutex::new(0));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let endpoint = node.endpoint().expect("an endpoint");
                    while !is_over.load(Ordering::Acquire) {
                        let soon = endpoint.now() + Duration::from_millis(20);
                        let served = endpoint.block_on(server.serve(&endpoint, soon, |client, ask| {
                            let reply = threads.handle(client, ask);
                            if ask[0] == LAST {
                                let mut ended = ended.lock().expect("no panic");
                                *ended += 1;
                                // Of two threads of client 2, and of the last of the others.
                                is_over.store(*ended == 4, Ordering::Release);
                            }
                            reply
                        }));
                        served.expect("a member");
                    }
                    // The clients have the last replies when they have left.
                    let have_left = || [NodeId(2), last].iter().all(|client| node.has_gone(*client)).then_some(());
                    while have_left().is_none() {
                        let soon = endpoint.now() + Duration::from_millis(20);
                        endpoint
                            .block_on(server.serve(&endpoint, soon, |client, ask| threads.handle(client, ask)))
                            .expect("a member");
                    }
                });
            }
        });
        println!("{MEASURED}{} calls of all clients", threads.count());
        return Ok(());
    }
    let client = RpcClient::<Ask, u64>::open(node, "rpc", NodeId(0), OPTIONS)?;
    begun();
    let is_told = AtomicBool::new(false);
    on_two_threads(node, |endpoint, thread| {
        let until = |number: u64| {
            if number == 300 && !is_told.swap(true, Ordering::Relaxed) {
                println!("calls");
            }
            match node.id() {
                NodeId(2) => number >= 300 && node.members().any(|member| member == last),
                of if of == last => number == 1000,
                _ => false, // it is killed
            }
        };
        let (number, error) = calls(&client, endpoint, thread, until);
        assert!(error.is_none(), "{error:?}");
        let counted = endpoint.block_on(client.call(endpoint, &[LAST, thread, LAST ^ thread << 32])).expect("a reply");
        assert_eq!(counted, number);
    });
    let _ = endpoint;
    Ok(())
}

fn server(node: &Node, endpoint: &Endpoint) -> Result<()> {
    let next = NodeId(PLACES);
    if node.id() == NodeId(0) || node.id() == next {
        let threads = Arc::new(Threads::default());
        let at_server = Arc::clone(&threads);
        let handle = move |client, ask| at_server.handle(client, ask);
        let server = RpcServer::<Ask, u64>::open_on_service(node, "rpc", OPTIONS, handle)?;
        begun();
        if node.id() == NodeId(0) {
            std::thread::park();
        }
        let have_left = || [NodeId(1), NodeId(2)].iter().all(|client| node.has_gone(*client)).then_some(());
        endpoint.block_on(endpoint.wait_until(endpoint.now() + STEP_MAX, have_left))?;
        assert_eq!(threads.count(), 4 * 500);
        drop(server);
        return Ok(());
    }
    let client = RpcClient::<Ask, u64>::open(node, "rpc", NodeId(0), OPTIONS)?;
    begun();
    let is_told = AtomicBool::new(false);
    let numbers = on_two_threads(node, |endpoint, thread| {
        let until = |number: u64| {
            if number == 300 && !is_told.swap(true, Ordering::Relaxed) {
                println!("calls");
            }
            false
        };
        let (number, error) = calls(&client, endpoint, thread, until);
        let error = error.expect("the server was killed");
        assert!(error.is_gone() && error.node() == Some(NodeId(0)), "{error}");
        // Either it may have happened, or the server was known to be dead.
        println!("{MEASURED}{number} calls before the death, and then an error; effect: {:?}", effect_of(&error));
        assert_ne!(effect_of(&error), Effect::Done, "{error}");
        let is_evicted = || (node.status_of(NodeId(0)) == Some(MemberStatus::Evicted)).then_some(());
        endpoint.block_on(endpoint.wait_until(endpoint.now() + STEP_MAX, is_evicted)).expect("it is decided");
        number
    });
    assert!(numbers.into_iter().any(|number| number >= 300), "the server was killed when one had so many: {numbers:?}");
    drop(client);
    let client = RpcClient::<Ask, u64>::open(node, "rpc", next, OPTIONS)?;
    on_two_threads(node, |endpoint, thread| {
        let (number, error) = calls(&client, endpoint, thread, |number| number == 500);
        assert!(number == 500 && error.is_none(), "{error:?}");
    });
    Ok(())
}
