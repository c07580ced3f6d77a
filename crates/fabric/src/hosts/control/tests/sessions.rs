//! Nodes of one process that talk over TCP, each with a service thread of its own.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::super::protocol::Broken;
use super::super::{Control, Ending, Event, Limits, Options, Refusal, SendError};
use super::secret;
use crate::fabric::CONTROL_BYTES_MAX;
use crate::ptr::NodeId;

pub(super) const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// The orders to a node's service thread.
const RUN: u8 = 0;
const STOP: u8 = 1;
const LEAVE: u8 = 2;
const ABANDON: u8 = 3;

pub(super) struct Node {
    pub(super) control: Arc<Control>,
    events: Arc<Mutex<Vec<Event>>>,
    order: Arc<AtomicU8>,
    thread: Option<JoinHandle<()>>,
}

impl Node {
    pub(super) fn start(options: &Options) -> Node {
        let control = Arc::new(Control::open(options).unwrap());
        let (events, order) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicU8::new(RUN)));
        let (serving, heard, told) = (Arc::clone(&control), Arc::clone(&events), Arc::clone(&order));
        let thread = std::thread::spawn(move || {
            loop {
                match told.load(Ordering::Acquire) {
                    RUN => serving.serve(Duration::from_millis(20), &mut |event| heard.lock().unwrap().push(event)),
                    STOP => std::thread::sleep(Duration::from_millis(1)),
                    LEAVE => return serving.goodbye(),
                    _ => return serving.leave_uncleanly(),
                }
            }
        });
        Node { control, events, order, thread: Some(thread) }
    }

    fn order(&self, order: u8) {
        self.order.store(order, Ordering::Release);
        self.control.wake();
    }

    pub(super) fn end(mut self, order: u8) {
        self.order(order);
        self.thread.take().unwrap().join().unwrap();
    }

    pub(super) fn events(&self) -> Vec<Event> {
        self.events.lock().unwrap().clone()
    }

    pub(super) fn waits_for(&self, what: &str, is_it: impl Fn(&Event) -> bool) -> Event {
        eventually(what, || self.events().into_iter().find(&is_it))
    }

    fn waits_for_up(&self, node: u16) {
        self.waits_for("a node up", |event| matches!(event, Event::Up(up, _) if *up == NodeId(node)));
    }

    pub(super) fn waits_for_refusal(&self, by_us: bool) -> Refusal {
        let event = self.waits_for("a refusal", |it| matches!(it, Event::Refused(it) if it.by_us == by_us));
        let Event::Refused(refused) = event else { unreachable!() };
        assert!(refused.to_string().contains("refused"), "{refused}");
        refused.refusal
    }

    /// The messages of a node.
    fn heard(&self, from: NodeId) -> Vec<Vec<u8>> {
        let heard = self.events().into_iter();
        heard
            .filter_map(|event| match event {
                Event::Message(node, bytes) if node == from => Some(bytes),
                _ => None,
            })
            .collect()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.order(ABANDON);
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking());
        }
    }
}

pub(super) fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub(super) fn options(node: u16, places: u16, ip: IpAddr) -> Options {
    Options {
        session: "night".into(),
        layout: "farfield-verbs-1".into(),
        node: NodeId(node),
        places,
        incarnation: 1000 + u64::from(node),
        listen: SocketAddr::new(ip, 0),
        secret: Some(secret(7)),
        limits: Limits::default(),
    }
}

/// Gives all nodes the addresses of all.
pub(super) fn meet(nodes: &[Node]) -> Vec<SocketAddr> {
    let addresses: Vec<SocketAddr> = nodes.iter().map(|node| node.control.address()).collect();
    nodes.iter().for_each(|node| node.control.meet(&addresses).unwrap());
    addresses
}

/// A session of three nodes that are all up, and its addresses.
fn session(ip: IpAddr) -> (Vec<Node>, Vec<SocketAddr>) {
    let nodes: Vec<Node> = (0..3).map(|node| Node::start(&options(node, 3, ip))).collect();
    let addresses = meet(&nodes);
    for (me, node) in nodes.iter().enumerate() {
        (0..3u16).filter(|peer| usize::from(*peer) != me).for_each(|peer| node.waits_for_up(peer));
    }
    (nodes, addresses)
}

