#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a test watches from outside the fabric")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use farfield_core::{ByteString, Endpoint, ErrorKind, Node, Result, Value, local_session};

use super::*;

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
    let server = Server::<ByteString, ByteString>::open_on_service(&nodes[0], "rpc", options, |_, request| {
        request.iter().rev().copied().collect::<Vec<u8>>().into()
    });
    let _server = server.expect("a server");
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
