//! Scenarios without deaths.

use std::rc::Rc;
use std::time::Duration;

use farfield_check::{Scenario, choose};

use super::{Ask, Course, Ended, Told, calls, open_on_service, open_on_threads, open_with, options};
use crate::{Client, NoReply, Server};

pub(super) fn scenarios() -> Vec<Scenario> {
    vec![
        service(),
        threads(),
        pipelined(),
        window(),
        batches(),
        given_up(),
        retried(),
        retried_by_two(),
        late(),
        deferred(),
        no_reply(),
        closed(),
    ]
}

/// The service thread handles the requests of two nodes.
fn service() -> Scenario {
    Scenario::new("rpc/service", "each call has its own reply, and its effect once", 3, |cluster| {
        let course = Course::new(cluster);
        let clients = open_on_service(cluster, &course, options(1, 1))?;
        for (at, client) in clients.iter().enumerate() {
            calls(cluster, &course, 1 + at, client, |caller| {
                for _ in 0..3 {
                    caller.call();
                }
            });
        }
        Ok(())
    })
}

/// Two threads handle the requests of two threads of one node.
fn threads() -> Scenario {
    Scenario::new("rpc/threads", "of two threads of a server one handles a request", 2, |cluster| {
        let course = Course::new(cluster);
        let clients = open_on_threads(cluster, &course, options(2, 1), 2)?;
        for _ in 0..2 {
            calls(cluster, &course, 1, &clients[0], |caller| {
                caller.call();
                caller.call();
            });
        }
        Ok(())
    })
}

/// A thread has several calls under way, and waits for them in another order.
fn pipelined() -> Scenario {
    Scenario::new("rpc/pipelined", "calls of one thread are under way at once", 2, |cluster| {
        let course = Course::new(cluster);
        let clients = open_on_threads(cluster, &course, options(3, 1), 1)?;
        calls(cluster, &course, 1, &clients[0], |caller| {
            let asks: [Ask; 3] = core::array::from_fn(|_| caller.course.ask());
            let mut under_way = Vec::new();
            for ask in asks {
                under_way.push((ask, caller.ep.block_on(caller.client.begin(caller.ep, &ask)).expect("a free slot")));
            }
            while !under_way.is_empty() {
                let (ask, mut call) = under_way.swap_remove(choose(under_way.len()));
                let result = caller.ep.block_on(call.wait());
                caller.end(ask, result);
            }
        });
        Ok(())
    })
}

/// Three threads share two slots.
fn window() -> Scenario {
    Scenario::new("rpc/window", "no more calls are under way than there are slots", 3, |cluster| {
        let course = Course::new(cluster);
        let clients = open_on_service(cluster, &course, options(2, 1))?;
        for node in [1, 1, 1, 2] {
            calls(cluster, &course, node, &clients[node - 1], |caller| {
                caller.call();
                caller.call();
            });
        }
        Ok(())
    })
}

/// More requests than one put carries, and more puts than there are slots.
fn batches() -> Scenario {
    Scenario::new("rpc/batches", "each request of a batch has its own reply", 2, |cluster| {
        let course = Course::new(cluster);
        let clients = open_on_threads(cluster, &course, options(2, 2), 1)?;
        for _ in 0..2 {
            calls(cluster, &course, 1, &clients[0], |caller| {
                caller.call_many(3);
                caller.call_many(2);
            });
        }
        Ok(())
    })
}

/// Calls are given up, and their slots are used again.
fn given_up() -> Scenario {
    Scenario::new(
        "rpc/given-up",
        "the late reply to a call that was given up is no reply to another one",
        2,
        |cluster| {
            let course = Course::new(cluster);
            let clients = open_on_threads(cluster, &course, options(1, 1), 2)?;
            for _ in 0..2 {
                calls(cluster, &course, 1, &clients[0], |caller| {
                    caller.give_up();
                    caller.call();
                });
            }
            Ok(())
        },
    )
}

/// Requests are put several times each.
fn retried() -> Scenario {
    Scenario::new("rpc/retried", "a request that is put again has its effect once", 2, |cluster| {
        let course = Course::new(cluster);
        let clients = open_on_threads(cluster, &course, options(1, 1), 2)?;
        calls(cluster, &course, 1, &clients[0], |caller| {
            caller.call_again(2);
            caller.call_again(1);
        });
        Ok(())
    })
}

/// The repeated request of one thread may land after the next request of another one, in the same slot.
fn retried_by_two() -> Scenario {
    let about = "a late repetition of a request disturbs the next call of its slot, and does nothing else";
    Scenario::new("rpc/retried-by-two", about, 2, |cluster| {
        let course = Course::new(cluster);
        let clients = open_on_threads(cluster, &course, options(1, 1), 2)?;
        for _ in 0..2 {
            calls(cluster, &course, 1, &clients[0], |caller| {
                caller.call_again(1);
                caller.call_again(1);
            });
        }
        Ok(())
    })
}