/// Two nodes that differ, and will not come up.
fn two(change: impl Fn(&mut Options)) -> [Node; 2] {
    let mut second = options(1, 2, LOCALHOST);
    change(&mut second);
    let nodes = [Node::start(&options(0, 2, LOCALHOST)), Node::start(&second)];
    meet(&nodes);
    nodes
}

#[test]
fn all_are_up_and_hear_all_in_order_under_load() {
    for ip in [LOCALHOST, IpAddr::V6(Ipv6Addr::LOCALHOST)] {
        if TcpListener::bind((ip, 0)).is_err() {
            eprintln!("this machine has no {ip}");
            continue;
        }
        let (nodes, _) = session(ip);
        for (me, node) in nodes.iter().enumerate() {
            for event in node.events() {
                let Event::Up(peer, hello) = event else { continue };
                assert!(peer.index() != me && hello.node == peer && hello.place == peer.0);
                assert_eq!((hello.incarnation, &hello.session[..]), (1000 + u64::from(peer.0), "night"));
            }
        }
        let message = |from: usize, number: usize| {
            let len = [0, 1, 7, 100, 5000, CONTROL_BYTES_MAX][number % 6];
            [&[from as u8][..], &(number as u32).to_le_bytes(), &vec![number as u8; len]].concat()
        };
        let message = |from, number| {
            let mut bytes = message(from, number);
            bytes.truncate(CONTROL_BYTES_MAX);
            bytes
        };
        // More with `FARFIELD_TEST_LONG`, which CI sets.
        let count = if std::env::var_os("FARFIELD_TEST_LONG").is_some() { 1200 } else { 300 };
        std::thread::scope(|scope| {
            for (me, node) in nodes.iter().enumerate() {
                for peer in (0..3u16).map(NodeId).filter(|peer| peer.index() != me) {
                    scope.spawn(move || {
                        for number in 0..count {
                            let bytes = message(me, number);
                            while let Err(why) = node.control.send(peer, &bytes) {
                                assert_eq!(why, SendError::Full);
                                std::thread::sleep(Duration::from_millis(1));
                            }
                        }
                    });
                }
            }
        });
        for (me, node) in nodes.iter().enumerate() {
            for from in (0..3).filter(|from| *from != me) {
                let heard = eventually("all messages", || {
                    Some(node.heard(NodeId(from as u16))).filter(|heard| heard.len() >= count)
                });
                assert!(heard == (0..count).map(|number| message(from, number)).collect::<Vec<_>>());
            }
        }
    }
}

#[test]
fn payloads_are_told_from_messages_and_keep_their_order() {
    let (nodes, _) = session(LOCALHOST);
    for number in 0..200u8 {
        let control = &nodes[0].control;
        let sent = if number % 3 == 0 {
            control.send_payload(NodeId(2), &[number])
        } else {
            control.send(NodeId(2), &[number])
        };
        sent.unwrap();
    }
    let heard = eventually("all", || {
        let heard = nodes[2].events().into_iter();
        let heard: Vec<_> = heard.filter(|it| matches!(it, Event::Payload(..) | Event::Message(..))).collect();
        (heard.len() >= 200).then_some(heard)
    });
    let expected = (0..200u8).map(|number| match number % 3 {
        0 => Event::Payload(NodeId(0), vec![number]),
        _ => Event::Message(NodeId(0), vec![number]),
    });
    assert!(heard.into_iter().eq(expected));
    assert_eq!(nodes[0].control.send(NodeId(5), b"x"), Err(SendError::NotUp), "another life of the place");
    assert_eq!(nodes[0].control.send(NodeId(0), b"x"), Err(SendError::NotUp), "itself");
}

#[test]
fn one_that_stops_is_suspected_and_trusted_when_it_goes_on() {
    let (nodes, _) = session(LOCALHOST);
    nodes[2].order(STOP);
    for node in &nodes[..2] {
        node.waits_for("suspicion", |event| *event == Event::Suspected(NodeId(2)));
    }
    nodes[0].control.send(NodeId(2), b"are you there?").unwrap();
    nodes[2].order(RUN);
    for node in &nodes[..2] {
        node.waits_for("trust", |event| *event == Event::Trusted(NodeId(2)));
    }
    eventually("the message", || (nodes[2].heard(NodeId(0)) == [b"are you there?"]).then_some(()));
    nodes[2].control.send(NodeId(1), b"yes").unwrap();
    eventually("the answer", || (nodes[1].heard(NodeId(2)) == [b"yes"]).then_some(()));
}

