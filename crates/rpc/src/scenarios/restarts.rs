//! Clients and servers that come again.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use farfield_check::parts::{Excuse, goes_on};
use farfield_check::{Faults, Scenario, crashed};
use farfield_core::{Node, Result};
use farfield_fabric::{Instant, NodeId};

use super::{Ask, Caller, Client, Course, Effects, Reply, options};
use crate::Server;

pub(super) fn scenarios() -> Vec<Scenario> {
    vec![opened_again(), opened_again_threads(), client_leaves(), client_dies(), server_dies()]
}

fn open(node: &Node, server: u16) -> Result<Client<Ask, Reply>> {
    Client::open(node, "rpc", NodeId(server), options(1, 1))
}

/// A node closes its client, of which a repeated request may still be under way, and opens it again.
fn opened_again() -> Scenario {
    let about = "a late request of an earlier opening has no effect in a later one";
    opens_again("rpc/opened-again", about, 1).kills(&["rpc-any-opening"])
}

fn opened_again_threads() -> Scenario {
    let about = "a thread of a server that is slow handles no request of an earlier opening again";
    opens_again("rpc/opened-again-threads", about, 2).kills(&["rpc-late-look"])
}

fn opens_again(name: &str, about: &str, threads: usize) -> Scenario {
    Scenario::new(name, about, 2, move |cluster| {
        let course = Course::new(cluster);
        let servers = cluster.on_each(|node| match node.id() {
            NodeId(0) => Server::<Ask, Reply>::open(node, "rpc", options(1, 1)).map(Some),
            _ => Ok(None),
        })?;
        let server = servers.into_iter().flatten().next().expect("node 0 has it");
        course.keep(server.clone());
        for _ in 0..threads {
            super::serve(cluster, &course, &server);
        }
        let (node, ended) = (cluster.node(1), Rc::new(farfield_fabric::Word::new(0)));
        course.busy.borrow_mut().push((1, Rc::clone(&ended)));
        cluster.thread_without_endpoint(1, "calls", move || {
            for _ in 0..3 {
                // Puts of two endpoints have no order.
                let ep = node.endpoint()?;
                let client = open(&node, 0)?;
                let caller = Caller { ep: &ep, client: &client, course: &course, node: &node, excuse: Excuse::now() };
                caller.call_again(1);
                course.keep(ep);
            }
            ended.store(1);
            Ok(())
        });
        Ok(())
    })
}

/// A client's node goes, and another one starts at its place.
fn client_goes(name: &str, about: &str, leaves: bool) -> Scenario {
    Scenario::new(name, about, 4, move |cluster| {
        let course = Course::new(cluster);
        let effects = Arc::clone(&course.effects);
        let servers = cluster.on_each(move |node| match node.id() {
            NodeId(0) => {
                let effects = Arc::clone(&effects);
                Server::<Ask, Reply>::open_on_service(node, "rpc", options(1, 1), move |_, ask| effects.handle(ask))
                    .map(Some)
            }
            _ => Ok(None),
        })?;
        course.keep(servers);
        let (first, seen) = (cluster.node(1), Rc::clone(&course));
        cluster.thread_without_endpoint(1, "goes", move || {
            let ep = first.endpoint()?;
            let excuse = Excuse::now();
            let client = match open(&first, 0) {
                Ok(client) => client,
                Err(error) => {
                    assert!(excuse.is_given() || !goes_on(&first), "{error}");
                    return Ok(());
                }
            };
            let caller = Caller { ep: &ep, client: &client, course: &seen, node: &first, excuse };
            for _ in 0..2 {
                caller.call();
            }
            drop((client, ep));
            if leaves {
                first.clone().leave();
            }
            Ok(())
        });
        let (starter, stays, latest) = (cluster.starter(), cluster.node(0), Rc::new(RefCell::new(None)));
        let kept = Rc::clone(&latest);
        cluster.at_end(move || {
            drop(kept.take());
            Ok(())
        });
        cluster.thread_without_endpoint(3, "comes", move || {
            let ep = stays.endpoint()?;
            // Where it does not die, there is nothing to see.
            let has_gone = || (stays.has_gone(NodeId(1)) || !leaves && !crashed(1)).then_some(());
            ep.block_on(ep.wait_until(Instant::NEVER, has_gone))?;
            if !stays.has_gone(NodeId(1)) {
                return Ok(());
            }
            let node = starter.start(3)?;
            let ep = node.endpoint()?;
            let client = open(&node, 0)?;
            *latest.borrow_mut() = Some((node.clone(), client.clone()));
            let caller = Caller { ep: &ep, client: &client, course: &course, node: &node, excuse: Excuse::now() };
            for _ in 0..3 {
                assert!(caller.call(), "the server is alive");
            }
            Ok(())
        });
        Ok(())
    })
    .places(2)
}

fn client_leaves() -> Scenario {
    client_goes("rpc/client-leaves", "a client at the place of one that has left has calls of its own", true)
        .kills(&["rpc-counts-on"])
}

fn client_dies() -> Scenario {
    client_goes("rpc/client-returns", "a client at the place of one that has died has calls of its own", false)
        .faults(Faults::new().crashes(1).of([1]))
}

/// The server dies, and another one starts at its place. The record of the first is lost with it.
fn server_dies() -> Scenario {
    let about =
        "no call of a server that has died reaches the next one, and its clients are told that its effect is unknown";
    Scenario::new("rpc/server-returns", about, 3, |cluster| {
        let course = Course::new(cluster);
        let effects = Arc::clone(&course.effects);
        let opened = cluster.on_each(move |node| match node.id() {
            NodeId(0) => {
                let effects = Arc::clone(&effects);
                let handle = move |_, ask| effects.handle(ask);
                Server::<Ask, Reply>::open_on_service(node, "rpc", options(1, 1), handle)
                    .map(|server| (Some(server), None))
            }
            _ => open(node, 0).map(|client| (None, Some(client))),
        })?;
        let (servers, clients): (Vec<_>, Vec<_>) = opened.into_iter().unzip();
        course.keep(servers);
        let client = clients.into_iter().flatten().next().expect("node 1 has it");
        let (starter, latest) = (cluster.starter(), Rc::new(RefCell::new(None)));
        let (kept, node) = (Rc::clone(&latest), cluster.node(1));
        cluster.at_end(move || {
            drop(kept.take());
            Ok(())
        });
        cluster.thread_without_endpoint(1, "calls", move || {
            let ep = node.endpoint()?;
            {
                let client = client;
                let caller = Caller { ep: &ep, client: &client, course: &course, node: &node, excuse: Excuse::now() };
                for _ in 0..3 {
                    if !caller.call() {
                        break;
                    }
                }
            }
            if !crashed(0) {
                return Ok(());
            }
            ep.block_on(ep.wait_until(Instant::NEVER, || node.has_gone(NodeId(0)).then_some(())))?;
            let next = starter.start(2)?;
            let again = Arc::new(Effects::default());
            let (done, handled) = (Arc::clone(&again), move |_, ask| again.handle(ask));
            let server = Server::<Ask, Reply>::open_on_service(&next, "rpc", options(1, 1), handled)?;
            *latest.borrow_mut() = Some((next, server));
            let client = open(&node, 2)?;
            for number in 100..103 {
                let told = ep.block_on(client.call(&ep, &[number, !number]))?;
                assert_eq!((told[0], told[1]), (number, number - 100));
            }
            // Nothing but these calls has come to it.
            assert_eq!(done.0.lock().len(), 3);
            Ok(())
        });
        Ok(())
    })
    .places(2)
    .faults(Faults::new().crashes(1).of([0]))
}