/// Calls time out at any moment, and are waited for again.
fn late() -> Scenario {
    Scenario::new("rpc/late", "a call that timed out is waited for again, and has its effect once", 2, |cluster| {
        let course = Course::new(cluster);
        let clients = open_on_threads(cluster, &course, options(1, 1), 1)?;
        calls(cluster, &course, 1, &clients[0], |caller| {
            for _ in 0..2 {
                let ask = caller.course.ask();
                let mut call = caller.ep.block_on(caller.client.begin(caller.ep, &ask)).expect("a free slot");
                // Until the server begins to serve, a while later.
                let soon = caller.ep.now() + Duration::from_millis(choose(3) as u64);
                let mut result = caller.ep.block_on(call.wait_deadline(soon));
                let mut tries = 0;
                while result.as_ref().is_err_and(|error| error.is_timeout()) && tries < 3 {
                    result = caller.ep.block_on(call.wait());
                    tries += 1;
                }
                caller.end(ask, result);
            }
        });
        Ok(())
    })
    .early_timeouts()
}

/// Requests are answered later, in another order.
fn deferred() -> Scenario {
    Scenario::new("rpc/deferred", "requests are answered by another thread, in another order", 2, |cluster| {
        let course = Course::new(cluster);
        let (server, clients) =
            open_with(cluster, &course, options(2, 1), |node| Server::<Ask, Told>::open(node, "rpc", options(2, 1)))?;
        let done = Rc::clone(&course);
        cluster.thread(0, "answers", move |ep| {
            let first = ep.block_on(server.accept(ep))?;
            let second = ep.block_on(server.accept(ep))?;
            for incoming in [second, first] {
                let replies: Vec<Told> = incoming.requests().iter().map(|ask| done.effects.handle(*ask)).collect();
                incoming.reply(ep, replies);
            }
            Ok(())
        });
        for _ in 0..2 {
            calls(cluster, &course, 1, &clients[0], |caller| {
                caller.call();
            });
        }
        Ok(())
    })
}

/// The handler has an effect, and ends without a reply.
fn no_reply() -> Scenario {
    Scenario::new("rpc/no-reply", "a request without a reply ends its call, and is not handled again", 2, |cluster| {
        let course = Course::new(cluster);
        let (server, clients) =
            open_with(cluster, &course, options(1, 1), |node| Server::<Ask, Told>::open(node, "rpc", options(1, 1)))?;
        let done = Rc::clone(&course);
        let drops = server.clone();
        cluster.thread(0, "drops", move |ep| {
            // The other thread may have both.
            let Ok(incoming) = ep.block_on(drops.accept(ep)) else { return Ok(()) };
            for ask in incoming.requests() {
                done.effects.handle(*ask);
            }
            drop(incoming);
            Ok(())
        });
        super::serve(cluster, &course, &server);
        calls(cluster, &course, 1, &clients[0], |caller| {
            let mut without = 0;
            for _ in 0..2 {
                let ask = caller.course.ask();
                let result = caller.ep.block_on(async {
                    let mut call = caller.client.begin(caller.ep, &ask).await?;
                    let _ = call.retry();
                    call.wait().await
                });
                match result {
                    Err(error) if error.custom_ref::<NoReply>().is_some() => {
                        without += 1;
                        caller.course.ended.borrow_mut().push((ask[0], Ended::Unknown));
                    }
                    result => drop(caller.end(ask, result)),
                }
            }
            assert!(without <= 1, "one request was dropped");
        });
        Ok(())
    })
}

/// The server is dropped while calls are under way.
fn closed() -> Scenario {
    Scenario::new("rpc/closed", "calls of a server that is dropped end, with an error that says so", 2, |cluster| {
        let course = Course::new(cluster);
        let opened = cluster.on_each(|node| {
            let options = options(1, 1);
            match node.id().index() {
                0 => Server::<Ask, Told>::open(node, "rpc", options).map(|server| (Some(server), None)),
                _ => Client::<Ask, Told>::open(node, "rpc", farfield_fabric::NodeId(0), options)
                    .map(|client| (None, Some(client))),
            }
        })?;
        let (mut servers, mut clients): (Vec<_>, Vec<_>) = opened.into_iter().unzip();
        let (server, client) = (servers.swap_remove(0).expect("its node"), clients.swap_remove(1).expect("its node"));
        course.keep(client.clone());
        let done = Rc::clone(&course);
        cluster.thread_that_drops(0, "serves one", move |ep| {
            ep.block_on(server.serve_next(ep, |_, ask| done.effects.handle(ask)))?;
            Ok(())
        });
        calls(cluster, &course, 1, &client, |caller| {
            for number in 0..3 {
                let ask = caller.course.ask();
                let result = caller.ep.block_on(caller.client.call(caller.ep, &ask));
                if let Err(error) = &result {
                    assert!(
                        number > 0 && !error.is_timeout(),
                        "the first is handled, and the others end soon: {error}"
                    );
                }
                caller.course.end(ask, result, true);
            }
        });
        Ok(())
    })
}
