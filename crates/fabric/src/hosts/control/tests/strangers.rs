//! Strangers at a node's socket: the node hangs up on them in time, and its session continues.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::super::wire::{Frame, VERSION};
use super::super::{Event, Limits, Options, Refusal, STRANGERS_MAX};
use super::sessions::{LOCALHOST, Node, eventually, meet, options};
use super::{framed, hello_of, identity};
use crate::ptr::NodeId;

const HANDSHAKE: Duration = Duration::from_millis(300);

/// Two nodes that are impatient with strangers.
fn session() -> [Node; 2] {
    let limits = Limits { handshake: HANDSHAKE, ..Limits::default() };
    let nodes = [0, 1].map(|node| Node::start(&Options { limits, ..options(node, 2, LOCALHOST) }));
    meet(&nodes);
    nodes[0].waits_for("the other", |event| matches!(event, Event::Up(..)));
    nodes[1].waits_for("the other", |event| matches!(event, Event::Up(..)));
    nodes
}

fn call(node: &Node) -> TcpStream {
    let stream = TcpStream::connect(node.control.address()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream
}

/// The bytes that a stranger still receives, until it is hung up on.
fn heard(mut stream: &TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        // An end with unread input resets the connection.
        Err(why) if why.kind() != ErrorKind::ConnectionReset => panic!("not hung up on: {why}"),
        _ => bytes,
    }
}

fn goes_on(nodes: &[Node; 2]) {
    nodes[1].control.send(NodeId(0), b"still here").unwrap();
    nodes[0].waits_for("a message", |event| *event == Event::Message(NodeId(1), b"still here".to_vec()));
    assert!(!nodes[0].events().iter().any(|event| matches!(event, Event::Down(..))));
}

#[test]
fn a_caller_that_sends_garbage_is_hung_up_on_at_once() {
    let nodes = session();
    let hello = framed(&Frame::Hello(hello_of(&identity(1, None), 0)));
    let mut damaged = hello.clone();
    damaged[7] = b'x';
    let garbage: [&[u8]; 6] =
        [b"GET / HTTP/1.1\r\n\r\n", &[0xff; 100], &[0; 100], &[7; 100_000], &framed(&Frame::Message(b"x")), &damaged];
    for bytes in garbage {
        let mut stream = call(&nodes[0]);
        let _ = stream.write_all(bytes); // it may be hung up on before all is written
        assert!(heard(&stream).is_empty());
    }
    goes_on(&nodes);
}

#[test]
fn a_silent_or_slow_caller_is_hung_up_on_in_time() {
    let nodes = session();
    let start = Instant::now();
    let silent = call(&nodes[0]);
    let mut slow = call(&nodes[0]);
    let hello = framed(&Frame::Hello(hello_of(&identity(1, None), 0)));
    let bytes = hello.iter().take_while(|byte| {
        std::thread::sleep(Duration::from_millis(20));
        slow.write_all(&[**byte]).is_ok()
    });
    assert!(bytes.count() < hello.len());
    assert!(heard(&silent).is_empty());
    assert!(start.elapsed() >= HANDSHAKE);
    goes_on(&nodes);
}

/// Another build, another session, or just a bad list of addresses: the caller reads why, and so does the log.
#[test]
fn a_caller_of_another_version_is_told_so() {
    let nodes = session();
    let mut hello = framed(&Frame::Hello(hello_of(&identity(1, None), 0)));
    hello[13] = 9;
    for _ in 0..3 {
        let mut stream = call(&nodes[0]);
        stream.write_all(&hello).unwrap();
        let refusal = Refusal::Version { refuser: VERSION, refused: 9 };
        assert_eq!(heard(&stream), framed(&Frame::Refusal(refusal.clone())));
        assert_eq!(nodes[0].waits_for_refusal(true), refusal);
    }
    let count = nodes[0].events().iter().filter(|event| matches!(event, Event::Refused(_))).count();
    assert_eq!(count, 1, "reported once");
    goes_on(&nodes);
}

#[test]
fn a_caller_without_the_secret_is_refused() {
    let nodes = session();
    let mut caller = identity(1, None);
    caller.places = 2;
    for proof in [[0; 32], [1; 32]] {
        let mut stream = call(&nodes[0]);
        stream.write_all(&framed(&Frame::Hello(hello_of(&caller, 0)))).unwrap();
        stream.write_all(&framed(&Frame::Proof(proof))).unwrap();
        let heard = heard(&stream);
        assert!(heard.ends_with(&framed(&Frame::Refusal(Refusal::Secret))), "{heard:?}");
    }
    goes_on(&nodes);
}

/// They take each other's places, not those of nodes.
#[test]
fn many_strangers_keep_no_node_out() {
    let patient = Limits { handshake: Duration::from_secs(60), ..Limits::default() };
    let open = |node| Node::start(&Options { limits: patient, ..options(node, 2, LOCALHOST) });
    let nodes = [open(0), open(1)];
    let strangers: Vec<TcpStream> = (0..STRANGERS_MAX + 8).map(|_| call(&nodes[0])).collect();
    assert!(heard(&strangers[0]).is_empty() && heard(&strangers[7]).is_empty());
    meet(&nodes);
    // Each finds out by itself that the other is up.
    for node in &nodes {
        eventually("the node", || node.events().iter().any(|event| matches!(event, Event::Up(..))).then_some(()));
    }
    goes_on(&nodes);
}
