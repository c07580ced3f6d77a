//! Scenarios for the model checker.

mod deaths;
mod plain;
mod restarts;

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use farfield_check::parts::{Excuse, goes_on};
use farfield_check::{Cluster, Scenario, crashed, with_slow};
use farfield_core::{Endpoint, ErrorKind, Node, Result};
use farfield_fabric::{LocalMutex, NodeId, Word};

use crate::{Client, Effect, RpcOptions, Server, effect_of};

/// All of them.
///
/// ```
/// let scenarios = farfield_rpc::scenarios::all();
/// assert!(scenarios.iter().any(|scenario| scenario.name() == "rpc/server-dies"));
/// ```
pub fn all() -> Vec<Scenario> {
    with_slow([plain::scenarios(), deaths::scenarios(), restarts::scenarios()].concat())
}

/// A request: a number, and the same with all bits turned. It may come in pieces.
type Ask = [u64; 2];
/// A reply: the number, how many requests were handled before, and both together.
type Reply = [u64; 3];
type Clients = Vec<Client<Ask, Reply>>;

fn options(window: usize, batch_max: usize) -> RpcOptions {
    RpcOptions { window, batch_max, ..RpcOptions::default() }
}

/// What a server has done.
#[derive(Default)]
struct Effects(LocalMutex<Vec<u64>>);

impl Effects {
    fn handle(&self, ask: Ask) -> Reply {
        assert_eq!(ask[0], !ask[1], "the request is in pieces");
        let mut done = self.0.lock();
        assert!(!done.contains(&ask[0]), "request {:x} has its effect twice", ask[0]);
        let before = done.len() as u64;
        done.push(ask[0]);
        [ask[0], before, ask[0] ^ before]
    }
}

/// How a call has ended, as its caller knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ended {
    /// With a reply: the requests that were handled before.
    Replied(u64),
    /// Nothing has happened, says the error.
    Never,
    /// It may have had its effect or not.
    Unknown,
}

/// The course of a scenario.
#[derive(Default)]
struct Course {
    effects: Arc<Effects>,
    ended: RefCell<Vec<(u64, Ended)>>,
    next: Cell<u64>,
    /// The threads of clients, with their nodes, and whether they have ended.
    busy: RefCell<Vec<(usize, Rc<Word>)>>,
    /// Dropped at the end.
    kept: RefCell<Vec<Box<dyn Any>>>,
}

impl Course {
    fn new(cluster: &Cluster) -> Rc<Course> {
        let course = Rc::new(Course::default());
        let seen = Rc::clone(&course);
        cluster.at_end(move || {
            seen.check();
            drop(seen.kept.take());
            Ok(())
        });
        course
    }

    /// Every call has had its effect as often as its caller knows.
    fn check(&self) {
        let done = self.effects.0.lock();
        for (id, ended) in self.ended.borrow().iter() {
            let at = done.iter().position(|of| of == id).map(|at| at as u64);
            match ended {
                Ended::Replied(before) => assert_eq!(at, Some(*before), "call {id:x} has the reply of another one"),
                Ended::Never => {
                    assert_eq!(at, None, "call {id:x} has had its effect, and its error says that it has not")
                }
                Ended::Unknown => {}
            }
        }
    }

    fn keep(&self, it: impl Any) {
        self.kept.borrow_mut().push(Box::new(it));
    }

    fn is_over(&self) -> bool {
        self.busy.borrow().iter().all(|(node, ended)| ended.load() != 0 || crashed(*node))
    }

    fn ask(&self) -> Ask {
        self.next.set(self.next.get() + 1);
        [self.next.get(), !self.next.get()]
    }

    /// Notes how a call has ended. Whether its client continues.
    fn end(&self, ask: Ask, result: Result<Reply>, is_excused: bool) -> bool {
        let goes_on = result.is_ok();
        let ended = match result {
            Ok(reply) => {
                assert_eq!((reply[0], reply[2]), (ask[0], reply[0] ^ reply[1]), "the reply to another call, or pieces");
                Ended::Replied(reply[1])
            }
            Err(error) => {
                assert!(is_excused, "nothing has happened: {error}");
                let is_wrong = matches!(error.kind(), ErrorKind::Config { .. } | ErrorKind::Corrupt { .. });
                assert!(!is_wrong, "{error}");
                match effect_of(&error) {
                    Effect::None => Ended::Never,
                    Effect::Unknown => Ended::Unknown,
                    Effect::Done => unreachable!("all replies are words: {error}"),
                }
            }
        };
        self.ended.borrow_mut().push((ask[0], ended));
        goes_on
    }
}

/// A thread of a client.
struct Caller<'a> {
    ep: &'a Endpoint,
    client: &'a Client<Ask, Reply>,
    course: &'a Course,
    node: &'a Node,
    excuse: Excuse,
}