#[test]
fn a_leaving_node_says_goodbye_last_and_a_dying_one_does_not() {
    let (mut nodes, _) = session(LOCALHOST);
    let last = nodes.pop().unwrap();
    for number in 0..50u8 {
        last.control.send(NodeId(0), &vec![number; 40_000]).unwrap();
    }
    last.end(LEAVE);
    for node in &nodes {
        node.waits_for("a goodbye", |event| *event == Event::Down(NodeId(2), Ending::Goodbye));
    }
    assert_eq!(nodes[0].heard(NodeId(2)).len(), 50);
    assert_eq!(nodes[0].control.send(NodeId(2), b"x"), Err(SendError::NotUp));
    nodes.pop().unwrap().end(ABANDON);
    let down = nodes[0].waits_for("an end", |event| matches!(event, Event::Down(NodeId(1), _)));
    assert_eq!(down, Event::Down(NodeId(1), Ending::Broken(Broken::HungUp)));
}

#[test]
fn a_returning_node_has_another_number() {
    // Place 1 is called by place 2, and calls place 0: both sides refuse.
    let (mut nodes, addresses) = session(LOCALHOST);
    nodes.remove(1).end(ABANDON);
    for node in &nodes {
        node.waits_for("an end", |event| matches!(event, Event::Down(NodeId(1), _)));
    }
    let again = |node| {
        let life = Node::start(&Options { listen: addresses[1], incarnation: 77, ..options(node, 3, LOCALHOST) });
        life.control.meet(&addresses).unwrap();
        life
    };
    let stale = again(1);
    let expected = Refusal::Stale { node: NodeId(1), next: NodeId(4) };
    assert_eq!(stale.waits_for_refusal(false), expected);
    for node in &nodes {
        assert_eq!(node.waits_for_refusal(true), expected);
    }
    assert!(!stale.events().iter().any(|event| matches!(event, Event::Up(..))));
    drop(stale);
    let next = again(4);
    for node in &nodes {
        node.waits_for_up(4);
    }
    next.waits_for_up(0);
    next.waits_for_up(2);
    next.control.send(NodeId(2), b"hello").unwrap();
    eventually("a message", || (nodes[1].heard(NodeId(4)) == [b"hello"]).then_some(()));
    assert_eq!(nodes[0].control.send(NodeId(1), b"x"), Err(SendError::NotUp));
}

#[test]
fn two_nodes_of_one_place_are_one_too_many() {
    let (nodes, addresses) = session(LOCALHOST);
    let second = Node::start(&Options { incarnation: 77, ..options(5, 3, LOCALHOST) });
    second.control.meet(&addresses).unwrap();
    let taken = Refusal::Taken { place: 2, node: NodeId(2) };
    assert_eq!(second.waits_for_refusal(false), taken);
    for node in &nodes[..2] {
        assert_eq!(node.waits_for_refusal(true), taken);
    }
    // It tries again, and is heard of no more.
    std::thread::sleep(Duration::from_millis(300));
    let count = nodes[0].events().iter().filter(|event| matches!(event, Event::Refused(_))).count();
    assert_eq!(count, 1);
    // When the first has left, it is admitted.
    let mut nodes = nodes;
    nodes.pop().unwrap().end(LEAVE);
    nodes[0].waits_for_up(5);
    nodes[1].waits_for_up(5);
}

#[test]
fn the_next_life_comes_in_when_the_others_have_hung_up_on_the_one_before() {
    let (nodes, addresses) = session(LOCALHOST);
    let second = Node::start(&Options { incarnation: 77, ..options(5, 3, LOCALHOST) });
    second.control.meet(&addresses).unwrap();
    second.waits_for_refusal(false);
    nodes[2].order(STOP);
    nodes[0].control.hang_up(NodeId(2));
    nodes[1].control.hang_up(NodeId(2));
    second.waits_for_up(0);
    second.waits_for_up(1);
    nodes[0].waits_for_up(5);
    nodes[1].waits_for_up(5);
    // The stopped one learns it when it continues, and is not admitted again.
    nodes[2].order(RUN);
    for peer in [0, 1] {
        let down = Event::Down(NodeId(peer), Ending::Broken(Broken::HungUp));
        nodes[2].waits_for("an end", |event| *event == down);
    }
    assert!(!nodes[0].events().iter().any(|event| matches!(event, Event::Down(..))), "it has hung up by itself");
}

