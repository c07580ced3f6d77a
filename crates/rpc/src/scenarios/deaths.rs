//! Nodes that die, or are cut off.

use std::rc::Rc;

use farfield_check::parts::{Excuse, goes_on};
use farfield_check::{Faults, Scenario, crashed};
use farfield_fabric::{DeathRule, Instant, Word};

use super::{Caller, Course, calls, open_on_service, open_on_threads, options};

pub(super) fn scenarios() -> Vec<Scenario> {
    vec![
        client_dies(),
        server_dies(),
        batches_server_dies(),
        server_cut(),
        client_cut(),
        suspected(),
        client_suspected(),
    ]
}

fn three_calls(caller: &Caller<'_>) {
    for _ in 0..3 {
        if !caller.call_again(1) {
            return;
        }
    }
}

/// The others go on.
fn client_dies() -> Scenario {
    Scenario::new("rpc/client-dies", "a server and its other clients go on without a dead client", 3, |cluster| {
        let course = Course::new(cluster);
        let clients = open_on_threads(cluster, &course, options(1, 2), 1)?;
        calls(cluster, &course, 1, &clients[0], |caller| {
            caller.call_many(3);
        });
        calls(cluster, &course, 2, &clients[1], |caller| {
            for _ in 0..3 {
                // Its server is alive, and does not wait for the other client.
                assert!(caller.call(), "a reply");
            }
        });
        Ok(())
    })
    .faults(Faults::new().crashes(1).of([1]))
}

fn server_dies() -> Scenario {
    let about = "a server's death ends its calls, and each error says truly whether the call may have had its effect";
    Scenario::new("rpc/server-dies", about, 2, |cluster| {
        let course = Course::new(cluster);
        let clients = open_on_service(cluster, &course, options(1, 1))?;
        calls(cluster, &course, 1, &clients[0], |caller| {
            for _ in 0..3 {
                let ask = caller.course.ask();
                let result = caller.ep.block_on(async {
                    let mut call = caller.client.begin(caller.ep, &ask).await?;
                    loop {
                        let excuse = Excuse::now();
                        match call.wait().await {
                            // Time may pass before the death is known.
                            Err(error) if error.is_timeout() && excuse.is_given() => {}
                            result => return result,
                        }
                    }
                });
                if let Err(error) = &result {
                    assert!(crashed(0) && error.is_gone() && !error.is_timeout(), "{error}");
                }
                if !caller.end(ask, result) {
                    return;
                }
            }
        });
        Ok(())
    })
    .faults(Faults::new().crashes(1).of([0]))
    .kills(&["rpc-waits-for-dead", "rpc-says-never"])
}

/// The same for several requests in a put, and several puts.
fn batches_server_dies() -> Scenario {
    let about = "a server's death ends the calls of several puts, each with its own error";
    Scenario::new("rpc/batches-server-dies", about, 2, |cluster| {
        let course = Course::new(cluster);
        let clients = open_on_threads(cluster, &course, options(2, 2), 1)?;
        calls(cluster, &course, 1, &clients[0], |caller| {
            caller.call_many(1);
            caller.call_many(5);
            caller.call_many(2);
        });
        Ok(())
    })
    .faults(Faults::new().crashes(1).of([0]))
}

/// The members decide that the server is gone. Before, it handles the requests that have come.
fn server_cut() -> Scenario {
    Scenario::new("rpc/server-cut", "a server that is cut off handles no call twice", 3, |cluster| {
        let course = Course::new(cluster);
        let clients = open_on_threads(cluster, &course, options(1, 1), 1)?;
        for (at, client) in clients.iter().enumerate() {
            calls(cluster, &course, 1 + at, client, three_calls);
        }
        Ok(())
    })
    .rule(DeathRule::Majority)
    .faults(Faults::new().cuts(1).side([0]))
}

fn client_cut() -> Scenario {
    Scenario::new("rpc/client-cut", "a server goes on when a client is cut off", 3, |cluster| {
        let course = Course::new(cluster);
        let clients = open_on_threads(cluster, &course, options(1, 1), 1)?;
        calls(cluster, &course, 1, &clients[0], three_calls);
        let node = cluster.node(2);
        calls(cluster, &course, 2, &clients[1], move |caller| {
            for _ in 0..3 {
                // A majority may evict this node, or its server, in a session of three.
                if !caller.call() {
                    return;
                }
            }
            assert!(goes_on(&node) || caller.is_excused());
        });
        Ok(())
    })
    .rule(DeathRule::Majority)
    .faults(Faults::new().cuts(1).side([1]))
}

/// The server is slow, and taken for dead.
fn suspected() -> Scenario {
    Scenario::new("rpc/suspected", "a server that is taken for dead handles no call twice", 3, |cluster| {
        let course = Course::new(cluster);
        let clients = open_on_service(cluster, &course, options(1, 1))?;
        for (at, client) in clients.iter().enumerate() {
            calls(cluster, &course, 1 + at, client, three_calls);
        }
        Ok(())
    })
    .rule(DeathRule::Majority)
    .faults(Faults::new().false_suspicions(1).of([0]))
}

/// A client is evicted while its other call keeps the slot.
fn client_suspected() -> Scenario {
    let about = "a client that was evicted waits for no slot";
    Scenario::new("rpc/client-suspected", about, 3, |cluster| {
        let course = Course::new(cluster);
        let clients = open_on_service(cluster, &course, options(1, 1))?;
        let has_ended = Rc::new(Word::new(0));
        let other = Rc::clone(&has_ended);
        calls(cluster, &course, 1, &clients[0], move |caller| {
            let ask = caller.course.ask();
            let Ok(mut call) = caller.ep.block_on(caller.client.begin(caller.ep, &ask)) else { return };
            // Evicted, it has no reply as a rule, and does not give the slot away.
            let is_over = || (call.has_reply() || other.load() != 0).then_some(());
            let _ = caller.ep.block_on(caller.ep.wait_until(Instant::NEVER, is_over));
            let result = caller.ep.block_on(call.wait());
            caller.end(ask, result);
        });
        calls(cluster, &course, 1, &clients[0], move |caller| {
            let ask = caller.course.ask();
            let result = caller.ep.block_on(caller.client.call_deadline(caller.ep, &ask, Instant::NEVER));
            has_ended.store(1);
            caller.ep.wake_local();
            caller.end(ask, result);
        });
        Ok(())
    })
    .rule(DeathRule::Majority)
    .faults(Faults::new().false_suspicions(1).of([1]))
}