impl Caller<'_> {
    fn is_excused(&self) -> bool {
        self.excuse.is_given() || !goes_on(self.node) || crashed(0)
    }

    fn end(&self, ask: Ask, result: Result<Reply>) -> bool {
        self.course.end(ask, result, self.is_excused())
    }

    /// A call. Whether it had a reply.
    fn call(&self) -> bool {
        let ask = self.course.ask();
        self.end(ask, self.ep.block_on(self.client.call(self.ep, &ask)))
    }

    /// A call that is asked for so many times more at once.
    fn call_again(&self, times: usize) -> bool {
        let ask = self.course.ask();
        let result = self.ep.block_on(async {
            let mut call = self.client.begin(self.ep, &ask).await?;
            for _ in 0..times {
                // The wait asks again in any case.
                let _ = call.retry();
            }
            call.wait().await
        });
        self.end(ask, result)
    }

    /// A call that is given up when it is sent.
    fn give_up(&self) {
        let ask = self.course.ask();
        match self.ep.block_on(self.client.begin(self.ep, &ask)) {
            Ok(call) => {
                drop(call);
                self.course.ended.borrow_mut().push((ask[0], Ended::Unknown));
            }
            Err(error) => drop(self.end(ask, Err(error))),
        }
    }

    /// So many calls at once, in as few puts as possible.
    fn call_many(&self, count: usize) -> bool {
        let asks: Vec<Ask> = (0..count).map(|_| self.course.ask()).collect();
        let results = self.ep.block_on(self.client.call_many(self.ep, &asks));
        assert_eq!(results.len(), count);
        let ended: Vec<bool> = asks.into_iter().zip(results).map(|(ask, result)| self.end(ask, result)).collect();
        ended.into_iter().all(|one| one)
    }
}

/// Node 0 has a server, and its service thread handles the requests; the others have a client each.
fn open_on_service(cluster: &Cluster, course: &Rc<Course>, options: RpcOptions) -> Result<Clients> {
    let effects = Arc::clone(&course.effects);
    open_with(cluster, course, options, move |node| {
        let effects = Arc::clone(&effects);
        Server::open_on_service(node, "rpc", options, move |_, ask| effects.handle(ask))
    })
    .map(|(_, clients)| clients)
}

/// Node 0 has a server, and threads that handle its requests.
fn open_on_threads(cluster: &Cluster, course: &Rc<Course>, options: RpcOptions, threads: usize) -> Result<Clients> {
    let (server, clients) = open_with(cluster, course, options, move |node| Server::open(node, "rpc", options))?;
    for _ in 0..threads {
        serve(cluster, course, &server);
    }
    Ok(clients)
}

fn open_with(
    cluster: &Cluster,
    course: &Rc<Course>,
    options: RpcOptions,
    server: impl Fn(&Node) -> Result<Server<Ask, Reply>> + 'static,
) -> Result<(Server<Ask, Reply>, Clients)> {
    let opened = cluster.on_each(move |node| match node.id() {
        NodeId(0) => Ok((Some(server(node)?), None)),
        _ => Ok((None, Some(Client::open(node, "rpc", NodeId(0), options)?))),
    })?;
    let (servers, clients): (Vec<_>, Vec<_>) = opened.into_iter().unzip();
    let clients: Clients = clients.into_iter().flatten().collect();
    let server = servers.into_iter().flatten().next().expect("node 0 has it");
    course.keep((server.clone(), clients.clone()));
    Ok((server, clients))
}

/// A thread of the server, until all clients have ended.
fn serve(cluster: &Cluster, course: &Rc<Course>, server: &Server<Ask, Reply>) {
    let (server, course, node) = (server.clone(), Rc::clone(course), cluster.node(0));
    cluster.thread(0, "serves", move |ep| {
        let mut pause = Duration::from_millis(10);
        while !course.is_over() {
            let served = server.serve(ep, ep.now() + pause, |_, ask| course.effects.handle(ask));
            if let Err(error) = ep.block_on(served) {
                assert!(!goes_on(&node), "{error}");
                return Ok(());
            }
            pause = Duration::from_millis(100).min(2 * pause);
        }
        Ok(())
    });
}

/// A thread of a client on this node.
fn calls(
    cluster: &Cluster,
    course: &Rc<Course>,
    node: usize,
    client: &Client<Ask, Reply>,
    body: impl Fn(&Caller<'_>) + 'static,
) {
    let (here, client, course, ended) = (cluster.node(node), client.clone(), Rc::clone(course), Rc::new(Word::new(0)));
    course.busy.borrow_mut().push((node, Rc::clone(&ended)));
    cluster.thread(node, "calls", move |ep| {
        body(&Caller { ep, client: &client, course: &course, node: &here, excuse: Excuse::now() });
        ended.store(1);
        Ok(())
    });
}
