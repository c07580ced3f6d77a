#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a test watches from outside the fabric")]

mod object;
mod store;
mod tree;

use farfield_core::{Endpoint, Node, local_session, on_each};

use crate::*;

fn session(nodes: usize) -> (Vec<Node>, Vec<Endpoint>) {
    let nodes = local_session(nodes).expect("a session");
    let endpoints = nodes.iter().map(|node| node.endpoint().expect("an endpoint")).collect();
    (nodes, endpoints)
}