#[test]
fn nodes_that_do_not_fit_refuse_each_other_and_say_why() {
    let name = |name: &str| name.to_string();
    let ours = options(0, 2, LOCALHOST);
    type Change = Box<dyn Fn(&mut Options)>;
    let cases: [(Change, Refusal); 4] = [
        (Box::new(|it| it.layout = "other".into()), Refusal::Layout { refuser: ours.layout, refused: name("other") }),
        (Box::new(|it| it.session = "day".into()), Refusal::Session { refuser: ours.session, refused: name("day") }),
        (Box::new(|it| it.secret = Some(secret(8))), Refusal::Secret),
        (Box::new(|it| it.secret = None), Refusal::Secret),
    ];
    for (change, expected) in cases {
        let nodes = two(change);
        assert_eq!(nodes[0].waits_for_refusal(true), expected);
        assert_eq!(nodes[1].waits_for_refusal(false), expected);
        std::thread::sleep(Duration::from_millis(100)); // it calls again
        for node in &nodes {
            assert_eq!(node.events().len(), 1, "{:?}", node.events());
        }
    }
}

#[test]
fn nodes_without_a_secret_come_up() {
    let open = |node| Node::start(&Options { secret: None, ..options(node, 2, LOCALHOST) });
    let nodes = [open(0), open(1)];
    meet(&nodes);
    nodes[0].waits_for_up(1);
    nodes[1].waits_for_up(0);
}

#[test]
fn a_slow_reader_fills_the_queue_and_misses_nothing() {
    let (nodes, _) = session(LOCALHOST);
    nodes[1].order(STOP);
    let message = |number: u32| [&number.to_le_bytes()[..], &[0; 30_000]].concat();
    let mut sent = 0;
    let error = loop {
        match nodes[0].control.send(NodeId(1), &message(sent)) {
            Ok(()) => sent += 1,
            Err(why) => break why,
        }
    };
    assert_eq!(error, SendError::Full);
    // The others are not held up.
    nodes[0].control.send(NodeId(2), b"you").unwrap();
    eventually("another's message", || (nodes[2].heard(NodeId(0)) == [b"you"]).then_some(()));
    nodes[1].order(RUN);
    let heard = eventually("all", || Some(nodes[1].heard(NodeId(0))).filter(|heard| heard.len() == sent as usize));
    assert!(heard.iter().zip(0..).all(|(bytes, number)| *bytes == message(number)));
    nodes[0].control.send(NodeId(1), b"again").unwrap();
}

#[test]
fn a_wait_ends_when_it_is_woken_and_not_before_its_time() {
    let control = Control::open(&options(0, 2, LOCALHOST)).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(20));
            control.wake();
        });
        let start = Instant::now();
        control.serve(Duration::from_secs(50), &mut |event| panic!("{event:?}"));
        assert!(start.elapsed() < Duration::from_secs(40));
    });
    let start = Instant::now();
    control.serve(Duration::from_millis(50), &mut |event| panic!("{event:?}"));
    assert!(start.elapsed() >= Duration::from_millis(50));
    let error = control.meet(&[control.address()]).unwrap_err();
    assert!(error.to_string().contains("1 addresses for 2 places"), "{error}");
}

#[test]
fn invalid_options_are_errors_that_say_why() {
    let why = |options: Options| Control::open(&options).map(|_| ()).unwrap_err().to_string();
    let control = Control::open(&options(0, 2, LOCALHOST)).unwrap();
    let taken = why(Options { listen: control.address(), ..options(1, 2, LOCALHOST) });
    assert!(taken.contains(&control.address().to_string()) && taken.contains("port"), "{taken}");
    assert!(why(options(0, 0, LOCALHOST)).contains("0 places"));
    assert!(why(options(4096, 2, LOCALHOST)).contains("node 4096"));
    assert!(why(Options { layout: "a\nb".into(), ..options(0, 2, LOCALHOST) }).contains("printable"));
}
